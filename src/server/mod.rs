// SPDX-License-Identifier: MIT

//! Safe wrappers over the module API: the only place with `unsafe`.
//!
//! The server calls a module on one thread at a time, the one that holds its global lock, and so every
//! wrapper here may only be used from inside a callback of the server. [`Ctx`] is the proof: nobody else
//! makes one. A callback that gets no context has an [`InCallback`], which opens the module's own state only. Every `extern "C"` function goes through [`guard()`], because a panic that leaves it would end
//! the server.

/// Calls a function of the module API. All that the module needs are checked at load
/// ([`load::missing_symbols`]); an absent one is a defect of ours, and ends in [`guard()`].
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match redis_module::raw::$function {
            Some(function) => function($($argument),*),
            None => $crate::server::absent(stringify!($function)),
        }
    };
}

pub(crate) mod arguments;
pub(crate) mod ask;
pub(crate) mod blocked;
pub(crate) mod caller;
mod cell;
pub(crate) mod config;
pub(crate) mod ctx;
pub(crate) mod event_loop;
pub(crate) mod events;
mod field_ends;
mod guard;
pub(crate) mod info;
pub(crate) mod key;
pub(crate) mod later;
pub(crate) mod load;
pub(crate) mod long_reply;
pub(crate) mod messages;
pub(crate) mod muted;
pub(crate) mod notify;
pub(crate) mod on_behalf;
pub(crate) mod propagation;
pub(crate) mod replication;
pub(crate) mod selected_database;
pub(crate) mod socket;
pub(crate) mod string;
mod subscribe;
pub(crate) mod timer;
pub(crate) mod turn;
pub(crate) mod unloading;
pub(crate) mod version;

pub(crate) use ask::Obstacle;
pub(crate) use cell::{InCallback, ServerCell};
pub(crate) use ctx::{enter, Ctx};
pub(crate) use guard::{absent, guard, panics, ERR, OK};
pub(crate) use string::Str;
