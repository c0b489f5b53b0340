//! The queues of all locks, by name.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use super::{LockId, LockRef, Owner, WaiterId, WallMs};

/// What is remembered about one lock.
#[derive(Default)]
pub(super) struct Queue {
    /// In the order of arrival, which is the order of the ids.
    pub(super) waiting: BTreeSet<WaiterId>,
    /// Grants on this lock of which it is not known yet whether they reached their client. An owner whose
    /// holds ended otherwise has none: taking back an ended grant could free a newer one.
    pub(super) in_flight: Vec<WaiterId>,
    /// Owners who have one hold too many, because a grant did not reach its client.
    pub(super) take_back: Vec<Owner>,
    /// The entry of this lock in `Service::leases`; there is one if, and only if, somebody waits for a lock
    /// that is held.
    pub(super) lease_end: Option<WallMs>,
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty() && self.take_back.is_empty()
    }
}

/// All queues: by database, then by key, so that a look-up needs no owned key.
#[derive(Default)]
pub(super) struct Queues(HashMap<i32, HashMap<Rc<[u8]>, Queue>>);

impl Queues {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Queue> {
        self.0.values().flat_map(HashMap::values)
    }

    pub(super) fn get(&self, lock: LockRef<'_>) -> Option<&Queue> {
        self.0.get(&lock.db)?.get(lock.key)
    }

    pub(super) fn get_mut(&mut self, lock: LockRef<'_>) -> Option<&mut Queue> {
        self.0.get_mut(&lock.db)?.get_mut(lock.key)
    }

    /// The queue of a lock with the name that all who refer to it share.
    pub(super) fn get_with_id(&mut self, lock: LockRef<'_>) -> Option<(LockId, &mut Queue)> {
        let in_db = self.0.get_mut(&lock.db)?;
        let key = in_db.get_key_value(lock.key)?.0.clone();
        let queue = in_db.get_mut(&key)?;
        Some((LockId { db: lock.db, key }, queue))
    }

    /// The same for a lock that may have no queue yet.
    pub(super) fn get_or_make(&mut self, lock: LockRef<'_>) -> (LockId, &mut Queue) {
        let in_db = self.0.entry(lock.db).or_default();
        let key = in_db.get_key_value(lock.key).map_or_else(|| Rc::from(lock.key), |(key, _)| key.clone());
        let queue = in_db.entry(key.clone()).or_default();
        (LockId { db: lock.db, key }, queue)
    }

    /// Forgets a queue that has nothing left to remember.
    pub(super) fn drop_if_idle(&mut self, lock: LockRef<'_>) {
        let Some(in_db) = self.0.get_mut(&lock.db) else { return };
        if in_db.get(lock.key).is_some_and(Queue::is_idle) {
            in_db.remove(lock.key);
            if in_db.is_empty() {
                self.0.remove(&lock.db);
            }
        }
    }

    /// The locks of a database, or of all, that have a queue.
    pub(super) fn ids(&self, db: Option<i32>) -> Vec<LockId> {
        self.0
            .iter()
            .filter(|(of, _)| db.is_none_or(|db| db == **of))
            .flat_map(|(of, in_db)| in_db.keys().map(|key| LockId { db: *of, key: key.clone() }))
            .collect()
    }
}
