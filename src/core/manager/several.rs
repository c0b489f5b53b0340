// SPDX-License-Identifier: MIT

//! Calls for several locks at once. The caller opens each lock twice: first to check whether all are
//! available ([`LockManager::check`](super::LockManager::check),
//! [`LockManager::try_member`](super::LockManager::try_member)), then to take them or to join their queues.
//!
//! No other call runs in between. A step without its call makes a lock easier to get, never harder. So the
//! result for the first lock still holds when the last one has been checked.

use super::{LockManager, OpenLock};
use crate::core::manager::parts::{LockState, Parts};
use crate::core::manager::step::Step;
use crate::core::manager::{GrantTime, StepOutput};
use crate::core::owner::AffectedOwners;
use crate::core::queue::bundles::NewBundle;
use crate::core::queue::wait::Wait;
use crate::core::table::{LockIdx, LockLookup};
use crate::core::{
    Counted, Decision, HoldEvent, LockId, MonoUs, Reply, Request, Verdict, WaitPolicy, WaiterId,
};
use std::rc::Rc;

/// The result of checking one lock.
#[derive(Debug)]
pub(crate) struct CheckedLock {
    pub(crate) verdict: Verdict,
    /// Whether the lock has the maximum number of waiters, not counting this request.
    pub(crate) is_full: bool,
}

/// A bundle to try.
#[derive(Debug)]
pub(crate) struct BundleTry {
    pub(crate) first_wait: WaiterId,
    /// Locks and members, in the order of the call.
    pub(crate) members: Vec<(LockId, WaiterId)>,
}

/// A lock that an earlier step of the same call has made ready to be reconciled. It stays ready until a step
/// serves its queue.
struct Ready(Option<LockIdx>);

impl Ready {
    fn of(parts: &Parts, lock: LockLookup<'_>) -> Ready {
        Ready(parts.table.handle_of(lock).filter(|lock| parts.table.is_ready(*lock)))
    }

    fn keep(self, parts: &mut Parts) {
        if let Some(lock) = self.0.filter(|lock| parts.state(*lock).is_some()) {
            parts.table.set_ready(lock);
        }
    }
}

impl LockManager {
    /// Checks whether this lock could be granted to a request for several locks. Does due work, and changes
    /// nothing else.
    pub(crate) fn check(
        &mut self,
        open: OpenLock<'_>,
        request: &Request,
        policy: WaitPolicy,
    ) -> (CheckedLock, StepOutput) {
        let mut step = Step::begin(&mut self.parts, open, AffectedOwners::Only(&request.owner));
        step.serve_first();
        let verdict = verdict(&mut step, request, policy);
        let at_most = match policy {
            WaitPolicy::Wait { at_most, .. } => at_most,
            WaitPolicy::NoWait => None,
        };
        let is_full = at_most.is_some_and(|most| step.queue_len() >= most) && !step.is_queued(request);
        (CheckedLock { verdict, is_full }, step.close())
    }

    /// Grants this lock to a request for several locks. All of them must be available.
    pub(crate) fn take(&mut self, open: OpenLock<'_>, request: &Request) -> (Option<Reply>, StepOutput) {
        let parts = &mut self.parts;
        let ready = Ready::of(parts, open.lookup);
        let mut step = Step::begin(parts, open, AffectedOwners::Only(&request.owner));
        let reply = step.grant_caller(request).ok().flatten();
        let output = step.close();
        ready.keep(parts);
        (reply, output)
    }

    /// Repeats the reply of an earlier grant of several locks, at this lock.
    pub(crate) fn repeat(&mut self, open: OpenLock<'_>, request: &Request, reply: &Reply) -> StepOutput {
        let parts = &mut self.parts;
        let ready = Ready::of(parts, open.lookup);
        let mut step = Step::begin(parts, open, AffectedOwners::Only(&request.owner));
        step.repeat(request, reply);
        step.count(Counted::Repeated);
        let output = step.close();
        ready.keep(parts);
        output
    }

    /// Queues a request for several locks at this lock. The first call creates the bundle, and later calls
    /// extend it.
    pub(crate) fn queue_member(
        &mut self,
        open: OpenLock<'_>,
        request: &Request,
        deadline: Option<MonoUs>,
        bundle: &mut Option<NewBundle>,
    ) -> (WaiterId, StepOutput) {
        let parts = &mut self.parts;
        let ready = Ready::of(parts, open.lookup);
        let mut step = Step::begin(parts, open, AffectedOwners::Only(&request.owner));
        if !step.has_queue() {
            step.notify_holders(HoldEvent::Contended);
        }
        let id = step.queue_member(request.clone(), deadline, bundle);
        let output = step.close();
        ready.keep(parts);
        (id, output)
    }

    /// Records that a new bundle waits, because the lock of this member was unavailable.
    pub(crate) fn note_blocked(&mut self, first_wait: WaiterId, at: WaiterId) {
        let parts = &mut self.parts;
        let Some(lock) = parts.waiters.get(at).map(|wait| wait.lock()) else { return };
        parts.waiters.bundles.note_blocked(first_wait, lock);
    }

    /// Counts a call for several locks that was not granted because one was unavailable.
    pub(crate) fn count_busy(&mut self) {
        self.parts.statistics.count(Counted::Busy);
    }

    /// Whether any bundle must be tried.
    #[inline]
    pub(crate) fn has_due_bundle(&self) -> bool {
        self.parts.waiters.bundles.has_due_bundle()
    }

