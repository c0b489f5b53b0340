// SPDX-License-Identifier: MIT

//! Holds that depend on a connection: `WATCHDOG` renews a hold while the connection is open, `EPHEMERAL` ends the hold
//! when the connection closes.

use crate::support::server::{load_module, module, unload_module};
use crate::support::{in_world, until, Client, Flavor, Server, World};

crate::on_every_server!(
    a_watchdog_renews_the_lease,
    a_watchdog_ends_with_its_connection,
    max_limits_a_watchdog,
    an_ephemeral_hold_ends_with_its_connection,
    a_close_ends_all_of_the_owners_holds,
    a_grant_binds_the_waiter,
    an_undelivered_grant_binds_nothing,
    a_renewal_moves_the_binding,
    a_late_retry_moves_no_binding,
    a_plain_renewal_moves_no_binding,
    each_connection_keeps_its_binding,
    a_late_retry_binds_no_later_hold,
    quit_ends_ephemeral_holds_at_once,
    the_latest_lease_is_renewed,
    another_owners_hold_is_untouched,
    a_later_hold_is_untouched,
    each_reader_has_its_own_binding,
    a_transaction_binds_its_client,
    scripts_cannot_bind,
    ten_thousand_watchdogs_share_a_timer,
    a_pause_delays_renewals_and_releases,
    a_reload_keeps_the_watchdog,
    demotion_and_promotion_keep_the_watchdog,
    another_primarys_grant_is_untouched,
    a_close_on_a_replica_keeps_foreign_holds,
    a_retry_elsewhere_moves_the_binding,
    renewals_replicate_as_plain_commands,
    closed_connections_leave_nothing,
);

fn end_of(client: &mut Client, key: &str) -> i64 {
    client.number(&format!("PEXPIRETIME {key}"))
}

/// Waits until the lease of the lock has been renewed without a call.
fn until_renewed(client: &mut Client, key: &str) {
    let end = end_of(client, key);
    assert!(end > 0, "{key} is not held");
    until("the lease is renewed", || end_of(client, key) > end);
}

/// Numbers of watchdogs and of ephemeral holds.
fn bound(world: &Server) -> (i64, i64) {
    let mut client = world.client();
    let mut number = |field| client.info("lock", field).parse().unwrap();
    (number("lock_watchdogs"), number("lock_ephemeral_holds"))
}

fn a_watchdog_renews_the_lease(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut watcher) = (world.client(), world.client());
        assert_eq!(a.call("LOCK.ACQUIRE k a WATCHDOG PX 300"), "1");
        let first = end_of(&mut watcher, "k");
        for _ in 0..5 {
            until_renewed(&mut watcher, "k");
        }
        // A watchdog renews after a third of the lease: five renewals take less than two leases.
        assert!(end_of(&mut watcher, "k") - first < 900, "renewed too rarely");
        assert_eq!(bound(world), (1, 0));
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(bound(world), (0, 0));
        assert_eq!(watcher.call("EXISTS k"), "0");
    });
}

fn a_watchdog_ends_with_its_connection(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut watcher) = (world.client(), world.client());
        a.call("LOCK.ACQUIRE k a WATCHDOG PX 400");
        a.call("LOCK.ACQUIRE k a");
        a.call("LOCK.RENEW k a PX 400");
        until_renewed(&mut watcher, "k");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 100000");
        a.close();
        until("the watchdog has ended", || bound(world) == (0, 0));
        // The client can reconnect within the rest of the lease.
        assert_eq!(watcher.call("HGETALL k"), "[a, 2]");
        assert_eq!(b.recv(), "1");
    });
}

