// SPDX-License-Identifier: MIT

//! The operations of a history: what was asked of one lock for one owner, once, however often it was sent.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use crate::record::{
    Acquire, Call, Claim, Closed, Command, Disturbance, Fault, Listened, Message, Micros, Outcome, Record,
    Release, Renew, Run, MS,
};

/// Later than everything.
pub(super) const NEVER: Micros = Micros::MAX / 4;

/// Times with a begin and an end.
pub(super) type Times = Vec<(Micros, Micros)>;

/// What an operation asks for.
#[derive(Clone, Copy)]
pub(super) enum Kind<'a> {
    Acquire(&'a Acquire),
    Release(&'a Release),
    Renew(&'a Renew),
    Cancel,
    /// `LOCK.CHECK … OWNER`.
    Check,
    /// `LOCK.GUARD … OWNER`.
    Guard,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done<'a> {
    /// The number that was answered.
    Count(i64),
    Nil,
    Refused(&'a str),
    /// It may have been carried out at any time from its sending on, or not.
    Unknown,
}

/// A look at a queue in which a call stood.
pub(super) struct Seen {
    /// Which of the calls of the operation.
    pub(super) call: u64,
    pub(super) sent: Micros,
    pub(super) answered: Micros,
}

/// What was asked of one lock for one owner, once.
pub(super) struct Operation<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) owner: &'a str,
    /// All that may have carried it out, and the one that was answered.
    pub(super) calls: Vec<&'a Call>,
    /// It did not take effect before.
    pub(super) sent: Micros,
    /// When it was sent first: its place in the queue may be that old.
    pub(super) first_sent: Micros,
    /// It did not take effect later.
    pub(super) end: Option<Micros>,
    pub(super) done: Done<'a>,
    pub(super) token: Option<i64>,
    /// When somebody looked and saw one of the calls waiting.
    pub(super) seen: Vec<Seen>,
    /// A cancel of it was answered then: nothing of it is left.
    pub(super) void_after: Option<Micros>,
}

impl<'a> Operation<'a> {
    /// It was granted, if at all, no earlier.
    pub(super) fn low(&self) -> Micros {
        self.seen.iter().map(|seen| seen.sent).fold(self.sent, Micros::max)
    }

    pub(super) fn acquire(&self) -> Option<&'a Acquire> {
        match self.kind {
            Kind::Acquire(acquire) => Some(acquire),
            _ => None,
        }
    }

    pub(super) fn count(&self) -> Option<i64> {
        match self.done {
            Done::Count(count) => Some(count),
            _ => None,
        }
    }

    /// It has changed something, or may have.
    pub(super) fn may_be_done(&self) -> bool {
        matches!(self.done, Done::Count(_) | Done::Unknown)
    }

    /// The lease that it asks for, in milliseconds, if it asks for one.
    pub(super) fn lease(&self) -> Option<i64> {
        match self.kind {
            Kind::Acquire(acquire) => acquire.lease,
            Kind::Release(release) => release.lease,
            Kind::Renew(renew) => renew.lease,
            _ => None,
        }
    }

    pub(super) fn is_ephemeral(&self) -> bool {
        match self.kind {
            Kind::Acquire(acquire) => acquire.ephemeral,
            Kind::Renew(renew) => renew.ephemeral,
            _ => false,
        }
    }

    /// After how many milliseconds a watchdog is to end, if it is one and has a limit.
    pub(super) fn watchdog_max(&self) -> Option<i64> {
        match self.kind {
            Kind::Acquire(acquire) => acquire.watchdog_max,
            Kind::Renew(renew) => renew.watchdog_max,
            _ => None,
        }
    }

    /// For how many milliseconds it has its turn, if it waits for a message.
    pub(super) fn grace(&self) -> Option<i64> {
        let by_message = self.acquire().filter(|acquire| acquire.notify.is_some())?;
        Some(by_message.grace.unwrap_or(5_000))
    }

    pub(super) fn is_watched(&self) -> bool {
        match self.kind {
            Kind::Acquire(acquire) => acquire.watchdog,
            Kind::Renew(renew) => renew.watchdog,
            _ => false,
        }
    }

    /// It is about this lock only. Others are refused for any of theirs.
    pub(super) fn is_alone(&self) -> bool {
        match self.kind {
            Kind::Acquire(acquire) => acquire.keys.len() == 1,
            Kind::Release(release) => release.keys.len() == 1,
            Kind::Renew(renew) => renew.keys.len() == 1,
            _ => true,
        }
    }

    /// The call whose reply was read, or the last one.
    pub(super) fn call(&self) -> &'a Call {
        self.calls[self.calls.len() - 1]
    }
}

