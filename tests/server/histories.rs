// SPDX-License-Identifier: MIT

//! Many clients use every feature at once. A checker that shares no code with the module decides whether the observed
//! history can be right (invariants 1 to 7). See `tests/history`.
//!
//! `HISTORY_SECONDS` sets the length of each run. `HISTORY_SEED` repeats the random choices of a run.

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
    broken_connections_break_no_promise,
    killed_and_unblocked_clients_break_no_promise,
    server_crashes_break_no_promise,
    a_suspended_server_breaks_no_promise,
    suspended_clients_break_no_promise,
    full_memory_breaks_no_promise,
    clock_jumps_break_no_promise,
    a_wrong_history_is_refused,
);

/// The permitted delay is large, because a machine that runs other tests is slow. A lost wake-up would take even longer.
pub(super) const LIMITS: Limits = Limits { slack: 5 * MS, late: 10_000 * MS };

/// Arguments of the module, which are passed to the server again when it restarts.
pub(super) const MODULE_ARGS: [&str; 4] = ["lock.default-lease", "400", "lock.request-ttl", "3000"];

/// Minimum number of grants for a history to be meaningful.
pub(super) const MIN_GRANTS: u32 = 20;

fn environment_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

pub(super) fn settings() -> Settings {
    let brief = brief_settings();
    match environment_number("HISTORY_SECONDS") {
        Some(seconds) => Settings { calls: u32::MAX, at_most: Duration::from_secs(seconds), ..brief },
        None => brief,
    }
}

fn brief_settings() -> Settings {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Settings {
        scenes: 1,
        seed: environment_number("HISTORY_SEED").unwrap_or(u64::from(now.subsec_nanos())),
        calls: 100,
        grants: 2 * MIN_GRANTS,
        at_most: Duration::from_secs(10),
        calls_per_key: 50,
        default_lease: Duration::from_millis(400),
        request_ttl: Duration::from_secs(3),
        ..Settings::default()
    }
}

pub(super) fn address(server: &Server) -> SocketAddr {
    (server.host, server.port).into()
}

/// Runs a load while `disturb` affects the server, and fails unless the clients' observations can be right.
pub(super) fn run(settings: Settings, at: SocketAddr, disturb: impl FnOnce(&Shared) + Send) -> Vec<Record> {
    let seed = settings.seed;
    let shared = Shared::new(settings, at);
    let records = load::run(&shared, disturb).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let report = check(&records, &LIMITS);
    eprintln!("seed {seed}: {report}");
    assert_right(seed, &records, &report);
    records
}

/// Fails and saves the history unless it is right.
pub(super) fn assert_right(seed: u64, records: &[Record], report: &Report) {
    if !report.violations.is_empty() {
        let file = save_history(seed, records);
        panic!("HISTORY_SEED={seed} has a wrong history, see {}:\n{report}", file.display());
    }
    assert!(report.grants > MIN_GRANTS as usize, "{report}");
}

/// Saves a history for `cargo run -p redis-lock-history -- check FILE`, and returns its path.
pub(super) fn save_history(seed: u64, records: &[Record]) -> PathBuf {
    let file = std::env::temp_dir().join(format!("history-{seed}.jsonl"));
    record::write(records, BufWriter::new(File::create(&file).unwrap())).unwrap();
    file
}

/// Asserts that no state is left and that no internal error occurred.
pub(super) fn assert_no_state_left(server: &mut Server) {
    let mut client = server.client();
    until("no state is left", || full_tables(&mut client).is_empty());
    until("no client is blocked", || client.info("clients", "blocked_clients") == "0");
    assert_eq!(client.info("lock", "lock_internal_errors"), "0");
    server.assert_healthy();
}

pub(super) fn record_fault(shared: &Shared, what: Disturbance, act: impl FnOnce()) {
    let from = shared.recorder.now();
    act();
    let until = shared.recorder.now();
    shared.recorder.add(Record::Fault(Fault { what, from, until }));
}

fn broken_connections_break_no_promise(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    run(Settings { broken: 80, ..settings() }, address(&server), |_| ());
    assert_no_state_left(&mut server);
}

fn killed_and_unblocked_clients_break_no_promise(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let faults = Faults { kill: true, unblock: true, pause: true };
    run(Settings { faults, ..settings() }, address(&server), |_| ());
    assert_no_state_left(&mut server);
}

