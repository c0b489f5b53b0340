// SPDX-License-Identifier: MIT

//! Confirms grants, either by a repeated call or by a renewal.

use super::output::ExpectedEnd;
use super::Step;
use crate::core::bindings::binding::{BindMode, NewBind};
use crate::core::held::HoldRecord;
use crate::core::lease::{Lease, SetLease};
use crate::core::queue::wait::{Wait, WaitState};
use crate::core::{Bind, ConnectionId, Counted, Decision, Hold, Owner, Reply, Request, WaiterId};
use smallvec::SmallVec;

impl Step<'_> {
    /// Answers a repeated call. Its hold then depends on the new connection. The grant is not revoked if the
    /// first answer is lost.
    pub(in crate::core::manager) fn repeat(&mut self, request: &Request, reply: &Reply) {
        let owner = reply.owner.as_deref().unwrap_or(&request.owner);
        let Some(id) = &request.id else { return };
        let in_flight = self.lock.and_then(|lock| self.parts.waiters.of_request(lock, id));
        let in_flight = in_flight.filter(|(_, wait)| wait.state() == WaitState::Granted).map(|(id, _)| id);
        if in_flight.is_some() && self.any_notified() && self.confirm(request).is_some() {
            return;
        }
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

    /// Confirms the grant with `NOTIFY` that this request got. Sets the whole lease and starts the bindings.
    /// Returns `None` if there is no such grant.
    pub(in crate::core::manager) fn confirm(&mut self, request: &Request) -> Option<Reply> {
        let id = request.id.as_ref()?;
        let (granted, wait) = self.parts.waiters.of_request(self.lock?, id)?;
        if wait.state() != WaitState::Granted || wait.request().notify.is_none() {
            return None;
        }
        let (reply, wait) = self.confirm_wait(granted, request.lease_ms)?;
        let lease = self.set_whole_lease(request)?;
        if let Some(bind) = request.bind {
            let bind = NewBind { begins: wait.begins(), ..NewBind::new(bind, BindMode::Add, wait.since()) };
            self.parts.bindings.bind(wait.lock(), &request.owner, bind, Some(id), lease, self.now);
            self.parts.statistics.has_bound(self.parts.bindings.count());
        }
        Some(reply)
    }

    /// Confirms a recorded grant with `NOTIFY`, made by another server, or by this one before it became a
    /// replica. Returns false if the hold has ended: then the grant counts as never made.
    pub(in crate::core::manager) fn confirm_recorded(&mut self, request: &Request, reply: &Reply) -> bool {
        let Some(id) = &request.id else { return false };
        if self.set_whole_lease(request).is_none() {
            self.records.forget_grant(id);
            return false;
        }
        self.records.remember_grant(id, reply, self.now);
        true
    }

    /// Confirms the owner's grants with `NOTIFY`, if it has no other holds. A renewal then proves that it
    /// knows of them.
    pub(in crate::core::manager) fn confirm_all_of(&mut self, owner: &Owner, lease_ms: i64) {
        let granted = self.notified_grants(owner);
        let holds = self.holders.get(owner.as_bytes()).map_or(0, Hold::total);
        if i64::try_from(granted.len()).is_ok_and(|granted| granted == holds) {
            granted.into_iter().for_each(|id| {
                self.confirm_wait(id, lease_ms);
            });
        }
    }

    /// The owner's grants with `NOTIFY` in flight, in order.
    pub(super) fn notified_grants(&self, owner: &Owner) -> Vec<WaiterId> {
        let Some(state) = self.lock.and_then(|lock| self.parts.state(lock)) else { return Vec::new() };
        let is_notified =
            |id: &WaiterId| self.parts.waiters.get(*id).is_some_and(|wait| wait.request().notify.is_some());
        state.unconfirmed().in_flight_to(owner).filter(is_notified).collect()
    }

    /// Confirms a grant with `NOTIFY`, whose hold gets this lease. Returns its reply.
    pub(super) fn confirm_wait(&mut self, granted: WaiterId, lease_ms: i64) -> Option<(Reply, Wait)> {
        let (wait, _) = self.parts.confirm(granted, self.now)?;
        if lease_ms < wait.request().lease_ms {
            self.expected_end = ExpectedEnd::MaybeSooner;
        }
        if let Some(state) = self.state_mut() {
            state.note_whole_lease(false);
        }
        let request = wait.request();
        // The new end of the lease may be certain now.
        self.revoke_marked(wait.lock(), Some(&request.owner), usize::MAX);
        let (Some(notify), Some(id)) = (&request.notify, &request.id) else {
            return defect!("a grant without NOTIFY is confirmed by a call", None);
        };
        self.parts.waiters.notified.note_confirmed(notify.connection);
        self.parts.statistics.count(Counted::Confirmed);
        let hold = self.holders.get(request.owner.as_bytes())?;
        let reply = match self.records.granted(id) {
            // Other holds of the owner may have begun and ended since the grant.
            Ok(Some(reply)) => Reply { holds: hold.total(), ..reply },
            // A foreign write deleted the record.
            _ => request.reply(hold.total(), hold.token.filter(|_| request.fence)),
        };
        self.records.remember_grant(id, &reply, self.now);
        Some((reply, wait))
    }

    /// Sets the owner's lease to the length that the request gives, from now on. Returns `None` if the owner
    /// holds nothing.
    pub(super) fn set_whole_lease(&mut self, request: &Request) -> Option<Lease> {
        let owner = &request.owner;
        let before = self.holders.get(owner.as_bytes())?.expires_at;
        let set = self.keep_lease(owner, request.set_lease(self.now));
        let end = set.after(Some(before));
        let _ = self.holders.renew(owner.as_bytes(), end);
        self.note_held(owner, HoldRecord { end, since: None, client: request.client });
        let lease = request.lease(end, self.now);
        if let Some(lock) = self.lock {
            self.parts.note_setting(lock, owner, Some((set, end)), None);
            self.parts.bindings.note_lease(lock, owner, lease, self.now);
            self.revoke_marked(lock, Some(owner), usize::MAX);
        }
        Some(lease)
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
