//! Holds that depend on a connection: renewed while it is open, or released when it closes.
//!
//! A binding belongs to an owner's hold on a lock, and ends with it: whoever takes the same lock later under the
//! same name starts without. What is to be written for it is written when the lock is looked at.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use smallvec::SmallVec;

use super::ended::{rounded, Ended};
use super::lease::{Lease, SetLease};
use super::schedule::Schedule;
use super::table::LockIdx;
use super::{Bind, ConnectionId, Holders, LockId, MonoUs, Now, Owner, Part, Records, RequestId, WallMs};

/// The shortest time between two renewals, in microseconds, however short the lease.
const SHORTEST_INTERVAL_US: MonoUs = 1_000;

/// How many bindings are looked through at a time for what cannot come again.
const SWEEP_BATCH: usize = 1_000;

/// What a hold depends on.
struct Binding {
    /// What the owner asked for last: the length of the lease that is renewed.
    lease_ms: i64,
    /// When the lease ended that was written last.
    lease_end: WallMs,
    /// Renew the lease as long as one of them is open.
    watchdogs: BTreeSet<ConnectionId>,
    /// When that is due; on the schedule of renewals too, but not while this server is not the primary.
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
    /// When to look for requests that cannot come again; on the schedule of sweeps too.
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

    /// A connection renews the lease no more. Returns whether none does any more.
    fn unwatch(&mut self, connection: ConnectionId) -> bool {
        let was_last = self.watchdogs.remove(&connection) && self.watchdogs.is_empty();
        if was_last {
            self.due = None;
        }
        was_last
    }

    /// Its connection has closed, and the hold is to end.
    fn is_closed(&self) -> bool {
        self.closed
    }

    fn is_ephemeral(&self) -> bool {
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

/// A hold that depends on a connection.
type BoundHold = (LockIdx, Owner);

/// All bindings, the schedules that go with them, and the requests that have had one.
#[derive(Default)]
pub(super) struct Sessions {
    /// The bindings of each lock that has some.
    bindings: HashMap<LockIdx, BTreeMap<Owner, Binding>>,
    /// Which holds depend on a connection.
    by_connection: HashMap<ConnectionId, BTreeSet<BoundHold>>,
    /// When a watchdog is to renew.
    renewals: Schedule<MonoUs, BoundHold>,
    /// When to look through a binding for requests that cannot come again.
    sweeps: Schedule<MonoUs, BoundHold>,
    /// Requests that bound a hold which has ended.
    ended: Ended,
    /// This server is not the primary: bindings wait to see whether it will be again.
    suspended: bool,
}

impl Sessions {
    /// True if a hold of this lock depends on a connection, or did.
    pub(super) fn knows(&self, lock: LockIdx) -> bool {
        !self.bindings.is_empty() && self.bindings.contains_key(&lock)
    }

    /// True if any hold depends on a connection.
    pub(super) fn any_bound(&self) -> bool {
        !self.by_connection.is_empty()
    }

    fn binding(&mut self, lock: LockIdx, owner: &Owner) -> Option<&mut Binding> {
        if self.bindings.is_empty() {
            return None;
        }
        self.bindings.get_mut(&lock)?.get_mut(owner)
    }

    /// The owner's hold depends on a connection from now on.
    pub(super) fn bind(
        &mut self,
        (lock, owner): (LockIdx, &Owner),
        (bind, takes): (Bind, Takes),
        id: Option<&RequestId>,
        lease: Lease,
        now: Now,
    ) {
        let Bind { connection, watchdog, ephemeral } = bind;
        let hold = (lock, owner.clone());
        let of_lock = self.bindings.entry(lock).or_default();
        let binding = of_lock.entry(owner.clone()).or_insert_with(|| Binding::new(lease));
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
                self.sweeps.set(&hold, binding.sweep_at);
            }
        } else {
            binding.plain.insert(connection);
        }
        for other in before.into_iter().filter(|other| !binding.depends_on(*other)) {
            unlink(&mut self.by_connection, other, &hold);
        }
        self.by_connection.entry(connection).or_default().insert(hold);
        self.lease_was_set(lock, owner, lease, now);
    }

    /// The owner has set its lease: the next renewal is a third of that away.
    pub(super) fn lease_was_set(&mut self, lock: LockIdx, owner: &Owner, lease: Lease, now: Now) {
        let Some(binding) = self.binding(lock, owner) else { return };
        // What is not renewed has no length that could be kept.
        let renewed = Some(binding.lease_ms).filter(|_| lease.keeps_longer && !binding.watchdogs.is_empty());
        binding.lease_ms = renewed.map_or(lease.ms, |renewed| renewed.max(lease.ms));
        binding.lease_end = lease.end;
        let due = now.mono.saturating_add(binding.interval_us());
        self.plan_renewal(lock, owner, due);
    }

