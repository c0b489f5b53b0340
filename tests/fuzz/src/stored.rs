// SPDX-License-Identifier: MIT

//! Parses arbitrary bytes as the hash of a lock.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| redis_lock_fuzz::read(bytes));
