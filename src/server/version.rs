// SPDX-License-Identifier: MIT

//! Which server this is.

use std::ffi::CStr;

use redis_module::raw;

use crate::server::keys::string;

/// A version as `RedisModule_GetServerVersion` packs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(i32);

impl Version {
    pub(crate) const fn new(major: u8, minor: u8, patch: u8) -> Version {
        Version(((major as i32) << 16) | ((minor as i32) << 8) | patch as i32)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0 >> 16, (self.0 >> 8) & 0xff, self.0 & 0xff)
    }
}

/// What rests on how servers work, and not only on what they promise, is not done on this one and later. The sources of
/// Redis 7.0, 8.0 and 8.6 were read for it, and those of Valkey 8.1 and 9.1.
const REDIS_KNOWN_UNTIL: Version = Version::new(9, 0, 0);
const VALKEY_KNOWN_UNTIL: Version = Version::new(9, 2, 0);

/// True if it is known how this server works.
pub(super) fn is_known_version(server: Version) -> bool {
    server < if is_redis() { REDIS_KNOWN_UNTIL } else { VALKEY_KNOWN_UNTIL }
}

/// The version of the server; `None` if it is too old to say (before 6.0.9).
pub(crate) fn server_version() -> Option<Version> {
    // SAFETY: the function only returns a constant.
    unsafe { raw::RedisModule_GetServerVersion.map(|version| Version(version())) }
}

/// A field of the server's own `INFO`.
pub(crate) fn server_field(section: &CStr, field: &CStr) -> Option<Vec<u8>> {
    let no_ctx = std::ptr::null_mut();
    // SAFETY: without a context, the data and the string are ours to free.
    unsafe {
        let data = call!(RedisModule_GetServerInfo(no_ctx, section.as_ptr()));
        let value = call!(RedisModule_ServerInfoGetField(no_ctx, data, field.as_ptr()));
        let content = (!value.is_null()).then(|| {
            let content = string::bytes(value).to_vec();
            call!(RedisModule_FreeString(no_ctx, value));
            content
        });
        call!(RedisModule_FreeServerInfo(no_ctx, data));
        content
    }
}

/// True if the server is Redis, and not a fork with versions of its own.
pub(crate) fn is_redis() -> bool {
    server_field(c"server", c"server_name").is_none_or(|name| name == b"redis")
}
