// SPDX-License-Identifier: MIT

//! One lock, from the key that is opened to what is written of it.

use std::ffi::{c_int, CStr};

use crate::core::{ExpectedEnd, Hold, Holders, LockLookup, Now, OpenLock, Token};
use crate::decimal::Digits;
use crate::error::Error;
use crate::keyspace::crowd::{self, Found};
use crate::keyspace::layout::{self, Field, Wanted};
use crate::keyspace::memory::Memory;
use crate::keyspace::records::Records;
use crate::keyspace::{channel, kept, redisson_fair};
use crate::server::key::{Key, Kind};
use crate::server::muted::muted;
use crate::server::propagation::Propagation;
use crate::server::{notify, Ctx, Str};

/// A lock of the selected database that is open to be read and written.
pub(crate) struct Lock<'a> {
    ctx: Ctx<'a>,
    key: Key<'a>,
    /// The owner that calls, if one does.
    caller: Option<&'a Str<'a>>,
    stored: Stored<'a>,
    stored_end: Option<i64>,
    /// Who shall hold it.
    pub(crate) holders: Holders,
    /// What is stored beside it.
    pub(crate) records: Records<'a>,
    /// If it is free, that is not announced yet.
    pub(crate) withholds: bool,
}

/// The owner whose field is the only one.
enum PlainOwner<'a> {
    Caller(&'a Str<'a>),
    Other(Str<'static>),
}

impl PlainOwner<'_> {
    fn name(&self) -> &Str<'_> {
        match self {
            PlainOwner::Caller(name) => name,
            PlainOwner::Other(name) => name,
        }
    }

    fn as_bytes(&self) -> &[u8] {
        self.name().as_bytes()
    }
}

/// The hash of a lock as it was found.
enum Stored<'a> {
    Nothing,
    /// The exclusive holds of this owner, and nothing else.
    Plain(PlainOwner<'a>, i64),
    /// The exclusive holds of the caller with a fencing token, and nothing else.
    Fenced(&'a Str<'a>, i64, Token),
    /// All fields, with what leases that are over have left behind, and who holds the lock by them.
    Fields(Vec<Field>, Holders),
    /// A crowd of readers, who are the holders, with what the step at hand changes of them.
    Crowd(Found),
}

/// A hash with more fields than this is looked at by those of its readers that are kept, if they are.
const CLOSELY: usize = 1000;

impl<'a> Lock<'a> {
    /// Passes the opened lock to the core.
    #[inline(always)]
    pub(crate) fn opened<'b>(&'b mut self, lookup: LockLookup<'b>, now: Now) -> OpenLock<'b> {
        OpenLock { lookup, holders: &mut self.holders, records: &mut self.records, now }
    }

