// SPDX-License-Identifier: MIT

//! Nobody waits for long for a lock that nobody holds.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::holds::{Mode, View};
use super::operations::{millis, reply, Operation, Times, NEVER};
use super::{Report, Rule};
use crate::record::{Acquire, Call, Micros};

/// Times without a gap, in order.
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

/// The parts of a time that are in none of these.
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

/// Somebody who asks for locks, and how.
struct Waiter<'a, 'b> {
    operation: &'b Operation<'a>,
    acquire: &'a Acquire,
    call: &'a Call,
}

impl Waiter<'_, '_> {
    /// An operation is what it asks for at one of its locks.
    fn is_of(&self, one: &Operation<'_>) -> bool {
        one.owner == self.operation.owner && one.calls.iter().any(|call| call.number == self.call.number)
    }
}

/// Nobody waits for long for locks that nobody holds, and nobody is refused one.
pub(super) fn check(views: &BTreeMap<&str, View<'_>>, report: &mut Report) {
    for view in views.values() {
        for operation in &view.lock.operations {
            let Some(acquire) = operation.acquire().filter(|acquire| acquire.notify.is_none()) else {
                continue;
            };
            // A call for several is looked at once, not at each of them.
            if acquire.keys[0] != view.lock.key {
                continue;
            }
            for call in &operation.calls {
                let waiter = Waiter { operation, acquire, call };
                match acquire.block {
                    Some(_) => check_wait(views, &waiter, report),
                    None if acquire.keys.len() == 1 => check_refusal(view, &waiter, report),
                    None => {}
                }
            }
        }
    }
}

/// Who does not wait is behind everybody.
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
        let text = format!("{} was refused it, and nobody held it or waited for it", waiter.operation.owner);
        report.add(Rule::Free, view.lock.key, text, &[waiter.call]);
    }
}

/// Who waits is served as soon as nothing is in the way at any of its locks.
fn check_wait(views: &BTreeMap<&str, View<'_>>, waiter: &Waiter<'_, '_>, report: &mut Report) {
    let Some(view) = views.get(waiter.acquire.keys[0].as_str()) else { return };
    let until = waiter.call.answered.unwrap_or_else(|| view.history.open_until(waiter.call.connection));
    let waited = (waiter.call.sent, until.min(NEVER));
    if waited.1 - waited.0 <= view.limits.late {
        return;
    }
    let mut taken = disturbed(view);
    let own = || waiter.acquire.keys.iter().filter_map(|key| views.get(key.as_str()));
    for view in own() {
        taken.extend(in_the_way(views, view, waiter));
    }
    for gap in gaps(waited, &merged(taken)) {
        let turns: Micros = own().map(|view| turns(view, waiter, gap)).sum();
        if gap.1 - gap.0 > view.limits.late + turns {
            let text = format!(
                "{} waited for it while it was free, from {} to {} µs",
                waiter.operation.owner, gap.0, gap.1
            );
            return report.add(Rule::Free, view.lock.key, text, &[waiter.call]);
        }
    }
}

/// When something was done to the server or to clients.
fn disturbed(view: &View<'_>) -> Times {
    let late = view.limits.late;
    view.history.faults.iter().map(|fault| (fault.from, fault.until + late)).collect()
}

