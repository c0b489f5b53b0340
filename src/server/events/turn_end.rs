// SPDX-License-Identifier: MIT

//! The end of a turn of the event loop: when all answers of the turn were sent, and all clients freed that were to be closed.
//!
//! A subscription to the event loop would say so, too, but costs each turn some thousand instructions: the server makes and
//! frees a context for each event. So a function is called through the pipe by which the server wakes itself up. The pipe is
//! written before the turn ends, and read in the next one.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use redis_module::raw;

use crate::server::{enter, Ctx, InCallback, ServerCell};

/// A context that outlives callbacks: that of the server's pipe gives none.
static CONTEXT: ServerCell<Cell<*mut raw::RedisModuleCtx>> = ServerCell::new(Cell::new(ptr::null_mut()));

type Callback = fn(Ctx<'_>);

/// What is to be called.
static SCHEDULED: ServerCell<Cell<Option<Callback>>> = ServerCell::new(Cell::new(None));

/// Calls `at_end` once when this turn of the event loop is over. What the clients send after that may have been read by then,
/// but nobody who closes the connection has been freed.
pub(crate) fn schedule(ctx: Ctx<'_>, callback: Callback) {
    unsafe extern "C" fn on_turn_end(_data: *mut c_void) {
        // SAFETY: the server calls this from its event loop.
        let proof = unsafe { InCallback::claim() };
        if let Some(callback) = SCHEDULED.get(proof).take() {
            // SAFETY: the context is the module's own, and no other callback runs.
            unsafe { enter(CONTEXT.get(proof).get(), callback) };
        }
    }
    if CONTEXT.get(ctx).get().is_null() {
        // SAFETY: the context is that of the running callback.
        CONTEXT.get(ctx).set(unsafe { call!(RedisModule_GetDetachedThreadSafeContext(ctx.as_ptr())) });
    }
    if SCHEDULED.get(ctx).replace(Some(callback)).is_none() {
        // SAFETY: the function has the type that the server calls it with. The module is not unloaded before it is called:
        // see `is_pending`.
        unsafe { call!(RedisModule_EventLoopAddOneShot(Some(on_turn_end), ptr::null_mut())) };
    }
}

/// True if the server will call the module: its code must stay.
pub(crate) fn is_pending(proof: impl Into<InCallback>) -> bool {
    SCHEDULED.get(proof).get().is_some()
}

/// Frees the context. Nothing is pending.
pub(crate) fn stop(ctx: Ctx<'_>) {
    let context = CONTEXT.get(ctx).replace(ptr::null_mut());
    if !context.is_null() {
        // SAFETY: it is the module's own, and nothing refers to it any more.
        unsafe { call!(RedisModule_FreeThreadSafeContext(context)) };
    }
}
