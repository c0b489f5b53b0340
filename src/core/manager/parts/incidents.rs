// SPDX-License-Identifier: MIT

//! Which incidents are logged.

use super::Parts;
use crate::core::log::{Cause, Incident, LogEntry};
use crate::core::sessions::Loss;
use crate::core::table::LockIdx;
use crate::core::{Decision, HoldEvent, LockId, LossReason, MonoUs, Owner, SessionKey, WaiterId};

impl Parts {
    /// Logs the end of a queued wait if it was long. `decision` is `None` if its client left.
    pub(super) fn log_wait(&mut self, id: WaiterId, decision: Option<&Decision>) {
        let Some(wait) = self.waiters.queued(id) else { return };
        let waited = self.input_at.mono.saturating_sub(wait.since());
        if !self.log.logs_wait(waited) {
            return;
        }
        let reason = match decision {
            None => "left",
            Some(Decision::Cancelled) => "cancelled",
            Some(Decision::Demoted) => "failover",
            Some(Decision::TimedOut) => "timeout",
            Some(Decision::WrongType) => "wrongtype",
            Some(Decision::Moved) => "moved",
            Some(Decision::Refused(_)) => "refused",
            // The repeated call continues the wait. A grant ends a wait elsewhere.
            Some(Decision::Superseded | Decision::Lost | Decision::Granted(_) | Decision::GrantedAll(_)) => {
                return
            }
        };
        self.log_long_wait(id, waited, reason, None);
    }

    /// Logs a long wait. Its cause is the known holder of the lock, or else the owner that has just released it.
    pub(in crate::core::manager) fn log_long_wait(
        &mut self,
        id: WaiterId,
        waited: MonoUs,
        reason: &'static str,
        releasing: Option<&Owner>,
    ) {
        let Some(wait) = self.waiters.get(id) else { return };
        let owner = wait.request().owner.clone();
        let known = self.state(wait.lock()).and_then(|state| state.plain_hold()).map(|hold| &hold.owner);
        let cause = known.or(releasing).map_or(Cause::Unknown, |holder| Cause::Holder(holder.clone()));
        let lock = self.name(wait.lock());
        self.log_incident(Incident::Wait, lock, owner, reason, (cause, Some(waited)));
    }

    /// Logs a hold of a session that ended without a call of the session. `LOCK.BREAK` logs the owners itself.
    pub(super) fn log_loss(&mut self, loss: &Loss, why: LossReason) {
        if let (Some((lock, owner)), false) =
            (&loss.hold, matches!(why, LossReason::Broken | LossReason::Taken))
        {
            self.log_lost(*lock, owner.clone(), why.name());
        }
    }

    /// Logs the end of a hold that a notice reports.
    pub(super) fn log_notice(&mut self, lock: LockIdx, owner: &Owner, event: HoldEvent) {
        let is_loss = !matches!(event, HoldEvent::Broken | HoldEvent::Contended);
        // The hold of a session is logged as such.
        if is_loss && self.bindings.numbers(lock, owner).next().is_none() {
            self.log_lost(lock, owner.clone(), event.name());
        }
    }

    /// Logs the end of the known holder's lease. Without notices, the holders of most locks are not known.
    pub(in crate::core::manager) fn log_expired(&mut self, lock: LockIdx, event: HoldEvent) {
        // A deletion is how external clients release a lock.
        if self.notifies_owners || !matches!(event, HoldEvent::Expired | HoldEvent::Evicted) {
            return;
        }
        if let Some(hold) = self.state(lock).and_then(|state| state.plain_hold()) {
            let owner = hold.owner.clone();
            if self.bindings.numbers(lock, &owner).next().is_none() {
                self.log_lost(lock, owner, event.name());
            }
        }
    }

    fn log_lost(&mut self, lock: LockIdx, owner: Owner, reason: &'static str) {
        let lock = self.name(lock);
        self.log_incident(Incident::Lost, lock, owner, reason, (Cause::Unknown, None));
    }

    /// Logs that a grant did not reach its client, or was not acknowledged.
    pub(in crate::core::manager) fn log_revoked(&mut self, id: WaiterId, reason: &'static str) {
        let Some(wait) = self.waiters.get(id) else { return };
        let (lock, owner) = (self.name(wait.lock()), wait.request().owner.clone());
        self.log_incident(Incident::Revoked, lock, owner, reason, (Cause::Unknown, None));
    }

    /// Logs the end of a session that its client has not closed.
    pub(super) fn log_session(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        let reason = if session.reader().is_some() { "silent" } else { "disconnected" };
        let name = Owner::new(session.name());
        self.log_incident(Incident::Session, None, name, reason, (Cause::Unknown, None));
    }

    /// Logs an incident of this moment.
    pub(in crate::core::manager) fn log_incident(
        &mut self,
        incident: Incident,
        lock: Option<LockId>,
        owner: Owner,
        reason: &'static str,
        (cause, waited_us): (Cause, Option<MonoUs>),
    ) {
        let at = self.input_at.wall;
        self.log.push(LogEntry { id: 0, at, incident, lock, owner, cause, waited_us, reason });
    }
}
