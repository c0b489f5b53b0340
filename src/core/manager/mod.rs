// SPDX-License-Identifier: MIT

//! The lock manager: what can happen to locks, and what follows from it.
//!
//! Only that is remembered which somebody waits for, which depends on a connection, or which is on its way to a client. Who
//! holds a lock is passed in with every call, as the keyspace has it.

mod calls;
mod clock;
mod fast_queue;
mod overview;
mod parts;
mod several;
mod step;
#[cfg(test)]
mod verify;
mod waits;

pub(crate) use fast_queue::FastQueued;
pub(crate) use overview::{Contended, HoldInfo, QueueInfo, WaiterInfo};
pub(crate) use several::{BundleTry, CheckedLock};
pub(crate) use step::{ExpectedEnd, StepOutput};

use std::collections::VecDeque;
use std::ffi::CStr;

use super::binding::{BindMode, NewBind};
use super::bindings::AffectedOwners;
use super::bundles::NewBundle;
use super::granted_keys::GrantedKeys;
use super::searches::{Next, Searches};
use super::table::{LockIdx, LockLookup};
use super::waiters::WaitState;
use super::{
    ConnectionId, Counted, Decision, Hold, HoldEvent, Holders, InboxEvent, LockId, LockRef, Message, MonoUs,
    NotOwner, NotReleased, Notice, Now, Outcome, Owner, Records, Refusal, Release, Renewal, Reply, Request,
    RequestId, Search, Statistics, Verdict, WaitPolicy, WaiterId, WallMs,
};
use parts::{ConnectionEnd, LockState, Parts};
use step::Step;

/// All that is remembered about locks.
///
/// Inputs with a lock in hand: [`acquire`](LockManager::acquire), [`release`](LockManager::release),
/// [`renew`](LockManager::renew), [`cancel`](LockManager::cancel), [`break_lock`](LockManager::break_lock),
/// [`reconcile`](LockManager::reconcile). From clients: [`leave`](LockManager::leave),
/// [`delivered`](LockManager::delivered), [`undelivered`](LockManager::undelivered),
/// [`connection_closed`](LockManager::connection_closed). From foreign writes and the server:
/// [`key_changed`](LockManager::key_changed), [`database_changed`](LockManager::database_changed),
/// [`demote`](LockManager::demote), [`promote`](LockManager::promote). From the clock: [`tick`](LockManager::tick).
/// Outputs: [`next_decision`](LockManager::next_decision), [`next_notice`](LockManager::next_notice),
/// [`next_wakeup`](LockManager::next_wakeup).
#[derive(Default)]
pub(crate) struct LockManager {
    parts: Parts,
}

/// What a foreign write has done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyChange {
    /// Every hold that was on it has ended, by this.
    Gone(HoldEvent),
    /// Its holds may be others now, or have other leases.
    Changed,
}

