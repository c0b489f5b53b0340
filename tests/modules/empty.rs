// SPDX-License-Identifier: MIT

//! A module that does nothing: what a server pays for having one at all.

#![allow(missing_docs)] // Of what the macro makes.

use redis_module::alloc::RedisAlloc;
use redis_module::redis_module;

redis_module! {
    name: "empty",
    version: 1,
    allocator: (RedisAlloc, RedisAlloc),
    data_types: [],
    commands: [],
}
