// SPDX-License-Identifier: MIT

//! Grants and renewals that reply only after replicas have acknowledged them. A failover loses no such grant (invariants 5, 8).

use redis::Value;

use crate::support::client::prefix;
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::{in_world, until, Client, Flavor, Server, World};

crate::on_every_server!(
    an_acknowledged_grant_is_on_the_replica,
    replicas_combines_with_other_options,
    impossible_acknowledgments_are_refused_at_once,
    an_unacknowledged_grant_is_undone,
    an_unacknowledged_renewal_stands,
    waiters_need_replicas_at_their_grant,
    a_departed_client_keeps_no_grant,
    an_ended_hold_is_not_granted,
    a_released_or_cancelled_hold_is_not_granted,
    a_closed_connection_prevents_the_grant,
    an_expired_lease_prevents_the_grant,
    a_moved_slot_unblocks_the_caller,
    leases_shrink_only_after_acknowledgment,
    a_pause_delays_the_undo,
    a_demotion_ends_waits_for_replicas,
    replicas_are_asked_once_per_iteration,
    a_retry_takes_over_the_wait,
    a_writable_replica_refuses_replicas,
    a_cancelled_request_is_not_granted,
    a_watchdog_renews_late_acknowledged_holds,
    a_failover_keeps_acknowledged_grants,
);

/// Waits until this number of replicas is online.
pub(super) fn until_online(client: &mut Client, replicas: usize) {
    until("the replicas are online", || match client.call_value("ROLE") {
        Value::Array(role) => matches!(&role[2], Value::Array(list) if list.len() == replicas),
        _ => false,
    });
}

fn with_replica(flavor: Flavor, scenario: impl FnOnce(&World)) {
    in_world(flavor, |world| {
        let mut client = world.client();
        until_online(&mut client, 1);
        scenario(world);
        world.replica.signal(libc::SIGCONT);
        until("no call awaits replicas", || client.info("lock", "lock_table_awaiting_replicas") == "0");
    });
}

fn an_acknowledged_grant_is_on_the_replica(flavor: Flavor) {
    with_replica(flavor, |world| {
        let (mut a, mut there) = (world.client(), world.replica.client());
        for round in 0..100 {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k{round} a PX 100000 REPLICAS 1")), "1");
            // The call is made on another connection, which the grant did not affect.
            assert_eq!(there.call(&format!("HGETALL k{round}")), "[a, 1]");
        }
        a.call("LOCK.RENEW k1 a PX 500000");
        assert_eq!(a.call("LOCK.RENEW k1 a PX 900000 REPLICAS 1 WITHIN 20000"), "1");
        assert!(there.number("PTTL k1") > 800_000);
    });
}

fn replicas_combines_with_other_options(flavor: Flavor) {
    with_replica(flavor, |world| {
        let (mut a, mut b) = (world.client(), world.client());
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000 REPLICAS 1"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k a replicas 1 within 20000 PX 100000"), "2");
        assert_eq!(b.call("LOCK.ACQUIRE k b REPLICAS 1"), "nil");
        assert_eq!(b.call("LOCK.ACQUIRE k b REPLICAS 1 BLOCK 20"), "nil");
        b.send("LOCK.ACQUIRE k b PX 100000 REPLICAS 1 BLOCK 0 FENCE");
        world.until_blocked(&b);
        a.call("LOCK.RELEASE k a ALL");
        assert!(b.recv().starts_with("[owner, b, holds, 1, token, "));
        assert!(world.replica.client().call("HGETALL k").contains("#fence"));
        a.call("LOCK.BREAK k");
        for reader in 0..20 {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE s r{reader} SHARED REPLICAS 1 PX 100000")), "1");
        }
        assert!(a.call("LOCK.ACQUIRE * * REPLICAS 1").starts_with("[owner, "));
        // Bindings to the connection begin with the reply.
        let mut c = world.client();
        assert_eq!(c.call("LOCK.ACQUIRE e c PX 100000 EPHEMERAL WATCHDOG REPLICAS 1"), "1");
        c.close();
        until("the lock is free", || a.call("EXISTS e") == "0");
        assert_eq!(a.call("LOCK.RENEW k nobody REPLICAS 1"), a.call("LOCK.RENEW k nobody"));
    });
}

