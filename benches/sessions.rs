// SPDX-License-Identifier: MIT

//! The cost of sessions: instructions, memory, heartbeats, the end of a large session, and many tasks in few processes.
//!
//! `cargo bench --bench sessions -- memory` measures one part, and prints the results without saving them for the report. The
//! parts are `pairs`, `handovers`, `memory`, `heartbeats`, `end` and `tasks`.

mod support;

use std::thread::sleep;
use std::time::Duration;

use support::caller::Caller;
use support::clients::Queued;
use support::machine::{load, raise_open_files, Cores};
use support::paths::{self, Path};
use support::race::{self, Race};
use support::results::{measure_parts, Part, Results, Target, Unit};
use support::samples::Samples;
use support::server::{Server, Setup, CLIENTS};
use support::session::{SessionClient, LONG_GRACE_MS, LONG_TTL_MS};
use support::session_tasks::{Process, POOL};
use support::sleeping::{self, Contender};
use support::stall::stall;
use support::swarm::{Client, Endpoint, Io, Swarm};
use support::wire::Wire;
use support::{callgrind, is_requested, packed, session_ring, thousands, unless_quick, Outcome, OWNER};

/// The number of tasks in all processes together.
const TASKS: usize = 200;
const PROCESSES: usize = 4;

fn main() -> Outcome<()> {
    if !is_requested("sessions") {
        return Ok(());
    }
    println!("clients and server on the same machine, load {}\n", load());
    raise_open_files(CLIENTS);
    let parts: [(&str, Part); 6] = [
        ("pairs", pairs),
        ("handovers", hand_overs),
        ("memory", memory),
        ("heartbeats", heartbeats),
        ("end", end_of_session),
        ("tasks", tasks),
    ];
    measure_parts("sessions", &parts)
}

/// Counts the instructions of an acquire and a release of a free lock.
fn pairs(results: &mut Results) -> Outcome<()> {
    let compared: [(&Path, Target); 5] = [
        (&paths::PAIR, Target::None),
        (&paths::PAIR_WATCHDOG_ID, Target::None),
        (&paths::PAIR_SESSION, Target::AtMost(2.2)),
        (&paths::PAIR_SESSION_QUEUE, Target::AtMost(2.2)),
        (&paths::PAIR_SESSION_EPHEMERAL, Target::None),
    ];
    let all: Vec<&Path> = std::iter::once(&paths::SET_DEL).chain(compared.map(|(path, _)| path)).collect();
    let counts = callgrind::measure(&all)?;
    for ((path, target), count) in compared.into_iter().zip(&counts[1..]) {
        let what = format!("sessions: {}", path.name);
        results.ratio(&what, Unit::Instructions, *count, (paths::SET_DEL.name, counts[0]), target);
    }
    Ok(())
}

/// Counts the instructions of a hand-over among sleeping clients.
fn hand_overs(results: &mut Results) -> Outcome<()> {
    for clients in [2, 200] {
        let plain = sleeping::count(Contender::Module, clients)?.instructions;
        let renewed = sleeping::count(Contender::Renewed, clients)?.instructions;
        let what = |grants| match grants {
            1 => format!("sessions: hand-over, {clients} clients"),
            _ => format!("sessions: hand-over, {clients} clients, {grants} grants in a reply"),
        };
        for (grants, target) in [(1, 1.4), (4, 1.0)] {
            let count = session_ring::count(clients, grants)?.instructions;
            let target = Target::AtMost(target);
            results.ratio(&what(grants), Unit::Instructions, count, ("BLOCK", plain), target);
            results.ratio(
                &what(grants),
                Unit::Instructions,
                count,
                ("WATCHDOG BLOCK", renewed),
                Target::None,
            );
        }
    }
    Ok(())
}

