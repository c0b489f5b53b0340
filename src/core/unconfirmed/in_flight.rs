// SPDX-License-Identifier: MIT

//! The grants of one lock whose delivery is not known yet.

use super::pending_grants::GrantEffect;
use crate::core::small_map::SmallMap;
use crate::core::{Mode, Owner, WaiterId, WallMs};

/// A grant in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) id: WaiterId,
    /// Effect of the grant on the hold.
    pub(super) effect: GrantEffect,
    /// End of the lease that the grant wrote.
    pub(super) written: WallMs,
    /// Whether a foreign write has set the lease since then.
    pub(super) lease_is_foreign: bool,
    /// Whether the client still waits for an acknowledgement by replicas. The delivery confirms the grant once they
    /// have acknowledged it.
    pub(super) awaits_replicas: bool,
    /// Mode of the hold to release if the grant is revoked; `None` if its hold was already released.
    pub(super) hold_mode: Option<Mode>,
}

/// A grant in flight whose hold is being released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) struct ReleasedGrant {
    pub(in crate::core) id: WaiterId,
    /// Whether the client is answered only once replicas have acknowledged the grant.
    pub(in crate::core) is_withheld: bool,
    /// Whether the releasing call named the grant.
    pub(in crate::core) is_named: bool,
}

/// Key of a grant: its owner, then a sequence number.
pub(super) type GrantKey = (Owner, u64);

/// A grant marked for revocation, with the mode of the hold to release, if any.
pub(super) type MarkedGrant = (WaiterId, Option<Mode>);

/// Grants in flight, with a counter.
#[derive(Default)]
pub(super) struct GrantsInFlight {
    grants: SmallMap<GrantKey, InFlight>,
    /// Number of grants whose clients still wait for an answer.
    unanswered: u32,
}

impl GrantsInFlight {
    pub(super) fn is_empty(&self) -> bool {
        self.grants.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.grants.len()
    }

    /// Whether any client still waits for its answer.
    pub(super) fn any_unanswered(&self) -> bool {
        self.unanswered > 0
    }

    #[inline(always)]
    pub(super) fn insert(&mut self, key: GrantKey, grant: InFlight) {
        self.unanswered += u32::from(grant.awaits_replicas);
        self.grants.insert(key, grant);
    }

    /// Iterates over all grants, by owner.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&GrantKey, &InFlight)> {
        self.grants.iter()
    }

    /// Iterates over the grants from this key on, by owner.
    pub(super) fn range_from(&self, key: GrantKey) -> impl Iterator<Item = (&GrantKey, &InFlight)> {
        self.grants.range_from(key)
    }

    /// Takes the first grant.
    pub(super) fn pop_first(&mut self) -> Option<InFlight> {
        let (_, grant) = self.grants.pop_first()?;
        Some(self.uncount(grant))
    }

    /// The grants to this owner, in order.
    pub(super) fn of_owner<'a>(
        &'a self,
        owner: &'a Owner,
    ) -> impl Iterator<Item = (&'a GrantKey, &'a InFlight)> {
        self.grants.range_from((owner.clone(), 0)).take_while(move |((of, _), _)| of == owner)
    }

    /// Records that a foreign write has set the leases.
    pub(super) fn leases_are_foreign(&mut self) {
        self.grants.values_mut().for_each(|grant| grant.lease_is_foreign = true);
    }

    /// Records that a grant was acknowledged. Only its delivery is left to confirm it.
    pub(super) fn acknowledged(&mut self, id: WaiterId, owner: &Owner) {
        let Some(grant) = self.get_mut(id, owner) else { return };
        let awaited_replicas = std::mem::take(&mut grant.awaits_replicas);
        self.unanswered -= u32::from(awaited_replicas);
    }

    /// The grants in flight to this owner whose revocation releases a hold of this mode.
    fn grants_with_hold<'a>(&'a self, owner: &'a Owner, mode: Mode) -> impl Iterator<Item = &'a InFlight> {
        self.of_owner(owner).map(|(_, grant)| grant).filter(move |grant| grant.hold_mode == Some(mode))
    }

    /// Whether the owner has a certain hold of this mode: one that belongs to no grant in flight. `holds` is
    /// the number of its holds of this mode.
    pub(super) fn is_certain(&self, owner: &Owner, mode: Mode, holds: i64) -> bool {
        i64::try_from(self.grants_with_hold(owner, mode).count())
            .is_ok_and(|grants_with_hold| grants_with_hold < holds)
    }

    /// Chooses the grant whose hold a release ends, for an owner with this number of holds. A named grant
    /// comes first. Otherwise a certain hold is released, which belongs to no grant. Without a certain hold,
    /// the choice is the first grant whose client may know of it, or else the first grant.
    pub(super) fn grant_to_release(
        &self,
        owner: &Owner,
        mode: Mode,
        holds: i64,
        named: Option<WaiterId>,
    ) -> Option<ReleasedGrant> {
        let is_named = |grant: &&InFlight| Some(grant.id) == named;
        // `min_by_key` returns the first of equal keys.
        let first_told = || self.grants_with_hold(owner, mode).min_by_key(|grant| grant.awaits_replicas);
        let uncertain = || first_told().filter(|_| !self.is_certain(owner, mode, holds));
        let grant = self.grants_with_hold(owner, mode).find(is_named).or_else(uncertain)?;
        Some(ReleasedGrant { id: grant.id, is_withheld: grant.awaits_replicas, is_named: is_named(&grant) })
    }

    pub(super) fn get_mut(&mut self, id: WaiterId, owner: &Owner) -> Option<&mut InFlight> {
        let key = self.of_owner(owner).find(|(_, grant)| grant.id == id)?.0.clone();
        self.grants.get_mut(&key)
    }

    #[inline(always)]
    pub(super) fn take(&mut self, id: WaiterId, owner: &Owner) -> Option<InFlight> {
        // Usually one grant is in flight, and comparing its id suffices.
        match self.grants.take_only(|grant| grant.id == id) {
            Some(grant) => Some(self.uncount(grant)),
            None => self.take_from_many(id, owner),
        }
    }

    fn take_from_many(&mut self, id: WaiterId, owner: &Owner) -> Option<InFlight> {
        let key = self.of_owner(owner).find(|(_, grant)| grant.id == id)?.0.clone();
        self.take_at(&key)
    }

    pub(super) fn take_at(&mut self, key: &GrantKey) -> Option<InFlight> {
        let grant = self.grants.remove(key)?;
        Some(self.uncount(grant))
    }

    /// Adjusts the counter for a grant that is no longer in flight.
    fn uncount(&mut self, grant: InFlight) -> InFlight {
        self.unanswered -= u32::from(grant.awaits_replicas);
        grant
    }

    /// Fails if the counter disagrees with the grants.
    #[cfg(test)]
    pub(super) fn verify(&self) {
        let unanswered = self.grants.iter().filter(|(_, grant)| grant.awaits_replicas).count();
        assert_eq!(self.unanswered as usize, unanswered, "the waiting grants are miscounted");
    }
}