    /// The owner's lease ends then, but what is renewed stays as it is.
    pub(super) fn lease_end_was_set(&mut self, lock: LockIdx, owner: &Owner, end: WallMs) {
        if let Some(binding) = self.binding(lock, owner) {
            binding.lease_end = end;
        }
    }

    fn plan_renewal(&mut self, lock: LockIdx, owner: &Owner, due: MonoUs) {
        let Some(binding) = self.binding(lock, owner).filter(|binding| !binding.watchdogs.is_empty()) else {
            return;
        };
        binding.due = Some(due);
        self.renewals.set(&(lock, owner.clone()), Some(due));
    }

    /// True if this request bound the owner's hold to a connection before.
    pub(super) fn has_bound(&self, lock: LockIdx, owner: &Owner, id: &RequestId) -> bool {
        let binding = self.bindings.get(&lock).and_then(|of_lock| of_lock.get(owner));
        binding.is_some_and(|binding| binding.requests.iter().any(|request| request.id == *id))
    }

    /// True if the hold that this request got has ended since.
    pub(super) fn has_ended(&self, lock: impl FnOnce() -> LockId, id: &RequestId, now: Now) -> bool {
        !self.ended.is_empty() && self.ended.contains(&(lock(), id.clone()), now.mono)
    }

    /// A request has got a hold, whatever became of an earlier one with the same id.
    pub(super) fn has_begun(&mut self, lock: impl FnOnce() -> LockId, id: &RequestId) {
        if !self.ended.is_empty() {
            self.ended.remove(&(lock(), id.clone()));
        }
    }

    /// The hold that this request got was given back: what is left of the owner's holds does not depend on its
    /// connection, unless another call made it so.
    pub(super) fn unbind_request(&mut self, lock: LockIdx, owner: &Owner, id: &RequestId, now: Now) {
        let Some(binding) = self.binding(lock, owner) else { return };
        binding.forget_requests(now.mono);
        let Some(at) = binding.requests.iter().position(|request| request.id == *id) else { return };
        let connection = binding.requests.swap_remove(at).connection;
        let others = binding.requests.iter().any(|request| request.connection == connection);
        if others || binding.plain.contains(&connection) {
            return;
        }
        binding.ephemeral.remove(&connection);
        let hold = (lock, owner.clone());
        if binding.unwatch(connection) {
            self.renewals.set(&hold, None);
        }
        unlink(&mut self.by_connection, connection, &hold);
        self.drop_if_idle(&hold, now.mono);
    }

    /// A connection was closed. Returns the locks whose holds depended on it, and whether a hold is to end with it.
    pub(super) fn connection_closed(
        &mut self,
        connection: ConnectionId,
        now: Now,
    ) -> SmallVec<[(LockIdx, bool); 4]> {
        let mut concerned = SmallVec::new();
        for hold in self.by_connection.remove(&connection).unwrap_or_default() {
            let Some(binding) = self.binding(hold.0, &hold.1) else { continue };
            let ends = binding.ephemeral.remove(&connection);
            binding.closed |= ends;
            binding.plain.remove(&connection);
            if binding.unwatch(connection) {
                self.renewals.set(&hold, None);
            }
            concerned.push((hold.0, ends));
            self.drop_if_idle(&hold, now.mono);
        }
        concerned
    }

    /// Owners whose holds are to end, as a connection has closed.
    pub(super) fn closed(&self, lock: LockIdx) -> impl Iterator<Item = &Owner> {
        let of_lock = self.bindings.get(&lock).into_iter().flatten().filter(|_| !self.suspended);
        of_lock.filter(|(_, binding)| binding.is_closed()).map(|(owner, _)| owner)
    }

