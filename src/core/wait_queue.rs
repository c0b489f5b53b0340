// SPDX-License-Identifier: MIT

//! The queue of one lock: who waits for it, and in which order they are served. No other file decides that.
//!
//! An owner who holds the lock and wants more of it (an upgrade, a second wait) comes before all newcomers; but one whose own
//! hold is in its way ([`Wants::once`]) is a newcomer. Within each of the two groups the one who came first comes first.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use super::{Mode, WaiterId, Wants};

/// Where a wait stands in its queue. Who is less is served before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// False for an owner who holds the lock and wants more of it.
    newcomer: bool,
    /// In the order of arrival.
    ticket: u64,
}

impl Position {
    /// Nobody is before it.
    pub(super) const FRONT: Position = Position { newcomer: false, ticket: 0 };

    /// The position of a wait that arrived with this ticket, and whose owner holds the lock or not.
    pub(super) fn new(wants: Wants, holds: bool, ticket: u64) -> Position {
        Position { newcomer: !holds || wants.once, ticket }
    }

    pub(super) fn is_holder(self) -> bool {
        !self.newcomer
    }

    pub(super) fn ticket(self) -> u64 {
        self.ticket
    }
}

#[derive(Clone, Copy, Debug)]
struct Place {
    position: Position,
    id: WaiterId,
    wants: Wants,
}

/// Who waits for one lock.
#[derive(Default)]
pub(super) struct WaitQueue {
    /// In the order of the positions. Nearly all come at the back and leave at the front.
    places: VecDeque<Place>,
    /// The positions of those behind whom everybody waits; only kept while anybody is in the queue for whom that is not so.
    barring: BTreeSet<Position>,
    /// For how many that is not so: those who want the lock shared, whoever has it so already.
    readers: usize,
    /// The positions of those whose owner waits for other locks too: only through them does the waits-for graph lead from
    /// this queue to another lock.
    crossing: BTreeSet<Position>,
}

