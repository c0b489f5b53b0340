// SPDX-License-Identifier: MIT

//! Callback after an iteration of the event loop: all replies have been sent, and all clients that were to be closed are
//! freed.
//!
//! A subscription to the event loop would cost thousands of instructions per iteration, because the server
//! creates and frees a context for each event. Instead, the callback is sent through the pipe that wakes up
//! the server. The pipe is written in one iteration and read in the next.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use redis_module::raw;

use crate::server::{enter, Ctx, InCallback, ServerCell};

/// A context that outlives callbacks. Callbacks through the server's pipe get none.
static CONTEXT: ServerCell<Cell<*mut raw::RedisModuleCtx>> = ServerCell::new(Cell::new(ptr::null_mut()));

type Callback = fn(Ctx<'_>);

/// The scheduled callback.
static SCHEDULED: ServerCell<Cell<Option<Callback>>> = ServerCell::new(Cell::new(None));

/// Calls `callback` once after this iteration of the event loop. Before that, the server may already read
/// later input of the clients, but frees no client that closes its connection in the next iteration.
pub(crate) fn schedule(ctx: Ctx<'_>, callback: Callback) {
    unsafe extern "C" fn on_iteration_end(_data: *mut c_void) {
        // SAFETY: the server calls this from its event loop.
        let proof = unsafe { InCallback::claim() };
        if let Some(callback) = SCHEDULED.get(proof).take() {
            // SAFETY: the context belongs to the module, and no other callback is running.
            unsafe { enter(CONTEXT.get(proof).get(), callback) };
        }
    }
    if CONTEXT.get(ctx).get().is_null() {
        // SAFETY: the context belongs to the running callback.
        CONTEXT.get(ctx).set(unsafe { call!(RedisModule_GetDetachedThreadSafeContext(ctx.as_ptr())) });
    }
    if SCHEDULED.get(ctx).replace(Some(callback)).is_none() {
        // SAFETY: the function has the type that the server expects. The module is not unloaded before the call; see
        // `is_pending`.
        unsafe { call!(RedisModule_EventLoopAddOneShot(Some(on_iteration_end), ptr::null_mut())) };
    }
}

/// True if the server will still call the module, so that its code must stay loaded.
pub(crate) fn is_pending(proof: impl Into<InCallback>) -> bool {
    SCHEDULED.get(proof).get().is_some()
}

/// Frees the context. No callback may be pending.
pub(crate) fn stop(ctx: Ctx<'_>) {
    let context = CONTEXT.get(ctx).replace(ptr::null_mut());
    if !context.is_null() {
        // SAFETY: the context belongs to the module and is no longer used.
        unsafe { call!(RedisModule_FreeThreadSafeContext(context)) };
    }
}
