// SPDX-License-Identifier: MIT

//! Clients whose command has not been answered yet.
//!
//! The server keeps a handle for each blocked client that must be given back by [`unblock`] exactly once,
//! whatever became of the client: twice is a use after free, never is a leak. The token that goes with it is
//! the waiter's number and not a pointer, so there is nothing to free wrongly.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use redis_module::raw;

use crate::server::callback::ctx::enter;
use crate::server::callback::guard::INTERNAL_ERROR;
use crate::server::{Ctx, ServerCell, OK};

/// The server's handle of a blocked client. Only compared and given back, never followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handle(usize);

impl Handle {
    /// As the API takes it.
    fn raw(self) -> *mut raw::RedisModuleBlockedClient {
        self.0 as *mut raw::RedisModuleBlockedClient
    }
}

/// `CLIENT UNBLOCK` may end a wait.
static MAY_UNBLOCK: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// Lets `CLIENT UNBLOCK` end waits, which only some servers do without a race with [`unblock`].
pub(crate) fn allow_client_unblock(ctx: Ctx<'_>, allow: bool) {
    MAY_UNBLOCK.get(ctx).set(allow);
}

/// What to do when something happens to a blocked client.
pub(crate) trait BlockedClient {
    /// [`unblock`] was called and the client is there: reply to it.
    fn reply(ctx: Ctx<'_>, token: u64);
    /// `CLIENT UNBLOCK` ended the wait: reply as if the time were over, and call [`unblock`].
    fn timed_out(ctx: Ctx<'_>, handle: Handle);
    /// The client went away, or was ended with an error. It may have been unblocked already.
    fn disconnected(ctx: Ctx<'_>, handle: Handle);
    /// The last call for this token; `gone` if the client was so before it could be answered.
    fn done(ctx: Ctx<'_>, token: u64, gone: bool);
}

/// Blocks the calling client. The server keeps no deadline for it: its own are late, and race with
/// [`unblock`].
pub(crate) fn block<C: BlockedClient>(ctx: Ctx<'_>) -> Option<Handle> {
    unsafe extern "C" fn reply<C: BlockedClient>(
        ctx: *mut raw::RedisModuleCtx,
        _argv: *mut *mut raw::RedisModuleString,
        _argc: c_int,
    ) -> c_int {
        // SAFETY: called for a client that was unblocked with a token as its private data.
        let token = unsafe { call!(RedisModule_GetBlockedClientPrivateData(ctx)) }.addr() as u64;
        // SAFETY: the context is that of this callback.
        unsafe {
            if enter(ctx, |ctx| C::reply(ctx, token)).is_none() {
                enter(ctx, |ctx| ctx.reply_error(INTERNAL_ERROR));
            }
        }
        OK
    }
    unsafe extern "C" fn timed_out<C: BlockedClient>(
        ctx: *mut raw::RedisModuleCtx,
        _argv: *mut *mut raw::RedisModuleString,
        _argc: c_int,
    ) -> c_int {
        // SAFETY: called for a blocked client.
        let handle = unsafe { call!(RedisModule_GetBlockedClientHandle(ctx)) };
        // SAFETY: the context is that of this callback.
        unsafe { enter(ctx, |ctx| C::timed_out(ctx, Handle(handle as usize))) };
        OK
    }
    unsafe extern "C" fn disconnected<C: BlockedClient>(
        ctx: *mut raw::RedisModuleCtx,
        handle: *mut raw::RedisModuleBlockedClient,
    ) {
        // SAFETY: the context is that of this callback.
        unsafe { enter(ctx, |ctx| C::disconnected(ctx, Handle(handle as usize))) };
    }
    unsafe extern "C" fn done<C: BlockedClient>(ctx: *mut raw::RedisModuleCtx, token: *mut c_void) {
        // SAFETY: the context is that of this callback.
        let gone = unsafe { call!(RedisModule_BlockedClientDisconnected(ctx)) } != 0;
        // SAFETY: the context is that of this callback.
        unsafe { enter(ctx, |ctx| C::done(ctx, token.addr() as u64, gone)) };
    }
    let on_timeout: raw::RedisModuleCmdFunc =
        if MAY_UNBLOCK.get(ctx).get() { Some(timed_out::<C>) } else { None };
    // SAFETY: the callbacks have the types that the server calls them with, and live as long as the module,
    // which cannot be unloaded while a client is blocked.
    unsafe {
        let handle =
            call!(RedisModule_BlockClient(ctx.as_ptr(), Some(reply::<C>), on_timeout, Some(done::<C>), 0));
        if handle.is_null() {
            return None;
        }
        call!(RedisModule_SetDisconnectCallback(handle, Some(disconnected::<C>)));
        Some(Handle(handle as usize))
    }
}

/// A token as the API takes it: a pointer that nobody follows.
fn as_pointer(token: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(token).unwrap_or(usize::MAX))
}

/// Gives the handle back; the server answers the client, if it is still there, in this turn of its event
/// loop. Exactly once for every handle; the token is not 0.
pub(crate) fn unblock(handle: Handle, token: u64) {
    debug_assert_ne!(token, 0, "the server calls `done` only for a token that is not null");
    // SAFETY: the handle came from `block` and has not been given back.
    unsafe { call!(RedisModule_UnblockClient(handle.raw(), as_pointer(token))) };
}
