// SPDX-License-Identifier: MIT

//! The holds of one lock that were granted here, used to notice their end and to notify their owners.
//!
//! The key shows the current holders, but not the owners that lost the lock. So each grant records its owner
//! with the end of the lease. A release removes the record ([`Held::record_releases`]). If a recorded owner
//! holds nothing at the next step, it has lost its hold ([`Held::take_lost`]).

use super::owner::AffectedOwners;
use super::small_map::SmallMap;
use super::{ConnectionId, Holders, LockId, MonoUs, Owner, WallMs};

/// An event that ended or affects a hold, and that its owner did not cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HoldEvent {
    /// The lease expired.
    Expired,
    /// `LOCK.BREAK` ended the hold.
    Broken,
    /// The server evicted the key because its memory is full.
    Evicted,
    /// A foreign write deleted the hold.
    Deleted,
    /// The lock has its first waiter.
    Contended,
}

impl HoldEvent {
    /// The event's name, as owners see it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            HoldEvent::Expired => "expired",
            HoldEvent::Broken => "broken",
            HoldEvent::Evicted => "evicted",
            HoldEvent::Deleted => "deleted",
            HoldEvent::Contended => "contended",
        }
    }
}

/// An event to report to an owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Notice {
    pub(crate) lock: LockId,
    pub(crate) owner: Owner,
    pub(crate) event: HoldEvent,
}

/// The record of one hold.
#[derive(Clone, Copy, Default)]
pub(super) struct HoldRecord {
    /// End of the lease when it was last read.
    pub(super) end: WallMs,
    /// Time of the grant; `None` if the grant happened elsewhere or before it was recorded.
    pub(super) since: Option<MonoUs>,
    /// The connection of the owner's last call, if it is known.
    pub(super) client: Option<ConnectionId>,
}

/// With at most this number of holds, each step compares all of them with the key. A foreign write may have
/// removed fields without an event.
const FEW: usize = 4;

/// The recorded holds. Empty, at almost no cost, while owners are not notified.
#[derive(Default)]
pub(super) struct Held(Option<Box<NonEmpty>>);

/// A non-empty set of recorded holds.
#[derive(Default)]
struct NonEmpty {
    /// At least one hold.
    holds: SmallMap<Owner, HoldRecord>,
    /// No lease ends before this time.
    first_end: WallMs,
    /// Whether a foreign write may have ended some holds, or set their leases.
    unverified: bool,
    /// The event that ended all recorded holds, if the server reported one.
    ended_by: Option<HoldEvent>,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Records that this owner was granted the lock or has renewed its lease. Fields that are `None` keep
    /// their previous value. The caller must then call [`Held::record_releases`].
    pub(super) fn insert(&mut self, owner: &Owner, hold: HoldRecord) {
        let records =
            self.0.get_or_insert_with(|| Box::new(NonEmpty { first_end: hold.end, ..NonEmpty::default() }));
        records.first_end = records.first_end.min(hold.end);
        match records.holds.get_mut(owner) {
            Some(before) => {
                let HoldRecord { since, client, .. } = *before;
                *before =
                    HoldRecord { end: hold.end, since: hold.since.or(since), client: hold.client.or(client) };
            }
            None => records.holds.insert(owner.clone(), hold),
        }
    }

    /// The record of this owner's hold, unless a foreign write may have ended the hold.
    pub(super) fn get(&self, owner: &Owner) -> Option<&HoldRecord> {
        self.0.as_ref().filter(|records| !records.unverified)?.holds.get(owner)
    }

    /// Removes this owner's hold, which has ended. Returns whether it was recorded.
    pub(super) fn remove(&mut self, owner: &Owner) -> bool {
        let removed = self.0.as_mut().is_some_and(|records| records.holds.remove(owner).is_some());
        self.drop_if_empty();
        removed
    }

    fn drop_if_empty(&mut self) {
        self.0.take_if(|records| records.holds.is_empty());
    }

