// SPDX-License-Identifier: MIT

//! The commands, one file each. A command parses its arguments, checks them against the server, calls the
//! core, writes the lock and replies.

mod acquire;
mod args;
mod blockers;
mod break_lock;
mod cancel;
mod check;
mod checks;
mod claim;
mod events;
mod glob;
mod guard;
mod help;
mod info;
mod list;
mod log;
mod macquire;
mod mrelease;
mod mrenew;
mod options;
#[cfg(test)]
mod pages;
mod release;
mod renew;
mod scan;
mod session;
mod top;
mod waiters;

pub(crate) use acquire::Acquire;
pub(crate) use blockers::Blockers;
pub(crate) use break_lock::Break;
pub(crate) use cancel::Cancel;
pub(crate) use check::Check;
pub(crate) use events::Events;
pub(crate) use guard::Guard;
pub(crate) use help::Help;
pub(crate) use info::Info;
pub(crate) use list::List;
pub(crate) use log::Log;
pub(crate) use macquire::Macquire;
pub(crate) use mrelease::Mrelease;
pub(crate) use mrenew::Mrenew;
pub(crate) use release::Release;
pub(crate) use renew::Renew;
pub(crate) use scan::Scan;
pub(crate) use session::Session;
pub(crate) use top::Top;
pub(crate) use waiters::Waiters;

use options::{WaitMode, WaitTimeout};
use uuid::Uuid;

use crate::config;
use crate::core::{
    ConnectionId, LockLookup, LockRef, MonoUs, Now, Owner, Records, Refusal, Request, StepOutput, WaitPolicy,
};
use crate::driver;
use crate::error::Error;
use crate::keyspace::Lock;
use crate::server::clients::peer::Peer;
use crate::server::registration::command::{self, Command, Spec};
use crate::server::{Ctx, Str};

/// Lists the commands in the order of `LOCK.HELP` and the documentation.
macro_rules! commands {
    ($($command:ident)*) => {
        /// The specifications of all commands.
        const COMMANDS: &[&Spec] = &[$(&$command::SPEC),*];

        /// Registers all commands. Returns false if the server rejects one.
        pub(crate) fn register(ctx: Ctx<'_>) -> bool {
            ![$(command::register::<$command>(ctx)),*].contains(&false)
        }
    };
}

commands!(
    Acquire Release Renew Macquire Mrelease Mrenew Cancel Session Events Check Guard Break Info Waiters List Scan Top
    Blockers Log Help
);

/// The lock that a command changes, and the owner whose hold it reads. Without an owner, it reads all holds.
#[derive(Clone, Copy)]
struct Target<'a> {
    key: &'a Str<'a>,
    owner: Option<&'a Str<'a>>,
}

impl<'a> Target<'a> {
    fn of_owner(key: &'a Str<'a>, owner: &'a Str<'a>) -> Target<'a> {
        Target { key, owner: Some(owner) }
    }
}

/// Opens a lock, runs `call` on it, and writes the changes, even if the core refuses the request. If `call`
/// returns an error, nothing changes. If the key does not hold a lock, the waits for it end soon. The caller
/// must then deliver the decisions ([`driver::dispatch`]).
#[inline(always)]
fn update<'a, T>(
    ctx: Ctx<'a>,
    target: Target<'a>,
    now: Now,
    call: impl FnOnce(&mut Lock<'a>, LockLookup<'a>) -> Result<(T, StepOutput), Error>,
) -> Result<T, Error> {
    update_looked_up(ctx, target, look_up(ctx, target.key), now, call)
}

/// Opens a lock that was already looked up, runs `call` on it, and writes the changes, as [`update`] does.
#[inline(always)]
fn update_looked_up<'a, T>(
    ctx: Ctx<'a>,
    target: Target<'a>,
    remembered: driver::Remembered<'a>,
    now: Now,
    call: impl FnOnce(&mut Lock<'a>, LockLookup<'a>) -> Result<(T, StepOutput), Error>,
) -> Result<T, Error> {
    let done = open_and_update(ctx, target, remembered, now, call);
    driver::serve_bundles(ctx);
    done
}

/// Updates one of the locks of a command for several locks, as [`update`] does. Bundles are served after the
/// command has written its last lock.
#[inline(always)]
fn update_one_of_several<'a, T>(
    ctx: Ctx<'a>,
    target: Target<'a>,
    now: Now,
    call: impl FnOnce(&mut Lock<'a>, LockLookup<'a>) -> Result<(T, StepOutput), Error>,
) -> Result<T, Error> {
    open_and_update(ctx, target, look_up(ctx, target.key), now, call)
}

/// Looks up a lock of the selected database by its name.
#[inline(always)]
fn look_up<'a>(ctx: Ctx<'a>, key: &'a Str<'a>) -> driver::Remembered<'a> {
    driver::Remembered::of(ctx, LockRef { db: ctx.db(), key: key.as_bytes() })
}

