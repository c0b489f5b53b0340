// SPDX-License-Identifier: MIT

//! A newcomer that is queued without a look at the key of its lock.
//!
//! To open and to read a key is the dearest thing that an acquire does which only comes to wait. It is not needed while it is
//! remembered who holds the lock: whatever ends that hold, moves its lease, or puts something else there by a command that says
//! so raises an event, which makes the lock ready ([`key_changed`](super::LockManager::key_changed)). Writes that raise none of
//! the events that the module listens to (`SET`, `HSET`) are not seen so; those of Redisson's clients go with an `EXPIRE`, which
//! is. So a newcomer looks if the last look of another one is older than [`SEEN_US`].

use super::parts::Parts;
use crate::core::table::Known;
use crate::core::{MonoUs, Notify, Now, Patience, Request, RequestId, WaiterId};

/// For how long newcomers take for granted what one of them has seen, in microseconds.
const SEEN_US: MonoUs = 100_000;

/// A wait that was queued so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unseen {
    pub(crate) id: WaiterId,
    /// The waiter may wait for its own owner, which is to be searched for.
    pub(crate) may_be_in_cycle: bool,
    /// There may be something to plan for it that was not before.
    pub(crate) plans: bool,
}

/// See [`LockManager::queue_unseen`](super::LockManager::queue_unseen).
#[inline(always)]
pub(super) fn queue(
    parts: &mut Parts,
    lock: Known<'_>,
    request: &Request,
    patience: Patience,
    (looks_first, is_new): (bool, impl FnOnce(&RequestId) -> bool),
    now: Now,
) -> Option<Unseen> {
    let Patience::Waits { deadline, at_most, on_primary: true } = patience else { return None };
    let lock = parts.table.handle_of(lock)?;
    let is_plain = !parts.tells_owners
        && !parts.demoted
        && parts.quarantined_until.is_none()
        && parts.waiters.bundles.is_empty()
        && !parts.table.is_ready(lock);
    let state = parts.state(lock).filter(|state| is_plain && !state.unconfirmed.is_to_settle())?;
    let was_seen = state.seen.is_some_and(|seen| now.mono < seen.saturating_add(SEEN_US));
    let has_place = at_most.is_none_or(|most| state.queue.len() < most);
    let is_first = state.queue.is_empty();
    let hold = state.plain_hold.as_ref().filter(|hold| hold.expires_at > now.wall)?;
    let must_look = !was_seen || !has_place || (is_first && looks_first) || hold.owner == request.owner;
    if must_look || request.notify.as_ref().is_some_and(|notify| has_too_many(parts, notify)) {
        return None;
    }
    let first_until = is_first.then_some(hold.expires_at);
    // Last, as a record is read: a call that comes again keeps its place, or gets its answer again.
    if let Some(id) = &request.id {
        if parts.waiters.of_request(lock, id).is_some() || !is_new(id) {
            return None;
        }
    }
    let holder_waits = parts.waiters.waits(hold.owner.as_bytes());
    let id = parts.waiters.next_id();
    parts.insert_wait(lock, (id, None), (request.clone(), false), deadline, (id.0, now.mono));
    let planned = parts.state(lock).and_then(|state| state.lease_planned);
    if first_until.is_some() {
        // A plain hold does not outlive its field.
        parts.fragile.remove(lock);
        parts.schedule_lease(lock, first_until);
    }
    // As `may_be_in_cycle` has it.
    let may_be_in_cycle = holder_waits || parts.state(lock).is_some_and(|state| state.queue.has_crossing());
    let is_planned = first_until.is_none_or(|until| planned.is_some_and(|planned| planned <= until));
    Some(Unseen { id, may_be_in_cycle, plans: !is_planned || deadline.is_some() })
}

/// As many waits that are told by messages belong to this connection as may.
pub(super) fn has_too_many(parts: &Parts, notify: &Notify) -> bool {
    notify.at_most.is_some_and(|most| parts.waiters.notified.of(notify.connection) >= most)
}
