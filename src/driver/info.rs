// SPDX-License-Identifier: MIT

//! The module's section of `INFO`, and warnings for operators.

use std::cell::Cell;
use std::ffi::CStr;

use crate::core::{Counted, Times};
use crate::driver::state::with;
use crate::keyspace::reader_cache;
use crate::package;
use crate::server::callback::ctx::{is_replica, now};
use crate::server::clients::{deferred, long_reply};
use crate::server::registration::info::{Info, InfoSection};
use crate::server::{version, Ctx, InCallback, ServerCell};

/// `INFO lock`; `docs/operations.md` describes every field.
pub(crate) struct Section;

impl InfoSection for Section {
    fn fill(proof: InCallback, info: &mut Info) {
        if !info.section(c"") {
            return;
        }
        let now = now(proof);
        with(proof, |driver| {
            let counted = driver.locks.statistics();
            let [most_contended, most_waiters, most_watchdogs, most_ephemeral] = counted.most();
            info.number(c"version", package::VERSION);
            info.number(c"build", package::time());
            info.number(c"is_replica", usize::from(is_replica(proof)));
            info.number(c"waiters", driver.locks.waiting_total());
            info.number(c"waiters_max", most_waiters);
            info.number(c"longest_wait_ms", driver.locks.longest_wait(now) / 1000);
            info.number(c"contended_locks", counted.contended());
            info.number(c"contended_locks_max", most_contended);
            info.number(c"known_held_locks", driver.locks.known_held());
            info.number(c"known_locks_max", driver.locks.most_locks());
            for (name, counter) in COUNTED {
                info.number(name, counted.number(counter));
            }
            info.number(c"sessions", driver.locks.session_count());
            info.number(c"sessions_suspect", driver.locks.suspect_sessions());
            info.number(c"grants_revoked", driver.stats.revoked);
            info.number(c"deadlocks", driver.stats.deadlocks);
            info.number(c"replicas_missed", driver.stats.replicas_missed);
            info.number(c"waits_refused", driver.stats.waits_refused);
            info.number(c"max_waiters_total", driver.blocked.limit().unwrap_or(0));
            info.number(c"leases_run_out", driver.locks.expired_leases());
            info.number(c"owners_told", driver.stats.owner_events);
            let (passed, refused) = guards(proof);
            info.number(c"guards_passed", passed);
            info.number(c"guards_refused", refused);
            for (names, times) in [(WAIT_US, counted.wait_times()), (HOLD_US, counted.hold_times())] {
                let Times { p50, p99, p999, max } = times;
                for (name, us) in names.into_iter().zip([p50, p99, p999, max]) {
                    info.number(name, us);
                }
            }
            info.number(c"log_entries", driver.locks.log().len());
            let (given, taken) = driver.locks.fairness_windows();
            info.number(c"fairness_windows_given", given);
            info.number(c"fairness_windows_used", taken);
            let (watchdogs, ephemeral) = driver.locks.bound();
            info.number(c"watchdogs", watchdogs);
            info.number(c"watchdogs_max", most_watchdogs);
            info.number(c"ephemeral_holds", ephemeral);
            info.number(c"ephemeral_holds_max", most_ephemeral);
            let quarantine = driver.quarantine_left(now).unwrap_or_default().div_ceil(1000);
            info.number(c"quarantine_left_ms", quarantine);
            for (table, size) in driver.locks.tables().chain(driver.tables()) {
                info.number(table, size);
            }
        });
        info.number(c"table_readers", reader_cache::readers(proof));
        info.number(c"table_long_replies", long_reply::pending(proof));
        info.number(c"table_scripts", deferred::pending(proof));
        info.number(c"internal_errors", crate::server::panics() + crate::defect::count());
        info.number(c"eviction", usize::from(may_evict_locks()));
    }
}

/// The counters of the core, with their names in `INFO`.
const COUNTED: [(&CStr, Counted); 16] = [
    (c"grants_at_once", Counted::GrantedAtOnce),
    (c"waiters_granted", Counted::GrantedAfterWaiting),
    (c"reentries", Counted::Reentered),
    (c"grants_repeated", Counted::Repeated),
    (c"refused_busy", Counted::Busy),
    (c"waiters_timed_out", Counted::TimedOut),
    (c"cancelled", Counted::Cancelled),
    (c"releases", Counted::Released),
    (c"renewals", Counted::Renewed),
    (c"watchdog_renewals", Counted::RenewedByWatchdog),
    (c"breaks", Counted::Broken),
    (c"disconnect_releases", Counted::ReleasedOnDisconnect),
    (c"tokens", Counted::Token),
    (c"sessions_opened", Counted::SessionOpened),
    (c"sessions_expired", Counted::SessionExpired),
    (c"session_grants_overdue", Counted::Overdue),
];

const WAIT_US: [&CStr; 4] = [c"wait_us_p50", c"wait_us_p99", c"wait_us_p999", c"wait_us_max"];
const HOLD_US: [&CStr; 4] = [c"hold_us_p50", c"hold_us_p99", c"hold_us_p999", c"hold_us_max"];

/// Number of guarded commands that ran, and of those whose claim was refused.
static GUARDS: ServerCell<[Cell<u64>; 2]> = ServerCell::new([const { Cell::new(0) }; 2]);

/// Counts the result of checking a claim.
#[inline]
pub(crate) fn count_guard(ctx: Ctx<'_>, passed: bool) {
    let [yes, no] = GUARDS.get(ctx);
    let count = if passed { yes } else { no };
    count.set(count.get() + 1);
}

fn guards(proof: InCallback) -> (u64, u64) {
    let [passed, refused] = GUARDS.get(proof);
    (passed.get(), refused.get())
}

/// Settings that decide whether locks can be evicted or granted, how many clients wait, and what is logged and published.
pub(crate) const SETTINGS: [&CStr; 8] = [
    c"maxclients",
    c"lock.max-waiters-total",
    c"maxmemory-policy",
    c"maxmemory",
    c"lock.quarantine",
    c"lock.events",
    c"lock.log-max-len",
    c"lock.log-waits-over",
];

/// Whether the server may evict lock keys when its memory is full. A second owner could then acquire the
/// lock.
fn may_evict_locks() -> bool {
    version::server_field(c"memory", c"maxmemory_policy").is_some_and(|policy| policy != b"noeviction")
}

/// Warns the operator if the server may evict locks. Called at load and when a setting changes.
pub(crate) fn warn_about_eviction(ctx: Ctx<'_>) {
    if may_evict_locks() {
        ctx.warn(
            "redis-lock: maxmemory-policy lets the server evict locks when memory is full, so two owners may \
             hold one lock; set maxmemory-policy noeviction",
        );
    }
}
