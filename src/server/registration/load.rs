// SPDX-License-Identifier: MIT

//! Loading: what the server must be able to do, and registering what the module offers.

use std::cell::Cell;
use std::ffi::{c_int, CStr, CString};
use std::ptr;

use redis_module::raw;

use crate::server::callback::ctx::warn;
use crate::server::callback::guard::INTERNAL_ERROR;
use crate::server::calls::{reply_type, text_of};
use crate::server::registration::arguments::Arguments;
use crate::server::registration::info;
use crate::server::version::Version;
use crate::server::{enter, Ctx, ServerCell, Str, OK};

/// A command of the module.
pub(crate) trait Command {
    /// How the server knows it.
    const SPEC: Spec;
    /// Carries it out and replies, or says why not.
    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), crate::error::Error>;
}

/// What the server has to know of a command.
pub(crate) struct Spec {
    pub(crate) name: &'static CStr,
    /// See `RedisModule_CreateCommand`.
    pub(crate) flags: &'static CStr,
    /// ACL categories, on servers that let modules choose them (Redis 7.2, Valkey 8).
    pub(crate) categories: &'static CStr,
    /// What happens to its keys, and where they stand, if the command has any.
    pub(crate) key: Option<KeyUse>,
    pub(crate) arguments: Arguments,
    pub(crate) summary: &'static CStr,
    /// What it replies, if nothing goes wrong.
    pub(crate) reply: &'static str,
    pub(crate) complexity: &'static CStr,
}

impl Spec {
    /// As it is written.
    pub(crate) fn title(&self) -> String {
        self.name.to_string_lossy().to_ascii_uppercase()
    }

    /// What it does, in one sentence.
    pub(crate) fn about(&self) -> &'static str {
        self.summary.to_str().unwrap_or_default()
    }
}

/// Since which version of the module there is a command.
pub(crate) const SINCE: &CStr = c"0.1.0";

/// What a command does with its keys, which decides what permission it takes, and where they stand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyUse {
    /// Its key is the first argument.
    Read,
    /// The same.
    Write,
    /// Its first argument is how many keys there are, and they follow. The server asks for permissions for all of them; in a cluster
    /// it looks at the first one only, to tell which node is to be asked, so the command has to look whether all are in one slot.
    WriteSeveral,
}

impl KeyUse {
    fn flags(self) -> u64 {
        u64::from(match self {
            KeyUse::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
            KeyUse::Write | KeyUse::WriteSeveral => {
                raw::REDISMODULE_CMD_KEY_RW
                    | raw::REDISMODULE_CMD_KEY_ACCESS
                    | raw::REDISMODULE_CMD_KEY_UPDATE
            }
        })
    }
}

/// The arguments of a command, its name first.
#[derive(Clone, Copy)]
pub(crate) struct Args<'a>(&'a [*mut raw::RedisModuleString]);

impl<'a> Args<'a> {
    /// # Safety
    /// `argv` has `argc` strings of the server, which live as long as `'a`.
    unsafe fn new(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Args<'a> {
        let len = usize::try_from(argc).unwrap_or(0);
        if len == 0 {
            return Args(&[]);
        }
        // SAFETY: the caller's promise.
        Args(unsafe { std::slice::from_raw_parts(argv, len) })
    }

    /// # Safety
    /// The strings live as long as `'a`.
    pub(in crate::server) unsafe fn of(strings: &'a [*mut raw::RedisModuleString]) -> Args<'a> {
        Args(strings)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Those from this place on.
    pub(crate) fn from(&self, at: usize) -> Args<'a> {
        Args(self.0.get(at..).unwrap_or_default())
    }

    /// As the API takes them.
    pub(in crate::server) fn raw(&self) -> &'a [*mut raw::RedisModuleString] {
        self.0
    }

