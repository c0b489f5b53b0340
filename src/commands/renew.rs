// SPDX-License-Identifier: MIT

//! `LOCK.RENEW`

use super::args::Cursor;
use super::options::{options, Ephemeral, Lease, Replicas, Watchdog, KEY, OWNER};
use crate::config;
use crate::core::{Owner, Renewal};
use crate::driver::{self, Standing, Whose};
use crate::error::Error;
use crate::server::arguments::Arguments;
use crate::server::load::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

pub(crate) struct Renew;

options! {
    Options {
        lease: Lease,
        watchdog: Watchdog,
        ephemeral: Ephemeral,
        replicas: Replicas,
    }
}

impl Command for Renew {
    const SPEC: Spec = Spec {
        name: c"lock.renew",
        flags: c"write fast",
        categories: c"write fast",
        key: Some(KeyUse::Write),
        arguments: Arguments { places: &[KEY, OWNER], options: Options::ARGUMENTS },
        summary: c"Sets the lease of a held lock anew, shorter or longer.",
        reply: "The hold count.",
        complexity:
            c"O(1), or O(log(N)) where N locks are waited for; O(M) where M owners hold the lock shared",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.renew", args);
        let key = args.key()?;
        let asked = args.owner()?;
        let mut given = Options::default();
        given.read(&mut args)?;
        let bind = given.watchdog.bind(&given.ephemeral, ctx, &args)?;
        let wanted = given.replicas.acknowledgement(ctx, &args)?;
        let call = Renewal {
            owner: Owner::new(asked.as_bytes()),
            lease_ms: given.lease.ms().unwrap_or_else(config::default_lease),
            bind,
            client: super::client_if_told(ctx),
        };
        let now = ctx.now();
        let (held, fair) = super::in_hand(ctx, (&key, Some(&asked)), now, |lock, known| {
            let (held, in_hand) =
                driver::with(ctx, |driver| driver.locks.renew(lock.opened(known, now), &call));
            let fair = held.is_err() && lock.is_fair(now);
            Ok(((held, fair), in_hand))
        })?;
        driver::dispatch(ctx, now);
        let holds = held.map_err(|_| if fair { Error::FairLock } else { Error::NotOwner })?;
        let Some(wanted) = wanted else {
            ctx.reply_integer(holds);
            return Ok(());
        };
        let whose = Whose::Owner(call.owner, holds);
        let standing = Standing { db: ctx.db(), key: key.as_bytes().to_vec(), whose };
        driver::block_until_acknowledged(ctx, wanted, standing)
    }
}
