// SPDX-License-Identifier: MIT

//! Clients that use everything that the locks have, break their connections, and take down what they saw.
//!
//! The same seed makes the same draws, client by client and call by call. What they lead to depends on what the server
//! answers, and so on how the clients' calls meet.

mod client;
mod faults;
mod link;
mod notify;
mod probe;
mod scenes;

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

/// What a load is to be like.
#[derive(Clone, Debug)]
pub struct Settings {
    /// From which all choices come.
    pub seed: u64,
    /// How many clients call and wait.
    pub clients: u32,
    /// How many clients wait by `NOTIFY`.
    pub listeners: u32,
    /// How many [scenes] are played at a time: a few clients each, with locks of their own.
    pub scenes: u32,
    /// How many calls each of them makes, about.
    pub calls: u32,
    /// They go on until so many of their acquires were granted: while the server refuses everything, calls are over in no time.
    pub grants: u32,
    /// No more calls begin after this time.
    pub at_most: Duration,
    /// What the name of each lock begins with: a hash tag, where all are to be in one slot.
    pub prefix: &'static str,
    /// How many locks are in use at a time.
    pub keys: u32,
    /// After so many calls of a client it goes on with new locks, so that the history of one lock stays short.
    pub calls_per_key: u32,
    /// Every lease that a call names is so many times as long: else few are longer than 200 ms.
    pub stretch: u32,
    /// How many owner names each client has.
    pub owners: u32,
    /// A name that has given something back acquires nothing more.
    pub names_once: bool,
    /// Of a thousand calls so many have their connection broken.
    pub broken: u32,
    /// Of a thousand calls so many have their client stand still for longer than most leases: between sending and reading,
    /// or after it.
    pub still: u32,
    /// Which parts of the commands are used.
    pub features: Features,
    /// How many replicas the server has.
    pub replicas: u32,
    /// What an acquire and a renewal must have before they count.
    pub promise: Promise,
    /// What is done to connections and to the server meanwhile.
    pub faults: Faults,
    /// `lock.default-lease` while the load runs.
    pub default_lease: Duration,
    /// `lock.request-ttl` while the load runs.
    pub request_ttl: Duration,
    /// A client that waits without limit for so long gives up. So long must a lost wake-up last to be seen.
    pub patience: Duration,
}

/// Parts of the commands that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// `SHARED` and `LIMIT`.
    pub shared: bool,
    /// `ONCE`.
    pub once: bool,
    /// `WATCHDOG` and `EPHEMERAL`.
    pub bound: bool,
    /// `LOCK.MACQUIRE` and its like.
    pub several: bool,
    /// `LOCK.BREAK`.
    pub breaks: bool,
    /// `LOCK.CANCEL`.
    pub cancel: bool,
    /// `LOCK.GUARD`.
    pub guard: bool,
}

impl Features {
    /// Everything.
    pub const ALL: Features = Features {
        shared: true,
        once: true,
        bound: true,
        several: true,
        breaks: true,
        cancel: true,
        guard: true,
    };
    /// What another primary knows of as well: a hold that depends on a connection ends with its primary.
    pub const UNBOUND: Features = Features { bound: false, several: false, breaks: false, ..Features::ALL };
    /// What a point model can decide: exclusive locks.
    pub const EXCLUSIVE: Features = Features {
        shared: false,
        once: false,
        bound: false,
        several: false,
        breaks: true,
        cancel: false,
        guard: true,
    };
    /// The same, and shared ones with limits.
    pub const READERS: Features = Features { shared: true, ..Features::EXCLUSIVE };
}

/// What a client waits for before it takes a lock for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// The primary's reply.
    Primary,
    /// The primary's reply, and after it `WAIT` for so many replicas.
    Wait(u32),
    /// The reply to a call with `REPLICAS` for so many.
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

