// SPDX-License-Identifier: MIT

//! A client of one session, with the rules that a package follows. The rule numbers, such as R2, are those of
//! `tests/protocol/README.md`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redis::Value;

use crate::client::{show, Client, PATIENCE};
use crate::server::Server;

/// Maximum number of events in a reply, which is the server's default.
const MAX_EVENTS: usize = 1_000;

/// The state of an acquire, as its client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The reply is missing.
    Unknown,
    Waiting,
    Held,
    /// The acquire holds nothing, and never will.
    Over,
}

/// An acquire or a declaration.
struct Acquire {
    /// The key, or several keys with spaces between them.
    key: String,
    owner: String,
    progress: Progress,
}

/// A session with two connections. It is closed when its value is dropped.
pub struct Session {
    /// The connection of `LOCK.SESSION OPEN` and `LOCK.EVENTS`.
    pub reader: Client,
    /// The connection of all other calls.
    pub pool: Client,
    pub id: String,
    /// Time for which a confirmation proves the holds.
    proof: Duration,
    beat: u64,
    /// The last event that the client has handled.
    seen: i64,
    acquires: BTreeMap<u64, Acquire>,
    /// Send time of the last `LOCK.EVENTS`, and of the last one that confirms holds.
    sent_at: Instant,
    confirmed_at: Option<Instant>,
}

impl Session {
    /// Opens a session. Times are in milliseconds.
    pub fn open(server: &Server, ttl: u64, grace: u64) -> Session {
        Session::open_on([server.client(), server.client()], ttl, grace, "")
    }

    /// Opens a session on two connections, the reader and the pool, with further options.
    pub fn open_on([mut reader, pool]: [Client; 2], ttl: u64, grace: u64, options: &str) -> Session {
        let reply = reader.call_value(&format!("LOCK.SESSION OPEN NEW 1 TTL {ttl} GRACE {grace} {options}"));
        let id = match &reply {
            Value::Array(values) if values.len() == 2 && values[1] == Value::Int(0) => show(&values[0]),
            other => panic!("OPEN NEW replied {}", show(other)),
        };
        assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        Session {
            reader,
            pool,
            id,
            proof: Duration::from_millis(ttl.min(grace)),
            beat: 1,
            seen: 0,
            acquires: BTreeMap::new(),
            sent_at: Instant::now(),
            confirmed_at: None,
        }
    }

    /// Replaces both connections, and resumes the session. Returns the reply.
    pub fn resume(&mut self, [reader, pool]: [Client; 2]) -> String {
        (self.reader, self.pool) = (reader, pool);
        let beat = self.take_beat();
        self.reader.call(&format!("LOCK.SESSION OPEN {} {beat}", self.id))
    }

    /// The number of the next beat. Skips it.
    pub fn take_beat(&mut self) -> u64 {
        self.beat += 1;
        self.beat
    }

    /// Number of the first acquire without a reply (R11).
    pub fn done(&self) -> u64 {
        let unanswered = self.acquires.iter().find(|(_, acquire)| acquire.progress == Progress::Unknown);
        unanswered.map_or(self.acquires.len() as u64 + 1, |(n, _)| *n)
    }

    /// Sends `LOCK.EVENTS` without waiting for the reply.
    pub fn send_events(&mut self, ms: u64) {
        let beat = self.take_beat();
        self.sent_at = Instant::now();
        self.reader.send(&format!("LOCK.EVENTS {} {beat} {} {} {ms}", self.id, self.seen, self.done()));
    }

    /// Receives and handles the reply of [`send_events`](Self::send_events). Fails with the error reply. Each event is its words
    /// without the sequence number, such as `granted 1 1`.
    pub fn recv_events(&mut self) -> Result<Vec<String>, String> {
        let events = match self.reader.recv_value() {
            Value::Array(events) => events,
            other => return Err(show(&other)),
        };
        let handled: Vec<String> = events.iter().map(|event| self.handle(event)).collect();
        if handled.len() < MAX_EVENTS {
            self.confirmed_at = Some(self.sent_at);
        }
        Ok(handled)
    }

    fn handle(&mut self, event: &Value) -> String {
        let Value::Array(words) = event else { panic!("no event: {}", show(event)) };
        let (Value::Int(seq), kind, Value::Int(n)) = (&words[0], show(&words[1]), &words[2]) else {
            panic!("no event: {}", show(event))
        };
        assert!(*seq > self.seen, "event {seq} arrives again after {}", self.seen);
        self.seen = *seq;
        let n = u64::try_from(*n).unwrap();
        match kind.as_str() {
            "granted" => self.note(n, Progress::Held),
            "lost" => self.note(n, Progress::Over),
            "contended" => {}
            other => panic!("no kind of event: {other}"),
        }
        words[1..].iter().map(show).collect::<Vec<_>>().join(" ")
    }

    /// An event overrules a later reply to the acquire (R14).
    fn note(&mut self, n: u64, progress: Progress) {
        self.acquires.get_mut(&n).unwrap_or_else(|| panic!("no acquire {n}")).progress = progress;
    }

