//! What a hold is by grants of which it is not known yet whether they reached their client.
//!
//! An owner may wait for one lock on several connections. A grant to one of them may have to be revoked when the others
//! have long been told of theirs, and then the hold must be as if the revoked grant had never been made: not only its
//! count, but also its lease and its fencing token. So what each such grant did is kept apart until its fate is known.
//!
//! A grant that may be revoked never shortens a lease: the hold could end by the shorter one before it is known that
//! nobody was promised that. The shorter lease begins when the grant has reached its client.

use std::collections::BTreeMap;

use super::bindings::Lease;
use super::entries::{Entry, Undelivered};
use super::service::InFlight;
use super::{Holders, LockRef, Now, Owner, Part, Service, Token, WaiterId, WallMs};

/// How a call sets a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetLease {
    /// To this end, shorter or longer.
    To(WallMs),
    /// Longer, if it ends before that. So do calls that give no lease.
    AtLeast(WallMs),
}

impl SetLease {
    /// When a lease ends after this, that ended at `before`; `None` if there was none.
    pub(super) fn after(self, before: Option<WallMs>) -> WallMs {
        match self {
            SetLease::To(end) => end,
            SetLease::AtLeast(end) => before.map_or(end, |before| before.max(end)),
        }
    }

    /// The same as long as it may be revoked.
    pub(super) fn for_now(self, before: Option<WallMs>) -> WallMs {
        let (SetLease::To(end) | SetLease::AtLeast(end)) = self;
        SetLease::AtLeast(end).after(before)
    }

    fn at_least(&mut self, end: WallMs) {
        *self = match *self {
            SetLease::To(at) => SetLease::To(at.max(end)),
            SetLease::AtLeast(at) => SetLease::AtLeast(at.max(end)),
        };
    }
}

/// What a grant does to the fencing token of its owner's hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SetToken {
    /// What the client was told, if it asked for one.
    pub(super) token: Option<Token>,
    /// The hold was shared only, and its token is not one of an exclusive hold.
    pub(super) upgrade: bool,
}

/// What a grant does to its owner's hold, besides counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) lease: SetLease,
    /// `None`: the token stays as it is.
    pub(super) token: Option<SetToken>,
}

/// What one grant did that may be revoked.
#[derive(Clone, Copy, Debug)]
struct Layer {
    id: WaiterId,
    /// `None`: whatever it was, a later call has set the lease for certain.
    lease: Option<SetLease>,
    /// `None`: nothing, or a later call has got a token for certain.
    token: Option<SetToken>,
}

/// The hold of one owner: what is certain, and the grants on top of it that may be revoked, in their order.
#[derive(Debug)]
pub(super) struct Pending {
    /// When the lease ends if all of them are revoked; `None` if there is no hold then.
    lease: Option<WallMs>,
    /// The fencing token then.
    token: Option<Token>,
    layers: Vec<Layer>,
    /// When the lease ends that this server wrote last. If the key has another one, somebody else has set it since.
    written: WallMs,
}

impl Pending {
    /// A hold of which everything is certain; `None` if there is none.
    pub(super) fn new(lease: Option<WallMs>, token: Option<Token>) -> Pending {
        Pending { lease, token, layers: Vec::new(), written: lease.unwrap_or_default() }
    }

    /// A grant that may be revoked. The lease ended at `before`, and ends at `written` for now.
    pub(super) fn granted(&mut self, id: WaiterId, set: Set, before: Option<WallMs>, written: WallMs) {
        if self.lease_is_certain() {
            self.lease = before;
        }
        self.layers.push(Layer { id, lease: Some(set.lease), token: set.token });
        self.written = written;
    }

    /// A call that will not be revoked has set the lease, which is to end at `written` for now.
    pub(super) fn lease_was_set(&mut self, lease: SetLease, written: WallMs) {
        if self.lease_is_certain() {
            self.lease = Some(written);
        } else {
            self.settle_lease(self.layers.len(), lease);
        }
        self.written = written;
    }

