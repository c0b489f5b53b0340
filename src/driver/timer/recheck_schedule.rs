// SPDX-License-Identifier: MIT

//! When locks are looked at of which no event tells that they may be free.

use crate::core::MonoUs;

/// In a cluster, how often every lock that somebody waits for is looked at, in microseconds: a slot can leave
/// without a word about its keys.
const ALL_INTERVAL_US: MonoUs = 500_000;

/// The same for locks that nobody waits for, and of which something is remembered until they are free.
const REMEMBERED_INTERVAL_US: MonoUs = 5_000_000;

/// How soon after the server has been woken up fragile locks that somebody waits for are looked at, in microseconds: when a
/// foreign write deletes the owner's field, the token's is left, and no event comes but of a class that would cost every `HSET`
/// of the server a fifth of its time. A server that sleeps has nothing to look at.
const FRAGILE_DELAY_US: MonoUs = 4_000;

/// When the next of them are looked at, if there are too many for one go.
const NEXT_BATCH_DELAY_US: MonoUs = 1_000;

/// The plans for such looks.
#[derive(Default)]
pub(crate) struct RecheckSchedule {
    /// When all locks are looked at next; in a cluster only.
    all: Option<MonoUs>,
    /// When fragile locks are looked at next.
    fragile: Option<MonoUs>,
    /// The server was woken up since they were looked at.
    woken_up: bool,
}

/// A pass over all fragile locks, in batches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FragileRound {
    /// Some locks are left for the next batch.
    InProgress,
    Complete,
}

impl RecheckSchedule {
    /// When the first look is due.
    pub(crate) fn first_due(&self) -> Option<MonoUs> {
        self.all.into_iter().chain(self.fragile).min()
    }

    /// Somebody waits, in a cluster.
    pub(crate) fn plan_all(&mut self, now: MonoUs) {
        let at = now + ALL_INTERVAL_US;
        self.all = Some(self.all.map_or(at, |planned| planned.min(at)));
    }

    /// True if all locks are to be looked at now.
    pub(crate) fn take_all_due(&mut self, now: MonoUs) -> bool {
        self.all.take_if(|at| *at <= now).is_some()
    }

    /// They have been, and are to be again if somebody waits, or if something is remembered until locks are free.
    pub(crate) fn plan_remembered(&mut self, now: MonoUs) {
        self.all = Some(now + REMEMBERED_INTERVAL_US);
    }

    /// The server was woken up, and carries out what it has been sent before any timer fires. Returns whether the timer is to
    /// be set; `fires_by` says whether it fires by some time anyway: whatever it is for, the locks are looked at then.
    pub(crate) fn server_woke_up(&mut self, now: MonoUs, fires_by: impl FnOnce(MonoUs) -> bool) -> bool {
        self.woken_up = true;
        let at = now + FRAGILE_DELAY_US;
        let plans = !fires_by(at);
        if plans {
            self.fragile = Some(at);
        }
        plans
    }

    /// True if fragile locks are to be looked at now, of which some may be left from the last time (`in_round`).
    pub(crate) fn take_fragile(&mut self, round: FragileRound) -> bool {
        let continues = round == FragileRound::InProgress;
        let is_due = self.fragile.take().is_some() || continues || self.woken_up;
        if is_due && !continues {
            self.woken_up = false;
        }
        is_due
    }

    /// Some fragile locks are being looked at, and others are left for the next time (`in_round`) or not.
    pub(crate) fn plan_fragile(&mut self, now: MonoUs, round: FragileRound) {
        if round == FragileRound::InProgress {
            self.fragile = Some(now + NEXT_BATCH_DELAY_US);
        } else if self.woken_up {
            self.fragile = Some(now + FRAGILE_DELAY_US);
        }
    }

    /// There are no fragile locks.
    pub(crate) fn clear_fragile(&mut self) {
        self.fragile = None;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first_due().is_none()
    }
}
