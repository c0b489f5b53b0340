// SPDX-License-Identifier: MIT

//! `lock.events yes`: owners are told what happens to their holds (9, 11).

use crate::support::cluster::Cluster;
use crate::support::{in_world, until, Client, Flavor, Server, World};

crate::on_every_server!(
    a_lease_that_runs_out_is_told,
    readers_are_told_one_by_one,
    a_break_is_told_to_everybody,
    braces_around_a_key_make_another_channel,
    what_strangers_remove_is_told,
    a_field_that_strangers_remove_is_told,
    an_eviction_is_told,
    who_is_waited_for_is_told,
    what_an_owner_ends_itself_is_not_told,
    a_renewal_makes_a_hold_known,
    it_is_off_by_default_and_can_be_switched,
    a_message_does_not_break_a_reply_of_its_own_subscriber,
    thousands_are_told_once_each,
    a_demoted_server_tells_nothing,
    a_slot_that_moves_loses_nothing,
    the_way_follows_the_setting,
);

const ON: [&str; 2] = ["lock.events", "yes"];

/// Hears all that owners are told, and knows how much that was.
struct Ear {
    client: Client,
    watcher: Client,
    told: usize,
}

impl Ear {
    fn at(server: &Server) -> Ear {
        let mut client = server.client();
        assert!(client.call("PSUBSCRIBE lock:event:*").starts_with("[psubscribe"));
        Ear { client, watcher: server.client(), told: 0 }
    }

    /// Waits for these messages, in any order, each as `key: message`; there is no other.
    fn hears(&mut self, expected: &[&str]) {
        let mut heard: Vec<String> = expected.iter().map(|_| self.next()).collect();
        heard.sort();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(heard, expected);
        self.told += expected.len();
        assert_eq!(self.watcher.info("lock", "lock_owners_told"), self.told.to_string());
    }

    fn next(&mut self) -> String {
        let text = self.client.recv();
        let rest =
            text.strip_prefix("[pmessage, lock:event:*, lock:event:").unwrap_or_else(|| panic!("{text}"));
        let (name, message) = rest.strip_suffix(']').unwrap().split_once(", ").unwrap();
        let key = name.strip_prefix(':').or_else(|| name.strip_prefix('{')?.strip_suffix('}'));
        let key = key.unwrap_or_else(|| panic!("{name} names no key"));
        format!("{key}: {message}")
    }

    /// There is nothing that was not heard, and nothing is remembered of locks.
    fn ends(mut self) {
        for table in ["lock_table_notices", "lock_table_leases", "lock_table_locks"] {
            until(table, || self.watcher.info("lock", table) == "0");
        }
        self.hears(&[]);
        assert!(self.client.has_nothing());
    }
}

/// In a server that tells owners.
fn where_owners_are_told(flavor: Flavor, scenario: impl FnOnce(&World, &mut Client, &mut Ear)) {
    in_world(flavor, |world| {
        let mut client = world.client();
        assert_eq!(client.call("CONFIG SET lock.events yes"), "OK");
        let mut ear = Ear::at(world);
        scenario(world, &mut client, &mut ear);
        ear.ends();
    });
}

fn run_out(client: &mut Client) -> String {
    client.info("lock", "lock_leases_run_out")
}

fn a_lease_that_runs_out_is_told(flavor: Flavor) {
    where_owners_are_told(flavor, |world, a, ear| {
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 30"), "1");
        ear.hears(&["k: expired a"]);
        assert_eq!(a.call("EXISTS k"), "0", "it is free when that is told");
        // Whatever the hold looks like, and whoever takes it over.
        assert!(a.call("LOCK.ACQUIRE k a PX 100000 FENCE ID 1").contains("holds, 1"));
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "2");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 30");
        ear.hears(&["k: contended a"]);
        assert_eq!(a.call("LOCK.RENEW k a PX 30"), "2");
        assert_eq!(b.recv(), "1");
        ear.hears(&["k: expired a", "k: expired b"]);
        // A watchdog keeps it as long as it may.
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 60 WATCHDOG MAX 100"), "1");
        ear.hears(&["k: expired a"]);
        // A stranger shortens the lease.
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        assert_eq!(a.call("PEXPIRE k 20"), "1");
        ear.hears(&["k: expired a"]);
        assert_eq!(run_out(a), "5");
        // A name with braces has its own, and each database its own holds.
        a.call("SELECT 5");
        assert_eq!(a.call("LOCK.ACQUIRE x{k}y o1 PX 20"), "1");
        ear.hears(&["x{k}y: expired o1"]);
        a.call("SELECT 0");
    });
}

