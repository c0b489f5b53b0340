// SPDX-License-Identifier: MIT

//! Distributed locks as native commands of Redis and Valkey.
//!
//! # Layout
//!
//! * `lib.rs`: loads and unloads the module.
//! * [`core`]: the lock service as pure logic: holders, queues, deadlines, connections and the waits-for
//!   graph. It knows no Redis, reads no clock and has no `unsafe`.
//! * [`commands`]: one file per command. Each parses its arguments, calls the core, writes the lock and
//!   replies.
//! * [`keyspace`]: a lock as a Redis hash. It reads the hash, writes and replicates changes, raises keyspace events, and
//!   publishes that a lock is free.
//! * [`driver`]: the running module: the state of the core, the blocked clients, the timer.
//! * [`server`]: safe wrappers over the module API; the only place with `unsafe`.
//! * [`config`], [`stats`], [`error`]: settings, counters, error texts.
//!
//! # The path of an acquire
//!
//! 1. [`commands`] parses the call and opens the lock ([`keyspace::Lock::open`]).
//! 2. The core decides and changes the holders ([`core::LockManager::acquire`]).
//! 3. [`keyspace::Lock::store`] writes the lock, and the command replies.
//!
//! If the lock is busy and the client waits, the core queues the request and [`driver::block`] blocks the
//! client. At a later call, timer or event, the core decides, and [`driver`] delivers the decision to the
//! client.

#![deny(unsafe_code)]

#[macro_use]
mod defect;
mod commands;
mod config;
#[forbid(unsafe_code)]
mod core;
mod decimal;
mod driver;
mod error;
mod keyspace;
mod package;
#[allow(unsafe_code)]
mod server;
mod stats;

use std::ffi::{c_int, CStr};

use redis_module::raw;

use server::events::{iteration_end, selected_database, server_events};
use server::registration::{command, info, load, unloading};
use server::version::{self, Version};
use server::{calls, Ctx};

/// Allocates with the server's allocator, so that `INFO memory` and `maxmemory` include the module's memory.
#[cfg(not(any(test, target_env = "musl")))]
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

/// Like the allocator for other systems, for servers that do not align memory as Rust requires.
#[cfg(all(not(test), target_env = "musl"))]
#[global_allocator]
static ALLOCATOR: server::allocator::Aligned<redis_module::alloc::RedisAlloc> =
    server::allocator::Aligned(redis_module::alloc::RedisAlloc);

/// The name of the module in `MODULE LIST`, and the prefix of its settings and `INFO` fields.
const NAME: &CStr = c"lock";

/// Redis 7.0 is the first with module settings, command information for modules, and absolute timeouts without a race.
const OLDEST_SERVER: Version = Version::new(7, 0, 0);

/// In older versions, `CLIENT UNBLOCK` races with a grant and can crash the server.
const CLIENT_UNBLOCK_SINCE: Version = Version::new(7, 4, 0);

/// The command that reports which other commands exist.
const LOOKUP_COMMAND: &CStr = c"command";

/// The commands that replicate the changes of locks.
const REPLICATED_COMMANDS: [&CStr; 5] = [c"hset", c"hdel", c"pexpireat", c"del", c"set"];

/// Commands that the module calls, each with the effect of its absence.
const CALLED_COMMANDS: [(&CStr, &str); 2] = [
    (c"client", "a disconnected client may still be granted a lock"),
    (c"exists", "in a cluster, waiters get no grant when a lease ends, and FENCE and ID fail with TRYAGAIN"),
];

/// Registers the commands, the settings, the `INFO` section and the event handlers.
fn register(ctx: Ctx<'_>, args: command::Args<'_>) -> Result<(), String> {
    command::add_category(ctx);
    if !commands::register(ctx) {
        return Err("the server rejected a command; unload any other module with LOCK commands".to_owned());
    }
    config::register(ctx, args)?;
    if !info::register::<driver::info::Section>(ctx)
        || !server_events::listen_to_settings(ctx, &driver::info::SETTINGS, driver::on_settings_changed)
        || !driver::start(ctx)
        || !selected_database::watch_copies(ctx)
    {
        return Err("the server rejected a subscription to its events".to_owned());
    }
    Ok(())
}

