// SPDX-License-Identifier: MIT

//! Sessions: what their clients know about holds and waits, and rules for numbers and beats.
//!
//! A `LOCK.EVENTS` confirms if it got fewer than `count` events, without an error. Until GRACE after its sending, no other owner
//! can have a lock of the session, see `docs/sessions.md`.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::holds::View;
use super::operations::{millis, reply, Done, History, Kind, Operation, NEVER};
use super::replies::key_of;
use super::{Limits, Report, Rule};
use crate::record::{Call, Closed, Command, Micros, Number, Outcome, Record, MS};

/// An event about a number, when its client first read it.
#[derive(Clone, Copy)]
pub(super) struct Event<'a> {
    pub(super) at: Micros,
    /// `[seq, kind, n, …]`.
    pub(super) parts: &'a Value,
    pub(super) call: &'a Call,
}

impl<'a> Event<'a> {
    /// The hold count of a grant.
    pub(super) fn holds(&self) -> Option<i64> {
        self.parts.get(3)?.as_i64()
    }

    pub(super) fn token(&self) -> Option<i64> {
        self.parts.get(4)?.as_i64()
    }

    fn reason(&self) -> &'a str {
        self.parts.get(3).and_then(Value::as_str).unwrap_or_default()
    }
}

/// One session.
struct Session<'a> {
    opened: &'a Call,
    ttl: Micros,
    grace: Micros,
    /// The times of each confirming call's reply and sending, in order.
    confirmed: Vec<(Micros, Micros)>,
    /// Latest time at which the server can have received a beat.
    last_beat: Micros,
    /// Earliest time of a `CLOSE`.
    closed: Micros,
    beats: Vec<(i64, &'a Call)>,
}

