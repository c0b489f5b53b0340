// SPDX-License-Identifier: MIT

//! Log of the events that a session's client has not acknowledged.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::core::spare::is_too_large;
use crate::core::{HoldEvent, MonoUs, Reply};

/// The reason of a `lost` event: why an acquire no longer holds its lock, or never gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LossReason {
    /// The lease expired.
    Expired,
    /// `LOCK.BREAK` ended the hold.
    Broken,
    /// A foreign write deleted the hold, or a call without a session released it.
    Deleted,
    /// The server evicted the key because its memory is full.
    Evicted,
    /// Another node of the cluster now serves the lock's slot.
    Moved,
    /// The key holds another type.
    WrongType,
    /// Another session took the hold over with `FROM`.
    Taken,
    /// The client did not acknowledge the grant in time.
    Overdue,
    /// The hold has reached its maximum age. It is no longer renewed, and its lease runs out.
    Max,
    /// The wait could never end: a deadlock.
    Deadlock,
    /// Too few replicas acknowledged the grant.
    NoReplicas,
    /// The wait timed out.
    TimedOut,
    /// The request was next but could not be granted. A count is at its maximum, or the counter's key holds
    /// another type.
    Refused,
}

impl LossReason {
    /// The reason's name, as clients see it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LossReason::Expired => "expired",
            LossReason::Broken => "broken",
            LossReason::Deleted => "deleted",
            LossReason::Evicted => "evicted",
            LossReason::Moved => "moved",
            LossReason::WrongType => "wrongtype",
            LossReason::Taken => "taken",
            LossReason::Overdue => "overdue",
            LossReason::Max => "max",
            LossReason::Deadlock => "deadlock",
            LossReason::NoReplicas => "noreplicas",
            LossReason::TimedOut => "timeout",
            LossReason::Refused => "refused",
        }
    }
}

impl From<HoldEvent> for LossReason {
    fn from(event: HoldEvent) -> LossReason {
        match event {
            HoldEvent::Expired => LossReason::Expired,
            HoldEvent::Broken => LossReason::Broken,
            HoldEvent::Evicted => LossReason::Evicted,
            HoldEvent::Deleted | HoldEvent::Contended => LossReason::Deleted,
        }
    }
}

/// The content of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EventContent {
    /// The lock is granted.
    Granted(Reply),
    /// All locks are granted. The replies are in the order of the call's keys.
    GrantedAll(Rc<[Reply]>),
    /// The hold or the wait has ended.
    Lost(LossReason),
    /// Another owner waits for the lock.
    Contended,
}

impl EventContent {
    pub(in crate::core) fn is_grant(&self) -> bool {
        matches!(self, EventContent::Granted(_) | EventContent::GrantedAll(_))
    }
}

/// An event about the acquire with number `n`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) seq: u64,
    pub(crate) n: u64,
    pub(crate) content: EventContent,
    /// Time at which the event was added.
    at: MonoUs,
}

/// The events that the client has not acknowledged, by sequence number. A number has at most one.
#[derive(Default)]
pub(super) struct EventLog {
    /// Oldest first. There are few, except while a client is away.
    events: VecDeque<Event>,
    /// Sequence numbers of grants, oldest first. Those at the front are among the events.
    grants: VecDeque<u64>,
    /// Sequence number of the newest event. Starts at 0 and is never reused.
    last: u64,
    /// Sequence number of the last acknowledged event.
    acknowledged: u64,
}

impl EventLog {
    /// Adds an event. Returns its sequence number.
    pub(super) fn push(&mut self, n: u64, content: EventContent, at: MonoUs) -> u64 {
        self.last += 1;
        if content.is_grant() {
            self.grants.push_back(self.last);
        }
        self.events.push_back(Event { seq: self.last, n, content, at });
        self.last
    }

    pub(super) fn get(&self, seq: u64) -> Option<&Event> {
        self.events.get(self.position(seq)?)
    }

    /// Removes an event without an acknowledgement: a newer one replaces it, or the client knows its content.
    pub(super) fn remove(&mut self, seq: u64) -> Option<Event> {
        let event = self.events.remove(self.position(seq)?);
        self.forget_grants();
        event
    }

    fn position(&self, seq: u64) -> Option<usize> {
        self.events.binary_search_by_key(&seq, |event| event.seq).ok()
    }

    /// Acknowledges the events up to `seq`. Removes and returns the first of them; call it until `None`.
    pub(super) fn acknowledge(&mut self, seq: u64) -> Option<Event> {
        self.acknowledged = self.acknowledged.max(seq.min(self.last));
        if self.events.front()?.seq > seq {
            return None;
        }
        let event = self.events.pop_front();
        self.forget_grants();
        if is_too_large(self.events.capacity(), self.events.len()) {
            self.events.shrink_to(2 * self.events.len());
        }
        event
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Iterates over the events, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }

    /// Returns the number and the time of the oldest unacknowledged grant.
    pub(super) fn first_grant(&self) -> Option<(u64, MonoUs)> {
        let grant = self.get(*self.grants.front()?)?;
        Some((grant.n, grant.at))
    }

    /// Drops grants at the front that are no longer among the events.
    fn forget_grants(&mut self) {
        while self.grants.front().is_some_and(|seq| self.position(*seq).is_none()) {
            self.grants.pop_front();
        }
        if is_too_large(self.grants.capacity(), self.grants.len()) {
            self.grants.shrink_to(2 * self.grants.len());
        }
    }
}
