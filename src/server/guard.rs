// SPDX-License-Identifier: MIT

//! Where a panic of the module ends, and what callbacks answer.

use std::ffi::c_int;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the API's functions answer when all is well, and callbacks too.
pub(crate) const OK: c_int = 0;

/// The opposite of [`OK`].
pub(crate) const ERR: c_int = 1;

/// How many callbacks ended in a panic since the module was loaded.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// The reply to a command whose code failed; what happened stands in the server's log.
pub(crate) const INTERNAL_ERROR: &str = "ERR internal error; see the server's log";

/// Runs the body of a callback; a panic in it becomes `None`, after the panic hook has logged it.
pub(crate) fn guard<T>(body: impl FnOnce() -> T) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(body)).ok();
    if result.is_none() {
        PANICS.fetch_add(1, Ordering::Relaxed);
    }
    result
}

/// How many callbacks ended in a panic since the module was loaded.
pub(crate) fn panics() -> usize {
    PANICS.load(Ordering::Relaxed)
}

#[cold]
pub(crate) fn absent(function: &str) -> ! {
    panic!("the server no longer has {function}, which it had at load time")
}

#[cfg(test)]
mod tests {
    use super::{guard, panics};

    #[test]
    fn a_panic_ends_at_the_guard_and_is_counted() {
        assert_eq!(guard(|| 7), Some(7));
        let before = panics();
        assert_eq!(guard(|| panic!("on purpose")), None::<()>);
        assert_eq!(panics(), before + 1);
    }
}