impl LockManager {
    /// Looks up a lock by its name, for the input that comes next.
    pub(crate) fn look_up<'a>(&self, lock: LockRef<'a>) -> LockLookup<'a> {
        self.parts.table.look_up(lock)
    }

    /// Grants the request if the holders admit it and nobody else comes first. Otherwise queues it, if there is patience for
    /// that; if not, changes nothing but what the queue had coming anyway. A request that was granted before gets the same
    /// answer again, one that is queued already keeps its position. One that has patience lets external clients go first in
    /// their fairness window.
    pub(crate) fn acquire(
        &mut self,
        lock: LockLookup<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        request: &Request,
        policy: WaitPolicy,
        now: Now,
    ) -> (Outcome, StepOutput) {
        let affected = AffectedOwners::Only(&request.owner);
        let mut step = Step::begin(&mut self.parts, lock, affected, holders, records, now);
        step.serve_first();
        (calls::acquire(&mut step, request, policy), step.close())
    }

    /// Queues a request without a look at its lock's key, if it is certain enough that it has to wait and that nothing else is to
    /// be done: see [`fast_queue`]. `None` if it is not; then nothing has changed. `looks_first` if the first in line has to look all
    /// the same; `is_new` is asked whether nothing is remembered of a request, if it has an id.
    #[inline(always)]
    pub(crate) fn queue_fast(
        &mut self,
        lock: LockLookup<'_>,
        request: &Request,
        policy: WaitPolicy,
        (looks_first, is_new): (bool, impl FnOnce(&RequestId) -> bool),
        now: Now,
    ) -> Option<FastQueued> {
        fast_queue::queue(&mut self.parts, lock, request, policy, (looks_first, is_new), now)
    }

    /// Gives back what `release` says, and hands the lock on if that made way for somebody. Returns what is
    /// left. The caller writes what has changed even if it is refused: something may have been due.
    pub(crate) fn release(
        &mut self,
        lock: LockLookup<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        release: &Release,
        now: Now,
    ) -> (Result<i64, NotReleased>, StepOutput) {
        let affected = AffectedOwners::Only(&release.owner);
        let mut step = Step::begin(&mut self.parts, lock, affected, holders, records, now);
        let result = calls::release(&mut step, release);
        (result, step.finish())
    }

    /// Sets the owner's lease anew. Returns its hold count.
    pub(crate) fn renew(
        &mut self,
        lock: LockLookup<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        renewal: &Renewal,
        now: Now,
    ) -> (Result<i64, NotOwner>, StepOutput) {
        let affected = AffectedOwners::Only(&renewal.owner);
        let mut step = Step::begin(&mut self.parts, lock, affected, holders, records, now);
        let result = calls::renew(&mut step, renewal);
        (result, step.finish())
    }

    /// The other locks of a call for several that was granted and is not answered yet: a cancel of this request takes them back,
    /// too. Each is to be [reconciled](LockManager::reconcile) after that, in the same command, as the caller is told that
    /// nothing is held.
    pub(crate) fn sibling_locks(&self, lock: LockLookup<'_>, id: &RequestId) -> Vec<LockId> {
        let parts = &self.parts;
        let wait = parts.table.handle_of(lock).and_then(|lock| parts.waiters.of_request(lock, id));
        let Some((id, _)) = wait.filter(|(_, wait)| wait.state() == WaitState::Granted) else {
            return Vec::new();
        };
        if parts.waiters.bundles.is_answered(parts.waiters.first_wait_of(id)) {
            return Vec::new();
        }
        let others = parts.waiters.together(id).into_iter().filter(|other| *other != id);
        others.filter_map(|other| parts.name(parts.waiters.get(other)?.lock())).collect()
    }

    /// Undoes the acquire with this request, whatever has become of it: ends its wait, or gives back the hold that it
    /// got. If it is made later, or again, it is refused. Returns whether there was anything to undo.
    pub(crate) fn cancel(
        &mut self,
        lock: LockLookup<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        id: &RequestId,
        now: Now,
    ) -> (Result<bool, Refusal>, StepOutput) {
        let mut step = Step::begin(&mut self.parts, lock, AffectedOwners::Any, holders, records, now);
        let result = calls::cancel(&mut step, id);
        (result, step.finish())
    }

    /// Ends every hold and serves the queue. Returns how many owners lost theirs.
    pub(crate) fn break_lock(
        &mut self,
        lock: LockLookup<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        now: Now,
    ) -> (usize, StepOutput) {
        let mut step = Step::begin(&mut self.parts, lock, AffectedOwners::Any, holders, records, now);
        step.notify_holders(HoldEvent::Broken);
        let lost = step.end_all();
        step.count((lost > 0).then_some(Counted::Broken));
        (lost, step.finish())
    }

    /// Brings one lock up to date with what its key holds: revokes grants that did not arrive, follows connections that
    /// closed and watchdogs, then grants the lock to whoever is first in line and may have it.
    pub(crate) fn reconcile(
        &mut self,
        lock: LockLookup<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        now: Now,
    ) -> StepOutput {
        let mut step = Step::begin(&mut self.parts, lock, AffectedOwners::Any, holders, records, now);
        step.search_for_holders();
        step.finish()
    }

    /// Ends every wait for a lock with the same decision: the key holds no lock that is served here.
    pub(crate) fn refuse_all(&mut self, lock: LockRef<'_>, decision: &Decision) {
        let Some(idx) = self.parts.table.find(lock) else { return };
        self.parts.table.unset_ready(idx);
        self.parts.void_ended(idx, AffectedOwners::Any, |_| true);
        self.parts.forget_window(idx);
        let moved = *decision == Decision::Moved;
        self.parts.end_lost(idx, if moved { decision } else { &Decision::Lost });
        let held = self.parts.state_mut(idx).map(|state| state.held.take_all());
        // What has moved is held where it is now.
        self.parts.push_notices(idx, held.into_iter().flatten().filter(|_| !moved));
        let Some(state) = self.parts.state_mut(idx) else { return };
        state.unannounced = false;
        state.unconfirmed.take_voided(usize::MAX);
        state.forget_hold();
        for id in state.queue.iter().collect::<Vec<_>>() {
            self.parts.end_queued(id, decision.clone());
        }
        self.parts.schedule_lease(idx, None);
        self.parts.drop_if_idle(idx);
    }

    /// Looks whether a request for several locks could have this one, and changes nothing but what was due anyway.
    pub(crate) fn check(
        &mut self,
        lock: LockLookup<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        request: &Request,
        policy: WaitPolicy,
        now: Now,
    ) -> (CheckedLock, StepOutput) {
        several::check(&mut self.parts, lock, holders, records, request, policy, now)
    }

    /// Grants this lock to a request for several, which could have them all.
    pub(crate) fn take(
        &mut self,
        lock: LockLookup<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        request: &Request,
        now: Now,
    ) -> (Option<Reply>, StepOutput) {
        several::take(&mut self.parts, lock, holders, records, request, now)
    }

    /// Answers a request for several locks that was granted before, at this lock.
    pub(crate) fn repeat(
        &mut self,
        lock: LockLookup<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        repeated: (&Request, &Reply),
        now: Now,
    ) -> StepOutput {
        several::repeat(&mut self.parts, lock, holders, records, repeated, now)
    }

    /// Queues a request for several locks at this one. The first call begins the bundle, which the others go on with.
    pub(crate) fn queue_member(
        &mut self,
        lock: LockLookup<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        wait: (&Request, Option<MonoUs>),
        bundle: &mut Option<NewBundle>,
        now: Now,
    ) -> (WaiterId, StepOutput) {
        several::queue_member(&mut self.parts, lock, holders, records, wait, bundle, now)
    }

    /// The new bundle has to wait, as the lock with this part was not to be had.
    pub(crate) fn note_blocked(&mut self, first_wait: WaiterId, at: WaiterId) {
        several::note_blocked(&mut self.parts, first_wait, at)
    }

    /// A call for several locks was not granted, as one of them was not to be had.
    pub(crate) fn count_busy(&mut self) {
        several::count_busy(&mut self.parts)
    }

    /// True if a bundle is to be tried.
    #[inline]
    pub(crate) fn has_due_bundle(&self) -> bool {
        several::has_due_bundle(&self.parts)
    }

    /// The next bundle that is to be tried: see [`try_member`](LockManager::try_member) for what follows, and
    /// [`end_try`](LockManager::end_try) for its end.
    pub(crate) fn begin_try(&mut self) -> Option<BundleTry> {
        several::begin_try(&mut self.parts)
    }

    /// Looks whether a part could be granted now, and changes nothing but what was due anyway. `None` if it does not wait any
    /// more.
    pub(crate) fn try_member(
        &mut self,
        lock: LockLookup<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        member: WaiterId,
        now: Now,
    ) -> (Option<Verdict>, StepOutput) {
        several::try_member(&mut self.parts, lock, holders, records, member, now)
    }

    /// Grants a part. All parts of its bundle could be granted, and are. `waits` if its client did.
    pub(crate) fn grant_member(
        &mut self,
        lock: LockLookup<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        member: (WaiterId, bool),
        now: Now,
    ) -> (Option<Reply>, StepOutput) {
        several::grant_member(&mut self.parts, lock, holders, records, member, now)
    }

    /// All parts of a bundle were granted, with these replies.
    pub(crate) fn granted_all(&mut self, first_wait: WaiterId, replies: Vec<Reply>) {
        several::granted_all(&mut self.parts, first_wait, replies)
    }

    /// A try is over. If it failed, `blocked_at` is the part whose lock was not to be had. Returns the locks that are to be
    /// reconciled now: of which the queue was not served meanwhile, or still is to be announced that they are free.
    pub(crate) fn end_try(&mut self, blocked_at: Option<WaiterId>) -> Vec<LockId> {
        several::end_try(&mut self.parts, blocked_at)
    }

    /// Ends the wait of a bundle with this decision.
    pub(crate) fn end_bundle(&mut self, first_wait: WaiterId, decision: Decision) {
        several::end_bundle(&mut self.parts, first_wait, decision)
    }

    /// A lock became free, which was not announced yet, as it is reserved ([`StepOutput::is_reserved`]).
    pub(crate) fn note_withheld(&mut self, output: StepOutput) {
        several::note_withheld(&mut self.parts, output)
    }

    /// A call gives back several locks. Of none of them that is waited for by calls for several it is announced that it is free,
    /// until [`end_multi_release`](LockManager::end_multi_release): with the others it may go to one of those.
    pub(crate) fn begin_multi_release(&mut self) {
        several::begin_multi_release(&mut self.parts)
    }

    /// It has, and who could be served was. Returns the locks that are still to be announced, which are to be reconciled.
    pub(crate) fn end_multi_release(&mut self) -> Vec<LockId> {
        several::end_multi_release(&mut self.parts)
    }

    /// True if waits are left to search for cycles.
    #[inline]
    pub(crate) fn has_searches(&self) -> bool {
        !self.parts.searches.is_empty()
    }

    /// True if the next portion of these searches may start.
    pub(crate) fn searches_are_due(&self, now: Now) -> bool {
        self.parts.searches.next().is_some_and(|start| start <= now.mono)
    }

    /// The next search for a way from such a wait back to its owner. If deadlocks are not to be `reported`, only for one that ends
    /// when somebody is let pass.
    pub(crate) fn next_search(&mut self, reported: bool, now: Now) -> Option<Search> {
        loop {
            let id = match self.parts.searches.take_next()? {
                Next::GoOn(search) => return Some(*search),
                Next::Begin(id) => id,
            };
            let search = match reported {
                true => Search::cycle(&*self, id, now),
                false if self.has_bundles() => Search::soft_cycle(&*self, id, now),
                false => None,
            };
            if search.is_some() {
                return search;
            }
        }
    }

    /// A search goes on later.
    pub(crate) fn suspend_search(&mut self, search: Search) {
        self.parts.searches.suspend_search(search);
    }

    /// Ends a portion of searches that is used up.
    pub(crate) fn pause_searches(&mut self, now: Now) {
        self.parts.searches.rest(now.mono);
    }

    /// The search of this wait was too long for one call: it is searched later.
    pub(crate) fn search_later(&mut self, id: WaiterId) {
        self.parts.searches.insert(id);
    }

    /// Ends a wait that would never end. Its client is told that by the caller, unless messages tell it.
    pub(crate) fn end_deadlocked(&mut self, id: WaiterId) {
        let is_notified = self.parts.waiters.queued(id).is_some_and(|wait| wait.request().notify.is_some());
        self.parts.end_wait(id, is_notified.then_some(Decision::Lost));
    }

    /// Swaps the order of a wait and a part that it stands behind in the same queue. Returns the lock, which is to be reconciled.
    pub(crate) fn overtake(&mut self, overtaker: WaiterId, member: WaiterId) -> Option<LockId> {
        several::overtake(&mut self.parts, overtaker, member)
    }

    /// The lock of a wait.
    pub(crate) fn lock_of(&self, id: WaiterId) -> Option<LockId> {
        several::lock_of(&self.parts, id)
    }

    /// True if any call waits for several locks.
    pub(crate) fn has_bundles(&self) -> bool {
        several::has_bundles(&self.parts)
    }

    /// A waiter leaves the queue: its client is gone or was ended from outside. False if it does not wait
    /// any more.
    pub(crate) fn leave(&mut self, id: WaiterId) -> bool {
        self.parts.end_wait(id, None)
    }

    /// The grant reached its client: it is final, and what depends on the connection begins. True if there may be something
    /// to do soon.
    pub(crate) fn delivered(&mut self, id: WaiterId, now: Now) -> bool {
        if let Some(follows) = self.delivered_plain(id) {
            return follows;
        }
        // All of them.
        self.parts.waiters.together(id).into_iter().fold(false, |any, id| self.delivered_alone(id, now) | any)
    }

    /// The client was answered, and may have read that before it is known to be [`delivered`](Self::delivered).
    #[inline]
    pub(crate) fn answered(&mut self, id: WaiterId) {
        if !self.parts.waiters.bundles.is_empty() {
            self.parts.waiters.bundles.answered(id);
        }
    }

    /// Replicas have acknowledged the grant, and its client is answered. From now on the grant is in flight as one that needs its
    /// delivery only.
    pub(crate) fn acknowledged(&mut self, id: WaiterId) {
        for id in self.parts.waiters.together(id) {
            let Some(wait) = self.parts.waiters.get(id) else { continue };
            let lock = wait.lock();
            if let Some(state) = self.parts.table.get_mut(lock) {
                state.unconfirmed.acknowledged(id, &wait.request().owner);
            }
            self.parts.unwatch_lease(lock);
        }
    }

    /// The same of a grant that was delivered at any time: nothing begins with that, as with nearly all. `None` if something may;
    /// then nothing has changed.
    pub(crate) fn delivered_plain(&mut self, id: WaiterId) -> Option<bool> {
        self.parts.confirm_plain(id).then(|| self.parts.table.any_ready())
    }

    fn delivered_alone(&mut self, id: WaiterId, now: Now) -> bool {
        let Some((wait, lease)) = self.parts.confirm(id, now) else { return false };
        let (lock, request) = (wait.lock(), wait.request());
        if let Some(bind) = request.bind {
            let (since, begins, taken_over) = (wait.since(), wait.begins(), wait.taken_over());
            let bind = NewBind { bind, mode: BindMode::Add, since, begins, taken_over };
            self.parts.bindings.bind((lock, &request.owner), bind, request.id.as_ref(), lease, now);
            self.parts.statistics.has_bound(self.parts.bindings.count());
        }
        if request.awaits_replicas {
            self.parts.unwatch_lease(lock);
        }
        self.parts.drop_if_idle(lock);
        request.bind.is_some() || self.parts.table.any_ready()
    }

    /// The grant's client went away before it could be answered: the grant is revoked when the lock is reconciled.
    pub(crate) fn undelivered(&mut self, id: WaiterId) {
        self.parts.begin_to_revoke(id);
    }

    /// True if this grant is in flight, and the hold that it gave has not ended.
    pub(crate) fn is_in_flight(&self, id: WaiterId) -> bool {
        let is_granted = |id: &WaiterId| {
            self.parts.waiters.get(*id).is_some_and(|wait| wait.state() == WaitState::Granted)
        };
        self.parts.waiters.together(id).iter().any(is_granted)
    }

    /// If nobody can wait for a wait's owner but for the sake of what that holds: the owner, and all locks that somebody waits for.
    /// `None` if that is not so, or if something is remembered of more than so many locks.
    pub(crate) fn only_holds_matter(&self, id: WaiterId, most: usize) -> Option<(Owner, Vec<LockId>)> {
        overview::only_holds_matter(&self.parts, id, most)
    }

    /// By what a wait is known to its client: itself, or the lead of its bundle.
    pub(crate) fn first_wait_of(&self, id: WaiterId) -> WaiterId {
        self.parts.waiters.first_wait_of(id)
    }

    /// Names a wait that is none for a lock.
    pub(crate) fn next_wait_id(&mut self) -> WaiterId {
        self.parts.waiters.next_id()
    }

    /// A connection was closed. True if there is something to do soon.
    pub(crate) fn connection_closed(&mut self, connection: ConnectionId, now: Now) -> bool {
        let parts = &mut self.parts;
        if parts.end_portion_of(connection, now) {
            parts.ending_connections.insert(connection, ConnectionEnd::Closed);
        } else {
            parts.ending_connections.remove(&connection);
        }
        parts.table.any_ready() || !parts.ending_connections.is_empty() || !parts.searches.is_empty()
    }

    /// Somebody else changed the key. True if anybody here cares, so that the caller must see to a
    /// [`tick`](LockManager::tick) soon.
    pub(crate) fn key_changed(&mut self, lock: LockRef<'_>, change: KeyChange, now: Now) -> bool {
        let parts = &mut self.parts;
        if parts.demoted {
            return false;
        }
        let ended_by = match change {
            KeyChange::Gone(event) => Some(event),
            KeyChange::Changed => None,
        };
        let gone = ended_by.is_some();
        // If nobody here will take it, an external client may wait for the message that it is free.
        let was_granted = gone && parts.granted_keys.remove(lock);
        let known = if was_granted { Some(parts.table.find_or_insert(lock)) } else { parts.table.find(lock) };
        // Nearly every key is none of ours.
        let Some(idx) = known else { return false };
        if gone {
            parts.void_ended(idx, AffectedOwners::Any, |_| true);
        } else {
            if let Some(state) = parts.state_mut(idx) {
                state.unconfirmed.leases_are_foreign();
                state.may_have_ended = true;
            }
            if !parts.granted_keys.contains(lock) {
                parts.taken_externally(idx, now);
            }
        }
        let has_bundles = !parts.waiters.bundles.is_empty();
        if let Some(state) = parts.state_mut(idx) {
            state.was_changed = has_bundles;
            state.unannounced |= was_granted;
            state.forget_hold();
            state.held.doubt(ended_by);
            // Of those who are told it is counted then.
            let counts = was_granted && ended_by == Some(HoldEvent::Expired) && state.held.is_empty();
            parts.expired_leases += usize::from(counts);
        }
        // Nothing may be left to remember.
        parts.drop_if_idle(idx);
        parts.table.set_ready(idx);
        parts.table.is_ready(idx)
    }

    /// All keys of a database, or of every one, may have changed: a flush, a swap, or a reload that brings all of
    /// them back.
    pub(crate) fn database_changed(&mut self, db: Option<i32>) {
        let parts = &mut self.parts;
        if parts.demoted {
            return;
        }
        for lock in parts.table.handles(db) {
            if let Some(id) = parts.table.id(lock) {
                parts.granted_keys.remove(id.as_ref());
            }
            parts.void_grants(lock, false, AffectedOwners::Any, |_| true);
            parts.bindings.doubt(lock);
            if let Some(state) = parts.state_mut(lock) {
                state.forget_hold();
                state.held.doubt(None);
            }
            parts.table.set_ready(lock);
        }
    }

    /// Every lock that somebody waits for may have changed, but not necessarily; and every one of which something is
    /// remembered until it is free. Returns whether there is one of those.
    pub(crate) fn recheck_all(&mut self) -> bool {
        let mut is_remembered = false;
        for lock in self.parts.table.handles(None) {
            let Some(state) = self.parts.state(lock) else { continue };
            let until_free = state.fairness.is_until_free();
            is_remembered |= until_free;
            if until_free || !state.queue.is_empty() {
                self.parts.table.set_ready(lock);
            }
        }
        is_remembered
    }

    /// Until then nothing is granted but to those who hold the lock: others may hold it whose holds were forgotten. When it is
    /// over, that is to be said again: who waits is served then.
    pub(crate) fn quarantine(&mut self, until: Option<MonoUs>, now: Now) {
        let until = until.filter(|until| now.mono < *until);
        let before = std::mem::replace(&mut self.parts.quarantined_until, until);
        if before.is_some() && until.is_none() {
            self.recheck_all();
        }
    }

    /// True if it was said last that nothing is granted but to holders.
    pub(crate) fn is_quarantined(&self) -> bool {
        self.parts.quarantined_until.is_some()
    }

    /// This server is not the primary: it grants nothing, and ends every wait.
    pub(crate) fn demote(&mut self) {
        let parts = &mut self.parts;
        parts.demoted = true;
        for id in parts.waiters.all_queued() {
            parts.end_queued(id, Decision::Demoted);
        }
        parts.table.clear_ready();
        parts.searches = Searches::default();
        parts.granted_keys = GrantedKeys::default();
        parts.bindings.suspend();
        for lock in parts.table.handles(None) {
            // What was lost before is still to be told. What is held is a matter of the next primary.
            let lost = parts.state_mut(lock).map(|state| state.held.take_ended());
            parts.push_notices(lock, lost.into_iter().flatten());
            parts.forget_held(lock);
            parts.void_grants(lock, false, AffectedOwners::Any, |_| true);
            parts.end_lost(lock, &Decision::Demoted);
            parts.forget_window(lock);
            parts.schedule_lease(lock, None);
            if let Some(state) = parts.state_mut(lock) {
                state.unannounced = false;
                state.unconfirmed.take_voided(usize::MAX);
                state.forget_hold();
            }
            parts.drop_if_idle(lock);
        }
    }

    /// This server is the primary again.
    pub(crate) fn promote(&mut self) {
        self.parts.demoted = false;
        for lock in self.parts.bindings.resume() {
            self.parts.table.set_ready(lock);
        }
    }

    /// From now on no hold is remembered of a lock that nobody waits for: keys may leave and come back without a word.
    pub(crate) fn forget_holds(&mut self) {
        self.parts.forgets_holds = true;
    }

    /// True if this server was not the primary when its role was last known.
    pub(crate) fn is_demoted(&self) -> bool {
        self.parts.demoted
    }

    /// It was announced that the lock is free.
    pub(crate) fn announced(
        &mut self,
        lock: LockRef<'_>,
        output: StepOutput,
        to_subscribers: bool,
        now: Now,
    ) {
        let known = self.still_known(output);
        let idx = match known {
            Some(idx) => idx,
            None if to_subscribers => self.parts.table.find_or_insert(lock),
            None => return,
        };
        if let Some(state) = self.parts.state_mut(idx) {
            state.fairness.announced(to_subscribers, now);
            state.fairness.settle(true, !state.queue.is_empty(), now);
        }
        self.parts.schedule_window(idx);
        self.parts.drop_if_idle(idx);
    }

    /// The lock is free earlier than external clients know who wait for it: the end of the first lease is announced to them.
    pub(crate) fn lease_shortened(&mut self, lock: LockRef<'_>, output: StepOutput, first_end: WallMs) {
        let known = self.still_known(output);
        let idx = known.unwrap_or_else(|| self.parts.table.find_or_insert(lock));
        if let Some(state) = self.parts.state_mut(idx) {
            state.fairness.subscribers_wait_for_lease();
        }
        self.parts.schedule_lease(idx, Some(first_end));
    }

    /// A field of the lock ends by itself, at this time, and with it maybe the first lease.
    pub(crate) fn field_ends(&mut self, output: StepOutput, at: WallMs, now: Now) {
        let Some(idx) = self.still_known(output) else { return };
        // If it is over, and was read all the same, the server's clock is that much older.
        let at = at.max(now.wall.saturating_add(1));
        let parts = &mut self.parts;
        let Some(state) = parts.table.get_mut(idx) else { return };
        if state.lease_planned.is_some_and(|planned| at < planned) {
            parts.leases.set(idx, &mut state.lease_planned, Some(at));
        }
    }

    /// The handle of the lock that a step had in hand, if anything is remembered about it.
    fn still_known(&self, output: StepOutput) -> Option<LockIdx> {
        output.lock.filter(|lock| self.parts.state(*lock).is_some())
    }

    /// True if there are locks that must be reconciled every now and then: see
    /// [`recheck_fragile`](LockManager::recheck_fragile).
    pub(crate) fn has_fragile(&self) -> bool {
        !self.parts.fragile.is_empty()
    }

    /// True if some of them are still to be made ready in this round.
    pub(crate) fn is_rechecking_fragile(&self) -> bool {
        self.parts.fragile.is_in_round()
    }

    /// A foreign write may have deleted the owner's field of a fenced lock that somebody waits for. Some of these become
    /// ready, and the next time the next.
    pub(crate) fn recheck_fragile(&mut self) {
        for lock in self.parts.fragile.next() {
            self.parts.table.set_ready(lock);
        }
    }

    /// Whether owners are told what happens to their holds ([`next_notice`](LockManager::next_notice)): to those that are granted
    /// or renewed from now on.
    pub(crate) fn notify_owners(&mut self, tells: bool) {
        let parts = &mut self.parts;
        if !std::mem::replace(&mut parts.notifies_owners, tells) || tells {
            return;
        }
        parts.notices = VecDeque::new();
        for lock in parts.table.handles(None) {
            parts.forget_held(lock);
            if !parts.state(lock).is_some_and(LockState::is_waited_for) {
                parts.forget_window(lock);
            }
            // What nobody waits for is looked at once more, and then forgotten.
            parts.table.set_ready(lock);
        }
    }

    /// The next of what owners are to be told and were not yet, in the order in which it was found out.
    pub(crate) fn next_notice(&mut self) -> Option<Notice> {
        while let Some(notice) = self.parts.notices.pop_front() {
            // Who waited may have gone.
            if notice.event != HoldEvent::Contended || self.waiting(notice.lock.as_ref()) > 0 {
                return Some(notice);
            }
        }
        // The memory of a crowd that was told.
        self.parts.notices.shrink_to(64);
        None
    }

    /// How many leases ran out under their owners, as far as that is known: if owners are told, all that were granted here.
    pub(crate) fn expired_leases(&self) -> usize {
        self.parts.expired_leases
    }

    /// True if [`next_decision`](LockManager::next_decision) has any.
    pub(crate) fn has_decided(&self) -> bool {
        !self.parts.decisions.is_empty() || self.has_messages()
    }

    /// The next of the decisions that were not taken yet, in the order in which they were made.
    pub(crate) fn next_decision(&mut self) -> Option<(WaiterId, Decision)> {
        let next = self.parts.decisions.pop_front();
        if next.is_none() {
            // The memory of a crowd that was decided.
            self.parts.decisions.shrink_to(64);
        }
        next
    }

    /// The next of the messages that were not taken yet, in the order of what they tell. One that tells of a grant which has been
    /// confirmed or undone since is left out.
    pub(crate) fn next_message(&mut self) -> Option<Message> {
        while let Some(message) = self.parts.messages.pop_front() {
            if message.event == InboxEvent::Lost || self.is_in_flight(message.id) {
                return Some(message);
            }
        }
        // The memory of a crowd that was told.
        self.parts.messages.shrink_to(64);
        None
    }

    /// True if [`next_message`](LockManager::next_message) may have any.
    pub(crate) fn has_messages(&self) -> bool {
        !self.parts.messages.is_empty()
    }

    /// Nobody has heard the message that tells of this grant, which is revoked when its lock is reconciled. False if it is not
    /// there any more.
    pub(crate) fn message_unheard(&mut self, id: WaiterId) -> bool {
        self.parts.miss(id)
    }

    /// True if any wait belongs to a connection that is not blocked by it.
    pub(crate) fn has_notified(&self) -> bool {
        !self.parts.waiters.notified.is_empty()
    }

    /// How many waits do, and to how many connections.
    pub(crate) fn notified(&self) -> (usize, usize) {
        self.parts.waiters.notified.lens()
    }

    /// The connection that a wait belongs to, if that is not blocked by it.
    pub(crate) fn connection_of(&self, id: WaiterId) -> Option<ConnectionId> {
        Some(self.parts.waiters.get(id)?.request().notify.as_ref()?.connection)
    }

    /// True if any hold depends on a connection.
    pub(crate) fn has_bindings(&self) -> bool {
        self.parts.bindings.any_bound()
    }

    /// Time has passed, or something has changed. Ends waits whose time is over; then, if it is allowed to write now, returns the
    /// next lock that the caller must open and [`reconcile`](LockManager::reconcile).
    pub(crate) fn tick(&mut self, now: Now, may_write: bool) -> Option<LockId> {
        clock::tick(&mut self.parts, now, may_write)
    }

    /// True if a [`tick`](LockManager::tick) has left something undone for which nothing needs to be written.
    pub(crate) fn is_overdue(&self, now: Now) -> bool {
        clock::is_overdue(&self.parts, now)
    }

    /// In how many milliseconds [`tick`](LockManager::tick) is due; `None` if nothing is planned.
    pub(crate) fn next_wakeup(&self, now: Now, may_write: bool) -> Option<u64> {
        clock::next_wakeup(&self.parts, now, may_write)
    }

    /// In how many milliseconds the first wait is over, for which nothing needs to be written.
    pub(crate) fn next_deadline(&self, now: Now) -> Option<u64> {
        clock::next_deadline(&self.parts, now)
    }

    /// True if [`next_wakeup`](LockManager::next_wakeup) is `None`.
    pub(crate) fn has_no_deadline(&self) -> bool {
        clock::has_no_deadline(&self.parts)
    }

    /// True if [`key_changed`](LockManager::key_changed) would do nothing, whatever the key.
    pub(crate) fn ignores_change(&self, change: KeyChange) -> bool {
        self.parts.table.is_empty() && (change == KeyChange::Changed || self.parts.granted_keys.is_empty())
    }

    /// How many fairness windows external clients were given, and in how many of them they took the lock.
    pub(crate) fn fairness_windows(&self) -> (usize, usize) {
        (self.parts.windows_given, self.parts.windows_used)
    }

    /// How many things each table has, by its name in `INFO`.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (&'static CStr, usize)> {
        overview::tables(&self.parts).into_iter()
    }

    /// How many wait for this lock.
    pub(crate) fn waiting(&self, lock: LockRef<'_>) -> usize {
        overview::waiting(&self.parts, lock)
    }

    /// How many holds of this lock end with its next step, at most, besides the one that a call gives back.
    pub(crate) fn ending(&self, lock: LockLookup<'_>) -> usize {
        overview::ending(&self.parts, lock)
    }

    /// The hold that was alone on a lock, plain and exclusive, at the end of the last step on it, if anything is remembered about
    /// the lock and nobody is known to have changed the key since.
    pub(crate) fn plain_hold(&self, lock: LockLookup<'_>) -> Option<&Hold> {
        self.parts.state(self.parts.table.handle_of(lock)?)?.plain_hold.as_ref()
    }

    /// How many wait for any lock.
    pub(crate) fn waiting_total(&self) -> usize {
        self.parts.waiters.queued_len()
    }

    pub(crate) fn statistics(&self) -> &Statistics {
        &self.parts.statistics
    }

    /// About how many locks something was remembered at most.
    pub(crate) fn most_locks(&self) -> usize {
        self.parts.table.most()
    }

    /// How many locks are known to be held.
    pub(crate) fn known_held(&self) -> usize {
        overview::known_held(&self.parts)
    }

    /// For how long the one has waited that waits for longest.
    pub(crate) fn longest_wait(&self, now: Now) -> MonoUs {
        overview::longest_wait(&self.parts, now)
    }

    /// The locks, of any database, that somebody here waits for or was granted just now.
    pub(crate) fn contended_locks(&self) -> impl Iterator<Item = &LockId> {
        overview::contended_locks(&self.parts)
    }

    /// How many holds are renewed, and how many end with a connection.
    pub(crate) fn bound(&self) -> (usize, usize) {
        self.parts.bindings.count()
    }

    /// Who waits for this lock, first in line first.
    pub(crate) fn waiters_of(&self, lock: LockRef<'_>) -> Vec<WaiterId> {
        overview::waiters_of(&self.parts, lock)
    }

    /// What is known of an owner's hold beyond what the key says.
    pub(crate) fn hold(&self, lock: LockRef<'_>, owner: &Owner, now: Now) -> Option<HoldInfo> {
        overview::hold(&self.parts, lock, owner, now)
    }

    /// What is known of somebody who waits; `None` if that is over.
    pub(crate) fn waiter(&self, id: WaiterId, now: Now) -> Option<WaiterInfo<'_>> {
        overview::waiter(&self.parts, id, now)
    }

    /// The locks of a database that somebody waits for and whose names pass `matches`, in no order.
    pub(crate) fn contended_in(&self, db: i32, matches: impl Fn(&[u8]) -> bool) -> Vec<Contended> {
        overview::contended_in(&self.parts, db, matches)
    }

    /// What is known of the queue of this lock; `None` if nobody waits for it.
    pub(crate) fn queue(&self, lock: LockRef<'_>, now: Now) -> Option<QueueInfo> {
        overview::queue(&self.parts, lock, now)
    }
}
