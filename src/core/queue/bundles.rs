// SPDX-License-Identifier: MIT

//! Bundles: calls that wait for several locks at once. A bundle has a member in the queue of each of its
//! locks. Each member is a normal wait. All members have the same ticket, the number that orders the waits of
//! each queue by arrival. Members are granted together or not at all, and leave together.
//!
//! The lock manager has one lock open at a time, and the holders of the others are in their keys. So a step
//! that could grant a member makes its bundle *due*. The driver then opens all locks of the bundle in turn
//! ([`LockManager::try_member`](crate::core::LockManager::try_member)). If one of them is unavailable, the
//! bundle records that lock. From then on, only a step on that lock makes the bundle due again.

use std::collections::VecDeque;

use foldhash::HashMap;
use smallvec::SmallVec;

use crate::core::table::LockIdx;
use crate::core::{MonoUs, Refusal, Reply, WaiterId};

/// Whether one of several locks is available to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The lock can be granted if the others can.
    Available,
    /// The request was granted before, with this reply.
    Repeats(Reply),
    /// The lock cannot be granted now. `quarantined` means that no holder is known.
    Busy {
        quarantined: bool,
    },
    Refused(Refusal),
}

/// A bundle that is being created, after its first member was queued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewBundle {
    /// The first member.
    pub(crate) first_wait: WaiterId,
    /// The ticket of all members.
    pub(crate) ticket: u64,
    pub(crate) since: MonoUs,
}

/// The members of a bundle, each with its lock, in the order of the call's keys.
pub(in crate::core) type Members = SmallVec<[(LockIdx, WaiterId); 4]>;

/// A call that waits for several locks, or whose grant is not answered yet.
struct Bundle {
    members: Members,
    /// The unavailable lock of the last try; `None` before the first try.
    blocked_at: Option<LockIdx>,
    /// Whether the bundle is in the list of bundles to try.
    is_due: bool,
    /// Whether the bundle was granted and its client answered.
    is_answered: bool,
}

/// All bundles, keyed by the id of their first member. The driver finds the waiting client by this id.
#[derive(Default)]
pub(in crate::core) struct Bundles {
    by_first_wait: HashMap<WaiterId, Bundle>,
    /// Bundles to try, in the order in which they became due.
    due: VecDeque<WaiterId>,
    /// The bundle being tried.
    tried: Option<WaiterId>,
    /// Locks whose queues are not served until the pending tries are over.
    stopped: Vec<LockIdx>,
    /// While a call releases several locks: the free locks that are not announced yet.
    withheld: Option<Vec<LockIdx>>,
}

