// SPDX-License-Identifier: MIT

//! What is counted of calls, waits and holds: in constant memory, whatever the number of locks.

use foldhash::HashMap;
use hdrhistogram::Histogram;

use super::{LockId, MonoUs};

/// The longest time that is told from longer ones: a week, in microseconds.
const LONGEST_US: u64 = 7 * 24 * 3_600 * 1_000_000;

/// Significant digits of times: they are told to a hundredth.
const DIGITS: u8 = 2;

/// Of how many locks it is known how long they were waited for. More than anybody looks at: those at the end are the least
/// certain.
const TOP: usize = 128;

/// Locks with longer names are not among them, for the sake of memory.
const LONGEST_KEY: usize = 1024;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Acquires of owners that held nothing, granted without a wait.
    GrantedAtOnce,
    /// Waits that ended with a grant.
    GrantedAfterWaiting,
    /// Acquires of owners that held the lock already, granted without a wait.
    Reentered,
    /// Acquires that got the reply of an earlier one with the same request id.
    Repeated,
    /// Acquires that were not granted, and were not to wait.
    Busy,
    /// Waits whose time was over.
    TimedOut,
    /// Acquires that were undone by a cancellation.
    Cancelled,
    Released,
    /// Leases that were set anew by a call.
    Renewed,
    /// Leases that were set anew by a watchdog.
    RenewedByWatchdog,
    /// Locks that were broken while somebody held them.
    Broken,
    /// Holds that ended with a connection.
    ReleasedOnDisconnect,
    /// Fencing tokens that were taken.
    Token,
    /// Grants of which clients were told by messages, and which they have confirmed.
    Confirmed,
    /// Those that they have not confirmed in time, or of which nobody heard.
    NotConfirmed,
    /// Waits that ended as their connections have not confirmed others.
    Dropped,
}

/// How many there are.
const COUNTED: usize = Counted::Dropped as usize + 1;

/// How long something took: how often, and the time below which so many of them were, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

/// Times, told apart to a hundredth.
struct Recorded(Option<Histogram<u64>>);

impl Default for Recorded {
    fn default() -> Recorded {
        // The bounds are right, so that it is always there.
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

/// How long a lock was waited for, by all together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waited {
    pub(crate) lock: LockId,
    /// How many waits have ended.
    pub(crate) waits: u64,
    /// How long they were together. It may be too much by `over_us`, never too little.
    pub(crate) waited_us: u64,
    pub(crate) longest_us: u64,
    /// What another lock had waited whose place this one has taken.
    pub(crate) over_us: u64,
}

/// The locks that were waited for longest. Who is not among them takes the place of the last with what that had: so none
/// with much is ever missing ("space saving", Metwally et al. 2005).
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
        let place = if self.entries.len() < TOP {
            self.entries.push(new(0));
            self.entries.len() - 1
        } else {
            let last = (0..TOP).min_by_key(|place| self.entries[*place].waited_us).unwrap_or(0);
            self.places.remove(&self.entries[last].lock);
            self.entries[last] = new(self.entries[last].waited_us);
            last
        };
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        self.places.insert(lock.clone(), place);
        place
    }
}

/// All that is counted.
#[derive(Default)]
pub(crate) struct Statistics {
    counts: [u64; COUNTED],
    waits: Recorded,
    holds: Recorded,
    top: Top,
    /// How many locks are waited for.
    contended: usize,
    most_contended: usize,
    most_waiters: usize,
    most_watchdogs: usize,
    most_ephemeral: usize,
}

impl Statistics {
    #[inline(always)]
    pub(super) fn count(&mut self, what: Counted) {
        self.add(what, 1);
    }

    #[inline(always)]
    pub(super) fn add(&mut self, what: Counted, how_many: usize) {
        self.counts[what as usize] += how_many as u64;
    }

    /// A wait has ended, with a grant or as its time was over.
    /// `place` is where the lock was found last, or anything.
    #[inline(always)]
    pub(super) fn waited(&mut self, lock: &LockId, place: &mut u32, us: MonoUs) {
        self.waits.record(us);
        if lock.key.len() <= LONGEST_KEY {
            self.top.record(lock, place, us);
        }
    }

    /// An exclusive hold was given back.
    #[inline(always)]
    pub(super) fn held(&mut self, us: MonoUs) {
        self.holds.record(us);
    }

    /// So many wait now.
    pub(super) fn has_waiters(&mut self, waiters: usize) {
        self.most_waiters = self.most_waiters.max(waiters);
    }

    /// So many leases are renewed now, and so many holds end with a connection.
    pub(super) fn has_bound(&mut self, (watchdogs, ephemeral): (usize, usize)) {
        self.most_watchdogs = self.most_watchdogs.max(watchdogs);
        self.most_ephemeral = self.most_ephemeral.max(ephemeral);
    }

    /// A lock is waited for that was not before.
    pub(super) fn contention_begins(&mut self) {
        self.contended += 1;
        self.most_contended = self.most_contended.max(self.contended);
    }

    /// A lock is not waited for any more.
    pub(super) fn contention_ends(&mut self) {
        self.contended -= 1;
    }

    pub(crate) fn number(&self, of: Counted) -> u64 {
        self.counts[of as usize]
    }

    /// How many locks are waited for now.
    pub(crate) fn contended(&self) -> usize {
        self.contended
    }

    /// How many locks were waited for at most, how many waited, how many leases were renewed, and how many holds depended on a
    /// connection.
    pub(crate) fn most(&self) -> [usize; 4] {
        [self.most_contended, self.most_waiters, self.most_watchdogs, self.most_ephemeral]
    }

    /// How long was waited, until a grant or in vain.
    pub(crate) fn wait_times(&self) -> Times {
        self.waits.times()
    }

    /// How long locks were held exclusively, of which something was remembered when they were granted.
    pub(crate) fn hold_times(&self) -> Times {
        self.holds.times()
    }

    /// The locks of a database that were waited for longest, by all together, beginning with the longest.
    pub(crate) fn longest_waited(&self, db: i32) -> Vec<&Waited> {
        let mut top: Vec<&Waited> = self.top.entries.iter().filter(|entry| entry.lock.db == db).collect();
        top.sort_by(|a, b| b.waited_us.cmp(&a.waited_us).then_with(|| a.lock.cmp(&b.lock)));
        top
    }
}

#[cfg(test)]
mod tests {
    use super::{Statistics, Times, TOP};
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
        assert_eq!(top.len(), TOP);
        assert_eq!(top[0].lock, lock(7));
        let truth = 100_000 * 5_000 + 1_000;
        assert!(top[0].waited_us - top[0].over_us <= truth && truth <= top[0].waited_us);
        assert_eq!(top[0].longest_us, 5_000);
        assert!(statistics.longest_waited(1).is_empty());
    }

    #[test]
    fn times_are_told_to_a_hundredth() {
        let mut statistics = Statistics::default();
        assert_eq!(statistics.hold_times(), Times::default());
        for ms in 1..=1000 {
            statistics.held(ms * 1000);
        }
        let Times { p50, p99, p999, max } = statistics.hold_times();
        for (found, wanted) in [(p50, 500_000), (p99, 990_000), (p999, 999_000), (max, 1_000_000)] {
            assert!(found >= wanted && found <= wanted + wanted / 100, "{found} instead of {wanted}");
        }
        // Nothing is too short or too long.
        for us in [0, u64::MAX] {
            statistics.held(us);
        }
        assert!(statistics.hold_times().max >= super::LONGEST_US);
    }
}
