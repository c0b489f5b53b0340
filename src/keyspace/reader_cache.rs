// SPDX-License-Identifier: MIT

//! Crowds of readers that are kept in the memory of this server between two calls.
//!
//! The key is the truth, and whoever takes a crowd from here compares it with the key first (`crowd::is_true`). What is told
//! about a key or a database empties this too, so that nothing is kept of what is gone.

use std::cell::RefCell;
use std::rc::Rc;

use foldhash::{HashMap, HashMapExt};

use crate::core::{Crowd, LockRef, WallMs};
use crate::server::{Ctx, InCallback, ServerCell};

static CACHE: ServerCell<RefCell<Vec<Database>>> = ServerCell::new(RefCell::new(Vec::new()));

/// How many crowds a database may have before any is looked for whose last lease is over.
const MIN_SWEEP_SIZE: usize = 16;

/// The crowds of one database, by their locks' keys.
struct Database {
    number: i32,
    crowds: HashMap<Box<[u8]>, Rc<Crowd>>,
    /// At how many crowds those are forgotten that are over: their keys may have gone without a word.
    sweep_at: usize,
}

/// The place of a lock's readers in the cache.
pub(super) struct CacheKey {
    pub(super) db: i32,
    pub(super) name: Box<[u8]>,
}

/// Takes the readers of a lock out, with the name to put them back under.
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

/// Keeps the readers of a lock, just as they are stored.
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

/// Something has happened to this key of the selected database.
#[inline]
pub(crate) fn forget(ctx: Ctx<'_>, key: &[u8]) {
    let nothing = CACHE.get(ctx).borrow().iter().all(|database| database.crowds.is_empty());
    // Nearly always.
    if !nothing {
        take(ctx, LockRef { db: ctx.db(), key });
    }
}

/// Nothing is certain any more: databases were emptied or swapped, or this server's role has changed.
pub(crate) fn forget_all(proof: impl Into<InCallback>) {
    *CACHE.get(proof).borrow_mut() = Vec::new();
}

/// How many readers are kept.
pub(crate) fn readers(proof: impl Into<InCallback>) -> usize {
    let cache = CACHE.get(proof).borrow();
    cache.iter().flat_map(|database| database.crowds.values()).map(|crowd| crowd.fields()).sum()
}
