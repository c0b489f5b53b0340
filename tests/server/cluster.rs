// SPDX-License-Identifier: MIT

//! Locks in a cluster of two nodes.

use crate::support::cluster::Cluster;
use crate::support::server::unload_module;
use crate::support::{until, Client, Flavor, Server};

crate::on_every_server!(
    a_lock_belongs_to_its_slot,
    migration_moves_the_lock,
    a_dropped_slot_ends_its_waits,
    classic_and_sharded_messages_are_published,
    derived_keys_share_the_slot,
    migration_ends_the_watchdog,
    retries_wait_for_the_migration_end,
    migration_restarts_no_counter,
    a_demoted_node_can_unload,
);

/// Slots: `b` has 3300, which the first node serves; `a` has 15495, which the second serves.
fn a_lock_belongs_to_its_slot(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let [mut first, mut second] = cluster.clients();
    for command in ["LOCK.ACQUIRE a o", "LOCK.RELEASE a o", "LOCK.RENEW a o", "LOCK.BREAK a", "LOCK.INFO a"] {
        assert!(first.call(command).starts_with("MOVED 15495 "), "{command}");
    }
    assert!(first.call("LOCK.WAITERS a").starts_with("MOVED "));
    assert_eq!(second.call("LOCK.ACQUIRE a o"), "1");
    assert_eq!(first.call("LOCK.ACQUIRE b o PX 200"), "1");
    let mut waiter = cluster.nodes[0].waiting("LOCK.ACQUIRE b w BLOCK 0");
    assert_eq!(waiter.recv(), "1", "not granted at lease expiry");
    let mut waiter = cluster.nodes[0].waiting("LOCK.ACQUIRE b w2 BLOCK 0");
    assert_eq!(first.call("DEL b"), "1");
    assert_eq!(waiter.recv(), "1");
    let mut waiter = cluster.nodes[0].waiting("LOCK.ACQUIRE b w3 BLOCK 0");
    assert_eq!(first.call("LOCK.RELEASE b w2"), "0");
    assert_eq!(waiter.recv(), "1");
    cluster.assert_healthy();
}

fn migration_moves_the_lock(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let [mut first, mut second] = cluster.clients();
    assert_eq!(first.call("LOCK.ACQUIRE b o PX 100000"), "1");
    let mut waiters = [
        cluster.nodes[0].waiting("LOCK.ACQUIRE b w BLOCK 0"),
        cluster.nodes[0].waiting("LOCK.ACQUIRE b v BLOCK 0"),
    ];
    cluster.migrate("b");
    for waiter in &mut waiters {
        assert!(waiter.recv().starts_with("UNBLOCKED slot of the lock has moved"), "granted twice");
        assert!(waiter.call("LOCK.ACQUIRE b w BLOCK 0").starts_with("MOVED 3300 "));
    }
    assert_eq!(second.call("HGETALL b"), "[o, 1]");
    assert!(first.call("EXISTS b").starts_with("MOVED "));
    let mut there = cluster.nodes[1].waiting("LOCK.ACQUIRE b w BLOCK 0");
    assert_eq!(second.call("LOCK.RELEASE b o"), "0");
    assert_eq!(there.recv(), "1");
    cluster.assert_healthy();
}

/// A node loses a slot without events for the keys in it.
fn a_dropped_slot_ends_its_waits(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let mut first = cluster.nodes[0].client();
    assert_eq!(first.call("LOCK.ACQUIRE b o PX 100000"), "1");
    let mut waiter = cluster.nodes[0].waiting("LOCK.ACQUIRE b w BLOCK 0");
    assert_eq!(first.call("CLUSTER DELSLOTS 3300"), "OK");
    let reply = waiter.recv();
    assert!(reply.starts_with("UNBLOCKED "), "{reply}");
    until("no client is blocked", || first.info("clients", "blocked_clients") == "0");
    unload_module(&mut first);
    cluster.assert_healthy();
}

fn classic_and_sharded_messages_are_published(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let [mut first, mut classic] = cluster.clients();
    let mut sharded = cluster.nodes[0].client();
    assert!(classic.call("SUBSCRIBE redisson_lock__channel:{b}").starts_with("[subscribe"));
    assert!(sharded.call("SSUBSCRIBE redisson_lock__channel:{b}").starts_with("[ssubscribe"));
    first.call("LOCK.ACQUIRE b o");
    first.call("LOCK.RELEASE b o");
    assert_eq!(classic.recv(), "[message, redisson_lock__channel:{b}, 0]", "at the other node");
    assert_eq!(sharded.recv(), "[smessage, redisson_lock__channel:{b}, 0]");
    cluster.assert_healthy();
}

