// SPDX-License-Identifier: MIT

use std::time::Duration;

use nix::time::{clock_gettime, ClockId};

/// A time on a clock that nobody can set.
pub(crate) type Moment = Duration;

// A lease at the server runs on while this machine sleeps.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

/// This moment. Without a clock, every hold counts as lost.
pub(crate) fn now() -> Moment {
    clock_gettime(CLOCK).map_or(Duration::MAX, Duration::from)
}

/// How long it is until then; zero if it is past.
pub(crate) fn left(until: Moment) -> Duration {
    until.saturating_sub(now())
}

/// That long from now.
pub(crate) fn after(time: Duration) -> Moment {
    now().saturating_add(time)
}
