// SPDX-License-Identifier: MIT

//! `LOCK.RELEASE`

use super::args::Cursor;
use super::checks;
use super::options::{options, Id, RemainingLease, Scope, SessionNumber, KEY, OWNER};
use super::Target;
use crate::core::{NotReleased, Owner, Release as Call, ReleaseScope};
use crate::driver;
use crate::error::Error;
use crate::server::registration::arguments::Arguments;
use crate::server::registration::command::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

pub(crate) struct Release;

options! {
    Options {
        lease: RemainingLease,
        scope: Scope,
        id: Id<'a>,
        session: SessionNumber<'a>,
    }
}

impl Command for Release {
    const SPEC: Spec = Spec {
        name: c"lock.release",
        flags: c"write fast",
        categories: c"write fast",
        key: Some(KeyUse::Write),
        arguments: Arguments{positional: &[KEY, OWNER], options: Options::ARGUMENTS },
        summary: c"Releases one hold or all holds of a lock, and hands a free lock to the next waiter.",
        reply: "The number of remaining holds.",
        complexity: c"O(1), or O(log(N)) where N waiters are queued for locks; O(M) where M owners hold the lock shared",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.release", args);
        let key = args.key()?;
        let owner = args.owner()?;
        let mut options = Options::default();
        options.read(&mut args)?;
        let command = args.command();
        let scope = options.scope.get(command)?;
        let id = options.id.get().map(|id| checks::request(ctx, command, &key, &owner, id)).transpose()?;
        let now = ctx.now();
        let number = match options.session.get() {
            Some(_) if scope != ReleaseScope::One => {
                // The number names one hold.
                let other = if scope == ReleaseScope::All { "ALL" } else { "SHARED" };
                return Err(command.exclusive("SESSION", other));
            }
            Some(_) if id.is_some() => return Err(command.exclusive("SESSION", "ID")),
            Some(number) => {
                Some(checks::number(ctx, command, number, std::slice::from_ref(&key), &owner, now)?)
            }
            None => None,
        };
        let call =
            Call { number, owner: Owner::new(owner.as_bytes()), scope, lease_ms: options.lease.ms(), id };
        let (left, fair) = super::update(ctx, Target::of_owner(&key, &owner), now, |lock, known| {
            let (left, output) =
                driver::with(ctx, |driver| driver.locks.release(lock.opened(known, now), &call));
            let fair = left == Err(NotReleased::NotOwner) && lock.is_fair(now);
            Ok(((left, fair), output))
        })?;
        driver::dispatch(ctx, now);
        ctx.reply_integer(left.map_err(|why| match why {
            NotReleased::OtherTarget => Error::OtherTarget,
            NotReleased::NotOwner if fair => Error::FairLock,
            NotReleased::NotOwner => Error::NotOwner,
            NotReleased::Refused(refusal) => Error::Refused(refusal),
        })?);
        Ok(())
    }
}
