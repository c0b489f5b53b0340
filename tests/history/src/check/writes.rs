// SPDX-License-Identifier: MIT

//! Guarded writes: `LOCK.GUARD … RPUSH`. Each tells by its reply at which place it stands in the list.

use std::collections::BTreeMap;

use serde_json::Value;

use super::holds::View;
use super::operations::{reply, Operation, NEVER};
use super::{Report, Rule};
use crate::record::{Call, Claim, Command, Disturbance, Micros, Outcome};

fn claim(call: &Call) -> Option<(&Claim, &str)> {
    match &call.command {
        Command::Guard { claim, entry, .. } => Some((claim, entry)),
        _ => None,
    }
}

pub(super) fn check(view: &View<'_>, report: &mut Report) {
    check_places(view, report);
    check_tokens(view, report);
    if let Some(log) = view.lock.logs.last() {
        check_log(view, log, report);
    }
}

/// Answered writes may be gone. Those that are there are right all the same.
fn may_be_lost(view: &View<'_>) -> bool {
    view.history.disturbed(Micros::MIN, NEVER, |what| {
        matches!(what, Disturbance::Restart { durable: false } | Disturbance::Failover)
    })
}

/// The places follow the order in which the calls were made, and the tokens do not become smaller.
fn check_places(view: &View<'_>, report: &mut Report) {
    if may_be_lost(view) {
        return;
    }
    let key = view.lock.key;
    let mut places: BTreeMap<i64, &Call> = BTreeMap::new();
    for call in &view.lock.guards {
        let Some(place) = reply(call).and_then(Value::as_i64) else { continue };
        if let Some(other) = places.insert(place, call) {
            report.add(Rule::Guard, key, format!("two writes have place {place}"), &[other, call]);
        }
    }
    let mut greatest: Option<(&Call, i64)> = None;
    let mut latest: Option<&Call> = None;
    for call in places.values().copied() {
        report.pairs += 1;
        if let Some(earlier) = latest.filter(|earlier| call.answered.is_some_and(|at| at < earlier.sent)) {
            let text = "a write stands behind one that was sent after its reply".to_owned();
            report.add(Rule::Guard, key, text, &[earlier, call]);
        }
        if latest.is_none_or(|earlier| earlier.sent < call.sent) {
            latest = Some(call);
        }
        if let Some((Claim::Token(token), _)) = claim(call) {
            if let Some((earlier, before)) = greatest.filter(|one| one.1 > *token) {
                let text = format!("{token} wrote after {before}");
                report.add(Rule::Guard, key, text, &[earlier, call]);
            }
            greatest = Some((call, *token));
        }
    }
}

/// Nobody writes with a token after a newer one was granted, and whoever has the newest may.
fn check_tokens(view: &View<'_>, report: &mut Report) {
    let key = view.lock.key;
    let fenced =
        || view.lock.operations.iter().filter(|one| one.acquire().is_some_and(|acquire| acquire.fence));
    for call in view.lock.guards.iter().chain(&view.lock.token_checks) {
        let (Command::Guard { claim: Claim::Token(token), .. }
        | Command::Check { claim: Claim::Token(token), .. }) = &call.command
        else {
            continue;
        };
        let newer = fenced().find(|one| {
            let is_newer = one.token.is_some_and(|other| other > *token);
            is_newer && view.is_kept(one) && one.end.is_some_and(|end| end < call.sent)
        });
        if let (Some(newer), Outcome::Reply(_)) = (newer, &call.outcome) {
            let text = format!("{token} passed although a newer one had been granted");
            report.add(Rule::Guard, key, text, &[newer.call(), call]);
        }
        let until = call.answered.unwrap_or(0);
        let may_be_newer = |one: &Operation<'_>| {
            one.sent < until && one.may_be_done() && one.token.is_none_or(|other| other > *token)
        };
        let may_be_taken_back = |one: &&Call| one.sent < until;
        let granted =
            fenced().any(|one| one.token == Some(*token) && one.end.is_some_and(|end| end < call.sent));
        let refused = matches!(&call.outcome, Outcome::Error(error) if error.starts_with("NOTOWNER"));
        let is_newest = !fenced().any(may_be_newer) && !view.lock.taken_back.iter().any(may_be_taken_back);
        if refused && granted && !may_be_lost(view) && is_newest {
            report.add(Rule::Guard, key, format!("{token} is the newest, and was refused"), &[call]);
        }
    }
}

/// What is in the list at the end is what was written, or may be lost. What is left of it is in the order of its tokens.
fn check_log(view: &View<'_>, log: &Call, report: &mut Report) {
    let Some(entries) = reply(log).and_then(Value::as_array) else { return };
    let key = view.lock.key;
    let may_be_lost = may_be_lost(view);
    let mut found: BTreeMap<&str, i64> = BTreeMap::new();
    for (place, entry) in (1..).zip(entries) {
        let entry = entry.as_str().unwrap_or_default();
        if found.insert(entry, place).is_some() {
            report.add(Rule::Guard, key, format!("{entry} was written twice"), &[log]);
        }
    }
    let mut fenced: BTreeMap<i64, (i64, &Call)> = BTreeMap::new();
    for call in &view.lock.guards {
        let Some((claim, entry)) = claim(call) else { continue };
        let place = found.remove(entry);
        if let (Claim::Token(token), Some(place)) = (claim, place) {
            fenced.insert(place, (*token, call));
        }
        let is_wrong = match &call.outcome {
            Outcome::Reply(_) if may_be_lost => false,
            Outcome::Reply(told) => place.is_none_or(|place| told.as_i64() != Some(place)),
            Outcome::Error(_) | Outcome::Unsent => place.is_some(),
            Outcome::Unknown => false,
        };
        if is_wrong && call.answered.is_none_or(|at| at < log.sent) {
            report.add(Rule::Guard, key, format!("in the end it is at place {place:?}"), &[call, log]);
        }
    }
    let in_order: Vec<&(i64, &Call)> = fenced.values().collect();
    for pair in in_order.windows(2) {
        report.pairs += 1;
        let [(before, earlier), (token, later)] = [pair[0], pair[1]];
        if before > token {
            let text = format!("in the end {token} stands behind {before}");
            report.add(Rule::Guard, key, text, &[earlier, later]);
        }
    }
    let unsent = |entry: &&str| entry.is_empty();
    if let Some(entry) = found.keys().find(|entry| !unsent(entry)) {
        report.add(Rule::Guard, key, format!("nobody wrote {entry}"), &[log]);
    }
}
