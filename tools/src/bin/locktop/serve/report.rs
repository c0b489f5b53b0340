// SPDX-License-Identifier: MIT

//! The content of `/state.json` and of `/metrics`.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use redis::{FromRedisValue, ParsingError, RedisResult, Value};
use redis_lock_tools::link::{describe, Caller, Link};
use serde::Serialize;

use crate::options::Options;
use crate::state::{call_all, holders_id, lock_fields, missing, Connection, Fields, Figures, Lock, State};

/// The maximum number of holders of a lock in the report. More are read.
const SHOWN_HOLDERS: usize = 20;

/// The maximum number of waiters whose blockers are read.
const MAX_BLOCKED: usize = 20;

/// The maximum number of blockers of a waiter in the report.
const MAX_BLOCKERS: usize = 50;

/// The maximum number of locks that only the blockers name.
const MAX_RELATED: usize = 20;

/// The maximum number of holders of such a lock whose holders are read.
const MAX_RELATED_HOLDERS: i64 = 100;

const MAX_SESSIONS: usize = 100;
const MAX_INCIDENTS: usize = 50;
const MAX_TOP: usize = 20;

/// The state that the page shows.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    address: String,
    /// Milliseconds since the epoch.
    time_ms: u128,
    /// The interval between two reads.
    interval_ms: u128,
    may_break: bool,
    /// Whether the server is a replica, which knows no waiters.
    is_replica: bool,
    #[serde(rename = "match")]
    pattern: &'a str,
    figures: BTreeMap<String, i64>,
    locks: Vec<Listed>,
    locks_not_shown: i64,
    /// Locks outside the list that block waiters in it.
    related: Vec<Lock>,
    blocked: Vec<Blocked>,
    sessions: Vec<Session>,
    sessions_not_shown: i64,
    log: Vec<Incident>,
    log_not_shown: i64,
    top: Vec<Top>,
    /// Calls that the server refused.
    errors: Vec<String>,
}

#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    lock: Lock,
    /// Identifies the holders; a request to break the lock repeats it.
    holders_id: String,
    has_known_holders: bool,
}

/// The first waiter of a lock, and the owners that block it, nearest first.
#[derive(Serialize)]
struct Blocked {
    owner: String,
    key: String,
    by: Vec<Blocker>,
    not_shown: usize,
}

#[derive(Serialize)]
struct Blocker {
    owner: String,
    key: String,
    #[serde(skip)]
    raw_key: Vec<u8>,
    #[serde(flatten)]
    connection: Connection,
}

#[derive(Serialize)]
struct Session {
    name: String,
    user: String,
    client: Option<i64>,
    age_ms: i64,
    left_ms: i64,
    holds: i64,
    waits: i64,
    events: i64,
}

/// An entry of `LOCK.LOG`.
#[derive(Serialize)]
struct Incident {
    time_ms: i64,
    event: String,
    key: Option<String>,
    owner: String,
    by: Option<String>,
    waited_ms: Option<i64>,
    reason: String,
}

/// An entry of `LOCK.TOP`.
#[derive(Serialize)]
struct Top {
    key: String,
    waits: i64,
    waited_ms: i64,
    longest_ms: i64,
    error_ms: i64,
}

impl Report<'_> {
    /// Reads the state, and returns it as JSON. The user may lack permission for all but `LOCK.LIST`, `LOCK.INFO`,
    /// `LOCK.WAITERS` and `INFO`: those parts are then empty.
    pub(super) fn read(link: &mut Link, options: &Options) -> RedisResult<String> {
        let state = State::read(link, options.most, &options.pattern)?;
        let mut optional = Optional { link, errors: Vec::new() };
        let (blocked, related) = optional.read(|link| read_blockers(link, &state.locks))?.unwrap_or_default();
        let sessions: Vec<Session> = optional.list("LOCK.SESSION LIST", MAX_SESSIONS)?;
        let mut log: Vec<Incident> = optional.list("LOCK.LOG", MAX_INCIDENTS)?;
        log.sort_by_key(|incident| -incident.time_ms);
        log.truncate(MAX_INCIDENTS);
        let mut top: Vec<Top> = optional.list("LOCK.TOP", MAX_TOP)?;
        top.sort_by_key(|top| -top.waited_ms);
        top.truncate(MAX_TOP);
        let report = Report {
            address: options.server.address(),
            time_ms: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis(),
            interval_ms: options.delay.as_millis(),
            may_break: options.allow_break,
            is_replica: state.is_replica(),
            pattern: &options.pattern,
            locks_not_shown: state.hidden_locks(),
            sessions_not_shown: missing(state.figure("lock_sessions"), sessions.len()),
            log_not_shown: missing(state.figure("lock_log_entries"), log.len()),
            figures: state.figures,
            locks: state.locks.into_iter().map(Listed::new).collect(),
            related,
            blocked,
            sessions,
            log,
            top,
            errors: optional.errors,
        };
        Ok(serde_json::to_string(&report).unwrap_or_default())
    }
}

