// SPDX-License-Identifier: MIT

//! Random and all short histories of sessions, through the core and through an obviously correct model.
//!
//! * [`model`]: sessions, locks and queues as plain lists.
//! * [`both`]: the core and the model, step by step.
//! * [`worlds`]: all short histories of small worlds.
//!
//! Rules such as R5 are those of `tests/protocol/README.md`. The model takes one thing from the core: the end
//! of a lease that the server renews. Its limits are checked instead.

mod both;
mod cases;
mod model;
mod worlds;

use proptest::prelude::*;

use super::histories;
use both::Both;

/// Number of locks, owners, sessions that are in use, and connections of readers.
const LOCK_COUNT: usize = 2;
const OWNER_COUNT: usize = 3;
const SLOT_COUNT: usize = 2;
const CONNECTION_COUNT: u64 = 2;

/// TTL and GRACE of sessions, in milliseconds.
const SETTINGS: [(i64, i64); 3] = [(12_000, 3_000), (9_000, 0), (6_500, 6_500)];

/// The number of an acquire, as an operation names it.
#[derive(Clone, Copy, Debug)]
struct Number {
    /// The session.
    slot: usize,
    /// The number, counted from the one below the session's `done`.
    from_done: u64,
    /// Whether the call names the key and the owner of the number's first call, if the session knows it.
    same_target: bool,
    renewed: bool,
    ephemeral: bool,
}

/// The events that a client acknowledges.
#[derive(Clone, Copy, Debug)]
enum Acknowledge {
    /// No further event.
    Nothing,
    /// This number of pending events.
    First(usize),
    All,
    /// A sequence number that no event has yet.
    Beyond,
}

/// How a plain release chooses the holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    One,
    Shared,
    All,
}

/// The kind of hold that an acquire wants.
#[derive(Clone, Copy, Debug)]
struct Want {
    lock: usize,
    owner: usize,
    shared: bool,
    lease: i64,
    /// Whether the call gives no lease.
    keeps: bool,
}

/// An operation.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// `LOCK.SESSION OPEN NEW`. An earlier session in this slot goes on without its client.
    Open {
        slot: usize,
        connection: u64,
        settings: usize,
    },
    /// `LOCK.SESSION OPEN id`.
    Resume {
        slot: usize,
        connection: u64,
        is_late: bool,
    },
    /// `LOCK.SESSION CLOSE`.
    Close {
        slot: usize,
    },
    /// `LOCK.EVENTS`. `done` is the distance by which it moves.
    Poll {
        slot: usize,
        connection: u64,
        is_late: bool,
        acknowledge: Acknowledge,
        done: u64,
    },
    /// `queue` is the time to wait; 0 is without limit. A call without a number blocks, and gets its grant at once.
    Acquire {
        want: Want,
        number: Option<Number>,
        queue: Option<i64>,
    },
    Release {
        lock: usize,
        owner: usize,
        scope: Scope,
        lease: Option<i64>,
    },
    ReleaseNumber {
        lock: usize,
        owner: usize,
        number: Number,
        lease: Option<i64>,
    },
    Cancel {
        lock: usize,
        owner: usize,
        number: Number,
    },
    Renew {
        lock: usize,
        owner: usize,
        number: Option<Number>,
        lease: i64,
    },
    Break {
        lock: usize,
    },
    /// A foreign client deletes the key.
    Delete {
        lock: usize,
    },
    /// A foreign client reduces a count.
    Reduce {
        lock: usize,
        owner: usize,
        shared: bool,
    },
    /// A foreign client deletes all keys.
    Flush,
    /// A connection closes.
    Disconnect {
        connection: u64,
    },
    Pause(bool),
    /// The server is a replica for a moment.
    Demote,
    Advance {
        ms: i64,
    },
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    NoSession,
    Late,
    OtherTarget,
    Done,
    Closed(usize),
    Granted(i64),
    Waits,
    Busy,
    Cancelled,
    /// The number no longer holds anything.
    Ended,
    NotOwner,
    Left(i64),
    Renewed(i64),
    Undone(bool),
    Broken(usize),
}

