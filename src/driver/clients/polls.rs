// SPDX-License-Identifier: MIT

//! Blocked `LOCK.EVENTS` calls, and the sessions that connections may use.

use foldhash::HashMap;

use crate::core::spare::free_spare;
use crate::core::{Calendar, EventContent, MonoUs, NewSession, Now, SessionId, SessionKey};
use crate::driver::state::{with, Driver};
use crate::error::Error;
use crate::server::clients::blocked::{self, BlockedClient, ClientHandle};
use crate::server::clients::caller::Caller;
use crate::server::{calls, Ctx, Obstacle};
use std::rc::Rc;
use uuid::Uuid;

/// Time for which a connection's permission to use a session is cached, in microseconds.
const PERMISSION_TTL_US: MonoUs = 1_000_000;

/// The user of an unrestricted connection.
const NO_USER: &[u8] = b"";

/// The session that a connection named last, after its permission check.
struct KnownSession {
    session: SessionKey,
    checked_at: MonoUs,
}

/// The time to wait and the maximum number of events of an EVENTS.
#[derive(Clone, Copy)]
pub(crate) struct PollAnswer {
    /// Time to wait for an event, in microseconds.
    pub(crate) wait_us: MonoUs,
    /// Maximum number of events.
    pub(crate) count: usize,
}

/// A blocked EVENTS.
struct Poll {
    handle: ClientHandle,
    token: u64,
    /// Time at which the call stops waiting. The calendar of deadlines stores the same time.
    deadline: Option<MonoUs>,
    /// Whether the call waits only for due renewals (R4).
    is_ready: bool,
}

/// The outcome of an EVENTS, from the end of its block until the server sends the reply.
#[derive(Clone, Copy)]
enum PollOutcome {
    Waiting,
    Events,
    /// A newer EVENTS of the session has replaced it, or the client has left.
    Empty,
    NoSession,
    Demoted,
    CannotRenew,
}

/// The blocked EVENTS calls of all sessions.
#[derive(Default)]
pub(crate) struct Polls {
    by_session: HashMap<SessionKey, Poll>,
    /// The session, the maximum number of events and the outcome of each call, by its token.
    calls: HashMap<u64, (SessionKey, usize, PollOutcome)>,
    /// Times at which the calls stop waiting.
    deadlines: Calendar<MonoUs, SessionKey>,
    /// Sessions whose call waits only for due renewals (R4).
    ready: Vec<SessionKey>,
    /// The session that each open connection named last.
    known: HashMap<u64, KnownSession>,
}

impl Polls {
    /// Returns the number of blocked calls and the number of connections with a cached session.
    pub(crate) fn lens(&self) -> (usize, usize) {
        (self.calls.len(), self.known.len())
    }

    /// Returns the earliest time at which a call stops waiting.
    pub(crate) fn first_deadline(&self) -> Option<MonoUs> {
        self.deadlines.first()
    }

    /// Whether any call waits only for due renewals.
    pub(crate) fn any_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Forgets the session of a closed connection.
    pub(crate) fn forget(&mut self, client: u64) {
        if !self.known.is_empty() {
            self.known.remove(&client);
            free_spare(&mut self.known);
        }
    }

    fn end(&mut self, session: SessionKey, outcome: PollOutcome) {
        let Some(mut poll) = self.by_session.remove(&session) else { return };
        free_spare(&mut self.by_session);
        self.deadlines.set(session, &mut poll.deadline, None);
        if let Some((.., of_call)) = self.calls.get_mut(&poll.token) {
            *of_call = outcome;
        }
        blocked::unblock(poll.handle, poll.token);
    }
}

/// Returns a random id for a new session.
pub(crate) fn random_session_id() -> SessionId {
    let mut id = [0; 32];
    Uuid::new_v4().simple().encode_lower(&mut id);
    SessionId(id)
}

/// Returns the user of the calling connection.
pub(crate) fn user_of_caller(ctx: Ctx<'_>) -> Rc<[u8]> {
    Rc::from(Caller::of(ctx).user().unwrap_or(NO_USER))
}

/// Opens a session over the calling connection.
pub(crate) fn open_session(ctx: Ctx<'_>, client: u64, new: NewSession, beat: u64, now: Now) -> SessionKey {
    with(ctx, |driver| {
        let session = driver.locks.open_session(new, beat, Some(crate::core::ConnectionId(client)), now);
        driver.polls.known.insert(client, KnownSession { session, checked_at: now.mono });
        driver.watch_disconnects(ctx);
        driver.schedule_at(ctx, now, None);
        session
    })
}