fn impossible_acknowledgments_are_refused_at_once(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        for call in [
            "LOCK.ACQUIRE k a REPLICAS 2",
            "LOCK.ACQUIRE k a REPLICAS 2 BLOCK 0",
            "LOCK.RENEW k a REPLICAS 1000000",
        ] {
            assert!(a.call(call).starts_with("NOREPLICAS 1 of "), "{call}");
        }
        assert_eq!(a.call("EXISTS k"), "0");
        for (call, problem) in [
            (
                "LOCK.ACQUIRE k a REPLICAS 0",
                "ERR REPLICAS is out of range in 'lock.acquire' command; use 1 to 2147483647",
            ),
            ("LOCK.ACQUIRE k a REPLICAS", "ERR REPLICAS needs a value in 'lock.acquire' command"),
            (
                "LOCK.ACQUIRE k a REPLICAS 1 REPLICAS 1",
                "ERR REPLICAS is given twice in 'lock.acquire' command",
            ),
            ("LOCK.ACQUIRE k a WITHIN 5", "ERR WITHIN needs REPLICAS in 'lock.acquire' command"),
            (
                "LOCK.ACQUIRE k a REPLICAS 1 WITHIN 0",
                "ERR WITHIN is out of range in 'lock.acquire' command; use 1 to 9007199254740991",
            ),
            ("LOCK.RENEW k a WITHIN 5", "ERR WITHIN needs REPLICAS in 'lock.renew' command"),
        ] {
            assert_eq!(a.call(call), problem);
        }
        let script = "return redis.call('LOCK.ACQUIRE', 'k', 'a', 'REPLICAS', 1)";
        assert!(a.call_args(&[b"EVAL", script.as_bytes(), b"0"]).contains("REPLICAS is not possible here"));
        a.call("MULTI");
        a.call("LOCK.ACQUIRE k a REPLICAS 1");
        a.call("LOCK.RENEW k a REPLICAS 1");
        assert_eq!(a.call("EXEC").matches("ERR REPLICAS is not possible here").count(), 2);
        assert_eq!(a.call("EXISTS k"), "0");
        a.call("LOCK.ACQUIRE k a");
    });
}

fn an_unacknowledged_grant_is_undone(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        world.replica.signal(libc::SIGSTOP);
        let reply = a.call("LOCK.ACQUIRE k a PX 100000 REPLICAS 1 WITHIN 50");
        assert!(
            reply.starts_with("NOREPLICAS 0 of 1 replicas acknowledged the grant in time; it was revoked"),
            "{reply}"
        );
        until("the grant is undone", || a.call("EXISTS k") == "0");
        // The lock excludes others while it awaits replicas; then the next waiter gets it.
        let mut held = world.waiting("LOCK.ACQUIRE k a PX 100000 REPLICAS 1 WITHIN 300");
        assert_eq!(a.call("LOCK.ACQUIRE k b"), "nil");
        let mut b = world.waiting("LOCK.ACQUIRE k b PX 100000 BLOCK 0");
        assert_eq!(prefix(&held.recv()), "NOREPLICAS");
        assert_eq!(b.recv(), "1");
        assert_eq!(a.call("HGETALL k"), "[b, 1]");
        // Undoing a re-entry does not affect the earlier hold.
        let end = b.number("PEXPIRETIME k");
        assert_eq!(prefix(&b.call("LOCK.ACQUIRE k b PX 200 REPLICAS 1 WITHIN 20")), "NOREPLICAS");
        until("the re-entry is undone", || b.call("HGETALL k") == "[b, 1]");
        assert_eq!(b.number("PEXPIRETIME k"), end);
        // An undone grant leaves no request record.
        assert_eq!(prefix(&b.call("LOCK.ACQUIRE l b REPLICAS 1 WITHIN 20 ID x")), "NOREPLICAS");
        until("the grant and its record are removed", || b.call("EXISTS l lock_request:{l}:b:x") == "0");
        world.replica.signal(libc::SIGCONT);
        assert_eq!(b.call("LOCK.ACQUIRE l b REPLICAS 1 WITHIN 20000 ID x"), "1");
    });
}

