// SPDX-License-Identifier: MIT

//! The state of the lock manager. Only the files of this folder see more than one of its parts.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use crate::core::bindings::{AffectedOwners, Bindings};
use crate::core::fragile::FragileLocks;
use crate::core::granted_keys::GrantedKeys;
use crate::core::held::{Held, HoldRecord};
use crate::core::lease::{Lease, SetLease};
use crate::core::queue::fairness::Fairness;
use crate::core::queue::wait_queue::{Position, WaitQueue};
use crate::core::queue::waiters::{Crossing, NewWait, Unqueued, Wait, WaitState, Waiters};
use crate::core::schedule::{Calendar, Schedule};
use crate::core::searches::Searches;
use crate::core::table::{LockIdx, LockTable};
use crate::core::unconfirmed::{SetToken, Unconfirmed};
use crate::core::{
    ConnectionId, Counted, Decision, Hold, HoldEvent, InboxEvent, LockId, Message, MonoUs, Notice, Notify,
    Now, Owner, Request, Statistics, WaiterId, WallMs,
};

/// Maximum amount of due work that a step does at one lock: grants made, revoked or voided, and holds ended
/// or renewed. Thousands at once would stall the server, so the rest is left to the next step, which the
/// timer starts soon.
#[derive(Clone, Copy)]
pub(super) struct Portion(pub(super) usize);

impl Default for Portion {
    fn default() -> Portion {
        Portion(64)
    }
}

/// The reason why a connection loses its waits with `NOTIFY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// The connection has closed: it loses all waits, and its holds end.
    Closed,
    /// The connection does not confirm its grants: it loses its queued waits.
    Unresponsive,
}

/// State of one lock, apart from its key.
#[derive(Default)]
pub(super) struct LockState {
    pub(super) queue: WaitQueue,
    pub(super) fairness: Fairness,
    pub(super) unconfirmed: Unconfirmed,
    pub(super) held: Held,
    /// Whether a hold granted here ended without a call. If no waiter takes the lock, it must be announced as
    /// free.
    pub(super) unannounced: bool,
    /// Whether a foreign write may have given the lock to an owner that waits behind a member of a bundle.
    pub(super) was_changed: bool,
    /// The sole, plain, exclusive hold of the lock, as far as known. The next call probably finds it.
    pub(super) plain_hold: Option<Hold>,
    /// Time of the grant of the exclusive hold, if known.
    pub(super) held_since: Option<MonoUs>,
    /// Whether the grant to a client with `NOTIFY` is unconfirmed, while external clients may know of a later
    /// end than that of the grace: see [`ExpectedEnd`](super::step::ExpectedEnd).
    pub(super) unconfirmed_whole_lease: bool,
    /// Number of holders at the end of the last step, if the lock has more grants and bindings than one step
    /// examines.
    pub(super) held_by: u32,
    /// Whether some of these holds may have ended since they were examined.
    pub(super) may_have_ended: bool,
    /// Number of further steps before they are examined again.
    pub(super) looks_in: u32,
    /// Time at which a newcomer last opened the key and the keys beside it.
    pub(super) last_look: Option<MonoUs>,
    /// Time of the lock in [`Parts::leases`].
    pub(super) lease_planned: Option<WallMs>,
    /// Time of the lock in [`Parts::windows`].
    pub(super) window_planned: Option<MonoUs>,
    /// Probable index of the lock in the list of the longest waits.
    pub(super) place_in_top: u32,
}

impl LockState {
    /// Whether the lock has native waiters or, as far as known, external ones.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.queue.is_empty() || self.fairness.has_subscribers()
    }

    /// Forgets the remembered hold, which may be a different one now.
    pub(super) fn forget_hold(&mut self) {
        self.plain_hold = None;
        self.held_since = None;
    }

    /// Whether owners must be notified of the end of their leases, even without waiters.
    pub(super) fn has_owners_to_notify(&self) -> bool {
        !self.held.is_empty() || self.unconfirmed.any_unanswered()
    }
}

