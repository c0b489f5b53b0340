// SPDX-License-Identifier: MIT

//! All waits, indexed by number, by owner and by request.

use std::collections::hash_map::Entry;

use foldhash::HashMap;
use smallvec::{smallvec, SmallVec};

use super::bundles::Bundles;
use super::owner_waits::OwnerWaits;
use super::position::Position;
use super::wait::{NewWait, QueuePlace, Wait, WaitState};
use crate::core::bindings::binding::TakenOver;
use crate::core::spare::free_spare;
use crate::core::table::LockIdx;
use crate::core::{Bind, MonoUs, Owner, RequestId, WaiterId};

/// All waits.
#[derive(Default)]
pub(in crate::core) struct Waiters {
    by_id: HashMap<WaiterId, Wait>,
    /// The queued waits of each owner.
    by_owner: HashMap<Owner, OwnerWaits>,
    /// The latest wait of each request that has an id. Earlier ones are superseded.
    by_request: HashMap<(LockIdx, RequestId), WaiterId>,
    /// Number of queued calls.
    queued: usize,
    /// Number of queued members other than the first of each bundle.
    later_members: usize,
    /// Bundles of waits that are granted together.
    pub(in crate::core) bundles: Bundles,
    last_id: u64,
}

/// Waits of an owner that starts or stops waiting for several locks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::core) struct Crossing {
    pub(in crate::core) begin: SmallVec<[WaiterId; 2]>,
    pub(in crate::core) cease: SmallVec<[WaiterId; 2]>,
}

impl Crossing {
    /// Whether no wait changes.
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.begin.is_empty() && self.cease.is_empty()
    }
}

/// A wait that has left the queue.
pub(in crate::core) struct Unqueued {
    pub(in crate::core) place: QueuePlace,
    pub(in crate::core) crossing: Crossing,
    /// Whether its owner has other queued waits, for this lock or another one.
    pub(in crate::core) waits_more: bool,
    /// Duration of the wait.
    pub(in crate::core) waited: MonoUs,
}

impl Waiters {
    /// The number of the next wait. It also serves as the ticket.
    pub(in crate::core) fn next_id(&mut self) -> WaiterId {
        self.last_id += 1;
        WaiterId(self.last_id)
    }

    pub(in crate::core) fn get(&self, id: WaiterId) -> Option<&Wait> {
        self.by_id.get(&id)
    }

    /// Records that a renewal has taken over the connection dependencies of a grant.
    pub(in crate::core) fn take_over(&mut self, id: WaiterId, by: Bind) {
        if let Some(wait) = self.by_id.get_mut(&id) {
            wait.taken_over.add(by);
        }
    }

    /// A queued wait; `None` if it is unknown or decided.
    pub(in crate::core) fn queued(&self, id: WaiterId) -> Option<&Wait> {
        self.get(id).filter(|wait| wait.state == WaitState::Queued)
    }

