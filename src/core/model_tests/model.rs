// SPDX-License-Identifier: MIT

//! The behavior of the core in its simplest form: lists that are searched from end to end in every
//! millisecond.

mod look;

use super::super::bindings::binding::BindMode;
use super::*;

/// One lock of the model.
#[derive(Default)]
pub(super) struct ModelLock {
    pub(super) holds: Vec<ModelHold>,
    pub(super) other: bool,
    /// Holders known to this server, which has granted them the lock or renewed it for them.
    known: BTreeSet<usize>,
    /// Waiters in order of arrival.
    pub(super) queue: Vec<ModelWaiter>,
    pub(super) counter: Option<i64>,
    /// Replies by owner and request, each with the time until which it is remembered.
    pub(super) granted: BTreeMap<(usize, u8), (Reply, i64)>,
    pub(super) released: BTreeMap<(usize, u8), (i64, i64)>,
    /// The hold that each request got, and whether the request bound it to a connection.
    granted_hold: BTreeMap<(usize, u8), (u64, bool)>,
    /// The last hold of each owner that ended with a connection.
    last_closed: BTreeMap<usize, u64>,
    /// Replies to cancels (whether anything was undone), each with the time until which it is remembered.
    cancelled: BTreeMap<(usize, u8), (bool, i64)>,
    bindings: BTreeMap<usize, ModelBinding>,
    /// Calls that bound a hold which has ended, each with the time until which it may be repeated.
    ended: BTreeMap<(usize, u8), i64>,
}

pub(super) struct ModelHold {
    pub(super) owner: usize,
    pub(super) exclusive: i64,
    pub(super) shared: i64,
    pub(super) expires_at: i64,
    /// End of the lease that this server set last.
    written: i64,
    pub(super) token: Option<i64>,
    /// Number of the hold in the lock's history. A revocation applies to this hold only.
    pub(super) number: u64,
    /// All changes of the lease, in order, each with its grant while that grant may still be revoked.
    leases: Vec<(Option<WaiterId>, Lease)>,
    /// All changes of the token, in order, each with its grant while that grant may still be revoked. The flag
    /// is true if the hold was shared before.
    tokens: Vec<(Option<WaiterId>, Option<i64>, bool)>,
}

/// The effect of a call on a lease.
#[derive(Clone, Copy)]
enum Lease {
    To(i64),
    /// Extends the lease, but never shortens it.
    AtLeast(i64),
}

impl Call {
    fn lease_from(&self, now: i64) -> Lease {
        let end = now + self.lease;
        if self.keeps {
            Lease::AtLeast(end)
        } else {
            Lease::To(end)
        }
    }
}

impl ModelHold {
    fn count(&self, mode: Mode) -> i64 {
        match mode {
            Mode::Exclusive => self.exclusive,
            Mode::Shared => self.shared,
        }
    }

    fn count_mut(&mut self, mode: Mode) -> &mut i64 {
        match mode {
            Mode::Exclusive => &mut self.exclusive,
            Mode::Shared => &mut self.shared,
        }
    }

    fn set_lease(&mut self, by: Option<WaiterId>, lease: Lease) {
        self.expires_at = match lease {
            Lease::To(end) if by.is_none() => end,
            // A grant that may be revoked does not shorten a lease.
            Lease::To(end) | Lease::AtLeast(end) => end.max(self.expires_at),
        };
        self.written = self.expires_at;
        self.leases.push((by, lease));
        self.settle_lease();
    }

    /// Applies a foreign write of the lease.
    fn set_by_a_foreign_write(&mut self, end: i64) {
        self.expires_at = end;
        self.leases = vec![(None, Lease::To(end))];
    }

    /// Sets the lease as if only the delivered grants had been made, once the outcome of every relevant grant
    /// is known.
    fn settle_lease(&mut self) {
        let certain = |(by, lease): &(Option<WaiterId>, Lease)| by.is_none() && matches!(lease, Lease::To(_));
        if let Some(last) = self.leases.iter().rposition(certain) {
            self.leases.drain(..last);
        }
        if self.leases.iter().any(|(by, _)| by.is_some()) {
            return;
        }
        let set = |end: Option<i64>, (_, lease): &(Option<WaiterId>, Lease)| match lease {
            Lease::To(at) => Some(*at),
            Lease::AtLeast(at) => end.max(Some(*at)),
        };
        if let Some(end) = self.leases.iter().fold(None, set) {
            if self.expires_at != end {
                (self.expires_at, self.written) = (end, end);
            }
            self.leases = vec![(None, Lease::To(end))];
        }
    }

    fn set_token(&mut self, by: Option<WaiterId>, token: Option<i64>, was_shared: bool) {
        self.token = token;
        self.tokens.push((by, token, was_shared));
    }

    /// Records that the grant was delivered and cannot be revoked.
    fn delivered(&mut self, id: WaiterId) {
        for (by, ..) in &mut self.leases {
            *by = by.filter(|by| *by != id);
        }
        for (by, ..) in &mut self.tokens {
            *by = by.filter(|by| *by != id);
        }
        self.settle_lease();
    }

    /// Undoes the grant as if it had never been made.
    fn undelivered(&mut self, id: WaiterId, hold_mode: Option<Mode>) {
        if let Some(mode) = hold_mode {
            *self.count_mut(mode) -= 1;
        }
        self.leases.retain(|(by, _)| *by != Some(id));
        let last = self.tokens.pop_if(|(by, ..)| *by == Some(id));
        self.tokens.retain(|(by, ..)| *by != Some(id));
        if let Some((.., was_shared)) = last {
            let before = self.tokens.last().and_then(|(_, token, _)| *token);
            // A shared hold's token is outdated for an exclusive one.
            self.token = before.filter(|_| !was_shared || self.exclusive == 0);
        }
        self.settle_lease();
    }
}

#[derive(Clone)]
pub(super) struct ModelWaiter {
    pub(super) id: WaiterId,
    pub(super) call: Call,
    pub(super) deadline: Option<i64>,
}

/// The connection, whether it is ephemeral, the time of the grant, the parts that renewals took over
/// (watchdog, ephemeral), and the end of possible repetitions.
type RequestInfo = (u64, bool, i64, (bool, bool), i64);

#[derive(Default)]
struct ModelBinding {
    lease: i64,
    lease_end: i64,
    watchdogs: BTreeSet<u64>,
    /// End of the renewals, if they have one.
    until_us: Option<i64>,
    due_us: i64,
    ephemeral: BTreeSet<u64>,
    /// The calls that bound the hold.
    requests: BTreeMap<u8, RequestInfo>,
    /// The connections bound by other calls.
    plain: BTreeSet<u64>,
}

