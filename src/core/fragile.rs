// SPDX-License-Identifier: MIT

//! Locks that can become free without an event: of which a foreign write may delete the owner's field, while another field
//! keeps the key.

use super::schedule::Schedule;
use super::table::LockIdx;

/// How many of them become ready in one go.
const BATCH: usize = 64;

/// Those of them that somebody waits for, each with the number of the round in which it is reconciled next.
#[derive(Default)]
pub(super) struct FragileLocks {
    rounds: Schedule<u64, LockIdx>,
    round: u64,
    /// A round has begun, and is not over.
    in_round: bool,
}

impl FragileLocks {
    pub(super) fn insert(&mut self, lock: LockIdx) {
        if self.rounds.get(&lock).is_none() {
            self.rounds.set(&lock, Some(self.round + u64::from(self.in_round)));
        }
    }

    pub(super) fn remove(&mut self, lock: LockIdx) {
        self.rounds.set(&lock, None);
    }

    pub(super) fn len(&self) -> usize {
        self.rounds.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rounds.is_empty()
    }

    /// True if some are still to be reconciled in this round.
    pub(super) fn is_in_round(&self) -> bool {
        self.in_round
    }

    /// The next ones to reconcile, of this round or else of the next.
    pub(super) fn next(&mut self) -> Vec<LockIdx> {
        let mut batch = Vec::new();
        while let Some(lock) = self.rounds.pop_due(self.round) {
            batch.push(lock);
            self.rounds.set(&lock, Some(self.round + 1));
            if batch.len() == BATCH {
                break;
            }
        }
        self.in_round = self.rounds.first().is_some_and(|round| round <= self.round);
        if !self.in_round {
            self.round += 1;
        }
        batch
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = LockIdx> + '_ {
        self.rounds.iter().map(|(_, lock)| *lock)
    }
}
