// SPDX-License-Identifier: MIT

//! Opens sessions, checks who may use them, and answers `LOCK.EVENTS`.

use std::rc::Rc;

use uuid::Uuid;

use crate::core::{ConnectionId, EventContent, MonoUs, NewSession, Now, SessionId, SessionKey};
use crate::driver::clients::polls::{NewPoll, PollOutcome};
use crate::driver::state::{with, Driver};
use crate::error::Error;
use crate::server::clients::blocked::{self, BlockedClient, ClientHandle};
use crate::server::clients::caller;
use crate::server::{calls, Ctx, Obstacle};

/// The user of an unrestricted connection.
const NO_USER: &[u8] = b"";

/// The time to wait and the maximum number of events of an EVENTS.
#[derive(Clone, Copy)]
pub(crate) struct PollAnswer {
    /// Time to wait for an event, in microseconds.
    pub(crate) wait_us: MonoUs,
    /// Maximum number of events.
    pub(crate) count: usize,
}

/// Returns a random id for a new session.
pub(crate) fn random_session_id() -> SessionId {
    // Six bits of a random UUID are constant. Those of a second one take their place.
    let mut bits = Uuid::new_v4().into_bytes();
    let [first, second, ..] = Uuid::new_v4().into_bytes();
    (bits[6], bits[8]) = (first, second);
    let mut id = [0; 32];
    Uuid::from_bytes(bits).simple().encode_lower(&mut id);
    SessionId(id)
}

/// Returns the user of a connection.
pub(crate) fn user_of(ctx: Ctx<'_>, client: u64) -> Rc<[u8]> {
    caller::user_of_client(ctx, client).map_or_else(|| Rc::from(NO_USER), Rc::from)
}

/// Opens a session over the calling connection.
pub(crate) fn open_session(ctx: Ctx<'_>, client: u64, new: NewSession, beat: u64, now: Now) -> SessionKey {
    with(ctx, |driver| {
        let session = driver.locks.open_session(new, beat, Some(ConnectionId(client)), now);
        driver.polls.remember(client, session, now.mono);
        driver.watch_disconnects(ctx);
        driver.schedule_at(ctx, now, None);
        session
    })
}

/// Returns the session with this id. Fails if it has ended or belongs to another user than the caller's.
pub(crate) fn session(ctx: Ctx<'_>, client: u64, id: &[u8], now: Now) -> Result<SessionKey, Error> {
    let id = SessionId(<[u8; 32]>::try_from(id).map_err(|_| Error::NoSession)?);
    let (session, is_checked) = with(ctx, |driver| {
        let session = driver.locks.find_session(&id)?;
        Some((session, driver.polls.may_use(client, session, now.mono)))
    })
    .ok_or(Error::NoSession)?;
    if is_checked {
        return Ok(session);
    }
    let user = user_of(ctx, client);
    with(ctx, |driver| {
        if driver.locks.session(session).is_none_or(|session| *session.user() != *user) {
            return Err(Error::NoSession);
        }
        driver.polls.remember(client, session, now.mono);
        Ok(session)
    })
}

/// Answers an EVENTS and delivers all decisions, like [`dispatch`](crate::driver::dispatch).
pub(crate) fn answer_poll(
    ctx: Ctx<'_>,
    session: SessionKey,
    answer: PollAnswer,
    now: Now,
) -> Result<(), Error> {
    let answered = answer_or_block(ctx, session, answer, now);
    with(ctx, |driver| driver.schedule_at(ctx, now, None));
    answered
}

/// Answers an EVENTS at once if an event is pending or the call does not wait, otherwise blocks it. No call is
/// answered while a lease is due for renewal, because the client would rely on it (R4).
fn answer_or_block(
    ctx: Ctx<'_>,
    session: SessionKey,
    PollAnswer { wait_us, count }: PollAnswer,
    now: Now,
) -> Result<(), Error> {
    let (has_events, max_us, is_due) = with(ctx, |driver| {
        driver.deliver(ctx, now);
        // An older call that is still blocked ends. It may not confirm while a renewal is due (R4).
        let is_due = driver.locks.renewals_are_due(now);
        driver.polls.end(session, if is_due { PollOutcome::Late } else { PollOutcome::Events });
        let of_session = driver.locks.session(session);
        let (has_events, max_us) =
            of_session.map_or((false, 0), |session| (session.pending() > 0, session.max_poll_us()));
        (has_events, max_us, is_due)
    });
    if is_due && matches!(calls::obstacle(ctx), Some(Obstacle::Refused)) {
        return Err(Error::CannotRenew);
    }
    let wait_us = wait_us.min(max_us);
    let denies_blocking = ctx.flags().denies_blocking();
    let is_ready = has_events || wait_us == 0 || denies_blocking;
    if is_ready && !is_due {
        with(ctx, |driver| reply_events(driver, ctx, session, count));
        return Ok(());
    }
    if denies_blocking {
        return Err(Error::RenewalsDue);
    }
    let handle = blocked::block::<Callbacks>(ctx).ok_or(Error::CannotBlock)?;
    with(ctx, |driver| {
        let until = (!is_ready).then_some(now.mono.saturating_add(wait_us));
        driver.polls.insert(session, NewPoll { handle, count, until });
        driver.locks.set_polled(session, !is_ready);
    });
    Ok(())
}

