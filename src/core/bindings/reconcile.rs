// SPDX-License-Identifier: MIT

//! The changes that a step makes because of connections: it ends holds and renews leases.

use super::binding::Binding;
use super::{repeatable_until, Bindings, LockBindings};
use crate::core::lease::{Lease, SetLease};
use crate::core::table::LockIdx;
use crate::core::{AffectedOwners, Holders, LockId, Now, Owner, Records, ReleaseScope, WallMs};

/// Number of upcoming renewals that are searched for more holds of one lock.
const RENEWAL_SCAN_LIMIT: usize = 256;

/// An opened lock whose bindings are being brought up to date.
pub(in crate::core) struct OpenBindings<'a> {
    pub(in crate::core) lock: LockIdx,
    pub(in crate::core) name: &'a LockId,
    /// The owners whose holds may end.
    pub(in crate::core) affected: AffectedOwners<'a>,
    /// Maximum number of holds to end, apart from the caller's, and of leases to renew.
    pub(in crate::core) portion: usize,
    pub(in crate::core) holders: &'a mut Holders,
    pub(in crate::core) records: &'a mut dyn Records,
    pub(in crate::core) now: Now,
}

/// The changes by [`Bindings::follow`].
#[derive(Default)]
pub(in crate::core) struct Followed {
    /// The owners whose holds ended.
    pub(in crate::core) ended: Vec<Owner>,
    pub(in crate::core) renewed: Vec<RenewedLease>,
}

/// A lease that the server has renewed.
pub(in crate::core) struct RenewedLease {
    pub(in crate::core) owner: Owner,
    pub(in crate::core) lease: SetLease,
    pub(in crate::core) end: WallMs,
}

impl Bindings {
    /// Whether no hold of this lock is due to be ended, verified or renewed.
    pub(in crate::core) fn is_settled(&self, lock: LockIdx, now: Now) -> bool {
        let is_settled =
            |bound: &LockBindings| bound.closed.is_empty() && !bound.unverified && !bound.has_more_renewals;
        self.by_lock.get(lock).is_none_or(is_settled) && self.next_renewal().is_none_or(|at| at > now.mono)
    }

    /// Ends holds whose connection has closed, and renews leases that are due, at most a portion of each.
    pub(in crate::core) fn follow(&mut self, mut open: OpenBindings<'_>) -> Followed {
        if self.suspended || !self.knows(open.lock) {
            return Followed::default();
        }
        self.revalidate_bindings(open.lock, open.name, open.holders, open.now);
        let ended = self.end_closed(&mut open);
        let OpenBindings { lock, name, portion, holders, now, .. } = open;
        let mut renewed = Vec::new();
        // Nearly always, no renewal is due.
        if self.next_renewal().is_none_or(|at| at > now.mono) && !self.has_more_renewals(lock) {
            return Followed { ended, renewed };
        }
        for (owner, ms) in self.due_of(lock, portion, now) {
            let Some(hold) = holders.get(owner.as_bytes()) else {
                self.unbind(&(lock, owner), name);
                continue;
            };
            self.lose_overaged(lock, &owner, now.mono);
            if !self.binding(lock, &owner).is_some_and(|binding| binding.is_watched()) {
                continue;
            }
            // A call may have set a later end than this renewal would.
            let wanted = now.wall.saturating_add(ms);
            let end = wanted.max(hold.expires_at);
            if end > hold.expires_at {
                let _ = holders.renew(owner.as_bytes(), end);
            }
            self.note_lease(lock, &owner, Lease::new(ms, end), now);
            renewed.push(RenewedLease { owner, lease: SetLease::AtLeast(wanted), end });
        }
        Followed { ended, renewed }
    }

    /// Whether the previous step left more holds of this lock to renew together.
    pub(in crate::core) fn has_more_renewals(&self, lock: LockIdx) -> bool {
        self.by_lock.get(lock).is_some_and(|bound| bound.has_more_renewals)
    }

