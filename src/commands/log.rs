// SPDX-License-Identifier: MIT

//! `LOCK.LOG`

use super::args::Cursor;
use super::options::{options, LogCount};
use super::{milliseconds, reply_bulk_or_null};
use crate::core::{Cause, LogEntry};
use crate::driver;
use crate::error::Error;
use crate::server::clients::caller::Caller;
use crate::server::registration::arguments::Arguments;
use crate::server::registration::command::{Args, Command, Spec};
use crate::server::Ctx;

options! {
    Options {
        count: LogCount,
    }
}

pub(crate) struct Log;

impl Command for Log {
    const SPEC: Spec = Spec {
        name: c"lock.log",
        flags: c"readonly",
        categories: c"read slow dangerous",
        key: None,
        arguments: Arguments { positional: &[], options: Options::ARGUMENTS },
        summary:
            c"Lists the last incidents: long waits, lost holds, deadlocks, revoked grants and ended sessions.",
        reply: "An array of maps, the latest first.",
        complexity: c"O(N) where N incidents are remembered",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.log", args);
        let mut options = Options::default();
        options.read(&mut args)?;
        let db = ctx.db();
        let reader = Caller::of(ctx).access();
        // Outside of `with`: the check of permissions asks the server.
        let is_of_db = |entry: &&LogEntry| entry.lock.as_ref().is_none_or(|lock| lock.db == db);
        let entries: Vec<LogEntry> =
            driver::with(ctx, |driver| driver.locks.log().latest().filter(is_of_db).cloned().collect());
        let is_visible = |entry: &LogEntry| entry.lock.as_ref().is_none_or(|lock| reader.may_read(&lock.key));
        let visible: Vec<LogEntry> =
            entries.into_iter().filter(is_visible).take(options.count.get()).collect();
        ctx.reply_array(visible.len());
        for entry in visible {
            reply(ctx, &entry, |key| reader.may_read(key));
        }
        Ok(())
    }
}

fn reply(ctx: Ctx<'_>, entry: &LogEntry, may_read: impl Fn(&[u8]) -> bool) {
    ctx.reply_map(8);
    ctx.reply_bulk(b"id");
    ctx.reply_integer(i64::try_from(entry.id).unwrap_or(i64::MAX));
    ctx.reply_bulk(b"time");
    ctx.reply_integer(entry.at);
    ctx.reply_bulk(b"event");
    ctx.reply_bulk(entry.incident.name().as_bytes());
    ctx.reply_bulk(b"key");
    reply_bulk_or_null(ctx, entry.lock.as_ref().map(|lock| &*lock.key));
    ctx.reply_bulk(b"owner");
    ctx.reply_bulk(entry.owner.as_bytes());
    ctx.reply_bulk(b"by");
    reply_bulk_or_null(
        ctx,
        match &entry.cause {
            Cause::Unknown => None,
            Cause::Holder(owner) => Some(owner.as_bytes()),
            Cause::Text(text, locks) => {
                locks.iter().all(|lock| may_read(&lock.key)).then_some(text.as_bytes())
            }
        },
    );
    ctx.reply_bulk(b"waited");
    match entry.waited_us {
        Some(us) => ctx.reply_integer(milliseconds(us)),
        None => ctx.reply_null(),
    }
    ctx.reply_bulk(b"reason");
    ctx.reply_bulk(entry.reason.as_bytes());
}
