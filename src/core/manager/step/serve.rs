// SPDX-License-Identifier: MIT

//! Serves the queue: grants the lock to waiters.

use super::grant::{Grant, GrantTime, NotGranted, ReplyTarget};
use super::Step;
use crate::core::holders::Admission;
use crate::core::manager::parts::LockState;
use crate::core::owner::AffectedOwners;
use crate::core::queue::fairness::WhenFree;
use crate::core::queue::position::Standing;
use crate::core::queue::wait::Wait;
use crate::core::table::LockIdx;
use crate::core::unconfirmed::NewGrant;
use crate::core::{Counted, Decision, Mode, MonoUs, Owner, Reply, Request, WaiterId};
use smallvec::SmallVec;

impl Step<'_> {
    /// Serves the queue before the call. Other commands may run between a foreign `DEL` and the timer, but
    /// waiters come before them.
    pub(in crate::core::manager) fn serve_first(&mut self) {
        if let Some(lock) = self.lock {
            self.serve(lock);
            self.forget_if_free();
            self.trim_fairness(lock);
        }
    }

    /// Serves the queue, at most a portion of it.
    pub(super) fn serve(&mut self, lock: LockIdx) {
        // Ends deliveries, releases and renewals that are pending for owners without a hold.
        if self.examines_all || self.is_call() {
            let holders = &*self.holders;
            let ended = |owner: &Owner| holders.get(owner.as_bytes()).is_none();
            let any_left = self.parts.void_ended(lock, self.affected, self.portion, ended);
            if any_left && !self.is_call() {
                self.is_due_again = true;
                if let Some(state) = self.parts.state_mut(lock) {
                    state.examine_again();
                }
            }
        }
        self.forget_voided(lock);
        self.move_former_holders_back(lock);
        if self.parts.waiters.bundles.is_stopped(lock) || self.is_unfinished {
            return;
        }
        if self.holders.is_free() && self.is_left_free(lock) {
            return;
        }
        let mut served = 0;
        while let Some(id) = self.next_to_serve(lock) {
            if served == self.portion {
                self.is_due_again = true;
                return;
            }
            served += 1;
            let Some(wait) = self.parts.waiters.get(id) else {
                return defect!("a queue names an unknown wait");
            };
            if wait.is_over(self.now) {
                self.parts.end_queued(id, Decision::TimedOut);
                continue;
            }
            if self.parts.is_passed_over(wait) {
                self.parts.pass_over(id);
                continue;
            }
            let request = wait.request().clone();
            self.unbind_earlier(lock, &request.owner);
            match self.grant(&request, ReplyTarget::Waiter) {
                Ok(grant) => {
                    let reply = self.hand_over(lock, id, &request, grant, GrantTime::AfterWaiting);
                    self.parts.decide(id, &request, Decision::Granted(reply));
                    if self.excludes_all(lock) {
                        return;
                    }
                }
                Err(NotGranted::Refused(refusal)) => self.parts.end_queued(id, Decision::Refused(refusal)),
                Err(NotGranted::Busy) => return defect!("the next wait cannot be granted"),
            }
        }
    }

    /// Whether the current holder excludes every waiter.
    pub(super) fn excludes_all(&self, lock: LockIdx) -> bool {
        let only_newcomers = |state: &LockState| !state.queue().has_holders() && !state.queue().has_members();
        self.holders.mode() == Some(Mode::Exclusive) && self.parts.state(lock).is_some_and(only_newcomers)
    }

    /// The next wait that can be decided. Makes a bundle due if one of its members could be granted.
    pub(super) fn next_to_serve(&mut self, lock: LockIdx) -> Option<WaiterId> {
        let mut due = SmallVec::<[WaiterId; 4]>::new();
        let waits_elsewhere = |id| self.parts.waiters.waits_elsewhere(id);
        let next = self.parts.state(lock)?.queue().next(waits_elsewhere, |id| {
            let Some(wait) = self.parts.waiters.get(id) else { return false };
            let Request { owner, wants, .. } = wait.request();
            if wait.is_over(self.now) || self.parts.is_passed_over(wait) {
                return true;
            }
            let is_next = self.admits(owner.as_bytes(), *wants) != Admission::Busy;
            match wait.first_wait() {
                None => is_next,
                // Returns false, because readers that belong to other bundles may follow.
                Some(first_wait) => {
                    if is_next && self.parts.waiters.bundles.may_be_due(first_wait, lock) {
                        due.push(first_wait);
                    }
                    false
                }
            }
        });
        for first_wait in due {
            self.parts.waiters.bundles.is_due(first_wait, lock);
        }
        next
    }

    /// Ends a wait with a grant in flight. Returns the reply.
    // A grant is large: it is passed in place.
    #[inline(always)]
    pub(super) fn hand_over(
        &mut self,
        lock: LockIdx,
        id: WaiterId,
        Request { owner, wants, awaits_replicas, .. }: &Request,
        grant: Grant,
        time: GrantTime,
    ) -> Reply {
        let Grant { reply, effect, before, written } = grant;
        self.handed_over = true;
        let (waited, waits_more) = self.parts.grant_wait(id, self.now, before.is_none());
        if time == GrantTime::AfterWaiting {
            self.parts.statistics.count(Counted::GrantedAfterWaiting);
            self.parts.count_wait(lock, waited);
            if self.parts.log.logs_wait(waited) {
                self.log_grant(id, waited);
            }
        }
        if before.is_some() {
            self.parts.bindings.note_lease_end(lock, owner, written, self.now);
        }
        if waits_more {
            // Waiters no longer block the owner's other waits for this lock.
            self.parts.move_waits_ahead(lock, owner);
            if self.parts.has_members(lock) && !self.parts.waiters.get(id).is_some_and(Wait::is_member) {
                self.parts.search_waits_of(owner);
            }
        }
        if let Some(state) = self.parts.state_mut(lock) {
            let (mode, awaits_replicas) = (wants.mode, *awaits_replicas);
            let grant = NewGrant { id, owner, mode, awaits_replicas, effect, before, written };
            state.unconfirmed_mut().granted(grant);
        }
        reply
    }

    /// Logs a long wait that has ended with a grant.
    #[cold]
    fn log_grant(&mut self, id: WaiterId, waited: MonoUs) {
        let releasing = match self.affected {
            AffectedOwners::Only(owner) if self.released => Some(owner),
            _ => None,
        };
        self.parts.log_long_wait(id, waited, "granted", releasing);
    }

    /// Moves waits of owners that no longer hold the lock behind those of its holders.
    pub(super) fn move_former_holders_back(&mut self, lock: LockIdx) {
        let Some(state) = self.parts.state(lock).filter(|state| state.queue().has_holders()) else { return };
        let inside: Vec<WaiterId> = state.queue().holders().map(|(id, _)| id).collect();
        for id in inside {
            let holds = |owner: &Owner| self.holders.get(owner.as_bytes()).is_some();
            if !self.parts.waiters.get(id).is_some_and(|wait| holds(&wait.request().owner)) {
                self.parts.move_wait(id, Standing::Newcomer);
                // The waits that are now ahead of it may wait for its owner.
                self.parts.searches.insert(id);
            }
        }
    }

    /// Whether a free lock is currently left to external clients.
    pub(super) fn is_left_free(&mut self, lock: LockIdx) -> bool {
        let Some(state) = self.parts.table.get_mut(lock) else { return false };
        let first = state.queue().first().and_then(|id| self.parts.waiters.get(id));
        let first_deadline = first.and_then(|wait| wait.deadline());
        let granted_keys = &self.parts.granted_keys;
        match state.when_free(first_deadline, || granted_keys.contains(self.name), self.now) {
            WhenFree::Serve => false,
            WhenFree::Leave => true,
            WhenFree::Ask if self.records.has_listeners() => {
                self.records.announce();
                state.open_window(self.now);
                self.parts.windows_given += 1;
                true
            }
            WhenFree::Ask => {
                state.note_no_subscribers(self.now);
                false
            }
        }
    }
}
