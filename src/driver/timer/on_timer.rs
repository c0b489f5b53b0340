// SPDX-License-Identifier: MIT

//! The work that the timer does.

use crate::core::MonoUs;
use crate::driver::events::owner_events;
use crate::driver::locks::deadlock::run_deferred_searches;
use crate::driver::locks::reconcile::reconcile;
use crate::driver::replicas::completion;
use crate::driver::state::with;
use crate::keyspace::channel;
use crate::server::events::event_loop;
use crate::server::{calls, guard, Ctx};

/// Maximum time per firing, in microseconds. Remaining work follows a millisecond later.
const BUDGET_US: MonoUs = 4_000;

/// Runs all work that is due, and sets the timer again.
pub(crate) fn on_timer(ctx: Ctx<'_>) {
    let primary = ctx.is_primary();
    let obstacle = calls::obstacle(ctx);
    let may_write = obstacle.is_none();
    let started = ctx.now().mono;
    with(ctx, |driver| {
        // This comes first, because a timer that has fired must not be stopped.
        driver.alarm.mark_fired();
        if driver.wakeup_hook && !driver.locks.has_fragile() {
            driver.wakeup_hook = false;
            event_loop::ignore_wakeups(ctx);
        }
        if !primary {
            driver.locks.demote();
        }
        driver.resume_if_promoted(ctx);
        driver.update_quarantine(ctx.now());
        driver.drop_stale_disconnect_hook(ctx);
        driver.replica_waits.drop_stale_hook(ctx);
        if driver.in_cluster && driver.rechecks.take_all_due(started) {
            let is_remembered = driver.locks.recheck_all();
            if driver.locks.waiting_total() > 0 {
                driver.rechecks.plan_all(started);
            } else if is_remembered {
                driver.rechecks.plan_remembered(started);
            }
        }
        if driver.in_cluster {
            if driver.rechecks.take_sessions_due(started) {
                driver.locks.recheck_sessions();
            }
            if driver.locks.session_count() > 0 {
                driver.rechecks.plan_sessions(started);
            }
        }
        if may_write {
            driver.recheck_fragile(started);
        }
        driver.locks.check_sessions(may_write, ctx.now());
    });
    completion::end_overdue(ctx);
    let has_time = || ctx.now().mono.saturating_sub(started) < BUDGET_US;
    while has_time() {
        let (lock, is_overdue) = with(ctx, |driver| {
            let now = ctx.now();
            let lock = driver.locks.tick(now, may_write);
            driver.deliver_decisions(ctx);
            (lock, driver.locks.is_overdue(now))
        });
        if let Some(lock) = &lock {
            // A failure in one lock must not delay the others.
            guard(|| reconcile(ctx, lock));
        } else if !is_overdue {
            break;
        }
    }
    if may_write && with(ctx, |driver| driver.locks.searches_are_due(ctx.now())) {
        guard(|| run_deferred_searches(ctx));
    }
    owner_events::publish(ctx, has_time);
    let flush_unannounced = with(ctx, |driver| {
        let is_announced = driver.flush_unannounced && (may_write || !primary);
        driver.flush_unannounced &= !is_announced;
        let contended = || driver.locks.contended_locks().map(|lock| lock.key.to_vec()).collect::<Vec<_>>();
        (is_announced && primary).then(contended)
    });
    if let Some(wanted_here) = flush_unannounced {
        channel::publish_all_free(ctx, &wanted_here);
    }
    with(ctx, |driver| {
        driver.deliver_decisions(ctx);
        driver.answer_woken_polls(ctx.now());
        driver.answer_due_polls(ctx, obstacle);
        driver.schedule_at(ctx, ctx.now(), obstacle);
        driver.alarm.unwatch_if_unset(ctx);
    });
}
