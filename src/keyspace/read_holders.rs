// SPDX-License-Identifier: MIT

//! Reading a lock without changing it.

use crate::core::{Hold, Holders, Now};
use crate::error::Error;
use crate::keyspace::crowd::HashShape;
use crate::keyspace::layout::{self, Field};
use crate::keyspace::{crowd, reader_cache};
use crate::server::keys::handle::ValueKind;
use crate::server::keys::key::Key;
use crate::server::{Ctx, Str};

/// A hash with more fields than this is read through the cache of its readers.
const FULL_READ_FIELDS: usize = 1000;

/// Reads a lock without changing it. Works on a replica.
pub(crate) fn read_holders(ctx: Ctx<'_>, name: &Str<'_>, now: Now) -> Result<Holders, Error> {
    let key = Key::open_for_read(ctx, name);
    if let Some(shape) = crowd_shape(&key) {
        if let Some(holders) = crowd::read_cached(ctx, &key, shape, now) {
            return Ok(holders);
        }
    }
    read_all_fields(&key, now)
}

/// Total number of an owner's holds, exclusive and shared. Works on a replica.
pub(crate) fn count_holds(ctx: Ctx<'_>, name: &Str<'_>, owner: &Str<'_>) -> Result<i64, Error> {
    let key = Key::open_for_read(ctx, name);
    let single_owner =
        (key.kind() == ValueKind::Hash).then(|| key.only_integer_fields(owner, fence_field(ctx))).flatten();
    if let Some((holds, token)) = single_owner {
        if layout::is_single_owner(owner.as_bytes(), holds, token) {
            return key.expires_at().map(|_| holds).ok_or(Error::WrongType);
        }
    }
    drop(key);
    let holders = read_holders(ctx, name, ctx.now())?;
    Ok(holders.get(owner.as_bytes()).map_or(0, Hold::total))
}

/// Reads a lock from all of its fields, unless there are thousands.
pub(crate) fn read_holders_fully(ctx: Ctx<'_>, name: &Str<'_>, now: Now) -> Result<Holders, Error> {
    let key = Key::open_for_read(ctx, name);
    match crowd_shape(&key) {
        Some(shape) if shape.fields > FULL_READ_FIELDS => read_holders(ctx, name, now),
        Some(shape) => crowd::read_all(&key, shape, now).map_or_else(|| read_all_fields(&key, now), Ok),
        None => read_all_fields(&key, now),
    }
}

/// Makes the next opening of a lock in the selected database read all fields, unless there are thousands.
pub(crate) fn force_full_read(ctx: Ctx<'_>, name: &Str<'_>) {
    let shape = crowd_shape(&Key::open_for_read(ctx, name));
    if shape.is_none_or(|shape| shape.fields <= FULL_READ_FIELDS) {
        reader_cache::invalidate(ctx, name.as_bytes());
    }
}

/// The shape of a hash that may be a crowd.
fn crowd_shape(key: &Key<'_>) -> Option<HashShape> {
    let fields = Some(key).filter(|key| key.kind() == ValueKind::Hash)?.len();
    Some(HashShape { fields, expires_at: key.expires_at()? }).filter(|_| fields > crowd::SMALL_HASH_FIELDS)
}

fn read_all_fields(key: &Key<'_>, now: Now) -> Result<Holders, Error> {
    match key.kind() {
        ValueKind::Empty => Ok(Holders::Free),
        ValueKind::Hash => {
            let expires_at = key.expires_at().ok_or(Error::WrongType)?;
            read_fields(key, expires_at, now).map(|(_, holders)| holders)
        }
        ValueKind::String | ValueKind::Other => Err(Error::WrongType),
    }
}

/// Reads any hash field by field. Fails with [`Error::WrongType`] if it is not a lock.
pub(super) fn read_fields(key: &Key<'_>, expires_at: i64, now: Now) -> Result<(Vec<Field>, Holders), Error> {
    let mut stored = Vec::new();
    let mut plain = 0;
    key.for_each_field(&mut |field, value| {
        stored.push((layout::Text::from_slice(field), layout::Text::from_slice(value)));
        // A hash with a second plain field is not a lock, and may be large.
        plain += usize::from(!field.starts_with(b"#"));
        plain <= 1
    });
    let mut holders = layout::parse(&stored, expires_at).ok_or(Error::WrongType)?;
    holders.end_leases(now.wall);
    Ok((stored, holders))
}

/// The name of the field of the token.
pub(super) fn fence_field(ctx: Ctx<'_>) -> &'static Str<'static> {
    Str::cached_field(ctx, layout::FENCE_FIELD)
}
