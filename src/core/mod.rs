// SPDX-License-Identifier: MIT

//! The lock service as pure logic: who excludes whom, who waits, who is next.
//!
//! Nothing here knows Redis, reads a clock or does I/O. The caller passes what the keyspace holds
//! ([`Holders`], [`Records`]) and the time ([`Now`]); the core changes the holders in place and hands out what
//! it decided for waiters ([`Decision`]). The same history of calls always gives the same decisions.
//!
//! * [`manager`]: the inputs and outputs, and the only directory that sees several of the parts below: a lock in hand, the
//!   clock, what operators see.
//! * [`owner`]: who holds a lock, or wants it.
//! * [`hold`], [`holders`]: what an acquire, a release, a renewal does to one lock; the only place that says who excludes whom.
//! * [`readers`]: those who hold one lock shared, and what is asked about a crowd of them.
//! * [`request`], [`lease`]: what is asked for, what is answered, and what is stored beside a lock.
//! * [`table`]: locks by name and by handle, and which of them are ready to be reconciled.
//! * [`wait_queue`]: the queue of one lock; the only place that decides its order.
//! * [`waiters`], [`owner_waits`]: all waits, and how far each has come.
//! * [`bundles`]: which of them are for several locks at once.
//! * [`notified`]: which of them are told by a message, and on whose behalf.
//! * [`unconfirmed`]: what the holds are without the grants that may still be revoked.
//! * [`fairness`]: when a lock is left free for external clients.
//! * [`sessions`], [`binding`], [`ended`]: holds that depend on connections, and requests that have had one.
//! * [`held`]: how holds that were granted here end, to tell their owners.
//! * [`schedule`]: what is to happen when.
//! * [`spare`]: the memory of crowds that have gone.
//! * [`fragile`], [`granted_keys`]: what ends without an event, and which keys are likely to be locks.
//! * [`waits_for`], [`searches`]: who waits for whom, and who would wait for himself.

mod binding;
mod bundles;
mod ended;
mod fairness;
mod few;
mod fragile;
mod granted_keys;
mod held;
mod hold;
pub(crate) mod holders;
mod knot;
mod lease;
mod manager;
mod notified;
mod owner;
mod owner_waits;
mod readers;
pub(crate) mod request;
mod schedule;
mod searches;
mod sessions;
pub(crate) mod spare;
mod statistics;
mod table;
mod unconfirmed;
mod wait_queue;
mod waiters;
pub(crate) mod waits;
pub(crate) mod waits_for;

#[cfg(test)]
pub(crate) mod model_tests;
#[cfg(test)]
mod scenarios;

use std::rc::Rc;

pub(crate) use bundles::{NewBundle, Verdict};
pub(crate) use held::{Happened, Notice};
pub(crate) use hold::Hold;
pub(crate) use holders::{Holders, NotOwner, ReleaseScope, Wants};
pub(crate) use manager::{
    Checked, Contended, Foreseen, HoldInfo, InHand, KeyChange, LockManager, Try, Unseen,
};
pub(crate) use owner::Owner;
pub(crate) use readers::{Crowd, Touched};
pub(crate) use request::{
    Bind, Decision, Message, News, NotReleased, Notify, Outcome, Patience, Records, Refusal, Release,
    Renewal, Reply, Request, RequestId,
};
pub(crate) use schedule::Schedule;
pub(crate) use statistics::{Counted, Statistics, Times};
pub(crate) use table::Known;
pub(crate) use waits::Waits;
pub(crate) use waits_for::Search;

/// Wall-clock milliseconds since the epoch: the unit and the clock of a key's TTL.
pub(crate) type WallMs = i64;

/// Microseconds of a clock that never steps: what a client's time to wait is counted in.
pub(crate) type MonoUs = u64;

/// A fencing token: greater than every earlier one of its lock, and below 2^53.
pub(crate) type Token = i64;

/// Names one wait, from the call that has to wait until its client has been answered. Never used twice, and
/// in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WaiterId(pub(crate) u64);

/// A connection of a client, by the id that the server gives it and never gives again.
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
    /// As clients see it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
        }
    }
}

/// The time of one input, on both clocks that matter.
///
/// Leases live in the keyspace and follow the wall clock, as every TTL does. Times to wait are promises to
/// a client and must not change when an operator sets the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    /// For leases.
    pub(crate) wall: WallMs,
    /// For times to wait.
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
    /// This lock, with its key borrowed.
    pub(crate) fn as_ref(&self) -> LockRef<'_> {
        LockRef { db: self.db, key: &self.key }
    }
}

impl LockRef<'_> {
    /// This lock, with a key of its own.
    pub(crate) fn to_id(self) -> LockId {
        LockId { db: self.db, key: Rc::from(self.key) }
    }
}
