// SPDX-License-Identifier: MIT

//! `LOCK.BREAK`

use super::args::Cursor;
use super::options::KEY;
use crate::core::LockRef;
use crate::driver;
use crate::error::{shown, shown_up_to, Error};
use crate::server::arguments::Arguments;
use crate::server::caller::Caller;
use crate::server::load::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

/// How many bytes of a key its line in the log has.
const LONGEST_KEY: usize = 512;

pub(crate) struct Break;

impl Command for Break {
    const SPEC: Spec = Spec {
        name: c"lock.break",
        flags: c"write",
        categories: c"write slow dangerous",
        key: Some(KeyUse::Write),
        arguments: Arguments { places: &[KEY], options: &[] },
        summary: c"Ends every hold on a lock, whoever has it, and hands the lock to the next in line.",
        reply: "How many owners lost the lock.",
        complexity: c"O(N) where N owners hold the lock",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let key = Cursor::new("lock.break", args).key()?;
        let now = ctx.now();
        // The reply says how many there are, whatever somebody has written there by hand, unless there are thousands.
        crate::keyspace::read_closely(ctx, &key);
        let lost = super::in_hand(ctx, (&key, None), now, |lock, known| {
            if lock.is_fair(now) {
                return Err(Error::FairLock);
            }
            Ok(driver::with(ctx, |driver| driver.locks.break_lock(lock.opened(known, now))))
        })?;
        driver::dispatch(ctx, now);
        if lost > 0 {
            note(ctx, LockRef { db: ctx.db(), key: key.as_bytes() }, lost);
        }
        ctx.reply_integer(i64::try_from(lost).unwrap_or(i64::MAX));
        Ok(())
    }
}

/// Whoever lost a lock will want to know by whom.
fn note(ctx: Ctx<'_>, lock: LockRef<'_>, lost: usize) {
    let caller = Caller::of(ctx);
    let user = caller.user().map_or("an unknown user".to_owned(), |user| format!("user {}", shown(user)));
    let address = match caller.address() {
        Some(address) => format!("at {}", shown(address)),
        None => "in a script".to_owned(),
    };
    let owners = if lost == 1 { "1 owner".to_owned() } else { format!("{lost} owners") };
    ctx.note(&format!(
        "redis-lock: LOCK.BREAK of {} in database {} by {user} {address}: {owners} lost it",
        shown_up_to(lock.key, LONGEST_KEY),
        lock.db
    ));
}
