//! `LOCK.RELEASE key owner [PX milliseconds | EX seconds] [ALL]`

use super::args::Cursor;
use crate::core::LockRef;
use crate::error::Error;
use crate::runtime;
use crate::server::load::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

pub(crate) struct Release;

impl Command for Release {
    const SPEC: Spec = Spec {
        name: c"lock.release",
        flags: c"write fast",
        categories: c"write fast",
        key: Some(KeyUse::Write),
        arity: -3,
        summary: c"Gives back one hold of a lock, or all, and hands the lock to the next in line.",
        complexity: c"O(1), or O(log(N)) where N waiters are queued for locks",
    };

    fn run(ctx: Ctx, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.release", args);
        let key = args.key()?;
        let owner = args.owner()?;
        let (mut lease, mut all) = (None, None);
        while let Some(option) = args.next() {
            if args.lease(option, &mut lease)? {
            } else if option.eq_ignore_ascii_case(b"ALL") {
                args.once("ALL", &mut all, ())?;
            } else {
                return Err(args.unknown(option));
            }
        }
        let mut lock = super::open(ctx, &key)?;
        let left = runtime::with(ctx, |runtime| {
            let at = LockRef { db: ctx.db(), key: key.as_bytes() };
            runtime.service.release(at, &mut lock.holders, owner, all.is_some(), lease, ctx.now())
        });
        let left = left.map_err(|_| Error::NotOwner)?;
        lock.store();
        runtime::settle(ctx);
        ctx.reply_integer(left);
        Ok(())
    }
}
