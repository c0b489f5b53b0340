// SPDX-License-Identifier: MIT

//! Decides whether a right server can have answered as a history says. It knows the commands by their documentation, and
//! shares no code with the module.
//!
//! It reports only what no right server can have done. So it goes by intervals: a call takes effect at some time between its
//! sending and its reply, and one whose reply was lost at any time from its sending on, or never. What follows for every
//! choice of those times is certain, and only that is held against the server.

mod deadlocks;
mod exclusion;
mod free;
mod holds;
mod operations;
mod queue;
mod replies;
#[cfg(test)]
mod tests;
mod tokens;
mod writes;

use std::collections::BTreeMap;
use std::fmt;

use crate::record::{Call, Micros, Outcome, Record, MS};
use holds::View;
use operations::History;

/// What a right server is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// By how much a lease may seem to end early: the server counts whole milliseconds, and its clock may be corrected.
    pub slack: Micros,
    /// How late a wait may be answered, a free lock be granted, and the end of a connection be noticed. It is the one
    /// assumption about how fast the server is, and no rule about exclusion, counts or tokens uses it.
    pub late: Micros,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { slack: 5 * MS, late: 2_000 * MS }
    }
}

/// Something that no right server can have done.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which rule it breaks.
    pub rule: Rule,
    /// The lock.
    pub key: String,
    /// What is wrong.
    pub text: String,
    /// The calls that prove it.
    pub proof: Vec<String>,
}

/// What is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Two owners hold a lock that excludes each other, or more than a limit allows.
    Exclusion,
    /// A hold is over before its lease, or is still there after its end; or a count is wrong.
    Count,
    /// A token is not greater than those before, or changes in a re-entry.
    Token,
    /// A repeated call is answered differently.
    Retry,
    /// What was cancelled was granted.
    Cancel,
    /// A wait ended too early or too late.
    Time,
    /// Somebody was granted the lock before one who had waited longer.
    Order,
    /// Somebody waited for a free lock, or was refused it.
    Free,
    /// Owners wait for each other and nobody is told, or somebody is told of it where they do not.
    Deadlock,
    /// A guarded write was carried out that had to be refused, or the other way round.
    Guard,
    /// What the server tells of holders and waiters cannot be so.
    Report,
    /// An error that the call cannot get.
    Error,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?} on {}: {}", self.rule, self.key, self.text)?;
        self.proof.iter().try_for_each(|line| writeln!(f, "    {line}"))
    }
}

/// What the checker found, and how much it looked at.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Empty if a right server can have answered so.
    pub violations: Vec<Violation>,
    /// Calls in the history.
    pub calls: usize,
    /// Acquires that were granted, one for each lock.
    pub grants: usize,
    /// Calls whose reply was lost.
    pub unknown: usize,
    /// Locks.
    pub locks: usize,
    /// Intervals in which a hold is certain.
    pub holds: usize,
    /// Pairs of such an interval and a call or another interval that were compared.
    pub pairs: usize,
    /// Waits of which it is known that somebody who came later was there.
    pub orders: usize,
    /// Pairs of owners on a lock who both held it at some time, where one excludes the other.
    pub doubled: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { violations, calls, grants, unknown, locks, holds, pairs, orders, doubled } = self;
        violations.iter().try_for_each(|violation| write!(f, "{violation}"))?;
        write!(
            f,
            "{calls} calls on {locks} locks, {grants} grants, {unknown} outcomes unknown; {holds} certain holds, {pairs} pairs \
             compared, {orders} places in queues; {doubled} owners beside another; {} violations",
            violations.len()
        )
    }
}

impl Report {
    /// How often a rule is broken.
    pub fn count(&self, rule: Rule) -> usize {
        self.violations.iter().filter(|violation| violation.rule == rule).count()
    }

    fn add(&mut self, rule: Rule, key: &str, text: String, proof: &[&Call]) {
        let proof = proof.iter().map(|call| show(call)).collect();
        self.violations.push(Violation { rule, key: key.to_owned(), text, proof });
    }
}

/// Checks a history.
pub fn check(records: &[Record], limits: &Limits) -> Report {
    let history = History::new(records);
    let mut report = Report { calls: history.calls.len(), locks: history.locks.len(), ..Report::default() };
    report.unknown = history.calls.iter().filter(|call| call.outcome == Outcome::Unknown).count();
    let locks = history.locks.iter();
    let views: BTreeMap<&str, View<'_>> =
        locks.map(|(key, lock)| (*key, View::new(&history, lock, limits))).collect();
    for view in views.values() {
        report.grants += view.grants();
        exclusion::check(view, &mut report);
        tokens::check(view, &mut report);
        writes::check(view, &mut report);
        // Where another server has become the primary, what it had not heard of is gone: releases, places, counts.
        if !history.fails_over() {
            exclusion::check_reports(view, &mut report);
            replies::check_counts(view, &mut report);
            replies::check_cancels(view, &mut report);
            replies::check_pauses(view, &mut report);
            queue::check_order(view, &mut report);
            queue::check_queued(view, &mut report);
        }
    }
    if !history.fails_over() {
        free::check(&views, &mut report);
        deadlocks::check(&history, &views, limits, &mut report);
    }
    replies::check_calls(&history, limits, &mut report);
    report
}

/// A call as one line.
#[allow(clippy::cast_precision_loss)]
fn show(call: &Call) -> String {
    let ms = |at: Micros| at as f64 / 1e3;
    let end = call.answered.map_or("?".to_owned(), |at| format!("{:.3}", ms(at)));
    let outcome = match &call.outcome {
        Outcome::Reply(reply) => reply.to_string(),
        Outcome::Error(error) => error.clone(),
        Outcome::Unknown => "no reply".to_owned(),
        Outcome::Unsent => "not sent as a whole".to_owned(),
    };
    let words = call.command.words().join(" ");
    format!(
        "#{} client {} connection {}, {:.3} to {end} ms: {words} -> {outcome}",
        call.number,
        call.client,
        call.connection,
        ms(call.sent)
    )
}
