// SPDX-License-Identifier: MIT

//! `LOCK.SESSION`

use std::rc::Rc;

use super::args::{CommandName, Cursor};
use super::glob::matches;
use super::options::{CommandOption, ListCount, Match};
use super::{count, milliseconds};
use crate::config::{self, MAX_MS};
use crate::core::{ConnectionId, Late, NewSession, SessionKey};
use crate::driver;
use crate::error::Error;
use crate::server::clients::{caller, long_reply};
use crate::server::registration::arguments::{Argument, ArgumentKind, Arguments};
use crate::server::registration::command::{Args, Command, Spec};
use crate::server::Ctx;

pub(crate) struct Session;

/// Maximum length of a session's name, in bytes.
const MAX_NAME_LEN: usize = 256;

const TTL: Argument = Argument::new(
    c"milliseconds",
    ArgumentKind::Integer,
    c"the session ends if no LOCK.SESSION OPEN or LOCK.EVENTS arrives for this time",
)
.after(c"TTL");
const GRACE: Argument = Argument::new(
    c"milliseconds",
    ArgumentKind::Integer,
    c"the session ends if its connection stays closed for this time; at most TTL, the default",
)
.after(c"GRACE")
.optional();
const NAME: Argument =
    Argument::new(c"name", ArgumentKind::Text, c"a public name for LOCK.INFO and LOCK.SESSION LIST")
        .after(c"NAME")
        .optional();
const BEAT: Argument = Argument::new(
    c"beat",
    ArgumentKind::Integer,
    c"a number that grows with each LOCK.SESSION OPEN and LOCK.EVENTS of the session",
);
const NEW: Argument =
    Argument::new(c"new", ArgumentKind::Block(&[BEAT, TTL, GRACE, NAME]), c"opens a new session")
        .after(c"NEW");
const ID: Argument = Argument::new(c"session", ArgumentKind::Text, c"the id of the session");
const RESUME: Argument =
    Argument::new(c"resume", ArgumentKind::Block(&[ID, BEAT]), c"resumes a session over this connection");
const OPEN: Argument = {
    const WORD: Argument = Argument::keyword(c"open", c"OPEN", c"opens or resumes a session");
    const WHICH: Argument =
        Argument::new(c"which", ArgumentKind::OneOf(&[NEW, RESUME]), c"a new session, or an existing one");
    Argument::new(c"opened", ArgumentKind::Block(&[WORD, WHICH]), c"opens or resumes a session")
};
const CLOSE: Argument = Argument::new(c"session", ArgumentKind::Text, c"ends a session").after(c"CLOSE");
const LIST: Argument = {
    const WORD: Argument = Argument::keyword(c"list", c"LIST", c"lists the sessions");
    const PATTERN: Argument = Argument::new(
        c"pattern",
        ArgumentKind::Pattern,
        c"lists only sessions whose names match the pattern, as in KEYS",
    )
    .after(c"MATCH")
    .optional();
    const COUNT: Argument =
        Argument::new(c"n", ArgumentKind::Integer, c"maximum number of entries, 100 by default")
            .after(c"COUNT")
            .optional();
    Argument::new(c"sessions", ArgumentKind::Block(&[WORD, PATTERN, COUNT]), c"lists the sessions")
};
const SUBCOMMAND: Argument = Argument::new(
    c"subcommand",
    ArgumentKind::OneOf(&[OPEN, CLOSE, LIST]),
    c"OPEN NEW opens a session; OPEN with an id resumes one over this connection. CLOSE ends a session. LIST lists sessions",
);

impl Command for Session {
    const SPEC: Spec = Spec {
        name: c"lock.session",
        flags: c"write",
        categories: c"write slow",
        key: None,
        arguments: Arguments { positional: &[SUBCOMMAND], options: &[] },
        summary: c"Opens, resumes, ends or lists sessions, whose holds and waits outlive a connection.",
        reply: "OPEN: the id, and the last acknowledged event. CLOSE: the number of holds. LIST: an array of maps.",
        complexity: c"O(N) for CLOSE and LIST, where N is the number of holds or sessions",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.session", args);
        let command = args.command();
        let word = args.value("subcommand")?;
        if word.eq_ignore_ascii_case(b"LIST") {
            return list(ctx, args);
        }
        let Some(client) = caller::connection_id(ctx) else {
            return Err(super::checks::no_connection(command, "LOCK.SESSION"));
        };
        if word.eq_ignore_ascii_case(b"OPEN") {
            open(ctx, command, client, args)
        } else if word.eq_ignore_ascii_case(b"CLOSE") {
            close(ctx, client, args)
        } else {
            Err(args.unknown(word))
        }
    }
}

fn open(ctx: Ctx<'_>, command: CommandName, client: u64, mut args: Cursor<'_>) -> Result<(), Error> {
    let id = args.value("session")?;
    let is_new = id.eq_ignore_ascii_case(b"NEW");
    let beat = args.integer("beat", 1, MAX_MS)?.unsigned_abs();
    let reader = Some(ConnectionId(client));
    let now = ctx.now();
    if !is_new {
        args.end()?;
        let session = driver::session(ctx, client, id, now)?;
        let resumed = driver::with(ctx, |driver| driver.locks.resume_session(session, beat, reader, now));
        let seen = resumed.map_err(|Late| Error::Late)?;
        driver::dispatch(ctx, now);
        reply_open(ctx, session, seen);
        return Ok(());
    }
    let new = new_session(ctx, command, client, args)?;
    let session = driver::open_session(ctx, client, new, beat, now);
    reply_open(ctx, session, 0);
    Ok(())
}

