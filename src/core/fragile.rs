// SPDX-License-Identifier: MIT

//! Fragile locks: a foreign write can free such a lock without an event, because another field keeps the key
//! in existence.

use super::schedule::Schedule;
use super::table::LockIdx;

/// Number of locks that become ready in one batch.
const BATCH: usize = 64;

/// Fragile locks with waiters, each with the number of the round that reconciles it next.
#[derive(Default)]
pub(super) struct FragileLocks {
    rounds: Schedule<u64, LockIdx>,
    round: u64,
    /// Whether a round has begun and is not over.
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

    /// Whether this round still has locks to reconcile.
    pub(super) fn is_in_round(&self) -> bool {
        self.in_round
    }

    /// The next batch of locks to reconcile: from this round, or from a new round if this one is complete.
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
