//! `LOCK.WAITERS key [COUNT n]`

use super::args::Cursor;
use super::milliseconds;
use crate::core::{LockRef, WaiterId};
use crate::driver;
use crate::error::Error;
use crate::server::load::{Args, Command, KeyUse, Spec};
use crate::server::{long_reply, Ctx};

/// How many are listed unless the call says otherwise.
pub(super) const DEFAULT_COUNT: usize = 100;

pub(crate) struct Waiters;

impl Command for Waiters {
    const SPEC: Spec = Spec {
        name: c"lock.waiters",
        flags: c"readonly",
        categories: c"read slow",
        key: Some(KeyUse::Read),
        arity: -2,
        summary: c"Lists who waits for a lock, first in line first.",
        complexity: c"O(N) where N waiters are listed",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.waiters", args);
        let key = args.key()?;
        let mut count = None;
        while let Some(option) = args.next() {
            if !option.eq_ignore_ascii_case(b"COUNT") {
                return Err(args.unknown(option));
            }
            let n = args.count()?;
            args.once("COUNT", &mut count, n)?;
        }
        let at = LockRef { db: ctx.db(), key: key.as_bytes() };
        let mut waiters = driver::with(ctx, |driver| driver.locks.waiters_of(at));
        waiters.truncate(count.unwrap_or(DEFAULT_COUNT));
        let len = waiters.len();
        let mut waiters = waiters.into_iter();
        long_reply::array(ctx, len, move |most| waiters.by_ref().take(most).collect(), entry);
        Ok(())
    }
}

fn entry(ctx: Ctx<'_>, id: WaiterId) -> bool {
    driver::with(ctx, |driver| {
        let Some(waiter) = driver.locks.waiter(id, ctx.now()) else { return false };
        let client = driver.client_of(id).and_then(|id| i64::try_from(id).ok());
        ctx.reply_map(5);
        ctx.reply_bulk(b"owner");
        ctx.reply_bulk(waiter.owner.as_bytes());
        ctx.reply_bulk(b"mode");
        ctx.reply_bulk(waiter.mode.name().as_bytes());
        ctx.reply_bulk(b"waited");
        ctx.reply_integer(milliseconds(waiter.waited_us));
        ctx.reply_bulk(b"remaining");
        ctx.reply_integer(waiter.remaining_us.map_or(-1, milliseconds));
        ctx.reply_bulk(b"client");
        ctx.reply_integer(client.unwrap_or(0));
        true
    })
}