    /// A call that will not be revoked has got a token, or an exclusive hold without one.
    pub(super) fn token_was_set(&mut self, token: Option<Token>) {
        self.settle_token(self.layers.len(), token);
    }

    /// Somebody else has set the lease: what it was before does not matter any more.
    pub(super) fn lease_is_anothers(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.lease = None);
        self.lease = None;
    }

    /// The grant has reached its client.
    pub(super) fn delivered(&mut self, id: WaiterId) {
        let Some(at) = self.place(id) else { return };
        let layer = self.layers[at];
        if let Some(lease) = layer.lease {
            self.settle_lease(at, lease);
        }
        if let Some(SetToken { token, .. }) = layer.token {
            self.settle_token(at, token);
        }
        self.layers.remove(at);
    }

    /// The grant has not reached its client. Returns the token that the hold has now, if that is another one;
    /// `exclusive` if the owner still holds the lock so.
    pub(super) fn revoked(&mut self, id: WaiterId, exclusive: bool) -> Option<Option<Token>> {
        let at = self.place(id)?;
        let set = self.layers.remove(at).token?;
        let (before, after) = self.layers.split_at(at);
        if after.iter().any(|layer| layer.token.is_some()) {
            return None;
        }
        let before = before.iter().rev().find_map(|layer| layer.token);
        let token = before.map_or(self.token, |before| before.token);
        Some(token.filter(|_| !(set.upgrade && exclusive)))
    }

    /// When the lease is to end, now that the fate of every grant is known that matters to it. `None` as long as it is
    /// not, and if it ends then already or is somebody else's, by what the key has: `ends`.
    pub(super) fn settled_lease(&mut self, ends: WallMs) -> Option<WallMs> {
        let is_certain = self.lease_is_certain();
        let end = self.lease.filter(|end| is_certain && self.written == ends && *end != ends)?;
        self.written = end;
        Some(end)
    }

    /// When the lease ends that this server wrote last, and when it will end as far as that is certain.
    fn ends(&self) -> (WallMs, WallMs) {
        let certain = self.lease.filter(|_| self.lease_is_certain());
        (self.written, certain.unwrap_or(self.written))
    }

    /// True if there is nothing left that may be revoked.
    pub(super) fn is_over(&self) -> bool {
        self.layers.is_empty()
    }

    fn lease_is_certain(&self) -> bool {
        self.layers.iter().all(|layer| layer.lease.is_none())
    }

    fn place(&self, id: WaiterId) -> Option<usize> {
        self.layers.iter().position(|layer| layer.id == id)
    }

    /// What comes before a lease that is certain matters only as far as that keeps it.
    fn settle_lease(&mut self, before: usize, lease: SetLease) {
        self.lease = Some(lease.after(self.lease));
        for layer in &mut self.layers[..before] {
            match (lease, &mut layer.lease) {
                (SetLease::To(_), lease) => *lease = None,
                (SetLease::AtLeast(end), Some(lease)) => lease.at_least(end),
                (SetLease::AtLeast(_), None) => {}
            }
        }
    }

    fn settle_token(&mut self, before: usize, token: Option<Token>) {
        self.token = token;
        self.layers[..before].iter_mut().for_each(|layer| layer.token = None);
    }
}

impl Entry {
    /// The hold of this owner with the grants to it that may be revoked, if there are any.
    fn pending_of(
        &mut self,
        owner: &Owner,
        in_flight: &BTreeMap<WaiterId, InFlight>,
    ) -> Option<&mut Pending> {
        if !self.pending.contains_key(owner) {
            // A first grant is kept apart from the hold only when something comes on top of it.
            let of_owner =
                |id: &&WaiterId| in_flight.get(id).is_some_and(|grant| grant.request.owner == *owner);
            let first = *self.in_flight.iter().find(of_owner)?;
            let grant = in_flight.get(&first)?;
            let mut pending = Pending::new(None, None);
            pending.granted(first, grant.set, None, grant.written);
            if grant.lease_is_anothers {
                pending.lease_is_anothers();
            }
            self.pending.insert(owner.clone(), pending);
        }
        self.pending.get_mut(owner)
    }

