// SPDX-License-Identifier: MIT

//! Calls for several locks at once. The caller opens each lock twice: first to check whether all are
//! available ([`LockManager::check`](super::LockManager::check),
//! [`LockManager::try_part`](super::LockManager::try_part)), then to take them or to join their queues.
//!
//! No other call runs in between. A step without its call makes a lock easier to get, never harder. So the
//! verdict about the first lock still holds after the last one was checked.

use std::rc::Rc;

use super::parts::Parts;
use super::step::Step;
use super::InHand;
use crate::core::bundles::{NewBundle, Verdict};
use crate::core::sessions::MayHaveEnded;
use crate::core::table::{Known, LockIdx};
use crate::core::{
    Counted, Decision, Happened, Holders, LockId, MonoUs, Now, Patience, Records, Reply, Request, WaiterId,
};

/// The result of checking one lock.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) verdict: Verdict,
    /// Whether the lock has the maximum number of waiters, not counting this request.
    pub(crate) is_full: bool,
}

/// A bundle to try.
#[derive(Debug)]
pub(crate) struct Try {
    pub(crate) lead: WaiterId,
    /// Locks and members, in the order of the call.
    pub(crate) parts: Vec<(LockId, WaiterId)>,
}

/// A lock that is ready to be reconciled because of an earlier step of the same call. A step that does not
/// serve the queue keeps it ready.
struct Ready(Option<LockIdx>);

