// SPDX-License-Identifier: MIT

//! Owners that wait on several connections, for one lock or for several at once, in every order. No state may
//! last forever.
//!
//! The check uses no graph. Every owner that waits for nothing releases its holds, until no such owner holds a
//! lock. Then no wait may be left, because a member of each cycle must have been refused. If a refused call
//! waits instead, some wait must be left.

use super::real::Late;
use super::*;

/// Maximum number of simultaneous waits of one owner.
const CONNECTIONS: usize = 3;

#[derive(Clone, Debug)]
enum Action {
    Acquire {
        owner: usize,
        locks: Vec<usize>,
        shared: bool,
        /// Whether the call may be queued.
        blocks: bool,
    },
    Release {
        owner: usize,
        lock: usize,
        all: bool,
    },
    /// The deadline of a call has passed, or its client has left.
    Leave {
        which: usize,
    },
}

/// The core and the waiting calls.
struct World {
    real: Real,
    waits: Vec<(WaiterId, usize)>,
}

impl World {
    /// Plays a history, skipping impossible steps. Returns the number of waits refused as deadlocks. If
    /// `portion` is given, each search examines at most that amount, and only once per step.
    fn play(late: Late, portion: Option<usize>, history: &[Action]) -> (World, usize) {
        let mut real = Real::new(true);
        (real.late, real.lazy) = (late, portion.is_some());
        real.portion = portion.unwrap_or(real.portion);
        let mut world = World { real, waits: Vec::new() };
        let told = history.iter().map(|step| world.step(step)).sum();
        (world, told)
    }

    fn waiting(&self, owner: usize) -> usize {
        self.waits.iter().filter(|(_, of)| *of == owner).count()
    }

    fn step(&mut self, step: &Action) -> usize {
        let mut told = 0;
        match step {
            Action::Acquire { owner, locks, shared, blocks } => {
                if self.waiting(*owner) == CONNECTIONS {
                    return 0;
                }
                let call = Call { owner: *owner, shared: *shared, lease: 1_000_000, ..Call::default() };
                let block = blocks.then_some(0);
                let seen = match locks[..] {
                    [lock] => self.real.step(&Op::Acquire { lock, call, block }).unwrap(),
                    _ => {
                        let seen = self.real.acquire_all(locks, &call, block);
                        self.real.settle();
                        seen
                    }
                };
                match seen {
                    Seen::Waits(id) => self.waits.push((id, *owner)),
                    Seen::Deadlock => told += 1,
                    _ => {}
                }
            }
            Action::Release { owner, lock, all } => {
                let scope = if *all { ReleaseScope::All } else { ReleaseScope::One };
                self.real.step(&Op::Release { lock: *lock, owner: *owner, scope, lease: None, id: None });
            }
            Action::Leave { which } => {
                if !self.waits.is_empty() {
                    let (id, _) = self.waits.remove(which % self.waits.len());
                    assert!(self.real.locks.leave(id));
                    self.real.settle();
                }
            }
        }
        told + self.follow()
    }

    /// Removes calls that were granted or refused. Returns the number of refused calls.
    fn follow(&mut self) -> usize {
        let mut granted = Vec::new();
        let (overtakes, late) = (&mut self.real.overtakes, &mut self.real.late_overtakes);
        let overtakes = std::mem::take(overtakes).into_iter().chain(std::mem::take(late));
        let of_passes: Vec<_> = overtakes.flat_map(|(_, decided)| decided).collect();
        for (id, decision) in of_passes.into_iter().chain(std::mem::take(&mut self.real.decisions)) {
            assert!(matches!(decision, Decision::Granted(_) | Decision::GrantedAll(_)), "{decision:?}");
            self.real.locks.delivered(id, self.real.time());
            granted.push(id);
        }
        let told = std::mem::take(&mut self.real.deadlocked);
        self.waits.retain(|(id, _)| !granted.contains(id) && !told.contains(id));
        told.len()
    }

    /// Lets every owner that waits for nothing release all its holds, repeatedly and in the given order.
    /// Returns whether no wait is left.
    fn ends(&mut self, last_first: bool) -> bool {
        self.real.lazy = false;
        self.real.settle();
        self.follow();
        let mut owners: Vec<usize> = (0..OWNERS.len()).collect();
        if last_first {
            owners.reverse();
        }
        loop {
            let held = owners.iter().flat_map(|owner| (0..KEYS.len()).map(|lock| (*owner, lock)));
            let next = held.into_iter().find(|(owner, lock)| {
                let holds = |holders: &Holders| holders.get(OWNERS[*owner]).is_some();
                self.waiting(*owner) == 0 && visible(&self.real, KEYS[*lock]).as_ref().is_some_and(holds)
            });
            let Some((owner, lock)) = next else { return self.waits.is_empty() };
            self.step(&Action::Release { owner, lock, all: true });
        }
    }
}

