// SPDX-License-Identifier: MIT

//! Clients that wait: how they are blocked, answered, and told apart from those that are gone.

use crate::core::{Decision, Now, Reply, WaiterId};
use crate::driver::clients::blocked_clients::{Answer, Ended};
use crate::driver::locks::deadlock::words;
use crate::driver::replicas::acknowledgements::{Acknowledgement, Standing, Whose, Written};
use crate::driver::state::{dispatch, with, Driver};
use crate::error::Error;
use crate::keyspace;
use crate::server::clients::blocked::{self, BlockedClient, Handle};
use crate::server::clients::socket::Socket;
use crate::server::events::turn_end;
use crate::server::{Ctx, Str};

/// Blocks the calling client until its waiter is decided, and a grant acknowledged if that is wanted. `plans` unless it is certain
/// that nothing has to be planned for the wait that was not before.
pub(crate) fn block(
    ctx: Ctx<'_>,
    id: WaiterId,
    wanted: Option<Acknowledgement>,
    (now, plans): (Now, bool),
) -> Result<(), Error> {
    let blocked = block_client(ctx, id, wanted, |driver| driver.begin_wait(ctx, (now, plans)));
    if blocked.is_err() {
        with(ctx, |driver| {
            if !driver.locks.leave(id) {
                driver.revoke(id);
            }
        });
        dispatch(ctx, now);
    }
    blocked
}

/// Blocks the calling client until replicas have acknowledged a hold.
pub(crate) fn block_until_acknowledged(
    ctx: Ctx<'_>,
    wanted: Acknowledgement,
    standing: Standing,
) -> Result<(), Error> {
    let id = with(ctx, |driver| driver.locks.next_wait_id());
    let now = ctx.now();
    block_client(ctx, id, Some(wanted), |driver| {
        driver.acknowledgements.insert(id, wanted, Written::Hold(standing), now.mono);
        driver.acknowledgements.listen(ctx);
        driver.listen_to_clients(ctx);
        driver.plan_at(ctx, now, None);
    })
}

/// Blocks the calling client, and then does what follows.
#[inline(always)]
fn block_client(
    ctx: Ctx<'_>,
    id: WaiterId,
    wanted: Option<Acknowledgement>,
    then: impl FnOnce(&mut Driver),
) -> Result<(), Error> {
    let handle = blocked::block::<Waits>(ctx).ok_or(Error::CannotBlock)?;
    let client = ctx.client_id();
    let known = with(ctx, |driver| driver.waiting_clients.waits_again(client, id));
    let socket = known.unwrap_or_else(|| Socket::of_client(ctx, client));
    with(ctx, |driver| {
        if known.is_none() {
            driver.waiting_clients.insert(client, socket, id);
        }
        driver.blocked.insert(id, handle, (client, socket), wanted);
        then(driver);
    });
    Ok(())
}

/// What happens to blocked clients.
struct Waits;

impl BlockedClient for Waits {
    fn reply(ctx: Ctx<'_>, token: u64) {
        let id = WaiterId(token);
        let answer = with(ctx, |driver| {
            let Answer { ended, hung_up, told } = driver.blocked.answer(id)?;
            if let Some((client, socket, is_acknowledged)) = told {
                driver.locks.answered(id);
                if is_acknowledged {
                    driver.locks.acknowledged(id);
                }
                driver.deliveries.insert(id, client, socket);
            }
            Some((ended, hung_up))
        });
        let Some((ended, hung_up)) = answer else { return };
        let decision = match ended {
            Ended::By(decision) => decision,
            Ended::Left => return,
            Ended::Stands(standing) => return reply_if_it_stands(ctx, &standing),
            Ended::NotAcknowledged { got, of, revoked } => {
                return ctx.reply_error(&Error::NotAcknowledged { got, of, revoked }.to_string());
            }
            Ended::Deadlock(edges) => {
                return ctx.reply_error(&Error::Deadlock(words(ctx, &edges)).to_string());
            }
            Ended::Lost => return ctx.reply_error(&Error::NotOwner.to_string()),
        };
        let error = match decision {
            // It may have closed its half only, and still read: what is revoked must not be told as a grant.
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

    fn timed_out(ctx: Ctx<'_>, handle: Handle) {
        ctx.reply_null();
        with(ctx, |driver| leave(driver, ctx, handle));
    }

    fn disconnected(ctx: Ctx<'_>, handle: Handle) {
        with(ctx, |driver| {
            leave(driver, ctx, handle);
            driver.waiting_clients.forget(ctx.client_id());
        });
    }

    fn done(ctx: Ctx<'_>, token: u64, gone: bool) {
        let id = WaiterId(token);
        let was_told = with(ctx, |driver| {
            // It is the one that was answered just now, if it was with a grant: that one is forgotten.
            let was_told = !gone && driver.deliveries.ends_with(id);
            let wait = if was_told { None } else { driver.blocked.remove(id) };
            if gone {
                if let Some(wait) = &wait {
                    driver.waiting_clients.forget(wait.client());
                }
            }
            if wait.is_some_and(|wait| wait.has_grant()) {
                driver.revoke(id);
                driver.plan_soon(ctx);
            }
            was_told
        });
        if was_told {
            turn_end::at_end(ctx, turn_is_over);
        }
    }
}

/// The calling client's waiter leaves, if it has not been decided.
fn leave(driver: &mut Driver, ctx: Ctx<'_>, handle: Handle) {
    let id = driver.waiting_clients.last_wait(ctx.client_id());
    let Some(id) = id.filter(|id| driver.blocked.has_handle(*id, handle)) else {
        // One that was answered with a grant is gone.
        return;
    };
    if driver.acknowledgements.remove(id) {
        driver.revoke(id);
    }
    driver.locks.leave(id);
    driver.blocked.end(id, Ended::Left);
    driver.plan(ctx);
}

/// The answers of the turn have been sent, and who was to be closed then is freed.
fn turn_is_over(ctx: Ctx<'_>) {
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
            driver.listen_to_clients(ctx);
            driver.plan_soon(ctx);
        }
    });
}

/// Replies what a hold is, if it is still there; or what its request got, as long as that is remembered.
fn reply_if_it_stands(ctx: Ctx<'_>, Standing { db, key, whose }: &Standing) {
    if !ctx.is_primary() {
        return ctx.reply_error(&Error::Demoted.to_string());
    }
    let key = Str::new(key);
    let replied = ctx.in_db(*db, || match whose {
        Whose::Request(request) => {
            let granted = keyspace::granted(ctx, &key, request).map_err(Error::Refused)?;
            reply_grant(ctx, &granted.ok_or(Error::NotOwner)?);
            Ok(())
        }
        Whose::RequestOf(keys, request) => {
            let granted = |key: &Vec<u8>| {
                let granted = keyspace::granted(ctx, &Str::new(key), request).map_err(Error::Refused)?;
                granted.ok_or(Error::NotOwner)
            };
            reply_grants(ctx, &keys.iter().map(granted).collect::<Result<Vec<Reply>, Error>>()?);
            Ok(())
        }
        Whose::Owner(owner, holds) => {
            if keyspace::held_by(ctx, &key, &Str::new(owner.as_bytes()))? == 0 {
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

/// Answers a grant of several locks.
pub(crate) fn reply_grants(ctx: Ctx<'_>, replies: &[Reply]) {
    ctx.reply_array(replies.len());
    replies.iter().for_each(|reply| reply_grant(ctx, reply));
}

/// Answers a grant.
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
