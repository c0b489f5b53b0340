// SPDX-License-Identifier: MIT

//! A primary that becomes a replica for any reason ends every wait, whether or not the server ends waits itself.

use crate::support::cluster::Cluster;
use crate::support::{until, Client, Flavor, Server};

crate::on_every_server!(
    a_planned_cluster_failover_ends_all_waits,
    an_unplanned_cluster_failover_ends_all_waits,
    two_failovers_end_earlier_waits,
    demotion_ends_waits_of_redirectable_clients,
    demotion_before_first_use_is_noticed,
    demotion_ends_waits_for_replicated_locks,
    demotion_and_promotion_at_once_end_waits,
);

/// Asserts that every waiter gets the error and that no state is left.
fn assert_ended(server: &Server, waiters: Vec<Client>) {
    for mut waiter in waiters {
        let reply = waiter.recv();
        assert!(reply.starts_with("UNBLOCKED "), "{reply}");
    }
    let mut watch = server.client();
    until("no client is blocked", || watch.info("clients", "blocked_clients") == "0");
    assert_eq!(watch.info("lock", "lock_waiters"), "0");
    assert_eq!(watch.info("lock", "lock_contended_locks"), "0");
    assert_eq!(watch.info("lock", "lock_table_bundles"), "0");
    assert_eq!(watch.info("lock", "lock_internal_errors"), "0");
}

/// Waits with and without a timeout, behind both kinds of holds, and with bindings to the connection.
fn waiters_of_all_kinds(server: &Server) -> Vec<Client> {
    let mut a = server.client();
    assert_eq!(a.call("LOCK.ACQUIRE {b} a PX 600000"), "1");
    assert_eq!(a.call("LOCK.ACQUIRE {b}s a SHARED PX 600000"), "1");
    [
        "LOCK.MACQUIRE 3 {b}free {b} {b}s m BLOCK 0",
        "LOCK.ACQUIRE {b} b BLOCK 0",
        "LOCK.ACQUIRE {b} c BLOCK 600000 SHARED",
        "LOCK.ACQUIRE {b} d BLOCK 0 WATCHDOG EPHEMERAL FENCE ID one",
        "LOCK.ACQUIRE {b}s b BLOCK 0",
        "LOCK.ACQUIRE {b}s c BLOCK 0 SHARED",
    ]
    .map(|command| server.waiting(command))
    .into()
}

fn until_swapped(old: &Server, new: &Server) {
    until("the old primary follows", || old.client().call("ROLE").starts_with("[slave"));
    until("the new primary leads", || new.client().call("ROLE").starts_with("[master"));
}

fn a_planned_cluster_failover_ends_all_waits(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let mut replica = cluster.replica_of(0, &[]);
    let waiters = waiters_of_all_kinds(&cluster.nodes[0]);
    let mut r = replica.client();
    until("the failover has begun", || r.call("CLUSTER FAILOVER") == "OK");
    until_swapped(&cluster.nodes[0], &replica);
    assert_ended(&cluster.nodes[0], waiters);
    // The new primary has the hold, and the clients can wait there.
    assert_eq!(r.call("HGETALL {b}"), "[a, 1]");
    let mut there = replica.waiting_when_it_serves("LOCK.ACQUIRE {b} b BLOCK 0");
    assert_eq!(r.call("LOCK.RELEASE {b} a"), "0");
    assert_eq!(there.recv(), "1");
    replica.assert_healthy();
    cluster.assert_healthy();
}

/// The primary is suspended, and later learns that another node has replaced it.
fn an_unplanned_cluster_failover_ends_all_waits(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let mut replica = cluster.replica_of(0, &[]);
    let waiters = waiters_of_all_kinds(&cluster.nodes[0]);
    cluster.nodes[0].signal(libc::SIGSTOP);
    let mut r = replica.client();
    let taken = r.call("CLUSTER FAILOVER TAKEOVER");
    until("the replica leads", || r.call("ROLE").starts_with("[master"));
    cluster.nodes[0].signal(libc::SIGCONT);
    assert_eq!(taken, "OK");
    until_swapped(&cluster.nodes[0], &replica);
    assert_ended(&cluster.nodes[0], waiters);
    replica.assert_healthy();
    cluster.assert_healthy();
}

