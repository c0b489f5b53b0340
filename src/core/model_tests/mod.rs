// SPDX-License-Identifier: MIT

//! Random histories through the core and through an obviously correct model: one ordered list per lock,
//! searched from end to end in every millisecond.
//!
//! The numbers in parentheses refer to the invariants in `docs/design.md`.

mod bundles;
mod deadlocks;
mod exhaustive;
mod fairness;
mod model;
mod portions;
pub(in crate::core) mod real;
mod sessions;
mod side_by_side;

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU32, NonZeroU64};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use real::{open_lock, Real, Stored, StoredRecords};
use side_by_side::SideBySide;

/// All keys. Most tests use only the first ones.
const KEYS: [&[u8]; 4] = [b"k0", b"k1", b"k2", b"k3"];
pub(super) const LOCKS: [&[u8]; 3] = [KEYS[0], KEYS[1], KEYS[2]];
pub(super) const OWNERS: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
/// The owner under which an external client takes locks.
pub(super) const EXTERNAL: usize = 4;

/// Time for which replies to requests are remembered, in milliseconds.
const TTL: i64 = 25;

fn at(key: &[u8]) -> LockRef<'_> {
    LockRef { db: 0, key }
}

/// An acquire as a client makes it.
#[derive(Clone, Debug, Default)]
pub(super) struct Call {
    pub(super) owner: usize,
    pub(super) shared: bool,
    /// Whether the owner's own holds exclude the request.
    pub(super) once: bool,
    /// Maximum number of shared holders; 0 means no limit.
    pub(super) limit: u32,
    pub(super) lease: i64,
    /// Whether the call gives no lease. Such a call shortens no lease.
    pub(super) keeps: bool,
    pub(super) fence: bool,
    pub(super) id: Option<u8>,
    /// Whether a grant can be revoked until it is confirmed, even if it was made without a wait.
    pub(super) awaits_replicas: bool,
    /// The connection, whether the hold is renewed while it is open, and whether the hold ends when it
    /// closes.
    pub(super) bind: Option<(u64, bool, bool)>,
    /// Whether a renewal took over the watchdog or the ephemeral binding, before the delivery was known.
    pub(super) taken_over: (bool, bool),
    /// Maximum time of the renewals.
    pub(super) max: Option<i64>,
}

impl Call {
    fn wants(&self) -> Wants {
        let mode = if self.shared { Mode::Shared } else { Mode::Exclusive };
        Wants { mode, once: self.once, limit: NonZeroU32::new(self.limit).filter(|_| self.shared) }
    }

    fn request(&self) -> Request {
        Request {
            owner: Owner::new(OWNERS[self.owner]),
            wants: self.wants(),
            lease_ms: self.lease,
            keeps_longer: self.keeps,
            fence: self.fence,
            names_owner: self.fence,
            id: self.id.map(|id| request_id(self.owner, id)),
            bind: bind_of(self.bind, self.max),
            client: None,
            awaits_replicas: self.awaits_replicas,
            numbered: None,
        }
    }
}

fn bind_of(bind: Option<(u64, bool, bool)>, max_ms: Option<i64>) -> Option<Bind> {
    bind.map(|(connection, watchdog, ephemeral)| Bind {
        connection: ConnectionId(connection),
        watchdog,
        max_ms: max_ms.and_then(|ms| NonZeroU64::new(ms.unsigned_abs())),
        ephemeral,
    })
}

fn request_id(owner: usize, id: u8) -> RequestId {
    RequestId::new(OWNERS[owner], &[id], TTL)
}

