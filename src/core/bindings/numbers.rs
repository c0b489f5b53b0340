// SPDX-License-Identifier: MIT

//! Bindings of session-bound holds, by number.

use super::binding::{Binding, BoundNumber};
use super::indexes::BoundHold;
use super::Bindings;
use crate::core::lease::Lease;
use crate::core::sessions::{Loss, LossReason, SessionKey};
use crate::core::table::LockIdx;
use crate::core::{Hold, Mode, MonoUs, Now, Owner, WallMs};

impl Bindings {
    /// Binds a hold to a number. `held_since` is the time of the grant if the hold is the owner's first.
    pub(in crate::core) fn bind_number(
        &mut self,
        lock: LockIdx,
        owner: &Owner,
        number: BoundNumber,
        held_since: Option<MonoUs>,
        lease: Lease,
        now: Now,
    ) {
        let bindings = &mut self.by_lock.get_or_default(lock).bindings;
        let new = || Binding::new(lease, held_since);
        let Some(binding) = bindings.get_or_insert_with(owner, new) else {
            return defect!("a new binding is missing");
        };
        let before = binding.due();
        binding.bind_number(number, lease, now);
        let after = binding.due();
        self.renewals.plan(lock, owner, before, after);
    }

    /// Unbinds the hold of a number.
    pub(in crate::core) fn unbind_number(
        &mut self,
        lock: LockIdx,
        owner: &Owner,
        session: SessionKey,
        n: u64,
        now: MonoUs,
    ) {
        let Some(binding) = self.binding(lock, owner) else { return };
        let before = binding.due();
        if !binding.unbind_number(session, n) {
            return;
        }
        let (after, is_idle) = (binding.due(), binding.is_idle(now));
        self.renewals.plan(lock, owner, before, after);
        if is_idle {
            self.take(lock, owner);
        }
    }

    /// Starts the renewal of a number's lease. It ends at `until`, if given.
    pub(in crate::core) fn watch_number(
        &mut self,
        lock: LockIdx,
        owner: &Owner,
        (session, n): (SessionKey, u64),
        until: Option<MonoUs>,
        now: Now,
    ) {
        self.reschedule(lock, owner, |binding| binding.watch_number(session, n, until, now));
    }

    /// Stops renewing numbers whose holds have reached their maximum age, and reports them as lost (R9). Their
    /// leases run out.
    pub(super) fn lose_overaged(&mut self, lock: LockIdx, owner: &Owner, now: MonoUs) {
        let Some(binding) = self.binding(lock, owner) else { return };
        let (before, lease_end) = (binding.due(), binding.lease_end());
        let mut lost = Vec::new();
        while let Some(number) = binding.take_overaged(now) {
            lost.push(number);
        }
        if lost.is_empty() {
            return;
        }
        let (after, hold) = (binding.due(), (lock, owner.clone()));
        self.renewals.plan(hold.0, &hold.1, before, after);
        let of_age = |number| Loss { why: Some(LossReason::Max), ..loss(number, &hold, lease_end) };
        self.losses.extend(lost.into_iter().map(of_age));
        self.drop_if_idle(&hold, now);
    }

    /// Records that the session of a number has ended. The next step of the lock releases the hold.
    pub(in crate::core) fn end_number(&mut self, lock: LockIdx, owner: &Owner, session: SessionKey, n: u64) {
        self.reschedule(lock, owner, |binding| binding.end_number(session, n));
        if let Some(bound) = self.by_lock.get_mut(lock).filter(|bound| bound.bindings.get(owner).is_some()) {
            self.ended_owners += usize::from(bound.ended.get(owner).is_none());
            bound.ended.insert(owner.clone(), ());
        }
    }

    /// Removes and returns the next number whose session has ended, of the owner `of` or of any owner.
    pub(in crate::core) fn take_ended_number(
        &mut self,
        lock: LockIdx,
        of: Option<&Owner>,
        now: MonoUs,
    ) -> Option<(Owner, BoundNumber)> {
        if self.suspended {
            return None;
        }
        loop {
            let bound = self.by_lock.get_mut(lock).filter(|bound| !bound.ended.is_empty())?;
            let owner = match of {
                Some(owner) => bound.ended.get(owner).map(|()| owner.clone())?,
                None => bound.ended.keys().next().cloned()?,
            };
            let number = bound.bindings.get_mut(&owner).and_then(Binding::take_ended_number);
            let Some(number) = number else {
                self.ended_owners -= usize::from(bound.ended.remove(&owner).is_some());
                self.drop_if_idle(&(lock, owner), now);
                continue;
            };
            return Some((owner, number));
        }
    }

