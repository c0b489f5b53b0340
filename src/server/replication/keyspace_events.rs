// SPDX-License-Identifier: MIT

//! Whether anybody gets keyspace events.
//!
//! To raise one costs something even if nobody does: of whom has subscribed to what, the server looks up that this module
//! has. Two can get a key's events besides us: subscribers, if `notify-keyspace-events` says so, and other modules. Of the
//! former the server informs with every call. Of the latter there are no others than at the start, or it says so when one is
//! loaded.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use redis_module::raw;

use crate::server::callback::ctx::enter;
use crate::server::calls::{self, reply_type};
use crate::server::events::subscription;
use crate::server::version::{is_known_version, Version};
use crate::server::{Ctx, ServerCell, Str};

/// Classes of keyspace events that a lock can become free by. `GENERIC` has `del`, `rename_from`, `expire` and the like.
pub(crate) const GENERIC: c_int = raw::REDISMODULE_NOTIFY_GENERIC;
/// `hset` and the like: raised, never listened to.
pub(crate) const HASH: c_int = raw::REDISMODULE_NOTIFY_HASH;
/// `set` and the like: the same.
pub(crate) const STRING: c_int = raw::REDISMODULE_NOTIFY_STRING;

static OTHER_MODULES: ServerCell<Cell<OtherModules>> = ServerCell::new(Cell::new(OtherModules::Possible));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OtherModules {
    /// This is the only module.
    None,
    Possible,
    /// To be asked for.
    Unknown,
}

/// From now on no event is raised that nobody gets. Not on a server that is not known to report all who can.
pub(crate) fn skip_unreceived(ctx: Ctx<'_>, server: Version) {
    unsafe extern "C" fn changed(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        _subevent: u64,
        _data: *mut c_void,
    ) {
        // SAFETY: the context is that of this callback.
        unsafe { enter(ctx, |ctx| OTHER_MODULES.get(ctx).set(OtherModules::Unknown)) };
    }
    let fixed = calls::setting(ctx, c"enable-module-command").is_some_and(|value| value == b"no");
    let change = raw::REDISMODULE_EVENT_MODULE_CHANGE;
    let is_reported = is_known_version(server) && (fixed || subscription::listen(ctx, change, Some(changed)));
    OTHER_MODULES.get(ctx).set(if is_reported { OtherModules::Unknown } else { OtherModules::Possible });
}

/// True if somebody may get an event.
pub(in crate::server) fn has_receivers(ctx: Ctx<'_>) -> bool {
    let other_modules = OTHER_MODULES.get(ctx);
    if other_modules.get() == OtherModules::Unknown {
        other_modules.set(if is_only_module(ctx) { OtherModules::None } else { OtherModules::Possible });
    }
    // SAFETY: the function only reads a setting.
    other_modules.get() != OtherModules::None || unsafe { call!(RedisModule_GetNotifyKeyspaceEvents()) } != 0
}

fn is_only_module(ctx: Ctx<'_>) -> bool {
    // SAFETY: "c" takes a C string. The reply is null or the server's.
    unsafe {
        let reply =
            call!(RedisModule_Call(ctx.as_ptr(), c"MODULE".as_ptr(), c"c".as_ptr(), c"LIST".as_ptr()));
        if reply.is_null() {
            return false;
        }
        let is_array = call!(RedisModule_CallReplyType(reply)) == reply_type(raw::REDISMODULE_REPLY_ARRAY);
        let alone = is_array && call!(RedisModule_CallReplyLength(reply)) == 1;
        call!(RedisModule_FreeCallReply(reply));
        alone
    }
}

/// Tells `WATCH` and client-side caches that the key has changed.
pub(crate) fn signal_modified(ctx: Ctx<'_>, key: &Str<'_>) {
    // SAFETY: context and key outlive the call.
    unsafe { call!(RedisModule_SignalModifiedKey(ctx.as_ptr(), key.as_ptr())) };
}
