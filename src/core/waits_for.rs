// SPDX-License-Identifier: MIT

//! Who waits for whom.
//!
//! An owner that waits for a lock waits for every other owner whose hold excludes it, and for every other owner
//! that is ahead in the queue and would exclude it or be excluded. Holders are in the keyspace, so that a search
//! asks for them lock by lock ([`Progress::Read`]).
//!
//! An owner may wait because of its own hold ([`Wants::once`](super::Wants::once)). Then it is more than one thread. Another of them may give that
//! hold back: such a wait is no part of a cycle. And whoever waits for one thread of an owner at a lock does not wait for those
//! of its other threads that want the same lock for themselves.
//!
//! An owner that wants the lock with a limited number of others ([`Wants::limit`](super::Wants::limit)) waits for some of the holders, whoever they
//! are. So a cycle that leads through one of them proves nothing yet: see [`CycleSearch`].

use std::collections::VecDeque;

use foldhash::{HashMap, HashSet};
use smallvec::{smallvec, SmallVec};

use super::cycles::{self, CycleSearch};
use super::table::LockIdx;
use super::wait_queue::Position;
use super::waits::{is_another_threads, served_at_of, Ahead, Waiting, Waits};
use super::{Hold, Holders, LockId, Mode, Now, Owner, WaiterId};

/// An owner that a wait waits for.
struct Blocker {
    owner: Owner,
    /// Its wait, if it is ahead in the queue; `None` if it holds the lock.
    ahead: Option<WaiterId>,
    /// Only that wait has to end: what it gets is in nobody's way.
    only: bool,
    /// That wait is a part, and only its place in the queue is in the way.
    is_soft: bool,
}

/// Which waits of an owner are followed.
#[derive(Clone, Copy)]
enum Followed {
    /// All but those that want this lock for themselves.
    ButAt(LockIdx),
    All,
}

/// One owner waits for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    /// Who is waited for.
    pub(crate) owner: Owner,
    /// For the sake of which lock.
    pub(crate) lock: LockId,
    /// The wait.
    pub(crate) by: WaiterId,
    /// The part that is waited for, if that is only because of its place in the queue: it may be passed.
    soft: Option<WaiterId>,
    /// The edge that led to the one who waits; none from where the search started.
    from: Option<usize>,
}

/// What a search needs or has found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The holders of this lock are needed: see [`Search::learn`].
    Read(LockId),
    /// Who started waits for himself: through these, in order, of whom the last is himself. That may be so only because of other
    /// waits, which are named too.
    Cycle(Vec<Edge>, Vec<WaiterId>),
    /// Who started waits for himself, but only because each of these waits stands behind the part beside it, which waits for other
    /// locks too: see [`LockManager::overtake`](super::LockManager::overtake). Then there may be more.
    Soft(Vec<(WaiterId, WaiterId)>),
    /// As much was looked at as may be in one go ([`Search::allow`]).
    Later,
    /// There is no more to find.
    Done,
}

/// How much a search may look at in one go: some milliseconds.
pub(crate) const PORTION: usize = 4_000;

/// How many owners are named at most whom an owner waits for.
const MAX_NAMED_OWNERS: usize = 1_000;

/// A search from one owner along those whom it waits for, nearest first.
///
/// It may be interrupted, and go on later. What it has found until then may be over by that time, so that a way back counts only
/// if a search among the owners on that way finds it again, in one go. Nothing is missed: whatever adds an edge to the graph begins
/// a search of its own, so that a cycle that this search could find stands there from its begin. But where waits have moved in a
/// queue meanwhile, it begins again ([`Searches`](super::searches::Searches)).
pub(crate) struct Search {
    origin: Owner,
    /// The wait to which a way back is looked for; `None`: everybody is wanted whom `origin` waits for.
    from: Option<WaiterId>,
    locks: HashMap<LockIdx, Seen>,
    /// Waits to be followed, with the edge that led there.
    todo: VecDeque<(WaiterId, Option<usize>)>,
    /// What was found around the first of them.
    around: Option<Around>,
    seen: HashMap<Owner, Followed>,
    edges: Vec<Edge>,
    /// Waits that stand behind a part, each with that part: one of each way back that has any.
    soft: Vec<(WaiterId, WaiterId)>,
    /// Other ways back are not looked for.
    only_soft: bool,
    /// A way back that is one only if these waits never end.
    unproven: Option<(Vec<Edge>, CycleSearch)>,
    /// How much may be looked at before it is interrupted.
    left: usize,
    was_interrupted: bool,
    /// Only these owners are followed.
    only: Option<HashSet<Owner>>,
}

