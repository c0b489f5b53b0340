// SPDX-License-Identifier: MIT

//! A look at a lock that may have changed without a call.

use super::commit::store;
use super::state::{with, Remembered};
use crate::core::{Decision, LockId};
use crate::keyspace::Lock;
use crate::server::{ask, Ctx, Str};

/// Reads a lock that may have become free, and grants it to whoever is first in line.
pub(super) fn reconcile(ctx: Ctx<'_>, lock: &LockId) {
    ctx.select_db(lock.db);
    let name = Str::new(&lock.key);
    let refuse = |decision| with(ctx, |driver| driver.locks.refuse_all(lock.as_ref(), &decision));
    // A key that has gone because its slot migrates was not released.
    if ctx.is_cluster() && !ask::serves_slot_of(ctx, &[&name]) {
        return refuse(Decision::Moved);
    }
    let now = ctx.now();
    let remembered = Remembered::of(ctx, lock.as_ref());
    let read = Lock::open(ctx, &name, None, &remembered, now, |open| {
        let found_free = open.holders.is_free();
        let in_hand = with(ctx, |driver| {
            driver.locks.reconcile(remembered.lock, &mut open.holders, &mut open.records, now)
        });
        // Of a lease that a foreign write has ended it is not known how long it was.
        let shortened = if found_free { open.holders.first_end() } else { open.shortened_to() };
        store(ctx, lock.as_ref(), in_hand, open, found_free, shortened);
    });
    if read.is_err() {
        refuse(Decision::WrongType);
    }
}
