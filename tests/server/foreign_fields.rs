// SPDX-License-Identifier: MIT

//! Foreign writes to single fields of a lock: deletions and field TTLs (invariants 2, 3).

use std::time::{Duration, Instant};

use crate::support::server::unload_module;
use crate::support::{in_world, until, Client, Flavor, Server, World};

crate::on_every_server!(
    deleting_the_owner_field_frees_a_fenced_lock,
    a_token_field_alone_is_no_lock,
    many_deleted_owner_fields_are_noticed,
    an_expired_owner_field_frees_the_lock,
    a_renewal_removes_field_ttls,
    field_ttls_from_any_source_are_noticed,
);

/// The field of the token stays, so the hash still exists, and no event reports a deleted key.
fn deleting_the_owner_field_frees_a_fenced_lock(flavor: Flavor) {
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
        // The grant follows at once, without waiting for a lease or another event.
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

/// Lets `a` hold lock `k` with two waiters. Asserts that `free` grants the lock to the first waiter only.
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

fn a_token_field_alone_is_no_lock(flavor: Flavor) {
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
        // The first call that notices the free lock announces it once to external clients, and deletes the key.
        for notice in ["LOCK.RELEASE k a", "LOCK.RENEW k a", "LOCK.BREAK k"] {
            leave_token(&mut a);
            let reply = a.call(notice);
            assert!(reply.starts_with("NOTOWNER ") || reply == "0", "{notice}: {reply}");
            assert!(redisson.recv().ends_with("{k}, 0]"));
            assert_eq!(a.call("EXISTS k"), "0");
        }
        // Tokens keep growing, as the counter stays.
        let token =
            |reply: String| reply.rsplit_once("token, ").unwrap().1.trim_matches(']').parse::<i64>().unwrap();
        let first = token(a.call("LOCK.ACQUIRE k a FENCE"));
        a.call("HDEL k a");
        assert!(token(a.call("LOCK.ACQUIRE k b FENCE")) > first);
        assert!(a.call("LOCK.INFO k").contains("[owner, b, "));
        // A hash without a TTL was never a lock.
        a.call("DEL k");
        assert!(redisson.recv().ends_with("{k}, 0]"));
        a.call("HSET k #fence 7");
        assert!(a.call("LOCK.ACQUIRE k a").starts_with("WRONGTYPE "));
        a.call("DEL k");
    });
}

/// Uses more locks than one batch of checks covers.
fn many_deleted_owner_fields_are_noticed(flavor: Flavor) {
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
    // Without waiters, no check is scheduled and the module can be unloaded.
    drop(waiters);
    unload_module(&mut a);
}

/// Whether the server supports TTLs of hash fields.
fn has_field_ttls(flavor: Flavor) -> bool {
    matches!(flavor, Flavor::Redis8 | Flavor::Redis8_6 | Flavor::Valkey9)
}

fn an_expired_owner_field_frees_the_lock(flavor: Flavor) {
    if !has_field_ttls(flavor) {
        return;
    }
    in_world(flavor, |world| {
        let mut a = world.client();
        // Prevents the server from expiring fields on its own.
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
            // Other calls must not cancel the check at the field's expiry.
            assert_eq!(a.call("LOCK.ACQUIRE k c"), "nil");
            assert!(a.call("LOCK.RENEW k c").starts_with("NOTOWNER "));
            assert_eq!(b.recv(), "1", "after {acquire:?}");
            assert_eq!(a.call("LOCK.INFO k").matches("owner").count(), 1);
            assert_eq!(a.call("LOCK.RELEASE k b"), "0");
            // Without a waiter, the lock is free for the next call.
            acquire.iter().for_each(|command| assert_ne!(a.call(command), "nil"));
            a.call("HPEXPIRE k 1 FIELDS 3 a #fence #shared:a");
            until("the lock is free", || a.call("LOCK.INFO k") == "nil");
            assert_eq!(a.call("LOCK.ACQUIRE k b"), "1");
            assert_eq!(a.call("HGETALL k"), "[b, 1]");
            a.call("DEL k");
        }
        // The TTL is on the field of one of two readers.
        a.call("LOCK.ACQUIRE k r SHARED PX 300");
        a.call("LOCK.ACQUIRE k a SHARED PX 100000");
        assert_eq!(a.call("HPEXPIRE k 200 FIELDS 1 #shared:a"), "[1]");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        assert_eq!(b.recv(), "1");
        a.call("DEL k");
        // The waiter is already there when the TTL is set.
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

/// A hold lasts as long as promised to its owner, even if a foreign write has given its field a TTL.
fn a_renewal_removes_field_ttls(flavor: Flavor) {
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
            let mut assert_no_ttls = |why: &str| {
                for field in fields {
                    let ttl = format!("HPTTL k FIELDS 1 {field}");
                    assert_eq!(world.client().call(&ttl), "[-1]", "{why}, of {acquire}, {field}");
                    until("the replica has it", || replica.call(&ttl) == "[-1]");
                }
            };
            let set_ttls = |a: &mut Client, ms: i64| {
                for field in fields {
                    assert_eq!(a.call(&format!("HPEXPIRE k {ms} FIELDS 1 {field}")), "[1]");
                }
            };
            set_ttls(&mut a, 90_000);
            assert_eq!(a.call("LOCK.RENEW k a PX 90000"), "1");
            assert_no_ttls("LOCK.RENEW");
            set_ttls(&mut a, 90_000);
            assert_ne!(a.call(acquire), "nil");
            assert_no_ttls("LOCK.ACQUIRE");
            // The server renews the lease on its own.
            assert_eq!(a.call("LOCK.RENEW k a PX 600 WATCHDOG"), "2");
            set_ttls(&mut a, 60_000);
            until("the lease is renewed", || a.call(&format!("HPTTL k FIELDS 1 {}", fields[0])) == "[-1]");
            assert_no_ttls("a watchdog");
            a.call("DEL k");
        }
    });
}

/// A key can get field TTLs from a dump, a file, a script or a transaction.
fn field_ttls_from_any_source_are_noticed(flavor: Flavor) {
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
    // The module has already checked these keys for field TTLs.
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
    // The other server has seen no command that sets a TTL.
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
