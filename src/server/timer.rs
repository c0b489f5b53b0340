// SPDX-License-Identifier: MIT

//! Timers of the server.

use std::ffi::c_void;
use std::ptr;

use redis_module::raw;

use crate::server::callback::ctx::enter;
use crate::server::Ctx;

/// A timer that is set; see [`set`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TimerId(raw::RedisModuleTimerID);

/// Calls `fired` once, after this number of milliseconds. When the timer fires, it no longer exists, and
/// stopping it would free it twice. So `fired` must first forget the id.
pub(crate) fn set(ctx: Ctx<'_>, milliseconds: u64, fired: fn(Ctx<'_>)) -> TimerId {
    unsafe extern "C" fn trampoline(ctx: *mut raw::RedisModuleCtx, data: *mut c_void) {
        // SAFETY: `data` is the function pointer that `set` passed.
        let fired = unsafe { std::mem::transmute::<*mut c_void, fn(Ctx<'_>)>(data) };
        // SAFETY: the context belongs to this callback.
        unsafe { enter(ctx, fired) };
    }
    let period = i64::try_from(milliseconds).unwrap_or_default();
    // SAFETY: the data is a function, which is valid while the module is loaded. A module with a timer cannot be
    // unloaded.
    let id = unsafe {
        call!(RedisModule_CreateTimer(ctx.as_ptr(), period, Some(trampoline), fired as *mut c_void))
    };
    TimerId(id)
}

/// Stops a timer that has not fired yet.
pub(crate) fn stop(ctx: Ctx<'_>, timer: TimerId) {
    // SAFETY: the timer has not fired, see `set`. The data is not an allocation.
    unsafe { call!(RedisModule_StopTimer(ctx.as_ptr(), timer.0, ptr::null_mut())) };
}
