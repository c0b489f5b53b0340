// SPDX-License-Identifier: MIT

//! `LOCK.EVENTS`

use super::args::Cursor;
use crate::config::MAX_MS;
use crate::core::{Late, MonoUs, Poll};
use crate::driver;
use crate::error::Error;
use crate::server::clients::caller;
use crate::server::registration::arguments::{Argument, ArgumentKind, Arguments};
use crate::server::registration::command::{Args, Command, Spec};
use crate::server::Ctx;

pub(crate) struct Events;

const SESSION: Argument = Argument::new(c"session", ArgumentKind::Text, c"the id of the session");
const BEAT: Argument = Argument::new(
    c"beat",
    ArgumentKind::Integer,
    c"a number that grows with each LOCK.SESSION OPEN and LOCK.EVENTS of the session",
);
const SEQ: Argument =
    Argument::new(c"seq", ArgumentKind::Integer, c"the last event that the client has handled; 0 for none");
const DONE: Argument = Argument::new(
    c"done",
    ArgumentKind::Integer,
    c"the client knows the answers of all acquires with smaller numbers",
);
const MILLISECONDS: Argument = Argument::new(
    c"milliseconds",
    ArgumentKind::Integer,
    c"waits for an event for at most this time, 0 by default",
)
.optional();
const COUNT: Argument =
    Argument::new(c"count", ArgumentKind::Integer, c"maximum number of events, 1000 by default").optional();

/// Default of the argument `count`.
const DEFAULT_COUNT: i64 = 1_000;

impl Command for Events {
    const SPEC: Spec = Spec {
        name: c"lock.events",
        flags: c"write blocking",
        categories: c"write slow blocking",
        key: None,
        arguments: Arguments {
            positional: &[SESSION, BEAT, SEQ, DONE],
            options: &[MILLISECONDS, COUNT],
        },
        summary: c"Keeps a session alive, acknowledges events, and returns new ones.",
        reply: "An array of events: [seq, \"granted\", n, holds], [seq, \"lost\", n, reason] or [seq, \"contended\", n].",
        complexity: c"O(N) where N events are acknowledged or returned",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.events", args);
        let id = args.value("session")?;
        let beat = args.integer("beat", 1, MAX_MS)?.unsigned_abs();
        let seq = args.integer("seq", 0, MAX_MS)?.unsigned_abs();
        let done = args.integer("done", 0, MAX_MS)?.unsigned_abs();
        let ms = if args.has_next() { args.integer("milliseconds", 0, MAX_MS)? } else { 0 };
        let count = if args.has_next() { args.integer("count", 1, MAX_MS)? } else { DEFAULT_COUNT };
        let command = args.command();
        args.end()?;
        let Some(client) = caller::connection_id(ctx) else {
            return Err(super::checks::no_connection(command, "LOCK.EVENTS"));
        };
        let now = ctx.now();
        let session = driver::session(ctx, client, id, now)?;
        let polled = driver::with(ctx, |driver| {
            let last = driver.locks.session(session).map_or(0, |session| session.event_range().1);
            if seq > last {
                return Err(command.problem("seq is greater than the last event"));
            }
            let poll = Poll { beat, seq, done, reader: Some(crate::core::ConnectionId(client)) };
            driver.locks.poll_session(session, poll, now).map_err(|Late| Error::Late)
        });
        polled?;
        let wait_us: MonoUs = ms.unsigned_abs().saturating_mul(1000);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        driver::answer_poll(ctx, session, driver::PollAnswer { wait_us, count }, now)
    }
}
