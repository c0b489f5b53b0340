// SPDX-License-Identifier: MIT

//! Clients that use every feature of the locks, break their connections, and record what they observe.
//!
//! A seed determines the sequence of random choices of each client. The effects also depend on the server's replies, and
//! therefore on the timing of all clients.

mod client;
mod faults;
mod link;
mod probe;
mod scenes;
mod session;
mod session_scenes;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::SeedableRng;

use crate::record::{Command, Record, Recorder, Run};
use crate::wire::Wire;
use client::Client;
use link::{Line, Link};

/// Settings of a load.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of clients that call and wait.
    pub clients: u32,
    /// Number of clients with a session.
    pub sessions: u32,
    /// Number of [scenes] that run at a time: a few clients each, with locks of their own.
    pub scenes: u32,
    /// Approximate number of calls of each client.
    pub calls: u32,
    /// Minimum number of granted acquires before the load ends, as refused calls finish at once.
    pub grants: u32,
    /// Minimum length of the load. It ends once its calls, its grants and this length are reached.
    pub at_least: Duration,
    /// No calls start after this time.
    pub at_most: Duration,
    /// Prefix of every lock name: a hash tag if all locks must share a slot.
    pub prefix: &'static str,
    /// Number of locks in use at a time.
    pub keys: u32,
    /// Number of calls after which a client switches to new locks, so that the history of one lock stays short.
    pub calls_per_key: u32,
    /// Factor for every lease of a call. Without it, few leases exceed 200 ms.
    pub stretch: u32,
    /// Number of owner names of each client.
    pub owners: u32,
    /// Whether an owner name is discarded after its first release.
    pub names_once: bool,
    /// Number of calls in a thousand whose connection is broken.
    pub broken: u32,
    /// Number of calls in a thousand whose client is suspended for longer than most leases, during or after the call.
    pub still: u32,
    /// The features in use.
    pub features: Features,
    /// Number of replicas of the server.
    pub replicas: u32,
    /// The acknowledgement that an acquire or a renewal needs before it counts.
    pub promise: Promise,
    /// Disturbances of connections and of the server.
    pub faults: Faults,
    /// `lock.default-lease` during the load.
    pub default_lease: Duration,
    /// `lock.request-ttl` during the load.
    pub request_ttl: Duration,
    /// Time after which a client abandons a wait without a timeout. A lost wake-up is noticed only if the wait lasts that long.
    pub patience: Duration,
}

/// Features of the load that can be disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// `SHARED` and `LIMIT`.
    pub shared: bool,
    /// `ONCE`.
    pub once: bool,
    /// `WATCHDOG` and `EPHEMERAL`.
    pub bound: bool,
    /// `LOCK.MACQUIRE`, `LOCK.MRELEASE` and `LOCK.MRENEW`.
    pub several: bool,
    /// `LOCK.BREAK`.
    pub breaks: bool,
    /// `LOCK.CANCEL`.
    pub cancel: bool,
    /// `LOCK.GUARD`.
    pub guard: bool,
}

impl Features {
    /// Every feature.
    pub const ALL: Features = Features {
        shared: true,
        once: true,
        bound: true,
        several: true,
        breaks: true,
        cancel: true,
        guard: true,
    };
    /// Features that survive a failover. Holds bound to a connection do not: they end with their primary.
    pub const UNBOUND: Features = Features { bound: false, several: false, breaks: false, ..Features::ALL };
    /// Features that a checker for linearizability can decide: exclusive locks.
    pub const EXCLUSIVE: Features = Features {
        shared: false,
        once: false,
        bound: false,
        several: false,
        breaks: true,
        cancel: false,
        guard: true,
    };
    /// Exclusive and shared locks, with limits, as a checker for linearizability can decide them.
    pub const READERS: Features = Features { shared: true, ..Features::EXCLUSIVE };
}

/// The acknowledgement that a client waits for before it trusts a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// The primary's reply.
    Primary,
    /// The primary's reply, followed by `WAIT` for this number of replicas.
    Wait(u32),
    /// The reply to a call with `REPLICAS` and this number.
    Replicas(u32),
}

impl Promise {
    fn replicas(self) -> Option<u32> {
        match self {
            Promise::Replicas(number) => Some(number),
            Promise::Primary | Promise::Wait(_) => None,
        }
    }
}

/// Faults made by commands. For faults of the process, see [`Shared`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// `CLIENT KILL`.
    pub kill: bool,
    /// `CLIENT UNBLOCK`.
    pub unblock: bool,
    /// `CLIENT PAUSE`.
    pub pause: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            seed: 1,
            clients: 8,
            sessions: 1,
            scenes: 0,
            calls: 400,
            grants: 0,
            at_least: Duration::ZERO,
            at_most: Duration::from_secs(30),
            prefix: "",
            keys: 4,
            calls_per_key: 100,
            stretch: 1,
            owners: 3,
            names_once: false,
            broken: 40,
            still: 0,
            features: Features::ALL,
            replicas: 0,
            promise: Promise::Primary,
            faults: Faults::default(),
            default_lease: Duration::from_millis(400),
            request_ttl: Duration::from_secs(20),
            patience: Duration::from_secs(20),
        }
    }
}