    /// The argument at this place as a string of the server.
    pub(crate) fn string(&self, at: usize) -> Option<Str<'a>> {
        // SAFETY: the strings live as long as `'a`.
        self.0.get(at).map(|raw| unsafe { Str::borrowed(*raw) })
    }

    /// The argument at this place, which the server ends with a NUL, as it does with every string; `None` if it has one inside.
    pub(in crate::server) fn c_str(&self, at: usize) -> Option<&'a CStr> {
        let content = self.bytes(at)?;
        // SAFETY: the server's strings are followed by a NUL, which belongs to them.
        let with_nul = unsafe { std::slice::from_raw_parts(content.as_ptr(), content.len() + 1) };
        CStr::from_bytes_with_nul(with_nul).ok()
    }

    /// The content of the argument at this place.
    pub(crate) fn bytes(&self, at: usize) -> Option<&'a [u8]> {
        // SAFETY: the strings live, unchanged, as long as `'a`.
        self.0.get(at).map(|raw| unsafe { crate::server::keys::string::bytes(*raw) })
    }
}

/// Introduces the module to the server: before anything else, memory included. False if the server refuses.
///
/// # Safety
/// `ctx` is the context that `RedisModule_OnLoad` got.
pub(crate) unsafe fn init(ctx: *mut raw::RedisModuleCtx, name: &'static CStr, version: c_int) -> bool {
    let api = raw::REDISMODULE_APIVER_1.cast_signed();
    // SAFETY: the caller's promise; the name is a C string.
    unsafe { raw::Export_RedisModule_Init(ctx, name.as_ptr(), version, api) == OK }
}

/// The arguments that `loadmodule` has after the path.
///
/// # Safety
/// `argv` and `argc` are what `RedisModule_OnLoad` got; the result is not kept.
pub(crate) unsafe fn module_args<'a>(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Args<'a> {
    // SAFETY: the caller's promise.
    unsafe { Args::new(argv, argc) }
}

/// Functions of the API that the module calls without asking first whether they are there. All came with
/// Redis 7.0 or before.
pub(crate) fn missing_symbols() -> Vec<&'static str> {
    macro_rules! absent {
        ($($function:ident)*) => {
            // SAFETY: the table of functions is filled by `init` and not changed after.
            unsafe { [$((stringify!($function), { raw::$function }.is_none())),*] }
        };
    }
    let symbols = absent!(
        RedisModule_ACLCheckChannelPermissions RedisModule_ACLCheckCommandPermissions RedisModule_ACLCheckKeyPermissions RedisModule_AvoidReplicaTraffic RedisModule_BlockClient RedisModule_BlockedClientDisconnected
        RedisModule_Call RedisModule_CallReplyArrayElement RedisModule_CallReplyInteger RedisModule_CallReplyLength
        RedisModule_CallReplyProto RedisModule_CallReplyStringPtr RedisModule_CallReplyType RedisModule_GetCommandKeys RedisModule_Free RedisModule_ReplyWithCallReply RedisModule_CloseKey RedisModule_CommandFilterArgGet
        RedisModule_CommandFilterArgsCount RedisModule_CreateCommand
        RedisModule_CreateString RedisModule_CreateStringFromLongLong RedisModule_CreateTimer RedisModule_FreeThreadSafeContext RedisModule_GetDetachedThreadSafeContext
        RedisModule_DeleteKey RedisModule_EventLoopAddOneShot RedisModule_FreeCallReply RedisModule_FreeModuleUser RedisModule_FreeServerInfo RedisModule_FreeString RedisModule_GetAbsExpire
        RedisModule_GetBlockedClientHandle RedisModule_GetBlockedClientPrivateData RedisModule_GetClientId
        RedisModule_GetClientInfoById RedisModule_GetCommand RedisModule_GetContextFlags RedisModule_GetModuleUserFromUserName RedisModule_GetNotifyKeyspaceEvents
        RedisModule_GetSelectedDb RedisModule_GetServerInfo RedisModule_GetThreadSafeContext RedisModule_HashGet RedisModule_HashSet
        RedisModule_InfoAddFieldLongLong RedisModule_InfoAddSection RedisModule_KeyExists RedisModule_KeyType RedisModule_LoadConfigs
        RedisModule_Log RedisModule_Milliseconds RedisModule_MonotonicMicroseconds
        RedisModule_NotifyKeyspaceEvent RedisModule_OpenKey RedisModule_PublishMessage
        RedisModule_PublishMessageShard RedisModule_RegisterCommandFilter RedisModule_RegisterEnumConfig
        RedisModule_RegisterInfoFunc RedisModule_RegisterNumericConfig RedisModule_Replicate RedisModule_ReplicateVerbatim
        RedisModule_ReplySetArrayLength RedisModule_ReplyWithArray RedisModule_ReplyWithError RedisModule_ReplyWithLongLong
        RedisModule_ReplyWithMap RedisModule_ReplyWithNull RedisModule_ReplyWithSimpleString RedisModule_ReplyWithStringBuffer
        RedisModule_ScanCursorCreate RedisModule_ScanCursorDestroy RedisModule_ScanKey RedisModule_SelectDb
        RedisModule_ServerInfoGetField
        RedisModule_SetAbsExpire RedisModule_SetCommandInfo RedisModule_SetDisconnectCallback
        RedisModule_SetModuleOptions RedisModule_SignalModifiedKey RedisModule_StopTimer
        RedisModule_StringDMA RedisModule_StringPtrLen RedisModule_StringSet RedisModule_StringToLongLong RedisModule_SubscribeToKeyspaceEvents RedisModule_SubscribeToServerEvent
        RedisModule_UnblockClient RedisModule_UnlinkKey RedisModule_ValueLength RedisModule_WrongArity
        RedisModule_ZsetLastInScoreRange RedisModule_ZsetRangeCurrentElement RedisModule_ZsetRangeStop
    );
    symbols.into_iter().filter_map(|(name, absent)| absent.then_some(name)).collect()
}