impl ModelBinding {
    fn is_renewed(&self) -> bool {
        !self.watchdogs.is_empty() && self.until_us.is_none_or(|until| self.due_us < until)
    }

    /// Time at which one third of the lease has passed, or now if that is later.
    fn due_by_end(&self, now_us: i64) -> i64 {
        let over_us = (self.lease * 1000 - (self.lease_end * 1000 - now_us)).max(0);
        now_us + ((self.lease * 1000 / 3).max(1000) - over_us).max(0)
    }
}

/// An owner that blocks a wait.
struct ModelBlocker {
    owner: usize,
    /// The owner's wait ahead in the queue; `None` for a holder.
    ahead: Option<WaiterId>,
    /// Whether only some of these blockers have to leave, as for a request with a limit.
    counts: bool,
    /// Whether only that wait has to end: once granted, it no longer blocks.
    only: bool,
}

pub(super) struct ModelGrant {
    pub(super) id: WaiterId,
    pub(super) lock: usize,
    pub(super) call: Call,
    number: u64,
    since: i64,
    /// Mode of the hold to release if the grant is revoked; `None` if its hold was already released.
    hold_mode: Option<Mode>,
    /// Whether the grant was acknowledged, so that its client may know of it.
    is_answered: bool,
}

impl ModelGrant {
    /// Whether the client is answered only after an acknowledgement.
    fn is_withheld(&self) -> bool {
        self.call.awaits_replicas && !self.is_answered
    }
}

#[derive(Default)]
pub(super) struct Model {
    pub(super) locks: [ModelLock; LOCKS.len()],
    pub(super) now: i64,
    pub(super) paused: bool,
    /// End of the quarantine, if there is one.
    quarantine: Option<i64>,
    holds_ever: u64,
    waiters_ever: u64,
    /// Grants that are not delivered.
    pub(super) in_flight: Vec<ModelGrant>,
    /// Locks and hold numbers that must end because a connection closed.
    closed: Vec<(usize, u64)>,
    pub(super) decisions: Vec<(WaiterId, Decision)>,
    /// Notices to owners: lock, owner and event.
    notices: Vec<(usize, usize, HoldEvent)>,
}

impl ModelLock {
    fn of(&self, owner: usize) -> Option<&ModelHold> {
        self.holds.iter().find(|hold| hold.owner == owner)
    }

    fn of_mut(&mut self, owner: usize) -> Option<&mut ModelHold> {
        self.holds.iter_mut().find(|hold| hold.owner == owner)
    }

    /// Whether this hold excludes the call.
    fn excludes(hold: &ModelHold, call: &Call) -> bool {
        (!call.shared || hold.exclusive > 0) && (call.once || hold.owner != call.owner)
    }

    /// Whether no hold excludes the call and its limit is not reached.
    fn admits(&self, call: &Call) -> bool {
        let counts = call.limit > 0 && (call.once || self.of(call.owner).is_none());
        let too_many = counts && self.holds.len() >= usize::try_from(call.limit).unwrap();
        !too_many && !self.holds.iter().any(|hold| Self::excludes(hold, call))
    }

    /// Whether the call is admitted in a quarantine: a known holder may get more of the same kind.
    fn admits_known(&self, call: &Call) -> bool {
        let known = self.of(call.owner).is_some_and(|hold| call.shared || hold.exclusive > 0);
        known && !call.once && self.admits(call)
    }

    /// Whether the owner already holds the lock and wants more.
    fn wants_more(&self, call: &Call) -> bool {
        !call.once && self.of(call.owner).is_some()
    }

    /// The queue in order of service: waits of holders, then all others, each in order of arrival.
    pub(super) fn line(&self) -> Vec<&ModelWaiter> {
        let (inside, outside): (Vec<_>, Vec<_>) =
            self.queue.iter().partition(|waiter| self.wants_more(&waiter.call));
        inside.into_iter().chain(outside).collect()
    }

    /// Removes holds with a count of 0, and bindings of owners that hold nothing.
    fn drop_ended(&mut self) {
        self.holds.retain(|hold| hold.exclusive + hold.shared > 0);
        let holders: Vec<usize> = self.holds.iter().map(|hold| hold.owner).collect();
        self.known.retain(|owner| holders.contains(owner));
        self.unbind_but(|owner, _| holders.contains(owner));
    }
}

impl ModelLock {
    /// Ends all bindings except those that satisfy `stays`.
    fn unbind_but(&mut self, stays: impl Fn(&usize, &ModelBinding) -> bool) {
        let ended = &mut self.ended;
        self.bindings.retain(|owner, binding| {
            let stays = stays(owner, binding);
            if !stays {
                ended.extend(binding.requests.iter().map(|(id, (.., until))| ((*owner, *id), *until)));
            }
            stays
        });
    }
}

impl Model {
    pub(super) fn at(now: i64) -> Model {
        Model { now, ..Model::default() }
    }

    fn now_us(&self) -> i64 {
        self.now * 1000
    }

    /// Whether locks with running leases may have been forgotten.
    pub(super) fn is_quarantined(&self) -> bool {
        self.quarantine.is_some_and(|until| self.now < until)
    }

    /// Whether no hold, known or forgotten, excludes the call.
    fn admits(&self, lock: usize, call: &Call) -> bool {
        let lock = &self.locks[lock];
        if self.is_quarantined() {
            lock.admits_known(call)
        } else {
            lock.admits(call)
        }
    }

    /// Applies everything that is due now.
    pub(super) fn settle(&mut self) {
        let now = self.now;
        for lock in &mut self.locks {
            for waiter in &lock.queue {
                if waiter.deadline.is_some_and(|at| at <= now) {
                    self.decisions.push((waiter.id, Decision::TimedOut));
                }
            }
            lock.queue.retain(|waiter| waiter.deadline.is_none_or(|at| at > now));
        }
        if self.paused {
            return;
        }
        for lock in 0..LOCKS.len() {
            if self.locks[lock].other {
                for waiter in std::mem::take(&mut self.locks[lock].queue) {
                    self.decisions.push((waiter.id, Decision::WrongType));
                }
                continue;
            }
            self.expire(lock);
            self.end_closed(lock);
            self.renew_watched(lock);
            while let Some(id) = self.next_waiter(lock) {
                let at = self.locks[lock].queue.iter().position(|waiter| waiter.id == id).unwrap();
                let ModelWaiter { id, call, .. } = self.locks[lock].queue.remove(at);
                self.hand_over(lock, id, call);
            }
            // A newly granted short lease may be due for renewal.
            self.renew_watched(lock);
        }
        // A client that is still waiting for its answer is notified that its hold has ended.
        let locks = &self.locks;
        let lost = self.in_flight.extract_if(.., |grant| {
            let held = locks[grant.lock].holds.iter().any(|hold| hold.number == grant.number);
            grant.is_withheld() && !held
        });
        self.decisions.extend(lost.map(|grant| (grant.id, Decision::Lost)));
    }

