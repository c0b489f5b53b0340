// SPDX-License-Identifier: MIT

//! When the lock is freed, by any client or by its lease, the first waiter gets it in the same step (invariants 2, 3).

use redis::Value;

use crate::support::{in_world, in_world_with, show, until, Client, Flavor, World};

crate::on_every_server!(
    a_release_hands_over,
    a_break_hands_over,
    lease_expiry_hands_over,
    a_foreign_delete_hands_over,
    rename_and_move_hand_over,
    move_and_copy_keep_the_selected_database,
    a_flush_hands_over,
    swapdb_hands_over,
    expiry_in_the_past_hands_over,
    eviction_hands_over,
    a_redisson_release_hands_over,
    a_foreign_pexpire_hands_over,
    scripts_and_transactions_hand_over,
    lazy_expiry_hands_over,
    a_renewed_lease_frees_nothing,
    huge_ttls_keep_the_server_idle,
    a_reload_frees_nothing,
    a_replacing_lock_is_respected,
    a_non_lock_ends_all_waits,
    an_overwrite_is_noticed_at_lease_end,
    lease_expiry_among_20000_keys_hands_over,
    a_cached_hold_is_checked_against_the_key,
    a_newcomer_notices_an_overwritten_lock,
);

/// A newcomer skips reading the key if another newcomer has just read it. Overwrites without a keyspace event are still
/// noticed soon.
fn a_newcomer_notices_an_overwritten_lock(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        assert_eq!(a.call("SET k v"), "OK");
        until("a newcomer notices", || a.call("LOCK.ACQUIRE k c BLOCK 1").starts_with("WRONGTYPE"));
        assert!(b.recv().starts_with("WRONGTYPE"));
        assert_eq!(a.call("DEL k"), "1");
        until("the lock table is empty", || a.info("lock", "lock_table_locks") == "0");
    });
}

/// The hold of a handed-over lock is cached until the lock is free. But the key is authoritative.
fn a_cached_hold_is_checked_against_the_key(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for (foreign, call, reply) in [
            ("PING", "LOCK.RELEASE k b", "0"),
            ("PING", "LOCK.ACQUIRE k c", "nil"),
            ("HINCRBY k b 1", "LOCK.RELEASE k b", "1"),
            ("HINCRBY k b 1", "LOCK.ACQUIRE k b", "3"),
            ("PERSIST k", "LOCK.ACQUIRE k c", "WRONGTYPE"),
            ("HSET k c 1", "LOCK.ACQUIRE k c", "WRONGTYPE"),
            ("SET k c", "LOCK.RELEASE k b", "WRONGTYPE"),
            ("PEXPIRE k -1", "LOCK.ACQUIRE k c", "1"),
            ("DEL k", "LOCK.RELEASE k b", "NOTOWNER"),
            ("RENAME k l", "LOCK.ACQUIRE k c", "1"),
        ] {
            assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 100000");
            assert_eq!(a.call("LOCK.RELEASE k a"), "0");
            assert_eq!(b.recv(), "1");
            assert_eq!(a.info("lock", "lock_table_locks"), "1", "before {foreign}");
            a.call(foreign);
            assert_eq!(a.call(call).split(' ').next(), Some(reply), "{call} after {foreign}");
            a.call("DEL k l");
            until("the lock table is empty", || a.info("lock", "lock_table_locks") == "0");
        }
    });
}

/// Lets `a` hold lock `k` with two waiters. Asserts that `free` grants the lock to the first waiter only. The second gets it
/// when the first releases it.
fn hands_over(world: &World, free: impl FnOnce(&mut Client)) {
    hands_over_after(world, "LOCK.ACQUIRE k a PX 100000", free);
}

