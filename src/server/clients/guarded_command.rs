// SPDX-License-Identifier: MIT

//! A command that is carried out on behalf of the client that calls the module's, as if that client had called it: with its
//! permissions, its protocol, and what the command itself replicates.
//!
//! Not every command can be. What a script may not call, could block the client, change its connection, or end in a state
//! that nobody expects inside of another command: the server refuses it (`S`). Some that a script may call end some servers
//! when a module calls them; those are refused here, by what they are called in the sources of the server.

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

/// What the command has replied.
pub(crate) struct Reply(*mut raw::RedisModuleCallReply);

/// What matters of a command's name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommandKind {
    /// Refused although scripts may call it.
    Refused,
    /// It runs a script, which only a client may call ([`deferred`](super::deferred)). The server refuses these (`S`), as it would those
    /// that a script calls.
    Script,
    /// Into another database it would be replicated for the wrong one, see [`selected_database`].
    Copy,
    Other,
}

/// The commands that are known by their names. `WAIT` and `WAITAOF` end Redis 7.0, Valkey 8.0 and Valkey 8.1, and would say
/// nothing about the caller's writes; `CLUSTER SETSLOT` ends Valkey 8.1 and 9.1; `PFDEBUG` and `PFSELFTEST` are the server's own
/// tests.
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

/// Of a command that runs a script: what is run, and how many keys there are.
const MIN_SCRIPT_ARGUMENTS: usize = 2;

/// The module's own commands begin like this: one that carries out itself, that again itself, and so on, needs a stack without
/// end.
const OWN_PREFIX: &[u8] = b"lock.";

/// How many commands are being carried out, one within the other: those of other modules could call each other without end.
static DEPTH: ServerCell<Cell<u32>> = ServerCell::new(Cell::new(0));
const MAX_DEPTH: u32 = 2;

impl CommandKind {
    /// Of a command that the server itself calls so.
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
pub(crate) struct Command<'a> {
    /// Of the first word, which the server ends with a NUL, as it does with every string.
    name: &'a CStr,
    args: Args<'a>,
    is_script: bool,
}

