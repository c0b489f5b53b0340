// SPDX-License-Identifier: MIT

//! Both kinds of client in a cluster of three nodes. Redisson's older versions listen to `PUBLISH` messages there, newer
//! ones to `SPUBLISH`.
//!
//! Version 3.27.2 may listen to either. It detects the server's abilities with a command that only the node of slot 0
//! answers, and sends that command to any node.

use super::count;
use crate::support::redisson::{Redisson, Version};
use crate::support::{until, Client, Flavor, Server};

crate::with_every_redisson!(
    a_message_of_the_right_kind_wakes_redisson,
    a_native_release_wakes_redisson_in_every_slot,
    an_unlock_wakes_native_waiters_in_every_slot,
    every_end_of_a_native_hold_wakes_redisson,
    both_clients_count_correctly_in_a_cluster,
    each_release_sends_one_message_per_kind,
    the_setting_selects_the_woken_versions,
    native_waiters_get_locks_of_a_killed_jvm,
);

/// Slots 3300, 7365 and 15495: a key for each node.
const KEYS: [&str; 3] = ["b", "c", "a"];

struct Cluster {
    nodes: [Server; 3],
}

impl Cluster {
    fn start(flavor: Flavor) -> Cluster {
        let nodes = [(); 3].map(|()| Server::with_module(flavor, &["--cluster-enabled", "yes"]));
        let ranges = ["0 5460", "5461 10922", "10923 16383"];
        for (at, (node, range)) in nodes.iter().zip(ranges).enumerate() {
            let mut client = node.client();
            assert_eq!(client.call(&format!("CLUSTER ADDSLOTSRANGE {range}")), "OK");
            assert_eq!(client.call(&format!("CLUSTER SET-CONFIG-EPOCH {}", at + 1)), "OK");
            assert_eq!(client.call(&format!("CLUSTER MEET 127.0.0.1 {}", nodes[0].port)), "OK");
        }
        for node in &nodes {
            let mut client = node.client();
            until("the cluster is complete", || {
                let info = client.call("CLUSTER INFO");
                info.contains("cluster_state:ok")
                    && info.contains("cluster_slots_ok:16384")
                    && client.call("CLUSTER NODES").matches(" connected ").count() == 3
            });
        }
        Cluster { nodes }
    }

    /// The node that serves a key.
    fn node(&self, key: &str) -> &Server {
        let serves = |node: &&Server| !node.client().call(&format!("EXISTS {key}")).starts_with("MOVED ");
        self.nodes.iter().find(serves).unwrap()
    }

    fn redisson(&self, version: Version, settings: &str) -> Redisson {
        let redisson = Redisson::start(version);
        let nodes: Vec<String> = self.nodes.iter().map(|node| node.url()).collect();
        redisson.connect("main", &format!("cluster {} {settings}", nodes.join(",")));
        redisson
    }

    fn assert_healthy(mut self) {
        self.nodes.iter_mut().for_each(Server::assert_healthy);
    }
}

fn in_cluster(flavor: Flavor, version: Version, settings: &str, scenario: impl FnOnce(&Cluster, &Redisson)) {
    let cluster = Cluster::start(flavor);
    scenario(&cluster, &cluster.redisson(version, settings));
    cluster.assert_healthy();
}

fn channel(key: &str) -> String {
    if key.contains('{') {
        format!("redisson_lock__channel:{key}")
    } else {
        format!("redisson_lock__channel:{{{key}}}")
    }
}

/// The numbers of listeners to a lock's classic messages, at all nodes, and to its sharded messages.
fn listeners(cluster: &Cluster, key: &str) -> (usize, usize) {
    let sum = |kind: &str| {
        let count = |node: &Server| {
            let reply = node.client().call(&format!("PUBSUB {kind} {}", channel(key)));
            reply.trim_end_matches(']').rsplit_once(", ").unwrap().1.parse::<usize>().unwrap()
        };
        cluster.nodes.iter().map(count).sum()
    };
    (sum("NUMSUB"), sum("SHARDNUMSUB"))
}

