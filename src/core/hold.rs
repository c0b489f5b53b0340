// SPDX-License-Identifier: MIT

//! One owner's hold on a lock.

use super::{Mode, Owner, Token, WallMs};

/// One owner's hold on a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// The owner of the hold.
    pub(crate) owner: Owner,
    /// Number of exclusive acquires without a release.
    pub(crate) exclusive: i64,
    /// Number of shared acquires without a release. At least one of the two counts is positive.
    pub(crate) shared: i64,
    /// End of the lease. An owner has one lease for all its holds.
    pub(crate) expires_at: WallMs,
    /// The fencing token, if the owner requested one.
    pub(crate) token: Option<Token>,
    /// Whether the current step set the lease. Such a lease is written even if its end is unchanged, so that
    /// the effect of a renewal does not depend on the clock.
    pub(crate) renewed: bool,
}

impl Hold {
    /// Number of acquires without a release; at least 1.
    pub(crate) fn total(&self) -> i64 {
        self.exclusive.saturating_add(self.shared)
    }

    /// Number of holds in this mode.
    pub(crate) fn count(&self, mode: Mode) -> i64 {
        match mode {
            Mode::Exclusive => self.exclusive,
            Mode::Shared => self.shared,
        }
    }

    pub(super) fn count_mut(&mut self, mode: Mode) -> &mut i64 {
        match mode {
            Mode::Exclusive => &mut self.exclusive,
            Mode::Shared => &mut self.shared,
        }
    }

    pub(super) fn renew(&mut self, expires_at: WallMs) {
        self.expires_at = expires_at;
        self.renewed = true;
    }

    /// Whether the owner may get another hold of this mode despite other holders. True for any shared hold,
    /// and for an exclusive re-entry.
    pub(super) fn allows_more(&self, mode: Mode) -> bool {
        mode == Mode::Shared || self.exclusive > 0
    }
}
