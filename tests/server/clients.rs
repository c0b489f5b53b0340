//! The programs of `examples/clients/`: one for each client, with the same arguments and the same words, and so with
//! the same tests. Those that must be built are put into `target/examples-clients/` by `tests/setup-examples.sh`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::programs::{python, rust, Printed, Run};
use crate::support::proxy::Proxy;
use crate::support::{until, Client, Flavor, Server};

/// The client that a program is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Python,
    Node,
    Go,
    Lettuce,
    Jedis,
    Rust,
}

macro_rules! tests_of {
    ($($client:ident: $kind:ident),* $(,)?) => { $(
        mod $client {
            use super::Kind;
            use $crate::support::Flavor;

            $crate::on_every_server!(
                two_exclude_each_other,
                a_lost_lock_is_told,
                a_wait_in_vain_is_begun_anew,
                a_lost_reply_is_no_second_hold,
            );

            fn two_exclude_each_other(flavor: Flavor) {
                super::two_exclude_each_other(Kind::$kind, flavor);
            }

            fn a_lost_lock_is_told(flavor: Flavor) {
                super::a_lost_lock_is_told(Kind::$kind, flavor);
            }

            fn a_wait_in_vain_is_begun_anew(flavor: Flavor) {
                super::a_wait_in_vain_is_begun_anew(Kind::$kind, flavor);
            }

            fn a_lost_reply_is_no_second_hold(flavor: Flavor) {
                super::a_lost_reply_is_no_second_hold(Kind::$kind, flavor);
            }

            /// What the others rely on: programs that do not exclude each other are found out.
            #[test]
            fn two_with_different_locks_overlap() {
                if Flavor::Redis7.is_installed() {
                    super::two_with_different_locks_overlap(Kind::$kind, Flavor::Redis7);
                }
            }
        }
    )* };
}

tests_of!(python: Python, node: Node, go: Go, lettuce: Lettuce, jedis: Jedis, rust: Rust);

const LOCK: &str = "example:lock";
const OTHER_LOCK: &str = "example:other-lock";
/// What the programs read and write under the lock.
const RESOURCE: &str = "example:resource";
/// How many are at it.
const INSIDE: &str = "example:inside";

/// A wait that is longer than any test.
const LONG: u64 = 600_000;

/// The arguments of a program after its lock: rounds, and in milliseconds lease, work and wait.
struct Plan {
    rounds: u64,
    lease: u64,
    work: u64,
    wait: u64,
}

fn two_exclude_each_other(kind: Kind, flavor: Flavor) {
    // The work of the first is longer than its lease, which must be renewed so that the second stays out.
    let first = Plan { rounds: 1, lease: 3_000, work: 4_000, wait: LONG };
    let second = Plan { rounds: 5, lease: 20_000, work: 20, wait: LONG };
    let server = Server::with_module(flavor, &[]);
    let Some(printed) = run_both(kind, &server, (LOCK, &first), (LOCK, &second)) else { return };
    for printed in &printed {
        assert!(!printed.stderr.contains("OVERLAP"), "{printed}");
    }
    let mut client = server.client();
    assert_eq!(client.call(&format!("GET {RESOURCE}")), "6", "{}{}", printed[0], printed[1]);
    // They were in each other's way: each got the lock out of the queue.
    assert!(client.info("lock", "lock_waiters_granted").parse::<u64>().unwrap() >= 2);
    assert_nothing_stays(server, client);
}

fn two_with_different_locks_overlap(kind: Kind, flavor: Flavor) {
    let plan = Plan { rounds: 1, lease: 20_000, work: 3_000, wait: LONG };
    let server = Server::with_module(flavor, &[]);
    let Some(printed) = run_both(kind, &server, (LOCK, &plan), (OTHER_LOCK, &plan)) else { return };
    let told = printed.iter().filter(|printed| printed.stderr.contains("OVERLAP")).count();
    assert_eq!(told, 1, "{}{}", printed[0], printed[1]);
    let mut client = server.client();
    assert_eq!(client.call(&format!("GET {RESOURCE}")), "1", "{}{}", printed[0], printed[1]);
    assert_nothing_stays(server, client);
}

/// Runs a program twice, from a moment at which both wait for their locks, and to the end of both.
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
    let runs = [start(kind, server.port, first)?, start(kind, server.port, second)?];
    until("both wait", || holder.info("lock", "lock_waiters") == "2");
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

/// A lock that is broken under the work, when the lease has been renewed at least once.
fn a_lost_lock_is_told(kind: Kind, flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let plan = Plan { rounds: 1, lease: 4_000, work: LONG, wait: LONG };
    let Some(run) = start(kind, server.port, (LOCK, &plan)) else { return };
    let mut client = server.client();
    until("it works", || client.call(&format!("GET {INSIDE}")) == "1");
    let mut before = i64::MAX;
    until("the lease is renewed", || {
        let lease = client.number(&format!("PTTL {LOCK}"));
        std::mem::replace(&mut before, lease) < lease
    });
    assert_eq!(client.call(&format!("LOCK.BREAK {LOCK}")), "1");

    let output = run.finish();
    let printed = Printed::new(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.stderr.contains("must not be trusted") && printed.stderr.contains("NOTOWNER"),
        "{printed}"
    );
    assert_eq!(printed.stdout, "");
    assert_eq!(client.call(&format!("GET {RESOURCE}")), "nil");
    assert_nothing_stays(server, client);
}

