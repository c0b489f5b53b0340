// SPDX-License-Identifier: MIT

//! Instructions that the server executes for a lock, counted by callgrind, and compared with other ways to lock. Also counts
//! the instructions that the module adds to commands that use no lock.
//!
//! Except for hand-overs, one client makes all calls, and sends each call after the reply to the previous one. With a replica,
//! only the instructions of the primary are counted.

mod support;

use support::paths::{self, Path};
use support::results::{Results, Target, Unit};
use support::server::Setup;
use support::{callgrind, is_requested, Outcome};

fn main() -> Outcome<()> {
    if !is_requested("instructions") {
        return Ok(());
    }
    let pairs = [
        &paths::SET_DEL,
        &paths::PING,
        &paths::SET_COMPARE,
        &paths::PAIR,
        &paths::PAIR_FENCE,
        &paths::PAIR_ID,
        &paths::PAIR_WATCHDOG,
        &paths::PAIR_EPHEMERAL,
        &paths::PAIR_WITH_EVENTS,
        &paths::PAIR_WITHOUT_LOG,
        &paths::PAIR_SHARED,
        &paths::GUARD_SET,
        &paths::GUARD_TOKEN_SET,
        &paths::CHECK,
        &paths::BESIDE_10,
        &paths::BESIDE_1000,
        &paths::BESIDE_10000,
        &paths::PERMIT,
        &paths::SEVERAL,
        &paths::HAND_OVER,
        &paths::HAND_OVER_WITHOUT_LOG,
        &paths::HAND_OVER_SHORT,
        &paths::HAND_OVER_LOGGED,
        &paths::REDISSON_3_27,
        &paths::REDISSON_3_27_AS_SENT,
        &paths::REDISSON_3_17,
        &paths::SET_DEL_LOGGED,
        &paths::PAIR_LOGGED,
        &paths::PAIR_LOGGED_QUIET,
    ];
    let newer: Vec<_> = paths::NEWER.iter().filter(|(flavor, ..)| flavor.is_installed()).collect();
    let on_newer = newer.iter().flat_map(|(_, pair, other)| [pair, other]);
    let all: Vec<&Path> = pairs.into_iter().chain(on_newer).chain(paths::PLAIN.iter().flatten()).collect();
    let counts = callgrind::measure(&all)?;
    let count = |path: &Path| {
        let at = all.iter().position(|other| other.name == path.name);
        at.map_or(f64::NAN, |at| counts[at])
    };

    let mut results = Results::of("instructions");
    let mut compare = |path: &Path, base: &Path, target| {
        let named = (base.name, count(base));
        results.ratio(
            &format!("instructions: {}", path.name),
            Unit::Instructions,
            count(path),
            named,
            target,
        );
    };
    compare(&paths::PAIR, &paths::SET_DEL, Target::AtMost(1.5));
    compare(&paths::PAIR, &paths::SET_COMPARE, Target::AtMost(1.0));
    for (_, pair, other) in newer {
        compare(pair, other, Target::AtMost(1.25));
    }
    compare(&paths::REDISSON_3_27, &paths::PAIR, Target::AtLeast(4.0));
    compare(&paths::REDISSON_3_27_AS_SENT, &paths::PAIR, Target::None);
    compare(&paths::REDISSON_3_17, &paths::PAIR, Target::None);
    compare(&paths::PAIR_LOGGED, &paths::SET_DEL_LOGGED, Target::AtMost(2.0));
    compare(&paths::PAIR_LOGGED_QUIET, &paths::SET_DEL_LOGGED, Target::AtMost(1.8));
    compare(&paths::PAIR_FENCE, &paths::SET_DEL, Target::AtMost(2.5));
    compare(&paths::PAIR_ID, &paths::SET_DEL, Target::AtMost(2.8));
    for path in [&paths::PAIR_WATCHDOG, &paths::PAIR_EPHEMERAL] {
        compare(path, &paths::SET_DEL, Target::AtMost(2.0));
    }
    compare(&paths::PAIR_WITH_EVENTS, &paths::PAIR, Target::None);
    compare(&paths::PAIR, &paths::PAIR_WITHOUT_LOG, Target::AtMost(1.01));
    compare(&paths::HAND_OVER_SHORT, &paths::HAND_OVER_WITHOUT_LOG, Target::AtMost(1.01));
    compare(&paths::HAND_OVER_LOGGED, &paths::HAND_OVER_WITHOUT_LOG, Target::None);
    for path in [&paths::GUARD_SET, &paths::GUARD_TOKEN_SET] {
        compare(path, &paths::PLAIN[2][0], Target::AtMost(2.2));
    }
    compare(&paths::CHECK, &paths::PLAIN[2][0], Target::None);
    compare(&paths::BESIDE_10, &paths::SET_DEL, Target::None);
    for path in [&paths::BESIDE_1000, &paths::BESIDE_10000, &paths::PERMIT] {
        compare(path, &paths::BESIDE_10, Target::AtMost(1.5));
    }
    compare(&paths::SEVERAL, &paths::PAIR, Target::None);
    for path in [&paths::PING, &paths::SET_COMPARE, &paths::PAIR_SHARED, &paths::HAND_OVER] {
        compare(path, &paths::SET_DEL, Target::None);
    }
    for [bare, empty, module, waiter] in &paths::PLAIN {
        compare(empty, bare, Target::None);
        compare(module, empty, Target::None);
        compare(waiter, empty, Target::AtMost(1.1));
        compare(waiter, bare, Target::None);
    }
    results.finish(&mut Setup::new().without_module().start()?)
}
