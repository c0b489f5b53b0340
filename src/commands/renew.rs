//! `LOCK.RENEW key owner [PX milliseconds | EX seconds]`

use super::args::Cursor;
use crate::config;
use crate::core::LockRef;
use crate::error::Error;
use crate::runtime;
use crate::server::load::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

pub(crate) struct Renew;

impl Command for Renew {
    const SPEC: Spec = Spec {
        name: c"lock.renew",
        flags: c"write fast",
        categories: c"write fast",
        key: Some(KeyUse::Write),
        arity: -3,
        summary: c"Sets the lease of a held lock anew, shorter or longer.",
        complexity: c"O(1), or O(log(N)) where N locks are waited for",
    };

    fn run(ctx: Ctx, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.renew", args);
        let key = args.key()?;
        let owner = args.owner()?;
        let mut lease = None;
        while let Some(option) = args.next() {
            if !args.lease(option, &mut lease)? {
                return Err(args.unknown(option));
            }
        }
        let lease_ms = lease.unwrap_or_else(config::default_lease);
        let mut lock = super::open(ctx, &key)?;
        let held = runtime::with(ctx, |runtime| {
            runtime.service.renew(
                LockRef { db: ctx.db(), key: key.as_bytes() },
                &mut lock.holders,
                owner,
                lease_ms,
                ctx.now(),
            )
        });
        let held = held.map_err(|_| Error::NotOwner)?;
        lock.store();
        runtime::settle(ctx);
        ctx.reply_integer(held);
        Ok(())
    }
}
