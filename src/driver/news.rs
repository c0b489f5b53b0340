// SPDX-License-Identifier: MIT

//! How those are told that it is their turn whom the server does not block.
//!
//! A message is published at the end of the turn in which it was decided, before the server writes to its clients: Redis 7.0
//! would put one that is published within a transaction of the subscriber's own into the reply of that. It is not replicated.
//! Whoever does not hear it asks again.

use std::rc::Rc;

use super::state::with;
use crate::core::{InboxEvent, Message, MonoUs, Now, WaiterId};
use crate::error::Error;
use crate::server::caller::Caller;
use crate::server::{ask, event_loop, Ctx, Str};

/// What the name of an inbox's channel begins with.
const CHANNEL: &[u8; 11] = b"lock:inbox:";

/// How long messages may keep the server from its clients in one turn, in microseconds; the rest is sent in the next.
const BUDGET_US: MonoUs = 4_000;

/// The inbox of that name. Fails if the user who calls may not subscribe to its channel: nobody fills the inbox of another.
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

/// A call waits that is told by a message.
pub(crate) fn await_message(ctx: Ctx<'_>, (now, plans): (Now, bool)) {
    with(ctx, |driver| driver.begin_wait(ctx, (now, plans)));
}

/// The event loop has carried out what it has read, and has not written to clients yet.
pub(super) fn turn_ends(ctx: Ctx<'_>, (): ()) {
    let started = ctx.now().mono;
    while let Some(message) = with(ctx, |driver| driver.locks.next_message()) {
        if publish(ctx, &message) == 0 && message.event == InboxEvent::Granted {
            was_not_heard(ctx, message.id);
        }
        if ctx.now().mono.saturating_sub(started) >= BUDGET_US {
            event_loop::wake_up(ctx);
            break;
        }
    }
}

/// Nobody listens at this server: the next in line is served. In a cluster somebody may at another node.
fn was_not_heard(ctx: Ctx<'_>, id: WaiterId) {
    with(ctx, |driver| {
        if !driver.in_cluster && driver.locks.message_unheard(id) {
            driver.plan_soon(ctx);
        }
    });
}

/// `granted <request> <key>` or `lost <request> <key>`. Returns how many have heard it at this server.
fn publish(ctx: Ctx<'_>, Message { inbox, lock, request, event, .. }: &Message) -> usize {
    let word: &[u8] = match event {
        InboxEvent::Granted => b"granted ",
        InboxEvent::Lost => b"lost ",
    };
    let text = [word, request.id(), b" ", &lock.key].concat();
    ask::publish(ctx, &channel(inbox), &Str::new(&text))
}

fn channel(inbox: &[u8]) -> Str<'static> {
    Str::new(&[CHANNEL, inbox].concat())
}
