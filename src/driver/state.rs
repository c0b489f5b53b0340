// SPDX-License-Identifier: MIT

//! All state in memory, and what the server is to do next about it.

use std::cell::RefCell;
use std::ffi::CStr;

use super::acknowledgements::{Acknowledgements, Written};
use super::alarm::Alarm;
use super::blocked::{BlockedClients, Ended};
use super::delivery::Deliveries;
use super::inboxes::Inboxes;
use super::looks::Looks;
use super::waiting_clients::WaitingClients;
use crate::config;
use crate::core::{
    ConnectionId, Decision, FastQueued, Hold, LockLookup, LockManager, LockRef, MonoUs, Now, Request,
    RequestId, WaitPolicy, WaiterId,
};
use crate::keyspace::{granted, Memory};
use crate::server::{event_loop, events, key, Ctx, InCallback, Obstacle, ServerCell, Str};
use crate::stats::Stats;

/// While nothing may be written, how often it is tried to tell of a flush, in milliseconds.
const FLUSH_RETRY_MS: u64 = 10;

/// While the server refuses all writes, how often it is asked whether it still does, in milliseconds.
const REFUSED_RETRY_MS: u64 = 10;

/// For how long the end of every turn is listened to after the last that mattered, in milliseconds: to begin and to end that
/// costs more than to go on.
const LISTENING_MS: u64 = 100;

static DRIVER: ServerCell<RefCell<Option<Driver>>> = ServerCell::new(RefCell::new(None));

/// All state in memory.
#[derive(Default)]
pub(crate) struct Driver {
    pub(crate) locks: LockManager,
    pub(crate) stats: Stats,
    pub(super) blocked: BlockedClients,
    pub(super) waiting_clients: WaitingClients,
    pub(super) deliveries: Deliveries,
    pub(super) acknowledgements: Acknowledgements,
    pub(super) inboxes: Inboxes,
    pub(super) alarm: Alarm,
    pub(super) looks: Looks,
    /// The event loop is listened to, for fragile locks; ends in the timer.
    pub(super) hears_wakeups: bool,
    /// The end of connections is listened to; ends in the timer.
    pub(super) hears_clients: bool,
    /// When locks may have been forgotten whose leases still run, on the clock of times to wait.
    pub(super) memory_lost: Option<MonoUs>,
    /// This server is a node of a cluster, which does not change.
    pub(super) in_cluster: bool,
    /// All keys of a database may be gone: external clients have not been told yet.
    pub(super) flushed: bool,
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
pub(super) fn drop_all(proof: impl Into<InCallback>) {
    DRIVER.get(proof).replace(None);
}

/// Passes on what was decided, and sets the timer for what comes next. To be called after every input to the
/// core, when the lock is stored. `now` is when that was, or a little before: what comes next is planned from then on.
pub(crate) fn dispatch(ctx: Ctx<'_>, now: Now) {
    with(ctx, |driver| {
        // Mostly nobody waits, and nothing is planned.
        if driver.locks.has_decided() || driver.alarm.is_set() || !driver.is_idle() {
            driver.notice_promotion(ctx);
            driver.pass_on_decisions(ctx);
            driver.listen_to_clients(ctx);
            driver.plan_at(ctx, now, None);
        }
    });
}

impl Driver {
    /// The client that this waiter blocks, or that it belongs to.
    pub(crate) fn client_of(&self, id: WaiterId) -> Option<u64> {
        let blocked = self.blocked.client_of(self.locks.first_wait_of(id));
        blocked.or_else(|| self.locks.connection_of(id).map(|connection| connection.0))
    }

