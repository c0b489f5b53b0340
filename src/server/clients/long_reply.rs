// SPDX-License-Identifier: MIT

//! Replies with so many entries that building them at once would delay other clients.
//!
//! Such a reply is built in portions, one per millisecond, while its client is blocked. All long replies take
//! turns, and only one portion is built at a time. The locks or waiters to list are fixed by the call. Each
//! entry shows the state when it is built, and is omitted if its lock or waiter no longer exists.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr;

use redis_module::raw;

use crate::server::{enter, timer, Ctx, InCallback, ServerCell};

/// Number of entries per portion. A reply with at most this number is built at once.
const PORTION: usize = 500;

/// Interval between two portions, in milliseconds.
const PORTION_INTERVAL_MS: u64 = 1;

static PENDING: ServerCell<RefCell<VecDeque<PendingReply>>> = ServerCell::new(RefCell::new(VecDeque::new()));

/// Whether the timer for the next portion is set.
static TIMER_IS_SET: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// Adds the next portion of entries to a reply, in the reply's own context. Returns the number of entries, and whether
/// more follow.
type Portion = Box<dyn FnMut(Ctx<'_>) -> (usize, bool)>;

/// A reply that is being built.
struct PendingReply {
    /// The context that adds to the client's reply, even if the client has disconnected.
    ctx: *mut raw::RedisModuleCtx,
    client: *mut raw::RedisModuleBlockedClient,
    portion: Portion,
    /// Number of entries so far.
    len: usize,
    /// Adds the part of the reply after the array.
    after: Box<dyn Fn(Ctx<'_>)>,
}

/// Replies with an array of at most `len` entries. It is built at once if it is short, or if the caller
/// cannot be blocked, as in a transaction. `next` returns up to the given number of subjects, and fewer only
/// at the end. `entry` replies with one entry, or returns false if its subject no longer exists.
pub(crate) fn array<T: 'static>(
    ctx: Ctx<'_>,
    len: usize,
    next: impl FnMut(usize) -> Vec<T> + 'static,
    entry: fn(Ctx<'_>, T) -> bool,
) {
    array_within(ctx, |_| {}, Entries { len, next, entry }, |_| {});
}

/// The entries of a long array.
pub(crate) struct Entries<T, N> {
    /// Maximum number of entries.
    pub(crate) len: usize,
    /// Returns up to the given number of subjects. A smaller number means the end of the array.
    pub(crate) next: N,
    /// Replies with one entry, or returns false if its subject no longer exists.
    pub(crate) entry: fn(Ctx<'_>, T) -> bool,
}

/// Replies with an array of entries between the parts that `before` and `after` add.
pub(crate) fn array_within<T: 'static, N: FnMut(usize) -> Vec<T> + 'static>(
    ctx: Ctx<'_>,
    before: impl Fn(Ctx<'_>),
    entries: Entries<T, N>,
    after: impl Fn(Ctx<'_>) + 'static,
) {
    let Entries { len, mut next, entry } = entries;
    let begin = |ctx: Ctx<'_>| {
        before(ctx);
        ctx.reply_postponed_array();
    };
    let mut portion = move |ctx: Ctx<'_>, limit: usize| {
        let things = next(limit);
        let more = things.len() == limit;
        (things.into_iter().map(|thing| entry(ctx, thing)).filter(|is_there| *is_there).count(), more)
    };
    let blocked = Some(ctx).filter(|ctx| len > PORTION && !ctx.flags().denies_blocking()).and_then(block);
    let Some((reply, client)) = blocked else {
        begin(ctx);
        let (len, _) = portion(ctx, usize::MAX);
        ctx.set_array_len(len);
        return after(ctx);
    };
    // SAFETY: the context was just created and lives until the reply is complete.
    unsafe { enter(reply, begin) };
    let portion = Box::new(move |ctx: Ctx<'_>| portion(ctx, PORTION));
    let pending = PendingReply { ctx: reply, client, portion, len: 0, after: Box::new(after) };
    PENDING.get(ctx).borrow_mut().push_back(pending);
    plan(ctx);
}

/// Number of replies that are being built.
pub(crate) fn pending(proof: InCallback) -> usize {
    PENDING.get(proof).borrow().len()
}

/// Blocks the caller. `None` if the server refuses.
fn block(ctx: Ctx<'_>) -> Option<(*mut raw::RedisModuleCtx, *mut raw::RedisModuleBlockedClient)> {
    // SAFETY: the context belongs to the running command. There are no callbacks: unblocking the client sends
    // the reply that was built until then. The module is not unloaded before the client is unblocked.
    unsafe {
        let client = call!(RedisModule_BlockClient(ctx.as_ptr(), None, None, None, 0));
        if client.is_null() {
            return None;
        }
        Some((call!(RedisModule_GetThreadSafeContext(client)), client))
    }
}

fn plan(ctx: Ctx<'_>) {
    if !TIMER_IS_SET.get(ctx).replace(true) {
        timer::set(ctx, PORTION_INTERVAL_MS, on_timer);
    }
}

/// Builds the next portion of the first pending reply.
fn on_timer(ctx: Ctx<'_>) {
    TIMER_IS_SET.get(ctx).set(false);
    let next = PENDING.get(ctx).borrow_mut().pop_front();
    if let Some(mut next) = next {
        // SAFETY: the context belongs to the reply and lives until it is freed here. A panic ends the reply.
        let (len, more) = unsafe { enter(next.ctx, |ctx| (next.portion)(ctx)) }.unwrap_or((0, false));
        next.len += len;
        if more {
            PENDING.get(ctx).borrow_mut().push_back(next);
        } else {
            // SAFETY: both came from `block` and are no longer used.
            unsafe {
                enter(next.ctx, |ctx| {
                    ctx.set_array_len(next.len);
                    (next.after)(ctx);
                });
                call!(RedisModule_FreeThreadSafeContext(next.ctx));
                call!(RedisModule_UnblockClient(next.client, ptr::null_mut()));
            }
        }
    }
    if !PENDING.get(ctx).borrow().is_empty() {
        plan(ctx);
    }
}
