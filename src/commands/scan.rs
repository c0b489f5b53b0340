// SPDX-License-Identifier: MIT

//! `LOCK.SCAN`

use super::args::Cursor;
use super::count;
use super::info::left;
use super::options::{options, Looks, Match};
use crate::core::LockRef;
use crate::driver;
use crate::error::Error;
use crate::keyspace;
use crate::server::registration::arguments::{Argument, ArgumentKind, Arguments};
use crate::server::registration::command::{Args, Command, Spec};
use crate::server::{calls, Ctx, Str};

const CURSOR: Argument = Argument::new(
    c"cursor",
    ArgumentKind::Text,
    c"is 0 to begin with, then what the call before has replied",
);

options! {
    Options {
        pattern: Match<'a>,
        looks: Looks,
    }
}

pub(crate) struct Scan;

impl Command for Scan {
    const SPEC: Spec = Spec {
        name: c"lock.scan",
        flags: c"readonly",
        categories: c"read slow dangerous",
        key: None,
        arguments: Arguments { positional: &[CURSOR], options: Options::ARGUMENTS },
        summary: c"Goes through the locks that are held, a few at each call.",
        reply: "The next cursor, 0 at the end, and an array of maps.",
        complexity: c"O(1) for every call; O(N) for all of them, where N keys are in the database",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.scan", args);
        let cursor = args.key()?;
        let mut given = Options::default();
        given.read(&mut args)?;
        let pattern = Str::new(given.pattern.get().unwrap_or(b"*"));
        let (next, keys) = calls::scan(ctx, &cursor, &pattern, given.looks.get()).map_err(Error::Other)?;
        let (db, now) = (ctx.db(), ctx.now());
        let locks: Vec<_> = keys
            .into_iter()
            .filter_map(|key| {
                let holders = keyspace::read_holders(ctx, &Str::new(&key), now).ok()?;
                let (ends, mode) = (holders.expires_at()?, holders.mode()?);
                Some((key, mode, holders.len(), left(ends, now)))
            })
            .collect();
        ctx.reply_array(2);
        ctx.reply_bulk(&next);
        ctx.reply_array(locks.len());
        for (key, mode, holders, ttl) in locks {
            let waiters = driver::with(ctx, |driver| driver.locks.waiting(LockRef { db, key: &key }));
            ctx.reply_map(5);
            ctx.reply_bulk(b"key");
            ctx.reply_bulk(&key);
            ctx.reply_bulk(b"mode");
            ctx.reply_bulk(mode.name().as_bytes());
            ctx.reply_bulk(b"holders");
            ctx.reply_integer(count(holders));
            ctx.reply_bulk(b"ttl");
            ctx.reply_integer(ttl);
            ctx.reply_bulk(b"waiters");
            ctx.reply_integer(count(waiters));
        }
        Ok(())
    }
}
