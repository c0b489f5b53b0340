//! Holds that depend on a connection: renewed while it is open, or released when it closes.
//!
//! A binding belongs to an owner's hold on a lock, and ends with it: whoever takes the same lock later under the
//! same name starts without. What is to be written for it is written when the lock is brought up to date, in
//! the same way as everything else ([`Service::serve`]).

use std::collections::BTreeSet;

use super::ended::rounded;
use super::entries::Entry;
use super::pending::SetLease;
use super::service::Service;
use super::{
    Bind, ConnectionId, Holders, LockId, LockRef, MonoUs, Now, Owner, Part, Records, RequestId, WallMs,
};

/// The shortest time between two renewals, in microseconds, however short the lease.
const SHORTEST_INTERVAL_US: MonoUs = 1_000;

/// How many bindings are looked through at a time for what cannot come again.
const SWEEP_BATCH: usize = 1_000;

/// What a hold depends on.
pub(super) struct Binding {
    /// What the owner asked for last: the length of the lease that is renewed.
    lease_ms: i64,
    /// When the lease ended that was written last.
    lease_end: WallMs,
    /// Renew the lease as long as one of them is open.
    watchdogs: BTreeSet<ConnectionId>,
    /// When that is due; stands in `Service::renewals` too.
    due: Option<MonoUs>,
    /// End the hold when one of them closes.
    ephemeral: BTreeSet<ConnectionId>,
    /// One of them has closed.
    closed: bool,
    /// This server was not the primary for a while, or all keys were flushed and may be back: the owner may have
    /// got another hold.
    doubtful: bool,
    /// The requests that it comes from, as long as they may come again.
    requests: Vec<Bound>,
    /// The connections that calls without an id bound it to, or such as cannot come again.
    plain: BTreeSet<ConnectionId>,
    /// When to look for requests that cannot come again; stands in `Service::sweeps` too.
    sweep_at: Option<MonoUs>,
}

/// A request that bound a hold to a connection.
struct Bound {
    id: RequestId,
    connection: ConnectionId,
    ephemeral: bool,
    /// Until when its reply is remembered.
    until: MonoUs,
}

/// What becomes of the connections that a hold depends on already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// The hold depends on them too: each was promised so.
    Part,
    /// It does not depend on them any more: a renewal takes over.
    All,
    /// The same for the one that the same request came from before.
    Repeated,
}

impl Binding {
    fn new(lease: Lease) -> Binding {
        Binding {
            lease_ms: lease.ms,
            lease_end: lease.end,
            watchdogs: BTreeSet::new(),
            due: None,
            ephemeral: BTreeSet::new(),
            closed: false,
            doubtful: false,
            requests: Vec::new(),
            plain: BTreeSet::new(),
            sweep_at: None,
        }
    }

    fn interval_us(&self) -> MonoUs {
        let lease_us = self.lease_ms.unsigned_abs().saturating_mul(1000);
        (lease_us / 3).max(SHORTEST_INTERVAL_US)
    }

    fn depends_on(&self, connection: ConnectionId) -> bool {
        self.watchdogs.contains(&connection) || self.ephemeral.contains(&connection)
    }

    fn connections(&self) -> BTreeSet<ConnectionId> {
        self.watchdogs.union(&self.ephemeral).copied().collect()
    }

    /// A connection renews the lease no more. Returns when that was due, if no other one does: to be taken out of
    /// `Service::renewals`.
    fn unwatch(&mut self, connection: ConnectionId) -> Option<MonoUs> {
        let was_last = self.watchdogs.remove(&connection) && self.watchdogs.is_empty();
        was_last.then(|| self.due.take()).flatten()
    }

    /// Its connection has closed, and the hold is to end.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn is_ephemeral(&self) -> bool {
        !self.ephemeral.is_empty()
    }

    /// Forgets requests that cannot come again. What they bound stays so.
    fn forget_requests(&mut self, now: MonoUs) {
        for request in self.requests.extract_if(.., |request| request.until < now) {
            self.plain.insert(request.connection);
        }
        let (watchdogs, ephemeral) = (&self.watchdogs, &self.ephemeral);
        self.plain.retain(|connection| watchdogs.contains(connection) || ephemeral.contains(connection));
    }

    /// One that has requests which may come again is kept, to know their hold when they do.
    fn is_idle(&self, now: MonoUs) -> bool {
        let over = self.requests.iter().all(|request| request.until < now);
        self.watchdogs.is_empty() && self.ephemeral.is_empty() && !self.closed && over
    }
}

/// A lease that an owner was given.
#[derive(Clone, Copy)]
pub(super) struct Lease {
    pub(super) ms: i64,
    /// A longer one stays.
    pub(super) keeps_longer: bool,
    pub(super) end: WallMs,
}

