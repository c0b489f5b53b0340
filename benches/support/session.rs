// SPDX-License-Identifier: MIT

//! A client with a session: a reader, which is the connection for `LOCK.EVENTS`, and a connection for all other calls.

use super::caller::Caller;
use super::server::Server;
use super::{packed, Outcome};

/// A lifetime in milliseconds that outlasts a slow run under callgrind.
pub const LONG_TTL_MS: u64 = 1_800_000;

/// A third of it is the longest time for which `LOCK.EVENTS` blocks. Then no call of a slow run gets an empty reply.
pub const LONG_GRACE_MS: u64 = 600_000;

pub struct SessionClient {
    pub id: String,
    pub reader: Caller,
    pub calls: Caller,
    beat: u64,
    /// Sequence number of the last event that has arrived.
    seq: u64,
    /// Number of the last acquire.
    pub n: u64,
}

impl SessionClient {
    pub fn open(server: &Server) -> Outcome<SessionClient> {
        SessionClient::open_for(server, LONG_TTL_MS, LONG_GRACE_MS)
    }

    /// Opens a session with this TTL and GRACE, in milliseconds.
    pub fn open_for(server: &Server, ttl_ms: u64, grace_ms: u64) -> Outcome<SessionClient> {
        let (mut reader, calls) = (Caller::connect(server)?, Caller::connect(server)?);
        let opened =
            reader.call(&format!("LOCK.SESSION OPEN NEW 1 TTL {ttl_ms} GRACE {grace_ms} NAME bench"))?;
        let id = session_id(&opened)?;
        Ok(SessionClient { id, reader, calls, beat: 1, seq: 0, n: 0 })
    }

    /// Sends `LOCK.EVENTS`, which acknowledges all events so far and blocks for this time. All acquires up to
    /// `done_to` have their answers.
    pub fn send_events(&mut self, done_to: u64, block_ms: u64) -> Outcome<()> {
        self.beat += 1;
        let SessionClient { id, beat, seq, .. } = self;
        let call = format!("LOCK.EVENTS {id} {beat} {seq} {} {block_ms}", done_to + 1);
        self.reader.send(&packed(&call))
    }

    /// Reads the reply to `LOCK.EVENTS`. Returns the number of events.
    pub fn read_events(&mut self) -> Outcome<usize> {
        let reply = self.reader.reply()?;
        let events = array_len(&reply)?;
        self.seq += events as u64;
        Ok(events)
    }

    /// Returns an acquire with the next number, which waits without a limit.
    pub fn queue(&mut self, lock: &str, owner: &str, options: &str) -> String {
        self.n += 1;
        format!("LOCK.ACQUIRE {lock} {owner} {options} QUEUE 0 SESSION {} {}", self.id, self.n)
    }

    pub fn close(&mut self) -> Outcome<()> {
        let call = format!("LOCK.SESSION CLOSE {}", self.id);
        self.calls.call(&call).map(drop)
    }

    /// Renews the session, and confirms that all acquires so far have their answers.
    pub fn heartbeat(&mut self) -> Outcome<()> {
        self.send_events(self.n, 0)?;
        self.read_events().map(drop)
    }
}

/// Returns the id in the reply to `LOCK.SESSION OPEN`.
pub fn session_id(reply: &[u8]) -> Outcome<String> {
    let text = std::str::from_utf8(reply)?;
    let id = text.split("\r\n").find(|line| line.len() == 32);
    Ok(id.ok_or_else(|| format!("no session was opened: {text:?}"))?.to_owned())
}

/// Returns the length of an array in RESP2.
pub fn array_len(reply: &[u8]) -> Outcome<usize> {
    let line = reply.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let len = line.strip_prefix(b"*").ok_or_else(|| format!("no array: {}", reply.escape_ascii()))?;
    Ok(std::str::from_utf8(len)?.parse()?)
}
