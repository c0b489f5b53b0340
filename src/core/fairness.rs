// SPDX-License-Identifier: MIT

//! The fairness window of one lock: when it is left free for external clients, as Redisson's are.
//!
//! Such a client gets a message when the lock becomes free, and then needs a round trip to take it. Whoever waits
//! here needs none: as long as somebody does, or comes back fast enough, the lock is never free when an external client
//! asks. So after a run of grants here, and only if the lock's channel has subscribers, the lock is left free for a moment
//! with a message, and those who are ready to wait let external clients go first. Whoever does not wait takes what is
//! free, as ever.
//!
//! Who has subscribed is asked once in a run. A subscriber who does not come for the lock, as it is frozen, far away or no
//! client at all, soon gets its windows at long intervals only.

use super::{MonoUs, Now};

/// How many grants here are in a row before external clients get a window. At least a tenth of the grants
/// shall be theirs, also if they miss some windows.
const RUN: u32 = 4;

/// For how many grants here one to an external client makes up, and how many are remembered: who missed some windows gets
/// the next ones sooner, though never two in a row.
const MAKES_UP: u32 = 6;
const LONGEST_RUN: u32 = 60;

/// How many grants here are in a row before the first window, as long as no external client has taken the lock: most who
/// listen never have to be let in.
const FIRST_RUN: u32 = 16;

/// If nobody has subscribed, how long it is not asked again, in microseconds, unless there were [`LONGEST_RUN`] grants here since: to
/// ask costs as much as a sixth of a hand-over.
const ASKED_US: MonoUs = 50_000;

/// How long a window lasts, in microseconds: enough for a message, a thread that wakes up and a command, and with the
/// timer's millisecond below the 5 ms in which a free lock is to be granted.
const WINDOW_US: MonoUs = 3_000;

/// How long a window can become where external clients need more, in microseconds.
const LONGEST_WINDOW_US: MonoUs = 32_000;

/// How many missed windows in a row cost an external client nothing: any program stumbles now and then.
const FREE_MISSES: u32 = 8;

/// After more misses the next window comes when this many times the missed one has passed; it doubles with each miss,
/// [`DOUBLINGS`] times at most.
const PENALTY: MonoUs = 10;
const DOUBLINGS: u32 = 3;

/// For how long it is remembered that there were subscribers, while nobody here has to do with the lock, in
/// microseconds.
const MEMORY_US: MonoUs = 1_000_000;

/// What a lock is to those who wait for it by messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// It is held, or handed on here.
    #[default]
    Served,
    /// It is free for everybody, and that was announced, since then.
    Free { since: MonoUs },
    /// It is left free for them.
    Window { since: MonoUs, until: MonoUs },
}

/// What is to be done with a lock that is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhenFree {
    /// Whoever is first in the queue gets it.
    Serve,
    /// It is left free for some time yet.
    Leave,
    /// A window is due, if there are subscribers: see [`Fairness::open`] and [`Fairness::nobody_listens`].
    Ask,
}

/// What follows from a deadline that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtDeadline {
    /// The window is over, and the lock is ready, as somebody waits.
    Look,
    Nothing,
    /// It is forgotten that there were subscribers.
    Forgotten,
}

/// The window of one lock, and what is remembered to decide when the next one is due.
#[derive(Debug, Default)]
pub(super) struct Fairness {
    phase: Phase,
    /// How many grants here there were that none to an external client made up for. Counted only while the lock is in the table.
    run: u32,
    /// Nobody here was granted the lock since an external client had it.
    just_taken: bool,
    /// There were subscribers when that was last asked or seen.
    has_subscribers: bool,
    /// An external client has taken the lock.
    met: bool,
    /// How long the next window lasts, if not [`WINDOW_US`].
    length: Option<MonoUs>,
    /// How many in a row were missed.
    misses: u32,
    not_before: MonoUs,
    /// Nobody had subscribed: until then that is not asked again.
    not_asked_before: MonoUs,
    /// When the lock was last granted, taken, or announced to be free.
    last_seen: MonoUs,
    /// When the window is over, or forgotten that there were subscribers.
    deadline: Option<MonoUs>,
}

impl Fairness {
    /// True if nothing has to be remembered.
    pub(super) fn is_idle(&self) -> bool {
        self.is_blank() && self.deadline.is_none()
    }

    /// True if it is forgotten only when the lock is free.
    pub(super) fn is_until_free(&self) -> bool {
        !self.is_blank() && self.deadline.is_none()
    }

    /// The end of the lease is watched for subscribers.
    pub(super) fn has_subscribers(&self) -> bool {
        self.has_subscribers
    }

    /// When [`at_deadline`](Fairness::at_deadline) is to be called.
    pub(super) fn deadline(&self) -> Option<MonoUs> {
        self.deadline
    }

    /// True if whoever is ready to wait that long lets external clients go first. Nobody's time to wait is over by that.
    pub(super) fn yields(&self, ready_until: MonoUs, now: Now) -> bool {
        matches!(self.phase, Phase::Window { until, .. } if now.mono < until && until < ready_until)
    }

