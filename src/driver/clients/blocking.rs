// SPDX-License-Identifier: MIT

//! Blocks clients and replies to them.

use crate::core::{Decision, Reply, WaiterId};
use crate::driver::clients::blocked_clients::{Answer, DeliveredGrant, NewBlockedWait, WaitOutcome};
use crate::driver::locks::deadlock::describe_cycle_for_caller;
use crate::driver::replicas::replica_waits::{AwaitedHold, AwaitedWrite, HoldRef, ReplicaRequirement};
use crate::driver::state::{dispatch, with, Driver, WaitStart};
use crate::error::Error;
use crate::keyspace;
use crate::server::clients::blocked::{self, BlockedClient, ClientHandle};
use crate::server::clients::socket::Socket;
use crate::server::events::iteration_end;
use crate::server::{Ctx, Str};

/// Blocks the calling client until its waiter is decided and the required replicas have acknowledged the grant. Refuses a wait
/// beyond `lock.max-waiters-total`.
pub(crate) fn block(
    ctx: Ctx<'_>,
    id: WaiterId,
    requirement: Option<ReplicaRequirement>,
    start: WaitStart,
) -> Result<(), Error> {
    // A pending decision frees a place: a repeated call has superseded its earlier wait, or a bundle was granted at once.
    let is_refused =
        with(ctx, |driver| driver.blocked.is_full() && !driver.locks.has_decided() && driver.locks.leave(id));
    if is_refused {
        with(ctx, |driver| driver.stats.waits_refused += 1);
        dispatch(ctx, start.now);
        return Err(Error::ServerIsFull);
    }
    let blocked = block_client(ctx, id, requirement, |driver| driver.begin_wait(ctx, start));
    if blocked.is_err() {
        with(ctx, |driver| {
            if !driver.locks.leave(id) {
                driver.revoke(id, "undelivered");
            }
        });
        dispatch(ctx, start.now);
    }
    blocked
}

/// Blocks the calling client until replicas have acknowledged a hold.
pub(crate) fn block_until_acknowledged(
    ctx: Ctx<'_>,
    requirement: ReplicaRequirement,
    standing: AwaitedHold,
) -> Result<(), Error> {
    let id = with(ctx, |driver| driver.locks.next_wait_id());
    let now = ctx.now();
    block_client(ctx, id, Some(requirement), |driver| {
        driver.replica_waits.insert(id, requirement, AwaitedWrite::Hold(standing), now.mono);
        driver.replica_waits.register_hook(ctx);
        driver.watch_disconnects(ctx);
        driver.schedule_at(ctx, now, None);
    })
}

/// Blocks the calling client, then runs `then` on the driver.
fn block_client(
    ctx: Ctx<'_>,
    id: WaiterId,
    requirement: Option<ReplicaRequirement>,
    then: impl FnOnce(&mut Driver),
) -> Result<(), Error> {
    let handle = blocked::block::<Callbacks>(ctx).ok_or(Error::CannotBlock)?;
    let client = ctx.client_id();
    let known = with(ctx, |driver| driver.known_clients.begin_wait(client, id));
    let socket = known.unwrap_or_else(|| Socket::of_client(ctx, client));
    with(ctx, |driver| {
        if known.is_none() {
            driver.known_clients.insert(client, socket, id);
        }
        driver.blocked.insert(id, NewBlockedWait { handle, client, socket, requirement });
        then(driver);
    });
    Ok(())
}

/// Callbacks of the server about blocked clients.
struct Callbacks;

impl BlockedClient for Callbacks {
    fn reply(ctx: Ctx<'_>, token: u64) {
        let id = WaiterId(token);
        let answer = with(ctx, |driver| {
            let Answer { outcome, hung_up, grant } = driver.blocked.answer(id)?;
            if let Some(DeliveredGrant { client, socket, is_acknowledged }) = grant {
                driver.locks.answered(id);
                if is_acknowledged {
                    driver.locks.acknowledged(id);
                }
                driver.deliveries.insert(id, client, socket);
            }
            Some((outcome, hung_up))
        });
        let Some((outcome, hung_up)) = answer else { return };
        let decision = match outcome {
            WaitOutcome::Decided(decision) => decision,
            WaitOutcome::Left => return,
            WaitOutcome::HoldAcknowledged(standing) => return reply_if_held(ctx, &standing),
            WaitOutcome::NotAcknowledged { got, of, revoked } => {
                return ctx.reply_error(&Error::NotAcknowledged { got, of, revoked }.to_string());
            }
            WaitOutcome::Deadlock(edges) => {
                return ctx.reply_error(&Error::Deadlock(describe_cycle_for_caller(ctx, &edges)).to_string());
            }
            WaitOutcome::HoldLost => return ctx.reply_error(&Error::NotOwner.to_string()),
        };
        let error = match decision {
            // The client may have closed only its sending half, and may still read replies. It must not
            // receive a grant that will be revoked.
            Decision::Granted(_) | Decision::GrantedAll(_) if hung_up => Error::HungUp,
            Decision::Granted(reply) => return reply_grant(ctx, &reply),
            Decision::GrantedAll(replies) => return reply_grants(ctx, &replies),
            Decision::TimedOut => return ctx.reply_null(),
            Decision::WrongType => Error::WrongType,
            Decision::Moved => Error::Moved,
            Decision::Superseded => Error::Superseded,
            Decision::Cancelled => Error::Cancelled,
            Decision::Demoted => Error::Demoted,
            Decision::Lost => Error::NotOwner,
            Decision::Refused(refusal) => Error::Refused(refusal),
        };
        ctx.reply_error(&error.to_string());
    }

