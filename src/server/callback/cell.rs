// SPDX-License-Identifier: MIT

//! State that only callbacks of the server touch.

use std::cell::UnsafeCell;

/// The proof that a callback of the server runs: it opens the module's own state, and nothing of the server's. A [`Ctx`](crate::server::Ctx) is
/// one too. Some callbacks get no context, and so have no other.
#[derive(Clone, Copy)]
pub(crate) struct InCallback(());

impl InCallback {
    /// For a callback that gets no context.
    ///
    /// # Safety
    /// A callback of the server runs, and the result is not kept beyond it.
    pub(crate) unsafe fn claim() -> InCallback {
        InCallback(())
    }
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

    /// Puts another value in its place.
    ///
    /// # Safety
    /// Nothing that was borrowed from the value is used any more.
    pub(in crate::server) unsafe fn replace(&self, _proof: impl Into<InCallback>, value: T) -> T {
        // SAFETY: the caller's promise; see `Sync` above for threads.
        unsafe { std::mem::replace(&mut *self.0.get(), value) }
    }
}
