// SPDX-License-Identifier: MIT

//! Waits whose clients are told by a message: which connection they belong to, and whether it takes what it is granted.
//!
//! No client is blocked by such a wait. When it is its turn, the lock is granted for a grace, and the client is told so by a
//! message. The grant is in flight until the same call comes again, which confirms it. If that does not come in time, the
//! grant is revoked, as one that did not reach its client.

use std::collections::BTreeSet;

use foldhash::HashMap;

use super::{ConnectionId, WaiterId};

/// A connection that lets so many graces in a row run out loses its other waits: a process that hangs must not cost those
/// behind it a grace for each lock that it waits for.
const MOST_MISSED: u32 = 3;

/// What belongs to one connection.
#[derive(Default)]
struct OfConnection {
    /// Those that are queued, and those that were granted and are not confirmed.
    waits: BTreeSet<WaiterId>,
    /// How many grants it has not confirmed in time, since the last one that it confirmed.
    missed: u32,
}

/// All such waits, by their connections.
#[derive(Default)]
pub(super) struct Notified {
    of_connections: HashMap<ConnectionId, OfConnection>,
    waits: usize,
}

impl Notified {
    pub(super) fn insert(&mut self, connection: ConnectionId, id: WaiterId) {
        let new = self.of_connections.entry(connection).or_default().waits.insert(id);
        self.waits += usize::from(new);
    }

    /// The wait is over, or its grant was confirmed.
    pub(super) fn remove(&mut self, connection: ConnectionId, id: WaiterId) {
        let Some(of_connection) = self.of_connections.get_mut(&connection) else { return };
        self.waits -= usize::from(of_connection.waits.remove(&id));
        if of_connection.waits.is_empty() {
            self.of_connections.remove(&connection);
        }
    }

    /// How many waits belong to this connection.
    pub(super) fn of(&self, connection: ConnectionId) -> usize {
        self.of_connections.get(&connection).map_or(0, |of_connection| of_connection.waits.len())
    }

    /// The waits of this connection, in the order in which they came.
    pub(super) fn all_of(&self, connection: ConnectionId) -> Vec<WaiterId> {
        let of_connection = self.of_connections.get(&connection);
        of_connection.into_iter().flat_map(|of_connection| of_connection.waits.iter().copied()).collect()
    }

    /// The connection has confirmed a grant.
    pub(super) fn has_confirmed(&mut self, connection: ConnectionId) {
        if let Some(of_connection) = self.of_connections.get_mut(&connection) {
            of_connection.missed = 0;
        }
    }

    /// The connection has not confirmed a grant in time. Returns whether it loses its other waits.
    pub(super) fn has_missed(&mut self, connection: ConnectionId) -> bool {
        let Some(of_connection) = self.of_connections.get_mut(&connection) else { return false };
        of_connection.missed += 1;
        of_connection.missed >= MOST_MISSED
    }

    pub(super) fn is_empty(&self) -> bool {
        self.of_connections.is_empty()
    }

    /// How many waits there are, and of how many connections.
    pub(super) fn lens(&self) -> (usize, usize) {
        (self.waits, self.of_connections.len())
    }

    /// All of them.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnectionId, WaiterId)> + '_ {
        let all = self.of_connections.iter();
        all.flat_map(|(connection, of_connection)| of_connection.waits.iter().map(|id| (*connection, *id)))
    }
}
