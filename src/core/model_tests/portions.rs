// SPDX-License-Identifier: MIT

//! Large amounts of due work at one lock, done in portions. A call between two portions finds its own due
//! work done. It gains nothing from other owners' pending work (1, 2, 5, 7).

use super::side_by_side::MANY;
use super::*;

/// A server after two lists of operations. The timer has not fired since the second list. `portion` limits
/// the work of one step.
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
            // A call may arrive before its own connection has been ended. That case is not compared.
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
            if arrives {
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
        1 => (0..2usize).prop_map(|lock| Op::Delete { lock }),
    ]
}

/// Mostly readers of one lock, with bindings.
fn readers() -> impl Strategy<Value = Op> {
    let bind = prop_oneof![Just((true, false)), Just((false, true)), Just((true, true))];
    let bind = prop::option::weighted(0.6, (0..3u64, bind));
    let bind = bind.prop_map(|bind| bind.map(|(connection, (watch, ends))| (connection, watch, ends)));
    let call = (0..OWNERS.len(), prop::bool::weighted(0.8), 10..60i64, 0..2u8, bind);
    let acquire = (0..2usize, call).prop_map(|(lock, (owner, shared, lease, id, bind))| {
        let call = Call { owner, shared, lease, id: Some(id), bind, ..Call::default() };
        Op::Acquire { lock, call, block: Some(0) }
    });
    prop_oneof![4 => acquire, 1 => op()]
}

/// Holders of a lock and their counts. Leases are left out, because a watchdog renews leases due soon
/// whenever the timer fires.
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

/// `LOCK.BREAK` ends all holds in its own step, including those that only a later portion would have revoked.
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

/// A shared request that waits for lock 0, with a request id.
fn wait(owner: usize, id: u8) -> Op {
    wait_for_lease(owner, id, 1_000)
}

fn wait_for_lease(owner: usize, id: u8, lease: i64) -> Op {
    let call = Call { owner, shared: true, lease, id: Some(id), ..Call::default() };
    Op::Acquire { lock: 0, call, block: Some(0) }
}

fn release_all(owner: usize) -> Op {
    Op::Release { lock: 0, owner, scope: ReleaseScope::All, lease: None, id: None }
}

/// Number of grants that are not confirmed, revoked or voided.
fn grants(real: &Real) -> usize {
    real.locks.tables().find(|(table, _)| *table == c"table_grants_in_flight").unwrap().1
}

/// Holds that end together by a foreign write, by `LOCK.BREAK` or with their leases are voided in portions.
#[test]
fn no_step_voids_more_than_a_few_portions() {
    const PORTION: usize = 4;
    const IDS: u8 = 100;
    let waits = (0..IDS).flat_map(|id| (1..4).map(move |owner| wait_for_lease(owner, id, 20)));
    // One lease is longer, so that the key outlives the other grants. A waiter makes the timer open the lock.
    let last = [wait(4, 0), release_all(0), acquire(0, false)];
    let before: Vec<Op> = [acquire(0, false)].into_iter().chain(waits).chain(last).collect();
    for due in [Op::Delete { lock: 0 }, Op::Break { lock: 0 }, Op::Advance { ms: 30 }] {
        let mut real = after(&before, &[], PORTION);
        let mut left = grants(&real);
        assert_eq!(left, 3 * usize::from(IDS) + 1);
        real.timer = false;
        happens(&mut real, &due);
        for _ in 0..1_000 {
            let before = std::mem::replace(&mut left, grants(&real));
            assert!(before - left <= 4 * PORTION, "{due:?}: one step ends {} grants", before - left);
            real.tick();
        }
        assert!(left <= 1, "{due:?}: {left} grants are left");
    }
}

/// A request whose grant is about to be revoked counts as never made.
#[test]
fn cancel_after_a_pending_revocation_releases_nothing() {
    let before = [
        acquire(0, false),
        wait(1, 0),
        wait(2, 0),
        wait(2, 1),
        release_all(0),
        Op::Deliver { which: 2, arrives: true },
    ];
    let gone = Op::Deliver { which: 0, arrives: false };
    for portion in [1, MANY] {
        let mut real = after(&before, &[gone.clone(), gone.clone()], portion);
        let cancel = Op::Cancel { lock: 0, owner: 2, id: 0 };
        assert_eq!(real.step(&cancel), Some(Seen::Cancelled(false)), "portion {portion}");
        real.fire();
        assert_eq!(counts(&real, LOCKS[0]), [(Owner::new(OWNERS[2]), 0, 1)], "portion {portion}");
    }
}

/// A request whose grant did not reach its client counts as never made, even if the key is deleted before the
/// grant is revoked.
#[test]
fn deletion_before_a_revocation_forgets_the_reply() {
    let before = [acquire(0, false), wait(1, 0), release_all(0)];
    let due = [Op::Deliver { which: 0, arrives: false }, Op::Delete { lock: 0 }, acquire(2, false)];
    let call = Call { owner: 1, shared: true, lease: 1_000, id: Some(0), ..Call::default() };
    let again = Op::Acquire { lock: 0, call, block: None };
    for portion in [1, MANY] {
        let mut real = after(&before, &due, portion);
        assert_eq!(counts(&real, LOCKS[0]), [(Owner::new(OWNERS[2]), 1, 0)], "portion {portion}");
        assert_eq!(real.step(&again), Some(Seen::Busy), "portion {portion}");
    }
}

