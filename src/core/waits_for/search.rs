// SPDX-License-Identifier: MIT

//! A search along the waits-for graph, from one owner.

use std::collections::VecDeque;

use foldhash::{HashMap, HashSet};
use smallvec::{smallvec, SmallVec};

use super::blockers::{blockers, relevant_holders, Blocker, Found, Seen, Sought, MAX_NAMED_OWNERS};
use super::cycles::{self, CycleSearch};
use super::view::{belongs_to_another_thread, can_overtake, WaitView};
use crate::core::table::LockIdx;
use crate::core::{Holders, LockId, Now, Owner, WaiterId};

/// The waits of an owner that the search follows.
#[derive(Clone, Copy)]
enum Followed {
    /// All waits except those for this lock with `once`.
    ButAt(LockIdx),
    All,
}

/// An edge of the graph: one owner waits for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    /// The owner that is waited for.
    pub(crate) owner: Owner,
    /// The lock at which the owner blocks.
    pub(crate) lock: LockId,
    /// The wait that is blocked.
    pub(crate) by: WaiterId,
    /// The member that blocks only by its place in the queue, if any: the wait may overtake it.
    soft: Option<WaiterId>,
    /// The previous edge on the path; `None` at the start of the search.
    from: Option<usize>,
}

/// The state of a search: its needs or its findings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The search needs the holders of this lock: see [`Search::learn`].
    Read(LockId),
    /// The origin waits for itself along these edges, in order. The waits in the second list also take part.
    Cycle(Vec<Edge>, Vec<WaiterId>),
    /// The origin waits for itself only because each of these waits is queued behind the member in its pair:
    /// see [`LockManager::overtake`](crate::core::LockManager::overtake). After the swap, the search must be
    /// repeated.
    Soft(Vec<(WaiterId, WaiterId)>),
    /// The search has used up its portion ([`Search::allow`]).
    Later,
    /// The search is complete.
    Done,
}

/// Portion of a search. It takes some milliseconds.
pub(crate) const PORTION: usize = 4_000;

/// A breadth-first search from one owner along its blockers.
///
/// A search may be interrupted and resumed. By then its findings may be outdated. So a path back counts only
/// if a second search, among the owners of that path, finds it without interruption. Nothing is missed,
/// because every new edge of the graph starts a search of its own. So this search only has to find cycles
/// that existed at its start. If waits have moved within a queue since, the search restarts
/// ([`Searches`](super::searches::Searches)).
pub(crate) struct Search {
    origin: Owner,
    /// The wait to which a path back is sought; `None` if all blockers of `origin` are wanted.
    from: Option<WaiterId>,
    locks: HashMap<LockIdx, Seen>,
    /// Waits to follow, each with the edge that led to it.
    todo: VecDeque<Visit>,
    /// The blockers found for the first of these waits.
    around: Option<Around>,
    seen: HashMap<Owner, Followed>,
    edges: Vec<Edge>,
    /// Waits that are blocked by a member's place in the queue, each with that member. One entry for each
    /// path back that leads through such a wait.
    soft: Vec<(WaiterId, WaiterId)>,
    /// Whether only paths that overtaking can resolve are sought.
    only_soft: bool,
    /// A path back that is a cycle only if its waits never end.
    unproven: Option<(Vec<Edge>, CycleSearch)>,
    /// Remaining amount of the portion.
    left: usize,
    was_interrupted: bool,
    /// The only owners to follow, if limited.
    only: Option<HashSet<Owner>>,
}

/// A wait to follow.
#[derive(Clone, Copy)]
struct Visit {
    id: WaiterId,
    /// The edge that led to it; `None` at the start of the search.
    from: Option<usize>,
}

/// The blockers of a wait.
struct Around {
    lock: LockIdx,
    name: LockId,
    found: std::vec::IntoIter<Blocker>,
    /// Whether more blockers exist.
    is_partial: bool,
}

impl Search {
    /// Starts a search for a path from this waiter back to its owner.
    pub(crate) fn cycle<W: WaitView>(waits: &W, from: WaiterId, now: Now) -> Option<Search> {
        let origin = waits.waiting(from, now)?.owner.clone();
        Some(Search::new(origin, Some(from), waits.together(from)))
    }

    /// Starts a search for such a path that overtaking can resolve. Other paths may end by themselves.
    pub(crate) fn soft_cycle<W: WaitView>(waits: &W, from: WaiterId, now: Now) -> Option<Search> {
        Some(Search { only_soft: true, ..Search::cycle(waits, from, now)? })
    }

    /// Starts a search for the blockers of this owner, direct and indirect, up to a maximum number.
    pub(crate) fn blockers(waits: &impl WaitView, origin: &Owner) -> Search {
        Search::new(origin.clone(), None, waits.waits_of(origin))
    }

    /// Starts a new search for the same path, after waits have overtaken members or left.
    pub(crate) fn restart(&self, waits: &impl WaitView, now: Now) -> Option<Search> {
        let (only_soft, left) = (self.only_soft, self.left);
        Some(Search { only_soft, left, ..Search::cycle(waits, self.from?, now)? })
    }

