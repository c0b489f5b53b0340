// SPDX-License-Identifier: MIT

//! What one owner's hold depends on: connections that keep it, or end it.

use smallvec::SmallVec;

use super::ended::rounded;
use super::lease::Lease;
use super::{Bind, ConnectionId, MonoUs, Now, RequestId, WallMs};

/// The shortest time between two renewals, in microseconds, however short the lease.
const SHORTEST_INTERVAL_US: MonoUs = 1_000;

/// A set of connections; nearly always one.
pub(super) type Connections = SmallVec<[ConnectionId; 2]>;

/// What a hold depends on.
pub(super) struct Binding {
    /// What the owner asked for last: the length of the lease that is renewed.
    lease_ms: i64,
    /// When the lease ended that was written last.
    lease_end: WallMs,
    /// When the hold was granted; `None` if it was there before it was bound.
    held_since: Option<MonoUs>,
    /// Renew the lease as long as one of them is open.
    watchdogs: Connections,
    /// Until when they do; `None`: without limit.
    renewed_until: Option<MonoUs>,
    /// When the next renewal would be due, whether it is in time or not; none while this server is not the primary.
    next: Option<MonoUs>,
    /// End the hold when one of them closes.
    ephemeral: Connections,
    /// One of them has closed.
    closed: bool,
    /// This server was not the primary for a while, or all keys were flushed and may be back: the owner may have
    /// got another hold.
    doubtful: bool,
    /// The requests that it comes from, as long as they may come again.
    requests: Vec<Bound>,
    /// The connections that calls without an id bound it to, or such as cannot come again.
    plain: Connections,
    /// When to look for requests that cannot come again; on the schedule of sweeps too.
    sweep_at: Option<MonoUs>,
}

/// A request that bound a hold to a connection.
pub(super) struct Bound {
    id: RequestId,
    connection: ConnectionId,
    /// When the hold was granted.
    since: MonoUs,
    /// What later renewals took over: the request may still come late, on a connection that nobody uses any more, and gets
    /// nothing of it back then.
    overtaken: Overtaken,
    /// Until when its reply is remembered.
    until: MonoUs,
}

/// A call makes a hold depend on a connection.
pub(super) struct NewBind {
    pub(super) bind: Bind,
    pub(super) takes: Takes,
    /// When the hold was granted, or the call was made.
    pub(super) since: MonoUs,
    /// The owner has held nothing before.
    pub(super) begins: bool,
    /// What does not depend on the connection any more.
    pub(super) overtaken: Overtaken,
}

/// What renewals took over: of a grant, before it was known that its client got it, or of a request that may come again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Overtaken {
    pub(super) watchdog: bool,
    pub(super) ephemeral: bool,
}

impl Overtaken {
    pub(super) fn add(&mut self, by: Bind) {
        self.watchdog |= by.watchdog;
        self.ephemeral |= by.ephemeral;
    }
}

/// What becomes of the connections that a hold depends on already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// The hold depends on them too: each was promised so.
    Part,
    /// It does not depend on them any more: a renewal takes over.
    All,
    /// It does not depend any more on the one that the same request came from before.
    Repeated,
}

impl Binding {
    pub(super) fn new(lease: Lease, held_since: Option<MonoUs>) -> Binding {
        Binding {
            held_since,
            lease_ms: lease.ms,
            lease_end: lease.end,
            watchdogs: Connections::new(),
            renewed_until: None,
            next: None,
            ephemeral: Connections::new(),
            closed: false,
            doubtful: false,
            requests: Vec::new(),
            plain: Connections::new(),
            sweep_at: None,
        }
    }

