// SPDX-License-Identifier: MIT

//! Sessions: the presence of clients on this server.
//!
//! A session outlives its connections. Each acquire of a session has a number, and numbers grow. A call that
//! arrives late names a number that has already ended, so it changes nothing. Sessions are kept in memory
//! only: a restart or a failover ends all of them, and their holds last until their leases expire. Rules such
//! as R5 are those of `docs/sessions.md`.
//!
//! * [`ids`]: the identities of sessions and of their acquires.
//! * [`session`]: one session, with its clock, its numbers and its events.
//! * [`number`]: the state of each acquire. [`numbers`]: the acquires of one session.
//! * [`events`]: the events that the client has not acknowledged.

mod events;
mod ids;
mod number;
mod numbers;
mod session;
#[cfg(test)]
mod verify;

pub(crate) use events::{EventContent, LossReason};
pub(crate) use ids::{CallNumber, Late, OtherTarget, SessionId, SessionKey, Target};
pub(in crate::core) use number::{Answer, NumberState, NumberedHold};
use numbers::EndingNumbers;
pub(in crate::core) use session::{Acknowledged, ParkedWait};
pub(crate) use session::{NewSession, Session};

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foldhash::HashMap;

use super::request::Request;
use super::schedule::{Calendar, Schedule};
use super::spare::free_spare;
use super::table::LockIdx;
use super::{ConnectionId, Known, MonoUs, Owner, WaiterId, WallMs};

/// Delay before the timer checks a passed deadline again, in microseconds. In between, the server reads the
/// input that arrived while it stalled, and clients can connect again.
const RECHECK_US: MonoUs = 100_000;

/// A hold or a grant in flight that ended without a call of its session.
pub(in crate::core) struct Loss {
    pub(in crate::core) session: SessionKey,
    pub(in crate::core) n: u64,
    /// The lock and the owner of the hold. `None` for a wait or a grant in flight.
    pub(in crate::core) hold: Option<(LockIdx, Owner)>,
    /// End of the lease that this server wrote last.
    pub(in crate::core) lease_end: WallMs,
    /// The reason, if known.
    pub(in crate::core) why: Option<LossReason>,
}

/// The result of a session's check by the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Checked {
    /// The session's deadline has passed.
    Over(SessionKey),
    /// The client has not acknowledged the grant of this number in time.
    Overdue(SessionKey, u64),
}

/// The sessions of this server.
#[derive(Default)]
pub(in crate::core) struct Sessions {
    by_id: HashMap<SessionId, SessionKey>,
    sessions: HashMap<SessionKey, Box<Session>>,
    last_key: u64,
    /// Sessions by reader.
    readers: BTreeSet<(ConnectionId, SessionKey)>,
    /// Times of the next checks. A time may be too early, because calls of the client do not move it.
    checks: Calendar<MonoUs, SessionKey>,
    /// Deadlines of waits that are passed over.
    parked_deadlines: Schedule<MonoUs, (SessionKey, WaiterId)>,
    /// Whether the server was paused, or could not write, in the last round of the timer.
    is_paused: bool,
    /// Time of the first round after the last pause.
    resumed_at: Option<MonoUs>,
    /// Ended sessions that still have numbers to clean up.
    ending: VecDeque<(SessionKey, EndingNumbers)>,
    /// Sessions whose blocked EVENTS must be answered.
    woken: Vec<SessionKey>,
    /// Number of suspect sessions.
    suspects: usize,
    /// Waits that joined their queues again after their sessions ceased to be suspect.
    unparked: HashMap<LockIdx, Vec<WaiterId>>,
}

impl Sessions {
    pub(in crate::core) fn open(
        &mut self,
        new: NewSession,
        beat: u64,
        reader: Option<ConnectionId>,
        now: MonoUs,
    ) -> SessionKey {
        self.last_key += 1;
        let key = SessionKey(self.last_key);
        self.by_id.insert(new.id, key);
        let mut session = Session::new(new, beat, now);
        plan(&mut self.checks, key, &mut session);
        self.sessions.insert(key, Box::new(session));
        self.set_reader(key, reader);
        key
    }

    pub(in crate::core) fn find(&self, id: &SessionId) -> Option<SessionKey> {
        self.by_id.get(id).copied()
    }

