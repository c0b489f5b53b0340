// SPDX-License-Identifier: MIT

//! One numbered acquire, from its first call to the end of its hold.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::Cmd;
use tokio::sync::Notify;

use crate::clock::{left, now, Moment};
use crate::error::{Error, ErrorKind};
use crate::io::{locked, Io};
use crate::request::{milliseconds, Request};
use crate::session::Session;

/// The identity of an acquire on the server.
pub(crate) struct At<I: Io> {
    pub(crate) session: Arc<Session<I>>,
    /// Empty until the session declares the acquire.
    pub(crate) id: Arc<str>,
    pub(crate) n: u64,
}

impl<I: Io> Clone for At<I> {
    fn clone(&self) -> At<I> {
        At { session: Arc::clone(&self.session), id: Arc::clone(&self.id), n: self.n }
    }
}

impl<I: Io> At<I> {
    /// Adds the number to a call.
    fn name(&self, mut call: Cmd) -> Cmd {
        call.arg("SESSION").arg(&*self.id).arg(self.n);
        call
    }

    pub(crate) fn is(&self, other: &Option<At<I>>) -> bool {
        other.as_ref().is_some_and(|other| self.n == other.n && self.id == other.id)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Asked,
    Held,
    Over(String),
}

pub(crate) struct Acquire<I: Io> {
    pub(crate) request: Arc<Request>,
    pub(crate) owner: Vec<u8>,
    pub(crate) is_try: bool,
    /// The session and the number of the hold that this acquire takes over.
    pub(crate) source: Option<(String, u64)>,
    pub(crate) began: Moment,
    pub(crate) until: Moment,
    pub(crate) changed: Notify,
    now: Mutex<Now<I>>,
}

/// The state of an acquire. Code that needs the table of its session as well locks the table first.
pub(crate) struct Now<I: Io> {
    pub(crate) phase: Phase,
    /// None before the first call.
    pub(crate) at: Option<At<I>>,
    /// The reason to stop the wait.
    pub(crate) error: Option<Error>,
    pub(crate) holds: u64,
    pub(crate) tokens: Vec<u64>,
    /// When the acquire was first sent.
    pub(crate) sent: Moment,
    pub(crate) granted: Moment,
    /// The earliest end of the lease.
    pub(crate) lease_ends: Moment,
    /// Whether the grant is not acknowledged, so that the server may revoke it (R1). After the begin of the release, whether that
    /// may have succeeded without a reply.
    pub(crate) in_doubt: bool,
    pub(crate) is_releasing: bool,
    pub(crate) handed_over: bool,
}

impl<I: Io> Now<I> {
    /// The number, or 0 without one.
    pub(crate) fn n(&self) -> u64 {
        self.at.as_ref().map_or(0, |at| at.n)
    }
}

impl<I: Io> Acquire<I> {
    pub(crate) fn new(
        request: Arc<Request>,
        owner: Vec<u8>,
        until: Moment,
        is_try: bool,
        source: Option<(String, u64)>,
    ) -> Arc<Acquire<I>> {
        let began = now();
        let now = Now {
            phase: Phase::Asked,
            at: None,
            error: None,
            holds: 0,
            tokens: Vec::new(),
            sent: began,
            granted: began,
            lease_ends: Moment::MAX,
            in_doubt: false,
            is_releasing: false,
            handed_over: false,
        };
        let (changed, now) = (Notify::new(), Mutex::new(now));
        Arc::new(Acquire { request, owner, is_try, source, began, until, changed, now })
    }

    pub(crate) fn now(&self) -> MutexGuard<'_, Now<I>> {
        locked(&self.now)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.now().phase == Phase::Held
    }

    pub(crate) fn ask_call(&self, at: &At<I>) -> Cmd {
        if let Some((name, m)) = &self.source {
            let mut call = self.renew_call(at, self.request.lease);
            call.arg("FROM").arg(name).arg(m);
            return call;
        }
        let mut call = at.name(self.request.acquire(&self.owner));
        if !self.is_try {
            let wait = if self.until == Moment::MAX { 0 } else { milliseconds(left(self.until)) };
            call.arg("QUEUE").arg(wait);
        }
        call
    }

    pub(crate) fn renew_call(&self, at: &At<I>, lease: Option<Duration>) -> Cmd {
        let age = now().saturating_sub(self.now().granted);
        let mut call = self.request.call("RENEW", &self.owner);
        let max_hold = self.request.max_hold.map(|max| max.saturating_sub(age));
        self.request.bind(&mut call, lease, max_hold);
        at.name(call)
    }

    /// The call that declares a hold in another session, with the rest of its lease.
    pub(crate) fn declare_call(&self, at: &At<I>) -> Cmd {
        let ends = self.now().lease_ends;
        // An acquire without an answer has its whole lease.
        let rest = |lease| if ends == Moment::MAX { lease } else { left(ends) };
        self.renew_call(at, self.request.lease.map(rest))
    }

