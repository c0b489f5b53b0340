// SPDX-License-Identifier: MIT

//! What a history is: lines of JSON, one for each call, connection, fault and message.
//!
//! All times are microseconds since the run began, of one clock that never steps, for all threads of the run.

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Microseconds since the run began.
pub type Micros = i64;

/// Microseconds in a millisecond.
pub const MS: Micros = 1_000;

/// For how many milliseconds replicas may be waited for.
const WITHIN: u32 = 200;

/// One line of a history. Nearly all are calls, so it may be as large as one.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "record")]
pub enum Record {
    /// How the run was made. There is one.
    Run(Run),
    /// A connection was made.
    Opened(Opened),
    /// A connection has ended.
    Closed(Closed),
    /// A call that is over.
    Call(Call),
    /// Something was done to the server or to its clients.
    Fault(Fault),
    /// A message that a subscriber got.
    Message(Message),
    /// Somebody was subscribed to an inbox.
    Listened(Listened),
}

/// How the run was made, and what the server was set to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// From which all choices of the clients come.
    pub seed: u64,
    /// `lock.default-lease`, in milliseconds.
    pub default_lease: i64,
    /// `lock.request-ttl`, in milliseconds.
    pub request_ttl: i64,
    /// How many replicas the primary has. What so many have acknowledged is not lost.
    #[serde(default)]
    pub replicas: u32,
}

/// A connection was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Opened {
    /// Its number in this run.
    pub connection: u64,
    /// Whose it is.
    pub client: u32,
    /// When it was ready.
    pub at: Micros,
    /// What `CLIENT ID` answered on it.
    pub server_id: i64,
}

/// A connection has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Closed {
    /// Which one.
    pub connection: u64,
    /// Right before it was closed, or when it was found to be closed.
    pub at: Micros,
    /// The server has closed it, at some time before.
    pub by_peer: bool,
}

/// A call, from before it was sent until its reply was read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// Its number in this run, in the order in which calls were sent.
    pub number: u64,
    /// Who has sent it.
    pub client: u32,
    /// On which connection.
    pub connection: u64,
    /// Right before the first byte was sent.
    pub sent: Micros,
    /// Right after the reply was read.
    pub answered: Option<Micros>,
    /// What was sent.
    #[serde(flatten)]
    pub command: Command,
    /// What came back.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome", content = "reply")]
pub enum Outcome {
    /// A reply that is no error.
    Reply(Value),
    /// An error, as the server words it.
    Error(String),
    /// The connection has ended before a reply was read: nobody knows whether the call was carried out.
    Unknown,
    /// It was not sent as a whole, so it cannot have been carried out.
    Unsent,
}

/// What is done to the server or to its clients.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// What.
    pub what: Disturbance,
    /// Right before it began.
    pub from: Micros,
    /// When it was over for sure, as far as the server is concerned.
    pub until: Micros,
}

/// Kinds of faults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Disturbance {
    /// `CLIENT KILL` of the connection with this id.
    Kill {
        /// As `CLIENT ID` has it.
        server_id: i64,
    },
    /// `CLIENT UNBLOCK` of the connection with this id.
    Unblock {
        /// As `CLIENT ID` has it.
        server_id: i64,
    },
    /// `CLIENT PAUSE`.
    Pause,
    /// Writes are paused, all of the time that is noted.
    Paused,
    /// The process was stopped (`SIGSTOP`) and went on.
    Stop,
    /// The process was killed and started again.
    Restart {
        /// It has lost nothing that it had answered.
        durable: bool,
    },
    /// The server refuses to use more memory.
    MemoryFull,
    /// The wall clock of the server was set forward or back.
    Clock {
        /// By so many milliseconds.
        by: i64,
    },
    /// The slot of all locks was moved to another node of the cluster.
    Move,
    /// Another server has become the primary. It may not have heard of everything that was answered. What clients were
    /// promised holds all the same: whoever was granted a lock has it until its lease is over.
    Failover,
}

/// A message that a subscriber got.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Message {
    /// Whose subscription it was.
    pub client: u32,
    /// When it was read.
    pub at: Micros,
    /// The channel.
    pub channel: String,
    /// What it says.
    pub text: String,
}

/// Somebody was subscribed to an inbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listened {
    /// As in `NOTIFY`.
    pub inbox: String,
    /// Not before.
    pub since: Micros,
    /// Not longer.
    pub until: Micros,
}

