// SPDX-License-Identifier: MIT

//! Real servers, and a proxy that breaks and freezes connections.

// Each test program uses a part of this module.
#![allow(clippy::expect_used, clippy::unwrap_used, dead_code, unreachable_pub)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, FromRedisValue, Value};
use tempfile::TempDir;

/// Waits for a condition. Panics if it does not become true within 20 s.
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

/// A running server. Dropping this value kills it.
pub struct Server {
    pub port: u16,
    dir: TempDir,
    child: Child,
    args: Vec<String>,
}

impl Server {
    /// A server with the module.
    pub fn start() -> Server {
        Server::start_with(&["--loadmodule", module().to_str().unwrap()])
    }

    /// A server with these arguments, in which `DIR` is its directory.
    pub fn start_with(args: &[&str]) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let args: Vec<String> =
            args.iter().map(|arg| arg.replace("DIR", dir.path().to_str().unwrap())).collect();
        loop {
            let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
            let mut child = spawn(port, dir.path(), &args);
            if is_ready(&mut child, port) {
                return Server { port, dir, child, args };
            }
        }
    }

    pub fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts the server on the same port, without its data.
    pub fn start_again(&mut self) {
        self.child = spawn(self.port, self.dir.path(), &self.args);
        assert!(is_ready(&mut self.child, self.port), "the server does not start again");
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn client(&self) -> Client {
        Client::open(("127.0.0.1", self.port)).unwrap()
    }

    pub fn call<T: FromRedisValue>(&self, command: &str) -> T {
        let mut words = command.split(' ');
        let mut call = redis::cmd(words.next().unwrap());
        for word in words {
            call.arg(word);
        }
        let mut connection = self.client().get_connection().unwrap();
        call.query(&mut connection).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// The number of calls of a command.
    pub fn calls(&self, command: &str) -> usize {
        let stats = self.call::<String>("INFO commandstats").to_lowercase();
        let start = format!("cmdstat_{command}:calls=");
        let rest = stats.split(&start).nth(1).unwrap_or_default();
        rest.split(',').next().unwrap().parse().unwrap_or(0)
    }

    pub fn is_held(&self, key: &str) -> bool {
        self.call(&format!("EXISTS {key}"))
    }

    pub fn waiters(&self, key: &str) -> usize {
        self.call::<Vec<Value>>(&format!("LOCK.WAITERS {key} COUNT 2000")).len()
    }

    pub fn until_waiting(&self, key: &str, count: usize) {
        until(&format!("{count} wait for {key}"), || self.waiters(key) == count);
    }

    pub fn until_free(&self, key: &str) {
        until(&format!("{key} is free"), || !self.is_held(key) && self.waiters(key) == 0);
    }

    /// The number of connections, without that of the question.
    pub fn connections(&self) -> usize {
        self.call::<String>("CLIENT LIST").lines().count() - 1
    }

    pub fn sessions(&self) -> usize {
        self.call::<Vec<Value>>("LOCK.SESSION LIST").len()
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
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().unwrap()
}

/// Whether the server answers. False if it has ended, as another process took the port.
fn is_ready(child: &mut Child, port: u16) -> bool {
    let mut answers = false;
    until("the server answers", || {
        let client = Client::open(("127.0.0.1", port)).unwrap();
        let info: redis::RedisResult<String> = client
            .get_connection_with_timeout(ms(1000))
            .and_then(|mut connection| redis::cmd("INFO").arg("server").query(&mut connection));
        let process = format!("process_id:{}\r", child.id());
        // A server with a password refuses the question.
        answers = info.map_or_else(|error| error.code() == Some("NOAUTH"), |info| info.contains(&process));
        answers || child.try_wait().unwrap().is_some()
    });
    answers
}

/// Forwards connections to a server.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_frozen: AtomicBool,
    is_closed: AtomicBool,
    lost_reply: Mutex<Option<&'static str>>,
    freezing_call: Mutex<Option<&'static str>>,
    pairs: Mutex<Vec<(TcpStream, TcpStream)>>,
}

impl Proxy {
    pub fn to(server: &Server) -> Proxy {
        Proxy::to_each(vec![server.port])
    }

    /// Forwards each connection to the next port, and all others to the last port.
    pub fn to_each(mut targets: Vec<u16>) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if own.is_closed.load(Ordering::SeqCst) {
                    return;
                }
                let target = if targets.len() > 1 { targets.remove(0) } else { targets[0] };
                let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                near.set_nodelay(true).unwrap();
                far.set_nodelay(true).unwrap();
                let is_cut = Arc::new(AtomicBool::new(false));
                for is_call in [true, false] {
                    let (near, far) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                    let (from, to) = if is_call { (near, far) } else { (far, near) };
                    let (shared, is_cut) = (Arc::clone(&own), Arc::clone(&is_cut));
                    thread::spawn(move || shared.pump(from, to, is_call, &is_cut));
                }
                own.pairs.lock().unwrap().push((near, far));
            }
        });
        Proxy { port, shared }
    }

    pub fn client(&self) -> Client {
        Client::open(("127.0.0.1", self.port)).unwrap()
    }

    /// Breaks the connection of the next such call before its reply.
    pub fn lose_the_reply_to(&self, command: &'static str) {
        *self.shared.lost_reply.lock().unwrap() = Some(command);
    }

    pub fn has_lost_a_reply(&self) -> bool {
        self.shared.lost_reply.lock().unwrap().is_none()
    }

    /// Stops all transfers after the next such call.
    pub fn freeze_after(&self, command: &'static str) {
        *self.shared.freezing_call.lock().unwrap() = Some(command);
    }

    pub fn is_frozen(&self) -> bool {
        self.shared.is_frozen.load(Ordering::SeqCst)
    }

    /// Stops or continues all transfers.
    pub fn freeze(&self, is_frozen: bool) {
        self.shared.is_frozen.store(is_frozen, Ordering::SeqCst);
    }

    /// Breaks all connections.
    pub fn break_all(&self) {
        for (near, far) in self.shared.pairs.lock().unwrap().iter() {
            let _ = near.shutdown(Shutdown::Both);
            let _ = far.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn pump(&self, mut from: TcpStream, mut to: TcpStream, is_call: bool, is_cut: &AtomicBool) {
        let mut bytes = [0; 65536];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let bytes = &bytes[..count];
            while self.is_frozen.load(Ordering::SeqCst) {
                thread::sleep(ms(2));
            }
            if is_call {
                let mut lost_reply = self.lost_reply.lock().unwrap();
                if lost_reply.is_some_and(|command| String::from_utf8_lossy(bytes).contains(command)) {
                    *lost_reply = None;
                    is_cut.store(true, Ordering::SeqCst);
                }
            } else if is_cut.load(Ordering::SeqCst) {
                break;
            }
            let mut freezing_call = self.freezing_call.lock().unwrap();
            if is_call
                && freezing_call.is_some_and(|command| String::from_utf8_lossy(bytes).contains(command))
            {
                *freezing_call = None;
                self.is_frozen.store(true, Ordering::SeqCst);
            }
            drop(freezing_call);
            if to.write_all(bytes).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.freeze(false);
        self.shared.is_closed.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.break_all();
    }
}
