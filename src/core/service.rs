//! The state of all locks that somebody waits for or whose holds depend on a connection, and what can happen
//! to it.
//!
//! Only that is remembered. Who holds a lock is passed in with every call, as the keyspace has it.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;

use super::bindings::{Lease, Takes};
use super::ended::Ended;
use super::entries::{Entries, Place, Undelivered};
use super::granted_keys::GrantedKeys;
use super::pending::{Pending, Set, SetLease};
use super::serving::{Grant, To};
use super::{
    ConnectionId, Decision, Holders, LockId, LockRef, Mode, MonoUs, NotOwner, NotReleased, Now, Outcome,
    Owner, Records, Release, Renewal, Reply, Request, RequestId, WallMs,
};

/// Names one wait, from the call that has to wait until its client has been answered. Never used twice, and
/// in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WaiterId(pub(crate) u64);

pub(super) struct Waiter {
    pub(super) lock: LockId,
    pub(super) request: Request,
    pub(super) since: MonoUs,
    pub(super) deadline: Option<MonoUs>,
    pub(super) place: Place,
}

impl Waiter {
    /// True if its time is over, whether it has been told so or not.
    pub(super) fn is_over(&self, now: Now) -> bool {
        self.deadline.is_some_and(|at| at <= now.mono)
    }
}

/// A grant that is decided and not yet known to have arrived.
pub(super) struct InFlight {
    pub(super) lock: LockId,
    pub(super) request: Request,
    /// What it did to the hold.
    pub(super) set: Set,
    /// When the lease ended that it wrote.
    pub(super) written: WallMs,
    /// Somebody else has set the lease since.
    pub(super) lease_is_anothers: bool,
}

/// Which holds depend on a connection.
pub(super) type ByConnection = HashMap<ConnectionId, BTreeSet<(LockId, Owner)>>;

/// The state in memory of all locks that somebody waits for or whose holds depend on a connection.
///
/// Inputs: [`acquire`](Service::acquire), [`wait`](Service::wait), [`release`](Service::release),
/// [`renew`](Service::renew), [`break_lock`](Service::break_lock), [`serve`](Service::serve) with what is
/// stored about the lock; [`leave`](Service::leave), [`delivered`](Service::delivered),
/// [`undelivered`](Service::undelivered), [`connection_closed`](Service::connection_closed) from connections;
/// [`touched`](Service::touched) from strangers; [`tick`](Service::tick) from the clock.
/// Outputs: [`take_decisions`](Service::take_decisions), [`next_wakeup`](Service::next_wakeup).
#[derive(Default)]
pub(crate) struct Service {
    /// What is remembered about each lock. None is idle.
    pub(super) entries: Entries,
    /// Everybody who waits, each in exactly one queue.
    pub(super) waiters: BTreeMap<WaiterId, Waiter>,
    /// Where an owner waits, by lock and in the order of arrival.
    pub(super) waits_of: HashMap<Owner, BTreeSet<(LockId, WaiterId)>>,
    /// Those who wait and have a request id.
    pub(super) asked: HashMap<(LockId, RequestId), WaiterId>,
    /// Grants that are decided and not yet known to have arrived; each is listed in its lock's entry.
    pub(super) in_flight: BTreeMap<WaiterId, InFlight>,
    /// The deadlines of all waiters that have one.
    pub(super) deadlines: BTreeSet<(MonoUs, WaiterId)>,
    /// When the first lease of a lock that somebody waits for ends.
    pub(super) leases: BTreeSet<(WallMs, LockId)>,
    /// Those of them whose key stays when a stranger deletes the owner's field, which no event tells of.
    pub(super) fragile: BTreeSet<LockId>,
    /// The latest of them that was looked at.
    pub(super) looked_at_fragile: Option<LockId>,
    /// When a watchdog is to renew; none while `suspended`.
    pub(super) renewals: BTreeSet<(MonoUs, LockId, Owner)>,
    /// The holds that depend on a connection, each with a binding in its lock's entry.
    pub(super) by_connection: ByConnection,
    /// Requests that bound a hold which has ended.
    pub(super) ended: Ended,
    /// When to look through a binding for requests that cannot come again.
    pub(super) sweeps: BTreeSet<(MonoUs, LockId, Owner)>,
    /// This server is not the primary: bindings wait to see whether it will be again.
    pub(super) suspended: bool,
    /// When a turn of strangers ends, or is forgotten that they listened.
    pub(super) turns: BTreeSet<(MonoUs, LockId)>,
    /// How many turns strangers got, and how many of them they took.
    pub(super) turns_given: usize,
    pub(super) turns_taken: usize,
    /// Locks whose hold, granted here, ended without a call: unless somebody takes it, those who wait elsewhere must be
    /// told. Each is in `dirty` too.
    pub(super) owed: BTreeSet<LockId>,
    /// Locks to be brought up to date: something may have changed without a call of ours.
    pub(super) dirty: BTreeSet<LockId>,
    pub(super) decisions: Vec<(WaiterId, Decision)>,
    /// Which keys are likely to be locks that were granted here.
    pub(super) held: GrantedKeys,
    last_id: u64,
}

