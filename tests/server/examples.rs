// SPDX-License-Identifier: MIT

//! Runs the raw programs of `docs/clients/python` and two calculations of `examples/` as a reader would, on real servers.
//! The module `clients` tests the two workers, and `package_examples` the examples that use a package.

use std::process::Command;

use crate::support::programs::{python, rust, Printed, Run};
use crate::support::{until, Flavor, Server};

crate::on_every_server!(
    python_counts_exactly,
    python_counts_exactly_with_200_connections,
    python_reports_a_lost_lock,
    a_token_keeps_a_late_write_out,
    a_worker_stops_when_it_loses_its_lock,
    a_thousand_python_tasks_share_one_session,
    fencing_page_scripts_print_as_shown,
);

/// The lock of `counter.py`.
const LOCK: &str = "example:lock";

fn python_counts_exactly(flavor: Flavor) {
    counts_exactly(flavor, 10, 100);
}

fn python_counts_exactly_with_200_connections(flavor: Flavor) {
    counts_exactly(flavor, 200, 20);
}

/// Without the lock, increments get lost: all workers start at once, and each increment takes two round trips. With the
/// lock, none is lost.
fn counts_exactly(flavor: Flavor, workers: u64, increments: u64) {
    let server = Server::with_module(flavor, &[]);
    let Some(run) = start_counter(&server, workers, increments) else { return };
    let output = run.finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    let expected = workers * increments;
    let without = count(&printed, "without the lock:", expected);
    assert!(0 < without && without < expected, "the race without the lock did not show: {printed}");
    assert_eq!(count(&printed, "with the lock:", expected), expected);
    assert_nothing_stays(server);
}

fn python_reports_a_lost_lock(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let Some(run) = start_counter(&server, 10, 1000) else { return };
    // `LOCK.BREAK` ends the hold of a worker that has not released the lock yet, so that worker's release fails.
    let break_lock = format!("LOCK.BREAK {LOCK}");
    until("a worker holds the lock", || server.client().call(&break_lock) == "1");
    let output = run.finish();
    let printed = Printed::new(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.stderr.contains("must not be trusted") && printed.stderr.contains("NOTOWNER"),
        "{printed}"
    );
    assert_nothing_stays(server);
}

fn start_counter(server: &Server, workers: u64, increments: u64) -> Option<Run> {
    let mut program = python("docs/clients/python/counter.py")?;
    program.args(["--url", &server.url()]).args([
        "--workers",
        &workers.to_string(),
        "--increments",
        &increments.to_string(),
    ]);
    Some(Run::spawn(program))
}

/// The count in the line that begins with `line`.
fn count(printed: &Printed, line: &str, expected: u64) -> u64 {
    let rest = printed.stdout.lines().find_map(|found| found.strip_prefix(line));
    let rest = rest.unwrap_or_else(|| panic!("no line '{line}': {printed}"));
    let (expects, got) = rest.split_once(", got ").unwrap_or_else(|| panic!("no count: {printed}"));
    assert_eq!(expects.trim(), format!("expected {expected}"));
    got.parse().unwrap_or_else(|_| panic!("no count: {printed}"))
}

fn a_token_keeps_a_late_write_out(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let Some(printed) = printed_by("fencing", &server) else { return };
    let (without, with) = printed.stdout.split_once("with fencing tokens:").unwrap();
    assert!(without.contains("alice continues and deposits 10\n"), "{printed}");
    assert!(without.contains("the balance is 110: bob's 50 are lost"), "{printed}");
    let (with, guarded) = with.split_once("with LOCK.GUARD:").unwrap();
    assert!(with.contains("but the store refuses her token"), "{printed}");
    assert!(guarded.contains("but the server replies NOTOWNER"), "{printed}");
    for part in [with, guarded] {
        assert!(part.contains("the balance is 150: alice knows"), "{printed}");
    }
    assert_nothing_stays(server);
}

