//! The programs in `examples/`, as a reader would run them: each in a process of its own, on a real server.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::{until, Flavor, Server};

crate::on_every_server!(
    rust_counts_exactly,
    python_counts_exactly,
    rust_counts_exactly_with_200_connections,
    python_counts_exactly_with_200_connections,
    rust_reports_a_lost_lock,
    python_reports_a_lost_lock,
    a_token_keeps_a_late_write_out,
);

/// The slowest run takes a few seconds on an idle machine.
const RUN_PATIENCE: Duration = Duration::from_secs(120);

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
    program.args(["--url", &format!("redis://127.0.0.1:{}", server.port)]);
    let output = Run::spawn(program).finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    let (without, with) = printed.stdout.split_once("with fencing tokens:").unwrap();
    assert!(without.contains("alice wakes up and deposits 10\n"), "{printed}");
    assert!(without.contains("the balance is 110: bob's 50 are lost"), "{printed}");
    assert!(with.contains("but the store refuses her token"), "{printed}");
    assert!(with.contains("the balance is 150: alice knows"), "{printed}");
    assert_nothing_stays(server);
}

/// Without the lock increments get lost: all workers start at once, and each increment takes two round trips, so
/// to lose none the workers would have to run one after the other. With the lock none is lost.
fn counts_exactly(flavor: Flavor, program: Command, workers: u64, increments: u64) {
    let server = Server::with_module(flavor, &[]);
    let run = Run::start(program, &server, workers, increments);
    let output = run.finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    let expected = workers * increments;
    let without = printed.count("without the lock:", expected);
    assert!(0 < without && without < expected, "the race without the lock did not show: {printed}");
    assert_eq!(printed.count("with the lock:", expected), expected);
    assert_nothing_stays(server);
}

/// A lock that is broken while the example works under it: the example says so, and fails.
fn reports_a_lost_lock(flavor: Flavor, program: Command) {
    let server = Server::with_module(flavor, &[]);
    let run = Run::start(program, &server, 10, 1000);
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
    assert_eq!(client.info("redis-lock", "redis-lock_waiters"), "0");
    assert_eq!(client.info("redis-lock", "redis-lock_internal_errors"), "0");
    server.assert_healthy();
}

/// An example that runs; killed if its test fails.
struct Run(Option<std::process::Child>);

impl Run {
    fn start(mut program: Command, server: &Server, workers: u64, increments: u64) -> Run {
        program.args(["--url", &format!("redis://127.0.0.1:{}", server.port)]).args([
            "--workers",
            &workers.to_string(),
            "--increments",
            &increments.to_string(),
        ]);
        Run::spawn(program)
    }

    fn spawn(mut program: Command) -> Run {
        program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Run(Some(program.spawn().unwrap_or_else(|error| panic!("{program:?} cannot be started: {error}"))))
    }

    /// Waits for its end. What it prints fits into a pipe's buffer, so it need not be read before.
    fn finish(mut self) -> Output {
        let deadline = Instant::now() + RUN_PATIENCE;
        while self.0.as_mut().unwrap().try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the example does not end");
            sleep(Duration::from_millis(5));
        }
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What an example has printed.
struct Printed {
    stdout: String,
    stderr: String,
}

impl Printed {
    fn new(output: &Output) -> Printed {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Printed { stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// The count in the line that begins so.
    fn count(&self, line: &str, expected: u64) -> u64 {
        let rest = self.stdout.lines().find_map(|found| found.strip_prefix(line));
        let rest = rest.unwrap_or_else(|| panic!("no line '{line}': {self}"));
        let (said, got) = rest.split_once(", got ").unwrap_or_else(|| panic!("no count: {self}"));
        assert_eq!(said.trim(), format!("expected {expected}"));
        got.parse().unwrap_or_else(|_| panic!("no count: {self}"))
    }
}

impl std::fmt::Display for Printed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the example printed\n{}{}", self.stdout, self.stderr)
    }
}

/// An example in Rust. `cargo test` builds them, but `cargo test --test server` does not, so they are built here: into
/// the folder that this test is in, where that is no work if they are there already.
fn rust(example: &str) -> Command {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(|| {
        // target/debug/deps/server-0123456789abcdef
        let test = std::env::current_exe().unwrap();
        let profile_dir = test.ancestors().nth(2).unwrap();
        let profile = match profile_dir.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            profile => profile,
        };
        let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--quiet", "--examples", "--profile", profile, "--target-dir"])
            .arg(profile_dir.parent().unwrap())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(built.is_ok_and(|status| status.success()), "the examples do not build");
        profile_dir.join("examples")
    });
    Command::new(programs.join(example))
}

/// The example in Python; nothing, with a word about it, if there is no Python that has redis-py. With
/// `REQUIRE_ALL_SERVERS` set, that is a failure.
fn python() -> Option<Command> {
    static PYTHON: OnceLock<Option<&'static str>> = OnceLock::new();
    let has_redis = |python: &&str| {
        let mut command = Command::new(python);
        command.args(["-c", "import redis"]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let python = *PYTHON.get_or_init(|| ["python3", "/usr/bin/python3"].into_iter().find(has_redis));
    let Some(python) = python else {
        assert!(std::env::var_os("REQUIRE_ALL_SERVERS").is_none(), "no python3 can import redis");
        eprintln!("SKIPPED: no python3 can import redis, the example in Python is not tested");
        return None;
    };
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/counter.py"));
    Some(command)
}
