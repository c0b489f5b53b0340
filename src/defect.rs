// SPDX-License-Identifier: MIT

//! What cannot happen: reported when it does, so that a broken index is not a client that waits for ever without a word.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::OnceLock;

/// Says that something has happened that cannot. In the tests of this crate it panics; in a server it is logged and counted
/// (`lock_internal_errors` in `INFO lock`), and the caller goes on with the value that is given, if one is.
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

/// How many defects were found since the module was loaded.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// Where defects are logged.
pub(crate) fn log_to(log: fn(&str)) {
    // One that was set by an earlier load of the module is the same function.
    let _ = LOG.set(log);
}

/// See [`defect!`].
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
