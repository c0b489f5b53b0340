// SPDX-License-Identifier: MIT

//! `ONCE`: an owner that is many threads, whose own hold is in its way (1, 3, 4).

use crate::support::client::prefix;
use crate::support::{in_world, until, Flavor};

crate::on_every_server!(
    what_the_owner_holds_is_in_its_way,
    another_thread_gives_it_back,
    threads_share_one_line,
    readers_of_one_owner_stand_side_by_side,
    a_retry_counts_once,
    deadlocks_are_found_between_owners_only,
    a_fair_lock_is_left_to_redisson,
);

fn what_the_owner_holds_is_in_its_way(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a ONCE"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k a ONCE"), "nil");
        assert_eq!(a.call("LOCK.ACQUIRE k a ONCE SHARED"), "nil");
        assert_eq!(a.call("LOCK.ACQUIRE k a ONCE BLOCK 20"), "nil");
        assert_eq!(a.call("HGETALL k"), "[a, 1]");
        let before = a.number("PEXPIRETIME k");
        assert_eq!(a.call("LOCK.ACQUIRE k a ONCE PX 1 FENCE WATCHDOG EPHEMERAL ID x"), "nil");
        assert_eq!(a.number("PEXPIRETIME k"), before, "what is refused sets no lease");
        // It is a matter of the call, not of the hold.
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

fn another_thread_gives_it_back(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut first = world.client();
        assert_eq!(first.call("LOCK.ACQUIRE k a"), "1");
        assert_eq!(first.call("LOCK.ACQUIRE k a"), "2");
        let mut second = world.waiting("LOCK.ACQUIRE k a ONCE BLOCK 0");
        assert_eq!(first.call("LOCK.BLOCKERS a"), "[[owner, a, key, k, client, nil]]");
        assert_eq!(first.call("LOCK.RELEASE k a"), "1");
        assert!(second.has_nothing(), "the owner holds it still");
        assert_eq!(first.call("LOCK.RELEASE k a"), "0");
        assert_eq!(second.recv(), "1");
        // The end of a lease and a foreign DEL free it, too.
        for end in ["PEXPIRE k 20", "DEL k"] {
            let mut third = world.waiting("LOCK.ACQUIRE k a ONCE BLOCK 0");
            assert_eq!(first.call(end), "1");
            assert_eq!(third.recv(), "1", "after {end}");
        }
        assert_eq!(first.call("LOCK.RELEASE k a"), "0");
        assert_eq!(first.call("EXISTS k"), "0");
    });
}

fn threads_share_one_line(flavor: Flavor) {
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
        assert!(third.has_nothing(), "a grant to one thread is none to the other");
        assert_eq!(second.call("LOCK.RELEASE k a"), "0");
        assert_eq!(third.recv(), "1");
        // A thread that goes away while its turn comes holds nobody up.
        let fourth = world.waiting("LOCK.ACQUIRE k a ONCE BLOCK 0");
        let mut fifth = world.waiting("LOCK.ACQUIRE k a ONCE BLOCK 0");
        fourth.close();
        assert_eq!(third.call("LOCK.RELEASE k a"), "0");
        assert_eq!(fifth.recv(), "1");
    });
}

fn readers_of_one_owner_stand_side_by_side(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED ONCE"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED ONCE"), "2");
        let mut writer = world.waiting("LOCK.ACQUIRE k a ONCE BLOCK 0");
        // Behind the writer, as anybody else's reader.
        let mut reader = world.waiting("LOCK.ACQUIRE k a SHARED ONCE BLOCK 0");
        // Without ONCE it is a re-entry, which nobody is before.
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
        assert_eq!(a.call("LOCK.ACQUIRE k a ONCE ID 1"), "1", "the same call");
        assert_eq!(a.call("LOCK.ACQUIRE k a ONCE ID 2"), "nil", "another one");
        let mut second = world.waiting("LOCK.ACQUIRE k a ONCE ID 2 BLOCK 0");
        let mut again = world.waiting("LOCK.ACQUIRE k a ONCE ID 3 BLOCK 0");
        let mut moved = world.client();
        moved.send("LOCK.ACQUIRE k a ONCE ID 2 BLOCK 0");
        assert_eq!(prefix(&second.recv()), "UNBLOCKED", "its call came again, and has its place");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(moved.recv(), "1");
        assert_eq!(a.call("LOCK.CANCEL k a ID 3"), "1");
        assert_eq!(prefix(&again.recv()), "UNBLOCKED");
        // A call that comes again and wants less is granted at once, and its first wait is over.
        let mut waits = world.waiting("LOCK.ACQUIRE k a ONCE ID 4 BLOCK 0");
        assert_eq!(a.call("LOCK.ACQUIRE k a ID 4"), "2");
        assert_eq!(prefix(&waits.recv()), "UNBLOCKED");
        assert_eq!(a.call("LOCK.RELEASE k a ALL"), "0");
        assert_eq!(a.call("EXISTS k"), "0", "it is not granted a second time");
    });
}

fn deadlocks_are_found_between_owners_only(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for key in ["k", "l"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE {key} a ONCE PX 100000")), "1");
        }
        // Threads in two lines, each with a stranger in between: none of it is a deadlock.
        let waiters: Vec<_> = ["k b", "k a ONCE", "l c", "l a ONCE", "k a ONCE"]
            .into_iter()
            .map(|who| world.waiting(&format!("LOCK.ACQUIRE {who} BLOCK 0")))
            .collect();
        assert_eq!(a.call("LOCK.ACQUIRE m d PX 100000"), "1");
        let d = world.waiting("LOCK.ACQUIRE k d BLOCK 0");
        // An owner that waits for another one that waits for it is in a deadlock, by whichever thread.
        assert_eq!(
            a.call("LOCK.ACQUIRE m a ONCE BLOCK 60000"),
            "DEADLOCK waiting could never end: a waits for d (lock m), d for a (lock k)"
        );
        waiters.into_iter().chain([d]).for_each(crate::support::Client::close);
        until("nobody waits", || a.info("lock", "lock_waiters") == "0");
    });
}

/// Whoever holds such a lock may go on natively; to wait for it is Redisson's.
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