impl Service {
    /// Grants the request if the holders admit it and it is nobody else's turn; otherwise changes nothing
    /// but what the queue had coming anyway. One that was granted before gets the same answer again. One that is
    /// ready to wait until some time lets strangers go first, when it is their turn.
    pub(crate) fn acquire(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        request: &Request,
        ready_until: MonoUs,
        now: Now,
    ) -> Outcome {
        if !self.is_quiet(lock) {
            // Between a stranger's DEL and our look at it other commands run: whoever waits comes first.
            self.serve(lock, holders, records, now);
        }
        if let Some(id) = &request.id {
            match records.granted(id) {
                Ok(None) => {}
                Ok(Some(reply)) => {
                    self.repeated(lock, holders, request, &reply, now);
                    return Outcome::Granted(reply);
                }
                Err(refusal) => return Outcome::Refused(refusal),
            }
        }
        let queue = self.entries.get(lock).is_some_and(|entry| !entry.waiting.is_empty());
        let queue = queue || (holders.is_free() && self.yields(lock, ready_until, now));
        if queue && holders.of(request.owner.as_bytes()).is_none() {
            return Outcome::Busy;
        }
        let outcome = match self.grant(lock, holders, records, request, To::Caller, now) {
            Ok(Grant { reply, set, before, written }) => {
                if before.is_some() {
                    self.settle_set(lock, &request.owner, Some((set.lease, written)), set.token);
                }
                let lease = request.lease(written, now);
                self.lease_was_set(lock, &request.owner, lease, now);
                if let Some(bind) = request.bind {
                    self.bind(lock, &request.owner, (bind, Takes::Part), request.id.as_ref(), lease, now);
                }
                Outcome::Granted(reply)
            }
            Err(denied) => denied,
        };
        if self.knows(lock) {
            self.settle_turn(lock, holders, now);
            self.watch_lease(lock, holders);
        }
        outcome
    }

    /// The same call came again, maybe on another connection because the first was lost: the hold depends on
    /// the connection that asks now, and is not taken back if the first answer did not arrive.
    fn repeated(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        request: &Request,
        reply: &Reply,
        now: Now,
    ) {
        let owner = reply.owner.as_ref().unwrap_or(&request.owner);
        let in_flight = request.id.as_ref().and_then(|id| self.in_flight_of(lock, id));
        // As `delivered`, but for the connection.
        if let Some((id, grant)) = in_flight.and_then(|id| Some((id, self.remove_in_flight(id)?))) {
            self.settle_delivered(id, &grant, now);
            self.settle_pending(lock, holders, now);
        }
        let id = request.id.as_ref().filter(|id| !self.has_ended(lock, id, now));
        let hold = holders.of(owner.as_bytes()).map(|hold| hold.expires_at);
        if let (Some(mut end), Some(bind), Some(id)) = (hold, request.bind, id) {
            if !self.has_bound(lock, owner, id) {
                // Another server granted it, and may still believe that the hold depends on the first connection.
                // It will see that somebody else has touched it: see `settle_doubts`.
                end = end.saturating_add(1);
                let _ = holders.renew(owner.as_bytes(), end);
                self.settle_set(lock, owner, Some((SetLease::AtLeast(end), end)), None);
            }
            let lease = request.lease(end, now);
            self.bind(lock, owner, (bind, Takes::Repeated), Some(id), lease, now);
        }
        self.entries.drop_if_idle(lock);
    }

    /// The grant to this request, if it is not known yet to have arrived.
    pub(super) fn in_flight_of(&self, lock: LockRef<'_>, id: &RequestId) -> Option<WaiterId> {
        let same = |waiter: &WaiterId| {
            self.in_flight.get(waiter).is_some_and(|grant| grant.request.id.as_ref() == Some(id))
        };
        self.entries.get(lock)?.in_flight.iter().copied().find(same)
    }

