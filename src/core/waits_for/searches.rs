// SPDX-License-Identifier: MIT

//! Waits to be searched for cycles: those that got new blockers after they began, and those whose first
//! search was too long for their call.
//!
//! The timer runs one search at a time, in portions. Between portions, the server serves its clients for a
//! few milliseconds.

use std::collections::VecDeque;

use foldhash::HashSet;

use super::search::Search;
use crate::core::{MonoUs, WaiterId};

/// Time between two portions, in microseconds.
const PAUSE_US: MonoUs = 8_000;

/// The waits to be searched.
#[derive(Default)]
pub(in crate::core) struct Searches {
    waits: VecDeque<WaiterId>,
    /// A set of these waits, for look-ups.
    known: HashSet<WaiterId>,
    /// The interrupted search, with the value of `moves` at its start.
    suspended: Option<(Box<Search>, u64)>,
    /// Number of moves of waits within their queues.
    moves: u64,
    /// Start of the next portion.
    next_portion: MonoUs,
}

/// The next search.
pub(in crate::core) enum Next {
    Begin(WaiterId),
    GoOn(Box<Search>),
}

impl Searches {
    /// Adds a wait that may wait for its own owner now.
    pub(in crate::core) fn insert(&mut self, id: WaiterId) {
        if self.known.insert(id) {
            self.waits.push_back(id);
        }
    }

    /// Records that a wait has moved in its queue. An interrupted search may have passed its new position.
    pub(in crate::core) fn note_move(&mut self) {
        self.moves += 1;
    }

    pub(in crate::core) fn is_empty(&self) -> bool {
        self.suspended.is_none() && self.waits.is_empty()
    }

    /// Number of waits to search.
    pub(in crate::core) fn len(&self) -> usize {
        self.waits.len() + usize::from(self.suspended.is_some())
    }

    /// Start of the next portion; `None` if no search is left.
    pub(in crate::core) fn next(&self) -> Option<MonoUs> {
        (!self.is_empty()).then_some(self.next_portion)
    }

    /// Ends a portion that is used up.
    pub(in crate::core) fn rest(&mut self, now: MonoUs) {
        self.next_portion = now.saturating_add(PAUSE_US);
    }

    pub(in crate::core) fn take_next(&mut self) -> Option<Next> {
        if let Some((search, moves)) = self.suspended.take() {
            return match search.of_wait() {
                Some(id) if moves != self.moves => Some(Next::Begin(id)),
                _ => Some(Next::GoOn(search)),
            };
        }
        let id = self.waits.pop_front()?;
        self.known.remove(&id);
        if self.waits.is_empty() {
            // Frees excess memory.
            *self = Searches { moves: self.moves, next_portion: self.next_portion, ..Searches::default() };
        }
        Some(Next::Begin(id))
    }

    /// Stores an interrupted search.
    pub(in crate::core) fn suspend_search(&mut self, search: Search) {
        self.suspended = Some((Box::new(search), self.moves));
    }
}
