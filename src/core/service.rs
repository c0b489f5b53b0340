//! The queues of all locks: who waits, who is next, which grant has not arrived yet, and when to look again.
//!
//! Only what waits is remembered. A lock that nobody waits for has no entry here, and who holds a lock is
//! passed in with every call, as the keyspace has it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::Rc;

use super::held::Held;
use super::{Admission, Holders, MonoUs, NotOwner, Now, Owner, WallMs};

/// How many locks one [`Service::tick`] asks its caller to look at, so that thousands of leases that end in
/// the same millisecond do not stall the server: the rest follows in the next tick.
const TICK_BATCH: usize = 128;

/// How long to wait before looking again while nothing may be written, in milliseconds.
const PAUSE_RETRY_MS: u64 = 10;

/// A lock: a key of one database. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LockId {
    pub(crate) db: i32,
    pub(crate) key: Rc<[u8]>,
}

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

/// One entry of [`Service::waiters_of`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WaiterInfo<'a> {
    pub(crate) id: WaiterId,
    pub(crate) owner: &'a Owner,
    pub(crate) waited_us: MonoUs,
    /// `None`: waits without limit.
    pub(crate) remaining_us: Option<MonoUs>,
}

struct Waiter {
    lock: LockId,
    request: Request,
    since: MonoUs,
    deadline: Option<MonoUs>,
}

struct InFlight {
    lock: LockId,
    owner: Owner,
}

