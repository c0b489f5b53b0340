// SPDX-License-Identifier: MIT

//! The module's section of `INFO`.

use std::ffi::{c_int, CStr};

use redis_module::raw;

use crate::server::{guard, Ctx, InCallback, OK};

/// Writer for the fields of a section.
pub(crate) struct Info(*mut raw::RedisModuleInfoCtx);

impl Info {
    /// Begins a section. False if the client has not requested it.
    pub(crate) fn section(&mut self, name: &CStr) -> bool {
        // SAFETY: the context belongs to the callback. The name outlives the call.
        unsafe { call!(RedisModule_InfoAddSection(self.0, name.as_ptr())) == OK }
    }

    pub(crate) fn number(&mut self, name: &CStr, value: impl TryInto<i64>) {
        let value = value.try_into().unwrap_or(i64::MAX);
        // SAFETY: the context belongs to the callback. The name outlives the call.
        unsafe { call!(RedisModule_InfoAddFieldLongLong(self.0, name.as_ptr(), value)) };
    }
}

/// Fills the module's section of `INFO`.
pub(crate) trait InfoSection {
    fn fill(proof: InCallback, info: &mut Info);
}

/// Registers the module's section of `INFO`. False if the server refuses.
pub(crate) fn register<I: InfoSection>(ctx: Ctx<'_>) -> bool {
    unsafe extern "C" fn fill<I: InfoSection>(info: *mut raw::RedisModuleInfoCtx, _for_crash_report: c_int) {
        // SAFETY: this is a callback of the server.
        let proof = unsafe { InCallback::claim() };
        guard(|| I::fill(proof, &mut Info(info)));
    }
    // SAFETY: the callback has the type that the server expects.
    unsafe { call!(RedisModule_RegisterInfoFunc(ctx.as_ptr(), Some(fill::<I>))) == OK }
}
