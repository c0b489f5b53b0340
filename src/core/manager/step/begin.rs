// SPDX-License-Identifier: MIT

//! Begins a step: applies events since the lock's last step.

use super::{counted, Step, READS_PER_PORTION};
use crate::core::manager::parts::{Parts, RecordsOfVoided, MAX_SEARCHED_WAITS};
use crate::core::manager::OpenLock;
use crate::core::owner::AffectedOwners;
use crate::core::table::LockIdx;
use crate::core::Owner;

impl<'a> Step<'a> {
    /// Starts a step, and ends and renews holds that are due.
    // Inlined because most locks have no state, and then no call is needed.
    #[inline(always)]
    pub(in crate::core::manager) fn begin<'o: 'a>(
        parts: &'a mut Parts,
        open: OpenLock<'o>,
        affected: AffectedOwners<'a>,
    ) -> Step<'a> {
        let OpenLock { lookup, holders, records, now } = open;
        let (name, lock) = (lookup.name(), parts.table.handle_of(lookup));
        let portion = parts.portion.0.max(holders.read_len() / READS_PER_PORTION);
        let mut step = Step {
            parts,
            portion,
            name,
            lock,
            affected,
            holders,
            records,
            now,
            handed_over: false,
            released: false,
            is_crowded: false,
            examines_all: true,
            is_unfinished: false,
            is_due_again: false,
            cause: None,
        };
        step.parts.input_at = now;
        if let Some(lock) = lock {
            step.catch_up(lock);
        }
        step
    }

    #[inline(always)]
    pub(super) fn catch_up(&mut self, lock: LockIdx) {
        self.parts.table.unset_ready(lock);
        self.choose_examination(lock);
        if !self.parts.ending_connections.is_empty() {
            if let AffectedOwners::Only(owner) = self.affected {
                self.parts.end_closed_hold(lock, owner, self.now);
            }
        }
        self.forget_voided(lock);
        if self.parts.notifies_owners {
            self.notice_losses(lock);
        }
        self.revoke_due(lock);
        self.follow_connections(lock);
        self.follow_sessions(lock);
    }

    /// Decides whether this step examines all grants and bindings for ended holds. A few are always examined.
    /// Many are examined only if a hold may have ended without a call, and not in every step. On average, a
    /// step examines at most a portion of them.
    pub(super) fn choose_examination(&mut self, lock: LockIdx) {
        let (remembered, portion) = (self.parts.remembered_of(lock), self.portion);
        if remembered > portion {
            (self.is_crowded, self.examines_all) = (true, self.examines_now(lock, remembered / portion));
        }
    }

    pub(super) fn examines_now(&mut self, lock: LockIdx, steps: usize) -> bool {
        let (holders, calls) = (counted(self.holders.len()), self.is_call());
        let Some(state) = self.parts.state_mut(lock) else { return false };
        if !state.needs_examination(holders) || calls {
            return false;
        }
        let examines = state.begin_examination(counted(steps));
        self.is_due_again |= !examines;
        examines
    }

    /// Voids a portion of the grants whose holds ended together. Then deletes the records of up to a portion
    /// of marked grants whose holds have ended: they count as never made.
    #[inline(always)]
    pub(super) fn forget_voided(&mut self, lock: LockIdx) {
        let portion = self.portion;
        if self.parts.state(lock).is_some_and(|state| state.unconfirmed().any_ended()) {
            // The remaining grants do not delay the queue, because they belong to no current hold.
            self.is_due_again |= self.parts.void_portion(lock, RecordsOfVoided::Delete, portion);
        }
        let Some(state) = self.parts.state_mut(lock).filter(|state| state.unconfirmed().any_voided()) else {
            return;
        };
        for request in state.unconfirmed_mut().take_voided(portion) {
            self.records.forget_grant(&request);
        }
        self.is_unfinished |= state.unconfirmed().any_voided();
    }

    /// Handles a hold that has ended without a call, or whose lease has changed.
    pub(super) fn hold_changed(&mut self, lock: LockIdx, owner: &Owner) {
        if self.parts.notifies_owners {
            self.record_releases(lock, AffectedOwners::Only(owner));
        }
        if self.holders.get(owner.as_bytes()).is_none() {
            self.parts.void_ended(lock, AffectedOwners::Only(owner), usize::MAX, |_| true);
        }
    }

    /// Schedules searches for owners that got the lock by a foreign write. Such an owner may be queued behind
    /// a bundle member that waits for it.
    #[inline]
    pub(in crate::core::manager) fn search_for_holders(&mut self) {
        let Some(lock) = self.lock.filter(|_| !self.parts.waiters.bundles.is_empty()) else { return };
        let was_changed = self.parts.state_mut(lock).map(|state| state.take_foreign_write());
        if was_changed != Some(true) {
            return;
        }
        for hold in self.holders.iter().take(MAX_SEARCHED_WAITS) {
            self.parts.search_waits_of(&hold.owner);
        }
    }
}