fn an_unacknowledged_renewal_stands(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        a.call("WAIT 1 20000");
        world.replica.signal(libc::SIGSTOP);
        let reply = a.call("LOCK.RENEW k a PX 900000 REPLICAS 1 WITHIN 20");
        assert!(
            reply.starts_with(
                "NOREPLICAS 0 of 1 replicas acknowledged the lease in time; a failover may lose"
            ),
            "{reply}"
        );
        assert!(a.number("PTTL k") > 800_000);
        assert_eq!(prefix(&a.call("LOCK.RENEW k b REPLICAS 1 WITHIN 20")), "NOTOWNER");
    });
}

fn waiters_need_replicas_at_their_grant(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        let waiters = ["b", "c", "d"]
            .map(|owner| world.waiting(&format!("LOCK.ACQUIRE k {owner} BLOCK 0 REPLICAS 1 WITHIN 60000")));
        let mut last = world.waiting("LOCK.ACQUIRE k e BLOCK 0 PX 100000");
        let mut there = world.replica.client();
        there.call("REPLICAOF NO ONE");
        until_online(&mut a, 0);
        // Without an online replica, no waiter waits for the full time.
        a.call("LOCK.RELEASE k a");
        for mut waiter in waiters {
            assert_eq!(prefix(&waiter.recv()), "NOREPLICAS");
        }
        assert_eq!(last.recv(), "1");
        there.call(&format!("REPLICAOF 127.0.0.1 {}", world.primary.port));
        until_online(&mut a, 1);
    });
}

fn a_departed_client_keeps_no_grant(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        world.replica.signal(libc::SIGSTOP);
        let wait = "LOCK.ACQUIRE k b PX 100000 REPLICAS 1 WITHIN 60000 ID x";
        let leaves = |a: &mut Client, leave: &mut dyn FnMut(Client, &mut Client)| {
            let waiter = world.waiting(wait);
            assert_eq!(a.call("HGETALL k"), "[b, 1]");
            let mut next = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
            leave(waiter, a);
            assert_eq!(next.recv(), "1");
            assert_eq!(a.call("LOCK.RELEASE k c"), "0");
            assert_eq!(a.info("lock", "lock_table_awaiting_replicas"), "0");
        };
        leaves(&mut a, &mut |waiter, _| waiter.close());
        leaves(&mut a, &mut |mut waiter, a| {
            assert_eq!(a.call(&format!("CLIENT KILL ID {}", waiter.id)), "1");
            until("the connection is closed", || waiter.is_closed());
        });
        leaves(&mut a, &mut |mut waiter, a| {
            assert_eq!(a.call("LOCK.CANCEL k b ID x"), "1");
            assert_eq!(prefix(&waiter.recv()), "UNBLOCKED");
            a.call("DEL lock_request:{k}:b:x");
        });
        if flavor.may_unblock() {
            leaves(&mut a, &mut |mut waiter, a| {
                assert_eq!(a.call(&format!("CLIENT UNBLOCK {} ERROR", waiter.id)), "1");
                assert_eq!(prefix(&waiter.recv()), "UNBLOCKED");
            });
            leaves(&mut a, &mut |mut waiter, a| {
                assert_eq!(a.call(&format!("CLIENT UNBLOCK {}", waiter.id)), "1");
                assert_eq!(waiter.recv(), "nil");
            });
        }
        // A client that awaits a renewal's acknowledgement keeps its hold.
        a.call("LOCK.ACQUIRE k b PX 100000");
        let waiter = world.waiting("LOCK.RENEW k b PX 100000 REPLICAS 1 WITHIN 60000");
        waiter.close();
        until("no call awaits replicas", || a.info("lock", "lock_table_awaiting_replicas") == "0");
        assert_eq!(a.call("HGETALL k"), "[b, 1]");
    });
}

fn an_ended_hold_is_not_granted(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        for ends in ["LOCK.BREAK k", "LOCK.RELEASE k b", "DEL k", "FLUSHALL", "PEXPIRE k 1", "RENAME k l"] {
            for call in [
                "LOCK.ACQUIRE k b PX 100000 REPLICAS 1 WITHIN 60000",
                "LOCK.RENEW k b REPLICAS 1 WITHIN 60000",
            ] {
                if call.starts_with("LOCK.RENEW") {
                    a.call("LOCK.ACQUIRE k b PX 100000");
                }
                world.replica.signal(libc::SIGSTOP);
                let mut waiter = world.waiting(call);
                a.call(ends);
                until("the lock is free", || a.call("EXISTS k") == "0");
                if call.starts_with("LOCK.RENEW") {
                    world.replica.signal(libc::SIGCONT);
                }
                // The wait ends at once, even without the replicas.
                assert_eq!(prefix(&waiter.recv()), "NOTOWNER", "{call}, {ends}");
                assert_eq!(a.info("lock", "lock_table_awaiting_replicas"), "0");
                world.replica.signal(libc::SIGCONT);
                a.call("DEL l");
                assert_eq!(a.call("WAIT 1 20000"), "1");
            }
        }
    });
}

