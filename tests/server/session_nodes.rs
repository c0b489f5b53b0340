// SPDX-License-Identifier: MIT

//! Sessions in a cluster, with replicas, and across failovers and restarts. Numbers of rules, such as R13, are those of
//! `tests/protocol/README.md`.

use crate::support::client::prefix;
use crate::support::cluster::Cluster;
use crate::support::sentinel::Watched;
use crate::support::session::Progress;
use crate::support::{until, until_tables_are_empty, Client, Flavor, Server, Session, World};

crate::on_every_server!(
    keyless_commands_go_to_the_node,
    a_moved_slot_loses_holds_and_waits,
    a_moved_hold_is_declared_at_its_node,
    a_demotion_ends_all_sessions,
    a_planned_failover_ends_all_sessions,
    a_replica_has_no_sessions,
    holds_survive_a_sentinel_failover,
    holds_survive_a_cluster_failover,
    holds_survive_a_restart_with_aof,
    holds_survive_a_restart_with_rdb,
);

crate::on_servers_that_move_slots!(an_atomic_move_loses_holds_and_waits);

const TTL: u64 = 600_000;
const GRACE: u64 = 10_000;

/// Slots: `b` has 3300, which the first node serves; `a` has 15495, which the second serves.
fn keyless_commands_go_to_the_node(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let [mut first, mut second] = cluster.clients();
    let mut here = Session::open(&cluster.nodes[0], TTL, GRACE);
    let mut there = Session::open(&cluster.nodes[1], TTL, GRACE);
    assert_eq!(here.acquire("b", "s", "FENCE").1.matches("holds, 1").count(), 1);
    assert_eq!(there.acquire("a", "s", "").1, "1");
    // Calls with a key follow it, before their session is looked up.
    let n = here.number("a", "s");
    for command in ["ACQUIRE", "RENEW", "RELEASE", "CANCEL"] {
        let call = here.command(command, n, "");
        assert!(here.pool.call(&call).starts_with("MOVED 15495 "), "{command}");
    }
    // An id is unknown at the other node.
    assert_eq!(prefix(&second.call(&format!("LOCK.EVENTS {} 9 0 0", here.id))), "NOSESSION");
    assert_eq!(prefix(&second.call(&format!("LOCK.SESSION OPEN {} 9", here.id))), "NOSESSION");
    let acquire = format!("LOCK.ACQUIRE a s SESSION {} 7", here.id);
    assert_eq!(prefix(&second.call(&acquire)), "NOSESSION");
    assert_eq!(first.call("LOCK.SESSION LIST").matches("name").count(), 1);
    assert_eq!([here.events(0), there.events(0)], [vec![""; 0], vec![""; 0]]);
    drop((here, there));
    cluster.nodes.iter().for_each(until_tables_are_empty);
    cluster.assert_healthy();
}

/// Moves a slot of which a session has holds, a grant in flight and waits, also for several locks, while its reader is blocked.
fn loses_a_slot(flavor: Flavor, move_slot: impl FnOnce(&Cluster)) {
    let cluster = Cluster::start(flavor);
    let mut first = cluster.nodes[0].client();
    let mut session = Session::open(&cluster.nodes[0], TTL, TTL);
    for key in ["{b}busy", "{b}granted"] {
        assert_eq!(first.call(&format!("LOCK.ACQUIRE {key} other PX 600000")), "1");
    }
    let hold = session.acquire("b", "s", "EPHEMERAL WATCHDOG PX 2000000").0;
    let plain = session.acquire("{b}plain", "s", "PX 600000").0;
    let several = session.acquire("{b}1 {b}2", "s", "PX 600000").0;
    let wait = session.queue("{b}busy", "s", "");
    let bundle = session.queue("{b}3 {b}busy", "s", "");
    let granted = session.queue("{b}granted", "s", "PX 600000");
    let other = session.acquire("{c}", "s", "");
    session.events(0);
    assert_eq!(first.call("LOCK.RELEASE {b}granted other"), "0");
    assert_eq!(session.events(0), [format!("granted {granted} 1")]);
    session.send_events(TTL);
    cluster.nodes[0].until_blocked(&session.reader);
    move_slot(&cluster);
    let numbers = [hold, plain, several, wait, bundle, granted];
    let mut lost = session.recv_events().unwrap();
    until("all losses are reported", || {
        if lost.len() < numbers.len() {
            lost.extend(session.events(100));
        }
        lost.len() == numbers.len()
    });
    lost.sort();
    assert_eq!(lost, numbers.map(|n| format!("lost {n} moved")));
    assert_eq!(session.progress(other.0), if other.1 == "1" { Progress::Held } else { Progress::Over });
    assert_eq!(first.number_of_waiters(), 0);
    for n in numbers {
        let call = session.command("RELEASE", n, "");
        assert_eq!(prefix(&session.pool.call(&call)), "MOVED");
    }
    let mut second = cluster.nodes[1].client();
    let kept = ["b", "{b}plain", "{b}1", "{b}2", "{b}granted"];
    let check = |second: &mut Client| kept.map(|key| second.call(&format!("HGETALL {key}")));
    assert_eq!(check(&mut second), ["[s, 1]"; 5], "an ephemeral hold ends with its session only");
    session.close();
    assert_eq!(check(&mut second), ["[s, 1]"; 5]);
    drop(session);
    until_tables_are_empty(&cluster.nodes[0]);
    cluster.assert_healthy();
}

