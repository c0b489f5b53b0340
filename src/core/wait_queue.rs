// SPDX-License-Identifier: MIT

//! The queue of one lock: who waits for it, and in which order they are served. No other file decides that.
//!
//! An owner who holds the lock and wants more of it (an upgrade, a second wait) comes before all newcomers; but one whose own
//! hold is in its way ([`Wants::once`]) is a newcomer. Within each of the two groups the one who came first comes first.
//!
//! Somebody is served when the holders admit it and nobody stands before it that it must not pass: of those who wait for this
//! lock only, that is the first. Who waits for several locks ([`Part`](super::bundles)) may have to wait for another one. Meanwhile
//! only those pass whom it does not conflict with, and those that it has to let pass ([`WaitQueue::let_pass`]). To let a wait pass
//! swaps the order of the two: the part stands behind that wait from then on.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use foldhash::{HashMap, HashSet};

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
    /// It is one of several waits that are granted together.
    is_part: bool,
}

impl Place {
    /// True if who comes later and wants this has to stand behind it.
    fn is_in_way_of(&self, wants: Wants) -> bool {
        self.wants.bars_readers() || wants.mode == Mode::Exclusive
    }
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
    /// How many are parts.
    parts: usize,
    /// Which waits stand before which parts, though these came first.
    passes: Passes,
    /// Which waits were ever let pass which parts: once, so that two do not pass each other for ever.
    let_pass: Passes,
}

/// Pairs of a wait and a part that it passes. Few queues have any, and then they are elsewhere, as every lock has a queue.
#[derive(Default)]
struct Passes(Option<Box<Pairs>>);

/// The same pairs by either of the two.
#[derive(Default)]
struct Pairs {
    by_passer: HashMap<WaiterId, HashSet<WaiterId>>,
    by_part: HashMap<WaiterId, HashSet<WaiterId>>,
}

impl Passes {
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The parts that this wait passes, if it passes any.
    #[inline(always)]
    fn of_passer(&self, passer: WaiterId) -> Option<&HashSet<WaiterId>> {
        self.0.as_ref()?.by_passer.get(&passer)
    }

    /// The waits that pass this part, if any do.
    fn of_part(&self, part: WaiterId) -> Option<&HashSet<WaiterId>> {
        self.0.as_ref()?.by_part.get(&part)
    }

    fn insert(&mut self, passer: WaiterId, part: WaiterId) -> bool {
        let pairs = self.0.get_or_insert_default();
        pairs.by_part.entry(part).or_default().insert(passer);
        pairs.by_passer.entry(passer).or_default().insert(part)
    }

    /// Returns whether there was such a pair.
    fn remove(&mut self, passer: WaiterId, part: WaiterId) -> bool {
        let Some(pairs) = &mut self.0 else { return false };
        remove_from(&mut pairs.by_part, part, passer);
        let removed = remove_from(&mut pairs.by_passer, passer, part);
        self.free_if_empty();
        removed
    }

    /// A wait leaves, whether it passes any or is passed.
    fn forget(&mut self, id: WaiterId) {
        let Some(pairs) = &mut self.0 else { return };
        for part in pairs.by_passer.remove(&id).into_iter().flatten() {
            remove_from(&mut pairs.by_part, part, id);
        }
        for passer in pairs.by_part.remove(&id).into_iter().flatten() {
            remove_from(&mut pairs.by_passer, passer, id);
        }
        self.free_if_empty();
    }

    fn free_if_empty(&mut self) {
        if self.0.as_ref().is_some_and(|pairs| pairs.by_passer.is_empty()) {
            self.0 = None;
        }
    }
}

/// Removes a value of a key, and the key with the last one.
fn remove_from(map: &mut HashMap<WaiterId, HashSet<WaiterId>>, key: WaiterId, value: WaiterId) -> bool {
    let Some(values) = map.get_mut(&key) else { return false };
    let removed = values.remove(&value);
    if values.is_empty() {
        map.remove(&key);
    }
    removed
}

impl WaitQueue {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// True if a call for several locks waits.
    pub(super) fn has_parts(&self) -> bool {
        self.parts > 0
    }

