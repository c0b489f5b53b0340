//! Bringing one lock up to date, and serving its queue.
//!
//! Every step on a lock has the same three parts: what ended without a call ([`Service::begin`]), the call
//! itself, and what that made way for ([`Service::finish`]).

use super::entries::Entry;
use super::holders::Admission;
use super::pending::{Set, SetToken};
use super::service::{asked, is_exclusive, InFlight, Waiter};
use super::{
    Decision, Holders, LockRef, Mode, Now, Outcome, Owner, Records, Refusal, Reply, Request, Service, Token,
    WaiterId, WallMs,
};

/// A request that was granted.
pub(super) struct Grant {
    pub(super) reply: Reply,
    pub(super) set: Set,
    /// When the owner's lease ended, and its token, if it held the lock before.
    pub(super) before: Option<(WallMs, Option<Token>)>,
    /// When it ends now.
    pub(super) written: WallMs,
}

/// Who is told of a grant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// Whoever calls: it cannot be revoked.
    Caller,
    /// A client that waits, and may be gone.
    Waiter,
}

impl Service {
    /// Brings one lock up to date with what its key holds: takes back grants that did not arrive, follows
    /// connections that closed and watchdogs, then grants the lock to whoever is first in line and may have
    /// it.
    pub(crate) fn serve(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        now: Now,
    ) {
        self.begin(lock, holders, records, now);
        self.finish(lock, holders, records, now);
    }

    /// Ends and renews what is to be ended and renewed by now.
    pub(super) fn begin(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        now: Now,
    ) {
        self.looked_at(lock);
        if self.entries.get(lock).is_none() {
            return;
        }
        self.take_back(lock, holders, records, now);
        self.follow_connections(lock, holders, records, now);
    }

    /// Takes back the grants that did not arrive.
    pub(super) fn take_back(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        now: Now,
    ) {
        let Some(entry) = self.entries.get_mut(lock) else { return };
        for grant in std::mem::take(&mut entry.take_back) {
            if holders.of(grant.owner.as_bytes()).is_none() {
                // Its lease is over, which nobody had looked at: there is nothing to take back.
                continue;
            }
            grant.uncount(holders);
            entry.uncount_pending(&grant, holders);
            if let Some(id) = grant.id {
                records.forget_grant(&id);
            }
        }
        self.settle_pending(lock, holders, now);
    }

    /// Grants what can be granted by now.
    pub(super) fn finish(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        now: Now,
    ) {
        if self.entries.get(lock).is_none() {
            return;
        }
        // Who holds nothing any more, has nothing to be delivered, taken back or renewed.
        self.void_where(lock, |owner| holders.of(owner.as_bytes()).is_none());
        self.send_outside(lock, holders);
        if !(holders.is_free() && self.is_strangers_turn(lock, records, now)) {
            self.serve_queue(lock, holders, records, now);
        }
        self.forget_if_free(lock, holders);
        self.settle_turn(lock, holders, now);
        self.watch_lease(lock, holders);
        self.entries.drop_if_idle(lock);
    }

    fn serve_queue(&mut self, lock: LockRef<'_>, holders: &mut Holders, records: &mut dyn Records, now: Now) {
        while let Some(id) = self.next_in_line(lock, holders, now) {
            let Some(waiter) = self.waiters.get(&id) else { break };
            if waiter.is_over(now) {
                self.decide(id, Decision::TimedOut);
                continue;
            }
            let request = waiter.request.clone();
            match self.grant(lock, holders, records, &request, To::Waiter, now) {
                Ok(grant) => self.hand_over(id, grant),
                Err(Outcome::Refused(refusal)) => {
                    self.decide(id, Decision::Refused(refusal));
                }
                Err(_) => break,
            }
        }
    }

