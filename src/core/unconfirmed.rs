// SPDX-License-Identifier: MIT

//! Grants of which it is not known yet whether they reached their client, and what the holds are without them.
//!
//! An owner may wait for one lock on several connections. A grant to one of them may have to be revoked when the others
//! have long been answered, and then the hold must be as if the revoked grant had never been made: not only its
//! count, but also its lease and its fencing token. So what each such grant did is kept apart until its fate is known.
//!
//! A grant that may be revoked never shortens a lease: the hold could end by the shorter one before it is known that
//! nobody was promised that. The shorter lease begins when the grant has reached its client.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use super::lease::SetLease;
use super::{Holders, Mode, Now, Owner, ReleaseScope, RequestId, Token, WaiterId, WallMs};

/// What a grant does to the fencing token of its owner's hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SetToken {
    /// What the client was answered, if it asked for one.
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
struct Stack {
    /// When the lease ends if all of them are revoked; `None` if there is no hold then.
    lease: Option<WallMs>,
    /// The fencing token then.
    token: Option<Token>,
    layers: Vec<Layer>,
    /// When the lease ends that this server wrote last. If the key has another one, somebody else has set it since.
    written: WallMs,
}

impl Stack {
    /// A hold of which everything is certain; `None` if there is none.
    fn new(lease: Option<WallMs>, token: Option<Token>) -> Stack {
        Stack { lease, token, layers: Vec::new(), written: lease.unwrap_or_default() }
    }

    /// A grant that may be revoked. The lease ended at `before`, and ends at `written` for now.
    #[inline(always)]
    fn granted(&mut self, id: WaiterId, set: Set, before: Option<WallMs>, written: WallMs) {
        if self.lease_is_certain() {
            self.lease = before;
        }
        self.layers.push(Layer { id, lease: Some(set.lease), token: set.token });
        self.written = written;
    }

    /// A call that will not be revoked has set the lease, which is to end at `written` for now.
    fn lease_was_set(&mut self, lease: SetLease, written: WallMs) {
        if self.lease_is_certain() {
            self.lease = Some(written);
        } else {
            self.settle_lease(self.layers.len(), lease);
        }
        self.written = written;
    }

    /// A call that will not be revoked has got a token, or an exclusive hold without one.
    fn token_was_set(&mut self, token: Option<Token>) {
        self.settle_token(self.layers.len(), token);
    }

