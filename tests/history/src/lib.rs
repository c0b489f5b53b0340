// SPDX-License-Identifier: MIT

//! A load on the locks of a server that records what its clients saw, and a checker that decides whether a right server
//! can have answered so. It knows what `docs/guide.md` and the commands' pages say, and shares no code with the module.

pub mod check;
pub mod load;
pub mod record;
pub mod wire;
