// SPDX-License-Identifier: MIT

//! All histories of small worlds, instead of a sample. The search is breadth-first, so the first failing
//! history is a shortest one.
//!
//! A world is a list of operations. From each state, all of them are applied to the core and to the model.
//! States are distinguished by the model's look ([`Model::look`]). If two histories lead to the same look,
//! both are continued and must look the same after each further step. This shows that the core stores no
//! hidden state that makes a difference.
//!
//! `EXPLORE_STEPS` sets the number of steps in each world, and `EXPLORE_WORLD` selects a single world.
//! `docs/evidence-details.md` has the number of states and the depth.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::thread;

use super::model::Model;
use super::*;

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// Time after which a reply to a request is forgotten, in milliseconds.
const AFTER_TTL: i64 = TTL + 1;

/// Number of connections per owner, which limits its waits and grants in flight.
const CONNECTIONS: usize = 2;

/// Maximum number of holds of an owner.
const MAX_HOLDS: i64 = 2;

/// An acquire that waits without a deadline.
fn wait(lock: usize, call: Call) -> Op {
    Op::Acquire { lock, call, block: Some(0) }
}

fn exclusive(owner: usize, lease: i64) -> Call {
    Call { owner, lease, ..Call::default() }
}

fn shared(owner: usize, lease: i64) -> Call {
    Call { shared: true, ..exclusive(owner, lease) }
}

fn release(lock: usize, owner: usize) -> Op {
    Op::Release { lock, owner, scope: ReleaseScope::One, lease: None, id: None }
}

fn renew(lock: usize, owner: usize, lease: i64) -> Op {
    Op::Renew { lock, owner, lease, bind: None, max: None }
}

fn deliveries() -> Vec<Op> {
    let all = [(0, true), (0, false), (1, true), (1, false)];
    all.map(|(which, arrives)| Op::Deliver { which, arrives }).into()
}

/// One lock and two owners: small enough to explore completely.
fn two_owners() -> Vec<Op> {
    let mut ops = vec![Op::Advance { ms: 1 }, Op::Leave { which: 0 }, Op::Break { lock: 0 }];
    for owner in [A, B] {
        ops.extend([wait(0, exclusive(owner, 2)), release(0, owner)]);
    }
    ops.extend(deliveries());
    ops
}

/// One lock and two owners, with shared acquires.
fn one_lock() -> Vec<Op> {
    let mut ops = two_owners();
    ops.extend([wait(0, shared(A, 1)), wait(0, shared(B, 1))]);
    ops
}

/// Two locks, three owners, and cycles of waits.
fn exclusive_locks() -> Vec<Op> {
    let mut ops =
        vec![Op::Advance { ms: 1 }, Op::Leave { which: 0 }, Op::Leave { which: 1 }, Op::Break { lock: 0 }];
    for lock in [0, 1] {
        for owner in [A, B, C] {
            ops.extend([wait(lock, exclusive(owner, 3)), release(lock, owner)]);
        }
    }
    ops.push(Op::Acquire { lock: 0, call: exclusive(A, 1), block: None });
    ops.push(Op::Acquire { lock: 0, call: exclusive(B, 2), block: Some(2) });
    ops.extend(deliveries());
    ops
}

/// One lock with shared holds, limits and upgrades.
fn readers() -> Vec<Op> {
    let limited = |owner, limit| Call { limit, ..shared(owner, 3) };
    let mut ops = vec![Op::Advance { ms: 1 }, Op::Leave { which: 0 }, Op::Break { lock: 0 }];
    for owner in [A, B, C] {
        ops.extend([wait(0, shared(owner, 2)), wait(0, exclusive(owner, 3)), release(0, owner)]);
    }
    ops.extend([
        wait(0, limited(A, 1)),
        wait(0, limited(B, 2)),
        wait(0, limited(C, 1)),
        wait(1, shared(A, 3)),
    ]);
    let scope = ReleaseScope::OneOf(Mode::Shared);
    ops.push(Op::Release { lock: 0, owner: A, scope, lease: None, id: None });
    ops.push(renew(0, A, 1));
    ops.extend(deliveries());
    ops
}

