// SPDX-License-Identifier: MIT

//! The locks with state in memory, by name and by handle, and the queue of locks that are ready to be
//! reconciled.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use foldhash::HashMap;

use super::spare::free_spare;
use super::{LockId, LockRef};

/// Handle of a lock in a [`LockTable`]. Cheap to copy and never reused for another lock. The handle dangles
/// once the table has removed its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LockIdx {
    slot: u32,
    generation: u32,
}

impl LockIdx {
    /// The place of the lock in the table. A later lock may have the same place.
    pub(super) fn slot(self) -> usize {
        self.slot as usize
    }
}

#[cfg(test)]
impl LockIdx {
    pub(super) fn nth(slot: u32) -> LockIdx {
        LockIdx { slot, generation: 0 }
    }
}

/// A lock with its handle, if it had one when it was looked up by name. The handle may be outdated when it is
/// used: opening the key may reveal that the key has expired.
#[derive(Clone, Copy)]
pub(crate) struct LockLookup<'a> {
    name: LockRef<'a>,
    lock: Option<LockIdx>,
    /// Value of the table's `changes` at the look-up.
    changes: u64,
}

/// The state of all locks that have any.
pub(super) struct LockTable<S> {
    /// Handles by database, then by key, so that a look-up needs no owned key. Few databases have locks. A
    /// database that had locks keeps its map.
    names: BTreeMap<i32, HashMap<Rc<[u8]>, LockIdx>>,
    slots: Vec<Slot<S>>,
    /// Slots without a lock.
    free: Vec<u32>,
    /// Generation of new slots. No handle of an earlier slot has this generation.
    first_generation: u32,
    /// Locks to reconcile soon, in the order in which they became ready.
    ready: BTreeMap<u64, LockIdx>,
    /// Number of times that a lock was marked as ready.
    marks: u64,
    /// Number of additions and removals of locks.
    changes: u64,
    /// Peak number of locks.
    most: usize,
    /// The lock most recently added or found, which is usually the next one to be looked up.
    last: Cell<Option<LockIdx>>,
}

struct Slot<S> {
    generation: u32,
    lock: Option<Named<S>>,
}

struct Named<S> {
    id: LockId,
    /// The lock's key in [`LockTable::ready`].
    ready: Option<u64>,
    state: S,
}

/// An empty table with more slots than this frees its memory.
const MAX_IDLE_SLOTS: usize = 1024;

impl<'a> LockLookup<'a> {
    pub(crate) fn name(self) -> LockRef<'a> {
        self.name
    }
}

impl<S> Default for LockTable<S> {
    fn default() -> LockTable<S> {
        LockTable {
            names: BTreeMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            first_generation: 0,
            ready: BTreeMap::new(),
            marks: 0,
            changes: 0,
            most: 0,
            last: Cell::new(None),
        }
    }
}

impl<S: Default> LockTable<S> {
    /// The handle of a lock with state in the table.
    #[inline(always)]
    pub(super) fn find(&self, lock: LockRef<'_>) -> Option<LockIdx> {
        if let Some(last) = self.last.get() {
            // The handle of a forgotten lock is dangling.
            if self.named(last).is_some_and(|named| named.id.as_ref() == lock) {
                return Some(last);
            }
        }
        let found = *self.names.get(&lock.db)?.get(lock.key)?;
        self.last.set(Some(found));
        Some(found)
    }

