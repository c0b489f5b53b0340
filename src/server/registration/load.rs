// SPDX-License-Identifier: MIT

//! Loading: the functions that the server must have, and the options that the module sets.

use std::ffi::{c_int, CStr};

use redis_module::raw;

use crate::server::callback::ctx::warn;
use crate::server::registration::command::Args;
use crate::server::version::{is_redis, Version};
use crate::server::{calls, Ctx, OK};

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
    symbols.into_iter().filter_map(|(name, is_absent)| is_absent.then_some(name)).collect()
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
pub(crate) fn stop_logging_panics() {
    drop(std::panic::take_hook());
}

/// The option that says to Valkey that a module is ready for slots that move as a whole.
const HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

/// The option that lets Valkey not look for a command by its name each time that a module replicates it.
const SKIP_COMMAND_VALIDATION: u32 = 1 << 4;

/// The first Valkey that knows this option. To Redis its bit may mean something else one day.
const SKIP_VALIDATION_SINCE: Version = Version::new(8, 1, 0);

/// Valkey sends what a module writes to the new node if the command that stands for it has a key of the slot: also from a
/// timer, where no client's command is being carried out. Those before this one have not been looked at.
const SAFE_ATOMIC_MIGRATION_SINCE: Version = Version::new(9, 0, 5);

/// A key counts as modified when we say so, not whenever it was open for writing; the commands that are replicated have been
/// looked for when the module was loaded, and cannot be renamed later; and nothing of ours stands in the way of a replica that loads while it serves, or of a slot that moves as a whole: keys of a slot that is not served here
/// are not touched (`look_at` in the driver asks), and what is written is sent as commands with their keys.
pub(crate) fn set_options(ctx: Ctx<'_>, server: Version) {
    let mut options =
        raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
    let messages_are_known = || [c"publish", c"spublish"].iter().all(|name| calls::knows_command(ctx, name));
    if !is_redis() && server >= SKIP_VALIDATION_SINCE && messages_are_known() {
        options |= SKIP_COMMAND_VALIDATION;
    }
    if !is_redis() && server >= SAFE_ATOMIC_MIGRATION_SINCE {
        options |= HANDLE_ATOMIC_SLOT_MIGRATION;
    }
    // SAFETY: the context is that of the module.
    unsafe { call!(RedisModule_SetModuleOptions(ctx.as_ptr(), options.cast_signed())) };
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
