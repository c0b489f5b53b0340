// SPDX-License-Identifier: MIT

//! Redisson reports native holds correctly, and native commands report Redisson's. Both kinds of client can hold a lock
//! under one owner name.

use super::{scripts, side_by_side, side_by_side_with};
use crate::support::redisson::{Thread, Version};
use crate::support::{until, Client, Flavor};

crate::with_every_redisson!(
    redisson_reports_native_holds,
    redisson_reports_native_holds_of_its_thread,
    both_clients_re_enter_each_others_holds,
    native_commands_report_redisson_holds,
    redisson_reports_a_native_renewal,
    unlocks_of_foreign_native_holds_are_refused,
    redisson_reports_a_broken_native_hold,
    a_broken_redisson_hold_is_lost,
    redisson_reports_an_expired_native_lease,
    a_retry_counts_once_beside_redisson,
);

/// Redisson's view of the lock: whether it is locked, whether by this thread, the number of holds, and the remaining
/// milliseconds.
fn view(java: Thread<'_>) -> (String, String, String, i64) {
    let ask = |what: &str| java.call(&format!("{what} plain k"));
    (ask("is-locked"), ask("is-held"), ask("holds"), ask("remaining").parse().unwrap())
}

/// Asserts this view. The remaining lease is at most `lease` milliseconds, and not much less.
fn assert_view(java: Thread<'_>, is_locked: bool, holds: usize, lease: i64) {
    let (locked, held, count, remaining) = view(java);
    assert_eq!(locked, is_locked.to_string(), "locked");
    assert_eq!(held, (holds > 0).to_string(), "held by this thread");
    assert_eq!(count, holds.to_string());
    let expected = if is_locked { lease - 25_000..=lease } else { -2..=-2 };
    assert!(expected.contains(&remaining), "{remaining} ms remain, expected {expected:?}");
}

fn assert_not_owner(java: Thread<'_>) {
    let exception = java.exception("unlock plain k");
    assert!(exception.starts_with("IllegalMonitorStateException attempt to unlock lock, not locked by"));
}

fn redisson_reports_native_holds(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        assert_view(java, false, 0, 0);
        for (acquire, release) in [
            ("LOCK.ACQUIRE k native PX 100000", "LOCK.RELEASE k native"),
            ("LOCK.ACQUIRE k native PX 100000 FENCE WATCHDOG EPHEMERAL", "LOCK.RELEASE k native"),
            ("LOCK.ACQUIRE k native PX 100000 SHARED", "LOCK.RELEASE k native"),
        ] {
            native.call(acquire);
            assert_view(java, true, 0, 100_000);
            native.call(acquire);
            assert_eq!(native.call("LOCK.RENEW k native PX 200000"), "2");
            assert_view(java, true, 0, 200_000);
            native.call(release);
            assert_view(java, true, 0, 200_000);
            native.call(release);
            assert_view(java, false, 0, 0);
        }
    });
}

fn redisson_reports_native_holds_of_its_thread(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java, other) = (world.client(), redisson.thread("java"), redisson.thread("other"));
        let owner = java.owner();
        let thread = owner.rsplit_once(':').unwrap().1;
        assert_eq!(native.call(&format!("LOCK.ACQUIRE k {owner} PX 100000")), "1");
        assert_view(java, true, 1, 100_000);
        assert_view(other, true, 0, 100_000);
        assert_eq!(other.call(&format!("is-held-by plain k {thread}")), "true");
        assert_eq!(native.call(&format!("LOCK.ACQUIRE k {owner} PX 200000")), "2");
        assert_view(java, true, 2, 200_000);
        assert_not_owner(other);
        // The thread may release holds that a native client acquired in its name.
        assert_eq!(java.call("unlock plain k"), "OK");
        assert_view(java, true, 1, 30_000);
        assert_eq!(java.call("unlock plain k"), "OK");
        assert_view(java, false, 0, 0);
        assert_eq!(other.call(&format!("is-held-by plain k {thread}")), "false");
        assert_not_owner(java);
    });
}

fn both_clients_re_enter_each_others_holds(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let owner = java.owner();
        let acquire = format!("LOCK.ACQUIRE k {owner} PX 100000");
        let release = format!("LOCK.RELEASE k {owner}");
        for _ in 0..2 {
            assert_eq!(java.call("lock plain k 100000"), "OK");
            assert_eq!(native.call(&acquire), "2");
            assert_eq!(java.call("try plain k 0 100000"), "true");
            assert_eq!(java.call("try plain k 100 100000"), "true");
            assert_view(java, true, 4, 100_000);
            assert_eq!(native.call(&release), "3");
            assert_eq!(java.call("unlock plain k"), "OK");
            assert_eq!(native.call(&acquire), "3");
            assert_eq!(java.call("unlock plain k"), "OK");
            assert_eq!(native.call(&release), "1");
            // An unlock that leaves holds renews the lease, with the length of Redisson's watchdog.
            assert_view(java, true, 1, 30_000);
            assert_eq!(native.call(&release), "0");
            assert_view(java, false, 0, 0);
            assert!(native.call(&release).starts_with("NOTOWNER "));
            assert_eq!(native.call(&acquire), "1");
            assert_eq!(java.call("lock plain k 100000"), "OK");
            assert_eq!(native.call(&format!("{release} ALL")), "0");
            assert_not_owner(java);
        }
    });
}