    /// The lock is free. `first_deadline` is until when the first in the queue waits, if somebody does and has a limit;
    /// `becomes_free` says whether it was held until now.
    pub(super) fn when_free(
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
        // Nobody's time to wait is spent on a window, and a lock that was free before is not made free once more.
        let end = now.mono.saturating_add(self.next_length());
        let in_time = first_deadline.is_none_or(|deadline| deadline > end);
        if self.is_due(now) && in_time && becomes_free() {
            WhenFree::Ask
        } else {
            WhenFree::Serve
        }
    }

    /// A window begins.
    pub(super) fn open(&mut self, now: Now) {
        let until = now.mono.saturating_add(self.next_length());
        self.phase = Phase::Window { since: now.mono, until };
        self.has_subscribers = true;
        self.deadline = Some(until);
    }

    /// There are no subscribers.
    pub(super) fn nobody_listens(&mut self, now: Now) {
        let not_asked_before = now.mono.saturating_add(ASKED_US);
        *self = Fairness { deadline: self.deadline, not_asked_before, ..Fairness::default() };
    }

    /// Somebody here got the lock.
    pub(super) fn granted(&mut self, now: Now) {
        // External clients could have come, and no window had to be made for that.
        if matches!(self.phase, Phase::Free { since } if now.mono.saturating_sub(since) >= self.next_length())
        {
            self.run = 0;
        }
        self.run = self.run.saturating_add(1).min(LONGEST_RUN);
        self.just_taken = false;
        self.last_seen = now.mono;
        // Somebody took it who did not want to wait: that is a window that external clients missed.
        self.missed(now);
        self.phase = Phase::Served;
    }

    /// Somebody who never asked here has taken the lock. Returns whether that was in a window.
    pub(super) fn taken_elsewhere(&mut self, now: Now) -> bool {
        let in_window = match self.phase {
            Phase::Window { since, .. } => {
                let took = now.mono.saturating_sub(since);
                self.length = Some(took.saturating_mul(2).clamp(WINDOW_US, LONGEST_WINDOW_US));
                self.misses = 0;
                self.not_before = now.mono;
                true
            }
            Phase::Served | Phase::Free { .. } => false,
        };
        self.run = self.run.saturating_sub(MAKES_UP);
        self.just_taken = true;
        self.last_seen = now.mono;
        self.phase = Phase::Served;
        self.met = true;
        self.deadline = None;
        in_window
    }

    /// It was announced that the lock is free, to subscribers or to none.
    pub(super) fn announced(&mut self, to_subscribers: bool, now: Now) {
        self.has_subscribers = to_subscribers;
        self.last_seen = now.mono;
        if !self.is_window() {
            self.phase = Phase::Free { since: now.mono };
        }
    }

    /// There are subscribers, to whom the end of a lease must be announced.
    pub(super) fn subscribers_wait_for_lease(&mut self) {
        self.has_subscribers = true;
    }

    /// Forgets what is not needed any more, now or after a while. Returns whether a window has just been used.
    pub(super) fn settle(&mut self, is_free: bool, somebody_waits: bool, now: Now) -> bool {
        let used = self.is_window() && !is_free && self.taken_elsewhere(now);
        if let Phase::Window { until, .. } = self.phase {
            self.deadline = Some(until);
        } else if somebody_waits || self.is_blank() {
            // Whatever is planned stays so.
        } else if self.has_subscribers {
            self.deadline.get_or_insert(now.mono.saturating_add(MEMORY_US));
        } else if is_free {
            *self = Fairness::default();
        }
        used
    }

    /// The deadline has come. `lease_is_watched` says whether the lock is reconciled when the lease ends.
    pub(super) fn at_deadline(
        &mut self,
        somebody_waits: bool,
        lease_is_watched: bool,
        now: Now,
    ) -> AtDeadline {
        self.deadline = None;
        let forget_at = self.last_seen.saturating_add(MEMORY_US);
        if self.is_window() && somebody_waits {
            return AtDeadline::Look;
        }
        if self.is_window() {
            self.missed(now);
            self.deadline = Some(now.mono.saturating_add(MEMORY_US));
        } else if somebody_waits || (self.has_subscribers && lease_is_watched) {
            // The lock will be reconciled for that.
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
        self.run == 0 && !self.has_subscribers && !self.met
    }

    fn is_due(&self, now: Now) -> bool {
        !self.just_taken
            && self.run >= (if self.met { RUN } else { FIRST_RUN })
            && self.not_before <= now.mono
            && (self.not_asked_before <= now.mono || self.run >= LONGEST_RUN)
    }

    fn next_length(&self) -> MonoUs {
        self.length.unwrap_or(WINDOW_US)
    }

    /// If there is a window, it ends unused.
    fn missed(&mut self, now: Now) {
        let Phase::Window { since, until } = self.phase else { return };
        let length = until.saturating_sub(since);
        self.phase = Phase::Served;
        self.misses = self.misses.saturating_add(1);
        if self.misses > FREE_MISSES {
            let doubled = PENALTY << (self.misses - FREE_MISSES - 1).min(DOUBLINGS);
            self.not_before = now.mono.saturating_add(length.saturating_mul(doubled));
        }
        self.length = Some(length.saturating_mul(2).min(LONGEST_WINDOW_US));
    }
}
