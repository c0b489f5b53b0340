// SPDX-License-Identifier: MIT

//! `LOCK.MACQUIRE`, `LOCK.MRELEASE`, `LOCK.MRENEW`: several locks at once (invariants 1, 3, 4, 6).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::Value;

use crate::support::client::{fields, prefix};
use crate::support::cluster::Cluster;
use crate::support::{in_world, in_world_with, until, without_addresses, Client, Flavor, Server};

crate::on_every_server!(
    all_locks_are_granted_or_none,
    invalid_arguments_are_refused,
    the_last_free_lock_grants_the_wait,
    a_call_joins_and_leaves_queues_together,
    only_compatible_newcomers_pass,
    every_way_of_freeing_grants,
    a_new_call_of_a_waiting_owner_makes_no_deadlock,
    a_blocking_owner_overtakes,
    a_blocking_owner_overtakes_without_detection,
    true_deadlocks_are_found,
    an_indirect_blocker_overtakes_too,
    a_later_blocker_overtakes_too,
    an_overtaken_call_waits_only_for_its_blockers,
    a_temporary_deadlock_hides_no_other,
    a_changed_retry_unblocks_others,
    a_handed_over_lock_is_not_announced,
    macquire_combines_with_other_options,
    a_retry_counts_once,
    a_retry_after_the_end_of_some_holds_is_refused,
    cancel_ends_the_wait_or_releases,
    cancel_after_the_reply_releases_one_lock,
    cancel_before_the_reply_releases_all,
    replicas_acknowledge_every_lock,
    an_undelivered_grant_is_revoked,
    a_non_lock_ends_the_wait,
    a_grant_replicates_as_one_transaction,
    releases_and_renewals_are_all_or_none,
    a_moved_slot_ends_the_wait,
    only_locks_that_stay_free_are_announced,
    every_key_needs_permission,
    waits_for_several_locks_do_not_starve,
    dining_philosophers_finish,
    transfers_lose_no_money,
    an_expiring_lease_leaves_no_partial_call,
);

fn all_locks_are_granted_or_none(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.MACQUIRE 3 a b c me PX 100000"), "[1, 1, 1]");
        assert_eq!(a.call("LOCK.MACQUIRE 2 b d you"), "nil");
        assert_eq!(a.call("EXISTS d"), "0");
        assert_eq!(a.call("LOCK.MACQUIRE 2 d c you BLOCK 20"), "nil");
        assert_eq!(a.call("LOCK.MACQUIRE 2 b d me PX 100000"), "[2, 1]", "an owner may re-enter its locks");
        assert_eq!(a.call("LOCK.RELEASE b me"), "1");
        assert_eq!(a.call("LOCK.MRELEASE 3 c a b me"), "[0, 0, 0]");
        assert_eq!(a.call("LOCK.MACQUIRE 2 a b x SHARED PX 100000"), "[1, 1]");
        assert_eq!(a.call("LOCK.MACQUIRE 2 b c y SHARED PX 100000"), "[1, 1]");
        assert_eq!(a.call("LOCK.MACQUIRE 2 a c z"), "nil");
        a.call("MULTI");
        a.call("LOCK.MRELEASE 2 a b x");
        a.call("LOCK.MACQUIRE 2 a e x PX 100000");
        a.call("LOCK.MACQUIRE 2 a f y BLOCK 0");
        assert_eq!(a.call("EXEC"), "[[0, 0], [1, 1], nil]");
        let script = b"return redis.call('LOCK.MACQUIRE', '2', 'g', KEYS[1], 's', 'BLOCK', '0')";
        assert_eq!(a.call_args(&[b"EVAL", script, b"1", b"h"]), "[1, 1]");
        assert_eq!(a.call("LOCK.MACQUIRE 1 i one PX 100000"), "[1]");
        let keys = (0..64).map(|key| format!("n{key}")).collect::<Vec<_>>().join(" ");
        assert_eq!(a.call(&format!("LOCK.MACQUIRE 64 {keys} many PX 100000")).matches('1').count(), 64);
    });
}

fn invalid_arguments_are_refused(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("SET string x");
        a.call("SET redisson_lock_token:{e} x");
        for (call, error) in [
            ("0 a o", "ERR numkeys is out of range"),
            ("65 a o", "ERR numkeys is out of range"),
            ("-1 a o", "ERR numkeys is out of range"),
            ("2147483647 a o", "ERR numkeys is out of range"),
            ("x a o", "ERR numkeys 'x' is not an integer"),
            ("2 a o", "ERR numkeys is 2 but too few arguments follow"),
            ("2 a a o", "ERR key 'a' is given twice"),
            ("1 a #o", "ERR owner begins with '#'"),
            ("2 a b o LIMIT 2", "ERR syntax error, unknown option 'LIMIT'"),
            ("2 a b o PX 0", "ERR PX is out of range"),
            ("2 a {a} o", "ERR keys '{a}' and 'a' cannot be locked together"),
            ("2 redisson_lock_token:{a} a o", "ERR keys 'a' and 'redisson_lock_token:{a}' cannot be locked"),
            (
                "2 a lock_request:{a}:o:1 o",
                "ERR keys 'lock_request:{a}:o:1' and 'a' cannot be locked together",
            ),
            ("2 a string o", "WRONGTYPE key does not hold a lock"),
            ("2 a e o FENCE", "WRONGTYPE fencing counter of the lock is not an integer"),
        ] {
            let reply = a.call(&format!("LOCK.MACQUIRE {call}"));
            assert!(reply.starts_with(error), "{call}: {reply}");
        }
        assert_eq!(a.call("EXISTS a b e"), "0");
        assert_eq!(prefix(&a.call("LOCK.MACQUIRE 1 a")), "ERR");
        assert_eq!(prefix(&a.call("LOCK.MRELEASE 2 a b")), "ERR");
        assert_eq!(prefix(&a.call("LOCK.MRENEW 2 a o")), "ERR");
        assert_eq!(a.call("COMMAND GETKEYS LOCK.MACQUIRE 2 a b o"), "[a, b]");
        assert_eq!(a.call("COMMAND GETKEYS LOCK.MRENEW 3 a b c o PX 5"), "[a, b, c]");
    });
}

fn the_last_free_lock_grants_the_wait(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for (key, owner) in [("a", "x"), ("b", "y"), ("c", "z")] {
            a.call(&format!("LOCK.ACQUIRE {key} {owner} PX 100000"));
        }
        let mut all = world.waiting("LOCK.MACQUIRE 3 a b c me BLOCK 0 PX 100000 FENCE");
        for (key, owner) in [("b", "y"), ("c", "z"), ("a", "x")] {
            assert!(all.has_nothing());
            assert_eq!(a.call(&format!("LOCK.RELEASE {key} {owner}")), "0");
        }
        let Value::Array(replies) = all.recv_value() else { panic!("no array") };
        assert_eq!(replies.len(), 3);
        for (reply, key) in replies.iter().zip(["a", "b", "c"]) {
            let reply = fields(reply);
            assert_eq!(
                (reply["holds"], reply["owner"]),
                (&Value::Int(1), &Value::BulkString(b"me".to_vec()))
            );
            let Value::Int(token) = reply["token"] else { panic!("no token") };
            assert_eq!(a.call(&format!("LOCK.CHECK {key} TOKEN {token}")), "1");
            assert!(
                (90_000..=100_000).contains(&a.number(&format!("PTTL {key}"))),
                "the lease runs from the grant"
            );
        }
    });
}