/// The owners with their holds, and the lease of the lock, from `LOCK.INFO`.
fn info(native: &mut Client) -> (String, i64) {
    let reply = native.call("LOCK.INFO k");
    let words: Vec<&str> = reply.trim_matches(['[', ']']).split(", ").collect();
    assert_eq!(words[..3], ["mode", "exclusive", "ttl"], "{reply}");
    let holders = reply.split_once("holders, ").unwrap().1.split_once("], waiters").unwrap().0;
    let ttl = holders.rsplit_once("ttl, ").unwrap().1.split([',', ']']).next().unwrap();
    assert_eq!(ttl, words[3], "{reply}");
    (holders.split_once(", ttl").unwrap().0.trim_matches('[').to_owned(), ttl.parse().unwrap())
}

fn native_commands_report_redisson_holds(flavor: Flavor, version: Version) {
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
        assert_eq!(
            native.call("LOCK.BLOCKERS native"),
            format!("[[owner, {owner}, key, k, client, nil, address, nil, name, nil]]")
        );
        waiter.close();
        for holds in (1..=2).rev() {
            java.call("unlock plain k");
            assert_eq!(info(&mut native).0, format!("owner, {owner}, mode, exclusive, holds, {holds}"));
        }
        java.call("unlock plain k");
        assert_eq!(native.call("LOCK.INFO k"), "nil");
    });
}

fn redisson_reports_a_native_renewal(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let owner = java.owner();
        java.call("lock plain k 100000");
        assert_eq!(native.call(&format!("LOCK.RENEW k {owner} PX 200000")), "1");
        assert_view(java, true, 1, 200_000);
        assert_eq!(native.call(&format!("LOCK.RENEW k {owner} PX 150")), "1");
        until("the lease has expired", || java.call("is-locked plain k") == "false");
        assert_not_owner(java);
    });
}

fn unlocks_of_foreign_native_holds_are_refused(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        for acquire in ["LOCK.ACQUIRE k native PX 100000", "LOCK.ACQUIRE k native PX 100000 FENCE"] {
            native.call(acquire);
            let before = (native.call("DUMP k"), native.call("PEXPIRETIME k"));
            assert_not_owner(java);
            assert_eq!(
                (native.call("DUMP k"), native.call("PEXPIRETIME k")),
                before,
                "a refused unlock changed the lock"
            );
            assert_eq!(native.call("LOCK.RELEASE k native"), "0");
        }
    });
}

fn redisson_reports_a_broken_native_hold(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        native.call("LOCK.ACQUIRE k native PX 100000");
        assert_view(java, true, 0, 100_000);
        assert_eq!(native.call("LOCK.BREAK k"), "1");
        assert_view(java, false, 0, 0);
        let owner = java.owner();
        assert_eq!(native.call(&format!("LOCK.ACQUIRE k {owner} PX 100000")), "1");
        assert_eq!(native.call("LOCK.BREAK k"), "1");
        assert_view(java, false, 0, 0);
        assert_not_owner(java);
        // The other direction: Redisson forces the unlock of a native hold.
        native.call("LOCK.ACQUIRE k native PX 100000");
        assert_eq!(java.call("force-unlock plain k"), "true");
        assert!(native.call("LOCK.RELEASE k native").starts_with("NOTOWNER "));
        assert_eq!(native.call("LOCK.INFO k"), "nil");
    });
}

fn a_broken_redisson_hold_is_lost(flavor: Flavor, version: Version) {
    side_by_side_with(flavor, version, "lockWatchdogTimeout=1500", |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        java.call("lock plain k");
        java.call("lock plain k");
        assert_eq!(native.call("LOCK.BREAK k"), "1");
        assert_view(java, false, 0, 0);
        assert_not_owner(java);
        // Later actions of Redisson and its watchdog do not touch the next owner's hold either.
        java.call("lock plain k");
        let mut next = world.waiting("LOCK.ACQUIRE k next BLOCK 0 PX 100000");
        let before = scripts(&mut native);
        assert_eq!(native.call("LOCK.BREAK k"), "1");
        assert_eq!(next.recv(), "1");
        let hold = (native.call("DUMP k"), native.call("PEXPIRETIME k"));
        until("the watchdog has tried again", || scripts(&mut native) > before);
        assert_eq!((native.call("DUMP k"), native.call("PEXPIRETIME k")), hold);
        assert_not_owner(java);
        assert_eq!((native.call("DUMP k"), native.call("PEXPIRETIME k")), hold);
    });
}

fn redisson_reports_an_expired_native_lease(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        native.call("LOCK.ACQUIRE k native PX 100000");
        assert_eq!(java.call("try plain k"), "false");
        native.call("LOCK.RENEW k native PX 200");
        until("Redisson sees a free lock", || java.call("is-locked plain k") == "false");
        assert_view(java, false, 0, 0);
        assert_eq!(java.call("try plain k"), "true");
        assert!(native.call("LOCK.RENEW k native").starts_with("NOTOWNER "));
    });
}

/// Request records are outside the lock's hash.
fn a_retry_counts_once_beside_redisson(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let owner = java.owner();
        java.call("lock plain k 100000");
        for _ in 0..2 {
            assert_eq!(native.call(&format!("LOCK.ACQUIRE k {owner} PX 100000 ID one")), "2");
        }
        assert_view(java, true, 2, 100_000);
        for _ in 0..2 {
            assert_eq!(native.call(&format!("LOCK.RELEASE k {owner} ID two")), "1");
        }
        assert_eq!(java.call("unlock plain k"), "OK");
        assert_view(java, false, 0, 0);
    });
}