/// A call finds its own hold ended once the hold's connection has closed, even if thousands of holds end with it.
#[test]
fn closed_connection_ends_holds_before_their_calls() {
    let holds = (0..LOCKS.len()).flat_map(|lock| (0..OWNERS.len()).map(move |owner| (lock, owner)));
    let bound = |(lock, owner)| {
        let bind = Some((7, false, true));
        let call = Call { owner, shared: true, lease: 1_000, bind, ..Call::default() };
        Op::Acquire { lock, call, block: None }
    };
    let before: Vec<Op> = holds.clone().map(bound).collect();
    for (lock, owner) in holds {
        let mut real = after(&before, &[], 1);
        real.locks.connection_closed(ConnectionId(7), real.time());
        let release = Op::Release { lock, owner, scope: ReleaseScope::One, lease: None, id: None };
        assert_eq!(real.step(&release), Some(Seen::NotOwner), "owner {owner} of lock {lock}");
    }
}

/// A closing connection leaves a hold alone if only an earlier hold of its owner depended on it. No step has
/// noticed the end of the earlier lease yet.
#[test]
fn earlier_binding_does_not_end_the_next_hold() {
    let bound = |owner, lease, connection| {
        let bind = Some((connection, false, true));
        let call = Call { owner, shared: true, lease, bind, ..Call::default() };
        Op::Acquire { lock: 0, call, block: Some(0) }
    };
    let arrives = Op::Deliver { which: 0, arrives: true };
    let before = [
        acquire(0, false),
        bound(1, 20, 7),
        bound(2, 1_000, 8),
        release_all(0),
        arrives.clone(),
        arrives,
        acquire(1, false),
    ];
    for portion in [1, MANY] {
        let mut real = after(&before, &[], portion);
        assert_eq!(real.waiting(LOCKS[0]).len(), 1, "portion {portion}: the upgrade waits");
        real.now += 30;
        // This call of another owner serves the queue.
        happens(&mut real, &release_all(2));
        assert_eq!(counts(&real, LOCKS[0]), [(Owner::new(OWNERS[1]), 1, 0)], "portion {portion}");
        real.locks.connection_closed(ConnectionId(7), real.time());
        real.fire();
        assert_eq!(counts(&real, LOCKS[0]), [(Owner::new(OWNERS[1]), 1, 0)], "portion {portion}");
    }
}

/// A grant in flight at a demotion stays, because only the next primary may revoke it.
#[test]
fn demotion_leaves_grants_in_flight_alone() {
    let before = [acquire(0, false), acquire(1, true), acquire(2, true), release_all(0)];
    for portion in [1, MANY] {
        let mut real = after(&before, &[], portion);
        let in_flight = real.locks.in_flight();
        real.demote_and_promote(None);
        in_flight.into_iter().for_each(|id| real.locks.undelivered(id));
        real.fire();
        let holds = [1, 2].map(|owner| (Owner::new(OWNERS[owner]), 0, 1));
        assert_eq!(counts(&real, LOCKS[0]), holds, "portion {portion}");
    }
}

/// Records of marked grants whose holds ended before a demotion are not deleted after it. The other primary may have
/// granted the requests again.
#[test]
fn demotion_keeps_the_records_of_ended_grants() {
    let before = [acquire(0, false), wait(1, 0), wait(2, 0), release_all(0)];
    for portion in [1, MANY] {
        let mut real = after(&before, &[], portion);
        let of_other_primary = real.keys[LOCKS[0]].clone();
        let gone = Op::Deliver { which: 0, arrives: false };
        [gone.clone(), gone].iter().for_each(|gone| happens(&mut real, gone));
        happens(&mut real, &Op::Delete { lock: 0 });
        real.locks.demote();
        real.keys.insert(LOCKS[0], of_other_primary);
        real.locks.promote();
        real.fire();
        for owner in [1, 2] {
            let again = real.step(&wait(owner, 0));
            assert!(
                matches!(&again, Some(Seen::Granted(reply)) if reply.holds == 1),
                "portion {portion}: {again:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(histories(20_000))]

    /// A caller gets the same reply as if all due work had been done at once. Only a new request may have to
    /// wait slightly longer.
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
            // Holds that are about to end still exclude the owner, even without the quarantine.
            (Some(Seen::Busy), Some(Seen::Quarantined)) => true,
            // The first owner to be served is alone until the next portion, and so may re-enter.
            (Some(Seen::Granted(reply)), Some(Seen::Busy)) => reply.mode == Mode::Exclusive && reply.holds > 1,
            // The owner's other waits may not be served yet.
            (Some(Seen::Granted(_)), Some(Seen::Granted(_))) => true,
            _ => false,
        };
        prop_assert!(seen == expected || differs, "{:?} and not {:?}", seen, expected);
        for real in [&mut at_once, &mut in_portions] {
            real.timer = true;
            // An expired lease is noticed a millisecond later, or earlier if the timer fires for another
            // reason.
            real.tick();
            real.fire();
        }
        // An acquire may run before a pending wait of the same owner has been served.
        let ends_alike = !matches!(call, Op::Acquire { .. });
        for key in LOCKS.into_iter().filter(|_| ends_alike) {
            prop_assert_eq!(counts(&in_portions, key), counts(&at_once, key));
            prop_assert_eq!(in_portions.waiting(key), at_once.waiting(key));
        }
    }
}
