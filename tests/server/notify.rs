// SPDX-License-Identifier: MIT

//! `NOTIFY`: waits that do not block their connection and are granted by a message (invariants 1, 3, 4, 6, 9).

use std::time::Instant;

use redis::Value;

use crate::support::client::{fields, prefix};
use crate::support::cluster::Cluster;
use crate::support::{in_world, in_world_with, until, Client, Flavor, Server};

crate::on_every_server!(
    the_message_is_the_grant,
    the_confirmation_binds_and_renews,
    a_free_lock_is_granted_at_once,
    invalid_options_are_refused,
    retrying_keeps_the_position,
    an_unconfirmed_grant_goes_to_the_next,
    unconfirmed_grants_end_the_connections_waits,
    a_renewal_confirms_a_grant,
    requests_of_one_owner_are_separate,
    a_restored_grant_is_confirmed_once,
    waits_end_with_their_connection,
    a_wait_belongs_to_the_latest_connection,
    a_grant_without_subscriber_is_passed_on,
    a_retry_finds_a_lost_message,
    cancel_ends_the_wait_or_releases,
    ended_waits_and_grants_are_reported,
    a_cancelled_hold_loses_its_grant,
    messages_follow_the_transaction,
    scripts_cannot_wait,
    the_channel_needs_permission,
    waits_per_connection_are_limited,
    deadlocks_are_found,
    all_waits_share_one_queue,
    a_grant_can_be_confirmed_after_failover,
    a_moved_slot_ends_the_wait,
    messages_reach_other_nodes,
    waits_outlast_a_quarantine,
);

/// Subscribes to an inbox on a connection that can also run commands.
pub fn inbox(server: &Server, name: &str) -> Client {
    let mut client = server.client();
    client.call("HELLO 3");
    client.send(&format!("SUBSCRIBE lock:inbox:{name}"));
    assert_eq!(client.recv(), format!("push[lock:inbox:{name}, 1]"));
    client
}

/// The text of the next message, which must be for this inbox.
fn next_message(client: &mut Client, name: &str) -> String {
    let text = client.recv();
    let (push, resp2) = (format!("push[lock:inbox:{name}, "), format!("[message, lock:inbox:{name}, "));
    let said = text.strip_prefix(&push).or(text.strip_prefix(&resp2));
    said.unwrap_or_else(|| panic!("no message: {text}")).trim_end_matches(']').to_owned()
}

fn the_message_is_the_grant(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), inbox(world, "w1"));
        a.call("LOCK.ACQUIRE k a");
        assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w1 ID r1 PX 60000 FENCE"), "0");
        let waiters = a.call_value("LOCK.WAITERS k");
        let Value::Array(waiters) = waiters else { panic!("{waiters:?}") };
        let waiter = fields(&waiters[0]);
        assert_eq!((waiters.len(), waiter["owner"]), (1, &Value::BulkString(b"b".to_vec())));
        assert_eq!((waiter["remaining"], waiter["client"]), (&Value::Int(-1), &Value::Int(b.id)));
        assert_eq!(a.info("lock", "lock_notify_waits"), "1");
        assert!(b.has_nothing(), "a message before the grant");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(next_message(&mut b, "w1"), "granted r1 k");
        assert_eq!(a.call("HGET k b"), "1");
        assert!((1..=5000).contains(&a.number("PTTL k")), "the hold lasts longer than the grace");
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "nil");
        let token = a.call("GET redisson_lock_token:{k}");
        let confirmed = b.call("LOCK.ACQUIRE k b NOTIFY w1 ID r1 PX 60000 FENCE");
        assert_eq!(confirmed, format!("{{owner: b, holds: 1, token: {token}}}"));
        assert!((50_000..=60_000).contains(&a.number("PTTL k")), "the confirmation does not set the lease");
        assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w1 ID r1 PX 60000 FENCE"), confirmed);
        assert_eq!(b.call("LOCK.RELEASE k b"), "0", "the hold was counted twice");
        assert_eq!(a.info("lock", "lock_notify_confirmed"), "1");
        assert_eq!(a.info("lock", "lock_notify_not_confirmed"), "0");
        assert_eq!(a.info("lock", "lock_waiters_granted"), "1");
        assert!(b.has_nothing());
    });
}

fn the_confirmation_binds_and_renews(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), inbox(world, "w"));
        let mut other = world.client();
        a.call("LOCK.ACQUIRE k a");
        let call = "LOCK.ACQUIRE k b NOTIFY w ID r GRACE 2000 PX 300 WATCHDOG EPHEMERAL";
        assert_eq!(b.call(call), "0");
        a.call("LOCK.RELEASE k a");
        assert_eq!(next_message(&mut b, "w"), "granted r k");
        assert!(a.number("PTTL k") <= 300, "the grace is no longer than the lease");
        assert_eq!(a.info("lock", "lock_watchdogs"), "0", "nothing is bound yet");
        assert_eq!(other.call(call), "1");
        assert_eq!(
            (a.info("lock", "lock_watchdogs"), a.info("lock", "lock_ephemeral_holds")),
            ("1".into(), "1".into())
        );
        b.close();
        let before = a.number("PEXPIRETIME k");
        until("the lease is renewed", || a.number("PEXPIRETIME k") > before);
        other.close();
        until("the hold ends with the confirming connection", || a.call("EXISTS k") == "0");
    });
}

