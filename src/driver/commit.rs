// SPDX-License-Identifier: MIT

//! What follows when a lock was in hand: it is written, and external clients are told.

use super::state::with;
use super::subscriptions;
use crate::core::{LockRef, StepOutput, WallMs};
use crate::keyspace::{channel, Lock};
use crate::server::propagation::Propagation;
use crate::server::Ctx;

/// Writes a lock that a command has opened and the core has changed. `found_free` if it was free before.
pub(crate) fn commit(
    ctx: Ctx<'_>,
    at: LockRef<'_>,
    in_hand: StepOutput,
    lock: &mut Lock<'_>,
    found_free: bool,
) {
    subscriptions::listen(ctx);
    let shortened = lock.shortened_to(in_hand.expected_end);
    store(ctx, at, in_hand, lock, found_free, shortened);
}

/// Writes a lock, and sees to it that external clients are told what they have to know: that it is free, also if
/// it is only now that anybody sees so; or when its first lease ends, if that is `shortened`.
#[inline(always)]
pub(super) fn store(
    ctx: Ctx<'_>,
    at: LockRef<'_>,
    in_hand: StepOutput,
    lock: &mut Lock<'_>,
    found_free: bool,
    shortened: Option<WallMs>,
) {
    let name = lock.name();
    let unannounced = in_hand.unannounced && found_free && lock.holders.is_free();
    lock.withholds = in_hand.is_reserved;
    let told = lock.store().or_else(|| unannounced.then(|| channel::freed(ctx, Propagation::of(ctx), name)));
    let told = if in_hand.is_reserved {
        if told.is_some() {
            with(ctx, |driver| driver.locks.note_withheld(in_hand));
        }
        None
    } else {
        told
    };
    // Of most locks nothing is remembered, and nobody listens.
    if let Some(told) = told.filter(|told| *told > 0 || in_hand.is_known()) {
        with(ctx, |driver| driver.locks.announced(at, in_hand, told > 0, ctx.now()));
    }
    if in_hand.watches_lease {
        if let Some(end) = lock.first_field_end() {
            with(ctx, |driver| driver.locks.field_ends(in_hand, end, ctx.now()));
        }
    }
    if let Some(end) = shortened.filter(|_| channel::has_listeners(ctx, name)) {
        with(ctx, |driver| driver.locks.lease_shortened(at, in_hand, end));
    }
}