/// All state in memory. The types of the fields describe it.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) table: LockTable<LockState>,
    pub(super) waiters: Waiters,
    pub(super) bindings: Bindings,
    /// Deadlines of waits, and of the graces of grants.
    pub(super) deadlines: Schedule<MonoUs, WaiterId>,
    /// End of the first lease of each held lock with native or known external waiters, or with owners to
    /// notify.
    pub(super) leases: Calendar<WallMs, LockIdx>,
    /// The lock handed over last, if its queue became empty. It stays in `leases` until the timer fires or
    /// another lock takes its place. Often a waiter arrives at once, and removing and adding the entry would
    /// cost more.
    pub(super) last_handed_over: Option<LockIdx>,
    /// End of fairness windows, and of the memory of subscribers.
    pub(super) windows: Calendar<MonoUs, LockIdx>,
    /// Locks in `leases` that a foreign write can free without an event.
    pub(super) fragile: FragileLocks,
    pub(super) granted_keys: GrantedKeys,
    /// Whether holds are forgotten for locks without waiters.
    pub(super) forgets_holds: bool,
    /// Maximum amount of due work per step.
    pub(super) portion: Portion,
    /// Connections whose waits and holds must still be ended.
    pub(super) ending_connections: BTreeMap<ConnectionId, ConnectionEnd>,
    /// End of the quarantine. Until then, only owners that hold a lock are granted it, since other holds may
    /// have been forgotten.
    pub(super) quarantined_until: Option<MonoUs>,
    /// Whether this server is not the primary.
    pub(super) demoted: bool,
    pub(super) windows_given: usize,
    pub(super) windows_used: usize,
    pub(super) decisions: VecDeque<(WaiterId, Decision)>,
    /// Decisions that leave as messages.
    pub(super) messages: VecDeque<Message>,
    /// Granted bundles whose clients still wait although a hold has ended.
    pub(super) lost_bundles: Vec<WaiterId>,
    /// Whether owners get notices about their holds.
    pub(super) notifies_owners: bool,
    pub(super) notices: VecDeque<Notice>,
    /// Number of leases that expired under their owners, as far as known.
    pub(super) expired_leases: usize,
    pub(super) statistics: Statistics,
    /// Waits that may wait for their own owners.
    pub(super) searches: Searches,
}

/// Maximum number of an owner's waits for one lock to search when the first of them ends.
const MAX_SEARCHED_LEFT_BEHIND: usize = 4;

/// Maximum number of waits to search per owner, and of owners per lock.
pub(super) const MAX_SEARCHED_WAITS: usize = 16;

impl Parts {
    pub(super) fn state(&self, lock: LockIdx) -> Option<&LockState> {
        self.table.get(lock)
    }

    pub(super) fn state_mut(&mut self, lock: LockIdx) -> Option<&mut LockState> {
        self.table.get_mut(lock)
    }

    /// The name of a lock.
    pub(super) fn name(&self, lock: LockIdx) -> Option<LockId> {
        self.table.id(lock).cloned()
    }

    /// Whether the state of this lock can be forgotten.
    #[inline(always)]
    pub(super) fn is_idle(&self, lock: LockIdx) -> bool {
        self.table.get(lock).is_some_and(|state| {
            state.queue.is_empty()
                && state.fairness.is_idle()
                && state.unconfirmed.is_empty()
                && state.held.is_empty()
                && !state.unannounced
                && !self.table.is_ready(lock)
                && state.lease_planned.is_none()
                && !self.bindings.knows(lock)
        })
    }

    /// Forgets a lock whose state is empty.
    #[inline(always)]
    pub(super) fn drop_if_idle(&mut self, lock: LockIdx) {
        if self.is_idle(lock) {
            self.table.remove(lock);
        }
    }

    /// Updates the schedule from the lock's fairness.
    #[inline(always)]
    pub(super) fn schedule_window(&mut self, lock: LockIdx) {
        if let Some(state) = self.table.get_mut(lock) {
            self.windows.set(lock, &mut state.window_planned, state.fairness.deadline());
        }
    }

