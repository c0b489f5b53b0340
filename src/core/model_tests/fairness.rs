// SPDX-License-Identifier: MIT

//! External clients get their fairness windows, at no cost to native clients (3).

use super::*;

const KEY: &[u8] = LOCKS[0];

fn call(owner: usize) -> Call {
    Call { owner, lease: 1_000_000, ..Call::default() }
}

/// Native owners that acquire the lock again right after each release, and an external client. Some time
/// after each announcement, the external client takes the lock if it is still free.
struct Contention {
    real: Real,
    holder: Option<usize>,
    /// Duration of each hold in milliseconds.
    work: i64,
    /// Time from the message to the external client's attempt, in milliseconds; `None` if it never comes.
    reaction: Option<i64>,
    comes_at: Option<i64>,
    seen: usize,
    /// Number of native grants, and number of times that the external client took the lock.
    native: usize,
    external: usize,
    /// Whether the external client held the lock last.
    external_was_last: bool,
    /// Total time in which the lock was free, and the longest single period, in milliseconds.
    free: i64,
    longest_free: i64,
}

impl Contention {
    fn new(natives: usize, work: i64, reaction: Option<i64>) -> Contention {
        let mut contention = Contention {
            real: Real::with_subscribers(true),
            holder: None,
            work,
            reaction,
            comes_at: None,
            seen: 0,
            native: 0,
            external: 0,
            external_was_last: false,
            free: 0,
            longest_free: 0,
        };
        (0..natives).for_each(|owner| contention.ask(owner));
        contention
    }

    fn ask(&mut self, owner: usize) {
        match self.real.step(&Op::Acquire { lock: 0, call: call(owner), block: Some(0) }).unwrap() {
            Seen::Granted(_) => self.granted(owner),
            Seen::Waits(_) => {}
            other => panic!("{other:?}"),
        }
    }

    fn granted(&mut self, owner: usize) {
        self.native += 1;
        self.external_was_last = false;
        assert_eq!(self.holder.replace(owner), None);
    }

    fn take_decisions(&mut self) {
        for (id, decision) in std::mem::take(&mut self.real.decisions) {
            assert!(matches!(decision, Decision::Granted(_)), "{decision:?}");
            self.real.locks.delivered(id, self.real.time());
            let Some(Stored::Lock(Holders::Exclusive(hold))) = self.real.keys.get(KEY) else { panic!() };
            let owner = OWNERS.iter().position(|name| *name == hold.owner.as_bytes()).unwrap();
            self.granted(owner);
        }
    }

    fn advance(&mut self, ms: i64) {
        for _ in 0..ms {
            self.real.advance(1);
            self.take_decisions();
        }
    }

    /// Plays one hold, native or external, with the preceding events.
    fn round(&mut self) {
        let mut free = 0;
        while self.holder.is_none() {
            if let Some(reaction) = self.reaction {
                if self.real.messages.len() > self.seen {
                    self.comes_at = Some(self.real.now + reaction);
                }
            }
            self.seen = self.real.messages.len();
            if self.comes_at.is_some_and(|at| at <= self.real.now) {
                self.comes_at = None;
                if self.real.take(KEY, 1_000_000) {
                    self.real.fire();
                    self.external += 1;
                    let before = std::mem::replace(&mut self.external_was_last, true);
                    assert!(!before, "two grants in a row to the external client despite native waiters");
                    self.advance(self.work);
                    // Its own release publishes too, but a native client is faster.
                    self.real.step(&Op::Delete { lock: 0 });
                    self.take_decisions();
                    continue;
                }
            }
            self.advance(1);
            free += 1;
            assert!(free < 1000, "the lock is not granted");
        }
        self.free += free;
        self.longest_free = self.longest_free.max(free);
        self.advance(self.work);
        let owner = self.holder.take().unwrap();
        self.real.step(&Op::Release { lock: 0, owner, scope: ReleaseScope::One, lease: None, id: None });
        self.take_decisions();
        self.ask(owner);
    }

    fn run(mut self, rounds: usize) -> Contention {
        (0..rounds).for_each(|_| self.round());
        let windows = self.real.locks.fairness_windows();
        assert!(windows.1 <= self.external && windows.1 <= windows.0);
        self
    }
}

#[test]
fn both_sides_get_at_least_a_tenth() {
    for natives in [1, 2, 4] {
        for work in [0, 1, 50] {
            for reaction in [0, 1, 2, 5, 10] {
                let seen = Contention::new(natives, work, Some(reaction)).run(2000);
                let share = 100 * seen.external / (seen.native + seen.external);
                assert!(
                    (10..=50).contains(&share),
                    "{share} % for the external client with {natives} native, work of {work} ms, reaction in {reaction} ms"
                );
            }
        }
    }
}