/// Sends panics to the server's log, with their place.
pub(crate) fn log_panics() {
    std::panic::set_hook(Box::new(|panic| log_defect(&panic.to_string())));
}

/// Sends what cannot have happened to the server's log.
pub(crate) fn log_defect(what: &str) {
    warn(std::ptr::null_mut(), &format!("defect in redis-lock, please report: {what}"));
}

/// Undoes [`log_panics`], whose code goes away with the module.
pub(crate) fn log_panics_no_more() {
    drop(std::panic::take_hook());
}

/// The option that says to Valkey that a module is ready for slots that move as a whole.
const HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

/// The option that lets Valkey not look for a command by its name each time that a module replicates it.
const SKIP_COMMAND_VALIDATION: u32 = 1 << 4;

/// The first Valkey that knows this option. To Redis its bit may mean something else one day.
const SKIPS_VALIDATION_SINCE: Version = Version::new(8, 1, 0);

/// Valkey sends what a module writes to the new node if the command that stands for it has a key of the slot: also from a
/// timer, where no client's command is being carried out. Those before this one have not been looked at.
const MOVES_WHAT_TIMERS_WRITE: Version = Version::new(9, 0, 5);

/// A key counts as modified when we say so, not whenever it was open for writing; the commands that are replicated have been
/// looked for when the module was loaded, and cannot be renamed later; and nothing of ours stands in the way of a replica that loads while it serves, or of a slot that moves as a whole: keys of a slot that is not served here
/// are not touched (`look_at` in the driver asks), and what is written is sent as commands with their keys.
pub(crate) fn set_options(ctx: Ctx<'_>, server: Version) {
    let mut options =
        raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
    let messages_are_known = || [c"publish", c"spublish"].iter().all(|name| knows_command(ctx, name));
    if !info::is_redis() && server >= SKIPS_VALIDATION_SINCE && messages_are_known() {
        options |= SKIP_COMMAND_VALIDATION;
    }
    if !info::is_redis() && server >= MOVES_WHAT_TIMERS_WRITE {
        options |= HANDLE_ATOMIC_SLOT_MIGRATION;
    }
    // SAFETY: the context is that of the module.
    unsafe { call!(RedisModule_SetModuleOptions(ctx.as_ptr(), options.cast_signed())) };
}

