// SPDX-License-Identifier: MIT

//! The verbs: what a task or a thread does.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{mem, process};

use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::acquire::{Acquire, Claim, Guard, Place};
use crate::clock::{after, left, now, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{
    locked, run, Background, Gate, Node, CALL_TIMEOUT, MAX_RETRY_PAUSE, REPLY_GRACE, RETRY_PAUSE,
};
use crate::lock::Settings;
use crate::request::Request;
use crate::server::Server;
use crate::session::{is_good_end, State};

/// A notification to the listener.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event {
    /// The label of the lock, if it has one.
    pub label: Option<String>,
    /// `waited`, `held`, `jeopardy` or `safe`.
    pub name: &'static str,
    /// For a wait, `granted` or the name of the [kind](ErrorKind) of its error. For a hold, `released` or `lost`. Otherwise
    /// empty.
    pub outcome: &'static str,
    /// Duration of the wait, or of the hold so far.
    pub time: Duration,
}

impl Event {
    pub(crate) fn of(hold: &Acquire, name: &'static str, outcome: &'static str) -> Event {
        let time = now().saturating_sub(hold.granted);
        Event { label: hold.claim.request.label.clone(), name, outcome, time }
    }
}

thread_local! {
    static IS_LISTENING: Cell<bool> = const { Cell::new(false) };
}

/// Shared by all that use some locks.
pub(crate) struct Core {
    pub(crate) server: Arc<Server>,
    pub(crate) settings: Settings,
    /// Whether each call blocks the thread that makes it.
    pub(crate) is_blocking: bool,
    /// Makes owners unique, even if sessions have the same name.
    unique: String,
    process: u32,
    state: Mutex<State>,
    pub(crate) closing: Gate,
    /// Events that the background has noticed.
    noticed: Mutex<VecDeque<Event>>,
    listening: Mutex<()>,
}

/// Reports a wait, even if its future is dropped.
struct Waited<'a> {
    core: &'a Core,
    event: Event,
    began: Moment,
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        self.event.time = now().saturating_sub(self.began);
        self.core.notify(&self.event);
    }
}

impl Core {
    pub(crate) fn new(server: Server, settings: Settings, is_blocking: bool) -> Core {
        Core {
            server: Arc::new(server),
            settings,
            is_blocking,
            unique: random(),
            process: process::id(),
            state: Mutex::default(),
            closing: Gate::default(),
            noticed: Mutex::default(),
            listening: Mutex::default(),
        }
    }

    /// Whether this is a forked child of the process that made the locks (R17).
    pub(crate) fn is_forked(&self) -> bool {
        self.process != process::id()
    }

    pub(crate) fn check_process(&self) -> Result<()> {
        let text = "the locks belong to another process; make new ones after a fork";
        (!self.is_forked()).then_some(()).ok_or_else(|| Error::new(ErrorKind::Misuse, text))
    }

    /// The thread of the sessions, for a call that blocks.
    pub(crate) fn background(&self) -> Option<Background> {
        (!self.is_forked()).then(|| locked(&self.state).start().ok()).flatten()
    }

