// SPDX-License-Identifier: MIT

//! Replicated commands and keyspace events.
//!
//! Most of the cost of a lock is building commands for replicas and the AOF. A server discards these commands
//! if and only if it has no AOF, no connected replica, and no backlog for a previous replica. The module
//! queries the server again whenever this may have changed:
//!
//! * A new replica gets a snapshot, and so does an AOF that is turned on. A child process writes it. The
//!   snapshot contains all changes before the fork. The fork raises an event, and from then on commands are
//!   built again.
//! * A returning replica needs a backlog. A backlog exists only after a snapshot, after a time as a replica, or after
//!   loading a file. The change of roles raises an event, and files are loaded before the first query.
//! * In a cluster, a slot can be streamed to another node, which is not a replica. So nothing is skipped there.

use std::cell::Cell;
use std::ffi::{c_int, c_void, CStr};

use redis_module::raw;
use smallvec::SmallVec;

use crate::config;
use crate::decimal::Digits;
use crate::server::callback::ctx::enter;
use crate::server::events::subscription;
use crate::server::replication::{keyspace_events, replica_messages};
use crate::server::version::{self, is_known_version, Version};
use crate::server::{Ctx, ServerCell, Str};

static FOLLOWERS: ServerCell<Cell<Option<Followers>>> = ServerCell::new(Cell::new(None));
static CHANGES_ARE_REPORTED: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// The possible receivers of replicated commands.
#[derive(Clone, Copy)]
struct Followers {
    aof: bool,
    replicas: bool,
    cluster: bool,
}

/// Builder of the commands that replicate the changes of a callback in the selected database.
#[derive(Clone, Copy)]
pub(crate) struct Propagation<'a> {
    ctx: Ctx<'a>,
    followers: Followers,
    events_have_receivers: bool,
}

/// From now on, commands without receivers are skipped. Has no effect if the server is not known to write
/// every snapshot in a child process.
pub(crate) fn skip_unfollowed(ctx: Ctx<'_>, server: Version) {
    unsafe extern "C" fn forked(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        _subevent: u64,
        _data: *mut c_void,
    ) {
        // SAFETY: the context belongs to this callback.
        unsafe { enter(ctx, invalidate_followers) };
    }
    invalidate_followers(ctx);
    let is_reported = is_known_version(server)
        && subscription::listen(ctx, raw::REDISMODULE_EVENT_FORK_CHILD, Some(forked));
    CHANGES_ARE_REPORTED.get(ctx).set(is_reported);
}

/// Invalidates the cached receivers: they may have changed.
pub(in crate::server) fn invalidate_followers(ctx: Ctx<'_>) {
    FOLLOWERS.get(ctx).set(None);
}

