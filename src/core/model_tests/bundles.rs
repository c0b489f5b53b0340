// SPDX-License-Identifier: MIT

//! Calls for several locks, mixed with calls for one lock. The core is compared with the rule in its simplest
//! form, a plain list. A waiter is granted all its locks as soon as each of them is available to it. The
//! holders must admit it, and no conflicting waiter may be ahead.

use std::collections::{BTreeMap, BTreeSet};

use super::real::Late;
use super::*;
use crate::core::holders::Admission;

#[derive(Clone, Debug)]
enum Action {
    Acquire {
        locks: BTreeSet<usize>,
        owner: usize,
        shared: bool,
        block: Option<u64>,
    },
    Release {
        lock: usize,
        owner: usize,
        all: bool,
    },
    /// A foreign write deletes the key.
    Delete {
        lock: usize,
    },
    Break {
        lock: usize,
    },
    Leave {
        which: usize,
    },
    Deliver {
        which: usize,
        arrives: bool,
    },
    Advance {
        ms: i64,
    },
}

fn doing() -> impl Strategy<Value = Action> {
    let (lock, owner) = (0..LOCKS.len(), 0..OWNERS.len());
    let block = prop_oneof![1 => Just(None), 6 => Just(Some(0)), 2 => (1..40u64).prop_map(Some)];
    let single = lock.clone().prop_map(|lock| BTreeSet::from([lock]));
    let several = prop::sample::subsequence((0..LOCKS.len()).collect::<Vec<_>>(), 2..=LOCKS.len());
    let several = several.prop_map(BTreeSet::from_iter);
    let locks = prop_oneof![1 => single, 1 => several];
    prop_oneof![
        12 => (locks, owner.clone(), prop::bool::weighted(0.4), block)
            .prop_map(|(locks, owner, shared, block)| Action::Acquire { locks, owner, shared, block }),
        8 => (lock.clone(), owner, any::<bool>())
            .prop_map(|(lock, owner, all)| Action::Release { lock, owner, all }),
        1 => lock.clone().prop_map(|lock| Action::Delete { lock }),
        1 => lock.prop_map(|lock| Action::Break { lock }),
        2 => (0..8usize).prop_map(|which| Action::Leave { which }),
        6 => (0..8usize, prop::bool::weighted(0.8)).prop_map(|(which, arrives)| Action::Deliver { which, arrives }),
        3 => (1..30i64).prop_map(|ms| Action::Advance { ms }),
    ]
}

/// A waiting call. The calls are stored in order of arrival.
#[derive(Clone, Debug)]
struct Wait {
    id: WaiterId,
    owner: usize,
    locks: BTreeSet<usize>,
    mode: Mode,
    deadline: Option<i64>,
    /// The waits that it overtakes, by lock.
    overtakes: BTreeSet<(usize, WaiterId)>,
    /// The waits that it has ever overtaken, by lock, even if the swap was undone.
    ever_overtaken: BTreeSet<(usize, WaiterId)>,
}

/// An undelivered grant, at the locks whose holds have not ended yet.
#[derive(Clone)]
struct InFlight {
    id: WaiterId,
    owner: usize,
    /// For each lock, the mode of the hold to release if the grant is revoked.
    locks: BTreeMap<usize, Option<Mode>>,
}

#[derive(Clone)]
struct Plain {
    now: i64,
    holders: Vec<Holders>,
    waits: Vec<Wait>,
    in_flight: Vec<InFlight>,
}

const LEASE: i64 = 1_000_000;

fn wants(mode: Mode) -> Wants {
    Wants { mode, once: false, limit: None }
}

impl Plain {
    fn holds(&self, owner: usize, lock: usize) -> bool {
        self.holders[lock].get(OWNERS[owner]).is_some()
    }

    fn admits(&self, owner: usize, lock: usize, mode: Mode) -> bool {
        self.holders[lock].admits(OWNERS[owner], wants(mode)) != Admission::Busy
    }

    /// The sort key of a wait for a lock. Holders of the lock come first; otherwise the order of arrival counts.
    fn position(&self, at: usize, lock: usize) -> (bool, usize) {
        (!self.holds(self.waits[at].owner, lock), at)
    }

