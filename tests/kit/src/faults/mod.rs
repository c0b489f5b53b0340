// SPDX-License-Identifier: MIT

//! Faults of connections and networks.

pub mod network;
pub mod proxy;