fn readers_are_told_one_by_one(flavor: Flavor) {
    where_owners_are_told(flavor, |world, a, ear| {
        for (reader, lease) in [("a", 40), ("b", 100), ("c", 100_000)] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {reader} SHARED PX {lease}")), "1");
        }
        ear.hears(&["k: expired a"]);
        ear.hears(&["k: expired b"]);
        assert_eq!(a.call("LOCK.INFO k").matches("owner").count(), 1);
        assert_eq!(a.call("LOCK.ACQUIRE k d SHARED PX 100000"), "1");
        let writer = world.waiting("LOCK.ACQUIRE k w BLOCK 0");
        ear.hears(&["k: contended c", "k: contended d"]);
        writer.close();
        until("nobody waits", || a.info("lock", "lock_waiters") == "0");
        assert_eq!(a.call("LOCK.RELEASE k c"), "0");
        assert_eq!(a.call("DEL k"), "1");
        ear.hears(&["k: deleted d"]);
        // A crowd.
        for reader in 0..200 {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k r{reader} SHARED PX {}", 20 + reader / 2)), "1");
        }
        let mut heard: Vec<String> = (0..200).map(|_| ear.next()).collect();
        heard.sort();
        let mut expected: Vec<String> = (0..200).map(|reader| format!("k: expired r{reader}")).collect();
        expected.sort();
        assert_eq!(heard, expected);
        ear.told += 200;
    });
}

fn a_break_is_told_to_everybody(flavor: Flavor) {
    where_owners_are_told(flavor, |world, a, ear| {
        assert_eq!(a.call("LOCK.ACQUIRE k a EPHEMERAL WATCHDOG"), "1");
        assert_eq!(a.call("LOCK.BREAK k"), "1");
        ear.hears(&["k: broken a"]);
        // Also to who holds it by Redisson.
        a.call("HSET k other 1");
        a.call("PEXPIRE k 100000");
        assert_eq!(a.call("LOCK.BREAK k"), "1");
        ear.hears(&["k: broken other"]);
        for reader in ["a", "b"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {reader} SHARED")), "1");
        }
        let mut writer = world.waiting("LOCK.ACQUIRE k w BLOCK 0");
        ear.hears(&["k: contended a", "k: contended b"]);
        a.call("MULTI");
        a.call("LOCK.BREAK k");
        a.call("LOCK.BREAK k");
        assert_eq!(a.call("EXEC"), "[2, 1]");
        assert_eq!(writer.recv(), "1");
        ear.hears(&["k: broken a", "k: broken b", "k: broken w"]);
        assert_eq!(a.call("LOCK.BREAK k"), "0");
    });
}

/// What is stored beside both locks has the same names. A holder of one must not take the end of the other for its own.
fn braces_around_a_key_make_another_channel(flavor: Flavor) {
    where_owners_are_told(flavor, |world, a, ear| {
        let mut holder = world.client();
        assert_eq!(holder.call("SUBSCRIBE lock:event:{k}"), "[subscribe, lock:event:{k}, 1]");
        for lock in ["k", "{k}"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE {lock} alice")), "1");
        }
        assert_eq!(a.call("LOCK.BREAK {k}"), "1");
        ear.hears(&["{k}: broken alice"]);
        assert_eq!(a.call("LOCK.BREAK k"), "1");
        ear.hears(&["k: broken alice"]);
        assert_eq!(holder.recv(), "[message, lock:event:{k}, broken alice]");
        assert!(holder.has_nothing());
    });
}

