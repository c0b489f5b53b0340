// SPDX-License-Identifier: MIT

//! Holds, waits and grants of sessions.

use std::num::NonZeroU64;

use super::Parts;
use crate::core::bindings::binding::BoundNumber;
use crate::core::lease::Lease;
use crate::core::queue::wait::{NewWait, Wait};
use crate::core::sessions::{Answer, Checked, Loss, NumberState, NumberedHold, ParkedWait, SessionKey};
use crate::core::table::LockIdx;
use crate::core::{
    CallNumber, Counted, Decision, EventContent, LossReason, MonoUs, Now, NumberedCall, Owner, Reply,
    Request, Session, WaiterId, WallMs,
};

/// Returns the end of the renewals of a hold with this maximum age.
pub(in crate::core::manager) fn call_until(max_ms: Option<NonZeroU64>, now: Now) -> Option<MonoUs> {
    max_ms.map(|ms| now.mono.saturating_add(ms.get().saturating_mul(1000)))
}

impl Parts {
    /// Binds a hold to its session and number. `held_since` is the time of the grant if the hold is the
    /// owner's first.
    pub(in crate::core::manager) fn bind_number(
        &mut self,
        lock: LockIdx,
        owner: &Owner,
        call: NumberedCall,
        reply: Reply,
        held_since: Option<MonoUs>,
        lease: Lease,
    ) {
        let now = self.input_at;
        let NumberedCall { number, renewed, ephemeral, max_ms } = call;
        let Some(session) = self.sessions.of(number) else { return };
        let mode = reply.mode;
        session.holds(number, NumberedHold { lock, owner: owner.clone(), ephemeral, reply });
        let until = call_until(max_ms, now);
        let bound = BoundNumber { session: number.session, n: number.n, mode, renewed, until, ended: false };
        self.bindings.bind_number(lock, owner, bound, held_since, lease, now);
        self.statistics.has_bound(self.bindings.count());
    }

