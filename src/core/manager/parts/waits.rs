// SPDX-License-Identifier: MIT

//! How waits start, move and end.

use super::lock_state::LockState;
use super::{Parts, MAX_SEARCHED_WAITS};
use crate::core::queue::position::{Position, Standing};
use crate::core::queue::wait::{NewWait, QueuePlace, Wait};
use crate::core::queue::wait_queue::Place;
use crate::core::queue::waiters::{Crossing, Unqueued};
use crate::core::table::LockIdx;
use crate::core::{Counted, Decision, MonoUs, Now, Owner, Request, WaiterId};
use smallvec::SmallVec;

/// When a wait ends, maximum number of its owner's other waits for the lock to search.
const MAX_SEARCHED_LEFT_BEHIND: usize = 4;

impl Parts {
    /// Ends a queued wait with a decision. The lock stays in the table even if it is idle now.
    pub(in crate::core::manager) fn end_queued(&mut self, id: WaiterId, decision: Decision) {
        let first_wait = self.waiters.first_wait_of(id);
        self.log_wait(id, Some(&decision));
        if let Some(wait) = self.take_out(id) {
            self.count_end(&wait, &decision);
            self.decide(first_wait, wait.request(), decision);
        }
    }

    /// Emits a decision: to the driver, or as an event of a session.
    #[inline(always)]
    pub(in crate::core::manager) fn decide(&mut self, id: WaiterId, request: &Request, decision: Decision) {
        match request.number() {
            // The driver first waits for the replicas.
            Some(call) if !request.awaits_replicas => self.decide_number(call.number, id, decision),
            _ => self.decisions.push_back((id, decision)),
        }
    }

    /// Ends a queued wait, with a decision or because its client has left. May make the lock ready for the
    /// waiters behind it. Returns false if the wait is not queued.
    pub(in crate::core::manager) fn end_wait(&mut self, id: WaiterId, decision: Option<Decision>) -> bool {
        self.log_wait(id, decision.as_ref());
        self.end_logged_wait(id, decision)
    }

    /// Ends a queued wait like [`Parts::end_wait`], but does not log it.
    pub(in crate::core::manager) fn end_logged_wait(
        &mut self,
        id: WaiterId,
        decision: Option<Decision>,
    ) -> bool {
        if self.waiters.queued(id).is_none() {
            return false;
        }
        let (id, member) = (self.waiters.first_wait_of(id), id);
        let Some(wait) = self.take_out(member) else { return false };
        let lock = wait.lock();
        if let Some(decision) = decision {
            self.count_end(&wait, &decision);
            self.decide(id, wait.request(), decision);
        } else if let Some(call) = wait.request().number() {
            self.forget_number(id, call.number, wait.request());
        }
        let Some(state) = self.table.get(lock) else { return defect!("a wait for an unknown lock", true) };
        let unblocks_next =
            state.queue().unblocks_next(wait.position(), wait.request().wants, wait.is_member());
        // If the wait is a bundle member, the announcement that its lock is free may have been withheld.
        if (unblocks_next || wait.is_member()) && !self.demoted {
            self.table.set_ready(lock);
        }
        self.unwatch_lease(lock);
        self.drop_if_idle(lock);
        true
    }

    /// Counts a wait that ended without a grant.
    pub(super) fn count_end(&mut self, wait: &Wait, decision: &Decision) {
        if *decision == Decision::TimedOut {
            self.statistics.count(Counted::TimedOut);
            let waited = wait.deadline().unwrap_or_default().saturating_sub(wait.since());
            self.count_wait(wait.lock(), waited);
        }
    }

    /// Records the duration of a wait that was granted or timed out.
    #[inline(always)]
    pub(in crate::core::manager) fn count_wait(&mut self, lock: LockIdx, waited: MonoUs) {
        let Some((name, state)) = self.table.named_state(lock) else { return };
        state.count_wait(&mut self.statistics, name, waited);
    }

