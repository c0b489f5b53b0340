// SPDX-License-Identifier: MIT

//! The holds of one lock, and the effect of an acquire, a release and a renewal on them.

use std::num::NonZeroU32;
use std::rc::Rc;

use super::hold::Hold;
use super::readers::{Crowd, Readers};
use super::{Mode, Owner, Token, WallMs};

/// All holds of a lock. The value is read from the keyspace, changed by the core, and written back as a
/// difference. Only a crowd may stay in memory between two commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holders {
    /// Nobody holds the lock.
    Free,
    /// One owner holds the lock exclusively, and possibly shared as well. It is the only owner.
    Exclusive(Hold),
    /// At least one owner holds the lock, all of them shared only.
    Shared(Readers),
}

/// The kind of hold that an acquire requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wants {
    pub(crate) mode: Mode,
    /// Not re-entrant: the owner's own hold excludes the request like any other hold.
    pub(crate) once: bool,
    /// Maximum number of shared holders, including the caller. The limit applies to this request only: other
    /// requests may exceed it.
    pub(crate) limit: Option<NonZeroU32>,
}

impl Wants {
    /// Whether every later request waits behind this one. True except for shared requests without a limit.
    pub(crate) fn blocks_all(self) -> bool {
        self.mode == Mode::Exclusive || self.limit.is_some()
    }

    /// Whether the request's limit permits no further shared holder.
    fn is_limit_reached(self, holders: usize, holds: bool) -> bool {
        (self.once || !holds)
            && self.limit.is_some_and(|limit| holders >= usize::try_from(limit.get()).unwrap_or(usize::MAX))
    }
}

/// The result of checking one request against the holders alone, without the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The request can be granted, with this resulting number of holds.
    Grant(i64),
    /// Another hold excludes the request.
    Busy,
    /// The owner's hold count is at the maximum that a hash field can store.
    Overflow,
}

/// The owner does not hold what it wants to release or renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotOwner;

/// The holds that an owner releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseScope {
    /// One hold, exclusive if the owner has an exclusive one.
    One,
    /// One hold of this mode.
    OneOf(Mode),
    /// All holds of the owner.
    All,
}

impl ReleaseScope {
    /// The mode of the hold that is released from this one.
    pub(super) fn mode_of(self, hold: &Hold) -> Mode {
        match self {
            ReleaseScope::OneOf(mode) => mode,
            _ if hold.exclusive > 0 => Mode::Exclusive,
            _ => Mode::Shared,
        }
    }
}

impl Holders {
    /// Builds the value from these holds; `None` if they conflict with each other.
    pub(crate) fn from_holds(holds: Vec<Hold>) -> Option<Holders> {
        if holds.iter().any(|hold| hold.exclusive > 0) {
            let [only] = <[Hold; 1]>::try_from(holds).ok()?;
            return Some(Holders::Exclusive(only));
        }
        if holds.is_empty() {
            return Some(Holders::Free);
        }
        Some(Holders::Shared(Readers::few(holds)))
    }

    /// Builds the value from a crowd that represents all fields of a hash. Free if every lease has expired.
    pub(crate) fn from_crowd(crowd: Rc<Crowd>) -> Holders {
        match crowd.len() {
            0 => Holders::Free,
            _ => Holders::Shared(Readers::Many(crowd)),
        }
    }

    /// The crowd to keep in memory, if the holders were read as one.
    pub(crate) fn crowd_to_keep(&mut self) -> Option<&mut Rc<Crowd>> {
        match self {
            Holders::Shared(Readers::Many(crowd)) => Some(crowd),
            _ => None,
        }
    }

    /// The crowd, if the holders were read as one.
    pub(crate) fn crowd(&self) -> Option<&Rc<Crowd>> {
        match self {
            Holders::Shared(Readers::Many(crowd)) => Some(crowd),
            _ => None,
        }
    }

    /// The crowd to mark as written, if the holders were read as one.
    pub(crate) fn crowd_mut(&mut self) -> Option<&mut Crowd> {
        match self {
            Holders::Shared(Readers::Many(crowd)) => Some(Rc::make_mut(crowd)),
            _ => None,
        }
    }

    pub(crate) fn is_free(&self) -> bool {
        matches!(self, Holders::Free)
    }

    /// Exclusive if any hold is exclusive; `None` if the lock is free.
    pub(crate) fn mode(&self) -> Option<Mode> {
        match self {
            Holders::Free => None,
            Holders::Exclusive(_) => Some(Mode::Exclusive),
            Holders::Shared(_) => Some(Mode::Shared),
        }
    }

