// SPDX-License-Identifier: MIT

//! Owners that wait on several connections, for one lock or for several at once, in every order: no state lasts for ever.
//!
//! The judge knows no graph. Every owner that waits for nothing releases all that it holds, until nobody is left who could.
//! Then nobody may be left who waits: of those who wait for each other one must have been told so. And if the one that was told
//! goes on waiting instead, somebody must be left.

use super::real::Late;
use super::*;

/// How many calls of one owner wait at a time, at most.
const CONNECTIONS: usize = 3;

#[derive(Clone, Debug)]
enum Do {
    Acquire {
        owner: usize,
        locks: Vec<usize>,
        shared: bool,
        /// Without this it is not queued.
        blocks: bool,
    },
    Release {
        owner: usize,
        lock: usize,
        all: bool,
    },
    /// The time of a call is over, or its client has gone.
    Leave {
        which: usize,
    },
}

/// The core, and the calls that wait.
struct World {
    real: Real,
    waits: Vec<(WaiterId, usize)>,
}

impl World {
    /// Plays what happens, without the steps that cannot. Returns how many waits were told that they would never end. Searches look
    /// at so much in one go, if that is limited, and only once after each step.
    fn play(late: Late, portion: Option<usize>, history: &[Do]) -> (World, usize) {
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

    fn step(&mut self, step: &Do) -> usize {
        let mut told = 0;
        match step {
            Do::Acquire { owner, locks, shared, blocks } => {
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
            Do::Release { owner, lock, all } => {
                let scope = if *all { ReleaseScope::All } else { ReleaseScope::One };
                self.real.step(&Op::Release { lock: *lock, owner: *owner, scope, lease: None, id: None });
            }
            Do::Leave { which } => {
                if !self.waits.is_empty() {
                    let (id, _) = self.waits.remove(which % self.waits.len());
                    assert!(self.real.locks.leave(id));
                    self.real.settle();
                }
            }
        }
        told + self.follow()
    }

    /// Calls that were granted or told do not wait any more. Returns how many were told.
    fn follow(&mut self) -> usize {
        let mut granted = Vec::new();
        let (passes, late) = (&mut self.real.passes, &mut self.real.late_passes);
        let passes = std::mem::take(passes).into_iter().chain(std::mem::take(late));
        let of_passes: Vec<_> = passes.flat_map(|(_, decided)| decided).collect();
        for (id, decision) in of_passes.into_iter().chain(std::mem::take(&mut self.real.decisions)) {
            assert!(matches!(decision, Decision::Granted(_) | Decision::GrantedAll(_)), "{decision:?}");
            self.real.locks.delivered(id, self.real.time());
            granted.push(id);
        }
        let told = std::mem::take(&mut self.real.deadlocked);
        self.waits.retain(|(id, _)| !granted.contains(id) && !told.contains(id));
        told.len()
    }

    /// Every owner that waits for nothing releases all that it holds, the last one first or the first one. Returns whether
    /// everybody has stopped waiting then.
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
                let holds = |holders: &Holders| holders.of(OWNERS[*owner]).is_some();
                self.waiting(*owner) == 0 && visible(&self.real, KEYS[*lock]).as_ref().is_some_and(holds)
            });
            let Some((owner, lock)) = next else { return self.waits.is_empty() };
            self.step(&Do::Release { owner, lock, all: true });
        }
    }
}

/// Fails if somebody waits for ever after this, or was told so without a reason.
fn judge(history: &[Do], portion: Option<usize>) -> Result<(), TestCaseError> {
    for last_first in [false, true] {
        let (mut world, told) = World::play(Late::Ends, portion, history);
        prop_assert!(world.ends(last_first), "these wait for ever: {:?}", world.waits);
        if told > 0 && !waits_in_two_modes(history) {
            let first = (1..=history.len())
                .find(|steps| World::play(Late::Ends, portion, &history[..*steps]).1 > 0)
                .unwrap();
            let (mut world, _) = World::play(Late::Stays, portion, &history[..first]);
            prop_assert!(!world.ends(last_first), "what the last of {} steps was told is wrong", first);
        }
    }
    Ok(())
}

/// True if an owner asks for a lock twice, shared and exclusively. Then both may be granted by the one that stands behind others, so
/// that it may be told too much.
fn waits_in_two_modes(history: &[Do]) -> bool {
    let mut modes = BTreeMap::new();
    history.iter().any(|step| {
        let Do::Acquire { owner, locks, shared, .. } = step else { return false };
        locks.iter().any(|lock| *modes.entry((*owner, *lock)).or_insert(*shared) != *shared)
    })
}

