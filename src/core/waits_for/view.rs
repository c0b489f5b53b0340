// SPDX-License-Identifier: MIT

//! The queries about waits from which the waits-for graph is built.

use std::ops::Range;

use foldhash::HashSet;
use smallvec::SmallVec;

use crate::core::holders::excludes;
use crate::core::queue::position::Position;
use crate::core::table::LockIdx;
use crate::core::{Hold, Holders, LockId, Mode, Now, Owner, WaiterId, Wants};

/// A view of all waits.
pub(crate) trait WaitView {
    /// A queued wait whose deadline has not passed.
    fn waiting(&self, id: WaiterId, now: Now) -> Option<Waiting<'_>>;
    /// The queued waits of an owner.
    fn waits_of(&self, owner: &Owner) -> impl Iterator<Item = WaiterId>;
    /// Whether an owner has queued waits.
    fn is_waiting(&self, owner: &Owner) -> bool;
    /// Number of owners with queued waits.
    fn waiting_owners_len(&self) -> usize;
    /// All owners with queued waits.
    fn waiting_owners(&self) -> impl Iterator<Item = &Owner>;
    /// The queued waits of an owner for one lock.
    fn waits_at(&self, lock: LockIdx, owner: &Owner) -> impl Iterator<Item = WaiterId>;
    /// The waits for a lock at these positions.
    fn ahead(
        &self,
        lock: LockIdx,
        which: Ahead,
        positions: Range<Position>,
    ) -> impl Iterator<Item = WaiterId>;
    fn name(&self, lock: LockIdx) -> Option<&LockId>;
    fn find(&self, lock: &LockId) -> Option<LockIdx>;
    /// Applies to the holders the pending changes of the lock's next step: holders whose client is gone do
    /// not block.
    fn apply_pending_ends(&self, lock: LockIdx, holders: &mut Holders);
    /// The waits that end together with this one: all members of its bundle, or the wait alone.
    fn together(&self, id: WaiterId) -> SmallVec<[WaiterId; 4]>;
    /// Whether members of bundles wait for this lock.
    fn has_members(&self, lock: LockIdx) -> bool;
    /// Whether this wait has ever overtaken that member, even if the swap was undone.
    fn has_ever_overtaken(&self, overtaker: WaiterId, member: WaiterId) -> bool;
    /// Whether any wait for this lock has overtaken a member that arrived earlier.
    fn has_overtaking(&self, lock: LockIdx) -> bool;
    /// The waits that overtake this member.
    fn overtakers(&self, lock: LockIdx, member: WaiterId) -> impl Iterator<Item = WaiterId>;
    /// The members that this wait overtakes, if it overtakes any.
    fn overtaken_by(&self, lock: LockIdx, overtaker: WaiterId) -> Option<&HashSet<WaiterId>>;
    /// Whether this wait overtakes that member.
    fn overtakes(&self, lock: LockIdx, overtaker: WaiterId, member: WaiterId) -> bool {
        self.overtaken_by(lock, overtaker).is_some_and(|overtaken| overtaken.contains(&member))
    }
    /// Returns false only if no owner that blocks this wait can be waiting for it. Decided without a search.
    /// `holders` are the lock's holders.
    fn may_be_in_cycle(&self, id: WaiterId, holders: &Holders) -> bool;
}

/// A selection of the waits ahead in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    All,
    /// Waits that block every later request, last to first.
    Blocking,
    /// Waits whose owners also wait for other locks.
    Crossing,
}

/// One wait.
pub(crate) struct Waiting<'a> {
    pub(crate) lock: LockIdx,
    pub(crate) owner: &'a Owner,
    pub(crate) wants: Wants,
    pub(crate) position: Position,
    /// Whether the wait is a member of a bundle, and so may have to wait for another lock.
    pub(crate) is_member: bool,
}

impl Waiting<'_> {
    /// Whether the owner's own hold excludes the request.
    pub(super) fn is_excluded_by_own_hold(&self, holders: &Holders) -> bool {
        self.wants.once && holders.get(self.owner.as_bytes()).is_some()
    }

    /// Whether this wait is a bundle member that no waiter can block, because its owner holds the lock. It
    /// waits for holders, or for its other locks.
    pub(super) fn is_unordered(&self) -> bool {
        self.is_member && self.position.is_holder()
    }

    /// Whether the earlier wait `first` blocks this one.
    pub(super) fn must_not_pass(&self, first: &Waiting<'_>) -> bool {
        let conflicts = first.wants.blocks_all() || self.wants.mode == Mode::Exclusive;
        // Owners that hold the lock are blocked by holders only.
        !first.is_member || (conflicts && !self.position.is_holder())
    }

    /// Whether this hold blocks the wait, alone or together with other such holds.
    pub(super) fn is_behind(&self, hold: &Hold) -> bool {
        let mode = if self.wants.blocks_all() { Mode::Exclusive } else { Mode::Shared };
        excludes(hold, self.owner.as_bytes(), Wants { mode, ..self.wants })
    }
}

/// Whether this wait belongs to another thread of its owner, so that it does not delay the waiters behind that
/// owner at `lock`. Such a thread requests the lock with `once`. `ahead` is the owner's wait in that queue, or
/// `None` for its hold.
pub(super) fn belongs_to_another_thread(
    waits: &impl WaitView,
    id: WaiterId,
    lock: LockIdx,
    ahead: Option<WaiterId>,
    now: Now,
) -> bool {
    let is_once = |id: WaiterId| {
        let at_lock = |wait: &Waiting<'_>| wait.wants.once && wait.lock == lock;
        Some(id) != ahead && waits.waiting(id, now).as_ref().is_some_and(at_lock)
    };
    match waits.waiting(id, now) {
        // The whole bundle belongs to another thread.
        Some(wait) if wait.is_member => {
            let all = waits.together(id);
            !all.iter().any(|id| Some(*id) == ahead) && all.into_iter().any(is_once)
        }
        _ => is_once(id),
    }
}

/// Whether a wait may still overtake this member. Not if another wait of the member's owner stays ahead of it: it
/// would wait for that owner as before.
pub(super) fn can_overtake(waits: &impl WaitView, overtaker: WaiterId, member: WaiterId, now: Now) -> bool {
    if waits.has_ever_overtaken(overtaker, member) {
        return false;
    }
    let (Some(wait), Some(ahead)) = (waits.waiting(overtaker, now), waits.waiting(member, now)) else {
        return false;
    };
    // With `once`, each wait belongs to a thread of its own.
    if ahead.wants.once {
        return true;
    }
    let served_at = service_position(waits, &wait, now);
    let stays_ahead = |other: WaiterId| {
        waits.waiting(other, now).is_some_and(|first| {
            let blocks = first.wants.blocks_all() || wait.wants.blocks_all();
            let is_passable = first.is_member
                && (waits.overtakes(wait.lock, overtaker, other)
                    || !waits.has_ever_overtaken(overtaker, other));
            blocks && first.position < served_at && !is_passable
        })
    };
    !waits.waits_at(wait.lock, ahead.owner).any(stays_ahead)
}

/// Position at which this wait is served: that of its owner's first wait for the lock. The first grant also
/// admits the owner's other waits, except those with `once`.
pub(super) fn service_position(waits: &impl WaitView, wait: &Waiting<'_>, now: Now) -> Position {
    if wait.wants.once {
        return wait.position;
    }
    let all = waits.waits_at(wait.lock, wait.owner).filter_map(|id| waits.waiting(id, now));
    all.map(|wait| wait.position).min().unwrap_or(wait.position)
}
