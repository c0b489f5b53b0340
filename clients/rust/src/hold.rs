// SPDX-License-Identifier: MIT

//! A lock that is held: how long for sure, how it is kept, and how it ends.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use redis::{cmd, Cmd, ToRedisArgs, Value};
use uuid::Uuid;

use crate::clock::{after, left, now, Moment};
use crate::error::{silent, Error, Result};
use crate::link::Then;
use crate::lock::How;
use crate::mailbox::{locked, Mailbox};
use crate::session::{Call, Errand, Fate, Pending, Session, IN_THE_END, TRY_AGAIN};
use crate::timer::Place;
use crate::{Event, Handle};

/// Whoever calls waits for so long at most.
const AT_MOST: Duration = Duration::from_secs(30);

/// What is kept is renewed so often, however long its lease is: servers and networks end connections on which nothing is said.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// A lock that is held. It is given back by [`Hold::release`], or when it goes out of scope.
pub struct Hold {
    held: Arc<Held>,
    token: Option<u64>,
    _handle: Arc<Handle>,
}

/// The part of a hold that the session's threads know.
pub(crate) struct Held {
    pub(crate) owner: String,
    key: Vec<u8>,
    how: How,
    release_id: String,
    granted: Moment,
    session: Arc<Session>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    phase: Phase,
    lease: Duration,
    /// When the last call that was confirmed was sent, plus the lease; or earlier, if one for a shorter lease was sent since.
    until: Moment,
    /// When the server may end it at the latest, as far as is known: a longer lease may count though the answer is lost.
    may_last: Moment,
    /// What became of the call that bound it last: a kept hold is bound to the connection on which that went.
    bond: Arc<Fate>,
    /// When it counts as lost: at `until`, but if this process slept.
    deadline: Moment,
    slept: bool,
    renew_at: Moment,
    /// A renewal has no answer yet, whether somebody waits for it or not. It ends with its connection. There is one at a time, so
    /// that the last that was sent is the last that counts.
    renewing: bool,
    /// Where the timer has it.
    place: Option<Place>,
    on_lost: Vec<Box<dyn FnOnce() + Send>>,
    /// Why it is lost.
    why: Option<Error>,
    /// It is given back behind everybody's back: nothing renews it.
    left: bool,
    /// It is being handed over: nothing renews it.
    handing: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Held,
    /// Somebody waits for the reply. It is not renewed, and not looked at.
    Releasing,
    Released,
    /// The listener is told before all others.
    Losing,
    Lost,
}

