// SPDX-License-Identifier: MIT

//! The calling client: its user, its address and its permissions.

use std::cell::{Cell, OnceCell};
use std::ffi::c_int;
use std::ptr;

use redis_module::raw;

use crate::server::calls::reply_type;
use crate::server::keys::string;
use crate::server::version::{self, Version};
use crate::server::{Ctx, ServerCell, Str, OK};

/// First version in which every server returns null for the name of a missing user. Most earlier versions crash.
const SAFE_USER_NAME_SINCE: Version = Version::new(8, 1, 0);

/// The user of an unrestricted connection, as printable by `CLIENT LIST`.
const NO_USER: &[u8] = b"(superuser)";

/// The id of the calling client if it is a connection.
///
/// Scripts and other modules call with a separate client, which the server does not list. Valkey 9
/// nevertheless finds such a client by its id. So on servers with unknown internals, the flags decide whether
/// a script is calling.
#[inline]
pub(crate) fn connection_id(ctx: Ctx<'_>) -> Option<u64> {
    static SCRIPT_CLIENTS_ARE_UNLISTED: ServerCell<OnceCell<bool>> = ServerCell::new(OnceCell::new());
    /// Ids of clients that were connected during an earlier call. An id is never reused, and a caller is still
    /// connected, so a cached id needs no further check.
    static SEEN: ServerCell<[Cell<u64>; 64]> = ServerCell::new([const { Cell::new(0) }; 64]);
    let script_clients_are_unlisted =
        || version::is_redis() && version::server_version().is_some_and(version::is_known_version);
    if !SCRIPT_CLIENTS_ARE_UNLISTED.get(ctx).get_or_init(script_clients_are_unlisted) && ctx.is_script() {
        return None;
    }
    let id = ctx.client_id();
    let seen = &SEEN.get(ctx)[(id % 64) as usize];
    if seen.get() != id || id == 0 {
        if !ctx.client_exists(id) {
            return None;
        }
        seen.set(id);
    }
    Some(id)
}

/// A client's line in `CLIENT LIST`; `None` if the id does not exist or the server lacks the command.
pub(in crate::server) fn client_list_line(ctx: Ctx<'_>, id: u64) -> Option<Vec<u8>> {
    let id = i64::try_from(id).ok()?;
    // SAFETY: "ccl" takes two C strings and a long long. The text is copied before the reply is freed.
    unsafe {
        let (list, by) = (c"LIST".as_ptr(), c"ID".as_ptr());
        let reply = call!(RedisModule_Call(ctx.as_ptr(), c"CLIENT".as_ptr(), c"ccl".as_ptr(), list, by, id));
        if reply.is_null() {
            return None;
        }
        let is_text = call!(RedisModule_CallReplyType(reply)) == reply_type(raw::REDISMODULE_REPLY_STRING);
        let mut len = 0;
        let text = call!(RedisModule_CallReplyStringPtr(reply, &mut len));
        let line =
            (is_text && !text.is_null()).then(|| std::slice::from_raw_parts(text.cast::<u8>(), len).to_vec());
        call!(RedisModule_FreeCallReply(reply));
        line
    }
}

/// A field of a line of `CLIENT LIST`. `name` includes the `=`.
pub(in crate::server) fn line_field<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    line.split(|byte| byte.is_ascii_whitespace()).find_map(|word| word.strip_prefix(name.as_bytes()))
}

/// The user of a connected client. `None` if the client is unrestricted.
pub(crate) fn user_of_client(ctx: Ctx<'_>, id: u64) -> Option<Vec<u8>> {
    // SAFETY: the context belongs to the running callback. The string, if any, is freed.
    unsafe { take_text(ctx, raw::RedisModule_GetClientUserNameById?(ctx.as_ptr(), id)) }
}

/// The calling client, as far as the server reports it.
pub(crate) struct Caller {
    /// Also `None` for an unrestricted client.
    user: Option<Vec<u8>>,
    address: Option<Vec<u8>>,
    /// Whether the client is known to have no user, and is therefore unrestricted.
    unrestricted: bool,
    is_closing: bool,
}

impl Caller {
    /// Queries the server, which is slow.
    pub(crate) fn of(ctx: Ctx<'_>) -> Caller {
        let line = client_list_line(ctx, ctx.client_id()).unwrap_or_default();
        let user = line_field(&line, "user=");
        // A real user may also have this name.
        let unrestricted = user == Some(NO_USER) && matches!(Access::of(NO_USER), Access::Nothing);
        // A script has no listed connection, but on some servers it has a user.
        let user = user.filter(|_| !unrestricted).map(<[u8]>::to_vec).or_else(|| user_name(ctx));
        let address = line_field(&line, "addr=").map(<[u8]>::to_vec);
        Caller { user, address, unrestricted, is_closing: line_is_closing(&line) }
    }

    /// True if the server has decided to close the client's connection, or does not report it.
    pub(in crate::server) fn is_closing(&self) -> bool {
        self.is_closing
    }

    pub(crate) fn user(&self) -> Option<&[u8]> {
        self.user.as_deref()
    }

    pub(crate) fn address(&self) -> Option<&[u8]> {
        self.address.as_deref()
    }

