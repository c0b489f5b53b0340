// SPDX-License-Identifier: MIT

//! The module's sources that need no server, and the checks of the fuzzer. `make fuzz` runs it.

// The fuzzer calls only a small part of the sources.
#![allow(dead_code, unused_imports, unreachable_pub, unreachable_code, missing_docs)]

/// The module reports a defect and continues; the fuzzer fails.
macro_rules! defect {
    ($what:literal) => {
        panic!($what)
    };
    ($what:literal, $value:expr) => {{
        panic!($what);
        $value
    }};
}

#[path = "../../../src/core/mod.rs"]
mod core;
#[path = "../../../src/decimal.rs"]
mod decimal;
mod keyspace;

pub use self::core::model_tests::play;
pub use keyspace::{read, read_record};