/// Owners that wait for one lock on two connections, with delivered and undelivered grants.
fn revocations() -> Vec<Op> {
    let mut ops = vec![Op::Advance { ms: 1 }, renew(0, A, 2), Op::Leave { which: 0 }];
    for lease in [1, 3] {
        ops.extend([wait(0, exclusive(A, lease)), wait(0, shared(A, lease))]);
        ops.push(wait(0, Call { keeps: true, ..exclusive(A, lease) }));
    }
    ops.push(Op::Acquire {
        lock: 0,
        call: Call { awaits_replicas: true, ..exclusive(A, 2) },
        block: Some(0),
    });
    ops.extend([wait(0, exclusive(B, 2)), release(0, A), release(0, B)]);
    ops.push(Op::Release { lock: 0, owner: A, scope: ReleaseScope::All, lease: None, id: None });
    ops.push(Op::Release { lock: 0, owner: A, scope: ReleaseScope::One, lease: Some(2), id: None });
    let shared_one = ReleaseScope::OneOf(Mode::Shared);
    ops.push(Op::Release { lock: 0, owner: A, scope: shared_one, lease: None, id: None });
    ops.push(Op::Answer { which: 0 });
    ops.push(Op::Expire { lock: 0, lease: 1 });
    ops.extend(deliveries());
    ops
}

/// Known holds while other holds may have been forgotten.
fn quarantines() -> Vec<Op> {
    let mut ops = vec![Op::Advance { ms: 1 }, Op::Quarantine { ms: 2 }, Op::Quarantine { ms: 0 }];
    for owner in [A, B] {
        ops.extend([wait(0, shared(owner, 3)), wait(0, exclusive(owner, 3)), release(0, owner)]);
        ops.push(wait(0, Call { limit: 2, ..shared(owner, 3) }));
        ops.push(wait(0, Call { limit: 2, once: true, ..shared(owner, 3) }));
    }
    let later = Call { awaits_replicas: true, ..exclusive(A, 3) };
    ops.push(Op::Acquire { lock: 0, call: later, block: None });
    ops.push(Op::Acquire { lock: 0, call: exclusive(A, 3), block: None });
    ops.push(Op::Release {
        lock: 0,
        owner: A,
        scope: ReleaseScope::OneOf(Mode::Shared),
        lease: None,
        id: None,
    });
    ops.extend(deliveries());
    ops
}

/// Repeated and cancelled calls.
fn retries() -> Vec<Op> {
    let named = |owner, id| Call { id: Some(id), ..exclusive(owner, 3) };
    let given_back =
        |owner| Op::Release { lock: 0, owner, scope: ReleaseScope::One, lease: None, id: Some(0) };
    let mut ops = vec![Op::Advance { ms: 1 }, Op::Advance { ms: AFTER_TTL }, Op::Leave { which: 0 }];
    for owner in [A, B] {
        ops.extend([wait(0, named(owner, 0)), release(0, owner), given_back(owner)]);
        ops.push(Op::Cancel { lock: 0, owner, id: 0 });
    }
    ops.extend([wait(0, named(A, 1)), wait(1, named(A, 0)), Op::Delete { lock: 0 }]);
    ops.push(Op::Acquire { lock: 0, call: Call { shared: true, ..named(B, 1) }, block: None });
    ops.push(wait(0, shared(A, 3)));
    let later = Call { awaits_replicas: true, ..exclusive(A, 3) };
    ops.extend([Op::Acquire { lock: 0, call: later, block: None }, Op::Answer { which: 0 }]);
    ops.extend(deliveries());
    ops
}

