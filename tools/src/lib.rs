// SPDX-License-Identifier: MIT

//! What the tools share: how they reach a server, and what is asked of them at their command lines.

pub mod link;
pub mod place;
pub mod seconds;
pub mod texts;
