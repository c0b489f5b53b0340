//! Random histories, through the core and through a model that is obviously right: one ordered list per lock,
//! looked at in every millisecond.
//!
//! The numbers in the names of the checks are those of the invariants in `docs/design.md`.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const LOCKS: [&[u8]; 2] = [b"k0", b"k1"];
const OWNERS: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];

/// Something that can happen, with small numbers that name one of what there is.
#[derive(Clone, Debug)]
enum Op {
    Acquire {
        lock: usize,
        owner: usize,
        lease: i64,
        block: Option<u64>,
    },
    Release {
        lock: usize,
        owner: usize,
        all: bool,
        lease: Option<i64>,
    },
    Renew {
        lock: usize,
        owner: usize,
        lease: i64,
    },
    Break {
        lock: usize,
    },
    /// A stranger deletes the key.
    Delete {
        lock: usize,
    },
    /// A stranger changes the key's TTL.
    Expire {
        lock: usize,
        lease: i64,
    },
    /// A stranger puts something else there; or takes it away again.
    Overwrite {
        lock: usize,
    },
    /// All keys are flushed.
    Flush,
    /// A waiter's client goes away.
    Leave {
        which: usize,
    },
    /// A grant reaches its client, or does not.
    Deliver {
        which: usize,
        arrives: bool,
    },
    /// The server is paused, or goes on.
    Pause(bool),
    Advance {
        ms: i64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let (lock, owner) = (0..LOCKS.len(), 0..OWNERS.len());
    let lease = 1..40i64;
    prop_oneof![
        8 => (lock.clone(), owner.clone(), lease.clone(), prop::option::weighted(0.8, 0..60u64))
            .prop_map(|(lock, owner, lease, block)| Op::Acquire { lock, owner, lease, block }),
        6 => (lock.clone(), owner.clone(), any::<bool>(), prop::option::of(lease.clone()))
            .prop_map(|(lock, owner, all, lease)| Op::Release { lock, owner, all, lease }),
        2 => (lock.clone(), owner, lease.clone())
            .prop_map(|(lock, owner, lease)| Op::Renew { lock, owner, lease }),
        1 => lock.clone().prop_map(|lock| Op::Break { lock }),
        1 => lock.clone().prop_map(|lock| Op::Delete { lock }),
        1 => (lock.clone(), lease).prop_map(|(lock, lease)| Op::Expire { lock, lease }),
        1 => lock.prop_map(|lock| Op::Overwrite { lock }),
        1 => Just(Op::Flush),
        2 => (0..8usize).prop_map(|which| Op::Leave { which }),
        6 => (0..8usize, prop::bool::weighted(0.7)).prop_map(|(which, arrives)| Op::Deliver { which, arrives }),
        1 => any::<bool>().prop_map(Op::Pause),
        6 => (1..30i64).prop_map(|ms| Op::Advance { ms }),
    ]
}

/// What a client can see of one step.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Granted(i64),
    Busy,
    Waits(WaiterId),
    Left(i64),
    NotOwner,
    WrongType,
    Broken(usize),
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stored {
    Lock(Holders),
    Other,
}

/// The core with a keyspace, a clock and a timer around it, as `crate::runtime` has them.
struct Real {
    service: Service,
    keys: BTreeMap<&'static [u8], Stored>,
    now: i64,
    paused: bool,
    /// Whether the timer fires by itself after each step.
    timer: bool,
    decisions: Vec<(WaiterId, Decision)>,
}

impl Real {
    fn new(timer: bool) -> Real {
        let keys = LOCKS.map(|key| (key, Stored::Lock(Holders::Free))).into();
        Real { service: Service::default(), keys, now: 1_000, paused: false, timer, decisions: Vec::new() }
    }

    fn time(&self) -> Now {
        // The clocks are not in step, as in life.
        Now { wall: self.now, mono: self.now.unsigned_abs() * 1000 + 77 }
    }

