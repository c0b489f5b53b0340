// SPDX-License-Identifier: MIT

//! What is asked of those who wait, to find out who waits for whom.

use std::ops::Range;

use super::holders::excludes;
use super::table::LockIdx;
use super::wait_queue::Position;
use super::{Hold, Holders, LockId, Mode, Now, Owner, WaiterId, Wants};

/// Those who wait.
pub(crate) trait Waits {
    /// A wait that is queued and not over.
    fn waiting(&self, id: WaiterId, now: Now) -> Option<Waiting<'_>>;
    /// The queued waits of an owner.
    fn waits_of(&self, owner: &Owner) -> impl Iterator<Item = WaiterId>;
    /// True if it has any.
    fn is_waiting(&self, owner: &Owner) -> bool;
    /// How many owners are queued somewhere.
    fn waiting_owners_len(&self) -> usize;
    /// All of these.
    fn waiting_owners(&self) -> impl Iterator<Item = &Owner>;
    /// Those of them that are for one lock.
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
    /// Changes the holders as the next step on the lock will: those whose client is gone block nobody.
    fn anticipate(&self, lock: LockIdx, holders: &mut Holders);
    /// False if it is clear without a search that nobody whom this one waits for, behind these holders, waits for it.
    fn may_be_in_cycle(&self, id: WaiterId, holders: &Holders) -> bool;
}

/// Which of those ahead in a queue are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    All,
    /// Behind whom everybody waits, nearest to the back first.
    Barring,
    /// Whose owner waits for other locks too.
    Crossing,
}

/// One wait.
pub(crate) struct Waiting<'a> {
    pub(crate) lock: LockIdx,
    pub(crate) owner: &'a Owner,
    pub(crate) wants: Wants,
    pub(crate) position: Position,
}

impl Waiting<'_> {
    /// True if the owner's own hold is in the way.
    pub(super) fn is_beside_own(&self, holders: &Holders) -> bool {
        self.wants.once && holders.of(self.owner.as_bytes()).is_some()
    }

    /// True if it waits for this hold, or would if there were enough of them.
    pub(super) fn is_behind(&self, hold: &Hold) -> bool {
        let mode = if self.wants.bars_readers() { Mode::Exclusive } else { Mode::Shared };
        excludes(hold, self.owner.as_bytes(), Wants { mode, ..self.wants })
    }
}

/// True if this wait of an owner is no matter to who waits for that owner at a lock, because of its wait `ahead` or of its hold:
/// another thread of the owner wants the same lock for itself.
pub(super) fn is_anothers(
    waits: &impl Waits,
    id: WaiterId,
    (lock, ahead): (LockIdx, Option<WaiterId>),
    now: Now,
) -> bool {
    let is_once = |wait: Waiting<'_>| wait.wants.once && wait.lock == lock;
    Some(id) != ahead && waits.waiting(id, now).is_some_and(is_once)
}

/// Where this wait is served: where its owner's first wait for the lock is, as that lets in all but those that the owner's own
/// hold is in the way of.
pub(super) fn served_at_of(waits: &impl Waits, wait: &Waiting<'_>, now: Now) -> Position {
    if wait.wants.once {
        return wait.position;
    }
    let all = waits.waits_at(wait.lock, wait.owner).filter_map(|id| waits.waiting(id, now));
    all.map(|wait| wait.position).min().unwrap_or(wait.position)
}
