// SPDX-License-Identifier: MIT

//! Strings of the server.

use std::cell::OnceCell;
use std::marker::PhantomData;
use std::ptr;

use redis_module::raw;

use crate::server::{Ctx, ServerCell};

/// A string of the server: an argument that it passed in, or one that was made here and is freed on drop.
pub(crate) struct Str<'a> {
    raw: *mut raw::RedisModuleString,
    /// Its content, which the server does not change.
    start: *const u8,
    len: usize,
    owned: bool,
    lifetime: PhantomData<&'a ()>,
}

/// Strings that are needed again and again: of numbers, and the name of a field.
static CACHED_DIGITS: ServerCell<[OnceCell<Str<'static>>; 2]> =
    ServerCell::new([const { OnceCell::new() }; 2]);
static CACHED_FIELD: ServerCell<OnceCell<Str<'static>>> = ServerCell::new(OnceCell::new());

/// Frees these: the module is unloaded.
pub(crate) fn forget_cached(ctx: Ctx<'_>) {
    // SAFETY: no call is being carried out, and nothing that outlives one has any of them.
    unsafe {
        drop(CACHED_DIGITS.replace(ctx, [const { OnceCell::new() }; 2]));
        drop(CACHED_FIELD.replace(ctx, OnceCell::new()));
    }
}

impl<'a> Str<'a> {
    /// Makes a string with this content.
    pub(crate) fn new(content: &[u8]) -> Str<'static> {
        // SAFETY: pointer and length are those of a slice; without a context the string is ours to free.
        unsafe {
            let raw =
                call!(RedisModule_CreateString(ptr::null_mut(), content.as_ptr().cast(), content.len()));
            Str::of(raw, true)
        }
    }

    /// Makes a string with the decimal form of a number.
    pub(crate) fn from_number(number: i64) -> Str<'static> {
        // SAFETY: without a context the string is ours to free.
        unsafe { Str::of(call!(RedisModule_CreateStringFromLongLong(ptr::null_mut(), number)), true) }
    }

    /// The decimal form of a number that is often needed, so that it is made but once.
    pub(crate) fn cached_digit(ctx: Ctx<'_>, number: i64) -> Option<&'static Str<'static>> {
        let digit = CACHED_DIGITS.get(ctx).get(usize::try_from(number).ok()?)?;
        Some(digit.get_or_init(|| Str::from_number(number)))
    }

    /// The name of a field that is often needed, so that it is made but once. There is one such.
    pub(crate) fn cached_field(ctx: Ctx<'_>, name: &'static [u8]) -> &'static Str<'static> {
        CACHED_FIELD.get(ctx).get_or_init(|| Str::new(name))
    }

    /// Borrows a string that the server passed in.
    ///
    /// # Safety
    /// `raw` is a string of the server that lives as long as `'a`.
    pub(in crate::server) unsafe fn borrowed(raw: *mut raw::RedisModuleString) -> Str<'a> {
        // SAFETY: the caller's promise.
        unsafe { Str::of(raw, false) }
    }

    /// # Safety
    /// `raw` is a string of the server that lives as long as the result; `owned` if that is to free it.
    unsafe fn of(raw: *mut raw::RedisModuleString, owned: bool) -> Str<'a> {
        // SAFETY: the caller's promise.
        let content = unsafe { bytes(raw) };
        Str { raw, start: content.as_ptr(), len: content.len(), owned, lifetime: PhantomData }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        // SAFETY: the string is alive, and the server does not change it while a callback runs.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    pub(in crate::server) fn as_ptr(&self) -> *mut raw::RedisModuleString {
        self.raw
    }
}

impl Drop for Str<'_> {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: made by `new` or `from_number` without a context, and freed once.
            unsafe { call!(RedisModule_FreeString(ptr::null_mut(), self.raw)) };
        }
    }
}

/// The content of a string.
///
/// # Safety
/// `raw` is a string of the server that lives, unchanged, as long as `'a`.
pub(in crate::server) unsafe fn bytes<'a>(raw: *const raw::RedisModuleString) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: the caller's promise.
    unsafe {
        let start = call!(RedisModule_StringPtrLen(raw, &mut len));
        std::slice::from_raw_parts(start.cast(), len)
    }
}

/// The integer that a string is, if it is one. The string is freed.
///
/// # Safety
/// `raw` is null, or a string of the server that is the caller's to free.
pub(in crate::server) unsafe fn take_number(raw: *mut raw::RedisModuleString) -> Option<i64> {
    if raw.is_null() {
        return None;
    }
    let mut number = 0;
    // SAFETY: the caller's promise.
    unsafe {
        let is_number = call!(RedisModule_StringToLongLong(raw, &mut number)) == crate::server::OK;
        call!(RedisModule_FreeString(ptr::null_mut(), raw));
        is_number.then_some(number)
    }
}
