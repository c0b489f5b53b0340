// SPDX-License-Identifier: MIT

//! The format of a history: lines of JSON, one for each call, connection and fault.
//!
//! All times are microseconds since the start of the run, read by all threads from one monotonic clock.

mod sessions;

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use sessions::{Events, Number, OpenSession};

/// Microseconds since the start of the run.
pub type Micros = i64;

/// Microseconds in a millisecond.
pub const MS: Micros = 1_000;

/// `WITHIN` of calls with `REPLICAS`, in milliseconds.
const WITHIN: u32 = 200;

/// One line of a history. Most lines are calls, so the enum may be as large as a call.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "record")]
pub enum Record {
    /// The settings of the run. A history has one such record.
    Run(Run),
    /// A connection was opened.
    Opened(Opened),
    /// A connection has ended.
    Closed(Closed),
    /// A finished call.
    Call(Call),
    /// A disturbance of the server or its clients.
    Fault(Fault),
}

/// The settings of the run and of the server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// Seed of all random choices of the clients.
    pub seed: u64,
    /// `lock.default-lease`, in milliseconds.
    pub default_lease: i64,
    /// `lock.request-ttl`, in milliseconds.
    pub request_ttl: i64,
    /// Number of replicas of the primary. Data that all of them have acknowledged is not lost.
    #[serde(default)]
    pub replicas: u32,
}

/// A connection was opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Opened {
    /// Number of the connection in this run.
    pub connection: u64,
    /// The client that uses the connection.
    pub client: u32,
    /// Time when the connection was ready.
    pub at: Micros,
    /// The reply to `CLIENT ID` on the connection.
    pub server_id: i64,
}

/// A connection has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Closed {
    /// Number of the connection.
    pub connection: u64,
    /// Right before the close, or when the close was noticed.
    pub at: Micros,
    /// Whether the server closed the connection, at some earlier time.
    pub by_peer: bool,
}

/// A call, from before its sending until its reply was read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// Number of the call in this run, in order of sending.
    pub number: u64,
    /// The client that sent the call.
    pub client: u32,
    /// The connection of the call.
    pub connection: u64,
    /// Time right before the first byte was sent.
    pub sent: Micros,
    /// Time right after the reply was read.
    pub answered: Option<Micros>,
    /// The command that was sent.
    #[serde(flatten)]
    pub command: Command,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome", content = "reply")]
pub enum Outcome {
    /// A reply that is not an error.
    Reply(Value),
    /// An error in the server's words.
    Error(String),
    /// The connection ended before a reply was read, so the call may or may not have run.
    Unknown,
    /// The call was not sent completely, so it cannot have run.
    Unsent,
}

/// A disturbance of the server or its clients.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// The kind of fault.
    pub what: Disturbance,
    /// Time right before the fault began.
    pub from: Micros,
    /// Time by which the fault has certainly ended on the server.
    pub until: Micros,
}

/// Kinds of faults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Disturbance {
    /// `CLIENT KILL` of the connection with this ID.
    Kill {
        /// The ID from `CLIENT ID`.
        server_id: i64,
    },
    /// `CLIENT UNBLOCK` of the connection with this ID.
    Unblock {
        /// The ID from `CLIENT ID`.
        server_id: i64,
    },
    /// `CLIENT PAUSE`.
    Pause,
    /// Writes are certainly paused throughout the recorded time.
    Paused,
    /// The process was suspended (`SIGSTOP`) and resumed.
    Stop,
    /// The process was killed and restarted.
    Restart {
        /// Whether every acknowledged write survived.
        durable: bool,
    },
    /// The server refuses to use more memory.
    MemoryFull,
    /// The server's wall clock was set forward or back.
    Clock {
        /// The offset in milliseconds.
        by: i64,
    },
    /// The slot of all locks was moved to another node of the cluster.
    Move,
    /// Another server has become the primary and may lack acknowledged writes. Promises to clients still hold: a granted
    /// lock belongs to its owner until its lease ends.
    Failover,
}

