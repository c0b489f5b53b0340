// SPDX-License-Identifier: MIT

//! Who waits for whom.
//!
//! An owner that waits for a lock waits for every other owner whose hold excludes it, and for every other owner
//! that is ahead in the queue and would exclude it or be excluded. Holders are in the keyspace, so that a search
//! asks for them lock by lock ([`Step::Read`]).
//!
//! An owner may wait because of its own hold ([`Wants::once`](super::Wants::once)). Then it is more than one thread. Another of them may give that
//! hold back: such a wait is no part of a cycle. And whoever waits for one thread of an owner at a lock does not wait for those
//! of its other threads that want the same lock for themselves.
//!
//! An owner that wants the lock with a limited number of others ([`Wants::limit`](super::Wants::limit)) waits for some of the holders, whoever they
//! are. So a cycle that leads through one of them proves nothing yet: see [`Knot`].

use std::collections::VecDeque;

use foldhash::{HashMap, HashSet};
use smallvec::{smallvec, SmallVec};

use super::knot::{self, Knot};
use super::table::LockIdx;
use super::wait_queue::Position;
use super::waits::{is_anothers, served_at_of, Ahead, Waiting, Waits};
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
pub(crate) enum Step {
    /// The holders of this lock are needed: see [`Search::learn`].
    Read(LockId),
    /// Who started waits for himself: through these, in order, of whom the last is himself. That may be so only because of other
    /// waits, which are named too.
    Cycle(Vec<Edge>, Vec<WaiterId>),
    /// Who started waits for himself, but only because each of these waits stands behind the part beside it, which waits for other
    /// locks too: see [`LockManager::let_pass`](super::LockManager::let_pass). Then there may be more.
    Soft(Vec<(WaiterId, WaiterId)>),
    /// There is no more to find.
    Done,
}

/// A search from one owner along those whom it waits for, nearest first.
pub(crate) struct Search {
    origin: Owner,
    /// The wait to which a way back is looked for; `None`: everybody is wanted whom `origin` waits for.
    from: Option<WaiterId>,
    locks: HashMap<LockIdx, Seen>,
    /// Waits to be followed, with the edge that led there.
    todo: VecDeque<(WaiterId, Option<usize>)>,
    seen: HashMap<Owner, Followed>,
    edges: Vec<Edge>,
    /// Waits that stand behind a part, each with that part: one of each way back that has any.
    soft: Vec<(WaiterId, WaiterId)>,
    /// Other ways back are not looked for.
    only_soft: bool,
    /// A way back that is one only if these waits never end.
    unproven: Option<(Vec<Edge>, Knot)>,
}

/// What a search knows of a lock, and how far it has been there: what was found on the way of one waiter is not
/// looked for again on the way of the next, so that a search passes each holder and each position once.
struct Seen {
    holders: Holders,
    /// All holders were found, or all but this one, which waits itself.
    passed_holders: Passed,
    /// All were found that a waiter at this position who waits for all waits for in the queue.
    all_until: Position,
    /// All were found that any other waiter at this position waits for in the queue.
    shared_until: Position,
    /// The same of those who do not wait for all of these, as they pass parts.
    apart_until: HashMap<Apart, Position>,
}

/// What makes two waits for a lock wait for the same ones among those ahead of both, although they pass some.
#[derive(PartialEq, Eq, Hash)]
struct Apart {
    mode: Mode,
    for_all: bool,
    is_holder: bool,
    /// The parts that they pass though these came first, sorted.
    passed: SmallVec<[WaiterId; 4]>,
}

enum Passed {
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

    /// Looks for all whom this owner waits for.
    pub(crate) fn blockers(waits: &impl Waits, origin: &Owner) -> Search {
        Search::new(origin.clone(), None, waits.waits_of(origin))
    }

    fn new(origin: Owner, from: Option<WaiterId>, todo: impl IntoIterator<Item = WaiterId>) -> Search {
        let todo = todo.into_iter().map(|id| (id, None)).collect();
        let (locks, seen, edges) = (HashMap::default(), HashMap::default(), Vec::new());
        let (soft, only_soft, unproven) = (Vec::new(), false, None);
        Search { origin, from, locks, todo, seen, edges, soft, only_soft, unproven }
    }

    /// These are the holders of a lock, as its key has them.
    pub(crate) fn learn(&mut self, waits: &impl Waits, lock: &LockId, mut holders: Holders) {
        let Some(lock) = waits.find(lock) else { return };
        waits.anticipate(lock, &mut holders);
        let (all_until, shared_until) = (Position::FRONT, Position::FRONT);
        let apart_until = HashMap::default();
        let seen = Seen { holders, passed_holders: Passed::None, all_until, shared_until, apart_until };
        self.locks.insert(lock, seen);
    }

