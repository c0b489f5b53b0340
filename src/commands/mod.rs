// SPDX-License-Identifier: MIT

//! The commands, one file each: parse, ask the core, write, reply.

mod acquire;
mod args;
mod blockers;
mod break_lock;
mod cancel;
mod check;
mod claim;
mod glob;
mod guard;
mod help;
mod inbox;
mod info;
mod list;
mod macquire;
mod mrelease;
mod mrenew;
mod options;
#[cfg(test)]
mod pages;
mod release;
mod renew;
mod scan;
mod top;
mod waiters;

pub(crate) use acquire::Acquire;
pub(crate) use blockers::Blockers;
pub(crate) use break_lock::Break;
pub(crate) use cancel::Cancel;
pub(crate) use check::Check;
pub(crate) use guard::Guard;
pub(crate) use help::Help;
pub(crate) use info::Info;
pub(crate) use list::List;
pub(crate) use macquire::Macquire;
pub(crate) use mrelease::Mrelease;
pub(crate) use mrenew::Mrenew;
pub(crate) use release::Release;
pub(crate) use renew::Renew;
pub(crate) use scan::Scan;
pub(crate) use top::Top;
pub(crate) use waiters::Waiters;

use crate::config;
use crate::core::{ConnectionId, LockLookup, LockRef, MonoUs, Now, Records, Request, StepOutput, WaitPolicy};
use crate::driver;
use crate::error::Error;
use crate::keyspace::Lock;
use crate::server::load::{self, Command, Spec};
use crate::server::{Ctx, Str};

/// Lists the commands, in the order in which they are told of.
macro_rules! commands {
    ($($command:ident)*) => {
        /// What is known of every command.
        const COMMANDS: &[&Spec] = &[$(&$command::SPEC),*];

        /// Registers all commands. False if the server refuses one.
        pub(crate) fn register(ctx: Ctx<'_>) -> bool {
            ![$(load::register::<$command>(ctx)),*].contains(&false)
        }
    };
}

commands!(Acquire Release Renew Macquire Mrelease Mrenew Cancel Check Guard Break Info Waiters List Scan Top Blockers Help);

/// Takes the lock of a command in hand: opens it, lets `call` change it, and writes what has changed, also if the call is
/// refused; what was decided is still to be passed on ([`driver::dispatch`]). An error of `call` itself changes nothing. If the key
/// holds something else, the waits for it are ended soon, too.
#[inline(always)]
fn in_hand<'a, T>(
    ctx: Ctx<'a>,
    key: (&'a Str<'a>, Option<&'a Str<'a>>),
    now: Now,
    call: impl FnOnce(&mut Lock<'a>, LockLookup<'a>) -> Result<(T, StepOutput), Error>,
) -> Result<T, Error> {
    known_in_hand(ctx, key, look_up(ctx, key.0), now, call)
}

/// The same for a lock that was looked up already.
#[inline(always)]
fn known_in_hand<'a, T>(
    ctx: Ctx<'a>,
    key: (&'a Str<'a>, Option<&'a Str<'a>>),
    remembered: driver::Remembered<'a>,
    now: Now,
    call: impl FnOnce(&mut Lock<'a>, LockLookup<'a>) -> Result<(T, StepOutput), Error>,
) -> Result<T, Error> {
    let done = take_in_hand(ctx, key, remembered, now, call);
    driver::serve_bundles(ctx);
    done
}

/// The same for one of several locks of a command: those who wait for several are served when the last one is written.
#[inline(always)]
fn one_in_hand<'a, T>(
    ctx: Ctx<'a>,
    key: (&'a Str<'a>, Option<&'a Str<'a>>),
    now: Now,
    call: impl FnOnce(&mut Lock<'a>, LockLookup<'a>) -> Result<(T, StepOutput), Error>,
) -> Result<T, Error> {
    take_in_hand(ctx, key, look_up(ctx, key.0), now, call)
}

/// Looks up a lock of the selected database by its name.
#[inline(always)]
fn look_up<'a>(ctx: Ctx<'a>, key: &'a Str<'a>) -> driver::Remembered<'a> {
    driver::Remembered::of(ctx, LockRef { db: ctx.db(), key: key.as_bytes() })
}

/// Opens a lock that was looked up, lets `call` change it, and writes what has changed. Those who wait for several locks are not served.
#[inline(always)]
fn take_in_hand<'a, T>(
    ctx: Ctx<'a>,
    (key, owner): (&'a Str<'a>, Option<&'a Str<'a>>),
    remembered: driver::Remembered<'a>,
    now: Now,
    call: impl FnOnce(&mut Lock<'a>, LockLookup<'a>) -> Result<(T, StepOutput), Error>,
) -> Result<T, Error> {
    let at = remembered.lock.name();
    let done = Lock::open(ctx, key, owner, &remembered, now, |lock| {
        let found_free = lock.holders.is_free();
        let (reply, in_hand) = call(lock, remembered.lock)?;
        driver::commit(ctx, at, in_hand, lock, found_free);
        Ok(reply)
    });
    match done {
        Ok(done) => done,
        Err(error) => {
            driver::look_soon(ctx, key.as_bytes());
            Err(error)
        }
    }
}

/// True if a request for a lock must not be granted, as clients of another kind wait for its key in an order of theirs.
#[inline(always)]
fn is_theirs(lock: &mut Lock<'_>, request: &Request, now: Now) -> bool {
    (request.wants.once || lock.holders.of(request.owner.as_bytes()).is_none())
        && lock.is_fair(now)
        && !request.id.as_ref().is_some_and(|id| matches!(lock.records.granted(id), Ok(Some(_))))
}

/// What is to become of an acquire that has to wait, with this `BLOCK`.
#[inline(always)]
fn patience(ctx: Ctx<'_>, block: Option<options::Patience>, now: Now) -> WaitPolicy {
    match block.map(|block| (block, ctx.flags())) {
        Some((options::Patience(ms), flags)) if !flags.denies_blocking() => WaitPolicy::Wait {
            deadline: ms.map(|ms| now.mono.saturating_add(ms.saturating_mul(1000))),
            at_most: config::max_waiters(),
            on_primary: flags.is_primary(),
        },
        _ => WaitPolicy::NoWait,
    }
}

/// The same of one that is told by a message: it blocks no client, so it can wait in a transaction, too.
fn patience_of_notified(ctx: Ctx<'_>) -> WaitPolicy {
    WaitPolicy::Wait { deadline: None, at_most: config::max_waiters(), on_primary: ctx.flags().is_primary() }
}

/// The connection that calls, if it is to be known who holds a lock and on which connection.
#[inline]
fn client_if_told(ctx: Ctx<'_>) -> Option<ConnectionId> {
    (config::events() && !ctx.is_script()).then(|| ConnectionId(ctx.client_id()))
}

/// A duration for a reply.
fn milliseconds(us: MonoUs) -> i64 {
    i64::try_from(us / 1000).unwrap_or(i64::MAX)
}

/// A number of things for a reply.
fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
