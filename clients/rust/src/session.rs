// SPDX-License-Identifier: MIT

//! A client's presence on one server: its numbers, holds and waits, and the loop that reads events.
//!
//! Rules R1 to R23 are those of `docs/sessions.md`. All state is changed by three inputs: a reply, an event and the clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::{cmd, Cmd, FromRedisValue, Value};
use tokio::sync::Notify;

use crate::clock::{after, left, now, Moment};
use crate::core::{Core, Event};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{locked, Io, CALL_TIMEOUT, RETRY_PAUSE};
use crate::request::{milliseconds, Request};

/// Time that `LOCK.EVENTS` waits in the server, and at most a third of the grace.
const EVENTS_BLOCK: Duration = Duration::from_secs(1);
/// Maximum number of events in a reply. A full reply confirms nothing (R2).
const EVENTS_COUNT: usize = 1000;
/// Extra time for the reply to a call that waits in the server.
pub(crate) const REPLY_GRACE: Duration = Duration::from_secs(1);
/// The longest pause before a call is repeated.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Limit for the last call of a session, `LOCK.SESSION CLOSE`.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The identity of an acquire on the server.
pub(crate) struct At<I: Io> {
    pub(crate) session: Arc<Session<I>>,
    id: Arc<str>,
    pub(crate) n: u64,
}

impl<I: Io> Clone for At<I> {
    fn clone(&self) -> At<I> {
        At { session: Arc::clone(&self.session), id: Arc::clone(&self.id), n: self.n }
    }
}

impl<I: Io> At<I> {
    /// Adds the number to a call.
    fn name(&self, mut call: Cmd) -> Cmd {
        call.arg("SESSION").arg(&*self.id).arg(self.n);
        call
    }

    fn is(&self, other: &Option<At<I>>) -> bool {
        other.as_ref().is_some_and(|other| self.n == other.n && self.id == other.id)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Asked,
    Held,
    Over(String),
}

/// A call that is repeated until it has a reply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Ask,
    Renew(Option<Duration>),
    Release,
}

/// One numbered acquire, from its first call to the end of its hold.
pub(crate) struct Acquire<I: Io> {
    pub(crate) request: Arc<Request>,
    pub(crate) owner: Vec<u8>,
    pub(crate) is_try: bool,
    /// The session and the number of the hold that this acquire takes over.
    source: Option<(String, u64)>,
    began: Moment,
    until: Moment,
    changed: Notify,
    now: Mutex<Now<I>>,
}

/// The state of an acquire. Code that needs the table of its session as well locks the table first.
pub(crate) struct Now<I: Io> {
    pub(crate) phase: Phase,
    /// None before the first call, and while no session has the hold, as its slot moves.
    pub(crate) at: Option<At<I>>,
    /// The reason to stop the wait.
    error: Option<Error>,
    pub(crate) holds: u64,
    pub(crate) tokens: Vec<u64>,
    /// When the acquire was first sent under its present number.
    sent: Moment,
    pub(crate) granted: Moment,
    /// The earliest end of the lease.
    pub(crate) lease_ends: Moment,
    /// Whether the server may revoke the grant until it is acknowledged (R1).
    is_revocable: bool,
    /// Whether a release may have succeeded without a reply.
    maybe_released: bool,
    pub(crate) handed_over: bool,
}

impl<I: Io> Acquire<I> {
    pub(crate) fn new(
        request: Arc<Request>,
        owner: Vec<u8>,
        until: Moment,
        is_try: bool,
        source: Option<(String, u64)>,
    ) -> Arc<Acquire<I>> {
        let now = Now {
            phase: Phase::Asked,
            at: None,
            error: None,
            holds: 0,
            tokens: Vec::new(),
            sent: Moment::MAX,
            granted: now(),
            lease_ends: Moment::MAX,
            is_revocable: false,
            maybe_released: false,
            handed_over: false,
        };
        let (began, changed) = (now.granted, Notify::new());
        Arc::new(Acquire { request, owner, is_try, source, began, until, changed, now: Mutex::new(now) })
    }

