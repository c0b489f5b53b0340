// SPDX-License-Identifier: MIT

//! The holds of one lock that were granted here, by which it is noticed how they end: so that their owners can be told.
//!
//! Who holds a lock is read from its key, and a key does not tell who has lost it. So each owner is noted with its grant, with the
//! end of its lease. What it gives back itself is taken off the list ([`Held::settle`]). Whoever is on it at the next look and
//! holds nothing has lost its hold ([`Held::take_lost`]).

use super::few::Few;
use super::sessions::MayHaveEnded;
use super::{ConnectionId, Holders, LockId, MonoUs, Owner, WallMs};

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

/// What is known of one hold.
#[derive(Clone, Copy, Default)]
pub(super) struct Hold {
    /// When its lease ended when that was seen last.
    pub(super) end: WallMs,
    /// When it was granted; `None` if that was not here, or before it was noted.
    pub(super) since: Option<MonoUs>,
    /// The connection of the owner's last call, as far as it is known.
    pub(super) client: Option<ConnectionId>,
}

/// So many are compared with the key at each step, in case that fields were removed without a word.
const FEW: usize = 4;

/// Those holds. Mostly there are none, as nobody is told: then it is next to nothing.
#[derive(Default)]
pub(super) struct Held(Option<Box<Known>>);

/// Some holds.
#[derive(Default)]
struct Known {
    /// There is at least one.
    holds: Few<Owner, Hold>,
    /// None of them ends before that by its lease.
    first_end: WallMs,
    /// A foreign write may have ended some, or set their leases.
    doubtful: bool,
    /// What ended all of them, if it was told.
    ended_by: Option<Happened>,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// This owner was granted the lock, or has renewed its lease. What is not known of it now is so as before.
    /// [`Held::settle`] follows.
    pub(super) fn insert(&mut self, owner: &Owner, hold: Hold) {
        let known = self.0.get_or_insert_with(|| Box::new(Known { first_end: hold.end, ..Known::default() }));
        known.first_end = known.first_end.min(hold.end);
        match known.holds.get_mut(owner) {
            Some(before) => {
                let Hold { since, client, .. } = *before;
                *before = Hold { end: hold.end, since: hold.since.or(since), client: hold.client.or(client) };
            }
            None => known.holds.insert(owner.clone(), hold),
        }
    }

    /// What is known of this owner's hold, if that is certain.
    pub(super) fn get(&self, owner: &Owner) -> Option<&Hold> {
        self.0.as_ref().filter(|known| !known.doubtful)?.holds.get(owner)
    }

    /// This owner's hold has ended. Returns whether it was known.
    pub(super) fn remove(&mut self, owner: &Owner) -> bool {
        let removed = self.0.as_mut().is_some_and(|known| known.holds.remove(owner).is_some());
        self.drop_if_empty();
        removed
    }

    fn drop_if_empty(&mut self) {
        self.0.take_if(|known| known.holds.is_empty());
    }

    /// A foreign write has changed the key, and maybe ended all holds on it.
    pub(super) fn doubt(&mut self, ended_by: Option<Happened>) {
        if let Some(known) = &mut self.0 {
            known.doubtful = true;
            known.ended_by = known.ended_by.or(ended_by);
        }
    }

    /// When the first of their leases ends, or will have ended.
    pub(super) fn first_end(&self) -> Option<WallMs> {
        self.0.as_ref().map(|known| known.first_end)
    }

    /// Takes out those who hold the lock no more, of whom nobody has given it back. To be called with what the key holds, before
    /// anything is changed.
    pub(super) fn take_lost(&mut self, holders: &Holders, now: WallMs) -> Vec<(Owner, Happened)> {
        // A crowd is walked through only if there may be a reason for that.
        let may_be_lost = |known: &&mut Box<Known>| {
            let len = known.holds.len();
            known.doubtful || now > known.first_end || len <= FEW || len > holders.len()
        };
        let Some(known) = self.0.as_mut().filter(may_be_lost) else { return Vec::new() };
        let ended_by = known.ended_by.take();
        let doubtful = std::mem::take(&mut known.doubtful);
        let mut lost = Vec::new();
        known.compare(holders, doubtful, |owner, end| {
            let happened = if end < now { Happened::Expired } else { ended_by.unwrap_or(Happened::Deleted) };
            lost.push((owner.clone(), happened));
        });
        self.drop_if_empty();
        lost
    }

    /// Takes out all, as something else has taken the place of the lock.
    pub(super) fn take_all(&mut self) -> Vec<(Owner, Happened)> {
        let known = self.0.take().unwrap_or_default();
        let happened = known.ended_by.unwrap_or(Happened::Deleted);
        known.holds.iter().map(|(owner, _)| (owner.clone(), happened)).collect()
    }

    /// Takes out all, if it was told what they were lost by.
    pub(super) fn take_ended(&mut self) -> Vec<(Owner, Happened)> {
        let was_told = self.0.as_ref().is_some_and(|known| known.ended_by.is_some());
        if was_told {
            self.take_all()
        } else {
            Vec::new()
        }
    }

    /// A step has changed the holders: those who hold the lock no more have given it back. Their leases end as they do now.
    pub(super) fn settle(&mut self, who: MayHaveEnded<'_>, holders: &Holders) {
        let Some(known) = &mut self.0 else { return };
        match who {
            MayHaveEnded::Of(owner) => match (holders.of(owner.as_bytes()), known.holds.get_mut(owner)) {
                (Some(hold), Some(before)) => {
                    before.end = hold.expires_at;
                    known.first_end = known.first_end.min(hold.expires_at);
                }
                (None, Some(_)) => known.holds.discard(owner),
                (_, None) => {}
            },
            MayHaveEnded::Any => known.compare(holders, false, |_, _| ()),
        }
        self.drop_if_empty();
    }
}

impl Known {
    /// Takes out those who hold the lock no more, with when their leases ended when that was seen last. The leases of the others
    /// end as they do now. In doubt, a hold whose lease ends at another time than was noted may be another one of its owner.
    fn compare(&mut self, holders: &Holders, doubtful: bool, mut gone: impl FnMut(&Owner, WallMs)) {
        let mut first_end = WallMs::MAX;
        self.holds.retain(|owner, before| {
            let Some(hold) = holders.of(owner.as_bytes()) else {
                gone(owner, before.end);
                return false;
            };
            if doubtful && before.end != hold.expires_at {
                (before.since, before.client) = (None, None);
            }
            before.end = hold.expires_at;
            first_end = first_end.min(hold.expires_at);
            true
        });
        self.first_end = first_end;
    }
}