/// An operation. Numbers select an existing object.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Acquire {
        lock: usize,
        call: Call,
        block: Option<u64>,
    },
    Release {
        lock: usize,
        owner: usize,
        scope: ReleaseScope,
        lease: Option<i64>,
        id: Option<u8>,
    },
    Renew {
        lock: usize,
        owner: usize,
        lease: i64,
        bind: Option<(u64, bool, bool)>,
        max: Option<i64>,
    },
    Break {
        lock: usize,
    },
    Cancel {
        lock: usize,
        owner: usize,
        id: u8,
    },
    /// A foreign write deletes the key.
    Delete {
        lock: usize,
    },
    /// A foreign write changes the key's TTL.
    Expire {
        lock: usize,
        lease: i64,
    },
    /// A foreign write replaces the lock by another value, or removes that value.
    Overwrite {
        lock: usize,
    },
    /// An external client takes the lock if it is free.
    External {
        lock: usize,
        lease: i64,
    },
    /// All keys are flushed.
    Flush,
    /// A waiter's client leaves.
    Leave {
        which: usize,
    },
    /// A connection with bindings closes.
    Close {
        connection: u64,
    },
    /// A connection with bindings closes, and a lock is acquired before the timer fires.
    CloseInTurn {
        connection: u64,
        lock: usize,
        owner: usize,
        shared: bool,
    },
    /// A grant reaches its client, or fails to.
    Deliver {
        which: usize,
        arrives: bool,
    },
    /// Replicas have acknowledged a grant, and its client is answered.
    Answer {
        which: usize,
    },
    /// The server is paused or resumed.
    Pause(bool),
    /// For this number of milliseconds, locks count as possibly forgotten.
    Quarantine {
        ms: i64,
    },
    /// The server is a replica for a short time, in which another primary may set a lease.
    Away {
        foreign_write: Option<(usize, i64)>,
    },
    Advance {
        ms: i64,
    },
}

/// A limit for shared holders; usually none.
fn limit() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(0), 2 => 1..4u32]
}

fn op() -> impl Strategy<Value = Op> {
    let (lock, owner) = (0..LOCKS.len(), 0..OWNERS.len());
    let lease = 1..40i64;
    let id = || prop::option::weighted(0.2, 0..2u8);
    let bind = || {
        let some = prop_oneof![Just((true, false)), Just((false, true)), Just((true, true))];
        prop::option::weighted(0.3, (0..3u64, some)).prop_map(|bind| {
            bind.map(|(connection, (watchdog, ephemeral))| (connection, watchdog, ephemeral))
        })
    };
    let max = || prop::option::weighted(0.4, 1..60i64);
    let wants = (prop::bool::weighted(0.4), prop::bool::weighted(0.2), limit());
    let call = (
        owner.clone(),
        wants,
        lease.clone(),
        prop::bool::weighted(0.3),
        any::<bool>(),
        id(),
        (bind(), max()),
        prop::bool::weighted(0.2),
    )
        .prop_map(
            |(owner, (shared, once, limit), lease, keeps, fence, id, (bind, max), awaits_replicas)| Call {
                owner,
                shared,
                once,
                limit: if shared { limit } else { 0 },
                lease,
                keeps,
                fence,
                id,
                awaits_replicas,
                bind,
                taken_over: (false, false),
                max,
            },
        );
    let scope = prop_oneof![
        3 => Just(ReleaseScope::One),
        2 => Just(ReleaseScope::OneOf(Mode::Shared)),
        1 => Just(ReleaseScope::All),
    ];
    prop_oneof![
        12 => (lock.clone(), call, prop::option::weighted(0.8, 0..60u64))
            .prop_map(|(lock, call, block)| Op::Acquire { lock, call, block }),
        8 => (lock.clone(), owner.clone(), scope, prop::option::of(lease.clone()), id())
            .prop_map(|(lock, owner, scope, lease, id)| Op::Release { lock, owner, scope, lease, id }),
        2 => (lock.clone(), owner.clone(), 0..2u8).prop_map(|(lock, owner, id)| Op::Cancel { lock, owner, id }),
        2 => (lock.clone(), owner, lease.clone(), bind(), max())
            .prop_map(|(lock, owner, lease, bind, max)| Op::Renew { lock, owner, lease, bind, max }),
        1 => lock.clone().prop_map(|lock| Op::Break { lock }),
        1 => lock.clone().prop_map(|lock| Op::Delete { lock }),
        1 => (lock.clone(), lease.clone()).prop_map(|(lock, lease)| Op::Expire { lock, lease }),
        1 => lock.clone().prop_map(|lock| Op::Overwrite { lock }),
        2 => (lock.clone(), lease.clone()).prop_map(|(lock, lease)| Op::External { lock, lease }),
        1 => Just(Op::Flush),
        2 => (0..8usize).prop_map(|which| Op::Leave { which }),
        2 => (0..3u64).prop_map(|connection| Op::Close { connection }),
        1 => (0..3u64, lock.clone(), 0..OWNERS.len(), any::<bool>()).prop_map(
            |(connection, lock, owner, shared)| Op::CloseInTurn { connection, lock, owner, shared }
        ),
        6 => (0..8usize, prop::bool::weighted(0.7)).prop_map(|(which, arrives)| Op::Deliver { which, arrives }),
        1 => (0..8usize).prop_map(|which| Op::Answer { which }),
        1 => any::<bool>().prop_map(Op::Pause),
        1 => (0..30i64).prop_map(|ms| Op::Quarantine { ms }),
        1 => prop::option::of((lock, lease)).prop_map(|foreign_write| Op::Away { foreign_write }),
        8 => (1..30i64).prop_map(|ms| Op::Advance { ms }),
    ]
}

