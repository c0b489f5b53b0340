// SPDX-License-Identifier: MIT

//! Histories of the core beside its model.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| redis_lock_fuzz::play(bytes));
