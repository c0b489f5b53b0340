// SPDX-License-Identifier: MIT

//! Waits whose clients are told by a message: which connection they belong to, and whether it takes what it is granted.
//!
//! No client is blocked by such a wait. When it is its turn, the lock is granted for a grace, and the client is told so by a
//! message. The grant is in flight until the same call comes again, which confirms it. If that does not come in time, the
//! grant is revoked, as one that did not reach its client.

use std::collections::BTreeSet;

use foldhash::HashMap;

use super::spare::free_spare;
use super::{ConnectionId, WaiterId};

/// A connection that lets so many graces in a row run out loses its other waits: a process that hangs must not cost those
/// behind it a grace for each lock that it waits for.
const MOST_MISSED: u32 = 3;

/// What belongs to one connection.
#[derive(Default)]
struct OfConnection {
    queued: BTreeSet<WaiterId>,
    /// Those that are not confirmed. Apart from the others: many graces may run out in one step, and each that makes the
    /// connection lose what is queued must not walk through these.
    granted: BTreeSet<WaiterId>,
    /// How many grants it has not confirmed in time, since the last one that it confirmed.
    missed: u32,
}

impl OfConnection {
    fn len(&self) -> usize {
        self.queued.len() + self.granted.len()
    }
}

/// All such waits, by their connections.
#[derive(Default)]
pub(super) struct Notified {
    of_connections: HashMap<ConnectionId, OfConnection>,
    waits: usize,
}

impl Notified {
    /// A wait is queued.
    pub(super) fn insert(&mut self, connection: ConnectionId, id: WaiterId) {
        let new = self.of_connections.entry(connection).or_default().queued.insert(id);
        self.waits += usize::from(new);
    }

    /// A wait was granted, and is to be confirmed.
    pub(super) fn granted(&mut self, connection: ConnectionId, id: WaiterId) {
        let Some(of_connection) = self.of_connections.get_mut(&connection) else { return };
        if of_connection.queued.remove(&id) {
            of_connection.granted.insert(id);
        }
    }

    /// The wait is over, or its grant was confirmed.
    pub(super) fn remove(&mut self, connection: ConnectionId, id: WaiterId) {
        let Some(of_connection) = self.of_connections.get_mut(&connection) else { return };
        let removed = of_connection.queued.remove(&id) || of_connection.granted.remove(&id);
        self.waits -= usize::from(removed);
        if of_connection.len() == 0 {
            self.of_connections.remove(&connection);
            free_spare(&mut self.of_connections);
        }
    }

    /// How many waits belong to this connection.
    pub(super) fn of(&self, connection: ConnectionId) -> usize {
        self.of_connections.get(&connection).map_or(0, OfConnection::len)
    }

    /// The next wait of this connection: of those that are queued, the one that came first; then of those that were granted.
    pub(super) fn next_of(&self, connection: ConnectionId) -> Option<WaiterId> {
        let of_connection = self.of_connections.get(&connection)?;
        of_connection.queued.first().or(of_connection.granted.first()).copied()
    }

    /// The one that came first of those that are queued.
    pub(super) fn next_queued_of(&self, connection: ConnectionId) -> Option<WaiterId> {
        self.of_connections.get(&connection)?.queued.first().copied()
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

    /// All of them, and whether each is queued.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnectionId, WaiterId, bool)> + '_ {
        self.of_connections.iter().flat_map(|(connection, OfConnection { queued, granted, .. })| {
            let queued = queued.iter().map(|id| (*connection, *id, true));
            queued.chain(granted.iter().map(|id| (*connection, *id, false)))
        })
    }
}
