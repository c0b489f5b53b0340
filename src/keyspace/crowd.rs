// SPDX-License-Identifier: MIT

//! A lock with many readers: reading its hash, and writing the changes of a step without touching the other readers.
//!
//! The readers are cached between calls ([`reader_cache`]). A cached crowd is used only if it matches the
//! key, which takes O(1) to check. The check compares the number of fields and the TTL, which is the last
//! lease. It also compares the caller's own field, and the field of the other reader with the longest lease.
//! It ensures the following:
//!
//! * The other reader holds the lock, so the hash has no exclusive hold, and none is granted.
//! * A step can end holds other than the caller's: those of closed connections, and those of revoked grants.
//!   They are counted in advance. Enough readers must remain that none of them can get the lock exclusively.
//! * The field of an expired reader other than the caller is also compared before it is deleted.
//!
//! If anything differs, all fields are read. One change goes unnoticed: a foreign write that overwrites or
//! replaces the field of a third reader. It is noticed when that reader calls or its lease ends.

use std::rc::Rc;

use crate::core::{ChangedHold, Crowd, Hold, Holders, LockRef, Now};
use crate::keyspace::memory::Memory;
use crate::keyspace::reader_cache::CacheKey;
use crate::keyspace::{layout, reader_cache};
use crate::server::keys::key::Key;
use crate::server::replication::keyspace_events;
use crate::server::replication::propagation::Propagation;
use crate::server::{Ctx, Str};

/// A hash with more fields than this is read as a crowd if all of them belong to readers.
pub(super) const SMALL_HASH_FIELDS: usize = 8;

/// Maximum number of expired fields that a step deletes. Deleting thousands at once would stall the server.
const EXPIRED_PER_STEP: usize = 256;

/// Minimum number of readers apart from those whose holds a step can end. Even without the caller, each of
/// them then shares the lock with another reader.
const MIN_OTHER_READERS: usize = 3;

/// The size and the TTL of a hash.
#[derive(Clone, Copy)]
pub(super) struct HashShape {
    pub(super) fields: usize,
    /// Milliseconds since the epoch.
    pub(super) expires_at: i64,
}

/// The origin of a crowd that was read.
pub(super) struct FoundCrowd {
    db: i32,
    /// The name of the cache entry; `None` if the crowd was read from the key.
    name: Option<Box<[u8]>>,
    /// Whether the crowd may be cached.
    is_cacheable: bool,
}

/// The result of writing a crowd.
pub(super) struct CrowdWrite {
    pub(super) changed: bool,
    /// Whether the lease that ends last was set.
    pub(super) renewed_last: bool,
}

/// Reads the readers of a hash for a change, from the cache if possible; `None` if the hash is not a crowd.
pub(super) fn open(
    ctx: Ctx<'_>,
    key: &Key<'_>,
    shape: HashShape,
    caller: Option<&Str<'_>>,
    memory: &impl Memory,
    now: Now,
) -> Option<(FoundCrowd, Holders)> {
    let at = LockRef { db: ctx.db(), key: key.name().as_bytes() };
    let is_cacheable = !key.may_have_expiring_fields(ctx);
    if let Some((name, mut crowd)) = reader_cache::take(ctx, at) {
        if is_cacheable && matches_key(key, &crowd, shape, caller) {
            Rc::make_mut(&mut crowd).set_now(now.wall);
            if crowd.len() >= memory.ending() + MIN_OTHER_READERS {
                let found = FoundCrowd { db: at.db, name: Some(name), is_cacheable };
                return Some((found, Holders::from_crowd(crowd)));
            }
        }
    }
    let holders = read_all(key, shape, now)?;
    Some((FoundCrowd { db: at.db, name: None, is_cacheable }, holders))
}

/// Reads the readers of a hash, from the cache if possible; `None` if the hash is not a crowd.
pub(super) fn read_cached(ctx: Ctx<'_>, key: &Key<'_>, shape: HashShape, now: Now) -> Option<Holders> {
    let at = LockRef { db: ctx.db(), key: key.name().as_bytes() };
    if let Some((name, mut crowd)) = reader_cache::take(ctx, at) {
        if !key.may_have_expiring_fields(ctx) && matches_key(key, &crowd, shape, None) {
            Rc::make_mut(&mut crowd).set_now(now.wall);
            reader_cache::insert(ctx, CacheKey { db: at.db, name }, Rc::clone(&crowd), now.wall);
            if crowd.len() >= MIN_OTHER_READERS {
                return Some(Holders::from_crowd(crowd));
            }
        }
    }
    read_all(key, shape, now)
}

/// Reads the holders from all fields. If nearly all of many readers have expired, the remaining ones are not
/// a crowd. Then only their fields are stored again; the others are deleted with the key.
pub(super) fn read_all(key: &Key<'_>, shape: HashShape, now: Now) -> Option<Holders> {
    let mut all = Vec::with_capacity(shape.fields);
    all_readers(key, shape.expires_at, &mut |hold| all.push(hold))?;
    let expired = all.iter().filter(|hold| hold.expires_at < now.wall).count();
    if all.len() - expired <= SMALL_HASH_FIELDS && expired > EXPIRED_PER_STEP {
        all.retain(|hold| hold.expires_at >= now.wall);
        return Holders::from_holds(all);
    }
    Some(Holders::from_crowd(Rc::new(Crowd::new(all, now.wall))))
}