    /// Releases holds of an owner. Returns the number that is left; `None` if it has none of that kind.
    fn release_hold(
        &mut self,
        lock: usize,
        owner: usize,
        scope: ReleaseScope,
        id: Option<u8>,
    ) -> Option<i64> {
        let hold = self.locks[lock].of(owner)?;
        let mode = match scope {
            ReleaseScope::OneOf(mode) => mode,
            _ if hold.exclusive > 0 => Mode::Exclusive,
            _ => Mode::Shared,
        };
        if hold.count(mode) == 0 {
            return None;
        }
        if scope == ReleaseScope::All || hold.exclusive + hold.shared == 1 {
            let hold = self.locks[lock].of_mut(owner)?;
            (hold.exclusive, hold.shared) = (0, 0);
            return Some(0);
        }
        if let Some(at) = self.grant_to_release(lock, owner, mode, id) {
            if self.in_flight[at].is_withheld() {
                self.decisions.push((self.in_flight[at].id, Decision::Lost));
                self.not_arrived(at);
                // The remaining holds may have a shorter lease that has expired.
                self.expire(lock);
                return Some(self.locks[lock].of(owner).map_or(0, |hold| hold.exclusive + hold.shared));
            }
            // Without this grant, a release that names no hold would have ended a different hold.
            let is_named = id.is_some() && self.in_flight[at].call.id == id;
            let other = scope == ReleaseScope::One && mode == Mode::Exclusive && !is_named;
            let other = other && self.certain(lock, owner, Mode::Shared) > 0;
            self.in_flight[at].hold_mode = other.then_some(Mode::Shared);
        }
        let hold = self.locks[lock].of_mut(owner)?;
        *hold.count_mut(mode) -= 1;
        Some(hold.exclusive + hold.shared)
    }

    /// The grants in flight that one of these holds may belong to.
    fn grants_with_hold(&self, lock: usize, owner: usize, mode: Mode) -> Vec<usize> {
        let number = self.locks[lock].of(owner).map(|hold| hold.number);
        let is_its = |grant: &ModelGrant| {
            (grant.lock, Some(grant.number), grant.hold_mode) == (lock, number, Some(mode))
        };
        (0..self.in_flight.len()).filter(|at| is_its(&self.in_flight[*at])).collect()
    }

    /// Number of holds of this mode that belong to no grant in flight.
    fn certain(&self, lock: usize, owner: usize, mode: Mode) -> i64 {
        let held = self.locks[lock].of(owner).map_or(0, |hold| hold.count(mode));
        held - i64::try_from(self.grants_with_hold(lock, owner, mode).len()).unwrap()
    }

    /// The grant in flight whose hold is released. A named grant comes first. Otherwise `None` if the owner
    /// has a certain hold. Without one, the first grant whose client may know of it, or else the first grant.
    fn grant_to_release(&self, lock: usize, owner: usize, mode: Mode, id: Option<u8>) -> Option<usize> {
        let all = self.grants_with_hold(lock, owner, mode);
        let named = all.iter().find(|at| id.is_some() && self.in_flight[**at].call.id == id);
        let told = all.iter().find(|at| !self.in_flight[**at].is_withheld());
        let uncertain = told.or(all.first()).filter(|_| self.certain(lock, owner, mode) <= 0);
        named.or(uncertain).copied()
    }

    fn hand_over(&mut self, lock: usize, id: WaiterId, call: Call) {
        let reply = self.grant(lock, &call, Some(id));
        let number = self.locks[lock].of(call.owner).unwrap().number;
        self.decisions.push((id, Decision::Granted(reply)));
        let hold_mode = Some(call.wants().mode);
        self.in_flight.push(ModelGrant {
            id,
            lock,
            call,
            number,
            since: self.now,
            hold_mode,
            is_answered: false,
        });
    }

    fn next_waiter(&self, at: usize) -> Option<WaiterId> {
        let lock = &self.locks[at];
        let line = lock.line();
        let can = |waiter: &&&ModelWaiter| self.admits(at, &waiter.call);
        let inside = line.iter().filter(|waiter| lock.wants_more(&waiter.call)).count();
        let candidates = if inside > 0 { &line[..inside] } else { &line[..line.len().min(1)] };
        candidates.iter().find(can).map(|waiter| waiter.id)
    }

    pub(super) fn expire(&mut self, lock: usize) {
        let now = self.now;
        self.lose_holds(lock, HoldEvent::Expired, |hold| now > hold.expires_at);
        self.locks[lock].drop_ended();
    }

    /// Ends these holds for a reason other than their owners' calls, and notifies the owners.
    fn lose_holds(&mut self, at: usize, event: HoldEvent, lost: impl Fn(&ModelHold) -> bool) {
        let lock = &mut self.locks[at];
        for hold in lock.holds.extract_if(.., |hold| lost(hold)) {
            // A break notifies every holder.
            if lock.known.remove(&hold.owner) || event == HoldEvent::Broken {
                self.notices.push((at, hold.owner, event));
            }
        }
    }

    /// Takes the pending notices.
    pub(super) fn take_notices(&mut self) -> Vec<(usize, usize, HoldEvent)> {
        let mut notices = std::mem::take(&mut self.notices);
        notices
            .retain(|(lock, _, event)| *event != HoldEvent::Contended || !self.locks[*lock].queue.is_empty());
        notices
    }

