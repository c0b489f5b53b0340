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
    lives: PhantomData<&'a ()>,
}

/// Strings that are needed again and again: of numbers, and the name of a field.
static DIGITS: ServerCell<[OnceCell<Str<'static>>; 2]> = ServerCell::new([const { OnceCell::new() }; 2]);
static FIELD: ServerCell<OnceCell<Str<'static>>> = ServerCell::new(OnceCell::new());

/// Frees these: the module is unloaded.
pub(crate) fn forget_lasting(ctx: Ctx<'_>) {
    // SAFETY: no call is being carried out, and nothing that outlives one has any of them.
    unsafe {
        drop(DIGITS.replace(ctx, [const { OnceCell::new() }; 2]));
        drop(FIELD.replace(ctx, OnceCell::new()));
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
    pub(crate) fn of_small(ctx: Ctx<'_>, number: i64) -> Option<&'static Str<'static>> {
        let digit = DIGITS.get(ctx).get(usize::try_from(number).ok()?)?;
        Some(digit.get_or_init(|| Str::from_number(number)))
    }

    /// The name of a field that is often needed, so that it is made but once. There is one such.
    pub(crate) fn of_field(ctx: Ctx<'_>, name: &'static [u8]) -> &'static Str<'static> {
        FIELD.get(ctx).get_or_init(|| Str::new(name))
    }

    /// Borrows a string that the server passed in.
    ///
    /// # Safety
    /// `raw` is a string of the server that lives as long as `'a`.
    pub(super) unsafe fn borrowed(raw: *mut raw::RedisModuleString) -> Str<'a> {
        // SAFETY: the caller's promise.
        unsafe { Str::of(raw, false) }
    }

    /// # Safety
    /// `raw` is a string of the server that lives as long as the result; `owned` if that is to free it.
    unsafe fn of(raw: *mut raw::RedisModuleString, owned: bool) -> Str<'a> {
        // SAFETY: the caller's promise.
        let content = unsafe { bytes(raw) };
        Str { raw, start: content.as_ptr(), len: content.len(), owned, lives: PhantomData }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        // SAFETY: the string is alive, and the server does not change it while a callback runs.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    pub(super) fn as_ptr(&self) -> *mut raw::RedisModuleString {
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

/// The decimal form of a number, on the stack.
pub(crate) struct Digits {
    /// No number has more digits, and a sign.
    buffer: [u8; 20],
    start: usize,
}

impl Digits {
    #[allow(clippy::cast_possible_truncation)] // Of numbers below 100.
    pub(crate) fn of(number: i64) -> Digits {
        let mut digits = Digits { buffer: [b'0'; 20], start: 20 };
        let mut rest = number.unsigned_abs();
        // Two at a time: divisions are what this costs.
        while rest >= 10 {
            let two = (rest % 100) as u8;
            rest /= 100;
            digits.start -= 2;
            digits.buffer[digits.start] += two / 10;
            digits.buffer[digits.start + 1] += two % 10;
        }
        if rest > 0 || digits.start == 20 {
            digits.start -= 1;
            digits.buffer[digits.start] += rest as u8;
        }
        if number < 0 {
            digits.start -= 1;
            digits.buffer[digits.start] = b'-';
        }
        digits
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }
}

/// The number that these digits are; `None` if there is anything else among them. More than 19 of them wrap.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    let (mut number, mut all_digits) = (0_u64, true);
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        all_digits &= digit < 10;
        number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
    }
    all_digits.then_some(number)
}

/// The content of a string.
///
/// # Safety
/// `raw` is a string of the server that lives, unchanged, as long as `'a`.
pub(super) unsafe fn bytes<'a>(raw: *const raw::RedisModuleString) -> &'a [u8] {
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
pub(super) unsafe fn take_number(raw: *mut raw::RedisModuleString) -> Option<i64> {
    if raw.is_null() {
        return None;
    }
    let mut number = 0;
    // SAFETY: the caller's promise.
    unsafe {
        let is_number = call!(RedisModule_StringToLongLong(raw, &mut number)) == super::OK;
        call!(RedisModule_FreeString(ptr::null_mut(), raw));
        is_number.then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::Digits;

    #[test]
    fn digits_are_those_of_the_number() {
        for number in [0, 7, 10, 99, 100, 101, -1, -10, 1_700_000_000_000, i64::MAX, i64::MIN] {
            assert_eq!(Digits::of(number).as_bytes(), number.to_string().as_bytes());
        }
    }
}
