// SPDX-License-Identifier: MIT

//! All state in memory, and the timer and the hooks that it needs.

use std::cell::RefCell;
use std::ffi::CStr;

use crate::config;
use crate::core::{
    earlier, CallNumber, ConnectionId, Decision, LockManager, MonoUs, Now, SessionKey, WaiterId,
};
use crate::driver::clients::blocked_clients::{BlockedClients, WaitOutcome};
use crate::driver::clients::deliveries::{Deliveries, FreedGrant};
use crate::driver::clients::known_clients::KnownClients;
use crate::driver::clients::polls::{PollOutcome, Polls};
use crate::driver::replicas::replica_waits::{AwaitedWrite, ReplicaRequirement, ReplicaWaits};
use crate::driver::timer::alarm::Alarm;
use crate::driver::timer::recheck_schedule::{FragileRound, RecheckSchedule};
use crate::server::events::{event_loop, server_events};
use crate::server::{Ctx, InCallback, Obstacle, ServerCell};
use crate::stats::Stats;

/// While writes are impossible, the interval between attempts to announce a flush, in milliseconds.
const FLUSH_RETRY_MS: u64 = 10;

/// Interval between checks whether the server still refuses all writes, in milliseconds.
const REFUSED_RETRY_MS: u64 = 10;

/// Time for which the end-of-iteration hook stays registered after its last use, in milliseconds. Registering
/// and unregistering it costs more than keeping it.
const HOOK_LINGER_MS: u64 = 100;

/// While there are sessions, the timer notices within this time, in milliseconds, that the server refuses writes.
const OBSERVE_MS: u64 = 500;

static DRIVER: ServerCell<RefCell<Option<Driver>>> = ServerCell::new(RefCell::new(None));

/// All state in memory.
#[derive(Default)]
pub(crate) struct Driver {
    pub(crate) locks: LockManager,
    pub(crate) stats: Stats,
    pub(super) blocked: BlockedClients,
    pub(super) polls: Polls,
    pub(super) known_clients: KnownClients,
    pub(super) deliveries: Deliveries,
    pub(super) replica_waits: ReplicaWaits,
    pub(super) alarm: Alarm,
    pub(super) rechecks: RecheckSchedule,
    /// Whether the wakeup hook of the event loop is registered, for fragile locks. The timer unregisters it.
    pub(super) wakeup_hook: bool,
    /// Whether the disconnect hook is registered. The timer unregisters it.
    pub(super) disconnect_hook: bool,
    /// Time at which locks with running leases may have been lost, on the monotonic clock.
    pub(super) locks_lost_at: Option<MonoUs>,
    /// Whether this server is a node of a cluster. The value never changes while the server runs.
    pub(super) in_cluster: bool,
    /// Whether all keys of a database may be gone, and external clients have not been notified.
    pub(super) flush_unannounced: bool,
}

/// Gives access to the state. `body` must not cause the server to call the module back.
pub(crate) fn with<T>(proof: impl Into<InCallback>, body: impl FnOnce(&mut Driver) -> T) -> T {
    match &mut *DRIVER.get(proof).borrow_mut() {
        Some(driver) => body(driver),
        // The first use.
        none => body(none.get_or_insert_default()),
    }
}

/// Drops all state.
pub(super) fn drop_state(proof: impl Into<InCallback>) {
    DRIVER.get(proof).replace(None);
}

/// The start of a wait.
#[derive(Clone, Copy)]
pub(crate) struct WaitStart {
    pub(crate) now: Now,
    /// Whether the wait may need an earlier timer than the one that is set.
    pub(crate) needs_schedule: bool,
}

/// Delivers decisions and sets the timer for the next deadline. Call it after every input to the core, once
/// the lock is stored. `now` is the time of that input or slightly earlier.
pub(crate) fn dispatch(ctx: Ctx<'_>, now: Now) {
    with(ctx, |driver| {
        // Usually there are no waiters and no deadlines.
        if driver.locks.has_decided() || driver.alarm.is_set() || !driver.is_idle() {
            driver.deliver(ctx, now);
            driver.schedule_at(ctx, now, None);
        }
    });
}

impl Driver {
    /// Delivers all decisions.
    pub(super) fn deliver(&mut self, ctx: Ctx<'_>, now: Now) {
        self.resume_if_promoted(ctx);
        self.deliver_decisions(ctx);
        self.answer_woken_polls(now);
        self.watch_disconnects(ctx);
    }

