// SPDX-License-Identifier: MIT

//! The duration of a hold, and the ways in which a call sets it.

use super::WallMs;

/// A lease that an owner was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    /// Length in milliseconds when the lease was set.
    pub(super) ms: i64,
    /// Whether a longer lease stays in force.
    pub(super) keeps_longer: bool,
    /// End of the lease.
    pub(super) end: WallMs,
}

impl Lease {
    /// A lease that replaces any earlier one.
    pub(super) fn new(ms: i64, end: WallMs) -> Lease {
        Lease { ms, keeps_longer: false, end }
    }
}

/// The effect of a call on a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetLease {
    /// Ends the lease at this time, earlier or later than before.
    To(WallMs),
    /// Extends the lease to this time unless it ends later. Calls without a lease do so.
    AtLeast(WallMs),
}

impl SetLease {
    /// Returns the end of a lease that ended at `before`; `None` if the owner had none.
    pub(super) fn after(self, before: Option<WallMs>) -> WallMs {
        match self {
            SetLease::To(end) => end,
            SetLease::AtLeast(end) => before.map_or(end, |before| before.max(end)),
        }
    }

    /// Returns the end of the lease while the grant may still be revoked. Such a grant never shortens a
    /// lease.
    pub(super) fn while_revocable(self, before: Option<WallMs>) -> WallMs {
        let (SetLease::To(end) | SetLease::AtLeast(end)) = self;
        SetLease::AtLeast(end).after(before)
    }

    /// Extends the end to `end` unless it is later.
    pub(super) fn at_least(&mut self, end: WallMs) {
        *self = match *self {
            SetLease::To(at) => SetLease::To(at.max(end)),
            SetLease::AtLeast(at) => SetLease::AtLeast(at.max(end)),
        };
    }
}