/// Reads parts of the report for which the user may lack permission.
struct Optional<'a> {
    link: &'a mut Link,
    errors: Vec<String>,
}

impl Optional<'_> {
    /// Returns `None` if the server refuses the call.
    fn read<T>(&mut self, read: impl FnOnce(&mut Link) -> RedisResult<T>) -> RedisResult<Option<T>> {
        match read(self.link) {
            Err(error) if error.code().is_some() => {
                self.errors.push(describe(&error));
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    /// The entries of a list command, at most `most` of each server.
    fn list<T: FromRedisValue>(&mut self, command: &str, most: usize) -> RedisResult<Vec<T>> {
        let mut call = redis::Cmd::new();
        for word in command.split(' ') {
            call.arg(word);
        }
        call.arg("COUNT").arg(most);
        Ok(self.read(|link| call_all(link, &call))?.unwrap_or_default())
    }
}

impl Listed {
    fn new(mut lock: Lock) -> Listed {
        let (holders_id, has_known_holders) = (holders_id(&lock.holders), lock.has_known_holders());
        lock.holders.truncate(SHOWN_HOLDERS);
        Listed { lock, holders_id, has_known_holders }
    }
}

/// The blockers of the first waiters, and the locks among them that are not listed.
fn read_blockers(link: &mut Link, locks: &[Lock]) -> RedisResult<(Vec<Blocked>, Vec<Lock>)> {
    let mut blocked = Vec::new();
    let firsts = locks.iter().filter_map(|lock| Some((lock, lock.waiters.first()?)));
    for (lock, waiter) in firsts.take(MAX_BLOCKED) {
        let mut by: Vec<Blocker> = call_all(link, redis::cmd("LOCK.BLOCKERS").arg(&waiter.raw))?;
        let not_shown = by.len().saturating_sub(MAX_BLOCKERS);
        by.truncate(MAX_BLOCKERS);
        blocked.push(Blocked { owner: waiter.owner.clone(), key: lock.key.clone(), by, not_shown });
    }
    let mut known: HashSet<&[u8]> = locks.iter().map(|lock| lock.raw.as_slice()).collect();
    let keys = blocked.iter().flat_map(|blocked| &blocked.by).map(|blocker| blocker.raw_key.as_slice());
    let unlisted: Vec<&[u8]> = keys.filter(|key| known.insert(key)).take(MAX_RELATED).collect();
    let mut related = Vec::new();
    for key in unlisted {
        if let Some(mut lock) = Lock::look_up(link, key, MAX_RELATED_HOLDERS)? {
            lock.holders.truncate(SHOWN_HOLDERS);
            related.push(lock);
        }
    }
    Ok((blocked, related))
}

impl FromRedisValue for Blocker {
    fn from_redis_value(value: Value) -> Result<Blocker, ParsingError> {
        let mut fields = Fields::from_redis_value(value)?;
        let raw_key: Vec<u8> = fields.take("key")?;
        Ok(Blocker {
            owner: fields.text("owner")?,
            key: crate::state::escape(&raw_key),
            raw_key,
            connection: fields.connection()?,
        })
    }
}

impl FromRedisValue for Session {
    fn from_redis_value(value: Value) -> Result<Session, ParsingError> {
        let mut fields = Fields::from_redis_value(value)?;
        Ok(Session {
            name: fields.text("name")?,
            user: fields.text("user")?,
            client: fields.take("client")?,
            age_ms: fields.take("age")?,
            left_ms: fields.take("left")?,
            holds: fields.take("holds")?,
            waits: fields.take("waits")?,
            events: fields.take("events")?,
        })
    }
}

impl FromRedisValue for Incident {
    fn from_redis_value(value: Value) -> Result<Incident, ParsingError> {
        let mut fields = Fields::from_redis_value(value)?;
        Ok(Incident {
            time_ms: fields.take("time")?,
            event: fields.text("event")?,
            key: fields.optional_text("key")?,
            owner: fields.text("owner")?,
            by: fields.optional_text("by")?,
            waited_ms: fields.take("waited")?,
            reason: fields.text("reason")?,
        })
    }
}

impl FromRedisValue for Top {
    fn from_redis_value(value: Value) -> Result<Top, ParsingError> {
        let mut fields = Fields::from_redis_value(value)?;
        Ok(Top {
            key: fields.text("key")?,
            waits: fields.take("waits")?,
            waited_ms: fields.take("waited")?,
            longest_ms: fields.take("longest")?,
            error_ms: fields.take("error")?,
        })
    }
}

/// Reads every field of `INFO lock` of every server that replies, and returns them in the text format of Prometheus.
pub(super) fn read_metrics(caller: &mut Caller) -> RedisResult<String> {
    let replies = caller.call_each::<String>(redis::cmd("INFO").arg("lock"))?;
    let servers = replies.into_iter().map(|(address, info)| {
        // A server that refuses the call is not down.
        let is_up = info.as_ref().map_or_else(|error| error.code().is_some(), |_| true);
        (address, is_up, info.ok().map(|info| lock_fields(&info)))
    });
    Ok(metrics(servers.collect()))
}

/// For each server, its address, whether it replies, and its fields.
fn metrics(servers: Vec<(String, bool, Option<Figures>)>) -> String {
    let mut samples: BTreeMap<String, Vec<(String, i64)>> = BTreeMap::new();
    for (address, is_up, figures) in servers {
        let label = address.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let up = ("lock_server_up".to_owned(), i64::from(is_up));
        let loaded = |figures: &Figures| ("lock_module_loaded".to_owned(), i64::from(!figures.is_empty()));
        let loaded = figures.as_ref().map(loaded);
        for (name, value) in figures.into_iter().flatten().chain(loaded).chain([up]) {
            samples.entry(name).or_default().push((label.clone(), value));
        }
    }
    let mut text = String::new();
    for (name, samples) in samples {
        // INFO does not say which fields are counters.
        let _ = writeln!(text, "# TYPE {name} untyped");
        for (server, value) in samples {
            let _ = writeln!(text, "{name}{{server=\"{server}\"}} {value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_metric_are_together() {
        let server = |address: &str, value| {
            (address.to_owned(), true, Some(vec![("lock_b".to_owned(), value), ("lock_a".to_owned(), 0)]))
        };
        let without_module = ("i:1".to_owned(), true, Some(Vec::new()));
        let down = ("j:1".to_owned(), false, None);
        let refused = ("k:1".to_owned(), true, None);
        assert_eq!(
            metrics(vec![server("h:1", 3), server("\"\\", 4), without_module, down, refused]),
            "# TYPE lock_a untyped\n\
             lock_a{server=\"h:1\"} 0\n\
             lock_a{server=\"\\\"\\\\\"} 0\n\
             # TYPE lock_b untyped\n\
             lock_b{server=\"h:1\"} 3\n\
             lock_b{server=\"\\\"\\\\\"} 4\n\
             # TYPE lock_module_loaded untyped\n\
             lock_module_loaded{server=\"h:1\"} 1\n\
             lock_module_loaded{server=\"\\\"\\\\\"} 1\n\
             lock_module_loaded{server=\"i:1\"} 0\n\
             # TYPE lock_server_up untyped\n\
             lock_server_up{server=\"h:1\"} 1\n\
             lock_server_up{server=\"\\\"\\\\\"} 1\n\
             lock_server_up{server=\"i:1\"} 1\n\
             lock_server_up{server=\"j:1\"} 0\n\
             lock_server_up{server=\"k:1\"} 1\n"
        );
    }
}
