// SPDX-License-Identifier: MIT

//! The core with a keyspace, a clock and a timer around it, as the module has them in a server.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::super::waits_for::{Edge, Step, PORTION};
use super::*;

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::core) enum Stored {
    Lock(Holders),
    Other,
}

/// What is stored beside a lock.
#[derive(Default)]
pub(in crate::core) struct Beside {
    counter: Option<Token>,
    granted: HashMap<RequestId, (Reply, WallMs)>,
    /// Those of them that are still to be confirmed.
    unconfirmed: HashSet<RequestId>,
    released: HashMap<RequestId, (i64, WallMs)>,
    cancelled: HashMap<RequestId, (bool, WallMs)>,
    now: WallMs,
    /// The channel of the lock has subscribers.
    listeners: bool,
    /// It is to be announced to them that the lock is free.
    announce: bool,
}

impl Records for Beside {
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
        self.unconfirmed.remove(id);
        self.granted.insert(id.clone(), (reply.clone(), now.wall + id.ttl_ms));
    }

    fn remember_unconfirmed(&mut self, id: &RequestId, reply: &Reply, grace_ms: i64, now: Now) {
        self.unconfirmed.insert(id.clone());
        self.granted.insert(id.clone(), (reply.clone(), now.wall + grace_ms));
    }

    fn is_unconfirmed(&mut self, id: &RequestId) -> bool {
        self.unconfirmed.contains(id)
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

/// Who passes whom, and at which lock.
pub(in crate::core) type Pass = (WaiterId, WaiterId, &'static [u8]);

/// What was decided, for whom.
type Decided = Vec<(WaiterId, Decision)>;

/// The core with a keyspace, a clock and a timer around it, as `crate::driver` has them.
pub(in crate::core) struct Real {
    pub(in crate::core) locks: LockManager,
    pub(in crate::core) keys: BTreeMap<&'static [u8], Stored>,
    beside: BTreeMap<&'static [u8], Beside>,
    pub(in crate::core) now: i64,
    pub(in crate::core) paused: bool,
    /// Whether the timer fires by itself after each step.
    pub(in crate::core) timer: bool,
    pub(in crate::core) decisions: Vec<(WaiterId, Decision)>,
    /// Until when locks may be forgotten.
    quarantine: Option<MonoUs>,
    /// The channels of all locks have subscribers.
    pub(in crate::core) listeners: bool,
    /// The locks of which it was published that they are free, one by one.
    pub(in crate::core) messages: Vec<&'static [u8]>,
    /// What owners were told.
    pub(in crate::core) notices: Vec<Notice>,
    /// Calls that were let pass another one at a lock, by what was found in one search, and what that decided.
    pub(in crate::core) passes: Vec<(Vec<Pass>, Decided)>,
    /// The same of searches after a call.
    pub(in crate::core) late_passes: Vec<(Vec<Pass>, Decided)>,
    /// How waits are searched that come to wait for their own owners after they began.
    pub(in crate::core) late: Late,
    /// How much a search looks at in one go.
    pub(in crate::core) portion: usize,
    /// Only one portion is looked at after each step.
    pub(in crate::core) lazy: bool,
    /// Those that ended so.
    pub(in crate::core) deadlocked: Vec<WaiterId>,
}

/// What is done about a wait that was found in a circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Late {
    /// It is refused if it has just begun. No other wait is searched.
    NotSearched,
    /// It ends, whenever that was found.
    Ends,
    /// It stays.
    Stays,
}

impl Real {
    /// Where the channels of all locks have subscribers from the start.
    pub(in crate::core) fn with_subscribers(timer: bool) -> Real {
        let mut real = Real::new(timer);
        real.listeners = true;
        real
    }

    pub(in crate::core) fn new(timer: bool) -> Real {
        let keys = KEYS.map(|key| (key, Stored::Lock(Holders::Free))).into();
        let beside = KEYS.map(|key| (key, Beside::default())).into();
        Real {
            locks: LockManager::default(),
            keys,
            beside,
            now: 1_000,
            paused: false,
            timer,
            decisions: Vec::new(),
            quarantine: None,
            listeners: false,
            messages: Vec::new(),
            notices: Vec::new(),
            passes: Vec::new(),
            late_passes: Vec::new(),
            late: Late::NotSearched,
            portion: PORTION,
            lazy: false,
            deadlocked: Vec::new(),
        }
    }

    pub(in crate::core) fn time(&self) -> Now {
        // The clocks are not in step, as in life.
        Now { wall: self.now, mono: self.now.unsigned_abs() * 1000 + 77 }
    }

    /// What opening a key finds: a lease that is over is over.
    fn open(&mut self, key: &'static [u8]) -> Result<Holders, ()> {
        let time = self.time();
        match self.keys.get_mut(key).unwrap() {
            Stored::Lock(holders) => {
                if holders.expires_at().is_some_and(|at| time.wall > at) {
                    *holders = Holders::Free;
                    // The server raises `expired` for it.
                    self.locks.key_changed(at(key), KeyChange::Gone(Happened::Expired), time);
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

    fn store(&mut self, key: &'static [u8], mut holders: Holders) {
        match &mut holders {
            Holders::Free => {}
            Holders::Exclusive(hold) => hold.renewed = false,
            Holders::Shared(holds) => holds.values_mut().for_each(|hold| hold.renewed = false),
        }
        self.keys.insert(key, Stored::Lock(holders));
    }

    /// Opens a lock, does something with it, and stores it.
    fn on<T>(
        &mut self,
        key: &'static [u8],
        body: impl FnOnce(&mut LockManager, Known<'_>, &mut Holders, &mut Beside, Now) -> (T, InHand),
    ) -> Result<T, Seen> {
        let mut holders = self.open(key).map_err(|()| Seen::WrongType)?;
        let now = self.time();
        let beside = self.beside.get_mut(key).unwrap();
        (beside.now, beside.listeners) = (self.now, self.listeners);
        let (was_free, end_before) = (holders.is_free(), holders.expires_at());
        let known = self.locks.look_up(at(key));
        let (result, in_hand) = body(&mut self.locks, known, &mut holders, beside, now);
        let announce = std::mem::take(&mut beside.announce);
        let unannounced = in_hand.unannounced && was_free && holders.is_free();
        if in_hand.is_reserved {
            if (!was_free && holders.is_free()) || announce {
                self.locks.was_withheld(in_hand);
            }
        } else if (!was_free && holders.is_free()) || announce || unannounced {
            self.messages.push(key);
            self.locks.announced(at(key), in_hand, self.listeners, now);
        }
        let is_shortened = match in_hand.foreseen {
            Foreseen::AsWritten => end_before > holders.expires_at(),
            Foreseen::Until(end) => end_before > Some(end),
            Foreseen::MaybeSooner => true,
        };
        if let Some(end) = holders.first_end().filter(|_| is_shortened) {
            if self.listeners {
                self.locks.lease_shortened(at(key), in_hand, end);
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
            // The timer that was set again and again meanwhile.
            self.tick();
        }
        self.verify();
        if self.timer {
            self.fire();
        }
        seen
    }

    fn verify(&self) {
        // Those who wait for each other do so for ever, until one of them is told.
        if self.late != Late::Stays && !self.locks.has_searches() {
            self.locks.verify();
        }
    }

    /// Does what follows an input that is no step.
    pub(in crate::core) fn settle(&mut self) {
        self.serve_bundles();
        self.search_again();
        self.decisions.extend(self.locks.take_decisions());
        self.fire();
    }

    /// What messages say, in the order of the waits that they are about.
    pub(in crate::core) fn take_news(&mut self) -> Vec<(WaiterId, News)> {
        let messages = std::iter::from_fn(|| self.locks.next_message());
        let mut news: Vec<_> = messages.map(|message| (message.id, message.news)).collect();
        news.sort_by_key(|(id, _)| *id);
        news
    }

    /// What the driver does before each acquire, and when the timer fires.
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
        if let Some(lock) = self.locks.tick(self.time(), !self.paused) {
            let key = KEYS.into_iter().find(|key| **key == *lock.key).unwrap();
            let served = self
                .on(key, |locks, at, holders, beside, now| ((), locks.reconcile(at, holders, beside, now)));
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

    /// Ends waits that have come to wait for their own owners: in portions, of which the rest is left if this is `lazy`.
    pub(in crate::core) fn search_again(&mut self) {
        while let Some(mut search) = self.locks.next_search(true, self.time()) {
            if self.late == Late::NotSearched {
                continue;
            }
            search.allow(self.portion);
            let id = search.of_wait().unwrap();
            let lead = self.locks.lead_of(id);
            let in_call = std::mem::take(&mut self.passes);
            let found = self.resolve(search);
            self.late_passes.extend(std::mem::replace(&mut self.passes, in_call));
            match found {
                Ok(Some(_)) if self.late == Late::Ends => {
                    self.locks.end_deadlocked(id);
                    self.deadlocked.push(lead);
                }
                Ok(_) => {}
                Err(search) => self.locks.put_off(*search),
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
                let release = Release { owner: Owner::new(OWNERS[owner]), scope, lease_ms: lease, id };
                let left = self.on(KEYS[lock], |locks, at, holders, beside, now| {
                    locks.release(at, holders, beside, &release, now)
                })?;
                Ok(Some(left.map_or(Seen::NotOwner, Seen::Left)))
            }
            Op::Cancel { lock, owner, id } => {
                let id = request_id(owner, id);
                let undone = self.on(KEYS[lock], |locks, at, holders, beside, now| {
                    locks.cancel(at, holders, beside, &id, now)
                })?;
                Ok(Some(Seen::Cancelled(undone.unwrap())))
            }
            Op::Renew { lock, owner, lease, bind, max } => {
                let (owner, bind) = (Owner::new(OWNERS[owner]), bind_of(bind, max));
                let renewal = Renewal { owner, lease_ms: lease, bind, client: None };
                let held = self.on(KEYS[lock], |locks, at, holders, beside, now| {
                    locks.renew(at, holders, beside, &renewal, now)
                })?;
                Ok(Some(held.map_or(Seen::NotOwner, Seen::Renewed)))
            }
            Op::Break { lock } => {
                let lost = self.on(KEYS[lock], |locks, at, holders, beside, now| {
                    locks.break_lock(at, holders, beside, now)
                })?;
                Ok(Some(Seen::Broken(lost)))
            }
            _ => {
                self.meddle(op);
                Ok(None)
            }
        }
    }

    fn acquire(&mut self, key: &'static [u8], call: &Call, block: Option<u64>) -> Result<Seen, Seen> {
        let request = call.request();
        let now = self.time();
        self.keep_quarantine();
        let deadline = block.filter(|ms| *ms > 0).map(|ms| now.mono + ms * 1000);
        let patience = match block {
            Some(_) => Patience::Waits { deadline, at_most: None, on_primary: true },
            None => Patience::Leaves,
        };
        let known = self.locks.look_up(at(key));
        let planned = self.locks.next_wakeup(now, !self.paused);
        let beside = self.beside.entry(key).or_default();
        beside.now = now.wall;
        let is_new = |id: &RequestId| matches!(beside.granted(id), Ok(None));
        let unseen = self.locks.queue_unseen(known, &request, patience, (false, is_new), now);
        let (outcome, holders) = match unseen {
            Some(Unseen { id, may_be_in_cycle, plans }) => {
                let wakeup = self.locks.next_wakeup(now, !self.paused);
                assert!(plans || wakeup == planned, "something is to be planned");
                let holders = visible(self, key).expect("a lock");
                assert_eq!(may_be_in_cycle, self.locks.may_be_in_cycle(id, &holders));
                (Outcome::Queued(id), holders)
            }
            None => self.on(key, |locks, at, holders, beside, now| {
                let (outcome, in_hand) = locks.acquire(at, holders, beside, &request, patience, now);
                ((outcome, holders.clone()), in_hand)
            })?,
        };
        match outcome {
            Outcome::Granted(reply) => Ok(Seen::Granted(reply)),
            Outcome::InFlight(id) => Ok(Seen::Waits(id)),
            Outcome::Queued(id) => {
                self.serve_bundles();
                if let Some(cycle) = self.deadlock_of(id).filter(|_| self.late != Late::Stays) {
                    assert!(self.locks.may_be_in_cycle(id, &holders), "a cycle that is not searched for");
                    assert_eq!(cycle.last().unwrap().owner.as_bytes(), OWNERS[call.owner]);
                    self.locks.leave(id);
                    return Ok(Seen::Deadlock);
                }
                Ok(Seen::Waits(id))
            }
            Outcome::Busy => Ok(Seen::Busy),
            Outcome::Quarantined => Ok(Seen::Quarantined),
            Outcome::Refused(Refusal::Cancelled) => Ok(Seen::Unblocked),
            Outcome::Refused(refusal) => panic!("{refusal:?}"),
        }
    }

    /// If a wait is in a circle of waits, that; but first those are let pass whom that helps.
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
                Step::Cycle(cycle, _) => return Ok(Some(cycle)),
                Step::Soft(soft) => soft,
                Step::Later => return Err(Box::new(searched)),
                Step::Read(_) | Step::Done => return Ok(None),
            };
            assert!(!soft.is_empty(), "nobody is let pass");
            self.decisions.extend(self.locks.take_decisions());
            let (mut locks, mut passes) = (BTreeSet::new(), Vec::new());
            for (who, part) in &soft {
                let leads = (self.locks.lead_of(*who), self.locks.lead_of(*part));
                let lock = self.locks.let_pass(*who, *part).expect("a lock");
                let key = KEYS.into_iter().find(|key| **key == *lock.key).unwrap();
                passes.push((leads.0, leads.1, key));
                locks.insert(lock);
            }
            for lock in locks {
                self.reconcile(&lock);
                self.serve_bundles();
            }
            self.passes.push((passes, self.locks.take_decisions()));
            match searched.again(&self.locks, self.time()) {
                Some(again) => search = again,
                None => return Ok(None),
            }
        }
    }

    fn reconcile(&mut self, lock: &LockId) {
        let key = KEYS.into_iter().find(|key| **key == *lock.key).unwrap();
        let served =
            self.on(key, |locks, at, holders, beside, now| ((), locks.reconcile(at, holders, beside, now)));
        if served.is_err() {
            self.locks.refuse_all(at(key), &Decision::WrongType);
        }
    }

    /// Grants what is to be had to those who wait for several locks.
    pub(in crate::core) fn serve_bundles(&mut self) {
        while let Some(Try { lead, parts }) = self.locks.next_try() {
            let blocked_at = self.try_bundle(lead, &parts);
            for lock in self.locks.was_tried(blocked_at) {
                self.reconcile(&lock);
            }
        }
    }

    fn try_bundle(&mut self, lead: WaiterId, parts: &[(LockId, WaiterId)]) -> Option<WaiterId> {
        let key_of = |lock: &LockId| KEYS.into_iter().find(|key| **key == *lock.key).unwrap();
        for (lock, part) in parts {
            let found = self.on(key_of(lock), |locks, at, holders, beside, now| {
                locks.try_part(at, holders, beside, *part, now)
            });
            match found {
                Ok(Some(Verdict::May)) => {}
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
            let granted = self.on(key_of(lock), |locks, at, holders, beside, now| {
                locks.grant_part(at, holders, beside, (*part, true), now)
            });
            granted.unwrap().expect("it was to be had")
        };
        let replies = parts.iter().map(granted).collect();
        self.locks.granted_all(lead, replies);
        None
    }

    /// Takes several locks at once, or waits for them.
    pub(in crate::core) fn acquire_all(&mut self, locks: &[usize], call: &Call, block: Option<u64>) -> Seen {
        let (request, now) = (call.request(), self.time());
        let deadline = block.filter(|ms| *ms > 0).map(|ms| now.mono + ms * 1000);
        let patience = match block {
            Some(_) => Patience::Waits { deadline, at_most: None, on_primary: true },
            None => Patience::Leaves,
        };
        let mut busy = None;
        for lock in locks {
            let checked = self.on(KEYS[*lock], |locks, at, holders, beside, now| {
                locks.check(at, holders, beside, &request, patience, now)
            });
            match checked.map(|checked| checked.verdict) {
                Ok(Verdict::May) => {}
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
                last = self
                    .on(KEYS[*lock], |locks, at, holders, beside, now| {
                        locks.take(at, holders, beside, &request, now)
                    })
                    .unwrap();
                assert!(last.is_some(), "a lock was not to be had any more");
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
                .on(KEYS[*lock], |locks, at, holders, beside, now| {
                    locks.queue_part(at, holders, beside, (&request, deadline), &mut bundle, now)
                })
                .unwrap();
            if *lock == busy {
                self.locks.begin_blocked(bundle.unwrap().lead, part);
            }
        }
        let lead = bundle.unwrap().lead;
        self.serve_bundles();
        if self.deadlock_of(lead).is_some() && self.late != Late::Stays {
            self.locks.leave(lead);
            return Seen::Deadlock;
        }
        Seen::Waits(lead)
    }

    /// Whom an owner waits for, by the core's search.
    pub(in crate::core) fn blockers(&self, owner: &[u8]) -> Vec<Owner> {
        let (_, search) = self.search(Search::blockers(&self.locks, &Owner::new(owner)));
        search.into_edges().into_iter().map(|edge| edge.owner).collect()
    }

    fn search(&self, mut search: Search) -> (Step, Search) {
        loop {
            match search.step(&self.locks, self.time()) {
                Step::Read(lock) => {
                    let holders = visible(self, &lock.key).unwrap_or(Holders::Free);
                    search.learn(&self.locks, &lock, holders);
                }
                end => return (end, search),
            }
        }
    }

    /// Carries out foreign writes, and what the server does.
    fn meddle(&mut self, op: &Op) {
        let time = self.time();
        match *op {
            Op::Delete { lock } => {
                self.store(KEYS[lock], Holders::Free);
                self.locks.key_changed(at(KEYS[lock]), KeyChange::Gone(Happened::Deleted), time);
            }
            Op::Expire { lock, lease } => {
                self.expire(KEYS[lock], lease);
                self.locks.key_changed(at(KEYS[lock]), KeyChange::Changed, time);
            }
            Op::Overwrite { lock } => {
                let key = KEYS[lock];
                let other = self.keys[key] != Stored::Other;
                self.keys.insert(key, if other { Stored::Other } else { Stored::Lock(Holders::Free) });
                // RENAME over it raises an event.
                self.locks.key_changed(at(key), KeyChange::Gone(Happened::Deleted), time);
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

    /// An external client takes a lock if it is free.
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

    /// The server is a replica for a while.
    pub(in crate::core) fn away(&mut self, meddle: Option<(usize, i64)>) {
        self.locks.demote();
        self.decisions.extend(self.locks.take_decisions());
        assert_eq!(self.locks.waiting_total(), 0, "somebody waits for a replica");
        assert!(self.locks.only_forgets(), "a replica has nothing to do");
        if let Some((lock, lease)) = meddle {
            self.expire(KEYS[lock], lease);
        }
        self.locks.promote();
        self.fire();
    }

    pub(in crate::core) fn advance(&mut self, ms: i64) {
        let end = self.now + ms;
        loop {
            let wakeup = self.locks.next_wakeup(self.time(), !self.paused);
            assert_eq!(wakeup.is_none(), self.locks.plans_nothing());
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