    /// The waits that are ahead of a wait at a lock.
    fn ahead(&self, at: usize, lock: usize) -> Vec<usize> {
        let wait = &self.waits[at];
        if self.holds(wait.owner, lock) {
            return Vec::new();
        }
        let conflicts = |other: &usize| {
            let first = &self.waits[*other];
            let came_first = self.position(*other, lock) < self.position(at, lock);
            *other != at
                && first.locks.contains(&lock)
                && (first.mode == Mode::Exclusive || wait.mode == Mode::Exclusive)
                && !wait.overtakes.contains(&(lock, first.id))
                && (came_first || first.overtakes.contains(&(lock, wait.id)))
        };
        (0..self.waits.len()).filter(conflicts).collect()
    }

    fn should_be_granted(&self, at: usize) -> bool {
        let wait = &self.waits[at];
        // A wait stays behind later ones that have overtaken it, but only while its owner waits in another call.
        let waits_elsewhere = self.waits.iter().filter(|other| other.owner == wait.owner).count() > 1;
        let blocks = |lock: usize, first: usize| {
            waits_elsewhere || self.position(first, lock) < self.position(at, lock)
        };
        let is_next = |lock: usize| !self.ahead(at, lock).iter().any(|first| blocks(lock, *first));
        wait.locks.iter().all(|lock| self.admits(wait.owner, *lock, wait.mode) && is_next(*lock))
    }

    fn grant(&mut self, owner: usize, locks: &BTreeSet<usize>, mode: Mode) {
        for lock in locks {
            self.holders[*lock].add(&Owner::new(OWNERS[owner]), mode, self.now + LEASE, None);
        }
    }

    /// The grants in flight that one of these holds may belong to.
    fn grants_with_hold(&self, lock: usize, owner: usize, mode: Mode) -> Vec<usize> {
        let hold_mode =
            |grant: &InFlight| grant.owner == owner && grant.locks.get(&lock) == Some(&Some(mode));
        (0..self.in_flight.len()).filter(|at| hold_mode(&self.in_flight[*at])).collect()
    }

    fn release(&mut self, lock: usize, owner: usize, scope: ReleaseScope) -> Result<i64, NotOwner> {
        let hold = self.holders[lock].get(OWNERS[owner]).cloned().ok_or(NotOwner)?;
        let is_certain =
            |mode, held| held > i64::try_from(self.grants_with_hold(lock, owner, mode).len()).unwrap();
        if scope == ReleaseScope::One && hold.total() > 1 {
            let (mode, held) = match hold.exclusive {
                0 => (Mode::Shared, hold.shared),
                exclusive => (Mode::Exclusive, exclusive),
            };
            if !is_certain(mode, held) {
                // Without this grant, the release would have ended a different hold.
                let other = mode == Mode::Exclusive && is_certain(Mode::Shared, hold.shared);
                let at = self.grants_with_hold(lock, owner, mode)[0];
                self.in_flight[at].locks.insert(lock, other.then_some(Mode::Shared));
            }
        }
        self.holders[lock].release(OWNERS[owner], scope, None)
    }

    /// Ends waits whose deadline has passed and applies the decisions. If either of two calls could be
    /// granted first, both orders are accepted. Afterwards, no remaining call could be granted all its locks.
    fn follow(&mut self, decisions: Vec<(WaiterId, Decision)>) -> Result<(), TestCaseError> {
        let holders = &self.holders;
        for grant in &mut self.in_flight {
            grant.locks.retain(|lock, _| holders[*lock].get(OWNERS[grant.owner]).is_some());
        }
        let now = self.now;
        let over: BTreeSet<WaiterId> = self
            .waits
            .extract_if(.., |wait| wait.deadline.is_some_and(|at| at <= now))
            .map(|wait| wait.id)
            .collect();
        let timed_out = decisions.iter().filter(|(_, decision)| *decision == Decision::TimedOut);
        prop_assert_eq!(
            &over,
            &timed_out.map(|(id, _)| *id).collect::<BTreeSet<_>>(),
            "a wait ended before its deadline"
        );
        let is_grant =
            |decision: &Decision| matches!(decision, Decision::Granted(_) | Decision::GrantedAll(_));
        let granted = decisions.iter().filter(|(_, decision)| is_grant(decision));
        let granted: Vec<WaiterId> = granted.map(|(id, _)| *id).collect();
        prop_assert_eq!(granted.len() + over.len(), decisions.len(), "{:?}", decisions);
        let Some(after) = self.after(&granted) else {
            prop_assert!(false, "{:?} were granted too early", granted);
            return Ok(());
        };
        *self = after;
        let left = (0..self.waits.len()).find(|at| self.should_be_granted(*at));
        prop_assert!(left.is_none(), "{:?} was not granted", left.map(|at| &self.waits[at]));
        Ok(())
    }

