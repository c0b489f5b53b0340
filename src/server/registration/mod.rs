// SPDX-License-Identifier: MIT

//! Loading and unloading the module: its commands, its settings and its section of `INFO`.

pub(crate) mod arguments;
pub(crate) mod command;
pub(crate) mod config;
pub(crate) mod info;
pub(crate) mod load;
pub(crate) mod unloading;
