// SPDX-License-Identifier: MIT

//! Holds that depend on connections, by connection and by time.

use std::collections::BTreeSet;

use foldhash::HashMap;

use crate::core::schedule::earlier;
use crate::core::small_map::SmallMap;
use crate::core::spare::{free_spare, is_too_large};
use crate::core::table::LockIdx;
use crate::core::{ConnectionId, MonoUs, Owner};

/// Values by lock. Finds a lock by its slot in the table, without hashing.
pub(super) struct LockMap<V> {
    /// One more than the index of a lock's entry, by the slot of the lock. 0 if it has no entry.
    places: Vec<u32>,
    entries: Vec<(LockIdx, V)>,
}

impl<V> Default for LockMap<V> {
    fn default() -> LockMap<V> {
        LockMap { places: Vec::new(), entries: Vec::new() }
    }
}

impl<V: Default> LockMap<V> {
    #[inline]
    fn index(&self, lock: LockIdx) -> Option<usize> {
        let index = (*self.places.get(lock.slot())? as usize).checked_sub(1)?;
        self.entries.get(index).filter(|(of, _)| *of == lock).map(|_| index)
    }

    #[inline]
    pub(super) fn contains(&self, lock: LockIdx) -> bool {
        self.index(lock).is_some()
    }

    #[inline]
    pub(super) fn get(&self, lock: LockIdx) -> Option<&V> {
        self.index(lock).map(|index| &self.entries[index].1)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, lock: LockIdx) -> Option<&mut V> {
        self.index(lock).map(|index| &mut self.entries[index].1)
    }

    /// Returns the value of a lock, inserting the default if it is missing.
    pub(super) fn get_or_default(&mut self, lock: LockIdx) -> &mut V {
        let index = self.index(lock).unwrap_or_else(|| self.insert(lock));
        &mut self.entries[index].1
    }

    fn insert(&mut self, lock: LockIdx) -> usize {
        if self.places.len() <= lock.slot() {
            self.places.resize(lock.slot() + 1, 0);
        }
        let index = self.entries.len();
        self.entries.push((lock, V::default()));
        self.places[lock.slot()] = u32::try_from(index + 1).unwrap_or(0);
        index
    }

    pub(super) fn remove(&mut self, lock: LockIdx) {
        let Some(index) = self.index(lock) else { return };
        let last = self.entries.len() - 1;
        if index < last {
            self.entries.swap(index, last);
            self.places[self.entries[index].0.slot()] = self.places[lock.slot()];
        }
        // Drops the value in place.
        self.entries.truncate(last);
        self.places[lock.slot()] = 0;
        if is_too_large(self.entries.capacity(), self.entries.len()) {
            self.entries.shrink_to(2 * self.entries.len());
        }
        if self.entries.is_empty() && is_too_large(self.places.len(), 0) {
            self.places = Vec::new();
        }
    }

    /// Iterates over all entries, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (LockIdx, &V)> {
        self.entries.iter().map(|(lock, value)| (*lock, value))
    }

    /// Iterates over all values, in no particular order.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().map(|(_, value)| value)
    }
}

/// A hold that depends on a connection.
pub(in crate::core) type BoundHold = (LockIdx, Owner);

/// Maximum number of entries of a schedule that are not in its tree yet.
const MAX_NEWEST: usize = 16;

/// Holds ordered by time. Each binding stores its time too.
///
/// The newest entries are in a short list, because most holds end soon after their grant.
#[derive(Default)]
pub(super) struct HoldSchedule {
    /// In order. Nearly always, a new entry is the last one.
    newest: Vec<(MonoUs, BoundHold)>,
    others: BTreeSet<(MonoUs, BoundHold)>,
}

