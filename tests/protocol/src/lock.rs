// SPDX-License-Identifier: MIT
//! The stored lock: owners, hold counts and leases. It outlives sessions, as a real lock's hash does.

use crate::calls::{Number, Ticks};

/// The lease of the rival, which never ends.
const UNLIMITED: Ticks = Ticks::MAX;

/// The name of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// Competes for the lock without a session. It acquires and releases in one step each.
    Rival,
    Named(u8),
}

/// Distinguishes the holds of one owner. A real server cannot: it stores only how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldTag {
    pub client: u8,
    pub n: Number,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder {
    pub owner: Owner,
    pub shared: bool,
    pub lease_left: Ticks,
    pub holds: Vec<HoldTag>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lock {
    pub holders: Vec<Holder>,
}

impl Lock {
    pub fn is_free(&self) -> bool {
        self.holders.is_empty()
    }

    pub fn holder(&self, owner: Owner) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.owner == owner)
    }

    pub fn holder_mut(&mut self, owner: Owner) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.owner == owner)
    }

    /// The hold count of `owner`.
    pub fn count(&self, owner: Owner) -> u8 {
        self.holder(owner).map_or(0, |holder| holder.holds.len() as u8)
    }

    /// Whether some lease is over.
    pub fn has_expired(&self) -> bool {
        self.holders.iter().any(|holder| holder.lease_left == 0)
    }

    /// Whether `owner` can be granted a hold now.
    pub fn admits(&self, owner: Owner, shared: bool) -> bool {
        let own_is_shared = self.holder(owner).is_none_or(|holder| holder.shared);
        self.holders
            .iter()
            .filter(|holder| holder.owner != owner)
            .all(|holder| holder.shared && shared && own_is_shared)
    }

    /// Whether a hold of `owner` and the present holds of others exclude each other.
    pub fn excludes(&self, owner: Owner, shared: bool) -> bool {
        self.holders.iter().any(|holder| holder.owner != owner && !(holder.shared && shared))
    }

    /// Adds a hold. All holds of the owner then have this lease, or their earlier one if it is longer and `keep_longer` is set.
    pub fn add(&mut self, owner: Owner, tag: HoldTag, shared: bool, lease: Ticks, keep_longer: bool) {
        match self.holder_mut(owner) {
            Some(holder) => {
                holder.lease_left = if keep_longer { holder.lease_left.max(lease) } else { lease };
                holder.shared &= shared;
                holder.holds.push(tag);
                holder.holds.sort_unstable();
            }
            None => {
                self.holders.push(Holder { owner, shared, lease_left: lease, holds: vec![tag] });
                self.holders.sort();
            }
        }
    }

    pub fn add_rival(&mut self) {
        self.add(Owner::Rival, HoldTag { client: u8::MAX, n: 0 }, false, UNLIMITED, true);
    }

    /// Removes one hold of `owner`. Returns false if another hold than `tag` was removed.
    pub fn remove(&mut self, owner: Owner, tag: HoldTag) -> bool {
        let Some(holder) = self.holder_mut(owner) else { return true };
        let position = holder.holds.iter().position(|hold| *hold == tag);
        holder.holds.remove(position.unwrap_or(0));
        self.holders.retain(|holder| !holder.holds.is_empty());
        position.is_some()
    }

    pub fn extend(&mut self, owner: Owner, lease: Ticks) {
        if let Some(holder) = self.holder_mut(owner) {
            holder.lease_left = holder.lease_left.max(lease);
        }
    }

    pub fn tick(&mut self) {
        for holder in self.holders.iter_mut().filter(|holder| holder.lease_left != UNLIMITED) {
            holder.lease_left = holder.lease_left.saturating_sub(1);
        }
    }
}
