// SPDX-License-Identifier: MIT

//! What one owner holds of a lock.

use super::{Mode, Owner, Token, WallMs};

/// What one owner holds of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// Whose it is.
    pub(crate) owner: Owner,
    /// How often the owner acquired it exclusively without releasing.
    pub(crate) exclusive: i64,
    /// How often the owner acquired it shared without releasing. One of both is not 0.
    pub(crate) shared: i64,
    /// When the lease runs out; an owner has one, whatever it holds.
    pub(crate) expires_at: WallMs,
    /// The fencing token, if it asked for one.
    pub(crate) token: Option<Token>,
    /// The lease was set by the step at hand. That is a change to be written even if it ends in the same
    /// millisecond as before, so that what is seen of a renewal does not depend on the clock.
    pub(crate) renewed: bool,
}

impl Hold {
    /// How often the owner acquired without releasing; at least 1.
    pub(crate) fn total(&self) -> i64 {
        self.exclusive.saturating_add(self.shared)
    }

    /// How often the owner holds it in this mode.
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

    /// True if its owner may have one more hold of this mode whoever else holds the lock beside it: a second one, or a shared one of
    /// an owner that is alone.
    #[inline(always)]
    pub(super) fn allows_more(&self, mode: Mode) -> bool {
        mode == Mode::Shared || self.exclusive > 0
    }
}
