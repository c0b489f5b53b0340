// SPDX-License-Identifier: MIT

//! Replicas and AOFs that start while locks are in use contain all earlier, concurrent and later changes. Without a replica
//! or an AOF, the module builds no commands for them (invariant 8).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::server::{load_module, module, unload_module};
use crate::support::world::{assert_same_keys, replay};
use crate::support::{until, Client, Flavor, Server};

crate::on_every_server!(
    a_new_replica_is_complete,
    a_disk_based_sync_is_complete,
    a_new_aof_is_complete,
    an_aof_started_during_bgsave_is_complete,
    a_replica_resumes_after_a_primary_restart,
    a_new_primary_feeds_the_old_primary,
    an_old_primary_without_the_module_resumes,
    a_late_module_feeds_its_replicas,
    unreplicated_changes_count_for_the_snapshot,
    commands_without_a_follower_are_not_built,
);

/// Ends the workers when it is dropped. Otherwise a failed test would wait for them forever.
struct EndsOnDrop<'a>(&'a AtomicBool);

impl Drop for EndsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Uses all kinds of locks continuously during `act`, and for some time before and after.
fn while_locks_are_used(server: &Server, act: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    let mut watch = server.client();
    let calls =
        |watch: &mut Client| -> u64 { watch.info("stats", "total_commands_processed").parse().unwrap() };
    thread::scope(|scope| {
        let _ends = EndsOnDrop(&is_over);
        for worker in 0..2 {
            let (mut client, is_over) = (server.client(), &is_over);
            scope.spawn(move || {
                for round in 0_u64.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = format!("k{worker}:{}", round % 50);
                    client.call(&format!("LOCK.ACQUIRE {key} a PX 600000"));
                    client.call(&format!("LOCK.ACQUIRE f{key} a PX 600000 FENCE ID {round}"));
                    client.call(&format!("LOCK.ACQUIRE s{key} a PX 600000 SHARED"));
                    client.call(&format!("LOCK.ACQUIRE s{key} b PX 500000 SHARED"));
                    if round % 3 != 0 {
                        client.call(&format!("LOCK.RELEASE {key} a"));
                        client.call(&format!("LOCK.RELEASE f{key} a"));
                        client.call(&format!("LOCK.BREAK s{key}"));
                    }
                }
            });
        }
        let used_for_a_while = |watch: &mut Client| {
            let before = calls(watch);
            until("locks are used", || calls(watch) > before + 2_000);
        };
        used_for_a_while(&mut watch);
        act();
        used_for_a_while(&mut watch);
    });
}

fn assert_replicas_are_complete(flavor: Flavor, diskless: &str, all: &[&str]) {
    let args = ["--repl-diskless-sync", diskless, "--repl-diskless-sync-delay", "0"];
    let primary = Server::with_module(flavor, &[&args, all].concat());
    let (first, second) = (Server::start(flavor, all), Server::start(flavor, all));
    while_locks_are_used(&primary, || first.follow(&primary));
    assert_same_keys("the replica", primary.client(), first.client());
    while_locks_are_used(&primary, || {
        assert_eq!(first.client().call("REPLICAOF NO ONE"), "OK");
        until("the replica has left", || primary.client().info("replication", "connected_slaves") == "0");
        second.follow(&primary);
    });
    assert_same_keys("the second replica", primary.client(), second.client());
}

fn a_new_replica_is_complete(flavor: Flavor) {
    assert_replicas_are_complete(flavor, "yes", &[]);
}

fn a_disk_based_sync_is_complete(flavor: Flavor) {
    assert_replicas_are_complete(flavor, "no", &[]);
}

crate::on_every_server!(Valkey: a_dual_channel_sync_is_complete);

/// The snapshot and the concurrent changes arrive on separate connections.
fn a_dual_channel_sync_is_complete(flavor: Flavor) {
    assert_replicas_are_complete(flavor, "yes", &["--dual-channel-replication-enabled", "yes"]);
}

fn until_the_aof_is_written(client: &mut Client) {
    until("the AOF is there", || {
        client.info("persistence", "aof_enabled") == "1"
            && client.info("persistence", "aof_rewrite_in_progress") == "0"
            && client.info("persistence", "aof_rewrite_scheduled") == "0"
    });
}

fn a_new_aof_is_complete(flavor: Flavor) {
    let server = Server::with_module(flavor, &["--appendfsync", "always"]);
    while_locks_are_used(&server, || {
        let mut client = server.client();
        assert_eq!(client.call("CONFIG SET appendonly yes"), "OK");
        until_the_aof_is_written(&mut client);
    });
    assert_same_keys("the AOF", server.client(), replay(flavor, server.dir.path()).client());
}

fn an_aof_started_during_bgsave_is_complete(flavor: Flavor) {
    let server = Server::with_module(flavor, &["--appendfsync", "always", "--rdb-key-save-delay", "2000"]);
    while_locks_are_used(&server, || {
        let mut client = server.client();
        client.send_at_once(&["BGSAVE", "CONFIG SET appendonly yes"]);
        assert!(client.recv().contains("started"));
        assert_eq!(client.recv(), "OK");
        assert_eq!(
            client.info("persistence", "rdb_bgsave_in_progress"),
            "1",
            "the AOF did not wait for the snapshot"
        );
        client.call("CONFIG SET rdb-key-save-delay 0");
        until_the_aof_is_written(&mut client);
    });
    assert_same_keys("the AOF", server.client(), replay(flavor, server.dir.path()).client());
}

