// SPDX-License-Identifier: MIT

//! What is asked of those who wait, to find out who waits for whom.

use std::ops::Range;

use foldhash::HashSet;
use smallvec::SmallVec;

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
    /// All waits that end together with this one: the parts of a bundle, or this wait.
    fn together(&self, id: WaiterId) -> SmallVec<[WaiterId; 4]>;
    /// True if calls for several locks wait for this one.
    fn has_parts(&self, lock: LockIdx) -> bool;
    /// True if this wait was let pass that part: it is so once, even if it stands behind it again.
    fn was_let_pass(&self, who: WaiterId, part: WaiterId) -> bool;
    /// True if any wait for it passes a part that came first.
    fn has_passes(&self, lock: LockIdx) -> bool;
    /// The waits that pass this part.
    fn passers(&self, lock: LockIdx, part: WaiterId) -> impl Iterator<Item = WaiterId>;
    /// The parts that this wait passes though they came first, if it passes any.
    fn passed_by(&self, lock: LockIdx, who: WaiterId) -> Option<&HashSet<WaiterId>>;
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
    /// It is one of several that are granted together, and so may have to wait for another lock.
    pub(crate) is_part: bool,
}

impl Waiting<'_> {
    /// True if the owner's own hold is in the way.
    pub(super) fn is_beside_own(&self, holders: &Holders) -> bool {
        self.wants.once && holders.of(self.owner.as_bytes()).is_some()
    }

    /// True if the owner holds the lock, and so this part of what it wants waits for the other locks only, or for holders.
    pub(super) fn has_no_order(&self) -> bool {
        self.is_part && self.position.is_holder()
    }

    /// True if it must not pass this wait, which came first.
    pub(super) fn must_not_pass(&self, first: &Waiting<'_>) -> bool {
        let conflicts = first.wants.bars_readers() || self.wants.mode == Mode::Exclusive;
        // Who holds the lock waits for holders only.
        !first.is_part || (conflicts && !self.position.is_holder())
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
    let is_once = |id: WaiterId| {
        let at_lock = |wait: &Waiting<'_>| wait.wants.once && wait.lock == lock;
        Some(id) != ahead && waits.waiting(id, now).as_ref().is_some_and(at_lock)
    };
    match waits.waiting(id, now) {
        // The whole bundle is another thread's.
        Some(wait) if wait.is_part => {
            let all = waits.together(id);
            !all.iter().any(|id| Some(*id) == ahead) && all.into_iter().any(is_once)
        }
        _ => is_once(id),
    }
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
