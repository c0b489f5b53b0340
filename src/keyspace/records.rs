// SPDX-License-Identifier: MIT

//! What is stored beside a lock: its fencing counter, and the replies to requests that may come again.
//!
//! Nothing is read before the core asks for it, and what has changed is written with the lock, in the same step.

use std::cell::Cell;

use foldhash::HashMap;
use smallvec::SmallVec;

use crate::config;
use crate::core::{self, Now, Refusal, Reply, RequestId, Token};
use crate::decimal::{Digits, GREATEST};
use crate::keyspace::names::Name;
use crate::keyspace::record::{integer, Granted, Record};
use crate::keyspace::{channel, names};
use crate::server::key::{Kind, OwnKey};
use crate::server::muted::muted;
use crate::server::propagation::Propagation;
use crate::server::{ask, notify, Ctx, ServerCell, Str};

/// The records of one lock.
pub(crate) struct Records<'a> {
    ctx: Ctx<'a>,
    lock: &'a Str<'a>,
    counter: Option<Counter<'a>>,
    requests: SmallVec<[Open<'a>; 1]>,
    /// Where they are, if there are many.
    places: Option<Box<Places>>,
    /// Those who wait elsewhere are to be told that the lock is free.
    pub(super) announce: bool,
}

/// With so many requests in one step they are looked up, and not looked for.
const MANY: usize = 16;

/// Where the records of requests are, by what the requests are and by what the records are called: the first of each.
#[derive(Default)]
struct Places {
    by_id: HashMap<RequestId, usize>,
    by_name: HashMap<Name, usize>,
}

/// The fencing counter, as far as it was asked for.
struct Counter<'a> {
    /// Open from when it is read until it is written.
    key: OwnKey<'a>,
    value: Option<Token>,
    /// It is there, and somebody made it so that it stays.
    permanent: bool,
    changed: bool,
}

/// What is remembered of one request, as far as it was asked for.
struct Open<'a> {
    record: Record,
    /// Open from when it is read until it is written; `None` if another request has a record of the same name.
    key: Option<OwnKey<'a>>,
    changed: bool,
}

impl<'a> Records<'a> {
    pub(super) fn of(ctx: Ctx<'a>, lock: &'a Str<'a>) -> Records<'a> {
        Records { ctx, lock, counter: None, requests: SmallVec::new(), places: None, announce: false }
    }

    /// True if there is anything to write.
    pub(super) fn has_changed(&self) -> bool {
        self.counter.as_ref().is_some_and(|counter| counter.changed)
            || self.requests.iter().any(|open| open.changed)
    }

    /// Writes what has changed. Returns whether anything has.
    pub(super) fn store(&mut self, propagation: Propagation<'_>) -> bool {
        if !self.has_changed() {
            return false;
        }
        let (ctx, lock) = (self.ctx, self.lock.as_bytes());
        if let Some(Counter { key, value: Some(token), permanent, changed: true }) = &mut self.counter {
            let retention = config::fence_retention().filter(|_| !*permanent);
            let expires_at = retention.map(|ms| ctx.now().wall.saturating_add(ms));
            set(ctx, propagation, key, Digits::of(*token).as_bytes(), expires_at);
        }
        for Open { record, key, .. } in self.requests.iter_mut().filter(|open| open.changed) {
            let mut key = key.take().unwrap_or_else(|| open(ctx, &record.name(lock)));
            match record.end() {
                Some(end) => set(ctx, propagation, &mut key, &record.encode(), Some(end)),
                None if record.stored => delete(ctx, propagation, &mut key),
                None => {}
            }
        }
        true
    }

    fn counter(&mut self) -> Result<&mut Counter<'a>, Refusal> {
        let counter = match self.counter.take() {
            Some(counter) => counter,
            None => {
                let name = names::counter(self.lock.as_bytes());
                let key = open(self.ctx, &name);
                let value = token_in(&key)?;
                if value.is_none() && has_moved(self.ctx, &name) {
                    return Err(Refusal::CounterMoved);
                }
                let permanent = value.is_some() && key.expires_at().is_none();
                Counter { key, value, permanent, changed: false }
            }
        };
        Ok(self.counter.insert(counter))
    }

