// SPDX-License-Identifier: MIT

//! Counters of calls, waits and holds, in constant memory for any number of locks.

use foldhash::HashMap;
use hdrhistogram::Histogram;

use super::{LockId, MonoUs};

/// Longest time that is recorded exactly: a week, in microseconds.
const LONGEST_US: u64 = 7 * 24 * 3_600 * 1_000_000;

/// Significant digits of recorded times: a resolution of one percent.
const DIGITS: u8 = 2;

/// Number of locks in the list of the longest waits. The list is longer than operators need, because its last
/// entries are the least accurate.
const TOP_LOCKS: usize = 128;

/// Locks with longer names are left out, to limit memory.
pub(super) const MAX_REMEMBERED_KEY_LEN: usize = 1024;

/// Counters of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Acquires by owners without a hold, granted without a wait.
    GrantedAtOnce,
    /// Waits that ended with a grant.
    GrantedAfterWaiting,
    /// Acquires by holders of the lock, granted without a wait.
    Reentered,
    /// Acquires that got the reply of an earlier one with the same request id.
    Repeated,
    /// Acquires that were neither granted nor queued.
    Busy,
    /// Waits whose deadline passed.
    TimedOut,
    /// Acquires undone by `LOCK.CANCEL`.
    Cancelled,
    Released,
    /// Leases renewed by a call.
    Renewed,
    /// Leases renewed by a watchdog.
    RenewedByWatchdog,
    /// Held locks that were broken.
    Broken,
    /// Holds that ended with a connection.
    ReleasedOnDisconnect,
    /// Fencing tokens taken.
    Token,
    /// A session was opened.
    SessionOpened,
    /// A session ended because its client was silent, or because its connection had closed.
    SessionExpired,
    /// A grant was revoked because the client of its session did not acknowledge it.
    Overdue,
}

/// Number of counters.
const COUNTED: usize = Counted::Overdue as usize + 1;

/// Percentiles of a duration, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

/// A histogram of durations with a resolution of one percent.
struct Recorded(Option<Histogram<u64>>);

impl Default for Recorded {
    fn default() -> Recorded {
        // Constant, valid bounds: this never returns an error.
        Recorded(Histogram::new_with_bounds(1, LONGEST_US, DIGITS).ok())
    }
}

impl Recorded {
    #[inline(always)]
    fn record(&mut self, us: MonoUs) {
        if let Some(times) = &mut self.0 {
            times.saturating_record(us);
        }
    }

    fn times(&self) -> Times {
        let Some(times) = self.0.as_ref().filter(|times| !times.is_empty()) else { return Times::default() };
        let below = |quantile| times.value_at_quantile(quantile);
        Times { p50: below(0.5), p99: below(0.99), p999: below(0.999), max: times.max() }
    }
}

/// Total time that calls have waited for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waited {
    pub(crate) lock: LockId,
    /// Number of waits that have ended.
    pub(crate) waits: u64,
    /// Total duration of these waits in microseconds. The value is too high by at most `over_us`, and never
    /// too low.
    pub(crate) waited_us: u64,
    pub(crate) longest_us: u64,
    /// Total of the lock that this entry replaced, in microseconds.
    pub(crate) over_us: u64,
}

/// The locks with the longest total waits. A new lock replaces the entry with the smallest total and starts
/// from that total. So a lock with a large total is never missing ("space saving", Metwally et al. 2005).
#[derive(Default)]
struct Top {
    entries: Vec<Waited>,
    places: HashMap<LockId, u32>,
}

impl Top {
    #[inline(always)]
    fn record(&mut self, lock: &LockId, place: &mut u32, waited_us: u64) {
        if self.entries.get(*place as usize).is_none_or(|entry| entry.lock != *lock) {
            *place = match self.places.get(lock) {
                Some(place) => *place,
                None => self.insert(lock),
            };
        }
        let Some(entry) = self.entries.get_mut(*place as usize) else { return };
        entry.waits += 1;
        entry.waited_us = entry.waited_us.saturating_add(waited_us);
        entry.longest_us = entry.longest_us.max(waited_us);
    }

    fn insert(&mut self, lock: &LockId) -> u32 {
        let new =
            |over_us| Waited { lock: lock.clone(), waits: 0, waited_us: over_us, longest_us: 0, over_us };
        let place = if self.entries.len() < TOP_LOCKS {
            self.entries.push(new(0));
            self.entries.len() - 1
        } else {
            let last = (0..TOP_LOCKS).min_by_key(|place| self.entries[*place].waited_us).unwrap_or(0);
            self.places.remove(&self.entries[last].lock);
            self.entries[last] = new(self.entries[last].waited_us);
            last
        };
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        self.places.insert(lock.clone(), place);
        place
    }
}

