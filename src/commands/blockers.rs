//! `LOCK.BLOCKERS`

use super::args::Cursor;
use super::options::OWNER;
use crate::core::Owner;
use crate::driver;
use crate::error::Error;
use crate::server::arguments::Arguments;
use crate::server::load::{Args, Command, Spec};
use crate::server::Ctx;

pub(crate) struct Blockers;

impl Command for Blockers {
    const SPEC: Spec = Spec {
        name: c"lock.blockers",
        flags: c"readonly",
        categories: c"read slow dangerous",
        key: None,
        arguments: Arguments { places: &[OWNER], options: &[] },
        summary: c"Lists whom an owner waits for, nearest first, through owners that wait themselves.",
        complexity: c"O(N*log(N)) where N owners are found",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.blockers", args);
        let owner = Owner::new(args.owner()?.as_bytes());
        args.end()?;
        let edges = driver::blockers_of(ctx, &owner);
        ctx.reply_array(edges.len());
        for edge in edges {
            ctx.reply_map(2);
            ctx.reply_bulk(b"owner");
            ctx.reply_bulk(edge.owner.as_bytes());
            ctx.reply_bulk(b"key");
            ctx.reply_bulk(&edge.lock.key);
        }
        Ok(())
    }
}
