//! What the server tells about keys, databases and its event loop.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void, CStr};

use redis_module::raw;

use crate::server::muted::is_muted;
use crate::server::{enter, propagation, selected_database, string, Ctx, ServerCell, OK};

/// Classes of keyspace events that a lock can become free by. `GENERIC` has `del`, `rename_from`, `expire` and the like.
pub(crate) const GENERIC: c_int = raw::REDISMODULE_NOTIFY_GENERIC;
/// `hset` and the like: raised, never listened to.
pub(crate) const HASH: c_int = raw::REDISMODULE_NOTIFY_HASH;
/// `set` and the like: the same.
pub(crate) const STRING: c_int = raw::REDISMODULE_NOTIFY_STRING;

/// Receives what happens in the keyspace. Nothing may be written to it from here: the stream would get our
/// write before the change that led to it.
pub(crate) trait KeyspaceEvents {
    /// A key of the selected database was touched by somebody.
    fn key(ctx: Ctx<'_>, event: &[u8], key: &[u8]);
    /// All keys of one database, or of all, may have gone or changed.
    fn database(ctx: Ctx<'_>, db: Option<i32>);
}

/// Subscribes to the events of keys by which a lock can become free. False if the server refuses. To be done when the first
/// lock is used: from then on each `DEL` and the like costs the server something.
pub(crate) fn listen_to_keys<E: KeyspaceEvents>(ctx: Ctx<'_>) -> bool {
    unsafe extern "C" fn key<E: KeyspaceEvents>(
        ctx: *mut raw::RedisModuleCtx,
        _class: c_int,
        event: *const c_char,
        key: *mut raw::RedisModuleString,
    ) -> c_int {
        // SAFETY: event and key live until this callback returns.
        let (event, key) = unsafe { (CStr::from_ptr(event).to_bytes(), string::bytes(key)) };
        // SAFETY: the context is that of this callback.
        unsafe {
            enter(ctx, |ctx| {
                if !is_muted(ctx) {
                    E::key(ctx, event, key);
                }
                selected_database::give_back(ctx, event);
            })
        };
        OK
    }
    // Not all classes: a handler for all of them costs every SET.
    let classes = GENERIC | raw::REDISMODULE_NOTIFY_EXPIRED | raw::REDISMODULE_NOTIFY_EVICTED;
    // SAFETY: the callback has the type that the server calls it with.
    unsafe { call!(RedisModule_SubscribeToKeyspaceEvents(ctx.as_ptr(), classes, Some(key::<E>))) == OK }
}

/// Subscribes to what happens to whole databases. False if the server refuses.
pub(crate) fn listen_to_databases<E: KeyspaceEvents>(ctx: Ctx<'_>) -> bool {
    unsafe extern "C" fn flush<E: KeyspaceEvents>(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        subevent: u64,
        data: *mut c_void,
    ) {
        // SAFETY: the data of a flush event is this structure.
        let info = unsafe { &*data.cast::<raw::RedisModuleFlushInfo>() };
        if subevent == raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
            let db = u32::try_from(info.dbnum).is_ok().then_some(info.dbnum);
            // SAFETY: the context is that of this callback.
            unsafe { enter(ctx, |ctx| E::database(ctx, db)) };
        }
    }
    unsafe extern "C" fn swap<E: KeyspaceEvents>(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        _subevent: u64,
        data: *mut c_void,
    ) {
        // SAFETY: the data of a swap event is this structure.
        let info = unsafe { &*data.cast::<raw::RedisModuleSwapDbInfo>() };
        // SAFETY: the context is that of this callback.
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

/// Whom an event is told to.
type Listener<T> = ServerCell<Cell<Option<fn(Ctx<'_>, T)>>>;

/// Tells it, if there is anybody.
///
/// # Safety
/// As [`enter`].
unsafe fn tell<T>(listener: &Listener<T>, ctx: *mut raw::RedisModuleCtx, what: T) {
    let told = |ctx: Ctx<'_>| {
        if let Some(listener) = listener.get(ctx).get() {
            listener(ctx, what);
        }
    };
    // SAFETY: the caller's promise.
    unsafe { enter(ctx, told) };
}

/// Calls `changed` whenever this server becomes the primary (true) or a replica. False if the server refuses.
pub(crate) fn listen_to_role(ctx: Ctx<'_>, changed: fn(Ctx<'_>, bool)) -> bool {
    static CHANGED: Listener<bool> = ServerCell::new(Cell::new(None));
    unsafe extern "C" fn role(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        subevent: u64,
        _data: *mut c_void,
    ) {
        // SAFETY: the context is that of this callback.
        unsafe {
            enter(ctx, propagation::look_again);
            tell(&CHANGED, ctx, subevent == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER);
        }
    }
    CHANGED.get(ctx).set(Some(changed));
    listen(ctx, raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, Some(role))
}

/// Calls `changed` whenever `CONFIG SET` has set one of these, also to what it was. False if the server refuses.
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
        // SAFETY: the data of this event is this structure, whose list has as many C strings as it says.
        let names = unsafe {
            let change = &*data.cast::<raw::RedisModuleConfigChangeV1>();
            std::slice::from_raw_parts(change.config_names, change.num_changes as usize)
        };
        let is_wanted = |name: &*const c_char| {
            // SAFETY: as above.
            let name = unsafe { CStr::from_ptr(*name) };
            let is_it = |wanted: &&CStr| wanted.to_bytes().eq_ignore_ascii_case(name.to_bytes());
            // SAFETY: the context is that of this callback.
            unsafe { enter(ctx, |ctx| NAMES.get(ctx).get().iter().any(is_it)) == Some(true) }
        };
        if names.iter().any(is_wanted) {
            // SAFETY: as above.
            unsafe { tell(&CHANGED, ctx, ()) };
        }
    }
    CHANGED.get(ctx).set(Some(changed));
    NAMES.get(ctx).set(names);
    listen(ctx, raw::REDISMODULE_EVENT_CONFIG, Some(change))
}