impl Settings {
    /// The first line of the history.
    pub fn run(&self) -> Run {
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let (default_lease, request_ttl) = (ms(self.default_lease), ms(self.request_ttl));
        Run { seed: self.seed, default_lease, request_ttl, replicas: self.replicas }
    }
}

/// State shared by all threads of a load.
pub struct Shared {
    /// Records the history.
    pub recorder: Recorder,
    settings: Settings,
    server: Mutex<SocketAddr>,
    is_finished: AtomicBool,
    generation: AtomicU32,
    granted: AtomicU32,
    open: Mutex<Vec<i64>>,
    disturbed: Mutex<()>,
    began: Instant,
}

impl Shared {
    /// Creates a load on this server.
    pub fn new(settings: Settings, server: SocketAddr) -> Shared {
        Shared {
            recorder: Recorder::new(settings.run()),
            server: Mutex::new(server),
            is_finished: AtomicBool::new(false),
            generation: AtomicU32::new(0),
            granted: AtomicU32::new(0),
            open: Mutex::default(),
            disturbed: Mutex::default(),
            began: Instant::now(),
            settings,
        }
    }

    /// Lets clients make all further connections to another server.
    pub fn move_to(&self, server: SocketAddr) {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }

    fn server(&self) -> SocketAddr {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Excludes other disturbances by commands while the guard lives. Two pauses would merge, and unblocking a client in a
    /// pause crashes some servers.
    fn exclude_other_faults(&self) -> MutexGuard<'_, ()> {
        self.disturbed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all clients have finished their calls.
    pub fn is_over(&self) -> bool {
        self.is_finished.load(Ordering::Relaxed)
    }

    fn is_late(&self) -> bool {
        self.began.elapsed() >= self.settings.at_most
    }

    /// Whether a client has made enough calls.
    fn is_enough(&self, calls: u32) -> bool {
        calls >= self.settings.calls
            && self.granted.load(Ordering::Relaxed) >= self.settings.grants
            && self.began.elapsed() >= self.settings.at_least
    }

    fn rng(&self, client: u32) -> StdRng {
        StdRng::seed_from_u64(self.settings.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(client)))
    }

    /// The lock for one of a client's calls.
    fn key(&self, slot: u32, call: u32) -> String {
        self.key_of(call / self.settings.calls_per_key.max(1), slot)
    }

    fn key_of(&self, generation: u32, slot: u32) -> String {
        format!("{}lock-{generation}-{slot}", self.settings.prefix)
    }
}

/// Runs the load until all clients have finished their calls. `disturb` may affect the server meanwhile if it records what
/// it does. It must return soon after the load [is over](Shared::is_over).
pub fn run(shared: &Shared, disturb: impl FnOnce(&Shared) + Send) -> Result<Vec<Record>, String> {
    let settings = &shared.settings;
    configure(shared)?;
    let watchers = settings.clients + settings.sessions;
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for number in 0..settings.clients {
            workers.push(scope.spawn(move || Client::new(shared, number).run()));
        }
        for number in settings.clients..watchers {
            workers.push(scope.spawn(move || session::run(shared, number)));
        }
        scope.spawn(move || probe::run(shared, watchers));
        scope.spawn(move || faults::run(shared, watchers + 1));
        for number in 0..settings.scenes {
            scope.spawn(move || scenes::run(shared, watchers + 3 + number));
        }
        let disturber = scope.spawn(move || disturb(shared));
        let ended = workers.into_iter().map(|worker| worker.join().is_ok()).fold(true, |all, ok| all & ok);
        shared.is_finished.store(true, Ordering::Relaxed);
        let disturbed = disturber.join().is_ok();
        (ended && disturbed).then_some(()).ok_or("a thread of the load has panicked")
    })?;
    read_logs(shared, watchers + 2);
    Ok(shared.recorder.history())
}

fn configure(shared: &Shared) -> Result<(), String> {
    let run = shared.settings.run();
    let mut wire = Wire::connect(shared.server()).map_err(|error| error.to_string())?;
    let mut ask = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        wire.send(&words, None).map_err(|error| error.to_string())?;
        match wire.receive(Duration::from_secs(20)) {
            Ok(Ok(answer)) => Ok(answer),
            other => Err(format!("{words:?} got the reply {other:?}")),
        }
    };
    ask(&["CONFIG", "SET", "lock.default-lease", &run.default_lease.to_string()])?;
    ask(&["CONFIG", "SET", "lock.request-ttl", &run.request_ttl.to_string()])?;
    // Tokens, request records and lists of an earlier run would be attributed to this one.
    if ask(&["DBSIZE"])?.as_i64() != Some(0) {
        return Err("the load needs a server without keys".to_owned());
    }
    Ok(())
}

/// Reads the data written under the locks.
fn read_logs(shared: &Shared, client: u32) {
    let mut line = Line::new(shared, client);
    for generation in 0..=shared.generation.load(Ordering::Relaxed) {
        for slot in 0..shared.settings.keys {
            let key = shared.key_of(generation, slot);
            line.call(Command::Log { key }, None);
        }
    }
}

impl Link {
    fn register(&self, shared: &Shared) {
        shared.open.lock().unwrap_or_else(PoisonError::into_inner).push(self.server_id);
    }

    fn forget(&self, shared: &Shared) {
        shared.open.lock().unwrap_or_else(PoisonError::into_inner).retain(|id| *id != self.server_id);
    }
}
