// SPDX-License-Identifier: MIT

//! Calls of the server's own commands, and publishing.

use std::ffi::{c_int, c_longlong, CStr};

use redis_module::raw;

use crate::server::version::{server_version, Version};
use crate::server::{Ctx, Str};

/// First version that can check a command without executing it.
const DRY_RUN_SINCE: Version = Version::new(7, 2, 0);

/// An obstacle to writing outside of a client's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// This server is a replica, is loading a file, or has paused its clients. A write would crash it.
    Paused,
    /// The server refuses the writes of all clients, possibly for a long time.
    Refused,
}

/// Returns the obstacle that prevents a callback without a client's command from writing now.
pub(crate) fn obstacle(ctx: Ctx<'_>) -> Option<Obstacle> {
    if ctx.is_paused() || !ctx.flags().is_primary() || ctx.flags().is_loading() {
        return Some(Obstacle::Paused);
    }
    refuses_writes(ctx).then_some(Obstacle::Refused)
}

/// True if the server refuses every client's write: too few replicas follow (`min-replicas-to-write`), or a disk error
/// stops writes (`MISCONF`).
fn refuses_writes(ctx: Ctx<'_>) -> bool {
    // Since 7.2, a server can check whether it would accept a command ("D"). Redis 7.0 executes the command,
    // so the command must never change a key: `XX LT` with the greatest time only replaces a later TTL, and
    // there is none.
    let can_try = server_version().is_some_and(|version| version >= DRY_RUN_SINCE);
    let format = if can_try { c"SDclcc" } else { c"Sclcc" };
    // SAFETY: the format takes a C string, a number and two C strings. The reply is null or valid.
    unsafe {
        let (command, key) = (c"PEXPIREAT".as_ptr(), c"lock".as_ptr());
        let (only_with_ttl, only_earlier) = (c"XX".as_ptr(), c"LT".as_ptr());
        let reply = call!(RedisModule_Call(
            ctx.as_ptr(),
            command,
            format.as_ptr(),
            key,
            c_longlong::MAX,
            only_with_ttl,
            only_earlier
        ));
        // The command is refused like that of a script ("S"). Other errors, such as a key on another node,
        // are detected later. A mere check has a reply only on errors. An executed command has no reply if it
        // was refused.
        let errno = std::io::Error::last_os_error().raw_os_error();
        let refused = reply.is_null() != can_try && errno == Some(libc::ESPIPE);
        if !reply.is_null() {
            call!(RedisModule_FreeCallReply(reply));
        }
        refused
    }
}

/// Publishes a message to the subscribers of this server and, in a cluster, of all nodes. Returns the number of
/// receivers at this server.
pub(crate) fn publish(ctx: Ctx<'_>, channel: &Str, message: &Str) -> usize {
    // SAFETY: the context and the strings outlive the call.
    let receivers =
        unsafe { call!(RedisModule_PublishMessage(ctx.as_ptr(), channel.as_ptr(), message.as_ptr())) };
    usize::try_from(receivers).unwrap_or(0)
}

/// Publishes a message to the shard subscribers of this server and, in a cluster, of its shard. Returns the number of
/// receivers at this server.
pub(crate) fn publish_shard(ctx: Ctx<'_>, channel: &Str, message: &Str) -> usize {
    // SAFETY: the context and the strings outlive the call.
    let receivers =
        unsafe { call!(RedisModule_PublishMessageShard(ctx.as_ptr(), channel.as_ptr(), message.as_ptr())) };
    usize::try_from(receivers).unwrap_or(0)
}

/// Number of subscribers of exactly this channel at this server; 0 if the server refuses to answer. `kind` is `NUMSUB`
/// or `SHARDNUMSUB`.
pub(crate) fn subscribers(ctx: Ctx<'_>, kind: &CStr, channel: &Str) -> i64 {
    // SAFETY: "cs" takes a C string and a server string. The reply is null or valid, and its second element is null or
    // a number. The other functions accept both.
    unsafe {
        let (command, format) = (c"PUBSUB".as_ptr(), c"cs".as_ptr());
        let reply = call!(RedisModule_Call(ctx.as_ptr(), command, format, kind.as_ptr(), channel.as_ptr()));
        if reply.is_null() {
            return 0;
        }
        let number = call!(RedisModule_CallReplyArrayElement(reply, 1));
        let number = if number.is_null() { 0 } else { call!(RedisModule_CallReplyInteger(number)) };
        call!(RedisModule_FreeCallReply(reply));
        number
    }
}

