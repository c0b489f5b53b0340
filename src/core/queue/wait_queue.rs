// SPDX-License-Identifier: MIT

//! The queue of one lock. See the rules of [the folder](super).

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use foldhash::HashSet;

use super::overtaking::Overtaking;
use super::position::Position;
use crate::core::{Mode, WaiterId, Wants};

/// A wait in the queue.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Place {
    pub(in crate::core) position: Position,
    pub(in crate::core) id: WaiterId,
    pub(in crate::core) wants: Wants,
    /// Whether the wait is a member of a bundle.
    pub(in crate::core) is_member: bool,
}

impl Place {
    /// Whether a later request of this kind has to wait behind this place.
    fn blocks(&self, wants: Wants) -> bool {
        self.wants.blocks_all() || wants.mode == Mode::Exclusive
    }
}

/// The queue of one lock.
#[derive(Default)]
pub(in crate::core) struct WaitQueue {
    /// Places in order of position. Nearly all are added at the back and removed at the front.
    places: VecDeque<Place>,
    /// Positions that block every later request. Maintained only while the queue also has other places.
    blocking: BTreeSet<Position>,
    /// Number of places that do not block every later request: shared requests without a limit.
    readers: usize,
    /// Positions of owners that also wait for other locks. The waits-for graph leads from this queue to
    /// another lock only through these owners.
    crossing: BTreeSet<Position>,
    /// Number of members of bundles.
    members: usize,
    /// Waits that have overtaken members that arrived earlier.
    overtakes: Overtaking,
    /// Waits that have ever overtaken members. Each pair swaps only once, so that two waits cannot overtake
    /// each other forever.
    ever_overtaken: Overtaking,
}

impl WaitQueue {
    pub(in crate::core) fn len(&self) -> usize {
        self.places.len()
    }

    pub(in crate::core) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether any member of a bundle is queued.
    pub(in crate::core) fn has_members(&self) -> bool {
        self.members > 0
    }

