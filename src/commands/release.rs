//! `LOCK.RELEASE key owner [PX milliseconds | EX seconds] [SHARED | ALL] [ID request]`

use super::args::Cursor;
use crate::core::{Mode, NotReleased, Owner, Release as Call, ReleaseScope};
use crate::driver;
use crate::error::Error;
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
        complexity: c"O(1), or O(log(N)) where N waiters are queued for locks; O(M) where M owners hold the lock shared",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.release", args);
        let key = args.key()?;
        let owner = args.owner()?;
        let (mut lease_ms, mut shared, mut all, mut id) = (None, None, None, None);
        while let Some(option) = args.next() {
            if args.lease(option, &mut lease_ms)? {
            } else if option.eq_ignore_ascii_case(b"ALL") {
                args.once("ALL", &mut all, ())?;
            } else if option.eq_ignore_ascii_case(b"SHARED") {
                args.once("SHARED", &mut shared, ())?;
            } else if option.eq_ignore_ascii_case(b"ID") {
                let value = args.request_id()?;
                args.once("ID", &mut id, value)?;
            } else {
                return Err(args.unknown(option));
            }
        }
        let scope = match (shared, all) {
            (None, None) => ReleaseScope::One,
            (Some(()), None) => ReleaseScope::OneOf(Mode::Shared),
            (None, Some(())) => ReleaseScope::All,
            (Some(()), Some(())) => return Err(args.excluded("SHARED", "ALL")),
        };
        let id = id.map(|id| args.request(ctx, &key, owner.as_bytes(), id)).transpose()?;
        let call = Call { owner: Owner::new(owner.as_bytes()), scope, lease_ms, id };
        let now = ctx.now();
        let (left, fair) = super::in_hand(ctx, (&key, Some(&owner)), now, |lock, known| {
            let (left, in_hand) = driver::with(ctx, |driver| {
                driver.locks.release(known, &mut lock.holders, &mut lock.records, &call, now)
            });
            let fair = left == Err(NotReleased::NotOwner) && lock.is_fair(now);
            Ok(((left, fair), in_hand))
        })?;
        driver::dispatch(ctx);
        ctx.reply_integer(left.map_err(|why| match why {
            NotReleased::NotOwner if fair => Error::FairLock,
            NotReleased::NotOwner => Error::NotOwner,
            NotReleased::Refused(refusal) => Error::Refused(refusal),
        })?);
        Ok(())
    }
}
