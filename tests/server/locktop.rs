// SPDX-License-Identifier: MIT

//! `locktop`, in a terminal and without one.

use std::process::Command;

use crate::support::cluster::Cluster;
use crate::support::programs::{tool, Printed, Run};
use crate::support::tmux::Terminal;
use crate::support::{until, Client, Flavor, Server};

crate::on_every_server!(
    a_snapshot_shows_the_blocking_tree,
    breaking_a_lock_needs_confirmation,
    locktop_recovers_with_the_server,
    locktop_ends_with_its_terminal,
    locktop_covers_all_cluster_nodes,
    names_are_escaped,
    wide_letters_keep_the_columns,
);

fn top(server: &Server) -> Command {
    let mut command = tool("locktop");
    command.args(["-u", &server.url()]).env("COLUMNS", "120");
    command
}

fn snapshot(mut command: Command) -> String {
    command.arg("--batch");
    let output = Run::spawn(command).finish();
    let printed = Printed::new(&output);
    assert!(output.status.success(), "{printed}");
    printed.stdout
}

fn a_snapshot_shows_the_blocking_tree(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let empty = snapshot(top(&server));
    assert!(empty.contains("No lock has waiters.") && empty.contains("waiters 0"), "{empty}");
    let mut a = server.client();
    assert_eq!(a.call("LOCK.ACQUIRE stock ann WATCHDOG"), "1");
    assert_eq!(a.call("LOCK.ACQUIRE orders bob"), "1");
    let waiting = [
        server.waiting("LOCK.ACQUIRE stock bob BLOCK 0"),
        server.waiting("LOCK.ACQUIRE orders cleo BLOCK 60000 SHARED"),
        server.waiting("LOCK.ACQUIRE orders dan BLOCK 0"),
    ];
    let seen = snapshot(top(&server));
    let tree: Vec<&str> =
        seen.lines().filter_map(|line| line.split_once('│')).map(|(_, tree)| tree).collect();
    assert_eq!(
        tree[..6],
        ["ann", "└─ stock", "   └─ bob", "      └─ orders", "         ├─ cleo", "         └─ dan"],
        "{seen}"
    );
    for text in ["waiters 3 (max 3)", "contended locks 2"] {
        assert!(seen.contains(text), "{text} is not in\n{seen}");
    }
    let mut only = top(&server);
    only.args(["--match", "st*"]).env("COLUMNS", "200");
    let only = snapshot(only);
    for text in [
        "held by ann, holds 1, for ",
        "renewed by the server, client ",
        " at 127.0.0.1:",
        "1. bob, exclusive, waiting for ",
        "no limit, client ",
    ] {
        assert!(only.contains(text), "{text} is not in\n{only}");
    }
    assert!(!only.contains("orders"), "{only}");
    drop(waiting);
    until("there are no waiters", || a.info("lock", "lock_waiters") == "0");
}

fn breaking_a_lock_needs_confirmation(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    assert_eq!(a.call("LOCK.ACQUIRE orders ann"), "1");
    assert_eq!(a.call("LOCK.ACQUIRE stock ann"), "1");
    let orders = server.waiting("LOCK.ACQUIRE orders bob BLOCK 0");
    let mut stock = server.waiting("LOCK.ACQUIRE stock cleo BLOCK 0");
    let mut command = top(&server);
    command.args(["--delay", "0.1"]);
    let terminal = Terminal::start(server.dir.path(), &command);
    terminal.until_seen("▸ orders");
    terminal.press("j");
    terminal.until_seen("▸ stock");
    terminal.press("b");
    terminal.until_seen("Break the lock stock?");
    terminal.until_seen("ann would lose it");
    terminal.press("n");
    terminal.until_gone("Break the lock");
    assert!(a.call("LOCK.INFO stock").contains("ann"));
    terminal.press("b");
    terminal.until_seen("Break the lock stock?");
    terminal.press("y");
    terminal.until_seen("stock was broken; holders that lost it: 1");
    assert_eq!(stock.recv(), "1");
    // The cursor has moved to another lock, which the user has not chosen.
    terminal.until_seen("▸ orders");
    terminal.press("b");
    terminal.until_seen("selected lock no longer has waiters; select again");
    // Another owner gets the lock before the user confirms.
    terminal.press("b");
    terminal.until_seen("Break the lock orders?");
    let _dan = server.waiting("LOCK.ACQUIRE orders dan BLOCK 0");
    assert_eq!(a.call("LOCK.RELEASE orders ann"), "0");
    terminal.press("y");
    terminal.until_seen("orders has other holders now; nothing was broken");
    assert!(a.call("LOCK.INFO orders").contains("bob"));
    terminal.press("q");
    terminal.until_ended();
    drop(orders);
}

