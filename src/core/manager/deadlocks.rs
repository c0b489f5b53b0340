// SPDX-License-Identifier: MIT

//! Searches for deadlocks that form after a wait began, and their resolution.

use super::LockManager;
use crate::core::log::Incident;
use crate::core::waits_for::searches::Next;
use crate::core::{Cause, LockId, Now, Search, WaiterId};

impl LockManager {
    /// Whether any wait must still be searched for cycles.
    #[inline]
    pub(crate) fn has_searches(&self) -> bool {
        !self.parts.searches.is_empty()
    }

    /// Whether the next portion of these searches may start.
    pub(crate) fn searches_are_due(&self, now: Now) -> bool {
        self.parts.searches.next().is_some_and(|start| start <= now.mono)
    }

    /// The next search for a path from a wait back to its owner. If deadlocks are not `reported`, it seeks
    /// only cycles that overtaking resolves.
    pub(crate) fn next_search(&mut self, reported: bool, now: Now) -> Option<Search> {
        loop {
            let id = match self.parts.searches.take_next()? {
                Next::GoOn(search) => return Some(*search),
                Next::Begin(id) => id,
            };
            let search = match reported {
                true => Search::cycle(&*self, id, now),
                false if self.has_bundles() => Search::soft_cycle(&*self, id, now),
                false => None,
            };
            if search.is_some() {
                return search;
            }
        }
    }

    /// Suspends a search until the next portion.
    pub(crate) fn suspend_search(&mut self, search: Search) {
        self.parts.searches.suspend_search(search);
    }

    /// Ends a portion of searches that has used up its budget.
    pub(crate) fn pause_searches(&mut self, now: Now) {
        self.parts.searches.rest(now.mono);
    }

    /// Schedules the search of a wait that was too long for one call.
    pub(crate) fn search_later(&mut self, id: WaiterId) {
        self.parts.searches.insert(id);
    }

    /// Ends a wait that would otherwise never end, and logs the cycle. The caller answers its client.
    pub(crate) fn end_deadlocked(&mut self, id: WaiterId, cycle: Cause, now: Now) {
        let parts = &mut self.parts;
        parts.input_at = now;
        if let Some(wait) = parts.waiters.queued(id) {
            let (lock, owner) = (parts.name(wait.lock()), wait.request().owner.clone());
            let waited = now.mono.saturating_sub(wait.since());
            parts.log_incident(Incident::Deadlock, lock, owner, "deadlock", (cycle, Some(waited)));
        }
        parts.end_logged_wait(id, None);
    }

    /// Lets a wait overtake a bundle member ahead of it in the queue. Returns the lock, which must be
    /// reconciled.
    pub(crate) fn overtake(&mut self, overtaker: WaiterId, member: WaiterId) -> Option<LockId> {
        let parts = &mut self.parts;
        let lock = parts.waiters.queued(overtaker)?.lock();
        if parts.waiters.queued(member)?.lock() != lock {
            return defect!("a wait overtakes a member of another queue", None);
        }
        if !parts.state_mut(lock)?.overtake(overtaker, member) {
            return defect!("a wait overtakes a member twice", None);
        }
        // The member is now behind the other wait, so it may wait for its own owner.
        parts.searches.insert(member);
        parts.table.set_ready(lock);
        parts.name(lock)
    }
}