    /// Queues a request that [`acquire`](Service::acquire) has just found [`Outcome::Busy`]. If it waits
    /// already, on another connection, it keeps its place, and that one's wait ends.
    pub(crate) fn wait(
        &mut self,
        lock: LockRef<'_>,
        holders: &Holders,
        request: Request,
        deadline: Option<MonoUs>,
        now: Now,
    ) -> WaiterId {
        self.last_id += 1;
        let id = WaiterId(self.last_id);
        let lock = self.entries.get_or_make(lock).0;
        let (mut ticket, mut since) = (self.last_id, now.mono);
        if let Some(asked) = asked(&lock, &request) {
            let before = self.asked.get(&asked).copied();
            if let Some(waiter) = before.and_then(|before| self.waiters.get(&before)) {
                (ticket, since) = (waiter.place.ticket, waiter.since);
            }
            if let Some(before) = before {
                self.decide(before, Decision::Superseded);
                // It may want something else now, which can be granted.
                self.dirty.insert(lock.clone());
            }
            self.asked.insert(asked, id);
        }
        if let Some(at) = deadline {
            self.deadlines.insert((at, id));
        }
        let outsider = holders.of(request.owner.as_bytes()).is_none();
        let waiter = Waiter { lock, request, since, deadline, place: Place { outsider, ticket } };
        self.enqueue(id, waiter);
        self.watch_lease(self.waiters[&id].lock.clone().as_ref(), holders);
        id
    }

    /// Gives back what `release` says, and hands the lock on if that made way for somebody. Returns what is
    /// left. The caller writes what has changed even if it is refused: something may have been due.
    pub(crate) fn release(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        release: &Release,
        now: Now,
    ) -> Result<i64, NotReleased> {
        let quiet = self.is_quiet(lock);
        if !quiet {
            self.begin(lock, holders, records, now);
        }
        let result = self.give_back(lock, holders, records, release, now);
        if !quiet {
            self.finish(lock, holders, records, now);
        }
        self.forget_if_free(lock, holders);
        result
    }

    fn give_back(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        release: &Release,
        now: Now,
    ) -> Result<i64, NotReleased> {
        let Release { owner, part, lease_ms, id } = release;
        if let Some(id) = id {
            if let Some(left) = records.released(id).map_err(NotReleased::Refused)? {
                return Ok(left);
            }
        }
        let lease = lease_ms.map(|ms| Lease::new(ms, now.wall.saturating_add(ms)));
        let left = holders
            .release(owner.as_bytes(), *part, lease.map(|lease| lease.end))
            .map_err(|NotOwner| NotReleased::NotOwner)?;
        if let Some(lease) = lease.filter(|_| left > 0) {
            self.settle_set(lock, owner, Some((SetLease::To(lease.end), lease.end)), None);
            self.lease_was_set(lock, owner, lease, now);
        }
        if let Some(id) = id {
            records.remember_release(id, left, now);
        }
        Ok(left)
    }

    /// Sets the owner's lease anew. Returns its hold count.
    pub(crate) fn renew(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        renewal: &Renewal,
        now: Now,
    ) -> Result<i64, NotOwner> {
        self.begin(lock, holders, records, now);
        let Renewal { owner, lease_ms, bind } = renewal;
        let lease = Lease::new(*lease_ms, now.wall.saturating_add(*lease_ms));
        let result = holders.renew(owner.as_bytes(), lease.end);
        if result.is_ok() {
            self.held.insert(lock);
            self.settle_set(lock, owner, Some((SetLease::To(lease.end), lease.end)), None);
            self.lease_was_set(lock, owner, lease, now);
            if let Some(bind) = bind {
                self.bind(lock, owner, (*bind, Takes::All), None, lease, now);
            }
        }
        self.finish(lock, holders, records, now);
        result
    }

    /// Ends every hold and serves the queue. Returns how many owners lost theirs.
    pub(crate) fn break_lock(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        now: Now,
    ) -> usize {
        self.begin(lock, holders, records, now);
        let lost = holders.clear();
        self.finish(lock, holders, records, now);
        self.forget_if_free(lock, holders);
        lost
    }

    /// Ends every wait for a lock with the same decision: the key holds no lock that is served here.
    pub(crate) fn refuse_all(&mut self, lock: LockRef<'_>, decision: &Decision) {
        self.void_where(lock, |_| true);
        self.looked_at(lock);
        self.owed.remove(&lock.to_id());
        self.forget_turn(lock);
        let Some(entry) = self.entries.get_mut(lock) else { return };
        for id in entry.waiting.values().copied().collect::<Vec<_>>() {
            self.decide(id, decision.clone());
        }
        self.watch_lease(lock, &Holders::Free);
        self.entries.drop_if_idle(lock);
    }

    /// A waiter leaves the queue: its client is gone or was ended from outside. False if it does not wait
    /// any more.
    pub(crate) fn leave(&mut self, id: WaiterId) -> bool {
        let Some(waiter) = self.remove_waiter(id) else { return false };
        self.left_behind(&waiter);
        true
    }

