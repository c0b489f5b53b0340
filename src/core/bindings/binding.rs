// SPDX-License-Identifier: MIT

//! The connections and sessions that renew or end one owner's hold.

use smallvec::SmallVec;

use super::ended::rounded;
use crate::core::lease::Lease;
use crate::core::schedule::earlier;
use crate::core::sessions::SessionKey;
use crate::core::{Bind, ConnectionId, Hold, Mode, MonoUs, Now, RequestId, WallMs};

/// Minimum interval between two renewals, in microseconds, even for a very short lease.
const SHORTEST_INTERVAL_US: MonoUs = 1_000;

/// A set of connections; nearly always one.
pub(in crate::core) type Connections = SmallVec<[ConnectionId; 2]>;

/// The connections, sessions and requests that one hold depends on.
pub(in crate::core) struct Binding {
    /// Length of the renewed lease: the length that the owner most recently requested.
    lease_ms: i64,
    /// End of the lease as this server last wrote it.
    lease_end: WallMs,
    /// Time of the grant; `None` if the hold existed before it was bound.
    held_since: Option<MonoUs>,
    /// Connections that renew the lease while at least one of them is open.
    watchdogs: Connections,
    /// End of the renewals; `None` if they have no limit.
    renewed_until: Option<MonoUs>,
    /// Time of the next renewal, even if it lies after `renewed_until`; `None` while this server is not the
    /// primary.
    next: Option<MonoUs>,
    /// Connections that end the hold when any of them closes.
    ephemeral: Connections,
    /// Whether one of the ephemeral connections has closed.
    closed: bool,
    /// Whether the owner's hold may be a different one now. Set if this server was not the primary for a
    /// while, or after a flush that may be part of a reload.
    unverified: bool,
    /// Requests that bound this hold and may be repeated.
    requests: Vec<Bound>,
    /// Connections bound by calls without an id, or by calls that can no longer be repeated.
    plain: Connections,
    /// The owner's session-bound holds.
    numbers: SmallVec<[BoundNumber; 1]>,
    /// Time of the next sweep for requests that can no longer be repeated. The schedule of sweeps stores the
    /// same time.
    sweep_at: Option<MonoUs>,
}

/// A hold with a number in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) struct BoundNumber {
    pub(in crate::core) session: SessionKey,
    pub(in crate::core) n: u64,
    pub(in crate::core) mode: Mode,
    /// Whether the lease is renewed as long as the session lives.
    pub(in crate::core) renewed: bool,
    /// End of the renewals. `None` if they have no limit.
    pub(in crate::core) until: Option<MonoUs>,
    /// Whether the session has ended, so that the hold must be released.
    pub(in crate::core) ended: bool,
}

/// A request that bound a hold to a connection.
pub(in crate::core) struct Bound {
    id: RequestId,
    connection: ConnectionId,
    /// Time of the grant.
    since: MonoUs,
    /// Dependencies that later renewals took over. A late repetition of the request, on an abandoned
    /// connection, does not take them back.
    taken_over: TakenOver,
    /// Time until which the reply is remembered.
    until: MonoUs,
}

/// A call that makes a hold depend on a connection.
pub(in crate::core) struct NewBind {
    pub(in crate::core) bind: Bind,
    pub(in crate::core) mode: BindMode,
    /// Time of the grant, or of the call.
    pub(in crate::core) since: MonoUs,
    /// Whether the owner held nothing before the grant.
    pub(in crate::core) begins: bool,
    /// Dependencies that a renewal has already taken over.
    pub(in crate::core) taken_over: TakenOver,
}

impl NewBind {
    /// Binds a hold that existed before.
    pub(in crate::core) fn new(bind: Bind, mode: BindMode, since: MonoUs) -> NewBind {
        NewBind { bind, mode, since, begins: false, taken_over: TakenOver::default() }
    }
}

/// The dependencies that a renewal took over from an unconfirmed grant, or from a request that may be
/// repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::core) struct TakenOver {
    pub(in crate::core) watchdog: bool,
    pub(in crate::core) ephemeral: bool,
}

