// SPDX-License-Identifier: MIT

//! Lua scripts with the semantics of Redisson's, and the compare-and-delete of a plain `SET NX PX` lock.
//!
//! `ARGV` has the lease before the owner, as in Redisson's own scripts.

/// Acquires a lock once, or replies with the TTL of another owner's hold.
pub const ACQUIRE: &str = include_str!("acquire.lua");
/// Releases one hold, as Redisson 3.17 does.
pub const RELEASE: &str = include_str!("release.lua");
/// Releases one hold and stores the reply for a retry, as Redisson does since 3.27.
pub const RELEASE_LATCHED: &str = include_str!("release_latched.lua");
/// Releases one hold, or publishes again that the lock is free, as the oldest clients of Redisson do.
pub const RELEASE_OLDEST: &str = include_str!("release_oldest.lua");
/// Resets the lease of a held lock, as Redisson's watchdog does.
pub const RENEW: &str = include_str!("renew.lua");
/// Ends every hold, as Redisson's `forceUnlock` does.
pub const BREAK: &str = include_str!("break.lua");
/// Deletes a key that was set with `SET NX PX`, if it still has the owner's value.
pub const COMPARE_AND_DELETE: &str = include_str!("compare_and_delete.lua");
