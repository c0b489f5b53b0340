// SPDX-License-Identifier: MIT

//! Grants in flight, and how they are confirmed, revoked or voided.

use super::Parts;
use crate::core::lease::{Lease, SetLease};
use crate::core::owner::AffectedOwners;
use crate::core::queue::wait::{Wait, WaitState};
use crate::core::table::LockIdx;
use crate::core::unconfirmed::pending_grants::SetToken;
use crate::core::{Decision, Now, Owner, Request, WaiterId, WallMs};

/// The records of voided grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core::manager) enum RecordsOfVoided {
    /// The next step deletes them, so that a repeated call does not get the reply.
    Delete,
    /// The records have moved away with the holds, or belong to another server.
    Gone,
}

impl Parts {
    /// Number of grants and bindings of a lock that end with their holds.
    pub(in crate::core::manager) fn remembered_of(&self, lock: LockIdx) -> usize {
        self.table.get(lock).map_or(0, |state| state.unconfirmed().len()) + self.bindings.len_of(lock)
    }

    /// Marks a grant for revocation, because it did not reach its client. Makes each of its locks ready; the
    /// next step of the lock revokes the grant.
    pub(in crate::core::manager) fn mark_for_revocation(&mut self, id: WaiterId) {
        for id in self.waiters.together(id) {
            self.mark_alone_for_revocation(id);
        }
    }

    /// Marks a single member of a bundle, or a single grant, for revocation.
    pub(in crate::core::manager) fn mark_alone_for_revocation(&mut self, id: WaiterId) {
        if self.void_if_ended(id) || !self.waiters.mark_for_revocation(id) {
            return;
        }
        let Some(wait) = self.waiters.get(id) else { return };
        let lock = wait.lock();
        if let Some(state) = self.table.get_mut(lock) {
            state.unconfirmed_mut().mark_for_revocation(id, &wait.request().owner);
            self.table.set_ready(lock);
        }
    }

    /// Voids everything pending for owners whose holds have ended: deliveries, revocations, renewals and
    /// releases. Voids at most `at_most` grants, unless `affected` names one owner. Returns whether any grant
    /// is left to examine.
    pub(in crate::core::manager) fn void_ended(
        &mut self,
        lock: LockIdx,
        affected: AffectedOwners<'_>,
        at_most: usize,
        ended: impl Fn(&Owner) -> bool,
    ) -> bool {
        let any_left = self.void_grants(lock, RecordsOfVoided::Delete, affected, at_most, &ended);
        if self.bindings.knows(lock) {
            let Some(name) = self.name(lock) else { return any_left };
            self.bindings.unbind_ended(lock, &name, affected, &ended);
        }
        any_left
    }

    /// Voids everything pending for all owners, because all holds have ended. Many grants are voided in
    /// portions.
    pub(in crate::core::manager) fn void_all(&mut self, lock: LockIdx) {
        let portion = self.portion.0;
        let state = self.table.get_mut(lock);
        if let Some(state) = state.filter(|state| state.unconfirmed().len() > portion) {
            state.unconfirmed_mut().end_all();
        }
        self.void_ended(lock, AffectedOwners::Any, usize::MAX, |_| true);
    }

    /// Voids up to `at_most` grants whose holds have ended. Returns whether any is left.
    #[cold]
    pub(in crate::core::manager) fn void_portion(
        &mut self,
        lock: LockIdx,
        records: RecordsOfVoided,
        at_most: usize,
    ) -> bool {
        for _ in 0..at_most {
            let Some(state) = self.table.get_mut(lock) else { return false };
            let Some(id) = state.unconfirmed_mut().take_ended() else { return false };
            self.void_grant(id, lock, records);
        }
        self.state(lock).is_some_and(|state| state.unconfirmed().any_ended())
    }

    /// Whether the hold of this grant has ended, although the grant is not voided yet.
    pub(in crate::core::manager) fn has_ended(&self, id: WaiterId) -> bool {
        self.waiters.get(id).is_some_and(|wait| {
            let state = self.table.get(wait.lock()).filter(|state| state.unconfirmed().any_ended());
            state.is_some_and(|state| state.unconfirmed().has_ended(id, &wait.request().owner))
        })
    }

    /// Voids this grant now if its hold has ended. Returns whether it has.
    #[inline]
    pub(in crate::core::manager) fn void_if_ended(&mut self, id: WaiterId) -> bool {
        let Some(wait) = self.waiters.get(id) else { return false };
        let lock = wait.lock();
        let Some(state) = self.table.get_mut(lock).filter(|state| state.unconfirmed().any_ended()) else {
            return false;
        };
        let has_ended = state.unconfirmed_mut().take_ended_grant(id, &wait.request().owner);
        if has_ended {
            self.void_grant(id, lock, RecordsOfVoided::Delete);
        }
        has_ended
    }

