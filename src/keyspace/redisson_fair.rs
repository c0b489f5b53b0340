// SPDX-License-Identifier: MIT

//! Detection of Redisson's fair locks, whose hash has the format of a plain lock.
//!
//! While clients wait for a fair lock, a sorted set stores them. Each score is the time, on the waiter's
//! clock, until which the waiter is valid. These waiters subscribe to a different channel, so they would
//! sleep for the whole lease of a plain hold.

use crate::core::Now;
use crate::keyspace::names;
use crate::server::keys::key::Key;
use crate::server::{Ctx, Str};

/// True if a client waits for a fair lock of this name.
pub(crate) fn has_queue(ctx: Ctx<'_>, lock: &Str<'_>, now: Now) -> bool {
    let name = Str::new(&names::derived_name(b"redisson_lock_timeout:{", lock.as_bytes()));
    // The set has no TTL. Even if a foreign write sets one, its expiry event does not concern a lock.
    Key::exists(ctx, &name) && Key::open_for_read(ctx, &name).has_score_above(now.wall)
}
