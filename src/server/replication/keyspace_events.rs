// SPDX-License-Identifier: MIT

//! Whether keyspace events have receivers.
//!
//! Raising an event has a cost even without receivers, because the server looks up this module's
//! subscriptions. An event can have two kinds of other receivers. Subscribers need `notify-keyspace-events`,
//! which every call can query. Other modules were loaded at the start, or the server reports them when they
//! are loaded. The modules that are parts of newer servers receive no events.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use redis_module::raw;

use crate::server::callback::ctx::enter;
use crate::server::calls;
use crate::server::events::subscription;
use crate::server::version::{self, is_known_version, Version};
use crate::server::{Ctx, ServerCell, Str};

/// Class of events that can free a lock: `del`, `rename_from`, `expire` and so on.
pub(crate) const GENERIC: c_int = raw::REDISMODULE_NOTIFY_GENERIC;
/// Class of `hset` and so on; raised, and only subscribed to with `lock.events`.
pub(crate) const HASH: c_int = raw::REDISMODULE_NOTIFY_HASH;
/// Class of `set` and so on; raised, but never subscribed to.
pub(crate) const STRING: c_int = raw::REDISMODULE_NOTIFY_STRING;

static OTHER_MODULES: ServerCell<Cell<OtherModules>> = ServerCell::new(Cell::new(OtherModules::Possible));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OtherModules {
    /// No other module can receive events.
    None,
    Possible,
    /// The server has to be queried.
    Unknown,
}

/// From now on, events without receivers are not raised. Has no effect if the server is not known to report
/// all receivers.
pub(crate) fn skip_unreceived(ctx: Ctx<'_>, server: Version) {
    unsafe extern "C" fn changed(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        _subevent: u64,
        _data: *mut c_void,
    ) {
        // SAFETY: the context belongs to this callback.
        unsafe { enter(ctx, |ctx| OTHER_MODULES.get(ctx).set(OtherModules::Unknown)) };
    }
    let fixed = calls::setting(ctx, c"enable-module-command").is_some_and(|value| value == b"no");
    let change = raw::REDISMODULE_EVENT_MODULE_CHANGE;
    let is_reported = is_known_version(server) && (fixed || subscription::listen(ctx, change, Some(changed)));
    OTHER_MODULES.get(ctx).set(if is_reported { OtherModules::Unknown } else { OtherModules::Possible });
}

/// True if an event may have a receiver.
pub(in crate::server) fn has_receivers(ctx: Ctx<'_>) -> bool {
    let other_modules = OTHER_MODULES.get(ctx);
    if other_modules.get() == OtherModules::Unknown {
        other_modules.set(if has_only_built_in_modules(ctx) {
            OtherModules::None
        } else {
            OtherModules::Possible
        });
    }
    // SAFETY: the function only reads a setting.
    other_modules.get() != OtherModules::None || unsafe { call!(RedisModule_GetNotifyKeyspaceEvents()) } != 0
}

/// The module that is a part of this server: vector sets in Redis 8, and the scripting engine in Valkey 9.1. By their
/// sources, they subscribe to no keyspace events.
fn built_in_module() -> Option<&'static [u8]> {
    let (since, name) = match version::is_redis() {
        true => (Version::new(8, 0, 0), b"vectorset".as_slice()),
        false => (Version::new(9, 1, 0), b"lua".as_slice()),
    };
    version::server_version().filter(|version| *version >= since).map(|_| name)
}

/// Whether every module other than this one is built in.
fn has_only_built_in_modules(ctx: Ctx<'_>) -> bool {
    let built_in = built_in_module();
    let modules = calls::modules(ctx);
    modules.iter().any(|name| name == b"lock")
        && modules.iter().all(|name| name == b"lock" || Some(&name[..]) == built_in)
}

/// Reports to `WATCH` and client-side caches that the key has changed.
pub(crate) fn signal_modified(ctx: Ctx<'_>, key: &Str<'_>) {
    // SAFETY: the context and the key outlive the call.
    unsafe { call!(RedisModule_SignalModifiedKey(ctx.as_ptr(), key.as_ptr())) };
}
