// SPDX-License-Identifier: MIT

//! A map that usually has one entry, which then needs no heap memory.

use std::collections::BTreeMap;

/// Values by key.
#[derive(Debug, Default)]
pub(super) enum Few<K, V> {
    #[default]
    None,
    One(K, V),
    Many(BTreeMap<K, V>),
}

impl<K: Ord + Clone, V> Few<K, V> {
    /// Returns the value of a key, inserting it if it is missing. `None` only after an internal defect.
    #[inline(always)]
    pub(super) fn get_or_insert_with(&mut self, key: &K, new: impl FnOnce() -> V) -> Option<&mut V> {
        if matches!(self, Few::None) {
            *self = Few::One(key.clone(), new());
        } else if self.get(key).is_none() {
            self.insert(key.clone(), new());
        }
        self.get_mut(key)
    }
}

impl<K: Ord, V> Few<K, V> {
    #[inline(always)]
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        match self {
            Few::None => None,
            Few::One(one, value) => (one == key).then_some(value),
            Few::Many(many) => many.get(key),
        }
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match self {
            Few::None => None,
            Few::One(one, value) => (one == key).then_some(value),
            Few::Many(many) => many.get_mut(key),
        }
    }

    /// Removes the only entry if its value matches.
    #[inline(always)]
    pub(super) fn take_only(&mut self, wanted: impl FnOnce(&V) -> bool) -> Option<V> {
        if !matches!(self, Few::One(_, value) if wanted(value)) {
            return None;
        }
        match std::mem::take(self) {
            Few::One(_, value) => Some(value),
            Few::None | Few::Many(_) => None,
        }
    }

    /// Sets the value of a key.
    pub(super) fn insert(&mut self, key: K, value: V) {
        match self {
            Few::None => *self = Few::One(key, value),
            Few::One(one, old) if *one == key => *old = value,
            Few::One(..) => {
                if let Few::One(one, other) = std::mem::replace(self, Few::None) {
                    *self = Few::Many(BTreeMap::from([(one, other), (key, value)]));
                }
            }
            Few::Many(many) => drop(many.insert(key, value)),
        }
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        match self {
            Few::None => None,
            Few::One(one, _) if one != key => None,
            Few::One(..) => match std::mem::replace(self, Few::None) {
                Few::One(_, value) => Some(value),
                Few::None | Few::Many(_) => None,
            },
            Few::Many(many) => {
                let value = many.remove(key);
                if many.is_empty() {
                    *self = Few::None;
                }
                value
            }
        }
    }

    /// Drops the value of a key in place.
    #[inline(always)]
    pub(super) fn discard(&mut self, key: &K) {
        let is_empty = match self {
            Few::None => true,
            Few::One(one, _) => one == key,
            Few::Many(many) => {
                many.remove(key);
                many.is_empty()
            }
        };
        if is_empty {
            *self = Few::None;
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Few::None => 0,
            Few::One(..) => 1,
            Few::Many(many) => many.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Few::None)
    }

    /// Iterates over all entries in key order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let (one, many) = match self {
            Few::None => (None, None),
            Few::One(key, value) => (Some((key, value)), None),
            Few::Many(many) => (None, Some(many.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Iterates over all keys in order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// Iterates over the entries from this key on, in key order.
    #[inline(always)]
    pub(super) fn range_from(&self, from: K) -> impl Iterator<Item = (&K, &V)> {
        let (one, many) = match self {
            Few::None => (None, None),
            Few::One(key, value) => (Some((key, value)).filter(|(key, _)| **key >= from), None),
            Few::Many(many) => (None, Some(many.range(from..))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Removes the entry with the first key.
    pub(super) fn pop_first(&mut self) -> Option<(K, V)> {
        match std::mem::replace(self, Few::None) {
            Few::None => None,
            Few::One(key, value) => Some((key, value)),
            Few::Many(mut many) => {
                let first = many.pop_first();
                if !many.is_empty() {
                    *self = Few::Many(many);
                }
                first
            }
        }
    }

    /// Keeps only matching entries.
    pub(super) fn retain(&mut self, mut wanted: impl FnMut(&K, &mut V) -> bool) {
        let stays = match self {
            Few::None => true,
            Few::One(key, value) => wanted(key, value),
            Few::Many(many) => {
                many.retain(wanted);
                !many.is_empty()
            }
        };
        if !stays {
            *self = Few::None;
        }
    }

    /// Iterates over all values.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        let (one, many) = match self {
            Few::None => (None, None),
            Few::One(_, value) => (Some(value), None),
            Few::Many(many) => (None, Some(many.values_mut())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::Few;

    #[test]
    fn few_behaves_like_a_map() {
        let mut few = Few::default();
        assert!(few.is_empty() && few.remove(&1).is_none());
        few.insert(1, 'a');
        few.insert(1, 'b');
        assert!(
            few.len() == 1
                && matches!(few, Few::One(1, 'b'))
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
        assert_eq!(Few::default().get_or_insert_with(&1, || 'i').copied(), Some('i'));
        few.discard(&5);
        few.discard(&4);
        assert_eq!((few.remove(&1), few.get(&2).copied(), few.get(&4)), (Some('e'), Some('e'), None));
        few.discard(&3);
        assert_eq!(few.len(), 1);
        few.discard(&2);
        assert!(few.is_empty());
    }
}
