// SPDX-License-Identifier: MIT

//! The product and the version of the server.

use std::ffi::CStr;

use redis_module::raw;

use crate::server::keys::string;

/// A version in the format of `RedisModule_GetServerVersion`.
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

/// First versions whose internals are unknown. From these versions on, optimizations that rely on internals
/// rather than on documented behavior are off. The sources of Redis 7.0, 8.0, 8.6 and of Valkey 8.1 and 9.1
/// were read.
const REDIS_KNOWN_UNTIL: Version = Version::new(9, 0, 0);
const VALKEY_KNOWN_UNTIL: Version = Version::new(9, 2, 0);

/// Whether the internals of this version are known.
pub(super) fn is_known_version(server: Version) -> bool {
    server < if is_redis() { REDIS_KNOWN_UNTIL } else { VALKEY_KNOWN_UNTIL }
}

/// The version of the server; `None` before 6.0.9, which cannot report it.
pub(crate) fn server_version() -> Option<Version> {
    // SAFETY: the function returns a constant.
    unsafe { raw::RedisModule_GetServerVersion.map(|version| Version(version())) }
}

/// A field of the server's own `INFO`.
pub(crate) fn server_field(section: &CStr, field: &CStr) -> Option<Vec<u8>> {
    let no_ctx = std::ptr::null_mut();
    // SAFETY: without a context, the data and the string are owned by the caller and freed here.
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

/// True if the server is Redis, and not a fork with its own version numbers.
pub(crate) fn is_redis() -> bool {
    server_field(c"server", c"server_name").is_none_or(|name| name == b"redis")
}
