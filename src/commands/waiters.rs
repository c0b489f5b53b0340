// SPDX-License-Identifier: MIT

//! `LOCK.WAITERS`

use super::args::Cursor;
use super::milliseconds;
use super::options::{options, ListCount, KEY};
use crate::core::{LockRef, WaiterId};
use crate::driver;
use crate::error::Error;
use crate::server::clients::long_reply;
use crate::server::registration::arguments::Arguments;
use crate::server::registration::command::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

pub(crate) struct Waiters;

options! {
    Options {
        count: ListCount,
    }
}

impl Command for Waiters {
    const SPEC: Spec = Spec {
        name: c"lock.waiters",
        flags: c"readonly",
        categories: c"read slow",
        key: Some(KeyUse::Read),
        arguments: Arguments { positional: &[KEY], options: Options::ARGUMENTS },
        summary: c"Lists the waiters of a lock in the order of the queue.",
        reply: "An array of maps.",
        complexity: c"O(N) where N waiters are listed",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.waiters", args);
        let key = args.key()?;
        let mut options = Options::default();
        options.read(&mut args)?;
        let at = LockRef { db: ctx.db(), key: key.as_bytes() };
        let mut waiters = driver::with(ctx, |driver| driver.locks.waiters_of(at));
        waiters.truncate(options.count.get());
        let len = waiters.len();
        let mut waiters = waiters.into_iter();
        long_reply::array(ctx, len, move |most| waiters.by_ref().take(most).collect(), entry);
        Ok(())
    }
}

fn entry(ctx: Ctx<'_>, id: WaiterId) -> bool {
    driver::with(ctx, |driver| {
        let Some(waiter) = driver.locks.waiter(id, ctx.now()) else { return false };
        ctx.reply_map(7);
        ctx.reply_bulk(b"owner");
        ctx.reply_bulk(waiter.owner.as_bytes());
        ctx.reply_bulk(b"mode");
        ctx.reply_bulk(waiter.mode.name().as_bytes());
        ctx.reply_bulk(b"waited");
        ctx.reply_integer(milliseconds(waiter.waited_us));
        ctx.reply_bulk(b"remaining");
        ctx.reply_integer(waiter.remaining_us.map_or(-1, milliseconds));
        super::reply_client(ctx, driver.client_of(id));
        true
    })
}
