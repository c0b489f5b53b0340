// SPDX-License-Identifier: MIT

//! Rules: first come, first served, and no ended wait stays in a queue.

use serde_json::Value;

use super::holds::View;
use super::operations::{field, reply};
use super::{Report, Rule};
use crate::record::{Acquire, Call, Command, Disturbance, Outcome};

/// Checks that no call is granted before a call that was already seen waiting and still waits.
pub(super) fn check_order(view: &View<'_>, report: &mut Report) {
    // A call for several locks may be overtaken by an owner that it waits for.
    let is_single_exclusive = |acquire: &Acquire| !acquire.shared && !acquire.several;
    let waiting = view.lock.operations.iter().filter(|one| one.acquire().is_some_and(is_single_exclusive));
    let calls = waiting.flat_map(|one| one.calls.iter().map(move |call| (one, *call)));
    for (first, call) in calls {
        let seen = || first.seen.iter().filter(|seen| seen.call == call.number);
        // A retry has the position of the earlier call, unless the server had noticed that call's end.
        let taken_over = view.lock.acquires.iter().filter(|earlier| was_taken_over(view, earlier, call));
        let before = taken_over.flat_map(|earlier| view.history.seen(view.lock.key, first.owner, earlier));
        let since = seen().map(|seen| seen.answered).chain(before.map(|(_, answered)| answered)).min();
        let last = seen().map(|seen| seen.sent).max();
        let (Some(since), Some(last)) = (since, last) else { continue };
        // Each node has its own queue.
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
                    "{} waited from {since} to {last} µs, and {} overtook it",
                    first.owner, second.owner
                );
                report.add(Rule::Order, view.lock.key, text, &[call, second.call()]);
            }
        }
    }
}

/// Whether `by` took over the queue position of `earlier`, which then got the error for a repeated call.
fn was_taken_over(view: &View<'_>, earlier: &Call, by: &Call) -> bool {
    let was_replaced =
        matches!(&earlier.outcome, Outcome::Error(error) if error.starts_with("UNBLOCKED the same request"));
    let is_open = earlier.answered.is_some_and(|at| at < view.history.open_until(earlier.connection));
    was_replaced
        && is_open
        && earlier.sent < by.sent
        && earlier.answered > Some(by.sent)
        && earlier.command == by.command
}

/// Checks that no queue contains a call that already has its reply, or whose connection was closed long before.
pub(super) fn check_queued(view: &View<'_>, report: &mut Report) {
    for look in &view.lock.observations {
        let (Some(queue), Some(observed)) = (reply(look).and_then(Value::as_array), look.answered) else {
            continue;
        };
        for owner in queue.iter().filter_map(|entry| field(entry, "owner").and_then(Value::as_str)) {
            report.pairs += 1;
            let waits = |call: &&Call| {
                let Command::Acquire(acquire) = &call.command else { return false };
                let closed = || view.history.closed_by(call.connection).saturating_add(view.limits.late);
                let until = match &acquire.session {
                    Some(number) => {
                        let sessions = &view.history.sessions;
                        let over = sessions.over(number).or(sessions.granted(number).map(|event| event.at));
                        over.unwrap_or_else(|| sessions.exists_until(&number.id, view.limits.late))
                    }
                    None => call.answered.unwrap_or_else(closed),
                };
                acquire.owner == owner && call.sent <= observed && until >= look.sent
            };
            if !view.lock.acquires.iter().any(waits) {
                let text = format!("LOCK.WAITERS shows {owner}, which no longer waits");
                report.add(Rule::Report, view.lock.key, text, &[look]);
            }
        }
    }
}