fn number() -> impl Strategy<Value = Number> {
    (0..SLOT_COUNT, 0..5u64, prop::bool::weighted(0.9), any::<bool>(), any::<bool>()).prop_map(
        |(slot, from_done, same_target, renewed, ephemeral)| Number {
            slot,
            from_done,
            same_target,
            renewed,
            ephemeral,
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let (lock, owner, slot) = (0..LOCK_COUNT, 0..OWNER_COUNT, 0..SLOT_COUNT);
    let connection = 0..CONNECTION_COUNT;
    let lease = || prop_oneof![Just(400), Just(4_000), Just(9_000), Just(20_000)];
    let queue =
        prop_oneof![2 => Just(None), 5 => Just(Some(0)), 1 => Just(Some(700)), 1 => Just(Some(5_500))];
    let want = (lock.clone(), owner.clone(), prop::bool::weighted(0.35), lease(), prop::bool::weighted(0.3))
        .prop_map(|(lock, owner, shared, lease, keeps)| Want { lock, owner, shared, lease, keeps });
    let acknowledge = prop_oneof![
        3 => Just(Acknowledge::Nothing),
        3 => (1..3usize).prop_map(Acknowledge::First),
        4 => Just(Acknowledge::All),
        1 => Just(Acknowledge::Beyond),
    ];
    let late = || prop::bool::weighted(0.1);
    let done = prop_oneof![4 => Just(0), 2 => Just(1), 1 => 2..4u64];
    let scope = prop_oneof![3 => Just(Scope::One), 2 => Just(Scope::Shared), 1 => Just(Scope::All)];
    let ms = prop_oneof![
        2 => Just(1),
        2 => 2..500i64,
        2 => Just(1_000),
        2 => Just(3_001),
        2 => Just(5_001),
        1 => Just(6_501),
    ];
    prop_oneof![
        3 => (slot.clone(), connection.clone(), 0..SETTINGS.len())
            .prop_map(|(slot, connection, settings)| Op::Open { slot, connection, settings }),
        1 => (slot.clone(), connection.clone(), late())
            .prop_map(|(slot, connection, is_late)| Op::Resume { slot, connection, is_late }),
        1 => slot.clone().prop_map(|slot| Op::Close { slot }),
        9 => (slot, connection.clone(), late(), acknowledge, done).prop_map(
            |(slot, connection, is_late, acknowledge, done)| Op::Poll { slot, connection, is_late, acknowledge, done }
        ),
        14 => (want, prop::option::weighted(0.75, number()), queue)
            .prop_map(|(want, number, queue)| Op::Acquire { want, number, queue }),
        3 => (lock.clone(), owner.clone(), scope, prop::option::weighted(0.3, lease()))
            .prop_map(|(lock, owner, scope, lease)| Op::Release { lock, owner, scope, lease }),
        6 => (lock.clone(), owner.clone(), number(), prop::option::weighted(0.3, lease()))
            .prop_map(|(lock, owner, number, lease)| Op::ReleaseNumber { lock, owner, number, lease }),
        3 => (lock.clone(), owner.clone(), number())
            .prop_map(|(lock, owner, number)| Op::Cancel { lock, owner, number }),
        4 => (lock.clone(), owner.clone(), prop::option::weighted(0.8, number()), lease())
            .prop_map(|(lock, owner, number, lease)| Op::Renew { lock, owner, number, lease }),
        1 => lock.clone().prop_map(|lock| Op::Break { lock }),
        1 => lock.clone().prop_map(|lock| Op::Delete { lock }),
        2 => (lock, owner, any::<bool>()).prop_map(|(lock, owner, shared)| Op::Reduce { lock, owner, shared }),
        1 => Just(Op::Flush),
        1 => connection.prop_map(|connection| Op::Disconnect { connection }),
        1 => any::<bool>().prop_map(Op::Pause),
        1 => Just(Op::Demote),
        8 => ms.prop_map(|ms| Op::Advance { ms }),
    ]
}

/// Mostly waits with long leases, and clients that are silent for long, so that sessions become suspect.
fn stalled() -> impl Strategy<Value = Op> {
    let (lock, owner, slot) = (0..LOCK_COUNT, 0..OWNER_COUNT, 0..SLOT_COUNT);
    let queue = prop_oneof![1 => Just(None), 6 => Just(Some(0)), 1 => Just(Some(6_000))];
    let want = (lock.clone(), owner.clone(), prop::bool::weighted(0.4))
        .prop_map(|(lock, owner, shared)| Want { lock, owner, shared, lease: 20_000, keeps: false });
    let acknowledge = prop_oneof![Just(Acknowledge::Nothing), Just(Acknowledge::All)];
    let ms = prop_oneof![Just(1), Just(2_500), Just(5_001)];
    prop_oneof![
        1 => slot.clone().prop_map(|slot| Op::Open { slot, connection: 0, settings: 0 }),
        4 => (slot, acknowledge).prop_map(|(slot, acknowledge)| Op::Poll {
            slot,
            connection: 0,
            is_late: false,
            acknowledge,
            done: 0
        }),
        10 => (want, prop::option::weighted(0.7, number()), queue)
            .prop_map(|(want, number, queue)| Op::Acquire { want, number, queue }),
        4 => (lock.clone(), owner.clone())
            .prop_map(|(lock, owner)| Op::Release { lock, owner, scope: Scope::All, lease: None }),
        2 => (lock.clone(), owner.clone(), number())
            .prop_map(|(lock, owner, number)| Op::ReleaseNumber { lock, owner, number, lease: None }),
        1 => (lock.clone(), owner, number()).prop_map(|(lock, owner, number)| Op::Cancel { lock, owner, number }),
        2 => lock.prop_map(|lock| Op::Delete { lock }),
        4 => ms.prop_map(|ms| Op::Advance { ms }),
    ]
}

fn compare(ops: &[Op], notifies_owners: bool) -> Result<(), TestCaseError> {
    let mut both = Both::new(notifies_owners);
    for op in ops {
        both.step(op)?;
    }
    both.end()
}

proptest! {
    #![proptest_config(histories(3_000))]

    /// Every reply, every event and every stored hold matches the model.
    #[test]
    fn sessions_are_the_model(ops in prop::collection::vec(op(), 1..80), notifies_owners in any::<bool>()) {
        compare(&ops, notifies_owners)?;
    }

    /// The comparison of `sessions_are_the_model`, with sessions that become suspect.
    #[test]
    fn stalled_sessions_are_the_model(
        ops in prop::collection::vec(stalled(), 1..60),
        notifies_owners in any::<bool>(),
    ) {
        // The sessions exist from the start.
        let open = |slot| Op::Open { slot, connection: 0, settings: 0 };
        let ops: Vec<Op> = (0..SLOT_COUNT).map(open).chain(ops).collect();
        compare(&ops, notifies_owners)?;
    }
}

proptest! {
    #![proptest_config(histories(15_000))]

    /// The comparison of `sessions_are_the_model`, for rarer combinations.
    #[test]
    fn weekly_sessions_are_the_model(ops in prop::collection::vec(op(), 1..120), notifies_owners in any::<bool>()) {
        compare(&ops, notifies_owners)?;
    }
}
