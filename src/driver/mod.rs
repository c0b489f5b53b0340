//! The module at work in a server: the core, the clients that are blocked on its decisions, the connections that
//! holds depend on, and its one timer.
//!
//! How a decision reaches its client:
//!
//! 1. A command, the timer, or a look at a touched lock changes the core, writes the lock, and calls
//!    [`dispatch`]. That passes each decision to its waiter: the client is unblocked, and the timer is set for
//!    what comes next.
//! 2. In the same turn of the event loop the server lets [`Waits`](waits) answer the client, if it is still
//!    there, and tells us in any case that it is done.
//! 3. A client that is gone by then does not keep its grant, and neither does one that has hung up without the
//!    server having read so (the socket is asked). One that the server has decided to close may still look
//!    alive in step 2 and be freed right after, without getting the answer: so a grant is final only when the
//!    turn is over and the client still exists ([`waits`]).
//!
//! Nothing is written from where the server tells us that a key was touched ([`Touches`]), as the replicas
//! would get our write before the change that led to it: the lock is marked, and looked at in a timer that
//! fires at once.

mod search;
mod touches;
mod waits;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::CStr;

use crate::core::{
    ConnectionId, Decision, InHand, KeyChange, LockId, LockManager, LockRef, MonoUs, WaiterId, WallMs,
};
use crate::error::Error;
use crate::keyspace::{self, Lock};
use crate::server::blocked::{self, Handle};
use crate::server::events;
use crate::server::propagation::Propagation;
use crate::server::socket::Sockets;
use crate::server::timer::{self, TimerId};
use crate::server::{guard, unloading, Ctx, InCallback, Obstacle, ServerCell, Str};
use crate::stats::Stats;

pub(crate) use search::{blockers_of, deadlock_of};
use touches::Touches;
pub(crate) use waits::reply_grant;
use waits::{Ended, Wait, Waits};

/// In a cluster, how often every lock that somebody waits for is looked at, in microseconds: a slot can leave
/// without a word about its keys.
const CLUSTER_LOOK_US: MonoUs = 500_000;

/// How soon after the server has been woken up fenced locks that somebody waits for are looked at, in microseconds: when a
/// stranger deletes the owner's field, the token's is left, and no event comes but of a class that would cost every `HSET` of
/// the server a fifth of its time. A server that sleeps has nothing to look at.
const FRAGILE_LOOK_US: MonoUs = 4_000;

/// When the next of them are looked at, if there are too many for one go.
const NEXT_FRAGILE_US: MonoUs = 1_000;

/// How long one firing of the timer may keep the server from its clients, in microseconds; what is left then is
/// done a millisecond later.
const TIMER_BUDGET_US: MonoUs = 4_000;

/// While nothing may be written, how often it is tried to tell of a flush, in milliseconds.
const FLUSH_RETRY_MS: u64 = 10;

/// While the server refuses all writes, how often it is asked whether it still does, in milliseconds.
const REFUSED_RETRY_MS: u64 = 10;

/// For how long the end of every turn is listened to after the last that mattered, in milliseconds: to begin and to end that
/// costs more than to go on, where a lock is handed from one to the next.
const LISTENING_MS: u64 = 100;

/// How late a timer can be in a server that is alive, in microseconds.
const TIMER_OVERDUE_US: MonoUs = 20_000;

static DRIVER: ServerCell<RefCell<Option<Driver>>> = ServerCell::new(RefCell::new(None));

/// The event that is being raised is about a change of our own.
static CHANGING: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// A lock has been used: see [`listen`].
static LISTENS: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// All state in memory.
#[derive(Default)]
pub(crate) struct Driver {
    pub(crate) locks: LockManager,
    pub(crate) stats: Stats,
    waits: BTreeMap<WaiterId, Wait>,
    /// On old servers the handle is all that a callback gets.
    by_handle: BTreeMap<Handle, WaiterId>,
    sockets: Sockets,
    /// The timer, if it is set, and when it fires. There is never more than one.
    timer: Option<(TimerId, MonoUs)>,
    /// Grants that were answered in this turn of the event loop, with their clients.
    answered: Vec<(WaiterId, u64)>,
    /// The end of every turn is listened to; ends in the timer.
    listening: bool,
    /// The timer is watched; ends in the timer.
    watching_timer: bool,
    /// The end of connections is listened to, as holds depend on some; ends in the timer.
    listening_to_clients: bool,
    /// All keys of a database may be gone: those who wait elsewhere have not been told yet.
    flushed: bool,
    /// The server was woken up since those locks were looked at that can become free without an event.
    fragile_touched: bool,
    /// When they are looked at next.
    look_at_fragile: Option<MonoUs>,
    /// When all locks are looked at next; in a cluster only.
    look_at_all: Option<MonoUs>,
}