    fn record(&mut self, id: &RequestId) -> Result<&mut Open<'a>, Refusal> {
        let at = match self.place_of(id) {
            Some(at) => at,
            None => {
                let lock = self.lock.as_bytes();
                let empty = Record::empty(id, lock);
                let name = empty.name(lock);
                // What one of the two writes, the other must not have open.
                let twin = self.place_of_name(&name).and_then(|at| self.requests.get_mut(at));
                let alone = twin.is_none_or(|twin| {
                    twin.key = None;
                    false
                });
                let key = open(self.ctx, &name);
                let record = match key.kind() {
                    Kind::Empty => Some(empty),
                    Kind::String => empty.decode(&key.text()).ok_or(Refusal::NoRecord)?,
                    _ => return Err(Refusal::NoRecord),
                };
                let record = record.ok_or(Refusal::OthersRecord)?;
                self.push(Open { record, key: alone.then_some(key), changed: false })
            }
        };
        self.requests.get_mut(at).ok_or(Refusal::NoRecord)
    }

    fn place_of(&self, id: &RequestId) -> Option<usize> {
        match &self.places {
            None => self.requests.iter().position(|open| open.record.id == *id),
            Some(places) => places.by_id.get(id).copied(),
        }
    }

    fn place_of_name(&self, name: &Name) -> Option<usize> {
        match &self.places {
            None => {
                let lock = self.lock.as_bytes();
                self.requests.iter().position(|open| open.record.name(lock) == *name)
            }
            Some(places) => places.by_name.get(name).copied(),
        }
    }

    /// Adds a record. Returns where it is.
    fn push(&mut self, open: Open<'a>) -> usize {
        self.requests.push(open);
        let (len, lock) = (self.requests.len(), self.lock.as_bytes());
        if len >= MANY {
            // From the first that has no place: all of them, at first.
            let from = if self.places.is_some() { len - 1 } else { 0 };
            let places = self.places.get_or_insert_default();
            for (at, Open { record, .. }) in self.requests.iter().enumerate().skip(from) {
                places.by_id.entry(record.id.clone()).or_insert(at);
                places.by_name.entry(record.name(lock)).or_insert(at);
            }
        }
        len - 1
    }

    fn remember(&mut self, id: &RequestId, what: impl FnOnce(&mut Record)) {
        if self.record(id).is_err() {
            // The call was let through before somebody put something else there: what it got counts.
            let mut record = Record::empty(id, self.lock.as_bytes());
            record.stored = true;
            self.push(Open { record, key: None, changed: false });
        }
        if let Ok(open) = self.record(id) {
            what(&mut open.record);
            open.changed = true;
        }
    }
}

impl core::Records for Records<'_> {
    fn next_token(&mut self, above: Option<Token>) -> Result<Token, Refusal> {
        let now = time_us(self.ctx);
        let counter = self.counter()?;
        let next = counter.next(above, now)?;
        (counter.value, counter.changed) = (Some(next), true);
        Ok(next)
    }

    fn has_next_token(&mut self, above: Option<Token>) -> Result<(), Refusal> {
        let now = time_us(self.ctx);
        self.counter()?.next(above, now).map(|_| ())
    }

    fn granted(&mut self, id: &RequestId) -> Result<Option<Reply>, Refusal> {
        let now = self.ctx.now().wall;
        let record = &self.record(id)?.record;
        if record.cancelled.is_some_and(|(_, end)| now <= end) {
            return Err(Refusal::Cancelled);
        }
        let granted = record.granted.as_ref();
        Ok(granted.filter(|granted| now <= granted.end).map(|granted| granted.reply.clone()))
    }

    fn released(&mut self, id: &RequestId) -> Result<Option<i64>, Refusal> {
        let now = self.ctx.now().wall;
        Ok(self.record(id)?.record.released.filter(|(_, end)| now <= *end).map(|(left, _)| left))
    }

    fn cancelled(&mut self, id: &RequestId) -> Result<Option<bool>, Refusal> {
        let now = self.ctx.now().wall;
        Ok(self.record(id)?.record.cancelled.filter(|(_, end)| now <= *end).map(|(undone, _)| undone))
    }

    fn request_ttl_ms(&self) -> i64 {
        config::request_ttl()
    }

    fn may_grow(&mut self) -> bool {
        !self.ctx.flags().is_out_of_memory()
    }

    fn remember_cancel(&mut self, id: &RequestId, undone: bool, now: Now) {
        let end = now.wall.saturating_add(id.ttl_ms);
        self.remember(id, |record| {
            record.granted = None;
            record.cancelled = Some((undone, end));
        });
    }

    fn remember_grant(&mut self, id: &RequestId, reply: &Reply, now: Now) {
        let end = now.wall.saturating_add(id.ttl_ms);
        self.remember(id, |record| {
            record.granted = Some(Granted { reply: reply.clone(), end, unconfirmed: false });
            record.cancelled = None;
        });
    }

    fn remember_unconfirmed(&mut self, id: &RequestId, reply: &Reply, grace_ms: i64, now: Now) {
        let end = now.wall.saturating_add(grace_ms);
        self.remember(id, |record| {
            record.granted = Some(Granted { reply: reply.clone(), end, unconfirmed: true });
            record.cancelled = None;
        });
    }

    fn is_unconfirmed(&mut self, id: &RequestId) -> bool {
        let granted = self.record(id).ok().and_then(|open| open.record.granted.as_ref());
        granted.is_some_and(|granted| granted.unconfirmed)
    }

    fn remember_release(&mut self, id: &RequestId, left: i64, now: Now) {
        let end = now.wall.saturating_add(id.ttl_ms);
        self.remember(id, |record| record.released = Some((left, end)));
    }

    fn forget_grant(&mut self, id: &RequestId) {
        if let Ok(open) = self.record(id) {
            open.record.granted = None;
            open.changed = true;
        }
    }

    fn has_listeners(&mut self) -> bool {
        channel::has_listeners(self.ctx, self.lock)
    }

    fn announce(&mut self) {
        self.announce = true;
    }
}

