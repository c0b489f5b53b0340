// SPDX-License-Identifier: MIT

//! Calls with `REPLICAS`: waiting until replicas acknowledge a write.

pub(super) mod acknowledgements;
pub(super) mod completion;
