// SPDX-License-Identifier: MIT

//! Inboxes that connections have named, and whether there is anything to send to any.

use std::rc::Rc;

use foldhash::HashMap;

use crate::core::spare::free_spare;
use crate::core::{LockManager, MonoUs};
use crate::driver::events::event_loop_hook::EventLoopHook;
use crate::server::events::event_loop;
use crate::server::Ctx;

/// For how long it is not asked again whether a connection may use an inbox, in microseconds.
const PERMISSION_TTL_US: MonoUs = 1_000_000;

/// An inbox that a connection may use.
struct KnownInbox {
    inbox: Rc<[u8]>,
    checked_at: MonoUs,
}

pub(crate) struct Inboxes {
    /// Those that connections have named last, until they close.
    known: HashMap<u64, KnownInbox>,
    hook: EventLoopHook,
}

impl Default for Inboxes {
    fn default() -> Inboxes {
        Inboxes { known: HashMap::default(), hook: EventLoopHook::new(event_loop::Purpose::Inboxes) }
    }
}

impl Inboxes {
    /// This is called at the end of turns, when there may be something to send.
    pub(crate) fn set_callback(&mut self, on_turn_end: fn(Ctx<'_>, ())) {
        self.hook.set_callback(on_turn_end);
    }

    /// There is something to send at the end of this turn.
    pub(crate) fn schedule_publish(&mut self, ctx: Ctx<'_>) {
        self.hook.register(ctx);
    }

    /// The end of turns is listened to.
    pub(crate) fn has_hook(&self) -> bool {
        self.hook.is_registered()
    }

    /// Ends that, if there is nothing to send. Not to be called from an event.
    pub(crate) fn drop_idle_hook(&mut self, ctx: Ctx<'_>, locks: &LockManager) {
        if !locks.has_messages() {
            self.hook.unregister(ctx);
        }
    }

    /// The inbox, if this connection may use it as far as is known.
    pub(crate) fn known(&self, client: u64, inbox: &[u8], now: MonoUs) -> Option<Rc<[u8]>> {
        let known = self.known.get(&client).filter(|known| *known.inbox == *inbox)?;
        (now < known.checked_at.saturating_add(PERMISSION_TTL_US)).then(|| known.inbox.clone())
    }

    /// This connection may use the inbox.
    pub(crate) fn remember(&mut self, client: u64, inbox: &[u8], now: MonoUs) -> Rc<[u8]> {
        let known = self.known.entry(client);
        let known = known.or_insert_with(|| KnownInbox { inbox: Rc::from(inbox), checked_at: now });
        if *known.inbox != *inbox {
            known.inbox = Rc::from(inbox);
        }
        known.checked_at = now;
        known.inbox.clone()
    }

    /// The connection has closed.
    pub(crate) fn forget(&mut self, client: u64) {
        if !self.known.is_empty() {
            self.known.remove(&client);
            free_spare(&mut self.known);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }
}
