// SPDX-License-Identifier: MIT

//! Deadlock detection: follows the waits-for graph and reads the holders of each lock from its key.

use crate::config;
use crate::core::waits_for::{Edge, Progress, PORTION};
use crate::core::{Cause, Holders, LockId, LockManager, Owner, Search, WaitView, WaiterId};
use crate::driver::clients::blocked_clients::WaitOutcome;
use crate::driver::locks::reconcile::{reconcile, serve_bundles};
use crate::driver::state::{dispatch, with};
use crate::error::printable;
use crate::keyspace;
use crate::server::clients::caller::Caller;
use crate::server::{Ctx, Str};

/// If at most this number of locks is remembered, each is checked for the owner before a search begins.
const QUICK_CHECK_LOCKS: usize = 64;

/// Number of edges of a cycle that an error text shows.
const EDGES_SHOWN: usize = 6;

/// Whether the waiter may wait for its own owner, given the holders of its lock. False only if that is
/// certainly not the case.
pub(crate) fn may_be_in_cycle(ctx: Ctx<'_>, id: WaiterId, holders: &Holders) -> bool {
    with(ctx, |driver| driver.locks.may_be_in_cycle(id, holders))
}

/// The result of a search.
enum SearchResult {
    /// The waiter waits for its own owner, through these edges. Contains the unused part of the search budget.
    Deadlock(Vec<Edge>, usize),
    /// The wait can end. Contains the unused part of the search budget.
    NoDeadlock(usize),
    /// The budget is used up; the search continues later.
    Interrupted(Box<Search>),
}

/// Searches for a cycle through this waiter. If one exists, removes the waiter from its queue and returns the error
/// text.
///
/// If a cycle exists only because a waiter is queued behind a bundle, it is resolved: the waiter overtakes
/// the bundle. With `reported` false, only such cycles are resolved. A search that would take too long
/// continues in [`run_deferred_searches`].
pub(crate) fn find_deadlock(ctx: Ctx<'_>, id: WaiterId, reported: bool) -> Option<String> {
    if owner_blocks_nobody(ctx, id) {
        return None;
    }
    let search = if reported { Search::cycle::<LockManager> } else { Search::soft_cycle::<LockManager> };
    let search = with(ctx, |driver| search(&driver.locks, id, ctx.now()))?;
    match resolve(ctx, search, reported) {
        SearchResult::NoDeadlock(_) => None,
        SearchResult::Interrupted(_) => {
            with(ctx, |driver| driver.locks.search_later(id));
            None
        }
        SearchResult::Deadlock(edges, _) => {
            let text = describe_cycle_for_caller(ctx, &edges);
            with(ctx, |driver| {
                driver.stats.deadlocks += 1;
                driver.locks.end_deadlocked(id, cause_of(&edges), ctx.now());
            });
            dispatch(ctx, ctx.now());
            Some(text)
        }
    }
}

/// Continues the deferred searches, within the budget of one portion. They find waits whose owners wait for
/// themselves. Called by the timer while writes are possible.
pub(crate) fn run_deferred_searches(ctx: Ctx<'_>) {
    let reported = config::deadlock_detection();
    let mut left = PORTION;
    while left > 0 {
        let Some(mut search) = with(ctx, |driver| driver.locks.next_search(reported, ctx.now())) else {
            return;
        };
        search.allow(left);
        let id = search.of_wait();
        // Each search has a fixed cost.
        left -= 1;
        match (resolve(ctx, search, reported), id) {
            (SearchResult::Interrupted(search), _) => {
                with(ctx, |driver| driver.locks.suspend_search(*search));
                left = 0;
            }
            (SearchResult::NoDeadlock(rest), _) => left = left.min(rest),
            (SearchResult::Deadlock(edges, rest), Some(id)) => with(ctx, |driver| {
                left = left.min(rest);
                let lead = driver.locks.first_wait_of(id);
                driver.stats.deadlocks += 1;
                if let Some(number) = driver.locks.number_of(lead) {
                    driver.locks.note_deadlocked(number);
                }
                driver.locks.end_deadlocked(id, cause_of(&edges), ctx.now());
                driver.blocked.end(lead, WaitOutcome::Deadlock(edges));
            }),
            (SearchResult::Deadlock(..), None) => return defect!("a deadlock without a wait"),
        }
    }
    with(ctx, |driver| driver.locks.pause_searches(ctx.now()));
}

/// Runs a search to its end. Applies overtakes that resolve a cycle, and ends the waits of disconnected clients.
fn resolve(ctx: Ctx<'_>, mut search: Search, reported: bool) -> SearchResult {
    loop {
        match run_search(ctx, &mut search) {
            Progress::Cycle(edges, others) if reported => {
                if !end_waits_of_gone_clients(ctx, &edges, others) {
                    return SearchResult::Deadlock(edges, search.left());
                }
            }
            Progress::Soft(overtakes) => apply_overtakes(ctx, &overtakes),
            Progress::Later => return SearchResult::Interrupted(Box::new(search)),
            _ => return SearchResult::NoDeadlock(search.left()),
        }
        let left = search.left();
        match with(ctx, |driver| search.restart(&driver.locks, ctx.now())) {
            Some(again) => search = again,
            None => return SearchResult::NoDeadlock(left),
        }
    }
}