fn a_call_joins_and_leaves_queues_together(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.MACQUIRE 2 a b x PX 100000");
        let shown = |client: &mut Client, key: &str| -> Vec<(String, i64)> {
            let Value::Array(waiters) = client.call_value(&format!("LOCK.WAITERS {key}")) else { panic!() };
            let entry = |waiter: &Value| {
                let waiter = fields(waiter);
                let Value::Int(client) = waiter["client"] else { panic!("no client") };
                (crate::support::client::show(waiter["owner"]), *client)
            };
            waiters.iter().map(entry).collect()
        };
        let ends = ["time", "close", "unblock"];
        for end in &ends[..if flavor.may_unblock() { 3 } else { 2 }] {
            let before = world.waiting("LOCK.ACQUIRE b s BLOCK 0 PX 100000");
            let end = *end;
            let block = if end == "time" { "BLOCK 30" } else { "BLOCK 0" };
            let mut two = world.waiting(&format!("LOCK.MACQUIRE 2 a b two {block}"));
            let after = world.waiting("LOCK.ACQUIRE a t BLOCK 0 PX 100000");
            if end != "time" {
                let (at_a, at_b) = (shown(&mut a, "a"), shown(&mut a, "b"));
                assert_eq!(at_a.iter().map(|(owner, _)| owner.as_str()).collect::<Vec<_>>(), ["two", "t"]);
                assert_eq!(at_b.iter().map(|(owner, _)| owner.as_str()).collect::<Vec<_>>(), ["s", "two"]);
                assert_eq!(at_a[0], at_b[1], "the same client");
                assert_eq!(a.info("lock", "lock_table_bundles"), "1");
            }
            match end {
                "time" => assert_eq!(two.recv(), "nil"),
                "unblock" => {
                    let id = shown(&mut a, "a")[0].1;
                    assert_eq!(a.call(&format!("CLIENT UNBLOCK {id} ERROR")), "1");
                    assert_eq!(prefix(&two.recv()), "UNBLOCKED");
                }
                _ => two.close(),
            }
            until("the wait has left both queues", || {
                shown(&mut a, "a").len() == 1 && shown(&mut a, "b").len() == 1
            });
            assert_eq!(a.info("lock", "lock_table_bundles"), "0");
            before.close();
            after.close();
            until("there are no waiters", || a.info("lock", "lock_waiters") == "0");
        }
        // A waiter behind a departed call is granted at once.
        a.call("LOCK.RELEASE a x");
        let two = world.waiting("LOCK.MACQUIRE 2 a b two BLOCK 0");
        let mut after = world.waiting("LOCK.ACQUIRE a t BLOCK 0 PX 100000");
        two.close();
        assert_eq!(after.recv(), "1");
    });
}

fn only_compatible_newcomers_pass(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE b x PX 100000");
        let mut two = world.waiting("LOCK.MACQUIRE 2 a b two BLOCK 0 PX 100000");
        assert_eq!(a.call("LOCK.ACQUIRE a s"), "nil", "a newcomer overtook the waiting call");
        assert_eq!(a.call("LOCK.ACQUIRE a s SHARED"), "nil");
        assert_eq!(a.call("LOCK.MACQUIRE 2 a c s"), "nil");
        let mut single = world.waiting("LOCK.ACQUIRE a s BLOCK 0 PX 100000");
        assert!(single.has_nothing());
        assert_eq!(a.call("LOCK.RELEASE b x"), "0");
        assert_eq!(two.recv(), "[1, 1]");
        assert!(single.has_nothing());
        assert_eq!(a.call("LOCK.MRELEASE 2 a b two"), "[0, 0]");
        assert_eq!(single.recv(), "1");
        a.call("LOCK.BREAK a");
        // A reader does not block other readers.
        a.call("LOCK.ACQUIRE b x PX 100000");
        let mut readers = world.waiting("LOCK.MACQUIRE 2 a b two SHARED BLOCK 0 PX 100000");
        assert_eq!(a.call("LOCK.ACQUIRE a r SHARED PX 100000"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE a l SHARED LIMIT 2 PX 100000"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE a w"), "nil");
        let mut writer = world.waiting("LOCK.ACQUIRE a w BLOCK 0 PX 100000");
        assert_eq!(a.call("LOCK.ACQUIRE a q SHARED"), "nil", "a writer is ahead");
        assert_eq!(a.call("LOCK.RELEASE b x"), "0");
        assert_eq!(readers.recv(), "[1, 1]");
        for owner in ["r", "l"] {
            assert_eq!(a.call(&format!("LOCK.RELEASE a {owner}")), "0");
        }
        assert!(writer.has_nothing());
        assert_eq!(a.call("LOCK.MRELEASE 2 a b two"), "[0, 0]");
        assert_eq!(writer.recv(), "1");
    });
}

fn every_way_of_freeing_grants(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for how in [
            "PEXPIRE b 1",
            "DEL b",
            "LOCK.BREAK b",
            "UNLINK b",
            "lease",
            "RENAME b other",
            "FLUSHDB",
            "ephemeral",
        ] {
            a.call("LOCK.ACQUIRE a first PX 100000");
            let mut leaves = world.client();
            let lease = if how == "lease" { 60 } else { 100_000 };
            leaves.call(&format!("LOCK.ACQUIRE b second PX {lease} EPHEMERAL"));
            let mut two = world.waiting("LOCK.MACQUIRE 2 a b two BLOCK 0 PX 100000");
            if how != "FLUSHDB" {
                assert_eq!(a.call("LOCK.RELEASE a first"), "0");
            }
            match how {
                "lease" => {}
                "ephemeral" => leaves.close(),
                how => assert_ne!(prefix(&a.call(how)), "ERR", "{how}"),
            }
            assert_eq!(two.recv(), "[1, 1]", "{how}");
            assert_eq!(a.call("LOCK.MRELEASE 2 a b two"), "[0, 0]");
            a.call("DEL other");
        }
    });
}