    /// The grant reached its client: it is final, and what depends on the connection begins.
    pub(crate) fn delivered(&mut self, id: WaiterId, now: Now) {
        let Some(grant) = self.remove_in_flight(id) else { return };
        let lease = self.settle_delivered(id, &grant, now);
        let InFlight { lock, request, .. } = grant;
        if let Some(bind) = request.bind {
            let bind = (bind, Takes::Part);
            self.bind(lock.as_ref(), &request.owner, bind, request.id.as_ref(), lease, now);
        }
        self.entries.drop_if_idle(lock.as_ref());
    }

    /// The grant's client went away before it could be told: the hold is taken back at the next look.
    pub(crate) fn undelivered(&mut self, waiter: WaiterId) {
        let Some(InFlight { lock, request, .. }) = self.remove_in_flight(waiter) else { return };
        let Request { owner, mode, id, .. } = request;
        if let Some(entry) = self.entries.get_mut(lock.as_ref()) {
            entry.take_back.push(Undelivered { waiter, owner, mode, id });
        }
        self.dirty.insert(lock);
    }

    /// Somebody else changed the key, in a way that ended every hold on it (`gone`) or not necessarily.
    /// True if anybody here cares, so that the caller must see to a [`tick`](Service::tick) soon.
    pub(crate) fn touched(&mut self, lock: LockRef<'_>, gone: bool, now: Now) -> bool {
        if self.suspended {
            return false;
        }
        let was_held = gone && self.held.remove(lock);
        if was_held {
            // If nobody here will take it, somebody elsewhere may wait to hear that it is free.
            self.owed.insert(lock.to_id());
        }
        let known = self.knows(lock);
        // Nearly every key is none of ours.
        if known && gone {
            self.void_where(lock, |_| true);
            self.entries.drop_if_idle(lock);
        } else if known {
            if let Some(entry) = self.entries.get_mut(lock) {
                entry.pending.values_mut().for_each(Pending::lease_is_anothers);
                for id in &entry.in_flight {
                    if let Some(grant) = self.in_flight.get_mut(id) {
                        grant.lease_is_anothers = true;
                    }
                }
            }
            if !self.held.contains(lock) {
                self.stranger_took(lock, now);
            }
        }
        let cares = was_held || self.knows(lock);
        if cares {
            self.mark_dirty(lock);
        }
        cares
    }

    /// All keys of a database, or of every one, may have changed: a flush, a swap, or a reload that brings all of
    /// them back.
    pub(crate) fn touched_all(&mut self, db: Option<i32>) {
        if self.suspended {
            return;
        }
        for lock in self.entries.ids(db) {
            self.held.remove(lock.as_ref());
            self.void_grants(lock.as_ref(), |_| true);
            self.doubt_bindings(lock.as_ref());
            self.dirty.insert(lock);
        }
    }

    /// Every lock that somebody waits for may have changed, but not necessarily.
    pub(crate) fn look_at_all(&mut self) {
        for lock in self.entries.ids(None) {
            if self.waiting(lock.as_ref()) > 0 {
                self.dirty.insert(lock);
            }
        }
    }

    /// This server is not the primary: it grants nothing, and ends every wait.
    pub(crate) fn abdicate(&mut self) {
        for id in self.waiters.keys().copied().collect::<Vec<_>>() {
            self.decide(id, Decision::Demoted);
        }
        self.dirty.clear();
        self.owed.clear();
        self.held = GrantedKeys::default();
        self.suspend_bindings();
        for lock in self.entries.ids(None) {
            self.void_grants(lock.as_ref(), |_| true);
            self.forget_turn(lock.as_ref());
            self.set_lease_end(lock.as_ref(), None);
            self.entries.drop_if_idle(lock.as_ref());
        }
    }

    /// True if [`take_decisions`](Service::take_decisions) has any.
    pub(crate) fn has_decided(&self) -> bool {
        !self.decisions.is_empty()
    }

    /// True if nothing is to be done about this lock but what a call asks for. So it is with nearly every one.
    fn is_quiet(&self, lock: LockRef<'_>) -> bool {
        self.dirty.is_empty() && !self.knows(lock)
    }

    /// True if anything is remembered about this lock.
    pub(crate) fn knows(&self, lock: LockRef<'_>) -> bool {
        self.entries.get(lock).is_some()
    }

    /// What was decided since the last call, in the order of the decisions.
    pub(crate) fn take_decisions(&mut self) -> Vec<(WaiterId, Decision)> {
        std::mem::take(&mut self.decisions)
    }
}

/// What makes two waits the same request.
pub(super) fn asked(lock: &LockId, request: &Request) -> Option<(LockId, RequestId)> {
    Some((lock.clone(), request.id.clone()?))
}

/// Whether a request that waits does so exclusively.
pub(super) fn is_exclusive(request: &Request) -> bool {
    request.mode == Mode::Exclusive
}
