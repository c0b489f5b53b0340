// SPDX-License-Identifier: MIT

//! Calls that belong to a session.

use serde::{Deserialize, Serialize};

/// The acquire that a call with `SESSION` is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Number {
    /// The id of the session.
    pub id: String,
    /// The number of the acquire in this session.
    pub n: i64,
}

/// The arguments of `LOCK.SESSION OPEN`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenSession {
    /// The id of the session to resume; `None` opens a new one.
    pub session_id: Option<String>,
    /// The beat.
    pub beat: i64,
    /// `TTL` of a new session, in milliseconds.
    pub ttl: i64,
    /// `GRACE` of a new session, in milliseconds.
    pub grace: i64,
}

impl OpenSession {
    pub(super) fn words(&self) -> Vec<String> {
        let words = match &self.session_id {
            Some(id) => format!("LOCK.SESSION OPEN {id} {}", self.beat),
            None => format!("LOCK.SESSION OPEN NEW {} TTL {} GRACE {}", self.beat, self.ttl, self.grace),
        };
        words.split(' ').map(str::to_owned).collect()
    }
}

/// The arguments of `LOCK.EVENTS`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Events {
    /// The id of the session.
    pub session_id: String,
    /// The beat.
    pub beat: i64,
    /// The last event that the client has handled.
    pub seq: i64,
    /// The client knows the answers of all acquires with smaller numbers.
    pub done: i64,
    /// Maximum time to wait for an event, in milliseconds.
    pub within: i64,
    /// Maximum number of events.
    pub count: usize,
}

impl Events {
    pub(super) fn words(&self) -> Vec<String> {
        let Events { session_id, beat, seq, done, within, count } = self;
        let words = format!("LOCK.EVENTS {session_id} {beat} {seq} {done} {within} {count}");
        words.split(' ').map(str::to_owned).collect()
    }
}
