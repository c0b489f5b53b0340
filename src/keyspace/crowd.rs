// SPDX-License-Identifier: MIT

//! Many readers of one lock: how they are found in its hash, and how what a step changes is written without a look at the others.
//!
//! They are kept from one call to the next ([`kept`]), as long as the key bears them out. What is compared, in O(1): how many
//! fields the hash has, its TTL with the last lease, the caller's own field, and the field of another reader, the one whose
//! lease is the longest. From that follows what matters:
//!
//! * That other reader holds the lock, so no exclusive hold stands in the hash, and none is granted.
//! * A step can end some holds besides the caller's: those of connections that have closed, and grants that are revoked. They
//!   are counted beforehand, and so many others must be left that none of them can get the lock alone.
//! * Before the field of a reader is deleted whose lease is over, or who does not call, it is compared too.
//!
//! Whatever differs: all fields are read. What goes unnoticed is that somebody overwrites the field of a third reader by hand,
//! or replaces it by another one, until that reader calls or its lease is over.

use std::rc::Rc;

use crate::core::{ChangedHold, Crowd, Hold, Holders, LockRef, Now};
use crate::keyspace::memory::Memory;
use crate::keyspace::{kept, layout};
use crate::server::key::Key;
use crate::server::propagation::Propagation;
use crate::server::{notify, Ctx, Str};

/// A hash with more fields than this is read as a crowd, if it is one.
pub(super) const MANY: usize = 8;

/// How many fields of readers whose lease is over a step deletes: thousands at once would stall the server.
const PORTION: usize = 256;

/// So many must hold the lock, besides those whose holds a step can end: when the caller is gone too, each of them still has
/// another one beside it.
const LEFT: usize = 3;

/// How a crowd was found.
pub(super) struct Found {
    db: i32,
    /// The name under which it was kept; none if it was read.
    name: Option<Box<[u8]>>,
    /// It can be kept.
    lasts: bool,
}

/// What was written of a crowd.
pub(super) struct Written {
    pub(super) changed: bool,
    /// The lease that is the last of all was set.
    pub(super) renewed_last: bool,
}

/// The readers that a hash with so many fields stands for, to be changed; `None` if it is no crowd.
pub(super) fn open(
    ctx: Ctx<'_>,
    key: &Key<'_>,
    (fields, expires_at): (usize, i64),
    caller: Option<&Str<'_>>,
    memory: &impl Memory,
    now: Now,
) -> Option<(Found, Holders)> {
    let at = LockRef { db: ctx.db(), key: key.name().as_bytes() };
    let lasts = !key.may_have_field_ends(ctx);
    if let Some((name, mut crowd)) = kept::take(ctx, at) {
        if lasts && is_true(key, &crowd, (fields, expires_at), caller) {
            Rc::make_mut(&mut crowd).set_now(now.wall);
            if crowd.len() >= memory.ending() + LEFT {
                let found = Found { db: at.db, name: Some(name), lasts };
                return Some((found, Holders::from_crowd(crowd)));
            }
        }
    }
    let holders = read(key, (fields, expires_at), now)?;
    Some((Found { db: at.db, name: None, lasts }, holders))
}

/// The readers that a hash with so many fields stands for, to look at; they may be those that are kept.
pub(super) fn look(ctx: Ctx<'_>, key: &Key<'_>, found: (usize, i64), now: Now) -> Option<Holders> {
    let at = LockRef { db: ctx.db(), key: key.name().as_bytes() };
    if let Some((name, mut crowd)) = kept::take(ctx, at) {
        if !key.may_have_field_ends(ctx) && is_true(key, &crowd, found, None) {
            Rc::make_mut(&mut crowd).set_now(now.wall);
            kept::put(ctx, (at.db, name), Rc::clone(&crowd), now.wall);
            if crowd.len() >= LEFT {
                return Some(Holders::from_crowd(crowd));
            }
        }
    }
    look_closely(key, found, now)
}

/// The same by all fields.
pub(super) fn look_closely(key: &Key<'_>, found: (usize, i64), now: Now) -> Option<Holders> {
    read(key, found, now)
}

/// Who holds the lock by these fields. They are no crowd if few are left of many: what is stored of them is that alone, and all
/// else goes with the key.
fn read(key: &Key<'_>, (fields, expires_at): (usize, i64), now: Now) -> Option<Holders> {
    let mut all = Vec::with_capacity(fields);
    all_readers(key, expires_at, &mut |hold| all.push(hold))?;
    let over = all.iter().filter(|hold| hold.expires_at < now.wall).count();
    if all.len() - over <= MANY && over > PORTION {
        all.retain(|hold| hold.expires_at >= now.wall);
        return Holders::from_holds(all);
    }
    Some(Holders::from_crowd(Rc::new(Crowd::new(all, now.wall))))
}