/// All sessions of a history.
#[derive(Default)]
pub(super) struct Sessions<'a> {
    by_id: HashMap<&'a str, Session<'a>>,
    granted: HashMap<(&'a str, i64), Event<'a>>,
    lost: HashMap<(&'a str, i64), Event<'a>>,
    /// Earliest reply to a cancel.
    cancelled: HashMap<(&'a str, i64), Micros>,
    /// Releases and renewals that were refused.
    refused: HashMap<(&'a str, i64), Vec<&'a Call>>,
}

impl<'a> Sessions<'a> {
    pub(super) fn new(records: &'a [Record], calls: &[&'a Call]) -> Sessions<'a> {
        let mut sessions = Sessions::default();
        let ends: HashMap<u64, Micros> = records
            .iter()
            .filter_map(|record| match record {
                Record::Closed(Closed { connection, at, .. }) => Some((*connection, *at)),
                _ => None,
            })
            .collect();
        for call in calls {
            if let (Command::OpenSession(open), Outcome::Reply(opened)) = (&call.command, &call.outcome) {
                if let (None, Some(id)) = (&open.session_id, opened.get(0).and_then(Value::as_str)) {
                    let (ttl, grace) = (millis(open.ttl), millis(open.grace));
                    let (confirmed, beats) = (Vec::new(), Vec::new());
                    let session =
                        Session { opened: call, ttl, grace, confirmed, last_beat: 0, closed: NEVER, beats };
                    sessions.by_id.insert(id, session);
                }
            }
        }
        for call in calls.iter().filter(|call| call.outcome != Outcome::Unsent) {
            sessions.note(call, ends.get(&call.connection).copied().unwrap_or(NEVER));
        }
        for session in sessions.by_id.values_mut() {
            session.confirmed.sort_unstable();
        }
        sessions
    }

    /// Adds what a call tells about its session. `closed` is the end of its connection.
    fn note(&mut self, call: &'a Call, closed: Micros) {
        if let (Some(number), Command::Cancel { .. }, Some(_)) =
            (call.command.session(), &call.command, reply(call))
        {
            let at = self.cancelled.entry((&number.id, number.n)).or_insert(NEVER);
            *at = call.answered.map_or(*at, |answered| answered.min(*at));
        }
        if let (Some(number), Command::Release(_) | Command::Renew(_), Outcome::Error(_)) =
            (call.command.session(), &call.command, &call.outcome)
        {
            self.refused.entry((&number.id, number.n)).or_default().push(call);
        }
        let (id, beat) = match &call.command {
            Command::OpenSession(open) => match (&open.session_id, reply(call)) {
                (Some(id), _) => (id.as_str(), open.beat),
                (None, Some(opened)) => {
                    (opened.get(0).and_then(Value::as_str).unwrap_or_default(), open.beat)
                }
                (None, None) => return,
            },
            Command::Events(events) => (events.session_id.as_str(), events.beat),
            Command::CloseSession { session_id } => {
                if let Some(session) = self.by_id.get_mut(session_id.as_str()) {
                    session.closed = session.closed.min(call.sent);
                }
                return;
            }
            _ => return,
        };
        let Some(session) = self.by_id.get_mut(id) else { return };
        session.beats.push((beat, call));
        session.last_beat = session.last_beat.max(call.answered.unwrap_or(closed));
        let (Command::Events(asked), Some(events), Some(at)) = (&call.command, reply(call), call.answered)
        else {
            return;
        };
        let events = events.as_array().map_or(&[][..], Vec::as_slice);
        if events.len() < asked.count {
            session.confirmed.push((at, call.sent));
        }
        for parts in events {
            let Some(n) = parts.get(2).and_then(Value::as_i64) else { continue };
            let told = match parts.get(1).and_then(Value::as_str) {
                Some("granted") => &mut self.granted,
                Some("lost") => &mut self.lost,
                _ => continue,
            };
            let first = told.entry((&asked.session_id, n)).or_insert(Event { at, parts, call });
            if at < first.at {
                *first = Event { at, parts, call };
            }
        }
    }

    pub(super) fn granted(&self, number: &Number) -> Option<Event<'a>> {
        self.granted.get(&(number.id.as_str(), number.n)).copied()
    }

    /// The time from which the number neither waits nor holds.
    pub(super) fn over(&self, number: &Number) -> Option<Micros> {
        let key = (number.id.as_str(), number.n);
        // A lease that is no longer renewed still runs for a while.
        let lost = self.lost.get(&key).filter(|event| event.reason() != "max").map(|event| event.at);
        lost.into_iter().chain(self.cancelled.get(&key).copied()).min()
    }

    /// The end of the safe time of a hold that was proven at `from`, as far as its client knows from replies before `by`. A hold
    /// that is lost stays lost, so a confirming call also proves that the hold has existed since its grant.
    fn safe_until(&self, number: &Number, from: Micros, by: Micros) -> Micros {
        let Some(session) = self.by_id.get(number.id.as_str()) else { return 0 };
        // A refused call takes the pending event of its number with it.
        let refused = self.refused.get(&(number.id.as_str(), number.n)).into_iter().flatten();
        let refused = refused.filter(|call| call.answered > Some(from)).map(|call| call.sent);
        let by = refused.fold(by, Micros::min);
        let known = session.confirmed.iter().filter(|(answered, _)| *answered < by);
        known.map(|(_, sent)| sent + session.grace).max().unwrap_or(0).min(session.closed)
    }

    /// Latest time at which the session may exist. The server may be `late`.
    pub(super) fn exists_until(&self, id: &str, late: Micros) -> Micros {
        let end = |session: &Session<'_>| session.last_beat.saturating_add(session.ttl).saturating_add(late);
        self.by_id.get(id).map_or(NEVER, end)
    }

    /// The shortest renewed lease of a session.
    pub(super) fn least_lease(&self, id: &str) -> Micros {
        self.by_id.get(id).map_or(0, |session| 3 * session.grace)
    }
}

impl Operation<'_> {
    /// The acquire in a session that the operation is about.
    pub(super) fn session(&self) -> Option<&Number> {
        self.calls[0].command.session()
    }

    /// Whether the server renews the lease that this operation sets while the session lives.
    fn is_renewed_by_session(&self) -> bool {
        match self.kind {
            Kind::Acquire(acquire) => acquire.lease.is_none() || acquire.watchdog,
            Kind::Renew(renew) => renew.lease.is_none() || renew.watchdog,
            _ => false,
        }
    }
}

/// The part of a certain hold that its session decides.
pub(super) enum Bound {
    /// The hold belongs to no session.
    No,
    /// The session renews the lease. The hold is certain until this time.
    Renewed(Micros),
    /// The lease ends by itself. The hold is certain until this time, if its lease outlasts it.
    Leased(Micros),
}

/// The session of the hold that `of` proves, and the end of its safe time.
pub(super) fn bound(view: &View<'_>, of: &Operation<'_>) -> Bound {
    let last = binds(view, of);
    // A query may have seen a grant before its event arrived, or one that its client never got, for example because no replica
    // had it.
    let is_unseen = view.of(of.owner).iter().any(|one| {
        let is_acquire = matches!(one.kind, Kind::Acquire(_)) && one.session().is_some();
        let is_pending = one.count().is_none() || one.end.is_none_or(|end| end > of.sent);
        is_acquire && is_pending && Some(one.sent) < of.end && last.is_none_or(|last| one.sent > last.sent)
    });
    if is_unseen && of.session().is_none() {
        return Bound::Renewed(0);
    }
    let Some(last) = last else { return Bound::No };
    let (Some(number), Some(end)) = (last.session(), of.end) else { return Bound::No };
    let sessions = &view.history.sessions;
    let lost = sessions.lost.get(&(number.id.as_str(), number.n)).map_or(NEVER, |event| event.at);
    let until = sessions.safe_until(number, end, lost).min(lost);
    if last.is_renewed_by_session() {
        Bound::Renewed(until)
    } else {
        Bound::Leased(until)
    }
}

