// SPDX-License-Identifier: MIT

//! A release, a disconnect, a deadline and an unblock that meet in one event loop iteration of the server.

use std::time::Duration;

use crate::support::server::{load_module, unload_module};
use crate::support::{in_world, until, Flavor, Server, World};

crate::on_every_server!(
    a_killed_clients_grant_is_passed_on,
    a_closing_clients_grant_is_passed_on,
    an_unnoticed_disconnect_passes_the_grant_on,
    a_late_disconnect_passes_the_grant_on,
    a_half_closed_client_gets_no_grant,
    a_grant_without_successor_is_revoked,
    a_deadline_beats_a_simultaneous_release,
    unblock_and_release_have_one_outcome,
    departed_waiters_are_forgotten,
    a_released_grant_is_not_revoked,
    a_delivered_grant_survives_the_disconnect,
    departed_crowds_leave_nothing,
    a_waiter_prevents_unloading,
);

fn revoked_grants(world: &World) -> i64 {
    world.client().info("lock", "lock_grants_revoked").parse().unwrap()
}

/// The server reads both commands in one iteration of its event loop: the waiter is granted the lock and killed before the reply.
fn a_killed_clients_grant_is_passed_on(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        let c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        let mut d = world.waiting("LOCK.ACQUIRE k d BLOCK 0");
        a.send_at_once(&[
            "LOCK.RELEASE k a",
            &format!("CLIENT KILL ID {}", b.id),
            &format!("CLIENT KILL ID {}", c.id),
        ]);
        assert_eq!([a.recv(), a.recv(), a.recv()], ["0", "1", "1"]);
        assert_eq!(d.recv(), "1");
        assert_eq!(a.call("HGETALL k"), "[d, 1]");
        assert_eq!(revoked_grants(world), 1, "c was still waiting");
    });
}

/// Deleting a user closes its clients only at the end of the iteration, so the waiter still looks connected at its reply.
fn a_closing_clients_grant_is_passed_on(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("ACL SETUSER bob on nopass ~* +@all"), "OK");
        a.call("LOCK.ACQUIRE k a PX 100000");
        let mut b = world.client();
        assert_eq!(b.call("AUTH bob any"), "OK");
        b.send("LOCK.ACQUIRE k b BLOCK 0 PX 100000");
        until("b waits", || a.call("LOCK.WAITERS k").contains("owner, b"));
        let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0 PX 100000");
        a.send_at_once(&["LOCK.RELEASE k a", "ACL DELUSER bob"]);
        assert_eq!([a.recv(), a.recv()], ["0", "1"]);
        assert_eq!(c.recv(), "1");
        assert!(b.is_closed());
        assert_eq!((a.call("HGETALL k"), revoked_grants(world)), ("[c, 1]".to_owned(), 1));
        assert_eq!(a.call("LOCK.RELEASE k c"), "0");
    });
}

/// The server sleeps while the waiter disconnects and the holder releases, and finds both when it wakes up.
fn an_unnoticed_disconnect_passes_the_grant_on(flavor: Flavor) {
    in_world(flavor, |world| {
        for round in 0..10 {
            let mut a = world.client();
            let mut sleeper = world.client();
            assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
            let b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 100000");
            let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0 PX 100000");
            sleeper.send("DEBUG SLEEP 0.05");
            std::thread::sleep(Duration::from_millis(10));
            // The two may happen in either order.
            if round % 2 == 0 {
                b.close();
                a.send("LOCK.RELEASE k a");
            } else {
                a.send("LOCK.RELEASE k a");
                b.close();
            }
            assert_eq!(a.recv(), "0");
            assert_eq!(c.recv(), "1", "round {round}");
            assert_eq!(a.call("LOCK.RELEASE k c"), "0");
        }
    });
}

/// The release has granted the lock, and a slow command delays the reply. The waiter disconnects meanwhile, which the server
/// has not read, so the reply would be lost.
fn a_late_disconnect_passes_the_grant_on(flavor: Flavor) {
    in_world(flavor, |world| {
        for sends_something in [false, true] {
            let mut a = world.client();
            assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 100000");
            let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0 PX 100000");
            a.send_at_once(&["LOCK.RELEASE k a", "DEBUG SLEEP 0.1"]);
            std::thread::sleep(Duration::from_millis(20));
            if sends_something {
                b.send("PING");
            }
            b.close();
            assert_eq!([a.recv(), a.recv()], ["0", "OK"]);
            assert_eq!(c.recv(), "1");
            assert_eq!(a.call("LOCK.RELEASE k c"), "0");
        }
    });
}

