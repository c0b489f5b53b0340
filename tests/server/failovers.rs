// SPDX-License-Identifier: MIT

//! Failovers while many clients use every feature. A checker that shares no code with the module decides whether every
//! promise to clients was met (invariants 1, 5). See `tests/history`.
//!
//! A primary has two replicas. It is killed while they lag behind, or hands over (`FAILOVER`), or is cut off from them. A
//! primary that is cut off still serves clients while the first replica is promoted. `HISTORY_SECONDS` sets the length of each
//! run.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_history::check::{check, Report, Rule};
use redis_lock_history::load::{self, Features, Promise, Settings, Shared};
use redis_lock_history::record::{Disturbance, Record};

use super::histories::{
    address, assert_no_state_left, assert_right, record_fault, save_history, settings, LIMITS, MIN_GRANTS,
    MODULE_ARGS,
};
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::sentinel::Watched;
use crate::support::server::module;
use crate::support::{until, Flavor, Server};

crate::on_every_server!(
    acknowledged_holds_survive_failovers,
    quarantine_prevents_overlapping_holds,
    a_planned_failover_keeps_every_hold,
    holds_survive_sentinel_failovers,
    holds_survive_cluster_failovers,
    quarantine_prevents_overlap_after_power_cuts,
    unacknowledged_holds_get_lost,
    #[ignore = "a table for docs/evidence-details.md"]
    table_of_overlapping_holds,
);

/// How a replica replaces the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailoverKind {
    /// The primary is killed while its replicas receive nothing from it for a short time.
    Kill,
    /// `FAILOVER`.
    Planned,
    /// The primary and its replicas are cut off from each other. The primary serves its connected clients until the network
    /// is whole, and then follows the new primary.
    Cut,
}

/// A primary and its replicas, each linked by a proxy that can be frozen.
struct Fleet {
    flavor: Flavor,
    module_args: Vec<&'static str>,
    primary: Server,
    replicas: Vec<(Server, Proxy)>,
}

impl Fleet {
    fn start(flavor: Flavor, module_args: &[&'static str]) -> Fleet {
        let module_args = [&MODULE_ARGS, module_args].concat();
        let primary = Fleet::server(flavor, &module_args);
        let mut fleet = Fleet { flavor, module_args, primary, replicas: Vec::new() };
        for _ in 0..2 {
            let server = Fleet::server(flavor, &fleet.module_args);
            fleet.follow(server);
        }
        fleet.until_in_sync();
        fleet
    }

    fn server(flavor: Flavor, module_args: &[&str]) -> Server {
        let load = ["--loadmodule", module().to_str().unwrap()];
        // Large enough to avoid a full synchronization of a server that was cut off.
        let args = ["--repl-backlog-size", "64mb"];
        Server::start(flavor, &[&load, module_args, &args].concat())
    }

    fn follow(&mut self, server: Server) {
        let link = Proxy::freezable(self.primary.port);
        assert_eq!(server.client().call(&format!("REPLICAOF 127.0.0.1 {}", link.port)), "OK");
        self.replicas.push((server, link));
    }

    fn until_in_sync(&self) {
        let mut client = self.primary.client();
        until("all replicas are online", || {
            client.call("INFO replication").matches("state=online").count() == self.replicas.len()
        });
    }

    /// Replaces the primary by the first replica. Unless it is planned, the first `lagging` replicas receive nothing for `lasts`
    /// beforehand.
    fn fail_over(&mut self, kind: FailoverKind, lagging: usize, lasts: Duration, shared: &Shared) {
        if kind == FailoverKind::Planned {
            self.hand_over();
        } else {
            self.replicas[..lagging].iter().for_each(|(_, link)| link.freeze());
            thread::sleep(lasts);
            self.replicas.iter().for_each(|(_, link)| link.freeze());
        }
        let (next, _link) = self.replicas.remove(0);
        if kind != FailoverKind::Planned {
            assert_eq!(next.client().call("REPLICAOF NO ONE"), "OK");
        }
        let before = std::mem::replace(&mut self.primary, next);
        let (other, _) = self.replicas.remove(0);
        self.follow(other);
        let before = if kind == FailoverKind::Kill {
            drop(before);
            shared.move_to(address(&self.primary));
            Fleet::server(self.flavor, &self.module_args)
        } else {
            shared.move_to(address(&self.primary));
            // Clients that are still connected to the old primary continue there for a while.
            thread::sleep(lasts);
            before
        };
        self.follow(before);
        self.until_in_sync();
    }

    fn hand_over(&self) {
        let (mut primary, mut next) = (self.primary.client(), self.replicas[0].0.client());
        let to = format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 10000", self.replicas[0].0.port);
        until("the failover has begun", || primary.call(&to) == "OK");
        until("the replica leads", || next.call("ROLE").starts_with("[master"));
        until("the old primary follows", || primary.call("ROLE").starts_with("[slave"));
    }
}

/// A failover scenario: the acknowledgement that clients wait for, and the settings of the servers.
#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) promise: Promise,
    pub(super) module_args: &'static [&'static str],
    pub(super) kinds: &'static [FailoverKind],
    /// Mean time between failovers.
    pub(super) interval: Duration,
    /// Whether a client discards an owner name after its first release.
    pub(super) names_once: bool,
    /// The hash tag of all locks in a cluster. A cluster's primary has one replica, other primaries have two.
    pub(super) prefix: &'static str,
    /// Factor for all leases.
    pub(super) stretch: u32,
    /// Number of calls after which a client switches to new locks.
    pub(super) calls_per_key: u32,
    /// Minimum length of the run, unless `HISTORY_SECONDS` is set.
    pub(super) length: Duration,
}

