// SPDX-License-Identifier: MIT

//! A native client waits for a lock that Redisson holds, and has it as soon as Redisson has not.

use super::{side_by_side, side_by_side_with};
use crate::support::redisson::Version;
use crate::support::{Flavor, World};

crate::with_every_redisson!(
    an_unlock_serves_it,
    a_force_unlock_serves_it,
    a_redisson_lease_that_ends_serves_it,
    a_jvm_that_is_killed_serves_it,
    only_the_last_unlock_serves_it,
);

/// The lock is somebody else's for a minute at least, and two wait for it: the first gets it by `free`, and the
/// second by his release.
fn serves(world: &World, free: impl FnOnce()) {
    let mut first = world.waiting("LOCK.ACQUIRE k first BLOCK 0 PX 100000");
    let mut second = world.waiting("LOCK.ACQUIRE k second BLOCK 0 PX 100000");
    assert!(first.has_nothing());
    free();
    assert_eq!(first.recv(), "1");
    assert!(second.has_nothing(), "two got in");
    assert_eq!(first.call("LOCK.RELEASE k first"), "0");
    assert_eq!(second.recv(), "1");
    assert_eq!(second.call("LOCK.RELEASE k second"), "0");
}

/// With and without a lease: the latter is Redisson's watchdog.
const WAYS: [&str; 3] = ["lock plain k", "lock plain k 100000", "try plain k 0 100000"];

fn an_unlock_serves_it(flavor: Flavor, version: Version) {
    side_by_side_with(flavor, version, "lockWatchdogTimeout=100000", |world, redisson| {
        let java = redisson.thread("java");
        for lock in WAYS {
            java.call(lock);
            serves(world, || assert_eq!(java.call("unlock plain k"), "OK"));
        }
    });
}

fn a_force_unlock_serves_it(flavor: Flavor, version: Version) {
    side_by_side_with(flavor, version, "lockWatchdogTimeout=100000", |world, redisson| {
        let (java, other) = (redisson.thread("java"), redisson.thread("other"));
        for lock in WAYS {
            java.call(lock);
            serves(world, || assert_eq!(other.call("force-unlock plain k"), "true"));
        }
        assert_eq!(other.call("force-unlock plain k"), "false");
    });
}

fn a_redisson_lease_that_ends_serves_it(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let java = redisson.thread("java");
        java.call("lock plain k 400");
        serves(world, || {});
        // It learns that it has lost the lock when it wants to give it back.
        let exception = java.exception("unlock plain k");
        assert!(exception.starts_with("IllegalMonitorStateException "), "{exception}");
    });
}

fn a_jvm_that_is_killed_serves_it(flavor: Flavor, version: Version) {
    side_by_side_with(flavor, version, "lockWatchdogTimeout=1500", |world, redisson| {
        redisson.thread("java").call("lock plain k");
        serves(world, || redisson.kill());
    });
}

fn only_the_last_unlock_serves_it(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let java = redisson.thread("java");
        java.call("lock plain k 100000");
        java.call("lock plain k 100000");
        java.call("lock plain k 100000");
        let mut native = world.waiting("LOCK.ACQUIRE k native BLOCK 0");
        java.call("unlock plain k");
        java.call("unlock plain k");
        assert_eq!(java.call("holds plain k"), "1");
        assert!(native.has_nothing());
        java.call("unlock plain k");
        assert_eq!(native.recv(), "1");
    });
}
