// SPDX-License-Identifier: MIT

//! `LOCK.TOP`

use super::args::Cursor;
use super::options::{options, TopCount};
use super::{count, milliseconds};
use crate::driver;
use crate::error::Error;
use crate::server::registration::arguments::Arguments;
use crate::server::registration::command::{Args, Command, Spec};
use crate::server::Ctx;

options! {
    Options {
        count: TopCount,
    }
}

pub(crate) struct Top;

impl Command for Top {
    const SPEC: Spec = Spec {
        name: c"lock.top",
        flags: c"readonly",
        categories: c"read slow dangerous",
        key: None,
        arguments: Arguments { positional: &[], options: Options::ARGUMENTS },
        summary: c"Lists the locks with the longest total wait since the module was loaded.",
        reply: "An array of maps.",
        complexity: c"O(1)",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.top", args);
        let mut options = Options::default();
        options.read(&mut args)?;
        let db = ctx.db();
        driver::with(ctx, |driver| {
            let mut top = driver.locks.statistics().longest_waited(db);
            top.truncate(options.count.get());
            ctx.reply_array(top.len());
            for waited in top {
                let number =
                    |number: u64| ctx.reply_integer(count(usize::try_from(number).unwrap_or(usize::MAX)));
                ctx.reply_map(5);
                ctx.reply_bulk(b"key");
                ctx.reply_bulk(&waited.lock.key);
                ctx.reply_bulk(b"waits");
                number(waited.waits);
                ctx.reply_bulk(b"waited");
                ctx.reply_integer(milliseconds(waited.waited_us));
                ctx.reply_bulk(b"longest");
                ctx.reply_integer(milliseconds(waited.longest_us));
                ctx.reply_bulk(b"error");
                ctx.reply_integer(milliseconds(waited.over_us));
            }
        });
        Ok(())
    }
}
