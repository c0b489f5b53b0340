// SPDX-License-Identifier: MIT

//! A network failure cuts off a cluster node while many clients use every feature. The other nodes elect its replica. The
//! cut-off node serves its clients until it notices that it is alone. A checker that shares no code with the module decides
//! whether every promise to clients was met (invariants 1, 5). See `tests/history`.

use std::thread;
use std::time::Duration;

use rand::RngExt;
use redis_lock_history::load::Promise;

use super::failovers::{load, until_it_follows, Case, Outcome, TWO_REPLICAS};
use super::histories::{address, assert_no_state_left, assert_right, MODULE_ARGS};
use crate::support::network::Network;
use crate::support::{until, Flavor, Server};

crate::on_every_server!(
    acknowledged_holds_survive_partitions,
    quarantine_prevents_overlapping_holds,
    unacknowledged_holds_get_lost,
);

/// All locks are in one slot of the first node.
const TAG: &str = "{b}";

/// Many leases outlast the election of a replica.
const CUT_OFF: Case = Case {
    prefix: TAG,
    interval: Duration::from_millis(1500),
    stretch: 3,
    calls_per_key: 10_000,
    length: Duration::from_secs(10),
    ..TWO_REPLICAS
};

/// Starts three nodes with slots and a replica of the first. A node considers itself cut off after `timeout` ms of silence.
fn start(network: &Network, flavor: Flavor, timeout: &str, module_args: &[&str]) -> Vec<Server> {
    let module_args = [&MODULE_ARGS, module_args].concat();
    let cluster = ["--cluster-enabled", "yes", "--cluster-node-timeout", timeout];
    // A replica may be elected however long its primary has been silent.
    let args = [&cluster[..], &["--cluster-replica-validity-factor", "0"]].concat();
    let nodes: Vec<Server> =
        (0..4).map(|machine| network.server(machine, flavor, &module_args, &args)).collect();
    let mut clients: Vec<_> = nodes.iter().map(Server::client).collect();
    for (number, slots) in ["0 5461", "5462 10922", "10923 16383"].into_iter().enumerate() {
        assert_eq!(clients[number].call(&format!("CLUSTER ADDSLOTSRANGE {slots}")), "OK");
        assert_eq!(clients[number].call(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1)), "OK");
    }
    for machine in 1..4 {
        let meet = format!("CLUSTER MEET {} {}", network.address(machine), nodes[usize::from(machine)].port);
        assert_eq!(clients[0].call(&meet), "OK");
    }
    for client in &mut clients {
        until("the cluster is complete", || {
            client.call("CLUSTER INFO").contains("cluster_state:ok")
                && client.call("CLUSTER NODES").matches(" connected").count() == 4
        });
    }
    let first = clients[0].call("CLUSTER MYID");
    assert_eq!(clients[3].call(&format!("CLUSTER REPLICATE {first}")), "OK");
    until("the replica is in sync", || clients[3].info("replication", "master_link_status") == "up");
    for client in &mut clients {
        until("every node knows the replica", || client.call("CLUSTER NODES").contains("slave"));
    }
    nodes
}

/// Result of a run; `None` if this machine cannot create networks.
fn run(flavor: Flavor, case: &Case) -> Option<Outcome> {
    let network = Network::enter()?;
    let mut nodes = start(&network, flavor, "250", case.module_args);
    let (mut primary, mut replica) = (0, 3);
    let outcome = load(case, address(&nodes[0]), |shared, rng| {
        let [before, next] = [primary, replica].map(|machine: u8| &nodes[usize::from(machine)]);
        network.cut_off(primary);
        // Until the replica leads, the clients also open new connections to the cut-off node.
        let mut client = next.client();
        until("the replica was elected", || client.call("ROLE").starts_with("[master"));
        shared.move_to(address(next));
        thread::sleep(Duration::from_millis(rng.random_range(0..500)));
        network.join(primary);
        until_it_follows(before);
        std::mem::swap(&mut primary, &mut replica);
    });
    nodes.iter_mut().for_each(assert_no_state_left);
    Some(outcome)
}

fn run_strictly(flavor: Flavor, case: &Case) {
    if let Some(Outcome { seed, records, report, .. }) = run(flavor, case) {
        assert_right(seed, &records, &report);
    }
}

fn acknowledged_holds_survive_partitions(flavor: Flavor) {
    run_strictly(flavor, &Case { promise: Promise::Replicas(1), ..CUT_OFF });
}

/// Lasts for the longest lease plus the time that a cut-off node may continue to serve.
const QUARANTINE: Case = Case {
    promise: Promise::Primary,
    module_args: &["lock.quarantine", "3500", "lock.max-lease", "2400"],
    names_once: true,
    interval: Duration::from_secs(4),
    ..CUT_OFF
};

fn quarantine_prevents_overlapping_holds(flavor: Flavor) {
    run_strictly(flavor, &QUARANTINE);
}

/// Proves that a partition can lose locks. Otherwise the other tests would prove nothing. Two owners hold a lock here, as only
/// the first node had confirmed the first hold.
fn unacknowledged_holds_get_lost(flavor: Flavor) {
    let Some(network) = Network::enter() else { return };
    // The lease is long enough for two calls on a busy machine.
    let mut nodes = start(&network, flavor, "1000", &[]);
    network.cut_off(0);
    let mut alone = nodes[0].client();
    assert_eq!(alone.call("LOCK.ACQUIRE {b}plain a PX 60000"), "1");
    let promised = alone.call("LOCK.ACQUIRE {b}promised a PX 60000 REPLICAS 1 WITHIN 100");
    assert!(promised.starts_with("NOREPLICAS"), "{promised}");
    let mut next = nodes[3].client();
    until("the replica was elected", || next.call("ROLE").starts_with("[master"));
    for lock in ["plain", "promised"] {
        assert_eq!(next.call(&format!("LOCK.ACQUIRE {{b}}{lock} b PX 60000")), "1");
    }
    until("the cut-off node stops serving", || {
        alone.call("LOCK.ACQUIRE {b}later a").starts_with("CLUSTERDOWN")
    });
    network.join(0);
    until_it_follows(&nodes[0]);
    let renewed = next.call("LOCK.RENEW {b}plain a PX 60000");
    assert!(renewed.starts_with("NOTOWNER"), "{renewed}");
    for lock in ["plain", "promised"] {
        assert_eq!(next.call(&format!("LOCK.RELEASE {{b}}{lock} b")), "0");
    }
    nodes.iter_mut().for_each(assert_no_state_left);
}
