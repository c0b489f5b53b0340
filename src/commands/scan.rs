// SPDX-License-Identifier: MIT

//! `LOCK.SCAN`

use super::args::Cursor;
use super::count;
use super::info::lease_left;
use super::options::{options, Match, ScanCount};
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
    c"0 for the first call, then the cursor of the previous reply",
);

options! {
    Options {
        pattern: Match<'a>,
        count: ScanCount,
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
        summary: c"Iterates over the held locks, a few per call.",
        reply: "An array of the next cursor, 0 at the end, and an array of maps.",
        complexity: c"O(1) per call; O(N) for a whole iteration, where N keys are in the database",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.scan", args);
        let cursor = args.key()?;
        let mut options = Options::default();
        options.read(&mut args)?;
        let pattern = Str::new(options.pattern.get().unwrap_or(b"*"));
        let (next, keys) =
            calls::scan(ctx, &cursor, &pattern, options.count.get()).map_err(Error::FromServer)?;
        let (db, now) = (ctx.db(), ctx.now());
        let locks: Vec<_> = keys
            .into_iter()
            .filter_map(|key| {
                let holders = keyspace::read_holders(ctx, &Str::new(&key), now).ok()?;
                let (expires_at, mode) = (holders.expires_at()?, holders.mode()?);
                Some((key, mode, holders.len(), lease_left(expires_at, now)))
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
