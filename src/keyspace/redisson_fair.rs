// SPDX-License-Identifier: MIT

//! Redisson's fair locks, which look like plain ones.
//!
//! The hash of such a lock is that of a plain lock. What tells them apart is what stands beside it as soon as somebody
//! waits: a sorted set with the time, on the waiter's clock, until which each is to be counted. Its waiters listen to a
//! channel of their own, so that a hold of another kind would let them sleep for its whole lease.

use crate::core::Now;
use crate::keyspace::names;
use crate::server::keys::key::Key;
use crate::server::{Ctx, Str};

/// True if somebody waits for a fair lock of this name.
pub(crate) fn has_queue(ctx: Ctx<'_>, lock: &Str<'_>, now: Now) -> bool {
    let name = Str::new(&names::derived(b"redisson_lock_timeout:{", lock.as_bytes()));
    // The set has no TTL, and if somebody gives it one, the event that it has expired is about no lock.
    Key::exists(ctx, &name) && Key::open_for_read(ctx, &name).has_score_above(now.wall)
}
