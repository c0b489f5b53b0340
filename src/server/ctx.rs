//! The context of a callback: where it runs, what time it is, and what leaves the server from it.

use std::ffi::{c_int, c_longlong, CStr, CString};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::time::{SystemTime, UNIX_EPOCH};

use redis_module::raw;

use crate::core::Now;
use crate::server::load::{self, Version};
use crate::server::{guard, Str, OK};

/// Since when a command can be tried without being carried out.
const DRY_RUN_SINCE: Version = Version::new(7, 2, 0);

/// The context in which the server has called the module. It is never null, and its lifetime ends with that call: a callback
/// is generic over it, and so cannot keep it.
#[derive(Clone, Copy)]
pub(crate) struct Ctx<'a>(NonNull<raw::RedisModuleCtx>, PhantomData<&'a raw::RedisModuleCtx>);

/// Runs the body of a callback; a panic in it becomes `None`, as with [`guard`]. The body is generic over the context's
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
        None => panic!("the server has called the module without a context"),
    })
}

/// The proof that a callback of the server runs: it opens the module's own state, and nothing of the server's. A [`Ctx`] is
/// one too. Some callbacks get no context, and so have no other.
#[derive(Clone, Copy)]
pub(crate) struct InCallback(());

impl InCallback {
    /// For a callback that gets no context.
    ///
    /// # Safety
    /// A callback of the server runs, and the result is not kept beyond it.
    pub(super) unsafe fn claim() -> InCallback {
        InCallback(())
    }
}

impl From<Ctx<'_>> for InCallback {
    fn from(_: Ctx<'_>) -> InCallback {
        InCallback(())
    }
}

