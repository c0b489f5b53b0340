// SPDX-License-Identifier: MIT

//! Safe wrappers over the module API: the only place with `unsafe`.
//!
//! The server calls a module on one thread at a time, the one that holds its global lock, and so every
//! wrapper here may only be used from inside a callback of the server. [`Ctx`] is the proof: nobody else
//! makes one. A callback that gets no context has an [`InCallback`], which opens the module's own state only. Every `extern "C"` function goes through [`guard()`], because a panic that leaves it would end
//! the server.

/// Calls a function of the module API. All that the module needs are checked at load
/// ([`registration::load::missing_symbols`]); an absent one is a defect of ours, and ends in [`guard()`].
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match redis_module::raw::$function {
            Some(function) => function($($argument),*),
            None => $crate::server::missing_function(stringify!($function)),
        }
    };
}

pub(crate) mod callback;
pub(crate) mod calls;
pub(crate) mod clients;
pub(crate) mod events;
pub(crate) mod keys;
pub(crate) mod registration;
pub(crate) mod replication;
pub(crate) mod timer;
pub(crate) mod version;

pub(crate) use callback::{enter, guard, missing_function, panics, Ctx, InCallback, ServerCell, ERR, OK};
pub(crate) use calls::Obstacle;
pub(crate) use keys::string::Str;