    pub(in crate::core) fn get(&self, key: SessionKey) -> Option<&Session> {
        self.sessions.get(&key).map(Box::as_ref)
    }

    /// Returns the session of a number, mutably.
    pub(in crate::core) fn of(&mut self, number: CallNumber) -> Option<&mut Session> {
        self.get_mut(number.session)
    }

    pub(in crate::core) fn get_mut(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.sessions.get_mut(&key).map(Box::as_mut)
    }

    /// Whether this number is new to its session.
    pub(in crate::core) fn is_new(&self, number: CallNumber) -> bool {
        self.get(number.session).is_some_and(|session| session.known(number) == Known::New)
    }

    pub(in crate::core) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    pub(in crate::core) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the number of suspect sessions.
    pub(in crate::core) fn suspects(&self) -> usize {
        self.suspects
    }

    /// Returns the number of entries in all tables.
    pub(in crate::core) fn table_len(&self) -> usize {
        let sessions = self.sessions.len() + self.by_id.len() + self.readers.len() + self.checks.len();
        let parked = self.parked_deadlines.len() + self.unparked.len();
        sessions + self.ending.len() + self.woken.len() + parked
    }

    pub(in crate::core) fn iter(&self) -> impl Iterator<Item = (SessionKey, &Session)> {
        self.sessions.iter().map(|(key, session)| (*key, &**session))
    }

    /// Records an OPEN or EVENTS of the client: extends the deadline and makes `reader` the session's reader.
    /// Fails if the call is late.
    pub(in crate::core) fn hear(
        &mut self,
        key: SessionKey,
        beat: u64,
        reader: Option<ConnectionId>,
        now: MonoUs,
    ) -> Result<(), Late> {
        let Some(session) = self.sessions.get_mut(&key).filter(|session| beat > session.beat) else {
            return Err(Late);
        };
        session.beat = beat;
        session.heard_at = now;
        session.deadline = now.saturating_add(session.new.ttl_us);
        let was_passed = session.passed.take().is_some();
        if session.reader != reader {
            self.set_reader(key, reader);
        }
        if was_passed {
            self.plan(key);
        }
        Ok(())
    }

