// SPDX-License-Identifier: MIT

//! Messages to the subscribers of replicas, sent at the end of an iteration of the event loop.
//!
//! The server wraps two commands of one step in `MULTI` and `EXEC`, for the AOF and for replicas. It does so
//! even if one of them is for replicas only. The `DEL` of a release and its message would be replicated as
//! four commands. So the message is sent in a separate step, before the server writes to its replicas in the
//! same iteration. It follows the `DEL` in the same packet.
//!
//! The end-of-iteration hook is only registered while messages are being sent, because it costs every iteration. Registering and
//! unregistering it costs about as much as [`IDLE_ITERATIONS`] iterations.

use std::cell::{Cell, RefCell};
use std::ffi::CStr;

use crate::server::events::event_loop;
use crate::server::{timer, Ctx, ServerCell, Str};

/// Number of iterations without a message after which the hook is unregistered.
const IDLE_ITERATIONS: u32 = 4;

static PENDING: ServerCell<RefCell<Vec<ReplicaMessage>>> = ServerCell::new(RefCell::new(Vec::new()));
static HOOK_STATE: ServerCell<Cell<HookState>> = ServerCell::new(Cell::new(HookState::Off));

/// A message that has not been sent yet.
struct ReplicaMessage {
    /// The database of the change that the message follows. It is selected in the replication stream; another
    /// one would cost a `SELECT`.
    db: i32,
    /// `PUBLISH` or `SPUBLISH`.
    command: &'static CStr,
    channel: Str<'static>,
    content: &'static Str<'static>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HookState {
    Off,
    /// Registered, with this number of iterations without a message.
    Idle(u32),
    /// A timer is set that unregisters the hook if no message comes.
    Ending,
}

/// Sends a message at the end of this iteration.
pub(in crate::server) fn send(
    ctx: Ctx<'_>,
    command: &'static CStr,
    channel: Str<'static>,
    content: &'static Str<'static>,
) {
    PENDING.get(ctx).borrow_mut().push(ReplicaMessage { db: ctx.db(), command, channel, content });
    let state = HOOK_STATE.get(ctx);
    match state.get() {
        HookState::Off => {
            event_loop::listen_to_iterations(ctx, event_loop::Purpose::Messages, on_iteration_end);
            state.set(HookState::Idle(0));
        }
        HookState::Idle(_) => state.set(HookState::Idle(0)),
        HookState::Ending => {}
    }
}

/// Drops all messages when the module is unloaded.
pub(crate) fn discard(ctx: Ctx<'_>) {
    PENDING.get(ctx).take();
    HOOK_STATE.get(ctx).set(HookState::Off);
}

/// Sends the messages. Runs after the server has executed its input and before it writes to its replicas.
fn on_iteration_end(ctx: Ctx<'_>, (): ()) {
    let pending = PENDING.get(ctx);
    if !pending.borrow().is_empty() {
        if !ctx.is_primary() {
            // The messages were for replicas, and this server no longer has any.
            pending.take();
        } else if !ctx.is_paused() {
            // Nothing may be sent during a pause. Another iteration of this kind follows after the pause.
            pending.take().iter().for_each(|message| message.replicate(ctx));
        }
    } else if let HookState::Idle(iterations) = HOOK_STATE.get(ctx).get() {
        // The subscription cannot end here: the server uses it after this call.
        let ends = iterations + 1 >= IDLE_ITERATIONS;
        HOOK_STATE.get(ctx).set(if ends { HookState::Ending } else { HookState::Idle(iterations + 1) });
        if ends {
            timer::set(ctx, 0, on_timer);
        }
    }
}

fn on_timer(ctx: Ctx<'_>) {
    let idle = PENDING.get(ctx).borrow().is_empty();
    HOOK_STATE.get(ctx).set(if idle { HookState::Off } else { HookState::Idle(0) });
    if idle {
        event_loop::ignore_iterations(ctx, event_loop::Purpose::Messages);
    }
}

impl ReplicaMessage {
    fn replicate(&self, ctx: Ctx<'_>) {
        let ReplicaMessage { db, command, channel, content } = self;
        ctx.select_db(*db);
        // SAFETY: "ss" takes two server strings, which outlive the call. "A" keeps the command out of the AOF.
        unsafe {
            let (command, channel, content) = (command.as_ptr(), channel.as_ptr(), content.as_ptr());
            call!(RedisModule_Replicate(ctx.as_ptr(), command, c"Ass".as_ptr(), channel, content))
        };
    }
}
