// SPDX-License-Identifier: MIT

//! `ONCE`: threads that share an owner exclude each other, as the owner's own hold blocks the acquire (invariants 1, 3, 4).

use crate::support::client::prefix;
use crate::support::{in_world, until, without_addresses, Flavor};

crate::on_every_server!(
    once_does_not_reenter,
    a_thread_waits_for_its_owners_hold,
    threads_of_an_owner_queue_separately,
    readers_of_one_owner_share,
    a_retry_counts_once,
    deadlocks_are_found_between_owners_only,
    a_fair_lock_is_left_to_redisson,
);

fn once_does_not_reenter(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a ONCE"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k a ONCE"), "nil");
        assert_eq!(a.call("LOCK.ACQUIRE k a ONCE SHARED"), "nil");
        assert_eq!(a.call("LOCK.ACQUIRE k a ONCE BLOCK 20"), "nil");
        assert_eq!(a.call("HGETALL k"), "[a, 1]");
        let before = a.number("PEXPIRETIME k");
        assert_eq!(a.call("LOCK.ACQUIRE k a ONCE PX 1 FENCE WATCHDOG EPHEMERAL ID x"), "nil");
        assert_eq!(a.number("PEXPIRETIME k"), before, "a refused call sets no lease");
        // The option belongs to the call, not to the hold.
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "2");
        a.call("MULTI");
        a.call("LOCK.ACQUIRE k a ONCE BLOCK 0");
        a.call("LOCK.ACQUIRE l * ONCE");
        assert!(a.call("EXEC").starts_with("[nil, [owner, "));
        assert_eq!(
            a.call_args(&[b"EVAL", b"return redis.call('LOCK.ACQUIRE', 'k', 'a', 'ONCE')", b"0"]),
            "nil"
        );
        for error in ["ONCE ONCE", "ONCE once SHARED"] {
            let reply = a.call(&format!("LOCK.ACQUIRE m a {error}"));
            assert_eq!(reply, "ERR ONCE is given twice in 'lock.acquire' command");
        }
    });
}

fn a_thread_waits_for_its_owners_hold(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut first = world.client();
        assert_eq!(first.call("LOCK.ACQUIRE k a"), "1");
        assert_eq!(first.call("LOCK.ACQUIRE k a"), "2");
        let mut second = world.waiting("LOCK.ACQUIRE k a ONCE BLOCK 0");
        assert_eq!(without_addresses(&first.call("LOCK.BLOCKERS a")), "[[owner, a, key, k, client, nil]]");
        assert_eq!(first.call("LOCK.RELEASE k a"), "1");
        assert!(second.has_nothing(), "the owner still holds the lock");
        assert_eq!(first.call("LOCK.RELEASE k a"), "0");
        assert_eq!(second.recv(), "1");
        // Lease expiry and a foreign DEL free the lock, too.
        for end in ["PEXPIRE k 20", "DEL k"] {
            let mut third = world.waiting("LOCK.ACQUIRE k a ONCE BLOCK 0");
            assert_eq!(first.call(end), "1");
            assert_eq!(third.recv(), "1", "after {end}");
        }
        assert_eq!(first.call("LOCK.RELEASE k a"), "0");
        assert_eq!(first.call("EXISTS k"), "0");
    });
}

fn threads_of_an_owner_queue_separately(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut first = world.client();
        assert_eq!(first.call("LOCK.ACQUIRE k a ONCE"), "1");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        let mut second = world.waiting("LOCK.ACQUIRE k a ONCE BLOCK 0");
        let mut third = world.waiting("LOCK.ACQUIRE k a ONCE BLOCK 0");
        assert_eq!(first.call("LOCK.RELEASE k a"), "0");
        assert_eq!(b.recv(), "1");
        assert_eq!(b.call("LOCK.RELEASE k b"), "0");
        assert_eq!(second.recv(), "1");
        assert!(third.has_nothing(), "a grant to one thread also went to the other");
        assert_eq!(second.call("LOCK.RELEASE k a"), "0");
        assert_eq!(third.recv(), "1");
        // A thread that disconnects while its grant is due blocks no other waiter.
        let fourth = world.waiting("LOCK.ACQUIRE k a ONCE BLOCK 0");
        let mut fifth = world.waiting("LOCK.ACQUIRE k a ONCE BLOCK 0");
        fourth.close();
        assert_eq!(third.call("LOCK.RELEASE k a"), "0");
        assert_eq!(fifth.recv(), "1");
    });
}

