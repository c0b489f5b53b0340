// SPDX-License-Identifier: MIT

//! Waits that are still to be searched for whether they wait for their own owners: those that came to wait for somebody after they
//! began, and those whose search was too long for the call that they began with.
//!
//! The timer searches one at a time, in portions. After each portion the server serves its clients for a few milliseconds.

use std::collections::VecDeque;

use foldhash::HashSet;

use super::waits_for::Search;
use super::{MonoUs, WaiterId};

/// Time between two portions, in microseconds.
const PAUSE_US: MonoUs = 8_000;

/// Those waits.
#[derive(Default)]
pub(super) struct Searches {
    waits: VecDeque<WaiterId>,
    /// The same, to find out whether one is in.
    known: HashSet<WaiterId>,
    /// The search that was interrupted, and how often waits had moved when it began.
    suspend_search: Option<(Box<Search>, u64)>,
    /// How often a wait has moved in its queue.
    moves: u64,
    /// Start of the next portion.
    next_portion: MonoUs,
}

/// What is to be searched next.
pub(super) enum Next {
    Begin(WaiterId),
    GoOn(Box<Search>),
}

impl Searches {
    /// This wait may have come to wait for its own owner.
    pub(super) fn insert(&mut self, id: WaiterId) {
        if self.known.insert(id) {
            self.waits.push_back(id);
        }
    }

    /// A wait stands at another place in its queue. An interrupted search may have passed the new one.
    pub(super) fn note_move(&mut self) {
        self.moves += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.suspend_search.is_none() && self.waits.is_empty()
    }

    /// Number of waits to search.
    pub(super) fn len(&self) -> usize {
        self.waits.len() + usize::from(self.suspend_search.is_some())
    }

    /// Start of the next portion; `None` if no search is left.
    pub(super) fn next(&self) -> Option<MonoUs> {
        (!self.is_empty()).then_some(self.next_portion)
    }

    /// Ends a portion that is used up.
    pub(super) fn rest(&mut self, now: MonoUs) {
        self.next_portion = now.saturating_add(PAUSE_US);
    }

    pub(super) fn take_next(&mut self) -> Option<Next> {
        if let Some((search, moves)) = self.suspend_search.take() {
            return match search.of_wait() {
                Some(id) if moves != self.moves => Some(Next::Begin(id)),
                _ => Some(Next::GoOn(search)),
            };
        }
        let id = self.waits.pop_front()?;
        self.known.remove(&id);
        if self.waits.is_empty() {
            // The memory of a crowd.
            *self = Searches { moves: self.moves, next_portion: self.next_portion, ..Searches::default() };
        }
        Some(Next::Begin(id))
    }

    /// This search was interrupted.
    pub(super) fn suspend_search(&mut self, search: Search) {
        self.suspend_search = Some((Box::new(search), self.moves));
    }
}
