// SPDX-License-Identifier: MIT

//! When fields of a hash end by a TTL of their own, and how not to ask where there are none.
//!
//! Redis 8 has a function for that. On other servers with such TTLs a command says it, which costs as much as half a
//! renewal. So it is asked on Valkey only if a field can have a TTL: some command that sets one was seen, or the server counts
//! keys that have such fields. The count is asked for again after a while, as a key may also come from a file or from another
//! server.

use std::cell::{Cell, OnceCell};

use redis_module::raw;

use crate::core::MonoUs;
use crate::server::calls::reply_type;
use crate::server::{calls, Ctx, InCallback, ServerCell, Str};

/// How it is found out.
#[derive(Clone, Copy)]
pub(crate) enum FieldTtlSupport {
    /// This server has no such TTLs.
    None,
    /// By a function of the module API (Redis 8).
    Api,
    /// By a command (Redis 7.4, Valkey 9).
    Command,
}

/// For how long the server's count is taken for what it was, in microseconds.
const COUNT_TTL_US: MonoUs = 100_000;

/// The commands that give a field a TTL.
const SETTERS: [&[u8]; 6] = [b"hexpire", b"hpexpire", b"hexpireat", b"hpexpireat", b"hsetex", b"hgetex"];

/// Whether fields can have TTLs here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldTtls {
    /// From when on that is to be asked.
    NoneUntil(MonoUs),
    Possible,
}

static FIELD_TTLS: ServerCell<Cell<FieldTtls>> = ServerCell::new(Cell::new(FieldTtls::Possible));

/// Commands are seen from now on: see [`seen`].
pub(in crate::server) fn watch_commands(ctx: Ctx<'_>) {
    FIELD_TTLS.get(ctx).set(FieldTtls::NoneUntil(0));
}

/// A command whose name begins with an `h` is about to be carried out.
pub(in crate::server) fn note_command(proof: InCallback, name: &[u8]) {
    if SETTERS.iter().any(|setter| setter.eq_ignore_ascii_case(name)) {
        FIELD_TTLS.get(proof).set(FieldTtls::Possible);
    }
}

/// Commands were carried out that are not seen.
pub(in crate::server) fn invalidate_count(proof: impl Into<InCallback>) {
    let known = FIELD_TTLS.get(proof);
    if known.get() != FieldTtls::Possible {
        known.set(FieldTtls::NoneUntil(0));
    }
}

impl FieldTtlSupport {
    /// How it is found on this server, if there can be such a field.
    pub(in crate::server) fn of_server(ctx: Ctx<'_>) -> FieldTtlSupport {
        static OF_SERVER: ServerCell<OnceCell<FieldTtlSupport>> = ServerCell::new(OnceCell::new());
        let of_server = *OF_SERVER.get(ctx).get_or_init(|| {
            // SAFETY: the table of functions is filled at load and not changed after.
            if unsafe { raw::RedisModule_HashFieldMinExpire }.is_some() {
                FieldTtlSupport::Api
            } else if calls::knows_command(ctx, c"hpexpiretime") {
                FieldTtlSupport::Command
            } else {
                FieldTtlSupport::None
            }
        });
        match of_server {
            FieldTtlSupport::Command if !are_possible(ctx) => FieldTtlSupport::None,
            of_server => of_server,
        }
    }
}

fn are_possible(ctx: Ctx<'_>) -> bool {
    let known = FIELD_TTLS.get(ctx);
    let FieldTtls::NoneUntil(until) = known.get() else { return true };
    let now = ctx.now().mono;
    if now >= until {
        let none = info_keyspace(ctx).is_some_and(|text| has_no_volatile_fields(&text));
        known.set(if none {
            FieldTtls::NoneUntil(now.saturating_add(COUNT_TTL_US))
        } else {
            FieldTtls::Possible
        });
    }
    known.get() == FieldTtls::Possible
}

/// True if no database has keys with such fields, as far as `INFO keyspace` says so.
fn has_no_volatile_fields(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let mut databases = text.lines().filter(|line| line.starts_with("db"));
    databases.all(|line| line.trim().split(',').any(|count| count == "keys_with_volatile_items=0"))
}

fn info_keyspace(ctx: Ctx<'_>) -> Option<Vec<u8>> {
    // SAFETY: "c" takes a C string. The reply is null or the server's, and its text is copied before it is freed.
    unsafe {
        let (command, section) = (c"INFO".as_ptr(), c"keyspace".as_ptr());
        let reply = call!(RedisModule_Call(ctx.as_ptr(), command, c"c".as_ptr(), section));
        if reply.is_null() {
            return None;
        }
        let is_text = call!(RedisModule_CallReplyType(reply)) == reply_type(raw::REDISMODULE_REPLY_STRING);
        let text = is_text.then(|| crate::server::calls::text_of(reply));
        call!(RedisModule_FreeCallReply(reply));
        text
    }
}

/// When the first of these fields ends, in milliseconds since the epoch, by asking with a command.
pub(in crate::server) fn first_end_by_command(
    ctx: Ctx<'_>,
    key: &Str<'_>,
    fields: &[Vec<u8>],
) -> Option<i64> {
    let words = [Str::new(b"FIELDS"), Str::from_number(i64::try_from(fields.len()).ok()?)];
    let fields: Vec<Str<'_>> = fields.iter().map(|field| Str::new(field)).collect();
    let args = std::iter::once(key).chain(&words).chain(&fields);
    let argv: Vec<*mut raw::RedisModuleString> = args.map(|arg| arg.as_ptr()).collect();
    // SAFETY: "v" takes a list of strings with its length. The reply is null or the server's, and so are its elements: a
    // number for each field, negative for one that has no TTL or is not there.
    unsafe {
        let (list, len) = (argv.as_ptr(), argv.len());
        let reply = call!(RedisModule_Call(ctx.as_ptr(), c"HPEXPIRETIME".as_ptr(), c"v".as_ptr(), list, len));
        if reply.is_null() {
            return None;
        }
        let count = call!(RedisModule_CallReplyLength(reply));
        let elements = (0..count).map(|at| call!(RedisModule_CallReplyArrayElement(reply, at)));
        let ends = elements.filter(|end| !end.is_null()).map(|end| call!(RedisModule_CallReplyInteger(end)));
        let first = ends.filter(|end| *end >= 0).min();
        call!(RedisModule_FreeCallReply(reply));
        first
    }
}

#[cfg(test)]
mod tests {
    use super::has_no_volatile_fields;

    #[test]
    fn only_a_count_of_zero_in_every_database_is_none() {
        let none = "# Keyspace\r\ndb0:keys=1,expires=0,avg_ttl=0,keys_with_volatile_items=0\r\n";
        assert!(has_no_volatile_fields(b"# Keyspace\r\n"));
        assert!(has_no_volatile_fields(none.as_bytes()));
        for other in
            ["db3:keys=1,expires=0,avg_ttl=0,keys_with_volatile_items=10\r\n", "db3:keys=1,expires=0\r\n"]
        {
            assert!(!has_no_volatile_fields(format!("{none}{other}").as_bytes()), "{other}");
        }
    }
}