    /// Records that a foreign write changed the key, and may have ended all holds.
    pub(super) fn mark_unverified(&mut self, ended_by: Option<HoldEvent>) {
        if let Some(records) = &mut self.0 {
            records.unverified = true;
            records.ended_by = records.ended_by.or(ended_by);
        }
    }

    /// The earliest end of the recorded leases, or an earlier time.
    pub(super) fn first_end(&self) -> Option<WallMs> {
        self.0.as_ref().map(|records| records.first_end)
    }

    /// Removes and returns the owners that lost the lock without a release. The caller must pass the holders
    /// as read from the key, before any change.
    pub(super) fn take_lost(&mut self, holders: &Holders, now: WallMs) -> Vec<(Owner, HoldEvent)> {
        // Comparing a large set is slow, so it happens only if a hold may be missing.
        let may_be_lost = |records: &&mut Box<NonEmpty>| {
            let len = records.holds.len();
            records.unverified || now > records.first_end || len <= FEW || len > holders.len()
        };
        let Some(records) = self.0.as_mut().filter(may_be_lost) else { return Vec::new() };
        let ended_by = records.ended_by.take();
        let unverified = std::mem::take(&mut records.unverified);
        let mut lost = Vec::new();
        records.compare(holders, unverified, |owner, end| {
            let event = if end < now { HoldEvent::Expired } else { ended_by.unwrap_or(HoldEvent::Deleted) };
            lost.push((owner.clone(), event));
        });
        self.drop_if_empty();
        lost
    }

    /// Removes and returns all owners. Called when a different value has replaced the lock.
    pub(super) fn take_all(&mut self) -> Vec<(Owner, HoldEvent)> {
        let records = self.0.take().unwrap_or_default();
        let event = records.ended_by.unwrap_or(HoldEvent::Deleted);
        records.holds.iter().map(|(owner, _)| (owner.clone(), event)).collect()
    }

    /// Removes and returns all owners if the server reported the event that ended their holds.
    pub(super) fn take_ended(&mut self) -> Vec<(Owner, HoldEvent)> {
        let is_known = self.0.as_ref().is_some_and(|records| records.ended_by.is_some());
        if is_known {
            self.take_all()
        } else {
            Vec::new()
        }
    }

    /// Records that a step changed the holders. Owners without a hold have released it; the leases of the
    /// others are recorded.
    pub(super) fn record_releases(&mut self, affected: AffectedOwners<'_>, holders: &Holders) {
        let Some(records) = &mut self.0 else { return };
        match affected {
            AffectedOwners::Only(owner) => {
                match (holders.get(owner.as_bytes()), records.holds.get_mut(owner)) {
                    (Some(hold), Some(before)) => {
                        before.end = hold.expires_at;
                        records.first_end = records.first_end.min(hold.expires_at);
                    }
                    (None, Some(_)) => records.holds.discard(owner),
                    (_, None) => {}
                }
            }
            AffectedOwners::Any => records.compare(holders, false, |_, _| ()),
        }
        self.drop_if_empty();
    }
}

impl NonEmpty {
    /// Removes the records of owners without a hold, and passes each to `gone` with the recorded end of its
    /// lease. Records the leases of the others. If `unverified`, a hold whose lease differs from its record
    /// is treated as a later hold of the same owner.
    fn compare(&mut self, holders: &Holders, unverified: bool, mut gone: impl FnMut(&Owner, WallMs)) {
        let mut first_end = WallMs::MAX;
        self.holds.retain(|owner, before| {
            let Some(hold) = holders.get(owner.as_bytes()) else {
                gone(owner, before.end);
                return false;
            };
            if unverified && before.end != hold.expires_at {
                (before.since, before.client) = (None, None);
            }
            before.end = hold.expires_at;
            first_end = first_end.min(hold.expires_at);
            true
        });
        self.first_end = first_end;
    }
}
