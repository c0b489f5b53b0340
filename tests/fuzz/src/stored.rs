// SPDX-License-Identifier: MIT

//! What stands in a lock's hash, whoever wrote it.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| redis_lock_fuzz::read(bytes));