fn what_strangers_remove_is_told(flavor: Flavor) {
    where_owners_are_told(flavor, |world, a, ear| {
        let ends = [
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
        for end in ends {
            a.call("SET other x");
            assert_eq!(a.call("LOCK.ACQUIRE k a"), "1", "before {end}");
            let reply = a.call(end);
            assert!(["1", "OK"].contains(&reply.as_str()), "{end}: {reply}");
            if end == "SET k x" {
                // It raises no event: it is noticed when the lock is looked at.
                assert!(a.call("LOCK.ACQUIRE k b").starts_with("WRONGTYPE"));
            }
            ear.hears(&["k: deleted a"]);
            assert_eq!(a.call("FLUSHALL"), "OK");
        }
        // Within a transaction, and put back by somebody else.
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        for call in ["MULTI", "DEL k", "HSET k stranger 1", "PEXPIRE k 100000"] {
            a.call(call);
        }
        assert_eq!(a.call("EXEC"), "[1, 1, 1]");
        ear.hears(&["k: deleted a"]);
        // By somebody who takes it over at once.
        assert_eq!(a.call("LOCK.BREAK k"), "1");
        ear.hears(&["k: broken stranger"]);
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        ear.hears(&["k: contended a"]);
        assert_eq!(a.call("DEL k"), "1");
        assert_eq!(b.recv(), "1");
        ear.hears(&["k: deleted a"]);
        assert_eq!(b.call("LOCK.RELEASE k b"), "0");
        assert_eq!(run_out(a), "0");
        // As the server calls it.
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        assert_eq!(a.call("PEXPIRE k 0"), "1");
        ear.hears(&[if flavor.is_valkey() { "k: expired a" } else { "k: deleted a" }]);
        // Its lease was over before something else was put there, in the same turn.
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 20"), "1");
        a.send_at_once(&["DEBUG SLEEP 0.1", "SET k x"]);
        (0..2).for_each(|_| drop(a.recv()));
        ear.hears(&["k: expired a"]);
        assert_eq!(a.call("DEL k"), "1");
        // Everything is as it was after a reload.
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        assert_eq!(a.call("DEBUG RELOAD"), "OK");
        assert_eq!(a.call("LOCK.RENEW k a"), "1");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
    });
}

fn a_field_that_strangers_remove_is_told(flavor: Flavor) {
    where_owners_are_told(flavor, |world, a, ear| {
        // One of two readers.
        for (reader, lease) in [("a", 1000), ("b", 100_000)] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {reader} SHARED PX {lease}")), "1");
        }
        assert_eq!(a.call("HDEL k #shared:a"), "1");
        ear.hears(&["k: deleted a"]);
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
        // A fenced owner, whose token stays.
        assert_eq!(a.call("LOCK.ACQUIRE k a FENCE PX 100000 WATCHDOG").matches("holds, 1").count(), 1);
        assert_eq!(a.call("HDEL k a"), "1");
        ear.hears(&["k: deleted a"]);
        // While somebody waits for it, and in the same turn as somebody takes it.
        assert!(a.call("LOCK.ACQUIRE k a FENCE PX 100000").contains("holds, 1"));
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 FENCE PX 100000");
        ear.hears(&["k: contended a"]);
        assert_eq!(a.call("HDEL k a"), "1");
        assert!(b.recv().contains("holds, 1"));
        ear.hears(&["k: deleted a"]);
        a.send_at_once(&["HDEL k b", "LOCK.ACQUIRE k c"]);
        assert_eq!([a.recv(), a.recv()], ["1", "1"]);
        ear.hears(&["k: deleted b"]);
        // Of a crowd.
        assert_eq!(a.call("LOCK.RELEASE k c"), "0");
        for reader in 0..50 {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k r{reader} SHARED PX 100000")), "1");
        }
        assert_eq!(a.call("HDEL k #shared:r7 #shared:r8"), "2");
        ear.hears(&["k: deleted r7", "k: deleted r8"]);
        assert_eq!(a.call("LOCK.BREAK k"), "48");
        (0..48).for_each(|_| assert!(ear.next().starts_with("k: broken r")));
        ear.told += 48;
        // What is no lock is left alone.
        assert_eq!(a.call("HSET h f v"), "1");
        assert_eq!(a.call("HDEL h f"), "1");
    });
}

fn an_eviction_is_told(flavor: Flavor) {
    where_owners_are_told(flavor, |_, a, ear| {
        a.call("CONFIG SET maxmemory-policy volatile-ttl");
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        a.send_at_once(&["CONFIG SET maxmemory 1", "SET x y", "CONFIG SET maxmemory 0"]);
        (0..3).for_each(|_| drop(a.recv()));
        ear.hears(&["k: evicted a"]);
        a.call("CONFIG SET maxmemory-policy noeviction");
    });
}

fn who_is_waited_for_is_told(flavor: Flavor) {
    where_owners_are_told(flavor, |world, a, ear| {
        // An external client holds it.
        a.call("HSET k other 1");
        a.call("PEXPIRE k 100000");
        let b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        ear.hears(&["k: contended other"]);
        // Once, until nobody waits any more.
        let c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        assert_eq!(a.call("LOCK.ACQUIRE k d"), "nil");
        b.close();
        c.close();
        until("nobody waits", || a.info("lock", "lock_waiters") == "0");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 ID 1");
        ear.hears(&["k: contended other"]);
        // The same call again is no new waiter.
        let mut again = world.waiting("LOCK.ACQUIRE k b BLOCK 0 ID 1");
        assert!(b.recv().starts_with("UNBLOCKED"));
        assert_eq!(a.call("DEL k"), "1");
        assert_eq!(again.recv(), "1");
        // Who waits in vain is no news.
        assert_eq!(a.call("LOCK.ACQUIRE l a PX 100000"), "1");
        let mut waits = world.waiting("LOCK.ACQUIRE l b BLOCK 0");
        ear.hears(&["l: contended a"]);
        assert!(a.call("LOCK.ACQUIRE k a BLOCK 100000").starts_with("DEADLOCK"));
        assert_eq!(a.call("LOCK.RELEASE l a"), "0");
        assert_eq!(waits.recv(), "1");
        assert_eq!(a.call("LOCK.RELEASE l b"), "0");
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
    });
}

