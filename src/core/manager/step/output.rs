// SPDX-License-Identifier: MIT

//! The result of a step, for the caller to act on after the write.

use crate::core::table::LockIdx;

/// Result of a step, for the caller to act on after the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepOutput {
    /// `None` if the lock has no state.
    pub(in crate::core::manager) lock: Option<LockIdx>,
    /// Whether the end of the first lease is watched.
    pub(crate) watches_lease: bool,
    /// Whether a hold ended without a call, and the lock must be announced if it is free.
    pub(crate) unannounced: bool,
    /// Whether the lock is free and a bundle may take it in this command. It is not announced until that
    /// bundle has been tried.
    pub(crate) is_reserved: bool,
}

impl StepOutput {
    /// Whether the lock has state.
    pub(crate) fn is_known(self) -> bool {
        self.lock.is_some()
    }
}