fn max_limits_a_watchdog(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut watcher) = (world.client(), world.client());
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 300 WATCHDOG MAX 500"), "1");
        let end = end_of(&mut watcher, "k");
        // The connection stays open. The waiter gets the lock when the last lease has expired.
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 300 WATCHDOG");
        assert_eq!(b.recv(), "1");
        let held = b.number("PEXPIRETIME k") - end;
        assert!(
            (500..1000).contains(&held),
            "held for {held} ms, expected 500 ms and a last lease of 300 ms"
        );
        assert_eq!(bound(world), (1, 0));
        // Calls without MAX use `lock.max-watchdog`.
        assert_eq!(b.call("LOCK.RELEASE k b"), "0");
        assert_eq!(watcher.call("CONFIG SET lock.max-watchdog 1"), "OK");
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 60 WATCHDOG"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE l a PX 600 WATCHDOG MAX 100000"), "1");
        let first = end_of(&mut watcher, "l");
        until("the lease of k has expired", || watcher.call("EXISTS k") == "0");
        until("the lease of l is renewed", || end_of(&mut watcher, "l") > first + 100);
        // Repeating the call on another connection does not restart the time of MAX.
        let mut first = world.client();
        let call = "LOCK.ACQUIRE m m PX 300 WATCHDOG MAX 400 ID 1";
        assert_eq!(first.call(call), "1");
        let granted = end_of(&mut watcher, "m") - 300;
        let mut again = world.client();
        until_renewed(&mut watcher, "m");
        first.close();
        until("its watchdog has ended", || bound(world).0 == 1);
        assert_eq!(again.call(call), "1");
        let mut last = 0;
        until("the lease of m has expired", || {
            let end = end_of(&mut watcher, "m");
            last = last.max(end);
            end < 0
        });
        assert!(last - granted <= 400 + 300, "held for {} ms", last - granted);
        // A renewal restarts the time of MAX.
        assert_eq!(a.call("LOCK.RENEW l a PX 60 WATCHDOG MAX 1"), "1");
        until("the lease of l has expired", || watcher.call("EXISTS l") == "0");
        assert_eq!(bound(world), (0, 0));
        for (option, error) in [
            ("MAX 5", "ERR MAX needs WATCHDOG in"),
            ("EPHEMERAL MAX 5", "ERR MAX needs WATCHDOG in"),
            ("WATCHDOG MAX", "ERR MAX needs a value in"),
            ("WATCHDOG MAX 0", "ERR MAX is out of range in"),
            ("WATCHDOG MAX 5 MAX 6", "ERR MAX is given twice in"),
        ] {
            for command in ["ACQUIRE", "RENEW"] {
                let reply = a.call(&format!("LOCK.{command} k a {option}"));
                assert!(reply.starts_with(error), "{command} {option}: {reply}");
            }
        }
        assert_eq!(watcher.call("EXISTS k"), "0");
    });
}

fn an_ephemeral_hold_ends_with_its_connection(flavor: Flavor) {
    in_world(flavor, |world| {
        for end in ["close", "kill", "half"] {
            let mut a = world.client();
            assert_eq!(a.call("LOCK.ACQUIRE k a EPHEMERAL PX 100000"), "1");
            assert_eq!(a.call("LOCK.ACQUIRE free a EPHEMERAL PX 100000"), "1");
            assert_eq!(bound(world), (0, 2));
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
            match end {
                "close" => a.close(),
                "half" => a.close_half(),
                _ => {
                    world.client().call(&format!("CLIENT KILL ID {}", a.id));
                }
            }
            assert_eq!(b.recv(), "1", "{end}");
            until("the other lock is free", || b.call("EXISTS free") == "0");
            assert_eq!(b.call("LOCK.RELEASE k b"), "0");
            assert_eq!(bound(world), (0, 0));
        }
    });
}

fn a_close_ends_all_of_the_owners_holds(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut other) = (world.client(), world.client());
        a.call("LOCK.ACQUIRE k a");
        other.call("LOCK.ACQUIRE k a SHARED");
        a.call("LOCK.ACQUIRE k a EPHEMERAL");
        assert_eq!(other.call("LOCK.RENEW k a"), "3");
        a.close();
        until("the lock is free", || other.call("EXISTS k") == "0");
        assert!(other.call("LOCK.RELEASE k a").starts_with("NOTOWNER "));
    });
}

fn a_grant_binds_the_waiter(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let mut b = world.waiting("LOCK.ACQUIRE k b WATCHDOG EPHEMERAL PX 300 BLOCK 0");
        assert_eq!(bound(world), (0, 0));
        a.call("LOCK.RELEASE k a");
        assert_eq!(b.recv(), "1");
        until_renewed(&mut a, "k");
        assert_eq!(bound(world), (1, 1));
        b.close();
        until("the lock is free", || a.call("EXISTS k") == "0");
    });
}