/// A `LOCK.BREAK`.
pub(super) struct Break<'a> {
    pub(super) call: &'a Call,
    pub(super) count: Option<i64>,
}

/// All about one lock.
#[derive(Default)]
pub(super) struct Lock<'a> {
    pub(super) key: &'a str,
    pub(super) operations: Vec<Operation<'a>>,
    pub(super) breaks: Vec<Break<'a>>,
    pub(super) infos: Vec<&'a Call>,
    /// `LOCK.WAITERS`.
    pub(super) looks: Vec<&'a Call>,
    /// All calls that ask for it.
    pub(super) acquires: Vec<&'a Call>,
    pub(super) guards: Vec<&'a Call>,
    /// `LOCK.CHECK … TOKEN`.
    pub(super) token_checks: Vec<&'a Call>,
    /// Fenced acquires that were refused by what ended their wait: each may have been granted, with a token, and taken back.
    pub(super) taken_back: Vec<&'a Call>,
    pub(super) logs: Vec<&'a Call>,
}

/// A connection.
pub(super) struct Connection {
    pub(super) server_id: i64,
    /// The server cannot have noticed its end before.
    pub(super) open_until: Micros,
    /// It was closed then at the latest.
    pub(super) closed_by: Micros,
}

/// A history, sorted by locks.
pub(super) struct History<'a> {
    pub(super) run: Run,
    pub(super) calls: Vec<&'a Call>,
    pub(super) locks: BTreeMap<&'a str, Lock<'a>>,
    pub(super) connections: HashMap<u64, Connection>,
    pub(super) faults: Vec<&'a Fault>,
    pub(super) messages: Vec<&'a Message>,
    pub(super) listened: Vec<&'a Listened>,
    /// When somebody was seen waiting: by lock, owner, and the id of the connection.
    sightings: HashMap<(&'a str, &'a str, i64), Times>,
}

