// SPDX-License-Identifier: MIT

//! Who calls: the user, the address, and what that user may read.

use std::cell::{Cell, OnceCell};
use std::ffi::c_int;
use std::ptr;

use redis_module::raw;

use crate::server::calls::reply_type;
use crate::server::keys::string;
use crate::server::version::{self, Version};
use crate::server::{Ctx, ServerCell, Str, OK};

/// Since when every server answers null for the name of a user that there is not: before, most end.
const SAFE_USER_NAME_SINCE: Version = Version::new(8, 1, 0);

/// `REDISMODULE_CMD_CHANNEL_SUBSCRIBE`, which the bindings leave out.
const CHANNEL_SUBSCRIBE: u64 = 1 << 2;

/// What `CLIENT LIST` calls the user of a connection that may do everything.
const NO_USER: &[u8] = b"(superuser)";

/// The client that calls, by its id, if it is a connection. Another module calls as a client of its own, and so does a script: that
/// client is none of those that the server lists. Valkey 9 finds it there all the same. So where that is not known, it is asked
/// whether a script calls.
#[inline]
pub(crate) fn connection(ctx: Ctx<'_>) -> Option<u64> {
    static SCRIPT_CLIENTS_ARE_UNLISTED: ServerCell<OnceCell<bool>> = ServerCell::new(OnceCell::new());
    /// Ids of clients that were connected when they called. No id is ever another client's, and who calls is connected still: so
    /// it needs not be asked again.
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

/// A client's line in `CLIENT LIST`; `None` if there is none with this id, or if the server has no such command.
pub(in crate::server) fn client_list_line(ctx: Ctx<'_>, id: u64) -> Option<Vec<u8>> {
    let id = i64::try_from(id).ok()?;
    // SAFETY: "ccl" takes two C strings and a long long; the reply is freed here, and its text copied before.
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

/// A field of such a line; `name` is with the `=`.
pub(in crate::server) fn line_field<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    line.split(|byte| byte.is_ascii_whitespace()).find_map(|word| word.strip_prefix(name.as_bytes()))
}

/// Who calls, as far as the server says.
pub(crate) struct Caller {
    /// `None` too for who may do everything.
    user: Option<Vec<u8>>,
    address: Option<Vec<u8>>,
    /// It is known to have no user, and so may do everything.
    unrestricted: bool,
    is_closing: bool,
}

impl Caller {
    /// Asks the server: not for where it has to be fast.
    pub(crate) fn of(ctx: Ctx<'_>) -> Caller {
        let line = client_list_line(ctx, ctx.client_id()).unwrap_or_default();
        let user = line_field(&line, "user=");
        // A user may be called so, too.
        let unrestricted = user == Some(NO_USER) && matches!(Access::of(NO_USER), Access::Nothing);
        // A script has no connection that is listed, but on some servers a user.
        let user = user.filter(|_| !unrestricted).map(<[u8]>::to_vec).or_else(|| user_name(ctx));
        let address = line_field(&line, "addr=").map(<[u8]>::to_vec);
        Caller { user, address, unrestricted, is_closing: line_is_closing(&line) }
    }

    /// True if the server has decided to close its connection, or does not say.
    pub(in crate::server) fn is_closing(&self) -> bool {
        self.is_closing
    }

    pub(crate) fn user(&self) -> Option<&[u8]> {
        self.user.as_deref()
    }

    pub(crate) fn address(&self) -> Option<&[u8]> {
        self.address.as_deref()
    }

    /// What it may read and write.
    pub(crate) fn access(&self) -> Access {
        let Some(user) = &self.user else {
            return if self.unrestricted { Access::Everything } else { Access::Nothing };
        };
        Access::of(user)
    }
}

/// The name of the user, where to ask for it is safe.
fn user_name(ctx: Ctx<'_>) -> Option<Vec<u8>> {
    if version::server_version()? < SAFE_USER_NAME_SINCE {
        return None;
    }
    // SAFETY: the context is that of the running callback; the string, if there is one, is ours to free.
    unsafe {
        let name = raw::RedisModule_GetCurrentUserName?(ctx.as_ptr());
        if name.is_null() {
            return None;
        }
        let text = string::bytes(name).to_vec();
        call!(RedisModule_FreeString(ctx.as_ptr(), name));
        Some(text)
    }
}

/// Which keys somebody may read, and write. Not to be kept beyond the callback: users can be deleted.
pub(crate) enum Access {
    Everything,
    Nothing,
    User(*mut raw::RedisModuleUser),
}

impl Access {
    /// That of the user with this name.
    fn of(user: &[u8]) -> Access {
        // SAFETY: the name outlives the call; null is the answer for a user that there is not any more.
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

    pub(crate) fn may_subscribe(&self, channel: &Str<'_>) -> bool {
        match self {
            Access::Everything => true,
            Access::Nothing => false,
            Access::User(user) => {
                let what = i32::try_from(CHANNEL_SUBSCRIBE).unwrap_or(0);
                // SAFETY: the user was found in this callback; the channel outlives the call.
                unsafe { call!(RedisModule_ACLCheckChannelPermissions(*user, channel.as_ptr(), what)) == OK }
            }
        }
    }

    /// Gives the context this user for as long as `body` runs. Only for servers that can do so ([`deferred`](super::deferred) asks).
    pub(in crate::server) fn with_user<T>(&self, ctx: Ctx<'_>, body: impl FnOnce() -> T) -> T {
        struct UserReset<'a>(Ctx<'a>);
        impl Drop for UserReset<'_> {
            fn drop(&mut self) {
                set(self.0, ptr::null());
            }
        }
        fn set(ctx: Ctx<'_>, user: *const raw::RedisModuleUser) {
            // SAFETY: the context is alive; the user is null, or outlives what it is lent for.
            unsafe { raw::RedisModule_SetContextUser.map(|set| set(ctx.as_ptr(), user)) };
        }
        let Access::User(user) = self else { return body() };
        set(ctx, *user);
        let _reset = UserReset(ctx);
        body()
    }

    /// Whether this command may be called with these keys and channels: its name and as many arguments as it needs at least.
    pub(in crate::server) fn may_call(&self, words: &mut [*mut raw::RedisModuleString]) -> bool {
        match self {
            Access::Everything => true,
            Access::Nothing => false,
            Access::User(user) => {
                let len = c_int::try_from(words.len()).unwrap_or(0);
                // SAFETY: the user was found in this callback; pointer and length are those of a list of strings.
                unsafe { call!(RedisModule_ACLCheckCommandPermissions(*user, words.as_mut_ptr(), len)) == OK }
            }
        }
    }

    fn may_access_key(&self, key: &[u8], what: u32) -> bool {
        match self {
            Access::Everything => true,
            Access::Nothing => false,
            Access::User(user) => {
                let key = Str::new(key);
                let flags = i32::try_from(what).unwrap_or(0);
                // SAFETY: the user was found in this callback; the key outlives the call.
                unsafe { call!(RedisModule_ACLCheckKeyPermissions(*user, key.as_ptr(), flags)) == OK }
            }
        }
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        if let Access::User(user) = self {
            // SAFETY: it was made by `access` and is freed once; the server's user stays.
            unsafe { call!(RedisModule_FreeModuleUser(*user)) };
        }
    }
}

/// True if the server has decided to close the connection of this client, or does not say.
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
    fn a_field_is_found_by_its_whole_name() {
        let line = b"id=3 addr=1.2.3.4:5 laddr=1.2.3.4:6 name=user=x user=app db=0\n";
        assert_eq!(line_field(line, "addr="), Some(&b"1.2.3.4:5"[..]));
        assert_eq!(line_field(line, "user="), Some(&b"app"[..]));
        assert_eq!(line_field(line, "fd="), None);
    }
}