/// Runs `SCAN` for hashes. Returns the next cursor and the keys, or the server's error.
pub(crate) fn scan(
    ctx: Ctx<'_>,
    cursor: &Str<'_>,
    pattern: &Str<'_>,
    count: usize,
) -> Result<(Vec<u8>, Vec<Vec<u8>>), String> {
    let count = c_longlong::try_from(count).unwrap_or(c_longlong::MAX);
    // SAFETY: "s" takes a server string, "c" a C string, "l" a number; with "E", a refusal is a reply. The reply and
    // its elements are null or valid.
    unsafe {
        let (command, format) = (c"SCAN".as_ptr(), c"scsclccE".as_ptr());
        let (matches, counts, kind, hash) =
            (c"MATCH".as_ptr(), c"COUNT".as_ptr(), c"TYPE".as_ptr(), c"hash".as_ptr());
        let (at, like) = (cursor.as_ptr(), pattern.as_ptr());
        let reply = call!(RedisModule_Call(
            ctx.as_ptr(),
            command,
            format,
            at,
            matches,
            like,
            counts,
            count,
            kind,
            hash
        ));
        if reply.is_null() {
            return Err("ERR server cannot run SCAN; do not rename the command".to_owned());
        }
        let found = if call!(RedisModule_CallReplyType(reply)) == reply_type(raw::REDISMODULE_REPLY_ERROR) {
            Err(String::from_utf8_lossy(&text_of(reply)).into_owned())
        } else {
            let keys = texts_of(call!(RedisModule_CallReplyArrayElement(reply, 1)));
            Ok((text_of(call!(RedisModule_CallReplyArrayElement(reply, 0))), keys))
        };
        call!(RedisModule_FreeCallReply(reply));
        found
    }
}

/// Channels that match `pattern` and have subscribers at this server; empty if the server refuses to answer. `kind` is
/// `CHANNELS` or `SHARDCHANNELS`.
pub(crate) fn channels(ctx: Ctx<'_>, kind: &CStr, pattern: &CStr) -> Vec<Vec<u8>> {
    // SAFETY: "cc" takes two C strings. The reply is null or valid.
    unsafe {
        let (command, format) = (c"PUBSUB".as_ptr(), c"cc".as_ptr());
        let reply = call!(RedisModule_Call(ctx.as_ptr(), command, format, kind.as_ptr(), pattern.as_ptr()));
        take_texts(reply)
    }
}

/// The ACL rules of all users; empty if the server refuses to answer.
pub(super) fn acl_rules(ctx: Ctx<'_>) -> Vec<Vec<u8>> {
    // SAFETY: "c" takes a C string. The reply is null or valid.
    unsafe {
        let (command, list) = (c"ACL".as_ptr(), c"LIST".as_ptr());
        let reply = call!(RedisModule_Call(ctx.as_ptr(), command, c"c".as_ptr(), list));
        take_texts(reply)
    }
}

/// Whether this server serves the slot of these keys, and has all of them if the slot is migrating. All keys
/// must be in one slot. For clusters only.
pub(crate) fn serves_slot_of(ctx: Ctx<'_>, keys: &[&Str<'_>]) -> bool {
    let argv: Vec<*mut raw::RedisModuleString> = keys.iter().map(|key| key.as_ptr()).collect();
    // SAFETY: "v" takes an array of strings and its length. A null reply means that the server refuses to touch a key
    // of another node, or one that has already migrated.
    unsafe {
        let (list, len) = (argv.as_ptr(), argv.len());
        let reply = call!(RedisModule_Call(ctx.as_ptr(), c"EXISTS".as_ptr(), c"v".as_ptr(), list, len));
        if reply.is_null() {
            return false;
        }
        let kind = call!(RedisModule_CallReplyType(reply));
        call!(RedisModule_FreeCallReply(reply));
        kind == reply_type(raw::REDISMODULE_REPLY_INTEGER)
    }
}