fn derived_keys_share_the_slot(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let mut first = cluster.nodes[0].client();
    let slot = first.call("CLUSTER KEYSLOT b");
    let reply = first.call("LOCK.ACQUIRE b o:1 FENCE ID one");
    assert!(reply.starts_with("[owner, o:1, holds, 1, token, "), "{reply}");
    for key in ["redisson_lock_token:{b}", "lock_request:{b}:o:1:one"] {
        assert_eq!(first.call(&format!("CLUSTER KEYSLOT {key}")), slot);
        assert_eq!(first.call(&format!("EXISTS {key}")), "1");
    }
    // The braces in these keys would put derived keys in another slot. Calls that need no second key still work.
    let nodes = [&cluster.nodes[0], &cluster.nodes[1]];
    for (key, counter) in [
        ("a}b", "redisson_lock_token:{a}b}"),
        ("{}x", "redisson_lock_token:{}x"),
        ("a{", "redisson_lock_token:a{"),
    ] {
        let mut there = nodes.map(Server::client).into_iter().find_map(|mut client| {
            (!client.call(&format!("LOCK.INFO {key}")).starts_with("MOVED")).then_some(client)
        });
        let client = there.as_mut().unwrap();
        for (command, option, derived) in [
            ("ACQUIRE", "FENCE", counter.to_owned()),
            ("ACQUIRE", "ID", counter.replace("redisson_lock_token", "lock_request") + ":o:r"),
            ("RELEASE", "ID", counter.replace("redisson_lock_token", "lock_request") + ":o:r"),
        ] {
            let value = if option == "ID" { "r" } else { "" };
            let error = format!(
                "ERR {option} cannot be used with key '{key}' in 'lock.{}' command; its braces put '{derived}' \
                 in another slot; use another key",
                command.to_lowercase()
            );
            assert_eq!(client.call(&format!("LOCK.{command} {key} o {option} {value}")), error);
        }
        assert_eq!(client.call(&format!("LOCK.ACQUIRE {key} o")), "1");
        assert_eq!(client.call(&format!("LOCK.RELEASE {key} o")), "0");
    }
    cluster.assert_healthy();
}

fn migration_ends_the_watchdog(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let [mut first, mut second] = cluster.clients();
    let mut holder = cluster.nodes[0].client();
    assert_eq!(holder.call("LOCK.ACQUIRE b o WATCHDOG EPHEMERAL PX 100000"), "1");
    cluster.migrate("b");
    until("the move is noticed", || first.info("lock", "lock_watchdogs") == "0");
    holder.close();
    first.call("PING");
    assert_eq!(second.call("HGETALL b"), "[o, 1]");
    // The owner can start the watchdog again at the new node.
    let mut holder = cluster.nodes[1].client();
    assert_eq!(holder.call("LOCK.RENEW b o WATCHDOG PX 300"), "1");
    let end = second.number("PEXPIRETIME b");
    until("the lease is renewed", || second.number("PEXPIRETIME b") > end);
    // The module does not write to a slot that it has lost without an event.
    assert_eq!(second.call("CLUSTER DELSLOTS 3300"), "OK");
    until("the loss is noticed", || second.info("lock", "lock_watchdogs") == "0");
    cluster.assert_healthy();
}