fn a_moved_slot_loses_holds_and_waits(flavor: Flavor) {
    loses_a_slot(flavor, |cluster| cluster.migrate_all("b", 0, 1));
}

/// The server moves the whole slot at once, with all its keys.
fn an_atomic_move_loses_holds_and_waits(flavor: Flavor) {
    loses_a_slot(flavor, |cluster| {
        cluster.begin_to_move("b", 0, 1);
        cluster.until_moved("b", 0, 1);
    });
}

fn a_moved_hold_is_declared_at_its_node(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let mut here = Session::open(&cluster.nodes[0], TTL, GRACE);
    let n = here.acquire("b", "s", "").0;
    let again = here.acquire("b", "s", "").0;
    cluster.migrate("b");
    let mut lost = Vec::new();
    until("both numbers are lost", || {
        lost.extend(here.events(100));
        lost.len() == 2
    });
    lost.sort();
    assert_eq!(lost, [n, again].map(|n| format!("lost {n} moved")));
    let mut there = Session::open(&cluster.nodes[1], TTL, GRACE);
    let declared = [there.declare("b", "s", "EPHEMERAL"), there.declare("b", "s", "")];
    assert_eq!(declared.clone().map(|(_, reply)| reply), ["2", "2"]);
    assert_eq!(cluster.nodes[1].client().info("lock", "lock_watchdogs"), "1");
    assert_eq!(there.release(declared[0].0), "1");
    assert_eq!(there.release(declared[1].0), "0");
    drop((here, there));
    cluster.nodes.iter().for_each(until_tables_are_empty);
    cluster.assert_healthy();
}

/// A session with a hold, a wait and a grant in flight, and a reader that is blocked.
fn busy_session(server: &Server) -> Session {
    let mut other = server.client();
    let mut session = Session::open(server, TTL, TTL);
    assert_eq!(session.acquire("{b}held", "s", "EPHEMERAL WATCHDOG PX 2000000").1, "1");
    assert_eq!(session.acquire("{b}plain", "s", "PX 600000").1, "1");
    for key in ["{b}waiting", "{b}granted"] {
        assert_eq!(other.call(&format!("LOCK.ACQUIRE {key} other PX 600000")), "1");
        session.queue(key, "s", "PX 600000");
    }
    assert_eq!(other.call("LOCK.RELEASE {b}granted other"), "0");
    assert_eq!(session.some_events().len(), 1);
    other.call("WAIT 1 10000");
    session.send_events(TTL);
    server.until_blocked(&session.reader);
    session
}

/// Demotes the server in one of two ways. Its sessions end: the reader gets an error, and later calls find none.
fn demote(flavor: Flavor, demotion: impl FnOnce(&World)) {
    let world = World::start(flavor, &[]);
    let mut session = busy_session(&world);
    demotion(&world);
    assert_eq!(prefix(&session.recv_events().unwrap_err()), "UNBLOCKED");
    let mut client = world.client();
    until("the primary is a replica", || client.call("ROLE").starts_with("[slave"));
    until("no client is blocked", || client.info("clients", "blocked_clients") == "0");
    assert_eq!(client.info("lock", "lock_sessions"), "0");
    assert_eq!(client.number_of_waiters(), 0);
    let beat = session.take_beat();
    let reply = client.call(&format!("LOCK.SESSION OPEN {} {beat}", session.id));
    assert!(["NOSESSION", "READONLY"].contains(&prefix(&reply)), "{reply}");
    let reply = client.call("LOCK.SESSION OPEN NEW 1 TTL 1000");
    assert_eq!(prefix(&reply), "READONLY");
    // The demotion releases nothing, and the end of the former reader has no effect.
    session.reader.close_half();
    until("its reader is closed", || {
        client.call(&format!("CLIENT LIST ID {}", session.reader.id)).is_empty()
    });
    assert_eq!(client.info("lock", "lock_internal_errors"), "0");
    drop(session);
    let World { mut primary, mut replica } = world;
    until("the new primary has all holds", || {
        replica.client().call("EXISTS {b}held {b}plain {b}waiting {b}granted") == "4"
    });
    until_tables_are_empty(&primary);
    primary.assert_healthy();
    replica.assert_healthy();
}

fn a_demotion_ends_all_sessions(flavor: Flavor) {
    demote(flavor, |world| {
        assert_eq!(world.replica.client().call("REPLICAOF NO ONE"), "OK");
        let follow = format!("REPLICAOF 127.0.0.1 {}", world.replica.port);
        assert_eq!(world.client().call(&follow), "OK");
    });
}

fn a_planned_failover_ends_all_sessions(flavor: Flavor) {
    demote(flavor, |world| assert_eq!(world.client().call("FAILOVER"), "OK"));
}

