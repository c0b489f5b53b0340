// SPDX-License-Identifier: MIT
//! The scenarios that tests and `make evidence` search.

use crate::rules::Rules;
use crate::scenario::{
    Budgets, OwnerNames, Replication, Restart, Scenario, Start, PLAIN, SESSION_BOUND, SHARED, TRY,
};

/// One acquire, two breaks, one rival.
pub fn one() -> Scenario {
    Scenario {
        name: "one",
        rules: Rules::all(),
        ttl: 4,
        grace: 2,
        short_lease: 3,
        obeys_long_lease: false,
        in_flight_limit: 3,
        requests: vec![vec![SESSION_BOUND]],
        owners: OwnerNames::PerClient,
        lives: 2,
        last_number: 3,
        budgets: Budgets { breaks: 2, rivals: 1, ..Budgets::default() },
        restart: Restart::WithData,
        proxy: false,
        replication: Replication::LagsFreely,
        quarantine: 0,
        watchdog_max: None,
        event_count: None,
        prompt: false,
        start: Start::Empty,
        unchecked: Vec::new(),
    }
}

/// Two acquires of one owner.
pub fn two() -> Scenario {
    Scenario {
        name: "two",
        requests: vec![vec![SESSION_BOUND; 2]],
        ..one().with(|budgets| budgets.breaks = 1)
    }
}

/// Two waits with owners of their own, without breaks.
pub fn queue() -> Scenario {
    let scenario = two().with(|budgets| budgets.breaks = 0);
    Scenario { name: "queue", owners: OwnerNames::PerAcquire, ..scenario }
}

/// The client gives up its acquire.
pub fn cancel() -> Scenario {
    Scenario { name: "cancel", ..one().with(|budgets| budgets.cancels = 1) }
}

/// An acquire that does not wait, and is given up.
pub fn try_once() -> Scenario {
    Scenario { name: "try", requests: vec![vec![TRY]], ..one() }
}

/// The server stalls twice.
pub fn stall() -> Scenario {
    let scenario = one().with(|budgets| (budgets.stalls, budgets.breaks) = (2, 0));
    Scenario { name: "stall", ..scenario }
}

/// A stall and a break.
pub fn stall_and_break() -> Scenario {
    let scenario = one().with(|budgets| (budgets.stalls, budgets.breaks) = (1, 1));
    Scenario { name: "stall-and-break", ..scenario }
}

/// A restart with data, and a break.
pub fn restart() -> Scenario {
    let scenario = one().with(|budgets| (budgets.restarts, budgets.breaks) = (1, 1));
    Scenario { name: "restart", lives: 3, ..scenario }
}

/// A restart with a lease above TTL: holds outlive the time for which the client relies on them.
pub fn restart_with_long_lease() -> Scenario {
    let scenario = restart().with(|budgets| budgets.rivals = 0);
    Scenario { name: "restart-long-lease", obeys_long_lease: true, ..scenario }
}

/// A restart with two holds of one owner.
pub fn restart_two() -> Scenario {
    let scenario = restart();
    Scenario { name: "restart-two", lives: 2, requests: vec![vec![SESSION_BOUND; 2]], ..scenario }
}

/// A restart behind a proxy that keeps calls.
pub fn proxy() -> Scenario {
    Scenario { name: "proxy", proxy: true, ..restart() }
}

/// A failover to a replica that has everything.
pub fn failover() -> Scenario {
    let scenario = restart().with(|budgets| budgets.breaks = 0);
    Scenario { name: "failover", restart: Restart::Failover, replication: Replication::Complete, ..scenario }
}

/// A failover to a replica that has every grant, and lags by a tick with renewals.
pub fn lag() -> Scenario {
    Scenario { name: "lag", replication: Replication::LagsAtMost(1), obeys_long_lease: true, ..failover() }
}

/// A restart without data. Grants begin after a quarantine of GRACE.
pub fn data_loss() -> Scenario {
    let scenario = restart().with(|budgets| budgets.breaks = 0);
    Scenario {
        name: "data-loss",
        restart: Restart::WithoutData,
        quarantine: 2,
        unchecked: vec![crate::properties::Breach::SafeHoldNotHeld],
        ..scenario
    }
}

/// CLOSE, and calls that arrive after it.
pub fn close() -> Scenario {
    let scenario = one().with(|budgets| (budgets.closes, budgets.breaks, budgets.rivals) = (1, 1, 0));
    Scenario { name: "close", lives: 1, ..scenario }
}

/// A session-bound hold and a plain one of the same owner.
pub fn plain() -> Scenario {
    let scenario = one().with(|budgets| budgets.breaks = 0);
    Scenario { name: "plain", requests: vec![vec![SESSION_BOUND, PLAIN]], ..scenario }
}

