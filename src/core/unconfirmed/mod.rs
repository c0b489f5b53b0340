// SPDX-License-Identifier: MIT

//! Grants whose delivery is not known yet, and the owners' holds apart from these grants.
//!
//! An owner may wait for one lock on several connections. A grant to one of them may be revoked long after
//! the others were answered. Then the count, lease and fencing token of the hold must be as if the revoked
//! grant had never been made. So the effects of each pending grant are stored separately until its outcome is
//! known.
//!
//! A grant that may be revoked never shortens a lease. Otherwise the hold could end by the shorter lease,
//! although the client with the longer lease never agreed to less. The shorter lease takes effect once the
//! grant has reached its client.

mod ended_grants;
mod in_flight;
pub(in crate::core) mod pending_grants;
mod void;

pub(in crate::core) use in_flight::ReleasedGrant;

use super::lease::SetLease;
use super::{Holders, Mode, Now, Owner, ReleaseScope, RequestId, Token, WaiterId, WallMs};
use ended_grants::Voiding;
use in_flight::{GrantKey, GrantsInFlight, InFlight, MarkedGrant};
use pending_grants::{GrantEffect, PendingGrants, SetToken};
use std::collections::{BTreeMap, BTreeSet};

/// A grant to a waiter.
pub(super) struct NewGrant<'a> {
    pub(super) id: WaiterId,
    pub(super) owner: &'a Owner,
    pub(super) mode: Mode,
    /// Whether replicas must acknowledge the grant before its client is answered.
    pub(super) awaits_replicas: bool,
    /// Effect of the grant on the hold.
    pub(super) effect: GrantEffect,
    /// The owner's hold before the grant, if it already held the lock.
    pub(super) before: Option<EarlierHold>,
    /// End of the lease that the grant wrote.
    pub(super) written: WallMs,
}

/// An owner's hold before a grant.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlierHold {
    /// End of the lease.
    pub(super) end: WallMs,
    pub(super) token: Option<Token>,
}

/// The lease after a grant has reached its client.
pub(super) struct Confirmed {
    /// End of the lease as last written.
    pub(super) written: WallMs,
    /// End of the lease as far as it is certain.
    pub(super) end: WallMs,
    /// Whether a different lease may have to be written.
    pub(super) changes_lease: bool,
}

/// The grants of one lock that may still be revoked. Each belongs to a hold of its owner, unless that hold
/// was released. Grants of ended holds are kept apart in `ended`: revoking one of them here could free a
/// newer hold.
#[derive(Default)]
pub(super) struct Unconfirmed {
    in_flight: GrantsInFlight,
    /// Grants marked for revocation: they did not reach their clients.
    marked: BTreeMap<GrantKey, MarkedGrant>,
    /// Sequence number for the next grant in these maps.
    sequence: u64,
    /// The pending grants of an owner, by owner. Missing while the owner's hold consists of its first grant alone.
    pending: BTreeMap<Owner, PendingGrants>,
    /// Owners with pending grants whose lease may have become certain.
    unresolved: BTreeSet<Owner>,
    /// Grants whose holds have ended and whose clients still wait.
    lost: Vec<WaiterId>,
    voiding: Option<Box<Voiding>>,
    /// Requests whose holds ended before their marked grants were revoked. Their records must be deleted.
    voided: Vec<RequestId>,
}