    pub(crate) fn now(&self) -> MutexGuard<'_, Now<I>> {
        locked(&self.now)
    }

    fn call(&self, verb: Verb, at: &At<I>) -> Cmd {
        match verb {
            Verb::Ask => self.ask_call(at),
            Verb::Renew(lease) => self.renew_call(at, lease),
            Verb::Release => at.name(self.request.call("RELEASE", &self.owner)),
        }
    }

    fn ask_call(&self, at: &At<I>) -> Cmd {
        if let Some((name, m)) = &self.source {
            let mut call = self.renew_call(at, self.request.lease);
            call.arg("FROM").arg(name).arg(m);
            return call;
        }
        let mut call = at.name(self.request.acquire(&self.owner));
        if !self.is_try {
            let wait = if self.until == Moment::MAX { 0 } else { milliseconds(left(self.until)) };
            call.arg("QUEUE").arg(wait);
        }
        call
    }

    fn renew_call(&self, at: &At<I>, lease: Option<Duration>) -> Cmd {
        let age = now().saturating_sub(self.now().granted);
        let mut call = self.request.call("RENEW", &self.owner);
        let max_hold = self.request.max_hold.map(|max| max.saturating_sub(age));
        self.request.bind(&mut call, lease, max_hold);
        at.name(call)
    }

    fn cancel_call(&self, at: &At<I>) -> Cmd {
        at.name(self.request.cancel(&self.owner))
    }

    /// Waits until the state may have changed, for at most this time.
    pub(crate) async fn changed(&self, limit: Duration, is_done: impl Fn(&Now<I>) -> bool + Send) {
        let mut changed = std::pin::pin!(self.changed.notified());
        changed.as_mut().enable();
        if !is_done(&self.now()) {
            I::timeout(limit, changed).await;
        }
    }

    /// Ends the wait from another task or thread.
    pub(crate) fn interrupt(&self, error: Error) {
        self.now().error = Some(error);
        self.changed.notify_waiters();
        if let Some(at) = &self.now().at {
            at.session.changed.notify_waiters();
        }
    }

    /// Whether the hold ended before its release.
    pub(crate) fn is_lost(&self) -> bool {
        {
            let state = self.now();
            match &state.phase {
                Phase::Asked => return false,
                Phase::Over(reason) => return !state.handed_over && !is_good_end(reason),
                Phase::Held => {}
            }
        }
        self.ends() <= now()
    }

    /// When the hold ends, if no server answers.
    pub(crate) fn ends(&self) -> Moment {
        let (at, lease_ends) = {
            let state = self.now();
            (state.at.clone(), state.lease_ends)
        };
        match at {
            Some(at) if self.request.lease.is_none() => at.session.lifetime_ends(),
            _ => lease_ends,
        }
    }

    pub(crate) fn end_reason(&self) -> Option<String> {
        if let Phase::Over(reason) = &self.now().phase {
            return Some(reason.clone());
        }
        self.is_lost().then(|| "expired".to_owned())
    }

    pub(crate) fn lost(&self) -> Error {
        let reason = self.end_reason().unwrap_or_default();
        let text = format!("the hold ended before its release ({reason}); acquire the lock again");
        self.request.error(ErrorKind::Lost, &text)
    }
}

/// Whether an end of a hold with this reason is no loss.
fn is_good_end(reason: &str) -> bool {
    matches!(reason, "released" | "cancelled" | "taken" | "closed")
}

type Acquires<I> = BTreeMap<u64, Arc<Acquire<I>>>;

/// The acquires of a session by number. An acquire is in at most one of the first three.
struct Table<I: Io> {
    /// Sent, or waiting in the queue.
    asked: Acquires<I>,
    held: Acquires<I>,
    /// Over, but not yet on the server: the reader cancels them.
    undo: Acquires<I>,
    /// The numbers in `held` and `undo` that the server does not know yet (R3).
    undeclared: BTreeSet<u64>,
    /// Acquires whose slot has moved to this node, without numbers.
    arriving: Vec<Arc<Acquire<I>>>,
    id: Option<Arc<str>>,
    /// Whether everything is declared, and a `LOCK.EVENTS` has confirmed it.
    is_up: bool,
    is_started: bool,
    is_closed: bool,
    /// Why the last turn of the reader failed.
    failure: Option<Error>,
    in_jeopardy: bool,
    /// The reason why no server is available.
    error: Option<Error>,
    last_n: u64,
    beat: u64,
    seen: u64,
    /// When the last confirming `LOCK.EVENTS` was sent.
    confirmed: Option<Moment>,
    /// For the listener.
    events: Vec<Event>,
}

/// The session on one node.
pub(crate) struct Session<I: Io> {
    pub(crate) io: I,
    pub(crate) node: String,
    core: Arc<Core<I>>,
    table: Mutex<Table<I>>,
    changed: Notify,
}

/// Ends an acquire if its future is dropped, or if it fails.
pub(crate) struct Undo<I: Io> {
    acquire: Arc<Acquire<I>>,
    reason: &'static str,
    armed: bool,
}

impl<I: Io> Undo<I> {
    pub(crate) fn new(acquire: &Arc<Acquire<I>>, reason: &'static str) -> Undo<I> {
        Undo { acquire: Arc::clone(acquire), reason, armed: true }
    }

    pub(crate) fn disarm(mut self) {
        self.armed = false;
    }
}

impl<I: Io> Drop for Undo<I> {
    fn drop(&mut self) {
        if self.armed {
            abandon(&self.acquire, self.reason);
        }
    }
}

/// Ends an acquire in any state. Sends the cancellation at once if the server is available. Otherwise the reader sends it.
pub(crate) fn abandon<I: Io>(acquire: &Arc<Acquire<I>>, reason: &str) {
    loop {
        let at = acquire.now().at.clone();
        let Some(at) = at else {
            // No session has it. If its slot moves, the session that gets it cancels it.
            let mut state = acquire.now();
            if state.at.is_none() {
                state.phase = Phase::Over(reason.to_owned());
                return acquire.changed.notify_waiters();
            }
            continue;
        };
        let session = &at.session;
        let is_undone = session.update(|table| {
            if !at.is(&acquire.now().at) {
                return None;
            }
            table.lose(acquire, at.n, reason);
            let is_known = table.undo.contains_key(&at.n) && !table.undeclared.contains(&at.n);
            Some(is_known && table.is_up && table.failure.is_none())
        });
        match is_undone {
            None => continue,
            Some(false) => return,
            Some(true) => {}
        }
        let (call, session) = (acquire.cancel_call(&at), Arc::clone(session));
        let node = Arc::clone(&session);
        return node.io.spawn(async move {
            match session.io.call(call, REPLY_GRACE).await {
                // The reader asks which node serves the slot now.
                Err(error) if error.is("MOVED") => {}
                reply => drop(session.update(|table| table.cancelled(&[at.n], &at.id, &[reply]))),
            }
            session.changed.notify_waiters();
        });
    }
}

