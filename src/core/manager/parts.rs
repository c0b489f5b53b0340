// SPDX-License-Identifier: MIT

//! The parts of the lock manager side by side. Only the files of this directory see more than one of them.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use crate::core::bindings::{AffectedOwners, Bindings};
use crate::core::fairness::Fairness;
use crate::core::fragile::FragileLocks;
use crate::core::granted_keys::GrantedKeys;
use crate::core::held::{Held, HoldRecord};
use crate::core::lease::{Lease, SetLease};
use crate::core::schedule::{Calendar, Schedule};
use crate::core::searches::Searches;
use crate::core::table::{LockIdx, LockTable};
use crate::core::unconfirmed::{SetToken, Unconfirmed};
use crate::core::wait_queue::{Position, WaitQueue};
use crate::core::waiters::{Crossing, NewWait, Unqueued, Wait, WaitState, Waiters};
use crate::core::{
    ConnectionId, Counted, Decision, Hold, HoldEvent, InboxEvent, LockId, Message, MonoUs, Notice, Notify,
    Now, Owner, Request, Statistics, WaiterId, WallMs,
};

/// How much of what is due at one lock a step does: how many grants it makes, revokes or voids, and how many holds it ends or
/// renews. Thousands at once would stall the server, so the rest is left to the next step, which the timer makes soon.
#[derive(Clone, Copy)]
pub(super) struct Portion(pub(super) usize);

impl Default for Portion {
    fn default() -> Portion {
        Portion(64)
    }
}

/// Why a connection loses the waits that it has to be told of by messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// It has closed: all, and the holds that depend on it end.
    Closed,
    /// It does not confirm what it is granted: those that are queued.
    Unresponsive,
}

/// What is remembered about one lock, besides what its key holds.
#[derive(Default)]
pub(super) struct LockState {
    pub(super) queue: WaitQueue,
    pub(super) fairness: Fairness,
    pub(super) unconfirmed: Unconfirmed,
    pub(super) held: Held,
    /// Its hold, granted here, ended without a call: unless somebody takes it, that it is free must be announced.
    pub(super) unannounced: bool,
    /// A foreign write may have given it to somebody who waits behind a part.
    pub(super) was_changed: bool,
    /// The hold that is alone on the lock, plain and exclusive, as far as is known. The next call is likely to find it.
    pub(super) plain_hold: Option<Hold>,
    /// When the exclusive hold was granted that is there, as far as is known.
    pub(super) held_since: Option<MonoUs>,
    /// It was granted to somebody who is told by a message, and external clients may have seen that it will be held for longer
    /// than until the end of the grace: see [`ExpectedEnd`](super::step::ExpectedEnd).
    pub(super) unconfirmed_whole_lease: bool,
    /// How many held the lock at the end of the last step, if more grants and bindings are remembered than one step looks through.
    pub(super) held_by: u32,
    /// Some of these may be of holds that have ended since they were looked through.
    pub(super) may_have_ended: bool,
    /// After how many more steps they are looked through again.
    pub(super) looks_in: u32,
    /// When a newcomer has looked at the key last, and at what stands beside it.
    pub(super) last_look: Option<MonoUs>,
    /// For when it stands in [`Parts::leases`].
    pub(super) lease_planned: Option<WallMs>,
    /// For when it stands in [`Parts::windows`].
    pub(super) window_planned: Option<MonoUs>,
    /// Where it is likely to be found among those that were waited for longest.
    pub(super) place_in_top: u32,
}

impl LockState {
    /// True if somebody waits for the lock: natively or, as far as is known, as an external client.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.queue.is_empty() || self.fairness.has_subscribers()
    }

    /// The hold that was remembered may be another one by now.
    pub(super) fn forget_hold(&mut self) {
        self.plain_hold = None;
        self.held_since = None;
    }

    /// True if owners are to be told when their leases are over, whether anybody waits for the lock or not.
    pub(super) fn has_owners_to_notify(&self) -> bool {
        !self.held.is_empty() || self.unconfirmed.any_unanswered()
    }
}

