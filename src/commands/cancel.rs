// SPDX-License-Identifier: MIT

//! `LOCK.CANCEL`

use super::args::{CommandName, Cursor};
use super::checks;
use super::options::{SessionNumber, KEY, OWNER, SESSION_NUMBER};
use super::Target;
use crate::core::{CallNumber, LockId, LockRef, Now, OtherTarget, Owner};
use crate::driver;
use crate::error::Error;
use crate::server::registration::arguments::{Argument, ArgumentKind, Arguments};
use crate::server::registration::command::{Args, Command, KeyUse, Spec};
use crate::server::{Ctx, Str};

pub(crate) struct Cancel;

const REQUEST: Argument = {
    const ID: Argument = Argument::new(c"request", ArgumentKind::Text, c"the ID of the acquire").after(c"ID");
    Argument::new(c"acquire", ArgumentKind::OneOf(&[ID, SESSION_NUMBER]), c"the acquire to undo")
};

impl Command for Cancel {
    const SPEC: Spec = Spec {
        name: c"lock.cancel",
        flags: c"write fast",
        categories: c"write fast",
        key: Some(KeyUse::Write),
        arguments: Arguments{positional: &[KEY, OWNER, REQUEST], options: &[] },
        summary: c"Undoes the acquire with this ID or number, even if it still waits or has not arrived yet.",
        reply: "1 if there was something to undo, otherwise 0.",
        complexity: c"O(1), or O(log(N)) where N waiters are queued for locks; O(M) where M owners hold the lock shared",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.cancel", args);
        let key = args.key()?;
        let owner = args.owner()?;
        match args.next() {
            Some(option) if option.eq_ignore_ascii_case(b"SESSION") => {
                let number = SessionNumber::values(&mut args)?;
                let command = args.command();
                args.end()?;
                return cancel_number(ctx, command, number, &key, &owner);
            }
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

/// Undoes an acquire of a session.
fn cancel_number(
    ctx: Ctx<'_>,
    command: CommandName,
    number: (&[u8], u64),
    key: &Str<'_>,
    owner: &Str<'_>,
) -> Result<(), Error> {
    let now = ctx.now();
    let number = checks::number(ctx, command, number, std::slice::from_ref(key), owner, now)?;
    let owner_name = Owner::new(owner.as_bytes());
    let lock = LockRef { db: ctx.db(), key: key.as_bytes() };
    let to_cancel = driver::with(ctx, |driver| driver.locks.to_cancel(number, lock, &owner_name));
    let (number, locks) = to_cancel.map_err(|OtherTarget| Error::OtherTarget)?;
    if !locks.is_empty() {
        return cancel_several(ctx, number, &locks, (owner, &owner_name), now);
    }
    let undone = super::update(ctx, Target::of_owner(key, owner), now, |lock, known| {
        let cancel = |driver: &mut driver::Driver| {
            driver.locks.cancel_number(lock.opened(known, now), &owner_name, number)
        };
        Ok(driver::with(ctx, cancel))
    })?;
    driver::dispatch(ctx, now);
    ctx.reply_integer(i64::from(undone.map_err(|OtherTarget| Error::OtherTarget)?));
    Ok(())
}

/// Undoes an acquire of a session for several locks.
fn cancel_several(
    ctx: Ctx<'_>,
    number: CallNumber,
    locks: &[LockId],
    (owner, owner_name): (&Str<'_>, &Owner),
    now: Now,
) -> Result<(), Error> {
    let mut undone = false;
    for lock in locks {
        let key = Str::new(&lock.key);
        let done = super::update_one_of_several(ctx, Target::of_owner(&key, owner), now, |lock, known| {
            let cancel = |driver: &mut driver::Driver| {
                driver.locks.cancel_number(lock.opened(known, now), owner_name, number)
            };
            Ok(driver::with(ctx, cancel))
        });
        undone |= matches!(done, Ok(Ok(true)));
    }
    driver::serve_bundles(ctx);
    driver::dispatch(ctx, now);
    ctx.reply_integer(i64::from(undone));
    Ok(())
}