fn what_an_owner_ends_itself_is_not_told(flavor: Flavor) {
    where_owners_are_told(flavor, |world, a, ear| {
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(a.call("LOCK.ACQUIRE k a ID 1"), "1");
        assert_eq!(a.call("LOCK.CANCEL k a ID 1"), "1");
        // A connection that closes.
        let mut b = world.client();
        assert_eq!(b.call("LOCK.ACQUIRE k b EPHEMERAL"), "1");
        assert_eq!(b.call("LOCK.ACQUIRE s b SHARED EPHEMERAL"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE s a SHARED"), "1");
        b.close();
        until("it is released", || a.call("EXISTS k") == "0");
        until("that, too", || a.call("LOCK.INFO s").matches("owner").count() == 1);
        assert_eq!(a.call("LOCK.RELEASE s a ALL"), "0");
        // A grant that does not arrive.
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        let b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        ear.hears(&["k: contended a"]);
        a.call("MULTI");
        a.call("LOCK.RELEASE k a");
        a.call(&format!("CLIENT KILL ID {}", b.id));
        assert_eq!(a.call("EXEC"), "[0, 1]");
        until("it is revoked", || a.call("EXISTS k") == "0");
        // A hand-over.
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        ear.hears(&["k: contended a"]);
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(b.recv(), "1");
        assert_eq!(b.call("LOCK.RELEASE k b"), "0");
    });
}

fn a_renewal_makes_a_hold_known(flavor: Flavor) {
    where_owners_are_told(flavor, |_, a, ear| {
        for owner in ["a", "b"] {
            a.call(&format!("HSET k-{owner} {owner} 1"));
            a.call(&format!("PEXPIRE k-{owner} 100000"));
        }
        assert_eq!(a.call("LOCK.RENEW k-a a PX 100000"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k-b b PX 100000"), "2", "so does a re-entry");
        assert_eq!(a.call("DEL k-a k-b"), "2");
        ear.hears(&["k-a: deleted a", "k-b: deleted b"]);
    });
}

fn it_is_off_by_default_and_can_be_switched(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("CONFIG GET lock.events"), "[lock.events, no]");
        let mut ear = Ear::at(world);
        let locks = |a: &mut Client| a.info("lock", "lock_table_locks");
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE l a PX 20"), "1");
        assert_eq!(locks(&mut a), "0", "nothing is remembered of them");
        until("a lease that the server ends is counted", || {
            a.call("EXISTS l");
            run_out(&mut a) == "1"
        });
        assert_eq!(a.call("CONFIG SET lock.events yes"), "OK");
        // What was granted before is known from its next renewal on.
        assert_eq!(a.call("DEL k"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        assert_eq!(locks(&mut a), "1");
        assert_eq!(a.call("DEL k"), "1");
        ear.hears(&["k: deleted a"]);
        for key in 0..1000 {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k{key} a PX 100000")), "1");
        }
        assert_eq!(locks(&mut a), "1000");
        assert_eq!(a.call("CONFIG SET lock.events no"), "OK");
        until("all is forgotten", || locks(&mut a) == "0");
        assert_eq!(a.call("FLUSHALL"), "OK");
        ear.ends();
    });
    let server = Server::with_module_args(flavor, &ON, &[]);
    let mut ear = Ear::at(&server);
    let mut a = server.client();
    assert_eq!(a.call("LOCK.ACQUIRE k a PX 20"), "1");
    ear.hears(&["k: expired a"]);
    ear.ends();
}

/// Redis 7.0 would send it in the middle of the reply.
fn a_message_does_not_break_a_reply_of_its_own_subscriber(flavor: Flavor) {
    where_owners_are_told(flavor, |_, a, ear| {
        a.call("HELLO 3");
        let subscribed = a.call("SUBSCRIBE lock:event:{k}");
        assert!(subscribed.starts_with("push["), "{subscribed}");
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        a.send_at_once(&["MULTI", "PING", "LOCK.BREAK k", "PING", "EXEC"]);
        let replies: Vec<String> = (0..6).map(|_| a.recv()).collect();
        assert_eq!(replies[..4], ["OK", "QUEUED", "QUEUED", "QUEUED"]);
        assert_eq!(replies[4], "[PONG, 1, PONG]");
        assert!(replies[5].contains("broken a"), "{replies:?}");
        ear.hears(&["k: broken a"]);
    });
}

fn thousands_are_told_once_each(flavor: Flavor) {
    const LOCKS: usize = 5_000;
    where_owners_are_told(flavor, |_, a, ear| {
        let mut calls: Vec<String> =
            (0..LOCKS).map(|key| format!("LOCK.ACQUIRE k{key} o{key} PX 1500")).collect();
        calls.push("FLUSHALL".to_owned());
        for (end, calls) in [("expired", &calls[..LOCKS]), ("deleted", &calls)] {
            for some in calls.chunks(1000) {
                a.send_at_once(&some.iter().map(String::as_str).collect::<Vec<_>>());
                some.iter().for_each(|_| drop(a.recv()));
            }
            let mut heard: Vec<String> = (0..LOCKS).map(|_| ear.next()).collect();
            heard.sort();
            let mut expected: Vec<_> = (0..LOCKS).map(|key| format!("k{key}: {end} o{key}")).collect();
            expected.sort();
            assert!(heard == expected, "{end}");
            ear.told += LOCKS;
        }
    });
}

fn a_demoted_server_tells_nothing(flavor: Flavor) {
    let primary = Server::with_module_args(flavor, &ON, &[]);
    let mut replica = Server::with_module_args(flavor, &ON, &[]);
    replica.follow(&primary);
    let (ear, mut there) = (Ear::at(&primary), Ear::at(&replica));
    let (mut a, mut b) = (primary.client(), replica.client());
    assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
    until("the replica has it", || b.call("EXISTS k") == "1");
    assert_eq!(b.call("REPLICAOF NO ONE"), "OK");
    assert_eq!(a.call(&format!("REPLICAOF 127.0.0.1 {}", replica.port)), "OK");
    until("it follows", || a.info("replication", "master_link_status") == "up");
    // The new primary knows it from the first call of its owner on.
    assert_eq!(b.call("LOCK.RENEW k a PX 100000"), "1");
    assert_eq!(b.call("DEL k"), "1");
    there.hears(&["k: deleted a"]);
    until("it is gone there, too", || a.call("EXISTS k") == "0");
    // What was lost in the turn in which the server becomes a replica is told.
    assert_eq!(b.call("LOCK.ACQUIRE k b"), "1");
    b.send_at_once(&["DEL k", "REPLICAOF 127.0.0.1 1"]);
    assert_eq!([b.recv(), b.recv()], ["1", "OK"]);
    there.hears(&["k: deleted b"]);
    ear.ends();
    there.ends();
    replica.assert_healthy();
}

/// Key slots: `b` is 3300, of the first node.
fn a_slot_that_moves_loses_nothing(flavor: Flavor) {
    let cluster = Cluster::start_with(flavor, &[]);
    let [mut first, mut second] = cluster.clients();
    for node in [&mut first, &mut second] {
        assert_eq!(node.call("CONFIG SET lock.events yes"), "OK");
    }
    let mut ear = Ear::at(&cluster.nodes[0]);
    assert_eq!(first.call("LOCK.ACQUIRE b a PX 100000"), "1");
    cluster.migrate("b");
    assert_eq!(second.call("LOCK.RENEW b a PX 100000"), "1");
    until("the first has forgotten it", || first.info("lock", "lock_table_locks") == "0");
    assert_eq!(first.info("lock", "lock_owners_told"), "0");
    // The nodes pass on what is published.
    assert_eq!(second.call("LOCK.BREAK b"), "1");
    assert_eq!(ear.next(), "b: broken a");
    cluster.assert_healthy();
}

fn the_way_follows_the_setting(flavor: Flavor) {
    where_owners_are_told(flavor, |world, a, ear| {
        let mut sharded = world.client();
        assert!(sharded.call("SSUBSCRIBE lock:event:{k}").starts_with("[ssubscribe"));
        let mut told = 0;
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
            told += 1;
            until("it is told", || a.info("lock", "lock_owners_told") == told.to_string());
            if classic {
                assert_eq!(ear.next(), "k: broken a");
            }
            if shard {
                assert_eq!(sharded.recv(), "[smessage, lock:event:{k}, broken a]");
            }
        }
        assert!(sharded.has_nothing());
        ear.told = told;
    });
}