fn assert_blocking_owners_overtake(flavor: Flavor, args: &[&str]) {
    in_world_with(flavor, args, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE a t PX 100000");
        let mut two = world.waiting("LOCK.MACQUIRE 2 a b m BLOCK 0 PX 100000");
        assert_eq!(a.call("LOCK.ACQUIRE b t"), "nil");
        assert_eq!(a.call("LOCK.ACQUIRE b t BLOCK 5000 PX 100000"), "1", "at once");
        assert_eq!(a.call("LOCK.MRELEASE 2 a b t"), "[0, 0]");
        assert_eq!(two.recv(), "[1, 1]");
        a.call("LOCK.MRELEASE 2 a b m");
        // The dependency leads through a third owner: t holds a, u holds c, t waits for c, and u acquires b.
        a.call("LOCK.ACQUIRE a t PX 100000");
        a.call("LOCK.ACQUIRE c u PX 100000");
        let mut two = world.waiting("LOCK.MACQUIRE 2 a b m BLOCK 0 PX 100000");
        let mut t = world.waiting("LOCK.ACQUIRE c t BLOCK 0 PX 100000");
        let mut u = world.client();
        assert_eq!(u.call("LOCK.ACQUIRE b u BLOCK 5000 PX 100000"), "1");
        a.call("LOCK.MRELEASE 2 b c u");
        assert_eq!(t.recv(), "1");
        assert!(two.has_nothing());
        a.call("LOCK.MRELEASE 2 a c t");
        assert_eq!(two.recv(), "[1, 1]");
        a.call("LOCK.MRELEASE 2 a b m");
        // The wait behind the member belongs to another owner: h waits for w, w is behind m, and m waits for h.
        a.call("LOCK.ACQUIRE a h PX 100000");
        a.call("LOCK.ACQUIRE d w PX 100000");
        let mut two = world.waiting("LOCK.MACQUIRE 2 a b m BLOCK 0 PX 100000");
        let mut w = world.waiting("LOCK.ACQUIRE b w BLOCK 0 PX 100000");
        let mut h = world.waiting("LOCK.ACQUIRE d h BLOCK 0 PX 100000");
        assert_eq!(w.recv(), "1", "w must overtake m");
        a.call("LOCK.MRELEASE 2 b d w");
        assert_eq!(h.recv(), "1");
        a.call("LOCK.MRELEASE 2 a d h");
        assert_eq!(two.recv(), "[1, 1]");
        // A reader behind a reader that waits for several locks.
        a.call("LOCK.MRELEASE 2 a b m");
        a.call("LOCK.ACQUIRE b s PX 100000");
        let mut two = world.waiting("LOCK.MACQUIRE 2 a b m SHARED BLOCK 0 PX 100000");
        assert_eq!(a.call("LOCK.ACQUIRE a s SHARED BLOCK 5000 PX 100000"), "1");
        a.call("LOCK.MRELEASE 2 a b s");
        assert_eq!(two.recv(), "[1, 1]");
        assert_eq!(a.info("lock", "lock_deadlocks"), "0");
    });
}

fn a_blocking_owner_overtakes(flavor: Flavor) {
    assert_blocking_owners_overtake(flavor, &[]);
}

fn a_blocking_owner_overtakes_without_detection(flavor: Flavor) {
    assert_blocking_owners_overtake(flavor, &["--lock.deadlock-detection", "no"]);
}

/// A call for several locks that was overtaken does not stay behind once it could get its locks.
fn an_overtaken_call_waits_only_for_its_blockers(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for end in ["LOCK.RELEASE a t", "LOCK.BREAK a", "LOCK.RENEW a t PX 1"] {
            a.call("LOCK.ACQUIRE c x PX 100000");
            a.call("LOCK.ACQUIRE a t PX 100000");
            let mut p = world.waiting("LOCK.MACQUIRE 2 a b p BLOCK 0 PX 100000");
            // Overtakes at b, because p waits for t at a.
            let mut t = world.waiting("LOCK.MACQUIRE 2 b c t BLOCK 0 PX 100000");
            a.call(end);
            assert_eq!(p.recv(), "[1, 1]", "{end}");
            a.call("LOCK.RELEASE c x");
            a.call("LOCK.MRELEASE 2 a b p");
            assert_eq!(t.recv(), "[1, 1]", "{end}");
            a.call("LOCK.MRELEASE 2 b c t");
        }
        a.call("LOCK.MACQUIRE 3 b c d x PX 100000");
        let mut two = world.waiting("LOCK.MACQUIRE 1 c two BLOCK 0 PX 100000");
        let one = world.waiting("LOCK.MACQUIRE 2 b c one BLOCK 0 PX 100000");
        let one_at_d = world.waiting("LOCK.ACQUIRE d one BLOCK 0");
        // Waits behind `one` at d, so `one` overtakes at c.
        let two_at_d = world.waiting("LOCK.ACQUIRE d two BLOCK 0");
        a.call("LOCK.RELEASE c x");
        // Otherwise, each of them would get a lock that the other waits for.
        assert_eq!(a.call("EXISTS c"), "0");
        two_at_d.close();
        assert_eq!(two.recv(), "[1]");
        [one, one_at_d].into_iter().for_each(Client::close);
    });
}

/// An owner's new call for several locks stands ahead of a call that the owner's earlier call waits for.
fn a_new_call_of_a_waiting_owner_makes_no_deadlock(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE d z PX 100000");
        a.call("LOCK.ACQUIRE c t SHARED PX 100000");
        a.call("LOCK.ACQUIRE b u PX 100000");
        let mut t = world.waiting("LOCK.MACQUIRE 2 a b t BLOCK 0 PX 100000");
        let mut u = world.waiting("LOCK.MACQUIRE 2 c d u BLOCK 0 SHARED PX 100000");
        // Is ahead of `u` at c, because `t` holds c. But `t` waits for `u` at b.
        let mut t_again = world.waiting("LOCK.MACQUIRE 2 a c t BLOCK 0 PX 100000");
        a.call("LOCK.RELEASE d z");
        assert_eq!(u.recv(), "[1, 1]");
        a.call("LOCK.RELEASE b u");
        assert_eq!(t.recv(), "[1, 1]");
        a.call("LOCK.MRELEASE 2 c d u");
        assert_eq!(t_again.recv(), "[2, 2]");
    });
}

fn true_deadlocks_are_found(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE a t PX 100000");
        a.call("LOCK.ACQUIRE c m PX 100000");
        let two = world.waiting("LOCK.MACQUIRE 2 a b m BLOCK 0");
        assert_eq!(
            a.call("LOCK.ACQUIRE c t BLOCK 1000"),
            "DEADLOCK waiting could never end: t waits for m (lock c), m for t (lock a)"
        );
        let blockers = a.call("LOCK.BLOCKERS m");
        assert_eq!(without_addresses(&blockers), "[[owner, t, key, a, client, nil]]");
        two.close();
        until("there are no waiters", || a.info("lock", "lock_waiters") == "0");
        // The call for several locks arrives last.
        let t = world.waiting("LOCK.ACQUIRE c t BLOCK 0");
        assert_eq!(prefix(&a.call("LOCK.MACQUIRE 2 b a m BLOCK 1000")), "DEADLOCK");
        t.close();
        until("there are no waiters", || a.info("lock", "lock_waiters") == "0");
        assert_eq!(a.info("lock", "lock_table_bundles"), "0");
        // Calls that name the same locks in different order do not wait for each other.
        a.call("LOCK.MRELEASE 1 a t");
        a.call("LOCK.MRELEASE 1 c m");
        a.call("LOCK.ACQUIRE a x PX 100000");
        let mut one = world.waiting("LOCK.MACQUIRE 2 a b p BLOCK 0 PX 100000");
        let mut other = world.waiting("LOCK.MACQUIRE 2 b a q BLOCK 0 PX 100000");
        a.call("LOCK.RELEASE a x");
        assert_eq!(one.recv(), "[1, 1]");
        a.call("LOCK.MRELEASE 2 a b p");
        assert_eq!(other.recv(), "[1, 1]");
    });
}