/// Holds that are renewed while a connection is open, or end with it.
fn connections() -> Vec<Op> {
    let bound = |owner, connection, (watchdog, ephemeral)| Call {
        bind: Some((connection, watchdog, ephemeral)),
        ..exclusive(owner, 3)
    };
    let mut ops = vec![Op::Advance { ms: 1 }, Op::Close { connection: 0 }, Op::Close { connection: 1 }];
    for (owner, connection) in [(A, 0), (B, 1)] {
        ops.push(wait(0, bound(owner, connection, (true, false))));
        ops.push(wait(0, bound(owner, connection, (false, true))));
        ops.push(release(0, owner));
    }
    ops.push(wait(0, Call { max: Some(4), ..bound(A, 1, (true, true)) }));
    ops.push(wait(0, Call { id: Some(0), ..bound(A, 0, (false, true)) }));
    ops.push(wait(0, Call { id: Some(1), ..exclusive(A, 3) }));
    ops.push(Op::CloseInTurn { connection: 0, lock: 0, owner: B, shared: false });
    ops.push(Op::Acquire { lock: 0, call: Call { awaits_replicas: true, ..exclusive(A, 3) }, block: None });
    ops.extend([
        wait(0, exclusive(A, 1)),
        wait(0, exclusive(C, 2)),
        release(0, C),
        Op::Cancel { lock: 0, owner: A, id: 0 },
    ]);
    ops.push(Op::Renew { lock: 0, owner: A, lease: 2, bind: Some((1, true, true)), max: None });
    ops.push(Op::Expire { lock: 0, lease: 2 });
    ops.extend(deliveries());
    ops
}

/// Foreign writes, and a server that is a replica for a while.
fn foreign_writes() -> Vec<Op> {
    let mut ops = vec![
        Op::Advance { ms: 1 },
        Op::Delete { lock: 0 },
        Op::Expire { lock: 0, lease: 1 },
        Op::Overwrite { lock: 0 },
        Op::External { lock: 0, lease: 2 },
        Op::Flush,
        Op::Away { foreign_write: None },
        Op::Away { foreign_write: Some((0, 2)) },
        Op::Release { lock: 0, owner: EXTERNAL, scope: ReleaseScope::One, lease: None, id: None },
    ];
    for owner in [A, B] {
        ops.extend([wait(0, exclusive(owner, 3)), wait(0, shared(owner, 2)), release(0, owner)]);
    }
    ops.extend([wait(0, exclusive(EXTERNAL, 2)), wait(1, exclusive(A, 2)), release(1, A), renew(0, A, 3)]);
    ops.extend(deliveries());
    ops
}

/// Requests that the owner's own holds exclude.
fn threads() -> Vec<Op> {
    let once = |call: Call| Call { once: true, ..call };
    let mut ops = vec![Op::Advance { ms: 1 }, Op::Leave { which: 0 }, Op::Leave { which: 1 }];
    for owner in [A, B] {
        for lock in [0, 1] {
            ops.extend([wait(lock, once(exclusive(owner, 3))), release(lock, owner)]);
        }
        ops.extend([wait(0, exclusive(owner, 3)), wait(0, once(shared(owner, 3)))]);
    }
    ops.push(wait(0, once(Call { limit: 2, ..shared(A, 3) })));
    ops.extend(deliveries());
    ops
}

/// All of the worlds above combined.
pub(super) fn everything() -> Vec<Op> {
    let all = [
        exclusive_locks(),
        readers(),
        revocations(),
        quarantines(),
        retries(),
        connections(),
        foreign_writes(),
        threads(),
    ];
    let mut texts = BTreeSet::new();
    all.into_iter().flatten().filter(|op| texts.insert(format!("{op:?}"))).collect()
}

