// SPDX-License-Identifier: MIT

//! The time for which a killed process keeps its lock. A process acquires a lock, a second process waits for the lock, and the
//! first one is killed by `SIGKILL`. The result is the time from the signal until the second process has the lock.

use std::process::Command;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use redis_lock_test_kit::programs::redisson::{Redisson, Version};

use super::postgres::Postgres;
use super::program::Program;
use super::server::{Server, Setup};
use super::service::{Disk, Kind, Service};
use super::Outcome;

/// The time that the waiter has to begin its wait.
const PAUSE: Duration = Duration::from_secs(1);

/// A measurement, with the setting that decides the result.
struct Case<'a> {
    name: &'static str,
    measure: Box<dyn FnOnce() -> Outcome<Duration> + Send + 'a>,
}

/// Measures all systems that are installed, at the same time. Returns their names and the times.
pub fn measure() -> Outcome<Vec<(&'static str, Duration)>> {
    let (module, plain) = (Server::start()?, Setup::new().without_module().start()?);
    let postgres = Postgres::start()?;
    let etcd = Service::start(Kind::Etcd, Disk::Synced)?;
    let zookeeper = Service::start(Kind::ZooKeeper, Disk::Synced)?;
    let mut cases = on_module(&module);
    cases.extend(on_plain(&plain));
    cases.extend(postgres.iter().map(|postgres| {
        let client = || Client {
            command: postgres.psql(),
            request: "select pg_advisory_lock(1); select 'held';",
            granted: "held",
        };
        Case::of("PostgreSQL: end of the connection", move || client().hold(), client())
    }));
    cases.extend(etcd.iter().map(|etcd| of_service("etcd 3.7: session TTL 60 s", etcd)));
    cases.extend(zookeeper.iter().map(|zookeeper| {
        of_service("ZooKeeper 3.9: session timeout 40 s (Curator's 60 s, limited by the server)", zookeeper)
    }));
    scope(|scope| {
        let running: Vec<_> = cases.into_iter().map(|case| (case.name, scope.spawn(case.measure))).collect();
        running
            .into_iter()
            .map(|(name, thread)| {
                let time = thread.join().map_err(|_| "a thread has panicked")?;
                Ok((name, time.map_err(|error| format!("{name}: {error}"))?))
            })
            .collect()
    })
}

fn on_module(server: &Server) -> Vec<Case<'_>> {
    let waiter = |request| Client { command: cli(server), request, granted: "1" };
    vec![
        Case::of(
            "this module: lock.default-lease 30 s",
            move || {
                Client { command: cli(server), request: "LOCK.ACQUIRE lease holder", granted: "1" }.hold()
            },
            waiter("LOCK.ACQUIRE lease waiter BLOCK 0"),
        ),
        Case::of(
            "this module: session of a client package, GRACE 3 s",
            move || hold_in_session(server),
            waiter("LOCK.ACQUIRE session waiter BLOCK 0"),
        ),
        Case::of(
            "this module: EPHEMERAL, end of the connection",
            move || {
                let request = "LOCK.ACQUIRE ephemeral holder EPHEMERAL";
                Client { command: cli(server), request, granted: "1" }.hold()
            },
            waiter("LOCK.ACQUIRE ephemeral waiter BLOCK 0"),
        ),
    ]
}

/// Returns the cases of a server without the module.
fn on_plain(server: &Server) -> Vec<Case<'_>> {
    let mut poll = cli(server);
    poll.args(["-r", "-1", "-i", "0.01", "SET", "polled", "waiter", "NX", "PX", "30000"]);
    let polling = Case::of(
        "polling: lease 30 s (libraries have no common default)",
        move || {
            let request = "SET polled holder NX PX 30000";
            Client { command: cli(server), request, granted: "OK" }.hold()
        },
        Client { command: poll, request: "", granted: "OK" },
    );
    let redisson = || -> Outcome<Duration> {
        let [holder, waiter] = [(); 2].map(|()| {
            let jvm = Redisson::start(Version::V4_7_0);
            jvm.connect("main", &format!("single {}", server.url()));
            jvm
        });
        holder.thread("main").call("lock plain redisson");
        let waiting = waiter.thread("main").start("lock plain redisson").with_more_time(PAUSE * 60);
        sleep(PAUSE);
        let killed = Instant::now();
        holder.kill();
        waiting.wait();
        Ok(killed.elapsed())
    };
    let name = "Redisson 4.7: lockWatchdogTimeout 30 s";
    let redisson = Version::V4_7_0.is_installed().then(|| Case { name, measure: Box::new(redisson) });
    redisson.into_iter().chain([polling]).collect()
}

fn of_service<'a>(name: &'static str, service: &'a Service) -> Case<'a> {
    let hold = || -> Outcome<Program> {
        let mut holder = service.start_clients()?;
        holder.send("lock killed")?;
        holder.expect("locked")?;
        Ok(holder)
    };
    let measure = move || {
        let (holder, mut waiter) = (hold()?, service.start_clients()?);
        waiter.send("lock killed")?;
        kill(holder, waiter, "locked")
    };
    Case { name, measure: Box::new(measure) }
}

/// A process that acquires a lock by a request, and says something when it has the lock.
struct Client {
    command: Command,
    request: &'static str,
    granted: &'static str,
}

impl Client {
    fn start(&mut self) -> Outcome<Program> {
        let mut program = Program::start(&mut self.command)?;
        program.send(self.request)?;
        Ok(program)
    }

    /// Returns the process when it has the lock.
    fn hold(mut self) -> Outcome<Program> {
        let mut program = self.start()?;
        program.expect(self.granted)?;
        Ok(program)
    }
}

impl<'a> Case<'a> {
    fn of(
        name: &'static str,
        hold: impl FnOnce() -> Outcome<Program> + Send + 'a,
        mut waiter: Client,
    ) -> Case<'a> {
        let measure = move || kill(hold()?, waiter.start()?, waiter.granted);
        Case { name, measure: Box::new(measure) }
    }
}

/// Kills the holder, and returns the time until the waiter has the lock.
fn kill(mut holder: Program, mut waiter: Program, granted: &str) -> Outcome<Duration> {
    sleep(PAUSE);
    if !waiter.is_silent() {
        return Err("the waiter does not wait".into());
    }
    let killed = Instant::now();
    holder.kill()?;
    waiter.expect(granted)?;
    Ok(killed.elapsed())
}

fn cli(server: &Server) -> Command {
    let mut cli = Command::new("redis-cli");
    cli.args(["-p", &server.port.to_string()]);
    cli
}

/// Returns a process that holds a lock in a session, with the options and the defaults of the client packages.
fn hold_in_session(server: &Server) -> Outcome<Program> {
    let mut holder = Program::start(&mut cli(server))?;
    holder.send("LOCK.SESSION OPEN NEW 1 TTL 30000 GRACE 3000 NAME bench")?;
    let mut line = holder.line()?;
    while line.len() != 32 {
        line = holder.line()?;
    }
    holder.send(&format!("LOCK.EVENTS {line} 2 0 1"))?;
    holder.send("ECHO confirmed")?;
    while holder.line()? != "confirmed" {}
    holder.send(&format!("LOCK.ACQUIRE session holder EPHEMERAL SESSION {line} 1"))?;
    holder.expect("1")?;
    Ok(holder)
}
