// SPDX-License-Identifier: MIT

//! What Redisson tells its user about native holds, and native commands about Redisson's; and holds that both kinds
//! have under one owner's name.

use super::{scripts, side_by_side, side_by_side_with};
use crate::support::redisson::{Thread, Version};
use crate::support::{until, Client, Flavor};

crate::with_every_redisson!(
    redisson_tells_the_truth_about_native_holds,
    redisson_tells_the_truth_about_a_native_hold_of_its_own_thread,
    both_kinds_re_enter_what_the_other_acquired,
    native_commands_tell_the_truth_about_redisson_holds,
    a_native_renewal_of_a_redisson_hold_is_seen,
    an_unlock_of_somebody_elses_native_hold_is_refused,
    a_native_hold_that_was_broken_is_seen,
    a_redisson_hold_that_was_broken_is_lost,
    a_native_lease_that_ends_is_seen,
    a_retry_is_counted_once_beside_redisson,
);

/// What a Java thread is told: is it locked, by this thread, how often, and for how many milliseconds.
fn told(java: Thread<'_>) -> (String, String, String, i64) {
    let ask = |what: &str| java.call(&format!("{what} plain k"));
    (ask("is-locked"), ask("is-held"), ask("holds"), ask("remaining").parse().unwrap())
}

/// Fails unless it is told this, and that the lease has so many milliseconds at most, and not much less.
fn assert_told(java: Thread<'_>, is_locked: bool, holds: usize, lease: i64) {
    let (locked, held, count, remaining) = told(java);
    assert_eq!(locked, is_locked.to_string(), "is it locked?");
    assert_eq!(held, (holds > 0).to_string(), "is it held by this thread?");
    assert_eq!(count, holds.to_string());
    let expected = if is_locked { lease - 25_000..=lease } else { -2..=-2 };
    assert!(expected.contains(&remaining), "{remaining} ms, not {expected:?}");
}

fn assert_not_owner(java: Thread<'_>) {
    let exception = java.exception("unlock plain k");
    assert!(exception.starts_with("IllegalMonitorStateException attempt to unlock lock, not locked by"));
}

fn redisson_tells_the_truth_about_native_holds(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        assert_told(java, false, 0, 0);
        for (acquire, release) in [
            ("LOCK.ACQUIRE k native PX 100000", "LOCK.RELEASE k native"),
            ("LOCK.ACQUIRE k native PX 100000 FENCE WATCHDOG EPHEMERAL", "LOCK.RELEASE k native"),
            ("LOCK.ACQUIRE k native PX 100000 SHARED", "LOCK.RELEASE k native"),
        ] {
            native.call(acquire);
            assert_told(java, true, 0, 100_000);
            native.call(acquire);
            assert_eq!(native.call("LOCK.RENEW k native PX 200000"), "2");
            assert_told(java, true, 0, 200_000);
            native.call(release);
            assert_told(java, true, 0, 200_000);
            native.call(release);
            assert_told(java, false, 0, 0);
        }
    });
}

fn redisson_tells_the_truth_about_a_native_hold_of_its_own_thread(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java, other) = (world.client(), redisson.thread("java"), redisson.thread("other"));
        let owner = java.owner();
        let thread = owner.rsplit_once(':').unwrap().1;
        assert_eq!(native.call(&format!("LOCK.ACQUIRE k {owner} PX 100000")), "1");
        assert_told(java, true, 1, 100_000);
        assert_told(other, true, 0, 100_000);
        assert_eq!(other.call(&format!("is-held-by plain k {thread}")), "true");
        assert_eq!(native.call(&format!("LOCK.ACQUIRE k {owner} PX 200000")), "2");
        assert_told(java, true, 2, 200_000);
        assert_not_owner(other);
        // The thread may give back what was acquired in its name.
        assert_eq!(java.call("unlock plain k"), "OK");
        assert_told(java, true, 1, 30_000);
        assert_eq!(java.call("unlock plain k"), "OK");
        assert_told(java, false, 0, 0);
        assert_eq!(other.call(&format!("is-held-by plain k {thread}")), "false");
        assert_not_owner(java);
    });
}

