// SPDX-License-Identifier: MIT

//! Rule: no call waits for a free lock for long.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::holds::{Mode, View};
use super::operations::{reply, Operation, Times, NEVER};
use super::{Report, Rule};
use crate::record::{Acquire, Call, Micros};

/// Merges overlapping intervals into sorted, separate ones.
fn merged(mut times: Times) -> Times {
    times.sort_unstable();
    let mut merged: Times = Vec::new();
    for (from, until) in times {
        match merged.last_mut() {
            Some(last) if last.1 >= from => last.1 = last.1.max(until),
            _ => merged.push((from, until)),
        }
    }
    merged
}

/// The parts of an interval outside of all `taken` intervals.
fn gaps(of: (Micros, Micros), taken: &[(Micros, Micros)]) -> Times {
    let mut from = of.0;
    let mut gaps = Vec::new();
    for (begin, end) in taken.iter().copied().chain([(of.1, NEVER)]) {
        if begin.min(of.1) > from {
            gaps.push((from, begin.min(of.1)));
        }
        from = from.max(end);
    }
    gaps
}

/// A call that acquires locks, with its operation.
struct Waiter<'a, 'b> {
    operation: &'b Operation<'a>,
    acquire: &'a Acquire,
    call: &'a Call,
}

impl Waiter<'_, '_> {
    /// Whether `one` is an operation of this call, at any of its locks.
    fn is_of(&self, one: &Operation<'_>) -> bool {
        one.owner == self.operation.owner && one.calls.iter().any(|call| call.number == self.call.number)
    }
}

/// Checks that no call waits for free locks for long or is refused a free lock.
pub(super) fn check(views: &BTreeMap<&str, View<'_>>, report: &mut Report) {
    for view in views.values() {
        for operation in &view.lock.operations {
            let Some(acquire) = operation.acquire() else { continue };
            // A call for several locks is checked once, at its first lock.
            if acquire.keys[0] != view.lock.key {
                continue;
            }
            for call in &operation.calls {
                let waiter = Waiter { operation, acquire, call };
                match acquire.block {
                    Some(_) => check_wait(views, &waiter, report),
                    // A repeated number gets the first nil.
                    None if acquire.session.is_some() && operation.calls.len() > 1 => {}
                    None if acquire.keys.len() == 1 => check_refusal(view, &waiter, report),
                    None => {}
                }
            }
        }
    }
}

/// Checks that a call without BLOCK was refused only if the lock may have had a holder or a waiter. Such a call comes after
/// every waiter.
fn check_refusal(view: &View<'_>, waiter: &Waiter<'_, '_>, report: &mut Report) {
    let (true, Some(answered)) = (reply(waiter.call).is_some_and(Value::is_null), waiter.call.answered)
    else {
        return;
    };
    let mut taken = disturbed(view);
    let others = || view.lock.operations.iter().filter(|one| !waiter.is_of(one));
    taken.extend(others().filter_map(|one| view.possible_hold(one)));
    taken.extend(others().filter_map(|one| possible_wait(view, one)));
    let asked = (waiter.call.sent, answered);
    if gaps(asked, &merged(taken)).first() == Some(&asked) {
        let text =
            format!("{} was refused the lock, which had neither holders nor waiters", waiter.operation.owner);
        report.add(Rule::Free, view.lock.key, text, &[waiter.call]);
    }
}

/// Checks that a waiter is granted soon after it is no longer blocked at any of its locks.
fn check_wait(views: &BTreeMap<&str, View<'_>>, waiter: &Waiter<'_, '_>, report: &mut Report) {
    let Some(view) = views.get(waiter.acquire.keys[0].as_str()) else { return };
    let until = waiter.call.answered.unwrap_or_else(|| view.history.open_until(waiter.call.connection));
    let waited = (waiter.call.sent, until.min(NEVER));
    if waited.1 - waited.0 <= view.limits.late {
        return;
    }
    let mut taken = disturbed(view);
    for view in waiter.acquire.keys.iter().filter_map(|key| views.get(key.as_str())) {
        taken.extend(blocked_times(views, view, waiter));
    }
    for gap in gaps(waited, &merged(taken)) {
        if gap.1 - gap.0 > view.limits.late {
            let text =
                format!("{} waited for the free lock from {} to {} µs", waiter.operation.owner, gap.0, gap.1);
            return report.add(Rule::Free, view.lock.key, text, &[waiter.call]);
        }
    }
}

