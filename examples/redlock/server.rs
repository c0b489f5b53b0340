// SPDX-License-Identifier: MIT

//! One of the servers: every call to it is answered within a time limit, or counts as not answered.

use std::collections::HashMap;
use std::time::Duration;

use redis::{Client, Cmd, Connection, FromRedisValue, IntoConnectionInfo, RedisResult};

/// What is asked for at every server alike.
pub(crate) struct Claim {
    pub(crate) key: String,
    /// Nobody else has the same.
    pub(crate) owner: String,
    /// By which the acquire is undone, whatever has become of it.
    pub(crate) request: String,
}

/// What a server said to an acquire.
pub(crate) enum Vote {
    /// Granted, with this token.
    Granted(i64),
    /// Somebody else holds it, or the server grants nothing now.
    Refused,
    /// No answer in time: it may have granted it.
    Silent,
}

impl Vote {
    pub(crate) fn token(&self) -> Option<i64> {
        match self {
            Vote::Granted(token) => Some(*token),
            Vote::Refused | Vote::Silent => None,
        }
    }
}

pub(crate) struct Server {
    client: Client,
    connection: Option<Connection>,
    /// How long a call may take.
    limit: Duration,
}

impl Server {
    pub(crate) fn new(url: &str, limit: Duration) -> RedisResult<Server> {
        let info = url.into_connection_info()?;
        // Without that the first thing sent would wait for an answer: a server that stands still would not even get a cancel.
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        Ok(Server { client: Client::open(info.set_redis_settings(settings))?, connection: None, limit })
    }

    pub(crate) fn acquire(&mut self, claim: &Claim, lease_ms: u64) -> Vote {
        let mut call = redis::cmd("LOCK.ACQUIRE");
        call.arg(&claim.key)
            .arg(&claim.owner)
            .arg("PX")
            .arg(lease_ms)
            .arg("FENCE")
            .arg("ID")
            .arg(&claim.request);
        match self.call::<Option<HashMap<String, String>>>(&call) {
            Ok(Some(grant)) => match grant.get("token").and_then(|token| token.parse().ok()) {
                Some(token) => Vote::Granted(token),
                None => Vote::Silent,
            },
            Ok(None) => Vote::Refused,
            Err(error) if is_answer(&error) => Vote::Refused,
            Err(_) => Vote::Silent,
        }
    }

    /// Tells it a token of another server, so that its next one is greater. Returns whether that is certain.
    pub(crate) fn make_known(&mut self, claim: &Claim, token: i64) -> bool {
        let mut calls = redis::pipe();
        // A token that is ahead raises the counter. (The command that it guards does not matter.)
        calls.cmd("LOCK.GUARD").arg(&claim.key).arg("TOKEN").arg(token).arg("PING");
        // If that came after the hold, somebody else may have a smaller token already.
        calls.cmd("LOCK.CHECK").arg(&claim.key).arg("OWNER").arg(&claim.owner);
        self.ask(|connection| calls.query::<(String, i64)>(connection)).is_ok()
    }

    /// Returns whether the lease runs anew.
    pub(crate) fn renew(&mut self, claim: &Claim, lease_ms: u64) -> bool {
        let mut call = redis::cmd("LOCK.RENEW");
        self.call::<i64>(call.arg(&claim.key).arg(&claim.owner).arg("PX").arg(lease_ms)).is_ok()
    }

    /// Gives back what there is. An acquire that comes later gets nothing.
    pub(crate) fn undo(&mut self, claim: &Claim) {
        let mut release = redis::cmd("LOCK.RELEASE");
        if self.call::<i64>(release.arg(&claim.key).arg(&claim.owner)).is_err() {
            self.cancel(claim);
        }
    }

    /// Undoes an acquire, and one that comes later gets nothing.
    pub(crate) fn cancel(&mut self, claim: &Claim) {
        let mut cancel = redis::cmd("LOCK.CANCEL");
        // A server that does not hear of it keeps what it granted until the lease ends.
        let _ = self.call::<i64>(cancel.arg(&claim.key).arg(&claim.owner).arg("ID").arg(&claim.request));
    }

    fn call<T: FromRedisValue>(&mut self, call: &Cmd) -> RedisResult<T> {
        self.ask(|connection| call.query(connection))
    }

    fn ask<T>(&mut self, ask: impl FnOnce(&mut Connection) -> RedisResult<T>) -> RedisResult<T> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connection = self.client.get_connection_with_timeout(self.limit)?;
                connection.set_read_timeout(Some(self.limit))?;
                connection.set_write_timeout(Some(self.limit))?;
                connection
            }
        };
        let answer = ask(&mut connection);
        // What comes after the time limit must not be taken for the answer to the next call.
        if answer.as_ref().err().is_none_or(is_answer) {
            self.connection = Some(connection);
        }
        answer
    }
}

/// The server has answered with an error: `NOTOWNER`, `QUARANTINE` and so on.
fn is_answer(error: &redis::RedisError) -> bool {
    error.code().is_some()
}
