// SPDX-License-Identifier: MIT

//! Rule: fencing tokens grow.

use super::holds::View;
use super::operations::Operation;
use super::{Report, Rule};
use crate::record::Micros;

/// Tokens are below this.
const END: i64 = 1 << 53;

pub(super) fn check(view: &View<'_>, report: &mut Report) {
    let mut fenced: Vec<(&Operation<'_>, i64, i64)> = Vec::new();
    for operation in &view.lock.operations {
        if let (Some(token), Some(end)) = (operation.token, operation.end) {
            fenced.push((operation, token, end));
        }
    }
    let key = view.lock.key;
    let mut by_token = fenced.clone();
    by_token.sort_by_key(|one| one.1);
    for pair in by_token.windows(2) {
        if pair[0].1 == pair[1].1 && pair[0].0.owner != pair[1].0.owner {
            let text = format!("{} and {} have the same token", pair[0].0.owner, pair[1].0.owner);
            report.add(Rule::Token, key, text, &[pair[0].0.call(), pair[1].0.call()]);
        }
    }
    for (operation, token, _) in &fenced {
        if !(1..END).contains(token) {
            report.add(Rule::Token, key, format!("{token} is not a token"), &[operation.call()]);
        }
        check_reentry(view, &fenced, operation, *token, report);
    }
    // A first hold needs a token that is greater than all tokens in earlier replies.
    fenced.sort_by_key(|one| one.2);
    let mut greatest: Option<(&Operation<'_>, i64)> = None;
    let mut starts: Vec<_> = fenced.iter().filter(|one| begins(view, one.0)).collect();
    starts.sort_by_key(|one| granted_from(one.0));
    let mut ended = fenced.iter().peekable();
    for (operation, token, _) in starts {
        while let Some((earlier, before, _)) = ended.next_if(|one| one.2 < granted_from(operation)) {
            if greatest.is_none_or(|one| one.1 < *before) {
                greatest = Some((earlier, *before));
            }
        }
        if let Some((earlier, before)) = greatest {
            report.pairs += 1;
            if before >= *token {
                let text = format!("{token} was granted after {before}");
                report.add(Rule::Token, key, text, &[earlier.call(), operation.call()]);
            }
        }
    }
}

/// Whether the operation is its owner's first hold, or a reader's first exclusive hold.
fn begins(view: &View<'_>, operation: &Operation<'_>) -> bool {
    let writes =
        |one: &Operation<'_>| one.may_be_done() && one.acquire().is_some_and(|acquire| !acquire.shared);
    let is_before = |one: &Operation<'_>| {
        !std::ptr::eq(one, operation) && one.first_sent < operation.end.unwrap_or(Micros::MAX)
    };
    let is_first = || !view.of(operation.owner).iter().any(|one| writes(one) && is_before(one));
    operation.count() == Some(1) || writes(operation) && is_first()
}

/// Earliest time at which the token was drawn. With `QUEUE` that may be long before the event.
fn granted_from(operation: &Operation<'_>) -> Micros {
    match operation.acquire() {
        Some(acquire) if acquire.queue.is_some() => operation.first_sent,
        _ => operation.low(),
    }
}

/// Checks that an owner's token stays the same during an exclusive hold.
fn check_reentry(
    view: &View<'_>,
    fenced: &[(&Operation<'_>, i64, i64)],
    operation: &Operation<'_>,
    token: i64,
    report: &mut Report,
) {
    if view.mode(operation.owner) != super::holds::Mode::Exclusive {
        return;
    }
    let earlier = fenced.iter().filter(|one| one.0.owner == operation.owner && one.2 < operation.sent);
    let Some((last, before, _)) = earlier.max_by_key(|one| one.2) else { return };
    if !view.survives_failover(last) {
        return;
    }
    let last = view.of(operation.owner).iter().find(|one| std::ptr::eq(**one, *last));
    let until = last.map_or(0, |last| view.certain_until(last, None));
    if operation.end.is_some_and(|end| until >= end) && *before != token {
        let text = format!("{} still had the token {before} and got {token}", operation.owner);
        let proof: Vec<_> = last.iter().map(|one| one.call()).chain([operation.call()]).collect();
        report.add(Rule::Token, view.lock.key, text, &proof);
    }
}
