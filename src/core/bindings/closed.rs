// SPDX-License-Identifier: MIT

//! Holds whose connections have closed.

use super::indexes::BoundHold;
use super::Bindings;
use crate::core::table::LockIdx;
use crate::core::{ConnectionId, Now, Owner};

impl Bindings {
    /// Handles one of the holds that depended on a closed connection. Returns its lock and whether the hold
    /// must end, or `None` if no hold is left.
    pub(in crate::core) fn close_next(
        &mut self,
        connection: ConnectionId,
        now: Now,
    ) -> Option<(LockIdx, bool)> {
        let hold = self.by_connection.pop(connection)?;
        self.close_hold(connection, hold, now)
    }

    /// Handles this hold if it depended on the closed connection.
    pub(in crate::core) fn close_one(&mut self, connection: ConnectionId, hold: &BoundHold, now: Now) {
        if self.by_connection.contains(connection, hold) {
            self.by_connection.remove(connection, hold);
            self.close_hold(connection, hold.clone(), now);
        }
    }

    fn close_hold(&mut self, connection: ConnectionId, hold: BoundHold, now: Now) -> Option<(LockIdx, bool)> {
        let bound = self.by_lock.get_mut(hold.0);
        let bound = bound.and_then(|bound| Some((bound.bindings.get_mut(&hold.1)?, &mut bound.closed)));
        let Some((binding, closed)) = bound else {
            return defect!("a connection is linked to a missing binding", None);
        };
        let (was_ephemeral, due) = (binding.is_ephemeral(), binding.due());
        let ends = binding.connection_closed(connection);
        if ends {
            closed.insert(hold.1.clone(), ());
        }
        self.ephemeral -= usize::from(was_ephemeral && !binding.is_ephemeral());
        self.renewals.plan(hold.0, &hold.1, due, binding.due());
        self.drop_if_idle(&hold, now.mono);
        Some((hold.0, ends))
    }

    /// The owners whose holds must end because a connection closed.
    pub(in crate::core) fn closed(&self, lock: LockIdx) -> impl Iterator<Item = &Owner> {
        let bound = self.by_lock.get(lock).filter(|_| !self.suspended);
        bound.into_iter().flat_map(|bound| bound.closed.keys())
    }

    /// Number of holds that must end because a connection closed.
    pub(in crate::core) fn closed_len(&self, lock: LockIdx) -> usize {
        let bound = self.by_lock.get(lock).filter(|_| !self.suspended);
        bound.map_or(0, |bound| bound.closed.len())
    }
}
