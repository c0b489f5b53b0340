// SPDX-License-Identifier: MIT

//! State of one lock.

use crate::core::held::Held;
use crate::core::queue::fairness::{AtDeadline, Fairness, WhenFree};
use crate::core::queue::wait_queue::WaitQueue;
use crate::core::schedule::Calendar;
use crate::core::table::LockIdx;
use crate::core::unconfirmed::Unconfirmed;
use crate::core::{Hold, HoldEvent, LockId, MonoUs, Now, Owner, Statistics, WaiterId, WallMs};

/// State of one lock, apart from the content of its key.
#[derive(Default)]
pub(in crate::core::manager) struct LockState {
    queue: WaitQueue,
    fairness: Fairness,
    unconfirmed: Unconfirmed,
    held: Held,
    /// Whether a hold granted here ended without a call. Unless a waiter takes the lock, it must be announced
    /// as free.
    unannounced: bool,
    /// Whether a foreign write may have given the lock to an owner that is queued behind a member of a
    /// bundle.
    was_changed: bool,
    /// The sole, plain, exclusive hold of the lock, if known. The next call will probably find it.
    plain_hold: Option<Hold>,
    /// The sole holder while the lock has waiters, if it is not in `plain_hold`: for the log.
    other_holder: Option<Owner>,
    /// Time of the grant of the exclusive hold, if known.
    held_since: Option<MonoUs>,
    /// Number of holders at the end of the last step, if the lock has more grants and bindings than one step
    /// examines.
    held_by: u32,
    /// Whether some of these holds may have ended since they were examined.
    may_have_ended: bool,
    /// Number of further steps before all grants and bindings are examined again.
    steps_to_examination: u32,
    /// Time at which a newcomer last opened the key and its companion keys.
    last_look: Option<MonoUs>,
    /// The lock's time in the schedule of leases.
    lease_planned: Option<WallMs>,
    /// The lock's time in the schedule of windows.
    window_planned: Option<MonoUs>,
    /// Probable index of the lock in the list of the longest waits.
    place_in_top: u32,
}

impl LockState {
    /// Whether this state is empty, so that it can be forgotten. The caller must also check whether the lock
    /// is ready or has bindings.
    #[inline(always)]
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.fairness.is_idle()
            && self.unconfirmed.is_empty()
            && self.held.is_empty()
            && !self.unannounced
            && self.lease_planned.is_none()
    }

    /// Whether the lock has native waiters or known external ones.
    pub(in crate::core::manager) fn is_waited_for(&self) -> bool {
        !self.queue.is_empty() || self.fairness.has_subscribers()
    }

    /// Whether owners must be notified of the end of their leases, even without waiters.
    pub(in crate::core::manager) fn has_owners_to_notify(&self) -> bool {
        !self.held.is_empty() || self.unconfirmed.any_unanswered()
    }

    /// Forgets everything that a later step would announce or delete: the lock is no longer served here.
    pub(in crate::core::manager) fn stop_serving(&mut self) {
        self.unannounced = false;
        self.unconfirmed.take_voided(usize::MAX);
        self.forget_hold();
    }
}

/// The queue. Only [`Parts`](super::Parts) changes it, because each wait is in other indexes too.
impl LockState {
    pub(in crate::core::manager) fn queue(&self) -> &WaitQueue {
        &self.queue
    }

    pub(super) fn queue_mut(&mut self) -> &mut WaitQueue {
        &mut self.queue
    }

    /// Lets a wait overtake a member of a bundle. Returns false if it had already overtaken the member.
    pub(in crate::core::manager) fn overtake(&mut self, overtaker: WaiterId, member: WaiterId) -> bool {
        self.queue.overtake(overtaker, member)
    }
}

/// Grants in flight and records of holds.
impl LockState {
    pub(in crate::core::manager) fn unconfirmed(&self) -> &Unconfirmed {
        &self.unconfirmed
    }

    pub(in crate::core::manager) fn unconfirmed_mut(&mut self) -> &mut Unconfirmed {
        &mut self.unconfirmed
    }

    pub(in crate::core::manager) fn held(&self) -> &Held {
        &self.held
    }

    pub(in crate::core::manager) fn held_mut(&mut self) -> &mut Held {
        &mut self.held
    }

    /// Records a grant of the lock.
    pub(in crate::core::manager) fn note_grant(&mut self, now: Now) {
        self.fairness.granted(now);
        self.unannounced = false;
    }
}

/// The announcement of a free lock.
impl LockState {
    pub(in crate::core::manager) fn is_unannounced(&self) -> bool {
        self.unannounced
    }

    /// Records that the lock must be announced unless a waiter takes it.
    pub(in crate::core::manager) fn note_unannounced(&mut self) {
        self.unannounced = true;
    }

