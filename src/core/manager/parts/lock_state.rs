// SPDX-License-Identifier: MIT

//! State of one lock.

use crate::core::held::Held;
use crate::core::queue::fairness::Fairness;
use crate::core::queue::wait_queue::WaitQueue;
use crate::core::unconfirmed::Unconfirmed;
use crate::core::{Hold, MonoUs, WallMs};

/// State of one lock, apart from its key.
#[derive(Default)]
pub(in crate::core::manager) struct LockState {
    pub(in crate::core::manager) queue: WaitQueue,
    pub(in crate::core::manager) fairness: Fairness,
    pub(in crate::core::manager) unconfirmed: Unconfirmed,
    pub(in crate::core::manager) held: Held,
    /// Whether a hold granted here ended without a call. If no waiter takes the lock, it must be announced as
    /// free.
    pub(in crate::core::manager) unannounced: bool,
    /// Whether a foreign write may have given the lock to an owner that waits behind a member of a bundle.
    was_changed: bool,
    /// The sole, plain, exclusive hold of the lock, as far as known. The next call probably finds it.
    pub(in crate::core::manager) plain_hold: Option<Hold>,
    /// Time of the grant of the exclusive hold, if known.
    held_since: Option<MonoUs>,
    /// Whether a grant with `NOTIFY` is unconfirmed while external clients may know of a later end than the
    /// grace. See [`ExpectedEnd`](crate::core::ExpectedEnd).
    pub(in crate::core::manager) unconfirmed_whole_lease: bool,
    /// Number of holders at the end of the last step, if the lock has more grants and bindings than one step
    /// examines.
    held_by: u32,
    /// Whether some of these holds may have ended since they were examined.
    may_have_ended: bool,
    /// Number of further steps before they are examined again.
    steps_to_examination: u32,
    /// Time at which a newcomer last opened the key and the keys beside it.
    last_look: Option<MonoUs>,
    /// Time of the lock in the schedule of leases.
    pub(in crate::core::manager) lease_planned: Option<WallMs>,
    /// Time of the lock in the schedule of windows.
    pub(in crate::core::manager) window_planned: Option<MonoUs>,
    /// Probable index of the lock in the list of the longest waits.
    pub(in crate::core::manager) place_in_top: u32,
}

impl LockState {
    /// Whether the lock has native waiters or, as far as known, external ones.
    pub(in crate::core::manager) fn is_waited_for(&self) -> bool {
        !self.queue.is_empty() || self.fairness.has_subscribers()
    }

    /// Forgets the remembered hold, which may be a different one now.
    pub(in crate::core::manager) fn forget_hold(&mut self) {
        self.plain_hold = None;
        self.held_since = None;
    }

    /// Notes a foreign write. With `has_bundles`, the new holders must be searched for cycles.
    pub(in crate::core::manager) fn note_foreign_write(&mut self, has_bundles: bool) {
        self.was_changed = has_bundles;
        self.forget_hold();
    }

    /// Whether a foreign write may have changed the holders since the last call.
    pub(in crate::core::manager) fn take_foreign_write(&mut self) -> bool {
        std::mem::take(&mut self.was_changed)
    }

    /// Notes that some grants and bindings may be of holds that have ended.
    pub(in crate::core::manager) fn note_possible_end(&mut self) {
        self.may_have_ended = true;
    }

    /// Notes the number of holders at the end of a step; 0 if the step has examined all grants and bindings.
    pub(in crate::core::manager) fn note_holders(&mut self, holders: u32) {
        self.held_by = holders;
    }

    /// Whether grants and bindings may be of ended holds, given the current number of holders.
    pub(in crate::core::manager) fn needs_examination(&mut self, holders: u32) -> bool {
        self.may_have_ended |= holders < self.held_by;
        self.may_have_ended
    }

    /// Whether this step examines all grants and bindings. Then the next examination comes after this number
    /// of steps, at the earliest.
    pub(in crate::core::manager) fn begin_examination(&mut self, steps: u32) -> bool {
        let begins = self.steps_to_examination == 0;
        (self.may_have_ended, self.steps_to_examination) =
            if begins { (false, steps) } else { (true, self.steps_to_examination - 1) };
        begins
    }

    /// Notes that a newcomer has opened the key and the keys beside it.
    pub(in crate::core::manager) fn note_look(&mut self, now: MonoUs) {
        self.last_look = Some(now);
    }

    /// Whether a newcomer opened the key less than `valid_us` ago.
    #[inline(always)]
    pub(in crate::core::manager) fn has_recent_look(&self, now: MonoUs, valid_us: MonoUs) -> bool {
        self.last_look.is_some_and(|look| now < look.saturating_add(valid_us))
    }

    /// Notes the time of the grant of an exclusive hold.
    #[inline(always)]
    pub(in crate::core::manager) fn hold_begins(&mut self, now: MonoUs) {
        self.held_since = Some(now);
    }

    /// Forgets the time of the grant, and returns it if it is known.
    #[inline(always)]
    pub(in crate::core::manager) fn take_held_since(&mut self) -> Option<MonoUs> {
        self.held_since.take()
    }

    /// Whether owners must be notified of the end of their leases, even without waiters.
    pub(in crate::core::manager) fn has_owners_to_notify(&self) -> bool {
        !self.held.is_empty() || self.unconfirmed.any_unanswered()
    }
}
