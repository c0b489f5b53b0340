// SPDX-License-Identifier: MIT

//! Calls that wait for several locks at once: bundles. In the queue of each of its locks a bundle has a part, which is a wait as
//! any other and has the same ticket everywhere. The parts are granted together or not at all, and they leave together.
//!
//! The lock manager has one lock in hand at a time, and who holds the others is in their keys. So a step that could grant a part
//! makes the bundle *due*: its locks are opened one after the other ([`LockManager::try_part`](super::LockManager::try_part)).
//! If one of them is not to be had, the bundle remembers which. It is due again when that one is to be had, and no other
//! lock of it leads to another try.

use std::collections::VecDeque;

use foldhash::HashMap;
use smallvec::SmallVec;

use super::table::LockIdx;
use super::{MonoUs, Refusal, Reply, WaiterId};

/// Whether one of several locks is to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is, if the others are.
    May,
    /// The request was granted before, with this reply.
    Repeats(Reply),
    /// It is not, for now; `quarantined` if nobody is known to hold it.
    Busy {
        quarantined: bool,
    },
    Refused(Refusal),
}

/// A bundle that is being queued, from its first part on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewBundle {
    /// The first part.
    pub(crate) lead: WaiterId,
    /// The place of all parts, by arrival.
    pub(crate) ticket: u64,
    pub(crate) since: MonoUs,
}

/// The parts of a bundle, each with its lock, in the order of the call's keys.
pub(super) type PartsOf = SmallVec<[(LockIdx, WaiterId); 4]>;

/// A call that waits for several locks, or was granted them and was not answered yet.
struct Bundle {
    parts: PartsOf,
    /// The lock that was not to be had when it was tried last; `None` if it was not tried yet.
    blocked_at: Option<LockIdx>,
    /// It stands among those that are to be tried.
    is_due: bool,
    /// It was granted, and its client was answered.
    is_answered: bool,
}

/// All of them, by their leads: the first part of each, by whose number the whole is known to its client.
#[derive(Default)]
pub(super) struct Bundles {
    by_lead: HashMap<WaiterId, Bundle>,
    /// Those that are to be tried, in the order in which that was found.
    due: VecDeque<WaiterId>,
    /// The one that is tried.
    tried: Option<WaiterId>,
    /// Locks whose queues are not served any further until that is over.
    stopped: Vec<LockIdx>,
    /// As long as a call gives back several locks: those of which it is not announced yet that they are free.
    withheld: Option<Vec<LockIdx>>,
}

impl Bundles {
    pub(super) fn is_empty(&self) -> bool {
        self.by_lead.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.by_lead.len()
    }

    /// Adds a part to the bundle with this lead, which may be the part itself.
    pub(super) fn insert(&mut self, lead: WaiterId, lock: LockIdx, part: WaiterId) {
        let bundle = self.by_lead.entry(lead);
        bundle
            .or_insert_with(|| Bundle {
                parts: SmallVec::new(),
                blocked_at: None,
                is_due: false,
                is_answered: false,
            })
            .parts
            .push((lock, part));
    }

    /// A part is gone.
    pub(super) fn remove(&mut self, lead: WaiterId, part: WaiterId) {
        let Some(bundle) = self.by_lead.get_mut(&lead) else { return };
        bundle.parts.retain(|(_, id)| *id != part);
        let is_due = bundle.is_due;
        if bundle.parts.is_empty() {
            self.by_lead.remove(&lead);
            if is_due {
                self.due.retain(|due| *due != lead);
            }
        }
    }

    /// The parts of a bundle that are left; none if there is no such bundle.
    pub(super) fn parts(&self, lead: WaiterId) -> &[(LockIdx, WaiterId)] {
        self.by_lead.get(&lead).map_or(&[], |bundle| &bundle.parts)
    }

    /// The client of this bundle was answered that it was granted. From now on each part stands alone: what ends one of them does not
    /// end the others, unless the answer turns out to be lost.
    pub(super) fn answered(&mut self, lead: WaiterId) {
        if let Some(bundle) = self.by_lead.get_mut(&lead) {
            bundle.is_answered = true;
        }
    }

    /// True if that was said.
    pub(super) fn is_answered(&self, lead: WaiterId) -> bool {
        self.by_lead.get(&lead).is_some_and(|bundle| bundle.is_answered)
    }

    /// True if a part that could be granted at this lock makes its bundle due: unless another lock is known not to be had.
    pub(super) fn may_be_due(&self, lead: WaiterId, lock: LockIdx) -> bool {
        let is_blocked = |bundle: &Bundle| bundle.blocked_at.is_some_and(|at| at != lock);
        self.tried == Some(lead) || self.by_lead.get(&lead).is_some_and(|bundle| !is_blocked(bundle))
    }

