// SPDX-License-Identifier: MIT

//! All short histories of sessions in small worlds. The search is breadth-first, so the first failing history
//! is a shortest one.
//!
//! A world is a beginning and a list of operations. From each state, all of them are applied to the core and
//! to the model. States are distinguished by the model's look. Once a state has no more events to come, its
//! sessions end, and nothing may be remembered.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{catch_unwind, AssertUnwindSafe};

use proptest::prelude::*;

use super::both::Both;
use super::{Acknowledge, Number, Op, Scope, Want};

const A: usize = 0;
const B: usize = 1;

/// A lease that does not end within a short history.
const LONG: i64 = 20_000;

struct World {
    name: &'static str,
    beginning: Vec<Op>,
    ops: Vec<Op>,
}

fn open(slot: usize) -> Op {
    Op::Open { slot, connection: slot as u64, settings: 0 }
}

fn number(slot: usize, from_done: u64) -> Number {
    Number { slot, from_done, same_target: true, renewed: false, ephemeral: true }
}

fn want(lock: usize, owner: usize, lease: i64) -> Want {
    Want { lock, owner, shared: false, lease, keeps: false }
}

fn shared(lock: usize, owner: usize, lease: i64) -> Want {
    Want { shared: true, ..want(lock, owner, lease) }
}

fn queue(want: Want, number: Number) -> Op {
    Op::Acquire { want, number: Some(number), queue: Some(0) }
}

fn plain(want: Want) -> Op {
    Op::Acquire { want, number: None, queue: None }
}

fn release_plain(lock: usize, owner: usize) -> Op {
    Op::Release { lock, owner, scope: Scope::One, lease: None }
}

fn release(owner: usize, number: Number) -> Op {
    Op::ReleaseNumber { lock: 0, owner, number, lease: None }
}

fn cancel(owner: usize, number: Number) -> Op {
    Op::Cancel { lock: 0, owner, number }
}

fn renew(owner: usize, number: Number) -> Op {
    Op::Renew { lock: 0, owner, number: Some(number), lease: LONG }
}

fn poll(slot: usize, acknowledge: Acknowledge, done: u64) -> Op {
    Op::Poll { slot, connection: slot as u64, is_late: false, acknowledge, done }
}

fn advance(ms: i64) -> Op {
    Op::Advance { ms }
}

/// One session, one owner, two numbers: every state of a number.
fn numbers() -> World {
    let mut ops = vec![
        poll(0, Acknowledge::All, 0),
        poll(0, Acknowledge::All, 1),
        plain(want(0, B, LONG)),
        release_plain(0, B),
        release_plain(0, A),
        plain(want(0, A, LONG)),
        Op::Delete { lock: 0 },
        Op::Close { slot: 0 },
    ];
    for from_done in [1, 2] {
        let number = number(0, from_done);
        ops.extend([
            queue(want(0, A, LONG), number),
            release(A, number),
            cancel(A, number),
            renew(A, number),
        ]);
    }
    ops.push(Op::Acquire { want: want(0, A, LONG), number: Some(number(0, 1)), queue: None });
    let other = Number { same_target: false, ..number(0, 1) };
    ops.push(queue(want(1, A, LONG), other));
    World { name: "numbers", beginning: vec![open(0)], ops }
}

/// Two sessions that wait for one lock.
fn two_sessions() -> World {
    let mut ops = vec![plain(want(0, 2, LONG)), release_plain(0, 2), Op::Break { lock: 0 }];
    for (slot, owner) in [(0, A), (1, B)] {
        let number = number(slot, 1);
        let nothing = poll(slot, Acknowledge::Nothing, 0);
        ops.extend([queue(want(0, owner, LONG), number), release(owner, number), nothing]);
        ops.extend([poll(slot, Acknowledge::All, 1), Op::Close { slot }]);
    }
    ops.push(queue(shared(0, B, LONG), number(1, 2)));
    ops.extend([advance(3_001), advance(2_500)]);
    World { name: "two sessions", beginning: vec![open(0), open(1)], ops }
}

/// A session with a grant in flight and further waits, which becomes suspect.
fn suspicion() -> World {
    let beginning = vec![
        open(0),
        plain(want(0, 2, LONG)),
        queue(want(0, A, LONG), number(0, 1)),
        plain(shared(1, 2, LONG)),
        queue(want(1, A, LONG), number(0, 2)),
        Op::Acquire { want: shared(1, B, LONG), number: None, queue: Some(0) },
        release_plain(0, 2),
        advance(2_501),
    ];
    let ops = vec![
        advance(1),
        advance(2_501),
        advance(3_001),
        poll(0, Acknowledge::Nothing, 0),
        poll(0, Acknowledge::All, 0),
        Op::Resume { slot: 0, connection: 0, is_late: false },
        Op::Resume { slot: 0, connection: 1, is_late: true },
        renew(A, number(0, 1)),
        cancel(A, number(0, 2)),
        Op::Acquire { want: want(1, A, LONG), number: Some(number(0, 3)), queue: Some(5_500) },
        Op::Acquire { want: want(0, 2, LONG), number: None, queue: None },
        release_plain(0, 2),
        release_plain(1, 2),
        release_plain(1, B),
        Op::Close { slot: 0 },
        Op::Disconnect { connection: 0 },
        Op::Pause(true),
        Op::Pause(false),
    ];
    World { name: "suspicion", beginning, ops }
}

