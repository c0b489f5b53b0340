// SPDX-License-Identifier: MIT

//! First come, first served, and nobody is in a queue who waits for nothing.

use serde_json::Value;

use super::holds::View;
use super::operations::{field, reply};
use super::{Report, Rule};
use crate::record::{Acquire, Call, Command, Disturbance, Outcome};

/// Somebody was seen waiting before another one called, and after that one was granted the lock.
pub(super) fn check_order(view: &View<'_>, report: &mut Report) {
    // A call for several locks may be passed by somebody whom it waits for.
    let alone = |acquire: &Acquire| !acquire.shared && !acquire.several;
    let waiting = view.lock.operations.iter().filter(|one| one.acquire().is_some_and(alone));
    let calls = waiting.flat_map(|one| one.calls.iter().map(move |call| (one, *call)));
    for (first, call) in calls {
        let seen = || first.seen.iter().filter(|seen| seen.call == call.number);
        // A call that comes again has the place of an earlier one, unless the server had noticed the end of that one.
        let relieved = view.lock.acquires.iter().filter(|earlier| was_relieved(view, earlier, call));
        let before = relieved.flat_map(|earlier| view.history.seen(view.lock.key, first.owner, earlier));
        let since = seen().map(|seen| seen.answered).chain(before.map(|(_, answered)| answered)).min();
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

/// A call took the place of this one, which was still waiting and was told so.
fn was_relieved(view: &View<'_>, earlier: &Call, by: &Call) -> bool {
    let is_told =
        matches!(&earlier.outcome, Outcome::Error(error) if error.starts_with("UNBLOCKED the same request"));
    let is_open = earlier.answered.is_some_and(|at| at < view.history.open_until(earlier.connection));
    is_told
        && is_open
        && earlier.sent < by.sent
        && earlier.answered > Some(by.sent)
        && earlier.command == by.command
}

/// Nobody is seen in a queue whose call was answered before, or whose connection was closed long before.
pub(super) fn check_queued(view: &View<'_>, report: &mut Report) {
    for look in &view.lock.looks {
        let (Some(queue), Some(looked)) = (reply(look).and_then(Value::as_array), look.answered) else {
            continue;
        };
        for owner in queue.iter().filter_map(|entry| field(entry, "owner").and_then(Value::as_str)) {
            report.pairs += 1;
            let waits = |call: &&Call| {
                let Command::Acquire(acquire) = &call.command else { return false };
                let closed = || view.history.closed_by(call.connection).saturating_add(view.limits.late);
                let until = call.answered.filter(|_| acquire.notify.is_none()).unwrap_or_else(closed);
                acquire.owner == owner && call.sent <= looked && until >= look.sent
            };
            if !view.lock.acquires.iter().any(waits) {
                let text = format!("LOCK.WAITERS shows {owner}, who waits for nothing any more");
                report.add(Rule::Report, view.lock.key, text, &[look]);
            }
        }
    }
}
