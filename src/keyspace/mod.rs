//! A lock as a Redis hash: [`layout`] says which fields it has.
//!
//! [`Lock::open`] reads it, the core changes [`Lock::holders`] and [`Lock::records`], and [`Lock::store`] writes
//! the difference: to the keyspace, to replicas and the AOF as plain commands with absolute times, as keyspace
//! events, and to `WATCH` and client-side caches, all in the words of the plain commands that make the same
//! change. What else hears of it, stands in [`publish`].

pub(crate) mod fair;
mod layout;
pub(crate) mod names;
pub(crate) mod publish;
mod records;

use std::ffi::{c_int, CStr};

use crate::core::{Holders, Now};
use crate::error::Error;
use crate::server::key::{Key, Kind};
use crate::server::{events, Ctx, Str};
use layout::{Field, Wanted};
pub(crate) use records::Records;

/// A lock of the selected database that is open to be read and written.
pub(crate) struct Lock<'a> {
    ctx: Ctx,
    key: Key<'a>,
    /// Its hash as it is stored, with what leases that are over have left behind.
    stored: Vec<Field>,
    stored_end: Option<i64>,
    /// Who holds it by what is stored.
    before: Holders,
    /// Who shall hold it.
    pub(crate) holders: Holders,
    /// What is stored beside it.
    pub(crate) records: Records<'a>,
}

impl<'a> Lock<'a> {
    /// Opens a lock, on a primary; a lease that is over has ended then. [`Error::WrongType`] if the key holds
    /// anything but a lock.
    pub(crate) fn open(ctx: Ctx, name: &'a Str<'a>, now: Now) -> Result<Lock<'a>, Error> {
        let key = Key::open_for_write(ctx, name);
        let (stored, before) = read(&key, now)?;
        let (stored_end, records) = (key.expires_at(), Records::of(ctx, name));
        Ok(Lock { ctx, key, stored, stored_end, holders: before.clone(), before, records })
    }

    /// True if somebody waits for it as for a fair lock of Redisson.
    pub(crate) fn is_fair(&self, now: Now) -> bool {
        fair::has_queue(self.ctx, self.key.name(), now)
    }

    pub(crate) fn name(&self) -> &'a Str<'a> {
        self.key.name()
    }

    /// When the first lease ends, if the lock will be free earlier than whoever has read it knows.
    pub(crate) fn shortened_to(&self) -> Option<i64> {
        let shortened = self.stored_end > self.holders.expires_at();
        self.holders.first_end().filter(|_| shortened)
    }

    /// Writes what has changed; nothing if nothing has. If that ends the last hold, those who wait elsewhere
    /// are told; returns how many heard it, if anything was said.
    pub(crate) fn store(mut self) -> Option<usize> {
        let announce = self.records.announce;
        let was_there = !self.stored.is_empty();
        let changed = self.store_holders();
        self.records.store();
        if changed {
            self.ctx.signal_modified(self.key.name());
        }
        let freed = (changed && was_there && self.holders.is_free()) || announce;
        freed.then(|| publish::freed(self.ctx, self.key.name()))
    }

    /// Returns whether anything has changed.
    fn store_holders(&mut self) -> bool {
        let name = self.key.name();
        let mut changed = false;
        let stays = self.before.iter().any(|hold| self.holders.of(hold.owner.as_bytes()).is_some());
        if !self.stored.is_empty() && !stays {
            self.key.delete();
            self.stored.clear();
            self.before = Holders::Free;
            self.stored_end = None;
            self.ctx.replicate(c"DEL", &[name]);
            self.notify(events::GENERIC, c"del");
            changed = true;
        }
        changed |= self.delete_others();
        changed |= self.set_fields();
        if let Some(end) = self.holders.expires_at() {
            let renewed = self.holders.iter().any(|hold| hold.renewed && hold.expires_at == end);
            if renewed || self.stored_end != Some(end) {
                self.key.set_expires_at(end);
                self.ctx.replicate(c"PEXPIREAT", &[name, &Str::from_number(end)]);
                self.notify(events::GENERIC, c"expire");
                changed = true;
            }
        }
        changed
    }

    /// `HDEL` for the fields that shall not be there.
    fn delete_others(&mut self) -> bool {
        let others = self.stored.iter().filter(|(field, _)| !layout::has_field(&self.holders, field));
        let mut others: Vec<&[u8]> = others.map(|(field, _)| &**field).collect();
        if others.is_empty() {
            return false;
        }
        others.sort_unstable();
        let others: Vec<Str<'_>> = others.into_iter().map(Str::new).collect();
        others.iter().for_each(|field| self.key.delete_field(field));
        let args: Vec<&Str<'_>> = std::iter::once(self.key.name()).chain(&others).collect();
        self.ctx.replicate(c"HDEL", &args);
        self.notify(events::HASH, c"hdel");
        true
    }

    /// `HSET` for the fields that are not as they shall be.
    fn set_fields(&mut self) -> bool {
        let wanted = layout::fields(&self.holders.changed_since(&self.before));
        // Mostly one is looked for; for many, order pays.
        let many = wanted.len() > 8;
        if many {
            self.stored.sort_unstable();
        }
        let stored = |name: &[u8]| {
            let at = match many {
                true => self.stored.binary_search_by(|(field, _)| (**field).cmp(name)).ok(),
                false => self.stored.iter().position(|(field, _)| field == name),
            };
            at.map(|at| &self.stored[at].1)
        };
        let mut args = Vec::new();
        for Wanted { field: (name, value), renewed } in &wanted {
            if *renewed || stored(name) != Some(value) {
                args.push(Str::new(name));
                args.push(Str::new(value));
            }
        }
        if args.is_empty() {
            return false;
        }
        for pair in args.chunks(2) {
            self.key.set_field(&pair[0], &pair[1]);
        }
        let args: Vec<&Str<'_>> = std::iter::once(self.key.name()).chain(&args).collect();
        self.ctx.replicate(c"HSET", &args);
        self.notify(events::HASH, c"hset");
        true
    }

    fn notify(&self, class: c_int, event: &CStr) {
        crate::runtime::while_changing(self.ctx, || self.ctx.notify(class, event, self.key.name()));
    }
}

/// Reads a lock without touching it; works on a replica.
pub(crate) fn look(ctx: Ctx, name: &Str<'_>, now: Now) -> Result<Holders, Error> {
    read(&Key::open_for_read(ctx, name), now).map(|(_, holders)| holders)
}

/// What is stored, and who holds the lock by that. Anything that is not exactly a lock, with a TTL, is not
/// ours to touch, even where it looks alike.
fn read(key: &Key<'_>, now: Now) -> Result<(Vec<Field>, Holders), Error> {
    match key.kind() {
        Kind::Empty => return Ok((Vec::new(), Holders::Free)),
        Kind::Hash => {}
        Kind::String | Kind::Other => return Err(Error::WrongType),
    }
    let expires_at = key.expires_at().ok_or(Error::WrongType)?;
    let mut stored = Vec::new();
    let mut plain = 0;
    key.for_each_field(&mut |field, value| {
        stored.push((field.to_vec(), value.to_vec()));
        // Whatever else it is, it may be large.
        plain += usize::from(!field.starts_with(b"#"));
        plain <= 1
    });
    let mut holders = layout::parse(&stored, expires_at).ok_or(Error::WrongType)?;
    holders.end_leases(now.wall);
    Ok((stored, holders))
}
