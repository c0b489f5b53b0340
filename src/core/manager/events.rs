// SPDX-License-Identifier: MIT

//! Events without an opened lock: foreign writes, closed connections, and changes of the server's role.

use super::{KeyChange, LockManager};
use crate::core::granted_keys::GrantedKeys;
use crate::core::manager::parts::{LockState, RecordsOfVoided};
use crate::core::manager::StepOutput;
use crate::core::owner::AffectedOwners;
use crate::core::table::LockIdx;
use crate::core::waits_for::searches::Searches;
use crate::core::{ConnectionId, Decision, HoldEvent, LockRef, LossReason, MonoUs, Now, WallMs};
use std::collections::VecDeque;

impl LockManager {
    /// Handles a closed connection. Returns whether work is due soon.
    pub(crate) fn connection_closed(&mut self, connection: ConnectionId, now: Now) -> bool {
        let parts = &mut self.parts;
        parts.input_at = now;
        let read = parts.sessions.reads(connection);
        for session in parts.sessions.connection_closed(connection, now.mono) {
            parts.expire_session(session);
        }
        parts.end_sessions(now);
        if parts.end_portion_of(connection, now) {
            parts.ending_connections.insert(connection);
        } else {
            parts.ending_connections.remove(&connection);
        }
        // The deadline of a session whose reader has closed is earlier now.
        read || parts.table.any_ready()
            || !parts.ending_connections.is_empty()
            || parts.sessions.any_ending()
            || !parts.searches.is_empty()
    }

    /// Handles a foreign write of a key. Returns whether the caller must schedule a
    /// [`tick`](LockManager::tick) soon.
    pub(crate) fn key_changed(&mut self, lock: LockRef<'_>, change: KeyChange, now: Now) -> bool {
        let parts = &mut self.parts;
        if parts.demoted {
            return false;
        }
        parts.input_at = now;
        let ended_by = match change {
            KeyChange::Gone(event) => Some(event),
            KeyChange::Moved => Some(HoldEvent::Deleted),
            KeyChange::Changed => None,
        };
        let gone = ended_by.is_some();
        // An external client may wait for the announcement even if no native client waits for the lock.
        let was_granted = gone && parts.granted_keys.remove(lock);
        let known = if was_granted { Some(parts.table.find_or_insert(lock)) } else { parts.table.find(lock) };
        // Nearly every key is not a lock.
        let Some(idx) = known else { return false };
        if let Some(event) = ended_by {
            parts.log_expired(idx, event);
            parts.void_all(idx);
            let is_moved = change == KeyChange::Moved;
            parts.report_losses(if is_moved {
                Some(LossReason::Moved)
            } else {
                ended_by.map(LossReason::from)
            });
        } else {
            if let Some(state) = parts.state_mut(idx) {
                state.note_foreign_leases();
            }
            if !parts.granted_keys.contains(lock) {
                parts.taken_externally(idx, now);
            }
        }
        let has_bundles = !parts.waiters.bundles.is_empty();
        if let Some(state) = parts.state_mut(idx) {
            if was_granted {
                state.note_unannounced();
            }
            state.note_foreign_write(ended_by, has_bundles);
            // Otherwise the expired lease is counted together with its owner's notice.
            let counts = was_granted && ended_by == Some(HoldEvent::Expired) && state.held().is_empty();
            parts.expired_leases += usize::from(counts);
        }
        // The lock may have become idle.
        parts.drop_if_idle(idx);
        parts.table.set_ready(idx);
        parts.table.is_ready(idx)
    }

    /// Handles a flush, a swap or a reload: all keys of a database, or of all databases, may have changed.
    pub(crate) fn database_changed(&mut self, db: Option<i32>) {
        let parts = &mut self.parts;
        if parts.demoted {
            return;
        }
        for lock in parts.table.handles(db) {
            if let Some(id) = parts.table.id(lock) {
                parts.granted_keys.remove(id.as_ref());
            }
            parts.void_grants(lock, RecordsOfVoided::Gone, AffectedOwners::Any, usize::MAX, |_| true);
            parts.bindings.mark_unverified(lock);
            if let Some(state) = parts.state_mut(lock) {
                state.forget_hold();
                state.held_mut().mark_unverified(None);
            }
            parts.table.set_ready(lock);
        }
        parts.report_losses(Some(LossReason::Deleted));
    }

    /// Marks as ready every lock with waiters, and every lock whose fairness history is kept until it is
    /// free. Returns whether any lock has such a history.
    pub(crate) fn recheck_all(&mut self) -> bool {
        let mut is_remembered = false;
        for lock in self.parts.table.handles(None) {
            let Some(state) = self.parts.state(lock) else { continue };
            let until_free = state.keeps_fairness_until_free();
            is_remembered |= until_free;
            if until_free || !state.queue().is_empty() {
                self.parts.table.set_ready(lock);
            }
        }
        is_remembered
    }

    /// Marks as ready every lock that is held by a session.
    pub(crate) fn recheck_sessions(&mut self) {
        for lock in self.parts.bindings.numbered_locks() {
            self.parts.table.set_ready(lock);
        }
    }