/// The lock has moved to the new node, but the keys derived from it have not.
fn retries_wait_for_the_migration_end(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let [mut first, mut second] = cluster.clients();
    let fenced = first.call("LOCK.ACQUIRE b o FENCE ID one PX 100000");
    assert!(fenced.starts_with("[owner, o, holds, 1, token, "), "{fenced}");
    assert_eq!(first.call("RPUSH log:{b} before"), "1");
    let (from, to, port) = (cluster.id(0), cluster.id(1), cluster.nodes[1].port);
    assert_eq!(second.call(&format!("CLUSTER SETSLOT 3300 IMPORTING {from}")), "OK");
    assert_eq!(first.call(&format!("CLUSTER SETSLOT 3300 MIGRATING {to}")), "OK");
    // The old node serves the calls while it has all keys.
    assert_eq!(first.call("LOCK.ACQUIRE b o FENCE ID one PX 100000"), fenced);
    let migrate = |client: &mut Client, key: &str| {
        assert_eq!(client.call(&format!("MIGRATE 127.0.0.1 {port} {key} 0 10000")), "OK");
    };
    migrate(&mut first, "b");
    let mut ask = |command: &str| {
        assert_eq!(second.call("ASKING"), "OK");
        second.call(command)
    };
    let again = "TRYAGAIN Multiple keys request during rehashing of slot";
    for command in ["LOCK.ACQUIRE b o FENCE ID one", "LOCK.ACQUIRE b p FENCE", "LOCK.RELEASE b o ID two"] {
        assert!(first.call(command).starts_with("ASK 3300 "), "{command}");
        assert_eq!(ask(command), again, "{command}");
    }
    // Calls that need no second key still work.
    assert_eq!(ask("LOCK.RENEW b o PX 100000"), "1");
    // A guarded write must not create at the new node a key that is still at the old one.
    for command in ["RPUSH log:{b} after", "EVAL return(redis.call('RPUSH',KEYS[1],'after')) 1 log:{b}"] {
        assert_eq!(ask(&format!("LOCK.GUARD b OWNER o {command}")), again, "{command}");
    }
    migrate(&mut first, "log:{b}");
    assert_eq!(ask("LOCK.GUARD b OWNER o RPUSH log:{b} after"), "2");
    migrate(&mut first, "redisson_lock_token:{b}");
    migrate(&mut first, "lock_request:{b}:o:one");
    assert_eq!(ask("LOCK.ACQUIRE b o FENCE ID one"), fenced);
    for client in [&mut second, &mut first] {
        assert_eq!(client.call(&format!("CLUSTER SETSLOT 3300 NODE {to}")), "OK");
    }
    assert_eq!(second.call("LOCK.RELEASE b o ID two"), "0");
    cluster.assert_healthy();
}

/// The token counter moves before its lock, which is handed over in between.
fn migration_restarts_no_counter(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let [mut first, mut second] = cluster.clients();
    let [source, target] = &cluster.nodes;
    let counter = "redisson_lock_token:{b}";
    assert!(first.call("LOCK.ACQUIRE b o FENCE PX 600000").starts_with("[owner, o, holds, 1, token, "));
    let token = first.call(&format!("GET {counter}"));
    let mut fenced = source.waiting("LOCK.ACQUIRE b w FENCE BLOCK 0 PX 600000");
    let mut plain = source.waiting("LOCK.ACQUIRE b v BLOCK 0 PX 600000");
    let (from, to, port) = (cluster.id(0), cluster.id(1), target.port);
    assert_eq!(second.call(&format!("CLUSTER SETSLOT 3300 IMPORTING {from}")), "OK");
    assert_eq!(first.call(&format!("CLUSTER SETSLOT 3300 MIGRATING {to}")), "OK");
    assert_eq!(first.call(&format!("MIGRATE 127.0.0.1 {port} {counter} 0 10000")), "OK");
    assert_eq!(first.call("LOCK.RELEASE b o"), "0");
    assert!(fenced.recv().starts_with("TRYAGAIN "));
    // Other waiters still get the lock.
    assert_eq!(plain.recv(), "1");
    assert_eq!(first.call("LOCK.RELEASE b v"), "0");
    until("there are no waiters", || first.info("lock", "lock_waiters") == "0");
    assert!(first.call(&format!("EXISTS {counter}")).starts_with("ASK "), "a second counter");
    for client in [&mut second, &mut first] {
        assert_eq!(client.call(&format!("CLUSTER SETSLOT 3300 NODE {to}")), "OK");
    }
    assert_eq!(second.call(&format!("GET {counter}")), token);
    let reply = second.call("LOCK.ACQUIRE b w FENCE PX 600000");
    let next = reply.trim_end_matches(']').rsplit(' ').next().unwrap();
    assert!(next.parse::<i64>().unwrap() > token.parse().unwrap(), "{reply} after {token}");
    cluster.assert_healthy();
}

fn a_demoted_node_can_unload(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let mut replica = cluster.replica_of(0, &[]);
    let [mut first, _] = cluster.clients();
    first.call("LOCK.ACQUIRE b a PX 100");
    let mut granted = cluster.nodes[0].waiting("LOCK.ACQUIRE b b BLOCK 0 PX 100000");
    let mut waiter = cluster.nodes[0].waiting("LOCK.ACQUIRE b c BLOCK 0");
    assert_eq!(granted.recv(), "1");
    assert_eq!(replica.client().call("CLUSTER FAILOVER TAKEOVER"), "OK");
    let reply = waiter.recv();
    assert!(reply.starts_with("UNBLOCKED "), "{reply}");
    until("the roles are swapped", || first.call("ROLE").starts_with("[slave"));
    unload_module(&mut first);
    replica.assert_healthy();
    cluster.assert_healthy();
}
