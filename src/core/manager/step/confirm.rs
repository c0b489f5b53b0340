// SPDX-License-Identifier: MIT

//! Repeated calls and renewals, which may confirm or take over grants in flight.

use super::Step;
use crate::core::bindings::binding::{BindMode, NewBind};
use crate::core::held::HoldRecord;
use crate::core::lease::{Lease, SetLease};
use crate::core::queue::wait::WaitState;
use crate::core::{Bind, ConnectionId, Decision, Owner, Reply, Request, WaiterId};
use smallvec::SmallVec;

impl Step<'_> {
    /// Answers a repeated call. Its hold then depends on the new connection. The grant is not revoked if the
    /// first answer is lost.
    pub(in crate::core::manager) fn repeat(&mut self, request: &Request, reply: &Reply) {
        let owner = reply.owner.as_deref().unwrap_or(&request.owner);
        let Some(id) = &request.id else { return };
        let in_flight = self.lock.and_then(|lock| self.parts.waiters.of_request(lock, id));
        let in_flight = in_flight.filter(|(_, wait)| wait.state() == WaitState::Granted).map(|(id, _)| id);
        let first_wait = in_flight.map(|id| self.parts.waiters.first_wait_of(id));
        // The grant counts as delivered on the new connection.
        if let Some((id, (wait, _))) = in_flight.and_then(|id| Some((id, self.parts.confirm(id, self.now)?)))
        {
            if wait.request().awaits_replicas {
                self.parts.decisions.push_back((first_wait.unwrap_or(id), Decision::Superseded));
            }
            self.revoke_marked(wait.lock(), Some(&wait.request().owner), usize::MAX);
        }
        let hold = self.holders.get(owner.as_bytes()).map(|hold| hold.expires_at);
        let (Some(mut end), Some(bind)) = (hold, request.bind) else { return };
        if self.has_ended(owner, id) {
            return;
        }
        self.note_held(owner, HoldRecord { end, since: None, client: request.client });
        if !self.lock.is_some_and(|lock| self.parts.bindings.has_bound(lock, owner, id)) {
            // Another server made the grant, and may have bound the hold to the first connection. The changed
            // lease makes that server verify its binding.
            end = end.saturating_add(1);
            let _ = self.holders.renew(owner.as_bytes(), end);
            if let Some(lock) = self.lock {
                self.parts.note_setting(lock, owner, Some((SetLease::AtLeast(end), end)), None);
            }
        }
        let lease = request.lease(end, self.now);
        self.bind(owner, NewBind::new(bind, BindMode::ReplaceOwn, self.now.mono), Some(id), lease);
    }

    /// Sets a lease that no later revocation undoes.
    pub(in crate::core::manager) fn set_lease(&mut self, owner: &Owner, lease: Lease) {
        let Some(lock) = self.lock else { return };
        self.parts.note_setting(lock, owner, Some((SetLease::To(lease.end), lease.end)), None);
        self.parts.bindings.note_lease(lock, owner, lease, self.now);
    }

    /// Records that the owner has renewed its lease.
    pub(in crate::core::manager) fn renewed(
        &mut self,
        owner: &Owner,
        lease: Lease,
        bind: Option<Bind>,
        client: Option<ConnectionId>,
    ) {
        self.note_held(owner, HoldRecord { end: lease.end, since: None, client });
        self.parts.granted_keys.insert(self.name);
        self.set_lease(owner, lease);
        if let Some(bind) = bind {
            self.take_over(owner, bind);
            self.bind(owner, NewBind::new(bind, BindMode::ReplaceAll, self.now.mono), None, lease);
        }
    }

    /// Lets a renewal take over the owner's grants in flight too. A client may read its grant, renew on
    /// another connection and close the waiting one, all before the delivery is known.
    pub(super) fn take_over(&mut self, owner: &Owner, by: Bind) {
        let Some(state) = self.lock.and_then(|lock| self.parts.state(lock)) else { return };
        if !state.unconfirmed().any_in_flight() {
            return;
        }
        let granted: SmallVec<[WaiterId; 2]> = state.unconfirmed().in_flight_to(owner).collect();
        for id in granted {
            self.parts.waiters.take_over(id, by);
        }
    }
}
