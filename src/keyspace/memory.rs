// SPDX-License-Identifier: MIT

//! Information that helps to read a lock and that its key does not contain.

use crate::core::Hold;

/// The remembered state of a lock that helps to read its key.
pub(crate) trait Memory {
    /// Maximum number of holds that end with the next step, besides the caller's.
    fn ending(&self) -> usize;
    /// The last written hold, if it was a single exclusive hold without a token and no change has been
    /// reported since. Its lease is also unchanged, because every change of a TTL raises an event.
    fn plain_hold(&self) -> Option<Hold>;
}
