// SPDX-License-Identifier: MIT

//! Commands that run slightly later, from a timer, while their client is blocked.
//!
//! While a slow script runs, the server reads the input of other clients. It protects the client that called
//! the script from being freed. If a module calls the script for a client, a client of the module is
//! protected instead. If the real client then disconnects during its command, the server crashes (tested on
//! Redis 7.0, 8.0, 8.6 and on Valkey 8.1, 9.1). A blocked client may be freed at any time. Timers do not fire
//! while a slow script runs, so deferred commands never nest.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr;

use redis_module::raw;

use crate::error::{Error, NotGuarded};
use crate::server::clients::caller::Caller;
use crate::server::registration::command::Args;
use crate::server::{enter, timer, Ctx, InCallback, ServerCell, Str};

/// Interval between attempts while nothing may be sent to replicas, in milliseconds.
const RETRY_MS: u64 = 1;

static PENDING: ServerCell<RefCell<VecDeque<DeferredCommand>>> =
    ServerCell::new(RefCell::new(VecDeque::new()));

/// Whether the timer is set.
static TIMER_IS_SET: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// Runs a command with its name and arguments. The context replies to the client, and has its database and its user.
pub(crate) type CommandFn = for<'a> fn(Ctx<'a>, Args<'a>) -> Result<(), Error>;

/// A command that has not run yet.
struct DeferredCommand {
    client: *mut raw::RedisModuleBlockedClient,
    /// The user at the time of the call.
    user: Option<Vec<u8>>,
    words: Vec<Str<'static>>,
    command_fn: CommandFn,
}

/// Blocks the caller, and runs its command as soon as no other command is running. Returns false if that is impossible:
/// the caller cannot wait for its reply, or the server (Redis before 7.0.6) cannot set a context's user.
pub(crate) fn run_later(ctx: Ctx<'_>, command: Args<'_>, command_fn: CommandFn) -> bool {
    // SAFETY: the function table does not change after load.
    if ctx.flags().denies_blocking() || unsafe { raw::RedisModule_SetContextUser }.is_none() {
        return false;
    }
    let user = Caller::of(ctx).user().map(<[u8]>::to_vec);
    // SAFETY: the context belongs to the running command. Without callbacks, the client gets the reply as it
    // was built before the client is unblocked.
    let client = unsafe { call!(RedisModule_BlockClient(ctx.as_ptr(), None, None, None, 0)) };
    if client.is_null() {
        return false;
    }
    // SAFETY: the handle was just created. The module cannot be unloaded while a client is blocked.
    unsafe { call!(RedisModule_SetDisconnectCallback(client, Some(disconnected))) };
    // The words are copied, because the server may change its own after the command has returned.
    let words = (0..command.len()).filter_map(|at| command.bytes(at)).map(Str::new).collect();
    let pending = DeferredCommand { client, user, words, command_fn };
    PENDING.get(ctx).borrow_mut().push_back(pending);
    plan(ctx, 0);
    true
}

/// Number of deferred commands.
pub(crate) fn pending(proof: InCallback) -> usize {
    PENDING.get(proof).borrow().len()
}

/// Drops the command of a client that has disconnected.
unsafe extern "C" fn disconnected(ctx: *mut raw::RedisModuleCtx, client: *mut raw::RedisModuleBlockedClient) {
    let forget = |ctx: Ctx<'_>| {
        let mut pending = PENDING.get(ctx).borrow_mut();
        let at = pending.iter().position(|pending| pending.client == client);
        // If the command is already running, the client is unblocked afterwards.
        if at.and_then(|at| pending.remove(at)).is_some() {
            unblock(client);
        }
    };
    // SAFETY: the context belongs to this callback.
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
        // The table must not be borrowed while a command runs: during a slow command, clients of other commands may
        // disconnect.
        let next = PENDING.get(ctx).borrow_mut().pop_front();
        let Some(next) = next else { return };
        next.run();
    }
    if !PENDING.get(ctx).borrow().is_empty() {
        plan(ctx, RETRY_MS);
    }
}

impl DeferredCommand {
    /// Runs the command and replies.
    fn run(self) {
        let argv: Vec<*mut raw::RedisModuleString> = self.words.iter().map(Str::as_ptr).collect();
        let reply = |ctx: Ctx<'_>| {
            // SAFETY: the words outlive the call.
            let words = unsafe { Args::of(&argv) };
            if let Err(error) = self.run_as_user(ctx, words) {
                ctx.reply_error(&error.to_string());
            }
        };
        // SAFETY: the client is blocked. The context adds to its reply, and is not used after it is freed here.
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
        // If the user has been deleted, its connections belong to another user until they are closed.
        let caller = Caller::of(ctx);
        if caller.user() != self.user.as_deref() || caller.is_closing() {
            return Err(Error::NotGuarded(NotGuarded::NoPermission));
        }
        let access = caller.access();
        // The user's permissions may have changed.
        if !access.may_call(&mut words.raw().to_vec()) {
            return Err(Error::NotGuarded(NotGuarded::NoPermission));
        }
        access.with_user(ctx, || (self.command_fn)(ctx, words))
    }
}

fn unblock(client: *mut raw::RedisModuleBlockedClient) {
    // SAFETY: the handle came from `run_later`. This is the only call for it, because it was removed from the table
    // before.
    unsafe { call!(RedisModule_UnblockClient(client, ptr::null_mut())) };
}
