// SPDX-License-Identifier: MIT

//! Strings of the server.

use std::cell::OnceCell;
use std::marker::PhantomData;
use std::ptr;

use redis_module::raw;

use crate::server::{Ctx, ServerCell};

/// A string of the server: either borrowed from an argument, or created here and freed on drop.
pub(crate) struct Str<'a> {
    raw: *mut raw::RedisModuleString,
    /// The content, which the server does not change.
    start: *const u8,
    len: usize,
    owned: bool,
    lifetime: PhantomData<&'a ()>,
}

/// Cached strings for small numbers, and for one field name.
static CACHED_DIGITS: ServerCell<[OnceCell<Str<'static>>; 2]> =
    ServerCell::new([const { OnceCell::new() }; 2]);
static CACHED_FIELD: ServerCell<OnceCell<Str<'static>>> = ServerCell::new(OnceCell::new());

/// Frees the cached strings when the module is unloaded.
pub(crate) fn forget_cached(ctx: Ctx<'_>) {
    // SAFETY: no call is running, and nothing that outlives a call refers to them.
    unsafe {
        drop(CACHED_DIGITS.replace(ctx, [const { OnceCell::new() }; 2]));
        drop(CACHED_FIELD.replace(ctx, OnceCell::new()));
    }
}

impl<'a> Str<'a> {
    /// Creates a string with this content.
    pub(crate) fn new(content: &[u8]) -> Str<'static> {
        // SAFETY: the pointer and the length belong to a slice. Without a context, the caller owns the string.
        unsafe {
            let raw =
                call!(RedisModule_CreateString(ptr::null_mut(), content.as_ptr().cast(), content.len()));
            Str::of(raw, true)
        }
    }

    /// Creates a string with the decimal form of a number.
    pub(crate) fn from_number(number: i64) -> Str<'static> {
        // SAFETY: without a context, the caller owns the string.
        unsafe { Str::of(call!(RedisModule_CreateStringFromLongLong(ptr::null_mut(), number)), true) }
    }

    /// The cached decimal form of 0 or 1; `None` for other numbers.
    pub(crate) fn cached_digit(ctx: Ctx<'_>, number: i64) -> Option<&'static Str<'static>> {
        let digit = CACHED_DIGITS.get(ctx).get(usize::try_from(number).ok()?)?;
        Some(digit.get_or_init(|| Str::from_number(number)))
    }

    /// The cached name of a field. The cache holds a single name.
    pub(crate) fn cached_field(ctx: Ctx<'_>, name: &'static [u8]) -> &'static Str<'static> {
        CACHED_FIELD.get(ctx).get_or_init(|| Str::new(name))
    }

    /// Borrows a string that the server passed in.
    ///
    /// # Safety
    /// `raw` is a string of the server that lives as long as `'a`.
    pub(in crate::server) unsafe fn borrowed(raw: *mut raw::RedisModuleString) -> Str<'a> {
        // SAFETY: guaranteed by the caller.
        unsafe { Str::of(raw, false) }
    }

    /// Wraps a string.
    ///
    /// # Safety
    /// `raw` is a string of the server that lives as long as the result. If `owned` is set, the result frees it.
    unsafe fn of(raw: *mut raw::RedisModuleString, owned: bool) -> Str<'a> {
        // SAFETY: guaranteed by the caller.
        let content = unsafe { bytes(raw) };
        Str { raw, start: content.as_ptr(), len: content.len(), owned, lifetime: PhantomData }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        // SAFETY: the string is alive, and the server does not change it while a callback is running.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    pub(in crate::server) fn as_ptr(&self) -> *mut raw::RedisModuleString {
        self.raw
    }
}

impl Drop for Str<'_> {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: the string was created by `new` or `from_number` without a context, and is freed once.
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
    // SAFETY: guaranteed by the caller.
    unsafe {
        let start = call!(RedisModule_StringPtrLen(raw, &mut len));
        std::slice::from_raw_parts(start.cast(), len)
    }
}

/// The integer value of a string, if it is one. Frees the string.
///
/// # Safety
/// `raw` is null, or a string of the server that the caller owns.
pub(in crate::server) unsafe fn take_number(raw: *mut raw::RedisModuleString) -> Option<i64> {
    if raw.is_null() {
        return None;
    }
    let mut number = 0;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let is_number = call!(RedisModule_StringToLongLong(raw, &mut number)) == crate::server::OK;
        call!(RedisModule_FreeString(ptr::null_mut(), raw));
        is_number.then_some(number)
    }
}
