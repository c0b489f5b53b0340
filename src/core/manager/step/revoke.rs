// SPDX-License-Identifier: MIT

//! Revokes marked grants, and releases holds of grants in flight.

use super::Step;
use crate::core::bindings::AffectedOwners;
use crate::core::table::LockIdx;
use crate::core::unconfirmed::ReleasedGrant;
use crate::core::waiters::WaitState;
use crate::core::{
    Decision, Hold, HoldEvent, Mode, NotOwner, Owner, Refusal, ReleaseScope, Reply, Request, RequestId,
    WaiterId, WallMs,
};

impl Step<'_> {
    /// Revokes grants that did not reach their clients: those of the caller, and of the others a portion.
    #[inline(always)]
    pub(super) fn revoke(&mut self, lock: LockIdx) {
        if self.parts.state(lock).is_none_or(|state| state.unconfirmed.may_end() == 0) {
            return;
        }
        if let AffectedOwners::Only(owner) = self.affected {
            self.revoke_some(lock, Some(owner), usize::MAX);
        }
        self.revoke_some(lock, None, self.portion);
        self.is_unfinished |= self.parts.state(lock).is_some_and(|state| state.unconfirmed.may_end() > 0);
    }

    /// Revokes so many of them, of this owner or of anybody, and sets as many leases of which it is known by now what was promised.
    #[cold]
    pub(super) fn revoke_some(&mut self, lock: LockIdx, of: Option<&Owner>, at_most: usize) {
        for _ in 0..at_most {
            let next = self.parts.state_mut(lock).and_then(|state| state.unconfirmed.next_to_revoke(of));
            let Some((id, hold_mode)) = next else { break };
            let Some((wait, _)) = self.parts.waiters.remove(id) else {
                defect!("a grant is to be revoked that nobody got");
                continue;
            };
            let Request { owner, id: request, .. } = wait.request();
            if self.holders.of(owner.as_bytes()).is_none() {
                // Its lease is over, which no step had found yet: there is nothing to give back.
                if let Some(request) = request {
                    self.records.forget_grant(request);
                }
                continue;
            }
            if let Some(mode) = hold_mode {
                let _ = self.holders.release(owner.as_bytes(), ReleaseScope::OneOf(mode), None);
            }
            if let Some(state) = self.parts.state_mut(lock) {
                state.unconfirmed.revoked(id, owner, self.holders);
            }
            if let Some(request) = request {
                self.records.forget_grant(request);
            }
            self.ended_or_set(lock, owner);
        }
        for _ in 0..at_most {
            let Some(state) = self.parts.state_mut(lock) else { return };
            let Some((owner, end)) = state.unconfirmed.settle_next(of, self.holders, self.now) else {
                return;
            };
            let Some(end) = end else { continue };
            if end >= self.now.wall {
                self.parts.bindings.note_lease_end(lock, &owner, end, self.now);
            } else if self.parts.take_held(lock, &owner) {
                self.parts.push_notices(lock, [(owner.clone(), HoldEvent::Expired)]);
            }
            self.ended_or_set(lock, &owner);
        }
    }

    /// What is remembered of this request as granted, now that it is known whether that was revoked.
    pub(in crate::core::manager) fn granted(&mut self, id: &RequestId) -> Result<Option<Reply>, Refusal> {
        if let Some(lock) = self.lock.filter(|_| self.is_unfinished) {
            self.finish_request(lock, id)?;
        }
        self.records.granted(id)
    }

    #[cold]
    pub(super) fn finish_request(&mut self, lock: LockIdx, id: &RequestId) -> Result<(), Refusal> {
        let wait = self.parts.waiters.of_request(lock, id).map(|(_, wait)| wait);
        let revoking = wait.filter(|wait| wait.state() == WaitState::Revoking);
        if let Some(owner) = revoking.map(|wait| wait.request().owner.clone()) {
            self.revoke_some(lock, Some(&owner), usize::MAX);
        }
        if self.parts.state_mut(lock).is_some_and(|state| state.unconfirmed.take_voided_request(id)) {
            self.records.forget_grant(id);
        }
        if let Some(reply) = self.records.granted(id)? {
            let owner = reply.owner.map_or_else(|| Owner::new(id.owner_argument()), |owner| *owner);
            self.revoke_some(lock, Some(&owner), usize::MAX);
            self.end_closed_of(lock, &owner);
        }
        Ok(())
    }

    /// Gives back a part of what the owner holds, for a call with this request id. Returns how many holds it has left, whose lease
    /// ends then if that is given.
    ///
    /// A count does not tell whose hold is given back: see `Unconfirmed::grant_to_release`. If it is that of a grant in flight whose client
    /// is still to be told, that grant is lost. If the client may know of it already, the grant stays as it is but for its hold.
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

    /// The grant in flight whose hold is given back, if it is that of one.
    #[inline(always)]
    pub(super) fn grant_to_release(
        &self,
        owner: &Owner,
        scope: ReleaseScope,
        id: Option<&RequestId>,
    ) -> Option<ReleasedGrant> {
        let lock = self.lock?;
        let unconfirmed = &self.parts.state(lock)?.unconfirmed;
        // With its last hold all of an owner's grants are void.
        if !unconfirmed.any_in_flight() || scope == ReleaseScope::All {
            return None;
        }
        let hold = self.holders.of(owner.as_bytes()).filter(|hold| hold.total() > 1)?;
        let mode = scope.mode_of(hold);
        let holds = Some(hold.count(mode)).filter(|holds| *holds > 0)?;
        let named = id.and_then(|id| self.parts.waiters.of_request(lock, id)).map(|(id, _)| id);
        unconfirmed.grant_to_release(owner, (mode, holds), named)
    }

    /// The hold of a grant is given back whose client may know of it. If nobody did, and the grant is revoked, then the call that has
    /// given back an exclusive hold without saying so was for a shared one that is certain.
    #[cold]
    pub(super) fn keep_after_release(&mut self, owner: &Owner, scope: ReleaseScope, grant: ReleasedGrant) {
        let Some(hold) = self.holders.of(owner.as_bytes()) else { return };
        let may_be_another = scope == ReleaseScope::One && hold.exclusive > 0 && !grant.is_named;
        let shared = hold.shared;
        let Some(state) = self.state_mut() else { return };
        let instead = may_be_another && state.unconfirmed.is_certain(owner, Mode::Shared, shared);
        state.unconfirmed.hold_released(grant.id, owner, instead.then_some(Mode::Shared));
    }

    /// The hold of a grant in flight is given back, and its client told so. Returns how many holds the owner has left, whose lease
    /// ends then if that is given.
    #[cold]
    pub(super) fn lose_grant(&mut self, owner: &Owner, grant: WaiterId, lease_end: Option<WallMs>) -> i64 {
        let wait = self.parts.waiters.get(grant).map(|wait| (wait.lock(), wait.request().clone()));
        if let Some((lock, request)) = wait {
            let first_wait = self.parts.waiters.first_wait_of(grant);
            self.parts.decide(first_wait, lock, &request, Decision::Lost);
            self.parts.begin_to_revoke(grant);
            self.revoke_some(lock, Some(owner), usize::MAX);
        }
        if let Some(end) = lease_end {
            let _ = self.holders.renew(owner.as_bytes(), end);
        }
        self.holders.of(owner.as_bytes()).map_or(0, Hold::total)
    }

    /// Ends every hold. Returns the number of owners who lost theirs.
    pub(in crate::core::manager) fn end_all(&mut self) -> usize {
        self.looks_at_all = true;
        let lost = self.holders.clear();
        if let Some(lock) = self.lock {
            // Portions of holds to end are over with the holds. Only records may be left, which the next step forgets.
            self.parts.void_ended(lock, AffectedOwners::Any, |_| true);
            self.is_due_again |= std::mem::take(&mut self.is_unfinished);
        }
        lost
    }
}
