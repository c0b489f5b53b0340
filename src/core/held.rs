//! The holds of one lock that were granted here, by which it is noticed how they end: so that their owners can be told.
//!
//! Who holds a lock is read from its key, and a key does not tell who has lost it. So each owner is noted with its grant, with the
//! end of its lease. What it gives back itself is taken off the list ([`Held::settle`]). Whoever is on it at the next look and
//! holds nothing has lost its hold ([`Held::take_lost`]).

use super::few::Few;
use super::sessions::MayHaveEnded;
use super::{Holders, LockId, Owner, WallMs};

/// What happens to a hold, other than by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happened {
    /// Its lease ran out.
    Expired,
    /// It was ended by `LOCK.BREAK`.
    Broken,
    /// The server has thrown it away, as its memory is full.
    Evicted,
    /// A stranger has removed it.
    Deleted,
    /// Somebody waits for the lock, where nobody did.
    Contended,
}

impl Happened {
    /// As owners are told it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Happened::Expired => "expired",
            Happened::Broken => "broken",
            Happened::Evicted => "evicted",
            Happened::Deleted => "deleted",
            Happened::Contended => "contended",
        }
    }
}

/// Something that an owner is to be told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Notice {
    pub(crate) lock: LockId,
    pub(crate) owner: Owner,
    pub(crate) happened: Happened,
}

/// Those holds.
#[derive(Default)]
pub(super) struct Held {
    /// When each owner's lease ended when that was seen last.
    ends: Few<Owner, WallMs>,
    /// None of them ends before that by its lease.
    first_end: WallMs,
    /// A foreign write may have ended some, or set their leases.
    doubtful: bool,
    /// What ended all of them, if it was told.
    ended_by: Option<Happened>,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// This owner was granted the lock, or has renewed its lease. [`Held::settle`] follows.
    pub(super) fn insert(&mut self, owner: &Owner, end: WallMs) {
        match self.ends.get_mut(owner) {
            Some(known) => *known = end,
            None => self.ends.insert(owner.clone(), end),
        }
    }

    /// This owner's hold has ended. Returns whether it was known.
    pub(super) fn remove(&mut self, owner: &Owner) -> bool {
        self.ends.remove(owner).is_some()
    }

    /// A foreign write has changed the key, and maybe ended all holds on it.
    pub(super) fn doubt(&mut self, ended_by: Option<Happened>) {
        if !self.is_empty() {
            self.doubtful = true;
            self.ended_by = self.ended_by.or(ended_by);
        }
    }

    /// Takes out those who hold the lock no more, of whom nobody has given it back. To be called with what the key holds, before
    /// anything is changed.
    pub(super) fn take_lost(&mut self, holders: &Holders, now: WallMs) -> Vec<(Owner, Happened)> {
        if self.is_empty() || (!self.doubtful && now <= self.first_end) {
            return Vec::new();
        }
        let ended_by = self.ended_by.take();
        self.doubtful = false;
        let gone = |owner: &Owner| holders.of(owner.as_bytes()).is_none();
        let lost = self.ends.iter().filter(|(owner, _)| gone(owner)).map(|(owner, end)| {
            let by_lease = if *end < now { Happened::Expired } else { Happened::Deleted };
            (owner.clone(), ended_by.unwrap_or(by_lease))
        });
        let lost: Vec<_> = lost.collect();
        for (owner, _) in &lost {
            self.ends.remove(owner);
        }
        self.settle(MayHaveEnded::Any, holders);
        lost
    }

    /// Takes out all, as they were lost by this.
    pub(super) fn take_all(&mut self, happened: Happened) -> Vec<(Owner, Happened)> {
        let all = std::mem::take(self);
        all.ends.iter().map(|(owner, _)| (owner.clone(), happened)).collect()
    }

    /// A step has changed the holders: those who hold the lock no more have given it back. Their leases end as they do now.
    pub(super) fn settle(&mut self, who: MayHaveEnded<'_>, holders: &Holders) {
        if self.is_empty() {
            return;
        }
        let end_of = |owner: &Owner| holders.of(owner.as_bytes()).map(|hold| hold.expires_at);
        match who {
            MayHaveEnded::Of(owner) => match (end_of(owner), self.ends.get_mut(owner)) {
                (Some(end), Some(known)) => *known = end,
                (None, Some(_)) => drop(self.ends.remove(owner)),
                (_, None) => {}
            },
            MayHaveEnded::Any => self.ends.retain(|owner, known| {
                let end = end_of(owner);
                *known = end.unwrap_or(*known);
                end.is_some()
            }),
        }
        self.first_end = holders.first_end().unwrap_or(WallMs::MAX);
    }
}