/// Calls `closed` with the id of every client whose connection ends. Ends with [`ignore_clients`].
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
        // SAFETY: the data of this event is this structure, of the version that was asked for or later.
        let id = unsafe { (*data.cast::<raw::RedisModuleClientInfo>()).id };
        // SAFETY: the context is that of this callback.
        unsafe { tell(&CLOSED, ctx, id) };
    }
    CLOSED.get(ctx).set(Some(closed));
    listen(ctx, raw::REDISMODULE_EVENT_CLIENT_CHANGE, Some(change));
}

/// Ends [`listen_to_clients`]. Not from inside an event, as [`ignore_wakeups`].
pub(crate) fn ignore_clients(ctx: Ctx<'_>) {
    listen(ctx, raw::REDISMODULE_EVENT_CLIENT_CHANGE, None);
}

/// Who listens to the event loop, which is one subscription.
static AWAKE: Listener<()> = ServerCell::new(Cell::new(None));
static TURN_ENDS: Listener<()> = ServerCell::new(Cell::new(None));

/// Calls `awake` whenever the event loop has waited for input, before it reads any. Ends with
/// [`ignore_wakeups`], as it costs every turn of the loop.
pub(crate) fn listen_to_wakeups(ctx: Ctx<'_>, awake: fn(Ctx<'_>, ())) {
    AWAKE.get(ctx).set(Some(awake));
    listen_to_loop(ctx);
}

/// Ends [`listen_to_wakeups`]. Not from inside `awake`: the server uses the subscription after the call.
pub(crate) fn ignore_wakeups(ctx: Ctx<'_>) {
    AWAKE.get(ctx).set(None);
    listen_to_loop(ctx);
}

/// Calls `ends` whenever the event loop has carried out what it has read, before it writes to clients and replicas. Ends with
/// [`ignore_turns`], as it costs every turn of the loop.
pub(super) fn listen_to_turns(ctx: Ctx<'_>, ends: fn(Ctx<'_>, ())) {
    TURN_ENDS.get(ctx).set(Some(ends));
    listen_to_loop(ctx);
}