    /// Returns whether the lock must be announced if it is free, and clears that flag. The caller announces
    /// it.
    pub(in crate::core::manager) fn take_unannounced(&mut self) -> bool {
        std::mem::take(&mut self.unannounced)
    }
}

/// The hold that the next call will probably find, and its age.
impl LockState {
    /// The sole, plain, exclusive hold of the lock, if known.
    pub(in crate::core::manager) fn plain_hold(&self) -> Option<&Hold> {
        self.plain_hold.as_ref()
    }

    /// Remembers the sole, plain, exclusive hold, if any.
    pub(in crate::core::manager) fn set_plain_hold(&mut self, hold: Option<&Hold>) {
        self.plain_hold = hold.map(|hold| Hold { renewed: false, ..hold.clone() });
    }

    /// Forgets the remembered hold if the lock has no waiters left.
    pub(super) fn forget_unwanted_hold(&mut self) {
        if self.queue.is_empty() {
            (self.plain_hold, self.other_holder) = (None, None);
        }
    }

    /// The last known sole holder, while the lock has waiters.
    pub(in crate::core::manager) fn known_holder(&self) -> Option<&Owner> {
        self.plain_hold.as_ref().map(|hold| &hold.owner).or(self.other_holder.as_ref())
    }

    /// Records the sole holder, if it is not the plain hold.
    #[inline(always)]
    pub(in crate::core::manager) fn note_other_holder(&mut self, holder: Option<&Owner>) {
        if self.other_holder.as_ref() != holder {
            self.other_holder = holder.filter(|_| !self.queue.is_empty()).cloned();
        }
    }

    /// Forgets the remembered hold, because it may have changed.
    pub(in crate::core::manager) fn forget_hold(&mut self) {
        self.plain_hold = None;
        self.held_since = None;
    }

    /// Records the time of the grant of an exclusive hold.
    pub(in crate::core::manager) fn hold_begins(&mut self, now: MonoUs) {
        self.held_since = Some(now);
    }

    /// Forgets the time of the grant, and returns it if it is known.
    pub(in crate::core::manager) fn take_held_since(&mut self) -> Option<MonoUs> {
        self.held_since.take()
    }
}

/// Foreign writes, and grants and bindings of holds that may have ended.
impl LockState {
    /// Records a foreign write, and the event by which it ended all holds, if any. With `has_bundles`, the
    /// new holders must be searched for cycles.
    pub(in crate::core::manager) fn note_foreign_write(
        &mut self,
        ended_by: Option<HoldEvent>,
        has_bundles: bool,
    ) {
        self.was_changed = has_bundles;
        if let Some(hold) = self.plain_hold.take().filter(|_| !self.queue.is_empty()) {
            self.other_holder = Some(hold.owner);
        }
        self.forget_hold();
        self.held.mark_unverified(ended_by);
    }

    /// Whether a foreign write may have changed the holders since the last call.
    pub(in crate::core::manager) fn take_foreign_write(&mut self) -> bool {
        std::mem::take(&mut self.was_changed)
    }

    /// Records that another client may have set the leases, and ended some holds.
    pub(in crate::core::manager) fn note_foreign_leases(&mut self) {
        self.unconfirmed.leases_are_foreign();
        self.may_have_ended = true;
    }

    /// Records the number of holders at the end of a step; 0 if that step examined all grants and bindings.
    pub(in crate::core::manager) fn note_holders(&mut self, holders: u32) {
        self.held_by = holders;
    }

    /// Whether some grants and bindings may belong to ended holds, given the current number of holders.
    pub(in crate::core::manager) fn needs_examination(&mut self, holders: u32) -> bool {
        self.may_have_ended |= holders < self.held_by;
        self.may_have_ended
    }

    /// Returns whether this step examines all grants and bindings. If so, the next examination follows after
    /// this number of steps, at the earliest.
    pub(in crate::core::manager) fn begin_examination(&mut self, steps: u32) -> bool {
        let begins = self.steps_to_examination == 0;
        (self.may_have_ended, self.steps_to_examination) =
            if begins { (false, steps) } else { (true, self.steps_to_examination - 1) };
        begins
    }

    /// Lets the next step continue an examination that found more ended holds than one step handles.
    pub(in crate::core::manager) fn examine_again(&mut self) {
        (self.may_have_ended, self.steps_to_examination) = (true, 0);
    }

    /// Records that a newcomer has opened the key and its companion keys.
    pub(in crate::core::manager) fn note_look(&mut self, now: MonoUs) {
        self.last_look = Some(now);
    }