/// The last operation that has bound the hold that `of` proves to a session.
fn binds<'b>(view: &'b View<'_>, of: &'b Operation<'_>) -> Option<&'b Operation<'b>> {
    let has_bound = |one: &Operation<'_>| {
        one.session().is_some()
            && one.count().is_some()
            && !matches!(one.kind, Kind::Release(_) | Kind::Cancel)
    };
    if has_bound(of) {
        return Some(of);
    }
    let before = view.of(of.owner).iter().filter(|one| one.end.is_some_and(|end| end <= of.sent));
    before.copied().filter(|one| has_bound(one)).max_by_key(|one| one.end)
}

/// The earliest `CLOSE` of a session to which `of` or a later call may have bound the owner's hold as an ephemeral one.
pub(super) fn unclosed_until(view: &View<'_>, of: &Operation<'_>) -> Micros {
    let binding = view.of(of.owner).iter().filter(|one| {
        let is_ephemeral = match one.kind {
            Kind::Acquire(acquire) => acquire.ephemeral,
            Kind::Renew(renew) => renew.ephemeral,
            _ => false,
        };
        is_ephemeral && one.may_be_done() && one.end.is_none_or(|end| end > of.sent)
    });
    let sessions = binding.filter_map(|one| view.history.sessions.by_id.get(one.session()?.id.as_str()));
    sessions.map(|session| session.closed).min().unwrap_or(NEVER)
}

/// Checks that no number is lost while its client is certain of its hold.
pub(super) fn check_losses(view: &View<'_>, report: &mut Report) {
    let sessions = &view.history.sessions;
    for one in view.lock.operations.iter().filter(|one| one.count().is_some()) {
        let (Some(number), Kind::Acquire(_) | Kind::Renew(_)) = (one.session(), one.kind) else { continue };
        let (Some(end), Bound::Renewed(_)) = (one.end, bound(view, one)) else { continue };
        let key = (number.id.as_str(), number.n);
        if let Some(lost) = sessions.lost.get(&key) {
            // Without the event itself.
            let until = sessions.safe_until(number, end, lost.at).min(view.certain_without_lease(one));
            let is_early =
                matches!(lost.reason(), "expired" | "overdue") && lost.at > end && until >= lost.at;
            if is_early {
                let text = format!("{} was lost in its safe time: {}", one.owner, lost.parts);
                report.add(Rule::Count, view.lock.key, text, &[one.call(), lost.call]);
            }
        }
        let until = view.certain_until(one, None);
        let refused = view.of(one.owner).iter().find(|other| {
            let is_refused =
                matches!(other.done, Done::Refused(error) if error.starts_with("NOTOWNER") || error.starts_with("LATE"));
            is_refused
                && matches!(other.kind, Kind::Release(_) | Kind::Renew(_))
                && other.session() == Some(number)
                && other.sent >= end
                && other.end.is_some_and(|end| end <= until)
        });
        if let Some(refused) = refused {
            let text = format!("{} holds the lock with number {}, and got an error", one.owner, number.n);
            report.add(Rule::Count, view.lock.key, text, &[one.call(), refused.call()]);
        }
        report.pairs += 1;
    }
}

/// Checks that a repeated acquire gets the outcome so far, that events agree with it, and that a late beat has no effect.
pub(super) fn check(history: &History<'_>, limits: &Limits, report: &mut Report) {
    let mut numbers: BTreeMap<&Number, Vec<&Call>> = BTreeMap::new();
    // The first call may have no reply.
    let mut begun: BTreeMap<&Number, Micros> = BTreeMap::new();
    for call in &history.calls {
        let Some(number) = call.command.session().filter(|_| call.outcome != Outcome::Unsent) else {
            continue;
        };
        let first = begun.entry(number).or_insert(call.sent);
        *first = call.sent.min(*first);
        if call.answered.is_some() {
            numbers.entry(number).or_default().push(call);
        }
    }
    for (number, calls) in &numbers {
        let key = key_of(&calls[0].command);
        check_outcomes(history, key, number, calls, report);
        let Command::Acquire(acquire) = &calls[0].command else { continue };
        let lost = history.sessions.lost.get(&(number.id.as_str(), number.n));
        if let (Some(lost), Some(queue)) = (lost.filter(|lost| lost.reason() == "timeout"), acquire.queue) {
            let is_early = queue == 0 || lost.at - begun[number] < millis(queue) - MS - limits.slack;
            if is_early && !history.disturbed(begun[number], lost.at, |_| true) {
                let text = format!("the wait of {} ended before {queue} ms", number.n);
                report.add(Rule::Time, key, text, &[calls[0], lost.call]);
            }
        }
    }
    for session in history.sessions.by_id.values() {
        check_beats(session, report);
    }
}

