// SPDX-License-Identifier: MIT

//! Connections that end, with their waits and holds.

use super::Parts;
use crate::core::queue::wait::{Wait, WaitState};
use crate::core::table::LockIdx;
use crate::core::{ConnectionId, Counted, Decision, Now, Owner, Request, WaiterId};

/// The reason why a connection loses its waits with `NOTIFY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core::manager) enum ConnectionEnd {
    /// The connection has closed: it loses all waits, and its holds end.
    Closed,
    /// The connection does not confirm its grants: it loses its queued waits.
    Unresponsive,
}

impl Parts {
    /// Handles a grant with `NOTIFY` that its connection has not confirmed, or whose message had no
    /// subscriber. Returns false if the grant no longer exists.
    pub(in crate::core::manager) fn expire_grant(&mut self, id: WaiterId) -> bool {
        if self.void_if_ended(id) {
            return false;
        }
        let wait = self.waiters.get(id).filter(|wait| wait.state() == WaitState::Granted);
        let Some((lock, request)) = wait.map(|wait| (wait.lock(), wait.request().clone())) else {
            return false;
        };
        let Some(notify) = &request.notify else { return false };
        self.statistics.count(Counted::NotConfirmed);
        let drops_waits = self.waiters.notified.note_missed(notify.connection);
        self.decide(id, lock, &request, Decision::Lost);
        self.mark_for_revocation(id);
        if drops_waits {
            self.ending_connections.entry(notify.connection).or_insert(ConnectionEnd::Unresponsive);
        }
        true
    }

    /// Ends a portion of the waits and holds of ending connections. The next tick continues.
    pub(in crate::core::manager) fn end_connections(&mut self, now: Now) {
        for _ in 0..4 * self.portion.0 {
            let Some((connection, end)) =
                self.ending_connections.first_key_value().map(|(at, end)| (*at, *end))
            else {
                return;
            };
            if !self.end_next_of(connection, end, now) {
                self.ending_connections.remove(&connection);
            }
        }
    }

    /// Ends a portion of a closed connection's waits and holds at once, so that the next call does not rely
    /// on them. Usually that portion is all. Returns whether anything may be left.
    pub(in crate::core::manager) fn end_portion_of(&mut self, connection: ConnectionId, now: Now) -> bool {
        (0..4 * self.portion.0).all(|_| self.end_next_of(connection, ConnectionEnd::Closed, now))
    }

    /// Ends the owner's hold on this lock if it depends on a closed connection that is still being ended.
    pub(in crate::core::manager) fn end_closed_hold(&mut self, lock: LockIdx, owner: &Owner, now: Now) {
        let closed = self.ending_connections.iter().filter(|(_, end)| **end == ConnectionEnd::Closed);
        let closed: Vec<ConnectionId> = closed.map(|(connection, _)| *connection).collect();
        for connection in closed {
            self.bindings.close_one(connection, &(lock, owner.clone()), now);
        }
    }

    /// Ends the next wait or hold of a connection. Returns false if none is left.
    pub(super) fn end_next_of(&mut self, connection: ConnectionId, end: ConnectionEnd, now: Now) -> bool {
        let next = match end {
            ConnectionEnd::Closed => self.waiters.notified.next_of(connection),
            ConnectionEnd::Unresponsive => self.waiters.notified.next_queued_of(connection),
        };
        if let Some(id) = next {
            let decision = (end == ConnectionEnd::Unresponsive).then_some(Decision::Lost);
            self.statistics.add(Counted::Dropped, usize::from(decision.is_some()));
            if !self.end_wait(id, decision) {
                self.mark_for_revocation(id);
            }
            // The wait must leave this index in any state.
            self.waiters.notified.remove(connection, id);
            return true;
        }
        if end == ConnectionEnd::Unresponsive {
            return false;
        }
        let Some((lock, ends)) = self.bindings.close_next(connection, now) else { return false };
        if ends && !self.demoted {
            self.table.set_ready(lock);
        }
        self.drop_if_idle(lock);
        true
    }

    /// Whether the connection or the session of this wait has ended, or loses its waits.
    pub(in crate::core::manager) fn is_dropped(&self, wait: &Wait) -> bool {
        // Nearly always, no connection or session is ending.
        (!self.ending_connections.is_empty() || self.sessions.passes_over()) && self.has_dropped(wait)
    }

    pub(super) fn has_dropped(&self, wait: &Wait) -> bool {
        let Request { notify, numbered, .. } = wait.request();
        let has_ended = |connection| self.ending_connections.contains_key(&connection);
        notify.as_ref().is_some_and(|notify| has_ended(notify.connection))
            || numbered.as_ref().is_some_and(|call| self.sessions.is_passed_over(call.number.session))
    }

    /// Ends a queued wait of an ending connection, or passes over a wait of a session.
    pub(in crate::core::manager) fn drop_wait(&mut self, id: WaiterId) {
        if let Some(call) = self.waiters.get(id).and_then(|wait| wait.request().number()) {
            return self.pass_over(id, call.number);
        }
        let of = |wait: &Wait| wait.request().notify.as_ref().map(|notify| notify.connection);
        let connection = self.waiters.get(id).and_then(of);
        if connection.and_then(|connection| self.ending_connections.get(&connection))
            == Some(&ConnectionEnd::Unresponsive)
        {
            self.statistics.count(Counted::Dropped);
            self.end_queued(id, Decision::Lost);
        } else {
            self.take_out(id);
        }
    }
}
