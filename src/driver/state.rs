// SPDX-License-Identifier: MIT

//! All state in memory, and what the server is to do next about it.

use std::cell::RefCell;
use std::ffi::CStr;

use crate::config;
use crate::core::{
    ConnectionId, Decision, Hold, Known, LockManager, LockRef, MonoUs, Now, Patience, Request, RequestId,
    Unseen, WaiterId,
};
use crate::driver::clients::blocked_clients::{BlockedClients, WaitOutcome};
use crate::driver::clients::deliveries::{Deliveries, FreedGrant};
use crate::driver::clients::known_clients::KnownClients;
use crate::driver::messages::inboxes::Inboxes;
use crate::driver::replicas::replica_waits::{AwaitedWrite, ReplicaWaits};
use crate::driver::timer::alarm::Alarm;
use crate::driver::timer::recheck_schedule::{FragileRound, RecheckSchedule};
use crate::keyspace::{granted, Memory};
use crate::server::events::{event_loop, server_events};
use crate::server::keys::key;
use crate::server::{Ctx, InCallback, Obstacle, ServerCell, Str};
use crate::stats::Stats;

/// While nothing may be written, how often it is tried to tell of a flush, in milliseconds.
const FLUSH_RETRY_MS: u64 = 10;

/// While the server refuses all writes, how often it is asked whether it still does, in milliseconds.
const REFUSED_RETRY_MS: u64 = 10;

/// For how long the end of every turn is listened to after the last that mattered, in milliseconds: to begin and to end that
/// costs more than to go on.
const HOOK_LINGER_MS: u64 = 100;

static DRIVER: ServerCell<RefCell<Option<Driver>>> = ServerCell::new(RefCell::new(None));

/// All state in memory.
#[derive(Default)]
pub(crate) struct Driver {
    pub(crate) locks: LockManager,
    pub(crate) stats: Stats,
    pub(super) blocked: BlockedClients,
    pub(super) known_clients: KnownClients,
    pub(super) deliveries: Deliveries,
    pub(super) replica_waits: ReplicaWaits,
    pub(super) inboxes: Inboxes,
    pub(super) alarm: Alarm,
    pub(super) rechecks: RecheckSchedule,
    /// The event loop is listened to, for fragile locks; ends in the timer.
    pub(super) wakeup_hook: bool,
    /// The end of connections is listened to; ends in the timer.
    pub(super) disconnect_hook: bool,
    /// When locks may have been forgotten whose leases still run, on the clock of times to wait.
    pub(super) locks_lost_at: Option<MonoUs>,
    /// This server is a node of a cluster, which does not change.
    pub(super) in_cluster: bool,
    /// All keys of a database may be gone: external clients have not been told yet.
    pub(super) flush_unannounced: bool,
}

