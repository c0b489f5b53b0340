// SPDX-License-Identifier: MIT

//! A look at a lock that may have changed without a call.

use foldhash::HashSet;

use super::commit::store;
use super::state::{with, Remembered};
use crate::core::{
    BundleTry, Decision, LockId, LockLookup, LockManager, Now, Reply, StepOutput, Verdict, WaiterId,
};
use crate::error::Error;
use crate::keyspace::Lock;
use crate::server::{ask, Ctx, Str};

/// Reads a lock that may have become free, and grants it to whoever is first in line.
pub(super) fn reconcile(ctx: Ctx<'_>, lock: &LockId) {
    reconcile_alone(ctx, lock);
    serve_bundles(ctx);
}

/// Takes back what these locks were granted for, as the call that got them was cancelled. To be called when no lock is in hand.
pub(crate) fn take_back(ctx: Ctx<'_>, locks: &[LockId]) {
    locks.iter().for_each(|lock| reconcile_alone(ctx, lock));
}

fn reconcile_alone(ctx: Ctx<'_>, lock: &LockId) {
    ctx.select_db(lock.db);
    let name = Str::new(&lock.key);
    let refuse = |decision| with(ctx, |driver| driver.locks.refuse_all(lock.as_ref(), &decision));
    // A key that has gone because its slot migrates was not released.
    if ctx.is_cluster() && !ask::serves_slot_of(ctx, &[&name]) {
        return refuse(Decision::Moved);
    }
    let now = ctx.now();
    let read =
        with_lock(ctx, lock, &name, now, |locks, known, open| ((), locks.reconcile(open.opened(known, now))));
    if read.is_err() {
        refuse(Decision::WrongType);
    }
}

/// Grants what is to be had to those who wait for several locks at once. To be called when no lock is in hand, in the same command
/// as what made way for them.
#[inline]
pub(crate) fn serve_bundles(ctx: Ctx<'_>) {
    // Mostly nobody waits so.
    if with(ctx, |driver| driver.locks.has_due_bundle()) {
        serve_due(ctx);
    }
}

#[cold]
fn serve_due(ctx: Ctx<'_>) {
    let mut failed: HashSet<WaiterId> = HashSet::default();
    while let Some(BundleTry { first_wait: lead, members: parts }) =
        with(ctx, |driver| driver.locks.begin_try())
    {
        let db = parts.first().map_or_else(|| ctx.db(), |(lock, _)| lock.db);
        let blocked_at = ctx.in_db(db, || {
            let blocked_at = try_bundle(ctx, lead, &parts);
            for lock in with(ctx, |driver| driver.locks.end_try(blocked_at)) {
                reconcile_alone(ctx, &lock);
            }
            blocked_at
        });
        // It was due as it could have had that lock.
        if blocked_at.is_some_and(|part| failed.contains(&part)) {
            return defect!("a lock is to be had, and then it is not");
        }
        failed.extend(blocked_at);
    }
}

/// Grants all parts of a bundle, if all locks are to be had. Returns the first part whose lock is not.
fn try_bundle(ctx: Ctx<'_>, lead: WaiterId, parts: &[(LockId, WaiterId)]) -> Option<WaiterId> {
    let end = |decision| {
        with(ctx, |driver| driver.locks.end_bundle(lead, decision));
        None
    };
    let names: Vec<Str<'_>> = parts.iter().map(|(lock, _)| Str::new(&lock.key)).collect();
    if ctx.is_cluster() && !ask::serves_slot_of(ctx, &names.iter().collect::<Vec<_>>()) {
        return end(Decision::Moved);
    }
    let now = ctx.now();
    for (name, (lock, part)) in names.iter().zip(parts) {
        let found = with_lock(ctx, lock, name, now, |locks, known, open| {
            locks.try_member(open.opened(known, now), *part)
        });
        match found {
            Ok(Some(Verdict::Available)) => {}
            Ok(Some(Verdict::Busy { .. })) => return Some(*part),
            Ok(Some(Verdict::Refused(refusal))) => return end(Decision::Refused(refusal)),
            Ok(Some(Verdict::Repeats(_)) | None) => return None,
            Err(_) => {
                with(ctx, |driver| driver.locks.refuse_all(lock.as_ref(), &Decision::WrongType));
                return None;
            }
        }
    }
    grant_parts(ctx, lead, parts, true);
    None
}

/// Grants a call for several locks of the selected database, which are all to be had, as one that waits: it can be revoked.
pub(crate) fn grant_all(ctx: Ctx<'_>, lead: WaiterId, parts: &[WaiterId]) {
    let with_lock = |id: &WaiterId| with(ctx, |driver| Some((driver.locks.lock_of(*id)?, *id)));
    let parts: Vec<(LockId, WaiterId)> = parts.iter().filter_map(with_lock).collect();
    grant_parts(ctx, lead, &parts, false);
}

/// Grants all parts of a bundle, whose locks are to be had. `waits` if its client did.
fn grant_parts(ctx: Ctx<'_>, lead: WaiterId, parts: &[(LockId, WaiterId)], waits: bool) {
    let now = ctx.now();
    let granted = |(lock, part): &(LockId, WaiterId)| {
        let granted = with_lock(ctx, lock, &Str::new(&lock.key), now, |locks, known, open| {
            locks.grant_member(open.opened(known, now), *part, waits)
        });
        granted.ok().flatten()
    };
    match parts.iter().map(granted).collect::<Option<Vec<Reply>>>() {
        Some(replies) => with(ctx, |driver| driver.locks.granted_all(lead, replies)),
        None => defect!("a lock is not to be had any more that was so in the same step"),
    }
}

/// Opens a lock of the selected database, lets `step` change it, and writes it.
fn with_lock<T>(
    ctx: Ctx<'_>,
    lock: &LockId,
    name: &Str<'_>,
    now: Now,
    step: impl FnOnce(&mut LockManager, LockLookup<'_>, &mut Lock<'_>) -> (T, StepOutput),
) -> Result<T, Error> {
    let remembered = Remembered::of(ctx, lock.as_ref());
    Lock::open(ctx, name, None, &remembered, now, |open| {
        let found_free = open.holders.is_free();
        let (found, in_hand) = with(ctx, |driver| step(&mut driver.locks, remembered.lock, open));
        // Of a lease that a foreign write has ended it is not known how long it was.
        let shortened =
            if found_free { open.holders.first_end() } else { open.shortened_to(in_hand.expected_end) };
        store(ctx, lock.as_ref(), in_hand, open, found_free, shortened);
        found
    })
}
