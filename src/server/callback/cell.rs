// SPDX-License-Identifier: MIT

//! State that is only accessed in callbacks of the server.

use std::cell::UnsafeCell;

/// The proof that a callback of the server is running, for callbacks without a context. It gives access to
/// the module's own state, but not to the server. A [`Ctx`](crate::server::Ctx) also is such a proof.
#[derive(Clone, Copy)]
pub(crate) struct InCallback(());

impl InCallback {
    /// Creates the proof in a callback without a context.
    ///
    /// # Safety
    /// A callback of the server is running, and the result is not kept beyond it.
    pub(crate) unsafe fn claim() -> InCallback {
        InCallback(())
    }
}

/// A value that is only accessed in callbacks of the server.
pub(crate) struct ServerCell<T>(UnsafeCell<T>);

// SAFETY: the server runs the callbacks of modules on one thread at a time. Access needs an `InCallback`, which exists
// only in a callback.
unsafe impl<T> Sync for ServerCell<T> {}

impl<T> ServerCell<T> {
    pub(crate) const fn new(value: T) -> ServerCell<T> {
        ServerCell(UnsafeCell::new(value))
    }

    pub(crate) fn get(&self, _proof: impl Into<InCallback>) -> &T {
        // SAFETY: only shared references to the content are ever created. For threads, see `Sync` above.
        unsafe { &*self.0.get() }
    }

    /// Replaces the value and returns the previous one.
    ///
    /// # Safety
    /// Nothing that was borrowed from the value is still used.
    pub(in crate::server) unsafe fn replace(&self, _proof: impl Into<InCallback>, value: T) -> T {
        // SAFETY: guaranteed by the caller. For threads, see `Sync` above.
        unsafe { std::mem::replace(&mut *self.0.get(), value) }
    }
}