    /// Looks up a lock by its name.
    #[inline]
    pub(super) fn look_up<'a>(&self, name: LockRef<'a>) -> LockLookup<'a> {
        LockLookup { name, lock: self.find(name), changes: self.changes }
    }

    /// The current handle of a lock that was looked up before.
    #[inline]
    pub(super) fn handle_of(&self, known: LockLookup<'_>) -> Option<LockIdx> {
        if known.changes == self.changes {
            known.lock
        } else {
            self.find(known.name)
        }
    }

    /// The handle of a lock. A lock without state gets an empty one.
    pub(super) fn find_or_insert(&mut self, lock: LockRef<'_>) -> LockIdx {
        match self.find(lock) {
            Some(idx) => idx,
            None => self.insert(lock),
        }
    }

    /// Adds a lock that is not in the table, with empty state.
    pub(super) fn insert(&mut self, lock: LockRef<'_>) -> LockIdx {
        self.changes += 1;
        let key: Rc<[u8]> = Rc::from(lock.key);
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(Slot { generation: self.first_generation, lock: None });
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        let place = &mut self.slots[slot as usize];
        // The state of a lock is large, so it is built in place.
        place.lock =
            Some(Named { id: LockId { db: lock.db, key: key.clone() }, ready: None, state: S::default() });
        let idx = LockIdx { slot, generation: place.generation };
        self.names.entry(lock.db).or_default().insert(key, idx);
        self.last.set(Some(idx));
        self.most = self.most.max(self.len());
        idx
    }

    fn named(&self, idx: LockIdx) -> Option<&Named<S>> {
        let slot = self.slots.get(idx.slot as usize).filter(|slot| slot.generation == idx.generation)?;
        slot.lock.as_ref()
    }

    fn named_mut(&mut self, idx: LockIdx) -> Option<&mut Named<S>> {
        let slot = self.slots.get_mut(idx.slot as usize).filter(|slot| slot.generation == idx.generation)?;
        slot.lock.as_mut()
    }

    /// The state of a lock; `None` if the table has forgotten it.
    pub(super) fn get(&self, idx: LockIdx) -> Option<&S> {
        self.named(idx).map(|named| &named.state)
    }

    pub(super) fn get_mut(&mut self, idx: LockIdx) -> Option<&mut S> {
        self.named_mut(idx).map(|named| &mut named.state)
    }

    /// The name and the state of a lock.
    pub(super) fn named_state(&mut self, idx: LockIdx) -> Option<(&LockId, &mut S)> {
        self.named_mut(idx).map(|named| (&named.id, &mut named.state))
    }

    /// The name of a lock.
    pub(super) fn id(&self, idx: LockIdx) -> Option<&LockId> {
        self.named(idx).map(|named| &named.id)
    }

    /// Forgets a lock.
    pub(super) fn remove(&mut self, idx: LockIdx) {
        let Some(slot) =
            self.slots.get_mut(idx.slot as usize).filter(|slot| slot.generation == idx.generation)
        else {
            return;
        };
        let Some(named) = &slot.lock else { return };
        self.changes += 1;
        slot.generation = slot.generation.wrapping_add(1);
        if let Some(mark) = named.ready {
            self.ready.remove(&mark);
        }
        self.free.push(idx.slot);
        if let Some(in_db) = self.names.get_mut(&named.id.db) {
            in_db.remove(&named.id.key);
            free_spare(in_db);
        }
        // Drops the state in place.
        slot.lock = None;
        if self.is_empty() && self.slots.len() > MAX_IDLE_SLOTS {
            self.names = BTreeMap::new();
            self.last = Cell::new(None);
            self.first_generation = self.slots.iter().map(|slot| slot.generation).max().unwrap_or(0);
            self.slots = Vec::new();
            self.free = Vec::new();
        }
    }

    /// Marks a lock as ready to be reconciled.
    pub(super) fn set_ready(&mut self, idx: LockIdx) {
        let mark = self.marks + 1;
        let Some(named) = self.named_mut(idx) else { return };
        if named.ready.is_none() {
            named.ready = Some(mark);
            self.marks = mark;
            self.ready.insert(mark, idx);
        }
    }

    /// Unmarks a lock that is being reconciled.
    pub(super) fn unset_ready(&mut self, idx: LockIdx) {
        if self.ready.is_empty() {
            return;
        }
        if let Some(mark) = self.named_mut(idx).and_then(|named| named.ready.take()) {
            self.ready.remove(&mark);
        }
    }

    pub(super) fn is_ready(&self, idx: LockIdx) -> bool {
        self.named(idx).is_some_and(|named| named.ready.is_some())
    }

    /// Whether any lock is ready.
    pub(super) fn any_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Number of ready locks.
    pub(super) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// Unmarks and returns the lock that has been ready the longest.
    pub(super) fn take_ready(&mut self) -> Option<LockIdx> {
        let first = *self.ready.first_key_value()?.1;
        self.unset_ready(first);
        Some(first)
    }

    /// Unmarks all locks.
    pub(super) fn clear_ready(&mut self) {
        while self.take_ready().is_some() {}
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Peak number of locks.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over all locks, with their handles and names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (LockIdx, &LockId, &S)> {
        (0..).zip(&self.slots).filter_map(|(slot, place)| {
            let named = place.lock.as_ref()?;
            Some((LockIdx { slot, generation: place.generation }, &named.id, &named.state))
        })
    }

    /// The handles of the locks of a database, or of all databases.
    pub(super) fn handles(&self, db: Option<i32>) -> Vec<LockIdx> {
        let wanted = self.names.iter().filter(|(of, _)| db.is_none_or(|db| db == **of));
        wanted.flat_map(|(_, in_db)| in_db.values().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{LockRef, LockTable, MAX_IDLE_SLOTS};

    fn lock(key: &[u8]) -> LockRef<'_> {
        LockRef { db: 0, key }
    }

    #[test]
    fn handles_are_never_reused() {
        let mut table: LockTable<u32> = LockTable::default();
        let keys: Vec<[u8; 2]> = (0..=u16::try_from(MAX_IDLE_SLOTS).unwrap()).map(u16::to_be_bytes).collect();
        let mut outdated = Vec::new();
        for _ in 0..3 {
            let handles: Vec<_> = keys.iter().map(|key| table.find_or_insert(lock(key))).collect();
            for (key, idx) in keys.iter().zip(&handles) {
                assert_eq!((table.find(lock(key)), table.find_or_insert(lock(key))), (Some(*idx), *idx));
                assert_eq!(&*table.id(*idx).unwrap().key, key);
            }
            outdated.extend(handles.iter().copied());
            assert_eq!((table.len(), table.most()), (keys.len(), keys.len()));
            handles.iter().for_each(|idx| table.remove(*idx));
            assert!(table.is_empty() && table.slots.is_empty());
            table.find_or_insert(lock(b"k"));
            assert!(outdated.iter().all(|idx| table.get(*idx).is_none()));
            let again = table.find(lock(b"k")).unwrap();
            table.remove(again);
            assert!(table.get(again).is_none() && table.is_empty());
            outdated.push(again);
        }
    }

    #[test]
    fn ready_locks_are_taken_in_order() {
        let mut table: LockTable<u32> = LockTable::default();
        let [a, b, c] = [b"a", b"b", b"c"].map(|key| table.find_or_insert(lock(key)));
        for idx in [b, a, b, c] {
            table.set_ready(idx);
        }
        table.unset_ready(a);
        table.set_ready(a);
        assert_eq!([table.take_ready(), table.take_ready()], [Some(b), Some(c)]);
        table.remove(a);
        assert!(!table.any_ready() && table.take_ready().is_none());
    }
}
