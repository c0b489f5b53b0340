// SPDX-License-Identifier: MIT

//! Calls of sessions: open, resume, poll and close.

use super::{calls, LockManager, OpenLock, StepOutput};
use crate::core::manager::step::Step;
use crate::core::owner::AffectedOwners;
use crate::core::sessions::{Acknowledged, Answer, NumberState};
use crate::core::table::LockIdx;
use crate::core::{
    CallNumber, ConnectionId, Counted, Decision, Known, Late, LockId, LockRef, LossReason, NewSession,
    NotRenewed, Now, OtherTarget, Owner, Renewal, Session, SessionId, SessionKey, WaiterId,
};

/// The arguments of `LOCK.EVENTS`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Poll {
    /// The number of this call among the session's OPEN and EVENTS calls (R16).
    pub(crate) beat: u64,
    /// Sequence number of the last event that the client has handled.
    pub(crate) seq: u64,
    /// The client knows the answers of all acquires with smaller numbers (R11).
    pub(crate) done: u64,
    /// The calling connection.
    pub(crate) reader: Option<ConnectionId>,
}

impl LockManager {
    /// Opens a new session.
    pub(crate) fn open_session(
        &mut self,
        new: NewSession,
        beat: u64,
        reader: Option<ConnectionId>,
        now: Now,
    ) -> SessionKey {
        self.parts.statistics.count(Counted::SessionOpened);
        self.parts.sessions.open(new, beat, reader, now.mono)
    }

    /// Resumes a session over another connection. Returns the sequence number of the last acknowledged event.
    pub(crate) fn resume_session(
        &mut self,
        key: SessionKey,
        beat: u64,
        reader: Option<ConnectionId>,
        now: Now,
    ) -> Result<u64, Late> {
        self.hear(key, beat, reader, now)?;
        Ok(self.parts.sessions.get(key).map_or(0, |session| session.event_range().0))
    }

    /// Records that the client is alive. Its waits are no longer passed over (R15).
    fn hear(
        &mut self,
        key: SessionKey,
        beat: u64,
        reader: Option<ConnectionId>,
        now: Now,
    ) -> Result<(), Late> {
        self.parts.input_at = now;
        self.parts.sessions.hear(key, beat, reader, now.mono)?;
        if self.parts.sessions.passes_over() {
            self.parts.trust(key);
        }
        Ok(())
    }

    /// Handles an EVENTS: extends the deadline, acknowledges the events up to `seq` and confirms their grants.
    pub(crate) fn poll_session(&mut self, key: SessionKey, poll: Poll, now: Now) -> Result<(), Late> {
        self.hear(key, poll.beat, poll.reader, now)?;
        while let Some(acknowledged) = self.parts.sessions.acknowledge(key, poll.seq) {
            if let Acknowledged::Grant(id, content) = acknowledged {
                self.parts.confirm_grant_of_session(id, content, now);
            }
        }
        if let Some(session) = self.parts.sessions.get_mut(key) {
            session.forget_below(poll.done);
        }
        if self.parts.any_losses() {
            self.parts.report_losses(None);
        }
        Ok(())
    }

    /// Revokes the renewed grants among the next `count` events of a session that are too old to be delivered.
    /// Call it before a reply with events. Returns whether any lock needs a step.
    pub(crate) fn revoke_stale_grants(&mut self, key: SessionKey, count: usize, now: Now) -> bool {
        self.parts.input_at = now;
        self.parts.revoke_stale_grants(key, count, now)
    }

    /// Ends a session. Returns the number of holds that this releases.
    pub(crate) fn close_session(&mut self, key: SessionKey, now: Now) -> usize {
        self.parts.input_at = now;
        let released = self.parts.sessions.get(key).map_or(0, Session::released_by_end);
        self.parts.end_session(key);
        self.parts.end_sessions(now);
        released
    }

    /// Checks the deadlines of sessions, once per round of the timer. `runs` is false if the server is paused
    /// or cannot write.
    pub(crate) fn check_sessions(&mut self, runs: bool, now: Now) {
        let is_empty = self.parts.sessions.is_empty();
        self.parts.sessions.begin_round(runs || is_empty, now.mono);
        if is_empty {
            return;
        }
        self.parts.input_at = now;
        if runs {
            self.parts.check_sessions(now);
        }
    }

    /// Returns the session with this id.
    pub(crate) fn find_session(&self, id: &SessionId) -> Option<SessionKey> {
        self.parts.sessions.find(id)
    }

    /// Returns a session that has not ended.
    pub(crate) fn session(&self, key: SessionKey) -> Option<&Session> {
        self.parts.sessions.get(key)
    }