fn a_free_lock_is_granted_at_once(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut b = inbox(world, "w");
        assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w ID r PX 60000 GRACE 10"), "1");
        assert!(b.number("PTTL k") > 50_000, "the reply is the confirmation, too");
        assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w ID s"), "2", "a re-entry");
        assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w ID r PX 60000 GRACE 10"), "1");
        assert_eq!(b.call("LOCK.RELEASE k b ALL"), "0");
        assert_eq!(
            b.call("LOCK.ACQUIRE s b SHARED LIMIT 2 NOTIFY w ID r FENCE").split(", token").next(),
            Some("{owner: b, holds: 1")
        );
        assert!(b.has_nothing());
    });
}

fn invalid_options_are_refused(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let long = "x".repeat(129);
        let named = |what: &str| format!("{what} is 129 bytes long");
        for (call, problem) in [
            ("k b NOTIFY w", "NOTIFY needs ID"),
            ("k b NOTIFY", "NOTIFY needs a value"),
            ("k b ID r GRACE 5", "GRACE needs NOTIFY"),
            ("k b ID r NOTIFY w GRACE 0", "GRACE is out of range"),
            ("k b ID r NOTIFY w GRACE x", "GRACE 'x' is not an integer"),
            ("k b ID r NOTIFY w NOTIFY v", "NOTIFY is given twice"),
            ("k b ID r NOTIFY w GRACE 1 GRACE 1", "GRACE is given twice"),
            ("k b ID r NOTIFY w BLOCK 0", "only one of BLOCK and NOTIFY is allowed"),
            ("k * ID r NOTIFY w", "NOTIFY needs an owner other than *"),
            ("k b ID r NOTIFY w REPLICAS 1", "only one of NOTIFY and REPLICAS is allowed"),
            (&format!("k b ID r NOTIFY {long}"), &named("NOTIFY")),
            (&format!("k b ID {long} NOTIFY w"), &named("ID")),
        ] {
            let reply = a.call(&format!("LOCK.ACQUIRE {call}"));
            assert!(reply.starts_with(&format!("ERR {problem} in 'lock.acquire' command")), "{reply}");
        }
        let spaced = a.call_args(&[b"LOCK.ACQUIRE", b"k", b"b", b"NOTIFY", b"w", b"ID", b"a b"]);
        assert_eq!(
            spaced,
            "ERR ID contains a space in 'lock.acquire' command; NOTIFY needs an ID without spaces"
        );
        let reply = a.call("LOCK.MACQUIRE 1 k b NOTIFY w ID r");
        assert_eq!(reply, "ERR syntax error, unknown option 'NOTIFY' in 'lock.macquire' command");
        assert_eq!(a.call("KEYS *"), "[k]");
        assert_eq!(a.info("lock", "lock_waiters"), "0");
        assert_eq!(a.info("lock", "lock_table_inboxes"), "0");
    });
}

fn retrying_keeps_the_position(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), inbox(world, "w"));
        a.call("LOCK.ACQUIRE k a");
        for owner in ["b", "c", "d"] {
            assert_eq!(b.call(&format!("LOCK.ACQUIRE k {owner} NOTIFY w ID r{owner}")), "0");
        }
        for owner in ["c", "b", "b"] {
            assert_eq!(b.call(&format!("LOCK.ACQUIRE k {owner} NOTIFY w ID r{owner}")), "0");
        }
        assert_eq!(a.info("lock", "lock_waiters"), "3");
        // A repeated request that now blocks keeps its position, too.
        let mut blocked = world.client();
        blocked.send("LOCK.ACQUIRE k b BLOCK 0 ID rb");
        until("the wait is blocking", || a.info("lock", "lock_table_notified_waits") == "2");
        a.call("LOCK.RELEASE k a");
        assert_eq!(blocked.recv(), "1");
        a.call("LOCK.RELEASE k b");
        assert_eq!(next_message(&mut b, "w"), "granted rc k");
        a.call("LOCK.RELEASE k c");
        assert_eq!(
            [next_message(&mut b, "w"), next_message(&mut b, "w")],
            ["lost rc k", "granted rd k"],
            "a release ends an unconfirmed grant"
        );
        a.call("LOCK.RELEASE k d");
        assert_eq!(next_message(&mut b, "w"), "lost rd k");
    });
}

