// SPDX-License-Identifier: MIT

//! Decides whether a wait can ever end. Some waits need only a part of their blockers to leave.
//!
//! A request with limit `n` waits until fewer than `n` owners hold the lock, no matter which of them leave.
//! So it waits forever only if `n` of its blockers wait forever themselves. Its blockers are the owners that
//! hold the lock or will get it first. Every other wait needs all of its blockers to leave.
//!
//! The search first collects all waits that depend on each other. Then it removes waits that can end, until
//! none is left to remove. The remaining waits never end.

use foldhash::{HashMap, HashSet};
use smallvec::SmallVec;

use super::view::{belongs_to_another_thread, can_overtake, service_position, Ahead, WaitView, Waiting};
use crate::core::queue::position::Position;
use crate::core::table::LockIdx;
use crate::core::{Holders, LockId, Mode, Now, Owner, WaiterId};

/// With more dependencies than this number, a wait counts as one that can end. A proof would stop the server
/// for milliseconds.
const MAX_DEPENDENCIES: usize = 20_000;

/// The waits of one owner.
type WaitsOf = SmallVec<[WaiterId; 2]>;

/// The dependencies of a wait.
struct Needs {
    /// The wait never ends if one of these waits never ends.
    each: Vec<WaiterId>,
    /// The wait never ends if this number of these owners have a wait that never ends.
    some: Option<(usize, Vec<WaitsOf>)>,
}

/// The dependencies of one wait, direct and indirect.
pub(super) struct CycleSearch {
    /// The wait, or all members of its bundle.
    from: Vec<WaiterId>,
    origin: Owner,
    needs: HashMap<WaiterId, Needs>,
    todo: Vec<WaiterId>,
    /// Waits that a member blocks only by its place in the queue, each with that member.
    soft: Vec<(WaiterId, WaiterId)>,
    /// Number of dependencies found.
    found: usize,
}

/// The state of a search: its needs or its result.
pub(super) enum CycleProgress {
    /// The search needs the holders of this lock.
    Read(LockId),
    /// The examined wait never ends. Contains all waits that never end, including this one.
    NeverEnds(Vec<WaiterId>),
    /// The examined wait never ends, unless the first of these waits overtakes the second, which is a member.
    Soft(WaiterId, WaiterId),
    MayEnd,
}

impl CycleSearch {
    /// Starts the search for a wait of this owner.
    pub(super) fn of(waits: &impl WaitView, from: WaiterId, origin: Owner) -> CycleSearch {
        let todo = waits.together(from).into_vec();
        CycleSearch {
            from: todo.clone(),
            origin,
            needs: HashMap::default(),
            todo,
            soft: Vec::new(),
            found: 0,
        }
    }

