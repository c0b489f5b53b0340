// SPDX-License-Identifier: MIT

//! The caller and its place in the queue.

use super::Step;
use crate::core::queue::bundles::NewBundle;
use crate::core::queue::position::{Position, Standing};
use crate::core::queue::wait::{NewWait, WaitState};
use crate::core::table::LockIdx;
use crate::core::{Decision, MonoUs, Request, RequestId, WaiterId, Wants};

/// The arrival of a request at a queue. A repeated request keeps its arrival.
pub(super) struct Arrival {
    ticket: u64,
    /// Start of the wait.
    since: MonoUs,
}

impl Step<'_> {
    /// Whether a waiter blocks a new request of this kind from an owner without a hold.
    #[inline]
    pub(in crate::core::manager) fn must_wait(&self, wants: Wants) -> bool {
        self.state().is_some_and(|state| state.queue().blocks(wants))
    }

    /// Whether the lock has waiters.
    pub(in crate::core::manager) fn has_queue(&self) -> bool {
        self.state().is_some_and(|state| !state.queue().is_empty())
    }

    /// Number of waiters.
    pub(in crate::core::manager) fn queue_len(&self) -> usize {
        self.state().map_or(0, |state| state.queue().len())
    }

    /// Whether this request is queued on another connection.
    pub(in crate::core::manager) fn is_queued(&self, request: &Request) -> bool {
        let of_request = |lock| self.parts.waiters.of_request(lock, request.id.as_ref()?);
        self.lock.and_then(of_request).is_some_and(|(_, wait)| wait.state() == WaitState::Queued)
    }

    /// Queues a request. If it is already queued on another connection, it keeps its position and the earlier
    /// wait ends.
    pub(in crate::core::manager) fn queue(&mut self, request: Request, deadline: Option<MonoUs>) -> WaiterId {
        let lock = self.known();
        let id = self.parts.waiters.next_id();
        let before = self.supersede(lock, &request);
        let Arrival { ticket, since } = before.unwrap_or(Arrival { ticket: id.0, since: self.now.mono });
        let position = self.position(&request, ticket);
        self.parts.insert_wait(id, NewWait { lock, request, deadline, position, since, first_wait: None });
        id
    }

    /// Queues a member of a request for several locks. All members have the same ticket.
    pub(in crate::core::manager) fn queue_member(
        &mut self,
        request: Request,
        deadline: Option<MonoUs>,
        bundle: &mut Option<NewBundle>,
    ) -> WaiterId {
        let lock = self.known();
        let id = self.parts.waiters.next_id();
        let before = self.supersede(lock, &request);
        let Arrival { ticket, since } = before.unwrap_or(Arrival { ticket: id.0, since: self.now.mono });
        let NewBundle { first_wait, ticket, since } =
            *bundle.get_or_insert(NewBundle { first_wait: id, ticket, since });
        let position = self.position(&request, ticket);
        let first_wait = Some(first_wait);
        self.parts.insert_wait(id, NewWait { lock, request, deadline, position, since, first_wait });
        id
    }

    /// The position of a request with this ticket.
    fn position(&self, request: &Request, ticket: u64) -> Position {
        let holds = self.holders.get(request.owner.as_bytes()).is_some();
        Position::new(request.wants, Standing::of(holds), ticket)
    }

    /// Ends the queued wait of this request, if any. Returns its arrival.
    pub(super) fn supersede(&mut self, lock: LockIdx, request: &Request) -> Option<Arrival> {
        let (before, wait) = self.parts.waiters.of_request(lock, request.id.as_ref()?)?;
        if wait.state() != WaitState::Queued {
            return None;
        }
        let arrival = Arrival { ticket: wait.position().ticket(), since: wait.since() };
        // The repeated call may have different arguments, so it may be granted now.
        self.parts.table.set_ready(lock);
        self.parts.end_queued(before, Decision::Superseded);
        Some(arrival)
    }

    /// Ends the wait of this request, or revokes its grant in flight. `None` if neither exists.
    pub(in crate::core::manager) fn cancel_wait(&mut self, request: &RequestId) -> Option<()> {
        let lock = self.lock?;
        let (id, wait) = self.parts.waiters.of_request(lock, request)?;
        match wait.state() {
            WaitState::Queued => {
                self.parts.end_queued(id, Decision::Cancelled);
                Some(())
            }
            WaitState::Granted if self.holders.get(wait.request().owner.as_bytes()).is_none() => {
                // The lease has expired, but no step has noticed it yet.
                None
            }
            // The client has been answered and keeps its other locks.
            WaitState::Granted
                if wait
                    .first_wait()
                    .is_some_and(|first_wait| self.parts.waiters.bundles.is_answered(first_wait)) =>
            {
                let owner = wait.request().owner.clone();
                self.parts.mark_alone_for_revocation(id);
                self.revoke_marked(lock, Some(&owner), usize::MAX);
                Some(())
            }
            WaitState::Granted => {
                // The client may be answered in this iteration of the event loop, but not with a grant.
                let (first_wait, waits) = (self.parts.waiters.first_wait_of(id), wait.request().clone());
                self.parts.decide(first_wait, &waits, Decision::Cancelled);
                self.parts.mark_for_revocation(id);
                self.revoke_marked(lock, Some(&waits.owner), usize::MAX);
                Some(())
            }
            WaitState::Marked => None,
        }
    }

    /// Records that a newcomer has opened the key and its companion keys.
    pub(in crate::core::manager) fn note_look(&mut self) {
        let now = self.now.mono;
        if let Some(state) = self.state_mut() {
            state.note_look(now);
        }
    }
}
