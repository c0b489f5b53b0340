// SPDX-License-Identifier: MIT

//! Redisson, the Java client: a JVM that does what a test says. See `tests/clients/redisson`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use super::client::PATIENCE;
use super::server::{until, Server};

/// The versions that the module is tested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Before fenced locks and sharded messages.
    V3_17_7,
    V3_27_2,
    V4_7_0,
}

impl Version {
    /// Where `tests/setup-redisson.sh` puts it.
    fn dir(self) -> PathBuf {
        let version = match self {
            Version::V3_17_7 => "3.17.7",
            Version::V3_27_2 => "3.27.2",
            Version::V4_7_0 => "4.7.0",
        };
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("target/clients/redisson-{version}"))
    }

    /// False, with a word about it, if it is not there. With `REQUIRE_ALL_SERVERS` set, that is a failure.
    pub fn is_installed(self) -> bool {
        if self.dir().join("agent.jar").exists() {
            return true;
        }
        assert!(std::env::var_os("REQUIRE_ALL_SERVERS").is_none(), "Redisson {self:?} is not installed");
        eprintln!("SKIPPED: Redisson {self:?} is not installed, see `make setup`");
        false
    }

    pub fn has_fenced_locks(self) -> bool {
        self != Version::V3_17_7
    }
}

/// What a request came to: the value, or the exception's name and message.
type Answer = Result<String, String>;

#[derive(Default)]
struct Answers {
    arrived: Mutex<Arrived>,
    changed: Condvar,
}

#[derive(Default)]
struct Arrived {
    answers: HashMap<u64, Answer>,
    /// The JVM is gone: nothing arrives any more.
    ended: bool,
}

/// A JVM. Its threads and clients have names that the test chooses; the client is `main` if nothing else is said.
pub struct Redisson {
    child: Mutex<Child>,
    input: Mutex<ChildStdin>,
    answers: Arc<Answers>,
    next: AtomicU64,
    errors: NamedTempFile,
}

impl Redisson {
    /// A JVM without a client.
    pub fn start(version: Version) -> Redisson {
        let dir = version.dir();
        let classes = format!("{0}/agent.jar:{0}/lib/*", dir.display());
        let errors = NamedTempFile::new().unwrap();
        let mut child = Command::new("java")
            // As little as it needs: many of them run at a time.
            .args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"])
            // Whoever has no such archive, or one of another Java, starts slower.
            .arg(format!("-XX:SharedArchiveFile={}/agent.jsa", dir.display()))
            .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", &classes, "Agent"])
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

    /// A JVM with a client of a single server, and settings such as `lockWatchdogTimeout=2000`.
    pub fn connected(version: Version, server: &Server, settings: &str) -> Redisson {
        let redisson = Redisson::start(version);
        redisson.connect("main", &format!("single redis://127.0.0.1:{} {settings}", server.port));
        redisson
    }

    /// Connects a client; its id is the first part of its owners' names.
    pub fn connect(&self, client: &str, how: &str) -> String {
        self.thread_of(client, "connecting").call(&format!("connect {}", how.trim()))
    }

    /// A thread that uses the client `main`.
    pub fn thread<'a>(&'a self, name: &'a str) -> Thread<'a> {
        self.thread_of("main", name)
    }

    pub fn thread_of<'a>(&'a self, client: &'a str, name: &'a str) -> Thread<'a> {
        Thread { jvm: self, client, name }
    }

    /// Ends the JVM so that nobody in it can do anything about it.
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

/// A Java thread, which to Redisson is an owner of locks.
#[derive(Clone, Copy)]
pub struct Thread<'a> {
    jvm: &'a Redisson,
    client: &'a str,
    name: &'a str,
}

impl<'a> Thread<'a> {
    /// What it answers; an exception is a failure.
    pub fn call(&self, operation: &str) -> String {
        self.start(operation).wait()
    }

    /// The exception that it answers with.
    pub fn exception(&self, operation: &str) -> String {
        match self.start(operation).answer() {
            Err(exception) => exception,
            Ok(value) => panic!("{operation} of {} answered {value}, where it should have failed", self.name),
        }
    }

    /// Begins an operation.
    pub fn start(&self, operation: &str) -> Pending<'a> {
        let id = self.jvm.next.fetch_add(1, Ordering::Relaxed);
        let line = format!("{id} {} {} {operation}\n", self.name, self.client);
        // If the JVM is gone, the answer will say so.
        let _ = self.jvm.input.lock().unwrap().write_all(line.as_bytes());
        Pending { jvm: self.jvm, id, what: format!("{operation} of {}", self.name), patience: PATIENCE }
    }

    /// The name of the thread as an owner.
    pub fn owner(&self) -> String {
        self.call("owner")
    }

    /// Waits until the thread sleeps until somebody tells it that its lock is free.
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
    /// For what may take so much longer.
    pub fn with_more_time(mut self, more: Duration) -> Self {
        self.patience += more;
        self
    }

    /// What it came to; an exception is a failure.
    pub fn wait(self) -> String {
        let what = self.what.clone();
        self.answer().unwrap_or_else(|exception| panic!("{what}: {exception}"))
    }

    pub fn answer(self) -> Answer {
        let deadline = Instant::now() + self.patience;
        let mut arrived = self.jvm.answers.arrived.lock().unwrap();
        loop {
            if let Some(answer) = arrived.answers.remove(&self.id) {
                return answer;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            // The lock must not be poisoned by this: the JVM is still to be dropped.
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

/// Makes tests out of every function of the enclosing module that is named here: with the newest Redisson on every
/// server, and with every other on the one that Debian installs. Each gets the [`Flavor`](super::Flavor) and the
/// [`Version`].
#[macro_export]
macro_rules! with_every_redisson {
    ($($(#[$attribute:meta])* $name:ident),* $(,)?) => { $(
        mod $name {
            use $crate::support::redisson::Version;
            use $crate::support::Flavor;
            $(#[$attribute])*
            #[test]
            fn redisson_3_17_7() { with(Flavor::Redis7, Version::V3_17_7) }
            $(#[$attribute])*
            #[test]
            fn redisson_3_27_2() { with(Flavor::Redis7, Version::V3_27_2) }
            $crate::with_all_servers!(test_on_each [Any $(#[$attribute])*]);
            fn on(flavor: Flavor) { with(flavor, Version::V4_7_0) }
            fn with(flavor: Flavor, version: Version) {
                if flavor.is_installed() && version.is_installed() {
                    super::$name(flavor, version);
                }
            }
        }
    )* };
}
