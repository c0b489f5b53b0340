// SPDX-License-Identifier: MIT

//! Holds that depend on connections, by connection and by time.

use std::collections::BTreeSet;

use foldhash::HashMap;

use crate::core::small_map::SmallMap;
use crate::core::spare::free_spare;
use crate::core::table::LockIdx;
use crate::core::{ConnectionId, MonoUs, Owner};

/// A hold that depends on a connection.
pub(in crate::core) type BoundHold = (LockIdx, Owner);

/// Holds ordered by time. Each binding stores its time too.
#[derive(Default)]
pub(super) struct HoldSchedule(BTreeSet<(MonoUs, BoundHold)>);

impl HoldSchedule {
    /// Moves a hold from one time to another.
    pub(super) fn plan(&mut self, hold: &BoundHold, before: Option<MonoUs>, after: Option<MonoUs>) {
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.0.remove(&(before, hold.clone()));
        }
        if let Some(after) = after {
            self.0.insert((after, hold.clone()));
        }
    }

    /// The earliest time.
    pub(super) fn first(&self) -> Option<MonoUs> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Removes and returns the hold with the earliest time, if that time is at most `by`.
    pub(super) fn pop_due(&mut self, by: MonoUs) -> Option<BoundHold> {
        self.0.first().filter(|(at, _)| *at <= by)?;
        self.0.pop_first().map(|(_, hold)| hold)
    }

    /// Iterates over all entries, ordered by time.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(MonoUs, BoundHold)> {
        self.0.iter()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The holds that depend on each connection.
#[derive(Default)]
pub(super) struct HoldsByConnection(HashMap<ConnectionId, SmallMap<BoundHold, ()>>);

impl HoldsByConnection {
    pub(super) fn insert(&mut self, connection: ConnectionId, hold: BoundHold) {
        self.0.entry(connection).or_default().insert(hold, ());
    }

    #[inline(always)]
    pub(super) fn remove(&mut self, connection: ConnectionId, hold: &BoundHold) {
        if let Some(holds) = self.0.get_mut(&connection) {
            holds.discard(hold);
            if holds.is_empty() {
                self.0.remove(&connection);
                free_spare(&mut self.0);
            }
        }
    }

    pub(super) fn contains(&self, connection: ConnectionId, hold: &BoundHold) -> bool {
        self.0.get(&connection).is_some_and(|holds| holds.get(hold).is_some())
    }

    /// Removes and returns one hold of a connection.
    pub(super) fn pop(&mut self, connection: ConnectionId) -> Option<BoundHold> {
        let holds = self.0.get_mut(&connection)?;
        let hold = holds.pop_first().map(|(hold, ())| hold);
        if holds.is_empty() {
            self.0.remove(&connection);
            free_spare(&mut self.0);
        }
        hold
    }

    /// Number of connections with holds.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over all connections and their holds.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &BoundHold)> {
        self.0.iter().flat_map(|(connection, holds)| holds.keys().map(|hold| (*connection, hold)))
    }
}
