//! Safe wrappers over the module API: the only place with `unsafe`.
//!
//! The server calls a module on one thread at a time, the one that holds its global lock, and so every
//! wrapper here may only be used from inside a callback of the server. [`Ctx`] is the proof: nobody else
//! makes one. A callback that gets no context has an [`InCallback`], which opens the module's own state only. Every `extern "C"` function goes through [`guard`], because a panic that leaves it would end
//! the server.

/// Calls a function of the module API. All that the module needs are checked at load
/// ([`load::missing_symbols`]); an absent one is a defect of ours, and ends in [`guard`].
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match redis_module::raw::$function {
            Some(function) => function($($argument),*),
            None => $crate::server::absent(stringify!($function)),
        }
    };
}

pub(crate) mod blocked;
pub(crate) mod caller;
pub(crate) mod config;
pub(crate) mod ctx;
pub(crate) mod events;
mod field_ends;
pub(crate) mod info;
pub(crate) mod key;
pub(crate) mod load;
mod messages;
pub(crate) mod muted;
mod notify;
pub(crate) mod propagation;
pub(crate) mod reply;
pub(crate) mod selected_database;
pub(crate) mod socket;
pub(crate) mod string;
pub(crate) mod timer;
pub(crate) mod turn;
pub(crate) mod unloading;

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use ctx::{enter, Ctx, InCallback, Obstacle};
pub(crate) use string::Str;

/// What the API's functions answer when all is well, and callbacks too.
pub(crate) const OK: c_int = 0;

/// The opposite of [`OK`].
pub(crate) const ERR: c_int = 1;

/// How many callbacks ended in a panic since the module was loaded.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// From now on nothing is said that nobody hears, as far as the server lets us know.
pub(crate) fn start(ctx: Ctx<'_>) {
    if let Some(server) = load::server_version() {
        notify::start(ctx, server);
        propagation::start(ctx, server);
    }
}

/// Drops all state, as the module is unloaded.
pub(crate) fn stop(ctx: Ctx<'_>) {
    events::forget(ctx);
    messages::stop(ctx);
}

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
    panic!("the server has no {function}, which was there when the module was loaded")
}

/// A value that only callbacks of the server touch.
pub(crate) struct ServerCell<T>(UnsafeCell<T>);

// SAFETY: the server runs the callbacks of modules on one thread at a time, and access needs an `InCallback`,
// which exists in a callback only.
unsafe impl<T> Sync for ServerCell<T> {}

impl<T> ServerCell<T> {
    pub(crate) const fn new(value: T) -> ServerCell<T> {
        ServerCell(UnsafeCell::new(value))
    }

    pub(crate) fn get(&self, _proof: impl Into<InCallback>) -> &T {
        // SAFETY: only shared references are ever made of the content; see `Sync` above for threads.
        unsafe { &*self.0.get() }
    }
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
