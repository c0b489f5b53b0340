// SPDX-License-Identifier: MIT

//! Native shared holds, which Redisson treats as another client's lock. [`redisson_waits`](super::redisson_waits) tests that
//! the last reader wakes Redisson's waiters.

use super::side_by_side;
use crate::support::redisson::Version;
use crate::support::{Client, Flavor};

crate::with_every_redisson!(
    native_readers_exclude_redisson,
    a_reader_excludes_the_thread_of_its_name,
    a_forced_unlock_ends_all_shared_holds,
    a_redisson_hold_excludes_native_readers,
    a_mixed_native_hold_excludes_redisson,
);

fn state(client: &mut Client) -> [String; 2] {
    [client.call("DUMP k"), client.call("PEXPIRETIME k")]
}

fn native_readers_exclude_redisson(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        assert_eq!(native.call("LOCK.ACQUIRE k a SHARED PX 100000"), "1");
        assert_eq!(native.call("LOCK.ACQUIRE k b SHARED PX 90000"), "1");
        assert!(native
            .call("LOCK.ACQUIRE k c SHARED FENCE PX 80000")
            .starts_with("[owner, c, holds, 1, token, "));
        let before = state(&mut native);
        for (operation, expected) in [
            ("try plain k", "false"),
            ("try plain k 1500 40000", "false"),
            ("is-locked plain k", "true"),
            ("is-held plain k", "false"),
            ("holds plain k", "0"),
        ] {
            assert_eq!(java.call(operation), expected, "{operation}");
        }
        let exception = java.exception("unlock plain k");
        assert!(exception.starts_with("IllegalMonitorStateException "), "{exception}");
        let waiting = java.start("lock plain k 40000");
        java.until_asleep();
        assert_eq!(state(&mut native), before, "Redisson changed a shared hold");
        for owner in ["a", "b", "c"] {
            assert!(!waiting.is_done());
            assert_eq!(native.call(&format!("LOCK.RELEASE k {owner}")), "0");
        }
        assert_eq!(waiting.wait(), "OK");
    });
}

/// A shared hold and Redisson's hold of the same name have different fields.
fn a_reader_excludes_the_thread_of_its_name(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let owner = java.owner();
        assert_eq!(native.call(&format!("LOCK.ACQUIRE k {owner} SHARED PX 100000")), "1");
        let before = state(&mut native);
        assert_eq!(java.call("try plain k"), "false");
        assert_eq!(java.call("is-held plain k"), "false");
        assert_eq!(java.call("holds plain k"), "0");
        let exception = java.exception("unlock plain k");
        assert!(exception.starts_with("IllegalMonitorStateException "), "{exception}");
        assert_eq!(state(&mut native), before);
        assert_eq!(native.call(&format!("LOCK.RELEASE k {owner}")), "0");
        assert_eq!(java.call("try plain k"), "true");
    });
}

fn a_forced_unlock_ends_all_shared_holds(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        native.call("LOCK.ACQUIRE k a SHARED PX 100000");
        native.call("LOCK.ACQUIRE k b SHARED PX 100000");
        let mut waiter = world.waiting("LOCK.ACQUIRE k writer BLOCK 0 PX 100000");
        assert_eq!(java.call("force-unlock plain k"), "true");
        assert_eq!(waiter.recv(), "1");
        for owner in ["a", "b"] {
            assert!(native.call(&format!("LOCK.RELEASE k {owner}")).starts_with("NOTOWNER "));
        }
        assert_eq!(native.call("HGETALL k"), "[writer, 1]");
    });
}

fn a_redisson_hold_excludes_native_readers(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let java = redisson.thread("java");
        java.call("lock plain k 100000");
        let mut readers =
            ["a", "b", "c"].map(|owner| world.waiting(&format!("LOCK.ACQUIRE k {owner} SHARED BLOCK 0")));
        java.call("lock plain k 100000");
        java.call("unlock plain k");
        assert!(readers.iter().all(Client::has_nothing), "a reader was granted the lock");
        java.call("unlock plain k");
        assert!(readers.iter_mut().all(|reader| reader.recv() == "1"));
        assert_eq!(java.call("try plain k"), "false");
    });
}

/// An owner holds the lock exclusively and shared, and then releases the exclusive hold.
fn a_mixed_native_hold_excludes_redisson(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let owner = java.owner();
        // With the thread's name, Redisson's unlock releases the exclusive hold. Redisson takes that for the last hold, so
        // the unlock ends both.
        native.call(&format!("LOCK.ACQUIRE k {owner} PX 100000"));
        native.call("LOCK.ACQUIRE k native SHARED");
        assert_eq!(java.call("holds plain k"), "1");
        java.call("unlock plain k");
        assert_eq!(native.call("EXISTS k"), "0");
        native.call("LOCK.ACQUIRE k native PX 100000");
        native.call("LOCK.ACQUIRE k native SHARED PX 100000");
        assert_eq!(java.call("try plain k"), "false");
        assert_eq!(native.call("LOCK.RELEASE k native"), "1");
        let waiting = java.start("lock plain k 40000");
        java.until_asleep();
        assert_eq!(native.call("LOCK.RELEASE k native"), "0");
        assert_eq!(waiting.wait(), "OK");
    });
}
