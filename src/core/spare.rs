// SPDX-License-Identifier: MIT

//! The memory of crowds that have gone.

use std::hash::Hash;

use foldhash::HashMap;

/// A map with room for so many keeps it.
const KEPT: usize = 128;

/// So many times what a map has is too much room for it: to make it smaller costs less than what has gone did.
const TOO_MUCH: usize = 8;

/// True if something with so many entries has far more room than that.
#[inline(always)]
pub(crate) fn is_too_large(room: usize, len: usize) -> bool {
    room > KEPT && room / TOO_MUCH > len
}

/// Frees the room that a map has for a crowd that has gone. To be called whenever something was taken out of it: so memory comes
/// back however the last of a crowd goes.
#[inline(always)]
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

    use super::{free_spare, KEPT};

    #[test]
    fn a_map_is_never_far_larger_than_needed() {
        let mut map: HashMap<u32, u32> = (0..100_000).map(|number| (number, 0)).collect();
        for number in 0..100_000 {
            map.remove(&number);
            free_spare(&mut map);
            assert!(map.capacity() <= KEPT || map.capacity() / 8 <= map.len());
        }
        assert!(map.is_empty() && map.capacity() <= KEPT);
    }
}
