// SPDX-License-Identifier: MIT

//! Which incidents are logged.

use super::Parts;
use crate::core::log::{Cause, Incident, LogEntry};
use crate::core::sessions::{Loss, ParkedWait};
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

    /// Logs a long wait. Its cause is the owner that has just released the lock, or else the last known holder.
    pub(in crate::core::manager) fn log_long_wait(
        &mut self,
        id: WaiterId,
        waited: MonoUs,
        reason: &'static str,
        releasing: Option<&Owner>,
    ) {
        let Some(wait) = self.waiters.get(id) else { return };
        let owner = wait.request().owner.clone();
        let known = || self.state(wait.lock())?.known_holder();
        let holder = releasing.or_else(known).filter(|holder| **holder != owner);
        let cause = holder.map_or(Cause::Unknown, |holder| Cause::Holder(holder.clone()));
        let lock = self.name(wait.lock());
        self.log_incident(Incident::Wait, lock, owner, reason, (cause, Some(waited)));
    }

    /// Logs a hold of a session that ended without a call of the session. `LOCK.BREAK` logs the owners itself.
    pub(super) fn log_loss(&mut self, loss: &Loss, why: LossReason) {
        let Some((lock, owner)) = &loss.hold else { return };
        // A notice about the hold follows. After its maximum age, a hold remains until its lease ends.
        let is_noted = self.state(*lock).is_some_and(|state| state.held().get(owner).is_some());
        let is_loss = !matches!(why, LossReason::Broken | LossReason::Taken | LossReason::Max);
        if is_loss && !is_noted {
            self.log_lost(*lock, owner.clone(), why.name());
        }
    }

    /// Logs the end of a wait that was passed over, if it was long.
    pub(super) fn log_parked_wait(&mut self, parked: &ParkedWait) {
        let waited = self.input_at.mono.saturating_sub(parked.wait.since);
        if self.log.logs_wait(waited) {
            let (lock, owner) = (Some(parked.name.clone()), parked.wait.request.owner.clone());
            self.log_incident(Incident::Wait, lock, owner, "timeout", (Cause::Unknown, Some(waited)));
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
        if !matches!(event, HoldEvent::Expired | HoldEvent::Evicted) {
            return;
        }
        // Otherwise a notice follows.
        let Some(state) = self.state(lock).filter(|state| state.held().is_empty()) else { return };
        let Some(owner) = state.known_holder().cloned() else { return };
        if self.bindings.numbers(lock, &owner).next().is_none() {
            self.log_lost(lock, owner, event.name());
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
