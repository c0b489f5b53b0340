// SPDX-License-Identifier: MIT

//! A way around a defect of Valkey 8.1.
//!
//! For a keyspace event that a client's command raises, that server lends the module the client itself as its
//! context, and selects the event's database in it, without undoing that. After `MOVE key db` and
//! `COPY key other DB db` the client then works in another database than it chose, and the command is
//! replicated for that one: the replica loses the key. Any module that listens to keyspace events does that to
//! it. So the database that the client had is selected again after such an event. On other servers the
//! context's client is one of the server's own, to which this does nothing.
//!
//! `MOVE` raises an event in the client's database just before. `COPY` does not: its database is looked up when
//! the command is filtered. That is not possible for one in a script, whose client has no id, and not
//! exact in a transaction, whose commands are filtered when they are queued.

use std::cell::Cell;
use std::ffi::c_int;

use redis_module::raw;

use crate::server::keys::{field_expiry, string};
use crate::server::version::{self, Version};
use crate::server::{guard, Ctx, InCallback, ServerCell, OK};

/// The first Valkey without this defect.
const FIXED_SINCE: Version = Version::new(9, 0, 0);

/// The database that the latest `MOVE` moved from.
static MOVED_FROM: ServerCell<Cell<i32>> = ServerCell::new(Cell::new(0));

/// The client of the latest `COPY` into another database, and its own.
static COPY_IN_PROGRESS: ServerCell<Cell<Option<(u64, i32)>>> = ServerCell::new(Cell::new(None));

/// Gives the lent client its database back, after this event.
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

/// True if the server has this defect.
pub(in crate::server) fn server_has_defect() -> bool {
    let version = version::server_version();
    !version::is_redis() && version.is_some_and(|version| version < FIXED_SINCE)
}

/// Sees to it that `COPY` is noticed. It costs every command something: so not on a server without the defect. False if the
/// server refuses.
pub(crate) fn watch_copies(ctx: Ctx<'_>) -> bool {
    unsafe extern "C" fn filter(command: *mut raw::RedisModuleCommandFilterCtx) {
        // This runs for every command of every client: leave at once.
        let command = Filtered(command);
        let name = command.bytes(0);
        if matches!(name, [b'c' | b'C' | b'h' | b'H', ..]) {
            // SAFETY: this is a callback.
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
    // SAFETY: the callback has the type that the server calls it with.
    let is_registered =
        unsafe { !call!(RedisModule_RegisterCommandFilter(ctx.as_ptr(), Some(filter), flags)).is_null() };
    if is_registered {
        field_expiry::watch_commands(ctx);
    }
    is_registered
}

/// Notes the client of a `COPY key other DB db`.
fn note_copy(proof: InCallback, command: &Filtered) {
    if !command.bytes(0).eq_ignore_ascii_case(b"copy") {
        return;
    }
    // One that raised no event must not be taken for a later one.
    COPY_IN_PROGRESS.get(proof).set(None);
    if command.len() < 5 {
        return;
    }
    let copies = command.client().and_then(|client| Some((client, selected_db(client)?)));
    COPY_IN_PROGRESS.get(proof).set(copies);
}

/// The database that a client has selected.
fn selected_db(client: u64) -> Option<i32> {
    // SAFETY: all fields are numbers or arrays of them, for which zero is a value.
    let mut info: raw::RedisModuleClientInfo = unsafe { std::mem::zeroed() };
    info.version = 1;
    // SAFETY: the structure is of the version that it says.
    let found = unsafe { call!(RedisModule_GetClientInfoById((&raw mut info).cast(), client)) };
    (found == OK).then(|| i32::from(info.db))
}

/// A command that is about to be looked up.
struct Filtered(*mut raw::RedisModuleCommandFilterCtx);

impl Filtered {
    fn len(&self) -> usize {
        // SAFETY: the filter's context is valid until the callback returns.
        let count = unsafe { call!(RedisModule_CommandFilterArgsCount(self.0)) };
        usize::try_from(count).unwrap_or(0)
    }

    fn bytes(&self, at: c_int) -> &[u8] {
        // SAFETY: as in `len`; the server answers null for a place that is not there, and the strings live as long.
        unsafe {
            let arg = call!(RedisModule_CommandFilterArgGet(self.0, at));
            if arg.is_null() {
                return &[];
            }
            string::bytes(arg)
        }
    }

    /// The client that sent the command, where the server says.
    fn client(&self) -> Option<u64> {
        // SAFETY: the filter's context is valid until the callback returns.
        unsafe { raw::RedisModule_CommandFilterGetClientId.map(|id| id(self.0)) }
    }
}
