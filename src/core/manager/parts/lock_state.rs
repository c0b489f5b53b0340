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
    pub(in crate::core::manager) was_changed: bool,
    /// The sole, plain, exclusive hold of the lock, as far as known. The next call probably finds it.
    pub(in crate::core::manager) plain_hold: Option<Hold>,
    /// Time of the grant of the exclusive hold, if known.
    pub(in crate::core::manager) held_since: Option<MonoUs>,
    /// Whether a grant with `NOTIFY` is unconfirmed while external clients may know of a later end than the
    /// grace. See [`ExpectedEnd`](crate::core::ExpectedEnd).
    pub(in crate::core::manager) unconfirmed_whole_lease: bool,
    /// Number of holders at the end of the last step, if the lock has more grants and bindings than one step
    /// examines.
    pub(in crate::core::manager) held_by: u32,
    /// Whether some of these holds may have ended since they were examined.
    pub(in crate::core::manager) may_have_ended: bool,
    /// Number of further steps before they are examined again.
    pub(in crate::core::manager) looks_in: u32,
    /// Time at which a newcomer last opened the key and the keys beside it.
    pub(in crate::core::manager) last_look: Option<MonoUs>,
    /// Time of the lock in [`Parts::leases`].
    pub(in crate::core::manager) lease_planned: Option<WallMs>,
    /// Time of the lock in [`Parts::windows`].
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

    /// Whether owners must be notified of the end of their leases, even without waiters.
    pub(in crate::core::manager) fn has_owners_to_notify(&self) -> bool {
        !self.held.is_empty() || self.unconfirmed.any_unanswered()
    }
}
