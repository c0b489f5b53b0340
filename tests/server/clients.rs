// SPDX-License-Identifier: MIT

//! Tests the workers of `docs/clients/python`: the one with threads and the one with asyncio take the same arguments, and
//! print the same lines. `tests/scripts/setup-examples.sh` installs the newest redis-py in `target/examples-clients`.

use std::process::Command;
use std::time::Duration;

use crate::support::programs::{python, set_up, Printed, Run};
use crate::support::proxy::Proxy;
use crate::support::{root, until, Client, Flavor, Server};

/// A program of `docs/clients/python`, named after its client library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The program with threads, and the installed redis-py. Debian 12 has version 4.3.
    Python,
    /// The program with threads, and the redis-py that `docs/clients/python/requirements.txt` names.
    PythonNew,
    /// The program with asyncio.
    Asyncio,
    AsyncioNew,
}

/// Defines the tests of a program. With `on every`, the tests that depend on the server run on every server.
macro_rules! tests_of {
    ($($client:ident: $kind:ident on $servers:ident;)*) => { $(
        mod $client {
            use super::Kind;

            tests_of!(@$servers two_exclude_each_other);
            tests_of!(@$servers a_lost_lock_is_reported);
            tests_of!(@$servers a_timed_out_wait_is_repeated);
            tests_of!(@$servers a_lost_reply_counts_once);
            // Proves that the other tests would detect an overlap.
            tests_of!(@one different_locks_overlap);
            tests_of!(@one the_newest_token_is_stored);
            tests_of!(@one many_tasks_take_turns);
            tests_of!(@one a_holder_renews_while_many_wait);
            tests_of!(@one a_frozen_network_loses_the_lock);
            tests_of!(@two a_cancelled_wait_leaves_nothing);
            tests_of!(@one an_undelivered_grant_is_cancelled);

            tests_of!(@one an_interrupted_program_leaves_nothing);

            const KIND: Kind = Kind::$kind;
        }
    )* };
    (@every $name:ident) => {
        $crate::on_every_server!($name);
        fn $name(flavor: $crate::support::Flavor) {
            super::$name(KIND, flavor);
        }
    };
    // Servers end waits in two different ways. The test runs on one server of each kind.
    (@two $name:ident) => { tests_of!(@on $name redis_7: Redis7, valkey_8: Valkey8); };
    (@one $name:ident) => { tests_of!(@on $name redis_7: Redis7); };
    (@on $name:ident $($server:ident: $flavor:ident),*) => {
        mod $name {
            $(
                #[test]
                fn $server() {
                    let flavor = $crate::support::Flavor::$flavor;
                    if flavor.is_installed() {
                        super::super::$name(super::KIND, flavor);
                    }
                }
            )*
        }
    };
}

tests_of! {
    python: Python on every;
    python_new: PythonNew on one;
    asyncio: Asyncio on one;
    asyncio_new: AsyncioNew on one;
}

const LOCK: &str = "example:lock";
const OTHER_LOCK: &str = "example:other-lock";
/// The value that the programs read and write under the lock.
const RESOURCE_KEY: &str = "example:resource";
/// The fencing token of the last writer.
const TOKEN_KEY: &str = "example:token";
/// Number of programs inside the critical section.
const INSIDE_KEY: &str = "example:inside";

/// A time in milliseconds, longer than any test.
const LONG: u64 = 600_000;

/// The arguments of a program that follow the name of the lock.
#[derive(Clone)]
struct Plan {
    /// How often each task works under the lock.
    rounds: u64,
    lease: u64,
    work: u64,
    wait: u64,
    tasks: u64,
    /// Each acquire is cancelled at a random moment within this time, in ms; 0 for never.
    cancel: u64,
}

/// One round of one task, with time limits longer than the test.
const DEFAULT_PLAN: Plan = Plan { rounds: 1, lease: LONG, work: 1, wait: LONG, tasks: 1, cancel: 0 };

fn two_exclude_each_other(kind: Kind, flavor: Flavor) {
    // The first program works longer than its lease, so it must renew the lease to exclude the second.
    let first = Plan { lease: 3_000, work: 4_000, ..DEFAULT_PLAN };
    let second = Plan { rounds: 5, lease: 20_000, work: 20, ..DEFAULT_PLAN };
    let server = Server::with_module(flavor, &[]);
    let Some(printed) = run_both(kind, &server, (LOCK, &first), (LOCK, &second)) else { return };
    for printed in &printed {
        assert!(!printed.stderr.contains("OVERLAP"), "{printed}");
    }
    let mut client = server.client();
    assert_eq!(client.call(&format!("GET {RESOURCE_KEY}")), "6", "{}{}", printed[0], printed[1]);
    // The programs contended: each was granted the lock after a wait in the queue.
    assert!(client.info("lock", "lock_waiters_granted").parse::<u64>().unwrap() >= 2);
    assert_nothing_stays(server, client);
}