    /// Iterates over all sessions, in no particular order.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (SessionKey, &Session)> {
        self.parts.sessions.iter()
    }

    /// Returns the number of sessions.
    pub(crate) fn session_count(&self) -> usize {
        self.parts.sessions.len()
    }

    /// Returns the number of suspect sessions, whose waits are passed over.
    pub(crate) fn suspect_sessions(&self) -> usize {
        self.parts.sessions.suspects()
    }

    /// Records whether an EVENTS of the session is blocked until an event.
    pub(crate) fn set_polled(&mut self, key: SessionKey, is_polled: bool) {
        self.parts.sessions.set_polled(key, is_polled);
    }

    /// Takes the next session whose blocked EVENTS must be answered.
    pub(crate) fn next_woken(&mut self) -> Option<SessionKey> {
        self.parts.sessions.next_woken()
    }

    /// Whether any lease is due for renewal. Until it is renewed, no EVENTS is answered (R4).
    pub(crate) fn renewals_are_due(&self, now: Now) -> bool {
        self.parts.bindings.next_renewal().is_some_and(|at| at <= now.mono)
    }

    /// Records that the event of a grant was sent, so the client may rely on it.
    pub(crate) fn sent(&mut self, key: SessionKey, n: u64) {
        if self.parts.waiters.bundles.is_empty() {
            return;
        }
        if let Some(id) = self.parts.sessions.get(key).and_then(|session| session.in_flight(n)) {
            self.parts.waiters.bundles.answered(id);
        }
    }

    /// Returns the state of the number of a call for several locks. Call it after the check of each lock.
    pub(crate) fn known_number(&self, number: CallNumber) -> Known {
        self.parts.sessions.get(number.session).map_or(Known::Late, |session| session.known(number))
    }

    /// Records that the locks of a call were busy, for repeated calls.
    pub(crate) fn note_busy(&mut self, number: CallNumber) {
        self.parts.answer_number(number, Answer::Busy);
    }

    /// Returns the reply to an earlier release of this number: the holds left on each lock.
    pub(crate) fn released_before(&self, number: CallNumber) -> Option<Vec<i64>> {
        match self.parts.sessions.get(number.session)?.state(number) {
            Ok(Some(NumberState::Answered(Answer::Released(left)))) => Some(left.to_vec()),
            _ => None,
        }
    }

    /// Records the holds that a release left on each of several locks, for repeated calls.
    pub(crate) fn note_released(&mut self, number: CallNumber, left: &[i64]) {
        self.parts.answer_number(number, Answer::Released(left.iter().copied().collect()));
    }

    /// Checks whether this renewal will succeed. Changes nothing except due work.
    pub(crate) fn check_renewal(
        &mut self,
        open: OpenLock<'_>,
        renewal: &Renewal,
    ) -> (Result<(), NotRenewed>, StepOutput) {
        let mut step = Step::begin(&mut self.parts, open, AffectedOwners::Only(&renewal.owner));
        let result = calls::check_renewal(&mut step, renewal);
        (result, step.finish())
    }

    /// Returns the number and the locks that a cancel concerns. A cancel names one lock of a call for several
    /// locks, and undoes the call for all of them. Without any locks left, the number is cancelled as given.
    pub(crate) fn to_cancel(
        &self,
        number: CallNumber,
        lock: LockRef<'_>,
        owner: &Owner,
    ) -> Result<(CallNumber, Vec<LockId>), OtherTarget> {
        let parts = &self.parts;
        let session = parts.sessions.get(number.session);
        let Some((target, state)) = session.and_then(|session| session.several(number.n)) else {
            return Ok((number, Vec::new()));
        };
        let holds: Vec<(LockIdx, &Owner)> = match state {
            NumberState::Waiting(id) | NumberState::InFlight(id) => {
                let waits = parts.waiters.together(*id).into_iter().filter_map(|id| parts.waiters.get(id));
                waits.map(|wait| (wait.lock(), &wait.request().owner)).collect()
            }
            NumberState::Held(held) => held.holds.iter().map(|hold| (hold.lock, &hold.owner)).collect(),
            NumberState::Answered(_) => return Ok((CallNumber { target, ..number }, Vec::new())),
        };
        let locks: Vec<LockId> = holds.iter().filter_map(|(lock, _)| parts.name(*lock)).collect();
        // The client may name a lock that it has lost.
        let is_one = |of: &LockId| {
            of.db == lock.db
                && (*of.key == *lock.key || session.is_some_and(|of| of.is_partly_lost(number.n)))
        };
        if !locks.iter().any(is_one) || holds.iter().any(|(_, of)| *of != owner) {
            return Err(OtherTarget);
        }
        Ok((CallNumber { target, ..number }, locks))
    }

    /// Passes the decision about a wait with `REPLICAS` to its session.
    pub(crate) fn tell_session(&mut self, number: CallNumber, id: WaiterId, decision: Decision) {
        if matches!(decision, Decision::Granted(_) | Decision::GrantedAll(_)) {
            self.acknowledged(id);
        }
        self.parts.decide_number(number, id, decision);
    }

    /// Records that too few replicas acknowledged the grant of this number.
    pub(crate) fn note_unacknowledged(&mut self, number: CallNumber) {
        self.parts.lose_wait(number.session, number.n, LossReason::NoReplicas);
    }

    /// Returns the number of a wait that belongs to a session.
    pub(crate) fn number_of(&self, id: WaiterId) -> Option<CallNumber> {
        self.parts.waiters.get(id)?.request().number().map(|call| call.number)
    }

    /// Records that the wait of this number ends because of a deadlock.
    pub(crate) fn note_deadlocked(&mut self, number: CallNumber) {
        self.parts.lose_wait(number.session, number.n, LossReason::Deadlock);
    }
}
