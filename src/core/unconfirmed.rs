// SPDX-License-Identifier: MIT

//! Grants of which it is not known yet whether they reached their client, and what the holds are without them.
//!
//! An owner may wait for one lock on several connections. A grant to one of them may have to be revoked when the others
//! have long been answered, and then the hold must be as if the revoked grant had never been made: not only its
//! count, but also its lease and its fencing token. So what each such grant did is kept apart until its fate is known.
//!
//! A grant that may be revoked never shortens a lease: the hold could end by the shorter one before it is known that
//! nobody was promised that. The shorter lease begins when the grant has reached its client.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use super::few::Few;
use super::lease::SetLease;
use super::sessions::MayHaveEnded;
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

/// A grant among others, by its owner and then in the order of what happened.
type Place = (Owner, u64);

/// A grant that did not reach its client, and of which mode a hold is to be given back, if any.
type Revoking = (WaiterId, Option<Mode>);

/// The grants of one lock that may still be revoked. Each of them has a hold of its owner's, unless that was given back. An owner
/// whose holds ended otherwise has none: to revoke a grant that has ended could free a newer one.
#[derive(Default)]
pub(super) struct Unconfirmed {
    on_their_way: Few<Place, OnItsWay>,
    /// Those that did not reach their client, and are still to be given back.
    revoking: BTreeMap<Place, Revoking>,
    /// How often a grant was put in one of these.
    places: u64,
    /// How many of those on their way have clients that wait still.
    waiting: u32,
    /// How many of them are to be confirmed.
    to_confirm: u32,
    /// What the holds are of owners who hold more than one such grant.
    stacks: BTreeMap<Owner, Stack>,
    /// Those of them whose lease may be certain by now.
    unsettled: BTreeSet<Owner>,
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
        self.waiting > 0
    }

    /// True if somebody is told of its grant by a message and is still to confirm that.
    pub(super) fn any_to_confirm(&self) -> bool {
        self.to_confirm > 0
    }

    /// The hold of a grant to this request has ended before that was confirmed.
    pub(super) fn was_voided(&mut self, request: RequestId) {
        self.voided.push(request);
    }

    /// True if [`take_voided`](Unconfirmed::take_voided) has any.
    pub(super) fn any_voided(&self) -> bool {
        !self.voided.is_empty()
    }

    /// Some of the requests that are remembered as granted, and whose grants have ended before they were confirmed.
    pub(super) fn take_voided(&mut self, at_most: usize) -> Vec<RequestId> {
        let taken = self.voided.split_off(self.voided.len().saturating_sub(at_most));
        if self.voided.is_empty() {
            self.voided = Vec::new();
        }
        taken
    }

    /// True if this request is one of them. It is none any more.
    pub(super) fn take_voided_request(&mut self, request: &RequestId) -> bool {
        let at = self.voided.iter().position(|voided| voided == request);
        at.map(|at| self.voided.swap_remove(at)).is_some()
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
        self.revoking.len() + self.unsettled.len()
    }

    /// The grants to this owner that are on their way, in their order.
    pub(super) fn on_their_way_to<'a>(&'a self, owner: &'a Owner) -> impl Iterator<Item = WaiterId> + 'a {
        of_owner(&self.on_their_way, owner).map(|(_, grant)| grant.id)
    }

    /// How many grants are on their way, or to be given back.
    pub(super) fn len(&self) -> usize {
        self.on_their_way.len() + self.revoking.len()
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
        self.waiting += u32::from(until != Until::Delivered);
        self.to_confirm += u32::from(until == Until::Confirmed);
        self.places += 1;
        let grant = OnItsWay { id, set, written, lease_is_anothers: false, until, owes: Some(mode) };
        self.on_their_way.insert((owner.clone(), self.places), grant);
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
        self.unsettled.insert(owner.clone());
    }

    /// Somebody else has changed the key: of leases it counts from now on.
    pub(super) fn leases_are_anothers(&mut self) {
        self.stacks.values_mut().for_each(Stack::lease_is_anothers);
        self.on_their_way.values_mut().for_each(|grant| grant.lease_is_anothers = true);
    }

    /// A grant to this owner has reached its client. `None` if there is no such grant.
    pub(super) fn confirm(&mut self, id: WaiterId, owner: &Owner) -> Option<Confirmed> {
        let OnItsWay { written, .. } = self.take(id, owner)?;
        let Some(stack) = self.stacks.get_mut(owner) else {
            return Some(Confirmed { written, end: written, settles: false });
        };
        stack.delivered(id);
        self.unsettled.insert(owner.clone());
        let (written, end) = stack.ends();
        Some(Confirmed { written, end, settles: true })
    }

    /// A grant to this owner has reached its client, and nothing follows from that. False if something may: nothing is done then.
    #[inline(always)]
    pub(super) fn confirm_plain(&mut self, id: WaiterId, owner: &Owner) -> bool {
        self.stacks.is_empty() && self.take(id, owner).is_some()
    }

    /// A grant to this owner has not reached its client.
    pub(super) fn begin_to_revoke(&mut self, id: WaiterId, owner: &Owner) {
        if let Some(OnItsWay { owes, .. }) = self.take(id, owner) {
            self.places += 1;
            self.revoking.insert((owner.clone(), self.places), (id, owes));
        }
    }

    /// The next grant that is to be revoked, and of which mode a hold goes with it: of this owner, or of anybody.
    pub(super) fn next_to_revoke(&mut self, owner: Option<&Owner>) -> Option<Revoking> {
        match owner {
            None => self.revoking.pop_first().map(|(_, revoking)| revoking),
            Some(owner) => {
                let (place, _) = self.revoking.range((owner.clone(), 0)..).next()?;
                let place = Some(place).filter(|(of, _)| of == owner).cloned()?;
                self.revoking.remove(&place)
            }
        }
    }

    /// The holds that go with those that are to be revoked.
    pub(super) fn revoking(&self) -> impl Iterator<Item = (&Owner, Mode)> {
        self.revoking.iter().filter_map(|((owner, _), (_, owes))| Some((owner, (*owes)?)))
    }

    /// The grants on their way to this owner with a hold of this mode.
    fn owing<'a>(&'a self, owner: &'a Owner, mode: Mode) -> impl Iterator<Item = &'a OnItsWay> {
        of_owner(&self.on_their_way, owner)
            .map(|(_, grant)| grant)
            .filter(move |grant| grant.owes == Some(mode))
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
    pub(super) fn gave_back(&mut self, id: WaiterId, owner: &Owner, instead: Option<Mode>) {
        if let Some(grant) = self.grant_mut(id, owner) {
            grant.owes = instead;
        }
    }

    /// More than its delivery was needed to confirm a grant, and is there. Its client may know of it from now on.
    pub(super) fn acknowledged(&mut self, id: WaiterId, owner: &Owner) {
        let Some(grant) = self.grant_mut(id, owner) else { return };
        let until = std::mem::replace(&mut grant.until, Until::Delivered);
        self.waiting -= u32::from(until != Until::Delivered);
        self.to_confirm -= u32::from(until == Until::Confirmed);
    }

    fn grant_mut(&mut self, id: WaiterId, owner: &Owner) -> Option<&mut OnItsWay> {
        let place = of_owner(&self.on_their_way, owner).find(|(_, grant)| grant.id == id)?.0.clone();
        self.on_their_way.get_mut(&place)
    }

    /// The hold of a grant was given back. Sets the token that is left.
    pub(super) fn revoked(&mut self, id: WaiterId, owner: &Owner, holders: &mut Holders) {
        let Some(stack) = self.stacks.get_mut(owner) else { return };
        self.unsettled.insert(owner.clone());
        let owner = owner.as_bytes();
        let exclusive = holders.of(owner).is_some_and(|hold| hold.exclusive > 0);
        if let Some(token) = stack.revoked(id, exclusive) {
            holders.set_token(owner, token);
        }
    }

    /// Sets the lease of an owner of whom it is known by now what it was promised: of this one, or of anybody. Returns whose, and
    /// when it ends if it was set; `None` if there is nobody left.
    pub(super) fn settle_next(
        &mut self,
        owner: Option<&Owner>,
        holders: &mut Holders,
        now: Now,
    ) -> Option<(Owner, Option<WallMs>)> {
        let owner = match owner {
            None => self.unsettled.pop_first()?,
            Some(owner) => self.unsettled.take(owner)?,
        };
        let Some(stack) = self.stacks.get_mut(&owner) else { return Some((owner, None)) };
        let hold = holders.of(owner.as_bytes());
        let end = hold.and_then(|hold| stack.settled_lease(hold.expires_at));
        if stack.is_over() {
            self.stacks.remove(&owner);
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

    /// The holds of these owners ended, of whom that may be so: nothing of theirs is to be given back any more. Returns the grants
    /// that end so, in their order.
    pub(super) fn void(
        &mut self,
        who: MayHaveEnded<'_>,
        ended: impl Fn(&Owner) -> bool,
    ) -> SmallVec<[WaiterId; 2]> {
        let mut void = SmallVec::new();
        if self.is_empty() {
            return void;
        }
        let mut places: SmallVec<[Place; 2]> = SmallVec::new();
        match who {
            MayHaveEnded::Of(owner) if !ended(owner) => return void,
            MayHaveEnded::Of(owner) => {
                self.stacks.remove(owner);
                self.unsettled.remove(owner);
                places.extend(of_owner(&self.on_their_way, owner).map(|(place, _)| place.clone()));
                let revoking = self.revoking.range((owner.clone(), 0)..).map(|(place, _)| place);
                places.extend(revoking.take_while(|(of, _)| of == owner).cloned());
            }
            MayHaveEnded::Any => {
                self.stacks.retain(|owner, _| !ended(owner));
                self.unsettled.retain(|owner| !ended(owner));
                let all = self.on_their_way.keys().chain(self.revoking.keys());
                places.extend(all.filter(|(owner, _)| ended(owner)).cloned());
                places.sort_unstable_by_key(|(_, order)| *order);
            }
        }
        for place in places {
            let on_its_way = self.take_at(&place);
            let waits = |grant: &&OnItsWay| grant.until == Until::Acknowledged;
            self.lost.extend(on_its_way.as_ref().filter(waits).map(|grant| grant.id));
            let revoking = || self.revoking.remove(&place).map(|(id, _)| id);
            void.extend(on_its_way.map(|grant| grant.id).or_else(revoking));
        }
        void
    }

    #[inline(always)]
    fn take(&mut self, id: WaiterId, owner: &Owner) -> Option<OnItsWay> {
        // Mostly there is one grant, and nothing has to be compared with its owner.
        match self.on_their_way.take_only(|grant| grant.id == id) {
            Some(grant) => Some(self.uncount(grant)),
            None => self.take_among_others(id, owner),
        }
    }

    #[cold]
    fn take_among_others(&mut self, id: WaiterId, owner: &Owner) -> Option<OnItsWay> {
        let place = of_owner(&self.on_their_way, owner).find(|(_, grant)| grant.id == id)?.0.clone();
        self.take_at(&place)
    }

    fn take_at(&mut self, place: &Place) -> Option<OnItsWay> {
        let grant = self.on_their_way.remove(place)?;
        Some(self.uncount(grant))
    }

    /// A grant is on its way no longer.
    fn uncount(&mut self, grant: OnItsWay) -> OnItsWay {
        self.waiting -= u32::from(grant.until != Until::Delivered);
        self.to_confirm -= u32::from(grant.until == Until::Confirmed);
        grant
    }

    /// What this owner's hold is, layer by layer, if any of it may be revoked. A first grant is kept apart only when something
    /// comes on top of it.
    fn stack_of(&mut self, owner: &Owner) -> Option<&mut Stack> {
        if !self.stacks.contains_key(owner) {
            let (_, first) = of_owner(&self.on_their_way, owner).next()?;
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
        (
            self.on_their_way.iter().map(|(_, grant)| grant.id).collect(),
            self.revoking.iter().map(|(_, (id, _))| *id).collect(),
        )
    }

    /// Fails if an index or a count is not what the grants say.
    #[cfg(test)]
    pub(super) fn verify(&self) {
        let of = |wanted: &dyn Fn(Until) -> bool| {
            self.on_their_way.iter().filter(|(_, grant)| wanted(grant.until)).count()
        };
        assert_eq!(self.waiting as usize, of(&|until| until != Until::Delivered), "who waits is miscounted");
        assert_eq!(
            self.to_confirm as usize,
            of(&|until| until == Until::Confirmed),
            "what is to confirm is miscounted"
        );
        let has_stack = |owner| self.stacks.contains_key(owner);
        assert!(self.unsettled.iter().all(has_stack), "nothing is unsettled of {:?}", self.unsettled);
        let is_over = |(owner, stack): (&Owner, &Stack)| stack.is_over() && !self.unsettled.contains(owner);
        assert!(!self.stacks.iter().any(is_over), "what is certain is kept apart");
    }
}

/// What belongs to this owner, in its order.
fn of_owner<'a, V>(all: &'a Few<Place, V>, owner: &'a Owner) -> impl Iterator<Item = (&'a Place, &'a V)> {
    all.range_from((owner.clone(), 0)).take_while(move |((of, _), _)| of == owner)
}
