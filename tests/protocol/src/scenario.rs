// SPDX-License-Identifier: MIT
//! A scenario: clients, faults and times of one search.

use crate::calls::{HoldKind, Number, Request, SessionId, Ticks};
use crate::lock::Owner;
use crate::properties::Breach;
use crate::rules::{Rule, Rules};
use crate::server::{Binding, Renewal};

/// How often each event can happen in one history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budgets {
    /// Breaks of connections that one side sees first.
    pub breaks: u8,
    pub restarts: u8,
    /// Stalls of the server. Calls and replies still travel.
    pub stalls: u8,
    /// Waits that their client cancels.
    pub cancels: u8,
    pub closes: u8,
    /// Acquires of the rival.
    pub rivals: u8,
    /// Times when the server cannot write.
    pub refusals: u8,
    pub forks: u8,
    /// Holds that one client hands over to another.
    pub hand_overs: u8,
}

/// How the server starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    WithData,
    WithoutData,
    /// The replica takes over.
    Failover,
}

/// The changes that the replica has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// Any former state of the lock.
    LagsFreely,
    /// Every grant (`REPLICAS`), and renewals that may lag.
    HasGrants,
    /// Every grant, and renewals that are older than this many ticks.
    LagsAtMost(Ticks),
    /// Everything.
    Complete,
}

/// How acquires name their owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerNames {
    PerClient,
    PerAcquire,
    /// All clients use one name.
    Common,
}

/// The state in which a search begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Empty,
    /// With a session.
    Up,
    /// With this many holds.
    Held(u8),
    /// With this many waits behind the rival.
    Waiting(u8),
    /// The first client has handed over its hold. The second has tried to take it, on a connection that broke.
    HandedOver,
}

/// A search: the model that Stateright explores.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub rules: Rules,
    pub ttl: Ticks,
    pub grace: Ticks,
    /// The lease of session-bound holds. It is 3 × GRACE at least if `obeys_long_lease`.
    pub short_lease: Ticks,
    pub obeys_long_lease: bool,
    /// The age at which a grant without acknowledgement is revoked; 5 s in the contract.
    pub in_flight_limit: Ticks,
    /// The acquires of each client, in order.
    pub requests: Vec<Vec<Request>>,
    pub owners: OwnerNames,
    /// Sessions that each client can open.
    pub lives: u8,
    /// The greatest number that a client uses.
    pub last_number: Number,
    pub budgets: Budgets,
    pub restart: Restart,
    /// A proxy delivers calls that were sent before a restart.
    pub proxy: bool,
    pub replication: Replication,
    /// `lock.quarantine`: time without grants after a restart without data.
    pub quarantine: Ticks,
    pub watchdog_max: Option<Ticks>,
    /// `count` of EVENTS.
    pub event_count: Option<u8>,
    /// Calls, replies and timers take less than a tick.
    pub prompt: bool,
    pub start: Start,
    /// Properties that the contract does not promise here.
    pub unchecked: Vec<Breach>,
}

/// An acquire with `WATCHDOG EPHEMERAL QUEUE`.
pub const SESSION_BOUND: Request = Request { kind: HoldKind::SessionBound, shared: false, queued: true };
/// An acquire with a lease of its own, and `QUEUE`.
pub const PLAIN: Request = Request { kind: HoldKind::Plain, shared: false, queued: true };
/// An acquire that does not wait.
pub const TRY: Request = Request { kind: HoldKind::SessionBound, shared: false, queued: false };
/// A shared acquire that waits.
pub const SHARED: Request = Request { kind: HoldKind::SessionBound, shared: true, queued: true };

/// The lease of plain holds.
const PLAIN_LEASE: Ticks = 1;

impl Scenario {
    pub fn clients(&self) -> u8 {
        self.requests.len() as u8
    }

    pub fn lease(&self) -> Ticks {
        if self.obeys_long_lease && self.rules.has(Rule::LongLease) {
            self.short_lease.max(3 * self.grace)
        } else {
            self.short_lease
        }
    }

    pub fn renewal_interval(&self) -> Ticks {
        self.lease() / 3
    }

    pub fn lease_of(&self, kind: HoldKind) -> Ticks {
        match kind {
            HoldKind::SessionBound => self.lease(),
            HoldKind::Plain => PLAIN_LEASE,
        }
    }

    /// The lease after which a client stops relying on a plain hold; 0 for a session-bound hold.
    pub fn plain_lease(&self, kind: HoldKind) -> Ticks {
        match kind {
            HoldKind::SessionBound => 0,
            HoldKind::Plain => PLAIN_LEASE,
        }
    }

    /// The time for which a confirming EVENTS proves holds, counted from its send time.
    pub fn proven_for(&self) -> Ticks {
        self.grace.min(self.ttl)
    }

    /// The time for which EVENTS blocks in prompt scenarios. In the others, it may block for any time.
    pub fn blocking_time(&self) -> Ticks {
        let capped = self.rules.has(Rule::CapBlockingTime) && self.grace > 0;
        (if capped { self.proven_for() } else { self.ttl }) / 3
    }

    pub fn event_count(&self) -> usize {
        self.event_count.map_or(usize::MAX, usize::from)
    }

    pub fn owner(&self, client: u8, n: Number) -> Owner {
        Owner::Named(match self.owners {
            OwnerNames::PerClient => client,
            OwnerNames::PerAcquire => 16 * (client + 1) + n,
            OwnerNames::Common => 0,
        })
    }

    pub fn binding(&self, id: SessionId, n: Number, request: Request, in_flight: Option<Ticks>) -> Binding {
        Binding {
            id,
            n,
            owner: self.owner(id.client, n),
            kind: request.kind,
            renewal: Renewal::DueIn(self.renewal_interval()),
            in_flight,
            max_left: self.watchdog_max,
        }
    }
}
