// SPDX-License-Identifier: MIT

//! Events about keys, databases, roles, loading, settings and connections.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void, CStr};

use redis_module::raw;

use crate::server::events::muted::is_muted;
use crate::server::events::subscription::{self, listen, notify, Listener};
use crate::server::events::{event_loop, selected_database};
use crate::server::keys::string;
use crate::server::replication::keyspace_events::{GENERIC, HASH};
use crate::server::replication::propagation;
use crate::server::{enter, Ctx, ServerCell, OK};

/// Receives keyspace events. The callbacks must not write to the keyspace: the write would be replicated before the
/// change that led to it.
pub(crate) trait KeyspaceEvents {
    /// A key of the selected database has changed.
    fn key(ctx: Ctx<'_>, event: &[u8], key: &[u8]);
    /// All keys of one database, or of all databases, may have gone or changed.
    fn database(ctx: Ctx<'_>, db: Option<i32>);
}

/// Subscribes to the key events that can free a lock. Returns false if the server refuses. This makes `DEL`
/// and similar commands slower, so call it when a lock is first used.
pub(crate) fn listen_to_keys<E: KeyspaceEvents>(ctx: Ctx<'_>) -> bool {
    // A subscription to all classes would slow down every SET.
    let classes = GENERIC | raw::REDISMODULE_NOTIFY_EXPIRED | raw::REDISMODULE_NOTIFY_EVICTED;
    listen_to_classes::<E>(ctx, classes)
}

/// Also subscribes to events of hash fields. Returns false if the server refuses. This makes every change of
/// a hash slower, and some servers cannot undo it.
pub(crate) fn listen_to_fields<E: KeyspaceEvents>(ctx: Ctx<'_>) -> bool {
    listen_to_classes::<E>(ctx, HASH)
}

fn listen_to_classes<E: KeyspaceEvents>(ctx: Ctx<'_>, classes: c_int) -> bool {
    unsafe extern "C" fn key<E: KeyspaceEvents>(
        ctx: *mut raw::RedisModuleCtx,
        _class: c_int,
        event: *const c_char,
        key: *mut raw::RedisModuleString,
    ) -> c_int {
        // SAFETY: the event and the key live until this callback returns.
        let (event, key) = unsafe { (CStr::from_ptr(event).to_bytes(), string::bytes(key)) };
        // SAFETY: the context belongs to this callback.
        unsafe {
            enter(ctx, |ctx| {
                if !is_muted(ctx) {
                    E::key(ctx, event, key);
                }
                selected_database::restore(ctx, event);
            })
        };
        OK
    }
    // SAFETY: the callback has the type that the server expects.
    unsafe { call!(RedisModule_SubscribeToKeyspaceEvents(ctx.as_ptr(), classes, Some(key::<E>))) == OK }
}

/// Subscribes to events of whole databases. False if the server refuses.
pub(crate) fn listen_to_databases<E: KeyspaceEvents>(ctx: Ctx<'_>) -> bool {
    unsafe extern "C" fn flush<E: KeyspaceEvents>(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        subevent: u64,
        data: *mut c_void,
    ) {
        // SAFETY: this is the data of a flush event.
        let info = unsafe { &*data.cast::<raw::RedisModuleFlushInfo>() };
        if subevent == raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
            let db = u32::try_from(info.dbnum).is_ok().then_some(info.dbnum);
            // SAFETY: the context belongs to this callback.
            unsafe { enter(ctx, |ctx| E::database(ctx, db)) };
        }
    }
    unsafe extern "C" fn swap<E: KeyspaceEvents>(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        _subevent: u64,
        data: *mut c_void,
    ) {
        // SAFETY: this is the data of a swap event.
        let info = unsafe { &*data.cast::<raw::RedisModuleSwapDbInfo>() };
        // SAFETY: the context belongs to this callback.
        unsafe {
            enter(ctx, |ctx| {
                E::database(ctx, Some(info.dbnum_first));
                E::database(ctx, Some(info.dbnum_second));
            })
        };
    }
    listen(ctx, raw::REDISMODULE_EVENT_FLUSHDB, Some(flush::<E>))
        && listen(ctx, raw::REDISMODULE_EVENT_SWAPDB, Some(swap::<E>))
}

/// The role of this server in replication.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Primary,
    Replica,
}

/// The type of the file that a server has loaded its data from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataSource {
    Aof,
    Other,
}

/// Calls `changed` whenever this server becomes the primary or a replica. False if the server refuses.
pub(crate) fn listen_to_role(ctx: Ctx<'_>, changed: fn(Ctx<'_>, Role)) -> bool {
    static CHANGED: Listener<Role> = ServerCell::new(Cell::new(None));
    unsafe extern "C" fn role(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        subevent: u64,
        _data: *mut c_void,
    ) {
        // SAFETY: the context belongs to this callback.
        unsafe {
            enter(ctx, propagation::invalidate_followers);
            let is_primary = subevent == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER;
            notify(&CHANGED, ctx, if is_primary { Role::Primary } else { Role::Replica });
        }
    }
    CHANGED.get(ctx).set(Some(changed));
    listen(ctx, raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, Some(role))
}

