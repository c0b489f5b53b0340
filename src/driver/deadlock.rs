// SPDX-License-Identifier: MIT

//! Following the wait graph, whose holders have to be read key by key.

use super::blocked::Ended;
use super::reconcile::{reconcile, serve_bundles};
use super::state::{dispatch, with};
use crate::config;
use crate::core::waits_for::{Edge, Progress, PORTION};
use crate::core::{Holders, LockId, LockManager, Owner, Search, WaiterId, Waits};
use crate::error::shown;
use crate::keyspace;
use crate::server::caller::Caller;
use crate::server::{Ctx, Str};

/// If something is remembered of no more locks than this, it is asked of each whether the owner holds it, before a search.
const GLANCE: usize = 64;

/// How many waits of a cycle an error shows.
const SHOWN: usize = 6;

/// False if the waiter cannot wait for its own owner: its lock has these holders.
pub(crate) fn may_be_in_cycle(ctx: Ctx<'_>, id: WaiterId, holders: &Holders) -> bool {
    with(ctx, |driver| driver.locks.may_be_in_cycle(id, holders))
}

/// What a search has found.
enum Found {
    /// The wait waits for its own owner, through these edges. The number is the rest of the search's budget.
    Deadlock(Vec<Edge>, usize),
    /// The wait may end. The number is the rest of the search's budget.
    MayEnd(usize),
    /// That is to be found out later.
    Interrupted(Box<Search>),
}

/// If the waiter waits for its own owner, the words for it; the waiter is out of the queue then. Where that is so only because
/// somebody stands behind a call that waits for several locks, he is let pass it instead. That is all that is done if deadlocks are
/// not to be `reported`. What would take too long is found out later ([`search_late`]).
pub(crate) fn deadlock_of(ctx: Ctx<'_>, id: WaiterId, reported: bool) -> Option<String> {
    if nobody_waits_for_owner_of(ctx, id) {
        return None;
    }
    let search = if reported { Search::cycle::<LockManager> } else { Search::soft_cycle::<LockManager> };
    let search = with(ctx, |driver| search(&driver.locks, id, ctx.now()))?;
    match resolve(ctx, search, reported) {
        Found::MayEnd(_) => None,
        Found::Interrupted(_) => {
            with(ctx, |driver| driver.locks.search_later(id));
            None
        }
        Found::Deadlock(edges, _) => {
            let text = words(ctx, &edges);
            with(ctx, |driver| {
                driver.stats.deadlocks += 1;
                driver.locks.leave(id);
            });
            dispatch(ctx, ctx.now());
            Some(text)
        }
    }
}

/// Looks in portions whether waits wait for their own owners by now, or did so all the time. To be called by the timer, when writing
/// is possible.
pub(super) fn search_late(ctx: Ctx<'_>) {
    let reported = config::deadlock_detection();
    let mut left = PORTION;
    while left > 0 {
        let Some(mut search) = with(ctx, |driver| driver.locks.next_search(reported, ctx.now())) else {
            return;
        };
        search.allow(left);
        let id = search.of_wait();
        // Each search costs something.
        left -= 1;
        match (resolve(ctx, search, reported), id) {
            (Found::Interrupted(search), _) => {
                with(ctx, |driver| driver.locks.suspend_search(*search));
                left = 0;
            }
            (Found::MayEnd(rest), _) => left = left.min(rest),
            (Found::Deadlock(edges, rest), Some(id)) => with(ctx, |driver| {
                left = left.min(rest);
                let lead = driver.locks.first_wait_of(id);
                driver.stats.deadlocks += 1;
                driver.locks.end_deadlocked(id);
                driver.blocked.end(lead, Ended::Deadlock(edges));
            }),
            (Found::Deadlock(..), None) => return defect!("a deadlock of no wait"),
        }
    }
    with(ctx, |driver| driver.locks.pause_searches(ctx.now()));
}

/// Follows a search to its end. Lets pass whom that helps, and ends the waits of clients that are gone.
fn resolve(ctx: Ctx<'_>, mut search: Search, reported: bool) -> Found {
    loop {
        match run(ctx, &mut search) {
            Progress::Cycle(edges, others) if reported => {
                if !end_gone(ctx, &edges, others) {
                    return Found::Deadlock(edges, search.left());
                }
            }
            Progress::Soft(soft) => let_pass(ctx, &soft),
            Progress::Later => return Found::Interrupted(Box::new(search)),
            _ => return Found::MayEnd(search.left()),
        }
        let left = search.left();
        match with(ctx, |driver| search.again(&driver.locks, ctx.now())) {
            Some(again) => search = again,
            None => return Found::MayEnd(left),
        }
    }
}

/// Whoever has hung up waits no more, even if the server has not read so yet. Returns whether that ends any of these waits.
fn end_gone(ctx: Ctx<'_>, edges: &[Edge], others: Vec<WaiterId>) -> bool {
    let any = with(ctx, |driver| {
        let waits = edges.iter().map(|edge| edge.by).chain(others).map(|id| driver.locks.first_wait_of(id));
        let gone: Vec<WaiterId> = waits.filter(|id| driver.blocked.is_hung_up(*id)).collect();
        for id in &gone {
            driver.locks.leave(*id);
            driver.blocked.end(*id, Ended::Left);
        }
        !gone.is_empty()
    });
    if any {
        dispatch(ctx, ctx.now());
    }
    any
}