fn an_undelivered_grant_binds_nothing(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let b = world.waiting("LOCK.ACQUIRE k b WATCHDOG EPHEMERAL BLOCK 0");
        a.send_at_once(&["LOCK.RELEASE k a", &format!("CLIENT KILL ID {}", b.id)]);
        assert_eq!([a.recv(), a.recv()], ["0", "1"]);
        until("the grant is revoked", || a.call("EXISTS k") == "0");
        assert_eq!(bound(world), (0, 0));
    });
}

fn a_renewal_moves_the_binding(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b, mut watcher) = (world.client(), world.client(), world.client());
        a.call("LOCK.ACQUIRE k o WATCHDOG EPHEMERAL PX 300");
        assert_eq!(b.call("LOCK.RENEW k o WATCHDOG EPHEMERAL PX 300"), "1");
        a.close();
        for _ in 0..4 {
            until_renewed(&mut watcher, "k");
        }
        assert_eq!(bound(world), (1, 1));
        // Either binding can move without the other.
        let mut c = world.client();
        assert_eq!(c.call("LOCK.RENEW k o WATCHDOG PX 30000"), "1");
        c.close();
        until("the watchdog has ended", || bound(world) == (0, 1));
        assert_eq!(b.call("LOCK.RENEW k o PX 100000"), "1");
        b.close();
        until("the lock is free", || watcher.call("EXISTS k") == "0");
    });
}

/// A proxy may deliver the first call long after the client got its reply on another connection.
fn a_late_retry_moves_no_binding(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b, mut late) = (world.client(), world.client(), world.client());
        let call = "LOCK.ACQUIRE k o PX 100000 WATCHDOG EPHEMERAL ID r";
        assert_eq!([a.call(call), b.call(call)], ["1", "1"]);
        assert_eq!(b.call("LOCK.RENEW k o PX 100000 WATCHDOG EPHEMERAL"), "1");
        a.close();
        assert_eq!(late.call(call), "1");
        let gone = late.id;
        late.close();
        let mut watcher = world.client();
        until("its connection is closed", || watcher.call(&format!("CLIENT LIST ID {gone}")).is_empty());
        assert_eq!((watcher.call("LOCK.RENEW k o PX 100000"), bound(world)), ("1".to_owned(), (1, 1)));
        b.close();
        until("the lock is free", || watcher.call("EXISTS k") == "0");
    });
}

fn a_plain_renewal_moves_no_binding(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), world.client());
        a.call("LOCK.ACQUIRE k o EPHEMERAL PX 100000");
        assert_eq!(b.call("LOCK.RENEW k o PX 90000"), "1");
        assert_eq!(b.call("LOCK.ACQUIRE k o"), "2");
        a.close();
        until("the lock is free", || b.call("EXISTS k") == "0");
    });
}

fn each_connection_keeps_its_binding(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b, mut watcher) = (world.client(), world.client(), world.client());
        assert_eq!(a.call("LOCK.ACQUIRE k o WATCHDOG PX 300"), "1");
        assert_eq!(b.call("LOCK.ACQUIRE k o WATCHDOG PX 300"), "2");
        b.close();
        (0..6).for_each(|_| until_renewed(&mut watcher, "k"));
        let (mut c, mut d) = (world.client(), world.client());
        assert_eq!(c.call("LOCK.ACQUIRE k o EPHEMERAL PX 300"), "3");
        assert_eq!(d.call("LOCK.ACQUIRE k o EPHEMERAL PX 300"), "4");
        c.close();
        until("one closed connection has ended all holds", || watcher.call("EXISTS k") == "0");
        assert_eq!(bound(world), (0, 0));
    });
}

fn a_late_retry_binds_no_later_hold(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut watcher = world.client();
        for (option, end) in [
            ("EPHEMERAL", "LOCK.RELEASE k o"),
            ("WATCHDOG", "LOCK.RELEASE k o"),
            ("EPHEMERAL WATCHDOG", "DEL k"),
        ] {
            let (mut a, mut b) = (world.client(), world.client());
            let call = format!("LOCK.ACQUIRE k o {option} ID r PX 300");
            assert_eq!(a.call(&call), "1");
            // With `WATCHDOG` alone, the first connection is closed before the repeated call.
            if option == "WATCHDOG" {
                a.close();
                until("nothing is renewed", || bound(world) == (0, 0));
            }
            watcher.call(end);
            assert_eq!(b.call("LOCK.ACQUIRE k o PX 100000"), "1");
            let before = end_of(&mut watcher, "k");
            assert_eq!(b.call(&call), "1");
            assert_eq!(bound(world), (0, 0), "{option}");
            b.close();
            watcher.call("PING");
            assert_eq!(watcher.call("HGETALL k"), "[o, 1]");
            assert_eq!(end_of(&mut watcher, "k"), before);
            watcher.call("FLUSHALL");
        }
    });
}

