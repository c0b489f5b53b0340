// SPDX-License-Identifier: MIT

//! One step on a lock in hand: what ended without a call ([`Step::begin`]), one call, and what that made way for
//! ([`Step::finish`]).

use smallvec::SmallVec;

use super::fast_queue::has_too_many;
use super::parts::{LockState, Parts, MAX_SEARCHED_WAITS};
use crate::core::binding::{BindMode, NewBind, TakenOver};
use crate::core::bindings::AffectedOwners;
use crate::core::bundles::{NewBundle, Verdict};
use crate::core::fairness::WhenFree;
use crate::core::held::HoldRecord;
use crate::core::holders::Admission;
use crate::core::lease::{Lease, SetLease};
use crate::core::schedule::earlier;
use crate::core::table::{LockIdx, LockLookup};
use crate::core::unconfirmed::{ConfirmedBy, GrantEffect, ReleasedGrant, SetToken};
use crate::core::waiters::{Wait, WaitState};
use crate::core::{
    Bind, ConnectionId, Counted, Decision, Hold, HoldEvent, Holders, LockId, LockRef, Mode, MonoUs, NotOwner,
    Notify, Now, Owner, Records, Refusal, ReleaseScope, Reply, Request, RequestId, Token, WaiterId, WallMs,
    Wants,
};

/// A lock in hand: what is remembered about it, looked up once, and what its key holds.
#[must_use = "a step that is not finished hands nothing on"]
pub(super) struct Step<'a> {
    parts: &'a mut Parts,
    name: LockRef<'a>,
    /// Its handle, if anything is remembered about it. Most locks have none.
    lock: Option<LockIdx>,
    /// Whose holds may have ended since the last step, or in this one.
    affected: AffectedOwners<'a>,
    pub(super) holders: &'a mut Holders,
    pub(super) records: &'a mut dyn Records,
    pub(super) now: Now,
    /// The lock was granted to somebody who waited.
    handed_over: bool,
    expected_end: ExpectedEnd,
    /// How much of what is due it does.
    portion: usize,
    /// More grants and bindings are remembered of it than a step looks through.
    is_crowded: bool,
    /// It is looked whose holds have ended, of all whose grants and bindings are remembered.
    looks_at_all: bool,
    /// Holds are left that are to end, or requests that are to be forgotten: the queue is served when none is.
    is_unfinished: bool,
    /// Something is left to do.
    is_due_again: bool,
}

/// What the caller of a step has to know of the lock when it has written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepOutput {
    /// `None` if nothing is remembered about it.
    pub(super) lock: Option<LockIdx>,
    /// The end of its first lease is waited for.
    pub(crate) watches_lease: bool,
    /// Its hold ended without a call, and that it is free is still to be announced if nobody has it.
    pub(crate) unannounced: bool,
    /// It is free, and somebody may get it in this very moment who waits for several: until that is tried, it is not announced.
    pub(crate) is_reserved: bool,
    /// Until when it will be held, as far as external clients have to know.
    pub(crate) expected_end: ExpectedEnd,
}

/// Until when a lock will be held. External clients sleep until the end that they have seen, so they are told of the end of
/// a lease that is shorter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ExpectedEnd {
    /// Until the end of the lease that is written.
    #[default]
    AsWritten,
    /// Until this time. Who is told of its grant by a message has a short lease, whose end is watched, and the whole one when
    /// it has confirmed the grant.
    Until(WallMs),
    /// Maybe not for as long as they have seen. That end is not stored any more, so nothing can be compared with it.
    MaybeSooner,
}

impl StepOutput {
    /// True if anything is remembered about the lock.
    pub(crate) fn is_known(self) -> bool {
        self.lock.is_some()
    }
}

/// Where all readers of a lock have to be read for each step, so many steps do what is due for all of them.
const READS_PER_PORTION: usize = 64;

/// What is counted of each lock takes little memory.
fn counted(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A request that was granted.
struct Grant {
    reply: Reply,
    effect: GrantEffect,
    /// When the owner's lease ended, and its token, if it held the lock before.
    before: Option<(WallMs, Option<Token>)>,
    /// When it ends now.
    written: WallMs,
}

/// Why a request was not granted.
enum NotGranted {
    Busy,
    Refused(Refusal),
}

/// Who gets the reply to a grant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplyTarget {
    /// Whoever calls: it cannot be revoked.
    Caller,
    /// A client that waits, and may be gone.
    Waiter,
}

