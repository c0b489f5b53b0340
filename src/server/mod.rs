// SPDX-License-Identifier: MIT

//! Safe wrappers over the module API: the only place with `unsafe`.
//!
//! The server calls a module on one thread at a time, the one that holds its global lock. So every wrapper may only be
//! used inside a callback of the server. [`Ctx`] is the proof of that, and only this module creates one. A callback
//! without a context has an [`InCallback`], which gives access to the module's own state only. Every `extern "C"`
//! function goes through [`guard()`], because a panic that leaves it would crash the server.

/// Calls a function of the module API. Loading checks that every required function exists
/// ([`registration::load::missing_symbols`]). A missing function is a bug, and the resulting panic ends in
/// [`guard()`].
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match redis_module::raw::$function {
            Some(function) => function($($argument),*),
            None => $crate::server::missing_function(stringify!($function)),
        }
    };
}

#[cfg(any(test, target_env = "musl"))]
pub(crate) mod allocator;
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
