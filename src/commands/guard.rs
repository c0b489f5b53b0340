//! `LOCK.GUARD key OWNER owner | TOKEN token command [arg …]`

use super::args::Cursor;
use super::claim::Claim;
use crate::error::{Error, NotGuarded};
use crate::keyspace;
use crate::server::load::{Args, Command, KeyUse, Spec};
use crate::server::{on_behalf, Ctx};

pub(crate) struct Guard;

impl Command for Guard {
    const SPEC: Spec = Spec {
        name: c"lock.guard",
        // Not `deny-oom`: whether the guarded command may be carried out when memory is full is its own matter.
        flags: c"write",
        categories: c"write slow",
        key: Some(KeyUse::Read),
        arity: -5,
        summary:
            c"Carries out a command if an owner holds a lock, or if no newer token than this one was granted.",
        complexity: c"That of the command, and that of LOCK.CHECK",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.guard", args);
        let key = args.key()?;
        let claim = Claim::parse(&mut args, ctx, &key)?;
        let command = on_behalf::Command::of(ctx, args.rest()).map_err(Error::NotGuarded)?;
        let proof = claim.prove(ctx, &key)?;
        let raise = |is_time: bool| {
            if let Some(token) = proof.ahead.filter(|_| is_time) {
                keyspace::raise_counter(ctx, &key, token);
            }
        };
        // Beforehand for a script, as that can acquire the lock and get a token. Otherwise once the command was not refused, as what
        // fails changes nothing.
        raise(command.runs_script());
        let reply = command.carry_out(ctx, &key).map_err(Error::NotGuarded)?;
        if proof.ahead.is_some() {
            raise(!command.runs_script() && !reply.is_error());
        }
        if reply.pass_on(ctx) {
            Ok(())
        } else {
            Err(Error::NotGuarded(NotGuarded::NotAllowed))
        }
    }
}