/// Fails if a wait lasts forever after this history, or was refused without a reason.
fn check_history(history: &[Action], portion: Option<usize>) -> Result<(), TestCaseError> {
    for last_first in [false, true] {
        let (mut world, told) = World::play(Late::Ends, portion, history);
        prop_assert!(world.ends(last_first), "these wait forever: {:?}", world.waits);
        if told > 0 && !waits_in_two_modes(history) {
            let first = (1..=history.len())
                .find(|steps| World::play(Late::Ends, portion, &history[..*steps]).1 > 0)
                .unwrap();
            let (mut world, _) = World::play(Late::Stays, portion, &history[..first]);
            prop_assert!(!world.ends(last_first), "the last of {} steps was refused without a reason", first);
        }
    }
    Ok(())
}

/// Whether an owner requests one lock both shared and exclusively. A grant to the later of these waits may
/// then serve both, so a refusal may be unnecessary.
fn waits_in_two_modes(history: &[Action]) -> bool {
    let mut modes = BTreeMap::new();
    history.iter().any(|step| {
        let Action::Acquire { owner, locks, shared, .. } = step else { return false };
        locks.iter().any(|lock| *modes.entry((*owner, *lock)).or_insert(*shared) != *shared)
    })
}

/// All non-empty sets of this number of locks.
fn sets_of(locks: usize) -> Vec<Vec<usize>> {
    let all = 1..1u32 << locks;
    all.map(|set| (0..locks).filter(|lock| set & (1 << lock) != 0).collect()).collect()
}

/// Three owners hold locks, then three calls start to wait. Plays one in `every` of all such histories.
fn judge_few_waits(every: usize) {
    const HOLDERS: usize = 3;
    let sets = sets_of(LOCKS.len());
    let mut count = 0;
    let holders = (0..(HOLDERS + 1).pow(3)).map(|n| [n % 4, n / 4 % 4, n / 16]);
    for holders in holders {
        let held: Vec<Action> = (0..LOCKS.len())
            .filter(|lock| holders[*lock] < HOLDERS)
            .map(|lock| holds(holders[lock], &[lock], false))
            .collect();
        let free = holders.iter().filter(|owner| **owner == HOLDERS).count();
        // Free locks sort last.
        let in_order = holders.is_sorted_by_key(|owner| *owner == HOLDERS);
        if free == LOCKS.len() || !in_order || !is_ordered(&holders[..LOCKS.len() - free]) {
            continue;
        }
        let calls = HOLDERS * sets.len();
        for n in (0..calls.pow(3)).step_by(every) {
            let requests = [n % calls, n / calls % calls, n / calls / calls]
                .map(|call| (call % HOLDERS, &sets[call / HOLDERS]));
            let owners =
                holders[..LOCKS.len() - free].iter().copied().chain(requests.map(|(owner, _)| owner));
            if !is_ordered(&owners.collect::<Vec<_>>()) {
                continue;
            }
            let waiting = requests.map(|(owner, locks)| waits(owner, locks, false));
            let history: Vec<Action> = held.iter().cloned().chain(waiting).collect();
            count += 1;
            if let Err(error) = check_history(&history, None) {
                panic!("{error}: {history:#?}");
            }
        }
    }
    println!("{count} histories");
}

#[test]
fn three_waits_never_last_forever() {
    judge_few_waits(7);
}

#[test]
fn long_three_waits_never_last_forever() {
    judge_few_waits(1);
}

/// Whether each new number is the next one in sequence.
fn is_ordered(numbers: &[usize]) -> bool {
    let mut next = 0;
    numbers.iter().all(|number| {
        let fits = *number <= next;
        next = next.max(number + 1);
        fits
    })
}

