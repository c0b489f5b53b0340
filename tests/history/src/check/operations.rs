// SPDX-License-Identifier: MIT

//! Operations of a history: a request by one owner on one lock, counted once however often it was sent.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::sessions::Sessions;
use crate::record::{
    Acquire, Call, Claim, Closed, Command, Disturbance, Fault, Micros, Outcome, Record, Release, Renew, Run,
    MS,
};

/// A time later than every other time.
pub(super) const NEVER: Micros = Micros::MAX / 4;

/// Time intervals, each with a start and an end.
pub(super) type Times = Vec<(Micros, Micros)>;

/// The kind of an operation.
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

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done<'a> {
    /// The number in the reply.
    Count(i64),
    Nil,
    Refused(&'a str),
    /// The operation may have taken effect at any time after its sending, or never.
    Unknown,
}

/// An observation of a waiting call in a queue.
pub(super) struct Seen {
    /// The observed call of the operation.
    pub(super) call: u64,
    pub(super) sent: Micros,
    pub(super) answered: Micros,
}

/// A request by one owner on one lock.
pub(super) struct Operation<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) owner: &'a str,
    /// All calls that may have performed the operation, and the one with a reply.
    pub(super) calls: Vec<&'a Call>,
    /// Earliest time at which the operation can have taken effect.
    pub(super) sent: Micros,
    /// Time at which the first call was sent. The position in the queue may be as old as that.
    pub(super) first_sent: Micros,
    /// Latest time at which the operation can have taken effect.
    pub(super) end: Option<Micros>,
    pub(super) done: Done<'a>,
    pub(super) token: Option<i64>,
    /// Observations of a waiting call of this operation.
    pub(super) seen: Vec<Seen>,
    /// Time of a reply to its cancel: no effect remains afterwards.
    pub(super) void_after: Option<Micros>,
}

impl<'a> Operation<'a> {
    /// Earliest time of the grant, if any.
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

    /// Whether the operation changed something, or may have.
    pub(super) fn may_be_done(&self) -> bool {
        matches!(self.done, Done::Count(_) | Done::Unknown)
    }

    /// The lease in the operation's arguments, in milliseconds.
    pub(super) fn lease(&self) -> Option<i64> {
        match self.kind {
            Kind::Acquire(acquire) => acquire.lease,
            Kind::Release(release) => release.lease,
            Kind::Renew(renew) => renew.lease,
            _ => None,
        }
    }

    /// Whether the hold ends with the connection of its call.
    pub(super) fn is_ephemeral(&self) -> bool {
        match self.kind {
            _ if self.session().is_some() => false,
            Kind::Acquire(acquire) => acquire.ephemeral,
            Kind::Renew(renew) => renew.ephemeral,
            _ => false,
        }
    }

    /// The limit of the operation's watchdog in milliseconds.
    pub(super) fn watchdog_max(&self) -> Option<i64> {
        match self.kind {
            Kind::Acquire(acquire) => acquire.watchdog_max,
            Kind::Renew(renew) => renew.watchdog_max,
            _ => None,
        }
    }

    /// Whether the lease is renewed while the connection of its call is open.
    pub(super) fn is_watched(&self) -> bool {
        match self.kind {
            _ if self.session().is_some() => false,
            Kind::Acquire(acquire) => acquire.watchdog,
            Kind::Renew(renew) => renew.watchdog,
            _ => false,
        }
    }

    /// Whether the operation concerns this lock only. Operations on several locks are refused because of any of them.
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

/// All operations on one lock.
#[derive(Default)]
pub(super) struct Lock<'a> {
    pub(super) key: &'a str,
    pub(super) operations: Vec<Operation<'a>>,
    pub(super) breaks: Vec<Break<'a>>,
    pub(super) infos: Vec<&'a Call>,
    /// `LOCK.WAITERS`.
    pub(super) observations: Vec<&'a Call>,
    /// All acquires of this lock.
    pub(super) acquires: Vec<&'a Call>,
    pub(super) guards: Vec<&'a Call>,
    /// `LOCK.CHECK … TOKEN`.
    pub(super) token_checks: Vec<&'a Call>,
    /// Fenced acquires whose wait ended with an error. Each may have been granted, with a token, and revoked.
    pub(super) maybe_revoked: Vec<&'a Call>,
    pub(super) logs: Vec<&'a Call>,
}

/// The lifetime of a connection.
pub(super) struct Connection {
    pub(super) server_id: i64,
    /// Earliest time at which the server can have noticed the end.
    pub(super) open_until: Micros,
    /// Latest time of the close.
    pub(super) closed_by: Micros,
}

