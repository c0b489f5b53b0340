// SPDX-License-Identifier: MIT

//! Detection of Redisson's fair locks, whose hash is that of a plain lock.
//!
//! As soon as a client waits for a fair lock, a sorted set exists beside it. Each score is the time, on the clock of
//! that waiter, until which the waiter counts. These waiters subscribe to a channel of their own, so a plain hold would let
//! them sleep for its whole lease.

use crate::core::Now;
use crate::keyspace::names;
use crate::server::keys::key::Key;
use crate::server::{Ctx, Str};

/// True if a client waits for a fair lock of this name.
pub(crate) fn has_queue(ctx: Ctx<'_>, lock: &Str<'_>, now: Now) -> bool {
    let name = Str::new(&names::derived_name(b"redisson_lock_timeout:{", lock.as_bytes()));
    // The set has no TTL. If a foreign write sets one, the event of its expiry does not concern a lock.
    Key::exists(ctx, &name) && Key::open_for_read(ctx, &name).has_score_above(now.wall)
}
