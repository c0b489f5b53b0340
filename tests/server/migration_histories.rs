// SPDX-License-Identifier: MIT

//! A slot of a cluster moves repeatedly while many clients use its locks. A checker that shares no code with the module
//! decides whether the observed history can be right (invariants 1 to 7). See `tests/history`.

use std::thread;
use std::time::Duration;

use redis_lock_history::load::{Features, Settings, Shared};
use redis_lock_history::record::Disturbance;

use super::histories::{address, assert_no_state_left, record_fault, run, settings, MODULE_ARGS};
use crate::on_servers_that_move_slots;
use crate::support::cluster::Cluster;
use crate::support::Flavor;

crate::on_every_server!(key_by_key_moves_break_no_promise);
on_servers_that_move_slots!(atomic_slot_moves_break_no_promise);

/// All locks are in one slot of the first node.
const TAG: &str = "{b}";

fn run_during_moves(flavor: Flavor, migrate: impl Fn(&Cluster, usize, usize) + Sync) {
    let cluster = Cluster::start_with_module_args(flavor, &MODULE_ARGS);
    // A move ends bindings to connections without a reply, so these features are off.
    let features = Features { bound: false, ..Features::ALL };
    let settings = Settings { prefix: TAG, features, sessions: 0, scenes: 0, ..settings() };
    let at = address(&cluster.nodes[0]);
    run(settings, at, |shared: &Shared| {
        for (from, to) in [(0, 1), (1, 0)].into_iter().cycle() {
            thread::sleep(Duration::from_millis(150));
            if shared.is_over() {
                return;
            }
            record_fault(shared, Disturbance::Move, || migrate(&cluster, from, to));
        }
    });
    let Cluster { mut nodes } = cluster;
    nodes.iter_mut().for_each(assert_no_state_left);
}

fn key_by_key_moves_break_no_promise(flavor: Flavor) {
    run_during_moves(flavor, |cluster, from, to| cluster.migrate_all(TAG, from, to));
}

fn atomic_slot_moves_break_no_promise(flavor: Flavor) {
    run_during_moves(flavor, |cluster, from, to| {
        cluster.begin_to_move(TAG, from, to);
        cluster.until_moved(TAG, from, to);
    });
}
