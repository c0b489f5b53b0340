// SPDX-License-Identifier: MIT

//! Registration of a callback at the end of each iteration of the event loop.
//!
//! The hook slows every iteration down, and registering and unregistering it costs even more. So it is
//! registered when it is first needed, and the timer unregisters it later.

use crate::server::events::event_loop::{self, Purpose};
use crate::server::Ctx;

#[derive(Default)]
pub(crate) struct EventLoopHook {
    /// Called at the end of each iteration.
    callback: Option<fn(Ctx<'_>, ())>,
    registered: bool,
}

impl EventLoopHook {
    /// Sets the callback.
    pub(crate) fn set_callback(&mut self, on_iteration_end: fn(Ctx<'_>, ())) {
        self.callback = Some(on_iteration_end);
    }

    pub(crate) fn is_registered(&self) -> bool {
        self.registered
    }

    pub(crate) fn register(&mut self, ctx: Ctx<'_>) {
        let Some(on_iteration_end) = self.callback else { return };
        if !std::mem::replace(&mut self.registered, true) {
            event_loop::listen_to_iterations(ctx, Purpose::Acknowledgements, on_iteration_end);
        }
    }

    /// Must not be called from an event: the server uses the subscription after the event.
    pub(crate) fn unregister(&mut self, ctx: Ctx<'_>) {
        if std::mem::take(&mut self.registered) {
            event_loop::ignore_iterations(ctx, Purpose::Acknowledgements);
        }
    }
}
