// SPDX-License-Identifier: MIT

//! The lock manager: the inputs and outputs of the core.
//!
//! The manager remembers a lock only while the lock has waiters, bindings or grants in flight. Every call
//! passes in the holders, as read from the key.

mod calls;
mod clock;
mod deadlocks;
mod delivery;
mod events;
mod fast_queue;
mod open_lock;
mod outputs;
mod overview;
mod parts;
mod sessions;
mod several;
mod step;
#[cfg(test)]
mod verify;
mod wait_view;

pub(crate) use fast_queue::FastQueued;
pub(crate) use open_lock::OpenLock;
pub(crate) use overview::Contended;
pub(crate) use sessions::Poll;
pub(crate) use several::{BundleTry, CheckedLock};
pub(crate) use step::{GrantTime, StepOutput};

use crate::core::log::Incident;
use crate::core::owner::AffectedOwners;
use crate::core::table::LockLookup;
use crate::core::{
    CallNumber, Cause, Counted, Decision, HoldEvent, LockRef, LossReason, NotReleased, NotRenewed, Now,
    OtherTarget, Outcome, Owner, Refusal, Release, Renewal, Request, RequestId, WaitPolicy, WaiterId,
};
use parts::{Parts, RecordsOfVoided};
use step::Step;

/// All state of the core.
///
/// * Inputs with an opened lock: [`acquire`](LockManager::acquire), [`release`](LockManager::release),
///   [`renew`](LockManager::renew), [`cancel`](LockManager::cancel), [`break_lock`](LockManager::break_lock),
///   [`reconcile`](LockManager::reconcile).
/// * Inputs from clients: [`leave`](LockManager::leave), [`delivered`](LockManager::delivered),
///   [`undelivered`](LockManager::undelivered), [`connection_closed`](LockManager::connection_closed).
/// * Inputs from foreign writes and the server: [`key_changed`](LockManager::key_changed),
///   [`database_changed`](LockManager::database_changed), [`demote`](LockManager::demote),
///   [`promote`](LockManager::promote).
/// * Input from the clock: [`tick`](LockManager::tick).
/// * Outputs: [`next_decision`](LockManager::next_decision), [`next_notice`](LockManager::next_notice),
///   [`next_wakeup`](LockManager::next_wakeup).
#[derive(Default)]
pub(crate) struct LockManager {
    parts: Parts,
}

/// The effect of a foreign write on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyChange {
    /// Every hold has ended, by this event.
    Gone(HoldEvent),
    /// The key was deleted here, because it has moved to another node of the cluster.
    Moved,
    /// The holds or their leases may have changed.
    Changed,
}

