// SPDX-License-Identifier: MIT

//! `LOCK.RELEASE`

use super::args::Cursor;
use super::options::{options, Id, LeaseOfRest, Scope, KEY, OWNER};
use crate::core::{NotReleased, Owner, Release as Call};
use crate::driver;
use crate::error::Error;
use crate::server::arguments::Arguments;
use crate::server::load::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

pub(crate) struct Release;

options! {
    Options {
        lease: LeaseOfRest,
        scope: Scope,
        id: Id<'a>,
    }
}

impl Command for Release {
    const SPEC: Spec = Spec {
        name: c"lock.release",
        flags: c"write fast",
        categories: c"write fast",
        key: Some(KeyUse::Write),
        arguments: Arguments { places: &[KEY, OWNER], options: Options::ARGUMENTS },
        summary: c"Gives back one hold of a lock, or all, and hands the lock to the next in line.",
        reply: "The holds that are left.",
        complexity: c"O(1), or O(log(N)) where N waiters are queued for locks; O(M) where M owners hold the lock shared",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.release", args);
        let key = args.key()?;
        let owner = args.owner()?;
        let mut given = Options::default();
        given.read(&mut args)?;
        let scope = given.scope.get(&args)?;
        let id = given.id.get().map(|id| args.request(ctx, &key, owner.as_bytes(), id)).transpose()?;
        let call = Call { owner: Owner::new(owner.as_bytes()), scope, lease_ms: given.lease.ms(), id };
        let now = ctx.now();
        let (left, fair) = super::in_hand(ctx, (&key, Some(&owner)), now, |lock, known| {
            let (left, in_hand) =
                driver::with(ctx, |driver| driver.locks.release(lock.opened(known, now), &call));
            let fair = left == Err(NotReleased::NotOwner) && lock.is_fair(now);
            Ok(((left, fair), in_hand))
        })?;
        driver::dispatch(ctx, now);
        ctx.reply_integer(left.map_err(|why| match why {
            NotReleased::NotOwner if fair => Error::FairLock,
            NotReleased::NotOwner => Error::NotOwner,
            NotReleased::Refused(refusal) => Error::Refused(refusal),
        })?);
        Ok(())
    }
}
