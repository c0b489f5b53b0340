// SPDX-License-Identifier: MIT

//! Rules for single replies: counts, waiting times, retries and errors.

use std::collections::HashMap;

use serde_json::Value;

use super::holds::{Mode, View};
use super::operations::{millis, reply, waits_for_replicas, Done, History, Kind};
use super::{Limits, Report, Rule};
use crate::record::{Acquire, Call, Command, Disturbance, Fault, Micros, Outcome, MS};

/// Checks that every count fits the calls of its owner.
pub(super) fn check_counts(view: &View<'_>, report: &mut Report) {
    for operation in &view.lock.operations {
        if operation.end.is_none() {
            continue;
        }
        let bounds = view.bounds(operation);
        let (least, most) = (bounds.least, bounds.most);
        let mut proof: Vec<&Call> = bounds.proof.iter().map(|one| one.call()).collect();
        proof.push(operation.call());
        let mut wrong = |text: String| report.add(Rule::Count, view.lock.key, text, &proof);
        let owner = operation.owner;
        match (operation.kind, operation.done) {
            (Kind::Acquire(acquire), Done::Count(count)) => {
                if !(least + 1..=most + 1).contains(&count) {
                    wrong(format!(
                        "{owner} had {least} to {most} holds before an acquire and {count} after it"
                    ));
                }
                if acquire.once && !acquire.shared && count != 1 {
                    wrong(format!("{owner} was granted the lock with ONCE despite another hold"));
                }
            }
            (Kind::Acquire(acquire), Done::Nil)
                if least > 0
                    && operation.is_alone()
                    && !acquire.once
                    && view.mode(owner) == Mode::Exclusive =>
            {
                wrong(format!("{owner} holds the lock and was refused a re-entry"));
            }
            (Kind::Release(release), Done::Count(left)) => {
                let before = if release.all { most.max(1) } else { left + 1 };
                if !(least..=most).contains(&before) || left < 0 || (release.all && left != 0) {
                    wrong(format!(
                        "{owner} had {least} to {most} holds before a release and {left} after it"
                    ));
                }
            }
            (Kind::Renew(_) | Kind::Check, Done::Count(count)) if !(least.max(1)..=most).contains(&count) => {
                wrong(format!("{owner} had {least} to {most} holds, not {count}"));
            }
            (Kind::Guard, Done::Count(_)) if most < 1 => wrong(format!("{owner} held nothing and wrote")),
            (Kind::Release(_) | Kind::Renew(_) | Kind::Check | Kind::Guard, Done::Refused(error))
                if least > 0 && operation.is_alone() && error.starts_with("NOTOWNER") =>
            {
                wrong(format!("{owner} lost at least {least} holds too early"));
            }
            _ => {}
        }
    }
    for one in &view.lock.breaks {
        let Some(answered) = one.call.answered else { continue };
        let holds = view.holds();
        let held = holds.iter().find(|hold| hold.from <= one.call.sent && hold.until >= answered);
        if let (Some(0), Some(hold)) = (one.count, held) {
            let text = format!("LOCK.BREAK found no holder although {} holds the lock", hold.owner);
            report.add(Rule::Count, view.lock.key, text, &[hold.proof.call(), one.call]);
        }
    }
}

/// Checks that nothing is granted while writes are paused.
pub(super) fn check_pauses(view: &View<'_>, report: &mut Report) {
    let is_pause = |fault: &&&Fault| fault.what == Disturbance::Paused;
    for pause in view.history.faults.iter().filter(is_pause) {
        for one in &view.lock.operations {
            let (Some(_), Some(_), Some(end)) = (one.acquire(), one.count(), one.end) else { continue };
            report.pairs += 1;
            if one.low() >= pause.from && end <= pause.until {
                let text = format!(
                    "{} was granted the lock in a pause from {} to {} µs",
                    one.owner, pause.from, pause.until
                );
                report.add(Rule::Time, view.lock.key, text, &[one.call()]);
            }
        }
    }
}