fn server_crashes_break_no_promise(flavor: Flavor) {
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
            record_fault(shared, Disturbance::Restart { durable: true }, || {
                let mut server = server.lock().unwrap();
                let dir = server.take().unwrap().stop();
                let next = Server::start_in(flavor, dir, &args);
                shared.move_to(address(&next));
                *server = Some(next);
            });
        }
    });
    assert_no_state_left(&mut server.into_inner().unwrap().unwrap());
}

fn a_suspended_server_breaks_no_promise(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let stopped = &server;
    run(settings(), address(&server), |shared| {
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(300));
            record_fault(shared, Disturbance::Stop, || {
                stopped.signal(libc::SIGSTOP);
                thread::sleep(Duration::from_millis(500));
                stopped.signal(libc::SIGCONT);
            });
        }
    });
    assert_no_state_left(&mut server);
}

/// Clients are suspended at random times, also between a call and its reply, like a stopped process.
fn suspended_clients_break_no_promise(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    run(Settings { still: 60, ..settings() }, address(&server), |_| ());
    assert_no_state_left(&mut server);
}

fn full_memory_breaks_no_promise(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let full = &server;
    let records = run(settings(), address(&server), |shared| {
        while !shared.is_over() {
            record_fault(shared, Disturbance::MemoryFull, || {
                assert_eq!(full.client().call("CONFIG SET maxmemory 1"), "OK");
                thread::sleep(Duration::from_millis(100));
                assert_eq!(full.client().call("CONFIG SET maxmemory 0"), "OK");
            });
            thread::sleep(Duration::from_millis(100));
        }
    });
    let refused = |record: &&Record| matches!(record, Record::Call(call) if is_error(call, "OOM"));
    assert!(records.iter().filter(refused).count() > 0, "no call was refused");
    assert_no_state_left(&mut server);
}

fn is_error(call: &Call, word: &str) -> bool {
    matches!(&call.outcome, Outcome::Error(error) if error.starts_with(word))
}

/// Moves the clock by one second, which is less than the retention of request records.
fn clock_jumps_break_no_promise(flavor: Flavor) {
    let mut server = Server::with_own_clock(flavor);
    let set = &server;
    run(settings(), address(&server), |shared| {
        for off in [1, 0].into_iter().cycle() {
            thread::sleep(Duration::from_millis(300));
            if shared.is_over() {
                return;
            }
            let by = if off == 1 { 1_000 } else { -1_000 };
            record_fault(shared, Disturbance::Clock { by }, || set.set_clock(off));
        }
    });
    assert_no_state_left(&mut server);
}

/// Exclusive first grants with a lease above 50 ms. Calls of scenes are excluded: most of them use a lock of their own and
/// no token.
fn grants(records: &[Record]) -> Vec<(usize, Call, Acquire)> {
    let exclusive_grant = |(number, record): (usize, &Record)| match record {
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
    records.iter().enumerate().filter_map(exclusive_grant).collect()
}

/// Proves that the checker finds violations.
fn a_wrong_history_is_refused(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    // Each try checks the whole history, so a short one is enough.
    let records = run(brief_settings(), address(&server), |_| ());
    let finds =
        |report: &Report, rule: Rule| report.violations.iter().any(|violation| violation.rule == rule);
    let (mut doubled, mut aged, mut tried) = (0, 0, 0);
    for (number, call, acquire) in grants(&records).into_iter().take(60) {
        tried += 1;
        let answered = call.answered.unwrap();
        // Another owner acquires the same lock right after the grant.
        let mut wrong = records.clone();
        let command = Command::Acquire(Acquire { owner: "thief".to_owned(), id: None, ..acquire });
        let (sent, next) = (answered + 1, Some(answered + 2));
        wrong.push(Record::Call(Call { sent, answered: next, command, ..call.clone() }));
        doubled += u32::from(finds(&check(&wrong, &LIMITS), Rule::Exclusion));
        // The grant has an older token.
        let mut wrong = records.clone();
        if let Record::Call(Call { outcome: Outcome::Reply(reply), .. }) = &mut wrong[number] {
            if let Some(token) = reply.as_array_mut().and_then(|parts| parts.get_mut(5)) {
                *token = 17.into();
                aged += u32::from(finds(&check(&wrong, &LIMITS), Rule::Token));
            }
        }
    }
    eprintln!("found {doubled} second owners and {aged} old tokens in {tried} tries");
    assert!(doubled * 2 > tried && aged * 10 > tried, "{doubled} and {aged} of {tried}");
}
