// SPDX-License-Identifier: MIT

//! Whether the module may be unloaded.
//!
//! A server keeps pointers to the commands of a module that it does not look for when it unloads that module: for the client
//! that called one last, for one that is queued in a transaction, for one that a pause holds back, and for one that was read
//! behind the unload. Following them afterwards has ended every server that we know.
//!
//! It cannot have any yet, and must not be refused, right after it has loaded the module: if it does not like the settings
//! that came with `MODULE LOADEX`, it unloads the module again, and Redis 7.2 and later end if that fails. And none matters
//! any more when it ends: Valkey 9 unloads all modules then.

use std::cell::Cell;
use std::ffi::c_void;

use redis_module::raw;

use crate::server::callback::ctx::enter;
use crate::server::events::subscription;
use crate::server::version::{self, server_version, Version};
use crate::server::{calls, Ctx, ServerCell};

/// From the first turn of the event loop after the load until the server ends.
static IN_USE: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// Servers before that one do not unload modules when they end.
const UNLOADS_AT_SHUTDOWN_SINCE: Version = Version::new(9, 0, 0);

/// To be called when the module is loaded. False if the server refuses.
pub(crate) fn watch_shutdown(ctx: Ctx<'_>) -> bool {
    unsafe extern "C" fn ends(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        _subevent: u64,
        _data: *mut c_void,
    ) {
        // SAFETY: the context is that of this callback.
        unsafe { enter(ctx, |ctx| IN_USE.get(ctx).set(false)) };
    }
    IN_USE.get(ctx).set(false);
    if version::is_redis() || server_version().is_none_or(|version| version < UNLOADS_AT_SHUTDOWN_SINCE) {
        return true;
    }
    subscription::listen(ctx, raw::REDISMODULE_EVENT_SHUTDOWN, Some(ends))
}

/// The server has called the module for something else than to load it.
pub(crate) fn mark_in_use(ctx: Ctx<'_>) {
    IN_USE.get(ctx).set(true);
}

/// True if the server may have pointers to the module's commands.
pub(crate) fn is_in_use(ctx: Ctx<'_>) -> bool {
    IN_USE.get(ctx).get()
}

/// True if an ACL rule names a command of the module, or the category of all. Redis 8.0 and 8.6 and Valkey 8.1 end when they unload a
/// module then.
pub(crate) fn is_named_by_acl(ctx: Ctx<'_>) -> bool {
    calls::acl_rules(ctx).iter().any(|rules| {
        let words = rules.split(|byte| *byte == b' ');
        words.into_iter().any(|word| {
            let word = word.to_ascii_lowercase();
            [&b"+lock."[..], b"-lock.", b"+@lock", b"-@lock", b"(+lock.", b"(-lock."]
                .iter()
                .any(|named| word.starts_with(named))
        })
    })
}
