// SPDX-License-Identifier: MIT

//! The order of a queue, see rules 1 and 2 of [the folder](super).

use crate::core::Wants;

/// Position of a wait in its queue. Ordered front to back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// False if the owner holds the lock and wants more of it.
    newcomer: bool,
    /// Number in order of arrival.
    ticket: u64,
}

impl Position {
    /// Position before all others.
    pub(in crate::core) const FRONT: Position = Position { newcomer: false, ticket: 0 };

    /// The position of a wait with this ticket. `holds` tells whether its owner holds the lock.
    pub(in crate::core) fn new(wants: Wants, holds: bool, ticket: u64) -> Position {
        Position { newcomer: !holds || wants.once, ticket }
    }

    pub(in crate::core) fn is_holder(self) -> bool {
        !self.newcomer
    }

    pub(in crate::core) fn ticket(self) -> u64 {
        self.ticket
    }
}