fn doing() -> impl Strategy<Value = Action> {
    let (lock, owner) = (0..KEYS.len(), 0..OWNERS.len() - 1);
    let locks = prop_oneof![
        2 => lock.clone().prop_map(|lock| vec![lock]),
        3 => prop::sample::subsequence((0..KEYS.len()).collect::<Vec<_>>(), 2..=3),
    ];
    prop_oneof![
        12 => (owner.clone(), locks, prop::bool::weighted(0.3), prop::bool::weighted(0.9))
            .prop_map(|(owner, locks, shared, blocks)| Action::Acquire { owner, locks, shared, blocks }),
        5 => (owner, lock, any::<bool>()).prop_map(|(owner, lock, all)| Action::Release { owner, lock, all }),
        1 => (0..8usize).prop_map(|which| Action::Leave { which }),
    ]
}

/// A call that waits until it gets these locks.
fn waits(owner: usize, locks: &[usize], shared: bool) -> Action {
    Action::Acquire { owner, locks: locks.to_vec(), shared, blocks: true }
}

/// A call that gets these locks at once, or not at all.
fn holds(owner: usize, locks: &[usize], shared: bool) -> Action {
    Action::Acquire { owner, locks: locks.to_vec(), shared, blocks: false }
}

/// A holder's new call stands ahead of the others. Its owner's earlier call is searched, too.
#[test]
fn a_new_call_makes_an_earlier_one_wait() {
    let histories = [
        vec![
            holds(2, &[3], false),
            holds(0, &[2], true),
            holds(1, &[1], false),
            waits(0, &[0, 1], false),
            waits(1, &[2, 3], true),
            waits(0, &[0, 2], false),
        ],
        vec![
            holds(2, &[2], false),
            holds(3, &[0], true),
            waits(3, &[1, 2], false),
            waits(2, &[0, 1], true),
            holds(0, &[0], true),
            waits(3, &[0, 1], false),
        ],
    ];
    for history in &histories {
        for portion in [None, Some(1), Some(10)] {
            check_history(history, portion).unwrap();
        }
    }
}

/// A wait does not overtake a member if another call of the same owner stays ahead of it.
#[test]
fn a_useless_swap_makes_no_deadlock() {
    let history = [
        holds(1, &[2], false),
        waits(0, &[0, 2], false),
        waits(3, &[0], false),
        waits(3, &[0, 3], false),
        waits(1, &[0], true),
    ];
    check_history(&history, None).unwrap();
    assert_eq!(World::play(Late::Ends, None, &history).1, 0, "refused without a reason");
}

/// A search that is interrupted after it found a wait that may overtake does not use it later.
#[test]
fn an_interrupted_search_moves_no_ended_wait() {
    let history = [
        holds(3, &[1], false),
        waits(1, &[1, 2], false),
        waits(0, &[0, 2], false),
        waits(1, &[0, 1, 2], false),
        waits(2, &[0], false),
        waits(2, &[0], false),
        waits(1, &[0, 1], false),
        waits(2, &[0], false),
        Action::Leave { which: 7 },
    ];
    check_history(&history, Some(10)).unwrap();
}

/// Operations of a few owners on two locks. When an owner's wait is granted, its other waits for that lock
/// move ahead of newcomers.
fn overtaking() -> impl Strategy<Value = Action> {
    let (lock, owner) = (0..2usize, 0..3usize);
    prop_oneof![
        12 => (owner.clone(), lock.clone(), any::<bool>(), prop::bool::weighted(0.9)).prop_map(
            |(owner, lock, shared, blocks)| Action::Acquire { owner, locks: vec![lock], shared, blocks }
        ),
        5 => (owner, lock, any::<bool>()).prop_map(|(owner, lock, all)| Action::Release { owner, lock, all }),
        1 => (0..8usize).prop_map(|which| Action::Leave { which }),
    ]
}

fn config(cases: u32) -> ProptestConfig {
    let random = std::env::var_os("RANDOM_HISTORIES").is_some();
    let rng_seed = if random { RngSeed::Random } else { RngSeed::Fixed(43) };
    ProptestConfig {
        cases,
        rng_seed,
        failure_persistence: None,
        max_shrink_iters: 50_000,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(10_000))]

    #[test]
    fn no_wait_lasts_forever(history in prop::collection::vec(doing(), 1..30)) {
        check_history(&history, None)?;
    }

    #[test]
    fn no_overtaken_wait_lasts_forever(history in prop::collection::vec(overtaking(), 1..30)) {
        check_history(&history, None)?;
    }

    /// No wait lasts forever, even if searches are interrupted while the waits change.
    #[test]
    fn interrupted_searches_miss_nothing(
        history in prop::collection::vec(doing(), 1..30),
        portion in prop_oneof![1..4usize, 4..20usize],
    ) {
        check_history(&history, Some(portion))?;
    }
}
