// SPDX-License-Identifier: MIT

//! The module's part of `INFO`.

use std::ffi::{c_int, CStr};

use redis_module::raw;

use crate::server::keys::string;
use crate::server::{guard, Ctx, InCallback, OK};

/// Where the fields of a section go.
pub(crate) struct Info(*mut raw::RedisModuleInfoCtx);

impl Info {
    /// Begins a section; false if it was not asked for.
    pub(crate) fn section(&mut self, name: &CStr) -> bool {
        // SAFETY: the context of the callback; the name outlives the call.
        unsafe { call!(RedisModule_InfoAddSection(self.0, name.as_ptr())) == OK }
    }

    pub(crate) fn number(&mut self, name: &CStr, value: impl TryInto<i64>) {
        let value = value.try_into().unwrap_or(i64::MAX);
        // SAFETY: the context of the callback; the name outlives the call.
        unsafe { call!(RedisModule_InfoAddFieldLongLong(self.0, name.as_ptr(), value)) };
    }
}

/// Says what stands in the module's part of `INFO`.
pub(crate) trait InfoSection {
    fn fill(proof: InCallback, info: &mut Info);
}

/// Registers the module's part of `INFO`. False if the server refuses.
pub(crate) fn register<I: InfoSection>(ctx: Ctx<'_>) -> bool {
    unsafe extern "C" fn fill<I: InfoSection>(info: *mut raw::RedisModuleInfoCtx, _for_crash_report: c_int) {
        // SAFETY: this is a callback.
        let proof = unsafe { InCallback::claim() };
        guard(|| I::fill(proof, &mut Info(info)));
    }
    // SAFETY: the callback has the type that the server calls it with.
    unsafe { call!(RedisModule_RegisterInfoFunc(ctx.as_ptr(), Some(fill::<I>))) == OK }
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
