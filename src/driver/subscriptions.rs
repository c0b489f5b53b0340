// SPDX-License-Identifier: MIT

//! What the server tells us about keys, databases and its role, and from when on.

use std::cell::Cell;

use super::quarantine;
use super::state::with;
use crate::config;
use crate::core::{HoldEvent, KeyChange, LockRef};
use crate::keyspace::kept;
use crate::server::events::{self, KeyspaceEvents};
use crate::server::{messages, notify, propagation, version, Ctx, ServerCell};

/// A lock has been used: see [`listen`].
static LISTENS: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// The fields of hashes are listened to.
static HEARS_FIELDS: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// What the server tells about keys.
pub(super) struct KeyEvents;

impl KeyspaceEvents for KeyEvents {
    fn key(ctx: Ctx<'_>, event: &[u8], key: &[u8]) {
        kept::forget(ctx, key);
        // Those that end every hold that there was on the key, also by putting others in its place.
        let change = match event {
            b"expired" => KeyChange::Gone(HoldEvent::Expired),
            b"evicted" => KeyChange::Gone(HoldEvent::Evicted),
            b"del" | b"rename_from" | b"move_from" | b"rename_to" | b"move_to" | b"restore" | b"copy_to" => {
                KeyChange::Gone(HoldEvent::Deleted)
            }
            _ => KeyChange::Changed,
        };
        with(ctx, |driver| {
            // Nearly always: nobody waits, and the event costs no more than this.
            if driver.locks.ignores_change(change) {
                return;
            }
            if driver.locks.key_changed(LockRef { db: ctx.db(), key }, change, ctx.now()) {
                driver.plan(ctx);
            }
        });
    }

    fn database(ctx: Ctx<'_>, db: Option<i32>) {
        kept::forget_all(ctx);
        with(ctx, |driver| {
            driver.flushed = ctx.is_primary();
            driver.locks.database_changed(db);
            driver.plan(ctx);
        });
    }
}

/// Listens to all that is only needed from the first lock on that is used: whoever uses none shall not pay for it.
pub(super) fn listen(ctx: Ctx<'_>) {
    if LISTENS.get(ctx).replace(true) {
        return;
    }
    // What is read from now on, is a primary's.
    events::ignore_loading(ctx);
    listen_to_role(ctx);
    if !events::listen_to_keys::<KeyEvents>(ctx) {
        ctx.warn("redis-lock: the server refuses a subscription; locks that others free are handed on late");
    }
    listen_to_fields(ctx);
    // From now on nothing is said that nobody hears, as far as the server lets us know.
    if let Some(server) = version::server_version() {
        notify::start(ctx, server);
        propagation::start(ctx, server);
    }
    crate::server::unloading::begin(ctx);
    with(ctx, |driver| {
        driver.in_cluster = ctx.is_cluster();
        if driver.in_cluster {
            driver.locks.forget_holds();
        }
        if !driver.alarm.is_watched() {
            events::ignore_cron(ctx);
        }
    });
}

/// Listens to what strangers do to the fields of locks, once any lock has been used: owners are to be told of that.
pub(super) fn listen_to_fields(ctx: Ctx<'_>) {
    let begins = config::events() && LISTENS.get(ctx).get() && !HEARS_FIELDS.get(ctx).replace(true);
    if begins && !events::listen_to_fields::<KeyEvents>(ctx) {
        ctx.warn("redis-lock: the server refuses a subscription; owners are told late of fields that others remove");
    }
}

/// Listens to changes of this server's role.
pub(super) fn listen_to_role(ctx: Ctx<'_>) {
    if !events::listen_to_role(ctx, role_changed) {
        ctx.warn("redis-lock: the server refuses a subscription; who waits hears nothing of a failover");
    }
}

/// The server forgets all subscriptions.
pub(super) fn forget(ctx: Ctx<'_>) {
    events::forget(ctx);
    messages::stop(ctx);
    LISTENS.get(ctx).set(false);
    HEARS_FIELDS.get(ctx).set(false);
}

/// This server has become the primary, or has ceased to be it.
fn role_changed(ctx: Ctx<'_>, primary: bool) {
    kept::forget_all(ctx);
    with(ctx, |driver| {
        if primary {
            driver.promote(ctx);
            quarantine::promoted(ctx);
        } else {
            // Not every server ends the waits itself (Valkey 9 in a cluster does not), and some do before or after.
            driver.locks.demote();
            driver.pass_on_decisions(ctx);
        }
        driver.plan(ctx);
    });
}