/// The owner still holds the lock, but not by the grant that awaits replicas.
fn a_released_or_cancelled_hold_is_not_granted(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        for take in ["LOCK.CANCEL k c ID r1", "LOCK.RELEASE k c", "LOCK.MRELEASE 1 k c"] {
            for call in ["LOCK.ACQUIRE k c", "LOCK.MACQUIRE 2 {k}l k c"] {
                assert_eq!(a.call("LOCK.ACQUIRE k c PX 100000 ID r1"), "1");
                assert_eq!(a.call("LOCK.RELEASE k c"), "0");
                assert_eq!(a.call("LOCK.ACQUIRE k c SHARED PX 100000"), "1");
                assert_eq!(a.call("WAIT 1 20000"), "1");
                world.replica.signal(libc::SIGSTOP);
                let mut upgrade = world.waiting(&format!("{call} PX 100000 REPLICAS 1 WITHIN 60000"));
                assert_eq!(a.call("LOCK.ACQUIRE k stranger SHARED"), "nil");
                let left = if take.starts_with("LOCK.MRELEASE") { "[1]" } else { "1" };
                assert_eq!(a.call(take), left, "{take}");
                assert_eq!(a.call("LOCK.ACQUIRE k stranger SHARED PX 100000"), "1");
                world.replica.signal(libc::SIGCONT);
                assert_eq!(prefix(&upgrade.recv()), "NOTOWNER", "{call}, {take}");
                until("the other lock is free", || a.call("EXISTS {k}l") == "0");
                assert_eq!(a.call("LOCK.RELEASE k c"), "0");
                assert_eq!(a.call("LOCK.RELEASE k stranger"), "0");
                a.call("DEL lock_request:{k}:c:r1");
            }
        }
        // A release ends a confirmed hold first.
        assert_eq!(a.call("LOCK.ACQUIRE k c PX 100000"), "1");
        assert_eq!(a.call("WAIT 1 20000"), "1");
        world.replica.signal(libc::SIGSTOP);
        let mut again = world.waiting("LOCK.ACQUIRE k c PX 100000 REPLICAS 1 WITHIN 60000");
        assert_eq!(a.call("LOCK.RELEASE k c"), "1");
        world.replica.signal(libc::SIGCONT);
        assert_eq!(again.recv(), "2");
        assert_eq!(a.call("HGETALL k"), "[c, 1]");
    });
}

/// The connection that the owner's holds are bound to closes. Another owner gets the lock before the timer has ended the
/// holds.
fn a_closed_connection_prevents_the_grant(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        for round in 0..5 {
            let (mut bound, mut next) = (world.client(), world.client());
            assert_eq!(bound.call("LOCK.ACQUIRE k c PX 100000 EPHEMERAL"), "1");
            assert_eq!(a.call("WAIT 1 20000"), "1");
            world.replica.signal(libc::SIGSTOP);
            let mut again = world.waiting("LOCK.ACQUIRE k c PX 100000 REPLICAS 1 WITHIN 60000");
            // The server reads the close and the other client's call in one event loop iteration.
            world.primary.signal(libc::SIGSTOP);
            bound.close();
            next.send("LOCK.ACQUIRE k d PX 100000 BLOCK 0");
            world.primary.signal(libc::SIGCONT);
            assert_eq!(next.recv(), "1");
            world.replica.signal(libc::SIGCONT);
            assert_eq!(prefix(&again.recv()), "NOTOWNER", "round {round}");
            assert_eq!(a.call("LOCK.RELEASE k d"), "0");
        }
    });
}

fn an_expired_lease_prevents_the_grant(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        world.replica.signal(libc::SIGSTOP);
        a.send("LOCK.ACQUIRE k a PX 60 REPLICAS 1 WITHIN 60000");
        assert_eq!(prefix(&a.recv()), "NOTOWNER");
        assert_eq!(a.call("EXISTS k"), "0");
        for table in ["lock_table_awaiting_replicas", "lock_table_leases", "lock_table_locks"] {
            assert_eq!(a.info("lock", table), "0", "{table}");
        }
        world.replica.signal(libc::SIGCONT);
    });
}

