//! What the benchmarks share: a server of their own, and a word about the machine.

#![allow(dead_code, unreachable_pub)] // Each benchmark uses its part.

use std::error::Error;
use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::Connection;
use tempfile::TempDir;

pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// How many clients may be connected.
pub const CLIENTS: usize = 10_100;

pub fn thousands(number: usize) -> String {
    match number {
        0..=999 => number.to_string(),
        _ => format!("{},{:03}", number / 1000, number % 1000),
    }
}

pub fn packed(command: &str) -> Vec<u8> {
    let mut words = redis::Cmd::new();
    for word in command.split(' ') {
        words.arg(word);
    }
    words.get_packed_command()
}

/// The server; gone with this value, and with this process even if that is killed.
pub struct Server {
    child: Child,
    port: u16,
    pub control: Connection,
    _dir: TempDir,
}

impl Server {
    pub fn start() -> Outcome<Server> {
        let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let dir = tempfile::tempdir()?;
        let log = dir.path().join("log");
        let mut command = Command::new(&program);
        command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--maxclients", &CLIENTS.to_string(), "--loadmodule"])
            .arg(module()?)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(File::create(&log)?);
        #[cfg(target_os = "linux")]
        // SAFETY: between fork and exec only a system call is made.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            let ended = child.try_wait()?.is_some();
            match client.get_connection() {
                Ok(control) if !ended => return Ok(Server { child, port, control, _dir: dir }),
                _ if ended || Instant::now() > patience => break,
                _ => sleep(Duration::from_millis(10)),
            }
        }
        let _ = child.kill();
        let _ = child.wait();
        Err(format!("{program} does not start:\n{}", fs::read_to_string(log)?).into())
    }

    /// A connection.
    pub fn connect(&self) -> Outcome<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(stream)
    }

    /// Waits until the clients of a measurement have gone, and drops what they have left.
    pub fn clear(&mut self) -> Outcome<()> {
        let patience = Instant::now() + Duration::from_secs(30);
        while self.info("connected_clients")? != "1" {
            if Instant::now() > patience {
                return Err("the connections do not close".into());
            }
            sleep(Duration::from_millis(10));
        }
        redis::cmd("FLUSHALL").query::<()>(&mut self.control)?;
        Ok(())
    }

    /// When a key's time is over. The server's clock is ours, as it runs on the same machine.
    pub fn expires_at(&mut self, key: &str) -> Outcome<Instant> {
        let unix_ms: u64 = redis::cmd("PEXPIRETIME").arg(key).query(&mut self.control)?;
        let (now, wall) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH)?);
        Ok(now + Duration::from_millis(unix_ms).checked_sub(wall).ok_or("the lease is over already")?)
    }

    pub fn info(&mut self, field: &str) -> Outcome<String> {
        let info: redis::InfoDict = redis::cmd("INFO").query(&mut self.control)?;
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
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The module in the folder that this program was built into; cargo does not build it for a bench.
fn module() -> Outcome<PathBuf> {
    if let Some(path) = std::env::var_os("REDIS_LOCK_MODULE") {
        return Ok(fs::canonicalize(path)?);
    }
    // target/release/deps/latency-0123456789abcdef
    let program = std::env::current_exe()?;
    let release = program.ancestors().nth(2).ok_or("no folder release")?;
    let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--quiet", "--target-dir"])
        .arg(release.join(".."))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()?;
    if !built.success() {
        return Err("the module does not build".into());
    }
    Ok(release.join("libredis_lock.so"))
}

/// Raises the number of files that this process and the server may open; returns how many those are.
pub fn raise_open_files(wanted: usize) -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the struct that they are given.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_cur.max(limit.rlim_max.min(wanted as libc::rlim_t));
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!("{} cores, {}", cores(), model.map_or("unknown CPU", |(_, name)| name.trim()))
}

/// Of the last minute. Our own is about 0.4; with more, the machine was not idle.
pub fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or_default().to_owned()
}
