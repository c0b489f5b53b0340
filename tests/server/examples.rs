// SPDX-License-Identifier: MIT

//! The raw programs of `docs/clients/` but for the workers (see `clients`), and `hot_lock` of `examples/`, as a reader would run
//! them, on a real server. Those on top of the packages are in `package_examples`.

use std::process::Command;

use crate::support::programs::{rust, set_up, Printed, Run};
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
    an_api_is_never_called_too_often,
    transfers_neither_make_nor_lose_money,
    a_thousand_tasks_of_python_wait_over_one_connection,
    a_thousand_tasks_of_node_wait_over_two_connections,
    the_page_on_fencing_does_what_it_says,
);

/// The lock that both examples use.
const LOCK: &str = "example:lock";

fn rust_counts_exactly(flavor: Flavor) {
    counts_exactly(flavor, rust("raw_counter"), 10, 100);
}

fn python_counts_exactly(flavor: Flavor) {
    if let Some(program) = python() {
        counts_exactly(flavor, program, 10, 100);
    }
}

fn rust_counts_exactly_with_200_connections(flavor: Flavor) {
    counts_exactly(flavor, rust("raw_counter"), 200, 100);
}

fn python_counts_exactly_with_200_connections(flavor: Flavor) {
    if let Some(program) = python() {
        counts_exactly(flavor, program, 200, 20);
    }
}

fn rust_reports_a_lost_lock(flavor: Flavor) {
    reports_a_lost_lock(flavor, rust("raw_counter"));
}

fn python_reports_a_lost_lock(flavor: Flavor) {
    if let Some(program) = python() {
        reports_a_lost_lock(flavor, program);
    }
}

/// What an example in Rust prints that succeeds on this server.
fn printed_by(example: &str, server: &Server) -> Printed {
    let mut program = rust(example);
    program.args(["--url", &server.url()]);
    let output = Run::spawn(program).finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    printed
}

fn a_token_keeps_a_late_write_out(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let printed = printed_by("fencing", &server);
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

fn a_worker_stops_when_it_loses_its_lock(flavor: Flavor) {
    let server = Server::with_module_args(flavor, &["lock.events", "yes"], &[]);
    let printed = printed_by("raw_losing", &server);
    for told in [
        "somebody breaks the lock: 'broken', and the worker stops after ",
        "somebody deletes the key: 'deleted', and the worker stops after ",
        "the hold is as old as it may become: 'expired', and the worker stops after ",
    ] {
        assert!(printed.stdout.contains(told), "{printed}");
    }
}

fn an_api_is_never_called_too_often(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let printed = printed_by("permits", &server);
    let lines: Vec<&str> = printed.stdout.lines().collect();
    assert!(!lines[1].contains(": 0 of"), "nothing is shown: {printed}");
    assert_eq!(lines[2..], ["10 calls at a time at most", "with 10 permits: 0 of 500 calls were refused"]);
    server.assert_healthy();
}

fn transfers_neither_make_nor_lose_money(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let printed = printed_by("transfer", &server);
    let lines: Vec<&str> = printed.stdout.lines().collect();
    assert_eq!(
        lines[1..],
        ["1000 transfers, with both accounts locked", "there are 10000 of 10000"],
        "{printed}"
    );
    let mut a = server.client();
    assert_eq!(
        (a.info("lock", "lock_deadlocks"), a.info("lock", "lock_table_bundles")),
        ("0".to_owned(), "0".to_owned())
    );
    server.assert_healthy();
}

/// Every shell script of the page is followed by what it prints.
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
    crate::support::programs::python("docs/clients/python/counter.py")
}

/// The count in the line that begins so.
fn count(printed: &Printed, line: &str, expected: u64) -> u64 {
    let rest = printed.stdout.lines().find_map(|found| found.strip_prefix(line));
    let rest = rest.unwrap_or_else(|| panic!("no line '{line}': {printed}"));
    let (said, got) = rest.split_once(", got ").unwrap_or_else(|| panic!("no count: {printed}"));
    assert_eq!(said.trim(), format!("expected {expected}"));
    got.parse().unwrap_or_else(|_| panic!("no count: {printed}"))
}