/// Slot of `b`: 3300, which the first node serves.
fn a_moved_slot_unblocks_the_caller(flavor: Flavor) {
    // Valkey moves no slot while a replica does not respond.
    if flavor.is_valkey() {
        return;
    }
    let cluster = Cluster::start(flavor);
    let replica = cluster.replica_of(0, &[]);
    let mut first = cluster.nodes[0].client();
    until("the replica is online", || first.info("replication", "slave0").contains("state=online"));
    replica.signal(libc::SIGSTOP);
    let mut waiter = cluster.nodes[0].client();
    waiter.send("LOCK.ACQUIRE b o PX 100000 REPLICAS 1 WITHIN 60000");
    until("the lock is granted", || first.call("EXISTS b") == "1");
    cluster.migrate("b");
    assert_eq!(prefix(&waiter.recv()), "UNBLOCKED");
    assert_eq!(cluster.nodes[1].client().call("LOCK.RELEASE b o"), "0", "the hold has not moved");
    until("no lock is tracked", || first.info("lock", "lock_table_locks") == "0");
    replica.signal(libc::SIGCONT);
    cluster.assert_healthy();
}

fn leases_shrink_only_after_acknowledgment(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        let end = a.number("PEXPIRETIME k");
        world.replica.signal(libc::SIGSTOP);
        let mut again = world.waiting("LOCK.ACQUIRE k a PX 5000 REPLICAS 1 WITHIN 60000");
        assert_eq!(a.call("HGETALL k"), "[a, 2]");
        assert_eq!(a.number("PEXPIRETIME k"), end, "the promised lease was shortened");
        world.replica.signal(libc::SIGCONT);
        assert_eq!(again.recv(), "2");
        until("the lease is shortened", || a.number("PTTL k") <= 5000);
    });
}

fn a_pause_delays_the_undo(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        world.replica.signal(libc::SIGSTOP);
        let mut waiter = world.waiting("LOCK.ACQUIRE k a PX 100000 REPLICAS 1 WITHIN 100");
        a.call("CLIENT PAUSE 60000 WRITE");
        assert_eq!(prefix(&waiter.recv()), "NOREPLICAS", "the reply is not delayed");
        assert_eq!(a.call("EXISTS k"), "1", "nothing may be written in a pause");
        a.call("CLIENT UNPAUSE");
        until("the grant is undone", || a.call("EXISTS k") == "0");
        world.replica.signal(libc::SIGCONT);
        // Writes right before a pause are acknowledged during it, as replicas report on their own.
        world.replica.signal(libc::SIGSTOP);
        let mut waiter = world.waiting("LOCK.ACQUIRE k a PX 100000 REPLICAS 1 WITHIN 60000");
        a.call("CLIENT PAUSE 60000 WRITE");
        world.replica.signal(libc::SIGCONT);
        assert_eq!(waiter.recv(), "1");
        a.call("CLIENT UNPAUSE");
    });
}

fn a_demotion_ends_waits_for_replicas(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        let mut other = Server::start(flavor, &[]);
        for call in [
            "LOCK.ACQUIRE k b PX 100000 REPLICAS 1 WITHIN 60000",
            "LOCK.RENEW k b PX 100000 REPLICAS 1 WITHIN 60000",
        ] {
            until_online(&mut a, 1);
            world.replica.signal(libc::SIGSTOP);
            let mut waiter = world.waiting(call);
            // The server follows an empty primary, so it keeps its own data.
            a.call(&format!("REPLICAOF 127.0.0.1 {}", other.port));
            assert_eq!(prefix(&waiter.recv()), "UNBLOCKED");
            a.call("REPLICAOF NO ONE");
            world.replica.signal(libc::SIGCONT);
            if a.call("EXISTS k") == "0" {
                a.call("LOCK.ACQUIRE k b PX 100000");
            }
            assert_eq!(a.call("HGETALL k"), "[b, 1]");
        }
        until_online(&mut a, 1);
        other.assert_healthy();
    });
}

