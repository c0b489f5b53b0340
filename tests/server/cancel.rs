// SPDX-License-Identifier: MIT

//! `LOCK.CANCEL` undoes an acquire in any state: not yet arrived, waiting or granted (invariants 4, 5, 7).

use std::collections::HashSet;
use std::time::Duration;

use crate::on_every_server;
use crate::support::{in_world, in_world_with, until, Client, Flavor, Server, World};

on_every_server!(
    cancel_ends_a_wait,
    cancel_releases_a_hold,
    a_later_acquire_is_refused,
    an_unsent_grant_is_undone,
    a_late_cancel_spares_a_later_hold,
    bindings_of_the_request_end,
    a_cancel_survives_a_restart,
    bad_arguments_change_nothing,
    a_thousand_cancels_leave_nothing,
);

const CANCELLED: &str =
    "UNBLOCKED request was cancelled by LOCK.CANCEL and holds nothing; use a new ID to acquire again";

fn cancel_ends_a_wait(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut client = world.client();
        client.call("LOCK.ACQUIRE k a PX 60000");
        let mut waiting = world.waiting("LOCK.ACQUIRE k b BLOCK 0 ID r");
        let mut behind = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        assert_eq!(client.call("LOCK.CANCEL k b ID r"), "1");
        assert_eq!(waiting.recv(), CANCELLED);
        assert_eq!(client.call("LOCK.CANCEL k b ID r"), "1");
        assert_eq!(client.call("LOCK.ACQUIRE k b ID r"), CANCELLED);
        // After a waiting writer is cancelled, the reader behind it is granted the lock.
        client.call("LOCK.RELEASE k a");
        assert_eq!(behind.recv(), "1");
        client.call("LOCK.RELEASE k c");
        client.call("LOCK.ACQUIRE k r1 SHARED PX 60000");
        let mut writer = world.waiting("LOCK.ACQUIRE k w BLOCK 0 ID 1");
        let mut reader = world.waiting("LOCK.ACQUIRE k r2 SHARED PX 60000 BLOCK 0");
        assert_eq!(client.call("lock.cancel k w id 1"), "1");
        assert_eq!((writer.recv(), reader.recv()), (CANCELLED.to_owned(), "1".to_owned()));
    });
}

fn cancel_releases_a_hold(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut client = world.client();
        assert_eq!(client.call("LOCK.ACQUIRE k a PX 60000 ID 1"), "1");
        assert_eq!(client.call("LOCK.ACQUIRE k a PX 60000 ID 2"), "2");
        assert_eq!(client.call("LOCK.CANCEL k a ID 1"), "1");
        assert_eq!(client.call("LOCK.CANCEL k a ID 1"), "1");
        assert_eq!(client.call("HGETALL k"), "[a, 1]");
        let mut next = world.waiting("LOCK.ACQUIRE k b PX 60000 BLOCK 0");
        assert_eq!(client.call("LOCK.CANCEL k a ID 2"), "1");
        assert_eq!(next.recv(), "1");
        // A hold that was released or lost cannot be undone.
        assert_eq!(client.call("LOCK.ACQUIRE l a PX 60000 ID 1"), "1");
        assert_eq!(client.call("LOCK.RELEASE l a"), "0");
        assert_eq!(client.call("LOCK.CANCEL l a ID 1"), "0");
        assert_eq!(client.call("LOCK.ACQUIRE l a ID 1"), CANCELLED);
        // The cancel ends the kind of hold that its request acquired. It also works for a generated owner.
        assert_eq!(client.call("LOCK.ACQUIRE m a PX 60000 ID x"), "1");
        assert_eq!(client.call("LOCK.ACQUIRE m a SHARED PX 60000 ID s"), "2");
        assert_eq!(client.call("LOCK.CANCEL m a ID s"), "1");
        assert_eq!(client.call("HGETALL m"), "[a, 1]");
        assert!(client.call("LOCK.ACQUIRE n * FENCE ID r").contains("owner"));
        assert_eq!(client.call("LOCK.CANCEL n * ID r"), "1");
        assert_eq!(client.call("EXISTS n"), "0");
        // `LOCK.CANCEL` works in a transaction and in a script.
        assert_eq!(client.call("LOCK.ACQUIRE o a ID 1"), "1");
        client.call("MULTI");
        client.call("LOCK.CANCEL o a ID 1");
        client.call("EXISTS o");
        assert_eq!(client.call("EXEC"), "[1, 0]");
        assert_eq!(client.call("LOCK.ACQUIRE o a ID 2"), "1");
        let script = b"return redis.call('LOCK.CANCEL', KEYS[1], 'a', 'ID', '2')";
        assert_eq!(client.call_args(&[b"EVAL", script, b"1", b"o"]), "1");
    });
}

