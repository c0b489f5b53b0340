// SPDX-License-Identifier: MIT

//! Blocked `LOCK.EVENTS` calls, and the sessions that connections may use.

use foldhash::HashMap;

use crate::core::spare::free_spare;
use crate::core::{Calendar, MonoUs, SessionKey};
use crate::server::clients::blocked::{self, ClientHandle};

/// Time for which a connection's permission to use a session is cached, in microseconds.
const PERMISSION_TTL_US: MonoUs = 1_000_000;

/// The session that a connection named last, after its permission check.
struct KnownSession {
    session: SessionKey,
    checked_at: MonoUs,
}

/// A blocked EVENTS.
struct Poll {
    handle: ClientHandle,
    /// Time at which the call stops waiting. The calendar of deadlines stores the same time.
    deadline: Option<MonoUs>,
    /// Whether the call waits only for due renewals (R4).
    is_ready: bool,
}

/// A new blocked EVENTS.
pub(crate) struct NewPoll {
    pub(crate) handle: ClientHandle,
    /// Maximum number of events.
    pub(crate) count: usize,
    /// Time at which the call stops waiting. `None` if it waits only for due renewals (R4).
    pub(crate) until: Option<MonoUs>,
}

/// The outcome of an EVENTS, from the end of its block until the server sends the reply.
#[derive(Clone, Copy)]
pub(crate) enum PollOutcome {
    Waiting,
    Events,
    /// A newer EVENTS of the session has replaced it while a renewal was due.
    Late,
    /// `CLIENT UNBLOCK` has ended it while a renewal was due.
    Unblocked,
    /// The client has left, or already has a reply.
    Gone,
    NoSession,
    Demoted,
    CannotRenew,
}

/// The blocked EVENTS calls of all sessions.
#[derive(Default)]
pub(crate) struct Polls {
    by_session: HashMap<SessionKey, Poll>,
    /// The session, the maximum number of events and the outcome of each call, by the token of its handle.
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

    /// Whether this connection may use the session, by a check that is recent enough.
    pub(crate) fn may_use(&self, client: u64, session: SessionKey, now: MonoUs) -> bool {
        let known = self.known.get(&client).filter(|known| known.session == session);
        known.is_some_and(|known| now < known.checked_at.saturating_add(PERMISSION_TTL_US))
    }

    /// Records that this connection may use the session.
    pub(crate) fn remember(&mut self, client: u64, session: SessionKey, now: MonoUs) {
        self.known.insert(client, KnownSession { session, checked_at: now });
    }

    /// Adds a blocked call.
    pub(crate) fn insert(&mut self, session: SessionKey, new: NewPoll) {
        let NewPoll { handle, count, until } = new;
        self.calls.insert(handle.token(), (session, count, PollOutcome::Waiting));
        let mut deadline = None;
        self.deadlines.set(session, &mut deadline, until);
        if until.is_none() {
            self.ready.push(session);
        }
        self.by_session.insert(session, Poll { handle, deadline, is_ready: until.is_none() });
    }

    /// Lets a call wait only for due renewals from now on.
    pub(crate) fn set_ready(&mut self, session: SessionKey) {
        if let Some(poll) = self.by_session.get_mut(&session) {
            if !std::mem::replace(&mut poll.is_ready, true) {
                self.ready.push(session);
            }
        }
    }

    /// Takes the sessions whose calls wait only for due renewals.
    pub(crate) fn take_ready(&mut self) -> Vec<SessionKey> {
        let is_ready = |session: &SessionKey| self.by_session.get(session).is_some_and(|poll| poll.is_ready);
        std::mem::take(&mut self.ready).into_iter().filter(is_ready).collect()
    }

    /// Takes the next session whose call stops waiting at this time.
    pub(crate) fn next_timed_out(&mut self, now: MonoUs) -> Option<SessionKey> {
        let session = self.deadlines.pop_due(now)?;
        if let Some(poll) = self.by_session.get_mut(&session) {
            poll.deadline = None;
        }
        Some(session)
    }

    /// The session, the maximum number of events and the outcome of a call.
    pub(crate) fn call(&self, token: u64) -> Option<(SessionKey, usize, PollOutcome)> {
        self.calls.get(&token).copied()
    }

    /// Forgets a call that was answered.
    pub(crate) fn remove(&mut self, token: u64) {
        self.calls.remove(&token);
        free_spare(&mut self.calls);
    }

    /// The session of the blocked call with this handle, and its maximum number of events.
    pub(crate) fn session_of(&self, handle: ClientHandle) -> Option<(SessionKey, usize)> {
        let (session, count, _) = *self.calls.get(&handle.token())?;
        let is_blocked = self.by_session.get(&session).is_some_and(|poll| poll.handle == handle);
        is_blocked.then_some((session, count))
    }

    /// Ends the block of the session's call, if it has one.
    pub(crate) fn end(&mut self, session: SessionKey, outcome: PollOutcome) {
        let Some(mut poll) = self.by_session.remove(&session) else { return };
        free_spare(&mut self.by_session);
        self.deadlines.set(session, &mut poll.deadline, None);
        if let Some((.., of_call)) = self.calls.get_mut(&poll.handle.token()) {
            *of_call = outcome;
        }
        blocked::unblock(poll.handle, poll.handle.token());
    }
}