fn macquire_combines_with_other_options(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut holder = world.client();
        assert_eq!(holder.call("LOCK.MACQUIRE 2 a b w WATCHDOG PX 300"), "[1, 1]");
        until("both are renewed", || a.info("lock", "lock_watchdog_renewals").parse::<i64>().unwrap() >= 4);
        assert_eq!(a.call("EXISTS a b"), "2");
        assert_eq!(a.call("LOCK.MACQUIRE 2 a b w ONCE"), "nil");
        assert_eq!(a.call("LOCK.MACQUIRE 2 a b w ONCE BLOCK 20"), "nil");
        assert_eq!(a.call("LOCK.MRELEASE 2 a b w"), "[0, 0]");
        let mut blocked = world.client();
        a.call("LOCK.ACQUIRE a x PX 100000");
        blocked.send("LOCK.MACQUIRE 2 a b e EPHEMERAL PX 100000 BLOCK 0");
        world.primary.until_blocked(&blocked);
        a.call("LOCK.RELEASE a x");
        assert_eq!(blocked.recv(), "[1, 1]");
        blocked.close();
        until("the holds end with the connection", || a.call("EXISTS a b") == "0");
        let Value::Array(replies) = a.call_value("LOCK.MACQUIRE 2 a b * EX 100") else { panic!() };
        let owners: Vec<&Value> = replies.iter().map(|reply| fields(reply)["owner"]).collect();
        assert_eq!(owners[0], owners[1]);
        assert_eq!(a.call("LOCK.BREAK a"), "1");
        assert_eq!(a.call("LOCK.BREAK b"), "1");
    });
}

fn a_retry_counts_once(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let acquire = "LOCK.MACQUIRE 2 a b me PX 100000 ID 1";
        assert_eq!([a.call(acquire), a.call(acquire)], ["[1, 1]", "[1, 1]"]);
        assert_eq!(a.call("LOCK.ACQUIRE a me PX 100000 ID 1"), "1", "each key has its own record");
        assert_eq!(prefix(&a.call("LOCK.MACQUIRE 2 a c me PX 100000 ID 1")), "ERR");
        assert_eq!(a.call("EXISTS c"), "0");
        let release = "LOCK.MRELEASE 2 a b me ID 2";
        assert_eq!([a.call(release), a.call(release)], ["[0, 0]", "[0, 0]"]);
        // A retry during the wait keeps the position, and the first connection is unblocked.
        a.call("LOCK.ACQUIRE b x PX 100000");
        let mut first = world.waiting("LOCK.MACQUIRE 2 a b me PX 100000 ID 3 BLOCK 0");
        let behind = world.waiting("LOCK.ACQUIRE a y BLOCK 0 PX 100000");
        let mut again = world.client();
        again.send("LOCK.MACQUIRE 2 a b me PX 100000 ID 3 BLOCK 0");
        assert_eq!(prefix(&first.recv()), "UNBLOCKED");
        assert_eq!(a.info("lock", "lock_table_bundles"), "1");
        assert_eq!(a.call("LOCK.RELEASE b x"), "0");
        assert_eq!(again.recv(), "[1, 1]");
        assert_eq!(a.call("LOCK.MACQUIRE 2 a b me PX 100000 ID 3"), "[1, 1]");
        assert!(behind.has_nothing());
        behind.close();
    });
}

/// The owner's hold of one lock ends with a connection, so a retry there would be a new call. The other hold stays.
fn a_retry_after_the_end_of_some_holds_is_refused(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut first) = (world.client(), world.client());
        let acquire = "LOCK.MACQUIRE 2 a b me PX 100000 ID 1";
        assert_eq!(first.call("LOCK.ACQUIRE b me PX 100000 EPHEMERAL"), "1");
        assert_eq!(first.call(acquire), "[1, 2]");
        first.close();
        until("the holds of b have ended", || a.call("EXISTS b") == "0");
        for _ in 0..2 {
            let reply = a.call(acquire);
            assert!(
                reply.starts_with("ERR ID was used before with other keys, or lacks some of its holds"),
                "{reply}"
            );
            assert_eq!([a.call("EXISTS b"), a.call("LOCK.CHECK a OWNER me")], ["0", "1"]);
        }
        assert_eq!([a.call("LOCK.CANCEL a me ID 1"), a.call("LOCK.CANCEL b me ID 1")], ["1", "0"]);
        assert_eq!(a.call("LOCK.MACQUIRE 2 a b me PX 100000 ID 2"), "[1, 1]");
        for [cancelled, left] in [["a", "b"], ["b", "a"]] {
            a.call("LOCK.MRELEASE 2 a b me");
            let acquire = format!("LOCK.MACQUIRE 2 a b me PX 100000 ID {cancelled}");
            assert_eq!(a.call(&acquire), "[1, 1]");
            assert_eq!(a.call(&format!("LOCK.CANCEL {cancelled} me ID {cancelled}")), "1");
            let reply = a.call(&acquire);
            assert!(reply.starts_with("ERR ID was used before"), "{left} is still held: {reply}");
            assert_eq!(a.call(&format!("LOCK.CANCEL {left} me ID {cancelled}")), "1");
            assert_eq!(prefix(&a.call(&acquire)), "UNBLOCKED", "nothing is held");
            assert_eq!(a.call("LOCK.MACQUIRE 2 a b me PX 100000"), "[1, 1]");
        }
    });
}

fn cancel_ends_the_wait_or_releases(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE b x PX 100000");
        for key in ["a", "b"] {
            let mut two = world.waiting(&format!("LOCK.MACQUIRE 2 a b me PX 100000 ID {key} BLOCK 0"));
            assert_eq!(a.call(&format!("LOCK.CANCEL {key} me ID {key}")), "1");
            assert_eq!(prefix(&two.recv()), "UNBLOCKED");
            assert_eq!(a.info("lock", "lock_table_bundles"), "0");
            assert_eq!(
                prefix(&a.call(&format!("LOCK.MACQUIRE 2 a b me ID {key}"))),
                "UNBLOCKED",
                "later, too"
            );
        }
        a.call("LOCK.RELEASE b x");
        assert_eq!(a.call("LOCK.MACQUIRE 2 a b me PX 100000 ID 5"), "[1, 1]");
        assert_eq!(a.call("LOCK.CANCEL a me ID 5"), "1");
        assert_eq!(a.call("EXISTS a b"), "1", "only the lock of this key is released");
        assert_eq!(a.call("LOCK.CANCEL b me ID 5"), "1");
        assert_eq!(a.call("EXISTS a b"), "0");
    });
}

