// SPDX-License-Identifier: MIT

//! Redisson's fair locks, simulated by their stored data; `redisson::other_locks` uses the library itself.

use crate::support::{in_world, until, Client, Flavor};

crate::on_every_server!(
    a_waiting_client_makes_a_fair_lock,
    a_holder_can_always_release,
    retries_get_their_recorded_reply,
    a_newcomer_notices_a_fair_waiter,
);

const COMMANDS: [&str; 6] = [
    "LOCK.ACQUIRE k b",
    "LOCK.ACQUIRE k b SHARED BLOCK 0",
    "LOCK.RELEASE k b",
    "LOCK.RENEW k b",
    "LOCK.BREAK k",
    "LOCK.INFO k",
];

/// Not every newcomer reads the lock's key, but newcomers notice a fair waiter soon, even while the holder keeps using the lock.
fn a_newcomer_notices_a_fair_waiter(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a WATCHDOG"), "1");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        add_fair_waiter(&mut a, 100_000);
        until("a newcomer notices", || {
            a.call("LOCK.ACQUIRE k a");
            a.call("LOCK.ACQUIRE k c BLOCK 1").starts_with("WRONGTYPE")
        });
        assert_eq!(a.call("LOCK.RELEASE k a ALL"), "0");
        assert_eq!(b.recv(), "1");
        a.call("DEL redisson_lock_timeout:{k}");
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
    });
}

/// Adds a waiter to the fair lock `k` that waits for `ms` from now.
fn add_fair_waiter(client: &mut Client, ms: i64) {
    let time = client.call("TIME");
    let (seconds, _) = time.trim_matches(['[', ']']).split_once(", ").unwrap();
    let until = seconds.parse::<i64>().unwrap() * 1000 + ms;
    client.call(&format!("ZADD redisson_lock_timeout:{{k}} {until} waiter"));
}

fn a_waiting_client_makes_a_fair_lock(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let (free, taken) = (["1", "1", "0", "1"], "key is a Redisson fair lock");
        let is_plain = |a: &mut Client| {
            for (command, reply) in
                ["LOCK.ACQUIRE k b", "LOCK.RENEW k b", "LOCK.RELEASE k b", "LOCK.ACQUIRE k b"]
                    .iter()
                    .zip(free)
            {
                assert_eq!(a.call(command), reply, "{command}");
            }
            assert_eq!(a.call("LOCK.BREAK k"), "1");
        };
        is_plain(&mut a);
        for other in ["-inf", "0", "+inf", "1e300"] {
            a.call(&format!("ZADD redisson_lock_timeout:{{k}} {other} waiter"));
            is_plain(&mut a);
        }
        add_fair_waiter(&mut a, -5_000);
        is_plain(&mut a);
        add_fair_waiter(&mut a, 100_000);
        for command in COMMANDS {
            let reply = a.call(command);
            assert!(reply.starts_with("WRONGTYPE ") && reply.contains(taken), "{command} replied {reply}");
        }
        assert_eq!(a.call("EXISTS k"), "0");
        // The fair lock has waiters until the timeout of the last one.
        add_fair_waiter(&mut a, -5_000);
        a.call("ZADD redisson_lock_timeout:{k} 5 another");
        is_plain(&mut a);
        a.call("DEL redisson_lock_timeout:{k}");
        for other in ["SET redisson_lock_timeout:{k} 9999999999999", "LPUSH redisson_lock_timeout:{k} 9"] {
            a.call("DEL redisson_lock_timeout:{k}");
            a.call(other);
            is_plain(&mut a);
        }
        a.call("FLUSHALL");
    });
}

/// A native holder can still use its lock after a client of the fair lock has begun to wait.
fn a_holder_can_always_release(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        let mut b = world.waiting("LOCK.ACQUIRE k b PX 100000 BLOCK 0");
        add_fair_waiter(&mut a, 100_000);
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "2");
        assert_eq!(a.call("LOCK.RENEW k a PX 100000"), "2");
        assert_eq!(a.call("LOCK.RELEASE k a ALL"), "0");
        assert_eq!(b.recv(), "1", "the earlier waiter");
        assert_eq!(b.call("LOCK.RELEASE k b"), "0");
        assert!(b.call("LOCK.ACQUIRE k b").starts_with("WRONGTYPE "));
        a.call("FLUSHALL");
    });
}

fn retries_get_their_recorded_reply(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000 ID 1"), "1");
        assert_eq!(a.call("LOCK.RELEASE k a ID 2"), "0");
        add_fair_waiter(&mut a, 100_000);
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000 ID 1"), "1");
        assert_eq!(a.call("LOCK.RELEASE k a ID 2"), "0");
        assert!(a.call("LOCK.ACQUIRE k a PX 100000 ID 3").starts_with("WRONGTYPE "));
        assert_eq!(a.call("EXISTS k"), "0");
        a.call("FLUSHALL");
    });
}