/// Times of faults on the server or its clients.
fn disturbed(view: &View<'_>) -> Times {
    let late = view.limits.late;
    view.history.faults.iter().map(|fault| (fault.from, fault.until + late)).collect()
}

/// Times at which other holds or earlier calls can have blocked the waiter.
fn blocked_times(views: &BTreeMap<&str, View<'_>>, view: &View<'_>, waiter: &Waiter<'_, '_>) -> Times {
    let Waiter { operation, acquire, .. } = waiter;
    let mut times = Vec::new();
    let mut readers: BTreeMap<&str, Times> = BTreeMap::new();
    for one in &view.lock.operations {
        if waiter.is_of(one) {
            continue;
        }
        // A call for several locks also waits for its other locks, and calls behind it wait until it is served.
        let others = one.acquire();
        let waits_for_more = others.is_some_and(|other| other.keys.len() > 1);
        // Earlier readers without a limit are granted together with this reader.
        let is_granted_together = || others.is_some_and(|other| other.shared && other.limit.is_none());
        if waits_for_more || acquire.shared && !is_granted_together() {
            let wait = possible_wait(view, one);
            let waits_for_it = if waits_for_more { waits_for(views, one, operation.owner) } else { vec![] };
            times.extend(wait.into_iter().flat_map(|wait| gaps(wait, &waits_for_it)));
        }
        // An owner's own holds block only `ONCE`: a single reader upgrades at once.
        let Some(held) = view.possible_hold(one) else { continue };
        if one.owner == operation.owner && !acquire.once {
            continue;
        }
        if acquire.shared && !view.may_be_exclusive(one) {
            readers.entry(one.owner).or_default().push(held);
        } else {
            times.push(held);
        }
    }
    if acquire.once {
        times.extend(readers.get(operation.owner).into_iter().flatten());
    }
    if let Some(limit) = acquire.limit {
        times.extend(times_at_limit(readers.into_values().map(merged), limit));
    }
    times
}

/// Times at which a call for several locks certainly waits for an owner that holds one of them. That owner may overtake the
/// call.
fn waits_for(views: &BTreeMap<&str, View<'_>>, several: &Operation<'_>, owner: &str) -> Times {
    let Some(acquire) = several.acquire() else { return vec![] };
    let of_all = acquire.keys.iter().filter_map(|key| views.get(key.as_str()));
    let holds = of_all.flat_map(|view| view.holds_of(owner));
    let excluding = holds.filter(|hold| !acquire.shared || hold.mode == Mode::Exclusive);
    merged(excluding.map(|hold| (hold.from, hold.until)).collect())
}

/// Times at which at least `limit` owners hold the lock.
fn times_at_limit(holders: impl Iterator<Item = Times>, limit: i64) -> Times {
    let mut steps: BTreeSet<(Micros, i64, usize)> = BTreeSet::new();
    for (number, times) in holders.enumerate() {
        for (from, until) in times {
            // If one owner arrives as another leaves, both count as holders at that time.
            steps.extend([(from, -1, number), (until, 1, number)]);
        }
    }
    let mut times_at_limit = Vec::new();
    let (mut count, mut since) = (0, None);
    for (at, step, _) in steps {
        count -= step;
        match since {
            None if count >= limit => since = Some(at),
            Some(from) if count < limit => {
                times_at_limit.push((from, at));
                since = None;
            }
            _ => {}
        }
    }
    times_at_limit.extend(since.map(|from| (from, NEVER)));
    times_at_limit
}

/// The interval in which an operation may have been in the queue.
pub(super) fn possible_wait(view: &View<'_>, one: &Operation<'_>) -> Option<(Micros, Micros)> {
    let acquire = one.acquire()?;
    if acquire.block.is_none() && acquire.queue.is_none() {
        return None;
    }
    if let Some(number) = &acquire.session {
        let sessions = &view.history.sessions;
        let over = sessions.over(number).into_iter().chain(one.end).min();
        let until = over.unwrap_or_else(|| sessions.exists_until(&number.id, view.limits.late));
        return Some((one.first_sent, until));
    }
    let closed = one.calls.iter().map(|call| view.history.closed_by(call.connection)).max()?;
    let until = one.end.unwrap_or_else(|| closed.saturating_add(view.limits.late));
    Some((one.first_sent, until.min(one.void_after.unwrap_or(NEVER))))
}
