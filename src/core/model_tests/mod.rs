//! Random histories, through the core and through a model that is obviously right: one ordered list per lock,
//! looked at in every millisecond.
//!
//! The numbers in the names of the checks are those of the invariants in `docs/design.md`.

mod model;
mod real;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use model::Model;
use real::{Real, Stored};

const LOCKS: [&[u8]; 2] = [b"k0", b"k1"];
const OWNERS: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];

fn at(key: &[u8]) -> LockRef<'_> {
    LockRef { db: 0, key }
}

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
        let mut waits: BTreeMap<WaiterId, Waiting> = BTreeMap::new();
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
                    Op::Acquire { lock, owner, block, .. } => {
                        let seen = real.step(op);
                        if let Some(Seen::Waits(id)) = seen {
                            let ms = block.filter(|ms| *ms > 0).map(|ms| i64::try_from(ms).unwrap());
                            waits.insert(id, Waiting { lock, owner, deadline: ms.map(|ms| real.now + ms) });
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

/// A wait as its client knows it.
#[derive(Debug)]
struct Waiting {
    lock: usize,
    owner: usize,
    deadline: Option<i64>,
}

fn check_decisions(
    real: &mut Real,
    waits: &mut BTreeMap<WaiterId, Waiting>,
    in_flight: &mut Vec<WaiterId>,
) -> Result<(), TestCaseError> {
    for (id, decision) in std::mem::take(&mut real.decisions) {
        let Some(Waiting { lock, owner, deadline }) = waits.remove(&id) else {
            return Err(TestCaseError::fail(format!("{id:?} is decided, but does not wait")));
        };
        let over = deadline.is_some_and(|at| at <= real.now);
        prop_assert_eq!(
            decision == Decision::TimedOut,
            over,
            "{:?} at {}, until {:?}",
            decision,
            real.now,
            deadline
        );
        if let Decision::Granted(holds) = decision {
            in_flight.push(id);
            let passed = waits.iter().find(|(other, waiting)| waiting.lock == lock && **other < id);
            // Only a re-entry may overtake.
            prop_assert!(
                passed.is_none() || holds > 1 || passed.is_some_and(|(_, waiting)| waiting.owner == owner),
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
        service.wait(at(&lock.to_be_bytes()), &held, request, None, now);
    }
    let later = Now { wall: 11, mono: 11_000 };
    let mut rounds = 0;
    let mut seen = std::collections::BTreeSet::new();
    while service.next_wakeup(later, true) == Some(0) || rounds == 0 {
        let locks = service.tick(later, true);
        assert!(locks.len() <= 200, "{} locks in one go", locks.len());
        for lock in locks {
            assert!(seen.insert(lock.key.to_vec()), "looked at twice");
            service.serve(lock.as_ref(), &mut Holders::Free, later);
        }
        rounds += 1;
    }
    assert_eq!(seen.len(), 1000);
    assert_eq!(service.take_decisions().len(), 1000);
}