/// Checks that a cancel ends only the hold of its request. This is documented for bound holds only, whose end the server
/// tracks.
pub(super) fn check_cancels(view: &View<'_>, report: &mut Report) {
    let cancels = view.lock.operations.iter().filter(|one| matches!(one.kind, Kind::Cancel));
    for cancel in cancels.filter(|one| one.done == Done::Count(1)) {
        let Command::Cancel { id, session: None, .. } = &cancel.call().command else { continue };
        let is_meant = |acquire: &Acquire| acquire.id.as_ref() == Some(id);
        let mut granted = view.of(cancel.owner).iter().filter(|one| one.acquire().is_some_and(is_meant));
        let (Some(only), None) = (granted.next(), granted.next()) else { continue };
        let is_bound = only.is_watched() || only.is_ephemeral();
        let Some(end) = only.end.filter(|_| is_bound && only.count().is_some()) else { continue };
        if cancel.first_sent - only.sent >= millis(view.history.run.request_ttl) {
            continue;
        }
        let freed = view.of(cancel.owner).iter().find(|one| {
            let is_last = matches!((one.kind, one.done), (Kind::Release(_), Done::Count(0)));
            is_last && one.sent > end && one.end.is_some_and(|end| end < cancel.first_sent)
        });
        if let Some(freed) = freed {
            let text = format!("{} had released the cancelled hold, and another was undone", cancel.owner);
            report.add(Rule::Cancel, view.lock.key, text, &[only.call(), freed.call(), cancel.call()]);
        }
    }
}

/// Checks each call on its own or together with the calls of its request.
pub(super) fn check_calls(history: &History<'_>, limits: &Limits, report: &mut Report) {
    let mut requests: HashMap<String, Vec<&Call>> = HashMap::new();
    let mut cancels: HashMap<(&str, &str, String), &Call> = HashMap::new();
    for call in &history.calls {
        let request = call.command.request();
        if let (Command::Cancel { key, owner, .. }, Some(id)) = (&call.command, &request) {
            // Keeps the first one that was sent; later ones repeat it.
            cancels.entry((key, owner, id.clone())).or_insert(call);
        }
        if request.is_some() {
            requests.entry(call.command.words().join(" ")).or_default().push(call);
        }
    }
    for (words, calls) in &requests {
        let key = key_of(&calls[0].command);
        // A new primary may lack request records.
        if history.has_failover() {
            continue;
        }
        check_repetitions(history, key, words, calls, report);
    }
    for call in &history.calls {
        let key = key_of(&call.command);
        if let Command::Acquire(acquire) = &call.command {
            let request = call.command.request();
            let cancel = request.as_ref().and_then(|id| {
                acquire
                    .keys
                    .iter()
                    .find_map(|key| cancels.get(&(key.as_str(), acquire.owner.as_str(), id.clone())).copied())
            });
            if !history.has_failover() {
                check_cancelled(history, key, acquire, call, cancel, report);
            }
            let words = request.is_some().then(|| call.command.words().join(" "));
            let repeated = words.and_then(|words| requests.get(&words)).is_some_and(|calls| calls.len() > 1);
            if !repeated {
                check_time(history, limits, key, acquire, call, report);
            }
            if let Outcome::Error(error) = &call.outcome {
                if error.starts_with("UNBLOCKED")
                    && !repeated
                    && cancel.is_none()
                    && !is_disturbed(history, call)
                    && !lost_the_cluster(history, call)
                {
                    report.add(
                        Rule::Error,
                        key,
                        "no command or fault has ended this wait".to_owned(),
                        &[call],
                    );
                }
                if error.starts_with("DEADLOCK") && !may_wait(acquire) {
                    report.add(
                        Rule::Error,
                        key,
                        "a call that does not wait cannot be in a deadlock".to_owned(),
                        &[call],
                    );
                }
            }
        }
        if let Outcome::Error(error) = &call.outcome {
            let word = error.split(' ').next().unwrap_or_default();
            let known = ["ERR", "NOTOWNER", "DEADLOCK", "UNBLOCKED", "LOADING", "QUARANTINE", "NOREPLICAS"];
            let of_a_replica = ["READONLY", "MASTERDOWN"];
            if history.has_failover() && of_a_replica.contains(&word) {
                continue;
            }
            let of_a_cluster = ["MOVED", "TRYAGAIN", "CLUSTERDOWN"];
            if (history.has_moves() || history.has_failover()) && of_a_cluster.contains(&word) {
                continue;
            }
            let until = call.answered.unwrap_or(Micros::MAX);
            // Cancelling an unknown request must record it.
            let takes_memory =
                matches!(&call.command, Command::Acquire(_) | Command::Guard { .. } | Command::Cancel { .. });
            let is_full = |what: &Disturbance| *what == Disturbance::MemoryFull;
            if word == "OOM" && takes_memory && history.disturbed(call.sent, until, is_full) {
                continue;
            }
            let in_place = match &call.command {
                // Only some of its locks have a record of the request.
                Command::Acquire(acquire) if word == "ERR" => {
                    let id = acquire.id.clone().unwrap_or_default();
                    let cancelled = |key: &String| {
                        cancels.contains_key(&(key.as_str(), acquire.owner.as_str(), id.clone()))
                    };
                    let in_part = history.may_have_disconnected(acquire, &[call], until)
                        || acquire.keys.iter().any(cancelled);
                    acquire.several && in_part && error.contains("ID was used before")
                }
                command if is_of_session(command) => in_session(history, call, word),
                // Its lease may have expired before replicas acknowledged it.
                Command::Acquire(acquire) => word != "NOTOWNER" || acquire.replicas.is_some(),
                command if waits_for_replicas(command) => !matches!(word, "ERR" | "DEADLOCK" | "QUARANTINE"),
                _ => !matches!(word, "ERR" | "DEADLOCK" | "UNBLOCKED" | "QUARANTINE"),
            };
            let is_known = known.contains(&word) || is_of_session(&call.command);
            if !is_known || !in_place {
                report.add(Rule::Error, key, format!("this call cannot get {word}"), &[call]);
            }
        }
    }
}

