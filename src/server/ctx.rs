// SPDX-License-Identifier: MIT

//! The context of a callback: where it runs, what time it is, and what leaves the server from it.

use std::cell::OnceCell;
use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::time::{SystemTime, UNIX_EPOCH};

use redis_module::raw;

use crate::core::Now;
use crate::server::cell::{InCallback, ServerCell};
use crate::server::{guard, OK};

/// The context in which the server has called the module. It is never null, and its lifetime ends with that call: a callback
/// is generic over it, and so cannot keep it.
#[derive(Clone, Copy)]
pub(crate) struct Ctx<'a>(NonNull<raw::RedisModuleCtx>, PhantomData<&'a raw::RedisModuleCtx>);

/// Runs the body of a callback; a panic in it becomes `None`, as with [`guard()`]. The body is generic over the context's
/// lifetime, and so cannot let it out.
///
/// # Safety
/// `raw` is the context of the running callback.
pub(crate) unsafe fn enter<T>(
    raw: *mut raw::RedisModuleCtx,
    body: impl for<'a> FnOnce(Ctx<'a>) -> T,
) -> Option<T> {
    guard(|| match NonNull::new(raw) {
        Some(raw) => body(Ctx(raw, PhantomData)),
        None => panic!("the server called the module without a context"),
    })
}

impl From<Ctx<'_>> for InCallback {
    fn from(_: Ctx<'_>) -> InCallback {
        // SAFETY: there is a context only while a callback runs.
        unsafe { InCallback::claim() }
    }
}

/// The state of the server and of the calling client, which does not change during a call.
#[derive(Clone, Copy)]
pub(crate) struct Flags(u32);

impl Flags {
    fn has(self, any: u32) -> bool {
        self.0 & any != 0
    }

    pub(crate) fn is_primary(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_MASTER)
    }

    pub(crate) fn is_cluster(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_CLUSTER)
    }

    /// True in a transaction, a script, a function, and for whoever else gets its reply at once or never.
    pub(crate) fn denies_blocking(self) -> bool {
        self.has(
            raw::REDISMODULE_CTX_FLAGS_MULTI
                | raw::REDISMODULE_CTX_FLAGS_LUA
                | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING,
        )
    }

    /// True in a script, a function, and where another module calls.
    pub(super) fn is_called_by_code(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_LUA)
            || self.has(raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING)
                && !self.has(raw::REDISMODULE_CTX_FLAGS_MULTI)
    }

    pub(crate) fn is_out_of_memory(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_OOM)
    }

    pub(super) fn is_loading(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_LOADING)
    }

    /// True if an AOF is written, or will be when its first part is.
    pub(super) fn has_aof(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_AOF)
    }
}

impl<'a> Ctx<'a> {
    /// As the API takes it.
    pub(super) fn as_ptr(self) -> *mut raw::RedisModuleCtx {
        self.0.as_ptr()
    }

    /// The number of the selected database.
    pub(crate) fn db(self) -> i32 {
        // SAFETY: the context is that of the running callback.
        unsafe { call!(RedisModule_GetSelectedDb(self.as_ptr())) }
    }

    /// Selects the database in which keys are opened and for which commands are replicated.
    pub(crate) fn select_db(self, db: i32) {
        // SAFETY: the context is that of the running callback; numbers out of range are refused by the
        // server, and all of ours came from it.
        unsafe { call!(RedisModule_SelectDb(self.as_ptr(), db)) };
    }

    /// Does something with another database selected.
    pub(crate) fn in_db<T>(self, db: i32, body: impl FnOnce() -> T) -> T {
        let before = self.db();
        if before == db {
            return body();
        }
        self.select_db(db);
        let result = body();
        self.select_db(before);
        result
    }

    /// The id of the calling client, as `CLIENT LIST` shows it.
    pub(crate) fn client_id(self) -> u64 {
        // SAFETY: the context is that of the running callback.
        unsafe { call!(RedisModule_GetClientId(self.as_ptr())) }
    }

    /// True while the client with this id is connected.
    pub(crate) fn client_exists(self, id: u64) -> bool {
        // SAFETY: without a place for the answer, the function only looks the id up.
        unsafe { call!(RedisModule_GetClientInfoById(ptr::null_mut(), id)) == OK }
    }

    pub(crate) fn now(self) -> Now {
        now(self)
    }

    /// The server's time of day in microseconds since the epoch.
    pub(crate) fn time_us(self) -> i64 {
        // SAFETY: the function only reads a clock.
        if let Some(now) = unsafe { raw::RedisModule_Microseconds.map(|now| now()) } {
            return now;
        }
        // Redis 7.0 has no such function, and no other clock than this one.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
    }

    /// The state that the server and the calling client are in.
    pub(crate) fn flags(self) -> Flags {
        // SAFETY: the context is that of the running callback.
        Flags(unsafe { call!(RedisModule_GetContextFlags(self.as_ptr())) }.cast_unsigned())
    }

    /// True in a script or a function, which run on behalf of no connection.
    pub(crate) fn is_script(self) -> bool {
        self.flags().has(raw::REDISMODULE_CTX_FLAGS_LUA)
    }