/// The server closes the connection at the end of its event loop iteration; the release must not wait for the next event.
fn quit_ends_ephemeral_holds_at_once(flavor: Flavor) {
    let server = Server::with_module(flavor, &["--hz", "1", "--dynamic-hz", "no"]);
    // Nearly all releases must come before the next run of the server's cron, which runs once a second.
    let quick = (0..10).filter(|_| {
        let mut a = server.client();
        a.call("LOCK.ACQUIRE k a EPHEMERAL PX 100000");
        let mut b = server.waiting("LOCK.ACQUIRE k b BLOCK 0");
        let began = std::time::Instant::now();
        a.send("QUIT");
        assert_eq!(b.recv(), "1");
        b.call("LOCK.RELEASE k b");
        began.elapsed() < std::time::Duration::from_millis(300)
    });
    assert!(quick.count() >= 8);
}

fn the_latest_lease_is_renewed(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut watcher) = (world.client(), world.client());
        a.call("LOCK.ACQUIRE k a WATCHDOG PX 90000");
        // A nested call with a short lease must not let the lease expire.
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 600"), "2");
        for _ in 0..3 {
            until_renewed(&mut watcher, "k");
        }
        assert_eq!(a.call("LOCK.RELEASE k a PX 450"), "1");
        for _ in 0..3 {
            until_renewed(&mut watcher, "k");
        }
        assert!(watcher.number("PTTL k") <= 450);
        // A lease that a foreign write prolonged is not shortened.
        assert_eq!(watcher.call("PEXPIRE k 500000"), "1");
        assert_eq!(watcher.call("HSET other x 1"), "1");
        let end = end_of(&mut watcher, "k");
        a.call("LOCK.ACQUIRE busy a WATCHDOG PX 300");
        for _ in 0..5 {
            until_renewed(&mut watcher, "busy");
        }
        assert_eq!(end_of(&mut watcher, "k"), end);
    });
}

fn another_owners_hold_is_untouched(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut watcher = world.client();
        let ends: [(&str, &[&str]); 5] = [
            ("release", &["LOCK.RELEASE k a"]),
            ("break", &["LOCK.BREAK k"]),
            ("a foreign write", &["DEL k"]),
            (
                "a foreign write that puts another there",
                &["MULTI", "DEL k", "HSET k z 1", "PEXPIRE k 100000", "EXEC"],
            ),
            ("a flush", &["FLUSHALL"]),
        ];
        for (how, commands) in ends {
            let mut a = world.client();
            a.call("LOCK.ACQUIRE k a WATCHDOG EPHEMERAL PX 300");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 100000");
            for command in commands {
                watcher.call(command);
            }
            if how.starts_with("a foreign write that") {
                until("the end of the hold is noticed", || bound(world) == (0, 0));
                assert!(b.has_nothing());
                watcher.call("LOCK.RELEASE k z");
            }
            assert_eq!(b.recv(), "1", "{how}");
            let end = end_of(&mut watcher, "k");
            assert_eq!(bound(world), (0, 0), "{how}");
            // Renewals of another lock show that enough time has passed.
            let mut c = world.client();
            c.call("LOCK.ACQUIRE clock c WATCHDOG PX 600");
            (0..2).for_each(|_| until_renewed(&mut watcher, "clock"));
            a.close();
            c.close();
            until("both are gone", || bound(world) == (0, 0));
            assert_eq!(watcher.call("HGETALL k"), "[b, 1]", "{how}");
            assert_eq!(end_of(&mut watcher, "k"), end, "{how}");
            watcher.call("FLUSHALL");
        }
    });
}