/// Gives access to the state. Nothing that can make the server call us back may be done inside.
pub(crate) fn with<T>(proof: impl Into<InCallback>, body: impl FnOnce(&mut Driver) -> T) -> T {
    let mut driver = DRIVER.get(proof).borrow_mut();
    if driver.is_none() {
        *driver = Some(Driver::default());
    }
    match &mut *driver {
        Some(driver) => body(driver),
        None => unreachable!("it has just been made"),
    }
}

/// Starts to listen to what those who wait elsewhere have to be told of, whether a lock was used here or not. False if the
/// server refuses.
pub(crate) fn start(ctx: Ctx<'_>) -> bool {
    // The first tick says that the module has been loaded: see `unloading`.
    events::listen_to_cron(ctx, |ctx, ()| unloading::begin(ctx));
    unloading::watch(ctx) && events::listen_to_databases::<Touches>(ctx)
}

/// Listens to all else, from the first lock that is used: whoever uses none shall not pay for it.
fn listen(ctx: Ctx<'_>) {
    if LISTENS.get(ctx).replace(true) {
        return;
    }
    if !(events::listen_to_keys::<Touches>(ctx) && events::listen_to_role(ctx, role_changed)) {
        ctx.warn(
            "redis-lock: the server refuses a subscription; locks that strangers free are handed on late",
        );
    }
    crate::server::start(ctx);
    unloading::begin(ctx);
    if !with(ctx, |driver| driver.watching_timer) {
        events::ignore_cron(ctx);
    }
}

/// Drops all state. The server unloads a module only when no client is blocked by it and it has no timer.
pub(crate) fn stop(ctx: Ctx<'_>) {
    DRIVER.get(ctx).replace(None);
    events::forget(ctx);
    LISTENS.get(ctx).set(false);
}

/// Does something whose events are about a change of our own, or about none of a lock.
pub(crate) fn while_changing<T>(ctx: Ctx<'_>, body: impl FnOnce() -> T) -> T {
    let before = CHANGING.get(ctx).replace(true);
    let result = body();
    CHANGING.get(ctx).set(before);
    result
}

/// Blocks the calling client until its waiter is decided.
pub(crate) fn block(ctx: Ctx<'_>, id: WaiterId) -> Result<(), Error> {
    let may_unblock = crate::server_may_unblock();
    let Some(handle) = blocked::block::<Waits>(ctx, may_unblock) else {
        with(ctx, |driver| driver.locks.leave(id));
        dispatch(ctx);
        return Err(Error::CannotBlock);
    };
    let wait = Wait::of_caller(ctx, handle);
    with(ctx, |driver| {
        driver.waits.insert(id, wait);
        driver.by_handle.insert(handle, id);
        if ctx.is_cluster() {
            driver.look_at_all.get_or_insert(ctx.now().mono + CLUSTER_LOOK_US);
        }
    });
    dispatch(ctx);
    Ok(())
}

/// Writes a lock that a command has opened and the core has changed, and sees to what follows from it.
pub(crate) fn commit(ctx: Ctx<'_>, at: LockRef<'_>, in_hand: InHand, lock: &mut Lock<'_>, found_free: bool) {
    listen(ctx);
    let shortened = lock.shortened_to();
    store(ctx, at, in_hand, lock, found_free, shortened);
    dispatch(ctx);
}