fn an_unconfirmed_grant_goes_to_the_next(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), inbox(world, "w"));
        a.call("LOCK.ACQUIRE k a");
        assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w ID r1 GRACE 100"), "0");
        assert_eq!(b.call("LOCK.ACQUIRE k c NOTIFY w ID r2"), "0");
        a.call("LOCK.RELEASE k a");
        assert_eq!(next_message(&mut b, "w"), "granted r1 k");
        assert_eq!(next_message(&mut b, "w"), "lost r1 k");
        assert_eq!(next_message(&mut b, "w"), "granted r2 k");
        assert_eq!(
            a.call("LOCK.ACQUIRE k b NOTIFY w ID r1 GRACE 100"),
            "0",
            "the confirmation came too late"
        );
        assert_eq!(b.call("LOCK.ACQUIRE k c NOTIFY w ID r2"), "1");
        assert_eq!(a.info("lock", "lock_notify_not_confirmed"), "1");
        assert_eq!(a.call("LOCK.CANCEL k b ID r1"), "1");
        assert_eq!(next_message(&mut b, "w"), "lost r1 k");
    });
}

fn unconfirmed_grants_end_the_connections_waits(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut hung, mut good) = (world.client(), inbox(world, "hung"), inbox(world, "good"));
        // Otherwise the server may delete the key at the end of a grace period, before the module's timer. Such a
        // grant is voided, and does not count as unconfirmed.
        assert_eq!(a.call("DEBUG SET-ACTIVE-EXPIRE 0"), "OK");
        a.call("LOCK.ACQUIRE k a");
        a.call("LOCK.ACQUIRE l a");
        for number in 0..6 {
            assert_eq!(
                hung.call(&format!("LOCK.ACQUIRE k h{number} NOTIFY hung ID r{number} GRACE 20")),
                "0"
            );
        }
        assert_eq!(hung.call("LOCK.ACQUIRE l h NOTIFY hung ID rl GRACE 20"), "0");
        assert_eq!(good.call("LOCK.ACQUIRE k g NOTIFY good ID g"), "0");
        a.call("LOCK.RELEASE k a");
        assert_eq!(next_message(&mut good, "good"), "granted g k");
        assert_eq!(good.call("LOCK.ACQUIRE k g NOTIFY good ID g"), "1");
        for number in 0..3 {
            assert_eq!(next_message(&mut hung, "hung"), format!("granted r{number} k"));
            assert_eq!(next_message(&mut hung, "hung"), format!("lost r{number} k"));
        }
        let mut lost: Vec<String> = (0..4).map(|_| next_message(&mut hung, "hung")).collect();
        lost.sort();
        assert_eq!(lost, ["lost r3 k", "lost r4 k", "lost r5 k", "lost rl l"]);
        assert_eq!(a.info("lock", "lock_notify_dropped"), "4");
        assert_eq!(a.info("lock", "lock_waiters"), "0");
        // The count starts again: two unconfirmed grants, a confirmed one, and two unconfirmed ones.
        for round in 0..2 {
            for number in 0..4 {
                let call = format!("LOCK.ACQUIRE k n{number} NOTIFY hung ID n{round}{number} GRACE 20");
                assert_eq!(hung.call(&call), "0");
            }
            a.call("LOCK.BREAK k");
            for number in 0..2 {
                assert_eq!(next_message(&mut hung, "hung"), format!("granted n{round}{number} k"));
                assert_eq!(next_message(&mut hung, "hung"), format!("lost n{round}{number} k"));
            }
            assert_eq!(next_message(&mut hung, "hung"), format!("granted n{round}2 k"));
            let call = format!("LOCK.ACQUIRE k n2 NOTIFY hung ID n{round}2 GRACE 20");
            if hung.call(&call) == "1" {
                assert_eq!(hung.call("LOCK.RELEASE k n2"), "0");
                assert_eq!(next_message(&mut hung, "hung"), format!("granted n{round}3 k"));
            }
            a.call("LOCK.BREAK k");
            a.call(&format!("LOCK.CANCEL k n3 ID n{round}3"));
            a.call(&format!("LOCK.CANCEL k n2 ID n{round}2"));
            a.call("LOCK.ACQUIRE k a");
            while !hung.has_nothing() {
                next_message(&mut hung, "hung");
            }
        }
    });
}

/// A renewal shows that the owner knows of its hold.
fn a_renewal_confirms_a_grant(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), inbox(world, "w"));
        a.call("LOCK.ACQUIRE k a");
        assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w ID r GRACE 300"), "0");
        a.call("LOCK.RELEASE k a");
        assert_eq!(next_message(&mut b, "w"), "granted r k");
        assert_eq!(b.call("LOCK.RENEW k b PX 60000"), "1");
        assert_eq!(a.info("lock", "lock_table_notified_waits"), "0");
        assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w ID r GRACE 300 PX 50000"), "1", "the same grant");
        assert!(b.number("PTTL k") > 30_000);
        assert_eq!(b.call("LOCK.RELEASE k b"), "0");
    });
}