/// Replies with the unacknowledged events of a session, at most `count`.
fn reply_events(driver: &mut Driver, ctx: Ctx<'_>, key: SessionKey, count: usize) {
    if driver.locks.revoke_stale_grants(key, count, ctx.now()) {
        driver.schedule(ctx);
    }
    let Some(session) = driver.locks.session(key) else {
        return ctx.reply_error(&Error::NoSession.to_string());
    };
    ctx.reply_array(session.pending().min(count));
    let mut granted = Vec::new();
    for event in session.events().take(count) {
        match &event.content {
            EventContent::Granted(reply) => {
                ctx.reply_array(if reply.token.is_some() { 5 } else { 4 });
                begin_event(ctx, event.seq, b"granted", event.n);
                ctx.reply_integer(reply.holds);
                if let Some(token) = reply.token {
                    ctx.reply_integer(token);
                }
            }
            EventContent::GrantedAll(replies) => {
                let has_tokens = replies.iter().any(|reply| reply.token.is_some());
                ctx.reply_array(if has_tokens { 5 } else { 4 });
                begin_event(ctx, event.seq, b"granted", event.n);
                ctx.reply_array(replies.len());
                replies.iter().for_each(|reply| ctx.reply_integer(reply.holds));
                if has_tokens {
                    ctx.reply_array(replies.len());
                    replies.iter().for_each(|reply| ctx.reply_integer(reply.token.unwrap_or(0)));
                }
                granted.push(event.n);
            }
            EventContent::Lost(reason) => {
                ctx.reply_array(4);
                begin_event(ctx, event.seq, b"lost", event.n);
                ctx.reply_bulk(reason.name().as_bytes());
            }
            EventContent::Contended => {
                ctx.reply_array(3);
                begin_event(ctx, event.seq, b"contended", event.n);
            }
        }
    }
    granted.into_iter().for_each(|n| driver.locks.sent(key, n));
}

fn begin_event(ctx: Ctx<'_>, seq: u64, kind: &[u8], n: u64) {
    ctx.reply_integer(seq.cast_signed());
    ctx.reply_bulk(kind);
    ctx.reply_integer(n.cast_signed());
}

/// Replies to a blocked EVENTS that has ended.
fn reply_outcome(driver: &mut Driver, ctx: Ctx<'_>, session: SessionKey, count: usize, outcome: PollOutcome) {
    let error = match outcome {
        PollOutcome::Events => return reply_events(driver, ctx, session, count),
        PollOutcome::Waiting | PollOutcome::Gone => return,
        PollOutcome::Late => Error::Late,
        PollOutcome::Unblocked => Error::Unblocked,
        PollOutcome::NoSession => Error::NoSession,
        PollOutcome::Demoted => Error::Demoted,
        PollOutcome::CannotRenew => Error::CannotRenew,
    };
    ctx.reply_error(&error.to_string());
}

/// The server's callbacks for blocked EVENTS calls.
struct Callbacks;

impl BlockedClient for Callbacks {
    fn reply(ctx: Ctx<'_>, token: u64) {
        with(ctx, |driver| {
            if let Some((session, count, outcome)) = driver.polls.call(token) {
                reply_outcome(driver, ctx, session, count, outcome);
            }
        });
    }

    fn timed_out(ctx: Ctx<'_>, handle: ClientHandle) {
        with(ctx, |driver| {
            if let Some((session, count, outcome)) = driver.polls.call(handle.token()) {
                let outcome = match outcome {
                    // The client may not rely on its holds while a renewal is due (R4).
                    PollOutcome::Waiting if driver.locks.renewals_are_due(ctx.now()) => {
                        PollOutcome::Unblocked
                    }
                    PollOutcome::Waiting => PollOutcome::Events,
                    ended => ended,
                };
                reply_outcome(driver, ctx, session, count, outcome);
            }
            leave(driver, handle);
        });
    }

    fn disconnected(ctx: Ctx<'_>, handle: ClientHandle) {
        with(ctx, |driver| leave(driver, handle));
    }

    fn done(ctx: Ctx<'_>, token: u64, _gone: bool) {
        with(ctx, |driver| driver.polls.remove(token));
    }
}

/// Ends a blocked call whose client has left.
fn leave(driver: &mut Driver, handle: ClientHandle) {
    if let Some((session, _)) = driver.polls.session_of(handle) {
        driver.locks.set_polled(session, false);
        driver.polls.end(session, PollOutcome::Gone);
    }
}
