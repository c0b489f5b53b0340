// SPDX-License-Identifier: MIT

//! Reports of violated invariants. Without a report, the only symptom of a broken index would be a client
//! that waits forever.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::OnceLock;

/// Reports a violated invariant. In the tests of this crate it panics. In a server it is logged and counted
/// (`lock_internal_errors` in `INFO lock`), and the caller continues, with `$value` if one is given.
#[macro_export]
macro_rules! defect {
    ($what:literal) => {
        $crate::defect::report(concat!($what, ", in ", file!(), ":", line!()))
    };
    ($what:literal, $value:expr) => {{
        $crate::defect!($what);
        $value
    }};
}

static COUNT: AtomicUsize = AtomicUsize::new(0);
static LOG: OnceLock<fn(&str)> = OnceLock::new();

/// The number of defects since the module was loaded.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// Sets the function that logs defects.
pub(crate) fn log_to(log: fn(&str)) {
    // After a reload of the module, the function that was set first is still the right one.
    let _ = LOG.set(log);
}

/// Panics in tests of this crate; otherwise counts and logs a defect. The macro [`defect!`] calls it.
#[cold]
pub(crate) fn report(what: &str) {
    if cfg!(test) {
        panic!("{what}");
    }
    COUNT.fetch_add(1, Ordering::Relaxed);
    if let Some(log) = LOG.get() {
        log(what);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    #[should_panic(expected = "on purpose, in src/defect.rs:")]
    fn a_defect_ends_a_test() {
        defect!("on purpose");
    }
}
