// SPDX-License-Identifier: MIT

//! Schedule for rereading locks that can become free without an event.

use crate::core::MonoUs;

/// In a cluster, the interval between rereads of every lock with waiters, in microseconds. A slot can leave
/// without events for its keys.
const ALL_INTERVAL_US: MonoUs = 500_000;

/// In a cluster, the interval between rereads of locks that have no waiters but are remembered until they are free, in
/// microseconds.
const REMEMBERED_INTERVAL_US: MonoUs = 5_000_000;

/// In a cluster, the interval between rereads of locks that are held by sessions, in microseconds. Redis 8.4 and later
/// move a slot as a whole without events for its keys.
const SESSIONS_INTERVAL_US: MonoUs = 5_000_000;

/// Delay between a wakeup of the server and the reread of fragile locks with waiters, in microseconds.
///
/// If a foreign write deletes only the owner's field, the token's field remains. The only events that report
/// it belong to a class that would make every `HSET` of the server a fifth slower. A sleeping server has
/// executed nothing, so nothing has to be reread.
const FRAGILE_DELAY_US: MonoUs = 4_000;

/// Delay until the next batch of fragile locks, in microseconds.
const NEXT_BATCH_DELAY_US: MonoUs = 1_000;

/// The times of the next rereads.
#[derive(Default)]
pub(crate) struct RecheckSchedule {
    /// The time of the next reread of all locks; in a cluster only.
    all: Option<MonoUs>,
    /// The time of the next reread of locks that are held by sessions; in a cluster only.
    sessions: Option<MonoUs>,
    /// The time of the next reread of fragile locks, which a foreign write can free without an event.
    fragile: Option<MonoUs>,
    /// Whether the server was woken up after the last reread of fragile locks.
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
    /// The earliest reread.
    pub(crate) fn first_due(&self) -> Option<MonoUs> {
        self.all.into_iter().chain(self.sessions).chain(self.fragile).min()
    }

    /// Schedules a reread of all locks. Called in a cluster when a wait begins or continues.
    pub(crate) fn plan_all(&mut self, now: MonoUs) {
        let at = now + ALL_INTERVAL_US;
        self.all = Some(self.all.map_or(at, |planned| planned.min(at)));
    }

    /// Whether all locks have to be reread now.
    pub(crate) fn take_all_due(&mut self, now: MonoUs) -> bool {
        self.all.take_if(|at| *at <= now).is_some()
    }

    /// Schedules a reread of remembered locks without waiters.
    pub(crate) fn plan_remembered(&mut self, now: MonoUs) {
        self.all = Some(now + REMEMBERED_INTERVAL_US);
    }

    /// Schedules a reread of locks that are held by sessions, unless one is scheduled already.
    pub(crate) fn plan_sessions(&mut self, now: MonoUs) {
        self.sessions.get_or_insert(now + SESSIONS_INTERVAL_US);
    }

    /// Whether the locks that are held by sessions have to be reread now.
    pub(crate) fn take_sessions_due(&mut self, now: MonoUs) -> bool {
        self.sessions.take_if(|at| *at <= now).is_some()
    }

    /// Records that the server has woken up. It executes its input before any timer fires. Returns whether
    /// the timer must be set. `fires_by` returns whether the timer fires by a given time anyway. If it does,
    /// fragile locks are reread then.
    pub(crate) fn server_woke_up(&mut self, now: MonoUs, fires_by: impl FnOnce(MonoUs) -> bool) -> bool {
        self.woken_up = true;
        let at = now + FRAGILE_DELAY_US;
        let plans = !fires_by(at);
        if plans {
            self.fragile = Some(at);
        }
        plans
    }

    /// Whether a batch of fragile locks has to be reread now.
    pub(crate) fn take_fragile(&mut self, round: FragileRound) -> bool {
        let continues = round == FragileRound::InProgress;
        let is_due = self.fragile.take().is_some() || continues || self.woken_up;
        if is_due && !continues {
            self.woken_up = false;
        }
        is_due
    }

    /// Schedules the next batch of fragile locks, after a batch has been reread.
    pub(crate) fn plan_fragile(&mut self, now: MonoUs, round: FragileRound) {
        if round == FragileRound::InProgress {
            self.fragile = Some(now + NEXT_BATCH_DELAY_US);
        } else if self.woken_up {
            self.fragile = Some(now + FRAGILE_DELAY_US);
        }
    }

    /// Clears the schedule of fragile locks, because there are none.
    pub(crate) fn clear_fragile(&mut self) {
        self.fragile = None;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first_due().is_none()
    }
}
