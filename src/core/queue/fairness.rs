// SPDX-License-Identifier: MIT

//! The fairness window of one lock: a short time in which the lock stays free for external clients, such as
//! Redisson's.
//!
//! An external client is notified when the lock becomes free, and then needs a round trip to take it. A
//! native waiter needs none. While native clients wait, or return fast enough, an external client never finds
//! the lock free. So after a run of native grants, the lock is announced as free and left free for a short
//! time, if its channel has subscribers. Native calls that can wait let external clients go first. Native
//! calls that cannot wait still take a free lock.
//!
//! The server is queried for subscribers once per run. If a subscriber never takes the lock, the intervals
//! between its windows soon become long. It may be frozen, distant or not a lock client.

use crate::core::{MonoUs, Now};

/// Number of native grants in a row before external clients get a window. External clients must get at least
/// a tenth of the grants, even if they miss some windows.
const RUN: u32 = 4;

/// Number by which a grant to an external client reduces the run.
const EXTERNAL_CREDIT: u32 = 6;

/// Maximum length of a run. Missed windows do not end a run, so a client that missed some gets the next
/// windows sooner, but never two in a row.
const LONGEST_RUN: u32 = 60;

/// Length of the run before the first window, if no external client has taken the lock yet. Most subscribers
/// never need a window.
const FIRST_RUN: u32 = 16;

/// Minimum time between two queries, in microseconds, if the first found no subscribers. [`LONGEST_RUN`]
/// native grants end it earlier. A query costs a sixth of a hand-over.
const QUERY_INTERVAL_US: MonoUs = 50_000;

/// Length of a window, in microseconds. It suffices for a message, a thread's wake-up and a command. Even
/// with the timer's delay of a millisecond, it is below the 5 ms within which a free lock must be granted.
const WINDOW_US: MonoUs = 3_000;

/// Maximum length of a window, in microseconds, for external clients that need more time.
const LONGEST_WINDOW_US: MonoUs = 32_000;

/// Number of windows in a row that an external client may miss without a penalty: any program stalls
/// occasionally.
const MAX_FREE_MISSES: u32 = 8;

/// After more misses, the next window opens after this multiple of the missed window's length. The interval
/// doubles with each miss, at most [`MAX_BACKOFF_DOUBLINGS`] times.
const MISS_BACKOFF_FACTOR: MonoUs = 10;
const MAX_BACKOFF_DOUBLINGS: u32 = 3;

/// Time for which subscribers are remembered while no native client uses the lock, in microseconds.
const SUBSCRIBER_MEMORY_US: MonoUs = 1_000_000;

/// Phase of the lock, as external clients see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// The lock is held, or handed over among native clients.
    #[default]
    Served,
    /// The lock has been free, and announced as free, since this time.
    Free { since: MonoUs },
    /// The lock is left free for external clients.
    Window { since: MonoUs, until: MonoUs },
}

/// The action for a free lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum WhenFree {
    /// Grant it to the first waiter in the queue.
    Serve,
    /// Leave it free for now.
    Leave,
    /// Open a window if the channel has subscribers: see [`Fairness::open`] and [`Fairness::no_subscribers`].
    Ask,
}

/// The effect of an expired deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum AtDeadline {
    /// The window is over and the lock has waiters: reconcile it.
    Reconcile,
    Nothing,
    /// The subscribers are forgotten.
    Forgotten,
}

/// The window of one lock, and the history that decides when the next one opens.
#[derive(Debug, Default)]
pub(in crate::core) struct Fairness {
    phase: Phase,
    /// Native grants that count towards the next window, at most [`LONGEST_RUN`]. Each external grant reduces
    /// it by [`EXTERNAL_CREDIT`]. Counted only while the lock is in the table.
    run: u32,
    /// Whether an external client was the last to be granted the lock.
    external_was_last: bool,
    /// Whether the channel had subscribers when it was last queried or notified.
    has_subscribers: bool,
    /// Whether an external client has ever taken the lock.
    ever_external: bool,
    /// Length of the next window, if it is not [`WINDOW_US`].
    length: Option<MonoUs>,
    /// Number of windows missed in a row.
    missed_in_row: u32,
    not_before: MonoUs,
    /// Earliest time of the next query, after one that found no subscribers.
    next_query: MonoUs,
    /// Time at which the lock was last granted, taken, or announced as free.
    last_event: MonoUs,
    /// End of the window, or the time at which the subscribers are forgotten.
    deadline: Option<MonoUs>,
}