/// True if the server knows this command under this name: an operator may have renamed it.
pub(crate) fn knows_command(ctx: Ctx<'_>, name: &CStr) -> bool {
    original_name(ctx, name).is_some()
}

/// What the server itself calls the command that has this name here; `None` if there is none, or if the server does not say.
pub(in crate::server) fn original_name(ctx: Ctx<'_>, name: &CStr) -> Option<Vec<u8>> {
    // SAFETY: "cc" takes two C strings. The reply is an array with one element, null if there is none such, else an array that
    // begins with the name.
    unsafe {
        let (command, info) = (c"COMMAND".as_ptr(), c"INFO".as_ptr());
        let reply = call!(RedisModule_Call(ctx.as_ptr(), command, c"cc".as_ptr(), info, name.as_ptr()));
        if reply.is_null() {
            return None;
        }
        let entry = call!(RedisModule_CallReplyArrayElement(reply, 0));
        let is_there = !entry.is_null()
            && call!(RedisModule_CallReplyType(entry)) == reply_type(raw::REDISMODULE_REPLY_ARRAY);
        let original = is_there.then(|| text_of(call!(RedisModule_CallReplyArrayElement(entry, 0))));
        call!(RedisModule_FreeCallReply(reply));
        original
    }
}

/// Registers a command. False if the server refuses.
pub(crate) fn register<C: Command>(ctx: Ctx<'_>) -> bool {
    unsafe extern "C" fn run<C: Command>(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> c_int {
        let ran = |ctx: Ctx<'_>| {
            let arity = const { C::SPEC.arguments.arity() };
            let few = argc.unsigned_abs() < arity.unsigned_abs();
            if few || (arity > 0 && argc != arity) {
                return ctx.reply_wrong_arity();
            }
            // SAFETY: the server passes the arguments of the command, which live until it returns.
            let args = unsafe { Args::new(argv, argc) };
            if let Err(error) = C::run(ctx, args) {
                ctx.reply_error(&error.to_string());
            }
        };
        // SAFETY: the context is that of this callback.
        unsafe {
            if enter(ctx, ran).is_none() {
                enter(ctx, |ctx| ctx.reply_error(INTERNAL_ERROR));
            }
        }
        OK
    }
    let spec = C::SPEC;
    let first_key = match spec.key {
        None => 0,
        Some(KeyUse::Read | KeyUse::Write) => 1,
        Some(KeyUse::WriteSeveral) => 2,
    };
    let (name, flags, key) = (spec.name.as_ptr(), spec.flags.as_ptr(), first_key);
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    // SAFETY: zero is a value for every field, and as the first field that is looked at ends the list.
    let mut key_specs: [raw::RedisModuleCommandKeySpec; 3] = unsafe { std::mem::zeroed() };
    if let Some(key) = spec.key {
        for spec in &mut key_specs[..1 + usize::from(key == KeyUse::WriteSeveral)] {
            spec.flags = key.flags();
            spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
            spec.bs.index.pos = 1;
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            // From the first key to the first key.
            let range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 {
                lastkey: 0,
                keystep: 1,
                limit: 0,
            };
            spec.fk.range = range;
        }
        if key == KeyUse::WriteSeveral {
            key_specs[0].find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            key_specs[0].fk.keynum = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 {
                keynumidx: 0,
                firstkey: 1,
                keystep: 1,
            };
            // A cluster looks at ranges only, see `KeyUse::WriteSeveral`.
            key_specs[1].bs.index.pos = 2;
            key_specs[1].flags = u64::from(raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_NOT_KEY);
        }
    }
    let info = |args| raw::RedisModuleCommandInfo {
        version: &version,
        summary: spec.summary.as_ptr(),
        complexity: spec.complexity.as_ptr(),
        since: SINCE.as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: spec.arguments.arity(),
        key_specs: if spec.key.is_some() { key_specs.as_mut_ptr() } else { ptr::null_mut() },
        args,
    };
    // SAFETY: all texts are static; the server copies what it keeps of the information.
    unsafe {
        if call!(RedisModule_CreateCommand(ctx.as_ptr(), name, Some(run::<C>), flags, key, key, key.min(1)))
            != OK
        {
            return false;
        }
        let command = call!(RedisModule_GetCommand(ctx.as_ptr(), name));
        if command.is_null() {
            return false;
        }
        let mut info = info;
        let set = |args| call!(RedisModule_SetCommandInfo(command, &info(args))) == OK;
        if !spec.arguments.with_raw(set) {
            return false;
        }
        let Some(set) = raw::RedisModule_SetCommandACLCategories else { return true };
        let mut categories = spec.categories.to_owned().into_bytes();
        if HAS_CATEGORY.get(ctx).get() {
            categories.push(b' ');
            categories.extend_from_slice(CATEGORY.to_bytes());
        }
        let categories = CString::new(categories).unwrap_or_default();
        set(command, categories.as_ptr()) == OK
    }
}

