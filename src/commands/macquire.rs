// SPDX-License-Identifier: MIT

//! `LOCK.MACQUIRE`

use uuid::Uuid;

use super::acquire::OWNER;
use super::args::Cursor;
use super::options::{
    self, options, Block, Ephemeral, Fence, Id, Lease, Once, Replicas, Watchdog, WithOthers, KEYS, NUMKEYS,
};
use crate::config;
use crate::core::{
    CheckedLock, Mode, MonoUs, NewBundle, Now, Owner, Refusal, Reply, Request, Verdict, WaitPolicy, WaiterId,
    Wants,
};
use crate::driver::{self, Acknowledgement, Standing, Whose};
use crate::error::Error;
use crate::server::arguments::Arguments;
use crate::server::load::{Args, Command, KeyUse, Spec};
use crate::server::{Ctx, Str};

pub(crate) struct Macquire;

/// A call as the client wrote it.
struct Call<'a> {
    keys: Vec<Str<'a>>,
    /// As it was given: not who a `*` becomes.
    owner: Str<'a>,
    /// What is asked of each lock.
    request: Request,
    block: Option<options::Patience>,
    wanted: Option<Acknowledgement>,
}

/// What becomes of a call, as all its locks were found.
enum Found {
    /// All are to be had.
    All,
    /// It was made before, and got this.
    Repeats(Vec<Reply>),
    /// This one is the first that is not to be had.
    Busy {
        at: usize,
        /// Nobody is known to hold any of them.
        quarantined: bool,
        /// As many wait for one of them as may.
        is_full: bool,
    },
}

options! {
    Options {
        lease: Lease,
        block: Block,
        shared: WithOthers,
        once: Once,
        fence: Fence,
        watchdog: Watchdog,
        ephemeral: Ephemeral,
        replicas: Replicas,
        id: Id<'a>,
    }
}

impl Command for Macquire {
    const SPEC: Spec = Spec {
        name: c"lock.macquire",
        flags: c"write deny-oom blocking",
        categories: c"write slow blocking",
        key: Some(KeyUse::WriteSeveral),
        arguments: Arguments { places: &[NUMKEYS, KEYS, OWNER], options: Options::ARGUMENTS },
        summary: c"Takes several locks at once, or none, or waits until all are to be had.",
        reply: "An array of what LOCK.ACQUIRE replies, in the order of the keys, or nil if somebody else holds one of them.",
        complexity: c"O(K) for K locks, or O(K*log(N)) where N waiters are queued for locks",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let call = parse(ctx, args)?;
        let now = ctx.now();
        let patience = super::patience(ctx, call.block, now);
        let done = driver::in_several(ctx, || {
            find(ctx, &call, patience, now).and_then(|found| carry_out(ctx, &call, found, patience, now))
        });
        match done {
            Ok(Some(lead)) => match driver::deadlock_of(ctx, lead, config::deadlock_detection()) {
                Some(cycle) => Err(Error::Deadlock(cycle)),
                // It passes on what was decided, too.
                None => driver::block(ctx, lead, call.wanted, (ctx.now(), true)),
            },
            done => {
                driver::dispatch(ctx, ctx.now());
                done.map(|_| ())
            }
        }
    }
}