    /// The locks with holds that a watchdog is to renew by now. They stay due until the lock is looked at.
    pub(super) fn due_for_renewal(&self, now: Now) -> impl Iterator<Item = LockIdx> + '_ {
        self.renewals.due(now.mono).map(|(lock, _)| *lock)
    }

    /// When the next renewal is due.
    pub(super) fn next_renewal(&self) -> Option<MonoUs> {
        self.renewals.first()
    }

    /// When [`sweep`](Sessions::sweep) has something to do.
    pub(super) fn next_sweep(&self) -> Option<MonoUs> {
        self.sweeps.first().into_iter().chain(self.ended.due()).min()
    }

    /// Forgets requests that cannot come again, and bindings that were kept for them. Returns the locks of the latter.
    pub(super) fn sweep(&mut self, now: MonoUs) -> Vec<LockIdx> {
        self.ended.sweep(now);
        let mut dropped = Vec::new();
        for _ in 0..SWEEP_BATCH {
            let Some(hold) = self.sweeps.pop_due(now) else { break };
            let Some(binding) = self.binding(hold.0, &hold.1) else { continue };
            binding.forget_requests(now);
            binding.sweep_at = binding.requests.iter().map(|request| rounded(request.until)).min();
            let again = binding.sweep_at;
            self.sweeps.set(&hold, again);
            if again.is_none() && self.drop_if_idle(&hold, now) {
                dropped.push(hold.0);
            }
        }
        dropped
    }

    fn drop_if_idle(&mut self, hold: &BoundHold, now: MonoUs) -> bool {
        let idle = self.binding(hold.0, &hold.1).is_some_and(|binding| binding.is_idle(now));
        if idle {
            self.take(hold);
        }
        idle
    }

    /// Takes a binding out of every index.
    fn take(&mut self, hold: &BoundHold) -> Option<Binding> {
        let of_lock = self.bindings.get_mut(&hold.0)?;
        let binding = of_lock.remove(&hold.1)?;
        if of_lock.is_empty() {
            self.bindings.remove(&hold.0);
        }
        self.renewals.set(hold, None);
        self.sweeps.set(hold, None);
        for connection in binding.connections() {
            unlink(&mut self.by_connection, connection, hold);
        }
        Some(binding)
    }

    /// The owner holds nothing any more.
    fn unbind(&mut self, hold: &BoundHold, name: &LockId) {
        let Some(binding) = self.take(hold) else { return };
        for request in binding.requests {
            self.ended.insert(name.clone(), request.id, request.until);
        }
    }

    /// The holds of these owners have ended.
    pub(super) fn unbind_where(&mut self, lock: LockIdx, name: &LockId, ended: impl Fn(&Owner) -> bool) {
        let Some(of_lock) = self.bindings.get(&lock) else { return };
        let gone: Vec<Owner> = of_lock.keys().filter(|owner| ended(owner)).cloned().collect();
        for owner in gone {
            self.unbind(&(lock, owner), name);
        }
    }

    /// This server is not the primary any more, and renews and releases nothing.
    pub(super) fn suspend(&mut self) {
        self.suspended = true;
        self.renewals.clear();
        for binding in self.bindings.values_mut().flat_map(BTreeMap::values_mut) {
            binding.due = None;
            binding.doubtful = true;
        }
    }

    /// This server is the primary again. Returns the locks to be looked at.
    pub(super) fn resume(&mut self) -> Vec<LockIdx> {
        self.suspended = false;
        self.bindings.keys().copied().collect()
    }

    /// The holds may not be those any more that the bindings are about.
    pub(super) fn doubt(&mut self, lock: LockIdx) {
        if let Some(of_lock) = self.bindings.get_mut(&lock) {
            of_lock.values_mut().for_each(|binding| binding.doubtful = true);
        }
    }

    /// Ends the holds whose connection has closed, and renews those whose time it is. Returns the leases that were set so.
    pub(super) fn follow(
        &mut self,
        (lock, name): (LockIdx, &LockId),
        holders: &mut Holders,
        records: &mut dyn Records,
        now: Now,
    ) -> Vec<(Owner, SetLease, WallMs)> {
        if self.suspended || !self.knows(lock) {
            return Vec::new();
        }
        self.unbind_where(lock, name, |owner| holders.of(owner.as_bytes()).is_none());
        self.settle_doubts(lock, name, holders, now);
        let Some(of_lock) = self.bindings.get(&lock) else { return Vec::new() };
        let mut ended = Vec::new();
        for (owner, binding) in of_lock.iter().filter(|(_, binding)| binding.is_closed()) {
            let _ = holders.release(owner.as_bytes(), Part::All, None);
            // One that is not remembered any more may name a later call.
            let remembered = |request: &&Bound| request.ephemeral && request.until >= now.mono;
            for request in binding.requests.iter().filter(remembered) {
                records.forget_grant(&request.id);
            }
            ended.push(owner.clone());
        }
        let due = due_for_renewal(of_lock, now);
        for owner in ended {
            self.unbind(&(lock, owner), name);
        }
        let mut set = Vec::new();
        for (owner, ms) in due {
            let Some(hold) = holders.of(owner.as_bytes()) else { continue };
            // Somebody may have made it longer than we would.
            let wanted = now.wall.saturating_add(ms);
            let end = wanted.max(hold.expires_at);
            if end > hold.expires_at {
                let _ = holders.renew(owner.as_bytes(), end);
            }
            self.lease_was_set(lock, &owner, Lease::new(ms, end), now);
            set.push((owner, SetLease::AtLeast(wanted), end));
        }
        set
    }

    /// A doubtful hold whose lease is not the one that was written here last is another one.
    fn settle_doubts(&mut self, lock: LockIdx, name: &LockId, holders: &Holders, now: Now) {
        let Some(of_lock) = self.bindings.get_mut(&lock) else { return };
        let (mut others, mut sure) = (Vec::new(), Vec::new());
        for (owner, binding) in of_lock.iter_mut().filter(|(_, binding)| binding.doubtful) {
            binding.doubtful = false;
            let same = holders.of(owner.as_bytes()).is_some_and(|hold| hold.expires_at == binding.lease_end);
            if same {
                sure.push(owner.clone())
            } else {
                others.push(owner.clone())
            }
        }
        for owner in others {
            self.unbind(&(lock, owner), name);
        }
        for owner in sure {
            self.plan_renewal(lock, &owner, now.mono);
        }
    }

    /// True if nothing is to be done at some time.
    pub(super) fn plans_nothing(&self) -> bool {
        self.sweeps.is_empty() && self.ended.is_empty() && self.renewals.is_empty()
    }

    /// True if nothing is to be renewed.
    #[cfg(test)]
    pub(super) fn renews_nothing(&self) -> bool {
        self.renewals.is_empty()
    }

    /// How many holds are renewed, and how many end with a connection.
    pub(super) fn count(&self) -> (usize, usize) {
        let bindings = self.bindings.values().flat_map(BTreeMap::values);
        (self.renewals.len(), bindings.filter(|binding| binding.is_ephemeral()).count())
    }

    /// How many connections holds depend on, how many ended requests are remembered, and how many bindings are to be swept.
    pub(super) fn lens(&self) -> (usize, usize, usize) {
        (self.by_connection.len(), self.ended.len(), self.sweeps.len())
    }

    /// Fails if an index is not what the bindings say. `knows` says whether a lock is in the table.
    #[cfg(test)]
    pub(super) fn verify(&self, knows: impl Fn(LockIdx) -> bool) {
        let (mut links, mut renewals, mut sweeps) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (lock, of_lock) in &self.bindings {
            assert!(knows(*lock) && !of_lock.is_empty(), "{lock:?} has bindings and is not known");
            for (owner, binding) in of_lock {
                let hold = (*lock, owner.clone());
                links.extend(binding.connections().into_iter().map(|connection| (connection, hold.clone())));
                renewals.extend(binding.due.map(|at| (at, hold.clone())));
                sweeps.extend(binding.sweep_at.map(|at| (at, hold.clone())));
                assert!(
                    binding.due.is_none() || !binding.watchdogs.is_empty(),
                    "{hold:?} is renewed by nobody"
                );
            }
        }
        let linked = self.by_connection.iter();
        let linked: BTreeSet<_> = linked
            .flat_map(|(connection, holds)| holds.iter().map(|hold| (*connection, hold.clone())))
            .collect();
        assert_eq!(linked, links, "the index by connection is wrong");
        let scheduled = |schedule: &Schedule<MonoUs, BoundHold>| -> BTreeSet<_> {
            schedule.iter().map(|(at, hold)| (at, hold.clone())).collect()
        };
        assert_eq!(scheduled(&self.renewals), renewals, "the schedule of renewals is wrong");
        assert_eq!(scheduled(&self.sweeps), sweeps, "the schedule of sweeps is wrong");
    }
}

/// Whose leases to renew, and how many milliseconds each is long: if one is due, others that will be soon too, so that a lock
/// with many holders is not read and written once for each.
fn due_for_renewal(of_lock: &BTreeMap<Owner, Binding>, now: Now) -> Vec<(Owner, i64)> {
    let due_within = |slack: fn(&Binding) -> MonoUs| {
        of_lock.iter().filter(move |(_, binding)| {
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
    by_connection: &mut HashMap<ConnectionId, BTreeSet<BoundHold>>,
    connection: ConnectionId,
    hold: &BoundHold,
) {
    if let Some(holds) = by_connection.get_mut(&connection) {
        holds.remove(hold);
        if holds.is_empty() {
            by_connection.remove(&connection);
        }
    }
}