    /// Whether any hold must be released because a session is over.
    #[inline(always)]
    pub(in crate::core) fn any_ended_numbers(&self) -> bool {
        self.ended_owners > 0
    }

    /// Returns the number of owners with holds to release because their sessions have ended.
    pub(in crate::core) fn ended_len(&self, lock: LockIdx) -> usize {
        let bound = self.by_lock.get(lock).filter(|_| !self.suspended);
        bound.map_or(0, |bound| bound.ended.len())
    }

    /// Iterates over the locks with numbered holds, in no particular order.
    pub(in crate::core) fn numbered_locks(&self) -> impl Iterator<Item = LockIdx> + '_ {
        let is_numbered = |(_, binding): (_, &Binding)| !binding.numbers().is_empty();
        self.by_lock
            .iter()
            .filter(move |(_, bound)| bound.bindings.iter().any(is_numbered))
            .map(|(lock, _)| lock)
    }

    /// Whether any hold of this owner has a number.
    pub(in crate::core) fn has_numbers(&self, lock: LockIdx, owner: &Owner) -> bool {
        self.numbers(lock, owner).next().is_some()
    }

    /// Iterates over the numbers of an owner's holds.
    pub(in crate::core) fn numbers(
        &self,
        lock: LockIdx,
        owner: &Owner,
    ) -> impl Iterator<Item = &BoundNumber> {
        let binding = self.by_lock.get(lock).and_then(|bound| bound.bindings.get(owner));
        binding.into_iter().flat_map(Binding::numbers)
    }

    /// Returns how many of the owner's holds of this mode have a number.
    pub(in crate::core) fn count_numbers(&self, lock: LockIdx, owner: &Owner, mode: Mode) -> usize {
        self.numbers(lock, owner).filter(|number| number.mode == mode).count()
    }

    /// Whether the owner, with these present holds, has fewer holds than numbers.
    pub(in crate::core) fn has_excess(&self, lock: LockIdx, owner: &Owner, hold: &Hold) -> bool {
        let binding = self.by_lock.get(lock).and_then(|bound| bound.bindings.get(owner));
        binding.is_some_and(|binding| binding.has_excess(hold))
    }

    /// Marks the numbers in excess of the owner's present holds, `hold`, as lost.
    pub(in crate::core) fn lose_excess(&mut self, lock: LockIdx, owner: &Owner, hold: &Hold, now: MonoUs) {
        let Some(binding) = self.binding(lock, owner) else { return };
        let (before, lease_end) = (binding.due(), binding.lease_end());
        let mut lost = Vec::new();
        while let Some(number) = binding.take_excess(hold) {
            lost.push(number);
        }
        if lost.is_empty() {
            return;
        }
        let (after, hold) = (binding.due(), (lock, owner.clone()));
        self.renewals.plan(hold.0, &hold.1, before, after);
        self.losses.extend(lost.into_iter().map(|number| loss(number, &hold, lease_end)));
        self.drop_if_idle(&hold, now);
    }

    /// Returns the owners with numbered holds on this lock.
    pub(in crate::core) fn owners_with_numbers(&self, lock: LockIdx) -> Vec<Owner> {
        let bindings = self.by_lock.get(lock).into_iter().flat_map(|bound| bound.bindings.iter());
        let with_numbers = bindings.filter(|(_, binding)| !binding.numbers().is_empty());
        with_numbers.map(|(owner, _)| owner.clone()).collect()
    }

    /// Marks all numbers of an owner as lost, because its hold has ended.
    pub(super) fn lose_numbers(&mut self, hold: &BoundHold) {
        let Some(binding) = self.by_lock.get(hold.0).and_then(|bound| bound.bindings.get(&hold.1)) else {
            return;
        };
        let lease_end = binding.lease_end();
        self.losses.extend(binding.numbers().iter().map(|number| loss(*number, hold, lease_end)));
    }

    /// Takes the numbers whose holds ended without a call of their session.
    pub(in crate::core) fn take_losses(&mut self) -> Vec<Loss> {
        std::mem::take(&mut self.losses)
    }

    /// Whether the hold of any number ended without a call of its session.
    pub(in crate::core) fn any_losses(&self) -> bool {
        !self.losses.is_empty()
    }
}

fn loss(number: BoundNumber, hold: &BoundHold, lease_end: WallMs) -> Loss {
    Loss { session: number.session, n: number.n, hold: Some(hold.clone()), lease_end, why: None }
}