    fn new(origin: Owner, from: Option<WaiterId>, todo: impl IntoIterator<Item = WaiterId>) -> Search {
        Search {
            origin,
            from,
            locks: HashMap::default(),
            todo: todo.into_iter().map(|id| Visit { id, from: None }).collect(),
            around: None,
            seen: HashMap::default(),
            edges: Vec::new(),
            soft: Vec::new(),
            only_soft: false,
            unproven: None,
            left: PORTION,
            was_interrupted: false,
            only: None,
        }
    }

    /// The wait to which a path back is sought.
    pub(crate) fn of_wait(&self) -> Option<WaiterId> {
        self.from
    }

    /// Sets the portion of the search.
    pub(crate) fn allow(&mut self, portion: usize) {
        self.left = portion;
    }

    /// Remaining amount of the portion.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    fn count(&mut self, looked_at: usize) {
        if self.only.is_none() {
            self.left = self.left.saturating_sub(looked_at);
        }
    }

    /// Passes in the holders of a lock, as read from its key.
    pub(crate) fn learn(&mut self, waits: &impl WaitView, lock: &LockId, holders: Holders) {
        let Some(lock) = waits.find(lock) else { return };
        let mut holders = match self.from {
            Some(_) => {
                let relevant = relevant_holders(waits, holders, &self.origin, self.only.as_ref());
                // Eight owners that are only scanned count as much as one whose waits are followed, because
                // scanning is faster.
                self.count(relevant.scanned / 8);
                relevant.holders
            }
            None => holders,
        };
        waits.apply_pending_ends(lock, &mut holders);
        self.locks.insert(lock, Seen::new(holders));
    }

    /// Continues until the search needs or has found something.
    pub(crate) fn step(&mut self, waits: &impl WaitView, now: Now) -> Progress {
        if let Some((way, search)) = &mut self.unproven {
            let holders = |lock: &LockIdx| self.locks.get(lock).map(|seen| &seen.holders);
            return match search.step(waits, holders, now) {
                cycles::CycleProgress::Read(lock) => Progress::Read(lock),
                cycles::CycleProgress::NeverEnds(others) => Progress::Cycle(std::mem::take(way), others),
                cycles::CycleProgress::Soft(by, member) => Progress::Soft(vec![(by, member)]),
                cycles::CycleProgress::MayEnd => Progress::Done,
            };
        }
        while let Some(visit) = self.todo.front().copied() {
            if self.left == 0 && self.only.is_none() {
                if !self.soft.is_empty() {
                    // Reports them now, because they may have ended when the search goes on.
                    break;
                }
                self.was_interrupted = true;
                return Progress::Later;
            }
            if let Some(around) = &mut self.around {
                if let Some(blocker) = around.found.next() {
                    let (lock, name) = (around.lock, around.name.clone());
                    self.count(1);
                    if let Some(step) = self.follow_blocker(waits, visit, lock, name, blocker, now) {
                        return step;
                    }
                    continue;
                }
                if !around.is_partial {
                    self.around = None;
                    self.todo.pop_front();
                    continue;
                }
            }
            if let Some(lock) = self.find_blockers(waits, visit.id, now) {
                return Progress::Read(lock);
            }
        }
        if self.soft.is_empty() {
            if self.only.is_some() {
                // The path no longer exists.
                let Some(search) = self.restart(waits, now) else { return Progress::Done };
                *self = search;
                return Progress::Later;
            }
            return Progress::Done;
        }
        let mut soft = std::mem::take(&mut self.soft);
        soft.sort_unstable();
        soft.dedup();
        Progress::Soft(soft)
    }

    /// Finds the blockers of the first wait to follow. Returns the lock whose holders it needs first, if any.
    fn find_blockers(&mut self, waits: &impl WaitView, id: WaiterId, now: Now) -> Option<LockId> {
        let resumes = self.around.take().is_some();
        let Some(wait) = waits.waiting(id, now) else {
            self.todo.pop_front();
            return None;
        };
        let Some(name) = waits.name(wait.lock) else {
            self.todo.clear();
            return defect!("a wait for an unknown lock", None);
        };
        let Some(seen) = self.locks.get_mut(&wait.lock) else { return Some(name.clone()) };
        if self.from.is_some() && wait.is_excluded_by_own_hold(&seen.holders) {
            self.todo.pop_front();
            return None;
        }
        let sought = Sought {
            origin: self.from.map(|from| (&self.origin, from)),
            only: self.only.as_ref(),
            most: if self.only.is_some() { usize::MAX } else { self.left },
            resumes,
        };
        let Found { blockers, looked_at, is_partial } = blockers(waits, id, &wait, seen, &sought, now);
        let (lock, name, found) = (wait.lock, name.clone(), blockers.into_iter());
        self.around = Some(Around { lock, name, found, is_partial });
        self.count(1 + looked_at);
        None
    }

    /// Follows one blocker of a wait. Returns a result that ends or interrupts the search.
    fn follow_blocker(
        &mut self,
        waits: &impl WaitView,
        visit: Visit,
        lock: LockIdx,
        name: LockId,
        blocker: Blocker,
        now: Now,
    ) -> Option<Progress> {
        if self.only.as_ref().is_some_and(|only| !only.contains(&blocker.owner)) {
            return None;
        }
        let Visit { id, from } = visit;
        let waits_behind = self.follow(waits, lock, &blocker, now)?;
        let edge = self.edges.len();
        let soft = blocker.ahead.filter(|_| blocker.is_soft);
        self.edges.push(Edge { owner: blocker.owner, lock: name, by: id, soft, from });
        let Some(from) = self.from.filter(|from| waits_behind.contains(from)) else {
            if self.from.is_none() && self.edges.len() >= MAX_NAMED_OWNERS {
                return Some(Progress::Done);
            }
            self.todo.extend(waits_behind.into_iter().map(|id| Visit { id, from: Some(edge) }));
            return None;
        };
        let way = self.way_to(edge);
        let can_swap = |edge: &Edge| {
            let member = edge.soft?;
            can_overtake(waits, edge.by, member, now).then_some((edge.by, member))
        };
        // One swap per path suffices.
        if let Some(soft) = way.iter().find_map(can_swap) {
            if self.was_interrupted {
                return Some(self.confirm(waits, &way, now));
            }
            self.soft.push(soft);
            return None;
        }
        let needs_some = |edge: &Edge| {
            let limit = waits.waiting(edge.by, now).and_then(|wait| wait.wants.limit);
            // With a limit of 1, a single holder already blocks.
            limit.is_some_and(|limit| limit.get() > 1)
        };
        if !way.iter().any(needs_some) {
            if self.only_soft {
                return None;
            }
            if self.was_interrupted {
                return Some(self.confirm(waits, &way, now));
            }
            return Some(Progress::Cycle(way, Vec::new()));
        }
        if !self.soft.is_empty() {
            // The search is repeated after the swap, and finds this path again.
            return None;
        }
        if self.was_interrupted {
            // The cycle search reads all holders itself.
            self.locks.clear();
        }
        self.unproven = Some((way, CycleSearch::of(waits, from, self.origin.clone())));
        Some(self.step(waits, now))
    }

    /// Checks a path that was found in several portions. The new search runs without interruption, among the
    /// owners of that path only.
    fn confirm(&mut self, waits: &impl WaitView, way: &[Edge], now: Now) -> Progress {
        let Some(mut search) = self.restart(waits, now) else { return Progress::Done };
        search.only = Some(way.iter().map(|edge| edge.owner.clone()).collect());
        *self = search;
        self.step(waits, now)
    }

    /// The waits of a blocker at a lock that must be followed now; `None` if no new ones exist.
    fn follow(
        &mut self,
        waits: &impl WaitView,
        lock: LockIdx,
        Blocker { owner, ahead, only, .. }: &Blocker,
        now: Now,
    ) -> Option<SmallVec<[WaiterId; 2]>> {
        if *only {
            return self.follow_only(owner, *ahead);
        }
        let belongs_to_another_thread =
            |id: WaiterId| belongs_to_another_thread(waits, id, lock, *ahead, now);
        if let Some(from) = self.from.filter(|_| *owner == self.origin) {
            return (!belongs_to_another_thread(from)).then(|| smallvec![from]);
        }
        match self.seen.get_mut(owner) {
            None => {
                // The waits of the origin were followed from the start.
                let all = waits.waits_of(owner).filter(|_| *owner != self.origin);
                let (others, waits_behind): (SmallVec<_>, SmallVec<_>) =
                    all.partition(|id| belongs_to_another_thread(*id));
                let followed = if others.is_empty() { Followed::All } else { Followed::ButAt(lock) };
                self.seen.insert(owner.clone(), followed);
                Some(waits_behind)
            }
            Some(followed) => match *followed {
                Followed::All => None,
                Followed::ButAt(but) if but == lock => ahead.map(|ahead| smallvec![ahead]),
                Followed::ButAt(but) => {
                    *followed = Followed::All;
                    Some(waits.waits_at(but, owner).collect())
                }
            },
        }
    }

    /// The waits of a blocker to follow, if only its earlier wait has to end.
    fn follow_only(&self, owner: &Owner, ahead: Option<WaiterId>) -> Option<SmallVec<[WaiterId; 2]>> {
        if *owner == self.origin {
            // The waits of the origin were followed from the start, or only one of them counts.
            return match self.from {
                None => Some(SmallVec::new()),
                from => from.filter(|_| from == ahead).map(|from| smallvec![from]),
            };
        }
        let followed = matches!(self.seen.get(owner), Some(Followed::All));
        ahead.filter(|_| !followed).map(|ahead| smallvec![ahead])
    }

    /// All edges found, one per owner, nearest first.
    pub(crate) fn into_edges(self) -> Vec<Edge> {
        let mut found = HashSet::default();
        self.edges.into_iter().filter(|edge| found.insert(edge.owner.clone())).collect()
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
