// SPDX-License-Identifier: MIT

//! The data stored with a lock: its fencing counter, and the replies to requests that may be repeated.
//!
//! Nothing is read before the core requests it. Changes are written together with the lock, in the same step.

use std::cell::Cell;

use foldhash::HashMap;
use smallvec::SmallVec;

use crate::config;
use crate::core::{self, Now, Refusal, Reply, RequestId, Token};
use crate::decimal::{Digits, MAX_SAFE_INTEGER};
use crate::keyspace::channel;
use crate::keyspace::names::{self, Name};
use crate::keyspace::request_record::{integer, Granted, Record};
use crate::server::events::muted::muted;
use crate::server::keys::handle::ValueKind;
use crate::server::keys::key::OwnedKey;
use crate::server::replication::keyspace_events;
use crate::server::replication::propagation::Propagation;
use crate::server::{calls, Ctx, ServerCell, Str};

/// The records of one lock.
pub(crate) struct Records<'a> {
    ctx: Ctx<'a>,
    lock: &'a Str<'a>,
    counter: Option<Counter<'a>>,
    requests: SmallVec<[OpenRecord<'a>; 1]>,
    /// Index of the records, if there are many.
    index: Option<Box<RequestIndex>>,
    /// Whether the lock has to be announced as free.
    pub(super) announce: bool,
}

/// Minimum number of requests in one step for which an index is built.
const INDEX_THRESHOLD: usize = 16;

/// Index of the records by request and by name. Contains the first record of each.
#[derive(Default)]
struct RequestIndex {
    by_id: HashMap<RequestId, usize>,
    by_name: HashMap<Name, usize>,
}

/// The fencing counter, after its first use.
struct Counter<'a> {
    /// Stays open from the read of the counter to its write.
    key: OwnedKey<'a>,
    value: Option<Token>,
    /// Whether the counter exists without a TTL, because a foreign write removed it.
    permanent: bool,
    changed: bool,
}

/// The record of one request, after its first use.
struct OpenRecord<'a> {
    record: Record,
    /// Stays open from the read of the record to its write. `None` if another request has a record of the
    /// same name.
    key: Option<OwnedKey<'a>>,
    changed: bool,
}

impl<'a> Records<'a> {
    pub(super) fn of(ctx: Ctx<'a>, lock: &'a Str<'a>) -> Records<'a> {
        Records { ctx, lock, counter: None, requests: SmallVec::new(), index: None, announce: false }
    }

    /// True if there is anything to write.
    pub(super) fn has_changed(&self) -> bool {
        self.counter.as_ref().is_some_and(|counter| counter.changed)
            || self.requests.iter().any(|open| open.changed)
    }

    /// Writes the changes. Returns whether there were any.
    pub(super) fn store(&mut self, propagation: Propagation<'_>) -> bool {
        if !self.has_changed() {
            return false;
        }
        let (ctx, lock) = (self.ctx, self.lock.as_bytes());
        if let Some(Counter { key, value: Some(token), permanent, changed: true }) = &mut self.counter {
            let retention = config::fence_retention().filter(|_| !*permanent);
            let expires_at = retention.map(|ms| ctx.now().wall.saturating_add(ms));
            set_string(ctx, propagation, key, Digits::of(*token).as_bytes(), expires_at);
        }
        for OpenRecord { record, key, .. } in self.requests.iter_mut().filter(|open| open.changed) {
            let mut key = key.take().unwrap_or_else(|| open_muted(ctx, &record.name(lock)));
            match record.end() {
                Some(end) => set_string(ctx, propagation, &mut key, &record.encode(), Some(end)),
                None if record.stored => delete_string(ctx, propagation, &mut key),
                None => {}
            }
        }
        true
    }

    fn counter(&mut self) -> Result<&mut Counter<'a>, Refusal> {
        let counter = match self.counter.take() {
            Some(counter) => counter,
            None => {
                let name = names::counter_key(self.lock.as_bytes());
                let key = open_muted(self.ctx, &name);
                let value = counter_value(&key)?;
                if value.is_none() && is_at_another_node(self.ctx, &name) {
                    return Err(Refusal::CounterMoved);
                }
                let permanent = value.is_some() && key.expires_at().is_none();
                Counter { key, value, permanent, changed: false }
            }
        };
        Ok(self.counter.insert(counter))
    }

