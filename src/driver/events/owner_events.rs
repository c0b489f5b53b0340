// SPDX-License-Identifier: MIT

//! Notifies owners of events of their holds.
//!
//! Events are not published inside the command that caused them: Redis 7.0 would send the message to a
//! subscribed caller in the middle of its reply. The timer publishes them, and is set to fire at once.

use crate::config;
use crate::driver::events::subscriptions;
use crate::driver::state::with;
use crate::keyspace::channel;
use crate::server::Ctx;

/// Number of events that are published in one batch.
const BATCH: usize = 100;

/// Turns events on or off, according to `lock.events`.
pub(crate) fn apply_setting(ctx: Ctx<'_>) {
    with(ctx, |driver| driver.locks.notify_owners(config::events()));
    subscriptions::subscribe_to_fields(ctx);
}

/// Publishes the pending events while there is time.
pub(crate) fn publish(ctx: Ctx<'_>, has_time: impl Fn() -> bool) {
    loop {
        let notices: Vec<_> = with(ctx, |driver| {
            let notices: Vec<_> = std::iter::from_fn(|| driver.locks.next_notice()).take(BATCH).collect();
            driver.stats.owner_events += notices.len();
            notices
        });
        for notice in &notices {
            channel::publish_owner_event(ctx, notice);
        }
        if notices.is_empty() || !has_time() {
            return;
        }
    }
}
