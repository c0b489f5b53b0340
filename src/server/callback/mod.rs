// SPDX-License-Identifier: MIT

//! The context of a callback, the proof that one runs, and the guard that stops panics.

mod cell;
pub(crate) mod ctx;
pub(super) mod guard;

pub(crate) use cell::{InCallback, ServerCell};
pub(crate) use ctx::{enter, Ctx};
pub(crate) use guard::{guard, missing_function, panics, ERR, OK};
