// SPDX-License-Identifier: MIT

//! The core with a keyspace, a clock and a timer, as in a server.

use std::collections::{BTreeMap, HashMap};

use super::super::waits_for::{Edge, Progress, PORTION};
use super::*;

/// The content of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::core) enum Stored {
    Lock(Holders),
    Other,
}

/// The records stored with a lock.
#[derive(Default)]
pub(in crate::core) struct StoredRecords {
    counter: Option<Token>,
    granted: HashMap<RequestId, (Reply, WallMs)>,
    released: HashMap<RequestId, (i64, WallMs)>,
    cancelled: HashMap<RequestId, (bool, WallMs)>,
    now: WallMs,
    /// Whether the lock's channel has subscribers.
    listeners: bool,
    /// Whether an announcement that the lock is free is pending.
    announce: bool,
}

impl Records for StoredRecords {
    fn next_token(&mut self, above: Option<Token>) -> Result<Token, Refusal> {
        let after = self.counter.max(above).map_or(0, |last| last + 1);
        self.counter = Some(after.max(self.now * 1000));
        Ok(after.max(self.now * 1000))
    }

    fn has_next_token(&mut self, _above: Option<Token>) -> Result<(), Refusal> {
        Ok(())
    }

    fn granted(&mut self, id: &RequestId) -> Result<Option<Reply>, Refusal> {
        if self.cancelled(id)?.is_some() {
            return Err(Refusal::Cancelled);
        }
        Ok(self.granted.get(id).filter(|(_, until)| self.now <= *until).map(|(reply, _)| reply.clone()))
    }

    fn released(&mut self, id: &RequestId) -> Result<Option<i64>, Refusal> {
        Ok(self.released.get(id).filter(|(_, until)| self.now <= *until).map(|(left, _)| *left))
    }

    fn cancelled(&mut self, id: &RequestId) -> Result<Option<bool>, Refusal> {
        Ok(self.cancelled.get(id).filter(|(_, until)| self.now <= *until).map(|(undone, _)| *undone))
    }

    fn request_ttl_ms(&self) -> i64 {
        TTL
    }

    fn may_grow(&mut self) -> bool {
        true
    }

    fn remember_cancel(&mut self, id: &RequestId, undone: bool, now: Now) {
        self.granted.remove(id);
        self.cancelled.insert(id.clone(), (undone, now.wall + id.ttl_ms));
    }

    fn remember_grant(&mut self, id: &RequestId, reply: &Reply, now: Now) {
        self.granted.insert(id.clone(), (reply.clone(), now.wall + id.ttl_ms));
    }

    fn remember_release(&mut self, id: &RequestId, left: i64, now: Now) {
        self.released.insert(id.clone(), (left, now.wall + id.ttl_ms));
    }

    fn forget_grant(&mut self, id: &RequestId) {
        self.granted.remove(id);
    }

    fn has_listeners(&mut self) -> bool {
        self.listeners
    }

    fn announce(&mut self) {
        self.announce = true;
    }
}

/// A wait, the wait that it overtakes, and their lock.
pub(in crate::core) type Overtake = (WaiterId, WaiterId, &'static [u8]);

/// Decisions with their waits.
type Decided = Vec<(WaiterId, Decision)>;

/// Builds the value that commands build from an opened key.
pub(in crate::core) fn open_lock<'a>(
    lookup: LockLookup<'a>,
    holders: &'a mut Holders,
    records: &'a mut StoredRecords,
    now: Now,
) -> OpenLock<'a> {
    OpenLock { lookup, holders, records, now }
}