    /// Schedules the end of the first lease of a lock. `None` removes it, unless an owner must be notified.
    #[inline(always)]
    pub(super) fn schedule_lease(&mut self, lock: LockIdx, end: Option<WallMs>) {
        let Some(state) = self.table.get_mut(lock) else { return };
        if end.is_none() && state.has_owners_to_notify() {
            return;
        }
        // An earlier entry stays: its check finds the new time. Moving it at each hand-over would cost more.
        if end.is_none_or(|end| state.lease_planned.is_none_or(|planned| end < planned)) {
            self.leases.set(lock, &mut state.lease_planned, end);
        }
        if end.is_none() {
            self.fragile.remove(lock);
        }
    }

    /// Queues notices to owners about their holds.
    pub(super) fn push_notices(
        &mut self,
        lock: LockIdx,
        event: impl IntoIterator<Item = (Owner, HoldEvent)>,
    ) {
        let Some(name) = self.table.id(lock) else { return };
        for (owner, event) in event {
            self.expired_leases += usize::from(event == HoldEvent::Expired);
            self.notices.push_back(Notice { lock: name.clone(), owner, event });
        }
    }

    /// Records that the owner holds the lock, so that it can be notified of a loss.
    #[cold]
    pub(super) fn insert_held(&mut self, lock: LockIdx, owner: &Owner, hold: HoldRecord) {
        if let Some(state) = self.table.get_mut(lock) {
            state.held.insert(owner, hold);
        }
    }

    /// Removes the record of an owner's hold. Returns whether it existed.
    pub(super) fn take_held(&mut self, lock: LockIdx, owner: &Owner) -> bool {
        self.table.get_mut(lock).is_some_and(|state| state.held.remove(owner))
    }

    /// Forgets the records of a lock's holds.
    pub(super) fn forget_held(&mut self, lock: LockIdx) {
        if let Some(state) = self.table.get_mut(lock) {
            state.held = Held::default();
        }
    }

    /// Keeps watching the lease of a lock that was handed over and has no waiters: see
    /// [`Parts::last_handed_over`].
    pub(super) fn keep_watching(&mut self, lock: LockIdx) {
        if self.last_handed_over != Some(lock) {
            self.stop_watching_last();
            self.last_handed_over = Some(lock);
        }
        self.fragile.remove(lock);
    }

    /// Stops watching the lease of the lock handed over last, unless it has waiters.
    pub(super) fn stop_watching_last(&mut self) {
        if let Some(lock) = self.last_handed_over.take() {
            self.unwatch_lease(lock);
            self.drop_if_idle(lock);
        }
    }

    /// Stops watching the first lease of a lock without waiters.
    pub(super) fn unwatch_lease(&mut self, lock: LockIdx) {
        if !self.state(lock).is_some_and(LockState::is_waited_for) {
            self.schedule_lease(lock, None);
        }
    }

    /// Forgets the fairness history of a lock that is no longer granted here.
    pub(super) fn forget_window(&mut self, lock: LockIdx) {
        if let Some(state) = self.table.get_mut(lock) {
            state.fairness = Fairness::default();
        }
        self.schedule_window(lock);
    }

    /// Notes that an external client has taken the lock.
    pub(super) fn taken_externally(&mut self, lock: LockIdx, now: Now) {
        let Some(state) = self.table.get_mut(lock) else { return };
        self.windows_used += usize::from(state.fairness.taken_externally(now));
        self.schedule_window(lock);
    }

    /// Ends a queued wait with a decision. The lock stays in the table even if it is idle now.
    pub(super) fn end_queued(&mut self, id: WaiterId, decision: Decision) {
        let first_wait = self.waiters.first_wait_of(id);
        if let Some(wait) = self.take_out(id) {
            self.count_end(&wait, &decision);
            self.decide(first_wait, wait.lock(), wait.request(), decision);
        }
    }