impl<'a> Propagation<'a> {
    pub(crate) fn of(ctx: Ctx<'a>) -> Propagation<'a> {
        let followers = FOLLOWERS.get(ctx).get().unwrap_or_else(|| Followers::ask(ctx));
        Propagation { ctx, followers, events_have_receivers: keyspace_events::has_receivers(ctx) }
    }

    pub(crate) fn is_cluster(self) -> bool {
        self.followers.cluster
    }

    /// True if replicated commands have a receiver. Otherwise, the arguments of [`Propagation::send`] need not be
    /// built.
    pub(crate) fn is_followed(self) -> bool {
        self.followers.aof || self.followers.replicas
    }

    /// Replicates a change as this command.
    pub(crate) fn send(self, command: &CStr, args: &[&Str<'_>]) {
        if !self.is_followed() {
            return;
        }
        let (ctx, command) = (self.ctx.as_ptr(), command.as_ptr());
        // SAFETY: "s" takes a string, "v" an array of strings and its length; all outlive the call. An array costs the
        // server one more allocation.
        unsafe {
            match args {
                [key] => call!(RedisModule_Replicate(ctx, command, c"s".as_ptr(), key.as_ptr())),
                [key, a] => {
                    call!(RedisModule_Replicate(ctx, command, c"ss".as_ptr(), key.as_ptr(), a.as_ptr()))
                }
                [key, a, b] => {
                    let (key, a, b) = (key.as_ptr(), a.as_ptr(), b.as_ptr());
                    call!(RedisModule_Replicate(ctx, command, c"sss".as_ptr(), key, a, b))
                }
                _ => {
                    let argv: SmallVec<[*mut raw::RedisModuleString; 8]> =
                        args.iter().map(|arg| arg.as_ptr()).collect();
                    call!(RedisModule_Replicate(ctx, command, c"v".as_ptr(), argv.as_ptr(), argv.len()))
                }
            }
        };
    }

    /// Replicates a change as this command with a key and a number.
    pub(crate) fn send_number(self, command: &CStr, key: &Str<'_>, number: i64) {
        if !self.is_followed() {
            return;
        }
        let number = Digits::of(number);
        let digits = number.as_bytes();
        // SAFETY: "s" takes a string, "b" bytes and their length; all outlive the call.
        unsafe {
            let (ctx, command, start) = (self.ctx.as_ptr(), command.as_ptr(), digits.as_ptr());
            call!(RedisModule_Replicate(ctx, command, c"sb".as_ptr(), key.as_ptr(), start, digits.len()))
        };
    }

    /// Replicates a change as `SET`, with or without an expiry.
    pub(crate) fn send_set(self, key: &Str<'_>, value: &[u8], expires_at: Option<i64>) {
        if !self.is_followed() {
            return;
        }
        let (ctx, set, key) = (self.ctx.as_ptr(), c"SET".as_ptr(), key.as_ptr());
        let (value, len) = (value.as_ptr(), value.len());
        // SAFETY: "s" takes a string, "b" bytes and their length, "c" a C string; all outlive the call.
        unsafe {
            match expires_at.map(Digits::of) {
                Some(at) => {
                    let (format, at) = (c"sbcb".as_ptr(), at.as_bytes());
                    let (option, start) = (c"PXAT".as_ptr(), at.as_ptr());
                    call!(RedisModule_Replicate(ctx, set, format, key, value, len, option, start, at.len()))
                }
                None => call!(RedisModule_Replicate(ctx, set, c"sb".as_ptr(), key, value, len)),
            }
        };
    }

    /// True if messages must be replicated for the subscribers of replicas. In a cluster, the cluster bus
    /// delivers them.
    pub(crate) fn has_replica_subscribers(self) -> bool {
        self.followers.replicas && !self.followers.cluster && config::publishes_to_replicas()
    }

    /// Publishes a message to the subscribers of replicas when this iteration ends. `command` is `PUBLISH` or `SPUBLISH`.
    pub(crate) fn publish_to_replicas(
        self,
        command: &'static CStr,
        channel: Str<'static>,
        message: &'static Str<'static>,
    ) {
        replica_messages::send(self.ctx, command, channel, message);
    }

    /// Raises the keyspace event of the replicated command.
    pub(crate) fn raise_event(self, class: c_int, event: &CStr, key: &Str) {
        if !self.events_have_receivers {
            return;
        }
        // SAFETY: the context, the text and the key outlive the call.
        unsafe {
            call!(RedisModule_NotifyKeyspaceEvent(self.ctx.as_ptr(), class, event.as_ptr(), key.as_ptr()))
        };
    }

    /// Counts a change for the next snapshot. This matters even without receivers.
    pub(crate) fn count_change(self) {
        if !self.is_followed() {
            // SAFETY: the context belongs to the running callback. Without receivers, this sends nothing.
            unsafe { call!(RedisModule_ReplicateVerbatim(self.ctx.as_ptr())) };
        }
    }
}

impl Followers {
    /// Queries the server, and caches the result until it may change.
    fn ask(ctx: Ctx<'_>) -> Followers {
        let flags = ctx.flags();
        let cluster = flags.is_cluster();
        let must_assume_all =
            !CHANGES_ARE_REPORTED.get(ctx).get() || cluster || !flags.is_primary() || flags.is_loading();
        if must_assume_all {
            return Followers { aof: true, replicas: true, cluster };
        }
        let none = |field| version::server_field(c"replication", field).is_some_and(|value| value == b"0");
        let replicas = !(none(c"connected_slaves") && none(c"repl_backlog_active"));
        let followers = Followers { aof: flags.has_aof(), replicas, cluster };
        FOLLOWERS.get(ctx).set(Some(followers));
        followers
    }
}