impl Unconfirmed {
    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
            && self.marked.is_empty()
            && self.pending.is_empty()
            && self.lost.is_empty()
            && !self.any_ended()
            && self.voided.is_empty()
    }

    /// Whether any client that still waits for its answer must be notified if its hold ends.
    pub(super) fn any_unanswered(&self) -> bool {
        self.in_flight.any_unanswered()
    }

    /// Whether any client still waits although its hold has ended.
    pub(super) fn any_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Takes the grants whose holds have ended and whose clients still wait.
    pub(super) fn take_lost(&mut self) -> Vec<WaiterId> {
        std::mem::take(&mut self.lost)
    }

    /// Whether the lock's next step has to resolve any grant.
    pub(super) fn has_work(&self) -> bool {
        self.may_end() > 0 || self.any_voided() || self.any_lost() || self.any_ended()
    }

    /// Maximum number of holds that end when the pending changes are applied.
    pub(super) fn may_end(&self) -> usize {
        self.marked.len() + self.unresolved.len()
    }

    /// The grants in flight to this owner, in order.
    pub(super) fn in_flight_to<'a>(&'a self, owner: &'a Owner) -> impl Iterator<Item = WaiterId> + 'a {
        self.in_flight.of_owner(owner).map(|(_, grant)| grant.id)
    }

    /// The grants in flight, by owner.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = WaiterId> + '_ {
        self.in_flight.iter().map(|(_, grant)| grant.id)
    }

    /// Number of holds of this mode that belong to grants in flight to this owner.
    pub(super) fn count_in_flight(&self, owner: &Owner, mode: Mode) -> usize {
        self.in_flight.of_owner(owner).filter(|(_, grant)| grant.hold_mode == Some(mode)).count()
    }

    /// Number of grants in flight or marked for revocation.
    pub(super) fn len(&self) -> usize {
        self.in_flight.len() + self.marked.len()
    }

    /// Whether any grant is in flight.
    pub(super) fn any_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Adds a grant to a waiter.
    pub(super) fn granted(&mut self, grant: NewGrant<'_>) {
        let NewGrant { id, owner, mode, awaits_replicas, effect, before, written } = grant;
        if let Some(EarlierHold { end, token }) = before {
            if self.pending_of(owner).is_none() {
                self.pending.insert(owner.clone(), PendingGrants::new(Some(end), token));
            }
            if let Some(pending) = self.pending.get_mut(owner) {
                pending.granted(id, effect, Some(end), written);
            }
        }
        self.sequence += 1;
        let grant =
            InFlight { id, effect, written, lease_is_foreign: false, awaits_replicas, hold_mode: Some(mode) };
        self.in_flight.insert((owner.clone(), self.sequence), grant);
    }

    /// Records that an irrevocable call has set the lease or the token of a hold. `lease` is the requested
    /// change of the lease, and the end that was written for it.
    pub(super) fn note_setting(
        &mut self,
        owner: &Owner,
        lease: Option<(SetLease, WallMs)>,
        token: Option<SetToken>,
    ) {
        if self.in_flight.is_empty() && self.pending.is_empty() {
            return;
        }
        let Some(pending) = self.pending_of(owner) else { return };
        if let Some((lease, written)) = lease {
            pending.note_lease(lease, written);
        }
        if let Some(SetToken { token, .. }) = token {
            pending.note_token(token);
        }
        self.unresolved.insert(owner.clone());
    }

    /// Records that a foreign write changed the key: the leases are now as the key has them.
    pub(super) fn leases_are_foreign(&mut self) {
        self.pending.values_mut().for_each(PendingGrants::lease_is_foreign);
        self.in_flight.leases_are_foreign();
    }

    /// Confirms a grant to this owner that has reached its client. `None` if the grant does not exist.
    pub(super) fn confirm(&mut self, id: WaiterId, owner: &Owner) -> Option<Confirmed> {
        let InFlight { written, .. } = self.in_flight.take(id, owner)?;
        let Some(pending) = self.pending.get_mut(owner) else {
            return Some(Confirmed { written, end: written, changes_lease: false });
        };
        pending.delivered(id);
        self.unresolved.insert(owner.clone());
        let (written, end) = pending.ends();
        Some(Confirmed { written, end, changes_lease: true })
    }

    /// Confirms a grant without consequences. Returns false, with nothing changed, if the grant may have
    /// consequences.
    pub(super) fn confirm_plain(&mut self, id: WaiterId, owner: &Owner) -> bool {
        self.pending.is_empty() && self.in_flight.take(id, owner).is_some()
    }

    /// Marks a grant to this owner for revocation: it did not reach its client.
    pub(super) fn mark_for_revocation(&mut self, id: WaiterId, owner: &Owner) {
        if let Some(InFlight { hold_mode, .. }) = self.in_flight.take(id, owner) {
            self.sequence += 1;
            self.marked.insert((owner.clone(), self.sequence), (id, hold_mode));
        }
    }

    /// Takes the next grant marked for revocation, of this owner or of any. Returns it with the mode of the
    /// hold to release.
    pub(super) fn take_marked(&mut self, owner: Option<&Owner>) -> Option<MarkedGrant> {
        match owner {
            None => self.marked.pop_first().map(|(_, marked)| marked),
            Some(owner) => {
                let (key, _) = self.marked.range((owner.clone(), 0)..).next()?;
                let key = Some(key).filter(|(of, _)| of == owner).cloned()?;
                self.marked.remove(&key)
            }
        }
    }

    /// The holds of the grants marked for revocation.
    pub(super) fn marked(&self) -> impl Iterator<Item = (&Owner, Mode)> {
        self.marked.iter().filter_map(|((owner, _), (_, hold_mode))| Some((owner, (*hold_mode)?)))
    }

    /// Whether the owner has a certain hold of this mode: one that belongs to no grant in flight. `holds` is
    /// the number of its holds of this mode.
    pub(super) fn is_certain(&self, owner: &Owner, mode: Mode, holds: i64) -> bool {
        self.in_flight.is_certain(owner, mode, holds)
    }

    /// Chooses the grant whose hold a release ends, for an owner with this number of holds. `None` if it ends
    /// a certain hold.
    pub(super) fn grant_to_release(
        &self,
        owner: &Owner,
        mode: Mode,
        holds: i64,
        named: Option<WaiterId>,
    ) -> Option<ReleasedGrant> {
        self.in_flight.grant_to_release(owner, mode, holds, named)
    }

    /// Records that the hold of a grant was released although the grant may still be revoked. A revocation
    /// then releases a hold of the mode `instead`, or none.
    pub(super) fn hold_released(&mut self, id: WaiterId, owner: &Owner, instead: Option<Mode>) {
        if let Some(grant) = self.in_flight.get_mut(id, owner) {
            grant.hold_mode = instead;
        }
    }

    /// Records that a grant was acknowledged. Its client may know of it from now on.
    pub(super) fn acknowledged(&mut self, id: WaiterId, owner: &Owner) {
        self.in_flight.acknowledged(id, owner);
    }

    /// Revokes a grant whose hold was released. Sets the remaining token.
    pub(super) fn revoked(&mut self, id: WaiterId, owner: &Owner, holders: &mut Holders) {
        let Some(pending) = self.pending.get_mut(owner) else { return };
        self.unresolved.insert(owner.clone());
        let owner = owner.as_bytes();
        let exclusive = holders.get(owner).is_some_and(|hold| hold.exclusive > 0);
        if let Some(token) = pending.revoked(id, exclusive) {
            holders.set_token(owner, token);
        }
    }

    /// Resolves the lease of `owner`, or of the next unresolved owner if `None`, once all its grants are
    /// confirmed or revoked. Returns the owner, and the end of the lease if that has changed. Returns `None`
    /// if there is no such unresolved owner.
    pub(super) fn resolve_next(
        &mut self,
        owner: Option<&Owner>,
        holders: &mut Holders,
        now: Now,
    ) -> Option<(Owner, Option<WallMs>)> {
        let owner = match owner {
            None => self.unresolved.pop_first()?,
            Some(owner) => self.unresolved.take(owner)?,
        };
        let Some(pending) = self.pending.get_mut(&owner) else { return Some((owner, None)) };
        let hold = holders.get(owner.as_bytes());
        let end = hold.and_then(|hold| pending.resolved_lease(hold.expires_at));
        if pending.is_over() {
            self.pending.remove(&owner);
        }
        if let Some(end) = end {
            if end < now.wall {
                let _ = holders.release(owner.as_bytes(), ReleaseScope::All, None);
            } else {
                let _ = holders.renew(owner.as_bytes(), end);
            }
        }
        Some((owner, end))
    }

    /// The pending grants of an owner, if it has any. If the owner has only one grant so far, first copies that
    /// grant's effect from `in_flight` to `pending`.
    fn pending_of(&mut self, owner: &Owner) -> Option<&mut PendingGrants> {
        if !self.pending.contains_key(owner) {
            let (_, first) = self.in_flight.of_owner(owner).next()?;
            let mut pending = PendingGrants::new(None, None);
            pending.granted(first.id, first.effect, None, first.written);
            if first.lease_is_foreign {
                pending.lease_is_foreign();
            }
            self.pending.insert(owner.clone(), pending);
        }
        self.pending.get_mut(owner)
    }

    /// The grants in flight, and those marked for revocation.
    #[cfg(test)]
    pub(super) fn ids(&self) -> (Vec<WaiterId>, Vec<WaiterId>) {
        let (mut in_flight, mut marked) =
            self.voiding.as_ref().map(|voiding| voiding.ended.ids()).unwrap_or_default();
        in_flight.extend(self.in_flight.iter().map(|(_, grant)| grant.id));
        marked.extend(self.marked.iter().map(|(_, (id, _))| *id));
        (in_flight, marked)
    }

    /// Fails if an index or a count disagrees with the grants.
    #[cfg(test)]
    pub(super) fn verify(&self) {
        self.in_flight.verify();
        let is_pending = |owner| self.pending.contains_key(owner);
        assert!(
            self.unresolved.iter().all(is_pending),
            "unresolved owners without pending grants: {:?}",
            self.unresolved
        );
        let is_over = |(owner, pending): (&Owner, &PendingGrants)| {
            pending.is_over() && !self.unresolved.contains(owner)
        };
        assert!(!self.pending.iter().any(is_over), "an owner without pending grants has an entry");
    }
}
