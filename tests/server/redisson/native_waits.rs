// SPDX-License-Identifier: MIT

//! A native client waits for a lock that Redisson holds, and gets it as soon as Redisson's hold ends.

use super::{side_by_side, side_by_side_with};
use crate::support::redisson::Version;
use crate::support::{Flavor, World};

crate::with_every_redisson!(
    an_unlock_wakes_native_waiters,
    a_force_unlock_wakes_native_waiters,
    an_expired_redisson_lease_wakes_native_waiters,
    a_killed_jvm_releases_its_lock,
    only_the_last_unlock_frees_the_lock,
);

/// Two native clients wait for a lock with a hold of at least a minute. `free` ends that hold, so the first waiter gets the
/// lock. The second one gets it from the first.
fn assert_waiters_get(world: &World, free: impl FnOnce()) {
    let mut first = world.waiting("LOCK.ACQUIRE k first BLOCK 0 PX 100000");
    let mut second = world.waiting("LOCK.ACQUIRE k second BLOCK 0 PX 100000");
    assert!(first.has_nothing());
    free();
    assert_eq!(first.recv(), "1");
    assert!(second.has_nothing(), "two waiters hold the lock");
    assert_eq!(first.call("LOCK.RELEASE k first"), "0");
    assert_eq!(second.recv(), "1");
    assert_eq!(second.call("LOCK.RELEASE k second"), "0");
}

/// Redisson's calls without and with a lease. Its watchdog renews a hold without a lease.
const LOCK_CALLS: [&str; 3] = ["lock plain k", "lock plain k 100000", "try plain k 0 100000"];

fn an_unlock_wakes_native_waiters(flavor: Flavor, version: Version) {
    side_by_side_with(flavor, version, "lockWatchdogTimeout=100000", |world, redisson| {
        let java = redisson.thread("java");
        for lock in LOCK_CALLS {
            java.call(lock);
            assert_waiters_get(world, || assert_eq!(java.call("unlock plain k"), "OK"));
        }
    });
}

fn a_force_unlock_wakes_native_waiters(flavor: Flavor, version: Version) {
    side_by_side_with(flavor, version, "lockWatchdogTimeout=100000", |world, redisson| {
        let (java, other) = (redisson.thread("java"), redisson.thread("other"));
        for lock in LOCK_CALLS {
            java.call(lock);
            assert_waiters_get(world, || assert_eq!(other.call("force-unlock plain k"), "true"));
        }
        assert_eq!(other.call("force-unlock plain k"), "false");
    });
}

fn an_expired_redisson_lease_wakes_native_waiters(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let java = redisson.thread("java");
        java.call("lock plain k 400");
        assert_waiters_get(world, || {});
        // The thread learns of the lost lock at its unlock.
        let exception = java.exception("unlock plain k");
        assert!(exception.starts_with("IllegalMonitorStateException "), "{exception}");
    });
}

fn a_killed_jvm_releases_its_lock(flavor: Flavor, version: Version) {
    side_by_side_with(flavor, version, "lockWatchdogTimeout=1500", |world, redisson| {
        redisson.thread("java").call("lock plain k");
        assert_waiters_get(world, || redisson.kill());
    });
}

fn only_the_last_unlock_frees_the_lock(flavor: Flavor, version: Version) {
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
