// SPDX-License-Identifier: MIT

//! A lock as a Redis hash. [`layout`] defines its fields, and [`crowd`] handles locks with many readers.
//!
//! [`Lock::open`] reads the lock, the core changes [`Lock::holders`] and [`Lock::records`], and [`Lock::store`] writes
//! the difference. The changes go to the keyspace, and as plain commands with absolute times to replicas and the AOF.
//! They also raise keyspace events, and are reported to `WATCH` and client-side caches. All of this is the same as for
//! the plain commands that make the same change. [`channel`] publishes messages.

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
