//! `LOCK.HELP`

use std::ffi::CStr;

use crate::error::Error;
use crate::server::load::{Args, Command, Spec};
use crate::server::Ctx;

const LINES: [&CStr; 17] = [
    c"LOCK.<subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    c"ACQUIRE <key> <owner|*> [PX <milliseconds> | EX <seconds>] [BLOCK <milliseconds>]",
    c"    Take a lock: the owner's hold count, or nil if somebody else holds it.",
    c"    BLOCK waits in the server, 0 without limit. * makes a random owner.",
    c"RELEASE <key> <owner> [PX <milliseconds> | EX <seconds>] [ALL]",
    c"    Give back one hold, or all: the holds that are left.",
    c"RENEW <key> <owner> [PX <milliseconds> | EX <seconds>]",
    c"    Set the lease anew: the hold count.",
    c"BREAK <key>",
    c"    End every hold, whoever has it: how many owners lost it.",
    c"INFO <key>",
    c"    Who holds the lock, for how long, and how many wait; nil if it is free.",
    c"WAITERS <key> [COUNT <count>]",
    c"    Who waits for the lock, first in line first.",
    c"HELP",
    c"    Print this help.",
    c"A lease that is not given is lock.default-lease milliseconds long.",
];

pub(crate) struct Help;

impl Command for Help {
    const SPEC: Spec = Spec {
        name: c"lock.help",
        flags: c"allow-loading allow-stale",
        categories: c"slow",
        key: None,
        arity: 1,
        summary: c"Lists the commands of the module.",
        complexity: c"O(1)",
    };

    fn run(ctx: Ctx, _args: Args<'_>) -> Result<(), Error> {
        ctx.reply_array(LINES.len());
        for line in LINES {
            ctx.reply_simple(line);
        }
        Ok(())
    }
}
