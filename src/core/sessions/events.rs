// SPDX-License-Identifier: MIT

//! The events of a session, until its client acknowledges them.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::core::{HoldEvent, MonoUs, Reply};

/// The reason why an acquire holds nothing any more, or never will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LossReason {
    /// The lease expired.
    Expired,
    /// `LOCK.BREAK` ended the hold.
    Broken,
    /// A foreign write deleted the hold, or a call without a number released it.
    Deleted,
    /// The server evicted the key because its memory is full.
    Evicted,
    /// Another node of the cluster now serves the lock's slot.
    Moved,
    /// The key holds another type.
    WrongType,
    /// Another session took the hold over.
    Taken,
    /// The client did not acknowledge the grant in time.
    Overdue,
    /// The hold has reached its maximum age. It is no longer renewed, and its lease runs out.
    Max,
    /// The wait could never end, because the owner waits for itself.
    Deadlock,
    /// Too few replicas acknowledged the grant.
    NoReplicas,
    /// The time to wait is over.
    TimedOut,
    /// The request could not be granted when it was next: a counter is full, or its key holds another type.
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
    /// The acquire holds nothing any more, or its wait is over.
    Lost(LossReason),
    /// Another owner waits for the lock.
    Contended,
}

impl EventContent {
    fn is_grant(&self) -> bool {
        matches!(self, EventContent::Granted(_) | EventContent::GrantedAll(_))
    }
}

/// An event about the acquire with number `n`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) seq: u64,
    pub(crate) n: u64,
    pub(crate) content: EventContent,
    /// Time of the event.
    at: MonoUs,
}

/// The events that the client has not acknowledged, in order. A number has at most one.
#[derive(Default)]
pub(super) struct EventLog {
    events: BTreeMap<u64, Event>,
    /// The last event that was ever added.
    last: u64,
    /// The last event that the client has acknowledged.
    acknowledged: u64,
}

impl EventLog {
    /// Adds an event. Returns its sequence number.
    pub(super) fn push(&mut self, n: u64, content: EventContent, at: MonoUs) -> u64 {
        self.last += 1;
        self.events.insert(self.last, Event { seq: self.last, n, content, at });
        self.last
    }

    pub(super) fn get(&self, seq: u64) -> Option<&Event> {
        self.events.get(&seq)
    }

    /// Removes an event that no longer matters.
    pub(super) fn remove(&mut self, seq: u64) -> Option<Event> {
        self.events.remove(&seq)
    }

    /// Removes and returns the next event that the client has acknowledged by `seq`.
    pub(super) fn acknowledge(&mut self, seq: u64) -> Option<Event> {
        self.acknowledged = self.acknowledged.max(seq.min(self.last));
        let first = self.events.first_entry().filter(|first| *first.key() <= seq)?;
        Some(first.remove())
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

    /// Iterates over the events in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Event> {
        self.events.values()
    }

    /// The oldest grant, with its time.
    pub(super) fn first_grant(&self) -> Option<(u64, MonoUs)> {
        let grant = self.events.values().find(|event| event.content.is_grant())?;
        Some((grant.n, grant.at))
    }
}
