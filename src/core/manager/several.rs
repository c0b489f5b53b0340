// SPDX-License-Identifier: MIT

//! Calls for several locks at once. The caller opens each lock twice: first to check whether all are
//! available ([`LockManager::check`](super::LockManager::check),
//! [`LockManager::try_member`](super::LockManager::try_member)), then to take them or to join their queues.
//!
//! No other call runs in between. A step without its call makes a lock easier to get, never harder. So the
//! verdict about the first lock still holds after the last one was checked.

use std::rc::Rc;

use super::parts::Parts;
use super::step::Step;
use super::StepOutput;
use crate::core::bindings::AffectedOwners;
use crate::core::bundles::{NewBundle, Verdict};
use crate::core::table::{LockIdx, LockLookup};
use crate::core::{
    Counted, Decision, HoldEvent, Holders, LockId, MonoUs, Now, Records, Reply, Request, WaitPolicy, WaiterId,
};

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

/// A lock that is ready to be reconciled because of an earlier step of the same call. A step that does not
/// serve the queue keeps it ready.
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

/// See [`LockManager::check`](super::LockManager::check).
pub(super) fn check(
    parts: &mut Parts,
    lock: LockLookup<'_>,
    holders: &mut Holders,
    records: &mut dyn Records,
    request: &Request,
    policy: WaitPolicy,
    now: Now,
) -> (CheckedLock, StepOutput) {
    let mut step = Step::begin(parts, lock, AffectedOwners::Only(&request.owner), holders, records, now);
    step.serve_first();
    let verdict = verdict(&mut step, request, policy);
    let at_most = match policy {
        WaitPolicy::Wait { at_most, .. } => at_most,
        WaitPolicy::NoWait => None,
    };
    let is_full = at_most.is_some_and(|most| step.queue_len() >= most) && !step.is_queued(request);
    (CheckedLock { verdict, is_full }, step.close())
}

/// See [`LockManager::take`](super::LockManager::take).
pub(super) fn take(
    parts: &mut Parts,
    lock: LockLookup<'_>,
    holders: &mut Holders,
    records: &mut dyn Records,
    request: &Request,
    now: Now,
) -> (Option<Reply>, StepOutput) {
    let ready = Ready::of(parts, lock);
    let mut step = Step::begin(parts, lock, AffectedOwners::Only(&request.owner), holders, records, now);
    let reply = step.grant_caller(request).ok().flatten();
    let output = step.close();
    ready.keep(parts);
    (reply, output)
}

/// See [`LockManager::repeat`](super::LockManager::repeat).
pub(super) fn repeat(
    parts: &mut Parts,
    lock: LockLookup<'_>,
    holders: &mut Holders,
    records: &mut dyn Records,
    (request, reply): (&Request, &Reply),
    now: Now,
) -> StepOutput {
    let ready = Ready::of(parts, lock);
    let mut step = Step::begin(parts, lock, AffectedOwners::Only(&request.owner), holders, records, now);
    step.repeat(request, reply);
    step.count(Counted::Repeated);
    let output = step.close();
    ready.keep(parts);
    output
}

/// See [`LockManager::queue_member`](super::LockManager::queue_member).
pub(super) fn queue_member(
    parts: &mut Parts,
    lock: LockLookup<'_>,
    holders: &mut Holders,
    records: &mut dyn Records,
    (request, deadline): (&Request, Option<MonoUs>),
    bundle: &mut Option<NewBundle>,
    now: Now,
) -> (WaiterId, StepOutput) {
    let ready = Ready::of(parts, lock);
    let mut step = Step::begin(parts, lock, AffectedOwners::Only(&request.owner), holders, records, now);
    if !step.has_queue() {
        step.notify_holders(HoldEvent::Contended);
    }
    let id = step.queue_member(request.clone(), deadline, bundle);
    let output = step.close();
    ready.keep(parts);
    (id, output)
}

/// See [`LockManager::note_blocked`](super::LockManager::note_blocked).
pub(super) fn note_blocked(parts: &mut Parts, first_wait: WaiterId, at: WaiterId) {
    let Some(lock) = parts.waiters.get(at).map(|wait| wait.lock()) else { return };
    parts.waiters.bundles.note_blocked(first_wait, lock);
}

/// See [`LockManager::count_busy`](super::LockManager::count_busy).
pub(super) fn count_busy(parts: &mut Parts) {
    parts.statistics.count(Counted::Busy);
}

/// See [`LockManager::has_due_bundle`](super::LockManager::has_due_bundle).
pub(super) fn has_due_bundle(parts: &Parts) -> bool {
    parts.waiters.bundles.has_due_bundle()
}

