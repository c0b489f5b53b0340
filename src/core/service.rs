//! The queues of all locks: who waits, who is next, which grant has not arrived yet, and when to look again.
//!
//! Only what waits is remembered. A lock that nobody waits for has no entry here, and who holds a lock is
//! passed in with every call, as the keyspace has it.

use std::collections::{BTreeSet, HashMap};

use super::held::Held;
use super::queues::Queues;
use super::{Admission, Holders, LockId, LockRef, MonoUs, NotOwner, Now, Owner, WallMs};

/// How many locks one [`Service::tick`] asks its caller to look at, so that thousands of leases that end in
/// the same millisecond do not stall the server: the rest follows in the next tick.
const TICK_BATCH: usize = 64;

/// How long to wait before looking again while nothing may be written, in milliseconds.
const PAUSE_RETRY_MS: u64 = 2;

/// Names one wait, from the call that has to wait until its client has been answered. Never used twice, and
/// in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WaiterId(pub(crate) u64);

/// What an acquire asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) owner: Owner,
    /// Milliseconds that the lease runs from the grant.
    pub(crate) lease_ms: i64,
}

impl Request {
    fn expires_at(&self, now: Now) -> WallMs {
        now.wall.saturating_add(self.lease_ms)
    }
}

/// How a wait ended. Each waiter gets exactly one, unless it left by itself ([`Service::leave`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It has the lock, and this is its hold count.
    Granted(i64),
    /// Its time to wait is over.
    TimedOut,
    /// The key holds something that is no lock.
    WrongType,
    /// The lock's slot is served by another node of the cluster now.
    Moved,
    /// The hold count cannot grow any more.
    Overflow,
}

pub(super) struct Waiter {
    pub(super) lock: LockId,
    pub(super) request: Request,
    pub(super) since: MonoUs,
    pub(super) deadline: Option<MonoUs>,
}

struct InFlight {
    lock: LockId,
    owner: Owner,
}

/// The state in memory of all locks that somebody waits for.
///
/// Inputs: [`acquire`](Service::acquire), [`wait`](Service::wait), [`release`](Service::release),
/// [`renew`](Service::renew), [`break_lock`](Service::break_lock), [`serve`](Service::serve) with the holders
/// of the lock; [`leave`](Service::leave), [`delivered`](Service::delivered),
/// [`undelivered`](Service::undelivered) from connections; [`touched`](Service::touched) from strangers;
/// [`tick`](Service::tick) from the clock.
/// Outputs: [`take_decisions`](Service::take_decisions), [`next_wakeup`](Service::next_wakeup).
#[derive(Default)]
pub(crate) struct Service {
    /// Locks that somebody waits for, or that have a grant under way. None is idle.
    pub(super) queues: Queues,
    /// Everybody who waits, each in exactly one queue.
    pub(super) waiters: HashMap<WaiterId, Waiter>,
    /// Where an owner waits, by lock and in the order of arrival: finds the waiters that a grant to the same
    /// owner lets in, without a walk along the queue.
    waits_of: HashMap<Owner, BTreeSet<(LockId, WaiterId)>>,
    /// Grants that are decided and not yet known to have arrived; each is listed in its lock's queue.
    in_flight: HashMap<WaiterId, InFlight>,
    /// The deadlines of all waiters that have one.
    deadlines: BTreeSet<(MonoUs, WaiterId)>,
    /// When the lease of a lock that somebody waits for ends.
    leases: BTreeSet<(WallMs, LockId)>,
    /// Locks that may have become free without a call of ours, and have not been looked at since.
    dirty: BTreeSet<LockId>,
    decisions: Vec<(WaiterId, Decision)>,
    /// Which keys are likely to be locks that were granted here.
    held: Held,
    last_id: u64,
}

impl Service {
    /// Grants the request if the holders admit it and nobody is first in line; otherwise changes nothing
    /// but what the queue had coming anyway.
    pub(crate) fn acquire(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        request: &Request,
        now: Now,
    ) -> Admission {
        // Between a stranger's DEL and our look at it other commands run: whoever waits comes first.
        self.serve(lock, holders, now);
        let admission = holders.acquire(&request.owner, request.expires_at(now));
        if admission == Admission::Grant(1) {
            self.held.insert(lock);
        }
        self.watch_lease(lock, holders);
        admission
    }

