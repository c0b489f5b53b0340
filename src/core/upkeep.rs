//! Whether anything is remembered, and memory that is given back.

use foldhash::HashMap;

use super::Service;

impl Service {
    /// True if nothing is remembered: no input but an acquire can matter.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.dirty.is_empty()
    }

    /// True if [`touched`](Service::touched) would do nothing, whatever the key.
    pub(crate) fn ignores(&self, gone: bool) -> bool {
        self.entries.is_empty() && (!gone || self.held.is_empty())
    }

    /// Fails if anything is kept but decisions that nobody has taken yet.
    #[cfg(test)]
    pub(crate) fn assert_empty_but_decisions(&self) {
        assert!(self.entries.is_empty() && self.waiters.is_empty() && self.leases.is_empty());
        assert!(self.turns.is_empty() && self.dirty.is_empty() && self.owed.is_empty());
    }

    /// Fails if anything is kept.
    #[cfg(test)]
    pub(crate) fn assert_empty(&self) {
        for (table, size) in self.tables() {
            // The hints are bounded, and may be of keys that are gone.
            assert!(size == 0 || table == c"table_granted_key_hints", "{size} are kept in {table:?}");
        }
    }

    /// Frees tables that are empty and were large.
    pub(crate) fn give_memory_back(&mut self) {
        if self.waiters.is_empty() && self.waits_of.capacity() > 1024 {
            self.waits_of = HashMap::default();
            self.asked = HashMap::default();
        }
        if self.decisions.is_empty() {
            self.decisions = Vec::new();
        }
    }
}
