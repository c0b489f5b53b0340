//! A command that is carried out on behalf of the client that calls the module's, as if that client had called it: with its
//! permissions, its protocol, and what the command itself replicates.
//!
//! Not every command can be. What a script may not call, could block the client, change its connection, or end in a state
//! that nobody expects inside of another command: the server refuses it (`S`). Some that a script may call end some servers
//! when a module calls them; those are refused here, by what they are called in the sources of the server.

use std::cell::{Cell, OnceCell};
use std::ffi::{c_int, CString};

use redis_module::raw;
use smallvec::SmallVec;

use crate::server::ask::{reply_type, text_of};
use crate::server::load::{knows_command, Args};
use crate::server::{field_ends, selected_database, version, Ctx, ServerCell, Str};

/// Why a command is not carried out. Nothing has happened then.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Not one that can be carried out on behalf of somebody.
    NotAllowed,
    /// The caller may not call it, or not with these keys or channels.
    NoPermission,
    /// It has keys of another slot.
    CrossSlot,
    /// It has keys that are not here while the slot is on its way to another node, or from it.
    TryAgain,
}

/// What the command has replied.
pub(crate) struct Reply(*mut raw::RedisModuleCallReply);

/// The names of commands that are refused although scripts may call them:
///
/// * `WAIT` and `WAITAOF` end Redis 7.0, Valkey 8.0 and Valkey 8.1, and would say nothing about the caller's writes;
/// * the others are the server's own tests.
const REFUSED: [&[u8]; 4] = [b"wait", b"waitaof", b"pfdebug", b"pfselftest"];

/// The module's own commands begin like this: one that carries out itself, that again itself, and so on, needs a stack
/// without end.
const OWN: &[u8] = b"lock.";

/// The commands that run a script. The server refuses them for a script, and ends if a module calls one in a script.
const SCRIPTS: [&[u8]; 6] = [b"eval", b"evalsha", b"eval_ro", b"evalsha_ro", b"fcall", b"fcall_ro"];

/// How many commands are being carried out, one within the other.
static DEPTH: ServerCell<Cell<u32>> = ServerCell::new(Cell::new(0));

/// A script that is carried out may carry out a command, and no more.
const DEEPEST: u32 = 2;

/// The name of a command; on the stack, unless it is long.
type Kind = SmallVec<[u8; 24]>;

/// A command and its arguments.
pub(crate) struct Command<'a> {
    name: CString,
    /// What the server calls it, in lower case: its operator may have renamed it.
    kind: Kind,
    args: Args<'a>,
}

