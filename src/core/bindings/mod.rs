// SPDX-License-Identifier: MIT

//! Holds that depend on a connection or a session: renewed while it is open, or released when it ends.
//!
//! A binding belongs to one owner's hold on a lock and ends with it. A later hold of the same owner starts
//! without a binding. Changes caused by bindings are written when the lock is reconciled.
//!
//! * [`binding`]: the binding of one hold. [`indexes`]: all bound holds, by connection and by time.
//! * [`closed`]: holds whose connection has closed. [`numbers`]: holds with numbers in sessions.
//! * [`reconcile`]: the changes that a lock's step makes: ended holds, and renewed leases.
//! * [`ended`]: requests whose hold has ended.

pub(in crate::core) mod binding;
mod closed;
mod ended;
mod indexes;
mod numbers;
mod reconcile;
#[cfg(test)]
mod verify;

pub(in crate::core) use reconcile::{Followed, OpenBindings, RenewedLease};

use smallvec::SmallVec;

use super::lease::Lease;
use super::schedule::earlier;
use super::sessions::Loss;
use super::small_map::SmallMap;
use super::table::LockIdx;
use super::{AffectedOwners, LockId, MonoUs, Now, Owner, RequestId, WallMs};
use binding::{Binding, NewBind};
use ended::EndedRequests;
use indexes::{BoundHold, HoldSchedule, HoldsByConnection, LockMap};

/// Maximum number of bindings per sweep.
const SWEEP_BATCH: usize = 1_000;

/// The bindings of one lock.
#[derive(Default)]
struct LockBindings {
    bindings: SmallMap<Owner, Binding>,
    /// Owners whose holds must end because a connection closed.
    closed: SmallMap<Owner, ()>,
    /// Owners with holds that must be released because a session is over.
    ended: SmallMap<Owner, ()>,
    /// Whether further holds are due for a joint renewal in the next step.
    has_more_renewals: bool,
    /// Whether some bindings may belong to holds that have ended.
    unverified: bool,
}

/// All bindings with their schedules, and requests that had a binding.
#[derive(Default)]
pub(super) struct Bindings {
    /// The bindings of each lock that has any.
    by_lock: LockMap<LockBindings>,
    /// The holds that depend on each connection.
    by_connection: HoldsByConnection,
    /// Times of the next renewals by watchdogs. Each binding stores its time too.
    renewals: HoldSchedule,
    /// Times at which bindings are swept for requests that can no longer be repeated. Each binding stores its
    /// time too.
    sweeps: HoldSchedule,
    /// Requests whose hold has ended, and owners whose holds ended with a connection.
    ended: EndedRequests,
    /// Latest time until which any request granted here may be repeated.
    requests_until: MonoUs,
    /// Number of holds that end with a connection.
    ephemeral: usize,
    /// Number of owners with holds that must be released because a session is over.
    ended_owners: usize,
    /// Numbers whose holds have ended without a call of their session.
    losses: Vec<Loss>,
    /// Whether this server is not the primary. Bindings are kept in case the server becomes the primary
    /// again.
    suspended: bool,
}

impl Bindings {
    /// Whether a hold of this lock depends on a connection, or once did.
    #[inline(always)]
    pub(super) fn knows(&self, lock: LockIdx) -> bool {
        self.by_lock.contains(lock)
    }

    /// Whether any hold depends on a connection.
    pub(super) fn any_bound(&self) -> bool {
        !self.by_connection.is_empty()
    }

    fn binding(&mut self, lock: LockIdx, owner: &Owner) -> Option<&mut Binding> {
        self.by_lock.get_mut(lock)?.bindings.get_mut(owner)
    }

    /// Makes the owner's hold depend on a connection.
    pub(super) fn bind(
        &mut self,
        lock: LockIdx,
        owner: &Owner,
        bind: NewBind,
        id: Option<&RequestId>,
        lease: Lease,
        now: Now,
    ) {
        let bindings = &mut self.by_lock.get_or_default(lock).bindings;
        let new = || Binding::new(lease, bind.begins.then_some(bind.since));
        let Some(binding) = bindings.get_or_insert_with(owner, new) else {
            return defect!("a new binding is missing");
        };
        let hold = (lock, owner.clone());
        let connection = bind.bind.connection;
        let (sweep_at, due, was_ephemeral) = (binding.sweep_at(), binding.due(), binding.is_ephemeral());
        let replaced = binding.bind(bind, id, lease, now);
        self.ephemeral += usize::from(binding.is_ephemeral() && !was_ephemeral);
        binding.note_lease(lease, now);
        let depends = binding.depends_on(connection);
        self.sweeps.plan(hold.0, &hold.1, sweep_at, binding.sweep_at());
        self.renewals.plan(hold.0, &hold.1, due, binding.due());
        for other in replaced {
            self.by_connection.remove(other, &hold);
        }
        if depends {
            self.by_connection.insert(connection, hold);
        }
    }

