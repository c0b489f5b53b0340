// SPDX-License-Identifier: MIT

//! Replies with so many entries that the server would keep others waiting while it puts them together.
//!
//! Such a reply is made in portions, one every millisecond, while its client is blocked. All of them together get one portion at a
//! time. What the reply is about is found when the call is made; an entry says what is so when it is put together, and is left out
//! if its subject has gone by then.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr;

use redis_module::raw;

use crate::server::{enter, timer, Ctx, InCallback, ServerCell};

/// How many entries are put together at a time; a reply with no more is made at once.
const PORTION: usize = 500;

/// Milliseconds between two portions.
const PORTION_INTERVAL_MS: u64 = 1;

static PENDING: ServerCell<RefCell<VecDeque<PendingReply>>> = ServerCell::new(RefCell::new(VecDeque::new()));

/// The timer for the next portion is set.
static TIMER_IS_SET: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// Adds the next portion of entries to a reply, in its own context. Returns how many there were, and whether there are more.
type Portion = Box<dyn FnMut(Ctx<'_>) -> (usize, bool)>;

/// A reply that is being made.
struct PendingReply {
    /// The context that adds to the reply of the blocked client, whether that is still there or not.
    ctx: *mut raw::RedisModuleCtx,
    client: *mut raw::RedisModuleBlockedClient,
    portion: Portion,
    /// How many entries it has so far.
    len: usize,
    /// Adds what stands behind the array.
    after: Box<dyn Fn(Ctx<'_>)>,
}

/// Replies with an array of at most `len` entries: at once if these are few, or if the caller cannot be blocked, as in a
/// transaction. `next` hands out the next so many things, or what is left, and `entry` replies with one of them, or returns
/// false: it has gone.
pub(crate) fn array<T: 'static>(
    ctx: Ctx<'_>,
    len: usize,
    next: impl FnMut(usize) -> Vec<T> + 'static,
    entry: fn(Ctx<'_>, T) -> bool,
) {
    array_within(ctx, |_| {}, Entries { len, next, entry }, |_| {});
}

/// The entries of such an array.
pub(crate) struct Entries<T, N> {
    /// The maximum number.
    pub(crate) len: usize,
    /// Returns the next things, at most as many as it is asked for; fewer end the array.
    pub(crate) next: N,
    /// Replies with one thing; false if it has gone and is left out.
    pub(crate) entry: fn(Ctx<'_>, T) -> bool,
}

/// Replies with something more than such an array: `before` and `after` add what stands around it.
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
    let mut portion = move |ctx: Ctx<'_>, most: usize| {
        let things = next(most);
        let more = things.len() == most;
        (things.into_iter().map(|thing| entry(ctx, thing)).filter(|is_there| *is_there).count(), more)
    };
    let blocked = Some(ctx).filter(|ctx| len > PORTION && !ctx.flags().denies_blocking()).and_then(block);
    let Some((reply, client)) = blocked else {
        begin(ctx);
        let (len, _) = portion(ctx, usize::MAX);
        ctx.set_array_len(len);
        return after(ctx);
    };
    // SAFETY: the context has just been made, and lives until the reply is complete.
    unsafe { enter(reply, begin) };
    let portion = Box::new(move |ctx: Ctx<'_>| portion(ctx, PORTION));
    let pending = PendingReply { ctx: reply, client, portion, len: 0, after: Box::new(after) };
    PENDING.get(ctx).borrow_mut().push_back(pending);
    plan(ctx);
}

/// How many replies are being made.
pub(crate) fn pending(proof: InCallback) -> usize {
    PENDING.get(proof).borrow().len()
}

/// Blocks the caller. `None` if the server does not allow that.
fn block(ctx: Ctx<'_>) -> Option<(*mut raw::RedisModuleCtx, *mut raw::RedisModuleBlockedClient)> {
    // SAFETY: the context is that of the running command. Without callbacks, the client gets what was added to its reply until
    // it is unblocked. The module is not unloaded before that.
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

/// Makes the next portion of the reply whose turn it is.
fn on_timer(ctx: Ctx<'_>) {
    TIMER_IS_SET.get(ctx).set(false);
    let next = PENDING.get(ctx).borrow_mut().pop_front();
    if let Some(mut next) = next {
        // SAFETY: the context is the reply's own, and lives until it is freed here. A reply whose portion panics ends there.
        let (len, more) = unsafe { enter(next.ctx, |ctx| (next.portion)(ctx)) }.unwrap_or((0, false));
        next.len += len;
        if more {
            PENDING.get(ctx).borrow_mut().push_back(next);
        } else {
            // SAFETY: both came from `block`, and are used no more.
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