/// The commands that a history can have.
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
        /// The `ID` of the acquire.
        id: String,
    },
    /// `LOCK.CHECK`.
    Check {
        /// The lock.
        key: String,
        /// What is claimed.
        claim: Claim,
    },
    /// `LOCK.GUARD` of an `RPUSH` to the log of the lock.
    Guard {
        /// The lock.
        key: String,
        /// What is claimed.
        claim: Claim,
        /// What is appended to the log. No two calls append the same.
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
    /// `LRANGE` of the log of a lock, all of it.
    Log {
        /// The lock.
        key: String,
    },
}

/// What `LOCK.CHECK` and `LOCK.GUARD` ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// This owner holds the lock.
    Owner(String),
    /// Nobody was granted the lock with a newer token.
    Token(i64),
}

/// The arguments of an acquire.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Acquire {
    /// The locks.
    pub keys: Vec<String>,
    /// `LOCK.MACQUIRE`, also of one lock.
    pub several: bool,
    /// Who is to hold them.
    pub owner: String,
    /// `PX`, in milliseconds.
    pub lease: Option<i64>,
    /// The lease is sent in seconds, as `EX`.
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
    /// `NOTIFY`, with this inbox.
    pub notify: Option<String>,
    /// `GRACE`, in milliseconds.
    pub grace: Option<i64>,
    /// `ID`.
    pub id: Option<String>,
    /// `REPLICAS`.
    pub replicas: Option<u32>,
}

/// The arguments of a release.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Release {
    /// The locks.
    pub keys: Vec<String>,
    /// `LOCK.MRELEASE`, also of one lock.
    pub several: bool,
    /// Who gives them back.
    pub owner: String,
    /// `PX` for what is left, in milliseconds.
    pub lease: Option<i64>,
    /// `SHARED`.
    pub shared: bool,
    /// `ALL`.
    pub all: bool,
    /// `ID`.
    pub id: Option<String>,
}

/// The arguments of a renewal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Renew {
    /// The locks.
    pub keys: Vec<String>,
    /// `LOCK.MRENEW`, also of one lock.
    pub several: bool,
    /// Who renews.
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
}

/// The words of a command, one after the other.
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

    fn claim(self, claim: &Claim) -> Words {
        match claim {
            Claim::Owner(owner) => self.option("OWNER", Some(owner)),
            Claim::Token(token) => self.option("TOKEN", Some(token)),
        }
    }
}

/// The list that guarded writes of a lock go to: in the slot of the lock.
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
                    .option("NOTIFY", acquire.notify.as_ref())
                    .option("GRACE", acquire.grace)
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
            }
            Command::Release(release) => Words::of_keys("RELEASE", release.several, &release.keys)
                .word(&release.owner)
                .option("PX", release.lease)
                .flag("SHARED", release.shared)
                .flag("ALL", release.all)
                .option("ID", release.id.as_ref()),
            Command::Renew(renew) => Words::of_keys("RENEW", renew.several, &renew.keys)
                .word(&renew.owner)
                .option("PX", renew.lease)
                .flag("WATCHDOG", renew.watchdog)
                .option("MAX", renew.watchdog_max)
                .flag("EPHEMERAL", renew.ephemeral)
                .option("REPLICAS", renew.replicas)
                .option("WITHIN", renew.replicas.and(Some(WITHIN))),
            Command::Break { key } => Words::new("LOCK.BREAK").word(key),
            Command::Cancel { key, owner, id } => {
                Words::new("LOCK.CANCEL").word(key).word(owner).option("ID", Some(id))
            }
            Command::Check { key, claim } => Words::new("LOCK.CHECK").word(key).claim(claim),
            Command::Guard { key, claim, entry } => {
                Words::new("LOCK.GUARD").word(key).claim(claim).option("RPUSH", Some(log_of(key))).word(entry)
            }
            Command::Info { key } => Words::new("LOCK.INFO").word(key),
            Command::Waiters { key } => Words::new("LOCK.WAITERS").word(key).option("COUNT", Some(1000)),
            Command::Log { key } => Words::new("LRANGE").word(&log_of(key)).word("0").word("-1"),
        };
        words.0
    }
}

/// Takes down a run: one for all threads.
pub struct Recorder {
    began: Instant,
    calls: AtomicU64,
    connections: AtomicU64,
    records: Mutex<Vec<Record>>,
}

impl Recorder {
    /// Begins a run.
    pub fn new(run: Run) -> Recorder {
        let records = Mutex::new(vec![Record::Run(run)]);
        Recorder { began: Instant::now(), calls: 0.into(), connections: 0.into(), records }
    }

    /// The time.
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

    /// Takes something down.
    pub fn add(&self, record: Record) {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
    }

    /// What was taken down so far, calls in the order of their numbers.
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
