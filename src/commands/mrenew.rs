// SPDX-License-Identifier: MIT

//! `LOCK.MRENEW`

use super::args::Cursor;
use super::checks;
use super::options::{options, Ephemeral, Lease, Watchdog, KEYS, NUMKEYS, OWNER};
use super::Target;
use crate::config;
use crate::core::{Now, Owner, Renewal};
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
        let call = Renewal {
            owner: Owner::new(owner.as_bytes()),
            lease_ms: options.lease.ms().unwrap_or_else(config::default_lease),
            bind: checks::bind(ctx, command, options.watchdog.binding(&options.ephemeral, command)?)?,
            client: super::client_for_events(ctx),
            number: None,
        };
        // Uses one time for all locks. So a lease that is valid at the check cannot expire before the
        // renewal.
        let now = ctx.now();
        let renew_all = |()| {
            keys.iter().map(|key| renew(ctx, key, &owner, &call, now)).collect::<Result<Vec<i64>, Error>>()
        };
        let holds =
            driver::in_multi_lock_call(ctx, || check_holds(ctx, &keys, &owner, now).and_then(renew_all));
        driver::dispatch(ctx, ctx.now());
        let holds = holds?;
        ctx.reply_array(holds.len());
        holds.into_iter().for_each(|holds| ctx.reply_integer(holds));
        Ok(())
    }
}

/// Fails if the owner does not hold all locks. Changes nothing except expired holds and due grants.
fn check_holds(ctx: Ctx<'_>, keys: &[Str<'_>], owner: &Str<'_>, now: Now) -> Result<(), Error> {
    let mut missing = None;
    for key in keys {
        super::update_one_of_several(ctx, Target::of_owner(key, owner), now, |lock, known| {
            let output = driver::with(ctx, |driver| driver.locks.reconcile(lock.opened(known, now)));
            if lock.holders.get(owner.as_bytes()).is_none() {
                missing.get_or_insert(if lock.is_fair(now) { Error::FairLock } else { Error::NotOwner });
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
    held.map_err(|_| Error::NotOwner)
}
