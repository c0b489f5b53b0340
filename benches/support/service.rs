// SPDX-License-Identifier: MIT

//! The lock services etcd and ZooKeeper, and the programs that use them. `benches/peers/setup.sh` installs both.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis_lock_test_kit::artifacts::root;
use tempfile::TempDir;

use super::machine::{self, Cores};
use super::program::Program;
use super::race_result::{Load, Race, RaceAnswer};
use super::Outcome;

/// The time before a measurement in which clients queue up, and Java compiles its code.
const WARM_UP: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Etcd,
    ZooKeeper,
}

/// The way in which the server writes a change before it confirms it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// Flushes the change to disk, which is the default of both servers.
    Synced,
    Unsynced,
}

/// A server of one node, in a temporary folder. It is killed when this value is dropped, and also when this process is killed.
pub struct Service {
    kind: Kind,
    child: Child,
    port: u16,
    cores: Cores,
    dir: TempDir,
}

impl Service {
    /// Starts the server. Returns `None` and prints a line if it is not installed.
    pub fn start(kind: Kind, disk: Disk) -> Outcome<Option<Service>> {
        if !folder(kind).join("stamp").exists() {
            eprintln!("SKIPPED: {kind:?} is not installed, see benches/peers/setup.sh");
            return Ok(None);
        }
        let dir = tempfile::tempdir()?;
        let (port, cores) = (free_port()?, Cores::all_but_one());
        let mut command = match kind {
            Kind::Etcd => etcd(&dir, port, disk)?,
            Kind::ZooKeeper => zookeeper(&dir, port, disk)?,
        };
        machine::tie(&mut command, &cores.server);
        let log = File::create(dir.path().join("log"))?;
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let mut service = Service { kind, child, port, cores, dir };
        service.wait_until_ready()?;
        Ok(Some(service))
    }

    fn wait_until_ready(&mut self) -> Outcome<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if self.child.try_wait()?.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                return Err(format!("{:?} does not start:\n{log}", self.kind).into());
            }
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Starts a process whose clients use the server.
    pub fn start_clients(&self) -> Outcome<Program> {
        let mut command = match self.kind {
            Kind::Etcd => Command::new(folder(self.kind).join("load")),
            Kind::ZooKeeper => {
                let place = folder(self.kind);
                let mut java = Command::new("java");
                java.args(["-Xmx512m", "-XX:-UsePerfData", "-cp"]);
                java.args([&format!("{0}/load.jar:{0}/lib/*", place.display()), "Load"]);
                // slf4j warns that it has no logger.
                java.arg(format!("127.0.0.1:{}", self.port)).stderr(Stdio::null());
                java
            }
        };
        if self.kind == Kind::Etcd {
            command.arg(format!("127.0.0.1:{}", self.port));
        }
        machine::tie(&mut command, &self.cores.loaders);
        Program::start(&mut command)
    }

    /// Races clients of a load of this server.
    pub fn race(&self, program: &mut Program, load: Load, time: Duration) -> Outcome<Race> {
        let Load { clients, locks } = load;
        program.send(&format!("connect {clients}"))?;
        program.expect("connected")?;
        let before = machine::cpu_of(self.child.id())?;
        program.send(&format!("race {clients} {locks} {} {}", WARM_UP.as_millis(), time.as_millis()))?;
        let answer = RaceAnswer::parse(&program.line()?)?;
        Ok(answer.into_race(load, machine::cpu_of(self.child.id())? - before, time))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn folder(kind: Kind) -> PathBuf {
    root().join("target/peers").join(match kind {
        Kind::Etcd => "etcd",
        Kind::ZooKeeper => "zookeeper",
    })
}

fn free_port() -> Outcome<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn etcd(dir: &TempDir, port: u16, disk: Disk) -> Outcome<Command> {
    let (clients, peers) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", free_port()?));
    let mut command = Command::new(folder(Kind::Etcd).join("etcd"));
    command.args(["--log-level", "error", "--data-dir"]).arg(dir.path().join("data"));
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("default={peers}")]);
    if disk == Disk::Unsynced {
        command.arg("--unsafe-no-fsync");
    }
    Ok(command)
}

fn zookeeper(dir: &TempDir, port: u16, disk: Disk) -> Outcome<Command> {
    let config = dir.path().join("zoo.cfg");
    let data = dir.path().join("data");
    // All clients have the same address, so their number must not be limited. The tick is that of the sample configuration.
    let settings = "clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\ntickTime=2000\n";
    fs::write(&config, format!("dataDir={}\nclientPort={port}\n{settings}", data.display()))?;
    let mut command = Command::new("java");
    command.args(["-Xmx1000m", "-XX:-UsePerfData"]);
    if disk == Disk::Unsynced {
        command.arg("-Dzookeeper.forceSync=no");
    }
    command.args(["-cp", &format!("{}/lib/*", folder(Kind::ZooKeeper).display())]);
    command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(config);
    Ok(command)
}