/// Releasing an unconfirmed grant keeps the owner's other requests.
fn requests_of_one_owner_are_separate(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), inbox(world, "w"));
        let ask = |request: &str, options: &str| {
            format!("LOCK.ACQUIRE k o PX 60000 NOTIFY w ID {request} {options}")
        };
        // Two grants to one owner: one is released, the other confirmed.
        for (number, shared) in ["", "SHARED"].into_iter().enumerate() {
            a.call("LOCK.ACQUIRE k x");
            assert_eq!(b.call(&ask(&format!("1{number}"), &format!("GRACE 300 {shared}"))), "0");
            assert_eq!(b.call(&ask(&format!("2{number}"), &format!("GRACE 5000 {shared}"))), "0");
            let mut next = world.waiting("LOCK.ACQUIRE k z BLOCK 0");
            a.call("LOCK.RELEASE k x");
            assert_eq!(next_message(&mut b, "w"), format!("granted 1{number} k"));
            assert_eq!(next_message(&mut b, "w"), format!("granted 2{number} k"));
            assert_eq!(b.call("LOCK.RELEASE k o"), "1");
            assert_eq!(next_message(&mut b, "w"), format!("lost 1{number} k"));
            assert_eq!(
                b.call(&ask(&format!("2{number}"), &format!("GRACE 5000 {shared}"))),
                "1",
                "the number of holds"
            );
            assert_eq!(a.info("lock", "lock_table_deadlines"), "0", "no grace is left to end");
            assert!(next.has_nothing(), "the other request holds the lock");
            assert_eq!(b.call("LOCK.RENEW k o"), "1");
            assert_eq!(b.call("LOCK.RELEASE k o"), "0");
            assert_eq!(next.recv(), "1");
            a.call("LOCK.RELEASE k z");
        }
        // Another thread's release ends a reader's upgrade, which can no longer be confirmed.
        a.call("LOCK.ACQUIRE k r SHARED");
        a.call("LOCK.ACQUIRE k o SHARED");
        assert_eq!(b.call(&ask("up", "")), "0");
        a.call("LOCK.RELEASE k r");
        assert_eq!(next_message(&mut b, "w"), "granted up k");
        assert_eq!(a.call("LOCK.RELEASE k o"), "1");
        assert_eq!(next_message(&mut b, "w"), "lost up k");
        assert_eq!(a.call("LOCK.ACQUIRE k r2 SHARED"), "1");
        assert_eq!(b.call(&ask("up", "")), "0", "another reader holds the lock");
        assert_eq!(b.call("LOCK.CANCEL k o ID up"), "1");
        assert_eq!(next_message(&mut b, "w"), "lost up k");
        a.call("LOCK.BREAK k");
        // A renewal by one thread does not confirm another thread's grant.
        a.call("LOCK.ACQUIRE k x");
        let mut other = world.client();
        assert_eq!(other.call(&ask("c", "")), "0");
        assert_eq!(b.call(&ask("d", "")), "0");
        a.call("LOCK.RELEASE k x");
        assert_eq!([next_message(&mut b, "w"), next_message(&mut b, "w")], ["granted c k", "granted d k"]);
        assert_eq!(b.call(&ask("d", "")), "2");
        assert_eq!(b.call("LOCK.RENEW k o PX 60000"), "2");
        other.close();
        until("the unconfirmed hold has ended", || a.call("HGET k o") == "1");
        assert_eq!(b.call("LOCK.RELEASE k o"), "0");
        // With its ID, a release ends exactly that grant, even if the owner has further holds.
        a.call("LOCK.ACQUIRE k x");
        assert_eq!(b.call(&ask("e", "")), "0");
        assert_eq!(b.call(&ask("f", "")), "0");
        a.call("LOCK.RELEASE k x");
        assert_eq!([next_message(&mut b, "w"), next_message(&mut b, "w")], ["granted e k", "granted f k"]);
        assert_eq!(b.call(&ask("e", "")), "2");
        assert_eq!(b.call("LOCK.RELEASE k o ID f"), "1");
        assert_eq!(next_message(&mut b, "w"), "lost f k");
        assert_eq!(b.call("LOCK.RELEASE k o"), "0");
    });
}

/// All keys disappear and are restored, including the request's record.
fn a_restored_grant_is_confirmed_once(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), inbox(world, "w"));
        a.call("LOCK.ACQUIRE k x");
        assert_eq!(b.call("LOCK.ACQUIRE k o PX 60000 NOTIFY w ID 1"), "0");
        a.call("LOCK.RELEASE k x");
        assert_eq!(next_message(&mut b, "w"), "granted 1 k");
        a.send_at_once(&["MULTI", "SWAPDB 0 1", "SWAPDB 0 1", "EXEC"]);
        assert_eq!([a.recv(), a.recv(), a.recv()], ["OK", "QUEUED", "QUEUED"]);
        assert_eq!(a.recv(), "[OK, OK]");
        assert_eq!(next_message(&mut b, "w"), "lost 1 k");
        assert_eq!(b.call("LOCK.ACQUIRE k o PX 60000 NOTIFY w ID 1"), "1", "the grant was counted twice");
        assert_eq!(b.call("LOCK.RELEASE k o"), "0");
    });
}