    /// What opening a key finds: a lease that is over is over.
    fn open(&mut self, key: &'static [u8]) -> Result<Holders, ()> {
        let now = self.now;
        let stored = self.keys.get_mut(key).unwrap();
        match stored {
            Stored::Lock(holders) => {
                if holders.expires_at().is_some_and(|at| now > at) {
                    *holders = Holders::Free;
                    // The server raises `expired` for it.
                    let holders = holders.clone();
                    self.service.touched(0, key, true);
                    return Ok(holders);
                }
                Ok(holders.clone())
            }
            Stored::Other => {
                self.service.touched(0, key, false);
                Err(())
            }
        }
    }

    fn store(&mut self, key: &'static [u8], mut holders: Holders) {
        if let Holders::Exclusive(hold) = &mut holders {
            hold.renewed = false;
        }
        self.keys.insert(key, Stored::Lock(holders));
    }

    fn step(&mut self, op: &Op) -> Option<Seen> {
        let seen = self.apply(op);
        self.decisions.extend(self.service.take_decisions());
        if let Op::Pause(false) = op {
            // The timer that was set again and again meanwhile.
            self.tick();
        }
        if self.timer {
            self.fire();
        }
        seen
    }

    /// Fires the timer as often as it is due now.
    fn fire(&mut self) {
        while self.service.next_wakeup(self.time(), !self.paused) == Some(0) {
            self.tick();
        }
    }

    fn tick(&mut self) {
        for lock in self.service.tick(self.time(), !self.paused) {
            let key = LOCKS.into_iter().find(|key| **key == *lock.key).unwrap();
            match self.open(key) {
                Ok(mut holders) => {
                    self.service.serve(0, key, &mut holders, self.time());
                    self.store(key, holders);
                }
                Err(()) => self.service.refuse_all(0, key, Decision::WrongType),
            }
        }
        self.decisions.extend(self.service.take_decisions());
    }

    fn apply(&mut self, op: &Op) -> Option<Seen> {
        let now = self.time();
        match *op {
            Op::Acquire { lock, owner, lease, block } => {
                let key = LOCKS[lock];
                let Ok(mut holders) = self.open(key) else { return Some(Seen::WrongType) };
                let request = Request { owner: Owner::new(OWNERS[owner]), lease_ms: lease };
                let admission = self.service.acquire(0, key, &mut holders, &request, now);
                self.store(key, holders.clone());
                Some(match (admission, block) {
                    (Admission::Grant(holds), _) => Seen::Granted(holds),
                    (Admission::Busy, Some(ms)) => {
                        let deadline = (ms > 0).then(|| now.mono + ms * 1000);
                        Seen::Waits(self.service.wait(0, key, &holders, request, deadline, now))
                    }
                    _ => Seen::Busy,
                })
            }
            Op::Release { lock, owner, all, lease } => {
                let key = LOCKS[lock];
                let Ok(mut holders) = self.open(key) else { return Some(Seen::WrongType) };
                let left = self.service.release(0, key, &mut holders, OWNERS[owner], all, lease, now);
                self.store(key, holders);
                Some(left.map_or(Seen::NotOwner, Seen::Left))
            }
            Op::Renew { lock, owner, lease } => {
                let key = LOCKS[lock];
                let Ok(mut holders) = self.open(key) else { return Some(Seen::WrongType) };
                let held = self.service.renew(0, key, &mut holders, OWNERS[owner], lease, now);
                self.store(key, holders);
                Some(held.map_or(Seen::NotOwner, Seen::Granted))
            }
            Op::Break { lock } => {
                let key = LOCKS[lock];
                let Ok(mut holders) = self.open(key) else { return Some(Seen::WrongType) };
                let lost = self.service.break_lock(0, key, &mut holders, now);
                self.store(key, holders);
                Some(Seen::Broken(lost))
            }
            Op::Delete { lock } => {
                let key = LOCKS[lock];
                self.store(key, Holders::Free);
                self.service.touched(0, key, true);
                None
            }
            Op::Expire { lock, lease } => {
                let key = LOCKS[lock];
                if let Ok(Holders::Exclusive(hold)) = self.open(key) {
                    self.store(key, Holders::Exclusive(Hold { expires_at: now.wall + lease, ..hold }));
                    self.service.touched(0, key, false);
                }
                None
            }
            Op::Overwrite { lock } => {
                let key = LOCKS[lock];
                let other = self.keys[key] != Stored::Other;
                self.keys.insert(key, if other { Stored::Other } else { Stored::Lock(Holders::Free) });
                // RENAME over it raises an event.
                self.service.touched(0, key, !other);
                None
            }
            Op::Flush => {
                for key in LOCKS {
                    self.store(key, Holders::Free);
                }
                self.service.touched_all(None);
                None
            }
            Op::Pause(paused) => {
                self.paused = paused;
                None
            }
            Op::Leave { .. } | Op::Deliver { .. } | Op::Advance { .. } => None,
        }
    }

