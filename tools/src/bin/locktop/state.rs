// SPDX-License-Identifier: MIT

//! A snapshot of the locks of the server.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use redis::{FromRedisValue, ParsingError, RedisResult, Value};
use redis_lock_tools::link::Link;
use redis_lock_tools::place::REPLY_TIMEOUT;
use serde::{Serialize, Serializer};

/// The maximum number of waiters per lock.
const MAX_WAITERS: usize = 20;

/// The maximum number of holders of a lock whose holders are read: `LOCK.INFO` returns all of them.
const MAX_HOLDERS: i64 = 1000;

/// The locks and figures of the screen.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The lock with the longest wait is the first.
    pub locks: Vec<Lock>,
    /// The fields of `INFO lock`: the sum over all servers, or the maximum of a duration or a state.
    pub figures: BTreeMap<String, i64>,
}

/// A lock with waiters.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Lock {
    /// The key as displayed.
    pub key: String,
    /// The key in the server, which may have any bytes.
    #[serde(rename = "id", serialize_with = "hex")]
    pub raw: Vec<u8>,
    pub mode: String,
    /// Empty if there are more than [`MAX_HOLDERS`].
    pub holders: Vec<Holder>,
    /// The number of all holders.
    pub holder_count: i64,
    /// The first [`MAX_WAITERS`] waiters.
    pub waiters: Vec<Waiter>,
    /// The number of all waiters.
    #[serde(rename = "waiter_count")]
    pub waiting: i64,
    pub longest_ms: i64,
}

/// A holder of a lock.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Holder {
    pub owner: String,
    pub mode: String,
    pub holds: i64,
    pub ttl_ms: i64,
    /// `None` if the server does not know the start of the hold.
    pub since_ms: Option<i64>,
    #[serde(flatten)]
    pub connection: Connection,
    pub watchdog: bool,
    /// The name of its session.
    pub session: Option<String>,
}

/// A waiter for a lock.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Waiter {
    pub owner: String,
    /// The owner in the server, which may have any bytes.
    #[serde(skip)]
    pub raw: Vec<u8>,
    pub mode: String,
    pub waited_ms: i64,
    /// -1 if the wait has no limit.
    pub remaining_ms: i64,
    #[serde(flatten)]
    pub connection: Connection,
}

/// The id, the address and the name of a connection, as far as the server knows them.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Connection {
    pub client: Option<i64>,
    pub address: Option<String>,
    pub name: Option<String>,
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(client) = self.client else { return Ok(()) };
        write!(f, "client {client}")?;
        if let Some(address) = &self.address {
            write!(f, " at {address}")?;
        }
        if let Some(name) = &self.name {
            write!(f, " ({name})")?;
        }
        Ok(())
    }
}

impl State {
    /// Reads the state with several calls. Changes between two calls may look inconsistent for a moment.
    pub(crate) fn read(link: &mut Link, most: u16, pattern: &str) -> RedisResult<State> {
        let list = redis::cmd("LOCK.LIST").arg("MATCH").arg(pattern).arg("COUNT").arg(most).clone();
        let mut locks: Vec<Lock> = call_all(link, &list)?;
        locks.sort_by_key(|lock| Reverse(lock.longest_ms));
        locks.truncate(usize::from(most));
        for lock in &mut locks {
            lock.read_owners(link, MAX_HOLDERS)?;
        }
        let mut totals: BTreeMap<String, i64> = BTreeMap::new();
        for (name, value) in figures(link)?.into_iter().flat_map(|(_, figures)| figures) {
            let is_duration = name.contains("_us_") || name.ends_with("_ms");
            let is_state = ["lock_version", "lock_build", "lock_eviction"].contains(&&*name);
            let combine: fn(i64, i64) -> i64 = match &*name {
                // A cluster with a primary is no replica.
                "lock_is_replica" => i64::min,
                _ if is_duration || is_state => i64::max,
                _ => |one, other| one + other,
            };
            totals.entry(name).and_modify(|total| *total = combine(*total, value)).or_insert(value);
        }
        Ok(State { locks, figures: totals })
    }

    /// A field of `INFO lock`.
    pub(crate) fn figure(&self, name: &str) -> i64 {
        self.figures.get(name).copied().unwrap_or_default()
    }

