// SPDX-License-Identifier: MIT

//! Revokes marked grants, and releases holds of grants in flight.

use super::Step;
use crate::core::owner::AffectedOwners;
use crate::core::queue::wait::WaitState;
use crate::core::table::LockIdx;
use crate::core::unconfirmed::ReleasedGrant;
use crate::core::{
    Decision, Hold, HoldEvent, Mode, NotOwner, Owner, Refusal, ReleaseScope, Reply, Request, RequestId,
    WaiterId, WallMs,
};

impl Step<'_> {
    /// Revokes marked grants: all of the caller's, and a portion of the others.
    #[inline(always)]
    pub(super) fn revoke_due(&mut self, lock: LockIdx) {
        if self.parts.state(lock).is_none_or(|state| state.unconfirmed().may_end() == 0) {
            return;
        }
        if let AffectedOwners::Only(owner) = self.affected {
            self.revoke_marked(lock, Some(owner), usize::MAX);
        }
        self.revoke_marked(lock, None, self.portion);
        self.is_unfinished |= self.parts.state(lock).is_some_and(|state| state.unconfirmed().may_end() > 0);
    }

    /// Revokes up to `at_most` marked grants, of one owner or of all. Then sets the leases of owners whose
    /// grants all have an outcome, also up to `at_most`.
    pub(super) fn revoke_marked(&mut self, lock: LockIdx, of: Option<&Owner>, at_most: usize) {
        for _ in 0..at_most {
            let next = self.parts.state_mut(lock).and_then(|state| state.unconfirmed_mut().take_marked(of));
            let Some((id, hold_mode)) = next else { break };
            let Some((wait, _)) = self.parts.waiters.remove(id) else {
                defect!("an unknown grant is marked for revocation");
                continue;
            };
            let Request { owner, id: request, .. } = wait.request();
            if self.holders.get(owner.as_bytes()).is_none() {
                // The lease has expired, and no step noticed it: no hold is left to release.
                if let Some(request) = request {
                    self.records.forget_grant(request);
                }
                continue;
            }
            if let Some(mode) = hold_mode {
                let _ = self.holders.release(owner.as_bytes(), ReleaseScope::OneOf(mode), None);
            }
            if let Some(state) = self.parts.state_mut(lock) {
                state.unconfirmed_mut().revoked(id, owner, self.holders);
            }
            if let Some(request) = request {
                self.records.forget_grant(request);
            }
            self.hold_changed(lock, owner);
        }
        for _ in 0..at_most {
            let Some(state) = self.parts.state_mut(lock) else { return };
            let Some((owner, end)) = state.unconfirmed_mut().resolve_next(of, self.holders, self.now) else {
                return;
            };
            let Some(end) = end else { continue };
            // If the lease is over, this is the reason for the end of numbers.
            self.parts.bindings.note_lease_end(lock, &owner, end, self.now);
            if end < self.now.wall && self.parts.take_held(lock, &owner) {
                self.parts.push_notices(lock, [(owner.clone(), HoldEvent::Expired)]);
            }
            self.hold_changed(lock, &owner);
        }
    }

    /// The recorded reply of this request, after any pending revocation of its grant.
    pub(in crate::core::manager) fn granted(&mut self, id: &RequestId) -> Result<Option<Reply>, Refusal> {
        let any_ended = || self.state().is_some_and(|state| state.unconfirmed().any_ended());
        if let Some(lock) = self.lock.filter(|_| self.is_unfinished || any_ended()) {
            self.finish_request(lock, id)?;
        }
        self.records.granted(id)
    }

    pub(super) fn finish_request(&mut self, lock: LockIdx, id: &RequestId) -> Result<(), Refusal> {
        if let Some(id) = self.parts.waiters.of_request(lock, id).map(|(id, _)| id) {
            self.parts.void_if_ended(id);
        }
        let wait = self.parts.waiters.of_request(lock, id).map(|(_, wait)| wait);
        let marked = wait.filter(|wait| wait.state() == WaitState::Marked);
        if let Some(owner) = marked.map(|wait| wait.request().owner.clone()) {
            self.revoke_marked(lock, Some(&owner), usize::MAX);
        }
        if self.parts.state_mut(lock).is_some_and(|state| state.unconfirmed_mut().take_voided_request(id)) {
            self.records.forget_grant(id);
        }
        if let Some(reply) = self.records.granted(id)? {
            let owner = reply.owner.map_or_else(|| Owner::new(id.owner_argument()), |owner| *owner);
            self.revoke_marked(lock, Some(&owner), usize::MAX);
            self.end_closed_of(lock, &owner);
        }
        Ok(())
    }

    /// Releases holds of the owner, for a call with this request id. Returns the number of remaining holds.
    /// Their lease ends at `lease_end`, if given.
    ///
    /// A hold count does not identify grants: `Unconfirmed::grant_to_release` chooses the one whose hold is
    /// released. A grant in flight is lost if its client is not answered yet. If the client may know of the
    /// grant, the grant stays in flight without a hold.
    #[inline(always)]
    pub(in crate::core::manager) fn release_unconfirmed(
        &mut self,
        owner: &Owner,
        scope: ReleaseScope,
        id: Option<&RequestId>,
        lease_end: Option<WallMs>,
    ) -> Result<i64, NotOwner> {
        match self.grant_to_release(owner, scope, id) {
            Some(grant) if grant.is_withheld => Ok(self.lose_grant(owner, grant.id, lease_end)),
            Some(grant) => {
                self.keep_after_release(owner, scope, grant);
                self.holders.release(owner.as_bytes(), scope, lease_end)
            }
            None => self.holders.release(owner.as_bytes(), scope, lease_end),
        }
    }

    /// The grant in flight whose hold is released, if any.
    #[inline(always)]
    pub(super) fn grant_to_release(
        &self,
        owner: &Owner,
        scope: ReleaseScope,
        id: Option<&RequestId>,
    ) -> Option<ReleasedGrant> {
        let lock = self.lock?;
        let unconfirmed = self.parts.state(lock)?.unconfirmed();
        // The last release voids all grants of the owner.
        if !unconfirmed.any_in_flight() || scope == ReleaseScope::All {
            return None;
        }
        let hold = self.holders.get(owner.as_bytes()).filter(|hold| hold.total() > 1)?;
        let mode = scope.mode_of(hold);
        let holds = Some(hold.count(mode)).filter(|holds| *holds > 0)?;
        let named = id.and_then(|id| self.parts.waiters.of_request(lock, id)).map(|(id, _)| id);
        let grant = unconfirmed.grant_to_release(owner, mode, holds, named)?;
        // The grants of a session are lost in another order: see `lose_excess`.
        let is_numbered =
            self.parts.waiters.get(grant.id).is_some_and(|wait| wait.request().number().is_some());
        Some(grant).filter(|grant| grant.is_withheld || !is_numbered)
    }

    /// Notes the release of the hold of a grant that its client may know of. The grant stays in flight. If the
    /// grant is revoked later, its client never knew of this hold. A release without a mode then meant the
    /// owner's confirmed shared hold, so the revocation releases that one.
    pub(super) fn keep_after_release(&mut self, owner: &Owner, scope: ReleaseScope, grant: ReleasedGrant) {
        let Some(hold) = self.holders.get(owner.as_bytes()) else { return };
        let may_be_another = scope == ReleaseScope::One && hold.exclusive > 0 && !grant.is_named;
        let shared = hold.shared;
        let Some(state) = self.state_mut() else { return };
        let instead = may_be_another && state.unconfirmed().is_certain(owner, Mode::Shared, shared);
        state.unconfirmed_mut().hold_released(grant.id, owner, instead.then_some(Mode::Shared));
    }

    /// Revokes a grant in flight whose hold is released, and answers its client. Returns the number of
    /// remaining holds. Their lease ends at `lease_end`, if given.
    pub(super) fn lose_grant(&mut self, owner: &Owner, grant: WaiterId, lease_end: Option<WallMs>) -> i64 {
        let wait = self.parts.waiters.get(grant).map(|wait| (wait.lock(), wait.request().clone()));
        if let Some((lock, request)) = wait {
            let first_wait = self.parts.waiters.first_wait_of(grant);
            self.parts.decide(first_wait, &request, Decision::Lost);
            self.parts.mark_for_revocation(grant);
            self.revoke_marked(lock, Some(owner), usize::MAX);
        }
        if let Some(end) = lease_end {
            let _ = self.holders.renew(owner.as_bytes(), end);
        }
        self.holders.get(owner.as_bytes()).map_or(0, Hold::total)
    }

    /// Ends every hold. Returns the number of owners that lost theirs.
    pub(in crate::core::manager) fn end_all(&mut self) -> usize {
        self.examines_all = true;
        let lost = self.holders.clear();
        if let Some(lock) = self.lock {
            // This completes all pending portions of ending holds. Only records may be left, which the next
            // step deletes.
            self.parts.void_all(lock);
            self.is_due_again |= std::mem::take(&mut self.is_unfinished);
        }
        lost
    }
}
