// SPDX-License-Identifier: MIT

//! The paths of `make guard` and of the benchmark `instructions`: sequences of calls whose instructions are counted.

use std::ops::Range;

use redis_lock_test_kit::server::Flavor;

use super::caller::Caller;
use super::server::{empty_module, Server, Setup};
use super::session::SessionClient;
use super::{packed, redisson, Outcome, OWNER};

/// Creates four paths with the same calls, one for each kind of server.
macro_rules! plain {
    ($name:literal, $calls:expr) => {
        [
            Path { name: $name, stage: Bare, calls: OneClient($calls) },
            Path { name: concat!($name, ", empty module"), stage: WithEmptyModule, calls: OneClient($calls) },
            Path { name: concat!($name, ", module"), stage: WithModule, calls: OneClient($calls) },
            Path { name: concat!($name, ", module, waiter"), stage: WithWaiter, calls: OneClient($calls) },
        ]
    };
}

/// Calls that clients repeat, on one kind of server.
pub struct Path {
    pub name: &'static str,
    pub stage: Stage,
    pub calls: Calls,
}

/// The kind of server that a path needs.
#[derive(Clone, Copy)]
pub enum Stage {
    /// Without a module.
    Bare,
    /// Another server than the installed one, without a module.
    BareOf(Flavor),
    /// With a module that does nothing.
    WithEmptyModule,
    WithModule,
    /// Another server than the installed one, with the module.
    WithModuleOf(Flavor),
    /// With the module, and a client that waits for another lock.
    WithWaiter,
    /// With the module, and this number of other shared holders of the lock `k`.
    WithReaders(usize),
    /// With the module. The owner holds the lock `held`, whose fencing counter is 5.
    WithHold,
    /// With the module, and a setting with this name and value.
    WithSetting(&'static str, &'static str),
    /// Without a module, with a replica and an AOF that is synced every second.
    BareLogged,
    /// With the module, a replica, and an AOF that is synced every second.
    Logged,
    /// With the module, a replica and an AOF, but without messages to replicas.
    LoggedQuiet,
}

#[derive(Clone, Copy)]
pub enum Calls {
    /// One client makes these calls, each after the reply to the previous one. `$owner` stands for an owner name, and `#` for the
    /// number of the round. `sha:` and `text:` before the name of a script stand for its hash and its text.
    OneClient(&'static [&'static str]),
    /// This number of clients hand a lock on, at most 100. The client with the lock releases it and queues up again in one
    /// write.
    HandOver(usize),
    /// A client with a session makes these calls, each after the reply to the previous one. `$session` stands for the id of the
    /// session, and `#` for the number of the acquire. After each [`BEAT_EVERY`] rounds, the client calls `LOCK.EVENTS`.
    OneSession(&'static [&'static str]),
}

/// The number of rounds after which a client with a session calls `LOCK.EVENTS`. This is one call per second at 100
/// pairs per second.
const BEAT_EVERY: u64 = 100;

use Calls::{OneClient, OneSession};
use Stage::{
    Bare, BareLogged, BareOf, Logged, LoggedQuiet, WithEmptyModule, WithHold, WithModule, WithModuleOf,
    WithReaders, WithSetting, WithWaiter,
};

const SET_AND_DEL: Calls = OneClient(&["SET k $owner NX PX 30000", "DEL k"]);
const LOCK: Calls = OneClient(&["LOCK.ACQUIRE k $owner PX 30000", "LOCK.RELEASE k $owner"]);

