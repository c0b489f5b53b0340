// SPDX-License-Identifier: MIT

//! Records of holds, and notices to their owners.

use super::Parts;
use crate::core::held::{Held, HoldRecord};
use crate::core::table::LockIdx;
use crate::core::{HoldEvent, Notice, Owner};

impl Parts {
    /// Queues notices to owners about their holds.
    pub(in crate::core::manager) fn push_notices(
        &mut self,
        lock: LockIdx,
        event: impl IntoIterator<Item = (Owner, HoldEvent)>,
    ) {
        let Some(name) = self.name(lock) else { return };
        for (owner, event) in event {
            self.log_notice(lock, &owner, event);
            self.expired_leases += usize::from(event == HoldEvent::Expired);
            self.notices.push_back(Notice { lock: name.clone(), owner, event });
        }
    }

    /// Records that the owner holds the lock, so that it can be notified of a loss.
    pub(in crate::core::manager) fn insert_held(&mut self, lock: LockIdx, owner: &Owner, hold: HoldRecord) {
        if let Some(state) = self.table.get_mut(lock) {
            state.held_mut().insert(owner, hold);
        }
    }

    /// Removes the record of an owner's hold. Returns whether it existed.
    pub(in crate::core::manager) fn take_held(&mut self, lock: LockIdx, owner: &Owner) -> bool {
        self.table.get_mut(lock).is_some_and(|state| state.held_mut().remove(owner))
    }

    /// Forgets the records of a lock's holds.
    pub(in crate::core::manager) fn forget_held(&mut self, lock: LockIdx) {
        if let Some(state) = self.table.get_mut(lock) {
            *state.held_mut() = Held::default();
        }
    }
}