fn replicas_are_asked_once_per_iteration(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        let mut there = world.replica.client();
        // The replica counts this command, which only its primary sends.
        let mut count_requests = |a: &mut Client| {
            assert_eq!(a.call("WAIT 1 20000"), "1");
            let stats = there.call("INFO commandstats");
            let calls =
                stats.split("cmdstat_replconf:calls=").nth(1).map(|rest| rest.split(',').next().unwrap());
            calls.map_or(0, |calls| calls.parse::<u64>().unwrap())
        };
        let at_start = count_requests(&mut a);
        a.call("LOCK.ACQUIRE k a");
        a.call("LOCK.RELEASE k a");
        // `WAIT` also asks replicas, once for each of the two calls.
        let before = count_requests(&mut a);
        assert!(before <= at_start + 2, "replicas were asked without need");
        // The server reads all these calls in one event loop iteration.
        let mut clients: Vec<Client> = (0..50).map(|_| world.client()).collect();
        world.primary.signal(libc::SIGSTOP);
        for (at, client) in clients.iter_mut().enumerate() {
            client.send(&format!("LOCK.ACQUIRE k{at} a PX 100000 REPLICAS 1 WITHIN 20000"));
        }
        world.primary.signal(libc::SIGCONT);
        for client in &mut clients {
            assert_eq!(client.recv(), "1");
        }
        let count_requests = count_requests(&mut a) - before;
        assert!((1..=6).contains(&count_requests), "the replicas were asked {count_requests} times");
        assert_eq!(a.info("lock", "lock_table_awaiting_replicas"), "0");
    });
}

/// The connection breaks while the call awaits replicas, and the call is repeated on another connection.
fn a_retry_takes_over_the_wait(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        world.replica.signal(libc::SIGSTOP);
        let call = "LOCK.ACQUIRE k a PX 100000 REPLICAS 1 WITHIN 60000 ID x";
        let mut first = world.waiting(call);
        let mut second = world.waiting(call);
        assert!(first.recv().starts_with("UNBLOCKED the same request was sent again on another connection"));
        assert_eq!(a.call("HGETALL k"), "[a, 1]");
        first.close();
        world.replica.signal(libc::SIGCONT);
        assert_eq!(second.recv(), "1");
        assert_eq!(a.call(call), "1");
        assert_eq!(a.call("HGETALL k"), "[a, 1]", "the retry counted twice");
    });
}

/// A writable replica refuses `REPLICAS`, because a failover would not preserve its grants.
fn a_writable_replica_refuses_replicas(flavor: Flavor) {
    let (primary, replica) =
        (Server::with_module(flavor, &[]), Server::with_module(flavor, &["--replica-read-only", "no"]));
    let mut there = replica.client();
    replica.follow(&primary);
    assert_eq!(there.call("LOCK.ACQUIRE k a"), "1");
    for call in
        ["LOCK.ACQUIRE l a REPLICAS 1", "LOCK.ACQUIRE l a REPLICAS 1 BLOCK 0", "LOCK.RENEW k a REPLICAS 1"]
    {
        assert_eq!(prefix(&there.call(call)), "READONLY", "{call}");
    }
    assert_eq!(there.call("EXISTS l"), "0");
}

/// A request that is cancelled while it awaits replicas is not granted, even to a retry on another connection.
fn a_cancelled_request_is_not_granted(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        world.replica.signal(libc::SIGSTOP);
        let call = "LOCK.ACQUIRE k a PX 100000 ID x REPLICAS 1 WITHIN 60000";
        let mut first = world.waiting(call);
        let mut second = world.waiting(call);
        assert_eq!(prefix(&first.recv()), "UNBLOCKED");
        assert_eq!(a.call("LOCK.CANCEL k a ID x"), "1");
        world.replica.signal(libc::SIGCONT);
        assert_eq!(prefix(&second.recv()), "UNBLOCKED");
        assert_eq!(a.call("HGETALL k"), "[a, 1]");
        // A retry gets the first call's reply, even after a release.
        assert_eq!(a.call("LOCK.ACQUIRE l a PX 100000 ID y REPLICAS 1 WITHIN 20000"), "1");
        assert_eq!(a.call("LOCK.RELEASE l a"), "0");
        assert_eq!(a.call("LOCK.ACQUIRE l a PX 100000 ID y REPLICAS 1 WITHIN 20000"), "1");
        assert_eq!(a.call("EXISTS l"), "0");
    });
}