impl Counter<'_> {
    /// The token that is greater than all that were taken before, and than `above`.
    #[inline]
    fn next(&self, above: Option<Token>, now: Token) -> Result<Token, Refusal> {
        let next = match self.value.max(above) {
            Some(last) => last.checked_add(1).ok_or(Refusal::CounterFull)?.max(now),
            None => now,
        };
        if next > GREATEST {
            return Err(Refusal::CounterFull);
        }
        Ok(next)
    }
}

/// The newest token that was granted for a lock, as far as that is known. Works on a replica.
pub(crate) fn newest_token(ctx: Ctx<'_>, lock: &Str<'_>) -> Result<Option<Token>, Refusal> {
    let name = Str::new(&names::counter(lock.as_bytes()));
    token_in(&muted(ctx, || OwnKey::open_for_read(ctx, name)))
}

/// The reply to this acquire, if it was made before and was not cancelled. On a primary.
pub(crate) fn granted(ctx: Ctx<'_>, lock: &Str<'_>, id: &RequestId) -> Result<Option<Reply>, Refusal> {
    core::Records::granted(&mut Records::of(ctx, lock), id)
}

/// What a counter was at before it was raised, and when it was to be forgotten.
pub(crate) struct Before {
    value: Token,
    expires_at: Option<i64>,
}

/// No token that is granted from now on is less than this one. Returns what the counter was, if that has changed it.
pub(crate) fn raise_counter(ctx: Ctx<'_>, lock: &Str<'_>, token: Token) -> Option<Before> {
    let mut records = Records::of(ctx, lock);
    let counter = records.counter().ok().filter(|counter| counter.value < Some(token))?;
    let before = counter.value.map(|value| Before { value, expires_at: counter.key.expires_at() });
    (counter.value, counter.changed) = (Some(token), true);
    let propagation = Propagation::of(ctx);
    if records.store(propagation) {
        propagation.count();
        // Who watches the lock for a token that it has checked, has lost it.
        notify::signal_modified(ctx, lock);
    }
    before
}

/// Sets a counter that was raised to a token back to its value before that, unless a grant has raised it further.
pub(crate) fn lower_counter(ctx: Ctx<'_>, lock: &Str<'_>, raised: Token, before: Before) {
    let Before { value, expires_at } = before;
    let propagation = Propagation::of(ctx);
    let mut key = open(ctx, &names::counter(lock.as_bytes()));
    if token_in(&key) != Ok(Some(raised)) {
        return;
    }
    set(ctx, propagation, &mut key, Digits::of(value).as_bytes(), expires_at);
    propagation.count();
}

/// What a fencing counter is at.
fn token_in(counter: &OwnKey<'_>) -> Result<Option<Token>, Refusal> {
    match counter.kind() {
        Kind::Empty => Ok(None),
        Kind::String => integer(&counter.text()).map(Some).ok_or(Refusal::NoCounter),
        Kind::Hash | Kind::Other => Err(Refusal::NoCounter),
    }
}

/// The time of day in microseconds, but never the same twice, and never earlier than before: so a token is
/// greater than the last one even if its counter was deleted and the clock set back.
fn time_us(ctx: Ctx<'_>) -> i64 {
    static LATEST: ServerCell<Cell<i64>> = ServerCell::new(Cell::new(0));
    let latest = LATEST.get(ctx);
    latest.set(ctx.time_us().max(latest.get().saturating_add(1)));
    latest.get()
}

/// True if a key that is not here is at another node, or will be: its slot leaves key by key, and the lock may leave later than
/// what belongs to it. Whoever waits may be granted the lock meanwhile, and what would be written here would be there twice.
fn has_moved(ctx: Ctx<'_>, name: &[u8]) -> bool {
    ctx.is_cluster() && muted(ctx, || !ask::serves_slot_of(ctx, &[&Str::new(name)]))
}

/// Opens a key to read and write it. If it has expired, the event that the server raises for it is none of a lock's.
fn open<'a>(ctx: Ctx<'a>, name: &[u8]) -> OwnKey<'a> {
    muted(ctx, || OwnKey::open_for_write(ctx, Str::new(name)))
}

/// `SET key value PXAT expires_at`, or without a TTL.
fn set(
    ctx: Ctx<'_>,
    propagation: Propagation<'_>,
    key: &mut OwnKey<'_>,
    value: &[u8],
    expires_at: Option<i64>,
) {
    muted(ctx, || {
        key.set_text(value);
        match expires_at {
            Some(at) => key.set_expires_at(at),
            None => key.persist(),
        }
        propagation.send_set(key.name(), value, expires_at);
        propagation.event(notify::STRING, c"set", key.name());
        if expires_at.is_some() {
            propagation.event(notify::GENERIC, c"expire", key.name());
        }
    });
    notify::signal_modified(ctx, key.name());
}

/// `DEL key`.
fn delete(ctx: Ctx<'_>, propagation: Propagation<'_>, key: &mut OwnKey<'_>) {
    muted(ctx, || {
        key.delete();
        propagation.send(c"DEL", &[key.name()]);
        propagation.event(notify::GENERIC, c"del", key.name());
    });
    notify::signal_modified(ctx, key.name());
}