fn two_failovers_end_earlier_waits(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let mut replica = cluster.replica_of(0, &[]);
    let first = &cluster.nodes[0];
    let mut a = first.client();
    assert_eq!(a.call("LOCK.ACQUIRE b a PX 600000"), "1");
    // TAKEOVER asks no other node, so the hold must have been replicated.
    assert_eq!(a.call("WAIT 1 20000"), "1");
    let mut before = first.waiting("LOCK.ACQUIRE b before BLOCK 0");
    assert_eq!(replica.client().call("CLUSTER FAILOVER TAKEOVER"), "OK");
    until_swapped(first, &replica);
    until("the old primary is in sync", || first.client().info("replication", "master_link_status") == "up");
    assert_eq!(first.client().call("CLUSTER FAILOVER TAKEOVER"), "OK");
    until_swapped(&replica, first);
    let mut a = first.client();
    let mut after = first.waiting_when_it_serves("LOCK.ACQUIRE b after BLOCK 0");
    assert_eq!(a.call("LOCK.RELEASE b a"), "0");
    assert_eq!(after.recv(), "1", "an earlier waiter got the lock");
    let reply = before.recv();
    assert!(reply.starts_with("UNBLOCKED "), "{reply}");
    replica.assert_healthy();
    cluster.assert_healthy();
}

/// Valkey does not unblock clients that announce the capability `redirect`, unless they wait for a key known to the server.
fn demotion_ends_waits_of_redirectable_clients(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let other = Server::start(flavor, &[]);
    let mut a = server.client();
    a.call("LOCK.ACQUIRE k a PX 600000");
    let mut waiter = server.client();
    let can_redirect = waiter.call("CLIENT CAPA redirect") == "OK";
    assert_eq!(can_redirect, flavor.is_valkey());
    waiter.send("LOCK.ACQUIRE k b BLOCK 0");
    server.until_blocked(&waiter);
    assert_eq!(a.call(&format!("REPLICAOF 127.0.0.1 {}", other.port)), "OK");
    assert_ended(&server, vec![waiter]);
    server.assert_healthy();
}

fn demotion_before_first_use_is_noticed(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let other = Server::start(flavor, &[]);
    let follow = format!("REPLICAOF 127.0.0.1 {}", other.port);
    let mut a = server.client();
    for _ in 0..2 {
        assert_eq!(a.call(&follow), "OK");
        assert_eq!(a.call("LOCK.INFO k"), "nil");
        assert!(a.call("LOCK.ACQUIRE k a").starts_with("READONLY "));
        assert_eq!(a.call("REPLICAOF NO ONE"), "OK");
    }
    // The module's first wait is behind a foreign hold, which only the lease can end.
    assert_eq!(a.call("HSET k a 1"), "1");
    assert_eq!(a.call("PEXPIRE k 600000"), "1");
    let waiter = server.waiting("LOCK.ACQUIRE k b BLOCK 0");
    assert_eq!(a.call(&follow), "OK");
    assert_ended(&server, vec![waiter]);
    server.assert_healthy();
}

fn demotion_ends_waits_for_replicated_locks(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let mut replica = cluster.replica_of(0, &[]);
    let mut a = cluster.nodes[0].client();
    assert_eq!(a.call("LOCK.ACQUIRE b a PX 600000"), "1");
    assert_eq!(a.call("WAIT 1 20000"), "1");
    let mut r = replica.client();
    assert_eq!(r.call("CLUSTER FAILOVER TAKEOVER"), "OK");
    until_swapped(&cluster.nodes[0], &replica);
    until("the old primary is in sync", || a.info("replication", "master_link_status") == "up");
    let waiter = replica.waiting_when_it_serves("LOCK.ACQUIRE b b BLOCK 0");
    assert_eq!(a.call("CLUSTER FAILOVER TAKEOVER"), "OK");
    until_swapped(&replica, &cluster.nodes[0]);
    assert_ended(&replica, vec![waiter]);
    replica.assert_healthy();
    cluster.assert_healthy();
}

/// The server is demoted in an event loop iteration that also has a pending grant.
fn demotion_and_promotion_at_once_end_waits(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let other = Server::start(flavor, &[]);
    let mut a = server.client();
    a.call("LOCK.ACQUIRE k a PX 600000");
    a.call("LOCK.ACQUIRE l a PX 600000");
    let mut granted = server.waiting("LOCK.ACQUIRE l b BLOCK 0 PX 600000");
    let waiters =
        vec![server.waiting("LOCK.ACQUIRE k b BLOCK 0"), server.waiting("LOCK.ACQUIRE l c BLOCK 0")];
    let follow = format!("REPLICAOF 127.0.0.1 {}", other.port);
    a.send_at_once(&["LOCK.RELEASE l a", &follow, "REPLICAOF NO ONE", "LOCK.RELEASE k a"]);
    assert_eq!([a.recv(), a.recv(), a.recv(), a.recv()], ["0", "OK", "OK", "0"]);
    let reply = granted.recv();
    assert!(reply.starts_with("UNBLOCKED "), "{reply}");
    assert_ended(&server, waiters);
    assert_eq!(a.call("LOCK.INFO k"), "nil");
    // Waits from before the demotion must not get the lock now.
    let mut after = server.waiting("LOCK.ACQUIRE l after BLOCK 0");
    assert_eq!(a.call("LOCK.RELEASE l b"), "0");
    assert_eq!(after.recv(), "1");
    server.assert_healthy();
}
