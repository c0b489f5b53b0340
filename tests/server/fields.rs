// SPDX-License-Identifier: MIT

//! Foreign writes to single fields of a lock: they delete them, or give them a TTL of their own (2, 3).

use std::time::{Duration, Instant};

use crate::support::server::unload_module;
use crate::support::{in_world, until, Client, Flavor, Server, World};

crate::on_every_server!(
    by_deleting_the_owner_of_a_fenced_lock,
    a_token_without_its_owner_is_no_lock,
    many_fenced_locks_whose_owners_are_deleted,
    by_the_end_of_the_owners_field,
    to_renew_ends_what_ends_a_field,
    a_field_that_ends_is_known_wherever_it_comes_from,
);

/// The token stays behind, and so does the hash: no event says that the key is gone.
fn by_deleting_the_owner_of_a_fenced_lock(flavor: Flavor) {
    let fenced = "LOCK.ACQUIRE k a FENCE PX 100000";
    in_world(flavor, |world| {
        hands_over_fenced(world, fenced, |a| assert_eq!(a.call("HDEL k a"), "1"));
        hands_over_fenced(world, fenced, |a| {
            a.send_at_once(&["MULTI", "HDEL k a", "EXEC"]);
            assert_eq!([a.recv(), a.recv(), a.recv()], ["OK", "QUEUED", "[1]"]);
        });
        hands_over_fenced(world, fenced, |a| {
            a.call("LOCK.ACQUIRE k a SHARED");
            assert_eq!(a.call("HDEL k a #shared:a"), "2");
        });
        // It does not take a lease to end, nor anything else to happen.
        let quickest = (0..5).map(|_| {
            let mut a = world.client();
            a.call(fenced);
            let mut b = world.waiting("LOCK.ACQUIRE k b FENCE BLOCK 0");
            a.call("HDEL k a");
            let freed = Instant::now();
            assert!(b.recv().contains("token"));
            let took = freed.elapsed();
            a.call("DEL k");
            took
        });
        let quickest = quickest.min().unwrap();
        assert!(quickest < Duration::from_millis(10), "granted after {quickest:?} at best");
    });
}

/// A lock `k` of `a` with two waiters; `free` frees it, and the first of them must have it and nobody else.
fn hands_over_fenced(world: &World, acquire: &str, free: impl FnOnce(&mut Client)) {
    let mut a = world.client();
    a.call("DEL k");
    assert!(a.call(acquire).contains("token"));
    let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 50000");
    let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
    free(&mut a);
    assert_eq!(b.recv(), "1");
    assert_eq!(a.call("HGETALL k"), "[b, 1]");
    assert!((45_000..=50_000).contains(&a.number("PTTL k")));
    assert!(c.has_nothing());
    assert_eq!(b.call("LOCK.RELEASE k b"), "0");
    assert_eq!(c.recv(), "1");
    a.call("DEL k");
}

fn a_token_without_its_owner_is_no_lock(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut redisson = world.client();
        redisson.call("SUBSCRIBE redisson_lock__channel:{k}");
        let leave_token = |a: &mut Client| {
            assert!(a.call("LOCK.ACQUIRE k a FENCE PX 100000").contains("token"));
            assert_eq!(a.call("HDEL k a"), "1");
        };
        leave_token(&mut a);
        assert!(a.call("HGETALL k").starts_with("[#fence, "));
        assert_eq!(a.call("LOCK.INFO k"), "nil");
        assert_eq!(a.call("LOCK.ACQUIRE k b"), "1");
        assert_eq!(a.call("HGETALL k"), "[b, 1]");
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
        assert!(redisson.recv().ends_with("{k}, 0]"));
        // Who notices first that it is free, announces it to external clients, once. The lock is reconciled for their sake,
        // too, if it was announced before.
        for notice in ["LOCK.RELEASE k a", "LOCK.RENEW k a", "LOCK.BREAK k"] {
            leave_token(&mut a);
            let reply = a.call(notice);
            assert!(reply.starts_with("NOTOWNER ") || reply == "0", "{notice}: {reply}");
            assert!(redisson.recv().ends_with("{k}, 0]"));
            assert_eq!(a.call("EXISTS k"), "0");
        }
        // Tokens grow on, as the counter has stayed.
        let token =
            |reply: String| reply.rsplit_once("token, ").unwrap().1.trim_matches(']').parse::<i64>().unwrap();
        let first = token(a.call("LOCK.ACQUIRE k a FENCE"));
        a.call("HDEL k a");
        assert!(token(a.call("LOCK.ACQUIRE k b FENCE")) > first);
        assert!(a.call("LOCK.INFO k").contains("[owner, b, "));
        // What never expires was never a lock.
        a.call("DEL k");
        assert!(redisson.recv().ends_with("{k}, 0]"));
        a.call("HSET k #fence 7");
        assert!(a.call("LOCK.ACQUIRE k a").starts_with("WRONGTYPE "));
        a.call("DEL k");
    });
}

