// SPDX-License-Identifier: MIT

//! Counters of the driver. The counters of the core are in [`Statistics`](crate::core::Statistics).

/// Counters since the module was loaded.
#[derive(Default)]
pub(crate) struct Stats {
    /// Grants that were revoked because their client was gone.
    pub(crate) revoked: usize,
    /// Messages to owners about their holds.
    pub(crate) owner_events: usize,
    /// Waits that ended with an error because they could never have ended otherwise.
    pub(crate) deadlocks: usize,
    /// Calls with `REPLICAS` for which too few replicas were online or acknowledged in time.
    pub(crate) replicas_missed: usize,
    /// Waits refused because as many clients as allowed were waiting.
    pub(crate) waits_refused: usize,
}