    fn advance(&mut self, ms: i64) {
        let end = self.now + ms;
        loop {
            let wakeup = self.service.next_wakeup(self.time(), !self.paused);
            let at = wakeup.map_or(end, |ms| self.now + i64::try_from(ms).unwrap());
            if at > end || wakeup.is_none() {
                break;
            }
            self.now = at;
            self.tick();
        }
        self.now = end;
    }

    fn waiting(&self, key: &[u8]) -> Vec<WaiterId> {
        self.service.waiters_of(0, key, self.time()).map(|waiter| waiter.id).collect()
    }
}

/// One lock of the model.
#[derive(Default)]
struct ModelLock {
    hold: Option<ModelHold>,
    other: bool,
    queue: Vec<ModelWaiter>,
}

struct ModelHold {
    owner: usize,
    holds: i64,
    expires_at: i64,
    /// Which hold of the lock's history it is: taking back concerns this one or nothing.
    number: u64,
}

struct ModelWaiter {
    id: WaiterId,
    owner: usize,
    lease: i64,
    deadline: Option<i64>,
}

#[derive(Default)]
struct Model {
    locks: [ModelLock; 2],
    now: i64,
    paused: bool,
    holds_ever: u64,
    waiters_ever: u64,
    /// Grants that have not arrived: waiter, lock, owner, number of the hold.
    in_flight: Vec<(WaiterId, usize, usize, u64)>,
    decisions: Vec<(WaiterId, Decision)>,
}

impl Model {
    /// Everything that is to happen at this moment, happens.
    fn settle(&mut self) {
        for lock in 0..2 {
            let now = self.now;
            let mut decisions = Vec::new();
            self.locks[lock].queue.retain(|waiter| {
                let over = waiter.deadline.is_some_and(|at| at <= now);
                if over {
                    decisions.push((waiter.id, Decision::TimedOut));
                }
                !over
            });
            self.decisions.append(&mut decisions);
        }
        if self.paused {
            return;
        }
        for lock in 0..2 {
            if self.locks[lock].other {
                let queue = std::mem::take(&mut self.locks[lock].queue);
                self.decisions.extend(queue.iter().map(|waiter| (waiter.id, Decision::WrongType)));
                continue;
            }
            self.expire(lock);
            loop {
                let locked = &self.locks[lock];
                let next = match &locked.hold {
                    None if locked.queue.is_empty() => None,
                    None => Some(0),
                    Some(hold) => locked.queue.iter().position(|waiter| waiter.owner == hold.owner),
                };
                let Some(next) = next else { break };
                let waiter = self.locks[lock].queue.remove(next);
                let holds = self.grant(lock, waiter.owner, waiter.lease);
                let number = self.locks[lock].hold.as_ref().unwrap().number;
                self.in_flight.push((waiter.id, lock, waiter.owner, number));
                self.decisions.push((waiter.id, Decision::Granted(holds)));
            }
        }
    }

    fn expire(&mut self, lock: usize) {
        let now = self.now;
        self.locks[lock].hold.take_if(|hold| now > hold.expires_at);
    }

    fn grant(&mut self, lock: usize, owner: usize, lease: i64) -> i64 {
        let expires_at = self.now + lease;
        match &mut self.locks[lock].hold {
            Some(hold) => {
                hold.holds += 1;
                hold.expires_at = expires_at;
                hold.holds
            }
            empty => {
                self.holds_ever += 1;
                *empty = Some(ModelHold { owner, holds: 1, expires_at, number: self.holds_ever });
                1
            }
        }
    }