/// More than are looked at in one go.
fn many_fenced_locks_whose_owners_are_deleted(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    let mut waiters: Vec<Client> = (0..50)
        .map(|n| {
            assert!(a.call(&format!("LOCK.ACQUIRE k{n} a FENCE PX 100000")).contains("token"));
            server.waiting(&format!("LOCK.ACQUIRE k{n} b BLOCK 0"))
        })
        .collect();
    for n in (0..50).rev() {
        assert_eq!(a.call(&format!("HDEL k{n} a")), "1");
    }
    for waiter in &mut waiters {
        assert_eq!(waiter.recv(), "1");
    }
    // Nobody waits: nothing is looked at any more, and nothing keeps the module.
    drop(waiters);
    unload_module(&mut a);
}

/// Fields can have a TTL of their own there.
fn has_field_ttls(flavor: Flavor) -> bool {
    matches!(flavor, Flavor::Redis8 | Flavor::Redis8_6 | Flavor::Valkey9)
}

fn by_the_end_of_the_owners_field(flavor: Flavor) {
    if !has_field_ttls(flavor) {
        return;
    }
    in_world(flavor, |world| {
        let mut a = world.client();
        // The server looks for what has expired when it has the time. Here it never has.
        assert_eq!(a.call("DEBUG SET-ACTIVE-EXPIRE 0"), "OK");
        for acquire in [
            &["LOCK.ACQUIRE k a PX 100000"][..],
            &["LOCK.ACQUIRE k a FENCE PX 100000"],
            &["LOCK.ACQUIRE k a PX 100000", "LOCK.ACQUIRE k a SHARED PX 100000"],
            &["LOCK.ACQUIRE k a SHARED PX 100000"],
        ] {
            acquire.iter().for_each(|command| assert_ne!(a.call(command), "nil"));
            let fields = a.call("HKEYS k");
            let fields = fields.trim_matches(['[', ']']).split(", ").filter(|field| *field != "#fence");
            for field in fields {
                assert_eq!(a.call(&format!("HPEXPIRE k 200 FIELDS 1 {field}")), "[1]");
            }
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 50000");
            // Whatever happens meanwhile, the end is not forgotten.
            assert_eq!(a.call("LOCK.ACQUIRE k c"), "nil");
            assert!(a.call("LOCK.RENEW k c").starts_with("NOTOWNER "));
            assert_eq!(b.recv(), "1", "after {acquire:?}");
            assert_eq!(a.call("LOCK.INFO k").matches("owner").count(), 1);
            assert_eq!(a.call("LOCK.RELEASE k b"), "0");
            // And without a waiter it is free for the next.
            acquire.iter().for_each(|command| assert_ne!(a.call(command), "nil"));
            a.call("HPEXPIRE k 1 FIELDS 3 a #fence #shared:a");
            until("it is free", || a.call("LOCK.INFO k") == "nil");
            assert_eq!(a.call("LOCK.ACQUIRE k b"), "1");
            assert_eq!(a.call("HGETALL k"), "[b, 1]");
            a.call("DEL k");
        }
        // One of two readers.
        a.call("LOCK.ACQUIRE k r SHARED PX 300");
        a.call("LOCK.ACQUIRE k a SHARED PX 100000");
        assert_eq!(a.call("HPEXPIRE k 200 FIELDS 1 #shared:a"), "[1]");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        assert_eq!(b.recv(), "1");
        a.call("DEL k");
        // Somebody waits already when it is set.
        a.call("LOCK.ACQUIRE k a FENCE PX 100000");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        assert_eq!(a.call("HPEXPIRE k 200 FIELDS 1 a"), "[1]");
        assert_eq!(b.recv(), "1");
        a.call("DEL k");
        assert_eq!(a.call("DEBUG SET-ACTIVE-EXPIRE 1"), "OK");
        a.call("LOCK.ACQUIRE k a PX 100000");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        assert_eq!(a.call("HPEXPIRE k 200 FIELDS 1 a"), "[1]");
        assert_eq!(b.recv(), "1");
        a.call("DEL k");
    });
}