    /// As [`LockManager::tables`], of the tables beside it.
    pub(super) fn tables(&self) -> [(&'static CStr, usize); 5] {
        [
            (c"table_blocked_clients", self.blocked.len()),
            (c"table_answered_grants", self.deliveries.len()),
            (c"table_awaiting_replicas", self.acknowledgements.len()),
            (c"table_sockets", self.waiting_clients.len()),
            (c"table_inboxes", self.inboxes.len()),
        ]
    }

    pub(super) fn pass_on_decisions(&mut self, ctx: Ctx<'_>) {
        while let Some((id, decision)) = self.locks.next_decision() {
            match (&decision, self.blocked.wanted(id)) {
                (Decision::Granted(_) | Decision::GrantedAll(_), Some(wanted)) => {
                    let granted = Written::Grant(decision);
                    self.acknowledgements.insert(id, wanted, granted, ctx.now().mono);
                    self.acknowledgements.listen(ctx);
                }
                (_, wanted) => {
                    if wanted.is_some() {
                        self.acknowledgements.remove(id);
                    }
                    self.blocked.end(id, Ended::By(decision));
                }
            }
        }
        if self.locks.has_messages() {
            self.inboxes.send(ctx);
        }
    }

    /// Somebody waits from now on. `plans` if there may be something to plan for that.
    pub(super) fn begin_wait(&mut self, ctx: Ctx<'_>, (now, plans): (Now, bool)) {
        self.listen_to_clients(ctx);
        if self.in_cluster {
            self.looks.plan_all(ctx.now().mono);
        }
        self.pass_on_decisions(ctx);
        if plans || self.in_cluster || !self.alarm.is_set() || self.locks.has_searches() {
            self.plan_at(ctx, now, None);
        }
    }

    /// Goes on if this server is the primary again, should that not have been told.
    pub(super) fn notice_promotion(&mut self, ctx: Ctx<'_>) {
        if self.locks.is_demoted() && ctx.is_primary() {
            self.promote(ctx);
        }
    }

    /// This server has become the primary. What the one before has granted last, it may not have heard.
    pub(super) fn promote(&mut self, ctx: Ctx<'_>) {
        self.memory_lost = Some(ctx.now().mono);
        self.locks.promote();
        self.keep_quarantine(ctx.now());
    }

    /// For how many more microseconds nothing is granted, as locks may have been forgotten.
    pub(crate) fn quarantine_left(&self, now: Now) -> Option<MonoUs> {
        let end = self.end_of_quarantine()?;
        end.checked_sub(now.mono).filter(|left| *left > 0)
    }

    fn end_of_quarantine(&self) -> Option<MonoUs> {
        let lost = self.memory_lost?;
        config::quarantine().map(|ms| lost.saturating_add(ms.saturating_mul(1000)))
    }

    /// Nothing is granted that must not be, now that it is so late, and as the setting is.
    #[inline]
    pub(crate) fn keep_quarantine(&mut self, now: Now) {
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
    fn needs_clients(&self) -> bool {
        self.locks.has_bindings()
            || self.locks.has_notified()
            || !self.blocked.is_empty()
            || !self.deliveries.is_empty()
            || self.inboxes.len() > 0
    }

    /// The end of connections is listened to, and does not matter any more.
    fn listens_in_vain(&self) -> bool {
        self.hears_clients && !self.needs_clients()
    }

    /// Listens to the end of connections, if that matters.
    pub(super) fn listen_to_clients(&mut self, ctx: Ctx<'_>) {
        if self.needs_clients() && !std::mem::replace(&mut self.hears_clients, true) {
            events::listen_to_clients(ctx, client_closed);
        }
    }

    /// Ends that, if it does not matter any more. Not to be called from an event.
    pub(super) fn ignore_clients(&mut self, ctx: Ctx<'_>) {
        if self.listens_in_vain() {
            self.hears_clients = false;
            events::ignore_clients(ctx);
            self.waiting_clients.clear();
        }
    }

    /// True if nothing is to be done, now or later, and nothing is remembered that a change of roles matters to.
    fn is_idle(&self) -> bool {
        !self.hears_wakeups
            && !self.hears_clients
            && !self.flushed
            && self.looks.is_empty()
            && self.acknowledgements.is_idle()
            && !self.inboxes.are_listening()
            && self.inboxes.len() == 0
            && self.locks.has_no_deadline()
            && !self.locks.has_bindings()
            && !self.locks.is_demoted()
    }

    /// Sets the timer for the next thing to do.
    pub(super) fn plan(&mut self, ctx: Ctx<'_>) {
        self.plan_at(ctx, ctx.now(), None);
    }

    /// The same, at this time, and if there is an obstacle to writing.
    pub(super) fn plan_at(&mut self, ctx: Ctx<'_>, now: Now, obstacle: Option<Obstacle>) {
        if self.locks.has_fragile() {
            if !std::mem::replace(&mut self.hears_wakeups, true) {
                event_loop::listen_to_wakeups(ctx, woke_up);
            }
        } else {
            self.looks.no_fragile();
        }
        let work = self.locks.next_wakeup(now, obstacle.is_none());
        let wanted = if self.is_beside_locks() || obstacle.is_some() {
            self.next_timer(work, now, obstacle)
        } else {
            work
        };
        self.alarm.set(ctx, wanted, now.mono, watch_timer);
    }

    /// True if there is more to plan for than locks.
    fn is_beside_locks(&self) -> bool {
        self.flushed
            || self.hears_wakeups
            || self.listens_in_vain()
            || !self.looks.is_empty()
            || !self.acknowledgements.is_idle()
            || self.inboxes.are_listening()
    }

    /// In how many milliseconds the timer is to fire, of which there is `work` to do with locks.
    fn next_timer(&self, work: Option<u64>, now: Now, obstacle: Option<Obstacle>) -> Option<u64> {
        if self.flushed && obstacle.is_none() {
            return Some(0);
        }
        let work = match obstacle {
            Some(Obstacle::Refused) => {
                let deadline = self.locks.next_deadline(now);
                deadline.into_iter().chain(work.map(|ms| ms.max(REFUSED_RETRY_MS))).min()
            }
            _ => work,
        };
        let in_vain =
            self.listens_in_vain() || self.acknowledgements.listens_in_vain() || self.inboxes.are_listening();
        let listening = (self.hears_wakeups || in_vain).then_some(LISTENING_MS);
        let flushed = self.flushed.then_some(FLUSH_RETRY_MS);
        let ms_until = |at: MonoUs| at.saturating_sub(now.mono).div_ceil(1000);
        let look = self.looks.first().map(ms_until);
        let overdue = self.acknowledgements.first_deadline().map(ms_until);
        [work, listening, flushed, look, overdue].into_iter().flatten().min()
    }

    /// Plans for a lock that may have changed.
    pub(super) fn plan_soon(&mut self, ctx: Ctx<'_>) {
        self.plan(ctx);
        event_loop::wake_up(ctx);
    }

    /// Fragile locks are looked at, if the server was woken up since the last time.
    pub(super) fn look_at_fragile(&mut self, now: MonoUs) {
        if self.looks.take_fragile(self.locks.is_rechecking_fragile()) {
            self.locks.recheck_fragile();
            self.looks.plan_fragile(now, self.locks.is_rechecking_fragile());
        }
    }
}

/// A lock that was looked up, to be read and changed.
#[derive(Clone, Copy)]
pub(crate) struct Remembered<'a> {
    ctx: Ctx<'a>,
    pub(crate) lock: LockLookup<'a>,
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
    (name, lock): (&Str<'_>, &Remembered<'_>),
    request: &Request,
    patience: WaitPolicy,
    now: Now,
) -> Option<FastQueued> {
    if patience == WaitPolicy::NoWait {
        return None;
    }
    // A field may end before the lock's lease does. Who is first in line has to see when.
    let looks_first = key::fields_may_end(ctx);
    let is_new = |id: &RequestId| matches!(granted(ctx, name, id), Ok(None));
    with(ctx, |driver| {
        driver.keep_quarantine(now);
        driver.locks.queue_fast(lock.lock, request, patience, (looks_first, is_new), now)
    })
}

/// The server has been woken up, and has read nothing yet.
fn woke_up(ctx: Ctx<'_>, (): ()) {
    with(ctx, |driver| {
        let alarm = &driver.alarm;
        if driver.locks.has_fragile() && driver.looks.server_woke_up(ctx.now().mono, |at| alarm.fires_by(at))
        {
            driver.plan(ctx);
        }
    });
}

/// Nobody's time to wait may change because somebody sets the clock.
fn watch_timer(ctx: Ctx<'_>, (): ()) {
    with(ctx, |driver| {
        if driver.alarm.stop_if_overdue(ctx) {
            driver.plan(ctx);
        }
    });
}

/// A client's connection has ended.
fn client_closed(ctx: Ctx<'_>, client: u64) {
    // Outside of `with`: the server is asked.
    let mut deliveries = with(ctx, |driver| std::mem::take(&mut driver.deliveries));
    let freed = deliveries.client_freed(ctx, client);
    with(ctx, |driver| {
        driver.deliveries = deliveries;
        // If it waits still, the server is about to say so.
        let waits = driver.waiting_clients.last_wait(client).is_some_and(|id| driver.blocked.contains(id));
        if !waits {
            driver.waiting_clients.forget(client);
        }
        driver.inboxes.forget(client);
        let now = ctx.now();
        let mut follows = !freed.is_empty();
        for (id, reached) in freed {
            if reached {
                driver.locks.delivered(id, now);
            } else {
                driver.revoke(id);
            }
        }
        follows |= driver.locks.connection_closed(ConnectionId(client), now);
        if follows {
            driver.plan_soon(ctx);
        }
    });
}
