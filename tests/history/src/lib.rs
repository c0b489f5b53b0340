// SPDX-License-Identifier: MIT

//! Puts load on the locks of a server, and records the calls and replies of all clients. A checker decides whether a correct
//! server can have given these replies. The checker implements `docs/guide.md` and the commands' pages, and shares no code with
//! the module.

pub mod check;
pub mod load;
pub mod record;
pub mod wire;