    /// Records that the owner has set its lease: the next renewal is due after a third of it.
    pub(super) fn note_lease(&mut self, lock: LockIdx, owner: &Owner, lease: Lease, now: Now) {
        self.reschedule(lock, owner, |binding| binding.note_lease(lease, now));
    }

    /// Records a new end of the owner's lease. The renewed length stays the same; the next renewal may become
    /// due earlier.
    pub(super) fn note_lease_end(&mut self, lock: LockIdx, owner: &Owner, end: WallMs, now: Now) {
        self.reschedule(lock, owner, |binding| binding.note_lease_end(end, now));
    }

    /// Changes the binding of an owner's hold, if it has one, and reschedules its renewal.
    fn reschedule(&mut self, lock: LockIdx, owner: &Owner, change: impl FnOnce(&mut Binding)) {
        let Some(binding) = self.binding(lock, owner) else { return };
        let before = binding.due();
        change(binding);
        let after = binding.due();
        self.renewals.plan(lock, owner, before, after);
    }

    /// The binding of the owner's hold, if it is verified and has a connection or a session.
    pub(super) fn binding_of(&self, lock: LockIdx, owner: &Owner) -> Option<&Binding> {
        let bound = self.by_lock.get(lock).filter(|bound| !bound.unverified && !self.suspended)?;
        bound.bindings.get(owner).filter(|binding| !binding.is_unverified() && binding.is_bound())
    }

    /// Whether this request bound the owner's hold to a connection.
    pub(super) fn has_bound(&self, lock: LockIdx, owner: &Owner, id: &RequestId) -> bool {
        let binding = self.by_lock.get(lock).and_then(|bound| bound.bindings.get(owner));
        binding.is_some_and(|binding| binding.has_bound(id))
    }

    /// Whether the hold that this request got has ended.
    pub(super) fn has_ended(&self, lock: impl FnOnce() -> LockId, id: &RequestId, now: Now) -> bool {
        !self.ended.is_empty() && self.ended.contains(&(lock(), id.clone()), now.mono)
    }

    /// Whether the owner's holds ended with a connection since this request was granted, so that its hold may
    /// be among them.
    pub(super) fn ended_with_connection(
        &self,
        lock: impl FnOnce() -> LockId,
        owner: &Owner,
        id: &RequestId,
        now: Now,
    ) -> bool {
        !self.ended.is_empty() && self.ended.was_closed(lock(), owner, id, now.mono)
    }

    /// Records that a request got a hold for its owner. Supersedes an earlier request with the same id.
    pub(super) fn note_granted(
        &mut self,
        lock: impl FnOnce() -> LockId,
        owner: &Owner,
        id: &RequestId,
        now: Now,
    ) {
        self.requests_until = self.requests_until.max(repeatable_until(id.ttl_ms, now));
        if !self.ended.is_empty() {
            self.ended.note_granted(lock(), owner, id);
        }
    }

    /// Records that the hold of this request was released. The owner's remaining holds no longer depend on
    /// its connection, unless another call bound them too.
    pub(super) fn unbind_request(&mut self, lock: LockIdx, owner: &Owner, id: &RequestId, now: Now) {
        let Some(binding) = self.binding(lock, owner) else { return };
        let (before, was_ephemeral) = (binding.due(), binding.is_ephemeral());
        let Some(connection) = binding.unbind_request(id, now) else { return };
        let (hold, after) = ((lock, owner.clone()), binding.due());
        let is_ephemeral = binding.is_ephemeral();
        self.ephemeral -= usize::from(was_ephemeral && !is_ephemeral);
        self.renewals.plan(hold.0, &hold.1, before, after);
        self.by_connection.remove(connection, &hold);
        self.drop_if_idle(&hold, now.mono);
    }

    /// Number of holds of this lock that depend on connections.
    pub(super) fn len_of(&self, lock: LockIdx) -> usize {
        self.by_lock.get(lock).map_or(0, |bound| bound.bindings.len())
    }

