// SPDX-License-Identifier: MIT

//! Replicas and AOFs that come while locks are used: whatever was done before, during and after is in them. Before, nothing
//! is put together for them, as nobody would get it (8).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::server::{load_module, module, unload_module};
use crate::support::world::{assert_same_keys, replay};
use crate::support::{until, Client, Flavor, Server};

crate::on_every_server!(
    a_replica_that_comes_while_locks_are_used_has_all,
    a_replica_that_comes_by_way_of_a_file_has_all,
    an_aof_that_is_turned_on_while_locks_are_used_has_all,
    an_aof_that_has_to_wait_for_a_snapshot_has_all,
    a_replica_of_a_server_that_was_restarted_has_all,
    a_new_primary_feeds_the_old_one,
    a_new_primary_feeds_an_old_one_without_the_module,
    a_module_that_is_loaded_late_feeds_the_replicas,
    changes_that_nobody_follows_count_for_the_next_snapshot,
    what_nobody_follows_is_not_put_together,
);

/// Also when a test fails: it would have to wait for its workers.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Uses locks of all kinds without pause, for as long as `act` takes and a while before and after.
fn while_locks_are_used(server: &Server, act: impl FnOnce()) {
    let over = AtomicBool::new(false);
    let mut watch = server.client();
    let calls =
        |watch: &mut Client| -> u64 { watch.info("stats", "total_commands_processed").parse().unwrap() };
    thread::scope(|scope| {
        let _ends = Ends(&over);
        for worker in 0..2 {
            let (mut client, over) = (server.client(), &over);
            scope.spawn(move || {
                for round in 0_u64.. {
                    if over.load(Ordering::Relaxed) {
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

fn a_replica_comes(flavor: Flavor, diskless: &str, all: &[&str]) {
    let args = ["--repl-diskless-sync", diskless, "--repl-diskless-sync-delay", "0"];
    let primary = Server::with_module(flavor, &[&args, all].concat());
    let (first, second) = (Server::start(flavor, all), Server::start(flavor, all));
    while_locks_are_used(&primary, || first.follow(&primary));
    assert_same_keys("the replica", primary.client(), first.client());
    while_locks_are_used(&primary, || {
        assert_eq!(first.client().call("REPLICAOF NO ONE"), "OK");
        until("it has left", || primary.client().info("replication", "connected_slaves") == "0");
        second.follow(&primary);
    });
    assert_same_keys("the second replica", primary.client(), second.client());
}

fn a_replica_that_comes_while_locks_are_used_has_all(flavor: Flavor) {
    a_replica_comes(flavor, "yes", &[]);
}

fn a_replica_that_comes_by_way_of_a_file_has_all(flavor: Flavor) {
    a_replica_comes(flavor, "no", &[]);
}

crate::on_every_server!(Valkey: a_replica_that_comes_by_two_channels_has_all);

/// The snapshot comes on a connection of its own, and what is changed meanwhile on another.
fn a_replica_that_comes_by_two_channels_has_all(flavor: Flavor) {
    a_replica_comes(flavor, "yes", &["--dual-channel-replication-enabled", "yes"]);
}

fn until_the_aof_is_there(client: &mut Client) {
    until("the AOF is there", || {
        client.info("persistence", "aof_enabled") == "1"
            && client.info("persistence", "aof_rewrite_in_progress") == "0"
            && client.info("persistence", "aof_rewrite_scheduled") == "0"
    });
}

fn an_aof_that_is_turned_on_while_locks_are_used_has_all(flavor: Flavor) {
    let server = Server::with_module(flavor, &["--appendfsync", "always"]);
    while_locks_are_used(&server, || {
        let mut client = server.client();
        assert_eq!(client.call("CONFIG SET appendonly yes"), "OK");
        until_the_aof_is_there(&mut client);
    });
    assert_same_keys("the AOF", server.client(), replay(flavor, server.dir.path()).client());
}

fn an_aof_that_has_to_wait_for_a_snapshot_has_all(flavor: Flavor) {
    let server = Server::with_module(flavor, &["--appendfsync", "always", "--rdb-key-save-delay", "2000"]);
    while_locks_are_used(&server, || {
        let mut client = server.client();
        client.send_at_once(&["BGSAVE", "CONFIG SET appendonly yes"]);
        assert!(client.recv().contains("started"));
        assert_eq!(client.recv(), "OK");
        assert_eq!(client.info("persistence", "rdb_bgsave_in_progress"), "1", "it did not have to wait");
        client.call("CONFIG SET rdb-key-save-delay 0");
        until_the_aof_is_there(&mut client);
    });
    assert_same_keys("the AOF", server.client(), replay(flavor, server.dir.path()).client());
}

fn a_replica_of_a_server_that_was_restarted_has_all(flavor: Flavor) {
    let primary = Server::with_module(flavor, &[]);
    let replica = Server::start(flavor, &[]);
    replica.follow(&primary);
    let mut a = primary.client();
    assert_eq!(a.call("LOCK.ACQUIRE before a PX 600000"), "1");
    assert_eq!(a.call("WAIT 1 10000"), "1");
    until("it is saved", || a.call("SAVE") == "OK");
    // The file knows where the replica's copy stands, so that it need not be sent anew.
    let restarted = Server::start_in(flavor, primary.stop(), &["--loadmodule", module().to_str().unwrap()]);
    let mut a = restarted.client();
    assert_eq!(a.call("LOCK.RELEASE before a"), "0");
    assert_eq!(a.call("LOCK.ACQUIRE after a PX 600000"), "1");
    replica.follow(&restarted);
    assert_same_keys("the replica", restarted.client(), replica.client());
}

fn a_new_primary_feeds_the_old_one(flavor: Flavor) {
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
    // And back.
    assert_eq!(o.call("REPLICAOF NO ONE"), "OK");
    assert_eq!(o.call("LOCK.RELEASE later a"), "0");
    new.follow(&old);
    assert_eq!(o.call("LOCK.RELEASE after a"), "0");
    assert_same_keys("the new primary", old.client(), new.client());
}

fn a_new_primary_feeds_an_old_one_without_the_module(flavor: Flavor) {
    // An old primary that has sent a ping of its own meanwhile is given a snapshot, in which all is: that shows nothing.
    let goes_on_from_the_backlog = || feeds_an_old_one_without_the_module(flavor);
    assert!((0..10).any(|_| goes_on_from_the_backlog()), "it was given a snapshot each time");
}

/// Returns whether the old primary went on from the new one's backlog.
fn feeds_an_old_one_without_the_module(flavor: Flavor) -> bool {
    let (old, new) = (Server::start(flavor, &[]), Server::with_module(flavor, &[]));
    let mut n = new.client();
    // When nobody followed it.
    assert_eq!(n.call("LOCK.ACQUIRE own a PX 600000"), "1");
    new.follow(&old);
    assert_eq!(n.call("REPLICAOF NO ONE"), "OK");
    assert_eq!(n.call("LOCK.ACQUIRE after a PX 600000"), "1");
    old.follow(&new);
    assert_same_keys("the old primary", new.client(), old.client());
    n.info("stats", "sync_partial_ok") == "1"
}

fn a_module_that_is_loaded_late_feeds_the_replicas(flavor: Flavor) {
    let primary = Server::start(flavor, &["--enable-module-command", "yes"]);
    let replica = Server::start(flavor, &[]);
    replica.follow(&primary);
    let mut a = primary.client();
    assert_eq!(load_module(&mut a), "OK");
    assert_eq!(a.call("LOCK.ACQUIRE k a PX 600000"), "1");
    assert_same_keys("the replica", primary.client(), replica.client());
    // Once more, in case that anything was remembered.
    assert_eq!(replica.client().call("REPLICAOF NO ONE"), "OK");
    assert_eq!(a.call("LOCK.RELEASE k a"), "0");
    unload_module(&mut a);
    replica.follow(&primary);
    assert_eq!(load_module(&mut a), "OK");
    assert_eq!(a.call("LOCK.ACQUIRE k b PX 600000"), "1");
    assert_same_keys("the replica", primary.client(), replica.client());
}

fn changes_that_nobody_follows_count_for_the_next_snapshot(flavor: Flavor) {
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

/// Each command that is put together counts as a change, and so does all of it at once if none is.
fn what_nobody_follows_is_not_put_together(flavor: Flavor) {
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
