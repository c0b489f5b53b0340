// SPDX-License-Identifier: MIT

//! Holds that depend on a connection: `WATCHDOG` renews them while it is open, `EPHEMERAL` ends them when it closes.

use crate::support::server::{load_module, module, unload_module};
use crate::support::{in_world, until, Client, Flavor, Server, World};

crate::on_every_server!(
    a_watchdog_renews_the_lease,
    a_watchdog_ends_with_its_connection,
    a_watchdog_ends_when_the_hold_is_old,
    an_ephemeral_hold_ends_with_its_connection,
    all_holds_of_the_owner_end,
    a_waiter_is_bound_by_its_grant,
    a_grant_that_did_not_arrive_binds_nothing,
    a_renewal_takes_over,
    a_late_call_takes_nothing_back,
    a_plain_renewal_takes_nothing_over,
    each_connection_is_kept_its_promise,
    a_late_retry_binds_no_later_hold,
    a_connection_that_says_quit_is_gone_at_once,
    the_latest_lease_is_the_one_that_is_renewed,
    nothing_is_done_to_anothers_hold,
    nothing_is_done_to_a_later_hold_of_the_same_owner,
    readers_are_bound_one_by_one,
    a_transaction_binds_its_client,
    a_script_has_no_connection,
    ten_thousand_watchdogs_share_a_timer,
    a_pause_holds_back_and_is_made_up_for,
    a_reload_keeps_the_watchdog,
    a_role_change_and_back_keeps_the_watchdog,
    what_another_primary_gave_is_left_alone,
    a_connection_that_closes_on_a_replica_releases_nothing_of_others,
    a_retry_at_another_primary_takes_over_for_good,
    a_renewal_is_replicated_as_plain_commands,
    nothing_stays_behind,
);

fn end_of(client: &mut Client, key: &str) -> i64 {
    client.number(&format!("PEXPIRETIME {key}"))
}

/// Waits until the lease of the lock has been set anew, without a call.
fn until_renewed(client: &mut Client, key: &str) {
    let end = end_of(client, key);
    assert!(end > 0, "{key} is not held");
    until("the lease is renewed", || end_of(client, key) > end);
}

/// How many leases are renewed, and how many holds end with a connection.
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
        // At every third of it: five renewals are done within two leases.
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
        until("it is not watched any more", || bound(world) == (0, 0));
        // What is left of the lease is its time to come back.
        assert_eq!(watcher.call("HGETALL k"), "[a, 2]");
        assert_eq!(b.recv(), "1");
    });
}

fn a_watchdog_ends_when_the_hold_is_old(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut watcher) = (world.client(), world.client());
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 300 WATCHDOG MAX 500"), "1");
        let end = end_of(&mut watcher, "k");
        // The connection stays open. The waiter is granted the lock when the last lease is over.
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 300 WATCHDOG");
        assert_eq!(b.recv(), "1");
        let held = b.number("PEXPIRETIME k") - end;
        assert!((500..1000).contains(&held), "held for {held} ms and not for 500 and a last lease of 300");
        assert_eq!(bound(world), (1, 0));
        // The setting counts for calls that give none.
        assert_eq!(b.call("LOCK.RELEASE k b"), "0");
        assert_eq!(watcher.call("CONFIG SET lock.max-watchdog 1"), "OK");
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 60 WATCHDOG"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE l a PX 60 WATCHDOG MAX 100000"), "1");
        let first = end_of(&mut watcher, "l");
        until("its lease is over", || watcher.call("EXISTS k") == "0");
        until("that is renewed", || end_of(&mut watcher, "l") > first + 100);
        // A call that is repeated on another connection does not make the hold younger.
        let mut first = world.client();
        let call = "LOCK.ACQUIRE m m PX 300 WATCHDOG MAX 400 ID 1";
        assert_eq!(first.call(call), "1");
        let granted = end_of(&mut watcher, "m") - 300;
        let mut again = world.client();
        until_renewed(&mut watcher, "m");
        first.close();
        until("nobody renews it", || bound(world).0 == 1);
        assert_eq!(again.call(call), "1");
        let mut last = 0;
        until("its lease is over", || {
            let end = end_of(&mut watcher, "m");
            last = last.max(end);
            end < 0
        });
        assert!(last - granted <= 400 + 300, "held for {} ms", last - granted);
        // A renewal counts anew.
        assert_eq!(a.call("LOCK.RENEW l a PX 60 WATCHDOG MAX 1"), "1");
        until("its lease is over", || watcher.call("EXISTS l") == "0");
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