impl<'a> Command<'a> {
    /// The command that these words are. [`Refused::NotAllowed`] if it is none that can be carried out.
    pub(crate) fn of(ctx: Ctx<'_>, words: Args<'a>) -> Result<Command<'a>, Refused> {
        let name = words.bytes(0).unwrap_or_default();
        let c_name = CString::new(name).map_err(|_| Refused::NotAllowed)?;
        let mut kind = Kind::from_slice(name);
        if are_renamed(ctx) {
            kind = original_name(ctx, &c_name).unwrap_or(kind);
        }
        kind.make_ascii_lowercase();
        let command = Command { name: c_name, kind, args: words.from(1) };
        // It would be replicated for the wrong database.
        let moves_database = command.kind[..] == *b"copy" && command.args.len() > 2;
        let deeper = command.runs_script() && (ctx.is_script() || DEPTH.get(ctx).get() > 0);
        if command.kind.starts_with(OWN)
            || REFUSED.contains(&&command.kind[..])
            || (moves_database && selected_database::is_lent())
            || deeper
            || DEPTH.get(ctx).get() >= DEEPEST
        {
            return Err(Refused::NotAllowed);
        }
        Ok(command)
    }

    /// True if it runs a script or a function, which can call any command.
    pub(crate) fn runs_script(&self) -> bool {
        SCRIPTS.contains(&&self.kind[..])
    }

    /// Carries it out. In a cluster its keys have to be in the slot of `key`. Nothing of the module's own may be borrowed, and
    /// no key be open: events about what it changes come meanwhile.
    pub(crate) fn carry_out(&self, ctx: Ctx<'_>, key: &Str<'_>) -> Result<Reply, Refused> {
        if ctx.is_cluster() && !self.keys(ctx).iter().all(|other| share_slot(ctx, key, other)) {
            return Err(Refused::CrossSlot);
        }
        let depth = DEPTH.get(ctx);
        depth.set(depth.get() + 1);
        let done = self.call(ctx);
        depth.set(depth.get() - 1);
        // Commands that a module calls are not filtered, nor those that they call.
        field_ends::count_again(ctx);
        done
    }

    fn call(&self, ctx: Ctx<'_>) -> Result<Reply, Refused> {
        // The server stores a short number in 8 bytes less if nobody else has the argument. We have, so it does not.
        let argv = self.args.raw();
        // "!": it is replicated as it replicates itself. "C": with the caller's permissions. "S": what a script may call. "M": not
        // if memory is full and it needs some. "E": a refusal is a reply, too. "0": in the caller's protocol.
        let formats = if self.runs_script() { [c"v!CME0", c"v!ME0"] } else { [c"v!CSME0", c"v!SME0"] };
        let mut reply = Reply(std::ptr::null_mut());
        for format in formats {
            let (name, argv, len) = (self.name.as_ptr(), argv.as_ptr(), argv.len());
            // SAFETY: "v" takes a list of strings with its length, which outlive the call. The place of the error number is the
            // thread's own.
            unsafe {
                *libc::__errno_location() = 0;
                reply = Reply(call!(RedisModule_Call(ctx.as_ptr(), name, format.as_ptr(), argv, len)));
            }
            // Who calls without a user may do everything: another module, for one.
            if !reply.is_refused(libc::ENOTSUP, b"cannot run as user") {
                break;
            }
        }
        if reply.is_empty() {
            reply = Reply::left_behind(ctx);
        }
        if reply.is_refused(libc::ESPIPE, b"on script mode") {
            return Err(Refused::NotAllowed);
        }
        if reply.is_refused(libc::EACCES, b"acl verification failed") {
            return Err(Refused::NoPermission);
        }
        if reply.is_refused(libc::EPERM, b"non local key") {
            return Err(Refused::TryAgain);
        }
        Ok(reply)
    }

    /// The keys that it names.
    fn keys(&self, ctx: Ctx<'_>) -> Vec<Str<'a>> {
        let name = Str::new(self.name.as_bytes());
        let words = std::iter::once(name.as_ptr()).chain(self.args.raw().iter().copied());
        let mut argv: Vec<*mut raw::RedisModuleString> = words.collect();
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
    fn left_behind(ctx: Ctx<'_>) -> Reply {
        // SAFETY: the format takes nothing.
        let reply = Reply(unsafe { call!(RedisModule_Call(ctx.as_ptr(), c"PING".as_ptr(), c"E".as_ptr())) });
        if reply.is_error() {
            reply
        } else {
            Reply(std::ptr::null_mut())
        }
    }

    /// True if the server has refused the command for this reason. The command's own replies are no such, whatever they say.
    fn is_refused(&self, why: c_int, text: &[u8]) -> bool {
        let refused = std::io::Error::last_os_error().raw_os_error() == Some(why) && self.is_error();
        // SAFETY: null or the server's.
        refused && unsafe { text_of(self.0) }.windows(text.len()).any(|part| part == text)
    }

    /// Replies with it. False if there is none, as the server could not make sense of the call.
    pub(crate) fn pass_on(self, ctx: Ctx<'_>) -> bool {
        // SAFETY: the reply is the server's.
        !self.0.is_null()
            && unsafe { call!(RedisModule_ReplyWithCallReply(ctx.as_ptr(), self.0)) } == super::OK
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

/// True if one of the commands that are known by their names may have another one.
fn are_renamed(ctx: Ctx<'_>) -> bool {
    static ARE_RENAMED: ServerCell<OnceCell<bool>> = ServerCell::new(OnceCell::new());
    *ARE_RENAMED.get(ctx).get_or_init(|| {
        let has = |name| knows_command(ctx, name);
        // What a server does not have, is not renamed either.
        let all = [c"wait", c"pfdebug", c"pfselftest", c"copy", c"eval", c"evalsha", c"fcall", c"eval_ro"];
        !all.into_iter().all(has)
            || version::server_version().is_some_and(|version| version >= WAITAOF_SINCE) && !has(c"waitaof")
    })
}

/// Since when there is `WAITAOF`.
const WAITAOF_SINCE: version::Version = version::Version::new(7, 2, 0);

/// What the server itself calls a command; `None` if there is none of this name, or if the server does not say.
fn original_name(ctx: Ctx<'_>, name: &CString) -> Option<Kind> {
    // SAFETY: "cc" takes two C strings. The reply is null or the server's, and so are its elements.
    unsafe {
        let (command, info) = (c"COMMAND".as_ptr(), c"INFO".as_ptr());
        let reply = call!(RedisModule_Call(ctx.as_ptr(), command, c"cc".as_ptr(), info, name.as_ptr()));
        if reply.is_null() {
            return None;
        }
        let entry = call!(RedisModule_CallReplyArrayElement(reply, 0));
        let entry = if entry.is_null() { entry } else { call!(RedisModule_CallReplyArrayElement(entry, 0)) };
        let original = Kind::from_vec(text_of(entry));
        call!(RedisModule_FreeCallReply(reply));
        (!original.is_empty()).then_some(original)
    }
}

/// True if both keys are in one slot, as the server reckons.
fn share_slot(ctx: Ctx<'_>, a: &Str<'_>, b: &Str<'_>) -> bool {
    let slot = |key: &Str<'_>| {
        // SAFETY: "cs" takes a C string and one of the server's. The reply is null or the server's.
        unsafe {
            let (command, keyslot) = (c"CLUSTER".as_ptr(), c"KEYSLOT".as_ptr());
            let reply = call!(RedisModule_Call(ctx.as_ptr(), command, c"cs".as_ptr(), keyslot, key.as_ptr()));
            if reply.is_null() {
                return None;
            }
            let is_number =
                call!(RedisModule_CallReplyType(reply)) == reply_type(raw::REDISMODULE_REPLY_INTEGER);
            let slot = is_number.then(|| call!(RedisModule_CallReplyInteger(reply)));
            call!(RedisModule_FreeCallReply(reply));
            slot
        }
    };
    a.as_bytes() == b.as_bytes() || slot(a).is_some_and(|here| slot(b) == Some(here))
}
