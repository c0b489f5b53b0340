// SPDX-License-Identifier: MIT

//! Leases that are renewed for as long as somebody lives.

use super::side_by_side_with;
use crate::support::redisson::{Redisson, Version};
use crate::support::{until, Client, Flavor, World};

crate::with_every_redisson!(
    redissons_watchdog_keeps_a_native_waiter_out_until_it_unlocks,
    redissons_watchdog_keeps_a_native_waiter_out_until_it_closes,
    redissons_watchdog_keeps_a_native_waiter_out_until_it_dies,
    a_native_watchdog_keeps_redisson_out_until_the_connection_closes,
    redissons_watchdog_renews_what_was_acquired_natively_too,
);

/// Waits until the lease was set anew so many times, and fails if the lock is free meanwhile. The replica knows as
/// much.
fn until_renewed(world: &World, native: &mut Client, times: usize) {
    let mut seen = native.number("PEXPIRETIME k");
    for time in 1..=times {
        until(&format!("the lease is renewed for the {time}. time"), || {
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

/// For so many renewals, of which three are a time-out, nobody gets in; after `end` somebody does.
fn keeps_out(flavor: Flavor, version: Version, renewals: usize, end: impl FnOnce(&Redisson)) {
    side_by_side_with(flavor, version, "lockWatchdogTimeout=1500", |world, redisson| {
        let mut native = world.client();
        redisson.thread("java").call("lock plain k");
        let mut waiter = world.waiting("LOCK.ACQUIRE k native BLOCK 0 PX 100000");
        until_renewed(world, &mut native, renewals);
        assert!(waiter.has_nothing());
        end(redisson);
        assert_eq!(waiter.recv(), "1");
        assert!(native.number("PTTL k") > 60_000, "somebody else renewed it");
    });
}

fn redissons_watchdog_keeps_a_native_waiter_out_until_it_unlocks(flavor: Flavor, version: Version) {
    keeps_out(flavor, version, 9, |redisson| {
        assert_eq!(redisson.thread("java").call("unlock plain k"), "OK")
    });
}

fn redissons_watchdog_keeps_a_native_waiter_out_until_it_closes(flavor: Flavor, version: Version) {
    keeps_out(flavor, version, 4, |redisson| assert_eq!(redisson.thread("java").call("close"), "OK"));
}

fn redissons_watchdog_keeps_a_native_waiter_out_until_it_dies(flavor: Flavor, version: Version) {
    keeps_out(flavor, version, 4, Redisson::kill);
}

fn a_native_watchdog_keeps_redisson_out_until_the_connection_closes(flavor: Flavor, version: Version) {
    side_by_side_with(flavor, version, "", |world, redisson| {
        let (mut native, mut holder, java) = (world.client(), world.client(), redisson.thread("java"));
        assert_eq!(holder.call("LOCK.ACQUIRE k native PX 1500 WATCHDOG"), "1");
        let waiting = java.start("lock plain k 100000");
        until_renewed(world, &mut native, 9);
        assert!(!waiting.is_done());
        // Now and then it is awake, when the lease that it saw is over.
        java.until_asleep();
        assert!(!waiting.is_done());
        holder.close();
        assert_eq!(waiting.wait(), "OK");
    });
}

/// A hold has one lease, whoever set it.
fn redissons_watchdog_renews_what_was_acquired_natively_too(flavor: Flavor, version: Version) {
    side_by_side_with(flavor, version, "lockWatchdogTimeout=1500", |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let owner = java.owner();
        java.call("lock plain k");
        assert_eq!(native.call(&format!("LOCK.ACQUIRE k {owner} PX 1500")), "2");
        let mut waiter = world.waiting("LOCK.ACQUIRE k native BLOCK 0 PX 100000");
        until_renewed(world, &mut native, 6);
        // What Redisson has given back it renews no more: what is left is the lease of the other hold.
        java.call("unlock plain k");
        assert_eq!(native.call("LOCK.INFO k").matches("holds, 1").count(), 1);
        assert!(waiter.has_nothing());
        assert_eq!(native.call(&format!("LOCK.RELEASE k {owner}")), "0");
        assert_eq!(waiter.recv(), "1");
    });
}
