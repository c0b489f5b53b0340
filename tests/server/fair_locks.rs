// SPDX-License-Identifier: MIT

//! Redisson's fair locks, by what they store; the real ones are in `redisson::other_locks`.

use crate::support::{in_world, until, Client, Flavor};

crate::on_every_server!(
    only_who_still_waits_makes_a_fair_lock,
    who_holds_the_lock_can_always_give_it_back,
    a_retry_is_answered_all_the_same,
    a_newcomer_sees_who_waits_as_for_a_fair_lock,
);

const COMMANDS: [&str; 6] = [
    "LOCK.ACQUIRE k b",
    "LOCK.ACQUIRE k b SHARED BLOCK 0",
    "LOCK.RELEASE k b",
    "LOCK.RENEW k b",
    "LOCK.BREAK k",
    "LOCK.INFO k",
];

/// Not every newcomer looks at the lock, but soon one does, also where its holder has to do with it all the time.
fn a_newcomer_sees_who_waits_as_for_a_fair_lock(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a WATCHDOG"), "1");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        waits_for(&mut a, 100_000);
        until("a newcomer looks", || {
            a.call("LOCK.ACQUIRE k a");
            a.call("LOCK.ACQUIRE k c BLOCK 1").starts_with("WRONGTYPE")
        });
        assert_eq!(a.call("LOCK.RELEASE k a ALL"), "0");
        assert_eq!(b.recv(), "1");
        a.call("DEL redisson_lock_timeout:{k}");
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
    });
}

/// Somebody waits in the fair lock `k` until then, in milliseconds from now.
fn waits_for(client: &mut Client, ms: i64) {
    let time = client.call("TIME");
    let (seconds, _) = time.trim_matches(['[', ']']).split_once(", ").unwrap();
    let until = seconds.parse::<i64>().unwrap() * 1000 + ms;
    client.call(&format!("ZADD redisson_lock_timeout:{{k}} {until} waiter"));
}

fn only_who_still_waits_makes_a_fair_lock(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let (free, taken) = (["1", "1", "0", "1"], "the key is a fair lock of Redisson");
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
        waits_for(&mut a, -5_000);
        is_plain(&mut a);
        waits_for(&mut a, 100_000);
        for command in COMMANDS {
            let reply = a.call(command);
            assert!(reply.starts_with("WRONGTYPE ") && reply.contains(taken), "{command} answered {reply}");
        }
        assert_eq!(a.call("EXISTS k"), "0");
        // Of several the last counts.
        waits_for(&mut a, -5_000);
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

/// A fair client that comes to a lock which is held natively does not keep its owner from anything.
fn who_holds_the_lock_can_always_give_it_back(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        let mut b = world.waiting("LOCK.ACQUIRE k b PX 100000 BLOCK 0");
        waits_for(&mut a, 100_000);
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "2");
        assert_eq!(a.call("LOCK.RENEW k a PX 100000"), "2");
        assert_eq!(a.call("LOCK.RELEASE k a ALL"), "0");
        assert_eq!(b.recv(), "1", "who waited before");
        assert_eq!(b.call("LOCK.RELEASE k b"), "0");
        assert!(b.call("LOCK.ACQUIRE k b").starts_with("WRONGTYPE "));
        a.call("FLUSHALL");
    });
}

fn a_retry_is_answered_all_the_same(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000 ID 1"), "1");
        assert_eq!(a.call("LOCK.RELEASE k a ID 2"), "0");
        waits_for(&mut a, 100_000);
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000 ID 1"), "1");
        assert_eq!(a.call("LOCK.RELEASE k a ID 2"), "0");
        assert!(a.call("LOCK.ACQUIRE k a PX 100000 ID 3").starts_with("WRONGTYPE "));
        assert_eq!(a.call("EXISTS k"), "0");
        a.call("FLUSHALL");
    });
}
