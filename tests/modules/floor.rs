// SPDX-License-Identifier: MIT

//! A lock with the minimum cost of waiting in the server: clients queue, and a release replies to the first. The lock has no
//! data in the keyspace, no leases, no owners, and no check for disconnected clients. Benchmarks compare redis-lock with it.
//!
//! * `FLOOR.ACQUIRE key owner [BLOCK 0]` replies 1 as soon as the caller holds the lock.
//! * `FLOOR.RELEASE key owner` hands the lock to the first waiter, or frees it, and replies 1. It replies 0 for a free lock.

#![allow(missing_docs)] // Only the server calls the public items.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, CStr};

use foldhash::fast::FixedState;
use redis_module::raw;

/// Calls a function of the module API. Panics on a server without the function, which ends the server.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match raw::$function {
            Some(function) => function($($argument),*),
            None => panic!("the server has no {}", stringify!($function)),
        }
    };
}

const OK: c_int = 0;

/// Uses the server's allocator, as redis-lock does.
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

#[derive(Default)]
struct Lock {
    held: bool,
    /// Empty unless the lock is held.
    waiting: VecDeque<*mut raw::RedisModuleBlockedClient>,
}

thread_local! {
    /// The server runs all commands on one thread.
    static LOCKS: RefCell<HashMap<Vec<u8>, Lock, FixedState>> = RefCell::default();
}

/// Runs `body` on a lock, which is created if necessary.
///
/// # Safety
/// The name is a valid string of the server, which does not change during the call.
unsafe fn with_lock<T>(name: *mut raw::RedisModuleString, body: impl FnOnce(&mut Lock) -> T) -> T {
    let mut length = 0;
    // SAFETY: guaranteed by the caller; the bytes live as long as the string.
    let name = unsafe {
        let start: *const c_char = call!(RedisModule_StringPtrLen(name, &mut length));
        std::slice::from_raw_parts(start.cast::<u8>(), length)
    };
    LOCKS.with_borrow_mut(|locks| match locks.get_mut(name) {
        Some(lock) => body(lock),
        None => body(locks.entry(name.to_vec()).or_default()),
    })
}

unsafe extern "C" fn acquire(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passes a context and `argc` arguments, which live until the command returns. The release that pops a
    // handle returns it to the server.
    unsafe {
        if argc < 3 {
            return call!(RedisModule_WrongArity(ctx));
        }
        with_lock(*argv.add(1), |lock| {
            if lock.held {
                lock.waiting.push_back(call!(RedisModule_BlockClient(ctx, Some(granted), None, None, 0)));
                return OK;
            }
            lock.held = true;
            call!(RedisModule_ReplyWithLongLong(ctx, 1))
        })
    }
}

/// Replies to an unblocked client.
unsafe extern "C" fn granted(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server passes a valid context of the client.
    unsafe { call!(RedisModule_ReplyWithLongLong(ctx, 1)) }
}

unsafe extern "C" fn release(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: see `acquire`; no handle in the queue has been returned to the server.
    unsafe {
        if argc != 3 {
            return call!(RedisModule_WrongArity(ctx));
        }
        let was_held = with_lock(*argv.add(1), |lock| {
            let was_held = lock.held;
            match lock.waiting.pop_front() {
                Some(next) => {
                    call!(RedisModule_UnblockClient(next, std::ptr::null_mut()));
                }
                None => lock.held = false,
            }
            was_held
        });
        call!(RedisModule_ReplyWithLongLong(ctx, i64::from(was_held)))
    }
}

/// Called by the server when it loads the module.
///
/// # Safety
/// The context is valid during the call.
#[no_mangle]
#[allow(non_snake_case)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    let version = raw::REDISMODULE_APIVER_1.cast_signed();
    let register = |name: &CStr, flags: &CStr, command| {
        // SAFETY: the context is valid; the names are C strings, and the function has the type that the server calls.
        unsafe { call!(RedisModule_CreateCommand(ctx, name.as_ptr(), command, flags.as_ptr(), 1, 1, 1)) }
    };
    // SAFETY: the server passes a context that is valid during this call; the name is a C string.
    let introduced = unsafe { raw::Export_RedisModule_Init(ctx, c"floor".as_ptr(), 1, version) };
    match introduced {
        // These are the flags of redis-lock's commands, so the server makes the same checks.
        OK => {
            register(c"floor.acquire", c"write deny-oom blocking", Some(acquire))
                | register(c"floor.release", c"write fast", Some(release))
        }
        failed => failed,
    }
}