/// Writes a lock, and sees to it that external clients are told what they have to know: that it is free, also if
/// it is only now that anybody sees so; or when its first lease ends, if that is `shortened`.
fn store(
    ctx: Ctx<'_>,
    at: LockRef<'_>,
    in_hand: InHand,
    lock: &mut Lock<'_>,
    found_free: bool,
    shortened: Option<WallMs>,
) {
    let name = lock.name();
    let unannounced = in_hand.unannounced && found_free && lock.holders.is_free();
    let told = lock
        .store()
        .or_else(|| unannounced.then(|| keyspace::channel::freed(ctx, Propagation::of(ctx), name)));
    if let Some(told) = told {
        with(ctx, |driver| driver.locks.announced(at, in_hand, told > 0, ctx.now()));
    }
    if in_hand.watches_lease {
        if let Some(end) = lock.first_field_end() {
            with(ctx, |driver| driver.locks.field_ends(in_hand, end, ctx.now()));
        }
    }
    if let Some(end) = shortened.filter(|_| keyspace::channel::has_listeners(ctx, name)) {
        with(ctx, |driver| driver.locks.lease_shortened(at, in_hand, end));
    }
}

/// Passes on what was decided, and sets the timer for what comes next. To be called after every input to the
/// core, when the lock is stored.
pub(crate) fn dispatch(ctx: Ctx<'_>) {
    with(ctx, |driver| {
        // Mostly nobody waits, and nothing is planned.
        if driver.locks.has_decided() || driver.timer.is_some() || !driver.is_idle() {
            driver.take_office(ctx);
            driver.pass_on_decisions();
            driver.listen_to_clients(ctx);
            driver.set_timer(ctx, None);
        }
    });
}

/// A command found something else than a lock: if somebody waits for it, that is looked at.
pub(crate) fn look_soon(ctx: Ctx<'_>, key: &[u8]) {
    with(ctx, |driver| {
        if driver.locks.key_changed(LockRef { db: ctx.db(), key }, KeyChange::Changed, ctx.now()) {
            driver.set_timer(ctx, None);
        }
    });
}

impl Driver {
    /// The client that this waiter blocks.
    pub(crate) fn client_of(&self, id: WaiterId) -> Option<u64> {
        self.waits.get(&id).map(|wait| wait.client)
    }