    /// Ends holds whose connection has closed, unless their lease ended first.
    fn end_closed(&mut self, at: usize) {
        let now = self.now;
        let closed: Vec<_> =
            self.closed.extract_if(.., |(lock, _)| *lock == at).map(|(_, number)| number).collect();
        let lock = &mut self.locks[at];
        for hold in lock.holds.extract_if(.., |hold| closed.contains(&hold.number)) {
            let bound = lock.bindings.get(&hold.owner).map(|binding| &binding.requests);
            let is_bound = |id: &u8| {
                bound.is_some_and(|bound| bound.get(id).is_some_and(|(.., until)| *until >= now * 1000))
            };
            let given_back =
                |name: &(usize, u8)| lock.released.get(name).is_some_and(|(_, until)| now <= *until);
            let got = &lock.granted_hold;
            // The calls that got this hold count as never made.
            lock.granted.retain(|name, _| {
                let is_its =
                    name.0 == hold.owner && got.get(name).is_some_and(|(got, _)| *got == hold.number);
                let bound = name.0 == hold.owner && is_bound(&name.1);
                !bound && (!is_its || given_back(name))
            });
            lock.last_closed.insert(hold.owner, hold.number);
        }
        lock.drop_ended();
    }

    fn renew_watched(&mut self, lock: usize) {
        let (now, now_us) = (self.now, self.now_us());
        let interval = |binding: &ModelBinding| (binding.lease * 1000 / 3).max(1000);
        let lock = &mut self.locks[lock];
        let watched = |binding: &&mut ModelBinding| binding.is_renewed();
        if !lock.bindings.values_mut().filter(watched).any(|binding| binding.due_us <= now_us) {
            return;
        }
        for (owner, binding) in &mut lock.bindings {
            if binding.is_renewed() && binding.due_us <= now_us + interval(binding) / 4 {
                let hold = lock.holds.iter_mut().find(|hold| hold.owner == *owner).unwrap();
                hold.set_lease(None, Lease::AtLeast(now + binding.lease));
                lock.known.insert(*owner);
                binding.lease_end = hold.expires_at;
                binding.due_us = now_us + interval(binding);
            }
        }
    }

    /// Grants a call. `by` is the waiter that gets the grant, if any. Such a grant may be revoked.
    fn grant(&mut self, at: usize, call: &Call, by: Option<WaiterId>) -> Reply {
        let (now, now_us) = (self.now, self.now_us());
        self.holds_ever += 1;
        let number = self.holds_ever;
        let lock = &mut self.locks[at];
        let newest = lock.holds.iter().filter_map(|hold| hold.token).max();
        if lock.of(call.owner).is_none() {
            let owner = call.owner;
            lock.holds.push(ModelHold {
                owner,
                exclusive: 0,
                shared: 0,
                expires_at: 0,
                written: 0,
                token: None,
                number,
                leases: Vec::new(),
                tokens: Vec::new(),
            });
        }
        let upgrade = !call.shared && lock.of(call.owner).unwrap().exclusive == 0;
        let same = lock.of(call.owner).unwrap().token.filter(|_| !upgrade);
        let token = call.fence.then(|| {
            same.unwrap_or_else(|| {
                let after = lock.counter.max(newest).map_or(0, |last| last + 1);
                let token = after.max(now_us);
                assert!(Some(token) > lock.counter, "a token twice");
                lock.counter = Some(token);
                token
            })
        });
        lock.known.insert(call.owner);
        let hold = lock.of_mut(call.owner).unwrap();
        if call.shared {
            hold.shared += 1;
        } else {
            hold.exclusive += 1;
        }
        if token.is_some() || upgrade {
            hold.set_token(by, token, upgrade && hold.shared > 0);
        }
        hold.set_lease(by, call.lease_from(now));
        let owner = call.fence.then(|| Box::new(Owner::new(OWNERS[call.owner])));
        let mode = if call.shared { Mode::Shared } else { Mode::Exclusive };
        let reply = Reply { mode, holds: hold.exclusive + hold.shared, token, owner };
        if let Some(id) = call.id {
            let number = lock.of(call.owner).unwrap().number;
            lock.granted.insert((call.owner, id), (reply.clone(), now + TTL));
            lock.granted_hold.insert((call.owner, id), (number, call.bind.is_some()));
            lock.cancelled.remove(&(call.owner, id));
            lock.ended.remove(&(call.owner, id));
        }
        if by.is_none() {
            self.note_lease(at, call);
        }
        self.note_end(at, call.owner);
        reply
    }

    /// Records that the lease was set. The renewed length is that of the last irrevocable call.
    fn note_lease(&mut self, lock: usize, call: &Call) {
        let now_us = self.now_us();
        let lease = self.lease_of(lock, call);
        let written = self.locks[lock].of(call.owner).unwrap().written;
        if let Some(binding) = self.locks[lock].bindings.get_mut(&call.owner) {
            let longer = if call.keeps && !binding.watchdogs.is_empty() { binding.lease } else { 0 };
            binding.lease = lease.max(longer);
            binding.lease_end = written;
            binding.due_us = binding.due_by_end(now_us);
        }
    }

    /// The length at which a lease is renewed. A call without a lease keeps the remaining length if it is
    /// longer.
    fn lease_of(&self, lock: usize, call: &Call) -> i64 {
        let left = self.locks[lock].of(call.owner).unwrap().written - self.now;
        call.lease.max(if call.keeps { left } else { 0 })
    }

    /// Records that this server has set the owner's lease.
    fn note_end(&mut self, lock: usize, owner: usize) {
        let now_us = self.now_us();
        let lock = &mut self.locks[lock];
        let hold = lock.holds.iter().find(|hold| hold.owner == owner);
        if let (Some(hold), Some(binding)) = (hold, lock.bindings.get_mut(&owner)) {
            binding.lease_end = hold.written;
            binding.due_us = binding.due_us.min(binding.due_by_end(now_us));
        }
    }

