//! `LOCK.HELP`

use std::ffi::CStr;

use crate::error::Error;
use crate::server::load::{Args, Command, Spec};
use crate::server::Ctx;

const LINES: [&CStr; 47] = [
    c"LOCK.<subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    c"ACQUIRE <key> <owner|*> [PX <milliseconds> | EX <seconds>] [BLOCK <milliseconds>]",
    c"    [SHARED] [ONCE] [FENCE] [WATCHDOG [MAX <milliseconds>]] [EPHEMERAL]",
    c"    [REPLICAS <n> [WITHIN <milliseconds>]] [ID <request>]",
    c"    Take a lock: the owner's hold count, or nil if somebody else holds it.",
    c"    * makes a random owner.",
    c"    BLOCK waits in the server, 0 without limit.",
    c"    SHARED lets in other owners that say so too.",
    c"    ONCE is not re-entrant: the owner's own hold is in its way, too.",
    c"    FENCE asks for a token that is greater than all before.",
    c"    WATCHDOG renews the lease as long as this connection is open,",
    c"    and until the hold is MAX old.",
    c"    EPHEMERAL releases the lock when this connection closes.",
    c"    REPLICAS answers when so many replicas have acknowledged it, or undoes it.",
    c"    ID makes a repeated call do nothing and get the first one's answer.",
    c"RELEASE <key> <owner> [PX <milliseconds> | EX <seconds>] [SHARED | ALL] [ID <request>]",
    c"    Give back one hold, a shared one, or all: the holds that are left.",
    c"RENEW <key> <owner> [PX <milliseconds> | EX <seconds>] [WATCHDOG [MAX <milliseconds>]] [EPHEMERAL]",
    c"    [REPLICAS <n> [WITHIN <milliseconds>]]",
    c"    Set the lease anew: the hold count.",
    c"CANCEL <key> <owner> ID <request>",
    c"    Undo the acquire with this ID, whether it waits, was granted, or is still to come:",
    c"    1 if there was anything to undo.",
    c"CHECK <key> OWNER <owner> | TOKEN <token>",
    c"    The owner's hold count, or 1 if no newer token than this one was granted.",
    c"GUARD <key> OWNER <owner> | TOKEN <token> <command> [<arg> ...]",
    c"    Carry out the command if that is so, in the same step: the command's reply.",
    c"BREAK <key>",
    c"    End every hold, whoever has it: how many owners lost it.",
    c"INFO <key>",
    c"    Who holds the lock, for how long, and how many wait; nil if it is free.",
    c"WAITERS <key> [COUNT <count>]",
    c"    Who waits for the lock, first in line first.",
    c"LIST [MATCH <pattern>] [COUNT <count>]",
    c"    The locks that somebody waits for, longest queue first.",
    c"BLOCKERS <owner>",
    c"    Whom this owner waits for, nearest first.",
    c"HELP",
    c"    Print this help.",
    c"A lease that is not given is lock.default-lease milliseconds long.",
    c"Errors begin with ERR, or with one of these words:",
    c"    NOTOWNER: this owner holds nothing here, or not any more; or a newer token was granted.",
    c"    QUARANTINE: locks may be forgotten, and none is granted for a while.",
    c"    NOREPLICAS: too few replicas are online, or acknowledged it in time.",
    c"    WRONGTYPE: the key holds something that is no lock of this kind.",
    c"    DEADLOCK: waiting could never end. UNBLOCKED: a wait was ended from outside.",
    c"    Nothing is changed by a call that fails.",
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

    fn run(ctx: Ctx<'_>, _args: Args<'_>) -> Result<(), Error> {
        ctx.reply_array(LINES.len());
        for line in LINES {
            ctx.reply_simple(line);
        }
        Ok(())
    }
}
