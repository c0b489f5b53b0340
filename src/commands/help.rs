// SPDX-License-Identifier: MIT

//! `LOCK.HELP`

use std::ffi::CString;

use super::COMMANDS;
use crate::error::Error;
use crate::server::registration::arguments::Arguments;
use crate::server::registration::command::{Args, Command, Spec};
use crate::server::Ctx;

/// The maximum length of a line, unless a single word is longer.
const WIDTH: usize = 90;

const INDENT: &str = "    ";

const ERRORS: [&str; 10] = [
    "Errors begin with ERR, or with one of these words:",
    "    NOTOWNER: the owner does not hold the lock, or a newer token was granted.",
    "    QUARANTINE: locks may have been lost, so nothing is granted for a while.",
    "    NOREPLICAS: too few replicas are online, or too few acknowledged in time.",
    "    WRONGTYPE: the key does not hold a lock.",
    "    NOSESSION: the session has ended or belongs to another user. LATE: a later call came first.",
    "    LIMIT: the server has too many sessions, or the lock has too many waiters of sessions.",
    "    CANCELLED: LOCK.CANCEL has undone the acquire of a session.",
    "    DEADLOCK: waiting could never end. UNBLOCKED: the server or a client ended the wait.",
    "    A failed call changes nothing, but LOCK.RENEW keeps its lease after NOREPLICAS.",
];

pub(crate) struct Help;

impl Command for Help {
    const SPEC: Spec = Spec {
        name: c"lock.help",
        flags: c"allow-loading allow-stale",
        categories: c"slow",
        key: None,
        arguments: Arguments::NONE,
        summary: c"Lists the commands of the module.",
        reply: "An array of lines.",
        complexity: c"O(1)",
    };

    fn run(ctx: Ctx<'_>, _args: Args<'_>) -> Result<(), Error> {
        let lines = lines();
        ctx.reply_array(lines.len());
        for line in lines {
            ctx.reply_simple(&CString::new(line).unwrap_or_default());
        }
        Ok(())
    }
}

fn lines() -> Vec<String> {
    let mut lines = vec!["LOCK.<subcommand> [<arg> [value] [opt] ...]. Subcommands are:".to_owned()];
    for command in COMMANDS {
        let name = command.title().trim_start_matches("LOCK.").to_owned();
        push_wrapped(&mut lines, name, command.arguments.iter().map(|argument| argument.syntax()));
        lines.push(format!("{INDENT}{}", command.about()));
        lines.push(format!("{INDENT}Reply: {}", command.reply));
        for option in command.arguments.options {
            let words = format!("{}: {}.", option.title(), option.meaning());
            let mut words = words.split(' ').map(str::to_owned);
            let first = format!("{INDENT}{}", words.next().unwrap_or_default());
            push_wrapped(&mut lines, first, words);
        }
    }
    lines.extend(ERRORS.map(str::to_owned));
    lines
}

/// Appends `line` and these words, wrapped into as many lines as needed.
fn push_wrapped(lines: &mut Vec<String>, mut line: String, words: impl IntoIterator<Item = String>) {
    for word in words {
        if line.len() + 1 + word.len() > WIDTH {
            lines.push(std::mem::replace(&mut line, format!("{INDENT}  ")));
        } else {
            line.push(' ');
        }
        line.push_str(&word);
    }
    lines.push(line);
}
