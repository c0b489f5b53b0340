// SPDX-License-Identifier: MIT

//! One wait, from the call that has to wait until its grant is confirmed or revoked.

use super::position::Position;
use crate::core::bindings::binding::TakenOver;
use crate::core::table::LockIdx;
use crate::core::{MonoUs, Now, Request, WaiterId};

/// One wait.
pub(in crate::core) struct Wait {
    pub(super) lock: LockIdx,
    pub(super) request: Request,
    /// Start of the wait; after the grant, the time of the grant.
    pub(super) since: MonoUs,
    pub(super) deadline: Option<MonoUs>,
    pub(super) position: Position,
    pub(super) state: WaitState,
    /// Whether the grant is the owner's first hold.
    pub(super) begins: bool,
    /// Dependencies on the connection that a renewal has taken over since the grant.
    pub(super) taken_over: TakenOver,
    /// The first wait of its bundle, if it is a member of one.
    pub(super) first_wait: Option<WaiterId>,
}

/// The state of a wait. A wait that ended without a grant is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum WaitState {
    /// The wait is queued.
    Queued,
    /// The lock is granted, and the client may not have the reply yet.
    Granted,
    /// The reply did not reach the client. The next step of the lock revokes the grant.
    Marked,
}

impl Wait {
    pub(in crate::core) fn lock(&self) -> LockIdx {
        self.lock
    }

    pub(in crate::core) fn request(&self) -> &Request {
        &self.request
    }

    /// Start of the wait; after the grant, the time of the grant.
    pub(in crate::core) fn since(&self) -> MonoUs {
        self.since
    }

    pub(in crate::core) fn deadline(&self) -> Option<MonoUs> {
        self.deadline
    }

    /// Position in the queue, even after the wait has left it.
    pub(in crate::core) fn position(&self) -> Position {
        self.position
    }

    pub(in crate::core) fn place(&self) -> QueuePlace {
        QueuePlace { lock: self.lock, position: self.position, deadline: self.deadline }
    }

    /// Whether the grant is the owner's first hold.
    pub(in crate::core) fn begins(&self) -> bool {
        self.begins
    }

    /// Dependencies on the connection that a renewal has taken over since the grant.
    pub(in crate::core) fn taken_over(&self) -> TakenOver {
        self.taken_over
    }

    pub(in crate::core) fn state(&self) -> WaitState {
        self.state
    }

    /// The first wait of its bundle, if it is a member of one.
    pub(in crate::core) fn first_wait(&self) -> Option<WaiterId> {
        self.first_wait
    }

    pub(in crate::core) fn is_member(&self) -> bool {
        self.first_wait.is_some()
    }

    /// Whether statistics count this wait as its call. True for single waits and for the first wait of a
    /// bundle.
    pub(super) fn counts_as_call(&self, id: WaiterId) -> bool {
        self.first_wait.is_none_or(|first_wait| first_wait == id)
    }

    /// Whether the deadline has passed, even if the client was not answered yet.
    pub(in crate::core) fn is_over(&self, now: Now) -> bool {
        self.deadline.is_some_and(|at| at <= now.mono)
    }
}

/// The place of a wait in the indexes of queued waits.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct QueuePlace {
    pub(in crate::core) lock: LockIdx,
    pub(in crate::core) position: Position,
    pub(in crate::core) deadline: Option<MonoUs>,
}

/// The data of a new wait.
pub(in crate::core) struct NewWait {
    pub(in crate::core) lock: LockIdx,
    pub(in crate::core) request: Request,
    pub(in crate::core) deadline: Option<MonoUs>,
    pub(in crate::core) position: Position,
    pub(in crate::core) since: MonoUs,
    /// The first wait of its bundle, if it is a member of one.
    pub(in crate::core) first_wait: Option<WaiterId>,
}
