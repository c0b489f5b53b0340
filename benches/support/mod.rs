// SPDX-License-Identifier: MIT

//! What the benchmarks share.
//!
//! # Layout
//!
//! - [`server`]: a Redis of its own, with the module or without, under callgrind or not.
//! - [`callgrind`]: instructions per call; [`paths`]: the calls that are counted; [`system_calls`]: the same of these.
//! - [`swarm`]: many clients in one thread; [`clients`]: what they do; [`wire`]: where a reply ends.
//! - [`ring`]: clients that hand a lock to each other, and sleep until their reply; [`sleeping`]: what they cost.
//! - [`crowded_waits`]: thousands of waits, for `stalls`.
//! - [`postgres`], [`redisson`]: the others that are measured.
//! - [`samples`]: percentiles; [`results`]: the rows of the table that `make bench` ends with; [`picture`]: SVG.
//! - [`machine`]: cores, processor time, limits.

#![allow(dead_code, unreachable_pub)] // Each benchmark uses its part.

pub mod caller;
pub mod callgrind;
pub mod clients;
pub mod crowded_waits;
pub mod machine;
pub mod paths;
pub mod picture;
pub mod postgres;
pub mod race;
pub mod redisson;
pub mod results;
pub mod ring;
pub mod samples;
pub mod server;
pub mod sleeping;
pub mod swarm;
pub mod system_calls;
pub mod wire;

use std::error::Error;

pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// An owner as Redisson makes them.
pub const OWNER: &str = "8743c9c0-0719-4bdd-8b5d-6b1a1e5b1d3a:1";

/// Are we to measure? `cargo test --all-targets` runs the benchmarks too, without the word.
pub fn asked(bench: &str) -> bool {
    let asked = std::env::args().any(|arg| arg == "--bench");
    if !asked {
        println!("run it with `cargo bench --bench {bench}`");
    }
    asked
}

/// With `QUICK` set, everything is measured with fewer samples: to try a benchmark, not to quote it.
pub fn is_quick() -> bool {
    std::env::var_os("QUICK").is_some_and(|value| !value.is_empty())
}

/// The first, or with `QUICK` the second.
pub fn unless_quick<T>(full: T, quick: T) -> T {
    if is_quick() {
        quick
    } else {
        full
    }
}

/// `12,345`.
pub fn thousands(number: usize) -> String {
    match number {
        0..=999 => number.to_string(),
        _ => format!("{},{:03}", thousands(number / 1000), number % 1000),
    }
}

/// A command, whose words are separated by spaces, as it goes over the wire.
pub fn packed(command: &str) -> Vec<u8> {
    let mut words = redis::Cmd::new();
    for word in command.split(' ') {
        words.arg(word);
    }
    words.get_packed_command()
}