/// The client has read the grant of both locks, but the server's event loop iteration has not ended yet. The test sends the call
/// and the release in one iteration, in which the server also writes much output.
fn cancel_after_the_reply_releases_one_lock(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut two) = (world.client(), world.client());
        let mut others: Vec<Client> = (0..100).map(|_| world.client()).collect();
        assert_eq!(a.call_args(&[b"SET", b"long", &[b'x'; 60_000]]), "OK");
        for (round, first) in (0..20).zip(["a", "b"].into_iter().cycle()) {
            a.call("LOCK.ACQUIRE a x PX 100000");
            world.signal(libc::SIGSTOP);
            two.send(&format!("LOCK.MACQUIRE 2 a b me PX 100000 BLOCK 0 ID {round}"));
            a.send("LOCK.RELEASE a x");
            others.iter_mut().for_each(|other| other.send("GET long"));
            world.signal(libc::SIGCONT);
            assert_eq!(two.recv(), "[1, 1]");
            assert_eq!(two.call(&format!("LOCK.CANCEL {first} me ID {round}")), "1");
            assert_eq!(a.recv(), "0");
            assert_eq!(a.call("EXISTS a b"), "1", "the other lock was released, too, in round {round}");
            let other = if first == "a" { "b" } else { "a" };
            assert_eq!(two.call(&format!("LOCK.RELEASE {other} me")), "0");
            others.iter_mut().for_each(|other| drop(other.recv()));
        }
        assert_eq!(a.info("lock", "lock_table_bundles"), "0");
        assert_eq!(a.info("lock", "lock_table_grants_in_flight"), "0");
    });
}

fn cancel_before_the_reply_releases_all(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for key in ["a", "b"] {
            a.call("LOCK.ACQUIRE a x PX 100000");
            let mut two = world.waiting(&format!("LOCK.MACQUIRE 2 a b me PX 100000 BLOCK 0 ID {key}"));
            // In one event loop iteration: both locks are granted, and the cancel arrives before the reply is sent.
            let cancel = format!("LOCK.CANCEL {key} me ID {key}");
            a.send_at_once(&["LOCK.RELEASE a x", &cancel, "LOCK.CHECK a OWNER me", "LOCK.CHECK b OWNER me"]);
            assert_eq!([a.recv(), a.recv()], ["0", "1"]);
            assert_eq!([a.recv(), a.recv()].map(|reply| prefix(&reply).to_owned()), ["NOTOWNER", "NOTOWNER"]);
            assert_eq!(prefix(&two.recv()), "UNBLOCKED");
            assert_eq!(a.call("EXISTS a b"), "0");
        }
        assert_eq!(a.info("lock", "lock_table_bundles"), "0");
        assert_eq!(a.info("lock", "lock_table_grants_in_flight"), "0");
    });
}

fn replicas_acknowledge_every_lock(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        until("the replica is online", || a.call("INFO replication").contains("state=online"));
        assert_eq!(a.call("LOCK.MACQUIRE 2 a b me PX 100000 REPLICAS 1 WITHIN 10000 ID 1"), "[1, 1]");
        assert_eq!(a.call("LOCK.MACQUIRE 2 a b me PX 100000 REPLICAS 1 WITHIN 10000 ID 1"), "[1, 1]");
        assert_eq!(prefix(&a.call("LOCK.MACQUIRE 2 a b me REPLICAS 9")), "NOREPLICAS");
        let mut two = world.waiting("LOCK.MACQUIRE 2 c a you PX 100000 REPLICAS 1 WITHIN 10000 BLOCK 0");
        a.call("LOCK.MRELEASE 2 a b me");
        assert_eq!(two.recv(), "[1, 1]");
    });
}

fn an_undelivered_grant_is_revoked(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for half in [true, false] {
            a.call("LOCK.ACQUIRE a x PX 100000");
            let two = world.waiting("LOCK.MACQUIRE 3 a b c gone BLOCK 0 PX 100000 FENCE ID 7");
            let mut next = world.waiting("LOCK.MACQUIRE 2 c b next BLOCK 0 PX 100000");
            // Release and disconnect arrive together: the server notices the disconnect when it sends the reply.
            if half {
                two.close_half();
            }
            a.send_at_once(&["LOCK.RELEASE a x", "PING"]);
            if !half {
                two.close();
            }
            assert_eq!([a.recv(), a.recv()], ["0", "PONG"]);
            if half {
                assert_eq!(next.recv(), "[1, 1]");
                until("the grant is revoked", || a.call("EXISTS a") == "0");
            } else {
                // The grant may have been delivered in time; then its lease protects it.
                a.call("LOCK.MRELEASE 3 a b c gone");
                assert_eq!(next.recv(), "[1, 1]");
            }
            assert_eq!(a.call("LOCK.MRELEASE 2 b c next"), "[0, 0]");
            a.call("DEL lock_request:{a}:gone:7 lock_request:{b}:gone:7 lock_request:{c}:gone:7 a b c");
        }
    });
}

fn a_non_lock_ends_the_wait(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE a x PX 100000");
        a.call("LOCK.ACQUIRE b x PX 100000");
        let mut two = world.waiting("LOCK.MACQUIRE 2 a b me BLOCK 0");
        let mut behind = world.waiting("LOCK.ACQUIRE a y BLOCK 0 PX 100000");
        a.call("RPUSH list x");
        a.call("RENAME list b");
        assert_eq!(prefix(&two.recv()), "WRONGTYPE");
        a.call("LOCK.RELEASE a x");
        assert_eq!(behind.recv(), "1");
    });
}

/// The writes of a grant reach the replica as one transaction.
fn a_grant_replicates_as_one_transaction(flavor: Flavor) {
    let primary = Server::with_module(flavor, &[]);
    let mut replica = Server::start(flavor, &[]);
    replica.follow(&primary);
    let mut monitor = replica.client();
    monitor.send("MONITOR");
    assert_eq!(monitor.recv(), "OK");
    let mut a = primary.client();
    let mut until_ping = |a: &mut Client| -> Vec<String> {
        a.call("SET end 1");
        let mut seen = Vec::new();
        loop {
            let line = monitor.recv();
            let Some((_, command)) = line.split_once("] ") else { continue };
            let mut words = command.split_whitespace().map(|word| word.trim_matches('"'));
            // Valkey 9 writes its own commands in lower case.
            let command = words.next().unwrap_or_default().to_ascii_uppercase();
            match (command.as_str(), words.next()) {
                ("SET", _) => return seen,
                ("PING" | "SELECT" | "REPLCONF", _) => {}
                (command, Some(key)) => seen.push(format!("{command} {key}")),
                (command, None) => seen.push(command.to_owned()),
            }
        }
    };
    a.call("LOCK.MACQUIRE 2 a b x PX 100000");
    let taken = ["MULTI", "HSET a", "PEXPIREAT a", "HSET b", "PEXPIREAT b", "EXEC"];
    assert_eq!(until_ping(&mut a), taken);
    let mut two = primary.waiting("LOCK.MACQUIRE 2 a b y BLOCK 0 PX 100000");
    assert_eq!(a.call("LOCK.RELEASE a x"), "0");
    assert_eq!(until_ping(&mut a).iter().filter(|command| command.starts_with("DEL")).count(), 1);
    assert_eq!(a.call("LOCK.RELEASE b x"), "0");
    assert_eq!(two.recv(), "[1, 1]");
    let handed = ["MULTI", "DEL b", "HSET a", "PEXPIREAT a", "HSET b", "PEXPIREAT b", "EXEC"];
    assert_eq!(until_ping(&mut a), handed);
    replica.assert_healthy();
    let mut primary = primary;
    primary.assert_healthy();
}