    /// The owners whose leases to renew, with the lengths in milliseconds. If one lease is due, others that
    /// are due soon are included. Returns at most a portion, earliest first.
    fn due_of(&mut self, lock: LockIdx, portion: usize, now: Now) -> Vec<(Owner, i64)> {
        let Some(bound) = self.by_lock.get_mut(lock) else { return Vec::new() };
        let has_more_renewals = std::mem::take(&mut bound.has_more_renewals);
        let is_due =
            |binding: &Binding| !binding.is_closed() && binding.due().is_some_and(|at| at <= now.mono);
        let due = |(owner, binding): (&Owner, &Binding)| Some((owner.clone(), binding.due_lease(now)?));
        if bound.bindings.len() <= portion {
            if !bound.bindings.iter().any(|(_, binding)| is_due(binding)) {
                return Vec::new();
            }
            return bound.bindings.iter().filter_map(due).collect();
        }
        // Renewals of other locks may lie between them, so the search is bounded.
        let first = self.renewals.iter().take(RENEWAL_SCAN_LIMIT).filter(|(_, (of, _))| *of == lock);
        let first = first.filter_map(|(_, (_, owner))| Some((owner, bound.bindings.get(owner)?)));
        let mut first = first.skip_while(|(_, binding)| binding.is_closed()).peekable();
        if !has_more_renewals && !first.peek().is_some_and(|(_, binding)| is_due(binding)) {
            return Vec::new();
        }
        let first: Vec<_> = first.filter_map(due).take(portion).collect();
        bound.has_more_renewals = first.len() == portion;
        first
    }

    /// Ends holds whose connection has closed: the caller's, and a portion of the others. Returns their
    /// owners.
    pub(in crate::core) fn end_closed(&mut self, open: &mut OpenBindings<'_>) -> Vec<Owner> {
        let OpenBindings { lock, name, affected, portion, now, .. } = *open;
        let Some(bound) = self.by_lock.get(lock).filter(|bound| !bound.closed.is_empty()) else {
            return Vec::new();
        };
        let own = match affected {
            AffectedOwners::Only(owner) => Some(owner).filter(|owner| bound.closed.get(owner).is_some()),
            AffectedOwners::Any => None,
        };
        let others = bound.closed.keys().filter(|owner| own != Some(*owner)).take(portion);
        let ended: Vec<Owner> = own.into_iter().chain(others).cloned().collect();
        for owner in &ended {
            let Some(binding) = bound.bindings.get(owner) else { continue };
            let _ = open.holders.release(owner.as_bytes(), ReleaseScope::All, None);
            binding.requests(now).for_each(|request| open.records.forget_grant(request));
            // This server does not know requests that did not bind the hold, or that another server granted.
            let was_held_before = binding.held_since().is_none();
            let until =
                if was_held_before { repeatable_until(open.records.request_ttl_ms(), now) } else { 0 };
            let until = until.max(self.requests_until);
            if until >= now.mono {
                self.ended.close(name.clone(), owner.clone(), until);
            }
        }
        for owner in &ended {
            self.unbind(&(lock, owner.clone()), name);
        }
        ended
    }

    /// Ends bindings whose owner has a different hold now.
    fn revalidate_bindings(&mut self, lock: LockIdx, name: &LockId, holders: &Holders, now: Now) {
        let Some(bound) = self.by_lock.get_mut(lock) else { return };
        if !std::mem::take(&mut bound.unverified) {
            return;
        }
        let unverified = bound.bindings.iter().filter(|(_, binding)| binding.is_unverified());
        for owner in unverified.map(|(owner, _)| owner.clone()).collect::<Vec<_>>() {
            let end = holders.get(owner.as_bytes()).map(|hold| hold.expires_at);
            let hold = (lock, owner);
            let Some(binding) = self.binding(lock, &hold.1) else { continue };
            if binding.revalidate(end) {
                let before = binding.due();
                binding.plan_renewal(now.mono);
                let after = binding.due();
                self.renewals.plan(hold.0, &hold.1, before, after);
            } else {
                self.unbind(&hold, name);
            }
        }
    }
}
