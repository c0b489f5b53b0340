// SPDX-License-Identifier: MIT

//! A module with two defects that sanitizers must find: `BROKEN.READ` reads freed memory, `BROKEN.LEAK` leaks memory.

#![allow(missing_docs)] // The macro generates items without docs.

use std::hint::black_box;

use redis_module::alloc::RedisAlloc;
use redis_module::{redis_module, Context, RedisResult, RedisString, RedisValue};

fn read(_: &Context, _: Vec<RedisString>) -> RedisResult {
    let freed = black_box(Box::into_raw(Box::new(1_i64)));
    // SAFETY: none. The read after the free is the defect.
    let read = unsafe {
        drop(Box::from_raw(freed));
        black_box(*freed)
    };
    Ok(RedisValue::Integer(read))
}

fn leak(_: &Context, _: Vec<RedisString>) -> RedisResult {
    for len in 1..100 {
        black_box(Box::into_raw(vec![1_u8; len].into_boxed_slice()));
    }
    Ok(RedisValue::Null)
}

redis_module! {
    name: "broken",
    version: 1,
    allocator: (RedisAlloc, RedisAlloc),
    data_types: [],
    commands: [["broken.read", read, "readonly", 0, 0, 0, ""], ["broken.leak", leak, "readonly", 0, 0, 0, ""]],
}
