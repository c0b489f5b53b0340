// SPDX-License-Identifier: MIT

//! Queueing a newcomer without opening the key of its lock.
//!
//! Opening and reading the key is the slowest part of an acquire that only joins the queue. It is unnecessary
//! while the lock's hold is remembered. Events make the lock ready when the hold ends, its lease moves, or a
//! command replaces the key ([`key_changed`](super::LockManager::key_changed)). Some writes (`SET`, `HSET`)
//! raise no such event. Redisson's clients send an `EXPIRE` after such a write, and that raises one. So a
//! newcomer opens the key if the last newcomer did so more than [`LOOK_VALID_US`] ago.

use super::LockManager;
use crate::core::manager::parts::LockState;
use crate::core::queue::position::{Position, Standing};
use crate::core::queue::wait::NewWait;
use crate::core::table::LockLookup;
use crate::core::{MonoUs, Now, Request, RequestId, WaitPolicy, WaiterId};

/// Time for which newcomers rely on the last read of the key by a newcomer, in microseconds.
const LOOK_VALID_US: MonoUs = 100_000;

/// A wait that was queued without opening the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FastQueued {
    pub(crate) id: WaiterId,
    /// Whether the waiter may wait for its own owner, so that a search is needed.
    pub(crate) may_be_in_cycle: bool,
    /// Whether the wait may need a new entry in the schedule of deadlines.
    pub(crate) plans: bool,
}

impl LockManager {
    /// Queues a request without opening its lock's key, if it certainly has to wait and no other work is due:
    /// see the module. Returns `None`, with nothing changed, if that is not certain. With `looks_first`, the
    /// first waiter always opens the key. `is_new` returns whether no record exists for the request's id.
    pub(crate) fn queue_fast(
        &mut self,
        lock: LockLookup<'_>,
        request: &Request,
        policy: WaitPolicy,
        (looks_first, is_new): (bool, impl FnOnce(&RequestId) -> bool),
        now: Now,
    ) -> Option<FastQueued> {
        let parts = &mut self.parts;
        let WaitPolicy::Wait { deadline, at_most, on_primary: true } = policy else { return None };
        let lock = parts.table.handle_of(lock)?;
        let is_plain = !parts.notifies_owners
            && !parts.demoted
            && parts.quarantined_until.is_none()
            && parts.waiters.bundles.is_empty()
            && !parts.table.is_ready(lock);
        let state = parts.state(lock).filter(|state| is_plain && !state.unconfirmed().has_work())?;
        let is_recent = state.has_recent_look(now.mono, LOOK_VALID_US);
        let has_place = at_most.is_none_or(|most| state.queue().len() < most);
        let is_first = state.queue().is_empty();
        let hold = state.plain_hold().filter(|hold| hold.expires_at > now.wall)?;
        let must_look = !is_recent || !has_place || (is_first && looks_first) || hold.owner == request.owner;
        if must_look {
            return None;
        }
        let first_until = is_first.then_some(hold.expires_at);
        if request.number().is_some_and(|call| !parts.sessions.is_new(call.number)) {
            return None;
        }
        // Checked last because it reads a record: a repeated call keeps its position, or gets its reply again.
        if let Some(id) = &request.id {
            if parts.waiters.of_request(lock, id).is_some() || !is_new(id) {
                return None;
            }
        }
        let holder_waits = parts.waiters.waits(hold.owner.as_bytes());
        let id = parts.waiters.next_id();
        let position = Position::new(request.wants, Standing::Newcomer, id.0);
        let (request, since) = (request.clone(), now.mono);
        parts.insert_wait(id, NewWait { lock, request, deadline, position, since, first_wait: None });
        let planned = parts.state(lock).and_then(LockState::planned_lease);
        if first_until.is_some() {
            // A plain hold is not fragile.
            parts.fragile.remove(lock);
            parts.schedule_lease(lock, first_until);
        }
        // Must match the condition of `may_be_in_cycle`.
        let may_be_in_cycle =
            holder_waits || parts.state(lock).is_some_and(|state| state.queue().has_crossing());
        let is_planned = first_until.is_none_or(|until| planned.is_some_and(|planned| planned <= until));
        Some(FastQueued { id, may_be_in_cycle, plans: !is_planned || deadline.is_some() })
    }
}
