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
static LISTENING: ServerCell<Cell<Listening>> = ServerCell::new(Cell::new(Listening::No));

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
enum Listening {
    No,
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
    let listening = LISTENING.get(ctx);
    match listening.get() {
        Listening::No => {
            event_loop::listen_to_turns(ctx, event_loop::For::Messages, turn_ends);
            listening.set(Listening::Idle(0));
        }
        Listening::Idle(_) => listening.set(Listening::Idle(0)),
        Listening::Ending => {}
    }
}

/// Forgets all, as the module is unloaded.
pub(crate) fn stop(ctx: Ctx<'_>) {
    PENDING.get(ctx).take();
    LISTENING.get(ctx).set(Listening::No);
}

/// The server has carried out what it was sent, and has not yet written to its replicas.
fn turn_ends(ctx: Ctx<'_>, (): ()) {
    let pending = PENDING.get(ctx);
    if !pending.borrow().is_empty() {
        if !ctx.is_primary() {
            // They were for replicas that are this one's no more.
            pending.take();
        } else if !ctx.is_paused() {
            // What is paused must not be written to, and goes on after a turn like this one.
            pending.take().iter().for_each(|message| message.replicate(ctx));
        }
    } else if let Listening::Idle(turns) = LISTENING.get(ctx).get() {
        // The subscription cannot be ended here: the server uses it after this call.
        let ends = turns + 1 >= IDLE_TURNS;
        LISTENING.get(ctx).set(if ends { Listening::Ending } else { Listening::Idle(turns + 1) });
        if ends {
            timer::set(ctx, 0, end);
        }
    }
}

fn end(ctx: Ctx<'_>) {
    let idle = PENDING.get(ctx).borrow().is_empty();
    LISTENING.get(ctx).set(if idle { Listening::No } else { Listening::Idle(0) });
    if idle {
        event_loop::ignore_turns(ctx, event_loop::For::Messages);
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
