// SPDX-License-Identifier: MIT

//! The module at work in a server: the core, the clients that are blocked on its decisions, the connections that
//! holds depend on, and its one timer.
//!
//! How a decision reaches its client:
//!
//! 1. A command, the timer, or a look at a lock that has changed changes the core, writes the lock ([`commit()`]), and calls
//!    [`dispatch`]. That passes each decision to its waiter: the client is unblocked, and the timer is set for
//!    what comes next.
//! 2. In the same turn of the event loop the server lets [`clients::blocking`] answer the client, if it is still
//!    there, and tells us in any case that it is done.
//! 3. A client that is gone by then does not keep its grant, and neither does one that has hung up without the
//!    server having read so (the socket is asked). One that the server has decided to close may still look
//!    alive in step 2 and be freed right after, without getting the answer: so a grant is final only when the
//!    turn is over and its client was not freed so ([`clients::deliveries`]).
//!
//! Nothing is written from where the server tells us that a key was changed ([`subscriptions`]), as the replicas
//! would get our write before the change that led to it: the lock is marked as ready, and reconciled in a timer that
//! fires at once.

mod clients;
mod events;
pub(crate) mod info;
mod locks;
mod messages;
mod quarantine;
mod replicas;
mod state;
mod timer;

pub(crate) use clients::blocking::{block, block_until_acknowledged, reply_grant, reply_grants};
pub(crate) use locks::commit::commit;
pub(crate) use locks::deadlock::{blockers_of, deadlock_of, in_multi_lock_call, may_be_in_cycle};
pub(crate) use locks::reconcile::{grant_bundle, revoke_cancelled, serve_bundles};
pub(crate) use messages::inbox_publisher::{await_message, inbox};
pub(crate) use replicas::replica_waits::{AwaitedHold, HoldRef, ReplicaRequirement};
pub(crate) use state::{dispatch, queue_unseen, with, Remembered, WaitStart};

use crate::config;
use crate::core::{KeyChange, LockRef};
use crate::keyspace::reader_cache;
use crate::server::events::{server_events, turn_end};
use crate::server::keys::string;
use crate::server::registration::unloading;
use crate::server::replication::replicas as server_replicas;
use crate::server::Ctx;
use events::subscriptions::{self, KeyEvents};
use messages::{inbox_publisher, owner_events};
use replicas::completion;
use timer::on_timer;

/// Starts to listen to what external clients have to be told of, whether a lock was used here or not. False if the
/// server refuses.
pub(crate) fn start(ctx: Ctx<'_>) -> bool {
    with(ctx, |driver| {
        driver.alarm.set_callback(on_timer::on_timer);
        driver.replica_waits.set_callback(completion::on_turn_end);
        driver.inboxes.set_callback(inbox_publisher::on_turn_end);
    });
    owner_events::apply_setting(ctx);
    quarantine::on_load(ctx);
    let in_time = config::quarantine().is_none() || {
        subscriptions::subscribe_to_role(ctx);
        server_events::listen_to_loading(ctx, quarantine::on_data_loaded)
    };
    // The first tick says that the module has been loaded: see `unloading`.
    server_events::listen_to_cron(ctx, |ctx, ()| unloading::mark_in_use(ctx));
    unloading::watch_shutdown(ctx) && server_events::listen_to_databases::<KeyEvents>(ctx) && in_time
}

/// `CONFIG SET` has set what matters to operators.
pub(crate) fn on_settings_changed(ctx: Ctx<'_>, (): ()) {
    info::warn_about_eviction(ctx);
    if config::quarantine().is_some() {
        subscriptions::subscribe_to_role(ctx);
    }
    owner_events::apply_setting(ctx);
    // Who waits for the end of a quarantine may have to wait no more.
    with(ctx, |driver| {
        driver.update_quarantine(ctx.now());
        driver.schedule(ctx);
    });
}

/// Drops all state. The server unloads a module only when no client is blocked by it and it has no timer.
pub(crate) fn stop(ctx: Ctx<'_>) {
    state::drop_state(ctx);
    reader_cache::forget_all(ctx);
    turn_end::stop(ctx);
    string::forget_cached(ctx);
    server_replicas::forget_online(ctx);
    subscriptions::forget(ctx);
}

/// A command found something else than a lock: if somebody waits for it, that is looked at.
pub(crate) fn recheck_soon(ctx: Ctx<'_>, key: &[u8]) {
    with(ctx, |driver| {
        let at = LockRef { db: ctx.db(), key };
        if driver.locks.key_changed(at, KeyChange::Changed, ctx.now()) {
            driver.schedule(ctx);
        }
    });
}