/// Swaps the order of waits and the parts that they stand behind, and serves their locks.
fn let_pass(ctx: Ctx<'_>, soft: &[(WaiterId, WaiterId)]) {
    let let_pass =
        |(who, part): &(WaiterId, WaiterId)| with(ctx, |driver| driver.locks.overtake(*who, *part));
    let mut locks: Vec<LockId> = soft.iter().filter_map(let_pass).collect();
    if locks.is_empty() {
        return defect!("nobody is let pass");
    }
    locks.sort_unstable();
    locks.dedup();
    for lock in locks {
        ctx.in_db(lock.db, || reconcile(ctx, &lock));
    }
}

/// What is said of a cycle to the client that calls, or is answered.
pub(super) fn words(ctx: Ctx<'_>, edges: &[Edge]) -> String {
    let reader = Caller::of(ctx).access();
    describe(edges, |edge| reader.may_read(&edge.lock.key))
}

/// Serves those who wait for several locks, after a call for several. That a lock is free is announced when nobody of them got it.
pub(crate) fn in_several<T>(ctx: Ctx<'_>, body: impl FnOnce() -> T) -> T {
    with(ctx, |driver| driver.locks.begin_multi_release());
    let done = body();
    serve_bundles(ctx);
    for lock in with(ctx, |driver| driver.locks.end_multi_release()) {
        ctx.in_db(lock.db, || reconcile(ctx, &lock));
    }
    serve_bundles(ctx);
    done
}

/// True if it is clear at a glance that nobody waits for the waiter's owner, so that there is no way back to it. A search passes
/// everybody who waits ahead of it.
fn nobody_waits_for_owner_of(ctx: Ctx<'_>, id: WaiterId) -> bool {
    let found = with(ctx, |driver| driver.locks.only_holds_matter(id, GLANCE));
    let Some((owner, locks)) = found else { return false };
    let owner = Str::new(owner.as_bytes());
    let holds = |lock: &LockId| {
        let name = Str::new(&lock.key);
        ctx.in_db(lock.db, || keyspace::held_by(ctx, &name, &owner)).is_ok_and(|holds| holds > 0)
    };
    !locks.iter().any(holds)
}

/// Those whom this owner waits for, nearest first: all, if that are not too many.
pub(crate) fn blockers_of(ctx: Ctx<'_>, owner: &Owner) -> Vec<Edge> {
    let mut search = with(ctx, |driver| Search::blockers(&driver.locks, owner));
    search.allow(4 * PORTION);
    run(ctx, &mut search);
    search.into_edges()
}

fn run(ctx: Ctx<'_>, search: &mut Search) -> Progress {
    loop {
        let now = ctx.now();
        match with(ctx, |driver| search.step(&driver.locks, now)) {
            Progress::Read(lock) => {
                // Outside of `with`: a key that has expired raises an event.
                let name = Str::new(&lock.key);
                let holders = ctx.in_db(lock.db, || keyspace::look(ctx, &name, now));
                let holders = holders.unwrap_or(Holders::Free);
                with(ctx, |driver| search.learn(&driver.locks, &lock, holders));
            }
            end => return end,
        }
    }
}

/// `a waits for b (lock k1), b for c (lock k2), c for a (lock k3)`. Of a lock that the caller may not read no name is told,
/// and no owner that only such locks name: only who calls, which is the one that the cycle begins with.
fn describe(cycle: &[Edge], may_read: impl Fn(&Edge) -> bool) -> String {
    let Some(last) = cycle.last() else { return String::new() };
    let readable: Vec<bool> = cycle.iter().map(may_read).collect();
    // Each edge leads to an owner, who is named by that edge's lock and by the next one's.
    let known = |at: usize| at + 1 == cycle.len() || readable[at] || readable[at + 1];
    let name = |owner: &Owner, known| if known { shown(owner.as_bytes()) } else { "somebody".to_owned() };
    let mut text = String::new();
    let mut from = name(&last.owner, true);
    for (at, edge) in cycle.iter().enumerate() {
        let to = name(&edge.owner, known(at));
        // The beginning and the end tell most.
        if cycle.len() > SHOWN && (SHOWN - 1..cycle.len() - 1).contains(&at) {
            if at == SHOWN - 1 {
                text.push_str(&format!(", {} more", cycle.len() - SHOWN));
            }
        } else {
            let verb = if at == 0 { "waits for" } else { "for" };
            let comma = if at == 0 { "" } else { ", " };
            let lock = if readable[at] {
                format!("lock {}", shown(&edge.lock.key))
            } else {
                "a lock that you may not read".to_owned()
            };
            text.push_str(&format!("{comma}{from} {verb} {to} ({lock})"));
        }
        from = to;
    }
    text
}