fn waits_end_with_their_connection(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut listener) = (world.client(), inbox(world, "w"));
        a.call("LOCK.ACQUIRE k a");
        a.call("LOCK.ACQUIRE l a");
        let mut b = world.client();
        for key in ["k", "l"] {
            assert_eq!(b.call(&format!("LOCK.ACQUIRE {key} b NOTIFY w ID r")), "0");
        }
        let mut next = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        a.call("LOCK.RELEASE k a");
        assert_eq!(next_message(&mut listener, "w"), "granted r k");
        // One wait is granted but unconfirmed, the other still waits.
        b.close();
        assert_eq!(next.recv(), "1", "the grant did not go to the next waiter");
        until("there are no waiters", || a.info("lock", "lock_waiters") == "0");
        assert_eq!(a.call("LOCK.RELEASE l a"), "0");
        assert_eq!(a.call("KEYS l"), "[]");
        assert!(listener.has_nothing(), "a message for a closed connection");
        let mut killed = world.client();
        assert_eq!(killed.call("LOCK.ACQUIRE k b NOTIFY w ID r2"), "0");
        assert_eq!(a.call(&format!("CLIENT KILL ID {}", killed.id)), "1");
        assert_eq!(a.call("LOCK.WAITERS k"), "[]", "not in the same event loop iteration");
        assert_eq!(a.info("lock", "lock_table_inboxes"), "0");
    });
}

fn a_wait_belongs_to_the_latest_connection(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut listener) = (world.client(), inbox(world, "w"));
        a.call("LOCK.ACQUIRE k a");
        let (mut first, mut second) = (world.client(), world.client());
        for client in [&mut first, &mut second] {
            assert_eq!(client.call("LOCK.ACQUIRE k b NOTIFY w ID r"), "0");
        }
        let id = first.id;
        first.close();
        until("the first connection is closed", || !a.call("CLIENT LIST").contains(&format!("id={id} ")));
        assert_eq!(a.info("lock", "lock_waiters"), "1");
        a.call("LOCK.RELEASE k a");
        assert_eq!(next_message(&mut listener, "w"), "granted r k");
        assert_eq!(second.call("LOCK.ACQUIRE k b NOTIFY w ID r"), "1");
    });
}

fn a_grant_without_subscriber_is_passed_on(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut unsubscribed) = (world.client(), world.client());
        a.call("LOCK.ACQUIRE k a");
        for number in 0..5 {
            assert_eq!(
                unsubscribed.call(&format!(
                    "LOCK.ACQUIRE k d{number} NOTIFY unsubscribed ID r{number} PX 600000 GRACE 600000"
                )),
                "0"
            );
        }
        let mut listener = inbox(world, "w");
        assert_eq!(unsubscribed.call("LOCK.ACQUIRE k b NOTIFY w ID b"), "0");
        let mut next = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        a.call("LOCK.RELEASE k a");
        // After three grants without a subscriber, the connection's waits are dropped.
        assert_eq!(next.recv(), "1");
        assert_eq!(a.info("lock", "lock_notify_not_confirmed"), "3");
        assert_eq!(a.info("lock", "lock_notify_dropped"), "3");
        assert_eq!(next_message(&mut listener, "w"), "lost b k");
        assert_eq!(a.info("lock", "lock_waiters"), "0");
        assert_eq!(a.call("KEYS lock_request*"), "[]", "nothing was granted");
    });
}

fn a_retry_finds_a_lost_message(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), world.client());
        let listener = inbox(world, "w");
        a.call("LOCK.ACQUIRE k a");
        assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w ID r"), "0");
        a.call("LOCK.RELEASE k a");
        // The subscriber disconnects before it reads the message.
        until("the message was sent", || !listener.has_nothing());
        listener.close();
        assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w ID r"), "1");
        // If all calls come in one event loop iteration, the message is not needed.
        let mut listener = inbox(world, "w");
        a.send_at_once(&[
            "LOCK.ACQUIRE l a",
            "LOCK.ACQUIRE l b NOTIFY w ID r",
            "LOCK.RELEASE l a",
            "LOCK.ACQUIRE l b NOTIFY w ID r",
        ]);
        assert_eq!([a.recv(), a.recv(), a.recv(), a.recv()], ["1", "0", "0", "1"]);
        assert_eq!(a.call("LOCK.RELEASE l b"), "0");
        assert!(listener.has_nothing());
        assert_eq!(listener.call("PING"), "PONG");
    });
}

