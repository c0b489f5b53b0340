// SPDX-License-Identifier: MIT

//! `LOCK.INFO`

use super::args::Cursor;
use super::milliseconds;
use super::options::KEY;
use crate::core::{Hold, LockId, LockRef, Mode, Now, Owner, WallMs};
use crate::driver;
use crate::error::Error;
use crate::keyspace;
use crate::server::clients::long_reply::{self, Entries};
use crate::server::registration::arguments::Arguments;
use crate::server::registration::command::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

pub(crate) struct Info;

impl Command for Info {
    const SPEC: Spec = Spec {
        name: c"lock.info",
        flags: c"readonly fast",
        categories: c"read fast",
        key: Some(KeyUse::Read),
        arguments: Arguments { positional: &[KEY], options: &[] },
        summary: c"Shows the holders of a lock and the number of waiters.",
        reply: "Nil if the lock is free, otherwise a map.",
        complexity: c"O(N) where N owners hold the lock",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let key = Cursor::new("lock.info", args).key()?;
        let now = ctx.now();
        let holders = keyspace::read_holders_fully(ctx, &key, now)?;
        if keyspace::redisson_fair::has_queue(ctx, &key, now) {
            return Err(Error::FairLock);
        }
        let waiters =
            driver::with(ctx, |driver| driver.locks.waiting(LockRef { db: ctx.db(), key: key.as_bytes() }));
        let (Some(expires_at), Some(mode)) = (holders.expires_at(), holders.mode()) else {
            ctx.reply_null();
            return Ok(());
        };
        let token = holders.token();
        let before = move |ctx: Ctx<'_>| {
            ctx.reply_map(5);
            ctx.reply_bulk(b"mode");
            ctx.reply_bulk(mode.name().as_bytes());
            ctx.reply_bulk(b"ttl");
            ctx.reply_integer(lease_left(expires_at, now));
            ctx.reply_bulk(b"token");
            match token {
                Some(token) => ctx.reply_integer(token),
                None => ctx.reply_null(),
            }
            ctx.reply_bulk(b"holders");
        };
        let modes = [Mode::Exclusive, Mode::Shared];
        let holds = holders.iter().flat_map(|hold| modes.map(|mode| (hold, mode)));
        // Takes a snapshot, because a long reply is written later, in portions.
        let held = |(hold, mode): (&Hold, Mode)| {
            let holds = Some(hold.count(mode)).filter(|holds| *holds > 0)?;
            Some(Held { owner: hold.owner.clone(), mode, holds, ttl: lease_left(hold.expires_at, now) })
        };
        let holds: Vec<Held> = holds.filter_map(held).collect();
        let len = holds.len();
        let mut holds = holds.into_iter();
        let lock = LockRef { db: ctx.db(), key: key.as_bytes() }.to_id();
        let next = move |most| holds.by_ref().take(most).map(|held| (lock.clone(), held)).collect();
        let entries = Entries { len, next, entry };
        long_reply::array_within(ctx, before, entries, move |ctx| {
            ctx.reply_bulk(b"waiters");
            ctx.reply_integer(super::count(waiters));
        });
        Ok(())
    }
}

/// The holds of an owner in one mode.
struct Held {
    owner: Owner,
    mode: Mode,
    holds: i64,
    ttl: i64,
}

fn entry(ctx: Ctx<'_>, (lock, held): (LockId, Held)) -> bool {
    let now = ctx.now();
    let known = driver::with(ctx, |driver| driver.locks.hold(lock.as_ref(), &held.owner, now));
    let number = |number: Option<i64>| match number {
        Some(number) => ctx.reply_integer(number),
        None => ctx.reply_null(),
    };
    ctx.reply_map(11);
    ctx.reply_bulk(b"owner");
    ctx.reply_bulk(held.owner.as_bytes());
    ctx.reply_bulk(b"mode");
    ctx.reply_bulk(held.mode.name().as_bytes());
    ctx.reply_bulk(b"holds");
    ctx.reply_integer(held.holds);
    ctx.reply_bulk(b"ttl");
    ctx.reply_integer(held.ttl);
    ctx.reply_bulk(b"since");
    number(known.as_ref().and_then(|hold| hold.held_us).map(milliseconds));
    super::reply_client(ctx, known.as_ref().and_then(|hold| hold.client));
    ctx.reply_bulk(b"watchdog");
    number(known.as_ref().map(|hold| hold.watchdog.into()));
    ctx.reply_bulk(b"ephemeral");
    number(known.as_ref().map(|hold| hold.ephemeral.into()));
    ctx.reply_bulk(b"session");
    super::reply_bulk_or_null(ctx, known.as_ref().and_then(|hold| hold.session.as_deref()));
    true
}

/// The remaining lease, in milliseconds. Never negative: the server's cached clock lags behind this one, so a
/// key can briefly outlive its lease.
pub(super) fn lease_left(expires_at: WallMs, now: Now) -> i64 {
    expires_at.saturating_sub(now.wall).max(0)
}
