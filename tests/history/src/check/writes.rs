// SPDX-License-Identifier: MIT

//! Rules for guarded writes (`LOCK.GUARD … RPUSH`). Each reply gives the write's position in the list.

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
    check_positions(view, report);
    check_tokens(view, report);
    if let Some(log) = view.lock.logs.last() {
        check_log(view, log, report);
    }
}

/// Whether acknowledged writes may be lost. The remaining ones must still be right.
fn may_be_lost(view: &View<'_>) -> bool {
    view.history.disturbed(Micros::MIN, NEVER, |what| {
        matches!(what, Disturbance::Restart { durable: false } | Disturbance::Failover)
    })
}

/// Checks that positions follow the order of the calls, and that tokens never decrease.
fn check_positions(view: &View<'_>, report: &mut Report) {
    if may_be_lost(view) {
        return;
    }
    let key = view.lock.key;
    let mut positions: BTreeMap<i64, &Call> = BTreeMap::new();
    for call in &view.lock.guards {
        let Some(position) = reply(call).and_then(Value::as_i64) else { continue };
        if let Some(other) = positions.insert(position, call) {
            report.add(Rule::Guard, key, format!("two writes have position {position}"), &[other, call]);
        }
    }
    let mut greatest: Option<(&Call, i64)> = None;
    let mut latest: Option<&Call> = None;
    for call in positions.values().copied() {
        report.pairs += 1;
        if let Some(earlier) = latest.filter(|earlier| call.answered.is_some_and(|at| at < earlier.sent)) {
            let text = "a write is behind one that was sent after its reply".to_owned();
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

/// Checks that no token passes after a newer grant, and that the newest token passes.
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
            is_newer && view.survives_failover(one) && one.end.is_some_and(|end| end < call.sent)
        });
        if let (Some(newer), Outcome::Reply(_)) = (newer, &call.outcome) {
            let text = format!("{token} passed although a newer one had been granted");
            report.add(Rule::Guard, key, text, &[newer.call(), call]);
        }
        let until = call.answered.unwrap_or(0);
        let may_be_newer = |one: &Operation<'_>| {
            one.sent < until && one.may_be_done() && one.token.is_none_or(|other| other > *token)
        };
        let may_be_revoked = |one: &&Call| one.sent < until;
        let granted =
            fenced().any(|one| one.token == Some(*token) && one.end.is_some_and(|end| end < call.sent));
        let refused = matches!(&call.outcome, Outcome::Error(error) if error.starts_with("NOTOWNER"));
        let is_newest = !fenced().any(may_be_newer) && !view.lock.maybe_revoked.iter().any(may_be_revoked);
        if refused && granted && !may_be_lost(view) && is_newest {
            report.add(Rule::Guard, key, format!("{token} is the newest and was refused"), &[call]);
        }
    }
}

/// Checks the list at the end: every entry was written, every write is there or may be lost, and tokens are in order.
fn check_log(view: &View<'_>, log: &Call, report: &mut Report) {
    let Some(entries) = reply(log).and_then(Value::as_array) else { return };
    let key = view.lock.key;
    let may_be_lost = may_be_lost(view);
    let mut found: BTreeMap<&str, i64> = BTreeMap::new();
    for (position, entry) in (1..).zip(entries) {
        let entry = entry.as_str().unwrap_or_default();
        if found.insert(entry, position).is_some() {
            report.add(Rule::Guard, key, format!("{entry} was written twice"), &[log]);
        }
    }
    let mut fenced: BTreeMap<i64, (i64, &Call)> = BTreeMap::new();
    for call in &view.lock.guards {
        let Some((claim, entry)) = claim(call) else { continue };
        let position = found.remove(entry);
        if let (Claim::Token(token), Some(position)) = (claim, position) {
            fenced.insert(position, (*token, call));
        }
        let is_wrong = match &call.outcome {
            Outcome::Reply(_) if may_be_lost => false,
            Outcome::Reply(reply) => position.is_none_or(|position| reply.as_i64() != Some(position)),
            Outcome::Error(_) | Outcome::Unsent => position.is_some(),
            Outcome::Unknown => false,
        };
        if is_wrong && call.answered.is_none_or(|at| at < log.sent) {
            report.add(Rule::Guard, key, format!("at the end it is at position {position:?}"), &[call, log]);
        }
    }
    let in_order: Vec<&(i64, &Call)> = fenced.values().collect();
    for pair in in_order.windows(2) {
        report.pairs += 1;
        let [(before, earlier), (token, later)] = [pair[0], pair[1]];
        if before > token {
            let text = format!("at the end {token} is behind {before}");
            report.add(Rule::Guard, key, text, &[earlier, later]);
        }
    }
    let unsent = |entry: &&str| entry.is_empty();
    if let Some(entry) = found.keys().find(|entry| !unsent(entry)) {
        report.add(Rule::Guard, key, format!("no call wrote {entry}"), &[log]);
    }
}