    fn timed_out(ctx: Ctx<'_>, handle: ClientHandle) {
        ctx.reply_null();
        with(ctx, |driver| leave_queue(driver, ctx, handle));
    }

    fn disconnected(ctx: Ctx<'_>, handle: ClientHandle) {
        with(ctx, |driver| {
            leave_queue(driver, ctx, handle);
            driver.known_clients.forget(ctx.client_id());
        });
    }

    fn done(ctx: Ctx<'_>, token: u64, gone: bool) {
        let id = WaiterId(token);
        let has_grant = with(ctx, |driver| {
            // The client that has just received a grant is the last delivery. It is no longer in the table.
            let has_grant = !gone && driver.deliveries.ends_with(id);
            let wait = if has_grant { None } else { driver.blocked.remove(id) };
            if gone {
                if let Some(wait) = &wait {
                    driver.known_clients.forget(wait.client());
                }
            }
            if wait.is_some_and(|wait| wait.has_grant()) {
                driver.revoke(id, "undelivered");
                driver.schedule_soon(ctx);
            }
            has_grant
        });
        if has_grant {
            iteration_end::schedule(ctx, on_iteration_end);
        }
    }
}

/// Removes the calling client's waiter from its queue, unless the waiter has been decided.
fn leave_queue(driver: &mut Driver, ctx: Ctx<'_>, handle: ClientHandle) {
    let id = driver.known_clients.last_wait(ctx.client_id());
    let Some(id) = id.filter(|id| driver.blocked.has_handle(*id, handle)) else {
        // The waiter has received its grant and is no longer in the table.
        return;
    };
    if driver.replica_waits.remove(id) {
        driver.revoke(id, "undelivered");
    }
    driver.locks.leave_at(id, ctx.now());
    driver.blocked.end(id, WaitOutcome::Left);
    driver.schedule(ctx);
}

/// Confirms the grants of this iteration. By now, the replies have been sent, and all clients to be closed
/// have been freed.
fn on_iteration_end(ctx: Ctx<'_>) {
    with(ctx, |driver| {
        let mut follows = false;
        let Driver { deliveries, locks, .. } = driver;
        for id in deliveries.take() {
            follows |= match locks.delivered_plain(id) {
                Some(follows) => follows,
                None => locks.delivered(id, ctx.now()),
            };
        }
        deliveries.shrink();
        if follows {
            driver.watch_disconnects(ctx);
            driver.schedule_soon(ctx);
        }
    });
}

/// Replies with the hold if it still exists, or with the remembered reply of its request.
fn reply_if_held(ctx: Ctx<'_>, AwaitedHold { db, key, hold_ref }: &AwaitedHold) {
    if !ctx.is_primary() {
        return ctx.reply_error(&Error::Demoted.to_string());
    }
    let key = Str::new(key);
    let replied = ctx.in_db(*db, || match hold_ref {
        HoldRef::Request(request) => {
            let granted = keyspace::granted(ctx, &key, request).map_err(Error::Refused)?;
            reply_grant(ctx, &granted.ok_or(Error::NotOwner)?);
            Ok(())
        }
        HoldRef::BundleRequest(keys, request) => {
            let granted = |key: &Vec<u8>| {
                let granted = keyspace::granted(ctx, &Str::new(key), request).map_err(Error::Refused)?;
                granted.ok_or(Error::NotOwner)
            };
            reply_grants(ctx, &keys.iter().map(granted).collect::<Result<Vec<Reply>, Error>>()?);
            Ok(())
        }
        HoldRef::Owner(owner, holds) => {
            if keyspace::count_holds(ctx, &key, &Str::new(owner.as_bytes()))? == 0 {
                return Err(Error::NotOwner);
            }
            ctx.reply_integer(*holds);
            Ok(())
        }
    });
    if let Err(error) = replied {
        ctx.reply_error(&error.to_string());
    }
}

/// Replies with the grants of several locks.
pub(crate) fn reply_grants(ctx: Ctx<'_>, replies: &[Reply]) {
    ctx.reply_array(replies.len());
    replies.iter().for_each(|reply| reply_grant(ctx, reply));
}

/// Replies with a grant.
pub(crate) fn reply_grant(ctx: Ctx<'_>, reply: &Reply) {
    let Some(owner) = &reply.owner else { return ctx.reply_integer(reply.holds) };
    ctx.reply_map(if reply.token.is_some() { 3 } else { 2 });
    ctx.reply_bulk(b"owner");
    ctx.reply_bulk(owner.as_bytes());
    ctx.reply_bulk(b"holds");
    ctx.reply_integer(reply.holds);
    if let Some(token) = reply.token {
        ctx.reply_bulk(b"token");
        ctx.reply_integer(token);
    }
}