    /// Binds a hold. `mode` determines which connections the new one replaces. `since` is the time of the
    /// grant or of the call.
    fn bind(&mut self, lock: usize, call: &Call, mode: BindMode, since: i64) {
        let Some((connection, watchdog, ephemeral)) = call.bind else { return };
        let now_us = self.now_us();
        if let Some((_, bound)) =
            call.id.and_then(|id| self.locks[lock].granted_hold.get_mut(&(call.owner, id)))
        {
            *bound = true;
        }
        let lease = self.lease_of(lock, call);
        let binding = self.locks[lock].bindings.entry(call.owner).or_default();
        let was_renewed = !binding.watchdogs.is_empty();
        if !was_renewed {
            binding.lease = lease;
        }
        let first = call.id.and_then(|id| binding.requests.remove(&id));
        let again = first.filter(|_| mode == BindMode::ReplaceOwn);
        // If a renewal has taken over the binding, a repeated call does not reclaim it.
        let (since, taken_over) =
            again.map_or((since, call.taken_over), |(.., since, taken_over, _)| (since, taken_over));
        if mode == BindMode::ReplaceAll {
            binding.requests.values_mut().for_each(|(.., taken_over, _)| {
                taken_over.0 |= watchdog;
                taken_over.1 |= ephemeral;
            });
        }
        let until_us = call.max.map(|max| (since + max) * 1000);
        let first = first.map(|(connection, ..)| connection);
        binding.plain.extend(first.filter(|_| mode == BindMode::Add));
        let add = |to: &mut BTreeSet<u64>| {
            match mode {
                BindMode::Add => {}
                BindMode::ReplaceOwn => to.retain(|other| Some(*other) != first),
                BindMode::ReplaceAll => to.clear(),
            }
            to.insert(connection);
        };
        if watchdog && !taken_over.0 {
            add(&mut binding.watchdogs);
            let later = binding.until_us.zip(until_us).map(|(one, other)| one.max(other));
            binding.until_us = match mode {
                BindMode::ReplaceAll => until_us,
                _ if !was_renewed => until_us,
                _ => later,
            };
        }
        if ephemeral && !taken_over.1 {
            add(&mut binding.ephemeral);
        }
        // A request that can no longer be repeated is forgotten; its connection stays bound.
        let (requests, plain) = (&mut binding.requests, &mut binding.plain);
        requests.retain(|_, (connection, .., until)| {
            let may_come = *until >= now_us;
            plain.extend((!may_come).then_some(*connection));
            may_come
        });
        if let Some(id) = call.id {
            binding.requests.insert(id, (connection, ephemeral, since, taken_over, now_us + TTL * 1000));
        } else {
            binding.plain.insert(connection);
        }
        let (watchdogs, ephemeral) = (&binding.watchdogs, &binding.ephemeral);
        binding.plain.retain(|connection| watchdogs.contains(connection) || ephemeral.contains(connection));
        self.note_lease(lock, call);
        self.note_end(lock, call.owner);
    }

    pub(super) fn step(&mut self, op: &Op) -> Option<Seen> {
        let seen = self.apply(op);
        self.locks.iter_mut().for_each(ModelLock::drop_ended);
        self.settle();
        seen
    }

    fn apply(&mut self, op: &Op) -> Option<Seen> {
        let now = self.now;
        if let Op::Acquire { lock, .. }
        | Op::Release { lock, .. }
        | Op::Renew { lock, .. }
        | Op::Cancel { lock, .. }
        | Op::Break { lock } = *op
        {
            if self.locks[lock].other {
                return Some(Seen::WrongType);
            }
            self.expire(lock);
        }
        match *op {
            Op::Acquire { lock, ref call, block } => Some(self.acquire(lock, call, block)),
            Op::Release { lock, owner, scope, lease, id } => {
                if let Some((left, until)) = id.and_then(|id| self.locks[lock].released.get(&(owner, id))) {
                    if now <= *until {
                        return Some(Seen::Left(*left));
                    }
                }
                let Some(left) = self.release_hold(lock, owner, scope, id) else {
                    return Some(Seen::NotOwner);
                };
                if let Some((hold, lease)) = self.locks[lock].of_mut(owner).zip(lease).filter(|_| left > 0) {
                    hold.set_lease(None, Lease::To(now + lease));
                    self.note_lease(lock, &Call { owner, lease, ..Call::default() });
                    self.note_end(lock, owner);
                }
                if let Some(id) = id {
                    self.locks[lock].released.insert((owner, id), (left, now + TTL));
                }
                Some(Seen::Left(left))
            }
            Op::Renew { lock, owner, lease, bind, max } => {
                let Some(number) = self.locks[lock].of(owner).map(|hold| hold.number) else {
                    return Some(Seen::NotOwner);
                };
                let hold = self.locks[lock].of_mut(owner).unwrap();
                hold.set_lease(None, Lease::To(now + lease));
                let holds = hold.exclusive + hold.shared;
                let call = Call { owner, lease, bind, max, ..Call::default() };
                self.note_lease(lock, &call);
                self.note_end(lock, owner);
                self.locks[lock].known.insert(owner);
                if let Some((_, watchdog, ephemeral)) = bind {
                    let is_its = |grant: &&mut ModelGrant| grant.lock == lock && grant.number == number;
                    for grant in self.in_flight.iter_mut().filter(is_its) {
                        grant.call.taken_over.0 |= watchdog;
                        grant.call.taken_over.1 |= ephemeral;
                    }
                }
                self.bind(lock, &call, BindMode::ReplaceAll, now);
                Some(Seen::Renewed(holds))
            }
            Op::Cancel { lock, owner, id } => Some(Seen::Cancelled(self.cancel(lock, owner, id))),
            Op::Break { lock } => {
                let lost = self.locks[lock].holds.len();
                self.lose_holds(lock, HoldEvent::Broken, |_| true);
                Some(Seen::Broken(lost))
            }
            Op::Delete { lock } => {
                self.lose_holds(lock, HoldEvent::Deleted, |_| true);
                self.locks[lock].other = false;
                None
            }
            Op::Expire { lock, lease } => {
                self.expire(lock);
                for held in &mut self.locks[lock].holds {
                    // The key's expiry is the end of an exclusive hold, and an upper bound for shared ones.
                    let end = now + lease;
                    let end = if held.exclusive > 0 { end } else { held.expires_at.min(end) };
                    held.set_by_a_foreign_write(end);
                }
                None
            }
            Op::External { lock, lease } => {
                self.expire(lock);
                let at = &mut self.locks[lock];
                if at.holds.is_empty() && !at.other {
                    self.holds_ever += 1;
                    let (owner, number) = (EXTERNAL, self.holds_ever);
                    let expires_at = now + lease;
                    at.holds.push(ModelHold {
                        owner,
                        exclusive: 1,
                        shared: 0,
                        expires_at,
                        written: 0,
                        token: None,
                        number,
                        leases: vec![(None, Lease::To(expires_at))],
                        tokens: Vec::new(),
                    });
                }
                None
            }
            Op::Overwrite { lock } => {
                self.lose_holds(lock, HoldEvent::Deleted, |_| true);
                self.locks[lock].other ^= true;
                None
            }
            Op::Flush => {
                for lock in 0..LOCKS.len() {
                    self.lose_holds(lock, HoldEvent::Deleted, |_| true);
                    self.locks[lock].other = false;
                }
                None
            }
            Op::Pause(paused) => {
                self.paused = paused;
                None
            }
            Op::Quarantine { ms } => {
                self.quarantine = Some(now + ms);
                None
            }
            Op::Close { .. }
            | Op::CloseInTurn { .. }
            | Op::Away { .. }
            | Op::Leave { .. }
            | Op::Answer { .. }
            | Op::Deliver { .. }
            | Op::Advance { .. } => None,
        }
    }

