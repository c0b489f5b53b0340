//! Who waits for whom.
//!
//! An owner that waits for a lock waits for every other owner whose hold excludes it, and for every other owner
//! that is ahead in the queue and would exclude it or be excluded. Holders are in the keyspace, so that a search
//! asks for them lock by lock ([`Step::Read`]).

use std::collections::{HashMap, HashSet, VecDeque};

use super::entries::Place;
use super::holders::excludes;
use super::service::{is_exclusive, Waiter};
use super::{Holders, LockId, LockRef, Now, Owner, Part, Service, WaiterId};

/// One owner waits for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    /// Who is waited for.
    pub(crate) owner: Owner,
    /// For the sake of which lock.
    pub(crate) lock: LockId,
    /// The wait.
    pub(crate) by: WaiterId,
    /// The edge that led to the one who waits; none from where the search started.
    from: Option<usize>,
}

/// What a search needs or has found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The holders of this lock are needed: see [`Search::learn`].
    Read(LockId),
    /// Who started waits for himself: through these, in order, of whom the last is himself.
    Cycle(Vec<Edge>),
    /// There is no more to find.
    Done,
}

/// A search from one owner along those whom it waits for, nearest first.
pub(crate) struct Search {
    origin: Owner,
    /// Everybody is wanted, and not just a way back to `origin`.
    everybody: bool,
    holders: HashMap<LockId, Holders>,
    /// Waits to be followed, with the edge that led there.
    todo: VecDeque<(WaiterId, Option<usize>)>,
    seen: HashSet<Owner>,
    edges: Vec<Edge>,
}

impl Search {
    /// Looks for a way from this waiter back to its owner.
    pub(crate) fn cycle(service: &Service, from: WaiterId) -> Option<Search> {
        let origin = service.waiters.get(&from)?.request.owner.clone();
        Some(Search::new(origin, false, [from]))
    }

    /// Looks for all whom this owner waits for.
    pub(crate) fn blockers(service: &Service, origin: &Owner) -> Search {
        let waits = service.waits_of.get(origin).into_iter().flatten().map(|(_, id)| *id);
        Search::new(origin.clone(), true, waits)
    }

    fn new(origin: Owner, everybody: bool, from: impl IntoIterator<Item = WaiterId>) -> Search {
        let todo = from.into_iter().map(|id| (id, None)).collect();
        let (holders, seen, edges) = (HashMap::new(), HashSet::new(), Vec::new());
        Search { origin, everybody, holders, todo, seen, edges }
    }

    /// These are the holders of a lock, as its key has them.
    pub(crate) fn learn(&mut self, service: &Service, lock: LockId, mut holders: Holders) {
        service.anticipate(lock.as_ref(), &mut holders);
        self.holders.insert(lock, holders);
    }

    /// Goes on until something is needed or found.
    pub(crate) fn step(&mut self, service: &Service, now: Now) -> Step {
        while let Some((id, from)) = self.todo.front().copied() {
            let Some(waiter) = service.waiters.get(&id).filter(|waiter| !waiter.is_over(now)) else {
                self.todo.pop_front();
                continue;
            };
            let Some(holders) = self.holders.get(&waiter.lock) else {
                return Step::Read(waiter.lock.clone());
            };
            self.todo.pop_front();
            let mut blockers = Vec::new();
            service.for_each_blocker(waiter, holders, self, now, &mut |owner| blockers.push(owner.clone()));
            for owner in blockers {
                if !self.seen.insert(owner.clone()) {
                    continue;
                }
                let edge = self.edges.len();
                self.edges.push(Edge { owner: owner.clone(), lock: waiter.lock.clone(), by: id, from });
                if owner == self.origin {
                    if !self.everybody {
                        return Step::Cycle(self.way_to(edge));
                    }
                    // All its waits were followed from the start.
                    continue;
                }
                for (_, wait) in service.waits_of.get(&owner).into_iter().flatten() {
                    self.todo.push_back((*wait, Some(edge)));
                }
            }
        }
        Step::Done
    }