    fn record(&mut self, id: &RequestId) -> Result<&mut OpenRecord<'a>, Refusal> {
        let at = match self.index_of(id) {
            Some(at) => at,
            None => {
                let lock = self.lock.as_bytes();
                let empty = Record::empty(id, lock);
                let name = empty.name(lock);
                // Each record with this name writes the key, so two of them must not have it open at the same
                // time.
                let same_name = self.index_of_name(&name).and_then(|at| self.requests.get_mut(at));
                let is_only = same_name.is_none_or(|same_name| {
                    same_name.key = None;
                    false
                });
                let key = open_muted(self.ctx, &name);
                let record = match key.kind() {
                    ValueKind::Empty => Some(empty),
                    ValueKind::String => empty.decode(&key.text()).ok_or(Refusal::NoRecord)?,
                    _ => return Err(Refusal::NoRecord),
                };
                let record = record.ok_or(Refusal::OthersRecord)?;
                self.push(OpenRecord { record, key: is_only.then_some(key), changed: false })
            }
        };
        self.requests.get_mut(at).ok_or(Refusal::NoRecord)
    }

    fn index_of(&self, id: &RequestId) -> Option<usize> {
        match &self.index {
            None => self.requests.iter().position(|open| open.record.id == *id),
            Some(index) => index.by_id.get(id).copied(),
        }
    }

    fn index_of_name(&self, name: &Name) -> Option<usize> {
        match &self.index {
            None => {
                let lock = self.lock.as_bytes();
                self.requests.iter().position(|open| open.record.name(lock) == *name)
            }
            Some(index) => index.by_name.get(name).copied(),
        }
    }

    /// Adds a record and returns its position.
    fn push(&mut self, open: OpenRecord<'a>) -> usize {
        self.requests.push(open);
        let (len, lock) = (self.requests.len(), self.lock.as_bytes());
        if len >= INDEX_THRESHOLD {
            // At the threshold, indexes all records; after that, each new one.
            let from = if self.index.is_some() { len - 1 } else { 0 };
            let index = self.index.get_or_insert_default();
            for (at, OpenRecord { record, .. }) in self.requests.iter().enumerate().skip(from) {
                index.by_id.entry(record.id.clone()).or_insert(at);
                index.by_name.entry(record.name(lock)).or_insert(at);
            }
        }
        len - 1
    }

    fn remember(&mut self, id: &RequestId, change: impl FnOnce(&mut Record)) {
        if self.record(id).is_err() {
            // A foreign write came after the call was admitted. The reply of the call takes precedence.
            let mut record = Record::empty(id, self.lock.as_bytes());
            record.stored = true;
            self.push(OpenRecord { record, key: None, changed: false });
        }
        if let Ok(open) = self.record(id) {
            change(&mut open.record);
            open.changed = true;
        }
    }
}

impl core::Records for Records<'_> {
    fn next_token(&mut self, above: Option<Token>) -> Result<Token, Refusal> {
        let now = next_time_us(self.ctx);
        let counter = self.counter()?;
        let next = counter.next(above, now)?;
        (counter.value, counter.changed) = (Some(next), true);
        Ok(next)
    }

    fn has_next_token(&mut self, above: Option<Token>) -> Result<(), Refusal> {
        let now = next_time_us(self.ctx);
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
            record.granted = Some(Granted { reply: reply.clone(), end });
            record.cancelled = None;
        });
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
        channel::has_subscribers(self.ctx, self.lock)
    }

    fn announce(&mut self) {
        self.announce = true;
    }
}

impl Counter<'_> {
    /// The next token, greater than all previous ones and than `above`.
    #[inline]
    fn next(&self, above: Option<Token>, now: Token) -> Result<Token, Refusal> {
        let next = match self.value.max(above) {
            Some(last) => last.checked_add(1).ok_or(Refusal::CounterFull)?.max(now),
            None => now,
        };
        if next > MAX_SAFE_INTEGER {
            return Err(Refusal::CounterFull);
        }
        Ok(next)
    }
}

/// The newest known token of a lock. Works on a replica.
pub(crate) fn newest_token(ctx: Ctx<'_>, lock: &Str<'_>) -> Result<Option<Token>, Refusal> {
    let name = Str::new(&names::counter_key(lock.as_bytes()));
    counter_value(&muted(ctx, || OwnedKey::open_for_read(ctx, name)))
}

