// SPDX-License-Identifier: MIT

//! Frees unused capacity after many entries have left a collection.

use std::hash::Hash;

use foldhash::HashMap;

/// Capacity that a map always keeps.
const MIN_CAPACITY: usize = 128;

/// Ratio of capacity to entries above which a map shrinks. At this ratio, shrinking costs less than the
/// preceding removals did.
const MAX_CAPACITY_RATIO: usize = 8;

/// Whether a collection has far more capacity than entries.
pub(crate) fn is_too_large(room: usize, len: usize) -> bool {
    room > MIN_CAPACITY && room / MAX_CAPACITY_RATIO > len
}

/// Shrinks a map with excess capacity. Call it after every removal, so that no order of removals leaves
/// excess memory.
pub(crate) fn free_spare<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if is_too_large(map.capacity(), map.len()) {
        shrink(map);
    }
}

#[cold]
fn shrink<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    map.shrink_to(2 * map.len());
}

#[cfg(test)]
mod tests {
    use foldhash::HashMap;

    use super::{free_spare, MIN_CAPACITY};

    #[test]
    fn a_map_is_never_far_larger_than_needed() {
        let mut map: HashMap<u32, u32> = (0..100_000).map(|number| (number, 0)).collect();
        for number in 0..100_000 {
            map.remove(&number);
            free_spare(&mut map);
            assert!(map.capacity() <= MIN_CAPACITY || map.capacity() / 8 <= map.len());
        }
        assert!(map.is_empty() && map.capacity() <= MIN_CAPACITY);
    }
}
