// SPDX-License-Identifier: MIT

//! Certain and possible holds of a lock, with their counts.

use std::collections::BTreeMap;

use super::operations::{millis, Done, History, Kind, Lock, Operation, NEVER};
use super::sessions::{self, Bound};
use super::Limits;
use crate::record::{Disturbance, Micros};

/// Number of earlier replies to evaluate; more would give the same bounds.
const LAST: usize = 8;

/// The owners that a hold excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Exclusive,
    /// Excludes at least the exclusive holds of other owners.
    Shared,
}

/// An interval in which an owner certainly holds the lock.
pub(super) struct Hold<'a> {
    pub(super) owner: &'a str,
    pub(super) mode: Mode,
    pub(super) from: Micros,
    pub(super) until: Micros,
    /// The operation whose reply proves the hold.
    pub(super) proof: &'a Operation<'a>,
}

/// Bounds for the number of an owner's holds when a call took effect.
pub(super) struct Bounds<'a> {
    pub(super) least: i64,
    pub(super) most: i64,
    /// The operation whose reply proves the lower bound.
    pub(super) proof: Option<&'a Operation<'a>>,
}

/// One lock of a history, with its operations by owner.
pub(super) struct View<'a> {
    pub(super) history: &'a History<'a>,
    pub(super) lock: &'a Lock<'a>,
    pub(super) limits: &'a Limits,
    owners: BTreeMap<&'a str, Vec<&'a Operation<'a>>>,
}

fn is_same(one: &Operation<'_>, other: &Operation<'_>) -> bool {
    std::ptr::eq(one, other)
}

impl<'a> View<'a> {
    pub(super) fn new(history: &'a History<'a>, lock: &'a Lock<'a>, limits: &'a Limits) -> View<'a> {
        let mut owners: BTreeMap<&str, Vec<&Operation<'_>>> = BTreeMap::new();
        for operation in &lock.operations {
            owners.entry(operation.owner).or_default().push(operation);
        }
        View { history, lock, limits, owners }
    }

    pub(super) fn grants(&self) -> usize {
        let granted =
            |operation: &&Operation<'_>| operation.acquire().is_some() && operation.count().is_some();
        self.lock.operations.iter().filter(granted).count()
    }

    /// Whether every server has the grant, even after a failover.
    pub(super) fn survives_failover(&self, operation: &Operation<'_>) -> bool {
        let acknowledged_by = operation.acquire().and_then(|acquire| acquire.replicas);
        !self.history.has_failover()
            || acknowledged_by.is_some_and(|replicas| replicas >= self.history.run.replicas)
    }

    pub(super) fn of(&self, owner: &str) -> &[&'a Operation<'a>] {
        self.owners.get(owner).map_or(&[], Vec::as_slice)
    }

    /// The mode of an owner's remaining holds: shared if any acquire of the owner was shared.
    pub(super) fn mode(&self, owner: &str) -> Mode {
        let mut acquires =
            self.of(owner).iter().filter(|one| one.may_be_done()).filter_map(|operation| operation.acquire());
        if acquires.any(|acquire| acquire.shared) {
            Mode::Shared
        } else {
            Mode::Exclusive
        }
    }

    /// All certain holds.
    pub(super) fn holds(&self) -> Vec<Hold<'a>> {
        let mut holds: Vec<Hold<'a>> = self.owners.keys().flat_map(|owner| self.holds_of(owner)).collect();
        holds.sort_by_key(|hold| hold.from);
        holds
    }

    /// The certain holds of one owner.
    pub(super) fn holds_of(&self, owner: &str) -> impl Iterator<Item = Hold<'a>> + '_ {
        let mode = self.mode(owner);
        let hold = move |proof: &&'a Operation<'a>| {
            let (from, until) = (proof.end?, self.certain_until(proof, None));
            (until > from).then_some(Hold { owner: proof.owner, mode, from, until, proof })
        };
        self.of(owner).iter().filter_map(hold)
    }

