// SPDX-License-Identifier: MIT

//! Real servers, and a proxy that cuts and freezes.

// Each test program uses a part of it. What fails here fails a test.
#![allow(clippy::expect_used, clippy::unwrap_used, dead_code, unreachable_pub)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, Connection, FromRedisValue, Value};
use redis_lock_client::{Locks, Settings};
use tempfile::TempDir;

/// Waits for a condition, and fails if it does not come.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

pub fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        if let Some(path) = std::env::var_os("REDIS_LOCK_MODULE") {
            return PathBuf::from(path);
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo).args(["build", "--release", "--quiet"]).current_dir(&root).status();
        assert!(built.is_ok_and(|status| status.success()), "the module does not build");
        root.join("target/release/libredis_lock.so")
    })
}

/// A running server.
pub struct Server {
    pub port: u16,
    dir: TempDir,
    child: Child,
    args: Vec<String>,
}

impl Server {
    /// With the module, and with more arguments if need be. Nothing, with a word about it, if no server is installed.
    pub fn start(args: &[&str]) -> Option<Server> {
        if Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_err() {
            assert!(std::env::var_os("REQUIRE_ALL_SERVERS").is_none(), "redis-server is not installed");
            eprintln!("SKIPPED: clients/rust: redis-server is not installed");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..10 {
            let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
            let args: Vec<String> =
                args.iter().map(|arg| arg.replace("DIR", dir.path().to_str().unwrap())).collect();
            let mut child = spawn(port, dir.path(), &args);
            if ready(&mut child, port) {
                return Some(Server { port, dir, child, args });
            }
        }
        panic!("the server does not start");
    }

    pub fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// On the same port, and with nothing of what it had.
    pub fn start_again(&mut self) {
        self.child = spawn(self.port, self.dir.path(), &self.args);
        assert!(ready(&mut self.child, self.port), "the server does not start again");
    }

    /// `STOP` freezes it, `CONT` lets it go on.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    pub fn client(&self) -> Client {
        Client::open(("127.0.0.1", self.port)).unwrap()
    }

    pub fn locks(&self) -> Locks {
        Locks::new(&self.client()).unwrap()
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn call<T: FromRedisValue>(&self, command: &str) -> T {
        self.try_call(command).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    pub fn try_call<T: FromRedisValue>(&self, command: &str) -> redis::RedisResult<T> {
        let mut words = command.split(' ');
        let mut call = redis::cmd(words.next().unwrap());
        for word in words {
            call.arg(word);
        }
        call.query(&mut self.admin())
    }

    fn admin(&self) -> Connection {
        let connection = self.client().get_connection().unwrap();
        connection.set_read_timeout(Some(ms(10_000))).unwrap();
        connection
    }

    /// How often a command was carried out.
    pub fn calls(&self, command: &str) -> usize {
        self.count(command, "calls=")
    }

    /// How often it was not permitted.
    pub fn refusals(&self, command: &str) -> usize {
        self.count(command, "rejected_calls=")
    }

    fn count(&self, command: &str, what: &str) -> usize {
        let stats = self.call::<String>("INFO commandstats").to_lowercase();
        let begins = format!("cmdstat_{command}:");
        let line = stats.lines().find(|line| line.starts_with(&begins)).unwrap_or_default();
        line.split([':', ',']).find_map(|field| field.strip_prefix(what)?.parse().ok()).unwrap_or(0)
    }

    pub fn held(&self, key: &str) -> bool {
        self.call(&format!("EXISTS {key}"))
    }

    pub fn holder(&self, key: &str) -> Vec<String> {
        let mut fields: Vec<String> = self.call(&format!("HKEYS {key}"));
        fields.retain(|field| field != "#fence");
        fields
    }

    pub fn waiters(&self, key: &str) -> usize {
        self.call::<Vec<Value>>(&format!("LOCK.WAITERS {key} COUNT 2000")).len()
    }

    pub fn until_waiting(&self, key: &str, count: usize) {
        until(&format!("{count} wait for {key}"), || self.waiters(key) == count);
    }

    /// How many connections it has, but for that of the question.
    pub fn connections(&self) -> usize {
        self.call::<String>("CLIENT LIST").lines().count() - 1
    }

    /// Nothing is held, and nobody waits.
    pub fn assert_nothing_left(&self, key: &str) {
        assert_eq!((self.waiters(key), self.holder(key)), (0, Vec::new()), "{key} is left");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(port: u16, dir: &Path, args: &[String]) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]).arg("--dir").arg(dir);
    command.arg("--loadmodule").arg(module()).args(args).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().unwrap()
}

/// Whether it answers; false if it has ended, as somebody else was faster to take the port.
fn ready(child: &mut Child, port: u16) -> bool {
    let mut answers = false;
    until("the server answers", || {
        let client = Client::open(("127.0.0.1", port)).unwrap();
        let info: redis::RedisResult<String> = client
            .get_connection_with_timeout(ms(1000))
            .and_then(|mut connection| redis::cmd("INFO").arg("server").query(&mut connection));
        answers = info.is_ok_and(|info| info.contains(&format!("process_id:{}\r", child.id())));
        answers || child.try_wait().unwrap().is_some()
    });
    answers
}

/// Passes bytes on, but for those of replies that are to be lost.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    frozen: AtomicBool,
    closed: AtomicBool,
    cut_reply_of: Mutex<Option<&'static str>>,
    /// Not only that of the next such call.
    cut_all: AtomicBool,
    /// Pairs before this one are half open.
    swallowed: AtomicUsize,
    /// What is said to the server on pairs before this one waits.
    held_back: AtomicUsize,
    pairs: Mutex<Vec<(TcpStream, TcpStream)>>,
}

