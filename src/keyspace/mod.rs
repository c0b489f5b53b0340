// SPDX-License-Identifier: MIT

//! A lock as a Redis hash: [`layout`] says which fields it has. [`crowd`] is for one with many readers.
//!
//! [`Lock::open`] reads it, the core changes [`Lock::holders`] and [`Lock::records`], and [`Lock::store`] writes
//! the difference: to the keyspace, to replicas and the AOF as plain commands with absolute times, as keyspace
//! events, and to `WATCH` and client-side caches, all in the words of the plain commands that make the same
//! change. What else hears of it, stands in [`channel`].

pub(crate) mod channel;
mod crowd;
mod layout;
mod lock;
mod look;
mod memory;
pub(crate) mod names;
pub(crate) mod reader_cache;
mod records;
pub(crate) mod redisson_fair;
mod request_record;
mod stored;

pub(crate) use lock::Lock;
pub(crate) use look::{force_full_read, held_by, look, look_closely};
pub(crate) use memory::Memory;
pub(crate) use records::{granted, lower_counter, newest_token, raise_counter};