/// Gives access to the state. Nothing that can make the server call us back may be done inside.
pub(crate) fn with<T>(proof: impl Into<InCallback>, body: impl FnOnce(&mut Driver) -> T) -> T {
    match &mut *DRIVER.get(proof).borrow_mut() {
        Some(driver) => body(driver),
        // Before the first use, once.
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
    /// The wait may need an earlier timer than the one that is set.
    pub(crate) needs_schedule: bool,
}

/// Passes on what was decided, and sets the timer for what comes next. To be called after every input to the
/// core, when the lock is stored. `now` is when that was, or a little before: what comes next is planned from then on.
pub(crate) fn dispatch(ctx: Ctx<'_>, now: Now) {
    with(ctx, |driver| {
        // Mostly nobody waits, and nothing is planned.
        if driver.locks.has_decided() || driver.alarm.is_set() || !driver.is_idle() {
            driver.resume_if_promoted(ctx);
            driver.deliver_decisions(ctx);
            driver.watch_disconnects(ctx);
            driver.schedule_at(ctx, now, None);
        }
    });
}

impl Driver {
    /// The client that this waiter blocks, or that it belongs to.
    pub(crate) fn client_of(&self, id: WaiterId) -> Option<u64> {
        let blocked = self.blocked.client_of(self.locks.lead_of(id));
        blocked.or_else(|| self.locks.connection_of(id).map(|connection| connection.0))
    }

    /// As [`LockManager::tables`], of the tables beside it.
    pub(super) fn tables(&self) -> [(&'static CStr, usize); 5] {
        [
            (c"table_blocked_clients", self.blocked.len()),
            (c"table_answered_grants", self.deliveries.len()),
            (c"table_awaiting_replicas", self.replica_waits.len()),
            (c"table_sockets", self.known_clients.len()),
            (c"table_inboxes", self.inboxes.len()),
        ]
    }

    pub(super) fn deliver_decisions(&mut self, ctx: Ctx<'_>) {
        while let Some((id, decision)) = self.locks.next_decision() {
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
        if self.locks.has_messages() {
            self.inboxes.schedule_publish(ctx);
        }
    }

    /// Somebody waits from now on. `plans` if there may be something to plan for that.
    pub(super) fn begin_wait(&mut self, ctx: Ctx<'_>, start: WaitStart) {
        self.watch_disconnects(ctx);
        if self.in_cluster {
            self.rechecks.plan_all(ctx.now().mono);
        }
        self.deliver_decisions(ctx);
        if start.needs_schedule || self.in_cluster || !self.alarm.is_set() || self.locks.has_searches() {
            self.schedule_at(ctx, start.now, None);
        }
    }

    /// Goes on if this server is the primary again, should that not have been told.
    pub(super) fn resume_if_promoted(&mut self, ctx: Ctx<'_>) {
        if self.locks.is_demoted() && ctx.is_primary() {
            self.promote(ctx);
        }
    }

    /// This server has become the primary. What the one before has granted last, it may not have heard.
    pub(super) fn promote(&mut self, ctx: Ctx<'_>) {
        self.locks_lost_at = Some(ctx.now().mono);
        self.locks.promote();
        self.update_quarantine(ctx.now());
    }

    /// For how many more microseconds nothing is granted, as locks may have been forgotten.
    pub(crate) fn quarantine_left(&self, now: Now) -> Option<MonoUs> {
        let end = self.end_of_quarantine()?;
        end.checked_sub(now.mono).filter(|left| *left > 0)
    }

    fn end_of_quarantine(&self) -> Option<MonoUs> {
        let lost = self.locks_lost_at?;
        config::quarantine().map(|ms| lost.saturating_add(ms.saturating_mul(1000)))
    }

    /// Nothing is granted that must not be, now that it is so late, and as the setting is.
    #[inline]
    pub(crate) fn update_quarantine(&mut self, now: Now) {
        // Mostly there is none.
        if config::quarantine().is_some() || self.locks.is_quarantined() {
            self.locks.quarantine(self.end_of_quarantine(), now);
        }
    }

    /// A grant did not reach its client.
    pub(super) fn revoke(&mut self, id: WaiterId) {
        self.stats.revoked += 1;
        self.locks.undelivered(id);
    }

    /// The end of connections matters as long as a hold depends on one, or somebody is to be told of a grant.
    fn needs_disconnects(&self) -> bool {
        self.locks.has_bindings()
            || self.locks.has_notified()
            || !self.blocked.is_empty()
            || !self.deliveries.is_empty()
            || self.inboxes.len() > 0
    }

    /// The end of connections is listened to, and does not matter any more.
    fn has_stale_hook(&self) -> bool {
        self.disconnect_hook && !self.needs_disconnects()
    }

    /// Listens to the end of connections, if that matters.
    pub(super) fn watch_disconnects(&mut self, ctx: Ctx<'_>) {
        if self.needs_disconnects() && !std::mem::replace(&mut self.disconnect_hook, true) {
            server_events::listen_to_clients(ctx, on_disconnect);
        }
    }

    /// Ends that, if it does not matter any more. Not to be called from an event.
    pub(super) fn drop_stale_disconnect_hook(&mut self, ctx: Ctx<'_>) {
        if self.has_stale_hook() {
            self.disconnect_hook = false;
            server_events::ignore_clients(ctx);
            self.known_clients.clear();
        }
    }

    /// True if nothing is to be done, now or later, and nothing is remembered that a change of roles matters to.
    fn is_idle(&self) -> bool {
        !self.wakeup_hook
            && !self.disconnect_hook
            && !self.flush_unannounced
            && self.rechecks.is_empty()
            && self.replica_waits.is_idle()
            && !self.inboxes.has_hook()
            && self.inboxes.len() == 0
            && self.locks.plans_nothing()
            && !self.locks.has_bindings()
            && !self.locks.is_demoted()
    }

    /// Sets the timer for the next thing to do.
    pub(super) fn schedule(&mut self, ctx: Ctx<'_>) {
        self.schedule_at(ctx, ctx.now(), None);
    }

    /// The same, at this time, and if there is an obstacle to writing.
    pub(super) fn schedule_at(&mut self, ctx: Ctx<'_>, now: Now, obstacle: Option<Obstacle>) {
        if self.locks.has_fragile() {
            if !std::mem::replace(&mut self.wakeup_hook, true) {
                event_loop::listen_to_wakeups(ctx, on_wakeup);
            }
        } else {
            self.rechecks.clear_fragile();
        }
        let lock_work = self.locks.next_wakeup(now, obstacle.is_none());
        let wanted = if self.has_work_besides_locks() || obstacle.is_some() {
            self.next_timer_ms(lock_work, now, obstacle)
        } else {
            lock_work
        };
        self.alarm.set(ctx, wanted, now.mono, on_cron);
    }

    /// True if there is more to plan for than locks.
    fn has_work_besides_locks(&self) -> bool {
        self.flush_unannounced
            || self.wakeup_hook
            || self.has_stale_hook()
            || !self.rechecks.is_empty()
            || !self.replica_waits.is_idle()
            || self.inboxes.has_hook()
    }

    /// In how many milliseconds the timer is to fire, of which there is `work` to do with locks.
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
        let in_vain = self.has_stale_hook() || self.replica_waits.has_stale_hook() || self.inboxes.has_hook();
        let listening = (self.wakeup_hook || in_vain).then_some(HOOK_LINGER_MS);
        let flush_unannounced = self.flush_unannounced.then_some(FLUSH_RETRY_MS);
        let ms_until = |at: MonoUs| at.saturating_sub(now.mono).div_ceil(1000);
        let look = self.rechecks.first_due().map(ms_until);
        let overdue = self.replica_waits.first_deadline().map(ms_until);
        [lock_work, listening, flush_unannounced, look, overdue].into_iter().flatten().min()
    }

    /// Plans for a lock that may have changed.
    pub(super) fn schedule_soon(&mut self, ctx: Ctx<'_>) {
        self.schedule(ctx);
        event_loop::wake_up(ctx);
    }

    fn fragile_round(&self) -> FragileRound {
        if self.locks.is_looking_at_fragile() {
            FragileRound::InProgress
        } else {
            FragileRound::Complete
        }
    }

    /// Fragile locks are looked at, if the server was woken up since the last time.
    pub(super) fn recheck_fragile(&mut self, now: MonoUs) {
        if self.rechecks.take_fragile(self.fragile_round()) {
            self.locks.look_at_fragile();
            self.rechecks.plan_fragile(now, self.fragile_round());
        }
    }
}

/// A lock that was looked up, to be read and changed.
#[derive(Clone, Copy)]
pub(crate) struct Remembered<'a> {
    ctx: Ctx<'a>,
    pub(crate) lock: Known<'a>,
}

impl<'a> Remembered<'a> {
    #[inline]
    pub(crate) fn of(ctx: Ctx<'a>, lock: LockRef<'a>) -> Remembered<'a> {
        Remembered { ctx, lock: with(ctx, |driver| driver.locks.look_up(lock)) }
    }
}

