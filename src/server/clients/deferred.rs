// SPDX-License-Identifier: MIT

//! Commands that are carried out a moment later, from a timer, while their client is blocked.
//!
//! While a script is slow, the server reads what other clients send. The client that has called the script is protected from
//! being freed meanwhile. If a module calls the script on behalf of a client, it is one of the module's that is protected, and
//! the server ends when the real one hangs up in the middle of its command (tried on Redis 7.0, 8.0 and 8.6, and on Valkey 8.1
//! and 9.1). A blocked client may be freed at any time. And no timer fires while a script is slow, so that one never begins within
//! another.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr;

use redis_module::raw;

use crate::error::{Error, NotGuarded};
use crate::server::clients::caller::Caller;
use crate::server::registration::command::Args;
use crate::server::{enter, timer, Ctx, InCallback, ServerCell, Str};

/// While nothing may be sent to replicas, it is tried again in so many milliseconds.
const RETRY_MS: u64 = 1;

static PENDING: ServerCell<RefCell<VecDeque<DeferredCommand>>> =
    ServerCell::new(RefCell::new(VecDeque::new()));

/// The timer is set.
static TIMER_IS_SET: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// Carries out a command with its name and arguments. The context replies to the client, and has its database and its user.
pub(crate) type CommandFn = for<'a> fn(Ctx<'a>, Args<'a>) -> Result<(), Error>;

/// A command that is still to be carried out.
struct DeferredCommand {
    client: *mut raw::RedisModuleBlockedClient,
    /// Whose permissions it had when it was called.
    user: Option<Vec<u8>>,
    words: Vec<Str<'static>>,
    command_fn: CommandFn,
}

/// Blocks the caller, and carries out its command as soon as nothing else is. False if that is not possible: the caller gets its
/// reply at once or never, or the server (Redis before 7.0.6) cannot act for a user later.
pub(crate) fn run_later(ctx: Ctx<'_>, command: Args<'_>, command_fn: CommandFn) -> bool {
    // SAFETY: the table of functions does not change any more.
    if ctx.flags().denies_blocking() || unsafe { raw::RedisModule_SetContextUser }.is_none() {
        return false;
    }
    let user = Caller::of(ctx).user().map(<[u8]>::to_vec);
    // SAFETY: the context is that of the running command. Without callbacks for it, the client gets what was added to its reply
    // until it is unblocked.
    let client = unsafe { call!(RedisModule_BlockClient(ctx.as_ptr(), None, None, None, 0)) };
    if client.is_null() {
        return false;
    }
    // SAFETY: the handle has just been made. The module cannot be unloaded while a client is blocked.
    unsafe { call!(RedisModule_SetDisconnectCallback(client, Some(disconnected))) };
    // Copies, as the server may change its own when the command has returned.
    let words = (0..command.len()).filter_map(|at| command.bytes(at)).map(Str::new).collect();
    let pending = DeferredCommand { client, user, words, command_fn };
    PENDING.get(ctx).borrow_mut().push_back(pending);
    plan(ctx, 0);
    true
}

/// How many are still to be carried out.
pub(crate) fn pending(proof: InCallback) -> usize {
    PENDING.get(proof).borrow().len()
}

/// A client has gone before its turn has come, and its command with it.
unsafe extern "C" fn disconnected(ctx: *mut raw::RedisModuleCtx, client: *mut raw::RedisModuleBlockedClient) {
    let forget = |ctx: Ctx<'_>| {
        let mut pending = PENDING.get(ctx).borrow_mut();
        let at = pending.iter().position(|pending| pending.client == client);
        // One that is being carried out is unblocked afterwards.
        if at.and_then(|at| pending.remove(at)).is_some() {
            unblock(client);
        }
    };
    // SAFETY: the context is that of this callback.
    unsafe { enter(ctx, forget) };
}

fn plan(ctx: Ctx<'_>, milliseconds: u64) {
    if !TIMER_IS_SET.get(ctx).replace(true) {
        timer::set(ctx, milliseconds, on_timer);
    }
}

fn on_timer(ctx: Ctx<'_>) {
    TIMER_IS_SET.get(ctx).set(false);
    loop {
        if ctx.is_paused() || ctx.flags().is_loading() {
            break;
        }
        // Nothing is borrowed while one is carried out: if it is slow, clients of others go meanwhile.
        let next = PENDING.get(ctx).borrow_mut().pop_front();
        let Some(next) = next else { return };
        next.run();
    }
    if !PENDING.get(ctx).borrow().is_empty() {
        plan(ctx, RETRY_MS);
    }
}

impl DeferredCommand {
    /// Carries it out and replies.
    fn run(self) {
        let argv: Vec<*mut raw::RedisModuleString> = self.words.iter().map(Str::as_ptr).collect();
        let reply = |ctx: Ctx<'_>| {
            // SAFETY: the words outlive the call.
            let words = unsafe { Args::of(&argv) };
            if let Err(error) = self.run_as_user(ctx, words) {
                ctx.reply_error(&error.to_string());
            }
        };
        // SAFETY: the client is blocked. The context adds to its reply, and is used no more after it is freed here.
        unsafe {
            let ctx = call!(RedisModule_GetThreadSafeContext(self.client));
            if enter(ctx, reply).is_none() {
                enter(ctx, |ctx| ctx.reply_internal_error());
            }
            call!(RedisModule_FreeThreadSafeContext(ctx));
        }
        unblock(self.client);
    }

    fn run_as_user(&self, ctx: Ctx<'_>, words: Args<'_>) -> Result<(), Error> {
        if !ctx.is_primary() {
            return Err(Error::Demoted);
        }
        // A user that was deleted meanwhile has left its connections to another one until they are closed.
        let caller = Caller::of(ctx);
        if caller.user() != self.user.as_deref() || caller.is_closing() {
            return Err(Error::NotGuarded(NotGuarded::NoPermission));
        }
        let access = caller.access();
        // Its rights may be others by now.
        if !access.may_call(&mut words.raw().to_vec()) {
            return Err(Error::NotGuarded(NotGuarded::NoPermission));
        }
        access.with_user(ctx, || (self.command_fn)(ctx, words))
    }
}

fn unblock(client: *mut raw::RedisModuleBlockedClient) {
    // SAFETY: the handle is that of `carry_out`, and this is the one call for it: it was taken from the table before.
    unsafe { call!(RedisModule_UnblockClient(client, ptr::null_mut())) };
}