fn a_replica_has_no_sessions(flavor: Flavor) {
    let primary = Server::with_module(flavor, &[]);
    let mut replica = Server::with_module(flavor, &[]);
    replica.follow(&primary);
    let mut session = Session::open(&primary, TTL, GRACE);
    assert_eq!(session.acquire("k", "s", "").1, "1");
    let mut client = replica.client();
    until("the replica has the hold", || client.call("EXISTS k") == "1");
    for call in [
        "LOCK.SESSION OPEN NEW 1 TTL 1000",
        "LOCK.ACQUIRE k s SESSION 0123456789abcdef0123456789abcdef 1",
        "LOCK.EVENTS 0123456789abcdef0123456789abcdef 1 0 0",
    ] {
        assert_eq!(prefix(&client.call(call)), "READONLY", "{call}");
    }
    // A replica that accepts writes opens no session either: it would never grant a wait.
    client.call("CONFIG SET replica-read-only no");
    assert_eq!(prefix(&client.call("LOCK.SESSION OPEN NEW 1 TTL 1000")), "READONLY");
    assert_eq!(client.info("lock", "lock_sessions"), "0");
    replica.assert_healthy();
}

/// Opens a new session after the end of `before`, and declares its holds (R13). Their leases go on, and they can be released by
/// number. Other owners do not get them in between.
fn declare_again(before: &Session, [reader, pool]: [Client; 2]) {
    let mut client = Session::open_on([reader, pool], TTL, GRACE, "");
    assert_ne!(client.id, before.id);
    assert_eq!(client.acquire("{b}held", "thief", "").1, "nil");
    let (held, reply) = client.declare("{b}held", "s", "EPHEMERAL");
    assert_eq!(reply, "1");
    let (plain, reply) = client.declare("{b}plain", "s", "PX 600000");
    assert_eq!(reply, "1");
    assert_eq!(client.safe_holds(), 0, "only EVENTS confirms");
    assert_eq!(client.events(0), [""; 0]);
    assert_eq!(client.safe_holds(), 2);
    // The wait is asked again.
    assert_eq!(prefix(&client.declare("{b}waiting", "s", "").1), "NOTOWNER");
    let wait = client.queue("{b}waiting", "s", "");
    assert_eq!(client.pool.call("LOCK.RELEASE {b}waiting other"), "0");
    assert_eq!(client.some_events(), [format!("granted {wait} 1")]);
    for n in [held, plain, wait] {
        assert_eq!(client.release(n), "0");
    }
}

fn holds_survive_a_sentinel_failover(flavor: Flavor) {
    let mut watched = Watched::start(flavor);
    let port = watched.primary_address().port();
    let primary = watched.servers.iter().find(|server| server.port == port).unwrap();
    let mut session = busy_session(primary);
    assert_eq!(session.pool.call("WAIT 2 10000"), "2");
    watched.fail_over();
    let [reader, pool] = [watched.client(), watched.client()];
    assert_eq!(prefix(&session.resume([reader, pool])), "NOSESSION");
    declare_again(&session, [watched.client(), watched.client()]);
    watched.assert_healthy();
}

fn holds_survive_a_cluster_failover(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let mut replica = cluster.replica_of(0, &[]);
    let mut session = busy_session(&cluster.nodes[0]);
    let mut next = replica.client();
    until("the failover has begun", || next.call("CLUSTER FAILOVER") == "OK");
    assert_eq!(prefix(&session.recv_events().unwrap_err()), "UNBLOCKED");
    until("the replica leads", || next.call("ROLE").starts_with("[master"));
    until("the replica serves the slot", || next.call("EXISTS {b}held") == "1");
    assert_eq!(prefix(&session.resume([replica.client(), replica.client()])), "NOSESSION");
    declare_again(&session, [replica.client(), replica.client()]);
    drop(session);
    until_tables_are_empty(&replica);
    replica.assert_healthy();
    cluster.assert_healthy();
}

fn restart(flavor: Flavor, args: &[&str], save: impl FnOnce(&mut Client)) {
    let load = ["--loadmodule", crate::support::server::module().to_str().unwrap()];
    let args = [&load, args].concat();
    let server = Server::start(flavor, &args);
    let mut session = busy_session(&server);
    save(&mut server.client());
    let dir = server.stop();
    assert!(session.reader.is_closed());
    let mut server = Server::start_in(flavor, dir, &args);
    assert_eq!(prefix(&session.resume([server.client(), server.client()])), "NOSESSION");
    declare_again(&session, [server.client(), server.client()]);
    drop(session);
    until_tables_are_empty(&server);
    server.assert_healthy();
}

fn holds_survive_a_restart_with_aof(flavor: Flavor) {
    restart(flavor, &["--appendonly", "yes", "--appendfsync", "always"], |_| {});
}

fn holds_survive_a_restart_with_rdb(flavor: Flavor) {
    restart(flavor, &["--appendonly", "no"], |client| assert_eq!(client.call("SAVE"), "OK"));
}