fn releases_and_renewals_are_all_or_none(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.MACQUIRE 2 a b me PX 100000");
        a.call("LOCK.ACQUIRE a me PX 100000");
        a.call("SET string x");
        for call in ["LOCK.MRELEASE 3 a b c me", "LOCK.MRENEW 3 a c b me PX 5", "LOCK.MRELEASE 2 a b you"] {
            assert_eq!(prefix(&a.call(call)), "NOTOWNER", "{call}");
        }
        for call in ["LOCK.MRELEASE 2 a string me", "LOCK.MRENEW 2 a string me"] {
            assert_eq!(prefix(&a.call(call)), "WRONGTYPE", "{call}");
        }
        assert!(a.number("PTTL a") > 90_000);
        assert_eq!(a.call("LOCK.MRENEW 2 b a me PX 200000"), "[1, 2]");
        assert!(a.number("PTTL a") > 190_000 && a.number("PTTL b") > 190_000);
        assert_eq!(a.call("LOCK.MRELEASE 2 a b me ALL"), "[0, 0]");
        a.call("LOCK.MACQUIRE 2 a b me SHARED PX 100000");
        assert_eq!(a.call("LOCK.MRENEW 2 a b me PX 600 WATCHDOG"), "[1, 1]");
        until("both leases are renewed", || {
            a.info("lock", "lock_watchdog_renewals").parse::<i64>().unwrap() >= 4
        });
        assert_eq!(a.call("LOCK.MRELEASE 2 a b me"), "[0, 0]");
        assert_eq!(a.call("EXISTS a b"), "0");
    });
}

fn a_moved_slot_ends_the_wait(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let [mut a, mut other] = cluster.clients();
    assert_eq!(prefix(&other.call("LOCK.MACQUIRE 2 {s}a {s}b me")), "MOVED");
    for call in
        ["LOCK.MACQUIRE 2 {s}a {t}b me", "LOCK.MACQUIRE 3 {s}a {s}b other me", "LOCK.MRELEASE 2 {s}a {t}b me"]
    {
        assert_eq!(prefix(&a.call(call)), "CROSSSLOT", "{call}");
    }
    assert_eq!(
        a.call("LOCK.MACQUIRE 3 {s}a s {s}b x PX 100000"),
        "[1, 1, 1]",
        "keys of one slot with different tags"
    );
    assert_eq!(a.call("LOCK.MRELEASE 2 s {s}b x"), "[0, 0]");
    let mut two = cluster.nodes[0].waiting("LOCK.MACQUIRE 3 {s}b {s}a {s}c me BLOCK 0 PX 100000 FENCE ID 1");
    let slot = a.call("CLUSTER KEYSLOT {s}a");
    let to = cluster.id(1);
    assert_eq!(a.call(&format!("CLUSTER SETSLOT {slot} MIGRATING {to}")), "OK");
    assert_eq!(prefix(&a.call("LOCK.MACQUIRE 2 {s}a {s}d x")), "TRYAGAIN");
    cluster.migrate("{s}a");
    let reply = two.recv();
    assert!(["MOVED", "UNBLOCKED"].contains(&prefix(&reply)), "{reply}");
    until("there are no waiters", || a.info("lock", "lock_table_bundles") == "0");
    assert_eq!(other.call("LOCK.MACQUIRE 2 {s}a {s}b x PX 100000"), "[2, 1]", "the hold has moved");
    cluster.assert_healthy();
}

/// A Redisson client is not woken for a lock that is handed over in the same step.
fn only_locks_that_stay_free_are_announced(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    let mut subscriber = server.client();
    assert!(subscriber.call("SUBSCRIBE redisson_lock__channel:{a}").starts_with("[subscribe"));
    a.call("LOCK.MACQUIRE 2 a b x PX 100000");
    let mut two = server.waiting("LOCK.MACQUIRE 2 a b y BLOCK 0 PX 100000");
    assert_eq!(a.call("LOCK.RELEASE b x"), "0");
    assert_eq!(a.call("LOCK.RELEASE a x"), "0");
    assert_eq!(two.recv(), "[1, 1]");
    assert!(subscriber.has_nothing(), "a lock that was handed over was announced");
    let two = server.waiting("LOCK.MACQUIRE 2 a b z BLOCK 0 PX 100000");
    assert_eq!(a.call("LOCK.RELEASE a y"), "0");
    assert_eq!(subscriber.recv(), "[message, redisson_lock__channel:{a}, 0]", "a stays free, as b is held");
    two.close();
    until("there are no waiters", || a.info("lock", "lock_waiters") == "0");
    server.assert_healthy();
}

fn every_key_needs_permission(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("ACL SETUSER some on nopass +@all ~mine:*");
        let mut user = world.client();
        assert_eq!(user.call("AUTH some x"), "OK");
        assert_eq!(user.call("LOCK.MACQUIRE 2 mine:a mine:b me PX 100000"), "[1, 1]");
        for call in [
            "LOCK.MACQUIRE 2 mine:c theirs me",
            "LOCK.MRELEASE 2 mine:a theirs me",
            "LOCK.MRENEW 2 mine:a theirs me",
        ] {
            assert_eq!(prefix(&user.call(call)), "NOPERM", "{call}");
        }
        assert_eq!(a.call("EXISTS mine:c theirs"), "0");
    });
}

/// Other clients acquire one of two locks in turn, so that both are never free at once by chance. A call for both comes
/// before all later calls at each lock, so only clients ahead of it in a queue are granted first.
fn waits_for_several_locks_do_not_starve(flavor: Flavor) {
    const AT_EACH: usize = 3;
    const SEEN: usize = 20;
    let mut server = Server::with_module(flavor, &[]);
    let rounds = AtomicUsize::new(0);
    let is_over = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..2 * AT_EACH {
            let (server, rounds, is_over) = (&server, &rounds, &is_over);
            let key = ["a", "b"][number % 2];
            scope.spawn(move || {
                let mut client = server.client();
                while is_over.load(Ordering::Relaxed) == 0 {
                    assert_eq!(client.call(&format!("LOCK.ACQUIRE {key} o{number} BLOCK 0")), "1");
                    rounds.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(client.call(&format!("LOCK.RELEASE {key} o{number}")), "0");
                }
            });
        }
        until("the clients are running", || rounds.load(Ordering::SeqCst) > 100);
        let (mut two, mut a) = (server.client(), server.client());
        let mut seen = 0;
        while seen < SEEN {
            two.send("LOCK.MACQUIRE 2 a b two BLOCK 0");
            let waits = a.call("LOCK.WAITERS a").contains("two");
            let before = rounds.load(Ordering::SeqCst);
            assert_eq!(two.recv(), "[1, 1]");
            // No other client can have been granted either lock since.
            let passed = rounds.load(Ordering::SeqCst) - before;
            assert_eq!(two.call("LOCK.MRELEASE 2 a b two"), "[0, 0]");
            if waits {
                seen += 1;
                assert!(passed <= 2 * AT_EACH, "{passed} grants while it waited");
            }
        }
        is_over.store(1, Ordering::Relaxed);
    });
    server.assert_healthy();
}