#[derive(Default)]
struct Queue {
    /// In the order of arrival, which is the order of the ids.
    waiting: BTreeSet<WaiterId>,
    /// Grants on this lock of which it is not known yet whether they reached their client. An owner whose
    /// holds ended otherwise has none: taking back an ended grant could free a newer one.
    in_flight: Vec<WaiterId>,
    /// Owners who have one hold too many, because a grant did not reach its client.
    take_back: Vec<Owner>,
    /// The entry of this lock in `Service::leases`; there is one if, and only if, somebody waits for a lock
    /// that is held.
    lease_end: Option<WallMs>,
    /// The lock stands in `Service::dirty` and has not been looked at since.
    dirty: bool,
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty() && self.take_back.is_empty()
    }
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
    /// By database, then by key, so that a look-up needs no owned key. No queue is idle, no inner map empty.
    queues: HashMap<i32, HashMap<Rc<[u8]>, Queue>>,
    /// Everybody who waits, each in exactly one queue.
    waiters: HashMap<WaiterId, Waiter>,
    /// Where an owner waits, in the order of arrival: finds the waiters that a grant to the same owner lets
    /// in, without a walk along the queue.
    waits_of: HashMap<Owner, Vec<WaiterId>>,
    /// Grants that are decided and not yet known to have arrived; each is listed in its lock's queue.
    in_flight: HashMap<WaiterId, InFlight>,
    /// The deadlines of all waiters that have one.
    deadlines: BTreeSet<(MonoUs, WaiterId)>,
    /// When the lease of a lock that somebody waits for ends.
    leases: BTreeSet<(WallMs, LockId)>,
    /// Locks that may have become free without a call of ours.
    dirty: VecDeque<LockId>,
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
        db: i32,
        key: &[u8],
        holders: &mut Holders,
        request: &Request,
        now: Now,
    ) -> Admission {
        // Between a stranger's DEL and our look at it other commands run: whoever waits comes first.
        self.serve(db, key, holders, now);
        let admission = holders.acquire(&request.owner, request.expires_at(now));
        if admission == Admission::Grant(1) {
            self.held.insert(db, key);
        }
        self.watch_lease(db, key, holders);
        admission
    }

    /// Queues a request that [`acquire`](Service::acquire) has just found [`Admission::Busy`].
    pub(crate) fn wait(
        &mut self,
        db: i32,
        key: &[u8],
        holders: &Holders,
        request: Request,
        deadline: Option<MonoUs>,
        now: Now,
    ) -> WaiterId {
        self.last_id += 1;
        let id = WaiterId(self.last_id);
        let in_db = self.queues.entry(db).or_default();
        let key: Rc<[u8]> = match in_db.get_key_value(key) {
            Some((known, _)) => known.clone(),
            None => Rc::from(key),
        };
        in_db.entry(key.clone()).or_default().waiting.insert(id);
        if let Some(at) = deadline {
            self.deadlines.insert((at, id));
        }
        self.waits_of.entry(request.owner.clone()).or_default().push(id);
        let lock = LockId { db, key: key.clone() };
        self.waiters.insert(id, Waiter { lock, request, since: now.mono, deadline });
        self.watch_lease(db, &key, holders);
        id
    }

    /// Gives back one hold of `owner`, or all, and hands the lock on if that freed it. Returns what is left.
    pub(crate) fn release(
        &mut self,
        db: i32,
        key: &[u8],
        holders: &mut Holders,
        owner: &[u8],
        all: bool,
        lease_ms: Option<i64>,
        now: Now,
    ) -> Result<i64, NotOwner> {
        let expires_at = lease_ms.map(|ms| now.wall.saturating_add(ms));
        let left = holders.release(owner, all, expires_at)?;
        if left == 0 {
            self.void(db, key, Some(owner));
        }
        self.serve(db, key, holders, now);
        self.forget_if_free(db, key, holders);
        Ok(left)
    }

    /// Sets the owner's lease anew. Returns its hold count.
    pub(crate) fn renew(
        &mut self,
        db: i32,
        key: &[u8],
        holders: &mut Holders,
        owner: &[u8],
        lease_ms: i64,
        now: Now,
    ) -> Result<i64, NotOwner> {
        let held = holders.renew(owner, now.wall.saturating_add(lease_ms))?;
        self.watch_lease(db, key, holders);
        Ok(held)
    }

    /// Ends every hold and serves the queue. Returns how many owners lost theirs.
    pub(crate) fn break_lock(&mut self, db: i32, key: &[u8], holders: &mut Holders, now: Now) -> usize {
        self.void(db, key, None);
        let lost = holders.clear();
        self.serve(db, key, holders, now);
        self.forget_if_free(db, key, holders);
        lost
    }

    /// Brings one lock up to date with what its key holds: takes back grants that did not arrive, then
    /// grants the lock to whoever is first in line and may have it.
    pub(crate) fn serve(&mut self, db: i32, key: &[u8], holders: &mut Holders, now: Now) {
        let Some(queue) = self.queue_mut(db, key) else { return };
        queue.dirty = false;
        for owner in std::mem::take(&mut queue.take_back) {
            // An owner who has lost the lock meanwhile has nothing that could be taken back.
            let _ = holders.release(owner.as_bytes(), false, None);
        }
        self.void_ended(db, key, holders);
        while let Some(id) = self.next_admitted(db, key, holders) {
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
        self.watch_lease(db, key, holders);
        self.drop_if_idle(db, key);
    }

    /// Ends every wait for a lock with the same decision.
    pub(crate) fn refuse_all(&mut self, db: i32, key: &[u8], decision: Decision) {
        self.void(db, key, None);
        let Some(queue) = self.queue_mut(db, key) else { return };
        queue.dirty = false;
        for id in queue.waiting.iter().copied().collect::<Vec<_>>() {
            self.decide(id, decision);
        }
        self.watch_lease(db, key, &Holders::Free);
        self.drop_if_idle(db, key);
    }

    /// A waiter leaves the queue: its client is gone or was ended from outside. False if it does not wait
    /// any more.
    pub(crate) fn leave(&mut self, id: WaiterId) -> bool {
        let Some(waiter) = self.remove_waiter(id) else { return false };
        self.forget_lease_if_unwatched(waiter.lock.db, &waiter.lock.key);
        self.drop_if_idle(waiter.lock.db, &waiter.lock.key);
        true
    }

    /// The grant reached its client: it is final.
    pub(crate) fn delivered(&mut self, id: WaiterId) {
        if let Some(grant) = self.remove_in_flight(id) {
            self.drop_if_idle(grant.lock.db, &grant.lock.key);
        }
    }

    /// The grant's client went away before it could be told: the hold is taken back at the next look.
    pub(crate) fn undelivered(&mut self, id: WaiterId) {
        let Some(grant) = self.remove_in_flight(id) else { return };
        let LockId { db, key } = grant.lock;
        if let Some(queue) = self.queue_mut(db, &key) {
            queue.take_back.push(grant.owner);
        }
        self.mark_dirty(db, &key);
    }

    /// Somebody else changed the key, in a way that ended every hold on it (`gone`) or not necessarily.
    /// True if anybody here cares, so that the caller must see to a [`tick`](Service::tick) soon.
    pub(crate) fn touched(&mut self, db: i32, key: &[u8], gone: bool) -> bool {
        let was_held = gone && self.held.remove(db, key);
        if self.queue_mut(db, key).is_none() {
            // Nobody here will take it, but somebody elsewhere may wait to hear that it is free.
            if was_held {
                self.dirty.push_back(LockId { db, key: Rc::from(key) });
            }
            return was_held;
        }
        if gone {
            self.void(db, key, None);
        }
        self.mark_dirty(db, key);
        true
    }

    /// All keys of a database, or of every one, may have changed: a flush or a swap.
    pub(crate) fn touched_all(&mut self, db: Option<i32>) {
        for lock in self.locks(db) {
            self.touched(lock.db, &lock.key, true);
        }
    }

    /// Every lock that somebody waits for may have changed, but not necessarily.
    pub(crate) fn look_at_all(&mut self) {
        for lock in self.locks(None) {
            self.touched(lock.db, &lock.key, false);
        }
    }

    /// This server is not the primary, and grants nothing. Those who still wait leave by themselves.
    pub(crate) fn abdicate(&mut self) {
        self.dirty.clear();
        self.held = Held::default();
        for lock in self.locks(None) {
            self.void(lock.db, &lock.key, None);
            self.set_lease_end(lock.db, &lock.key, None);
            if let Some(queue) = self.queue_mut(lock.db, &lock.key) {
                queue.dirty = false;
            }
            self.drop_if_idle(lock.db, &lock.key);
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
                self.forget_lease_if_unwatched(lock.db, &lock.key);
                self.drop_if_idle(lock.db, &lock.key);
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
            self.set_lease_end(lock.db, &lock.key, None);
            self.mark_dirty(lock.db, &lock.key);
        }
        let mut look_at = Vec::new();
        while look_at.len() < TICK_BATCH {
            let Some(lock) = self.dirty.pop_front() else { break };
            // A lock that was served since it was marked is up to date. One without a queue is not: nobody
            // here will take it, and those who wait elsewhere must hear that it is free.
            if self.queue_mut(lock.db, &lock.key).is_none_or(|queue| std::mem::take(&mut queue.dirty)) {
                look_at.push(lock);
            }
        }
        look_at
    }

    /// In how many milliseconds [`tick`](Service::tick) is due; `None` if nothing is planned.
    pub(crate) fn next_wakeup(&self, now: Now, may_write: bool) -> Option<u64> {
        let deadline = self.deadlines.first().map(|(at, _)| at.saturating_sub(now.mono).div_ceil(1000));
        let work = if !self.dirty.is_empty() {
            Some(0)
        } else {
            // At least 1: a key may outlive its lease by the age of the clock that the server decides by.
            self.leases.first().map(|(end, _)| (end + 1).saturating_sub(now.wall).max(1).unsigned_abs())
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

    /// How many wait for this lock.
    pub(crate) fn waiting(&self, db: i32, key: &[u8]) -> usize {
        self.queue(db, key).map_or(0, |queue| queue.waiting.len())
    }

    /// How many wait for any lock.
    pub(crate) fn waiting_total(&self) -> usize {
        self.waiters.len()
    }

    /// How many locks are waited for.
    pub(crate) fn contended(&self) -> usize {
        self.queues.values().flat_map(HashMap::values).filter(|queue| !queue.waiting.is_empty()).count()
    }

    /// Who waits for this lock, first in line first.
    pub(crate) fn waiters_of<'a>(
        &'a self,
        db: i32,
        key: &[u8],
        now: Now,
    ) -> impl Iterator<Item = WaiterInfo<'a>> {
        let waiting = self.queue(db, key).map(|queue| queue.waiting.iter()).into_iter().flatten();
        waiting.filter_map(move |id| {
            let waiter = self.waiters.get(id)?;
            Some(WaiterInfo {
                id: *id,
                owner: &waiter.request.owner,
                waited_us: now.mono.saturating_sub(waiter.since),
                remaining_us: waiter.deadline.map(|at| at.saturating_sub(now.mono)),
            })
        })
    }

    /// The next waiter that the holders admit: one whose owner holds the lock already, for whom it is a
    /// re-entry as it would be for a new call, or else the first in line.
    fn next_admitted(&self, db: i32, key: &[u8], holders: &Holders) -> Option<WaiterId> {
        let queue = self.queue(db, key)?;
        let re_entry = holders.iter().find_map(|hold| {
            self.waits_of.get(&hold.owner)?.iter().find(|id| queue.waiting.contains(id)).copied()
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
            self.held.insert(lock.db, &lock.key);
            if let Some(queue) = self.queue_mut(lock.db, &lock.key) {
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
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.waits_of.remove(&waiter.request.owner);
            }
        }
        if let Some(queue) = self.queue_mut(waiter.lock.db, &waiter.lock.key) {
            queue.waiting.remove(&id);
        }
        Some(waiter)
    }

    fn remove_in_flight(&mut self, id: WaiterId) -> Option<InFlight> {
        let grant = self.in_flight.remove(&id)?;
        if let Some(queue) = self.queue_mut(grant.lock.db, &grant.lock.key) {
            queue.in_flight.retain(|other| *other != id);
        }
        Some(grant)
    }

    /// The holds of `owner`, or of everybody, ended: what was still to be delivered or taken back of them is
    /// void.
    fn void(&mut self, db: i32, key: &[u8], owner: Option<&[u8]>) {
        self.void_where(db, key, |of| owner.is_none_or(|owner| owner == of.as_bytes()));
    }

    /// The same for every owner that is no holder any more.
    fn void_ended(&mut self, db: i32, key: &[u8], holders: &Holders) {
        self.void_where(db, key, |of| holders.of(of.as_bytes()).is_none());
    }

    fn void_where(&mut self, db: i32, key: &[u8], ended: impl Fn(&Owner) -> bool) {
        let Some(queue) = self.queues.get_mut(&db).and_then(|in_db| in_db.get_mut(key)) else { return };
        queue.take_back.retain(|of| !ended(of));
        queue.in_flight.retain(|id| match self.in_flight.get(id) {
            Some(grant) if ended(&grant.owner) => {
                self.in_flight.remove(id);
                false
            }
            _ => true,
        });
    }

    fn forget_if_free(&mut self, db: i32, key: &[u8], holders: &Holders) {
        if holders.is_free() {
            self.held.remove(db, key);
        }
    }

    fn mark_dirty(&mut self, db: i32, key: &[u8]) {
        let Some((key, queue)) = self.queues.get_mut(&db).and_then(|in_db| {
            let key = in_db.get_key_value(key)?.0.clone();
            Some((key.clone(), in_db.get_mut(&key)?))
        }) else {
            return;
        };
        if !std::mem::replace(&mut queue.dirty, true) {
            self.dirty.push_back(LockId { db, key });
        }
    }

    /// Keeps an own deadline for the end of the lease of every lock that somebody waits for.
    fn watch_lease(&mut self, db: i32, key: &[u8], holders: &Holders) {
        if self.waiting(db, key) > 0 {
            self.set_lease_end(db, key, holders.expires_at());
        } else {
            self.set_lease_end(db, key, None);
        }
    }

    fn forget_lease_if_unwatched(&mut self, db: i32, key: &[u8]) {
        if self.waiting(db, key) == 0 {
            self.set_lease_end(db, key, None);
        }
    }

    fn set_lease_end(&mut self, db: i32, key: &[u8], end: Option<WallMs>) {
        let Some(in_db) = self.queues.get_mut(&db) else { return };
        let Some(owned) = in_db.get_key_value(key).map(|(key, _)| key.clone()) else { return };
        let Some(queue) = in_db.get_mut(key) else { return };
        let before = std::mem::replace(&mut queue.lease_end, end);
        if before == end {
            return;
        }
        let lock = LockId { db, key: owned };
        if let Some(at) = before {
            self.leases.remove(&(at, lock.clone()));
        }
        if let Some(at) = end {
            self.leases.insert((at, lock));
        }
    }

    fn drop_if_idle(&mut self, db: i32, key: &[u8]) {
        let Some(in_db) = self.queues.get_mut(&db) else { return };
        if in_db.get(key).is_some_and(Queue::is_idle) {
            in_db.remove(key);
            if in_db.is_empty() {
                self.queues.remove(&db);
            }
        }
    }

    /// The locks of a database, or of all, that have a queue.
    fn locks(&self, db: Option<i32>) -> Vec<LockId> {
        self.queues
            .iter()
            .filter(|(of, _)| db.is_none_or(|db| db == **of))
            .flat_map(|(of, in_db)| in_db.keys().map(|key| LockId { db: *of, key: key.clone() }))
            .collect()
    }

    fn queue(&self, db: i32, key: &[u8]) -> Option<&Queue> {
        self.queues.get(&db)?.get(key)
    }

    fn queue_mut(&mut self, db: i32, key: &[u8]) -> Option<&mut Queue> {
        self.queues.get_mut(&db)?.get_mut(key)
    }
}
