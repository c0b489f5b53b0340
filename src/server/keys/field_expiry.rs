// SPDX-License-Identifier: MIT

//! The expiry of hash fields with their own TTL. Avoids the query where no field can have one.
//!
//! Redis 8 has an API function for the query. Other servers need a command, which costs half as much as a
//! renewal. So on Valkey, the module runs it only if a field can have a TTL. That is the case if a command
//! that sets one was seen, or if the server counts keys with such fields. The count is refreshed after a
//! while, because a key may also come from a file or another server.

use std::cell::{Cell, OnceCell};

use redis_module::raw;

use crate::core::MonoUs;
use crate::server::calls::reply_type;
use crate::server::{calls, Ctx, InCallback, ServerCell, Str};

/// How to query the expiry of fields.
#[derive(Clone, Copy)]
pub(crate) enum FieldTtlSupport {
    /// This server does not support TTLs of fields.
    None,
    /// A function of the module API (Redis 8).
    Api,
    /// A command (Redis 7.4, Valkey 9).
    Command,
}

/// Time for which the server's count of keys with such fields is cached, in microseconds.
const COUNT_TTL_US: MonoUs = 100_000;

/// The commands that set the TTL of a field.
const SETTERS: [&[u8]; 6] = [b"hexpire", b"hpexpire", b"hexpireat", b"hpexpireat", b"hsetex", b"hgetex"];

/// Whether fields can have TTLs at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldTtls {
    /// No field has a TTL. The count has to be refreshed at this time.
    NoneUntil(MonoUs),
    Possible,
}

static FIELD_TTLS: ServerCell<Cell<FieldTtls>> = ServerCell::new(Cell::new(FieldTtls::Possible));

/// Starts to rely on the command filter, which calls [`note_command`].
pub(in crate::server) fn watch_commands(ctx: Ctx<'_>) {
    FIELD_TTLS.get(ctx).set(FieldTtls::NoneUntil(0));
}

/// Records a command that is about to run and whose name begins with `h`.
pub(in crate::server) fn note_command(proof: InCallback, name: &[u8]) {
    if SETTERS.iter().any(|setter| setter.eq_ignore_ascii_case(name)) {
        FIELD_TTLS.get(proof).set(FieldTtls::Possible);
    }
}

/// Invalidates the count after commands that the filter does not see.
pub(in crate::server) fn invalidate_count(proof: impl Into<InCallback>) {
    let known = FIELD_TTLS.get(proof);
    if known.get() != FieldTtls::Possible {
        known.set(FieldTtls::NoneUntil(0));
    }
}

impl FieldTtlSupport {
    /// How to query the expiry of fields on this server; `None` if no field can have a TTL.
    pub(in crate::server) fn of_server(ctx: Ctx<'_>) -> FieldTtlSupport {
        static OF_SERVER: ServerCell<OnceCell<FieldTtlSupport>> = ServerCell::new(OnceCell::new());
        let of_server = *OF_SERVER.get(ctx).get_or_init(|| {
            // SAFETY: the function table is filled at load and does not change later.
            if unsafe { raw::RedisModule_HashFieldMinExpire }.is_some() {
                FieldTtlSupport::Api
            } else if calls::knows_command(ctx, c"hpexpiretime") {
                FieldTtlSupport::Command
            } else {
                FieldTtlSupport::None
            }
        });
        match of_server {
            FieldTtlSupport::Command if !fields_may_have_ttls(ctx) => FieldTtlSupport::None,
            of_server => of_server,
        }
    }
}

fn fields_may_have_ttls(ctx: Ctx<'_>) -> bool {
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

/// True if `INFO keyspace` reports for every database that no key has fields with TTLs.
fn has_no_volatile_fields(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let mut databases = text.lines().filter(|line| line.starts_with("db"));
    databases.all(|line| line.trim().split(',').any(|count| count == "keys_with_volatile_items=0"))
}

fn info_keyspace(ctx: Ctx<'_>) -> Option<Vec<u8>> {
    // SAFETY: "c" takes a C string. The reply is null or valid, and its text is copied before it is freed.
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

/// Queries the expiry of the first of these fields by a command, in milliseconds since the epoch.
pub(in crate::server) fn first_end_by_command(
    ctx: Ctx<'_>,
    key: &Str<'_>,
    fields: &[Vec<u8>],
) -> Option<i64> {
    let words = [Str::new(b"FIELDS"), Str::from_number(i64::try_from(fields.len()).ok()?)];
    let fields: Vec<Str<'_>> = fields.iter().map(|field| Str::new(field)).collect();
    let args = std::iter::once(key).chain(&words).chain(&fields);
    let argv: Vec<*mut raw::RedisModuleString> = args.map(|arg| arg.as_ptr()).collect();
    // SAFETY: "v" takes an array of strings and its length. The reply and its elements are null or valid: a number for
    // each field, negative if the field is missing or has no TTL.
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
    fn only_zero_counts_mean_no_volatile_fields() {
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
