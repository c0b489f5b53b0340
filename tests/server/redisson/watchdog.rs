// SPDX-License-Identifier: MIT

//! Leases that a watchdog renews while its client lives.

use super::side_by_side_with;
use crate::support::redisson::{Redisson, Version};
use crate::support::{until, Client, Flavor, World};

crate::with_every_redisson!(
    redissons_watchdog_renews_until_the_unlock,
    redissons_watchdog_renews_until_the_client_closes,
    redissons_watchdog_renews_until_the_client_dies,
    a_native_watchdog_renews_until_the_connection_closes,
    redissons_watchdog_renews_native_holds,
);

/// Waits until the lease was renewed this many times, and asserts that the lock is never free. The replica must get the new
/// lease.
fn until_renewed(world: &World, native: &mut Client, times: usize) {
    let mut seen = native.number("PEXPIRETIME k");
    for time in 1..=times {
        until(&format!("renewal {time} of the lease"), || {
            let now = native.number("PEXPIRETIME k");
            assert!(now > 0, "the lock is free, after {time} renewals");
            let renewed = now > seen;
            seen = now;
            renewed
        });
    }
    until("the replica has the new lease", || {
        world.replica.client().number("PEXPIRETIME k") == native.number("PEXPIRETIME k")
    });
}

/// No waiter gets the lock during these renewals, three of which take one timeout. After `end`, the waiter gets it.
fn assert_excludes(flavor: Flavor, version: Version, renewals: usize, end: impl FnOnce(&Redisson)) {
    side_by_side_with(flavor, version, "lockWatchdogTimeout=1500", |world, redisson| {
        let mut native = world.client();
        redisson.thread("java").call("lock plain k");
        let mut waiter = world.waiting("LOCK.ACQUIRE k native BLOCK 0 PX 100000");
        until_renewed(world, &mut native, renewals);
        assert!(waiter.has_nothing());
        end(redisson);
        assert_eq!(waiter.recv(), "1");
        assert!(native.number("PTTL k") > 60_000, "the watchdog changed the new hold");
    });
}

fn redissons_watchdog_renews_until_the_unlock(flavor: Flavor, version: Version) {
    assert_excludes(flavor, version, 9, |redisson| {
        assert_eq!(redisson.thread("java").call("unlock plain k"), "OK")
    });
}

fn redissons_watchdog_renews_until_the_client_closes(flavor: Flavor, version: Version) {
    assert_excludes(flavor, version, 4, |redisson| assert_eq!(redisson.thread("java").call("close"), "OK"));
}

fn redissons_watchdog_renews_until_the_client_dies(flavor: Flavor, version: Version) {
    assert_excludes(flavor, version, 4, Redisson::kill);
}

fn a_native_watchdog_renews_until_the_connection_closes(flavor: Flavor, version: Version) {
    side_by_side_with(flavor, version, "", |world, redisson| {
        let (mut native, mut holder, java) = (world.client(), world.client(), redisson.thread("java"));
        assert_eq!(holder.call("LOCK.ACQUIRE k native PX 1500 WATCHDOG"), "1");
        let waiting = java.start("lock plain k 100000");
        until_renewed(world, &mut native, 9);
        assert!(!waiting.is_done());
        // The thread wakes sometimes, when a lease that it saw has expired.
        java.until_asleep();
        assert!(!waiting.is_done());
        holder.close();
        assert_eq!(waiting.wait(), "OK");
    });
}

/// A hold has one lease, which both kinds of client set.
fn redissons_watchdog_renews_native_holds(flavor: Flavor, version: Version) {
    side_by_side_with(flavor, version, "lockWatchdogTimeout=1500", |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let owner = java.owner();
        java.call("lock plain k");
        assert_eq!(native.call(&format!("LOCK.ACQUIRE k {owner} PX 1500")), "2");
        let mut waiter = world.waiting("LOCK.ACQUIRE k native BLOCK 0 PX 100000");
        until_renewed(world, &mut native, 6);
        // After its unlock, Redisson no longer renews. The lease of the other hold remains.
        java.call("unlock plain k");
        assert_eq!(native.call("LOCK.INFO k").matches("holds, 1").count(), 1);
        assert!(waiter.has_nothing());
        assert_eq!(native.call(&format!("LOCK.RELEASE k {owner}")), "0");
        assert_eq!(waiter.recv(), "1");
    });
}
