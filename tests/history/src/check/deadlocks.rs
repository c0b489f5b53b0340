// SPDX-License-Identifier: MIT

//! Who waits in a circle is told, and nobody else is.

use std::collections::{BTreeMap, BTreeSet};

use super::free::possible_wait;
use super::holds::{Mode, View};
use super::operations::{Done, History, Operation, NEVER};
use super::{Limits, Report, Rule};
use crate::record::{Call, Disturbance, Micros};

/// Longer circles are not looked for.
const LONGEST: usize = 4;

/// An owner certainly waits for another one in this time.
struct Edge<'a> {
    to: &'a str,
    from: Micros,
    until: Micros,
    call: &'a Call,
}

type Graph<'a> = BTreeMap<&'a str, Vec<Edge<'a>>>;

pub(super) fn check(
    history: &History<'_>,
    views: &BTreeMap<&str, View<'_>>,
    limits: &Limits,
    report: &mut Report,
) {
    // Each node knows its own waits only.
    if history.moves() {
        return;
    }
    check_missed(history, views, limits.late, report);
    for view in views.values() {
        for operation in &view.lock.operations {
            if matches!(operation.done, Done::Refused(error) if error.starts_with("DEADLOCK")) {
                check_told(views, view, operation, report);
            }
        }
    }
}

/// Nobody waits in a circle for longer than the server may be late.
fn check_missed(history: &History<'_>, views: &BTreeMap<&str, View<'_>>, late: Micros, report: &mut Report) {
    let mut graph = Graph::new();
    for view in views.values() {
        add_certain(view, &mut graph);
    }
    for start in graph.keys() {
        let mut path = Vec::new();
        if let Some((from, until)) = circle(&graph, start, start, (0, NEVER), late, &mut path) {
            if history.disturbed(from, until, |_| true) {
                continue;
            }
            let owners: Vec<&str> = path.iter().map(|edge| edge.to).collect();
            // Each of them is a start.
            if owners.iter().any(|owner| owner < start) {
                continue;
            }
            let text =
                format!("{owners:?} wait for each other from {from} to {until} µs, and nobody is told");
            let calls: Vec<&Call> = path.iter().map(|edge| edge.call).collect();
            report.add(Rule::Deadlock, "locks", text, &calls);
        }
    }
}

fn add_certain<'a>(view: &View<'a>, graph: &mut Graph<'a>) {
    let late = view.limits.late;
    let holds = view.holds();
    for waiter in &view.lock.operations {
        let Some(acquire) = waiter.acquire() else { continue };
        let is_plain = acquire.keys.len() == 1 && acquire.limit.is_none() && !acquire.once;
        let (true, Some(_), [call]) = (is_plain, acquire.block, &waiter.calls[..]) else { continue };
        let until = call.answered.unwrap_or_else(|| view.history.open_until(call.connection));
        if until - call.sent <= late {
            continue;
        }
        for hold in holds.iter().filter(|hold| hold.owner != waiter.owner) {
            let (from, until) = (call.sent.max(hold.from), until.min(hold.until));
            let excludes = !acquire.shared || hold.mode == Mode::Exclusive;
            if excludes && until - from > late {
                graph.entry(waiter.owner).or_default().push(Edge { to: hold.owner, from, until, call });
            }
        }
    }
}

/// A way back to where it began, all of it at one time, which is returned.
fn circle<'g, 'a>(
    graph: &'g Graph<'a>,
    start: &str,
    at: &str,
    within: (Micros, Micros),
    late: Micros,
    path: &mut Vec<&'g Edge<'a>>,
) -> Option<(Micros, Micros)> {
    for edge in graph.get(at).into_iter().flatten() {
        let time = (within.0.max(edge.from), within.1.min(edge.until));
        if time.1 - time.0 <= late || path.len() >= LONGEST {
            continue;
        }
        path.push(edge);
        let found =
            if edge.to == start { Some(time) } else { circle(graph, start, edge.to, time, late, path) };
        if found.is_some() {
            return found;
        }
        path.pop();
    }
    None
}

/// Who is told of a deadlock possibly waits for itself.
fn check_told(views: &BTreeMap<&str, View<'_>>, view: &View<'_>, told: &Operation<'_>, report: &mut Report) {
    let within = (told.first_sent, told.end.unwrap_or(NEVER));
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut next = vec![told.owner];
    while let Some(owner) = next.pop() {
        for view in views.values() {
            let own = || view.of(owner).iter().filter(|one| is_in(view, one, within));
            let reads = own()
                .all(|one| one.acquire().is_some_and(|acquire| acquire.shared && acquire.limit.is_none()));
            if own().next().is_none() {
                continue;
            }
            // Who holds a lock goes before those who only wait for it.
            let once = own().any(|one| one.acquire().is_some_and(|acquire| acquire.once));
            let is_first = !once && view.holds_all_the_time(owner, within);
            for other in view.lock.operations.iter().filter(|other| other.owner != owner) {
                // Who is in line behind a call for several locks is let pass.
                let is_alone = other.acquire().is_some_and(|acquire| acquire.keys.len() == 1);
                let holds = view.possible_hold(other).is_some_and(|held| meets(held, within));
                let excludes = holds && (!reads || view.may_be_exclusive(other));
                if excludes || is_alone && !is_first && is_in(view, other, within) {
                    if other.owner == told.owner {
                        return;
                    }
                    if seen.insert(other.owner) {
                        next.push(other.owner);
                    }
                }
            }
        }
    }
    if view
        .history
        .disturbed(within.0, within.1, |what| !matches!(what, Disturbance::Pause | Disturbance::Paused))
    {
        return;
    }
    let text = format!("{} was told of a deadlock, and waited for nobody who waited for it", told.owner);
    report.add(Rule::Deadlock, view.lock.key, text, &[told.call()]);
}

fn meets(one: (Micros, Micros), other: (Micros, Micros)) -> bool {
    one.0 <= other.1 && one.1 >= other.0
}

/// An operation may have been in the queue at this time.
fn is_in(view: &View<'_>, one: &Operation<'_>, within: (Micros, Micros)) -> bool {
    possible_wait(view, one).is_some_and(|wait| meets(wait, within))
}
