// SPDX-License-Identifier: MIT

//! Redisson, the Java client: a JVM that executes the requests of a test. See `tests/clients/redisson`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use crate::artifacts::root;
use crate::client::PATIENCE;
use crate::{until, Server};

/// The versions of Redisson that the module is tested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A version without fenced locks and sharded messages.
    V3_17_7,
    V3_27_2,
    V4_7_0,
}

impl Version {
    /// Returns the folder that `tests/scripts/setup-redisson.sh` fills.
    fn dir(self) -> PathBuf {
        let version = match self {
            Version::V3_17_7 => "3.17.7",
            Version::V3_27_2 => "3.27.2",
            Version::V4_7_0 => "4.7.0",
        };
        root().join(format!("target/clients/redisson-{version}"))
    }

    /// Returns false and prints a line if this version is not installed. Panics instead if `REQUIRE_ALL_SERVERS` is set.
    pub fn is_installed(self) -> bool {
        if self.dir().join("agent.jar").exists() {
            return true;
        }
        assert!(std::env::var_os("REQUIRE_ALL_SERVERS").is_none(), "Redisson {self:?} is not installed");
        eprintln!("SKIPPED: Redisson {self:?} is not installed, see `make clients`");
        false
    }

    pub fn has_fenced_locks(self) -> bool {
        self != Version::V3_17_7
    }
}

/// The result of a request: a value, or the name and message of an exception.
type Answer = Result<String, String>;

#[derive(Default)]
struct Answers {
    arrived: Mutex<Arrived>,
    changed: Condvar,
}

#[derive(Default)]
struct Arrived {
    answers: HashMap<u64, Answer>,
    /// The JVM has ended, so no answer will arrive.
    ended: bool,
}

/// A JVM. The test chooses the names of its threads and clients. The default client is `main`.
pub struct Redisson {
    child: Mutex<Child>,
    input: Mutex<ChildStdin>,
    answers: Arc<Answers>,
    next: AtomicU64,
    errors: NamedTempFile,
}

impl Redisson {
    /// Starts a JVM without a client.
    pub fn start(version: Version) -> Redisson {
        let mut java = Command::new("java");
        // Many JVMs run at a time, so each gets little memory.
        java.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]);
        // Java ignores a missing archive, or an archive of another version. It then starts more slowly.
        java.arg(format!("-XX:SharedArchiveFile={}/agent.jsa", version.dir().display()));
        java.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
        Redisson::start_with(version, java)
    }

    /// Starts a JVM without a client by this command, which already has Java's options.
    pub fn start_with(version: Version, mut java: Command) -> Redisson {
        let errors = NamedTempFile::new().unwrap();
        let mut child = java
            .args(["-cp", &format!("{0}/agent.jar:{0}/lib/*", version.dir().display()), "Agent"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors.reopen().unwrap())
            .spawn()
            .unwrap_or_else(|error| panic!("Java cannot be started: {error}"));
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let answers = Arc::new(Answers::default());
        let arriving = Arc::clone(&answers);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let (id, answer) = parse(&line);
                arriving.arrived.lock().unwrap().answers.insert(id, answer);
                arriving.changed.notify_all();
            }
            arriving.arrived.lock().unwrap().ended = true;
            arriving.changed.notify_all();
        });
        let (child, input) = (Mutex::new(child), Mutex::new(input));
        Redisson { child, input, answers, next: AtomicU64::new(0), errors }
    }

    /// Starts a JVM with a client of a single server, and settings such as `lockWatchdogTimeout=2000`.
    pub fn connected(version: Version, server: &Server, settings: &str) -> Redisson {
        let redisson = Redisson::start(version);
        redisson.connect("main", &format!("single redis://127.0.0.1:{} {settings}", server.port));
        redisson
    }

    /// Connects a client, and returns its id. Owner names of the client begin with the id.
    pub fn connect(&self, client: &str, how: &str) -> String {
        self.thread_of(client, "connecting").call(&format!("connect {}", how.trim()))
    }

    /// Returns a thread that uses the client `main`.
    pub fn thread<'a>(&'a self, name: &'a str) -> Thread<'a> {
        self.thread_of("main", name)
    }

    /// Returns a thread that uses another client.
    pub fn thread_of<'a>(&'a self, client: &'a str, name: &'a str) -> Thread<'a> {
        Thread { jvm: self, client, name }
    }

    /// Kills the JVM, so that its clients cannot release anything.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Redisson {
    fn drop(&mut self) {
        if let Ok(child) = self.child.get_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let errors = std::fs::read_to_string(self.errors.path()).unwrap_or_default();
            let lines: Vec<&str> = errors.lines().collect();
            eprintln!("--- errors of the JVM\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
    }
}

