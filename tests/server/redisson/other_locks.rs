// SPDX-License-Identifier: MIT

//! Redisson's other kinds of lock under a name that native clients use, too: native commands refuse them and do not damage
//! them.

use super::side_by_side;
use crate::support::redisson::Version;
use crate::support::{Client, Flavor};

crate::with_every_redisson!(
    native_commands_refuse_a_read_write_lock,
    native_commands_do_not_disturb_read_write_waiters,
    a_read_write_lock_ends_native_waits,
    native_commands_do_not_change_a_fair_queue,
    native_commands_refuse_a_fair_queue,
);

/// All commands that change a lock. None of them may change a lock of another kind.
const COMMANDS: [&str; 12] = [
    "LOCK.ACQUIRE k native PX 100000",
    "LOCK.ACQUIRE k native BLOCK 0",
    "LOCK.ACQUIRE k native SHARED BLOCK 0",
    "LOCK.ACQUIRE k native FENCE ID one WATCHDOG EPHEMERAL",
    "LOCK.ACQUIRE k mode",
    "LOCK.RELEASE k native",
    "LOCK.RELEASE k mode",
    "LOCK.RELEASE k native ALL ID two",
    "LOCK.RELEASE k native SHARED",
    "LOCK.RENEW k native PX 5",
    "LOCK.BREAK k",
    "LOCK.INFO k",
];

/// All keys with their content and expiry, except for the replies that Redisson saves for its own retries.
fn all_keys(client: &mut Client) -> Vec<String> {
    let reply = client.call("KEYS *");
    let mut names: Vec<&str> = reply.trim_matches(['[', ']']).split(", ").collect();
    names.sort_unstable();
    let mut state = |name| {
        let (dump, at) = (client.call(&format!("DUMP {name}")), client.call(&format!("PEXPIRETIME {name}")));
        format!("{name} {dump} until {at}")
    };
    let is_counted = |name: &&str| !name.is_empty() && !name.starts_with("redisson_unlock_latch:");
    names.into_iter().filter(is_counted).map(&mut state).collect()
}

fn assert_refused(client: &mut Client) {
    let before = all_keys(client);
    for command in COMMANDS {
        let reply = client.call(command);
        assert!(reply.starts_with("WRONGTYPE "), "{command} replied {reply}");
        assert_eq!(all_keys(client), before, "{command} changed a key");
    }
}

fn native_commands_refuse_a_read_write_lock(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let mut native = world.client();
        let (java, other) = (redisson.thread("java"), redisson.thread("other"));
        let commands = COMMANDS.map(|command| {
            let owner = java.owner();
            command.replace("native", &owner)
        });
        for kind in ["read", "write"] {
            java.call(&format!("lock {kind} k 100000"));
            java.call(&format!("lock {kind} k 100000"));
            assert_refused(&mut native);
            // The holding thread's own name is refused, too.
            for command in &commands {
                assert!(native.call(command).starts_with("WRONGTYPE "), "{command}");
            }
            assert_eq!(java.call(&format!("holds {kind} k")), "2");
            assert_eq!(other.call("try write k"), "false");
            java.call(&format!("unlock {kind} k"));
            assert_refused(&mut native);
            java.call(&format!("unlock {kind} k"));
            assert_eq!(all_keys(&mut native), [""; 0]);
            // After the last unlock, the name can be used for a native lock.
            assert_eq!(native.call("LOCK.ACQUIRE k native"), "1");
            assert_eq!(native.call("LOCK.RELEASE k native"), "0");
        }
    });
}

fn native_commands_do_not_disturb_read_write_waiters(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let mut native = world.client();
        let [reader, reader_2, writer] = ["a", "b", "c"].map(|name| redisson.thread(name));
        reader.call("lock read k 100000");
        reader_2.call("lock read k 100000");
        let writing = writer.start("lock write k 100000");
        writer.until_asleep();
        assert_refused(&mut native);
        reader.call("unlock read k");
        assert_refused(&mut native);
        reader_2.call("unlock read k");
        assert_eq!(writing.wait(), "OK");
        let reading = reader.start("lock read k 100000");
        reader.until_asleep();
        assert_refused(&mut native);
        writer.call("unlock write k");
        assert_eq!(reading.wait(), "OK");
        reader.call("unlock read k");
        assert_eq!(all_keys(&mut native), [""; 0]);
    });
}

fn a_read_write_lock_ends_native_waits(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        java.call("lock read other 100000");
        assert_eq!(native.call("LOCK.ACQUIRE k native PX 100000"), "1");
        let mut waiter = world.waiting("LOCK.ACQUIRE k waiter BLOCK 0");
        assert_eq!(native.call("RENAME other k"), "OK");
        let reply = waiter.recv();
        assert!(reply.starts_with("WRONGTYPE "), "{reply}");
        assert_eq!(native.call("HGET k mode"), "read");
        assert_eq!(java.call("is-held read k"), "true");
    });
}

fn native_commands_do_not_change_a_fair_queue(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java) = (world.client(), redisson.thread("java"));
        let waiters = [redisson.thread("second"), redisson.thread("third")];
        java.call("lock fair k 100000");
        let waiting = waiters.map(|waiter| {
            let waiting = waiter.start("lock fair k 100000");
            waiter.until_asleep();
            waiting
        });
        let before = all_keys(&mut native);
        assert_eq!(before.len(), 3, "expected the lock, its queue and the deadlines of the waits");
        for command in COMMANDS {
            // Commands that a client may send with a wrong lock name; LOCK.BREAK is an operator's.
            if !command.contains("BLOCK 0") && !command.contains("BREAK") {
                native.call(command);
                assert_eq!(all_keys(&mut native), before, "{command} changed a key");
            }
        }
        java.call("unlock fair k");
        for (waiter, waiting) in waiters.iter().zip(waiting) {
            assert_eq!(waiting.wait(), "OK");
            assert_eq!(waiter.call("unlock fair k"), "OK");
        }
        assert_eq!(all_keys(&mut native), [""; 0]);
    });
}

fn native_commands_refuse_a_fair_queue(flavor: Flavor, version: Version) {
    side_by_side(flavor, version, |world, redisson| {
        let (mut native, java, other) = (world.client(), redisson.thread("java"), redisson.thread("other"));
        java.call("lock fair k 100000");
        let waiting = other.start("lock fair k 100000");
        other.until_asleep();
        assert_refused(&mut native);
        java.call("unlock fair k");
        assert_eq!(waiting.wait(), "OK");
    });
}