fn a_later_hold_is_untouched(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut b, mut watcher) = (world.client(), world.client());
        for end in
            ["LOCK.RELEASE k a", "LOCK.BREAK k", "DEL k", "PEXPIRE k 0", "RENAME k l", "lease", "script"]
        {
            let mut a = world.client();
            a.call("LOCK.ACQUIRE k a EPHEMERAL PX 30");
            if end == "lease" {
                until("the lease is over", || watcher.call("LOCK.INFO k") == "nil");
            } else {
                a.call("LOCK.RENEW k a WATCHDOG PX 200");
            }
            if end == "script" {
                // Releases and acquires in one script, as a Redisson client may.
                let script = "redis.call('DEL', 'k') redis.call('HSET', 'k', 'a', 1) redis.call('PEXPIRE', 'k', 100000)";
                watcher.call_args(&[b"EVAL", script.as_bytes(), b"0"]);
            } else {
                watcher.call(end);
                assert_eq!(b.call("LOCK.ACQUIRE k a PX 100000"), "1", "{end}");
            }
            assert_eq!(bound(world), (0, 0), "{end}");
            a.close();
            let end_before = end_of(&mut watcher, "k");
            until("the server has closed the connection", || {
                !watcher.call("CLIENT LIST").contains("cmd=lock.renew")
            });
            assert_eq!(watcher.call("HGETALL k"), "[a, 1]", "{end}");
            assert_eq!(end_of(&mut watcher, "k"), end_before, "{end}");
            watcher.call("FLUSHALL");
        }
    });
}

fn each_reader_has_its_own_binding(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b, mut c) = (world.client(), world.client(), world.client());
        a.call("LOCK.ACQUIRE k a SHARED WATCHDOG PX 200");
        b.call("LOCK.ACQUIRE k b SHARED EPHEMERAL PX 100000");
        c.call("LOCK.ACQUIRE k c SHARED PX 100000");
        let hold = |c: &mut Client| c.call("HGET k #shared:a");
        for _ in 0..4 {
            let before = hold(&mut c);
            until("its lease is renewed", || hold(&mut c) != before);
        }
        b.close();
        until("one reader has left", || c.call("HLEN k") == "2");
        a.close();
        until("the other's lease has ended", || !c.call("LOCK.INFO k").contains("[owner, a"));
        assert!(c.call("LOCK.INFO k").contains("[owner, c, mode, shared, holds, 1"));
    });
}

fn a_transaction_binds_its_client(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut watcher) = (world.client(), world.client());
        for command in ["MULTI", "LOCK.ACQUIRE k a WATCHDOG EPHEMERAL PX 200"] {
            a.call(command);
        }
        assert_eq!(a.call("EXEC"), "[1]");
        (0..4).for_each(|_| until_renewed(&mut watcher, "k"));
        a.close();
        until("the lock is free", || watcher.call("EXISTS k") == "0");
    });
}

fn scripts_cannot_bind(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE held a");
        for (command, option) in [
            ("'LOCK.ACQUIRE',KEYS[1],'a','WATCHDOG'", "WATCHDOG"),
            ("'LOCK.ACQUIRE',KEYS[1],'a','EPHEMERAL','BLOCK','0'", "EPHEMERAL"),
            ("'LOCK.RENEW','held','a','WATCHDOG'", "WATCHDOG"),
        ] {
            let script = format!("return redis.pcall({command})");
            let reply = a.call_args(&[b"EVAL", script.as_bytes(), b"1", b"k"]);
            let error = format!("ERR {option} needs a connection in 'lock.");
            assert!(reply.starts_with(&error), "{reply}");
        }
        assert_eq!(a.call("EXISTS k"), "0");
        assert_eq!(bound(world), (0, 0));
    });
}

fn ten_thousand_watchdogs_share_a_timer(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let (mut a, mut watcher) = (server.client(), server.client());
    for lock in 0..10_000 {
        a.send(&format!("LOCK.ACQUIRE k{lock} a WATCHDOG EPHEMERAL PX 3000"));
    }
    for _ in 0..10_000 {
        assert_eq!(a.recv(), "1");
    }
    assert_eq!(bound(&server), (10_000, 10_000));
    for lock in [0, 4_999, 9_999] {
        until_renewed(&mut watcher, &format!("k{lock}"));
    }
    a.close();
    until("all are released", || watcher.call("DBSIZE") == "0");
    assert_eq!(bound(&server), (0, 0));
    // Unloading proves that no timer is left, because a module with a timer cannot be unloaded.
    unload_module(&mut watcher);
}

