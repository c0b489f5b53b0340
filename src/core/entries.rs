//! What is remembered about locks, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use foldhash::HashMap;

use super::bindings::Binding;
use super::pending::Pending;
use super::turns::Turn;
use super::{Holders, LockId, LockRef, Mode, Owner, Part, RequestId, WaiterId, WallMs};

/// A place in the queue of a lock. Who is less is nearer to the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// False for an owner who holds the lock and wants more of it: that goes before everybody else's turn.
    pub(super) outsider: bool,
    /// In the order of arrival.
    pub(super) ticket: u64,
}

impl Place {
    /// Nobody is before it.
    pub(super) const FIRST: Place = Place { outsider: false, ticket: 0 };
    /// Before all outsiders, after everybody else.
    pub(super) const OUTSIDE: Place = Place { outsider: true, ticket: 0 };
}

/// A grant that did not reach its client.
pub(super) struct Undelivered {
    pub(super) waiter: WaiterId,
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    pub(super) id: Option<RequestId>,
}

impl Undelivered {
    /// Takes the hold back that is one too many. An owner who has lost the lock meanwhile has none.
    pub(super) fn uncount(&self, holders: &mut Holders) {
        let owner = self.owner.as_bytes();
        if holders.release(owner, Part::OneOf(self.mode), None).is_err() {
            // The owner gave that one back, not knowing of it, instead of one of the other mode that it was told of.
            let _ = holders.release(owner, Part::One, None);
        }
    }
}

/// What is remembered about one lock.
#[derive(Default)]
pub(super) struct Entry {
    /// First in line first.
    pub(super) waiting: BTreeMap<Place, WaiterId>,
    /// The places of those in `waiting` that want it exclusively.
    pub(super) exclusive: BTreeSet<Place>,
    /// The places of those in `waiting` whose owner waits for other locks too: only through them does the wait
    /// graph lead from this queue to another lock.
    pub(super) crossing: BTreeSet<Place>,
    /// Grants on this lock of which it is not known yet whether they reached their client. An owner whose
    /// holds ended otherwise has none: taking back an ended grant could free a newer one.
    pub(super) in_flight: Vec<WaiterId>,
    /// Holds that are one too many, because a grant did not reach its client.
    pub(super) take_back: Vec<Undelivered>,
    /// What the holds are without the grants that may still be taken back, of owners who hold more than such a grant.
    pub(super) pending: BTreeMap<Owner, Pending>,
    /// Owners whose holds depend on a connection. One who holds nothing any more has none.
    pub(super) bindings: BTreeMap<Owner, Binding>,
    /// The entry of this lock in `Service::leases`; there is one if, and only if, the lock is held and somebody waits
    /// for it, here or, as far as is known, elsewhere.
    pub(super) lease_end: Option<WallMs>,
    /// The turns of those who wait for it elsewhere.
    pub(super) turn: Turn,
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.in_flight.is_empty()
            && self.take_back.is_empty()
            && self.pending.is_empty()
            && self.bindings.is_empty()
            && self.turn.is_idle()
            && self.lease_end.is_none()
    }

    /// Owners whose holds have ended with a connection, which is not written yet.
    pub(super) fn closed(&self) -> impl Iterator<Item = &Owner> {
        self.bindings.iter().filter(|(_, binding)| binding.is_closed()).map(|(owner, _)| owner)
    }

    /// How many holds end with a connection.
    pub(super) fn ephemeral(&self) -> usize {
        self.bindings.values().filter(|binding| binding.is_ephemeral()).count()
    }

    /// Those who wait although they hold it: first in line first.
    pub(super) fn insiders(&self) -> impl Iterator<Item = (Place, WaiterId)> + '_ {
        self.waiting.range(..Place::OUTSIDE).map(|(place, id)| (*place, *id))
    }
}

/// All entries: by database, of which there are few, then by key, so that a look-up needs no owned key.
#[derive(Default)]
pub(super) struct Entries(BTreeMap<i32, HashMap<Rc<[u8]>, Entry>>);

impl Entries {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.0.values().flat_map(HashMap::values)
    }

    /// With the keys of all databases.
    pub(super) fn iter_keys(&self) -> impl Iterator<Item = (&[u8], &Entry)> {
        self.0.values().flatten().map(|(key, entry)| (&**key, entry))
    }

    pub(super) fn in_db(&self, db: i32) -> impl Iterator<Item = (&[u8], &Entry)> {
        self.0.get(&db).into_iter().flatten().map(|(key, entry)| (&**key, entry))
    }

    pub(super) fn get(&self, lock: LockRef<'_>) -> Option<&Entry> {
        self.0.get(&lock.db)?.get(lock.key)
    }

    pub(super) fn get_mut(&mut self, lock: LockRef<'_>) -> Option<&mut Entry> {
        self.0.get_mut(&lock.db)?.get_mut(lock.key)
    }

    /// The entry of a lock with the name that all who refer to it share.
    pub(super) fn get_with_id(&mut self, lock: LockRef<'_>) -> Option<(LockId, &mut Entry)> {
        let in_db = self.0.get_mut(&lock.db)?;
        let key = in_db.get_key_value(lock.key)?.0.clone();
        let entry = in_db.get_mut(&key)?;
        Some((LockId { db: lock.db, key }, entry))
    }

    /// The same for a lock that may have no entry yet.
    pub(super) fn get_or_make(&mut self, lock: LockRef<'_>) -> (LockId, &mut Entry) {
        let in_db = self.0.entry(lock.db).or_default();
        let key = in_db.get_key_value(lock.key).map_or_else(|| Rc::from(lock.key), |(key, _)| key.clone());
        let entry = in_db.entry(key.clone()).or_default();
        (LockId { db: lock.db, key }, entry)
    }

    /// Forgets an entry that has nothing left to remember.
    pub(super) fn drop_if_idle(&mut self, lock: LockRef<'_>) {
        let Some(in_db) = self.0.get_mut(&lock.db) else { return };
        if in_db.get(lock.key).is_some_and(Entry::is_idle) {
            in_db.remove(lock.key);
            if in_db.is_empty() {
                self.0.remove(&lock.db);
            }
        }
    }

    /// The locks of a database, or of all, that have an entry.
    pub(super) fn ids(&self, db: Option<i32>) -> Vec<LockId> {
        self.0
            .iter()
            .filter(|(of, _)| db.is_none_or(|db| db == **of))
            .flat_map(|(of, in_db)| in_db.keys().map(|key| LockId { db: *of, key: key.clone() }))
            .collect()
    }
}