impl<I: Io> Table<I> {
    fn done(&self) -> u64 {
        let least = [self.asked.keys().next(), self.undo.keys().next(), self.undeclared.first()];
        least.into_iter().flatten().min().copied().unwrap_or(self.last_n + 1)
    }

    fn next_n(&mut self) -> u64 {
        self.last_n += 1;
        self.last_n
    }

    /// Whether the present session has this number, and has declared it.
    fn knows(&self, at: &At<I>) -> bool {
        self.id.as_ref() == Some(&at.id) && !self.undeclared.contains(&at.n)
    }

    fn next_beat(&mut self) -> u64 {
        // R16: never taken from a reply.
        self.beat += 1;
        self.beat
    }

    fn notify(&mut self, acquire: &Acquire<I>, name: &'static str, outcome: &'static str) {
        let time = now().saturating_sub(acquire.now().granted);
        self.events.push(Event { label: acquire.request.label.clone(), name, outcome, time });
    }

    /// The acquire neither waits nor holds any longer.
    fn over(&mut self, acquire: &Acquire<I>, n: u64, reason: &str) {
        self.asked.remove(&n);
        self.held.remove(&n);
        self.undeclared.remove(&n);
        let (was_held, handed_over) = {
            let mut state = acquire.now();
            if matches!(state.phase, Phase::Over(_)) {
                return;
            }
            let was_held = state.phase == Phase::Held;
            state.phase = Phase::Over(reason.to_owned());
            (was_held, state.handed_over)
        };
        if was_held && !handed_over {
            let outcome = if is_good_end(reason) { "released" } else { "lost" };
            self.notify(acquire, "held", outcome);
        }
        acquire.changed.notify_waiters();
    }

    /// The acquire is over, but the server may still have it.
    fn lose(&mut self, acquire: &Arc<Acquire<I>>, n: u64, reason: &str) {
        if self.asked.contains_key(&n) || self.held.contains_key(&n) {
            let is_undeclared = self.undeclared.contains(&n);
            self.over(acquire, n, reason);
            self.undo.insert(n, Arc::clone(acquire));
            if is_undeclared {
                self.undeclared.insert(n);
            }
        }
    }

    /// Handles a grant by a reply, or by an event with a token. The lease began at `not_before` at the earliest.
    fn grant(
        &mut self,
        acquire: &Arc<Acquire<I>>,
        n: u64,
        replies: Value,
        token: Option<Value>,
        not_before: Moment,
        is_revocable: bool,
    ) {
        let (mut holds, mut tokens) =
            (numbers(&replies), token.map_or_else(Vec::new, |token| numbers(&token)));
        if holds.is_empty() {
            let replies = if acquire.request.several() { replies } else { Value::Array(vec![replies]) };
            let replies = Vec::<std::collections::HashMap<String, Value>>::from_redis_value(replies)
                .unwrap_or_default();
            for reply in replies {
                holds.extend(reply.get("holds").into_iter().flat_map(numbers));
                tokens.extend(reply.get("token").into_iter().flat_map(numbers));
            }
        }
        self.asked.remove(&n);
        self.held.insert(n, Arc::clone(acquire));
        let mut state = acquire.now();
        state.phase = Phase::Held;
        state.holds = holds.into_iter().max().unwrap_or(1);
        (state.tokens, state.granted) = (tokens, now());
        let starts = state.sent.max(not_before);
        state.lease_ends = acquire.request.lease.map_or(Moment::MAX, |lease| starts.saturating_add(lease));
        state.is_revocable = is_revocable;
        drop(state);
        acquire.changed.notify_waiters();
    }

    /// Handles the replies to cancellations. Errors that may pass are no answers. Returns the acquires whose slot has moved.
    fn cancelled(&mut self, sent: &[u64], id: &Arc<str>, replies: &[Result<Value>]) -> Vec<Arc<Acquire<I>>> {
        let mut moved = Vec::new();
        for (n, reply) in sent.iter().zip(replies) {
            let is_moved = reply.as_ref().is_err_and(|error| error.is("MOVED"));
            let is_answer = reply.as_ref().map_or_else(|error| !error.is_transient(), |_| true);
            if self.id.as_ref() == Some(id) && (is_answer || is_moved) {
                let undone = self.undo.remove(n);
                moved.extend(undone.filter(|_| is_moved));
            }
        }
        moved
    }

    /// Gives an acquire of another session, or of another node, a number that must be declared.
    fn adopt(&mut self, session: &Arc<Session<I>>, id: &Arc<str>, acquire: Arc<Acquire<I>>) {
        let n = self.next_n();
        let mut state = acquire.now();
        state.at = Some(At { session: Arc::clone(session), id: Arc::clone(id), n });
        let acquires = if state.phase == Phase::Held { &mut self.held } else { &mut self.undo };
        drop(state);
        acquires.insert(n, acquire);
        self.undeclared.insert(n);
    }

    fn renewed(&self) -> Vec<(u64, Arc<Acquire<I>>)> {
        let renewed = self.held.iter().filter(|(_, hold)| hold.request.lease.is_none());
        renewed.map(|(n, hold)| (*n, Arc::clone(hold))).collect()
    }

    fn lose_renewed(&mut self, reason: &str) {
        for (n, hold) in self.renewed() {
            self.lose(&hold, n, reason);
        }
    }