#[test]
fn an_idle_subscriber_costs_little() {
    for natives in [1, 4] {
        for work in [1, 10] {
            let rounds = usize::try_from(100_000 / work).unwrap();
            let seen = Contention::new(natives, work, None).run(rounds);
            assert!(seen.longest_free <= 33, "free for {} ms", seen.longest_free);
            assert!(seen.free < 2_000, "free for {} of 100,000 ms", seen.free);
        }
    }
}

#[test]
fn without_subscribers_no_window_opens() {
    let mut contention = Contention::new(4, 1, None);
    contention.real.listeners = false;
    let seen = contention.run(500);
    assert_eq!((seen.free, seen.real.locks.fairness_windows()), (0, (0, 0)));
    assert!(seen.real.messages.is_empty());
}

/// A window is announced, whether a lease has ended or the key was deleted.
#[test]
fn expiry_and_deletion_announce_a_window() {
    for deleted in [false, true] {
        let mut real = Real::with_subscribers(true);
        for _ in 0..40 {
            let [call, other] = [0, 1].map(|owner| Call { lease: 10, ..call(owner) });
            real.step(&Op::Acquire { lock: 0, call, block: Some(0) });
            real.step(&Op::Acquire { lock: 0, call: other, block: Some(0) });
            match deleted {
                true => drop(real.step(&Op::Delete { lock: 0 })),
                false => real.advance(11),
            }
            for (id, _) in std::mem::take(&mut real.decisions) {
                real.locks.delivered(id, real.time());
            }
            if real.locks.is_left_free(at(KEY), real.time()) {
                break;
            }
            assert!(real.messages.is_empty());
        }
        assert_eq!(real.messages, [KEY], "deleted: {deleted}");
    }
}

/// A lock after a long run of native grants. A window opens the next time that the lock is freed.
fn with_a_window_due() -> Real {
    let mut real = Real::with_subscribers(true);
    for _ in 0..20 {
        real.step(&Op::Acquire { lock: 0, call: call(0), block: None });
        if real.locks.fairness_windows().0 > 0 {
            break;
        }
        real.step(&Op::Release { lock: 0, owner: 0, scope: ReleaseScope::One, lease: None, id: None });
    }
    real.advance(5);
    real.messages.clear();
    real
}

#[test]
fn a_free_lock_is_announced_once() {
    let mut real = with_a_window_due();
    real.step(&Op::Release { lock: 0, owner: 0, scope: ReleaseScope::One, lease: None, id: None });
    assert_eq!(real.messages, [KEY]);
    real.advance(10);
    // The window is over.
    let seen = real.step(&Op::Acquire { lock: 0, call: call(0), block: Some(0) });
    assert!(matches!(seen, Some(Seen::Granted(_))), "{seen:?}");
    assert_eq!(real.messages, [KEY]);
}

/// A call finds the free lock before the timer does.
#[test]
fn a_call_announces_its_window_once() {
    let mut real = with_a_window_due();
    real.step(&Op::Acquire { lock: 0, call: Call { lease: 10, ..call(0) }, block: None });
    real.step(&Op::Acquire { lock: 0, call: call(1), block: Some(0) });
    real.now += 11;
    let seen = real.step(&Op::Acquire { lock: 0, call: call(2), block: Some(0) });
    assert!(matches!(seen, Some(Seen::Waits(_))), "{seen:?}");
    assert_eq!(real.messages, [KEY]);
    real.advance(50);
    assert_eq!((real.messages.len(), real.decisions.len()), (1, 1));
}

/// The history is forgotten while the external client holds the lock, and no deadline stays planned.
#[test]
fn an_external_client_may_hold_for_long() {
    for waits in [false, true] {
        let mut real = Real::with_subscribers(true);
        real.step(&Op::Acquire { lock: 0, call: call(0), block: None });
        real.step(&Op::Release { lock: 0, owner: 0, scope: ReleaseScope::One, lease: None, id: None });
        assert!(real.take(KEY, 3_000));
        real.fire();
        if waits {
            real.step(&Op::Acquire { lock: 0, call: call(0), block: Some(100) });
        }
        real.advance(2_500);
        real.locks.assert_empty_but_decisions();
        real.advance(1_000);
        real.locks.assert_empty_but_decisions();
    }
}

