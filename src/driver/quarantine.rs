// SPDX-License-Identifier: MIT

//! When locks may have been forgotten whose leases still run: `lock.quarantine` keeps them from being granted again.
//!
//! A server forgets locks when it starts without the last writes of the one that ran before, and when it takes over from a
//! primary that had granted more than it has heard of. Where every write was on the disk before it was answered, nothing is
//! forgotten: an AOF that is synced always.

use super::state::with;
use crate::config;
use crate::core::MonoUs;
use crate::server::{ask, info, Ctx};

/// The module is loaded: whatever the server has, it has had since its own start.
pub(super) fn start(ctx: Ctx<'_>) {
    let seconds = info::server_field(c"server", c"uptime_in_seconds");
    let seconds = seconds.and_then(|text| std::str::from_utf8(&text).ok()?.parse::<u64>().ok()).unwrap_or(0);
    // It is one more than have gone by, almost, if a start falls on the end of a second: then locks would be granted too early.
    let gone_by = seconds.saturating_sub(1).saturating_mul(1_000_000);
    let now: MonoUs = ctx.now().mono;
    with(ctx, |driver| driver.memory_lost = Some(now.saturating_sub(gone_by)));
    note(ctx, |ms| {
        format!("locks from before the restart may have been lost; no grants in the first {ms} ms of uptime")
    });
}

/// The server has read its data.
pub(super) fn loaded(ctx: Ctx<'_>, from_aof: bool) {
    let is = |name, value: &[u8]| ask::setting(ctx, name).is_some_and(|set| set == value);
    let had_all = from_aof && is(c"appendfsync", b"always") && is(c"no-appendfsync-on-rewrite", b"no");
    if had_all {
        with(ctx, |driver| driver.memory_lost = None);
        note(ctx, |_| "the AOF was written with appendfsync always, so no locks were lost".to_owned());
    }
}

/// This server has become the primary.
pub(super) fn promoted(ctx: Ctx<'_>) {
    note(ctx, |ms| {
        format!("promoted: the previous primary may have granted locks that are unknown here; no grants for {ms} ms")
    });
}

fn note(ctx: Ctx<'_>, what: impl FnOnce(u64) -> String) {
    if let Some(ms) = config::quarantine() {
        ctx.note(&format!("redis-lock: {} (lock.quarantine)", what(ms)));
    }
}
