// SPDX-License-Identifier: MIT

//! What is to be done when, and what time brings about.

use super::parts::Parts;
use crate::core::fairness::AtDeadline;
use crate::core::schedule::earlier;
use crate::core::table::LockIdx;
use crate::core::{Decision, LockId, MonoUs, Now};

/// How many locks whose watchdogs are due are made ready by one [`tick`].
const TICK_BATCH: usize = 64;

/// How long to wait before the next try while nothing may be written, in milliseconds.
const PAUSE_RETRY_MS: u64 = 2;

/// See [`LockManager::tick`](super::LockManager::tick).
pub(super) fn tick(parts: &mut Parts, now: Now, may_write: bool) -> Option<LockId> {
    parts.stop_watching_last();
    for _ in 0..4 * parts.portion.0 {
        let Some(id) = parts.deadlines.pop_due(now.mono) else { break };
        if !parts.end_wait(id, Some(Decision::TimedOut)) {
            // It is the grace of a grant that is over.
            parts.miss(id);
        }
    }
    parts.end_connections(now);
    for lock in parts.bindings.sweep(now.mono) {
        parts.drop_if_idle(lock);
    }
    if !may_write {
        return None;
    }
    // A key is expired only when its time has passed, not when it has come.
    while let Some(lock) = parts.leases.pop_due(now.wall - 1) {
        if let Some(state) = parts.state_mut(lock) {
            state.lease_planned = None;
        }
        parts.fragile.remove(lock);
        parts.table.set_ready(lock);
    }
    while let Some(lock) = parts.windows.pop_due(now.mono) {
        if let Some(state) = parts.state_mut(lock) {
            state.window_planned = None;
        }
        end_window(parts, lock, now);
    }
    let due: Vec<LockIdx> = parts.bindings.due_for_renewal(now).take(TICK_BATCH).collect();
    due.into_iter().for_each(|lock| parts.table.set_ready(lock));
    parts.table.take_ready().and_then(|lock| parts.name(lock))
}

/// See [`LockManager::is_overdue`](super::LockManager::is_overdue).
pub(super) fn is_overdue(parts: &Parts, now: Now) -> bool {
    !parts.ending_connections.is_empty() || parts.deadlines.first().is_some_and(|at| at <= now.mono)
}

/// A window is over, or what is remembered of subscribers is old.
fn end_window(parts: &mut Parts, lock: LockIdx, now: Now) {
    let Some(name) = parts.name(lock) else { return };
    let granted_here = parts.granted_keys.contains(name.as_ref());
    // One that has ended just now is looked at next, and may not have ended by the server's clock, which can be older.
    let is_ready = parts.table.is_ready(lock);
    let Some(state) = parts.state_mut(lock) else { return };
    let lease_is_watched = granted_here && (state.lease_planned.is_some() || is_ready);
    let somebody_waits = !state.queue.is_empty();
    match state.fairness.at_deadline(somebody_waits, lease_is_watched, now) {
        AtDeadline::Reconcile => parts.table.set_ready(lock),
        AtDeadline::Nothing => {}
        AtDeadline::Forgotten => parts.schedule_lease(lock, None),
    }
    parts.schedule_window(lock);
    parts.drop_if_idle(lock);
}

/// See [`LockManager::next_wakeup`](super::LockManager::next_wakeup).
pub(super) fn next_wakeup(parts: &Parts, now: Now, may_write: bool) -> Option<u64> {
    let until = |at: MonoUs| at.saturating_sub(now.mono).div_ceil(1000);
    let without_writing = earlier(parts.deadlines.first(), parts.bindings.next_sweep()).map(until);
    let is_at_once = !parts.notices.is_empty() || !parts.ending_connections.is_empty();
    let without_writing = if is_at_once { Some(0) } else { without_writing };
    let searches = parts.searches.next().map(until);
    let searches = if may_write { searches } else { searches.map(|ms| ms.max(PAUSE_RETRY_MS)) };
    let without_writing = earlier(without_writing, searches);
    if parts.table.any_ready() {
        return earlier(without_writing, Some(if may_write { 0 } else { PAUSE_RETRY_MS }));
    }
    let planned = earlier(parts.bindings.next_renewal(), parts.windows.first());
    let planned = earlier(planned, end_of_quarantine(parts)).map(until);
    // At least 1: a key may outlive its lease by the age of the clock that the server decides by.
    let lease = parts.leases.first();
    let lease = lease.map(|end| end.saturating_sub(now.wall).saturating_add(1).max(1).unsigned_abs());
    let work = earlier(planned, lease);
    let work = if may_write { work } else { work.map(|ms| ms.max(PAUSE_RETRY_MS)) };
    earlier(without_writing, work)
}

/// When those can be granted a lock who wait for a quarantine to end, if there are any.
fn end_of_quarantine(parts: &Parts) -> Option<MonoUs> {
    parts.quarantined_until.filter(|_| parts.waiters.queued_len() > 0)
}

/// See [`LockManager::next_deadline`](super::LockManager::next_deadline).
pub(super) fn next_deadline(parts: &Parts, now: Now) -> Option<u64> {
    parts.deadlines.first().map(|at| at.saturating_sub(now.mono).div_ceil(1000))
}

/// See [`LockManager::has_no_deadline`](super::LockManager::has_no_deadline).
pub(super) fn has_no_deadline(parts: &Parts) -> bool {
    !parts.table.any_ready()
        && parts.notices.is_empty()
        && parts.ending_connections.is_empty()
        && parts.searches.is_empty()
        && parts.deadlines.is_empty()
        && parts.leases.is_empty()
        && parts.windows.is_empty()
        && end_of_quarantine(parts).is_none()
        && parts.bindings.has_no_deadline()
}

/// True if nothing is planned but to forget what is over.
#[cfg(test)]
pub(super) fn only_forgets(parts: &Parts) -> bool {
    !parts.table.any_ready()
        && parts.searches.is_empty()
        && parts.deadlines.is_empty()
        && parts.leases.is_empty()
        && parts.windows.is_empty()
        && end_of_quarantine(parts).is_none()
        && parts.bindings.has_no_renewal()
}