    /// Calls `LOCK.EVENTS`, and returns its events.
    pub fn events(&mut self, ms: u64) -> Vec<String> {
        self.try_events(ms).unwrap()
    }

    pub fn try_events(&mut self, ms: u64) -> Result<Vec<String>, String> {
        self.send_events(ms);
        self.recv_events()
    }

    /// Calls `LOCK.EVENTS` until it returns events.
    #[track_caller]
    pub fn some_events(&mut self) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let events = self.events(1_000);
            if !events.is_empty() {
                return events;
            }
            assert!(Instant::now() < deadline, "no event arrives");
        }
    }

    /// Takes a new number for an acquire that the caller sends. `key` is one key, or several with spaces between them.
    pub fn number(&mut self, key: &str, owner: &str) -> u64 {
        let n = self.acquires.len() as u64 + 1;
        let acquire = Acquire { key: key.to_owned(), owner: owner.to_owned(), progress: Progress::Unknown };
        self.acquires.insert(n, acquire);
        n
    }

    /// The command about a number. Commands for several keys begin with an M, except `CANCEL`, which names the first key.
    pub fn command(&self, command: &str, n: u64, options: &str) -> String {
        let Acquire { key, owner, .. } = &self.acquires[&n];
        let call = match key.split_once(' ') {
            None => format!("{command} {key}"),
            Some((first, _)) if command == "CANCEL" => format!("CANCEL {first}"),
            Some(_) => format!("M{command} {} {key}", key.split(' ').count()),
        };
        format!("LOCK.{call} {owner} SESSION {} {n} {options}", self.id)
    }

    /// Acquires a lock. Returns its number and the reply.
    pub fn acquire(&mut self, key: &str, owner: &str, options: &str) -> (u64, String) {
        let n = self.number(key, owner);
        let reply = self.acquire_again(n, options);
        (n, reply)
    }

    /// Sends the acquire of a number again.
    pub fn acquire_again(&mut self, n: u64, options: &str) -> String {
        let reply = self.pool.call(&self.command("ACQUIRE", n, options));
        let of_reply = match reply.as_str() {
            "0" => Progress::Waiting,
            reply if is_granted(reply) => Progress::Held,
            _ => Progress::Over,
        };
        let acquire = self.acquires.get_mut(&n).unwrap();
        if matches!(acquire.progress, Progress::Unknown | Progress::Waiting) {
            acquire.progress = of_reply;
        }
        reply
    }

    /// Waits for a lock. Returns its number. Panics unless the acquire waits.
    pub fn queue(&mut self, key: &str, owner: &str, options: &str) -> u64 {
        let (n, reply) = self.acquire(key, owner, &format!("QUEUE 0 {options}"));
        assert_eq!(reply, "0", "{key} is not busy");
        n
    }

    pub fn release(&mut self, n: u64) -> String {
        self.end(n, "RELEASE")
    }

    pub fn cancel(&mut self, n: u64) -> String {
        self.end(n, "CANCEL")
    }

    fn end(&mut self, n: u64, command: &str) -> String {
        let reply = self.pool.call(&self.command(command, n, ""));
        self.note(n, Progress::Over);
        reply
    }

    /// Renews a hold. At `NOTOWNER`, the hold is lost.
    pub fn renew(&mut self, n: u64, options: &str) -> String {
        let reply = self.pool.call(&self.command("RENEW", n, options));
        if is_granted(&reply) {
            self.note(n, Progress::Held);
        } else if reply.starts_with("NOTOWNER ") {
            self.note(n, Progress::Over);
        }
        reply
    }

    /// Declares a hold that another session or no session has acquired. Returns its number and the reply.
    pub fn declare(&mut self, key: &str, owner: &str, options: &str) -> (u64, String) {
        let n = self.number(key, owner);
        let reply = self.renew(n, options);
        (n, reply)
    }

    pub fn close(&mut self) -> String {
        self.acquires.values_mut().for_each(|acquire| acquire.progress = Progress::Over);
        self.pool.call(&format!("LOCK.SESSION CLOSE {}", self.id))
    }

    pub fn progress(&self, n: u64) -> Progress {
        self.acquires[&n].progress
    }

    /// Time until which a hold is proven to be held (R2).
    pub fn safe_until(&self, n: u64) -> Option<Instant> {
        let confirmed = self.confirmed_at.filter(|_| self.progress(n) == Progress::Held)?;
        Some(confirmed + self.proof)
    }

    /// Number of holds that are safe now.
    pub fn safe_holds(&self) -> usize {
        let now = Instant::now();
        self.acquires.keys().filter(|n| self.safe_until(**n).is_some_and(|until| now < until)).count()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The connection may be closed, or the server may have ended.
        if self.pool.try_send(&format!("LOCK.SESSION CLOSE {}", self.id)).is_ok() && !std::thread::panicking()
        {
            let _ = self.pool.try_recv();
        }
    }
}

/// Whether a reply is a count or a map, or an array of them.
fn is_granted(reply: &str) -> bool {
    let is_count = !reply.is_empty() && reply.bytes().all(|byte| byte.is_ascii_digit());
    is_count || reply.starts_with(['[', '{'])
}