/// A hold lasts as long as its owner was promised, whatever TTL a foreign write gave its field before.
fn to_renew_ends_what_ends_a_field(flavor: Flavor) {
    if !has_field_ttls(flavor) {
        return;
    }
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut replica = world.replica.client();
        for (acquire, fields) in [
            ("LOCK.ACQUIRE k a PX 100000", &["a"][..]),
            ("LOCK.ACQUIRE k a FENCE PX 100000", &["a", "#fence"]),
            ("LOCK.ACQUIRE k a SHARED PX 100000", &["#shared:a"]),
        ] {
            a.call(acquire);
            let mut all_stay = |why: &str| {
                for field in fields {
                    let ttl = format!("HPTTL k FIELDS 1 {field}");
                    assert_eq!(world.client().call(&ttl), "[-1]", "{why}, of {acquire}, {field}");
                    until("the replica has it", || replica.call(&ttl) == "[-1]");
                }
            };
            let give = |a: &mut Client, ms: i64| {
                for field in fields {
                    assert_eq!(a.call(&format!("HPEXPIRE k {ms} FIELDS 1 {field}")), "[1]");
                }
            };
            give(&mut a, 90_000);
            assert_eq!(a.call("LOCK.RENEW k a PX 90000"), "1");
            all_stay("LOCK.RENEW");
            give(&mut a, 90_000);
            assert_ne!(a.call(acquire), "nil");
            all_stay("LOCK.ACQUIRE");
            // The server renews by itself.
            assert_eq!(a.call("LOCK.RENEW k a PX 600 WATCHDOG"), "2");
            give(&mut a, 60_000);
            until("it is renewed", || a.call(&format!("HPTTL k FIELDS 1 {}", fields[0])) == "[-1]");
            all_stay("a watchdog");
            a.call("DEL k");
        }
    });
}

/// A key can come with such a field: from a dump, from a file, from a script, in a transaction.
fn a_field_that_ends_is_known_wherever_it_comes_from(flavor: Flavor) {
    if !has_field_ttls(flavor) {
        return;
    }
    let file: &[&str] = &["--appendonly", "yes", "--aof-use-rdb-preamble", "yes"];
    let server = Server::with_module(flavor, file);
    let mut a = server.client();
    let renewed = |a: &mut Client, key: &str, why: &str| {
        assert_ne!(a.call(&format!("HPTTL {key} FIELDS 1 a")), "[-1]", "{why}");
        assert_eq!(a.call(&format!("LOCK.RENEW {key} a PX 90000")), "1");
        assert_eq!(a.call(&format!("HPTTL {key} FIELDS 1 a")), "[-1]", "{why}");
    };
    // It was asked before whether there is any.
    for key in ["dumped", "script", "queued", "filed"] {
        a.call(&format!("LOCK.ACQUIRE {key} a PX 90000"));
        a.call(&format!("LOCK.RENEW {key} a PX 90000"));
    }
    let script = b"return redis.call('HPEXPIRE', KEYS[1], 90000, 'FIELDS', 1, 'a')";
    a.call_args(&[b"EVAL", script, b"1", b"script"]);
    renewed(&mut a, "script", "set by a script");
    a.send_at_once(&["MULTI", "HEXPIRE queued 90 FIELDS 1 a", "EXEC"]);
    assert_eq!([a.recv(), a.recv(), a.recv()], ["OK", "QUEUED", "[[1]]"]);
    renewed(&mut a, "queued", "set in a transaction");
    a.call("HPEXPIRE dumped 90000 FIELDS 1 a");
    a.call("HPEXPIRE filed 90000 FIELDS 1 a");
    // Another server has seen no command.
    let dump = match a.call_value("DUMP dumped") {
        redis::Value::BulkString(dump) => dump,
        other => panic!("{other:?}"),
    };
    let other = Server::with_module(flavor, &[]);
    let mut b = other.client();
    b.call("LOCK.ACQUIRE k a");
    b.call("LOCK.RENEW k a");
    assert_eq!(b.call_args(&[b"RESTORE", b"dumped", b"90000", &dump]), "OK");
    std::thread::sleep(Duration::from_millis(150));
    renewed(&mut b, "dumped", "restored");
    a.call("BGREWRITEAOF");
    until("the file is written", || a.info("persistence", "aof_rewrite_in_progress") == "0");
    let again = Server::start_in(
        flavor,
        server.stop(),
        &[&["--loadmodule", crate::support::server::module().to_str().unwrap()], file].concat(),
    );
    let mut c = again.client();
    renewed(&mut c, "filed", "loaded");
}
