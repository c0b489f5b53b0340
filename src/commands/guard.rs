// SPDX-License-Identifier: MIT

//! `LOCK.GUARD`

use super::args::Cursor;
use super::claim::{Claim, CLAIM};
use super::options::KEY;
use crate::driver;
use crate::error::{Error, NotGuarded};
use crate::keyspace;
use crate::server::arguments::{Argument, Arguments, Kind};
use crate::server::caller::Caller;
use crate::server::load::{Args, Command, KeyUse, Spec};
use crate::server::{later, on_behalf, Ctx};

pub(crate) struct Guard;

const COMMAND: Argument = Argument::new(
    c"command",
    Kind::Text,
    c"is what is carried out: a command that scripts may call, EVAL, EVALSHA or FCALL",
);
const ARG: Argument = Argument::new(c"arg", Kind::Text, c"is what the command takes").optional().multiple();

impl Command for Guard {
    const SPEC: Spec = Spec {
        name: c"lock.guard",
        // Not `deny-oom`: whether the guarded command may be carried out when memory is full is its own matter.
        flags: c"write",
        categories: c"write slow",
        key: Some(KeyUse::Read),
        arguments: Arguments { places: &[KEY, CLAIM, COMMAND, ARG], options: &[] },
        summary:
            c"Carries out a command if an owner holds a lock, or if no newer token than this one was granted.",
        reply: "That of the command.",
        complexity: c"That of the command, and that of LOCK.CHECK",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        guard(ctx, args, false)
    }
}

/// Carries out the command, or blocks its client and does it later, if that is not now.
fn guard(ctx: Ctx<'_>, words: Args<'_>, is_later: bool) -> Result<(), Error> {
    let mut args = Cursor::new("lock.guard", words);
    let key = args.key()?;
    let claim = Claim::parse(&mut args, ctx, &key)?;
    let command = on_behalf::Command::of(ctx, args.rest()).map_err(Error::NotGuarded)?;
    let proof = claim.prove(ctx, &key).inspect_err(|_| driver::info::count_guard(ctx, false))?;
    if proof.ahead.is_some() && !Caller::of(ctx).access().may_write(key.as_bytes()) {
        // It would end the tokens of others, which is more than to read.
        return Err(Error::NotGuarded(NotGuarded::NoPermission));
    }
    if command.is_for_later(ctx) && !is_later {
        // What is true now is looked at again then.
        let is_planned = later::carry_out(ctx, words, |ctx, words| guard(ctx, words, true));
        return if is_planned { Ok(()) } else { Err(Error::NotGuarded(NotGuarded::Script)) };
    }
    if is_later {
        command.check_permissions(ctx).map_err(Error::NotGuarded)?;
    }
    driver::info::count_guard(ctx, true);
    // A script may be granted the lock. It gets a greater token than the one that has let it through.
    let first = proof.ahead.filter(|_| command.is_script());
    let before = first.and_then(|token| keyspace::raise_counter(ctx, &key, token));
    let reply = command.carry_out(ctx, &key).map_err(Error::NotGuarded);
    // What fails changes nothing. A script that fails may have.
    let is_refused =
        reply.as_ref().map_or(true, |reply| reply.is_error() && !command.may_have_written(reply));
    match (proof.ahead, before) {
        (Some(raised), Some(before)) if is_refused => keyspace::lower_counter(ctx, &key, raised, before),
        (Some(token), None) if !is_refused => {
            keyspace::raise_counter(ctx, &key, token);
        }
        _ => {}
    }
    let reply = reply?;
    if reply.pass_on(ctx) {
        Ok(())
    } else {
        Err(Error::NotGuarded(NotGuarded::NotAllowed))
    }
}