fn all_holds_of_the_owner_end(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut other) = (world.client(), world.client());
        a.call("LOCK.ACQUIRE k a");
        other.call("LOCK.ACQUIRE k a SHARED");
        a.call("LOCK.ACQUIRE k a EPHEMERAL");
        assert_eq!(other.call("LOCK.RENEW k a"), "3");
        a.close();
        until("it is free", || other.call("EXISTS k") == "0");
        assert!(other.call("LOCK.RELEASE k a").starts_with("NOTOWNER "));
    });
}

fn a_waiter_is_bound_by_its_grant(flavor: Flavor) {
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
        until("it is free", || a.call("EXISTS k") == "0");
    });
}

fn a_grant_that_did_not_arrive_binds_nothing(flavor: Flavor) {
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

fn a_renewal_takes_over(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b, mut watcher) = (world.client(), world.client(), world.client());
        a.call("LOCK.ACQUIRE k o WATCHDOG EPHEMERAL PX 300");
        assert_eq!(b.call("LOCK.RENEW k o WATCHDOG EPHEMERAL PX 300"), "1");
        a.close();
        for _ in 0..4 {
            until_renewed(&mut watcher, "k");
        }
        assert_eq!(bound(world), (1, 1));
        // One of both may move alone.
        let mut c = world.client();
        assert_eq!(c.call("LOCK.RENEW k o WATCHDOG PX 30000"), "1");
        c.close();
        until("nobody watches", || bound(world) == (0, 1));
        assert_eq!(b.call("LOCK.RENEW k o PX 100000"), "1");
        b.close();
        until("it is free", || watcher.call("EXISTS k") == "0");
    });
}

/// A proxy may deliver the first call when its client has long had the answer on another connection.
fn a_late_call_takes_nothing_back(flavor: Flavor) {
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
        until("it is gone", || watcher.call(&format!("CLIENT LIST ID {gone}")).is_empty());
        assert_eq!((watcher.call("LOCK.RENEW k o PX 100000"), bound(world)), ("1".to_owned(), (1, 1)));
        b.close();
        until("it is free", || watcher.call("EXISTS k") == "0");
    });
}

fn a_plain_renewal_takes_nothing_over(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), world.client());
        a.call("LOCK.ACQUIRE k o EPHEMERAL PX 100000");
        assert_eq!(b.call("LOCK.RENEW k o PX 90000"), "1");
        assert_eq!(b.call("LOCK.ACQUIRE k o"), "2");
        a.close();
        until("it is free", || b.call("EXISTS k") == "0");
    });
}

fn each_connection_is_kept_its_promise(flavor: Flavor) {
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
        until("all holds have ended with one of them", || watcher.call("EXISTS k") == "0");
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
            // It may also be that its connection is gone by then.
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

/// The server closes its connection itself, at the end of a turn: the release is not to wait for the next event.
fn a_connection_that_says_quit_is_gone_at_once(flavor: Flavor) {
    let server = Server::with_module(flavor, &["--hz", "1", "--dynamic-hz", "no"]);
    // By far the most must be quicker than the server's own rhythm, which is a second.
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

fn the_latest_lease_is_the_one_that_is_renewed(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut watcher) = (world.client(), world.client());
        a.call("LOCK.ACQUIRE k a WATCHDOG PX 90000");
        // A nested call with a short lease must not let it run out.
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 200"), "2");
        for _ in 0..5 {
            until_renewed(&mut watcher, "k");
        }
        assert_eq!(a.call("LOCK.RELEASE k a PX 150"), "1");
        for _ in 0..5 {
            until_renewed(&mut watcher, "k");
        }
        assert!(watcher.number("PTTL k") <= 150);
        // A lease that a foreign write made longer is not made shorter.
        assert_eq!(watcher.call("PEXPIRE k 500000"), "1");
        assert_eq!(watcher.call("HSET other x 1"), "1");
        let end = end_of(&mut watcher, "k");
        a.call("LOCK.ACQUIRE busy a WATCHDOG PX 60");
        for _ in 0..10 {
            until_renewed(&mut watcher, "busy");
        }
        assert_eq!(end_of(&mut watcher, "k"), end);
    });
}