fn load(ctx: Ctx<'_>, args: command::Args<'_>) -> Result<(), String> {
    let server = version::server_version().filter(|version| *version >= OLDEST_SERVER);
    let Some(server) = server else {
        let found = version::server_version().map_or("older".to_owned(), |version| version.to_string());
        return Err(format!("needs Redis {OLDEST_SERVER} or later, or Valkey; this server is {found}"));
    };
    let missing = load::missing_symbols();
    if !missing.is_empty() {
        return Err(format!("the module API of the server lacks {}; use a newer server", missing.join(", ")));
    }
    if !calls::knows_command(ctx, LOOKUP_COMMAND) {
        return Err(
            "the server has no command COMMAND, which lists the other commands; do not rename it".to_owned()
        );
    }
    if let Some(renamed) = REPLICATED_COMMANDS.iter().find(|name| !calls::knows_command(ctx, name)) {
        let name = renamed.to_string_lossy().to_ascii_uppercase();
        return Err(format!("the server has no command {name}, which replicates locks; do not rename it"));
    }
    load::log_panics();
    defect::log_to(load::log_defect);
    load::set_options(ctx, server);
    server::clients::blocked::allow_client_unblock(ctx, server >= CLIENT_UNBLOCK_SINCE);
    register(ctx, args)?;
    for (name, without) in CALLED_COMMANDS.iter().filter(|(name, _)| !calls::knows_command(ctx, name)) {
        let name = name.to_string_lossy().to_ascii_uppercase();
        ctx.warn(&format!("redis-lock: the server has no command {name} (do not rename it); {without}"));
    }
    driver::info::warn_about_eviction(ctx);
    let changed = config::changed().join(", ");
    let settings = if changed.is_empty() { "default settings" } else { &changed };
    ctx.note(&format!(
        "redis-lock {} (build {}) is loaded: {settings}",
        env!("CARGO_PKG_VERSION"),
        package::time()
    ));
    Ok(())
}

/// Called by the server when it loads the module.
///
/// # Safety
/// The arguments are valid during the call, and nothing of the module runs yet.
#[no_mangle]
#[allow(non_snake_case, unsafe_code, unreachable_pub, missing_docs)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passes a context and the module's arguments, which are valid during this call.
    let loaded = unsafe {
        if !load::init(ctx, NAME, package::VERSION) {
            return server::ERR;
        }
        let args = load::module_args(argv, argc);
        server::enter(ctx, |ctx| {
            load(ctx, args).map_err(|why| ctx.warn(&format!("redis-lock is not loaded: {why}")))
        })
    };
    match loaded {
        Some(Ok(())) => server::OK,
        Some(Err(())) | None => server::ERR,
    }
}

/// Called by the server before it unloads the module. The reason for a refusal is in the log only.
///
/// # Safety
/// The context is valid during the call.
#[no_mangle]
#[allow(non_snake_case, unsafe_code, unreachable_pub, missing_docs)]
pub unsafe extern "C" fn RedisModule_OnUnload(ctx: *mut raw::RedisModuleCtx) -> c_int {
    let unloads = |ctx: Ctx<'_>| {
        let in_use = unloading::is_in_use(ctx);
        let may_unload = !in_use || config::allow_unload() && !unloading::is_named_by_acl(ctx);
        // The server is about to call the module. It will have done so by the next iteration of its event
        // loop.
        let unloads = may_unload && !iteration_end::is_pending(ctx);
        if unloads {
            driver::stop(ctx);
        } else {
            ctx.warn(
                "redis-lock is not unloaded: clients or ACL rules use its commands, so unloading could crash the \
                 server; see docs/operations.md, or set lock.allow-unload yes",
            );
        }
        unloads
    };
    // SAFETY: the server passes a context that is valid during this call.
    if unsafe { server::enter(ctx, unloads) } != Some(true) {
        return server::ERR;
    }
    load::stop_logging_panics();
    server::OK
}