    /// Whether the server is a replica, which knows no waiters.
    pub(crate) fn is_replica(&self) -> bool {
        self.figure("lock_is_replica") == 1
    }

    /// The number of locks with waiters that are not listed: beyond the maximum, without a match, or in another database.
    pub(crate) fn hidden_locks(&self) -> i64 {
        missing(self.figure("lock_contended_locks"), self.locks.len())
    }
}

impl Lock {
    /// Reads one lock, and its holders if there are at most `max_holders`. Returns `None` if it has no waiters.
    pub(crate) fn look_up(link: &mut Link, key: &[u8], max_holders: i64) -> RedisResult<Option<Lock>> {
        let list = redis::cmd("LOCK.LIST").arg("MATCH").arg(literal(key)).arg("COUNT").arg(1).clone();
        let Some(mut lock) = call_all::<Lock>(link, &list)?.into_iter().next() else { return Ok(None) };
        lock.read_owners(link, max_holders)?;
        Ok(Some(lock))
    }

    /// Reads the first waiters, and the holders if there are at most `max_holders`.
    fn read_owners(&mut self, link: &mut Link, max_holders: i64) -> RedisResult<()> {
        if self.holder_count <= max_holders {
            self.holders = holders(link, &self.raw)?;
        }
        self.waiters = waiters(link, &self.raw)?;
        Ok(())
    }

    /// Whether the key or an owner contains a text in lower case.
    pub(crate) fn mentions(&self, text: &str) -> bool {
        let owners = self.holders.iter().map(|holder| &holder.owner);
        let mut names = owners.chain(self.waiters.iter().map(|waiter| &waiter.owner)).chain([&self.key]);
        names.any(|name| name.to_lowercase().contains(text))
    }

    /// Whether all holders were read.
    pub(crate) fn has_known_holders(&self) -> bool {
        self.holder_count <= MAX_HOLDERS
    }
}

/// The pattern that matches only this key.
fn literal(key: &[u8]) -> Vec<u8> {
    let escaped = |byte: &u8| {
        let escape = b"*?[]\\".contains(byte).then_some(b'\\');
        escape.into_iter().chain([*byte])
    };
    key.iter().flat_map(escaped).collect()
}

/// The number of entries that a list does not show.
pub(crate) fn missing(total: i64, shown: usize) -> i64 {
    (total - i64::try_from(shown).unwrap_or(i64::MAX)).max(0)
}

/// The replies of all servers to a call that returns a list, in one list.
pub(crate) fn call_all<T: FromRedisValue>(link: &mut Link, command: &redis::Cmd) -> RedisResult<Vec<T>> {
    let replies = link.call_everywhere::<Vec<T>>(REPLY_TIMEOUT, command)?;
    Ok(replies.into_iter().flat_map(|(_, entries)| entries).collect())
}

/// The fields of `INFO lock`.
pub(crate) type Figures = Vec<(String, i64)>;

/// The address of every server, and the fields of its `INFO lock`.
fn figures(link: &mut Link) -> RedisResult<Vec<(String, Figures)>> {
    let infos = link.call_everywhere::<String>(REPLY_TIMEOUT, redis::cmd("INFO").arg("lock"))?;
    Ok(infos.into_iter().map(|(address, info)| (address, lock_fields(&info))).collect())
}

/// The fields of the module in a reply to `INFO`.
pub(crate) fn lock_fields(info: &str) -> Figures {
    let pairs = info.lines().filter_map(|line| line.split_once(':'));
    let numbers =
        pairs.filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse::<i64>().ok()?)));
    numbers.filter(|(name, _)| name.starts_with("lock_")).collect()
}

/// The holders of a lock; none if it has become free.
fn holders(link: &mut Link, key: &[u8]) -> RedisResult<Vec<Holder>> {
    let info = redis::cmd("LOCK.INFO").arg(key).clone();
    let info = link.call_within::<Option<Fields>>(Some(REPLY_TIMEOUT), &info)?;
    Ok(info.map(|mut info| info.take("holders")).transpose()?.unwrap_or_default())
}