/// The commands of a history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "command")]
pub enum Command {
    /// `LOCK.ACQUIRE`, or `LOCK.MACQUIRE`.
    Acquire(Acquire),
    /// `LOCK.RELEASE`, or `LOCK.MRELEASE`.
    Release(Release),
    /// `LOCK.RENEW`, or `LOCK.MRENEW`.
    Renew(Renew),
    /// `LOCK.BREAK`.
    Break {
        /// The lock.
        key: String,
    },
    /// `LOCK.CANCEL`.
    Cancel {
        /// The lock.
        key: String,
        /// The owner of the acquire.
        owner: String,
        /// The `ID` of the acquire; empty with `SESSION`.
        id: String,
        /// `SESSION`.
        #[serde(default)]
        session: Option<Number>,
    },
    /// `LOCK.CHECK`.
    Check {
        /// The lock.
        key: String,
        /// The claim to check.
        claim: Claim,
    },
    /// `LOCK.GUARD` of an `RPUSH` to the log of the lock.
    Guard {
        /// The lock.
        key: String,
        /// The claim that guards the write.
        claim: Claim,
        /// The value appended to the log, unique in the history.
        entry: String,
    },
    /// `LOCK.INFO`.
    Info {
        /// The lock.
        key: String,
    },
    /// `LOCK.WAITERS`.
    Waiters {
        /// The lock.
        key: String,
    },
    /// `LRANGE` of a lock's whole log.
    Log {
        /// The lock.
        key: String,
    },
    /// `LOCK.SESSION OPEN`.
    OpenSession(OpenSession),
    /// `LOCK.EVENTS`.
    Events(Events),
    /// `LOCK.SESSION CLOSE`.
    CloseSession {
        /// The id of the session.
        session_id: String,
    },
}

/// The claim of `LOCK.CHECK` and `LOCK.GUARD`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// This owner holds the lock.
    Owner(String),
    /// No newer token was granted for the lock.
    Token(i64),
}

/// The arguments of an acquire.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Acquire {
    /// The locks.
    pub keys: Vec<String>,
    /// Use `LOCK.MACQUIRE`, even for one lock.
    pub several: bool,
    /// The owner to acquire for.
    pub owner: String,
    /// `PX`, in milliseconds.
    pub lease: Option<i64>,
    /// Send the lease in seconds, as `EX`.
    pub seconds: bool,
    /// `BLOCK`, in milliseconds; 0 waits without limit.
    pub block: Option<i64>,
    /// `SHARED`.
    pub shared: bool,
    /// `LIMIT`.
    pub limit: Option<i64>,
    /// `ONCE`.
    pub once: bool,
    /// `FENCE`.
    pub fence: bool,
    /// `WATCHDOG`.
    pub watchdog: bool,
    /// `WATCHDOG MAX`, in milliseconds.
    pub watchdog_max: Option<i64>,
    /// `EPHEMERAL`.
    pub ephemeral: bool,
    /// `ID`.
    pub id: Option<String>,
    /// `REPLICAS`.
    pub replicas: Option<u32>,
    /// `SESSION`.
    pub session: Option<Number>,
    /// `QUEUE`, in milliseconds; 0 waits without limit.
    pub queue: Option<i64>,
}

/// The arguments of a release.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Release {
    /// The locks.
    pub keys: Vec<String>,
    /// Use `LOCK.MRELEASE`, even for one lock.
    pub several: bool,
    /// The owner to release.
    pub owner: String,
    /// `PX` for the remaining holds, in milliseconds.
    pub lease: Option<i64>,
    /// `SHARED`.
    pub shared: bool,
    /// `ALL`.
    pub all: bool,
    /// `ID`.
    pub id: Option<String>,
    /// `SESSION`.
    pub session: Option<Number>,
}