/// The core with a keyspace, a clock and a timer, like `crate::driver`.
pub(in crate::core) struct Real {
    pub(in crate::core) locks: LockManager,
    pub(in crate::core) keys: BTreeMap<&'static [u8], Stored>,
    records: BTreeMap<&'static [u8], StoredRecords>,
    pub(in crate::core) now: i64,
    pub(in crate::core) paused: bool,
    /// Whether the timer fires by itself after each step.
    pub(in crate::core) timer: bool,
    pub(in crate::core) decisions: Vec<(WaiterId, Decision)>,
    /// End of the time for which locks count as possibly forgotten.
    quarantine: Option<MonoUs>,
    /// Whether the channels of all locks have subscribers.
    pub(in crate::core) listeners: bool,
    /// The locks announced as free, one entry per announcement.
    pub(in crate::core) messages: Vec<&'static [u8]>,
    /// Notices to owners.
    pub(in crate::core) notices: Vec<Notice>,
    /// Swaps found by each search during a call, with the resulting decisions.
    pub(in crate::core) overtakes: Vec<(Vec<Overtake>, Decided)>,
    /// Swaps found by each search after a call, with the resulting decisions.
    pub(in crate::core) late_overtakes: Vec<(Vec<Overtake>, Decided)>,
    /// How to treat waits that join a cycle after they began.
    pub(in crate::core) late: Late,
    /// Maximum amount that a search examines without a pause.
    pub(in crate::core) portion: usize,
    /// Whether each step examines only one portion.
    pub(in crate::core) lazy: bool,
    /// Waits that ended as deadlocks.
    pub(in crate::core) deadlocked: Vec<WaiterId>,
}

/// How to treat a wait that was found in a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Late {
    /// A new wait is refused. No other wait is searched.
    NotSearched,
    /// The wait ends, at any time.
    Ends,
    /// The wait stays.
    Stays,
}

impl Real {
    /// A server on which the channels of all locks have subscribers from the start.
    pub(in crate::core) fn with_subscribers(timer: bool) -> Real {
        let mut real = Real::new(timer);
        real.listeners = true;
        real
    }

    pub(in crate::core) fn new(timer: bool) -> Real {
        let keys = KEYS.map(|key| (key, Stored::Lock(Holders::Free))).into();
        let records = KEYS.map(|key| (key, StoredRecords::default())).into();
        Real {
            locks: LockManager::default(),
            keys,
            records,
            now: 1_000,
            paused: false,
            timer,
            decisions: Vec::new(),
            quarantine: None,
            listeners: false,
            messages: Vec::new(),
            notices: Vec::new(),
            overtakes: Vec::new(),
            late_overtakes: Vec::new(),
            late: Late::NotSearched,
            portion: PORTION,
            lazy: false,
            deadlocked: Vec::new(),
        }
    }

    pub(in crate::core) fn time(&self) -> Now {
        // The two clocks differ, as in a real server.
        Now { wall: self.now, mono: self.now.unsigned_abs() * 1000 + 77 }
    }

    /// Opens a key, and ends an expired lease.
    pub(super) fn open(&mut self, key: &'static [u8]) -> Result<Holders, ()> {
        let time = self.time();
        match self.keys.get_mut(key).unwrap() {
            Stored::Lock(holders) => {
                if holders.expires_at().is_some_and(|at| time.wall > at) {
                    *holders = Holders::Free;
                    // The server raises `expired` for it.
                    self.locks.key_changed(at(key), KeyChange::Gone(HoldEvent::Expired), time);
                    return Ok(Holders::Free);
                }
                let mut holders = holders.clone();
                holders.end_leases(time.wall);
                Ok(holders)
            }
            Stored::Other => {
                self.locks.key_changed(at(key), KeyChange::Changed, time);
                Err(())
            }
        }
    }

    pub(super) fn store(&mut self, key: &'static [u8], mut holders: Holders) {
        match &mut holders {
            Holders::Free => {}
            Holders::Exclusive(hold) => hold.renewed = false,
            Holders::Shared(holds) => holds.values_mut().for_each(|hold| hold.renewed = false),
        }
        self.keys.insert(key, Stored::Lock(holders));
    }