    /// Makes the hold depend on a connection. Returns those on which it does not depend any more.
    #[inline(always)]
    pub(super) fn bind(
        &mut self,
        NewBind { bind, takes, since, overtaken, .. }: NewBind,
        id: Option<&RequestId>,
        lease: Lease,
        now: Now,
    ) -> Connections {
        let Bind { connection, watchdog, max_ms, ephemeral } = bind;
        let was_renewed = !self.watchdogs.is_empty();
        if !was_renewed {
            self.lease_ms = lease.ms;
        }
        let before = self.connections();
        let first = self.requests.iter().position(|request| Some(&request.id) == id);
        let first = first.map(|at| self.requests.swap_remove(at));
        // The age of a hold counts from its grant, not from when that was told again.
        let again = first.as_ref().filter(|_| takes == Takes::Repeated);
        let (since, overtaken) = again.map_or((since, overtaken), |first| (first.since, first.overtaken));
        if takes == Takes::All {
            self.requests.iter_mut().for_each(|request| request.overtaken.add(bind));
        }
        let first = first.map(|first| first.connection);
        if let Some(first) = first.filter(|_| takes == Takes::Part) {
            insert(&mut self.plain, first);
        }
        let let_go = |from: &mut Connections| match (takes, first) {
            (Takes::All, _) => from.clear(),
            (Takes::Repeated, Some(first)) => {
                remove(from, first);
            }
            (Takes::Part | Takes::Repeated, _) => {}
        };
        if watchdog && !overtaken.watchdog {
            let_go(&mut self.watchdogs);
            insert(&mut self.watchdogs, connection);
            let until = max_ms.map(|ms| since.saturating_add(ms.get().saturating_mul(1000)));
            // Each was promised its time.
            let later = || self.renewed_until.zip(until).map(|(one, other)| one.max(other));
            self.renewed_until = if was_renewed && takes != Takes::All { later() } else { until };
        }
        if ephemeral && !overtaken.ephemeral {
            let_go(&mut self.ephemeral);
            insert(&mut self.ephemeral, connection);
        }
        self.forget_requests(now.mono);
        if let Some(id) = id {
            let until = now.mono.saturating_add(id.ttl_ms.unsigned_abs().saturating_mul(1000));
            self.requests.push(Bound { id: id.clone(), connection, since, overtaken, until });
            self.sweep_at.get_or_insert(rounded(until));
        } else {
            insert(&mut self.plain, connection);
        }
        before.into_iter().filter(|other| !self.depends_on(*other)).collect()
    }

    /// The owner has set its lease. If it is renewed, that is due next when a third of it is over.
    pub(super) fn lease_was_set(&mut self, lease: Lease, now: Now) {
        // What is not renewed has no length that could be kept.
        let renewed = Some(self.lease_ms).filter(|_| lease.keeps_longer && !self.watchdogs.is_empty());
        self.lease_ms = renewed.map_or(lease.ms, |renewed| renewed.max(lease.ms));
        self.lease_end = lease.end;
        self.plan_renewal(self.due_by_end(now));
    }

    /// The owner's lease ends then, but what is renewed stays as it is. That may be due earlier now.
    pub(super) fn lease_end_was_set(&mut self, end: WallMs, now: Now) {
        self.lease_end = end;
        let due = self.due_by_end(now);
        self.next = self.next.map(|planned| planned.min(due));
    }

    /// When a third of the lease is over. Some of it may be over already: a grant may have been confirmed late.
    fn due_by_end(&self, now: Now) -> MonoUs {
        let left = self.lease_end.saturating_sub(now.wall);
        let over_us = self.lease_ms.saturating_sub(left).max(0).unsigned_abs().saturating_mul(1000);
        now.mono.saturating_add(self.interval_us().saturating_sub(over_us))
    }

    /// Plans a renewal, if there are any.
    pub(super) fn plan_renewal(&mut self, due: MonoUs) {
        self.next = (!self.watchdogs.is_empty()).then_some(due);
    }

    fn interval_us(&self) -> MonoUs {
        let lease_us = self.lease_ms.unsigned_abs().saturating_mul(1000);
        (lease_us / 3).max(SHORTEST_INTERVAL_US)
    }

    /// The length of the lease that is to be renewed by now; also one that is to be soon, so that a lock with many holders is
    /// not read and written once for each.
    pub(super) fn due_lease(&self, now: Now) -> Option<i64> {
        let soon = now.mono.saturating_add(self.interval_us() / 4);
        (!self.closed && self.due().is_some_and(|at| at <= soon)).then_some(self.lease_ms)
    }

    /// When a renewal is due; on the schedule of renewals too.
    pub(super) fn due(&self) -> Option<MonoUs> {
        self.next.filter(|at| self.renewed_until.is_none_or(|until| *at < until))
    }

    pub(super) fn sweep_at(&self) -> Option<MonoUs> {
        self.sweep_at
    }

    pub(super) fn depends_on(&self, connection: ConnectionId) -> bool {
        self.watchdogs.contains(&connection) || self.ephemeral.contains(&connection)
    }

    /// The connections that it depends on.
    #[inline(always)]
    pub(super) fn connections(&self) -> Connections {
        self.each_connection().collect()
    }

    /// The same, one by one.
    pub(super) fn each_connection(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        let only_ephemeral = self.ephemeral.iter().filter(|connection| !self.watchdogs.contains(connection));
        self.watchdogs.iter().chain(only_ephemeral).copied()
    }

