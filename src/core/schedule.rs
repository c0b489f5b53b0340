// SPDX-License-Identifier: MIT

//! A schedule stores at most one time per key. Its entries can be moved and removed by key.

use std::collections::BTreeSet;
use std::hash::Hash;

use foldhash::HashMap;

use super::spare::free_spare;

/// Times by key. A key has at most one time.
pub(crate) struct Schedule<T, K> {
    /// Time of each key.
    at: HashMap<K, T>,
    /// All entries of `at`, ordered by time.
    due: BTreeSet<(T, K)>,
}

impl<T, K> Default for Schedule<T, K> {
    fn default() -> Schedule<T, K> {
        Schedule { at: HashMap::default(), due: BTreeSet::new() }
    }
}

impl<T: Copy + Ord, K: Clone + Ord + Hash> Schedule<T, K> {
    /// Sets the time of a key, replacing its previous time. `None` removes it.
    pub(crate) fn set(&mut self, key: &K, at: Option<T>) {
        let before = match at {
            Some(at) => self.at.insert(key.clone(), at),
            None if self.at.is_empty() => return,
            None => {
                let before = self.at.remove(key);
                free_spare(&mut self.at);
                before
            }
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.due.remove(&(before, key.clone()));
        }
        if let Some(at) = at {
            self.due.insert((at, key.clone()));
        }
    }

    /// The time of a key.
    pub(super) fn get(&self, key: &K) -> Option<T> {
        self.at.get(key).copied()
    }

    /// The earliest time.
    pub(crate) fn first(&self) -> Option<T> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Removes and returns the key with the earliest time, if that time is at most `by`.
    pub(crate) fn pop_due(&mut self, by: T) -> Option<K> {
        if self.first()? > by {
            return None;
        }
        let (_, key) = self.due.pop_first()?;
        self.at.remove(&key);
        free_spare(&mut self.at);
        Some(key)
    }

    /// Iterates over all entries, ordered by time.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (T, &K)> {
        self.due.iter().map(|(at, key)| (*at, key))
    }

    pub(super) fn len(&self) -> usize {
        self.due.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }
}

/// A schedule whose keys store their own times. This saves a map look-up.
pub(crate) struct Calendar<T, K>(BTreeSet<(T, K)>);

impl<T, K> Default for Calendar<T, K> {
    fn default() -> Calendar<T, K> {
        Calendar(BTreeSet::new())
    }
}

impl<T: Copy + Ord, K: Copy + Ord> Calendar<T, K> {
    /// Sets the time of a key whose previous time is `planned`, and updates `planned`. `None` removes it.
    pub(crate) fn set(&mut self, key: K, planned: &mut Option<T>, at: Option<T>) {
        if *planned == at {
            return;
        }
        if let Some(before) = std::mem::replace(planned, at) {
            self.0.remove(&(before, key));
        }
        if let Some(at) = at {
            self.0.insert((at, key));
        }
    }

    /// The earliest time.
    pub(crate) fn first(&self) -> Option<T> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Removes and returns the key with the earliest time, if that time is at most `by`. The caller must
    /// reset the time stored in the key.
    pub(crate) fn pop_due(&mut self, by: T) -> Option<K> {
        if self.first()? > by {
            return None;
        }
        self.0.pop_first().map(|(_, key)| key)
    }

    /// Iterates over all entries, ordered by time.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (T, K)> + '_ {
        self.0.iter().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The earlier of two optional times.
#[inline]
pub(crate) fn earlier<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::{Calendar, Schedule};

    #[test]
    fn a_calendar_key_has_one_time() {
        let (mut calendar, mut a, mut b) = (Calendar::default(), None, None);
        calendar.set('a', &mut a, Some(5));
        calendar.set('b', &mut b, Some(3));
        calendar.set('a', &mut a, Some(2));
        calendar.set('b', &mut b, Some(3));
        assert_eq!((a, b, calendar.first(), calendar.len()), (Some(2), Some(3), Some(2), 2));
        assert_eq!(calendar.iter().collect::<Vec<_>>(), [(2, 'a'), (3, 'b')]);
        assert_eq!((calendar.pop_due(1), calendar.pop_due(2), calendar.pop_due(2)), (None, Some('a'), None));
        calendar.set('b', &mut b, None);
        assert!(calendar.is_empty() && b.is_none() && calendar.first().is_none());
    }

    #[test]
    fn a_key_is_taken_when_its_time_comes() {
        let mut schedule = Schedule::default();
        schedule.set(&'a', Some(5));
        schedule.set(&'b', Some(3));
        schedule.set(&'a', Some(2));
        schedule.set(&'c', Some(2));
        schedule.set(&'c', None);
        schedule.set(&'d', None);
        assert_eq!((schedule.len(), schedule.first(), schedule.get(&'a')), (2, Some(2), Some(2)));
        assert_eq!((schedule.pop_due(1), schedule.pop_due(2), schedule.pop_due(2)), (None, Some('a'), None));
        schedule.set(&'b', Some(3));
        assert_eq!(schedule.iter().collect::<Vec<_>>(), [(3, &'b')]);
        schedule.set(&'b', None);
        assert!(schedule.is_empty() && schedule.get(&'b').is_none());
    }
}
