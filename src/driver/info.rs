// SPDX-License-Identifier: MIT

//! The module's part of `INFO`, and what an operator is warned of.

use std::cell::Cell;
use std::ffi::CStr;

use super::state::with;
use crate::core::{Counted, Times};
use crate::keyspace::kept;
use crate::server::ctx::now;
use crate::server::info::{self, Info, InfoSection};
use crate::server::{later, long_reply, Ctx, InCallback, ServerCell};

/// `INFO lock`: every field is described in `docs/operations.md`.
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
            info.number(c"waiters", driver.locks.waiting_total());
            info.number(c"waiters_max", most_waiters);
            info.number(c"longest_wait_ms", driver.locks.longest_wait(now) / 1000);
            info.number(c"contended_locks", counted.contended());
            info.number(c"contended_locks_max", most_contended);
            info.number(c"known_held_locks", driver.locks.known_held());
            info.number(c"known_locks_max", driver.locks.most_locks());
            for (name, what) in COUNTED {
                info.number(name, counted.number(what));
            }
            let (notified, connections) = driver.locks.notified();
            info.number(c"notify_waits", notified);
            info.number(c"notify_connections", connections);
            info.number(c"grants_revoked", driver.stats.revoked);
            info.number(c"deadlocks", driver.stats.deadlocks);
            info.number(c"replicas_missed", driver.stats.replicas_missed);
            info.number(c"leases_run_out", driver.locks.expired_leases());
            info.number(c"owners_told", driver.stats.owners_told);
            let (passed, refused) = guards(proof);
            info.number(c"guards_passed", passed);
            info.number(c"guards_refused", refused);
            for (names, times) in [(WAIT_US, counted.wait_times()), (HOLD_US, counted.hold_times())] {
                let Times { p50, p99, p999, max } = times;
                for (name, us) in names.into_iter().zip([p50, p99, p999, max]) {
                    info.number(name, us);
                }
            }
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
        info.number(c"table_readers", kept::readers(proof));
        info.number(c"table_long_replies", long_reply::pending(proof));
        info.number(c"table_scripts", later::pending(proof));
        info.number(c"internal_errors", crate::server::panics() + crate::defect::count());
        info.number(c"eviction", usize::from(evicts()));
    }
}

/// What the core counts, as `INFO` calls it.
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
    (c"notify_confirmed", Counted::Confirmed),
    (c"notify_not_confirmed", Counted::NotConfirmed),
    (c"notify_dropped", Counted::Dropped),
];

const WAIT_US: [&CStr; 4] = [c"wait_us_p50", c"wait_us_p99", c"wait_us_p999", c"wait_us_max"];
const HOLD_US: [&CStr; 4] = [c"hold_us_p50", c"hold_us_p99", c"hold_us_p999", c"hold_us_max"];

/// How many guarded commands were carried out, and how many were not, as what was claimed was not so.
static GUARDS: ServerCell<[Cell<u64>; 2]> = ServerCell::new([const { Cell::new(0) }; 2]);

/// A claim was looked at.
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

/// The settings that decide whether locks can be evicted, are granted at all, or are told of.
pub(crate) const SETTINGS: [&CStr; 4] =
    [c"maxmemory-policy", c"maxmemory", c"lock.quarantine", c"lock.events"];

/// True if the server may evict lock keys when its memory is full, and so let two owners in.
fn evicts() -> bool {
    info::server_field(c"memory", c"maxmemory_policy").is_some_and(|policy| policy != b"noeviction")
}

/// Warns an operator whose server may evict locks: at the start, and when that is set.
pub(crate) fn warn_if_evicts(ctx: Ctx<'_>) {
    if evicts() {
        ctx.warn(
            "redis-lock: maxmemory-policy lets the server evict locks when its memory is full, and then two \
             owners hold one lock; set maxmemory-policy noeviction",
        );
    }
}
