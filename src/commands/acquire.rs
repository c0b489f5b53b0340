// SPDX-License-Identifier: MIT

//! `LOCK.ACQUIRE`

use uuid::Uuid;

use super::args::Cursor;
use super::inbox::{notify, Rest};
use super::options::{
    options, Ephemeral, Fence, How, Id, Lease, Once, Replicas, Shared, Wait, Watchdog, KEY,
};
use crate::config;
use crate::core::{FastQueued, Now, Outcome, Owner, Request, WaitPolicy, WaiterId};
use crate::driver::{self, Acknowledgement, Standing, Whose};
use crate::error::Error;
use crate::server::arguments::{Argument, Arguments, Kind};
use crate::server::load::{Args, Command, KeyUse, Spec};
use crate::server::{Ctx, Str};

pub(crate) struct Acquire;

/// A call as the client wrote it.
struct Call<'a> {
    key: Str<'a>,
    /// As it was given: not who a `*` becomes.
    owner: Str<'a>,
    request: Request,
    how: How<'a>,
    wanted: Option<Acknowledgement>,
}

options! {
    Options {
        lease: Lease,
        wait: Wait<'a>,
        shared: Shared,
        once: Once,
        fence: Fence,
        watchdog: Watchdog,
        ephemeral: Ephemeral,
        replicas: Replicas,
        id: Id<'a>,
    }
}

/// Who is to hold it.
pub(super) const OWNER: Argument =
    Argument::new(c"owner", Kind::Text, c"is who is to hold it, 1 to 1024 bytes; * makes a random one");

impl Command for Acquire {
    const SPEC: Spec = Spec {
        name: c"lock.acquire",
        flags: c"write deny-oom blocking",
        categories: c"write slow blocking",
        key: Some(KeyUse::Write),
        arguments: Arguments { places: &[KEY, OWNER], options: Options::ARGUMENTS },
        summary: c"Takes a lock, or waits for it.",
        reply: "The owner's hold count, or nil if somebody else holds the lock, or 0 if a message will tell; a map with FENCE, and with * as \
                the owner.",
        complexity: c"O(1), or O(log(N)) where N waiters are queued for locks; O(M) where M owners hold the lock shared",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let call = parse(ctx, args)?;
        let now = ctx.now();
        let patience = match call.how {
            How::No => WaitPolicy::NoWait,
            How::Blocked(block) => super::patience(ctx, Some(block), now),
            How::Notified(..) => super::patience_of_notified(ctx),
        };
        let remembered = super::look_up(ctx, &call.key);
        let unseen = driver::queue_unseen(ctx, (&call.key, &remembered), &call.request, patience, now);
        if let Some(FastQueued { id, may_be_in_cycle, plans }) = unseen {
            let now = refuse_deadlock(ctx, id, may_be_in_cycle, now)?;
            return wait(ctx, &call, id, (now, plans));
        }
        let (outcome, may_be_in_cycle) = look_and_acquire(ctx, &call, remembered, patience, now)?;
        if !matches!(outcome, Outcome::Queued(_) | Outcome::InFlight(_)) {
            driver::dispatch(ctx, now);
        }
        match outcome {
            Outcome::Granted(reply) => match call.wanted.zip(call.request.id) {
                // It was granted before: whether the replicas have it or not, it stands.
                Some((wanted, request)) => {
                    let (key, whose) = (call.key.as_bytes().to_vec(), Whose::Request(request));
                    let standing = Standing { db: ctx.db(), key, whose };
                    return driver::block_until_acknowledged(ctx, wanted, standing);
                }
                None => driver::reply_grant(ctx, &reply),
            },
            Outcome::InFlight(id) => return driver::block(ctx, id, call.wanted, (now, true)),
            Outcome::Refused(refusal) => return Err(Error::Refused(refusal)),
            Outcome::Queued(id) => {
                let now = refuse_deadlock(ctx, id, may_be_in_cycle, now)?;
                return wait(ctx, &call, id, (now, true));
            }
            Outcome::Busy => ctx.reply_null(),
            Outcome::Quarantined => {
                let left = driver::with(ctx, |driver| driver.quarantine_left(now));
                return Err(Error::Quarantine { ms: left.map_or(0, |us| us.div_ceil(1000)) });
            }
        }
        Ok(())
    }
}

