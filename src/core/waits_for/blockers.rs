// SPDX-License-Identifier: MIT

//! The edges of the waits-for graph at one wait: the owners that block it directly.

use foldhash::{HashMap, HashSet};
use smallvec::SmallVec;

use super::view::{service_position, Ahead, WaitView, Waiting};
use crate::core::queue::position::Position;
use crate::core::{Hold, Holders, Mode, Now, Owner, WaiterId};

/// Maximum number of blockers listed for an owner.
pub(super) const MAX_NAMED_OWNERS: usize = 1_000;

/// An owner that blocks a wait.
pub(super) struct Blocker {
    pub(super) owner: Owner,
    /// The owner's wait ahead in the queue; `None` if it holds the lock.
    pub(super) ahead: Option<WaiterId>,
    /// Whether only that wait has to end: once granted, it no longer blocks.
    pub(super) only: bool,
    /// Whether that wait is a member that blocks only by its place in the queue.
    pub(super) is_soft: bool,
}

/// The blockers that a search seeks around a wait.
pub(super) struct Sought<'a> {
    /// If set, only a path back to this wait of this owner is sought.
    pub(super) origin: Option<(&'a Owner, WaiterId)>,
    /// If set, only these owners are sought.
    pub(super) only: Option<&'a HashSet<Owner>>,
    /// Maximum number of queue positions to scan.
    pub(super) most: usize,
    /// Whether some blockers were already found.
    pub(super) resumes: bool,
}

/// The direct blockers found.
pub(super) struct Found {
    pub(super) blockers: Vec<Blocker>,
    pub(super) looked_at: usize,
    /// Whether the queue may have more blockers.
    pub(super) is_partial: bool,
}

/// The explored part of a lock. Blockers found for one waiter are not reported again for the next one, so
/// that a search visits each holder and each position once.
pub(super) struct Seen {
    /// The holders. In a search for a path back, a large set is reduced to the holders that wait themselves.
    pub(super) holders: Holders,
    /// The holders visited so far: none, all, or all except one that waits itself.
    visited_holders: VisitedHolders,
    /// Queue position up to which all blockers of an exclusive or limited waiter were found.
    all_until: Position,
    /// Queue position up to which all blockers of any other waiter were found.
    shared_until: Position,
    /// For waiters that overtake members: queue position up to which their blockers were found.
    apart_until: HashMap<Apart, Position>,
}

/// The properties that determine a wait's blockers. If two waits for a lock have equal values, the waits
/// ahead of both block both or neither.
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

/// The holders through which a path back may lead.
pub(super) struct RelevantHolders {
    pub(super) holders: Holders,
    /// Number of owners that were scanned to find them.
    pub(super) scanned: usize,
}

/// Reduces many holders to the origin and the holders that wait themselves, because no path back leads
/// through the others. Scans the holders or the waiting owners, whichever are fewer: of 10,000 readers, few
/// are waiting. With `only`, keeps just these owners and the origin.
pub(super) fn relevant_holders(
    waits: &impl WaitView,
    holders: Holders,
    origin: &Owner,
    only: Option<&HashSet<Owner>>,
) -> RelevantHolders {
    const FEW: usize = 8;
    if holders.len() <= FEW {
        return RelevantHolders { holders, scanned: 0 };
    }
    let hold_of = |owner: &Owner| holders.get(owner.as_bytes()).cloned();
    let waiting = waits.waiting_owners_len();
    let mut found: Vec<Hold> = match only {
        Some(only) => only.iter().filter_map(hold_of).collect(),
        None if waiting < holders.len() => waits.waiting_owners().filter_map(hold_of).collect(),
        None => holders.iter().filter(|hold| waits.is_waiting(&hold.owner)).cloned().collect(),
    };
    if !found.iter().any(|hold| hold.owner == *origin) {
        found.extend(hold_of(origin));
    }
    let scanned = waiting.min(holders.len());
    RelevantHolders { holders: Holders::from_holds(found).unwrap_or(Holders::Free), scanned }
}

/// The direct blockers of a wait, without those already found.
///
/// If only a path back is sought, queued owners that wait for this lock only are left out. They wait for the
/// lock's holders and for earlier waits, as this wait does, and so lead to no new owner. There are two
/// exceptions. A reader does not wait for members of other readers, but a wait between them may. And a member
/// waits for later waits that overtook it.
pub(super) fn blockers(
    waits: &impl WaitView,
    id: WaiterId,
    wait: &Waiting<'_>,
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
    // A reader is granted together with other readers. A reader with a limit waits for all owners that may
    // hold the lock before it.
    let for_all = wants.blocks_all();
    let served_at = service_position(waits, wait, now);
    if wait.is_unordered() {
        return found;
    }
    // A wait that overtakes members has different blockers than the waits behind those members.
    let overtaken_by = waits.overtaken_by(lock, id);
    let is_behind = |first: WaiterId, ahead: &Waiting<'_>| {
        wait.must_not_pass(ahead) && !overtaken_by.is_some_and(|overtaken| overtaken.contains(&first))
    };
    if let Some((origin, from)) = wanted.filter(|(origin, _)| *origin != owner && for_all && !sought.resumes)
    {
        // Prefers the wait to which a path back is sought.
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
        // A reader without a limit is granted together with a reader that has one, once that one can be
        // granted.
        let only = !for_all && ahead.wants.limit.is_some();
        let is_soft = ahead.is_member;
        found.blockers.push(Blocker { owner: ahead.owner.clone(), ahead: Some(first), only, is_soft });
        // All earlier waits and all holders block that wait too, so following it finds them. Exceptions: a
        // wait whose owner has an earlier wait, and waits of the origin.
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
    /// A lock with these holders, at which nothing was found yet.
    pub(super) fn new(holders: Holders) -> Seen {
        Seen {
            holders,
            visited_holders: VisitedHolders::None,
            all_until: Position::FRONT,
            shared_until: Position::FRONT,
            apart_until: HashMap::default(),
        }
    }

    /// Queue position up to which the blockers of such a wait were found.
    fn until(&mut self, apart: Option<&Apart>, for_all: bool) -> &mut Position {
        match (apart, for_all) {
            (Some(apart), _) => self.apart_until.entry(apart.clone()).or_insert(Position::FRONT),
            (None, true) => &mut self.all_until,
            (None, false) => &mut self.shared_until,
        }
    }

    /// The holders that exclude a request, without those already visited. If only a path back is sought,
    /// returns only the origin and holders that wait themselves.
    fn visit_holders(
        &mut self,
        waits: &impl WaitView,
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
