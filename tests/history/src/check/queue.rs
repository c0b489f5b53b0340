// SPDX-License-Identifier: MIT

//! First come, first served, and nobody waits for a free lock.

use serde_json::Value;

use super::holds::View;
use super::operations::{reply, Operation, NEVER};
use super::{Report, Rule};
use crate::record::{Acquire, Call, Disturbance, Micros};

/// Somebody was seen waiting before another one called, and after that one was granted the lock.
pub(super) fn check_order(view: &View<'_>, report: &mut Report) {
    // A call for several locks may be passed by somebody whom it waits for.
    let alone = |acquire: &Acquire| !acquire.shared && !acquire.several;
    let waiting = view.lock.operations.iter().filter(|one| one.acquire().is_some_and(alone));
    // A call that comes again has the place of the first one only if the server had not noticed the end of that one.
    let calls = waiting.flat_map(|one| one.calls.iter().map(move |call| (one, *call)));
    for (first, call) in calls {
        let seen = || first.seen.iter().filter(|seen| seen.call == call.number);
        let since = seen().map(|seen| seen.answered).min();
        let last = seen().map(|seen| seen.sent).max();
        let (Some(since), Some(last)) = (since, last) else { continue };
        // Each node has a queue of its own.
        if view.history.disturbed(since, last, |what| *what == Disturbance::Move) {
            continue;
        }
        for second in &view.lock.operations {
            let Some(end) = second.end.filter(|_| second.acquire().is_some() && second.count() == Some(1))
            else {
                continue;
            };
            if second.first_sent <= since || second.owner == first.owner {
                continue;
            }
            report.orders += usize::from(second.sent < last);
            if end < last {
                let text = format!(
                    "{} waited from {since} to {last} µs, and {} passed it",
                    first.owner, second.owner
                );
                report.add(Rule::Order, view.lock.key, text, &[call, second.call()]);
            }
        }
    }
}

/// Times without a gap, in order.
fn merged(mut times: Vec<(Micros, Micros)>) -> Vec<(Micros, Micros)> {
    times.sort_unstable();
    let mut merged: Vec<(Micros, Micros)> = Vec::new();
    for (from, until) in times {
        match merged.last_mut() {
            Some(last) if last.1 >= from => last.1 = last.1.max(until),
            _ => merged.push((from, until)),
        }
    }
    merged
}

/// The longest part of a time that is in none of these.
fn longest_gap(of: (Micros, Micros), taken: &[(Micros, Micros)]) -> (Micros, Micros) {
    let mut from = of.0;
    let mut longest = (of.0, of.0);
    for (begin, end) in taken.iter().copied().chain([(of.1, NEVER)]) {
        let gap = (from, begin.min(of.1));
        if gap.1 - gap.0 > longest.1 - longest.0 {
            longest = gap;
        }
        from = from.max(end);
    }
    longest
}

/// Nobody waits for long for a lock that nobody holds, and nobody is refused one.
pub(super) fn check_free(view: &View<'_>, report: &mut Report) {
    let late = view.limits.late;
    let faults = view.history.faults.iter().map(|fault| (fault.from, fault.until + late));
    let disturbed: Vec<(Micros, Micros)> = faults.collect();
    let held: Vec<(&Operation<'_>, (Micros, Micros))> =
        view.lock.operations.iter().filter_map(|one| Some((one, view.possible_hold(one)?))).collect();
    for waiter in &view.lock.operations {
        let Some(acquire) =
            waiter.acquire().filter(|acquire| acquire.keys.len() == 1 && acquire.notify.is_none())
        else {
            continue;
        };
        for call in &waiter.calls {
            let until = call.answered.unwrap_or_else(|| view.history.open_until(call.connection));
            let waited = (call.sent, until.min(NEVER));
            let is_nil = reply(call).is_some_and(Value::is_null);
            if acquire.block.is_none() && !is_nil || acquire.block.is_some() && waited.1 - waited.0 <= late {
                continue;
            }
            let mut taken = disturbed.clone();
            taken.extend(held.iter().filter(|(one, _)| !std::ptr::eq(*one, waiter)).map(|(_, time)| *time));
            taken.extend(ahead(view, waiter, is_nil));
            let gap = longest_gap(waited, &merged(taken));
            let proof: &[&Call] = &[call];
            if acquire.block.is_none() && gap == waited {
                let text = format!("{} was refused it, and nobody held it or waited for it", waiter.owner);
                report.add(Rule::Free, view.lock.key, text, proof);
            } else if acquire.block.is_some() && gap.1 - gap.0 > late {
                let text = format!(
                    "{} waited for it while it was free, from {} to {} µs",
                    waiter.owner, gap.0, gap.1
                );
                report.add(Rule::Free, view.lock.key, text, proof);
            }
        }
    }
}

/// When others waited who may be before this one: calls for several locks wait for the others of them, too. A call that does
/// not wait is behind everybody.
fn ahead<'a>(
    view: &'a View<'_>,
    waiter: &'a Operation<'_>,
    all: bool,
) -> impl Iterator<Item = (Micros, Micros)> + 'a {
    let others = view.lock.operations.iter().filter(|one| !std::ptr::eq(*one, waiter));
    others.filter_map(move |one| {
        let acquire = one.acquire()?;
        let waits = acquire.block.is_some() || acquire.notify.is_some();
        if !waits || (!all && acquire.keys.len() == 1 && acquire.notify.is_none()) {
            return None;
        }
        let closed = one.calls.iter().map(|call| view.history.closed_by(call.connection)).max()?;
        let until = one.end.unwrap_or_else(|| closed.saturating_add(view.limits.late));
        Some((one.first_sent, until.min(one.void_after.unwrap_or(NEVER))))
    })
}