/// Calls `visit` with every reader of a hash. Returns `None` if the hash has any other field.
fn all_readers(key: &Key<'_>, expires_at: i64, visit: &mut dyn FnMut(Hold)) -> Option<()> {
    let mut all = true;
    key.for_each_field(&mut |field, value| {
        match layout::parse_reader(field, value, expires_at) {
            Some(hold) => visit(hold),
            None => all = false,
        }
        all
    });
    all.then_some(())
}

/// Whether the cached crowd matches the key.
fn matches_key(key: &Key<'_>, crowd: &Crowd, shape: HashShape, caller: Option<&Str<'_>>) -> bool {
    let caller = caller.map(Str::as_bytes);
    crowd.fields() == shape.fields
        && crowd.last_end() == Some(shape.expires_at)
        && caller.is_none_or(|caller| field_matches(key, caller, crowd.field(caller)))
        && crowd.last_except(caller).is_some_and(|hold| field_matches(key, hold.owner.as_bytes(), Some(hold)))
}

/// Whether the reader's field represents exactly this hold. For `None`, whether the field is missing.
fn field_matches(key: &Key<'_>, owner: &[u8], hold: Option<&Hold>) -> bool {
    key.with_field(&Str::new(&layout::reader_field(owner)), |value| match (value, hold) {
        (Some(value), Some(hold)) => layout::is_value_of(value, hold),
        (None, None) => true,
        _ => false,
    })
}

impl FoundCrowd {
    /// Writes the changes of a step, and deletes some of the expired fields.
    pub(super) fn store(
        &mut self,
        key: &mut Key<'_>,
        crowd: &mut Crowd,
        caller: Option<&Str<'_>>,
        propagation: Propagation<'_>,
        raise: impl Fn(&std::ffi::CStr),
    ) -> CrowdWrite {
        let was_cached = self.name.is_some();
        let (mut deleted, mut set, mut renewed_last) = (Vec::new(), Vec::new(), false);
        for ChangedHold { owner, before } in crowd.take_changes() {
            let owner = owner.as_bytes();
            let calls = caller.is_some_and(|caller| caller.as_bytes() == owner);
            if was_cached && !calls && !field_matches(key, owner, before.as_ref()) {
                // A foreign write has changed the field.
                self.is_cacheable = false;
                continue;
            }
            match (crowd.field(owner), before) {
                (None, None) => {}
                (None, Some(_)) => deleted.push(layout::reader_field(owner)),
                (Some(hold), before) => {
                    if hold.renewed || before.as_ref() != Some(hold) {
                        set.push(Str::new(&layout::reader_field(owner)));
                        set.push(Str::new(&layout::reader_value(hold)));
                    }
                    renewed_last |= hold.renewed && crowd.last_end() == Some(hold.expires_at);
                }
            }
            crowd.mark_written(owner);
        }
        let ended: Vec<Hold> = crowd.ended(EXPIRED_PER_STEP).cloned().collect();
        for hold in ended {
            let owner = hold.owner.as_bytes();
            if was_cached && !field_matches(key, owner, Some(&hold)) {
                self.is_cacheable = false;
                break;
            }
            deleted.push(layout::reader_field(owner));
            crowd.forget(owner);
        }
        deleted.sort_unstable();
        let deleted: Vec<Str<'_>> = deleted.iter().map(|field| Str::new(field)).collect();
        if !deleted.is_empty() {
            deleted.iter().for_each(|field| key.delete_field(field));
            let args: Vec<&Str<'_>> = std::iter::once(key.name()).chain(&deleted).collect();
            propagation.send(c"HDEL", &args);
            raise(c"hdel");
        }
        if !set.is_empty() {
            set.chunks(2).for_each(|pair| key.set_field(&pair[0], &pair[1]));
            let args: Vec<&Str<'_>> = std::iter::once(key.name()).chain(&set).collect();
            propagation.send(c"HSET", &args);
            raise(c"hset");
        }
        CrowdWrite { changed: !(deleted.is_empty() && set.is_empty()), renewed_last }
    }

    /// Caches a stored crowd, on a primary only: on a replica, the replication stream changes the hash.
    pub(super) fn cache(&mut self, ctx: Ctx<'_>, key: &Key<'_>, crowd: &mut Rc<Crowd>) {
        if self.is_cacheable
            && !crowd.has_unwritten_changes()
            && crowd.fields() > SMALL_HASH_FIELDS
            && ctx.is_primary()
        {
            let to_keep = Rc::make_mut(crowd);
            to_keep.free_spare();
            to_keep.mark_kept();
            let name = self.name.take().unwrap_or_else(|| key.name().as_bytes().into());
            reader_cache::insert(ctx, CacheKey { db: self.db, name }, Rc::clone(crowd), ctx.now().wall);
        }
    }
}

/// Class of the events that [`FoundCrowd::store`] raises.
pub(super) const CLASS: std::ffi::c_int = keyspace_events::HASH;