fn different_locks_overlap(kind: Kind, flavor: Flavor) {
    let plan = Plan { lease: 20_000, work: 3_000, ..DEFAULT_PLAN };
    let server = Server::with_module(flavor, &[]);
    let Some(printed) = run_both(kind, &server, (LOCK, &plan), (OTHER_LOCK, &plan)) else { return };
    let overlaps = printed.iter().filter(|printed| printed.stderr.contains("OVERLAP")).count();
    assert_eq!(overlaps, 1, "{}{}", printed[0], printed[1]);
    let mut client = server.client();
    assert_eq!(client.call(&format!("GET {RESOURCE_KEY}")), "1", "{}{}", printed[0], printed[1]);
    assert_nothing_stays(server, client);
}

/// Starts a program twice while both locks are held, releases the locks once both wait, and waits for the end of both.
fn run_both(
    kind: Kind,
    server: &Server,
    first: (&str, &Plan),
    second: (&str, &Plan),
) -> Option<[Printed; 2]> {
    let mut holder = server.client();
    for lock in [LOCK, OTHER_LOCK] {
        assert_eq!(holder.call(&format!("LOCK.ACQUIRE {lock} test PX {LONG}")), "1");
    }
    let mut runs = [start(kind, server.port, first)?, start(kind, server.port, second)?];
    runs[1].until("both wait", || holder.info("lock", "lock_waiters") == "2");
    for lock in [LOCK, OTHER_LOCK] {
        assert_eq!(holder.call(&format!("LOCK.RELEASE {lock} test")), "0");
    }
    Some(runs.map(|run| {
        let output = run.finish();
        let printed = Printed::new(&output);
        assert!(output.status.success(), "{printed}");
        printed
    }))
}

/// Breaks the lock after the lease has been renewed at least once.
fn a_lost_lock_is_reported(kind: Kind, flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let plan = Plan { lease: 4_000, work: LONG, ..DEFAULT_PLAN };
    let Some(mut run) = start(kind, server.port, (LOCK, &plan)) else { return };
    let mut client = server.client();
    until_renewed(&mut run, &mut client);
    assert_eq!(client.call(&format!("LOCK.BREAK {LOCK}")), "1");

    let output = run.finish();
    let printed = Printed::new(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.stderr.contains("must not be trusted") && printed.stderr.contains("NOTOWNER"),
        "{printed}"
    );
    assert_eq!(printed.stdout, "");
    assert_eq!(client.call(&format!("GET {RESOURCE_KEY}")), "nil");
    assert_nothing_stays(server, client);
}

fn a_timed_out_wait_is_repeated(kind: Kind, flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut holder = server.client();
    assert_eq!(holder.call(&format!("LOCK.ACQUIRE {LOCK} test PX {LONG}")), "1");
    let plan = Plan { lease: 20_000, wait: 100, ..DEFAULT_PLAN };
    let Some(mut run) = start(kind, server.port, (LOCK, &plan)) else { return };
    run.until("a wait has ended", || holder.info("lock", "lock_waiters_timed_out") != "0");
    assert_eq!(holder.call(&format!("GET {INSIDE_KEY}")), "nil");
    assert_eq!(holder.call(&format!("LOCK.RELEASE {LOCK} test")), "0");

    let output = run.finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    assert!(printed.stdout.starts_with("not granted within 100 ms, trying again\n"), "{printed}");
    assert!(printed.stdout.ends_with("round 1 of 1 is done\n"), "{printed}");
    assert_nothing_stays(server, holder);
}

/// The connection breaks after the grant and before the reply. The program cannot know about the grant, so it cancels the
/// call.
fn a_lost_reply_counts_once(kind: Kind, flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let proxy = Proxy::loses_the_reply_to(server.port, "LOCK.ACQUIRE");
    let Some(run) = start(kind, proxy.port, (LOCK, &DEFAULT_PLAN)) else { return };
    let output = run.finish();
    let printed = Printed::new(&output);
    assert!(proxy.has_lost_a_reply(), "{printed}");
    let mut client = server.client();
    assert!(!output.status.success(), "{printed}");
    assert_eq!(printed.stdout, "");
    assert_eq!(calls_of_acquire(&mut client), 1, "{printed}");
    assert_nothing_stays(server, client);
}

