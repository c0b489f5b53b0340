// SPDX-License-Identifier: MIT

//! Workaround for a bug in Valkey 8.1.
//!
//! For a keyspace event of a client's command, Valkey 8.1 gives the module the client itself as the context.
//! The server selects the event's database in that context, and does not select the previous one again. After
//! `MOVE key db` and `COPY key other DB db`, the client then works in the wrong database. The command is also
//! replicated for the wrong database, so the replica loses the key. Any module that subscribes to keyspace
//! events causes this. Therefore, this module selects the client's database again after such an event. On
//! other servers, the context has its own client, so this has no effect.
//!
//! `MOVE` first raises an event in the client's database. `COPY` does not, so a command filter records its
//! database. This is impossible in a script, whose client has no id. It is inexact in a transaction, because
//! the filter sees the commands when they are queued.

use std::cell::Cell;
use std::ffi::c_int;

use redis_module::raw;

use crate::server::keys::{field_expiry, string};
use crate::server::version::{self, Version};
use crate::server::{guard, Ctx, InCallback, ServerCell, OK};

/// First Valkey without the bug.
const FIXED_SINCE: Version = Version::new(9, 0, 0);

/// Source database of the latest `MOVE`.
static MOVED_FROM: ServerCell<Cell<i32>> = ServerCell::new(Cell::new(0));

/// The client of the latest `COPY` into another database, and the database of that client.
static COPY_IN_PROGRESS: ServerCell<Cell<Option<(u64, i32)>>> = ServerCell::new(Cell::new(None));

/// Selects the client's own database again after this event.
pub(in crate::server) fn restore(ctx: Ctx<'_>, event: &[u8]) {
    match event {
        b"move_from" => MOVED_FROM.get(ctx).set(ctx.db()),
        b"move_to" => ctx.select_db(MOVED_FROM.get(ctx).get()),
        b"copy_to" => {
            if let Some((_, db)) =
                COPY_IN_PROGRESS.get(ctx).take().filter(|(client, _)| *client == ctx.client_id())
            {
                ctx.select_db(db);
            }
        }
        _ => {}
    }
}

/// True if the server has the bug.
pub(in crate::server) fn server_has_defect() -> bool {
    let version = version::server_version();
    !version::is_redis() && version.is_some_and(|version| version < FIXED_SINCE)
}

/// Registers a command filter that records every `COPY`. The filter slows every command down, so it is
/// registered only on servers other than Redis. Returns false if the server refuses.
pub(crate) fn watch_copies(ctx: Ctx<'_>) -> bool {
    unsafe extern "C" fn filter(command: *mut raw::RedisModuleCommandFilterCtx) {
        // This runs for every command of every client, so it must be fast.
        let command = Filtered(command);
        let name = command.bytes(0);
        if matches!(name, [b'c' | b'C' | b'h' | b'H', ..]) {
            // SAFETY: this is a callback of the server.
            let proof = unsafe { InCallback::claim() };
            guard(|| match name {
                [b'c' | b'C', ..] => note_copy(proof, &command),
                _ => field_expiry::note_command(proof, name),
            });
        }
    }
    if version::is_redis() {
        return true;
    }
    let flags = raw::REDISMODULE_CMDFILTER_NOSELF.cast_signed();
    // SAFETY: the callback has the type that the server expects.
    let is_registered =
        unsafe { !call!(RedisModule_RegisterCommandFilter(ctx.as_ptr(), Some(filter), flags)).is_null() };
    if is_registered {
        field_expiry::watch_commands(ctx);
    }
    is_registered
}

/// Records the client of a `COPY key other DB db`.
fn note_copy(proof: InCallback, command: &Filtered) {
    if !command.bytes(0).eq_ignore_ascii_case(b"copy") {
        return;
    }
    // A `COPY` without an event must not be mistaken for a later one.
    COPY_IN_PROGRESS.get(proof).set(None);
    if command.len() < 5 {
        return;
    }
    let copies = command.client().and_then(|client| Some((client, selected_db(client)?)));
    COPY_IN_PROGRESS.get(proof).set(copies);
}

/// The database that a client has selected.
fn selected_db(client: u64) -> Option<i32> {
    // SAFETY: all fields are numbers or arrays of numbers, for which zero is valid.
    let mut info: raw::RedisModuleClientInfo = unsafe { std::mem::zeroed() };
    info.version = 1;
    // SAFETY: the structure has the version that it states.
    let found = unsafe { call!(RedisModule_GetClientInfoById((&raw mut info).cast(), client)) };
    (found == OK).then(|| i32::from(info.db))
}

/// A command that is about to be executed.
struct Filtered(*mut raw::RedisModuleCommandFilterCtx);

impl Filtered {
    fn len(&self) -> usize {
        // SAFETY: the context of the filter is valid until the callback returns.
        let count = unsafe { call!(RedisModule_CommandFilterArgsCount(self.0)) };
        usize::try_from(count).unwrap_or(0)
    }

    fn bytes(&self, at: c_int) -> &[u8] {
        // SAFETY: as in `len`. The server returns null for a missing argument, and the strings live as long as the
        // context.
        unsafe {
            let arg = call!(RedisModule_CommandFilterArgGet(self.0, at));
            if arg.is_null() {
                return &[];
            }
            string::bytes(arg)
        }
    }

    /// The client that sent the command, if the server reports it.
    fn client(&self) -> Option<u64> {
        // SAFETY: the context of the filter is valid until the callback returns.
        unsafe { raw::RedisModule_CommandFilterGetClientId.map(|id| id(self.0)) }
    }
}
