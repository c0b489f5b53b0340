// SPDX-License-Identifier: MIT

//! `LOCK.LIST`

use super::args::Cursor;
use super::glob::{literal, matches};
use super::options::{options, ListCount, Match};
use super::{count, milliseconds};
use crate::core::{Contended, Holders, LockRef, Mode};
use crate::driver;
use crate::error::Error;
use crate::keyspace;
use crate::server::clients::long_reply;
use crate::server::registration::arguments::Arguments;
use crate::server::registration::command::{Args, Command, Spec};
use crate::server::{Ctx, Str};

pub(crate) struct List;

options! {
    Options {
        pattern: Match<'a>,
        count: ListCount,
    }
}

impl Command for List {
    const SPEC: Spec = Spec {
        name: c"lock.list",
        flags: c"readonly",
        categories: c"read slow dangerous",
        key: None,
        arguments: Arguments { positional: &[], options: Options::ARGUMENTS },
        summary: c"Lists the locks with waiters, longest queue first.",
        reply: "An array of maps.",
        complexity: c"O(N*log(N)) where N locks have waiters; O(1) if the pattern has no wildcard",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.list", args);
        let mut options = Options::default();
        options.read(&mut args)?;
        let db = ctx.db();
        let pattern = options.pattern.get();
        let passes = |key: &[u8]| pattern.is_none_or(|pattern| matches(pattern, key));
        let mut locks = driver::with(ctx, |driver| match pattern.and_then(literal) {
            Some(key) => Vec::from_iter(driver.locks.contended(LockRef { db, key: &key })),
            None => driver.locks.contended_in(db, passes),
        });
        let most = options.count.get().min(locks.len());
        // Sorting thousands of locks would take as long as listing them, so each portion is sorted only when
        // it is written.
        select_first(&mut locks, most);
        locks.truncate(most);
        let next = move |most| {
            let most = locks.len().min(most);
            select_first(&mut locks, most);
            let mut portion: Vec<Contended> = locks.drain(..most).collect();
            portion.sort_unstable();
            portion
        };
        long_reply::array(ctx, most, next, entry);
        Ok(())
    }
}

/// Moves the first `most` locks in sort order to the front.
fn select_first(locks: &mut [Contended], most: usize) {
    if most < locks.len() {
        locks.select_nth_unstable(most);
    }
}

fn entry(ctx: Ctx<'_>, Contended { waiters, lock }: Contended) -> bool {
    let now = ctx.now();
    let Some(queue) = driver::with(ctx, |driver| driver.locks.queue(lock.as_ref(), now)) else {
        return false;
    };
    let (mode, holders) = if queue.is_plain {
        (Some(Mode::Exclusive), 1)
    } else {
        // A key with other data counts as free here. The module will soon detect it and end the waits.
        let holders = keyspace::read_holders(ctx, &Str::new(&lock.key), now).unwrap_or(Holders::Free);
        (holders.mode(), holders.len())
    };
    ctx.reply_map(5);
    ctx.reply_bulk(b"key");
    ctx.reply_bulk(&lock.key);
    ctx.reply_bulk(b"mode");
    // A free lock will soon be granted to the first waiter, in this mode.
    ctx.reply_bulk(mode.unwrap_or(queue.wanted).name().as_bytes());
    ctx.reply_bulk(b"holders");
    ctx.reply_integer(count(holders));
    ctx.reply_bulk(b"waiters");
    ctx.reply_integer(count(waiters));
    ctx.reply_bulk(b"longest");
    ctx.reply_integer(milliseconds(queue.longest_us));
    true
}