    /// The state after these calls were granted, in some order in which each could be granted. Prefers the
    /// given order. `None` if no such order exists.
    fn after(&self, granted: &[WaiterId]) -> Option<Plain> {
        if granted.is_empty() {
            return Some(self.clone());
        }
        granted.iter().find_map(|id| {
            let at = self.index(*id).filter(|at| self.should_be_granted(*at))?;
            let mut after = self.clone();
            let Wait { id, owner, locks, mode, .. } = after.waits.remove(at);
            after.grant(owner, &locks, mode);
            let locks = locks.into_iter().map(|lock| (lock, Some(mode))).collect();
            after.in_flight.push(InFlight { id, owner, locks });
            let left: Vec<WaiterId> = granted.iter().copied().filter(|other| *other != id).collect();
            after.after(&left)
        })
    }

    /// The owners that a wait waits for, as edges. If a bundle's member blocks only by its place in the queue
    /// and the wait may overtake it, the edge names that member.
    fn edges(&self, at: usize) -> Vec<(usize, Option<(usize, WaiterId)>)> {
        let wait = &self.waits[at];
        let mut edges = Vec::new();
        for lock in wait.locks.iter().copied() {
            // The position of the owner's first wait for the lock. A grant to that wait admits the others.
            let own = (0..self.waits.len()).filter(|other| {
                let other = &self.waits[*other];
                other.owner == wait.owner && other.locks.contains(&lock)
            });
            let first_own = own.map(|own| self.position(own, lock)).min();
            let excluded = |owner: &usize| {
                let hold = self.holders[lock].get(OWNERS[*owner]);
                *owner != wait.owner
                    && hold.is_some_and(|hold| wait.mode == Mode::Exclusive || hold.exclusive > 0)
            };
            edges.extend((0..OWNERS.len()).filter(excluded).map(|owner| (owner, None)));
            for first in self.ahead(at, lock) {
                let overtakes = self.waits[first].overtakes.contains(&(lock, wait.id));
                if Some(self.position(first, lock)) > first_own && !overtakes {
                    continue;
                }
                let first = &self.waits[first];
                let soft = Some((lock, first.id))
                    .filter(|soft| first.locks.len() > 1 && !wait.ever_overtaken.contains(soft));
                edges.extend((first.owner != wait.owner).then_some((first.owner, soft)));
            }
        }
        edges
    }

    /// The owners that this wait waits for, directly or indirectly, over edges that `counts` accepts.
    fn reachable_owners(
        &self,
        at: usize,
        counts: impl Fn(Option<(usize, WaiterId)>) -> bool,
    ) -> BTreeSet<usize> {
        let mut reached = BTreeSet::new();
        let mut todo = vec![at];
        while let Some(at) = todo.pop() {
            for (owner, soft) in self.edges(at) {
                if counts(soft) && reached.insert(owner) {
                    todo.extend((0..self.waits.len()).filter(|at| self.waits[*at].owner == owner));
                }
            }
        }
        reached
    }

    /// Lets a wait overtake another one.
    fn swap(&mut self, overtaker: usize, lock: usize, overtaken: WaiterId) {
        let (id, of) = (self.waits[overtaker].id, self.index(overtaken));
        self.waits[overtaker].ever_overtaken.insert((lock, overtaken));
        let was_passed = of.is_some_and(|of| self.waits[of].overtakes.remove(&(lock, id)));
        if !was_passed {
            self.waits[overtaker].overtakes.insert((lock, overtaken));
        }
    }

