// SPDX-License-Identifier: MIT

//! Hooks in the server's event loop: before it waits for input, and after it has waited.

use std::cell::Cell;
use std::ffi::c_void;

use redis_module::raw;

use crate::server::events::subscription::{listen, notify, Listener};
use crate::server::{Ctx, ServerCell};

/// The listeners, which share one subscription.
static ON_WAKEUP: Listener<()> = ServerCell::new(Cell::new(None));
static MESSAGES: Listener<()> = ServerCell::new(Cell::new(None));
static ACKNOWLEDGEMENTS: Listener<()> = ServerCell::new(Cell::new(None));

const LISTENERS: [&Listener<()>; 3] = [&ON_WAKEUP, &MESSAGES, &ACKNOWLEDGEMENTS];

/// The purpose of an end-of-iteration hook.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Messages,
    Acknowledgements,
}

impl Purpose {
    fn listener(self) -> &'static Listener<()> {
        match self {
            Purpose::Messages => &MESSAGES,
            Purpose::Acknowledgements => &ACKNOWLEDGEMENTS,
        }
    }
}

/// Calls `on_wakeup` whenever the event loop has waited for input, before it reads any. This slows every
/// iteration of the loop down, so end it with [`ignore_wakeups`].
pub(crate) fn listen_to_wakeups(ctx: Ctx<'_>, on_wakeup: fn(Ctx<'_>, ())) {
    ON_WAKEUP.get(ctx).set(Some(on_wakeup));
    listen_to_loop(ctx);
}

/// Ends [`listen_to_wakeups`]. Must not be called inside its callback: the server uses the subscription afterwards.
pub(crate) fn ignore_wakeups(ctx: Ctx<'_>) {
    ON_WAKEUP.get(ctx).set(None);
    listen_to_loop(ctx);
}

/// Calls `on_iteration_end` whenever the event loop has executed its input, before it writes to clients and
/// replicas. This slows every iteration down, so end it with [`ignore_iterations`].
pub(crate) fn listen_to_iterations(ctx: Ctx<'_>, purpose: Purpose, on_iteration_end: fn(Ctx<'_>, ())) {
    purpose.listener().get(ctx).set(Some(on_iteration_end));
    listen_to_loop(ctx);
}

/// Ends [`listen_to_iterations`]. Must not be called inside an event: the server uses the subscription afterwards.
pub(crate) fn ignore_iterations(ctx: Ctx<'_>, purpose: Purpose) {
    purpose.listener().get(ctx).set(None);
    listen_to_loop(ctx);
}

/// Subscribes to the event loop while it has a listener, and unsubscribes otherwise.
fn listen_to_loop(ctx: Ctx<'_>) {
    unsafe extern "C" fn on_event(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        subevent: u64,
        _data: *mut c_void,
    ) {
        // SAFETY: the context belongs to this callback.
        unsafe {
            match subevent {
                raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP => {
                    notify(&MESSAGES, ctx, ());
                    notify(&ACKNOWLEDGEMENTS, ctx, ());
                }
                raw::REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP => notify(&ON_WAKEUP, ctx, ()),
                _ => {}
            }
        }
    }
    let has_listener = LISTENERS.iter().any(|listener| listener.get(ctx).get().is_some());
    let callback: raw::RedisModuleEventCallback = if has_listener { Some(on_event) } else { None };
    listen(ctx, raw::REDISMODULE_EVENT_EVENTLOOP, callback);
}

/// Removes all listeners when the module is unloaded.
pub(in crate::server) fn forget(ctx: Ctx<'_>) {
    for listener in LISTENERS {
        listener.get(ctx).set(None);
    }
}

/// Ends the event loop's next wait for input. Redis 7.0 computes the length of that wait before the last callbacks of
/// an iteration, and misses a timer that they set.
pub(crate) fn wake_up(_in_callback: Ctx<'_>) {
    // The function belongs to libc, because it is called later, when the module may have been unloaded.
    // SAFETY: freeing null is allowed and does nothing.
    unsafe { call!(RedisModule_EventLoopAddOneShot(Some(libc::free), std::ptr::null_mut())) };
}
