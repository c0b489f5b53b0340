//! The commands, one file each: parse, ask the core, write, reply.

mod acquire;
mod args;
mod blockers;
mod break_lock;
mod cancel;
mod glob;
mod help;
mod info;
mod list;
mod release;
mod renew;
mod waiters;

pub(crate) use acquire::Acquire;
pub(crate) use blockers::Blockers;
pub(crate) use break_lock::Break;
pub(crate) use cancel::Cancel;
pub(crate) use help::Help;
pub(crate) use info::Info;
pub(crate) use list::List;
pub(crate) use release::Release;
pub(crate) use renew::Renew;
pub(crate) use waiters::Waiters;

use crate::core::{MonoUs, Now};
use crate::driver;
use crate::error::Error;
use crate::keyspace::Lock;
use crate::server::{Ctx, Str};

/// Opens the lock of a command that may change it. If the key holds something else, the waits
/// for it are ended soon, too.
fn open<'a>(ctx: Ctx<'a>, key: &'a Str<'a>, owner: Option<&'a Str<'a>>, now: Now) -> Result<Lock<'a>, Error> {
    Lock::open(ctx, key, owner, &driver::Remembered(ctx), now)
        .inspect_err(|_| driver::look_soon(ctx, key.as_bytes()))
}

/// A duration for a reply.
fn milliseconds(us: MonoUs) -> i64 {
    i64::try_from(us / 1000).unwrap_or(i64::MAX)
}

/// A number of things for a reply.
fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
