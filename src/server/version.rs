// SPDX-License-Identifier: MIT

//! Which server this is.

use redis_module::raw;

use crate::server::registration::info;

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
pub(super) fn is_known(server: Version) -> bool {
    server < if info::is_redis() { REDIS_KNOWN_UNTIL } else { VALKEY_KNOWN_UNTIL }
}

/// The version of the server; `None` if it is too old to say (before 6.0.9).
pub(crate) fn server_version() -> Option<Version> {
    // SAFETY: the function only returns a constant.
    unsafe { raw::RedisModule_GetServerVersion.map(|version| Version(version())) }
}
