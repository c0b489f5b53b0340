// SPDX-License-Identifier: MIT

//! `lock.events yes` sends owners events about their holds (invariants 9, 11).

use crate::support::cluster::Cluster;
use crate::support::{in_world, until, Client, Flavor, Server, World};

crate::on_every_server!(
    an_expired_lease_is_reported,
    each_reader_gets_its_own_event,
    a_break_is_reported_to_every_holder,
    a_key_with_braces_has_another_channel,
    a_foreign_delete_is_reported,
    a_foreign_field_delete_is_reported,
    an_eviction_is_reported,
    contention_is_reported_to_the_holder,
    an_owners_own_release_is_not_reported,
    a_renewal_starts_tracking_a_hold,
    events_are_off_by_default,
    an_event_does_not_break_a_reply,
    thousands_of_events_arrive_once_each,
    a_demoted_server_sends_no_events,
    a_moved_slot_reports_no_loss,
    the_channel_type_follows_the_setting,
);

const ON: [&str; 2] = ["lock.events", "yes"];

/// Receives all events of owners, and counts them.
struct EventListener {
    client: Client,
    watcher: Client,
    received: usize,
}

impl EventListener {
    fn at(server: &Server) -> EventListener {
        let mut client = server.client();
        assert!(client.call("PSUBSCRIBE lock:event:*").starts_with("[psubscribe"));
        EventListener { client, watcher: server.client(), received: 0 }
    }

    /// Waits for exactly these events, in any order, each as `key: message`.
    fn expects(&mut self, expected: &[&str]) {
        let mut messages: Vec<String> = expected.iter().map(|_| self.next()).collect();
        messages.sort();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(messages, expected);
        self.received += expected.len();
        assert_eq!(self.watcher.info("lock", "lock_owners_told"), self.received.to_string());
    }

    fn next(&mut self) -> String {
        let text = self.client.recv();
        let rest =
            text.strip_prefix("[pmessage, lock:event:*, lock:event:").unwrap_or_else(|| panic!("{text}"));
        let (name, message) = rest.strip_suffix(']').unwrap().split_once(", ").unwrap();
        let key = name.strip_prefix(':').or_else(|| name.strip_prefix('{')?.strip_suffix('}'));
        let key = key.unwrap_or_else(|| panic!("no key in {name}"));
        format!("{key}: {message}")
    }

    /// Asserts that no event is left and that no lock is tracked.
    fn expects_nothing_more(mut self) {
        for table in ["lock_table_notices", "lock_table_leases", "lock_table_locks"] {
            until(table, || self.watcher.info("lock", table) == "0");
        }
        self.expects(&[]);
        assert!(self.client.has_nothing());
    }
}

/// Runs a scenario on a server with `lock.events yes`.
fn with_events(flavor: Flavor, scenario: impl FnOnce(&World, &mut Client, &mut EventListener)) {
    in_world(flavor, |world| {
        let mut client = world.client();
        assert_eq!(client.call("CONFIG SET lock.events yes"), "OK");
        let mut events = EventListener::at(world);
        scenario(world, &mut client, &mut events);
        events.expects_nothing_more();
    });
}

fn expired_leases(client: &mut Client) -> String {
    client.info("lock", "lock_leases_run_out")
}

fn an_expired_lease_is_reported(flavor: Flavor) {
    with_events(flavor, |world, a, events| {
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 30"), "1");
        events.expects(&["k: expired a"]);
        assert_eq!(a.call("EXISTS k"), "0", "not free at the event");
        // The event is sent for every kind of hold, and also if a waiter gets the lock.
        assert!(a.call("LOCK.ACQUIRE k a PX 100000 FENCE ID 1").contains("holds, 1"));
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "2");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 30");
        events.expects(&["k: contended a"]);
        assert_eq!(a.call("LOCK.RENEW k a PX 30"), "2");
        assert_eq!(b.recv(), "1");
        events.expects(&["k: expired a", "k: expired b"]);
        // A watchdog renews the lease until its limit.
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 60 WATCHDOG MAX 100"), "1");
        events.expects(&["k: expired a"]);
        // A foreign write shortens the lease.
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        assert_eq!(a.call("PEXPIRE k 20"), "1");
        events.expects(&["k: expired a"]);
        assert_eq!(expired_leases(a), "5");
        // A key with braces has its own channel, and each database has its own holds.
        a.call("SELECT 5");
        assert_eq!(a.call("LOCK.ACQUIRE x{k}y o1 PX 20"), "1");
        events.expects(&["x{k}y: expired o1"]);
        a.call("SELECT 0");
    });
}

