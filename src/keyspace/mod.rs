//! A lock as a Redis hash: the field `owner` has the hold count, the TTL is the lease.
//!
//! [`Lock::open`] reads it, the core changes [`Lock::holders`], and [`Lock::store`] writes the difference:
//! to the keyspace, to replicas and the AOF as plain commands with absolute times, as keyspace events, and to
//! `WATCH` and client-side caches, all in the words of the plain commands that make the same change. What
//! else hears of it, stands in [`publish`].

pub(crate) mod publish;

use crate::core::{Hold, Holders, Owner};
use crate::error::Error;
use crate::server::key::{Key, Kind};
use crate::server::{events, Ctx, Str};

/// A lock of the selected database that is open to be read and written.
pub(crate) struct Lock<'a> {
    ctx: Ctx,
    key: Key<'a>,
    /// As it is stored.
    before: Holders,
    /// As it shall be stored.
    pub(crate) holders: Holders,
}

impl<'a> Lock<'a> {
    /// Opens a lock, on a primary; a lease that is over has ended then. [`Error::WrongType`] if the key holds
    /// anything but an exclusive lock.
    pub(crate) fn open(ctx: Ctx, name: &'a Str<'a>) -> Result<Lock<'a>, Error> {
        let key = Key::open_for_write(ctx, name);
        let before = read(&key)?;
        Ok(Lock { ctx, key, holders: before.clone(), before })
    }

    /// Writes what has changed; nothing if nothing has. If that ends the last hold, those who wait elsewhere
    /// are told.
    pub(crate) fn store(mut self) {
        let name = self.key.name();
        if self.before == self.holders {
            return;
        }
        if self.before.iter().any(|old| self.holders.of(old.owner.as_bytes()).is_none()) {
            self.key.delete();
            self.ctx.replicate_del(name);
            self.notify(events::GENERIC, c"del");
        }
        if let Holders::Exclusive(new) = &self.holders {
            // What is left of the old hold after the deletion above.
            let old = self.before.of(new.owner.as_bytes());
            if old.map(|old| old.holds) != Some(new.holds) {
                self.key.set_field(new.owner.as_bytes(), new.holds);
                self.ctx.replicate_hset(name, new.owner.as_bytes(), new.holds);
                self.notify(events::HASH, c"hset");
            }
            if new.renewed {
                self.key.set_expires_at(new.expires_at);
                self.ctx.replicate_pexpireat(name, new.expires_at);
                self.notify(events::GENERIC, c"expire");
            }
        }
        self.ctx.signal_modified(name);
        if self.holders.is_free() {
            publish::freed(self.ctx, name);
        }
    }

    fn notify(&self, class: std::ffi::c_int, event: &std::ffi::CStr) {
        crate::runtime::while_changing(self.ctx, || self.ctx.notify(class, event, self.key.name()));
    }
}

/// Reads a lock without touching it; works on a replica.
pub(crate) fn look(ctx: Ctx, name: &Str<'_>) -> Result<Holders, Error> {
    read(&Key::open_for_read(ctx, name))
}

/// What is stored. An exclusive lock is a hash with one field that has a positive decimal number, and a TTL;
/// anything else is not ours to touch, even where it looks alike.
fn read(key: &Key<'_>) -> Result<Holders, Error> {
    match key.kind() {
        Kind::Empty => return Ok(Holders::Free),
        Kind::Hash if key.len() == 1 => {}
        _ => return Err(Error::WrongType),
    }
    let expires_at = key.expires_at().ok_or(Error::WrongType)?;
    let mut hold = None;
    key.for_each_field(&mut |owner, holds| {
        hold = parse_holds(holds).filter(|_| is_owner(owner)).map(|holds| Hold {
            owner: Owner::new(owner),
            holds,
            expires_at,
            renewed: false,
        });
    });
    hold.map(Holders::Exclusive).ok_or(Error::WrongType)
}

/// A field that can be an owner: a name that begins with `#` is kept for what else is stored about a lock.
fn is_owner(field: &[u8]) -> bool {
    !field.is_empty() && field[0] != b'#'
}

/// A positive number as `HINCRBY` writes it.
fn parse_holds(value: &[u8]) -> Option<i64> {
    let starts_well = matches!(value.first(), Some(b'1'..=b'9'));
    std::str::from_utf8(value).ok().filter(|_| starts_well)?.parse().ok()
}
