// SPDX-License-Identifier: MIT

//! The progress of replicas, and how to request it.
//!
//! A replica reports once per second how much of the stream it has received. `REPLCONF GETACK *` in the
//! stream makes it report at once, as for `WAIT`. This request must be a separate step after the step to be
//! acknowledged. Inside the transaction of that step, a replica would report the offset at which the
//! transaction began.

use std::cell::{Cell, OnceCell};
use std::ffi::c_void;

use redis_module::raw;

use crate::server::callback::ctx::enter;
use crate::server::calls::knows_command;
use crate::server::calls::text_of;
use crate::server::events::subscription;
use crate::server::{Ctx, ServerCell};

/// The offsets of a primary and its replicas in the replication stream.
pub(crate) struct Progress {
    /// Offset up to which commands were sent.
    pub(crate) sent: i64,
    /// Offset that each online replica has reported as received.
    pub(crate) received: Vec<i64>,
}

impl Progress {
    /// Queries the server; `None` if it is not a primary.
    pub(crate) fn of(ctx: Ctx<'_>) -> Option<Progress> {
        // SAFETY: the format takes no argument. The reply and its elements are null or valid; a missing element is null
        // and treated as empty.
        unsafe {
            let reply = call!(RedisModule_Call(ctx.as_ptr(), c"ROLE".as_ptr(), c"".as_ptr()));
            if reply.is_null() {
                return None;
            }
            let at = |list: *mut raw::RedisModuleCallReply, at| {
                if list.is_null() {
                    list
                } else {
                    call!(RedisModule_CallReplyArrayElement(list, at))
                }
            };
            let is_primary = text_of(at(reply, 0)) == b"master";
            let sent = at(reply, 1);
            let sent = if sent.is_null() { 0 } else { call!(RedisModule_CallReplyInteger(sent)) };
            let replicas = at(reply, 2);
            let len = if replicas.is_null() { 0 } else { call!(RedisModule_CallReplyLength(replicas)) };
            let received =
                |replica| String::from_utf8(text_of(at(at(replicas, replica), 2))).ok()?.parse().ok();
            let received = (0..len).filter_map(received).collect();
            call!(RedisModule_FreeCallReply(reply));
            is_primary.then_some(Progress { sent, received })
        }
    }

    /// Number of replicas that have received the stream up to this offset.
    pub(crate) fn count(&self, offset: i64) -> usize {
        self.received.iter().filter(|received| **received >= offset).count()
    }
}

/// Cached number of online replicas, valid until an event reports a change.
static ONLINE: ServerCell<Cell<Option<usize>>> = ServerCell::new(Cell::new(None));

/// Number of online replicas.
pub(crate) fn online(ctx: Ctx<'_>) -> usize {
    unsafe extern "C" fn changed(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        _subevent: u64,
        _data: *mut c_void,
    ) {
        // SAFETY: the context belongs to this callback.
        unsafe { enter(ctx, forget_online) };
    }
    let event = raw::REDISMODULE_EVENT_REPLICA_CHANGE;
    let is_reported =
        subscription::is_subscribed(ctx, event) || subscription::listen(ctx, event, Some(changed));
    ONLINE.get(ctx).get().unwrap_or_else(|| {
        let online = Progress::of(ctx).map_or(0, |progress| progress.received.len());
        ONLINE.get(ctx).set(is_reported.then_some(online));
        online
    })
}

/// Invalidates the cached number of online replicas.
pub(crate) fn forget_online(ctx: Ctx<'_>) {
    ONLINE.get(ctx).set(None);
}

/// True if the server has the required commands. An operator may have renamed them.
pub(crate) fn can_ask(ctx: Ctx<'_>) -> bool {
    static CAN_ASK: ServerCell<OnceCell<bool>> = ServerCell::new(OnceCell::new());
    *CAN_ASK.get(ctx).get_or_init(|| [c"role", c"replconf"].iter().all(|name| knows_command(ctx, name)))
}

/// Requests progress reports from all replicas. Must not be called while only client commands may write.
pub(crate) fn ask_replicas(ctx: Ctx<'_>) {
    // SAFETY: "cc" takes two C strings. "A" keeps the command out of the AOF.
    unsafe {
        let (command, get_ack, all) = (c"REPLCONF".as_ptr(), c"GETACK".as_ptr(), c"*".as_ptr());
        call!(RedisModule_Replicate(ctx.as_ptr(), command, c"Acc".as_ptr(), get_ack, all))
    };
}
