// SPDX-License-Identifier: MIT

//! The waits-for graph.
//!
//! An owner that waits for a lock waits for every other owner whose hold excludes it. It also waits for every
//! other owner ahead in the queue that excludes it or is excluded by it. Holders are in the keyspace, so a
//! search requests them lock by lock ([`Progress::Read`]).
//!
//! An owner may wait because of its own hold ([`Wants::once`](super::Wants::once)), if it has several
//! threads. Another thread may release that hold, so such a wait is in no cycle. A waiter behind one thread
//! of an owner does not wait for other threads that want the same lock with `once`.
//!
//! An owner with a limit ([`Wants::limit`](super::Wants::limit)) waits until some of the holders release, no
//! matter which. So a cycle through one of them proves nothing yet: see [`CycleSearch`].

use std::collections::VecDeque;

use foldhash::{HashMap, HashSet};
use smallvec::{smallvec, SmallVec};

use super::cycles::{self, CycleSearch};
use super::queue::wait_queue::Position;
use super::table::LockIdx;
use super::waits::{belongs_to_another_thread, service_position, Ahead, Waiting, Waits};
use super::{Hold, Holders, LockId, Mode, Now, Owner, WaiterId};

/// An owner that blocks a wait.
struct Blocker {
    owner: Owner,
    /// The owner's wait ahead in the queue; `None` if it holds the lock.
    ahead: Option<WaiterId>,
    /// Whether only that wait has to end, because its grant would not block.
    only: bool,
    /// Whether that wait is a member that blocks only by its place in the queue.
    is_soft: bool,
}

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
    /// The lock on which it blocks.
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
    /// The origin waits for itself along these edges, in order. Other waits that contribute are listed too.
    Cycle(Vec<Edge>, Vec<WaiterId>),
    /// The origin waits for itself only because each of these waits stands behind the member beside it: see
    /// [`LockManager::overtake`](super::LockManager::overtake). After the swap, the search must be repeated.
    Soft(Vec<(WaiterId, WaiterId)>),
    /// The search has used up its portion ([`Search::allow`]).
    Later,
    /// The search is complete.
    Done,
}

/// Portion of a search, which takes some milliseconds.
pub(crate) const PORTION: usize = 4_000;

/// Maximum number of blockers listed for an owner.
const MAX_NAMED_OWNERS: usize = 1_000;

/// A breadth-first search from one owner along its blockers.
///
/// A search may be interrupted and resumed. Its findings may be outdated by then, so a path back counts only
/// if a search among its owners finds it again without interruption. Nothing is missed, because every new edge
/// of the graph starts a search of its own. So a cycle within reach of this search existed at its start. If waits
/// have moved within a queue meanwhile, the search restarts ([`Searches`](super::searches::Searches)).
pub(crate) struct Search {
    origin: Owner,
    /// The wait to which a path back is sought; `None` if all blockers of `origin` are wanted.
    from: Option<WaiterId>,
    locks: HashMap<LockIdx, Seen>,
    /// Waits to follow, each with the edge that led to it.
    todo: VecDeque<(WaiterId, Option<usize>)>,
    /// The blockers found for the first of these waits.
    around: Option<Around>,
    seen: HashMap<Owner, Followed>,
    edges: Vec<Edge>,
    /// Waits that stand behind a member, with that member: one for each path back that has any.
    soft: Vec<(WaiterId, WaiterId)>,
    /// Whether only paths that overtaking resolves are sought.
    only_soft: bool,
    /// A path back that is a cycle only if these waits never end.
    unproven: Option<(Vec<Edge>, CycleSearch)>,
    /// Amount left in the portion.
    left: usize,
    was_interrupted: bool,
    /// The only owners to follow, if limited.
    only: Option<HashSet<Owner>>,
}

/// The blockers of a wait.
struct Around {
    lock: LockIdx,
    name: LockId,
    found: std::vec::IntoIter<Blocker>,
    /// Whether more blockers exist.
    is_partial: bool,
}