    /// Emits a decision: as a reply to a blocked client, or as a message.
    #[inline(always)]
    pub(super) fn decide(&mut self, id: WaiterId, lock: LockIdx, request: &Request, decision: Decision) {
        match &request.notify {
            None => self.decisions.push_back((id, decision)),
            // The repeated call is answered instead.
            Some(_) if decision == Decision::Superseded => {}
            Some(notify) => self.send(id, lock, (request, notify), decision),
        }
    }

    #[cold]
    fn send(
        &mut self,
        id: WaiterId,
        lock: LockIdx,
        (request, notify): (&Request, &Notify),
        decision: Decision,
    ) {
        let (Some(lock), Some(request)) = (self.name(lock), request.id.clone()) else {
            return defect!("a message is about nothing");
        };
        let event =
            if matches!(decision, Decision::Granted(_)) { InboxEvent::Granted } else { InboxEvent::Lost };
        self.messages.push_back(Message { id, inbox: notify.inbox.clone(), lock, request, event });
    }

    /// Handles a grant with `NOTIFY` that its connection has not confirmed, or whose message had no
    /// subscriber. False if the grant no longer exists.
    pub(super) fn miss(&mut self, id: WaiterId) -> bool {
        let wait = self.waiters.get(id).filter(|wait| wait.state() == WaitState::Granted);
        let Some((lock, request)) = wait.map(|wait| (wait.lock(), wait.request().clone())) else {
            return false;
        };
        let Some(notify) = &request.notify else { return false };
        self.statistics.count(Counted::NotConfirmed);
        let drops_waits = self.waiters.notified.note_missed(notify.connection);
        self.decide(id, lock, &request, Decision::Lost);
        self.mark_for_revocation(id);
        if drops_waits {
            self.ending_connections.entry(notify.connection).or_insert(ConnectionEnd::Unresponsive);
        }
        true
    }

    /// Ends a portion of the waits and holds of ending connections. The next tick continues.
    pub(super) fn end_connections(&mut self, now: Now) {
        for _ in 0..4 * self.portion.0 {
            let Some((connection, end)) =
                self.ending_connections.first_key_value().map(|(at, end)| (*at, *end))
            else {
                return;
            };
            if !self.end_next_of(connection, end, now) {
                self.ending_connections.remove(&connection);
            }
        }
    }

    /// Ends a portion of the state of a closed connection at once, so that the next call does not rely on it.
    /// Nearly always that is all. Returns whether anything may be left.
    pub(super) fn end_portion_of(&mut self, connection: ConnectionId, now: Now) -> bool {
        (0..4 * self.portion.0).all(|_| self.end_next_of(connection, ConnectionEnd::Closed, now))
    }

    /// Ends the owner's hold on this lock if it depends on a closed connection that is still being ended.
    #[cold]
    pub(super) fn end_closed_hold(&mut self, lock: LockIdx, owner: &Owner, now: Now) {
        let closed = self.ending_connections.iter().filter(|(_, end)| **end == ConnectionEnd::Closed);
        let closed: Vec<ConnectionId> = closed.map(|(connection, _)| *connection).collect();
        for connection in closed {
            self.bindings.close_one(connection, &(lock, owner.clone()), now);
        }
    }

    /// Ends the next wait or hold of a connection. False if none is left.
    fn end_next_of(&mut self, connection: ConnectionId, end: ConnectionEnd, now: Now) -> bool {
        let next = match end {
            ConnectionEnd::Closed => self.waiters.notified.next_of(connection),
            ConnectionEnd::Unresponsive => self.waiters.notified.next_queued_of(connection),
        };
        if let Some(id) = next {
            let decision = (end == ConnectionEnd::Unresponsive).then_some(Decision::Lost);
            self.statistics.add(Counted::Dropped, usize::from(decision.is_some()));
            if !self.end_wait(id, decision) {
                self.mark_for_revocation(id);
            }
            // Removes it in any state.
            self.waiters.notified.remove(connection, id);
            return true;
        }
        if end == ConnectionEnd::Unresponsive {
            return false;
        }
        let Some((lock, ends)) = self.bindings.close_next(connection, now) else { return false };
        if ends && !self.demoted {
            self.table.set_ready(lock);
        }
        self.drop_if_idle(lock);
        true
    }

