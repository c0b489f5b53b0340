//! Who waits for whom.
//!
//! An owner that waits for a lock waits for every other owner whose hold excludes it, and for every other owner
//! that is ahead in the queue and would exclude it or be excluded. Holders are in the keyspace, so that a search
//! asks for them lock by lock ([`Step::Read`]).

use std::collections::{HashMap, HashSet, VecDeque};

use super::entries::Place;
use super::holders::excludes;
use super::service::{is_exclusive, Waiter};
use super::{Holders, LockId, LockRef, Mode, Now, Owner, Part, Service, WaiterId};

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
    locks: HashMap<LockId, Seen>,
    /// Waits to be followed, with the edge that led there.
    todo: VecDeque<(WaiterId, Option<usize>)>,
    seen: HashSet<Owner>,
    edges: Vec<Edge>,
}

/// What a search knows of a lock, and how far it has been there: what was found on the way of one waiter is not
/// looked for again on the way of the next, so that a search passes each holder and each place once.
struct Seen {
    holders: Holders,
    /// All holders were found, or all but this one, who waits himself.
    passed_holders: Passed,
    /// All were found that an exclusive waiter at this place waits for in the queue.
    exclusive_until: Option<Place>,
    /// The same for a shared waiter.
    shared_until: Option<Place>,
}

enum Passed {
    None,
    AllBut(Owner),
    All,
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
        let (locks, seen, edges) = (HashMap::new(), HashSet::new(), Vec::new());
        Search { origin, everybody, locks, todo, seen, edges }
    }

    /// These are the holders of a lock, as its key has them.
    pub(crate) fn learn(&mut self, service: &Service, lock: LockId, mut holders: Holders) {
        service.anticipate(lock.as_ref(), &mut holders);
        let seen = Seen { holders, passed_holders: Passed::None, exclusive_until: None, shared_until: None };
        self.locks.insert(lock, seen);
    }

    /// Goes on until something is needed or found.
    pub(crate) fn step(&mut self, service: &Service, now: Now) -> Step {
        while let Some((id, from)) = self.todo.front().copied() {
            let Some(waiter) = service.waiters.get(&id).filter(|waiter| !waiter.is_over(now)) else {
                self.todo.pop_front();
                continue;
            };
            let Some(seen) = self.locks.get_mut(&waiter.lock) else {
                return Step::Read(waiter.lock.clone());
            };
            self.todo.pop_front();
            let wanted = (!self.everybody).then_some(&self.origin);
            for owner in service.blockers(waiter, seen, wanted, now) {
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
            grant.uncount(holders);
        }
        if !self.suspended {
            for owner in entry.closed() {
                let _ = holders.release(owner.as_bytes(), Part::All, None);
            }
        }
    }

    /// The owners that a waiter waits for directly, without those that were found already.
    ///
    /// If only the way back to one owner is wanted, the owners in the queue that wait for this lock only are left out. Each of
    /// them waits for the lock's holders and for those ahead, as this waiter does itself, and so leads to nobody new.
    fn blockers(&self, waiter: &Waiter, seen: &mut Seen, wanted: Option<&Owner>, now: Now) -> Vec<Owner> {
        let Waiter { lock, request, .. } = waiter;
        let mut found = seen.pass_holders(&request.owner, request.mode);
        let Some(entry) = self.entries.get(lock.as_ref()) else { return found };
        let turn = self.turn_of(lock.as_ref(), &request.owner, now).unwrap_or(waiter.place);
        if let Some(origin) = wanted.filter(|origin| **origin != request.owner && is_exclusive(request)) {
            if self.turn_of(lock.as_ref(), origin, now).is_some_and(|place| place < turn) {
                found.push(origin.clone());
            }
        }
        let until = if is_exclusive(request) { &mut seen.exclusive_until } else { &mut seen.shared_until };
        let passed = until.unwrap_or(Place::FIRST);
        if turn <= passed {
            return found;
        }
        *until = Some(turn);
        let at = |place: &Place| {
            let ahead = self.waiters.get(entry.waiting.get(place)?)?;
            (!ahead.is_over(now)).then_some(ahead)
        };
        let ahead = passed..turn;
        let owner = |ahead: &Waiter| ahead.request.owner.clone();
        match (wanted.is_none(), is_exclusive(request)) {
            (true, true) => {
                found.extend(entry.waiting.range(ahead).filter_map(|(place, _)| at(place)).map(owner))
            }
            (true, false) => found.extend(entry.exclusive.range(ahead).filter_map(at).map(owner)),
            (false, true) => found.extend(entry.crossing.range(ahead).filter_map(at).map(owner)),
            (false, false) => {
                for waiter in entry.exclusive.range(ahead).rev().filter_map(at) {
                    found.push(owner(waiter));
                    // It waits for all that are ahead of it, and for all holders. One whose owner was in line
                    // before waits for less.
                    if self.turn_of(lock.as_ref(), &waiter.request.owner, now) == Some(waiter.place) {
                        break;
                    }
                }
            }
        }
        found
    }

    /// When it is this owner's turn: the place of its first wait for the lock, as that lets in all of them.
    fn turn_of(&self, lock: LockRef<'_>, owner: &Owner, now: Now) -> Option<Place> {
        let waits = self.waits_at(lock, owner);
        let waits = waits.iter().filter_map(|id| self.waiters.get(id)).filter(|waiter| !waiter.is_over(now));
        waits.map(|waiter| waiter.place).min()
    }
}

impl Seen {
    /// The holders that exclude a request, but for those who were found already.
    fn pass_holders(&mut self, owner: &Owner, mode: Mode) -> Vec<Owner> {
        let found = |holders: &Holders| {
            let excluding = holders.iter().filter(|hold| excludes(hold, owner.as_bytes(), mode));
            excluding.map(|hold| hold.owner.clone()).collect()
        };
        match (&self.holders, mode) {
            (Holders::Shared(_), Mode::Shared) | (Holders::Free, _) => Vec::new(),
            (Holders::Exclusive(_), _) => found(&self.holders),
            (Holders::Shared(holds), Mode::Exclusive) => match &self.passed_holders {
                Passed::None if holds.contains_key(owner) => {
                    self.passed_holders = Passed::AllBut(owner.clone());
                    found(&self.holders)
                }
                Passed::None => {
                    self.passed_holders = Passed::All;
                    found(&self.holders)
                }
                Passed::AllBut(left) if left != owner => {
                    let left = left.clone();
                    self.passed_holders = Passed::All;
                    vec![left]
                }
                Passed::AllBut(_) | Passed::All => Vec::new(),
            },
        }
    }
}
