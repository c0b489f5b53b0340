// SPDX-License-Identifier: MIT

//! A key that is open, with its name.

use std::ops::{Deref, DerefMut};

use redis_module::raw;

use crate::server::keys::field_expiry::{self, FieldTtlSupport};
use crate::server::keys::handle::{Handle, READ, WRITE};
use crate::server::{Ctx, Str};

/// A key of the selected database, closed on drop. Nothing that is done with it is replicated, raises an
/// event, or reports it to `WATCH`: see [`crate::keyspace`].
pub(crate) struct Key<'a> {
    handle: Handle<'a>,
    name: &'a Str<'a>,
}

/// The same with a name that is kept with it.
pub(crate) struct OwnedKey<'a> {
    handle: Handle<'a>,
    name: Str<'static>,
}

/// True if a field of a hash can end by a TTL of its own on this server, as far as that is known.
pub(crate) fn fields_may_expire(ctx: Ctx<'_>) -> bool {
    !matches!(FieldTtlSupport::of_server(ctx), FieldTtlSupport::None)
}

impl<'a> Key<'a> {
    /// Opens a key to look at it. Does not count as a change, and works on a replica.
    pub(crate) fn open_for_read(ctx: Ctx<'a>, name: &'a Str<'a>) -> Key<'a> {
        Key { handle: Handle::open(ctx, name, READ), name }
    }

    /// Opens a key to change it; on a primary only. If its TTL is over, the server deletes it first.
    pub(crate) fn open_for_write(ctx: Ctx<'a>, name: &'a Str<'a>) -> Key<'a> {
        Key { handle: Handle::open(ctx, name, WRITE), name }
    }

    /// True if there is anything. Takes less than to open it.
    pub(crate) fn exists(ctx: Ctx<'_>, name: &Str<'_>) -> bool {
        // SAFETY: context and name outlive the call.
        unsafe { call!(RedisModule_KeyExists(ctx.as_ptr(), name.as_ptr())) != 0 }
    }

    pub(crate) fn name(&self) -> &'a Str<'a> {
        self.name
    }

    /// False if no field of a hash ends by a TTL of its own. True also if that is not easily said.
    pub(crate) fn may_have_expiring_fields(&self, ctx: Ctx<'_>) -> bool {
        match FieldTtlSupport::of_server(ctx) {
            FieldTtlSupport::None => false,
            FieldTtlSupport::Api => self.first_field_expiry(ctx, Vec::new).is_some(),
            FieldTtlSupport::Command => true,
        }
    }

    /// When the first of these fields of a hash ends by a TTL of its own, in milliseconds since the epoch. It may be over. The
    /// names are needed on some servers only.
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
                // SAFETY: the key is open; an empty one is answered as one without TTLs.
                let at = unsafe { raw::RedisModule_HashFieldMinExpire.map(|first| first(self.raw)) };
                at.filter(|at| *at != i64::from(raw::REDISMODULE_NO_EXPIRE))
            }
            FieldTtlSupport::Command => field_expiry::first_end_by_command(ctx, self.name, &names()),
        }
    }
}

impl<'a> OwnedKey<'a> {
    /// As [`Key::open_for_read`].
    pub(crate) fn open_for_read(ctx: Ctx<'a>, name: Str<'static>) -> OwnedKey<'a> {
        OwnedKey { handle: Handle::open(ctx, &name, READ), name }
    }

    /// As [`Key::open_for_write`].
    pub(crate) fn open_for_write(ctx: Ctx<'a>, name: Str<'static>) -> OwnedKey<'a> {
        OwnedKey { handle: Handle::open(ctx, &name, WRITE), name }
    }

    pub(crate) fn name(&self) -> &Str<'static> {
        &self.name
    }
}

impl<'a> Deref for Key<'a> {
    type Target = Handle<'a>;

    fn deref(&self) -> &Handle<'a> {
        &self.handle
    }
}

impl DerefMut for Key<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.handle
    }
}

impl<'a> Deref for OwnedKey<'a> {
    type Target = Handle<'a>;

    fn deref(&self) -> &Handle<'a> {
        &self.handle
    }
}

impl DerefMut for OwnedKey<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.handle
    }
}
