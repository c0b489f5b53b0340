// SPDX-License-Identifier: MIT

//! Publishes grants to clients that wait with `NOTIFY`.
//!
//! A message is published at the end of the event-loop iteration in which it was decided, before the server
//! writes to its clients. Otherwise, Redis 7.0 would put a message into the reply to a transaction of its own
//! subscriber. Messages are not replicated. A client that misses a message repeats its call.

use std::rc::Rc;

use crate::core::{InboxEvent, Message, MonoUs, WaiterId};
use crate::driver::state::{with, WaitStart};
use crate::error::Error;
use crate::server::clients::caller::Caller;
use crate::server::events::event_loop;
use crate::server::{calls, Ctx, Str};

/// Prefix of the channel of an inbox.
const CHANNEL_PREFIX: &[u8; 11] = b"lock:inbox:";

/// Maximum time per iteration for publishing messages, in microseconds. Remaining messages follow in the next
/// iteration.
const BUDGET_US: MonoUs = 4_000;

/// Returns the inbox with this name. Fails if the caller may not subscribe to its channel. So a client cannot
/// fill another user's inbox.
pub(crate) fn inbox(ctx: Ctx<'_>, name: &[u8]) -> Result<Rc<[u8]>, Error> {
    let (client, now) = (ctx.client_id(), ctx.now().mono);
    if let Some(known) = with(ctx, |driver| driver.inboxes.known(client, name, now)) {
        return Ok(known);
    }
    if !Caller::of(ctx).access().may_subscribe(&channel(name)) {
        return Err(Error::NoChannel);
    }
    Ok(with(ctx, |driver| driver.inboxes.remember(client, name, now)))
}

/// Starts a wait whose end is announced by a message.
pub(crate) fn await_message(ctx: Ctx<'_>, start: WaitStart) {
    with(ctx, |driver| driver.begin_wait(ctx, start));
}

/// Publishes the pending messages. Runs after the event loop has executed its input and before it writes to clients.
pub(crate) fn on_iteration_end(ctx: Ctx<'_>, (): ()) {
    let started = ctx.now().mono;
    while let Some(message) = with(ctx, |driver| driver.locks.next_message()) {
        if publish(ctx, &message) == 0 && message.event == InboxEvent::Granted {
            skip_unheard_waiter(ctx, message.id);
        }
        if ctx.now().mono.saturating_sub(started) >= BUDGET_US {
            event_loop::wake_up(ctx);
            break;
        }
    }
}

/// Serves the next waiter if the message about a grant has no subscriber at this server. In a cluster, the
/// subscriber may be connected to another node.
fn skip_unheard_waiter(ctx: Ctx<'_>, id: WaiterId) {
    with(ctx, |driver| {
        if !driver.in_cluster && driver.locks.message_had_no_subscriber(id) {
            driver.schedule_soon(ctx);
        }
    });
}

/// Publishes `granted <request> <key>` or `lost <request> <key>`. Returns the number of subscribers at this server that
/// received it.
fn publish(ctx: Ctx<'_>, Message { inbox, lock, request, event, .. }: &Message) -> usize {
    let word: &[u8] = match event {
        InboxEvent::Granted => b"granted ",
        InboxEvent::Lost => b"lost ",
    };
    let text = [word, request.id(), b" ", &lock.key].concat();
    calls::publish(ctx, &channel(inbox), &Str::new(&text))
}

fn channel(inbox: &[u8]) -> Str<'static> {
    Str::new(&[CHANNEL_PREFIX, inbox].concat())
}