    /// Somebody else has set the lease: what it was before does not matter any more.
    fn lease_is_anothers(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.lease = None);
        self.lease = None;
    }

    /// The grant has reached its client.
    fn delivered(&mut self, id: WaiterId) {
        let Some(at) = self.layer(id) else { return };
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
    fn revoked(&mut self, id: WaiterId, exclusive: bool) -> Option<Option<Token>> {
        let at = self.layer(id)?;
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
    fn settled_lease(&mut self, ends: WallMs) -> Option<WallMs> {
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
    fn is_over(&self) -> bool {
        self.layers.is_empty()
    }

    fn lease_is_certain(&self) -> bool {
        self.layers.iter().all(|layer| layer.lease.is_none())
    }

    fn layer(&self, id: WaiterId) -> Option<usize> {
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

/// A grant on its way to its client.
#[derive(Debug)]
struct OnItsWay {
    id: WaiterId,
    owner: Owner,
    /// What it did to the hold.
    set: Set,
    /// When the lease ended that it wrote.
    written: WallMs,
    /// Somebody else has set the lease since.
    lease_is_anothers: bool,
    until: Until,
    /// Of which mode a hold is given back if it is revoked: its own, unless that was given back already.
    owes: Option<Mode>,
}

/// A grant in flight whose hold is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenBack {
    pub(super) id: WaiterId,
    /// Its client is told only when it is confirmed.
    pub(super) is_kept_back: bool,
    /// The call that gives it back has named it.
    pub(super) is_named: bool,
}

/// What a grant is on its way for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// It has reached its client.
    Delivered,
    /// More than that is needed, and so its client waits still.
    Acknowledged,
    /// The call has come again, as its client was told by a message.
    Confirmed,
}

/// What becomes of a lease when a grant has reached its client.
pub(super) struct Confirmed {
    /// When the lease ends that was written last.
    pub(super) written: WallMs,
    /// When it will end, as far as that is known by now.
    pub(super) end: WallMs,
    /// There may be another one to write.
    pub(super) settles: bool,
}

/// A grant that did not reach its client: whose it is, and of which mode a hold is to be given back, if any.
type Revoking = (WaiterId, Owner, Option<Mode>);

/// The grants of one lock that may still be revoked. Each of them has a hold of its owner's, unless that was given back. An owner
/// whose holds ended otherwise has none: to revoke a grant that has ended could free a newer one.
#[derive(Default)]
pub(super) struct Unconfirmed {
    on_their_way: SmallVec<[OnItsWay; 1]>,
    /// Those that did not reach their client, and are still to be given back.
    revoking: VecDeque<Revoking>,
    /// What the holds are of owners who hold more than one such grant.
    stacks: BTreeMap<Owner, Stack>,
    /// Grants whose holds have ended, and whose clients wait still.
    lost: Vec<WaiterId>,
    /// Requests of grants whose holds have ended before they were confirmed: it is still to be forgotten that they were granted.
    voided: Vec<RequestId>,
}

impl Unconfirmed {
    pub(super) fn is_empty(&self) -> bool {
        self.on_their_way.is_empty()
            && self.revoking.is_empty()
            && self.stacks.is_empty()
            && self.lost.is_empty()
            && self.voided.is_empty()
    }

    /// True if somebody who was granted the lock is to be told should its hold end before that is confirmed.
    pub(super) fn any_waits(&self) -> bool {
        self.on_their_way.iter().any(|grant| grant.until != Until::Delivered)
    }

    /// True if somebody is told of its grant by a message and is still to confirm that.
    pub(super) fn any_to_confirm(&self) -> bool {
        self.on_their_way.iter().any(|grant| grant.until == Until::Confirmed)
    }

    /// The hold of a grant to this request has ended before that was confirmed.
    pub(super) fn was_voided(&mut self, request: RequestId) {
        self.voided.push(request);
    }

    /// True if [`take_voided`](Unconfirmed::take_voided) has any.
    pub(super) fn any_voided(&self) -> bool {
        !self.voided.is_empty()
    }

    /// Requests that are remembered as granted, and whose grants have ended before they were confirmed.
    pub(super) fn take_voided(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.voided)
    }

    /// True if there are some whose holds have ended although they wait still.
    pub(super) fn any_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Those whose holds have ended although they wait still.
    pub(super) fn take_lost(&mut self) -> Vec<WaiterId> {
        std::mem::take(&mut self.lost)
    }

    /// True if the next step on the lock has anything to do about grants.
    pub(super) fn is_to_settle(&self) -> bool {
        self.may_end() > 0 || self.any_voided() || self.any_lost()
    }

    /// How many holds may end when what is unconfirmed is settled.
    pub(super) fn may_end(&self) -> usize {
        self.revoking.len() + self.stacks.len()
    }

    /// The grants to this owner that are on their way.
    pub(super) fn on_their_way_to<'a>(&'a self, owner: &'a Owner) -> impl Iterator<Item = WaiterId> + 'a {
        self.on_their_way.iter().filter(|grant| grant.owner == *owner).map(|grant| grant.id)
    }

    /// True if a grant is on its way to its client.
    pub(super) fn any_on_its_way(&self) -> bool {
        !self.on_their_way.is_empty()
    }

    /// A waiter was granted the lock. `before` is when its owner's lease ended, and its token, if it held the lock already.
    pub(super) fn granted(
        &mut self,
        (id, owner, mode, until): (WaiterId, &Owner, Mode, Until),
        set: Set,
        before: Option<(WallMs, Option<Token>)>,
        written: WallMs,
    ) {
        if let Some((lease, token)) = before {
            if self.stack_of(owner).is_none() {
                self.stacks.insert(owner.clone(), Stack::new(Some(lease), token));
            }
            if let Some(stack) = self.stacks.get_mut(owner) {
                stack.granted(id, set, Some(lease), written);
            }
        }
        let owner = owner.clone();
        let owes = Some(mode);
        self.on_their_way.push(OnItsWay { id, owner, set, written, lease_is_anothers: false, until, owes });
    }

    /// A call that will not be revoked has set the lease of a hold, which ends at the time beside it now, or its token.
    pub(super) fn was_set(
        &mut self,
        owner: &Owner,
        lease: Option<(SetLease, WallMs)>,
        token: Option<SetToken>,
    ) {
        if self.on_their_way.is_empty() && self.stacks.is_empty() {
            return;
        }
        let Some(stack) = self.stack_of(owner) else { return };
        if let Some((lease, written)) = lease {
            stack.lease_was_set(lease, written);
        }
        if let Some(SetToken { token, .. }) = token {
            stack.token_was_set(token);
        }
    }

    /// Somebody else has changed the key: of leases it counts from now on.
    pub(super) fn leases_are_anothers(&mut self) {
        self.stacks.values_mut().for_each(Stack::lease_is_anothers);
        self.on_their_way.iter_mut().for_each(|grant| grant.lease_is_anothers = true);
    }

    /// A grant has reached its client. `None` if there is no such grant.
    pub(super) fn confirm(&mut self, id: WaiterId) -> Option<Confirmed> {
        let OnItsWay { owner, written, .. } = self.take(id)?;
        let Some(stack) = self.stacks.get_mut(&owner) else {
            return Some(Confirmed { written, end: written, settles: false });
        };
        stack.delivered(id);
        let (written, end) = stack.ends();
        Some(Confirmed { written, end, settles: true })
    }

    /// A grant has reached its client, and nothing follows from that. False if something may: nothing is done then.
    #[inline(always)]
    pub(super) fn confirm_plain(&mut self, id: WaiterId) -> bool {
        self.stacks.is_empty() && self.take(id).is_some()
    }

    /// A grant has not reached its client.
    pub(super) fn begin_to_revoke(&mut self, id: WaiterId) {
        if let Some(OnItsWay { owner, owes, .. }) = self.take(id) {
            self.revoking.push_back((id, owner, owes));
        }
    }

    /// The next grant that is to be revoked, and of which mode a hold goes with it.
    pub(super) fn next_to_revoke(&mut self) -> Option<(WaiterId, Option<Mode>)> {
        self.revoking.pop_front().map(|(id, _, owes)| (id, owes))
    }

    /// The holds that go with those that are to be revoked.
    pub(super) fn revoking(&self) -> impl Iterator<Item = (&Owner, Mode)> {
        self.revoking.iter().filter_map(|(_, owner, owes)| Some((owner, (*owes)?)))
    }

    /// The grants on their way to this owner with a hold of this mode.
    fn owing<'a>(&'a self, owner: &'a Owner, mode: Mode) -> impl Iterator<Item = &'a OnItsWay> {
        self.on_their_way.iter().filter(move |grant| grant.owes == Some(mode) && grant.owner == *owner)
    }

    /// True if some of the owner's holds of this mode, of which there are so many, are no grants on their way.
    pub(super) fn is_certain(&self, owner: &Owner, mode: Mode, holds: i64) -> bool {
        i64::try_from(self.owing(owner, mode).count()).is_ok_and(|owing| owing < holds)
    }

    /// The grant whose hold is given back by one who has so many of that mode: the one that is named. If none of them is certain,
    /// the first of which the client may know already, or the first.
    pub(super) fn whose_hold(
        &self,
        owner: &Owner,
        (mode, holds): (Mode, i64),
        named: Option<WaiterId>,
    ) -> Option<GivenBack> {
        let is_named = |grant: &&OnItsWay| Some(grant.id) == named;
        // The least of several that are equal is the first.
        let first_told = || self.owing(owner, mode).min_by_key(|grant| grant.until != Until::Delivered);
        let uncertain = || first_told().filter(|_| !self.is_certain(owner, mode, holds));
        let grant = self.owing(owner, mode).find(is_named).or_else(uncertain)?;
        let is_kept_back = grant.until != Until::Delivered;
        Some(GivenBack { id: grant.id, is_kept_back, is_named: is_named(&grant) })
    }

    /// The hold of a grant is given back though that may have to be revoked. Then one of the other mode goes, or none.
    pub(super) fn gave_back(&mut self, id: WaiterId, instead: Option<Mode>) {
        if let Some(grant) = self.on_their_way.iter_mut().find(|grant| grant.id == id) {
            grant.owes = instead;
        }
    }

    /// More than its delivery was needed to confirm a grant, and is there. Its client may know of it from now on.
    pub(super) fn acknowledged(&mut self, id: WaiterId) {
        if let Some(grant) = self.on_their_way.iter_mut().find(|grant| grant.id == id) {
            grant.until = Until::Delivered;
        }
    }

    /// The hold of a grant was given back. Sets the token that is left.
    pub(super) fn revoked(&mut self, id: WaiterId, owner: &Owner, holders: &mut Holders) {
        let Some(stack) = self.stacks.get_mut(owner) else { return };
        let owner = owner.as_bytes();
        let exclusive = holders.of(owner).is_some_and(|hold| hold.exclusive > 0);
        if let Some(token) = stack.revoked(id, exclusive) {
            holders.set_token(owner, token);
        }
    }

    /// Sets the leases of owners of whom it is known by now what they were promised. Returns whose, and when they end.
    pub(super) fn settle(&mut self, holders: &mut Holders, now: Now) -> Vec<(Owner, WallMs)> {
        let mut ends = Vec::new();
        if self.stacks.is_empty() {
            return ends;
        }
        for (owner, stack) in &mut self.stacks {
            let Some(hold) = holders.of(owner.as_bytes()) else { continue };
            let Some(end) = stack.settled_lease(hold.expires_at) else { continue };
            if end < now.wall {
                let _ = holders.release(owner.as_bytes(), ReleaseScope::All, None);
            } else {
                let _ = holders.renew(owner.as_bytes(), end);
            }
            ends.push((owner.clone(), end));
        }
        self.stacks.retain(|_, stack| !stack.is_over());
        ends
    }

    /// The holds of these owners ended: nothing of theirs is to be given back any more. Returns the grants that end so.
    pub(super) fn void(&mut self, ended: impl Fn(&Owner) -> bool) -> SmallVec<[WaiterId; 2]> {
        let mut void = SmallVec::new();
        if self.is_empty() {
            return void;
        }
        self.stacks.retain(|owner, _| !ended(owner));
        self.on_their_way.retain(|grant| {
            let is_void = ended(&grant.owner);
            void.extend(is_void.then_some(grant.id));
            let waits = grant.until == Until::Acknowledged;
            self.lost.extend(Some(grant.id).filter(|_| is_void && waits));
            !is_void
        });
        self.revoking.retain(|(id, owner, _)| {
            let is_void = ended(owner);
            void.extend(is_void.then_some(*id));
            !is_void
        });
        void
    }

    fn take(&mut self, id: WaiterId) -> Option<OnItsWay> {
        let at = self.on_their_way.iter().position(|grant| grant.id == id)?;
        Some(self.on_their_way.remove(at))
    }

    /// What this owner's hold is, layer by layer, if any of it may be revoked. A first grant is kept apart only when something
    /// comes on top of it.
    fn stack_of(&mut self, owner: &Owner) -> Option<&mut Stack> {
        if !self.stacks.contains_key(owner) {
            let first = self.on_their_way.iter().find(|grant| grant.owner == *owner)?;
            let mut stack = Stack::new(None, None);
            stack.granted(first.id, first.set, None, first.written);
            if first.lease_is_anothers {
                stack.lease_is_anothers();
            }
            self.stacks.insert(owner.clone(), stack);
        }
        self.stacks.get_mut(owner)
    }

    /// The grants on their way, and those that are to be given back.
    #[cfg(test)]
    pub(super) fn ids(&self) -> (Vec<WaiterId>, Vec<WaiterId>) {
        let revoking = self.revoking.iter().map(|(id, ..)| *id);
        (self.on_their_way.iter().map(|grant| grant.id).collect(), revoking.collect())
    }
}