/// The sets of locks that a call can be for, of so many.
fn sets_of(locks: usize) -> Vec<Vec<usize>> {
    let all = 1..1u32 << locks;
    all.map(|set| (0..locks).filter(|lock| set & (1 << lock) != 0).collect()).collect()
}

/// Three owners hold locks, and then three calls come to wait: every so many of all such histories.
fn judge_few_waits(every: usize) {
    const HOLDERS: usize = 3;
    let sets = sets_of(LOCKS.len());
    let mut count = 0;
    let holders = (0..(HOLDERS + 1).pow(3)).map(|n| [n % 4, n / 4 % 4, n / 16]);
    for holders in holders {
        let held: Vec<Do> = (0..LOCKS.len())
            .filter(|lock| holders[*lock] < HOLDERS)
            .map(|lock| Do::Acquire { owner: holders[lock], locks: vec![lock], shared: false, blocks: false })
            .collect();
        let free = holders.iter().filter(|owner| **owner == HOLDERS).count();
        // Locks that are free come last.
        let in_order = holders.is_sorted_by_key(|owner| *owner == HOLDERS);
        if free == LOCKS.len() || !in_order || !is_ordered(&holders[..LOCKS.len() - free]) {
            continue;
        }
        let calls = HOLDERS * sets.len();
        for n in (0..calls.pow(3)).step_by(every) {
            let waits = [n % calls, n / calls % calls, n / calls / calls]
                .map(|call| (call % HOLDERS, &sets[call / HOLDERS]));
            let owners = holders[..LOCKS.len() - free].iter().copied().chain(waits.map(|(owner, _)| owner));
            if !is_ordered(&owners.collect::<Vec<_>>()) {
                continue;
            }
            let waits = waits.map(|(owner, locks)| Do::Acquire {
                owner,
                locks: locks.clone(),
                shared: false,
                blocks: true,
            });
            let history: Vec<Do> = held.iter().cloned().chain(waits).collect();
            count += 1;
            if let Err(error) = judge(&history, None) {
                panic!("{error}: {history:#?}");
            }
        }
    }
    println!("{count} histories");
}

#[test]
fn no_few_waits_last_for_ever() {
    judge_few_waits(7);
}

#[test]
fn long_no_few_waits_last_for_ever() {
    judge_few_waits(1);
}

/// True if each number that comes for the first time is the next one.
fn is_ordered(numbers: &[usize]) -> bool {
    let mut next = 0;
    numbers.iter().all(|number| {
        let fits = *number <= next;
        next = next.max(number + 1);
        fits
    })
}

fn doing() -> impl Strategy<Value = Do> {
    let (lock, owner) = (0..KEYS.len(), 0..OWNERS.len() - 1);
    let locks = prop_oneof![
        2 => lock.clone().prop_map(|lock| vec![lock]),
        3 => prop::sample::subsequence((0..KEYS.len()).collect::<Vec<_>>(), 2..=3),
    ];
    prop_oneof![
        12 => (owner.clone(), locks, prop::bool::weighted(0.3), prop::bool::weighted(0.9))
            .prop_map(|(owner, locks, shared, blocks)| Do::Acquire { owner, locks, shared, blocks }),
        5 => (owner, lock, any::<bool>()).prop_map(|(owner, lock, all)| Do::Release { owner, lock, all }),
        1 => (0..8usize).prop_map(|which| Do::Leave { which }),
    ]
}

/// Few owners and two locks: an owner whose wait is granted moves its other waits for that lock ahead of newcomers.
fn overtaking() -> impl Strategy<Value = Do> {
    let (lock, owner) = (0..2usize, 0..3usize);
    prop_oneof![
        12 => (owner.clone(), lock.clone(), any::<bool>(), prop::bool::weighted(0.9)).prop_map(
            |(owner, lock, shared, blocks)| Do::Acquire { owner, locks: vec![lock], shared, blocks }
        ),
        5 => (owner, lock, any::<bool>()).prop_map(|(owner, lock, all)| Do::Release { owner, lock, all }),
        1 => (0..8usize).prop_map(|which| Do::Leave { which }),
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
    fn no_wait_lasts_for_ever(history in prop::collection::vec(doing(), 1..30)) {
        judge(&history, None)?;
    }

    #[test]
    fn no_wait_that_is_overtaken_lasts_for_ever(history in prop::collection::vec(overtaking(), 1..30)) {
        judge(&history, None)?;
    }

    /// The same if searches are interrupted, and the waits change meanwhile.
    #[test]
    fn interrupted_searches_miss_nothing(
        history in prop::collection::vec(doing(), 1..30),
        portion in prop_oneof![1..4usize, 4..20usize],
    ) {
        judge(&history, Some(portion))?;
    }
}