    /// The locks with a renewal that is due now. They stay due until they are reconciled.
    pub(super) fn due_for_renewal(&self, now: Now) -> impl Iterator<Item = LockIdx> + '_ {
        self.renewals.iter().take_while(move |(at, _)| *at <= now.mono).map(|(_, (lock, _))| *lock)
    }

    /// Time of the next renewal.
    pub(super) fn next_renewal(&self) -> Option<MonoUs> {
        self.renewals.first()
    }

    /// Time at which [`sweep`](Bindings::sweep) is due.
    pub(super) fn next_sweep(&self) -> Option<MonoUs> {
        earlier(self.sweeps.first(), self.ended.due())
    }

    /// Forgets requests that can no longer be repeated, and bindings that were kept only for them. Returns
    /// the locks of these bindings.
    pub(super) fn sweep(&mut self, now: MonoUs) -> Vec<LockIdx> {
        self.ended.sweep(now);
        let mut dropped = Vec::new();
        for _ in 0..SWEEP_BATCH {
            let Some(hold) = self.sweeps.pop_due(now) else { break };
            let Some(binding) = self.binding(hold.0, &hold.1) else { continue };
            let again = binding.sweep(now);
            self.sweeps.plan(hold.0, &hold.1, None, again);
            if again.is_none() && self.drop_if_idle(&hold, now) {
                dropped.push(hold.0);
            }
        }
        dropped
    }

    fn drop_if_idle(&mut self, hold: &BoundHold, now: MonoUs) -> bool {
        let idle = self.binding(hold.0, &hold.1).is_some_and(|binding| binding.is_idle(now));
        if idle {
            self.take(hold.0, &hold.1);
        }
        idle
    }

    /// Removes a binding from every index.
    fn take(
        &mut self,
        lock: LockIdx,
        owner: &Owner,
    ) -> Option<impl Iterator<Item = (RequestId, MonoUs)> + use<>> {
        let bound = self.by_lock.get_mut(lock)?;
        let binding = bound.bindings.get_mut(owner)?;
        if !bound.closed.is_empty() {
            bound.closed.remove(owner);
        }
        if !bound.ended.is_empty() {
            self.ended_owners -= usize::from(bound.ended.remove(owner).is_some());
        }
        self.ephemeral -= usize::from(binding.is_ephemeral());
        self.renewals.plan(lock, owner, binding.due(), None);
        self.sweeps.plan(lock, owner, binding.sweep_at(), None);
        for connection in binding.each_connection() {
            self.by_connection.remove(connection, &(lock, owner.clone()));
        }
        let requests = binding.take_requests();
        bound.bindings.discard(owner);
        if bound.bindings.is_empty() {
            self.by_lock.remove(lock);
        }
        Some(requests)
    }

    /// Ends the binding of an owner that holds nothing.
    fn unbind(&mut self, hold: &BoundHold, name: &LockId) {
        self.lose_numbers(hold);
        for (request, until) in self.take(hold.0, &hold.1).into_iter().flatten() {
            self.ended.insert(name.clone(), request, until);
        }
    }

    /// Ends the bindings of owners without a hold. Checks the owners named by `affected`. `ended` returns
    /// whether an owner holds nothing.
    pub(super) fn unbind_ended(
        &mut self,
        lock: LockIdx,
        name: &LockId,
        affected: AffectedOwners<'_>,
        ended: impl Fn(&Owner) -> bool,
    ) {
        let Some(bound) = self.by_lock.get(lock) else { return };
        let gone: SmallVec<[Owner; 1]> = match affected {
            AffectedOwners::Only(owner) => {
                Some(owner).filter(|owner| ended(owner)).cloned().into_iter().collect()
            }
            AffectedOwners::Any => {
                bound.bindings.iter().map(|(owner, _)| owner).filter(|owner| ended(owner)).cloned().collect()
            }
        };
        for owner in gone {
            self.unbind(&(lock, owner), name);
        }
    }

    /// Stops renewals and releases, because this server is no longer the primary.
    pub(super) fn suspend(&mut self) {
        self.suspended = true;
        self.renewals.clear();
        for bound in self.by_lock.values_mut() {
            bound.unverified = true;
            bound.bindings.values_mut().for_each(Binding::suspend);
        }
    }

    /// Resumes after a promotion. Returns the locks to reconcile.
    pub(super) fn resume(&mut self) -> Vec<LockIdx> {
        self.suspended = false;
        self.by_lock.iter().map(|(lock, _)| lock).collect()
    }

    /// Records that the owners' holds may be different ones now.
    pub(super) fn mark_unverified(&mut self, lock: LockIdx) {
        if let Some(bound) = self.by_lock.get_mut(lock) {
            bound.unverified = true;
            bound.bindings.values_mut().for_each(Binding::mark_unverified);
        }
    }

    /// Whether no deadline is pending.
    pub(super) fn has_no_deadline(&self) -> bool {
        self.sweeps.is_empty() && self.ended.is_empty() && self.renewals.is_empty()
    }

    /// Whether no renewal is scheduled.
    #[cfg(test)]
    pub(super) fn has_no_renewal(&self) -> bool {
        self.renewals.is_empty()
    }

    /// Number of renewed holds, and of holds that end with a connection.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.renewals.len(), self.ephemeral)
    }

    /// Number of connections with bindings, of ended requests that are remembered, and of scheduled sweeps.
    pub(super) fn lens(&self) -> (usize, usize, usize) {
        (self.by_connection.len(), self.ended.len(), self.sweeps.len())
    }
}

/// Time until which a request granted now may be repeated.
fn repeatable_until(ttl_ms: i64, now: Now) -> MonoUs {
    now.mono.saturating_add(ttl_ms.unsigned_abs().saturating_mul(1000))
}
