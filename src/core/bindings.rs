// SPDX-License-Identifier: MIT

//! Holds that depend on a connection: renewed while it is open, or released when it closes.
//!
//! A binding belongs to one owner's hold on a lock and ends with it. A later hold under the same name starts
//! without one. Changes caused by bindings are written when the lock is reconciled.

use std::collections::BTreeSet;

use foldhash::HashMap;
use smallvec::SmallVec;

use super::binding::{Binding, NewBind};
use super::ended::EndedRequests;
use super::lease::{Lease, SetLease};
use super::schedule::earlier;
use super::small_map::SmallMap;
use super::spare::free_spare;
use super::table::LockIdx;
use super::{ConnectionId, Holders, LockId, MonoUs, Now, Owner, Records, ReleaseScope, RequestId, WallMs};

/// Maximum number of bindings per sweep.
const SWEEP_BATCH: usize = 1_000;

/// Number of upcoming renewals that are searched for holds of one lock.
const RENEWAL_SCAN_LIMIT: usize = 256;

/// A hold that depends on a connection.
type BoundHold = (LockIdx, Owner);

/// The bindings of one lock.
#[derive(Default)]
struct LockBindings {
    bindings: SmallMap<Owner, Binding>,
    /// Owners whose holds must end because a connection closed.
    closed: SmallMap<Owner, ()>,
    /// Whether further holds are due for a joint renewal in the next step.
    has_more_renewals: bool,
    /// Whether some bindings may belong to holds that have ended.
    doubtful: bool,
}

/// The owners whose holds a step may have ended.
#[derive(Clone, Copy)]
pub(super) enum AffectedOwners<'a> {
    /// The calling owner only.
    Only(&'a Owner),
    Any,
}

/// All bindings with their schedules, and the requests that had one.
#[derive(Default)]
pub(super) struct Bindings {
    /// The bindings of each lock that has any.
    by_lock: HashMap<LockIdx, LockBindings>,
    /// The holds that depend on each connection.
    by_connection: HashMap<ConnectionId, SmallMap<BoundHold, ()>>,
    /// Times of the next renewals by watchdogs. Each binding has its time too.
    renewals: BTreeSet<(MonoUs, BoundHold)>,
    /// Times at which bindings are swept for requests that can no longer be repeated. Each binding has its
    /// time too.
    sweeps: BTreeSet<(MonoUs, BoundHold)>,
    /// Requests whose hold has ended, and owners whose holds ended with a connection.
    ended: EndedRequests,
    /// Latest time until which a request that was granted here may be repeated.
    requests_until: MonoUs,
    /// Number of holds that end with a connection.
    ephemeral: usize,
    /// Whether this server is not the primary. Bindings are kept in case it becomes the primary again.
    suspended: bool,
}

impl Bindings {
    /// Whether a hold of this lock depends on a connection, or did.
    #[inline(always)]
    pub(super) fn knows(&self, lock: LockIdx) -> bool {
        !self.by_lock.is_empty() && self.by_lock.contains_key(&lock)
    }

    /// Whether any hold depends on a connection.
    pub(super) fn any_bound(&self) -> bool {
        !self.by_connection.is_empty()
    }

    fn binding(&mut self, lock: LockIdx, owner: &Owner) -> Option<&mut Binding> {
        if self.by_lock.is_empty() {
            return None;
        }
        self.by_lock.get_mut(&lock)?.bindings.get_mut(owner)
    }

    /// Makes the owner's hold depend on a connection.
    #[inline(always)]
    pub(super) fn bind(
        &mut self,
        (lock, owner): (LockIdx, &Owner),
        bind: NewBind,
        id: Option<&RequestId>,
        lease: Lease,
        now: Now,
    ) {
        let bindings = &mut self.by_lock.entry(lock).or_default().bindings;
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
        plan(&mut self.sweeps, &hold, sweep_at, binding.sweep_at());
        plan(&mut self.renewals, &hold, due, binding.due());
        for other in replaced {
            unlink(&mut self.by_connection, other, &hold);
        }
        if depends {
            self.by_connection.entry(connection).or_default().insert(hold, ());
        }
    }

    /// Notes that the owner has set its lease: the next renewal is due after a third of it.
    pub(super) fn note_lease(&mut self, lock: LockIdx, owner: &Owner, lease: Lease, now: Now) {
        self.reschedule(lock, owner, |binding| binding.note_lease(lease, now));
    }