impl Proxy {
    pub fn to(server: &Server) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (port, target) = (listener.local_addr().unwrap().port(), server.port);
        let shared = Arc::new(Shared::default());
        let mine = Arc::clone(&shared);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if mine.closed.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                near.set_nodelay(true).unwrap();
                far.set_nodelay(true).unwrap();
                let cut = Arc::new(AtomicBool::new(false));
                let number = mine.pairs.lock().unwrap().len();
                for calls in [true, false] {
                    let (near, far) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                    let (from, to) = if calls { (near, far) } else { (far, near) };
                    let (shared, cut) = (Arc::clone(&mine), Arc::clone(&cut));
                    thread::spawn(move || shared.pump(from, to, calls, &cut, number));
                }
                mine.pairs.lock().unwrap().push((near, far));
            }
        });
        Proxy { port, shared }
    }

    /// With an own idea of how long an answer may take.
    pub fn locks(&self, patience: Duration) -> Locks {
        let client = Client::open(("127.0.0.1", self.port)).unwrap();
        Locks::with_settings(&client, Settings::new().patience(patience)).unwrap()
    }

    /// The next such call comes to the server, and its connection ends before the reply.
    pub fn cut_reply_of(&self, command: &'static str) {
        *self.shared.cut_reply_of.lock().unwrap() = Some(command);
    }

    /// The same with all such calls, until this is called with false.
    pub fn cut_replies_of(&self, command: &'static str, cut: bool) {
        self.shared.cut_all.store(cut, Ordering::SeqCst);
        *self.shared.cut_reply_of.lock().unwrap() = cut.then_some(command);
    }

    pub fn has_cut(&self) -> bool {
        self.shared.cut_reply_of.lock().unwrap().is_none()
    }

    pub fn freeze(&self, frozen: bool) {
        self.shared.frozen.store(frozen, Ordering::SeqCst);
    }

    /// From now on, nothing goes over the connections that there are, not even their end.
    pub fn swallow(&self) {
        self.swallow_first(self.made());
    }

    /// The same, over so many connections only.
    pub fn swallow_first(&self, count: usize) {
        self.shared.swallowed.store(count, Ordering::SeqCst);
    }

    /// What is said to the server over the connections that there are comes late: when this is called with false.
    pub fn hold_back(&self, held: bool) {
        self.shared.held_back.store(if held { self.made() } else { 0 }, Ordering::SeqCst);
    }

    /// Ends those at the server.
    pub fn end_swallowed(&self) {
        let count = self.shared.swallowed.load(Ordering::SeqCst);
        for (_, far) in self.shared.pairs.lock().unwrap().iter().take(count) {
            let _ = far.shutdown(Shutdown::Both);
        }
    }

    /// How many connections were ever made.
    pub fn made(&self) -> usize {
        self.shared.pairs.lock().unwrap().len()
    }

    /// Ends all connections.
    pub fn cut(&self) {
        for (near, far) in self.shared.pairs.lock().unwrap().iter() {
            let _ = near.shutdown(Shutdown::Both);
            let _ = far.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn pump(&self, mut from: TcpStream, mut to: TcpStream, calls: bool, cut: &AtomicBool, number: usize) {
        let mut bytes = [0; 65536];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let bytes = &bytes[..count];
            while self.frozen.load(Ordering::SeqCst)
                || calls && number < self.held_back.load(Ordering::SeqCst)
            {
                thread::sleep(ms(2));
            }
            if number < self.swallowed.load(Ordering::SeqCst) {
                continue;
            }
            if calls {
                let mut cut_reply_of = self.cut_reply_of.lock().unwrap();
                let text = String::from_utf8_lossy(bytes);
                if cut_reply_of.is_some_and(|command| text.contains(command)) {
                    if !self.cut_all.load(Ordering::SeqCst) {
                        *cut_reply_of = None;
                    }
                    cut.store(true, Ordering::SeqCst);
                }
            } else if cut.load(Ordering::SeqCst) {
                break;
            }
            if to.write_all(bytes).is_err() {
                break;
            }
        }
        if number >= self.swallowed.load(Ordering::SeqCst) {
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.freeze(false);
        self.shared.closed.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.cut();
    }
}
