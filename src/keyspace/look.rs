// SPDX-License-Identifier: MIT

//! Reading a lock without changing it.

use crate::core::{Hold, Holders, Now};
use crate::error::Error;
use crate::keyspace::layout::{self, Field};
use crate::keyspace::{crowd, reader_cache};
use crate::server::keys::handle::Kind;
use crate::server::keys::key::Key;
use crate::server::{Ctx, Str};

/// A hash with more fields than this is looked at by those of its readers that are kept, if they are.
const CLOSELY: usize = 1000;

/// Reads a lock without touching it; works on a replica.
pub(crate) fn look(ctx: Ctx<'_>, name: &Str<'_>, now: Now) -> Result<Holders, Error> {
    let key = Key::open_for_read(ctx, name);
    if let Some(found) = crowd_size(&key) {
        if let Some(holders) = crowd::look(ctx, &key, found, now) {
            return Ok(holders);
        }
    }
    read_all(&key, now)
}

/// How many holds an owner has, of both kinds. Works on a replica.
pub(crate) fn held_by(ctx: Ctx<'_>, name: &Str<'_>, owner: &Str<'_>) -> Result<i64, Error> {
    let key = Key::open_for_read(ctx, name);
    let alone = (key.kind() == Kind::Hash).then(|| key.only_numbers(owner, fence_field(ctx))).flatten();
    if let Some((holds, token)) = alone {
        if layout::is_alone(owner.as_bytes(), holds, token) {
            return key.expires_at().map(|_| holds).ok_or(Error::WrongType);
        }
    }
    drop(key);
    let holders = look(ctx, name, ctx.now())?;
    Ok(holders.of(owner.as_bytes()).map_or(0, Hold::total))
}

/// Reads a lock by all of its fields, unless there are thousands.
pub(crate) fn look_closely(ctx: Ctx<'_>, name: &Str<'_>, now: Now) -> Result<Holders, Error> {
    let key = Key::open_for_read(ctx, name);
    match crowd_size(&key) {
        Some(found) if found.0 > CLOSELY => look(ctx, name, now),
        Some(found) => crowd::look_closely(&key, found, now).map_or_else(|| read_all(&key, now), Ok),
        None => read_all(&key, now),
    }
}

/// Has a lock of the selected database be opened by all of its fields, unless there are thousands.
pub(crate) fn read_closely(ctx: Ctx<'_>, name: &Str<'_>) {
    let found = crowd_size(&Key::open_for_read(ctx, name));
    if found.is_none_or(|(fields, _)| fields <= CLOSELY) {
        reader_cache::forget(ctx, name.as_bytes());
    }
}

/// How many fields there are and until when, if that can be a crowd.
fn crowd_size(key: &Key<'_>) -> Option<(usize, i64)> {
    let fields = Some(key).filter(|key| key.kind() == Kind::Hash)?.len();
    Some((fields, key.expires_at()?)).filter(|_| fields > crowd::MANY)
}

fn read_all(key: &Key<'_>, now: Now) -> Result<Holders, Error> {
    match key.kind() {
        Kind::Empty => Ok(Holders::Free),
        Kind::Hash => {
            let expires_at = key.expires_at().ok_or(Error::WrongType)?;
            read_fields(key, expires_at, now).map(|(_, holders)| holders)
        }
        Kind::String | Kind::Other => Err(Error::WrongType),
    }
}

/// The same for any hash, field by field.
pub(super) fn read_fields(key: &Key<'_>, expires_at: i64, now: Now) -> Result<(Vec<Field>, Holders), Error> {
    let mut stored = Vec::new();
    let mut plain = 0;
    key.for_each_field(&mut |field, value| {
        stored.push((layout::Text::from_slice(field), layout::Text::from_slice(value)));
        // Whatever else it is, it may be large.
        plain += usize::from(!field.starts_with(b"#"));
        plain <= 1
    });
    let mut holders = layout::parse(&stored, expires_at).ok_or(Error::WrongType)?;
    holders.end_leases(now.wall);
    Ok((stored, holders))
}

/// The name of the field with the token.
pub(super) fn fence_field(ctx: Ctx<'_>) -> &'static Str<'static> {
    Str::of_field(ctx, layout::FENCE)
}