    /// Grants a request whose turn it is, if the holders admit it.
    pub(super) fn grant(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        request: &Request,
        to: To,
        now: Now,
    ) -> Result<Grant, Outcome> {
        let owner = request.owner.as_bytes();
        match holders.admits(owner, request.mode) {
            Admission::Busy => return Err(Outcome::Busy),
            Admission::Overflow => return Err(Outcome::Refused(Refusal::Overflow)),
            Admission::Grant(_) => {}
        }
        let hold = holders.of(owner);
        let before = hold.map(|hold| (hold.expires_at, hold.token));
        let before_end = hold.map(|hold| hold.expires_at);
        // A first exclusive hold needs a token of its own: others got newer ones than the shared hold's.
        let re_entry = hold.filter(|hold| request.mode == Mode::Shared || hold.exclusive > 0);
        let upgrade = hold.is_some() && re_entry.is_none();
        let token = if request.fence {
            match re_entry.and_then(|hold| hold.token) {
                Some(token) => Some(token),
                None => match records.next_token(holders.token()) {
                    Ok(token) => Some(token),
                    Err(refusal) => return Err(Outcome::Refused(refusal)),
                },
            }
        } else {
            None
        };
        let token_is_set = request.fence || upgrade;
        let set =
            Set { lease: request.set_lease(now), token: token_is_set.then_some(SetToken { token, upgrade }) };
        let written = match to {
            To::Caller => set.lease.after(before_end),
            To::Waiter => set.lease.for_now(before_end),
        };
        let Admission::Grant(holds) = holders.acquire(&request.owner, request.mode, written, token) else {
            return Err(Outcome::Busy);
        };
        // Also if the owner has taken it elsewhere before: here it is known to be a lock now.
        self.held.insert(lock);
        if let Some(entry) = self.entries.get_mut(lock) {
            entry.turn.granted(now);
        }
        if !self.owed.is_empty() {
            self.owed.remove(&lock.to_id());
        }
        self.let_inside(lock, &request.owner);
        let reply = request.reply(holds, token);
        if let Some(id) = &request.id {
            self.has_begun(lock, id);
            records.remember_grant(id, &reply, now);
        }
        Ok(Grant { reply, set, before, written })
    }

    /// The waiter whose turn it is, if it can be decided now: an owner who holds the lock and wants more of it
    /// before everybody else, then the first in line.
    fn next_in_line(&self, lock: LockRef<'_>, holders: &Holders, now: Now) -> Option<WaiterId> {
        let entry = self.entries.get(lock)?;
        let decidable = |id: &WaiterId| {
            self.waiters.get(id).is_some_and(|waiter| {
                let Request { owner, mode, .. } = &waiter.request;
                waiter.is_over(now) || holders.admits(owner.as_bytes(), *mode) != Admission::Busy
            })
        };
        let mut inside = entry.insiders().map(|(_, id)| id).peekable();
        if inside.peek().is_some() {
            return inside.find(decidable);
        }
        entry.waiting.values().next().copied().filter(decidable)
    }

    /// The owner holds the lock now: what else it waits for there is not in line behind others.
    fn let_inside(&mut self, lock: LockRef<'_>, owner: &Owner) {
        if self.waits_of.is_empty() {
            return;
        }
        for id in self.waits_at(lock, owner) {
            self.move_to(id, false);
        }
    }

    /// Owners who do not hold the lock any more are in line as everybody else.
    fn send_outside(&mut self, lock: LockRef<'_>, holders: &Holders) {
        let Some(entry) = self.entries.get(lock) else { return };
        let inside: Vec<WaiterId> = entry.insiders().map(|(_, id)| id).collect();
        for id in inside {
            let holds = |waiter: &Waiter| holders.of(waiter.request.owner.as_bytes()).is_some();
            if !self.waiters.get(&id).is_some_and(holds) {
                self.move_to(id, true);
            }
        }
    }

    fn move_to(&mut self, id: WaiterId, outsider: bool) {
        let Some(mut waiter) = self.take_out(id) else { return };
        waiter.place.outsider = outsider;
        self.enqueue(id, waiter);
    }

    /// The waits of an owner for one lock, in the order of arrival.
    pub(super) fn waits_at(&self, lock: LockRef<'_>, owner: &Owner) -> Vec<WaiterId> {
        let Some(waits) = self.waits_of.get(owner) else { return Vec::new() };
        let from = (lock.to_id(), WaiterId(0));
        waits.range(from..).take_while(|(of, _)| of.as_ref() == lock).map(|(_, id)| *id).collect()
    }

