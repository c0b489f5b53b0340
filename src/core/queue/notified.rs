// SPDX-License-Identifier: MIT

//! Waits with `NOTIFY`: the connection of each, and whether that connection confirms its grants.
//!
//! These waits block no client. At the front of the queue, the lock is granted for a grace period, and a
//! message notifies the client. The grant is in flight until the same call is repeated, which confirms it.
//! Without a confirmation in time, the grant is revoked as undelivered.

use std::collections::BTreeSet;

use foldhash::HashMap;

use crate::core::spare::free_spare;
use crate::core::{ConnectionId, WaiterId};

/// A connection that misses this number of graces in a row loses its other waits. Otherwise a hung process
/// would delay the waiters behind it by one grace per lock.
const MAX_MISSED_GRACES: u32 = 3;

/// The waits of one connection.
#[derive(Default)]
struct ConnectionWaits {
    queued: BTreeSet<WaiterId>,
    /// Grants that are not confirmed. Kept apart from the queued waits: many graces may expire in one step,
    /// and each may drop the queued waits without visiting these grants.
    granted: BTreeSet<WaiterId>,
    /// Number of grants that were not confirmed in time since the last confirmed one.
    missed: u32,
}

impl ConnectionWaits {
    fn len(&self) -> usize {
        self.queued.len() + self.granted.len()
    }
}

/// All waits with `NOTIFY`, by connection.
#[derive(Default)]
pub(in crate::core) struct Notified {
    by_connection: HashMap<ConnectionId, ConnectionWaits>,
    waits: usize,
}

impl Notified {
    /// Adds a queued wait.
    pub(in crate::core) fn insert(&mut self, connection: ConnectionId, id: WaiterId) {
        let new = self.by_connection.entry(connection).or_default().queued.insert(id);
        self.waits += usize::from(new);
    }

    /// Records that a wait was granted and must be confirmed.
    pub(in crate::core) fn granted(&mut self, connection: ConnectionId, id: WaiterId) {
        let Some(waits) = self.by_connection.get_mut(&connection) else { return };
        if waits.queued.remove(&id) {
            waits.granted.insert(id);
        }
    }

    /// Removes a wait that has ended, or whose grant was confirmed.
    pub(in crate::core) fn remove(&mut self, connection: ConnectionId, id: WaiterId) {
        let Some(waits) = self.by_connection.get_mut(&connection) else { return };
        let removed = waits.queued.remove(&id) || waits.granted.remove(&id);
        self.waits -= usize::from(removed);
        if waits.len() == 0 {
            self.by_connection.remove(&connection);
            free_spare(&mut self.by_connection);
        }
    }

    /// Number of waits of this connection.
    pub(in crate::core) fn of(&self, connection: ConnectionId) -> usize {
        self.by_connection.get(&connection).map_or(0, ConnectionWaits::len)
    }

    /// The next wait of this connection to end: first the queued waits in order of arrival, then the granted
    /// ones.
    pub(in crate::core) fn next_of(&self, connection: ConnectionId) -> Option<WaiterId> {
        let waits = self.by_connection.get(&connection)?;
        waits.queued.first().or(waits.granted.first()).copied()
    }

    /// The queued wait of this connection that arrived first.
    pub(in crate::core) fn next_queued_of(&self, connection: ConnectionId) -> Option<WaiterId> {
        self.by_connection.get(&connection)?.queued.first().copied()
    }

    /// Records that the connection has confirmed a grant.
    pub(in crate::core) fn note_confirmed(&mut self, connection: ConnectionId) {
        if let Some(waits) = self.by_connection.get_mut(&connection) {
            waits.missed = 0;
        }
    }

    /// Records that the connection did not confirm a grant in time. Returns whether it loses its other waits.
    pub(in crate::core) fn note_missed(&mut self, connection: ConnectionId) -> bool {
        let Some(waits) = self.by_connection.get_mut(&connection) else { return false };
        waits.missed += 1;
        waits.missed >= MAX_MISSED_GRACES
    }

    pub(in crate::core) fn is_empty(&self) -> bool {
        self.by_connection.is_empty()
    }

    /// Number of waits, and number of their connections.
    pub(in crate::core) fn lens(&self) -> (usize, usize) {
        (self.waits, self.by_connection.len())
    }

    /// Iterates over all waits. The last value is true for a queued wait.
    #[cfg(test)]
    pub(in crate::core) fn iter(&self) -> impl Iterator<Item = (ConnectionId, WaiterId, bool)> + '_ {
        self.by_connection.iter().flat_map(|(connection, ConnectionWaits { queued, granted, .. })| {
            let queued = queued.iter().map(|id| (*connection, *id, true));
            queued.chain(granted.iter().map(|id| (*connection, *id, false)))
        })
    }
}
