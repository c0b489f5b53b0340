// SPDX-License-Identifier: MIT

//! Owners are told what happens to their holds.
//!
//! Not from inside the command that brought it about: Redis 7.0 would send the message of a client that has subscribed itself in
//! the middle of its reply. So it is done when the timer fires, which is then at once.

use super::state::with;
use super::subscriptions;
use crate::config;
use crate::keyspace::channel;
use crate::server::Ctx;

/// How many are told at a time.
const BATCH: usize = 100;

/// Owners are told, or are not any more, as the setting is now.
pub(super) fn follow_setting(ctx: Ctx<'_>) {
    with(ctx, |driver| driver.locks.notify_owners(config::events()));
    subscriptions::listen_to_fields(ctx);
}

/// Tells owners what they are to be told by now, as long as there is time.
pub(super) fn tell(ctx: Ctx<'_>, has_time: impl Fn() -> bool) {
    loop {
        let notices: Vec<_> = with(ctx, |driver| {
            let notices: Vec<_> = std::iter::from_fn(|| driver.locks.next_notice()).take(BATCH).collect();
            driver.stats.owners_told += notices.len();
            notices
        });
        for notice in &notices {
            channel::tell_owner(ctx, notice);
        }
        if notices.is_empty() || !has_time() {
            return;
        }
    }
}