    fn check_clock(&mut self, core: &Core<I>) {
        let Some(confirmed) = self.confirmed else { return };
        if left(confirmed + core.grace).is_zero() {
            self.set_jeopardy(true);
        }
        if left(confirmed + core.ttl).is_zero() {
            self.lose_renewed("silent");
        }
    }

    fn set_jeopardy(&mut self, value: bool) {
        if value != self.in_jeopardy {
            self.in_jeopardy = value;
            for (_, hold) in self.renewed() {
                self.notify(&hold, if value { "jeopardy" } else { "safe" }, "");
            }
        }
    }
}

/// The numbers of a reply: one, or one for each lock. Empty if it has another type.
fn numbers(value: &Value) -> Vec<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).into_iter().collect(),
        Value::Array(values) if values.iter().all(|value| matches!(value, Value::Int(_))) => {
            values.iter().flat_map(numbers).collect()
        }
        _ => Vec::new(),
    }
}

/// The reply to a call that may have been sent several times.
struct Reply {
    value: Value,
    first_sent: Moment,
    /// Whether an earlier attempt had no reply.
    is_repeated: bool,
}

impl<I: Io> Session<I> {
    pub(crate) fn new(core: Arc<Core<I>>, node: String) -> Arc<Session<I>> {
        let table = Table {
            asked: BTreeMap::new(),
            held: BTreeMap::new(),
            undo: BTreeMap::new(),
            undeclared: BTreeSet::new(),
            arriving: Vec::new(),
            id: None,
            is_up: false,
            is_started: false,
            is_closed: false,
            failure: None,
            in_jeopardy: false,
            error: None,
            last_n: 0,
            beat: 0,
            seen: 0,
            confirmed: None,
            events: Vec::new(),
        };
        let io = I::new(Arc::clone(&core.server), node.clone());
        Arc::new(Session { io, node, core, table: Mutex::new(table), changed: Notify::new() })
    }

    /// Changes the table. Calls the listener afterwards, so it may use locks.
    fn update<T>(&self, change: impl FnOnce(&mut Table<I>) -> T) -> T {
        let mut table = locked(&self.table);
        let result = change(&mut table);
        let events = std::mem::take(&mut table.events);
        drop(table);
        events.iter().for_each(|event| self.core.notify(event));
        result
    }

    // The life of an acquire.