/// Shows every reader of a hash; `None` if there is any other field.
fn all_readers(key: &Key<'_>, expires_at: i64, show: &mut dyn FnMut(Hold)) -> Option<()> {
    let mut all = true;
    key.for_each_field(&mut |field, value| {
        match layout::parse_reader((field, value), expires_at) {
            Some(hold) => show(hold),
            None => all = false,
        }
        all
    });
    all.then_some(())
}

/// True if the key bears out what was kept.
fn is_true(
    key: &Key<'_>,
    crowd: &Crowd,
    (fields, expires_at): (usize, i64),
    caller: Option<&Str<'_>>,
) -> bool {
    let caller = caller.map(Str::as_bytes);
    crowd.fields() == fields
        && crowd.last_end() == Some(expires_at)
        && caller.is_none_or(|caller| has(key, caller, crowd.field(caller)))
        && crowd.last_except(caller).is_some_and(|hold| has(key, hold.owner.as_bytes(), Some(hold)))
}

/// True if the field of this reader says just this, or is not there.
fn has(key: &Key<'_>, owner: &[u8], hold: Option<&Hold>) -> bool {
    key.with_field(&Str::new(&layout::reader_field(owner)), |value| match (value, hold) {
        (Some(value), Some(hold)) => layout::is_value_of(value, hold),
        (None, None) => true,
        _ => false,
    })
}

impl Found {
    /// Writes what a step has changed of the crowd, and deletes some of the fields whose lease is over.
    pub(super) fn store(
        &mut self,
        key: &mut Key<'_>,
        crowd: &mut Crowd,
        caller: Option<&Str<'_>>,
        propagation: Propagation<'_>,
        raise: impl Fn(&std::ffi::CStr),
    ) -> Written {
        let was_kept = self.name.is_some();
        let (mut gone, mut set, mut renewed_last) = (Vec::new(), Vec::new(), false);
        for ChangedHold { owner, before } in crowd.take_changes() {
            let owner = owner.as_bytes();
            let calls = caller.is_some_and(|caller| caller.as_bytes() == owner);
            if was_kept && !calls && !has(key, owner, before.as_ref()) {
                // The field is somebody else's work.
                self.lasts = false;
                continue;
            }
            match (crowd.field(owner), before) {
                (None, None) => {}
                (None, Some(_)) => gone.push(layout::reader_field(owner)),
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
        let ended: Vec<Hold> = crowd.ended(PORTION).cloned().collect();
        for hold in ended {
            let owner = hold.owner.as_bytes();
            if was_kept && !has(key, owner, Some(&hold)) {
                self.lasts = false;
                break;
            }
            gone.push(layout::reader_field(owner));
            crowd.forget(owner);
        }
        gone.sort_unstable();
        let gone: Vec<Str<'_>> = gone.iter().map(|field| Str::new(field)).collect();
        if !gone.is_empty() {
            gone.iter().for_each(|field| key.delete_field(field));
            let args: Vec<&Str<'_>> = std::iter::once(key.name()).chain(&gone).collect();
            propagation.send(c"HDEL", &args);
            raise(c"hdel");
        }
        if !set.is_empty() {
            set.chunks(2).for_each(|pair| key.set_field(&pair[0], &pair[1]));
            let args: Vec<&Str<'_>> = std::iter::once(key.name()).chain(&set).collect();
            propagation.send(c"HSET", &args);
            raise(c"hset");
        }
        Written { changed: !(gone.is_empty() && set.is_empty()), renewed_last }
    }

    /// Keeps a crowd that is stored, on a primary: at a replica the stream from the primary changes it.
    pub(super) fn keep(&mut self, ctx: Ctx<'_>, key: &Key<'_>, crowd: &mut Rc<Crowd>) {
        if self.lasts && !crowd.has_unwritten_changes() && crowd.fields() > MANY && ctx.is_primary() {
            let to_keep = Rc::make_mut(crowd);
            to_keep.free_spare();
            to_keep.mark_kept();
            let name = self.name.take().unwrap_or_else(|| key.name().as_bytes().into());
            kept::put(ctx, (self.db, name), Rc::clone(crowd), ctx.now().wall);
        }
    }
}

/// What `raise` of [`Found::store`] is told is of this class.
pub(super) const CLASS: std::ffi::c_int = notify::HASH;
