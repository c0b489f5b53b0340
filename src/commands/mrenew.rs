// SPDX-License-Identifier: MIT

//! `LOCK.MRENEW`

use super::args::Cursor;
use super::checks::{self, HoldOfCall, HoldOptions};
use super::options::{options, Ephemeral, Lease, SessionNumber, Watchdog, KEYS, NUMKEYS, OWNER};
use super::Target;
use crate::core::{NotRenewed, Now, Owner, Renewal};
use crate::driver;
use crate::error::Error;
use crate::server::registration::arguments::Arguments;
use crate::server::registration::command::{Args, Command, KeyUse, Spec};
use crate::server::{Ctx, Str};

pub(crate) struct Mrenew;

options! {
    Options {
        lease: Lease,
        watchdog: Watchdog,
        ephemeral: Ephemeral,
        session: SessionNumber<'a>,
    }
}

impl Command for Mrenew {
    const SPEC: Spec = Spec {
        name: c"lock.mrenew",
        flags: c"write",
        categories: c"write slow",
        key: Some(KeyUse::WriteSeveral),
        arguments: Arguments { positional: &[NUMKEYS, KEYS, OWNER], options: Options::ARGUMENTS },
        summary: c"Sets the leases of several locks, if the owner holds all of these locks.",
        reply: "An array of the hold counts, in the order of the keys.",
        complexity: c"O(K) for K locks, or O(K*log(N)) where N locks have waiters",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.mrenew", args);
        let keys = args.keys()?;
        checks::one_slot(ctx, &keys)?;
        let owner = args.owner()?;
        let mut options = Options::default();
        options.read(&mut args)?;
        let command = args.command();
        let Options { lease, watchdog, ephemeral, session, .. } = &options;
        let hold = HoldOptions { session: session.get(), lease, watchdog, ephemeral };
        // Uses one time for all locks. So a lease that is valid at the check cannot expire before the
        // renewal.
        let now = ctx.now();
        let HoldOfCall { number, bind, lease_ms } = checks::hold(ctx, command, &keys, &owner, &hold, now)?;
        let call = Renewal {
            owner: Owner::new(owner.as_bytes()),
            lease_ms,
            bind,
            client: super::client_for_events(ctx),
            number,
            from: None,
        };
        let renew_all = |()| {
            keys.iter().map(|key| renew(ctx, key, &owner, &call, now)).collect::<Result<Vec<i64>, Error>>()
        };
        let holds = driver::in_multi_lock_call(ctx, || {
            check_holds(ctx, &keys, &owner, &call, now).and_then(renew_all)
        });
        driver::dispatch(ctx, ctx.now());
        let holds = holds?;
        ctx.reply_array(holds.len());
        holds.into_iter().for_each(|holds| ctx.reply_integer(holds));
        Ok(())
    }
}

/// Fails if the owner does not hold all locks. Changes nothing except expired holds and due grants.
fn check_holds(
    ctx: Ctx<'_>,
    keys: &[Str<'_>],
    owner: &Str<'_>,
    call: &Renewal,
    now: Now,
) -> Result<(), Error> {
    let mut missing = None;
    for key in keys {
        super::update_one_of_several(ctx, Target::of_owner(key, owner), now, |lock, known| {
            let (held, output) =
                driver::with(ctx, |driver| driver.locks.check_renewal(lock.opened(known, now), call));
            if let Err(why) = held {
                let fair = lock.is_fair(now);
                missing.get_or_insert_with(|| error_of(why, fair));
            }
            Ok(((), output))
        })?;
    }
    missing.map_or(Ok(()), Err)
}

fn renew(ctx: Ctx<'_>, key: &Str<'_>, owner: &Str<'_>, call: &Renewal, now: Now) -> Result<i64, Error> {
    let held = super::update_one_of_several(ctx, Target::of_owner(key, owner), now, |lock, known| {
        Ok(driver::with(ctx, |driver| driver.locks.renew(lock.opened(known, now), call)))
    })?;
    held.map_err(|why| error_of(why, false))
}

/// The error for a refused renewal. `fair` is true if the key is a Redisson fair lock with waiters.
pub(super) fn error_of(why: NotRenewed, fair: bool) -> Error {
    match why {
        NotRenewed::NotOwner if fair => Error::FairLock,
        NotRenewed::NotOwner => Error::NotOwner,
        NotRenewed::Late => Error::Late,
        NotRenewed::OtherTarget => Error::OtherTarget,
    }
}