/// When holds of others, and calls before it, can have kept somebody waiting.
fn in_the_way(views: &BTreeMap<&str, View<'_>>, view: &View<'_>, waiter: &Waiter<'_, '_>) -> Times {
    let Waiter { operation, acquire, .. } = waiter;
    let mut times = Vec::new();
    let mut readers: BTreeMap<&str, Times> = BTreeMap::new();
    for one in &view.lock.operations {
        if waiter.is_of(one) {
            continue;
        }
        // A call for several locks waits for the others of them, too, and only then is what is behind it served.
        let others = one.acquire();
        let waits_for_more = others.is_some_and(|other| other.keys.len() > 1);
        // Readers that come first are served with a reader, but for a limit.
        let is_passed = || others.is_some_and(|other| other.shared && other.limit.is_none());
        if waits_for_more || acquire.shared && !is_passed() {
            let wait = possible_wait(view, one).filter(|_| !view.is_turn(one));
            let waits_for_it = if waits_for_more { waits_for(views, one, operation.owner) } else { vec![] };
            times.extend(wait.into_iter().flat_map(|wait| gaps(wait, &waits_for_it)));
        }
        // An owner's own holds are in the way of `ONCE` only: a reader that is alone becomes the writer at once.
        let Some(held) = view.possible_hold(one).filter(|_| !view.is_turn(one)) else { continue };
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
        times.extend(crowded(readers.into_values().map(merged), limit));
    }
    times
}

/// When a call for several locks certainly waits for an owner that holds one of them. Who is behind such a call, and has what it
/// waits for, is let pass.
fn waits_for(views: &BTreeMap<&str, View<'_>>, several: &Operation<'_>, owner: &str) -> Times {
    let Some(acquire) = several.acquire() else { return vec![] };
    let of_all = acquire.keys.iter().filter_map(|key| views.get(key.as_str()));
    let holds = of_all.flat_map(|view| view.holds_of(owner));
    let excluding = holds.filter(|hold| !acquire.shared || hold.mode == Mode::Exclusive);
    merged(excluding.map(|hold| (hold.from, hold.until)).collect())
}

/// When as many as a limit says, or more, hold a lock.
fn crowded(holders: impl Iterator<Item = Times>, limit: i64) -> Times {
    let mut steps: BTreeSet<(Micros, i64, usize)> = BTreeSet::new();
    for (number, times) in holders.enumerate() {
        for (from, until) in times {
            // Who comes when somebody else goes is counted with it.
            steps.extend([(from, -1, number), (until, 1, number)]);
        }
    }
    let mut crowded = Vec::new();
    let (mut count, mut since) = (0, None);
    for (at, step, _) in steps {
        count -= step;
        match since {
            None if count >= limit => since = Some(at),
            Some(from) if count < limit => {
                crowded.push((from, at));
                since = None;
            }
            _ => {}
        }
    }
    crowded.extend(since.map(|from| (from, NEVER)));
    crowded
}

/// For how long those who wait for a message can have had the lock without taking it.
fn turns(view: &View<'_>, waiter: &Waiter<'_, '_>, gap: (Micros, Micros)) -> Micros {
    let late = view.limits.late;
    let others = view.lock.operations.iter().filter(|one| !waiter.is_of(one));
    let turns = others.filter(|one| view.is_turn(one)).filter_map(|one| {
        let inbox = one.acquire()?.notify.as_deref()?;
        let grace = millis(one.grace()?) + view.limits.slack;
        let (from, until) = possible_wait(view, one)?;
        if from > gap.1 || until.saturating_add(grace) < gap.0 {
            return None;
        }
        let heard = if view.history.may_be_heard(inbox, gap.0, gap.1) { grace } else { 0 };
        // Each call may have begun a wait anew, and had a turn.
        let calls = Micros::try_from(one.calls.len()).unwrap_or(NEVER);
        Some(calls.saturating_mul(heard + late))
    });
    turns.fold(0, Micros::saturating_add)
}

/// When an operation may have been in the queue.
pub(super) fn possible_wait(view: &View<'_>, one: &Operation<'_>) -> Option<(Micros, Micros)> {
    let acquire = one.acquire()?;
    if acquire.block.is_none() && acquire.notify.is_none() {
        return None;
    }
    let closed = one.calls.iter().map(|call| view.history.closed_by(call.connection)).max()?;
    let until = one.end.unwrap_or_else(|| closed.saturating_add(view.limits.late));
    Some((one.first_sent, until.min(one.void_after.unwrap_or(NEVER))))
}