/// All counters, durations and peaks.
#[derive(Default)]
pub(crate) struct Statistics {
    counts: [u64; COUNTED],
    waits: Recorded,
    holds: Recorded,
    top: Top,
    /// Number of locks with waiters.
    contended: usize,
    peak_contended: usize,
    peak_waiters: usize,
    peak_watchdogs: usize,
    peak_ephemeral: usize,
}

impl Statistics {
    pub(super) fn count(&mut self, what: Counted) {
        self.add(what, 1);
    }

    pub(super) fn add(&mut self, what: Counted, how_many: usize) {
        self.counts[what as usize] += how_many as u64;
    }

    /// Records the end of a wait, by a grant or its deadline. `place` is the lock's last known index in the
    /// top list, used as a hint; any value is allowed.
    #[inline(always)]
    pub(super) fn waited(&mut self, lock: &LockId, place: &mut u32, us: MonoUs) {
        self.waits.record(us);
        if lock.key.len() <= MAX_REMEMBERED_KEY_LEN {
            self.top.record(lock, place, us);
        }
    }

    /// Records the duration of an exclusive hold.
    pub(super) fn held(&mut self, us: MonoUs) {
        self.holds.record(us);
    }

    /// Records the current number of waiters.
    pub(super) fn record_waiters(&mut self, waiters: usize) {
        self.peak_waiters = self.peak_waiters.max(waiters);
    }

    /// Records the current numbers of renewed leases and of holds that end with a connection.
    pub(super) fn has_bound(&mut self, (watchdogs, ephemeral): (usize, usize)) {
        self.peak_watchdogs = self.peak_watchdogs.max(watchdogs);
        self.peak_ephemeral = self.peak_ephemeral.max(ephemeral);
    }

    /// Counts a lock that has its first waiter.
    pub(super) fn contention_begins(&mut self) {
        self.contended += 1;
        self.peak_contended = self.peak_contended.max(self.contended);
    }

    /// Stops counting a lock whose last waiter has left.
    pub(super) fn contention_ends(&mut self) {
        self.contended -= 1;
    }

    pub(crate) fn number(&self, of: Counted) -> u64 {
        self.counts[of as usize]
    }

    /// Number of locks with waiters.
    pub(crate) fn contended(&self) -> usize {
        self.contended
    }

    /// Peaks: locks with waiters, waiters, renewed leases, and holds that end with a connection.
    pub(crate) fn most(&self) -> [usize; 4] {
        [self.peak_contended, self.peak_waiters, self.peak_watchdogs, self.peak_ephemeral]
    }

    /// Durations of waits, whether granted or timed out.
    pub(crate) fn wait_times(&self) -> Times {
        self.waits.times()
    }

    /// Durations of exclusive holds of locks that were in the table at the grant.
    pub(crate) fn hold_times(&self) -> Times {
        self.holds.times()
    }

    /// The locks of a database with the longest total waits, the longest first.
    pub(crate) fn longest_waited(&self, db: i32) -> Vec<&Waited> {
        let mut top: Vec<&Waited> = self.top.entries.iter().filter(|entry| entry.lock.db == db).collect();
        top.sort_by(|a, b| b.waited_us.cmp(&a.waited_us).then_with(|| a.lock.cmp(&b.lock)));
        top
    }
}

#[cfg(test)]
mod tests {
    use super::{Statistics, Times, TOP_LOCKS};
    use crate::core::LockId;

    fn lock(name: u64) -> LockId {
        LockId { db: 0, key: name.to_be_bytes().as_slice().into() }
    }

    #[test]
    fn a_hot_lock_is_found_among_a_million() {
        let (mut statistics, mut place) = (Statistics::default(), 0);
        for at in 0..1_000_000 {
            statistics.waited(&lock(at), &mut 0, 1_000);
            if at % 10 == 0 {
                statistics.waited(&lock(7), &mut place, 5_000);
            }
        }
        let top = statistics.longest_waited(0);
        assert_eq!(top.len(), TOP_LOCKS);
        assert_eq!(top[0].lock, lock(7));
        let truth = 100_000 * 5_000 + 1_000;
        assert!(top[0].waited_us - top[0].over_us <= truth && truth <= top[0].waited_us);
        assert_eq!(top[0].longest_us, 5_000);
        assert!(statistics.longest_waited(1).is_empty());
    }

    #[test]
    fn times_are_exact_to_one_percent() {
        let mut statistics = Statistics::default();
        assert_eq!(statistics.hold_times(), Times::default());
        for ms in 1..=1000 {
            statistics.held(ms * 1000);
        }
        let Times { p50, p99, p999, max } = statistics.hold_times();
        for (found, wanted) in [(p50, 500_000), (p99, 990_000), (p999, 999_000), (max, 1_000_000)] {
            assert!(found >= wanted && found <= wanted + wanted / 100, "{found} instead of {wanted}");
        }
        // Durations beyond the bounds are recorded too.
        for us in [0, u64::MAX] {
            statistics.held(us);
        }
        assert!(statistics.hold_times().max >= super::LONGEST_US);
    }
}