/// A half-closed client still reads, so a revoked grant must not be sent to it.
fn a_half_closed_client_gets_no_grant(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        a.send_at_once(&["LOCK.RELEASE k a", "DEBUG SLEEP 0.1"]);
        std::thread::sleep(Duration::from_millis(20));
        b.close_half();
        assert_eq!([a.recv(), a.recv()], ["0", "OK"]);
        assert_eq!(c.recv(), "1");
        let reply = b.try_recv().map(|reply| crate::support::show(&reply));
        assert!(
            reply.is_err() || reply.as_ref().is_ok_and(|text| text.starts_with("UNBLOCKED ")),
            "{reply:?}"
        );
    });
}

fn a_grant_without_successor_is_revoked(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        a.send_at_once(&["LOCK.RELEASE k a", &format!("CLIENT KILL ID {}", b.id), "HGETALL k"]);
        assert_eq!([a.recv(), a.recv(), a.recv()], ["0", "1", "[b, 1]"]);
        until("the grant is revoked", || a.call("EXISTS k") == "0");
    });
}

/// The server sleeps past the deadline, and reads the release first when it wakes up.
fn a_deadline_beats_a_simultaneous_release(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let mut b = world.client();
        let mut c = world.waiting("LOCK.ACQUIRE k c2 BLOCK 0");
        b.send("LOCK.ACQUIRE k b BLOCK 50");
        world.until_blocked(&b);
        let mut first = world.waiting("LOCK.ACQUIRE k late BLOCK 60");
        a.send_at_once(&["DEBUG SLEEP 0.15", "LOCK.RELEASE k a"]);
        assert_eq!([a.recv(), a.recv()], ["OK", "0"]);
        assert_eq!(c.recv(), "1");
        assert_eq!(b.recv(), "nil");
        assert_eq!(first.recv(), "nil");
        // The first waiter itself has passed its deadline.
        let mut d = world.waiting("LOCK.ACQUIRE k d BLOCK 50");
        let mut e = world.waiting("LOCK.ACQUIRE k e BLOCK 0");
        a.send_at_once(&["DEBUG SLEEP 0.15", "LOCK.RELEASE k c2", "HGETALL k"]);
        assert_eq!([a.recv(), a.recv(), a.recv()], ["OK", "0", "[e, 1]"]);
        assert_eq!(d.recv(), "nil");
        assert_eq!(e.recv(), "1");
    });
}

fn unblock_and_release_have_one_outcome(flavor: Flavor) {
    in_world(flavor, |world| {
        for how in ["TIMEOUT", "ERROR"] {
            let mut a = world.client();
            a.call("LOCK.ACQUIRE k a");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
            let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
            a.send_at_once(&["LOCK.RELEASE k a", &format!("CLIENT UNBLOCK {} {how}", b.id)]);
            assert_eq!(a.recv(), "0");
            a.recv();
            let reply = b.recv();
            if reply == "1" {
                assert!(c.has_nothing());
                assert_eq!(a.call("LOCK.RELEASE k b"), "0");
            } else {
                assert!(reply.starts_with("UNBLOCKED ") || reply == "nil", "{reply}");
            }
            assert_eq!(c.recv(), "1");
            assert_eq!(b.call("PING"), "PONG");
            assert_eq!(a.call("LOCK.RELEASE k c"), "0");
        }
    });
}

/// The state of a waiter is removed however the waiter leaves, even while others wait.
fn departed_waiters_are_forgotten(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let mut stays = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        for ends in [
            &["CLIENT UNBLOCK", "CLIENT KILL ID"][..],
            &["CLIENT KILL ID"],
            &["LOCK.BREAK l", "CLIENT KILL ID"],
        ] {
            a.call("LOCK.ACQUIRE l a");
            let leaver = world.waiting("LOCK.ACQUIRE l c BLOCK 0");
            let lines: Vec<String> =
                ends.iter()
                    .map(|end| {
                        if end.starts_with("LOCK") {
                            (*end).to_owned()
                        } else {
                            format!("{end} {}", leaver.id)
                        }
                    })
                    .collect();
            a.send_at_once(&lines.iter().map(String::as_str).collect::<Vec<_>>());
            lines.iter().for_each(|_| drop(a.recv()));
            until("one client is known", || a.info("lock", "lock_table_sockets") == "1");
            a.call("LOCK.BREAK l");
        }
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(stays.recv(), "1");
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
    });
}

