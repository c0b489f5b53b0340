// SPDX-License-Identifier: MIT

//! How far the replicas of this server have come, and how they are asked to say so.
//!
//! A replica reports once a second what it has received. Asked by `REPLCONF GETACK *` in the stream, it reports at once: so
//! `WAIT` does. The module's own question has to be a step of its own, after the one that is to be acknowledged: in the
//! transaction of that step a replica would report where the transaction began.

use std::cell::{Cell, OnceCell};
use std::ffi::c_void;

use redis_module::raw;

use crate::server::callback::ctx::enter;
use crate::server::calls::knows_command;
use crate::server::calls::text_of;
use crate::server::events::subscription;
use crate::server::{Ctx, ServerCell};

/// Where a primary and its replicas are in the stream.
pub(crate) struct Progress {
    /// Up to where commands were sent.
    pub(crate) sent: i64,
    /// Up to where each replica that is online has said that it has received them.
    pub(crate) received: Vec<i64>,
}

impl Progress {
    /// Asks the server; `None` if it is no primary.
    pub(crate) fn of(ctx: Ctx<'_>) -> Option<Progress> {
        // SAFETY: the format takes nothing. The reply is null or the server's, and so are its elements; what is not there is
        // null, which is answered as nothing.
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

    /// How many replicas have received the stream up to there.
    pub(crate) fn count(&self, offset: i64) -> usize {
        self.received.iter().filter(|received| **received >= offset).count()
    }
}

/// How many replicas are online, as long as no event has told of another.
static ONLINE: ServerCell<Cell<Option<usize>>> = ServerCell::new(Cell::new(None));

/// How many replicas are online.
pub(crate) fn online(ctx: Ctx<'_>) -> usize {
    unsafe extern "C" fn changed(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        _subevent: u64,
        _data: *mut c_void,
    ) {
        // SAFETY: the context is that of this callback.
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

/// Another number of replicas may be online, or the module is unloaded.
pub(crate) fn forget_online(ctx: Ctx<'_>) {
    ONLINE.get(ctx).set(None);
}

/// True if the server has the commands that are needed for this: an operator may have renamed them.
pub(crate) fn can_ask(ctx: Ctx<'_>) -> bool {
    static CAN_ASK: ServerCell<OnceCell<bool>> = ServerCell::new(OnceCell::new());
    *CAN_ASK.get(ctx).get_or_init(|| [c"role", c"replconf"].iter().all(|name| knows_command(ctx, name)))
}

/// Asks all replicas how far they have come. Not while nothing may be written but by a client's command.
pub(crate) fn ask_replicas(ctx: Ctx<'_>) {
    // SAFETY: "cc" takes two C strings; "A" keeps the command out of the AOF.
    unsafe {
        let (command, get_ack, all) = (c"REPLCONF".as_ptr(), c"GETACK".as_ptr(), c"*".as_ptr());
        call!(RedisModule_Replicate(ctx.as_ptr(), command, c"Acc".as_ptr(), get_ack, all))
    };
}