impl<'a> History<'a> {
    pub(super) fn new(records: &'a [Record]) -> History<'a> {
        let mut history = History {
            run: Run { default_lease: 30_000, request_ttl: 20_000, ..Run::default() },
            calls: Vec::new(),
            locks: BTreeMap::new(),
            connections: HashMap::new(),
            faults: Vec::new(),
            messages: Vec::new(),
            listened: Vec::new(),
            sightings: HashMap::new(),
        };
        for record in records {
            match record {
                Record::Run(run) => history.run = run.clone(),
                Record::Call(call) => history.calls.push(call),
                Record::Fault(fault) => history.faults.push(fault),
                Record::Message(message) => history.messages.push(message),
                Record::Listened(listened) => history.listened.push(listened),
                Record::Opened(_) | Record::Closed(_) => {}
            }
        }
        history.calls.sort_by_key(|call| (call.sent, call.number));
        history.connections = connections(records, &history.calls);
        history.sort_by_lock();
        history
    }

    /// Until when the server has not noticed the end of a connection.
    pub(super) fn open_until(&self, connection: u64) -> Micros {
        self.connections.get(&connection).map_or(NEVER, |one| one.open_until)
    }

    /// When a connection was closed at the latest.
    pub(super) fn closed_by(&self, connection: u64) -> Micros {
        self.connections.get(&connection).map_or(NEVER, |one| one.closed_by)
    }

    /// A fault that may have met a time.
    pub(super) fn disturbed(&self, from: Micros, until: Micros, what: impl Fn(&Disturbance) -> bool) -> bool {
        self.faults.iter().any(|fault| fault.from <= until && fault.until >= from && what(&fault.what))
    }

    /// Somebody may have listened at an inbox. What another node of a cluster knows of that nobody knows here.
    pub(super) fn may_be_heard(&self, inbox: &str, from: Micros, until: Micros) -> bool {
        let mut listened = self.listened.iter().filter(|one| one.inbox == inbox);
        self.moves() || listened.any(|one| one.since <= until && one.until >= from)
    }

    /// Servers have taken each other's place.
    pub(super) fn fails_over(&self) -> bool {
        self.disturbed(Micros::MIN, NEVER, |what| *what == Disturbance::Failover)
    }

    /// Locks have moved from node to node.
    pub(super) fn moves(&self) -> bool {
        self.disturbed(Micros::MIN, NEVER, |what| *what == Disturbance::Move)
    }

    /// By how many milliseconds the wall clock was set back since some time: so much longer a lease may last.
    pub(super) fn set_back_since(&self, from: Micros) -> i64 {
        let steps = self.faults.iter().filter(|fault| fault.until >= from).map(|fault| match fault.what {
            Disturbance::Clock { by } => (-by).max(0),
            _ => 0,
        });
        steps.sum()
    }

    /// True if a grant that was read may have been taken back: its client was being killed already.
    fn may_be_killed(&self, call: &Call) -> bool {
        let Some(id) = self.connections.get(&call.connection).map(|one| one.server_id) else { return false };
        let until = call.answered.unwrap_or(NEVER);
        self.disturbed(call.sent, until, |what| *what == Disturbance::Kill { server_id: id })
    }

    fn lock(&mut self, key: &'a str) -> &mut Lock<'a> {
        let lock = self.locks.entry(key).or_default();
        lock.key = key;
        lock
    }

    fn sort_by_lock(&mut self) {
        // The calls of one request, by lock, owner, and what they ask for.
        let mut requests: BTreeMap<(&str, &str, u8, &str), Vec<&'a Call>> = BTreeMap::new();
        let mut single: Vec<(&'a str, Operation<'a>)> = Vec::new();
        for call in self.calls.clone() {
            if call.outcome == Outcome::Unsent {
                continue;
            }
            let mut sort_in = |key: &'a str, owner: &'a str, which: u8, id: Option<&'a String>| match id {
                Some(id) => requests.entry((key, owner, which, id)).or_default().push(call),
                None => single.extend(self.operation(key, &[call]).map(|operation| (key, operation))),
            };
            match &call.command {
                Command::Acquire(acquire) => {
                    acquire.keys.iter().for_each(|key| sort_in(key, &acquire.owner, 0, acquire.id.as_ref()));
                    if acquire.fence
                        && matches!(&call.outcome, Outcome::Error(error) if error.starts_with("UNBLOCKED"))
                    {
                        acquire.keys.iter().for_each(|key| self.lock(key).taken_back.push(call));
                    }
                }
                Command::Release(release) => {
                    release.keys.iter().for_each(|key| sort_in(key, &release.owner, 1, release.id.as_ref()));
                }
                Command::Renew(renew) => {
                    renew.keys.iter().for_each(|key| sort_in(key, &renew.owner, 2, None))
                }
                Command::Cancel { key, owner, id } => sort_in(key, owner, 3, Some(id)),
                Command::Check { key, claim: Claim::Owner(owner) } => sort_in(key, owner, 4, None),
                Command::Guard { key, claim, .. } => {
                    if let Claim::Owner(owner) = claim {
                        sort_in(key, owner, 5, None);
                    }
                    self.lock(key).guards.push(call);
                }
                Command::Check { key, .. } => self.lock(key).token_checks.push(call),
                Command::Break { key } => {
                    let count = reply(call).and_then(Value::as_i64);
                    self.lock(key).breaks.push(Break { call, count });
                }
                Command::Info { key } => self.lock(key).infos.push(call),
                Command::Log { key } => self.lock(key).logs.push(call),
                Command::Waiters { key } => self.lock(key).looks.push(call),
            }
            if let Command::Acquire(acquire) = &call.command {
                acquire.keys.iter().for_each(|key| self.lock(key).acquires.push(call));
            }
        }
        let cancelled: HashMap<(&str, &str, &str), Micros> = requests
            .iter()
            .filter(|((_, _, which, _), _)| *which == 3)
            .filter_map(|((key, owner, _, id), calls)| {
                let answered =
                    calls.iter().filter(|call| reply(call).is_some()).filter_map(|call| call.answered);
                Some(((*key, *owner, *id), answered.min()?))
            })
            .collect();
        for ((key, owner, which, id), calls) in &requests {
            let mut before: &[&Call] = &[];
            for calls in self.remembered(calls) {
                let Some(mut operation) = self.operation(key, calls) else { continue };
                let may_repeat =
                    operation.is_ephemeral() && !before.is_empty() || self.may_repeat(before, calls);
                if may_repeat && operation.may_be_done() {
                    // It was granted anew, or is told what the first call got.
                    (operation.done, operation.end, operation.token) = (Done::Unknown, None, None);
                }
                before = calls;
                if *which == 0 && operation.done == Done::Unknown {
                    operation.void_after = cancelled.get(&(*key, *owner, *id)).copied();
                }
                single.push((key, operation));
            }
        }
        self.note_sightings();
        for (key, operation) in &mut single {
            let Kind::Acquire(Acquire { block: Some(_), .. }) = operation.kind else { continue };
            for call in &operation.calls {
                let seen = self.seen(key, operation.owner, call);
                operation.seen.extend(seen.map(|(sent, answered)| Seen {
                    call: call.number,
                    sent,
                    answered,
                }));
            }
        }
        for (key, operation) in single {
            self.lock(key).operations.push(operation);
        }
        for lock in self.locks.values_mut() {
            lock.operations.sort_by_key(|operation| operation.sent);
        }
    }

    /// The calls of one request, in parts: what comes so late that the first call may be forgotten can be a new one. So can
    /// the repetition of an ephemeral one on another connection, after the first hold has ended with its own.
    fn remembered<'b>(&self, calls: &'b [&'a Call]) -> Vec<&'b [&'a Call]> {
        let ttl = millis(self.run.request_ttl);
        let mut parts = Vec::new();
        let mut begin = 0;
        let bound = matches!(&calls[0].command, Command::Acquire(acquire) if acquire.ephemeral);
        for (number, call) in calls.iter().enumerate() {
            let is_late = match call.answered {
                Some(answered) => answered > calls[begin].sent + ttl - ttl / 20,
                None => call.sent > calls[begin].sent + ttl / 2,
            };
            let granted = |one: &&&Call| reply(one).is_some_and(|reply| !reply.is_null());
            let before = calls[begin..number].iter().find(granted);
            let is_anew = bound && before.is_some_and(|before| before.connection != call.connection);
            if (is_late || is_anew) && number > begin {
                parts.push(&calls[begin..number]);
                begin = number;
            }
        }
        parts.push(&calls[begin..]);
        parts
    }

    /// Calls of one request, of which the first are old: true if what they got may be remembered still. A call that waits for long
    /// is granted long after it was sent.
    fn may_repeat(&self, before: &[&Call], calls: &[&Call]) -> bool {
        let ttl = millis(self.run.request_ttl);
        let granted =
            |call: &&&Call| call.answered.is_none() || reply(call).is_some_and(|reply| !reply.is_null());
        let latest = before.iter().filter(granted).map(|call| call.answered.unwrap_or(NEVER)).max();
        latest
            .is_some_and(|latest| calls.iter().any(|call| call.sent < latest.saturating_add(ttl + ttl / 20)))
    }

    /// Joins the calls of one request. `None` if none of them can have done anything.
    fn operation(&self, key: &'a str, calls: &[&'a Call]) -> Option<Operation<'a>> {
        let first = calls.first()?;
        let (kind, owner): (Kind<'a>, &'a str) = match &first.command {
            Command::Acquire(acquire) => (Kind::Acquire(acquire), &acquire.owner),
            Command::Release(release) => (Kind::Release(release), &release.owner),
            Command::Renew(renew) => (Kind::Renew(renew), &renew.owner),
            Command::Cancel { owner, .. } => (Kind::Cancel, owner),
            Command::Check { claim: Claim::Owner(owner), .. } => (Kind::Check, owner),
            Command::Guard { claim: Claim::Owner(owner), .. } => (Kind::Guard, owner),
            _ => return None,
        };
        let number = match &first.command {
            Command::Acquire(Acquire { keys, several: true, .. })
            | Command::Release(Release { keys, several: true, .. })
            | Command::Renew(Renew { keys, several: true, .. }) => keys.iter().position(|one| one == key),
            _ => None,
        };
        let waits_by_message = matches!(kind, Kind::Acquire(Acquire { notify: Some(_), .. }));
        let part = |call: &&'a Call| -> Option<&'a Value> {
            let reply = reply(call)?;
            number.map_or(Some(reply), |number| reply.get(number))
        };
        // 0 says that it waits, and nil that nothing has happened.
        let is_final = |call: &&'a Call| {
            part(call)
                .is_some_and(|reply| !(reply.is_null() || waits_by_message && reply.as_i64() == Some(0)))
        };
        let answered = calls
            .iter()
            .position(is_final)
            .filter(|at| !matches!(kind, Kind::Acquire(_)) || !self.may_be_killed(calls[*at]));
        let relevant = answered.map_or(calls, |at| &calls[..=at]);
        let mut may: Vec<&'a Call> = relevant.iter().copied().filter(|call| is_unknown(call)).collect();
        let is_queued = |call: &&&'a Call| waits_by_message && part(call).and_then(Value::as_i64) == Some(0);
        if answered.is_none() {
            may.extend(relevant.iter().filter(is_queued));
            may.extend(relevant.iter().filter(|call| is_final(call)));
        }
        may.extend(answered.map(|at| calls[at]));
        let (done, end, token) = match answered {
            Some(at) => {
                let reply = part(&calls[at])?;
                (Done::Count(count(reply)?), calls[at].answered, token(reply))
            }
            None if !may.is_empty() => (Done::Unknown, None, None),
            None => {
                let last = relevant.last()?;
                let done = match &last.outcome {
                    Outcome::Error(error) => Done::Refused(error),
                    _ => Done::Nil,
                };
                may.extend(relevant);
                (done, last.answered, None)
            }
        };
        let sent = may.iter().map(|call| call.sent).min()?;
        let (calls, first_sent) = (may, first.sent);
        Some(Operation {
            kind,
            owner,
            calls,
            sent,
            first_sent,
            end,
            done,
            token,
            seen: vec![],
            void_after: None,
        })
    }

    /// Notes who was seen waiting.
    fn note_sightings(&mut self) {
        for call in &self.calls {
            let (Command::Waiters { key }, Some(answered)) = (&call.command, call.answered) else { continue };
            for entry in reply(call).and_then(Value::as_array).into_iter().flatten() {
                let owner = field(entry, "owner").and_then(Value::as_str);
                let client = field(entry, "client").and_then(Value::as_i64);
                if let (Some(owner), Some(client)) = (owner, client) {
                    self.sightings.entry((key, owner, client)).or_default().push((call.sent, answered));
                }
            }
        }
    }

    /// When a call was seen waiting. It is meant if its connection had no other in that time.
    pub(super) fn seen<'b>(
        &'b self,
        key: &'b str,
        owner: &'b str,
        call: &'b Call,
    ) -> impl Iterator<Item = (Micros, Micros)> + 'b {
        let connection = self.connections.get(&call.connection);
        // After a restart another connection may have the same id.
        let until = call.answered.or(connection.map(|one| one.closed_by));
        let times = connection.and_then(|one| self.sightings.get(&(key, owner, one.server_id)));
        let is_it = move |time: &(Micros, Micros)| time.0 >= call.sent && Some(time.1) <= until;
        times.into_iter().flatten().copied().filter(is_it)
    }
}

