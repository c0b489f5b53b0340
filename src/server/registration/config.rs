// SPDX-License-Identifier: MIT

//! Settings for `CONFIG GET`, `CONFIG SET` and `CONFIG REWRITE`.

use std::ffi::{c_char, c_int, c_longlong, c_void, CStr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI64, Ordering};

use redis_module::raw;

use crate::server::{Ctx, OK};

/// Registers a numeric setting. False if the server refuses.
pub(crate) fn register_number(
    ctx: Ctx<'_>,
    name: &CStr,
    default: i64,
    range: RangeInclusive<i64>,
    value: &'static AtomicI64,
) -> bool {
    unsafe extern "C" fn get(_name: *const c_char, value: *mut c_void) -> c_longlong {
        // SAFETY: the private data is the registered static.
        unsafe { &*value.cast::<AtomicI64>() }.load(Ordering::Relaxed)
    }
    unsafe extern "C" fn set(
        _name: *const c_char,
        new: c_longlong,
        value: *mut c_void,
        _error: *mut *mut raw::RedisModuleString,
    ) -> c_int {
        // SAFETY: the private data is the registered static.
        unsafe { &*value.cast::<AtomicI64>() }.store(new, Ordering::Relaxed);
        OK
    }
    let data = std::ptr::from_ref(value).cast_mut().cast();
    let flags = raw::REDISMODULE_CONFIG_DEFAULT;
    // SAFETY: the server copies the name. The private data is static and only changed atomically.
    unsafe {
        call!(RedisModule_RegisterNumericConfig(
            ctx.as_ptr(),
            name.as_ptr(),
            default,
            flags,
            *range.start(),
            *range.end(),
            Some(get),
            Some(set),
            None,
            data
        )) == OK
    }
}

/// Registers a choice between names; its value is the index of the chosen name. False if the server refuses.
pub(crate) fn register_choice(
    ctx: Ctx<'_>,
    name: &CStr,
    default: i32,
    choices: &[&'static CStr],
    value: &'static AtomicI64,
) -> bool {
    unsafe extern "C" fn get(_name: *const c_char, value: *mut c_void) -> c_int {
        // SAFETY: the private data is the registered static.
        let value = unsafe { &*value.cast::<AtomicI64>() }.load(Ordering::Relaxed);
        c_int::try_from(value).unwrap_or_default()
    }
    unsafe extern "C" fn set(
        _name: *const c_char,
        new: c_int,
        value: *mut c_void,
        _error: *mut *mut raw::RedisModuleString,
    ) -> c_int {
        // SAFETY: the private data is the registered static.
        unsafe { &*value.cast::<AtomicI64>() }.store(i64::from(new), Ordering::Relaxed);
        OK
    }
    let mut names: Vec<*const c_char> = choices.iter().map(|choice| choice.as_ptr()).collect();
    let values: Vec<c_int> = (0..).take(choices.len()).collect();
    let count = c_int::try_from(choices.len()).unwrap_or_default();
    let data = std::ptr::from_ref(value).cast_mut().cast();
    let flags = raw::REDISMODULE_CONFIG_DEFAULT;
    // SAFETY: the server copies names and values. The private data is static and only changed atomically.
    unsafe {
        call!(RedisModule_RegisterEnumConfig(
            ctx.as_ptr(),
            name.as_ptr(),
            default,
            flags,
            names.as_mut_ptr(),
            values.as_ptr(),
            count,
            Some(get),
            Some(set),
            None,
            data
        )) == OK
    }
}

/// Sets all registered settings from the configuration file, or to their defaults. Returns false if a value
/// is out of range; the server has then logged it.
pub(crate) fn load(ctx: Ctx<'_>) -> bool {
    // SAFETY: the context belongs to the module, and every setting is registered.
    unsafe { call!(RedisModule_LoadConfigs(ctx.as_ptr())) == OK }
}