/// Result of a run.
pub(super) struct Outcome {
    pub(super) seed: u64,
    pub(super) failovers: usize,
    pub(super) records: Vec<Record>,
    pub(super) report: Report,
}

const PRIMARY_ONLY: Case = Case {
    promise: Promise::Primary,
    module_args: &[],
    kinds: &[],
    interval: Duration::from_millis(400),
    names_once: false,
    prefix: "",
    stretch: 1,
    calls_per_key: 50,
    length: Duration::from_secs(4),
};

/// Runs a load with one failover after another, and checks its history. `fail_over` reports the address of the new primary.
pub(super) fn load(
    case: &Case,
    at: SocketAddr,
    mut fail_over: impl FnMut(&Shared, &mut StdRng) + Send,
) -> Outcome {
    let Case { promise, names_once, module_args, kinds, stretch, calls_per_key, .. } = case;
    let all = settings();
    let at_least = if all.calls == u32::MAX { all.at_most } else { case.length };
    // A busy machine needs more time for enough grants.
    let at_most = at_least + Duration::from_secs(60);
    let load = Settings { features: Features::UNBOUND, scenes: 0, calls: 0, at_least, at_most, ..all };
    // The holds of a session are promised once replicas have them.
    let sessions = u32::from(matches!(promise, Promise::Replicas(_)));
    let load = Settings { sessions, ..load };
    let replicas = if case.prefix.is_empty() { 2 } else { 1 };
    let prefix = case.prefix;
    let load = Settings { replicas, prefix, stretch: *stretch, calls_per_key: *calls_per_key, ..load };
    let settings = Settings { promise: *promise, names_once: *names_once, ..load };
    let seed = settings.seed;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut failovers = 0;
    let shared = Shared::new(settings, at);
    let records = load::run(&shared, |shared| {
        while !shared.is_over() {
            thread::sleep(case.interval.mul_f64(rng.random_range(0.5..1.5)));
            record_fault(shared, Disturbance::Failover, || fail_over(shared, &mut rng));
            failovers += 1;
        }
    });
    let records = records.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let report = check(&records, &LIMITS);
    eprintln!("{promise:?} {module_args:?} {kinds:?}: {failovers} failovers, seed {seed}: {report}");
    assert!(failovers > 0 && report.grants > MIN_GRANTS as usize, "{report}");
    // Tokens and guarded writes must be right with every kind of acknowledgement.
    if report.violations.iter().any(|one| one.rule != Rule::Exclusion) {
        let file = save_history(seed, &records);
        panic!("seed {seed} has a wrong history, see {}:\n{report}", file.display());
    }
    Outcome { seed, failovers, records, report }
}

