// SPDX-License-Identifier: MIT

//! When locks may have been forgotten whose leases still run: `lock.quarantine` keeps them from being granted again.
//!
//! A server forgets locks when it starts without the last writes of the one that ran before, and when it takes over from a
//! primary that had granted more than it has heard of. Where every write was on the disk before it was answered, nothing is
//! forgotten: an AOF that is synced always.

use crate::config;
use crate::core::MonoUs;
use crate::driver::state::with;
use crate::server::events::server_events::DataSource;
use crate::server::{calls, version, Ctx};

/// The module is loaded: whatever the server has, it has had since its own start.
pub(super) fn on_load(ctx: Ctx<'_>) {
    let seconds = version::server_field(c"server", c"uptime_in_seconds");
    let seconds = seconds.and_then(|text| std::str::from_utf8(&text).ok()?.parse::<u64>().ok()).unwrap_or(0);
    // It is one more than have gone by, almost, if a start falls on the end of a second: then locks would be granted too early.
    let gone_by = seconds.saturating_sub(1).saturating_mul(1_000_000);
    let now: MonoUs = ctx.now().mono;
    with(ctx, |driver| driver.locks_lost_at = Some(now.saturating_sub(gone_by)));
    note(ctx, |ms| {
        format!("the last locks of the server that ran before may be forgotten; none is granted in its first {ms} ms")
    });
}

/// The server has read its data.
pub(super) fn on_data_loaded(ctx: Ctx<'_>, source: DataSource) {
    let is = |name, value: &[u8]| calls::setting(ctx, name).is_some_and(|set| set == value);
    let lost_nothing =
        source == DataSource::Aof && is(c"appendfsync", b"always") && is(c"no-appendfsync-on-rewrite", b"no");
    if lost_nothing {
        with(ctx, |driver| driver.locks_lost_at = None);
        note(ctx, |_| "an AOF that is synced always was read, so no lock is forgotten".to_owned());
    }
}

/// This server has become the primary.
pub(super) fn on_promotion(ctx: Ctx<'_>) {
    note(ctx, |ms| {
        format!("promoted: the primary before may have granted locks that are not known here; for {ms} ms none is granted")
    });
}

fn note(ctx: Ctx<'_>, what: impl FnOnce(u64) -> String) {
    if let Some(ms) = config::quarantine() {
        ctx.note(&format!("redis-lock: {} (lock.quarantine)", what(ms)));
    }
}