    /// Voids up to `at_most` grants in flight whose holds have ended, but keeps the bindings of their owners.
    /// Returns whether any grant is left to examine.
    pub(in crate::core::manager) fn void_grants(
        &mut self,
        lock: LockIdx,
        records: RecordsOfVoided,
        affected: AffectedOwners<'_>,
        at_most: usize,
        ended: impl Fn(&Owner) -> bool,
    ) -> bool {
        let Some(state) = self.table.get_mut(lock) else { return false };
        let void = state.unconfirmed_mut().void(affected, ended, at_most);
        let any_left = state.unconfirmed().is_partly_examined();
        for id in void {
            self.void_grant(id, lock, records);
        }
        any_left
    }

    /// Voids a grant that was already removed from the state of its lock.
    fn void_grant(&mut self, id: WaiterId, lock: LockIdx, records: RecordsOfVoided) {
        let Some((wait, _)) = self.waiters.remove(id) else { return };
        if wait.state() == WaitState::Granted {
            self.lose_grant_of_session(&wait);
        }
        // A repeated call must not get the reply to a grant that would have been revoked anyway.
        if wait.state() == WaitState::Marked && records == RecordsOfVoided::Delete && !self.demoted {
            let state = self.table.get_mut(lock);
            if let Some((state, request)) = state.zip(wait.request().id.clone()) {
                state.unconfirmed_mut().was_voided(request);
            }
        }
        // The client of a bundle that is still waiting has lost one of its locks.
        let waits = |first_wait: &WaiterId| {
            wait.request().awaits_replicas && !self.waiters.bundles.is_answered(*first_wait)
        };
        self.lost_bundles.extend(wait.first_wait().filter(waits));
    }

    /// Ends waits whose clients have not been answered although their holds have ended. Nearly always, none
    /// exist.
    #[inline(always)]
    pub(in crate::core::manager) fn end_lost(&mut self, lock: LockIdx, decision: &Decision) {
        if !self.lost_bundles.is_empty() {
            self.end_lost_bundles(decision);
        }
        let Some(state) = self.table.get_mut(lock).filter(|state| state.unconfirmed().any_lost()) else {
            return;
        };
        let lost = state.unconfirmed_mut().take_lost();
        self.decisions.extend(lost.into_iter().map(|id| (id, decision.clone())));
    }

    pub(super) fn end_lost_bundles(&mut self, decision: &Decision) {
        for first_wait in std::mem::take(&mut self.lost_bundles) {
            self.decisions.push_back((first_wait, decision.clone()));
            if !self.demoted {
                self.mark_for_revocation(first_wait);
            }
        }
    }

    /// Records that an irrevocable call has set the lease or the token of a hold.
    pub(in crate::core::manager) fn note_setting(
        &mut self,
        lock: LockIdx,
        owner: &Owner,
        lease: Option<(SetLease, WallMs)>,
        token: Option<SetToken>,
    ) {
        if let Some(state) = self.table.get_mut(lock) {
            state.unconfirmed_mut().note_setting(owner, lease, token);
        }
    }

    /// Confirms a delivered grant without consequences, as most are. Returns false, with nothing changed, if
    /// the grant may have consequences.
    pub(in crate::core::manager) fn confirm_plain(&mut self, id: WaiterId) -> bool {
        let is_plain = |wait: &&Wait| {
            let Request { id, bind, awaits_replicas, numbered, .. } = wait.request();
            let is_alone = id.is_none() && bind.is_none() && numbered.is_none();
            let is_simple = is_alone && !awaits_replicas;
            wait.state() == WaitState::Granted && is_simple && !wait.is_member()
        };
        let Some(wait) = self.waiters.get(id).filter(is_plain) else { return false };
        let lock = wait.lock();
        if self.bindings.knows(lock) {
            return false;
        }
        let Some(state) = self.table.get_mut(lock) else { return false };
        if !state.unconfirmed_mut().confirm_plain(id, &wait.request().owner) {
            return false;
        }
        self.waiters.forget_plain(id);
        self.drop_if_idle(lock);
        true
    }

    /// Confirms a delivered grant. If that shortens the lease, the lock becomes ready so that its next step
    /// writes the lease. Returns the wait and its lease.
    pub(in crate::core::manager) fn confirm(&mut self, id: WaiterId, now: Now) -> Option<(Wait, Lease)> {
        self.waiters.get(id).filter(|wait| wait.state() == WaitState::Granted)?;
        if self.void_if_ended(id) {
            return None;
        }
        let (wait, _) = self.waiters.remove(id)?;
        let state = self.table.get_mut(wait.lock());
        let confirmed = state.and_then(|state| state.unconfirmed_mut().confirm(id, &wait.request().owner));
        let Some(confirmed) = confirmed else { return defect!("a grant is unknown to its lock", None) };
        if confirmed.changes_lease {
            self.table.set_ready(wait.lock());
        }
        let request = wait.request();
        let lease = Lease { end: confirmed.written, ..request.lease(confirmed.end, now) };
        self.bindings.note_lease(wait.lock(), &request.owner, lease, now);
        Some((wait, lease))
    }
}
