// SPDX-License-Identifier: MIT
//! With all rules, every scenario holds as far as the search goes.

use std::time::Duration;

use redis_lock_protocol::scenario::Scenario;
use redis_lock_protocol::scenarios;
use redis_lock_protocol::search::{search, Limits};

fn assert_holds(scenario: &Scenario) {
    let limits = Limits { steps: 300_000, time: Duration::from_secs(300) };
    if let Some((breach, trace)) = search(scenario, limits).violation {
        panic!("{}: \"{}\" is violated:\n{trace}", scenario.name, breach.name());
    }
}

#[test]
fn scenarios_hold_from_their_beginnings() {
    scenarios::all().iter().for_each(assert_holds);
}

#[test]
fn scenarios_pass_from_later_starts() {
    scenarios::from_later_starts().iter().for_each(assert_holds);
}