/// Ends [`listen_to_turns`]. Not from inside an event, as [`ignore_wakeups`].
pub(super) fn ignore_turns(ctx: Ctx<'_>) {
    TURN_ENDS.get(ctx).set(None);
    listen_to_loop(ctx);
}

/// Subscribes to the event loop if anybody listens to it, else ends that.
fn listen_to_loop(ctx: Ctx<'_>) {
    unsafe extern "C" fn turn(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        subevent: u64,
        _data: *mut c_void,
    ) {
        let listener = match subevent {
            raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP => &TURN_ENDS,
            raw::REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP => &AWAKE,
            _ => return,
        };
        // SAFETY: the context is that of this callback.
        unsafe { tell(listener, ctx, ()) };
    }
    let anybody = AWAKE.get(ctx).get().is_some() || TURN_ENDS.get(ctx).get().is_some();
    let callback: raw::RedisModuleEventCallback = if anybody { Some(turn) } else { None };
    listen(ctx, raw::REDISMODULE_EVENT_EVENTLOOP, callback);
}

/// Calls `tick` about ten times a second, whatever the wall clock does. Ends with [`ignore_cron`].
pub(crate) fn listen_to_cron(ctx: Ctx<'_>, tick: fn(Ctx<'_>, ())) {
    static TICK: Listener<()> = ServerCell::new(Cell::new(None));
    unsafe extern "C" fn cron(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        _subevent: u64,
        _data: *mut c_void,
    ) {
        // SAFETY: the context is that of this callback.
        unsafe { tell(&TICK, ctx, ()) };
    }
    TICK.get(ctx).set(Some(tick));
    listen(ctx, raw::REDISMODULE_EVENT_CRON_LOOP, Some(cron));
}

/// Ends [`listen_to_cron`]. Not from inside an event, as [`ignore_wakeups`].
pub(crate) fn ignore_cron(ctx: Ctx<'_>) {
    listen(ctx, raw::REDISMODULE_EVENT_CRON_LOOP, None);
}

/// Ends the event loop's wait for input, if it is about to begin one. Redis 7.0 works out how long to wait before the
/// last callbacks of a turn, and does not see a timer that is set in them.
pub(crate) fn wake_up(_in_callback: Ctx<'_>) {
    // A function of libc: the call comes later, when the module may have been unloaded.
    // SAFETY: to free null is allowed, and does nothing.
    unsafe { call!(RedisModule_EventLoopAddOneShot(Some(libc::free), std::ptr::null_mut())) };
}

/// Which events are listened to, a bit each: to end what was not begun is taken for a listener without a function, which
/// ends the server.
static LISTENED: ServerCell<Cell<u64>> = ServerCell::new(Cell::new(0));

/// The server has forgotten all subscriptions, or will.
pub(super) fn forget(ctx: Ctx<'_>) {
    LISTENED.get(ctx).set(0);
    AWAKE.get(ctx).set(None);
    TURN_ENDS.get(ctx).set(None);
}

/// Begins to listen to an event, or goes on with another function; `None` ends it, if it was begun.
pub(super) fn listen(ctx: Ctx<'_>, id: u64, callback: raw::RedisModuleEventCallback) -> bool {
    let (listened, bit) = (LISTENED.get(ctx), 1 << id);
    if callback.is_none() && listened.get() & bit == 0 {
        return true;
    }
    let accepted = subscribe(ctx, id, callback);
    if callback.is_none() {
        listened.set(listened.get() & !bit);
    } else if accepted {
        listened.set(listened.get() | bit);
    }
    accepted
}

fn subscribe(ctx: Ctx<'_>, id: u64, callback: raw::RedisModuleEventCallback) -> bool {
    let event = raw::RedisModuleEvent { id, dataver: 1 };
    // SAFETY: the callback has the type that the server calls it with; none ends the subscription.
    unsafe { call!(RedisModule_SubscribeToServerEvent(ctx.as_ptr(), event, callback)) == OK }
}
