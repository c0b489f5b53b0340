// SPDX-License-Identifier: MIT

//! Large amounts of due work at one lock, done in portions. A call between two portions finds its own due
//! work done. Other owners' pending work gives it nothing (1, 2, 5, 7).

use super::side_by_side::MANY;
use super::*;

/// A server after two lists of operations. The timer has not fired since the second one. `portion` limits the
/// work done at once.
fn after(before: &[Op], due: &[Op], portion: usize) -> Real {
    let mut real = Real::new(true);
    for op in before {
        happens(&mut real, op);
        real.fire();
    }
    real.locks.do_at_once(portion);
    real.timer = false;
    due.iter().for_each(|op| happens(&mut real, op));
    real
}

fn happens(real: &mut Real, op: &Op) {
    match *op {
        Op::Pause(_) => {}
        Op::Away { foreign_write } => real.demote_and_promote(foreign_write),
        Op::Advance { ms } if real.timer => real.advance(ms),
        Op::Advance { ms } => real.now += ms,
        Op::Close { connection } => {
            real.locks.connection_closed(ConnectionId(connection), real.time());
            // A call may come before its own connection has closed. That case is not compared.
            real.locks.close_all(real.time());
        }
        Op::Leave { which } => {
            let waiting: Vec<WaiterId> = LOCKS.iter().flat_map(|key| real.waiting(key)).collect();
            if let Some(id) = waiting.get(which % waiting.len().max(1)) {
                real.locks.leave(*id);
            }
        }
        Op::Deliver { which, arrives } => {
            let in_flight: Vec<WaiterId> = real.locks.in_flight().into_iter().collect();
            let Some(id) = in_flight.get(which % in_flight.len().max(1)) else { return };
            if real.locks.connection_of(*id).is_some() {
                real.locks.message_had_no_subscriber(*id);
            } else if arrives {
                real.locks.delivered(*id, real.time());
            } else {
                real.locks.undelivered(*id);
            }
        }
        _ => {
            real.step(op);
        }
    }
}

/// Operations that end many holds at once.
fn end_of_many() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..3u64).prop_map(|connection| Op::Close { connection }),
        3 => (0..8usize).prop_map(|which| Op::Deliver { which, arrives: false }),
        1 => (1..4i64).prop_map(|ms| Op::Advance { ms }),
    ]
}

/// Mostly readers of one lock, with `NOTIFY` or with bindings.
fn readers() -> impl Strategy<Value = Op> {
    let bind = prop_oneof![Just((true, false)), Just((false, true)), Just((true, true))];
    let bind = prop::option::weighted(0.6, (0..3u64, bind));
    let bind = bind.prop_map(|bind| bind.map(|(connection, (watch, ends))| (connection, watch, ends)));
    let notify = prop::option::weighted(0.5, (0..3u64, 5..30i64));
    let call = (0..OWNERS.len(), prop::bool::weighted(0.8), 10..60i64, 0..2u8, bind, notify);
    let acquire = (0..2usize, call).prop_map(|(lock, (owner, shared, lease, id, bind, notify))| {
        let call = Call { owner, shared, lease, id: Some(id), bind, notify, ..Call::default() };
        Op::Acquire { lock, call, block: Some(0) }
    });
    prop_oneof![4 => acquire, 1 => op()]
}

/// Holders of a lock and their counts. Leases may differ, because a watchdog renews leases due soon whenever
/// the timer fires.
fn counts(real: &Real, key: &[u8]) -> Vec<(Owner, i64, i64)> {
    let holders = visible(real, key);
    let holds = holders.iter().flat_map(Holders::iter);
    holds.map(|hold| (hold.owner.clone(), hold.exclusive, hold.shared)).collect()
}

