// SPDX-License-Identifier: MIT

//! `LOCK.MACQUIRE`

use std::rc::Rc;

use super::args::Cursor;
use super::checks::{self, HoldOfCall, HoldOptions};
use super::options::{
    options, Ephemeral, Fence, Id, Lease, Once, Replicas, SessionNumber, SharedFlag, Wait, WaitMode,
    Watchdog, KEYS, NEW_OWNER, NUMKEYS,
};
use super::Target;
use crate::config;
use crate::core::{
    CheckedLock, Known, Mode, MonoUs, NewBundle, Now, Refusal, Reply, Request, Verdict, WaitPolicy, WaiterId,
    Wants,
};
use crate::driver::{self, AwaitedHold, HoldRef, ReplicaRequirement, WaitStart};
use crate::error::Error;
use crate::server::registration::arguments::Arguments;
use crate::server::registration::command::{Args, Command, KeyUse, Spec};
use crate::server::{Ctx, Str};

pub(crate) struct Macquire;

/// A call that has passed the checks.
struct Call<'a> {
    keys: Vec<Str<'a>>,
    /// The owner as written by the client: `*` stands for a random one.
    owner: Str<'a>,
    /// The request for each lock.
    request: Request,
    wait: WaitMode,
    acknowledgement: Option<ReplicaRequirement>,
}

/// Whether all locks of a call can be granted.
enum Availability {
    /// All locks are available.
    Available,
    /// An earlier call with this ID was granted, with these replies.
    Repeats(Vec<Reply>),
    /// At least one lock is not available.
    Busy {
        /// The position of the first lock that is not available.
        at: usize,
        /// Whether the quarantine is the only reason.
        quarantined: bool,
        /// Whether one of the locks has the maximum number of waiters.
        is_full: bool,
    },
}

options! {
    Options {
        lease: Lease,
        wait: Wait,
        shared: SharedFlag,
        once: Once,
        fence: Fence,
        watchdog: Watchdog,
        ephemeral: Ephemeral,
        replicas: Replicas,
        id: Id<'a>,
        session: SessionNumber<'a>,
    }
}

impl Command for Macquire {
    const SPEC: Spec = Spec {
        name: c"lock.macquire",
        flags: c"write deny-oom blocking",
        categories: c"write slow blocking",
        key: Some(KeyUse::WriteSeveral),
        arguments: Arguments{positional: &[NUMKEYS, KEYS, NEW_OWNER], options: Options::ARGUMENTS },
        summary: c"Acquires several locks at once, all or none, or waits until all are available.",
        reply: "An array of the replies of LOCK.ACQUIRE, in the order of the keys, or nil if a lock is not available.",
        complexity: c"O(K) for K locks, or O(K*log(N)) where N waiters are queued for locks",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let now = ctx.now();
        let call = read(ctx, args, now)?;
        let patience = super::wait_policy(ctx, call.wait, now);
        let done = driver::in_multi_lock_call(ctx, || {
            let found = check_locks(ctx, &call, patience, now)?;
            let known = call
                .request
                .number()
                .map(|of| driver::with(ctx, |driver| driver.locks.known_number(of.number)));
            match known {
                None | Some(Known::New) => acquire(ctx, &call, found, patience, now),
                Some(known) => {
                    super::acquire::reply_known(ctx, &known, (call.keys.len(), true)).map(|()| None)
                }
            }
        });
        match done {
            Ok(Some(first_wait)) => {
                let start = || WaitStart { now: ctx.now(), needs_schedule: true };
                match driver::find_deadlock(ctx, first_wait, config::deadlock_detection()) {
                    Some(cycle) => Err(Error::Deadlock(cycle)),
                    None if call.request.number().is_some() => {
                        super::acquire::queue(ctx, first_wait, &call.request, call.acknowledgement, start())
                    }
                    // `block` also delivers pending decisions.
                    None => driver::block(ctx, first_wait, call.acknowledgement, start()),
                }
            }
            done => {
                driver::dispatch(ctx, ctx.now());
                done.map(|_| ())
            }
        }
    }
}

