// SPDX-License-Identifier: MIT

//! A cluster of two nodes.

use redis::Value;

use super::{until, Flavor, Server};
use crate::client::Client;

/// Two nodes with the module. Each serves half of the slots.
pub struct Cluster {
    pub nodes: [Server; 2],
}

impl Cluster {
    /// Starts both nodes. The first node serves the lower half of the slots.
    pub fn start(flavor: Flavor) -> Cluster {
        Cluster::start_with(flavor, &[])
    }

    /// Starts both nodes, and passes these arguments to the servers.
    pub fn start_with(flavor: Flavor, more: &[&str]) -> Cluster {
        Cluster::start_as(flavor, &[], more)
    }

    /// Starts both nodes, and passes these arguments to the module.
    pub fn start_with_module_args(flavor: Flavor, module_args: &[&str]) -> Cluster {
        Cluster::start_as(flavor, module_args, &[])
    }

    fn start_as(flavor: Flavor, module_args: &[&str], more: &[&str]) -> Cluster {
        // With full coverage required, a cluster that loses a slot would stop and end all waits itself.
        let args = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"];
        let args = [&args, more].concat();
        let nodes = [(); 2].map(|()| Server::with_module_args(flavor, module_args, &args));
        let [mut first, mut second] = [nodes[0].client(), nodes[1].client()];
        assert_eq!(first.call("CLUSTER ADDSLOTSRANGE 0 8191"), "OK");
        assert_eq!(second.call("CLUSTER ADDSLOTSRANGE 8192 16383"), "OK");
        assert_eq!(second.call("CLUSTER SET-CONFIG-EPOCH 2"), "OK");
        assert_eq!(first.call(&format!("CLUSTER MEET 127.0.0.1 {}", nodes[1].port)), "OK");
        for client in [&mut first, &mut second] {
            until("the cluster is complete", || {
                client.call("CLUSTER INFO").contains("cluster_state:ok")
                    && client.call("CLUSTER NODES").matches("connected ").count() == 2
                    && client.call("CLUSTER INFO").contains("cluster_slots_ok:16384")
            });
        }
        Cluster { nodes }
    }

    pub fn id(&self, node: usize) -> String {
        self.nodes[node].client().call("CLUSTER MYID")
    }

    pub fn clients(&self) -> [Client; 2] {
        [self.nodes[0].client(), self.nodes[1].client()]
    }

    /// Moves the slot of a key from the first node to the second, with its keys.
    pub fn migrate(&self, key: &str) {
        let [mut first, mut second] = self.clients();
        let slot = first.call(&format!("CLUSTER KEYSLOT {key}"));
        let (from, to) = (self.id(0), self.id(1));
        assert_eq!(second.call(&format!("CLUSTER SETSLOT {slot} IMPORTING {from}")), "OK");
        assert_eq!(first.call(&format!("CLUSTER SETSLOT {slot} MIGRATING {to}")), "OK");
        let port = self.nodes[1].port;
        assert_eq!(first.call(&format!("MIGRATE 127.0.0.1 {port} {key} 0 10000")), "OK");
        for client in [&mut second, &mut first] {
            assert_eq!(client.call(&format!("CLUSTER SETSLOT {slot} NODE {to}")), "OK");
        }
    }

    /// Moves the slot of a key from one node to the other, key by key, while clients use it.
    pub fn migrate_all(&self, key: &str, from: usize, to: usize) {
        self.migrate_keys(key, from, to);
        self.end_migration(key, from, to);
    }

    /// Begins to move the slot of a key: marks it at both nodes, and moves its keys.
    pub fn migrate_keys(&self, key: &str, from: usize, to: usize) {
        let [mut source, mut target] = [self.nodes[from].client(), self.nodes[to].client()];
        let slot = source.call(&format!("CLUSTER KEYSLOT {key}"));
        let (from, id) = (self.id(from), self.id(to));
        assert_eq!(target.call(&format!("CLUSTER SETSLOT {slot} IMPORTING {from}")), "OK");
        assert_eq!(source.call(&format!("CLUSTER SETSLOT {slot} MIGRATING {id}")), "OK");
        let port = self.nodes[to].port.to_string();
        until("no key is left", || {
            let keys = match source.call_value(&format!("CLUSTER GETKEYSINSLOT {slot} 10")) {
                Value::Array(keys) => keys,
                other => panic!("{other:?}"),
            };
            let mut call: Vec<&[u8]> =
                vec![b"MIGRATE", b"127.0.0.1", port.as_bytes(), b"", b"0", b"10000", b"KEYS"];
            call.extend(keys.iter().map(|key| match key {
                Value::BulkString(name) => name.as_slice(),
                other => panic!("{other:?}"),
            }));
            // A key that has expired in the meantime is skipped.
            if !keys.is_empty() {
                let reply = source.call_args(&call);
                assert!(["OK", "NOKEY"].contains(&reply.as_str()), "{reply}");
            }
            keys.is_empty()
        });
    }

