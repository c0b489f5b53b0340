// SPDX-License-Identifier: MIT

//! Work that becomes due with time, and its schedule.

use super::LockManager;
use crate::core::manager::parts::Parts;
use crate::core::queue::fairness::AtDeadline;
use crate::core::schedule::earlier;
use crate::core::table::LockIdx;
use crate::core::{Decision, LockId, MonoUs, Now};

/// Number of locks with due renewals that one [`tick`](super::LockManager::tick) makes ready.
const TICK_BATCH: usize = 64;

/// Time until the next attempt while writes are not allowed, in milliseconds.
const PAUSE_RETRY_MS: u64 = 2;

impl LockManager {
    /// Ends waits whose deadline has passed. If writes are allowed, it then returns the next lock to open and
    /// [`reconcile`](LockManager::reconcile).
    pub(crate) fn tick(&mut self, now: Now, may_write: bool) -> Option<LockId> {
        let parts = &mut self.parts;
        parts.input_at = now;
        parts.stop_watching_last();
        for _ in 0..4 * parts.portion.0 {
            let Some(id) = parts.deadlines.pop_due(now.mono) else { break };
            parts.end_wait(id, Some(Decision::TimedOut));
        }
        parts.end_parked_waits(now);
        parts.end_connections(now);
        parts.end_sessions(now);
        for lock in parts.bindings.sweep(now.mono) {
            parts.drop_if_idle(lock);
        }
        if !may_write {
            return None;
        }
        // A key exists through its last millisecond.
        while let Some(lock) = parts.leases.pop_due(now.wall - 1) {
            if let Some(state) = parts.state_mut(lock) {
                state.lease_is_due();
            }
            parts.fragile.remove(lock);
            parts.table.set_ready(lock);
        }
        while let Some(lock) = parts.windows.pop_due(now.mono) {
            if let Some(state) = parts.state_mut(lock) {
                state.window_is_due();
            }
            end_window(parts, lock, now);
        }
        let due: Vec<LockIdx> = parts.bindings.due_for_renewal(now).take(TICK_BATCH).collect();
        due.into_iter().for_each(|lock| parts.table.set_ready(lock));
        parts.table.take_ready().and_then(|lock| parts.name(lock))
    }

    /// Whether a [`tick`](LockManager::tick) has left work that needs no write.
    pub(crate) fn is_overdue(&self, now: Now) -> bool {
        let parts = &self.parts;
        !parts.ending_connections.is_empty()
            || parts.sessions.any_ending()
            || first_deadline(parts).is_some_and(|at| at <= now.mono)
    }

    /// Time until the next [`tick`](LockManager::tick), in milliseconds; `None` if none is needed.
    pub(crate) fn next_wakeup(&self, now: Now, may_write: bool) -> Option<u64> {
        let parts = &self.parts;
        if !parts.notices.is_empty() || !parts.ending_connections.is_empty() || parts.sessions.any_ending() {
            return Some(0);
        }
        let until = |at: MonoUs| at.saturating_sub(now.mono).div_ceil(1000);
        let without_writing = earlier(first_deadline(parts), parts.bindings.next_sweep()).map(until);
        let ready = parts.table.any_ready().then_some(now.mono);
        let planned = earlier(parts.bindings.next_renewal(), parts.windows.first());
        let planned = earlier(planned, end_of_quarantine(parts));
        let planned = earlier(planned, parts.sessions.next_check());
        let planned = earlier(planned, earlier(ready, parts.searches.next())).map(until);
        // At least 1: the server decides by a cached clock, so a key may outlive its lease.
        let lease = parts.leases.first();
        let lease = lease.map(|end| end.saturating_sub(now.wall).saturating_add(1).max(1).unsigned_abs());
        let work = earlier(planned, lease);
        let work = if may_write { work } else { work.map(|ms| ms.max(PAUSE_RETRY_MS)) };
        earlier(without_writing, work)
    }

    /// Time until the first deadline of a wait, in milliseconds. Ending a wait needs no write.
    pub(crate) fn next_deadline(&self, now: Now) -> Option<u64> {
        first_deadline(&self.parts).map(|at| at.saturating_sub(now.mono).div_ceil(1000))
    }

    /// Whether [`next_wakeup`](LockManager::next_wakeup) is `None`.
    pub(crate) fn has_no_deadline(&self) -> bool {
        let parts = &self.parts;
        !parts.table.any_ready()
            && parts.notices.is_empty()
            && parts.ending_connections.is_empty()
            && parts.searches.is_empty()
            && parts.deadlines.is_empty()
            && parts.leases.is_empty()
            && parts.windows.is_empty()
            && parts.sessions.is_empty()
            && !parts.sessions.any_ending()
            && end_of_quarantine(parts).is_none()
            && parts.bindings.has_no_deadline()
    }
}

/// The first deadline of a wait.
fn first_deadline(parts: &Parts) -> Option<MonoUs> {
    earlier(parts.deadlines.first(), parts.sessions.next_parked_deadline())
}

/// Handles the end of a fairness window, or the time to forget the subscribers.
fn end_window(parts: &mut Parts, lock: LockIdx, now: Now) {
    let Some(name) = parts.name(lock) else { return };
    let granted_here = parts.granted_keys.contains(name.as_ref());
    // If the lock is ready, its lease may have just ended, and reconciling the lock checks that. By the
    // server's cached clock, the lease may still run.
    let is_ready = parts.table.is_ready(lock);
    let Some(state) = parts.state_mut(lock) else { return };
    let lease_is_watched = granted_here && (state.planned_lease().is_some() || is_ready);
    match state.end_window(lease_is_watched, now) {
        AtDeadline::Reconcile => parts.table.set_ready(lock),
        AtDeadline::Nothing => {}
        AtDeadline::Forgotten => parts.schedule_lease(lock, None),
    }
    parts.schedule_window(lock);
    parts.drop_if_idle(lock);
}

/// End of the quarantine, if any waiter depends on it.
fn end_of_quarantine(parts: &Parts) -> Option<MonoUs> {
    parts.quarantined_until.filter(|_| parts.waiters.queued_len() > 0)
}

/// Whether the only scheduled work is to forget expired entries.
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