/// The visible result of one step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Granted(Reply),
    Busy,
    Quarantined,
    Deadlock,
    Waits(WaiterId),
    Left(i64),
    Renewed(i64),
    NotOwner,
    WrongType,
    Broken(usize),
    Cancelled(bool),
    /// The request was cancelled before.
    Unblocked,
}

/// While clients are paused, no command runs, not even a foreign write.
fn runs_while_paused(op: &Op) -> bool {
    let of_clients =
        matches!(op, Op::Leave { .. } | Op::Close { .. } | Op::Deliver { .. } | Op::Answer { .. });
    of_clients || matches!(op, Op::Pause(_) | Op::Advance { .. })
}

/// The content of a key, as a reader sees it.
pub(super) fn visible(real: &Real, key: &[u8]) -> Option<Holders> {
    match &real.keys[key] {
        Stored::Lock(holders) if holders.expires_at().is_some_and(|at| real.now > at) => Some(Holders::Free),
        Stored::Lock(holders) => {
            let mut holders = holders.clone();
            holders.end_leases(real.now);
            Some(holders)
        }
        Stored::Other => None,
    }
}

/// Fails if anything is still remembered after all clients have left and every grant was delivered (9).
pub(super) fn assert_drained(real: &mut Real, in_flight: impl IntoIterator<Item = WaiterId>) {
    real.paused = false;
    real.step(&Op::Quarantine { ms: 0 });
    real.locks.notify_owners(false);
    real.fire();
    real.locks.verify();
    in_flight.into_iter().for_each(|id| {
        real.locks.delivered(id, real.time());
    });
    for connection in 0..3 {
        real.locks.connection_closed(ConnectionId(connection), real.time());
    }
    for key in LOCKS {
        for id in real.waiting(key) {
            real.locks.leave(id);
        }
    }
    (0..LOCKS.len()).for_each(|lock| {
        real.step(&Op::Delete { lock });
    });
    while let Some(ms) = real.locks.next_wakeup(real.time(), true) {
        real.now += i64::try_from(ms).unwrap().max(1);
        real.tick();
    }
    real.locks.assert_empty();
}

/// Mostly acquires without a deadline and leases that do not end.
fn crowded() -> impl Strategy<Value = Op> {
    let (lock, owner) = (0..LOCKS.len(), 0..OWNERS.len());
    let wants = (lock.clone(), owner.clone(), any::<bool>(), prop::bool::weighted(0.2), limit());
    prop_oneof![
        20 => wants.prop_map(|(lock, owner, shared, once, limit)| {
            let limit = if shared { limit } else { 0 };
            let call = Call { owner, shared, once, limit, lease: 100_000, ..Call::default() };
            Op::Acquire { lock, call, block: Some(0) }
        }),
        2 => (lock, owner).prop_map(|(lock, owner)| {
            Op::Release { lock, owner, scope: ReleaseScope::All, lease: None, id: None }
        }),
        1 => (0..8usize).prop_map(|which| Op::Leave { which }),
    ]
}

fn compare(ops: &[Op], notifies_owners: bool) -> Result<(), TestCaseError> {
    compare_in_portions(ops, notifies_owners, side_by_side::MANY)
}

fn compare_in_portions(ops: &[Op], notifies_owners: bool, portion: usize) -> Result<(), TestCaseError> {
    let mut both = SideBySide::in_portions(notifies_owners, portion);
    for op in ops {
        both.step(op)?;
    }
    both.end();
    Ok(())
}

/// Plays the history that these bytes encode. The first byte selects whether owners are notified. Each other
/// byte selects a step of the largest small world. `tests/fuzz` uses this function to search for new
/// behavior.
#[cfg(fuzzing)]
pub fn play(bytes: &[u8]) {
    thread_local! {
        static WORLD: Vec<Op> = exhaustive::everything();
    }
    let Some((first, rest)) = bytes.split_first() else { return };
    let ops: Vec<Op> =
        WORLD.with(|world| rest.iter().map(|byte| world[usize::from(*byte) % world.len()].clone()).collect());
    if let Err(difference) = compare(&ops, first % 2 == 0) {
        panic!("{difference}: {ops:#?}");
    }
}

