// SPDX-License-Identifier: MIT

//! Connects the core with the server: blocked clients, connections that holds depend on, events and the timer.
//!
//! How a decision reaches its client:
//!
//! 1. A command, the timer, or the reread of a changed lock passes an input to the core, writes the lock
//!    ([`commit()`]), and calls [`dispatch`]. This delivers each decision to its waiter: the client is unblocked, and
//!    the timer is set for the next deadline.
//! 2. In the same iteration of the event loop, the server calls [`clients::blocking`] to reply to the client
//!    if it is still connected. In any case, the server then reports that it is done with the client.
//! 3. A client that has disconnected by then does not keep its grant, even if the server has not noticed the disconnect
//!    (the socket is checked). A client that the server has decided to close may still look alive in step 2 and be
//!    freed right after, without its reply. So a grant is final only when that iteration is over and its client was not
//!    freed in that way ([`clients::deliveries`]).
//!
//! Nothing is written inside a keyspace event ([`subscriptions`]). Otherwise, the replicas would get the
//! write before the change that led to it. Instead, the lock is marked as ready, and a timer that fires at
//! once reconciles it.

mod clients;
mod events;
pub(crate) mod info;
mod locks;
mod quarantine;
mod replicas;
mod state;
mod timer;

pub(crate) use clients::blocking::{block, block_until_acknowledged, reply_grant, reply_grants};
pub(crate) use clients::sessions::{
    answer_poll, open_session, random_session_id, session, user_of, PollAnswer,
};
pub(crate) use locks::commit::commit;
pub(crate) use locks::deadlock::{blockers_of, find_deadlock, in_multi_lock_call, may_be_in_cycle};
pub(crate) use locks::reconcile::{grant_bundle, revoke_cancelled, serve_bundles};
pub(crate) use locks::remembered::{queue_unseen, Remembered};
pub(crate) use replicas::completion::await_replicas_of_session;
pub(crate) use replicas::replica_waits::{AwaitedHold, HoldRef, ReplicaRequirement};
pub(crate) use state::{dispatch, with, Driver, WaitStart};

use crate::config;
use crate::core::{KeyChange, LockRef};
use crate::keyspace::reader_cache;
use crate::server::events::{iteration_end, server_events};
use crate::server::keys::string;
use crate::server::registration::unloading;
use crate::server::replication::replicas as server_replicas;
use crate::server::{version, Ctx};
use events::owner_events;
use events::subscriptions::{self, KeyEvents};
use replicas::completion;
use timer::on_timer;

/// Subscribes to the events that external clients are notified of, even before a lock is first used. Returns
/// false if the server refuses.
pub(crate) fn start(ctx: Ctx<'_>) -> bool {
    with(ctx, |driver| {
        driver.set_log_limits();
        driver.alarm.set_callback(on_timer::on_timer);
        driver.replica_waits.set_callback(completion::on_iteration_end);
    });
    owner_events::apply_setting(ctx);
    apply_waiter_limit(ctx);
    quarantine::on_load(ctx);
    let in_time = config::quarantine().is_none() || {
        subscriptions::subscribe_to_role(ctx);
        server_events::listen_to_loading(ctx, quarantine::on_data_loaded)
    };
    // The first tick shows that loading is complete; see `unloading`.
    server_events::listen_to_cron(ctx, |ctx, ()| unloading::mark_in_use(ctx));
    unloading::watch_shutdown(ctx) && server_events::listen_to_databases::<KeyEvents>(ctx) && in_time
}

/// Applies settings that `CONFIG SET` has changed.
pub(crate) fn on_settings_changed(ctx: Ctx<'_>, (): ()) {
    info::warn_about_eviction(ctx);
    if config::quarantine().is_some() {
        subscriptions::subscribe_to_role(ctx);
    }
    owner_events::apply_setting(ctx);
    apply_waiter_limit(ctx);
    // For waiters, the quarantine may have ended.
    with(ctx, |driver| {
        driver.set_log_limits();
        driver.update_quarantine(ctx.now());
        driver.schedule(ctx);
    });
}

/// Limits the number of waiting clients, so that they leave connections for holders and operators.
fn apply_waiter_limit(ctx: Ctx<'_>) {
    let max_clients = version::server_field(c"clients", c"maxclients");
    let max_clients = max_clients.and_then(|text| String::from_utf8(text).ok()?.parse().ok());
    with(ctx, |driver| driver.blocked.set_limit(config::max_waiters_total(max_clients)));
}

/// Drops all state. The server unloads a module only if the module blocks no client and has no timer.
pub(crate) fn stop(ctx: Ctx<'_>) {
    state::drop_state(ctx);
    reader_cache::invalidate_all(ctx);
    iteration_end::stop(ctx);
    string::forget_cached(ctx);
    server_replicas::forget_online(ctx);
    subscriptions::forget(ctx);
}

/// Rereads a key soon if it has waiters. Called when a command has found a value that is not a lock.
pub(crate) fn recheck_soon(ctx: Ctx<'_>, key: &[u8]) {
    with(ctx, |driver| {
        let at = LockRef { db: ctx.db(), key };
        if driver.locks.key_changed(at, KeyChange::Changed, ctx.now()) {
            driver.schedule(ctx);
        }
    });
}
