// SPDX-License-Identifier: MIT

//! A snapshot of the locks of the server.

use std::cmp::Reverse;
use std::collections::HashMap;

use redis::{FromRedisValue, ParsingError, RedisResult, Value};
use redis_lock_tools::link::Link;
use redis_lock_tools::place::REPLY_TIMEOUT;

/// The maximum number of waiters per lock.
const MAX_WAITERS: usize = 20;

/// The locks and figures of the screen.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The lock with the longest wait is the first.
    pub locks: Vec<Lock>,
    /// The fields of `INFO lock`.
    pub figures: HashMap<String, i64>,
}

/// A lock with waiters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lock {
    /// The key as displayed.
    pub key: String,
    /// The key in the server, which may have any bytes.
    pub raw: Vec<u8>,
    pub mode: String,
    pub holders: Vec<Holder>,
    /// The first [`MAX_WAITERS`] waiters.
    pub waiters: Vec<Waiter>,
    /// The number of all waiters.
    pub waiting: i64,
    pub longest_ms: i64,
}

/// A holder of a lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holder {
    pub owner: String,
    pub holds: i64,
    pub ttl_ms: i64,
    /// `None` if the server does not know the start of the hold.
    pub since_ms: Option<i64>,
    /// The id, the address and the name of its connection, as far as the server knows them.
    pub connection: Option<String>,
    pub watchdog: bool,
}

/// A waiter for a lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiter {
    pub owner: String,
    pub mode: String,
    pub waited_ms: i64,
    /// -1 if the wait has no limit.
    pub remaining_ms: i64,
    /// The id, the address and the name of its connection, as far as the server knows them.
    pub connection: Option<String>,
}

impl State {
    /// Reads the state with several calls. Changes between two calls may look inconsistent for a moment.
    pub(crate) fn read(link: &mut Link, most: u16, pattern: &str) -> RedisResult<State> {
        let list = redis::cmd("LOCK.LIST").arg("MATCH").arg(pattern).arg("COUNT").arg(most).clone();
        let mut locks = link.call_everywhere::<Vec<Lock>>(REPLY_TIMEOUT, &list)?.concat();
        locks.sort_by_key(|lock| Reverse(lock.longest_ms));
        locks.truncate(usize::from(most));
        for lock in &mut locks {
            lock.holders = holders(link, &lock.raw)?;
            let waiters = redis::cmd("LOCK.WAITERS").arg(&lock.raw).arg("COUNT").arg(MAX_WAITERS).clone();
            lock.waiters = link.call_within(Some(REPLY_TIMEOUT), &waiters)?;
        }
        let mut figures = HashMap::new();
        for info in link.call_everywhere::<String>(REPLY_TIMEOUT, redis::cmd("INFO").arg("lock"))? {
            let pairs = info.lines().filter_map(|line| line.split_once(':'));
            for (name, value) in
                pairs.filter_map(|(name, value)| Some((name, value.trim().parse::<i64>().ok()?)))
            {
                *figures.entry(name.to_owned()).or_default() += value;
            }
        }
        Ok(State { locks, figures })
    }

    /// The sum of a field of `INFO lock` over all servers.
    pub(crate) fn figure(&self, name: &str) -> i64 {
        self.figures.get(name).copied().unwrap_or_default()
    }
}

/// The holders of a lock; none if it has become free.
pub(crate) fn holders(link: &mut Link, key: &[u8]) -> RedisResult<Vec<Holder>> {
    let info = redis::cmd("LOCK.INFO").arg(key).clone();
    let info: Option<HashMap<String, Value>> = link.call_within(Some(REPLY_TIMEOUT), &info)?;
    let Some(holders) = info.and_then(|mut info| info.remove("holders")) else { return Ok(Vec::new()) };
    Ok(Vec::from_redis_value(holders)?)
}

/// Escapes a name for a terminal: control characters, and characters that change the direction of the text, as they could
/// disguise a name.
fn escape(name: &[u8]) -> String {
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
struct Fields(HashMap<String, Value>);

impl Fields {
    fn of(value: Value) -> Result<Fields, ParsingError> {
        Ok(Fields(HashMap::from_redis_value(value)?))
    }

    fn take<T: FromRedisValue>(&mut self, name: &str) -> Result<T, ParsingError> {
        T::from_redis_value(self.0.remove(name).unwrap_or(Value::Nil))
    }

    /// The connection of a holder or a waiter, escaped for the terminal.
    fn connection(&mut self) -> Result<Option<String>, ParsingError> {
        let Some(client) = self.take::<Option<i64>>("client")? else { return Ok(None) };
        let mut text = format!("client {client}");
        if let Some(address) = self.take::<Option<Vec<u8>>>("address")? {
            text.push_str(&format!(" at {}", escape(&address)));
        }
        if let Some(name) = self.take::<Option<Vec<u8>>>("name")? {
            text.push_str(&format!(" ({})", escape(&name)));
        }
        Ok(Some(text))
    }

    /// A name, escaped for the terminal.
    fn text(&mut self, name: &str) -> Result<String, ParsingError> {
        Ok(escape(&self.take::<Vec<u8>>(name)?))
    }
}

impl FromRedisValue for Lock {
    fn from_redis_value(value: Value) -> Result<Lock, ParsingError> {
        let mut fields = Fields::of(value)?;
        let raw: Vec<u8> = fields.take("key")?;
        Ok(Lock {
            key: escape(&raw),
            raw,
            mode: fields.text("mode")?,
            waiting: fields.take("waiters")?,
            longest_ms: fields.take("longest")?,
            ..Lock::default()
        })
    }
}

impl FromRedisValue for Holder {
    fn from_redis_value(value: Value) -> Result<Holder, ParsingError> {
        let mut fields = Fields::of(value)?;
        Ok(Holder {
            owner: fields.text("owner")?,
            holds: fields.take("holds")?,
            ttl_ms: fields.take("ttl")?,
            since_ms: fields.take("since")?,
            connection: fields.connection()?,
            watchdog: fields.take::<Option<i64>>("watchdog")? == Some(1),
        })
    }
}

impl FromRedisValue for Waiter {
    fn from_redis_value(value: Value) -> Result<Waiter, ParsingError> {
        let mut fields = Fields::of(value)?;
        Ok(Waiter {
            owner: fields.text("owner")?,
            mode: fields.text("mode")?,
            waited_ms: fields.take("waited")?,
            remaining_ms: fields.take("remaining")?,
            connection: fields.connection()?,
        })
    }
}
