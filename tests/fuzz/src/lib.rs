// SPDX-License-Identifier: MIT

//! The module's sources that know no server, and what is tried with them. `make fuzz` runs it.

// Most of it is called by the module only.
#![allow(dead_code, unused_imports, unreachable_pub, unreachable_code, missing_docs)]

/// What the module reports and lives on with is a failure here.
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