    /// All who were found, nearest first.
    pub(crate) fn into_edges(self) -> Vec<Edge> {
        self.edges
    }

    fn way_to(&self, edge: usize) -> Vec<Edge> {
        let mut way = Vec::new();
        let mut next = Some(edge);
        while let Some(edge) = next.and_then(|at| self.edges.get(at)) {
            way.push(edge.clone());
            next = edge.from;
        }
        way.reverse();
        way
    }
}

impl Service {
    /// Changes the holders as [`begin`](Service::serve) will when the lock is brought up to date: those whose
    /// client is gone block nobody.
    fn anticipate(&self, lock: LockRef<'_>, holders: &mut Holders) {
        let Some(entry) = self.entries.get(lock) else { return };
        for grant in &entry.take_back {
            let _ = holders.release(grant.owner.as_bytes(), Part::OneOf(grant.mode), None);
        }
        if !self.suspended {
            for owner in entry.closed() {
                let _ = holders.release(owner.as_bytes(), Part::All, None);
            }
        }
    }

    /// Calls `visit` with those whom a waiter waits for directly. If not everybody is wanted, those of the
    /// queue are left out that lead nowhere else than this waiter itself does: who waits for this lock only,
    /// waits for its holders and for those ahead, as this one does.
    fn for_each_blocker(
        &self,
        waiter: &Waiter,
        holders: &Holders,
        search: &Search,
        now: Now,
        visit: &mut dyn FnMut(&Owner),
    ) {
        let Waiter { lock, request, .. } = waiter;
        let Some(entry) = self.entries.get(lock.as_ref()) else { return };
        for hold in holders.iter().filter(|hold| excludes(hold, request.owner.as_bytes(), request.mode)) {
            visit(&hold.owner);
        }
        let Some(turn) = self.turn_of(lock.as_ref(), &request.owner) else { return };
        let visit_at = |place: &Place, visit: &mut dyn FnMut(&Owner)| {
            let ahead = entry.waiting.get(place).and_then(|id| self.waiters.get(id));
            if let Some(ahead) = ahead.filter(|ahead| !ahead.is_over(now)) {
                visit(&ahead.request.owner);
            }
        };
        let exclusive = is_exclusive(request);
        match (search.everybody, exclusive) {
            (true, true) => entry.waiting.range(..turn).for_each(|(place, _)| visit_at(place, visit)),
            (true, false) => entry.exclusive.range(..turn).for_each(|place| visit_at(place, visit)),
            (false, true) => {
                entry.crossing.range(..turn).for_each(|place| visit_at(place, visit));
                if request.owner != search.origin
                    && self.waits_before(lock.as_ref(), &search.origin, turn, now)
                {
                    visit(&search.origin);
                }
            }
            // The nearest exclusive one waits for all that are ahead of it, and for all holders.
            (false, false) => {
                let mut ahead = entry.exclusive.range(..turn).rev();
                let live = |place: &&Place| {
                    let id = entry.waiting.get(place);
                    id.and_then(|id| self.waiters.get(id)).is_some_and(|waiter| !waiter.is_over(now))
                };
                if let Some(place) = ahead.find(live) {
                    visit_at(place, visit);
                }
            }
        }
    }

    /// When it is this owner's turn: the place of its first wait for the lock, as that lets in all of them.
    fn turn_of(&self, lock: LockRef<'_>, owner: &Owner) -> Option<Place> {
        let waits = self.waits_at(lock, owner);
        waits.iter().filter_map(|id| self.waiters.get(id)).map(|waiter| waiter.place).min()
    }

    fn waits_before(&self, lock: LockRef<'_>, owner: &Owner, turn: Place, now: Now) -> bool {
        let waits = self.waits_at(lock, owner);
        waits
            .iter()
            .filter_map(|id| self.waiters.get(id))
            .any(|waiter| waiter.place < turn && !waiter.is_over(now))
    }
}