    /// The bundle is due, and until it was tried the queue of this lock is not served any further: who came first, comes first.
    pub(super) fn is_due(&mut self, lead: WaiterId, lock: LockIdx) {
        if self.tried != Some(lead) {
            if let Some(bundle) = self.by_lead.get_mut(&lead).filter(|bundle| !bundle.is_due) {
                bundle.is_due = true;
                self.due.push_back(lead);
            }
        }
        if !self.stopped.contains(&lock) {
            self.stopped.push(lock);
        }
    }

    /// True if the queue of this lock is not served now, but when all that is due was tried.
    #[inline]
    pub(super) fn is_stopped(&self, lock: LockIdx) -> bool {
        let is_trying = self.tried.is_some() || self.any_due();
        is_trying && self.stopped.contains(&lock)
    }

    /// True if a bundle that is due, or tried, waits for this lock; or any does, as long as a call gives back several.
    pub(super) fn is_reserved(&self, lock: LockIdx, is_waited_for: impl FnOnce() -> bool) -> bool {
        let waits = |lead: &WaiterId| self.parts(*lead).iter().any(|(of, _)| *of == lock);
        self.due.iter().chain(&self.tried).any(waits) || (self.withheld.is_some() && is_waited_for())
    }

    /// From now on it is not announced of locks that bundles wait for that they are free.
    pub(super) fn withhold(&mut self) {
        self.withheld = Some(Vec::new());
    }

    /// This one is free, and that was not announced.
    pub(super) fn was_withheld(&mut self, lock: LockIdx) {
        if let Some(withheld) = &mut self.withheld {
            withheld.push(lock);
        }
    }

    /// Ends that. Returns which were not announced.
    pub(super) fn withhold_no_more(&mut self) -> Vec<LockIdx> {
        self.withheld.take().unwrap_or_default()
    }

    pub(super) fn any_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Begins to try the one that is due first.
    pub(super) fn next_due(&mut self) -> Option<WaiterId> {
        let lead = self.due.pop_front()?;
        if let Some(bundle) = self.by_lead.get_mut(&lead) {
            bundle.is_due = false;
        }
        self.tried = Some(lead);
        Some(lead)
    }

    /// The try is over. If it failed, that was because this lock was not to be had. Returns the locks whose queues are to be served
    /// further, or of which it is still to be announced that they are free; not as long as there is more to try.
    pub(super) fn was_tried(
        &mut self,
        blocked_at: Option<LockIdx>,
        unannounced: impl Fn(LockIdx) -> bool,
    ) -> Vec<LockIdx> {
        let bundle = self.tried.take().and_then(|lead| self.by_lead.get_mut(&lead));
        if let Some(bundle) = bundle {
            bundle.blocked_at = blocked_at;
            let unannounced = bundle.parts.iter().map(|(lock, _)| *lock).filter(|lock| unannounced(*lock));
            let new: Vec<LockIdx> = unannounced.filter(|lock| !self.stopped.contains(lock)).collect();
            self.stopped.extend(new);
        }
        if self.any_due() {
            return Vec::new();
        }
        std::mem::take(&mut self.stopped)
    }

    /// This lock of a new bundle was not to be had.
    pub(super) fn begin_blocked(&mut self, lead: WaiterId, at: LockIdx) {
        if let Some(bundle) = self.by_lead.get_mut(&lead) {
            bundle.blocked_at = Some(at);
        }
    }

    /// True if it is known that this bundle waits for another lock than this one.
    #[cfg(test)]
    pub(super) fn waits_elsewhere(&self, lead: WaiterId, lock: LockIdx) -> bool {
        self.by_lead.get(&lead).is_some_and(|bundle| bundle.blocked_at.is_some_and(|at| at != lock))
    }

    /// All parts, with their leads and locks.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (WaiterId, LockIdx, WaiterId)> + '_ {
        self.by_lead
            .iter()
            .flat_map(|(lead, bundle)| bundle.parts.iter().map(|(lock, id)| (*lead, *lock, *id)))
    }

    /// Fails if a due bundle does not exist.
    #[cfg(test)]
    pub(super) fn verify(&self) {
        use std::collections::BTreeSet;

        assert!(
            self.tried.is_none() && (self.any_due() || self.stopped.is_empty()),
            "a bundle is being tried"
        );
        let due = self.by_lead.iter().filter(|(_, bundle)| bundle.is_due);
        let due: BTreeSet<_> = due.map(|(lead, _)| *lead).collect();
        assert_eq!(due, self.due.iter().copied().collect(), "a due bundle does not exist");
    }
}
