// SPDX-License-Identifier: MIT

//! Shared code of the benchmarks. The test kit (`tests/kit`) starts the servers and client programs.
//!
//! # Layout
//!
//! - [`server`]: the measured server, with or without the module, and optionally under callgrind.
//! - [`caller`]: a connection that makes one call at a time.
//! - [`callgrind`]: instructions of each call; [`paths`]: the counted calls; [`system_calls`]: system calls of the server.
//! - [`swarm`]: many clients in one thread; [`clients`]: their behavior; [`wire`]: finds the end of a reply.
//! - [`race`]: clients that compete for locks; [`race_result`]: its size and result; [`killed`]: how long a killed process
//!   keeps its lock.
//! - [`session`]: a client with a session; [`session_ring`]: such clients hand locks to each other; [`session_tasks`]: a process
//!   with many tasks in one session.
//! - [`ring`]: clients that hand a lock to each other, and sleep until they get a reply; [`sleeping`]: the cost of a hand-over.
//! - [`stall`]: the longest time without a reply; [`crowded_waits`]: thousands of waits, for `stalls`.
//! - [`postgres`], [`redisson`], [`service`]: other lock servers and clients, for comparison; [`program`]: their processes.
//! - [`samples`]: percentiles; [`results`]: the rows of the final table of `make bench`; [`picture`]: SVG charts.
//! - [`machine`]: cores, processor time, limits.

#![allow(dead_code, unreachable_pub)] // Each benchmark uses only some of the items.

pub mod caller;
pub mod callgrind;
pub mod clients;
pub mod crowded_waits;
pub mod killed;
pub mod machine;
pub mod paths;
pub mod picture;
pub mod postgres;
pub mod program;
pub mod race;
pub mod race_result;
pub mod redisson;
pub mod results;
pub mod ring;
pub mod samples;
pub mod server;
pub mod service;
pub mod session;
pub mod session_ring;
pub mod session_tasks;
pub mod sleeping;
pub mod stall;
pub mod swarm;
pub mod system_calls;
pub mod wire;

use std::error::Error;

pub use redis_lock_test_kit::packed;

pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// An owner name of the form that Redisson uses.
pub const OWNER: &str = "8743c9c0-0719-4bdd-8b5d-6b1a1e5b1d3a:1";

/// Returns true if `cargo bench` runs this program. `cargo test --all-targets` runs it too, but without `--bench`.
pub fn is_requested(bench: &str) -> bool {
    let is_requested = std::env::args().any(|arg| arg == "--bench");
    if !is_requested {
        println!("run it with `cargo bench --bench {bench}`");
    }
    is_requested
}

/// Returns true if `QUICK` is set. Then a benchmark takes few samples: enough to try it, but not to quote it.
pub fn is_quick() -> bool {
    std::env::var_os("QUICK").is_some_and(|value| !value.is_empty())
}

/// Returns `full`, or `quick` if `QUICK` is set.
pub fn unless_quick<T>(full: T, quick: T) -> T {
    if is_quick() {
        quick
    } else {
        full
    }
}

/// Formats a number as `12,345`.
pub fn thousands(number: usize) -> String {
    match number {
        0..=999 => number.to_string(),
        _ => format!("{},{:03}", thousands(number / 1000), number % 1000),
    }
}
