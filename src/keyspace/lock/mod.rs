// SPDX-License-Identifier: MIT

//! A lock, from opening its key to writing its changes.

mod store;

use crate::core::{Holders, LockLookup, Now, OpenLock};
use crate::error::Error;
use crate::keyspace::crowd::{self, HashShape};
use crate::keyspace::layout;
use crate::keyspace::memory::Memory;
use crate::keyspace::read_holders::{fence_field, read_fields};
use crate::keyspace::records::Records;
use crate::keyspace::stored::{PlainOwner, Stored};
use crate::keyspace::{reader_cache, redisson_fair};
use crate::server::keys::handle::ValueKind;
use crate::server::keys::key::Key;
use crate::server::{Ctx, Str};

/// A lock of the selected database that is open for reading and writing.
pub(crate) struct Lock<'a> {
    ctx: Ctx<'a>,
    key: Key<'a>,
    /// The calling owner, if any.
    caller: Option<&'a Str<'a>>,
    stored: Stored<'a>,
    stored_end: Option<i64>,
    /// The holders after the current changes.
    pub(crate) holders: Holders,
    /// The records stored with the lock.
    pub(crate) records: Records<'a>,
    /// Whether the announcement that the lock is free is withheld for now.
    pub(crate) withholds_announcement: bool,
}

impl<'a> Lock<'a> {
    /// Opens a lock on a primary while `body` runs, and ends expired leases. Fails with [`Error::WrongType`]
    /// if the key does not hold a lock. Reading is faster if `caller` is the only holder.
    pub(crate) fn open<T>(
        ctx: Ctx<'a>,
        name: &'a Str<'a>,
        caller: Option<&'a Str<'a>>,
        memory: &impl Memory,
        now: Now,
        body: impl FnOnce(&mut Lock<'a>) -> T,
    ) -> Result<T, Error> {
        let mut lock = Lock {
            ctx,
            key: Key::open_for_write(ctx, name),
            caller,
            stored: Stored::Nothing,
            stored_end: None,
            holders: Holders::Free,
            records: Records::of(ctx, name),
            withholds_announcement: false,
        };
        lock.read(memory, now)?;
        Ok(body(&mut lock))
    }

    /// Passes the opened lock to the core.
    pub(crate) fn opened<'b>(&'b mut self, lookup: LockLookup<'b>, now: Now) -> OpenLock<'b> {
        OpenLock { lookup, holders: &mut self.holders, records: &mut self.records, now }
    }

    /// Reads the stored holders and their expiry. A value that is not exactly a lock with a TTL is never
    /// changed, even if it is similar to one.
    fn read(&mut self, memory: &impl Memory, now: Now) -> Result<(), Error> {
        let (ctx, key) = (self.ctx, &self.key);
        let kind = key.kind();
        let fields = if kind == ValueKind::Hash { key.len() } else { 0 };
        if fields <= crowd::SMALL_HASH_FIELDS {
            reader_cache::invalidate(ctx, key.name().as_bytes());
        }
        match kind {
            ValueKind::Empty => return Ok(()),
            ValueKind::Hash => {}
            ValueKind::String | ValueKind::Other => return Err(Error::WrongType),
        }
        if fields == 1 && self.read_remembered(memory, now) {
            return Ok(());
        }
        let key = &self.key;
        let expires_at = key.expires_at().ok_or(Error::WrongType)?;
        self.stored_end = Some(expires_at);
        if fields <= 2 && self.read_callers_hold(expires_at) {
            return Ok(());
        }
        let key = &self.key;
        if fields > crowd::SMALL_HASH_FIELDS {
            let shape = HashShape { fields, expires_at };
            if let Some((found, holders)) = crowd::open(ctx, key, shape, self.caller, memory, now) {
                self.stored = Stored::Crowd(found);
                self.holders = holders;
                return Ok(());
            }
        }
        let (stored, holders) = read_fields(key, expires_at, now)?;
        self.stored = Stored::Fields(stored, holders.clone());
        self.holders = holders;
        Ok(())
    }

    /// Reads a hash with one field, if that field is the remembered hold.
    fn read_remembered(&mut self, memory: &impl Memory, now: Now) -> bool {
        // If the lease is over but the key still exists, the key has a different TTL, even without an event.
        let remembered = memory.plain_hold().filter(|hold| hold.expires_at >= now.wall);
        let Some(hold) = remembered else { return false };
        let owner = match self.caller.filter(|caller| caller.as_bytes() == hold.owner.as_bytes()) {
            Some(caller) => PlainOwner::Caller(caller),
            None => PlainOwner::Other(Str::new(hold.owner.as_bytes())),
        };
        if self.key.integer_field(owner.name()) != Some(hold.exclusive) {
            return false;
        }
        self.stored = Stored::Plain(owner, hold.exclusive);
        self.stored_end = Some(hold.expires_at);
        self.holders = Holders::Exclusive(hold);
        true
    }

    /// Reads a hash that has only the caller's exclusive holds and possibly their token.
    fn read_callers_hold(&mut self, expires_at: i64) -> bool {
        let Some(caller) = self.caller else { return false };
        let Some((holds, token)) = self.key.only_integer_fields(caller, fence_field(self.ctx)) else {
            return false;
        };
        let Some(holders) = layout::parse_single_owner(caller.as_bytes(), holds, token, expires_at) else {
            return false;
        };
        self.stored = match token {
            None => Stored::Plain(PlainOwner::Caller(caller), holds),
            Some(token) => Stored::Fenced(caller, holds, token),
        };
        self.holders = holders;
        true
    }

    /// True if a client waits for the lock as a fair lock of Redisson.
    pub(crate) fn is_fair(&self, now: Now) -> bool {
        redisson_fair::has_queue(self.ctx, self.key.name(), now)
    }

    pub(crate) fn name(&self) -> &'a Str<'a> {
        self.key.name()
    }

    /// The end of the first lease, if the lock will be free earlier than external clients know. They would
    /// otherwise sleep too long, because they know the stored TTL.
    #[inline(always)]
    pub(crate) fn shortened_to(&self) -> Option<i64> {
        self.holders.first_end().filter(|_| self.stored_end > self.holders.expires_at())
    }

    /// The earliest expiry of a holder's field to which a foreign write gave a TTL, possibly in the past.
    pub(crate) fn first_field_expiry(&self) -> Option<i64> {
        let holds = || self.holders.iter().collect::<Vec<_>>();
        let names =
            || layout::fields_for(&holds()).into_iter().map(|wanted| wanted.field.0.into_vec()).collect();
        if self.holders.is_free() {
            return None;
        }
        self.key.first_field_expiry(self.ctx, names)
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        if let (Stored::Crowd(found), Some(crowd)) = (&mut self.stored, self.holders.crowd_to_keep()) {
            // After a panic, the crowd may be partly written.
            if !std::thread::panicking() {
                found.cache(self.ctx, &self.key, crowd);
            }
        }
    }
}