    /// Opens a lock, runs `what` on it, and stores it.
    pub(super) fn on<T>(
        &mut self,
        key: &'static [u8],
        body: impl FnOnce(&mut LockManager, OpenLock<'_>) -> (T, StepOutput),
    ) -> Result<T, Seen> {
        let mut holders = self.open(key).map_err(|()| Seen::WrongType)?;
        let now = self.time();
        let records = self.records.get_mut(key).unwrap();
        (records.now, records.listeners) = (self.now, self.listeners);
        let (was_free, end_before) = (holders.is_free(), holders.expires_at());
        let open = open_lock(self.locks.look_up(at(key)), &mut holders, records, now);
        let (result, output) = body(&mut self.locks, open);
        let announce = std::mem::take(&mut records.announce);
        let unannounced = output.unannounced && was_free && holders.is_free();
        if output.is_reserved {
            if (!was_free && holders.is_free()) || announce {
                self.locks.note_withheld(output);
            }
        } else if (!was_free && holders.is_free()) || announce || unannounced {
            self.messages.push(key);
            self.locks.announced(at(key), output, self.listeners, now);
        }
        if let Some(end) = holders.first_end().filter(|_| end_before > holders.expires_at()) {
            if self.listeners {
                self.locks.lease_shortened(at(key), output, end);
            }
        }
        self.store(key, holders);
        Ok(result)
    }

    pub(in crate::core) fn step(&mut self, op: &Op) -> Option<Seen> {
        let seen = self.apply(op).unwrap_or_else(Some);
        self.serve_bundles();
        self.search_again();
        self.decisions.extend(self.locks.take_decisions());
        self.take_notices();
        if let Op::Pause(false) = op {
            // The timer was reset repeatedly until now.
            self.tick();
        }
        self.verify();
        if self.timer {
            self.fire();
        }
        seen
    }

    fn verify(&self) {
        // A cycle of waits lasts forever until one of them is refused.
        if self.late != Late::Stays && !self.locks.has_searches() {
            self.locks.verify();
        }
    }

    /// Handles the consequences of an input that is not a step.
    pub(in crate::core) fn settle(&mut self) {
        self.serve_bundles();
        self.search_again();
        self.decisions.extend(self.locks.take_decisions());
        self.fire();
    }

    /// Updates the quarantine, as the driver does before each acquire and when the timer fires.
    fn keep_quarantine(&mut self) {
        self.locks.quarantine(self.quarantine, self.time());
    }

    fn take_notices(&mut self) {
        while let Some(notice) = self.locks.next_notice() {
            self.notices.push(notice);
        }
    }

    /// Fires the timer as often as it is due now.
    pub(in crate::core) fn fire(&mut self) {
        while self.locks.next_wakeup(self.time(), !self.paused) == Some(0) {
            self.tick();
        }
    }

    pub(in crate::core) fn tick(&mut self) {
        self.keep_quarantine();
        self.locks.check_sessions(!self.paused, self.time());
        if let Some(lock) = self.locks.tick(self.time(), !self.paused) {
            let key = KEYS.into_iter().find(|key| **key == *lock.key).unwrap();
            let served = self.on(key, |locks, open| ((), locks.reconcile(open)));
            if served.is_err() {
                self.locks.refuse_all(at(key), &Decision::WrongType);
            }
            self.serve_bundles();
        }
        self.search_again();
        self.decisions.extend(self.locks.take_decisions());
        self.take_notices();
        self.verify();
    }

    /// Searches waits that may have joined a cycle, in portions. If `lazy`, examines one portion and leaves
    /// the rest for later.
    pub(in crate::core) fn search_again(&mut self) {
        while let Some(mut search) = self.locks.next_search(true, self.time()) {
            if self.late == Late::NotSearched {
                continue;
            }
            search.allow(self.portion);
            let id = search.of_wait().unwrap();
            let first_wait = self.locks.first_wait_of(id);
            let in_call = std::mem::take(&mut self.overtakes);
            let found = self.resolve(search);
            self.late_overtakes.extend(std::mem::replace(&mut self.overtakes, in_call));
            match found {
                Ok(Some(_)) if self.late == Late::Ends => {
                    self.locks.end_deadlocked(id, crate::core::Cause::Unknown, self.time());
                    self.deadlocked.push(first_wait);
                }
                Ok(_) => {}
                Err(search) => self.locks.suspend_search(*search),
            }
            if self.lazy {
                break;
            }
        }
    }

    fn apply(&mut self, op: &Op) -> Result<Option<Seen>, Seen> {
        match *op {
            Op::Acquire { lock, ref call, block } => self.acquire(KEYS[lock], call, block).map(Some),
            Op::Release { lock, owner, scope, lease, id } => {
                let id = id.map(|id| request_id(owner, id));
                let release =
                    Release { owner: Owner::new(OWNERS[owner]), scope, lease_ms: lease, id, number: None };
                let left = self.on(KEYS[lock], |locks, open| locks.release(open, &release))?;
                Ok(Some(left.map_or(Seen::NotOwner, Seen::Left)))
            }
            Op::Cancel { lock, owner, id } => {
                let id = request_id(owner, id);
                let undone = self.on(KEYS[lock], |locks, open| locks.cancel(open, &id))?;
                Ok(Some(Seen::Cancelled(undone.unwrap())))
            }
            Op::Renew { lock, owner, lease, bind, max } => {
                let (owner, bind) = (Owner::new(OWNERS[owner]), bind_of(bind, max));
                let renewal =
                    Renewal { owner, lease_ms: lease, bind, client: None, number: None, from: None };
                let held = self.on(KEYS[lock], |locks, open| locks.renew(open, &renewal))?;
                Ok(Some(held.map_or(Seen::NotOwner, Seen::Renewed)))
            }
            Op::Break { lock } => {
                let lost = self.on(KEYS[lock], |locks, open| locks.break_lock(open))?;
                Ok(Some(Seen::Broken(lost)))
            }
            _ => {
                self.write_externally(op);
                Ok(None)
            }
        }
    }

    fn acquire(&mut self, key: &'static [u8], call: &Call, block: Option<u64>) -> Result<Seen, Seen> {
        let request = call.request();
        let now = self.time();
        self.keep_quarantine();
        let deadline = block.filter(|ms| *ms > 0).map(|ms| now.mono + ms * 1000);
        let policy = match block {
            Some(_) => WaitPolicy::Wait { deadline, at_most: None, on_primary: true },
            None => WaitPolicy::NoWait,
        };
        let known = self.locks.look_up(at(key));
        let planned = self.locks.next_wakeup(now, !self.paused);
        let records = self.records.entry(key).or_default();
        records.now = now.wall;
        let is_new = |id: &RequestId| matches!(records.granted(id), Ok(None));
        let unseen = self.locks.queue_fast(known, &request, policy, (false, is_new), now);
        let (outcome, holders) = match unseen {
            Some(FastQueued { id, may_be_in_cycle, plans }) => {
                let wakeup = self.locks.next_wakeup(now, !self.paused);
                assert!(plans || wakeup == planned, "a deadline must be scheduled");
                let holders = visible(self, key).expect("a lock");
                assert_eq!(may_be_in_cycle, self.locks.may_be_in_cycle(id, &holders));
                (Outcome::Queued(id), holders)
            }
            None => self.on(key, |locks, open| {
                let OpenLock { lookup, holders, records, now } = open;
                let open = OpenLock { lookup, holders: &mut *holders, records, now };
                let (outcome, output) = locks.acquire(open, &request, policy);
                ((outcome, holders.clone()), output)
            })?,
        };
        match outcome {
            Outcome::Granted(reply) => Ok(Seen::Granted(reply)),
            Outcome::InFlight(id) => Ok(Seen::Waits(id)),
            Outcome::Queued(id) => {
                self.serve_bundles();
                if let Some(cycle) = self.deadlock_of(id).filter(|_| self.late != Late::Stays) {
                    assert!(self.locks.may_be_in_cycle(id, &holders), "a cycle without a search");
                    assert_eq!(cycle.last().unwrap().owner.as_bytes(), OWNERS[call.owner]);
                    self.locks.leave(id);
                    return Ok(Seen::Deadlock);
                }
                Ok(Seen::Waits(id))
            }
            Outcome::Busy => Ok(Seen::Busy),
            Outcome::Quarantined => Ok(Seen::Quarantined),
            Outcome::Repeated(known) => panic!("{known:?}"),
            Outcome::Refused(Refusal::Cancelled) => Ok(Seen::Unblocked),
            Outcome::Refused(refusal) => panic!("{refusal:?}"),
        }
    }

    /// Returns the cycle of a wait, if it is in a cycle that no overtaking resolves.
    fn deadlock_of(&mut self, id: WaiterId) -> Option<Vec<Edge>> {
        let mut search = Search::cycle(&self.locks, id, self.time())?;
        search.allow(self.portion);
        self.resolve(search).unwrap_or_else(|_| {
            self.locks.search_later(id);
            None
        })
    }

    fn resolve(&mut self, mut search: Search) -> Result<Option<Vec<Edge>>, Box<Search>> {
        loop {
            let (step, searched) = self.search(search);
            let soft = match step {
                Progress::Cycle(cycle, _) => return Ok(Some(cycle)),
                Progress::Soft(soft) => soft,
                Progress::Later => return Err(Box::new(searched)),
                Progress::Read(_) | Progress::Done => return Ok(None),
            };
            assert!(!soft.is_empty(), "no wait overtakes");
            self.decisions.extend(self.locks.take_decisions());
            let (mut locks, mut overtakes) = (BTreeSet::new(), Vec::new());
            for (overtaker, part) in &soft {
                let leads = (self.locks.first_wait_of(*overtaker), self.locks.first_wait_of(*part));
                let lock = self.locks.overtake(*overtaker, *part).expect("a lock");
                let key = KEYS.into_iter().find(|key| **key == *lock.key).unwrap();
                overtakes.push((leads.0, leads.1, key));
                locks.insert(lock);
            }
            for lock in locks {
                self.reconcile(&lock);
                self.serve_bundles();
            }
            self.overtakes.push((overtakes, self.locks.take_decisions()));
            match searched.restart(&self.locks, self.time()) {
                Some(again) => search = again,
                None => return Ok(None),
            }
        }
    }

    fn reconcile(&mut self, lock: &LockId) {
        let key = KEYS.into_iter().find(|key| **key == *lock.key).unwrap();
        let served = self.on(key, |locks, open| ((), locks.reconcile(open)));
        if served.is_err() {
            self.locks.refuse_all(at(key), &Decision::WrongType);
        }
    }

    /// Grants available locks to bundles.
    pub(in crate::core) fn serve_bundles(&mut self) {
        while let Some(BundleTry { first_wait, members: parts }) = self.locks.begin_try() {
            let blocked_at = self.try_bundle(first_wait, &parts);
            for lock in self.locks.end_try(blocked_at) {
                self.reconcile(&lock);
            }
        }
    }

    fn try_bundle(&mut self, first_wait: WaiterId, parts: &[(LockId, WaiterId)]) -> Option<WaiterId> {
        let key_of = |lock: &LockId| KEYS.into_iter().find(|key| **key == *lock.key).unwrap();
        for (lock, part) in parts {
            let found = self.on(key_of(lock), |locks, open| locks.try_member(open, *part));
            match found {
                Ok(Some(Verdict::Available)) => {}
                Ok(Some(Verdict::Busy { .. })) => return Some(*part),
                Ok(None) => return None,
                Ok(Some(other)) => panic!("{other:?}"),
                Err(_) => {
                    self.locks.refuse_all(lock.as_ref(), &Decision::WrongType);
                    return None;
                }
            }
        }
        let granted = |(lock, part): &(LockId, WaiterId)| {
            let granted =
                self.on(key_of(lock), |locks, open| locks.grant_member(open, *part, GrantTime::AfterWaiting));
            granted.unwrap().expect("the lock was available")
        };
        let replies = parts.iter().map(granted).collect();
        self.locks.granted_all(first_wait, replies);
        None
    }

    /// Acquires several locks at once, or waits for them.
    pub(in crate::core) fn acquire_all(&mut self, locks: &[usize], call: &Call, block: Option<u64>) -> Seen {
        let (request, now) = (call.request(), self.time());
        let deadline = block.filter(|ms| *ms > 0).map(|ms| now.mono + ms * 1000);
        let policy = match block {
            Some(_) => WaitPolicy::Wait { deadline, at_most: None, on_primary: true },
            None => WaitPolicy::NoWait,
        };
        let mut busy = None;
        for lock in locks {
            let checked = self.on(KEYS[*lock], |locks, open| locks.check(open, &request, policy));
            match checked.map(|checked| checked.verdict) {
                Ok(Verdict::Available) => {}
                Ok(Verdict::Busy { .. }) => {
                    busy.get_or_insert(*lock);
                }
                Ok(other) => panic!("{other:?}"),
                Err(seen) => return seen,
            }
        }
        let Some(busy) = busy else {
            let mut last = None;
            for lock in locks {
                last = self.on(KEYS[*lock], |locks, open| locks.take(open, &request)).unwrap();
                assert!(last.is_some(), "a lock was no longer available");
            }
            self.serve_bundles();
            return Seen::Granted(last.unwrap());
        };
        if block.is_none() {
            self.serve_bundles();
            return Seen::Busy;
        }
        let mut bundle = None;
        for lock in locks {
            let part = self
                .on(KEYS[*lock], |locks, open| locks.queue_member(open, &request, deadline, &mut bundle))
                .unwrap();
            if *lock == busy {
                self.locks.note_blocked(bundle.unwrap().first_wait, part);
            }
        }
        let first_wait = bundle.unwrap().first_wait;
        self.serve_bundles();
        if self.deadlock_of(first_wait).is_some() && self.late != Late::Stays {
            self.locks.leave(first_wait);
            return Seen::Deadlock;
        }
        Seen::Waits(first_wait)
    }

    /// The owners that an owner waits for, as found by the core's search.
    pub(in crate::core) fn blockers(&self, owner: &[u8]) -> Vec<Owner> {
        let (_, search) = self.search(Search::blockers(&self.locks, &Owner::new(owner)));
        search.into_edges().into_iter().map(|edge| edge.owner).collect()
    }

    fn search(&self, mut search: Search) -> (Progress, Search) {
        loop {
            match search.step(&self.locks, self.time()) {
                Progress::Read(lock) => {
                    let holders = visible(self, &lock.key).unwrap_or(Holders::Free);
                    search.learn(&self.locks, &lock, holders);
                }
                end => return (end, search),
            }
        }
    }

    /// Applies foreign writes and server events.
    fn write_externally(&mut self, op: &Op) {
        let time = self.time();
        match *op {
            Op::Delete { lock } => {
                self.store(KEYS[lock], Holders::Free);
                self.locks.key_changed(at(KEYS[lock]), KeyChange::Gone(HoldEvent::Deleted), time);
            }
            Op::Expire { lock, lease } => {
                self.expire(KEYS[lock], lease);
                self.locks.key_changed(at(KEYS[lock]), KeyChange::Changed, time);
            }
            Op::Overwrite { lock } => {
                let key = KEYS[lock];
                let other = self.keys[key] != Stored::Other;
                self.keys.insert(key, if other { Stored::Other } else { Stored::Lock(Holders::Free) });
                // A `RENAME` onto the key raises an event.
                self.locks.key_changed(at(key), KeyChange::Gone(HoldEvent::Deleted), time);
            }
            Op::External { lock, lease } => {
                self.take(KEYS[lock], lease);
            }
            Op::Flush => {
                for key in KEYS {
                    self.store(key, Holders::Free);
                }
                self.locks.database_changed(None);
            }
            Op::Pause(paused) => self.paused = paused,
            Op::Quarantine { ms } => {
                self.quarantine = Some(time.mono + ms.unsigned_abs() * 1000);
                self.keep_quarantine();
            }
            _ => {}
        }
    }

    /// Lets an external client take a lock if it is free.
    pub(in crate::core) fn take(&mut self, key: &'static [u8], lease: i64) -> bool {
        let free = self.open(key) == Ok(Holders::Free);
        if free {
            let hold = Hold { expires_at: self.now + lease, ..hold(OWNERS[EXTERNAL], 1, 0) };
            self.store(key, Holders::Exclusive(hold));
            self.locks.key_changed(at(key), KeyChange::Changed, self.time());
        }
        free
    }

    fn expire(&mut self, key: &'static [u8], lease: i64) {
        let end = self.now + lease;
        if let Ok(mut holders) = self.open(key) {
            match &mut holders {
                Holders::Free => {}
                Holders::Exclusive(hold) => hold.expires_at = end,
                Holders::Shared(holds) => {
                    holds.values_mut().for_each(|hold| hold.expires_at = hold.expires_at.min(end));
                }
            }
            self.store(key, holders);
        }
    }

    /// Makes the server a replica for a while.
    pub(in crate::core) fn demote_and_promote(&mut self, foreign_write: Option<(usize, i64)>) {
        self.locks.demote();
        self.decisions.extend(self.locks.take_decisions());
        assert_eq!(self.locks.waiting_total(), 0, "a replica has waiters");
        assert!(self.locks.only_forgets(), "a replica has due work");
        if let Some((lock, lease)) = foreign_write {
            self.expire(KEYS[lock], lease);
        }
        self.locks.promote();
        self.fire();
    }

    pub(in crate::core) fn advance(&mut self, ms: i64) {
        let end = self.now + ms;
        loop {
            let wakeup = self.locks.next_wakeup(self.time(), !self.paused);
            assert_eq!(wakeup.is_none(), self.locks.has_no_deadline());
            let at = wakeup.map_or(end, |ms| self.now + i64::try_from(ms).unwrap());
            if at > end || wakeup.is_none() {
                break;
            }
            self.now = at;
            self.tick();
        }
        self.now = end;
    }

    pub(in crate::core) fn waiting(&self, key: &[u8]) -> Vec<WaiterId> {
        self.locks.waiters_of(at(key))
    }
}
