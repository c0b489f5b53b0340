// SPDX-License-Identifier: MIT

//! Many clients use everything at once, and a checker that shares no code with the module decides whether what they saw can
//! be right (1 to 7). See `tests/history`.
//!
//! `HISTORY_SECONDS` makes each run so long, and `HISTORY_SEED` repeats the choices of one.

use std::fs::File;
use std::io::BufWriter;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, SystemTime};

use redis_lock_history::check::{check, Limits, Report, Rule};
use redis_lock_history::load::{self, Faults, Settings, Shared};
use redis_lock_history::record::{self, Acquire, Call, Command, Disturbance, Fault, Outcome, Record, MS};

use super::tables::full_tables;
use crate::support::server::module;
use crate::support::{until, Flavor, Server};

crate::on_every_server!(
    everything_with_broken_connections,
    clients_are_killed_unblocked_and_paused,
    the_server_is_killed_and_comes_back,
    the_server_stands_still_for_longer_than_leases,
    clients_stand_still_for_longer_than_leases,
    memory_is_full_for_a_while,
    the_clock_is_set_forward_and_back,
    a_history_that_is_wrong_is_refused,
);

/// A machine that is busy with other tests is slow. A wake-up that is lost stays so for longer than this.
pub(super) const LIMITS: Limits = Limits { slack: 5 * MS, late: 10_000 * MS };

/// The server is told them again when it starts anew.
pub(super) const MODULE_ARGS: [&str; 4] = ["lock.default-lease", "400", "lock.request-ttl", "3000"];

/// A history of fewer says little.
pub(super) const GRANTS: u32 = 20;

pub(super) fn settings() -> Settings {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seconds = number("HISTORY_SECONDS");
    Settings {
        scenes: 1,
        seed: number("HISTORY_SEED").unwrap_or(u64::from(now.subsec_nanos())),
        calls: if seconds.is_some() { u32::MAX } else { 100 },
        grants: 2 * GRANTS,
        at_most: Duration::from_secs(seconds.unwrap_or(10)),
        calls_per_key: 50,
        default_lease: Duration::from_millis(400),
        request_ttl: Duration::from_secs(3),
        ..Settings::default()
    }
}

pub(super) fn address(server: &Server) -> SocketAddr {
    (server.host, server.port).into()
}

/// Runs a load, while something is done to the server, and fails unless what the clients saw can be right.
pub(super) fn run(settings: Settings, at: SocketAddr, disturb: impl FnOnce(&Shared) + Send) -> Vec<Record> {
    let seed = settings.seed;
    let shared = Shared::new(settings, at);
    let records = load::run(&shared, disturb).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let report = check(&records, &LIMITS);
    eprintln!("seed {seed}: {report}");
    judge(seed, &records, &report);
    records
}

/// Fails, and keeps the history, unless it is right.
pub(super) fn judge(seed: u64, records: &[Record], report: &Report) {
    if !report.violations.is_empty() {
        let file = keep(seed, records);
        panic!("HISTORY_SEED={seed} made a history that is wrong, see {}:\n{report}", file.display());
    }
    assert!(report.grants > GRANTS as usize, "{report}");
}

/// Where it is to be found, for `cargo run -p redis-lock-history -- check FILE`.
pub(super) fn keep(seed: u64, records: &[Record]) -> PathBuf {
    let file = std::env::temp_dir().join(format!("history-{seed}.jsonl"));
    record::write(records, BufWriter::new(File::create(&file).unwrap())).unwrap();
    file
}

/// Nothing stays behind, and nothing has gone wrong inside.
pub(super) fn verify(server: &mut Server) {
    let mut client = server.client();
    until("all is forgotten", || full_tables(&mut client).is_empty());
    until("no client is blocked", || client.info("clients", "blocked_clients") == "0");
    assert_eq!(client.info("lock", "lock_internal_errors"), "0");
    server.assert_healthy();
}

pub(super) fn fault(shared: &Shared, what: Disturbance, act: impl FnOnce()) {
    let from = shared.recorder.now();
    act();
    let until = shared.recorder.now();
    shared.recorder.add(Record::Fault(Fault { what, from, until }));
}

fn everything_with_broken_connections(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    run(Settings { broken: 80, ..settings() }, address(&server), |_| ());
    verify(&mut server);
}

fn clients_are_killed_unblocked_and_paused(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let faults = Faults { kill: true, unblock: true, pause: true };
    run(Settings { faults, ..settings() }, address(&server), |_| ());
    verify(&mut server);
}

