// SPDX-License-Identifier: MIT

//! The state of each acquire of a session.

use smallvec::SmallVec;

use super::ids::Target;
use crate::core::table::LockIdx;
use crate::core::{Mode, Owner, Reply, WaiterId};

/// The state of a number.
#[derive(Debug)]
pub(in crate::core) enum NumberState {
    /// The request waits in a queue. A call for several locks stores its first wait.
    Waiting(WaiterId),
    /// The client has not acknowledged the grant. A call for several locks stores its first wait.
    InFlight(WaiterId),
    Held(Held),
    /// The number has ended with this answer, and never holds a lock again.
    Answered(Answer),
}

/// The holds of one number.
#[derive(Debug, Default)]
pub(in crate::core) struct Held {
    /// One hold per lock that is still held.
    pub(in crate::core) holds: SmallVec<[NumberedHold; 1]>,
    /// Whether any hold of the number was lost. Its client then relies on none of them.
    pub(in crate::core) is_lost: bool,
}

impl Held {
    /// Removes the owner's hold of a lock. Returns whether none is left.
    pub(super) fn remove(&mut self, lock: LockIdx, owner: &Owner) -> bool {
        if let Some(at) = self.holds.iter().position(|hold| hold.lock == lock && hold.owner == *owner) {
            self.holds.remove(at);
        }
        self.holds.is_empty()
    }
}

/// A hold with a number.
#[derive(Clone, Debug)]
pub(in crate::core) struct NumberedHold {
    pub(in crate::core) lock: LockIdx,
    pub(in crate::core) owner: Owner,
    pub(in crate::core) ephemeral: bool,
    /// The reply to the acquire, which a repeated acquire gets again.
    pub(in crate::core) reply: Reply,
}

impl NumberedHold {
    pub(in crate::core) fn mode(&self) -> Mode {
        self.reply.mode
    }
}

/// The final answer about a number. Kept until `done` passes the number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::core) enum Answer {
    /// The lock was busy, or the wait timed out.
    Busy,
    /// `LOCK.CANCEL` undid the acquire or arrived before it.
    Cancelled {
        /// Whether the call ended a wait or released a hold.
        undone: bool,
    },
    /// The hold was released. The number of holds left to the owner on each lock, as the first reply said.
    Released(SmallVec<[i64; 1]>),
    /// The hold was lost, or a release arrived before the acquire (R23).
    Ended,
}

/// The entry of one number.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) target: Target,
    pub(super) state: NumberState,
    /// Sequence number of the unacknowledged event about this number.
    pub(super) event: Option<u64>,
}

impl Entry {
    /// Whether the number stands for this target. A cancel that arrives before its acquire names only one of
    /// several locks.
    pub(super) fn is_of(&self, target: Target) -> bool {
        let is_early_cancel =
            matches!(self.state, NumberState::Answered(Answer::Cancelled { undone: false }));
        self.target == target || is_early_cancel && target.is_several() && !self.target.is_several()
    }
}