fn connections(records: &[Record], calls: &[&Call]) -> HashMap<u64, Connection> {
    // When each was certainly open. A reply may be read long after it came, and after the end of the connection.
    let mut alive: HashMap<u64, Micros> = HashMap::new();
    for call in calls.iter().filter(|call| call.answered.is_some()) {
        let last = alive.entry(call.connection).or_insert(call.sent);
        *last = call.sent.max(*last);
    }
    let mut closed: HashMap<u64, &Closed> = HashMap::new();
    let mut faults: Vec<&Fault> = Vec::new();
    for record in records {
        match record {
            Record::Closed(one) => drop(closed.insert(one.connection, one)),
            Record::Fault(fault) => faults.push(fault),
            _ => {}
        }
    }
    let mut found = HashMap::new();
    for record in records {
        let Record::Opened(opened) = record else { continue };
        let last = alive.get(&opened.connection).copied().unwrap_or(0).max(opened.at);
        let (open_until, closed_by) = match closed.get(&opened.connection) {
            Some(one) if one.by_peer => (last.min(one.at), one.at),
            Some(one) => (one.at, one.at),
            None => (NEVER, NEVER),
        };
        // It may have been closed by the server, and its client did not read on.
        let ended =
            faults.iter().filter(|fault| fault.until >= opened.at).filter_map(|fault| match fault.what {
                Disturbance::Kill { server_id } => (server_id == opened.server_id).then_some(fault.from),
                Disturbance::Restart { .. } | Disturbance::Failover => Some(fault.from),
                _ => None,
            });
        let open_until = ended.fold(open_until, Micros::min);
        found.insert(opened.connection, Connection { server_id: opened.server_id, open_until, closed_by });
    }
    found
}