/// The stored token is the last one granted, and higher than a token granted before the program started.
fn the_newest_token_is_stored(kind: Kind, flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut client = server.client();
    let counter = format!("GET redisson_lock_token:{{{LOCK}}}");
    assert_eq!(client.call(&format!("LOCK.ACQUIRE {LOCK} test FENCE")).matches("token").count(), 1);
    let before = client.number(&counter);
    assert_eq!(client.call(&format!("LOCK.RELEASE {LOCK} test")), "0");
    let Some(run) = start(kind, server.port, (LOCK, &Plan { rounds: 2, ..DEFAULT_PLAN })) else { return };
    let output = run.finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    assert!(client.number(&format!("GET {TOKEN_KEY}")) > before, "{printed}");
    assert_eq!(client.call(&format!("GET {TOKEN_KEY}")), client.call(&counter), "{printed}");
    assert_nothing_stays(server, client);
}

/// More tasks than the default size of any pool.
const MANY: u64 = 200;

fn many_tasks_take_turns(kind: Kind, flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let plan = Plan { lease: 3_000, tasks: MANY, ..DEFAULT_PLAN };
    let Some((run, mut client)) = start_many(kind, &server, &plan) else { return };
    let output = run.finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    assert_eq!(printed.stderr, "");
    assert_eq!(client.number(&format!("GET {RESOURCE_KEY}")), i64::try_from(MANY).unwrap(), "{printed}");
    assert_nothing_stays(server, client);
}

/// Each task works longer than its lease, while all waiters use the same client.
fn a_holder_renews_while_many_wait(kind: Kind, flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let plan = Plan { lease: 3_000, work: 4_000, tasks: MANY, ..DEFAULT_PLAN };
    let Some((mut run, mut client)) = start_many(kind, &server, &plan) else { return };
    for done in ["1", "2", "3"] {
        run.until("another round is done", || client.call(&format!("GET {RESOURCE_KEY}")) == done);
    }
    // The test does not wait for all tasks, which would take a quarter of an hour.
    let printed = Printed::new(&run.kill());
    assert_eq!(printed.stderr, "");
    until("there are no waiters", || client.info("lock", "lock_waiters") == "0");
    let releases = client.info("commandstats", "cmdstat_lock.release");
    assert!(releases.contains("failed_calls=0"), "{releases}; {printed}");
}

/// Starts a program with many tasks, waits until all tasks wait for the lock, and releases it.
fn start_many(kind: Kind, server: &Server, plan: &Plan) -> Option<(Run, Client)> {
    let mut holder = server.client();
    assert_eq!(holder.call(&format!("LOCK.ACQUIRE {LOCK} test PX {LONG}")), "1");
    let mut run = start(kind, server.port, (LOCK, plan))?;
    run.until("all wait", || holder.info("lock", "lock_waiters") == plan.tasks.to_string());
    assert_eq!(holder.call(&format!("LOCK.RELEASE {LOCK} test")), "0");
    Some((run, holder))
}

/// The network stops silently after at least one renewal. The lease expires and another owner gets the lock. The program
/// must notice by its local clock.
fn a_frozen_network_loses_the_lock(kind: Kind, flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let proxy = Proxy::freezable(server.port);
    let plan = Plan { lease: 3_000, work: LONG, ..DEFAULT_PLAN };
    let Some(mut run) = start(kind, proxy.port, (LOCK, &plan)) else { return };
    let mut client = server.client();
    until_renewed(&mut run, &mut client);
    proxy.freeze();
    assert_eq!(client.call(&format!("LOCK.ACQUIRE {LOCK} test PX {LONG} BLOCK 15000")), "1");

    // The program's remaining calls, such as the release, time out after some seconds.
    let output = run.finish_within(Duration::from_secs(30));
    let printed = Printed::new(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.stderr.contains("must not be trusted"), "{printed}");
    assert_eq!(printed.stdout, "");
    assert_eq!(client.call(&format!("GET {RESOURCE_KEY}")), "nil");

    // The delayed calls arrive now and do not affect the lock's new owner.
    proxy.thaw();
    until("the program's connections are closed", || client.info("clients", "connected_clients") == "1");
    assert_eq!(client.call(&format!("LOCK.RELEASE {LOCK} test")), "0");
    client.call(&format!("DEL {INSIDE_KEY}"));
    assert_nothing_stays(server, client);
}

/// Waits until the program works and has renewed its lease.
fn until_renewed(run: &mut Run, client: &mut Client) {
    run.until("the program works", || client.call(&format!("GET {INSIDE_KEY}")) == "1");
    let mut before = i64::MAX;
    until("the lease is renewed", || {
        let lease = client.number(&format!("PTTL {LOCK}"));
        std::mem::replace(&mut before, lease) < lease
    });
}