/// A history, sorted by locks.
pub(super) struct History<'a> {
    pub(super) run: Run,
    pub(super) calls: Vec<&'a Call>,
    pub(super) locks: BTreeMap<&'a str, Lock<'a>>,
    pub(super) connections: HashMap<u64, Connection>,
    pub(super) faults: Vec<&'a Fault>,
    pub(super) sessions: Sessions<'a>,
    /// Calls with `EPHEMERAL`, by owner and lock.
    ephemeral: HashMap<(&'a str, &'a str), Vec<&'a Call>>,
    /// Times at which owners were seen waiting, by lock, owner and ID of the connection.
    sightings: HashMap<(&'a str, &'a str, i64), Times>,
}

/// The calls that make a hold end with their connection, by owner and lock.
fn ephemeral<'a>(calls: &[&'a Call]) -> HashMap<(&'a str, &'a str), Vec<&'a Call>> {
    let mut found: HashMap<_, Vec<&Call>> = HashMap::new();
    for call in calls.iter().copied().filter(|call| call.command.session().is_none()) {
        let (ephemeral, owner, keys) = match &call.command {
            Command::Renew(renew) => (renew.ephemeral, &renew.owner, &renew.keys),
            Command::Acquire(acquire) => (acquire.ephemeral, &acquire.owner, &acquire.keys),
            _ => continue,
        };
        for key in keys.iter().filter(|_| ephemeral) {
            found.entry((owner.as_str(), key.as_str())).or_default().push(call);
        }
    }
    found
}

