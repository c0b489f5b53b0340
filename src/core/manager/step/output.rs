// SPDX-License-Identifier: MIT

//! The result of a step, for the caller to act on after the write.

use crate::core::table::LockIdx;
use crate::core::WallMs;

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
    /// The end of the hold, as external clients need to know it.
    pub(crate) expected_end: ExpectedEnd,
}

/// The end of a lock's hold. External clients sleep until the end that they last saw, so an earlier end must
/// be announced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ExpectedEnd {
    /// The end of the lease as written.
    #[default]
    AsWritten,
    /// This time. An unconfirmed grant with `NOTIFY` has a short lease, whose end is watched. The
    /// confirmation extends it to the whole lease.
    Until(WallMs),
    /// Possibly earlier than external clients know. The end that they last saw is no longer stored, so it
    /// cannot be compared.
    MaybeSooner,
}

impl StepOutput {
    /// Whether the lock has state.
    pub(crate) fn is_known(self) -> bool {
        self.lock.is_some()
    }
}
