// SPDX-License-Identifier: MIT

//! The effect of each client call within a step.

use super::step::Step;
use crate::core::lease::Lease;
use crate::core::manager::step::NumberIs;
use crate::core::sessions::Answer;
use crate::core::{
    CallNumber, Counted, HoldEvent, Known, NotOwner, NotReleased, NotRenewed, NumberedCall, OtherTarget,
    Outcome, Owner, Refusal, Release, ReleaseScope, Renewal, Reply, Request, RequestId, WaitPolicy,
};

/// Implements [`LockManager::acquire`](super::LockManager::acquire).
pub(super) fn acquire(step: &mut Step<'_>, request: &Request, policy: WaitPolicy) -> Outcome {
    if let Some(call) = request.number() {
        return acquire_numbered(step, request, call, policy);
    }
    // For a holder or a repeated call, the command does not read the queue of Redisson's fair lock.
    let mut looks = !step.wants_more(request);
    if let Some(id) = &request.id {
        match step.granted(id) {
            Ok(None) => {}
            Ok(Some(reply)) if step.forget_if_closed(request, id, &reply) => looks = false,
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

/// Acquires for a session. A repeated call gets the outcome of the first one so far (R12).
fn acquire_numbered(
    step: &mut Step<'_>,
    request: &Request,
    call: NumberedCall,
    policy: WaitPolicy,
) -> Outcome {
    let known = step.known_number(call);
    if known != Known::New {
        step.count(matches!(known, Known::Granted(_)).then_some(Counted::Repeated));
        return Outcome::Repeated(known);
    }
    let looks = !step.wants_more(request);
    let outcome = take_or_queue(step, request, policy);
    if outcome == Outcome::Busy {
        step.answer(call.number, Answer::Busy);
    }
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
    if !step.has_queue() {
        step.notify_holders(HoldEvent::Contended);
    }
    Outcome::Queued(step.queue(request.clone(), deadline))
}

/// Implements [`LockManager::release`](super::LockManager::release).
pub(super) fn release(step: &mut Step<'_>, release: &Release) -> Result<i64, NotReleased> {
    let Release { owner, scope, lease_ms, id, number } = release;
    if let Some(number) = number {
        return release_numbered(step, owner, *number, *lease_ms);
    }
    if let Some(id) = id {
        if let Some(left) = step.records.released(id).map_err(NotReleased::Refused)? {
            return Ok(left);
        }
    }
    let left = release_hold(step, owner, *scope, id.as_ref(), *lease_ms)?;
    if let Some(id) = id {
        step.records.remember_release(id, left, step.now);
    }
    step.lose_excess_of_caller();
    Ok(left)
}

/// Releases holds of the owner. Returns the number of remaining holds.
#[inline(always)]
fn release_hold(
    step: &mut Step<'_>,
    owner: &Owner,
    scope: ReleaseScope,
    id: Option<&RequestId>,
    lease_ms: Option<i64>,
) -> Result<i64, NotReleased> {
    let lease = lease_ms.map(|ms| step.lease_of(owner, ms));
    let lease_end = lease.map(|lease| lease.end);
    let released = step.release_unconfirmed(owner, scope, id, lease_end);
    let left = released.map_err(|NotOwner| NotReleased::NotOwner)?;
    if let Some(lease) = lease.filter(|_| left > 0) {
        step.set_lease(owner, lease);
    }
    step.count_release();
    if left == 0 {
        step.count_hold();
    }
    Ok(left)
}

/// Releases the hold of one acquire of a session (R5). A repeated call gets the first reply again. The release
/// of an acquire that has not arrived yet is remembered, so that the acquire is never granted (R23).
fn release_numbered(
    step: &mut Step<'_>,
    owner: &Owner,
    number: CallNumber,
    lease_ms: Option<i64>,
) -> Result<i64, NotReleased> {
    let state = |step: &Step<'_>| step.number_state(number).map_err(|OtherTarget| NotReleased::OtherTarget);
    let mode = match state(step)? {
        NumberIs::Held(mode) => mode,
        NumberIs::InFlight => {
            step.confirm_number(number);
            // The confirmation may find that the hold has ended.
            let NumberIs::Held(mode) = state(step)? else { return Err(NotReleased::NotOwner) };
            mode
        }
        NumberIs::Answered(Answer::Released(left)) => {
            return left.first().copied().ok_or(NotReleased::NotOwner);
        }
        NumberIs::Waiting | NumberIs::Answered(_) | NumberIs::Done | NumberIs::HeldElsewhere => {
            return Err(NotReleased::NotOwner);
        }
        NumberIs::New => {
            step.answer(number, Answer::Ended);
            return Err(NotReleased::NotOwner);
        }
    };
    let left = release_hold(step, owner, ReleaseScope::OneOf(mode), None, lease_ms)?;
    step.note_released(owner, number, left);
    Ok(left)
}

/// Implements [`LockManager::cancel_number`](super::LockManager::cancel_number).
pub(super) fn cancel_number(
    step: &mut Step<'_>,
    owner: &Owner,
    number: CallNumber,
) -> Result<bool, OtherTarget> {
    let undone = match step.number_state(number)? {
        NumberIs::New => false,
        NumberIs::HeldElsewhere => return Ok(false),
        NumberIs::Waiting => step.end_wait_of(number),
        NumberIs::InFlight => step.revoke_number(owner, number),
        NumberIs::Held(_) => {
            let released = release_numbered(step, owner, number, None).is_ok();
            if step.has_hold(number) {
                // The locks of a call for several are cancelled one after the other.
                return Ok(released);
            }
            released
        }
        NumberIs::Answered(Answer::Cancelled { undone }) => return Ok(undone),
        NumberIs::Answered(_) | NumberIs::Done => return Ok(false),
    };
    step.count(undone.then_some(Counted::Cancelled));
    step.answer(number, Answer::Cancelled { undone });
    Ok(undone)
}

/// Implements [`LockManager::renew`](super::LockManager::renew).
pub(super) fn renew(step: &mut Step<'_>, renewal: &Renewal) -> Result<i64, NotRenewed> {
    let Renewal { owner, lease_ms, bind, client, number, .. } = renewal;
    if let Some(call) = number {
        return renew_numbered(step, renewal, *call);
    }
    let lease = step.lease_of(owner, *lease_ms);
    let holds = step.holders.renew(owner.as_bytes(), lease.end).map_err(|NotOwner| NotRenewed::NotOwner)?;
    step.renewed(owner, lease, *bind, *client);
    step.count(Counted::Renewed);
    Ok(holds)
}

/// Implements [`LockManager::check_renewal`](super::LockManager::check_renewal).
pub(super) fn check_renewal(step: &mut Step<'_>, renewal: &Renewal) -> Result<(), NotRenewed> {
    let owner = &renewal.owner;
    step.holders.get(owner.as_bytes()).ok_or(NotRenewed::NotOwner)?;
    let Some(call) = renewal.number else { return Ok(()) };
    match step.number_state(call.number).map_err(|OtherTarget| NotRenewed::OtherTarget)? {
        NumberIs::InFlight | NumberIs::Held(_) => Ok(()),
        // A call that declares holds on several locks has not reached this lock yet if it has others.
        NumberIs::New | NumberIs::HeldElsewhere => {
            step.unnumbered_mode(owner).map(|_| ()).ok_or(NotRenewed::NotOwner)
        }
        NumberIs::Done => Err(NotRenewed::Late),
        NumberIs::Waiting | NumberIs::Answered(_) => Err(NotRenewed::NotOwner),
    }
}

/// Renews the hold of one acquire of a session. If the session does not know the number, this declares one
/// hold of the owner that has no number yet (R5). Returns the owner's hold count.
fn renew_numbered(step: &mut Step<'_>, renewal: &Renewal, call: NumberedCall) -> Result<i64, NotRenewed> {
    let Renewal { owner, lease_ms, client, .. } = renewal;
    let number = call.number;
    match step.number_state(number).map_err(|OtherTarget| NotRenewed::OtherTarget)? {
        NumberIs::InFlight => {
            step.confirm_number(number);
        }
        NumberIs::Held(_) | NumberIs::New | NumberIs::HeldElsewhere => {}
        NumberIs::Done => return Err(NotRenewed::Late),
        NumberIs::Waiting | NumberIs::Answered(_) => return Err(NotRenewed::NotOwner),
    }
    let state = step.number_state(number).map_err(|OtherTarget| NotRenewed::OtherTarget)?;
    let declares = match (state, &renewal.from) {
        (NumberIs::Held(_), _) => None,
        (NumberIs::New | NumberIs::HeldElsewhere, None) => {
            Some(step.unnumbered_mode(owner).ok_or(NotRenewed::NotOwner)?)
        }
        (NumberIs::New | NumberIs::HeldElsewhere, Some(from)) => {
            Some(step.take_number(owner, from).ok_or(NotRenewed::NotOwner)?)
        }
        _ => return Err(NotRenewed::NotOwner),
    };
    // A hold of a session never gets a shorter lease (R7).
    let hold = step.holders.get(owner.as_bytes()).ok_or(NotRenewed::NotOwner)?;
    let end = step.now.wall.saturating_add(*lease_ms).max(hold.expires_at);
    let (holds, token) = (hold.total(), hold.token);
    let lease = Lease { ms: *lease_ms, keeps_longer: true, end };
    let _ = step.holders.renew(owner.as_bytes(), end);
    if call.renewed && declares.is_none() {
        // Comes first, because the new lease schedules the next renewal.
        step.watch_number(owner, call);
    }
    step.renewed(owner, lease, None, *client);
    if let Some(mode) = declares {
        step.declare(owner, call, Reply { mode, holds, token, owner: None }, lease);
    }
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