    /// Whether the request's hold has ended and its owner has a later hold. The keyspace does not distinguish
    /// the two holds. If the request bound its hold, a cancel may release the later hold, depending on what
    /// the server remembers. The server remembers nothing about other requests.
    pub(super) fn is_of_an_earlier_hold(&self, lock: usize, owner: usize, id: u8) -> bool {
        let lock = &self.locks[lock];
        let got = lock.granted_hold.get(&(owner, id));
        lock.of(owner).is_some_and(|hold| got.is_some_and(|(got, bound)| *bound && hold.number != *got))
    }

    /// Whether the request's hold ended, and then a later hold of the same owner ended with a connection. The
    /// keyspace does not distinguish the two holds.
    pub(super) fn is_of_an_earlier_hold_than_one_closed(&self, lock: usize, owner: usize, id: u8) -> bool {
        let lock = &self.locks[lock];
        let got = lock.granted_hold.get(&(owner, id)).filter(|_| lock.granted.contains_key(&(owner, id)));
        lock.last_closed.get(&owner).is_some_and(|closed| got.is_some_and(|(got, _)| got < closed))
    }

    fn cancel(&mut self, lock: usize, owner: usize, id: u8) -> bool {
        let (now, now_us, name) = (self.now, self.now_us(), (owner, id));
        if let Some((undone, _)) = self.locks[lock].cancelled.get(&name).filter(|(_, until)| now <= *until) {
            return *undone;
        }
        let same = |call: &Call| (call.owner, call.id) == (owner, Some(id));
        let given_back = self.locks[lock].released.get(&name).is_some_and(|(_, until)| now <= *until);
        let granted =
            self.locks[lock].granted.remove(&name).filter(|(_, until)| now <= *until && !given_back);
        let ended = self.locks[lock].ended.get(&name).is_some_and(|until| now_us <= *until);
        let undone = if let Some(at) = self.locks[lock].queue.iter().position(|waiter| same(&waiter.call)) {
            let waiter = self.locks[lock].queue.remove(at);
            self.decisions.push((waiter.id, Decision::Cancelled));
            true
        } else if let Some(at) = self.in_flight.iter().position(|grant| {
            let hold = self.locks[lock].of(owner).is_some_and(|hold| hold.number == grant.number);
            hold && grant.lock == lock && same(&grant.call)
        }) {
            self.decisions.push((self.in_flight[at].id, Decision::Cancelled));
            self.not_arrived(at);
            true
        } else if let Some((reply, _)) = granted.filter(|_| !ended) {
            let released = self.release_hold(lock, owner, ReleaseScope::OneOf(reply.mode), None).is_some();
            if released {
                self.unbind_request(lock, owner, id);
            }
            released
        } else {
            false
        };
        self.locks[lock].cancelled.insert(name, (undone, now + TTL));
        undone
    }

    /// Unbinds the connection of this call, unless other calls bound it too.
    fn unbind_request(&mut self, lock: usize, owner: usize, id: u8) {
        let now_us = self.now_us();
        let Some(binding) = self.locks[lock].bindings.get_mut(&owner) else { return };
        // A request that is no longer remembered counts as another call.
        let known = binding.requests.get(&id).is_some_and(|(.., until)| *until >= now_us);
        let Some((connection, ..)) = known.then(|| binding.requests.remove(&id)).flatten() else { return };
        let others = binding.requests.values().any(|(other, ..)| *other == connection);
        if !others && !binding.plain.contains(&connection) {
            binding.watchdogs.remove(&connection);
            binding.ephemeral.remove(&connection);
        }
    }

    fn acquire(&mut self, lock: usize, call: &Call, block: Option<u64>) -> Seen {
        let now = self.now;
        let cancelled = call.id.and_then(|id| self.locks[lock].cancelled.get(&(call.owner, id)));
        if cancelled.is_some_and(|(_, until)| now <= *until) {
            return Seen::Unblocked;
        }
        if let Some((reply, until)) = call.id.and_then(|id| self.locks[lock].granted.get(&(call.owner, id))) {
            if now <= *until {
                let reply = reply.clone();
                // The answer has arrived now.
                let number = self.locks[lock].of(call.owner).map(|hold| hold.number);
                let same = |grant: &ModelGrant| {
                    let is_same =
                        (grant.lock, grant.call.owner, grant.call.id) == (lock, call.owner, call.id);
                    is_same && Some(grant.number) == number
                };
                if let Some(at) = self.in_flight.iter().position(same) {
                    let (id, awaits_replicas) =
                        (self.in_flight[at].id, self.in_flight[at].call.awaits_replicas);
                    self.decisions.extend(awaits_replicas.then_some((id, Decision::Superseded)));
                    self.arrived(at, false);
                }
                let now_us = self.now_us();
                let ended = call.id.and_then(|id| self.locks[lock].ended.get(&(call.owner, id)));
                let ended = ended.is_some_and(|until| now_us <= *until);
                let ended = ended || call.bind.is_none();
                let bound = call.id.is_some_and(|id| {
                    let binding = self.locks[lock].bindings.get(&call.owner);
                    binding.is_some_and(|binding| binding.requests.contains_key(&id))
                });
                if let Some(hold) = self.locks[lock].of_mut(call.owner).filter(|_| !ended) {
                    // Makes the repetition visible to the server that made the grant.
                    if !bound {
                        hold.set_lease(None, Lease::AtLeast(hold.expires_at + 1));
                    }
                    self.locks[lock].known.insert(call.owner);
                    let hold = self.locks[lock].of_mut(call.owner).unwrap();
                    // The binding belongs to the current hold, even if a foreign write has set its lease.
                    hold.written = hold.expires_at;
                    self.bind(lock, call, BindMode::ReplaceOwn, now);
                    self.note_end(lock, call.owner);
                }
                return Seen::Granted(reply);
            }
        }
        let locked = &self.locks[lock];
        let comes_first = locked.queue.is_empty() || locked.wants_more(call);
        let same = |other: &ModelWaiter| {
            call.id.is_some() && (other.call.owner, other.call.id) == (call.owner, call.id)
        };
        if comes_first && self.admits(lock, call) {
            if let Some(at) = locked.queue.iter().position(same) {
                let before = self.locks[lock].queue.remove(at);
                self.decisions.push((before.id, Decision::Superseded));
            }
            if call.awaits_replicas {
                self.waiters_ever += 1;
                let id = WaiterId(self.waiters_ever);
                self.hand_over(lock, id, call.clone());
                return Seen::Waits(id);
            }
            let reply = self.grant(lock, call, None);
            self.bind(lock, call, BindMode::Add, now);
            return Seen::Granted(reply);
        }
        let Some(ms) = block else {
            let is_known_to_be_held = self.admits(lock, call) || !locked.admits(call);
            return if is_known_to_be_held { Seen::Busy } else { Seen::Quarantined };
        };
        let waited = !locked.queue.is_empty();
        self.waiters_ever += 1;
        let id = WaiterId(self.waiters_ever);
        let deadline = (ms > 0).then(|| now + i64::try_from(ms).unwrap());
        let waiter = ModelWaiter { id, call: call.clone(), deadline };
        match self.locks[lock].queue.iter().position(same) {
            Some(at) => {
                let before = self.locks[lock].queue.remove(at);
                self.decisions.push((before.id, Decision::Superseded));
                self.locks[lock].queue.insert(at, waiter);
            }
            None => self.locks[lock].queue.push(waiter),
        }
        if self.locks[lock].queue.len() == 1 && !waited {
            let holders = self.locks[lock].holds.iter().map(|hold| (lock, hold.owner, HoldEvent::Contended));
            self.notices.extend(holders);
        }
        if self.waits_for_itself(lock, id) {
            self.locks[lock].queue.retain(|waiter| waiter.id != id);
            return Seen::Deadlock;
        }
        Seen::Waits(id)
    }