impl Held {
    /// A hold that was confirmed by a call that was sent at that time.
    pub(crate) fn begin(
        session: &Arc<Session>,
        key: &[u8],
        owner: String,
        how: How,
        granted: Moment,
        sent: Moment,
        bond: Arc<Fate>,
    ) -> Arc<Held> {
        let lease = how.lease;
        let state = State {
            phase: Phase::Held,
            lease,
            until: sent.saturating_add(lease),
            may_last: sent.saturating_add(lease),
            bond,
            deadline: sent.saturating_add(lease),
            slept: false,
            renew_at: sent.saturating_add(heartbeat(lease)),
            renewing: false,
            place: None,
            on_lost: Vec::new(),
            why: None,
            left: false,
            handing: false,
        };
        let held = Arc::new(Held {
            owner,
            key: key.to_vec(),
            how,
            release_id: Uuid::new_v4().to_string(),
            granted,
            session: Arc::clone(session),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        session.holds(&held);
        held.schedule();
        if session.is_closed() {
            held.lose(held.ended_by("its session is closed"));
        }
        held
    }

    /// Whether it is bound to a connection.
    pub(crate) fn is_kept(&self) -> bool {
        self.how.keep
    }

    pub(crate) fn is_of(&self, key: &[u8], owner: &str) -> bool {
        self.key == key && self.owner == owner
    }

    fn keeps(&self, state: &State) -> bool {
        let age = now().saturating_sub(self.granted);
        self.how.keep && !state.left && !state.handing && self.how.max_hold.is_none_or(|max| age < max)
    }

    /// Tells the timer when to look at it next.
    fn schedule(self: &Arc<Self>) {
        let mut state = locked(&self.state);
        if state.phase != Phase::Held {
            return;
        }
        let renews = self.keeps(&state) && !state.renewing;
        let due = if renews { state.deadline.min(state.renew_at) } else { state.deadline };
        let held = Arc::clone(self);
        let place = self.session.timer.at(due, Box::new(move |late| held.look(late)));
        if let Some(place) = std::mem::replace(&mut state.place, place.ok()) {
            self.session.timer.forget(place);
        }
    }

    /// Renews it when it is time, or says that it is lost.
    fn look(self: &Arc<Self>, late: Duration) {
        let mut state = locked(&self.state);
        if state.phase != Phase::Held {
            return;
        }
        let keeps = self.keeps(&state);
        if state.deadline <= now() {
            // A process that slept through its lease asks once: the server may have renewed, and then nobody else had the
            // lock, as no other ever has this owner's name.
            if !keeps || late < state.lease / 10 || std::mem::replace(&mut state.slept, true) {
                drop(state);
                return self.run_out();
            }
            state.deadline = after(state.lease / 3);
            state.renew_at = now();
        }
        let renews = keeps && !state.renewing && state.renew_at <= now();
        state.renewing |= renews;
        let lease = state.lease;
        drop(state);
        if renews {
            self.renew(lease, Box::new(|_| ()));
        }
        self.schedule();
    }

    /// By the own clock it is over. The server may have it yet: what is kept for as long as the connection is there.
    fn run_out(self: &Arc<Self>) {
        let stays = self.how.keep || !left(locked(&self.state).may_last).is_zero();
        // Who hears of the loss may attach at once, behind what gives this back.
        let _pending = stays.then(|| self.pending());
        if self.lose(self.ended_by("its lease is over, and no renewal was confirmed")) && stays {
            self.leave();
        }
    }

    /// Renews it now, if nothing does.
    pub(crate) fn look_now(self: &Arc<Self>) {
        locked(&self.state).renew_at = now();
        self.schedule();
    }

    /// Whoever calls has noted that a renewal is on its way. Only what must bind binds: what comes late to the server cannot
    /// move a bond then.
    fn renew(self: &Arc<Self>, lease: Duration, then: Then) {
        let (held, sent, fate) = (Arc::clone(self), now(), Arc::default());
        let mut command = renewal(&self.key, &self.owner, lease);
        let mut state = locked(&self.state);
        let end = sent.saturating_add(lease);
        state.may_last = state.may_last.max(end);
        let shortens = !lease.is_zero() && end < state.until;
        // A shorter one may count though the answer is lost. The server refuses one of no time.
        if shortens {
            state.until = end;
            state.deadline = state.deadline.min(state.until);
        }
        let bond = Arc::clone(&state.bond);
        drop(state);
        if shortens {
            self.schedule();
        }
        let binds = self.how.keep && !self.session.is_bound(&self.key, &bond);
        if binds {
            let age = sent.saturating_sub(self.granted);
            self.how.bind(&mut command, self.how.max_hold.map(|max| max.saturating_sub(age)));
        }
        let call = self.session.to(&self.key, &command).with(&fate);
        let then = move |result: Result<Value>| {
            held.renewed(sent, lease, binds, &fate, &result);
            then(result);
        };
        self.session.send(call, Box::new(then));
    }

    fn renewed(
        self: &Arc<Self>,
        sent: Moment,
        lease: Duration,
        binds: bool,
        fate: &Arc<Fate>,
        result: &Result<Value>,
    ) {
        let mut state = locked(&self.state);
        state.renewing = false;
        match result {
            Ok(_) => {
                state.lease = lease;
                state.until = sent.saturating_add(lease);
                state.may_last = state.until;
                state.renew_at = sent.saturating_add(heartbeat(lease));
                state.deadline = state.until;
                state.slept = false;
                if binds {
                    state.bond = Arc::clone(fate);
                } else if self.how.keep && !fate.is_with(&state.bond) {
                    // It went on a connection to which it is not bound: the next one binds.
                    state.bond = Arc::default();
                    state.renew_at = now();
                }
            }
            Err(error @ Error::Lost(_)) => {
                drop(state);
                self.changed.notify_all();
                self.lose(error.clone());
                return;
            }
            Err(Error::Unavailable(_)) => state.renew_at = after(TRY_AGAIN.min(state.lease / 3)),
            Err(_) => state.renew_at = after(heartbeat(state.lease)),
        }
        drop(state);
        self.changed.notify_all();
        self.schedule();
    }

    /// Renews it, and waits for the answer: not for longer than it lasts, as far as is known. Without a lease it lasts as before.
    fn renew_now(self: &Arc<Self>, lease: Option<Duration>, until: Moment) -> Result<()> {
        let mut state = self.until_renewed(locked(&self.state), until);
        self.is_kept_here(&state)?;
        let as_before = if self.keeps(&state) { state.lease } else { left(state.until) };
        let lease = lease.unwrap_or(as_before);
        if std::mem::replace(&mut state.renewing, true) {
            return Err(silent());
        }
        drop(state);
        let mailbox = Arc::new(Mailbox::default());
        self.renew(lease, Box::new(mailbox.expect()));
        let until = locked(&self.state).deadline.min(until);
        mailbox.reply(until).unwrap_or_else(|| Err(silent()))?;
        // The answer may be later than its end by the own clock.
        self.still_held(true)
    }

    /// Waits for the renewal that is on its way, as long as it is held.
    fn until_renewed<'a>(&self, state: MutexGuard<'a, State>, until: Moment) -> MutexGuard<'a, State> {
        let time = left(state.deadline.min(until));
        let is_renewing = |state: &mut State| state.phase == Phase::Held && state.renewing;
        let waited = self.changed.wait_timeout_while(state, time, is_renewing);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Says that it is lost, once. True if it was this time.
    pub(crate) fn lose(&self, why: Error) -> bool {
        let mut state = locked(&self.state);
        if state.phase != Phase::Held {
            return false;
        }
        state.phase = Phase::Losing;
        state.why = Some(why);
        drop(state);
        self.ended("lost");
        let mut state = locked(&self.state);
        state.phase = Phase::Lost;
        let on_lost = std::mem::take(&mut state.on_lost);
        drop(state);
        self.changed.notify_all();
        call_all(on_lost);
        true
    }

    fn turn(&self, from: Phase, to: Phase) -> bool {
        let mut state = locked(&self.state);
        let turns = state.phase == from;
        if turns {
            state.phase = to;
        }
        turns
    }

    fn ended(&self, outcome: &'static str) {
        self.session.holds_no_more(self);
        if let Some(place) = locked(&self.state).place.take() {
            self.session.timer.forget(place);
        }
        let time = now().saturating_sub(self.granted);
        self.session.heard(&Event { label: &self.how.label, name: "held", outcome, time });
    }

    fn release(self: &Arc<Self>) -> Result<()> {
        let mut state = locked(&self.state);
        while matches!(state.phase, Phase::Releasing | Phase::Losing) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.phase != Phase::Held {
            // The next hold may have the same name.
            drop(state);
            return self.still_held(true);
        }
        state.phase = Phase::Releasing;
        let time = state.lease.min(AT_MOST);
        drop(state);
        let mailbox = Arc::new(Mailbox::default());
        let _pending = self.pending();
        let errand = Errand::new(self.pending(), vec![self.giving_back()], time);
        self.session.errand(errand, Box::new(mailbox.expect()));
        // The last try may be answered at the very end.
        let result = mailbox.reply(after(time + TRY_AGAIN)).unwrap_or_else(|| Err(silent())).map(drop);
        let phase = if result.is_ok() { Phase::Released } else { Phase::Held };
        self.turn(Phase::Releasing, phase);
        match &result {
            Ok(()) => self.ended("released"),
            Err(error @ Error::Lost(_)) => _ = self.lose(error.clone()),
            Err(_) if self.session.is_closed() => _ = self.lose(self.ended_by("its session is closed")),
            Err(_) => {
                self.leave();
                self.schedule();
            }
        }
        self.changed.notify_all();
        result
    }

    /// It is being given back as long as this is there.
    fn pending(&self) -> Pending {
        self.session.pending(&self.key, &self.owner)
    }

    fn giving_back(&self) -> Call {
        release(&self.session, &self.key, &self.owner, &self.release_id)
    }

    /// Gives it back behind everybody's back, once. What is not kept runs out meanwhile.
    fn leave(self: &Arc<Self>) {
        let mut state = locked(&self.state);
        if std::mem::replace(&mut state.left, true) {
            return;
        }
        let (lease, rest) = (state.lease, left(state.may_last));
        drop(state);
        let time = if self.how.keep { rest.max(IN_THE_END) } else { rest };
        let calls =
            what_gives_back(&self.session, &self.key, &self.owner, &self.how, lease, &self.release_id);
        let errand = Errand::new(self.pending(), calls, time).insisting(time);
        let held = Arc::clone(self);
        let then = move |result: Result<Value>| match result {
            Ok(Value::Nil) => {}
            Ok(_) if held.turn(Phase::Held, Phase::Released) => held.ended("released"),
            Err(error @ Error::Lost(_)) => _ = held.lose(error),
            _ => {}
        };
        self.session.errand(errand, Box::new(then));
    }

    fn still_held(&self, released_is_fine: bool) -> Result<()> {
        self.is_held(&locked(&self.state), released_is_fine)
    }

    fn is_held(&self, state: &State, released_is_fine: bool) -> Result<()> {
        match state.phase {
            Phase::Lost | Phase::Losing => {
                Err(state.why.clone().unwrap_or_else(|| self.ended_by("it is over")))
            }
            Phase::Released if !released_is_fine => Err(self.ended_by("it was given back")),
            _ => Ok(()),
        }
    }

    /// The same for what needs the hold for longer.
    fn is_kept_here(&self, state: &State) -> Result<()> {
        self.is_held(state, false)?;
        match (state.left, state.handing) {
            (true, _) => Err(self.ended_by("it is being given back")),
            (_, true) => Err(self.ended_by("it is being handed over")),
            _ => Ok(()),
        }
    }

    pub(crate) fn ended_by(&self, why: &str) -> Error {
        Error::Lost(format!("{}: {why}", String::from_utf8_lossy(&self.key)))
    }
}

impl Hold {
    pub(crate) fn new(held: Arc<Held>, token: Option<u64>, handle: Arc<Handle>) -> Hold {
        Hold { held, token, _handle: handle }
    }