fn cancel_ends_the_wait_or_releases(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), inbox(world, "w"));
        a.call("LOCK.ACQUIRE k a");
        assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w ID r1"), "0");
        assert_eq!(a.call("LOCK.CANCEL k b ID r1"), "1");
        assert_eq!(next_message(&mut b, "w"), "lost r1 k");
        assert_eq!(prefix(&b.call("LOCK.ACQUIRE k b NOTIFY w ID r1")), "UNBLOCKED");
        assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w ID r2"), "0");
        let mut next = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        a.call("LOCK.RELEASE k a");
        assert_eq!(next_message(&mut b, "w"), "granted r2 k");
        assert_eq!(b.call("LOCK.CANCEL k b ID r2"), "1");
        assert_eq!(next_message(&mut b, "w"), "lost r2 k");
        assert_eq!(next.recv(), "1");
        assert_eq!(b.call("LOCK.ACQUIRE k d NOTIFY w ID r3"), "0");
        a.call("LOCK.RELEASE k c");
        assert_eq!(next_message(&mut b, "w"), "granted r3 k");
        assert_eq!(b.call("LOCK.ACQUIRE k d NOTIFY w ID r3"), "1");
        assert_eq!(b.call("LOCK.CANCEL k d ID r3"), "1", "a confirmed hold is released");
        assert_eq!(b.call("EXISTS k"), "0");
    });
}

fn ended_waits_and_grants_are_reported(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), inbox(world, "w"));
        for (number, end) in ["LOCK.BREAK k", "DEL k", "FLUSHALL", "PEXPIRE k 1"].into_iter().enumerate() {
            a.call("LOCK.ACQUIRE k a");
            let call = format!("LOCK.ACQUIRE k b NOTIFY w ID r{number}");
            assert_eq!(b.call(&call), "0");
            a.call("LOCK.RELEASE k a");
            assert_eq!(next_message(&mut b, "w"), format!("granted r{number} k"));
            a.call(end);
            assert_eq!(next_message(&mut b, "w"), format!("lost r{number} k"), "{end}");
            a.call("LOCK.ACQUIRE k a");
            assert_eq!(b.call(&call), "0", "{end}: the grant is still recorded");
            assert_eq!(a.call(&format!("LOCK.CANCEL k b ID r{number}")), "1");
            assert_eq!(next_message(&mut b, "w"), format!("lost r{number} k"));
            a.call("LOCK.RELEASE k a");
        }
        a.call("LOCK.ACQUIRE k a PX 100");
        assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w ID t"), "0");
        a.call("SET k x");
        assert_eq!(next_message(&mut b, "w"), "lost t k");
        assert_eq!(prefix(&b.call("LOCK.ACQUIRE k b NOTIFY w ID t")), "WRONGTYPE");
        a.call("DEL k");
    });
}

fn a_cancelled_hold_loses_its_grant(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut c) = (world.client(), inbox(world, "w"));
        assert_eq!(a.call("LOCK.ACQUIRE k c ID r1"), "1");
        assert_eq!(a.call("LOCK.RELEASE k c"), "0");
        for reader in ["c", "d"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {reader} SHARED PX 60000")), "1");
        }
        let call = "LOCK.ACQUIRE k c NOTIFY w ID r2 GRACE 60000";
        assert_eq!(c.call(call), "0");
        assert_eq!(a.call("LOCK.RELEASE k d"), "0");
        assert_eq!(next_message(&mut c, "w"), "granted r2 k");
        assert_eq!(a.call("LOCK.CANCEL k c ID r1"), "1");
        assert_eq!(next_message(&mut c, "w"), "lost r2 k");
        assert_eq!(a.call("LOCK.ACQUIRE k stranger SHARED PX 60000"), "1");
        assert_eq!(c.call(call), "0", "the call starts a new wait");
    });
}

/// Redis 7.0 would send the message in the middle of the reply.
fn messages_follow_the_transaction(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut b = inbox(world, "w");
        b.call("LOCK.ACQUIRE k a");
        b.send_at_once(&[
            "MULTI",
            "LOCK.ACQUIRE k b NOTIFY w ID r",
            "LOCK.RELEASE k a",
            "PING",
            "EXEC",
            "ECHO after",
        ]);
        let replies: Vec<String> = (0..4).map(|_| b.recv()).collect();
        assert_eq!(replies, ["OK", "QUEUED", "QUEUED", "QUEUED"]);
        assert_eq!(b.recv(), "[0, 0, PONG]");
        assert_eq!(b.recv(), "after");
        assert_eq!(next_message(&mut b, "w"), "granted r k");
        b.send_at_once(&["MULTI", "LOCK.ACQUIRE k b NOTIFY w ID r", "LOCK.RENEW k b", "EXEC"]);
        let replies: Vec<String> = (0..4).map(|_| b.recv()).collect();
        assert_eq!(replies, ["OK", "QUEUED", "QUEUED", "[1, 1]"]);
    });
}

fn scripts_cannot_wait(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let script = b"return redis.call('LOCK.ACQUIRE', KEYS[1], 'b', 'NOTIFY', 'w', 'ID', 'r')";
        for key in [&b"k"[..], b"free"] {
            let reply = a.call_args(&[b"EVAL", script, b"1", key]);
            assert!(reply.contains("NOTIFY needs a connection"), "{reply}");
        }
        assert_eq!(a.call("EXISTS free"), "0");
    });
}