/// The reply to an earlier acquire with this id, unless it was cancelled. May be called on a primary only.
pub(crate) fn granted(ctx: Ctx<'_>, lock: &Str<'_>, id: &RequestId) -> Result<Option<Reply>, Refusal> {
    core::Records::granted(&mut Records::of(ctx, lock), id)
}

/// The value and the expiry of a counter before it was raised.
pub(crate) struct PreviousCounter {
    value: Token,
    expires_at: Option<i64>,
}

/// Ensures that all future tokens are at least `token`. Returns the previous counter if this has changed it.
pub(crate) fn raise_counter(ctx: Ctx<'_>, lock: &Str<'_>, token: Token) -> Option<PreviousCounter> {
    let mut records = Records::of(ctx, lock);
    let counter = records.counter().ok().filter(|counter| counter.value < Some(token))?;
    let before = counter.value.map(|value| PreviousCounter { value, expires_at: counter.key.expires_at() });
    (counter.value, counter.changed) = (Some(token), true);
    let propagation = Propagation::of(ctx);
    if records.store(propagation) {
        propagation.count_change();
        // A client that watches the lock because of a checked token is notified that it has lost the lock.
        keyspace_events::signal_modified(ctx, lock);
    }
    before
}

/// Restores a raised counter, because the guarded command did nothing. A counter that a grant has raised further stays.
pub(crate) fn lower_counter(ctx: Ctx<'_>, lock: &Str<'_>, raised: Token, previous: PreviousCounter) {
    let PreviousCounter { value, expires_at } = previous;
    let propagation = Propagation::of(ctx);
    let mut key = open_muted(ctx, &names::counter_key(lock.as_bytes()));
    if counter_value(&key) != Ok(Some(raised)) {
        return;
    }
    set_string(ctx, propagation, &mut key, Digits::of(value).as_bytes(), expires_at);
    propagation.count_change();
}

/// The value of a fencing counter.
fn counter_value(counter: &OwnedKey<'_>) -> Result<Option<Token>, Refusal> {
    match counter.kind() {
        ValueKind::Empty => Ok(None),
        ValueKind::String => integer(&counter.text()).map(Some).ok_or(Refusal::NoCounter),
        ValueKind::Hash | ValueKind::Other => Err(Refusal::NoCounter),
    }
}

/// The time of day in microseconds, always greater than the previous result. So each token is greater than
/// the last one, even if its counter was deleted and the clock was set back.
fn next_time_us(ctx: Ctx<'_>) -> i64 {
    static LATEST: ServerCell<Cell<i64>> = ServerCell::new(Cell::new(0));
    let latest = LATEST.get(ctx);
    latest.set(ctx.time_us().max(latest.get().saturating_add(1)));
    latest.get()
}

/// Whether a missing key is on another node, or will be. A slot migrates key by key, and the lock's key may
/// migrate later than its other keys. Until then, a waiter may be granted the lock here, and a key that is
/// written here would exist twice.
fn is_at_another_node(ctx: Ctx<'_>, name: &[u8]) -> bool {
    ctx.is_cluster() && muted(ctx, || !calls::serves_slot_of(ctx, &[&Str::new(name)]))
}

/// Opens a key for reading and writing. If the key has expired, the server's event is muted, because the key
/// is not a lock.
fn open_muted<'a>(ctx: Ctx<'a>, name: &[u8]) -> OwnedKey<'a> {
    muted(ctx, || OwnedKey::open_for_write(ctx, Str::new(name)))
}

/// Sets the value like `SET key value PXAT expires_at`, or without a TTL.
fn set_string(
    ctx: Ctx<'_>,
    propagation: Propagation<'_>,
    key: &mut OwnedKey<'_>,
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
        propagation.raise_event(keyspace_events::STRING, c"set", key.name());
        if expires_at.is_some() {
            propagation.raise_event(keyspace_events::GENERIC, c"expire", key.name());
        }
    });
    keyspace_events::signal_modified(ctx, key.name());
}

/// Deletes the key like `DEL key`.
fn delete_string(ctx: Ctx<'_>, propagation: Propagation<'_>, key: &mut OwnedKey<'_>) {
    muted(ctx, || {
        key.delete();
        propagation.send(c"DEL", &[key.name()]);
        propagation.raise_event(keyspace_events::GENERIC, c"del", key.name());
    });
    keyspace_events::signal_modified(ctx, key.name());
}
