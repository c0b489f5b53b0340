// SPDX-License-Identifier: MIT

//! Cache of the readers of locks, kept between calls.
//!
//! The key is authoritative: a cached crowd is compared with its key before it is used
//! (`crowd::matches_key`). Events of a key or a database also invalidate the corresponding entries, so that
//! no entry outlives its key.

use std::cell::RefCell;
use std::rc::Rc;

use foldhash::{HashMap, HashMapExt};

use crate::core::{Crowd, LockRef, WallMs};
use crate::server::{Ctx, InCallback, ServerCell};

static CACHE: ServerCell<RefCell<Vec<Database>>> = ServerCell::new(RefCell::new(Vec::new()));

/// Minimum number of cached crowds in a database before expired ones are removed.
const MIN_SWEEP_SIZE: usize = 16;

/// The crowds of one database, by the keys of their locks.
struct Database {
    number: i32,
    crowds: HashMap<Box<[u8]>, Rc<Crowd>>,
    /// Number of crowds at which expired ones are removed. Their keys may have been removed without an event.
    sweep_at: usize,
}

/// The position of a lock's readers in the cache.
pub(super) struct CacheKey {
    pub(super) db: i32,
    pub(super) name: Box<[u8]>,
}

/// Removes the readers of a lock, and returns them with the name under which to put them back.
pub(super) fn take(proof: impl Into<InCallback>, lock: LockRef<'_>) -> Option<(Box<[u8]>, Rc<Crowd>)> {
    let mut cache = CACHE.get(proof).borrow_mut();
    let database = cache.iter_mut().find(|database| database.number == lock.db)?;
    let found = database.crowds.remove_entry(lock.key);
    if database.crowds.is_empty() && database.sweep_at > MIN_SWEEP_SIZE {
        database.crowds = HashMap::new();
        database.sweep_at = MIN_SWEEP_SIZE;
    }
    found
}

/// Caches the readers of a lock, exactly as they are stored.
pub(super) fn insert(
    proof: impl Into<InCallback>,
    CacheKey { db, name }: CacheKey,
    crowd: Rc<Crowd>,
    now: WallMs,
) {
    let mut cache = CACHE.get(proof).borrow_mut();
    let at = cache.iter().position(|database| database.number == db).unwrap_or_else(|| {
        cache.push(Database { number: db, crowds: HashMap::new(), sweep_at: MIN_SWEEP_SIZE });
        cache.len() - 1
    });
    let database = &mut cache[at];
    if database.crowds.len() >= database.sweep_at {
        database.crowds.retain(|_, crowd| crowd.last_end().is_some_and(|end| end >= now));
        database.sweep_at = MIN_SWEEP_SIZE.max(2 * database.crowds.len());
    }
    database.crowds.insert(name, crowd);
}

/// Invalidates the entry of a key in the selected database.
#[inline]
pub(crate) fn invalidate(ctx: Ctx<'_>, key: &[u8]) {
    let nothing = CACHE.get(ctx).borrow().iter().all(|database| database.crowds.is_empty());
    // The common case is an empty cache.
    if !nothing {
        take(ctx, LockRef { db: ctx.db(), key });
    }
}

/// Invalidates the cache: databases were emptied or swapped, or the role of this server has changed.
pub(crate) fn invalidate_all(proof: impl Into<InCallback>) {
    *CACHE.get(proof).borrow_mut() = Vec::new();
}

/// Number of cached readers.
pub(crate) fn readers(proof: impl Into<InCallback>) -> usize {
    let cache = CACHE.get(proof).borrow();
    cache.iter().flat_map(|database| database.crowds.values()).map(|crowd| crowd.fields()).sum()
}
