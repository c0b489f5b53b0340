// SPDX-License-Identifier: MIT

//! The lock service as pure logic: exclusion, queues and grants.
//!
//! This module does not know Redis, reads no clock and does no I/O. The caller passes the content of the
//! keyspace ([`Holders`], [`Records`]) and the time ([`Now`]). The core changes the holders in place and
//! returns its decisions for waiters ([`Decision`]). Equal histories of calls always give equal decisions.
//!
//! * [`manager`]: the inputs and outputs. Only this folder uses several of the modules below together.
//! * [`owner`]: the identity that holds a lock or waits for it.
//! * [`hold`], [`holders`]: the effect of an acquire, a release and a renewal on one lock. The only place
//!   that decides exclusion.
//! * [`readers`]: the shared holders of one lock, and queries about a crowd of them.
//! * [`request`], [`lease`]: requests, outcomes, and the records stored with a lock.
//! * [`table`]: locks by name and by handle, and the queue of locks that are ready to be reconciled.
//! * [`queue`]: waits, and the order in which they are served. The only folder that decides it.
//! * [`unconfirmed`]: grants that may still be revoked, and the holds without them.
//! * [`bindings`]: holds that depend on connections, and requests whose hold has ended.
//! * [`sessions`]: sessions of clients, with the numbers of their acquires and their events.
//! * [`held`]: the end of holds, for notices to their owners.
//! * [`log`]: the last incidents.
//! * [`schedule`]: deadlines, which can be moved and removed by key.
//! * [`spare`]: freeing unused memory.
//! * [`fragile`], [`granted_keys`]: locks that become free without an event, and keys that are probably
//!   locks.
//! * [`waits_for`]: the waits-for graph, and searches for deadlocks in it.

mod bindings;
mod fragile;
mod granted_keys;
mod held;
mod hold;
pub(crate) mod holders;
mod lease;
mod log;
mod manager;
mod owner;
pub(crate) mod queue;
mod readers;
pub(crate) mod request;
mod schedule;
mod sessions;
mod small_map;
pub(crate) mod spare;
mod statistics;
mod table;
mod unconfirmed;
pub(crate) mod waits_for;

#[cfg(test)]
pub(crate) mod model_tests;
#[cfg(test)]
mod scenarios;

use std::rc::Rc;

pub(crate) use held::{HoldEvent, Notice};
pub(crate) use hold::Hold;
pub(crate) use holders::{Holders, NotOwner, ReleaseScope, Wants};
pub(crate) use log::{Cause, LogEntry};
pub(crate) use manager::{
    BundleTry, CheckedLock, Contended, FastQueued, GrantTime, KeyChange, LockManager, OpenLock, Poll,
    StepOutput,
};
use owner::AffectedOwners;
pub(crate) use owner::Owner;
pub(crate) use queue::bundles::{NewBundle, Verdict};
pub(crate) use readers::{ChangedHold, Crowd};
pub(crate) use request::{
    Bind, Decision, HandOver, Known, NotReleased, NotRenewed, NumberedCall, Outcome, Records, Refusal,
    Release, Renewal, Reply, Request, RequestId, WaitPolicy,
};
pub(crate) use schedule::{earlier, Calendar, Schedule};
pub(crate) use sessions::{
    CallNumber, EventContent, Late, LossReason, NewSession, OtherTarget, Session, SessionId, SessionKey,
    Target,
};
pub(crate) use statistics::{Counted, Statistics, Times};
pub(crate) use table::LockLookup;
pub(crate) use waits_for::{Search, WaitView};

/// Wall-clock milliseconds since the epoch: the unit and the clock of a key's TTL.
pub(crate) type WallMs = i64;

/// Microseconds of a monotonic clock: the unit of a client's time to wait.
pub(crate) type MonoUs = u64;

/// A fencing token: greater than every earlier one of its lock, and below 2^53.
pub(crate) type Token = i64;

/// Number of a wait, assigned when the call is queued and kept until its client is answered. Never reused,
/// and increasing in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WaiterId(pub(crate) u64);

/// A client's connection, by its id in the server, which is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// The two kinds of hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Mode {
    /// Excludes all other owners.
    Exclusive,
    /// Excludes exclusive holds of other owners.
    Shared,
}

impl Mode {
    /// The mode's name, as clients see it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
        }
    }
}

/// The time of one input, on two clocks.
///
/// Leases live in the keyspace and follow the wall clock, like every TTL. Times to wait must not change when
/// an operator sets the clock, so they follow a monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// For leases.
    pub(crate) wall: WallMs,
    /// For wait timeouts.
    pub(crate) mono: MonoUs,
}

/// A lock: a key of one database. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LockId {
    pub(crate) db: i32,
    pub(crate) key: Rc<[u8]>,
}

/// A [`LockId`] that borrows its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockRef<'a> {
    pub(crate) db: i32,
    pub(crate) key: &'a [u8],
}

impl LockId {
    /// Borrows the key.
    pub(crate) fn as_ref(&self) -> LockRef<'_> {
        LockRef { db: self.db, key: &self.key }
    }
}

impl LockRef<'_> {
    /// Copies the key.
    pub(crate) fn to_id(self) -> LockId {
        LockId { db: self.db, key: Rc::from(self.key) }
    }
}