    /// Continues until the search needs something or is complete.
    pub(super) fn step<'a>(
        &mut self,
        waits: &impl WaitView,
        holders: impl Fn(&LockIdx) -> Option<&'a Holders>,
        now: Now,
    ) -> CycleProgress {
        while let Some(id) = self.todo.last().copied() {
            let wait = waits.waiting(id, now).filter(|_| !self.needs.contains_key(&id));
            let Some(wait) = wait else {
                self.todo.pop();
                continue;
            };
            let Some(holders) = holders(&wait.lock) else {
                let name = waits.name(wait.lock).cloned();
                return name.map_or_else(
                    || defect!("a wait for an unknown lock", CycleProgress::MayEnd),
                    CycleProgress::Read,
                );
            };
            self.todo.pop();
            // Another thread of the owner may release the hold that excludes this wait.
            if wait.is_excluded_by_own_hold(holders) {
                continue;
            }
            let needs = self.needs_of(waits, id, &wait, holders, now);
            let some = needs.some.iter().flat_map(|(_, owners)| owners.iter().flatten());
            self.todo.extend(needs.each.iter().chain(some));
            self.found += needs.each.len() + needs.some.as_ref().map_or(0, |(_, owners)| owners.len());
            self.needs.insert(id, needs);
            if self.found > MAX_DEPENDENCIES {
                return CycleProgress::MayEnd;
            }
        }
        let endless = self.endless();
        if self.from.iter().any(|id| endless.contains(id)) {
            let soft = |(by, member): &&(WaiterId, WaiterId)| {
                endless.contains(by)
                    && waits.together(*member).iter().any(|id| endless.contains(id))
                    && can_overtake(waits, *by, *member, now)
            };
            if let Some((by, member)) = self.soft.iter().find(soft) {
                return CycleProgress::Soft(*by, *member);
            }
            CycleProgress::NeverEnds(endless.into_iter().collect())
        } else {
            CycleProgress::MayEnd
        }
    }

    fn needs_of(
        &mut self,
        waits: &impl WaitView,
        id: WaiterId,
        wait: &Waiting<'_>,
        holders: &Holders,
        now: Now,
    ) -> Needs {
        let (mut each, mut some) = (Vec::new(), HashMap::<Owner, WaitsOf>::default());
        let limit = wait.wants.limit;
        for hold in holders.iter().filter(|hold| wait.is_behind(hold)) {
            let waits_behind = self.waits_behind(waits, wait.lock, &hold.owner, None, now);
            if limit.is_some() && hold.exclusive == 0 {
                some.entry(hold.owner.clone()).or_default().extend(waits_behind);
            } else {
                each.extend(waits_behind);
            }
        }
        let ahead = waits.ahead(wait.lock, Ahead::All, Position::FRONT..service_position(waits, wait, now));
        let ahead = ahead.chain(waits.overtakers(wait.lock, id));
        for other in ahead.filter(|other| *other != id && !wait.is_unordered()) {
            let Some(ahead) = waits.waiting(other, now) else { continue };
            if waits.overtakes(wait.lock, id, other) || !wait.must_not_pass(&ahead) {
                continue;
            }
            if ahead.is_member {
                self.soft.push((id, other));
            }
            let waits_behind = self.waits_behind(waits, wait.lock, ahead.owner, Some(other), now);
            if wait.wants.mode == Mode::Exclusive || ahead.wants.mode == Mode::Exclusive {
                each.extend(waits_behind);
                continue;
            }
            // Both requests are shared. A reader behind a request with a limit waits only until that request
            // is granted, so only that wait has to end.
            if ahead.wants.limit.is_some() && (*ahead.owner != self.origin || self.from.contains(&other)) {
                each.push(other);
            }
            if limit.is_some() {
                some.entry(ahead.owner.clone()).or_default().extend(waits_behind);
            }
        }
        let some = limit.map(|limit| (usize::try_from(limit.get()).unwrap_or(usize::MAX), some));
        Needs { each, some: some.map(|(limit, some)| (limit, some.into_values().collect())) }
    }

    /// The waits of an owner that must end before it releases this lock. Waits of its other threads with
    /// `once` do not count. For the origin, only the wait in question counts.
    fn waits_behind(
        &self,
        waits: &impl WaitView,
        lock: LockIdx,
        owner: &Owner,
        ahead: Option<WaiterId>,
        now: Now,
    ) -> WaitsOf {
        let of = waits.waits_of(owner).filter(|id| *owner != self.origin || self.from.contains(id));
        of.filter(|id| !belongs_to_another_thread(waits, *id, lock, ahead, now)).collect()
    }

    /// The waits that never end.
    fn endless(&self) -> HashSet<WaiterId> {
        let mut left: HashSet<WaiterId> = self.needs.keys().copied().collect();
        loop {
            let ends = |id: &WaiterId| {
                let Some(Needs { each, some }) = self.needs.get(id) else { return true };
                let is_left = |id: &WaiterId| left.contains(id);
                let so_many = |(limit, owners): &(usize, Vec<WaitsOf>)| {
                    owners.iter().filter(|waits| waits.iter().any(is_left)).count() >= *limit
                };
                !each.iter().any(is_left) && !some.as_ref().is_some_and(so_many)
            };
            let ending: Vec<WaiterId> = left.iter().copied().filter(ends).collect();
            if ending.is_empty() {
                return left;
            }
            ending.iter().for_each(|id| {
                left.remove(id);
            });
        }
    }
}