fn a_pause_delays_renewals_and_releases(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b, mut watcher) = (world.client(), world.client(), world.client());
        a.call("LOCK.ACQUIRE watched a WATCHDOG PX 900");
        b.call("LOCK.ACQUIRE k b EPHEMERAL PX 100000");
        let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        until_renewed(&mut watcher, "watched");
        watcher.call("CLIENT PAUSE 100000 WRITE");
        let end = end_of(&mut watcher, "watched");
        b.close();
        until("a renewal is due", || watcher.number("PTTL watched") < 500);
        assert_eq!(end_of(&mut watcher, "watched"), end);
        assert_eq!(watcher.call("HGETALL k"), "[b, 1]");
        assert!(c.has_nothing());
        watcher.call("CLIENT UNPAUSE");
        assert_eq!(c.recv(), "1");
        until_renewed(&mut watcher, "watched");
        assert_eq!(a.call("LOCK.RELEASE watched a"), "0");
    });
}

fn a_reload_keeps_the_watchdog(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut watcher) = (world.client(), world.client());
        a.call("LOCK.ACQUIRE k a WATCHDOG EPHEMERAL PX 600");
        a.call("LOCK.ACQUIRE s a SHARED WATCHDOG EPHEMERAL PX 600");
        until_renewed(&mut watcher, "k");
        assert_eq!(watcher.call("DEBUG RELOAD"), "OK");
        for _ in 0..4 {
            until_renewed(&mut watcher, "k");
            until_renewed(&mut watcher, "s");
        }
        a.close();
        until("both are free", || watcher.call("DBSIZE") == "0");
    });
}

fn demotion_and_promotion_keep_the_watchdog(flavor: Flavor) {
    let World { primary, replica } = World::start(flavor, &[]);
    let (mut a, mut b, mut watcher) = (primary.client(), primary.client(), primary.client());
    a.call("LOCK.ACQUIRE k a WATCHDOG PX 2000");
    b.call("LOCK.ACQUIRE e b EPHEMERAL PX 100000");
    until_renewed(&mut watcher, "k");
    // The old primary synchronizes from its own replica, so its keys stay the same.
    let mut r = replica.client();
    until("the replica is in sync", || r.call("PEXPIRETIME k") == watcher.call("PEXPIRETIME k"));
    r.call("REPLICAOF NO ONE");
    watcher.call(&format!("REPLICAOF 127.0.0.1 {}", replica.port));
    until("the old primary is a replica", || watcher.info("replication", "master_link_status") == "up");
    assert_eq!(watcher.call("HGETALL k"), "[a, 1]");
    watcher.call("REPLICAOF NO ONE");
    for _ in 0..3 {
        until_renewed(&mut watcher, "k");
    }
    b.close();
    until("the ephemeral hold has ended", || watcher.call("EXISTS e") == "0");
    a.close();
    until("no binding is left", || bound(&primary) == (0, 0));
}

fn another_primarys_grant_is_untouched(flavor: Flavor) {
    let World { mut primary, replica } = World::start(flavor, &[]);
    let (mut a, mut watcher, mut r) = (primary.client(), primary.client(), replica.client());
    load_module(&mut r);
    a.call("LOCK.ACQUIRE k a WATCHDOG EPHEMERAL PX 100000");
    a.call("LOCK.ACQUIRE l a WATCHDOG EPHEMERAL PX 100000");
    until("the replica has both", || r.call("DBSIZE") == "2");
    r.call("REPLICAOF NO ONE");
    watcher.call(&format!("REPLICAOF 127.0.0.1 {}", replica.port));
    // On the new primary, over another connection, the owner releases and reacquires `k`, and renews `l`.
    assert_eq!(r.call("LOCK.RELEASE k a"), "0");
    assert_eq!(r.call("LOCK.ACQUIRE k a PX 200000"), "1");
    assert_eq!(r.call("LOCK.RENEW l a PX 200000"), "1");
    let ends = [end_of(&mut r, "k"), end_of(&mut r, "l")];
    until("the old primary has the new leases", || {
        [end_of(&mut watcher, "k"), end_of(&mut watcher, "l")] == ends
    });
    watcher.call("REPLICAOF NO ONE");
    until("the old bindings are gone", || bound(&primary) == (0, 0));
    a.close();
    watcher.call("LOCK.ACQUIRE other x");
    assert_eq!(watcher.call("HGETALL k"), "[a, 1]");
    assert_eq!(watcher.call("HGETALL l"), "[a, 1]");
    assert_eq!([end_of(&mut watcher, "k"), end_of(&mut watcher, "l")], ends);
    primary.assert_healthy();
}

