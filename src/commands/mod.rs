//! The commands, one file each: parse, ask the core, write, reply.

mod acquire;
mod args;
mod break_lock;
mod config;
mod help;
mod info;
mod release;
mod renew;
mod waiters;

pub(crate) use acquire::Acquire;
pub(crate) use break_lock::Break;
pub(crate) use config::Config;
pub(crate) use help::Help;
pub(crate) use info::Info;
pub(crate) use release::Release;
pub(crate) use renew::Renew;
pub(crate) use waiters::Waiters;

use crate::error::Error;
use crate::keyspace::Lock;
use crate::runtime;
use crate::server::{Ctx, Str};

/// Opens the lock of a command that may change it. If the key holds something else, those who wait for it will
/// hear of it too.
fn open<'a>(ctx: Ctx, key: &'a Str<'a>) -> Result<Lock<'a>, Error> {
    Lock::open(ctx, key).inspect_err(|_| runtime::look_soon(ctx, key.as_bytes()))
}
