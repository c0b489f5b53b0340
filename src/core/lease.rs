// SPDX-License-Identifier: MIT

//! How long a hold lasts, and how a call sets that.

use super::WallMs;

/// A lease that an owner was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    /// How many milliseconds it was long when it was set.
    pub(super) ms: i64,
    /// A longer one stays.
    pub(super) keeps_longer: bool,
    /// When it ends.
    pub(super) end: WallMs,
}

impl Lease {
    /// This one, whatever there was before.
    pub(super) fn new(ms: i64, end: WallMs) -> Lease {
        Lease { ms, keeps_longer: false, end }
    }
}

/// How a call sets a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetLease {
    /// To this end, shorter or longer.
    To(WallMs),
    /// Longer, if it ends before that. So do calls that give no lease.
    AtLeast(WallMs),
}

impl SetLease {
    /// When a lease ends after this, that ended at `before`; `None` if there was none.
    pub(super) fn after(self, before: Option<WallMs>) -> WallMs {
        match self {
            SetLease::To(end) => end,
            SetLease::AtLeast(end) => before.map_or(end, |before| before.max(end)),
        }
    }

    /// The end of a lease that a grant sets which may be revoked: it shortens nothing.
    pub(super) fn while_revocable(self, before: Option<WallMs>) -> WallMs {
        let (SetLease::To(end) | SetLease::AtLeast(end)) = self;
        SetLease::AtLeast(end).after(before)
    }

    /// Sets a lease that ends then or later.
    pub(super) fn at_least(&mut self, end: WallMs) {
        *self = match *self {
            SetLease::To(at) => SetLease::To(at.max(end)),
            SetLease::AtLeast(at) => SetLease::AtLeast(at.max(end)),
        };
    }
}