    /// A grant is revoked, and its hold is given back already.
    pub(super) fn uncount_pending(&mut self, grant: &Undelivered, holders: &mut Holders) {
        let Some(pending) = self.pending.get_mut(&grant.owner) else { return };
        let owner = grant.owner.as_bytes();
        let exclusive = holders.of(owner).is_some_and(|hold| hold.exclusive > 0);
        if let Some(token) = pending.revoked(grant.waiter, exclusive) {
            holders.set_token(owner, token);
        }
    }
}

impl Service {
    /// A re-entry was granted that may be revoked: the lease ended at `before`, and ends at `written` for now.
    pub(super) fn pend(
        &mut self,
        lock: LockRef<'_>,
        owner: &Owner,
        (id, set): (WaiterId, Set),
        before: (WallMs, Option<Token>),
        written: WallMs,
    ) {
        let Some(entry) = self.entries.get_mut(lock) else { return };
        if entry.pending_of(owner, &self.in_flight).is_none() {
            entry.pending.insert(owner.clone(), Pending::new(Some(before.0), before.1));
        }
        if let Some(pending) = entry.pending.get_mut(owner) {
            pending.granted(id, set, Some(before.0), written);
        }
    }

    /// A call that will not be revoked has set the lease of a hold, which ends at the time beside it now, or its token.
    pub(super) fn settle_set(
        &mut self,
        lock: LockRef<'_>,
        owner: &Owner,
        lease: Option<(SetLease, WallMs)>,
        token: Option<SetToken>,
    ) {
        let Some(entry) = self.entries.get_mut(lock) else { return };
        if entry.in_flight.is_empty() && entry.pending.is_empty() {
            return;
        }
        let Some(pending) = entry.pending_of(owner, &self.in_flight) else { return };
        if let Some((lease, written)) = lease {
            pending.lease_was_set(lease, written);
        }
        if let Some(SetToken { token, .. }) = token {
            pending.token_was_set(token);
        }
    }

    /// A grant has reached its client. If that makes the lease shorter, it is written at the next look. Returns the
    /// lease that it has.
    pub(super) fn settle_delivered(&mut self, id: WaiterId, grant: &InFlight, now: Now) -> Lease {
        let InFlight { lock, request, .. } = grant;
        let (mut written, mut end) = (grant.written, grant.written);
        let entry = self.entries.get_mut(lock.as_ref());
        if let Some(pending) = entry.and_then(|entry| entry.pending.get_mut(&request.owner)) {
            pending.delivered(id);
            (written, end) = pending.ends();
            self.dirty.insert(lock.clone());
        }
        let lease = Lease { end: written, ..request.lease(end, now) };
        self.lease_was_set(lock.as_ref(), &request.owner, lease, now);
        lease
    }

    /// Writes the leases of owners of whom it is known by now what they were promised.
    pub(super) fn settle_pending(&mut self, lock: LockRef<'_>, holders: &mut Holders, now: Now) {
        let Some(entry) = self.entries.get_mut(lock) else { return };
        if entry.pending.is_empty() {
            return;
        }
        let mut ends = Vec::new();
        for (owner, pending) in &mut entry.pending {
            let Some(hold) = holders.of(owner.as_bytes()) else { continue };
            let Some(end) = pending.settled_lease(hold.expires_at) else { continue };
            if end < now.wall {
                let _ = holders.release(owner.as_bytes(), Part::All, None);
            } else {
                let _ = holders.renew(owner.as_bytes(), end);
                ends.push((owner.clone(), end));
            }
        }
        entry.pending.retain(|_, pending| !pending.is_over());
        for (owner, end) in ends {
            self.lease_end_was_set(lock, &owner, end);
        }
    }
}
