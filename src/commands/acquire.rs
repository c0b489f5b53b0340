// SPDX-License-Identifier: MIT

//! `LOCK.ACQUIRE`

use std::rc::Rc;

use super::args::{CommandName, Cursor};
use super::checks::{self, HoldOfCall, HoldOptions};
use super::options::{
    options, Ephemeral, Fence, Id, Lease, Once, Replicas, SessionNumber, Shared, Wait, WaitMode, Watchdog,
    KEY, NEW_OWNER,
};
use super::Target;
use crate::config;
use crate::core::{FastQueued, Known, Now, Outcome, Refusal, Request, WaitPolicy, WaiterId, Wants};
use crate::driver::{self, AwaitedHold, HoldRef, ReplicaRequirement, WaitStart};
use crate::error::Error;
use crate::server::registration::arguments::Arguments;
use crate::server::registration::command::{Args, Command, KeyUse, Spec};
use crate::server::{Ctx, Str};

pub(crate) struct Acquire;

/// The arguments of a call.
struct Words<'a> {
    command: CommandName,
    key: Str<'a>,
    /// The owner as written by the client: `*` stands for a random one.
    owner: Str<'a>,
    options: Options<'a>,
    wait: WaitMode,
    wants: Wants,
}

/// A call that has passed the checks.
struct Call<'a> {
    key: Str<'a>,
    /// The owner as written by the client: `*` stands for a random one.
    owner: Str<'a>,
    request: Request,
    wait: WaitMode,
    acknowledgement: Option<ReplicaRequirement>,
}

options! {
    Options {
        lease: Lease,
        wait: Wait,
        shared: Shared,
        once: Once,
        fence: Fence,
        watchdog: Watchdog,
        ephemeral: Ephemeral,
        replicas: Replicas,
        id: Id<'a>,
        session: SessionNumber<'a>,
    }
}

impl Command for Acquire {
    const SPEC: Spec = Spec {
        name: c"lock.acquire",
        flags: c"write deny-oom blocking",
        categories: c"write slow blocking",
        key: Some(KeyUse::Write),
        arguments: Arguments{positional: &[KEY, NEW_OWNER], options: Options::ARGUMENTS },
        summary: c"Acquires a lock, or waits for it.",
        reply: "The owner's hold count; nil if the lock is busy; 0 with QUEUE. A map with FENCE or owner *.",
        complexity: c"O(1), or O(log(N)) where N waiters are queued for locks; O(M) where M owners hold the lock shared",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let words = parse(args)?;
        let now = ctx.now();
        let call = check(ctx, words, now)?;
        let patience = super::wait_policy(ctx, call.wait, now);
        let remembered = super::look_up(ctx, &call.key);
        let unseen = driver::queue_unseen(ctx, &call.key, &remembered, &call.request, patience, now);
        if let Some(FastQueued { id, may_be_in_cycle, plans }) = unseen {
            let now = refuse_deadlock(ctx, id, may_be_in_cycle, now)?;
            return wait(ctx, &call, id, (now, plans));
        }
        let (outcome, may_be_in_cycle) = acquire_or_queue(ctx, &call, remembered, patience, now)?;
        if !matches!(outcome, Outcome::Queued(_) | Outcome::InFlight(_)) {
            driver::dispatch(ctx, now);
        }
        match outcome {
            Outcome::Granted(reply) => match call.acknowledgement.zip(call.request.id) {
                // A repeated call: the hold stays even if the replicas do not acknowledge it.
                Some((wanted, request)) => {
                    let (key, hold_ref) = (call.key.as_bytes().to_vec(), HoldRef::Request(request));
                    let standing = AwaitedHold { db: ctx.db(), key, hold_ref };
                    return driver::block_until_acknowledged(ctx, wanted, standing);
                }
                None => driver::reply_grant(ctx, &reply),
            },
            Outcome::InFlight(id) => {
                return wait(ctx, &call, id, (now, true));
            }
            Outcome::Refused(Refusal::TooManyWaiters) => {
                return Err(super::queue_is_full(ctx, &call.request))
            }
            Outcome::Refused(refusal) => return Err(Error::Refused(refusal)),
            Outcome::Queued(id) => {
                let now = refuse_deadlock(ctx, id, may_be_in_cycle, now)?;
                return wait(ctx, &call, id, (now, true));
            }
            Outcome::Repeated(known) => return reply_known(ctx, &known, (1, false)),
            Outcome::Busy => ctx.reply_null(),
            Outcome::Quarantined => {
                let left = driver::with(ctx, |driver| driver.quarantine_left(now));
                return Err(Error::Quarantine { ms: left.map_or(0, |us| us.div_ceil(1000)) });
            }
        }
        Ok(())
    }
}

/// Replies to a repeated call of a session with what its number stands for.
pub(super) fn reply_known(
    ctx: Ctx<'_>,
    known: &Known,
    (keys, is_several): (usize, bool),
) -> Result<(), Error> {
    match known {
        Known::Waiting => ctx.reply_integer(0),
        Known::Granted(replies) if replies.len() != keys => return Err(Error::NotOwner),
        Known::Granted(replies) => match &replies[..] {
            // `LOCK.MACQUIRE` replies with an array even for one key.
            [reply] if !is_several => driver::reply_grant(ctx, reply),
            replies => driver::reply_grants(ctx, replies),
        },
        Known::Busy => ctx.reply_null(),
        Known::Cancelled => return Err(Error::NumberCancelled),
        Known::OtherTarget => return Err(Error::OtherTarget),
        Known::Ended => return Err(Error::NotOwner),
        Known::Late | Known::New => return Err(Error::Late),
    }
    Ok(())
}

