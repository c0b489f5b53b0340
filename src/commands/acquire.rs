//! `LOCK.ACQUIRE key owner [PX milliseconds | EX seconds] [BLOCK milliseconds]`

use uuid::Uuid;

use super::args::Cursor;
use crate::config;
use crate::core::{Admission, LockRef, Owner, Request};
use crate::error::Error;
use crate::runtime::{self, Answer};
use crate::server::load::{Args, Command, KeyUse, Spec};
use crate::server::{Ctx, Str};

pub(crate) struct Acquire;

/// A call as the client wrote it.
struct Call<'a> {
    key: Str<'a>,
    request: Request,
    answer: Answer,
    block: Option<Block>,
}

/// How long a client is ready to wait.
#[derive(Clone, Copy)]
struct Block {
    /// `None`: without limit.
    ms: Option<u64>,
}

impl Command for Acquire {
    const SPEC: Spec = Spec {
        name: c"lock.acquire",
        flags: c"write deny-oom blocking",
        categories: c"write slow blocking",
        key: Some(KeyUse::Write),
        arity: -3,
        summary: c"Takes a lock, or waits for it.",
        complexity: c"O(1), or O(log(N)) where N waiters are queued for locks",
    };

    fn run(ctx: Ctx, args: Args<'_>) -> Result<(), Error> {
        let call = parse(args)?;
        let at = LockRef { db: ctx.db(), key: call.key.as_bytes() };
        let mut lock = super::open(ctx, &call.key)?;
        let now = ctx.now();
        let admission =
            runtime::with(ctx, |runtime| runtime.service.acquire(at, &mut lock.holders, &call.request, now));
        let holders = lock.holders.clone();
        lock.store();
        runtime::settle(ctx);
        match (admission, call.block) {
            (Admission::Grant(holds), _) => runtime::reply_grant(ctx, &call.answer, holds),
            (Admission::Overflow, _) => return Err(Error::TooManyHolds),
            (Admission::Busy, Some(block)) if !ctx.denies_blocking() => {
                if !ctx.is_primary() {
                    // A replica that accepts writes: nothing here could hand the lock on.
                    return Err(Error::ReadOnly);
                }
                let deadline = block.ms.map(|ms| now.mono.saturating_add(ms.saturating_mul(1000)));
                let id = runtime::with(ctx, |runtime| {
                    let full = config::max_waiters().is_some_and(|max| runtime.service.waiting(at) >= max);
                    (!full)
                        .then(|| runtime.service.wait(at, &holders, call.request, deadline, now))
                        .ok_or(Error::TooManyWaiters)
                })?;
                runtime::block(ctx, id, call.answer)?;
            }
            (Admission::Busy, _) => ctx.reply_null(),
        }
        Ok(())
    }
}

fn parse(args: Args<'_>) -> Result<Call<'_>, Error> {
    let mut args = Cursor::new("lock.acquire", args);
    let key = args.key()?;
    let owner = args.owner()?;
    let (mut lease, mut block) = (None, None);
    while let Some(option) = args.next() {
        if args.lease(option, &mut lease)? {
        } else if option.eq_ignore_ascii_case(b"BLOCK") {
            let ms = args.block()?;
            args.once("BLOCK", &mut block, Block { ms })?;
        } else {
            return Err(args.unknown(option));
        }
    }
    let (owner, answer) = if owner == b"*" {
        let owner = Owner::new(Uuid::new_v4().to_string().as_bytes());
        (owner.clone(), Answer::Map(owner))
    } else {
        (Owner::new(owner), Answer::Holds)
    };
    let lease_ms = lease.unwrap_or_else(config::default_lease);
    Ok(Call { key, request: Request { owner, lease_ms }, answer, block })
}