fn a_replica_resumes_after_a_primary_restart(flavor: Flavor) {
    let primary = Server::with_module(flavor, &[]);
    let replica = Server::start(flavor, &[]);
    replica.follow(&primary);
    let mut a = primary.client();
    assert_eq!(a.call("LOCK.ACQUIRE before a PX 600000"), "1");
    assert_eq!(a.call("WAIT 1 10000"), "1");
    until("the data is saved", || a.call("SAVE") == "OK");
    // The file stores the replication offset, so the replica needs no full synchronization.
    let restarted = Server::start_in(flavor, primary.stop(), &["--loadmodule", module().to_str().unwrap()]);
    let mut a = restarted.client();
    assert_eq!(a.call("LOCK.RELEASE before a"), "0");
    assert_eq!(a.call("LOCK.ACQUIRE after a PX 600000"), "1");
    replica.follow(&restarted);
    assert_same_keys("the replica", restarted.client(), replica.client());
}

fn a_new_primary_feeds_the_old_primary(flavor: Flavor) {
    let (old, new) = (Server::with_module(flavor, &[]), Server::with_module(flavor, &[]));
    let (mut o, mut n) = (old.client(), new.client());
    assert_eq!(o.call("LOCK.ACQUIRE before a PX 600000"), "1");
    new.follow(&old);
    assert_eq!(n.call("REPLICAOF NO ONE"), "OK");
    assert_eq!(n.call("LOCK.RELEASE before a"), "0");
    assert_eq!(n.call("LOCK.ACQUIRE after a PX 600000"), "1");
    old.follow(&new);
    assert_eq!(n.call("LOCK.ACQUIRE later a PX 600000"), "1");
    assert_same_keys("the old primary", new.client(), old.client());
    // The old primary becomes the primary again.
    assert_eq!(o.call("REPLICAOF NO ONE"), "OK");
    assert_eq!(o.call("LOCK.RELEASE later a"), "0");
    new.follow(&old);
    assert_eq!(o.call("LOCK.RELEASE after a"), "0");
    assert_same_keys("the new primary", old.client(), new.client());
}

fn an_old_primary_without_the_module_resumes(flavor: Flavor) {
    // An old primary that has sent its own ping in between gets a full snapshot, which proves nothing. So retry.
    let resumes_from_the_backlog = || resumes_without_the_module(flavor);
    assert!((0..10).any(|_| resumes_from_the_backlog()), "every attempt was a full synchronization");
}

/// Returns whether the old primary resumed from the new primary's backlog.
fn resumes_without_the_module(flavor: Flavor) -> bool {
    let (old, new) = (Server::start(flavor, &[]), Server::with_module(flavor, &[]));
    let mut n = new.client();
    // Acquired while the server has no replica.
    assert_eq!(n.call("LOCK.ACQUIRE own a PX 600000"), "1");
    new.follow(&old);
    assert_eq!(n.call("REPLICAOF NO ONE"), "OK");
    assert_eq!(n.call("LOCK.ACQUIRE after a PX 600000"), "1");
    old.follow(&new);
    assert_same_keys("the old primary", new.client(), old.client());
    n.info("stats", "sync_partial_ok") == "1"
}

fn a_late_module_feeds_its_replicas(flavor: Flavor) {
    let primary = Server::start(flavor, &["--enable-module-command", "yes"]);
    let replica = Server::start(flavor, &[]);
    replica.follow(&primary);
    let mut a = primary.client();
    assert_eq!(load_module(&mut a), "OK");
    assert_eq!(a.call("LOCK.ACQUIRE k a PX 600000"), "1");
    assert_same_keys("the replica", primary.client(), replica.client());
    // Again, in case the module has cached whether it has replicas.
    assert_eq!(replica.client().call("REPLICAOF NO ONE"), "OK");
    assert_eq!(a.call("LOCK.RELEASE k a"), "0");
    unload_module(&mut a);
    replica.follow(&primary);
    assert_eq!(load_module(&mut a), "OK");
    assert_eq!(a.call("LOCK.ACQUIRE k b PX 600000"), "1");
    assert_same_keys("the replica", primary.client(), replica.client());
}

fn unreplicated_changes_count_for_the_snapshot(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    let mut changes = |command: &str| {
        let count =
            || server.client().info("persistence", "rdb_changes_since_last_save").parse::<u64>().unwrap();
        let before = count();
        a.call(command);
        count() - before
    };
    for command in [
        "LOCK.ACQUIRE k a",
        "LOCK.ACQUIRE k a FENCE",
        "LOCK.RENEW k a PX 50000",
        "LOCK.RELEASE k a",
        "LOCK.RELEASE k a ID 1",
        "LOCK.ACQUIRE k a SHARED",
        "LOCK.BREAK k",
    ] {
        assert!(changes(command) > 0, "{command}");
    }
    for command in ["LOCK.RELEASE k a", "LOCK.INFO k", "LOCK.BREAK k", "LOCK.RELEASE k a ID 1"] {
        assert_eq!(changes(command), 0, "{command}");
    }
}

/// Each replicated command counts as one change. Without a replica, a whole call counts as one.
fn commands_without_a_follower_are_not_built(flavor: Flavor) {
    let changes = |args: &[&str]| {
        let server = Server::with_module(flavor, args);
        let mut a = server.client();
        let mut count = || a.info("persistence", "rdb_changes_since_last_save").parse::<u64>().unwrap();
        let before = count();
        assert_eq!(server.client().call("LOCK.ACQUIRE k a"), "1");
        count() - before
    };
    assert_eq!(changes(&[]), 1);
    assert_eq!(changes(&["--appendonly", "yes"]), 2, "a field and its TTL");
}
