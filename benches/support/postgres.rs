// SPDX-License-Identifier: MIT

//! A PostgreSQL server that a benchmark measures. Clients of a [`swarm`](super::swarm) use its advisory locks by prepared
//! statements over TCP.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::clients::Queued;
use super::machine::{self, Cores};
use super::ring::Calls;
use super::swarm::Endpoint;
use super::wire::Wire;
use super::Outcome;

/// A PostgreSQL server in its own folder. It stops when this value is dropped, and also when this process is killed.
pub struct Postgres {
    child: Child,
    port: u16,
    greetings: [Vec<u8>; 2],
    /// PostgreSQL has many processes, so it gets all cores but one.
    pub cores: Cores,
    _dir: TempDir,
}

impl Postgres {
    /// Starts the server. Returns `None` and prints a line if PostgreSQL is not installed.
    pub fn start() -> Outcome<Option<Postgres>> {
        let Some(programs) = programs() else {
            eprintln!("SKIPPED: PostgreSQL is not installed");
            return Ok(None);
        };
        let dir = tempfile::tempdir()?;
        let data = dir.path().join("data");
        // PostgreSQL refuses to run as root.
        let user = user()?;
        if let Some((user, group)) = user {
            chown(dir.path(), Some(user), Some(group))?;
        }
        let run = |program: &str| -> Outcome<Command> {
            let mut command = Command::new(programs.join(program));
            if let Some((user, group)) = user {
                command.uid(user).gid(group);
            }
            command.arg("-D").arg(&data).current_dir(dir.path()).stdin(Stdio::null());
            let log = File::options().create(true).append(true).open(dir.path().join("log"))?;
            command.stdout(log.try_clone()?).stderr(log);
            Ok(command)
        };
        let log = || fs::read_to_string(dir.path().join("log")).unwrap_or_default();
        if !run("initdb")?.args(["-U", "bench", "-A", "trust", "--no-sync", "--locale=C"]).status()?.success()
        {
            return Err(format!("initdb fails:\n{}", log()).into());
        }
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut server = run("postgres")?;
        let cores = Cores::all_but_one();
        // A change of user clears the parent-death signal of a process. So the hook that requests the signal runs afterwards.
        machine::tie(&mut server, &cores.server);
        server.args([
            "-p",
            &port.to_string(),
            "-k",
            "",
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "fsync=off",
        ]);
        let mut child = server.args(["-c", "max_connections=250", "-c", "autovacuum=off"]).spawn()?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", port)).is_err() || !log().contains("ready to accept") {
            if child.try_wait()?.is_some() || Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("PostgreSQL does not start:\n{}", log()).into());
            }
            sleep(Duration::from_millis(10));
        }
        Ok(Some(Postgres { child, port, greetings: [hello(), prepare()], cores, _dir: dir }))
    }

    pub fn endpoint(&self) -> Endpoint<'_> {
        let address: SocketAddr = ([127, 0, 0, 1], self.port).into();
        Endpoint { address, wire: Wire::Postgres, greetings: &self.greetings, connections: 1 }
    }

    /// Returns a command that reads SQL from its input, and writes only the values of the results.
    pub fn psql(&self) -> Command {
        let mut psql = Command::new(programs().unwrap_or_default().join("psql"));
        let port = self.port.to_string();
        psql.args(["-h", "127.0.0.1", "-p", &port, "-U", "bench", "-d", "postgres", "-A", "-t", "-q"]);
        psql
    }

    /// Returns the processor time of all processes of the server.
    pub fn cpu(&self) -> Outcome<Duration> {
        machine::cpu_of_family(self.child.id())
    }
}

/// Returns a client that blocks in the server until it gets the lock with this number.
pub fn client(lock: usize) -> Queued {
    let Calls { acquire, release } = calls(lock);
    Queued::new(acquire, release)
}

/// Returns the calls that a client of a [`ring`](super::ring) makes.
pub fn calls(lock: usize) -> Calls {
    Calls { acquire: execute("acquire", lock), release: execute("release", lock) }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let Ok(process) = libc::pid_t::try_from(self.child.id()) else { return };
        // Ends all sessions at once.
        // SAFETY: a signal to our own child, which has not been waited for.
        unsafe { libc::kill(process, libc::SIGQUIT) };
        let _ = self.child.wait();
    }
}

/// Returns the folder of the programs of the newest version that Debian has installed.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    programs.filter(|programs| programs.join("initdb").exists()).max()
}

/// Returns the user and group to run as. Without root privileges, returns `None`: the current user runs the server.
fn user() -> Outcome<Option<(u32, u32)>> {
    // SAFETY: a system call that cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let user = users.lines().find(|user| user.starts_with("postgres:")).ok_or("no user postgres")?;
    let mut fields = user.split(':').skip(2);
    let mut next = || fields.next().and_then(|id| id.parse().ok()).ok_or("a strange /etc/passwd");
    Ok(Some((next()?, next()?)))
}

fn hello() -> Vec<u8> {
    message(None, b"\0\x03\0\0user\0bench\0database\0postgres\0\0")
}

fn prepare() -> Vec<u8> {
    let parse = |name: &str, function: &str| {
        message(Some(b'P'), format!("{name}\0select {function}($1)\0\0\0").as_bytes())
    };
    let sync = message(Some(b'S'), b"");
    [parse("acquire", "pg_advisory_lock"), parse("release", "pg_advisory_unlock"), sync].concat()
}

/// Encodes the execution of a statement with one parameter in text format.
fn execute(statement: &str, lock: usize) -> Vec<u8> {
    let (lock, mut body) = (lock.to_string(), format!("\0{statement}\0\0\0\0\x01").into_bytes());
    body.extend(u32::try_from(lock.len()).unwrap_or(u32::MAX).to_be_bytes());
    body.extend(lock.as_bytes());
    body.extend(b"\0\0");
    let bind = message(Some(b'B'), &body);
    [bind, message(Some(b'E'), b"\0\0\0\0\0"), message(Some(b'S'), b"")].concat()
}

/// Encodes a message: its kind, its length including the four bytes of the length, and its body.
fn message(kind: Option<u8>, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
    let mut message: Vec<u8> = kind.into_iter().collect();
    message.extend(length.to_be_bytes());
    message.extend(body);
    message
}