fn a_later_acquire_is_refused(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut client = world.client();
        assert_eq!(client.call("LOCK.CANCEL k a ID r"), "0");
        assert_eq!(client.call("LOCK.CANCEL k a ID r"), "0");
        for call in
            ["LOCK.ACQUIRE k a ID r", "LOCK.ACQUIRE k a BLOCK 0 SHARED ID r", "LOCK.ACQUIRE k a FENCE ID r"]
        {
            assert_eq!(client.call(call), CANCELLED);
        }
        assert_eq!(client.call("EXISTS k"), "0");
        assert_eq!(client.call("LOCK.ACQUIRE k a ID another"), "1");
        // A release with the same ID is another request.
        assert_eq!(client.call("LOCK.RELEASE k a ID r"), "0");
        assert_eq!(client.call("LOCK.RELEASE k a ID r"), "0");
        assert_eq!(client.call("LOCK.CANCEL k a ID r"), "0");
        // The cancel is forgotten after lock.request-ttl.
        client.call("CONFIG SET lock.request-ttl 40");
        assert_eq!(client.call("LOCK.CANCEL k b ID r"), "0");
        until("the cancel is forgotten", || client.call("EXISTS lock_request:{k}:b:r") == "0");
        assert_eq!(client.call("LOCK.ACQUIRE k b ID r"), "1");
    });
}

/// The cancel arrives in the event loop iteration of the handover, so no client is sent the grant.
fn an_unsent_grant_is_undone(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut client = world.client();
        client.call("LOCK.ACQUIRE k a PX 60000");
        let mut first = world.waiting("LOCK.ACQUIRE k b PX 50000 BLOCK 0");
        let mut second = world.waiting("LOCK.ACQUIRE k b PX 100 BLOCK 0 ID r");
        client.send_at_once(&["LOCK.RELEASE k a", "LOCK.CANCEL k b ID r"]);
        assert_eq!((client.recv(), client.recv()), ("0".to_owned(), "1".to_owned()));
        assert_eq!((first.recv(), second.recv()), ("1".to_owned(), CANCELLED.to_owned()));
        assert_eq!(client.call("HGETALL k"), "[b, 1]");
        assert!(client.number("PTTL k") > 40_000);
        // The next waiter gets the lock at once.
        let mut third = world.waiting("LOCK.ACQUIRE k c PX 60000 BLOCK 0 ID r");
        let mut fourth = world.waiting("LOCK.ACQUIRE k d PX 60000 BLOCK 0");
        client.send_at_once(&["LOCK.RELEASE k b", "LOCK.CANCEL k c ID r"]);
        assert_eq!((client.recv(), client.recv()), ("0".to_owned(), "1".to_owned()));
        assert_eq!((third.recv(), fourth.recv()), (CANCELLED.to_owned(), "1".to_owned()));
        assert_eq!(client.info("lock", "lock_waiters"), "0");
    });
}

/// The hold of the cancelled call has ended, and the owner has acquired the lock again.
fn a_late_cancel_spares_a_later_hold(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut client = world.client();
        for end in ["LOCK.RELEASE k a", "LOCK.BREAK k", "DEL k"] {
            let mut bound = world.client();
            assert_eq!(bound.call("LOCK.ACQUIRE k a PX 60000 EPHEMERAL ID 1"), "1");
            client.call(end);
            assert_eq!(client.call("LOCK.ACQUIRE k a PX 60000"), "1");
            assert_eq!(client.call("LOCK.CANCEL k a ID 1"), "0", "{end}");
            assert_eq!(client.call("LOCK.CHECK k OWNER a"), "1", "{end}");
            client.call("FLUSHALL");
        }
        let mut bound = world.client();
        assert_eq!(bound.call("LOCK.ACQUIRE k a PX 60000 EPHEMERAL ID 1"), "1");
        bound.close();
        until("the hold has ended", || client.call("EXISTS k") == "0");
        assert_eq!(client.call("LOCK.ACQUIRE k a PX 60000"), "1");
        assert_eq!(client.call("LOCK.CANCEL k a ID 1"), "0");
        assert_eq!(client.call("LOCK.CHECK k OWNER a"), "1");
    });
}

fn bindings_of_the_request_end(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut client = world.client();
        let mut bound = world.client();
        client.call("LOCK.ACQUIRE k a PX 60000");
        assert_eq!(bound.call("LOCK.ACQUIRE k a EPHEMERAL WATCHDOG ID r"), "2");
        assert_eq!(client.info("lock", "lock_ephemeral_holds"), "1");
        assert_eq!(client.call("LOCK.CANCEL k a ID r"), "1");
        assert_eq!(client.info("lock", "lock_ephemeral_holds"), "0");
        assert_eq!(client.info("lock", "lock_watchdogs"), "0");
        bound.close();
        until("the connection is closed", || client.info("clients", "connected_clients") == "1");
        assert_eq!(client.call("HGETALL k"), "[a, 1]");
        // A binding made by another call of the same connection stays.
        let mut bound = world.client();
        bound.call("LOCK.ACQUIRE l a EPHEMERAL");
        assert_eq!(bound.call("LOCK.ACQUIRE l a EPHEMERAL ID r"), "2");
        assert_eq!(client.call("LOCK.CANCEL l a ID r"), "1");
        bound.close();
        until("the lock is released", || client.call("EXISTS l") == "0");
    });
}