    /// Completes a move that [`migrate_keys`](Cluster::migrate_keys) has begun: assigns the slot to its new node.
    pub fn end_migration(&self, key: &str, from: usize, to: usize) {
        let [mut source, mut target] = [self.nodes[from].client(), self.nodes[to].client()];
        let (slot, id) = (source.call(&format!("CLUSTER KEYSLOT {key}")), self.id(to));
        for client in [&mut target, &mut source] {
            assert_eq!(client.call(&format!("CLUSTER SETSLOT {slot} NODE {id}")), "OK");
        }
    }

    fn is_valkey(&self) -> bool {
        self.nodes[0].flavor.is_valkey()
    }

    /// Begins to move the slot of a key as a whole. Needs Valkey 9, or Redis 8.4 or later.
    pub fn begin_to_move(&self, key: &str, from: usize, to: usize) {
        let [mut source, mut target] = [self.nodes[from].client(), self.nodes[to].client()];
        let slot = source.call(&format!("CLUSTER KEYSLOT {key}"));
        if self.is_valkey() {
            let to = self.id(to);
            let reply = source.call(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {to}"));
            assert_eq!(reply, "OK");
        } else {
            let reply = target.call(&format!("CLUSTER MIGRATION IMPORT {slot} {slot}"));
            assert!(!reply.starts_with("ERR"), "{reply}");
        }
    }

    /// Returns the state of the latest move, as a node reports it.
    pub fn state_of_move(&self, node: usize) -> String {
        let mut client = self.nodes[node].client();
        let all = if self.is_valkey() { "GETSLOTMIGRATIONS" } else { "MIGRATION STATUS ALL" };
        let reply = client.call(&format!("CLUSTER {all}"));
        let state = reply.split("state, ").nth(1).and_then(|rest| rest.split(',').next());
        state.unwrap_or_default().to_owned()
    }

    /// Waits until the new node serves an atomically migrating slot, and both nodes know it.
    pub fn until_moved(&self, key: &str, from: usize, to: usize) {
        let [mut source, mut target] = [self.nodes[from].client(), self.nodes[to].client()];
        let question = format!("LOCK.INFO {key}");
        until("the slot has moved", || {
            let state = self.state_of_move(from);
            assert!(!matches!(state.as_str(), "failed" | "cancelled" | "canceled"), "{state}");
            source.call(&question).starts_with("MOVED") && !target.call(&question).starts_with("MOVED")
        });
        until("the move is over", || {
            [from, to]
                .into_iter()
                .all(|node| matches!(self.state_of_move(node).as_str(), "success" | "completed"))
        });
    }

    pub fn assert_healthy(mut self) {
        self.nodes.iter_mut().for_each(Server::assert_healthy);
    }

    /// Starts a replica of a node, and waits until it is in sync and known to all nodes.
    pub fn replica_of(&self, node: usize, more: &[&str]) -> Server {
        let flavor = self.nodes[node].flavor;
        let args = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"];
        let replica = Server::with_module(flavor, &[&args, more].concat());
        let mut client = replica.client();
        client.call(&format!("CLUSTER MEET 127.0.0.1 {}", self.nodes[node].port));
        let id = self.id(node);
        until("the replica knows the node", || client.call("CLUSTER NODES").contains(&id));
        until("the node is a replica", || client.call(&format!("CLUSTER REPLICATE {id}")) == "OK");
        until("the replica is in sync", || client.info("replication", "master_link_status") == "up");
        // Until all nodes know the replica, its primary ignores its messages.
        let myself = client.call("CLUSTER MYID");
        until("the replica has links to all nodes", || {
            let nodes = client.call("CLUSTER NODES");
            nodes.matches(" connected").count() == 3 && !nodes.contains("handshake")
        });
        for primary in &self.nodes {
            let mut primary = primary.client();
            until("all nodes know the replica", || {
                primary.call("CLUSTER NODES").lines().any(|line| {
                    line.starts_with(&myself)
                        && line.contains(&format!("slave {id}"))
                        && line.ends_with(" connected")
                })
            });
        }
        replica
    }
}
