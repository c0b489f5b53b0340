// SPDX-License-Identifier: MIT

//! Rule: a lock has one exclusive holder at a time, and no more holders than a limit allows.

use std::collections::BTreeSet;

use serde_json::Value;

use super::holds::{Hold, Mode, View};
use super::operations::{field, reply, Done, Kind, Operation};
use super::{Report, Rule};
use crate::record::{Disturbance, Micros};

fn conflict(one: Mode, other: Mode) -> bool {
    one == Mode::Exclusive || other == Mode::Exclusive
}

pub(super) fn check(view: &View<'_>, report: &mut Report) {
    let holds = view.holds();
    report.holds += holds.len();
    let mut doubled = BTreeSet::new();
    for (number, hold) in holds.iter().enumerate() {
        for later in holds[number + 1..].iter().take_while(|later| later.from < hold.until) {
            report.pairs += 1;
            if later.owner != hold.owner && conflict(hold.mode, later.mode) {
                doubled.insert((hold.owner, later.owner));
                let text = format!(
                    "{} and {} both hold the lock from {} to {} µs and exclude each other",
                    hold.owner,
                    later.owner,
                    later.from,
                    hold.until.min(later.until)
                );
                report.add(Rule::Exclusion, view.lock.key, text, &[hold.proof.call(), later.proof.call()]);
            }
        }
    }
    for operation in &view.lock.operations {
        let excluding =
            check_operation(view, &holds, operation, report).filter(|_| operation.acquire().is_some());
        doubled.extend(excluding.map(|hold| (hold.owner, operation.owner)));
    }
    report.doubled += doubled.len();
}

/// Holds of other owners that certainly existed during the whole interval in which a call may have taken effect.
fn around<'a, 'b>(
    holds: &'b [Hold<'a>],
    owner: &'b str,
    from: Micros,
    until: Micros,
) -> impl Iterator<Item = &'b Hold<'a>> {
    holds
        .iter()
        .take_while(move |hold| hold.from <= from)
        .filter(move |hold| hold.owner != owner && hold.until >= until)
}

/// Checks that a call of a holder did not succeed while the hold of another owner certainly excluded it. Returns that hold.
fn check_operation<'a, 'b>(
    view: &View<'a>,
    holds: &'b [Hold<'a>],
    operation: &'b Operation<'a>,
    report: &mut Report,
) -> Option<&'b Hold<'a>> {
    let end = operation.end?;
    let mode = match (operation.kind, operation.done) {
        (Kind::Acquire(acquire), Done::Count(_)) if !acquire.shared => Mode::Exclusive,
        (Kind::Acquire(_), Done::Count(_)) => Mode::Shared,
        (Kind::Release(_) | Kind::Renew(_) | Kind::Check | Kind::Guard, Done::Count(_)) => {
            view.mode(operation.owner)
        }
        _ => return None,
    };
    let others: Vec<_> = around(holds, operation.owner, operation.low(), end).collect();
    report.pairs += others.len();
    let excluded = others.iter().copied().find(|hold| conflict(mode, hold.mode));
    if let Some(hold) = excluded {
        let text =
            format!("{} succeeded although {} holds the lock all the time", operation.owner, hold.owner);
        report.add(Rule::Exclusion, view.lock.key, text, &[hold.proof.call(), operation.call()]);
    }
    let limit = operation.acquire().and_then(|acquire| acquire.limit);
    if let (Some(limit), Done::Count(1)) = (limit, operation.done) {
        let owners: BTreeSet<&str> = others.iter().map(|hold| hold.owner).collect();
        if i64::try_from(owners.len()).is_ok_and(|count| count >= limit) {
            let text = format!("{} was admitted with LIMIT {limit} beside {owners:?}", operation.owner);
            let mut proof: Vec<_> = others.iter().map(|hold| hold.proof.call()).collect();
            proof.push(operation.call());
            report.add(Rule::Exclusion, view.lock.key, text, &proof);
        }
    }
    excluded
}

/// Checks that `LOCK.INFO` shows every certain holder, and no owner that never acquired the lock.
pub(super) fn check_reports(view: &View<'_>, report: &mut Report) {
    let holds = view.holds();
    for info in &view.lock.infos {
        let (Some(map), Some(answered)) = (reply(info), info.answered) else { continue };
        let listed: Vec<&Value> = field(map, "holders")
            .and_then(Value::as_array)
            .map(|list| list.iter().collect())
            .unwrap_or_default();
        let owners: BTreeSet<&str> =
            listed.iter().filter_map(|one| field(one, "owner").and_then(Value::as_str)).collect();
        // When a slot moves as a whole, the old node may show its state after the new node has taken over.
        let is_old = view.history.disturbed(info.sent, answered, |what| *what == Disturbance::Move);
        for hold in around(&holds, "", info.sent, answered) {
            report.pairs += 1;
            if !is_old && !owners.contains(hold.owner) {
                let text = format!("{} holds the lock, but LOCK.INFO does not show it", hold.owner);
                report.add(Rule::Report, view.lock.key, text, &[hold.proof.call(), info]);
            }
        }
        let asked = |owner: &str| {
            // An undelivered grant is revoked in the event loop iteration after its client gets an error.
            let is_revoked = |one: &Operation<'_>| {
                matches!(one.done, Done::Refused(error) if error.starts_with("UNBLOCKED"))
                    && one.end.is_some_and(|end| info.sent < end + view.limits.late)
            };
            let acquires = view.of(owner).iter().filter(|one| one.acquire().is_some());
            acquires.filter(|one| one.may_be_done() || is_revoked(one)).any(|one| one.first_sent < answered)
        };
        if let Some(unknown) = owners.iter().find(|owner| !asked(owner)) {
            let text = format!("LOCK.INFO shows {unknown}, which was never granted the lock");
            report.add(Rule::Report, view.lock.key, text, &[info]);
        }
        let mode = |one: &&Value| field(one, "mode").and_then(Value::as_str) == Some("exclusive");
        if owners.len() > 1 && listed.iter().any(mode) {
            let text = "LOCK.INFO shows an exclusive holder beside another".to_owned();
            report.add(Rule::Exclusion, view.lock.key, text, &[info]);
        }
    }
}
