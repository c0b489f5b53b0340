// SPDX-License-Identifier: MIT

//! A hint about which keys are locks that were granted here.
//!
//! That a lock is free must be announced to external clients also when its lease ran out or a foreign write deleted
//! it, and nobody here waits for it. The server then only says that a key of some name is gone, not what it was. This
//! table knows, nearly always, and in the same memory for any number of locks. It decides nothing: an entry too
//! many is a message that nobody needed, one too few is a message that is missing, as it is after a restart.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::LockRef;

/// How many entries there are: 256 KiB, from the first grant on. Of 10,000 locks that are held at once, about
/// 4 in 100 share a place with another.
const PLACES: usize = 1 << 17;

/// A table of tags of those keys, each at the place that its hash says; the later of two at one place wins.
#[derive(Default)]
pub(super) struct GrantedKeys {
    /// Empty, or of [`PLACES`] entries; 0 is no tag.
    tags: Vec<u16>,
    /// How many entries are not 0.
    count: usize,
}

impl GrantedKeys {
    /// A lock was granted.
    #[inline(always)]
    pub(super) fn insert(&mut self, lock: LockRef<'_>) {
        if self.tags.is_empty() {
            self.tags = vec![0; PLACES];
        }
        let (place, tag) = place_and_tag(lock);
        if std::mem::replace(&mut self.tags[place], tag) == 0 {
            self.count += 1;
        }
    }

    /// The key is gone. True if it was a lock.
    pub(super) fn remove(&mut self, lock: LockRef<'_>) -> bool {
        if self.count == 0 {
            return false;
        }
        let (place, tag) = place_and_tag(lock);
        let found = self.tags[place] == tag;
        if found {
            self.tags[place] = 0;
            self.count -= 1;
        }
        found
    }

    /// True if the key is likely to be a lock that was granted here.
    pub(super) fn contains(&self, lock: LockRef<'_>) -> bool {
        let (place, tag) = place_and_tag(lock);
        self.tags.get(place) == Some(&tag)
    }

    /// Of how many keys it is remembered.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[inline(always)]
fn place_and_tag(lock: LockRef<'_>) -> (usize, u16) {
    let hash = FixedState::default().hash_one((lock.db, lock.key));
    let place = usize::try_from(hash >> 16).unwrap_or(0) % PLACES;
    let [low, high, ..] = hash.to_le_bytes();
    (place, u16::from_le_bytes([low, high]).max(1))
}

#[cfg(test)]
mod tests {
    use super::{GrantedKeys, LockRef, PLACES};

    fn lock(db: i32, key: &[u8]) -> LockRef<'_> {
        LockRef { db, key }
    }

    #[test]
    fn a_key_is_known_until_it_is_removed() {
        let mut held = GrantedKeys::default();
        assert!(!held.remove(lock(0, b"k")));
        held.insert(lock(0, b"k"));
        held.insert(lock(0, b"k"));
        assert!(!held.remove(lock(1, b"k")) && !held.remove(lock(0, b"l")));
        assert!(held.contains(lock(0, b"k")) && !held.contains(lock(1, b"k")));
        assert!(!held.is_empty());
        assert!(held.remove(lock(0, b"k")));
        assert!(held.is_empty() && !held.remove(lock(0, b"k")) && !held.contains(lock(0, b"k")));
    }

    #[test]
    fn most_of_many_keys_are_known() {
        let mut held = GrantedKeys::default();
        let keys: Vec<String> = (0..10_000).map(|n| format!("lock:{n}")).collect();
        keys.iter().for_each(|key| held.insert(lock(0, key.as_bytes())));
        assert!(held.tags.len() == PLACES && held.count <= 10_000);
        let known = keys.iter().filter(|key| held.remove(lock(0, key.as_bytes()))).count();
        assert!(known > 9_400, "only {known} are known");
        assert!(held.is_empty());
    }
}