/// A call of one owner about its own holds.
fn about_its_own() -> impl Strategy<Value = Op> {
    let (lock, owner, id) = (0..2usize, 0..OWNERS.len(), 0..2u8);
    let scope = prop_oneof![Just(ReleaseScope::One), Just(ReleaseScope::All)];
    prop_oneof![
        (lock.clone(), owner.clone(), scope)
            .prop_map(|(lock, owner, scope)| { Op::Release { lock, owner, scope, lease: None, id: None } }),
        (lock.clone(), owner.clone())
            .prop_map(|(lock, owner)| { Op::Renew { lock, owner, lease: 50, bind: None, max: None } }),
        (lock.clone(), owner.clone(), id.clone()).prop_map(|(lock, owner, id)| Op::Cancel {
            lock,
            owner,
            id
        }),
        (lock, owner, id, any::<bool>()).prop_map(|(lock, owner, id, shared)| {
            let call = Call { owner, shared, lease: 40, id: Some(id), ..Call::default() };
            Op::Acquire { lock, call, block: None }
        }),
    ]
}

fn acquire(owner: usize, shared: bool) -> Op {
    let call = Call { owner, shared, lease: 1_000, ..Call::default() };
    Op::Acquire { lock: 0, call, block: Some(0) }
}

/// `LOCK.BREAK` ends all holds in its own step, also those that only a later portion would have revoked.
#[test]
fn break_serves_the_queue_in_its_step() {
    let before = [acquire(0, false), acquire(1, true), acquire(2, true), acquire(3, false)];
    let release = Op::Release { lock: 0, owner: 0, scope: ReleaseScope::All, lease: None, id: None };
    let gone = Op::Deliver { which: 0, arrives: false };
    let mut real = after(&[&before[..], &[release]].concat(), &[gone.clone(), gone], 1);
    assert_eq!(counts(&real, LOCKS[0]).len(), 2, "both readers hold the lock until they are revoked");
    happens(&mut real, &Op::Break { lock: 0 });
    assert!(real.waiting(LOCKS[0]).is_empty());
    assert_eq!(counts(&real, LOCKS[0]), [(Owner::new(OWNERS[3]), 1, 0)]);
}

proptest! {
    #![proptest_config(histories(20_000))]

    /// A caller gets the same reply as if all due work had been done at once. A new request may have to wait
    /// a little longer.
    #[test]
    fn callers_find_their_own_work_done(
        before in prop::collection::vec(readers(), 1..40),
        due in prop::collection::vec(end_of_many(), 1..5),
        call in about_its_own(),
    ) {
        let mut at_once = after(&before, &due, MANY);
        let mut in_portions = after(&before, &due, 1);
        let (expected, seen) = (at_once.step(&call), in_portions.step(&call));
        let differs = match (&seen, &expected) {
            (Some(Seen::Busy | Seen::Waits(_)), Some(Seen::Granted(_))) => true,
            // Holds that are about to end exclude the owner already, without the quarantine.
            (Some(Seen::Busy), Some(Seen::Quarantined)) => true,
            // The first served owner is alone until the next portion, and may re-enter.
            (Some(Seen::Granted(reply)), Some(Seen::Busy)) => reply.mode == Mode::Exclusive && reply.holds > 1,
            // The owner's other waits may not be served yet.
            (Some(Seen::Granted(_)), Some(Seen::Granted(_))) => true,
            _ => false,
        };
        prop_assert!(seen == expected || differs, "{:?} and not {:?}", seen, expected);
        for real in [&mut at_once, &mut in_portions] {
            real.timer = true;
            // An expired lease is noticed a millisecond later, or when the timer fires for another reason.
            real.tick();
            real.fire();
        }
        // An acquire may run before a pending wait of the same owner is served.
        let ends_alike = !matches!(call, Op::Acquire { .. });
        for key in LOCKS.into_iter().filter(|_| ends_alike) {
            prop_assert_eq!(counts(&in_portions, key), counts(&at_once, key));
            prop_assert_eq!(in_portions.waiting(key), at_once.waiting(key));
        }
    }
}