    /// Whether the connection of this wait has closed or loses its waits.
    #[inline(always)]
    pub(super) fn is_dropped(&self, wait: &Wait) -> bool {
        // Nearly always, no connection is ending.
        !self.ending_connections.is_empty() && self.has_dropped(wait)
    }

    #[cold]
    fn has_dropped(&self, wait: &Wait) -> bool {
        wait.request()
            .notify
            .as_ref()
            .is_some_and(|notify| self.ending_connections.contains_key(&notify.connection))
    }

    /// Ends a queued wait of an ending connection.
    #[cold]
    pub(super) fn drop_wait(&mut self, id: WaiterId) {
        let of = |wait: &Wait| wait.request().notify.as_ref().map(|notify| notify.connection);
        let connection = self.waiters.get(id).and_then(of);
        if connection.and_then(|connection| self.ending_connections.get(&connection))
            == Some(&ConnectionEnd::Unresponsive)
        {
            self.statistics.count(Counted::Dropped);
            self.end_queued(id, Decision::Lost);
        } else {
            self.take_out(id);
        }
    }

    /// Number of grants and bindings of a lock that end with their holds.
    pub(super) fn remembered_of(&self, lock: LockIdx) -> usize {
        self.table.get(lock).map_or(0, |state| state.unconfirmed.len()) + self.bindings.len_of(lock)
    }

    /// Ends the grace of a grant that is confirmed, revoked or void.
    fn grace_ends(&mut self, id: WaiterId, request: &Request) {
        if request.notify.is_some() {
            self.deadlines.set(&id, None);
        }
    }

    /// Ends a queued wait, with a decision or because its client left. Waiters behind it may become ready.
    /// False if it is not queued.
    pub(super) fn end_wait(&mut self, id: WaiterId, decision: Option<Decision>) -> bool {
        if self.waiters.queued(id).is_none() {
            return false;
        }
        let (id, member) = (self.waiters.first_wait_of(id), id);
        let Some(wait) = self.take_out(member) else { return false };
        let lock = wait.lock();
        if let Some(decision) = decision {
            self.count_end(&wait, &decision);
            self.decide(id, lock, wait.request(), decision);
        }
        let Some(state) = self.table.get(lock) else { return defect!("a wait for an unknown lock", true) };
        let unblocks_next =
            state.queue.unblocks_next(wait.position(), wait.request().wants, wait.is_member());
        // The announcement of a bundle's free lock may have been withheld.
        if (unblocks_next || wait.is_member()) && !self.demoted {
            self.table.set_ready(lock);
        }
        self.unwatch_lease(lock);
        self.drop_if_idle(lock);
        true
    }

    /// Counts a wait that ended without a grant.
    fn count_end(&mut self, wait: &Wait, decision: &Decision) {
        if *decision == Decision::TimedOut {
            self.statistics.count(Counted::TimedOut);
            let waited = wait.deadline().unwrap_or_default().saturating_sub(wait.since());
            self.count_wait(wait.lock(), waited);
        }
    }

    /// Records the duration of a wait that was granted or timed out.
    #[inline(always)]
    pub(super) fn count_wait(&mut self, lock: LockIdx, waited: MonoUs) {
        let Some((name, state)) = self.table.named_state(lock) else { return };
        self.statistics.waited(name, &mut state.place_in_top, waited);
    }

    /// Removes a queued wait from every index, with the other members of its bundle.
    fn take_out(&mut self, id: WaiterId) -> Option<Wait> {
        let is_member =
            !self.waiters.bundles.is_empty() && self.waiters.queued(id).is_some_and(Wait::is_member);
        if is_member {
            for other in self.waiters.together(id).into_iter().filter(|other| *other != id) {
                let Some(wait) = self.take_out_alone(other) else { continue };
                // The other lock is not open: reconciling it serves waiters behind the member, or drops it if
                // idle.
                if !self.demoted {
                    self.table.set_ready(wait.lock());
                }
            }
        }
        self.take_out_alone(id)
    }