    pub(crate) fn is_primary(self) -> bool {
        self.flags().is_primary()
    }

    /// True if this server belongs to a cluster, which it cannot join later: it is asked once.
    pub(crate) fn is_cluster(self) -> bool {
        static IS_CLUSTER: ServerCell<OnceCell<bool>> = ServerCell::new(OnceCell::new());
        *IS_CLUSTER.get(self).get_or_init(|| self.flags().is_cluster())
    }

    /// True while nothing may be sent to replicas but what a client's command leads to.
    pub(crate) fn is_paused(self) -> bool {
        // SAFETY: the function only reads the server's state.
        unsafe { call!(RedisModule_AvoidReplicaTraffic()) != 0 }
    }

    /// A warning in the server's log.
    pub(crate) fn warn(self, text: &str) {
        warn(self.as_ptr(), text);
    }

    /// A line in the server's log about something that is no fault.
    pub(crate) fn note(self, text: &str) {
        log(self.as_ptr(), c"notice", text);
    }

    pub(crate) fn reply_integer(self, number: i64) {
        // SAFETY: the context is that of the running callback.
        unsafe { call!(RedisModule_ReplyWithLongLong(self.as_ptr(), number)) };
    }

    pub(crate) fn reply_null(self) {
        // SAFETY: the context is that of the running callback.
        unsafe { call!(RedisModule_ReplyWithNull(self.as_ptr())) };
    }

    pub(crate) fn reply_bulk(self, content: &[u8]) {
        // SAFETY: pointer and length are those of a slice.
        unsafe {
            call!(RedisModule_ReplyWithStringBuffer(self.as_ptr(), content.as_ptr().cast(), content.len()))
        };
    }

    pub(crate) fn reply_simple(self, text: &std::ffi::CStr) {
        // SAFETY: the text outlives the call.
        unsafe { call!(RedisModule_ReplyWithSimpleString(self.as_ptr(), text.as_ptr())) };
    }

    pub(crate) fn reply_array(self, len: usize) {
        // SAFETY: the context is that of the running callback.
        unsafe { call!(RedisModule_ReplyWithArray(self.as_ptr(), as_long(len))) };
    }

    /// An array whose length [`Ctx::set_array_len`] tells when all its entries are there.
    pub(super) fn reply_postponed_array(self) {
        // SAFETY: the context is that of the running callback.
        unsafe { call!(RedisModule_ReplyWithArray(self.as_ptr(), raw::REDISMODULE_POSTPONED_LEN.into())) };
    }

    pub(super) fn set_array_len(self, len: usize) {
        // SAFETY: an array was begun in this context, whose length is still to be set.
        unsafe { call!(RedisModule_ReplySetArrayLength(self.as_ptr(), as_long(len))) };
    }

    /// A map of `len` pairs; a flat array for a client that speaks RESP2.
    pub(crate) fn reply_map(self, len: usize) {
        // SAFETY: the context is that of the running callback.
        unsafe { call!(RedisModule_ReplyWithMap(self.as_ptr(), as_long(len))) };
    }

    /// An error; the text begins with its prefix.
    pub(crate) fn reply_error(self, text: &str) {
        // A NUL would end the text early, so it ends there; clients' bytes come escaped.
        let text = std::ffi::CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default();
        // SAFETY: the text outlives the call.
        unsafe { call!(RedisModule_ReplyWithError(self.as_ptr(), text.as_ptr())) };
    }

    /// The error for a defect of the module.
    pub(super) fn reply_internal_error(self) {
        self.reply_error(guard::INTERNAL_ERROR);
    }

    /// The server's own error for a wrong number of arguments, which names the command.
    pub(crate) fn reply_wrong_arity(self) {
        // SAFETY: the context is that of a running command.
        unsafe { call!(RedisModule_WrongArity(self.as_ptr())) };
    }
}

/// The time on both clocks.
#[inline]
pub(crate) fn now(_in_callback: impl Into<InCallback>) -> Now {
    // SAFETY: both functions only read a clock.
    unsafe {
        Now { wall: call!(RedisModule_Milliseconds()), mono: call!(RedisModule_MonotonicMicroseconds()) }
    }
}

fn as_long(len: usize) -> std::ffi::c_long {
    std::ffi::c_long::try_from(len).unwrap_or(std::ffi::c_long::MAX)
}

/// A warning in the server's log; the context may be null.
pub(super) fn warn(ctx: *mut raw::RedisModuleCtx, text: &str) {
    log(ctx, c"warning", text);
}

fn log(ctx: *mut raw::RedisModuleCtx, level: &CStr, text: &str) {
    // A text with a NUL in it cannot be passed; none of ours has one that a client did not escape.
    let Ok(text) = CString::new(text) else { return };
    // SAFETY: "%s" takes one C string. The function is there on every server that has a module API.
    unsafe { call!(RedisModule_Log(ctx, level.as_ptr(), c"%s".as_ptr(), text.as_ptr())) };
}
