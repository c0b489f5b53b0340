// SPDX-License-Identifier: MIT

//! Subscriptions to server events, with one callback each.

use std::cell::Cell;

use redis_module::raw;

use crate::server::{enter, Ctx, ServerCell, OK};

/// The function that receives an event, if any.
pub(crate) type Listener<T> = ServerCell<Cell<Option<fn(Ctx<'_>, T)>>>;

/// Calls the listener, if any.
///
/// # Safety
/// `ctx` is the context of the running callback.
pub(in crate::server) unsafe fn notify<T>(
    listener: &Listener<T>,
    ctx: *mut raw::RedisModuleCtx,
    event_data: T,
) {
    let call = |ctx: Ctx<'_>| {
        if let Some(listener) = listener.get(ctx).get() {
            listener(ctx, event_data);
        }
    };
    // SAFETY: guaranteed by the caller.
    unsafe { enter(ctx, call) };
}

/// The subscribed events, as a bit set. If the module ends a subscription that does not exist, the server
/// creates a listener without a function, and crashes.
static SUBSCRIBED: ServerCell<Cell<u64>> = ServerCell::new(Cell::new(0));

/// Forgets all subscriptions: the server has dropped them or will do so.
pub(in crate::server) fn forget(ctx: Ctx<'_>) {
    SUBSCRIBED.get(ctx).set(0);
}

/// Subscribes to an event or replaces its callback; `None` ends the subscription, if any. False if the server refuses.
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

/// Whether the module is subscribed to this event.
pub(in crate::server) fn is_subscribed(ctx: Ctx<'_>, id: u64) -> bool {
    SUBSCRIBED.get(ctx).get() & (1 << id) != 0
}

fn subscribe(ctx: Ctx<'_>, id: u64, callback: raw::RedisModuleEventCallback) -> bool {
    let event = raw::RedisModuleEvent { id, dataver: 1 };
    // SAFETY: the callback has the type that the server expects; null ends the subscription.
    unsafe { call!(RedisModule_SubscribeToServerEvent(ctx.as_ptr(), event, callback)) == OK }
}
