// SPDX-License-Identifier: MIT

//! The version and the build of this module.

use std::ffi::c_int;

/// The version in the form of `MODULE LIST`: 100 is 0.1.0.
pub(crate) const VERSION: c_int = number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
    + number(env!("CARGO_PKG_VERSION_PATCH"));

const fn number(digits: &str) -> c_int {
    match c_int::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => panic!("the version in Cargo.toml has three numbers"),
    }
}

/// The time of the commit from which a package or an installation was built, in seconds since the epoch. 0 for other builds.
pub(crate) fn time() -> i64 {
    option_env!("SOURCE_DATE_EPOCH").and_then(|time| time.parse().ok()).unwrap_or(0)
}
