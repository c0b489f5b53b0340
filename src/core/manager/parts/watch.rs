// SPDX-License-Identifier: MIT

//! Schedules of leases and fairness windows.

use super::lock_state::LockState;
use super::Parts;
use crate::core::table::LockIdx;
use crate::core::{Now, WallMs};

impl Parts {
    /// Updates the schedule from the lock's fairness state.
    #[inline(always)]
    pub(in crate::core::manager) fn schedule_window(&mut self, lock: LockIdx) {
        if let Some(state) = self.table.get_mut(lock) {
            state.plan_window(&mut self.windows, lock);
        }
    }

    /// Schedules the end of the first lease of a lock. `None` removes it, unless an owner must be notified of
    /// it.
    #[inline(always)]
    pub(in crate::core::manager) fn schedule_lease(&mut self, lock: LockIdx, end: Option<WallMs>) {
        let Some(state) = self.table.get_mut(lock) else { return };
        if end.is_none() && state.has_owners_to_notify() {
            return;
        }
        // An earlier entry stays, because its check will find the new end. Moving it at each hand-over would
        // cost more.
        if end.is_none_or(|end| state.planned_lease().is_none_or(|planned| end < planned)) {
            state.plan_lease(&mut self.leases, lock, end);
        }
        if end.is_none() {
            self.fragile.remove(lock);
        }
    }

    /// Keeps watching the lease of a lock that was handed over and has no waiters. See
    /// [`Parts::last_handed_over`].
    pub(in crate::core::manager) fn keep_watching(&mut self, lock: LockIdx) {
        if self.last_handed_over != Some(lock) {
            self.stop_watching_last();
            self.last_handed_over = Some(lock);
        }
        self.fragile.remove(lock);
    }

    /// Stops watching the lease of the most recently handed-over lock, unless it has waiters.
    pub(in crate::core::manager) fn stop_watching_last(&mut self) {
        if let Some(lock) = self.last_handed_over.take() {
            self.unwatch_lease(lock);
            self.drop_if_idle(lock);
        }
    }

    /// Stops watching the first lease of a lock without waiters.
    pub(in crate::core::manager) fn unwatch_lease(&mut self, lock: LockIdx) {
        if !self.state(lock).is_some_and(LockState::is_waited_for) {
            self.schedule_lease(lock, None);
        }
    }

    /// Forgets the fairness history of a lock that is no longer granted here.
    pub(in crate::core::manager) fn forget_window(&mut self, lock: LockIdx) {
        if let Some(state) = self.table.get_mut(lock) {
            state.reset_fairness();
        }
        self.schedule_window(lock);
    }

    /// Records that an external client has taken the lock.
    pub(in crate::core::manager) fn taken_externally(&mut self, lock: LockIdx, now: Now) {
        let Some(state) = self.table.get_mut(lock) else { return };
        self.windows_used += usize::from(state.note_taken_externally(now));
        self.schedule_window(lock);
    }
}
