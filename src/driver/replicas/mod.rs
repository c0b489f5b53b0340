// SPDX-License-Identifier: MIT

//! Calls with `REPLICAS`: waiting until replicas acknowledge a write.

pub(super) mod completion;
pub(super) mod replica_waits;
