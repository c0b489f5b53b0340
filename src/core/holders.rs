// SPDX-License-Identifier: MIT

//! What one lock's holds are, and what an acquire, a release and a renewal do to them.

use std::num::NonZeroU32;
use std::rc::Rc;

use super::hold::Hold;
use super::readers::{Crowd, Readers};
use super::{Mode, Owner, Token, WallMs};

/// Everything that is stored about who holds a lock: a value that is read from the keyspace, changed by the
/// core and written back as the difference. Only a crowd of readers may be kept in memory between two commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holders {
    /// Nobody holds it.
    Free,
    /// One owner holds it exclusively, and maybe shared besides. There is no other.
    Exclusive(Hold),
    /// These owners hold it, all of them shared only. There is at least one.
    Shared(Readers),
}

/// What an acquire wants of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wants {
    pub(crate) mode: Mode,
    /// Not re-entrant: what its owner holds already is in its way as if somebody else held it.
    pub(crate) once: bool,
    /// How many owners may hold the lock shared, the one who asks among them. It is this request's own: others may be granted
    /// more.
    pub(crate) limit: Option<NonZeroU32>,
}

impl Wants {
    /// True if whoever comes later waits behind this wait, whatever it wants: all but readers of any number.
    pub(crate) fn bars_readers(self) -> bool {
        self.mode == Mode::Exclusive || self.limit.is_some()
    }

    /// True if so many owners hold the lock shared that this one is one too many.
    fn is_above_limit(self, holders: usize, holds: bool) -> bool {
        (self.once || !holds)
            && self.limit.is_some_and(|limit| holders >= usize::try_from(limit.get()).unwrap_or(usize::MAX))
    }
}

/// The answer to one request, as long as nothing else is considered but the holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It may have the lock, and this is how often it holds it then.
    Grant(i64),
    /// Somebody else's hold excludes it.
    Busy,
    /// The owner's hold count is at the largest number that a hash field can count to.
    Overflow,
}

/// The owner does not hold what it wants to give back or renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotOwner;

/// What an owner gives back of what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseScope {
    /// One hold: an exclusive one if there is one.
    One,
    /// One hold of this mode.
    OneOf(Mode),
    /// Everything.
    All,
}

impl ReleaseScope {
    /// Of which mode a hold is given back by who holds this.
    #[inline(always)]
    pub(super) fn mode_of(self, hold: &Hold) -> Mode {
        match self {
            ReleaseScope::OneOf(mode) => mode,
            _ if hold.exclusive > 0 => Mode::Exclusive,
            _ => Mode::Shared,
        }
    }
}

impl Holders {
    /// These holds; `None` if they cannot stand side by side.
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

    /// The holds that stand for all fields of a hash, as a crowd; free if every lease is over.
    pub(crate) fn from_crowd(crowd: Rc<Crowd>) -> Holders {
        match crowd.len() {
            0 => Holders::Free,
            _ => Holders::Shared(Readers::Many(crowd)),
        }
    }

    /// The crowd that holds it, if it was read as one, to be kept.
    pub(crate) fn kept_crowd(&mut self) -> Option<&mut Rc<Crowd>> {
        match self {
            Holders::Shared(Readers::Many(crowd)) => Some(crowd),
            _ => None,
        }
    }

    /// The crowd that holds it, if it was read as one.
    pub(crate) fn crowd(&self) -> Option<&Rc<Crowd>> {
        match self {
            Holders::Shared(Readers::Many(crowd)) => Some(crowd),
            _ => None,
        }
    }

    /// The crowd that holds it, if it was read as one, to note what is written of it.
    pub(crate) fn crowd_mut(&mut self) -> Option<&mut Crowd> {
        match self {
            Holders::Shared(Readers::Many(crowd)) => Some(Rc::make_mut(crowd)),
            _ => None,
        }
    }

    pub(crate) fn is_free(&self) -> bool {
        matches!(self, Holders::Free)
    }

    /// Exclusive if anybody holds it so; `None` if nobody holds it.
    pub(crate) fn mode(&self) -> Option<Mode> {
        match self {
            Holders::Free => None,
            Holders::Exclusive(_) => Some(Mode::Exclusive),
            Holders::Shared(_) => Some(Mode::Shared),
        }
    }