fn run(flavor: Flavor, case: &Case) -> Outcome {
    let mut fleet = Fleet::start(flavor, case.module_args);
    let at = address(&fleet.primary);
    let outcome = load(case, at, |shared, rng| {
        let kind = case.kinds[rng.random_range(0..case.kinds.len())];
        let lasts = Duration::from_millis(rng.random_range(5..150));
        fleet.fail_over(kind, rng.random_range(1..=2), lasts, shared);
    });
    let Fleet { mut primary, replicas, .. } = fleet;
    assert_no_state_left(&mut primary);
    replicas.into_iter().for_each(|(mut replica, _)| assert_no_state_left(&mut replica));
    outcome
}

/// Runs a scenario that must not have overlapping holds.
fn run_strictly(flavor: Flavor, case: &Case) {
    let Outcome { seed, records, report, .. } = run(flavor, case);
    assert_right(seed, &records, &report);
}

pub(super) const TWO_REPLICAS: Case = Case { promise: Promise::Replicas(2), ..PRIMARY_ONLY };

/// No lease exceeds a second. After a release, a client uses a new owner name: see `docs/guarantees.md`.
const QUARANTINE: Case = Case {
    module_args: &["lock.quarantine", "1000", "lock.max-lease", "1000"],
    interval: Duration::from_millis(2500),
    names_once: true,
    ..PRIMARY_ONLY
};

fn acknowledged_holds_survive_failovers(flavor: Flavor) {
    run_strictly(
        flavor,
        &Case { kinds: &[FailoverKind::Kill, FailoverKind::Planned, FailoverKind::Cut], ..TWO_REPLICAS },
    );
}

fn quarantine_prevents_overlapping_holds(flavor: Flavor) {
    run_strictly(flavor, &Case { kinds: &[FailoverKind::Kill, FailoverKind::Planned], ..QUARANTINE });
}

fn a_planned_failover_keeps_every_hold(flavor: Flavor) {
    run_strictly(flavor, &Case { kinds: &[FailoverKind::Planned], ..PRIMARY_ONLY });
}

fn holds_survive_sentinel_failovers(flavor: Flavor) {
    let Outcome { seed, records, report, .. } =
        run_with_sentinels(flavor, &Case { length: Duration::from_secs(8), ..TWO_REPLICAS });
    assert_right(seed, &records, &report);
}

/// Replaces a node by its replica. The node is suspended, or continues until it learns of its replacement.
fn run_in_a_cluster(flavor: Flavor, case: &Case) -> Outcome {
    let cluster = Cluster::start_with_module_args(flavor, &MODULE_ARGS);
    let mut replica = cluster.replica_of(0, &[]);
    let Cluster { nodes: [mut primary, mut other] } = cluster;
    let outcome = load(case, address(&primary), |shared, rng| {
        let is_suspended = rng.random();
        let mut next = replica.client();
        if is_suspended {
            primary.signal(libc::SIGSTOP);
            thread::sleep(Duration::from_millis(rng.random_range(5..150)));
        }
        // TAKEOVER needs no vote. The other node limits its votes to one within some time.
        assert_eq!(next.call("CLUSTER FAILOVER TAKEOVER"), "OK");
        until("the replica leads", || next.call("ROLE").starts_with("[master"));
        shared.move_to(address(&replica));
        if is_suspended {
            thread::sleep(Duration::from_millis(rng.random_range(5..150)));
            primary.signal(libc::SIGCONT);
        }
        until_it_follows(&primary);
        std::mem::swap(&mut primary, &mut replica);
    });
    [&mut primary, &mut replica, &mut other].into_iter().for_each(assert_no_state_left);
    outcome
}

/// Waits until a replaced node has become a replica.
pub(super) fn until_it_follows(node: &Server) {
    let mut client = node.client();
    until("the node follows", || client.call("ROLE").starts_with("[slave"));
    until("the node is in sync", || client.info("replication", "master_link_status") == "up");
}

fn holds_survive_cluster_failovers(flavor: Flavor) {
    let case = Case { promise: Promise::Replicas(1), prefix: "{b}", ..PRIMARY_ONLY };
    let Outcome { seed, records, report, .. } = run_in_a_cluster(flavor, &case);
    assert_right(seed, &records, &report);
}

