// SPDX-License-Identifier: MIT

//! What is done when the timer fires.

use super::deadlock::search_late;
use super::reconcile::reconcile;
use super::state::with;
use super::{owners, replicas};
use crate::core::MonoUs;
use crate::keyspace::channel;
use crate::server::{ask, event_loop, guard, Ctx};

/// How long one firing of the timer may keep the server from its clients, in microseconds; what is left then is
/// done a millisecond later.
const BUDGET_US: MonoUs = 4_000;

/// The timer has fired.
pub(super) fn on_timer(ctx: Ctx<'_>) {
    let primary = ctx.is_primary();
    let obstacle = ask::obstacle(ctx);
    let may_write = obstacle.is_none();
    let started = ctx.now().mono;
    with(ctx, |driver| {
        // First of all: this timer must not be stopped any more.
        driver.alarm.has_fired();
        if driver.hears_wakeups && !driver.locks.has_fragile() {
            driver.hears_wakeups = false;
            event_loop::ignore_wakeups(ctx);
        }
        if !primary {
            driver.locks.demote();
        }
        driver.notice_promotion(ctx);
        driver.keep_quarantine(ctx.now());
        driver.ignore_clients(ctx);
        driver.acknowledgements.ignore(ctx);
        driver.inboxes.rest(ctx, &driver.locks);
        if driver.in_cluster && driver.looks.take_all(started) {
            let is_remembered = driver.locks.recheck_all();
            driver.looks.plan_again(started, driver.locks.waiting_total() > 0, is_remembered);
        }
        if may_write {
            driver.look_at_fragile(started);
        }
    });
    replicas::end_overdue(ctx);
    let has_time = || ctx.now().mono.saturating_sub(started) < BUDGET_US;
    while has_time() {
        let (lock, is_overdue) = with(ctx, |driver| {
            let now = ctx.now();
            let lock = driver.locks.tick(now, may_write);
            driver.pass_on_decisions(ctx);
            (lock, driver.locks.is_overdue(now))
        });
        if let Some(lock) = &lock {
            // What goes wrong with one lock must not keep others waiting.
            guard(|| reconcile(ctx, lock));
        } else if !is_overdue {
            break;
        }
    }
    if may_write && with(ctx, |driver| driver.locks.searches_are_due(ctx.now())) {
        guard(|| search_late(ctx));
    }
    owners::tell(ctx, has_time);
    let flushed = with(ctx, |driver| {
        let told = driver.flushed && (may_write || !primary);
        driver.flushed &= !told;
        let wanted = || driver.locks.contended_locks().map(|lock| lock.key.to_vec()).collect::<Vec<_>>();
        (told && primary).then(wanted)
    });
    if let Some(wanted_here) = flushed {
        channel::all_freed(ctx, &wanted_here);
    }
    with(ctx, |driver| {
        driver.pass_on_decisions(ctx);
        driver.plan_at(ctx, ctx.now(), obstacle);
        driver.alarm.rest(ctx);
    });
}
