// SPDX-License-Identifier: MIT

//! Blocked clients.
//!
//! The server keeps a handle for each blocked client. [`unblock`] must return it exactly once, even if the
//! client has disconnected. Returning a handle twice is a use after free, and never returning it is a leak.
//! The accompanying token is a number, such as that of the waiter, so nothing has to be freed.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use redis_module::raw;

use crate::server::callback::ctx::enter;
use crate::server::callback::guard::INTERNAL_ERROR;
use crate::server::{Ctx, ServerCell, OK};

/// The server's handle of a blocked client. It is compared and returned, but never dereferenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientHandle(usize);

impl ClientHandle {
    /// The raw pointer for the module API.
    fn raw(self) -> *mut raw::RedisModuleBlockedClient {
        self.0 as *mut raw::RedisModuleBlockedClient
    }

    /// A token that is unique until its last callback.
    pub(crate) fn token(self) -> u64 {
        self.0 as u64
    }
}

/// Whether `CLIENT UNBLOCK` may end a wait.
static MAY_UNBLOCK: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// Sets whether `CLIENT UNBLOCK` may end waits. On some servers, it races with [`unblock`].
pub(crate) fn allow_client_unblock(ctx: Ctx<'_>, allow: bool) {
    MAY_UNBLOCK.get(ctx).set(allow);
}

/// Callbacks for events of a blocked client.
pub(crate) trait BlockedClient {
    /// [`unblock`] was called and the client is connected: send the reply.
    fn reply(ctx: Ctx<'_>, token: u64);
    /// `CLIENT UNBLOCK` has ended the wait: reply as after a timeout, and call [`unblock`].
    fn timed_out(ctx: Ctx<'_>, handle: ClientHandle);
    /// The client has disconnected, or was ended with an error. It may already be unblocked.
    fn disconnected(ctx: Ctx<'_>, handle: ClientHandle);
    /// The last callback for this token. `gone` is true if the client disconnected before its reply.
    fn done(ctx: Ctx<'_>, token: u64, gone: bool);
}

/// Blocks the calling client. The server gets no deadline, because its timeouts are imprecise and race with
/// [`unblock`].
pub(crate) fn block<C: BlockedClient>(ctx: Ctx<'_>) -> Option<ClientHandle> {
    unsafe extern "C" fn reply<C: BlockedClient>(
        ctx: *mut raw::RedisModuleCtx,
        _argv: *mut *mut raw::RedisModuleString,
        _argc: c_int,
    ) -> c_int {
        // SAFETY: the callback runs for a client that was unblocked with a token as its private data.
        let token = unsafe { call!(RedisModule_GetBlockedClientPrivateData(ctx)) }.addr() as u64;
        // SAFETY: the context belongs to this callback.
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
        // SAFETY: the callback runs for a blocked client.
        let handle = unsafe { call!(RedisModule_GetBlockedClientHandle(ctx)) };
        // SAFETY: the context belongs to this callback.
        unsafe { enter(ctx, |ctx| C::timed_out(ctx, ClientHandle(handle as usize))) };
        OK
    }
    unsafe extern "C" fn disconnected<C: BlockedClient>(
        ctx: *mut raw::RedisModuleCtx,
        handle: *mut raw::RedisModuleBlockedClient,
    ) {
        // SAFETY: the context belongs to this callback.
        unsafe { enter(ctx, |ctx| C::disconnected(ctx, ClientHandle(handle as usize))) };
    }
    unsafe extern "C" fn done<C: BlockedClient>(ctx: *mut raw::RedisModuleCtx, token: *mut c_void) {
        // SAFETY: the context belongs to this callback.
        let gone = unsafe { call!(RedisModule_BlockedClientDisconnected(ctx)) } != 0;
        // SAFETY: the context belongs to this callback.
        unsafe { enter(ctx, |ctx| C::done(ctx, token.addr() as u64, gone)) };
    }
    let on_timeout: raw::RedisModuleCmdFunc =
        if MAY_UNBLOCK.get(ctx).get() { Some(timed_out::<C>) } else { None };
    // SAFETY: the callbacks have the types that the server expects. They live as long as the module, which cannot be
    // unloaded while a client is blocked.
    unsafe {
        let handle =
            call!(RedisModule_BlockClient(ctx.as_ptr(), Some(reply::<C>), on_timeout, Some(done::<C>), 0));
        if handle.is_null() {
            return None;
        }
        call!(RedisModule_SetDisconnectCallback(handle, Some(disconnected::<C>)));
        Some(ClientHandle(handle as usize))
    }
}

/// Converts a token to the pointer that the API takes. The pointer is never dereferenced.
fn as_pointer(token: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(token).unwrap_or(usize::MAX))
}

/// Returns the handle of a blocked client. If the client is still connected, the server sends the reply in this iteration of
/// its event loop. Must be called exactly once per handle, with a token other than 0.
pub(crate) fn unblock(handle: ClientHandle, token: u64) {
    debug_assert_ne!(token, 0, "the server calls `done` only for a token that is not null");
    // SAFETY: the handle came from `block` and has not been returned.
    unsafe { call!(RedisModule_UnblockClient(handle.raw(), as_pointer(token))) };
}