/// Ends the waits of disconnected clients, even if the server has not noticed the disconnect. Returns whether any of
/// these waits ended.
fn end_waits_of_gone_clients(ctx: Ctx<'_>, edges: &[Edge], others: Vec<WaiterId>) -> bool {
    let any = with(ctx, |driver| {
        let waits = edges.iter().map(|edge| edge.by).chain(others).map(|id| driver.locks.first_wait_of(id));
        let disconnected: Vec<WaiterId> = waits.filter(|id| driver.blocked.is_hung_up(*id)).collect();
        for id in &disconnected {
            driver.locks.leave_at(*id, ctx.now());
            driver.blocked.end(*id, WaitOutcome::Left);
        }
        !disconnected.is_empty()
    });
    if any {
        dispatch(ctx, ctx.now());
    }
    any
}

/// Swaps each waiter with the bundle member ahead of it, and serves their locks.
fn apply_overtakes(ctx: Ctx<'_>, overtakes: &[(WaiterId, WaiterId)]) {
    let apply =
        |(waiter, member): &(WaiterId, WaiterId)| with(ctx, |driver| driver.locks.overtake(*waiter, *member));
    let mut locks: Vec<LockId> = overtakes.iter().filter_map(apply).collect();
    if locks.is_empty() {
        return defect!("no wait overtakes to break the cycle");
    }
    locks.sort_unstable();
    locks.dedup();
    for lock in locks {
        ctx.in_db(lock.db, || reconcile(ctx, &lock));
    }
}

/// The error text for a cycle, restricted to the keys that the client of this context may read.
pub(crate) fn describe_cycle_for_caller(ctx: Ctx<'_>, edges: &[Edge]) -> String {
    let reader = Caller::of(ctx).access();
    describe_cycle(edges, |edge| reader.may_read(&edge.lock.key))
}

/// A cycle, for the log.
fn cause_of(edges: &[Edge]) -> Cause {
    Cause::of_cycle(describe_cycle(edges, |_| true), edges.iter().map(|edge| edge.lock.clone()).collect())
}

/// Runs a call for several locks, then serves the waiting bundles. A lock that became free is announced only if no
/// bundle got it.
pub(crate) fn in_multi_lock_call<T>(ctx: Ctx<'_>, body: impl FnOnce() -> T) -> T {
    with(ctx, |driver| driver.locks.begin_multi_release());
    let done = body();
    serve_bundles(ctx);
    for lock in with(ctx, |driver| driver.locks.end_multi_release()) {
        ctx.in_db(lock.db, || reconcile(ctx, &lock));
    }
    serve_bundles(ctx);
    done
}

/// Whether no waiter certainly waits for this waiter's owner, so that no cycle leads back to it. Decided
/// without a search, which would visit every waiter ahead.
fn owner_blocks_nobody(ctx: Ctx<'_>, id: WaiterId) -> bool {
    let found = with(ctx, |driver| driver.locks.only_holds_matter(id, QUICK_CHECK_LOCKS));
    let Some((owner, locks)) = found else { return false };
    let owner = Str::new(owner.as_bytes());
    let holds = |lock: &LockId| {
        let name = Str::new(&lock.key);
        ctx.in_db(lock.db, || keyspace::count_holds(ctx, &name, &owner)).is_ok_and(|holds| holds > 0)
    };
    !locks.iter().any(holds)
}

/// The edges from this owner to the owners that it waits for, nearest first. A very large graph is cut off.
pub(crate) fn blockers_of(ctx: Ctx<'_>, owner: &Owner) -> Vec<Edge> {
    let mut search = with(ctx, |driver| Search::blockers(&driver.locks, owner));
    search.allow(4 * PORTION);
    run_search(ctx, &mut search);
    search.into_edges()
}

fn run_search(ctx: Ctx<'_>, search: &mut Search) -> Progress {
    loop {
        let now = ctx.now();
        match with(ctx, |driver| search.step(&driver.locks, now)) {
            Progress::Read(lock) => {
                // Outside of `with`: reading an expired key raises an event.
                let name = Str::new(&lock.key);
                let holders = ctx.in_db(lock.db, || keyspace::read_holders(ctx, &name, now));
                let holders = holders.unwrap_or(Holders::Free);
                with(ctx, |driver| search.learn(&driver.locks, &lock, holders));
            }
            end => return end,
        }
    }
}

/// Formats a cycle: `a waits for b (lock k1), b for c (lock k2), c for a (lock k3)`.
///
/// Hides the name of a lock that the caller may not read, and every owner that only such locks name. The caller's own
/// name, with which the cycle begins, is always printable.
fn describe_cycle(cycle: &[Edge], may_read: impl Fn(&Edge) -> bool) -> String {
    let Some(last) = cycle.last() else { return String::new() };
    let readable: Vec<bool> = cycle.iter().map(may_read).collect();
    // Each edge leads to an owner. The lock of that edge and the lock of the next edge both reveal the
    // owner's name.
    let known = |at: usize| at + 1 == cycle.len() || readable[at] || readable[at + 1];
    let name = |owner: &Owner, known| if known { printable(owner.as_bytes()) } else { "somebody".to_owned() };
    let mut text = String::new();
    let mut from = name(&last.owner, true);
    for (at, edge) in cycle.iter().enumerate() {
        let to = name(&edge.owner, known(at));
        // The beginning and the end are the most useful parts.
        if cycle.len() > EDGES_SHOWN && (EDGES_SHOWN - 1..cycle.len() - 1).contains(&at) {
            if at == EDGES_SHOWN - 1 {
                text.push_str(&format!(", {} more", cycle.len() - EDGES_SHOWN));
            }
        } else {
            let verb = if at == 0 { "waits for" } else { "for" };
            let comma = if at == 0 { "" } else { ", " };
            let lock = if readable[at] {
                format!("lock {}", printable(&edge.lock.key))
            } else {
                "a lock that you may not read".to_owned()
            };
            text.push_str(&format!("{comma}{from} {verb} {to} ({lock})"));
        }
        from = to;
    }
    text
}
