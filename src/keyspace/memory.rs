//! What reading a lock needs to know that is not in its key.

use crate::core::LockRef;

/// What is remembered about locks besides their keys, as far as it helps to read these.
pub(crate) trait Memory {
    /// How many holds end with the next step on this lock, at most, besides the one that a call gives back.
    fn ending(&self, lock: LockRef<'_>) -> usize;
}