    /// Starts a quarantine until this time: only owners that hold a lock are granted it, because other holds
    /// may have been forgotten. The caller repeats the call after that time, and waiters are then served.
    pub(crate) fn quarantine(&mut self, until: Option<MonoUs>, now: Now) {
        let until = until.filter(|until| now.mono < *until);
        let before = std::mem::replace(&mut self.parts.quarantined_until, until);
        if before.is_some() && until.is_none() {
            self.recheck_all();
        }
    }

    /// Stops all grants and ends every wait: this server is no longer the primary.
    pub(crate) fn demote(&mut self) {
        let parts = &mut self.parts;
        parts.demoted = true;
        parts.end_all_sessions();
        for id in parts.waiters.all_queued() {
            parts.end_queued(id, Decision::Demoted);
        }
        parts.table.clear_ready();
        parts.searches = Searches::default();
        parts.granted_keys = GrantedKeys::default();
        parts.bindings.suspend();
        for lock in parts.table.handles(None) {
            // Earlier losses are still reported. The next primary reports the end of the remaining holds.
            let lost = parts.state_mut(lock).map(|state| state.held_mut().take_ended());
            parts.push_notices(lock, lost.into_iter().flatten());
            parts.forget_held(lock);
            parts.void_portion(lock, RecordsOfVoided::Gone, usize::MAX);
            parts.void_grants(lock, RecordsOfVoided::Gone, AffectedOwners::Any, usize::MAX, |_| true);
            parts.end_lost(lock, &Decision::Demoted);
            parts.forget_window(lock);
            parts.schedule_lease(lock, None);
            if let Some(state) = parts.state_mut(lock) {
                state.stop_serving();
            }
            parts.drop_if_idle(lock);
        }
    }

    /// Resumes work: this server is the primary again.
    pub(crate) fn promote(&mut self) {
        self.parts.demoted = false;
        for lock in self.parts.bindings.resume() {
            self.parts.table.set_ready(lock);
        }
    }

    /// From now on, remembers no hold of a lock without waiters. Used on servers whose keys may leave and
    /// return without an event.
    pub(crate) fn forget_holds(&mut self) {
        self.parts.forgets_holds = true;
    }

    /// Records that the lock was announced as free.
    pub(crate) fn announced(
        &mut self,
        lock: LockRef<'_>,
        output: StepOutput,
        to_subscribers: bool,
        now: Now,
    ) {
        let known = self.still_known(output);
        let idx = match known {
            Some(idx) => idx,
            None if to_subscribers => self.parts.table.find_or_insert(lock),
            None => return,
        };
        if let Some(state) = self.parts.state_mut(idx) {
            state.note_announced(to_subscribers, now);
        }
        self.parts.schedule_window(idx);
        self.parts.drop_if_idle(idx);
    }

    /// Records that the lock becomes free earlier than external clients know. The end of its first lease is
    /// then announced.
    pub(crate) fn lease_shortened(&mut self, lock: LockRef<'_>, output: StepOutput, first_end: WallMs) {
        let known = self.still_known(output);
        let idx = known.unwrap_or_else(|| self.parts.table.find_or_insert(lock));
        if let Some(state) = self.parts.state_mut(idx) {
            state.note_shortened_lease();
        }
        self.parts.schedule_lease(idx, Some(first_end));
    }

    /// Records that a field of the lock expires by itself at this time. Its first lease may end with the
    /// field.
    pub(crate) fn field_ends(&mut self, output: StepOutput, at: WallMs, now: Now) {
        let Some(idx) = self.still_known(output) else { return };
        // If an expired field was still readable, the server's clock is behind.
        let at = at.max(now.wall.saturating_add(1));
        let parts = &mut self.parts;
        let Some(state) = parts.table.get_mut(idx) else { return };
        if state.planned_lease().is_some_and(|planned| at < planned) {
            state.plan_lease(&mut parts.leases, idx, Some(at));
        }
    }

    /// The handle of the lock of a finished step, if it is still in the table.
    fn still_known(&self, output: StepOutput) -> Option<LockIdx> {
        output.lock.filter(|lock| self.parts.state(*lock).is_some())
    }

    /// Whether any lock must be reconciled periodically: see
    /// [`recheck_fragile`](LockManager::recheck_fragile).
    pub(crate) fn has_fragile(&self) -> bool {
        !self.parts.fragile.is_empty()
    }

    /// Whether this round still has fragile locks to mark as ready.
    pub(crate) fn is_rechecking_fragile(&self) -> bool {
        self.parts.fragile.is_in_round()
    }

    /// Marks the next fragile locks as ready. A foreign write may have deleted a holder's field without an
    /// event.
    pub(crate) fn recheck_fragile(&mut self) {
        for lock in self.parts.fragile.next() {
            self.parts.table.set_ready(lock);
        }
    }

    /// Sets whether owners get notices about their holds ([`next_notice`](LockManager::next_notice)). Applies
    /// to holds granted or renewed from now on.
    pub(crate) fn notify_owners(&mut self, tells: bool) {
        let parts = &mut self.parts;
        if !std::mem::replace(&mut parts.notifies_owners, tells) || tells {
            return;
        }
        parts.notices = VecDeque::new();
        for lock in parts.table.handles(None) {
            parts.forget_held(lock);
            if !parts.state(lock).is_some_and(LockState::is_waited_for) {
                parts.forget_window(lock);
            }
            // A lock without waiters is reconciled once more and then forgotten.
            parts.table.set_ready(lock);
        }
    }
}