    /// Ends a wait with a decision.
    pub(super) fn decide(&mut self, id: WaiterId, decision: Decision) -> Option<Waiter> {
        let waiter = self.remove_waiter(id)?;
        self.decisions.push((id, decision));
        Some(waiter)
    }

    /// Ends a wait with a grant that is to be delivered.
    fn hand_over(&mut self, id: WaiterId, grant: Grant) {
        let Grant { reply, set, before, written } = grant;
        let Some(Waiter { lock, request, .. }) = self.decide(id, Decision::Granted(reply)) else { return };
        if let Some(before) = before {
            self.lease_end_was_set(lock.as_ref(), &request.owner, written);
            self.pend(lock.as_ref(), &request.owner, (id, set), before, written);
        }
        if let Some(entry) = self.entries.get_mut(lock.as_ref()) {
            entry.in_flight.push(id);
        }
        self.in_flight.insert(id, InFlight { lock, request, set, written, lease_is_anothers: false });
    }

    /// Puts a waiter into its queue.
    pub(super) fn enqueue(&mut self, id: WaiterId, waiter: Waiter) {
        let Waiter { lock, request, place, .. } = &waiter;
        let entry = self.entries.get_or_make(lock.as_ref()).1;
        entry.waiting.insert(*place, id);
        if is_exclusive(request) {
            entry.exclusive.insert(*place);
        }
        let waits = self.waits_of.entry(request.owner.clone()).or_default();
        let crossed = spans_locks(waits);
        waits.insert((lock.clone(), id));
        let mark = match (crossed, spans_locks(waits)) {
            (false, true) => waits.iter().map(|(_, id)| *id).collect(),
            (true, _) => vec![id],
            (false, false) => Vec::new(),
        };
        self.waiters.insert(id, waiter);
        for id in mark {
            self.set_crossing(id, true);
        }
    }

    /// Takes a waiter out of its queue, where it may come back to.
    fn take_out(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiters.get(&id)?;
        let Waiter { lock, request, place, .. } = waiter;
        let (lock, owner, place) = (lock.clone(), request.owner.clone(), *place);
        let mut unmark = Vec::new();
        if let Some(waits) = self.waits_of.get_mut(&owner) {
            let crossed = spans_locks(waits);
            waits.remove(&(lock.clone(), id));
            if crossed && !spans_locks(waits) {
                unmark = waits.iter().map(|(_, id)| *id).collect();
            }
            if waits.is_empty() {
                self.waits_of.remove(&owner);
            }
        }
        for id in unmark {
            self.set_crossing(id, false);
        }
        if let Some(entry) = self.entries.get_mut(lock.as_ref()) {
            entry.waiting.remove(&place);
            entry.exclusive.remove(&place);
            entry.crossing.remove(&place);
        }
        self.waiters.remove(&id)
    }