/// Measures the growth of the server's memory.
fn memory(results: &mut Results) -> Outcome<()> {
    let count = unless_quick(10_000, 2_000);
    let each = |bytes: f64| bytes / count as f64;
    let mut server = Server::start()?;
    let mut caller = Caller::connect(&server)?;
    let open = |number| {
        format!("LOCK.SESSION OPEN NEW 1 TTL {LONG_TTL_MS} GRACE {LONG_GRACE_MS} NAME worker-{number:06}")
    };
    let before = server.settled_memory()?;
    caller.pipeline((0..count).map(open))?;
    let sessions = server.settled_memory()? - before;
    results.limit("sessions: memory of a session", Unit::Bytes, each(sessions), None, Target::AtMost(700.0));

    // The waits belong to one session, whose acquires have numbers from 1 on.
    let waits = |own_locks: bool| -> Outcome<f64> {
        let mut server = Server::start()?;
        let mut client = SessionClient::open(&server)?;
        let lock = |number: usize| if own_locks { format!("lock:{number:06}") } else { "lock".to_owned() };
        let locks = if own_locks { count } else { 1 };
        client
            .calls
            .pipeline((0..locks).map(|number| format!("LOCK.ACQUIRE {} {OWNER} PX 6000000", lock(number))))?;
        let before = server.settled_memory()?;
        let id = client.id.clone();
        let acquire =
            |n: usize| format!("LOCK.ACQUIRE {} waiter:{n:06} SESSION {id} {n} QUEUE 0", lock(n - 1));
        client.calls.pipeline((1..=count).map(acquire))?;
        Ok(each(server.settled_memory()? - before))
    };
    let limit = Target::AtMost(1_200.0);
    results.limit("sessions: memory of a wait, all for one lock", Unit::Bytes, waits(false)?, None, limit);
    results.limit("  each for its own lock", Unit::Bytes, waits(true)?, None, limit);

    let mut server = Server::start()?;
    let mut client = SessionClient::open(&server)?;
    let before = server.settled_memory()?;
    let id = client.id.clone();
    client
        .calls
        .pipeline((1..=count).map(|n| format!("LOCK.ACQUIRE lock:{n:06} {OWNER} SESSION {id} {n}")))?;
    let holds = server.settled_memory()? - before;
    let mut without = Server::start()?;
    let before = without.settled_memory()?;
    let plain = (1..=count).map(|n| format!("LOCK.ACQUIRE lock:{n:06} {OWNER} PX 6000000"));
    Caller::connect(&without)?.pipeline(plain)?;
    let plain = without.settled_memory()? - before;
    results.value("sessions: memory of a hold, beside its lock", Unit::Bytes, each(holds - plain));

    // Breaking the locks leaves one event and one answer per number.
    let mut breaker = Caller::connect(&server)?;
    breaker.pipeline((1..=count).map(|n| format!("LOCK.BREAK lock:{n:06}")))?;
    let pending = server.settled_memory()?;
    client.n = 0;
    for _ in 0..count.div_ceil(1_000) {
        client.heartbeat()?;
    }
    client.heartbeat()?;
    let acknowledged = server.settled_memory()?;
    client.n = count as u64;
    client.heartbeat()?;
    let done = server.settled_memory()?;
    let limit = Target::AtMost(200.0);
    results.limit(
        "sessions: memory of a pending event",
        Unit::Bytes,
        each(pending - acknowledged),
        None,
        limit,
    );
    results.value("sessions: memory of an answer until done", Unit::Bytes, each(acknowledged - done));
    Ok(())
}

/// A client that opens a session, acquires a lock if it has one, and then only calls `LOCK.EVENTS`.
struct Heart {
    /// The lock that the client holds, if any.
    lock: Option<String>,
    session: String,
    beat: u64,
}

impl Client for Heart {
    fn begin(&mut self, io: &mut Io<'_>) {
        io.send(0, &packed("LOCK.SESSION OPEN NEW 1 TTL 30000 GRACE 3000 NAME bench"));
    }

    fn on_reply(&mut self, _: usize, reply: &[u8], io: &mut Io<'_>) -> Outcome<()> {
        if self.session.is_empty() {
            self.session = support::session::session_id(reply)?;
            if let Some(lock) = &self.lock {
                io.send(0, &packed(&format!("LOCK.ACQUIRE {lock} {OWNER} SESSION {} 1", self.session)));
                return Ok(());
            }
        }
        self.beat += 1;
        io.send(0, &packed(&format!("LOCK.EVENTS {} {} 0 1 1000", self.session, self.beat)));
        Ok(())
    }
}

/// Measures the server's processor time for heartbeats, without and with one renewed hold per session.
fn heartbeats(results: &mut Results) -> Outcome<()> {
    let clients = 1_000;
    let watch = Duration::from_secs(unless_quick(20, 5));
    let greetings = [packed("PING")];
    let busy = |server: &mut Server, clients: Vec<Heart>| -> Outcome<f64> {
        let endpoint =
            Endpoint { address: server.address(), wire: Wire::Redis, greetings: &greetings, connections: 1 };
        let mut swarm = Swarm::start(&endpoint, clients)?;
        swarm.run(Duration::from_secs(2))?;
        let before = server.cpu()?;
        swarm.run(watch)?;
        Ok((server.cpu()? - before).as_secs_f64() / watch.as_secs_f64() * 100.0)
    };
    let server = Server::start()?;
    let idle_clients: Vec<_> = (0..clients).map(|_| server.connect()).collect::<Outcome<_>>()?;
    sleep(Duration::from_secs(1));
    let before = server.cpu()?;
    sleep(watch);
    let idle = (server.cpu()? - before).as_secs_f64() / watch.as_secs_f64() * 100.0;
    drop(idle_clients);
    for (what, holds) in [("", false), (", each with a hold", true)] {
        let mut server = Server::start()?;
        let heart = |number: usize| Heart {
            lock: holds.then(|| format!("lock:{number}")),
            session: String::new(),
            beat: 1,
        };
        let share = busy(&mut server, (0..clients).map(heart).collect())? - idle;
        let what = format!("sessions: heartbeats of {} sessions at 1 s{what}, of a core", thousands(clients));
        results.limit(&what, Unit::Percent, share, None, Target::AtMost(3.0));
    }
    Ok(())
}