    /// Applies the results of searches after a call: lets waits overtake, and removes the waits that ended as
    /// deadlocks. `deadlocks.rs` checks these searches.
    fn follow_late(&mut self, real: &mut Real) {
        for (overtakes, decided) in std::mem::take(&mut real.late_overtakes) {
            for (overtaker, overtaken, key) in overtakes {
                let lock = LOCKS.iter().position(|lock| *lock == key).unwrap();
                if let Some(overtaker) = self.index(overtaker) {
                    self.swap(overtaker, lock, overtaken);
                }
            }
            real.decisions.extend(decided);
        }
        let ended = std::mem::take(&mut real.deadlocked);
        self.waits.retain(|wait| !ended.contains(&wait.id));
    }

    fn index(&self, id: WaiterId) -> Option<usize> {
        self.waits.iter().position(|wait| wait.id == id)
    }
}

fn play(history: &[Action]) -> Result<(), TestCaseError> {
    let mut real = Real::new(true);
    real.late = Late::Ends;
    let free = LOCKS.iter().map(|_| Holders::Free).collect();
    let mut plain = Plain { now: real.now, holders: free, waits: Vec::new(), in_flight: Vec::new() };
    for step in history {
        match step {
            Action::Acquire { locks, owner, shared, block } => {
                acquire(&mut real, &mut plain, (locks, *owner, *shared, *block))?;
            }
            Action::Release { lock, owner, all } => {
                let scope = if *all { ReleaseScope::All } else { ReleaseScope::One };
                let expected = plain.release(*lock, *owner, scope);
                let op = Op::Release { lock: *lock, owner: *owner, scope, lease: None, id: None };
                let seen = real.step(&op);
                prop_assert_eq!(seen, Some(expected.map_or(Seen::NotOwner, Seen::Left)));
            }
            Action::Delete { lock } => {
                plain.holders[*lock].clear();
                real.step(&Op::Delete { lock: *lock });
            }
            Action::Break { lock } => {
                plain.holders[*lock].clear();
                real.step(&Op::Break { lock: *lock });
            }
            Action::Leave { which } => {
                if !plain.waits.is_empty() {
                    let gone = plain.waits.remove(which % plain.waits.len());
                    prop_assert!(real.locks.leave(gone.id));
                    real.fire();
                }
            }
            Action::Deliver { which, arrives } => {
                let held: Vec<usize> =
                    (0..plain.in_flight.len()).filter(|at| !plain.in_flight[*at].locks.is_empty()).collect();
                let Some(at) = held.get(which % held.len().max(1)) else { continue };
                let grant = plain.in_flight.remove(*at);
                if *arrives {
                    real.locks.delivered(grant.id, real.time());
                } else {
                    real.locks.undelivered(grant.id);
                    for (lock, hold_mode) in &grant.locks {
                        let owner = OWNERS[grant.owner];
                        if let Some(mode) = *hold_mode {
                            plain.holders[*lock].release(owner, ReleaseScope::OneOf(mode), None).unwrap();
                        }
                    }
                }
                real.fire();
            }
            Action::Advance { ms } => {
                for _ in 0..*ms {
                    real.advance(1);
                    plain.now += 1;
                    plain.follow_late(&mut real);
                    plain.follow(std::mem::take(&mut real.decisions))?;
                }
            }
        }
        real.locks.verify();
        plain.follow_late(&mut real);
        plain.follow(std::mem::take(&mut real.decisions))?;
        for (lock, key) in LOCKS.into_iter().enumerate() {
            let counts = |holders: &Holders| {
                holders
                    .iter()
                    .map(|hold| (hold.owner.clone(), hold.exclusive, hold.shared))
                    .collect::<Vec<_>>()
            };
            let real = visible(&real, key).unwrap();
            prop_assert_eq!(counts(&real), counts(&plain.holders[lock]), "holders after {:?}", step);
        }
    }
    let in_flight: Vec<WaiterId> = plain.in_flight.iter().map(|grant| grant.id).collect();
    assert_drained(&mut real, in_flight);
    Ok(())
}

