// SPDX-License-Identifier: MIT

//! The order of a queue. See rules 1 and 2 of [the folder](super).

use crate::core::Wants;

/// Whether a wait's owner holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Standing {
    /// The owner holds the lock and wants more of it.
    Holder,
    Newcomer,
}

impl Standing {
    pub(in crate::core) fn of(holds: bool) -> Standing {
        if holds {
            Standing::Holder
        } else {
            Standing::Newcomer
        }
    }
}

/// Position of a wait in its queue. Ordered front to back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// False if the owner holds the lock and wants more of it.
    newcomer: bool,
    /// Number in the order of arrival.
    ticket: u64,
}

impl Position {
    /// A position before all others.
    pub(in crate::core) const FRONT: Position = Position { newcomer: false, ticket: 0 };

    /// The position of a wait with this ticket.
    pub(in crate::core) fn new(wants: Wants, standing: Standing, ticket: u64) -> Position {
        Position { newcomer: standing == Standing::Newcomer || wants.once, ticket }
    }

    pub(in crate::core) fn is_holder(self) -> bool {
        !self.newcomer
    }

    pub(in crate::core) fn ticket(self) -> u64 {
        self.ticket
    }
}