    /// When the hold was granted, if that is known.
    pub(super) fn held_since(&self) -> Option<MonoUs> {
        self.held_since
    }

    /// The connection on which it depends since last.
    pub(super) fn client(&self) -> Option<ConnectionId> {
        self.watchdogs.last().or(self.ephemeral.last()).copied()
    }

    /// The lease is renewed.
    pub(super) fn is_renewed(&self) -> bool {
        self.due().is_some()
    }

    /// A connection has closed. Returns whether the hold is to end.
    pub(super) fn connection_closed(&mut self, connection: ConnectionId) -> bool {
        let ends = remove(&mut self.ephemeral, connection);
        self.closed |= ends;
        remove(&mut self.plain, connection);
        self.unwatch(connection);
        ends
    }

    /// A connection renews the lease no more.
    fn unwatch(&mut self, connection: ConnectionId) {
        if remove(&mut self.watchdogs, connection) && self.watchdogs.is_empty() {
            self.next = None;
        }
    }

    /// The hold that this request got was given back. Returns the connection that the hold does not depend on any more, if
    /// there is one.
    pub(super) fn unbind_request(&mut self, id: &RequestId, now: Now) -> Option<ConnectionId> {
        self.forget_requests(now.mono);
        let at = self.requests.iter().position(|request| request.id == *id)?;
        let connection = self.requests.swap_remove(at).connection;
        let others = self.requests.iter().any(|request| request.connection == connection);
        if others || self.plain.contains(&connection) {
            return None;
        }
        remove(&mut self.ephemeral, connection);
        self.unwatch(connection);
        Some(connection)
    }

    /// True if this request bound the hold.
    pub(super) fn has_bound(&self, id: &RequestId) -> bool {
        self.requests.iter().any(|request| request.id == *id)
    }

    /// The binding ends. Returns the requests that it remembers, each with the time until when it may come again.
    pub(super) fn take_requests(&mut self) -> impl Iterator<Item = (RequestId, MonoUs)> {
        std::mem::take(&mut self.requests).into_iter().map(|request| (request.id, request.until))
    }

    /// The requests that it comes from and that are still remembered. One that is not remembered any more may name a later call.
    pub(super) fn requests(&self, now: Now) -> impl Iterator<Item = &RequestId> {
        self.requests.iter().filter(move |request| request.until >= now.mono).map(|request| &request.id)
    }

    /// Its connection has closed, and the hold is to end.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn is_ephemeral(&self) -> bool {
        !self.ephemeral.is_empty()
    }

    /// Renews and ends nothing until [`Binding::settle_doubt`].
    pub(super) fn suspend(&mut self) {
        self.next = None;
        self.doubtful = true;
    }

    /// The hold may not be the one any more that this is about.
    pub(super) fn doubt(&mut self) {
        self.doubtful = true;
    }

    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// The owner's lease ends then, if it holds anything. Returns whether that is the hold that this is about: a doubtful hold
    /// whose lease is not the one that was written here last is another one.
    pub(super) fn settle_doubt(&mut self, lease_end: Option<WallMs>) -> bool {
        self.doubtful = false;
        lease_end == Some(self.lease_end)
    }

    /// Forgets requests that cannot come again. What they bound stays so.
    fn forget_requests(&mut self, now: MonoUs) {
        for request in self.requests.extract_if(.., |request| request.until < now) {
            insert(&mut self.plain, request.connection);
        }
        let (watchdogs, ephemeral) = (&self.watchdogs, &self.ephemeral);
        self.plain.retain(|connection| watchdogs.contains(connection) || ephemeral.contains(connection));
    }

    /// Looks for requests that cannot come again. Returns when to look for the next ones.
    pub(super) fn sweep(&mut self, now: MonoUs) -> Option<MonoUs> {
        self.forget_requests(now);
        self.sweep_at = self.requests.iter().map(|request| rounded(request.until)).min();
        self.sweep_at
    }

    /// One that has requests which may come again is kept, to know their hold when they do.
    pub(super) fn is_idle(&self, now: MonoUs) -> bool {
        let over = self.requests.iter().all(|request| request.until < now);
        self.watchdogs.is_empty() && self.ephemeral.is_empty() && !self.closed && over
    }
}

fn insert(connections: &mut Connections, connection: ConnectionId) {
    if !connections.contains(&connection) {
        connections.push(connection);
    }
}

fn remove(connections: &mut Connections, connection: ConnectionId) -> bool {
    let at = connections.iter().position(|other| *other == connection);
    at.map(|at| connections.swap_remove(at)).is_some()
}
