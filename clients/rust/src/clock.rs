// SPDX-License-Identifier: MIT

use std::time::Duration;

use nix::time::{clock_gettime, ClockId};

/// A time by a clock that cannot be set, or `Duration::MAX` for never.
pub(crate) type Moment = Duration;

// The server's clock does not stop while this machine is suspended, so neither does this one.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

/// The present time. Without a clock, every hold counts as lost.
pub(crate) fn now() -> Moment {
    clock_gettime(CLOCK).map_or(Duration::MAX, Duration::from)
}

pub(crate) fn after(time: Duration) -> Moment {
    now().saturating_add(time)
}

/// The time until then; zero if it has passed.
pub(crate) fn left(until: Moment) -> Duration {
    until.saturating_sub(now())
}