impl Fairness {
    /// Whether nothing needs to be remembered.
    pub(in crate::core) fn is_idle(&self) -> bool {
        self.is_blank() && self.deadline.is_none()
    }

    /// Whether the history is kept until the lock is free.
    pub(in crate::core) fn is_kept_until_free(&self) -> bool {
        !self.is_blank() && self.deadline.is_none()
    }

    /// Whether the end of the lease must be announced to subscribers.
    pub(in crate::core) fn has_subscribers(&self) -> bool {
        self.has_subscribers
    }

    /// Time at which [`at_deadline`](Fairness::at_deadline) is due.
    pub(in crate::core) fn deadline(&self) -> Option<MonoUs> {
        self.deadline
    }

    /// Whether a call that can wait until `ready_until` lets external clients go first. It does so only if
    /// its deadline is after the window.
    pub(in crate::core) fn yields(&self, ready_until: MonoUs, now: Now) -> bool {
        matches!(self.phase, Phase::Window { until, .. } if now.mono < until && until < ready_until)
    }

    /// Decides what to do with a free lock. `first_deadline` is the deadline of the first waiter, if any.
    /// `becomes_free` returns whether the lock was held until now.
    pub(in crate::core) fn when_free(
        &mut self,
        first_deadline: Option<MonoUs>,
        becomes_free: impl FnOnce() -> bool,
        now: Now,
    ) -> WhenFree {
        if let Phase::Window { until, .. } = self.phase {
            if now.mono < until {
                return WhenFree::Leave;
            }
            self.missed(now);
            self.deadline = None;
            return WhenFree::Serve;
        }
        // A window ends before the first waiter's deadline. A lock that was already free is not announced
        // again.
        let end = now.mono.saturating_add(self.next_length());
        let in_time = first_deadline.is_none_or(|deadline| deadline > end);
        if self.is_due(now) && in_time && becomes_free() {
            WhenFree::Ask
        } else {
            WhenFree::Serve
        }
    }

    /// Opens a window.
    pub(in crate::core) fn open(&mut self, now: Now) {
        let until = now.mono.saturating_add(self.next_length());
        self.phase = Phase::Window { since: now.mono, until };
        self.has_subscribers = true;
        self.deadline = Some(until);
    }

    /// Records that the channel has no subscribers.
    pub(in crate::core) fn no_subscribers(&mut self, now: Now) {
        let next_query = now.mono.saturating_add(QUERY_INTERVAL_US);
        *self = Fairness { deadline: self.deadline, next_query, ..Fairness::default() };
    }

    /// Records a grant to a native client.
    pub(in crate::core) fn granted(&mut self, now: Now) {
        // External clients had enough time to take the lock without a window.
        if matches!(self.phase, Phase::Free { since } if now.mono.saturating_sub(since) >= self.next_length())
        {
            self.run = 0;
        }
        self.run = self.run.saturating_add(1).min(LONGEST_RUN);
        self.external_was_last = false;
        self.last_event = now.mono;
        // A native call that could not wait took the lock, so external clients missed this window.
        self.missed(now);
        self.phase = Phase::Served;
    }

