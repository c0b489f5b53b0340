//! The module's part of `INFO`, and what an operator is warned of.

use std::ffi::CStr;

use super::state::with;
use crate::keyspace::kept;
use crate::server::ctx::now;
use crate::server::info::{self, Info, InfoSection};
use crate::server::{later, long_reply, Ctx, InCallback};

/// `INFO lock`: every field is described in `docs/operations.md`.
pub(crate) struct Section;

impl InfoSection for Section {
    fn fill(proof: InCallback, info: &mut Info) {
        if !info.section(c"") {
            return;
        }
        let now = now(proof);
        with(proof, |driver| {
            info.number(c"waiters", driver.locks.waiting_total());
            info.number(c"contended_locks", driver.locks.contended());
            info.number(c"waiters_granted", driver.stats.granted);
            info.number(c"waiters_timed_out", driver.stats.timed_out);
            info.number(c"grants_revoked", driver.stats.revoked);
            info.number(c"deadlocks", driver.stats.deadlocks);
            info.number(c"leases_run_out", driver.locks.leases_run_out());
            info.number(c"owners_told", driver.stats.owners_told);
            let (given, taken) = driver.locks.fairness_windows();
            info.number(c"fairness_windows_given", given);
            info.number(c"fairness_windows_used", taken);
            let (watchdogs, ephemeral) = driver.locks.bound();
            info.number(c"watchdogs", watchdogs);
            info.number(c"ephemeral_holds", ephemeral);
            let quarantine = driver.quarantine_left(now).unwrap_or_default().div_ceil(1000);
            info.number(c"quarantine_left_ms", usize::try_from(quarantine).unwrap_or(usize::MAX));
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
