//! `LOCK.LIST [MATCH pattern] [COUNT n]`

use super::args::Cursor;
use super::glob::matches;
use super::waiters::DEFAULT_COUNT;
use super::{count, milliseconds};
use crate::core::{Holders, Mode};
use crate::driver;
use crate::error::Error;
use crate::keyspace;
use crate::server::load::{Args, Command, Spec};
use crate::server::{Ctx, Str};

pub(crate) struct List;

impl Command for List {
    const SPEC: Spec = Spec {
        name: c"lock.list",
        flags: c"readonly",
        categories: c"read slow dangerous",
        key: None,
        arity: -1,
        summary: c"Lists the locks that somebody waits for, longest queue first.",
        complexity: c"O(N*log(N)) where N locks are waited for",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.list", args);
        let (mut pattern, mut most) = (None, None);
        while let Some(option) = args.next() {
            if option.eq_ignore_ascii_case(b"MATCH") {
                let value = args.pattern()?;
                args.once("MATCH", &mut pattern, value)?;
            } else if option.eq_ignore_ascii_case(b"COUNT") {
                let n = args.count()?;
                args.once("COUNT", &mut most, n)?;
            } else {
                return Err(args.unknown(option));
            }
        }
        let (db, now) = (ctx.db(), ctx.now());
        let passes = |key: &[u8]| pattern.is_none_or(|pattern| matches(pattern, key));
        let most = most.unwrap_or(DEFAULT_COUNT);
        let locks = driver::with(ctx, |driver| driver.locks.contended_in(db, now, most, passes));
        ctx.reply_array(locks.len());
        for lock in locks {
            let (mode, holders) = if lock.is_plain {
                (Some(Mode::Exclusive), 1)
            } else {
                // A key that holds something else is about to be noticed.
                let holders = keyspace::look(ctx, &Str::new(&lock.key), now).unwrap_or(Holders::Free);
                (holders.mode(), holders.len())
            };
            ctx.reply_map(5);
            ctx.reply_bulk(b"key");
            ctx.reply_bulk(&lock.key);
            ctx.reply_bulk(b"mode");
            // If it is free, it is about to be that of the first in line.
            ctx.reply_bulk(mode.unwrap_or(lock.wanted).name().as_bytes());
            ctx.reply_bulk(b"holders");
            ctx.reply_integer(count(holders));
            ctx.reply_bulk(b"waiters");
            ctx.reply_integer(count(lock.waiters));
            ctx.reply_bulk(b"longest");
            ctx.reply_integer(milliseconds(lock.longest_us));
        }
        Ok(())
    }
}
