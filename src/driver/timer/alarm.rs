// SPDX-License-Identifier: MIT

//! The module's one timer.

use crate::core::MonoUs;
use crate::server::events::server_events;
use crate::server::registration::unloading;
use crate::server::timer::{self, TimerId};
use crate::server::Ctx;

/// How late a timer can be in a server that is alive, in microseconds.
const OVERDUE_TOLERANCE_US: MonoUs = 20_000;

/// The longest time that the timer is set for, in milliseconds; if something is planned for later, it is set again then. So one
/// that is not needed any more needs not be stopped, as it fires soon: to set and stop one at each hand-over would cost a
/// fourteenth of that. (Besides, Redis before 7.2.2 counts microseconds until the next timer in 32 bits: one that is more than
/// 35 minutes away keeps its event loop busy until then.)
const MAX_DELAY_MS: u64 = 10_000;

/// The timer, if it is set, and when it fires. There is never more than one: a module that has a timer cannot be unloaded.
#[derive(Default)]
pub(crate) struct Alarm {
    timer: Option<(TimerId, MonoUs)>,
    /// The timer is watched; ends when there is none any more.
    watched: bool,
    callback: Option<fn(Ctx<'_>)>,
}

impl Alarm {
    /// What is called when the timer fires.
    pub(crate) fn set_callback(&mut self, callback: fn(Ctx<'_>)) {
        self.callback = Some(callback);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.timer.is_some()
    }

    /// True if the timer fires by then.
    pub(crate) fn fires_by(&self, at: MonoUs) -> bool {
        self.timer.as_ref().is_some_and(|(_, due)| *due <= at)
    }

    /// The timer has fired: it must not be stopped any more.
    pub(crate) fn mark_fired(&mut self) {
        self.timer = None;
    }

    /// Sets the timer, or moves it if that is earlier than planned. One that fires earlier than needed, or in vain, is left
    /// alone.
    pub(crate) fn set(
        &mut self,
        ctx: Ctx<'_>,
        milliseconds: Option<u64>,
        now: MonoUs,
        watch: fn(Ctx<'_>, ()),
    ) {
        let Some(ms) = milliseconds.map(|ms| ms.min(MAX_DELAY_MS)) else { return };
        let due = now.saturating_add(ms * 1000);
        if self.fires_by(due) {
            return;
        }
        if let Some((timer, _)) = self.timer.take() {
            timer::stop(ctx, timer);
        }
        if let Some(callback) = self.callback {
            self.timer = Some((timer::set(ctx, ms, callback), due));
            if !std::mem::replace(&mut self.watched, true) {
                server_events::listen_to_cron(ctx, watch);
                unloading::mark_in_use(ctx);
            }
        }
    }

    /// Ends the watch if there is no timer. Not to be called from an event.
    pub(crate) fn unwatch_if_unset(&mut self, ctx: Ctx<'_>) {
        if self.timer.is_none() && std::mem::take(&mut self.watched) {
            server_events::ignore_cron(ctx);
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched
    }

    /// The server's timers wait for a time of day: if somebody sets the clock back, they fire that much later. Stops such a
    /// one. Returns whether it is to be set anew.
    pub(crate) fn stop_if_overdue(&mut self, ctx: Ctx<'_>) -> bool {
        let overdue = self.timer.take_if(|(_, due)| ctx.now().mono > *due + OVERDUE_TOLERANCE_US);
        let Some((timer, _)) = overdue else { return false };
        timer::stop(ctx, timer);
        true
    }
}
