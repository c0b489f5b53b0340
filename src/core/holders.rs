//! What one lock's holds are, and what an acquire, a release and a renewal do to them.

use super::{Owner, WallMs};

/// One owner's hold on a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// Whose hold it is.
    pub(crate) owner: Owner,
    /// How often the owner acquired without releasing; at least 1.
    pub(crate) holds: i64,
    /// When the lease runs out.
    pub(crate) expires_at: WallMs,
    /// The lease was set by the call at hand. That is a change to be written even if it ends in the same
    /// millisecond as before, so that what is seen of a renewal does not depend on the clock.
    pub(crate) renewed: bool,
}

impl Hold {
    fn renew(&mut self, expires_at: WallMs) {
        self.expires_at = expires_at;
        self.renewed = true;
    }
}

/// Everything that is stored about a lock: a value that is read from the keyspace, changed by the core and
/// written back as the difference. Never kept in memory between two commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holders {
    /// Nobody holds it.
    Free,
    /// One owner holds it and excludes all others.
    Exclusive(Hold),
}

/// The answer to one request, as long as nothing else is considered but the holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It may have the lock, and this is its hold count then.
    Grant(i64),
    /// Somebody else's hold excludes it.
    Busy,
    /// The owner's hold count is at the largest number that a hash field can count to.
    Overflow,
}

/// The owner holds nothing on this lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotOwner;

impl Holders {
    pub(crate) fn is_free(&self) -> bool {
        matches!(self, Holders::Free)
    }

    /// All holds, in the order in which they are shown.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Hold> {
        match self {
            Holders::Free => None,
            Holders::Exclusive(hold) => Some(hold),
        }
        .into_iter()
    }

    /// This owner's hold.
    pub(crate) fn of(&self, owner: &[u8]) -> Option<&Hold> {
        self.iter().find(|hold| hold.owner.as_bytes() == owner)
    }

    fn of_mut(&mut self, owner: &[u8]) -> Result<&mut Hold, NotOwner> {
        match self {
            Holders::Exclusive(hold) if hold.owner.as_bytes() == owner => Ok(hold),
            _ => Err(NotOwner),
        }
    }

    /// When the last lease of the lock runs out; `None` if it is free.
    pub(crate) fn expires_at(&self) -> Option<WallMs> {
        self.iter().map(|hold| hold.expires_at).max()
    }

    /// Who excludes whom: the one function that decides whether a request goes together with the holds
    /// that there are.
    pub(crate) fn admits(&self, owner: &[u8]) -> Admission {
        match self {
            Holders::Free => Admission::Grant(1),
            Holders::Exclusive(hold) if hold.owner.as_bytes() == owner => {
                hold.holds.checked_add(1).map_or(Admission::Overflow, Admission::Grant)
            }
            Holders::Exclusive(_) => Admission::Busy,
        }
    }

    /// Grants one more hold to `owner` with a lease that ends at `expires_at`, if [`Holders::admits`] it.
    pub(crate) fn acquire(&mut self, owner: &Owner, expires_at: WallMs) -> Admission {
        let admission = self.admits(owner.as_bytes());
        if let Admission::Grant(holds) = admission {
            *self = Holders::Exclusive(Hold { owner: owner.clone(), holds, expires_at, renewed: true });
        }
        admission
    }

    /// Gives back one hold of `owner`, or all of them; the lease of what is left is set anew if
    /// `expires_at` is given. Returns the holds that are left.
    pub(crate) fn release(
        &mut self,
        owner: &[u8],
        all: bool,
        expires_at: Option<WallMs>,
    ) -> Result<i64, NotOwner> {
        let hold = self.of_mut(owner)?;
        if all || hold.holds <= 1 {
            *self = Holders::Free;
            return Ok(0);
        }
        hold.holds -= 1;
        if let Some(at) = expires_at {
            hold.renew(at);
        }
        Ok(hold.holds)
    }

    /// Sets the lease of `owner` anew, shorter or longer. Returns its hold count.
    pub(crate) fn renew(&mut self, owner: &[u8], expires_at: WallMs) -> Result<i64, NotOwner> {
        let hold = self.of_mut(owner)?;
        hold.renew(expires_at);
        Ok(hold.holds)
    }

    /// Ends every hold. Returns how many owners lost theirs.
    pub(crate) fn clear(&mut self) -> usize {
        let lost = self.iter().count();
        *self = Holders::Free;
        lost
    }
}
