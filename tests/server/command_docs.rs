// SPDX-License-Identifier: MIT

//! `COMMAND DOCS`, ACL categories and `redis-cli` hints agree with the pages in `docs/commands` (invariants 10, 11).

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use redis::Value;

use crate::support::cli::timeless;
use crate::support::client::{fields, show};
use crate::support::tmux::Terminal;
use crate::support::{root, Client, Flavor, Server};

crate::on_every_server!(
    command_docs_match_the_pages,
    page_examples_give_the_shown_replies,
    redis_cli_shows_argument_hints,
    commands_have_an_acl_category,
);

fn pages() -> BTreeMap<String, String> {
    let folder = root().join("docs/commands");
    let pages = fs::read_dir(folder).unwrap().map(|entry| {
        let path: PathBuf = entry.unwrap().path();
        (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap())
    });
    let pages: BTreeMap<_, _> = pages.filter(|(name, _)| name.starts_with("lock.")).collect();
    assert!(pages.len() > 10);
    pages
}

/// The first code block after `mark`.
fn code_after<'a>(page: &'a str, mark: &str) -> Option<&'a str> {
    let (_, page) = page.split_once(mark)?;
    let (_, code) = page.split_once("```\n")?;
    Some(code.split_once("```").unwrap().0)
}

/// Formats an argument of `COMMAND DOCS` as Redis' own reference does.
fn syntax(argument: &Value) -> String {
    let argument = fields(argument);
    let flags = argument.get("flags").map(|flags| show(flags)).unwrap_or_default();
    let parts = match argument.get("arguments") {
        Some(Value::Array(parts)) => parts.iter().map(syntax).collect(),
        _ => Vec::new(),
    };
    let kind = show(argument["type"]);
    let value = match kind.as_str() {
        "oneof" => Some(parts.join(" | ")),
        "block" => Some(parts.join(" ")),
        "pure-token" => None,
        _ => Some(show(argument["name"])),
    };
    assert!(!show(argument["summary"]).is_empty());
    let words = [argument.get("token").map(|token| show(token)), value];
    let inner = words.into_iter().flatten().collect::<Vec<_>>().join(" ");
    match (flags.contains("optional"), flags.contains("multiple")) {
        (true, true) => format!("[{inner} [{inner} ...]]"),
        (true, false) => format!("[{inner}]"),
        (false, true) => format!("{inner} [{inner} ...]"),
        (false, false) if kind == "oneof" => format!("<{inner}>"),
        (false, false) => inner,
    }
}

fn command_docs_match_the_pages(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    for (name, page) in pages() {
        let reply = a.call_value(&format!("COMMAND DOCS {name}"));
        let docs = fields(&reply);
        let docs = fields(docs[&name]);
        for (field, text) in [("group", "module"), ("since", "0.1.0")] {
            assert_eq!(show(docs[field]), text, "{name}");
        }
        for field in ["summary", "complexity"] {
            let text = show(docs[field]);
            let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(page.contains(&text), "{name} does not contain '{text}'");
        }
        let mut words = vec![name.to_uppercase()];
        if let Some(Value::Array(arguments)) = docs.get("arguments") {
            words.extend(arguments.iter().map(syntax));
        }
        let written = code_after(&page, "\n# ").unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words.join(" "), written);
    }
    assert_eq!(listed(&mut a).len(), pages().len());
}

/// The module's commands, as listed by the server.
fn listed(client: &mut Client) -> Vec<String> {
    let Value::Array(names) = client.call_value("COMMAND LIST FILTERBY MODULE lock") else {
        panic!("no list")
    };
    names.iter().map(show).collect()
}

fn page_examples_give_the_shown_replies(flavor: Flavor) {
    const PROMPT: &str = "127.0.0.1:6379> ";
    for (name, page) in pages() {
        let mut server = Server::with_module(flavor, &[]);
        let Some(session) = code_after(&page, "## Examples\n") else { continue };
        let typed = session.lines().filter_map(|line| line.strip_prefix(PROMPT));
        let typed = typed.map(|line| format!("{line}\n")).collect::<String>();
        let printed = session.lines().filter(|line| !line.starts_with(PROMPT));
        let printed = printed.map(|line| format!("{line}\n")).collect::<String>();
        assert!(!typed.is_empty(), "{name} has no example");
        let mut cli = Command::new("redis-cli");
        cli.args(["--no-raw", "-p", &server.port.to_string()]);
        let mut cli = cli.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        cli.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
        let output = String::from_utf8(cli.wait_with_output().unwrap().stdout).unwrap();
        // redis-cli separates error replies from others with an empty line.
        let output = output.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
        assert_eq!(timeless(&output), timeless(&printed), "{name}");
        server.assert_healthy();
    }
}

fn redis_cli_shows_argument_hints(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut cli = Command::new("redis-cli");
    cli.args(["-p", &server.port.to_string()]);
    let terminal = Terminal::start(server.dir.path(), &cli);
    terminal.until_seen("127.0.0.1");
    for (typed, hint) in [
        ("LOCK.ACQUIRE", " key owner [PX milliseconds|EX seconds] [BLOCK milliseconds|QUEUE milliseconds]"),
        ("lock.release orders", " owner [PX milliseconds|EX seconds] [SHARED|ALL] [ID request]"),
        ("LOCK.GUARD orders", " OWNER owner|TOKEN token command [arg [arg ...]]"),
    ] {
        terminal.type_in(typed);
        terminal.until_seen(&format!("{typed}{hint}"));
        terminal.press("C-u");
    }
}

fn commands_have_an_acl_category(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    let members = a.call("ACL CAT lock");
    if members.starts_with("ERR") {
        assert!(!flavor.lets_modules_make_categories(), "{members}");
        return;
    }
    for name in listed(&mut a) {
        assert!(members.contains(&name) == flavor.lists_commands_of_modules(), "{name} and {members}");
    }
    assert_eq!(a.call("ACL SETUSER app on nopass ~* +@lock -@dangerous"), "OK");
    assert_eq!(a.call("AUTH app any"), "OK");
    assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
    for refused in ["LOCK.BREAK k", "LOCK.LIST", "LOCK.SCAN 0", "LOCK.BLOCKERS a", "GET k"] {
        assert!(a.call(refused).starts_with("NOPERM"), "{refused}");
    }
}
