// SPDX-License-Identifier: MIT

//! Loading: the functions that the server must have, and the options that the module sets.

use std::ffi::{c_int, CStr};

use redis_module::raw;

use crate::server::callback::ctx::warn;
use crate::server::registration::command::Args;
use crate::server::version::{is_redis, Version};
use crate::server::{calls, Ctx, OK};

/// Registers the module at the server. Must run before everything else, even before memory is allocated. False if the
/// server refuses.
///
/// # Safety
/// `ctx` is the context that `RedisModule_OnLoad` got.
pub(crate) unsafe fn init(ctx: *mut raw::RedisModuleCtx, name: &'static CStr, version: c_int) -> bool {
    let api = raw::REDISMODULE_APIVER_1.cast_signed();
    // SAFETY: guaranteed by the caller. The name is a C string.
    unsafe { raw::Export_RedisModule_Init(ctx, name.as_ptr(), version, api) == OK }
}

/// The arguments of `loadmodule` after the path.
///
/// # Safety
/// `argv` and `argc` are those of `RedisModule_OnLoad`. The result is not kept.
pub(crate) unsafe fn module_args<'a>(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Args<'a> {
    // SAFETY: guaranteed by the caller.
    unsafe { Args::new(argv, argc) }
}

/// Returns the missing functions among those that the module calls unconditionally. All were introduced in
/// Redis 7.0 or earlier.
pub(crate) fn missing_symbols() -> Vec<&'static str> {
    macro_rules! absent {
        ($($function:ident)*) => {
            // SAFETY: the function table is filled by `init` and does not change later.
            unsafe { [$((stringify!($function), { raw::$function }.is_none())),*] }
        };
    }
    let symbols = absent!(
        RedisModule_ACLCheckCommandPermissions
        RedisModule_ACLCheckKeyPermissions RedisModule_AvoidReplicaTraffic RedisModule_BlockClient
        RedisModule_BlockedClientDisconnected RedisModule_Call RedisModule_CallReplyArrayElement
        RedisModule_CallReplyInteger RedisModule_CallReplyLength RedisModule_CallReplyProto
        RedisModule_CallReplyStringPtr RedisModule_CallReplyType RedisModule_CloseKey
        RedisModule_CommandFilterArgGet RedisModule_CommandFilterArgsCount RedisModule_CreateCommand
        RedisModule_CreateString RedisModule_CreateStringFromLongLong RedisModule_CreateTimer
        RedisModule_DeleteKey RedisModule_EventLoopAddOneShot RedisModule_Free RedisModule_FreeCallReply
        RedisModule_FreeModuleUser RedisModule_FreeServerInfo RedisModule_FreeString
        RedisModule_FreeThreadSafeContext RedisModule_GetAbsExpire RedisModule_GetBlockedClientHandle
        RedisModule_GetBlockedClientPrivateData RedisModule_GetClientId RedisModule_GetClientInfoById
        RedisModule_GetCommand RedisModule_GetCommandKeys RedisModule_GetContextFlags
        RedisModule_GetDetachedThreadSafeContext RedisModule_GetModuleUserFromUserName
        RedisModule_GetNotifyKeyspaceEvents RedisModule_GetSelectedDb RedisModule_GetServerInfo
        RedisModule_GetThreadSafeContext RedisModule_HashGet RedisModule_HashSet
        RedisModule_InfoAddFieldLongLong RedisModule_InfoAddSection RedisModule_KeyExists RedisModule_KeyType
        RedisModule_LoadConfigs RedisModule_Log RedisModule_Milliseconds RedisModule_MonotonicMicroseconds
        RedisModule_NotifyKeyspaceEvent RedisModule_OpenKey RedisModule_PublishMessage
        RedisModule_PublishMessageShard RedisModule_RegisterCommandFilter RedisModule_RegisterEnumConfig
        RedisModule_RegisterInfoFunc RedisModule_RegisterNumericConfig RedisModule_Replicate
        RedisModule_ReplicateVerbatim RedisModule_ReplySetArrayLength RedisModule_ReplyWithArray
        RedisModule_ReplyWithCallReply RedisModule_ReplyWithError RedisModule_ReplyWithLongLong
        RedisModule_ReplyWithMap RedisModule_ReplyWithNull RedisModule_ReplyWithSimpleString
        RedisModule_ReplyWithStringBuffer RedisModule_ScanCursorCreate RedisModule_ScanCursorDestroy
        RedisModule_ScanKey RedisModule_SelectDb RedisModule_ServerInfoGetField RedisModule_SetAbsExpire
        RedisModule_SetCommandInfo RedisModule_SetDisconnectCallback RedisModule_SetModuleOptions
        RedisModule_SignalModifiedKey RedisModule_StopTimer RedisModule_StringDMA RedisModule_StringPtrLen
        RedisModule_StringSet RedisModule_StringToLongLong RedisModule_SubscribeToKeyspaceEvents
        RedisModule_SubscribeToServerEvent RedisModule_UnblockClient RedisModule_UnlinkKey
        RedisModule_ValueLength RedisModule_WrongArity RedisModule_ZsetLastInScoreRange
        RedisModule_ZsetRangeCurrentElement RedisModule_ZsetRangeStop
    );
    symbols.into_iter().filter_map(|(name, is_absent)| is_absent.then_some(name)).collect()
}

/// Logs panics with their location.
pub(crate) fn log_panics() {
    std::panic::set_hook(Box::new(|panic| log_defect(&panic.to_string())));
}

/// Logs a bug: a state that should be impossible.
pub(crate) fn log_defect(what: &str) {
    warn(std::ptr::null_mut(), &format!("defect in redis-lock, please report: {what}"));
}

/// Undoes [`log_panics`]. The logging code disappears when the module is unloaded.
pub(crate) fn stop_logging_panics() {
    drop(std::panic::take_hook());
}

/// Option that tells Valkey that the module supports atomic slot migration.
const HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

/// Option by which Valkey does not look up a command by its name each time a module replicates it.
const SKIP_COMMAND_VALIDATION: u32 = 1 << 4;

/// First Valkey with this option. In Redis, the bit may get another meaning.
const SKIP_VALIDATION_SINCE: Version = Version::new(8, 1, 0);

/// First Valkey version known to migrate the writes of timers correctly. It sends a replicated command with a
/// key of the slot to the new node, whether a client or a timer caused the write. Earlier versions were not
/// examined.
const SAFE_ATOMIC_MIGRATION_SINCE: Version = Version::new(9, 0, 5);

/// Sets the options of the module:
///
/// * A key counts as modified when the module reports it, not whenever it was open for writing.
/// * Replicated commands need no lookup: they were checked at load and cannot be renamed later.
/// * A replica may load data while it serves clients.
/// * Slots may migrate atomically. The module does not touch keys of a slot that is not served here, which `reconcile`
///   in the driver checks. It replicates its writes as commands with their keys.
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
    // SAFETY: the context belongs to the module.
    unsafe { call!(RedisModule_SetModuleOptions(ctx.as_ptr(), options.cast_signed())) };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    /// The identifiers that follow each `mark`, after spaces.
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

    /// Without the check at load, a missing function would only be noticed when a client needs it.
    #[test]
    fn load_checks_exactly_the_called_functions() {
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
