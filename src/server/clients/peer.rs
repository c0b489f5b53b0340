// SPDX-License-Identifier: MIT

//! The addresses and the names of connected clients.

use std::ffi::CStr;

use redis_module::raw;

use super::caller::take_text;
use crate::server::{Ctx, OK};

/// A connected client, as in `CLIENT LIST`.
pub(crate) struct Peer {
    /// `host:port`. The host of a Unix socket is `/unixsocket`.
    pub(crate) address: String,
    /// Empty without `CLIENT SETNAME`, or if the server cannot report it (before Redis 7.0.3).
    pub(crate) name: Vec<u8>,
}

impl Peer {
    /// The client with this id; `None` if it is not connected.
    pub(crate) fn of(ctx: Ctx<'_>, id: u64) -> Option<Peer> {
        // SAFETY: all fields are numbers or arrays of numbers, for which zero is valid.
        let mut info: raw::RedisModuleClientInfo = unsafe { std::mem::zeroed() };
        info.version = 1;
        // SAFETY: the structure has the version that it states.
        if unsafe { call!(RedisModule_GetClientInfoById((&raw mut info).cast(), id)) } != OK {
            return None;
        }
        // SAFETY: the array is part of `info`, and the server has ended the text with a zero.
        let host = unsafe { CStr::from_ptr(info.addr.as_ptr()) }.to_string_lossy();
        let address = if host.contains(':') {
            format!("[{host}]:{}", info.port)
        } else {
            format!("{host}:{}", info.port)
        };
        Some(Peer { address, name: name(ctx, id).unwrap_or_default() })
    }
}

fn name(ctx: Ctx<'_>, id: u64) -> Option<Vec<u8>> {
    // SAFETY: the context belongs to the running callback. The server returns null for a client without a name.
    let name = unsafe { raw::RedisModule_GetClientNameById?(ctx.as_ptr(), id) };
    // SAFETY: a string that is not null is valid, and nothing else frees it.
    unsafe { take_text(ctx, name) }
}
