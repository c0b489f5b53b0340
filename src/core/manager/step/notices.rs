// SPDX-License-Identifier: MIT

//! Records of holds for notices to their owners.

use super::Step;
use crate::core::held::HoldRecord;
use crate::core::owner::AffectedOwners;
use crate::core::table::LockIdx;
use crate::core::{HoldEvent, Owner};

impl Step<'_> {
    /// Notifies owners that have lost their holds since the last step.
    pub(super) fn notice_losses(&mut self, lock: LockIdx) {
        let Some(state) = self.parts.state_mut(lock) else { return };
        let lost = state.held_mut().take_lost(self.holders, self.now.wall);
        self.parts.push_notices(lock, lost);
    }

    /// Notifies every holder of an event.
    pub(in crate::core::manager) fn notify_holders(&mut self, event: HoldEvent) {
        if !self.parts.notifies_owners || self.holders.is_free() {
            return;
        }
        let lock = self.known();
        self.parts.push_notices(lock, self.holders.iter().map(|hold| (hold.owner.clone(), event)));
        if event == HoldEvent::Contended && self.parts.bindings.knows(lock) {
            for hold in self.holders.iter() {
                let numbers: Vec<_> = self.parts.bindings.numbers(lock, &hold.owner).copied().collect();
                for number in numbers {
                    self.parts.sessions.contended(number.session, number.n, self.now.mono);
                }
            }
        }
    }

    /// Records the owner's hold, so that a loss can be noticed.
    pub(super) fn note_held(&mut self, owner: &Owner, hold: HoldRecord) {
        if self.parts.notifies_owners {
            let lock = self.known();
            self.parts.insert_held(lock, owner, hold);
        }
    }

    /// Removes the records of owners that have released their holds.
    pub(super) fn record_releases(&mut self, lock: LockIdx, affected: AffectedOwners<'_>) {
        if let Some(state) = self.parts.state_mut(lock) {
            state.held_mut().record_releases(affected, self.holders);
        }
    }
}