/// All worlds, by name.
fn worlds() -> [(&'static str, Vec<Op>); 11] {
    [
        ("two owners", two_owners()),
        ("one lock", one_lock()),
        ("exclusive locks", exclusive_locks()),
        ("readers", readers()),
        ("revocations", revocations()),
        ("quarantines", quarantines()),
        ("retries", retries()),
        ("connections", connections()),
        ("strangers", foreign_writes()),
        ("threads", threads()),
        ("everything", everything()),
    ]
}

/// A hash of a state's look, small enough to store millions.
type LookHash = (u64, u64);

/// The step that led to a state: the index of the previous state and the index of the operation.
type Origin = (usize, usize);

/// The result of one step.
enum StepResult {
    /// The operation is impossible in the state.
    Nothing,
    To(LookHash),
}

/// A shortest failing history, and the reason.
struct Failure {
    history: Vec<usize>,
    why: String,
}

struct Explorer {
    ops: Vec<Op>,
    /// The step that first reached each state; `None` for the initial state.
    states: Vec<Option<Origin>>,
    known: HashMap<LookHash, usize>,
    /// A second history for some states.
    twins: HashMap<usize, Origin>,
    steps: usize,
}

/// The progress of a search.
struct Found {
    states: usize,
    twins: usize,
    steps: usize,
    /// Number of steps up to which all histories were played.
    depth: usize,
    /// Whether no further states exist.
    is_all: bool,
}

fn hash_of(both: &SideBySide) -> LookHash {
    let look = both.model.look();
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, &look).hash(&mut hasher);
        hasher.finish()
    };
    (half(0), half(1))
}

impl Explorer {
    fn new(ops: Vec<Op>) -> Explorer {
        let known = HashMap::from([(hash_of(&SideBySide::new(true)), 0)]);
        Explorer { ops, states: vec![None], known, twins: HashMap::new(), steps: 0 }
    }

    fn history(&self, mut led: Option<Origin>) -> Vec<usize> {
        let mut history = Vec::new();
        while let Some((from, op)) = led {
            history.push(op);
            led = self.states[from];
        }
        history.reverse();
        history
    }

    fn play(&self, history: &[usize]) -> Result<(SideBySide, bool), TestCaseError> {
        let (mut both, mut event) = (SideBySide::new(true), true);
        for op in history {
            let op = &self.ops[*op];
            event = can_happen(&both.model, op) && both.step(op)?;
        }
        Ok((both, event))
    }

    /// Plays a history, and turns a panic into a failure.
    fn try_to<T>(
        &self,
        history: &[usize],
        play: impl FnOnce(&[usize]) -> Result<T, TestCaseError>,
    ) -> Result<T, Failure> {
        let failure = |why: String| Failure { history: history.to_vec(), why };
        match catch_unwind(AssertUnwindSafe(|| play(history))) {
            Ok(played) => played.map_err(|error| failure(error.to_string())),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
                Err(failure(text.unwrap_or_default()))
            }
        }
    }

    /// Applies all operations after one history.
    fn steps_after(&self, history: &[usize]) -> Result<Vec<StepResult>, Failure> {
        // All clients must be able to leave, and then nothing may be remembered.
        self.try_to(history, |history| {
            self.play(history)?.0.end();
            Ok(())
        })?;
        let came = (0..self.ops.len()).map(|op| {
            let longer = [history, &[op]].concat();
            self.try_to(&longer, |history| {
                let (both, event) = self.play(history)?;
                Ok(if event { StepResult::To(hash_of(&both)) } else { StepResult::Nothing })
            })
        });
        came.collect()
    }

    /// Applies all operations to one state. If two histories lead to it, their results must be equal.
    fn steps_from(&self, state: usize) -> Result<Vec<StepResult>, Failure> {
        let came = self.steps_after(&self.history(self.states[state]))?;
        if let Some(twin) = self.twins.get(&state) {
            let other = self.history(Some(*twin));
            for (op, (first, second)) in came.iter().zip(self.steps_after(&other)?).enumerate() {
                let alike = match (first, second) {
                    (StepResult::Nothing, StepResult::Nothing) => true,
                    (StepResult::To(first), StepResult::To(second)) => *first == second,
                    _ => false,
                };
                if !alike {
                    let first = text_of(&self.ops, &self.history(self.states[state]));
                    let why = format!(
                        "two histories led to equal states, but the last step then gave different results; the \
                         other history:{first}"
                    );
                    return Err(Failure { history: [&other[..], &[op]].concat(), why });
                }
            }
        }
        Ok(came)
    }

    /// Applies all operations to a range of states, in order, on all processors.
    fn steps_from_each(&self, states: Range<usize>) -> Result<Vec<Vec<StepResult>>, Failure> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let share = states.len().div_ceil(threads).max(1);
        let shares = states.clone().step_by(share).map(|from| from..states.end.min(from + share));
        thread::scope(|scope| {
            let running: Vec<_> = shares
                .map(|share| scope.spawn(move || share.map(|state| self.steps_from(state)).collect()))
                .collect();
            let mut all = Vec::new();
            for thread in running {
                let share: Result<Vec<_>, Failure> = thread.join().unwrap();
                all.extend(share?);
            }
            Ok(all)
        })
    }

    fn explore(mut self, steps: usize) -> Result<Found, Failure> {
        let (mut depth, mut level) = (0, 0..1);
        while !level.is_empty() && self.steps < steps {
            // Only a part of a level is explored if the remaining steps do not suffice for all of it.
            let most = (steps - self.steps).div_ceil(self.ops.len());
            let part = level.start..level.end.min(level.start + most);
            // Small batches limit memory.
            for some in part.clone().step_by(4096).map(|from| from..part.end.min(from + 4096)) {
                let came = self.steps_from_each(some.clone())?;
                for (from, came) in some.zip(came) {
                    self.note(from, came);
                }
            }
            if part == level {
                depth += 1;
            }
            level = part.end..self.states.len();
        }
        let (states, twins) = (self.states.len(), self.twins.len());
        Ok(Found { states, twins, steps: self.steps, depth, is_all: level.is_empty() })
    }

    fn note(&mut self, from: usize, came: Vec<StepResult>) {
        self.steps += came.len();
        for (op, came) in came.into_iter().enumerate() {
            let StepResult::To(print) = came else { continue };
            match self.known.get(&print) {
                None => {
                    self.known.insert(print, self.states.len());
                    self.states.push(Some((from, op)));
                }
                // Only a state found after this one can get a second history: a step back to this or an
                // earlier state does not count.
                Some(state) if *state > from => {
                    self.twins.entry(*state).or_insert((from, op));
                }
                Some(_) => {}
            }
        }
    }
}