impl Bundles {
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.by_first_wait.is_empty()
    }

    pub(in crate::core) fn len(&self) -> usize {
        self.by_first_wait.len()
    }

    /// Adds a member to a bundle. The first member is its own `first_wait`.
    pub(in crate::core) fn insert(&mut self, first_wait: WaiterId, lock: LockIdx, member: WaiterId) {
        let bundle = self.by_first_wait.entry(first_wait);
        bundle
            .or_insert_with(|| Bundle {
                members: SmallVec::new(),
                blocked_at: None,
                is_due: false,
                is_answered: false,
            })
            .members
            .push((lock, member));
    }

    /// Removes a member that has ended.
    pub(in crate::core) fn remove(&mut self, first_wait: WaiterId, member: WaiterId) {
        let Some(bundle) = self.by_first_wait.get_mut(&first_wait) else { return };
        bundle.members.retain(|(_, id)| *id != member);
        let is_due = bundle.is_due;
        if bundle.members.is_empty() {
            self.by_first_wait.remove(&first_wait);
            if is_due {
                self.due.retain(|due| *due != first_wait);
            }
        }
    }

    /// The remaining members of a bundle; empty if the bundle does not exist.
    pub(in crate::core) fn members(&self, first_wait: WaiterId) -> &[(LockIdx, WaiterId)] {
        self.by_first_wait.get(&first_wait).map_or(&[], |bundle| &bundle.members)
    }

    /// Records that the client was answered. From now on, the end of one member does not end the others,
    /// unless the answer was lost.
    pub(in crate::core) fn answered(&mut self, first_wait: WaiterId) {
        if let Some(bundle) = self.by_first_wait.get_mut(&first_wait) {
            bundle.is_answered = true;
        }
    }

    /// Whether the client was answered.
    pub(in crate::core) fn is_answered(&self, first_wait: WaiterId) -> bool {
        self.by_first_wait.get(&first_wait).is_some_and(|bundle| bundle.is_answered)
    }

    /// Whether a grantable member at this lock makes its bundle due. False while a different lock is known to
    /// be unavailable.
    pub(in crate::core) fn may_be_due(&self, first_wait: WaiterId, lock: LockIdx) -> bool {
        let is_blocked = |bundle: &Bundle| bundle.blocked_at.is_some_and(|at| at != lock);
        self.tried == Some(first_wait)
            || self.by_first_wait.get(&first_wait).is_some_and(|bundle| !is_blocked(bundle))
    }

    /// Makes the bundle due. To keep the order of arrival, the queue of this lock is not served until the
    /// bundle has been tried.
    pub(in crate::core) fn is_due(&mut self, first_wait: WaiterId, lock: LockIdx) {
        if self.tried != Some(first_wait) {
            if let Some(bundle) = self.by_first_wait.get_mut(&first_wait).filter(|bundle| !bundle.is_due) {
                bundle.is_due = true;
                self.due.push_back(first_wait);
            }
        }
        if !self.stopped.contains(&lock) {
            self.stopped.push(lock);
        }
    }

    /// Whether the queue of this lock is stopped until all due bundles have been tried.
    #[inline]
    pub(in crate::core) fn is_stopped(&self, lock: LockIdx) -> bool {
        let is_trying = self.tried.is_some() || self.has_due_bundle();
        is_trying && self.stopped.contains(&lock)
    }

    /// Whether this lock is reserved for a bundle that waits for it: one that is due or being tried. While a
    /// call releases several locks, every bundle that waits for the lock reserves it.
    pub(in crate::core) fn is_reserved(&self, lock: LockIdx, is_waited_for: impl FnOnce() -> bool) -> bool {
        let waits = |first_wait: &WaiterId| self.members(*first_wait).iter().any(|(of, _)| *of == lock);
        self.due.iter().chain(&self.tried).any(waits) || (self.withheld.is_some() && is_waited_for())
    }

    /// Starts to withhold announcements of free locks that bundles wait for.
    pub(in crate::core) fn withhold(&mut self) {
        self.withheld = Some(Vec::new());
    }

    /// Records a free lock whose announcement is withheld.
    pub(in crate::core) fn note_withheld(&mut self, lock: LockIdx) {
        if let Some(withheld) = &mut self.withheld {
            withheld.push(lock);
        }
    }

    /// Stops withholding announcements. Returns the locks that are still to be announced.
    pub(in crate::core) fn stop_withholding(&mut self) -> Vec<LockIdx> {
        self.withheld.take().unwrap_or_default()
    }

    pub(in crate::core) fn has_due_bundle(&self) -> bool {
        !self.due.is_empty()
    }

    /// Starts the try of the first due bundle.
    pub(in crate::core) fn next_due(&mut self) -> Option<WaiterId> {
        let first_wait = self.due.pop_front()?;
        if let Some(bundle) = self.by_first_wait.get_mut(&first_wait) {
            bundle.is_due = false;
        }
        self.tried = Some(first_wait);
        Some(first_wait)
    }

    /// Ends the try of a bundle. `blocked_at` is the unavailable lock, if the try failed. Once no bundle is
    /// due, returns the locks whose queues must now be served, or whose announcements are still missing.
    pub(in crate::core) fn end_try(
        &mut self,
        blocked_at: Option<LockIdx>,
        unannounced: impl Fn(LockIdx) -> bool,
    ) -> Vec<LockIdx> {
        let bundle = self.tried.take().and_then(|first_wait| self.by_first_wait.get_mut(&first_wait));
        if let Some(bundle) = bundle {
            bundle.blocked_at = blocked_at;
            let unannounced = bundle.members.iter().map(|(lock, _)| *lock).filter(|lock| unannounced(*lock));
            let new: Vec<LockIdx> = unannounced.filter(|lock| !self.stopped.contains(lock)).collect();
            self.stopped.extend(new);
        }
        if self.has_due_bundle() {
            return Vec::new();
        }
        std::mem::take(&mut self.stopped)
    }

    /// Records the unavailable lock of a new bundle.
    pub(in crate::core) fn note_blocked(&mut self, first_wait: WaiterId, at: LockIdx) {
        if let Some(bundle) = self.by_first_wait.get_mut(&first_wait) {
            bundle.blocked_at = Some(at);
        }
    }

    /// Whether this bundle is known to be blocked at another lock.
    #[cfg(test)]
    pub(in crate::core) fn waits_elsewhere(&self, first_wait: WaiterId, lock: LockIdx) -> bool {
        self.by_first_wait
            .get(&first_wait)
            .is_some_and(|bundle| bundle.blocked_at.is_some_and(|at| at != lock))
    }

    /// Iterates over all members, with their bundles and locks.
    #[cfg(test)]
    pub(in crate::core) fn iter(&self) -> impl Iterator<Item = (WaiterId, LockIdx, WaiterId)> + '_ {
        self.by_first_wait.iter().flat_map(|(first_wait, bundle)| {
            bundle.members.iter().map(|(lock, id)| (*first_wait, *lock, *id))
        })
    }

    /// Fails if a due bundle does not exist.
    #[cfg(test)]
    pub(in crate::core) fn verify(&self) {
        use std::collections::BTreeSet;

        assert!(
            self.tried.is_none() && (self.has_due_bundle() || self.stopped.is_empty()),
            "a bundle is being tried"
        );
        let due = self.by_first_wait.iter().filter(|(_, bundle)| bundle.is_due);
        let due: BTreeSet<_> = due.map(|(first_wait, _)| *first_wait).collect();
        assert_eq!(due, self.due.iter().copied().collect(), "a due bundle does not exist");
    }
}