fn the_channel_needs_permission(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        a.call("ACL SETUSER some on nopass +@all ~* resetchannels &lock:inbox:mine*");
        let mut user = world.client();
        assert_eq!(user.call("AUTH some x"), "OK");
        for inbox in ["yours", "m"] {
            let reply = user.call(&format!("LOCK.ACQUIRE k b NOTIFY {inbox} ID r"));
            assert_eq!(
                reply,
                "NOPERM this user has no permissions to access one of the channels used as arguments"
            );
        }
        assert_eq!(a.info("lock", "lock_waiters"), "0");
        assert_eq!(user.call("LOCK.ACQUIRE k b NOTIFY mine1 ID r"), "0");
        assert_eq!(prefix(&user.call("LOCK.ACQUIRE k b NOTIFY yours ID r")), "NOPERM");
        // A revoked permission takes effect soon.
        a.call("ACL SETUSER some resetchannels &nothing");
        until("the call is refused", || prefix(&user.call("LOCK.ACQUIRE k b NOTIFY mine1 ID r")) == "NOPERM");
    });
}

fn waits_per_connection_are_limited(flavor: Flavor) {
    in_world_with(flavor, &["--lock.max-notify", "3"], |world| {
        let (mut a, mut b) = (world.client(), inbox(world, "w"));
        let mut other = world.client();
        for key in ["k0", "k1", "k2", "k3"] {
            a.call(&format!("LOCK.ACQUIRE {key} a"));
        }
        for key in 0..3 {
            assert_eq!(b.call(&format!("LOCK.ACQUIRE k{key} b NOTIFY w ID r")), "0");
        }
        let refused = "ERR too many waits of this connection; try again later, or raise lock.max-notify";
        assert_eq!(b.call("LOCK.ACQUIRE k3 b NOTIFY w ID r"), refused);
        assert_eq!(b.call("LOCK.ACQUIRE k2 b NOTIFY w ID r"), "0", "the request waits already");
        assert_eq!(b.call("LOCK.ACQUIRE free b NOTIFY w ID r"), "1", "a free lock needs no wait");
        assert_eq!(other.call("LOCK.ACQUIRE k3 b NOTIFY w ID r"), "0", "another connection");
        a.call("LOCK.RELEASE k0 a");
        assert_eq!(next_message(&mut b, "w"), "granted r k0");
        assert_eq!(other.call("LOCK.ACQUIRE k3 b NOTIFY w ID r"), "0");
        assert_eq!(
            b.call("LOCK.ACQUIRE k3 b NOTIFY w ID r2"),
            refused,
            "an unconfirmed grant counts as a wait"
        );
        assert_eq!(b.call("LOCK.ACQUIRE k0 b NOTIFY w ID r"), "1");
        assert_eq!(b.call("LOCK.ACQUIRE k3 b NOTIFY w ID r2"), "0");
        assert_eq!(a.call("CONFIG SET lock.max-notify 0"), "OK");
        assert_eq!(a.call("CONFIG SET lock.max-waiters 2"), "OK");
        assert_eq!(
            b.call("LOCK.ACQUIRE k3 c NOTIFY w ID r3"),
            "ERR too many waiters for this lock; try again later, or raise lock.max-waiters"
        );
        assert_eq!(b.call("LOCK.ACQUIRE k2 c NOTIFY w ID r3"), "0");
    });
}

fn deadlocks_are_found(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (inbox(world, "a"), inbox(world, "b"));
        a.call("LOCK.ACQUIRE k a");
        b.call("LOCK.ACQUIRE l b");
        assert_eq!(a.call("LOCK.ACQUIRE l a NOTIFY a ID r"), "0");
        assert_eq!(
            b.call("LOCK.ACQUIRE k b NOTIFY b ID r"),
            "DEADLOCK waiting could never end: b waits for a (lock k), a for b (lock l)"
        );
        assert_eq!(b.call("LOCK.WAITERS k"), "[]");
        assert_eq!(prefix(&b.call("LOCK.ACQUIRE k b BLOCK 0")), "DEADLOCK");
        assert_eq!(
            b.call("LOCK.BLOCKERS a").replace(&b.id.to_string(), "?"),
            "[{owner: b, key: l, client: nil}]"
        );
        b.call("LOCK.RELEASE l b");
        assert_eq!(next_message(&mut a, "a"), "granted r l");
    });
}