/// Looks at all locks, and changes nothing but what was due anyway.
fn find(ctx: Ctx<'_>, call: &Call<'_>, patience: WaitPolicy, now: Now) -> Result<Found, Error> {
    let (mut replies, mut busy, mut known_busy, mut any_full) = (Vec::new(), None, false, false);
    for (at, key) in call.keys.iter().enumerate() {
        let CheckedLock { verdict, is_full } =
            super::one_in_hand(ctx, (key, Some(&call.owner)), now, |lock, known| {
                if super::is_theirs(lock, &call.request, now) {
                    return Err(Error::FairLock);
                }
                Ok(driver::with(ctx, |driver| {
                    driver.keep_quarantine(now);
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
            Verdict::Refused(refusal) => return Err(Error::Refused(refusal)),
        }
    }
    match busy {
        _ if replies.len() == call.keys.len() => Ok(Found::Repeats(replies)),
        _ if !replies.is_empty() => Err(Error::OtherKeys),
        Some(at) => Ok(Found::Busy { at, quarantined: !known_busy, is_full: any_full }),
        None => Ok(Found::All),
    }
}

/// Does what is to be done, and replies. Returns the wait by which the call is known if its client is to be blocked.
fn carry_out(
    ctx: Ctx<'_>,
    call: &Call<'_>,
    found: Found,
    patience: WaitPolicy,
    now: Now,
) -> Result<Option<WaiterId>, Error> {
    match found {
        Found::All if call.request.awaits_replicas => {
            let (bundle, parts) = queue(ctx, call, None, now)?;
            driver::grant_all(ctx, bundle.first_wait, &parts);
            Ok(Some(bundle.first_wait))
        }
        Found::All => {
            let take = |key| {
                super::one_in_hand(ctx, (key, Some(&call.owner)), now, |lock, known| {
                    Ok(driver::with(ctx, |driver| driver.locks.take(lock.opened(known, now), &call.request)))
                })
            };
            let replies = call.keys.iter().map(take).collect::<Result<Option<Vec<Reply>>, Error>>()?;
            let Some(replies) = replies else {
                return defect!(
                    "a lock is not to be had that was so in the same step",
                    Err(Error::CannotBlock)
                );
            };
            driver::reply_grants(ctx, &replies);
            Ok(None)
        }
        Found::Repeats(replies) => {
            for (key, reply) in call.keys.iter().zip(&replies) {
                super::one_in_hand(ctx, (key, Some(&call.owner)), now, |lock, known| {
                    Ok((
                        (),
                        driver::with(ctx, |driver| {
                            driver.locks.repeat(lock.opened(known, now), &call.request, reply)
                        }),
                    ))
                })?;
            }
            match call.wanted.zip(call.request.id.clone()) {
                // It was granted before: whether the replicas have it or not, it stands.
                Some((wanted, request)) => {
                    let keys = call.keys.iter().map(|key| key.as_bytes().to_vec()).collect();
                    let whose = Whose::RequestOf(keys, request);
                    let standing = Standing { db: ctx.db(), key: Vec::new(), whose };
                    driver::block_until_acknowledged(ctx, wanted, standing)?;
                }
                None => driver::reply_grants(ctx, &replies),
            }
            Ok(None)
        }
        Found::Busy { at, quarantined, is_full } => match patience {
            WaitPolicy::NoWait if quarantined => {
                let left = driver::with(ctx, |driver| driver.quarantine_left(now));
                Err(Error::Quarantine { ms: left.map_or(0, |us| us.div_ceil(1000)) })
            }
            WaitPolicy::NoWait => {
                driver::with(ctx, |driver| driver.locks.count_busy());
                ctx.reply_null();
                Ok(None)
            }
            // A replica that accepts writes: nothing here could hand the locks on.
            WaitPolicy::Wait { on_primary: false, .. } => Err(Error::Refused(Refusal::Replica)),
            WaitPolicy::Wait { .. } if is_full => Err(Error::Refused(Refusal::TooManyWaiters)),
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

/// Queues the call at all locks. Returns its parts, too.
fn queue(
    ctx: Ctx<'_>,
    call: &Call<'_>,
    deadline: Option<MonoUs>,
    now: Now,
) -> Result<(NewBundle, Vec<WaiterId>), Error> {
    let (mut bundle, mut parts) = (None, Vec::with_capacity(call.keys.len()));
    for key in &call.keys {
        let part = super::one_in_hand(ctx, (key, Some(&call.owner)), now, |lock, known| {
            Ok(driver::with(ctx, |driver| {
                driver.locks.queue_member(lock.opened(known, now), &call.request, deadline, &mut bundle)
            }))
        })?;
        parts.push(part);
    }
    // There is at least one key.
    bundle.map(|bundle| (bundle, parts)).ok_or(Error::CannotBlock)
}

fn parse<'a>(ctx: Ctx<'_>, args: Args<'a>) -> Result<Call<'a>, Error> {
    let mut args = Cursor::new("lock.macquire", args);
    let keys = args.keys(ctx)?;
    let asked = args.owner()?;
    let mut given = Options::default();
    given.read(&mut args)?;
    let made = asked.as_bytes() == b"*";
    let mode = if given.shared.is_given() { Mode::Shared } else { Mode::Exclusive };
    let mut id = None;
    for key in &keys {
        id = given.id.get().map(|id| args.request(ctx, key, asked.as_bytes(), id)).transpose()?;
        if given.fence.is_given() {
            args.has_counter_here(ctx, "FENCE", key)?;
        }
    }
    let request = Request {
        owner: if made {
            Owner::new(Uuid::new_v4().to_string().as_bytes())
        } else {
            Owner::new(asked.as_bytes())
        },
        wants: Wants { mode, once: given.once.is_given(), limit: None },
        lease_ms: given.lease.ms().unwrap_or_else(config::default_lease),
        keeps_longer: given.lease.ms().is_none(),
        fence: given.fence.is_given(),
        names_owner: made || given.fence.is_given(),
        id,
        bind: given.watchdog.bind(&given.ephemeral, ctx, &args)?,
        client: super::client_if_told(ctx),
        awaits_replicas: given.replicas.is_given(),
        notify: None,
    };
    let wanted = given.replicas.acknowledgement(ctx, &args)?;
    Ok(Call { keys, owner: asked, request, block: given.block.patience(), wanted })
}
