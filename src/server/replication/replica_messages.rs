// SPDX-License-Identifier: MIT

//! Messages to the subscribers of replicas, sent at the end of a turn of the event loop.
//!
//! The server wraps two commands of one step in `MULTI` and `EXEC`, for the AOF and for replicas alike, even if one of them
//! is for replicas only: with its message, the `DEL` of a release would cost four commands. So the message goes in a step of
//! its own, before the server writes to its replicas in the same turn: after the `DEL`, and in the same packet.
//!
//! The end of turns is listened to only while messages are being sent, as that costs every turn something. To begin and to
//! end costs about as much as [`IDLE_TURNS`] turns.

use std::cell::{Cell, RefCell};
use std::ffi::CStr;

use crate::server::events::event_loop;
use crate::server::{timer, Ctx, ServerCell, Str};

/// After so many turns without a message their end is listened to no more.
const IDLE_TURNS: u32 = 4;

static PENDING: ServerCell<RefCell<Vec<Message>>> = ServerCell::new(RefCell::new(Vec::new()));
static HOOK_STATE: ServerCell<Cell<HookState>> = ServerCell::new(Cell::new(HookState::Off));

/// A message that has not been sent yet.
struct Message {
    /// The database of the change that it follows. The stream has that one selected; another would cost a `SELECT`.
    db: i32,
    /// `PUBLISH` or `SPUBLISH`.
    command: &'static CStr,
    channel: Str<'static>,
    content: &'static Str<'static>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HookState {
    Off,
    /// For so many turns there has been no message.
    Idle(u32),
    /// A timer is set that ends it, if there is still no message.
    Ending,
}

/// Sends a message at the end of this turn.
pub(in crate::server) fn send(
    ctx: Ctx<'_>,
    command: &'static CStr,
    channel: Str<'static>,
    content: &'static Str<'static>,
) {
    PENDING.get(ctx).borrow_mut().push(Message { db: ctx.db(), command, channel, content });
    let state = HOOK_STATE.get(ctx);
    match state.get() {
        HookState::Off => {
            event_loop::listen_to_turns(ctx, event_loop::Purpose::Messages, on_turn_end);
            state.set(HookState::Idle(0));
        }
        HookState::Idle(_) => state.set(HookState::Idle(0)),
        HookState::Ending => {}
    }
}

/// Forgets all, as the module is unloaded.
pub(crate) fn discard(ctx: Ctx<'_>) {
    PENDING.get(ctx).take();
    HOOK_STATE.get(ctx).set(HookState::Off);
}

/// The server has carried out what it was sent, and has not yet written to its replicas.
fn on_turn_end(ctx: Ctx<'_>, (): ()) {
    let pending = PENDING.get(ctx);
    if !pending.borrow().is_empty() {
        if !ctx.is_primary() {
            // They were for replicas that are this one's no more.
            pending.take();
        } else if !ctx.is_paused() {
            // What is paused must not be written to, and goes on after a turn like this one.
            pending.take().iter().for_each(|message| message.replicate(ctx));
        }
    } else if let HookState::Idle(turns) = HOOK_STATE.get(ctx).get() {
        // The subscription cannot be ended here: the server uses it after this call.
        let ends = turns + 1 >= IDLE_TURNS;
        HOOK_STATE.get(ctx).set(if ends { HookState::Ending } else { HookState::Idle(turns + 1) });
        if ends {
            timer::set(ctx, 0, on_timer);
        }
    }
}

fn on_timer(ctx: Ctx<'_>) {
    let idle = PENDING.get(ctx).borrow().is_empty();
    HOOK_STATE.get(ctx).set(if idle { HookState::Off } else { HookState::Idle(0) });
    if idle {
        event_loop::ignore_turns(ctx, event_loop::Purpose::Messages);
    }
}

impl Message {
    fn replicate(&self, ctx: Ctx<'_>) {
        let Message { db, command, channel, content } = self;
        ctx.select_db(*db);
        // SAFETY: "ss" takes two strings of the server, which outlive the call; "A" keeps the command out of the AOF.
        unsafe {
            let (command, channel, content) = (command.as_ptr(), channel.as_ptr(), content.as_ptr());
            call!(RedisModule_Replicate(ctx.as_ptr(), command, c"Ass".as_ptr(), channel, content))
        };
    }
}
