// SPDX-License-Identifier: MIT

//! The value of an open key: reading and writing hashes and strings.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;

use redis_module::raw;

use crate::server::keys::string;
use crate::server::{Ctx, Str};

/// The type of a key's value. Types that make no difference for locks are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    Empty,
    Hash,
    String,
    Other,
}

/// An open key. The server keeps the name and the context alive while the key is open.
pub(crate) struct KeyHandle<'a> {
    /// Null for an empty key that is open for reading.
    pub(super) raw: *mut raw::RedisModuleKey,
    opened_in: PhantomData<Ctx<'a>>,
}

/// State of an iteration over the fields of a hash; see [`KeyHandle::for_each_field`].
struct FieldVisit<'f> {
    visit: &'f mut dyn FnMut(&[u8], &[u8]) -> bool,
    stopped: bool,
    panicked: bool,
}

pub(super) const READ: u32 = raw::REDISMODULE_READ;
pub(super) const WRITE: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;

impl<'a> KeyHandle<'a> {
    pub(super) fn open(ctx: Ctx<'a>, name: &Str<'_>, mode: u32) -> KeyHandle<'a> {
        // SAFETY: the context outlives the key, and the server keeps the name alive.
        let raw = unsafe { call!(RedisModule_OpenKey(ctx.as_ptr(), name.as_ptr(), mode.cast_signed())) };
        KeyHandle { raw, opened_in: PhantomData }
    }

    pub(crate) fn kind(&self) -> ValueKind {
        // SAFETY: the key is open; null is treated as empty.
        match unsafe { call!(RedisModule_KeyType(self.raw)) } as isize {
            raw::REDISMODULE_KEYTYPE_EMPTY => ValueKind::Empty,
            raw::REDISMODULE_KEYTYPE_HASH => ValueKind::Hash,
            raw::REDISMODULE_KEYTYPE_STRING => ValueKind::String,
            _ => ValueKind::Other,
        }
    }

    /// The expiry of the key, in milliseconds since the epoch.
    pub(crate) fn expires_at(&self) -> Option<i64> {
        // SAFETY: the key is open; null is treated as "never".
        let at = unsafe { call!(RedisModule_GetAbsExpire(self.raw)) };
        (at != i64::from(raw::REDISMODULE_NO_EXPIRE)).then_some(at)
    }

    /// Number of fields of a hash.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: the key is open; null is treated as empty.
        unsafe { call!(RedisModule_ValueLength(self.raw)) }
    }

    /// Calls `body` with the value of a hash field, or `None` if the field is missing.
    pub(crate) fn with_field<T>(&self, field: &Str<'_>, body: impl FnOnce(Option<&[u8]>) -> T) -> T {
        let mut value: *mut raw::RedisModuleString = std::ptr::null_mut();
        // SAFETY: the key is open and holds a hash. The argument list ends with a null. The value is null or owned, and
        // freed after its last use.
        unsafe {
            let (flags, end) = (raw::REDISMODULE_HASH_NONE, std::ptr::null_mut::<raw::RedisModuleString>());
            call!(RedisModule_HashGet(self.raw, flags.cast_signed(), field.as_ptr(), &raw mut value, end));
            if value.is_null() {
                return body(None);
            }
            let result = body(Some(string::bytes(value)));
            call!(RedisModule_FreeString(std::ptr::null_mut(), value));
            result
        }
    }

    /// The value of a hash field, if it is an integer in the format of `HINCRBY`.
    pub(crate) fn integer_field(&self, field: &Str<'_>) -> Option<i64> {
        let mut value: *mut raw::RedisModuleString = std::ptr::null_mut();
        // SAFETY: the key is open and holds a hash. The argument list ends with a null. The value is null or owned by
        // the caller.
        unsafe {
            let (flags, end) = (raw::REDISMODULE_HASH_NONE, std::ptr::null_mut::<raw::RedisModuleString>());
            call!(RedisModule_HashGet(self.raw, flags.cast_signed(), field.as_ptr(), &raw mut value, end));
            string::take_number(value)
        }
    }

    /// The integer values of a hash field and of an optional second field. `None` if the hash has further
    /// fields, or a value is not in the format of `HINCRBY`.
    pub(crate) fn only_integer_fields(&self, field: &Str<'_>, other: &Str<'_>) -> Option<(i64, Option<i64>)> {
        let mut values: [*mut raw::RedisModuleString; 2] = [std::ptr::null_mut(); 2];
        let [first, second] = &mut values;
        let (flags, end) =
            (raw::REDISMODULE_HASH_NONE.cast_signed(), std::ptr::null_mut::<raw::RedisModuleString>());
        // SAFETY: the key is open and holds a hash. The argument list ends with a null. The values are null or owned by
        // the caller.
        let numbers = unsafe {
            let len = call!(RedisModule_ValueLength(self.raw));
            let field = field.as_ptr();
            match len {
                1 => call!(RedisModule_HashGet(self.raw, flags, field, &raw mut *first, end)),
                2 => {
                    let (first, second) = (&raw mut *first, &raw mut *second);
                    call!(RedisModule_HashGet(self.raw, flags, field, first, other.as_ptr(), second, end))
                }
                _ => return None,
            };
            let numbers = values.map(|value| string::take_number(value));
            (numbers[1].is_some() || len == 1).then_some(numbers)
        };
        let [first, second] = numbers?;
        Some((first?, second))
    }

    /// Calls `visit` with every field and value of a hash, until it returns false.
    pub(crate) fn for_each_field(&self, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        unsafe extern "C" fn field(
            _key: *mut raw::RedisModuleKey,
            field: *mut raw::RedisModuleString,
            value: *mut raw::RedisModuleString,
            data: *mut c_void,
        ) {
            // SAFETY: `data` is the state of the iteration that started this scan and waits for its end.
            let visit_state = unsafe { &mut *data.cast::<FieldVisit<'_>>() };
            // SAFETY: both strings live until this callback returns.
            let (field, value) = unsafe { (string::bytes(field), string::bytes(value)) };
            if visit_state.stopped {
                return;
            }
            let continues = crate::server::guard(|| (visit_state.visit)(field, value));
            visit_state.panicked = continues.is_none();
            visit_state.stopped = continues != Some(true);
        }
        if self.raw.is_null() {
            return;
        }
        let mut visit_state = FieldVisit { visit, stopped: false, panicked: false };
        // SAFETY: the cursor is created and destroyed here. The callback only uses `visit_state`, which
        // outlives the scan. The hash does not change during the scan, so the scan ends.
        unsafe {
            let cursor = call!(RedisModule_ScanCursorCreate());
            let data = (&raw mut visit_state).cast::<c_void>();
            while call!(RedisModule_ScanKey(self.raw, cursor, Some(field), data)) != 0
                && !(*data.cast::<FieldVisit<'_>>()).stopped
            {}
            call!(RedisModule_ScanCursorDestroy(cursor));
        }
        assert!(!visit_state.panicked, "the visitor of a hash panicked");
    }

    /// True if this is a sorted set with a score above this one and below 2^53, the limit for times.
    pub(crate) fn has_score_above(&self, score: i64) -> bool {
        #[allow(clippy::cast_precision_loss)] // Times, far below 2^53.
        let above = score as f64;
        // SAFETY: the key is open. For null and other types, the function returns early. The range is stopped
        // before the key is closed. Without an output parameter, no score is written.
        unsafe {
            if call!(RedisModule_KeyType(self.raw)) as isize != raw::REDISMODULE_KEYTYPE_ZSET {
                return false;
            }
            call!(RedisModule_ZsetLastInScoreRange(self.raw, above, 9_007_199_254_740_992.0, 1, 1));
            let last = call!(RedisModule_ZsetRangeCurrentElement(self.raw, std::ptr::null_mut()));
            call!(RedisModule_ZsetRangeStop(self.raw));
            if last.is_null() {
                return false;
            }
            call!(RedisModule_FreeString(std::ptr::null_mut(), last));
            true
        }
    }

    /// The content of a string.
    pub(crate) fn text(&self) -> Vec<u8> {
        let (mut len, mode) = (0, READ.cast_signed());
        // SAFETY: the key is open and holds a string. The returned pointer is valid until the string changes.
        unsafe {
            let start = call!(RedisModule_StringDMA(self.raw, &mut len, mode));
            if start.is_null() {
                return Vec::new();
            }
            std::slice::from_raw_parts(start.cast(), len).to_vec()
        }
    }

    /// Sets the value to a string with this content. The caller must set or remove the TTL afterwards.
    pub(crate) fn set_text(&mut self, content: &[u8]) {
        if self.kind() == ValueKind::String && self.overwrite(content) {
            return;
        }
        let content = Str::new(content);
        // SAFETY: the key is open for writing.
        unsafe { call!(RedisModule_StringSet(self.raw, content.as_ptr())) };
    }

    /// Overwrites the content of a string that has the same length. Otherwise, the server would delete the key and
    /// create it again.
    fn overwrite(&mut self, content: &[u8]) -> bool {
        let (mut len, mode) = (0, WRITE.cast_signed());
        // SAFETY: the key is open for writing and holds a string, which the server makes unshared. The write stays
        // within its length.
        unsafe {
            let start = call!(RedisModule_StringDMA(self.raw, &mut len, mode));
            if start.is_null() || len != content.len() {
                return false;
            }
            std::ptr::copy_nonoverlapping(content.as_ptr(), start.cast::<u8>(), len);
        }
        true
    }

    /// Sets a field; creates the hash if it does not exist.
    pub(crate) fn set_field(&mut self, field: &Str<'_>, value: &Str<'_>) {
        self.hash_set(field, value.as_ptr());
    }

    /// Deletes a field. Deleting the last field deletes the hash.
    pub(crate) fn delete_field(&mut self, field: &Str<'_>) {
        self.hash_set(field, raw::REDISMODULE_HASH_DELETE.cast_mut());
    }

    /// Sets a field and deletes another one.
    pub(crate) fn replace_field(&mut self, before: &Str<'_>, field: &Str<'_>, value: &Str<'_>) {
        // SAFETY: as in `hash_set`.
        unsafe {
            call!(RedisModule_HashSet(
                self.raw,
                raw::REDISMODULE_HASH_NONE.cast_signed(),
                field.as_ptr(),
                value.as_ptr(),
                before.as_ptr(),
                raw::REDISMODULE_HASH_DELETE.cast_mut(),
                std::ptr::null_mut::<raw::RedisModuleString>(),
            ))
        };
    }

    fn hash_set(&mut self, field: &Str<'_>, value: *mut raw::RedisModuleString) {
        // SAFETY: the key is open for writing. The argument list ends with a null. The server does not dereference the
        // value that stands for a deletion.
        unsafe {
            call!(RedisModule_HashSet(
                self.raw,
                raw::REDISMODULE_HASH_NONE.cast_signed(),
                field.as_ptr(),
                value,
                std::ptr::null_mut::<raw::RedisModuleString>(),
            ))
        };
    }

    /// Sets the expiry of the key, in milliseconds since the epoch.
    pub(crate) fn set_expires_at(&mut self, at: i64) {
        // SAFETY: the key is open for writing and not empty.
        unsafe { call!(RedisModule_SetAbsExpire(self.raw, at)) };
    }

    /// Removes the TTL, if any.
    pub(crate) fn persist(&mut self) {
        // SAFETY: the key is open for writing and not empty.
        unsafe { call!(RedisModule_SetAbsExpire(self.raw, i64::from(raw::REDISMODULE_NO_EXPIRE))) };
    }

    /// Deletes the key. The handle stays open and can be written to.
    pub(crate) fn delete(&mut self) {
        // SAFETY: the key is open for writing.
        let deleted: c_int = unsafe { call!(RedisModule_DeleteKey(self.raw)) };
        debug_assert_eq!(deleted, crate::server::OK);
    }

    /// Deletes the key and frees the memory of its value in another thread, for large values. The handle stays open.
    pub(crate) fn unlink(&mut self) {
        // SAFETY: the key is open for writing.
        let deleted: c_int = unsafe { call!(RedisModule_UnlinkKey(self.raw)) };
        debug_assert_eq!(deleted, crate::server::OK);
    }
}

impl Drop for KeyHandle<'_> {
    fn drop(&mut self) {
        // SAFETY: the key was opened by `open` and is closed once; null is allowed.
        unsafe { call!(RedisModule_CloseKey(self.raw)) };
    }
}
