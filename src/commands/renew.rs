// SPDX-License-Identifier: MIT

//! `LOCK.RENEW`

use std::rc::Rc;

use super::args::Cursor;
use super::checks::{self, HoldOfCall, HoldOptions};
use super::options::{options, Ephemeral, From, Lease, Replicas, SessionNumber, Watchdog, KEY, OWNER};
use super::Target;
use crate::core::{HandOver, Owner, Renewal};
use crate::driver::{self, AwaitedHold, HoldRef};
use crate::error::Error;
use crate::server::registration::arguments::Arguments;
use crate::server::registration::command::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

pub(crate) struct Renew;

options! {
    Options {
        lease: Lease,
        watchdog: Watchdog,
        ephemeral: Ephemeral,
        replicas: Replicas,
        session: SessionNumber<'a>,
        from: From<'a>,
    }
}

impl Command for Renew {
    const SPEC: Spec = Spec {
        name: c"lock.renew",
        flags: c"write fast",
        categories: c"write fast",
        key: Some(KeyUse::Write),
        arguments: Arguments { positional: &[KEY, OWNER], options: Options::ARGUMENTS },
        summary: c"Sets the lease of a held lock, shorter or longer.",
        reply: "The hold count.",
        complexity:
            c"O(1), or O(log(N)) where N locks have waiters; O(M) where M owners hold the lock shared",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.renew", args);
        let key = args.key()?;
        let owner = args.owner()?;
        let mut options = Options::default();
        options.read(&mut args)?;
        let command = args.command();
        let Options { lease, watchdog, ephemeral, session, .. } = &options;
        let hold = HoldOptions { session: session.get(), lease, watchdog, ephemeral };
        let now = ctx.now();
        let HoldOfCall { number, bind, lease_ms } =
            checks::hold(ctx, command, std::slice::from_ref(&key), &owner, &hold, now)?;
        let acknowledgement = checks::replicas(ctx, command, options.replicas.acknowledgement(command)?)?;
        let from = options.from.get().map(|(name, n)| HandOver { name: Rc::from(name), n });
        if from.is_some() && number.is_none() {
            return Err(command.problem("FROM needs SESSION"));
        }
        let call = Renewal {
            owner: Owner::new(owner.as_bytes()),
            lease_ms,
            bind,
            number,
            from,
            client: super::client_for_events(ctx),
        };
        let (held, fair) = super::update(ctx, Target::of_owner(&key, &owner), now, |lock, known| {
            let (held, output) =
                driver::with(ctx, |driver| driver.locks.renew(lock.opened(known, now), &call));
            let fair = held.is_err() && lock.is_fair(now);
            Ok(((held, fair), output))
        })?;
        driver::dispatch(ctx, now);
        let holds = held.map_err(|why| super::mrenew::error_of(why, fair))?;
        let Some(wanted) = acknowledgement else {
            ctx.reply_integer(holds);
            return Ok(());
        };
        let hold_ref = HoldRef::Owner(call.owner, holds);
        let standing = AwaitedHold { db: ctx.db(), key: key.as_bytes().to_vec(), hold_ref };
        driver::block_until_acknowledged(ctx, wanted, standing)
    }
}