fn a_worker_stops_when_it_loses_its_lock(flavor: Flavor) {
    let server = Server::with_module_args(flavor, &["lock.events", "yes"], &[]);
    let Some(printed) = printed_by("losing", &server) else { return };
    for line in [
        "an operator breaks the lock: 'broken', and the work stops after ",
        "somebody deletes the key: 'deleted', and the work stops after ",
        "the server stops renewing the lease: 'expired', and the work stops after ",
    ] {
        assert!(printed.stdout.contains(line), "{printed}");
    }
    assert_nothing_stays(server);
}

/// The output of a program of `docs/clients/python` that succeeds on this server.
fn printed_by(name: &str, server: &Server) -> Option<Printed> {
    let mut program = python(&format!("docs/clients/python/{name}.py"))?;
    program.args(["--url", &server.url()]);
    let output = Run::spawn(program).finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    Some(printed)
}

fn a_thousand_python_tasks_share_one_session(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let Some(mut program) = python("docs/clients/python/session.py") else { return };
    program.args(["--port", &server.port.to_string(), "--tasks", "1000", "--locks", "10"]);
    let output = Run::spawn(program).finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    // Nearly all tasks waited at the same time, on few connections.
    let mut a = server.client();
    assert!(a.info("lock", "lock_waiters_max").parse::<usize>().unwrap() > 500, "{printed}");
    assert!(a.info("stats", "total_connections_received").parse::<usize>().unwrap() < 50, "{printed}");
    assert_eq!(a.info("lock", "lock_sessions_opened"), "1");
    assert_eq!(a.info("lock", "lock_sessions"), "0");
    assert_eq!(a.info("lock", "lock_session_grants_overdue"), "0");
    let counted = printed.stdout.split_once("cancelled: expected ").unwrap().1.trim().split_once(", got ");
    assert!(counted.is_some_and(|(expected, got)| expected == got), "{printed}");
    drop(a);
    assert_nothing_stays(server);
}

/// The page shows the output of each shell script below the script.
fn fencing_page_scripts_print_as_shown(flavor: Flavor) {
    let page = include_str!("../../docs/fencing.md");
    let server = Server::with_module(flavor, &[]);
    let scripts: Vec<&str> = page.split("```sh\n").skip(1).collect();
    assert_eq!(scripts.len(), 3);
    for script in scripts {
        let (script, rest) = script.split_once("```\n").unwrap();
        let (printed, _) = rest.split_once("```\n").unwrap().1.split_once("```\n").unwrap();
        let here = format!("redis-cli() {{ command redis-cli -p {} \"$@\"; }}\n{script}", server.port);
        let mut shell = Command::new("bash");
        shell.args(["-c", &here]).current_dir(server.dir.path());
        let output = Run::spawn(shell).finish();
        assert_eq!(Printed::new(&output).stdout, printed, "{script}");
    }
    assert_nothing_stays(server);
}

fn assert_nothing_stays(mut server: Server) {
    let mut client = server.client();
    until("the example's connections are closed", || client.info("clients", "connected_clients") == "1");
    assert_eq!(client.call(&format!("LOCK.INFO {LOCK}")), "nil");
    assert_eq!(client.call(&format!("LOCK.WAITERS {LOCK}")), "[]");
    assert_eq!(client.call(&format!("EXISTS {LOCK}")), "0");
    assert_eq!(client.info("clients", "blocked_clients"), "0");
    assert_eq!(client.info("lock", "lock_waiters"), "0");
    assert_eq!(client.info("lock", "lock_internal_errors"), "0");
    server.assert_healthy();
}

/// Runs a calculation with these arguments. Returns its exit code and output.
fn calculate(example: &str, args: &str) -> (Option<i32>, Printed) {
    let mut program = rust(example);
    program.args(args.split(' '));
    let output = Run::spawn(program).finish();
    (output.status.code(), Printed::new(&output))
}

