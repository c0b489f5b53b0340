// SPDX-License-Identifier: MIT

//! Bindings of holds to connections, within a step.

use super::Step;
use crate::core::bindings::binding::NewBind;
use crate::core::bindings::{Followed, OpenBindings, RenewedLease};
use crate::core::held::HoldRecord;
use crate::core::lease::Lease;
use crate::core::owner::AffectedOwners;
use crate::core::table::LockIdx;
use crate::core::{Counted, Owner, Reply, Request, RequestId};

impl Step<'_> {
    /// Ends and renews holds that depend on connections.
    #[inline(always)]
    pub(super) fn follow_connections(&mut self, lock: LockIdx) {
        if !self.parts.bindings.knows(lock) {
            return;
        }
        let holds = |owner: &Owner| self.holders.get(owner.as_bytes()).is_some();
        // Nearly always, a call finds the bindings of its lock up to date.
        if matches!(self.affected, AffectedOwners::Only(owner) if holds(owner))
            && self.parts.bindings.is_settled(lock, self.now)
        {
            return;
        }
        let name = self.id();
        if self.examines_all || self.is_call() {
            let has_ended = |owner: &Owner| self.holders.get(owner.as_bytes()).is_none();
            self.parts.bindings.unbind_ended(lock, &name, self.affected, has_ended);
        }
        let open = OpenBindings {
            lock,
            name: &name,
            affected: self.affected,
            portion: self.portion,
            holders: self.holders,
            records: self.records,
            now: self.now,
        };
        let Followed { ended, renewed } = self.parts.bindings.follow(open);
        self.closed(lock, &ended);
        self.is_unfinished |= self.parts.bindings.closed_len(lock) > 0;
        self.is_due_again |= self.parts.bindings.has_more_renewals(lock);
        self.parts.statistics.add(Counted::RenewedByWatchdog, renewed.len());
        for RenewedLease { owner, lease, end } in renewed {
            self.note_held(&owner, HoldRecord { end, ..HoldRecord::default() });
            self.parts.note_setting(lock, &owner, Some((lease, end)), None);
        }
    }

    /// Ends the hold of this owner if its connection has closed.
    pub(super) fn end_closed_of(&mut self, lock: LockIdx, owner: &Owner) {
        let name = self.id();
        let mut open = OpenBindings {
            lock,
            name: &name,
            affected: AffectedOwners::Only(owner),
            portion: 0,
            holders: self.holders,
            records: self.records,
            now: self.now,
        };
        let ended = self.parts.bindings.end_closed(&mut open);
        self.closed(lock, &ended);
    }

    /// Handles the holds of these owners, which ended with a connection.
    pub(super) fn closed(&mut self, lock: LockIdx, ended: &[Owner]) {
        self.parts.statistics.add(Counted::ReleasedOnDisconnect, ended.len());
        ended.iter().for_each(|owner| self.hold_changed(lock, owner));
    }

    /// Ends the remaining state of an earlier hold, so that it does not affect the next one.
    pub(super) fn unbind_earlier(&mut self, lock: LockIdx, owner: &Owner) {
        if self.is_crowded {
            self.hold_changed(lock, owner);
            self.forget_voided(lock);
            return;
        }
        if self.holders.get(owner.as_bytes()).is_some() {
            return;
        }
        // The lease may have ended between two steps. Revoking a grant from that time must not release the
        // next hold.
        if self.parts.state(lock).is_some_and(|state| !state.unconfirmed().is_empty()) {
            self.parts.void_ended(lock, AffectedOwners::Only(owner), usize::MAX, |_| true);
            self.forget_voided(lock);
        }
        if self.parts.bindings.knows(lock) {
            let name = self.id();
            self.parts.bindings.unbind_ended(lock, &name, AffectedOwners::Only(owner), |_| true);
        }
    }

    /// Makes the owner's hold depend on a connection.
    pub(super) fn bind(&mut self, owner: &Owner, bind: NewBind, id: Option<&RequestId>, lease: Lease) {
        let lock = self.known();
        if bind.begins && self.holders.sole_holder().is_some() {
            if let Some(state) = self.parts.state_mut(lock) {
                state.hold_begins(self.now.mono);
            }
        }
        self.parts.bindings.bind(lock, owner, bind, id, lease, self.now);
        self.parts.statistics.has_bound(self.parts.bindings.count());
    }

    /// Whether the hold that this request got is remembered to have ended.
    pub(in crate::core::manager) fn has_ended(&self, owner: &Owner, id: &RequestId) -> bool {
        let bindings = &self.parts.bindings;
        bindings.has_ended(|| self.name.to_id(), id, self.now)
            || bindings.ended_with_connection(|| self.name.to_id(), owner, id, self.now)
    }

    /// Deletes the record of a request whose hold ended with a connection, because the request counts as
    /// never made. Returns whether it did. A request whose own id released its hold counts as made.
    pub(in crate::core::manager) fn forget_if_closed(
        &mut self,
        request: &Request,
        id: &RequestId,
        reply: &Reply,
    ) -> bool {
        let owner = reply.owner.as_deref().unwrap_or(&request.owner);
        let is_closed = self.parts.bindings.ended_with_connection(|| self.name.to_id(), owner, id, self.now)
            && matches!(self.records.released(id), Ok(None));
        if is_closed {
            self.records.forget_grant(id);
        }
        is_closed
    }

    /// Unbinds the hold of this request, which was released.
    pub(in crate::core::manager) fn unbind_request(&mut self, owner: &Owner, id: &RequestId) {
        if let Some(lock) = self.lock {
            self.parts.bindings.unbind_request(lock, owner, id, self.now);
            if self.is_crowded {
                self.hold_changed(lock, owner);
            }
        }
    }
}
