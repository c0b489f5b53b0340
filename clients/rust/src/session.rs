// SPDX-License-Identifier: MIT

//! A client's presence on one server: its numbers, holds and waits. The [reader](crate::reader) keeps it alive.
//!
//! Rules R1 to R23 are those of `docs/sessions.md`. All state is changed by three inputs: a reply, an event and the clock.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use redis::{cmd, Cmd, FromRedisValue, Value};
use tokio::sync::Notify;

use crate::acquire::{is_good_end, Acquire, At, Now, Phase, Undo};
use crate::clock::{after, left, now, Moment};
use crate::core::{Core, Event};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{locked, Io, CALL_TIMEOUT, REPLY_GRACE, RETRY_PAUSE};

/// Limit for the last call of a session, `LOCK.SESSION CLOSE`.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

type Acquires<I> = BTreeMap<u64, Arc<Acquire<I>>>;

/// The acquires of a session. Each is in at most one of the first four.
pub(crate) struct Table<I: Io> {
    /// Sent, or waiting in the queue.
    pub(crate) asked: Acquires<I>,
    pub(crate) held: Acquires<I>,
    /// Over, but not yet on the server: the reader cancels them.
    pub(crate) undo: Acquires<I>,
    /// Acquires of the previous session, or of another node, that the reader declares (R3).
    pub(crate) undeclared: Vec<Arc<Acquire<I>>>,
    pub(crate) id: Option<Arc<str>>,
    /// Whether everything is declared, and a `LOCK.EVENTS` has confirmed it.
    pub(crate) is_up: bool,
    pub(crate) is_started: bool,
    pub(crate) is_closed: bool,
    /// Why the last turn of the reader failed.
    pub(crate) failure: Option<Error>,
    /// The reason why no server is available.
    pub(crate) error: Option<Error>,
    in_jeopardy: bool,
    last_n: u64,
    beat: u64,
    pub(crate) seen: u64,
    /// When the last confirming `LOCK.EVENTS` was sent.
    pub(crate) confirmed: Option<Moment>,
    /// For the listener.
    events: Vec<Event>,
}

/// The session on one node.
pub(crate) struct Session<I: Io> {
    pub(crate) io: I,
    pub(crate) node: String,
    pub(crate) core: Arc<Core<I>>,
    pub(crate) table: Mutex<Table<I>>,
    pub(crate) changed: Notify,
}

impl<I: Io> Table<I> {
    /// The least number whose acquire, or its cancellation, has no answer (R11).
    pub(crate) fn done(&self) -> u64 {
        let declared = self.undeclared.iter().filter_map(|acquire| acquire.now().at.clone());
        let declared = declared.filter(|at| self.id.as_ref() == Some(&at.id)).map(|at| at.n).min();
        let least = [self.asked.keys().next().copied(), self.undo.keys().next().copied(), declared];
        least.into_iter().flatten().min().unwrap_or(self.last_n + 1)
    }

    pub(crate) fn next_n(&mut self) -> u64 {
        self.last_n += 1;
        self.last_n
    }

    pub(crate) fn next_beat(&mut self) -> u64 {
        // R16: never taken from a reply.
        self.beat += 1;
        self.beat
    }

