// SPDX-License-Identifier: MIT

//! Servers take each other's place while many clients use everything, and a checker that shares no code with the module
//! decides whether what clients were promised was kept (1, 5). See `tests/history`.
//!
//! A primary has two replicas. It is killed when they lag behind, or hands over (`FAILOVER`), or is cut off from them and goes
//! on serving clients, while the first replica is promoted. `HISTORY_SECONDS` makes each run so long.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_history::check::{check, Report, Rule};
use redis_lock_history::load::{self, Features, Promise, Settings, Shared};
use redis_lock_history::record::{Disturbance, Record};

use super::histories::{address, fault, judge, keep, settings, verify, GRANTS, LIMITS, MODULE_ARGS};
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::sentinel::Watched;
use crate::support::server::module;
use crate::support::{until, Flavor, Server};

crate::on_every_server!(
    what_replicas_have_acknowledged_is_kept,
    in_quarantine_nobody_overlaps,
    a_planned_failover_keeps_every_hold,
    sentinels_choose_another_primary,
    a_node_of_a_cluster_is_replaced,
    in_quarantine_nobody_overlaps_after_a_power_cut,
    what_nobody_was_promised_is_lost,
    #[ignore = "a table for docs/evidence.md"]
    how_often_two_hold,
);

/// How a server takes the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// The primary is killed while its replicas hear nothing from it for a moment.
    Kill,
    /// `FAILOVER`.
    Planned,
    /// The primary and its replicas hear nothing from each other. It serves whoever is still connected to it, and follows the
    /// new primary when the network is whole again.
    Cut,
}

/// Servers that follow the first, each by a link of its own that can be frozen.
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
        // Who was cut off is not to be told to do everything again.
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

    /// Puts the first replica in the place of the primary. For some time before, so many replicas hear nothing from it.
    fn fail_over(&mut self, how: How, lagging: usize, lasts: Duration, shared: &Shared) {
        if how == How::Planned {
            self.hand_over();
        } else {
            self.replicas[..lagging].iter().for_each(|(_, link)| link.freeze());
            thread::sleep(lasts);
            self.replicas.iter().for_each(|(_, link)| link.freeze());
        }
        let (next, _link) = self.replicas.remove(0);
        if how != How::Planned {
            assert_eq!(next.client().call("REPLICAOF NO ONE"), "OK");
        }
        let before = std::mem::replace(&mut self.primary, next);
        let (other, _) = self.replicas.remove(0);
        self.follow(other);
        let before = if how == How::Kill {
            drop(before);
            shared.move_to(address(&self.primary));
            Fleet::server(self.flavor, &self.module_args)
        } else {
            shared.move_to(address(&self.primary));
            // Whoever is connected still to the one before goes on there for a while.
            thread::sleep(lasts);
            before
        };
        self.follow(before);
        self.until_in_sync();
    }

    fn hand_over(&self) {
        let (mut primary, mut next) = (self.primary.client(), self.replicas[0].0.client());
        let to = format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 10000", self.replicas[0].0.port);
        until("the failover is begun", || primary.call(&to) == "OK");
        until("it has handed over", || next.call("ROLE").starts_with("[master"));
        until("it follows", || primary.call("ROLE").starts_with("[slave"));
    }
}

/// What clients wait for before a lock is theirs, and what the servers are set to.
#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) promise: Promise,
    pub(super) module_args: &'static [&'static str],
    pub(super) ways: &'static [How],
    /// From one failover to the next, about.
    pub(super) every: Duration,
    /// A name that has given something back acquires nothing more.
    pub(super) names_once: bool,
    /// The hash tag of all locks, in a cluster. Its primary has one replica, others have two.
    pub(super) prefix: &'static str,
    /// Leases are so many times as long.
    pub(super) stretch: u32,
    /// After so many calls of a client it goes on with new locks.
    pub(super) calls_per_key: u32,
    /// How long the run is, unless `HISTORY_SECONDS` is set.
    pub(super) length: Duration,
}

/// What came of a run.
pub(super) struct Outcome {
    pub(super) seed: u64,
    pub(super) failovers: usize,
    pub(super) records: Vec<Record>,
    pub(super) report: Report,
}

const NOTHING: Case = Case {
    promise: Promise::Primary,
    module_args: &[],
    ways: &[],
    every: Duration::from_millis(400),
    names_once: false,
    prefix: "",
    stretch: 1,
    calls_per_key: 50,
    length: Duration::from_secs(4),
};