impl Lease {
    /// This one, whatever there was before.
    pub(super) fn new(ms: i64, end: WallMs) -> Lease {
        Lease { ms, keeps_longer: false, end }
    }
}

impl Service {
    /// A connection was closed. True if that ended a hold, so that the caller must see to a
    /// [`tick`](Service::tick) soon.
    pub(crate) fn connection_closed(&mut self, connection: ConnectionId, now: Now) -> bool {
        for (lock, owner) in self.by_connection.remove(&connection).unwrap_or_default() {
            let Some(entry) = self.entries.get_mut(lock.as_ref()) else { continue };
            let Some(binding) = entry.bindings.get_mut(&owner) else { continue };
            if binding.ephemeral.remove(&connection) {
                binding.closed = true;
                if !self.suspended {
                    self.dirty.insert(lock.clone());
                }
            }
            if let Some(due) = binding.unwatch(connection) {
                self.renewals.remove(&(due, lock.clone(), owner.clone()));
            }
            binding.plain.remove(&connection);
            self.drop_binding_if_idle(&lock, &owner, now.mono);
        }
        !self.dirty.is_empty()
    }

    /// True if any hold depends on a connection.
    pub(crate) fn has_bindings(&self) -> bool {
        !self.by_connection.is_empty()
    }

    /// True if this server was not the primary when it was last told.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended
    }

    /// This server is the primary again.
    pub(crate) fn resume(&mut self) {
        self.suspended = false;
        for lock in self.entries.ids(None) {
            if self.entries.get(lock.as_ref()).is_some_and(|entry| !entry.bindings.is_empty()) {
                self.dirty.insert(lock);
            }
        }
    }

    /// This server is not the primary any more, and renews and releases nothing.
    pub(super) fn suspend_bindings(&mut self) {
        self.suspended = true;
        for (due, lock, owner) in std::mem::take(&mut self.renewals) {
            if let Some(binding) = self.binding(lock.as_ref(), &owner) {
                debug_assert_eq!(binding.due, Some(due));
                binding.due = None;
            }
        }
        for lock in self.entries.ids(None) {
            self.doubt_bindings(lock.as_ref());
        }
    }

    /// The holds may not be those any more that the bindings are about.
    pub(super) fn doubt_bindings(&mut self, lock: LockRef<'_>) {
        if let Some(entry) = self.entries.get_mut(lock) {
            entry.bindings.values_mut().for_each(|binding| binding.doubtful = true);
        }
    }

    /// The owner's hold depends on a connection from now on.
    pub(super) fn bind(
        &mut self,
        lock: LockRef<'_>,
        owner: &Owner,
        (bind, takes): (Bind, Takes),
        id: Option<&RequestId>,
        lease: Lease,
        now: Now,
    ) {
        let Bind { connection, watchdog, ephemeral } = bind;
        let (lock, entry) = self.entries.get_or_make(lock);
        let binding = entry.bindings.entry(owner.clone()).or_insert_with(|| Binding::new(lease));
        if binding.watchdogs.is_empty() {
            binding.lease_ms = lease.ms;
        }
        let before = binding.connections();
        let first = binding.requests.iter().position(|request| Some(&request.id) == id);
        let first = first.map(|at| binding.requests.swap_remove(at).connection);
        if let Some(first) = first.filter(|_| takes == Takes::Part) {
            binding.plain.insert(first);
        }
        let let_go = |from: &mut BTreeSet<ConnectionId>| match (takes, first) {
            (Takes::All, _) => from.clear(),
            (Takes::Repeated, Some(first)) => {
                from.remove(&first);
            }
            (Takes::Part | Takes::Repeated, _) => {}
        };
        if watchdog {
            let_go(&mut binding.watchdogs);
            binding.watchdogs.insert(connection);
        }
        if ephemeral {
            let_go(&mut binding.ephemeral);
            binding.ephemeral.insert(connection);
        }
        binding.forget_requests(now.mono);
        if let Some(id) = id {
            let until = now.mono.saturating_add(id.ttl_ms.unsigned_abs().saturating_mul(1000));
            binding.requests.push(Bound { id: id.clone(), connection, ephemeral, until });
            if binding.sweep_at.is_none() {
                binding.sweep_at = Some(rounded(until));
                self.sweeps.insert((rounded(until), lock.clone(), owner.clone()));
            }
        } else {
            binding.plain.insert(connection);
        }
        for other in before.into_iter().filter(|other| !binding.depends_on(*other)) {
            unlink(&mut self.by_connection, other, &lock, owner);
        }
        self.by_connection.entry(connection).or_default().insert((lock.clone(), owner.clone()));
        self.lease_was_set(lock.as_ref(), owner, lease, now);
    }

    /// True if this request bound the owner's hold to a connection before.
    pub(super) fn has_bound(&self, lock: LockRef<'_>, owner: &Owner, id: &RequestId) -> bool {
        let binding = self.entries.get(lock).and_then(|entry| entry.bindings.get(owner));
        binding.is_some_and(|binding| binding.requests.iter().any(|request| request.id == *id))
    }

    /// True if the hold that this request got has ended since.
    pub(super) fn has_ended(&self, lock: LockRef<'_>, id: &RequestId, now: Now) -> bool {
        !self.ended.is_empty() && self.ended.contains(&(lock.to_id(), id.clone()), now.mono)
    }

    /// A request has got a hold, whatever became of an earlier one with the same id.
    pub(super) fn has_begun(&mut self, lock: LockRef<'_>, id: &RequestId) {
        if !self.ended.is_empty() {
            self.ended.remove(&(lock.to_id(), id.clone()));
        }
    }

    /// The hold that this request got was given back: what is left of the owner's holds does not depend on its
    /// connection, unless another call made it so.
    pub(super) fn unbind_request(&mut self, lock: LockRef<'_>, owner: &Owner, id: &RequestId, now: Now) {
        let Some((lock, entry)) = self.entries.get_with_id(lock) else { return };
        let Some(binding) = entry.bindings.get_mut(owner) else { return };
        binding.forget_requests(now.mono);
        let Some(at) = binding.requests.iter().position(|request| request.id == *id) else { return };
        let connection = binding.requests.swap_remove(at).connection;
        let others = binding.requests.iter().any(|request| request.connection == connection);
        if others || binding.plain.contains(&connection) {
            return;
        }
        binding.ephemeral.remove(&connection);
        if let Some(due) = binding.unwatch(connection) {
            self.renewals.remove(&(due, lock.clone(), owner.clone()));
        }
        unlink(&mut self.by_connection, connection, &lock, owner);
        self.drop_binding_if_idle(&lock, owner, now.mono);
    }

    /// Forgets requests that cannot come again, and bindings that were kept for them.
    pub(super) fn sweep(&mut self, now: MonoUs) {
        self.ended.sweep(now);
        for _ in 0..SWEEP_BATCH {
            if self.sweeps.first().is_none_or(|(at, ..)| *at > now) {
                break;
            }
            let Some((_, lock, owner)) = self.sweeps.pop_first() else { break };
            let Some(binding) = self.binding(lock.as_ref(), &owner) else { continue };
            binding.forget_requests(now);
            binding.sweep_at = binding.requests.iter().map(|request| rounded(request.until)).min();
            if let Some(at) = binding.sweep_at {
                self.sweeps.insert((at, lock, owner));
            } else {
                self.drop_binding_if_idle(&lock, &owner, now);
            }
        }
    }

    fn drop_binding_if_idle(&mut self, lock: &LockId, owner: &Owner, now: MonoUs) {
        if self.binding(lock.as_ref(), owner).is_some_and(|binding| binding.is_idle(now)) {
            self.unbind(lock.as_ref(), owner);
            self.entries.drop_if_idle(lock.as_ref());
        }
    }

    /// The owner has set its lease: the next renewal is a third of that away.
    pub(super) fn lease_was_set(&mut self, lock: LockRef<'_>, owner: &Owner, lease: Lease, now: Now) {
        let Some(binding) = self.binding(lock, owner) else { return };
        // What is not renewed has no length that could be kept.
        let renewed = Some(binding.lease_ms).filter(|_| lease.keeps_longer && !binding.watchdogs.is_empty());
        binding.lease_ms = renewed.map_or(lease.ms, |renewed| renewed.max(lease.ms));
        binding.lease_end = lease.end;
        let due = now.mono.saturating_add(binding.interval_us());
        self.plan_renewal(lock, owner, due);
    }

    /// The owner's lease ends then, but what is renewed stays as it is.
    pub(super) fn lease_end_was_set(&mut self, lock: LockRef<'_>, owner: &Owner, end: WallMs) {
        if let Some(binding) = self.binding(lock, owner) {
            binding.lease_end = end;
        }
    }

    fn plan_renewal(&mut self, lock: LockRef<'_>, owner: &Owner, due: MonoUs) {
        let Some((lock, entry)) = self.entries.get_with_id(lock) else { return };
        let Some(binding) = entry.bindings.get_mut(owner) else { return };
        if binding.watchdogs.is_empty() {
            return;
        }
        if let Some(before) = binding.due.replace(due) {
            self.renewals.remove(&(before, lock.clone(), owner.clone()));
        }
        self.renewals.insert((due, lock, owner.clone()));
    }

    fn binding(&mut self, lock: LockRef<'_>, owner: &Owner) -> Option<&mut Binding> {
        self.entries.get_mut(lock)?.bindings.get_mut(owner)
    }

    /// The owner holds nothing any more.
    fn unbind(&mut self, lock: LockRef<'_>, owner: &Owner) {
        let Some((lock, entry)) = self.entries.get_with_id(lock) else { return };
        let Some(binding) = entry.bindings.remove(owner) else { return };
        if let Some(due) = binding.due {
            self.renewals.remove(&(due, lock.clone(), owner.clone()));
        }
        for connection in binding.connections() {
            unlink(&mut self.by_connection, connection, &lock, owner);
        }
        if let Some(at) = binding.sweep_at {
            self.sweeps.remove(&(at, lock.clone(), owner.clone()));
        }
        for request in binding.requests {
            self.ended.insert(lock.clone(), request.id, request.until);
        }
    }

    /// Ends the bindings of all owners that hold nothing any more.
    pub(super) fn unbind_where(&mut self, lock: LockRef<'_>, ended: impl Fn(&Owner) -> bool) {
        let Some(entry) = self.entries.get(lock) else { return };
        if entry.bindings.is_empty() {
            return;
        }
        let gone: Vec<Owner> = entry.bindings.keys().filter(|owner| ended(owner)).cloned().collect();
        for owner in gone {
            self.unbind(lock, &owner);
        }
    }

    /// Ends the holds whose connection has closed, and renews those whose time it is.
    pub(super) fn follow_connections(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        now: Now,
    ) {
        if self.suspended || self.entries.get(lock).is_none_or(|entry| entry.bindings.is_empty()) {
            return;
        }
        self.unbind_where(lock, |owner| holders.of(owner.as_bytes()).is_none());
        self.settle_doubts(lock, holders, now);
        let Some(entry) = self.entries.get_mut(lock) else { return };
        let mut ended = Vec::new();
        for (owner, binding) in entry.bindings.iter_mut().filter(|(_, binding)| binding.closed) {
            let _ = holders.release(owner.as_bytes(), Part::All, None);
            // One that is not remembered any more may name a later call.
            for request in
                binding.requests.iter().filter(|request| request.ephemeral && request.until >= now.mono)
            {
                records.forget_grant(&request.id);
            }
            ended.push(owner.clone());
        }
        let due = due_for_renewal(entry, now);
        for owner in ended {
            self.unbind(lock, &owner);
        }
        for (owner, ms) in due {
            let Some(hold) = holders.of(owner.as_bytes()) else { continue };
            // Somebody may have made it longer than we would.
            let end = now.wall.saturating_add(ms).max(hold.expires_at);
            if end > hold.expires_at {
                let _ = holders.renew(owner.as_bytes(), end);
            }
            self.settle_set(lock, &owner, Some((SetLease::AtLeast(now.wall.saturating_add(ms)), end)), None);
            self.lease_was_set(lock, &owner, Lease::new(ms, end), now);
        }
    }

    /// A doubtful hold whose lease is not the one that was written here last is another one.
    fn settle_doubts(&mut self, lock: LockRef<'_>, holders: &Holders, now: Now) {
        let Some(entry) = self.entries.get_mut(lock) else { return };
        let (mut others, mut sure) = (Vec::new(), Vec::new());
        for (owner, binding) in entry.bindings.iter_mut().filter(|(_, binding)| binding.doubtful) {
            binding.doubtful = false;
            let same = holders.of(owner.as_bytes()).is_some_and(|hold| hold.expires_at == binding.lease_end);
            if same {
                sure.push(owner.clone())
            } else {
                others.push(owner.clone())
            }
        }
        for owner in others {
            self.unbind(lock, &owner);
        }
        for owner in sure {
            self.plan_renewal(lock, &owner, now.mono);
        }
    }
}

/// Whose leases to renew, and how many milliseconds each is long: if one is due, others that will be soon too, so that a lock with many holders is
/// not read and written once for each.
fn due_for_renewal(entry: &Entry, now: Now) -> Vec<(Owner, i64)> {
    let due_within = |slack: fn(&Binding) -> MonoUs| {
        entry.bindings.iter().filter(move |(_, binding)| {
            !binding.closed && binding.due.is_some_and(|at| at <= now.mono.saturating_add(slack(binding)))
        })
    };
    if due_within(|_| 0).next().is_none() {
        return Vec::new();
    }
    due_within(|binding| binding.interval_us() / 4)
        .map(|(owner, binding)| (owner.clone(), binding.lease_ms))
        .collect()
}

fn unlink(
    by_connection: &mut super::service::ByConnection,
    connection: ConnectionId,
    lock: &LockId,
    owner: &Owner,
) {
    if let Some(holds) = by_connection.get_mut(&connection) {
        holds.remove(&(lock.clone(), owner.clone()));
        if holds.is_empty() {
            by_connection.remove(&connection);
        }
    }
}
