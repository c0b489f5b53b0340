// SPDX-License-Identifier: MIT

//! Writes a lock after a step of the core and notifies external clients.

use crate::core::{LockRef, StepOutput, WallMs};
use crate::driver::events::subscriptions;
use crate::driver::state::with;
use crate::keyspace::{channel, Lock};
use crate::server::replication::propagation::Propagation;
use crate::server::Ctx;

/// Writes a lock to its key, after a command opened it and a step changed it. `found_free` is true if the
/// lock was free before the step.
pub(crate) fn commit(
    ctx: Ctx<'_>,
    at: LockRef<'_>,
    output: StepOutput,
    lock: &mut Lock<'_>,
    found_free: bool,
) {
    subscriptions::subscribe(ctx);
    let shortened = lock.shortened_to();
    store(ctx, at, output, lock, found_free, shortened);
}

/// Writes a lock. Notifies external clients if the lock is free, even if it became free earlier. Also
/// notifies them if its first lease ends earlier than they know (`shortened`).
#[inline(always)]
pub(crate) fn store(
    ctx: Ctx<'_>,
    at: LockRef<'_>,
    output: StepOutput,
    lock: &mut Lock<'_>,
    found_free: bool,
    shortened: Option<WallMs>,
) {
    let name = lock.name();
    let unannounced = output.unannounced && found_free && lock.holders.is_free();
    lock.withholds_announcement = output.is_reserved;
    let receivers =
        lock.store().or_else(|| unannounced.then(|| channel::publish_free(ctx, Propagation::of(ctx), name)));
    let receivers = if output.is_reserved {
        if receivers.is_some() {
            with(ctx, |driver| driver.locks.note_withheld(output));
        }
        None
    } else {
        receivers
    };
    // For most locks, nothing is remembered and no subscriber listens.
    if let Some(receivers) = receivers.filter(|receivers| *receivers > 0 || output.is_known()) {
        with(ctx, |driver| driver.locks.announced(at, output, receivers > 0, ctx.now()));
    }
    if output.watches_lease {
        if let Some(end) = lock.first_field_expiry() {
            with(ctx, |driver| driver.locks.field_ends(output, end, ctx.now()));
        }
    }
    if let Some(end) = shortened.filter(|_| channel::has_subscribers(ctx, name)) {
        with(ctx, |driver| driver.locks.lease_shortened(at, output, end));
    }
}