fn the_server_is_killed_and_comes_back(flavor: Flavor) {
    let load = [&["--loadmodule", module().to_str().unwrap()][..], &MODULE_ARGS].concat();
    let args = [&load[..], &["--appendonly", "yes", "--appendfsync", "always"]].concat();
    let server = Server::start(flavor, &args);
    let at = address(&server);
    let server = Mutex::new(Some(server));
    run(settings(), at, |shared| {
        for _ in 0..4 {
            thread::sleep(Duration::from_millis(250));
            if shared.is_over() {
                return;
            }
            fault(shared, Disturbance::Restart { durable: true }, || {
                let mut server = server.lock().unwrap();
                let dir = server.take().unwrap().stop();
                let next = Server::start_in(flavor, dir, &args);
                shared.move_to(address(&next));
                *server = Some(next);
            });
        }
    });
    verify(&mut server.into_inner().unwrap().unwrap());
}

fn the_server_stands_still_for_longer_than_leases(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let stopped = &server;
    run(settings(), address(&server), |shared| {
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(300));
            fault(shared, Disturbance::Stop, || {
                stopped.signal(libc::SIGSTOP);
                thread::sleep(Duration::from_millis(500));
                stopped.signal(libc::SIGCONT);
            });
        }
    });
    verify(&mut server);
}

/// As if each client were a process that is stopped, also between a call and its reply.
fn clients_stand_still_for_longer_than_leases(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    run(Settings { still: 60, ..settings() }, address(&server), |_| ());
    verify(&mut server);
}

fn memory_is_full_for_a_while(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let full = &server;
    let records = run(settings(), address(&server), |shared| {
        while !shared.is_over() {
            fault(shared, Disturbance::MemoryFull, || {
                assert_eq!(full.client().call("CONFIG SET maxmemory 1"), "OK");
                thread::sleep(Duration::from_millis(100));
                assert_eq!(full.client().call("CONFIG SET maxmemory 0"), "OK");
            });
            thread::sleep(Duration::from_millis(100));
        }
    });
    let refused = |record: &&Record| matches!(record, Record::Call(call) if is_error(call, "OOM"));
    assert!(records.iter().filter(refused).count() > 0, "there was memory enough");
    verify(&mut server);
}

fn is_error(call: &Call, word: &str) -> bool {
    matches!(&call.outcome, Outcome::Error(error) if error.starts_with(word))
}

/// By a second. What an ID got is remembered for longer.
fn the_clock_is_set_forward_and_back(flavor: Flavor) {
    let mut server = Server::with_own_clock(flavor);
    let set = &server;
    run(settings(), address(&server), |shared| {
        for off in [1, 0].into_iter().cycle() {
            thread::sleep(Duration::from_millis(300));
            if shared.is_over() {
                return;
            }
            let by = if off == 1 { 1_000 } else { -1_000 };
            fault(shared, Disturbance::Clock { by }, || set.set_clock(off));
        }
    });
    verify(&mut server);
}

/// The calls of a real history that were granted a lock exclusively, as its first hold, for longer than 50 ms. Those of scenes are
/// left out: most of them have a lock for themselves, and no token.
fn grants(records: &[Record]) -> Vec<(usize, Call, Acquire)> {
    let of_interest = |(number, record): (usize, &Record)| match record {
        Record::Call(call) => match (&call.command, &call.outcome) {
            (Command::Acquire(acquire), Outcome::Reply(reply))
                if !acquire.shared
                    && !acquire.several
                    && !acquire.ephemeral
                    && !acquire.keys[0].contains("scene-")
                    && acquire.lease.is_some_and(|lease| lease > 50)
                    && (reply == 1 || reply[3] == 1) =>
            {
                Some((number, call.clone(), acquire.clone()))
            }
            _ => None,
        },
        _ => None,
    };
    records.iter().enumerate().filter_map(of_interest).collect()
}

/// So a checker that finds nothing has looked.
fn a_history_that_is_wrong_is_refused(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let records = run(settings(), address(&server), |_| ());
    let finds =
        |report: &Report, rule: Rule| report.violations.iter().any(|violation| violation.rule == rule);
    let (mut doubled, mut aged, mut tried) = (0, 0, 0);
    for (number, call, acquire) in grants(&records).into_iter().take(60) {
        tried += 1;
        let answered = call.answered.unwrap();
        // Somebody else got the same lock in the next moment.
        let mut wrong = records.clone();
        let command = Command::Acquire(Acquire { owner: "thief".to_owned(), id: None, ..acquire });
        let (sent, next) = (answered + 1, Some(answered + 2));
        wrong.push(Record::Call(Call { sent, answered: next, command, ..call.clone() }));
        doubled += u32::from(finds(&check(&wrong, &LIMITS), Rule::Exclusion));
        // It got an older token.
        let mut wrong = records.clone();
        if let Record::Call(Call { outcome: Outcome::Reply(reply), .. }) = &mut wrong[number] {
            if let Some(token) = reply.as_array_mut().and_then(|parts| parts.get_mut(5)) {
                *token = 17.into();
                aged += u32::from(finds(&check(&wrong, &LIMITS), Rule::Token));
            }
        }
    }
    eprintln!("a second owner was seen {doubled} times, an old token {aged} times, of {tried}");
    assert!(doubled * 2 > tried && aged * 10 > tried, "{doubled} and {aged} of {tried}");
}
