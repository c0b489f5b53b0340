// SPDX-License-Identifier: MIT

//! `LOCK.CANCEL`

use super::args::Cursor;
use super::checks;
use super::options::{KEY, OWNER};
use super::Target;
use crate::driver;
use crate::error::Error;
use crate::server::registration::arguments::{Argument, ArgumentKind, Arguments};
use crate::server::registration::command::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

pub(crate) struct Cancel;

const REQUEST: Argument =
    Argument::new(c"request", ArgumentKind::Text, c"the ID of the acquire").after(c"ID");

impl Command for Cancel {
    const SPEC: Spec = Spec {
        name: c"lock.cancel",
        flags: c"write fast",
        categories: c"write fast",
        key: Some(KeyUse::Write),
        arguments: Arguments{positional: &[KEY, OWNER, REQUEST], options: &[] },
        summary: c"Undoes the acquire with this request ID, even if it still waits or has not arrived yet.",
        reply: "1 if there was something to undo, otherwise 0.",
        complexity: c"O(1), or O(log(N)) where N waiters are queued for locks; O(M) where M owners hold the lock shared",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.cancel", args);
        let key = args.key()?;
        let owner = args.owner()?;
        match args.next() {
            Some(option) if !option.eq_ignore_ascii_case(b"ID") => return Err(args.unknown(option)),
            _ => {}
        }
        let id = args.request_id()?;
        let command = args.command();
        args.end()?;
        let id = checks::request(ctx, command, &key, &owner, id)?;
        let now = ctx.now();
        let done = super::update_one_of_several(ctx, Target::of_owner(&key, &owner), now, |lock, known| {
            Ok(driver::with(ctx, |driver| {
                let beside = driver.locks.sibling_locks(known, &id);
                let (undone, output) = driver.locks.cancel(lock.opened(known, now), &id);
                ((undone, beside), output)
            }))
        });
        if let Ok((_, beside)) = &done {
            driver::revoke_cancelled(ctx, beside);
        }
        driver::serve_bundles(ctx);
        let (undone, _) = done?;
        driver::dispatch(ctx, now);
        ctx.reply_integer(i64::from(undone.map_err(Error::Refused)?));
        Ok(())
    }
}