/// Opens a lock, runs `call` on it, and writes the changes. Does not serve bundles.
fn open_and_update<'a, T>(
    ctx: Ctx<'a>,
    Target { key, owner }: Target<'a>,
    remembered: driver::Remembered<'a>,
    now: Now,
    call: impl FnOnce(&mut Lock<'a>, LockLookup<'a>) -> Result<(T, StepOutput), Error>,
) -> Result<T, Error> {
    let at = remembered.lock.name();
    let done = Lock::open(ctx, key, owner, &remembered, now, |lock| {
        let found_free = lock.holders.is_free();
        let (reply, output) = call(lock, remembered.lock)?;
        driver::commit(ctx, at, output, lock, found_free);
        Ok(reply)
    });
    match done {
        Ok(done) => done,
        Err(error) => {
            driver::recheck_soon(ctx, key.as_bytes());
            Err(error)
        }
    }
}

/// Whether a request needs a new grant of a Redisson fair lock that has waiters. Redisson's queue has an
/// order of its own, so the module grants nothing there.
#[inline(always)]
fn is_foreign_fair_lock(lock: &mut Lock<'_>, request: &Request, now: Now) -> bool {
    (request.wants.once || lock.holders.get(request.owner.as_bytes()).is_none())
        && lock.is_fair(now)
        && !request.id.as_ref().is_some_and(|id| matches!(lock.records.granted(id), Ok(Some(_))))
}

/// The wait policy of an acquire. In `MULTI`, scripts and functions, a call with `BLOCK` does not wait. A call with `QUEUE`
/// blocks no client, so it can also wait in `MULTI`.
fn wait_policy(ctx: Ctx<'_>, wait: WaitMode, now: Now) -> WaitPolicy {
    let (WaitTimeout(ms), blocks) = match wait {
        WaitMode::NoWait => return WaitPolicy::NoWait,
        WaitMode::Block(timeout) => (timeout, true),
        WaitMode::Queue(timeout) => (timeout, false),
    };
    let flags = ctx.flags();
    if blocks && flags.denies_blocking() {
        return WaitPolicy::NoWait;
    }
    WaitPolicy::Wait {
        deadline: ms.map(|ms| now.mono.saturating_add(ms.saturating_mul(1000))),
        at_most: config::max_waiters(),
        on_primary: flags.is_primary(),
    }
}

/// Counts a call that would exceed `lock.max-waiters`, and returns its error.
fn queue_is_full(ctx: Ctx<'_>, request: &Request) -> Error {
    driver::with(ctx, |driver| driver.stats.waits_refused += 1);
    match request.number() {
        Some(_) => Error::QueueIsFull,
        None => Error::Refused(Refusal::TooManyWaiters),
    }
}

/// The calling connection, if `lock.events` is on. The module remembers it as the connection of the hold.
#[inline]
fn client_for_events(ctx: Ctx<'_>) -> Option<ConnectionId> {
    (config::events() && !ctx.is_script()).then(|| ConnectionId(ctx.client_id()))
}

/// A random name for the owner `*`, otherwise the given owner.
#[inline(always)]
fn owner_or_random(given: &Str<'_>) -> Owner {
    if given.as_bytes() == b"*" {
        Owner::new(Uuid::new_v4().to_string().as_bytes())
    } else {
        Owner::new(given.as_bytes())
    }
}

/// Replies with the fields `client`, `address` and `name` of a connected client. They are nil if it is unknown or gone.
fn reply_client(ctx: Ctx<'_>, client: Option<ConnectionId>) {
    let peer = client.and_then(|ConnectionId(id)| Some((i64::try_from(id).ok()?, Peer::of(ctx, id)?)));
    ctx.reply_bulk(b"client");
    match &peer {
        Some((id, _)) => ctx.reply_integer(*id),
        None => ctx.reply_null(),
    }
    let peer = peer.as_ref().map(|(_, peer)| peer);
    ctx.reply_bulk(b"address");
    reply_bulk_or_null(ctx, peer.map(|peer| peer.address.as_bytes()));
    ctx.reply_bulk(b"name");
    reply_bulk_or_null(ctx, peer.map(|peer| &*peer.name).filter(|name| !name.is_empty()));
}

fn reply_bulk_or_null(ctx: Ctx<'_>, text: Option<&[u8]>) {
    match text {
        Some(text) => ctx.reply_bulk(text),
        None => ctx.reply_null(),
    }
}

/// A duration in a reply, in milliseconds.
fn milliseconds(us: MonoUs) -> i64 {
    i64::try_from(us / 1000).unwrap_or(i64::MAX)
}

/// A number of items in a reply.
fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