/// It may have been carried out. What replicas have not acknowledged may stand, for a while or on another primary, and the
/// lease that a renewal has set may be over before they have.
fn is_unknown(call: &Call) -> bool {
    match &call.outcome {
        Outcome::Unknown => true,
        Outcome::Error(error) => {
            let is_over = matches!(call.command, Command::Renew(_)) && error.starts_with("NOTOWNER");
            let ends = ["NOREPLICAS", "UNBLOCKED"].iter().any(|word| error.starts_with(word));
            (ends || is_over) && waits_for_replicas(&call.command)
        }
        Outcome::Reply(_) | Outcome::Unsent => false,
    }
}

pub(super) fn waits_for_replicas(command: &Command) -> bool {
    match command {
        Command::Acquire(acquire) => acquire.replicas.is_some(),
        Command::Renew(renew) => renew.replicas.is_some(),
        _ => false,
    }
}

/// The reply, if there is one and it is no error.
pub(super) fn reply(call: &Call) -> Option<&Value> {
    match &call.outcome {
        Outcome::Reply(reply) => Some(reply),
        _ => None,
    }
}

/// A field of a flat map.
pub(super) fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    let parts = map.as_array()?;
    parts.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| &pair[1])
}

fn count(reply: &Value) -> Option<i64> {
    reply.as_i64().or_else(|| field(reply, "holds")?.as_i64())
}

fn token(reply: &Value) -> Option<i64> {
    field(reply, "token")?.as_i64()
}

/// Milliseconds as the history counts.
pub(super) fn millis(ms: i64) -> Micros {
    ms.saturating_mul(MS).min(NEVER)
}
