// SPDX-License-Identifier: MIT

//! Quarantine (`lock.quarantine`): no lock is granted while lost locks may still have a running lease.
//!
//! A server can lose locks in two ways. It may start without the last writes of its predecessor, or it may
//! take over from a primary whose last grants it did not receive. No lock is lost if every write was on disk
//! before its reply, as with an AOF and `appendfsync always`.

use crate::config;
use crate::core::MonoUs;
use crate::driver::state::with;
use crate::server::events::server_events::DataSource;
use crate::server::{calls, version, Ctx};

/// Starts the quarantine at the start of the server. Called when the module is loaded.
pub(super) fn on_load(ctx: Ctx<'_>) {
    let seconds = version::server_field(c"server", c"uptime_in_seconds");
    let seconds = seconds.and_then(|text| std::str::from_utf8(&text).ok()?.parse::<u64>().ok()).unwrap_or(0);
    // If the server started at the end of a second, `uptime_in_seconds` can be almost one second too high.
    // One second is subtracted to avoid early grants.
    let uptime_us = seconds.saturating_sub(1).saturating_mul(1_000_000);
    let now: MonoUs = ctx.now().mono;
    with(ctx, |driver| driver.locks_lost_at = Some(now.saturating_sub(uptime_us)));
    note(ctx, |ms| {
        format!("locks from before the restart may have been lost; no grants in the first {ms} ms of uptime")
    });
}

/// Ends the quarantine if the server has loaded an AOF without loss.
pub(super) fn on_data_loaded(ctx: Ctx<'_>, source: DataSource) {
    let is = |name, value: &[u8]| calls::setting(ctx, name).is_some_and(|set| set == value);
    let lost_nothing =
        source == DataSource::Aof && is(c"appendfsync", b"always") && is(c"no-appendfsync-on-rewrite", b"no");
    if lost_nothing {
        with(ctx, |driver| driver.locks_lost_at = None);
        note(ctx, |_| "the AOF was written with appendfsync always, so no locks were lost".to_owned());
    }
}

/// Logs the quarantine that begins with a promotion.
pub(super) fn on_promotion(ctx: Ctx<'_>) {
    note(ctx, |ms| {
        format!("promoted: the previous primary may have granted locks that are unknown here; no grants for {ms} ms")
    });
}

fn note(ctx: Ctx<'_>, text: impl FnOnce(u64) -> String) {
    if let Some(ms) = config::quarantine() {
        ctx.note(&format!("redis-lock: {} (lock.quarantine)", text(ms)));
    }
}