    /// Iterates over all holds. They are ordered by owner, except in a crowd.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Hold> {
        let (one, many) = match self {
            Holders::Free => (None, None),
            Holders::Exclusive(hold) => (Some(hold), None),
            Holders::Shared(holds) => (None, Some(holds.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The holds that differ from `before`, or whose lease was set again.
    pub(crate) fn changed_since(&self, before: &Holders) -> Vec<&Hold> {
        let same = |hold: &Hold| before.get(hold.owner.as_bytes()) == Some(hold);
        self.iter().filter(|hold| hold.renewed || !same(hold)).collect()
    }

    /// The hold of an exclusive owner without shared holds, and its token.
    pub(crate) fn sole_holder(&self) -> Option<(&Hold, Option<Token>)> {
        match self {
            Holders::Exclusive(hold) => Some((hold, hold.token)).filter(|(hold, _)| hold.shared == 0),
            Holders::Free | Holders::Shared(_) => None,
        }
    }

    /// Whether the key remains after the deletion of one holder's field. Applies to a sole exclusive owner
    /// and to readers.
    pub(crate) fn outlives_its_field(&self) -> bool {
        match self {
            Holders::Free => false,
            Holders::Exclusive(hold) => hold.token.is_some() || hold.shared > 0,
            Holders::Shared(holds) => holds.len() > 1,
        }
    }

    /// Number of owners that hold the lock.
    pub(crate) fn len(&self) -> usize {
        match self {
            Holders::Free => 0,
            Holders::Exclusive(_) => 1,
            Holders::Shared(holds) => holds.len(),
        }
    }

    /// Number of holds that the current step had to read.
    pub(crate) fn read_len(&self) -> usize {
        match self {
            Holders::Free => 0,
            Holders::Exclusive(_) => 1,
            Holders::Shared(holds) => holds.read_len(),
        }
    }

    /// The hold of this owner.
    #[inline(always)]
    pub(crate) fn get(&self, owner: &[u8]) -> Option<&Hold> {
        match self {
            Holders::Free => None,
            Holders::Exclusive(hold) => Some(hold).filter(|hold| hold.owner.as_bytes() == owner),
            Holders::Shared(holds) => holds.get(owner),
        }
    }

    /// Applies `what` to the hold of this owner. Fails if the owner has none.
    fn change<T>(&mut self, owner: &[u8], what: impl FnOnce(&mut Hold) -> T) -> Result<T, NotOwner> {
        match self {
            Holders::Free => None,
            Holders::Exclusive(hold) => Some(hold).filter(|hold| hold.owner.as_bytes() == owner).map(what),
            Holders::Shared(holds) => holds.change(owner, what),
        }
        .ok_or(NotOwner)
    }

    /// End of the last lease; `None` if the lock is free.
    #[inline(always)]
    pub(crate) fn expires_at(&self) -> Option<WallMs> {
        match self {
            Holders::Free => None,
            Holders::Exclusive(hold) => Some(hold.expires_at),
            Holders::Shared(holds) => holds.last_end(),
        }
    }

    /// Whether the current step set the lease that ends last.
    pub(crate) fn renewed_last(&self) -> bool {
        match self {
            Holders::Free => false,
            Holders::Exclusive(hold) => hold.renewed,
            Holders::Shared(holds) => {
                let end = holds.last_end();
                holds.iter().any(|hold| hold.renewed && Some(hold.expires_at) == end)
            }
        }
    }

    /// End of the lease that expires first; `None` if the lock is free.
    #[inline(always)]
    pub(crate) fn first_end(&self) -> Option<WallMs> {
        match self {
            Holders::Free => None,
            Holders::Exclusive(hold) => Some(hold.expires_at),
            Holders::Shared(holds) => holds.first_end(),
        }
    }

    /// The newest fencing token of the holders.
    pub(crate) fn token(&self) -> Option<Token> {
        match self {
            Holders::Free => None,
            Holders::Exclusive(hold) => hold.token,
            Holders::Shared(holds) => holds.token(),
        }
    }

    /// Decides whether a request is compatible with the current holds. This is the only function that decides
    /// it.
    pub(crate) fn admits(&self, owner: &[u8], wants: Wants) -> Admission {
        let hold = match self {
            Holders::Free => return Admission::Grant(1),
            Holders::Exclusive(hold) if excludes(hold, owner, wants) => return Admission::Busy,
            Holders::Exclusive(hold) => Some(hold),
            // Two holds are enough to check: all are shared, and at most one of the two is the caller's.
            Holders::Shared(holds) if holds.two().any(|hold| excludes(hold, owner, wants)) => {
                return Admission::Busy;
            }
            Holders::Shared(holds) => {
                let hold = holds.get(owner);
                if wants.is_limit_reached(holds.len(), hold.is_some()) {
                    return Admission::Busy;
                }
                hold
            }
        };
        hold.map_or(0, Hold::total).checked_add(1).map_or(Admission::Overflow, Admission::Grant)
    }

    /// Adds a hold that [`Holders::admits`] has admitted, with a lease that ends at `expires_at`. A given
    /// token becomes the owner's token.
    #[inline(always)]
    pub(super) fn add(&mut self, owner: &Owner, mode: Mode, expires_at: WallMs, token: Option<Token>) {
        if self.get(owner.as_bytes()).is_none() {
            let (exclusive, shared) = match mode {
                Mode::Exclusive => (1, 0),
                Mode::Shared => (0, 1),
            };
            let hold = Hold { owner: owner.clone(), exclusive, shared, expires_at, token, renewed: true };
            return match self {
                Holders::Shared(holds) => holds.insert(hold),
                Holders::Free | Holders::Exclusive(_) if mode == Mode::Exclusive => {
                    *self = Holders::Exclusive(hold)
                }
                Holders::Free | Holders::Exclusive(_) => *self = Holders::Shared(Readers::few([hold])),
            };
        }
        let _ = self.change(owner.as_bytes(), |hold| {
            // The token of a shared hold is outdated for an exclusive one: other readers may have taken newer
            // tokens.
            if token.is_some() || (mode == Mode::Exclusive && hold.exclusive == 0) {
                hold.token = token;
            }
            *hold.count_mut(mode) += 1;
            hold.renew(expires_at);
        });
        self.normalize();
    }

    /// Releases holds of `owner`. If `expires_at` is given, the lease of its remaining holds ends then.
    /// Returns the number of remaining holds.
    #[inline(always)]
    pub(crate) fn release(
        &mut self,
        owner: &[u8],
        scope: ReleaseScope,
        expires_at: Option<WallMs>,
    ) -> Result<i64, NotOwner> {
        let hold = self.get(owner).ok_or(NotOwner)?;
        let mode = scope.mode_of(hold);
        if hold.count(mode) == 0 {
            return Err(NotOwner);
        }
        if scope == ReleaseScope::All || hold.total() <= 1 {
            self.remove(owner);
            return Ok(0);
        }
        let left = self.change(owner, |hold| {
            *hold.count_mut(mode) -= 1;
            if let Some(at) = expires_at {
                hold.renew(at);
            }
            hold.total()
        })?;
        self.normalize();
        Ok(left)
    }

    /// Sets the end of the lease of `owner`, earlier or later. Returns its hold count.
    pub(crate) fn renew(&mut self, owner: &[u8], expires_at: WallMs) -> Result<i64, NotOwner> {
        self.change(owner, |hold| {
            hold.renew(expires_at);
            hold.total()
        })
    }

    /// Sets the fencing token of `owner`.
    pub(super) fn set_token(&mut self, owner: &[u8], token: Option<Token>) {
        let _ = self.change(owner, |hold| hold.token = token);
    }

    /// Ends every hold. Returns the number of owners that lost one.
    pub(crate) fn clear(&mut self) -> usize {
        let lost = self.len();
        *self = Holders::Free;
        lost
    }

    /// Ends shared holds whose lease has expired. The lease of an exclusive hold is the key's TTL, which the
    /// server enforces.
    pub(crate) fn end_leases(&mut self, now: WallMs) {
        if let Holders::Shared(holds) = self {
            holds.end_leases(now);
            if holds.len() == 0 {
                *self = Holders::Free;
            }
        }
    }

    fn remove(&mut self, owner: &[u8]) {
        match self {
            Holders::Shared(holds) if holds.len() > 1 => holds.remove(owner),
            _ => *self = Holders::Free,
        }
    }

    /// Switches between exclusive and shared form after the counts of a sole owner changed.
    fn normalize(&mut self) {
        if let Holders::Exclusive(hold) = self {
            if hold.exclusive > 0 {
                return;
            }
        } else if let Holders::Shared(holds) = self {
            if holds.len() > 1 || holds.iter().all(|hold| hold.exclusive == 0) {
                return;
            }
        }
        *self = match std::mem::replace(self, Holders::Free) {
            Holders::Free => Holders::Free,
            Holders::Exclusive(hold) => Holders::Shared(Readers::few([hold])),
            Holders::Shared(holds) => holds.iter().next().cloned().map_or(Holders::Free, Holders::Exclusive),
        };
    }
}

/// Whether this hold alone excludes the request of `owner`.
pub(super) fn excludes(hold: &Hold, owner: &[u8], wants: Wants) -> bool {
    let collides = wants.mode == Mode::Exclusive || hold.exclusive > 0;
    collides && (wants.once || hold.owner.as_bytes() != owner)
}