impl HoldSchedule {
    /// Moves a hold from one time to another.
    #[inline]
    pub(super) fn plan(
        &mut self,
        lock: LockIdx,
        owner: &Owner,
        before: Option<MonoUs>,
        after: Option<MonoUs>,
    ) {
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.remove(lock, owner, before);
        }
        if let Some(after) = after {
            self.insert((after, (lock, owner.clone())));
        }
    }

    fn insert(&mut self, entry: (MonoUs, BoundHold)) {
        if self.newest.len() == MAX_NEWEST {
            self.others.extend(self.newest.drain(..));
        }
        let before = self.newest.iter().rposition(|other| *other < entry);
        self.newest.insert(before.map_or(0, |index| index + 1), entry);
    }

    fn remove(&mut self, lock: LockIdx, owner: &Owner, at: MonoUs) {
        let is_same =
            |entry: &(MonoUs, BoundHold)| entry.0 == at && entry.1 .0 == lock && entry.1 .1 == *owner;
        match self.newest.iter().rposition(is_same) {
            Some(index) => drop(self.newest.remove(index)),
            None => drop(self.others.take(&(at, (lock, owner.clone())))),
        }
    }

    /// The earliest time.
    pub(super) fn first(&self) -> Option<MonoUs> {
        let time = |(at, _): &(MonoUs, BoundHold)| *at;
        earlier(self.newest.first().map(time), self.others.first().map(time))
    }

    /// Removes and returns the hold with the earliest time, if that time is at most `by`.
    pub(super) fn pop_due(&mut self, by: MonoUs) -> Option<BoundHold> {
        let (at, hold) = self.iter().next().filter(|(at, _)| *at <= by)?.clone();
        self.remove(hold.0, &hold.1, at);
        Some(hold)
    }

    /// Iterates over all entries, ordered by time.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(MonoUs, BoundHold)> {
        let (mut newest, mut others) = (self.newest.iter().peekable(), self.others.iter().peekable());
        std::iter::from_fn(move || match (newest.peek(), others.peek()) {
            (Some(one), Some(other)) if one > other => others.next(),
            (Some(_), _) => newest.next(),
            (None, _) => others.next(),
        })
    }

    pub(super) fn clear(&mut self) {
        *self = HoldSchedule::default();
    }

    pub(super) fn len(&self) -> usize {
        self.newest.len() + self.others.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.newest.is_empty() && self.others.is_empty()
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

#[cfg(test)]
mod tests {
    use super::{HoldSchedule, LockIdx, LockMap, Owner};

    #[test]
    fn a_schedule_is_ordered_by_time() {
        let mut schedule = HoldSchedule::default();
        let (lock, owner) = (LockIdx::nth(1), Owner::new(b"a"));
        let times = (0..100).map(|number| number * 37 % 100);
        times.clone().for_each(|at| schedule.plan(lock, &owner, None, Some(at)));
        times.clone().filter(|at| at % 3 == 0).for_each(|at| schedule.plan(lock, &owner, Some(at), None));
        let left: Vec<u64> = (0..100).filter(|at| at % 3 > 0).collect();
        assert!(schedule.iter().map(|(at, _)| *at).eq(left.iter().copied()));
        assert_eq!((schedule.len(), schedule.first()), (left.len(), Some(1)));
        for _ in &left[..50] {
            assert_eq!(schedule.pop_due(left[49]).map(|hold| hold.0), Some(lock));
        }
        assert_eq!((schedule.pop_due(left[49]), schedule.first()), (None, Some(left[50])));
        left[50..].iter().for_each(|at| schedule.plan(lock, &owner, Some(*at), None));
        assert!(schedule.is_empty());
    }

    #[test]
    fn removed_locks_leave_the_others_in_place() {
        let mut map = LockMap::default();
        let locks = (0..1000).map(LockIdx::nth);
        for lock in locks.clone() {
            *map.get_or_default(lock) = lock.slot();
        }
        for lock in locks.clone().step_by(3) {
            map.remove(lock);
            map.remove(lock);
        }
        for lock in locks.clone() {
            let left = Some(lock.slot()).filter(|slot| slot % 3 > 0);
            assert_eq!((map.get(lock).copied(), map.contains(lock)), (left, left.is_some()));
            assert_eq!(map.get_mut(lock).copied(), left);
        }
        assert_eq!(map.iter().count(), 666);
        locks.for_each(|lock| map.remove(lock));
        assert!(map.entries.is_empty() && map.places.is_empty() && map.entries.capacity() <= 128);
    }
}