    fn take_out_alone(&mut self, id: WaiterId) -> Option<Wait> {
        let (wait, crossing) = self.waiters.remove(id)?;
        self.leave_queue(id, (wait.lock(), wait.position(), wait.deadline()), crossing);
        // The owner's other waits here were served with this one, and may be blocked now.
        let others = self.waiters.of_owner_at(wait.lock(), wait.request().owner.as_bytes());
        for other in others.take(MAX_SEARCHED_LEFT_BEHIND) {
            if self.waiters.queued(other).is_some_and(|other| other.position() > wait.position()) {
                self.searches.insert(other);
            }
        }
        if let Some(state) = self.table.get_mut(wait.lock()).filter(|state| state.queue.is_empty()) {
            // The lock has no waiters left.
            state.plain_hold = None;
        }
        Some(wait)
    }

    /// Adds a wait to the queue of its lock. `holds` tells whether the owner holds the lock.
    #[inline(always)]
    pub(super) fn insert_wait(
        &mut self,
        lock: LockIdx,
        (id, first_wait): (WaiterId, Option<WaiterId>),
        (request, holds): (Request, bool),
        deadline: Option<MonoUs>,
        (ticket, since): (u64, MonoUs),
    ) {
        let position = Position::new(request.wants, holds, ticket);
        if let Some(state) = self.table.get_mut(lock) {
            if state.queue.is_empty() {
                self.statistics.contention_begins();
            }
            state.queue.insert(position, (id, first_wait.is_some()), request.wants);
        }
        // A bundle has one deadline.
        if deadline.is_some() && first_wait.is_none_or(|first_wait| first_wait == id) {
            self.deadlines.set(&id, deadline);
        }
        let new = NewWait { lock, request, deadline, position, since, first_wait };
        let crossing = self.waiters.queue(id, new);
        self.statistics.record_waiters(self.waiters.queued_len());
        self.mark_crossing(crossing);
    }

    /// Moves a wait from its queue to the grants in flight. Returns its duration, and whether its owner has
    /// other queued waits.
    #[inline(always)]
    pub(super) fn grant_wait(&mut self, id: WaiterId, now: Now, begins: bool) -> (MonoUs, bool) {
        let Some(ended) = self.waiters.grant(id, now.mono, begins) else {
            return defect!("an unknown wait is granted", (0, false));
        };
        let Unqueued { place, crossing, waits_more, waited } = ended;
        self.leave_queue(id, place, crossing);
        (waited, waits_more)
    }

    #[inline(always)]
    fn leave_queue(
        &mut self,
        id: WaiterId,
        (lock, position, deadline): (LockIdx, Position, Option<MonoUs>),
        crossing: Crossing,
    ) {
        if deadline.is_some() {
            self.deadlines.set(&id, None);
        }
        let removed = |state: &mut LockState| state.queue.leave(position, id).then(|| state.queue.is_empty());
        match self.table.get_mut(lock).and_then(removed) {
            Some(true) => self.statistics.contention_ends(),
            Some(false) => {}
            None => defect!("a wait stands in no queue"),
        }
        self.mark_crossing(crossing);
    }

    /// Marks a grant for revocation: it did not reach its client. Each of its locks is ready, and its next
    /// step revokes the grant.
    pub(super) fn mark_for_revocation(&mut self, id: WaiterId) {
        for id in self.waiters.together(id) {
            self.mark_alone_for_revocation(id);
        }
    }

    /// Marks a single member of a bundle, or a single grant, for revocation.
    pub(super) fn mark_alone_for_revocation(&mut self, id: WaiterId) {
        if !self.waiters.mark_for_revocation(id) {
            return;
        }
        let Some(wait) = self.waiters.get(id) else { return };
        let lock = wait.lock();
        if wait.request().notify.is_some() {
            self.deadlines.set(&id, None);
        }
        if let Some(state) = self.table.get_mut(lock) {
            state.unconfirmed.mark_for_revocation(id, &wait.request().owner);
            self.table.set_ready(lock);
        }
    }

