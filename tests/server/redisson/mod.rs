// SPDX-License-Identifier: MIT

//! Redisson and native clients use the same locks. Each test runs a real Redisson, see
//! [`support::redisson`](crate::support::redisson).

mod cluster;
mod counter;
mod fairness;
mod fencing;
mod messages;
mod names;
mod native_waits;
mod other_locks;
mod redisson_waits;
mod sentinel;
mod shared;
mod truth;
mod watchdog;

use crate::support::redisson::{Redisson, Version};
use crate::support::{in_world, Client, Flavor, World};

/// Runs a scenario with a Redisson client of the primary, and then [`World::verify`].
fn side_by_side(flavor: Flavor, version: Version, scenario: impl FnOnce(&World, &Redisson)) {
    side_by_side_with(flavor, version, "", scenario);
}

/// Runs a scenario like [`side_by_side`], with settings for Redisson.
fn side_by_side_with(
    flavor: Flavor,
    version: Version,
    settings: &str,
    scenario: impl FnOnce(&World, &Redisson),
) {
    in_world(flavor, |world| {
        let redisson = Redisson::connected(version, world, settings);
        scenario(world, &redisson);
    });
}

/// Acquires the lock, increments a counter in two steps, and releases the lock, `rounds` times. Returns how often another client
/// was inside. Redisson's `count` does the same.
fn count(client: &mut Client, lock: &str, owner: &str, counter: &str, rounds: usize) -> usize {
    let mut violations = 0;
    for _ in 0..rounds {
        assert_eq!(client.call(&format!("LOCK.ACQUIRE {lock} {owner} BLOCK 0")), "1");
        let alone = client.call(&format!("GETSET {counter}:inside {owner}")) == "nil";
        let before = client.call(&format!("GET {counter}"));
        let after = before.parse().unwrap_or(0) + 1;
        client.call(&format!("SET {counter} {after}"));
        let still_alone = client.call(&format!("GETDEL {counter}:inside")) == owner;
        violations += usize::from(!alone || !still_alone);
        assert_eq!(client.call(&format!("LOCK.RELEASE {lock} {owner}")), "0");
    }
    violations
}

/// Number of scripts that the server has run, without unknown ones. Redisson changes locks only by scripts.
fn scripts(client: &mut Client) -> i64 {
    let stats = client.call("INFO commandstats");
    let field = |command: &str, name: &str| -> Option<i64> {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")))?;
        line.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    };
    let run = |command| field(command, "calls").unwrap_or(0) - field(command, "failed_calls").unwrap_or(0);
    run("eval") + run("evalsha")
}
