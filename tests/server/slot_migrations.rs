// SPDX-License-Identifier: MIT

//! Slots that move to another node as a whole while their locks are in use (`CLUSTER MIGRATESLOTS` of Valkey 9, `CLUSTER
//! MIGRATION` of Redis 8.4). Writes during the move move, too, including the module's own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;

use super::tables::full_tables;
use crate::support::cluster::Cluster;
use crate::support::world::keys;
use crate::support::{show, until, Client, Flavor, Server};

/// Defines a test for each server that can move whole slots.
#[macro_export]
macro_rules! on_servers_that_move_slots {
    ($($name:ident),* $(,)?) => { $(
        mod $name {
            use $crate::support::Flavor;
            #[test]
            fn redis_8_6() { on(Flavor::Redis8_6) }
            #[test]
            fn valkey_9() { on(Flavor::Valkey9) }
            fn on(flavor: Flavor) {
                if flavor.is_installed() {
                    super::$name(flavor);
                }
            }
        }
    )* };
}

on_servers_that_move_slots!(
    a_lock_moves_with_its_slot,
    moved_locks_are_forgotten,
    writes_during_the_move_move_too,
    locks_in_use_survive_repeated_moves,
);

/// The stored keys, without the fillers that only slow the move down.
fn locks(server: &Server) -> BTreeMap<(usize, String), String> {
    let mut found = keys(&mut server.client());
    found.retain(|(_, key), _| !key.contains("filler"));
    found
}

