// SPDX-License-Identifier: MIT

//! Subscriptions to events of the server.

use std::cell::Cell;

use redis_module::raw;

use crate::server::{enter, Ctx, ServerCell, OK};

/// Who gets an event.
pub(crate) type Listener<T> = ServerCell<Cell<Option<fn(Ctx<'_>, T)>>>;

/// Tells it, if there is anybody.
///
/// # Safety
/// As [`enter`].
pub(in crate::server) unsafe fn notify<T>(listener: &Listener<T>, ctx: *mut raw::RedisModuleCtx, what: T) {
    let call = |ctx: Ctx<'_>| {
        if let Some(listener) = listener.get(ctx).get() {
            listener(ctx, what);
        }
    };
    // SAFETY: the caller's promise.
    unsafe { enter(ctx, call) };
}

/// Which events are listened to, a bit each: to end what was not begun is taken for a listener without a function, which
/// ends the server.
static SUBSCRIBED: ServerCell<Cell<u64>> = ServerCell::new(Cell::new(0));

/// The server has forgotten all subscriptions, or will.
pub(in crate::server) fn forget(ctx: Ctx<'_>) {
    SUBSCRIBED.get(ctx).set(0);
}

/// Begins to listen to an event, or goes on with another function; `None` ends it, if it was begun.
pub(in crate::server) fn listen(ctx: Ctx<'_>, id: u64, callback: raw::RedisModuleEventCallback) -> bool {
    let (listened, bit) = (SUBSCRIBED.get(ctx), 1 << id);
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

/// True if this event is listened to.
pub(in crate::server) fn is_subscribed(ctx: Ctx<'_>, id: u64) -> bool {
    SUBSCRIBED.get(ctx).get() & (1 << id) != 0
}

fn subscribe(ctx: Ctx<'_>, id: u64, callback: raw::RedisModuleEventCallback) -> bool {
    let event = raw::RedisModuleEvent { id, dataver: 1 };
    // SAFETY: the callback has the type that the server calls it with; none ends the subscription.
    unsafe { call!(RedisModule_SubscribeToServerEvent(ctx.as_ptr(), event, callback)) == OK }
}