    /// Records that an external client has taken the lock. Returns whether it did so in a window.
    pub(in crate::core) fn taken_externally(&mut self, now: Now) -> bool {
        let in_window = match self.phase {
            Phase::Window { since, .. } => {
                let took = now.mono.saturating_sub(since);
                self.length = Some(took.saturating_mul(2).clamp(WINDOW_US, LONGEST_WINDOW_US));
                self.missed_in_row = 0;
                self.not_before = now.mono;
                true
            }
            Phase::Served | Phase::Free { .. } => false,
        };
        self.run = self.run.saturating_sub(EXTERNAL_CREDIT);
        self.external_was_last = true;
        self.last_event = now.mono;
        self.phase = Phase::Served;
        self.ever_external = true;
        self.deadline = None;
        in_window
    }

    /// Records that the lock was announced as free, with or without subscribers.
    pub(in crate::core) fn announced(&mut self, to_subscribers: bool, now: Now) {
        self.has_subscribers = to_subscribers;
        self.last_event = now.mono;
        if !self.is_window() {
            self.phase = Phase::Free { since: now.mono };
        }
    }

    /// Records that subscribers wait for the end of a lease, which must therefore be announced.
    pub(in crate::core) fn subscribers_wait_for_lease(&mut self) {
        self.has_subscribers = true;
    }

    /// Forgets unneeded history, now or at a deadline. Returns whether an external client just used a window.
    pub(in crate::core) fn trim_history(&mut self, is_free: bool, somebody_waits: bool, now: Now) -> bool {
        let used = self.is_window() && !is_free && self.taken_externally(now);
        if let Phase::Window { until, .. } = self.phase {
            self.deadline = Some(until);
        } else if somebody_waits || self.is_blank() {
            // The scheduled deadline stays.
        } else if self.has_subscribers {
            self.deadline.get_or_insert(now.mono.saturating_add(SUBSCRIBER_MEMORY_US));
        } else if is_free {
            *self = Fairness::default();
        }
        used
    }

    /// Handles an expired deadline. `lease_is_watched` is true if the end of the lease reconciles the lock.
    pub(in crate::core) fn at_deadline(
        &mut self,
        somebody_waits: bool,
        lease_is_watched: bool,
        now: Now,
    ) -> AtDeadline {
        self.deadline = None;
        let forget_at = self.last_event.saturating_add(SUBSCRIBER_MEMORY_US);
        if self.is_window() && somebody_waits {
            return AtDeadline::Reconcile;
        }
        if self.is_window() {
            self.missed(now);
            self.deadline = Some(now.mono.saturating_add(SUBSCRIBER_MEMORY_US));
        } else if somebody_waits || (self.has_subscribers && lease_is_watched) {
            // The end of the lease reconciles the lock.
        } else if forget_at > now.mono {
            self.deadline = Some(forget_at);
        } else {
            *self = Fairness::default();
            return AtDeadline::Forgotten;
        }
        AtDeadline::Nothing
    }

    fn is_window(&self) -> bool {
        matches!(self.phase, Phase::Window { .. })
    }

    fn is_blank(&self) -> bool {
        self.run == 0 && !self.has_subscribers && !self.ever_external
    }

    fn is_due(&self, now: Now) -> bool {
        !self.external_was_last
            && self.run >= (if self.ever_external { RUN } else { FIRST_RUN })
            && self.not_before <= now.mono
            && (self.next_query <= now.mono || self.run >= LONGEST_RUN)
    }

    fn next_length(&self) -> MonoUs {
        self.length.unwrap_or(WINDOW_US)
    }

    /// Ends an open window as missed.
    fn missed(&mut self, now: Now) {
        let Phase::Window { since, until } = self.phase else { return };
        let length = until.saturating_sub(since);
        self.phase = Phase::Served;
        self.missed_in_row = self.missed_in_row.saturating_add(1);
        if self.missed_in_row > MAX_FREE_MISSES {
            let doubled =
                MISS_BACKOFF_FACTOR << (self.missed_in_row - MAX_FREE_MISSES - 1).min(MAX_BACKOFF_DOUBLINGS);
            self.not_before = now.mono.saturating_add(length.saturating_mul(doubled));
        }
        self.length = Some(length.saturating_mul(2).min(LONGEST_WINDOW_US));
    }
}
