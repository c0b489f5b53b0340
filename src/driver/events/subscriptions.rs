// SPDX-License-Identifier: MIT

//! What the server tells us about keys, databases and its role, and from when on.

use std::cell::Cell;

use crate::config;
use crate::core::{Happened, KeyChange, LockRef};
use crate::driver::quarantine;
use crate::driver::state::with;
use crate::keyspace::reader_cache;
use crate::server::events::server_events::{self, KeyspaceEvents, Role};
use crate::server::replication::{keyspace_events, propagation, replica_messages};
use crate::server::{version, Ctx, ServerCell};

/// A lock has been used: see [`listen`].
static SUBSCRIBED: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// The fields of hashes are listened to.
static SUBSCRIBED_TO_FIELDS: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// What the server tells about keys.
pub(crate) struct KeyEvents;

impl KeyspaceEvents for KeyEvents {
    fn key(ctx: Ctx<'_>, event: &[u8], key: &[u8]) {
        reader_cache::forget(ctx, key);
        // Those that end every hold that there was on the key, also by putting others in its place.
        let change = match event {
            b"expired" => KeyChange::Gone(Happened::Expired),
            b"evicted" => KeyChange::Gone(Happened::Evicted),
            b"del" | b"rename_from" | b"move_from" | b"rename_to" | b"move_to" | b"restore" | b"copy_to" => {
                KeyChange::Gone(Happened::Deleted)
            }
            _ => KeyChange::Changed,
        };
        with(ctx, |driver| {
            // Nearly always: nobody waits, and the event costs no more than this.
            if driver.locks.ignores(change) {
                return;
            }
            if driver.locks.key_changed(LockRef { db: ctx.db(), key }, change, ctx.now()) {
                driver.schedule(ctx);
            }
        });
    }

    fn database(ctx: Ctx<'_>, db: Option<i32>) {
        reader_cache::forget_all(ctx);
        with(ctx, |driver| {
            driver.flush_unannounced = ctx.is_primary();
            driver.locks.database_changed(db);
            driver.schedule(ctx);
        });
    }
}

/// Listens to all that is only needed from the first lock on that is used: whoever uses none shall not pay for it.
pub(crate) fn subscribe(ctx: Ctx<'_>) {
    if SUBSCRIBED.get(ctx).replace(true) {
        return;
    }
    // What is read from now on, is a primary's.
    server_events::ignore_loading(ctx);
    subscribe_to_role(ctx);
    if !server_events::listen_to_keys::<KeyEvents>(ctx) {
        ctx.warn("redis-lock: the server refuses a subscription; locks that others free are handed on late");
    }
    subscribe_to_fields(ctx);
    // From now on nothing is said that nobody hears, as far as the server lets us know.
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

/// Listens to what strangers do to the fields of locks, once any lock has been used: owners are to be told of that.
pub(crate) fn subscribe_to_fields(ctx: Ctx<'_>) {
    let begins =
        config::events() && SUBSCRIBED.get(ctx).get() && !SUBSCRIBED_TO_FIELDS.get(ctx).replace(true);
    if begins && !server_events::listen_to_fields::<KeyEvents>(ctx) {
        ctx.warn("redis-lock: the server refuses a subscription; owners are told late of fields that others remove");
    }
}

/// Listens to changes of this server's role.
pub(crate) fn subscribe_to_role(ctx: Ctx<'_>) {
    if !server_events::listen_to_role(ctx, on_role_change) {
        ctx.warn("redis-lock: the server refuses a subscription; who waits hears nothing of a failover");
    }
}

/// The server forgets all subscriptions.
pub(crate) fn forget(ctx: Ctx<'_>) {
    server_events::forget(ctx);
    replica_messages::discard(ctx);
    SUBSCRIBED.get(ctx).set(false);
    SUBSCRIBED_TO_FIELDS.get(ctx).set(false);
}

/// This server has become the primary, or has ceased to be it.
fn on_role_change(ctx: Ctx<'_>, role: Role) {
    reader_cache::forget_all(ctx);
    with(ctx, |driver| {
        if role == Role::Primary {
            driver.promote(ctx);
            quarantine::on_promotion(ctx);
        } else {
            // Not every server ends the waits itself (Valkey 9 in a cluster does not), and some do before or after.
            driver.locks.demote();
            driver.deliver_decisions(ctx);
        }
        driver.schedule(ctx);
    });
}