    /// Notes in the queues which waits belong to owners that also wait for other locks.
    #[inline(always)]
    pub(super) fn mark_crossing(&mut self, crossing: Crossing) {
        // Nearly every owner waits for one lock at a time.
        if crossing.is_empty() {
            return;
        }
        for (ids, crosses) in [(crossing.begin, true), (crossing.cease, false)] {
            for id in ids {
                let Some(wait) = self.waiters.queued(id) else { continue };
                if let Some(state) = self.table.get_mut(wait.lock()) {
                    state.queue.set_crossing(wait.position(), crosses);
                }
            }
        }
    }

    /// Moves the queued waits of an owner that now holds the lock ahead of all newcomers.
    pub(super) fn move_waits_ahead(&mut self, lock: LockIdx, owner: &Owner) {
        let waits: SmallVec<[WaiterId; 4]> = self.waiters.of_owner_at(lock, owner.as_bytes()).collect();
        waits.into_iter().for_each(|id| self.move_wait(id, true));
    }

    /// Schedules searches for an owner that holds more than before: waiters for its holds may be among its
    /// blockers.
    #[cold]
    pub(super) fn search_waits_of(&mut self, owner: &Owner) {
        for id in self.waiters.of_owner(owner.as_bytes()).take(MAX_SEARCHED_WAITS) {
            self.searches.insert(id);
        }
    }

    /// Whether a holder of this lock may block an owner that did not stand behind it. Without members of
    /// bundles in the queue, the first to arrive is granted first.
    pub(super) fn has_members(&self, lock: LockIdx) -> bool {
        !self.waiters.bundles.is_empty() && self.state(lock).is_some_and(|state| state.queue.has_members())
    }

    /// Moves a queued wait after its owner got or lost its hold on the lock.
    pub(super) fn move_wait(&mut self, id: WaiterId, holds: bool) {
        let Some(wait) = self.waiters.queued(id) else { return };
        let (lock, before, wants, is_member) =
            (wait.lock(), wait.position(), wait.request().wants, wait.is_member());
        let after = Position::new(wants, holds, before.ticket());
        let Some(state) = self.table.get_mut(lock).filter(|_| before != after) else { return };
        let crosses = state.queue.is_crossing(before);
        state.queue.remove(before);
        state.queue.insert(after, (id, is_member), wants);
        self.searches.note_move();
        if crosses {
            state.queue.set_crossing(after, true);
        }
        self.waiters.set_position(id, after);
    }

    /// Voids everything pending for owners whose holds have ended: deliveries, revocations, renewals and
    /// releases.
    pub(super) fn void_ended(
        &mut self,
        lock: LockIdx,
        affected: AffectedOwners<'_>,
        ended: impl Fn(&Owner) -> bool,
    ) {
        self.void_grants(lock, true, affected, &ended);
        if self.bindings.knows(lock) {
            let Some(name) = self.name(lock) else { return };
            self.bindings.unbind_ended(lock, &name, affected, &ended);
        }
    }

    /// Voids grants in flight of owners whose holds have ended, but keeps their bindings. `forgets` is false
    /// if the records left with the holds.
    pub(super) fn void_grants(
        &mut self,
        lock: LockIdx,
        forgets: bool,
        affected: AffectedOwners<'_>,
        ended: impl Fn(&Owner) -> bool,
    ) {
        let Some(state) = self.table.get_mut(lock) else { return };
        for id in state.unconfirmed.void(affected, ended) {
            let Some((wait, _)) = self.waiters.remove(id) else { continue };
            if wait.request().notify.is_some() {
                self.void_notified(id, lock, &wait, forgets);
            } else if wait.state() == WaitState::Marked && forgets && !self.demoted {
                // The grant would have been revoked anyway.
                let state = self.table.get_mut(lock);
                if let Some((state, request)) = state.zip(wait.request().id.clone()) {
                    state.unconfirmed.was_voided(request);
                }
            }
            // A client that still waits for all locks of its bundle has lost one.
            let waits = |first_wait: &WaiterId| {
                wait.request().awaits_replicas && !self.waiters.bundles.is_answered(*first_wait)
            };
            self.lost_bundles.extend(wait.first_wait().filter(waits));
        }
    }

