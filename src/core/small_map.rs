// SPDX-License-Identifier: MIT

//! A map that usually has one entry and then needs no heap memory.

use std::collections::BTreeMap;

/// Values by key.
#[derive(Debug, Default)]
pub(super) enum SmallMap<K, V> {
    #[default]
    None,
    One(K, V),
    Many(BTreeMap<K, V>),
}

impl<K: Ord + Clone, V> SmallMap<K, V> {
    /// Returns the value of a key, inserting it if it is missing. Returns `None` only after an internal
    /// defect.
    #[inline(always)]
    pub(super) fn get_or_insert_with(&mut self, key: &K, new: impl FnOnce() -> V) -> Option<&mut V> {
        if matches!(self, SmallMap::None) {
            *self = SmallMap::One(key.clone(), new());
        } else if self.get(key).is_none() {
            self.insert(key.clone(), new());
        }
        self.get_mut(key)
    }
}

impl<K: Ord, V> SmallMap<K, V> {
    #[inline(always)]
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        match self {
            SmallMap::None => None,
            SmallMap::One(one, value) => (one == key).then_some(value),
            SmallMap::Many(many) => many.get(key),
        }
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match self {
            SmallMap::None => None,
            SmallMap::One(one, value) => (one == key).then_some(value),
            SmallMap::Many(many) => many.get_mut(key),
        }
    }

    /// Removes the only entry if its value matches.
    pub(super) fn take_only(&mut self, wanted: impl FnOnce(&V) -> bool) -> Option<V> {
        if !matches!(self, SmallMap::One(_, value) if wanted(value)) {
            return None;
        }
        match std::mem::take(self) {
            SmallMap::One(_, value) => Some(value),
            SmallMap::None | SmallMap::Many(_) => None,
        }
    }

    /// Sets the value of a key.
    pub(super) fn insert(&mut self, key: K, value: V) {
        match self {
            SmallMap::None => *self = SmallMap::One(key, value),
            SmallMap::One(one, old) if *one == key => *old = value,
            SmallMap::One(..) => {
                if let SmallMap::One(one, other) = std::mem::replace(self, SmallMap::None) {
                    *self = SmallMap::Many(BTreeMap::from([(one, other), (key, value)]));
                }
            }
            SmallMap::Many(many) => drop(many.insert(key, value)),
        }
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        match self {
            SmallMap::None => None,
            SmallMap::One(one, _) if one != key => None,
            SmallMap::One(..) => match std::mem::replace(self, SmallMap::None) {
                SmallMap::One(_, value) => Some(value),
                SmallMap::None | SmallMap::Many(_) => None,
            },
            SmallMap::Many(many) => {
                let value = many.remove(key);
                if many.is_empty() {
                    *self = SmallMap::None;
                }
                value
            }
        }
    }

    /// Drops the value of a key in place.
    #[inline(always)]
    pub(super) fn discard(&mut self, key: &K) {
        let is_empty = match self {
            SmallMap::None => true,
            SmallMap::One(one, _) => one == key,
            SmallMap::Many(many) => {
                many.remove(key);
                many.is_empty()
            }
        };
        if is_empty {
            *self = SmallMap::None;
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            SmallMap::None => 0,
            SmallMap::One(..) => 1,
            SmallMap::Many(many) => many.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, SmallMap::None)
    }

    /// Iterates over all entries in key order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let (one, many) = match self {
            SmallMap::None => (None, None),
            SmallMap::One(key, value) => (Some((key, value)), None),
            SmallMap::Many(many) => (None, Some(many.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Iterates over all keys in order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// Iterates over the entries from this key on, in key order.
    pub(super) fn range_from(&self, from: K) -> impl Iterator<Item = (&K, &V)> {
        let (one, many) = match self {
            SmallMap::None => (None, None),
            SmallMap::One(key, value) => (Some((key, value)).filter(|(key, _)| **key >= from), None),
            SmallMap::Many(many) => (None, Some(many.range(from..))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Removes the entry with the first key.
    pub(super) fn pop_first(&mut self) -> Option<(K, V)> {
        match std::mem::replace(self, SmallMap::None) {
            SmallMap::None => None,
            SmallMap::One(key, value) => Some((key, value)),
            SmallMap::Many(mut many) => {
                let first = many.pop_first();
                if !many.is_empty() {
                    *self = SmallMap::Many(many);
                }
                first
            }
        }
    }

    /// Keeps only matching entries.
    pub(super) fn retain(&mut self, mut wanted: impl FnMut(&K, &mut V) -> bool) {
        let stays = match self {
            SmallMap::None => true,
            SmallMap::One(key, value) => wanted(key, value),
            SmallMap::Many(many) => {
                many.retain(wanted);
                !many.is_empty()
            }
        };
        if !stays {
            *self = SmallMap::None;
        }
    }

    /// Iterates over all values.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        let (one, many) = match self {
            SmallMap::None => (None, None),
            SmallMap::One(_, value) => (Some(value), None),
            SmallMap::Many(many) => (None, Some(many.values_mut())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::SmallMap;

    #[test]
    fn few_behaves_like_a_map() {
        let mut few = SmallMap::default();
        assert!(few.is_empty() && few.remove(&1).is_none());
        few.insert(1, 'a');
        few.insert(1, 'b');
        assert!(
            few.len() == 1
                && matches!(few, SmallMap::One(1, 'b'))
                && few.get(&2).is_none()
                && few.remove(&2).is_none()
        );
        few.insert(2, 'c');
        *few.get_mut(&1).unwrap() = 'd';
        assert_eq!(few.iter().map(|(key, value)| (*key, *value)).collect::<Vec<_>>(), [(1, 'd'), (2, 'c')]);
        few.values_mut().for_each(|value| *value = 'e');
        few.retain(|key, value| *key < 3 && *value == 'e');
        few.insert(3, 'f');
        few.retain(|key, _| *key != 3);
        few.insert(4, 'g');
        assert_eq!((few.get_or_insert_with(&4, || 'h').copied(), few.len()), (Some('g'), 3));
        assert_eq!(few.get_or_insert_with(&6, || 'h').copied(), Some('h'));
        few.discard(&6);
        assert_eq!(SmallMap::default().get_or_insert_with(&1, || 'i').copied(), Some('i'));
        few.discard(&5);
        few.discard(&4);
        assert_eq!((few.remove(&1), few.get(&2).copied(), few.get(&4)), (Some('e'), Some('e'), None));
        few.discard(&3);
        assert_eq!(few.len(), 1);
        few.discard(&2);
        assert!(few.is_empty());
    }
}
