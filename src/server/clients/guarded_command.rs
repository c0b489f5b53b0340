// SPDX-License-Identifier: MIT

//! A command that runs for the calling client as if that client had called it: with its permissions, its protocol, and
//! its own replication.
//!
//! Some commands cannot run this way. The server refuses ("S") commands that scripts may not call. These
//! could block the client, change its connection, or leave a state that is invalid inside another command.
//! Some commands that scripts may call crash some servers when a module calls them. This module refuses those
//! by their original name in the server.

use std::cell::{Cell, LazyCell, OnceCell};
use std::ffi::{c_int, CStr};

use redis_module::raw;

use crate::error::NotGuarded;
use crate::server::calls::{self, reply_type, text_of};
use crate::server::clients::caller::Caller;
use crate::server::events::selected_database;
use crate::server::keys::field_expiry;
use crate::server::registration::command::Args;
use crate::server::{version, Ctx, ServerCell, Str};

/// The reply of the command.
pub(crate) struct CommandReply(*mut raw::RedisModuleCallReply);

/// The treatment of a command, by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommandKind {
    /// Refused although scripts may call it.
    Refused,
    /// The command runs a script, which only a client may call ([`deferred`](super::deferred)). The server would refuse
    /// it ("S"), like a script that is called by a script.
    Script,
    /// A copy into another database would be replicated for the wrong database; see [`selected_database`].
    Copy,
    Other,
}

/// Commands with special treatment. `WAIT` and `WAITAOF` crash Redis 7.0, Valkey 8.0 and Valkey 8.1, and
/// would not cover the caller's writes. `CLUSTER SETSLOT` crashes Valkey 8.1 and 9.1. `PFDEBUG` and
/// `PFSELFTEST` are tests of the server itself.
const KNOWN: [(&CStr, CommandKind); 12] = [
    (c"wait", CommandKind::Refused),
    (c"waitaof", CommandKind::Refused),
    (c"cluster", CommandKind::Refused),
    (c"pfdebug", CommandKind::Refused),
    (c"pfselftest", CommandKind::Refused),
    (c"copy", CommandKind::Copy),
    (c"eval", CommandKind::Script),
    (c"evalsha", CommandKind::Script),
    (c"eval_ro", CommandKind::Script),
    (c"evalsha_ro", CommandKind::Script),
    (c"fcall", CommandKind::Script),
    (c"fcall_ro", CommandKind::Script),
];

/// Minimum number of arguments of a command that runs a script: the script and the number of its keys.
const MIN_SCRIPT_ARGUMENTS: usize = 2;

/// Prefix of the module's own commands. These are refused, because a command that runs itself would overflow
/// the stack.
const OWN_PREFIX: &[u8] = b"lock.";

/// Nesting depth of running commands. Commands of other modules could call each other endlessly.
static DEPTH: ServerCell<Cell<u32>> = ServerCell::new(Cell::new(0));
const MAX_DEPTH: u32 = 2;

impl CommandKind {
    /// The kind of a command, by its original name in the server.
    fn of(name: &[u8]) -> CommandKind {
        if name.get(..OWN_PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(OWN_PREFIX)) {
            return CommandKind::Refused;
        }
        let known = KNOWN.iter().find(|(known, _)| known.to_bytes().eq_ignore_ascii_case(name));
        known.map_or(CommandKind::Other, |(_, kind)| *kind)
    }
}

/// The permissions that a command runs with.
#[derive(Clone, Copy)]
enum Permissions {
    Caller,
    All,
}

/// A command and its arguments.
pub(crate) struct GuardedCommand<'a> {
    /// The first word. The server ends every string with a NUL.
    name: &'a CStr,
    args: Args<'a>,
    is_script: bool,
}

