// SPDX-License-Identifier: MIT

//! Grants whose holds have ended, and which are voided in portions.
//!
//! A foreign `DEL` can end tens of thousands of holds at once. Voiding their grants in one step would stall
//! the server. So they are first set aside here, and each step of the lock voids a portion. Grants in this
//! set are never mistaken for grants of a later hold.

use super::in_flight::{GrantKey, GrantsInFlight, InFlight, MarkedGrant};
use crate::core::{Owner, WaiterId};
use std::collections::BTreeMap;

/// Grants of one lock whose holds have ended, in batches that ended together.
#[derive(Default)]
pub(super) struct EndedGrants {
    batches: Vec<EndedBatch>,
}

/// Voiding that takes several steps. Boxed, as every lock with a wait has room for it, and few ever need it.
#[derive(Default)]
pub(super) struct Voiding {
    /// Grants whose holds have ended, and which are still to be voided.
    pub(super) ended: EndedGrants,
    /// The first grant in flight that the last examination for all owners has left. The next one continues there.
    pub(super) examine_from: Option<GrantKey>,
}

/// Grants whose holds ended together.
#[derive(Default)]
pub(super) struct EndedBatch {
    /// Grants that were in flight.
    pub(super) in_flight: GrantsInFlight,
    /// Grants that were marked for revocation.
    pub(super) marked: BTreeMap<GrantKey, MarkedGrant>,
}

/// A grant whose hold has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndedGrant {
    pub(super) id: WaiterId,
    /// Whether its client still waits for an acknowledgement by replicas.
    pub(super) awaits_replicas: bool,
}

impl EndedGrants {
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn push(&mut self, batch: EndedBatch) {
        if !batch.is_empty() {
            self.batches.push(batch);
        }
    }

    /// Takes the next grant.
    pub(super) fn pop(&mut self) -> Option<EndedGrant> {
        let batch = self.batches.first_mut()?;
        let in_flight = batch.in_flight.pop_first();
        let next = in_flight
            .map(EndedGrant::unconfirmed)
            .or_else(|| batch.marked.pop_first().map(|(_, (id, _))| EndedGrant::marked(id)));
        self.drop_empty();
        next
    }

    /// Takes this grant to this owner, if it is here.
    pub(super) fn take(&mut self, id: WaiterId, owner: &Owner) -> Option<EndedGrant> {
        let taken = self.batches.iter_mut().find_map(|batch| batch.take(id, owner));
        self.drop_empty();
        taken
    }

    /// Whether this grant to this owner is here.
    pub(super) fn contains(&self, id: WaiterId, owner: &Owner) -> bool {
        self.batches.iter().any(|batch| batch.key_of(id, owner).is_some())
    }

    fn drop_empty(&mut self) {
        self.batches.retain(|batch| !batch.is_empty());
    }

    /// The grants that were in flight, and those that were marked.
    #[cfg(test)]
    pub(super) fn ids(&self) -> (Vec<WaiterId>, Vec<WaiterId>) {
        let in_flight = self.batches.iter().flat_map(|batch| batch.in_flight.iter());
        let marked = self.batches.iter().flat_map(|batch| batch.marked.values());
        (in_flight.map(|(_, grant)| grant.id).collect(), marked.map(|(id, _)| *id).collect())
    }
}

impl EndedGrant {
    fn unconfirmed(grant: InFlight) -> EndedGrant {
        EndedGrant { id: grant.id, awaits_replicas: grant.awaits_replicas }
    }

    fn marked(id: WaiterId) -> EndedGrant {
        EndedGrant { id, awaits_replicas: false }
    }

    /// Takes the grant with this key, whose hold has ended, from the grants in flight or the marked ones.
    pub(super) fn take(
        in_flight: &mut GrantsInFlight,
        marked: &mut BTreeMap<GrantKey, MarkedGrant>,
        key: &GrantKey,
    ) -> Option<EndedGrant> {
        let taken = in_flight.take_at(key).map(EndedGrant::unconfirmed);
        taken.or_else(|| marked.remove(key).map(|(id, _)| EndedGrant::marked(id)))
    }
}

impl EndedBatch {
    fn is_empty(&self) -> bool {
        self.in_flight.is_empty() && self.marked.is_empty()
    }

    fn key_of(&self, id: WaiterId, owner: &Owner) -> Option<GrantKey> {
        let in_flight = self.in_flight.of_owner(owner).map(|(key, grant)| (key, grant.id));
        let marked = self.marked.range((owner.clone(), 0)..).take_while(|((of, _), _)| of == owner);
        let mut all = in_flight.chain(marked.map(|(key, (id, _))| (key, *id)));
        all.find(|(_, of_key)| *of_key == id).map(|(key, _)| key.clone())
    }

    fn take(&mut self, id: WaiterId, owner: &Owner) -> Option<EndedGrant> {
        let key = self.key_of(id, owner)?;
        EndedGrant::take(&mut self.in_flight, &mut self.marked, &key)
    }
}