    /// The direct blockers of a wait.
    fn blockers(&self, (lock, id): (usize, WaiterId)) -> Vec<ModelBlocker> {
        let lock = &self.locks[lock];
        let line = lock.line();
        let call = &line.iter().find(|waiter| waiter.id == id).unwrap().call;
        // The first of an owner's waits admits the others, except those that the owner's own hold excludes.
        let served =
            |waiter: &&ModelWaiter| waiter.id == id || (!call.once && waiter.call.owner == call.owner);
        let at = line.iter().position(served).unwrap();
        // All owners that hold the lock or will get it first block a request with a limit.
        let limited = call.limit > 0;
        let as_one = Call { shared: call.shared && !limited, ..call.clone() };
        let holders = lock.holds.iter().filter(|hold| ModelLock::excludes(hold, &as_one));
        let holders = holders.map(|hold| ModelBlocker {
            owner: hold.owner,
            ahead: None,
            counts: limited && hold.exclusive == 0,
            only: false,
        });
        let is_many = |call: &Call| call.shared && call.limit == 0;
        let ahead = line[..at].iter().filter(|waiter| !(is_many(call) && is_many(&waiter.call)));
        let ahead = ahead.flat_map(|waiter| {
            let blocker = |counts, only| ModelBlocker {
                owner: waiter.call.owner,
                ahead: Some(waiter.id),
                counts,
                only,
            };
            match (call.shared && waiter.call.shared, limited, is_many(&waiter.call)) {
                (false, ..) => vec![blocker(false, false)],
                (true, true, true) => vec![blocker(true, false)],
                (true, true, false) => vec![blocker(true, false), blocker(false, true)],
                (true, false, _) => vec![blocker(false, true)],
            }
        });
        holders.chain(ahead).collect()
    }

    /// Whether this wait can never end. Removes waits that can end until none of these is left.
    fn is_endless(&self, wait: (usize, WaiterId)) -> bool {
        let all = self.locks.iter().enumerate();
        let mut left: BTreeSet<(usize, WaiterId)> =
            all.flat_map(|(at, lock)| lock.queue.iter().map(move |waiter| (at, waiter.id))).collect();
        while let Some(ends) = left.iter().copied().find(|other| !self.is_stuck(*other, &left, wait)) {
            left.remove(&ends);
        }
        left.contains(&wait)
    }

    /// Whether a wait cannot end unless one of the others ends. The search started from `from`.
    fn is_stuck(
        &self,
        wait: (usize, WaiterId),
        left: &BTreeSet<(usize, WaiterId)>,
        from: (usize, WaiterId),
    ) -> bool {
        let call = self.call(wait);
        if call.once && self.locks[wait.0].of(call.owner).is_some() {
            return false;
        }
        let origin = self.call(from).owner;
        let keeps = |blocker: &ModelBlocker| {
            let waits_behind = self.waits_behind(wait.0, blocker);
            waits_behind
                .iter()
                .any(|other| left.contains(other) && (blocker.owner != origin || *other == from))
        };
        let blockers = self.blockers(wait);
        let counted: BTreeSet<usize> = blockers
            .iter()
            .filter(|blocker| blocker.counts && keeps(blocker))
            .map(|blocker| blocker.owner)
            .collect();
        blockers.iter().any(|blocker| !blocker.counts && keeps(blocker))
            || (call.limit > 0 && counted.len() >= usize::try_from(call.limit).unwrap())
    }

    fn call(&self, (lock, id): (usize, WaiterId)) -> &Call {
        &self.locks[lock].queue.iter().find(|waiter| waiter.id == id).unwrap().call
    }

    /// The waits of an owner that delay a waiter behind it at this lock. Waits of its other threads with
    /// `once` do not.
    fn waits_behind(
        &self,
        lock: usize,
        &ModelBlocker { owner, ahead, only, .. }: &ModelBlocker,
    ) -> Vec<(usize, WaiterId)> {
        if only {
            return ahead.map(|id| (lock, id)).into_iter().collect();
        }
        let others =
            |wait: &(usize, WaiterId)| wait.0 == lock && Some(wait.1) != ahead && self.call(*wait).once;
        self.waits_of(owner).into_iter().filter(|wait| !others(wait)).collect()
    }

    fn waits_of(&self, owner: usize) -> Vec<(usize, WaiterId)> {
        let waits = self.locks.iter().enumerate().flat_map(|(at, lock)| {
            lock.queue.iter().filter(|waiter| waiter.call.owner == owner).map(move |waiter| (at, waiter.id))
        });
        waits.collect()
    }