/// Repeats the command of an example on the page, and compares the output.
fn assert_page_shows(example: &str) {
    let page = include_str!("../../docs/scale.md");
    let (_, session) = page.split_once(&format!("$ cargo run --release --example {example} -- ")).unwrap();
    let (typed, rest) = session.split_once('\n').unwrap();
    assert_eq!(calculate(example, typed).1.stdout, rest.split_once("```").unwrap().0, "{typed}");
}

/// The first case is a textbook example: requests arrive half as often as the lock can be granted.
#[test]
fn waits_for_a_hot_lock_are_calculated() {
    let calculate = |args: &str| calculate("hot_lock", args);
    let (status, printed) = calculate("--per-second 50 --hold 9 --round-trip 1");
    assert_eq!(status, Some(0), "{printed}");
    let most = "the lock is busy for 50 % of the time; 100.0 grants a second are the most\n";
    assert!(printed.stdout.starts_with(most), "{printed}");
    // A hold is exponential with a mean of 9 ms, and a round trip of 1 ms follows it. The lock is busy half of the time.
    // The mean wait is thus 50 / s * (2 * 81 + 18 + 1) ms² / (2 * 0.5) + 1 ms.
    assert!(printed.stdout.contains("on average 0.5 wait for it\n"), "{printed}");
    let mean = printed.stdout.split_once("mean ").unwrap().1.split_once(" ms").unwrap().0;
    assert!((mean.parse::<f64>().unwrap() - 10.05).abs() < 0.2, "{printed}");
    let (status, printed) = calculate("--per-second 250 --hold 4 --round-trip 1 --equal");
    assert_eq!(status, Some(1), "{printed}");
    assert!(printed.stdout.contains("50.0 more wait after each second"), "{printed}");
    assert_page_shows("hot_lock");
    for (wrong, why) in [
        ("--hold 4", "--per-second must be above 0"),
        ("--per-second 4", "--hold is missing"),
        ("--per-second x --hold 4", "'x' is not a number"),
        ("--per-second 4 --hold -1", "'-1' is not a number from 0 on"),
        ("--per-second 4 --hold 0", "both 0"),
        ("--per-second 4 --hold", "--hold needs a number"),
        ("--often", "unknown option '--often'"),
    ] {
        let (status, printed) = calculate(wrong);
        assert_eq!(status, Some(2), "{wrong}: {printed}");
        assert!(printed.stderr.contains(why) && printed.stderr.contains("usage:"), "{wrong}: {printed}");
    }
}

#[test]
fn recovery_of_a_fleet_is_calculated() {
    let calculate = |args: &str| calculate("fleet", args);
    // All clients use all shards, so each shard has the same load.
    let (status, printed) = calculate("--shards 3 --clients 1000 --shards-per-client 3 --heartbeat 10");
    assert_eq!(status, Some(0), "{printed}");
    let load = "3000 sessions on 3 shards: 1000 on a shard, 1000 on the fullest, which has\n  \
        1000 heartbeats a second, 1.0 % of a core\n  2000 connections; 7.9 MB of memory for";
    assert!(printed.stdout.starts_with(load), "{printed}");
    let (status, printed) = calculate("--shards 1 --clients 1000 --shards-per-client 1 --heartbeat 1000");
    assert_eq!(status, Some(1), "{printed}");
    assert!(printed.stdout.contains("use more shards"), "{printed}");
    assert_page_shows("fleet");
    for (wrong, why) in [
        ("--shards 0", "--shards must be at least 1"),
        ("--shards 2 --shards-per-client 3", "--shards-per-client is greater than --shards"),
        ("--failure fire", "'fire' is not zone, crash or connections"),
        ("--outage x", "'x' is not a number"),
        ("--outage -1", "'-1' is not a number from 0 on"),
        ("--outage", "--outage needs a value"),
        ("--often", "unknown option '--often'"),
    ] {
        let (status, printed) = calculate(wrong);
        assert_eq!(status, Some(2), "{wrong}: {printed}");
        assert!(printed.stderr.contains(why) && printed.stderr.contains("usage:"), "{wrong}: {printed}");
    }
}