impl WaitQueue {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Who waits, in the order in which they are served.
    pub(super) fn iter(&self) -> impl Iterator<Item = WaiterId> + '_ {
        self.places.iter().map(|place| place.id)
    }

    /// Who is served next, were the lock free.
    pub(super) fn first(&self) -> Option<WaiterId> {
        self.places.front().map(|place| place.id)
    }

    /// Whether the wait at this position is the first.
    fn is_first(&self, position: Position) -> bool {
        self.places.front().is_none_or(|first| position < first.position)
    }

    /// Who can be served next, if this says of a wait whether it could be decided: of those who want more of what they hold
    /// any, as they are in nobody's way, but of the newcomers the first only.
    pub(super) fn next(&self, mut decidable: impl FnMut(WaiterId) -> bool) -> Option<WaiterId> {
        let first = self.places.front()?;
        if !first.position.is_holder() {
            return decidable(first.id).then_some(first.id);
        }
        let holders = self.places.iter().take_while(|place| place.position.is_holder());
        holders.into_iter().find(|place| decidable(place.id)).map(|place| place.id)
    }

    /// True if who is served next may be so as soon as fewer hold the lock: a reader who wants it alone, or with a limit.
    pub(super) fn waits_for_fewer(&self) -> bool {
        self.places.front().is_some_and(|first| first.position.is_holder() || first.wants.limit.is_some())
    }

    /// Those who wait although they hold the lock.
    pub(super) fn holders(&self) -> impl Iterator<Item = (WaiterId, Position)> + '_ {
        let holders = self.places.iter().take_while(|place| place.position.is_holder());
        holders.map(|place| (place.id, place.position))
    }

    /// True if anybody waits who holds the lock.
    pub(super) fn has_holders(&self) -> bool {
        self.places.front().is_some_and(|place| place.position.is_holder())
    }

    pub(super) fn insert(&mut self, position: Position, id: WaiterId, wants: Wants) {
        let at = if self.places.back().is_none_or(|last| last.position < position) {
            self.places.len()
        } else {
            self.place_of(position)
        };
        if !wants.bars_readers() {
            if self.readers == 0 {
                self.barring.extend(self.places.iter().map(|place| place.position));
            }
            self.readers += 1;
        } else if self.readers > 0 {
            self.barring.insert(position);
        }
        self.places.insert(at, Place { position, id, wants });
    }

    /// Takes a wait out. Returns whether it stood there.
    pub(super) fn remove(&mut self, position: Position) -> bool {
        let at = self.place_of(position);
        if self.places.get(at).is_none_or(|place| place.position != position) {
            return false;
        }
        let Some(place) = self.places.remove(at) else { return false };
        self.crossing.remove(&position);
        if !place.wants.bars_readers() {
            self.readers -= 1;
            if self.readers == 0 {
                self.barring.clear();
            }
        } else if self.readers > 0 {
            self.barring.remove(&position);
        }
        if self.places.is_empty() && self.places.capacity() > 64 {
            self.places = VecDeque::new();
        }
        true
    }

    /// Where this position is, or would be.
    fn place_of(&self, position: Position) -> usize {
        match self.places.front() {
            Some(first) if position <= first.position => 0,
            _ => self.places.partition_point(|place| place.position < position),
        }
    }

    /// The owner at this position waits for other locks too, or does so no more.
    pub(super) fn set_crossing(&mut self, position: Position, crosses: bool) {
        if crosses {
            self.crossing.insert(position);
        } else {
            self.crossing.remove(&position);
        }
    }

    pub(super) fn is_crossing(&self, position: Position) -> bool {
        self.crossing.contains(&position)
    }

    /// True if an owner in the queue waits for another lock too.
    pub(super) fn has_crossing(&self) -> bool {
        !self.crossing.is_empty()
    }

    /// True if one that wanted this of the lock and has left this position may have made way for the next: readers who stood
    /// behind a writer, or behind one who wanted the lock with fewer others.
    pub(super) fn makes_way(&self, position: Position, wants: Wants) -> bool {
        let next_is_shared = self.places.front().is_some_and(|next| next.wants.mode == Mode::Shared);
        wants.bars_readers() && self.is_first(position) && next_is_shared
    }

    /// All who are at these positions.
    pub(super) fn at(&self, positions: Range<Position>) -> impl Iterator<Item = WaiterId> + '_ {
        let (from, to) = (self.place_of(positions.start), self.place_of(positions.end));
        self.places.range(from..to.max(from)).map(|place| place.id)
    }

    /// Those of them behind whom everybody waits, nearest to the back first.
    pub(super) fn barring_at(&self, positions: Range<Position>) -> impl Iterator<Item = WaiterId> + '_ {
        let all = self.readers == 0;
        let places = if all { positions.clone() } else { Position::FRONT..Position::FRONT };
        let indexed = if all { Position::FRONT..Position::FRONT } else { positions };
        let (from, to) = (self.place_of(places.start), self.place_of(places.end));
        let indexed = self.barring.range(indexed).rev().filter_map(|position| self.id_at(*position));
        self.places.range(from..to.max(from)).rev().map(|place| place.id).chain(indexed)
    }

    /// Those of them whose owner waits for other locks too.
    pub(super) fn crossing_at(&self, positions: Range<Position>) -> impl Iterator<Item = WaiterId> + '_ {
        self.crossing.range(positions).filter_map(|position| self.id_at(*position))
    }

    fn id_at(&self, position: Position) -> Option<WaiterId> {
        let place = self.places.get(self.place_of(position))?;
        (place.position == position).then_some(place.id)
    }

    /// Fails if the order or an index is not what the places say. `crosses` says so of a wait.
    #[cfg(test)]
    pub(super) fn verify(&self, crosses: impl Fn(WaiterId) -> bool) {
        let sorted = self.places.iter().zip(self.places.iter().skip(1)).all(|(a, b)| a.position < b.position);
        assert!(sorted, "the queue is out of order: {:?}", self.places);
        let barring = self.places.iter().filter(|place| place.wants.bars_readers());
        assert_eq!(self.readers, self.places.len() - barring.clone().count(), "the readers are miscounted");
        let barring = barring.filter(|_| self.readers > 0).map(|place| place.position);
        assert!(self.barring.iter().copied().eq(barring), "the index of who bars others is wrong");
        let crossing = self.places.iter().filter(|place| crosses(place.id)).map(|place| place.position);
        assert!(self.crossing.iter().copied().eq(crossing), "the index of crossing waits is wrong");
    }

    /// Who stands at this position.
    #[cfg(test)]
    pub(super) fn find(&self, position: Position) -> Option<(WaiterId, Wants)> {
        let place = self.places.get(self.place_of(position)).filter(|place| place.position == position)?;
        Some((place.id, place.wants))
    }
}