    /// As [`LockManager::tables`], of the tables beside it.
    pub(crate) fn tables(&self) -> [(&'static CStr, usize); 4] {
        [
            (c"table_blocked_clients", self.waits.len()),
            (c"table_blocked_handles", self.by_handle.len()),
            (c"table_answered_grants", self.answered.len()),
            (c"table_sockets", self.sockets.len()),
        ]
    }

    fn pass_on_decisions(&mut self) {
        for (id, decision) in self.locks.take_decisions() {
            self.stats.count(&decision);
            self.end(id, Ended::By(decision));
        }
    }

    /// Ends a wait; only the first end counts, so that the handle is given back once. But who has not been told yet of
    /// a grant is told that it was cancelled.
    fn end(&mut self, id: WaiterId, ended: Ended) {
        let Some(wait) = self.waits.get_mut(&id) else { return };
        match (&wait.ended, &ended) {
            (None, _) => {
                wait.ended = Some(ended);
                blocked::unblock(wait.handle, id.0);
            }
            (Some(Ended::By(Decision::Granted(_))), Ended::By(Decision::Cancelled)) => {
                wait.ended = Some(ended)
            }
            _ => {}
        }
    }

    /// Goes on if this server is the primary again, should that not have been told.
    fn take_office(&mut self, ctx: Ctx<'_>) {
        if self.locks.is_demoted() && ctx.is_primary() {
            self.locks.promote();
        }
    }

    /// Listens to the end of connections as soon as a hold depends on one.
    fn listen_to_clients(&mut self, ctx: Ctx<'_>) {
        if self.locks.has_bindings() && !std::mem::replace(&mut self.listening_to_clients, true) {
            events::listen_to_clients(ctx, client_closed);
        }
    }

    /// Nobody is blocked: a crowd of waiters that has gone leaves no large tables behind.
    fn give_memory_back(&mut self) {
        self.locks.give_memory_back();
    }

    /// A waiter that has not been decided leaves.
    fn leave(&mut self, ctx: Ctx<'_>, handle: Handle) {
        let Some(id) = self.by_handle.get(&handle).copied() else { return };
        self.locks.leave(id);
        self.end(id, Ended::Left);
        self.set_timer(ctx, None);
    }

    /// True if nothing is to be done, now or later, and nothing is remembered that a change of roles matters to.
    fn is_idle(&self) -> bool {
        !self.listening
            && !self.flushed
            && self.look_at_all.is_none()
            && self.locks.plans_nothing()
            && !self.locks.has_bindings()
            && !self.locks.is_demoted()
    }

    /// Sets the timer for the next thing to do, moves it if that comes earlier than planned, and stops it if
    /// there is nothing: a module that has a timer cannot be unloaded.
    fn set_timer(&mut self, ctx: Ctx<'_>, obstacle: Option<Obstacle>) {
        let now = ctx.now();
        if self.locks.has_fragile() {
            self.listen_to_wakeups(ctx);
        } else {
            self.look_at_fragile = None;
        }
        let wanted = if self.flushed && obstacle.is_none() {
            Some(0)
        } else {
            let work = self.locks.next_wakeup(now, obstacle.is_none());
            let work = match obstacle {
                Some(Obstacle::Refused) => {
                    let deadline = self.locks.next_deadline(now);
                    deadline.into_iter().chain(work.map(|ms| ms.max(REFUSED_RETRY_MS))).min()
                }
                _ => work,
            };
            let work = work.into_iter().chain(self.listening.then_some(LISTENING_MS)).min();
            let flushed = self.flushed.then_some(FLUSH_RETRY_MS);
            let looks = self.look_at_all.into_iter().chain(self.look_at_fragile);
            let look = looks.min().map(|at| at.saturating_sub(now.mono).div_ceil(1000));
            work.into_iter().chain(look).chain(flushed).min()
        };
        let due = wanted.map(|ms| now.mono.saturating_add(ms.saturating_mul(1000)));
        match (&self.timer, due) {
            (Some((_, planned)), Some(due)) if *planned <= due => return,
            (None, None) => return,
            _ => {}
        }
        if let Some((timer, _)) = self.timer.take() {
            timer::stop(ctx, timer);
        }
        if let (Some(ms), Some(due)) = (wanted, due) {
            self.timer = Some((timer::set(ctx, ms, fired), due));
            if !std::mem::replace(&mut self.watching_timer, true) {
                events::listen_to_cron(ctx, watch_timer);
                unloading::begin(ctx);
            }
        }
    }
}

/// The timer has fired.
fn fired(ctx: Ctx<'_>) {
    let primary = ctx.is_primary();
    let obstacle = ctx.obstacle();
    let may_write = obstacle.is_none();
    let started = ctx.now().mono;
    with(ctx, |driver| {
        // First of all: this timer must not be stopped any more.
        driver.timer = None;
        if driver.listening && driver.answered.is_empty() && !driver.locks.has_fragile() {
            driver.listening = false;
            events::ignore_wakeups(ctx);
        }
        if !primary {
            driver.locks.demote();
        }
        driver.take_office(ctx);
        if !driver.locks.has_bindings() && std::mem::take(&mut driver.listening_to_clients) {
            events::ignore_clients(ctx);
        }
        if ctx.is_cluster() {
            driver.plan_look_at_all(started);
        }
        if may_write {
            driver.look_at_fragile(started);
        }
    });
    while ctx.now().mono.saturating_sub(started) < TIMER_BUDGET_US {
        let locks = with(ctx, |driver| {
            let locks = driver.locks.tick(ctx.now(), may_write);
            driver.pass_on_decisions();
            locks
        });
        for lock in &locks {
            // What goes wrong with one lock must not keep others waiting.
            guard(|| look_at(ctx, lock));
        }
        if locks.is_empty() {
            break;
        }
    }
    let flushed = with(ctx, |driver| {
        let told = driver.flushed && (may_write || !primary);
        driver.flushed &= !told;
        (told && primary)
            .then(|| driver.locks.wanted_here().map(|lock| lock.key.to_vec()).collect::<Vec<_>>())
    });
    if let Some(wanted_here) = flushed {
        keyspace::channel::all_freed(ctx, &wanted_here);
    }
    with(ctx, |driver| {
        driver.pass_on_decisions();
        driver.set_timer(ctx, obstacle);
        if driver.timer.is_none() && std::mem::take(&mut driver.watching_timer) {
            events::ignore_cron(ctx);
        }
    });
}

/// The server's timers wait for a time of day: if somebody sets the clock back, they fire that much later.
/// Nobody's time to wait may change by that, so such a timer is set anew.
fn watch_timer(ctx: Ctx<'_>, (): ()) {
    with(ctx, |driver| {
        if driver.timer.as_ref().is_some_and(|(_, due)| ctx.now().mono > due + TIMER_OVERDUE_US) {
            if let Some((timer, _)) = driver.timer.take() {
                timer::stop(ctx, timer);
            }
            driver.set_timer(ctx, None);
        }
    });
}

impl Driver {
    /// Listens to the event loop, from now until the timer fires and there is no need to.
    fn listen_to_wakeups(&mut self, ctx: Ctx<'_>) {
        if !std::mem::replace(&mut self.listening, true) {
            events::listen_to_wakeups(ctx, waits::turn_is_over);
        }
    }