fn hands_over_after(world: &World, acquire: &str, free: impl FnOnce(&mut Client)) {
    let mut a = world.client();
    a.call("DEL k");
    assert_eq!(a.call(acquire), "1");
    let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 50000");
    let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0 PX 60000");
    free(&mut a);
    assert_eq!(b.recv(), "1");
    let mut fresh = world.client();
    assert_eq!(fresh.call("HGETALL k"), "[b, 1]");
    assert!((45_000..=50_000).contains(&fresh.number("PTTL k")));
    assert!(c.has_nothing());
    assert_eq!(fresh.call("LOCK.RELEASE k a").split(' ').next(), Some("NOTOWNER"));
    assert_eq!(b.call("LOCK.RELEASE k b"), "0");
    assert_eq!(c.recv(), "1");
    assert_eq!(fresh.call("LOCK.WAITERS k"), "[]");
    fresh.call("DEL k");
}

fn a_release_hands_over(flavor: Flavor) {
    in_world(flavor, |world| {
        hands_over(world, |a| assert_eq!(a.call("LOCK.RELEASE k a"), "0"));
        hands_over(world, |a| {
            a.call("LOCK.ACQUIRE k a");
            assert_eq!(a.call("LOCK.RELEASE k a ALL PX 5"), "0");
        });
    });
}

fn a_break_hands_over(flavor: Flavor) {
    in_world(flavor, |world| hands_over(world, |a| assert_eq!(a.call("LOCK.BREAK k"), "1")));
}

fn lease_expiry_hands_over(flavor: Flavor) {
    in_world(flavor, |world| hands_over_after(world, "LOCK.ACQUIRE k a PX 200", |_| {}));
}

fn a_foreign_delete_hands_over(flavor: Flavor) {
    in_world(flavor, |world| {
        hands_over(world, |a| assert_eq!(a.call("DEL k"), "1"));
        hands_over(world, |a| assert_eq!(a.call("UNLINK k"), "1"));
        hands_over(world, |a| assert_eq!(a.call("HDEL k a"), "1"));
        hands_over(world, |a| {
            a.send_at_once(&["MULTI", "DEL k", "PING", "EXEC"]);
            assert_eq!([a.recv(), a.recv(), a.recv(), a.recv()], ["OK", "QUEUED", "QUEUED", "[1, PONG]"]);
        });
        hands_over(world, |a| {
            assert_eq!(a.call_args(&[b"EVAL", b"return redis.call('DEL', KEYS[1])", b"1", b"k"]), "1");
        });
    });
}

fn rename_and_move_hand_over(flavor: Flavor) {
    in_world(flavor, |world| {
        hands_over(world, |a| assert_eq!(a.call("RENAME k elsewhere"), "OK"));
        hands_over(world, |a| assert_eq!(a.call("MOVE k 5"), "1"));
        let mut client = world.client();
        assert_eq!(
            client.call("HGETALL elsewhere"),
            "[a, 1]",
            "a renamed lock is still held under its new name"
        );
        // Under the new name, the lock works as usual: a release hands it to a waiter.
        let mut d = world.waiting("LOCK.ACQUIRE elsewhere d BLOCK 0");
        assert_eq!(client.call("LOCK.RELEASE elsewhere a"), "0");
        assert_eq!(d.recv(), "1");
    });
}

