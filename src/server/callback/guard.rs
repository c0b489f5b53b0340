// SPDX-License-Identifier: MIT

//! The guard that stops panics at the boundary of a callback.

use std::ffi::c_int;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Return value for success, of API functions and of callbacks.
pub(crate) const OK: c_int = 0;

/// Return value for failure, the opposite of [`OK`].
pub(crate) const ERR: c_int = 1;

/// Number of callbacks that have panicked since the module was loaded.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Reply to a command that has panicked. The server's log has the details.
pub(crate) const INTERNAL_ERROR: &str = "ERR internal error; see the server's log";

/// Runs the body of a callback. A panic becomes `None`, after the panic hook has logged it.
pub(crate) fn guard<T>(body: impl FnOnce() -> T) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(body)).ok();
    if result.is_none() {
        PANICS.fetch_add(1, Ordering::Relaxed);
    }
    result
}

/// Number of callbacks that have panicked since the module was loaded.
pub(crate) fn panics() -> usize {
    PANICS.load(Ordering::Relaxed)
}

#[cold]
pub(crate) fn missing_function(function: &str) -> ! {
    panic!("the server no longer has {function}, which it had at load time")
}

#[cfg(test)]
mod tests {
    use super::{guard, panics};

    #[test]
    fn panics_end_at_the_guard() {
        assert_eq!(guard(|| 7), Some(7));
        let before = panics();
        assert_eq!(guard(|| panic!("on purpose")), None::<()>);
        assert_eq!(panics(), before + 1);
    }
}