fn each_reader_gets_its_own_event(flavor: Flavor) {
    with_events(flavor, |world, a, events| {
        for (reader, lease) in [("a", 40), ("b", 1_000), ("c", 100_000)] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {reader} SHARED PX {lease}")), "1");
        }
        events.expects(&["k: expired a"]);
        events.expects(&["k: expired b"]);
        assert_eq!(a.call("LOCK.INFO k").matches("owner").count(), 1);
        assert_eq!(a.call("LOCK.ACQUIRE k d SHARED PX 100000"), "1");
        let writer = world.waiting("LOCK.ACQUIRE k w BLOCK 0");
        events.expects(&["k: contended c", "k: contended d"]);
        writer.close();
        until("there are no waiters", || a.info("lock", "lock_waiters") == "0");
        assert_eq!(a.call("LOCK.RELEASE k c"), "0");
        assert_eq!(a.call("DEL k"), "1");
        events.expects(&["k: deleted d"]);
        // A crowd of readers loses the lock.
        for reader in 0..200 {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k r{reader} SHARED PX {}", 20 + reader / 2)), "1");
        }
        let mut messages: Vec<String> = (0..200).map(|_| events.next()).collect();
        messages.sort();
        let mut expected: Vec<String> = (0..200).map(|reader| format!("k: expired r{reader}")).collect();
        expected.sort();
        assert_eq!(messages, expected);
        events.received += 200;
    });
}

fn a_break_is_reported_to_every_holder(flavor: Flavor) {
    with_events(flavor, |world, a, events| {
        assert_eq!(a.call("LOCK.ACQUIRE k a EPHEMERAL WATCHDOG"), "1");
        assert_eq!(a.call("LOCK.BREAK k"), "1");
        events.expects(&["k: broken a"]);
        // A holder that uses Redisson gets the event, too.
        a.call("HSET k other 1");
        a.call("PEXPIRE k 100000");
        assert_eq!(a.call("LOCK.BREAK k"), "1");
        events.expects(&["k: broken other"]);
        for reader in ["a", "b"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {reader} SHARED")), "1");
        }
        let mut writer = world.waiting("LOCK.ACQUIRE k w BLOCK 0");
        events.expects(&["k: contended a", "k: contended b"]);
        a.call("MULTI");
        a.call("LOCK.BREAK k");
        a.call("LOCK.BREAK k");
        assert_eq!(a.call("EXEC"), "[2, 1]");
        assert_eq!(writer.recv(), "1");
        events.expects(&["k: broken a", "k: broken b", "k: broken w"]);
        assert_eq!(a.call("LOCK.BREAK k"), "0");
    });
}

/// Both locks share the names of their derived keys. A holder of one must not mistake the other's end for its own.
fn a_key_with_braces_has_another_channel(flavor: Flavor) {
    with_events(flavor, |world, a, events| {
        let mut holder = world.client();
        assert_eq!(holder.call("SUBSCRIBE lock:event:{k}"), "[subscribe, lock:event:{k}, 1]");
        for lock in ["k", "{k}"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE {lock} alice")), "1");
        }
        assert_eq!(a.call("LOCK.BREAK {k}"), "1");
        events.expects(&["{k}: broken alice"]);
        assert_eq!(a.call("LOCK.BREAK k"), "1");
        events.expects(&["k: broken alice"]);
        assert_eq!(holder.recv(), "[message, lock:event:{k}, broken alice]");
        assert!(holder.has_nothing());
    });
}