/// See [`LockManager::begin_try`](super::LockManager::begin_try).
pub(super) fn begin_try(parts: &mut Parts) -> Option<BundleTry> {
    let first_wait = parts.waiters.bundles.next_due()?;
    let of_bundle = parts.waiters.bundles.members(first_wait).iter();
    let named = of_bundle.filter_map(|(lock, id)| Some((parts.name(*lock)?, *id))).collect();
    Some(BundleTry { first_wait, members: named })
}

/// See [`LockManager::try_member`](super::LockManager::try_member).
pub(super) fn try_member(
    parts: &mut Parts,
    lock: LockLookup<'_>,
    holders: &mut Holders,
    records: &mut dyn Records,
    member: WaiterId,
    now: Now,
) -> (Option<Verdict>, StepOutput) {
    let mut step = Step::begin(parts, lock, AffectedOwners::Any, holders, records, now);
    step.serve_first();
    let verdict = step.try_member(member);
    (verdict, step.close())
}

/// See [`LockManager::grant_member`](super::LockManager::grant_member).
pub(super) fn grant_member(
    parts: &mut Parts,
    lock: LockLookup<'_>,
    holders: &mut Holders,
    records: &mut dyn Records,
    (member, waits): (WaiterId, bool),
    now: Now,
) -> (Option<Reply>, StepOutput) {
    let mut step = Step::begin(parts, lock, AffectedOwners::Any, holders, records, now);
    let reply = step.grant_member(member, waits);
    (reply, step.finish())
}

/// See [`LockManager::granted_all`](super::LockManager::granted_all).
pub(super) fn granted_all(parts: &mut Parts, first_wait: WaiterId, replies: Vec<Reply>) {
    parts.decisions.push_back((first_wait, Decision::GrantedAll(Rc::from(replies))));
    if let Some(owner) = parts.waiters.get(first_wait).map(|wait| wait.request().owner.clone()) {
        parts.search_waits_of(&owner);
    }
}

/// See [`LockManager::end_try`](super::LockManager::end_try).
pub(super) fn end_try(parts: &mut Parts, blocked_at: Option<WaiterId>) -> Vec<LockId> {
    let lock = blocked_at.and_then(|id| parts.waiters.queued(id)).map(|wait| wait.lock());
    let table = &parts.table;
    let unannounced = |lock| table.get(lock).is_some_and(|state| state.unannounced);
    let locks = parts.waiters.bundles.end_try(lock, unannounced);
    locks.into_iter().filter_map(|lock| parts.name(lock)).collect()
}

/// See [`LockManager::end_bundle`](super::LockManager::end_bundle).
pub(super) fn end_bundle(parts: &mut Parts, first_wait: WaiterId, decision: Decision) {
    let first = parts.waiters.together(first_wait).first().copied();
    if let Some(first) = first {
        parts.end_wait(first, Some(decision));
    }
}

/// See [`LockManager::begin_multi_release`](super::LockManager::begin_multi_release).
pub(super) fn begin_multi_release(parts: &mut Parts) {
    if !parts.waiters.bundles.is_empty() {
        parts.waiters.bundles.withhold();
    }
}

/// See [`LockManager::end_multi_release`](super::LockManager::end_multi_release).
pub(super) fn end_multi_release(parts: &mut Parts) -> Vec<LockId> {
    let withheld = parts.waiters.bundles.stop_withholding();
    let unannounced = |lock: &LockIdx| parts.state(*lock).is_some_and(|state| state.unannounced);
    withheld.into_iter().filter(unannounced).filter_map(|lock| parts.name(lock)).collect()
}

/// See [`LockManager::note_withheld`](super::LockManager::note_withheld).
pub(super) fn note_withheld(parts: &mut Parts, output: StepOutput) {
    if let Some(state) = output.lock.and_then(|lock| parts.state_mut(lock)) {
        state.unannounced = true;
    }
    if let Some(lock) = output.lock {
        parts.waiters.bundles.note_withheld(lock);
    }
}

/// See [`LockManager::overtake`](super::LockManager::overtake).
pub(super) fn overtake(parts: &mut Parts, overtaker: WaiterId, member: WaiterId) -> Option<LockId> {
    let lock = parts.waiters.queued(overtaker)?.lock();
    if parts.waiters.queued(member)?.lock() != lock {
        return defect!("a wait overtakes a member of another queue", None);
    }
    if !parts.state_mut(lock)?.queue.overtake(overtaker, member) {
        return defect!("a wait overtakes a member twice", None);
    }
    // The member now stands behind the other wait, so it may wait for its own owner.
    parts.searches.insert(member);
    parts.table.set_ready(lock);
    parts.name(lock)
}

/// See [`LockManager::lock_of`](super::LockManager::lock_of).
pub(super) fn lock_of(parts: &Parts, id: WaiterId) -> Option<LockId> {
    parts.name(parts.waiters.get(id)?.lock())
}

/// See [`LockManager::has_bundles`](super::LockManager::has_bundles).
pub(super) fn has_bundles(parts: &Parts) -> bool {
    !parts.waiters.bundles.is_empty()
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
