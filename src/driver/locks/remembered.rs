// SPDX-License-Identifier: MIT

//! Locks as the core remembers them, and queueing a request without reading its lock.

use crate::core::{FastQueued, Hold, LockLookup, LockRef, Now, Request, RequestId, WaitPolicy};
use crate::driver::state::with;
use crate::keyspace::{granted, Memory};
use crate::server::keys::key;
use crate::server::{Ctx, Str};

/// A lock that has been looked up in the core, so that it can be read and changed.
#[derive(Clone, Copy)]
pub(crate) struct Remembered<'a> {
    ctx: Ctx<'a>,
    pub(crate) lock: LockLookup<'a>,
}

impl<'a> Remembered<'a> {
    #[inline]
    pub(crate) fn of(ctx: Ctx<'a>, lock: LockRef<'a>) -> Remembered<'a> {
        Remembered { ctx, lock: with(ctx, |driver| driver.locks.look_up(lock)) }
    }
}

impl Memory for Remembered<'_> {
    fn ending(&self) -> usize {
        with(self.ctx, |driver| driver.locks.ending(self.lock))
    }

    fn plain_hold(&self) -> Option<Hold> {
        with(self.ctx, |driver| driver.locks.plain_hold(self.lock).cloned())
    }
}

/// Queues a request without reading its lock, if the core is certain that the request has to wait.
pub(crate) fn queue_unseen(
    ctx: Ctx<'_>,
    name: &Str<'_>,
    remembered: &Remembered<'_>,
    request: &Request,
    patience: WaitPolicy,
    now: Now,
) -> Option<FastQueued> {
    if patience == WaitPolicy::NoWait {
        return None;
    }
    // A field may expire before the lock's lease, so the first waiter has to read the expiry of the fields.
    let must_read_first = key::fields_may_expire(ctx);
    let is_new = |id: &RequestId| matches!(granted(ctx, name, id), Ok(None));
    with(ctx, |driver| {
        driver.update_quarantine(now);
        driver.locks.queue_fast(remembered.lock, request, patience, (must_read_first, is_new), now)
    })
}