/// Checks whether all locks are available. Changes nothing except expired holds and due grants.
fn check_locks(ctx: Ctx<'_>, call: &Call<'_>, patience: WaitPolicy, now: Now) -> Result<Availability, Error> {
    let (mut replies, mut busy, mut known_busy, mut any_full) = (Vec::new(), None, false, false);
    let mut was_cancelled = false;
    for (at, key) in call.keys.iter().enumerate() {
        let CheckedLock { verdict, is_full } =
            super::update_one_of_several(ctx, Target::of_owner(key, &call.owner), now, |lock, known| {
                if super::is_foreign_fair_lock(lock, &call.request, now) {
                    return Err(Error::FairLock);
                }
                Ok(driver::with(ctx, |driver| {
                    driver.update_quarantine(now);
                    driver.locks.check(lock.opened(known, now), &call.request, patience)
                }))
            })?;
        any_full |= is_full;
        match verdict {
            Verdict::Available => {}
            Verdict::Repeats(reply) => replies.push(reply),
            Verdict::Busy { quarantined } => {
                busy.get_or_insert(at);
                known_busy |= !quarantined;
            }
            // The call may still hold the lock of another key.
            Verdict::Refused(Refusal::Cancelled) => was_cancelled = true,
            Verdict::Refused(refusal) => return Err(Error::Refused(refusal)),
        }
    }
    match busy {
        _ if replies.len() == call.keys.len() => Ok(Availability::Repeats(replies)),
        _ if !replies.is_empty() => Err(Error::GrantedInPart),
        _ if was_cancelled => Err(Error::Refused(Refusal::Cancelled)),
        Some(at) => Ok(Availability::Busy { at, quarantined: !known_busy, is_full: any_full }),
        None => Ok(Availability::Available),
    }
}

/// Grants the locks and replies, or queues the call. Returns the first wait of a call whose client must be blocked.
fn acquire(
    ctx: Ctx<'_>,
    call: &Call<'_>,
    found: Availability,
    patience: WaitPolicy,
    now: Now,
) -> Result<Option<WaiterId>, Error> {
    match found {
        Availability::Available if call.request.awaits_replicas => {
            let (bundle, parts) = queue(ctx, call, None, now)?;
            driver::grant_bundle(ctx, bundle.first_wait, &parts);
            Ok(Some(bundle.first_wait))
        }
        Availability::Available => {
            let take = |key| {
                super::update_one_of_several(ctx, Target::of_owner(key, &call.owner), now, |lock, known| {
                    Ok(driver::with(ctx, |driver| driver.locks.take(lock.opened(known, now), &call.request)))
                })
            };
            let replies = call.keys.iter().map(take).collect::<Result<Option<Vec<Reply>>, Error>>()?;
            let Some(replies) = replies else {
                return defect!(
                    "an available lock became unavailable in the same step",
                    Err(Error::CannotBlock)
                );
            };
            driver::reply_grants(ctx, &replies);
            Ok(None)
        }
        Availability::Repeats(replies) => {
            for (key, reply) in call.keys.iter().zip(&replies) {
                super::update_one_of_several(ctx, Target::of_owner(key, &call.owner), now, |lock, known| {
                    Ok((
                        (),
                        driver::with(ctx, |driver| {
                            driver.locks.repeat(lock.opened(known, now), &call.request, reply)
                        }),
                    ))
                })?;
            }
            match call.acknowledgement.zip(call.request.id.clone()) {
                // This is a repeated call: the holds stay even if the replicas do not acknowledge them.
                Some((wanted, request)) => {
                    let keys = call.keys.iter().map(|key| key.as_bytes().to_vec()).collect();
                    let hold_ref = HoldRef::BundleRequest(keys, request);
                    let standing = AwaitedHold { db: ctx.db(), key: Vec::new(), hold_ref };
                    driver::block_until_acknowledged(ctx, wanted, standing)?;
                }
                None => driver::reply_grants(ctx, &replies),
            }
            Ok(None)
        }
        Availability::Busy { at, quarantined, is_full } => match patience {
            WaitPolicy::NoWait if quarantined => {
                let left = driver::with(ctx, |driver| driver.quarantine_left(now));
                Err(Error::Quarantine { ms: left.map_or(0, |us| us.div_ceil(1000)) })
            }
            WaitPolicy::NoWait => {
                driver::with(ctx, |driver| {
                    driver.locks.count_busy();
                    if let Some(call) = call.request.number() {
                        driver.locks.note_busy(call.number);
                    }
                });
                ctx.reply_null();
                Ok(None)
            }
            // This is a writable replica. It does not hand over locks, so a wait would never end.
            WaitPolicy::Wait { on_primary: false, .. } => Err(Error::Refused(Refusal::Replica)),
            WaitPolicy::Wait { .. } if is_full => Err(super::queue_is_full(ctx, &call.request)),
            WaitPolicy::Wait { deadline, .. } => {
                let (bundle, parts) = queue(ctx, call, deadline, now)?;
                if let Some(at) = parts.get(at) {
                    driver::with(ctx, |driver| driver.locks.note_blocked(bundle.first_wait, *at));
                }
                Ok(Some(bundle.first_wait))
            }
        },
    }
}