/// The ACL category of all commands of the module, `@lock`.
const CATEGORY: &CStr = c"lock";

/// The server knows that category.
static HAS_CATEGORY: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// Makes an ACL category for the commands that are registered after that, where modules can (Redis 7.4, Valkey 8).
pub(crate) fn add_category(ctx: Ctx<'_>) {
    // SAFETY: the context is that of the module, which is being loaded; the place of the error number is the thread's own.
    let has_category = unsafe {
        raw::RedisModule_AddACLCategory.is_some_and(|add| {
            *libc::__errno_location() = 0;
            // It stays when the module is unloaded.
            add(ctx.as_ptr(), CATEGORY.as_ptr()) == OK || *libc::__errno_location() == libc::EBUSY
        })
    };
    HAS_CATEGORY.get(ctx).set(has_category);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    /// The identifiers that begin the text after each `mark`, spaces left out.
    fn names_after<'a>(text: &'a str, mark: &str) -> impl Iterator<Item = &'a str> {
        let pieces: Vec<&str> = text.split(mark).skip(1).collect();
        pieces.into_iter().map(|piece| {
            let piece = piece.trim_start();
            let end = piece.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(piece.len());
            &piece[..end]
        })
    }

    fn sources(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(fs::read_to_string(path).unwrap());
            }
        }
    }

    /// A function that is called and not looked for at load would be missed when a client needs it.
    #[test]
    fn what_is_called_is_looked_for_at_load_and_nothing_else() {
        let mut files = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
        let called: BTreeSet<&str> = files
            .iter()
            .flat_map(|file| names_after(file, concat!("call", "!(")))
            .filter(|name| name.starts_with("RedisModule_"))
            .collect();
        let own = include_str!("load.rs");
        let (_, list) = own.split_once("let symbols = absent!(").unwrap();
        let (list, _) = list.split_once(");").unwrap();
        let looked_for: Vec<&str> = list.split_whitespace().collect();
        assert!(called.len() > 50, "the calls were not found: {called:?}");
        assert_eq!(looked_for.len(), looked_for.iter().collect::<BTreeSet<_>>().len(), "named twice");
        let looked_for: BTreeSet<&str> = looked_for.into_iter().collect();
        let missing: Vec<_> = called.difference(&looked_for).collect();
        let needless: Vec<_> = looked_for.difference(&called).collect();
        assert!(missing.is_empty(), "called, and not looked for at load: {missing:?}");
        assert!(needless.is_empty(), "looked for at load, and never called: {needless:?}");
    }
}
