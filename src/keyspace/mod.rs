// SPDX-License-Identifier: MIT

//! A lock as a Redis hash. [`layout`] defines its fields, and [`crowd`] handles locks with many readers.
//!
//! [`Lock::open`] reads the lock, the core changes [`Lock::holders`] and [`Lock::records`], and
//! [`Lock::store`] writes the difference. Changes go to the keyspace, and to replicas and the AOF as plain
//! commands with absolute times. They also raise keyspace events, and are reported to `WATCH` and client-side
//! caches. Plain commands that make the same change have exactly the same effects. [`channel`] publishes
//! messages.

pub(crate) mod channel;
mod crowd;
mod layout;
mod lock;
mod memory;
pub(crate) mod names;
mod read_holders;
pub(crate) mod reader_cache;
mod records;
pub(crate) mod redisson_fair;
mod request_record;
mod stored;

pub(crate) use lock::Lock;
pub(crate) use memory::Memory;
pub(crate) use read_holders::{count_holds, force_full_read, read_holders, read_holders_fully};
pub(crate) use records::{granted, lower_counter, newest_token, raise_counter};
