// SPDX-License-Identifier: MIT

//! What is remembered of a request, whoever wrote it.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| redis_lock_fuzz::read_record(bytes));
