// SPDX-License-Identifier: MIT

//! A server of a benchmark's own.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::Connection;
use tempfile::TempDir;

use super::callgrind::Part;
use super::{machine, Outcome};

/// How many clients may be connected.
pub const CLIENTS: usize = 10_100;

/// How a server is to be started.
#[derive(Clone, Default)]
pub struct Setup {
    args: Vec<String>,
    without_module: bool,
    callgrind: Option<&'static [&'static str]>,
    is_node: bool,
    cores: Vec<usize>,
}

impl Setup {
    pub fn new() -> Setup {
        Setup::default()
    }

    pub fn without_module(mut self) -> Setup {
        self.without_module = true;
        self
    }

    pub fn option(mut self, name: &str, value: &str) -> Setup {
        self.args.extend([format!("--{name}"), value.to_owned()]);
        self
    }

    /// Counts instructions; the server is some fifty times slower. It does next to nothing by itself then.
    pub fn under_callgrind(mut self) -> Setup {
        self.callgrind = Some(&["--callgrind-out-file=/dev/null"]);
        self.option("hz", "1").option("dynamic-hz", "no").option("shutdown-timeout", "0")
    }

    /// The same, to count a part of its run with [`Server::count`]. What the server does once a second by itself does not
    /// count: the more clients it has, the more that is.
    pub fn under_callgrind_in_part(self) -> Setup {
        let mut setup = self.under_callgrind();
        setup.callgrind =
            Some(&["--callgrind-out-file=part", "--toggle-collect=serverCron", "--collect-atstart=yes"]);
        setup
    }

    /// A node that other nodes of a cluster can meet.
    pub fn in_a_cluster(mut self) -> Setup {
        self.is_node = true;
        self.option("cluster-enabled", "yes").option("cluster-node-timeout", "60000")
    }

    /// Keeps the server on these cores.
    pub fn on_cores(mut self, cores: &[usize]) -> Setup {
        self.cores = cores.to_vec();
        self
    }

    pub fn start(self) -> Outcome<Server> {
        loop {
            if let Some(server) = self.try_start()? {
                return Ok(server);
            }
        }
    }