fn both_kinds_re_enter_what_the_other_acquired(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let owner = java.owner();
        let acquire = format!("LOCK.ACQUIRE k {owner} PX 100000");
        let release = format!("LOCK.RELEASE k {owner}");
        // Beginning with either of them.
        for _ in 0..2 {
            assert_eq!(java.call("lock plain k 100000"), "OK");
            assert_eq!(native.call(&acquire), "2");
            assert_eq!(java.call("try plain k 0 100000"), "true");
            assert_eq!(java.call("try plain k 100 100000"), "true");
            assert_told(java, true, 4, 100_000);
            assert_eq!(native.call(&release), "3");
            assert_eq!(java.call("unlock plain k"), "OK");
            assert_eq!(native.call(&acquire), "3");
            assert_eq!(java.call("unlock plain k"), "OK");
            assert_eq!(native.call(&release), "1");
            // An unlock that leaves holds sets the lease anew, to that of Redisson's watchdog.
            assert_told(java, true, 1, 30_000);
            assert_eq!(native.call(&release), "0");
            assert_told(java, false, 0, 0);
            assert!(native.call(&release).starts_with("NOTOWNER "));
            assert_eq!(native.call(&acquire), "1");
            assert_eq!(java.call("lock plain k 100000"), "OK");
            assert_eq!(native.call(&format!("{release} ALL")), "0");
            assert_not_owner(java);
        }
    });
}

/// The owners with their holds, and the lease of the lock, as `LOCK.INFO` has them.
fn info(native: &mut Client) -> (String, i64) {
    let reply = native.call("LOCK.INFO k");
    let words: Vec<&str> = reply.trim_matches(['[', ']']).split(", ").collect();
    assert_eq!(words[..3], ["mode", "exclusive", "ttl"], "{reply}");
    let holders = reply.split_once("holders, ").unwrap().1.split_once("], waiters").unwrap().0;
    let ttl = holders.rsplit_once("ttl, ").unwrap().1.split([',', ']']).next().unwrap();
    assert_eq!(ttl, words[3], "{reply}");
    (holders.split_once(", ttl").unwrap().0.trim_matches('[').to_owned(), ttl.parse().unwrap())
}

fn native_commands_tell_the_truth_about_redisson_holds(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let owner = java.owner();
        assert_eq!(native.call("LOCK.INFO k"), "nil");
        for holds in 1..=3 {
            java.call("lock plain k 100000");
            let (holders, ttl) = info(&mut native);
            assert_eq!(holders, format!("owner, {owner}, mode, exclusive, holds, {holds}"));
            assert!((75_000..=100_000).contains(&ttl), "{ttl}");
        }
        assert_eq!(native.call("LOCK.ACQUIRE k native"), "nil");
        assert_eq!(native.call("LOCK.ACQUIRE k native SHARED"), "nil");
        assert_eq!(native.call("LOCK.ACQUIRE k native BLOCK 50"), "nil");
        for command in ["LOCK.RELEASE k native", "LOCK.RENEW k native", "LOCK.RELEASE k native ALL"] {
            assert!(native.call(command).starts_with("NOTOWNER "), "{command}");
        }
        let waiter = world.waiting("LOCK.ACQUIRE k native BLOCK 0");
        let listed = native.call("LOCK.LIST");
        assert!(
            listed.starts_with("[[key, k, mode, exclusive, holders, 1, waiters, 1, longest, "),
            "{listed}"
        );
        assert_eq!(native.call("LOCK.BLOCKERS native"), format!("[[owner, {owner}, key, k, client, nil]]"));
        waiter.close();
        for holds in (1..=2).rev() {
            java.call("unlock plain k");
            assert_eq!(info(&mut native).0, format!("owner, {owner}, mode, exclusive, holds, {holds}"));
        }
        java.call("unlock plain k");
        assert_eq!(native.call("LOCK.INFO k"), "nil");
    });
}