/// Whether the operation is possible. False for an acquire without a free connection, or beyond the limits of
/// the world.
fn can_happen(model: &Model, op: &Op) -> bool {
    let Op::Acquire { lock, call, .. } = op else { return true };
    let queued = model.locks.iter().flat_map(|lock| &lock.queue).map(|waiter| &waiter.call);
    let busy = queued.chain(model.in_flight.iter().map(|grant| &grant.call));
    let waits = busy.filter(|other| other.owner == call.owner).count();
    let holds = model.locks[*lock].holds.iter().find(|hold| hold.owner == call.owner);
    waits < CONNECTIONS && holds.is_none_or(|hold| hold.exclusive + hold.shared < MAX_HOLDS)
}

/// Formats a history, one line per step.
fn text_of(ops: &[Op], history: &[usize]) -> String {
    history.iter().map(|op| format!("\n  {:?}", ops[*op])).collect()
}

fn explore_all(steps: usize) {
    let steps = std::env::var("EXPLORE_STEPS").map_or(steps, |steps| steps.parse().unwrap());
    let only = std::env::var("EXPLORE_WORLD").ok();
    for (name, ops) in worlds().into_iter().filter(|(name, _)| only.as_ref().is_none_or(|only| only == name))
    {
        let (can_happen, explorer) = (ops.len(), Explorer::new(ops));
        let names = explorer.ops.clone();
        let Found { states, twins, steps, depth, is_all } =
            explorer.explore(steps).unwrap_or_else(|failure| {
                let Failure { history, why } = failure;
                panic!("{name}: a shortest history that fails:{}\n{why}", text_of(&names, &history));
            });
        let all = if is_all { ", which are all" } else { "" };
        println!(
            "{name}: {can_happen} things can happen; {states} states, {twins} of them reached in two ways, in {steps} steps; \
             all histories of {depth} steps{all}"
        );
        assert!(is_all || (depth > 1 && name != "two owners"), "{name}: the search stopped early");
    }
}

/// Explores the first steps only. The long test below goes deeper.
#[test]
fn every_short_history_matches_the_model() {
    explore_all(15_000);
}

#[test]
fn weekly_every_history_matches_the_model() {
    explore_all(80_000);
}
