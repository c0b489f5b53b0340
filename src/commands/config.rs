//! `LOCK.CONFIG GET pattern [pattern ...]`: what `CONFIG GET` becomes when it asks for a `lock.` setting on a
//! server that knows it by another name. Not meant to be typed.

use super::args::Cursor;
use crate::config::shown_name;
use crate::error::Error;
use crate::server::load::{Args, Command, Spec};
use crate::server::Ctx;

pub(crate) struct Config;

impl Command for Config {
    const SPEC: Spec = Spec {
        name: c"lock.config",
        flags: c"admin deny-script allow-loading allow-stale",
        categories: c"admin slow dangerous",
        key: None,
        arity: -3,
        summary: c"CONFIG GET with the names of this module's settings as CONFIG SET takes them.",
        complexity: c"O(N) where N settings are asked for",
    };

    fn run(ctx: Ctx, args: Args<'_>) -> Result<(), Error> {
        if !args.bytes(1).is_some_and(|word| word.eq_ignore_ascii_case(b"GET")) {
            return Err(Cursor::new("lock.config", args).unknown(args.bytes(1).unwrap_or_default()));
        }
        let pairs = ctx.config_get(args).map_err(Error::Passed)?;
        ctx.reply_map(pairs.len());
        for (name, value) in &pairs {
            ctx.reply_bulk(shown_name(name));
            ctx.reply_bulk(value);
        }
        Ok(())
    }
}