/// Everything in memory, see the fields' types.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) table: LockTable<LockState>,
    pub(super) waiters: Waiters,
    pub(super) bindings: Bindings,
    /// When a wait is over.
    pub(super) deadlines: Schedule<MonoUs, WaiterId>,
    /// When the first lease ends of a lock that is held and that somebody waits for: natively or, as far as is known, as an
    /// external client. Or of which the owners are to be told.
    pub(super) leases: Calendar<WallMs, LockIdx>,
    /// The lock that was handed over last, if that was to the last in line. It stays in `leases` until the timer comes or another
    /// lock is handed over so: often somebody queues up again at once, and to take it out and put it back costs more.
    pub(super) last_handed_over: Option<LockIdx>,
    /// When a fairness window is over, or forgotten that there were subscribers.
    pub(super) windows: Calendar<MonoUs, LockIdx>,
    /// Those of the locks with a lease on the schedule that can become free without an event.
    pub(super) fragile: FragileLocks,
    pub(super) granted_keys: GrantedKeys,
    /// No hold is remembered of a lock that nobody waits for.
    pub(super) forgets_holds: bool,
    /// How much a step does at once.
    pub(super) portion: Portion,
    /// Connections whose waits and holds are still to be ended.
    pub(super) ending_connections: BTreeMap<ConnectionId, ConnectionEnd>,
    /// Until then nothing is granted but to those who hold the lock: others may hold it whose holds were forgotten.
    pub(super) quarantined_until: Option<MonoUs>,
    /// This server is not the primary.
    pub(super) demoted: bool,
    pub(super) windows_given: usize,
    pub(super) windows_used: usize,
    pub(super) decisions: VecDeque<(WaiterId, Decision)>,
    /// Those that leave as messages.
    pub(super) messages: VecDeque<Message>,
    /// Bundles that wait still though they were granted, and of which a hold has ended.
    pub(super) lost_bundles: Vec<WaiterId>,
    /// Owners are told what happens to their holds.
    pub(super) notifies_owners: bool,
    pub(super) notices: VecDeque<Notice>,
    /// How many leases ran out under their owners, as far as that is known.
    pub(super) expired_leases: usize,
    pub(super) statistics: Statistics,
    /// Waits that may wait for their own owners.
    pub(super) searches: Searches,
}

/// So many waits of an owner for one lock are searched when the first of them ends.
const MAX_SEARCHED_LEFT_BEHIND: usize = 4;

