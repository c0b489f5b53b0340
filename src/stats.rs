// SPDX-License-Identifier: MIT

//! What the module counts, other than [`Statistics`](crate::core::Statistics).

/// Counters since the module was loaded.
#[derive(Default)]
pub(crate) struct Stats {
    /// Grants that were revoked, as their client was gone.
    pub(crate) revoked: usize,
    /// Messages to owners about their holds.
    pub(crate) owner_events: usize,
    /// Waits that were refused, as they could never have ended.
    pub(crate) deadlocks: usize,
    /// Calls that too few replicas have acknowledged, or that too few could.
    pub(crate) replicas_missed: usize,
}
