// SPDX-License-Identifier: MIT

//! What is asked of the server by commands of its own, and what is published through it.

use std::ffi::{c_int, c_longlong, CStr};

use redis_module::raw;

use crate::server::version::{server_version, Version};
use crate::server::{Ctx, Str};

/// Since when a command can be tried without being carried out.
const DRY_RUN_SINCE: Version = Version::new(7, 2, 0);

/// Why nothing may be written but by a client's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// This is a replica, loads a file, or clients are paused: a write would end the server.
    Paused,
    /// The server refuses the writes of all clients. That may last.
    Refused,
}

/// What keeps a callback that no command of a client led to from writing now.
pub(crate) fn obstacle(ctx: Ctx<'_>) -> Option<Obstacle> {
    if ctx.is_paused() || !ctx.flags().is_primary() || ctx.flags().is_loading() {
        return Some(Obstacle::Paused);
    }
    refuses_writes(ctx).then_some(Obstacle::Refused)
}

/// True if the server answers every client's write with an error: too few replicas follow
/// (`min-replicas-to-write`), or a disk error stops writes (`MISCONF`).
fn refuses_writes(ctx: Ctx<'_>) -> bool {
    // Servers since 7.2 only try whether a command would be let through ("D"). 7.0 carries it out: so it is one that
    // changes no key, whatever it is. No TTL is later than the latest.
    let can_try = server_version().is_some_and(|version| version >= DRY_RUN_SINCE);
    let format = if can_try { c"SDclcc" } else { c"Sclcc" };
    // SAFETY: the format takes a C string, a number and two C strings. The reply is null or the server's.
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

/// Publishes to the subscribers of this server and, in a cluster, of all its nodes. Returns how many of this
/// server heard it.
pub(crate) fn publish(ctx: Ctx<'_>, channel: &Str, message: &Str) -> usize {
    // SAFETY: context and strings outlive the call.
    let heard =
        unsafe { call!(RedisModule_PublishMessage(ctx.as_ptr(), channel.as_ptr(), message.as_ptr())) };
    usize::try_from(heard).unwrap_or(0)
}

/// Publishes to the shard subscribers of this server and, in a cluster, of its shard. Returns how many of this
/// server heard it.
pub(crate) fn publish_shard(ctx: Ctx<'_>, channel: &Str, message: &Str) -> usize {
    // SAFETY: context and strings outlive the call.
    let heard =
        unsafe { call!(RedisModule_PublishMessageShard(ctx.as_ptr(), channel.as_ptr(), message.as_ptr())) };
    usize::try_from(heard).unwrap_or(0)
}

/// How many have subscribed to exactly this channel at this server; `kind` is `NUMSUB` or `SHARDNUMSUB`. 0 if
/// the server refuses to say.
pub(crate) fn subscribers(ctx: Ctx<'_>, kind: &CStr, channel: &Str) -> i64 {
    // SAFETY: "cs" takes a C string and one of the server's. The reply is null or the server's, its second element
    // null or a number; the other functions take both.
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

/// What `SCAN` replies of hashes: the next cursor, and keys. Its error if it refuses.
pub(crate) fn scan(
    ctx: Ctx<'_>,
    cursor: &Str<'_>,
    pattern: &Str<'_>,
    count: usize,
) -> Result<(Vec<u8>, Vec<Vec<u8>>), String> {
    let count = c_longlong::try_from(count).unwrap_or(c_longlong::MAX);
    // SAFETY: "s" takes a string of the server's, "c" a C string, "l" a number; "E": a refusal is a reply, too. The reply is null or
    // the server's, and so are its elements.
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

/// The channels that begin like this and that somebody has subscribed to at this server; `kind` is `CHANNELS` or
/// `SHARDCHANNELS`. None if the server refuses to say.
pub(crate) fn channels(ctx: Ctx<'_>, kind: &CStr, pattern: &CStr) -> Vec<Vec<u8>> {
    // SAFETY: "cc" takes two C strings. The reply is null or the server's.
    unsafe {
        let (command, format) = (c"PUBSUB".as_ptr(), c"cc".as_ptr());
        let reply = call!(RedisModule_Call(ctx.as_ptr(), command, format, kind.as_ptr(), pattern.as_ptr()));
        take_texts(reply)
    }
}

/// The rules of all users. None if the server refuses to say.
pub(super) fn acl_rules(ctx: Ctx<'_>) -> Vec<Vec<u8>> {
    // SAFETY: "c" takes a C string. The reply is null or the server's.
    unsafe {
        let (command, list) = (c"ACL".as_ptr(), c"LIST".as_ptr());
        let reply = call!(RedisModule_Call(ctx.as_ptr(), command, c"c".as_ptr(), list));
        take_texts(reply)
    }
}

/// False if the slot of these keys, which is one, is not served here (any more), or if it is on its way to or from
/// another node and not all of them are here. Only to be asked in a cluster.
pub(crate) fn serves_slot_of(ctx: Ctx<'_>, keys: &[&Str<'_>]) -> bool {
    let argv: Vec<*mut raw::RedisModuleString> = keys.iter().map(|key| key.as_ptr()).collect();
    // SAFETY: "v" takes a list of strings with its length. A null reply is the server's refusal to touch a key
    // of another node, or one that migrates and is gone already.
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

/// The slot of a key in a cluster; `None` if the server refuses to say.
pub(crate) fn slot_of(ctx: Ctx<'_>, key: &Str<'_>) -> Option<i64> {
    // SAFETY: "cs" takes a C string and one of the server's. The reply is null or the server's.
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

/// A setting of the server; `None` if it has none of this name, or refuses to say.
pub(crate) fn setting(ctx: Ctx<'_>, name: &CStr) -> Option<Vec<u8>> {
    // SAFETY: "cc" takes two C strings. The reply is null or the server's, and so are its elements, which come in pairs
    // of a name and a value; as an array, as no other kind of reply was asked for.
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

/// The setting that says after how many milliseconds the server goes on reading from clients although a script still runs.
const PATIENCE: &CStr = c"busy-reply-threshold";

/// Does something during which the server waits for a script however long it runs. `None`, and nothing was done, if it does not
/// let that be set.
pub(super) fn with_patience<T>(ctx: Ctx<'_>, body: impl FnOnce() -> T) -> Option<T> {
    struct Before<'a>(Ctx<'a>, Str<'static>);
    impl Drop for Before<'_> {
        fn drop(&mut self) {
            set(self.0, PATIENCE, &self.1);
        }
    }
    let before = Str::new(&setting(ctx, PATIENCE)?);
    // Not 0, which means the same on some servers only.
    if !set(ctx, PATIENCE, &Str::from_number(i64::MAX)) {
        return None;
    }
    let _before = Before(ctx, before);
    Some(body())
}

/// Changes a setting of the server. False if it refuses.
fn set(ctx: Ctx<'_>, name: &CStr, value: &Str<'_>) -> bool {
    // SAFETY: "ccs" takes two C strings and one of the server's. The reply is null or the server's.
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

/// The texts in an array; none if it is none, or null.
///
/// # Safety
/// `reply` is null or a reply of the server.
unsafe fn texts_of(reply: *mut raw::RedisModuleCallReply) -> Vec<Vec<u8>> {
    if reply.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's promise; elements are null or the server's, and live as long as the array.
    unsafe {
        let len = call!(RedisModule_CallReplyLength(reply));
        (0..len).map(|at| text_of(call!(RedisModule_CallReplyArrayElement(reply, at)))).collect()
    }
}

/// The same, and frees it.
///
/// # Safety
/// `reply` is null or a reply of the server that is not used any more.
unsafe fn take_texts(reply: *mut raw::RedisModuleCallReply) -> Vec<Vec<u8>> {
    // SAFETY: the caller's promise.
    unsafe {
        let texts = texts_of(reply);
        if !reply.is_null() {
            call!(RedisModule_FreeCallReply(reply));
        }
        texts
    }
}

/// The type of a reply as [`RedisModule_CallReplyType`](raw::RedisModule_CallReplyType) answers it.
pub(super) fn reply_type(constant: isize) -> c_int {
    c_int::try_from(constant).unwrap_or(c_int::MIN)
}