/// Measures how long another client waits for a `PING` while a session with many ephemeral holds ends.
fn end_of_session(results: &mut Results) -> Outcome<()> {
    let holds = 10_000;
    let [mut idle, mut closed, mut broken] = [const { Samples(Vec::new()) }; 3];
    for _ in 0..unless_quick(5, 1) {
        for (samples, closes) in [(&mut closed, true), (&mut broken, false)] {
            let mut server = Server::start()?;
            // Without grace, the session ends with its reader.
            let mut client = SessionClient::open_for(&server, LONG_TTL_MS, 0)?;
            let id = client.id.clone();
            let acquire = |n| format!("LOCK.ACQUIRE lock:{n} {OWNER} EPHEMERAL SESSION {id} {n}");
            client.calls.pipeline((1..=holds).map(acquire))?;
            idle.0.push(stall(&mut server, |_| {
                sleep(Duration::from_millis(200));
                Ok(())
            })?);
            let SessionClient { reader, mut calls, .. } = client;
            let mut reader = Some(reader);
            samples.0.push(stall(&mut server, |server| {
                if closes {
                    calls.call(&format!("LOCK.SESSION CLOSE {id}"))?;
                } else {
                    drop(reader.take());
                }
                server.until("all locks are free", |server| Ok(server.keys()? == 0))
            })?);
        }
    }
    for (what, samples) in [("LOCK.SESSION CLOSE", &closed), ("end of the reader", &broken)] {
        let what = format!("sessions: {what} with {} ephemeral holds, stall", thousands(holds));
        let base = ("nothing happens", idle.max());
        results.limit(&what, Unit::Micros, samples.max(), Some(base), Target::AtMost(5_000.0));
    }
    Ok(())
}

/// Measures many tasks in few processes, with one session per process, beside as many connections with `BLOCK`.
fn tasks(results: &mut Results) -> Outcome<()> {
    let cores = Cores::share(1);
    let time = Duration::from_millis(unless_quick(2_000, 500));
    for locks in [1, 50] {
        let [mut sessions, mut blocked] = [const { Vec::new() }; 2];
        for _ in 0..unless_quick(5, 1) {
            sessions.push(race_of_processes(&cores, locks, time)?);
            blocked.push(race_of_connections(&cores, locks, time)?);
        }
        let median = |races: &[Race], of: fn(&Race) -> f64| Samples(races.iter().map(of).collect()).median();
        let cpu: fn(&Race) -> f64 = |race| race.cpu_per_grant;
        let wall: fn(&Race) -> f64 = |race| 1e6 / race.grants_per_second;
        let what = format!("sessions: {TASKS} tasks, {PROCESSES} processes, {locks} locks");
        for (name, of, target) in [
            ("server's time for a grant", cpu, Target::AtMost(0.7)),
            ("time for a grant", wall, Target::None),
        ] {
            let base = ("BLOCK", median(&blocked, of));
            results.ratio(&format!("{what}, {name}"), Unit::Micros, median(&sessions, of), base, target);
        }
    }
    Ok(())
}

fn race_of_processes(cores: &Cores, locks: usize, time: Duration) -> Outcome<Race> {
    let tasks = TASKS / PROCESSES;
    let processes = (0..PROCESSES).map(|process| Process::new(process * tasks, tasks, locks)).collect();
    race_on(cores, processes, 1 + POOL, time)
}

fn race_of_connections(cores: &Cores, locks: usize, time: Duration) -> Outcome<Race> {
    let client = |number: usize| Queued::native(&format!("race:{}", number % locks), number);
    race_on(cores, (0..TASKS).map(client).collect(), 1, time)
}

/// Starts a new server for each race, because sessions outlive their connections.
fn race_on<C: Client + Send>(
    cores: &Cores,
    clients: Vec<C>,
    connections: usize,
    time: Duration,
) -> Outcome<Race> {
    let server = Setup::new().on_cores(&cores.server).start()?;
    // The reply shows that the server has accepted the connection.
    let greetings = [packed("PING")];
    let endpoint =
        Endpoint { address: server.address(), wire: Wire::Redis, greetings: &greetings, connections };
    race::run(cores, &endpoint, clients, || server.cpu(), time)
}