/// Another connection of the owner releases the grant and acquires the lock again before the first is found closed. The
/// newer hold must not be revoked.
fn a_released_grant_is_not_revoked(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        let kill = format!("CLIENT KILL ID {}", b.id);
        a.send_at_once(&["LOCK.RELEASE k a", "LOCK.RELEASE k b", "LOCK.ACQUIRE k b", &kill]);
        assert_eq!([a.recv(), a.recv(), a.recv(), a.recv()], ["0", "0", "1", "1"]);
        // Pending work is done once a later timer has fired.
        let mut c = world.client();
        assert_eq!(c.call("LOCK.ACQUIRE k c BLOCK 30"), "nil");
        assert_eq!(a.call("HGETALL k"), "[b, 1]");
        // One of two holds was not delivered; the other one stays.
        a.call("LOCK.RELEASE k b");
        a.call("LOCK.ACQUIRE k a");
        let b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        let kill = format!("CLIENT KILL ID {}", b.id);
        a.send_at_once(&["LOCK.RELEASE k a", "LOCK.ACQUIRE k b PX 100000", &kill]);
        assert_eq!([a.recv(), a.recv(), a.recv()], ["0", "2", "1"]);
        until("one hold is revoked", || a.call("HGETALL k") == "[b, 1]");
        // BREAK and DEL have the same effect as a release.
        for end in ["LOCK.BREAK k", "DEL k"] {
            a.call("DEL k");
            a.call("LOCK.ACQUIRE k a");
            let b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
            let kill = format!("CLIENT KILL ID {}", b.id);
            a.send_at_once(&["LOCK.RELEASE k a", end, "LOCK.ACQUIRE k b", &kill]);
            assert_eq!([a.recv(), a.recv(), a.recv(), a.recv()], ["0", "1", "1", "1"]);
            assert_eq!(c.call("LOCK.ACQUIRE k c BLOCK 30"), "nil");
            assert_eq!(a.call("HGETALL k"), "[b, 1]", "after {end}");
        }
    });
}

/// `redis-cli` half-closes its connection when it runs a single command.
fn a_delivered_grant_survives_the_disconnect(flavor: Flavor) {
    in_world(flavor, |world| {
        for _ in 0..20 {
            let mut a = world.client();
            a.call("LOCK.ACQUIRE k a");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 100000");
            a.send("LOCK.RELEASE k a");
            assert_eq!(b.recv(), "1");
            b.close();
            assert_eq!(a.recv(), "0");
            let mut c = world.client();
            assert_eq!(c.call("LOCK.ACQUIRE k c BLOCK 5"), "nil");
            assert_eq!(c.call("LOCK.RELEASE k b"), "0");
        }
        assert_eq!(revoked_grants(world), 0);
    });
}

/// Waiters that time out, disconnect, are killed and are served leave no state.
fn departed_crowds_leave_nothing(flavor: Flavor) {
    in_world(flavor, |world| {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || {
                    for round in 0..60 {
                        let key = format!("k{}", (thread + round) % 3);
                        let owner = format!("{thread}:{round}");
                        let mut client = world.client();
                        match (thread + round) % 4 {
                            0 => {
                                client.send(&format!("LOCK.ACQUIRE {key} {owner} BLOCK 0 PX 20"));
                                client.close();
                            }
                            1 => {
                                client.send(&format!("LOCK.ACQUIRE {key} {owner} BLOCK 3 PX 20"));
                                let id = client.id;
                                world.client().call(&format!("CLIENT KILL ID {id}"));
                            }
                            _ => {
                                let reply =
                                    client.call(&format!("LOCK.ACQUIRE {key} {owner} BLOCK 40 PX 20"));
                                if reply == "1" {
                                    let _ = client.call(&format!("LOCK.RELEASE {key} {owner}"));
                                }
                            }
                        }
                    }
                });
            }
        });
        let mut a = world.client();
        until("there are no waiters", || a.info("lock", "lock_waiters") == "0");
        until("all locks are free", || a.call("EXISTS k0 k1 k2") == "0");
        until("no client is blocked", || a.info("clients", "blocked_clients") == "0");
        unload_module(&mut a);
        assert_eq!(load_module(&mut a), "OK");
    });
}

fn a_waiter_prevents_unloading(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    a.call("LOCK.ACQUIRE k a PX 100000");
    let mut b = server.waiting("LOCK.ACQUIRE k b BLOCK 100000");
    assert!(a.call("MODULE UNLOAD lock").starts_with("ERR "), "unloaded under a waiter");
    a.call("LOCK.RELEASE k a");
    assert_eq!(b.recv(), "1");
    unload_module(&mut a);
    assert!(a.call("LOCK.INFO k").starts_with("ERR unknown command"));
    assert_eq!(a.call("HGETALL k"), "[b, 1]", "the hold needs no module");
    assert_eq!(a.call("CONFIG GET lock.default-lease"), "[]");
    a.call("DEL k");
    // Loads the module again, which starts without state.
    assert_eq!(load_module(&mut a), "OK");
    a.call("LOCK.ACQUIRE k a");
    let mut c = server.waiting("LOCK.ACQUIRE k c BLOCK 0");
    a.call("DEL k");
    assert_eq!(c.recv(), "1");
    assert_eq!(a.info("lock", "lock_waiters_granted"), "1");
    server.assert_healthy();
}