/// Blocks the client of a queued call, or replies 0 to a call with `QUEUE`. Also delivers pending decisions.
/// `plans` is true if the wait may need a timer.
#[inline(always)]
fn wait(ctx: Ctx<'_>, call: &Call<'_>, id: WaiterId, (now, plans): (Now, bool)) -> Result<(), Error> {
    let start = WaitStart { now, needs_schedule: plans };
    match call.request.number() {
        Some(_) => queue(ctx, id, &call.request, call.acknowledgement, start),
        None => driver::block(ctx, id, call.acknowledgement, start),
    }
}

/// Fails if the waiter waits for its own owner. Searches only if that is possible. Returns the time
/// afterwards, because a search can take long.
#[inline]
fn refuse_deadlock(ctx: Ctx<'_>, id: WaiterId, may_be_in_cycle: bool, now: Now) -> Result<Now, Error> {
    let reported = config::deadlock_detection();
    if !may_be_in_cycle || !(reported || driver::with(ctx, |driver| driver.locks.has_bundles())) {
        return Ok(now);
    }
    match driver::find_deadlock(ctx, id, reported) {
        Some(cycle) => Err(Error::Deadlock(cycle)),
        None => Ok(ctx.now()),
    }
}

/// Opens the lock, and acquires it or queues for it. Also returns whether a queued call may wait for its own owner.
fn acquire_or_queue<'a>(
    ctx: Ctx<'a>,
    call: &'a Call<'a>,
    remembered: driver::Remembered<'a>,
    patience: WaitPolicy,
    now: Now,
) -> Result<(Outcome, bool), Error> {
    let target = Target::of_owner(&call.key, &call.owner);
    super::update_looked_up(ctx, target, remembered, now, |lock, known| {
        if super::is_foreign_fair_lock(lock, &call.request, now) {
            return Err(Error::FairLock);
        }
        let (outcome, output) = driver::with(ctx, |driver| {
            driver.update_quarantine(now);
            driver.locks.acquire(lock.opened(known, now), &call.request, patience)
        });
        let may_be_in_cycle = match outcome {
            Outcome::Queued(id) => driver::may_be_in_cycle(ctx, id, &lock.holders),
            _ => false,
        };
        Ok(((outcome, may_be_in_cycle), output))
    })
}

fn parse(args: Args<'_>) -> Result<Words<'_>, Error> {
    let mut args = Cursor::new("lock.acquire", args);
    let key = args.key()?;
    let owner = args.owner()?;
    let mut options = Options::default();
    options.read(&mut args)?;
    let command = args.command();
    let wait = options.wait.mode(command)?;
    let wants = options.shared.wants(&options.once, command)?;
    Ok(Words { command, key, owner, options, wait, wants })
}

fn check<'a>(ctx: Ctx<'_>, words: Words<'a>, now: Now) -> Result<Call<'a>, Error> {
    let Words { command, key, owner, options, wait, wants } = words;
    let awaits_replicas = options.replicas.is_given();
    let session = options.session.get();
    check_session_options(command, session, wait, (options.id.get().is_some(), awaits_replicas))?;
    let Options { lease, watchdog, ephemeral, .. } = &options;
    let hold = HoldOptions { session, lease, watchdog, ephemeral };
    let keys = std::slice::from_ref(&key);
    let HoldOfCall { number, bind, lease_ms } = checks::hold(ctx, command, keys, &owner, &hold, now)?;
    let request = Request {
        owner: super::owner_or_random(&owner),
        wants,
        lease_ms,
        keeps_longer: options.lease.ms().is_none(),
        fence: options.fence.is_given(),
        names_owner: owner.as_bytes() == b"*" || options.fence.is_given(),
        id: options.id.get().map(|id| checks::request(ctx, command, &key, &owner, id)).transpose()?,
        bind,
        numbered: number.map(Rc::new),
        client: super::client_for_events(ctx),
        awaits_replicas,
    };
    if request.fence {
        checks::counter_slot(ctx, command, "FENCE", &key)?;
    }
    let acknowledgement = checks::replicas(ctx, command, options.replicas.acknowledgement(command)?)?;
    Ok(Call { key, owner, request, wait, acknowledgement })
}

/// Replies 0 to a queued call of a session. Its grant is an event, which comes when the required replicas have
/// acknowledged it.
pub(super) fn queue(
    ctx: Ctx<'_>,
    id: WaiterId,
    request: &Request,
    acknowledgement: Option<ReplicaRequirement>,
    start: WaitStart,
) -> Result<(), Error> {
    if let Some((requirement, call)) = acknowledgement.zip(request.number()) {
        driver::await_replicas_of_session(ctx, id, requirement, call.number);
    }
    driver::with(ctx, |driver| driver.begin_wait(ctx, start));
    ctx.reply_integer(0);
    Ok(())
}

/// Fails if an option does not go with `SESSION`, or needs it.
#[inline]
pub(super) fn check_session_options(
    command: CommandName,
    session: Option<(&[u8], u64)>,
    wait: WaitMode,
    (has_id, awaits_replicas): (bool, bool),
) -> Result<(), Error> {
    match (session, wait) {
        (None, WaitMode::Queue(_)) => Err(command.problem("QUEUE needs SESSION")),
        (None, _) => Ok(()),
        (Some(_), WaitMode::Block(_)) => Err(command.exclusive("SESSION", "BLOCK")),
        (Some(_), _) if has_id => Err(command.exclusive("SESSION", "ID")),
        // The reply to such a call comes later, so it is an event.
        (Some(_), WaitMode::NoWait) if awaits_replicas => {
            Err(command.problem("REPLICAS with SESSION needs QUEUE"))
        }
        (Some(_), _) => Ok(()),
    }
}