impl TakenOver {
    pub(in crate::core) fn add(&mut self, by: Bind) {
        self.watchdog |= by.watchdog;
        self.ephemeral |= by.ephemeral;
    }
}

/// How a new binding treats the connections that the hold already depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum BindMode {
    /// Keeps them: each connection was promised its binding.
    Add,
    /// Replaces all of them: a renewal takes over.
    ReplaceAll,
    /// Replaces only the connection that used the same `ID` before.
    ReplaceOwn,
}

impl Binding {
    pub(in crate::core) fn new(lease: Lease, held_since: Option<MonoUs>) -> Binding {
        Binding {
            held_since,
            lease_ms: lease.ms,
            lease_end: lease.end,
            watchdogs: Connections::new(),
            renewed_until: None,
            next: None,
            ephemeral: Connections::new(),
            closed: false,
            unverified: false,
            requests: Vec::new(),
            plain: Connections::new(),
            numbers: SmallVec::new(),
            sweep_at: None,
        }
    }

    /// Binds a hold to a number. Its lease has just been set.
    pub(in crate::core) fn bind_number(&mut self, number: BoundNumber, lease: Lease, now: Now) {
        if !self.is_watched() {
            self.lease_ms = lease.ms;
        }
        self.numbers.push(number);
        self.note_lease(lease, now);
    }

    /// Unbinds the hold of a number. Returns whether it was bound.
    pub(in crate::core) fn unbind_number(&mut self, session: SessionKey, n: u64) -> bool {
        let at = self.numbers.iter().position(|number| number.session == session && number.n == n);
        let removed = at.map(|at| self.numbers.remove(at)).is_some();
        self.forget_renewal_if_unwatched();
        removed
    }

    /// Renews the lease of a hold with a number from now on.
    pub(in crate::core) fn watch_number(
        &mut self,
        session: SessionKey,
        n: u64,
        until: Option<MonoUs>,
        now: Now,
    ) {
        let mut of = self.numbers.iter_mut();
        if let Some(number) = of.find(|number| number.session == session && number.n == n) {
            (number.renewed, number.until) = (true, until);
        }
        let due = self.due_by_end(now);
        self.plan_renewal(due);
    }

    /// Records that the session of a number has ended and that its hold must be released.
    pub(in crate::core) fn end_number(&mut self, session: SessionKey, n: u64) {
        for number in self.numbers.iter_mut().filter(|number| number.session == session && number.n == n) {
            (number.ended, number.renewed) = (true, false);
        }
        self.forget_renewal_if_unwatched();
    }

    /// Removes and returns the next number whose session has ended.
    pub(in crate::core) fn take_ended_number(&mut self) -> Option<BoundNumber> {
        let at = self.numbers.iter().position(|number| number.ended)?;
        Some(self.numbers.remove(at))
    }

    /// Removes and returns a number whose hold has reached its maximum age (R9).
    pub(in crate::core) fn take_overaged(&mut self, now: MonoUs) -> Option<BoundNumber> {
        let is_over = |number: &BoundNumber| number.renewed && number.until.is_some_and(|until| until <= now);
        let at = self.numbers.iter().position(is_over)?;
        let number = self.numbers.remove(at);
        self.forget_renewal_if_unwatched();
        Some(number)
    }

    /// Whether the owner has more numbers than holds.
    pub(in crate::core) fn has_excess(&self, hold: &Hold) -> bool {
        let exclusive = self.count_numbers(Mode::Exclusive);
        let exceeds = |len: usize, mode| i64::try_from(len).is_ok_and(|len| len > hold.count(mode));
        exceeds(exclusive, Mode::Exclusive) || exceeds(self.numbers.len() - exclusive, Mode::Shared)
    }

    fn exceeds(&self, hold: &Hold, mode: Mode) -> bool {
        self.count_numbers(mode) > usize::try_from(hold.count(mode)).unwrap_or_default()
    }