/// The keyspace hook must not change the selected database of a client, as Valkey 8.1 would allow.
fn move_and_copy_keep_the_selected_database(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for lock_too in [false, true] {
            a.call("SELECT 2");
            a.call("SET moved x");
            a.call("SET copied x");
            if lock_too {
                a.call("LOCK.ACQUIRE k a");
                let mut b = world.client();
                b.send_at_once(&["SELECT 2", "LOCK.ACQUIRE k b BLOCK 0"]);
                assert_eq!(b.recv(), "OK");
                world.until_blocked(&b);
                assert_eq!(a.call("MOVE k 3"), "1");
                assert_eq!(b.recv(), "1");
            }
            assert_eq!(a.call("MOVE moved 3"), "1");
            assert!(a.call("CLIENT INFO").contains(" db=2 "), "MOVE changed the client's database");
            assert_eq!(a.call("COPY copied copied DB 4 REPLACE"), "1");
            assert!(a.call("CLIENT INFO").contains(" db=2 "), "COPY changed the client's database");
            a.send_at_once(&["MULTI", "COPY copied again DB 4 REPLACE", "SET here x", "EXEC"]);
            assert_eq!([a.recv(), a.recv(), a.recv(), a.recv()], ["OK", "QUEUED", "QUEUED", "[1, OK]"]);
            assert!(a.call("CLIENT INFO").contains(" db=2 "));
            a.call("FLUSHALL");
        }
        // A COPY without effect must not influence later commands.
        a.call("SELECT 0");
        a.call("SET copied x");
        assert_eq!(a.call("COPY copied copied DB 2 REPLACE"), "1");
        assert_eq!(a.call("COPY copied copied DB 2"), "0");
        a.call("SELECT 5");
        a.call("SET copied x");
        assert_eq!(a.call("COPY copied here"), "1");
        assert!(a.call("CLIENT INFO").contains(" db=5 "));
        a.call("SET moved x");
        a.call("SET copied x");
        a.call("MOVE moved 3");
        a.call("COPY copied copied DB 4");
    });
}

fn a_flush_hands_over(flavor: Flavor) {
    in_world(flavor, |world| {
        for flush in ["FLUSHALL", "FLUSHALL ASYNC", "FLUSHDB", "FLUSHDB SYNC"] {
            hands_over(world, |a| assert_eq!(a.call(flush), "OK"));
        }
        // A flush of another database frees nothing here.
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        let mut other = world.client();
        other.call("SELECT 2");
        other.call("FLUSHDB");
        assert_eq!(a.call("HGETALL k"), "[a, 1]");
        assert!(b.has_nothing());
        other.call("FLUSHALL");
        assert_eq!(b.recv(), "1");
    });
}

fn swapdb_hands_over(flavor: Flavor) {
    in_world(flavor, |world| {
        hands_over(world, |a| assert_eq!(a.call("SWAPDB 0 7"), "OK"));
        let mut a = world.client();
        a.call("FLUSHALL");
        a.call("LOCK.ACQUIRE k a");
        let mut there = world.client();
        there.call("SELECT 7");
        there.call("LOCK.ACQUIRE k there PX 100000");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        // After the swap another owner holds the lock, so `b` still waits.
        a.call("SWAPDB 0 7");
        assert_eq!(a.call("HGETALL k"), "[there, 1]");
        assert_eq!(a.call("LOCK.WAITERS k").matches("owner").count(), 1);
        assert_eq!(a.call("LOCK.RELEASE k there"), "0");
        assert_eq!(b.recv(), "1");
    });
}

fn expiry_in_the_past_hands_over(flavor: Flavor) {
    in_world(flavor, |world| {
        hands_over(world, |a| assert_eq!(a.call("PEXPIREAT k 1"), "1"));
        hands_over(world, |a| assert_eq!(a.call("EXPIRE k -1"), "1"));
    });
}

fn eviction_hands_over(flavor: Flavor) {
    in_world(flavor, |world| {
        hands_over(world, |a| {
            a.call("CONFIG SET maxmemory-policy volatile-ttl");
            // One pipeline, so that the lock is evicted once and not again after its handover. Only the lock can be evicted,
            // so the write is still refused.
            a.send_at_once(&["CONFIG SET maxmemory 1", "SET x y", "EXISTS k", "CONFIG SET maxmemory 0"]);
            assert_eq!(a.recv(), "OK");
            a.recv();
            assert_eq!([a.recv(), a.recv()], ["0", "OK"]);
            a.call("CONFIG SET maxmemory-policy noeviction");
        });
    });
}