/// Those whom a wait waits for.
struct Around {
    lock: LockIdx,
    name: LockId,
    found: std::vec::IntoIter<Blocker>,
    /// There are others.
    is_partial: bool,
}

/// What a search knows of a lock, and how far it has been there: what was found on the way of one waiter is not
/// looked for again on the way of the next, so that a search passes each holder and each position once.
struct Seen {
    /// Without those who wait for nothing, if a way back is looked for and there are many.
    holders: Holders,
    /// All holders were found, or all but this one, which waits itself.
    visited_holders: VisitedHolders,
    /// All were found that a waiter at this position who waits for all waits for in the queue.
    all_until: Position,
    /// All were found that any other waiter at this position waits for in the queue.
    shared_until: Position,
    /// The same of those who do not wait for all of these, as they pass parts.
    apart_until: HashMap<Apart, Position>,
}

/// What makes two waits for a lock wait for the same ones among those ahead of both, although they pass some.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Apart {
    mode: Mode,
    for_all: bool,
    is_holder: bool,
    /// The parts that they pass though these came first, sorted.
    overtaken: SmallVec<[WaiterId; 4]>,
}

enum VisitedHolders {
    None,
    AllBut(Owner),
    All,
}

impl Search {
    /// Looks for a way from this waiter back to its owner.
    pub(crate) fn cycle<W: Waits>(waits: &W, from: WaiterId, now: Now) -> Option<Search> {
        let origin = waits.waiting(from, now)?.owner.clone();
        Some(Search::new(origin, Some(from), waits.together(from)))
    }

    /// The same, but only for such a way that is one as somebody stands behind a part: what else there is may end by itself.
    pub(crate) fn soft_cycle<W: Waits>(waits: &W, from: WaiterId, now: Now) -> Option<Search> {
        Some(Search { only_soft: true, ..Search::cycle(waits, from, now)? })
    }

    /// Looks for those whom this owner waits for: all of them, if they are not too many to be named.
    pub(crate) fn blockers(waits: &impl Waits, origin: &Owner) -> Search {
        Search::new(origin.clone(), None, waits.waits_of(origin))
    }

    /// The same search anew, after waits were let pass or have left.
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

    /// The wait to which a way back is looked for.
    pub(crate) fn of_wait(&self) -> Option<WaiterId> {
        self.from
    }

    /// So much may be looked at from now on before it is interrupted.
    pub(crate) fn allow(&mut self, portion: usize) {
        self.left = portion;
    }

