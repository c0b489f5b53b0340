// SPDX-License-Identifier: MIT

//! Closed connections, and the holds that depend on them.

use super::Parts;
use crate::core::table::LockIdx;
use crate::core::{ConnectionId, Now, Owner};

impl Parts {
    /// Ends a portion of the holds of closed connections. The next tick continues.
    pub(in crate::core::manager) fn end_connections(&mut self, now: Now) {
        for _ in 0..4 * self.portion.0 {
            let Some(connection) = self.ending_connections.first().copied() else { return };
            if !self.end_next_of(connection, now) {
                self.ending_connections.remove(&connection);
            }
        }
    }

    /// Ends a portion of a closed connection's holds at once, so that the next call does not rely on them.
    /// Usually that portion is all. Returns whether anything may be left.
    pub(in crate::core::manager) fn end_portion_of(&mut self, connection: ConnectionId, now: Now) -> bool {
        (0..4 * self.portion.0).all(|_| self.end_next_of(connection, now))
    }

    /// Ends the owner's hold on this lock if it depends on a closed connection that is still being ended.
    pub(in crate::core::manager) fn end_closed_hold(&mut self, lock: LockIdx, owner: &Owner, now: Now) {
        for connection in &self.ending_connections {
            self.bindings.close_one(*connection, &(lock, owner.clone()), now);
        }
    }

    /// Ends the next hold of a closed connection. Returns false if none is left.
    fn end_next_of(&mut self, connection: ConnectionId, now: Now) -> bool {
        let Some((lock, ends)) = self.bindings.close_next(connection, now) else { return false };
        if ends && !self.demoted {
            self.table.set_ready(lock);
        }
        self.drop_if_idle(lock);
        true
    }
}