    fn step(&mut self, op: &Op) -> Option<Seen> {
        let seen = self.apply(op);
        self.settle();
        seen
    }

    fn apply(&mut self, op: &Op) -> Option<Seen> {
        let now = self.now;
        if let Op::Acquire { lock, .. }
        | Op::Release { lock, .. }
        | Op::Renew { lock, .. }
        | Op::Break { lock } = *op
        {
            if self.locks[lock].other {
                return Some(Seen::WrongType);
            }
            self.expire(lock);
        }
        match *op {
            Op::Acquire { lock, owner, lease, block } => {
                let free = self.locks[lock].hold.as_ref().is_none_or(|hold| hold.owner == owner);
                if free {
                    return Some(Seen::Granted(self.grant(lock, owner, lease)));
                }
                let Some(ms) = block else { return Some(Seen::Busy) };
                self.waiters_ever += 1;
                let id = WaiterId(self.waiters_ever);
                let deadline = (ms > 0).then(|| now + i64::try_from(ms).unwrap());
                self.locks[lock].queue.push(ModelWaiter { id, owner, lease, deadline });
                Some(Seen::Waits(id))
            }
            Op::Release { lock, owner, all, lease } => {
                let hold = &mut self.locks[lock].hold;
                let Some(held) = hold.as_mut().filter(|held| held.owner == owner) else {
                    return Some(Seen::NotOwner);
                };
                held.holds = if all { 0 } else { held.holds - 1 };
                let left = held.holds;
                if left == 0 {
                    *hold = None;
                } else if let Some(lease) = lease {
                    held.expires_at = now + lease;
                }
                Some(Seen::Left(left))
            }
            Op::Renew { lock, owner, lease } => {
                let hold = self.locks[lock].hold.as_mut().filter(|held| held.owner == owner);
                Some(hold.map_or(Seen::NotOwner, |held| {
                    held.expires_at = now + lease;
                    Seen::Granted(held.holds)
                }))
            }
            Op::Break { lock } => Some(Seen::Broken(self.locks[lock].hold.take().iter().count())),
            Op::Delete { lock } => {
                self.locks[lock].hold = None;
                self.locks[lock].other = false;
                None
            }
            Op::Expire { lock, lease } => {
                if let Some(held) = self.locks[lock].hold.as_mut().filter(|held| now <= held.expires_at) {
                    held.expires_at = now + lease;
                }
                None
            }
            Op::Overwrite { lock } => {
                self.locks[lock].hold = None;
                self.locks[lock].other ^= true;
                None
            }
            Op::Flush => {
                for lock in &mut self.locks {
                    lock.hold = None;
                    lock.other = false;
                }
                None
            }
            Op::Pause(paused) => {
                self.paused = paused;
                None
            }
            Op::Leave { .. } | Op::Deliver { .. } | Op::Advance { .. } => None,
        }
    }

    fn leave(&mut self, id: WaiterId) {
        for lock in &mut self.locks {
            lock.queue.retain(|waiter| waiter.id != id);
        }
        self.settle();
    }

    fn deliver(&mut self, which: usize, arrives: bool) {
        let (_, lock, owner, number) = self.in_flight.remove(which);
        let hold = &mut self.locks[lock].hold;
        if !arrives {
            if let Some(held) = hold.as_mut().filter(|held| (held.owner, held.number) == (owner, number)) {
                held.holds -= 1;
                if held.holds == 0 {
                    *hold = None;
                }
            }
        }
        self.settle();
    }