/// Cancels calls before, during and after their grant, so that some rounds are completed and some are cancelled. The right delay
/// depends on the speed of the program on this machine. A leaked hold would stay for a long time.
fn a_cancelled_wait_leaves_nothing(kind: Kind, flavor: Flavor) {
    for cancel in [30, 100, 300, 1_000, 3_000] {
        let server = Server::with_module(flavor, &[]);
        let plan = Plan { rounds: 3, tasks: 100, cancel, ..DEFAULT_PLAN };
        let Some(run) = start(kind, server.port, (LOCK, &plan)) else { return };
        let output = run.finish();
        let printed = Printed::new(&output);
        assert!(output.status.success(), "{printed}");
        assert_eq!(printed.stderr, "");
        let [done, cancelled] = ["is done", "cancelled"].map(|what| printed.stdout.matches(what).count());
        assert_eq!(done + cancelled, 300, "{printed}");
        let mut client = server.client();
        let resource = client.call(&format!("GET {RESOURCE_KEY}")).replace("nil", "0");
        assert_eq!(resource, done.to_string(), "{printed}");
        assert_nothing_stays(server, client);
        if done >= 10 && cancelled >= 10 {
            return;
        }
    }
    panic!("calls are always cancelled, or never");
}

/// The lock is granted, but the reply is withheld from the program until its call is cancelled.
fn an_undelivered_grant_is_cancelled(kind: Kind, flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let proxy = Proxy::withholds_the_reply_to(server.port, "LOCK.ACQUIRE");
    // Threads that cannot be interrupted end at their time-out.
    let plan = Plan { wait: 2_000, cancel: 500, ..DEFAULT_PLAN };
    let Some(run) = start(kind, proxy.port, (LOCK, &plan)) else { return };
    let output = run.finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    assert_eq!((printed.stdout.as_str(), printed.stderr.as_str()), ("cancelled\n", ""));
    let client = server.client();
    assert_nothing_stays(server, client);
}

/// Sends Ctrl-C to the holder and to the waiter, which raises an exception in Python.
fn an_interrupted_program_leaves_nothing(kind: Kind, flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let plan = Plan { work: LONG, ..DEFAULT_PLAN };
    let Some(mut run) = start(kind, server.port, (LOCK, &plan)) else { return };
    let mut client = server.client();
    run.until("the program works", || client.call(&format!("GET {INSIDE_KEY}")) == "1");
    let Some(mut second) = start(kind, server.port, (LOCK, &plan)) else { return };
    second.until("the second waits", || client.info("lock", "lock_waiters") == "1");
    for run in [second, run] {
        run.interrupt();
        let output = run.finish();
        assert!(!output.status.success() && output.stdout.is_empty(), "{}", Printed::new(&output));
    }
    assert_eq!(client.call(&format!("GET {RESOURCE_KEY}")), "nil");
    assert_nothing_stays(server, client);
}

fn calls_of_acquire(client: &mut Client) -> u64 {
    let stats = client.info("commandstats", "cmdstat_lock.acquire");
    let calls = stats.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
    calls.unwrap_or_else(|| panic!("no calls: {stats}")).parse().unwrap()
}

/// Asserts that no key, waiter or connection is left; `client` is the last connected client.
fn assert_nothing_stays(mut server: Server, mut client: Client) {
    until("the program's connections are closed", || client.info("clients", "connected_clients") == "1");
    assert_eq!(client.call(&format!("EXISTS {LOCK} {OTHER_LOCK}")), "0");
    assert!(matches!(client.call(&format!("GET {INSIDE_KEY}")).as_str(), "0" | "nil"));
    assert_eq!(client.info("lock", "lock_waiters"), "0");
    assert_eq!(client.info("lock", "lock_internal_errors"), "0");
    server.assert_healthy();
}

/// Starts a program. Returns `None` if the program is not available.
fn start(kind: Kind, port: u16, (lock, plan): (&str, &Plan)) -> Option<Run> {
    let mut program = program(kind)?;
    program.arg(format!("redis://127.0.0.1:{port}")).arg(lock);
    let Plan { rounds, lease, work, wait, tasks, cancel } = *plan;
    program.args([rounds, lease, work, wait, tasks, cancel].map(|number| number.to_string()));
    Some(Run::spawn(program))
}

fn program(kind: Kind) -> Option<Command> {
    match kind {
        Kind::Python => python(PYTHON_WORKER),
        Kind::Asyncio => python(ASYNCIO_WORKER),
        Kind::PythonNew => python_new(PYTHON_WORKER),
        Kind::AsyncioNew => python_new(ASYNCIO_WORKER),
    }
}

const PYTHON_WORKER: &str = "docs/clients/python/worker.py";
const ASYNCIO_WORKER: &str = "docs/clients/python/worker_async.py";

fn python_new(path: &str) -> Option<Command> {
    let mut command = Command::new(set_up("python/venv/bin/python3")?);
    command.arg(root().join(path));
    Some(command)
}
