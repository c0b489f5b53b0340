//! Locks that end without a word: what strangers do to the fields of a hash.

use std::ops::Bound;

use super::{LockId, LockRef, Now, Service, WallMs};

/// How many locks are looked at in one go, of those that a foreign write may have freed without a word.
const FRAGILE_BATCH: usize = 64;

impl Service {
    /// True if there are locks that must be looked at every now and then: see
    /// [`look_at_fragile`](Service::look_at_fragile).
    pub(crate) fn has_fragile(&self) -> bool {
        !self.fragile.is_empty()
    }

    /// True if some of them are still to be looked at.
    pub(crate) fn is_looking_at_fragile(&self) -> bool {
        self.looked_at_fragile.is_some()
    }

    /// A stranger may have deleted the owner's field of a fenced lock that somebody waits for. Some of these are looked at,
    /// and the next time the next.
    pub(crate) fn look_at_fragile(&mut self) {
        let after = self.looked_at_fragile.take().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.fragile.range((after, Bound::Unbounded));
        let next: Vec<LockId> = next.take(FRAGILE_BATCH).cloned().collect();
        if next.len() == FRAGILE_BATCH {
            self.looked_at_fragile = next.last().cloned();
        }
        self.dirty.extend(next);
    }

    /// A field of the lock ends by itself, at this time, and with it maybe the first lease.
    pub(crate) fn field_ends(&mut self, lock: LockRef<'_>, at: WallMs, now: Now) {
        // If it is over, and was read all the same, the server's clock is that much older.
        let at = at.max(now.wall.saturating_add(1));
        let planned = self.entries.get(lock).and_then(|entry| entry.lease_end);
        if planned.is_some_and(|planned| at < planned) {
            self.set_lease_end(lock, Some(at));
        }
    }

    /// True if the end of this lock's first lease is waited for.
    pub(crate) fn watches_lease(&self, lock: LockRef<'_>) -> bool {
        !self.leases.is_empty() && self.entries.get(lock).is_some_and(|entry| entry.lease_end.is_some())
    }
}