    /// Whether the present session has this number, and has declared it.
    fn knows(&self, at: &At<I>) -> bool {
        self.id.as_ref() == Some(&at.id)
            && [&self.asked, &self.held, &self.undo].iter().any(|acquires| acquires.contains_key(&at.n))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Acquire<I>>> {
        [&self.asked, &self.held, &self.undo].into_iter().flat_map(BTreeMap::values).chain(&self.undeclared)
    }

    fn notify(&mut self, acquire: &Acquire<I>, name: &'static str, outcome: &'static str) {
        let time = now().saturating_sub(acquire.now().granted);
        self.events.push(Event { label: acquire.request.label.clone(), name, outcome, time });
    }

    /// Handles a grant by a reply, or by an event with a token. The lease began at `not_before` at the earliest.
    pub(crate) fn grant(
        &mut self,
        acquire: &Arc<Acquire<I>>,
        replies: Value,
        token: Option<Value>,
        not_before: Moment,
    ) {
        let (mut holds, mut tokens) =
            (numbers(&replies), token.map_or_else(Vec::new, |token| numbers(&token)));
        if holds.is_empty() {
            let replies = if acquire.request.several() { replies } else { Value::Array(vec![replies]) };
            let replies = Vec::<HashMap<String, Value>>::from_redis_value(replies).unwrap_or_default();
            for reply in replies {
                holds.extend(reply.get("holds").into_iter().flat_map(numbers));
                tokens.extend(reply.get("token").into_iter().flat_map(numbers));
            }
        }
        let mut state = acquire.now();
        let n = state.n();
        self.asked.remove(&n);
        self.held.insert(n, Arc::clone(acquire));
        state.phase = Phase::Held;
        state.holds = holds.into_iter().max().unwrap_or(1);
        (state.tokens, state.granted) = (tokens, now());
        let starts = state.sent.max(not_before);
        state.lease_ends = acquire.request.lease.map_or(Moment::MAX, |lease| starts.saturating_add(lease));
        drop(state);
        acquire.changed.notify_waiters();
    }

    /// The acquire neither waits nor holds any longer. With `may_remain`, the server may still have it.
    pub(crate) fn end(&mut self, acquire: &Arc<Acquire<I>>, reason: &str, may_remain: bool) {
        let mut state = acquire.now();
        if matches!(state.phase, Phase::Over(_)) {
            return;
        }
        let is_reported = state.phase == Phase::Held && !state.handed_over;
        state.phase = Phase::Over(reason.to_owned());
        let n = state.n();
        drop(state);
        let is_declared = self.asked.remove(&n).or_else(|| self.held.remove(&n)).is_some();
        if is_declared && may_remain {
            self.undo.insert(n, Arc::clone(acquire));
        } else if !may_remain {
            self.undeclared.retain(|other| !Arc::ptr_eq(other, acquire));
        }
        if is_reported {
            self.notify(acquire, "held", if is_good_end(reason) { "released" } else { "lost" });
        }
        acquire.changed.notify_waiters();
    }

    /// Takes an acquire out, for another session. A wait ends, and is asked for again.
    pub(crate) fn leave(&mut self, acquire: &Arc<Acquire<I>>) {
        if acquire.now().phase == Phase::Asked {
            self.end(acquire, "moved", true);
        }
        let n = acquire.now().n();
        self.held.remove(&n);
        self.undo.remove(&n);
        self.undeclared.retain(|other| !Arc::ptr_eq(other, acquire));
    }

    fn renewed(&self) -> Vec<Arc<Acquire<I>>> {
        let holds = self.held.values().chain(self.undeclared.iter().filter(|acquire| acquire.is_held()));
        holds.filter(|hold| hold.request.lease.is_none()).cloned().collect()
    }

    pub(crate) fn end_renewed(&mut self, reason: &str, may_remain: bool) {
        for hold in self.renewed() {
            self.end(&hold, reason, may_remain);
        }
    }

    pub(crate) fn check_clock(&mut self, core: &Core<I>) {
        let Some(confirmed) = self.confirmed else { return };
        if left(confirmed + core.grace).is_zero() {
            self.set_jeopardy(true);
        }
        if left(confirmed + core.ttl).is_zero() {
            self.end_renewed("silent", true);
        }
    }

    pub(crate) fn set_jeopardy(&mut self, value: bool) {
        if value != self.in_jeopardy {
            self.in_jeopardy = value;
            for hold in self.renewed() {
                self.notify(&hold, if value { "jeopardy" } else { "safe" }, "");
            }
        }
    }
}

/// The numbers of a reply: one, or one for each lock. Empty if it has another type.
pub(crate) fn numbers(value: &Value) -> Vec<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).into_iter().collect(),
        Value::Array(values) if values.iter().all(|value| matches!(value, Value::Int(_))) => {
            values.iter().flat_map(numbers).collect()
        }
        _ => Vec::new(),
    }
}

impl<I: Io> Session<I> {
    pub(crate) fn new(core: Arc<Core<I>>, node: String) -> Arc<Session<I>> {
        let table = Table {
            asked: BTreeMap::new(),
            held: BTreeMap::new(),
            undo: BTreeMap::new(),
            undeclared: Vec::new(),
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
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut Table<I>) -> T) -> T {
        let mut table = locked(&self.table);
        let result = change(&mut table);
        let events = std::mem::take(&mut table.events);
        drop(table);
        events.iter().for_each(|event| self.core.notify(event));
        result
    }