    /// Changes or reads the state. Calls the listener afterwards, so it may use locks.
    pub(crate) fn update<T>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = locked(&self.state);
        let result = change(&mut state);
        let events = mem::take(&mut state.events);
        drop(state);
        if !Background::is_current() {
            events.iter().for_each(|event| self.notify(event));
        } else if !events.is_empty() && self.settings.listener.is_some() {
            locked(&self.noticed).extend(events);
            let core = Arc::clone(self);
            // The listener may be slow, and the reader must not wait for it.
            Handle::current().spawn_blocking(move || {
                let _in_order = locked(&core.listening);
                let next = || locked(&core.noticed).pop_front();
                while let Some(event) = next() {
                    core.notify(&event);
                }
            });
        }
        result
    }

    fn notify(&self, event: &Event) {
        if let Some(listener) = &self.settings.listener {
            self.call_user(|| listener(event));
        }
    }

    pub(crate) fn call_user(&self, call: impl FnOnce()) {
        let was_listening = IS_LISTENING.replace(true);
        if catch_unwind(AssertUnwindSafe(call)).is_err() {
            log::error!("a listener of locks panicked");
        }
        IS_LISTENING.set(was_listening);
    }

    /// The name of the task or thread that calls.
    fn owner(&self) -> String {
        static THREADS: AtomicU64 = AtomicU64::new(1);
        thread_local!(static NUMBER: u64 = THREADS.fetch_add(1, Ordering::Relaxed));
        let unit = match tokio::task::try_id().filter(|_| !self.is_blocking) {
            Some(id) => format!("task-{id}"),
            None => NUMBER.with(|number| format!("thread-{number}")),
        };
        format!("{}:{}:{unit}", self.settings.name, self.unique)
    }

    /// The hold, or None if the limit of the wait is over.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        request: &Arc<Request>,
        wait: Option<Duration>,
    ) -> Result<Option<Guard>> {
        request.check()?;
        self.check_process()?;
        let (label, outcome) = (request.label.clone(), ErrorKind::Cancelled.as_str());
        let event = Event { label, name: "waited", outcome, time: Duration::ZERO };
        let mut waited = Waited { core: self, event, began: now() };
        let result = self.acquire_unreported(request, wait).await;
        waited.event.outcome = match &result {
            Ok(Some(_)) => "granted",
            Ok(None) if wait == Some(Duration::ZERO) => ErrorKind::Busy.as_str(),
            Ok(None) => ErrorKind::TimedOut.as_str(),
            Err(error) => error.kind().as_str(),
        };
        result
    }

    async fn acquire_unreported(
        self: &Arc<Self>,
        request: &Arc<Request>,
        wait: Option<Duration>,
    ) -> Result<Option<Guard>> {
        let is_try = wait == Some(Duration::ZERO);
        let error = |kind, text| Err(request.error(kind, text));
        if !is_try && IS_LISTENING.get() {
            return error(ErrorKind::Misuse, "a listener must not wait for a lock; try to acquire it");
        }
        let (until, patient) = (wait.map_or(Moment::MAX, after), after(self.settings.patience));
        let mut owner = request.owner.clone().unwrap_or_else(|| self.owner().into_bytes());
        loop {
            let (request, name) = (Arc::clone(request), owner.clone());
            let guard = self.enrol(Claim { request, owner: name, is_try, until, ..Claim::default() }).await?;
            match self.ask(&guard.claim).await {
                Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(None),
                asked => asked?,
            }
            match self.update(|state| state.holds(&guard.claim)) {
                // Another process has taken a hold over, and the owner of this task with it.
                Some((holds, ours)) if holds > ours && guard.claim.request.owner.is_none() => {
                    owner = format!("{}.{}", self.owner(), random()).into_bytes();
                }
                Some((2.., _)) if !guard.claim.request.reentrant => {
                    let text = "this owner has the lock already; release it first, or use reentrant()";
                    return error(ErrorKind::Deadlock, text);
                }
                Some(_) if self.secure(&guard.claim).await? => return Ok(Some(guard)),
                _ => {}
            }
            match guard.claim.reason.get().map(String::as_str) {
                Some("timeout") => return Ok(None),
                Some("deadlock") => return error(ErrorKind::Deadlock, "the wait could never end"),
                Some("noreplicas") => {
                    return error(ErrorKind::Unavailable, "too few replicas have acknowledged the grant")
                }
                Some("refused") => return error(ErrorKind::Misuse, "the server has refused the grant"),
                Some("cancelled") => return error(ErrorKind::Cancelled, "the locks are closed"),
                // The wait continues with a new number.
                _ if left(if is_try { patient } else { until.saturating_add(REPLY_GRACE) }).is_zero() => {
                    return error(ErrorKind::Unavailable, "the server has lost the grant; try again")
                }
                _ => {}
            }
        }
    }

    /// Adds an acquire to the session of the node that serves it.
    async fn enrol(self: &Arc<Self>, claim: Claim) -> Result<Guard> {
        let give_up = if claim.is_impatient() { after(self.settings.patience) } else { claim.until };
        let name = loop {
            match self.server.node_of(&claim.request.keys[0]).await {
                Err(error) if error.is_transient() && !left(give_up).is_zero() && !self.closing.is_open() => {
                    self.closing.limit(sleep(RETRY_PAUSE)).await;
                }
                name => break name?,
            }
        };
        let claim = Arc::new(claim);
        self.update(|state| {
            let node = state.node(self, &name, true)?;
            state.insert(Acquire::new(Arc::clone(&claim), node));
            Ok(Guard { core: Arc::clone(self), claim })
        })
    }

    /// Waits for the grant or the end of the acquire. If it fails, the server may still grant it.
    async fn ask(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<()> {
        let (verb, is_taken) = if claim.source.is_some() { ("RENEW", true) } else { ("ACQUIRE", false) };
        let is_short = claim.is_try || is_taken;
        let give_up =
            if is_short { after(self.settings.patience) } else { claim.until.saturating_add(REPLY_GRACE) };
        match self.call(claim, Place::Asked, verb, claim.request.lease, give_up).await {
            // R12: the hold of a repeated acquire has ended.
            Err(error) if error.kind() == ErrorKind::Lost && !is_taken => {
                self.update(|state| state.end_missing(claim.n(), "restarted"));
            }
            Err(error) => return Err(error),
            Ok(None | Some((Value::Int(0), _))) => {}
            Ok(Some((Value::Nil, _))) => self.update(|state| {
                if state.get(claim, Place::Asked).is_some() {
                    state.end(claim.n(), "timeout", false);
                }
            }),
            Ok(Some((value, _))) => {
                self.update(|state| state.grant(claim.n(), false, value, None));
                return Ok(());
            }
        }
        self.wait(claim, Place::Asked, give_up, |_| None::<()>).await.map(drop)
    }

    /// Returns whether the new hold can be used.
    async fn secure(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<bool> {
        let deliver = |state: &mut State| {
            let hold = state.get(claim, Place::Held)?;
            hold.is_delivered = hold.lease_ends > now();
            if !hold.is_delivered {
                hold.lease_ends = Moment::MAX;
            }
            Some(hold.is_delivered)
        };
        if self.update(deliver) == Some(false) {
            // The lease ran while the grant was on its way. The renewal also acknowledges the grant (R1).
            match self.renew(claim, claim.request.lease).await {
                Err(error) if error.kind() == ErrorKind::Lost => return Ok(false),
                renewed => renewed?,
            }
            return Ok(self.update(deliver) == Some(true));
        }
        Ok(claim.reason.get().is_none())
    }

    /// Waits until the acquire has left its place (None), or the closure has a result.
    async fn wait<T>(
        self: &Arc<Self>,
        claim: &Claim,
        place: Place,
        give_up: Moment,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>> {
        let is_impatient = place == Place::Asked && claim.is_impatient();
        loop {
            let mut changed = pin!(claim.changed.notified());
            changed.as_mut().enable();
            let is_over = left(give_up).is_zero();
            let found = self.update(|state| {
                let Some(acquire) = state.get(claim, place) else { return Some(Ok(None)) };
                let node = Arc::clone(&acquire.node);
                if state.is_closed {
                    return Some(Err(Error::new(ErrorKind::Cancelled, "the locks are closed")));
                }
                if let Some(result) = look(state) {
                    return Some(Ok(Some(result)));
                }
                let session = state.session(&node)?;
                let is_late = |since: Moment| left(since.saturating_add(self.settings.patience)).is_zero();
                let failure = session.failure.as_ref().filter(|(since, error)| {
                    is_over || !error.is_transient() || is_impatient && is_late(*since)
                });
                let is_slow = session.is_up && place == Place::Asked;
                let kind = if is_slow { ErrorKind::TimedOut } else { ErrorKind::Unavailable };
                let late = || claim.request.error(kind, "no server has answered in time; try again");
                failure.map(|(_, error)| error.clone()).or_else(|| is_over.then(late)).map(Err)
            });
            if let Some(result) = found {
                return result;
            }
            _ = timeout(left(give_up), changed).await;
        }
    }

    /// Sends a call until it has a reply. It may be sent again, as it has a number. A reply counts only if its call carried the
    /// present number (R14). Returns the reply, and when the call was first sent: a lease counts from that, as that attempt may
    /// have succeeded. Returns None if the acquire has left its place.
    async fn call(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        place: Place,
        verb: &str,
        lease: Option<Duration>,
        mut give_up: Moment,
    ) -> Result<Option<(Value, Moment)>> {
        let (mut first_sent, mut pause) = (None, RETRY_PAUSE);
        loop {
            let prepared = self.wait(claim, place, give_up, |state| {
                let is_late = state.is_owner_late(claim);
                let (acquire, _) = state.serving(claim)?;
                // The server would refuse a release of a number that is not declared yet, and remember that (R23).
                if !acquire.is_known && (place == Place::Held || is_late) {
                    return None;
                }
                state.prepare(claim, verb, lease)
            });
            let Some(prepared) = prepared.await? else { return Ok(None) };
            let sent = now();
            let first_sent = *first_sent.get_or_insert(sent);
            let limit = CALL_TIMEOUT.min(REPLY_GRACE.max(left(give_up)));
            let reply = prepared.node.call(&prepared.call, limit, self.is_blocking).await;
            let counts = self.update(|state| {
                let is_present = claim.n() == prepared.n && state.is_present(&prepared);
                let acquire = state.get(claim, place)?;
                match &reply {
                    Err(error) if error.is_unanswered() => {
                        acquire.in_doubt |= place == Place::Asked || verb == "RELEASE";
                    }
                    // No copy of this call can be late, so nothing must be undone.
                    Err(_) if is_present && place == Place::Asked && !acquire.in_doubt => {
                        acquire.is_known = false
                    }
                    _ => {}
                }
                Some(is_present)
            });
            // An event, or a new session, overrules the reply.
            let Some(counts) = counts else { return Ok(None) };
            let error = match reply {
                Ok(value) if counts => return Ok(Some((value, first_sent))),
                Ok(_) => continue,
                Err(error) => error,
            };
            let is_elsewhere = error.is("MOVED") || error.is("ASK");
            if counts && (!error.is_transient() || is_elsewhere && !self.server.is_cluster()) {
                return Err(error);
            }
            if error.is("MOVED") && place == Place::Asked {
                self.relocate(&prepared.node, |each| Arc::ptr_eq(&each.claim, claim)).await;
            }
            if give_up == Moment::MAX {
                // A wait without a limit ends when no server has answered for the patience.
                give_up = sent.saturating_add(self.settings.patience);
            }
            if left(give_up).is_zero() {
                return Err(error);
            }
            self.closing.limit(sleep(pause.min(left(give_up)))).await;
            pause = MAX_RETRY_PAUSE.min(2 * pause);
        }
    }

    /// Ends an acquire in any place. Sends the cancellation at once, if a server is available. The reader repeats it.
    pub(crate) fn abandon(self: &Arc<Self>, claim: &Arc<Claim>) {
        let call = self.update(|state| {
            let is_asked = state.get(claim, Place::Asked).is_some();
            state.end(claim.n(), if is_asked { "cancelled" } else { "released" }, true);
            state.serving(claim).filter(|(each, session)| each.is_known && session.failure.is_none())?;
            Some((state.prepare(claim, "CANCEL", None)?, state.background.clone()?))
        });
        let Some((prepared, background)) = call else { return };
        let core = Arc::clone(self);
        let cancel = async move {
            let reply = prepared.node.call(&prepared.call, REPLY_GRACE, core.is_blocking).await;
            let is_answer = reply.map_or_else(|error| !error.is_transient(), |_| true);
            core.update(|state| {
                if is_answer && state.is_present(&prepared) {
                    state.undone(prepared.n);
                }
            });
        };
        if self.is_blocking {
            run(Some(background), cancel);
        } else {
            background.handle.spawn(cancel);
        }
    }

    /// Releases exactly this hold. If that fails, or the future is dropped, the reader continues.
    pub(crate) async fn release(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<()> {
        let give_up = after(self.settings.patience);
        let (is_first, is_expired) = self.update(|state| {
            let Some(hold) = state.get(claim, Place::Held) else { return (false, false) };
            let is_first = !mem::replace(&mut hold.is_releasing, true);
            // The server may still have a lease that is over.
            let is_expired = self.is_lost(state, claim);
            if is_expired {
                state.end(claim.n(), "expired", true);
            }
            (is_first, is_expired)
        });
        if is_expired {
            self.abandon(claim);
        }
        if is_first {
            let _undo = Guard { core: Arc::clone(self), claim: Arc::clone(claim) };
            match self.call(claim, Place::Held, "RELEASE", None, give_up).await {
                Err(error) if !error.ends_hold() => return Err(error),
                Ok(Some(_)) => self.update(|state| state.end(claim.n(), "released", false)),
                Ok(None) => {}
                Err(error) => self.update(|state| state.end_missing(claim.n(), reason_of(&error))),
            }
        } else {
            self.wait(claim, Place::Held, give_up, |_| None::<()>).await?;
        }
        // An event may have ended the hold at any step.
        let is_lost = claim.reason.get().is_some_and(|reason| !is_good_end(reason));
        (!is_lost).then_some(()).ok_or_else(|| claim.lost())
    }

    /// Sets the lease, or checks a hold that the server renews.
    pub(crate) async fn renew(self: &Arc<Self>, claim: &Arc<Claim>, lease: Option<Duration>) -> Result<()> {
        let give_up = after(self.settings.patience);
        let reply = match self.call(claim, Place::Held, "RENEW", lease, give_up).await {
            Err(error) if !error.ends_hold() => return Err(error),
            reply => reply,
        };
        self.update(|state| {
            let is_lost = self.is_lost(state, claim);
            let Some(hold) = state.get(claim, Place::Held) else { return Err(claim.lost()) };
            match reply {
                // Its user may know already that the lease was over.
                Ok(_) if is_lost => state.end(claim.n(), "expired", true),
                Ok(reply) => {
                    hold.revocable_since = None;
                    if let (Some(lease), Some((_, first_sent))) = (lease, reply) {
                        hold.lease_ends = first_sent.saturating_add(lease);
                    }
                    return Ok(());
                }
                // A release that is on its way knows more.
                Err(_) if hold.is_releasing => {}
                Err(error) => state.end_missing(claim.n(), reason_of(&error)),
            }
            Err(claim.lost())
        })
    }

    pub(crate) async fn attach(self: &Arc<Self>, request: &Arc<Request>, ticket: &str) -> Result<Guard> {
        request.check()?;
        self.check_process()?;
        let wrong = || request.error(ErrorKind::Misuse, "the ticket was not made by hand_over()");
        let mut parts = ticket.splitn(3, '|');
        let (owner, m, giver) = (parts.next(), parts.next().and_then(|m| m.parse().ok()), parts.next());
        let owner = owner.and_then(from_hex).ok_or_else(wrong)?;
        let source = Some((giver.ok_or_else(wrong)?.to_owned(), m.ok_or_else(wrong)?));
        let (request, until) = (Arc::clone(request), Moment::MAX);
        let guard = self.enrol(Claim { request, owner, until, source, ..Claim::default() }).await?;
        self.ask(&guard.claim).await?;
        if self.secure(&guard.claim).await? {
            Ok(guard)
        } else {
            Err(guard.claim.lost())
        }
    }

    /// Lets another process take the hold over. Until then, the server renews it while this session lives.
    pub(crate) async fn ticket(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<String> {
        self.check_process()?;
        if claim.request.several() {
            let text = "several locks cannot be handed over together";
            return Err(claim.request.error(ErrorKind::Misuse, text));
        }
        let is_ready = |state: &mut State| {
            (self.is_lost(state, claim) || state.serving(claim).is_some_and(|(hold, _)| hold.is_known))
                .then_some(())
        };
        self.wait(claim, Place::Held, after(self.settings.patience), is_ready).await?;
        let n = self.update(|state| {
            let is_lost = self.is_lost(state, claim);
            state.get(claim, Place::Held).filter(|hold| hold.is_known && !is_lost)?;
            let n = claim.n();
            state.end(n, "taken", false);
            Some(n)
        });
        let n = n.ok_or_else(|| claim.lost())?;
        let owner: String = claim.owner.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("{owner}|{n}|{}", self.settings.name))
    }

    /// Sends a call to the node that serves the key. It is sent again only if the slot of the key has moved.
    pub(crate) async fn execute(self: &Arc<Self>, key: &[u8], call: &Cmd) -> Result<Value> {
        self.check_process()?;
        let mut is_second = false;
        loop {
            let name = self.server.node_of(key).await?;
            let node: Arc<Node> = self.update(|state| state.node(self, &name, false))?;
            let reply = node.call(call, CALL_TIMEOUT, self.is_blocking).await;
            let is_moved = reply.as_ref().is_err_and(|error| self.is_moved(error));
            if is_second || !is_moved || self.server.refresh().await.is_err() {
                return reply;
            }
            is_second = true;
        }
    }

    /// Whether the hold ended before its release.
    pub(crate) fn is_lost(&self, state: &State, claim: &Claim) -> bool {
        match (claim.reason.get(), state.acquires.get(&claim.n())) {
            (Some(reason), _) => !is_good_end(reason),
            (None, Some(hold)) if hold.place == Place::Held => state.ends(hold, self.settings.ttl) <= now(),
            _ => false,
        }
    }

    /// The time for which no other owner can have the lock, even if the network fails.
    pub(crate) fn valid_for(self: &Arc<Self>, claim: &Claim) -> Duration {
        self.update(|state| {
            let (hold, session) = state.serving(claim)?;
            let is_revocable = hold.revocable_since.is_some_and(|since| session.confirmed <= since);
            let is_limited = claim.request.lease.is_none() || is_revocable;
            let safe = if is_limited { session.confirmed + self.settings.grace } else { Moment::MAX };
            (hold.place == Place::Held && hold.is_known && !hold.is_releasing)
                .then(|| left(hold.lease_ends.min(safe)))
        })
        .unwrap_or_default()
    }

    /// Waits until the hold is lost, or over in another way. Returns whether it is lost.
    pub(crate) async fn wait_end(self: &Arc<Self>, claim: &Claim, until: Moment) -> bool {
        while !self.is_forked() {
            let mut changed = pin!(claim.changed.notified());
            changed.as_mut().enable();
            let ends = self.update(|state| {
                let is_over = state.is_closed || self.is_lost(state, claim) || left(until).is_zero();
                let hold =
                    state.acquires.get(&claim.n()).filter(|hold| hold.place == Place::Held && !is_over)?;
                Some(until.min(state.ends(hold, self.settings.ttl)))
            });
            let Some(ends) = ends else { break };
            _ = timeout(left(ends), changed).await;
        }
        self.is_forked() || self.update(|state| self.is_lost(state, claim))
    }

    /// Ends all sessions. Returns a future that waits for that.
    pub(crate) fn close(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = None;
        if !self.is_forked() {
            self.closing.open();
            ended = self.update(|state| {
                state.is_closed = true;
                state.acquires.values().for_each(|each| each.claim.changed.notify_waiters());
                state.sessions.retain(|_, session| session.is_started);
                state.ended =
                    state.background.take().map(|background| background.ended).or(state.ended.take());
                // A listener must not wait for itself.
                state.ended.clone().filter(|_| !IS_LISTENING.get())
            });
        }
        async move {
            if let Some(mut ended) = ended {
                while ended.changed().await.is_ok() {}
            }
        }
    }
}

/// The reason of an end that a reply reports.
fn reason_of(error: &Error) -> &'static str {
    if error.is("WRONGTYPE") {
        "wrongtype"
    } else {
        "deleted"
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.is_ascii().then(|| text.as_bytes().chunks(2))?;
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// The name of a session: host, process and a random part.
pub(crate) fn default_name() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    format!("{}/{}/{}", host.as_deref().unwrap_or("unknown"), process::id(), random())
}

fn random() -> String {
    Uuid::new_v4().simple().to_string()[..12].to_owned()
}
