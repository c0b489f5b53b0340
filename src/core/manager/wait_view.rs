// SPDX-License-Identifier: MIT

//! The lock manager's view for the waits-for graph.

use std::ops::Range;

use foldhash::HashSet;
use smallvec::SmallVec;

use super::LockManager;
use crate::core::manager::parts::LockState;
use crate::core::queue::position::Position;
use crate::core::queue::wait::Wait;
use crate::core::table::LockIdx;
use crate::core::waits_for::view::{Ahead, WaitView, Waiting};
use crate::core::{Holders, LockId, Now, Owner, ReleaseScope, Request, WaiterId};

impl WaitView for LockManager {
    fn waiting(&self, id: WaiterId, now: Now) -> Option<Waiting<'_>> {
        let wait = self.parts.waiters.queued(id).filter(|wait| !wait.is_over(now))?;
        if self.parts.is_passed_over(wait) {
            return None;
        }
        let request = wait.request();
        Some(Waiting {
            lock: wait.lock(),
            owner: &request.owner,
            wants: request.wants,
            position: wait.position(),
            is_member: wait.is_member(),
        })
    }

    fn waits_of(&self, owner: &Owner) -> impl Iterator<Item = WaiterId> {
        self.parts.waiters.of_owner(owner.as_bytes())
    }

    fn is_waiting(&self, owner: &Owner) -> bool {
        self.parts.waiters.waits(owner.as_bytes())
    }

    fn waiting_owners_len(&self) -> usize {
        self.parts.waiters.index_lens().0
    }

    fn waiting_owners(&self) -> impl Iterator<Item = &Owner> {
        self.parts.waiters.owners()
    }

    fn waits_at(&self, lock: LockIdx, owner: &Owner) -> impl Iterator<Item = WaiterId> {
        self.parts.waiters.of_owner_at(lock, owner.as_bytes())
    }

    fn ahead(
        &self,
        lock: LockIdx,
        which: Ahead,
        positions: Range<Position>,
    ) -> impl Iterator<Item = WaiterId> {
        let queue = self.parts.state(lock).map(LockState::queue);
        let of = |wanted| queue.filter(|_| which == wanted).map(|queue| (queue, positions.clone()));
        let all = of(Ahead::All).into_iter().flat_map(|(queue, positions)| queue.at(positions));
        let blocking = of(Ahead::Blocking).into_iter();
        let blocking = blocking.flat_map(|(queue, positions)| queue.blocking_at(positions));
        let crossing = of(Ahead::Crossing).into_iter();
        let crossing = crossing.flat_map(|(queue, positions)| queue.crossing_at(positions));
        all.chain(blocking).chain(crossing)
    }

    fn name(&self, lock: LockIdx) -> Option<&LockId> {
        self.parts.table.id(lock)
    }

    fn find(&self, lock: &LockId) -> Option<LockIdx> {
        self.parts.table.find(lock.as_ref())
    }

    fn apply_pending_ends(&self, lock: LockIdx, holders: &mut Holders) {
        let Some(state) = self.parts.state(lock) else { return };
        for (owner, mode) in state.unconfirmed().marked() {
            let _ = holders.release(owner.as_bytes(), ReleaseScope::OneOf(mode), None);
        }
        for owner in self.parts.bindings.closed(lock) {
            let _ = holders.release(owner.as_bytes(), ReleaseScope::All, None);
        }
    }

    fn together(&self, id: WaiterId) -> SmallVec<[WaiterId; 4]> {
        self.parts.waiters.together(id)
    }

    fn has_members(&self, lock: LockIdx) -> bool {
        self.parts.state(lock).is_some_and(|state| state.queue().has_members())
    }

    fn has_ever_overtaken(&self, overtaker: WaiterId, member: WaiterId) -> bool {
        let lock = self.parts.waiters.queued(overtaker).map(Wait::lock);
        let state = lock.and_then(|lock| self.parts.state(lock));
        state.is_some_and(|state| state.queue().has_ever_overtaken(overtaker, member))
    }

    fn has_overtaking(&self, lock: LockIdx) -> bool {
        self.parts.state(lock).is_some_and(|state| state.queue().has_overtaking())
    }

    fn overtakers(&self, lock: LockIdx, member: WaiterId) -> impl Iterator<Item = WaiterId> {
        self.parts.state(lock).into_iter().flat_map(move |state| state.queue().overtakers(member))
    }

    fn overtaken_by(&self, lock: LockIdx, overtaker: WaiterId) -> Option<&HashSet<WaiterId>> {
        self.parts.state(lock)?.queue().overtaken_by(overtaker)
    }

    fn may_be_in_cycle(&self, id: WaiterId, holders: &Holders) -> bool {
        let Some(wait) = self.parts.waiters.queued(id) else { return false };
        let Some(state) = self.parts.state(wait.lock()) else { return false };
        // From this lock, the graph leads to other locks only through a holder or an earlier waiter that also
        // waits for another lock. If every earlier waiter waits for this lock only, the graph leads back only
        // through a holder that waits for this lock.
        let Request { owner, wants, .. } = wait.request();
        if wants.once && holders.get(owner.as_bytes()).is_some() {
            return false;
        }
        state.queue().has_crossing()
            || match (holders, wants.limit) {
                (Holders::Free, _) => false,
                (Holders::Exclusive(hold), _) => self.parts.waiters.waits(hold.owner.as_bytes()),
                // In a cycle, at least `limit` holders must be waiting too, unless earlier waiters block the
                // request.
                (Holders::Shared(_), Some(limit)) => {
                    let waiting = self.parts.waiters.index_lens().0;
                    state.queue().len() > 1
                        || u32::try_from(waiting).is_ok_and(|waiting| waiting >= limit.get())
                }
                (Holders::Shared(_), None) => true,
            }
    }
}
