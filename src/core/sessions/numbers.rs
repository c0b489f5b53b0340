// SPDX-License-Identifier: MIT

//! The numbers of one session.

use std::cmp::Reverse;
use std::collections::{hash_map, BinaryHeap};

use foldhash::HashMap;

use super::number::{Entry, NumberState};
use crate::core::spare::{free_spare, is_too_large};

/// Numbers with their entries. Finding a number does not depend on how many there are.
#[derive(Default)]
pub(super) struct Numbers {
    entries: HashMap<u64, Entry>,
    /// The numbers with a final answer, smallest first. They are forgotten once `done` passes them.
    answered: BinaryHeap<Reverse<u64>>,
}

impl Numbers {
    #[inline]
    pub(super) fn get(&self, n: u64) -> Option<&Entry> {
        self.entries.get(&n)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, n: u64) -> Option<&mut Entry> {
        self.entries.get_mut(&n)
    }

    pub(super) fn entry(&mut self, n: u64) -> hash_map::Entry<'_, u64, Entry> {
        self.entries.entry(n)
    }

    pub(super) fn remove(&mut self, n: u64) -> Option<Entry> {
        let entry = self.entries.remove(&n);
        free_spare(&mut self.entries);
        entry
    }

    /// Records that a number has got its final answer.
    pub(super) fn note_answered(&mut self, n: u64) {
        self.answered.push(Reverse(n));
    }

    /// Forgets the numbers below `done` that have a final answer.
    pub(super) fn forget_answered_below(&mut self, done: u64) {
        while self.answered.peek().is_some_and(|Reverse(n)| *n < done) {
            let Some(Reverse(n)) = self.answered.pop() else { break };
            self.entries.remove(&n);
        }
        free_spare(&mut self.entries);
        if is_too_large(self.answered.capacity(), self.answered.len()) {
            self.answered.shrink_to(2 * self.answered.len());
        }
    }

    /// Iterates over all numbers, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Entry)> {
        self.entries.iter().map(|(n, entry)| (*n, entry))
    }
}

/// The numbers of a session that is over. They end newest first, so that no wait of the session gets a lock
/// that the session releases.
pub(super) struct EndingNumbers {
    entries: HashMap<u64, Entry>,
    /// The numbers in `entries`, newest last.
    order: Vec<u64>,
}

impl EndingNumbers {
    pub(super) fn new(numbers: Numbers) -> EndingNumbers {
        let mut order: Vec<u64> = numbers.entries.keys().copied().collect();
        order.sort_unstable();
        EndingNumbers { entries: numbers.entries, order }
    }

    /// Removes and returns the newest number.
    pub(super) fn take_newest(&mut self) -> Option<(u64, NumberState)> {
        let n = self.order.pop()?;
        Some((n, self.entries.remove(&n)?.state))
    }
}
