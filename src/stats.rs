//! What the module counts.

use crate::core::Decision;

/// Counters since the module was loaded.
#[derive(Default)]
pub(crate) struct Stats {
    /// Waiters that were granted their lock.
    pub(crate) granted: usize,
    /// Waiters whose time was over.
    pub(crate) timed_out: usize,
    /// Grants that were revoked, as their client was gone.
    pub(crate) revoked: usize,
    /// Messages to owners about their holds.
    pub(crate) owners_told: usize,
    /// Waits that were refused, as they could never have ended.
    pub(crate) deadlocks: usize,
}

impl Stats {
    pub(crate) fn count(&mut self, decision: &Decision) {
        match decision {
            Decision::Granted(_) => self.granted += 1,
            Decision::TimedOut => self.timed_out += 1,
            Decision::WrongType
            | Decision::Moved
            | Decision::Superseded
            | Decision::Cancelled
            | Decision::Demoted
            | Decision::Lost
            | Decision::Refused(_) => {}
        }
    }
}
