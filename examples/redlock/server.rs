// SPDX-License-Identifier: MIT

//! One of the servers. A call without a reply within a time limit counts as unanswered.

use std::collections::HashMap;
use std::time::Duration;

use redis::{Client, Cmd, Connection, FromRedisValue, IntoConnectionInfo, RedisResult};

/// One acquire, which is the same for every server.
pub(crate) struct Claim {
    pub(crate) key: String,
    /// Unique to this acquire.
    pub(crate) owner: String,
    /// The `ID` with which `LOCK.CANCEL` undoes the acquire.
    pub(crate) request: String,
}

/// The reply of a server to an acquire.
pub(crate) enum Vote {
    /// Granted, with this token.
    Granted(i64),
    /// The lock has another holder, or the server grants nothing now.
    Refused,
    /// No reply in time: the server may have granted the lock.
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
    /// Time limit of a call.
    limit: Duration,
}

impl Server {
    pub(crate) fn new(url: &str, limit: Duration) -> RedisResult<Server> {
        let info = url.into_connection_info()?;
        // Otherwise the first command would wait for a reply, and a stopped server would not even get a cancel.
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

    /// Sends the token of another server, so that the next token is greater. Returns whether that is certain.
    pub(crate) fn make_known(&mut self, claim: &Claim, token: i64) -> bool {
        let mut calls = redis::pipe();
        // A greater token raises the counter. (The guarded command does not matter.)
        calls.cmd("LOCK.GUARD").arg(&claim.key).arg("TOKEN").arg(token).arg("PING");
        // If the token arrived after the end of the hold, another owner may already have a smaller token.
        calls.cmd("LOCK.CHECK").arg(&claim.key).arg("OWNER").arg(&claim.owner);
        self.ask(|connection| calls.query::<(String, i64)>(connection)).is_ok()
    }

    /// Starts the lease again. Returns whether that succeeded.
    pub(crate) fn renew(&mut self, claim: &Claim, lease_ms: u64) -> bool {
        let mut call = redis::cmd("LOCK.RENEW");
        self.call::<i64>(call.arg(&claim.key).arg(&claim.owner).arg("PX").arg(lease_ms)).is_ok()
    }

    /// Releases the hold, or cancels an acquire that has not arrived yet.
    pub(crate) fn undo(&mut self, claim: &Claim) {
        let mut release = redis::cmd("LOCK.RELEASE");
        if self.call::<i64>(release.arg(&claim.key).arg(&claim.owner)).is_err() {
            self.cancel(claim);
        }
    }

    /// Undoes an acquire, even if it arrives later.
    pub(crate) fn cancel(&mut self, claim: &Claim) {
        let mut cancel = redis::cmd("LOCK.CANCEL");
        // If the cancel does not arrive, the server keeps the hold until the lease ends.
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
        // A late reply must not be read as the reply to the next call.
        if answer.as_ref().err().is_none_or(is_answer) {
            self.connection = Some(connection);
        }
        answer
    }
}

/// Returns whether the error is a reply of the server: `NOTOWNER`, `QUARANTINE` and so on.
fn is_answer(error: &redis::RedisError) -> bool {
    error.code().is_some()
}