/// A deadline is earlier than the end of the window.
#[test]
fn windows_never_outlast_a_waiters_deadline() {
    for block in 1..6 {
        let mut real = Real::with_subscribers(true);
        for _ in 0..200 {
            let seen = real.step(&Op::Acquire { lock: 0, call: call(0), block: Some(block) });
            if let Some(Seen::Waits(_)) = seen {
                real.advance(i64::try_from(block).unwrap());
                let decisions = std::mem::take(&mut real.decisions);
                let [(id, Decision::Granted(_))] = &decisions[..] else {
                    panic!("{decisions:?} for a free lock with BLOCK {block}");
                };
                real.locks.delivered(*id, real.time());
            }
            // A queued waiter allows a window to open.
            real.step(&Op::Acquire { lock: 0, call: call(1), block: Some(block) });
            real.step(&Op::Release { lock: 0, owner: 0, scope: ReleaseScope::One, lease: None, id: None });
            if std::mem::take(&mut real.decisions).is_empty() {
                real.advance(i64::try_from(block).unwrap());
            }
            assert!(!real.decisions.iter().any(|(_, decision)| *decision == Decision::TimedOut));
            real.decisions.clear();
            for id in real.locks.in_flight() {
                real.locks.delivered(id, real.time());
            }
            real.step(&Op::Release { lock: 0, owner: 1, scope: ReleaseScope::One, lease: None, id: None });
        }
    }
}

/// Native calls that do not wait take the lock in its windows. That must not cause more windows.
#[test]
fn windows_used_by_native_calls_count_as_missed() {
    let mut real = Real::with_subscribers(true);
    for _ in 0..1000 {
        real.step(&Op::Acquire { lock: 0, call: call(0), block: None });
        real.step(&Op::Release { lock: 0, owner: 0, scope: ReleaseScope::One, lease: None, id: None });
    }
    assert!(real.locks.fairness_windows().0 < 20, "{:?}", real.locks.fairness_windows());
}

/// External clients sleep until the end of the lease that they saw, unless an earlier end is announced.
#[test]
fn the_next_holders_shorter_lease_is_announced() {
    let mut real = Real::with_subscribers(true);
    real.step(&Op::Acquire { lock: 0, call: call(0), block: None });
    real.step(&Op::Acquire { lock: 0, call: Call { lease: 50, ..call(1) }, block: Some(0) });
    real.step(&Op::Release { lock: 0, owner: 0, scope: ReleaseScope::One, lease: None, id: None });
    assert!(real.messages.is_empty());
    real.advance(51);
    assert_eq!(real.messages, [KEY]);
    // The reader with the longest lease releases its hold.
    let reader = |owner, lease| Call { lease, shared: true, ..call(owner) };
    real.step(&Op::Acquire { lock: 1, call: reader(0, 100_000), block: None });
    real.step(&Op::Acquire { lock: 1, call: reader(1, 50), block: None });
    real.step(&Op::Release { lock: 1, owner: 0, scope: ReleaseScope::All, lease: None, id: None });
    real.advance(51);
    assert_eq!(real.messages, [KEY, LOCKS[1]]);
}

/// The contract: a call that does not wait takes a free lock.
#[test]
fn calls_without_block_take_a_free_lock() {
    let mut real = Real::with_subscribers(true);
    for _ in 0..100 {
        let seen = real.step(&Op::Acquire { lock: 0, call: call(0), block: None });
        assert!(matches!(seen, Some(Seen::Granted(_))), "{seen:?}");
        real.step(&Op::Release { lock: 0, owner: 0, scope: ReleaseScope::One, lease: None, id: None });
    }
    assert_eq!(real.messages.len(), 100);
}

/// The external clients expect a later end.
#[test]
fn the_end_of_a_shortened_lease_is_announced() {
    for shorten in [
        Op::Renew { lock: 0, owner: 0, lease: 20, bind: None, max: None },
        Op::Release { lock: 0, owner: 0, scope: ReleaseScope::One, lease: Some(20), id: None },
        Op::Acquire { lock: 0, call: Call { lease: 20, ..call(0) }, block: None },
    ] {
        let mut real = Real::with_subscribers(true);
        real.step(&Op::Acquire { lock: 0, call: call(0), block: None });
        real.step(&Op::Acquire { lock: 0, call: call(0), block: None });
        real.advance(100);
        assert!(real.messages.is_empty());
        real.step(&shorten);
        real.advance(20);
        assert!(real.messages.is_empty());
        real.advance(1);
        assert_eq!(real.messages, [KEY], "after {shorten:?}");
        // The subscribers are forgotten eventually.
        real.advance(1_001);
        real.locks.assert_empty();
    }
}

#[test]
fn subscribers_are_forgotten() {
    let seen = Contention::new(2, 1, Some(1)).run(100);
    let mut real = seen.real;
    for id in real.waiting(KEY) {
        real.locks.leave(id);
    }
    real.step(&Op::Break { lock: 0 });
    assert!(!real.locks.is_idle());
    real.advance(1_040);
    real.locks.assert_empty();
}
