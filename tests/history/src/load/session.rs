// SPDX-License-Identifier: MIT

//! A client with a session. One thread reads the events, another makes calls with numbers. The session outlives the connections
//! of both, and its holds and waits are declared in a new session once it has ended. See `docs/sessions.md`.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::RngExt;
use serde_json::Value;

use super::client::token;
use super::link::{Breakage, Line};
use super::Shared;
use crate::record::{Acquire, Claim, Command, Events, Number, OpenSession, Outcome, Release, Renew};
use crate::wire::End;

/// `TTL` of the sessions, in milliseconds. A client is suspended for nearly as long at most.
const TTL: i64 = 1_000;
/// `GRACE` of the sessions, in milliseconds.
const GRACE: i64 = 300;
/// Longest wait for an event, in milliseconds: the server's limit.
const WITHIN: i64 = GRACE / 3;
/// Length of renewed leases if replicas must have the holds, in milliseconds. It covers the lag of a replica.
const REPLICATED_LEASE: i64 = 2_000;
/// Number of finished calls that the client may repeat.
const PAST: usize = 12;
/// Number of attempts of a call before the client does something else.
const ATTEMPTS: u32 = 6;
/// Number of owner names.
const OWNERS: u32 = 3;

/// State that the reader and the caller share.
#[derive(Default)]
struct Presence {
    id: Option<String>,
    /// Whether all holds and waits of the last session were declared in this one.
    is_declared: bool,
    beat: i64,
    /// The last event that was read.
    seen: i64,
    /// The client knows the answers of all acquires with smaller numbers.
    done: i64,
    events: Vec<Value>,
    is_over: bool,
}

impl Presence {
    fn next_beat(&mut self) -> i64 {
        self.beat += 1;
        self.beat
    }

    /// Forgets a session that has ended.
    fn forget(&mut self, id: &str) {
        if self.id.as_deref() == Some(id) {
            self.id = None;
        }
    }
}

fn locked(presence: &Mutex<Presence>) -> MutexGuard<'_, Presence> {
    presence.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the client.
pub(super) fn run(shared: &Shared, client: u32) {
    let presence = Mutex::new(Presence::default());
    thread::scope(|scope| {
        scope.spawn(|| Reader::new(shared, client, &presence).run());
        Caller::new(shared, client, &presence).run();
    });
}

/// Opens sessions, keeps them alive, and reads their events.
struct Reader<'a> {
    shared: &'a Shared,
    presence: &'a Mutex<Presence>,
    rng: StdRng,
    line: Line<'a>,
    /// Whether the connection was lost since the last reply.
    is_broken: bool,
}