/// Whether this client listens to sharded messages instead of classic ones.
fn uses_sharded_messages(cluster: &Cluster, redisson: &Redisson) -> bool {
    let (mut native, thread) = (cluster.node("{b}probe").client(), redisson.thread("probe"));
    assert_eq!(native.call("LOCK.ACQUIRE {b}probe native PX 100000"), "1");
    let waiting = thread.start("lock plain {b}probe");
    thread.until_asleep();
    let found = listeners(cluster, "{b}probe");
    assert_eq!(native.call("LOCK.RELEASE {b}probe native"), "0");
    assert_eq!(waiting.wait(), "OK");
    thread.call("unlock plain {b}probe");
    assert!(found == (1, 0) || found == (0, 1), "listeners to classic and sharded messages: {found:?}");
    found == (0, 1)
}

fn a_message_of_the_right_kind_wakes_redisson(flavor: Flavor, version: Version) {
    in_cluster(flavor, version, "", |cluster, redisson| {
        let found = uses_sharded_messages(cluster, redisson);
        match version {
            Version::V3_17_7 => assert!(!found),
            Version::V3_27_2 => {}
            Version::V4_7_0 => assert!(found),
        }
    });
}

fn a_native_release_wakes_redisson_in_every_slot(flavor: Flavor, version: Version) {
    in_cluster(flavor, version, "", |cluster, redisson| {
        let names = [KEYS[0], KEYS[1], KEYS[2], "{b}rest", "rest{a}"];
        let threads = names.map(|name| {
            assert_eq!(
                cluster.node(name).client().call(&format!("LOCK.ACQUIRE {name} native PX 100000")),
                "1"
            );
            let thread = redisson.thread(name);
            let waiting = thread.start(&format!("try plain {name} 90000 100000"));
            thread.until_asleep();
            waiting
        });
        for (name, waiting) in names.iter().zip(threads) {
            assert!(!waiting.is_done(), "{name}");
            assert_eq!(cluster.node(name).client().call(&format!("LOCK.RELEASE {name} native")), "0");
            assert_eq!(waiting.wait(), "true", "{name}");
        }
    });
}

fn an_unlock_wakes_native_waiters_in_every_slot(flavor: Flavor, version: Version) {
    in_cluster(flavor, version, "", |cluster, redisson| {
        let java = redisson.thread("java");
        for name in [KEYS[0], KEYS[1], KEYS[2], "{b}rest", "rest{a}"] {
            java.call(&format!("lock plain {name} 100000"));
            let mut native = cluster.node(name).waiting(&format!("LOCK.ACQUIRE {name} native BLOCK 0"));
            java.call(&format!("unlock plain {name}"));
            assert_eq!(native.recv(), "1", "{name}");
        }
    });
}

fn every_end_of_a_native_hold_wakes_redisson(flavor: Flavor, version: Version) {
    in_cluster(flavor, version, "", |cluster, redisson| {
        let (mut native, java) = (cluster.node("b").client(), redisson.thread("java"));
        for free in ["LOCK.BREAK b", "LOCK.RENEW b native PX 300", "DEL b", "PEXPIRE b 100"] {
            assert_eq!(native.call("LOCK.ACQUIRE b native PX 100000"), "1");
            let waiting = java.start("lock plain b 100000");
            java.until_asleep();
            assert_eq!(native.call(free), "1");
            assert_eq!(waiting.wait(), "OK", "{free}");
            java.call("unlock plain b");
        }
    });
}

fn both_clients_count_correctly_in_a_cluster(flavor: Flavor, version: Version) {
    in_cluster(flavor, version, "", |cluster, redisson| {
        const ROUNDS: usize = 20;
        for key in KEYS {
            let counter = format!("{{{key}}}n");
            let java = ["x", "y"]
                .map(|name| redisson.thread(name).start(&format!("count plain {key} {counter} {ROUNDS}")));
            std::thread::scope(|scope| {
                let native = ["v", "w"].map(|owner| {
                    let (mut client, counter) = (cluster.node(key).client(), &counter);
                    scope.spawn(move || count(&mut client, key, owner, counter, ROUNDS))
                });
                for client in native {
                    assert_eq!(client.join().unwrap(), 0, "another client was inside");
                }
            });
            for thread in java {
                assert_eq!(thread.wait(), format!("{ROUNDS} 0"));
            }
            let total = cluster.node(key).client().call(&format!("GET {counter}"));
            assert_eq!(total, (4 * ROUNDS).to_string());
        }
    });
}

