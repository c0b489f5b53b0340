//! Holds that depend on a connection: renewed while it is open, or released when it closes.
//!
//! A binding belongs to an owner's hold on a lock, and ends with it: whoever takes the same lock later under the
//! same name starts without. What is to be written for it is written when the lock is brought up to date, in
//! the same way as everything else ([`Service::serve`]).

use super::entries::Entry;
use super::service::Service;
use super::{
    Bind, ConnectionId, Holders, LockId, LockRef, MonoUs, Now, Owner, Part, Records, RequestId, WallMs,
};

/// The shortest time between two renewals, in microseconds, however short the lease.
const SHORTEST_INTERVAL_US: MonoUs = 1_000;

/// What a hold depends on.
pub(super) struct Binding {
    /// What the owner asked for last: the length of the lease that is renewed.
    lease_ms: i64,
    /// When the lease ended that was written last.
    lease_end: WallMs,
    /// Renews the lease as long as it is open.
    watchdog: Option<ConnectionId>,
    /// When that is due; stands in `Service::renewals` too.
    due: Option<MonoUs>,
    /// Ends the hold when it closes.
    ephemeral: Option<ConnectionId>,
    /// It has closed.
    closed: bool,
    /// This server was not the primary for a while, or all keys were flushed and may be back: the owner may have
    /// got another hold.
    doubtful: bool,
    /// Requests of the ephemeral connection whose replies would be wrong when the hold has ended, and until
    /// when they are remembered.
    requests: Vec<(RequestId, MonoUs)>,
}

impl Binding {
    fn interval_us(&self) -> MonoUs {
        let lease_us = self.lease_ms.unsigned_abs().saturating_mul(1000);
        (lease_us / 3).max(SHORTEST_INTERVAL_US)
    }

    fn depends_on(&self, connection: ConnectionId) -> bool {
        self.watchdog == Some(connection) || self.ephemeral == Some(connection)
    }

    /// Its connection has closed, and the hold is to end.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn is_ephemeral(&self) -> bool {
        self.ephemeral.is_some()
    }

    fn is_idle(&self) -> bool {
        self.watchdog.is_none() && self.ephemeral.is_none() && !self.closed
    }
}

/// A lease that an owner was given.
#[derive(Clone, Copy)]
pub(super) struct Lease {
    pub(super) ms: i64,
    pub(super) end: WallMs,
}

impl Service {
    /// A connection was closed. True if that ended a hold, so that the caller must see to a
    /// [`tick`](Service::tick) soon.
    pub(crate) fn connection_closed(&mut self, connection: ConnectionId) -> bool {
        for (lock, owner) in self.by_connection.remove(&connection).unwrap_or_default() {
            let Some(entry) = self.entries.get_mut(lock.as_ref()) else { continue };
            let Some(binding) = entry.bindings.get_mut(&owner) else { continue };
            if binding.ephemeral == Some(connection) {
                binding.ephemeral = None;
                binding.closed = true;
                if !self.suspended {
                    self.dirty.insert(lock.clone());
                }
            }
            if binding.watchdog == Some(connection) {
                binding.watchdog = None;
                if let Some(due) = binding.due.take() {
                    self.renewals.remove(&(due, lock.clone(), owner.clone()));
                }
            }
            if binding.is_idle() {
                entry.bindings.remove(&owner);
                self.entries.drop_if_idle(lock.as_ref());
            }
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

    /// The owner's hold depends on a connection from now on, and no more on the one before, as far as `bind`
    /// says so.
    pub(super) fn bind(
        &mut self,
        lock: LockRef<'_>,
        owner: &Owner,
        bind: Bind,
        id: Option<&RequestId>,
        lease: Lease,
        now: Now,
    ) {
        let Bind { connection, watchdog, ephemeral } = bind;
        let (lock, entry) = self.entries.get_or_make(lock);
        let binding = entry.bindings.entry(owner.clone()).or_insert(Binding {
            lease_ms: lease.ms,
            lease_end: lease.end,
            watchdog: None,
            due: None,
            ephemeral: None,
            closed: false,
            doubtful: false,
            requests: Vec::new(),
        });
        let mut before = [None, None];
        if watchdog {
            before[0] = binding.watchdog.replace(connection);
        }
        if ephemeral {
            before[1] = binding.ephemeral.replace(connection);
            binding.requests.retain(|(_, until)| *until >= now.mono);
            if let Some(id) = id {
                let until = now.mono.saturating_add(id.ttl_ms.unsigned_abs().saturating_mul(1000));
                binding.requests.push((id.clone(), until));
            }
        }
        for other in before.into_iter().flatten().filter(|other| *other != connection) {
            if !binding.depends_on(other) {
                unlink(&mut self.by_connection, other, &lock, owner);
            }
        }
        self.by_connection.entry(connection).or_default().insert((lock.clone(), owner.clone()));
        self.lease_was_set(lock.as_ref(), owner, lease, now);
    }

    /// The owner has set its lease: the next renewal is a third of that away.
    pub(super) fn lease_was_set(&mut self, lock: LockRef<'_>, owner: &Owner, lease: Lease, now: Now) {
        if self.by_connection.is_empty() {
            return;
        }
        let Some(binding) = self.binding(lock, owner) else { return };
        binding.lease_ms = lease.ms;
        binding.lease_end = lease.end;
        let due = now.mono.saturating_add(binding.interval_us());
        self.plan_renewal(lock, owner, due);
    }

    fn plan_renewal(&mut self, lock: LockRef<'_>, owner: &Owner, due: MonoUs) {
        let Some((lock, entry)) = self.entries.get_with_id(lock) else { return };
        let Some(binding) = entry.bindings.get_mut(owner) else { return };
        if binding.watchdog.is_none() {
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
        for connection in [binding.watchdog, binding.ephemeral].into_iter().flatten() {
            unlink(&mut self.by_connection, connection, &lock, owner);
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
            for (id, _) in binding.requests.drain(..).filter(|(_, until)| *until >= now.mono) {
                records.forget_grant(&id);
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
            self.lease_was_set(lock, &owner, Lease { ms, end }, now);
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
