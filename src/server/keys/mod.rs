// SPDX-License-Identifier: MIT

//! Keys, their values, and strings.

pub(super) mod field_expiry;
pub(crate) mod handle;
pub(crate) mod key;
pub(crate) mod string;