    /// Waits for the grant or the end of the acquire. If it fails, the caller abandons it: the server may still grant it.
    pub(crate) async fn ask(self: &Arc<Self>, acquire: &Arc<Acquire<I>>) -> Result<()> {
        let patient = acquire.began.saturating_add(self.core.patience);
        let is_short = acquire.is_try || acquire.source.is_some();
        let give_up = if is_short { patient } else { acquire.until.saturating_add(REPLY_GRACE) };
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            // An acquire without a number is interrupted by itself.
            let mut interrupted = std::pin::pin!(acquire.changed.notified());
            interrupted.as_mut().enable();
            if self.enrol(acquire, is_short || give_up == Moment::MAX)? {
                break;
            }
            if left(give_up).is_zero() {
                let failure = locked(&self.table).failure.clone();
                return Err(failure.unwrap_or_else(Error::no_reply));
            }
            let any = std::future::poll_fn(|context| {
                let (changed, interrupted) =
                    (changed.as_mut().poll(context), interrupted.as_mut().poll(context));
                if changed.is_ready() || interrupted.is_ready() {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            });
            I::timeout(left(give_up), any).await;
            // Another node may have taken over.
            let node = self.core.server.node_of::<I>(&acquire.request.keys[0]).await;
            if node.is_ok_and(|node| node != self.node) {
                acquire.now().phase = Phase::Over("moved".to_owned());
                return Ok(());
            }
        }
        let call = |at: &At<I>| acquire.ask_call(at);
        match Session::repeat(&self.core, acquire, Phase::Asked, call, give_up).await {
            // R12: the hold of a repeated acquire has ended.
            Err(error) if error.kind() == ErrorKind::Lost && acquire.source.is_none() => {
                acquire.end(Some(Phase::Asked), "restarted");
            }
            Err(error) => return Err(error),
            Ok(None | Some((Value::Int(0), _))) => {}
            Ok(Some((Value::Nil, _))) => acquire.end(Some(Phase::Asked), "timeout"),
            Ok(Some((value, _))) => self.update(|table| {
                if acquire.now().phase == Phase::Asked {
                    table.grant(acquire, value, None, Moment::ZERO);
                }
            }),
        }
        let is_done = |state: &Now<I>| state.phase != Phase::Asked || state.error.is_some();
        acquire.changed(left(give_up), is_done).await;
        let state = acquire.now();
        match &state.error {
            _ if state.phase != Phase::Asked => Ok(()),
            Some(error) => Err(error.clone()),
            None => {
                drop(state);
                let is_failing = locked(&self.table).failure.is_some();
                let kind = if is_failing { ErrorKind::Unavailable } else { ErrorKind::TimedOut };
                Err(acquire.request.error(kind, "the server has not answered in time"))
            }
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
        let mut late = table.undo.values().chain(&table.undeclared);
        if late.any(|other| other.owner == acquire.owner && shares_key(other)) {
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

    pub(crate) fn start(self: &Arc<Self>, table: &mut Table<I>) -> Result<()> {
        if !table.is_started {
            self.io.start(Arc::clone(self).read())?;
            (table.is_started, table.error) = (true, None);
        }
        Ok(())
    }

    /// Sends a call until it has a reply, while the acquire is in this phase. A reply counts only if the call carried the present
    /// number (R14). Returns the reply, and when the call was first sent.
    async fn repeat(
        core: &Core<I>,
        acquire: &Arc<Acquire<I>>,
        phase: Phase,
        call: impl Fn(&At<I>) -> Cmd + Send + Sync,
        give_up: Moment,
    ) -> Result<Option<(Value, Moment)>> {
        let (is_ask, mut first_sent, mut failing_until) = (phase == Phase::Asked, None, None);
        loop {
            let at = {
                let state = acquire.now();
                if state.phase != phase {
                    return Ok(None);
                }
                if let Some(error) = state.error.as_ref().filter(|_| is_ask) {
                    return Err(error.clone());
                }
                state.at.clone()
            };
            let text = "no server has confirmed the hold yet; try again";
            let mut error = acquire.request.error(ErrorKind::Unavailable, text);
            let sent = now();
            if at.as_ref().is_some_and(|at| locked(&at.session.table).is_closed) {
                return Err(Error::new(ErrorKind::Cancelled, "the locks are closed"));
            }
            if let Some(at) = at.filter(|at| at.session.knows(at)) {
                let limit = CALL_TIMEOUT.min(REPLY_GRACE.max(left(give_up)));
                let first_sent = *first_sent.get_or_insert(sent);
                let reply = at.session.io.call(call(&at), limit).await;
                let counts = at.is(&acquire.now().at);
                match reply {
                    Ok(value) if counts => return Ok(Some((value, first_sent))),
                    Err(failed) if counts && !failed.is_transient() => {
                        if is_ask && !acquire.now().in_doubt {
                            // No copy of this call can be late, so nothing must be undone.
                            acquire.end(Some(Phase::Asked), "failed");
                        }
                        return Err(failed);
                    }
                    Ok(_) => {}
                    Err(failed) => error = failed,
                }
                acquire.now().in_doubt |= error.is_unanswered();
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

    fn knows(&self, at: &At<I>) -> bool {
        locked(&self.table).knows(at)
    }

    /// Whether the cancellation of this number can be sent at once.
    pub(crate) fn can_cancel(&self, n: u64) -> bool {
        let table = locked(&self.table);
        table.undo.contains_key(&n) && table.is_up && table.failure.is_none()
    }

    /// Releases exactly this hold. If that fails, the reader continues.
    pub(crate) async fn release(core: &Core<I>, hold: &Arc<Acquire<I>>) -> Result<()> {
        let is_held = {
            let mut state = hold.now();
            if state.handed_over {
                return Ok(());
            }
            state.in_doubt &= state.is_releasing;
            state.is_releasing = true;
            state.phase == Phase::Held
        };
        if hold.is_lost() {
            // A lease that has expired by the local clock may still exist on the server.
            hold.abandon("expired");
        } else if is_held {
            let undo = Undo::new(hold, "released");
            let call = |at: &At<I>| hold.release_call(at);
            match Session::repeat(core, hold, Phase::Held, call, after(core.patience)).await {
                Ok(_) => hold.end(Some(Phase::Held), "released"),
                Err(error) if error.ends_hold() => hold.end(Some(Phase::Held), hold.explain(&error)),
                Err(error) => return Err(error),
            }
            undo.disarm();
        }
        // An event may have ended the hold at any step.
        if hold.is_lost() {
            return Err(hold.lost());
        }
        Ok(())
    }

    /// Sets the lease, or checks a hold that the server renews.
    pub(crate) async fn renew(core: &Core<I>, hold: &Arc<Acquire<I>>, lease: Option<Duration>) -> Result<()> {
        let call = |at: &At<I>| hold.renew_call(at, lease);
        match Session::repeat(core, hold, Phase::Held, call, after(core.patience)).await {
            // Its owner may know already that the lease was over.
            Ok(Some(_)) if hold.is_lost() => hold.abandon("expired"),
            Ok(Some((_, first_sent))) => {
                let mut state = hold.now();
                state.in_doubt &= state.is_releasing;
                if let Some(lease) = lease {
                    state.lease_ends = first_sent.saturating_add(lease);
                }
            }
            Ok(None) => {}
            Err(error) if error.ends_hold() => hold.end(Some(Phase::Held), hold.explain(&error)),
            Err(error) => return Err(error),
        }
        if hold.is_held() {
            Ok(())
        } else {
            Err(hold.lost())
        }
    }

    /// The number of a hold, once the present session has declared it.
    pub(crate) async fn number(core: &Core<I>, hold: &Arc<Acquire<I>>) -> Result<u64> {
        let give_up = after(core.patience);
        loop {
            if !hold.is_held() || hold.is_lost() {
                return Err(hold.lost());
            }
            let at = hold.now().at.clone();
            match at.filter(|at| at.session.knows(at)) {
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
        let (lease_ends, granted, in_doubt) = (state.lease_ends, state.granted, state.in_doubt);
        drop(state);
        let table = locked(&at.session.table);
        if !table.knows(&at) {
            return Duration::ZERO;
        }
        // R1: the server revokes a grant only if the session is silent for the grace.
        let is_acknowledged = !in_doubt || table.confirmed.is_some_and(|sent| sent > granted);
        if hold.request.lease.is_some() && is_acknowledged {
            return left(lease_ends);
        }
        let confirmed = table.confirmed.filter(|_| table.is_up);
        left(lease_ends.min(confirmed.map_or(Moment::ZERO, |sent| sent + at.session.core.grace)))
    }

    /// When all renewed holds are lost, if no server answers.
    pub(crate) fn lifetime_ends(&self) -> Moment {
        locked(&self.table).confirmed.map_or(Moment::MAX, |sent| sent + self.core.ttl)
    }

    /// Takes over an acquire that the reader must declare here, as this node now serves its slot.
    pub(crate) fn arrive(self: &Arc<Self>, acquire: Arc<Acquire<I>>) {
        self.update(|table| {
            // If the reader cannot start, the next acquire starts it.
            drop(self.start(table));
            acquire.now().at = Some(At { session: Arc::clone(self), id: "".into(), n: 0 });
            table.undeclared.push(acquire);
        });
    }

    /// Ends all waits and renewed holds. A hold with a lease of its own remains until its lease ends.
    pub(crate) async fn close(&self) {
        let (id, is_started) = self.update(|table| {
            (table.is_closed, table.is_up) = (true, false);
            for acquire in table.asked.values() {
                acquire.interrupt(Error::new(ErrorKind::Cancelled, "the locks are closed"));
            }
            table.end_renewed("closed", false);
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
