//! What reading a lock needs to know that is not in its key.

use crate::core::{Hold, LockRef};

/// What is remembered about locks besides their keys, as far as it helps to read these.
pub(crate) trait Memory {
    /// How many holds end with the next step on this lock, at most, besides the one that a call gives back.
    fn ending(&self, lock: LockRef<'_>) -> usize;
    /// The hold that was alone on this lock, plain and exclusive, when it was written last, if nothing is known to have changed
    /// since: its lease has not, as each change of a TTL is told.
    fn plain_hold(&self, lock: LockRef<'_>) -> Option<Hold>;
}
