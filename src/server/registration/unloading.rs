// SPDX-License-Identifier: MIT

//! Whether the module may be unloaded.
//!
//! A server keeps pointers to a module's commands, and does not check them when it unloads the module. The
//! client that called a command last has one. So have commands that are queued in a transaction, held back by
//! a pause, or read together with the unload but after it. Every known server crashes if it follows such a
//! pointer later.
//!
//! Right after the load, the server cannot have such pointers, and the module must not refuse to be unloaded.
//! If the server rejects the settings of `MODULE LOADEX`, it unloads the module again. Redis 7.2 and later
//! crash if that fails. At shutdown, the pointers no longer matter: Valkey 9 unloads all modules then.

use std::cell::Cell;
use std::ffi::c_void;

use redis_module::raw;

use crate::server::callback::ctx::enter;
use crate::server::events::subscription;
use crate::server::version::{self, server_version, Version};
use crate::server::{calls, Ctx, ServerCell};

/// True from the first iteration of the event loop after the load until the shutdown.
static IN_USE: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// First Valkey that unloads modules at shutdown.
const UNLOADS_AT_SHUTDOWN_SINCE: Version = Version::new(9, 0, 0);

/// Subscribes to the shutdown. Call it when the module is loaded. False if the server refuses.
pub(crate) fn watch_shutdown(ctx: Ctx<'_>) -> bool {
    unsafe extern "C" fn on_shutdown(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        _subevent: u64,
        _data: *mut c_void,
    ) {
        // SAFETY: the context belongs to this callback.
        unsafe { enter(ctx, |ctx| IN_USE.get(ctx).set(false)) };
    }
    IN_USE.get(ctx).set(false);
    if version::is_redis() || server_version().is_none_or(|version| version < UNLOADS_AT_SHUTDOWN_SINCE) {
        return true;
    }
    subscription::listen(ctx, raw::REDISMODULE_EVENT_SHUTDOWN, Some(on_shutdown))
}

/// Records that the server has called the module for a purpose other than loading it.
pub(crate) fn mark_in_use(ctx: Ctx<'_>) {
    IN_USE.get(ctx).set(true);
}

/// True if the server may have pointers to the module's commands.
pub(crate) fn is_in_use(ctx: Ctx<'_>) -> bool {
    IN_USE.get(ctx).get()
}

/// True if an ACL rule names a command of the module or its category. Redis 8.0, Redis 8.6 and Valkey 8.1 crash if they
/// then unload a module.
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