/// The acknowledgement comes when most of the lease has passed. A watchdog of this or another connection renews it in time.
fn a_watchdog_renews_late_acknowledged_holds(flavor: Flavor) {
    with_replica(flavor, |world| {
        let (mut a, mut b) = (world.client(), world.client());
        for first in ["LOCK.ACQUIRE k a PX 3000 WATCHDOG", "PING"] {
            a.call(first);
            a.call("WAIT 1 20000");
            world.replica.signal(libc::SIGSTOP);
            let watchdog = if first == "PING" { " WATCHDOG" } else { "" };
            b.send(&format!("LOCK.ACQUIRE k a PX 1500{watchdog} REPLICAS 1 WITHIN 60000"));
            world.until_blocked(&b);
            let granted = std::time::Instant::now();
            until("most of the lease has passed", || granted.elapsed().as_millis() > 1200);
            world.replica.signal(libc::SIGCONT);
            assert!(["1", "2"].contains(&b.recv().as_str()));
            until("the lease is renewed", || {
                assert_eq!(a.call("EXISTS k"), "1", "the lease has expired");
                a.number("PTTL k") > 1000
            });
            a.call("LOCK.BREAK k");
        }
    });
}

/// Kills the primary while clients acquire, and cuts its links to the replicas at some moment before. Every grant with
/// `REPLICAS` must be on every replica. The environment variable `REPLICA_ROUNDS` sets the number of failovers.
fn a_failover_keeps_acknowledged_grants(flavor: Flavor) {
    let rounds = std::env::var("REPLICA_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    let (mut kept, mut lost) = (0, 0);
    for round in 0..rounds {
        let (promised, missing) = fail_over(flavor, round, "REPLICAS 2 WITHIN 20000");
        assert_eq!(missing, 0, "of {promised} grants in round {round}");
        kept += promised;
    }
    // Without REPLICAS some grants must get lost, or this test would prove nothing.
    let mut others = 0;
    while lost == 0 && others < 100 {
        lost = fail_over(flavor, others, "").1;
        others += 1;
    }
    assert!(lost > 0, "no grant was lost without REPLICAS");
    println!("{kept} acknowledged grants survived {rounds} failovers; {lost} others were lost in {others} failovers");
}

/// Number of grants that clients received before their primary was killed, and how many of these a replica lacks.
fn fail_over(flavor: Flavor, round: usize, wanted: &str) -> (usize, usize) {
    let primary = Server::with_module(flavor, &[]);
    let replicas = [0, 1].map(|_| (Server::start(flavor, &[]), Proxy::freezable(primary.port)));
    for (replica, link) in &replicas {
        replica.client().call(&format!("REPLICAOF 127.0.0.1 {}", link.port));
    }
    until_online(&mut primary.client(), 2);
    let mut clients: Vec<Client> = (0..20).map(|_| primary.client()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        let call = |call| format!("LOCK.ACQUIRE k{at}:{call} a PX 100000 {wanted}");
        let calls: Vec<String> = (0..50).map(call).collect();
        client.send_at_once(&calls.iter().map(String::as_str).collect::<Vec<_>>());
    }
    // The primary is killed after a number of replies that differs between the rounds.
    let (first, replies) = (round % 20, 1 + round % 7);
    let mut granted_locks: Vec<String> = Vec::new();
    for call in 0..replies {
        assert_eq!(clients[first].recv(), "1");
        granted_locks.push(format!("k{first}:{call}"));
    }
    replicas.iter().for_each(|(_, link)| link.freeze());
    let folder = primary.stop();
    for (at, client) in clients.iter_mut().enumerate() {
        let from = if at == first { replies } else { 0 };
        let granted = (from..50).take_while(|_| matches!(client.try_recv(), Ok(Value::Int(1))));
        granted_locks.extend(granted.map(|call| format!("k{at}:{call}")));
    }
    drop(folder);
    let lacks = |(replica, _): &(Server, Proxy)| {
        let mut promoted = replica.client();
        promoted.call("REPLICAOF NO ONE");
        granted_locks.iter().filter(|lock| promoted.call(&format!("HGETALL {lock}")) != "[a, 1]").count()
    };
    let missing = replicas.iter().map(lacks).max().unwrap();
    (granted_locks.len(), missing)
}