    /// `None` if somebody else was faster to take the port.
    fn try_start(&self) -> Outcome<Option<Server>> {
        let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let free_port = || -> Outcome<u16> { Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port()) };
        let port = free_port()?;
        let dir = tempfile::tempdir()?;
        let (log, errors) = (dir.path().join("log"), dir.path().join("errors"));
        let mut command = match self.callgrind {
            Some(args) => {
                let mut command = Command::new("valgrind");
                command.arg("--tool=callgrind").args(args).arg(&program);
                command
            }
            None => Command::new(&program),
        };
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--maxclients", &CLIENTS.to_string(), "--repl-diskless-sync-delay", "0"]);
        command.args(&self.args);
        if self.is_node {
            command.args(["--cluster-port", &free_port()?.to_string()]);
        }
        if !self.without_module {
            command.arg("--loadmodule").arg(module()?);
        }
        command.current_dir(dir.path()).stdin(Stdio::null());
        command.stderr(File::create(&errors)?).stdout(File::create(&log)?);
        let cores = self.cores.clone();
        // SAFETY: between fork and exec only system calls are made.
        unsafe {
            command.pre_exec(move || {
                machine::die_with_parent();
                if !cores.is_empty() {
                    machine::pin(&cores);
                }
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
        let patience = Instant::now() + Duration::from_secs(60);
        loop {
            let ended = child.try_wait()?.is_some();
            match client.get_connection() {
                Ok(control) if !ended => {
                    let mut server = Server { child, port, control, dir, parts: 0 };
                    let is_ours = server.info("process_id")? == server.process().to_string();
                    return Ok(is_ours.then_some(server));
                }
                _ if ended || Instant::now() > patience => break,
                _ => sleep(Duration::from_millis(10)),
            }
        }
        let _ = child.kill();
        let _ = child.wait();
        let said = format!("{}{}", fs::read_to_string(errors)?, fs::read_to_string(log)?);
        if said.contains("Address already in use") {
            return Ok(None);
        }
        Err(format!("{program} does not start:\n{said}").into())
    }
}

/// The server; gone with this value, and with this process even if that is killed.
pub struct Server {
    child: Child,
    port: u16,
    pub control: Connection,
    dir: TempDir,
    /// How many parts of its run have been counted.
    parts: u32,
}

impl Server {
    pub fn start() -> Outcome<Server> {
        Setup::new().start()
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// A connection.
    pub fn connect(&self) -> Outcome<TcpStream> {
        let stream = TcpStream::connect(self.address())?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(stream)
    }

    /// Another server that is this one's replica, once it is one.
    pub fn start_replica(&mut self) -> Outcome<Server> {
        let primary = format!("127.0.0.1 {}", self.port);
        let replica = Setup::new().option("replicaof", &primary).start()?;
        self.until("a replica is online", |server| {
            Ok(server.info("slave0").is_ok_and(|replica| replica.contains("state=online")))
        })?;
        Ok(replica)
    }

    /// Waits until the clients of a measurement have gone, and drops what they have left.
    pub fn clear(&mut self) -> Outcome<()> {
        self.until("the connections close", |server| Ok(server.info("connected_clients")? == "1"))?;
        redis::cmd("FLUSHALL").query::<()>(&mut self.control)?;
        Ok(())
    }

    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Server) -> Outcome<bool>) -> Outcome<()> {
        let patience = Instant::now() + Duration::from_secs(60);
        while !holds(self)? {
            if Instant::now() > patience {
                return Err(format!("waited in vain until {what}").into());
            }
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// When a key's time is over. The server's clock is ours, as it runs on the same machine.
    pub fn expires_at(&mut self, key: &str) -> Outcome<Instant> {
        let unix_ms: u64 = redis::cmd("PEXPIRETIME").arg(key).query(&mut self.control)?;
        let (now, wall) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH)?);
        Ok(now + Duration::from_millis(unix_ms).checked_sub(wall).ok_or("the lease is over already")?)
    }

    /// Returns a field of `INFO`, of the server or of the module.
    pub fn info(&mut self, field: &str) -> Outcome<String> {
        let mut command = redis::cmd("INFO");
        // Without an argument, `INFO` leaves out the sections of modules.
        if field.starts_with("lock_") {
            command.arg("lock");
        }
        let info: redis::InfoDict = command.query(&mut self.control)?;
        Ok(info.get(field).ok_or_else(|| format!("no {field} in INFO"))?)
    }

    pub fn keys(&mut self) -> Outcome<usize> {
        Ok(redis::cmd("DBSIZE").query(&mut self.control)?)
    }

    pub fn version(&mut self) -> Outcome<String> {
        match self.info("valkey_version") {
            Ok(version) => Ok(format!("Valkey {version}")),
            Err(_) => Ok(format!("Redis {}", self.info("redis_version")?)),
        }
    }

    /// Processor time of all threads.
    pub fn cpu(&self) -> Outcome<Duration> {
        machine::cpu_of(self.process())
    }

    /// Ends a server under callgrind; returns how many instructions it has executed since its start.
    pub fn instructions(mut self) -> Outcome<u64> {
        let process = libc::pid_t::try_from(self.process())?;
        // SAFETY: a signal to our own child, which has not been waited for.
        unsafe { libc::kill(process, libc::SIGTERM) };
        self.child.wait()?;
        let said = fs::read_to_string(self.dir.path().join("errors"))?;
        // A child that saved the data for a replica counts its own.
        let line = format!("=={process}== Collected : ");
        let count = said.lines().find_map(|said| said.strip_prefix(&line));
        Ok(count.ok_or_else(|| format!("callgrind has counted nothing:\n{said}"))?.trim().parse()?)
    }

    /// What a server under callgrind does for this, of all that it has done before and will do after it.
    pub fn count(&mut self, play: impl FnOnce() -> Outcome<()>) -> Outcome<Part> {
        let control = |what: &str| -> Outcome<()> {
            let output =
                Command::new("callgrind_control").args([what, &self.process().to_string()]).output()?;
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
        Part::parse(&fs::read_to_string(self.dir.path().join(format!("part.{}", self.parts)))?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The module in release mode; cargo does not build it for a bench.
fn module() -> Outcome<PathBuf> {
    static MODULE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    Ok(MODULE.get_or_init(|| build_module().map_err(|error| error.to_string())).clone()?)
}

fn build_module() -> Outcome<PathBuf> {
    match std::env::var_os("REDIS_LOCK_MODULE") {
        Some(path) => Ok(fs::canonicalize(path)?),
        None => Ok(build(&["--lib"])?.join("libredis_lock.so")),
    }
}

/// A module that does nothing.
pub fn empty_module() -> Outcome<String> {
    static MODULE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    test_module("empty", &MODULE)
}

/// A module that queues clients and unblocks them, and does nothing else.
pub fn floor_module() -> Outcome<String> {
    static MODULE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    test_module("floor", &MODULE)
}

/// One of `tests/modules`, built once.
fn test_module(name: &str, built: &OnceLock<Result<PathBuf, String>>) -> Outcome<String> {
    let build = || {
        build(&["--package", "redis-lock-test-modules", "--example", name]).map_err(|error| error.to_string())
    };
    let release = built.get_or_init(build).clone()?;
    Ok(release.join(format!("examples/lib{name}.so")).display().to_string())
}

/// Builds this in release mode, whatever this program was built in, and returns the folder where it is.
fn build(what: &[&str]) -> Outcome<PathBuf> {
    // target/release/deps/latency-0123456789abcdef
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(3).ok_or("no target folder")?;
    let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--quiet", "--target-dir"])
        .arg(target)
        .args(what)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()?;
    if !built.success() {
        return Err(format!("{what:?} does not build").into());
    }
    Ok(target.join("release"))
}
