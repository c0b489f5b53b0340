//! Locks in a cluster of two nodes.

use crate::support::{until, Client, Flavor, Server};

crate::on_every_server!(
    a_lock_lives_with_its_slot,
    a_slot_that_migrates_takes_its_lock_along,
    a_slot_that_leaves_unseen_ends_its_waits,
    both_kinds_of_message_are_published,
    a_demoted_node_comes_to_rest,
);

struct Cluster {
    nodes: [Server; 2],
}

impl Cluster {
    /// The first node has the lower half of the slots, the second the upper.
    fn start(flavor: Flavor) -> Cluster {
        // Without full coverage the cluster goes on when a slot is lost, and does not end all waits itself.
        let args = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"];
        let nodes = [Server::with_module(flavor, &args), Server::with_module(flavor, &args)];
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

    fn id(&self, node: usize) -> String {
        self.nodes[node].client().call("CLUSTER MYID")
    }

    fn clients(&self) -> [Client; 2] {
        [self.nodes[0].client(), self.nodes[1].client()]
    }

    /// Moves the slot of a key from the first node to the second, with its keys.
    fn migrate(&self, key: &str) {
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

    fn assert_healthy(mut self) {
        self.nodes.iter_mut().for_each(Server::assert_healthy);
    }
}

/// Key slots: `b` is 3300, of the first node; `a` is 15495, of the second.
fn a_lock_lives_with_its_slot(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let [mut first, mut second] = cluster.clients();
    for command in ["LOCK.ACQUIRE a o", "LOCK.RELEASE a o", "LOCK.RENEW a o", "LOCK.BREAK a", "LOCK.INFO a"] {
        assert!(first.call(command).starts_with("MOVED 15495 "), "{command}");
    }
    assert!(first.call("LOCK.WAITERS a").starts_with("MOVED "));
    assert_eq!(second.call("LOCK.ACQUIRE a o"), "1");
    assert_eq!(first.call("LOCK.ACQUIRE b o PX 200"), "1");
    let mut waiter = cluster.nodes[0].waiting("LOCK.ACQUIRE b w BLOCK 0");
    assert_eq!(waiter.recv(), "1", "a lease that ends");
    let mut waiter = cluster.nodes[0].waiting("LOCK.ACQUIRE b w2 BLOCK 0");
    assert_eq!(first.call("DEL b"), "1");
    assert_eq!(waiter.recv(), "1");
    let mut waiter = cluster.nodes[0].waiting("LOCK.ACQUIRE b w3 BLOCK 0");
    assert_eq!(first.call("LOCK.RELEASE b w2"), "0");
    assert_eq!(waiter.recv(), "1");
    cluster.assert_healthy();
}

fn a_slot_that_migrates_takes_its_lock_along(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let [mut first, mut second] = cluster.clients();
    assert_eq!(first.call("LOCK.ACQUIRE b o PX 100000"), "1");
    let mut waiters = [
        cluster.nodes[0].waiting("LOCK.ACQUIRE b w BLOCK 0"),
        cluster.nodes[0].waiting("LOCK.ACQUIRE b v BLOCK 0"),
    ];
    cluster.migrate("b");
    for waiter in &mut waiters {
        assert!(
            waiter.recv().starts_with("UNBLOCKED the slot of the lock is not served by this node"),
            "granted twice"
        );
        assert!(waiter.call("LOCK.ACQUIRE b w BLOCK 0").starts_with("MOVED 3300 "));
    }
    assert_eq!(second.call("HGETALL b"), "[o, 1]");
    assert!(first.call("EXISTS b").starts_with("MOVED "));
    let mut there = cluster.nodes[1].waiting("LOCK.ACQUIRE b w BLOCK 0");
    assert_eq!(second.call("LOCK.RELEASE b o"), "0");
    assert_eq!(there.recv(), "1");
    cluster.assert_healthy();
}

/// Without a word about its keys.
fn a_slot_that_leaves_unseen_ends_its_waits(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let mut first = cluster.nodes[0].client();
    assert_eq!(first.call("LOCK.ACQUIRE b o PX 100000"), "1");
    let mut waiter = cluster.nodes[0].waiting("LOCK.ACQUIRE b w BLOCK 0");
    assert_eq!(first.call("CLUSTER DELSLOTS 3300"), "OK");
    let reply = waiter.recv();
    assert!(reply.starts_with("UNBLOCKED "), "{reply}");
    until("nobody is blocked", || first.info("clients", "blocked_clients") == "0");
    until("no timer is left", || first.call("MODULE UNLOAD redis-lock") == "OK");
    cluster.assert_healthy();
}

fn both_kinds_of_message_are_published(flavor: Flavor) {
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

fn a_demoted_node_comes_to_rest(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let mut replica = Server::with_module(flavor, &["--cluster-enabled", "yes"]);
    let [mut first, _] = cluster.clients();
    let mut r = replica.client();
    r.call(&format!("CLUSTER MEET 127.0.0.1 {}", cluster.nodes[0].port));
    let id = cluster.id(0);
    until("it knows the node", || r.call("CLUSTER NODES").contains(&id));
    until("it is a replica", || r.call(&format!("CLUSTER REPLICATE {id}")) == "OK");
    until("it is in sync", || r.info("replication", "master_link_status") == "up");
    first.call("LOCK.ACQUIRE b a PX 100");
    let mut granted = cluster.nodes[0].waiting("LOCK.ACQUIRE b b BLOCK 0 PX 100000");
    let mut waiter = cluster.nodes[0].waiting("LOCK.ACQUIRE b c BLOCK 0");
    assert_eq!(granted.recv(), "1");
    assert_eq!(r.call("CLUSTER FAILOVER TAKEOVER"), "OK");
    let reply = waiter.recv();
    assert!(reply.starts_with("UNBLOCKED "), "{reply}");
    until("the roles are swapped", || first.call("ROLE").starts_with("[slave"));
    until("no timer is left", || first.call("MODULE UNLOAD redis-lock") == "OK");
    replica.assert_healthy();
    cluster.assert_healthy();
}