impl<'a> GuardedCommand<'a> {
    /// Parses the words of a command. Fails with [`NotGuarded::NotAllowed`] if the module cannot run it.
    pub(crate) fn of(ctx: Ctx<'_>, words: Args<'a>) -> Result<GuardedCommand<'a>, NotGuarded> {
        let name = words.c_str(0).ok_or(NotGuarded::NotAllowed)?;
        let kind = match known_names_are_renamed(ctx).then(|| calls::original_name(ctx, name)).flatten() {
            Some(original) => CommandKind::of(&original),
            None => CommandKind::of(name.to_bytes()),
        };
        let command = GuardedCommand { name, args: words.from(1), is_script: kind == CommandKind::Script };
        match kind {
            // Another module cannot run a script either, because its call cannot wait for the reply. A
            // transaction is executed by a client.
            CommandKind::Script if ctx.flags().is_called_by_code() => Err(NotGuarded::Script),
            CommandKind::Refused => Err(NotGuarded::NotAllowed),
            CommandKind::Copy if command.args.len() > 2 && selected_database::server_has_defect() => {
                Err(NotGuarded::NotAllowed)
            }
            _ if DEPTH.get(ctx).get() >= MAX_DEPTH => Err(NotGuarded::NotAllowed),
            CommandKind::Script | CommandKind::Copy | CommandKind::Other => Ok(command),
        }
    }

    /// True if the command runs a script.
    pub(crate) fn is_script(&self) -> bool {
        self.is_script
    }

    /// True if the command must be [`deferred`](super::deferred), because it may take long and its client may
    /// disconnect while it runs.
    pub(crate) fn must_be_deferred(&self, ctx: Ctx<'_>) -> bool {
        self.is_script && !ctx.flags().denies_blocking()
    }

    /// True if the command may have written something although its reply is an error.
    pub(crate) fn may_have_written(&self, reply: &CommandReply) -> bool {
        self.is_script && !reply.has_error(b"NOSCRIPT")
    }

    /// Runs the command. In a cluster, its keys must be in the slot of `key`. No state of the module may be
    /// borrowed and no key may be open, because the command's changes raise events while it runs.
    pub(crate) fn run(&self, ctx: Ctx<'_>, key: &Str<'_>) -> Result<CommandReply, NotGuarded> {
        if ctx.is_cluster() {
            let here = LazyCell::new(|| calls::slot_of(ctx, key));
            let is_here = |other: &Str<'_>| {
                other.as_bytes() == key.as_bytes() || here.is_some() && calls::slot_of(ctx, other) == *here
            };
            let keys = self.keys(ctx);
            if !keys.iter().all(is_here) {
                return Err(NotGuarded::CrossSlot);
            }
            // While the slot migrates, the server has only checked that the lock is on this node. The command
            // would create other keys here that are still on the other node.
            let all: Vec<&Str<'_>> = keys.iter().chain([key]).collect();
            if !keys.is_empty() && !calls::serves_slot_of(ctx, &all) {
                return Err(NotGuarded::TryAgain);
            }
        }
        let depth = DEPTH.get(ctx);
        depth.set(depth.get() + 1);
        let done = if self.is_script && ctx.flags().denies_blocking() {
            // In a transaction, the client must not be freed while its command runs. So the server must not
            // read from other clients.
            calls::with_unlimited_script_time(ctx, || self.call(ctx)).unwrap_or(Err(NotGuarded::Script))
        } else {
            self.call(ctx)
        };
        depth.set(depth.get() - 1);
        // The command filter does not see commands that a module calls, nor those that they call.
        field_expiry::invalidate_count(ctx);
        done
    }

    fn call(&self, ctx: Ctx<'_>) -> Result<CommandReply, NotGuarded> {
        let (mut reply, mut errno) = self.call_as(ctx, Permissions::Caller);
        if errno != 0 {
            // A caller without a user is unrestricted, for example another module.
            if errno == libc::ENOTSUP && reply.has_error(b"cannot run as user") {
                (reply, errno) = self.call_as(ctx, Permissions::All);
            }
            // Commands may set any error number, so the text is checked as well.
            match errno {
                libc::ESPIPE if reply.has_error(b"on script mode") => return Err(NotGuarded::NotAllowed),
                libc::EACCES if reply.has_error(b"acl verification failed") => {
                    return Err(NotGuarded::NoPermission)
                }
                libc::EPERM if reply.has_error(b"non local key") => return Err(NotGuarded::TryAgain),
                _ => {}
            }
        }
        Ok(if reply.is_empty() { CommandReply::take_leftover_error(ctx) } else { reply })
    }

    /// Calls the command with the given permissions. Also returns the error number, or 0 if the server has not set one.
    fn call_as(&self, ctx: Ctx<'_>, permissions: Permissions) -> (CommandReply, c_int) {
        // "s" takes a string, "v" an array of strings and its length, which costs the server one more allocation. "!":
        // the command replicates itself. "C": the caller's permissions. "S": only what a script may call. "M": no
        // command that needs memory if the memory is full. "E": a refusal is a reply. "0": the caller's protocol.
        let (strings, list) = match (permissions, self.is_script) {
            (Permissions::Caller, false) => (c"ssssssss!CSME0", c"v!CSME0"),
            (Permissions::All, false) => (c"ssssssss!SME0", c"v!SME0"),
            (Permissions::Caller, true) => (c"ssssssss!CME0", c"v!CME0"),
            (Permissions::All, true) => (c"ssssssss!ME0", c"v!ME0"),
        };
        let argv = self.args.raw();
        let strings =
            8_usize.checked_sub(argv.len()).and_then(|left_out| strings.to_bytes_with_nul().get(left_out..));
        // SAFETY: all arguments outlive the call. Arguments beyond the format are ignored. The error number belongs to
        // this thread.
        unsafe {
            let (ctx, name, errno) = (ctx.as_ptr(), self.name.as_ptr(), libc::__errno_location());
            *errno = 0;
            let reply = if let Some(format) = strings {
                let arg = |at: usize| argv.get(at).copied().unwrap_or(std::ptr::null_mut());
                let (format, a, b, c, d) = (format.as_ptr().cast(), arg(0), arg(1), arg(2), arg(3));
                call!(RedisModule_Call(ctx, name, format, a, b, c, d, arg(4), arg(5), arg(6), arg(7)))
            } else {
                call!(RedisModule_Call(ctx, name, list.as_ptr(), argv.as_ptr(), argv.len()))
            };
            (CommandReply(reply), *errno)
        }
    }

    /// The name and the arguments, in the format of the API.
    fn words(&self, name: &Str<'_>) -> Vec<*mut raw::RedisModuleString> {
        std::iter::once(name.as_ptr()).chain(self.args.raw().iter().copied()).collect()
    }

    /// Fails if the caller may not call the command. The server also checks this, but Redis 7.0 crashes on a
    /// refusal if the caller was blocked.
    pub(crate) fn check_permissions(&self, ctx: Ctx<'_>) -> Result<(), NotGuarded> {
        // The server itself reports too few arguments.
        let is_complete = self.args.len() >= MIN_SCRIPT_ARGUMENTS;
        let name = Str::new(self.name.to_bytes());
        if is_complete && !Caller::of(ctx).access().may_call(&mut self.words(&name)) {
            return Err(NotGuarded::NoPermission);
        }
        Ok(())
    }

    /// The keys of the command.
    fn keys(&self, ctx: Ctx<'_>) -> Vec<Str<'a>> {
        let name = Str::new(self.name.to_bytes());
        let mut argv = self.words(&name);
        let (Ok(argc), mut found) = (c_int::try_from(argv.len()), 0) else { return Vec::new() };
        // SAFETY: the array has this length and outlives the call. The result is null or an array of positions, which
        // is freed here.
        unsafe {
            let places = call!(RedisModule_GetCommandKeys(ctx.as_ptr(), argv.as_mut_ptr(), argc, &mut found));
            if places.is_null() {
                return Vec::new();
            }
            let len = usize::try_from(found).unwrap_or(0);
            let at = std::slice::from_raw_parts(places, len).iter();
            let keys =
                at.filter_map(|at| self.args.string(usize::try_from(*at).ok()?.checked_sub(1)?)).collect();
            call!(RedisModule_Free(places.cast()));
            keys
        }
    }
}

