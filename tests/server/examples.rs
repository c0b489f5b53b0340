// SPDX-License-Identifier: MIT

//! `counter`, `fencing` and `losing` of `examples/`, as a reader would run them, on a real server.

use std::process::Command;

use crate::support::programs::{rust, Printed, Run};
use crate::support::{until, Flavor, Server};

crate::on_every_server!(
    rust_counts_exactly,
    python_counts_exactly,
    rust_counts_exactly_with_200_connections,
    python_counts_exactly_with_200_connections,
    rust_reports_a_lost_lock,
    python_reports_a_lost_lock,
    a_token_keeps_a_late_write_out,
    a_worker_stops_when_it_loses_its_lock,
    the_page_on_fencing_does_what_it_says,
);

/// The lock that both examples use.
const LOCK: &str = "example:lock";

fn rust_counts_exactly(flavor: Flavor) {
    counts_exactly(flavor, rust("counter"), 10, 100);
}

fn python_counts_exactly(flavor: Flavor) {
    if let Some(program) = python() {
        counts_exactly(flavor, program, 10, 100);
    }
}

fn rust_counts_exactly_with_200_connections(flavor: Flavor) {
    counts_exactly(flavor, rust("counter"), 200, 100);
}

fn python_counts_exactly_with_200_connections(flavor: Flavor) {
    if let Some(program) = python() {
        counts_exactly(flavor, program, 200, 20);
    }
}

fn rust_reports_a_lost_lock(flavor: Flavor) {
    reports_a_lost_lock(flavor, rust("counter"));
}

fn python_reports_a_lost_lock(flavor: Flavor) {
    if let Some(program) = python() {
        reports_a_lost_lock(flavor, program);
    }
}

fn a_token_keeps_a_late_write_out(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut program = rust("fencing");
    program.args(["--url", &server.url()]);
    let output = Run::spawn(program).finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    let (without, with) = printed.stdout.split_once("with fencing tokens:").unwrap();
    assert!(without.contains("alice wakes up and deposits 10\n"), "{printed}");
    assert!(without.contains("the balance is 110: bob's 50 are lost"), "{printed}");
    let (with, guarded) = with.split_once("with LOCK.GUARD:").unwrap();
    assert!(with.contains("but the store refuses her token"), "{printed}");
    assert!(guarded.contains("but the server replies NOTOWNER"), "{printed}");
    for told in [with, guarded] {
        assert!(told.contains("the balance is 150: alice knows"), "{printed}");
    }
    assert_nothing_stays(server);
}

/// Every shell script of the page is followed by what it prints.
fn a_worker_stops_when_it_loses_its_lock(flavor: Flavor) {
    let server = Server::with_module_args(flavor, &["lock.events", "yes"], &[]);
    let mut program = rust("losing");
    program.args(["--url", &server.url()]);
    let output = Run::spawn(program).finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    for told in [
        "somebody breaks the lock: 'broken', and the worker stops after ",
        "somebody deletes the key: 'deleted', and the worker stops after ",
        "the hold is as old as it may become: 'expired', and the worker stops after ",
    ] {
        assert!(printed.stdout.contains(told), "{printed}");
    }
}

fn the_page_on_fencing_does_what_it_says(flavor: Flavor) {
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

/// Without the lock increments get lost: all workers start at once, and each increment takes two round trips, so
/// to lose none the workers would have to run one after the other. With the lock none is lost.
fn counts_exactly(flavor: Flavor, program: Command, workers: u64, increments: u64) {
    let server = Server::with_module(flavor, &[]);
    let run = start(program, &server, workers, increments);
    let output = run.finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    let expected = workers * increments;
    let without = count(&printed, "without the lock:", expected);
    assert!(0 < without && without < expected, "the race without the lock did not show: {printed}");
    assert_eq!(count(&printed, "with the lock:", expected), expected);
    assert_nothing_stays(server);
}

/// A lock that is broken while the example works under it: the example says so, and fails.
fn reports_a_lost_lock(flavor: Flavor, program: Command) {
    let server = Server::with_module(flavor, &[]);
    let run = start(program, &server, 10, 1000);
    // The lock goes from hand to hand: whomever this finds has not released it yet, and will be told.
    let break_lock = format!("LOCK.BREAK {LOCK}");
    until("somebody holds the lock", || server.client().call(&break_lock) == "1");
    let output = run.finish();
    let printed = Printed::new(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.stderr.contains("must not be trusted") && printed.stderr.contains("NOTOWNER"),
        "{printed}"
    );
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

fn start(mut program: Command, server: &Server, workers: u64, increments: u64) -> Run {
    program.args(["--url", &server.url()]).args([
        "--workers",
        &workers.to_string(),
        "--increments",
        &increments.to_string(),
    ]);
    Run::spawn(program)
}

fn python() -> Option<Command> {
    crate::support::programs::python("examples/counter.py")
}

/// The count in the line that begins so.
fn count(printed: &Printed, line: &str, expected: u64) -> u64 {
    let rest = printed.stdout.lines().find_map(|found| found.strip_prefix(line));
    let rest = rest.unwrap_or_else(|| panic!("no line '{line}': {printed}"));
    let (said, got) = rest.split_once(", got ").unwrap_or_else(|| panic!("no count: {printed}"));
    assert_eq!(said.trim(), format!("expected {expected}"));
    got.parse().unwrap_or_else(|_| panic!("no count: {printed}"))
}