    /// Starts trying the next due bundle. Check each lock with [`try_member`](LockManager::try_member), then
    /// call [`end_try`](LockManager::end_try).
    pub(crate) fn begin_try(&mut self) -> Option<BundleTry> {
        let parts = &mut self.parts;
        let first_wait = parts.waiters.bundles.next_due()?;
        let of_bundle = parts.waiters.bundles.members(first_wait).iter();
        let named = of_bundle.filter_map(|(lock, id)| Some((parts.name(*lock)?, *id))).collect();
        Some(BundleTry { first_wait, members: named })
    }

    /// Checks whether a member could be granted now. Does due work, and changes nothing else. Returns `None`
    /// if the member no longer waits.
    pub(crate) fn try_member(
        &mut self,
        open: OpenLock<'_>,
        member: WaiterId,
    ) -> (Option<Verdict>, StepOutput) {
        let mut step = Step::begin(&mut self.parts, open, AffectedOwners::Any);
        step.serve_first();
        let verdict = step.try_member(member);
        (verdict, step.close())
    }

    /// Grants a member of a bundle whose members can all be granted.
    pub(crate) fn grant_member(
        &mut self,
        open: OpenLock<'_>,
        member: WaiterId,
        time: GrantTime,
    ) -> (Option<Reply>, StepOutput) {
        let mut step = Step::begin(&mut self.parts, open, AffectedOwners::Any);
        let reply = step.grant_member(member, time);
        (reply, step.finish())
    }

    /// Records that all members of a bundle were granted, with these replies.
    pub(crate) fn granted_all(&mut self, first_wait: WaiterId, replies: Vec<Reply>) {
        let parts = &mut self.parts;
        let decision = Decision::GrantedAll(Rc::from(replies));
        let request = parts.waiters.get(first_wait).map(Wait::request);
        // The driver first waits for the replicas.
        match request.filter(|request| !request.awaits_replicas).and_then(|request| request.number()) {
            Some(call) => parts.decide_number(call.number, first_wait, decision),
            None => parts.decisions.push_back((first_wait, decision)),
        }
        if let Some(owner) = parts.waiters.get(first_wait).map(|wait| wait.request().owner.clone()) {
            parts.search_waits_of(&owner);
        }
    }

    /// Ends the try of a bundle. `blocked_at` is the member whose lock was unavailable, if the try failed.
    /// Returns the locks to reconcile: their queues were not served during the try, or their announcements
    /// are still missing.
    pub(crate) fn end_try(&mut self, blocked_at: Option<WaiterId>) -> Vec<LockId> {
        let parts = &mut self.parts;
        let lock = blocked_at.and_then(|id| parts.waiters.queued(id)).map(|wait| wait.lock());
        let table = &parts.table;
        let unannounced = |lock| table.get(lock).is_some_and(LockState::is_unannounced);
        let locks = parts.waiters.bundles.end_try(lock, unannounced);
        locks.into_iter().filter_map(|lock| parts.name(lock)).collect()
    }

    /// Ends the wait of a bundle with this decision.
    pub(crate) fn end_bundle(&mut self, first_wait: WaiterId, decision: Decision) {
        let parts = &mut self.parts;
        let first = parts.waiters.together(first_wait).first().copied();
        if let Some(first) = first {
            parts.end_wait(first, Some(decision));
        }
    }

    /// Starts a release of several locks. Until [`end_multi_release`](LockManager::end_multi_release), free
    /// locks that bundles wait for are not announced, since a bundle may take several of them together.
    pub(crate) fn begin_multi_release(&mut self) {
        let parts = &mut self.parts;
        if !parts.waiters.bundles.is_empty() {
            parts.waiters.bundles.withhold();
        }
    }

    /// Ends a release of several locks. Returns the locks whose announcements are still missing. The caller
    /// must reconcile them.
    pub(crate) fn end_multi_release(&mut self) -> Vec<LockId> {
        let parts = &mut self.parts;
        let withheld = parts.waiters.bundles.stop_withholding();
        let unannounced = |lock: &LockIdx| parts.state(*lock).is_some_and(LockState::is_unannounced);
        withheld.into_iter().filter(unannounced).filter_map(|lock| parts.name(lock)).collect()
    }

    /// Records that a free lock was not announced, because it is reserved ([`StepOutput::is_reserved`]).
    pub(crate) fn note_withheld(&mut self, output: StepOutput) {
        let parts = &mut self.parts;
        if let Some(state) = output.lock.and_then(|lock| parts.state_mut(lock)) {
            state.note_unannounced();
        }
        if let Some(lock) = output.lock {
            parts.waiters.bundles.note_withheld(lock);
        }
    }
}

fn verdict(step: &mut Step<'_>, request: &Request, policy: WaitPolicy) -> Verdict {
    if let Some(id) = &request.id {
        match step.granted(id) {
            Ok(None) => {}
            Ok(Some(reply)) if step.forget_if_closed(request, id, &reply) => {}
            Ok(Some(reply)) => return Verdict::Repeats(reply),
            Err(refusal) => return Verdict::Refused(refusal),
        }
    }
    let others_come_first = step.must_wait(request.wants) || step.yields(policy.ready_until(step.now));
    if others_come_first && !step.wants_more(request) {
        return Verdict::Busy { quarantined: step.is_quarantined(request) };
    }
    step.may_grant(request)
}