fn a_thousand_tasks_of_python_wait_over_one_connection(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let Some(mut program) = crate::support::programs::python("docs/clients/python/inbox.py") else { return };
    program.args(["--port", &server.port.to_string(), "--tasks", "1000", "--locks", "10"]);
    let printed = tasks_wait(&server, program);
    let counted = printed.split_once("cancelled: expected ").unwrap().1.trim().split_once(", got ");
    assert!(counted.is_some_and(|(expected, got)| expected == got), "{printed}");
    assert_nothing_stays(server);
}

fn a_thousand_tasks_of_node_wait_over_two_connections(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let Some(path) = set_up("node/inbox.mjs") else { return };
    let mut program = Command::new("node");
    program.arg(path).args([&server.url(), "1000", "10"]);
    let printed = tasks_wait(&server, program);
    assert_eq!(printed, "1000 tasks over two connections: expected 1000, got 1000\n");
    assert_nothing_stays(server);
}

/// Runs it, and returns what it has printed. Nearly all of a thousand tasks have waited at once, without a blocked client.
fn tasks_wait(server: &Server, program: Command) -> String {
    let output = Run::spawn(program).finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    let mut a = server.client();
    assert!(a.info("lock", "lock_waiters_max").parse::<usize>().unwrap() > 500, "{printed}");
    assert_eq!(a.info("lock", "lock_notify_not_confirmed"), "0");
    assert!(a.info("lock", "lock_notify_confirmed").parse::<usize>().unwrap() > 500, "{printed}");
    printed.stdout
}

/// As many come as in the textbook's example: half of what can be served.
#[test]
fn waits_for_a_hot_lock_are_calculated() {
    let told = |args: &str| {
        let mut program = rust("hot_lock");
        program.args(args.split(' '));
        let output = Run::spawn(program).finish();
        (output.status.code(), Printed::new(&output))
    };
    let (status, printed) = told("--per-second 50 --hold 9 --round-trip 1");
    assert_eq!(status, Some(0), "{printed}");
    let most = "the lock is busy for 50 % of the time; 100.0 grants a second are the most\n";
    assert!(printed.stdout.starts_with(most), "{printed}");
    // Of 10 ms service, exponential but for the round trip: 50 / s * (2 * 81 + 18 + 1) ms² / (2 * 0.5), and the round trip.
    assert!(printed.stdout.contains("on average 0.5 wait for it\n"), "{printed}");
    let mean = printed.stdout.split_once("mean ").unwrap().1.split_once(" ms").unwrap().0;
    assert!((mean.parse::<f64>().unwrap() - 10.05).abs() < 0.2, "{printed}");
    let (status, printed) = told("--per-second 250 --hold 4 --round-trip 1 --equal");
    assert_eq!(status, Some(1), "{printed}");
    assert!(printed.stdout.contains("50.0 more wait after each second"), "{printed}");
    let page = include_str!("../../docs/scale.md");
    let (_, session) = page.split_once("$ cargo run --release --example hot_lock -- ").unwrap();
    let (typed, rest) = session.split_once('\n').unwrap();
    assert_eq!(told(typed).1.stdout, rest.split_once("```").unwrap().0, "{typed}");
    for (wrong, why) in [
        ("--hold 4", "--per-second must be above 0"),
        ("--per-second 4", "--hold is missing"),
        ("--per-second x --hold 4", "'x' is not a number"),
        ("--per-second 4 --hold -1", "'-1' is not a number from 0 on"),
        ("--per-second 4 --hold 0", "both 0"),
        ("--per-second 4 --hold", "--hold needs a number"),
        ("--often", "unknown option '--often'"),
    ] {
        let (status, printed) = told(wrong);
        assert_eq!(status, Some(2), "{wrong}: {printed}");
        assert!(printed.stderr.contains(why) && printed.stderr.contains("usage:"), "{wrong}: {printed}");
    }
}