impl<'a> Command<'a> {
    /// The command that these words are. [`NotGuarded::NotAllowed`] if it is none that can be carried out.
    pub(crate) fn of(ctx: Ctx<'_>, words: Args<'a>) -> Result<Command<'a>, NotGuarded> {
        let name = words.c_str(0).ok_or(NotGuarded::NotAllowed)?;
        let kind = match known_names_are_renamed(ctx).then(|| calls::original_name(ctx, name)).flatten() {
            Some(original) => CommandKind::of(&original),
            None => CommandKind::of(name.to_bytes()),
        };
        let command = Command { name, args: words.from(1), is_script: kind == CommandKind::Script };
        match kind {
            // Nor for another module, whose call gets its reply at once. A transaction is carried out by a client.
            CommandKind::Script if ctx.flags().is_called_by_code() => Err(NotGuarded::Script),
            CommandKind::Refused => Err(NotGuarded::NotAllowed),
            CommandKind::Copy if command.args.len() > 2 && selected_database::server_has_defect() => {
                Err(NotGuarded::NotAllowed)
            }
            _ if DEPTH.get(ctx).get() >= MAX_DEPTH => Err(NotGuarded::NotAllowed),
            CommandKind::Script | CommandKind::Copy | CommandKind::Other => Ok(command),
        }
    }

    /// True if it runs a script.
    pub(crate) fn is_script(&self) -> bool {
        self.is_script
    }

    /// True if it is to be carried out [`deferred`](super::deferred): it may last, and its client go meanwhile.
    pub(crate) fn must_be_deferred(&self, ctx: Ctx<'_>) -> bool {
        self.is_script && !ctx.flags().denies_blocking()
    }

    /// True if it may have written something although it has replied with an error.
    pub(crate) fn may_have_written(&self, reply: &Reply) -> bool {
        self.is_script && !reply.has_error(b"NOSCRIPT")
    }

    /// Carries it out. In a cluster its keys have to be in the slot of `key`. Nothing of the module's own may be borrowed, and
    /// no key be open: events about what it changes come meanwhile.
    pub(crate) fn run(&self, ctx: Ctx<'_>, key: &Str<'_>) -> Result<Reply, NotGuarded> {
        if ctx.is_cluster() {
            let here = LazyCell::new(|| calls::slot_of(ctx, key));
            let is_here = |other: &Str<'_>| {
                other.as_bytes() == key.as_bytes() || here.is_some() && calls::slot_of(ctx, other) == *here
            };
            let keys = self.keys(ctx);
            if !keys.iter().all(is_here) {
                return Err(NotGuarded::CrossSlot);
            }
            // While the slot migrates, the server has looked for the lock only. What is still at the other node would begin anew
            // here.
            let all: Vec<&Str<'_>> = keys.iter().chain([key]).collect();
            if !keys.is_empty() && !calls::serves_slot_of(ctx, &all) {
                return Err(NotGuarded::TryAgain);
            }
        }
        let depth = DEPTH.get(ctx);
        depth.set(depth.get() + 1);
        let done = if self.is_script && ctx.flags().denies_blocking() {
            // In a transaction: its client must not be freed in the middle of it, so no other is read meanwhile.
            calls::with_unlimited_script_time(ctx, || self.call(ctx)).unwrap_or(Err(NotGuarded::Script))
        } else {
            self.call(ctx)
        };
        depth.set(depth.get() - 1);
        // Commands that a module calls are not filtered, nor those that they call.
        field_expiry::invalidate_count(ctx);
        done
    }

    fn call(&self, ctx: Ctx<'_>) -> Result<Reply, NotGuarded> {
        let (mut reply, mut why) = self.call_as(ctx, Permissions::Caller);
        if why != 0 {
            // Who calls without a user may do everything: another module, for one.
            if why == libc::ENOTSUP && reply.has_error(b"cannot run as user") {
                (reply, why) = self.call_as(ctx, Permissions::All);
            }
            // Commands may leave any number of an error behind, so the text is looked at, too.
            match why {
                libc::ESPIPE if reply.has_error(b"on script mode") => return Err(NotGuarded::NotAllowed),
                libc::EACCES if reply.has_error(b"acl verification failed") => {
                    return Err(NotGuarded::NoPermission)
                }
                libc::EPERM if reply.has_error(b"non local key") => return Err(NotGuarded::TryAgain),
                _ => {}
            }
        }
        Ok(if reply.is_empty() { Reply::take_leftover_error(ctx) } else { reply })
    }

    /// Calls it, with the permissions of the caller or with all. Returns the number of the error, too, if the server has set one.
    fn call_as(&self, ctx: Ctx<'_>, permissions: Permissions) -> (Reply, c_int) {
        // "s" takes a string, "v" a list of strings with its length, which costs the server an allocation more. "!": it is
        // replicated as it replicates itself. "C": with the caller's permissions. "S": what a script may call. "M": not if memory
        // is full and it needs some. "E": a refusal is a reply, too. "0": in the caller's protocol.
        let (strings, list) = match (permissions, self.is_script) {
            (Permissions::Caller, false) => (c"ssssssss!CSME0", c"v!CSME0"),
            (Permissions::All, false) => (c"ssssssss!SME0", c"v!SME0"),
            (Permissions::Caller, true) => (c"ssssssss!CME0", c"v!CME0"),
            (Permissions::All, true) => (c"ssssssss!ME0", c"v!ME0"),
        };
        let argv = self.args.raw();
        let strings =
            8_usize.checked_sub(argv.len()).and_then(|left_out| strings.to_bytes_with_nul().get(left_out..));
        // SAFETY: all arguments outlive the call. What is given beyond the format is not looked at. The place of the error
        // number is the thread's own.
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
            (Reply(reply), *errno)
        }
    }

    /// The name and the arguments, as the API takes them.
    fn words(&self, name: &Str<'_>) -> Vec<*mut raw::RedisModuleString> {
        std::iter::once(name.as_ptr()).chain(self.args.raw().iter().copied()).collect()
    }

    /// Fails if the caller may not call it. The server asks, too, but Redis 7.0 ends when the answer is no and the caller is one
    /// that was blocked.
    pub(crate) fn check_permissions(&self, ctx: Ctx<'_>) -> Result<(), NotGuarded> {
        // The server knows what to say of too few arguments.
        let is_complete = self.args.len() >= MIN_SCRIPT_ARGUMENTS;
        let name = Str::new(self.name.to_bytes());
        if is_complete && !Caller::of(ctx).access().may_call(&mut self.words(&name)) {
            return Err(NotGuarded::NoPermission);
        }
        Ok(())
    }

    /// The keys that it names.
    fn keys(&self, ctx: Ctx<'_>) -> Vec<Str<'a>> {
        let name = Str::new(self.name.to_bytes());
        let mut argv = self.words(&name);
        let (Ok(argc), mut found) = (c_int::try_from(argv.len()), 0) else { return Vec::new() };
        // SAFETY: the list has this length and outlives the call. The answer is null or a list of places in it, ours to free.
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

impl Reply {
    pub(crate) fn is_error(&self) -> bool {
        // SAFETY: null or the server's; null is answered as unknown.
        let kind = unsafe { call!(RedisModule_CallReplyType(self.0)) };
        kind == reply_type(raw::REDISMODULE_REPLY_ERROR) || kind == reply_type(raw::REDISMODULE_REPLY_UNKNOWN)
    }

    /// True if there is no reply at all.
    fn is_empty(&self) -> bool {
        let mut len = 0;
        if !self.0.is_null() {
            // SAFETY: the reply is the server's; what is returned is not looked at.
            unsafe { call!(RedisModule_CallReplyProto(self.0, &mut len)) };
        }
        len == 0
    }

    /// What a command has replied whose reply did not come: Valkey (8.1 to 9.1 at least) leaves the errors of `GETDEL`, `GETSET`
    /// and others that a module calls with the client by which it called them, if any module listens to keyspace events. The
    /// same client makes the next call, and that gets them instead of its own reply.
    #[cold]
    fn take_leftover_error(ctx: Ctx<'_>) -> Reply {
        // SAFETY: the format takes nothing.
        let reply = Reply(unsafe { call!(RedisModule_Call(ctx.as_ptr(), c"PING".as_ptr(), c"E".as_ptr())) });
        if reply.is_error() {
            reply
        } else {
            Reply(std::ptr::null_mut())
        }
    }

    /// True if it is an error with these words.
    fn has_error(&self, words: &[u8]) -> bool {
        // SAFETY: null or the server's.
        self.is_error() && unsafe { text_of(self.0) }.windows(words.len()).any(|part| part == words)
    }

    /// Replies with it. False if there is none, as the server could not make sense of the call.
    pub(crate) fn forward(self, ctx: Ctx<'_>) -> bool {
        // SAFETY: the reply is the server's.
        !self.0.is_null()
            && unsafe { call!(RedisModule_ReplyWithCallReply(ctx.as_ptr(), self.0)) } == crate::server::OK
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the reply is ours, and freed once.
            unsafe { call!(RedisModule_FreeCallReply(self.0)) };
        }
    }
}

/// True if a command that is known by its name may have another one. What the server refuses anyway may have any.
fn known_names_are_renamed(ctx: Ctx<'_>) -> bool {
    static KNOWN_NAMES_ARE_RENAMED: ServerCell<OnceCell<bool>> = ServerCell::new(OnceCell::new());
    *KNOWN_NAMES_ARE_RENAMED.get(ctx).get_or_init(|| {
        let is_old = version::server_version().is_none_or(|version| version < WAITAOF_SINCE);
        let matter = KNOWN.iter().filter(|(_, kind)| *kind != CommandKind::Script).map(|(name, _)| *name);
        // What a server does not have, is not renamed either.
        matter.filter(|name| !(is_old && *name == c"waitaof")).any(|name| !calls::knows_command(ctx, name))
    })
}

/// Since when there is `WAITAOF`.
const WAITAOF_SINCE: version::Version = version::Version::new(7, 2, 0);