    pub(crate) fn release_call(&self, at: &At<I>) -> Cmd {
        at.name(self.request.call("RELEASE", &self.owner))
    }

    pub(crate) fn cancel_call(&self, at: &At<I>) -> Cmd {
        at.name(self.request.cancel(&self.owner))
    }

    /// Whether a release without a reply may have succeeded.
    pub(crate) fn is_maybe_released(&self) -> bool {
        let state = self.now();
        state.is_releasing && state.in_doubt
    }

    /// The reason of an end that an error reports.
    pub(crate) fn explain(&self, error: &Error) -> &'static str {
        match error.is("WRONGTYPE") {
            _ if self.is_maybe_released() => "released",
            true => "wrongtype",
            false => "deleted",
        }
    }

    /// Waits until the state may have changed, for at most this time.
    pub(crate) async fn changed(&self, limit: Duration, is_done: impl Fn(&Now<I>) -> bool + Send) {
        let mut changed = std::pin::pin!(self.changed.notified());
        changed.as_mut().enable();
        if !is_done(&self.now()) {
            I::timeout(limit, changed).await;
        }
    }

    /// Ends the wait from another task or thread.
    pub(crate) fn interrupt(&self, error: Error) {
        self.now().error = Some(error);
        self.changed.notify_waiters();
        if let Some(at) = &self.now().at {
            at.session.changed.notify_waiters();
        }
    }

    /// Ends the acquire, if it is in this phase. Without a phase, ends it in any phase, and the server may still have it.
    pub(crate) fn end(self: &Arc<Self>, phase: Option<Phase>, reason: &str) {
        let mut present = self.now().at.clone();
        while let Some(at) = present {
            present = at.session.update(|table| {
                let (is_in_phase, present) = {
                    let state = self.now();
                    (phase.as_ref().is_none_or(|phase| *phase == state.phase), state.at.clone())
                };
                // Another session may have taken it over.
                if !at.is(&present) {
                    return present;
                }
                if is_in_phase {
                    table.end(self, reason, phase.is_none());
                }
                None
            });
        }
    }

    /// Ends the acquire in any phase. Sends the cancellation at once if the server is available. Otherwise the reader sends it.
    pub(crate) fn abandon(self: &Arc<Self>, reason: &str) {
        self.end(None, reason);
        let at = self.now().at.clone();
        if let Some(at) = at.filter(|at| at.session.can_cancel(at.n)) {
            let (node, acquire) = (Arc::clone(&at.session), Arc::clone(self));
            node.io.spawn(async move {
                drop(at.session.cancel(&at.id, vec![(at.n, acquire)]).await);
                at.session.changed.notify_waiters();
            });
        }
    }

    /// Whether the hold ended before its release.
    pub(crate) fn is_lost(&self) -> bool {
        {
            let state = self.now();
            match &state.phase {
                Phase::Asked => return false,
                Phase::Over(reason) => return !state.handed_over && !is_good_end(reason),
                Phase::Held => {}
            }
        }
        self.ends() <= now()
    }

    /// When the hold ends, if no server answers.
    pub(crate) fn ends(&self) -> Moment {
        let (at, lease_ends) = {
            let state = self.now();
            (state.at.clone(), state.lease_ends)
        };
        match at {
            Some(at) if self.request.lease.is_none() => at.session.lifetime_ends(),
            _ => lease_ends,
        }
    }

    pub(crate) fn end_reason(&self) -> Option<String> {
        if let Phase::Over(reason) = &self.now().phase {
            return Some(reason.clone());
        }
        self.is_lost().then(|| "expired".to_owned())
    }

    pub(crate) fn lost(&self) -> Error {
        let reason = self.end_reason().unwrap_or_default();
        let text = format!("the hold ended before its release ({reason}); acquire the lock again");
        self.request.error(ErrorKind::Lost, &text)
    }
}

/// Whether an end of a hold with this reason is no loss.
pub(crate) fn is_good_end(reason: &str) -> bool {
    matches!(reason, "released" | "cancelled" | "taken" | "closed")
}

/// Ends an acquire if its future is dropped, or if it fails.
pub(crate) struct Undo<I: Io> {
    acquire: Option<Arc<Acquire<I>>>,
    reason: &'static str,
}

impl<I: Io> Undo<I> {
    pub(crate) fn new(acquire: &Arc<Acquire<I>>, reason: &'static str) -> Undo<I> {
        Undo { acquire: Some(Arc::clone(acquire)), reason }
    }

    pub(crate) fn disarm(mut self) {
        self.acquire = None;
    }
}

impl<I: Io> Drop for Undo<I> {
    fn drop(&mut self) {
        if let Some(acquire) = &self.acquire {
            acquire.abandon(self.reason);
        }
    }
}