/// Returns the session with this id. Fails if it has ended or belongs to another user than the caller's.
pub(crate) fn session(ctx: Ctx<'_>, client: u64, id: &[u8]) -> Result<SessionKey, Error> {
    let id = SessionId(<[u8; 32]>::try_from(id).map_err(|_| Error::NoSession)?);
    let now = ctx.now().mono;
    let (session, is_checked) = with(ctx, |driver| {
        let session = driver.locks.find_session(&id)?;
        let known = driver.polls.known.get(&client).filter(|known| known.session == session);
        Some((session, known.is_some_and(|known| now < known.checked_at.saturating_add(PERMISSION_TTL_US))))
    })
    .ok_or(Error::NoSession)?;
    if is_checked {
        return Ok(session);
    }
    let user = user_of_caller(ctx);
    with(ctx, |driver| {
        if driver.locks.session(session).is_none_or(|session| *session.user() != *user) {
            return Err(Error::NoSession);
        }
        driver.polls.known.insert(client, KnownSession { session, checked_at: now });
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
        // An older call that is still blocked gets an empty reply.
        driver.polls.end(session, PollOutcome::Empty);
        let of_session = driver.locks.session(session);
        let (has_events, max_us) =
            of_session.map_or((false, 0), |session| (session.pending() > 0, session.max_poll_us()));
        (has_events, max_us, driver.locks.renewals_are_due(now))
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
        let token = driver.locks.next_wait_id().0;
        let polls = &mut driver.polls;
        polls.calls.insert(token, (session, count, PollOutcome::Waiting));
        let mut deadline = None;
        if is_ready {
            polls.ready.push(session);
        } else {
            polls.deadlines.set(session, &mut deadline, Some(now.mono.saturating_add(wait_us)));
            driver.locks.set_polled(session, true);
        }
        polls.by_session.insert(session, Poll { handle, token, deadline, is_ready });
    });
    Ok(())
}

impl Driver {
    /// Answers the blocked calls of sessions that have new events or have ended.
    pub(in crate::driver) fn answer_woken_polls(&mut self, now: Now) {
        while let Some(session) = self.locks.next_woken() {
            self.answer_when_renewed(session, now);
        }
    }

    /// Answers a blocked call. While a lease is due for renewal, the call stays blocked for the timer (R4).
    fn answer_when_renewed(&mut self, session: SessionKey, now: Now) {
        let outcome = if self.locks.session(session).is_some() {
            if self.locks.renewals_are_due(now) {
                if let Some(poll) = self.polls.by_session.get_mut(&session) {
                    if !std::mem::replace(&mut poll.is_ready, true) {
                        self.polls.ready.push(session);
                    }
                }
                return;
            }
            PollOutcome::Events
        } else if self.locks.is_demoted() {
            PollOutcome::Demoted
        } else {
            PollOutcome::NoSession
        };
        self.polls.end(session, outcome);
    }

    /// Answers blocked calls whose time to wait is over, and calls that due renewals have delayed.
    pub(in crate::driver) fn answer_due_polls(&mut self, ctx: Ctx<'_>, obstacle: Option<Obstacle>) {
        let now = ctx.now();
        while self.polls.deadlines.first().is_some_and(|at| at <= now.mono) {
            let Some(session) = self.polls.deadlines.pop_due(now.mono) else { break };
            if let Some(poll) = self.polls.by_session.get_mut(&session) {
                poll.deadline = None;
            }
            self.locks.set_polled(session, false);
            self.answer_when_renewed(session, now);
        }
        if self.polls.ready.is_empty() {
            return;
        }
        let is_due = self.locks.renewals_are_due(now);
        let outcome = match obstacle {
            _ if !is_due => PollOutcome::Events,
            Some(Obstacle::Refused) => PollOutcome::CannotRenew,
            _ => return,
        };
        for session in std::mem::take(&mut self.polls.ready) {
            if !self.polls.by_session.get(&session).is_some_and(|poll| poll.is_ready) {
                continue;
            }
            let is_over = self.locks.session(session).is_none();
            self.polls.end(session, if is_over { PollOutcome::NoSession } else { outcome });
        }
    }
}

/// Replies with the unacknowledged events of a session, at most `count`.
fn reply_events(driver: &mut Driver, ctx: Ctx<'_>, key: SessionKey, count: usize) {
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

/// The server's callbacks for blocked EVENTS calls.
struct Callbacks;

impl BlockedClient for Callbacks {
    fn reply(ctx: Ctx<'_>, token: u64) {
        with(ctx, |driver| {
            let Some((session, count, outcome)) = driver.polls.calls.get(&token).copied() else { return };
            let error = match outcome {
                PollOutcome::Events => return reply_events(driver, ctx, session, count),
                PollOutcome::Waiting | PollOutcome::Empty => return ctx.reply_array(0),
                PollOutcome::NoSession => Error::NoSession,
                PollOutcome::Demoted => Error::Demoted,
                PollOutcome::CannotRenew => Error::CannotRenew,
            };
            ctx.reply_error(&error.to_string());
        });
    }

    fn timed_out(ctx: Ctx<'_>, handle: ClientHandle) {
        ctx.reply_array(0);
        with(ctx, |driver| leave(driver, handle));
    }

    fn disconnected(ctx: Ctx<'_>, handle: ClientHandle) {
        with(ctx, |driver| leave(driver, handle));
    }

    fn done(ctx: Ctx<'_>, token: u64, _gone: bool) {
        with(ctx, |driver| {
            driver.polls.calls.remove(&token);
            free_spare(&mut driver.polls.calls);
        });
    }
}

/// Ends a blocked call whose client has left.
fn leave(driver: &mut Driver, handle: ClientHandle) {
    let session = driver.polls.by_session.iter().find(|(_, poll)| poll.handle == handle);
    if let Some(session) = session.map(|(session, _)| *session) {
        driver.locks.set_polled(session, false);
        driver.polls.end(session, PollOutcome::Empty);
    }
}