fn nothing_is_done_to_anothers_hold(flavor: Flavor) {
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
            a.call("LOCK.ACQUIRE k a WATCHDOG EPHEMERAL PX 150");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 100000");
            for command in commands {
                watcher.call(command);
            }
            if how.starts_with("a foreign write that") {
                until("it is known", || bound(world) == (0, 0));
                assert!(b.has_nothing());
                watcher.call("LOCK.RELEASE k z");
            }
            assert_eq!(b.recv(), "1", "{how}");
            let end = end_of(&mut watcher, "k");
            assert_eq!(bound(world), (0, 0), "{how}");
            // Another one's renewals show that time goes on.
            let mut c = world.client();
            c.call("LOCK.ACQUIRE clock c WATCHDOG PX 150");
            (0..4).for_each(|_| until_renewed(&mut watcher, "clock"));
            a.close();
            c.close();
            until("both are gone", || bound(world) == (0, 0));
            assert_eq!(watcher.call("HGETALL k"), "[b, 1]", "{how}");
            assert_eq!(end_of(&mut watcher, "k"), end, "{how}");
            watcher.call("FLUSHALL");
        }
    });
}

fn nothing_is_done_to_a_later_hold_of_the_same_owner(flavor: Flavor) {
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
                // As a Redisson client that gives it back and takes it again, in one go.
                let script = "redis.call('DEL', 'k') redis.call('HSET', 'k', 'a', 1) redis.call('PEXPIRE', 'k', 100000)";
                watcher.call_args(&[b"EVAL", script.as_bytes(), b"0"]);
            } else {
                watcher.call(end);
                assert_eq!(b.call("LOCK.ACQUIRE k a PX 100000"), "1", "{end}");
            }
            assert_eq!(bound(world), (0, 0), "{end}");
            a.close();
            let end_before = end_of(&mut watcher, "k");
            until("the server has seen it", || !watcher.call("CLIENT LIST").contains("cmd=lock.renew"));
            assert_eq!(watcher.call("HGETALL k"), "[a, 1]", "{end}");
            assert_eq!(end_of(&mut watcher, "k"), end_before, "{end}");
            watcher.call("FLUSHALL");
        }
    });
}

fn readers_are_bound_one_by_one(flavor: Flavor) {
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
        until("one reader has gone", || c.call("HLEN k") == "2");
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
        until("it is free", || watcher.call("EXISTS k") == "0");
    });
}

fn a_script_has_no_connection(flavor: Flavor) {
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
    // Nothing is planned any more: a module that has a timer cannot be unloaded.
    unload_module(&mut watcher);
}

fn a_pause_holds_back_and_is_made_up_for(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b, mut watcher) = (world.client(), world.client(), world.client());
        a.call("LOCK.ACQUIRE watched a WATCHDOG PX 900");
        b.call("LOCK.ACQUIRE k b EPHEMERAL PX 100000");
        let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        until_renewed(&mut watcher, "watched");
        watcher.call("CLIENT PAUSE 100000 WRITE");
        let end = end_of(&mut watcher, "watched");
        b.close();
        until("it is time to renew", || watcher.number("PTTL watched") < 500);
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

fn a_role_change_and_back_keeps_the_watchdog(flavor: Flavor) {
    let World { primary, replica } = World::start(flavor, &[]);
    let (mut a, mut b, mut watcher) = (primary.client(), primary.client(), primary.client());
    a.call("LOCK.ACQUIRE k a WATCHDOG PX 2000");
    b.call("LOCK.ACQUIRE e b EPHEMERAL PX 100000");
    until_renewed(&mut watcher, "k");
    // The other one is only a helper, so that its keys are ours.
    let mut r = replica.client();
    until("the replica is in step", || r.call("PEXPIRETIME k") == watcher.call("PEXPIRETIME k"));
    r.call("REPLICAOF NO ONE");
    watcher.call(&format!("REPLICAOF 127.0.0.1 {}", replica.port));
    until("it is a replica", || watcher.info("replication", "master_link_status") == "up");
    assert_eq!(watcher.call("HGETALL k"), "[a, 1]");
    watcher.call("REPLICAOF NO ONE");
    for _ in 0..3 {
        until_renewed(&mut watcher, "k");
    }
    b.close();
    until("it is free", || watcher.call("EXISTS e") == "0");
    a.close();
    until("nothing is bound", || bound(&primary) == (0, 0));
}