impl LockManager {
    /// Looks up a lock by its name, for the next input.
    pub(crate) fn look_up<'a>(&self, lock: LockRef<'a>) -> LockLookup<'a> {
        self.parts.table.look_up(lock)
    }

    /// Grants the request if the holders admit it and no waiter comes first. Otherwise queues it if the
    /// policy allows that. If neither is possible, does due work only.
    ///
    /// A repeated request gets its first reply again, or keeps its position in the queue. In a fairness
    /// window, a request that can wait lets external clients go first.
    pub(crate) fn acquire(
        &mut self,
        open: OpenLock<'_>,
        request: &Request,
        policy: WaitPolicy,
    ) -> (Outcome, StepOutput) {
        let affected = AffectedOwners::Only(&request.owner);
        let mut step = Step::begin(&mut self.parts, open, affected);
        step.serve_first();
        (calls::acquire(&mut step, request, policy), step.close())
    }

    /// Releases holds, and grants the lock to the next waiters. Returns the number of remaining holds. The
    /// caller must write the changes even after a refusal, because due work may have been done.
    pub(crate) fn release(
        &mut self,
        open: OpenLock<'_>,
        release: &Release,
    ) -> (Result<i64, NotReleased>, StepOutput) {
        let affected = AffectedOwners::Only(&release.owner);
        let mut step = Step::begin(&mut self.parts, open, affected);
        let result = calls::release(&mut step, release);
        (result, step.finish())
    }

    /// Sets the owner's lease again. Returns its hold count.
    pub(crate) fn renew(
        &mut self,
        open: OpenLock<'_>,
        renewal: &Renewal,
    ) -> (Result<i64, NotRenewed>, StepOutput) {
        let affected = AffectedOwners::Only(&renewal.owner);
        let mut step = Step::begin(&mut self.parts, open, affected);
        let result = calls::renew(&mut step, renewal);
        (result, step.finish())
    }

    /// Undoes the acquire with this id in any state: ends its wait, or releases its hold. A later or repeated
    /// acquire with the id is refused. Returns whether anything was undone.
    pub(crate) fn cancel(
        &mut self,
        open: OpenLock<'_>,
        id: &RequestId,
    ) -> (Result<bool, Refusal>, StepOutput) {
        let mut step = Step::begin(&mut self.parts, open, AffectedOwners::Any);
        let result = calls::cancel(&mut step, id);
        (result, step.finish())
    }

    /// Undoes the acquire of a session in any state, as [`cancel`](LockManager::cancel) does.
    pub(crate) fn cancel_number(
        &mut self,
        open: OpenLock<'_>,
        owner: &Owner,
        number: CallNumber,
    ) -> (Result<bool, OtherTarget>, StepOutput) {
        let mut step = Step::begin(&mut self.parts, open, AffectedOwners::Only(owner));
        let result = calls::cancel_number(&mut step, owner, number);
        (result, step.finish())
    }

    /// Ends every hold and serves the queue. Returns the number of owners that lost their holds.
    pub(crate) fn break_lock(&mut self, open: OpenLock<'_>) -> (usize, StepOutput) {
        let mut step = Step::begin(&mut self.parts, open, AffectedOwners::Any);
        step.cause = Some(LossReason::Broken);
        step.notify_holders(HoldEvent::Broken);
        let lost = step.end_all();
        step.count((lost > 0).then_some(Counted::Broken));
        (lost, step.finish())
    }

    /// Brings a lock up to date with its key: revokes marked grants, ends and renews holds that depend on
    /// connections, then serves the queue.
    pub(crate) fn reconcile(&mut self, open: OpenLock<'_>) -> StepOutput {
        let mut step = Step::begin(&mut self.parts, open, AffectedOwners::Any);
        step.search_for_holders();
        step.finish()
    }

    /// Ends every wait for a lock with this decision, because its key holds no lock that this server serves.
    pub(crate) fn refuse_all(&mut self, lock: LockRef<'_>, decision: &Decision) {
        let Some(idx) = self.parts.table.find(lock) else { return };
        self.parts.table.unset_ready(idx);
        self.parts.void_all(idx);
        self.parts.void_portion(idx, RecordsOfVoided::Delete, usize::MAX);
        let is_moved = *decision == Decision::Moved;
        self.parts.report_losses(Some(if is_moved { LossReason::Moved } else { LossReason::WrongType }));
        self.parts.forget_window(idx);
        let moved = *decision == Decision::Moved;
        self.parts.end_lost(idx, if moved { decision } else { &Decision::Lost });
        let held = self.parts.state_mut(idx).map(|state| state.held_mut().take_all());
        // Holds of a moved lock continue on its new node, so their owners get no notice.
        self.parts.push_notices(idx, held.into_iter().flatten().filter(|_| !moved));
        let Some(state) = self.parts.state_mut(idx) else { return };
        state.stop_serving();
        for id in state.queue().iter().collect::<Vec<_>>() {
            self.parts.end_queued(id, decision.clone());
        }
        self.parts.schedule_lease(idx, None);
        self.parts.drop_if_idle(idx);
    }

    /// Removes a waiter from its queue, because its client has left or was unblocked. Returns false if it no
    /// longer waits.
    pub(crate) fn leave(&mut self, id: WaiterId) -> bool {
        self.parts.end_wait(id, None)
    }

    /// Removes a waiter as [`leave`](LockManager::leave) does, at this time.
    pub(crate) fn leave_at(&mut self, id: WaiterId, now: Now) -> bool {
        self.parts.input_at = now;
        self.leave(id)
    }

    /// Logs that a caller has broken a lock: `by` names the caller.
    pub(crate) fn log_broken(&mut self, lock: LockRef<'_>, owners: &[Owner], by: &str, now: Now) {
        self.parts.input_at = now;
        for owner in owners {
            let cause = Cause::Text(by.to_owned(), Vec::new());
            let lock = Some(lock.to_id());
            self.parts.log_incident(Incident::Lost, lock, owner.clone(), "broken", (cause, None));
        }
    }

    /// Reserves a wait id for a call that does not wait for a lock.
    pub(crate) fn next_wait_id(&mut self) -> WaiterId {
        self.parts.waiters.next_id()
    }
}