pub const PING: Path = Path { name: "PING twice", stage: Bare, calls: OneClient(&["PING", "PING"]) };
pub const SET_DEL: Path = Path { name: "SET NX PX + DEL", stage: Bare, calls: SET_AND_DEL };
pub const SET_COMPARE: Path = Path {
    name: "SET NX PX + compare-and-delete",
    stage: Bare,
    calls: OneClient(&["SET k $owner NX PX 30000", "EVALSHA sha:compare_and_delete 1 k $owner"]),
};
pub const PAIR: Path = Path { name: "ACQUIRE + RELEASE", stage: WithModule, calls: LOCK };
pub const PAIR_WITH_EVENTS: Path = Path {
    name: "ACQUIRE + RELEASE, lock.events yes",
    stage: WithSetting("lock.events", "yes"),
    calls: LOCK,
};
pub const PAIR_WITHOUT_LOG: Path = Path {
    name: "ACQUIRE + RELEASE, lock.log-max-len 0",
    stage: WithSetting("lock.log-max-len", "0"),
    calls: LOCK,
};
const fn pair(name: &'static str, calls: &'static [&'static str]) -> Path {
    Path { name, stage: WithModule, calls: OneClient(calls) }
}
pub const PAIR_FENCE: Path =
    pair("ACQUIRE FENCE + RELEASE", &["LOCK.ACQUIRE k $owner PX 30000 FENCE", "LOCK.RELEASE k $owner"]);
pub const PAIR_ID: Path =
    pair("ACQUIRE ID + RELEASE ID", &["LOCK.ACQUIRE k $owner PX 30000 ID a#", "LOCK.RELEASE k $owner ID r#"]);
pub const PAIR_WATCHDOG: Path =
    pair("ACQUIRE WATCHDOG + RELEASE", &["LOCK.ACQUIRE k $owner PX 30000 WATCHDOG", "LOCK.RELEASE k $owner"]);
const fn session(name: &'static str, calls: &'static [&'static str]) -> Path {
    Path { name, stage: WithModule, calls: OneSession(calls) }
}
pub const PAIR_SESSION: Path = session(
    "ACQUIRE SESSION + RELEASE SESSION",
    &["LOCK.ACQUIRE k $owner SESSION $session #", "LOCK.RELEASE k $owner SESSION $session #"],
);
pub const PAIR_SESSION_QUEUE: Path = session(
    "ACQUIRE SESSION QUEUE + RELEASE SESSION",
    &["LOCK.ACQUIRE k $owner SESSION $session # QUEUE 30000", "LOCK.RELEASE k $owner SESSION $session #"],
);
pub const PAIR_SESSION_EPHEMERAL: Path = session(
    "ACQUIRE EPHEMERAL SESSION QUEUE + RELEASE SESSION",
    &[
        "LOCK.ACQUIRE k $owner EPHEMERAL SESSION $session # QUEUE 30000",
        "LOCK.RELEASE k $owner SESSION $session #",
    ],
);
/// The pair as a client package sent it before sessions, with renewal by the server.
pub const PAIR_WATCHDOG_ID: Path = pair(
    "ACQUIRE WATCHDOG ID + RELEASE ID",
    &["LOCK.ACQUIRE k $owner PX 30000 WATCHDOG ID a#", "LOCK.RELEASE k $owner ID r#"],
);
pub const PAIR_EPHEMERAL: Path = pair(
    "ACQUIRE EPHEMERAL + RELEASE",
    &["LOCK.ACQUIRE k $owner PX 30000 EPHEMERAL", "LOCK.RELEASE k $owner"],
);
pub const PAIR_SHARED: Path =
    pair("ACQUIRE SHARED + RELEASE", &["LOCK.ACQUIRE k $owner PX 30000 SHARED", "LOCK.RELEASE k $owner"]);
const fn guarded(name: &'static str, calls: &'static [&'static str]) -> Path {
    Path { name, stage: WithHold, calls: OneClient(calls) }
}
pub const GUARD_SET: Path = guarded("GUARD OWNER … SET", &["LOCK.GUARD held OWNER $owner SET k v"]);
pub const GUARD_TOKEN_SET: Path = guarded("GUARD TOKEN … SET", &["LOCK.GUARD held TOKEN 5 SET k v"]);
pub const CHECK: Path = guarded("CHECK OWNER", &["LOCK.CHECK held OWNER $owner"]);
const fn beside(name: &'static str, readers: usize) -> Path {
    let calls = OneClient(&["LOCK.ACQUIRE k $owner PX 30000 SHARED", "LOCK.RELEASE k $owner"]);
    Path { name, stage: WithReaders(readers), calls }
}
pub const BESIDE_10: Path = beside("ACQUIRE SHARED + RELEASE, 10 others", 10);
pub const BESIDE_1000: Path = beside("ACQUIRE SHARED + RELEASE, 1,000 others", 1_000);
pub const BESIDE_10000: Path = beside("ACQUIRE SHARED + RELEASE, 10,000 others", 10_000);
pub const PERMIT: Path = Path {
    name: "ACQUIRE SHARED LIMIT + RELEASE, 10,000 others",
    stage: WithReaders(10_000),
    calls: OneClient(&["LOCK.ACQUIRE k $owner PX 30000 SHARED LIMIT 10001", "LOCK.RELEASE k $owner"]),
};
pub const SEVERAL: Path = Path {
    name: "MACQUIRE + MRELEASE, 2 locks",
    stage: WithModule,
    calls: OneClient(&["LOCK.MACQUIRE 2 k l $owner PX 30000", "LOCK.MRELEASE 2 k l $owner"]),
};
pub const HAND_OVER: Path =
    Path { name: "hand-over: RELEASE + ACQUIRE BLOCK", stage: WithModule, calls: Calls::HandOver(2) };
/// Under callgrind, a wait for 15 other clients takes longer than a millisecond.
const fn hand_over_of_16(name: &'static str, setting: &'static str, value: &'static str) -> Path {
    Path { name, stage: WithSetting(setting, value), calls: Calls::HandOver(16) }
}
pub const HAND_OVER_WITHOUT_LOG: Path =
    hand_over_of_16("hand-over, 16 clients, lock.log-max-len 0", "lock.log-max-len", "0");
/// The log is on, and no wait is long.
pub const HAND_OVER_SHORT: Path =
    hand_over_of_16("hand-over, 16 clients, no wait logged", "lock.log-waits-over", "3600000");
pub const HAND_OVER_LOGGED: Path =
    hand_over_of_16("hand-over, 16 clients, all waits logged", "lock.log-waits-over", "1");
pub const REDISSON_3_27: Path = Path {
    name: "Redisson 3.27's scripts with latch",
    stage: Bare,
    calls: OneClient(&[
        "EVALSHA sha:acquire 1 k 30000 $owner",
        "EVALSHA sha:release_latched 3 k redisson_lock__channel:{k} redisson_unlock_latch:{k}:# 30000 $owner 13500",
        "DEL redisson_unlock_latch:{k}:#",
    ]),
};
/// By default Redisson sends the text of a script each time.
pub const REDISSON_3_27_AS_SENT: Path = Path {
    name: "what Redisson 3.27 sends",
    stage: Bare,
    calls: OneClient(&[
        "EVAL text:acquire 1 k 30000 $owner",
        "EVAL text:release_latched 3 k redisson_lock__channel:{k} redisson_unlock_latch:{k}:# 30000 $owner 13500",
        "DEL redisson_unlock_latch:{k}:#",
    ]),
};
pub const REDISSON_3_17: Path = Path {
    name: "Redisson 3.17's scripts",
    stage: Bare,
    calls: OneClient(&[
        "EVALSHA sha:acquire 1 k 30000 $owner",
        "EVALSHA sha:release 2 k redisson_lock__channel:{k} 30000 $owner",
    ]),
};
pub const SET_DEL_LOGGED: Path =
    Path { name: "SET NX PX + DEL, AOF and replica", stage: BareLogged, calls: SET_AND_DEL };
pub const PAIR_LOGGED: Path = Path { name: "ACQUIRE + RELEASE, AOF and replica", stage: Logged, calls: LOCK };
pub const PAIR_LOGGED_QUIET: Path =
    Path { name: "ACQUIRE + RELEASE, AOF and replica, no message", stage: LoggedQuiet, calls: LOCK };

/// A server, the pair on it, and the commands that replace the compare-and-delete script there.
pub type Newer = (Flavor, Path, Path);

const fn newer(flavor: Flavor, pair: &'static str, other: (&'static str, &'static [&'static str])) -> Newer {
    (
        flavor,
        Path { name: pair, stage: WithModuleOf(flavor), calls: LOCK },
        Path { name: other.0, stage: BareOf(flavor), calls: OneClient(other.1) },
    )
}
pub const NEWER: [Newer; 2] = [
    newer(
        Flavor::Redis8_6,
        "ACQUIRE + RELEASE, Redis 8.6",
        ("SET NX PX + DELEX IFEQ, Redis 8.6", &["SET k $owner NX PX 30000", "DELEX k IFEQ $owner"]),
    ),
    newer(
        Flavor::Valkey9,
        "ACQUIRE + RELEASE, Valkey 9",
        ("SET NX PX + DELIFEQ, Valkey 9", &["SET k $owner NX PX 30000", "DELIFEQ k $owner"]),
    ),
];

/// Commands that use no lock, each on a server without a module, with an empty module, with the module, and with a waiter.
pub const PLAIN: [[Path; 4]; 5] = [
    plain!("PING", &["PING"]),
    plain!("GET", &["GET k"]),
    plain!("SET", &["SET k v"]),
    plain!("INCR", &["INCR k"]),
    plain!("LPUSH + LPOP", &["LPUSH l v", "LPOP l"]),
];

/// A server that is ready for the calls of a path.
pub struct ReadyServer {
    pub server: Server,
    _replica: Option<Server>,
    _waiter: Option<Caller>,
}

impl Stage {
    pub fn prepare(self) -> Outcome<ReadyServer> {
        let mut setup = Setup::new().under_callgrind();
        match self {
            Bare | BareLogged => setup = setup.without_module(),
            BareOf(flavor) => setup = setup.of(flavor).without_module(),
            WithModuleOf(flavor) => setup = setup.of(flavor),
            WithEmptyModule => setup = setup.without_module().option("loadmodule", &empty_module()),
            WithModule | WithWaiter | WithReaders(_) | WithHold | Logged => {}
            WithSetting(name, value) => setup = setup.option(name, value),
            LoggedQuiet => setup = setup.option("lock.publish-replicas", "no"),
        }
        if matches!(self, BareLogged | Logged | LoggedQuiet) {
            setup = setup.option("appendonly", "yes").option("appendfsync", "everysec");
        }
        let mut server = setup.start()?;
        let replica = match self {
            BareLogged | Logged | LoggedQuiet => Some(server.start_replica()?),
            _ => None,
        };
        // Reading a TTL is slower once any key of the server has a TTL. So another key gets one.
        redis::cmd("SET").arg(&["other", "value", "PX", "6000000"]).query::<()>(&mut server.control)?;
        if let WithReaders(readers) = self {
            let acquire = |reader| format!("LOCK.ACQUIRE k {OWNER}:{reader} PX 6000000 SHARED");
            Caller::connect(&server)?.pipeline((0..readers).map(acquire))?;
        }
        if let WithHold = self {
            let acquire = format!("LOCK.ACQUIRE held {OWNER} PX 6000000");
            let mut caller = Caller::connect(&server)?;
            caller.call(&acquire)?;
            caller.call("SET redisson_lock_token:{held} 5")?;
        }
        let waiter = match self {
            WithWaiter => Some(waiter(&mut server)?),
            _ => None,
        };
        Ok(ReadyServer { server, _replica: replica, _waiter: waiter })
    }
}

fn waiter(server: &mut Server) -> Outcome<Caller> {
    Caller::connect(server)?.call("LOCK.ACQUIRE busy holder PX 600000")?;
    let mut waiter = Caller::connect(server)?;
    waiter.send(&packed("LOCK.ACQUIRE busy waiter BLOCK 0"))?;
    server.until("the client waits", |server| Ok(server.info("blocked_clients")? == "1"))?;
    Ok(waiter)
}

/// Makes the calls in these rounds.
pub type Player = Box<dyn FnMut(Range<u32>) -> Outcome<()>>;

impl ReadyServer {
    /// Connects the clients that make these calls.
    pub fn player(&self, calls: Calls) -> Outcome<Player> {
        match calls {
            OneClient(calls) => self.one_client(calls),
            Calls::HandOver(clients) => self.hand_over(clients),
            OneSession(calls) => self.one_session(calls),
        }
    }

    fn one_client(&self, calls: &'static [&'static str]) -> Outcome<Player> {
        let mut caller = Caller::connect(&self.server)?;
        let scripts = redisson::Scripts::load(&mut caller)?;
        Ok(Box::new(move |rounds| {
            for round in rounds {
                for call in calls {
                    let mut command = redis::Cmd::new();
                    for word in call.split(' ') {
                        command.arg(scripts.expand_word(word, round));
                    }
                    caller.send(&command.get_packed_command())?;
                    caller.reply()?;
                }
            }
            Ok(())
        }))
    }

    fn one_session(&self, calls: &'static [&'static str]) -> Outcome<Player> {
        let mut client = SessionClient::open(&self.server)?;
        let calls: Vec<String> =
            calls.iter().map(|call| call.replace("$owner", OWNER).replace("$session", &client.id)).collect();
        Ok(Box::new(move |rounds| {
            for round in rounds {
                client.n = u64::from(round) + 1;
                for call in &calls {
                    client.calls.send(&packed(&call.replace('#', &client.n.to_string())))?;
                    client.calls.reply()?;
                }
                if client.n % BEAT_EVERY == 0 {
                    client.heartbeat()?;
                }
            }
            Ok(())
        }))
    }

    fn hand_over(&self, clients: usize) -> Outcome<Player> {
        let owners: Vec<String> =
            (0..clients).map(|client| format!("{}{client:02}", &OWNER[..OWNER.len() - 2])).collect();
        let command = |call: &str, options: &str| -> Vec<Vec<u8>> {
            owners.iter().map(|owner| packed(&format!("{call} k {owner}{options}"))).collect()
        };
        let (acquire, release) = (command("LOCK.ACQUIRE", " PX 30000 BLOCK 0"), command("LOCK.RELEASE", ""));
        let mut clients: Vec<Caller> =
            (0..clients).map(|_| Caller::connect(&self.server)).collect::<Outcome<_>>()?;
        clients[0].send(&acquire[0])?;
        clients[0].reply()?;
        for (client, acquire) in acquire.iter().enumerate().skip(1) {
            clients[client].send(acquire)?;
            // The reply to `PING` shows that the server has read the call of the other client.
            clients[0].call("PING")?;
        }
        Ok(Box::new(move |rounds| {
            for round in rounds {
                let from = round as usize % clients.len();
                let to = (from + 1) % clients.len();
                clients[from].send(&[release[from].clone(), acquire[from].clone()].concat())?;
                clients[from].reply()?;
                clients[to].reply()?;
            }
            Ok(())
        }))
    }
}