    /// Adds a queued wait.
    // A wait is large, so it is built in place.
    #[inline(always)]
    pub(in crate::core) fn queue(&mut self, id: WaiterId, new: NewWait) -> Crossing {
        let NewWait { lock, request, deadline, position, since, first_wait } = new;
        if let Some(first_wait) = first_wait {
            self.bundles.insert(first_wait, lock, id);
        }
        if let Some(request) = &request.id {
            self.by_request.insert((lock, request.clone()), id);
        }
        *self.counter(first_wait.is_none_or(|first_wait| first_wait == id)) += 1;
        let crossing = match self.by_owner.entry(request.owner.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(OwnerWaits::one(lock, id));
                Crossing::default()
            }
            Entry::Occupied(mut entry) => {
                let waits = entry.get_mut();
                let crossed = waits.span_locks();
                waits.insert(lock, id);
                let begin = match (crossed, waits.span_locks()) {
                    (false, true) => waits.iter().map(|(_, id)| id).collect(),
                    (true, _) => smallvec![id],
                    (false, false) => SmallVec::new(),
                };
                Crossing { begin, cease: SmallVec::new() }
            }
        };
        self.by_id.insert(
            id,
            Wait {
                lock,
                request,
                since,
                deadline,
                position,
                state: WaitState::Queued,
                begins: false,
                taken_over: TakenOver::default(),
                first_wait,
            },
        );
        crossing
    }

    /// Records the new position of a wait.
    pub(in crate::core) fn set_position(&mut self, id: WaiterId, position: Position) {
        if let Some(wait) = self.by_id.get_mut(&id) {
            wait.position = position;
        }
    }

    /// Marks a wait as granted, which ends its time in the queue.
    #[inline(always)]
    pub(in crate::core) fn grant(&mut self, id: WaiterId, now: MonoUs, begins: bool) -> Option<Unqueued> {
        let wait = self.by_id.get_mut(&id)?;
        let waited = now.saturating_sub(wait.since);
        (wait.state, wait.since, wait.begins) = (WaitState::Granted, now, begins);
        let (lock, owner, counts_as_call) = (wait.lock, wait.request.owner.clone(), wait.counts_as_call(id));
        let place = wait.place();
        let (crossing, waits_more) = self.unqueue(id, counts_as_call, lock, owner);
        Some(Unqueued { place, crossing, waits_more, waited })
    }

    /// The wait by which the client knows its call: the first wait of a bundle, or the wait itself.
    pub(in crate::core) fn first_wait_of(&self, id: WaiterId) -> WaiterId {
        self.get(id).and_then(Wait::first_wait).unwrap_or(id)
    }

    /// The waits that are granted and end together with this one: all members of its bundle, or this wait
    /// only.
    pub(in crate::core) fn together(&self, id: WaiterId) -> SmallVec<[WaiterId; 4]> {
        if self.bundles.is_empty() {
            return smallvec![id];
        }
        match self.bundles.members(self.first_wait_of(id)) {
            [] => smallvec![id],
            members => members.iter().map(|(_, member)| *member).collect(),
        }
    }

    /// Marks a grant for revocation, because it did not reach its client. Returns whether such a grant exists.
    pub(in crate::core) fn mark_for_revocation(&mut self, id: WaiterId) -> bool {
        let Some(wait) = self.by_id.get_mut(&id).filter(|wait| wait.state == WaitState::Granted) else {
            return false;
        };
        wait.state = WaitState::Marked;
        true
    }

    /// Forgets a granted wait that has no request id and is in no bundle.
    pub(in crate::core) fn forget_plain(&mut self, id: WaiterId) {
        self.by_id.remove(&id);
        free_spare(&mut self.by_id);
    }

    /// Forgets a wait.
    pub(in crate::core) fn remove(&mut self, id: WaiterId) -> Option<(Wait, Crossing)> {
        let wait = self.by_id.remove(&id)?;
        free_spare(&mut self.by_id);
        if let Some(first_wait) = wait.first_wait {
            self.bundles.remove(first_wait, id);
        }
        if let Some(request) = &wait.request.id {
            if let Entry::Occupied(entry) = self.by_request.entry((wait.lock, request.clone())) {
                if *entry.get() == id {
                    entry.remove();
                }
            }
            free_spare(&mut self.by_request);
        }
        let crossing = match wait.state {
            WaitState::Queued => {
                self.unqueue(id, wait.counts_as_call(id), wait.lock, wait.request.owner.clone()).0
            }
            WaitState::Granted | WaitState::Marked => Crossing::default(),
        };
        Some((wait, crossing))
    }

    /// The counter of queued calls if `calls`, or else of later members.
    fn counter(&mut self, calls: bool) -> &mut usize {
        if calls {
            &mut self.queued
        } else {
            &mut self.later_members
        }
    }

    /// Removes a wait from the index by owner. Also returns whether its owner has other queued waits.
    #[inline(always)]
    fn unqueue(
        &mut self,
        id: WaiterId,
        counts_as_call: bool,
        lock: LockIdx,
        owner: Owner,
    ) -> (Crossing, bool) {
        *self.counter(counts_as_call) -= 1;
        let mut crossing = Crossing::default();
        let Entry::Occupied(mut entry) = self.by_owner.entry(owner) else { return (crossing, false) };
        let waits = entry.get_mut();
        let crossed = waits.span_locks();
        waits.remove(lock, id);
        if crossed && !waits.span_locks() {
            crossing.cease = waits.iter().map(|(_, id)| id).collect();
        }
        let waits_more = !waits.is_empty();
        if !waits_more {
            entry.remove();
            free_spare(&mut self.by_owner);
        }
        (crossing, waits_more)
    }

    /// The wait of a request for a lock, in any state.
    pub(in crate::core) fn of_request(&self, lock: LockIdx, id: &RequestId) -> Option<(WaiterId, &Wait)> {
        if self.by_request.is_empty() {
            return None;
        }
        let id = *self.by_request.get(&(lock, id.clone()))?;
        Some((id, self.by_id.get(&id)?))
    }

    /// The queued waits of an owner for all locks.
    pub(in crate::core) fn of_owner(&self, owner: &[u8]) -> impl Iterator<Item = WaiterId> + '_ {
        self.by_owner.get(owner).into_iter().flat_map(OwnerWaits::iter).map(|(_, id)| id)
    }

    /// Whether the owner of this wait also waits in another call.
    pub(in crate::core) fn waits_elsewhere(&self, id: WaiterId) -> bool {
        let first_wait = self.first_wait_of(id);
        let owner = self.get(id).map(|wait| wait.request.owner.as_bytes());
        owner.is_some_and(|owner| self.of_owner(owner).any(|other| self.first_wait_of(other) != first_wait))
    }

    /// The queued waits of an owner for one lock, in order of arrival.
    pub(in crate::core) fn of_owner_at(
        &self,
        lock: LockIdx,
        owner: &[u8],
    ) -> impl Iterator<Item = WaiterId> + '_ {
        self.by_owner.get(owner).into_iter().flat_map(move |waits| waits.at(lock))
    }

    /// Whether this owner has a queued wait.
    #[inline(always)]
    pub(in crate::core) fn waits(&self, owner: &[u8]) -> bool {
        self.by_owner.contains_key(owner)
    }

    /// Iterates over all owners with queued waits, in no particular order.
    pub(in crate::core) fn owners(&self) -> impl Iterator<Item = &Owner> {
        self.by_owner.keys()
    }

    /// All queued waits, in order of arrival.
    pub(in crate::core) fn all_queued(&self) -> Vec<WaiterId> {
        let queued = self.by_id.iter().filter(|(_, wait)| wait.state == WaitState::Queued);
        let mut queued: Vec<WaiterId> = queued.map(|(id, _)| *id).collect();
        queued.sort_unstable();
        queued
    }

    /// Number of queued calls. A call for several locks counts as one.
    pub(in crate::core) fn queued_len(&self) -> usize {
        self.queued
    }

    /// Number of owners with queued waits, and number of requests that have a wait.
    pub(in crate::core) fn index_lens(&self) -> (usize, usize) {
        (self.by_owner.len(), self.by_request.len())
    }

    /// Number of grants that are not confirmed yet.
    pub(in crate::core) fn granted_len(&self) -> usize {
        self.by_id.len() - self.queued - self.later_members
    }

    /// Iterates over all waits with their numbers.
    #[cfg(test)]
    pub(in crate::core) fn iter(&self) -> impl Iterator<Item = (WaiterId, &Wait)> {
        self.by_id.iter().map(|(id, wait)| (*id, wait))
    }

    /// Whether the wait's owner also waits for another lock.
    #[cfg(test)]
    pub(in crate::core) fn crosses(&self, id: WaiterId) -> bool {
        self.queued(id)
            .is_some_and(|wait| self.by_owner.get(&wait.request.owner).is_some_and(OwnerWaits::span_locks))
    }

    /// Fails if an index disagrees with the waits.
    #[cfg(test)]
    pub(in crate::core) fn verify(&self) {
        self.bundles.verify();
        let mut members: Vec<_> = self.bundles.iter().collect();
        let of_waits = self.by_id.iter().filter_map(|(id, wait)| Some((wait.first_wait?, wait.lock, *id)));
        let mut of_waits: Vec<_> = of_waits.collect();
        members.sort_unstable();
        of_waits.sort_unstable();
        assert_eq!(members, of_waits, "the members of the bundles differ");
        let queued = self.by_id.iter().filter(|(_, wait)| wait.state == WaitState::Queued);
        let mut of_owners: Vec<_> =
            queued.map(|(id, wait)| (wait.request.owner.as_bytes(), wait.lock, *id)).collect();
        assert_eq!(of_owners.len(), self.queued + self.later_members, "the queued waits are miscounted");
        of_owners.sort_unstable();
        let mut indexed = Vec::new();
        for (owner, waits) in &self.by_owner {
            assert!(!waits.is_empty() && waits.iter().is_sorted(), "waits of {owner:?}: {waits:?}");
            indexed.extend(waits.iter().map(|(lock, id)| (owner.as_bytes(), lock, id)));
        }
        indexed.sort_unstable();
        assert_eq!(of_owners, indexed, "the index by owner is wrong");
        for ((lock, request), id) in &self.by_request {
            let wait = self.by_id.get(id).unwrap_or_else(|| panic!("{id:?} is indexed, but does not wait"));
            assert!(
                wait.lock == *lock && wait.request.id.as_ref() == Some(request),
                "{id:?} has another request"
            );
        }
        for (id, wait) in self.by_id.iter().filter(|(_, wait)| wait.state == WaitState::Queued) {
            let Some(request) = &wait.request.id else { continue };
            let indexed = self.by_request.get(&(wait.lock, request.clone()));
            assert_eq!(indexed, Some(id), "a request waits twice, or is not indexed");
        }
    }
}
