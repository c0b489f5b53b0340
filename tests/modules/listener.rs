// SPDX-License-Identifier: MIT

//! A second module for tests, which records keyspace events: `LISTENER.HEARD` returns the events since the last call.

#![allow(missing_docs)] // The macro generates items without docs.

use std::sync::Mutex;

use redis_module::{redis_module, Context, NotifyEvent, RedisResult, RedisString, RedisValue};

static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn listen(_: &Context, _: NotifyEvent, event: &str, key: &[u8]) {
    if let Ok(mut heard) = HEARD.lock() {
        heard.push(format!("{event} {}", String::from_utf8_lossy(key)));
    }
}

fn heard(_: &Context, _: Vec<RedisString>) -> RedisResult {
    let heard = HEARD.lock().map(|mut heard| std::mem::take(&mut *heard)).unwrap_or_default();
    Ok(RedisValue::Array(heard.into_iter().map(RedisValue::BulkString).collect()))
}

redis_module! {
    name: "listener",
    version: 1,
    allocator: (redis_module::alloc::RedisAlloc, redis_module::alloc::RedisAlloc),
    data_types: [],
    commands: [["listener.heard", heard, "readonly", 0, 0, 0, ""]],
    event_handlers: [[@HASH @GENERIC @STRING: listen]],
}