    /// Goes on until something is needed or found.
    pub(crate) fn step(&mut self, waits: &impl Waits, now: Now) -> Step {
        if let Some((way, knot)) = &mut self.unproven {
            let holders = |lock: &LockIdx| self.locks.get(lock).map(|seen| &seen.holders);
            return match knot.step(waits, holders, now) {
                knot::Step::Read(lock) => Step::Read(lock),
                knot::Step::NeverEnds(others) => Step::Cycle(std::mem::take(way), others),
                knot::Step::Soft(by, part) => Step::Soft(vec![(by, part)]),
                knot::Step::MayEnd => Step::Done,
            };
        }
        while let Some((id, from)) = self.todo.front().copied() {
            let Some(wait) = waits.waiting(id, now) else {
                self.todo.pop_front();
                continue;
            };
            let Some(name) = waits.name(wait.lock) else {
                return defect!("a wait for an unknown lock", Step::Done);
            };
            let Some(seen) = self.locks.get_mut(&wait.lock) else { return Step::Read(name.clone()) };
            self.todo.pop_front();
            if self.from.is_some() && wait.is_beside_own(&seen.holders) {
                continue;
            }
            let wanted = self.from.map(|from| (&self.origin, from));
            for blocker in blockers(waits, (id, &wait), seen, wanted, now) {
                let Some(led_to) = self.follow(waits, wait.lock, &blocker, now) else { continue };
                let edge = self.edges.len();
                let soft = blocker.ahead.filter(|_| blocker.is_soft);
                self.edges.push(Edge { owner: blocker.owner, lock: name.clone(), by: id, soft, from });
                if let Some(from) = self.from.filter(|from| led_to.contains(from)) {
                    let way = self.way_to(edge);
                    // One of them is enough.
                    if let Some(soft) = way.iter().find_map(|edge| Some((edge.by, edge.soft?))) {
                        self.soft.push(soft);
                        continue;
                    }
                    let needs_some = |edge: &Edge| {
                        let limit = waits.waiting(edge.by, now).and_then(|wait| wait.wants.limit);
                        // The only holder that is allowed is one for whom all wait.
                        limit.is_some_and(|limit| limit.get() > 1)
                    };
                    if !way.iter().any(needs_some) {
                        if self.only_soft {
                            continue;
                        }
                        return Step::Cycle(way, Vec::new());
                    }
                    if !self.soft.is_empty() {
                        // It is found again when these have passed.
                        continue;
                    }
                    self.unproven = Some((way, Knot::of(waits, from, self.origin.clone())));
                    return self.step(waits, now);
                }
                self.todo.extend(led_to.into_iter().map(|wait| (wait, Some(edge))));
            }
        }
        if self.soft.is_empty() {
            return Step::Done;
        }
        let mut soft = std::mem::take(&mut self.soft);
        soft.sort_unstable();
        soft.dedup();
        Step::Soft(soft)
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
        let is_anothers = |id: WaiterId| is_anothers(waits, id, (lock, *ahead), now);
        if let Some(from) = self.from.filter(|_| *owner == self.origin) {
            return (!is_anothers(from)).then(|| smallvec![from]);
        }
        match self.seen.get_mut(owner) {
            None => {
                // The origin's were followed from the start.
                let all = waits.waits_of(owner).filter(|_| *owner != self.origin);
                let (others, led_to): (SmallVec<_>, SmallVec<_>) = all.partition(|id| is_anothers(*id));
                let followed = if others.is_empty() { Followed::All } else { Followed::ButAt(lock) };
                self.seen.insert(owner.clone(), followed);
                Some(led_to)
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

/// The owners that a wait waits for directly, without those that were found already.
///
/// If only the way back to one owner is wanted, the owners in the queue that wait for this lock only are left out. Each of
/// them waits for the lock's holders and for those ahead, as this wait does itself, and so leads to nobody new. But a reader waits for
/// no part of other readers, which one between them may wait for.
fn blockers(
    waits: &impl Waits,
    (id, wait): (WaiterId, &Waiting<'_>),
    seen: &mut Seen,
    wanted: Option<(&Owner, WaiterId)>,
    now: Now,
) -> Vec<Blocker> {
    let Waiting { lock, owner, wants, .. } = *wait;
    let holders = seen.pass_holders(waits, wait, wanted.map(|(origin, _)| origin));
    let holders =
        holders.into_iter().map(|owner| Blocker { owner, ahead: None, only: false, is_soft: false });
    let mut found: Vec<Blocker> = holders.collect();
    // A reader behind others is one of many. One with a limit waits for all who may come to hold the lock before it.
    let for_all = wants.bars_readers();
    let served_at = served_at_of(waits, wait, now);
    if wait.has_no_order() {
        return found;
    }
    // Who passes parts that came first, waits for others than those behind them do.
    let passed_by = waits.passed_by(lock, id);
    let is_behind = |first: WaiterId, ahead: &Waiting<'_>| {
        wait.must_not_pass(ahead) && !passed_by.is_some_and(|passed| passed.contains(&first))
    };
    if let Some((origin, from)) = wanted.filter(|(origin, _)| *origin != owner && for_all) {
        // Of its waits here the one to which the way back is looked for, or any.
        let is_ahead = |id: &WaiterId| {
            waits.waiting(*id, now).is_some_and(|wait| wait.position < served_at && is_behind(*id, &wait))
        };
        let from = waits.together(from);
        let ahead = waits.waits_at(lock, origin).filter(is_ahead).max_by_key(|id| from.contains(id));
        found.extend(ahead.and_then(|id| {
            let is_soft = waits.waiting(id, now)?.is_part;
            Some(Blocker { owner: origin.clone(), ahead: Some(id), only: false, is_soft })
        }));
    }
    let has_parts = waits.has_parts(lock);
    let stands_apart = passed_by.is_some() || (has_parts && for_all && wants.mode == Mode::Shared);
    let until = match (stands_apart, for_all) {
        (true, _) => {
            let mut passed: SmallVec<_> = passed_by.into_iter().flatten().copied().collect();
            passed.sort_unstable();
            let apart = Apart { mode: wants.mode, for_all, is_holder: wait.position.is_holder(), passed };
            seen.apart_until.entry(apart).or_insert(Position::FRONT)
        }
        (false, true) => &mut seen.all_until,
        (false, false) => &mut seen.shared_until,
    };
    let passed = *until;
    if served_at <= passed {
        return found;
    }
    *until = served_at;
    let which = match (wanted.is_none() || stands_apart, for_all) {
        (true, true) => Ahead::All,
        (true, false) | (false, false) => Ahead::Barring,
        (false, true) => Ahead::Crossing,
    };
    for first in waits.ahead(lock, which, passed..served_at) {
        let Some(ahead) = waits.waiting(first, now).filter(|ahead| is_behind(first, ahead)) else { continue };
        // A reader goes in together with one that has a limit, when that can.
        let only = !for_all && ahead.wants.limit.is_some();
        let is_soft = ahead.is_part;
        found.push(Blocker { owner: ahead.owner.clone(), ahead: Some(first), only, is_soft });
        // It waits for all that are ahead of it, and for all holders. One whose owner was in line before waits for less, and from
        // the origin nothing is followed.
        let is_followed = wanted.is_some_and(|(origin, _)| ahead.owner != origin);
        let passes_none =
            waits.passed_by(lock, first).is_none() && !(has_parts && ahead.wants.mode == Mode::Shared);
        let leads_to_all = is_followed && !for_all && passes_none && !ahead.is_beside_own(&seen.holders);
        if leads_to_all && served_at_of(waits, &ahead, now) == ahead.position {
            break;
        }
    }
    found
}

impl Seen {
    /// The holders that exclude a request and are looked for, but for those who were found already. If only the way back to one
    /// owner is wanted: those who wait themselves, and that owner.
    fn pass_holders(&mut self, waits: &impl Waits, wait: &Waiting<'_>, wanted: Option<&Owner>) -> Vec<Owner> {
        let Waiting { owner, wants, .. } = *wait;
        let found = |holders: &Holders| -> Vec<Owner> {
            let excludes = |hold: &&Hold| wait.is_behind(hold);
            match wanted {
                None => holders.iter().filter(excludes).map(|hold| hold.owner.clone()).collect(),
                // Of 10,000 readers hardly any waits: those who wait are looked for among them, not the other way round.
                Some(origin) if waits.waiting_owners_len() < holders.len() => {
                    let holds = |owner: &&Owner| holders.of(owner.as_bytes()).as_ref().is_some_and(excludes);
                    let mut found: Vec<Owner> =
                        waits.waiting_owners().chain([origin]).filter(holds).cloned().collect();
                    found.sort_unstable();
                    found.dedup();
                    found
                }
                Some(origin) => {
                    let leads_on = |hold: &&Hold| hold.owner == *origin || waits.is_waiting(&hold.owner);
                    let holders = holders.iter().filter(excludes).filter(leads_on);
                    holders.map(|hold| hold.owner.clone()).collect()
                }
            }
        };
        match (&self.holders, wants.bars_readers()) {
            (Holders::Shared(_), false) | (Holders::Free, _) => Vec::new(),
            (Holders::Exclusive(_), _) => found(&self.holders),
            (Holders::Shared(holds), true) => match &self.passed_holders {
                Passed::None if !wants.once && holds.contains_key(owner) => {
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