fn listener(server: &Server, subscribe: &str) -> Client {
    let mut client = server.client();
    assert!(client.call(subscribe).contains("subscribe, "));
    client
}

fn each_release_sends_one_message_per_kind(flavor: Flavor, version: Version) {
    in_cluster(flavor, version, "", |cluster, redisson| {
        let (node, java) = (cluster.node("b"), redisson.thread("java"));
        let (mut native, shards) = (node.client(), uses_sharded_messages(cluster, redisson));
        // A classic message goes to every node, a sharded one only to the slot's node.
        let mut classic: Vec<Client> =
            cluster.nodes.iter().map(|node| listener(node, &format!("SUBSCRIBE {}", channel("b")))).collect();
        let mut sharded = listener(node, &format!("SSUBSCRIBE {}", channel("b")));
        for free in ["LOCK.RELEASE b native", "LOCK.BREAK b"] {
            assert_eq!(native.call("LOCK.ACQUIRE b native PX 100000"), "1");
            let waiting = java.start("lock plain b 100000");
            java.until_asleep();
            native.call(free);
            assert_eq!(waiting.wait(), "OK");
            // Redisson's own message, which has only one kind, marks the end.
            java.call("unlock plain b");
            native.call(&format!("PUBLISH {} end", channel("b")));
            native.call(&format!("SPUBLISH {} end", channel("b")));
            let count = |listener: &mut Client| {
                let mut count = 0;
                while !listener.recv().ends_with(", end]") {
                    count += 1;
                }
                count
            };
            let (classic_count, sharded_count) = if shards { (1, 2) } else { (2, 1) };
            for listener in &mut classic {
                assert_eq!(count(listener), classic_count, "classic messages after {free} and an unlock");
            }
            assert_eq!(count(&mut sharded), sharded_count, "sharded messages after {free} and an unlock");
        }
    });
}

fn the_setting_selects_the_woken_versions(flavor: Flavor, version: Version) {
    in_cluster(flavor, version, "", |cluster, redisson| {
        let (mut native, java) = (cluster.node("b").client(), redisson.thread("java"));
        let shards = uses_sharded_messages(cluster, redisson);
        for (setting, wakes) in
            [("auto", true), ("off", false), ("publish", !shards), ("spublish", shards), ("both", true)]
        {
            assert_eq!(native.call(&format!("CONFIG SET lock.publish {setting}")), "OK");
            assert_eq!(native.call("LOCK.ACQUIRE b native PX 100000"), "1");
            let waiting = java.start("lock plain b 100000");
            java.until_asleep();
            assert_eq!(native.call("LOCK.RELEASE b native"), "0");
            if !wakes {
                assert!(!waiting.is_done() && java.call("asleep") == "true", "{setting}");
                let publish = if shards { "SPUBLISH" } else { "PUBLISH" };
                native.call(&format!("{publish} {} 0", channel("b")));
            }
            assert_eq!(waiting.wait(), "OK", "{setting}");
            java.call("unlock plain b");
        }
    });
}

fn native_waiters_get_locks_of_a_killed_jvm(flavor: Flavor, version: Version) {
    // On a busy machine, the JVM may renew a second late.
    in_cluster(flavor, version, "lockWatchdogTimeout=4500", |cluster, redisson| {
        let java = redisson.thread("java");
        for key in KEYS {
            java.call(&format!("lock plain {key}"));
        }
        let mut waiters = KEYS
            .map(|key| cluster.node(key).waiting(&format!("LOCK.ACQUIRE {key} native BLOCK 0 PX 100000")));
        let mut native = cluster.node("b").client();
        for _ in 0..4 {
            let end = native.number("PEXPIRETIME b");
            until("the lease is renewed", || native.number("PEXPIRETIME b") > end);
        }
        assert!(waiters.iter().all(Client::has_nothing));
        redisson.kill();
        assert!(waiters.iter_mut().all(|waiter| waiter.recv() == "1"));
    });
}
