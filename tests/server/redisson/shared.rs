// SPDX-License-Identifier: MIT

//! Native shared holds, which Redisson takes for somebody else's lock. That its waiters wake when the last reader
//! leaves is among [`redisson_waits`](super::redisson_waits).

use super::side_by_side;
use crate::support::redisson::Version;
use crate::support::{Client, Flavor};

crate::with_every_redisson!(
    readers_keep_redisson_out_and_are_not_harmed_by_it,
    a_reader_with_the_name_of_a_java_thread_keeps_that_out_too,
    a_forced_unlock_ends_all_holds_of_readers_as_a_break_does,
    a_redisson_hold_keeps_readers_out_and_lets_them_in_together,
    one_who_holds_in_both_ways_keeps_redisson_out,
);

fn state(client: &mut Client) -> [String; 2] {
    [client.call("DUMP k"), client.call("PEXPIRETIME k")]
}

fn readers_keep_redisson_out_and_are_not_harmed_by_it(flavor: Flavor, version: Version) {
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
        assert_eq!(state(&mut native), before, "a reader was harmed");
        for owner in ["a", "b", "c"] {
            assert!(!waiting.is_done());
            assert_eq!(native.call(&format!("LOCK.RELEASE k {owner}")), "0");
        }
        assert_eq!(waiting.wait(), "OK");
    });
}

/// The field of a shared hold is another than that of Redisson's.
fn a_reader_with_the_name_of_a_java_thread_keeps_that_out_too(flavor: Flavor, version: Version) {
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

fn a_forced_unlock_ends_all_holds_of_readers_as_a_break_does(flavor: Flavor, version: Version) {
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

fn a_redisson_hold_keeps_readers_out_and_lets_them_in_together(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let java = redisson.thread("java");
        java.call("lock plain k 100000");
        let mut readers =
            ["a", "b", "c"].map(|owner| world.waiting(&format!("LOCK.ACQUIRE k {owner} SHARED BLOCK 0")));
        java.call("lock plain k 100000");
        java.call("unlock plain k");
        assert!(readers.iter().all(Client::has_nothing), "a reader got in");
        java.call("unlock plain k");
        assert!(readers.iter_mut().all(|reader| reader.recv() == "1"));
        assert_eq!(java.call("try plain k"), "false");
    });
}

/// An owner that holds exclusively and shared, and then gives back the exclusive hold.
fn one_who_holds_in_both_ways_keeps_redisson_out(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let owner = java.owner();
        // In the name of the thread, which gives the exclusive hold back by what Redisson takes for a whole release:
        // that ends both.
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