impl<'a> History<'a> {
    pub(super) fn new(records: &'a [Record]) -> History<'a> {
        let mut history = History {
            run: Run { default_lease: 30_000, request_ttl: 20_000, ..Run::default() },
            calls: Vec::new(),
            locks: BTreeMap::new(),
            connections: HashMap::new(),
            faults: Vec::new(),
            sessions: Sessions::default(),
            ephemeral: HashMap::new(),
            sightings: HashMap::new(),
        };
        for record in records {
            match record {
                Record::Run(run) => history.run = run.clone(),
                Record::Call(call) => history.calls.push(call),
                Record::Fault(fault) => history.faults.push(fault),
                Record::Opened(_) | Record::Closed(_) => {}
            }
        }
        history.calls.sort_by_key(|call| (call.sent, call.number));
        history.connections = connections(records, &history.calls);
        history.sessions = Sessions::new(records, &history.calls);
        history.ephemeral = ephemeral(&history.calls);
        history.sort_by_lock();
        history
    }

    /// Time until which the server has not noticed the end of a connection.
    pub(super) fn open_until(&self, connection: u64) -> Micros {
        self.connections.get(&connection).map_or(NEVER, |one| one.open_until)
    }

    /// Latest time of a connection's close.
    pub(super) fn closed_by(&self, connection: u64) -> Micros {
        self.connections.get(&connection).map_or(NEVER, |one| one.closed_by)
    }

    /// Whether a fault may have happened during an interval.
    pub(super) fn disturbed(&self, from: Micros, until: Micros, what: impl Fn(&Disturbance) -> bool) -> bool {
        self.faults.iter().any(|fault| fault.from <= until && fault.until >= from && what(&fault.what))
    }

    /// Whether the history has a failover.
    pub(super) fn has_failover(&self) -> bool {
        self.disturbed(Micros::MIN, NEVER, |what| *what == Disturbance::Failover)
    }

    /// Whether locks have moved between nodes.
    pub(super) fn has_moves(&self) -> bool {
        self.disturbed(Micros::MIN, NEVER, |what| *what == Disturbance::Move)
    }

    /// Milliseconds by which the wall clock was set back since `from`: leases may last that much longer.
    pub(super) fn set_back_since(&self, from: Micros) -> i64 {
        let steps = self.faults.iter().filter(|fault| fault.until >= from).map(|fault| match fault.what {
            Disturbance::Clock { by } => (-by).max(0),
            _ => 0,
        });
        steps.sum()
    }

    /// Whether a hold of such an owner and lock may have ended with its connection by a time, whichever call bound it. `calls`
    /// are the calls of the acquire.
    pub(super) fn may_have_disconnected(&self, acquire: &Acquire, calls: &[&Call], by: Micros) -> bool {
        let made = calls.iter().filter_map(|call| reply(call)?.get("owner")?.as_str());
        let owners: Vec<&str> = std::iter::once(acquire.owner.as_str()).chain(made).collect();
        owners.iter().any(|owner| {
            let of_owner = acquire.keys.iter().filter_map(|key| self.ephemeral.get(&(*owner, key.as_str())));
            of_owner.flatten().any(|call| call.sent <= by && self.open_until(call.connection) <= by)
        })
    }

    /// Whether a grant with a reply may have been revoked, as its client was already being killed.
    fn may_be_killed(&self, call: &Call) -> bool {
        let Some(id) = self.connections.get(&call.connection).map(|one| one.server_id) else { return false };
        if call.command.session().is_some() {
            return false;
        }
        let until = call.answered.unwrap_or(NEVER);
        self.disturbed(call.sent, until, |what| *what == Disturbance::Kill { server_id: id })
    }

    fn lock(&mut self, key: &'a str) -> &mut Lock<'a> {
        let lock = self.locks.entry(key).or_default();
        lock.key = key;
        lock
    }

    fn sort_by_lock(&mut self) {
        // The calls of each request, by lock, owner and kind.
        let mut requests: BTreeMap<(&str, &str, u8, String), Vec<&'a Call>> = BTreeMap::new();
        let mut single: Vec<(&'a str, Operation<'a>)> = Vec::new();
        for call in self.calls.clone() {
            if call.outcome == Outcome::Unsent {
                continue;
            }
            let request = call.command.request();
            let mut sort_in = |key: &'a str, owner: &'a str, which: u8| match request.clone() {
                Some(id) => requests.entry((key, owner, which, id)).or_default().push(call),
                None => single.extend(self.operation(key, &[call]).map(|operation| (key, operation))),
            };
            match &call.command {
                Command::Acquire(acquire) => {
                    acquire.keys.iter().for_each(|key| sort_in(key, &acquire.owner, 0));
                    if acquire.fence
                        && matches!(&call.outcome, Outcome::Error(error) if error.starts_with("UNBLOCKED"))
                    {
                        acquire.keys.iter().for_each(|key| self.lock(key).maybe_revoked.push(call));
                    }
                }
                Command::Release(release) => {
                    release.keys.iter().for_each(|key| sort_in(key, &release.owner, 1));
                }
                Command::Renew(renew) => renew.keys.iter().for_each(|key| sort_in(key, &renew.owner, 2)),
                Command::Cancel { key, owner, .. } => sort_in(key, owner, 3),
                Command::Check { key, claim: Claim::Owner(owner) } => sort_in(key, owner, 4),
                Command::Guard { key, claim, .. } => {
                    if let Claim::Owner(owner) = claim {
                        sort_in(key, owner, 5);
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
                Command::Waiters { key } => self.lock(key).observations.push(call),
                Command::OpenSession(_) | Command::Events(_) | Command::CloseSession { .. } => {}
            }
            if let Command::Acquire(acquire) = &call.command {
                acquire.keys.iter().for_each(|key| self.lock(key).acquires.push(call));
            }
        }
        let cancelled: HashMap<(&str, &str, String), Micros> = requests
            .iter()
            .filter(|((_, _, which, _), _)| *which == 3)
            .filter_map(|((key, owner, _, id), calls)| {
                let answered =
                    calls.iter().filter(|call| reply(call).is_some()).filter_map(|call| call.answered);
                Some(((*key, *owner, id.clone()), answered.min()?))
            })
            .collect();
        for ((key, owner, which, id), calls) in &requests {
            let mut before: &[&Call] = &[];
            for calls in self.split_by_record(calls) {
                let Some(mut operation) = self.operation(key, calls) else { continue };
                let may_repeat =
                    operation.is_ephemeral() && !before.is_empty() || self.may_repeat(before, calls);
                if may_repeat && operation.may_be_done() {
                    // The call was granted again, or got the first call's reply.
                    (operation.done, operation.end, operation.token) = (Done::Unknown, None, None);
                }
                before = calls;
                if *which == 0 && operation.done == Done::Unknown {
                    let over = operation.session().and_then(|number| self.sessions.over(number));
                    let cancelled = cancelled.get(&(*key, *owner, id.clone())).copied();
                    operation.void_after = over.or(cancelled);
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

    /// Splits the calls of one request into parts. A late call can be a new request, as the record of the first call may
    /// have expired. So can a retry after a hold of the owner has ended with its connection.
    fn split_by_record<'b>(&self, calls: &'b [&'a Call]) -> Vec<&'b [&'a Call]> {
        // A session remembers its numbers.
        if calls[0].command.session().is_some() {
            return vec![calls];
        }
        let ttl = millis(self.run.request_ttl);
        let mut parts = Vec::new();
        let mut begin = 0;
        for (number, call) in calls.iter().enumerate() {
            let is_late = match call.answered {
                Some(answered) => answered > calls[begin].sent + ttl - ttl / 20,
                None => call.sent > calls[begin].sent + ttl / 2,
            };
            let granted = |one: &&&Call| reply(one).is_some_and(|reply| !reply.is_null());
            let is_new_request = calls[begin..number].iter().any(|before| granted(&before))
                && matches!(&calls[0].command, Command::Acquire(acquire)
                    if self.may_have_disconnected(acquire, calls, call.answered.unwrap_or(Micros::MAX)));
            if (is_late || is_new_request) && number > begin {
                parts.push(&calls[begin..number]);
                begin = number;
            }
        }
        parts.push(&calls[begin..]);
        parts
    }

    /// Whether a record of earlier calls of this request may still exist. A call that waits long is granted, and recorded,
    /// long after it was sent.
    fn may_repeat(&self, before: &[&Call], calls: &[&Call]) -> bool {
        let ttl = millis(self.run.request_ttl);
        let granted =
            |call: &&&Call| call.answered.is_none() || reply(call).is_some_and(|reply| !reply.is_null());
        let latest = before.iter().filter(granted).map(|call| call.answered.unwrap_or(NEVER)).max();
        latest
            .is_some_and(|latest| calls.iter().any(|call| call.sent < latest.saturating_add(ttl + ttl / 20)))
    }

    /// Joins the calls of one request. Returns `None` if no call can have had an effect.
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
        let may_queue = matches!(kind, Kind::Acquire(Acquire { queue: Some(_), .. }));
        let part = |call: &&'a Call| -> Option<&'a Value> {
            let reply = reply(call)?;
            number.map_or(Some(reply), |number| reply.get(number))
        };
        // The reply 0 means that the call waits, and nil means that it had no effect.
        let is_final = |call: &&'a Call| {
            part(call).is_some_and(|reply| !(reply.is_null() || may_queue && reply.as_i64() == Some(0)))
        };
        let answered = calls
            .iter()
            .position(is_final)
            .filter(|at| !matches!(kind, Kind::Acquire(_)) || !self.may_be_killed(calls[*at]));
        let session = first.command.session().filter(|_| matches!(kind, Kind::Acquire(_)));
        let granted = session.and_then(|number| self.sessions.granted(number)).filter(|event| {
            answered.is_none_or(|at| calls[at].answered.is_none_or(|answered| event.at < answered))
        });
        let answered = answered.filter(|_| granted.is_none());
        let relevant = answered.map_or(calls, |at| &calls[..=at]);
        let mut may: Vec<&'a Call> = relevant.iter().copied().filter(|call| is_unknown(call)).collect();
        let is_queued = |call: &&&'a Call| may_queue && part(call).and_then(Value::as_i64) == Some(0);
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
            None if granted.is_some() => {
                let event = granted?;
                (Done::Count(event.holds()?), Some(event.at), event.token())
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

    /// Collects the times at which owners were seen waiting.
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

    /// Times at which a call was seen waiting. The observation counts if the connection had no other call then.
    pub(super) fn seen<'b>(
        &'b self,
        key: &'b str,
        owner: &'b str,
        call: &'b Call,
    ) -> impl Iterator<Item = (Micros, Micros)> + 'b {
        let connection = self.connections.get(&call.connection);
        // After a restart another connection may have the same ID.
        let until = call.answered.or(connection.map(|one| one.closed_by));
        let times = connection.and_then(|one| self.sightings.get(&(key, owner, one.server_id)));
        let is_same_call = move |time: &(Micros, Micros)| time.0 >= call.sent && Some(time.1) <= until;
        times.into_iter().flatten().copied().filter(is_same_call)
    }
}

fn connections(records: &[Record], calls: &[&Call]) -> HashMap<u64, Connection> {
    // Times at which connections were certainly open. A reply may be read long after its arrival and after the connection's
    // end.
    let mut last_alive: HashMap<u64, Micros> = HashMap::new();
    for call in calls.iter().filter(|call| call.answered.is_some()) {
        let last = last_alive.entry(call.connection).or_insert(call.sent);
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
        let last = last_alive.get(&opened.connection).copied().unwrap_or(0).max(opened.at);
        let (open_until, closed_by) = match closed.get(&opened.connection) {
            Some(one) if one.by_peer => (last.min(one.at), one.at),
            Some(one) => (one.at, one.at),
            None => (NEVER, NEVER),
        };
        // The server may have closed the connection while its client did not read.
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

/// Whether the call may have had an effect. A grant that replicas have not acknowledged may exist for a while, or on another
/// primary. The lease of a renewal may end before the acknowledgement.
fn is_unknown(call: &Call) -> bool {
    match &call.outcome {
        Outcome::Unknown => true,
        Outcome::Error(error) => {
            let is_expired = matches!(call.command, Command::Renew(_)) && error.starts_with("NOTOWNER");
            let ends = ["NOREPLICAS", "UNBLOCKED"].iter().any(|word| error.starts_with(word));
            (ends || is_expired) && waits_for_replicas(&call.command)
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

/// The reply, unless it is missing or an error.
pub(super) fn reply(call: &Call) -> Option<&Value> {
    match &call.outcome {
        Outcome::Reply(reply) => Some(reply),
        _ => None,
    }
}

/// The value of a field in a flat map.
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

/// Converts milliseconds to microseconds.
pub(super) fn millis(ms: i64) -> Micros {
    ms.saturating_mul(MS).min(NEVER)
}