    /// Removes and returns the newest number in excess of the owner's holds.
    pub(in crate::core) fn take_excess(&mut self, hold: &Hold) -> Option<BoundNumber> {
        for mode in [Mode::Exclusive, Mode::Shared] {
            if self.exceeds(hold, mode) {
                let last = self.numbers.iter().rposition(|number| number.mode == mode)?;
                let number = self.numbers.remove(last);
                self.forget_renewal_if_unwatched();
                return Some(number);
            }
        }
        None
    }

    /// Returns how many holds of this mode have a number.
    pub(in crate::core) fn count_numbers(&self, mode: Mode) -> usize {
        self.numbers.iter().filter(|number| number.mode == mode).count()
    }

    pub(in crate::core) fn numbers(&self) -> &[BoundNumber] {
        &self.numbers
    }

    /// Whether any connection or session renews the lease.
    pub(in crate::core) fn is_watched(&self) -> bool {
        !self.watchdogs.is_empty() || self.is_renewed_for_session()
    }

    fn is_renewed_for_session(&self) -> bool {
        self.numbers.iter().any(|number| number.renewed)
    }

    fn forget_renewal_if_unwatched(&mut self) {
        if !self.is_watched() {
            self.next = None;
        }
    }

    /// Makes the hold depend on a connection. Returns the connections that no longer affect the hold.
    pub(in crate::core) fn bind(
        &mut self,
        NewBind { bind, mode, since, taken_over, .. }: NewBind,
        id: Option<&RequestId>,
        lease: Lease,
        now: Now,
    ) -> Connections {
        let Bind { connection, watchdog, max_ms, ephemeral } = bind;
        let was_renewed = !self.watchdogs.is_empty();
        if !self.is_watched() {
            self.lease_ms = lease.ms;
        }
        let before = self.connections();
        let first = self.requests.iter().position(|request| Some(&request.id) == id);
        let first = first.map(|at| self.requests.swap_remove(at));
        // A repeated call keeps the time of the original grant.
        let again = first.as_ref().filter(|_| mode == BindMode::ReplaceOwn);
        let (since, taken_over) = again.map_or((since, taken_over), |first| (first.since, first.taken_over));
        if mode == BindMode::ReplaceAll {
            self.requests.iter_mut().for_each(|request| request.taken_over.add(bind));
        }
        let first = first.map(|first| first.connection);
        if let Some(first) = first.filter(|_| mode == BindMode::Add) {
            insert(&mut self.plain, first);
        }
        let drop_replaced = |from: &mut Connections| match (mode, first) {
            (BindMode::ReplaceAll, _) => from.clear(),
            (BindMode::ReplaceOwn, Some(first)) => {
                remove(from, first);
            }
            (BindMode::Add | BindMode::ReplaceOwn, _) => {}
        };
        if watchdog && !taken_over.watchdog {
            drop_replaced(&mut self.watchdogs);
            insert(&mut self.watchdogs, connection);
            let until = max_ms.map(|ms| since.saturating_add(ms.get().saturating_mul(1000)));
            // Each connection was promised its own limit, so the latest limit applies.
            let later = || self.renewed_until.zip(until).map(|(one, other)| one.max(other));
            self.renewed_until = if was_renewed && mode != BindMode::ReplaceAll { later() } else { until };
        }
        if ephemeral && !taken_over.ephemeral {
            drop_replaced(&mut self.ephemeral);
            insert(&mut self.ephemeral, connection);
        }
        self.forget_requests(now.mono);
        if let Some(id) = id {
            let until = now.mono.saturating_add(id.ttl_ms.unsigned_abs().saturating_mul(1000));
            self.requests.push(Bound { id: id.clone(), connection, since, taken_over, until });
            self.sweep_at.get_or_insert(rounded(until));
        } else {
            insert(&mut self.plain, connection);
        }
        before.into_iter().filter(|other| !self.depends_on(*other)).collect()
    }