fn a_wait_in_vain_is_begun_anew(kind: Kind, flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut holder = server.client();
    assert_eq!(holder.call(&format!("LOCK.ACQUIRE {LOCK} test PX {LONG}")), "1");
    let plan = Plan { rounds: 1, lease: 20_000, work: 1, wait: 100 };
    let Some(run) = start(kind, server.port, (LOCK, &plan)) else { return };
    until("a wait has ended", || holder.info("lock", "lock_waiters_timed_out") != "0");
    assert_eq!(holder.call(&format!("GET {INSIDE}")), "nil");
    assert_eq!(holder.call(&format!("LOCK.RELEASE {LOCK} test")), "0");

    let output = run.finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    assert!(printed.stdout.starts_with("not granted within 100 ms, trying again\n"), "{printed}");
    assert!(printed.stdout.ends_with("round 1 of 1 is done\n"), "{printed}");
    assert_nothing_stays(server, holder);
}

/// The connection breaks when the lock is granted, but nobody has been told. Some clients call again by themselves:
/// that must not count twice. Others give up, and the lease ends the hold.
fn a_lost_reply_is_no_second_hold(kind: Kind, flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let proxy = Proxy::loses_the_reply_to(server.port, "LOCK.ACQUIRE");
    let plan = Plan { rounds: 1, lease: LONG, work: 1, wait: LONG };
    let Some(run) = start(kind, proxy.port, (LOCK, &plan)) else { return };
    let output = run.finish();
    let printed = Printed::new(&output);
    assert!(proxy.has_lost_a_reply(), "{printed}");
    let mut client = server.client();
    if matches!(kind, Kind::Node | Kind::Go | Kind::Lettuce) {
        assert!(output.status.success(), "{printed}");
        assert!(calls_of_acquire(&mut client) >= 2, "{printed}");
    } else {
        assert!(!output.status.success(), "{printed}");
        assert_eq!(printed.stdout, "");
        assert_eq!(calls_of_acquire(&mut client), 1, "{printed}");
        assert_eq!(client.call(&format!("HVALS {LOCK}")), "[1]");
        assert_eq!(client.call(&format!("LOCK.BREAK {LOCK}")), "1");
    }
    assert_nothing_stays(server, client);
}

fn calls_of_acquire(client: &mut Client) -> u64 {
    let stats = client.info("commandstats", "cmdstat_lock.acquire");
    let calls = stats.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
    calls.unwrap_or_else(|| panic!("no calls: {stats}")).parse().unwrap()
}

/// With the only client that is still connected.
fn assert_nothing_stays(mut server: Server, mut client: Client) {
    until("the program's connections are closed", || client.info("clients", "connected_clients") == "1");
    assert_eq!(client.call(&format!("EXISTS {LOCK} {OTHER_LOCK}")), "0");
    assert!(matches!(client.call(&format!("GET {INSIDE}")).as_str(), "0" | "nil"));
    assert_eq!(client.info("lock", "lock_waiters"), "0");
    assert_eq!(client.info("lock", "lock_internal_errors"), "0");
    server.assert_healthy();
}

/// Starts a program; nothing if it cannot be had here.
fn start(kind: Kind, port: u16, (lock, plan): (&str, &Plan)) -> Option<Run> {
    let mut program = program(kind)?;
    program.arg(format!("redis://127.0.0.1:{port}")).arg(lock);
    program.args([plan.rounds, plan.lease, plan.work, plan.wait].map(|number| number.to_string()));
    Some(Run::spawn(program))
}

fn program(kind: Kind) -> Option<Command> {
    match kind {
        Kind::Python => python("examples/clients/python/worker.py"),
        Kind::Rust => Some(rust("worker")),
        Kind::Node => built("node/worker.mjs").map(|program| {
            let mut command = Command::new("node");
            command.arg(program);
            command
        }),
        Kind::Go => built("go/worker").map(Command::new),
        Kind::Lettuce => java("java-lettuce"),
        Kind::Jedis => java("java-jedis"),
    }
}

fn java(name: &str) -> Option<Command> {
    let target = built(&format!("{name}/target/classes/Worker.class"))?;
    let target = Path::new(&target).ancestors().nth(2)?.to_owned();
    let mut command = Command::new("java");
    // It starts faster so, and many run at once.
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-cp"]);
    command.arg(format!("{0}/classes:{0}/dependency/*", target.display())).arg("Worker");
    Some(command)
}

/// A file that `tests/setup-examples.sh` makes; nothing, with a word about it, if it has not. With
/// `REQUIRE_ALL_SERVERS` set, that is a failure.
fn built(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/examples-clients").join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("REQUIRE_ALL_SERVERS").is_none(), "{name} is not built");
    eprintln!("SKIPPED: the example {name} is not built, see tests/setup-examples.sh");
    None
}