/// Why nothing may be written but by a client's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// This is a replica, loads a file, or clients are paused: a write would end the server.
    Paused,
    /// The server refuses the writes of all clients. That may last.
    Refused,
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
        // SAFETY: both functions only read a clock.
        unsafe {
            Now { wall: call!(RedisModule_Milliseconds()), mono: call!(RedisModule_MonotonicMicroseconds()) }
        }
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

    /// True in a transaction, a script, a function, and for whoever else gets its reply at once or never.
    pub(crate) fn denies_blocking(self) -> bool {
        self.flags().has(
            raw::REDISMODULE_CTX_FLAGS_MULTI
                | raw::REDISMODULE_CTX_FLAGS_LUA
                | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING,
        )
    }

    /// True in a script or a function, which run on behalf of no connection.
    pub(crate) fn is_script(self) -> bool {
        self.flags().has(raw::REDISMODULE_CTX_FLAGS_LUA)
    }

    pub(crate) fn is_primary(self) -> bool {
        self.flags().is_primary()
    }

    pub(crate) fn is_cluster(self) -> bool {
        self.flags().is_cluster()
    }

    /// True while nothing may be sent to replicas but what a client's command leads to.
    pub(super) fn is_paused(self) -> bool {
        // SAFETY: the function only reads the server's state.
        unsafe { call!(RedisModule_AvoidReplicaTraffic()) != 0 }
    }

    /// What keeps a callback that no command of a client led to from writing now.
    pub(crate) fn obstacle(self) -> Option<Obstacle> {
        if self.is_paused() || !self.flags().is_primary() || self.flags().is_loading() {
            return Some(Obstacle::Paused);
        }
        self.refuses_writes().then_some(Obstacle::Refused)
    }

    /// True if the server answers every client's write with an error: too few replicas follow
    /// (`min-replicas-to-write`), or a disk error stops writes (`MISCONF`).
    fn refuses_writes(self) -> bool {
        // Servers since 7.2 only try whether a command would be let through ("D"). 7.0 carries it out: so it is one that
        // changes no key, whatever it is. No TTL is later than the latest.
        let can_try = load::server_version().is_some_and(|version| version >= DRY_RUN_SINCE);
        let format = if can_try { c"SDclcc" } else { c"Sclcc" };
        // SAFETY: the format takes a C string, a number and two C strings. The reply is null or the server's.
        unsafe {
            let (command, key) = (c"PEXPIREAT".as_ptr(), c"lock".as_ptr());
            let (only_with_ttl, only_earlier) = (c"XX".as_ptr(), c"LT".as_ptr());
            let reply = call!(RedisModule_Call(
                self.as_ptr(),
                command,
                format.as_ptr(),
                key,
                c_longlong::MAX,
                only_with_ttl,
                only_earlier
            ));
            // As a script would be refused ("S"). Other errors, such as that a key is another node's, come later. What is
            // only tried has no reply but an error, and what is carried out has none if it was refused.
            let why = std::io::Error::last_os_error().raw_os_error();
            let refused = reply.is_null() != can_try && why == Some(libc::ESPIPE);
            if !reply.is_null() {
                call!(RedisModule_FreeCallReply(reply));
            }
            refused
        }
    }

    /// Tells `WATCH` and client-side caches that the key has changed.
    pub(crate) fn signal_modified(self, key: &Str) {
        // SAFETY: context and key outlive the call.
        unsafe { call!(RedisModule_SignalModifiedKey(self.as_ptr(), key.as_ptr())) };
    }

    /// Publishes to the subscribers of this server and, in a cluster, of all its nodes. Returns how many of this
    /// server heard it.
    pub(crate) fn publish(self, channel: &Str, message: &Str) -> usize {
        // SAFETY: context and strings outlive the call.
        let heard =
            unsafe { call!(RedisModule_PublishMessage(self.as_ptr(), channel.as_ptr(), message.as_ptr())) };
        usize::try_from(heard).unwrap_or(0)
    }

    /// Publishes to the shard subscribers of this server and, in a cluster, of its shard. Returns how many of this
    /// server heard it.
    pub(crate) fn publish_shard(self, channel: &Str, message: &Str) -> usize {
        // SAFETY: context and strings outlive the call.
        let heard = unsafe {
            call!(RedisModule_PublishMessageShard(self.as_ptr(), channel.as_ptr(), message.as_ptr()))
        };
        usize::try_from(heard).unwrap_or(0)
    }

    /// How many have subscribed to exactly this channel at this server; `kind` is `NUMSUB` or `SHARDNUMSUB`. 0 if
    /// the server refuses to say.
    pub(crate) fn subscribers(self, kind: &CStr, channel: &Str) -> i64 {
        // SAFETY: "cs" takes a C string and one of the server's. The reply is null or the server's, its second element
        // null or a number; the other functions take both.
        unsafe {
            let (command, format) = (c"PUBSUB".as_ptr(), c"cs".as_ptr());
            let reply =
                call!(RedisModule_Call(self.as_ptr(), command, format, kind.as_ptr(), channel.as_ptr()));
            if reply.is_null() {
                return 0;
            }
            let number = call!(RedisModule_CallReplyArrayElement(reply, 1));
            let number = if number.is_null() { 0 } else { call!(RedisModule_CallReplyInteger(number)) };
            call!(RedisModule_FreeCallReply(reply));
            number
        }
    }

    /// The channels that begin like this and that somebody has subscribed to at this server; `kind` is `CHANNELS` or
    /// `SHARDCHANNELS`. None if the server refuses to say.
    pub(crate) fn channels(self, kind: &CStr, pattern: &CStr) -> Vec<Vec<u8>> {
        // SAFETY: "cc" takes two C strings. The reply is null or the server's, and so are its elements.
        unsafe {
            let (command, format) = (c"PUBSUB".as_ptr(), c"cc".as_ptr());
            let reply =
                call!(RedisModule_Call(self.as_ptr(), command, format, kind.as_ptr(), pattern.as_ptr()));
            if reply.is_null() {
                return Vec::new();
            }
            let len = call!(RedisModule_CallReplyLength(reply));
            let channels = (0..len).map(|at| text_of(call!(RedisModule_CallReplyArrayElement(reply, at))));
            let channels = channels.collect();
            call!(RedisModule_FreeCallReply(reply));
            channels
        }
    }

    /// False if the slot of these keys, which is one, is not served here (any more), or if it is on its way to or from
    /// another node and not all of them are here. Only to be asked in a cluster.
    pub(crate) fn serves_slot_of(self, keys: &[&Str<'_>]) -> bool {
        let argv: Vec<*mut raw::RedisModuleString> = keys.iter().map(|key| key.as_ptr()).collect();
        // SAFETY: "v" takes a list of strings with its length. A null reply is the server's refusal to touch a key
        // of another node, or one that migrates and is gone already.
        unsafe {
            let (list, len) = (argv.as_ptr(), argv.len());
            let reply = call!(RedisModule_Call(self.as_ptr(), c"EXISTS".as_ptr(), c"v".as_ptr(), list, len));
            if reply.is_null() {
                return false;
            }
            let kind = call!(RedisModule_CallReplyType(reply));
            call!(RedisModule_FreeCallReply(reply));
            kind == reply_type(raw::REDISMODULE_REPLY_INTEGER)
        }
    }

    /// A setting of the server; `None` if it has none of this name, or refuses to say.
    pub(super) fn setting(self, name: &CStr) -> Option<Vec<u8>> {
        // SAFETY: "cc" takes two C strings. The reply is null or the server's, and so are its elements, which come in pairs
        // of a name and a value; as an array, as no other kind of reply was asked for.
        unsafe {
            let (get, name) = (c"GET".as_ptr(), name.as_ptr());
            let reply = call!(RedisModule_Call(self.as_ptr(), c"CONFIG".as_ptr(), c"cc".as_ptr(), get, name));
            if reply.is_null() {
                return None;
            }
            let found = call!(RedisModule_CallReplyLength(reply)) == 2;
            let value = found.then(|| text_of(call!(RedisModule_CallReplyArrayElement(reply, 1))));
            call!(RedisModule_FreeCallReply(reply));
            value
        }
    }

    /// A warning in the server's log.
    pub(crate) fn warn(self, text: &str) {
        warn(self.as_ptr(), text);
    }

    /// A line in the server's log about something that is no fault.
    pub(crate) fn note(self, text: &str) {
        log(self.as_ptr(), c"notice", text);
    }
}

/// The text of a string or an error; empty if it is neither, or null.
///
/// # Safety
/// `reply` is null or a reply of the server.
pub(super) unsafe fn text_of(reply: *mut raw::RedisModuleCallReply) -> Vec<u8> {
    let mut len = 0;
    if reply.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's promise; the text of what has none is null, and any other lives as long as the reply.
    unsafe {
        let start = call!(RedisModule_CallReplyStringPtr(reply, &mut len));
        if start.is_null() {
            return Vec::new();
        }
        std::slice::from_raw_parts(start.cast::<u8>(), len).to_vec()
    }
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

/// The type of a reply as [`RedisModule_CallReplyType`](raw::RedisModule_CallReplyType) answers it.
pub(super) fn reply_type(constant: isize) -> c_int {
    c_int::try_from(constant).unwrap_or(c_int::MIN)
}
