// SPDX-License-Identifier: MIT

//! Redisson waits for a lock that a native client holds, and gets a message when the lock is free. It saw a lease of many
//! seconds when it started to wait. Without the message, it would sleep until that lease expires.

use super::side_by_side;
use crate::support::redisson::Version;
use crate::support::Flavor;

crate::with_every_redisson!(
    a_native_release_wakes_redisson,
    a_break_wakes_redisson,
    an_expired_native_lease_wakes_redisson,
    every_foreign_end_of_a_hold_wakes_redisson,
    a_flush_wakes_redisson,
    the_last_native_reader_wakes_redisson,
    a_closed_native_connection_wakes_redisson,
    waiting_threads_are_woken_one_by_one,
    redisson_waits_can_time_out,
);

/// The calls with which a Java thread can wait.
const WAIT_CALLS: [&str; 4] =
    ["lock plain k", "lock plain k 40000", "try plain k 90000 40000", "try plain k 90000 -1"];

/// Each of `frees` ends the native holds while Redisson sleeps; Redisson must then get the lock.
fn assert_wakes(flavor: Flavor, version: Version, acquire: &[&str], frees: &[&[&str]]) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let owner = java.owner();
        for (index, wait) in WAIT_CALLS.iter().cycle().take(WAIT_CALLS.len().max(frees.len())).enumerate() {
            for command in acquire {
                assert_eq!(native.call(command), "1");
            }
            let waiting = java.start(wait);
            java.until_asleep();
            assert!(native.number("PTTL k") > 60_000);
            for command in frees[index % frees.len()] {
                assert!(!waiting.is_done(), "before {command}");
                let reply = native.call(command);
                assert!(["0", "1", "OK"].contains(&&*reply), "{command} replied {reply}");
            }
            let expected = if wait.starts_with("try") { "true" } else { "OK" };
            assert_eq!(waiting.wait(), expected, "{wait}");
            assert_eq!(native.call("HGETALL k"), format!("[{owner}, 1]"));
            assert_eq!(java.call("unlock plain k"), "OK");
        }
    });
}

const HOLD: &str = "LOCK.ACQUIRE k native PX 100000";

fn a_native_release_wakes_redisson(flavor: Flavor, version: Version) {
    assert_wakes(flavor, version, &[HOLD], &[&["LOCK.RELEASE k native"]]);
}

fn a_break_wakes_redisson(flavor: Flavor, version: Version) {
    assert_wakes(flavor, version, &[HOLD], &[&["LOCK.BREAK k"]]);
}

fn an_expired_native_lease_wakes_redisson(flavor: Flavor, version: Version) {
    assert_wakes(flavor, version, &[HOLD], &[&["LOCK.RENEW k native PX 300"]]);
}

fn every_foreign_end_of_a_hold_wakes_redisson(flavor: Flavor, version: Version) {
    let commands: [&[&str]; 5] =
        [&["DEL k"], &["UNLINK k"], &["PEXPIRE k 100"], &["RENAME k x"], &["MOVE k 9"]];
    assert_wakes(flavor, version, &[HOLD], &commands);
}

fn a_flush_wakes_redisson(flavor: Flavor, version: Version) {
    assert_wakes(
        flavor,
        version,
        &[HOLD],
        &[&["FLUSHALL"], &["FLUSHDB"], &["SWAPDB 0 9"], &["FLUSHALL ASYNC"]],
    );
}

fn the_last_native_reader_wakes_redisson(flavor: Flavor, version: Version) {
    let readers = ["LOCK.ACQUIRE k a SHARED PX 100000", "LOCK.ACQUIRE k b SHARED PX 100000"];
    assert_wakes(
        flavor,
        version,
        &readers,
        &[&["LOCK.RELEASE k a", "LOCK.RELEASE k b"], &["LOCK.RELEASE k b", "LOCK.RENEW k a PX 200"]],
    );
}

fn a_closed_native_connection_wakes_redisson(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let java = redisson.thread("java");
        for wait in WAIT_CALLS {
            let mut holder = world.client();
            assert_eq!(holder.call("LOCK.ACQUIRE k native EPHEMERAL PX 100000"), "1");
            let waiting = java.start(wait);
            java.until_asleep();
            holder.close();
            waiting.wait();
            java.call("unlock plain k");
        }
    });
}

/// The threads share one subscription: each message wakes one of them, and each unlock sends another message.
fn waiting_threads_are_woken_one_by_one(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        redisson.connect("second", &format!("single redis://127.0.0.1:{}", world.port));
        let mut native = world.client();
        native.call("LOCK.ACQUIRE k native PX 100000");
        let threads = [
            redisson.thread("a"),
            redisson.thread("b"),
            redisson.thread("c"),
            redisson.thread_of("second", "d"),
        ];
        let waiting = threads.map(|thread| {
            let waiting = thread.start("count plain k n 1");
            thread.until_asleep();
            waiting
        });
        native.call("LOCK.RELEASE k native");
        for thread in waiting {
            assert_eq!(thread.wait(), "1 0");
        }
        assert_eq!(native.call("GET n"), "4");
    });
}

fn redisson_waits_can_time_out(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        native.call("LOCK.ACQUIRE k native PX 100000");
        let before = native.call("DUMP k");
        assert_eq!(java.call("try plain k"), "false");
        assert_eq!(java.call("try plain k 1500 40000"), "false");
        assert_eq!(native.call("DUMP k"), before);
        assert_eq!(native.call("LOCK.RELEASE k native"), "0");
        assert_eq!(java.call("try plain k"), "true");
    });
}