/// Queues the call at all locks. Also returns its wait for each lock.
fn queue(
    ctx: Ctx<'_>,
    call: &Call<'_>,
    deadline: Option<MonoUs>,
    now: Now,
) -> Result<(NewBundle, Vec<WaiterId>), Error> {
    let (mut bundle, mut parts) = (None, Vec::with_capacity(call.keys.len()));
    for key in &call.keys {
        let part =
            super::update_one_of_several(ctx, Target::of_owner(key, &call.owner), now, |lock, known| {
                Ok(driver::with(ctx, |driver| {
                    driver.locks.queue_member(lock.opened(known, now), &call.request, deadline, &mut bundle)
                }))
            })?;
        parts.push(part);
    }
    // A call has at least one key, so the bundle exists.
    bundle.map(|bundle| (bundle, parts)).ok_or(Error::CannotBlock)
}

fn read<'a>(ctx: Ctx<'_>, args: Args<'a>, now: Now) -> Result<Call<'a>, Error> {
    let mut args = Cursor::new("lock.macquire", args);
    let keys = args.keys()?;
    checks::one_slot(ctx, &keys)?;
    let owner = args.owner()?;
    let mut options = Options::default();
    options.read(&mut args)?;
    let command = args.command();
    let mode = if options.shared.is_given() { Mode::Shared } else { Mode::Exclusive };
    let wait = options.wait.mode(command)?;
    let session = options.session.get();
    let has_id = options.id.get().is_some();
    super::acquire::check_session_options(command, session, wait, (has_id, options.replicas.is_given()))?;
    let Options { lease, watchdog, ephemeral, .. } = &options;
    let hold = HoldOptions { session, lease, watchdog, ephemeral };
    let HoldOfCall { number, bind, lease_ms } = checks::hold(ctx, command, &keys, &owner, &hold, now)?;
    let mut id = None;
    for key in &keys {
        id = options.id.get().map(|id| checks::request(ctx, command, key, &owner, id)).transpose()?;
        if options.fence.is_given() {
            checks::counter_slot(ctx, command, "FENCE", key)?;
        }
    }
    let request = Request {
        owner: super::owner_or_random(&owner),
        wants: Wants { mode, once: options.once.is_given(), limit: None },
        lease_ms,
        keeps_longer: options.lease.ms().is_none(),
        fence: options.fence.is_given(),
        names_owner: owner.as_bytes() == b"*" || options.fence.is_given(),
        id,
        numbered: number.map(Rc::new),
        bind,
        client: super::client_for_events(ctx),
        awaits_replicas: options.replicas.is_given(),
    };
    let acknowledgement = checks::replicas(ctx, command, options.replicas.acknowledgement(command)?)?;
    Ok(Call { keys, owner, request, wait, acknowledgement })
}