    /// Iterates over the waits in the order in which they are served.
    pub(in crate::core) fn iter(&self) -> impl Iterator<Item = WaiterId> + '_ {
        self.places.iter().map(|place| place.id)
    }

    /// The first wait of the queue.
    pub(in crate::core) fn first(&self) -> Option<WaiterId> {
        self.places.front().map(|place| place.id)
    }

    /// The last wait of the queue.
    pub(in crate::core) fn last(&self) -> Option<WaiterId> {
        self.places.back().map(|place| place.id)
    }

    /// Whether a wait at this position is first, or was first before it left the queue.
    fn is_first(&self, position: Position) -> bool {
        self.places.front().is_none_or(|first| position < first.position)
    }

    /// The wait to serve next. `waits_elsewhere` returns whether the owner of a member waits in another call,
    /// and `decidable` whether a wait could be decided now. All waits of holders are candidates, because they
    /// do not block each other. A newcomer is a candidate only if no place ahead blocks it.
    pub(in crate::core) fn next(
        &self,
        waits_elsewhere: impl Fn(WaiterId) -> bool,
        mut decidable: impl FnMut(WaiterId) -> bool,
    ) -> Option<WaiterId> {
        let first = self.places.front()?;
        if self.members > 0 {
            return self.next_among_members(waits_elsewhere, decidable);
        }
        if !first.position.is_holder() {
            return decidable(first.id).then_some(first.id);
        }
        let holders = self.places.iter().take_while(|place| place.position.is_holder());
        holders.into_iter().find(|place| decidable(place.id)).map(|place| place.id)
    }

    #[cold]
    fn next_among_members(
        &self,
        waits_elsewhere: impl Fn(WaiterId) -> bool,
        mut decidable: impl FnMut(WaiterId) -> bool,
    ) -> Option<WaiterId> {
        let mut must_wait = false;
        for (at, place) in self.places.iter().enumerate() {
            let in_turn = place.position.is_holder()
                || match place.wants.mode {
                    Mode::Exclusive => at == 0,
                    Mode::Shared => !must_wait,
                } && !self.stays_behind(place, &waits_elsewhere);
            if in_turn && decidable(place.id) {
                return Some(place.id);
            }
            must_wait |= place.wants.blocks_all();
            // Nothing ahead blocks this reader, yet it was not served. So an exclusive holder excludes it and
            // every waiter behind it.
            if !place.position.is_holder() && (must_wait || (in_turn && !place.is_member)) {
                break;
            }
        }
        if self.overtakes.is_empty() {
            return None;
        }
        let mut overtaking =
            self.places.iter().filter(|place| self.overtakes.of_overtaker(place.id).is_some());
        // A member that could be granted makes its bundle due, so `decidable` comes last for members. For
        // other waits, `decidable` is the faster check, and the lock is usually unavailable.
        let can_go = |place: &&Place| match place.is_member {
            true => !self.must_wait(place.position, &waits_elsewhere) && decidable(place.id),
            false => decidable(place.id) && !self.must_wait(place.position, &waits_elsewhere),
        };
        overtaking.find(can_go).map(|place| place.id)
    }

    /// Whether this member stays behind a later wait that has overtaken it. Not if its owner waits in no other
    /// call: once its bundle gets all locks, the owner waits for nobody.
    fn stays_behind(&self, member: &Place, waits_elsewhere: impl Fn(WaiterId) -> bool) -> bool {
        member.is_member && self.is_overtaken(member.id) && waits_elsewhere(member.id)
    }

    /// Whether a later wait has overtaken this member.
    pub(in crate::core) fn is_overtaken(&self, member: WaiterId) -> bool {
        self.overtakes.of_member(member).is_some()
    }

    /// Whether the wait at this position must not be served yet, because of another place. `waits_elsewhere`
    /// returns whether the owner of a member waits in another call.
    pub(in crate::core) fn must_wait(
        &self,
        position: Position,
        waits_elsewhere: impl Fn(WaiterId) -> bool,
    ) -> bool {
        let Some(place) = self.place_at(position).filter(|_| !position.is_holder()) else { return false };
        if self.stays_behind(place, waits_elsewhere) {
            return true;
        }
        if let Some(overtaken) = self.overtaken_by(place.id) {
            let before = self.places.iter().take_while(|before| before.position < position);
            let mut blocking = before.filter(|before| before.blocks(place.wants));
            return blocking.any(|before| !overtaken.contains(&before.id));
        }
        match place.wants.mode {
            Mode::Shared if self.readers > 0 => self.blocking.first().is_some_and(|first| *first < position),
            Mode::Exclusive | Mode::Shared => {
                self.places.front().is_some_and(|first| first.position < position)
            }
        }
    }

    /// Whether a new request of this kind has to wait behind a place in the queue.
    pub(in crate::core) fn blocks(&self, wants: Wants) -> bool {
        // A wait for a single lock is queued because the lock is unavailable to it, even if the wait itself
        // blocks no other.
        let only_members = self.members == self.places.len();
        !self.is_empty()
            && (!only_members || wants.mode == Mode::Exclusive || self.readers < self.places.len())
    }

    /// Lets a wait overtake a member ahead of it, or undoes the opposite swap. Returns false if it has ever
    /// overtaken the member.
    pub(in crate::core) fn overtake(&mut self, overtaker: WaiterId, member: WaiterId) -> bool {
        self.ever_overtaken.insert(overtaker, member);
        self.overtakes.remove(member, overtaker) || self.overtakes.insert(overtaker, member)
    }

    /// Whether this wait has ever overtaken that member, even if the swap was undone.
    pub(in crate::core) fn has_ever_overtaken(&self, overtaker: WaiterId, member: WaiterId) -> bool {
        self.ever_overtaken.of_overtaker(overtaker).is_some_and(|members| members.contains(&member))
    }

    /// Whether any wait has overtaken a member.
    pub(in crate::core) fn has_overtaking(&self) -> bool {
        !self.overtakes.is_empty()
    }

    /// The members that this wait overtakes, if it overtakes any.
    pub(in crate::core) fn overtaken_by(&self, overtaker: WaiterId) -> Option<&HashSet<WaiterId>> {
        self.overtakes.of_overtaker(overtaker)
    }

    /// The waits that overtake this member.
    pub(in crate::core) fn overtakers(&self, member: WaiterId) -> impl Iterator<Item = WaiterId> + '_ {
        self.overtakes.of_member(member).into_iter().flatten().copied()
    }

    /// Whether the first wait may be served once the lock has fewer holders. True for an upgrade, and for a
    /// request with a limit.
    pub(in crate::core) fn needs_fewer_holders(&self) -> bool {
        self.places.front().is_some_and(|first| first.position.is_holder() || first.wants.limit.is_some())
    }

    /// The queued waits of holders of the lock.
    pub(in crate::core) fn holders(&self) -> impl Iterator<Item = (WaiterId, Position)> + '_ {
        let holders = self.places.iter().take_while(|place| place.position.is_holder());
        holders.map(|place| (place.id, place.position))
    }

    /// Whether a holder of the lock is queued.
    pub(in crate::core) fn has_holders(&self) -> bool {
        self.places.front().is_some_and(|place| place.position.is_holder())
    }

    #[inline(always)]
    pub(in crate::core) fn insert(&mut self, place: Place) {
        let Place { position, wants, is_member, .. } = place;
        let at = if self.places.back().is_none_or(|last| last.position < position) {
            self.places.len()
        } else {
            self.place_of(position)
        };
        if !wants.blocks_all() {
            if self.readers == 0 {
                self.blocking.extend(self.places.iter().map(|place| place.position));
            }
            self.readers += 1;
        } else if self.readers > 0 {
            self.blocking.insert(position);
        }
        self.members += usize::from(is_member);
        self.places.insert(at, place);
    }

    /// Removes a wait that ends. Returns whether it was in the queue.
    pub(in crate::core) fn leave(&mut self, position: Position, id: WaiterId) -> bool {
        if !self.ever_overtaken.is_empty() {
            self.overtakes.forget(id);
            self.ever_overtaken.forget(id);
        }
        self.remove(position)
    }

    /// Removes the place at a position. Returns false if the queue has no place there.
    #[inline(always)]
    pub(in crate::core) fn remove(&mut self, position: Position) -> bool {
        let at = self.place_of(position);
        if self.places.get(at).is_none_or(|place| place.position != position) {
            return false;
        }
        let Some(place) = self.places.remove(at) else { return false };
        if !self.crossing.is_empty() {
            self.crossing.remove(&position);
        }
        self.members -= usize::from(place.is_member);
        if !place.wants.blocks_all() {
            self.readers -= 1;
            if self.readers == 0 {
                self.blocking.clear();
            }
        } else if self.readers > 0 {
            self.blocking.remove(&position);
        }
        if self.places.is_empty() && self.places.capacity() > 64 {
            self.places = VecDeque::new();
        }
        true
    }

    /// Index of a position, or the index at which to insert it.
    #[inline(always)]
    fn place_of(&self, position: Position) -> usize {
        match self.places.front() {
            Some(first) if position <= first.position => 0,
            _ => self.places.partition_point(|place| place.position < position),
        }
    }

    /// Records whether the owner at this position waits for other locks too.
    pub(in crate::core) fn set_crossing(&mut self, position: Position, crosses: bool) {
        if crosses {
            self.crossing.insert(position);
        } else {
            self.crossing.remove(&position);
        }
    }

    pub(in crate::core) fn is_crossing(&self, position: Position) -> bool {
        self.crossing.contains(&position)
    }

    /// Whether an owner in the queue also waits for another lock.
    pub(in crate::core) fn has_crossing(&self) -> bool {
        !self.crossing.is_empty()
    }

    /// Whether the departure of a wait may unblock the next waiters: readers behind a writer or behind a
    /// request with a limit. With members in the queue, any waiter may be next, because the lock may have
    /// been available all along.
    pub(in crate::core) fn unblocks_next(&self, position: Position, wants: Wants, was_member: bool) -> bool {
        if was_member || self.members > 0 {
            return !self.is_empty();
        }
        let next_is_shared = self.places.front().is_some_and(|next| next.wants.mode == Mode::Shared);
        wants.blocks_all() && self.is_first(position) && next_is_shared
    }

    /// The waits in this range of positions.
    pub(in crate::core) fn at(&self, positions: Range<Position>) -> impl Iterator<Item = WaiterId> + '_ {
        let (from, to) = (self.place_of(positions.start), self.place_of(positions.end));
        self.places.range(from..to.max(from)).map(|place| place.id)
    }

    /// The waits in this range of positions that block every later request, last to first.
    pub(in crate::core) fn blocking_at(
        &self,
        positions: Range<Position>,
    ) -> impl Iterator<Item = WaiterId> + '_ {
        let all = self.readers == 0;
        let places = if all { positions.clone() } else { Position::FRONT..Position::FRONT };
        let indexed = if all { Position::FRONT..Position::FRONT } else { positions };
        let (from, to) = (self.place_of(places.start), self.place_of(places.end));
        let indexed = self.blocking.range(indexed).rev().filter_map(|position| self.id_at(*position));
        self.places.range(from..to.max(from)).rev().map(|place| place.id).chain(indexed)
    }

    /// The waits in this range of positions whose owners also wait for other locks.
    pub(in crate::core) fn crossing_at(
        &self,
        positions: Range<Position>,
    ) -> impl Iterator<Item = WaiterId> + '_ {
        self.crossing.range(positions).filter_map(|position| self.id_at(*position))
    }

    fn id_at(&self, position: Position) -> Option<WaiterId> {
        self.place_at(position).map(|place| place.id)
    }

    fn place_at(&self, position: Position) -> Option<&Place> {
        self.places.get(self.place_of(position)).filter(|place| place.position == position)
    }

    /// Fails if the order or an index disagrees with the places. `crosses` returns whether a wait's owner
    /// also waits for other locks.
    #[cfg(test)]
    pub(in crate::core) fn verify(
        &self,
        crosses: impl Fn(WaiterId) -> bool,
        is_member: impl Fn(WaiterId) -> bool,
    ) {
        assert!(self.places.iter().all(|place| place.is_member == is_member(place.id)), "{:?}", self.places);
        let members = self.places.iter().filter(|place| place.is_member).count();
        assert_eq!(self.members, members, "the members are miscounted");
        let overtakes = self.overtakes.0.as_deref();
        for (overtaker, overtaken) in overtakes.into_iter().flat_map(|pairs| &pairs.by_overtaker) {
            let stands = |id: &WaiterId| self.places.iter().any(|place| place.id == *id);
            assert!(
                stands(overtaker) && !overtaken.is_empty() && overtaken.iter().all(stands),
                "{overtaker:?} overtakes no member"
            );
        }
        let pairs = |map: &foldhash::HashMap<WaiterId, HashSet<WaiterId>>| {
            let pairs = map.iter().flat_map(|(key, values)| values.iter().map(|value| (*key, *value)));
            pairs.collect::<BTreeSet<_>>()
        };
        if let Some(super::overtaking::Pairs { by_overtaker, by_member }) = overtakes {
            let by_member =
                pairs(by_member).into_iter().map(|(member, overtaker)| (overtaker, member)).collect();
            assert_eq!(pairs(by_overtaker), by_member, "the two indices of overtaking waits differ");
        }
        let sorted = self.places.iter().zip(self.places.iter().skip(1)).all(|(a, b)| a.position < b.position);
        assert!(sorted, "the queue is out of order: {:?}", self.places);
        let blocking = self.places.iter().filter(|place| place.wants.blocks_all());
        assert_eq!(self.readers, self.places.len() - blocking.clone().count(), "the readers are miscounted");
        let blocking = blocking.filter(|_| self.readers > 0).map(|place| place.position);
        assert!(self.blocking.iter().copied().eq(blocking), "the index of blocking positions is wrong");
        let crossing = self.places.iter().filter(|place| crosses(place.id)).map(|place| place.position);
        assert!(self.crossing.iter().copied().eq(crossing), "the index of crossing waits is wrong");
    }

    /// The wait at this position.
    #[cfg(test)]
    pub(in crate::core) fn find(&self, position: Position) -> Option<(WaiterId, Wants)> {
        let place = self.places.get(self.place_of(position)).filter(|place| place.position == position)?;
        Some((place.id, place.wants))
    }
}
