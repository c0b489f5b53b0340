// SPDX-License-Identifier: MIT

//! The event loop of the server: when it begins to wait for input, and when it has it.

use std::cell::Cell;
use std::ffi::c_void;

use redis_module::raw;

use crate::server::events::subscription::{listen, notify, Listener};
use crate::server::{Ctx, ServerCell};

/// Who listens to the event loop, which is one subscription.
static ON_WAKEUP: Listener<()> = ServerCell::new(Cell::new(None));
static MESSAGES: Listener<()> = ServerCell::new(Cell::new(None));
static ACKNOWLEDGEMENTS: Listener<()> = ServerCell::new(Cell::new(None));
static INBOXES: Listener<()> = ServerCell::new(Cell::new(None));

const LISTENERS: [&Listener<()>; 4] = [&ON_WAKEUP, &MESSAGES, &ACKNOWLEDGEMENTS, &INBOXES];

/// What the end of turns is listened to for.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Messages,
    Acknowledgements,
    Inboxes,
}

impl Purpose {
    fn listener(self) -> &'static Listener<()> {
        match self {
            Purpose::Messages => &MESSAGES,
            Purpose::Acknowledgements => &ACKNOWLEDGEMENTS,
            Purpose::Inboxes => &INBOXES,
        }
    }
}

/// Calls `awake` whenever the event loop has waited for input, before it reads any. Ends with
/// [`ignore_wakeups`], as it costs every turn of the loop.
pub(crate) fn listen_to_wakeups(ctx: Ctx<'_>, on_wakeup: fn(Ctx<'_>, ())) {
    ON_WAKEUP.get(ctx).set(Some(on_wakeup));
    listen_to_loop(ctx);
}

/// Ends [`listen_to_wakeups`]. Not from inside `awake`: the server uses the subscription after the call.
pub(crate) fn ignore_wakeups(ctx: Ctx<'_>) {
    ON_WAKEUP.get(ctx).set(None);
    listen_to_loop(ctx);
}

/// Calls `ends` whenever the event loop has carried out what it has read, before it writes to clients and replicas. Ends with
/// [`ignore_turns`], as it costs every turn of the loop.
pub(crate) fn listen_to_turns(ctx: Ctx<'_>, purpose: Purpose, on_turn_end: fn(Ctx<'_>, ())) {
    purpose.listener().get(ctx).set(Some(on_turn_end));
    listen_to_loop(ctx);
}

/// Ends [`listen_to_turns`]. Not from inside an event, as [`ignore_wakeups`].
pub(crate) fn ignore_turns(ctx: Ctx<'_>, purpose: Purpose) {
    purpose.listener().get(ctx).set(None);
    listen_to_loop(ctx);
}

/// Subscribes to the event loop if anybody listens to it, else ends that.
fn listen_to_loop(ctx: Ctx<'_>) {
    unsafe extern "C" fn on_event(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        subevent: u64,
        _data: *mut c_void,
    ) {
        // SAFETY: the context is that of this callback.
        unsafe {
            match subevent {
                raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP => {
                    notify(&MESSAGES, ctx, ());
                    notify(&ACKNOWLEDGEMENTS, ctx, ());
                    notify(&INBOXES, ctx, ());
                }
                raw::REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP => notify(&ON_WAKEUP, ctx, ()),
                _ => {}
            }
        }
    }
    let anybody = LISTENERS.iter().any(|listener| listener.get(ctx).get().is_some());
    let callback: raw::RedisModuleEventCallback = if anybody { Some(on_event) } else { None };
    listen(ctx, raw::REDISMODULE_EVENT_EVENTLOOP, callback);
}

/// Nobody listens any more, as the module is unloaded.
pub(in crate::server) fn forget(ctx: Ctx<'_>) {
    for listener in LISTENERS {
        listener.get(ctx).set(None);
    }
}

/// Ends the event loop's wait for input, if it is about to begin one. Redis 7.0 works out how long to wait before the
/// last callbacks of a turn, and does not see a timer that is set in them.
pub(crate) fn wake_up(_in_callback: Ctx<'_>) {
    // A function of libc: the call comes later, when the module may have been unloaded.
    // SAFETY: to free null is allowed, and does nothing.
    unsafe { call!(RedisModule_EventLoopAddOneShot(Some(libc::free), std::ptr::null_mut())) };
}
