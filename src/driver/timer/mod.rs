// SPDX-License-Identifier: MIT

//! The driver's timer: when it fires and what it does.

pub(super) mod alarm;
pub(super) mod on_timer;
pub(super) mod recheck_schedule;