impl<'a> Reader<'a> {
    fn new(shared: &'a Shared, client: u32, presence: &'a Mutex<Presence>) -> Reader<'a> {
        let (rng, line) = (shared.rng(client + 10_000), Line::new(shared, client));
        Reader { shared, presence, rng, line, is_broken: false }
    }

    fn run(mut self) {
        loop {
            let mut presence = locked(self.presence);
            if presence.is_over {
                return;
            }
            let beat = presence.next_beat();
            let (seq, done) = (presence.seen, presence.done);
            match presence.id.clone() {
                None => {
                    drop(presence);
                    self.open(beat);
                }
                Some(_) if !presence.is_declared => {
                    drop(presence);
                    thread::sleep(Duration::from_millis(1));
                }
                Some(id) => {
                    drop(presence);
                    if self.is_broken && self.rng.random_bool(0.7) {
                        self.resume(id, beat);
                    } else {
                        self.read(id, beat, seq, done);
                    }
                }
            }
        }
    }

    fn breakage(&mut self) -> Option<Breakage> {
        if self.rng.random_range(0..1000) >= self.shared.settings.broken {
            return None;
        }
        let end = if self.rng.random() { End::Close } else { End::Reset };
        Some(match self.rng.random_range(0..10) {
            0..3 => Breakage::Part(self.rng.random_range(1..60), end),
            8.. => Breakage::Half,
            _ => Breakage::Unread(Duration::from_micros(self.rng.random_range(0..3_000)), end),
        })
    }

    /// Makes a call. Returns the reply.
    fn call(&mut self, id: &str, command: Command) -> Option<Value> {
        let breakage = self.breakage();
        let outcome = self.line.call(command, breakage);
        self.is_broken = matches!(outcome, Outcome::Unknown | Outcome::Unsent);
        match outcome {
            Outcome::Reply(reply) => return Some(reply),
            // LATE to the newest call proves that another process uses the id. That is refused by the checker.
            Outcome::Error(error) if error.starts_with("NOSESSION") || error.starts_with("LATE") => {
                locked(self.presence).forget(id);
            }
            _ => thread::sleep(Duration::from_millis(1)),
        }
        None
    }

    fn open(&mut self, beat: i64) {
        let open = OpenSession { session_id: None, beat, ttl: TTL, grace: GRACE };
        let Some(reply) = self.call("", Command::OpenSession(open)) else { return };
        let mut presence = locked(self.presence);
        presence.id = reply.get(0).and_then(Value::as_str).map(str::to_owned);
        presence.events.clear();
        (presence.is_declared, presence.seen) = (false, 0);
    }

    fn resume(&mut self, id: String, beat: i64) {
        let open = OpenSession { session_id: Some(id.clone()), beat, ..OpenSession::default() };
        self.call(&id, Command::OpenSession(open));
    }

    fn read(&mut self, session_id: String, beat: i64, seq: i64, done: i64) {
        let still = self.shared.settings.still;
        if still > 0 && self.rng.random_range(0..1000) < still {
            self.line.suspend_for = Duration::from_millis(self.rng.random_range(100..900));
        }
        let count = if self.rng.random_bool(0.1) { 1 } else { 1_000 };
        let within = self.rng.random_range(0..=WITHIN);
        let id = session_id.clone();
        let events = Events { session_id, beat, seq, done, within, count };
        let Some(Value::Array(events)) = self.call(&id, Command::Events(events)) else { return };
        let mut presence = locked(self.presence);
        if presence.id.as_ref() == Some(&id) {
            let seen = events.last().and_then(|event| event.get(0)?.as_i64());
            presence.seen = seen.unwrap_or(presence.seen);
            presence.events.extend(events);
        }
    }
}

/// The client's knowledge about a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The acquire has no reply.
    Unanswered,
    Waiting,
    Held,
    /// The release has no reply.
    Releasing,
}

/// A number that is not over.
struct Entry {
    acquire: Acquire,
    number: Number,
    state: State,
    token: Option<i64>,
}

/// Makes calls with numbers.
struct Caller<'a> {
    shared: &'a Shared,
    client: u32,
    presence: &'a Mutex<Presence>,
    rng: StdRng,
    line: Line<'a>,
    spare: Line<'a>,
    /// The session of the entries.
    id: Option<String>,
    last_number: i64,
    entries: Vec<Entry>,
    past: VecDeque<Command>,
    /// Number of name changes of the owners.
    names: u32,
    call: u32,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        locked(self.presence).is_over = true;
    }
}