    /// The owner's grants in flight that have a number, in order.
    pub(in crate::core::manager) fn numbered_grants<'a>(
        &'a self,
        lock: LockIdx,
        owner: &'a Owner,
    ) -> impl Iterator<Item = (WaiterId, &'a Wait)> {
        let in_flight =
            self.state(lock).into_iter().flat_map(move |state| state.unconfirmed().in_flight_to(owner));
        let waits = in_flight.filter_map(|id| Some((id, self.waiters.get(id)?)));
        waits.filter(|(_, wait)| wait.request().number().is_some())
    }

    /// The owners of this lock that have numbers.
    pub(in crate::core::manager) fn owners_with_numbers(&self, lock: LockIdx) -> Vec<Owner> {
        let in_flight = self.state(lock).into_iter().flat_map(|state| state.unconfirmed().in_flight());
        let grants = in_flight.filter_map(|id| self.waiters.get(id)).map(Wait::request);
        let of_grants =
            grants.filter(|request| request.number().is_some()).map(|request| request.owner.clone());
        let mut owners = self.bindings.owners_with_numbers(lock);
        owners.extend(of_grants);
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    /// Records that a grant in flight of a session has lost its hold.
    pub(in crate::core::manager) fn note_lost_grant(&mut self, id: WaiterId) {
        if let Some(call) = self.waiters.get(id).and_then(|wait| wait.request().number()) {
            let CallNumber { session, n, .. } = call.number;
            self.losses.push(Loss { session, n, hold: None, lease_end: WallMs::MAX, why: None });
        }
    }

    /// Passes the decision about a wait to its session.
    pub(in crate::core::manager) fn decide_number(
        &mut self,
        number: CallNumber,
        id: WaiterId,
        decision: Decision,
    ) {
        let now = self.input_at.mono;
        let why = match decision {
            Decision::Granted(reply) => {
                self.sessions.granted(number, id, EventContent::Granted(reply), now);
                return;
            }
            Decision::GrantedAll(replies) => {
                self.sessions.granted(number, id, EventContent::GrantedAll(replies), now);
                return;
            }
            Decision::TimedOut => LossReason::TimedOut,
            Decision::WrongType => LossReason::WrongType,
            Decision::Moved => LossReason::Moved,
            Decision::Lost => LossReason::Deleted,
            Decision::Refused(_) => LossReason::Refused,
            // The session's own calls or its end cause these, so they need no event.
            Decision::Superseded | Decision::Cancelled | Decision::Demoted => return,
        };
        self.lose_wait(number.session, number.n, why);
    }

    /// Records the end of a session's wait or grant in flight.
    pub(in crate::core::manager) fn lose_wait(&mut self, session: SessionKey, n: u64, why: LossReason) {
        let loss = Loss { session, n, hold: None, lease_end: 0, why: Some(why) };
        self.sessions.lose(&loss, why, self.input_at.mono);
    }

    /// Confirms the grant in flight of a number, because its client knows of it. Returns whether the hold
    /// still exists.
    pub(in crate::core::manager) fn confirm_number(&mut self, number: CallNumber, now: Now) -> bool {
        let Some((id, content)) = self.sessions.of(number).and_then(|session| session.take_grant(number.n))
        else {
            return false;
        };
        self.confirm_grant_of_session(id, content, now)
    }

    /// Confirms a grant in flight, so that it is no longer revoked. Returns whether the hold still exists.
    pub(in crate::core::manager) fn confirm_grant_of_session(
        &mut self,
        id: WaiterId,
        content: EventContent,
        now: Now,
    ) -> bool {
        match content {
            EventContent::Granted(reply) => self.confirm_hold_of_session(id, reply, now),
            EventContent::GrantedAll(replies) => {
                let mut stands = true;
                for (id, reply) in self.waiters.together(id).into_iter().zip(replies.iter()) {
                    stands &= self.confirm_hold_of_session(id, reply.clone(), now);
                }
                stands
            }
            EventContent::Lost(_) | EventContent::Contended => false,
        }
    }

    /// Confirms the grant of one lock to a session. Returns whether the hold still exists.
    fn confirm_hold_of_session(&mut self, id: WaiterId, reply: Reply, now: Now) -> bool {
        let Some((wait, lease)) = self.confirm(id, now) else { return false };
        let request = wait.request();
        let Some(call) = request.number() else { return true };
        let held_since = wait.begins().then(|| wait.since());
        self.bind_number(wait.lock(), &request.owner, call, reply, held_since, lease);
        if request.awaits_replicas {
            self.unwatch_lease(wait.lock());
        }
        self.drop_if_idle(wait.lock());
        true
    }

    /// Whether a wait is passed over, because its session is suspect or has ended.
    pub(in crate::core::manager) fn is_passed_over(&self, wait: &Wait) -> bool {
        // Nearly always, no session is suspect or ending.
        self.sessions.passes_over()
            && wait.request().number().is_some_and(|call| self.sessions.is_passed_over(call.number.session))
    }

    /// Parks a wait outside its queue while its session is suspect, or drops it if the session has ended.
    pub(in crate::core::manager) fn pass_over(&mut self, id: WaiterId) {
        let Some(wait) = self.take_out(id) else { return };
        let Some(name) = self.name(wait.lock()) else { return };
        let Some(NumberedCall { number, .. }) = wait.request().number() else {
            return defect!("a wait without a session is passed over");
        };
        if wait.is_member() {
            // The call waits for several locks. A wait for several locks cannot be parked.
            self.forget_requirement(id, wait.request());
            return self.lose_wait(number.session, number.n, LossReason::Overdue);
        }
        let wait = NewWait {
            lock: wait.lock(),
            deadline: wait.deadline(),
            position: wait.position(),
            since: wait.since(),
            first_wait: None,
            request: wait.request().clone(),
        };
        if self.sessions.get(number.session).is_some() {
            self.sessions.park(number.session, id, ParkedWait { name, wait });
        } else {
            self.forget_requirement(id, &wait.request);
        }
    }

    /// Ends a wait that was passed over. Returns whether there was one.
    pub(in crate::core::manager) fn end_parked_wait(&mut self, number: CallNumber, id: WaiterId) -> bool {
        let Some(parked) = self.sessions.unpark_one(number.session, id) else { return false };
        self.forget_requirement(id, &parked.wait.request);
        true
    }

    /// Lets the driver forget that a wait awaits replicas.
    fn forget_requirement(&mut self, id: WaiterId, request: &Request) {
        if request.awaits_replicas {
            self.decisions.push_back((id, Decision::Cancelled));
        }
    }

    /// Returns a session's parked waits to their places in the queues (R15).
    pub(in crate::core::manager) fn trust(&mut self, key: SessionKey) {
        for (id, ParkedWait { name, wait }) in self.sessions.trust(key) {
            let lock = self.table.find_or_insert(name.as_ref());
            self.insert_wait(id, NewWait { lock, ..wait });
            self.searches.insert(id);
            self.sessions.note_unparked(lock, id);
            self.table.set_ready(lock);
        }
    }

    /// Ends waits that are passed over and whose deadlines have passed.
    pub(in crate::core::manager) fn end_parked_waits(&mut self, now: Now) {
        for _ in 0..4 * self.portion.0 {
            let Some((id, parked)) = self.sessions.pop_parked(now.mono) else { return };
            self.statistics.count(Counted::TimedOut);
            self.log_parked_wait(&parked);
            self.forget_requirement(id, &parked.wait.request);
            if let Some(call) = parked.wait.request.number() {
                self.lose_wait(call.number.session, call.number.n, LossReason::TimedOut);
            }
        }
    }

    /// Checks the deadlines of sessions, and ends a portion of the numbers of those that are over.
    pub(in crate::core::manager) fn check_sessions(&mut self, now: Now) {
        for _ in 0..4 * self.portion.0 {
            match self.sessions.check(now.mono) {
                Some(Checked::Over(key)) => self.expire_session(key),
                Some(Checked::Overdue(key, n)) => self.revoke_overdue(key, n),
                None => break,
            }
        }
    }

    /// Ends a session whose client was silent for too long, or whose reader has closed.
    pub(in crate::core::manager) fn expire_session(&mut self, key: SessionKey) {
        self.statistics.count(Counted::SessionExpired);
        self.log_session(key);
        self.end_session(key);
    }

    /// Ends a session. Its holds and waits end in portions.
    pub(in crate::core::manager) fn end_session(&mut self, key: SessionKey) {
        for (id, request) in self.sessions.end(key) {
            self.forget_requirement(id, &request);
        }
    }

    /// Ends every session.
    pub(in crate::core::manager) fn end_all_sessions(&mut self) {
        for key in self.sessions.keys() {
            self.end_session(key);
        }
    }

    /// Revokes an unacknowledged grant and marks its session as suspect (R1).
    fn revoke_overdue(&mut self, key: SessionKey, n: u64) {
        let Some(id) = self.sessions.get(key).and_then(|session| session.in_flight(n)) else { return };
        self.statistics.count(Counted::Overdue);
        self.lose_wait(key, n, LossReason::Overdue);
        self.log_revoked(id, LossReason::Overdue.name());
        self.mark_for_revocation(id);
        if !self.sessions.suspect(key) {
            return;
        }
        // Its waits no longer block those behind them.
        let waits = self.sessions.get(key).into_iter().flat_map(Session::waits);
        let locks: Vec<LockIdx> = waits.filter_map(|id| Some(self.waiters.queued(id)?.lock())).collect();
        locks.into_iter().for_each(|lock| self.table.set_ready(lock));
    }

    /// Revokes the renewed grants among the next `count` events of a session of which a third of the lease is
    /// over. The client would trust such a grant for longer than its lease lasts (R1). Returns whether there
    /// was one.
    pub(in crate::core::manager) fn revoke_stale_grants(
        &mut self,
        key: SessionKey,
        count: usize,
        now: Now,
    ) -> bool {
        let Some(session) = self.sessions.get(key) else { return false };
        let granted = session.events().take(count).filter(|event| event.content.is_grant());
        let in_flight = granted.filter_map(|event| Some((event.n, session.in_flight(event.n)?)));
        let stale = in_flight.filter(|(_, id)| self.is_stale(*id, now)).collect::<Vec<_>>();
        for (n, id) in &stale {
            self.statistics.count(Counted::Overdue);
            self.lose_wait(key, *n, LossReason::Overdue);
            self.log_revoked(*id, LossReason::Overdue.name());
            self.mark_for_revocation(*id);
        }
        !stale.is_empty()
    }

    /// Whether a third of the lease of a renewed grant in flight is over.
    fn is_stale(&self, id: WaiterId, now: Now) -> bool {
        let Some(wait) = self.waiters.get(id) else { return false };
        let is_renewed = wait.request().number().is_some_and(|call| call.renewed);
        let lease_us = wait.request().lease_ms.unsigned_abs().saturating_mul(1000);
        is_renewed && now.mono.saturating_sub(wait.since()) > lease_us / 3
    }

    /// Ends the holds and waits of a portion of the numbers of ended sessions.
    pub(in crate::core::manager) fn end_sessions(&mut self, now: Now) {
        for _ in 0..4 * self.portion.0 {
            let Some((session, n, state)) = self.sessions.take_ended() else { return };
            match state {
                NumberState::Waiting(id) => {
                    // A grant that replicas have not acknowledged yet is no longer queued.
                    if !self.end_wait(id, None) {
                        self.mark_for_revocation(id);
                    }
                }
                NumberState::InFlight(id) => self.mark_for_revocation(id),
                NumberState::Held(held) => {
                    for hold in held.holds {
                        self.end_hold_of_session(session, n, &hold, now);
                    }
                }
                NumberState::Answered(_) => {}
            }
        }
    }

    /// Ends the renewal of a hold whose session has ended, and releases the hold if it is ephemeral (R8).
    fn end_hold_of_session(&mut self, session: SessionKey, n: u64, hold: &NumberedHold, now: Now) {
        let NumberedHold { lock, owner, ephemeral, .. } = hold;
        if *ephemeral && !self.demoted {
            self.bindings.end_number(*lock, owner, session, n);
            self.table.set_ready(*lock);
        } else {
            self.bindings.unbind_number(*lock, owner, session, n, now.mono);
            self.drop_if_idle(*lock);
        }
    }

    /// Reports holds that ended without a call of their session. `cause` is the reason, if the caller knows
    /// it.
    pub(in crate::core::manager) fn report_losses(&mut self, cause: Option<LossReason>) {
        let mut losses = std::mem::take(&mut self.losses);
        losses.extend(self.bindings.take_losses());
        for loss in losses {
            // One of several locks is lost. The client does not use the others.
            if let Some(id) = self.sessions.get(loss.session).and_then(|session| session.in_flight(loss.n)) {
                self.mark_for_revocation(id);
            }
            let is_expired = loss.lease_end < self.input_at.wall;
            let guess = if is_expired { LossReason::Expired } else { LossReason::Deleted };
            let why = loss.why.or(cause).unwrap_or(guess);
            self.log_loss(&loss, why);
            self.sessions.lose(&loss, why, self.input_at.mono);
        }
    }

    /// Whether any hold ended without a call of its session and is not reported yet.
    pub(in crate::core::manager) fn any_losses(&self) -> bool {
        !self.losses.is_empty() || self.bindings.any_losses()
    }

    /// Records that the hold of a session's grant in flight has ended.
    pub(in crate::core::manager) fn lose_grant_of_session(&mut self, wait: &Wait) {
        let Some(call) = wait.request().number() else { return };
        let lease_us = wait.request().lease_ms.unsigned_abs().saturating_mul(1000);
        let is_over = self.input_at.mono.saturating_sub(wait.since()) >= lease_us;
        let lease_end = if is_over { 0 } else { WallMs::MAX };
        let CallNumber { session, n, .. } = call.number;
        // The grants of a session end with it, so no event is needed.
        if self.sessions.get(session).is_some() {
            self.losses.push(Loss { session, n, hold: None, lease_end, why: None });
        }
    }

    /// Records the final answer about a number.
    pub(in crate::core::manager) fn answer_number(&mut self, number: CallNumber, answer: Answer) {
        if let Some(session) = self.sessions.of(number) {
            session.answer(number, answer);
        }
    }

    /// Whether any hold of this owner is released when its session ends.
    pub(in crate::core::manager) fn ends_with_session(&self, lock: LockIdx, owner: &Owner) -> bool {
        let is_ephemeral = |number: &BoundNumber| {
            let session = self.sessions.get(number.session);
            session.is_some_and(|session| session.is_ephemeral(number.n, lock))
        };
        self.bindings.numbers(lock, owner).any(is_ephemeral)
    }

    /// Forgets a number whose wait ended with an error, as if its acquire had never arrived.
    pub(super) fn forget_number(&mut self, id: WaiterId, number: CallNumber, request: &Request) {
        if let Some(session) = self.sessions.of(number) {
            session.forget(number.n);
        }
        self.forget_requirement(id, request);
    }
}