/// A server with `appendfsync everysec` loses power: it restarts without the end of its AOF.
fn run_with_power_cuts(flavor: Flavor, case: &Case) -> Outcome {
    let load_module =
        [&["--loadmodule", module().to_str().unwrap()], &MODULE_ARGS[..], case.module_args].concat();
    let args = [&load_module[..], &["--appendonly", "yes", "--appendfsync", "everysec"]].concat();
    let mut server = Some(Server::start(flavor, &args));
    let at = server.as_ref().map(address).unwrap();
    let outcome = load(case, at, |shared, rng| {
        let dir = server.take().unwrap().stop();
        for file in fs::read_dir(dir.path().join("appendonlydir")).unwrap() {
            let path = file.unwrap().path();
            if path.to_string_lossy().ends_with(".incr.aof") {
                let bytes = fs::read(&path).unwrap();
                let left =
                    before_a_transaction(&bytes, bytes.len().saturating_sub(rng.random_range(0..20_000)));
                fs::write(&path, &bytes[..left]).unwrap();
            }
        }
        let next = Server::start_in(flavor, dir, &args);
        shared.move_to(address(&next));
        server = Some(next);
    });
    assert_no_state_left(&mut server.unwrap());
    outcome
}

/// The start of the last transaction before a position in an AOF. A cut inside a transaction leaves the transaction open in a
/// file of Redis 7.0, with or without the module. The second start after that reads later commands as a part of it.
fn before_a_transaction(aof: &[u8], at: usize) -> usize {
    let multi = b"*1\r\n$5\r\nMULTI\r\n";
    aof[..at].windows(multi.len()).rposition(|part| part == multi).unwrap_or(0)
}

fn quarantine_prevents_overlap_after_power_cuts(flavor: Flavor) {
    let Outcome { seed, records, report, .. } = run_with_power_cuts(flavor, &QUARANTINE);
    assert_right(seed, &records, &report);
}

/// Proves that a failover can lose locks. Otherwise the other tests would prove nothing.
fn unacknowledged_holds_get_lost(flavor: Flavor) {
    let kinds = &[FailoverKind::Kill, FailoverKind::Cut];
    let doubled = (0..20).map(|_| run(flavor, &Case { kinds, ..PRIMARY_ONLY }).report.doubled);
    assert!(doubled.into_iter().any(|doubled| doubled > 0), "no hold was lost in 20 runs");
}

fn run_with_sentinels(flavor: Flavor, case: &Case) -> Outcome {
    let mut watched = Watched::start_with(flavor, &[&MODULE_ARGS, case.module_args].concat());
    let at = watched.primary_address();
    let outcome = load(case, at, |shared, _| {
        watched.fail_over();
        shared.move_to(watched.primary_address());
        watched.add_replica();
    });
    watched.servers.iter_mut().for_each(assert_no_state_left);
    outcome
}

/// Prints a table of overlapping holds, by promise and by kind of failover.
fn table_of_overlapping_holds(flavor: Flavor) {
    let again = Case { names_once: false, ..QUARANTINE };
    let wait = Case { promise: Promise::Wait(2), ..PRIMARY_ONLY };
    let one = Case { promise: Promise::Replicas(1), ..PRIMARY_ONLY };
    let all = [
        ("nothing", PRIMARY_ONLY),
        ("WAIT 2", wait),
        ("REPLICAS 1", one),
        ("REPLICAS 2", TWO_REPLICAS),
        ("quarantine, names come again", again),
        ("quarantine, names are new", QUARANTINE),
    ];
    type Runs = fn(Flavor, &Case) -> Outcome;
    let kinds: [(&str, Runs); 5] = [
        ("FAILOVER", |flavor, case| run(flavor, &Case { kinds: &[FailoverKind::Planned], ..*case })),
        ("kill -9", |flavor, case| run(flavor, &Case { kinds: &[FailoverKind::Kill], ..*case })),
        ("Sentinel", run_with_sentinels),
        ("cut off", |flavor, case| run(flavor, &Case { kinds: &[FailoverKind::Cut], ..*case })),
        ("power cut, everysec", run_with_power_cuts),
    ];
    println!("| | by | failovers | grants | owners beside another |\n|---|---|---|---|---|");
    for (promise, case) in all {
        for (by, runs) in kinds {
            if by.starts_with("power") && case.promise != Promise::Primary {
                continue;
            }
            let Outcome { failovers, report, .. } = runs(flavor, &case);
            println!("| {promise} | {by} | {failovers} | {} | {} |", report.grants, report.doubled);
        }
    }
}