/// The state of a number in a reply or an event. Later states follow earlier ones, as in the table of `docs/sessions.md`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Waiting,
    Granted,
    /// It holds nothing and never will: nil, released, lost or cancelled.
    Over,
}

fn state(call: &Call) -> Option<State> {
    let is_acquire = matches!(call.command, Command::Acquire(_));
    let waits = matches!(&call.command, Command::Acquire(acquire) if acquire.queue.is_some());
    let ends = matches!(call.command, Command::Release(_) | Command::Cancel { .. });
    match &call.outcome {
        Outcome::Reply(reply) if ends || reply.is_null() => Some(State::Over),
        Outcome::Reply(reply) if waits && reply.as_i64() == Some(0) => Some(State::Waiting),
        Outcome::Reply(_) => Some(State::Granted),
        Outcome::Error(error) => {
            let is_over = ["NOTOWNER", "CANCELLED", "LATE"].iter().any(|word| error.starts_with(word));
            (is_acquire && is_over).then_some(State::Over)
        }
        Outcome::Unknown | Outcome::Unsent => None,
    }
}

fn check_outcomes(history: &History<'_>, key: &str, number: &Number, calls: &[&Call], report: &mut Report) {
    let mut known: Vec<(Micros, Micros, State, &Call)> = Vec::new();
    for call in calls {
        if let (Some(state), Some(answered)) = (state(call), call.answered) {
            known.push((call.sent, answered, state, call));
        }
    }
    let told = (number.id.as_str(), number.n);
    let sessions = &history.sessions;
    // An event may have happened long before it was read.
    let events = [(sessions.granted.get(&told), State::Granted), (sessions.lost.get(&told), State::Over)];
    known.extend(
        events.iter().filter_map(|(event, state)| event.map(|event| (0, event.at, *state, event.call))),
    );
    for (_, answered, earlier, call) in &known {
        for (_, _, later, other) in known.iter().filter(|later| later.0 > *answered) {
            report.pairs += 1;
            let is_nil_at_last = *earlier == State::Granted && reply(other).is_some_and(Value::is_null);
            if later < earlier || is_nil_at_last {
                let text = format!("number {} got a reply from before its outcome", number.n);
                report.add(Rule::Retry, key, text, &[call, other]);
            }
        }
    }
    if let Some(granted) = sessions.granted.get(&told) {
        let differs = |call: &&&Call| {
            matches!(call.command, Command::Acquire(_))
                && state(call) == Some(State::Granted)
                && reply(call).is_some_and(|reply| {
                    let count = reply.as_i64().or_else(|| reply.get(3)?.as_i64());
                    count != granted.holds() || reply.get(5).and_then(Value::as_i64) != granted.token()
                })
        };
        if let Some(call) = calls.iter().find(differs) {
            let text = format!("number {} got another grant than its event {}", number.n, granted.parts);
            report.add(Rule::Retry, key, text, &[granted.call, call]);
        }
    }
}

/// Checks that the newest beat is never late, and that a late one has no effect.
fn check_beats(session: &Session<'_>, report: &mut Report) {
    let replied = |call: &Call| matches!(call.outcome, Outcome::Reply(_));
    for (beat, call) in &session.beats {
        report.pairs += 1;
        let is_late = matches!(&call.outcome, Outcome::Error(error) if error.starts_with("LATE"));
        // A newer call may end one that is blocked.
        let before =
            |other: &Call| is_late && other.number != call.number && Some(other.sent) < call.answered;
        if is_late && !session.beats.iter().any(|(other, newer)| other >= beat && before(newer)) {
            let text = format!("beat {beat} is the newest, and got LATE");
            report.add(Rule::Error, "sessions", text, &[session.opened, call]);
        }
        let before = |other: &Call| replied(other) && other.answered < Some(call.sent);
        let newer = session.beats.iter().find(|(other, newer)| other >= beat && before(newer));
        if let Some((other, newer)) = newer.filter(|_| replied(call)) {
            let text = format!("beat {beat} has a reply, though beat {other} came first");
            report.add(Rule::Error, "sessions", text, &[session.opened, newer, call]);
        }
    }
}