    /// Whether a newcomer opened the key less than `valid_us` ago.
    pub(in crate::core::manager) fn has_recent_look(&self, now: MonoUs, valid_us: MonoUs) -> bool {
        self.last_look.is_some_and(|look| now < look.saturating_add(valid_us))
    }
}

/// Fairness towards external clients.
impl LockState {
    /// Whether external clients are known to have subscribed to the lock's channel.
    pub(in crate::core::manager) fn has_subscribers(&self) -> bool {
        self.fairness.has_subscribers()
    }

    /// Whether a call that can wait until this time lets external clients take the free lock first.
    pub(in crate::core::manager) fn yields(&self, ready_until: MonoUs, now: Now) -> bool {
        self.fairness.yields(ready_until, now)
    }

    /// The action for the free lock. `granted_here` returns whether its key is probably a lock granted here.
    pub(in crate::core::manager) fn when_free(
        &mut self,
        first_deadline: Option<MonoUs>,
        granted_here: impl FnOnce() -> bool,
        now: Now,
    ) -> WhenFree {
        let becomes_free = || !self.queue.is_empty() || self.unannounced || granted_here();
        self.fairness.when_free(first_deadline, becomes_free, now)
    }

    /// Opens a window. The caller announces the lock.
    pub(in crate::core::manager) fn open_window(&mut self, now: Now) {
        self.fairness.open(now);
        self.unannounced = false;
    }

    /// Records that the channel of the free lock has no subscribers.
    pub(in crate::core::manager) fn note_no_subscribers(&mut self, now: Now) {
        self.fairness.no_subscribers(now);
    }

    /// Records that the lock was announced as free.
    pub(in crate::core::manager) fn note_announced(&mut self, to_subscribers: bool, now: Now) {
        self.fairness.announced(to_subscribers, now);
        self.trim_fairness(true, now);
    }

    /// Records that subscribers sleep until after the end of the first lease.
    pub(in crate::core::manager) fn note_shortened_lease(&mut self) {
        self.fairness.subscribers_wait_for_lease();
    }

    /// Records that an external client has taken the lock. Returns whether it used a window.
    pub(super) fn note_taken_externally(&mut self, now: Now) -> bool {
        self.fairness.taken_externally(now)
    }

    /// Drops unneeded fairness history, now or later. Returns whether an external client used a window.
    pub(in crate::core::manager) fn trim_fairness(&mut self, is_free: bool, now: Now) -> bool {
        self.fairness.trim_history(is_free, !self.queue.is_empty(), now)
    }

    /// Handles the end of a window, or the time to forget the subscribers.
    pub(in crate::core::manager) fn end_window(&mut self, lease_is_watched: bool, now: Now) -> AtDeadline {
        self.fairness.at_deadline(!self.queue.is_empty(), lease_is_watched, now)
    }

    /// Whether the fairness history is kept until the lock is free.
    pub(in crate::core::manager) fn keeps_fairness_until_free(&self) -> bool {
        self.fairness.is_kept_until_free()
    }

    /// Forgets the fairness history.
    pub(super) fn reset_fairness(&mut self) {
        self.fairness = Fairness::default();
    }
}

/// Schedules and statistics.
impl LockState {
    /// The lock's time in the schedule of leases.
    pub(in crate::core::manager) fn planned_lease(&self) -> Option<WallMs> {
        self.lease_planned
    }

    /// Moves the lock in the schedule of leases. `None` removes it.
    pub(in crate::core::manager) fn plan_lease(
        &mut self,
        leases: &mut Calendar<WallMs, LockIdx>,
        lock: LockIdx,
        end: Option<WallMs>,
    ) {
        leases.set(lock, &mut self.lease_planned, end);
    }

    /// Records that the schedule of leases has returned the lock.
    pub(in crate::core::manager) fn lease_is_due(&mut self) {
        self.lease_planned = None;
    }

    /// Updates the schedule of windows from the fairness state.
    pub(super) fn plan_window(&mut self, windows: &mut Calendar<MonoUs, LockIdx>, lock: LockIdx) {
        windows.set(lock, &mut self.window_planned, self.fairness.deadline());
    }

    /// Records that the schedule of windows has returned the lock.
    pub(in crate::core::manager) fn window_is_due(&mut self) {
        self.window_planned = None;
    }

    /// Records the duration of a wait for the lock.
    #[inline(always)]
    pub(super) fn count_wait(&mut self, statistics: &mut Statistics, name: &LockId, waited: MonoUs) {
        statistics.waited(name, &mut self.place_in_top, waited);
    }

    /// The lock's time in the schedule of windows, and the time that it should have there.
    #[cfg(test)]
    pub(in crate::core::manager) fn planned_window(&self) -> (Option<MonoUs>, Option<MonoUs>) {
        (self.window_planned, self.fairness.deadline())
    }
}
