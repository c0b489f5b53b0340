// SPDX-License-Identifier: MIT

//! Finishes a step, and returns what the caller must do after the write.

use super::output::StepOutput;
use super::{counted, Step};
use crate::core::schedule::earlier;
use crate::core::table::LockIdx;
use crate::core::{Decision, Holders};

impl Step<'_> {
    /// Serves the queue and ends the step.
    pub(in crate::core::manager) fn finish(mut self) -> StepOutput {
        if let Some(lock) = self.lock {
            self.serve(lock);
        }
        self.forget_if_free();
        self.close()
    }

    /// Ends a step whose call unblocks no waiter. Updates the schedules, and drops unneeded state.
    #[inline(always)]
    pub(in crate::core::manager) fn close(mut self) -> StepOutput {
        match self.lock {
            Some(lock) => self.close_known(lock),
            None => StepOutput { lock: None, watches_lease: false, unannounced: false, is_reserved: false },
        }
    }

    #[inline(always)]
    pub(super) fn close_known(&mut self, lock: LockIdx) -> StepOutput {
        if self.parts.notifies_owners && (self.examines_all || self.is_call()) {
            self.record_releases(lock, self.affected);
        }
        self.note_crowd(lock);
        self.parts.end_lost(lock, &Decision::Lost);
        if self.parts.any_losses() {
            self.parts.report_losses(self.cause);
        }
        self.trim_fairness(lock);
        let watches_lease = self.watch_lease(lock);
        let alone = self.holders.sole_holder();
        let plain = alone.filter(|(_, token)| token.is_none()).map(|(hold, _)| hold);
        let (is_bound, forgets) = (self.parts.bindings.knows(lock), self.parts.forgets_holds);
        let handed_over = self.handed_over;
        let bundles = &self.parts.waiters.bundles;
        let is_reserved = !bundles.is_empty()
            && self.holders.is_free()
            && bundles.is_reserved(lock, || self.parts.has_members(lock));
        let unannounced = self.parts.state_mut(lock).is_some_and(|state| {
            // The hold of an external client is remembered only while native clients wait for the lock.
            let is_wanted = !state.queue().is_empty() || state.unconfirmed().any_in_flight() || is_bound;
            let mark_kept = is_wanted || state.plain_hold().is_some();
            let plain = plain.filter(|_| if forgets { !state.queue().is_empty() } else { mark_kept });
            if handed_over || state.plain_hold() != plain {
                state.set_plain_hold(plain);
            }
            state.note_other_holder(alone.filter(|_| plain.is_none()).map(|(hold, _)| &hold.owner));
            if alone.is_none() {
                state.take_held_since();
            }
            !is_reserved && state.take_unannounced()
        });
        self.parts.drop_if_idle(lock);
        StepOutput { lock: Some(lock), watches_lease, unannounced, is_reserved }
    }

    /// Records the number of holders if the lock has more grants and bindings than a step examines. Also
    /// records whether work is left.
    pub(super) fn note_crowd(&mut self, lock: LockIdx) {
        let is_crowded = self.parts.remembered_of(lock) > self.parts.portion.0;
        let holders = if is_crowded { counted(self.holders.len()) } else { 0 };
        if let Some(state) = self.parts.state_mut(lock) {
            state.note_holders(holders);
        }
        if (self.is_unfinished || self.is_due_again) && !self.parts.demoted {
            self.parts.table.set_ready(lock);
        }
    }

    pub(super) fn forget_if_free(&mut self) {
        if self.holders.is_free() {
            self.parts.granted_keys.remove(self.name);
        }
    }

    /// Drops unneeded fairness history, now or later.
    #[inline(always)]
    pub(super) fn trim_fairness(&mut self, lock: LockIdx) {
        let (is_free, now) = (self.holders.is_free(), self.now);
        let Some(state) = self.parts.state_mut(lock) else { return };
        let used = state.trim_fairness(is_free, now);
        self.parts.windows_used += usize::from(used);
        self.parts.schedule_window(lock);
    }

    /// Schedules the end of the first lease of a lock with waiters. Returns whether it has one.
    #[inline(always)]
    pub(super) fn watch_lease(&mut self, lock: LockIdx) -> bool {
        let is_free = self.holders.is_free();
        let Some(state) = self.parts.state(lock) else { return false };
        let is_waited_for = !state.queue().is_empty() || (!is_free && state.has_subscribers());
        if !is_waited_for && !state.has_owners_to_notify() {
            if self.handed_over && !is_free {
                self.parts.keep_watching(lock);
            } else {
                self.parts.schedule_lease(lock, None);
            }
            return false;
        }
        let ends_unheard = match self.holders {
            // A single reader's departure may unblock an upgrade or a request with a limit. All other changes
            // raise an event.
            Holders::Shared(_) => state.queue().needs_fewer_holders(),
            Holders::Free | Holders::Exclusive(_) => is_waited_for,
        };
        let of_holders = self.holders.first_end();
        let end = earlier(of_holders, state.held().first_end());
        self.parts.schedule_lease(lock, end);
        if ends_unheard && self.holders.outlives_its_field() {
            self.parts.fragile.insert(lock);
        } else if !self.parts.fragile.is_empty() {
            self.parts.fragile.remove(lock);
        }
        of_holders.is_some()
    }
}