fn a_foreign_delete_is_reported(flavor: Flavor) {
    with_events(flavor, |world, a, events| {
        let expects_nothing_more = [
            "DEL k",
            "UNLINK k",
            "RENAME k l",
            "RENAME other k",
            "MOVE k 7",
            "HDEL k a",
            "SET k x",
            "FLUSHDB",
            "FLUSHALL",
            "SWAPDB 0 9",
        ];
        for end in expects_nothing_more {
            a.call("SET other x");
            assert_eq!(a.call("LOCK.ACQUIRE k a"), "1", "before {end}");
            let reply = a.call(end);
            assert!(["1", "OK"].contains(&reply.as_str()), "{end}: {reply}");
            if end == "SET k x" {
                // SET sends no event here, so the loss is noticed by the next call.
                assert!(a.call("LOCK.ACQUIRE k b").starts_with("WRONGTYPE"));
            }
            events.expects(&["k: deleted a"]);
            assert_eq!(a.call("FLUSHALL"), "OK");
        }
        // Within a transaction in which an external client stores its own hold.
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        for call in ["MULTI", "DEL k", "HSET k stranger 1", "PEXPIRE k 100000"] {
            a.call(call);
        }
        assert_eq!(a.call("EXEC"), "[1, 1, 1]");
        events.expects(&["k: deleted a"]);
        // A waiter gets the lock at once.
        assert_eq!(a.call("LOCK.BREAK k"), "1");
        events.expects(&["k: broken stranger"]);
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        events.expects(&["k: contended a"]);
        assert_eq!(a.call("DEL k"), "1");
        assert_eq!(b.recv(), "1");
        events.expects(&["k: deleted a"]);
        assert_eq!(b.call("LOCK.RELEASE k b"), "0");
        assert_eq!(expired_leases(a), "0");
        // The word depends on the server, which raises either an `expired` or a `del` event here.
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        assert_eq!(a.call("PEXPIRE k 0"), "1");
        events.expects(&[if flavor.is_valkey() { "k: expired a" } else { "k: deleted a" }]);
        // The lease expired before another value was stored, in the same event loop iteration.
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 20"), "1");
        a.send_at_once(&["DEBUG SLEEP 0.1", "SET k x"]);
        (0..2).for_each(|_| drop(a.recv()));
        events.expects(&["k: expired a"]);
        assert_eq!(a.call("DEL k"), "1");
        // A reload restores every hold.
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        assert_eq!(a.call("DEBUG RELOAD"), "OK");
        assert_eq!(a.call("LOCK.RENEW k a"), "1");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
    });
}

fn a_foreign_field_delete_is_reported(flavor: Flavor) {
    with_events(flavor, |world, a, events| {
        // The foreign write deletes the field of one of two readers.
        for (reader, lease) in [("a", 1000), ("b", 100_000)] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {reader} SHARED PX {lease}")), "1");
        }
        assert_eq!(a.call("HDEL k #shared:a"), "1");
        events.expects(&["k: deleted a"]);
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
        // The foreign write deletes the field of a fenced owner, but not that of the token.
        assert_eq!(a.call("LOCK.ACQUIRE k a FENCE PX 100000 WATCHDOG").matches("holds, 1").count(), 1);
        assert_eq!(a.call("HDEL k a"), "1");
        events.expects(&["k: deleted a"]);
        // The lock has a waiter, and another acquire arrives in the same event loop iteration.
        assert!(a.call("LOCK.ACQUIRE k a FENCE PX 100000").contains("holds, 1"));
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 FENCE PX 100000");
        events.expects(&["k: contended a"]);
        assert_eq!(a.call("HDEL k a"), "1");
        assert!(b.recv().contains("holds, 1"));
        events.expects(&["k: deleted a"]);
        a.send_at_once(&["HDEL k b", "LOCK.ACQUIRE k c"]);
        assert_eq!([a.recv(), a.recv()], ["1", "1"]);
        events.expects(&["k: deleted b"]);
        // The foreign write deletes a field of a crowd of readers.
        assert_eq!(a.call("LOCK.RELEASE k c"), "0");
        for reader in 0..50 {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k r{reader} SHARED PX 100000")), "1");
        }
        assert_eq!(a.call("HDEL k #shared:r7 #shared:r8"), "2");
        events.expects(&["k: deleted r7", "k: deleted r8"]);
        assert_eq!(a.call("LOCK.BREAK k"), "48");
        (0..48).for_each(|_| assert!(events.next().starts_with("k: broken r")));
        events.received += 48;
        // A hash that is not a lock is ignored.
        assert_eq!(a.call("HSET h f v"), "1");
        assert_eq!(a.call("HDEL h f"), "1");
    });
}