impl<'a> Caller<'a> {
    fn new(shared: &'a Shared, client: u32, presence: &'a Mutex<Presence>) -> Caller<'a> {
        let (line, spare) = (Line::new(shared, client), Line::new(shared, client));
        let (entries, past, rng) = (Vec::new(), VecDeque::new(), shared.rng(client));
        let (id, last_number, names, call) = (None, 0, 0, 0);
        Caller { shared, client, presence, rng, line, spare, id, last_number, entries, past, names, call }
    }

    fn run(mut self) {
        for call in 0.. {
            if self.shared.is_late() || self.shared.is_enough(call) {
                break;
            }
            self.call = call;
            let generation = call / self.shared.settings.calls_per_key.max(1);
            self.shared.generation.fetch_max(generation, Ordering::Relaxed);
            if self.rng.random_bool(0.3) {
                thread::sleep(Duration::from_millis(self.rng.random_range(0..20)));
            }
            self.receive();
            if self.id.is_some() {
                self.one_call();
            } else {
                thread::sleep(Duration::from_millis(1));
            }
            self.update_done();
        }
        self.close(ATTEMPTS);
    }

    /// Ends the session.
    fn close(&mut self, attempts: u32) {
        let Some(session_id) = self.id.clone() else { return };
        for _ in 0..attempts {
            let close = Command::CloseSession { session_id: session_id.clone() };
            if !matches!(self.line.call(close, None), Outcome::Unknown | Outcome::Unsent) {
                break;
            }
        }
        locked(self.presence).forget(&session_id);
    }

    /// Handles the session's events, or declares everything in a new session.
    fn receive(&mut self) {
        let mut presence = locked(self.presence);
        let (id, is_declared) = (presence.id.clone(), presence.is_declared);
        let events = std::mem::take(&mut presence.events);
        drop(presence);
        self.id = id;
        if self.id.is_some() && !is_declared {
            self.declare();
            return;
        }
        for event in events {
            let n = event.get(2).and_then(Value::as_i64);
            let Some(at) = self.entries.iter().position(|entry| Some(entry.number.n) == n) else { continue };
            match event.get(1).and_then(Value::as_str) {
                Some("granted") => self.is_granted(at, event.get(4).and_then(Value::as_i64)),
                Some("lost") => self.is_over(at),
                _ => {}
            }
        }
    }

    fn is_granted(&mut self, at: usize, token: Option<i64>) {
        let entry = &mut self.entries[at];
        if matches!(entry.state, State::Unanswered | State::Waiting) {
            self.shared.granted.fetch_add(1, Ordering::Relaxed);
            entry.state = State::Held;
        }
        entry.token = token.or(entry.token);
    }

    fn is_over(&mut self, at: usize) {
        let entry = self.entries.swap_remove(at);
        self.past.push_front(Command::Acquire(entry.acquire));
        self.past.truncate(PAST);
    }

    fn update_done(&mut self) {
        let mut presence = locked(self.presence);
        if presence.id == self.id {
            let is_open = |entry: &&Entry| matches!(entry.state, State::Unanswered | State::Waiting);
            let open = self.entries.iter().filter(is_open).map(|entry| entry.number.n).min();
            presence.done = open.unwrap_or(self.last_number + 1);
        }
    }

    fn next_number(&mut self) -> Number {
        self.last_number += 1;
        Number { id: self.id.clone().unwrap_or_default(), n: self.last_number }
    }

    /// Declares the holds and the waits of an ended session in the new one.
    fn declare(&mut self) {
        let Some(id) = self.id.clone() else { return };
        for entry in std::mem::take(&mut self.entries) {
            // An unanswered release is not repeated, so its owner may still hold the lock.
            if entry.state == State::Releasing {
                self.names += 1;
                continue;
            }
            let number = self.next_number();
            let renew = Renew {
                keys: entry.acquire.keys.clone(),
                owner: entry.acquire.owner.clone(),
                ephemeral: entry.acquire.ephemeral,
                session: Some(number.clone()),
                ..self.lease_of(&entry.acquire)
            };
            let acquire = Acquire { session: Some(number.clone()), ..entry.acquire.clone() };
            match self.answer(Command::Renew(renew)) {
                Outcome::Reply(_) => {
                    self.entries.push(Entry { acquire, number, state: State::Held, token: entry.token });
                }
                // The old session may still have the hold, or the outcome is unknown: the hold ends by itself.
                _ => self.names += 1,
            }
        }
        let mut presence = locked(self.presence);
        if presence.id.as_ref() == Some(&id) {
            presence.done = self.last_number + 1;
            presence.is_declared = true;
        }
    }

    /// The lease for a renewal of a hold: the server renews it, or it keeps its own.
    fn lease_of(&self, acquire: &Acquire) -> Renew {
        Renew { lease: acquire.lease, watchdog: acquire.watchdog, ..Renew::default() }
    }

    /// Makes a call until it has an answer. Forgets the session if the server does not know it.
    fn answer(&mut self, command: Command) -> Outcome {
        let mut outcome = Outcome::Unsent;
        for _ in 0..ATTEMPTS {
            let breakage = self.breakage();
            outcome = self.line.call(command.clone(), breakage);
            match &outcome {
                Outcome::Unknown | Outcome::Unsent => {}
                Outcome::Error(error)
                    if ["LOADING", "READONLY", "MASTERDOWN"].iter().any(|word| error.starts_with(word)) =>
                {
                    thread::sleep(Duration::from_millis(1));
                }
                Outcome::Error(error) if error.starts_with("NOSESSION") => {
                    if let Some(number) = command.session() {
                        locked(self.presence).forget(&number.id);
                    }
                    break;
                }
                _ => break,
            }
        }
        outcome
    }

    fn breakage(&mut self) -> Option<Breakage> {
        if self.rng.random_range(0..1000) >= self.shared.settings.broken {
            return None;
        }
        let end = if self.rng.random() { End::Close } else { End::Reset };
        let after = Duration::from_micros(self.rng.random_range(0..3_000));
        Some(if self.rng.random_bool(0.3) {
            Breakage::Part(self.rng.random_range(1..60), end)
        } else {
            Breakage::Unread(after, end)
        })
    }

    fn one_call(&mut self) {
        let unanswered = |entry: &Entry| matches!(entry.state, State::Unanswered | State::Releasing);
        if let Some(at) = self.entries.iter().position(unanswered) {
            return self.end(at);
        }
        let chosen = (0..self.entries.len()).collect::<Vec<_>>().choose(&mut self.rng).copied();
        match (self.rng.random_range(0..100), chosen) {
            (0..2, _) if self.rng.random_bool(0.2) => self.close(1),
            (2..12, _) => self.repeat(),
            (12..40, Some(at)) => self.end(at),
            (40..46, Some(at)) => self.renew(at),
            (46..60, Some(at)) => self.check(at),
            _ if self.entries.len() < 4 => self.acquire(),
            _ => {}
        }
    }

    fn acquire(&mut self) {
        let slot = self.rng.random_range(0..self.shared.settings.keys);
        let mut key = self.shared.key(slot, self.call);
        let mut index = self.rng.random_range(0..OWNERS);
        // An owner that acquires a lock again soon, so that late calls find a later hold.
        if let (true, Some(Command::Release(last))) = (self.rng.random(), self.past.front()) {
            index = last
                .owner
                .find('o')
                .and_then(|at| last.owner[at + 1..].chars().next()?.to_digit(10))
                .unwrap_or(index);
            key.clone_from(&last.keys[0]);
        }
        let owner = format!("e{}o{index}e{}", self.client, self.names);
        // One number for each hold of an owner, so that each count is 1.
        if self.entries.iter().any(|entry| entry.acquire.owner == owner && entry.acquire.keys[0] == key) {
            return;
        }
        let replicas = self.shared.settings.promise.replicas();
        let (lease, watchdog) = match self.rng.random_range(0..10) {
            _ if replicas.is_some() => (Some(REPLICATED_LEASE), true),
            0..6 => (None, false),
            6..8 => (Some(self.rng.random_range(3 * GRACE..6 * GRACE)), true),
            _ => (Some(self.rng.random_range(40..400)), false),
        };
        let queue = match self.rng.random_range(0..10) {
            0..3 if replicas.is_none() => None,
            3..5 => Some(0),
            _ => Some(self.rng.random_range(20..500)),
        };
        let number = self.next_number();
        let acquire = Acquire {
            keys: vec![key],
            owner,
            lease,
            watchdog,
            queue,
            // One kind of hold for each owner, so that the checker knows its holds.
            shared: self.shared.settings.features.shared && index == 2,
            fence: self.rng.random_bool(0.6),
            ephemeral: self.rng.random_bool(0.6),
            replicas,
            session: Some(number.clone()),
            ..Acquire::default()
        };
        let command = Command::Acquire(acquire.clone());
        self.entries.push(Entry { acquire, number, state: State::Unanswered, token: None });
        let outcome = self.answer(command);
        let at = self.entries.len() - 1;
        match outcome {
            Outcome::Reply(reply) if reply == 0 => self.entries[at].state = State::Waiting,
            Outcome::Reply(reply) if !reply.is_null() => self.is_granted(at, token(&reply)),
            Outcome::Reply(_) => self.is_over(at),
            Outcome::Error(error) if ["NOTOWNER", "LATE"].iter().any(|word| error.starts_with(word)) => {
                self.is_over(at);
            }
            // An earlier attempt may have had an effect, or may still arrive, as the number of an error is unused. The client
            // cancels it next.
            Outcome::Error(_) | Outcome::Unknown | Outcome::Unsent => {}
        }
    }

    /// Releases a hold, or cancels a wait.
    fn end(&mut self, at: usize) {
        let entry = &mut self.entries[at];
        let (key, owner) = (entry.acquire.keys[0].clone(), entry.acquire.owner.clone());
        let session = Some(entry.number.clone());
        let command = match entry.state {
            State::Held | State::Releasing => {
                entry.state = State::Releasing;
                Command::Release(Release { keys: vec![key], owner, session, ..Release::default() })
            }
            State::Unanswered | State::Waiting => Command::Cancel { key, owner, id: String::new(), session },
        };
        match self.answer(command.clone()) {
            Outcome::Reply(_) => {}
            Outcome::Error(error) if error.starts_with("NOTOWNER") => {}
            _ => return,
        }
        self.is_over(at);
        self.past.push_front(command);
    }

    fn renew(&mut self, at: usize) {
        let entry = &self.entries[at];
        let renew = Renew {
            keys: entry.acquire.keys.clone(),
            owner: entry.acquire.owner.clone(),
            session: Some(entry.number.clone()),
            ..self.lease_of(&entry.acquire)
        };
        let state = entry.state;
        let outcome = self.answer(Command::Renew(renew));
        if state == State::Held && matches!(outcome, Outcome::Error(error) if error.starts_with("NOTOWNER")) {
            self.is_over(at);
        }
    }

    fn check(&mut self, at: usize) {
        let entry = &self.entries[at];
        let (key, owner) = (entry.acquire.keys[0].clone(), entry.acquire.owner.clone());
        let (token, is_held) = (entry.token, entry.state == State::Held);
        let claim = match token {
            Some(token) if self.rng.random() => Claim::Token(token),
            _ => Claim::Owner(owner.clone()),
        };
        let command = if is_held && self.shared.settings.features.guard && self.rng.random() {
            Command::Guard { key, claim, entry: format!("{owner} {}:{}", self.client, self.call) }
        } else {
            Command::Check { key, claim }
        };
        let breakage = self.breakage();
        self.line.call(command, breakage);
    }

    /// Repeats an old call on another connection, which must not change anything.
    fn repeat(&mut self) {
        let presence = locked(self.presence);
        let (seq, done, beat) = (presence.seen, presence.done, presence.beat);
        drop(presence);
        let old = match &self.id {
            Some(id) if self.rng.random_bool(0.2) => {
                let (session_id, beat) = (id.clone(), (beat - self.rng.random_range(2..5)).max(1));
                Some(Command::Events(Events { session_id, beat, seq, done, within: 0, count: 1_000 }))
            }
            _ => self.past.iter().collect::<Vec<_>>().choose(&mut self.rng).copied().cloned(),
        };
        if let Some(old) = old {
            self.spare.call(old, None);
        }
    }
}
