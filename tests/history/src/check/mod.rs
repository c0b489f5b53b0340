// SPDX-License-Identifier: MIT

//! Decides whether a correct server could have given the replies in a history. The checker implements the commands' documentation
//! and shares no code with the module.
//!
//! The checker reports only replies that no correct server could have given. It reasons by intervals: a call takes effect at some
//! time between its sending and its reply. A call without a reply takes effect at any later time, or never. Only conclusions that
//! hold for every choice of those times are reported as violations.

mod deadlocks;
mod exclusion;
mod free;
mod holds;
mod operations;
mod queue;
mod replies;
mod sessions;
#[cfg(test)]
mod tests;
mod tokens;
mod writes;

use std::collections::BTreeMap;
use std::fmt;

use crate::record::{Call, Micros, Outcome, Record, MS};
use holds::View;
use operations::History;

/// Tolerances for a correct server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time by which a lease may seem to end early: the server counts whole milliseconds, and its clock may be corrected.
    pub slack: Micros,
    /// Maximum delay of a timeout, of a grant of a free lock, and of noticing a closed connection. It is the only assumption
    /// about the server's speed, and no rule about exclusion, counts or tokens uses it.
    pub late: Micros,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { slack: 5 * MS, late: 2_000 * MS }
    }
}

/// An observation that no correct server can have caused.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The broken rule.
    pub rule: Rule,
    /// The lock.
    pub key: String,
    /// Description of the violation.
    pub text: String,
    /// The calls that prove it.
    pub proof: Vec<String>,
}

/// The rules of the checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Two owners hold a lock that excludes one of them, or more owners than a limit allows.
    Exclusion,
    /// A hold ends before its lease or outlasts it, or a count is wrong.
    Count,
    /// A token is not greater than all earlier ones, or changes in a re-entry.
    Token,
    /// A repeated call gets a different reply.
    Retry,
    /// A cancelled request was granted.
    Cancel,
    /// A wait ended too early or too late.
    Time,
    /// An owner was granted the lock before another that had waited longer.
    Order,
    /// A call waited for a free lock, or was refused it.
    Free,
    /// A deadlock is not reported, or a reported deadlock does not exist.
    Deadlock,
    /// A guarded write ran that had to be refused, or was refused although it had to run.
    Guard,
    /// Reported holders or waiters are impossible.
    Report,
    /// A call got an error that a correct server never replies to it.
    Error,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?} on {}: {}", self.rule, self.key, self.text)?;
        self.proof.iter().try_for_each(|line| writeln!(f, "    {line}"))
    }
}

/// The result of a check, with statistics.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Empty if a correct server can have replied in this way.
    pub violations: Vec<Violation>,
    /// Number of calls in the history.
    pub calls: usize,
    /// Number of granted acquires, counted for each lock.
    pub grants: usize,
    /// Number of calls whose reply was lost.
    pub unknown: usize,
    /// Number of locks.
    pub locks: usize,
    /// Number of intervals with a certain hold.
    pub holds: usize,
    /// Number of comparisons of such an interval with a call or another interval.
    pub pairs: usize,
    /// Number of pairs of a wait and a later call that ran during the wait.
    pub orders: usize,
    /// Number of pairs of owners that both held a lock at some time although one excludes the other.
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
    /// Number of violations of a rule.
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
        // A new primary may lack releases, queue positions and counts.
        if !history.has_failover() {
            exclusion::check_reports(view, &mut report);
            replies::check_counts(view, &mut report);
            sessions::check_losses(view, &mut report);
            replies::check_cancels(view, &mut report);
            replies::check_pauses(view, &mut report);
            queue::check_order(view, &mut report);
            queue::check_queued(view, &mut report);
        }
    }
    if !history.has_failover() {
        free::check(&views, &mut report);
        deadlocks::check(&history, &views, limits, &mut report);
    }
    sessions::check(&history, limits, &mut report);
    replies::check_calls(&history, limits, &mut report);
    report
}

/// Formats a call as one line.
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