fn an_eviction_is_reported(flavor: Flavor) {
    with_events(flavor, |_, a, events| {
        a.call("CONFIG SET maxmemory-policy volatile-ttl");
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        a.send_at_once(&["CONFIG SET maxmemory 1", "SET x y", "CONFIG SET maxmemory 0"]);
        (0..3).for_each(|_| drop(a.recv()));
        events.expects(&["k: evicted a"]);
        a.call("CONFIG SET maxmemory-policy noeviction");
    });
}

fn contention_is_reported_to_the_holder(flavor: Flavor) {
    with_events(flavor, |world, a, events| {
        // An external client holds the lock.
        a.call("HSET k other 1");
        a.call("PEXPIRE k 100000");
        let b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        events.expects(&["k: contended other"]);
        // The event is sent once, until the lock has no waiters.
        let c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        assert_eq!(a.call("LOCK.ACQUIRE k d"), "nil");
        b.close();
        c.close();
        until("there are no waiters", || a.info("lock", "lock_waiters") == "0");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 ID 1");
        events.expects(&["k: contended other"]);
        // A repeated call is not a new waiter.
        let mut again = world.waiting("LOCK.ACQUIRE k b BLOCK 0 ID 1");
        assert!(b.recv().starts_with("UNBLOCKED"));
        assert_eq!(a.call("DEL k"), "1");
        assert_eq!(again.recv(), "1");
        // A refused wait sends no event.
        assert_eq!(a.call("LOCK.ACQUIRE l a PX 100000"), "1");
        let mut waits = world.waiting("LOCK.ACQUIRE l b BLOCK 0");
        events.expects(&["l: contended a"]);
        assert!(a.call("LOCK.ACQUIRE k a BLOCK 100000").starts_with("DEADLOCK"));
        assert_eq!(a.call("LOCK.RELEASE l a"), "0");
        assert_eq!(waits.recv(), "1");
        assert_eq!(a.call("LOCK.RELEASE l b"), "0");
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
    });
}