/// Runs Redisson's script for a release, which is also that of a forced release.
fn a_redisson_release_hands_over(flavor: Flavor) {
    in_world(flavor, |world| {
        hands_over(world, |a| {
            let script = b"if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then return 0 end \
                redis.call('del', KEYS[1]); redis.call('publish', KEYS[2], '0'); return 1";
            let channel = b"redisson_lock__channel:{k}";
            assert_eq!(a.call_args(&[b"EVAL", script, b"2", b"k", channel, b"a"]), "1");
        });
    });
}

fn a_foreign_pexpire_hands_over(flavor: Flavor) {
    in_world(flavor, |world| hands_over(world, |a| assert_eq!(a.call("PEXPIRE k 100"), "1")));
}

fn scripts_and_transactions_hand_over(flavor: Flavor) {
    in_world(flavor, |world| {
        hands_over(world, |a| {
            let script = b"return redis.call('LOCK.RELEASE', KEYS[1], 'a')";
            assert_eq!(a.call_args(&[b"EVAL", script, b"1", b"k"]), "0");
        });
        hands_over(world, |a| {
            a.send_at_once(&["MULTI", "LOCK.RELEASE k a", "EXEC"]);
            assert_eq!([a.recv(), a.recv(), a.recv()], ["OK", "QUEUED", "[0]"]);
        });
    });
}

/// The server deletes an expired key late, unless a command touches it.
fn lazy_expiry_hands_over(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut client = world.client();
        client.call("DEBUG SET-ACTIVE-EXPIRE 0");
        hands_over_after(world, "LOCK.ACQUIRE k a PX 100", |_| {});
        for touch in
            ["GET k", "EXISTS k", "LOCK.INFO k", "LOCK.RELEASE k a", "LOCK.RENEW k a", "LOCK.BREAK k"]
        {
            hands_over_after(world, "LOCK.ACQUIRE k a PX 60", |a| {
                // The lease has expired and the key is touched before the module's timer can fire.
                a.send_at_once(&["DEBUG SLEEP 0.1", touch]);
                a.recv();
                a.recv();
            });
        }
        client.call("DEBUG SET-ACTIVE-EXPIRE 1");
    });
}

fn a_renewed_lease_frees_nothing(flavor: Flavor) {
    in_world(flavor, |world| {
        for renew in [
            "LOCK.RENEW k a PX 100000",
            "LOCK.ACQUIRE k a PX 100000",
            "PEXPIRE k 100000",
            "EXPIRE k 100",
            "PEXPIREAT k 99999999999999",
        ] {
            let mut a = world.client();
            a.call("LOCK.ACQUIRE k a PX 300");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 600");
            assert_ne!(a.call(renew), "0");
            assert_eq!(b.recv(), "nil", "{renew} did not prolong the lease");
            assert_eq!(a.call("HKEYS k"), "[a]");
            a.call("DEL k");
        }
    });
}

/// A foreign write can set any TTL, even one beyond the range of the server's timers.
fn huge_ttls_keep_the_server_idle(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let now: i64 = a.call("TIME").trim_matches(['[', ']']).split(", ").next().unwrap().parse().unwrap();
        let wraps = 18_446_744_073_709_551 - 60_000 + now * 1000;
        for at in [wraps, wraps - 100_000_000, 9_223_372_036_854_775, i64::MAX / 1000, i64::MAX] {
            a.call("LOCK.ACQUIRE k a");
            assert_eq!(a.call(&format!("PEXPIREAT k {at}")), "1");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 60");
            assert_eq!(b.recv(), "nil", "the server is busy, or the wait was lost");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 9007199254740991 PX 9007199254740991");
            // The counter of iterations grows fast if the event loop is busy. Otherwise it grows only by the cron and our calls.
            if flavor.counts_its_cycles() {
                let cycles = |a: &mut crate::support::Client| -> i64 {
                    a.info("stats", "eventloop_cycles").parse().unwrap()
                };
                let before = cycles(&mut a);
                assert_eq!(world.client().call("LOCK.ACQUIRE k c BLOCK 200"), "nil");
                assert!(cycles(&mut a) - before < 100, "the event loop never sleeps");
            }
            assert_eq!(a.call("LOCK.RELEASE k a"), "0");
            assert_eq!(b.recv(), "1");
            assert_eq!(a.call("LOCK.RELEASE k b"), "0");
        }
    });
}