/// Five owners need two of five locks each, and sometimes disconnect. The environment variable `ROUNDS` sets the number of
/// rounds.
fn dining_philosophers_finish(flavor: Flavor) {
    const PHILOSOPHERS: usize = 5;
    let rounds = std::env::var("ROUNDS").map_or(2_000, |rounds| rounds.parse().unwrap());
    let mut server = Server::with_module(flavor, &[]);
    let forks: Vec<AtomicUsize> = (0..PHILOSOPHERS).map(|_| AtomicUsize::new(0)).collect();
    let longest = thread::scope(|scope| {
        let dine = |number: usize| {
            let (server, forks) = (&server, &forks);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(u64::try_from(number).unwrap());
                let (mut client, mut longest) = (server.client(), Duration::ZERO);
                let (left, right) = (number, (number + 1) % PHILOSOPHERS);
                // A reconnected owner uses a new name, as the server may read its call before it notices the disconnect.
                let mut life = 0;
                for _ in 0..rounds / PHILOSOPHERS {
                    let began = Instant::now();
                    let forks_of = format!("2 f{left} f{right} p{number}n{life}");
                    client.send(&format!("LOCK.MACQUIRE {forks_of} BLOCK 0 EPHEMERAL"));
                    if random.random_range(0..20) == 0 {
                        // The wait or the hold ends with the connection.
                        client.close();
                        client = server.client();
                        life += 1;
                        continue;
                    }
                    assert_eq!(client.recv(), "[1, 1]");
                    longest = longest.max(began.elapsed());
                    for fork in [left, right] {
                        assert_eq!(forks[fork].fetch_add(1, Ordering::SeqCst), 0, "a lock is held twice");
                    }
                    client.call("PING");
                    for fork in [left, right] {
                        forks[fork].fetch_sub(1, Ordering::SeqCst);
                    }
                    if random.random_range(0..20) == 0 {
                        client.close();
                        client = server.client();
                        life += 1;
                    } else {
                        assert_eq!(client.call(&format!("LOCK.MRELEASE {forks_of}")), "[0, 0]");
                    }
                }
                longest
            })
        };
        let all: Vec<_> = (0..PHILOSOPHERS).map(dine).collect();
        all.into_iter().map(|one| one.join().unwrap()).max().unwrap()
    });
    let mut a = server.client();
    until("every lock is free", || a.call("EXISTS f0 f1 f2 f3 f4") == "0");
    assert_eq!(
        (a.info("lock", "lock_deadlocks"), a.info("lock", "lock_waiters")),
        ("0".to_owned(), "0".to_owned())
    );
    assert_eq!(a.info("lock", "lock_table_bundles"), "0");
    eprintln!("the longest wait was {longest:?}");
    server.assert_healthy();
}

/// Workers lock two accounts, read both and then write both. The environment variable `TRANSFERS` sets the number of
/// transfers.
fn transfers_lose_no_money(flavor: Flavor) {
    const ACCOUNTS: usize = 100;
    const WORKERS: usize = 50;
    const EACH: i64 = 1_000;
    let transfers = std::env::var("TRANSFERS").map_or(3_000, |transfers| transfers.parse().unwrap());
    let mut server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    for account in 0..ACCOUNTS {
        a.call(&format!("SET money:{account} {EACH}"));
    }
    let server_of = &server;
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(u64::try_from(worker).unwrap());
                let mut client = server_of.client();
                for _ in 0..transfers / WORKERS {
                    let from = random.random_range(0..ACCOUNTS);
                    let to = (from + random.random_range(1..ACCOUNTS)) % ACCOUNTS;
                    let locks = format!("2 account:{from} account:{to} w{worker}");
                    assert_eq!(client.call(&format!("LOCK.MACQUIRE {locks} BLOCK 0")), "[1, 1]");
                    let amount = random.random_range(1..50);
                    let [rich, poor] =
                        [from, to].map(|account| client.number(&format!("GET money:{account}")));
                    if rich >= amount {
                        client.call(&format!("SET money:{from} {}", rich - amount));
                        client.call(&format!("SET money:{to} {}", poor + amount));
                    }
                    assert_eq!(client.call(&format!("LOCK.MRELEASE {locks}")), "[0, 0]");
                }
            });
        }
    });
    let sum: i64 = (0..ACCOUNTS).map(|account| a.number(&format!("GET money:{account}"))).sum();
    assert_eq!(sum, i64::try_from(ACCOUNTS).unwrap() * EACH);
    assert_eq!(
        (a.info("lock", "lock_deadlocks"), a.info("lock", "lock_waiters")),
        ("0".to_owned(), "0".to_owned())
    );
    server.assert_healthy();
}

/// A writer waits between a limited reader and a call for several locks of other readers.
fn an_indirect_blocker_overtakes_too(flavor: Flavor) {
    for limit in ["", " LIMIT 3"] {
        in_world(flavor, |world| {
            let mut a = world.client();
            assert_eq!(a.call("LOCK.ACQUIRE b t PX 600000"), "1");
            let mut two = world.waiting("LOCK.MACQUIRE 2 b g m SHARED BLOCK 0");
            let mut alone = world.waiting("LOCK.ACQUIRE g w BLOCK 0");
            let mut reader = world.client();
            reader.send(&format!("LOCK.ACQUIRE g t SHARED{limit} BLOCK 0"));
            assert_eq!(
                alone.recv(),
                "1",
                "the writer overtakes the call for several locks, which waits for the reader's owner"
            );
            assert_eq!(a.call("LOCK.RELEASE g w"), "0");
            assert_eq!(reader.recv(), "1");
            assert_eq!(a.call("LOCK.MRELEASE 2 b g t"), "[0, 0]");
            assert_eq!(two.recv(), "[1, 1]");
            a.call("LOCK.MRELEASE 2 b g m");
        });
    }
}

/// The cycle of waits forms after the waits began: the overtaking owner loses a hold, or gets one by a foreign write.
fn a_later_blocker_overtakes_too(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE b o PX 600000"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE a o SHARED PX 600000"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE a z SHARED PX 600000"), "1");
        let mut two = world.waiting("LOCK.MACQUIRE 2 a b m BLOCK 0");
        let mut upgrade = world.waiting("LOCK.ACQUIRE a o BLOCK 0");
        assert_eq!(a.call("LOCK.RELEASE a o SHARED"), "0");
        assert_eq!(a.call("LOCK.RELEASE a z"), "0");
        assert_eq!(upgrade.recv(), "1");
        assert_eq!(a.call("LOCK.MRELEASE 2 a b o"), "[0, 0]");
        assert_eq!(two.recv(), "[1, 1]");
        assert_eq!(a.call("LOCK.MRELEASE 2 a b m"), "[0, 0]");
        // M waits for c, and T behind M for d. Then a foreign write gives c to T.
        assert_eq!(a.call("LOCK.ACQUIRE c x PX 600000"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE d z PX 600000"), "1");
        let mut two = world.waiting("LOCK.MACQUIRE 2 c d m BLOCK 0");
        let mut behind = world.waiting("LOCK.ACQUIRE d t BLOCK 0");
        a.call("MULTI");
        a.call("HDEL c x");
        a.call("HSET c t 1");
        a.call("PEXPIRE c 600000");
        a.call("EXEC");
        assert_eq!(a.call("LOCK.RELEASE d z"), "0");
        assert_eq!(behind.recv(), "1");
        assert_eq!(a.call("LOCK.MRELEASE 2 c d t"), "[0, 0]");
        assert_eq!(two.recv(), "[1, 1]");
    });
}

