// SPDX-License-Identifier: MIT

//! The context of a callback: database, clocks, state of the server, log and replies.

use std::cell::OnceCell;
use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::time::{SystemTime, UNIX_EPOCH};

use redis_module::raw;

use crate::core::Now;
use crate::server::callback::cell::{InCallback, ServerCell};
use crate::server::{guard, OK};

/// The context in which the server has called the module. It is never null. Its lifetime ends with the
/// callback. The callback is generic over the lifetime, and so cannot keep the context.
#[derive(Clone, Copy)]
pub(crate) struct Ctx<'a>(NonNull<raw::RedisModuleCtx>, PhantomData<&'a raw::RedisModuleCtx>);

/// Runs the body of a callback. A panic becomes `None`, as with [`guard()`]. The body is generic over the
/// context's lifetime, and so cannot leak the context.
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
        // SAFETY: a context exists only while a callback is running.
        unsafe { InCallback::claim() }
    }
}

/// The state of the server and of the calling client. It does not change during a call.
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

    /// True in a transaction, a script or a function, and for all other callers that cannot wait for a reply.
    pub(crate) fn denies_blocking(self) -> bool {
        self.has(
            raw::REDISMODULE_CTX_FLAGS_MULTI
                | raw::REDISMODULE_CTX_FLAGS_LUA
                | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING,
        )
    }

    /// True in a script or a function, and if another module calls.
    pub(in crate::server) fn is_called_by_code(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_LUA)
            || self.has(raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING)
                && !self.has(raw::REDISMODULE_CTX_FLAGS_MULTI)
    }

    pub(crate) fn is_out_of_memory(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_OOM)
    }

    pub(in crate::server) fn is_loading(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_LOADING)
    }

    /// True if the server writes an AOF, or will do so after its first rewrite.
    pub(in crate::server) fn has_aof(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_AOF)
    }
}

impl<'a> Ctx<'a> {
    /// The raw pointer for the module API.
    pub(in crate::server) fn as_ptr(self) -> *mut raw::RedisModuleCtx {
        self.0.as_ptr()
    }

    /// The number of the selected database.
    pub(crate) fn db(self) -> i32 {
        // SAFETY: the context belongs to the running callback.
        unsafe { call!(RedisModule_GetSelectedDb(self.as_ptr())) }
    }

    /// Selects the database for opening keys and replicating commands.
    pub(crate) fn select_db(self, db: i32) {
        // SAFETY: the context belongs to the running callback. The server refuses numbers out of range, and this number
        // came from the server.
        unsafe { call!(RedisModule_SelectDb(self.as_ptr(), db)) };
    }

    /// Runs `body` with another database selected.
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

    /// The id of the calling client, as in `CLIENT LIST`.
    pub(crate) fn client_id(self) -> u64 {
        // SAFETY: the context belongs to the running callback.
        unsafe { call!(RedisModule_GetClientId(self.as_ptr())) }
    }

    /// True while the client with this id is connected.
    pub(crate) fn client_exists(self, id: u64) -> bool {
        // SAFETY: without an output parameter, the function only looks the id up.
        unsafe { call!(RedisModule_GetClientInfoById(ptr::null_mut(), id)) == OK }
    }

    pub(crate) fn now(self) -> Now {
        now(self)
    }

    /// The server's time of day, in microseconds since the epoch.
    pub(crate) fn time_us(self) -> i64 {
        // SAFETY: the function only reads a clock.
        if let Some(now) = unsafe { raw::RedisModule_Microseconds.map(|now| now()) } {
            return now;
        }
        // Redis 7.0 has neither this function nor another clock.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
    }

    /// The state of the server and of the calling client.
    pub(crate) fn flags(self) -> Flags {
        // SAFETY: the context belongs to the running callback.
        Flags(unsafe { call!(RedisModule_GetContextFlags(self.as_ptr())) }.cast_unsigned())
    }

    /// True in a script or a function; neither has a connection.
    pub(crate) fn is_script(self) -> bool {
        self.flags().has(raw::REDISMODULE_CTX_FLAGS_LUA)
    }

    pub(crate) fn is_primary(self) -> bool {
        self.flags().is_primary()
    }

    /// Whether this server is a cluster node. The answer is cached, because a server cannot join a cluster later.
    pub(crate) fn is_cluster(self) -> bool {
        static IS_CLUSTER: ServerCell<OnceCell<bool>> = ServerCell::new(OnceCell::new());
        *IS_CLUSTER.get(self).get_or_init(|| self.flags().is_cluster())
    }

    /// True while only a client's command may cause replication traffic.
    pub(crate) fn is_paused(self) -> bool {
        // SAFETY: the function only reads the server's state.
        unsafe { call!(RedisModule_AvoidReplicaTraffic()) != 0 }
    }