/// The explored part of a lock. Findings for one waiter are not repeated for the next, so that a search
/// visits each holder and each position once.
struct Seen {
    /// The holders. If a path back is sought among many holders, only those that wait themselves.
    holders: Holders,
    /// The holders found so far: all, or all except one that waits itself.
    visited_holders: VisitedHolders,
    /// Queue position up to which all blockers of an exclusive or limited waiter were found.
    all_until: Position,
    /// Queue position up to which all blockers of any other waiter were found.
    shared_until: Position,
    /// Queue positions for waiters that overtake members, and so have fewer blockers.
    apart_until: HashMap<Apart, Position>,
}

/// Waits for a lock with an equal value have the same blockers among the waits ahead of both.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Apart {
    mode: Mode,
    for_all: bool,
    is_holder: bool,
    /// The members that they overtake, sorted.
    overtaken: SmallVec<[WaiterId; 4]>,
}

enum VisitedHolders {
    None,
    AllBut(Owner),
    All,
}

impl Search {
    /// Starts a search for a path from this waiter back to its owner.
    pub(crate) fn cycle<W: Waits>(waits: &W, from: WaiterId, now: Now) -> Option<Search> {
        let origin = waits.waiting(from, now)?.owner.clone();
        Some(Search::new(origin, Some(from), waits.together(from)))
    }

    /// Starts a search for such a path that overtaking resolves. Other paths may end by themselves.
    pub(crate) fn soft_cycle<W: Waits>(waits: &W, from: WaiterId, now: Now) -> Option<Search> {
        Some(Search { only_soft: true, ..Search::cycle(waits, from, now)? })
    }

    /// Starts a search for all blockers of this owner, up to a maximum.
    pub(crate) fn blockers(waits: &impl Waits, origin: &Owner) -> Search {
        Search::new(origin.clone(), None, waits.waits_of(origin))
    }

    /// Restarts the search after waits have overtaken members or left.
    pub(crate) fn again(self, waits: &impl Waits, now: Now) -> Option<Search> {
        self.restart(waits, now)
    }

    fn restart(&self, waits: &impl Waits, now: Now) -> Option<Search> {
        let (only_soft, left) = (self.only_soft, self.left);
        Some(Search { only_soft, left, ..Search::cycle(waits, self.from?, now)? })
    }