/// The slot of a key in a cluster; `None` if the server refuses to answer.
pub(crate) fn slot_of(ctx: Ctx<'_>, key: &Str<'_>) -> Option<i64> {
    // SAFETY: "cs" takes a C string and a server string. The reply is null or valid.
    unsafe {
        let (command, keyslot) = (c"CLUSTER".as_ptr(), c"KEYSLOT".as_ptr());
        let reply = call!(RedisModule_Call(ctx.as_ptr(), command, c"cs".as_ptr(), keyslot, key.as_ptr()));
        if reply.is_null() {
            return None;
        }
        let is_number = call!(RedisModule_CallReplyType(reply)) == reply_type(raw::REDISMODULE_REPLY_INTEGER);
        let slot = is_number.then(|| call!(RedisModule_CallReplyInteger(reply)));
        call!(RedisModule_FreeCallReply(reply));
        slot
    }
}

/// Whether the server knows a command by this name. An operator may have renamed it.
pub(crate) fn knows_command(ctx: Ctx<'_>, name: &CStr) -> bool {
    original_name(ctx, name).is_some()
}

/// The names of the loaded modules; empty if the server refuses to answer.
pub(in crate::server) fn modules(ctx: Ctx<'_>) -> Vec<Vec<u8>> {
    // SAFETY: "c" takes a C string. The reply is null or an array with an array for each module. That array begins with
    // "name" and the name.
    unsafe {
        let reply =
            call!(RedisModule_Call(ctx.as_ptr(), c"MODULE".as_ptr(), c"c".as_ptr(), c"LIST".as_ptr()));
        if reply.is_null() {
            return Vec::new();
        }
        let module = |at| call!(RedisModule_CallReplyArrayElement(reply, at));
        let name = |module| text_of(call!(RedisModule_CallReplyArrayElement(module, 1)));
        let names = (0..call!(RedisModule_CallReplyLength(reply)))
            .map(module)
            .filter(|module| !module.is_null())
            .map(name)
            .collect();
        call!(RedisModule_FreeCallReply(reply));
        names
    }
}

/// The original name of the command that is called `name` at this server; `None` if it does not exist or the server
/// refuses to answer.
pub(in crate::server) fn original_name(ctx: Ctx<'_>, name: &CStr) -> Option<Vec<u8>> {
    // SAFETY: "cc" takes two C strings. The reply is an array with one element: null if the command does not exist,
    // otherwise an array that begins with the name.
    unsafe {
        let (command, info) = (c"COMMAND".as_ptr(), c"INFO".as_ptr());
        let reply = call!(RedisModule_Call(ctx.as_ptr(), command, c"cc".as_ptr(), info, name.as_ptr()));
        if reply.is_null() {
            return None;
        }
        let entry = call!(RedisModule_CallReplyArrayElement(reply, 0));
        let is_there = !entry.is_null()
            && call!(RedisModule_CallReplyType(entry)) == reply_type(raw::REDISMODULE_REPLY_ARRAY);
        let original = is_there.then(|| text_of(call!(RedisModule_CallReplyArrayElement(entry, 0))));
        call!(RedisModule_FreeCallReply(reply));
        original
    }
}

/// The value of a server setting; `None` if it does not exist or the server refuses to answer.
pub(crate) fn setting(ctx: Ctx<'_>, name: &CStr) -> Option<Vec<u8>> {
    // SAFETY: "cc" takes two C strings. The reply and its elements are null or valid. It is an array of names and
    // values, because no other reply type was requested.
    unsafe {
        let (get, name) = (c"GET".as_ptr(), name.as_ptr());
        let reply = call!(RedisModule_Call(ctx.as_ptr(), c"CONFIG".as_ptr(), c"cc".as_ptr(), get, name));
        if reply.is_null() {
            return None;
        }
        let found = call!(RedisModule_CallReplyLength(reply)) == 2;
        let value = found.then(|| text_of(call!(RedisModule_CallReplyArrayElement(reply, 1))));
        call!(RedisModule_FreeCallReply(reply));
        value
    }
}