fn a_close_on_a_replica_keeps_foreign_holds(flavor: Flavor) {
    let World { mut primary, replica } = World::start(flavor, &[]);
    let (mut a, mut watcher, mut r) = (primary.client(), primary.client(), replica.client());
    load_module(&mut r);
    a.call("LOCK.ACQUIRE k a EPHEMERAL PX 100000");
    a.call("LOCK.ACQUIRE untouched a EPHEMERAL PX 100000");
    until("the replica has both", || r.call("DBSIZE") == "2");
    r.call("REPLICAOF NO ONE");
    watcher.call(&format!("REPLICAOF 127.0.0.1 {}", replica.port));
    until("the old primary is in sync", || watcher.info("replication", "master_link_status") == "up");
    a.close();
    until("the server has closed the connection", || {
        !watcher.call("CLIENT LIST").contains("cmd=lock.acquire")
    });
    assert_eq!(r.call("LOCK.RENEW k a PX 200000"), "1");
    let end = end_of(&mut r, "k");
    until("the old primary has the new lease", || end_of(&mut watcher, "k") == end);
    assert_eq!(watcher.call("HGETALL untouched"), "[a, 1]");
    watcher.call("REPLICAOF NO ONE");
    // A hold that no other client has touched is released once the server is a primary again.
    until("the other is free", || watcher.call("EXISTS untouched") == "0");
    assert_eq!(watcher.call("HGETALL k"), "[a, 1]");
    primary.assert_healthy();
}

fn a_retry_elsewhere_moves_the_binding(flavor: Flavor) {
    let World { mut primary, replica } = World::start(flavor, &[]);
    let (mut a, mut watcher, mut r) = (primary.client(), primary.client(), replica.client());
    load_module(&mut r);
    let call = "LOCK.ACQUIRE k a EPHEMERAL PX 100000 ID one";
    assert_eq!(a.call(call), "1");
    until("the replica has it", || r.call("DBSIZE") == "2");
    r.call("REPLICAOF NO ONE");
    watcher.call(&format!("REPLICAOF 127.0.0.1 {}", replica.port));
    let mut b = replica.client();
    assert_eq!(b.call(call), "1");
    let end = end_of(&mut r, "k");
    until("the old primary has the new lease", || end_of(&mut watcher, "k") == end);
    watcher.call("REPLICAOF NO ONE");
    until("the old binding is gone", || bound(&primary) == (0, 0));
    a.close();
    watcher.call("LOCK.ACQUIRE other x");
    assert_eq!(watcher.call("HGETALL k"), "[a, 1]");
    // The retry bound the hold at the new primary.
    b.close();
    until("the hold is released at the new primary", || r.call("EXISTS k") == "0");
    primary.assert_healthy();
}

fn renewals_replicate_as_plain_commands(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut monitor = world.replica.client();
        assert_eq!(monitor.call("MONITOR"), "OK");
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a WATCHDOG PX 150");
        let mut renewals = 0;
        while renewals < 3 {
            let line = monitor.recv();
            let words: Vec<&str> = line.split('"').collect();
            match words.get(1).map(|word| word.to_ascii_lowercase()).as_deref() {
                Some("pexpireat") => renewals += 1,
                Some("hset" | "multi" | "exec" | "select" | "ping" | "replconf") | None => {}
                Some(other) => panic!("{other} in {line}"),
            }
        }
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
    });
}

fn closed_connections_leave_nothing(flavor: Flavor) {
    let server = Server::start(flavor, &["--loadmodule", module().to_str().unwrap()]);
    let mut watcher = server.client();
    for round in 0..3 {
        let mut clients: Vec<Client> = (0..20).map(|_| server.client()).collect();
        for (at, client) in clients.iter_mut().enumerate() {
            for lock in 0..20 {
                let mode = if lock % 2 == 0 { "SHARED" } else { "" };
                client.call(&format!("LOCK.ACQUIRE k{lock} o{at} {mode} WATCHDOG EPHEMERAL PX 500"));
            }
        }
        until_renewed(&mut watcher, "k0");
        drop(clients);
        until("all is free", || watcher.call("DBSIZE") == "0");
        assert_eq!(bound(&server), (0, 0), "in round {round}");
    }
    unload_module(&mut watcher);
}
