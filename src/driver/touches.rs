//! What the server tells about keys and databases.

use super::{with, CHANGING};
use crate::core::{KeyChange, LockRef};
use crate::server::events::KeyspaceEvents;
use crate::server::Ctx;

/// What the server tells about keys.
pub(super) struct Touches;

impl KeyspaceEvents for Touches {
    fn key(ctx: Ctx<'_>, event: &[u8], key: &[u8]) {
        if CHANGING.get(ctx).get() {
            return;
        }
        with(ctx, |driver| {
            // Those that end every hold that there was on the key, also by putting others in its place.
            let ends_all = matches!(
                event,
                b"del"
                    | b"expired"
                    | b"evicted"
                    | b"rename_from"
                    | b"move_from"
                    | b"rename_to"
                    | b"move_to"
                    | b"restore"
                    | b"copy_to"
            );
            let change = if ends_all { KeyChange::Gone } else { KeyChange::Changed };
            // Nearly always: nobody waits, and the event costs no more than this.
            if driver.locks.ignores(change) {
                return;
            }
            if driver.locks.key_changed(LockRef { db: ctx.db(), key }, change, ctx.now()) {
                driver.set_timer(ctx, None);
            }
        });
    }

    fn database(ctx: Ctx<'_>, db: Option<i32>) {
        with(ctx, |driver| {
            driver.flushed = ctx.is_primary();
            driver.locks.database_changed(db);
            driver.set_timer(ctx, None);
        });
    }
}