impl Ready {
    fn of(parts: &Parts, lock: Known<'_>) -> Ready {
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
    lock: Known<'_>,
    holders: &mut Holders,
    records: &mut dyn Records,
    request: &Request,
    patience: Patience,
    now: Now,
) -> (Checked, InHand) {
    let mut step = Step::begin(parts, lock, MayHaveEnded::Of(&request.owner), holders, records, now);
    step.serve_first();
    let verdict = verdict(&mut step, request, patience);
    let at_most = match patience {
        Patience::Waits { at_most, .. } => at_most,
        Patience::Leaves => None,
    };
    let is_full = at_most.is_some_and(|most| step.queue_len() >= most) && !step.is_queued(request);
    (Checked { verdict, is_full }, step.let_go())
}

/// See [`LockManager::take`](super::LockManager::take).
pub(super) fn take(
    parts: &mut Parts,
    lock: Known<'_>,
    holders: &mut Holders,
    records: &mut dyn Records,
    request: &Request,
    now: Now,
) -> (Option<Reply>, InHand) {
    let ready = Ready::of(parts, lock);
    let mut step = Step::begin(parts, lock, MayHaveEnded::Of(&request.owner), holders, records, now);
    let reply = step.grant_caller(request).ok().flatten();
    let in_hand = step.let_go();
    ready.keep(parts);
    (reply, in_hand)
}

/// See [`LockManager::repeat`](super::LockManager::repeat).
pub(super) fn repeat(
    parts: &mut Parts,
    lock: Known<'_>,
    holders: &mut Holders,
    records: &mut dyn Records,
    (request, reply): (&Request, &Reply),
    now: Now,
) -> InHand {
    let ready = Ready::of(parts, lock);
    let mut step = Step::begin(parts, lock, MayHaveEnded::Of(&request.owner), holders, records, now);
    step.repeat(request, reply);
    step.count(Counted::Repeated);
    let in_hand = step.let_go();
    ready.keep(parts);
    in_hand
}

/// See [`LockManager::queue_part`](super::LockManager::queue_part).
pub(super) fn queue_part(
    parts: &mut Parts,
    lock: Known<'_>,
    holders: &mut Holders,
    records: &mut dyn Records,
    (request, deadline): (&Request, Option<MonoUs>),
    bundle: &mut Option<NewBundle>,
    now: Now,
) -> (WaiterId, InHand) {
    let ready = Ready::of(parts, lock);
    let mut step = Step::begin(parts, lock, MayHaveEnded::Of(&request.owner), holders, records, now);
    if !step.has_queue() {
        step.tell_holders(Happened::Contended);
    }
    let id = step.queue_part(request.clone(), deadline, bundle);
    let in_hand = step.let_go();
    ready.keep(parts);
    (id, in_hand)
}

/// See [`LockManager::begin_blocked`](super::LockManager::begin_blocked).
pub(super) fn begin_blocked(parts: &mut Parts, lead: WaiterId, at: WaiterId) {
    let Some(lock) = parts.waiters.get(at).map(|wait| wait.lock()) else { return };
    parts.waiters.bundles.begin_blocked(lead, lock);
}

/// See [`LockManager::was_busy`](super::LockManager::was_busy).
pub(super) fn was_busy(parts: &mut Parts) {
    parts.statistics.count(Counted::Busy);
}

/// See [`LockManager::any_due`](super::LockManager::any_due).
pub(super) fn any_due(parts: &Parts) -> bool {
    parts.waiters.bundles.any_due()
}

/// See [`LockManager::next_try`](super::LockManager::next_try).
pub(super) fn next_try(parts: &mut Parts) -> Option<Try> {
    let lead = parts.waiters.bundles.next_due()?;
    let of_bundle = parts.waiters.bundles.parts(lead).iter();
    let named = of_bundle.filter_map(|(lock, id)| Some((parts.name(*lock)?, *id))).collect();
    Some(Try { lead, parts: named })
}

/// See [`LockManager::try_part`](super::LockManager::try_part).
pub(super) fn try_part(
    parts: &mut Parts,
    lock: Known<'_>,
    holders: &mut Holders,
    records: &mut dyn Records,
    part: WaiterId,
    now: Now,
) -> (Option<Verdict>, InHand) {
    let mut step = Step::begin(parts, lock, MayHaveEnded::Any, holders, records, now);
    step.serve_first();
    let verdict = step.try_part(part);
    (verdict, step.let_go())
}

/// See [`LockManager::grant_part`](super::LockManager::grant_part).
pub(super) fn grant_part(
    parts: &mut Parts,
    lock: Known<'_>,
    holders: &mut Holders,
    records: &mut dyn Records,
    (part, waits): (WaiterId, bool),
    now: Now,
) -> (Option<Reply>, InHand) {
    let mut step = Step::begin(parts, lock, MayHaveEnded::Any, holders, records, now);
    let reply = step.grant_part(part, waits);
    (reply, step.finish())
}

/// See [`LockManager::granted_all`](super::LockManager::granted_all).
pub(super) fn granted_all(parts: &mut Parts, lead: WaiterId, replies: Vec<Reply>) {
    parts.decisions.push_back((lead, Decision::GrantedAll(Rc::from(replies))));
    if let Some(owner) = parts.waiters.get(lead).map(|wait| wait.request().owner.clone()) {
        parts.search_waits_of(&owner);
    }
}

/// See [`LockManager::was_tried`](super::LockManager::was_tried).
pub(super) fn was_tried(parts: &mut Parts, blocked_at: Option<WaiterId>) -> Vec<LockId> {
    let lock = blocked_at.and_then(|id| parts.waiters.queued(id)).map(|wait| wait.lock());
    let table = &parts.table;
    let unannounced = |lock| table.get(lock).is_some_and(|state| state.unannounced);
    let locks = parts.waiters.bundles.was_tried(lock, unannounced);
    locks.into_iter().filter_map(|lock| parts.name(lock)).collect()
}

/// See [`LockManager::end_bundle`](super::LockManager::end_bundle).
pub(super) fn end_bundle(parts: &mut Parts, lead: WaiterId, decision: Decision) {
    let first = parts.waiters.together(lead).first().copied();
    if let Some(first) = first {
        parts.end_wait(first, Some(decision));
    }
}

/// See [`LockManager::begin_several`](super::LockManager::begin_several).
pub(super) fn begin_several(parts: &mut Parts) {
    if !parts.waiters.bundles.is_empty() {
        parts.waiters.bundles.withhold();
    }
}

/// See [`LockManager::end_several`](super::LockManager::end_several).
pub(super) fn end_several(parts: &mut Parts) -> Vec<LockId> {
    let withheld = parts.waiters.bundles.withhold_no_more();
    let unannounced = |lock: &LockIdx| parts.state(*lock).is_some_and(|state| state.unannounced);
    withheld.into_iter().filter(unannounced).filter_map(|lock| parts.name(lock)).collect()
}

/// See [`LockManager::was_withheld`](super::LockManager::was_withheld).
pub(super) fn was_withheld(parts: &mut Parts, in_hand: InHand) {
    if let Some(state) = in_hand.lock.and_then(|lock| parts.state_mut(lock)) {
        state.unannounced = true;
    }
    if let Some(lock) = in_hand.lock {
        parts.waiters.bundles.was_withheld(lock);
    }
}

/// See [`LockManager::let_pass`](super::LockManager::let_pass).
pub(super) fn let_pass(parts: &mut Parts, who: WaiterId, part: WaiterId) -> Option<LockId> {
    let lock = parts.waiters.queued(who)?.lock();
    if parts.waiters.queued(part)?.lock() != lock {
        return defect!("a wait overtakes a member of another queue", None);
    }
    if !parts.state_mut(lock)?.queue.let_pass(who, part) {
        return defect!("a wait overtakes a member twice", None);
    }
    // The member now stands behind the other wait, so it may wait for its own owner.
    parts.searches.insert(part);
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

fn verdict(step: &mut Step<'_>, request: &Request, patience: Patience) -> Verdict {
    if let Some(id) = &request.id {
        match step.granted(id) {
            Ok(None) => {}
            Ok(Some(reply)) if step.forget_if_closed(request, id, &reply) => {}
            Ok(Some(reply)) => return Verdict::Repeats(reply),
            Err(refusal) => return Verdict::Refused(refusal),
        }
    }
    let others_come_first = step.is_barred(request.wants) || step.yields(patience.ready_until(step.now));
    if others_come_first && !step.wants_more(request) {
        return Verdict::Busy { quarantined: step.is_quarantined(request) };
    }
    step.may_grant(request)
}