impl<'a> Step<'a> {
    /// Takes a lock in hand, and ends and renews what is to be ended and renewed by now.
    // Of most locks nothing is remembered: then there is nothing to call.
    #[inline(always)]
    pub(super) fn begin(
        parts: &'a mut Parts,
        known: LockLookup<'a>,
        affected: AffectedOwners<'a>,
        holders: &'a mut Holders,
        records: &'a mut dyn Records,
        now: Now,
    ) -> Step<'a> {
        let (name, lock) = (known.name(), parts.table.handle_of(known));
        let portion = parts.portion.0.max(holders.read_len() / READS_PER_PORTION);
        let mut step = Step {
            parts,
            portion,
            name,
            lock,
            affected,
            holders,
            records,
            now,
            handed_over: false,
            expected_end: ExpectedEnd::AsWritten,
            is_crowded: false,
            looks_at_all: true,
            is_unfinished: false,
            is_due_again: false,
        };
        if let Some(lock) = lock {
            step.catch_up(lock);
        }
        step
    }

    #[inline(always)]
    fn catch_up(&mut self, lock: LockIdx) {
        self.parts.table.unset_ready(lock);
        self.decide_what_to_look_at(lock);
        if !self.parts.ending_connections.is_empty() {
            if let AffectedOwners::Only(owner) = self.affected {
                self.parts.end_closed_hold(lock, owner, self.now);
            }
        }
        self.forget_voided(lock);
        if self.parts.notifies_owners {
            self.notice_losses(lock);
        }
        self.revoke(lock);
        self.follow_connections(lock);
    }

    /// Few grants and bindings are all looked through, whether their holds have ended. Many are only if somebody may have lost a hold
    /// without a call, and then not at each step: so no more of them are looked at, on an average, than a step does of other things.
    #[inline(always)]
    fn decide_what_to_look_at(&mut self, lock: LockIdx) {
        let (remembered, portion) = (self.parts.remembered_of(lock), self.portion);
        if remembered > portion {
            (self.is_crowded, self.looks_at_all) = (true, self.is_time_to_look(lock, remembered / portion));
        }
    }

    #[cold]
    fn is_time_to_look(&mut self, lock: LockIdx, steps: usize) -> bool {
        let (holders, calls) = (counted(self.holders.len()), self.is_call());
        let Some(state) = self.parts.state_mut(lock) else { return false };
        state.may_have_ended |= holders < state.held_by;
        if calls || !state.may_have_ended {
            return false;
        }
        let looks = state.looks_in == 0;
        (state.may_have_ended, state.looks_in) =
            if looks { (false, counted(steps)) } else { (true, state.looks_in - 1) };
        self.is_due_again |= !looks;
        looks
    }

    /// Grants of which clients were told by messages have ended before they were confirmed: they were never made.
    #[inline(always)]
    fn forget_voided(&mut self, lock: LockIdx) {
        let portion = self.portion;
        let Some(state) = self.parts.state_mut(lock).filter(|state| state.unconfirmed.any_voided()) else {
            return;
        };
        for request in state.unconfirmed.take_voided(portion) {
            self.records.forget_grant(&request);
        }
        self.is_unfinished |= state.unconfirmed.any_voided();
    }

    /// Notes who has lost its hold since the last step.
    #[cold]
    fn notice_losses(&mut self, lock: LockIdx) {
        let Some(state) = self.parts.state_mut(lock) else { return };
        let lost = state.held.take_lost(self.holders, self.now.wall);
        self.parts.push_notices(lock, lost);
    }

    /// This owner's hold has ended without a call, or its lease is another one. If it holds nothing, nothing depends on that any more.
    fn ended_or_set(&mut self, lock: LockIdx, owner: &Owner) {
        if self.parts.notifies_owners {
            self.settle_held(lock, AffectedOwners::Only(owner));
        }
        if self.holders.of(owner.as_bytes()).is_none() {
            self.parts.void_ended(lock, AffectedOwners::Only(owner), |_| true);
        }
    }

    /// Ends every hold. Returns the number of owners who lost theirs.
    pub(super) fn end_all(&mut self) -> usize {
        self.looks_at_all = true;
        let lost = self.holders.clear();
        if let Some(lock) = self.lock {
            // Portions of holds to end are over with the holds. Only records may be left, which the next step forgets.
            self.parts.void_ended(lock, AffectedOwners::Any, |_| true);
            self.is_due_again |= std::mem::take(&mut self.is_unfinished);
        }
        lost
    }

    /// Everybody who holds the lock is to be told what happens to it.
    pub(super) fn notify_holders(&mut self, event: HoldEvent) {
        if !self.parts.notifies_owners || self.holders.is_free() {
            return;
        }
        let lock = self.known();
        self.parts.push_notices(lock, self.holders.iter().map(|hold| (hold.owner.clone(), event)));
    }

    /// The owner holds the lock, and is told if it loses it.
    #[inline(always)]
    fn note_held(&mut self, owner: &Owner, hold: HoldRecord) {
        if self.parts.notifies_owners {
            let lock = self.known();
            self.parts.insert_held(lock, owner, hold);
        }
    }

    /// Those who hold nothing any more have given it back.
    #[cold]
    fn settle_held(&mut self, lock: LockIdx, affected: AffectedOwners<'_>) {
        if let Some(state) = self.parts.state_mut(lock) {
            state.held.settle(affected, self.holders);
        }
    }

    /// Grants what can be granted by now.
    pub(super) fn finish(mut self) -> StepOutput {
        if let Some(lock) = self.lock {
            self.serve(lock);
        }
        self.forget_if_free();
        self.close()
    }

    /// Grants what can be granted before the call: between a foreign `DEL` and the timer other commands run, and whoever
    /// waits comes before them.
    pub(super) fn serve_first(&mut self) {
        if let Some(lock) = self.lock {
            self.serve(lock);
            self.forget_if_free();
            self.settle_fairness(lock);
        }
    }

    /// Ends a step whose call makes way for nobody: brings the schedules up to date, and forgets what needs not be
    /// remembered.
    #[inline(always)]
    pub(super) fn close(mut self) -> StepOutput {
        match self.lock {
            Some(lock) => self.close_known(lock),
            None => StepOutput {
                lock: None,
                watches_lease: false,
                unannounced: false,
                is_reserved: false,
                expected_end: ExpectedEnd::AsWritten,
            },
        }
    }

    #[inline(always)]
    fn close_known(&mut self, lock: LockIdx) -> StepOutput {
        if self.parts.notifies_owners && (self.looks_at_all || self.is_call()) {
            self.settle_held(lock, self.affected);
        }
        self.note_crowd(lock);
        self.parts.end_lost(lock, &Decision::Lost);
        self.settle_fairness(lock);
        let watches_lease = self.watch_lease(lock);
        let alone = self.holders.alone();
        let plain = alone.filter(|(_, token)| token.is_none()).map(|(hold, _)| hold);
        let (is_bound, forgets) = (self.parts.bindings.knows(lock), self.parts.forgets_holds);
        let handed_over = self.handed_over;
        let bundles = &self.parts.waiters.bundles;
        let is_reserved = !bundles.is_empty()
            && self.holders.is_free()
            && bundles.is_reserved(lock, || self.parts.has_members(lock));
        let is_free = self.holders.is_free();
        let expected_end = &mut self.expected_end;
        let unannounced = self.parts.state_mut(lock).is_some_and(|state| {
            if state.unconfirmed_whole_lease && !is_reserved && !state.unconfirmed.any_to_confirm() {
                // That was not confirmed. If the lock is free, external clients are told so.
                state.unconfirmed_whole_lease = false;
                if !is_free {
                    *expected_end = ExpectedEnd::MaybeSooner;
                }
            }
            // What an external client holds, and nobody wants, is not remembered.
            let is_wanted = !state.queue.is_empty() || state.unconfirmed.any_in_flight() || is_bound;
            let mark_kept = is_wanted || state.plain_hold.is_some();
            let plain = plain.filter(|_| if forgets { !state.queue.is_empty() } else { mark_kept });
            if handed_over || state.plain_hold.as_ref() != plain {
                state.plain_hold = plain.map(|hold| Hold { renewed: false, ..hold.clone() });
            }
            if alone.is_none() {
                state.held_since = None;
            }
            !is_reserved && std::mem::take(&mut state.unannounced)
        });
        self.parts.drop_if_idle(lock);
        StepOutput {
            lock: Some(lock),
            watches_lease,
            unannounced,
            is_reserved,
            expected_end: self.expected_end,
        }
    }

    /// True if a call of an owner does this step, and so ends no holds but that owner's.
    fn is_call(&self) -> bool {
        matches!(self.affected, AffectedOwners::Only(_))
    }

    /// Notes how many hold the lock, if more is remembered of them than a step looks through; and that there is more to do.
    #[inline(always)]
    fn note_crowd(&mut self, lock: LockIdx) {
        let is_crowded = self.parts.remembered_of(lock) > self.parts.portion.0;
        let holders = if is_crowded { counted(self.holders.len()) } else { 0 };
        if let Some(state) = self.parts.state_mut(lock) {
            state.held_by = holders;
        }
        if (self.is_unfinished || self.is_due_again) && !self.parts.demoted {
            self.parts.table.set_ready(lock);
        }
    }

    /// The lock's handle; from now on something is remembered about it.
    fn known(&mut self) -> LockIdx {
        *self.lock.get_or_insert_with(|| self.parts.table.insert(self.name))
    }

    fn state(&self) -> Option<&LockState> {
        self.parts.state(self.lock?)
    }

    fn state_mut(&mut self) -> Option<&mut LockState> {
        self.parts.state_mut(self.lock?)
    }

    fn id(&self) -> LockId {
        self.lock.and_then(|lock| self.parts.name(lock)).unwrap_or_else(|| self.name.to_id())
    }

    /// Revokes grants that did not reach their clients: those of the caller, and of the others a portion.
    #[inline(always)]
    fn revoke(&mut self, lock: LockIdx) {
        if self.parts.state(lock).is_none_or(|state| state.unconfirmed.may_end() == 0) {
            return;
        }
        if let AffectedOwners::Only(owner) = self.affected {
            self.revoke_some(lock, Some(owner), usize::MAX);
        }
        self.revoke_some(lock, None, self.portion);
        self.is_unfinished |= self.parts.state(lock).is_some_and(|state| state.unconfirmed.may_end() > 0);
    }

    /// Revokes so many of them, of this owner or of anybody, and sets as many leases of which it is known by now what was promised.
    #[cold]
    fn revoke_some(&mut self, lock: LockIdx, of: Option<&Owner>, at_most: usize) {
        for _ in 0..at_most {
            let next = self.parts.state_mut(lock).and_then(|state| state.unconfirmed.next_to_revoke(of));
            let Some((id, hold_mode)) = next else { break };
            let Some((wait, _)) = self.parts.waiters.remove(id) else {
                defect!("a grant is to be revoked that nobody got");
                continue;
            };
            let Request { owner, id: request, .. } = wait.request();
            if self.holders.of(owner.as_bytes()).is_none() {
                // Its lease is over, which no step had found yet: there is nothing to give back.
                if let Some(request) = request {
                    self.records.forget_grant(request);
                }
                continue;
            }
            if let Some(mode) = hold_mode {
                let _ = self.holders.release(owner.as_bytes(), ReleaseScope::OneOf(mode), None);
            }
            if let Some(state) = self.parts.state_mut(lock) {
                state.unconfirmed.revoked(id, owner, self.holders);
            }
            if let Some(request) = request {
                self.records.forget_grant(request);
            }
            self.ended_or_set(lock, owner);
        }
        for _ in 0..at_most {
            let Some(state) = self.parts.state_mut(lock) else { return };
            let Some((owner, end)) = state.unconfirmed.settle_next(of, self.holders, self.now) else {
                return;
            };
            let Some(end) = end else { continue };
            if end >= self.now.wall {
                self.parts.bindings.note_lease_end(lock, &owner, end, self.now);
            } else if self.parts.take_held(lock, &owner) {
                self.parts.push_notices(lock, [(owner.clone(), HoldEvent::Expired)]);
            }
            self.ended_or_set(lock, &owner);
        }
    }

    /// What is remembered of this request as granted, now that it is known whether that was revoked.
    pub(super) fn granted(&mut self, id: &RequestId) -> Result<Option<Reply>, Refusal> {
        if let Some(lock) = self.lock.filter(|_| self.is_unfinished) {
            self.finish_request(lock, id)?;
        }
        self.records.granted(id)
    }

    #[cold]
    fn finish_request(&mut self, lock: LockIdx, id: &RequestId) -> Result<(), Refusal> {
        let wait = self.parts.waiters.of_request(lock, id).map(|(_, wait)| wait);
        let revoking = wait.filter(|wait| wait.state() == WaitState::Revoking);
        if let Some(owner) = revoking.map(|wait| wait.request().owner.clone()) {
            self.revoke_some(lock, Some(&owner), usize::MAX);
        }
        if self.parts.state_mut(lock).is_some_and(|state| state.unconfirmed.take_voided_request(id)) {
            self.records.forget_grant(id);
        }
        if let Some(reply) = self.records.granted(id)? {
            let owner = reply.owner.map_or_else(|| Owner::new(id.owner_argument()), |owner| *owner);
            self.revoke_some(lock, Some(&owner), usize::MAX);
            self.end_closed_of(lock, &owner);
        }
        Ok(())
    }

    /// Ends the hold of this owner, if its connection has closed.
    fn end_closed_of(&mut self, lock: LockIdx, owner: &Owner) {
        let (name, affected) = (self.id(), (AffectedOwners::Only(owner), 0));
        let ended =
            self.parts.bindings.end_closed((lock, &name), affected, self.holders, self.records, self.now);
        self.closed(lock, &ended);
    }

    /// The holds of these owners have ended, as their connection has closed.
    fn closed(&mut self, lock: LockIdx, ended: &[Owner]) {
        self.parts.statistics.add(Counted::ReleasedOnDisconnect, ended.len());
        ended.iter().for_each(|owner| self.ended_or_set(lock, owner));
    }

    /// Ends and renews holds that depend on connections.
    #[inline(always)]
    fn follow_connections(&mut self, lock: LockIdx) {
        if !self.parts.bindings.knows(lock) {
            return;
        }
        let name = self.id();
        if self.looks_at_all || self.is_call() {
            let has_ended = |owner: &Owner| self.holders.of(owner.as_bytes()).is_none();
            self.parts.bindings.unbind_ended(lock, &name, self.affected, has_ended);
        }
        let affected = (self.affected, self.portion);
        let (ended, renewed) =
            self.parts.bindings.follow((lock, &name), affected, self.holders, self.records, self.now);
        self.closed(lock, &ended);
        self.is_unfinished |= self.parts.bindings.closed_len(lock) > 0;
        self.is_due_again |= self.parts.bindings.renews_on(lock);
        self.parts.statistics.add(Counted::RenewedByWatchdog, renewed.len());
        for (owner, lease, end) in renewed {
            self.note_held(&owner, HoldRecord { end, ..HoldRecord::default() });
            self.parts.note_setting(lock, &owner, Some((lease, end)), None);
        }
    }

    /// Serves the queue: of many who can be served, a portion.
    fn serve(&mut self, lock: LockIdx) {
        // Who holds nothing any more, has nothing to be delivered, given back or renewed.
        if self.looks_at_all || self.is_call() {
            let holders = &*self.holders;
            self.parts.void_ended(lock, self.affected, |owner| holders.of(owner.as_bytes()).is_none());
        }
        self.forget_voided(lock);
        self.send_behind_holders(lock);
        if self.parts.waiters.bundles.is_stopped(lock) || self.is_unfinished {
            return;
        }
        if self.holders.is_free() && self.is_left_free(lock) {
            return;
        }
        let mut served = 0;
        while let Some(id) = self.next_in_line(lock) {
            if served == self.portion {
                self.is_due_again = true;
                return;
            }
            served += 1;
            let Some(wait) = self.parts.waiters.get(id) else {
                return defect!("a queue names an unknown wait");
            };
            if wait.is_over(self.now) {
                self.parts.end_queued(id, Decision::TimedOut);
                continue;
            }
            if self.parts.is_dropped(wait) {
                self.parts.drop_wait(id);
                continue;
            }
            let request = wait.request().clone();
            self.unbind_earlier(lock, &request.owner);
            match self.grant(&request, ReplyTarget::Waiter) {
                Ok(grant) => {
                    let reply = self.hand_over(lock, id, &request, grant, true);
                    if let Some(notify) = &request.notify {
                        let grace_us = notify.grace_ms.unsigned_abs().saturating_mul(1000);
                        self.parts.deadlines.set(&id, Some(self.now.mono.saturating_add(grace_us)));
                    }
                    self.parts.decide(id, lock, &request, Decision::Granted(reply));
                    if self.excludes_all(lock) {
                        return;
                    }
                }
                Err(NotGranted::Refused(refusal)) => self.parts.end_queued(id, Decision::Refused(refusal)),
                Err(NotGranted::Busy) => return defect!("a wait is next that cannot be granted"),
            }
        }
    }

    /// True if nobody who waits can be admitted beside who holds the lock now.
    fn excludes_all(&self, lock: LockIdx) -> bool {
        let only_newcomers = |state: &LockState| !state.queue.has_holders() && !state.queue.has_members();
        self.holders.mode() == Some(Mode::Exclusive) && self.parts.state(lock).is_some_and(only_newcomers)
    }

    /// Who holds the lock by a foreign write may stand behind a part that waits for that.
    #[inline]
    pub(super) fn search_for_holders(&mut self) {
        let Some(lock) = self.lock.filter(|_| !self.parts.waiters.bundles.is_empty()) else { return };
        let was_changed = self.parts.state_mut(lock).map(|state| std::mem::take(&mut state.was_changed));
        if was_changed != Some(true) {
            return;
        }
        for hold in self.holders.iter().take(MAX_SEARCHED_WAITS) {
            self.parts.search_waits_of(&hold.owner);
        }
    }

    /// What an earlier hold of this owner depended on is no matter of the next one.
    fn unbind_earlier(&mut self, lock: LockIdx, owner: &Owner) {
        if self.is_crowded {
            self.ended_or_set(lock, owner);
            self.forget_voided(lock);
            return;
        }
        if self.holders.of(owner.as_bytes()).is_some() {
            return;
        }
        // Its lease may have ended without a step of its own. A grant of then that is revoked must not take the next hold.
        if self.parts.state(lock).is_some_and(|state| !state.unconfirmed.is_empty()) {
            self.parts.void_ended(lock, AffectedOwners::Only(owner), |_| true);
            self.forget_voided(lock);
        }
        if self.parts.bindings.knows(lock) {
            let name = self.id();
            self.parts.bindings.unbind_ended(lock, &name, AffectedOwners::Only(owner), |_| true);
        }
    }

    /// The wait that can be decided next. If that could be a part, its bundle is due.
    #[inline(always)]
    fn next_in_line(&mut self, lock: LockIdx) -> Option<WaiterId> {
        let mut due = SmallVec::<[WaiterId; 4]>::new();
        let next = self.parts.state(lock)?.queue.next(|id| {
            let Some(wait) = self.parts.waiters.get(id) else { return false };
            let Request { owner, wants, .. } = wait.request();
            if wait.is_over(self.now) || self.parts.is_dropped(wait) {
                return true;
            }
            let is_next = self.admits(owner.as_bytes(), *wants) != Admission::Busy;
            match wait.first_wait() {
                None => is_next,
                // Readers may be behind it that are for several locks, too.
                Some(first_wait) => {
                    if is_next && self.parts.waiters.bundles.may_be_due(first_wait, lock) {
                        due.push(first_wait);
                    }
                    false
                }
            }
        });
        for first_wait in due {
            self.parts.waiters.bundles.is_due(first_wait, lock);
        }
        next
    }

    /// Ends a wait with a grant that is to be delivered, and returns what with.
    // A grant is large: it is passed on where it stays.
    #[inline(always)]
    fn hand_over(
        &mut self,
        lock: LockIdx,
        id: WaiterId,
        Request { owner, wants, lease_ms, awaits_replicas, notify, .. }: &Request,
        grant: Grant,
        waits: bool,
    ) -> Reply {
        let Grant { reply, effect, before, written } = grant;
        self.handed_over = true;
        let (waited, waits_more) = self.parts.grant_wait(id, self.now, before.is_none());
        if waits {
            self.parts.statistics.count(Counted::GrantedAfterWaiting);
            self.parts.count_wait(lock, waited);
        }
        if before.is_some() {
            self.parts.bindings.note_lease_end(lock, owner, written, self.now);
        }
        if waits_more {
            // What else the owner waits for here is not in line behind others any more.
            self.parts.move_waits_ahead(lock, owner);
            if self.parts.has_members(lock) && !self.parts.waiters.get(id).is_some_and(Wait::is_member) {
                self.parts.search_waits_of(owner);
            }
        }
        if let Some(state) = self.parts.state_mut(lock) {
            let whole_lease = notify.is_some() && wants.mode == Mode::Exclusive && before.is_none();
            if state.unconfirmed_whole_lease {
                // External clients may have seen a later end than that of the grace before, which alone is stored.
                self.expected_end = ExpectedEnd::MaybeSooner;
            } else if whole_lease && self.expected_end != ExpectedEnd::MaybeSooner {
                self.expected_end = ExpectedEnd::Until(self.now.wall.saturating_add(*lease_ms));
            }
            state.unconfirmed_whole_lease = whole_lease;
            let confirmed_by = match (awaits_replicas, notify) {
                (true, _) => ConfirmedBy::Acknowledgement,
                (false, Some(_)) => ConfirmedBy::Repetition,
                (false, None) => ConfirmedBy::Delivery,
            };
            state.unconfirmed.granted((id, owner, wants.mode, confirmed_by), effect, before, written);
        }
        reply
    }

    /// Owners who do not hold the lock any more are in line as everybody else.
    fn send_behind_holders(&mut self, lock: LockIdx) {
        let Some(state) = self.parts.state(lock).filter(|state| state.queue.has_holders()) else { return };
        let inside: Vec<WaiterId> = state.queue.holders().map(|(id, _)| id).collect();
        for id in inside {
            let holds = |owner: &Owner| self.holders.of(owner.as_bytes()).is_some();
            if !self.parts.waiters.get(id).is_some_and(|wait| holds(&wait.request().owner)) {
                self.parts.move_wait(id, false);
                // Those that it stands behind now may wait for its owner.
                self.parts.searches.insert(id);
            }
        }
    }

    /// Whether a lock that is free is left to external clients for now.
    fn is_left_free(&mut self, lock: LockIdx) -> bool {
        let Some(state) = self.parts.table.get_mut(lock) else { return false };
        let LockState { queue, fairness, unannounced, .. } = state;
        let first = queue.first().and_then(|id| self.parts.waiters.get(id));
        let first_deadline = first.and_then(|wait| wait.deadline());
        let granted_keys = &self.parts.granted_keys;
        let becomes_free = || !queue.is_empty() || *unannounced || granted_keys.contains(self.name);
        match fairness.when_free(first_deadline, becomes_free, self.now) {
            WhenFree::Serve => false,
            WhenFree::Leave => true,
            WhenFree::Ask if self.records.has_listeners() => {
                self.records.announce();
                fairness.open(self.now);
                *unannounced = false;
                self.parts.windows_given += 1;
                true
            }
            WhenFree::Ask => {
                fairness.no_subscribers(self.now);
                false
            }
        }
    }

    /// True if whoever is ready to wait until then lets external clients go first.
    pub(super) fn yields(&self, ready_until: MonoUs) -> bool {
        self.holders.is_free()
            && self.state().is_some_and(|state| state.fairness.yields(ready_until, self.now))
    }

    /// Who excludes this request, if anybody does: the holders, or those who may hold the lock although that was forgotten. Those
    /// hold it side by side with who is known to, so they do not exclude more of the same.
    #[inline(always)]
    fn admits(&self, owner: &[u8], wants: Wants) -> Admission {
        let is_re_entry = |hold: &Hold| !wants.once && hold.allows_more(wants.mode);
        match self.parts.quarantined_until {
            Some(until) if self.now.mono < until && !self.holders.of(owner).is_some_and(is_re_entry) => {
                Admission::Busy
            }
            _ => self.holders.admits(owner, wants),
        }
    }

    /// True if nobody who is known to hold the lock excludes this request, but maybe somebody who is not.
    pub(super) fn is_quarantined(&self, request: &Request) -> bool {
        let owner = request.owner.as_bytes();
        self.holders.admits(owner, request.wants) != Admission::Busy
            && self.admits(owner, request.wants) == Admission::Busy
    }

    /// True if the owner may have more of what it holds already: then nobody who waits is before it.
    pub(super) fn wants_more(&self, request: &Request) -> bool {
        !request.wants.once && self.holders.of(request.owner.as_bytes()).is_some()
    }

    /// True if somebody stands in the queue who comes before one that wants this, and does not hold the lock.
    #[inline]
    pub(super) fn must_wait(&self, wants: Wants) -> bool {
        self.state().is_some_and(|state| state.queue.blocks(wants))
    }

    /// True if somebody stands in the queue.
    pub(super) fn has_queue(&self) -> bool {
        self.state().is_some_and(|state| !state.queue.is_empty())
    }

    /// How many stand in the queue.
    pub(super) fn queue_len(&self) -> usize {
        self.state().map_or(0, |state| state.queue.len())
    }

    /// True if anybody waits to be told by a message, or was told and has not confirmed the grant.
    #[inline]
    pub(super) fn any_notified(&self) -> bool {
        !self.parts.waiters.notified.is_empty()
    }

    /// True if as many waits that are told by messages belong to this connection as may.
    pub(super) fn has_too_many(&self, notify: &Notify) -> bool {
        has_too_many(self.parts, notify)
    }

    /// True if this request stands in the queue, on another connection.
    pub(super) fn is_queued(&self, request: &Request) -> bool {
        let of_request = |lock| self.parts.waiters.of_request(lock, request.id.as_ref()?);
        self.lock.and_then(of_request).is_some_and(|(_, wait)| wait.state() == WaitState::Queued)
    }

    /// Grants a request that comes first, if the holders admit it.
    #[inline(always)]
    fn grant(&mut self, request: &Request, to: ReplyTarget) -> Result<Grant, NotGranted> {
        let owner = request.owner.as_bytes();
        let holds = match self.admits(owner, request.wants) {
            Admission::Busy => return Err(NotGranted::Busy),
            Admission::Overflow => return Err(NotGranted::Refused(Refusal::Overflow)),
            Admission::Grant(holds) => holds,
        };
        let hold = self.holders.of(owner);
        if hold.is_some() && self.state().is_some_and(|state| state.unconfirmed_whole_lease) {
            // It may hold the lock by a grant that it does not confirm, and then by the lease of this one alone.
            self.expected_end = ExpectedEnd::MaybeSooner;
        }
        let before = hold.map(|hold| (hold.expires_at, hold.token));
        let before_end = hold.map(|hold| hold.expires_at);
        // A first exclusive hold needs a token of its own: others got newer ones than the shared hold's.
        let re_entry = hold.filter(|hold| hold.allows_more(request.wants.mode));
        let upgrade = hold.is_some() && re_entry.is_none();
        let token = if request.fence {
            match re_entry.and_then(|hold| hold.token) {
                Some(token) => Some(token),
                None => {
                    self.parts.statistics.count(Counted::Token);
                    Some(self.records.next_token(self.holders.token()).map_err(NotGranted::Refused)?)
                }
            }
        } else {
            None
        };
        let token_is_set = request.fence || upgrade;
        let effect = GrantEffect {
            lease: match to {
                ReplyTarget::Caller => request.set_lease(self.now),
                ReplyTarget::Waiter => request.set_lease_after_wait(self.now),
            },
            token: token_is_set.then_some(SetToken { token, upgrade }),
        };
        let written = match to {
            ReplyTarget::Caller => effect.lease.after(before_end),
            ReplyTarget::Waiter => effect.lease.while_revocable(before_end),
        };
        self.holders.add(&request.owner, request.wants.mode, written, token);
        let since = before.is_none().then_some(self.now.mono);
        self.note_held(&request.owner, HoldRecord { end: written, since, client: request.client });
        // Also if the owner has taken it on another server before: here it is known to be a lock now.
        self.parts.granted_keys.insert(self.name);
        let now = self.now;
        if let Some(state) = self.state_mut() {
            state.fairness.granted(now);
            state.unannounced = false;
            if request.wants.mode == Mode::Exclusive && before.is_none() {
                state.held_since = Some(now.mono);
            }
        }
        let reply = request.reply(holds, token);
        if let Some(id) = &request.id {
            self.parts.bindings.note_granted(|| self.name.to_id(), (&request.owner, id), self.now);
            match &request.notify {
                Some(notify) if to == ReplyTarget::Waiter => {
                    self.records.remember_unconfirmed(id, &reply, notify.grace_ms, self.now);
                }
                _ => self.records.remember_grant(id, &reply, self.now),
            }
        }
        Ok(Grant { reply, effect, before, written })
    }

    /// Grants the caller's request. `None` if the holders do not admit it.
    pub(super) fn grant_caller(&mut self, request: &Request) -> Result<Option<Reply>, Refusal> {
        let Grant { reply, effect, before, written } = match self.grant(request, ReplyTarget::Caller) {
            Ok(grant) => grant,
            Err(NotGranted::Busy) => return Ok(None),
            Err(NotGranted::Refused(refusal)) => return Err(refusal),
        };
        self.count_grant(before.is_none());
        let lease = request.lease(written, self.now);
        if let Some(lock) = self.lock {
            if before.is_some() {
                self.parts.note_setting(lock, &request.owner, Some((effect.lease, written)), effect.token);
            }
            self.parts.bindings.note_lease(lock, &request.owner, lease, self.now);
            self.parts.move_waits_ahead(lock, &request.owner);
            if self.parts.has_members(lock) {
                self.parts.search_waits_of(&request.owner);
            }
            // It may have wanted something else before, for which it waits.
            self.supersede(lock, request);
        }
        if let Some(bind) = request.bind {
            self.bind(&request.owner, bind, (BindMode::Add, before.is_none()), (request.id.as_ref(), lease));
        }
        Ok(Some(reply))
    }

    /// The caller was granted its request without a wait.
    #[inline(always)]
    fn count_grant(&mut self, begins: bool) {
        let counted = if begins { Counted::GrantedAtOnce } else { Counted::Reentered };
        self.parts.statistics.count(counted);
    }

    /// Grants the caller's request as one that waits: it can be revoked. `None` if the holders do not admit it.
    #[cold]
    pub(super) fn grant_in_flight(&mut self, request: &Request) -> Result<Option<WaiterId>, Refusal> {
        let grant = match self.grant(request, ReplyTarget::Waiter) {
            Ok(grant) => grant,
            Err(NotGranted::Busy) => return Ok(None),
            Err(NotGranted::Refused(refusal)) => return Err(refusal),
        };
        let id = self.queue(request.clone(), None);
        let lock = self.known();
        self.count_grant(grant.before.is_none());
        let reply = self.hand_over(lock, id, request, grant, false);
        self.parts.decisions.push_back((id, Decision::Granted(reply)));
        Ok(Some(id))
    }

    /// Grants a part whose turn it is, see [`Step::may_grant`]. `waits` if it did.
    #[cold]
    pub(super) fn grant_member(&mut self, id: WaiterId, waits: bool) -> Option<Reply> {
        let wait = self.parts.waiters.queued(id)?;
        let (lock, request) = (wait.lock(), wait.request().clone());
        self.unbind_earlier(lock, &request.owner);
        match self.grant(&request, ReplyTarget::Waiter) {
            Ok(grant) => {
                if !waits {
                    self.count_grant(grant.before.is_none());
                }
                Some(self.hand_over(lock, id, &request, grant, waits))
            }
            Err(_) => defect!("a part cannot be granted whose turn it is", None),
        }
    }

    /// Whether this request could be granted now, as far as the holders matter and what is stored beside them.
    #[cold]
    pub(super) fn may_grant(&mut self, request: &Request) -> Verdict {
        let owner = request.owner.as_bytes();
        match self.admits(owner, request.wants) {
            Admission::Busy => return Verdict::Busy { quarantined: self.is_quarantined(request) },
            Admission::Overflow => return Verdict::Refused(Refusal::Overflow),
            Admission::Grant(_) => {}
        }
        let hold = self.holders.of(owner);
        let re_entry = hold.filter(|hold| hold.allows_more(request.wants.mode));
        if request.fence && re_entry.and_then(|hold| hold.token).is_none() {
            if let Err(refusal) = self.records.has_next_token(self.holders.token()) {
                return Verdict::Refused(refusal);
            }
        }
        Verdict::Available
    }

    /// Whether it is this part's turn. `None` if it does not wait any more.
    #[cold]
    pub(super) fn try_member(&mut self, id: WaiterId) -> Option<Verdict> {
        let wait = self.parts.waiters.queued(id)?;
        let (lock, position, request) = (wait.lock(), wait.position(), wait.request().clone());
        let state = self.parts.state(lock)?;
        let is_left_free = self.holders.is_free() && state.fairness.yields(MonoUs::MAX, self.now);
        if self.is_unfinished || is_left_free || state.queue.must_wait(position) {
            return Some(Verdict::Busy { quarantined: false });
        }
        Some(self.may_grant(&request))
    }

    /// Makes the owner's hold depend on a connection.
    fn bind(
        &mut self,
        owner: &Owner,
        bind: Bind,
        (mode, begins): (BindMode, bool),
        (id, lease): (Option<&RequestId>, Lease),
    ) {
        let lock = self.known();
        if begins && self.holders.alone().is_some() {
            if let Some(state) = self.parts.state_mut(lock) {
                state.held_since = Some(self.now.mono);
            }
        }
        let taken_over = TakenOver::default();
        let bind = NewBind { bind, mode, since: self.now.mono, begins, taken_over };
        self.parts.bindings.bind((lock, owner), bind, id, lease, self.now);
        self.parts.statistics.has_bound(self.parts.bindings.count());
    }

    /// Answers a call that came again, maybe on another connection because the first was lost: the hold depends on the
    /// connection that asks now, and is not revoked if the first answer did not arrive.
    pub(super) fn repeat(&mut self, request: &Request, reply: &Reply) {
        let owner = reply.owner.as_deref().unwrap_or(&request.owner);
        let Some(id) = &request.id else { return };
        let in_flight = self.lock.and_then(|lock| self.parts.waiters.of_request(lock, id));
        let in_flight = in_flight.filter(|(_, wait)| wait.state() == WaitState::Granted).map(|(id, _)| id);
        if in_flight.is_some() && self.any_notified() && self.confirm(request).is_some() {
            return;
        }
        let first_wait = in_flight.map(|id| self.parts.waiters.first_wait_of(id));
        // It has reached its client, but that is on another connection now.
        if let Some((id, (wait, _))) = in_flight.and_then(|id| Some((id, self.parts.confirm(id, self.now)?)))
        {
            if wait.request().awaits_replicas {
                self.parts.decisions.push_back((first_wait.unwrap_or(id), Decision::Superseded));
            }
            self.revoke_some(wait.lock(), Some(&wait.request().owner), usize::MAX);
        }
        let hold = self.holders.of(owner.as_bytes()).map(|hold| hold.expires_at);
        let (Some(mut end), Some(bind)) = (hold, request.bind) else { return };
        if self.has_ended(owner, id) {
            return;
        }
        self.note_held(owner, HoldRecord { end, since: None, client: request.client });
        if !self.lock.is_some_and(|lock| self.parts.bindings.has_bound(lock, owner, id)) {
            // Another server granted it, and may still believe that the hold depends on the first connection.
            // It will see that somebody else has changed the key, and doubt its binding.
            end = end.saturating_add(1);
            let _ = self.holders.renew(owner.as_bytes(), end);
            if let Some(lock) = self.lock {
                self.parts.note_setting(lock, owner, Some((SetLease::AtLeast(end), end)), None);
            }
        }
        let lease = request.lease(end, self.now);
        self.bind(owner, bind, (BindMode::ReplaceOwn, false), (Some(id), lease));
    }

    /// Confirms the grant that this request got after its wait, if its client was told of that by a message. Sets the whole
    /// lease, and what depends on the connection begins. `None` if there is no such grant.
    #[cold]
    pub(super) fn confirm(&mut self, request: &Request) -> Option<Reply> {
        let id = request.id.as_ref()?;
        let (granted, wait) = self.parts.waiters.of_request(self.lock?, id)?;
        if wait.state() != WaitState::Granted || wait.request().notify.is_none() {
            return None;
        }
        let (reply, wait) = self.confirm_wait(granted, request.lease_ms)?;
        let lease = self.set_whole_lease(request)?;
        if let Some(bind) = request.bind {
            let (since, begins, taken_over) = (wait.since(), wait.begins(), TakenOver::default());
            let bind = NewBind { bind, mode: BindMode::Add, since, begins, taken_over };
            self.parts.bindings.bind((wait.lock(), &request.owner), bind, Some(id), lease, self.now);
            self.parts.statistics.has_bound(self.parts.bindings.count());
        }
        Some(reply)
    }

    /// The same of a grant that another server made, or this one before it was a replica: it has told so, and the record is left.
    /// False if it has ended, as nobody confirmed it: it was never made.
    #[cold]
    pub(super) fn confirm_recorded(&mut self, request: &Request, reply: &Reply) -> bool {
        let Some(id) = &request.id else { return false };
        if self.set_whole_lease(request).is_none() {
            self.records.forget_grant(id);
            return false;
        }
        self.records.remember_grant(id, reply, self.now);
        true
    }

    /// The owner knows that it holds the lock. If it holds nothing else, it knows of the grants of which it was told by messages:
    /// these are confirmed.
    pub(super) fn confirm_all_of(&mut self, owner: &Owner, lease_ms: i64) {
        let granted = self.notified_grants(owner);
        let holds = self.holders.of(owner.as_bytes()).map_or(0, Hold::total);
        if i64::try_from(granted.len()).is_ok_and(|granted| granted == holds) {
            granted.into_iter().for_each(|id| {
                self.confirm_wait(id, lease_ms);
            });
        }
    }

    /// The grants of this owner that are to be confirmed by a call, in their order.
    fn notified_grants(&self, owner: &Owner) -> Vec<WaiterId> {
        let Some(state) = self.lock.and_then(|lock| self.parts.state(lock)) else { return Vec::new() };
        let is_notified =
            |id: &WaiterId| self.parts.waiters.get(*id).is_some_and(|wait| wait.request().notify.is_some());
        state.unconfirmed.in_flight_to(owner).filter(is_notified).collect()
    }

    /// Gives back a part of what the owner holds, for a call with this request id. Returns how many holds it has left, whose lease
    /// ends then if that is given.
    ///
    /// A count does not tell whose hold is given back: see `Unconfirmed::grant_to_release`. If it is that of a grant in flight whose client
    /// is still to be told, that grant is lost. If the client may know of it already, the grant stays as it is but for its hold.
    #[inline(always)]
    pub(super) fn release_unconfirmed(
        &mut self,
        owner: &Owner,
        scope: ReleaseScope,
        id: Option<&RequestId>,
        lease_end: Option<WallMs>,
    ) -> Result<i64, NotOwner> {
        match self.grant_to_release(owner, scope, id) {
            Some(grant) if grant.is_withheld => Ok(self.lose_grant(owner, grant.id, lease_end)),
            Some(grant) => {
                self.keep_after_release(owner, scope, grant);
                self.holders.release(owner.as_bytes(), scope, lease_end)
            }
            None => self.holders.release(owner.as_bytes(), scope, lease_end),
        }
    }

    /// The grant in flight whose hold is given back, if it is that of one.
    #[inline(always)]
    fn grant_to_release(
        &self,
        owner: &Owner,
        scope: ReleaseScope,
        id: Option<&RequestId>,
    ) -> Option<ReleasedGrant> {
        let lock = self.lock?;
        let unconfirmed = &self.parts.state(lock)?.unconfirmed;
        // With its last hold all of an owner's grants are void.
        if !unconfirmed.any_in_flight() || scope == ReleaseScope::All {
            return None;
        }
        let hold = self.holders.of(owner.as_bytes()).filter(|hold| hold.total() > 1)?;
        let mode = scope.mode_of(hold);
        let holds = Some(hold.count(mode)).filter(|holds| *holds > 0)?;
        let named = id.and_then(|id| self.parts.waiters.of_request(lock, id)).map(|(id, _)| id);
        unconfirmed.grant_to_release(owner, (mode, holds), named)
    }

    /// The hold of a grant is given back whose client may know of it. If nobody did, and the grant is revoked, then the call that has
    /// given back an exclusive hold without saying so was for a shared one that is certain.
    #[cold]
    fn keep_after_release(&mut self, owner: &Owner, scope: ReleaseScope, grant: ReleasedGrant) {
        let Some(hold) = self.holders.of(owner.as_bytes()) else { return };
        let may_be_another = scope == ReleaseScope::One && hold.exclusive > 0 && !grant.is_named;
        let shared = hold.shared;
        let Some(state) = self.state_mut() else { return };
        let instead = may_be_another && state.unconfirmed.is_certain(owner, Mode::Shared, shared);
        state.unconfirmed.hold_released(grant.id, owner, instead.then_some(Mode::Shared));
    }

    /// The hold of a grant in flight is given back, and its client told so. Returns how many holds the owner has left, whose lease
    /// ends then if that is given.
    #[cold]
    fn lose_grant(&mut self, owner: &Owner, grant: WaiterId, lease_end: Option<WallMs>) -> i64 {
        let wait = self.parts.waiters.get(grant).map(|wait| (wait.lock(), wait.request().clone()));
        if let Some((lock, request)) = wait {
            let first_wait = self.parts.waiters.first_wait_of(grant);
            self.parts.decide(first_wait, lock, &request, Decision::Lost);
            self.parts.begin_to_revoke(grant);
            self.revoke_some(lock, Some(owner), usize::MAX);
        }
        if let Some(end) = lease_end {
            let _ = self.holders.renew(owner.as_bytes(), end);
        }
        self.holders.of(owner.as_bytes()).map_or(0, Hold::total)
    }

    /// A grant is final of which its client was told by a message, and its hold has such a lease from now on. Returns what it
    /// got.
    fn confirm_wait(&mut self, granted: WaiterId, lease_ms: i64) -> Option<(Reply, Wait)> {
        let (wait, _) = self.parts.confirm(granted, self.now)?;
        if lease_ms < wait.request().lease_ms {
            self.expected_end = ExpectedEnd::MaybeSooner;
        }
        if let Some(state) = self.state_mut() {
            state.unconfirmed_whole_lease = false;
        }
        let request = wait.request();
        // The lease may be settled now.
        self.revoke_some(wait.lock(), Some(&request.owner), usize::MAX);
        let (Some(notify), Some(id)) = (&request.notify, &request.id) else {
            return defect!("a grant is confirmed of which no message tells", None);
        };
        self.parts.waiters.notified.note_confirmed(notify.connection);
        self.parts.statistics.count(Counted::Confirmed);
        let hold = self.holders.of(request.owner.as_bytes())?;
        let reply = match self.records.granted(id) {
            // Meanwhile others of the owner's holds may have begun and ended.
            Ok(Some(reply)) => Reply { holds: hold.total(), ..reply },
            // Somebody has deleted the record.
            _ => request.reply(hold.total(), hold.token.filter(|_| request.fence)),
        };
        self.records.remember_grant(id, &reply, self.now);
        Some((reply, wait))
    }

    /// Gives the request's owner the lease that the request asks for, from now on. `None` if it holds nothing.
    fn set_whole_lease(&mut self, request: &Request) -> Option<Lease> {
        let owner = &request.owner;
        let before = self.holders.of(owner.as_bytes())?.expires_at;
        let set = request.set_lease(self.now);
        let end = set.after(Some(before));
        let _ = self.holders.renew(owner.as_bytes(), end);
        self.note_held(owner, HoldRecord { end, since: None, client: request.client });
        let lease = request.lease(end, self.now);
        if let Some(lock) = self.lock {
            self.parts.note_setting(lock, owner, Some((set, end)), None);
            self.parts.bindings.note_lease(lock, owner, lease, self.now);
            self.revoke_some(lock, Some(owner), usize::MAX);
        }
        Some(lease)
    }

    /// Queues a request. If it waits already, on another connection, it keeps its position, and that one's wait ends.
    pub(super) fn queue(&mut self, request: Request, deadline: Option<MonoUs>) -> WaiterId {
        let lock = self.known();
        let id = self.parts.waiters.next_id();
        let before = self.supersede(lock, &request);
        let holds = self.holders.of(request.owner.as_bytes()).is_some();
        let arrived = before.unwrap_or((id.0, self.now.mono));
        self.parts.insert_wait(lock, (id, None), (request, holds), deadline, arrived);
        id
    }

    /// Queues a part of a request for several locks: it stands in all queues by the same ticket.
    #[cold]
    pub(super) fn queue_member(
        &mut self,
        request: Request,
        deadline: Option<MonoUs>,
        bundle: &mut Option<NewBundle>,
    ) -> WaiterId {
        let lock = self.known();
        let id = self.parts.waiters.next_id();
        let before = self.supersede(lock, &request);
        let (ticket, since) = before.unwrap_or((id.0, self.now.mono));
        let NewBundle { first_wait, ticket, since } =
            *bundle.get_or_insert(NewBundle { first_wait: id, ticket, since });
        let holds = self.holders.of(request.owner.as_bytes()).is_some();
        self.parts.insert_wait(lock, (id, Some(first_wait)), (request, holds), deadline, (ticket, since));
        id
    }

    /// Ends the wait of this request, if it waits already. Returns its ticket, and since when it waited.
    fn supersede(&mut self, lock: LockIdx, request: &Request) -> Option<(u64, MonoUs)> {
        let (before, wait) = self.parts.waiters.of_request(lock, request.id.as_ref()?)?;
        if wait.state() != WaitState::Queued {
            return None;
        }
        let position = (wait.position().ticket(), wait.since());
        // It may want something else now, which can be granted.
        self.parts.table.set_ready(lock);
        self.parts.end_queued(before, Decision::Superseded);
        Some(position)
    }

    /// Sets a lease for certain.
    pub(super) fn set_lease(&mut self, owner: &Owner, lease: Lease) {
        let Some(lock) = self.lock else { return };
        self.parts.note_setting(lock, owner, Some((SetLease::To(lease.end), lease.end)), None);
        self.parts.bindings.note_lease(lock, owner, lease, self.now);
    }

    /// The owner has renewed its lease.
    pub(super) fn renewed(
        &mut self,
        owner: &Owner,
        lease: Lease,
        bind: Option<Bind>,
        client: Option<ConnectionId>,
    ) {
        self.note_held(owner, HoldRecord { end: lease.end, since: None, client });
        self.parts.granted_keys.insert(self.name);
        self.set_lease(owner, lease);
        if let Some(bind) = bind {
            self.take_over(owner, bind);
            self.bind(owner, bind, (BindMode::ReplaceAll, false), (None, lease));
        }
    }

    /// A renewal takes over, too, what was granted before it and is not known yet to have reached its client: who has read the
    /// grant may renew it on another connection and close the one that waited, all before that is known.
    fn take_over(&mut self, owner: &Owner, by: Bind) {
        let Some(state) = self.lock.and_then(|lock| self.parts.state(lock)) else { return };
        if !state.unconfirmed.any_in_flight() {
            return;
        }
        let granted: SmallVec<[WaiterId; 2]> = state.unconfirmed.in_flight_to(owner).collect();
        for id in granted {
            self.parts.waiters.take_over(id, by);
        }
    }

    /// Ends the wait of this request, or revokes its grant if that is still on its way. `None` if there is neither.
    pub(super) fn cancel_wait(&mut self, request: &RequestId) -> Option<()> {
        let lock = self.lock?;
        let (id, wait) = self.parts.waiters.of_request(lock, request)?;
        match wait.state() {
            WaitState::Queued => {
                self.parts.end_queued(id, Decision::Cancelled);
                Some(())
            }
            WaitState::Granted if self.holders.of(wait.request().owner.as_bytes()).is_none() => {
                // Its lease is over, which no step has found yet.
                None
            }
            // Its client counts on the other locks.
            WaitState::Granted
                if wait
                    .first_wait()
                    .is_some_and(|first_wait| self.parts.waiters.bundles.is_answered(first_wait)) =>
            {
                let owner = wait.request().owner.clone();
                self.parts.begin_to_revoke_alone(id);
                self.revoke_some(lock, Some(&owner), usize::MAX);
                Some(())
            }
            WaitState::Granted => {
                // The client may be answered in the same turn of the event loop, but not with a grant.
                let (first_wait, waits) = (self.parts.waiters.first_wait_of(id), wait.request().clone());
                self.parts.decide(first_wait, lock, &waits, Decision::Cancelled);
                self.parts.begin_to_revoke(id);
                self.revoke_some(lock, Some(&waits.owner), usize::MAX);
                Some(())
            }
            WaitState::Revoking => None,
        }
    }

    #[inline(always)]
    pub(super) fn count(&mut self, what: impl Into<Option<Counted>>) {
        if let Some(what) = what.into() {
            self.parts.statistics.count(what);
        }
    }

    /// The caller has given back its last hold.
    pub(super) fn count_hold(&mut self) {
        let Some(since) = self.state_mut().and_then(|state| state.held_since.take()) else { return };
        self.parts.statistics.held(self.now.mono.saturating_sub(since));
    }

    /// True if the hold that this request got for its owner has ended since, as far as that is remembered.
    pub(super) fn has_ended(&self, owner: &Owner, id: &RequestId) -> bool {
        let bindings = &self.parts.bindings;
        bindings.has_ended(|| self.name.to_id(), id, self.now)
            || bindings.ended_with_connection(|| self.name.to_id(), owner, id, self.now)
    }

    /// The hold that this request got with this reply may have ended with a connection: then it is as if the request had never been
    /// made. Returns whether that is so. What was given back by its own id was made.
    pub(super) fn forget_if_closed(&mut self, request: &Request, id: &RequestId, reply: &Reply) -> bool {
        let owner = reply.owner.as_deref().unwrap_or(&request.owner);
        let is_closed = self.parts.bindings.ended_with_connection(|| self.name.to_id(), owner, id, self.now)
            && matches!(self.records.released(id), Ok(None));
        if is_closed {
            self.records.forget_grant(id);
        }
        is_closed
    }

    /// The hold that this request got was given back.
    pub(super) fn unbind_request(&mut self, owner: &Owner, id: &RequestId) {
        if let Some(lock) = self.lock {
            self.parts.bindings.unbind_request(lock, owner, id, self.now);
            if self.is_crowded {
                self.ended_or_set(lock, owner);
            }
        }
    }

    /// A newcomer has looked at the key, and at what stands beside it.
    pub(super) fn note_look(&mut self) {
        let now = self.now.mono;
        if let Some(state) = self.state_mut() {
            state.last_look = Some(now);
        }
    }

    fn forget_if_free(&mut self) {
        if self.holders.is_free() {
            self.parts.granted_keys.remove(self.name);
        }
    }

    /// Forgets what is not needed any more of external clients, now or after a while.
    #[inline(always)]
    fn settle_fairness(&mut self, lock: LockIdx) {
        let (is_free, now) = (self.holders.is_free(), self.now);
        let Some(state) = self.parts.state_mut(lock) else { return };
        let used = state.fairness.settle(is_free, !state.queue.is_empty(), now);
        self.parts.windows_used += usize::from(used);
        self.parts.schedule_window(lock);
    }

    /// Keeps an own deadline for the end of the first lease of every lock that somebody waits for. Returns whether there is
    /// one.
    #[inline(always)]
    fn watch_lease(&mut self, lock: LockIdx) -> bool {
        let is_free = self.holders.is_free();
        let Some(state) = self.parts.state(lock) else { return false };
        let is_waited_for = !state.queue.is_empty() || (!is_free && state.fairness.has_subscribers());
        if !is_waited_for && !state.has_owners_to_notify() {
            if self.handed_over && !is_free {
                self.parts.keep_watching(lock);
            } else {
                self.parts.schedule_lease(lock, None);
            }
            return false;
        }
        let ends_unheard = match self.holders {
            // One reader fewer makes way for who wants the lock with fewer others; for all else there is an event.
            Holders::Shared(_) => state.queue.waits_for_fewer(),
            Holders::Free | Holders::Exclusive(_) => is_waited_for,
        };
        let of_holders = self.holders.first_end();
        let end = earlier(of_holders, state.held.first_end());
        self.parts.schedule_lease(lock, end);
        if ends_unheard && self.holders.outlives_its_field() {
            self.parts.fragile.insert(lock);
        } else if !self.parts.fragile.is_empty() {
            self.parts.fragile.remove(lock);
        }
        of_holders.is_some()
    }
}
