// SPDX-License-Identifier: MIT

//! `LOCK.GUARD`

use super::args::Cursor;
use super::claim::{Claim, CLAIM};
use super::options::KEY;
use crate::driver;
use crate::error::{Error, NotGuarded};
use crate::keyspace;
use crate::server::clients::caller::Caller;
use crate::server::clients::{deferred, guarded_command};
use crate::server::registration::arguments::{Argument, ArgumentKind, Arguments};
use crate::server::registration::command::{Args, Command, KeyUse, Spec};
use crate::server::Ctx;

pub(crate) struct Guard;

const COMMAND: Argument = Argument::new(
    c"command",
    ArgumentKind::Text,
    c"the command to run: one that scripts may call, or EVAL, EVALSHA or FCALL",
);
const ARG: Argument =
    Argument::new(c"arg", ArgumentKind::Text, c"an argument of the command").optional().multiple();

impl Command for Guard {
    const SPEC: Spec = Spec {
        name: c"lock.guard",
        // Not `deny-oom`: the guarded command's own flags decide whether it may run when memory is full.
        flags: c"write",
        categories: c"write slow",
        key: Some(KeyUse::Read),
        arguments: Arguments { positional: &[KEY, CLAIM, COMMAND, ARG], options: &[] },
        summary: c"Runs a command if an owner holds a lock, or if no newer token was granted.",
        reply: "The reply of the command.",
        complexity: c"That of LOCK.CHECK plus that of the command",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        guard(ctx, args, Attempt::First)
    }
}

/// The attempt to run a guarded command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    First,
    /// The client has been blocked so far, because the command could not run at the first attempt.
    Deferred,
}

/// Runs the guarded command. If it cannot run now, blocks its client and runs it later.
fn guard(ctx: Ctx<'_>, words: Args<'_>, attempt: Attempt) -> Result<(), Error> {
    let mut args = Cursor::new("lock.guard", words);
    let key = args.key()?;
    let claim = Claim::parse(&mut args)?;
    claim.check_slot(ctx, args.command(), &key)?;
    let command = guarded_command::GuardedCommand::of(ctx, args.rest()).map_err(Error::NotGuarded)?;
    let proof = claim.verify(ctx, &key).inspect_err(|_| driver::info::count_guard(ctx, false))?;
    if proof.token_ahead.is_some() && !Caller::of(ctx).access().may_write(key.as_bytes()) {
        // A raised counter would invalidate the tokens of other owners, so read permission is not enough.
        return Err(Error::NotGuarded(NotGuarded::NoPermission));
    }
    if command.must_be_deferred(ctx) && attempt == Attempt::First {
        // The deferred attempt verifies the claim again.
        let is_planned = deferred::run_later(ctx, words, |ctx, words| guard(ctx, words, Attempt::Deferred));
        return if is_planned { Ok(()) } else { Err(Error::NotGuarded(NotGuarded::Script)) };
    }
    if attempt == Attempt::Deferred {
        command.check_permissions(ctx).map_err(Error::NotGuarded)?;
    }
    driver::info::count_guard(ctx, true);
    // A script may acquire the lock itself, and must then get a greater token than the claimed one. So the
    // counter is raised first.
    let first = proof.token_ahead.filter(|_| command.is_script());
    let before = first.and_then(|token| keyspace::raise_counter(ctx, &key, token));
    let reply = command.run(ctx, &key).map_err(Error::NotGuarded);
    // A failed command has changed nothing, but a failed script may have written something.
    let is_refused =
        reply.as_ref().map_or(true, |reply| reply.is_error() && !command.may_have_written(reply));
    match (proof.token_ahead, before) {
        (Some(raised), Some(before)) if is_refused => keyspace::lower_counter(ctx, &key, raised, before),
        (Some(token), None) if !is_refused => {
            keyspace::raise_counter(ctx, &key, token);
        }
        _ => {}
    }
    let reply = reply?;
    if reply.forward(ctx) {
        Ok(())
    } else {
        Err(Error::NotGuarded(NotGuarded::NotAllowed))
    }
}
