// SPDX-License-Identifier: MIT

//! Decodes arbitrary bytes as the record of a request.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| redis_lock_fuzz::read_record(bytes));