    /// Waits for the grant or the end of the acquire. If it fails, the caller abandons it: the server may still grant it.
    pub(crate) async fn ask(self: &Arc<Self>, acquire: &Arc<Acquire<I>>) -> Result<()> {
        let patient = acquire.began.saturating_add(self.core.patience);
        let is_short = acquire.is_try || acquire.source.is_some();
        let give_up = if is_short { patient } else { acquire.until.saturating_add(REPLY_GRACE) };
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.enrol(acquire, is_short || give_up == Moment::MAX)? {
                break;
            }
            if left(give_up).is_zero() {
                let failure = locked(&self.table).failure.clone();
                return Err(failure.unwrap_or_else(Error::no_reply));
            }
            I::timeout(left(give_up), changed).await;
            // Another node may have taken over.
            if self
                .core
                .server
                .node_of::<I>(&acquire.request.keys[0])
                .await
                .is_ok_and(|node| node != self.node)
            {
                acquire.now().phase = Phase::Over("moved".to_owned());
                return Ok(());
            }
        }
        let reply = match Session::repeat(&self.core, acquire, Verb::Ask, give_up).await {
            Err(error) if error.kind() == ErrorKind::Lost && acquire.source.is_none() => {
                // R12: the hold of a repeated acquire has ended.
                self.end_asked(acquire, "restarted");
                return Ok(());
            }
            reply => reply?,
        };
        if let Some(Reply { value, is_repeated, .. }) = reply {
            self.update(|table| {
                let (phase, at) = {
                    let state = acquire.now();
                    (state.phase.clone(), state.at.clone())
                };
                let (Phase::Asked, Some(at)) = (phase, at) else { return };
                match value {
                    Value::Nil => table.over(acquire, at.n, "timeout"),
                    Value::Int(0) => {}
                    value => table.grant(acquire, at.n, value, None, Moment::ZERO, is_repeated),
                }
            });
        }
        loop {
            {
                let state = acquire.now();
                match (&state.phase, &state.error) {
                    (Phase::Asked, None) => {}
                    (Phase::Asked, Some(error)) => return Err(error.clone()),
                    _ => return Ok(()),
                }
            }
            if left(give_up).is_zero() {
                let is_failing = locked(&self.table).failure.is_some();
                let kind = if is_failing { ErrorKind::Unavailable } else { ErrorKind::TimedOut };
                return Err(acquire.request.error(kind, "the server has not answered in time"));
            }
            acquire
                .changed(left(give_up), |state| state.phase != Phase::Asked || state.error.is_some())
                .await;
        }
    }

    /// Gives an acquire its number, and starts the reader. Returns false if the session cannot take it yet.
    fn enrol(self: &Arc<Self>, acquire: &Arc<Acquire<I>>, fails_early: bool) -> Result<bool> {
        let mut table = locked(&self.table);
        if let Some(error) = acquire.now().error.clone() {
            return Err(error);
        }
        if table.is_closed {
            return Err(Error::new(ErrorKind::Cancelled, "the locks are closed; make new ones"));
        }
        if let Some(error) = table.error.as_ref().filter(|error| fails_early || !error.is_transient()) {
            return Err(error.clone());
        }
        self.start(&mut table)?;
        let shares_key =
            |other: &Acquire<I>| other.request.keys.iter().any(|key| acquire.request.keys.contains(key));
        // While an earlier acquire of this owner may still be on the server, hold counts would be wrong.
        if table.undo.values().any(|other| other.owner == acquire.owner && shares_key(other)) {
            return Ok(false);
        }
        let Some(id) = table.id.clone().filter(|_| table.is_up) else { return Ok(false) };
        let n = table.next_n();
        let mut state = acquire.now();
        (state.at, state.sent) = (Some(At { session: Arc::clone(self), id, n }), now());
        drop(state);
        table.asked.insert(n, Arc::clone(acquire));
        Ok(true)
    }

    fn start(self: &Arc<Self>, table: &mut Table<I>) -> Result<()> {
        if !table.is_started {
            self.io.start(Arc::clone(self).read())?;
            (table.is_started, table.error) = (true, None);
        }
        Ok(())
    }

    fn end_asked(&self, acquire: &Arc<Acquire<I>>, reason: &str) {
        let n = acquire.now().at.as_ref().map_or(0, |at| at.n);
        self.update(|table| table.asked.contains_key(&n).then(|| table.over(acquire, n, reason)));
    }

    /// Sends a call until it has a reply, while the acquire is in the phase of the verb. A reply counts only if the call carried
    /// the present number (R14).
    async fn repeat(
        core: &Core<I>,
        acquire: &Arc<Acquire<I>>,
        verb: Verb,
        give_up: Moment,
    ) -> Result<Option<Reply>> {
        let is_ask = verb == Verb::Ask;
        let (mut first_sent, mut is_repeated, mut failing_until) = (None, false, None);
        loop {
            let at = {
                let state = acquire.now();
                if state.phase != if is_ask { Phase::Asked } else { Phase::Held } {
                    return Ok(None);
                }
                if let Some(error) = state.error.as_ref().filter(|_| is_ask) {
                    return Err(error.clone());
                }
                state.at.clone()
            };
            let mut error = acquire
                .request
                .error(ErrorKind::Unavailable, "no server has confirmed the hold yet; try again");
            let sent = now();
            if at.as_ref().is_some_and(|at| at.session.is_closed()) {
                return Err(Error::new(ErrorKind::Cancelled, "the locks are closed"));
            }
            if let Some(at) = at.filter(|at| locked(&at.session.table).knows(at)) {
                let limit = CALL_TIMEOUT.min(REPLY_GRACE.max(left(give_up)));
                let reply = at.session.io.call(acquire.call(verb, &at), limit).await;
                let counts = at.is(&acquire.now().at);
                match reply {
                    Ok(value) if counts => {
                        let first_sent = first_sent.unwrap_or(sent);
                        return Ok(Some(Reply { value, first_sent, is_repeated }));
                    }
                    Err(failed) if counts && !failed.is_transient() => {
                        if is_ask && !is_repeated {
                            // No copy of this call can be late, so nothing must be undone.
                            at.session.end_asked(acquire, "failed");
                        }
                        return Err(failed);
                    }
                    Ok(_) => {}
                    Err(failed) => error = failed,
                }
                first_sent.get_or_insert(sent);
                is_repeated |= error.is_unanswered();
                acquire.now().maybe_released |= verb == Verb::Release && error.is_unanswered();
                if is_ask && error.is("MOVED") {
                    return Err(error);
                }
            }
            let failing_until = failing_until.get_or_insert(sent.saturating_add(core.patience));
            if left(if give_up == Moment::MAX { *failing_until } else { give_up }).is_zero() {
                return Err(error);
            }
            I::sleep(RETRY_PAUSE).await;
        }
    }

    fn is_closed(&self) -> bool {
        locked(&self.table).is_closed
    }


    /// Releases exactly this hold. If that fails, the reader continues.
    pub(crate) async fn release(core: &Core<I>, hold: &Arc<Acquire<I>>) -> Result<()> {
        let (is_held, handed_over) = {
            let state = hold.now();
            (state.phase == Phase::Held, state.handed_over)
        };
        if handed_over {
            return Ok(());
        }
        if hold.is_lost() {
            // A lease that has expired by the local clock may still exist on the server.
            abandon(hold, "expired");
        } else if is_held {
            let undo = Undo::new(hold, "released");
            let reason = match Session::repeat(core, hold, Verb::Release, after(core.patience)).await {
                Ok(_) => "released",
                // An earlier attempt without a reply may have succeeded.
                Err(error) if error.ends_hold() && hold.now().maybe_released => "released",
                Err(error) if error.is("WRONGTYPE") => "wrongtype",
                Err(error) if error.ends_hold() => "deleted",
                Err(error) => return Err(error),
            };
            undo.disarm();
            Session::finish(hold, reason);
        }
        // An event may have ended the hold at any step.
        if hold.is_lost() {
            return Err(hold.lost());
        }
        Ok(())
    }

    /// Ends a hold that the server no longer has.
    fn finish(hold: &Arc<Acquire<I>>, reason: &str) {
        let at = hold.now().at.clone();
        if let Some(at) = at {
            at.session.update(|table| {
                if table.held.get(&at.n).is_some_and(|held| Arc::ptr_eq(held, hold)) {
                    table.over(hold, at.n, reason);
                }
            });
        }
    }

    /// Sets the lease, or checks a hold that the server renews.
    pub(crate) async fn renew(core: &Core<I>, hold: &Arc<Acquire<I>>, lease: Option<Duration>) -> Result<()> {
        match Session::repeat(core, hold, Verb::Renew(lease), after(core.patience)).await {
            Ok(Some(reply)) => {
                if let Some(lease) = lease {
                    let mut state = hold.now();
                    (state.lease_ends, state.is_revocable) = (reply.first_sent.saturating_add(lease), false);
                }
            }
            Ok(None) => {}
            Err(error) if error.ends_hold() => {
                Session::finish(hold, if error.is("WRONGTYPE") { "wrongtype" } else { "deleted" });
            }
            Err(error) => return Err(error),
        }
        if hold.now().phase == Phase::Held {
            Ok(())
        } else {
            Err(hold.lost())
        }
    }

    /// The number of a hold, once the present session has declared it.
    pub(crate) async fn number(core: &Core<I>, hold: &Arc<Acquire<I>>) -> Result<u64> {
        let give_up = after(core.patience);
        loop {
            let at = hold.now().at.clone();
            match at.filter(|at| locked(&at.session.table).knows(at)) {
                Some(at) => return Ok(at.n),
                None if left(give_up).is_zero() => return Err(Error::no_reply()),
                None => I::sleep(RETRY_PAUSE).await,
            }
        }
    }

    /// The time for which no other owner can have the lock, even if the network fails.
    pub(crate) fn valid_for(hold: &Acquire<I>) -> Duration {
        let state = hold.now();
        let Some(at) = state.at.clone().filter(|_| state.phase == Phase::Held) else { return Duration::ZERO };
        let (lease_ends, granted, is_revocable) = (state.lease_ends, state.granted, state.is_revocable);
        drop(state);
        let table = locked(&at.session.table);
        if !table.knows(&at) {
            return Duration::ZERO;
        }
        let confirmed = table.confirmed.filter(|_| table.is_up);
        // R1: the server revokes a grant only if the session is silent for the grace.
        let is_limited = is_revocable && table.confirmed.is_none_or(|sent| sent <= granted);
        if hold.request.lease.is_some() && !is_limited {
            return left(lease_ends);
        }
        left(lease_ends.min(confirmed.map_or(Moment::ZERO, |sent| sent + at.session.core.grace)))
    }

    /// When all renewed holds are lost, if no server answers.
    pub(crate) fn lifetime_ends(&self) -> Moment {
        locked(&self.table).confirmed.map_or(Moment::MAX, |sent| sent + self.core.ttl)
    }

    // The reader.

    /// Heartbeat, events and losses: the only loop.
    async fn read(self: Arc<Self>) {
        let _ended = Ended(&self);
        let (mut failing_until, mut pause) = (None, RETRY_PAUSE);
        while !locked(&self.table).is_closed {
            let Err(error) = self.turn().await else {
                (failing_until, pause) = (None, RETRY_PAUSE);
                continue;
            };
            if let Some(on_error) = &self.core.on_error {
                on_error(&error);
            }
            let late = error.is("LATE");
            if late || error.is("NOSESSION") {
                self.update(|table| {
                    (table.id, table.is_up) = (None, false);
                    // R16: another process uses the id.
                    late.then(|| table.lose_renewed("late"))
                });
            } else {
                let failing_until = failing_until.get_or_insert(after(self.core.patience));
                if !error.is_transient() || left(*failing_until).is_zero() {
                    self.fail(&error);
                }
                // Another node of the cluster may have replaced this one.
                if self.core.server.is_cluster() && self.move_away().await && left(*failing_until).is_zero() {
                    return;
                }
            }
            if error.is("NOSESSION") || error.is("READONLY") {
                self.io.disconnect().await;
            }
            self.update(|table| table.check_clock(&self.core));
            I::sleep(pause).await;
            pause = MAX_RETRY_PAUSE.min(2 * pause);
        }
    }

    async fn turn(self: &Arc<Self>) -> Result<()> {
        let turn = async {
            let id = locked(&self.table).id.clone();
            let id = match id {
                Some(id) => id,
                None => self.open().await?,
            };
            self.declare(&id).await?;
            self.cancel(&id).await?;
            self.poll(&id).await
        };
        let result = turn.await;
        self.update(|table| {
            table.failure = result.as_ref().err().cloned();
            if result.is_ok() && !table.is_closed && table.id.is_some() {
                (table.is_up, table.error) = (true, None);
            }
        });
        self.changed.notify_waiters();
        result
    }

    async fn open(self: &Arc<Self>) -> Result<Arc<str>> {
        let mut call = cmd("LOCK.SESSION");
        call.arg("OPEN").arg("NEW").arg(self.update(Table::next_beat));
        call.arg("TTL")
            .arg(milliseconds(self.core.ttl))
            .arg("GRACE")
            .arg(whole_milliseconds(self.core.grace));
        call.arg("NAME").arg(&self.core.name);
        let reply = self.io.read(call, REPLY_GRACE).await?;
        let (id, _) = <(String, u64)>::from_redis_value(reply).map_err(redis::RedisError::from)?;
        let id: Arc<str> = id.into();
        self.update(|table| {
            if table.is_closed {
                return;
            }
            (table.id, table.seen) = (Some(Arc::clone(&id)), 0);
            table.undeclared.clear();
            let (held, undo) = (std::mem::take(&mut table.held), std::mem::take(&mut table.undo));
            // Holds first: otherwise the declaration of an acquire that is over could bind the hold of another one.
            for (n, hold) in held {
                if hold.now().handed_over {
                    table.over(&hold, n, "taken");
                } else {
                    table.adopt(self, &id, hold);
                }
            }
            for (n, acquire) in std::mem::take(&mut table.asked) {
                table.over(&acquire, n, "restarted");
                table.adopt(self, &id, acquire);
            }
            undo.into_values().for_each(|acquire| table.adopt(self, &id, acquire));
        });
        Ok(id)
    }

    /// Declares the acquires that this session does not know yet (R3, R6, R13).
    async fn declare(self: &Arc<Self>, id: &Arc<str>) -> Result<()> {
        let undeclared: Vec<(u64, Arc<Acquire<I>>)> = self.update(|table| {
            let mut arriving = std::mem::take(&mut table.arriving);
            arriving.sort_by_key(|acquire| acquire.now().phase != Phase::Held);
            arriving.into_iter().for_each(|acquire| table.adopt(self, id, acquire));
            let numbers = table.undeclared.iter();
            let acquires =
                numbers.filter_map(|n| Some((*n, table.held.get(n).or_else(|| table.undo.get(n))?.clone())));
            acquires.collect()
        });
        if undeclared.is_empty() {
            return Ok(());
        }
        let call = |(n, acquire): &(u64, Arc<Acquire<I>>)| {
            let ends = acquire.now().lease_ends;
            let lease = acquire.request.lease.map(|_| left(ends));
            acquire.renew_call(&At { session: Arc::clone(self), id: Arc::clone(id), n: *n }, lease)
        };
        let calls = undeclared.iter().map(call).collect();
        let limit = REPLY_GRACE + Duration::from_millis(undeclared.len() as u64);
        let replies = self.io.batch(calls, limit).await?;
        let mut failed = None;
        let moved = self.update(|table| {
            let mut moved = Vec::new();
            let mut counts = Vec::new();
            for ((n, acquire), reply) in undeclared.into_iter().zip(replies) {
                match reply {
                    Ok(value) => {
                        table.undeclared.remove(&n);
                        counts.push((n, acquire, numbers(&value).into_iter().min().unwrap_or(0)));
                    }
                    Err(error) if error.is("MOVED") => {
                        table.undeclared.remove(&n);
                        moved.extend(table.held.remove(&n).or_else(|| table.undo.remove(&n)));
                    }
                    // The slot moves. The other holds must not wait for that.
                    Err(error) if error.is("ASK") || error.is("TRYAGAIN") => {}
                    Err(error) if error.is_transient() => failed = Some(error),
                    Err(_) => {
                        table.undeclared.remove(&n);
                        if table.held.contains_key(&n) {
                            let maybe_released = acquire.now().maybe_released;
                            table.over(&acquire, n, if maybe_released { "released" } else { "restarted" });
                        }
                    }
                }
            }
            // R3, R22: if a count is too low, another hold of the owner has ended, and nobody knows which.
            for (n, acquire, count) in counts {
                let is_same = |other: &&Arc<Acquire<I>>| {
                    other.owner == acquire.owner && other.request.keys == acquire.request.keys
                };
                if table.held.contains_key(&n) && count < table.held.values().filter(is_same).count() as u64 {
                    let lost = table.held.iter().filter(|(_, other)| is_same(other));
                    for (n, other) in lost.map(|(n, other)| (*n, other.clone())).collect::<Vec<_>>() {
                        table.lose(&other, n, "restarted");
                    }
                }
            }
            moved
        });
        self.core.reroute(self, moved).await;
        failed.map_or(Ok(()), Err)
    }

    async fn cancel(self: &Arc<Self>, id: &Arc<str>) -> Result<()> {
        let undo: Vec<(u64, Cmd)> = self.update(|table| {
            let undo = table.undo.iter().filter(|(n, _)| !table.undeclared.contains(n));
            let at = |n| At { session: Arc::clone(self), id: Arc::clone(id), n };
            undo.map(|(n, acquire)| (*n, acquire.cancel_call(&at(*n)))).collect()
        });
        if undo.is_empty() {
            return Ok(());
        }
        let (sent, calls): (Vec<_>, Vec<_>) = undo.into_iter().unzip();
        let limit = REPLY_GRACE + Duration::from_millis(sent.len() as u64);
        let replies = self.io.batch(calls, limit).await?;
        let moved = self.update(|table| table.cancelled(&sent, id, &replies));
        self.core.reroute(self, moved).await;
        Ok(())
    }

    /// One `LOCK.EVENTS`: heartbeat, acknowledgement and events.
    async fn poll(self: &Arc<Self>, id: &Arc<str>) -> Result<()> {
        let third = if self.core.grace.is_zero() { self.core.ttl } else { self.core.grace } / 3;
        let (block, call) = self.update(|table| {
            // After a failure, the call confirms at once.
            let block =
                if table.is_up && table.failure.is_none() { EVENTS_BLOCK.min(third) } else { Duration::ZERO };
            let mut call = cmd("LOCK.EVENTS");
            call.arg(&**id).arg(table.next_beat()).arg(table.seen).arg(table.done());
            call.arg(whole_milliseconds(block)).arg(EVENTS_COUNT);
            (block, call)
        });
        let sent = now();
        let reply = self.io.read(call, block + REPLY_GRACE).await?;
        let events = Vec::<Vec<Value>>::from_redis_value(reply).map_err(redis::RedisError::from)?;
        let is_full = events.len() >= EVENTS_COUNT;
        let moved = self.update(|table| {
            let moved = events.into_iter().filter_map(|event| table.handle(event)).collect();
            if !is_full {
                // A hold that was lost stays lost.
                table.check_clock(&self.core);
                table.confirmed = Some(sent);
                table.set_jeopardy(false);
            }
            moved
        });
        self.core.reroute(self, moved).await;
        Ok(())
    }

    /// Ends the waits without a limit. If the error is permanent, ends all waits.
    fn fail(&self, error: &Error) {
        let asked: Vec<_> = self.update(|table| {
            table.error = Some(error.clone());
            table.asked.values().cloned().collect()
        });
        for acquire in asked {
            if acquire.until == Moment::MAX || !error.is_transient() {
                acquire.interrupt(error.clone());
            }
        }
        self.changed.notify_waiters();
    }

    /// Leaves all acquires whose slots another node serves now to that node. Returns whether nothing is left.
    async fn move_away(self: &Arc<Self>) -> bool {
        let acquires: Vec<_> = self.update(|table| {
            let all = [&table.asked, &table.held, &table.undo].into_iter().flatten();
            all.map(|(n, acquire)| (*n, Arc::clone(acquire))).collect()
        });
        if self.core.server.refresh::<I>().await.is_err() {
            return false;
        }
        let mut moved = Vec::new();
        for (n, acquire) in acquires {
            let node = self.core.server.node_of::<I>(&acquire.request.keys[0]).await;
            if node.is_ok_and(|node| node != self.node) {
                moved.extend(self.update(|table| table.leave(n)));
            }
        }
        self.core.reroute(self, moved).await;
        self.changed.notify_waiters();
        self.update(|table| {
            let is_empty =
                [&table.asked, &table.held, &table.undo].iter().all(|acquires| acquires.is_empty());
            if is_empty {
                (table.id, table.is_up) = (None, false);
            }
            is_empty && table.arriving.is_empty()
        })
    }

    /// Takes over an acquire from a node that no longer serves its slot.
    pub(crate) fn arrive(self: &Arc<Self>, acquire: Arc<Acquire<I>>) -> Result<()> {
        let mut table = locked(&self.table);
        self.start(&mut table)?;
        acquire.now().at = None;
        table.arriving.push(acquire);
        Ok(())
    }

    /// Keeps an acquire that could not leave.
    pub(crate) fn keep(&self, acquire: Arc<Acquire<I>>) {
        locked(&self.table).arriving.push(acquire);
    }

    /// Ends all waits and renewed holds. A hold with a lease of its own remains until its lease ends.
    pub(crate) async fn close(&self) {
        let (id, is_started) = self.update(|table| {
            (table.is_closed, table.is_up) = (true, false);
            for (n, acquire) in std::mem::take(&mut table.asked) {
                acquire.interrupt(Error::new(ErrorKind::Cancelled, "the locks are closed"));
                table.undo.insert(n, acquire);
            }
            for (n, hold) in table.renewed() {
                table.over(&hold, n, "closed");
            }
            (table.id.take(), table.is_started)
        });
        self.changed.notify_waiters();
        if let Some(id) = id {
            let mut call = cmd("LOCK.SESSION");
            call.arg("CLOSE").arg(&*id);
            drop(self.io.call(call, CLOSE_TIMEOUT).await);
        }
        if is_started {
            self.io.join().await;
            self.io.disconnect().await;
        }
    }
}