/// The arguments of a renewal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Renew {
    /// The locks.
    pub keys: Vec<String>,
    /// Use `LOCK.MRENEW`, even for one lock.
    pub several: bool,
    /// The owner to renew.
    pub owner: String,
    /// `PX`, in milliseconds.
    pub lease: Option<i64>,
    /// `WATCHDOG`.
    pub watchdog: bool,
    /// `WATCHDOG MAX`, in milliseconds.
    pub watchdog_max: Option<i64>,
    /// `EPHEMERAL`.
    pub ephemeral: bool,
    /// `REPLICAS`.
    pub replicas: Option<u32>,
    /// `SESSION`.
    pub session: Option<Number>,
}

/// The words of a command in order.
struct Words(Vec<String>);

impl Words {
    fn new(name: &str) -> Words {
        Words(vec![name.to_owned()])
    }

    fn word(mut self, word: &str) -> Words {
        self.0.push(word.to_owned());
        self
    }

    fn flag(self, name: &str, is_set: bool) -> Words {
        if is_set {
            self.word(name)
        } else {
            self
        }
    }

    fn option(self, name: &str, value: Option<impl ToString>) -> Words {
        match value {
            Some(value) => self.word(name).word(&value.to_string()),
            None => self,
        }
    }

    /// The name of a command for one lock or for several, and its locks.
    fn of_keys(name: &str, several: bool, keys: &[String]) -> Words {
        let words = Words::new(&format!("LOCK.{}{name}", if several { "M" } else { "" }));
        let words = if several { words.word(&keys.len().to_string()) } else { words };
        keys.iter().fold(words, |words, key| words.word(key))
    }

    fn session(self, number: Option<&Number>) -> Words {
        match number {
            Some(Number { id, n }) => self.option("SESSION", Some(id)).word(&n.to_string()),
            None => self,
        }
    }

    fn claim(self, claim: &Claim) -> Words {
        match claim {
            Claim::Owner(owner) => self.option("OWNER", Some(owner)),
            Claim::Token(token) => self.option("TOKEN", Some(token)),
        }
    }
}

/// The list for guarded writes of a lock, in the lock's slot.
pub fn log_of(key: &str) -> String {
    if key.contains('{') {
        format!("log:{key}")
    } else {
        format!("log:{{{key}}}")
    }
}

impl Command {
    /// The words of the command, as a client sends them.
    pub fn words(&self) -> Vec<String> {
        let words = match self {
            Command::Acquire(acquire) => {
                let seconds = acquire.seconds.then(|| acquire.lease.map(|lease| lease / 1_000)).flatten();
                let milliseconds = if acquire.seconds { None } else { acquire.lease };
                Words::of_keys("ACQUIRE", acquire.several, &acquire.keys)
                    .word(&acquire.owner)
                    .option("PX", milliseconds)
                    .option("EX", seconds)
                    .option("BLOCK", acquire.block)
                    .flag("SHARED", acquire.shared)
                    .option("LIMIT", acquire.limit)
                    .flag("ONCE", acquire.once)
                    .flag("FENCE", acquire.fence)
                    .flag("WATCHDOG", acquire.watchdog)
                    .option("MAX", acquire.watchdog_max)
                    .flag("EPHEMERAL", acquire.ephemeral)
                    .option("ID", acquire.id.as_ref())
                    .option("REPLICAS", acquire.replicas)
                    .option("WITHIN", acquire.replicas.and(Some(WITHIN)))
                    .session(acquire.session.as_ref())
                    .option("QUEUE", acquire.queue)
            }
            Command::Release(release) => Words::of_keys("RELEASE", release.several, &release.keys)
                .word(&release.owner)
                .option("PX", release.lease)
                .flag("SHARED", release.shared)
                .flag("ALL", release.all)
                .option("ID", release.id.as_ref())
                .session(release.session.as_ref()),
            Command::Renew(renew) => Words::of_keys("RENEW", renew.several, &renew.keys)
                .word(&renew.owner)
                .option("PX", renew.lease)
                .flag("WATCHDOG", renew.watchdog)
                .option("MAX", renew.watchdog_max)
                .flag("EPHEMERAL", renew.ephemeral)
                .option("REPLICAS", renew.replicas)
                .option("WITHIN", renew.replicas.and(Some(WITHIN)))
                .session(renew.session.as_ref()),
            Command::Break { key } => Words::new("LOCK.BREAK").word(key),
            Command::Cancel { key, owner, id, session } => Words::new("LOCK.CANCEL")
                .word(key)
                .word(owner)
                .option("ID", session.is_none().then_some(id))
                .session(session.as_ref()),
            Command::Check { key, claim } => Words::new("LOCK.CHECK").word(key).claim(claim),
            Command::Guard { key, claim, entry } => {
                Words::new("LOCK.GUARD").word(key).claim(claim).option("RPUSH", Some(log_of(key))).word(entry)
            }
            Command::Info { key } => Words::new("LOCK.INFO").word(key),
            Command::Waiters { key } => Words::new("LOCK.WAITERS").word(key).option("COUNT", Some(1000)),
            Command::Log { key } => Words::new("LRANGE").word(&log_of(key)).word("0").word("-1"),
            Command::OpenSession(open) => Words(open.words()),
            Command::Events(events) => Words(events.words()),
            Command::CloseSession { session_id } => Words::new("LOCK.SESSION").word("CLOSE").word(session_id),
        };
        words.0
    }