fn a_lock_moves_with_its_slot(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let [mut first, mut second] = cluster.clients();
    let fenced = first.call("LOCK.ACQUIRE b o FENCE ID one PX 600000");
    assert_eq!(first.call("LOCK.ACQUIRE b o PX 600000"), "2");
    let mut waiters = [
        cluster.nodes[0].waiting("LOCK.ACQUIRE b w BLOCK 0"),
        cluster.nodes[0].waiting("LOCK.ACQUIRE b v BLOCK 600000 FENCE"),
    ];
    let before = locks(&cluster.nodes[0]);
    cluster.begin_to_move("b", 0, 1);
    cluster.until_moved("b", 0, 1);
    for waiter in &mut waiters {
        let reply = waiter.recv();
        assert!(reply.starts_with("UNBLOCKED ") || reply.starts_with("MOVED "), "{reply}");
        assert!(waiter.call("LOCK.ACQUIRE b w BLOCK 0").starts_with("MOVED 3300 "));
    }
    assert_eq!(first.info("lock", "lock_waiters"), "0");
    assert_eq!(locks(&cluster.nodes[1]), before);
    // A retry gets the same reply, and the next owner a greater token.
    assert_eq!(second.call("LOCK.ACQUIRE b o FENCE ID one PX 600000"), fenced);
    let mut next = cluster.nodes[1].waiting("LOCK.ACQUIRE b w BLOCK 0 FENCE");
    assert_eq!(second.call("LOCK.RELEASE b o ALL"), "0");
    let granted = next.recv();
    let token = |reply: &str| -> i64 {
        reply.trim_end_matches([']', '}']).rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(token(&granted) > token(&fenced), "{granted} after {fenced}");
    // The slot moves back to the first node, which has forgotten the earlier waiters.
    cluster.begin_to_move("b", 1, 0);
    cluster.until_moved("b", 1, 0);
    let mut again = cluster.nodes[0].waiting("LOCK.ACQUIRE b x BLOCK 0");
    assert_eq!(first.call("LOCK.RELEASE b w"), "0");
    assert_eq!(again.recv(), "1");
    cluster.assert_healthy();
}

/// The lock has no waiter left when it moves, and no event reports its departure.
fn moved_locks_are_forgotten(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let [mut first, mut second] = cluster.clients();
    assert_eq!(first.call("LOCK.ACQUIRE b a PX 600000"), "1");
    let mut waiter = cluster.nodes[0].waiting("LOCK.ACQUIRE b w BLOCK 0 PX 600000");
    assert_eq!(first.call("LOCK.RELEASE b a"), "0");
    assert_eq!(waiter.recv(), "1");
    cluster.begin_to_move("b", 0, 1);
    cluster.until_moved("b", 0, 1);
    until("no state is left", || full_tables(&mut first).is_empty());
    assert_eq!(second.call("HGETALL b"), "[w, 1]");
    cluster.assert_healthy();
}

/// The new node is suspended while it receives the slot, so that all writes of the test happen during the move.
fn writes_during_the_move_move_too(flavor: Flavor) {
    let cluster =
        Cluster::start_with(flavor, &["--rdb-key-save-delay", "10000", "--repl-diskless-sync", "yes"]);
    let (source, target) = (&cluster.nodes[0], &cluster.nodes[1]);
    let mut a = source.client();
    for filler in 0..50 {
        assert_eq!(a.call(&format!("SET filler{filler}:{{b}} x")), "OK");
    }
    for key in ["release", "break", "deleted", "queue"] {
        assert_eq!(a.call(&format!("LOCK.ACQUIRE {{b}}{key} a PX 600000")), "1");
    }
    let mut ephemeral = source.client();
    assert_eq!(ephemeral.call("LOCK.ACQUIRE {b}ephemeral a EPHEMERAL PX 600000"), "1");
    let mut watchdog = source.client();
    assert_eq!(watchdog.call("LOCK.ACQUIRE {b}watchdog a WATCHDOG PX 12000"), "1");
    let watched_until = a.number("PEXPIRETIME {b}watchdog");
    assert_eq!(a.call("LOCK.ACQUIRE {b}lease a PX 1500"), "1");
    assert_eq!(a.call("LOCK.ACQUIRE {b}shared a SHARED PX 1500"), "1");
    assert_eq!(a.call("LOCK.ACQUIRE {b}shared b SHARED PX 600000"), "1");
    assert!(a.call("LOCK.ACQUIRE {b}expires a FENCE PX 1500").starts_with("[owner, a, holds, 1, token, "));
    let names = ["release", "break", "deleted", "ephemeral", "lease"];
    let mut waiters =
        names.map(|key| source.waiting(&format!("LOCK.ACQUIRE {{b}}{key} w BLOCK 0 FENCE ID one PX 500000")));
    cluster.begin_to_move("b", 0, 1);
    until("the source sends", || {
        ["snapshotting", "send-bulk-and-stream"].contains(&cluster.state_of_move(0).as_str())
    });
    target.signal(libc::SIGSTOP);
    assert_eq!(a.call("LOCK.RELEASE {b}release a"), "0");
    assert_eq!(a.call("LOCK.BREAK {b}break"), "1");
    assert_eq!(a.call("DEL {b}deleted"), "1");
    ephemeral.close();
    for (waiter, name) in waiters.iter_mut().zip(names) {
        let reply = waiter.recv();
        assert!(reply.starts_with("[owner, w, holds, 1, token, "), "{name}: {reply}");
    }
    until("a lease has expired", || a.call("LOCK.INFO {b}expires") == "nil");
    until("a lease is renewed", || a.number("PEXPIRETIME {b}watchdog") > watched_until);
    watchdog.close();
    let state = cluster.state_of_move(0);
    let sends = ["snapshotting", "replicating", "send-bulk-and-stream", "send-stream"];
    assert!(sends.contains(&state.as_str()), "{state}");
    let before = locks(source);
    target.signal(libc::SIGCONT);
    cluster.until_moved("b", 0, 1);
    assert_eq!(locks(target), before);
    cluster.assert_healthy();
}

/// A client that uses locks of the slot wherever the slot is.
struct User<'a> {
    cluster: &'a Cluster,
    clients: [Option<Client>; 2],
    at: usize,
}

impl User<'_> {
    /// Repeats a call until a node accepts it, for at most a minute.
    fn call(&mut self, command: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < deadline, "no node takes {command}");
            let cluster = self.cluster;
            let at = self.at;
            let client = self.clients[at].get_or_insert_with(|| cluster.nodes[at].client());
            client.send(command);
            let reply = client.try_recv();
            match reply {
                Ok(Value::ServerError(error)) => {
                    let error = show(&Value::ServerError(error));
                    let moved = ["MOVED ", "UNBLOCKED ", "TRYAGAIN ", "ASK ", "CLUSTERDOWN "];
                    if !moved.iter().any(|prefix| error.starts_with(prefix)) {
                        return error;
                    }
                    self.at = 1 - at;
                }
                Ok(reply) => return show(&reply),
                Err(_) => self.clients[at] = None,
            }
        }
    }
}