/// Parses and checks the options of `OPEN NEW`.
fn new_session(
    ctx: Ctx<'_>,
    command: CommandName,
    client: u64,
    mut args: Cursor<'_>,
) -> Result<NewSession, Error> {
    let (mut ttl, mut grace, mut name) = (None, None, None);
    while let Some(word) = args.next() {
        if word.eq_ignore_ascii_case(b"TTL") {
            let ms = args.integer("TTL", 1, MAX_MS)?;
            args.once("TTL", &mut ttl, ms)?;
        } else if word.eq_ignore_ascii_case(b"GRACE") {
            let ms = args.integer("GRACE", 0, MAX_MS)?;
            args.once("GRACE", &mut grace, ms)?;
        } else if word.eq_ignore_ascii_case(b"NAME") {
            let text = args.value("NAME")?;
            args.once("NAME", &mut name, text)?;
        } else {
            return Err(args.unknown(word));
        }
    }
    let ttl = ttl.ok_or_else(|| command.problem("TTL is missing"))?;
    if let Some(max) = config::max_session_ttl().filter(|max| ttl > *max) {
        return Err(command.problem_with_advice(
            "TTL is out of range",
            format_args!("lock.max-session-ttl allows {max} ms"),
        ));
    }
    let grace = grace.unwrap_or(ttl).min(ttl);
    // A renewed lease is at least three times as long (R10).
    if let Some(max) = config::max_lease().filter(|max| grace > *max / 3) {
        return Err(command.problem_with_advice(
            "GRACE is out of range",
            format_args!("lock.max-lease allows a third of {max} ms"),
        ));
    }
    let name = name.unwrap_or_default();
    if name.len() > MAX_NAME_LEN {
        return Err(command.problem_with_advice(
            format_args!("NAME is {} bytes long", name.len()),
            format_args!("use at most {MAX_NAME_LEN} bytes"),
        ));
    }
    if !ctx.is_primary() {
        return Err(Error::Refused(crate::core::Refusal::Replica));
    }
    let sessions = driver::with(ctx, |driver| driver.locks.session_count());
    if config::max_sessions().is_some_and(|max| sessions >= max) {
        return Err(Error::TooManySessions);
    }
    let us = |ms: i64| ms.unsigned_abs().saturating_mul(1000);
    Ok(NewSession {
        id: driver::random_session_id(),
        user: driver::user_of(ctx, client),
        name: Rc::from(name),
        ttl_us: us(ttl),
        grace_us: us(grace),
    })
}

fn reply_open(ctx: Ctx<'_>, session: SessionKey, seen: u64) {
    let id = driver::with(ctx, |driver| driver.locks.session(session).map(crate::core::Session::id));
    ctx.reply_array(2);
    ctx.reply_bulk(&id.map_or([b'0'; 32], |id| id.0));
    ctx.reply_integer(seen.cast_signed());
}

fn close(ctx: Ctx<'_>, client: u64, mut args: Cursor<'_>) -> Result<(), Error> {
    let id = args.value("session")?;
    args.end()?;
    let now = ctx.now();
    let holds = match driver::session(ctx, client, id, now) {
        Ok(session) => driver::with(ctx, |driver| driver.locks.close_session(session, now)),
        // The session has ended, as the caller wants.
        Err(Error::NoSession) => 0,
        Err(error) => return Err(error),
    };
    driver::dispatch(ctx, now);
    ctx.reply_integer(count(holds));
    Ok(())
}

fn list(ctx: Ctx<'_>, mut args: Cursor<'_>) -> Result<(), Error> {
    let (mut pattern, mut count) = (Match::default(), ListCount::default());
    while let Some(word) = args.next() {
        if !(pattern.read(word, &mut args)? || count.read(word, &mut args)?) {
            return Err(args.unknown(word));
        }
    }
    let passes = |name: &[u8]| pattern.get().is_none_or(|pattern| matches(pattern, name));
    let mut keys: Vec<SessionKey> = driver::with(ctx, |driver| {
        let all = driver.locks.sessions().filter(|(_, session)| passes(session.name()));
        all.map(|(key, _)| key).collect()
    });
    // Oldest first: keys grow with each session.
    keys.sort_unstable();
    keys.truncate(count.get());
    let len = keys.len();
    let mut keys = keys.into_iter();
    let next = move |most| keys.by_ref().take(most).collect::<Vec<_>>();
    long_reply::array(ctx, len, next, entry);
    Ok(())
}

fn entry(ctx: Ctx<'_>, key: SessionKey) -> bool {
    let now = ctx.now().mono;
    driver::with(ctx, |driver| {
        let Some(session) = driver.locks.session(key) else { return false };
        let (holds, waits) = session.counts();
        ctx.reply_map(8);
        ctx.reply_bulk(b"name");
        ctx.reply_bulk(session.name());
        ctx.reply_bulk(b"user");
        ctx.reply_bulk(session.user());
        ctx.reply_bulk(b"client");
        match session.reader() {
            Some(client) => ctx.reply_integer(client.0.cast_signed()),
            None => ctx.reply_null(),
        }
        for (field, number) in [
            (&b"age"[..], milliseconds(session.age(now))),
            (b"left", milliseconds(session.left(now))),
            (b"holds", count(holds)),
            (b"waits", count(waits)),
            (b"events", count(session.pending())),
        ] {
            ctx.reply_bulk(field);
            ctx.reply_integer(number);
        }
        true
    })
}
