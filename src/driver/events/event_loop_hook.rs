// SPDX-License-Identifier: MIT

//! Whether the end of turns is listened to. It costs every turn of the event loop something, and so does it to begin and to end
//! that: so it begins with the first thing to do, and ends in the timer.

use crate::server::events::event_loop;
use crate::server::Ctx;

pub(crate) struct TurnEnds {
    what: event_loop::For,
    /// What is called then.
    calls: Option<fn(Ctx<'_>, ())>,
    hears: bool,
}

impl TurnEnds {
    pub(crate) fn new(what: event_loop::For) -> TurnEnds {
        TurnEnds { what, calls: None, hears: false }
    }

    /// This is called at the end of turns.
    pub(crate) fn calls(&mut self, turn_ends: fn(Ctx<'_>, ())) {
        self.calls = Some(turn_ends);
    }

    pub(crate) fn are_heard(&self) -> bool {
        self.hears
    }

    pub(crate) fn listen(&mut self, ctx: Ctx<'_>) {
        let Some(turn_ends) = self.calls else { return };
        if !std::mem::replace(&mut self.hears, true) {
            event_loop::listen_to_turns(ctx, self.what, turn_ends);
        }
    }

    /// Not to be called from an event.
    pub(crate) fn ignore(&mut self, ctx: Ctx<'_>) {
        if std::mem::take(&mut self.hears) {
            event_loop::ignore_turns(ctx, self.what);
        }
    }
}
