// SPDX-License-Identifier: MIT

//! `LOCK.CHECK`

use super::args::Cursor;
use super::claim::{Claim, CLAIM};
use super::options::KEY;
use crate::error::Error;
use crate::server::registration::arguments::Arguments;
use crate::server::registration::command::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

pub(crate) struct Check;

impl Command for Check {
    const SPEC: Spec = Spec {
        name: c"lock.check",
        flags: c"readonly fast",
        categories: c"read fast",
        key: Some(KeyUse::Read),
        arguments: Arguments { positional: &[KEY, CLAIM], options: &[] },
        summary: c"Checks that an owner holds a lock, or that no newer token was granted.",
        reply: "The owner's hold count, or 1 for a token.",
        complexity: c"O(1); O(M) where up to 8 owners hold the lock shared",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.check", args);
        let key = args.key()?;
        let claim = Claim::parse(&mut args)?;
        claim.check_slot(ctx, args.command(), &key)?;
        ctx.reply_integer(claim.verify(ctx, &key)?.holds);
        Ok(())
    }
}