    fn set_reader(&mut self, key: SessionKey, reader: Option<ConnectionId>) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if let Some(before) = std::mem::replace(&mut session.reader, reader) {
            self.readers.remove(&(before, key));
        }
        if let Some(reader) = reader {
            self.readers.insert((reader, key));
        }
    }

    /// Whether this connection is the reader of any session.
    pub(in crate::core) fn reads(&self, connection: ConnectionId) -> bool {
        let from = (connection, SessionKey(0));
        self.readers.range(from..).next().is_some_and(|(of, _)| *of == connection)
    }

    /// Handles a closed connection: the sessions whose reader it was end after their grace. Returns those
    /// whose grace is 0, which end at once.
    pub(in crate::core) fn connection_closed(
        &mut self,
        connection: ConnectionId,
        now: MonoUs,
    ) -> Vec<SessionKey> {
        let mut over = Vec::new();
        let of = self.readers.range((connection, SessionKey(0))..=(connection, SessionKey(u64::MAX)));
        for key in of.map(|(_, key)| *key).collect::<Vec<_>>() {
            self.set_reader(key, None);
            let Some(session) = self.sessions.get_mut(&key) else { continue };
            if session.new.grace_us == 0 {
                over.push(key);
                continue;
            }
            session.deadline = session.deadline.min(now.saturating_add(session.new.grace_us));
            self.plan(key);
        }
        over
    }

    /// Moves the next check of a session forward if it is due earlier.
    fn plan(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.get_mut(&key) {
            plan(&mut self.checks, key, session);
        }
    }

    /// Returns the time of the next check.
    pub(in crate::core) fn next_check(&self) -> Option<MonoUs> {
        self.checks.first()
    }

    /// Starts a round of the timer. `runs` is false if the server is paused or cannot write.
    pub(in crate::core) fn begin_round(&mut self, runs: bool, now: MonoUs) {
        if std::mem::replace(&mut self.is_paused, !runs) && runs && !self.is_empty() {
            self.resumed_at = Some(now);
        }
    }

    /// Returns the next session whose deadline has passed, or whose grant is overdue. A deadline counts only if
    /// the timer finds it passed twice: in between, the server reads all input that arrived before the deadline.
    /// After a pause, the clients first get the time to call again.
    pub(in crate::core) fn check(&mut self, now: MonoUs) -> Option<Checked> {
        loop {
            let key = self.checks.pop_due(now)?;
            let Some(session) = self.sessions.get_mut(&key) else { continue };
            session.check_at = None;
            let resumed = self.resumed_at.map(|at| at.saturating_add(session.patience_us()));
            if let Some(counts_from) = resumed.filter(|at| *at > now) {
                session.passed = None;
                self.checks.set(key, &mut session.check_at, Some(counts_from));
                continue;
            }
            if let Some(found_at) = session.passed.filter(|at| *at < now) {
                if session.deadline <= found_at {
                    return Some(Checked::Over(key));
                }
                if let Some(n) = session.overdue_by(found_at) {
                    // Further grants may be overdue.
                    self.checks.set(key, &mut session.check_at, Some(now));
                    return Some(Checked::Overdue(key, n));
                }
            }
            let at = session.next_check();
            let is_passed = at <= now;
            session.passed = is_passed.then_some(now);
            let at = if is_passed { now.saturating_add(RECHECK_US) } else { at };
            self.checks.set(key, &mut session.check_at, Some(at));
        }
    }

    /// Marks a session as suspect: its waits are passed over until the client's next call. Returns whether it
    /// was not suspect before.
    pub(in crate::core) fn suspect(&mut self, key: SessionKey) -> bool {
        let Some(session) = self.sessions.get_mut(&key) else { return false };
        let is_new = !std::mem::replace(&mut session.is_suspect, true);
        self.suspects += usize::from(is_new);
        self.plan(key);
        is_new
    }

    /// Whether any session is suspect or ending. Otherwise no wait is passed over.
    pub(in crate::core) fn passes_over(&self) -> bool {
        self.suspects > 0 || !self.ending.is_empty()
    }

    /// Whether the waits of this session are passed over.
    pub(in crate::core) fn is_passed_over(&self, key: SessionKey) -> bool {
        self.sessions.get(&key).is_none_or(|session| session.is_suspect)
    }

    /// Keeps a wait that was passed over.
    pub(in crate::core) fn park(&mut self, key: SessionKey, id: WaiterId, parked: ParkedWait) {
        if let Some(session) = self.sessions.get_mut(&key) {
            self.parked_deadlines.set(&(key, id), parked.wait.deadline);
            session.parked.insert(id, parked);
        }
    }

    /// Removes and returns a parked wait.
    pub(in crate::core) fn unpark_one(&mut self, key: SessionKey, id: WaiterId) -> Option<ParkedWait> {
        let session = self.sessions.get_mut(&key)?;
        self.parked_deadlines.set(&(key, id), None);
        session.parked.remove(&id)
    }

    /// Removes and returns the next wait that was passed over, and whose deadline has passed.
    pub(in crate::core) fn pop_parked(&mut self, now: MonoUs) -> Option<(WaiterId, ParkedWait)> {
        loop {
            let (key, id) = self.parked_deadlines.pop_due(now)?;
            if let Some(parked) = self.unpark_one(key, id) {
                return Some((id, parked));
            }
        }
    }

    /// Time of the next deadline of a wait that is passed over.
    pub(in crate::core) fn next_parked_deadline(&self) -> Option<MonoUs> {
        self.parked_deadlines.first()
    }

    /// Ends the suspicion. Returns the waits to queue again.
    pub(in crate::core) fn trust(&mut self, key: SessionKey) -> BTreeMap<WaiterId, ParkedWait> {
        let Some(session) = self.sessions.get_mut(&key) else { return BTreeMap::new() };
        self.suspects -= usize::from(std::mem::take(&mut session.is_suspect));
        let parked = std::mem::take(&mut session.parked);
        parked.keys().for_each(|id| self.parked_deadlines.set(&(key, *id), None));
        parked
    }

    /// Records that a parked wait is queued again. The next step of its lock moves it ahead if its owner has
    /// become a holder in the meantime.
    pub(in crate::core) fn note_unparked(&mut self, lock: LockIdx, id: WaiterId) {
        self.unparked.entry(lock).or_default().push(id);
    }

    /// Takes the parked waits that joined this lock's queue again.
    pub(in crate::core) fn take_unparked(&mut self, lock: LockIdx) -> Vec<WaiterId> {
        if self.unparked.is_empty() {
            return Vec::new();
        }
        let waits = self.unparked.remove(&lock).unwrap_or_default();
        free_spare(&mut self.unparked);
        waits
    }

    /// Records the grant of a waiting acquire as an event.
    pub(in crate::core) fn granted(
        &mut self,
        number: CallNumber,
        id: WaiterId,
        content: EventContent,
        now: MonoUs,
    ) {
        let Some(session) = self.sessions.get_mut(&number.session) else { return };
        session.granted(number.n, id, content, now);
        plan(&mut self.checks, number.session, session);
        if std::mem::take(&mut session.is_polled) {
            self.woken.push(number.session);
        }
    }

    /// Records the end of a hold, a wait or a grant in flight.
    pub(in crate::core) fn lose(&mut self, loss: &Loss, why: LossReason, now: MonoUs) {
        let Some(session) = self.sessions.get_mut(&loss.session) else { return };
        let at = loss.hold.as_ref().map(|(lock, owner)| (*lock, owner));
        if session.lose(loss.n, at, why, now) {
            self.wake(loss.session);
        }
    }

    /// Records that another owner waits for the lock that a number holds.
    pub(in crate::core) fn contended(&mut self, key: SessionKey, n: u64, now: MonoUs) {
        if self.sessions.get_mut(&key).is_some_and(|session| session.contended(n, now)) {
            self.wake(key);
        }
    }

    /// Records whether an EVENTS of the session is blocked until an event.
    pub(in crate::core) fn set_polled(&mut self, key: SessionKey, is_polled: bool) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.is_polled = is_polled;
        }
    }

    fn wake(&mut self, key: SessionKey) {
        let polled = self.sessions.get_mut(&key).map(|session| std::mem::take(&mut session.is_polled));
        if polled == Some(true) {
            self.woken.push(key);
        }
    }

    /// Takes the next session whose blocked EVENTS must be answered.
    pub(in crate::core) fn next_woken(&mut self) -> Option<SessionKey> {
        self.woken.pop()
    }

    /// Acknowledges the events up to `seq`. Removes and returns the first of them; call it until `None`.
    pub(in crate::core) fn acknowledge(&mut self, key: SessionKey, seq: u64) -> Option<Acknowledged> {
        self.sessions.get_mut(&key)?.acknowledge(seq)
    }

    /// Ends a session permanently: its id is unknown from now on. Its holds and waits end in portions. Returns
    /// its parked waits, which have ended.
    pub(in crate::core) fn end(&mut self, key: SessionKey) -> Vec<(WaiterId, Request)> {
        self.set_reader(key, None);
        self.wake(key);
        let Some(mut session) = self.sessions.remove(&key) else { return Vec::new() };
        self.suspects -= usize::from(session.is_suspect);
        self.by_id.remove(&session.new.id);
        self.checks.set(key, &mut session.check_at, None);
        free_spare(&mut self.sessions);
        free_spare(&mut self.by_id);
        let parked = std::mem::take(&mut session.parked);
        parked.keys().for_each(|id| self.parked_deadlines.set(&(key, *id), None));
        self.ending.push_back((key, session.into_ending()));
        parked.into_iter().map(|(id, parked)| (id, parked.wait.request)).collect()
    }

    /// The handles of all sessions.
    pub(in crate::core) fn keys(&self) -> Vec<SessionKey> {
        self.sessions.keys().copied().collect()
    }

    /// Takes the next number of an ending session. Its parked waits are dropped.
    pub(in crate::core) fn take_ended(&mut self) -> Option<(SessionKey, u64, NumberState)> {
        loop {
            let (key, numbers) = self.ending.front_mut()?;
            if let Some((n, state)) = numbers.take_newest() {
                return Some((*key, n, state));
            }
            self.ending.pop_front();
        }
    }

    /// Whether any session is ending.
    pub(in crate::core) fn any_ending(&self) -> bool {
        !self.ending.is_empty()
    }
}

/// Moves the next check of a session forward if it is due earlier.
fn plan(checks: &mut Calendar<MonoUs, SessionKey>, key: SessionKey, session: &mut Session) {
    let at = session.next_check();
    if session.passed.is_none() && session.check_at.is_none_or(|planned| at < planned) {
        checks.set(key, &mut session.check_at, Some(at));
    }
}
