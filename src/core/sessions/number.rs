// SPDX-License-Identifier: MIT

//! What has become of each acquire of a session.

use smallvec::SmallVec;

use super::SessionKey;
use crate::core::table::LockIdx;
use crate::core::{Mode, Owner, Reply, WaiterId};

/// The number of an acquire, in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallNumber {
    pub(crate) session: SessionKey,
    pub(crate) n: u64,
    /// A number stands for one acquire, so a call with another target is a mistake of the client.
    pub(crate) target: Target,
}

/// The keys and the owner of a call, as a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target(u64);

impl Target {
    /// The target with this hash, of a call for one key or for several.
    pub(crate) fn new(hash: u64, is_several: bool) -> Target {
        Target(hash & !1 | u64::from(is_several))
    }

    /// Whether the call is for several keys.
    pub(super) fn is_several(self) -> bool {
        self.0 & 1 == 1
    }
}

/// What a session knows about a number before the call with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing: the call is new.
    New,
    /// The client has declared that it has the answers of all calls below its `done`, and this is one (R11).
    Late,
    /// The number was used with other keys or another owner.
    OtherTarget,
    /// The acquire waits.
    Waiting,
    /// The acquire was granted. One reply for each of its keys.
    Granted(SmallVec<[Reply; 1]>),
    /// The lock was busy, or the wait timed out.
    Busy,
    /// `LOCK.CANCEL` came first.
    Cancelled,
    /// The hold was released or lost.
    Ended,
}

/// The state of a number.
#[derive(Debug)]
pub(in crate::core) enum NumberState {
    /// The request waits in a queue. For several locks, the first wait.
    Waiting(WaiterId),
    /// The grant is an event that the client has not acknowledged. For several locks, the first wait.
    InFlight(WaiterId),
    Held(Held),
    /// The number holds nothing, and never will.
    Answered(Answer),
}

/// The holds of one number.
#[derive(Debug, Default)]
pub(in crate::core) struct Held {
    /// One hold per lock. Some may be lost.
    pub(in crate::core) holds: SmallVec<[NumberedHold; 1]>,
    /// Whether any hold was lost. The client then does not rely on the others.
    pub(in crate::core) is_lost: bool,
}

/// A hold with a number.
#[derive(Clone, Debug)]
pub(in crate::core) struct NumberedHold {
    pub(in crate::core) lock: LockIdx,
    pub(in crate::core) owner: Owner,
    pub(in crate::core) ephemeral: bool,
    /// The reply to the acquire, which a repeated call gets again.
    pub(in crate::core) reply: Reply,
}

impl NumberedHold {
    pub(in crate::core) fn mode(&self) -> Mode {
        self.reply.mode
    }
}

/// The last word about a number. Kept until the client declares that it has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::core) enum Answer {
    /// The lock was busy, or the wait timed out.
    Busy,
    /// `LOCK.CANCEL` has undone the acquire, or came before it.
    Cancelled {
        /// Whether anything was undone.
        undone: bool,
    },
    /// The hold was released. The number of holds that were left, for each lock.
    Released(SmallVec<[i64; 1]>),
    /// A release came before the acquire, or the hold was lost.
    Ended,
}

/// The entry of one number.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) target: Target,
    pub(super) state: NumberState,
    /// The event about this number that the client has not acknowledged.
    pub(super) event: Option<u64>,
}