impl CommandReply {
    pub(crate) fn is_error(&self) -> bool {
        // SAFETY: the reply is null or valid; null is treated as unknown.
        let kind = unsafe { call!(RedisModule_CallReplyType(self.0)) };
        kind == reply_type(raw::REDISMODULE_REPLY_ERROR) || kind == reply_type(raw::REDISMODULE_REPLY_UNKNOWN)
    }

    /// True if there is no reply at all.
    fn is_empty(&self) -> bool {
        let mut len = 0;
        if !self.0.is_null() {
            // SAFETY: the reply is valid. The returned pointer is not used.
            unsafe { call!(RedisModule_CallReplyProto(self.0, &mut len)) };
        }
        len == 0
    }

    /// Fetches the error of a command that did not return a reply.
    ///
    /// Valkey (at least 8.1 to 9.1) misplaces errors of `GETDEL`, `GETSET` and others if any module
    /// subscribes to keyspace events. The error stays with the internal client that the server uses for such
    /// calls. The next call uses the same client, and gets that error instead of its own reply.
    fn take_leftover_error(ctx: Ctx<'_>) -> CommandReply {
        // SAFETY: the format takes no argument.
        let reply =
            CommandReply(unsafe { call!(RedisModule_Call(ctx.as_ptr(), c"PING".as_ptr(), c"E".as_ptr())) });
        if reply.is_error() {
            reply
        } else {
            CommandReply(std::ptr::null_mut())
        }
    }

    /// True if the reply is an error that contains these words.
    fn has_error(&self, words: &[u8]) -> bool {
        // SAFETY: the reply is null or valid.
        self.is_error() && unsafe { text_of(self.0) }.windows(words.len()).any(|part| part == words)
    }

    /// Sends the reply to the client. False if there is none because the server could not parse the call.
    pub(crate) fn forward(self, ctx: Ctx<'_>) -> bool {
        // SAFETY: the reply is valid.
        !self.0.is_null()
            && unsafe { call!(RedisModule_ReplyWithCallReply(ctx.as_ptr(), self.0)) } == crate::server::OK
    }
}

impl Drop for CommandReply {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the reply is owned by this value and freed once.
            unsafe { call!(RedisModule_FreeCallReply(self.0)) };
        }
    }
}

/// True if a command with special treatment may have another name. Renamed commands that the server refuses
/// anyway do not matter.
fn known_names_are_renamed(ctx: Ctx<'_>) -> bool {
    static KNOWN_NAMES_ARE_RENAMED: ServerCell<OnceCell<bool>> = ServerCell::new(OnceCell::new());
    *KNOWN_NAMES_ARE_RENAMED.get(ctx).get_or_init(|| {
        let is_old = version::server_version().is_none_or(|version| version < WAITAOF_SINCE);
        let matter = KNOWN.iter().filter(|(_, kind)| *kind != CommandKind::Script).map(|(name, _)| *name);
        // A command that the server does not have cannot be renamed.
        matter.filter(|name| !(is_old && *name == c"waitaof")).any(|name| !calls::knows_command(ctx, name))
    })
}

/// First version with `WAITAOF`.
const WAITAOF_SINCE: version::Version = version::Version::new(7, 2, 0);