fn acquire(
    real: &mut Real,
    plain: &mut Plain,
    (locks, owner, shared, block): (&BTreeSet<usize>, usize, bool, Option<u64>),
) -> Result<(), TestCaseError> {
    let call = Call { owner, shared, lease: LEASE, ..Call::default() };
    let mode = call.wants().mode;
    real.overtakes.clear();
    let seen = match locks.iter().collect::<Vec<_>>()[..] {
        [lock] => real.step(&Op::Acquire { lock: *lock, call, block }).unwrap(),
        _ => {
            let locks: Vec<usize> = locks.iter().copied().collect();
            let seen = real.acquire_all(&locks, &call, block);
            real.settle();
            seen
        }
    };
    let id = if let Seen::Waits(id) = seen { id } else { WaiterId(u64::MAX) };
    let deadline = block.filter(|ms| *ms > 0).map(|ms| plain.now + i64::try_from(ms).unwrap());
    let wait = Wait {
        id,
        owner,
        locks: locks.clone(),
        mode,
        deadline,
        overtakes: BTreeSet::new(),
        ever_overtaken: BTreeSet::new(),
    };
    plain.waits.push(wait);
    let at = plain.waits.len() - 1;
    if plain.should_be_granted(at) {
        plain.waits.pop();
        plain.grant(owner, locks, mode);
        prop_assert!(matches!(seen, Seen::Granted(_)), "{:?} instead of a grant", seen);
        return Ok(());
    }
    if block.is_none() {
        plain.waits.pop();
        prop_assert_eq!(seen, Seen::Busy);
        return Ok(());
    }
    // Each overtaking wait was in a cycle because of the new wait, and the swap has broken that cycle.
    for (overtakes, granted) in std::mem::take(&mut real.overtakes) {
        let Some(at) = plain.index(id) else {
            prop_assert!(false, "a wait overtakes because of an ended wait");
            break;
        };
        prop_assert!(plain.reachable_owners(at, |_| true).contains(&owner), "no wait is in a cycle");
        let before = plain.clone();
        for (overtaker, overtaken, key) in overtakes {
            let lock = LOCKS.iter().position(|lock| *lock == key).unwrap();
            // The model does not know the id of a new wait that was refused with `DEADLOCK`. So an unknown id
            // is the new wait.
            let overtaker = before.index(overtaker).unwrap_or(at);
            let overtaken = before.index(overtaken).map_or(id, |_| overtaken);
            let waits_for =
                before.edges(overtaker).into_iter().any(|(_, soft)| soft == Some((lock, overtaken)));
            prop_assert!(
                waits_for,
                "{:?} overtakes {:?} at {} without a need",
                &before.waits[overtaker],
                overtaken,
                lock
            );
            plain.swap(overtaker, lock, overtaken);
        }
        if let Some(after) = plain.after(&granted.iter().map(|(id, _)| *id).collect::<Vec<_>>()) {
            *plain = after;
        }
    }
    let Some(at) = plain.index(id) else {
        prop_assert!(matches!(seen, Seen::Waits(_)), "{:?} instead of an ended wait", seen);
        return Ok(());
    };
    let hard = plain.reachable_owners(at, |soft| soft.is_none()).contains(&owner);
    prop_assert_eq!(hard, seen == Seen::Deadlock, "{:?} with waits {:?}", seen, &plain.waits);
    if hard {
        plain.waits.remove(at);
        for wait in &mut plain.waits {
            wait.overtakes.retain(|(_, overtaken)| *overtaken != id);
            wait.ever_overtaken.retain(|(_, overtaken)| *overtaken != id);
        }
    } else {
        prop_assert!(!plain.reachable_owners(at, |_| true).contains(&owner), "a cycle that was not broken");
    }
    Ok(())
}

/// Number of histories.
const CASES: u32 = 20_000;

fn config(cases: u32) -> ProptestConfig {
    let rng_seed = match std::env::var_os("RANDOM_HISTORIES") {
        Some(_) => RngSeed::Random,
        None => RngSeed::Fixed(15),
    };
    ProptestConfig {
        cases,
        rng_seed,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(CASES))]

    #[test]
    fn several_locks_match_the_list(history in prop::collection::vec(doing(), 1..60)) {
        play(&history)?;
    }
}