    /// Notes a new end of the owner's lease. The renewed length stays the same; the next renewal may become
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
        if before != after {
            plan(&mut self.renewals, &(lock, owner.clone()), before, after);
        }
    }

    /// The binding of the owner's hold, if it is certain and has a connection.
    pub(super) fn binding_of(&self, lock: LockIdx, owner: &Owner) -> Option<&Binding> {
        let bound = self.by_lock.get(&lock).filter(|bound| !bound.doubtful && !self.suspended)?;
        bound.bindings.get(owner).filter(|binding| !binding.is_doubtful() && binding.client().is_some())
    }

    /// Whether this request bound the owner's hold to a connection.
    pub(super) fn has_bound(&self, lock: LockIdx, owner: &Owner, id: &RequestId) -> bool {
        let binding = self.by_lock.get(&lock).and_then(|bound| bound.bindings.get(owner));
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

    /// Notes that a request got a hold for its owner, after any earlier request with the same id.
    pub(super) fn note_granted(
        &mut self,
        lock: impl FnOnce() -> LockId,
        (owner, id): (&Owner, &RequestId),
        now: Now,
    ) {
        self.requests_until = self.requests_until.max(repeatable_until(id.ttl_ms, now));
        if !self.ended.is_empty() {
            self.ended.note_granted(lock(), owner, id);
        }
    }

    /// Notes that the hold of this request was released. The owner's remaining holds do not depend on its
    /// connection, unless another call bound them too.
    pub(super) fn unbind_request(&mut self, lock: LockIdx, owner: &Owner, id: &RequestId, now: Now) {
        let Some(binding) = self.binding(lock, owner) else { return };
        let (before, was_ephemeral) = (binding.due(), binding.is_ephemeral());
        let Some(connection) = binding.unbind_request(id, now) else { return };
        let (hold, after) = ((lock, owner.clone()), binding.due());
        let is_ephemeral = binding.is_ephemeral();
        self.ephemeral -= usize::from(was_ephemeral && !is_ephemeral);
        plan(&mut self.renewals, &hold, before, after);
        unlink(&mut self.by_connection, connection, &hold);
        self.drop_if_idle(&hold, now.mono);
    }

    /// Handles one of the holds that depended on a closed connection. Returns its lock, and whether the hold
    /// must end; `None` if no hold is left.
    pub(super) fn close_next(&mut self, connection: ConnectionId, now: Now) -> Option<(LockIdx, bool)> {
        let holds = self.by_connection.get_mut(&connection)?;
        let hold = holds.pop_first().map(|(hold, ())| hold);
        if holds.is_empty() {
            self.by_connection.remove(&connection);
            free_spare(&mut self.by_connection);
        }
        self.close_hold(connection, hold?, now)
    }

    /// Handles this hold if it depended on the closed connection.
    pub(super) fn close_one(&mut self, connection: ConnectionId, hold: &BoundHold, now: Now) {
        let Some(holds) = self.by_connection.get(&connection) else { return };
        if holds.get(hold).is_some() {
            unlink(&mut self.by_connection, connection, hold);
            self.close_hold(connection, hold.clone(), now);
        }
    }

    fn close_hold(&mut self, connection: ConnectionId, hold: BoundHold, now: Now) -> Option<(LockIdx, bool)> {
        let bound = self.by_lock.get_mut(&hold.0);
        let bound = bound.and_then(|bound| Some((bound.bindings.get_mut(&hold.1)?, &mut bound.closed)));
        let Some((binding, closed)) = bound else {
            return defect!("a connection is linked to a missing binding", None);
        };
        let (was_ephemeral, due) = (binding.is_ephemeral(), binding.due());
        let ends = binding.connection_closed(connection);
        if ends {
            closed.insert(hold.1.clone(), ());
        }
        self.ephemeral -= usize::from(was_ephemeral && !binding.is_ephemeral());
        plan(&mut self.renewals, &hold, due, binding.due());
        self.drop_if_idle(&hold, now.mono);
        Some((hold.0, ends))
    }

    /// The owners whose holds must end because a connection closed.
    pub(super) fn closed(&self, lock: LockIdx) -> impl Iterator<Item = &Owner> {
        let bound = self.by_lock.get(&lock).filter(|_| !self.suspended);
        bound.into_iter().flat_map(|bound| bound.closed.keys())
    }

    /// Number of holds that must end because a connection closed.
    pub(super) fn closed_len(&self, lock: LockIdx) -> usize {
        let bound = self.by_lock.get(&lock).filter(|_| !self.suspended);
        bound.map_or(0, |bound| bound.closed.len())
    }

    /// Number of holds of this lock that depend on connections.
    pub(super) fn len_of(&self, lock: LockIdx) -> usize {
        if self.by_lock.is_empty() {
            return 0;
        }
        self.by_lock.get(&lock).map_or(0, |bound| bound.bindings.len())
    }

    /// The locks with a renewal due by now. They stay due until the lock is reconciled.
    pub(super) fn due_for_renewal(&self, now: Now) -> impl Iterator<Item = LockIdx> + '_ {
        self.renewals.iter().take_while(move |(at, _)| *at <= now.mono).map(|(_, (lock, _))| *lock)
    }

    /// Time of the next renewal.
    pub(super) fn next_renewal(&self) -> Option<MonoUs> {
        self.renewals.first().map(|(at, _)| *at)
    }

    /// Time at which [`sweep`](Bindings::sweep) is due.
    pub(super) fn next_sweep(&self) -> Option<MonoUs> {
        earlier(self.sweeps.first().map(|(at, _)| *at), self.ended.due())
    }

    /// Forgets requests that can no longer be repeated, and bindings kept for them. Returns the locks of
    /// these bindings.
    pub(super) fn sweep(&mut self, now: MonoUs) -> Vec<LockIdx> {
        self.ended.sweep(now);
        let mut dropped = Vec::new();
        for _ in 0..SWEEP_BATCH {
            if self.sweeps.first().is_none_or(|(at, _)| *at > now) {
                break;
            }
            let Some((_, hold)) = self.sweeps.pop_first() else { break };
            let Some(binding) = self.binding(hold.0, &hold.1) else { continue };
            let again = binding.sweep(now);
            plan(&mut self.sweeps, &hold, None, again);
            if again.is_none() && self.drop_if_idle(&hold, now) {
                dropped.push(hold.0);
            }
        }
        dropped
    }

    fn drop_if_idle(&mut self, hold: &BoundHold, now: MonoUs) -> bool {
        let idle = self.binding(hold.0, &hold.1).is_some_and(|binding| binding.is_idle(now));
        if idle {
            self.take(hold);
        }
        idle
    }

    /// Removes a binding from every index.
    #[inline(always)]
    fn take(&mut self, hold: &BoundHold) -> Option<impl Iterator<Item = (RequestId, MonoUs)>> {
        let bound = self.by_lock.get_mut(&hold.0)?;
        let binding = bound.bindings.get_mut(&hold.1)?;
        if !bound.closed.is_empty() {
            bound.closed.remove(&hold.1);
        }
        self.ephemeral -= usize::from(binding.is_ephemeral());
        plan(&mut self.renewals, hold, binding.due(), None);
        plan(&mut self.sweeps, hold, binding.sweep_at(), None);
        for connection in binding.each_connection() {
            unlink(&mut self.by_connection, connection, hold);
        }
        let requests = binding.take_requests();
        bound.bindings.discard(&hold.1);
        if bound.bindings.is_empty() {
            self.by_lock.remove(&hold.0);
            free_spare(&mut self.by_lock);
        }
        Some(requests)
    }

    /// Ends the binding of an owner that holds nothing.
    #[inline(always)]
    fn unbind(&mut self, hold: &BoundHold, name: &LockId) {
        for (request, until) in self.take(hold).into_iter().flatten() {
            self.ended.insert(name.clone(), request, until);
        }
    }

    /// Ends the bindings of owners without a hold. `affected` names the owners to check, and `ended` tells whether
    /// an owner holds nothing.
    #[inline(always)]
    pub(super) fn unbind_ended(
        &mut self,
        lock: LockIdx,
        name: &LockId,
        affected: AffectedOwners<'_>,
        ended: impl Fn(&Owner) -> bool,
    ) {
        let Some(bound) = self.by_lock.get(&lock) else { return };
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

    /// Stops renewals and releases: this server is no longer the primary.
    pub(super) fn suspend(&mut self) {
        self.suspended = true;
        self.renewals.clear();
        for bound in self.by_lock.values_mut() {
            bound.doubtful = true;
            bound.bindings.values_mut().for_each(Binding::suspend);
        }
    }

    /// Resumes after a promotion. Returns the locks to reconcile.
    pub(super) fn resume(&mut self) -> Vec<LockIdx> {
        self.suspended = false;
        self.by_lock.keys().copied().collect()
    }

    /// Notes that the owners may have different holds by now.
    pub(super) fn doubt(&mut self, lock: LockIdx) {
        if let Some(bound) = self.by_lock.get_mut(&lock) {
            bound.doubtful = true;
            bound.bindings.values_mut().for_each(Binding::doubt);
        }
    }

    /// Ends holds whose connection has closed, and renews leases that are due, at most a portion of each.
    /// Returns the owners whose holds ended, and the leases that were set.
    #[inline(always)]
    pub(super) fn follow(
        &mut self,
        (lock, name): (LockIdx, &LockId),
        (affected, portion): (AffectedOwners<'_>, usize),
        holders: &mut Holders,
        records: &mut dyn Records,
        now: Now,
    ) -> (Vec<Owner>, Vec<(Owner, SetLease, WallMs)>) {
        if self.suspended || !self.knows(lock) {
            return (Vec::new(), Vec::new());
        }
        self.settle_doubts(lock, name, holders, now);
        let closed = self.end_closed((lock, name), (affected, portion), holders, records, now);
        let mut set = Vec::new();
        // Nearly always, no renewal is due.
        if self.next_renewal().is_none_or(|at| at > now.mono) && !self.has_more_renewals(lock) {
            return (closed, set);
        }
        for (owner, ms) in self.due_of(lock, portion, now) {
            let Some(hold) = holders.of(owner.as_bytes()) else {
                self.unbind(&(lock, owner), name);
                continue;
            };
            // Another call may have set a later end than the renewal would.
            let wanted = now.wall.saturating_add(ms);
            let end = wanted.max(hold.expires_at);
            if end > hold.expires_at {
                let _ = holders.renew(owner.as_bytes(), end);
            }
            self.note_lease(lock, &owner, Lease::new(ms, end), now);
            set.push((owner, SetLease::AtLeast(wanted), end));
        }
        (closed, set)
    }

    /// Whether the previous step left further holds of this lock for a joint renewal.
    pub(super) fn has_more_renewals(&self, lock: LockIdx) -> bool {
        self.by_lock.get(&lock).is_some_and(|bound| bound.has_more_renewals)
    }

    /// The owners whose leases to renew, with the lengths in milliseconds. If one is due, others due soon are
    /// included, at most a portion of those due first.
    fn due_of(&mut self, lock: LockIdx, portion: usize, now: Now) -> Vec<(Owner, i64)> {
        let Some(bound) = self.by_lock.get_mut(&lock) else { return Vec::new() };
        let has_more_renewals = std::mem::take(&mut bound.has_more_renewals);
        let is_due =
            |binding: &Binding| !binding.is_closed() && binding.due().is_some_and(|at| at <= now.mono);
        let due = |(owner, binding): (&Owner, &Binding)| Some((owner.clone(), binding.due_lease(now)?));
        if bound.bindings.len() <= portion {
            if !bound.bindings.iter().any(|(_, binding)| is_due(binding)) {
                return Vec::new();
            }
            return bound.bindings.iter().filter_map(due).collect();
        }
        // Renewals of other locks may lie in between, so the search is bounded.
        let first = self.renewals.iter().take(RENEWAL_SCAN_LIMIT).filter(|(_, (of, _))| *of == lock);
        let first = first.filter_map(|(_, (_, owner))| Some((owner, bound.bindings.get(owner)?)));
        let mut first = first.skip_while(|(_, binding)| binding.is_closed()).peekable();
        if !has_more_renewals && !first.peek().is_some_and(|(_, binding)| is_due(binding)) {
            return Vec::new();
        }
        let first: Vec<_> = first.filter_map(due).take(portion).collect();
        bound.has_more_renewals = first.len() == portion;
        first
    }

    /// Ends holds whose connection has closed: the caller's, and a portion of the others. Returns their
    /// owners.
    #[inline(always)]
    pub(super) fn end_closed(
        &mut self,
        (lock, name): (LockIdx, &LockId),
        (affected, portion): (AffectedOwners<'_>, usize),
        holders: &mut Holders,
        records: &mut dyn Records,
        now: Now,
    ) -> Vec<Owner> {
        let Some(bound) = self.by_lock.get(&lock).filter(|bound| !bound.closed.is_empty()) else {
            return Vec::new();
        };
        let own = match affected {
            AffectedOwners::Only(owner) => Some(owner).filter(|owner| bound.closed.get(owner).is_some()),
            AffectedOwners::Any => None,
        };
        let others = bound.closed.keys().filter(|owner| own != Some(*owner)).take(portion);
        let ended: Vec<Owner> = own.into_iter().chain(others).cloned().collect();
        for owner in &ended {
            let Some(binding) = bound.bindings.get(owner) else { continue };
            let _ = holders.release(owner.as_bytes(), ReleaseScope::All, None);
            binding.requests(now).for_each(|request| records.forget_grant(request));
            // Requests that did not bind the hold, or that another server granted, are unknown here.
            let was_held_before = binding.held_since().is_none();
            let until = if was_held_before { repeatable_until(records.request_ttl_ms(), now) } else { 0 };
            let until = until.max(self.requests_until);
            if until >= now.mono {
                self.ended.close(name.clone(), owner.clone(), until);
            }
        }
        for owner in &ended {
            self.unbind(&(lock, owner.clone()), name);
        }
        ended
    }

    /// Ends bindings whose owner has a different hold now.
    #[inline(always)]
    fn settle_doubts(&mut self, lock: LockIdx, name: &LockId, holders: &Holders, now: Now) {
        let Some(bound) = self.by_lock.get_mut(&lock) else { return };
        if !std::mem::take(&mut bound.doubtful) {
            return;
        }
        let doubtful = bound.bindings.iter().filter(|(_, binding)| binding.is_doubtful());
        for owner in doubtful.map(|(owner, _)| owner.clone()).collect::<Vec<_>>() {
            let end = holders.of(owner.as_bytes()).map(|hold| hold.expires_at);
            let hold = (lock, owner);
            let Some(binding) = self.binding(lock, &hold.1) else { continue };
            if binding.settle_doubt(end) {
                let before = binding.due();
                binding.plan_renewal(now.mono);
                let after = binding.due();
                plan(&mut self.renewals, &hold, before, after);
            } else {
                self.unbind(&hold, name);
            }
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

    /// Numbers of connections with bindings, of remembered ended requests, and of scheduled sweeps.
    pub(super) fn lens(&self) -> (usize, usize, usize) {
        (self.by_connection.len(), self.ended.len(), self.sweeps.len())
    }

    /// Fails if an index disagrees with the bindings. `knows` tells whether a lock is in the table.
    #[cfg(test)]
    pub(super) fn verify(&self, knows: impl Fn(LockIdx) -> bool) {
        let (mut links, mut renewals, mut sweeps) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut ephemeral = 0;
        for (lock, bound) in &self.by_lock {
            assert!(
                knows(*lock) && !bound.bindings.is_empty(),
                "{lock:?} has bindings and is not in the table"
            );
            let closed = bound.bindings.iter().filter(|(_, binding)| binding.is_closed());
            assert!(
                closed.map(|(owner, _)| owner).eq(bound.closed.keys()),
                "the index of closed holds is wrong"
            );
            for (owner, binding) in bound.bindings.iter() {
                let hold = (*lock, owner.clone());
                links.extend(binding.each_connection().map(|connection| (connection, hold.clone())));
                renewals.extend(binding.due().map(|at| (at, hold.clone())));
                sweeps.extend(binding.sweep_at().map(|at| (at, hold.clone())));
                ephemeral += usize::from(binding.is_ephemeral());
                assert!(
                    !binding.is_doubtful() || bound.doubtful,
                    "the doubt about {hold:?} is never settled"
                );
            }
        }
        let linked: BTreeSet<_> = self
            .by_connection
            .iter()
            .flat_map(|(connection, holds)| holds.iter().map(|(hold, ())| (*connection, hold.clone())))
            .collect();
        assert_eq!(linked, links, "the index by connection is wrong");
        assert_eq!(self.renewals, renewals, "the schedule of renewals is wrong");
        assert_eq!(self.sweeps, sweeps, "the schedule of sweeps is wrong");
        assert_eq!(self.ephemeral, ephemeral, "the holds that end with a connection are miscounted");
    }
}

/// Time until which a request granted now may be repeated.
fn repeatable_until(ttl_ms: i64, now: Now) -> MonoUs {
    now.mono.saturating_add(ttl_ms.unsigned_abs().saturating_mul(1000))
}

/// Moves an entry from one time to another.
#[inline(always)]
fn plan(
    planned: &mut BTreeSet<(MonoUs, BoundHold)>,
    hold: &BoundHold,
    before: Option<MonoUs>,
    after: Option<MonoUs>,
) {
    if before == after {
        return;
    }
    if let Some(before) = before {
        planned.remove(&(before, hold.clone()));
    }
    if let Some(after) = after {
        planned.insert((after, hold.clone()));
    }
}

#[inline(always)]
fn unlink(
    by_connection: &mut HashMap<ConnectionId, SmallMap<BoundHold, ()>>,
    connection: ConnectionId,
    hold: &BoundHold,
) {
    if let Some(holds) = by_connection.get_mut(&connection) {
        holds.discard(hold);
        if holds.is_empty() {
            by_connection.remove(&connection);
            free_spare(by_connection);
        }
    }
}
