// SPDX-License-Identifier: MIT

//! The programs of `examples/` that use the packages of `clients/`, run as a reader would run them.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::driver::Package;
use crate::support::programs::{rust, Printed, Run};
use crate::support::{until, Client, Flavor, Server};

crate::on_every_server!(
    all_languages_count_together,
    a_lost_lock_stops_the_program,
    a_thousand_tasks_count_exactly,
    permits_bound_concurrent_calls,
    transfers_keep_the_total,
    a_late_write_is_refused,
    work_stops_when_its_lock_is_lost,
);

const LOCK: &str = "example:lock";
const COUNTER: &str = "example:counter";
const ROUNDS: usize = 100;

/// The counter programs that this machine can run, each with its package.
fn counters() -> Vec<(Package, Command)> {
    [Package::Python, Package::NodeIoredis, Package::Go, Package::JavaLettuce, Package::Rust]
        .into_iter()
        .filter(|package| package.is_built())
        .map(|package| (package, package.example("counter")))
        .collect()
}

/// Without a lock that excludes the other programs, increments would get lost.
fn all_languages_count_together(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut holder = server.client();
    assert_eq!(holder.call(&format!("LOCK.ACQUIRE {LOCK} test")), "1");
    let mut runs = Vec::new();
    for (package, mut program) in counters() {
        program.args([server.url(), ROUNDS.to_string()]);
        runs.push(Run::spawn(program));
        let waiting = runs.len().to_string();
        let run = runs.last_mut().unwrap();
        run.until(&format!("{package:?} waits"), || holder.info("lock", "lock_waiters") == waiting);
    }
    let counters = runs.len();
    assert!(counters > 0);
    assert_eq!(holder.call(&format!("LOCK.RELEASE {LOCK} test")), "0");
    for run in runs {
        let output = run.finish();
        assert!(output.status.success(), "{}", Printed::new(&output));
    }
    assert_eq!(holder.call(&format!("GET {COUNTER}")), (counters * ROUNDS).to_string());
    assert_nothing_stays(server, holder);
}

fn a_lost_lock_stops_the_program(flavor: Flavor) {
    for (package, mut program) in counters() {
        let server = Server::with_module(flavor, &[]);
        program.args([server.url(), "1000000".to_owned()]);
        let mut run = Run::spawn(program);
        let mut client = server.client();
        run.until("the program counts", || client.call(&format!("GET {COUNTER}")) != "nil");
        // A break may hit a grant that the program has not confirmed yet, so repeat it.
        until(&format!("{package:?} stops"), || {
            client.call(&format!("LOCK.BREAK {LOCK}"));
            run.has_ended()
        });
        let output = run.finish();
        let printed = Printed::new(&output);
        assert!(!output.status.success(), "{package:?}: {printed}");
        assert!(printed.stderr.to_lowercase().contains("lost"), "{package:?}: {printed}");
        assert_nothing_stays(server, client);
    }
}

fn a_thousand_tasks_count_exactly(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    if printed_by_python("tasks", &[&server.url(), "1000"]).is_none() {
        return;
    }
    let mut client = server.client();
    for number in 0..10 {
        assert_eq!(client.call(&format!("GET {COUNTER}:{number}")), "100");
    }
    assert!(client.info("lock", "lock_waiters_max").parse::<usize>().unwrap() > 500);
    assert_nothing_stays(server, client);
}

fn permits_bound_concurrent_calls(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let Some(printed) = printed_by_python("permits", &[&server.url()]) else { return };
    let most: usize = printed.stdout.strip_suffix(" calls at a time at most\n").unwrap().parse().unwrap();
    assert!((2..=10).contains(&most), "{printed}");
    let client = server.client();
    assert_nothing_stays(server, client);
}

fn transfers_keep_the_total(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let Some(printed) = printed_by_python("transfer", &[&server.url()]) else { return };
    assert_eq!(printed.stdout, "there are 10000 of 10000\n");
    let mut client = server.client();
    assert_ne!(client.info("lock", "lock_waiters_max"), "0");
    assert_nothing_stays(server, client);
}

/// Alice waits at her prompt until her lease has expired and Bob has deposited.
fn a_late_write_is_refused(flavor: Flavor) {
    if !Package::Python.is_built() {
        return;
    }
    let server = Server::with_module(flavor, &[]);
    let mut client = server.client();
    client.call("SET example:balance 100");
    let start = |who: &str| {
        let mut program = Package::Python.example("fencing");
        program
            .args([&server.url(), who])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        program.spawn().unwrap()
    };
    let alice = start("alice");
    until("alice has the lock", || client.call(&format!("LOCK.INFO {LOCK}")) != "nil");
    // On a slow machine, bob starts after the lease of three seconds.
    client.call(&format!("PEXPIRE {LOCK} 60000"));
    let bob = start("bob");
    until("bob waits", || client.info("lock", "lock_waiters") == "1");
    client.call(&format!("PEXPIRE {LOCK} 100"));
    until("bob has the lock", || client.info("lock", "lock_waiters") == "0");
    for (mut who, says, balance) in
        [(bob, Ok("deposited\n"), "110"), (alice, Err("refused: the lock was lost\n"), "110")]
    {
        who.stdin.take().unwrap().write_all(b"\n").unwrap();
        let output = who.wait_with_output().unwrap();
        let printed = Printed::new(&output);
        assert_eq!(output.status.success(), says.is_ok(), "{printed}");
        match says {
            Ok(says) => assert!(printed.stdout.ends_with(says), "{printed}"),
            Err(says) => assert_eq!(printed.stderr, says, "{printed}"),
        }
        assert_eq!(client.call("GET example:balance"), balance);
    }
    assert_nothing_stays(server, client);
}

fn work_stops_when_its_lock_is_lost(flavor: Flavor) {
    for how in ["LOCK.BREAK", "DEL"] {
        let server = Server::with_module(flavor, &[]);
        let mut program = rust("losing");
        program.arg(server.url());
        let mut run = Run::spawn(program);
        let mut client = server.client();
        // A program that loses the lock before it knows of its grant acquires it again.
        until("the program has lost the lock", || {
            client.call(&format!("{how} {LOCK}"));
            run.has_ended()
        });
        let output = run.finish();
        let printed = Printed::new(&output);
        assert!(output.status.success() && printed.stdout.starts_with("lost after "), "{how}: {printed}");
        assert_nothing_stays(server, client);
    }
}

/// Output of a Python example, which must succeed. `None` if the example is not available.
fn printed_by_python(example: &str, args: &[&str]) -> Option<Printed> {
    Package::Python.is_built().then(|| {
        let mut program = Package::Python.example(example);
        program.args(args);
        let output = Run::spawn(program).finish();
        let printed = Printed::new(&output);
        assert!(output.status.success(), "{printed}");
        printed
    })
}

/// Asserts that no key, waiter or connection is left; `client` is the last connected client.
fn assert_nothing_stays(mut server: Server, mut client: Client) {
    until("the programs' connections are closed", || client.info("clients", "connected_clients") == "1");
    assert_eq!(client.call(&format!("EXISTS {LOCK}")), "0");
    for what in ["lock_waiters", "lock_table_bundles", "lock_internal_errors"] {
        assert_eq!(client.info("lock", what), "0", "{what}");
    }
    server.assert_healthy();
}