    /// What every owner holds; a few of them in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Hold> {
        let (one, many) = match self {
            Holders::Free => (None, None),
            Holders::Exclusive(hold) => (Some(hold), None),
            Holders::Shared(holds) => (None, Some(holds.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// What is not as it was before, or was set anew.
    pub(crate) fn changed_since(&self, before: &Holders) -> Vec<&Hold> {
        let same = |hold: &Hold| before.of(hold.owner.as_bytes()) == Some(hold);
        self.iter().filter(|hold| hold.renewed || !same(hold)).collect()
    }

    /// The exclusive hold of an owner that has no shared ones, and its token.
    pub(crate) fn alone(&self) -> Option<(&Hold, Option<Token>)> {
        match self {
            Holders::Exclusive(hold) => Some((hold, hold.token)).filter(|(hold, _)| hold.shared == 0),
            Holders::Free | Holders::Shared(_) => None,
        }
    }

    /// True if its key stays when the field of its only owner's exclusive holds is deleted, or that of one of its readers.
    pub(crate) fn outlives_its_field(&self) -> bool {
        match self {
            Holders::Free => false,
            Holders::Exclusive(hold) => hold.token.is_some() || hold.shared > 0,
            Holders::Shared(holds) => holds.len() > 1,
        }
    }

    /// How many owners hold it.
    pub(crate) fn len(&self) -> usize {
        match self {
            Holders::Free => 0,
            Holders::Exclusive(_) => 1,
            Holders::Shared(holds) => holds.len(),
        }
    }

    /// How many of them the step at hand had to read.
    pub(crate) fn read_len(&self) -> usize {
        match self {
            Holders::Free => 0,
            Holders::Exclusive(_) => 1,
            Holders::Shared(holds) => holds.read_len(),
        }
    }

    /// What this owner holds.
    #[inline(always)]
    pub(crate) fn of(&self, owner: &[u8]) -> Option<&Hold> {
        match self {
            Holders::Free => None,
            Holders::Exclusive(hold) => Some(hold).filter(|hold| hold.owner.as_bytes() == owner),
            Holders::Shared(holds) => holds.get(owner),
        }
    }

    /// Does something to what this owner holds.
    fn change<T>(&mut self, owner: &[u8], what: impl FnOnce(&mut Hold) -> T) -> Result<T, NotOwner> {
        match self {
            Holders::Free => None,
            Holders::Exclusive(hold) => Some(hold).filter(|hold| hold.owner.as_bytes() == owner).map(what),
            Holders::Shared(holds) => holds.change(owner, what),
        }
        .ok_or(NotOwner)
    }

    /// When the last lease of the lock runs out; `None` if it is free.
    #[inline(always)]
    pub(crate) fn expires_at(&self) -> Option<WallMs> {
        match self {
            Holders::Free => None,
            Holders::Exclusive(hold) => Some(hold.expires_at),
            Holders::Shared(holds) => holds.last_end(),
        }
    }

    /// True if the step at hand has set the lease that runs out last.
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

    /// When the first lease of the lock runs out.
    #[inline(always)]
    pub(crate) fn first_end(&self) -> Option<WallMs> {
        match self {
            Holders::Free => None,
            Holders::Exclusive(hold) => Some(hold.expires_at),
            Holders::Shared(holds) => holds.first_end(),
        }
    }

    /// The newest fencing token of those who hold the lock.
    pub(crate) fn token(&self) -> Option<Token> {
        match self {
            Holders::Free => None,
            Holders::Exclusive(hold) => hold.token,
            Holders::Shared(holds) => holds.token(),
        }
    }

    /// Who excludes whom: the one function that decides whether a request goes together with the holds
    /// that there are.
    pub(crate) fn admits(&self, owner: &[u8], wants: Wants) -> Admission {
        let hold = match self {
            Holders::Free => return Admission::Grant(1),
            Holders::Exclusive(hold) if excludes(hold, owner, wants) => return Admission::Busy,
            Holders::Exclusive(hold) => Some(hold),
            // Two say as much as all: they are all of the same kind.
            Holders::Shared(holds) if holds.two().any(|hold| excludes(hold, owner, wants)) => {
                return Admission::Busy;
            }
            Holders::Shared(holds) => {
                let hold = holds.get(owner);
                if wants.is_above_limit(holds.len(), hold.is_some()) {
                    return Admission::Busy;
                }
                hold
            }
        };
        hold.map_or(0, Hold::total).checked_add(1).map_or(Admission::Overflow, Admission::Grant)
    }

    /// Grants one more hold, which [`Holders::admits`] admits, to `owner` with a lease that ends at `expires_at`. A token that
    /// is given is the owner's from now on.
    #[inline(always)]
    pub(super) fn add(&mut self, owner: &Owner, mode: Mode, expires_at: WallMs, token: Option<Token>) {
        if self.of(owner.as_bytes()).is_none() {
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
            // The shared hold's token says nothing about the exclusive one: others got newer ones meanwhile.
            if token.is_some() || (mode == Mode::Exclusive && hold.exclusive == 0) {
                hold.token = token;
            }
            *hold.count_mut(mode) += 1;
            hold.renew(expires_at);
        });
        self.sort();
    }

    /// Gives back a part of what `owner` holds; the lease of what is left is set anew if `expires_at` is
    /// given. Returns the holds that are left.
    #[inline(always)]
    pub(crate) fn release(
        &mut self,
        owner: &[u8],
        scope: ReleaseScope,
        expires_at: Option<WallMs>,
    ) -> Result<i64, NotOwner> {
        let hold = self.of(owner).ok_or(NotOwner)?;
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
        self.sort();
        Ok(left)
    }

    /// Sets the lease of `owner` anew, shorter or longer. Returns its hold count.
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

    /// Ends every hold. Returns how many owners lost theirs.
    pub(crate) fn clear(&mut self) -> usize {
        let lost = self.len();
        *self = Holders::Free;
        lost
    }

    /// Ends the shared holds whose lease is over. (The lease of an exclusive one is the key's, which the
    /// server ends.)
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

    /// Moves between the two forms, after the counts of a sole owner have changed.
    fn sort(&mut self) {
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

/// True if this hold alone keeps `owner` from what it wants.
pub(super) fn excludes(hold: &Hold, owner: &[u8], wants: Wants) -> bool {
    let collides = wants.mode == Mode::Exclusive || hold.exclusive > 0;
    collides && (wants.once || hold.owner.as_bytes() != owner)
}
