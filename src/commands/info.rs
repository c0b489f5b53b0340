//! `LOCK.INFO key`

use super::args::Cursor;
use crate::core::{LockRef, Mode};
use crate::driver;
use crate::error::Error;
use crate::keyspace;
use crate::server::load::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

pub(crate) struct Info;

impl Command for Info {
    const SPEC: Spec = Spec {
        name: c"lock.info",
        flags: c"readonly fast",
        categories: c"read fast",
        key: Some(KeyUse::Read),
        arity: 2,
        summary: c"Tells who holds a lock and how many wait for it.",
        complexity: c"O(N) where N owners hold the lock",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let key = Cursor::new("lock.info", args).key()?;
        let now = ctx.now();
        let holders = keyspace::look_closely(ctx, &key, now)?;
        if keyspace::redisson_fair::has_queue(ctx, &key, now) {
            return Err(Error::FairLock);
        }
        let waiters =
            driver::with(ctx, |driver| driver.locks.waiting(LockRef { db: ctx.db(), key: key.as_bytes() }));
        let (Some(expires_at), Some(mode)) = (holders.expires_at(), holders.mode()) else {
            ctx.reply_null();
            return Ok(());
        };
        // The server decides by an older clock than ours whether a lease is over: it is not negative.
        let ttl = |at: i64| at.saturating_sub(now.wall).max(0);
        ctx.reply_map(5);
        ctx.reply_bulk(b"mode");
        ctx.reply_bulk(mode.name().as_bytes());
        ctx.reply_bulk(b"ttl");
        ctx.reply_integer(ttl(expires_at));
        ctx.reply_bulk(b"token");
        match holders.token() {
            Some(token) => ctx.reply_integer(token),
            None => ctx.reply_null(),
        }
        ctx.reply_bulk(b"holders");
        let modes = [Mode::Exclusive, Mode::Shared];
        let holds = holders.iter().flat_map(|hold| modes.map(|mode| (hold, mode)));
        let holds: Vec<_> = holds.filter(|(hold, mode)| hold.count(*mode) > 0).collect();
        ctx.reply_array(holds.len());
        for (hold, mode) in holds {
            ctx.reply_map(4);
            ctx.reply_bulk(b"owner");
            ctx.reply_bulk(hold.owner.as_bytes());
            ctx.reply_bulk(b"mode");
            ctx.reply_bulk(mode.name().as_bytes());
            ctx.reply_bulk(b"holds");
            ctx.reply_integer(hold.count(mode));
            ctx.reply_bulk(b"ttl");
            ctx.reply_integer(ttl(hold.expires_at));
        }
        ctx.reply_bulk(b"waiters");
        ctx.reply_integer(super::count(waiters));
        Ok(())
    }
}