fn readers_of_one_owner_share(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED ONCE"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED ONCE"), "2");
        let mut writer = world.waiting("LOCK.ACQUIRE k a ONCE BLOCK 0");
        // Waits behind the writer, like any other reader.
        let mut reader = world.waiting("LOCK.ACQUIRE k a SHARED ONCE BLOCK 0");
        // Without ONCE the call re-enters, which no waiter delays.
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED"), "3");
        for left in ["2", "1", "0"] {
            assert_eq!(a.call("LOCK.RELEASE k a"), left);
        }
        assert_eq!(writer.recv(), "1");
        assert!(reader.has_nothing());
        assert_eq!(writer.call("LOCK.RELEASE k a"), "0");
        assert_eq!(reader.recv(), "1");
    });
}

fn a_retry_counts_once(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a ONCE ID 1"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k a ONCE ID 1"), "1", "the same request");
        assert_eq!(a.call("LOCK.ACQUIRE k a ONCE ID 2"), "nil", "another request");
        let mut second = world.waiting("LOCK.ACQUIRE k a ONCE ID 2 BLOCK 0");
        let mut again = world.waiting("LOCK.ACQUIRE k a ONCE ID 3 BLOCK 0");
        let mut moved = world.client();
        moved.send("LOCK.ACQUIRE k a ONCE ID 2 BLOCK 0");
        assert_eq!(prefix(&second.recv()), "UNBLOCKED", "the retry takes over the position");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(moved.recv(), "1");
        assert_eq!(a.call("LOCK.CANCEL k a ID 3"), "1");
        assert_eq!(prefix(&again.recv()), "UNBLOCKED");
        // A retry without ONCE is granted at once, and its first wait ends.
        let mut waits = world.waiting("LOCK.ACQUIRE k a ONCE ID 4 BLOCK 0");
        assert_eq!(a.call("LOCK.ACQUIRE k a ID 4"), "2");
        assert_eq!(prefix(&waits.recv()), "UNBLOCKED");
        assert_eq!(a.call("LOCK.RELEASE k a ALL"), "0");
        assert_eq!(a.call("EXISTS k"), "0", "the request was granted twice");
    });
}

fn deadlocks_are_found_between_owners_only(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for key in ["k", "l"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE {key} a ONCE PX 100000")), "1");
        }
        // Threads in two queues, with other owners in between, are not in a deadlock.
        let waiters: Vec<_> = ["k b", "k a ONCE", "l c", "l a ONCE", "k a ONCE"]
            .into_iter()
            .map(|who| world.waiting(&format!("LOCK.ACQUIRE {who} BLOCK 0")))
            .collect();
        assert_eq!(a.call("LOCK.ACQUIRE m d PX 100000"), "1");
        let d = world.waiting("LOCK.ACQUIRE k d BLOCK 0");
        // Owners that wait for each other are in a deadlock, through any of their threads.
        assert_eq!(
            a.call("LOCK.ACQUIRE m a ONCE BLOCK 60000"),
            "DEADLOCK waiting could never end: a waits for d (lock m), d for a (lock k)"
        );
        waiters.into_iter().chain([d]).for_each(crate::support::Client::close);
        until("there are no waiters", || a.info("lock", "lock_waiters") == "0");
    });
}

/// A native holder may re-enter a lock with a fair waiter. An acquire with `ONCE` is refused.
fn a_fair_lock_is_left_to_redisson(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        a.call("RPUSH redisson_lock_queue:{k} b");
        a.call("ZADD redisson_lock_timeout:{k} 99999999999999 b");
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "2");
        for call in ["LOCK.ACQUIRE k a ONCE", "LOCK.ACQUIRE k a ONCE BLOCK 0"] {
            assert_eq!(prefix(&a.call(call)), "WRONGTYPE", "{call}");
        }
        a.call("DEL redisson_lock_queue:{k} redisson_lock_timeout:{k}");
    });
}