    /// Records that the owner has set its lease. If the lease is renewed, the next renewal is due after a
    /// third of it.
    pub(in crate::core) fn note_lease(&mut self, lease: Lease, now: Now) {
        // A lease that is not renewed has no length to keep. For a session, no call shortens it (R7).
        let keeps_longer = lease.keeps_longer || self.is_renewed_for_session();
        let renewed = Some(self.lease_ms).filter(|_| keeps_longer && self.is_watched());
        self.lease_ms = renewed.map_or(lease.ms, |renewed| renewed.max(lease.ms));
        self.lease_end = lease.end;
        self.plan_renewal(self.due_by_end(now));
    }

    /// Records a new end of the owner's lease. The renewed length stays the same; the next renewal may become
    /// due earlier.
    pub(in crate::core) fn note_lease_end(&mut self, end: WallMs, now: Now) {
        self.lease_end = end;
        let due = self.due_by_end(now);
        self.next = self.next.map(|planned| planned.min(due));
    }

    /// Time at which one third of the lease has passed. If a grant was confirmed late, this time may already
    /// be over.
    fn due_by_end(&self, now: Now) -> MonoUs {
        let left = self.lease_end.saturating_sub(now.wall);
        let over_us = self.lease_ms.saturating_sub(left).max(0).unsigned_abs().saturating_mul(1000);
        now.mono.saturating_add(self.interval_us().saturating_sub(over_us))
    }

    /// Schedules the next renewal, if any connection renews the lease.
    pub(in crate::core) fn plan_renewal(&mut self, due: MonoUs) {
        self.next = self.is_watched().then_some(due);
    }

    fn interval_us(&self) -> MonoUs {
        let lease_us = self.lease_ms.unsigned_abs().saturating_mul(1000);
        (lease_us / 3).max(SHORTEST_INTERVAL_US)
    }

    /// Returns the length of the lease if its renewal is due now or soon. Renewing several holds together
    /// saves one read and one write per hold of a lock with many holders.
    pub(in crate::core) fn due_lease(&self, now: Now) -> Option<i64> {
        let soon = now.mono.saturating_add(self.interval_us() / 4);
        (!self.closed && self.due().is_some_and(|at| at <= soon)).then_some(self.lease_ms)
    }

    /// End of the lease as this server last wrote it.
    pub(in crate::core) fn lease_end(&self) -> WallMs {
        self.lease_end
    }

    /// Time of the next renewal. The schedule of renewals stores the same time.
    pub(in crate::core) fn due(&self) -> Option<MonoUs> {
        let next = self.next?;
        let is_limited = || !self.is_renewed_for_session();
        let is_over = self.renewed_until.is_some_and(|until| next >= until && is_limited());
        // The session gets an event as soon as a hold of it is no longer renewed (R9).
        let limits = self.numbers.iter().filter(|number| number.renewed).filter_map(|number| number.until);
        earlier(Some(next).filter(|_| !is_over), limits.min())
    }

    pub(in crate::core) fn sweep_at(&self) -> Option<MonoUs> {
        self.sweep_at
    }

    pub(in crate::core) fn depends_on(&self, connection: ConnectionId) -> bool {
        self.watchdogs.contains(&connection) || self.ephemeral.contains(&connection)
    }

    /// The connections that the hold depends on.
    pub(in crate::core) fn connections(&self) -> Connections {
        self.each_connection().collect()
    }

    /// Iterates over the connections that the hold depends on, each once.
    pub(in crate::core) fn each_connection(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        let only_ephemeral = self.ephemeral.iter().filter(|connection| !self.watchdogs.contains(connection));
        self.watchdogs.iter().chain(only_ephemeral).copied()
    }

    /// Time of the grant, if it is known.
    pub(in crate::core) fn held_since(&self) -> Option<MonoUs> {
        self.held_since
    }

    /// The connection that was bound most recently.
    pub(in crate::core) fn client(&self) -> Option<ConnectionId> {
        self.watchdogs.last().or(self.ephemeral.last()).copied()
    }

    /// Whether the lease is renewed.
    pub(in crate::core) fn is_renewed(&self) -> bool {
        self.due().is_some()
    }

