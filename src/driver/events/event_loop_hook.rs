// SPDX-License-Identifier: MIT

//! Whether the end of turns is listened to. It costs every turn of the event loop something, and so does it to begin and to end
//! that: so it begins with the first thing to do, and ends in the timer.

use crate::server::events::event_loop;
use crate::server::Ctx;

pub(crate) struct EventLoopHook {
    purpose: event_loop::Purpose,
    /// What is called then.
    callback: Option<fn(Ctx<'_>, ())>,
    registered: bool,
}

impl EventLoopHook {
    pub(crate) fn new(purpose: event_loop::Purpose) -> EventLoopHook {
        EventLoopHook { purpose, callback: None, registered: false }
    }

    /// This is called at the end of turns.
    pub(crate) fn set_callback(&mut self, on_turn_end: fn(Ctx<'_>, ())) {
        self.callback = Some(on_turn_end);
    }

    pub(crate) fn is_registered(&self) -> bool {
        self.registered
    }

    pub(crate) fn register(&mut self, ctx: Ctx<'_>) {
        let Some(on_turn_end) = self.callback else { return };
        if !std::mem::replace(&mut self.registered, true) {
            event_loop::listen_to_turns(ctx, self.purpose, on_turn_end);
        }
    }

    /// Not to be called from an event.
    pub(crate) fn unregister(&mut self, ctx: Ctx<'_>) {
        if std::mem::take(&mut self.registered) {
            event_loop::ignore_turns(ctx, self.purpose);
        }
    }
}