    /// The name of a request that has one effect, however often it is sent: its `ID`, or its number in a session.
    pub fn request(&self) -> Option<String> {
        let (id, session) = match self {
            Command::Acquire(acquire) => (acquire.id.as_ref(), acquire.session.as_ref()),
            Command::Release(release) => (release.id.as_ref(), release.session.as_ref()),
            Command::Cancel { id, session, .. } => (Some(id), session.as_ref()),
            _ => (None, None),
        };
        session.map(|Number { id, n }| format!("{id} {n}")).or_else(|| id.cloned())
    }

    /// The number in a session that the call is about.
    pub fn session(&self) -> Option<&Number> {
        match self {
            Command::Acquire(acquire) => acquire.session.as_ref(),
            Command::Release(release) => release.session.as_ref(),
            Command::Renew(renew) => renew.session.as_ref(),
            Command::Cancel { session, .. } => session.as_ref(),
            _ => None,
        }
    }
}

/// Records a run, shared by all threads.
pub struct Recorder {
    began: Instant,
    calls: AtomicU64,
    connections: AtomicU64,
    records: Mutex<Vec<Record>>,
}

impl Recorder {
    /// Starts a run.
    pub fn new(run: Run) -> Recorder {
        let records = Mutex::new(vec![Record::Run(run)]);
        Recorder { began: Instant::now(), calls: 0.into(), connections: 0.into(), records }
    }

    /// The current time.
    pub fn now(&self) -> Micros {
        Micros::try_from(self.began.elapsed().as_micros()).unwrap_or(Micros::MAX)
    }

    /// The number of the next call.
    pub fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// The number of the next connection.
    pub fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds a record.
    pub fn add(&self, record: Record) {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
    }

    /// All records so far, with calls in order of their numbers.
    pub fn history(&self) -> Vec<Record> {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner).clone();
        records.sort_by_key(|record| match record {
            Record::Call(call) => (1, call.number),
            _ => (0, 0),
        });
        records
    }
}

/// Writes a history.
pub fn write(records: &[Record], mut to: impl Write) -> std::io::Result<()> {
    for record in records {
        serde_json::to_writer(&mut to, record)?;
        to.write_all(b"\n")?;
    }
    to.flush()
}

/// Reads a history.
pub fn read(from: impl BufRead) -> std::io::Result<Vec<Record>> {
    from.lines().map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}