/// `WATCHDOG MAX`.
pub fn max() -> Scenario {
    let scenario = one().with(|budgets| budgets.breaks = 0);
    Scenario { name: "max", watchdog_max: Some(2), ..scenario }
}

/// Two clients with a session each.
pub fn pair() -> Scenario {
    let scenario = one().with(|budgets| (budgets.breaks, budgets.rivals) = (1, 0));
    Scenario { name: "pair", requests: vec![vec![SESSION_BOUND]; 2], lives: 1, ..scenario }
}

/// Two stalls with two holds. EVENTS delivers one event per reply.
pub fn stall_of_two() -> Scenario {
    let scenario = Scenario { requests: vec![vec![SESSION_BOUND; 2]], event_count: Some(1), ..stall() };
    Scenario { name: "stall-of-two", ..scenario }
}

/// The server refuses writes for a while.
pub fn refused_writes() -> Scenario {
    let scenario = one().with(|budgets| (budgets.refusals, budgets.breaks) = (1, 1));
    Scenario { name: "refused-writes", ..scenario }
}

/// A process forks.
pub fn fork() -> Scenario {
    let scenario = one().with(|budgets| (budgets.forks, budgets.breaks, budgets.rivals) = (1, 0, 0));
    Scenario { name: "fork", lives: 1, ..scenario }
}

/// A fast network, and a blocking time of a third of GRACE.
pub fn prompt() -> Scenario {
    let scenario = one().with(|budgets| budgets.breaks = 0);
    Scenario { name: "prompt", ttl: 9, grace: 3, prompt: true, ..scenario }
}

/// `GRACE 0`: the server ends a session with its connection. EVENTS never proves a hold.
pub fn grace_zero() -> Scenario {
    Scenario { name: "grace-zero", grace: 0, lives: 3, ..one() }
}

/// A hold goes to another client and back. All sessions use one owner name.
pub fn hand_over() -> Scenario {
    let scenario = one().with(|budgets| (budgets.hand_overs, budgets.breaks, budgets.rivals) = (2, 1, 0));
    let requests = vec![vec![SESSION_BOUND], vec![]];
    Scenario { name: "hand-over", requests, owners: OwnerNames::Common, lives: 1, ..scenario }
}

/// Two clients with one owner name, and a restart.
pub fn common_name() -> Scenario {
    let scenario = pair().with(|budgets| (budgets.restarts, budgets.breaks) = (1, 0));
    Scenario { name: "common-name", owners: OwnerNames::Common, lives: 2, ..scenario }
}

/// Two acquires of one client, shared.
pub fn shared() -> Scenario {
    let scenario = one().with(|budgets| budgets.breaks = 1);
    let requests = vec![vec![SHARED, SHARED, SESSION_BOUND]];
    Scenario { name: "shared", requests, owners: OwnerNames::PerAcquire, last_number: 5, ..scenario }
}

impl Scenario {
    /// Returns the scenario with other budgets.
    pub fn with<R>(mut self, change: impl FnOnce(&mut Budgets) -> R) -> Self {
        change(&mut self.budgets);
        self
    }

    /// Returns the scenario with another start.
    pub fn from(self, start: Start) -> Self {
        Scenario { start, ..self }
    }
}

/// All scenarios.
pub fn all() -> Vec<Scenario> {
    vec![
        one(),
        two(),
        queue(),
        cancel(),
        try_once(),
        stall(),
        stall_and_break(),
        restart(),
        restart_with_long_lease(),
        restart_two(),
        proxy(),
        failover(),
        lag(),
        data_loss(),
        close(),
        plain(),
        max(),
        pair(),
        stall_of_two(),
        refused_writes(),
        fork(),
        prompt(),
        grace_zero(),
        hand_over(),
        common_name(),
        shared(),
    ]
}

/// Scenarios that begin with a hold or a wait, to look deeper.
pub fn from_later_starts() -> Vec<Scenario> {
    vec![
        one().from(Start::Held(1)),
        one().from(Start::Waiting(1)),
        queue().from(Start::Waiting(2)),
        cancel().from(Start::Up),
        stall().from(Start::Held(1)),
        stall_and_break().from(Start::Waiting(1)),
        restart().from(Start::Held(1)),
        restart_with_long_lease().from(Start::Held(1)),
        restart_two().from(Start::Held(2)),
        plain().from(Start::Held(1)),
        max().from(Start::Held(1)),
        stall_of_two().from(Start::Held(2)),
        refused_writes().from(Start::Held(1)),
        hand_over().from(Start::HandedOver),
        common_name().from(Start::Held(1)),
        shared().from(Start::Waiting(2)),
    ]
}