    /// Removes a queued wait from every index, with the other members of its bundle.
    pub(super) fn take_out(&mut self, id: WaiterId) -> Option<Wait> {
        let is_member =
            !self.waiters.bundles.is_empty() && self.waiters.queued(id).is_some_and(Wait::is_member);
        if is_member {
            for other in self.waiters.together(id).into_iter().filter(|other| *other != id) {
                let Some(wait) = self.take_out_alone(other) else { continue };
                // The other lock is not open. Reconciling it serves the waiters behind the member, or drops
                // the lock if it is idle.
                if !self.demoted {
                    self.table.set_ready(wait.lock());
                }
            }
        }
        self.take_out_alone(id)
    }

    pub(super) fn take_out_alone(&mut self, id: WaiterId) -> Option<Wait> {
        let (wait, crossing) = self.waiters.remove(id)?;
        self.leave_queue(id, wait.place(), crossing);
        // The owner's other waits for this lock would have been served with this one. They may be blocked
        // now.
        let others = self.waiters.of_owner_at(wait.lock(), wait.request().owner.as_bytes());
        for other in others.take(MAX_SEARCHED_LEFT_BEHIND) {
            if self.waiters.queued(other).is_some_and(|other| other.position() > wait.position()) {
                self.searches.insert(other);
            }
        }
        if let Some(state) = self.table.get_mut(wait.lock()) {
            state.forget_unwanted_hold();
        }
        if !self.waiters.bundles.is_empty() {
            self.recheck_overtaken(&wait.request().owner);
        }
        Some(wait)
    }

    /// Call it when a wait of this owner has ended. If the owner now waits in one call only, the members of that
    /// call no longer stay behind the waits that have overtaken them. Their locks become ready.
    #[cold]
    fn recheck_overtaken(&mut self, owner: &Owner) {
        let Some(left) = self.waiters.of_owner(owner.as_bytes()).next() else { return };
        if self.demoted || self.waiters.waits_elsewhere(left) {
            return;
        }
        for member in self.waiters.together(left) {
            let Some(lock) = self.waiters.queued(member).map(Wait::lock) else { continue };
            if self.state(lock).is_some_and(|state| state.queue().is_overtaken(member)) {
                self.table.set_ready(lock);
            }
        }
    }

    /// Adds a wait to the queue of its lock.
    #[inline(always)]
    pub(in crate::core::manager) fn insert_wait(&mut self, id: WaiterId, new: NewWait) {
        let NewWait { deadline, first_wait, .. } = new;
        if let Some(call) =
            new.request.number().filter(|_| first_wait.is_none_or(|first_wait| first_wait == id))
        {
            if let Some(session) = self.sessions.of(call.number) {
                session.note_wait(call.number, id);
            }
        }
        if let Some(state) = self.table.get_mut(new.lock) {
            if state.queue().is_empty() {
                self.statistics.contention_begins();
            }
            let NewWait { position, request: Request { wants, .. }, .. } = &new;
            let (position, wants) = (*position, *wants);
            state.queue_mut().insert(Place { position, id, wants, is_member: first_wait.is_some() });
        }
        // A bundle has one deadline.
        if deadline.is_some() && first_wait.is_none_or(|first_wait| first_wait == id) {
            self.deadlines.set(&id, deadline);
        }
        let crossing = self.waiters.queue(id, new);
        self.statistics.record_waiters(self.waiters.queued_len());
        self.mark_crossing(crossing);
        if !self.waiters.bundles.is_empty() {
            self.search_other_calls(id);
        }
    }

    /// Schedules searches for the other calls of a new wait's owner. If the owner holds the lock, earlier members
    /// now stand behind the new wait. In all cases, such a search finds swaps that an interrupted search of the new
    /// wait may miss.
    #[cold]
    fn search_other_calls(&mut self, id: WaiterId) {
        if !self.waiters.waits_elsewhere(id) {
            return;
        }
        if let Some(owner) = self.waiters.queued(id).map(|wait| wait.request().owner.clone()) {
            self.search_waits_of(&owner);
        }
    }