fn a_native_renewal_of_a_redisson_hold_is_seen(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let owner = java.owner();
        java.call("lock plain k 100000");
        assert_eq!(native.call(&format!("LOCK.RENEW k {owner} PX 200000")), "1");
        assert_told(java, true, 1, 200_000);
        assert_eq!(native.call(&format!("LOCK.RENEW k {owner} PX 150")), "1");
        until("the lease is over", || java.call("is-locked plain k") == "false");
        assert_not_owner(java);
    });
}

fn an_unlock_of_somebody_elses_native_hold_is_refused(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        for acquire in ["LOCK.ACQUIRE k native PX 100000", "LOCK.ACQUIRE k native PX 100000 FENCE"] {
            native.call(acquire);
            let before = (native.call("DUMP k"), native.call("PEXPIRETIME k"));
            assert_not_owner(java);
            assert_eq!((native.call("DUMP k"), native.call("PEXPIRETIME k")), before, "it has changed");
            assert_eq!(native.call("LOCK.RELEASE k native"), "0");
        }
    });
}

fn a_native_hold_that_was_broken_is_seen(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        native.call("LOCK.ACQUIRE k native PX 100000");
        assert_told(java, true, 0, 100_000);
        assert_eq!(native.call("LOCK.BREAK k"), "1");
        assert_told(java, false, 0, 0);
        let owner = java.owner();
        assert_eq!(native.call(&format!("LOCK.ACQUIRE k {owner} PX 100000")), "1");
        assert_eq!(native.call("LOCK.BREAK k"), "1");
        assert_told(java, false, 0, 0);
        assert_not_owner(java);
        // The other way round: a forced unlock of a native hold.
        native.call("LOCK.ACQUIRE k native PX 100000");
        assert_eq!(java.call("force-unlock plain k"), "true");
        assert!(native.call("LOCK.RELEASE k native").starts_with("NOTOWNER "));
        assert_eq!(native.call("LOCK.INFO k"), "nil");
    });
}

fn a_redisson_hold_that_was_broken_is_lost(flavor: Flavor, version: Version) {
    side_by_side_with(flavor, version, "lockWatchdogTimeout=1500", |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        java.call("lock plain k");
        java.call("lock plain k");
        assert_eq!(native.call("LOCK.BREAK k"), "1");
        assert_told(java, false, 0, 0);
        assert_not_owner(java);
        // Nor does what Redisson does later, its watchdog included, touch the hold of the next owner.
        java.call("lock plain k");
        let mut next = world.waiting("LOCK.ACQUIRE k next BLOCK 0 PX 100000");
        let before = scripts(&mut native);
        assert_eq!(native.call("LOCK.BREAK k"), "1");
        assert_eq!(next.recv(), "1");
        let hold = (native.call("DUMP k"), native.call("PEXPIRETIME k"));
        until("the watchdog has tried once more", || scripts(&mut native) > before);
        assert_eq!((native.call("DUMP k"), native.call("PEXPIRETIME k")), hold);
        assert_not_owner(java);
        assert_eq!((native.call("DUMP k"), native.call("PEXPIRETIME k")), hold);
    });
}

fn a_native_lease_that_ends_is_seen(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        native.call("LOCK.ACQUIRE k native PX 100000");
        assert_eq!(java.call("try plain k"), "false");
        native.call("LOCK.RENEW k native PX 200");
        until("Redisson sees that it is free", || java.call("is-locked plain k") == "false");
        assert_told(java, false, 0, 0);
        assert_eq!(java.call("try plain k"), "true");
        assert!(native.call("LOCK.RENEW k native").starts_with("NOTOWNER "));
    });
}

/// What is kept about requests is not in the lock itself.
fn a_retry_is_counted_once_beside_redisson(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let owner = java.owner();
        java.call("lock plain k 100000");
        for _ in 0..2 {
            assert_eq!(native.call(&format!("LOCK.ACQUIRE k {owner} PX 100000 ID one")), "2");
        }
        assert_told(java, true, 2, 100_000);
        for _ in 0..2 {
            assert_eq!(native.call(&format!("LOCK.RELEASE k {owner} ID two")), "1");
        }
        assert_eq!(java.call("unlock plain k"), "OK");
        assert_told(java, false, 0, 0);
    });
}
