// SPDX-License-Identifier: MIT

//! Shared code of the tools: connections to a server, and options of the command line.

pub mod link;
pub mod place;
pub mod seconds;
mod survey;
pub mod texts;