/// A load, one failover after the other until it is over, and what clients saw of it. A failover tells where the new primary is.
pub(super) fn load(
    case: &Case,
    at: SocketAddr,
    mut fail_over: impl FnMut(&Shared, &mut StdRng) + Send,
) -> Outcome {
    let Case { promise, names_once, module_args, ways, stretch, calls_per_key, .. } = case;
    let all = settings();
    let at_most = all.at_most.min(if all.calls == u32::MAX { Duration::MAX } else { case.length });
    let load =
        Settings { features: Features::UNBOUND, listeners: 0, scenes: 0, calls: u32::MAX, at_most, ..all };
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
            thread::sleep(case.every.mul_f64(rng.random_range(0.5..1.5)));
            fault(shared, Disturbance::Failover, || fail_over(shared, &mut rng));
            failovers += 1;
        }
    });
    let records = records.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let report = check(&records, &LIMITS);
    eprintln!("{promise:?} {module_args:?} {ways:?}: {failovers} failovers, seed {seed}: {report}");
    assert!(failovers > 0 && report.grants > GRANTS as usize, "{report}");
    // Tokens grow, and guarded writes are right, whatever was promised.
    if report.violations.iter().any(|one| one.rule != Rule::Exclusion) {
        let file = keep(seed, &records);
        panic!("seed {seed} made a history that is wrong, see {}:\n{report}", file.display());
    }
    Outcome { seed, failovers, records, report }
}

fn run(flavor: Flavor, case: &Case) -> Outcome {
    let mut fleet = Fleet::start(flavor, case.module_args);
    let at = address(&fleet.primary);
    let outcome = load(case, at, |shared, rng| {
        let how = case.ways[rng.random_range(0..case.ways.len())];
        let lasts = Duration::from_millis(rng.random_range(5..150));
        fleet.fail_over(how, rng.random_range(1..=2), lasts, shared);
    });
    let Fleet { mut primary, replicas, .. } = fleet;
    verify(&mut primary);
    replicas.into_iter().for_each(|(mut replica, _)| verify(&mut replica));
    outcome
}

/// Nobody holds a lock beside another one.
fn run_strictly(flavor: Flavor, case: &Case) {
    let Outcome { seed, records, report, .. } = run(flavor, case);
    judge(seed, &records, &report);
}

pub(super) const KEPT: Case = Case { promise: Promise::Replicas(2), ..NOTHING };

/// No lease is longer than a second. Whoever gives a lock back comes again under another name: see `docs/guarantees.md`.
const QUARANTINE: Case = Case {
    module_args: &["lock.quarantine", "1000", "lock.max-lease", "1000"],
    every: Duration::from_millis(2500),
    names_once: true,
    ..NOTHING
};

fn what_replicas_have_acknowledged_is_kept(flavor: Flavor) {
    run_strictly(flavor, &Case { ways: &[How::Kill, How::Planned, How::Cut], ..KEPT });
}

fn in_quarantine_nobody_overlaps(flavor: Flavor) {
    run_strictly(flavor, &Case { ways: &[How::Kill, How::Planned], ..QUARANTINE });
}

fn a_planned_failover_keeps_every_hold(flavor: Flavor) {
    run_strictly(flavor, &Case { ways: &[How::Planned], ..NOTHING });
}

fn sentinels_choose_another_primary(flavor: Flavor) {
    let Outcome { seed, records, report, .. } =
        run_with_sentinels(flavor, &Case { length: Duration::from_secs(8), ..KEPT });
    judge(seed, &records, &report);
}

/// A replica takes the place of its node, which stands still or goes on until it hears of it.
fn run_in_a_cluster(flavor: Flavor, case: &Case) -> Outcome {
    let cluster = Cluster::start_with_module_args(flavor, &MODULE_ARGS);
    let mut replica = cluster.replica_of(0, &[]);
    let Cluster { nodes: [mut primary, mut other] } = cluster;
    let outcome = load(case, address(&primary), |shared, rng| {
        let stands_still = rng.random();
        let mut next = replica.client();
        if stands_still {
            primary.signal(libc::SIGSTOP);
            thread::sleep(Duration::from_millis(rng.random_range(5..150)));
        }
        // The other node votes only once in a while, and is not asked.
        assert_eq!(next.call("CLUSTER FAILOVER TAKEOVER"), "OK");
        until("the other one leads", || next.call("ROLE").starts_with("[master"));
        shared.move_to(address(&replica));
        if stands_still {
            thread::sleep(Duration::from_millis(rng.random_range(5..150)));
            primary.signal(libc::SIGCONT);
        }
        until_it_follows(&primary);
        std::mem::swap(&mut primary, &mut replica);
    });
    [&mut primary, &mut replica, &mut other].into_iter().for_each(verify);
    outcome
}