    /// The client's permissions for keys and channels.
    pub(crate) fn access(&self) -> Access {
        let Some(user) = &self.user else {
            return if self.unrestricted { Access::Everything } else { Access::Nothing };
        };
        Access::of(user)
    }
}

/// The name of the current user, on servers where the query is safe.
fn user_name(ctx: Ctx<'_>) -> Option<Vec<u8>> {
    if version::server_version()? < SAFE_USER_NAME_SINCE {
        return None;
    }
    // SAFETY: the context belongs to the running callback. The string, if any, is freed.
    unsafe { take_text(ctx, raw::RedisModule_GetCurrentUserName?(ctx.as_ptr())) }
}

/// Copies and frees a string of the server.
///
/// # Safety
///
/// A string that is not null is valid, and nothing else frees it.
pub(super) unsafe fn take_text(ctx: Ctx<'_>, text: *mut raw::RedisModuleString) -> Option<Vec<u8>> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller promises that the string is valid and not used again.
    unsafe {
        let bytes = string::bytes(text).to_vec();
        call!(RedisModule_FreeString(ctx.as_ptr(), text));
        Some(bytes)
    }
}

/// Permissions for keys, channels and commands. Must not be kept beyond the callback, because users can be deleted.
pub(crate) enum Access {
    Everything,
    Nothing,
    User(*mut raw::RedisModuleUser),
}

impl Access {
    /// The permissions of the user with this name.
    fn of(user: &[u8]) -> Access {
        // SAFETY: the name outlives the call. The result is null if the user does not exist.
        let user = unsafe { call!(RedisModule_GetModuleUserFromUserName(Str::new(user).as_ptr())) };
        if user.is_null() {
            return Access::Nothing;
        }
        Access::User(user)
    }

    pub(crate) fn may_read(&self, key: &[u8]) -> bool {
        self.may_access_key(key, raw::REDISMODULE_CMD_KEY_ACCESS)
    }

    pub(crate) fn may_write(&self, key: &[u8]) -> bool {
        self.may_access_key(key, raw::REDISMODULE_CMD_KEY_UPDATE)
    }

    /// Sets this user in the context while `body` runs. Only for servers that support it, which
    /// [`deferred`](super::deferred) checks.
    pub(in crate::server) fn with_user<T>(&self, ctx: Ctx<'_>, body: impl FnOnce() -> T) -> T {
        struct UserReset<'a>(Ctx<'a>);
        impl Drop for UserReset<'_> {
            fn drop(&mut self) {
                set(self.0, ptr::null());
            }
        }
        fn set(ctx: Ctx<'_>, user: *const raw::RedisModuleUser) {
            // SAFETY: the context is alive. The user is null or outlives its use in the context.
            unsafe { raw::RedisModule_SetContextUser.map(|set| set(ctx.as_ptr(), user)) };
        }
        let Access::User(user) = self else { return body() };
        set(ctx, *user);
        let _reset = UserReset(ctx);
        body()
    }

    /// Whether the user may call a command with its keys and channels. `words` has the command's name and at least its
    /// minimum of arguments.
    pub(in crate::server) fn may_call(&self, words: &mut [*mut raw::RedisModuleString]) -> bool {
        match self {
            Access::Everything => true,
            Access::Nothing => false,
            Access::User(user) => {
                let len = c_int::try_from(words.len()).unwrap_or(0);
                // SAFETY: the user was found in this callback. The pointer and the length belong to an array of
                // strings.
                unsafe { call!(RedisModule_ACLCheckCommandPermissions(*user, words.as_mut_ptr(), len)) == OK }
            }
        }
    }

    fn may_access_key(&self, key: &[u8], permission: u32) -> bool {
        match self {
            Access::Everything => true,
            Access::Nothing => false,
            Access::User(user) => {
                let key = Str::new(key);
                let flags = i32::try_from(permission).unwrap_or(0);
                // SAFETY: the user was found in this callback. The key outlives the call.
                unsafe { call!(RedisModule_ACLCheckKeyPermissions(*user, key.as_ptr(), flags)) == OK }
            }
        }
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        if let Access::User(user) = self {
            // SAFETY: the object was made by `of` and is freed once. The server's user stays.
            unsafe { call!(RedisModule_FreeModuleUser(*user)) };
        }
    }
}

/// True if the server has decided to close this client's connection, or does not report it.
pub(crate) fn is_closing(ctx: Ctx<'_>, id: u64) -> bool {
    client_list_line(ctx, id).is_none_or(|line| line_is_closing(&line))
}

fn line_is_closing(line: &[u8]) -> bool {
    line_field(line, "flags=").is_none_or(|flags| flags.contains(&b'A'))
}

#[cfg(test)]
mod tests {
    use super::line_field;

    #[test]
    fn fields_match_by_their_whole_name() {
        let line = b"id=3 addr=1.2.3.4:5 laddr=1.2.3.4:6 name=user=x user=app db=0\n";
        assert_eq!(line_field(line, "addr="), Some(&b"1.2.3.4:5"[..]));
        assert_eq!(line_field(line, "user="), Some(&b"app"[..]));
        assert_eq!(line_field(line, "fd="), None);
    }
}
