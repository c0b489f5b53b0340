// SPDX-License-Identifier: MIT

//! Voids grants whose holds have ended. Nothing is left to release for them.

use super::ended_grants::{EndedBatch, EndedGrant};
use super::in_flight::GrantKey;
use super::Unconfirmed;
use crate::core::{AffectedOwners, Owner, RequestId, WaiterId};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum ratio of grants that a step examines to grants that it voids.
const EXAMINED_PER_VOIDED: usize = 16;

impl Unconfirmed {
    /// Records that a request's hold ended before its marked grant was revoked.
    pub(in crate::core) fn was_voided(&mut self, request: RequestId) {
        self.voided.push(request);
    }

    /// Records that all holds have ended. Takes constant time for any number of grants.
    /// [`take_ended`](Self::take_ended) then returns the grants one by one.
    pub(in crate::core) fn end_all(&mut self) {
        self.pending = BTreeMap::new();
        self.unresolved = BTreeSet::new();
        let in_flight = std::mem::take(&mut self.in_flight);
        let marked = std::mem::take(&mut self.marked);
        let voiding = self.voiding.get_or_insert_default();
        voiding.examine_from = None;
        voiding.ended.push(EndedBatch { in_flight, marked });
        self.drop_idle_voiding();
    }

    /// Whether any grant whose hold has ended is still to be voided.
    pub(in crate::core) fn any_ended(&self) -> bool {
        self.voiding.as_ref().is_some_and(|voiding| !voiding.ended.is_empty())
    }

    /// Whether the hold of this grant has ended, although the grant is not voided yet.
    pub(in crate::core) fn has_ended(&self, id: WaiterId, owner: &Owner) -> bool {
        self.voiding.as_ref().is_some_and(|voiding| voiding.ended.contains(id, owner))
    }

    /// Takes the next grant to void.
    pub(in crate::core) fn take_ended(&mut self) -> Option<WaiterId> {
        let ended = self.voiding.as_mut()?.ended.pop();
        self.drop_idle_voiding();
        ended.map(|ended| self.note_lost(ended))
    }

    /// Takes this grant if it is still to be voided. Returns whether it was.
    pub(in crate::core) fn take_ended_grant(&mut self, id: WaiterId, owner: &Owner) -> bool {
        let ended = self.voiding.as_mut().and_then(|voiding| voiding.ended.take(id, owner));
        self.drop_idle_voiding();
        ended.map(|ended| self.note_lost(ended)).is_some()
    }

    fn drop_idle_voiding(&mut self) {
        self.voiding.take_if(|voiding| voiding.ended.is_empty() && voiding.examine_from.is_none());
    }

    fn note_lost(&mut self, EndedGrant { id, awaits_replicas }: EndedGrant) -> WaiterId {
        self.lost.extend(awaits_replicas.then_some(id));
        id
    }

    /// Whether [`take_voided`](Unconfirmed::take_voided) would return any request.
    pub(in crate::core) fn any_voided(&self) -> bool {
        !self.voided.is_empty()
    }

    /// Takes up to `at_most` requests whose holds ended before their marked grants were revoked. Their
    /// records must be deleted.
    pub(in crate::core) fn take_voided(&mut self, at_most: usize) -> Vec<RequestId> {
        let taken = self.voided.split_off(self.voided.len().saturating_sub(at_most));
        if self.voided.is_empty() {
            self.voided = Vec::new();
        }
        taken
    }

    /// Takes this request if its hold ended before its marked grant was revoked. Returns whether it did.
    pub(in crate::core) fn take_voided_request(&mut self, request: &RequestId) -> bool {
        let at = self.voided.iter().position(|voided| voided == request);
        at.map(|at| self.voided.swap_remove(at)).is_some()
    }

    /// Removes and returns the grants of owners whose holds have ended, among those that `affected` names, in
    /// order. If more than `at_most` grants are in flight or marked, a call with `AffectedOwners::Any`
    /// examines only a part of them, and removes at most `at_most`. Then
    /// [`is_partly_examined`](Self::is_partly_examined) is true, and the next call continues.
    pub(in crate::core) fn void(
        &mut self,
        affected: AffectedOwners<'_>,
        ended: impl Fn(&Owner) -> bool,
        at_most: usize,
    ) -> SmallVec<[WaiterId; 2]> {
        let mut void = SmallVec::new();
        if self.is_empty() {
            return void;
        }
        let mut keys: SmallVec<[GrantKey; 2]> = SmallVec::new();
        match affected {
            AffectedOwners::Only(owner) if !ended(owner) => return void,
            AffectedOwners::Only(owner) => {
                self.pending.remove(owner);
                self.unresolved.remove(owner);
                keys.extend(self.in_flight.of_owner(owner).map(|(key, _)| key.clone()));
                let marked = self.marked.range((owner.clone(), 0)..).map(|(key, _)| key);
                keys.extend(marked.take_while(|(of, _)| of == owner).cloned());
            }
            AffectedOwners::Any if self.len() > at_most => {
                // Marked grants are left out. They are revoked in portions, which releases nothing if the
                // hold has ended.
                let mut left = EXAMINED_PER_VOIDED.saturating_mul(at_most);
                let from = self.voiding.as_mut().and_then(|voiding| voiding.examine_from.take());
                let from = from.unwrap_or_else(|| (Owner::new(b""), 0));
                for (key, _) in self.in_flight.range_from(from) {
                    if left == 0 || keys.len() == at_most {
                        self.voiding.get_or_insert_default().examine_from = Some(key.clone());
                        break;
                    }
                    left -= 1;
                    keys.extend(ended(&key.0).then(|| key.clone()));
                }
                for (owner, _) in &keys {
                    self.pending.remove(owner);
                    self.unresolved.remove(owner);
                }
                self.drop_idle_voiding();
                keys.sort_unstable_by_key(|(_, order)| *order);
            }
            AffectedOwners::Any => {
                if let Some(voiding) = &mut self.voiding {
                    voiding.examine_from = None;
                }
                self.drop_idle_voiding();
                self.pending.retain(|owner, _| !ended(owner));
                self.unresolved.retain(|owner| !ended(owner));
                let all = self.in_flight.iter().map(|(key, _)| key).chain(self.marked.keys());
                keys.extend(all.filter(|(owner, _)| ended(owner)).cloned());
                keys.sort_unstable_by_key(|(_, order)| *order);
            }
        }
        for key in keys {
            let ended = EndedGrant::take(&mut self.in_flight, &mut self.marked, &key);
            void.extend(ended.map(|ended| self.note_lost(ended)));
        }
        void
    }

    /// Whether the last [`void`](Self::void) left grants that it did not examine.
    pub(in crate::core) fn is_partly_examined(&self) -> bool {
        self.voiding.as_ref().is_some_and(|voiding| voiding.examine_from.is_some())
    }
}
