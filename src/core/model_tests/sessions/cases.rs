// SPDX-License-Identifier: MIT

//! Histories that are too rare for the random ones.

use super::*;

fn number(slot: usize, n: u64) -> Number {
    Number { slot, from_done: n + 1, same_target: true, renewed: false, ephemeral: true }
}

fn want(lock: usize, owner: usize, shared: bool) -> Want {
    Want { lock, owner, shared, lease: 20_000, keeps: false }
}

fn acquire(want: Want, number: Option<Number>) -> Op {
    Op::Acquire { want, number, queue: Some(0) }
}

/// A wait of a session that becomes suspect no longer blocks the reader behind it at another lock.
#[test]
fn suspect_waits_are_passed_over_at_once() {
    let release = Op::Release { lock: 0, owner: 2, scope: Scope::One, lease: None };
    let history = [
        Op::Open { slot: 0, connection: 0, settings: 0 },
        acquire(want(0, 2, false), None),
        acquire(want(0, 0, false), Some(number(0, 0))),
        acquire(want(1, 2, true), None),
        acquire(want(1, 0, false), Some(number(0, 1))),
        acquire(want(1, 1, true), None),
        release,
        Op::Advance { ms: 5_001 },
    ];
    compare(&history, false).unwrap();
}

/// A wait that was passed over returns to its place, although its lock was free in between.
#[test]
fn a_suspect_wait_survives_a_free_lock() {
    let history = [
        Op::Open { slot: 0, connection: 0, settings: 0 },
        acquire(want(0, 2, false), None),
        acquire(want(0, 0, false), Some(number(0, 0))),
        acquire(want(1, 2, false), None),
        acquire(want(1, 0, false), Some(number(0, 1))),
        Op::Delete { lock: 0 },
        Op::Advance { ms: 5_001 },
        Op::Delete { lock: 1 },
        Op::Advance { ms: 1 },
        acquire(want(1, 1, false), None),
        Op::Poll { slot: 0, connection: 0, is_late: false, acknowledge: Acknowledge::All, done: 0 },
        Op::Release { lock: 1, owner: 1, scope: Scope::One, lease: None },
        Op::Poll { slot: 0, connection: 0, is_late: false, acknowledge: Acknowledge::All, done: 0 },
    ];
    compare(&history, true).unwrap();
}

/// The renewals of a short lease do not rely on the longer lease of a grant that is revoked.
#[test]
fn renewals_ignore_grants_in_flight() {
    let short = Want { lease: 400, keeps: true, ..want(0, 0, false) };
    let renewed = Number { renewed: true, ..number(1, 0) };
    let history = [
        Op::Open { slot: 0, connection: 0, settings: 0 },
        Op::Open { slot: 1, connection: 0, settings: 0 },
        acquire(want(0, 2, false), None),
        acquire(want(0, 0, false), Some(number(0, 0))),
        Op::Delete { lock: 0 },
        acquire(short, Some(renewed)),
        Op::Advance { ms: 5_001 },
    ];
    compare(&history, false).unwrap();
}

/// A wait that was passed over goes ahead if its owner has got the lock in between.
#[test]
fn suspect_waits_of_holders_go_ahead() {
    let poll =
        |slot| Op::Poll { slot, connection: 0, is_late: false, acknowledge: Acknowledge::All, done: 0 };
    let history = [
        Op::Open { slot: 0, connection: 0, settings: 0 },
        Op::Open { slot: 1, connection: 0, settings: 0 },
        acquire(want(0, 2, false), None),
        acquire(want(0, 0, true), Some(number(0, 0))),
        acquire(want(0, 1, true), Some(number(1, 0))),
        acquire(want(1, 2, false), None),
        acquire(want(1, 1, false), Some(number(1, 1))),
        acquire(want(1, 0, false), Some(number(0, 1))),
        Op::Delete { lock: 0 },
        Op::Advance { ms: 5_001 },
        Op::Release { lock: 1, owner: 2, scope: Scope::One, lease: None },
        acquire(want(1, 0, false), None),
        poll(1),
        poll(0),
    ];
    compare(&history, false).unwrap();
}