    /// What is left of that.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    fn count(&mut self, looked_at: usize) {
        if self.only.is_none() {
            self.left = self.left.saturating_sub(looked_at);
        }
    }

    /// These are the holders of a lock, as its key has them.
    pub(crate) fn learn(&mut self, waits: &impl Waits, lock: &LockId, holders: Holders) {
        let Some(lock) = waits.find(lock) else { return };
        let mut holders = match self.from {
            Some(_) => self.who_matters(waits, holders),
            None => holders,
        };
        waits.anticipate(lock, &mut holders);
        let (all_until, shared_until) = (Position::FRONT, Position::FRONT);
        let apart_until = HashMap::default();
        let seen =
            Seen { holders, visited_holders: VisitedHolders::None, all_until, shared_until, apart_until };
        self.locks.insert(lock, seen);
    }

    /// Of many holders those who wait themselves, and the origin: through others no way leads back. Of 10,000 readers hardly any
    /// waits, so that those who wait are looked for among them if these are fewer.
    fn who_matters(&mut self, waits: &impl Waits, holders: Holders) -> Holders {
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
        // It is looked at faster than what is followed.
        self.count(waiting.min(holders.len()) / 8);
        Holders::from_holds(found).unwrap_or(Holders::Free)
    }

    /// Goes on until something is needed or found.
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
                    if let Some(step) = self.pursue(waits, (id, from), (lock, name), blocker, now) {
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
            if let Some(lock) = self.look_around(waits, id, now) {
                return Progress::Read(lock);
            }
        }
        if self.soft.is_empty() {
            if self.only.is_some() {
                // What was found is not so any more.
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

    /// Finds those whom this wait waits for, which is the first to be followed. Returns the lock whose holders are needed for that.
    fn look_around(&mut self, waits: &impl Waits, id: WaiterId, now: Now) -> Option<LockId> {
        let goes_on = self.around.take().is_some();
        let Some(wait) = waits.waiting(id, now) else {
            self.todo.pop_front();
            return None;
        };
        let Some(name) = waits.name(wait.lock) else {
            self.todo.clear();
            return defect!("a wait for an unknown lock", None);
        };
        let Some(seen) = self.locks.get_mut(&wait.lock) else { return Some(name.clone()) };
        if self.from.is_some() && wait.is_beside_own(&seen.holders) {
            self.todo.pop_front();
            return None;
        }
        let sought = Sought {
            origin: self.from.map(|from| (&self.origin, from)),
            only: self.only.as_ref(),
            most: if self.only.is_some() { usize::MAX } else { self.left },
            goes_on,
        };
        let Found { blockers, looked_at, is_partial } = blockers(waits, (id, &wait), seen, &sought, now);
        let (lock, name, found) = (wait.lock, name.clone(), blockers.into_iter());
        self.around = Some(Around { lock, name, found, is_partial });
        self.count(1 + looked_at);
        None
    }

    /// Follows one whom a wait waits for. Returns what is found by that, if it ends the search or interrupts it.
    fn pursue(
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
        // One of them is enough.
        if let Some(soft) = way.iter().find_map(can_swap) {
            if self.was_interrupted {
                return Some(self.confirm(waits, &way, now));
            }
            self.soft.push(soft);
            return None;
        }
        let needs_some = |edge: &Edge| {
            let limit = waits.waiting(edge.by, now).and_then(|wait| wait.wants.limit);
            // The only holder that is allowed is one for whom all wait.
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
            // It is found again when these have passed.
            return None;
        }
        if self.was_interrupted {
            // That looks at everything itself.
            self.locks.clear();
        }
        self.unproven = Some((way, CycleSearch::of(waits, from, self.origin.clone())));
        Some(self.step(waits, now))
    }

    /// Looks whether a way that was found in several portions is there: all of it at once, and nothing else.
    fn confirm(&mut self, waits: &impl Waits, way: &[Edge], now: Now) -> Progress {
        let Some(mut search) = self.restart(waits, now) else { return Progress::Done };
        search.only = Some(way.iter().map(|edge| edge.owner.clone()).collect());
        *self = search;
        self.step(waits, now)
    }

    /// The waits of one who is waited for at a lock that are to be followed now; `None` if that leads to nobody new.
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
        let is_another_threads = |id: WaiterId| is_another_threads(waits, id, (lock, *ahead), now);
        if let Some(from) = self.from.filter(|_| *owner == self.origin) {
            return (!is_another_threads(from)).then(|| smallvec![from]);
        }
        match self.seen.get_mut(owner) {
            None => {
                // The origin's were followed from the start.
                let all = waits.waits_of(owner).filter(|_| *owner != self.origin);
                let (others, waits_behind): (SmallVec<_>, SmallVec<_>) =
                    all.partition(|id| is_another_threads(*id));
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

    /// The same if only the wait ahead has to end.
    fn follow_only(&self, owner: &Owner, ahead: Option<WaiterId>) -> Option<SmallVec<[WaiterId; 2]>> {
        if *owner == self.origin {
            // Its waits were followed from the start, or it is only one of them that counts.
            return match self.from {
                None => Some(SmallVec::new()),
                from => from.filter(|_| from == ahead).map(|from| smallvec![from]),
            };
        }
        let followed = matches!(self.seen.get(owner), Some(Followed::All));
        ahead.filter(|_| !followed).map(|ahead| smallvec![ahead])
    }

    /// All who were found, each once, nearest first.
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

/// Whom a search looks for around a wait.
struct Sought<'a> {
    /// Only the way back to this owner is wanted, to this wait of his.
    origin: Option<(&'a Owner, WaiterId)>,
    /// Only these are wanted.
    only: Option<&'a HashSet<Owner>>,
    /// So many are looked at in the queue.
    most: usize,
    /// Some were found before.
    goes_on: bool,
}

struct Found {
    blockers: Vec<Blocker>,
    looked_at: usize,
    /// There are others in the queue.
    is_partial: bool,
}

/// The owners that a wait waits for directly, without those that were found already.
///
/// If only the way back to one owner is wanted, the owners in the queue that wait for this lock only are left out. Each of
/// them waits for the lock's holders and for those ahead, as this wait does itself, and so leads to nobody new. But a reader waits for
/// no part of other readers, which one between them may wait for; and a part waits for those that came later and pass it.
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
    // A reader behind others is one of many. One with a limit waits for all who may come to hold the lock before it.
    let for_all = wants.blocks_all();
    let served_at = served_at_of(waits, wait, now);
    if wait.is_unordered() {
        return found;
    }
    // Who passes parts that came first, waits for others than those behind them do.
    let overtaken_by = waits.overtaken_by(lock, id);
    let is_behind = |first: WaiterId, ahead: &Waiting<'_>| {
        wait.must_not_pass(ahead) && !overtaken_by.is_some_and(|overtaken| overtaken.contains(&first))
    };
    if let Some((origin, from)) = wanted.filter(|(origin, _)| *origin != owner && for_all && !sought.goes_on)
    {
        // Of its waits here the one to which the way back is looked for, or any.
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
    if has_overtaking && wait.is_member && !sought.goes_on {
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
        // Readers go in side by side.
        let is_beside = !for_all && !ahead.wants.blocks_all();
        if is_beside || !is_behind(first, &ahead) {
            continue;
        }
        // A reader goes in together with one that has a limit, when that can.
        let only = !for_all && ahead.wants.limit.is_some();
        let is_soft = ahead.is_member;
        found.blockers.push(Blocker { owner: ahead.owner.clone(), ahead: Some(first), only, is_soft });
        // It waits for all that are ahead of it, and for all holders. One whose owner was in line before waits for less, and from
        // the origin nothing is followed.
        let is_followed = wanted.is_some_and(|(origin, _)| ahead.owner != origin);
        let overtakes_some = has_overtaking || (has_members && ahead.wants.mode == Mode::Shared);
        let leads_to_all = is_followed && !for_all && !overtakes_some && !ahead.is_beside_own(&seen.holders);
        if leads_to_all && sought.only.is_none() && served_at_of(waits, &ahead, now) == ahead.position {
            break;
        }
    }
    found
}

impl Seen {
    /// How far the queue was looked at by such waits.
    fn until(&mut self, apart: Option<&Apart>, for_all: bool) -> &mut Position {
        match (apart, for_all) {
            (Some(apart), _) => self.apart_until.entry(apart.clone()).or_insert(Position::FRONT),
            (None, true) => &mut self.all_until,
            (None, false) => &mut self.shared_until,
        }
    }

    /// The holders that exclude a request and are looked for, but for those who were found already. If only the way back to one
    /// owner is wanted: those who wait themselves, and that owner.
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