impl Memory for Remembered<'_> {
    fn ending(&self) -> usize {
        with(self.ctx, |driver| driver.locks.ending(self.lock))
    }

    fn plain_hold(&self) -> Option<Hold> {
        with(self.ctx, |driver| driver.locks.plain_hold(self.lock).cloned())
    }
}

/// Queues a request without a look at its lock, if it is certain enough that it has to wait.
#[inline(always)]
pub(crate) fn queue_unseen(
    ctx: Ctx<'_>,
    name: &Str<'_>,
    remembered: &Remembered<'_>,
    request: &Request,
    patience: Patience,
    now: Now,
) -> Option<Unseen> {
    if patience == Patience::Leaves {
        return None;
    }
    // A field may end before the lock's lease does. Who is first in line has to see when.
    let looks_first = key::fields_may_expire(ctx);
    let is_new = |id: &RequestId| matches!(granted(ctx, name, id), Ok(None));
    with(ctx, |driver| {
        driver.update_quarantine(now);
        driver.locks.queue_unseen(remembered.lock, request, patience, (looks_first, is_new), now)
    })
}

/// The server has been woken up, and has read nothing yet.
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

/// Nobody's time to wait may change because somebody sets the clock.
fn on_cron(ctx: Ctx<'_>, (): ()) {
    with(ctx, |driver| {
        if driver.alarm.stop_if_overdue(ctx) {
            driver.schedule(ctx);
        }
    });
}

/// A client's connection has ended.
fn on_disconnect(ctx: Ctx<'_>, client: u64) {
    // Outside of `with`: the server is asked.
    let mut deliveries = with(ctx, |driver| std::mem::take(&mut driver.deliveries));
    let freed = deliveries.client_freed(ctx, client);
    with(ctx, |driver| {
        driver.deliveries = deliveries;
        // If it waits still, the server is about to say so.
        let waits = driver.known_clients.last_wait(client).is_some_and(|id| driver.blocked.contains(id));
        if !waits {
            driver.known_clients.forget(client);
        }
        driver.inboxes.forget(client);
        let now = ctx.now();
        let mut follows = !freed.is_empty();
        for FreedGrant { id, has_reached } in freed {
            if has_reached {
                driver.locks.delivered(id, now);
            } else {
                driver.revoke(id);
            }
        }
        follows |= driver.locks.connection_closed(ConnectionId(client), now);
        if follows {
            driver.schedule_soon(ctx);
        }
    });
}
