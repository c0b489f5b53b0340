// SPDX-License-Identifier: MIT

//! Plays histories on the core and its model.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| redis_lock_fuzz::play(bytes));
