// SPDX-License-Identifier: MIT

//! Subscriptions to the server's events about keys, databases and its role. Most of them begin when a lock is
//! first used.

use std::cell::Cell;

use crate::config;
use crate::core::{HoldEvent, KeyChange, LockRef};
use crate::driver::quarantine;
use crate::driver::state::with;
use crate::keyspace::reader_cache;
use crate::server::events::server_events::{self, KeyspaceEvents, Role};
use crate::server::replication::{keyspace_events, propagation, replica_messages};
use crate::server::{calls, version, Ctx, ServerCell, Str};

/// Whether [`subscribe`] has run, because a lock has been used.
static SUBSCRIBED: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// Whether the module is subscribed to events of hash fields.
static SUBSCRIBED_TO_FIELDS: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// Receiver of keyspace events.
pub(crate) struct KeyEvents;

impl KeyspaceEvents for KeyEvents {
    fn key(ctx: Ctx<'_>, event: &[u8], key: &[u8]) {
        reader_cache::invalidate(ctx, key);
        // These events end every hold on the key, even if they put another value in its place.
        let change = match event {
            b"expired" => KeyChange::Gone(HoldEvent::Expired),
            b"evicted" => KeyChange::Gone(HoldEvent::Evicted),
            b"del" | b"rename_from" | b"move_from" | b"rename_to" | b"move_to" | b"restore" | b"copy_to" => {
                KeyChange::Gone(HoldEvent::Deleted)
            }
            _ => KeyChange::Changed,
        };
        let change = if event == b"del" && is_moved(ctx, key) { KeyChange::Moved } else { change };
        with(ctx, |driver| {
            // In the common case there are no waiters, and the event ends here.
            if driver.locks.ignores_change(change) {
                return;
            }
            if driver.locks.key_changed(LockRef { db: ctx.db(), key }, change, ctx.now()) {
                driver.schedule(ctx);
            }
        });
    }

    fn database(ctx: Ctx<'_>, db: Option<i32>) {
        reader_cache::invalidate_all(ctx);
        with(ctx, |driver| {
            driver.flush_unannounced = ctx.is_primary();
            driver.locks.database_changed(db);
            driver.schedule(ctx);
        });
    }
}

/// Whether a key was deleted because it has moved with its slot. Only sessions make a difference.
fn is_moved(ctx: Ctx<'_>, key: &[u8]) -> bool {
    let lock = LockRef { db: ctx.db(), key };
    let matters = with(ctx, |driver| driver.in_cluster && driver.locks.may_have_session(lock));
    matters && !calls::serves_slot_of(ctx, &[&Str::new(key)])
}

/// Subscribes to every event that is needed once a lock is used. A server without locks does not pay for these.
pub(crate) fn subscribe(ctx: Ctx<'_>) {
    if SUBSCRIBED.get(ctx).replace(true) {
        return;
    }
    // From now on, any loaded data comes from a primary.
    server_events::ignore_loading(ctx);
    subscribe_to_role(ctx);
    if !server_events::listen_to_keys::<KeyEvents>(ctx) {
        ctx.warn("redis-lock: the server rejected a subscription; locks freed by external clients are handed over late");
    }
    subscribe_to_fields(ctx);
    // From now on, skips commands and events without a receiver, as far as the server reports its receivers.
    if let Some(server) = version::server_version() {
        keyspace_events::skip_unreceived(ctx, server);
        propagation::skip_unfollowed(ctx, server);
    }
    crate::server::registration::unloading::mark_in_use(ctx);
    with(ctx, |driver| {
        driver.in_cluster = ctx.is_cluster();
        if driver.in_cluster {
            driver.locks.forget_holds();
        }
        if !driver.alarm.is_watched() {
            server_events::ignore_cron(ctx);
        }
    });
}

/// Subscribes to foreign writes to the fields of locks, once a lock has been used and `lock.events` is on.
/// The module notifies owners of such writes.
pub(crate) fn subscribe_to_fields(ctx: Ctx<'_>) {
    let begins =
        config::events() && SUBSCRIBED.get(ctx).get() && !SUBSCRIBED_TO_FIELDS.get(ctx).replace(true);
    if begins && !server_events::listen_to_fields::<KeyEvents>(ctx) {
        ctx.warn(
            "redis-lock: the server rejected a subscription; owners are notified late when external clients remove \
             their fields",
        );
    }
}

/// Subscribes to changes of this server's role.
pub(crate) fn subscribe_to_role(ctx: Ctx<'_>) {
    if !server_events::listen_to_role(ctx, on_role_change) {
        ctx.warn("redis-lock: the server rejected a subscription; waiters are not notified of a failover");
    }
}

/// Forgets all subscriptions, because the server drops them when it unloads the module.
pub(crate) fn forget(ctx: Ctx<'_>) {
    server_events::forget(ctx);
    replica_messages::discard(ctx);
    SUBSCRIBED.get(ctx).set(false);
    SUBSCRIBED_TO_FIELDS.get(ctx).set(false);
}

/// Adapts to this server's new role.
fn on_role_change(ctx: Ctx<'_>, role: Role) {
    reader_cache::invalidate_all(ctx);
    with(ctx, |driver| {
        if role == Role::Primary {
            driver.promote(ctx);
            quarantine::on_promotion(ctx);
        } else {
            // Some servers do not end the waits themselves (Valkey 9 in a cluster). Others end them before or
            // after this event.
            driver.locks.demote();
            driver.deliver_decisions(ctx);
        }
        driver.schedule(ctx);
    });
}