/// What is done by commands. Whoever has the process may do more, see [`Shared`].
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
            listeners: 1,
            scenes: 0,
            calls: 400,
            grants: 0,
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
    /// What stands in the first line of the history.
    pub fn run(&self) -> Run {
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let (default_lease, request_ttl) = (ms(self.default_lease), ms(self.request_ttl));
        Run { seed: self.seed, default_lease, request_ttl, replicas: self.replicas }
    }
}

/// What all threads of a load share.
pub struct Shared {
    /// Takes everything down.
    pub recorder: Recorder,
    settings: Settings,
    server: Mutex<SocketAddr>,
    over: AtomicBool,
    generation: AtomicU32,
    granted: AtomicU32,
    open: Mutex<Vec<i64>>,
    disturbed: Mutex<()>,
    ends: Instant,
}

impl Shared {
    /// A load on this server.
    pub fn new(settings: Settings, server: SocketAddr) -> Shared {
        Shared {
            recorder: Recorder::new(settings.run()),
            server: Mutex::new(server),
            over: AtomicBool::new(false),
            generation: AtomicU32::new(0),
            granted: AtomicU32::new(0),
            open: Mutex::default(),
            disturbed: Mutex::default(),
            ends: Instant::now() + settings.at_most,
            settings,
        }
    }

    /// The server is somewhere else from now on.
    pub fn move_to(&self, server: SocketAddr) {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }

    fn server(&self) -> SocketAddr {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until it is dropped nobody else disturbs clients by commands: pauses of two would become one, and to unblock a client in a
    /// pause ends some servers.
    fn disturbs(&self) -> MutexGuard<'_, ()> {
        self.disturbed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True once all clients have made their calls.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.ends
    }

    /// True for a client that has made so many calls.
    fn is_enough(&self, calls: u32) -> bool {
        calls >= self.settings.calls && self.granted.load(Ordering::Relaxed) >= self.settings.grants
    }

    fn rng(&self, client: u32) -> StdRng {
        StdRng::seed_from_u64(self.settings.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(client)))
    }

    /// The lock that a client uses in one of its calls.
    fn key(&self, slot: u32, call: u32) -> String {
        self.key_of(call / self.settings.calls_per_key.max(1), slot)
    }

    fn key_of(&self, generation: u32, slot: u32) -> String {
        format!("{}lock-{generation}-{slot}", self.settings.prefix)
    }
}

/// Runs the load until all clients have made their calls. Meanwhile `disturb` may do to the server what it likes, if it takes
/// it down; it has to end soon once the load [is over](Shared::is_over).
pub fn run(shared: &Shared, disturb: impl FnOnce(&Shared) + Send) -> Result<Vec<Record>, String> {
    let settings = &shared.settings;
    configure(shared)?;
    let watchers = settings.clients + settings.listeners;
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for number in 0..settings.clients {
            workers.push(scope.spawn(move || Client::new(shared, number).run()));
        }
        for number in settings.clients..watchers {
            workers.push(scope.spawn(move || notify::run(shared, number)));
        }
        scope.spawn(move || probe::run(shared, watchers));
        scope.spawn(move || faults::run(shared, watchers + 1));
        for number in 0..settings.scenes {
            scope.spawn(move || scenes::run(shared, watchers + 3 + number));
        }
        let disturber = scope.spawn(move || disturb(shared));
        let ended = workers.into_iter().map(|worker| worker.join().is_ok()).fold(true, |all, ok| all & ok);
        shared.over.store(true, Ordering::Relaxed);
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
            other => Err(format!("{words:?} was answered {other:?}")),
        }
    };
    ask(&["CONFIG", "SET", "lock.default-lease", &run.default_lease.to_string()])?;
    ask(&["CONFIG", "SET", "lock.request-ttl", &run.request_ttl.to_string()])?;
    // Tokens, requests and lists of an earlier run would be taken for those of this one.
    if ask(&["DBSIZE"])?.as_i64() != Some(0) {
        return Err("the load needs a server without keys".to_owned());
    }
    Ok(())
}

/// What was written under the locks.
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
