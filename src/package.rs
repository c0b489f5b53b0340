// SPDX-License-Identifier: MIT

//! The version and the build of this module.

use std::ffi::c_int;

/// Version 0.1.0, in the form of `MODULE LIST`.
pub(crate) const VERSION: c_int = 100;

/// The time of the commit from which a package or an installation was built, in seconds since the epoch. 0 for other builds.
pub(crate) fn time() -> i64 {
    option_env!("SOURCE_DATE_EPOCH").and_then(|time| time.parse().ok()).unwrap_or(0)
}