impl<I: Io> Table<I> {
    /// Handles an event. Returns an acquire whose slot has moved.
    fn handle(&mut self, event: Vec<Value>) -> Option<Arc<Acquire<I>>> {
        let mut fields = event.into_iter();
        let seq = fields.next().and_then(|seq| u64::from_redis_value(seq).ok())?;
        self.seen = seq;
        let kind = fields.next().and_then(|kind| String::from_redis_value(kind).ok())?;
        let n = fields.next().and_then(|n| u64::from_redis_value(n).ok())?;
        let field = fields.next();
        if kind == "granted" {
            let asked = self.asked.get(&n).cloned()?;
            // All earlier events were in the reply to the last confirming call.
            let confirmed = self.confirmed.unwrap_or_default();
            self.grant(&asked, n, field?, fields.next(), confirmed, true);
        } else if kind == "lost" {
            let reason = field.and_then(|reason| String::from_redis_value(reason).ok()).unwrap_or_default();
            if reason == "moved" {
                return self.leave(n);
            }
            let acquire = self.asked.get(&n).or_else(|| self.held.get(&n)).cloned()?;
            if acquire.request.several() {
                // Perhaps only one of the locks was lost.
                self.lose(&acquire, n, &reason);
            } else {
                self.over(&acquire, n, &reason);
            }
        }
        None
    }

    /// Takes an acquire out, for another node. A wait ends, and is asked for again.
    fn leave(&mut self, n: u64) -> Option<Arc<Acquire<I>>> {
        if let Some(asked) = self.asked.get(&n).cloned() {
            self.lose(&asked, n, "moved");
        }
        self.undeclared.remove(&n);
        let acquire = self.held.remove(&n).or_else(|| self.undo.remove(&n))?;
        acquire.now().at = None;
        Some(acquire)
    }
}

/// Marks the session when its reader ends, perhaps with its runtime. The next acquire starts it again.
struct Ended<'a, I: Io>(&'a Session<I>);

impl<I: Io> Drop for Ended<'_, I> {
    fn drop(&mut self) {
        let mut table = locked(&self.0.table);
        (table.is_started, table.is_up) = (false, false);
        drop(table);
        self.0.changed.notify_waiters();
    }
}

fn whole_milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
