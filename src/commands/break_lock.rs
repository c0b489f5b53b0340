// SPDX-License-Identifier: MIT

//! `LOCK.BREAK`

use super::args::Cursor;
use super::options::KEY;
use super::Target;
use crate::core::{LockRef, Now, Owner};
use crate::driver;
use crate::error::{printable, printable_up_to, Error};
use crate::server::clients::caller::Caller;
use crate::server::registration::arguments::Arguments;
use crate::server::registration::command::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

/// The maximum number of bytes of a key or of an owner's name in a log line.
const MAX_LOGGED_NAME: usize = 512;

/// The maximum number of owners that are logged.
const MAX_LOGGED_OWNERS: usize = 16;

pub(crate) struct Break;

impl Command for Break {
    const SPEC: Spec = Spec {
        name: c"lock.break",
        flags: c"write",
        categories: c"write slow dangerous",
        key: Some(KeyUse::Write),
        arguments: Arguments { positional: &[KEY], options: &[] },
        summary: c"Ends all holds on a lock and hands it to the next waiter.",
        reply: "The number of owners that lost the lock.",
        complexity: c"O(N) where N owners hold the lock",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let key = Cursor::new("lock.break", args).key()?;
        let now = ctx.now();
        // The reply counts the owners, including those of foreign writes. It is exact unless there are thousands.
        crate::keyspace::force_full_read(ctx, &key);
        let mut owners = Vec::new();
        let lost = super::update(ctx, Target { key: &key, owner: None }, now, |lock, known| {
            if lock.is_fair(now) {
                return Err(Error::FairLock);
            }
            owners.extend(lock.holders.iter().take(MAX_LOGGED_OWNERS).map(|hold| hold.owner.clone()));
            Ok(driver::with(ctx, |driver| driver.locks.break_lock(lock.opened(known, now))))
        })?;
        driver::dispatch(ctx, now);
        if lost > 0 {
            log(ctx, LockRef { db: ctx.db(), key: key.as_bytes() }, &owners, lost, now);
        }
        ctx.reply_integer(i64::try_from(lost).unwrap_or(i64::MAX));
        Ok(())
    }
}

/// Logs the caller and the owners, so that an operator can tell who broke the lock of whom.
fn log(ctx: Ctx<'_>, lock: LockRef<'_>, owners: &[Owner], lost: usize, now: Now) {
    let caller = Caller::of(ctx);
    let user = caller.user().map_or("an unknown user".to_owned(), |user| format!("user {}", printable(user)));
    let address = match caller.address() {
        Some(address) => format!("at {}", printable(address)),
        None => "in a script".to_owned(),
    };
    let by = format!("{user} {address}");
    driver::with(ctx, |driver| driver.locks.log_broken(lock, owners, &by, now));
    let mut names: Vec<String> =
        owners.iter().map(|owner| printable_up_to(owner.as_bytes(), MAX_LOGGED_NAME)).collect();
    if lost > owners.len() {
        names.push(format!("{} more", lost - owners.len()));
    }
    let key = printable_up_to(lock.key, MAX_LOGGED_NAME);
    let names = names.join(", ");
    ctx.note(&format!("redis-lock: LOCK.BREAK of {key} in database {} by {by}; lost by {names}", lock.db));
}