/// Number of histories. They always use the same seed, so that failures can be reproduced. With
/// `RANDOM_HISTORIES` set, the seed changes.
fn histories(cases: u32) -> ProptestConfig {
    let random = std::env::var_os("RANDOM_HISTORIES").is_some();
    let rng_seed = if random { RngSeed::Random } else { RngSeed::Fixed(0x0010_c4ab) };
    ProptestConfig { cases, rng_seed, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(histories(60_000))]

    /// The comparison of `the_core_is_the_model`, for combinations that occur in one of ten thousand
    /// histories.
    #[test]
    fn weekly_the_core_is_the_model(ops in prop::collection::vec(op(), 1..120), notifies_owners in any::<bool>()) {
        compare(&ops, notifies_owners)?;
    }
}

proptest! {
    #![proptest_config(histories(8192))]

    /// Every reply, every decision and every stored hold matches the model (1, 2, 3, 4, 5).
    #[test]
    fn the_core_is_the_model(ops in prop::collection::vec(op(), 1..120), notifies_owners in any::<bool>()) {
        compare(&ops, notifies_owners)?;
    }

    /// The result is the same if each step does as little work as possible and leaves the rest for later.
    #[test]
    fn in_portions_the_core_is_the_model(
        ops in prop::collection::vec(op(), 1..120),
        notifies_owners in any::<bool>(),
        portion in 1..3usize,
    ) {
        // A call just after the end of its connection may find holds that the next portion ends. `portions`
        // tests that case.
        let ops: Vec<Op> = ops.into_iter().filter(|op| !matches!(op, Op::CloseInTurn { .. })).collect();
        compare_in_portions(&ops, notifies_owners, portion)?;
    }

    /// The core matches the model when nearly all owners wait, with long queues and many paths between them
    /// (3, 4).
    #[test]
    fn a_crowd_is_the_model(ops in prop::collection::vec(crowded(), 1..40)) {
        compare(&ops, true)?;
    }

    /// Commands, events and clients in any order before the timer runs. No wait is decided twice, and no
    /// later waiter is granted before an earlier one for the same lock. Once the timer has run, no free lock
    /// has a waiter (1, 3, 4, 9).
    #[test]
    fn bursts_lose_no_wake_up(
        bursts in prop::collection::vec(prop::collection::vec(op(), 1..12), 1..20),
        listeners: bool,
    ) {
        let mut real = if listeners { Real::with_subscribers(false) } else { Real::new(false) };
        let mut waits: BTreeMap<WaiterId, Waiting> = BTreeMap::new();
        let mut in_flight = Vec::new();
        for burst in &bursts {
            for op in burst {
                match *op {
                    // With subscribers, fairness histories are remembered for longer.
                    Op::Advance { ms } => real.now += if listeners && ms > 20 { 50 * ms } else { ms },
                    Op::External { lock, lease } if listeners => {
                        real.step(&Op::External { lock, lease: 100 * lease });
                    }
                    Op::Pause(_) | Op::Away { .. } | Op::CloseInTurn { .. } => {}
                    Op::Close { connection } => {
                        real.locks.connection_closed(ConnectionId(connection), real.time());
                    }
                    Op::Leave { which } => {
                        let id = waits.keys().nth(which % waits.len().max(1)).copied();
                        if let Some(id) = id {
                            prop_assert!(real.locks.leave(id));
                            waits.remove(&id);
                        }
                    }
                    Op::Deliver { which, arrives } => {
                        if !in_flight.is_empty() {
                            let id = in_flight.swap_remove(which % in_flight.len());
                            match arrives {
                                true => {
 real.locks.delivered(id, real.time());
 }
                                false => real.locks.undelivered(id),
                            }
                        }
                    }
                    Op::Acquire { lock, ref call, block } => {
                        // Calls have no id, so the order of waiter ids is the order of positions.
                        let call = Call { id: None, ..call.clone() };
                        let owner = call.owner;
                        let seen = real.step(&Op::Acquire { lock, call, block });
                        if let Some(Seen::Waits(id)) = seen {
                            let ms = block.filter(|ms| *ms > 0).map(|ms| i64::try_from(ms).unwrap());
                            waits.insert(id, Waiting { lock, owner, deadline: ms.map(|ms| real.now + ms) });
                        }
                    }
                    _ => { real.step(op); }
                }
                real.locks.verify();
                check_decisions(&mut real, &mut waits, &mut in_flight)?;
            }
            real.fire();
            check_decisions(&mut real, &mut waits, &mut in_flight)?;
            for key in LOCKS {
                let free = visible(&real, key).is_none_or(|holders| holders.is_free());
                // A lease that ends in this millisecond has expired in the next one.
                let ends_now = matches!(&real.keys[key], Stored::Lock(h) if h.expires_at().is_some_and(|at| real.now > at));
                let left_to_external_clients = listeners && real.locks.is_left_free(at(key), real.time());
                if free && !ends_now && !left_to_external_clients && !real.locks.is_quarantined() {
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
        if decision == Decision::Lost {
            // The wait was granted the lock, and its client still waits for the answer. Exception: the client
            // left in the same iteration.
            prop_assert!(!waits.contains_key(&id), "{:?} lost a lock without a grant", id);
            in_flight.retain(|other| *other != id);
            continue;
        }
        let Some(Waiting { lock, owner, deadline }) = waits.remove(&id) else {
            return Err(TestCaseError::fail(format!("{id:?} was decided without waiting")));
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
        if let Decision::Granted(reply) = decision {
            in_flight.push(id);
            let overtaken = waits.iter().find(|(other, waiting)| waiting.lock == lock && **other < id);
            // Only a re-entry may overtake.
            prop_assert!(
                overtaken.is_none()
                    || reply.holds > 1
                    || overtaken.is_some_and(|(_, waiting)| waiting.owner == owner),
                "{:?} was granted before {:?}",
                id,
                overtaken
            );
        }
    }
    Ok(())
}

fn hold(owner: &[u8], exclusive: i64, shared: i64) -> Hold {
    Hold { owner: Owner::new(owner), exclusive, shared, expires_at: 10, token: None, renewed: false }
}

#[test]
fn a_hold_count_overflow_is_refused() {
    for (exclusive, shared) in [(i64::MAX, 0), (0, i64::MAX), (1, i64::MAX - 1)] {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let holders = Holders::from_holds(vec![hold(b"a", exclusive, shared)]).unwrap();
            assert_eq!(
                holders.admits(b"a", Wants { mode, once: false, limit: None }),
                holders::Admission::Overflow
            );
        }
    }
}

/// After a hand-over, the hold is remembered as long as the lock is. On a server whose keys may leave and
/// return without an event, it is remembered only while the lock has waiters.
#[test]
fn a_handed_over_hold_is_remembered() {
    for forgets in [false, true] {
        let mut locks = LockManager::default();
        if forgets {
            locks.forget_holds();
        }
        let now = Now { wall: 0, mono: 0 };
        let mut holders = Holders::from_holds(vec![hold(b"a", 1, 0)]).unwrap();
        let mut records = StoredRecords::default();
        let policy = WaitPolicy::Wait { deadline: None, at_most: None, on_primary: true };
        for owner in [1, 2] {
            let known = locks.look_up(at(b"k"));
            let request = Call { owner, lease: 10, ..Call::default() }.request();
            locks.acquire(open_lock(known, &mut holders, &mut records, now), &request, policy);
        }
        for (giver, remembers) in [(&b"a"[..], true), (OWNERS[1], !forgets)] {
            let known = locks.look_up(at(b"k"));
            let scope = ReleaseScope::One;
            let release = Release { owner: Owner::new(giver), scope, lease_ms: None, id: None, number: None };
            assert_eq!(locks.release(open_lock(known, &mut holders, &mut records, now), &release).0, Ok(0));
            let remembered = locks.plain_hold(locks.look_up(at(b"k")));
            assert_eq!(remembered.is_some(), remembers, "after {}", giver.escape_ascii());
            locks.verify();
        }
    }
}

#[test]
fn newcomers_rely_on_a_recent_read() {
    let at_ms = |ms: i64| Now { wall: ms, mono: ms.unsigned_abs() * 1000 };
    let waits = WaitPolicy::Wait { deadline: None, at_most: Some(5), on_primary: true };
    let call = |owner| Call { owner, lease: 10_000, ..Call::default() }.request();
    let with_id = |owner, id| Call { owner, lease: 10_000, id: Some(id), ..Call::default() }.request();
    let granted_before = with_id(3, 1);
    let known_id = granted_before.id.as_ref().map(RequestId::id).expect("an id");
    let mut holders = Holders::Exclusive(Hold { expires_at: 1_000, ..hold(OWNERS[0], 1, 0) });
    let mut records = StoredRecords::default();
    let mut locks = LockManager::default();
    let known = |locks: &LockManager| locks.look_up(at(b"k"));
    let unseen = |locks: &mut LockManager, request: &Request, policy, ms| {
        let queued = locks.queue_fast(
            known(locks),
            request,
            policy,
            (false, |id: &RequestId| id.id() != known_id),
            at_ms(ms),
        );
        locks.verify();
        queued.map(|unseen| unseen.id)
    };
    assert_eq!(unseen(&mut locks, &call(1), waits, 0), None, "nothing is remembered about the lock");
    let mut looks = |locks: &mut LockManager, owner, ms| {
        let known = locks.look_up(at(b"k"));
        let (outcome, _) =
            locks.acquire(open_lock(known, &mut holders, &mut records, at_ms(ms)), &call(owner), waits);
        let Outcome::Queued(id) = outcome else { panic!("{outcome:?}") };
        locks.verify();
        id
    };
    let first = looks(&mut locks, 1, 0);
    let second = unseen(&mut locks, &call(2), waits, 99).expect("the request is known to wait");
    assert_eq!(locks.waiters_of(at(b"k")), [first, second]);
    // Such a request must open the key: the holder may re-enter, a call without `BLOCK` needs an answer, and
    // the queue may be full.
    assert_eq!(unseen(&mut locks, &call(0), waits, 99), None);
    assert_eq!(unseen(&mut locks, &call(3), WaitPolicy::NoWait, 99), None);
    let few = WaitPolicy::Wait { deadline: None, at_most: Some(2), on_primary: true };
    assert_eq!(unseen(&mut locks, &call(3), few, 99), None);
    let on_replica = WaitPolicy::Wait { deadline: None, at_most: None, on_primary: false };
    assert_eq!(unseen(&mut locks, &call(3), on_replica, 99), None);
    // A repeated call gets its reply again, or keeps its position.
    assert_eq!(unseen(&mut locks, &granted_before, waits, 99), None);
    let with_new_id = unseen(&mut locks, &with_id(3, 0), waits, 99).expect("the id is unknown");
    assert_eq!(unseen(&mut locks, &with_id(3, 0), waits, 99), None);
    assert!(locks.leave(with_new_id));
    // The last read of the key is too long ago.
    assert_eq!(unseen(&mut locks, &call(3), waits, 100), None);
    let third = looks(&mut locks, 3, 990);
    assert_eq!(locks.waiters_of(at(b"k")), [first, second, third]);
    assert_eq!(unseen(&mut locks, &call(2), waits, 1_000), None, "the lease has expired");
    locks.quarantine(Some(2_000_000), at_ms(991));
    assert_eq!(unseen(&mut locks, &call(2), waits, 991), None, "the lock may have a forgotten holder");
    locks.quarantine(None, at_ms(992));
    locks.key_changed(at(b"k"), KeyChange::Changed, at_ms(993));
    assert_eq!(unseen(&mut locks, &call(2), waits, 993), None, "a foreign write changed the key");
}

/// External clients wait for the end of a lease. The timer is late, and the server's clock is behind: it
/// shows the hold once more.
#[test]
fn leases_are_watched_until_the_server_ends_them() {
    let at_ms = |ms: i64| Now { wall: ms, mono: ms.unsigned_abs() * 1000 };
    let (mut locks, mut holders, mut records) =
        (LockManager::default(), Holders::Free, StoredRecords::default());
    let request = Call { owner: 0, lease: 100_000, ..Call::default() }.request();
    let known = locks.look_up(at(b"k"));
    locks.acquire(open_lock(known, &mut holders, &mut records, at_ms(0)), &request, WaitPolicy::NoWait);
    // The first pass finds the subscribers. The second pass schedules them to be forgotten at the end of the
    // lease.
    for _ in 0..2 {
        let renewal = Renewal {
            owner: Owner::new(OWNERS[0]),
            lease_ms: 1000,
            bind: None,
            client: None,
            number: None,
            from: None,
        };
        let (held, output) =
            locks.renew(open_lock(locks.look_up(at(b"k")), &mut holders, &mut records, at_ms(0)), &renewal);
        assert_eq!(held, Ok(1));
        locks.lease_shortened(at(b"k"), output, 1000);
        locks.verify();
    }
    let late = at_ms(1002);
    let ready = locks.tick(late, true);
    assert!(ready.is_some(), "the lock is opened");
    locks.reconcile(open_lock(locks.look_up(at(b"k")), &mut holders, &mut records, late));
    assert_eq!(holders.len(), 1, "the hold still exists");
    assert_eq!(locks.next_wakeup(late, true), Some(1), "the lock is opened again");
}

#[test]
fn simultaneous_ends_reconcile_each_lock_once() {
    let mut locks = LockManager::default();
    let now = Now { wall: 0, mono: 0 };
    let mut held = Holders::Exclusive(hold(b"a", 1, 0));
    for lock in 0..1000u32 {
        let request = Call { owner: 1, lease: 10, ..Call::default() }.request();
        let policy = WaitPolicy::Wait { deadline: None, at_most: None, on_primary: true };
        let key = lock.to_be_bytes();
        let known = locks.look_up(at(&key));
        locks.acquire(open_lock(known, &mut held, &mut StoredRecords::default(), now), &request, policy);
    }
    let later = Now { wall: 11, mono: 11_000 };
    let mut rounds = 0;
    let mut seen = BTreeSet::new();
    while locks.next_wakeup(later, true) == Some(0) || rounds == 0 {
        if let Some(lock) = locks.tick(later, true) {
            assert!(seen.insert(lock.key.to_vec()), "reconciled twice");
            let known = locks.look_up(lock.as_ref());
            locks.reconcile(open_lock(known, &mut Holders::Free, &mut StoredRecords::default(), later));
        }
        rounds += 1;
    }
    assert_eq!(seen.len(), 1000);
    assert_eq!(locks.take_decisions().len(), 1000);
}

/// In a quarantine, the lock is granted only to owners that are known to hold it.
#[test]
fn a_quarantine_grants_to_holders_only() {
    let mut locks = LockManager::default();
    let at_ms = |ms: u64| Now { wall: ms as i64, mono: ms * 1000 };
    let (mut free, mut held) = (Holders::Free, Holders::from_holds(vec![hold(OWNERS[0], 1, 0)]).unwrap());
    let mut records = StoredRecords::default();
    let waits = WaitPolicy::Wait { deadline: None, at_most: None, on_primary: true };
    let until = Some(100_000);
    let mut acquire = |locks: &mut LockManager, key, holders: &mut Holders, owner, policy, ms| {
        locks.quarantine(until, at_ms(ms));
        let request = Call { owner, lease: 1000, ..Call::default() }.request();
        let outcome = locks
            .acquire(open_lock(locks.look_up(at(key)), holders, &mut records, at_ms(ms)), &request, policy)
            .0;
        locks.verify();
        outcome
    };
    assert_eq!(acquire(&mut locks, b"k", &mut free, 1, WaitPolicy::NoWait, 0), Outcome::Quarantined);
    assert_eq!(
        acquire(&mut locks, b"h", &mut held, 1, WaitPolicy::NoWait, 0),
        Outcome::Busy,
        "the holder is known"
    );
    assert!(matches!(acquire(&mut locks, b"h", &mut held, 0, WaitPolicy::NoWait, 0), Outcome::Granted(_)));
    assert!(matches!(acquire(&mut locks, b"k", &mut free, 1, waits, 0), Outcome::Queued(_)));
    assert_eq!(acquire(&mut locks, b"k", &mut free, 2, WaitPolicy::NoWait, 99), Outcome::Quarantined);
    assert!(free.is_free() && locks.next_decision().is_none());
    assert_eq!(locks.next_wakeup(at_ms(40), true), Some(60), "the end of the quarantine");
    // The waiter comes first once the quarantine is over.
    assert_eq!(acquire(&mut locks, b"k", &mut free, 2, WaitPolicy::NoWait, 100), Outcome::Busy);
    assert!(matches!(locks.next_decision(), Some((_, Decision::Granted(_)))));
    assert_eq!(free.get(OWNERS[1]).map(Hold::total), Some(1));
}