fn parse(line: &str) -> (u64, Answer) {
    let mut words = line.splitn(3, ' ');
    let id = words.next().and_then(|id| id.parse().ok());
    let kind = words.next();
    let text = words.next().unwrap_or_default().to_owned();
    match (id, kind) {
        (Some(id), Some("ok")) => (id, Ok(text)),
        (Some(id), Some("error")) => (id, Err(text)),
        _ => panic!("the agent said: {line}"),
    }
}

/// A Java thread. For Redisson, each thread is a separate owner.
#[derive(Clone, Copy)]
pub struct Thread<'a> {
    jvm: &'a Redisson,
    client: &'a str,
    name: &'a str,
}

impl<'a> Thread<'a> {
    /// Executes an operation, and returns its value. Panics if it throws an exception.
    pub fn call(&self, operation: &str) -> String {
        self.start(operation).wait()
    }

    /// Executes an operation, and returns its exception. Panics if it returns a value.
    pub fn exception(&self, operation: &str) -> String {
        match self.start(operation).answer() {
            Err(exception) => exception,
            Ok(value) => panic!("{operation} of {} answered {value}, but should have failed", self.name),
        }
    }

    /// Begins an operation.
    pub fn start(&self, operation: &str) -> Pending<'a> {
        let id = self.jvm.next.fetch_add(1, Ordering::Relaxed);
        let line = format!("{id} {} {} {operation}\n", self.name, self.client);
        // If the JVM has ended, waiting for the answer reports that.
        let _ = self.jvm.input.lock().unwrap().write_all(line.as_bytes());
        Pending { jvm: self.jvm, id, what: format!("{operation} of {}", self.name), patience: PATIENCE }
    }

    /// Returns the owner name of the thread.
    pub fn owner(&self) -> String {
        self.call("owner")
    }

    /// Waits until the thread sleeps, waiting for the message that its lock is free.
    pub fn until_asleep(&self) {
        until(&format!("{} is asleep", self.name), || self.call("asleep") == "true");
    }
}

/// An operation that has begun.
pub struct Pending<'a> {
    jvm: &'a Redisson,
    id: u64,
    what: String,
    patience: Duration,
}

impl Pending<'_> {
    /// Extends the time that the operation may take.
    pub fn with_more_time(mut self, more: Duration) -> Self {
        self.patience += more;
        self
    }

    /// Waits until the operation has ended, and returns its value. Panics if the operation throws an exception.
    pub fn wait(self) -> String {
        let what = self.what.clone();
        self.answer().unwrap_or_else(|exception| panic!("{what}: {exception}"))
    }

    /// Waits until the operation has ended, and returns its value or its exception.
    pub fn answer(self) -> Answer {
        let deadline = Instant::now() + self.patience;
        let mut arrived = self.jvm.answers.arrived.lock().unwrap();
        loop {
            if let Some(answer) = arrived.answers.remove(&self.id) {
                return answer;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            // A panic must not poison the mutex, because dropping the JVM locks it again.
            let (ended, late) = (arrived.ended, left.is_zero());
            if ended || late {
                drop(arrived);
                assert!(!ended, "{}: the JVM has ended", self.what);
                panic!("{}: no answer", self.what);
            }
            arrived = self.jvm.answers.changed.wait_timeout(arrived, left).unwrap().0;
        }
    }

    pub fn is_done(&self) -> bool {
        let arrived = self.jvm.answers.arrived.lock().unwrap();
        arrived.ended || arrived.answers.contains_key(&self.id)
    }
}
