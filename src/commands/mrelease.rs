// SPDX-License-Identifier: MIT

//! `LOCK.MRELEASE`

use super::args::Cursor;
use super::options::{options, All, Id, KEYS, NUMKEYS, OWNER};
use crate::core::{NotReleased, Now, Owner, Records, Release, ReleaseScope};
use crate::driver;
use crate::error::Error;
use crate::server::arguments::Arguments;
use crate::server::load::{Args, Command, KeyUse, Spec};
use crate::server::{Ctx, Str};

pub(crate) struct Mrelease;

options! {
    Options {
        all: All,
        id: Id<'a>,
    }
}

impl Command for Mrelease {
    const SPEC: Spec = Spec {
        name: c"lock.mrelease",
        flags: c"write",
        categories: c"write slow",
        key: Some(KeyUse::WriteSeveral),
        arguments: Arguments { places: &[NUMKEYS, KEYS, OWNER], options: Options::ARGUMENTS },
        summary: c"Gives back one hold of each of several locks, or all of them; nothing if the owner does not hold them all.",
        reply: "An array of the holds that are left, in the order of the keys.",
        complexity: c"O(K) for K locks, or O(K*log(N)) where N waiters are queued for locks",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.mrelease", args);
        let keys = args.keys(ctx)?;
        let owner = args.owner()?;
        let mut given = Options::default();
        given.read(&mut args)?;
        let scope = if given.all.is_given() { ReleaseScope::All } else { ReleaseScope::One };
        let mut id = None;
        for key in &keys {
            id = given.id.get().map(|id| args.request(ctx, key, owner.as_bytes(), id)).transpose()?;
        }
        let call = Release { owner: Owner::new(owner.as_bytes()), scope, lease_ms: None, id };
        // One time for all of it: a lease that is found to run must not be over when its lock has its turn.
        let now = ctx.now();
        let left = driver::in_several(ctx, || {
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

/// What the call left if it was made before; fails if the owner does not hold all locks. Changes nothing but what was due anyway.
fn released_before(
    ctx: Ctx<'_>,
    keys: &[Str<'_>],
    owner: &Str<'_>,
    call: &Release,
    now: Now,
) -> Result<Option<Vec<i64>>, Error> {
    let (mut before, mut missing) = (Vec::new(), None);
    for key in keys {
        super::one_in_hand(ctx, (key, Some(owner)), now, |lock, known| {
            let in_hand = driver::with(ctx, |driver| driver.locks.reconcile(lock.opened(known, now)));
            let released = call.id.as_ref().map(|id| lock.records.released(id)).transpose();
            match released.map(Option::flatten) {
                Ok(Some(left)) => before.push(left),
                Ok(None) if lock.holders.of(owner.as_bytes()).is_some() => {}
                Ok(None) => {
                    let why = if lock.is_fair(now) { Error::FairLock } else { Error::NotOwner };
                    missing.get_or_insert(why);
                }
                Err(refusal) => {
                    missing.get_or_insert(Error::Refused(refusal));
                }
            }
            Ok(((), in_hand))
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
    let left = super::one_in_hand(ctx, (key, Some(owner)), now, |lock, known| {
        Ok(driver::with(ctx, |driver| driver.locks.release(lock.opened(known, now), call)))
    })?;
    left.map_err(|why| match why {
        NotReleased::NotOwner => Error::NotOwner,
        NotReleased::Refused(refusal) => Error::Refused(refusal),
    })
}