    /// The key of the lock.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.held.key
    }

    /// Who holds it, as the server knows it: `<host>/<pid>/<random>`, or [as was said](crate::Lock::owner).
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.held.owner
    }

    /// Greater than that of every grant before; if the lock was asked for with [`fence`](crate::Lock::fence).
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        self.token
    }

    /// Whether it ended before it was given back: the server said so, or the lease is over.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        locked(&self.held.state).phase == Phase::Lost
    }

    /// Looks whether it is still held, without a question to the server.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if it is not, with the reason: what the server said, or that the lease is over.
    pub fn check(&self) -> Result<()> {
        self.held.still_held(false)
    }

    /// Waits until it is lost, and for so long at most. True if it is lost.
    pub fn wait_lost(&self, time: Duration) -> bool {
        let until = after(time);
        let mut state = locked(&self.held.state);
        while state.phase != Phase::Lost && !left(until).is_zero() {
            let waited = self.held.changed.wait_timeout(state, left(until));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.phase == Phase::Lost
    }

    /// Calls back when it is lost, in a thread of its own; at once, if it is lost already.
    pub fn on_lost(&self, callback: impl FnOnce() + Send + 'static) {
        let mut state = locked(&self.held.state);
        if state.phase == Phase::Lost {
            drop(state);
            return call_all(vec![Box::new(callback)]);
        }
        state.on_lost.push(Box::new(callback));
    }

    /// For how long nobody else can have the lock, whatever the network does. What is kept ends with its connection: when that
    /// breaks, this is zero until the server has said on another that the lock is still held. If the network ends the connection
    /// at the server's side alone, this is known at the next renewal, a third of the lease later, or 10 s.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        let state = locked(&self.held.state);
        let is_held = state.phase == Phase::Held && !state.left;
        if is_held && (!self.held.how.keep || state.bond.is_connected()) {
            return left(state.until);
        }
        Duration::ZERO
    }

    /// Sets the lease anew, from now on, shorter or longer. A shorter one counts from the call on, whatever comes of it. It is
    /// tried for as long as the hold lasts without it, for 30 s at most.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if there is nothing to extend; what else the server says, or that it says nothing.
    pub fn extend(&self, lease: Duration) -> Result<()> {
        let (held, until) = (&self.held, after(AT_MOST));
        let time = || left(locked(&held.state).deadline.min(until));
        loop {
            match held.renew_now(Some(lease), until) {
                Err(error) if held.session.may_pass(&error) => {
                    thread::sleep(TRY_AGAIN.min(time()));
                    if time().is_zero() {
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
    }

    /// The same, asked once, with as much time for the answer as any call has.
    ///
    /// # Errors
    ///
    /// As [`Hold::extend`].
    pub fn extend_once(&self, lease: Duration) -> Result<()> {
        self.held.renew_now(Some(lease), after(self.held.session.patience.min(AT_MOST)))
    }

    /// Carries out a command of Redis if the lock is still held, in the same step. It is never sent twice.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`], and then nothing was done, unless a script says so of another lock: whether this one is lost is known by
    /// then. What else the server says of the command.
    pub fn guard<W: ToRedisArgs>(&self, command: &[W]) -> Result<Value> {
        let held = &self.held;
        held.is_kept_here(&locked(&held.state))?;
        let mut guarded = cmd("LOCK.GUARD");
        guarded.arg(&held.key).arg("OWNER").arg(&held.owner).arg(command);
        let until = after(held.session.patience);
        let call = held.session.to(&held.key, &guarded).of_user();
        let result = held.session.call(&Arc::default(), call, until);
        if let Err(Error::Lost(_)) = &result {
            // It may be said of another lock. A renewal tells whether this one is lost.
            let _ = held.renew_now(None, after(held.session.patience));
        }
        result
    }

    /// Gives the lock back. It is tried for as long as the lease, 30 s at most, and goes on behind the caller's back then. If it
    /// fails, it may be called again, and counts once.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold had ended before; [`Error::Unavailable`] if the server does not say.
    pub fn release(&self) -> Result<()> {
        self.held.release()
    }

    /// Lets go of it without giving it back, and returns the owner, by which another process may
    /// [`attach`](crate::Locks::attach). Here it has ended as if it were released. It lasts for as long as its lease; if it is
    /// kept, until this session ends or the other has attached, without a lease.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if there is nothing to hand over. [`Error::Unavailable`] if a renewal is on its way for too long: then it
    /// is not handed over.
    pub fn hand_over(&self) -> Result<String> {
        let held = &self.held;
        let mut state = locked(&held.state);
        if held.how.keep && !state.bond.is_connected() {
            // It may have ended with its connection.
            let lease = state.lease;
            drop(state);
            self.extend(lease)?;
            state = locked(&held.state);
        }
        held.is_kept_here(&state)?;
        state.handing = true;
        // What is on its way would bind it here again, or change the lease that the other has asked for.
        state = held.until_renewed(state, after(AT_MOST));
        state.handing = false;
        if state.phase == Phase::Held && !state.renewing {
            state.phase = Phase::Released;
            drop(state);
            held.ended("released");
            return Ok(held.owner.clone());
        }
        let held_yet = held.is_held(&state, false);
        let why = if state.phase == Phase::Held { silent() } else { held.ended_by("it is being given back") };
        drop(state);
        held.schedule();
        Err(held_yet.err().unwrap_or(why))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.held.turn(Phase::Held, Phase::Released) {
            self.held.leave();
            self.held.ended("released");
        }
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key = String::from_utf8_lossy(&self.held.key);
        let mut shown = f.debug_struct("Hold");
        shown.field("key", &key).field("owner", &self.held.owner).field("token", &self.token);
        shown.field("lost", &self.is_lost()).finish_non_exhaustive()
    }
}

/// User code may take its time.
fn call_all(callbacks: Vec<Box<dyn FnOnce() + Send>>) {
    if callbacks.is_empty() {
        return;
    }
    let work = move || callbacks.into_iter().for_each(|callback| callback());
    let _ = thread::Builder::new().name("redis-lock-lost".to_owned()).spawn(work);
}

/// When the next renewal of what is kept is due, after the last.
fn heartbeat(lease: Duration) -> Duration {
    (lease / 3).min(HEARTBEAT)
}

fn release(session: &Session, key: &[u8], owner: &str, id: &str) -> Call {
    session.to(key, cmd("LOCK.RELEASE").arg(key).arg(owner).arg("ID").arg(id))
}

/// What gives it back, and what has it run out if that is refused.
pub(crate) fn what_gives_back(
    session: &Session,
    key: &[u8],
    owner: &str,
    how: &How,
    lease: Duration,
    id: &str,
) -> Vec<Call> {
    let last = last_renewal(session, key, owner, how, lease);
    std::iter::once(release(session, key, owner, id)).chain(last).collect()
}

/// The server renews what is kept no longer than this says, so that it runs out.
pub(crate) fn last_renewal(
    session: &Session,
    key: &[u8],
    owner: &str,
    how: &How,
    lease: Duration,
) -> Option<Call> {
    let mut command = renewal(key, owner, lease);
    how.bind(&mut command, Some(Duration::ZERO));
    how.keep.then(|| session.to(key, &command))
}

pub(crate) fn renewal(key: &[u8], owner: &str, lease: Duration) -> Cmd {
    cmd("LOCK.RENEW").arg(key).arg(owner).arg("PX").arg(crate::lock::ms(lease)).clone()
}