    /// Records that a connection has closed. Returns whether the hold must end.
    pub(in crate::core) fn connection_closed(&mut self, connection: ConnectionId) -> bool {
        let ends = remove(&mut self.ephemeral, connection);
        self.closed |= ends;
        remove(&mut self.plain, connection);
        self.unwatch(connection);
        ends
    }

    /// Stops renewing the lease for a connection.
    fn unwatch(&mut self, connection: ConnectionId) {
        if remove(&mut self.watchdogs, connection) {
            self.forget_renewal_if_unwatched();
        }
    }

    /// Records that the hold of this request was released. Returns the connection that the hold no longer
    /// depends on, if any.
    pub(in crate::core) fn unbind_request(&mut self, id: &RequestId, now: Now) -> Option<ConnectionId> {
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

    /// Whether this request bound the hold.
    pub(in crate::core) fn has_bound(&self, id: &RequestId) -> bool {
        self.requests.iter().any(|request| request.id == *id)
    }

    /// Ends the binding. Returns the requests that it remembers, each with the time until which it may be
    /// repeated.
    pub(in crate::core) fn take_requests(&mut self) -> impl Iterator<Item = (RequestId, MonoUs)> {
        std::mem::take(&mut self.requests).into_iter().map(|request| (request.id, request.until))
    }

    /// The requests that bound this hold and are still remembered. Forgotten requests are excluded, because a
    /// later call may use the same id.
    pub(in crate::core) fn requests(&self, now: Now) -> impl Iterator<Item = &RequestId> {
        self.requests.iter().filter(move |request| request.until >= now.mono).map(|request| &request.id)
    }

    /// Whether an ephemeral connection has closed, so that the hold must end.
    pub(in crate::core) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(in crate::core) fn is_ephemeral(&self) -> bool {
        !self.ephemeral.is_empty()
    }

    /// Stops renewals and releases until [`Binding::revalidate`].
    pub(in crate::core) fn suspend(&mut self) {
        self.next = None;
        self.unverified = true;
    }

    /// Records that the owner's hold may be a different one now.
    pub(in crate::core) fn mark_unverified(&mut self) {
        self.unverified = true;
    }

    pub(in crate::core) fn is_unverified(&self) -> bool {
        self.unverified
    }

    /// Decides whether the owner's current hold is the one that was bound, given the end of its lease. An
    /// unverified hold is the same only if its lease ends exactly as this server last wrote it.
    pub(in crate::core) fn revalidate(&mut self, lease_end: Option<WallMs>) -> bool {
        self.unverified = false;
        lease_end == Some(self.lease_end)
    }

    /// Forgets requests that can no longer be repeated. Their connections stay bound.
    fn forget_requests(&mut self, now: MonoUs) {
        for request in self.requests.extract_if(.., |request| request.until < now) {
            insert(&mut self.plain, request.connection);
        }
        let (watchdogs, ephemeral) = (&self.watchdogs, &self.ephemeral);
        self.plain.retain(|connection| watchdogs.contains(connection) || ephemeral.contains(connection));
    }

    /// Forgets requests that can no longer be repeated. Returns the time of the next sweep.
    pub(in crate::core) fn sweep(&mut self, now: MonoUs) -> Option<MonoUs> {
        self.forget_requests(now);
        self.sweep_at = self.requests.iter().map(|request| rounded(request.until)).min();
        self.sweep_at
    }

    /// Whether the binding can be dropped. A binding is kept while its requests may be repeated, so that a
    /// repetition finds its hold.
    pub(in crate::core) fn is_idle(&self, now: MonoUs) -> bool {
        let over = self.requests.iter().all(|request| request.until < now);
        !self.is_bound() && !self.closed && over
    }

    /// Whether the hold depends on any connection, or belongs to a session.
    pub(in crate::core) fn is_bound(&self) -> bool {
        !self.watchdogs.is_empty() || !self.ephemeral.is_empty() || !self.numbers.is_empty()
    }

    /// The session that was bound most recently.
    pub(in crate::core) fn session(&self) -> Option<SessionKey> {
        self.numbers.last().map(|number| number.session)
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