    /// Handles an unconfirmed grant with `NOTIFY` whose hold has ended.
    #[cold]
    fn void_notified(&mut self, id: WaiterId, lock: LockIdx, wait: &Wait, forgets: bool) {
        self.grace_ends(id, wait.request());
        if wait.state() == WaitState::Granted {
            self.decide(id, lock, wait.request(), Decision::Lost);
        }
        // A repeated call must not get the voided reply.
        let state = self.table.get_mut(lock).filter(|_| forgets && !self.demoted);
        if let Some((state, request)) = state.zip(wait.request().id.clone()) {
            state.unconfirmed.was_voided(request);
        }
    }

    /// Ends waits whose clients have not been answered yet although their holds have ended. Nearly always,
    /// none exist.
    #[inline(always)]
    pub(super) fn end_lost(&mut self, lock: LockIdx, decision: &Decision) {
        if !self.lost_bundles.is_empty() {
            self.end_lost_bundles(decision);
        }
        let Some(state) = self.table.get_mut(lock).filter(|state| state.unconfirmed.any_lost()) else {
            return;
        };
        let lost = state.unconfirmed.take_lost();
        self.decisions.extend(lost.into_iter().map(|id| (id, decision.clone())));
    }

    #[cold]
    fn end_lost_bundles(&mut self, decision: &Decision) {
        for first_wait in std::mem::take(&mut self.lost_bundles) {
            self.decisions.push_back((first_wait, decision.clone()));
            if !self.demoted {
                self.mark_for_revocation(first_wait);
            }
        }
    }

    /// Notes that a final call has set the lease or the token of a hold.
    pub(super) fn note_setting(
        &mut self,
        lock: LockIdx,
        owner: &Owner,
        lease: Option<(SetLease, WallMs)>,
        token: Option<SetToken>,
    ) {
        if let Some(state) = self.table.get_mut(lock) {
            state.unconfirmed.note_setting(owner, lease, token);
        }
    }

    /// Confirms a delivered grant without consequences, as most are. False if the grant may have
    /// consequences, and then nothing has changed.
    #[inline(always)]
    pub(super) fn confirm_plain(&mut self, id: WaiterId) -> bool {
        let is_plain = |wait: &&Wait| {
            let Request { id, bind, notify, awaits_replicas, .. } = wait.request();
            let is_simple = id.is_none() && bind.is_none() && notify.is_none() && !awaits_replicas;
            wait.state() == WaitState::Granted && is_simple && !wait.is_member()
        };
        let Some(wait) = self.waiters.get(id).filter(is_plain) else { return false };
        let lock = wait.lock();
        if self.bindings.knows(lock) {
            return false;
        }
        let Some(state) = self.table.get_mut(lock) else { return false };
        if !state.unconfirmed.confirm_plain(id, &wait.request().owner) {
            return false;
        }
        self.waiters.forget_plain(id);
        self.drop_if_idle(lock);
        true
    }

    /// Confirms a delivered grant. If that shortens the lease, the lock becomes ready to write it. Returns
    /// the wait and its lease.
    pub(super) fn confirm(&mut self, id: WaiterId, now: Now) -> Option<(Wait, Lease)> {
        self.waiters.get(id).filter(|wait| wait.state() == WaitState::Granted)?;
        let (wait, _) = self.waiters.remove(id)?;
        self.grace_ends(id, wait.request());
        let state = self.table.get_mut(wait.lock());
        let confirmed = state.and_then(|state| state.unconfirmed.confirm(id, &wait.request().owner));
        let Some(confirmed) = confirmed else { return defect!("a grant that its lock does not know", None) };
        if confirmed.settles {
            self.table.set_ready(wait.lock());
        }
        let request = wait.request();
        let lease = Lease { end: confirmed.written, ..request.lease(confirmed.end, now) };
        self.bindings.note_lease(wait.lock(), &request.owner, lease, now);
        Some((wait, lease))
    }
}
