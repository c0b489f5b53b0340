// SPDX-License-Identifier: MIT

//! A module without commands: measures the cost of any loaded module.

#![allow(missing_docs)] // The macro generates items without docs.

use redis_module::alloc::RedisAlloc;
use redis_module::redis_module;

redis_module! {
    name: "empty",
    version: 1,
    allocator: (RedisAlloc, RedisAlloc),
    data_types: [],
    commands: [],
}