/// Whether the call is about a session or a number of one.
fn is_of_session(command: &Command) -> bool {
    let is_session =
        matches!(command, Command::OpenSession(_) | Command::Events(_) | Command::CloseSession { .. });
    is_session || command.session().is_some()
}

/// Whether a call of a session can get this error.
fn in_session(history: &History<'_>, call: &Call, word: &str) -> bool {
    match (&call.command, word) {
        (_, "NOSESSION" | "LOADING" | "NOREPLICAS") => true,
        (Command::CloseSession { .. }, _) => false,
        (Command::Events(_), "UNBLOCKED") => is_disturbed(history, call),
        (Command::Events(_), "MISCONF") => {
            history.disturbed(call.sent, call.answered.unwrap_or(Micros::MAX), |_| true)
        }
        (Command::Acquire(acquire), "DEADLOCK") => may_wait(acquire),
        (Command::Acquire(_), "NOTOWNER" | "CANCELLED" | "QUARANTINE") => true,
        (Command::Release(_) | Command::Renew(_), "NOTOWNER") => true,
        (_, "LATE") => !matches!(call.command, Command::Release(_) | Command::Cancel { .. }),
        _ => false,
    }
}

/// Whether the acquire waits for the lock.
fn may_wait(acquire: &Acquire) -> bool {
    acquire.block.is_some() || acquire.queue.is_some()
}

/// The lock of a command.
pub(super) fn key_of(command: &Command) -> &str {
    match command {
        Command::Acquire(acquire) => &acquire.keys[0],
        Command::Release(release) => &release.keys[0],
        Command::Renew(renew) => &renew.keys[0],
        Command::Break { key }
        | Command::Cancel { key, .. }
        | Command::Check { key, .. }
        | Command::Guard { key, .. }
        | Command::Info { key }
        | Command::Waiters { key }
        | Command::Log { key } => key,
        Command::OpenSession(_) | Command::Events(_) | Command::CloseSession { .. } => "sessions",
    }
}

