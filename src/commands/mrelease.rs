// SPDX-License-Identifier: MIT

//! `LOCK.MRELEASE`

use super::args::{CommandName, Cursor};
use super::checks;
use super::options::{options, All, Id, SessionNumber, KEYS, NUMKEYS, OWNER};
use super::Target;
use crate::core::{NotReleased, Now, Owner, Records, Release, ReleaseScope};
use crate::driver;
use crate::error::Error;
use crate::server::registration::arguments::Arguments;
use crate::server::registration::command::{Args, Command, KeyUse, Spec};
use crate::server::{Ctx, Str};

pub(crate) struct Mrelease;

options! {
    Options {
        all: All,
        id: Id<'a>,
        session: SessionNumber<'a>,
    }
}

impl Command for Mrelease {
    const SPEC: Spec = Spec {
        name: c"lock.mrelease",
        flags: c"write",
        categories: c"write slow",
        key: Some(KeyUse::WriteSeveral),
        arguments: Arguments { positional: &[NUMKEYS, KEYS, OWNER], options: Options::ARGUMENTS },
        summary:
            c"Releases one hold or all holds of each of several locks, if the owner holds all of these locks.",
        reply: "An array with the number of remaining holds of each lock, in the order of the keys.",
        complexity: c"O(K) for K locks, or O(K*log(N)) where N waiters are queued for locks",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.mrelease", args);
        let keys = args.keys()?;
        checks::one_slot(ctx, &keys)?;
        let owner = args.owner()?;
        let mut options = Options::default();
        options.read(&mut args)?;
        let scope = if options.all.is_given() { ReleaseScope::All } else { ReleaseScope::One };
        let mut id = None;
        for key in &keys {
            let request = |id| checks::request(ctx, args.command(), key, &owner, id);
            id = options.id.get().map(request).transpose()?;
        }
        if let Some(number) = options.session.get() {
            return release_numbered(ctx, args.command(), number, &keys, (&owner, scope, id.is_some()));
        }
        let call = Release { owner: Owner::new(owner.as_bytes()), scope, lease_ms: None, id, number: None };
        // Uses one time for all locks. So a lease that is valid at the check cannot expire before the
        // release.
        let now = ctx.now();
        let left = driver::in_multi_lock_call(ctx, || {
            released_before(ctx, &keys, &owner, &call, now).and_then(|before| match before {
                Some(left) => Ok(left),
                None => keys.iter().map(|key| release(ctx, key, &owner, &call, now)).collect(),
            })
        });
        driver::dispatch(ctx, ctx.now());
        let left = left?;
        ctx.reply_array(left.len());
        left.into_iter().for_each(|left| ctx.reply_integer(left));
        Ok(())
    }
}

/// Releases the holds of one acquire of a session. If some of them are lost, the others are released too.
fn release_numbered(
    ctx: Ctx<'_>,
    command: CommandName,
    number: (&[u8], u64),
    keys: &[Str<'_>],
    (owner, scope, has_id): (&Str<'_>, ReleaseScope, bool),
) -> Result<(), Error> {
    if scope == ReleaseScope::All {
        return Err(command.exclusive("SESSION", "ALL"));
    }
    if has_id {
        return Err(command.exclusive("SESSION", "ID"));
    }
    let now = ctx.now();
    let number = checks::number(ctx, command, number, keys, owner, now)?;
    let name = Owner::new(owner.as_bytes());
    let call = Release { owner: name, scope, lease_ms: None, id: None, number: Some(number) };
    let before = driver::with(ctx, |driver| driver.locks.released_before(number));
    let left = match before {
        Some(left) => Ok(left),
        None => driver::in_multi_lock_call(ctx, || {
            let each: Vec<_> = keys.iter().map(|key| release(ctx, key, owner, &call, now)).collect();
            let left: Vec<i64> = each.into_iter().collect::<Result<_, Error>>()?;
            driver::with(ctx, |driver| driver.locks.note_released(number, &left));
            Ok(left)
        }),
    };
    driver::dispatch(ctx, ctx.now());
    let left = left?;
    ctx.reply_array(left.len());
    left.into_iter().for_each(|left| ctx.reply_integer(left));
    Ok(())
}

/// The number of remaining holds that an earlier call with this ID replied, if there was one. Fails if the
/// owner does not hold all locks. Changes nothing except expired holds and due grants.
fn released_before(
    ctx: Ctx<'_>,
    keys: &[Str<'_>],
    owner: &Str<'_>,
    call: &Release,
    now: Now,
) -> Result<Option<Vec<i64>>, Error> {
    let (mut before, mut missing) = (Vec::new(), None);
    for key in keys {
        super::update_one_of_several(ctx, Target::of_owner(key, owner), now, |lock, known| {
            let output = driver::with(ctx, |driver| driver.locks.reconcile(lock.opened(known, now)));
            let released = call.id.as_ref().map(|id| lock.records.released(id)).transpose();
            match released.map(Option::flatten) {
                Ok(Some(left)) => before.push(left),
                Ok(None) if lock.holders.get(owner.as_bytes()).is_some() => {}
                Ok(None) => {
                    let why = if lock.is_fair(now) { Error::FairLock } else { Error::NotOwner };
                    missing.get_or_insert(why);
                }
                Err(refusal) => {
                    missing.get_or_insert(Error::Refused(refusal));
                }
            }
            Ok(((), output))
        })?;
    }
    match missing {
        _ if before.len() == keys.len() => Ok(Some(before)),
        _ if !before.is_empty() => Err(Error::OtherKeys),
        Some(why) => Err(why),
        None => Ok(None),
    }
}

fn release(ctx: Ctx<'_>, key: &Str<'_>, owner: &Str<'_>, call: &Release, now: Now) -> Result<i64, Error> {
    let left = super::update_one_of_several(ctx, Target::of_owner(key, owner), now, |lock, known| {
        Ok(driver::with(ctx, |driver| driver.locks.release(lock.opened(known, now), call)))
    })?;
    left.map_err(|why| match why {
        NotReleased::OtherTarget => Error::OtherTarget,
        NotReleased::NotOwner => Error::NotOwner,
        NotReleased::Refused(refusal) => Error::Refused(refusal),
    })
}
