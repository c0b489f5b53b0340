//! `LOCK.INFO key`

use super::args::Cursor;
use crate::core::LockRef;
use crate::error::Error;
use crate::keyspace;
use crate::runtime;
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

    fn run(ctx: Ctx, args: Args<'_>) -> Result<(), Error> {
        let key = Cursor::new("lock.info", args).key()?;
        let holders = keyspace::look(ctx, &key)?;
        let waiters = runtime::with(ctx, |runtime| {
            runtime.service.waiting(LockRef { db: ctx.db(), key: key.as_bytes() })
        });
        let Some(expires_at) = holders.expires_at() else {
            ctx.reply_null();
            return Ok(());
        };
        let now = ctx.now().wall;
        // The server decides by an older clock than ours whether a lease is over: it is not negative.
        let ttl = |at: i64| at.saturating_sub(now).max(0);
        ctx.reply_map(5);
        ctx.reply_bulk(b"mode");
        ctx.reply_bulk(b"exclusive");
        ctx.reply_bulk(b"ttl");
        ctx.reply_integer(ttl(expires_at));
        ctx.reply_bulk(b"token");
        ctx.reply_null();
        ctx.reply_bulk(b"holders");
        ctx.reply_array(holders.iter().count());
        for hold in holders.iter() {
            ctx.reply_map(4);
            ctx.reply_bulk(b"owner");
            ctx.reply_bulk(hold.owner.as_bytes());
            ctx.reply_bulk(b"mode");
            ctx.reply_bulk(b"exclusive");
            ctx.reply_bulk(b"holds");
            ctx.reply_integer(hold.holds);
            ctx.reply_bulk(b"ttl");
            ctx.reply_integer(ttl(hold.expires_at));
        }
        ctx.reply_bulk(b"waiters");
        ctx.reply_integer(i64::try_from(waiters).unwrap_or(i64::MAX));
        Ok(())
    }
}