    fn set_crossing(&mut self, id: WaiterId, crosses: bool) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let Some(entry) = self.entries.get_mut(waiter.lock.as_ref()) else { return };
        if crosses {
            entry.crossing.insert(waiter.place);
        } else {
            entry.crossing.remove(&waiter.place);
        }
    }

    /// Takes a waiter out of every index. Its lock's entry stays, even if it is idle now.
    pub(super) fn remove_waiter(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.take_out(id)?;
        if let Some(at) = waiter.deadline {
            self.deadlines.remove(&(at, id));
        }
        if let Some(asked) = asked(&waiter.lock, &waiter.request) {
            if self.asked.get(&asked) == Some(&id) {
                self.asked.remove(&asked);
            }
        }
        Some(waiter)
    }

    /// A waiter is gone without a grant: those behind it may not have to wait any more.
    pub(super) fn left_behind(&mut self, waiter: &Waiter) {
        let Waiter { lock, request, place, .. } = waiter;
        if let Some(entry) = self.entries.get(lock.as_ref()) {
            let next = entry.waiting.keys().next();
            let makes_way = is_exclusive(request)
                && next.is_some_and(|next| place < next && !entry.exclusive.contains(next));
            if makes_way && !self.suspended {
                self.dirty.insert(lock.clone());
            }
        }
        let unwatched = |entry: &Entry| entry.waiting.is_empty() && !entry.turn.is_heard();
        if self.entries.get(lock.as_ref()).is_some_and(unwatched) {
            self.set_lease_end(lock.as_ref(), None);
        }
        self.entries.drop_if_idle(lock.as_ref());
    }

    pub(super) fn remove_in_flight(&mut self, id: WaiterId) -> Option<InFlight> {
        let grant = self.in_flight.remove(&id)?;
        if let Some(entry) = self.entries.get_mut(grant.lock.as_ref()) {
            entry.in_flight.retain(|other| *other != id);
        }
        Some(grant)
    }

    /// The holds of these owners ended: what was still to be delivered, taken back, renewed or released of
    /// them is void.
    pub(super) fn void_where(&mut self, lock: LockRef<'_>, ended: impl Fn(&Owner) -> bool) {
        self.void_grants(lock, &ended);
        self.unbind_where(lock, &ended);
    }

    /// The same without what depends on connections.
    pub(super) fn void_grants(&mut self, lock: LockRef<'_>, ended: impl Fn(&Owner) -> bool) {
        let Some(Entry { take_back, in_flight, pending, .. }) = self.entries.get_mut(lock) else { return };
        take_back.retain(|grant| !ended(&grant.owner));
        pending.retain(|owner, _| !ended(owner));
        in_flight.retain(|id| match self.in_flight.get(id) {
            Some(grant) if ended(&grant.request.owner) => {
                self.in_flight.remove(id);
                false
            }
            _ => true,
        });
    }

    pub(super) fn forget_if_free(&mut self, lock: LockRef<'_>, holders: &Holders) {
        if holders.is_free() {
            self.held.remove(lock);
        }
    }

    pub(super) fn mark_dirty(&mut self, lock: LockRef<'_>) {
        let id = self.entries.get_with_id(lock).map_or_else(|| lock.to_id(), |(id, _)| id);
        self.dirty.insert(id);
    }

    /// The lock is up to date with its key.
    pub(super) fn looked_at(&mut self, lock: LockRef<'_>) {
        if !self.dirty.is_empty() && !self.owed.contains(&lock.to_id()) {
            self.dirty.remove(&lock.to_id());
        }
    }

    /// Keeps an own deadline for the end of the first lease of every lock that somebody waits for.
    pub(super) fn watch_lease(&mut self, lock: LockRef<'_>, holders: &Holders) {
        let wanted =
            |entry: &Entry| !entry.waiting.is_empty() || (entry.turn.is_heard() && !holders.is_free());
        if self.entries.get(lock).is_some_and(wanted) {
            self.set_lease_end(lock, holders.first_end());
            let fragile = holders.outlives_its_field();
            if fragile || !self.fragile.is_empty() {
                let id = lock.to_id();
                if fragile {
                    self.fragile.insert(id);
                } else {
                    self.fragile.remove(&id);
                }
            }
        } else {
            self.set_lease_end(lock, None);
        }
    }

    pub(super) fn set_lease_end(&mut self, lock: LockRef<'_>, end: Option<WallMs>) {
        let Some((id, entry)) = self.entries.get_with_id(lock) else { return };
        if end.is_none() && !self.fragile.is_empty() {
            self.fragile.remove(&id);
        }
        let before = std::mem::replace(&mut entry.lease_end, end);
        if before == end {
            return;
        }
        if let Some(at) = before {
            self.leases.remove(&(at, id.clone()));
        }
        if let Some(at) = end {
            self.leases.insert((at, id));
        }
    }
}

/// True if an owner waits for more than one lock.
fn spans_locks(waits: &std::collections::BTreeSet<(super::LockId, WaiterId)>) -> bool {
    match (waits.first(), waits.last()) {
        (Some((first, _)), Some((last, _))) => first != last,
        _ => false,
    }
}
