// SPDX-License-Identifier: MIT

//! A server that a benchmark measures.

use std::net::{SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::Connection;
use redis_lock_test_kit::artifacts::{module, test_module};
use redis_lock_test_kit::server::process::{Launch, Process};
use redis_lock_test_kit::server::Flavor;

use super::callgrind::Part;
use super::{machine, Outcome};

/// The maximum number of clients of a server.
pub const CLIENTS: usize = 10_100;

/// The longest time that a server takes to start, or that a condition takes to be met. Under callgrind, servers are slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server in `target/servers` is started by a script, so children are traced.
const CALLGRIND: [&str; 6] = [
    "valgrind",
    "--tool=callgrind",
    "--trace-children=yes",
    "--callgrind-out-file=part",
    "--toggle-collect=serverCron",
    "--collect-atstart=yes",
];

/// The settings of a server that is about to be started.
#[derive(Clone, Default)]
pub struct Setup {
    flavor: Option<Flavor>,
    args: Vec<String>,
    without_module: bool,
    under_callgrind: bool,
    cores: Vec<usize>,
}

impl Setup {
    pub fn new() -> Setup {
        Setup::default()
    }

    /// Starts this server instead of the installed one, or of `REDIS_SERVER`.
    pub fn of(mut self, flavor: Flavor) -> Setup {
        self.flavor = Some(flavor);
        self
    }

    pub fn without_module(mut self) -> Setup {
        self.without_module = true;
        self
    }

    pub fn option(mut self, name: &str, value: &str) -> Setup {
        self.args.extend([format!("--{name}"), value.to_owned()]);
        self
    }

    /// Counts the instructions of a part of the run, see [`Server::count`]. Excludes the periodic work of the server, which grows
    /// with the number of its clients. The server is about fifty times slower.
    pub fn under_callgrind(mut self) -> Setup {
        self.under_callgrind = true;
        self.option("hz", "1").option("dynamic-hz", "no").option("shutdown-timeout", "0")
    }

    /// Makes the server a node that other nodes of a cluster can meet.
    pub fn in_a_cluster(self) -> Setup {
        self.option("cluster-enabled", "yes").option("cluster-node-timeout", "60000")
    }

    /// Restricts the server to these cores.
    pub fn on_cores(mut self, cores: &[usize]) -> Setup {
        self.cores = cores.to_vec();
        self
    }

    pub fn start(self) -> Outcome<Server> {
        let installed =
            || std::env::var_os("REDIS_SERVER").map_or_else(|| "redis-server".into(), PathBuf::from);
        let program = self.flavor.map_or_else(installed, Flavor::program);
        let clients = CLIENTS.to_string();
        let mut args = vec!["--maxclients", &clients];
        args.extend(self.args.iter().map(String::as_str));
        if !self.without_module {
            args.extend(["--loadmodule", module().to_str().ok_or("the path of the module is not UTF-8")?]);
            // Nearly all clients of a benchmark may wait.
            args.extend(["lock.max-waiters-total", &clients]);
        }
        let mut launch =
            Launch::new(program, tempfile::tempdir()?, &args).tied(&self.cores).patience(PATIENCE);
        if self.under_callgrind {
            launch = launch.under(&CALLGRIND);
        }
        let process = launch.start()?;
        let control = redis::Client::open(process.url())?.get_connection()?;
        Ok(Server { process, control, parts: 0 })
    }
}

/// A running server. Dereferences to its [`Process`]. It stops when this value is dropped, and also when this process is killed.
pub struct Server {
    process: Process,
    /// A connection for commands that are not part of the measurement.
    pub control: Connection,
    /// The number of parts of the run that [`count`](Server::count) has counted.
    parts: u32,
}

impl Deref for Server {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl Server {
    pub fn start() -> Outcome<Server> {
        Setup::new().start()
    }

    pub fn address(&self) -> SocketAddr {
        (self.host, self.port).into()
    }

    pub fn connect(&self) -> Outcome<TcpStream> {
        let stream = TcpStream::connect(self.address())?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(stream)
    }

    /// Starts a replica of this server, and waits until it is in sync.
    pub fn start_replica(&mut self) -> Outcome<Server> {
        let primary = format!("{} {}", self.host, self.port);
        let replica = Setup::new().option("replicaof", &primary).start()?;
        self.until("a replica is online", |server| {
            Ok(server.info("slave0").is_ok_and(|replica| replica.contains("state=online")))
        })?;
        Ok(replica)
    }

    /// Waits until the clients of a measurement have disconnected, and deletes their keys.
    pub fn clear(&mut self) -> Outcome<()> {
        self.until("the connections close", |server| Ok(server.info("connected_clients")? == "1"))?;
        redis::cmd("FLUSHALL").query::<()>(&mut self.control)?;
        Ok(())
    }

    /// Waits for a condition. Fails if it is not met in time.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Server) -> Outcome<bool>) -> Outcome<()> {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self)? {
            if Instant::now() > deadline {
                return Err(format!("waited in vain until {what}").into());
            }
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Returns the time at which a key expires. The server runs on this machine, so both clocks are the same.
    pub fn expires_at(&mut self, key: &str) -> Outcome<Instant> {
        let unix_ms: u64 = redis::cmd("PEXPIRETIME").arg(key).query(&mut self.control)?;
        let (now, wall) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH)?);
        Ok(now + Duration::from_millis(unix_ms).checked_sub(wall).ok_or("the lease has ended already")?)
    }

    /// Returns a field of `INFO`, of the server or of the module.
    pub fn info(&mut self, field: &str) -> Outcome<String> {
        let mut command = redis::cmd("INFO");
        // Without an argument, `INFO` omits the sections of modules.
        if field.starts_with("lock_") {
            command.arg("lock");
        }
        let info: redis::InfoDict = command.query(&mut self.control)?;
        Ok(info.get(field).ok_or_else(|| format!("no {field} in INFO"))?)
    }

    /// Returns the number of keys.
    pub fn keys(&mut self) -> Outcome<usize> {
        Ok(redis::cmd("DBSIZE").query(&mut self.control)?)
    }

    /// Waits until the server's memory no longer changes, and returns it in bytes. The server shrinks the buffers of new
    /// connections after a while.
    pub fn settled_memory(&mut self) -> Outcome<f64> {
        let mut last = f64::NAN;
        for _ in 0..60 {
            let now: f64 = self.info("used_memory")?.parse()?;
            // Reading `INFO` itself changes the memory by some KB.
            if (now - last).abs() <= 4096.0 {
                return Ok(now);
            }
            last = now;
            sleep(Duration::from_millis(2500));
        }
        Err("the server's memory keeps changing".into())
    }

    pub fn version(&mut self) -> Outcome<String> {
        match self.info("valkey_version") {
            Ok(version) => Ok(format!("Valkey {version}")),
            Err(_) => Ok(format!("Redis {}", self.info("redis_version")?)),
        }
    }

    /// Returns the processor time of all threads.
    pub fn cpu(&self) -> Outcome<Duration> {
        machine::cpu_of(self.id())
    }

    /// Counts the instructions that a server under callgrind executes while `play` runs.
    pub fn count(&mut self, play: impl FnOnce() -> Outcome<()>) -> Outcome<Part> {
        let control = |what: &str| -> Outcome<()> {
            let output = Command::new("callgrind_control").args([what, &self.id().to_string()]).output()?;
            let said = String::from_utf8_lossy(&output.stdout);
            if !said.lines().any(|line| line.trim() == "OK.") {
                let errors = String::from_utf8_lossy(&output.stderr);
                return Err(format!("callgrind_control {what} says:\n{said}{errors}").into());
            }
            Ok(())
        };
        control("--zero")?;
        play()?;
        control("--dump")?;
        self.parts += 1;
        Part::parse(&std::fs::read_to_string(self.dir.path().join(format!("part.{}", self.parts)))?)
    }
}

/// Returns the path of a module that does nothing.
pub fn empty_module() -> String {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| test_module("empty")).display().to_string()
}

/// Returns the path of a module that queues clients and unblocks them, and does nothing else.
pub fn floor_module() -> String {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| test_module("floor")).display().to_string()
}