/// The setting for the time in milliseconds after which the server reads from clients while a script is still
/// running.
const BUSY_THRESHOLD: &CStr = c"busy-reply-threshold";

/// Runs `body` while scripts have no time limit. Returns `None` without running it if the server refuses to
/// change the setting.
pub(super) fn with_unlimited_script_time<T>(ctx: Ctx<'_>, body: impl FnOnce() -> T) -> Option<T> {
    struct SettingReset<'a>(Ctx<'a>, Str<'static>);
    impl Drop for SettingReset<'_> {
        fn drop(&mut self) {
            set_setting(self.0, BUSY_THRESHOLD, &self.1);
        }
    }
    let before = Str::new(&setting(ctx, BUSY_THRESHOLD)?);
    // 0 means "no limit" only on some servers.
    if !set_setting(ctx, BUSY_THRESHOLD, &Str::from_number(i64::MAX)) {
        return None;
    }
    let _before = SettingReset(ctx, before);
    Some(body())
}

/// Changes a server setting. False if the server refuses.
fn set_setting(ctx: Ctx<'_>, name: &CStr, value: &Str<'_>) -> bool {
    // SAFETY: "ccs" takes two C strings and a server string. The reply is null or valid.
    unsafe {
        let (command, set, name) = (c"CONFIG".as_ptr(), c"SET".as_ptr(), name.as_ptr());
        let reply =
            call!(RedisModule_Call(ctx.as_ptr(), command, c"ccs".as_ptr(), set, name, value.as_ptr()));
        if reply.is_null() {
            return false;
        }
        let done = call!(RedisModule_CallReplyType(reply)) != reply_type(raw::REDISMODULE_REPLY_ERROR);
        call!(RedisModule_FreeCallReply(reply));
        done
    }
}

/// The text of a string or an error; empty for null and all other types.
///
/// # Safety
/// `reply` is null or a reply of the server.
pub(super) unsafe fn text_of(reply: *mut raw::RedisModuleCallReply) -> Vec<u8> {
    let mut len = 0;
    if reply.is_null() {
        return Vec::new();
    }
    // SAFETY: guaranteed by the caller. Other types have a null text; a non-null text lives as long as the reply.
    unsafe {
        let start = call!(RedisModule_CallReplyStringPtr(reply, &mut len));
        if start.is_null() {
            return Vec::new();
        }
        std::slice::from_raw_parts(start.cast::<u8>(), len).to_vec()
    }
}

/// The texts of an array's elements; empty for null and all other types.
///
/// # Safety
/// `reply` is null or a reply of the server.
unsafe fn texts_of(reply: *mut raw::RedisModuleCallReply) -> Vec<Vec<u8>> {
    if reply.is_null() {
        return Vec::new();
    }
    // SAFETY: guaranteed by the caller. Elements are null or valid, and live as long as the array.
    unsafe {
        let len = call!(RedisModule_CallReplyLength(reply));
        (0..len).map(|at| text_of(call!(RedisModule_CallReplyArrayElement(reply, at)))).collect()
    }
}

/// Returns the texts of an array's elements and frees the array.
///
/// # Safety
/// `reply` is null or a reply of the server that is no longer used.
unsafe fn take_texts(reply: *mut raw::RedisModuleCallReply) -> Vec<Vec<u8>> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let texts = texts_of(reply);
        if !reply.is_null() {
            call!(RedisModule_FreeCallReply(reply));
        }
        texts
    }
}

/// Converts a constant to the type that [`RedisModule_CallReplyType`](raw::RedisModule_CallReplyType) returns.
pub(super) fn reply_type(constant: isize) -> c_int {
    c_int::try_from(constant).unwrap_or(c_int::MIN)
}