/// Checks that a repeated call gets the first reply. Nil replies and errors are not recorded. A hold's record ends when the
/// hold ends with a connection, whichever call has bound it.
fn check_repetitions(history: &History<'_>, key: &str, words: &str, calls: &[&Call], report: &mut Report) {
    let may_end = match &calls[0].command {
        // A number gets the outcome so far, which `sessions` checks.
        Command::Acquire(Acquire { session: Some(_), .. }) => return,
        // The server forgets cancels below `done`.
        Command::Cancel { session: Some(_), .. } => return,
        Command::Acquire(acquire) => {
            let last = calls.iter().map(|call| call.answered.unwrap_or(Micros::MAX)).max();
            last.is_some_and(|last| history.may_have_disconnected(acquire, calls, last))
        }
        _ => false,
    };
    if may_end && calls.iter().any(|call| call.connection != calls[0].connection) {
        return;
    }
    let is_final = |call: &&&Call| reply(call).is_some_and(|reply| !reply.is_null());
    let mut answered = calls.iter().filter(is_final);
    let Some(first) = answered.next() else { return };
    for later in answered {
        let age = later.answered.unwrap_or(Micros::MAX) - calls[0].sent;
        if reply(first) != reply(later) && age < millis(history.run.request_ttl) {
            report.add(Rule::Retry, key, format!("{words} got two different replies"), &[first, later]);
        }
    }
}

fn check_cancelled(
    history: &History<'_>,
    key: &str,
    acquire: &Acquire,
    call: &Call,
    cancel: Option<&Call>,
    report: &mut Report,
) {
    let (Some(cancel), Some(answered)) = (cancel, call.answered) else { return };
    let (Some(_), Some(cancelled)) = (reply(cancel), cancel.answered) else { return };
    // A number that was answered nil stays that.
    let is_grant = reply(call).is_some_and(|reply| acquire.session.is_none() || !reply.is_null());
    let is_fresh = acquire.session.is_some() || answered - cancel.sent < millis(history.run.request_ttl);
    if is_grant && cancelled < call.sent && is_fresh && !acquire.several {
        report.add(
            Rule::Cancel,
            key,
            "this request was cancelled before it was sent".to_owned(),
            &[cancel, call],
        );
    }
}

fn is_disturbed(history: &History<'_>, call: &Call) -> bool {
    let id = history.connections.get(&call.connection).map(|one| one.server_id);
    // The call got its reply after its client had half-closed the connection.
    if call.answered.is_some_and(|at| history.open_until(call.connection) < at) {
        return true;
    }
    let until = call.answered.unwrap_or(Micros::MAX);
    history.disturbed(call.sent, until, |what| match what {
        Disturbance::Kill { server_id } | Disturbance::Unblock { server_id } => Some(*server_id) == id,
        Disturbance::Restart { .. } | Disturbance::Failover | Disturbance::Move => true,
        Disturbance::Clock { by } => *by < 0,
        Disturbance::Pause | Disturbance::Paused | Disturbance::Stop | Disturbance::MemoryFull => false,
    })
}

/// Whether a node has considered the cluster down during this call, as on a busy machine. It then ends waits.
fn lost_the_cluster(history: &History<'_>, call: &Call) -> bool {
    let until = call.answered.unwrap_or(Micros::MAX);
    history.calls.iter().any(|other| {
        let is_down = matches!(&other.outcome, Outcome::Error(error) if error.starts_with("CLUSTERDOWN"));
        is_down && other.sent <= until && other.answered.is_some_and(|at| at >= call.sent)
    })
}

fn check_time(
    history: &History<'_>,
    limits: &Limits,
    key: &str,
    acquire: &Acquire,
    call: &Call,
    report: &mut Report,
) {
    let (Some(block), Some(answered)) = (acquire.block, call.answered) else { return };
    let waited = answered - call.sent;
    let is_nil = reply(call).is_some_and(Value::is_null);
    let is_early = block == 0 || waited < millis(block) - MS;
    if is_nil && is_early && !is_disturbed(history, call) {
        report.add(Rule::Time, key, format!("it timed out after {waited} µs of {block} ms"), &[call]);
    }
    let is_late = block > 0 && waited > millis(block) + limits.late;
    if is_late && !history.disturbed(call.sent, answered, |_| true) {
        report.add(
            Rule::Time,
            key,
            format!("the reply came after {waited} µs, with a limit of {block} ms"),
            &[call],
        );
    }
}
