//! `LOCK.BREAK key`

use super::args::Cursor;
use crate::core::LockRef;
use crate::error::Error;
use crate::runtime;
use crate::server::load::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

pub(crate) struct Break;

impl Command for Break {
    const SPEC: Spec = Spec {
        name: c"lock.break",
        flags: c"write",
        categories: c"write slow dangerous",
        key: Some(KeyUse::Write),
        arity: 2,
        summary: c"Ends every hold on a lock, whoever has it, and hands the lock to the next in line.",
        complexity: c"O(N) where N owners hold the lock",
    };

    fn run(ctx: Ctx, args: Args<'_>) -> Result<(), Error> {
        let key = Cursor::new("lock.break", args).key()?;
        let now = ctx.now();
        let mut lock = super::open(ctx, &key, None, now)?;
        if lock.is_fair(now) {
            return Err(Error::FairLock);
        }
        let at = LockRef { db: ctx.db(), key: key.as_bytes() };
        let lost = runtime::with(ctx, |runtime| {
            runtime.service.break_lock(at, &mut lock.holders, &mut lock.records, now)
        });
        runtime::store(ctx, at, &mut lock);
        ctx.reply_integer(i64::try_from(lost).unwrap_or(i64::MAX));
        Ok(())
    }
}