fn locktop_recovers_with_the_server(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    let mut command = top(&server);
    command.args(["--delay", "0.1"]);
    let terminal = Terminal::start(server.dir.path(), &command);
    terminal.until_seen("No lock has waiters.");
    assert_eq!(a.call("ACL SETUSER default -lock.list"), "OK");
    terminal.until_seen("NOPERM");
    assert_eq!(a.call("ACL SETUSER default +lock.list"), "OK");
    terminal.until_gone("NOPERM");
    assert_eq!(a.call("LOCK.ACQUIRE k ann"), "1");
    let _bob = server.waiting("LOCK.ACQUIRE k bob BLOCK 0");
    until("locktop's connection is closed", || a.call("CLIENT KILL TYPE normal SKIPME yes") != "0");
    let _cleo = server.waiting("LOCK.ACQUIRE k cleo BLOCK 0");
    terminal.until_seen("1. cleo");
    terminal.press(" ");
    terminal.until_seen("paused; space resumes");
    terminal.press("C-c");
    terminal.until_ended();
}

fn locktop_covers_all_cluster_nodes(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let mut waiting = Vec::new();
    for (key, node) in [("a", 1), ("b", 0)] {
        let node = &cluster.nodes[node];
        assert_eq!(node.client().call(&format!("LOCK.ACQUIRE {key} ann")), "1");
        waiting.push(node.waiting(&format!("LOCK.ACQUIRE {key} bob{key} BLOCK 0")));
    }
    let mut command = top(&cluster.nodes[0]);
    command.arg("--cluster");
    let seen = snapshot(command);
    for text in ["waiters 2", "├─ a", "└─ b", "boba", "bobb"] {
        assert!(
            seen.contains(text) || seen.contains(&text.replace("├─ a", "└─ a").replace("└─ b", "├─ b")),
            "{text} is not in\n{seen}"
        );
    }
    drop(waiting);
    cluster.assert_healthy();
}

fn names_are_escaped(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    let evil: &[u8] = b"\x1b[31mred\r\n\xff";
    assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", evil, evil]), "1");
    let mut b = server.client();
    b.send_args(&[b"LOCK.ACQUIRE", evil, b"bob", b"BLOCK", b"0"]);
    server.until_blocked(&b);
    let seen = snapshot(top(&server));
    assert!(seen.contains("\\u{1b}[31mred\\r\\n\u{fffd}") && seen.contains("bob"), "{seen}");
    assert!(!seen.contains(['\x1b', '\r']), "{seen:?}");
}

fn wide_letters_keep_the_columns(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    // Six letters of double width, and a name that would display from right to left.
    for (key, owner) in [("注文ロック錠", "alice"), ("orders\u{202e}kcats", "bob")] {
        assert_eq!(a.call(&format!("LOCK.ACQUIRE {key} {owner}")), "1");
    }
    let _waiting = ["注文ロック錠", "orders\u{202e}kcats"]
        .map(|key| server.waiting(&format!("LOCK.ACQUIRE {key} carol BLOCK 0")));
    let seen = snapshot(top(&server));
    assert!(seen.contains(r"orders\u{202e}kcats") && !seen.contains('\u{202e}'), "{seen}");
    // The separator between the two halves is straight.
    let width = |text: &str| text.chars().map(|letter| 1 + usize::from(letter > '\u{2e80}')).sum::<usize>();
    let at: Vec<usize> =
        seen.lines().filter_map(|line| line.split_once('│')).map(|(left, _)| width(left)).collect();
    assert!(at.len() > 3 && at.iter().all(|column| *column == at[0]), "{at:?}: {seen}");
}

fn locktop_ends_with_its_terminal(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    let connections = |a: &mut Client| a.call("CLIENT LIST TYPE normal").lines().count();
    let terminal = Terminal::start(server.dir.path(), &top(&server));
    terminal.until_seen("No lock has waiters.");
    assert_eq!(connections(&mut a), 2);
    drop(terminal);
    until("locktop's connection is closed", || connections(&mut a) == 1);
    // Without a terminal, locktop suggests --batch.
    let output = Run::spawn(top(&server)).finish();
    let printed = Printed::new(&output);
    assert!(!output.status.success() && printed.stderr.contains("use --batch"), "{printed}");
}
