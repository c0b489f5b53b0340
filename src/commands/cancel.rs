// SPDX-License-Identifier: MIT

//! `LOCK.CANCEL`

use super::args::Cursor;
use super::options::{KEY, OWNER};
use crate::driver;
use crate::error::Error;
use crate::server::arguments::{Argument, Arguments, Kind};
use crate::server::load::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

pub(crate) struct Cancel;

const REQUEST: Argument =
    Argument::new(c"request", Kind::Text, c"is what LOCK.ACQUIRE had there").after(c"ID");

impl Command for Cancel {
    const SPEC: Spec = Spec {
        name: c"lock.cancel",
        flags: c"write fast",
        categories: c"write fast",
        key: Some(KeyUse::Write),
        arguments: Arguments { places: &[KEY, OWNER, REQUEST], options: &[] },
        summary: c"Undoes the acquire with a request id, whether it waits, was granted, or is still to come.",
        reply: "1 if there was anything to undo, otherwise 0.",
        complexity: c"O(1), or O(log(N)) where N waiters are queued for locks; O(M) where M owners hold the lock shared",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.cancel", args);
        let key = args.key()?;
        let asked = args.owner()?;
        match args.next() {
            Some(option) if !option.eq_ignore_ascii_case(b"ID") => return Err(args.unknown(option)),
            _ => {}
        }
        let id = args.request_id()?;
        let id = args.request(ctx, &key, asked.as_bytes(), id)?;
        args.end()?;
        let now = ctx.now();
        let done = super::one_in_hand(ctx, (&key, Some(&asked)), now, |lock, known| {
            Ok(driver::with(ctx, |driver| {
                let beside = driver.locks.sibling_locks(known, &id);
                let (undone, in_hand) = driver.locks.cancel(lock.opened(known, now), &id);
                ((undone, beside), in_hand)
            }))
        });
        if let Ok((_, beside)) = &done {
            driver::take_back(ctx, beside);
        }
        driver::serve_bundles(ctx);
        let (undone, _) = done?;
        driver::dispatch(ctx, now);
        ctx.reply_integer(i64::from(undone.map_err(Error::Refused)?));
        Ok(())
    }
}