fn token_of(reply: &str) -> i64 {
    reply
        .trim_end_matches([']', '}'])
        .rsplit(' ')
        .next()
        .and_then(|token| token.parse().ok())
        .unwrap_or_else(|| panic!("{reply}"))
}

/// In spite of the moves, a lock has one holder, no hold is lost, and tokens never repeat.
fn locks_in_use_survive_repeated_moves(flavor: Flavor) {
    const LOCKS: usize = 2;
    const LEASE_MS: u32 = 20;
    let cluster = Cluster::start(flavor);
    let is_over = AtomicBool::new(false);
    let inside = [const { AtomicI64::new(0) }; LOCKS];
    let tokens = [const { AtomicI64::new(0) }; LOCKS];
    let leases = Mutex::new(BTreeMap::new());
    let rounds = AtomicI64::new(0);
    thread::scope(|scope| {
        for worker in 0..4_usize {
            let (cluster, is_over, inside, tokens, leases, rounds) =
                (&cluster, &is_over, &inside, &tokens, &leases, &rounds);
            scope.spawn(move || {
                let mut user = User { cluster, clients: [None, None], at: 0 };
                let lock = worker % LOCKS;
                for round in 0_u64.. {
                    if is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    // Held for longer than the test, so only a release hands the lock over.
                    let reply = user.call(&format!(
                        "LOCK.ACQUIRE {{b}}{lock} w{worker} PX 600000 BLOCK 0 FENCE ID a{worker}:{round}"
                    ));
                    let token = token_of(&reply);
                    assert!(reply.contains("holds, 1"), "{reply}");
                    assert_eq!(inside[lock].fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
                    assert!(tokens[lock].fetch_max(token, Ordering::SeqCst) < token, "an old token");
                    assert_eq!(inside[lock].fetch_sub(1, Ordering::SeqCst), 1);
                    let left = user.call(&format!("LOCK.RELEASE {{b}}{lock} w{worker} ID r{worker}:{round}"));
                    assert_eq!(left, "0", "a hold is lost");
                    // Never released, so only the timer hands the lock over at lease expiry.
                    let sent = Instant::now();
                    let reply = user.call(&format!(
                        "LOCK.ACQUIRE {{b}}lease l{worker}:{round} PX {LEASE_MS} BLOCK 0 FENCE ID a{worker}:{round}"
                    ));
                    let granted = (sent, Instant::now());
                    let before = leases.lock().unwrap().insert(token_of(&reply), granted);
                    assert!(before.is_none(), "a token repeats");
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        // Ends the workers even if a move fails.
        let moved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for (from, to) in [(0, 1), (1, 0), (0, 1), (1, 0)] {
                let before = rounds.load(Ordering::SeqCst);
                until("the locks are used", || rounds.load(Ordering::SeqCst) > before + 10);
                cluster.begin_to_move("b", from, to);
                cluster.until_moved("b", from, to);
            }
            let before = rounds.load(Ordering::SeqCst);
            until("the locks are used", || rounds.load(Ordering::SeqCst) > before + 10);
        }));
        is_over.store(true, Ordering::SeqCst);
        if let Err(panic) = moved {
            std::panic::resume_unwind(panic);
        }
    });
    // Consecutive grants are at least a lease apart.
    let leases: Vec<_> = leases.into_inner().unwrap().into_values().collect();
    for (at, (sent, _)) in leases.iter().enumerate() {
        let lease = Duration::from_millis(LEASE_MS.into());
        for (count, (_, granted)) in (1_u32..).zip(&leases[at + 1..]) {
            assert!(granted.duration_since(*sent) >= lease * count, "a lease was cut short");
        }
    }
    for node in &cluster.nodes {
        let mut client = node.client();
        until("there are no waiters", || client.info("lock", "lock_waiters") == "0");
        assert_eq!(client.info("lock", "lock_internal_errors"), "0");
    }
    cluster.assert_healthy();
}