/// The first waiters of a lock.
fn waiters(link: &mut Link, key: &[u8]) -> RedisResult<Vec<Waiter>> {
    let waiters = redis::cmd("LOCK.WAITERS").arg(key).arg("COUNT").arg(MAX_WAITERS).clone();
    link.call_within(Some(REPLY_TIMEOUT), &waiters)
}

/// Identifies the holders of a lock: differs if other owners hold it.
pub(crate) fn holders_id(holders: &[Holder]) -> String {
    let mut hasher = DefaultHasher::new();
    holders.iter().map(|holder| &holder.owner).collect::<Vec<_>>().hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Breaks a lock, and returns the number of holders that lost it. Returns `None` if other owners hold it: then nothing is broken.
pub(crate) fn break_lock(link: &mut Link, key: &[u8], expected: &str) -> RedisResult<Option<i64>> {
    if holders_id(&holders(link, key)?) != expected {
        return Ok(None);
    }
    link.call_within(Some(REPLY_TIMEOUT), redis::cmd("LOCK.BREAK").arg(key)).map(Some)
}

fn hex<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Escapes a name for a terminal: control characters, and characters that change the direction of the text, as they could
/// disguise a name.
pub(crate) fn escape(name: &[u8]) -> String {
    let mut escaped = String::new();
    for letter in String::from_utf8_lossy(name).chars() {
        let reorders = matches!(letter, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if letter.is_control() || reorders {
            escaped.extend(letter.escape_default());
        } else {
            escaped.push(letter);
        }
    }
    escaped
}

/// The fields of a map, or of a flat array in RESP2.
pub(crate) struct Fields(HashMap<String, Value>);

impl Fields {
    pub(crate) fn take<T: FromRedisValue>(&mut self, name: &str) -> Result<T, ParsingError> {
        T::from_redis_value(self.0.remove(name).unwrap_or(Value::Nil))
    }

    /// The connection of a holder or a waiter.
    pub(crate) fn connection(&mut self) -> Result<Connection, ParsingError> {
        Ok(Connection {
            client: self.take("client")?,
            address: self.optional_text("address")?,
            name: self.optional_text("name")?,
        })
    }

    /// A name, escaped.
    pub(crate) fn text(&mut self, name: &str) -> Result<String, ParsingError> {
        Ok(escape(&self.take::<Vec<u8>>(name)?))
    }

    /// A name that may be nil, escaped.
    pub(crate) fn optional_text(&mut self, name: &str) -> Result<Option<String>, ParsingError> {
        Ok(self.take::<Option<Vec<u8>>>(name)?.map(|text| escape(&text)))
    }
}

impl FromRedisValue for Fields {
    fn from_redis_value(value: Value) -> Result<Fields, ParsingError> {
        Ok(Fields(HashMap::from_redis_value(value)?))
    }
}

impl FromRedisValue for Lock {
    fn from_redis_value(value: Value) -> Result<Lock, ParsingError> {
        let mut fields = Fields::from_redis_value(value)?;
        let raw: Vec<u8> = fields.take("key")?;
        Ok(Lock {
            key: escape(&raw),
            raw,
            mode: fields.text("mode")?,
            holder_count: fields.take("holders")?,
            waiting: fields.take("waiters")?,
            longest_ms: fields.take("longest")?,
            ..Lock::default()
        })
    }
}

impl FromRedisValue for Holder {
    fn from_redis_value(value: Value) -> Result<Holder, ParsingError> {
        let mut fields = Fields::from_redis_value(value)?;
        Ok(Holder {
            owner: fields.text("owner")?,
            mode: fields.text("mode")?,
            holds: fields.take("holds")?,
            ttl_ms: fields.take("ttl")?,
            since_ms: fields.take("since")?,
            connection: fields.connection()?,
            watchdog: fields.take::<Option<i64>>("watchdog")? == Some(1),
            session: fields.optional_text("session")?,
        })
    }
}

impl FromRedisValue for Waiter {
    fn from_redis_value(value: Value) -> Result<Waiter, ParsingError> {
        let mut fields = Fields::from_redis_value(value)?;
        let raw: Vec<u8> = fields.take("owner")?;
        Ok(Waiter {
            owner: escape(&raw),
            raw,
            mode: fields.text("mode")?,
            waited_ms: fields.take("waited")?,
            remaining_ms: fields.take("remaining")?,
            connection: fields.connection()?,
        })
    }
}