fn an_owners_own_release_is_not_reported(flavor: Flavor) {
    with_events(flavor, |world, a, events| {
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(a.call("LOCK.ACQUIRE k a ID 1"), "1");
        assert_eq!(a.call("LOCK.CANCEL k a ID 1"), "1");
        // The connection closes, so the hold ends.
        let mut b = world.client();
        assert_eq!(b.call("LOCK.ACQUIRE k b EPHEMERAL"), "1");
        assert_eq!(b.call("LOCK.ACQUIRE s b SHARED EPHEMERAL"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE s a SHARED"), "1");
        b.close();
        until("the exclusive hold has ended", || a.call("EXISTS k") == "0");
        until("the shared hold has ended", || a.call("LOCK.INFO s").matches("owner").count() == 1);
        assert_eq!(a.call("LOCK.RELEASE s a ALL"), "0");
        // The grant is not delivered.
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        let b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        events.expects(&["k: contended a"]);
        a.call("MULTI");
        a.call("LOCK.RELEASE k a");
        a.call(&format!("CLIENT KILL ID {}", b.id));
        assert_eq!(a.call("EXEC"), "[0, 1]");
        until("the grant is revoked", || a.call("EXISTS k") == "0");
        // The lock is handed over.
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        events.expects(&["k: contended a"]);
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(b.recv(), "1");
        assert_eq!(b.call("LOCK.RELEASE k b"), "0");
    });
}

fn a_renewal_starts_tracking_a_hold(flavor: Flavor) {
    with_events(flavor, |_, a, events| {
        for owner in ["a", "b"] {
            a.call(&format!("HSET k-{owner} {owner} 1"));
            a.call(&format!("PEXPIRE k-{owner} 100000"));
        }
        assert_eq!(a.call("LOCK.RENEW k-a a PX 100000"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k-b b PX 100000"), "2", "a re-entry starts tracking, too");
        assert_eq!(a.call("DEL k-a k-b"), "2");
        events.expects(&["k-a: deleted a", "k-b: deleted b"]);
    });
}

fn events_are_off_by_default(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("CONFIG GET lock.events"), "[lock.events, no]");
        let mut events = EventListener::at(world);
        let locks = |a: &mut Client| a.info("lock", "lock_table_locks");
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE l a PX 20"), "1");
        assert_eq!(locks(&mut a), "0", "the holds are tracked");
        until("the server's expiry of a lease is counted", || {
            a.call("EXISTS l");
            expired_leases(&mut a) == "1"
        });
        assert_eq!(a.call("CONFIG SET lock.events yes"), "OK");
        // An earlier hold is tracked from its next renewal on.
        assert_eq!(a.call("DEL k"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        assert_eq!(locks(&mut a), "1");
        assert_eq!(a.call("DEL k"), "1");
        events.expects(&["k: deleted a"]);
        for key in 0..1000 {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k{key} a PX 100000")), "1");
        }
        assert_eq!(locks(&mut a), "1000");
        assert_eq!(a.call("CONFIG SET lock.events no"), "OK");
        until("no lock is tracked", || locks(&mut a) == "0");
        assert_eq!(a.call("FLUSHALL"), "OK");
        events.expects_nothing_more();
    });
    let server = Server::with_module_args(flavor, &ON, &[]);
    let mut events = EventListener::at(&server);
    let mut a = server.client();
    assert_eq!(a.call("LOCK.ACQUIRE k a PX 20"), "1");
    events.expects(&["k: expired a"]);
    events.expects_nothing_more();
}

/// Redis 7.0 would send the event in the middle of the reply.
fn an_event_does_not_break_a_reply(flavor: Flavor) {
    with_events(flavor, |_, a, events| {
        a.call("HELLO 3");
        let subscribed = a.call("SUBSCRIBE lock:event:{k}");
        assert!(subscribed.starts_with("push["), "{subscribed}");
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        a.send_at_once(&["MULTI", "PING", "LOCK.BREAK k", "PING", "EXEC"]);
        let replies: Vec<String> = (0..6).map(|_| a.recv()).collect();
        assert_eq!(replies[..4], ["OK", "QUEUED", "QUEUED", "QUEUED"]);
        assert_eq!(replies[4], "[PONG, 1, PONG]");
        assert!(replies[5].contains("broken a"), "{replies:?}");
        events.expects(&["k: broken a"]);
    });
}

fn thousands_of_events_arrive_once_each(flavor: Flavor) {
    const LOCKS: usize = 5_000;
    with_events(flavor, |_, a, events| {
        for (end, lease, last) in [("expired", 1_500, "PING"), ("deleted", 600_000, "FLUSHALL")] {
            let mut calls: Vec<String> =
                (0..LOCKS).map(|key| format!("LOCK.ACQUIRE k{key} o{key} PX {lease}")).collect();
            calls.push(last.to_owned());
            for some in calls.chunks(1000) {
                a.send_at_once(&some.iter().map(String::as_str).collect::<Vec<_>>());
                some.iter().for_each(|_| drop(a.recv()));
            }
            let mut messages: Vec<String> = (0..LOCKS).map(|_| events.next()).collect();
            messages.sort();
            let mut expected: Vec<_> = (0..LOCKS).map(|key| format!("k{key}: {end} o{key}")).collect();
            expected.sort();
            assert!(messages == expected, "{end}");
            events.received += LOCKS;
        }
    });
}

fn a_demoted_server_sends_no_events(flavor: Flavor) {
    let primary = Server::with_module_args(flavor, &ON, &[]);
    let mut replica = Server::with_module_args(flavor, &ON, &[]);
    replica.follow(&primary);
    let (events, mut there) = (EventListener::at(&primary), EventListener::at(&replica));
    let (mut a, mut b) = (primary.client(), replica.client());
    assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
    until("the replica has it", || b.call("EXISTS k") == "1");
    assert_eq!(b.call("REPLICAOF NO ONE"), "OK");
    assert_eq!(a.call(&format!("REPLICAOF 127.0.0.1 {}", replica.port)), "OK");
    until("the old primary follows", || a.info("replication", "master_link_status") == "up");
    // The new primary tracks the hold from its owner's first call on.
    assert_eq!(b.call("LOCK.RENEW k a PX 100000"), "1");
    assert_eq!(b.call("DEL k"), "1");
    there.expects(&["k: deleted a"]);
    until("the old primary has deleted it, too", || a.call("EXISTS k") == "0");
    // A loss in the event loop iteration of the demotion is still reported.
    assert_eq!(b.call("LOCK.ACQUIRE k b"), "1");
    b.send_at_once(&["DEL k", "REPLICAOF 127.0.0.1 1"]);
    assert_eq!([b.recv(), b.recv()], ["1", "OK"]);
    there.expects(&["k: deleted b"]);
    events.expects_nothing_more();
    there.expects_nothing_more();
    replica.assert_healthy();
}

/// Slot of `b`: 3300, which the first node serves.
fn a_moved_slot_reports_no_loss(flavor: Flavor) {
    let cluster = Cluster::start_with(flavor, &[]);
    let [mut first, mut second] = cluster.clients();
    for node in [&mut first, &mut second] {
        assert_eq!(node.call("CONFIG SET lock.events yes"), "OK");
    }
    let mut events = EventListener::at(&cluster.nodes[0]);
    assert_eq!(first.call("LOCK.ACQUIRE b a PX 100000"), "1");
    cluster.migrate("b");
    assert_eq!(second.call("LOCK.RENEW b a PX 100000"), "1");
    until("the first node tracks no lock", || first.info("lock", "lock_table_locks") == "0");
    assert_eq!(first.info("lock", "lock_owners_told"), "0");
    // Cluster nodes forward published messages.
    assert_eq!(second.call("LOCK.BREAK b"), "1");
    assert_eq!(events.next(), "b: broken a");
    cluster.assert_healthy();
}

fn the_channel_type_follows_the_setting(flavor: Flavor) {
    with_events(flavor, |world, a, events| {
        let mut sharded = world.client();
        assert!(sharded.call("SSUBSCRIBE lock:event:{k}").starts_with("[ssubscribe"));
        let mut received = 0;
        for (setting, classic, shard) in [
            ("auto", true, false),
            ("off", true, false),
            ("publish", true, false),
            ("spublish", false, true),
            ("both", true, true),
        ] {
            assert_eq!(a.call(&format!("CONFIG SET lock.publish {setting}")), "OK");
            assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
            assert_eq!(a.call("LOCK.BREAK k"), "1");
            received += 1;
            until("the event is sent", || a.info("lock", "lock_owners_told") == received.to_string());
            if classic {
                assert_eq!(events.next(), "k: broken a");
            }
            if shard {
                assert_eq!(sharded.recv(), "[smessage, lock:event:{k}, broken a]");
            }
        }
        assert!(sharded.has_nothing());
        events.received = received;
    });
}