    /// Opens a lock, on a primary, for as long as `body` runs; a lease that is over has ended then. [`Error::WrongType`] if the
    /// key holds anything but a lock. It is read faster if nobody but `caller` holds it.
    // A lock is large: it is put together where it stays.
    #[inline(always)]
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
            withholds: false,
        };
        lock.read(memory, now)?;
        Ok(body(&mut lock))
    }

    /// Reads what is stored, until when, and who holds the lock by that. Anything that is not exactly a lock, with a TTL, is
    /// not ours to touch, even where it looks alike.
    fn read(&mut self, memory: &impl Memory, now: Now) -> Result<(), Error> {
        let (ctx, key) = (self.ctx, &self.key);
        let kind = key.kind();
        let fields = if kind == Kind::Hash { key.len() } else { 0 };
        if fields <= crowd::MANY {
            kept::forget(ctx, key.name().as_bytes());
        }
        match kind {
            Kind::Empty => return Ok(()),
            Kind::Hash => {}
            Kind::String | Kind::Other => return Err(Error::WrongType),
        }
        if fields == 1 && self.read_remembered(memory, now) {
            return Ok(());
        }
        let key = &self.key;
        let expires_at = key.expires_at().ok_or(Error::WrongType)?;
        self.stored_end = Some(expires_at);
        if fields <= 2 && self.read_callers(expires_at) {
            return Ok(());
        }
        let key = &self.key;
        if fields > crowd::MANY {
            let found = crowd::open(ctx, key, (fields, expires_at), self.caller, memory, now);
            if let Some((found, holders)) = found {
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

    /// The same for a hash with one field, if that is the one that is remembered.
    fn read_remembered(&mut self, memory: &impl Memory, now: Now) -> bool {
        // If its lease is over and the key is still there, the key has another TTL, whatever was told.
        let remembered = memory.plain_hold().filter(|hold| hold.expires_at >= now.wall);
        let Some(hold) = remembered else { return false };
        let owner = match self.caller.filter(|caller| caller.as_bytes() == hold.owner.as_bytes()) {
            Some(caller) => PlainOwner::Caller(caller),
            None => PlainOwner::Other(Str::new(hold.owner.as_bytes())),
        };
        if self.key.number(owner.name()) != Some(hold.exclusive) {
            return false;
        }
        self.stored = Stored::Plain(owner, hold.exclusive);
        self.stored_end = Some(hold.expires_at);
        self.holders = Holders::Exclusive(hold);
        true
    }

    /// Reads a hash with no other fields than the caller's exclusive holds, and maybe their token.
    fn read_callers(&mut self, expires_at: i64) -> bool {
        let Some(caller) = self.caller else { return false };
        let Some((holds, token)) = self.key.only_numbers(caller, fence_field(self.ctx)) else { return false };
        let Some(holders) = layout::alone(caller.as_bytes(), holds, token, expires_at) else { return false };
        self.stored = match token {
            None => Stored::Plain(PlainOwner::Caller(caller), holds),
            Some(token) => Stored::Fenced(caller, holds, token),
        };
        self.holders = holders;
        true
    }

    /// True if somebody waits for it as for a fair lock of Redisson.
    pub(crate) fn is_fair(&self, now: Now) -> bool {
        redisson_fair::has_queue(self.ctx, self.key.name(), now)
    }

    pub(crate) fn name(&self) -> &'a Str<'a> {
        self.key.name()
    }

    /// The end of the first lease, if the lock will be free earlier than external clients may have read: they would sleep too
    /// long. They have read the stored TTL, unless `expected_end` says more.
    #[inline(always)]
    pub(crate) fn shortened_to(&self, expected_end: ExpectedEnd) -> Option<i64> {
        let first_end = self.holders.first_end()?;
        let is_shortened = match expected_end {
            ExpectedEnd::AsWritten => self.stored_end > self.holders.expires_at(),
            ExpectedEnd::Until(end) => self.stored_end > Some(end),
            ExpectedEnd::MaybeSooner => true,
        };
        is_shortened.then_some(first_end)
    }

    /// When the first field of its holders ends by a TTL of its own, which a stranger has given it. It may be over.
    pub(crate) fn first_field_end(&self) -> Option<i64> {
        let holds = || self.holders.iter().collect::<Vec<_>>();
        let names = || layout::fields(&holds()).into_iter().map(|wanted| wanted.field.0.into_vec()).collect();
        if self.holders.is_free() {
            return None;
        }
        self.key.first_field_end(self.ctx, names)
    }

    /// True if the owner whose lease is set has a field that ends by itself: to set it anew ends that, too.
    fn renews_fields(&self) -> bool {
        self.holders.iter().any(|hold| hold.renewed) && self.first_field_end().is_some()
    }

    /// Writes what has changed; nothing if nothing has. If that ends the last hold, those who wait elsewhere
    /// are told, unless that is withheld; returns how many heard it, if anything was said or withheld.
    pub(crate) fn store(&mut self) -> Option<usize> {
        let announce = self.records.announce;
        let was_there = !matches!(self.stored, Stored::Nothing);
        let is_free = self.holders.is_free();
        if !was_there && is_free && !announce && !self.records.has_changed() {
            return None;
        }
        let propagation = Propagation::of(self.ctx);
        let changed = self.store_holders(propagation);
        if changed {
            notify::signal_modified(self.ctx, self.key.name());
        }
        if self.records.store(propagation) || changed {
            propagation.count();
        }
        let is_freed = (changed && was_there && is_free) || announce;
        let withheld = self.withholds;
        is_freed.then(|| if withheld { 0 } else { channel::freed(self.ctx, propagation, self.key.name()) })
    }

    /// Returns whether anything has changed.
    fn store_holders(&mut self, propagation: Propagation<'_>) -> bool {
        let name = self.key.name();
        let mut changed = false;
        let stays = |owner: &[u8]| self.holders.of(owner).is_some();
        let somebody_stays = match &self.stored {
            Stored::Nothing => true,
            Stored::Plain(owner, _) => stays(owner.as_bytes()),
            Stored::Fenced(owner, ..) => stays(owner.as_bytes()),
            Stored::Fields(_, before) => before.iter().any(|hold| stays(hold.owner.as_bytes())),
            // One of them alone, or none: their fields are not deleted one by one.
            Stored::Crowd(_) => self.holders.crowd().is_some(),
        };
        // Handed over, the key stays, with another field. To everybody else it is as if it were made anew.
        let replaced = if somebody_stays { None } else { self.take_replaced() };
        if !somebody_stays {
            match (&self.stored, &replaced) {
                (_, Some(_)) => {}
                // There may be thousands of fields.
                (Stored::Crowd(_), None) => self.key.unlink(),
                (_, None) => self.key.delete(),
            }
            self.stored = Stored::Nothing;
            self.stored_end = None;
            propagation.send(c"DEL", &[name]);
            self.raise(propagation, notify::GENERIC, c"del");
            changed = true;
        }
        let renewed_last;
        if let (Stored::Crowd(found), Some(crowd)) = (&mut self.stored, self.holders.crowd_mut()) {
            let raise = |event: &CStr| raise(self.ctx, propagation, crowd::CLASS, event, name);
            let written = found.store(&mut self.key, crowd, self.caller, propagation, raise);
            changed |= written.changed;
            renewed_last = written.renewed_last;
        } else {
            changed |= self.store_fields(replaced.as_ref().map(PlainOwner::name), propagation);
            renewed_last = self.holders.renewed_last();
        }
        if let Some(end) = self.holders.expires_at() {
            if renewed_last || self.stored_end != Some(end) {
                self.key.set_expires_at(end);
                propagation.send_number(c"PEXPIREAT", name, end);
                self.raise(propagation, notify::GENERIC, c"expire");
                changed = true;
            }
        }
        changed
    }

    /// The field of the owner who held the lock, if it is the only one, and the next owner has one field, too.
    fn take_replaced(&mut self) -> Option<PlainOwner<'a>> {
        self.holders.alone().filter(|(_, token)| token.is_none())?;
        match std::mem::replace(&mut self.stored, Stored::Nothing) {
            Stored::Plain(owner, _) => Some(owner),
            Stored::Fields(fields, _) => match &fields[..] {
                [(field, _)] => Some(PlainOwner::Other(Str::new(field))),
                _ => None,
            },
            Stored::Nothing | Stored::Fenced(..) | Stored::Crowd(_) => None,
        }
    }

    /// Sets the fields that the holders have; in place of one that was `replaced`, if it still stands there.
    fn store_fields(&mut self, replaced: Option<&Str<'_>>, propagation: Propagation<'_>) -> bool {
        match (&self.stored, self.holders.alone()) {
            (Stored::Nothing, _) if self.holders.is_free() => false,
            // Who holds it stays the same, or it was deleted.
            (Stored::Plain(_, before), Some((hold, None)))
                if *before == hold.exclusive && !self.renews_fields() =>
            {
                false
            }
            (Stored::Nothing, Some((hold, token))) | (Stored::Plain(..), Some((hold, token @ None))) => {
                let (own, number);
                let field = match self.caller {
                    Some(caller) if caller.as_bytes() == hold.owner.as_bytes() => caller,
                    _ => {
                        own = Str::new(hold.owner.as_bytes());
                        &own
                    }
                };
                let value = match Str::of_small(self.ctx, hold.exclusive) {
                    Some(value) => value,
                    None => {
                        number = Str::from_number(hold.exclusive);
                        &number
                    }
                };
                match replaced {
                    Some(before) => self.key.replace_field(before, field, value),
                    None => self.key.set_field(field, value),
                }
                match token {
                    None => propagation.send(c"HSET", &[self.key.name(), field, value]),
                    Some(token) => {
                        let fence = fence_field(self.ctx);
                        let token = Str::new(Digits::of(token).as_bytes());
                        self.key.set_field(fence, &token);
                        propagation.send(c"HSET", &[self.key.name(), field, value, fence, &token]);
                    }
                }
                self.raise(propagation, notify::HASH, c"hset");
                true
            }
            _ => {
                let (mut stored, before) = match std::mem::replace(&mut self.stored, Stored::Nothing) {
                    Stored::Nothing => (Vec::new(), Holders::Free),
                    Stored::Plain(owner, holds) => self.found(owner.as_bytes(), holds, None),
                    Stored::Fenced(owner, holds, token) => self.found(owner.as_bytes(), holds, Some(token)),
                    Stored::Fields(fields, before) => (fields, before),
                    Stored::Crowd(_) => (Vec::new(), Holders::Free),
                };
                let deleted = self.delete_others(&stored, propagation);
                self.set_fields(&mut stored, &before, propagation) || deleted
            }
        }
    }

    /// The fields of a hash that has no others than these, and the hold that they stand for.
    fn found(&self, owner: &[u8], holds: i64, token: Option<Token>) -> (Vec<Field>, Holders) {
        let holders = layout::alone(owner, holds, token, self.stored_end.unwrap_or_default());
        let holders = holders.unwrap_or(Holders::Free);
        let fields = layout::fields(&holders.iter().collect::<Vec<_>>());
        (fields.into_iter().map(|wanted| wanted.field).collect(), holders)
    }

    /// `HDEL` for the fields that shall not be there.
    fn delete_others(&mut self, stored: &[Field], propagation: Propagation<'_>) -> bool {
        let others = stored.iter().filter(|(field, _)| !layout::has_field(&self.holders, field));
        let mut others: Vec<&[u8]> = others.map(|(field, _)| &**field).collect();
        if others.is_empty() {
            return false;
        }
        others.sort_unstable();
        let others: Vec<Str<'_>> = others.into_iter().map(Str::new).collect();
        others.iter().for_each(|field| self.key.delete_field(field));
        let args: Vec<&Str<'_>> = std::iter::once(self.key.name()).chain(&others).collect();
        propagation.send(c"HDEL", &args);
        self.raise(propagation, notify::HASH, c"hdel");
        true
    }

    /// `HSET` for the fields that are not as they shall be.
    fn set_fields(&mut self, stored: &mut [Field], before: &Holders, propagation: Propagation<'_>) -> bool {
        let wanted = layout::fields(&self.holders.changed_since(before));
        // Mostly one is looked for; for many, order pays.
        let many = wanted.len() > 8;
        if many {
            stored.sort_unstable();
        }
        let value_of = |name: &[u8]| {
            let at = match many {
                true => stored.binary_search_by(|(field, _)| (**field).cmp(name)).ok(),
                false => stored.iter().position(|(field, _)| **field == *name),
            };
            at.map(|at| &stored[at].1)
        };
        let anew = !stored.is_empty() && self.renews_fields();
        let mut args = Vec::new();
        for Wanted { field: (name, value), renewed } in &wanted {
            if *renewed || anew || value_of(name) != Some(value) {
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
        propagation.send(c"HSET", &args);
        self.raise(propagation, notify::HASH, c"hset");
        true
    }

    fn raise(&self, propagation: Propagation<'_>, class: c_int, event: &CStr) {
        raise(self.ctx, propagation, class, event, self.key.name());
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        if let (Stored::Crowd(found), Some(crowd)) = (&mut self.stored, self.holders.crowd_to_keep()) {
            // What a panic has left may be half written.
            if !std::thread::panicking() {
                found.keep(self.ctx, &self.key, crowd);
            }
        }
    }
}

fn raise(ctx: Ctx<'_>, propagation: Propagation<'_>, class: c_int, event: &CStr, name: &Str<'_>) {
    muted(ctx, || propagation.event(class, event, name));
}

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
        kept::forget(ctx, name.as_bytes());
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
fn read_fields(key: &Key<'_>, expires_at: i64, now: Now) -> Result<(Vec<Field>, Holders), Error> {
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
fn fence_field(ctx: Ctx<'_>) -> &'static Str<'static> {
    Str::of_field(ctx, layout::FENCE)
}
