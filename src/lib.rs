// SPDX-License-Identifier: MIT

//! Distributed locks as native commands of Redis and Valkey.
//!
//! # Layout
//!
//! * `lib.rs`: what the module registers, as a table.
//! * [`core`]: the lock service as pure logic: holders, queues, deadlines, connections, the wait graph. No
//!   Redis, no clock, no `unsafe`.
//! * [`commands`]: one file per command: parse, ask the core, write, reply.
//! * [`keyspace`]: a lock as a Redis hash: read it, write the difference, replicate it, raise its events,
//!   publish that it is free.
//! * [`driver`]: the module at work: the core's state, the blocked clients, the one timer.
//! * [`server`]: safe wrappers over the module API; the only place with `unsafe`.
//! * [`config`], [`stats`], [`error`]: settings, counters and `INFO`, error texts.
//!
//! One acquire, from the command to the reply: [`commands`] parses it and opens the lock
//! ([`keyspace::Lock::open`]); the core decides ([`core::LockManager::acquire`]) and changes the holders;
//! [`keyspace::Lock::store`] writes them; the reply goes out. If the lock is busy and the client waits, the
//! core queues it and [`driver::block`] blocks the client, until some later call, timer or event lets the
//! core decide for it: [`driver`] tells how that reaches the client.

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
#[allow(unsafe_code)]
mod server;
mod stats;

use std::ffi::{c_int, CStr};

use redis_module::raw;

use server::events::{selected_database, server_events, turn_end};
use server::registration::{command, info, load, unloading};
use server::version::{self, Version};
use server::{calls, Ctx};

/// The module's memory is the server's, so that `INFO memory` and `maxmemory` see it.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

/// What `MODULE LIST` calls it, and what the server puts in front of its settings and of its fields in `INFO`.
const NAME: &CStr = c"lock";

/// As `MODULE LIST` shows it: 0.1.0.
const VERSION: c_int = 100;

/// Redis 7.0 brought settings of modules, their command information, and absolute time-outs without a race.
const OLDEST_SERVER: Version = Version::new(7, 0, 0);

/// Before, `CLIENT UNBLOCK` raced with a grant, and could end the server.
const CLIENT_UNBLOCK_SINCE: Version = Version::new(7, 4, 0);

/// The command by which the module looks for the others.
const LOOKED_UP_WITH: &CStr = c"command";

/// The commands that effects are replicated as.
const REPLICATED: [&CStr; 5] = [c"hset", c"hdel", c"pexpireat", c"del", c"set"];

/// The commands that the module asks the server with, and what it cannot do without them.
const ASKED: [(&CStr, &str); 2] = [
    (c"client", "a client that has hung up may be granted a lock before the server has read so"),
    (
        c"exists",
        "in a cluster nobody who waits is granted a lock when its lease ends, and FENCE and ID get TRYAGAIN",
    ),
];

/// Everything that the module registers.
fn register(ctx: Ctx<'_>, args: command::Args<'_>) -> Result<(), String> {
    command::add_category(ctx);
    if !commands::register(ctx) {
        return Err("the server refuses a command, is another module with LOCK commands loaded?".to_owned());
    }
    config::register(ctx, args)?;
    if !info::register::<driver::info::Section>(ctx)
        || !server_events::listen_to_settings(ctx, &driver::info::SETTINGS, driver::on_settings_changed)
        || !driver::start(ctx)
        || !selected_database::watch_copies(ctx)
    {
        return Err("the server refuses a subscription".to_owned());
    }
    Ok(())
}

fn load(ctx: Ctx<'_>, args: command::Args<'_>) -> Result<(), String> {
    let server = version::server_version().filter(|version| *version >= OLDEST_SERVER);
    let Some(server) = server else {
        let found =
            version::server_version().map_or("an older one".to_owned(), |version| version.to_string());
        return Err(format!("needs Redis {OLDEST_SERVER} or later, or Valkey; this server is {found}"));
    };
    let missing = load::missing_symbols();
    if !missing.is_empty() {
        return Err(format!("the server lacks {}", missing.join(", ")));
    }
    if !calls::knows_command(ctx, LOOKED_UP_WITH) {
        return Err(
            "the server has no command COMMAND, which tells what others it has: do not rename it".to_owned()
        );
    }
    if let Some(renamed) = REPLICATED.iter().find(|name| !calls::knows_command(ctx, name)) {
        let name = renamed.to_string_lossy().to_ascii_uppercase();
        return Err(format!(
            "the server has no command {name}, as which locks are replicated: do not rename it"
        ));
    }
    load::log_panics();
    defect::log_to(load::log_defect);
    load::set_options(ctx, server);
    server::clients::blocked::allow_client_unblock(ctx, server >= CLIENT_UNBLOCK_SINCE);
    register(ctx, args)?;
    for (name, without) in ASKED.iter().filter(|(name, _)| !calls::knows_command(ctx, name)) {
        let name = name.to_string_lossy().to_ascii_uppercase();
        ctx.warn(&format!("redis-lock: the server has no command {name}: {without}; do not rename it"));
    }
    driver::info::warn_about_eviction(ctx);
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
        if !load::init(ctx, NAME, VERSION) {
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

/// Called by the server before it unloads the module. It tells nobody why the module refuses: the log does.
///
/// # Safety
/// The context is valid during the call.
#[no_mangle]
#[allow(non_snake_case, unsafe_code, unreachable_pub, missing_docs)]
pub unsafe extern "C" fn RedisModule_OnUnload(ctx: *mut raw::RedisModuleCtx) -> c_int {
    let unloads = |ctx: Ctx<'_>| {
        let in_use = unloading::is_in_use(ctx);
        let may_unload = !in_use || config::allow_unload() && !unloading::is_named_by_acl(ctx);
        // The server is about to call us: in the next turn of its event loop it will have done so.
        let unloads = may_unload && !turn_end::is_pending(ctx);
        if unloads {
            driver::stop(ctx);
        } else {
            ctx.warn(
                "redis-lock is not unloaded: a client that has used a command of the module, or is about to, can end \
                 the server afterwards, and so can an ACL rule that names one; see docs/operations.md, and CONFIG SET \
                 lock.allow-unload yes to do it all the same",
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