    /// The client that this waiter blocks, or the reader of its session.
    pub(crate) fn client_of(&self, id: WaiterId) -> Option<ConnectionId> {
        let first = self.locks.first_wait_of(id);
        let blocked = self.blocked.client_of(first).map(ConnectionId);
        blocked.or_else(|| self.locks.session(self.locks.number_of(first)?.session)?.reader())
    }

    /// The sizes of the driver's tables, like [`LockManager::tables`].
    pub(super) fn tables(&self) -> [(&'static CStr, usize); 6] {
        let (polls, connections) = self.polls.lens();
        [
            (c"table_blocked_clients", self.blocked.len()),
            (c"table_blocked_polls", polls),
            (c"table_session_connections", connections),
            (c"table_answered_grants", self.deliveries.len()),
            (c"table_awaiting_replicas", self.replica_waits.len() + self.replica_waits.of_sessions_len()),
            (c"table_sockets", self.known_clients.len()),
        ]
    }

    pub(super) fn deliver_decisions(&mut self, ctx: Ctx<'_>) {
        while let Some((id, decision)) = self.locks.next_decision() {
            if let Some((requirement, number)) = self.replica_waits.of_session(id) {
                self.deliver_to_session(ctx, id, decision, (requirement, number));
                continue;
            }
            match (&decision, self.blocked.requirement(id)) {
                (Decision::Granted(_) | Decision::GrantedAll(_), Some(requirement)) => {
                    let granted = AwaitedWrite::Grant(decision);
                    self.replica_waits.insert(id, requirement, granted, ctx.now().mono);
                    self.replica_waits.register_hook(ctx);
                }
                (_, requirement) => {
                    if requirement.is_some() {
                        self.replica_waits.remove(id);
                    }
                    self.blocked.end(id, WaitOutcome::Decided(decision));
                }
            }
        }
    }

    /// Delivers the decision about a wait of a session whose grant replicas must acknowledge.
    fn deliver_to_session(
        &mut self,
        ctx: Ctx<'_>,
        id: WaiterId,
        decision: Decision,
        (requirement, number): (ReplicaRequirement, CallNumber),
    ) {
        if matches!(decision, Decision::Granted(_) | Decision::GrantedAll(_)) {
            self.replica_waits.insert(id, requirement, AwaitedWrite::Grant(decision), ctx.now().mono);
            self.replica_waits.register_hook(ctx);
        } else {
            self.replica_waits.remove(id);
            self.replica_waits.remove_of_session(id);
            self.locks.tell_session(number, id, decision);
        }
    }

    /// Answers the blocked calls of sessions that have new events or have ended.
    pub(super) fn answer_woken_polls(&mut self, now: Now) {
        while let Some(session) = self.locks.next_woken() {
            self.answer_when_renewed(session, now);
        }
    }

    /// Answers a blocked call. While a lease is due for renewal, the call stays blocked for the timer (R4).
    fn answer_when_renewed(&mut self, session: SessionKey, now: Now) {
        let outcome = if self.locks.session(session).is_some() {
            if self.locks.renewals_are_due(now) {
                return self.polls.set_ready(session);
            }
            PollOutcome::Events
        } else if self.locks.is_demoted() {
            PollOutcome::Demoted
        } else {
            PollOutcome::NoSession
        };
        self.polls.end(session, outcome);
    }

    /// Answers blocked calls whose time to wait is over, and calls that due renewals have delayed.
    pub(super) fn answer_due_polls(&mut self, ctx: Ctx<'_>, obstacle: Option<Obstacle>) {
        let now = ctx.now();
        while let Some(session) = self.polls.next_timed_out(now.mono) {
            self.locks.set_polled(session, false);
            self.answer_when_renewed(session, now);
        }
        if !self.polls.any_ready() {
            return;
        }
        let is_due = self.locks.renewals_are_due(now);
        let outcome = match obstacle {
            _ if !is_due => PollOutcome::Events,
            Some(Obstacle::Refused) => PollOutcome::CannotRenew,
            _ => return,
        };
        for session in self.polls.take_ready() {
            let is_over = self.locks.session(session).is_none();
            self.polls.end(session, if is_over { PollOutcome::NoSession } else { outcome });
        }
    }

    /// Starts a wait: registers hooks, delivers decisions, and sets the timer if necessary.
    pub(crate) fn begin_wait(&mut self, ctx: Ctx<'_>, start: WaitStart) {
        self.watch_disconnects(ctx);
        if self.in_cluster {
            self.rechecks.plan_all(ctx.now().mono);
        }
        self.deliver_decisions(ctx);
        self.answer_woken_polls(start.now);
        if start.needs_schedule || self.in_cluster || !self.alarm.is_set() || self.locks.has_searches() {
            self.schedule_at(ctx, start.now, None);
        }
    }

    /// Resumes if this server is the primary again and has not reported it yet.
    pub(super) fn resume_if_promoted(&mut self, ctx: Ctx<'_>) {
        if self.locks.is_demoted() && ctx.is_primary() {
            self.promote(ctx);
        }
    }

    /// Resumes as the primary. The last grants of the previous primary may not have arrived.
    pub(super) fn promote(&mut self, ctx: Ctx<'_>) {
        self.locks_lost_at = Some(ctx.now().mono);
        self.locks.promote();
        self.update_quarantine(ctx.now());
    }

    /// Remaining time of the quarantine, in microseconds.
    pub(crate) fn quarantine_left(&self, now: Now) -> Option<MonoUs> {
        let end = self.end_of_quarantine()?;
        end.checked_sub(now.mono).filter(|left| *left > 0)
    }

    fn end_of_quarantine(&self) -> Option<MonoUs> {
        let lost = self.locks_lost_at?;
        config::quarantine().map(|ms| lost.saturating_add(ms.saturating_mul(1000)))
    }

    /// Applies the settings of the log.
    pub(super) fn set_log_limits(&mut self) {
        self.locks.set_log_limits(config::log_max_len(), config::log_waits_over().saturating_mul(1000));
    }

    /// Applies the quarantine setting as of now.
    #[inline]
    pub(crate) fn update_quarantine(&mut self, now: Now) {
        // Usually there is no quarantine.
        if config::quarantine().is_some() || self.locks.is_quarantined() {
            self.locks.quarantine(self.end_of_quarantine(), now);
        }
    }

    /// Revokes a grant that has not reached its client, or that too few replicas have acknowledged.
    pub(super) fn revoke(&mut self, id: WaiterId, reason: &'static str) {
        self.stats.revoked += 1;
        self.locks.log_revoked(id, reason);
        self.locks.undelivered(id);
    }

    /// Whether disconnects matter: a hold or a session depends on a connection, or a client waits for a grant.
    fn needs_disconnects(&self) -> bool {
        self.locks.has_bindings()
            || self.locks.session_count() > 0
            || self.polls.lens() != (0, 0)
            || !self.blocked.is_empty()
            || !self.deliveries.is_empty()
    }

    /// Whether the disconnect hook is registered although disconnects do not matter.
    fn has_stale_hook(&self) -> bool {
        self.disconnect_hook && !self.needs_disconnects()
    }

    /// Registers the disconnect hook if disconnects matter.
    pub(super) fn watch_disconnects(&mut self, ctx: Ctx<'_>) {
        if self.needs_disconnects() && !std::mem::replace(&mut self.disconnect_hook, true) {
            server_events::listen_to_clients(ctx, on_disconnect);
        }
    }

    /// Unregisters the disconnect hook if disconnects do not matter. Must not be called from an event.
    pub(super) fn drop_stale_disconnect_hook(&mut self, ctx: Ctx<'_>) {
        if self.has_stale_hook() {
            self.disconnect_hook = false;
            server_events::ignore_clients(ctx);
            self.known_clients.clear();
        }
    }

    /// Whether there is no work, now or later, and no state that a change of roles affects.
    fn is_idle(&self) -> bool {
        !self.wakeup_hook
            && !self.disconnect_hook
            && !self.flush_unannounced
            && self.rechecks.is_empty()
            && self.replica_waits.is_idle()
            && self.polls.lens() == (0, 0)
            && self.locks.has_no_deadline()
            && !self.locks.has_bindings()
            && !self.locks.is_demoted()
    }

    /// Sets the timer for the next work.
    pub(super) fn schedule(&mut self, ctx: Ctx<'_>) {
        self.schedule_at(ctx, ctx.now(), None);
    }

    /// Sets the timer for the next work after `now`, considering an obstacle to writing.
    pub(super) fn schedule_at(&mut self, ctx: Ctx<'_>, now: Now, obstacle: Option<Obstacle>) {
        if self.locks.has_fragile() {
            if !std::mem::replace(&mut self.wakeup_hook, true) {
                event_loop::listen_to_wakeups(ctx, on_wakeup);
            }
        } else {
            self.rechecks.clear_fragile();
        }
        let observed_in = (self.locks.session_count() > 0).then_some(OBSERVE_MS);
        let lock_work = earlier(self.locks.next_wakeup(now, obstacle.is_none()), observed_in);
        let delay_ms = if self.has_work_besides_locks() || obstacle.is_some() {
            self.next_timer_ms(lock_work, now, obstacle)
        } else {
            lock_work
        };
        let poll_ends = self.polls.first_deadline().map(|at| at.saturating_sub(now.mono).div_ceil(1000));
        self.alarm.set(ctx, earlier(delay_ms, poll_ends), now.mono, on_cron);
    }

    /// Whether work other than that of the locks and of blocked polls is pending.
    fn has_work_besides_locks(&self) -> bool {
        self.flush_unannounced
            || self.wakeup_hook
            || self.has_stale_hook()
            || !self.rechecks.is_empty()
            || !self.replica_waits.is_idle()
            || self.polls.any_ready()
    }

    /// The delay until the timer has to fire, in milliseconds. `lock_work` is the delay until the next work of the
    /// locks.
    fn next_timer_ms(&self, lock_work: Option<u64>, now: Now, obstacle: Option<Obstacle>) -> Option<u64> {
        if self.flush_unannounced && obstacle.is_none() {
            return Some(0);
        }
        let lock_work = match obstacle {
            Some(Obstacle::Refused) => {
                let deadline = self.locks.next_deadline(now);
                deadline.into_iter().chain(lock_work.map(|ms| ms.max(REFUSED_RETRY_MS))).min()
            }
            _ => lock_work,
        };
        let has_idle_hook = self.has_stale_hook() || self.replica_waits.has_stale_hook();
        let linger = (self.wakeup_hook || has_idle_hook).then_some(HOOK_LINGER_MS);
        let flush_unannounced = self.flush_unannounced.then_some(FLUSH_RETRY_MS);
        let next_time = earlier(self.rechecks.first_due(), self.replica_waits.first_deadline());
        let next_time = next_time.map(|at: MonoUs| at.saturating_sub(now.mono).div_ceil(1000));
        let ready = match obstacle {
            None => 0,
            Some(_) => REFUSED_RETRY_MS,
        };
        let ready = self.polls.any_ready().then_some(ready);
        [linger, flush_unannounced, next_time, ready].into_iter().fold(lock_work, earlier)
    }

    /// Sets the timer for a lock that may have changed, and wakes up the event loop.
    pub(super) fn schedule_soon(&mut self, ctx: Ctx<'_>) {
        self.schedule(ctx);
        event_loop::wake_up(ctx);
    }

    fn fragile_round(&self) -> FragileRound {
        if self.locks.is_rechecking_fragile() {
            FragileRound::InProgress
        } else {
            FragileRound::Complete
        }
    }

    /// Rereads a batch of fragile locks if the server has woken up since the last reread.
    pub(super) fn recheck_fragile(&mut self, now: MonoUs) {
        if self.rechecks.take_fragile(self.fragile_round()) {
            self.locks.recheck_fragile();
            self.rechecks.plan_fragile(now, self.fragile_round());
        }
    }
}

/// Schedules a reread of fragile locks. Runs when the server has woken up and has not read any input yet.
fn on_wakeup(ctx: Ctx<'_>, (): ()) {
    with(ctx, |driver| {
        let alarm = &driver.alarm;
        if driver.locks.has_fragile()
            && driver.rechecks.server_woke_up(ctx.now().mono, |at| alarm.fires_by(at))
        {
            driver.schedule(ctx);
        }
    });
}

/// Sets an overdue timer again. Otherwise, setting the system clock could prolong a wait.
fn on_cron(ctx: Ctx<'_>, (): ()) {
    with(ctx, |driver| {
        if driver.alarm.stop_if_overdue(ctx) {
            driver.schedule(ctx);
        }
    });
}

/// Forgets a disconnected client, and ends everything that depends on its connection.
fn on_disconnect(ctx: Ctx<'_>, client: u64) {
    // Outside of `with`: this queries the server.
    let mut deliveries = with(ctx, |driver| std::mem::take(&mut driver.deliveries));
    let freed = deliveries.client_freed(ctx, client);
    with(ctx, |driver| {
        driver.deliveries = deliveries;
        // If the client still waits, the server will report the end of that wait next.
        let waits = driver.known_clients.last_wait(client).is_some_and(|id| driver.blocked.contains(id));
        if !waits {
            driver.known_clients.forget(client);
        }
        driver.polls.forget(client);
        let now = ctx.now();
        let mut follows = !freed.is_empty();
        for FreedGrant { id, has_reached } in freed {
            if has_reached {
                driver.locks.delivered(id, now);
            } else {
                driver.revoke(id, "undelivered");
            }
        }
        follows |= driver.locks.connection_closed(ConnectionId(client), now);
        if follows {
            driver.schedule_soon(ctx);
        }
    });
}