fn a_reload_frees_nothing(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        assert_eq!(a.call("DEBUG RELOAD"), "OK");
        assert_eq!(a.call("HGETALL k"), "[a, 1]");
        // By now, the check that was scheduled by the flush of the reload has run.
        assert_eq!(a.call("LOCK.RENEW k a PX 100000"), "1");
        assert!(b.has_nothing());
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(b.recv(), "1");
    });
}

fn a_replacing_lock_is_respected(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        a.call("LOCK.ACQUIRE other o PX 100000");
        let dump = a.call_value("DUMP other");
        let Value::BulkString(dump) = dump else { panic!("no dump") };
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        for replace in ["RENAME other k", "COPY back k REPLACE"] {
            assert!(["OK", "1"].contains(&a.call(replace).as_str()));
            assert_eq!(a.call("HGETALL k"), "[o, 1]");
            assert!(b.has_nothing());
            a.call("COPY k back");
        }
        assert_eq!(a.call_args(&[b"RESTORE", b"k", b"100000", &dump, b"REPLACE"]), "OK");
        assert_eq!(a.call("LOCK.RELEASE k a").split(' ').next(), Some("NOTOWNER"));
        assert!(b.has_nothing());
        assert_eq!(a.call("LOCK.RELEASE k o"), "0");
        assert_eq!(b.recv(), "1");
    });
}

fn a_non_lock_ends_all_waits(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for replace in ["RENAME s k", "COPY s k REPLACE", "PERSIST k", "SET k x"] {
            a.call("DEL k");
            a.call("SET s x");
            a.call("LOCK.ACQUIRE k a PX 100000");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
            let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
            a.call(replace);
            if replace.starts_with("SET") {
                // Redis sends no event for this, so the first lock command that reads the key ends the waits.
                assert!(a.call("LOCK.RELEASE k a").starts_with("WRONGTYPE "));
            }
            for waiter in [&mut b, &mut c] {
                let reply = waiter.recv();
                assert!(reply.starts_with("WRONGTYPE "), "{replace}: {reply}");
            }
            assert_eq!(a.call("LOCK.WAITERS k"), "[]");
        }
    });
}

fn an_overwrite_is_noticed_at_lease_end(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 400");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        assert_eq!(a.call("SET k x"), "OK");
        assert!(b.recv().starts_with("WRONGTYPE "));
        assert_eq!(a.call("GET k"), "x");
    });
}

/// With this many keys the server's own expiry reaches a lock only after many seconds.
fn lease_expiry_among_20000_keys_hands_over(flavor: Flavor) {
    in_world_with(flavor, &["--repl-timeout", "600"], |world| {
        let mut a = world.client();
        let fill =
            b"for n = 1, 20000 do redis.call('SET', 'v' .. n, n, 'PX', ARGV[1] + n % 500) end return 'OK'";
        assert_eq!(a.call_args(&[b"EVAL", fill, b"0", b"300"]), "OK");
        let mut waiters = Vec::new();
        for n in 0..50 {
            a.call(&format!("LOCK.ACQUIRE k{n} a PX {}", 400 + n));
            let mut b = world.client();
            b.send(&format!("LOCK.ACQUIRE k{n} b BLOCK 0 PX 100000"));
            waiters.push(b);
        }
        for (n, waiter) in waiters.iter_mut().enumerate() {
            assert_eq!(waiter.recv(), "1");
            assert_eq!(a.call(&format!("HGETALL k{n}")), "[b, 1]");
        }
        until("the other keys are gone", || a.call("DBSIZE") == "50");
        let shown = show(&a.call_value("KEYS v*"));
        assert_eq!(shown, "[]");
    });
}