/// A node that was replaced has heard of it, and is a replica.
pub(super) fn until_it_follows(node: &Server) {
    let mut client = node.client();
    until("it follows", || client.call("ROLE").starts_with("[slave"));
    until("it is in sync", || client.info("replication", "master_link_status") == "up");
}

fn a_node_of_a_cluster_is_replaced(flavor: Flavor) {
    let case = Case { promise: Promise::Replicas(1), prefix: "{b}", ..NOTHING };
    let Outcome { seed, records, report, .. } = run_in_a_cluster(flavor, &case);
    judge(seed, &records, &report);
}

/// A server with `appendfsync everysec` whose machine loses power: the end of the AOF is gone when it starts again.
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
    verify(&mut server.unwrap());
    outcome
}

/// Where the last transaction begins before a place in an AOF. One that is cut within a command stays open in the file of a
/// Redis 7.0: the start after the next reads what was appended as a part of it, with or without the module.
fn before_a_transaction(aof: &[u8], at: usize) -> usize {
    let multi = b"*1\r\n$5\r\nMULTI\r\n";
    aof[..at].windows(multi.len()).rposition(|part| part == multi).unwrap_or(0)
}

fn in_quarantine_nobody_overlaps_after_a_power_cut(flavor: Flavor) {
    let Outcome { seed, records, report, .. } = run_with_power_cuts(flavor, &QUARANTINE);
    judge(seed, &records, &report);
}

/// Sooner or later, or the others would prove nothing.
fn what_nobody_was_promised_is_lost(flavor: Flavor) {
    let ways = &[How::Kill, How::Cut];
    let doubled = (0..20).map(|_| run(flavor, &Case { ways, ..NOTHING }).report.doubled);
    assert!(doubled.into_iter().any(|doubled| doubled > 0), "nothing is lost anyway");
}

fn run_with_sentinels(flavor: Flavor, case: &Case) -> Outcome {
    let mut watched = Watched::start_with(flavor, &[&MODULE_ARGS, case.module_args].concat());
    let at = watched.primary_address();
    let outcome = load(case, at, |shared, _| {
        watched.fail_over();
        shared.move_to(watched.primary_address());
        watched.add_replica();
    });
    watched.servers.iter_mut().for_each(verify);
    outcome
}

/// How often two owners held the same lock, by what clients waited for and by how the primary was replaced. A table.
fn how_often_two_hold(flavor: Flavor) {
    let again = Case { names_once: false, ..QUARANTINE };
    let wait = Case { promise: Promise::Wait(2), ..NOTHING };
    let one = Case { promise: Promise::Replicas(1), ..NOTHING };
    let all = [
        ("nothing", NOTHING),
        ("WAIT 2", wait),
        ("REPLICAS 1", one),
        ("REPLICAS 2", KEPT),
        ("quarantine, names come again", again),
        ("quarantine, names are new", QUARANTINE),
    ];
    type Runs = fn(Flavor, &Case) -> Outcome;
    let ways: [(&str, Runs); 5] = [
        ("FAILOVER", |flavor, case| run(flavor, &Case { ways: &[How::Planned], ..*case })),
        ("kill -9", |flavor, case| run(flavor, &Case { ways: &[How::Kill], ..*case })),
        ("Sentinel", run_with_sentinels),
        ("cut off", |flavor, case| run(flavor, &Case { ways: &[How::Cut], ..*case })),
        ("power cut, everysec", run_with_power_cuts),
    ];
    println!("| | by | failovers | grants | owners beside another |\n|---|---|---|---|---|");
    for (promise, case) in all {
        for (by, runs) in ways {
            if by.starts_with("power") && case.promise != Promise::Primary {
                continue;
            }
            let Outcome { failovers, report, .. } = runs(flavor, &case);
            println!("| {promise} | {by} | {failovers} | {} | {} |", report.grants, report.doubled);
        }
    }
}