    /// Moves a wait from its queue to the grants in flight. Returns its duration, and whether its owner has
    /// other queued waits.
    #[inline(always)]
    pub(in crate::core::manager) fn grant_wait(
        &mut self,
        id: WaiterId,
        now: Now,
        begins: bool,
    ) -> (MonoUs, bool) {
        let Some(ended) = self.waiters.grant(id, now.mono, begins) else {
            return defect!("an unknown wait was granted", (0, false));
        };
        let Unqueued { place, crossing, waits_more, waited } = ended;
        self.leave_queue(id, place, crossing);
        if waits_more && !self.waiters.bundles.is_empty() {
            if let Some(owner) = self.waiters.get(id).map(|wait| wait.request().owner.clone()) {
                self.recheck_overtaken(&owner);
            }
        }
        (waited, waits_more)
    }

    #[inline(always)]
    pub(super) fn leave_queue(
        &mut self,
        id: WaiterId,
        QueuePlace { lock, position, deadline }: QueuePlace,
        crossing: Crossing,
    ) {
        if deadline.is_some() {
            self.deadlines.set(&id, None);
        }
        let removed =
            |state: &mut LockState| state.queue_mut().leave(position, id).then(|| state.queue().is_empty());
        match self.table.get_mut(lock).and_then(removed) {
            Some(true) => self.statistics.contention_ends(),
            Some(false) => {}
            None => defect!("a wait is missing from its queue"),
        }
        self.mark_crossing(crossing);
    }

    /// Records in the queues which waits belong to owners that also wait for other locks.
    #[inline(always)]
    pub(in crate::core::manager) fn mark_crossing(&mut self, crossing: Crossing) {
        // Nearly every owner waits for one lock at a time.
        if crossing.is_empty() {
            return;
        }
        for (ids, crosses) in [(crossing.begin, true), (crossing.cease, false)] {
            for id in ids {
                let Some(wait) = self.waiters.queued(id) else { continue };
                if let Some(state) = self.table.get_mut(wait.lock()) {
                    state.queue_mut().set_crossing(wait.position(), crosses);
                }
            }
        }
    }

    /// Moves the queued waits of a new holder of this lock ahead of all newcomers. Newcomers that they
    /// overtake now wait for the holder, so its waits are searched for cycles.
    pub(in crate::core::manager) fn move_waits_ahead(&mut self, lock: LockIdx, owner: &Owner) {
        let waits: SmallVec<[WaiterId; 4]> = self.waiters.of_owner_at(lock, owner.as_bytes()).collect();
        let overtakes =
            waits.into_iter().fold(false, |overtakes, id| self.move_wait(id, Standing::Holder) | overtakes);
        if overtakes {
            self.search_waits_of(owner);
        }
    }

    /// Schedules searches for an owner that has got another hold. Waiters for that hold may be among its
    /// blockers.
    pub(in crate::core::manager) fn search_waits_of(&mut self, owner: &Owner) {
        for id in self.waiters.of_owner(owner.as_bytes()).take(MAX_SEARCHED_WAITS) {
            self.searches.insert(id);
        }
    }

    /// Whether a new holder of this lock may block owners that were queued ahead of it. Only members of
    /// bundles make that possible: in other queues, the first to arrive is granted first.
    pub(in crate::core::manager) fn has_members(&self, lock: LockIdx) -> bool {
        !self.waiters.bundles.is_empty() && self.state(lock).is_some_and(|state| state.queue().has_members())
    }

    /// Moves a queued wait after its owner got or lost its hold on the lock. Returns whether its position has
    /// changed.
    pub(in crate::core::manager) fn move_wait(&mut self, id: WaiterId, standing: Standing) -> bool {
        let Some(wait) = self.waiters.queued(id) else { return false };
        let (lock, before, wants, is_member) =
            (wait.lock(), wait.position(), wait.request().wants, wait.is_member());
        let after = Position::new(wants, standing, before.ticket());
        let Some(state) = self.table.get_mut(lock).filter(|_| before != after) else { return false };
        let crosses = state.queue().is_crossing(before);
        state.queue_mut().remove(before);
        state.queue_mut().insert(Place { position: after, id, wants, is_member });
        self.searches.note_move();
        if crosses {
            state.queue_mut().set_crossing(after, true);
        }
        self.waiters.set_position(id, after);
        true
    }
}