/// So many waits of an owner are searched, or of the owners who hold a lock.
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

    /// True if nothing has to be remembered about this lock.
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

    /// Forgets a lock about which nothing has to be remembered.
    #[inline(always)]
    pub(super) fn drop_if_idle(&mut self, lock: LockIdx) {
        if self.is_idle(lock) {
            self.table.remove(lock);
        }
    }

    /// Adapts the schedule to what the lock's fairness wants.
    #[inline(always)]
    pub(super) fn schedule_window(&mut self, lock: LockIdx) {
        if let Some(state) = self.table.get_mut(lock) {
            self.windows.set(lock, &mut state.window_planned, state.fairness.deadline());
        }
    }

    /// Sets when the first lease of a lock ends; `None` if nobody waits for that, but maybe its owner, who is to be told.
    #[inline(always)]
    pub(super) fn schedule_lease(&mut self, lock: LockIdx, end: Option<WallMs>) {
        let Some(state) = self.table.get_mut(lock) else { return };
        if end.is_none() && state.has_owners_to_notify() {
            return;
        }
        // One that is on the schedule for earlier leads to a look that finds the new time: to move it at each hand-over costs
        // more.
        if end.is_none_or(|end| state.lease_planned.is_none_or(|planned| end < planned)) {
            self.leases.set(lock, &mut state.lease_planned, end);
        }
        if end.is_none() {
            self.fragile.remove(lock);
        }
    }

    /// Owners are to be told what has happened to their holds.
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

    /// The owner holds the lock, and is told if it loses it.
    #[cold]
    pub(super) fn insert_held(&mut self, lock: LockIdx, owner: &Owner, hold: HoldRecord) {
        if let Some(state) = self.table.get_mut(lock) {
            state.held.insert(owner, hold);
        }
    }

    /// The owner's hold has ended. Returns whether it was known.
    pub(super) fn take_held(&mut self, lock: LockIdx, owner: &Owner) -> bool {
        self.table.get_mut(lock).is_some_and(|state| state.held.remove(owner))
    }

    /// What is known of a lock's holds is not so any more, or no matter of this server.
    pub(super) fn forget_held(&mut self, lock: LockIdx) {
        if let Some(state) = self.table.get_mut(lock) {
            state.held = Held::default();
        }
    }

    /// Nobody waits for a lock any more that was handed over: see [`Parts::last_handed_over`].
    pub(super) fn keep_watching(&mut self, lock: LockIdx) {
        if self.last_handed_over != Some(lock) {
            self.stop_watching_last();
            self.last_handed_over = Some(lock);
        }
        self.fragile.remove(lock);
    }

    /// The end of that lock's lease is not watched any more, if nobody waits for it.
    pub(super) fn stop_watching_last(&mut self) {
        if let Some(lock) = self.last_handed_over.take() {
            self.unwatch_lease(lock);
            self.drop_if_idle(lock);
        }
    }

    /// Somebody does not wait any more for the end of the first lease. If nobody does, it is not looked at.
    pub(super) fn unwatch_lease(&mut self, lock: LockIdx) {
        if !self.state(lock).is_some_and(LockState::is_waited_for) {
            self.schedule_lease(lock, None);
        }
    }

    /// Nobody here grants anything any more, or nothing is known about the lock any more.
    pub(super) fn forget_window(&mut self, lock: LockIdx) {
        if let Some(state) = self.table.get_mut(lock) {
            state.fairness = Fairness::default();
        }
        self.schedule_window(lock);
    }

    /// An external client has taken the lock.
    pub(super) fn taken_externally(&mut self, lock: LockIdx, now: Now) {
        let Some(state) = self.table.get_mut(lock) else { return };
        self.windows_used += usize::from(state.fairness.taken_externally(now));
        self.schedule_window(lock);
    }

    /// Ends a wait that is queued, with a decision. Its lock stays, even if nothing has to be remembered of it.
    pub(super) fn end_queued(&mut self, id: WaiterId, decision: Decision) {
        let first_wait = self.waiters.first_wait_of(id);
        if let Some(wait) = self.take_out(id) {
            self.count_end(&wait, &decision);
            self.decide(first_wait, wait.lock(), wait.request(), decision);
        }
    }

    /// A wait was decided: its client, which is blocked by it, is answered. Or it is told by a message.
    #[inline(always)]
    pub(super) fn decide(&mut self, id: WaiterId, lock: LockIdx, request: &Request, decision: Decision) {
        match &request.notify {
            None => self.decisions.push_back((id, decision)),
            // The call has come again, and that one is answered.
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

    /// The connection has not confirmed a grant of which it was told by a message, or nobody has heard that. False if the grant
    /// is not there any more.
    pub(super) fn miss(&mut self, id: WaiterId) -> bool {
        let wait = self.waiters.get(id).filter(|wait| wait.state() == WaitState::Granted);
        let Some((lock, request)) = wait.map(|wait| (wait.lock(), wait.request().clone())) else {
            return false;
        };
        let Some(notify) = &request.notify else { return false };
        self.statistics.count(Counted::NotConfirmed);
        let drops_waits = self.waiters.notified.note_missed(notify.connection);
        self.decide(id, lock, &request, Decision::Lost);
        self.begin_to_revoke(id);
        if drops_waits {
            self.ending_connections.entry(notify.connection).or_insert(ConnectionEnd::Unresponsive);
        }
        true
    }

    /// Ends some of the waits, and what else depends on connections that have closed; the rest with the next tick.
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

    /// Ends a portion of what depends on a connection that closes: at once, as the next call must not count on it. Nearly always
    /// that is all. True if something may be left.
    pub(super) fn end_portion_of(&mut self, connection: ConnectionId, now: Now) -> bool {
        (0..4 * self.portion.0).all(|_| self.end_next_of(connection, ConnectionEnd::Closed, now))
    }

    /// Ends the owner's hold on this lock if it depends on a connection that has closed, of which not all was ended yet.
    #[cold]
    pub(super) fn end_closed_hold(&mut self, lock: LockIdx, owner: &Owner, now: Now) {
        let closed = self.ending_connections.iter().filter(|(_, end)| **end == ConnectionEnd::Closed);
        let closed: Vec<ConnectionId> = closed.map(|(connection, _)| *connection).collect();
        for connection in closed {
            self.bindings.close_one(connection, &(lock, owner.clone()), now);
        }
    }

    /// False if there is nothing left to end of this connection.
    fn end_next_of(&mut self, connection: ConnectionId, end: ConnectionEnd, now: Now) -> bool {
        let next = match end {
            ConnectionEnd::Closed => self.waiters.notified.next_of(connection),
            ConnectionEnd::Unresponsive => self.waiters.notified.next_queued_of(connection),
        };
        if let Some(id) = next {
            let decision = (end == ConnectionEnd::Unresponsive).then_some(Decision::Lost);
            self.statistics.add(Counted::Dropped, usize::from(decision.is_some()));
            if !self.end_wait(id, decision) {
                self.begin_to_revoke(id);
            }
            // Whatever it was.
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

    /// True if the connection of this wait has closed, or is to lose it for another reason.
    #[inline(always)]
    pub(super) fn is_dropped(&self, wait: &Wait) -> bool {
        // Nearly always there is none.
        !self.ending_connections.is_empty() && self.has_dropped(wait)
    }

    #[cold]
    fn has_dropped(&self, wait: &Wait) -> bool {
        wait.request()
            .notify
            .as_ref()
            .is_some_and(|notify| self.ending_connections.contains_key(&notify.connection))
    }

    /// A wait that is queued ends without a grant, as its connection loses it.
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

    /// How many grants and bindings of a lock are remembered that end with their holds.
    pub(super) fn remembered_of(&self, lock: LockIdx) -> usize {
        self.table.get(lock).map_or(0, |state| state.unconfirmed.len()) + self.bindings.len_of(lock)
    }

    /// A grant of which its client was told by a message is confirmed, revoked or void.
    fn grace_ends(&mut self, id: WaiterId, request: &Request) {
        if request.notify.is_some() {
            self.deadlines.set(&id, None);
        }
    }

    /// Ends a wait that is queued, with a decision or as it left by itself. Those behind it may not have to wait any more.
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
        // Of a bundle's lock it may still be to be announced that it is free.
        if (unblocks_next || wait.is_member()) && !self.demoted {
            self.table.set_ready(lock);
        }
        self.unwatch_lease(lock);
        self.drop_if_idle(lock);
        true
    }

    /// A wait has ended without a grant.
    fn count_end(&mut self, wait: &Wait, decision: &Decision) {
        if *decision == Decision::TimedOut {
            self.statistics.count(Counted::TimedOut);
            let waited = wait.deadline().unwrap_or_default().saturating_sub(wait.since());
            self.count_wait(wait.lock(), waited);
        }
    }

    /// A wait has ended, with a grant or as its time was over.
    #[inline(always)]
    pub(super) fn count_wait(&mut self, lock: LockIdx, waited: MonoUs) {
        let Some((name, state)) = self.table.named_state(lock) else { return };
        self.statistics.waited(name, &mut state.place_in_top, waited);
    }

    /// Takes a queued wait out of every index, and with it the other parts of its bundle.
    fn take_out(&mut self, id: WaiterId) -> Option<Wait> {
        let is_member =
            !self.waiters.bundles.is_empty() && self.waiters.queued(id).is_some_and(Wait::is_member);
        if is_member {
            for other in self.waiters.together(id).into_iter().filter(|other| *other != id) {
                let Some(wait) = self.take_out_alone(other) else { continue };
                // Its lock is not in hand: who stood behind it may be served there now, and nothing may be left to remember.
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
        // What else its owner waits for here was served with it, and may stand behind others now.
        let others = self.waiters.of_owner_at(wait.lock(), wait.request().owner.as_bytes());
        for other in others.take(MAX_SEARCHED_LEFT_BEHIND) {
            if self.waiters.queued(other).is_some_and(|other| other.position() > wait.position()) {
                self.searches.insert(other);
            }
        }
        if let Some(state) = self.table.get_mut(wait.lock()).filter(|state| state.queue.is_empty()) {
            // Nobody got it, and nobody wants it any more.
            state.plain_hold = None;
        }
        Some(wait)
    }

    /// Adds a wait to the queue of its lock: a request, whose owner `holds` the lock or not, with its ticket and since when it
    /// waits.
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
        // Of a bundle there is one deadline.
        if deadline.is_some() && first_wait.is_none_or(|first_wait| first_wait == id) {
            self.deadlines.set(&id, deadline);
        }
        let new = NewWait { lock, request, deadline, position, since, first_wait };
        let crossing = self.waiters.queue(id, new);
        self.statistics.record_waiters(self.waiters.queued_len());
        self.mark_crossing(crossing);
    }

    /// A wait is granted: it leaves its queue, and the grant is on its way to the client. Returns how long it has waited, and
    /// whether its owner waits still.
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

    /// A grant did not reach its client: it is revoked when the lock is reconciled; if it is of several locks, each when that
    /// lock is.
    pub(super) fn begin_to_revoke(&mut self, id: WaiterId) {
        for id in self.waiters.together(id) {
            self.begin_to_revoke_alone(id);
        }
    }

    /// The same of one part of a bundle.
    pub(super) fn begin_to_revoke_alone(&mut self, id: WaiterId) {
        if !self.waiters.begin_to_revoke(id) {
            return;
        }
        let Some(wait) = self.waiters.get(id) else { return };
        let lock = wait.lock();
        if wait.request().notify.is_some() {
            self.deadlines.set(&id, None);
        }
        if let Some(state) = self.table.get_mut(lock) {
            state.unconfirmed.begin_to_revoke(id, &wait.request().owner);
            self.table.set_ready(lock);
        }
    }

    /// Notes in the queues which waits are of owners who wait for other locks too.
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

    /// The owner holds the lock: its queued waits for it, of which it may have more, stand before all newcomers from now on.
    pub(super) fn move_waits_ahead(&mut self, lock: LockIdx, owner: &Owner) {
        let waits: SmallVec<[WaiterId; 4]> = self.waiters.of_owner_at(lock, owner.as_bytes()).collect();
        waits.into_iter().for_each(|id| self.move_wait(id, true));
    }

    /// The owner holds more than when its waits began: those who wait for that may be the ones whom it waits for.
    #[cold]
    pub(super) fn search_waits_of(&mut self, owner: &Owner) {
        for id in self.waiters.of_owner(owner.as_bytes()).take(MAX_SEARCHED_WAITS) {
            self.searches.insert(id);
        }
    }

    /// True if who holds this lock may stand in the way of somebody who did not stand behind it: where all wait for this lock only,
    /// whoever is granted it came first.
    pub(super) fn has_members(&self, lock: LockIdx) -> bool {
        !self.waiters.bundles.is_empty() && self.state(lock).is_some_and(|state| state.queue.has_members())
    }

    /// The owner of this queued wait holds the lock from now on, or does so no more.
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

    /// The holds of these owners ended: what was still to be delivered, given back, renewed or released of them is void.
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

    /// The holds of these owners ended: grants of them that are in flight are void. What depends on connections stays. `forgets`
    /// unless what is stored of their requests has gone where the holds went.
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
            } else if wait.state() == WaitState::Revoking && forgets && !self.demoted {
                // It was to be undone in any case.
                let state = self.table.get_mut(lock);
                if let Some((state, request)) = state.zip(wait.request().id.clone()) {
                    state.unconfirmed.was_voided(request);
                }
            }
            // Who waits still for all of them, has lost one.
            let waits = |first_wait: &WaiterId| {
                wait.request().awaits_replicas && !self.waiters.bundles.is_answered(*first_wait)
            };
            self.lost_bundles.extend(wait.first_wait().filter(waits));
        }
    }

    /// The hold of a grant has ended of which its client was told by a message, and that it has not confirmed.
    #[cold]
    fn void_notified(&mut self, id: WaiterId, lock: LockIdx, wait: &Wait, forgets: bool) {
        self.grace_ends(id, wait.request());
        if wait.state() == WaitState::Granted {
            self.decide(id, lock, wait.request(), Decision::Lost);
        }
        // Who asks again then, is not to be told that it was granted.
        let state = self.table.get_mut(lock).filter(|_| forgets && !self.demoted);
        if let Some((state, request)) = state.zip(wait.request().id.clone()) {
            state.unconfirmed.was_voided(request);
        }
    }

    /// Ends the waits of those whose holds have ended although they wait still. Nearly always there are none.
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
                self.begin_to_revoke(first_wait);
            }
        }
    }

    /// A call that will not be revoked has set the lease of a hold, or its token.
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

    /// A grant has reached its client, and nothing follows from that, as with nearly all. False if something may: nothing is
    /// done then.
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

    /// A grant has reached its client. If that makes the lease shorter, the lock is ready to have it written. Returns the lease
    /// that the hold has.
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
