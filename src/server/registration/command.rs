// SPDX-License-Identifier: MIT

//! Commands of the module: their specification, their arguments, and their registration.

use std::cell::Cell;
use std::ffi::{c_int, CStr, CString};
use std::ptr;

use redis_module::raw;

use crate::server::callback::guard::INTERNAL_ERROR;
use crate::server::registration::arguments::Arguments;
use crate::server::{enter, Ctx, ServerCell, Str, OK};

/// A command of the module.
pub(crate) trait Command {
    /// The specification for the server.
    const SPEC: Spec;
    /// Runs the command and replies, or returns an error.
    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), crate::error::Error>;
}

/// The specification of a command, as passed to the server.
pub(crate) struct Spec {
    pub(crate) name: &'static CStr,
    /// The flags, as for `RedisModule_CreateCommand`.
    pub(crate) flags: &'static CStr,
    /// ACL categories, on servers where modules can set them (Redis 7.2, Valkey 8).
    pub(crate) categories: &'static CStr,
    /// Use and positions of its keys, if it has any.
    pub(crate) key: Option<KeyUse>,
    pub(crate) arguments: Arguments,
    pub(crate) summary: &'static CStr,
    /// The reply of a successful call.
    pub(crate) reply: &'static str,
    pub(crate) complexity: &'static CStr,
}

impl Spec {
    /// The name in capitals.
    pub(crate) fn title(&self) -> String {
        self.name.to_string_lossy().to_ascii_uppercase()
    }

    /// The summary: one sentence.
    pub(crate) fn about(&self) -> &'static str {
        self.summary.to_str().unwrap_or_default()
    }
}

/// Version of the module that introduced the commands.
pub(crate) const SINCE: &CStr = c"0.1.0";

/// The use and the positions of a command's keys. The use determines the required permissions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyUse {
    /// Reads the key that is the first argument.
    Read,
    /// Writes the key that is the first argument.
    Write,
    /// Writes several keys. The first argument is their number, and the keys follow. The server checks the
    /// permissions for all of them. In a cluster, it uses only the first key to find the node, so the command
    /// must check that all keys are in one slot.
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

/// The arguments of a command, beginning with its name.
#[derive(Clone, Copy)]
pub(crate) struct Args<'a>(&'a [*mut raw::RedisModuleString]);

impl<'a> Args<'a> {
    /// Wraps the arguments that the server passes.
    ///
    /// # Safety
    /// `argv` has `argc` strings of the server, which live as long as `'a`.
    pub(super) unsafe fn new(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Args<'a> {
        let len = usize::try_from(argc).unwrap_or(0);
        if len == 0 {
            return Args(&[]);
        }
        // SAFETY: guaranteed by the caller.
        Args(unsafe { std::slice::from_raw_parts(argv, len) })
    }

    /// Wraps a slice of strings.
    ///
    /// # Safety
    /// The strings live as long as `'a`.
    pub(in crate::server) unsafe fn of(strings: &'a [*mut raw::RedisModuleString]) -> Args<'a> {
        Args(strings)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The arguments from this position on.
    pub(crate) fn from(&self, at: usize) -> Args<'a> {
        Args(self.0.get(at..).unwrap_or_default())
    }

    /// The raw pointers for the module API.
    pub(in crate::server) fn raw(&self) -> &'a [*mut raw::RedisModuleString] {
        self.0
    }

    /// The argument at this position as a string of the server.
    pub(crate) fn string(&self, at: usize) -> Option<Str<'a>> {
        // SAFETY: the strings live as long as `'a`.
        self.0.get(at).map(|raw| unsafe { Str::borrowed(*raw) })
    }

    /// The argument at this position as a C string; `None` if it contains a NUL. The server ends every string with a
    /// NUL.
    pub(in crate::server) fn c_str(&self, at: usize) -> Option<&'a CStr> {
        let content = self.bytes(at)?;
        // SAFETY: the server's strings are followed by a NUL, which belongs to them.
        let with_nul = unsafe { std::slice::from_raw_parts(content.as_ptr(), content.len() + 1) };
        CStr::from_bytes_with_nul(with_nul).ok()
    }

    /// The content of the argument at this position.
    pub(crate) fn bytes(&self, at: usize) -> Option<&'a [u8]> {
        // SAFETY: the strings live, unchanged, as long as `'a`.
        self.0.get(at).map(|raw| unsafe { crate::server::keys::string::bytes(*raw) })
    }
}

/// Registers a command. False if the server refuses.
pub(crate) fn register<C: Command>(ctx: Ctx<'_>) -> bool {
    unsafe extern "C" fn run<C: Command>(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> c_int {
        let body = |ctx: Ctx<'_>| {
            let arity = const { C::SPEC.arguments.arity() };
            let is_too_short = argc.unsigned_abs() < arity.unsigned_abs();
            if is_too_short || (arity > 0 && argc != arity) {
                return ctx.reply_wrong_arity();
            }
            // SAFETY: the server passes the arguments of the command, which live until it returns.
            let args = unsafe { Args::new(argv, argc) };
            if let Err(error) = C::run(ctx, args) {
                ctx.reply_error(&error.to_string());
            }
        };
        // SAFETY: the context belongs to this callback.
        unsafe {
            if enter(ctx, body).is_none() {
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
    // SAFETY: zero is valid for every field, and a first field of zero ends the array.
    let mut key_specs: [raw::RedisModuleCommandKeySpec; 3] = unsafe { std::mem::zeroed() };
    if let Some(key) = spec.key {
        for spec in &mut key_specs[..1 + usize::from(key == KeyUse::WriteSeveral)] {
            spec.flags = key.flags();
            spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
            spec.bs.index.pos = 1;
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            // The range has one key: `lastkey` is relative to the first key.
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
            // The cluster only supports ranges; see `KeyUse::WriteSeveral`.
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
    // SAFETY: all texts are static. The server copies the information that it keeps.
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

/// Whether the server has that category.
static HAS_CATEGORY: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// Creates the ACL category for the commands that are registered afterwards, where modules can do so (Redis 7.4, Valkey
/// 8).
pub(crate) fn add_category(ctx: Ctx<'_>) {
    // SAFETY: the context belongs to the module, which is being loaded. The error number belongs to this thread.
    let has_category = unsafe {
        raw::RedisModule_AddACLCategory.is_some_and(|add| {
            *libc::__errno_location() = 0;
            // The category stays when the module is unloaded.
            add(ctx.as_ptr(), CATEGORY.as_ptr()) == OK || *libc::__errno_location() == libc::EBUSY
        })
    };
    HAS_CATEGORY.get(ctx).set(has_category);
}
