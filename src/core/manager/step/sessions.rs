// SPDX-License-Identifier: MIT

//! Numbers and holds of sessions within a step.

use super::Step;
use crate::core::bindings::binding::BoundNumber;
use crate::core::lease::{Lease, SetLease};
use crate::core::manager::parts::{call_until, LockState};
use crate::core::owner::AffectedOwners;
use crate::core::queue::position::Standing;
use crate::core::sessions::{Answer, Loss, NumberState};
use crate::core::table::LockIdx;
use crate::core::{
    CallNumber, Counted, HandOver, Known, LossReason, Mode, NumberedCall, OtherTarget, Owner, ReleaseScope,
    Reply, Session, WaiterId,
};

/// The state of a number, as a RENEW, RELEASE or CANCEL of it sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::core::manager) enum NumberIs {
    /// The session has not seen the number.
    New,
    /// The number is below `done`: the client knows the answer (R11).
    Done,
    Waiting,
    InFlight,
    /// The number has a hold of this mode on this lock.
    Held(Mode),
    Answered(Answer),
    /// The number has holds, but none on this lock.
    HeldElsewhere,
}

impl Step<'_> {
    /// Releases ephemeral holds of ended sessions, and marks numbers without a hold as lost.
    #[inline(always)]
    pub(super) fn follow_sessions(&mut self, lock: LockIdx) {
        if self.parts.bindings.any_ended_numbers() {
            self.release_ended_numbers(lock);
        }
        if !self.parts.sessions.is_empty() {
            self.lose_excess(lock);
            self.move_unparked(lock);
        }
    }

    /// Releases ephemeral holds of ended sessions: all of the affected owner's, and a portion of the others.
    fn release_ended_numbers(&mut self, lock: LockIdx) {
        if self.parts.bindings.ended_len(lock) == 0 {
            return;
        }
        if let AffectedOwners::Only(owner) = self.affected {
            while self.release_ended_number(lock, Some(owner)) {}
        }
        let portion = self.portion;
        let _ = (0..portion).all(|_| self.release_ended_number(lock, None));
        self.is_unfinished |= self.parts.bindings.ended_len(lock) > 0;
    }

    fn release_ended_number(&mut self, lock: LockIdx, of: Option<&Owner>) -> bool {
        let next = self.parts.bindings.take_ended_number(lock, of, self.now.mono);
        let Some((owner, number)) = next else { return false };
        if self.release_unconfirmed(&owner, ReleaseScope::OneOf(number.mode), None, None).is_ok() {
            self.count(Counted::ReleasedOnDisconnect);
        }
        self.hold_changed(lock, &owner);
        true
    }

    /// Marks numbers as lost if an affected owner has fewer holds than numbers.
    pub(in crate::core::manager) fn lose_excess(&mut self, lock: LockIdx) {
        match self.affected {
            AffectedOwners::Only(owner) => self.lose_excess_of(lock, owner),
            AffectedOwners::Any if self.examines_all => {
                for owner in self.parts.owners_with_numbers(lock) {
                    self.lose_excess_of(lock, &owner);
                }
            }
            AffectedOwners::Any => {}
        }
    }

    #[inline]
    fn lose_excess_of(&mut self, lock: LockIdx, owner: &Owner) {
        // An owner without any hold has lost all its numbers already.
        let Some(hold) = self.holders.get(owner.as_bytes()) else { return };
        let in_flight = self.state().is_some_and(|state| state.unconfirmed().any_in_flight());
        // Nearly always, an owner has a hold for each number.
        if !in_flight && !self.parts.bindings.has_excess(lock, owner, hold) {
            return;
        }
        while let Some(id) = self.excess_grant(lock, owner) {
            self.lose_grant_without_hold(lock, owner, id);
        }
        if let Some(hold) = self.holders.get(owner.as_bytes()) {
            self.parts.bindings.lose_excess(lock, owner, hold, self.now.mono);
        }
    }

    /// The owner's newest grant in flight of a session, if the owner has fewer holds than numbers.
    fn excess_grant(&self, lock: LockIdx, owner: &Owner) -> Option<WaiterId> {
        let hold = self.holders.get(owner.as_bytes())?;
        [Mode::Exclusive, Mode::Shared].into_iter().find_map(|mode| {
            let grants = self.parts.numbered_grants(lock, owner);
            let grants = grants.filter(|(_, wait)| wait.request().wants.mode == mode);
            let (len, last) = grants.fold((0, None), |(len, _), (id, _)| (len + 1, Some(id)));
            let numbers = len + self.parts.bindings.count_numbers(lock, owner, mode);
            last.filter(|_| i64::try_from(numbers).is_ok_and(|numbers| numbers > hold.count(mode)))
        })
    }

    /// Loses a grant in flight of a session whose hold was released by another call.
    fn lose_grant_without_hold(&mut self, lock: LockIdx, owner: &Owner, id: WaiterId) {
        if let Some(state) = self.parts.state_mut(lock) {
            state.unconfirmed_mut().hold_released(id, owner, None);
        }
        self.parts.note_lost_grant(id);
        self.parts.mark_for_revocation(id);
        self.revoke_marked(lock, Some(owner), usize::MAX);
    }

    /// Moves waits ahead that were passed over while their owner got a hold.
    fn move_unparked(&mut self, lock: LockIdx) {
        for id in self.parts.sessions.take_unparked(lock) {
            let holds = |owner: &Owner| self.holders.get(owner.as_bytes()).is_some();
            if self.parts.waiters.queued(id).is_some_and(|wait| holds(&wait.request().owner)) {
                self.parts.move_wait(id, Standing::Holder);
            }
        }
    }

    /// Returns the state of an acquire's number (R12).
    pub(in crate::core::manager) fn known_number(&self, call: NumberedCall) -> Known {
        let session = self.parts.sessions.get(call.number.session);
        session.map_or(Known::Late, |session| session.known(call.number))
    }

    /// Returns the effect of a call on its owner's lease. While the owner has a session-bound hold, the lease
    /// is never shortened (R7).
    #[inline]
    pub(super) fn keep_lease(&self, owner: &Owner, lease: SetLease) -> SetLease {
        match lease {
            SetLease::To(end) if self.keeps_lease(owner) => SetLease::AtLeast(end),
            lease => lease,
        }
    }

    /// Whether this owner has a session-bound hold, so that its lease is never shortened (R7).
    #[inline]
    pub(in crate::core::manager) fn keeps_lease(&self, owner: &Owner) -> bool {
        let has_number = |lock| {
            self.parts.bindings.has_numbers(lock, owner)
                || self.parts.numbered_grants(lock, owner).next().is_some()
        };
        !self.parts.sessions.is_empty() && self.lock.is_some_and(has_number)
    }

    /// Returns the state of a number. Fails if it was used with another target.
    pub(in crate::core::manager) fn number_state(&self, number: CallNumber) -> Result<NumberIs, OtherTarget> {
        let Some(session) = self.parts.sessions.get(number.session) else { return Ok(NumberIs::Done) };
        Ok(self.state_here(session, number, session.state(number)?))
    }

    fn state_here(&self, session: &Session, number: CallNumber, state: Option<&NumberState>) -> NumberIs {
        match state {
            None if session.is_done(number.n) => NumberIs::Done,
            None => NumberIs::New,
            Some(NumberState::Waiting(_)) => NumberIs::Waiting,
            Some(NumberState::InFlight(_)) => NumberIs::InFlight,
            Some(NumberState::Held(held)) => {
                let here = held.holds.iter().find(|hold| Some(hold.lock) == self.lock);
                match here {
                    Some(hold) => NumberIs::Held(hold.mode()),
                    None if held.is_lost => NumberIs::Answered(Answer::Ended),
                    None => NumberIs::HeldElsewhere,
                }
            }
            Some(NumberState::Answered(answer)) => NumberIs::Answered(answer.clone()),
        }
    }

    /// Takes a hold of this owner over from another session (R21). Returns its mode.
    pub(in crate::core::manager) fn take_number(&mut self, owner: &Owner, from: &HandOver) -> Option<Mode> {
        let lock = self.lock?;
        let is_named = |number: &&BoundNumber| {
            let session = self.parts.sessions.get(number.session);
            number.n == from.n && session.is_some_and(|session| *session.name() == from.name)
        };
        let number = *self.parts.bindings.numbers(lock, owner).find(is_named)?;
        let lease_end = self.holders.get(owner.as_bytes())?.expires_at;
        self.parts.bindings.unbind_number(lock, owner, number.session, number.n, self.now.mono);
        let hold = Some((lock, owner.clone()));
        let why = Some(LossReason::Taken);
        self.parts.losses.push(Loss { session: number.session, n: number.n, hold, lease_end, why });
        Some(number.mode)
    }

    /// Confirms the grant in flight of a number that the client has named in a call (R1).
    pub(in crate::core::manager) fn confirm_number(&mut self, number: CallNumber) {
        self.parts.confirm_number(number, self.now);
        if let (Some(lock), AffectedOwners::Only(owner)) = (self.lock, self.affected) {
            // The length of the lease may be certain now.
            self.revoke_marked(lock, Some(owner), usize::MAX);
        }
    }

    /// Whether a number has any hold on a lock.
    pub(in crate::core::manager) fn has_hold(&self, number: CallNumber) -> bool {
        self.parts.sessions.get(number.session).is_some_and(|session| session.has_hold(number.n))
    }

    /// Records the final answer about a number.
    pub(in crate::core::manager) fn answer(&mut self, number: CallNumber, answer: Answer) {
        self.parts.answer_number(number, answer);
    }

    /// Ends the wait of a number. Returns whether it was waiting, queued or parked.
    pub(in crate::core::manager) fn end_wait_of(&mut self, number: CallNumber) -> bool {
        let state = self.parts.sessions.get(number.session).map(|session| session.state(number));
        let Some(Ok(Some(NumberState::Waiting(id)))) = state else { return false };
        let id = *id;
        if self.parts.end_wait(id, None) || self.parts.end_parked_wait(number, id) {
            return true;
        }
        // Replicas have not acknowledged the grant yet.
        let stands = self.parts.waiters.get(id).is_some();
        self.parts.mark_for_revocation(id);
        if let Some(lock) = self.lock {
            self.revoke_marked(lock, None, usize::MAX);
        }
        stands
    }

    /// Revokes the grant in flight of a number. Returns whether its hold still existed.
    pub(in crate::core::manager) fn revoke_number(&mut self, owner: &Owner, number: CallNumber) -> bool {
        let in_flight =
            self.parts.sessions.get(number.session).and_then(|session| session.in_flight(number.n));
        let (Some(id), Some(lock)) = (in_flight, self.lock) else { return false };
        let stands = self.holders.get(owner.as_bytes()).is_some();
        self.parts.mark_for_revocation(id);
        self.revoke_marked(lock, Some(owner), usize::MAX);
        stands
    }

    /// Returns the mode of a hold of this owner that has no number and belongs to no grant in flight.
    pub(in crate::core::manager) fn unnumbered_mode(&self, owner: &Owner) -> Option<Mode> {
        let hold = self.holders.get(owner.as_bytes())?;
        let unconfirmed = self.state().map(LockState::unconfirmed);
        let is_unnumbered = |mode: &Mode| {
            let in_flight = unconfirmed.map_or(0, |unconfirmed| unconfirmed.count_in_flight(owner, *mode));
            let numbered = self.lock.map_or(0, |lock| self.parts.bindings.count_numbers(lock, owner, *mode));
            i64::try_from(in_flight + numbered).is_ok_and(|taken| taken < hold.count(*mode))
        };
        [Mode::Exclusive, Mode::Shared].into_iter().find(is_unnumbered)
    }

    /// Gives a number to a hold that has none (R5).
    pub(in crate::core::manager) fn declare(
        &mut self,
        owner: &Owner,
        call: NumberedCall,
        reply: Reply,
        lease: Lease,
    ) {
        let lock = self.known();
        self.parts.bind_number(lock, owner, call, reply, None, lease);
    }

    /// Starts the renewal of a number's lease.
    pub(in crate::core::manager) fn watch_number(&mut self, owner: &Owner, call: NumberedCall) {
        if let Some(lock) = self.lock {
            let (number, until) = (call.number, call_until(call.max_ms, self.now));
            self.parts.bindings.watch_number(lock, owner, (number.session, number.n), until, self.now);
        }
    }

    /// Records the release of a number's hold on this lock, which left this number of holds to the owner.
    pub(in crate::core::manager) fn note_released(&mut self, owner: &Owner, number: CallNumber, left: i64) {
        let Some(lock) = self.lock else { return };
        self.parts.bindings.unbind_number(lock, owner, number.session, number.n, self.now.mono);
        if self.is_crowded {
            self.hold_changed(lock, owner);
        }
        if let Some(session) = self.parts.sessions.of(number) {
            session.released(number, (lock, owner), left);
        }
    }

    /// Returns a lease of this length from now. It ends no earlier than the present one if the owner has a
    /// session-bound hold (R7).
    #[inline]
    pub(in crate::core::manager) fn lease_of(&self, owner: &Owner, ms: i64) -> Lease {
        let end = self.now.wall.saturating_add(ms);
        if !self.keeps_lease(owner) {
            return Lease::new(ms, end);
        }
        let end = self.holders.get(owner.as_bytes()).map_or(end, |hold| end.max(hold.expires_at));
        Lease { ms, keeps_longer: true, end }
    }

    /// After a release without a number: marks the caller's numbers as lost that no longer have a hold.
    #[inline]
    pub(in crate::core::manager) fn lose_excess_of_caller(&mut self) {
        if let Some(lock) = self.lock.filter(|_| !self.parts.sessions.is_empty()) {
            self.lose_excess(lock);
        }
    }
}
