// SPDX-License-Identifier: MIT

//! A hint about which keys are locks that were granted here.
//!
//! A lock also becomes free when its lease expires or a foreign write deletes it. External clients must then
//! be notified, even if no native client waits for the lock. The server reports only that a key is gone, not
//! whether it was a lock. This table answers that question in constant memory, and is nearly always right. It
//! never decides a grant. A false entry publishes one unneeded message. A missing entry, as after a restart,
//! loses one message.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::LockRef;

/// Number of entries. The table takes 256 KiB, allocated at the first grant. With 10,000 locks held at once,
/// about 4 in 100 share an entry with another lock.
const PLACES: usize = 1 << 17;

/// A table of key tags, each at the index given by the key's hash. If two keys share an index, the later one
/// replaces the earlier one.
#[derive(Default)]
pub(super) struct GrantedKeys {
    /// Empty, or [`PLACES`] entries; 0 means no tag.
    tags: Vec<u16>,
    /// Number of entries that are not 0.
    count: usize,
}

impl GrantedKeys {
    /// Records that a lock was granted.
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

    /// Records that a key is gone. Returns whether it was a lock.
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

    /// Whether the key is probably a lock that was granted here.
    pub(super) fn contains(&self, lock: LockRef<'_>) -> bool {
        let (place, tag) = place_and_tag(lock);
        self.tags.get(place) == Some(&tag)
    }

    /// Number of remembered keys.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

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