fn what_another_primary_gave_is_left_alone(flavor: Flavor) {
    let World { mut primary, replica } = World::start(flavor, &[]);
    let (mut a, mut watcher, mut r) = (primary.client(), primary.client(), replica.client());
    load_module(&mut r);
    a.call("LOCK.ACQUIRE k a WATCHDOG EPHEMERAL PX 100000");
    a.call("LOCK.ACQUIRE l a WATCHDOG EPHEMERAL PX 100000");
    until("the replica has both", || r.call("DBSIZE") == "2");
    r.call("REPLICAOF NO ONE");
    watcher.call(&format!("REPLICAOF 127.0.0.1 {}", replica.port));
    // The owner has lost `k` and got it again, and has renewed `l`, over another connection.
    assert_eq!(r.call("LOCK.RELEASE k a"), "0");
    assert_eq!(r.call("LOCK.ACQUIRE k a PX 200000"), "1");
    assert_eq!(r.call("LOCK.RENEW l a PX 200000"), "1");
    let ends = [end_of(&mut r, "k"), end_of(&mut r, "l")];
    until("it has heard of that", || [end_of(&mut watcher, "k"), end_of(&mut watcher, "l")] == ends);
    watcher.call("REPLICAOF NO ONE");
    until("the old bindings are gone", || bound(&primary) == (0, 0));
    a.close();
    watcher.call("LOCK.ACQUIRE other x");
    assert_eq!(watcher.call("HGETALL k"), "[a, 1]");
    assert_eq!(watcher.call("HGETALL l"), "[a, 1]");
    assert_eq!([end_of(&mut watcher, "k"), end_of(&mut watcher, "l")], ends);
    primary.assert_healthy();
}

fn a_connection_that_closes_on_a_replica_releases_nothing_of_others(flavor: Flavor) {
    let World { mut primary, replica } = World::start(flavor, &[]);
    let (mut a, mut watcher, mut r) = (primary.client(), primary.client(), replica.client());
    load_module(&mut r);
    a.call("LOCK.ACQUIRE k a EPHEMERAL PX 100000");
    a.call("LOCK.ACQUIRE untouched a EPHEMERAL PX 100000");
    until("the replica has both", || r.call("DBSIZE") == "2");
    r.call("REPLICAOF NO ONE");
    watcher.call(&format!("REPLICAOF 127.0.0.1 {}", replica.port));
    until("it is in sync", || watcher.info("replication", "master_link_status") == "up");
    a.close();
    until("the server has seen it", || !watcher.call("CLIENT LIST").contains("cmd=lock.acquire"));
    assert_eq!(r.call("LOCK.RENEW k a PX 200000"), "1");
    let end = end_of(&mut r, "k");
    until("it has heard of that", || end_of(&mut watcher, "k") == end);
    assert_eq!(watcher.call("HGETALL untouched"), "[a, 1]");
    watcher.call("REPLICAOF NO ONE");
    // What nobody else has touched is released when that is possible again.
    until("the other is free", || watcher.call("EXISTS untouched") == "0");
    assert_eq!(watcher.call("HGETALL k"), "[a, 1]");
    primary.assert_healthy();
}

fn a_retry_at_another_primary_takes_over_for_good(flavor: Flavor) {
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
    until("the first has heard of it", || end_of(&mut watcher, "k") == end);
    watcher.call("REPLICAOF NO ONE");
    until("the old binding is gone", || bound(&primary) == (0, 0));
    a.close();
    watcher.call("LOCK.ACQUIRE other x");
    assert_eq!(watcher.call("HGETALL k"), "[a, 1]");
    // Where it was repeated, it is bound.
    b.close();
    until("it is released there", || r.call("EXISTS k") == "0");
    primary.assert_healthy();
}

fn a_renewal_is_replicated_as_plain_commands(flavor: Flavor) {
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

fn nothing_stays_behind(flavor: Flavor) {
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