    fn holders(&self, lock: usize) -> Option<Holders> {
        (!self.locks[lock].other).then(|| match &self.locks[lock].hold {
            Some(hold) if self.now <= hold.expires_at => Holders::Exclusive(Hold {
                owner: Owner::new(OWNERS[hold.owner]),
                holds: hold.holds,
                expires_at: hold.expires_at,
                renewed: false,
            }),
            _ => Holders::Free,
        })
    }
}

/// While clients are paused no command runs, and no stranger's either.
fn runs_while_paused(op: &Op) -> bool {
    matches!(op, Op::Leave { .. } | Op::Deliver { .. } | Op::Pause(_) | Op::Advance { .. })
}

/// What a key holds, as a reader sees it.
fn visible(real: &Real, key: &[u8]) -> Option<Holders> {
    match &real.keys[key] {
        Stored::Lock(holders) if holders.expires_at().is_some_and(|at| real.now > at) => Some(Holders::Free),
        Stored::Lock(holders) => Some(holders.clone()),
        Stored::Other => None,
    }
}

/// After everybody has left and every grant has arrived, nothing is kept (9).
fn assert_drained(real: &mut Real, in_flight: impl IntoIterator<Item = WaiterId>) {
    real.paused = false;
    in_flight.into_iter().for_each(|id| real.service.delivered(id));
    for key in LOCKS {
        for id in real.waiting(key) {
            real.service.leave(id);
        }
    }
    while !real.service.is_idle() {
        real.now += 1;
        real.tick();
    }
    real.service.assert_empty();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    /// Every reply, every decision and every stored hold is the model's (1, 2, 3, 4, 5).
    #[test]
    fn the_core_is_the_model(ops in prop::collection::vec(op(), 1..120)) {
        let mut real = Real::new(true);
        let mut model = Model { now: real.now, ..Model::default() };
        for op in &ops {
            if model.paused && !runs_while_paused(op) {
                continue;
            }
            match *op {
                Op::Advance { ms } => {
                    real.advance(ms);
                    for _ in 0..ms {
                        model.now += 1;
                        model.settle();
                    }
                }
                Op::Leave { which } => {
                    let waiting: Vec<_> =
                        model.locks.iter().flat_map(|lock| &lock.queue).map(|waiter| waiter.id).collect();
                    if let Some(id) = waiting.get(which % waiting.len().max(1)) {
                        prop_assert!(real.service.leave(*id));
                        model.leave(*id);
                        real.fire();
                    }
                }
                Op::Deliver { which, arrives } => {
                    let len = model.in_flight.len();
                    if len > 0 {
                        let id = model.in_flight[which % len].0;
                        model.deliver(which % len, arrives);
                        if arrives {
                            real.service.delivered(id);
                        } else {
                            real.service.undelivered(id);
                        }
                        real.fire();
                    }
                }
                _ => prop_assert_eq!(real.step(op), model.step(op), "reply to {:?}", op),
            }
            // Two locks may be served in either order; for each waiter it is the same.
            let by_id = |decisions: &mut Vec<(WaiterId, Decision)>| {
                let mut taken = std::mem::take(decisions);
                taken.sort_by_key(|(id, _)| *id);
                taken
            };
            prop_assert_eq!(by_id(&mut real.decisions), by_id(&mut model.decisions), "after {:?}", op);
            for (lock, key) in LOCKS.into_iter().enumerate() {
                let expected: Vec<_> = model.locks[lock].queue.iter().map(|waiter| waiter.id).collect();
                prop_assert_eq!(real.waiting(key), expected, "queue of {} after {:?}", lock, op);
                // A paused server may still show a grant that is to be taken back.
                if !model.paused {
                    prop_assert_eq!(visible(&real, key), model.holders(lock), "hold of {} after {:?}", lock, op);
                }
            }
        }
        let in_flight: Vec<_> = model.in_flight.iter().map(|grant| grant.0).collect();
        assert_drained(&mut real, in_flight);
    }

    /// Commands, events and clients in any order before the timer gets to run: nobody is decided twice, no
    /// later waiter is granted before an earlier one that still waits for the same lock, and once the timer
    /// has run, no free lock has a waiter (1, 3, 4, 9).
    #[test]
    fn bursts_lose_nothing(bursts in prop::collection::vec(prop::collection::vec(op(), 1..12), 1..20)) {
        let mut real = Real::new(false);
        let mut waits: BTreeMap<WaiterId, (usize, usize)> = BTreeMap::new();
        let mut in_flight = Vec::new();
        for burst in &bursts {
            for op in burst {
                match *op {
                    Op::Advance { ms } => real.now += ms,
                    Op::Pause(_) => {}
                    Op::Leave { which } => {
                        let id = waits.keys().nth(which % waits.len().max(1)).copied();
                        if let Some(id) = id {
                            prop_assert!(real.service.leave(id));
                            waits.remove(&id);
                        }
                    }
                    Op::Deliver { which, arrives } => {
                        if !in_flight.is_empty() {
                            let id = in_flight.swap_remove(which % in_flight.len());
                            if arrives { real.service.delivered(id) } else { real.service.undelivered(id) }
                        }
                    }
                    Op::Acquire { lock, owner, .. } => {
                        let seen = real.step(op);
                        if let Some(Seen::Waits(id)) = seen {
                            waits.insert(id, (lock, owner));
                        }
                    }
                    _ => { real.step(op); }
                }
                check_decisions(&mut real, &mut waits, &mut in_flight)?;
            }
            real.fire();
            check_decisions(&mut real, &mut waits, &mut in_flight)?;
            for key in LOCKS {
                let free = visible(&real, key).is_none_or(|holders| holders.is_free());
                // A lease that ends in this millisecond is over in the next.
                let ends_now = matches!(&real.keys[key], Stored::Lock(h) if h.expires_at().is_some_and(|at| real.now > at));
                if free && !ends_now {
                    prop_assert!(real.waiting(key).is_empty(), "a free lock has waiters");
                }
            }
        }
        assert_drained(&mut real, in_flight);
    }
}

fn check_decisions(
    real: &mut Real,
    waits: &mut BTreeMap<WaiterId, (usize, usize)>,
    in_flight: &mut Vec<WaiterId>,
) -> Result<(), TestCaseError> {
    for (id, decision) in std::mem::take(&mut real.decisions) {
        let Some((lock, owner)) = waits.remove(&id) else {
            return Err(TestCaseError::fail(format!("{id:?} is decided, but does not wait")));
        };
        if let Decision::Granted(holds) = decision {
            in_flight.push(id);
            let passed = waits.iter().find(|(other, (of, _))| *of == lock && **other < id);
            // Only a re-entry may overtake.
            prop_assert!(
                passed.is_none() || holds > 1 || passed.is_some_and(|(_, (_, other))| *other == owner),
                "{:?} was granted before {:?}",
                id,
                passed
            );
        }
    }
    Ok(())
}

#[test]
fn a_hold_count_that_cannot_grow_is_refused() {
    let owner = Owner::new(b"a");
    let mut holders =
        Holders::Exclusive(Hold { owner: owner.clone(), holds: i64::MAX, expires_at: 5, renewed: false });
    let before = holders.clone();
    assert_eq!(holders.acquire(&owner, 9), Admission::Overflow);
    assert_eq!(holders, before);
}

#[test]
fn many_locks_that_end_at_once_are_looked_at_in_portions() {
    let mut service = Service::default();
    let now = Now { wall: 0, mono: 0 };
    let held = Holders::Exclusive(Hold { owner: Owner::new(b"a"), holds: 1, expires_at: 10, renewed: false });
    for lock in 0..1000u32 {
        let request = Request { owner: Owner::new(b"b"), lease_ms: 10 };
        service.wait(0, &lock.to_be_bytes(), &held, request, None, now);
    }
    let later = Now { wall: 11, mono: 11_000 };
    let mut rounds = 0;
    let mut seen = std::collections::BTreeSet::new();
    while service.next_wakeup(later, true) == Some(0) || rounds == 0 {
        let locks = service.tick(later, true);
        assert!(locks.len() <= 200, "{} locks in one go", locks.len());
        for lock in locks {
            assert!(seen.insert(lock.key.to_vec()), "looked at twice");
            service.serve(0, &lock.key, &mut Holders::Free, later);
        }
        rounds += 1;
    }
    assert_eq!(seen.len(), 1000);
    assert_eq!(service.take_decisions().len(), 1000);
}