/// The call waits: its client is blocked, or will be told by a message. Passes on what was decided, too. `plans` if there may be
/// something to plan for it.
#[inline(always)]
fn wait(ctx: Ctx<'_>, call: &Call<'_>, id: WaiterId, (now, plans): (Now, bool)) -> Result<(), Error> {
    if call.request.notify.is_none() {
        return driver::block(ctx, id, call.wanted, (now, plans));
    }
    driver::await_message(ctx, (now, plans));
    ctx.reply_integer(0);
    Ok(())
}

/// Fails if the waiter waits for its own owner, which is searched for if it may. Returns the time after that: a search can be long.
#[inline]
fn refuse_deadlock(ctx: Ctx<'_>, id: WaiterId, may_be_in_cycle: bool, now: Now) -> Result<Now, Error> {
    let reported = config::deadlock_detection();
    if !may_be_in_cycle || !(reported || driver::with(ctx, |driver| driver.locks.has_bundles())) {
        return Ok(now);
    }
    match driver::deadlock_of(ctx, id, reported) {
        Some(cycle) => Err(Error::Deadlock(cycle)),
        None => Ok(ctx.now()),
    }
}

/// Opens the lock, and takes it or queues up for it. If it is queued: whether it may wait for its own owner.
#[inline(always)]
fn look_and_acquire<'a>(
    ctx: Ctx<'a>,
    call: &'a Call<'a>,
    remembered: driver::Remembered<'a>,
    patience: WaitPolicy,
    now: Now,
) -> Result<(Outcome, bool), Error> {
    super::known_in_hand(ctx, (&call.key, Some(&call.owner)), remembered, now, |lock, known| {
        if super::is_theirs(lock, &call.request, now) {
            return Err(Error::FairLock);
        }
        let (outcome, in_hand) = driver::with(ctx, |driver| {
            driver.keep_quarantine(now);
            driver.locks.acquire(lock.opened(known, now), &call.request, patience)
        });
        let may_be_in_cycle = match outcome {
            Outcome::Queued(id) => driver::may_be_in_cycle(ctx, id, &lock.holders),
            _ => false,
        };
        Ok(((outcome, may_be_in_cycle), in_hand))
    })
}

fn parse<'a>(ctx: Ctx<'_>, args: Args<'a>) -> Result<Call<'a>, Error> {
    let mut args = Cursor::new("lock.acquire", args);
    let key = args.key()?;
    let asked = args.owner()?;
    let mut given = Options::default();
    given.read(&mut args)?;
    let made = asked.as_bytes() == b"*";
    let lease_ms = given.lease.ms().unwrap_or_else(config::default_lease);
    let how = given.wait.how(&args)?;
    let request = Request {
        owner: if made {
            Owner::new(Uuid::new_v4().to_string().as_bytes())
        } else {
            Owner::new(asked.as_bytes())
        },
        wants: given.shared.wants(&given.once, &args)?,
        lease_ms,
        keeps_longer: given.lease.ms().is_none(),
        fence: given.fence.is_given(),
        names_owner: made || given.fence.is_given(),
        id: given.id.get().map(|id| args.request(ctx, &key, asked.as_bytes(), id)).transpose()?,
        bind: given.watchdog.bind(&given.ephemeral, ctx, &args)?,
        client: super::client_if_told(ctx),
        awaits_replicas: given.replicas.is_given(),
        notify: match how {
            How::No | How::Blocked(_) => None,
            How::Notified(inbox, grace_ms) => {
                let acknowledged = given.replicas.is_given();
                let rest = Rest { asked: asked.as_bytes(), id: given.id.get(), lease_ms, acknowledged };
                Some(notify(ctx, &args, (inbox, grace_ms), &rest)?)
            }
        },
    };
    if request.fence {
        args.has_counter_here(ctx, "FENCE", &key)?;
    }
    let wanted = given.replicas.acknowledgement(ctx, &args)?;
    Ok(Call { key, owner: asked, request, how, wanted })
}