    /// Who waits, in the order in which they are served.
    pub(super) fn iter(&self) -> impl Iterator<Item = WaiterId> + '_ {
        self.places.iter().map(|place| place.id)
    }

    /// Who is served next, were the lock free.
    pub(super) fn first(&self) -> Option<WaiterId> {
        self.places.front().map(|place| place.id)
    }

    /// Who is served last.
    pub(super) fn last(&self) -> Option<WaiterId> {
        self.places.back().map(|place| place.id)
    }

    /// Whether the wait at this position is the first.
    fn is_first(&self, position: Position) -> bool {
        self.places.front().is_none_or(|first| position < first.position)
    }

    /// Who can be served next, if this says of a wait whether it could be decided: of those who want more of what they hold
    /// any, as they are in nobody's way, but of the newcomers only who has to pass nobody.
    #[inline(always)]
    pub(super) fn next(&self, mut decidable: impl FnMut(WaiterId) -> bool) -> Option<WaiterId> {
        let first = self.places.front()?;
        if self.parts > 0 {
            return self.next_among_parts(decidable);
        }
        if !first.position.is_holder() {
            return decidable(first.id).then_some(first.id);
        }
        let holders = self.places.iter().take_while(|place| place.position.is_holder());
        holders.into_iter().find(|place| decidable(place.id)).map(|place| place.id)
    }

    #[cold]
    fn next_among_parts(&self, mut decidable: impl FnMut(WaiterId) -> bool) -> Option<WaiterId> {
        let mut is_barred = false;
        for (at, place) in self.places.iter().enumerate() {
            let in_turn = place.position.is_holder()
                || match place.wants.mode {
                    Mode::Exclusive => at == 0,
                    Mode::Shared => !is_barred,
                } && !self.is_passed(place);
            if in_turn && decidable(place.id) {
                return Some(place.id);
            }
            is_barred |= place.wants.bars_readers();
            // A reader who is not admitted though nobody bars it, is kept out by an exclusive holder, as all are.
            if !place.position.is_holder() && (is_barred || (in_turn && !place.is_part)) {
                break;
            }
        }
        if self.passes.is_empty() {
            return None;
        }
        let mut passing = self.places.iter().filter(|place| self.passes.of_passer(place.id).is_some());
        // A part that can be decided makes its bundle due: that is asked of it last. Of the others it is the quicker question, and
        // mostly the lock is not to be had by anybody.
        let can_go = |place: &&Place| match place.is_part {
            true => !self.is_barred(place.position) && decidable(place.id),
            false => decidable(place.id) && !self.is_barred(place.position),
        };
        passing.find(can_go).map(|place| place.id)
    }

    /// True if a wait that came later stands before this part, as it was let pass.
    fn is_passed(&self, part: &Place) -> bool {
        part.is_part && self.passes.of_part(part.id).is_some()
    }

    /// True if somebody stands before this position whom the wait there must not pass.
    pub(super) fn is_barred(&self, position: Position) -> bool {
        let Some(place) = self.place_at(position).filter(|_| !position.is_holder()) else { return false };
        if self.is_passed(place) {
            return true;
        }
        if let Some(passed) = self.passed_by(place.id) {
            let before = self.places.iter().take_while(|before| before.position < position);
            let mut barring = before.filter(|before| before.is_in_way_of(place.wants));
            return barring.any(|before| !passed.contains(&before.id));
        }
        match place.wants.mode {
            Mode::Shared if self.readers > 0 => self.barring.first().is_some_and(|first| *first < position),
            Mode::Exclusive | Mode::Shared => {
                self.places.front().is_some_and(|first| first.position < position)
            }
        }
    }

    /// True if who comes now and wants this has to stand behind somebody.
    pub(super) fn bars(&self, wants: Wants) -> bool {
        // Who waits for this lock only, and bars nobody by order, does so because the lock is not to be had.
        let only_parts = self.parts == self.places.len();
        !self.is_empty() && (!only_parts || wants.mode == Mode::Exclusive || self.readers < self.places.len())
    }

    /// From now on this wait stands before that part, which stood before it: as it came first, or had been let pass. False if it
    /// does so already.
    pub(super) fn let_pass(&mut self, who: WaiterId, part: WaiterId) -> bool {
        self.let_pass.insert(who, part);
        self.passes.remove(part, who) || self.passes.insert(who, part)
    }

    /// True if this wait was let pass that part, wherever it stands now.
    pub(super) fn was_let_pass(&self, who: WaiterId, part: WaiterId) -> bool {
        self.let_pass.of_passer(who).is_some_and(|parts| parts.contains(&part))
    }

    /// True if any wait passes a part.
    pub(super) fn has_passes(&self) -> bool {
        !self.passes.is_empty()
    }

    /// The parts that this wait passes, if it passes any.
    pub(super) fn passed_by(&self, who: WaiterId) -> Option<&HashSet<WaiterId>> {
        self.passes.of_passer(who)
    }

    /// The waits that pass this part.
    pub(super) fn passers(&self, part: WaiterId) -> impl Iterator<Item = WaiterId> + '_ {
        self.passes.of_part(part).into_iter().flatten().copied()
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

    #[inline(always)]
    pub(super) fn insert(&mut self, position: Position, (id, is_part): (WaiterId, bool), wants: Wants) {
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
        self.parts += usize::from(is_part);
        self.places.insert(at, Place { position, id, wants, is_part });
    }

    /// A wait leaves for good. Returns whether it stood there.
    #[inline(always)]
    pub(super) fn leave(&mut self, position: Position, id: WaiterId) -> bool {
        if !self.let_pass.is_empty() {
            self.passes.forget(id);
            self.let_pass.forget(id);
        }
        self.remove(position)
    }

    /// Takes a wait out. Returns whether it stood there.
    #[inline(always)]
    pub(super) fn remove(&mut self, position: Position) -> bool {
        let at = self.place_of(position);
        if self.places.get(at).is_none_or(|place| place.position != position) {
            return false;
        }
        let Some(place) = self.places.remove(at) else { return false };
        if !self.crossing.is_empty() {
            self.crossing.remove(&position);
        }
        self.parts -= usize::from(place.is_part);
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
    #[inline(always)]
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
    /// behind a writer, or behind one who wanted the lock with fewer others; or anybody where parts wait, as the lock may be to be
    /// had all the time.
    pub(super) fn makes_way(&self, position: Position, wants: Wants, was_part: bool) -> bool {
        if was_part || self.parts > 0 {
            return !self.is_empty();
        }
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
        self.place_at(position).map(|place| place.id)
    }

    fn place_at(&self, position: Position) -> Option<&Place> {
        self.places.get(self.place_of(position)).filter(|place| place.position == position)
    }

    /// Fails if the order or an index is not what the places say. `crosses` says so of a wait.
    #[cfg(test)]
    pub(super) fn verify(&self, crosses: impl Fn(WaiterId) -> bool, is_part: impl Fn(WaiterId) -> bool) {
        assert!(self.places.iter().all(|place| place.is_part == is_part(place.id)), "{:?}", self.places);
        let parts = self.places.iter().filter(|place| place.is_part).count();
        assert_eq!(self.parts, parts, "the parts are miscounted");
        let passes = self.passes.0.as_deref();
        for (who, passed) in passes.into_iter().flat_map(|pairs| &pairs.by_passer) {
            let stands = |id: &WaiterId| self.places.iter().any(|place| place.id == *id);
            assert!(stands(who) && !passed.is_empty() && passed.iter().all(stands), "{who:?} passes nobody");
        }
        let pairs = |map: &HashMap<WaiterId, HashSet<WaiterId>>| {
            let pairs = map.iter().flat_map(|(key, values)| values.iter().map(|value| (*key, *value)));
            pairs.collect::<BTreeSet<_>>()
        };
        if let Some(Pairs { by_passer, by_part }) = passes {
            let by_part = pairs(by_part).into_iter().map(|(part, who)| (who, part)).collect();
            assert_eq!(pairs(by_passer), by_part, "the two indices of who passes whom differ");
        }
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