/// Calls `loaded` whenever this server has loaded its data from a file. False if the server refuses.
pub(crate) fn listen_to_loading(ctx: Ctx<'_>, loaded: fn(Ctx<'_>, DataSource)) -> bool {
    static LOADED: Listener<DataSource> = ServerCell::new(Cell::new(None));
    static SOURCE: ServerCell<Cell<DataSource>> = ServerCell::new(Cell::new(DataSource::Other));
    unsafe extern "C" fn loading(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        subevent: u64,
        _data: *mut c_void,
    ) {
        // SAFETY: the context belongs to this callback.
        unsafe {
            match subevent {
                raw::REDISMODULE_SUBEVENT_LOADING_ENDED => {
                    let source = enter(ctx, |ctx| SOURCE.get(ctx).get()).unwrap_or(DataSource::Other);
                    notify(&LOADED, ctx, source);
                }
                start => {
                    let is_aof = start == raw::REDISMODULE_SUBEVENT_LOADING_AOF_START;
                    let source = if is_aof { DataSource::Aof } else { DataSource::Other };
                    enter(ctx, |ctx| SOURCE.get(ctx).set(source));
                }
            }
        }
    }
    LOADED.get(ctx).set(Some(loaded));
    listen(ctx, raw::REDISMODULE_EVENT_LOADING, Some(loading))
}

/// Ends [`listen_to_loading`], because each subscription slows down every event. Must not be called inside an event,
/// like [`ignore_cron`].
pub(crate) fn ignore_loading(ctx: Ctx<'_>) {
    listen(ctx, raw::REDISMODULE_EVENT_LOADING, None);
}

/// Calls `changed` whenever `CONFIG SET` sets one of these settings, even to the same value. False if the server
/// refuses.
pub(crate) fn listen_to_settings(
    ctx: Ctx<'_>,
    names: &'static [&'static CStr],
    changed: fn(Ctx<'_>, ()),
) -> bool {
    static CHANGED: Listener<()> = ServerCell::new(Cell::new(None));
    static NAMES: ServerCell<Cell<&[&CStr]>> = ServerCell::new(Cell::new(&[]));
    unsafe extern "C" fn change(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        _subevent: u64,
        data: *mut c_void,
    ) {
        // SAFETY: this is the data of the event. Its array has as many C strings as it states.
        let names = unsafe {
            let change = &*data.cast::<raw::RedisModuleConfigChangeV1>();
            std::slice::from_raw_parts(change.config_names, change.num_changes as usize)
        };
        let is_watched = |name: &*const c_char| {
            // SAFETY: as above.
            let name = unsafe { CStr::from_ptr(*name) };
            let matches = |watched: &&CStr| watched.to_bytes().eq_ignore_ascii_case(name.to_bytes());
            // SAFETY: the context belongs to this callback.
            unsafe { enter(ctx, |ctx| NAMES.get(ctx).get().iter().any(matches)) == Some(true) }
        };
        if names.iter().any(is_watched) {
            // SAFETY: as above.
            unsafe { notify(&CHANGED, ctx, ()) };
        }
    }
    CHANGED.get(ctx).set(Some(changed));
    NAMES.get(ctx).set(names);
    listen(ctx, raw::REDISMODULE_EVENT_CONFIG, Some(change))
}

/// Calls `closed` with the id of every client whose connection ends. End it with [`ignore_clients`].
pub(crate) fn listen_to_clients(ctx: Ctx<'_>, closed: fn(Ctx<'_>, u64)) {
    static CLOSED: Listener<u64> = ServerCell::new(Cell::new(None));
    unsafe extern "C" fn change(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        subevent: u64,
        data: *mut c_void,
    ) {
        if subevent != raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
            return;
        }
        // SAFETY: this is the data of the event, in the requested version or a later one.
        let id = unsafe { (*data.cast::<raw::RedisModuleClientInfo>()).id };
        // SAFETY: the context belongs to this callback.
        unsafe { notify(&CLOSED, ctx, id) };
    }
    CLOSED.get(ctx).set(Some(closed));
    listen(ctx, raw::REDISMODULE_EVENT_CLIENT_CHANGE, Some(change));
}

/// Ends [`listen_to_clients`]. Must not be called inside an event, like [`ignore_wakeups`](event_loop::ignore_wakeups).
pub(crate) fn ignore_clients(ctx: Ctx<'_>) {
    listen(ctx, raw::REDISMODULE_EVENT_CLIENT_CHANGE, None);
}

/// Calls `tick` about ten times per second, independently of the wall clock. End it with [`ignore_cron`].
pub(crate) fn listen_to_cron(ctx: Ctx<'_>, tick: fn(Ctx<'_>, ())) {
    static TICK: Listener<()> = ServerCell::new(Cell::new(None));
    unsafe extern "C" fn cron(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        _subevent: u64,
        _data: *mut c_void,
    ) {
        // SAFETY: the context belongs to this callback.
        unsafe { notify(&TICK, ctx, ()) };
    }
    TICK.get(ctx).set(Some(tick));
    listen(ctx, raw::REDISMODULE_EVENT_CRON_LOOP, Some(cron));
}

/// Ends [`listen_to_cron`]. Must not be called inside an event, like [`ignore_wakeups`](event_loop::ignore_wakeups).
pub(crate) fn ignore_cron(ctx: Ctx<'_>) {
    listen(ctx, raw::REDISMODULE_EVENT_CRON_LOOP, None);
}

/// Forgets all subscriptions when the module is unloaded.
pub(crate) fn forget(ctx: Ctx<'_>) {
    subscription::forget(ctx);
    event_loop::forget(ctx);
}
