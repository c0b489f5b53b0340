//! What leaves the server besides replies: plain commands for the AOF and for replicas.
//!
//! Most of what a lock costs is to put such commands together, and a server that has neither an AOF nor replicas throws
//! them away. It does so if, and only if, its AOF is off, no replica is connected, and it keeps no backlog for one that was.
//! Whether the AOF is on, the server says with every call. The others are asked for when they may have changed:
//!
//! * A new replica gets a snapshot, which a child process writes. What was changed before the fork is in it, and the fork
//!   is told of: so from then on commands are put together again.
//! * A replica that comes back needs a backlog, and there is one only after a snapshot, after a time as a replica (the
//!   change of roles is told of), or from a file that was loaded, which is before the first question.
//! * In a cluster a slot can be streamed to another node, which is no replica: there, nothing is left out.

use std::cell::Cell;
use std::ffi::{c_void, CStr};

use redis_module::raw;
use smallvec::SmallVec;

use crate::server::ctx::Flags;
use crate::server::load::Version;
use crate::server::{events, info, Ctx, ServerCell, Str};

/// Servers before this one are known to write every snapshot in a child process.
const UNKNOWN_SINCE: Version = Version::new(9, 0, 0);

static REPLICAS: ServerCell<Cell<Replicas>> = ServerCell::new(Cell::new(Replicas::Possible));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replicas {
    /// None is connected, and none can come back but for a new snapshot.
    None,
    Possible,
    /// To be asked for.
    Unknown,
}

/// The commands that stand for what a callback changes, in the selected database.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    ctx: Ctx,
    flags: Flags,
    to_replicas: bool,
}

/// From now on nothing is sent that nobody gets. Not on a server that is not known to tell of all that matters, or that
/// refuses to.
pub(crate) fn start(ctx: Ctx, server: Version) {
    unsafe extern "C" fn changed(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        _subevent: u64,
        _data: *mut c_void,
    ) {
        // Also if there was one: it may have gone for good.
        REPLICAS.get(Ctx(ctx)).set(Replicas::Unknown);
    }
    let told_of = [raw::REDISMODULE_EVENT_FORK_CHILD, raw::REDISMODULE_EVENT_REPLICA_CHANGE];
    if server < UNKNOWN_SINCE && told_of.into_iter().all(|event| events::listen(ctx, event, Some(changed))) {
        REPLICAS.get(ctx).set(Replicas::Unknown);
    }
}

/// This server has become the primary, or has ceased to be it.
pub(super) fn role_changed(ctx: Ctx) {
    if REPLICAS.get(ctx).get() == Replicas::None {
        REPLICAS.get(ctx).set(Replicas::Unknown);
    }
}

impl Stream {
    pub(crate) fn of(ctx: Ctx) -> Stream {
        let flags = ctx.flags();
        Stream { ctx, flags, to_replicas: flags.is_cluster() || has_replicas(ctx, flags) }
    }

    pub(crate) fn flags(self) -> Flags {
        self.flags
    }

    /// True if anybody gets what is sent. The arguments of [`Stream::send`] need not be made if nobody does.
    pub(crate) fn is_followed(self) -> bool {
        self.to_replicas || self.flags.has_aof()
    }

    /// The keyspace has changed as by this command.
    pub(crate) fn send(self, command: &CStr, args: &[&Str<'_>]) {
        if !self.is_followed() {
            return self.count();
        }
        let argv: SmallVec<[*mut raw::RedisModuleString; 8]> = args.iter().map(|arg| arg.as_ptr()).collect();
        // SAFETY: "v" takes a list of strings with its length; all outlive the call.
        unsafe {
            let (command, list) = (command.as_ptr(), argv.as_ptr());
            call!(RedisModule_Replicate(self.ctx.0, command, c"v".as_ptr(), list, argv.len()))
        };
    }

    /// A message goes to the subscribers of replicas; `command` is `PUBLISH` or `SPUBLISH`.
    pub(crate) fn publish(self, command: &CStr, channel: &Str, message: &Str) {
        if !self.to_replicas {
            return;
        }
        // SAFETY: "ss" takes two strings of the server, which outlive the call; "A" keeps the command out of the AOF.
        unsafe {
            let (command, channel, message) = (command.as_ptr(), channel.as_ptr(), message.as_ptr());
            call!(RedisModule_Replicate(self.ctx.0, command, c"Ass".as_ptr(), channel, message))
        };
    }

    /// A change that nobody follows counts for the next snapshot all the same.
    pub(crate) fn count(self) {
        // SAFETY: the context is that of the running callback. As nobody follows, nothing is sent by this.
        unsafe { call!(RedisModule_ReplicateVerbatim(self.ctx.0)) };
    }
}

fn has_replicas(ctx: Ctx, flags: Flags) -> bool {
    let replicas = REPLICAS.get(ctx);
    if replicas.get() == Replicas::Unknown && flags.is_primary() && !flags.is_loading() {
        let none = |field| info::server_field(c"replication", field).is_some_and(|value| value == b"0");
        let alone = none(c"connected_slaves") && none(c"repl_backlog_active");
        replicas.set(if alone { Replicas::None } else { Replicas::Possible });
    }
    replicas.get() != Replicas::None
}
