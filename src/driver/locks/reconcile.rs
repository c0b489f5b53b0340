// SPDX-License-Identifier: MIT

//! Reconciles locks that may have changed without a call, and grants bundles.

use foldhash::HashSet;

use crate::core::{
    BundleTry, Decision, GrantTime, LockId, LockLookup, LockManager, Now, Reply, StepOutput, Verdict,
    WaiterId,
};
use crate::driver::locks::commit::store;
use crate::driver::locks::remembered::Remembered;
use crate::driver::state::with;
use crate::error::Error;
use crate::keyspace::Lock;
use crate::server::{calls, Ctx, Str};

/// Reads a lock that may have become free, and grants it to the first waiter.
pub(crate) fn reconcile(ctx: Ctx<'_>, lock: &LockId) {
    reconcile_without_bundles(ctx, lock);
    serve_bundles(ctx);
}

/// Revokes the grants of a cancelled call for these locks. No lock may be open.
pub(crate) fn revoke_cancelled(ctx: Ctx<'_>, locks: &[LockId]) {
    locks.iter().for_each(|lock| reconcile_without_bundles(ctx, lock));
}

fn reconcile_without_bundles(ctx: Ctx<'_>, lock: &LockId) {
    ctx.select_db(lock.db);
    let name = Str::new(&lock.key);
    let refuse = |decision| with(ctx, |driver| driver.locks.refuse_all(lock.as_ref(), &decision));
    // A key that is missing because its slot is migrating was not released.
    if ctx.is_cluster() && !calls::serves_slot_of(ctx, &[&name]) {
        return refuse(Decision::Moved);
    }
    let now = ctx.now();
    let read =
        with_lock(ctx, lock, &name, now, |locks, known, open| ((), locks.reconcile(open.opened(known, now))));
    if read.is_err() {
        refuse(Decision::WrongType);
    }
}

/// Grants every waiting bundle whose locks are all available. No lock may be open. Call it in the same
/// command as the change that made the locks available.
#[inline]
pub(crate) fn serve_bundles(ctx: Ctx<'_>) {
    // Usually no bundle waits.
    if with(ctx, |driver| driver.locks.has_due_bundle()) {
        serve_due(ctx);
    }
}

fn serve_due(ctx: Ctx<'_>) {
    let mut failed: HashSet<WaiterId> = HashSet::default();
    while let Some(BundleTry { first_wait: lead, members: parts }) =
        with(ctx, |driver| driver.locks.begin_try())
    {
        let db = parts.first().map_or_else(|| ctx.db(), |(lock, _)| lock.db);
        let blocked_at = ctx.in_db(db, || {
            let blocked_at = try_bundle(ctx, lead, &parts);
            for lock in with(ctx, |driver| driver.locks.end_try(blocked_at)) {
                reconcile_without_bundles(ctx, &lock);
            }
            blocked_at
        });
        // This lock made the bundle due, because it was available.
        if blocked_at.is_some_and(|part| failed.contains(&part)) {
            return defect!("an available lock became unavailable");
        }
        failed.extend(blocked_at);
    }
}

/// Grants a bundle if all of its locks are available. Returns the first member whose lock is not.
fn try_bundle(ctx: Ctx<'_>, lead: WaiterId, parts: &[(LockId, WaiterId)]) -> Option<WaiterId> {
    let end = |decision| {
        with(ctx, |driver| driver.locks.end_bundle(lead, decision));
        None
    };
    let names: Vec<Str<'_>> = parts.iter().map(|(lock, _)| Str::new(&lock.key)).collect();
    if ctx.is_cluster() && !calls::serves_slot_of(ctx, &names.iter().collect::<Vec<_>>()) {
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
    grant_members(ctx, lead, parts, GrantTime::AfterWaiting);
    None
}

/// Grants a call for several locks of the selected database. All of them must be available. The grant can be
/// revoked like that of a waiter.
pub(crate) fn grant_bundle(ctx: Ctx<'_>, lead: WaiterId, parts: &[WaiterId]) {
    let with_lock = |id: &WaiterId| with(ctx, |driver| Some((driver.locks.lock_of(*id)?, *id)));
    let parts: Vec<(LockId, WaiterId)> = parts.iter().filter_map(with_lock).collect();
    grant_members(ctx, lead, &parts, GrantTime::AtOnce);
}

/// Grants every member of a bundle whose locks are all available.
fn grant_members(ctx: Ctx<'_>, lead: WaiterId, parts: &[(LockId, WaiterId)], time: GrantTime) {
    let now = ctx.now();
    let granted = |(lock, part): &(LockId, WaiterId)| {
        let granted = with_lock(ctx, lock, &Str::new(&lock.key), now, |locks, known, open| {
            locks.grant_member(open.opened(known, now), *part, time)
        });
        granted.ok().flatten()
    };
    match parts.iter().map(granted).collect::<Option<Vec<Reply>>>() {
        Some(replies) => with(ctx, |driver| driver.locks.granted_all(lead, replies)),
        None => defect!("an available lock became unavailable in the same step"),
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
        let (found, output) = with(ctx, |driver| step(&mut driver.locks, remembered.lock, open));
        // The remaining length of a lease is unknown if a foreign write has ended it.
        let shortened = if found_free { open.holders.first_end() } else { open.shortened_to() };
        store(ctx, lock.as_ref(), output, open, found_free, shortened);
        found
    })
}
