// SPDX-License-Identifier: MIT

//! What reading a lock needs to know that is not in its key.

use crate::core::Hold;

/// What is remembered about a lock besides its key, as far as it helps to read that.
pub(crate) trait Memory {
    /// How many holds end with the next step, at most, besides the one that a call gives back.
    fn ending(&self) -> usize;
    /// The hold that was alone on the lock, plain and exclusive, when it was written last, if nothing is known to have changed
    /// since: its lease has not, as each change of a TTL is told.
    fn plain_hold(&self) -> Option<Hold>;
}