fn a_cancel_survives_a_restart(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut client = world.client();
        client.call("CONFIG SET lock.request-ttl 600000");
        assert_eq!(client.call("LOCK.CANCEL k a ID unknown"), "0");
        client.call("LOCK.ACQUIRE k a PX 600000 ID known");
        assert_eq!(client.call("LOCK.CANCEL k a ID known"), "1");
        client.call("DEBUG RELOAD");
        assert_eq!(client.call("LOCK.CANCEL k a ID known"), "1");
        assert_eq!(client.call("LOCK.CANCEL k a ID unknown"), "0");
        assert_eq!(client.call("LOCK.ACQUIRE k a ID known"), CANCELLED);
    });
}

fn bad_arguments_change_nothing(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut client = world.client();
        client.call("LOCK.ACQUIRE k a PX 60000 ID r");
        client.call("SET s x");
        for (call, error) in [
            ("LOCK.CANCEL k a", "ERR wrong number of arguments for 'lock.cancel' command"),
            ("LOCK.CANCEL k a ID", "ERR wrong number of arguments for 'lock.cancel' command"),
            ("LOCK.CANCEL k a ID r r", "ERR syntax error, unknown option 'r' in 'lock.cancel' command"),
            ("LOCK.CANCEL k a IX r", "ERR syntax error, unknown option 'IX' in 'lock.cancel' command"),
            (
                "LOCK.CANCEL k #a ID r",
                "ERR owner begins with '#' in 'lock.cancel' command; use another owner",
            ),
        ] {
            assert_eq!(client.call(call), error);
        }
        let long = [b'i'; 129];
        let error = "ERR ID is 129 bytes long in 'lock.cancel' command; use 1 to 128 bytes";
        assert_eq!(client.call_args(&[b"LOCK.CANCEL", b"k", b"a", b"ID", &long]), error);
        assert!(client.call("LOCK.CANCEL s a ID r").starts_with("WRONGTYPE"));
        client.call("LPUSH lock_request:{k}:a:other x");
        assert!(client.call("LOCK.CANCEL k a ID other").starts_with("WRONGTYPE"));
        assert_eq!(client.call("HGETALL k"), "[a, 1]");
    });
}

/// Cancels acquires from another connection around the moment of their grant, with the waiting connection open or closed.
fn a_thousand_cancels_leave_nothing(flavor: Flavor) {
    const TASKS: usize = 8;
    const ROUNDS: usize = 125;
    in_world_with(flavor, &["--maxclients", "2000"], |world: &World| {
        let port = world.primary.port;
        std::thread::scope(|scope| {
            for task in 0..TASKS {
                scope.spawn(move || cancel_in_rounds(port, task, ROUNDS));
            }
        });
        let mut client = world.client();
        until("their connections are closed", || client.info("clients", "connected_clients") == "1");
        assert_eq!(client.call("EXISTS k"), "0", "the lock is still held: {}", client.call("LOCK.INFO k"));
        assert_eq!(client.info("lock", "lock_waiters"), "0");
        assert_eq!(client.info("lock", "lock_contended_locks"), "0");
    });
}

fn cancel_in_rounds(port: u16, task: usize, rounds: usize) {
    let mut canceller = Client::connect(port);
    let mut outcomes = HashSet::new();
    for round in 0..rounds {
        // Pseudo-random pauses, so that the tasks do not run in step.
        let pause = (round * 7919 + task * 104_729) % 1_500;
        let mut waiting = Client::connect(port);
        let owner = if round % 5 == 0 { "same".to_owned() } else { format!("{task}-{round}") };
        let (mode, id) = (if round % 3 == 0 { " SHARED" } else { "" }, format!("{task}-{round}"));
        waiting.send(&format!("LOCK.ACQUIRE k {owner} PX 600000 BLOCK 0{mode} ID {id}"));
        std::thread::sleep(Duration::from_micros(pause as u64));
        let cancel = format!("LOCK.CANCEL k {owner} ID {id}");
        match round % 4 {
            0 => {
                waiting.close();
                canceller.call(&cancel);
            }
            1 => {
                canceller.call(&cancel);
                waiting.close();
            }
            2 => {
                canceller.call(&cancel);
                let reply = waiting.recv();
                // The grant may have been sent before the cancel, which undoes it in that case, too.
                assert!(reply == CANCELLED || reply.parse::<i64>().is_ok(), "{reply}");
                outcomes.insert(reply == CANCELLED);
            }
            _ => {
                // Cancels the call and closes its connection at once. The server may process either first.
                canceller.send(&cancel);
                waiting.close();
                canceller.recv();
            }
        }
        assert_eq!(canceller.call(&format!("LOCK.ACQUIRE k {owner} ID {id}")), CANCELLED);
    }
    assert!(!outcomes.is_empty());
}

#[test]
fn cancel_is_flagged_as_a_write() {
    if !Flavor::Redis7.is_installed() {
        return;
    }
    let server = Server::with_module(Flavor::Redis7, &[]);
    let info = server.client().call("COMMAND INFO LOCK.CANCEL");
    assert!(info.contains("write") && info.contains("fast") && !info.contains("denyoom"), "{info}");
}