/// Numbers and plain holds of one owner.
fn owners() -> World {
    let mut ops = vec![
        plain(want(0, A, 400)),
        plain(shared(0, A, LONG)),
        release_plain(0, A),
        Op::Release { lock: 0, owner: A, scope: Scope::Shared, lease: Some(400) },
        Op::Release { lock: 0, owner: A, scope: Scope::All, lease: None },
        Op::Renew { lock: 0, owner: A, number: None, lease: 400 },
        Op::Reduce { lock: 0, owner: A, shared: false },
        poll(0, Acknowledge::All, 0),
        Op::Close { slot: 0 },
        advance(401),
    ];
    for (from_done, renewed, ephemeral) in [(1, true, false), (2, false, true)] {
        let number = Number { renewed, ephemeral, ..number(0, from_done) };
        ops.extend([queue(want(0, A, 9_000), number), release(A, number), renew(A, number)]);
    }
    ops.push(queue(shared(0, A, 9_000), number(0, 3)));
    World {
        name: "owners",
        beginning: vec![open(0), plain(want(0, B, 400)), queue(want(0, A, 9_000), number(0, 4))],
        ops,
    }
}

/// Sessions that end: by their TTL, by their connection, at a demotion.
fn ends() -> World {
    let mut ops = vec![
        advance(3_001),
        advance(6_501),
        Op::Disconnect { connection: 0 },
        Op::Disconnect { connection: 1 },
        Op::Demote,
        Op::Flush,
        Op::Pause(true),
        Op::Pause(false),
        Op::Open { slot: 0, connection: 1, settings: 1 },
        Op::Resume { slot: 0, connection: 1, is_late: false },
        poll(0, Acknowledge::All, 0),
        Op::Poll { slot: 0, connection: 0, is_late: true, acknowledge: Acknowledge::All, done: 1 },
    ];
    for (slot, owner, renewed) in [(0, A, true), (1, B, false)] {
        let number = Number { renewed, ephemeral: renewed, ..number(slot, 1) };
        ops.push(queue(want(0, owner, 9_000), number));
    }
    World { name: "ends", beginning: vec![open(0), open(1)], ops }
}

fn worlds() -> [World; 5] {
    [numbers(), two_sessions(), suspicion(), owners(), ends()]
}

fn hash_of(both: &Both) -> u64 {
    let mut hasher = DefaultHasher::new();
    both.model.look().hash(&mut hasher);
    hasher.finish()
}

/// Plays a history. Returns the look of its last state, or `None` if its last step is impossible.
fn play(world: &World, history: &[usize], ends: bool) -> Result<Option<u64>, TestCaseError> {
    let mut both = Both::new(true);
    for op in &world.beginning {
        both.step(op)?;
    }
    let mut is_possible = true;
    for op in history {
        is_possible = both.step(&world.ops[*op])?;
    }
    let look = hash_of(&both);
    if is_possible && ends {
        both.end()?;
    }
    Ok(is_possible.then_some(look))
}

fn play_safely(world: &World, history: &[usize], ends: bool) -> Option<u64> {
    let played = catch_unwind(AssertUnwindSafe(|| play(world, history, ends)));
    let why = match played {
        Ok(Ok(look)) => return look,
        Ok(Err(why)) => why.to_string(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
        }
    };
    let steps: String = history.iter().map(|op| format!("\n  {:?}", world.ops[*op])).collect();
    panic!("{}: a shortest history that fails:{steps}\n{why}", world.name);
}

/// Explores a world with about this number of steps.
fn explore(world: &World, most: usize) {
    let mut known = HashSet::from([play_safely(world, &[], true).unwrap()]);
    let mut level: Vec<Vec<usize>> = vec![Vec::new()];
    let (mut steps, mut depth) = (0, 0);
    'search: while !level.is_empty() {
        let mut next = Vec::new();
        for history in &level {
            for op in 0..world.ops.len() {
                if steps == most {
                    break 'search;
                }
                steps += 1;
                let longer = [&history[..], &[op]].concat();
                let Some(look) = play_safely(world, &longer, false) else { continue };
                if known.insert(look) {
                    play_safely(world, &longer, true);
                    next.push(longer);
                }
            }
        }
        (level, depth) = (next, depth + 1);
    }
    println!("{}: {} states in {steps} steps; all histories of {depth} steps", world.name, known.len());
    assert!(depth > 1, "{}: the search stopped early", world.name);
}

/// `EXPLORE_SESSION_STEPS` sets the number of steps in each world.
fn explore_all(most: usize) {
    let most = std::env::var("EXPLORE_SESSION_STEPS").map_or(most, |steps| steps.parse().unwrap());
    let threads: Vec<_> =
        worlds().into_iter().map(|world| std::thread::spawn(move || explore(&world, most))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn every_short_history_of_sessions_matches_the_model() {
    explore_all(8_000);
}

#[test]
fn weekly_every_history_of_sessions_matches_the_model() {
    explore_all(40_000);
}
