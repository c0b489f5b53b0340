// SPDX-License-Identifier: MIT

//! An open key with its name.

use std::ops::{Deref, DerefMut};

use redis_module::raw;

use crate::server::keys::field_expiry::{self, FieldTtlSupport};
use crate::server::keys::handle::{KeyHandle, READ, WRITE};
use crate::server::{Ctx, Str};

/// A key of the selected database, closed on drop. Its changes are not replicated, raise no events, and are not
/// reported to `WATCH`: see [`crate::keyspace`].
pub(crate) struct Key<'a> {
    handle: KeyHandle<'a>,
    name: &'a Str<'a>,
}

/// A key of the selected database that owns its name, closed on drop.
pub(crate) struct OwnedKey<'a> {
    handle: KeyHandle<'a>,
    name: Str<'static>,
}

/// True if a hash field may have its own TTL on this server, as far as is known.
pub(crate) fn fields_may_expire(ctx: Ctx<'_>) -> bool {
    !matches!(FieldTtlSupport::of_server(ctx), FieldTtlSupport::None)
}

impl<'a> Key<'a> {
    /// Opens a key for reading. Does not count as a change, and works on a replica.
    pub(crate) fn open_for_read(ctx: Ctx<'a>, name: &'a Str<'a>) -> Key<'a> {
        Key { handle: KeyHandle::open(ctx, name, READ), name }
    }

    /// Opens a key for writing, on a primary only. If the key has expired, the server deletes it first.
    pub(crate) fn open_for_write(ctx: Ctx<'a>, name: &'a Str<'a>) -> Key<'a> {
        Key { handle: KeyHandle::open(ctx, name, WRITE), name }
    }

    /// True if the key exists. Faster than opening it.
    pub(crate) fn exists(ctx: Ctx<'_>, name: &Str<'_>) -> bool {
        // SAFETY: the context and the name outlive the call.
        unsafe { call!(RedisModule_KeyExists(ctx.as_ptr(), name.as_ptr())) != 0 }
    }

    pub(crate) fn name(&self) -> &'a Str<'a> {
        self.name
    }

    /// False only if no field of the hash has its own TTL. Returns true if the exact answer would be
    /// expensive.
    pub(crate) fn may_have_expiring_fields(&self, ctx: Ctx<'_>) -> bool {
        match FieldTtlSupport::of_server(ctx) {
            FieldTtlSupport::None => false,
            FieldTtlSupport::Api => self.first_field_expiry(ctx, Vec::new).is_some(),
            FieldTtlSupport::Command => true,
        }
    }

    /// The earliest expiry of a field with its own TTL, in milliseconds since the epoch, possibly in the
    /// past. Some servers need the names of the fields.
    pub(crate) fn first_field_expiry(
        &self,
        ctx: Ctx<'_>,
        names: impl FnOnce() -> Vec<Vec<u8>>,
    ) -> Option<i64> {
        if self.raw.is_null() {
            return None;
        }
        match FieldTtlSupport::of_server(ctx) {
            FieldTtlSupport::None => None,
            FieldTtlSupport::Api => {
                // SAFETY: the key is open; an empty key is treated as one without TTLs.
                let at = unsafe { raw::RedisModule_HashFieldMinExpire.map(|first| first(self.raw)) };
                at.filter(|at| *at != i64::from(raw::REDISMODULE_NO_EXPIRE))
            }
            FieldTtlSupport::Command => field_expiry::first_end_by_command(ctx, self.name, &names()),
        }
    }
}

impl<'a> OwnedKey<'a> {
    /// Opens a key for reading. Does not count as a change, and works on a replica.
    pub(crate) fn open_for_read(ctx: Ctx<'a>, name: Str<'static>) -> OwnedKey<'a> {
        OwnedKey { handle: KeyHandle::open(ctx, &name, READ), name }
    }

    /// Opens a key for writing, on a primary only. If the key has expired, the server deletes it first.
    pub(crate) fn open_for_write(ctx: Ctx<'a>, name: Str<'static>) -> OwnedKey<'a> {
        OwnedKey { handle: KeyHandle::open(ctx, &name, WRITE), name }
    }

    pub(crate) fn name(&self) -> &Str<'static> {
        &self.name
    }
}

impl<'a> Deref for Key<'a> {
    type Target = KeyHandle<'a>;

    fn deref(&self) -> &KeyHandle<'a> {
        &self.handle
    }
}

impl DerefMut for Key<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.handle
    }
}

impl<'a> Deref for OwnedKey<'a> {
    type Target = KeyHandle<'a>;

    fn deref(&self) -> &KeyHandle<'a> {
        &self.handle
    }
}

impl DerefMut for OwnedKey<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.handle
    }
}