    /// The server was woken up, and carries out what it has been sent before any timer fires.
    fn plan_look_at_fragile(&mut self, ctx: Ctx<'_>) {
        if !self.locks.has_fragile() {
            return;
        }
        self.fragile_touched = true;
        let at = ctx.now().mono + FRAGILE_LOOK_US;
        // Whenever the timer fires, whatever it is for, they are looked at.
        if self.timer.as_ref().is_none_or(|(_, due)| *due > at) {
            self.look_at_fragile = Some(at);
            self.set_timer(ctx, None);
        }
    }

    fn look_at_fragile(&mut self, now: MonoUs) {
        let goes_on = self.look_at_fragile.take().is_some() || self.locks.is_looking_at_fragile();
        if !goes_on && !self.fragile_touched {
            return;
        }
        if !self.locks.is_looking_at_fragile() {
            self.fragile_touched = false;
        }
        self.locks.look_at_fragile();
        if self.locks.is_looking_at_fragile() {
            self.look_at_fragile = Some(now + NEXT_FRAGILE_US);
        } else if self.fragile_touched {
            self.look_at_fragile = Some(now + FRAGILE_LOOK_US);
        }
    }

    fn plan_look_at_all(&mut self, now: MonoUs) {
        if self.look_at_all.is_some_and(|at| at <= now) {
            self.locks.look_at_all();
        }
        let planned = self.look_at_all.filter(|at| *at > now);
        let waiting = self.locks.waiting_total() > 0;
        self.look_at_all = waiting.then(|| planned.unwrap_or(now + CLUSTER_LOOK_US));
    }
}

/// Reads a lock that may have become free, and grants it to whoever is first in line.
fn look_at(ctx: Ctx<'_>, lock: &LockId) {
    ctx.select_db(lock.db);
    let name = Str::new(&lock.key);
    let refuse = |decision| with(ctx, |driver| driver.locks.refuse_all(lock.as_ref(), &decision));
    // A key that has gone because its slot migrates was not released.
    if ctx.is_cluster() && !ctx.serves_slot_of(&[&name]) {
        return refuse(Decision::Moved);
    }
    let now = ctx.now();
    let Ok(mut open) = Lock::open(ctx, &name, None, now) else {
        return refuse(Decision::WrongType);
    };
    let found_free = open.holders.is_free();
    let in_hand =
        with(ctx, |driver| driver.locks.reconcile(lock.as_ref(), &mut open.holders, &mut open.records, now));
    // Of a lease that a foreign write has ended it is not known how long it was.
    let shortened = if found_free { open.holders.first_end() } else { open.shortened_to() };
    store(ctx, lock.as_ref(), in_hand, &mut open, found_free, shortened);
}

/// This server has become the primary, or has ceased to be it.
fn role_changed(ctx: Ctx<'_>, primary: bool) {
    with(ctx, |driver| {
        if primary {
            driver.locks.promote();
        } else {
            // Not every server ends the waits itself (Valkey 9 in a cluster does not), and some do before or after.
            driver.locks.demote();
            driver.pass_on_decisions();
        }
        driver.set_timer(ctx, None);
    });
}

/// A client's connection has ended.
fn client_closed(ctx: Ctx<'_>, client: u64) {
    with(ctx, |driver| {
        if driver.locks.connection_closed(ConnectionId(client), ctx.now()) {
            driver.set_timer(ctx, None);
            events::wake_up(ctx);
        }
    });
}