    /// Whether a path leads from this wait back to itself, so that it can never end. The path does not pass
    /// through waits that their owner's own hold excludes, nor through other waits of the same owner.
    fn waits_for_itself(&self, lock: usize, id: WaiterId) -> bool {
        let owner = self.call((lock, id)).owner;
        let (mut found, mut todo) = (BTreeSet::new(), vec![(lock, id)]);
        while let Some(wait) = todo.pop() {
            let call = self.call(wait);
            if call.once && self.locks[wait.0].of(call.owner).is_some() {
                continue;
            }
            for blocker in self.blockers(wait) {
                let waits_behind = self.waits_behind(wait.0, &blocker);
                if waits_behind.contains(&(lock, id)) {
                    return self.is_endless((lock, id));
                }
                if blocker.owner != owner {
                    todo.extend(waits_behind.into_iter().filter(|wait| found.insert(*wait)));
                }
            }
        }
        false
    }

    /// All owners that an owner waits for.
    pub(super) fn blockers_of(&self, owner: usize) -> BTreeSet<usize> {
        let mut owners = BTreeSet::new();
        let mut todo = self.waits_of(owner);
        let mut found: BTreeSet<_> = todo.iter().copied().collect();
        while let Some(wait) = todo.pop() {
            for blocker in self.blockers(wait) {
                owners.insert(blocker.owner);
                let waits_behind = self.waits_behind(wait.0, &blocker);
                todo.extend(waits_behind.into_iter().filter(|wait| found.insert(*wait)));
            }
        }
        owners
    }

    pub(super) fn leave(&mut self, id: WaiterId) {
        for lock in &mut self.locks {
            lock.queue.retain(|waiter| waiter.id != id);
        }
        self.settle();
    }

    /// Records that replicas have acknowledged a grant. Returns the grant.
    pub(super) fn answer(&mut self, which: usize) -> Option<WaiterId> {
        let at = which.checked_rem(self.in_flight.len()).filter(|at| self.has_hold(*at))?;
        let grant = &mut self.in_flight[at];
        grant.is_answered |= grant.call.awaits_replicas;
        grant.call.awaits_replicas.then_some(grant.id)
    }

    pub(super) fn deliver(&mut self, which: usize, arrives: bool) {
        if arrives {
            self.arrived(which, true);
        } else {
            self.not_arrived(which);
        }
        self.settle();
    }

    /// Whether the hold of this grant still exists.
    pub(super) fn has_hold(&self, which: usize) -> bool {
        let ModelGrant { lock, call, number, .. } = &self.in_flight[which];
        let live = |hold: &ModelHold| hold.number == *number && self.now <= hold.expires_at;
        self.locks[*lock].of(call.owner).is_some_and(live)
    }

    fn not_arrived(&mut self, which: usize) {
        let ModelGrant { id, lock, call, number, hold_mode, .. } = self.in_flight.remove(which);
        if let Some(hold) = self.locks[lock].of_mut(call.owner).filter(|hold| hold.number == number) {
            hold.undelivered(id, hold_mode);
            self.note_end(lock, call.owner);
            if let Some(id) = call.id {
                self.locks[lock].granted.remove(&(call.owner, id));
            }
        }
        self.locks[lock].drop_ended();
    }

    /// Confirms a grant. `bind` is true if the confirming connection is the one that waited.
    fn arrived(&mut self, which: usize, bind: bool) {
        let ModelGrant { id, lock, call, number, since, .. } = self.in_flight.remove(which);
        if let Some(hold) = self.locks[lock].of_mut(call.owner).filter(|hold| hold.number == number) {
            hold.delivered(id);
            self.note_lease(lock, &call);
            if bind {
                self.bind(lock, &call, BindMode::Add, since);
            }
            self.note_end(lock, call.owner);
        }
    }

    pub(super) fn close(&mut self, connection: u64) {
        for (at, lock) in self.locks.iter_mut().enumerate() {
            for (owner, binding) in &mut lock.bindings {
                binding.watchdogs.remove(&connection);
                binding.plain.remove(&connection);
                if binding.ephemeral.remove(&connection) {
                    let ends = lock.holds.iter().filter(|hold| hold.owner == *owner);
                    self.closed.extend(ends.map(|hold| (at, hold.number)));
                }
            }
            lock.drop_ended();
        }
        self.settle();
    }

    /// Makes the server a replica for a while. In that time, another primary may set a lease.
    pub(super) fn demote_and_promote(&mut self, foreign_write: Option<(usize, i64)>) {
        let mut ended: Vec<_> = self.locks.iter_mut().flat_map(|lock| lock.queue.drain(..)).collect();
        ended.sort_by_key(|waiter| waiter.id);
        for waiter in ended {
            self.decisions.push((waiter.id, Decision::Demoted));
        }
        self.locks.iter_mut().for_each(|lock| lock.known.clear());
        // Grants in flight stay as they are. Clients that still wait for an answer are notified.
        for grant in std::mem::take(&mut self.in_flight) {
            if grant.is_withheld() {
                self.decisions.push((grant.id, Decision::Demoted));
            }
        }
        for hold in self.locks.iter_mut().flat_map(|lock| &mut lock.holds) {
            hold.set_by_a_foreign_write(hold.expires_at);
            hold.tokens.iter_mut().for_each(|(by, ..)| *by = None);
        }
        if let Some((lock, lease)) = foreign_write {
            self.apply(&Op::Expire { lock, lease });
        }
        for lock in 0..LOCKS.len() {
            self.expire(lock);
            let now_us = self.now_us();
            self.locks[lock].bindings.values_mut().for_each(|binding| binding.due_us = now_us);
            let ends: BTreeMap<_, _> =
                self.locks[lock].holds.iter().map(|hold| (hold.owner, hold.expires_at)).collect();
            self.locks[lock].unbind_but(|owner, binding| ends.get(owner) == Some(&binding.lease_end));
        }
        self.settle();
    }

    pub(super) fn holders(&self, lock: usize) -> Option<Holders> {
        let live = self.locks[lock].holds.iter().filter(|hold| self.now <= hold.expires_at);
        let holds = live.map(|hold| Hold {
            owner: Owner::new(OWNERS[hold.owner]),
            exclusive: hold.exclusive,
            shared: hold.shared,
            expires_at: hold.expires_at,
            token: hold.token,
            renewed: false,
        });
        (!self.locks[lock].other)
            .then(|| Holders::from_holds(holds.collect()).expect("they exclude each other"))
    }
}