    /// Logs a warning.
    pub(crate) fn warn(self, text: &str) {
        warn(self.as_ptr(), text);
    }

    /// Logs a notice.
    pub(crate) fn note(self, text: &str) {
        log(self.as_ptr(), c"notice", text);
    }

    pub(crate) fn reply_integer(self, number: i64) {
        // SAFETY: the context belongs to the running callback.
        unsafe { call!(RedisModule_ReplyWithLongLong(self.as_ptr(), number)) };
    }

    pub(crate) fn reply_null(self) {
        // SAFETY: the context belongs to the running callback.
        unsafe { call!(RedisModule_ReplyWithNull(self.as_ptr())) };
    }

    pub(crate) fn reply_bulk(self, content: &[u8]) {
        // SAFETY: the pointer and the length belong to a slice.
        unsafe {
            call!(RedisModule_ReplyWithStringBuffer(self.as_ptr(), content.as_ptr().cast(), content.len()))
        };
    }

    pub(crate) fn reply_simple(self, text: &std::ffi::CStr) {
        // SAFETY: the text outlives the call.
        unsafe { call!(RedisModule_ReplyWithSimpleString(self.as_ptr(), text.as_ptr())) };
    }

    pub(crate) fn reply_array(self, len: usize) {
        // SAFETY: the context belongs to the running callback.
        unsafe { call!(RedisModule_ReplyWithArray(self.as_ptr(), to_c_long(len))) };
    }

    /// Begins an array whose length is set by [`Ctx::set_array_len`] after its last entry.
    pub(in crate::server) fn reply_postponed_array(self) {
        // SAFETY: the context belongs to the running callback.
        unsafe { call!(RedisModule_ReplyWithArray(self.as_ptr(), raw::REDISMODULE_POSTPONED_LEN.into())) };
    }

    pub(in crate::server) fn set_array_len(self, len: usize) {
        // SAFETY: an array with a postponed length was begun in this context.
        unsafe { call!(RedisModule_ReplySetArrayLength(self.as_ptr(), to_c_long(len))) };
    }

    /// Begins a map of `len` pairs; a flat array for RESP2 clients.
    pub(crate) fn reply_map(self, len: usize) {
        // SAFETY: the context belongs to the running callback.
        unsafe { call!(RedisModule_ReplyWithMap(self.as_ptr(), to_c_long(len))) };
    }

    /// Replies with an error. The text begins with its prefix.
    pub(crate) fn reply_error(self, text: &str) {
        // A NUL would end the text, but bytes from clients were escaped earlier.
        let text = std::ffi::CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default();
        // SAFETY: the text outlives the call.
        unsafe { call!(RedisModule_ReplyWithError(self.as_ptr(), text.as_ptr())) };
    }

    /// Replies with the error for a bug in the module.
    pub(in crate::server) fn reply_internal_error(self) {
        self.reply_error(guard::INTERNAL_ERROR);
    }

    /// Replies with the server's own error for a wrong number of arguments, which names the command.
    pub(crate) fn reply_wrong_arity(self) {
        // SAFETY: the context is that of a running command.
        unsafe { call!(RedisModule_WrongArity(self.as_ptr())) };
    }
}

/// Whether this server is a replica.
pub(crate) fn is_replica(_in_callback: impl Into<InCallback>) -> bool {
    // SAFETY: without a context, the function only reads the state of the server.
    let flags = unsafe { call!(RedisModule_GetContextFlags(ptr::null_mut())) };
    Flags(flags.cast_unsigned()).has(raw::REDISMODULE_CTX_FLAGS_SLAVE)
}

/// The time on both clocks.
#[inline]
pub(crate) fn now(_in_callback: impl Into<InCallback>) -> Now {
    // SAFETY: both functions only read a clock.
    unsafe {
        Now { wall: call!(RedisModule_Milliseconds()), mono: call!(RedisModule_MonotonicMicroseconds()) }
    }
}

fn to_c_long(len: usize) -> std::ffi::c_long {
    std::ffi::c_long::try_from(len).unwrap_or(std::ffi::c_long::MAX)
}

/// Logs a warning; the context may be null.
pub(in crate::server) fn warn(ctx: *mut raw::RedisModuleCtx, text: &str) {
    log(ctx, c"warning", text);
}

fn log(ctx: *mut raw::RedisModuleCtx, level: &CStr, text: &str) {
    // A text with a NUL cannot be logged. Bytes from clients are escaped, so none of the module's texts contains one.
    let Ok(text) = CString::new(text) else { return };
    // SAFETY: "%s" takes one C string. Every server with a module API has this function.
    unsafe { call!(RedisModule_Log(ctx, level.as_ptr(), c"%s".as_ptr(), text.as_ptr())) };
}