    fn new(origin: Owner, from: Option<WaiterId>, todo: impl IntoIterator<Item = WaiterId>) -> Search {
        Search {
            origin,
            from,
            locks: HashMap::default(),
            todo: todo.into_iter().map(|id| (id, None)).collect(),
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

    /// The amount left in the portion.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    fn count(&mut self, looked_at: usize) {
        if self.only.is_none() {
            self.left = self.left.saturating_sub(looked_at);
        }
    }

    /// Passes the holders of a lock, as its key has them.
    pub(crate) fn learn(&mut self, waits: &impl Waits, lock: &LockId, holders: Holders) {
        let Some(lock) = waits.find(lock) else { return };
        let mut holders = match self.from {
            Some(_) => self.relevant_holders(waits, holders),
            None => holders,
        };
        waits.anticipate(lock, &mut holders);
        let (all_until, shared_until) = (Position::FRONT, Position::FRONT);
        let apart_until = HashMap::default();
        let seen =
            Seen { holders, visited_holders: VisitedHolders::None, all_until, shared_until, apart_until };
        self.locks.insert(lock, seen);
    }

    /// Reduces many holders to the origin and those that wait themselves: no path leads back through the
    /// others. Scans the holders or the waiting owners, whichever are fewer: hardly any of 10,000 readers waits.
    fn relevant_holders(&mut self, waits: &impl Waits, holders: Holders) -> Holders {
        const FEW: usize = 8;
        if holders.len() <= FEW {
            return holders;
        }
        let hold_of = |owner: &Owner| holders.of(owner.as_bytes()).cloned();
        let waiting = waits.waiting_owners_len();
        let mut found: Vec<Hold> = match &self.only {
            Some(only) => only.iter().filter_map(hold_of).collect(),
            None if waiting < holders.len() => waits.waiting_owners().filter_map(hold_of).collect(),
            None => holders.iter().filter(|hold| waits.is_waiting(&hold.owner)).cloned().collect(),
        };
        if !found.iter().any(|hold| hold.owner == self.origin) {
            found.extend(hold_of(&self.origin));
        }
        // A scanned owner counts as an eighth: scanning it is faster than following its waits.
        self.count(waiting.min(holders.len()) / 8);
        Holders::from_holds(found).unwrap_or(Holders::Free)
    }

    /// Continues until the search needs or has found something.
    pub(crate) fn step(&mut self, waits: &impl Waits, now: Now) -> Progress {
        if let Some((way, proof)) = &mut self.unproven {
            let holders = |lock: &LockIdx| self.locks.get(lock).map(|seen| &seen.holders);
            return match proof.step(waits, holders, now) {
                cycles::Proof::Read(lock) => Progress::Read(lock),
                cycles::Proof::NeverEnds(others) => Progress::Cycle(std::mem::take(way), others),
                cycles::Proof::Soft(by, member) => Progress::Soft(vec![(by, member)]),
                cycles::Proof::MayEnd => Progress::Done,
            };
        }
        while let Some((id, from)) = self.todo.front().copied() {
            if self.left == 0 && self.only.is_none() {
                self.was_interrupted = true;
                return Progress::Later;
            }
            if let Some(around) = &mut self.around {
                if let Some(blocker) = around.found.next() {
                    let (lock, name) = (around.lock, around.name.clone());
                    self.count(1);
                    if let Some(step) = self.follow_blocker(waits, (id, from), (lock, name), blocker, now) {
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
            if let Some(lock) = self.find_blockers(waits, id, now) {
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

    /// Finds the blockers of the first wait to follow. Returns a lock whose holders are needed for that.
    fn find_blockers(&mut self, waits: &impl Waits, id: WaiterId, now: Now) -> Option<LockId> {
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
        let Found { blockers, looked_at, is_partial } = blockers(waits, (id, &wait), seen, &sought, now);
        let (lock, name, found) = (wait.lock, name.clone(), blockers.into_iter());
        self.around = Some(Around { lock, name, found, is_partial });
        self.count(1 + looked_at);
        None
    }

    /// Follows one blocker of a wait. Returns a result that ends or interrupts the search.
    fn follow_blocker(
        &mut self,
        waits: &impl Waits,
        (id, from): (WaiterId, Option<usize>),
        (lock, name): (LockIdx, LockId),
        blocker: Blocker,
        now: Now,
    ) -> Option<Progress> {
        if self.only.as_ref().is_some_and(|only| !only.contains(&blocker.owner)) {
            return None;
        }
        let waits_behind = self.follow(waits, lock, &blocker, now)?;
        let edge = self.edges.len();
        let soft = blocker.ahead.filter(|_| blocker.is_soft);
        self.edges.push(Edge { owner: blocker.owner, lock: name, by: id, soft, from });
        let Some(from) = self.from.filter(|from| waits_behind.contains(from)) else {
            if self.from.is_none() && self.edges.len() >= MAX_NAMED_OWNERS {
                return Some(Progress::Done);
            }
            self.todo.extend(waits_behind.into_iter().map(|wait| (wait, Some(edge))));
            return None;
        };
        let way = self.way_to(edge);
        let can_swap = |edge: &Edge| {
            let member = edge.soft?;
            (!waits.has_ever_overtaken(edge.by, member)).then_some((edge.by, member))
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
            // With a limit of 1, the only holder blocks all others.
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
            // The search after the swap finds it again.
            return None;
        }
        if self.was_interrupted {
            // The cycle search reads everything itself.
            self.locks.clear();
        }
        self.unproven = Some((way, CycleSearch::of(waits, from, self.origin.clone())));
        Some(self.step(waits, now))
    }

    /// Checks a path that was found in several portions: in one go, and nothing else.
    fn confirm(&mut self, waits: &impl Waits, way: &[Edge], now: Now) -> Progress {
        let Some(mut search) = self.restart(waits, now) else { return Progress::Done };
        search.only = Some(way.iter().map(|edge| edge.owner.clone()).collect());
        *self = search;
        self.step(waits, now)
    }

    /// The waits of a blocker at a lock that must be followed now; `None` if no new ones exist.
    fn follow(
        &mut self,
        waits: &impl Waits,
        lock: LockIdx,
        Blocker { owner, ahead, only, .. }: &Blocker,
        now: Now,
    ) -> Option<SmallVec<[WaiterId; 2]>> {
        if *only {
            return self.follow_only(owner, *ahead);
        }
        let belongs_to_another_thread =
            |id: WaiterId| belongs_to_another_thread(waits, id, (lock, *ahead), now);
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

    /// The waits of a blocker to follow if only its wait ahead has to end.
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

/// The blockers that a search seeks around a wait.
struct Sought<'a> {
    /// Only a path back to this wait of this owner is wanted.
    origin: Option<(&'a Owner, WaiterId)>,
    /// Only these owners are wanted.
    only: Option<&'a HashSet<Owner>>,
    /// Maximum number of queue positions to scan.
    most: usize,
    /// Whether some blockers were already found.
    resumes: bool,
}

struct Found {
    blockers: Vec<Blocker>,
    looked_at: usize,
    /// Whether the queue has more blockers.
    is_partial: bool,
}

/// The direct blockers of a wait, without those already found.
///
/// If only a path back is wanted, owners in the queue that wait for this lock only are left out. They wait
/// for the lock's holders and for waits ahead, as this wait does, and so lead to no new owner. Exceptions: a
/// reader does not wait for members of other readers, which a wait between them may wait for. And a member
/// waits for later waits that overtook it.
fn blockers(
    waits: &impl Waits,
    (id, wait): (WaiterId, &Waiting<'_>),
    seen: &mut Seen,
    sought: &Sought<'_>,
    now: Now,
) -> Found {
    let Waiting { lock, owner, wants, .. } = *wait;
    let wanted = sought.origin;
    let holders = seen.visit_holders(waits, wait, wanted.map(|(origin, _)| origin));
    let holders =
        holders.into_iter().map(|owner| Blocker { owner, ahead: None, only: false, is_soft: false });
    let mut found = Found { blockers: holders.collect(), looked_at: 0, is_partial: false };
    // A reader behind others is one of many. A reader with a limit waits for all that may hold the lock
    // before it.
    let for_all = wants.blocks_all();
    let served_at = service_position(waits, wait, now);
    if wait.is_unordered() {
        return found;
    }
    // A wait that overtakes members has different blockers than the waits behind them.
    let overtaken_by = waits.overtaken_by(lock, id);
    let is_behind = |first: WaiterId, ahead: &Waiting<'_>| {
        wait.must_not_pass(ahead) && !overtaken_by.is_some_and(|overtaken| overtaken.contains(&first))
    };
    if let Some((origin, from)) = wanted.filter(|(origin, _)| *origin != owner && for_all && !sought.resumes)
    {
        // Prefers the origin's wait to which the path back is sought.
        let is_ahead = |id: &WaiterId| {
            waits.waiting(*id, now).is_some_and(|wait| wait.position < served_at && is_behind(*id, &wait))
        };
        let from = waits.together(from);
        let ahead = waits.waits_at(lock, origin).filter(is_ahead).max_by_key(|id| from.contains(id));
        found.blockers.extend(ahead.and_then(|id| {
            let is_soft = waits.waiting(id, now)?.is_member;
            Some(Blocker { owner: origin.clone(), ahead: Some(id), only: false, is_soft })
        }));
    }
    let has_overtaking = waits.has_overtaking(lock);
    if has_overtaking && wait.is_member && !sought.resumes {
        found.blockers.extend(waits.overtakers(lock, id).filter_map(|first| {
            let Waiting { owner, is_member, .. } = waits.waiting(first, now)?;
            Some(Blocker { owner: owner.clone(), ahead: Some(first), only: false, is_soft: is_member })
        }));
    }
    let has_members = waits.has_members(lock);
    let stands_apart = has_overtaking || (has_members && for_all && wants.mode == Mode::Shared);
    let apart = stands_apart.then(|| {
        let mut overtaken: SmallVec<_> = overtaken_by.into_iter().flatten().copied().collect();
        overtaken.sort_unstable();
        Apart { mode: wants.mode, for_all, is_holder: wait.position.is_holder(), overtaken }
    });
    let until = seen.until(apart.as_ref(), for_all);
    let overtaken = *until;
    if served_at <= overtaken {
        return found;
    }
    *until = served_at;
    let which = match (wanted.is_none() || stands_apart, for_all) {
        (true, true) => Ahead::All,
        (true, false) | (false, false) => Ahead::Blocking,
        (false, true) => Ahead::Crossing,
    };
    let listed = sought.only.map(|only| {
        let at_lock = only.iter().flat_map(|owner| waits.waits_at(lock, owner));
        let placed = at_lock.filter_map(|id| Some((waits.waiting(id, now)?.position, id)));
        let mut ahead: Vec<_> = placed.filter(|(at, _)| overtaken <= *at && *at < served_at).collect();
        ahead.sort_unstable();
        ahead.into_iter().map(|(_, id)| id)
    });
    let queue = listed.is_none().then(|| waits.ahead(lock, which, overtaken..served_at));
    for first in listed.into_iter().flatten().chain(queue.into_iter().flatten()) {
        let Some(ahead) = waits.waiting(first, now) else { continue };
        if found.looked_at >= sought.most && which != Ahead::Blocking {
            *seen.until(apart.as_ref(), for_all) = ahead.position;
            found.is_partial = true;
            break;
        }
        found.looked_at += 1;
        // Readers are granted together.
        let is_beside = !for_all && !ahead.wants.blocks_all();
        if is_beside || !is_behind(first, &ahead) {
            continue;
        }
        // A reader is granted together with one that has a limit.
        let only = !for_all && ahead.wants.limit.is_some();
        let is_soft = ahead.is_member;
        found.blockers.push(Blocker { owner: ahead.owner.clone(), ahead: Some(first), only, is_soft });
        // That wait is blocked by all waits ahead of it and by all holders. Exceptions: a wait whose owner
        // stood ahead before, and waits of the origin.
        let is_followed = wanted.is_some_and(|(origin, _)| ahead.owner != origin);
        let overtakes_some = has_overtaking || (has_members && ahead.wants.mode == Mode::Shared);
        let leads_to_all =
            is_followed && !for_all && !overtakes_some && !ahead.is_excluded_by_own_hold(&seen.holders);
        if leads_to_all && sought.only.is_none() && service_position(waits, &ahead, now) == ahead.position {
            break;
        }
    }
    found
}

impl Seen {
    /// Queue position up to which blockers of such waits were found.
    fn until(&mut self, apart: Option<&Apart>, for_all: bool) -> &mut Position {
        match (apart, for_all) {
            (Some(apart), _) => self.apart_until.entry(apart.clone()).or_insert(Position::FRONT),
            (None, true) => &mut self.all_until,
            (None, false) => &mut self.shared_until,
        }
    }

    /// The holders that exclude a request, without those already found. If only a path back is wanted, only
    /// holders that wait themselves, and the origin.
    fn visit_holders(
        &mut self,
        waits: &impl Waits,
        wait: &Waiting<'_>,
        wanted: Option<&Owner>,
    ) -> Vec<Owner> {
        let Waiting { owner, wants, .. } = *wait;
        let most = if wanted.is_none() { MAX_NAMED_OWNERS } else { usize::MAX };
        let found = |holders: &Holders| -> Vec<Owner> {
            let leads_on = |hold: &&Hold| {
                wanted.is_none_or(|origin| hold.owner == *origin || waits.is_waiting(&hold.owner))
            };
            let holders = holders.iter().filter(|hold| wait.is_behind(hold)).filter(leads_on);
            holders.take(most).map(|hold| hold.owner.clone()).collect()
        };
        match (&self.holders, wants.blocks_all()) {
            (Holders::Shared(_), false) | (Holders::Free, _) => Vec::new(),
            (Holders::Exclusive(_), _) => found(&self.holders),
            (Holders::Shared(holds), true) => match &self.visited_holders {
                VisitedHolders::None if !wants.once && holds.contains_key(owner) => {
                    self.visited_holders = VisitedHolders::AllBut(owner.clone());
                    found(&self.holders)
                }
                VisitedHolders::None => {
                    self.visited_holders = VisitedHolders::All;
                    found(&self.holders)
                }
                VisitedHolders::AllBut(left) if left != owner => {
                    let left = left.clone();
                    self.visited_holders = VisitedHolders::All;
                    vec![left]
                }
                VisitedHolders::AllBut(_) | VisitedHolders::All => Vec::new(),
            },
        }
    }
}
