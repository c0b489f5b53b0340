// SPDX-License-Identifier: MIT

//! The module's commands and the scripts of Redisson's clients have the same effects. Random histories of acquires, releases
//! and renewals use both: on two keys beside each other ([`twins`]), and mixed on one key ([`mixed`]).
//!
//! The scripts are this project's own, with the semantics of Redisson's scripts. The release has three variants, see
//! [`Variant`].

mod calls;
mod desk;
mod mixed;
mod twins;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Debug;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};

use crate::support::{in_world, Flavor};
use calls::{Outcome, Variant, Way};
use desk::Desk;

crate::on_every_server!(twin_keys_stay_equal, one_key_is_shared);

/// Number of histories for each variant of the release.
const HISTORIES: u32 = 32;

/// Two names like Redisson's own, and another one.
const OWNERS: [&str; 3] =
    ["0a4b7f4e-3a45-4f3e-9a70-2f4a3d1c7b11:1", "0a4b7f4e-3a45-4f3e-9a70-2f4a3d1c7b11:27", "c"];

/// Leases in milliseconds, longer than any history. One of them is the default lease.
const LEASES: [i64; 4] = [30_000, 60_000, 75_001, 3_600_000];

/// A change of a lock.
#[derive(Clone, Debug)]
enum Op {
    Acquire {
        owner: usize,
        lease: i64,
    },
    Release {
        owner: usize,
        lease: i64,
        /// The owner did not get the reply to its last release, and sends that release again.
        again: bool,
    },
    Renew {
        owner: usize,
        lease: i64,
    },
    Break,
    /// The lease expires.
    End,
    /// An external client makes the key expire.
    Expire,
}

fn op() -> impl Strategy<Value = Op> {
    // Mostly the first owner, so holds add up.
    let owner = prop_oneof![6 => Just(0), 2 => Just(1), 1 => Just(2)];
    let both = (owner, prop::sample::select(LEASES.as_slice()));
    prop_oneof![
        16 => both.clone().prop_map(|(owner, lease)| Op::Acquire { owner, lease }),
        12 => (both.clone(), prop::bool::weighted(0.5))
            .prop_map(|((owner, lease), again)| Op::Release { owner, lease, again }),
        4 => both.prop_map(|(owner, lease)| Op::Renew { owner, lease }),
        2 => Just(Op::Break),
        1 => Just(Op::End),
        1 => Just(Op::Expire),
    ]
}

fn twin_keys_stay_equal(flavor: Flavor) {
    let history = prop::collection::vec((0..2usize, op()), 1..100);
    check(flavor, history, twins::run);
}

fn one_key_is_shared(flavor: Flavor) {
    let way = prop_oneof![Just(Way::Command), Just(Way::Script)];
    let history = prop::collection::vec((way, op()), 1..100);
    check(flavor, history, mixed::run);
}

/// Runs histories with each variant of the release. A failing history is shrunk and shown.
fn check<S>(flavor: Flavor, history: S, run: impl Fn(&mut Desk, Variant, S::Value) -> TestCaseResult)
where
    S: Strategy<Value: Debug + Clone>,
{
    in_world(flavor, |world| {
        let mut seen = BTreeSet::new();
        for variant in Variant::ALL {
            let desk = RefCell::new(Desk::open(world, variant));
            let config = Config {
                cases: HISTORIES,
                max_shrink_iters: 400,
                max_shrink_time: 20_000,
                failure_persistence: None,
                ..Config::default()
            };
            let result = TestRunner::new(config).run(&history, |history| {
                let mut desk = desk.borrow_mut();
                desk.begin();
                run(&mut desk, variant, history)
            });
            if let Err(failure) = result {
                panic!("{flavor:?}, with the release {variant:?}: {failure}");
            }
            seen.append(&mut desk.into_inner().seen);
        }
        assert_all_seen(&seen);
    });
}

/// Asserts that the histories contain every outcome; otherwise the test would prove nothing.
fn assert_all_seen(seen: &BTreeSet<(Way, Outcome, bool)>) {
    for way in [Way::Command, Way::Script] {
        let once = Outcome::ALL.map(|outcome| (way, outcome, false));
        let again = [(way, Outcome::Kept, true), (way, Outcome::Freed, true)];
        for wanted in once.into_iter().chain(again) {
            assert!(seen.contains(&wanted), "no history has (way, outcome, sent again) = {wanted:?}");
        }
    }
}
