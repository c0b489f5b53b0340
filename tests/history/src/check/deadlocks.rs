// SPDX-License-Identifier: MIT

//! Rule: every deadlock is reported, and nothing else is reported as a deadlock.

use std::collections::{BTreeMap, BTreeSet};

use super::free::possible_wait;
use super::holds::{Mode, View};
use super::operations::{Done, History, Operation, NEVER};
use super::{Limits, Report, Rule};
use crate::record::{Call, Disturbance, Micros};

/// Maximum length of cycles to search.
const LONGEST: usize = 4;

/// An interval in which an owner certainly waits for another.
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
    // Each node knows only its own waits.
    if history.has_moves() {
        return;
    }
    check_missed(history, views, limits.late, report);
    for view in views.values() {
        for operation in &view.lock.operations {
            if matches!(operation.done, Done::Refused(error) if error.starts_with("DEADLOCK")) {
                check_reported(views, view, operation, report);
            }
        }
    }
}

/// Checks that no cycle of waits outlasts the server's permitted delay.
fn check_missed(history: &History<'_>, views: &BTreeMap<&str, View<'_>>, late: Micros, report: &mut Report) {
    let mut graph = Graph::new();
    for view in views.values() {
        add_certain(view, &mut graph);
    }
    for start in graph.keys() {
        let mut path = Vec::new();
        if let Some((from, until)) = find_cycle(&graph, start, start, (0, NEVER), late, &mut path) {
            if history.disturbed(from, until, |_| true) {
                continue;
            }
            let owners: Vec<&str> = path.iter().map(|edge| edge.to).collect();
            // A cycle is found from each of its owners; report it once.
            if owners.iter().any(|owner| owner < start) {
                continue;
            }
            let text = format!("{owners:?} wait for each other from {from} to {until} µs without an error");
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

/// Searches a path back to `start` whose waits overlap, and returns their common interval.
fn find_cycle<'g, 'a>(
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
            if edge.to == start { Some(time) } else { find_cycle(graph, start, edge.to, time, late, path) };
        if found.is_some() {
            return found;
        }
        path.pop();
    }
    None
}

/// Checks that an owner that gets a deadlock error may have been in a cycle.
fn check_reported(
    views: &BTreeMap<&str, View<'_>>,
    view: &View<'_>,
    reported: &Operation<'_>,
    report: &mut Report,
) {
    let within = (reported.first_sent, reported.end.unwrap_or(NEVER));
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut next = vec![reported.owner];
    while let Some(owner) = next.pop() {
        for view in views.values() {
            let own = || view.of(owner).iter().filter(|one| may_be_queued(view, one, within));
            let reads = own()
                .all(|one| one.acquire().is_some_and(|acquire| acquire.shared && acquire.limit.is_none()));
            if own().next().is_none() {
                continue;
            }
            // A holder comes before owners that only wait.
            let once = own().any(|one| one.acquire().is_some_and(|acquire| acquire.once));
            let is_first = !once && view.holds_all_the_time(owner, within);
            for other in view.lock.operations.iter().filter(|other| other.owner != owner) {
                // An owner may overtake a call for several locks that is ahead of it.
                let is_alone = other.acquire().is_some_and(|acquire| acquire.keys.len() == 1);
                let holds = view.possible_hold(other).is_some_and(|held| overlaps(held, within));
                let excludes = holds && (!reads || view.may_be_exclusive(other));
                if excludes || is_alone && !is_first && may_be_queued(view, other, within) {
                    if other.owner == reported.owner {
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
    let text = format!("{} got a deadlock error, but waited for no owner that waited for it", reported.owner);
    report.add(Rule::Deadlock, view.lock.key, text, &[reported.call()]);
}

fn overlaps(one: (Micros, Micros), other: (Micros, Micros)) -> bool {
    one.0 <= other.1 && one.1 >= other.0
}

/// Whether an operation may have been in the queue during this interval.
fn may_be_queued(view: &View<'_>, one: &Operation<'_>, within: (Micros, Micros)) -> bool {
    possible_wait(view, one).is_some_and(|wait| overlaps(wait, within))
}
