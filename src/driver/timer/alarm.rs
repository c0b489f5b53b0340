// SPDX-License-Identifier: MIT

//! The driver's one timer.

use crate::core::MonoUs;
use crate::server::events::server_events;
use crate::server::registration::unloading;
use crate::server::timer::{self, TimerId};
use crate::server::Ctx;

/// Maximum delay of a timer on a responsive server, in microseconds.
const OVERDUE_TOLERANCE_US: MonoUs = 20_000;

/// Maximum delay of the timer, in milliseconds. If work is due later, the timer sets itself again when it
/// fires.
///
/// So an unneeded timer fires soon and does not have to be stopped. Setting and stopping a timer in each
/// hand-over would cost a fourteenth of it. Besides, Redis before 7.2.2 counts the microseconds until the
/// next timer in 32 bits. A timer more than 35 minutes ahead would keep its event loop busy.
const MAX_DELAY_MS: u64 = 10_000;

/// The timer, if it is set, and its due time. The driver never has more than one timer, because a module with a timer
/// cannot be unloaded.
#[derive(Default)]
pub(crate) struct Alarm {
    timer: Option<(TimerId, MonoUs)>,
    /// Whether the cron subscription that watches the timer is active. It ends when no timer is set.
    watched: bool,
    callback: Option<fn(Ctx<'_>)>,
}

impl Alarm {
    /// Sets the function that is called when the timer fires.
    pub(crate) fn set_callback(&mut self, callback: fn(Ctx<'_>)) {
        self.callback = Some(callback);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.timer.is_some()
    }

    /// Whether the timer fires by this time.
    pub(crate) fn fires_by(&self, at: MonoUs) -> bool {
        self.timer.as_ref().is_some_and(|(_, due)| *due <= at)
    }

    /// Forgets the timer that has just fired, because stopping it would free it twice.
    pub(crate) fn mark_fired(&mut self) {
        self.timer = None;
    }

    /// Sets the timer, or moves it to an earlier time. A timer that fires early or needlessly is left alone.
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

    /// Ends the watch if no timer is set. Must not be called from an event.
    pub(crate) fn unwatch_if_unset(&mut self, ctx: Ctx<'_>) {
        if self.timer.is_none() && std::mem::take(&mut self.watched) {
            server_events::ignore_cron(ctx);
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched
    }

    /// Stops a timer that is overdue, and returns whether it must be set again. The server's timers use the
    /// wall clock, so they fire late if the clock is set back.
    pub(crate) fn stop_if_overdue(&mut self, ctx: Ctx<'_>) -> bool {
        let overdue = self.timer.take_if(|(_, due)| ctx.now().mono > *due + OVERDUE_TOLERANCE_US);
        let Some((timer, _)) = overdue else { return false };
        timer::stop(ctx, timer);
        true
    }
}