/// Waits of every kind share one queue.
fn all_waits_share_one_queue(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), inbox(world, "w"));
        a.call("LOCK.ACQUIRE k a");
        assert_eq!(b.call("LOCK.ACQUIRE k b1 NOTIFY w ID 1"), "0");
        let mut blocked = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        assert_eq!(b.call("LOCK.ACQUIRE k b2 SHARED NOTIFY w ID 2"), "0");
        let mut two = world.waiting("LOCK.MACQUIRE 2 k m d BLOCK 0");
        assert_eq!(b.call("LOCK.ACQUIRE k b3 SHARED NOTIFY w ID 3"), "0");
        a.call("LOCK.RELEASE k a");
        assert_eq!(next_message(&mut b, "w"), "granted 1 k");
        assert_eq!(b.call("LOCK.ACQUIRE k b1 NOTIFY w ID 1"), "1");
        assert_eq!(b.call("LOCK.RELEASE k b1"), "0");
        assert_eq!(blocked.recv(), "1");
        a.call("LOCK.RELEASE k c");
        assert_eq!(next_message(&mut b, "w"), "granted 2 k");
        assert!(b.has_nothing(), "the call for several locks is between the readers");
        assert_eq!(b.call("LOCK.ACQUIRE k b2 SHARED NOTIFY w ID 2"), "1");
        assert_eq!(b.call("LOCK.RELEASE k b2"), "0");
        assert_eq!(two.recv(), "[1, 1]");
        assert_eq!(a.call("LOCK.MRELEASE 2 k m d"), "[0, 0]");
        assert_eq!(next_message(&mut b, "w"), "granted 3 k");
        assert_eq!(b.call("LOCK.RELEASE k b3"), "0");
    });
}

fn a_grant_can_be_confirmed_after_failover(flavor: Flavor) {
    let mut old = Server::with_module(flavor, &[]);
    let mut new = Server::with_module(flavor, &[]);
    new.follow(&old);
    let (mut a, mut there) = (inbox(&old, "w"), new.client());
    a.call("LOCK.ACQUIRE k x PX 600000");
    a.call("LOCK.ACQUIRE l x PX 600000");
    assert_eq!(a.call("LOCK.ACQUIRE k a NOTIFY w ID r GRACE 20000 PX 600000 FENCE"), "0");
    assert_eq!(a.call("LOCK.ACQUIRE l a NOTIFY w ID s PX 600000"), "0");
    a.call("LOCK.RELEASE k x");
    assert_eq!(next_message(&mut a, "w"), "granted r k");
    until("the replica has it", || there.call("HGET k a") == "1");
    assert_eq!(there.call("REPLICAOF NO ONE"), "OK");
    let mut steer = old.client();
    assert_eq!(steer.call(&format!("REPLICAOF 127.0.0.1 {}", new.port)), "OK");
    let mut lost = [next_message(&mut a, "w"), next_message(&mut a, "w")];
    lost.sort();
    assert_eq!(lost, ["lost r k", "lost s l"]);
    assert_eq!(steer.info("lock", "lock_waiters"), "0");
    // Repeated at the new primary, the calls confirm the grant and start the wait again.
    let confirmed = there.call("LOCK.ACQUIRE k a NOTIFY w ID r GRACE 20000 PX 600000 FENCE");
    assert!(confirmed.starts_with("[owner, a, holds, 1, token, "), "{confirmed}");
    assert!(there.number("PTTL k") > 500_000);
    assert_eq!(there.call("LOCK.ACQUIRE l a NOTIFY w ID s PX 600000"), "0");
    assert_eq!(there.call("LOCK.RELEASE k a"), "0");
    old.assert_healthy();
    new.assert_healthy();
}

fn a_moved_slot_ends_the_wait(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let (mut a, mut b) = (cluster.nodes[0].client(), inbox(&cluster.nodes[0], "w"));
    a.call("LOCK.ACQUIRE {s}a x PX 600000");
    assert_eq!(b.call("LOCK.ACQUIRE {s}a b NOTIFY w ID r"), "0");
    cluster.migrate("{s}a");
    assert_eq!(next_message(&mut b, "w"), "lost r {s}a");
    assert_eq!(prefix(&b.call("LOCK.ACQUIRE {s}a b NOTIFY w ID r")), "MOVED");
    cluster.assert_healthy();
}

/// Cluster nodes forward messages, so a message without local subscribers may still be received.
fn messages_reach_other_nodes(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let (mut a, mut b, mut far) =
        (cluster.nodes[0].client(), cluster.nodes[0].client(), inbox(&cluster.nodes[1], "w"));
    a.call("LOCK.ACQUIRE {s}a x PX 600000");
    assert_eq!(b.call("LOCK.ACQUIRE {s}a b NOTIFY w ID r"), "0");
    a.call("LOCK.RELEASE {s}a x");
    assert_eq!(next_message(&mut far, "w"), "granted r {s}a");
    assert_eq!(b.call("LOCK.ACQUIRE {s}a b NOTIFY w ID r"), "1");
    assert_eq!(b.call("LOCK.ACQUIRE {s}a c NOTIFY nobody ID r GRACE 50"), "0");
    let began = Instant::now();
    a.call("LOCK.RELEASE {s}a b");
    until("the grace has ended", || a.call("EXISTS {s}a") == "0");
    assert!(began.elapsed().as_millis() >= 50, "the grace was too short");
    cluster.assert_healthy();
}

fn waits_outlast_a_quarantine(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &["--lock.quarantine", "300"]);
    let mut b = inbox(&server, "w");
    assert_eq!(prefix(&b.call("LOCK.ACQUIRE k b")), "QUARANTINE");
    assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w ID r"), "0");
    assert_eq!(next_message(&mut b, "w"), "granted r k");
    assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w ID r"), "1");
    server.assert_healthy();
}