    /// Whether an owner certainly holds the lock throughout this interval.
    pub(super) fn holds_all_the_time(&self, owner: &str, within: (Micros, Micros)) -> bool {
        self.holds_of(owner).any(|hold| hold.from <= within.0 && hold.until >= within.1)
    }

    /// The count in a reply, at the time when the call took effect.
    fn reported_count(operation: &Operation<'_>) -> Option<i64> {
        match (operation.kind, operation.done) {
            (Kind::Acquire(_) | Kind::Release(_) | Kind::Renew(_) | Kind::Check, Done::Count(count)) => {
                Some(count)
            }
            // With a number, the error says nothing about other holds of the owner.
            (Kind::Release(_) | Kind::Renew(_) | Kind::Check | Kind::Guard, Done::Refused(error)) => {
                let is_about_owner = operation.is_alone() && operation.session().is_none();
                (is_about_owner && error.starts_with("NOTOWNER")).then_some(0)
            }
            _ => None,
        }
    }

    /// Operations of the owner that may have taken effect after `of`, except `ignored`.
    fn after<'b>(
        &'b self,
        of: &'b Operation<'a>,
        ignored: Option<&'b Operation<'a>>,
    ) -> impl Iterator<Item = &'a Operation<'a>> + 'b {
        let is_late = move |other: &&'a Operation<'a>| {
            !is_same(other, of)
                && !ignored.is_some_and(|ignored| is_same(other, ignored))
                && other.end.is_none_or(|end| end > of.sent)
                && other.void_after.is_none_or(|end| end > of.sent)
        };
        self.of(of.owner).iter().copied().filter(is_late)
    }

    /// The maximum number of holds that an operation may end.
    fn max_decrease(operation: &Operation<'_>) -> i64 {
        match (operation.kind, operation.done) {
            (Kind::Release(release), Done::Count(_) | Done::Unknown) if release.all => NEVER,
            (Kind::Release(_), Done::Count(_) | Done::Unknown) => 1,
            (Kind::Cancel, Done::Count(1) | Done::Unknown) => 1,
            _ => 0,
        }
    }

    /// End of the certain hold that a reply proves, without the effect of `ignored`.
    pub(super) fn certain_until(&self, of: &Operation<'a>, ignored: Option<&Operation<'a>>) -> Micros {
        let (Some(count), Some(_)) = (Self::reported_count(of), of.end) else { return 0 };
        if count < 1 {
            return 0;
        }
        let (leased_until, safe_until) = match sessions::bound(self, of) {
            Bound::No => (self.leased_until(of, ignored), NEVER),
            Bound::Renewed(until) => (NEVER, until),
            Bound::Leased(until) => (self.leased_until(of, ignored), until),
        };
        let ends = [
            self.count_until(of, count, ignored),
            leased_until,
            safe_until,
            self.unbroken_until(of),
            self.connected_until(of, ignored),
            sessions::unclosed_until(self, of),
            self.stored_until(of),
        ];
        ends.into_iter().min().unwrap_or(0)
    }

    /// The end of a certain hold, if its lease were endless.
    pub(super) fn certain_without_lease(&self, of: &Operation<'a>) -> Micros {
        let count = Self::reported_count(of).unwrap_or(0);
        self.count_until(of, count, None).min(self.unbroken_until(of)).min(self.stored_until(of))
    }

    /// The times at which the count may decrease, or certainly increases again.
    fn changes(&self, of: &Operation<'a>, ignored: Option<&Operation<'a>>) -> Vec<(Micros, i64)> {
        let mut changes = Vec::new();
        for other in self.after(of, ignored) {
            let max_decrease = Self::max_decrease(other);
            if max_decrease > 0 {
                changes.push((other.sent, -max_decrease));
            } else if let (Kind::Acquire(_), Done::Count(_), Some(end)) = (other.kind, other.done, other.end)
            {
                if of.end.is_some_and(|before| other.sent > before) {
                    changes.push((end, 1));
                }
            }
        }
        changes.sort_unstable();
        changes
    }

    fn count_until(&self, of: &Operation<'a>, mut count: i64, ignored: Option<&Operation<'a>>) -> Micros {
        for (at, change) in self.changes(of, ignored) {
            count = count.saturating_add(change);
            if count < 1 {
                return at;
            }
        }
        NEVER
    }

    /// The lease in microseconds that an operation sets if it takes effect. A re-entry without a lease shortens nothing.
    fn sets(&self, operation: &Operation<'_>) -> Option<Micros> {
        let default = self.history.run.default_lease;
        let ms = match (operation.kind, operation.done) {
            (Kind::Acquire(acquire), Done::Count(count)) => acquire.lease.or((count == 1).then_some(default)),
            (Kind::Acquire(acquire), Done::Unknown) => acquire.lease,
            (Kind::Renew(renew), Done::Count(_) | Done::Unknown) => Some(renew.lease.unwrap_or(default)),
            (Kind::Release(release), Done::Count(_) | Done::Unknown) => release.lease,
            _ => None,
        };
        ms.map(millis)
    }

    fn leased_until(&self, of: &Operation<'a>, ignored: Option<&Operation<'a>>) -> Micros {
        let own = self.of(of.owner).iter().copied();
        let before = own.clone().filter(|one| is_same(one, of) || one.end.is_some_and(|end| end <= of.sent));
        let Some(last) = before.filter(|one| self.sets(one).is_some()).max_by_key(|one| one.sent) else {
            return 0;
        };
        let others =
            self.after(last, ignored).filter_map(|one| Some(one.low().saturating_add(self.sets(one)?)));
        let mut until =
            others.chain(self.sets(last).map(|lease| last.low().saturating_add(lease))).min().unwrap_or(0);
        if own.clone().any(Operation::is_watched) {
            // A watchdog renews with one of the owner's leases. The shortest one bounds the end.
            let default = millis(self.history.run.default_lease);
            let least = own.filter_map(|one| self.sets(one)).fold(default, Micros::min);
            until = until.min(last.low().saturating_add(least));
        }
        until - self.limits.slack
    }

    fn unbroken_until(&self, of: &Operation<'a>) -> Micros {
        let ends = self.lock.breaks.iter().filter(|one| {
            one.count != Some(0) && one.call.answered.is_none_or(|answered| answered > of.sent)
        });
        ends.filter(|one| !matches!(one.call.outcome, crate::record::Outcome::Error(_)))
            .map(|one| one.call.sent)
            .min()
            .unwrap_or(NEVER)
    }

    /// An ephemeral hold may end with every connection that it may be bound to.
    fn connected_until(&self, of: &Operation<'a>, ignored: Option<&Operation<'a>>) -> Micros {
        let mut until = NEVER;
        for one in self.of(of.owner).iter().filter(|one| one.is_ephemeral() && one.may_be_done()) {
            for call in &one.calls {
                let end = self.history.open_until(call.connection);
                // Holds before the start of a later hold ended with the earlier connection.
                let is_over = self.of(of.owner).iter().any(|later| {
                    let starts_again = matches!((later.kind, later.done), (Kind::Acquire(_), Done::Count(1)));
                    let is_before = is_same(later, of) || later.end.is_some_and(|at| at <= of.sent);
                    starts_again && is_before && later.sent > end && one.end.is_some_and(|at| at < later.sent)
                });
                // The connection of the examined call was open while the call ran, so it cannot have ended an earlier hold.
                let is_itself =
                    call.answered.is_some() && ignored.is_some_and(|ignored| is_same(ignored, one));
                if !is_over && !is_itself {
                    until = until.min(end);
                }
            }
        }
        until
    }

    /// A restart may lose the hold, and a clock that is set forward ends leases early.
    fn stored_until(&self, of: &Operation<'a>) -> Micros {
        let lost = |what: &Disturbance| match what {
            Disturbance::Restart { durable } => !durable,
            Disturbance::Clock { by } => *by > 0,
            _ => false,
        };
        let faults = self.history.faults.iter().filter(|fault| lost(&fault.what) && fault.until > of.sent);
        faults.map(|fault| fault.from).min().unwrap_or(NEVER)
    }

    /// Bounds for the number of holds of a call's owner right before the call took effect.
    pub(super) fn bounds(&self, of: &'a Operation<'a>) -> Bounds<'a> {
        let mut bounds = Bounds { least: 0, most: self.most(None, of), proof: None };
        let before = self.of(of.owner).iter().copied().filter(|one| one.end.is_some_and(|end| end < of.sent));
        let reported_count = before.filter(|one| Self::reported_count(one).is_some());
        for one in reported_count.rev().take(LAST) {
            let least = self.least(one, of);
            if least > bounds.least {
                (bounds.least, bounds.proof) = (least, Some(one));
            }
            bounds.most = bounds.most.min(self.most(Some(one), of));
        }
        if self.may_hold_until(of) < of.sent {
            bounds.most = 0;
        }
        bounds
    }

    fn least(&self, after: &Operation<'a>, of: &Operation<'a>) -> i64 {
        let end = of.end.unwrap_or(NEVER);
        if self.certain_until(after, Some(of)) < end {
            return 0;
        }
        let is_relevant = |(at, change): &(Micros, i64)| if *change < 0 { *at < end } else { *at < of.sent };
        let changes = self.changes(after, Some(of));
        Self::reported_count(after).unwrap_or(0)
            + changes.iter().filter(|one| is_relevant(one)).map(|one| one.1).sum::<i64>()
    }

    fn most(&self, after: Option<&Operation<'a>>, of: &Operation<'a>) -> i64 {
        let mut most = after.and_then(Self::reported_count).unwrap_or(0);
        for one in self.of(of.owner).iter().filter(|one| !is_same(one, of)) {
            if after.is_some_and(|after| {
                let is_before = one.end.is_some_and(|end| end <= after.sent);
                is_same(one, after) || is_before || one.void_after.is_some_and(|end| end <= after.sent)
            }) {
                continue;
            }
            let is_certain = after.and_then(|after| after.end).is_none_or(|end| one.sent > end)
                && one.end.is_some_and(|end| end < of.sent);
            match (one.kind, one.done) {
                (Kind::Acquire(_), Done::Count(_) | Done::Unknown) if one.sent < of.end.unwrap_or(NEVER) => {
                    most += 1
                }
                (Kind::Release(_), Done::Count(_)) if is_certain => most -= 1,
                _ => {}
            }
        }
        most
    }

    /// The time at which the last possible lease before a call has certainly ended.
    fn may_hold_until(&self, of: &Operation<'a>) -> Micros {
        let own =
            self.of(of.owner).iter().filter(|one| !is_same(one, of) && one.sent < of.end.unwrap_or(NEVER));
        own.filter(|one| one.may_be_done()).map(|one| self.lease_over(one)).max().unwrap_or(0)
    }

    fn lease_over(&self, one: &Operation<'_>) -> Micros {
        if !matches!(one.kind, Kind::Acquire(_) | Kind::Renew(_)) && one.lease().is_none() {
            return 0;
        }
        match one.end {
            Some(end) if !one.is_watched() && one.session().is_none() => {
                let lease = millis(one.lease().unwrap_or(self.history.run.default_lease));
                let longer = millis(self.history.set_back_since(one.sent));
                end + lease + longer + self.limits.slack
            }
            _ => NEVER,
        }
    }

    /// Whether the operation may have given its owner an exclusive hold.
    pub(super) fn may_be_exclusive(&self, one: &Operation<'_>) -> bool {
        match one.acquire() {
            Some(acquire) => !acquire.shared,
            // A renewal prolongs any hold of its owner.
            None => {
                let own = self.of(one.owner).iter().filter(|one| one.may_be_done());
                own.filter_map(|one| one.acquire()).any(|acquire| !acquire.shared)
            }
        }
    }

    /// Latest time of the last renewal. `MAX` counts from the last grant or the owner's last renewal.
    fn watched_until(&self, one: &Operation<'_>) -> Micros {
        let own = || self.of(one.owner).iter().filter(|own| own.may_be_done());
        let limits = own().filter(|own| own.is_watched()).map(|own| own.watchdog_max().map_or(NEVER, millis));
        let limit = limits.max().unwrap_or(NEVER);
        let counted = own().filter(|own| matches!(own.kind, Kind::Acquire(_) | Kind::Renew(_)));
        let last = counted.map(|own| own.end.unwrap_or(NEVER)).max().unwrap_or(NEVER);
        last.saturating_add(limit).saturating_add(self.limits.late)
    }

    /// The interval in which an operation may have given its owner a hold, or prolonged one. It assumes that the server notices
    /// its clients' actions in time, so only rules about time may use it.
    pub(super) fn possible_hold(&self, one: &'a Operation<'a>) -> Option<(Micros, Micros)> {
        let (from, until) = self.possible_lease(one)?;
        let over = self.certainly_over(one);
        let overlaps = |other: &Operation<'_>| {
            self.possible_lease(other)
                .is_some_and(|(begin, end)| begin < over && end.min(self.certainly_over(other)) > from)
        };
        // The release or the cancel of one hold leaves its lease to the owner's other holds.
        let is_alone = || !self.of(one.owner).iter().any(|other| !is_same(other, one) && overlaps(other));
        Some((from, if over < until && is_alone() { over } else { until }))
    }

    /// Time after which the hold of an operation is known to be over: it was released by its number, or cancelled.
    fn certainly_over(&self, one: &Operation<'_>) -> Micros {
        let over = one.session().and_then(|number| self.history.sessions.over(number));
        over.into_iter().chain(one.void_after).min().unwrap_or(NEVER)
    }

    /// The interval in which the lease of an operation may last.
    fn possible_lease(&self, one: &Operation<'_>) -> Option<(Micros, Micros)> {
        let is_relevant = matches!(one.kind, Kind::Acquire(_) | Kind::Renew(_)) || one.lease().is_some();
        if !is_relevant || !one.may_be_done() {
            return None;
        }
        let default = self.history.run.default_lease;
        let of_all = self.of(one.owner).iter().filter_map(|one| one.lease()).fold(default, i64::max);
        let own = if one.is_watched() { of_all } else { one.lease().unwrap_or(default) };
        let lease = millis(own + self.history.set_back_since(one.sent));
        let connections = one.calls.iter().map(|call| self.history.closed_by(call.connection));
        let closed = match one.session() {
            Some(number) => {
                let sessions = &self.history.sessions;
                let until = sessions.exists_until(&number.id, self.limits.late);
                until.saturating_add(sessions.least_lease(&number.id))
            }
            None => connections.max().unwrap_or(NEVER).saturating_add(self.limits.late),
        };
        let mut until = match one.end {
            Some(end) if !one.is_watched() && one.session().is_none() => end,
            Some(end) => end.max(closed),
            None => closed,
        }
        .saturating_add(lease + self.limits.slack);
        if one.is_ephemeral() {
            until = until.min(closed);
        }
        if one.is_watched() {
            until = until.min(self.watched_until(one).saturating_add(lease + self.limits.slack));
        }
        if let Some(end) = one.end {
            let freed = self.of(one.owner).iter().filter(|other| {
                matches!((other.kind, other.done), (Kind::Release(_), Done::Count(0))) && other.sent > end
            });
            until = freed.filter_map(|other| other.end).fold(until, Micros::min);
            let broken =
                self.lock.breaks.iter().filter(|other| other.count.is_some() && other.call.sent > end);
            until = broken.filter_map(|other| other.call.answered).fold(until, Micros::min);
        }
        Some((one.first_sent, until))
    }
}
