// SPDX-License-Identifier: MIT

//! The effect of each client call within a step.

use super::step::Step;
use crate::core::lease::Lease;
use crate::core::{
    Counted, HoldEvent, NotOwner, NotReleased, Outcome, Owner, Refusal, Release, ReleaseScope, Renewal,
    Request, RequestId, WaitPolicy,
};

/// Implements [`LockManager::acquire`](super::LockManager::acquire).
pub(super) fn acquire(step: &mut Step<'_>, request: &Request, policy: WaitPolicy) -> Outcome {
    // For a holder or a repeated call, the command does not read the queue of Redisson's fair lock.
    let mut looks = !step.wants_more(request);
    if let Some(id) = &request.id {
        if step.any_notified() {
            if let Some(reply) = step.confirm(request) {
                return Outcome::Granted(reply);
            }
        }
        match step.granted(id) {
            Ok(None) => {}
            Ok(Some(reply)) if step.forget_if_closed(request, id, &reply) => looks = false,
            Ok(Some(reply)) if step.records.is_unconfirmed(id) && !step.confirm_recorded(request, &reply) => {
                looks = false;
            }
            Ok(Some(reply)) => {
                step.repeat(request, &reply);
                step.count(Counted::Repeated);
                return Outcome::Granted(reply);
            }
            Err(refusal) => return Outcome::Refused(refusal),
        }
    }
    let outcome = take_or_queue(step, request, policy);
    if looks {
        step.note_look();
    }
    outcome
}

/// Grants or queues a request that was not granted before, or returns the reason why not.
#[inline(always)]
fn take_or_queue(step: &mut Step<'_>, request: &Request, policy: WaitPolicy) -> Outcome {
    let others_come_first = step.must_wait(request.wants) || step.yields(policy.ready_until(step.now));
    if !others_come_first || step.wants_more(request) {
        let granted = if request.awaits_replicas {
            step.grant_in_flight(request).map(|id| id.map(Outcome::InFlight))
        } else {
            step.grant_caller(request).map(|reply| reply.map(Outcome::Granted))
        };
        match granted {
            Ok(Some(outcome)) => return outcome,
            Ok(None) => {}
            Err(refusal) => return Outcome::Refused(refusal),
        }
    }
    let WaitPolicy::Wait { deadline, at_most, on_primary } = policy else {
        if step.is_quarantined(request) {
            return Outcome::Quarantined;
        }
        step.count(Counted::Busy);
        return Outcome::Busy;
    };
    if !on_primary {
        // On a replica that accepts writes, a waiter would never be granted the lock.
        return Outcome::Refused(Refusal::Replica);
    }
    if at_most.is_some_and(|most| step.queue_len() >= most) && !step.is_queued(request) {
        return Outcome::Refused(Refusal::TooManyWaiters);
    }
    if request.notify.as_ref().is_some_and(|notify| step.has_too_many(notify)) && !step.is_queued(request) {
        return Outcome::Refused(Refusal::TooManyNotified);
    }
    if !step.has_queue() {
        step.notify_holders(HoldEvent::Contended);
    }
    Outcome::Queued(step.queue(request.clone(), deadline))
}

/// Implements [`LockManager::release`](super::LockManager::release).
pub(super) fn release(step: &mut Step<'_>, release: &Release) -> Result<i64, NotReleased> {
    let Release { owner, scope, lease_ms, id } = release;
    if let Some(id) = id {
        if let Some(left) = step.records.released(id).map_err(NotReleased::Refused)? {
            return Ok(left);
        }
    }
    let lease = lease_ms.map(|ms| Lease::new(ms, step.now.wall.saturating_add(ms)));
    let lease_end = lease.map(|lease| lease.end);
    let released = step.release_unconfirmed(owner, *scope, id.as_ref(), lease_end);
    let left = released.map_err(|NotOwner| NotReleased::NotOwner)?;
    if let Some(lease) = lease.filter(|_| left > 0) {
        step.set_lease(owner, lease);
    }
    if let Some(id) = id {
        step.records.remember_release(id, left, step.now);
    }
    step.count(Counted::Released);
    if left == 0 {
        step.count_hold();
    }
    Ok(left)
}

/// Implements [`LockManager::renew`](super::LockManager::renew).
pub(super) fn renew(step: &mut Step<'_>, renewal: &Renewal) -> Result<i64, NotOwner> {
    let Renewal { owner, lease_ms, bind, client } = renewal;
    let lease = Lease::new(*lease_ms, step.now.wall.saturating_add(*lease_ms));
    // Confirms first, because a confirmation may set the lease too, and the renewal must replace it.
    if step.any_notified() {
        step.confirm_all_of(owner, *lease_ms);
    }
    let holds = step.holders.renew(owner.as_bytes(), lease.end)?;
    step.renewed(owner, lease, *bind, *client);
    step.count(Counted::Renewed);
    Ok(holds)
}

/// Implements [`LockManager::cancel`](super::LockManager::cancel).
pub(super) fn cancel(step: &mut Step<'_>, id: &RequestId) -> Result<bool, Refusal> {
    if let Some(undone) = step.records.cancelled(id)? {
        return Ok(undone);
    }
    // A release with the same id has already released the hold.
    let given_back = step.records.released(id)?.is_some();
    let granted = step.granted(id)?.filter(|_| !given_back);
    let undone = if step.cancel_wait(id).is_some() {
        true
    } else if let Some(reply) = granted {
        let owner_argument = Owner::new(id.owner_argument());
        let owner = reply.owner.as_deref().unwrap_or(&owner_argument);
        let mode = ReleaseScope::OneOf(reply.mode);
        let released =
            !step.has_ended(owner, id) && step.release_unconfirmed(owner, mode, None, None).is_ok();
        if released {
            step.unbind_request(owner, id);
        }
        released
    } else {
        false
    };
    if !undone && !step.records.may_grow() {
        return Err(Refusal::NoMemory);
    }
    step.count(undone.then_some(Counted::Cancelled));
    step.records.remember_cancel(id, undone, step.now);
    Ok(undone)
}