fn a_temporary_deadlock_hides_no_other(flavor: Flavor) {
    in_world_with(flavor, &["--lock.deadlock-detection", "no"], |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.MACQUIRE 2 a c t PX 600000"), "[1, 1]");
        assert_eq!(a.call("LOCK.ACQUIRE b q PX 600000"), "1");
        let mut two = world.waiting("LOCK.MACQUIRE 2 a b m BLOCK 0");
        let mut gives_up = world.waiting("LOCK.ACQUIRE c q BLOCK 300");
        let mut behind = world.waiting("LOCK.ACQUIRE b t BLOCK 0");
        assert_eq!(gives_up.recv(), "nil");
        assert_eq!(a.call("LOCK.RELEASE b q"), "0");
        assert_eq!(behind.recv(), "1");
        assert_eq!(a.call("LOCK.MRELEASE 3 a b c t"), "[0, 0, 0]");
        assert_eq!(two.recv(), "[1, 1]");
    });
}

/// A retry with other options frees its former position in every queue.
fn a_changed_retry_unblocks_others(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let ended = |client: &mut Client| assert_eq!(prefix(&client.recv()), "UNBLOCKED");
        // The retry itself can be granted.
        a.call("LOCK.ACQUIRE a m SHARED PX 600000");
        a.call("LOCK.ACQUIRE b z SHARED PX 600000");
        let mut first = world.waiting("LOCK.MACQUIRE 2 a b m BLOCK 0 ID i");
        let mut second = world.client();
        second.send("LOCK.MACQUIRE 2 a b m BLOCK 0 ID i SHARED");
        ended(&mut first);
        assert_eq!(second.recv(), "[2, 1]");
        // A waiter behind it can be granted.
        a.call("LOCK.ACQUIRE c z PX 600000");
        let mut first = world.waiting("LOCK.MACQUIRE 2 c d m BLOCK 0 ID i");
        let mut reader = world.waiting("LOCK.ACQUIRE d r SHARED BLOCK 0");
        second.send("LOCK.MACQUIRE 2 c d m BLOCK 0 ID i SHARED");
        ended(&mut first);
        assert_eq!(reader.recv(), "1");
        second.close();
        // The retry is granted at once, together with others.
        let mut second = world.client();
        assert_eq!(a.call("LOCK.MACQUIRE 2 e f m SHARED PX 600000"), "[1, 1]");
        a.call("LOCK.ACQUIRE e z SHARED PX 600000");
        let mut first = world.waiting("LOCK.MACQUIRE 2 e f m BLOCK 0 ID j");
        let mut readers =
            ["e", "f"].map(|key| world.waiting(&format!("LOCK.ACQUIRE {key} r SHARED BLOCK 0")));
        second.send("LOCK.MACQUIRE 2 e f m BLOCK 0 ID j SHARED");
        ended(&mut first);
        assert_eq!(second.recv(), "[2, 2]");
        assert_eq!(readers.each_mut().map(Client::recv), ["1", "1"]);
        // A retry with a further lock joins the end of that lock's queue.
        a.call("LOCK.ACQUIRE g z PX 600000");
        let mut first = world.waiting("LOCK.MACQUIRE 2 g h m BLOCK 0 ID k");
        let mut next = world.waiting("LOCK.ACQUIRE h n BLOCK 0");
        second.send("LOCK.MACQUIRE 3 i g h m BLOCK 0 ID k");
        ended(&mut first);
        assert_eq!(next.recv(), "1");
    });
}

/// The release and the acquire may come in any order.
fn a_handed_over_lock_is_not_announced(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let (mut a, mut subscriber) = (server.client(), server.client());
    assert!(subscriber.call("PSUBSCRIBE redisson_lock__channel:*").starts_with("[psubscribe"));
    for (held, waited) in [("a b", "a b"), ("b a", "a b"), ("a b", "b a"), ("b a", "b a")] {
        assert_eq!(a.call("LOCK.MACQUIRE 2 a b m"), "[1, 1]");
        let mut next = server.waiting(&format!("LOCK.MACQUIRE 2 {waited} w BLOCK 0"));
        assert_eq!(a.call(&format!("LOCK.MRELEASE 2 {held} m")), "[0, 0]");
        assert_eq!(next.recv(), "[1, 1]");
        assert!(subscriber.has_nothing(), "released {held}, acquired {waited}");
        a.call("LOCK.BREAK a");
        a.call("LOCK.BREAK b");
        for _ in 0..2 {
            assert!(subscriber.recv().starts_with("[pmessage"), "both locks are free now");
        }
    }
    // One of the locks stays free, as another one is not released.
    assert_eq!(a.call("LOCK.MACQUIRE 3 a b c m"), "[1, 1, 1]");
    let two = server.waiting("LOCK.MACQUIRE 3 a b c w BLOCK 0");
    assert_eq!(a.call("LOCK.MRELEASE 2 b a m"), "[0, 0]");
    let mut messages = [subscriber.recv(), subscriber.recv()];
    messages.sort();
    assert!(messages[0].contains("{a}") && messages[1].contains("{b}"), "{messages:?}");
    two.close();
    server.assert_healthy();
}

/// All keys change or, with an error, none, even if the last lease expires between its check and its change.
fn an_expiring_lease_leaves_no_partial_call(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    let many = (0..63).map(|key| format!("k{key}")).collect::<Vec<_>>().join(" ");
    for at in 0..300_i64 {
        let (call, changed, before) = if at % 2 == 0 {
            (format!("LOCK.MRELEASE 64 {many} last a"), "EXISTS k0 k62", "2")
        } else {
            (format!("LOCK.MRENEW 64 {many} last a PX 30000"), "PEXPIRETIME k0", "")
        };
        assert!(a.call(&format!("LOCK.MACQUIRE 63 {many} a PX 60000")).starts_with("[1"));
        assert_eq!(a.call("LOCK.ACQUIRE last a SHARED PX 3"), "1");
        let before = if before.is_empty() { a.call(changed) } else { before.to_owned() };
        let end: i64 = a.call("PEXPIRETIME last").parse().unwrap();
        // The call arrives at the lease's expiry, or up to 300 µs before.
        let due_us = end * 1000 - at % 60 * 5;
        while i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
            < due_us
        {
            std::hint::spin_loop();
        }
        if a.call(&call).starts_with("NOTOWNER") {
            assert_eq!(a.call(changed), before, "a part of {}", &call[..13]);
        }
        assert_eq!(a.call("FLUSHALL"), "OK");
    }
}
