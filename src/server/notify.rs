//! Whether anybody hears keyspace events.
//!
//! To raise one costs something even if nobody does: of whom has subscribed to what, the server looks up that this module
//! has. Two can hear of a key besides us: subscribers, if `notify-keyspace-events` says so, and other modules. The former
//! the server tells with every call. Of the latter there are no others than at the start, or it says so when one is loaded.

use std::cell::Cell;
use std::ffi::c_void;

use redis_module::raw;

use crate::server::ctx::{enter, reply_type};
use crate::server::load::{is_known, Version};
use crate::server::{events, Ctx, ServerCell};

static OTHERS: ServerCell<Cell<Others>> = ServerCell::new(Cell::new(Others::Possible));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    /// This is the only module.
    None,
    Possible,
    /// To be asked for.
    Unknown,
}

/// From now on no event is raised that nobody hears. Not on a server that is not known to tell of all who can.
pub(super) fn start(ctx: Ctx<'_>, server: Version) {
    unsafe extern "C" fn changed(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        _subevent: u64,
        _data: *mut c_void,
    ) {
        // SAFETY: the context is that of this callback.
        unsafe { enter(ctx, |ctx| OTHERS.get(ctx).set(Others::Unknown)) };
    }
    let fixed = ctx.setting(c"enable-module-command").is_some_and(|value| value == b"no");
    let change = raw::REDISMODULE_EVENT_MODULE_CHANGE;
    let told = is_known(server) && (fixed || events::listen(ctx, change, Some(changed)));
    OTHERS.get(ctx).set(if told { Others::Unknown } else { Others::Possible });
}

/// True if somebody may hear an event.
pub(super) fn is_there(ctx: Ctx<'_>) -> bool {
    let others = OTHERS.get(ctx);
    if others.get() == Others::Unknown {
        others.set(if is_only_module(ctx) { Others::None } else { Others::Possible });
    }
    // SAFETY: the function only reads a setting.
    others.get() != Others::None || unsafe { call!(RedisModule_GetNotifyKeyspaceEvents()) } != 0
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
