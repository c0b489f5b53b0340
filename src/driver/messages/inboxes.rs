// SPDX-License-Identifier: MIT

//! Inboxes that connections have named, and the hook that publishes messages to them.

use std::rc::Rc;

use foldhash::HashMap;

use crate::core::spare::free_spare;
use crate::core::{LockManager, MonoUs};
use crate::driver::events::event_loop_hook::EventLoopHook;
use crate::server::events::event_loop;
use crate::server::Ctx;

/// Time for which a connection's permission to use an inbox is cached, in microseconds.
const PERMISSION_TTL_US: MonoUs = 1_000_000;

/// An inbox that a connection may use.
struct KnownInbox {
    inbox: Rc<[u8]>,
    checked_at: MonoUs,
}

pub(crate) struct Inboxes {
    /// The inbox that each open connection has most recently named.
    known: HashMap<u64, KnownInbox>,
    hook: EventLoopHook,
}

impl Default for Inboxes {
    fn default() -> Inboxes {
        Inboxes { known: HashMap::default(), hook: EventLoopHook::new(event_loop::Purpose::Inboxes) }
    }
}

impl Inboxes {
    /// Sets the function that publishes messages at the end of an iteration.
    pub(crate) fn set_callback(&mut self, on_iteration_end: fn(Ctx<'_>, ())) {
        self.hook.set_callback(on_iteration_end);
    }

    /// Publishes messages at the end of this iteration.
    pub(crate) fn schedule_publish(&mut self, ctx: Ctx<'_>) {
        self.hook.register(ctx);
    }

    /// Whether the end-of-iteration hook is registered.
    pub(crate) fn has_hook(&self) -> bool {
        self.hook.is_registered()
    }

    /// Unregisters the hook if no message is pending. Must not be called from an event.
    pub(crate) fn drop_idle_hook(&mut self, ctx: Ctx<'_>, locks: &LockManager) {
        if !locks.has_messages() {
            self.hook.unregister(ctx);
        }
    }

    /// The inbox, if this connection's permission to use it is cached.
    pub(crate) fn known(&self, client: u64, inbox: &[u8], now: MonoUs) -> Option<Rc<[u8]>> {
        let known = self.known.get(&client).filter(|known| *known.inbox == *inbox)?;
        (now < known.checked_at.saturating_add(PERMISSION_TTL_US)).then(|| known.inbox.clone())
    }

    /// Caches this connection's permission to use the inbox.
    pub(crate) fn remember(&mut self, client: u64, inbox: &[u8], now: MonoUs) -> Rc<[u8]> {
        let known = self.known.entry(client);
        let known = known.or_insert_with(|| KnownInbox { inbox: Rc::from(inbox), checked_at: now });
        if *known.inbox != *inbox {
            known.inbox = Rc::from(inbox);
        }
        known.checked_at = now;
        known.inbox.clone()
    }

    /// Forgets the inbox of a closed connection.
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