    /// Queues a request that [`acquire`](Service::acquire) has just found [`Admission::Busy`].
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
        let (lock, queue) = self.queues.get_or_make(lock);
        queue.waiting.insert(id);
        if let Some(at) = deadline {
            self.deadlines.insert((at, id));
        }
        self.waits_of.entry(request.owner.clone()).or_default().insert((lock.clone(), id));
        self.watch_lease(lock.as_ref(), holders);
        self.waiters.insert(id, Waiter { lock, request, since: now.mono, deadline });
        id
    }

    /// Gives back one hold of `owner`, or all, and hands the lock on if that freed it. Returns what is left.
    pub(crate) fn release(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        owner: &[u8],
        all: bool,
        lease_ms: Option<i64>,
        now: Now,
    ) -> Result<i64, NotOwner> {
        let expires_at = lease_ms.map(|ms| now.wall.saturating_add(ms));
        let left = holders.release(owner, all, expires_at)?;
        self.serve(lock, holders, now);
        self.forget_if_free(lock, holders);
        Ok(left)
    }

    /// Sets the owner's lease anew. Returns its hold count.
    pub(crate) fn renew(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        owner: &[u8],
        lease_ms: i64,
        now: Now,
    ) -> Result<i64, NotOwner> {
        let held = holders.renew(owner, now.wall.saturating_add(lease_ms))?;
        self.watch_lease(lock, holders);
        Ok(held)
    }

    /// Ends every hold and serves the queue. Returns how many owners lost theirs.
    pub(crate) fn break_lock(&mut self, lock: LockRef<'_>, holders: &mut Holders, now: Now) -> usize {
        let lost = holders.clear();
        self.serve(lock, holders, now);
        self.forget_if_free(lock, holders);
        lost
    }

    /// Brings one lock up to date with what its key holds: takes back grants that did not arrive, then
    /// grants the lock to whoever is first in line and may have it.
    pub(crate) fn serve(&mut self, lock: LockRef<'_>, holders: &mut Holders, now: Now) {
        self.looked_at(lock);
        let Some(queue) = self.queues.get_mut(lock) else { return };
        for owner in std::mem::take(&mut queue.take_back) {
            // An owner who has lost the lock meanwhile has nothing that could be taken back.
            let _ = holders.release(owner.as_bytes(), false, None);
        }
        self.void_ended(lock, holders);
        while let Some(id) = self.next_admitted(lock, holders) {
            let Some(waiter) = self.waiters.get(&id) else { break };
            let decision = if waiter.deadline.is_some_and(|at| at <= now.mono) {
                Decision::TimedOut
            } else {
                match holders.acquire(&waiter.request.owner, waiter.request.expires_at(now)) {
                    Admission::Grant(holds) => Decision::Granted(holds),
                    Admission::Overflow => Decision::Overflow,
                    Admission::Busy => break,
                }
            };
            self.decide(id, decision);
        }
        self.watch_lease(lock, holders);
        self.queues.drop_if_idle(lock);
    }

    /// Ends every wait for a lock with the same decision.
    pub(crate) fn refuse_all(&mut self, lock: LockRef<'_>, decision: Decision) {
        self.void(lock);
        self.looked_at(lock);
        let Some(queue) = self.queues.get_mut(lock) else { return };
        for id in queue.waiting.iter().copied().collect::<Vec<_>>() {
            self.decide(id, decision);
        }
        self.watch_lease(lock, &Holders::Free);
        self.queues.drop_if_idle(lock);
    }

    /// A waiter leaves the queue: its client is gone or was ended from outside. False if it does not wait
    /// any more.
    pub(crate) fn leave(&mut self, id: WaiterId) -> bool {
        let Some(waiter) = self.remove_waiter(id) else { return false };
        self.forget_lease_if_unwatched(waiter.lock.as_ref());
        self.queues.drop_if_idle(waiter.lock.as_ref());
        true
    }

    /// The grant reached its client: it is final.
    pub(crate) fn delivered(&mut self, id: WaiterId) {
        if let Some(grant) = self.remove_in_flight(id) {
            self.queues.drop_if_idle(grant.lock.as_ref());
        }
    }

    /// The grant's client went away before it could be told: the hold is taken back at the next look.
    pub(crate) fn undelivered(&mut self, id: WaiterId) {
        let Some(grant) = self.remove_in_flight(id) else { return };
        if let Some(queue) = self.queues.get_mut(grant.lock.as_ref()) {
            queue.take_back.push(grant.owner);
        }
        self.mark_dirty(grant.lock.as_ref());
    }

    /// Somebody else changed the key, in a way that ended every hold on it (`gone`) or not necessarily.
    /// True if anybody here cares, so that the caller must see to a [`tick`](Service::tick) soon.
    pub(crate) fn touched(&mut self, lock: LockRef<'_>, gone: bool) -> bool {
        let was_held = gone && self.held.remove(lock);
        if self.queues.get_mut(lock).is_none() {
            // Nobody here will take it, but somebody elsewhere may wait to hear that it is free.
            if was_held {
                self.dirty.insert(lock.to_id());
            }
            return was_held;
        }
        if gone {
            self.void(lock);
        }
        self.mark_dirty(lock);
        true
    }

    /// All keys of a database, or of every one, may have changed: a flush or a swap.
    pub(crate) fn touched_all(&mut self, db: Option<i32>) {
        for lock in self.queues.ids(db) {
            self.touched(lock.as_ref(), true);
        }
    }

    /// Every lock that somebody waits for may have changed, but not necessarily.
    pub(crate) fn look_at_all(&mut self) {
        for lock in self.queues.ids(None) {
            self.touched(lock.as_ref(), false);
        }
    }

    /// This server is not the primary, and grants nothing. Those who still wait leave by themselves.
    pub(crate) fn abdicate(&mut self) {
        self.dirty.clear();
        self.held = Held::default();
        for lock in self.queues.ids(None) {
            self.void(lock.as_ref());
            self.set_lease_end(lock.as_ref(), None);
            self.queues.drop_if_idle(lock.as_ref());
        }
    }

    /// Time has passed, or something was touched. Ends the waits whose time is over; then, if it is allowed
    /// to write now, returns the locks whose keys the caller must read and [`serve`](Service::serve).
    pub(crate) fn tick(&mut self, now: Now, may_write: bool) -> Vec<LockId> {
        while let Some(&(at, id)) = self.deadlines.first() {
            if at > now.mono {
                break;
            }
            let lock = self.waiters.get(&id).map(|waiter| waiter.lock.clone());
            self.decide(id, Decision::TimedOut);
            if let Some(lock) = lock {
                self.forget_lease_if_unwatched(lock.as_ref());
                self.queues.drop_if_idle(lock.as_ref());
            }
        }
        if !may_write {
            return Vec::new();
        }
        while let Some((end, lock)) = self.leases.first() {
            // A key is expired only when its time has passed, not when it has come.
            if *end >= now.wall {
                break;
            }
            let lock = lock.clone();
            self.set_lease_end(lock.as_ref(), None);
            self.mark_dirty(lock.as_ref());
        }
        let batch: Vec<LockId> = self.dirty.iter().take(TICK_BATCH).cloned().collect();
        for lock in &batch {
            self.dirty.remove(lock);
        }
        batch
    }

    /// In how many milliseconds [`tick`](Service::tick) is due; `None` if nothing is planned.
    pub(crate) fn next_wakeup(&self, now: Now, may_write: bool) -> Option<u64> {
        let deadline = self.deadlines.first().map(|(at, _)| at.saturating_sub(now.mono).div_ceil(1000));
        let work = if !self.dirty.is_empty() {
            Some(0)
        } else {
            // At least 1: a key may outlive its lease by the age of the clock that the server decides by.
            self.leases
                .first()
                .map(|(end, _)| end.saturating_sub(now.wall).saturating_add(1).max(1).unsigned_abs())
        };
        let work = if may_write { work } else { work.map(|ms| ms.max(PAUSE_RETRY_MS)) };
        match (deadline, work) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        }
    }

    /// What was decided since the last call, in the order of the decisions.
    pub(crate) fn take_decisions(&mut self) -> Vec<(WaiterId, Decision)> {
        std::mem::take(&mut self.decisions)
    }

    /// True if nobody waits and nothing is under way: no input but an acquire can matter.
    pub(crate) fn is_idle(&self) -> bool {
        self.queues.is_empty() && self.dirty.is_empty()
    }

    /// True if [`touched`](Service::touched) would do nothing, whatever the key.
    pub(crate) fn ignores(&self, gone: bool) -> bool {
        self.queues.is_empty() && (!gone || self.held.is_empty())
    }

    /// Fails if anything is kept.
    #[cfg(test)]
    pub(crate) fn assert_empty(&self) {
        assert!(self.queues.is_empty() && self.waiters.is_empty() && self.waits_of.is_empty());
        assert!(self.in_flight.is_empty() && self.deadlines.is_empty() && self.leases.is_empty());
        assert!(self.dirty.is_empty() && self.decisions.is_empty());
    }

    /// The next waiter that the holders admit: one whose owner holds the lock already, for whom it is a
    /// re-entry as it would be for a new call, or else the first in line.
    fn next_admitted(&self, lock: LockRef<'_>, holders: &Holders) -> Option<WaiterId> {
        let queue = self.queues.get(lock)?;
        let re_entry = holders.iter().find_map(|hold| {
            let waits = self.waits_of.get(&hold.owner)?;
            let (of, id) = waits.range((lock.to_id(), WaiterId(0))..).next()?;
            (of.as_ref() == lock).then_some(*id)
        });
        re_entry.or_else(|| {
            let first = queue.waiting.first().copied()?;
            let owner = &self.waiters.get(&first)?.request.owner;
            (holders.admits(owner.as_bytes()) != Admission::Busy).then_some(first)
        })
    }

    fn decide(&mut self, id: WaiterId, decision: Decision) {
        let Some(waiter) = self.remove_waiter(id) else { return };
        if let Decision::Granted(_) = decision {
            let Waiter { lock, request, .. } = waiter;
            self.held.insert(lock.as_ref());
            if let Some(queue) = self.queues.get_mut(lock.as_ref()) {
                queue.in_flight.push(id);
            }
            self.in_flight.insert(id, InFlight { lock, owner: request.owner });
        }
        self.decisions.push((id, decision));
    }

    /// Takes a waiter out of every index. Its queue stays, even if it is idle now.
    fn remove_waiter(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        if let Some(at) = waiter.deadline {
            self.deadlines.remove(&(at, id));
        }
        if let Some(ids) = self.waits_of.get_mut(&waiter.request.owner) {
            ids.remove(&(waiter.lock.clone(), id));
            if ids.is_empty() {
                self.waits_of.remove(&waiter.request.owner);
            }
        }
        if let Some(queue) = self.queues.get_mut(waiter.lock.as_ref()) {
            queue.waiting.remove(&id);
        }
        Some(waiter)
    }

    fn remove_in_flight(&mut self, id: WaiterId) -> Option<InFlight> {
        let grant = self.in_flight.remove(&id)?;
        if let Some(queue) = self.queues.get_mut(grant.lock.as_ref()) {
            queue.in_flight.retain(|other| *other != id);
        }
        Some(grant)
    }

    /// Every hold ended: what was still to be delivered or taken back of them is void.
    fn void(&mut self, lock: LockRef<'_>) {
        self.void_where(lock, |_| true);
    }

    /// The same for every owner that is no holder any more.
    fn void_ended(&mut self, lock: LockRef<'_>, holders: &Holders) {
        self.void_where(lock, |of| holders.of(of.as_bytes()).is_none());
    }

    fn void_where(&mut self, lock: LockRef<'_>, ended: impl Fn(&Owner) -> bool) {
        let Some(queue) = self.queues.get_mut(lock) else { return };
        queue.take_back.retain(|of| !ended(of));
        queue.in_flight.retain(|id| match self.in_flight.get(id) {
            Some(grant) if ended(&grant.owner) => {
                self.in_flight.remove(id);
                false
            }
            _ => true,
        });
    }

    /// Frees tables that are empty and were large.
    pub(crate) fn give_memory_back(&mut self) {
        if self.waiters.is_empty() && self.waiters.capacity() > 1024 {
            self.waiters = HashMap::new();
            self.waits_of = HashMap::new();
        }
        if self.in_flight.is_empty() && self.in_flight.capacity() > 1024 {
            self.in_flight = HashMap::new();
        }
        if self.decisions.is_empty() {
            self.decisions = Vec::new();
        }
    }

    fn forget_if_free(&mut self, lock: LockRef<'_>, holders: &Holders) {
        if holders.is_free() {
            self.held.remove(lock);
        }
    }

    fn mark_dirty(&mut self, lock: LockRef<'_>) {
        if let Some((id, _)) = self.queues.get_with_id(lock) {
            self.dirty.insert(id);
        }
    }

    /// The lock is up to date with its key.
    fn looked_at(&mut self, lock: LockRef<'_>) {
        if !self.dirty.is_empty() {
            self.dirty.remove(&lock.to_id());
        }
    }

    /// Keeps an own deadline for the end of the lease of every lock that somebody waits for.
    fn watch_lease(&mut self, lock: LockRef<'_>, holders: &Holders) {
        if self.waiting(lock) > 0 {
            self.set_lease_end(lock, holders.expires_at());
        } else {
            self.set_lease_end(lock, None);
        }
    }

    fn forget_lease_if_unwatched(&mut self, lock: LockRef<'_>) {
        if self.waiting(lock) == 0 {
            self.set_lease_end(lock, None);
        }
    }

    fn set_lease_end(&mut self, lock: LockRef<'_>, end: Option<WallMs>) {
        let Some((id, queue)) = self.queues.get_with_id(lock) else { return };
        let before = std::mem::replace(&mut queue.lease_end, end);
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
