// SPDX-License-Identifier: MIT

//! `locktop`, in a terminal and without one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{json, Value};

use crate::support::cluster::Cluster;
use crate::support::programs::site::{Reply, Site};
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
    long_list_can_be_searched_and_sorted,
    narrow_terminal_has_the_main_columns,
    page_and_its_data_are_served,
    page_shows_blockers_outside_the_list,
    page_reads_few_holders_outside_the_list,
    foreign_hosts_and_origins_are_refused,
    page_breaks_locks_only_with_the_flag,
    break_is_refused_before_its_body,
    replica_is_named,
    server_without_the_module_is_reported,
    page_needs_few_permissions,
    page_recovers_with_the_server,
    viewers_share_one_poll,
    page_serves_a_limited_number_of_connections,
    page_covers_all_cluster_nodes,
    metrics_survive_an_absent_node,
    a_removed_node_is_outvoted,
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

/// A cluster with a contended lock on each of two nodes, its waiters, and a `locktop` for all nodes.
fn contended_cluster(flavor: Flavor) -> (Cluster, Vec<Client>, Command) {
    let cluster = Cluster::start(flavor);
    let mut waiting = Vec::new();
    for (key, node) in [("a", 1), ("b", 0)] {
        let node = &cluster.nodes[node];
        assert_eq!(node.client().call(&format!("LOCK.ACQUIRE {key} ann")), "1");
        waiting.push(node.waiting(&format!("LOCK.ACQUIRE {key} bob{key} BLOCK 0")));
    }
    let mut command = top(&cluster.nodes[0]);
    command.arg("--cluster");
    (cluster, waiting, command)
}

fn locktop_covers_all_cluster_nodes(flavor: Flavor) {
    let (cluster, waiting, command) = contended_cluster(flavor);
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

fn long_list_can_be_searched_and_sorted(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    let mut waiting = Vec::new();
    for nth in 10..50 {
        assert_eq!(a.call(&format!("LOCK.ACQUIRE lock:{nth} owner:{nth} WATCHDOG")), "1");
        waiting.push(server.waiting(&format!("LOCK.ACQUIRE lock:{nth} waiter:{nth} BLOCK 0")));
    }
    // The server lists the longest queues, so lock:10 is not listed.
    for nth in (11..50).chain([33]) {
        waiting.push(server.waiting(&format!("LOCK.ACQUIRE lock:{nth} last:{} BLOCK 0", waiting.len())));
    }
    let mut command = top(&server);
    command.args(["--delay", "0.1", "--most", "39"]);
    let terminal = Terminal::start(server.dir.path(), &command);
    // The terminal has 30 rows, half of them for the table with its header.
    terminal.until_seen("locks not shown: 25 above or below, 1 not listed");
    terminal.until_seen("ADDRESS");
    terminal.until_seen("127.0.0.1:");
    let first_row = |key: &str| {
        let shows = || terminal.screen().lines().nth(3).is_some_and(|row| row.contains(key));
        until(&format!("{key} is in the first row"), shows);
    };
    terminal.press("w");
    terminal.until_seen("WAITERS▾");
    first_row("lock:33");
    terminal.press("n");
    terminal.until_seen("LOCK▴");
    first_row("lock:11");
    terminal.press("r");
    terminal.until_seen("LOCK▾");
    first_row("lock:49");
    terminal.press("Home");
    terminal.until_seen("▸ lock:49");
    terminal.press("PageDown");
    terminal.until_seen("▸ lock:35");
    terminal.press("PageUp");
    terminal.until_seen("▸ lock:49");
    terminal.press("End");
    terminal.until_seen("▸ lock:11");
    terminal.press("/");
    // Letters of a search are no keys: q does not quit, and b breaks nothing.
    terminal.type_in("WAITER:33q");
    terminal.until_seen("No lock matches the search.");
    terminal.press("BSpace");
    terminal.until_seen("▸ lock:33");
    terminal.until_seen("locks not shown: 38 do not match /, 1 not listed");
    terminal.press("Enter");
    terminal.until_seen("/WAITER:33   Esc ends the search");
    terminal.press("b");
    terminal.until_seen("Break the lock lock:33?");
    terminal.press("n");
    terminal.press("Escape");
    terminal.until_seen("25 above or below");
    terminal.press("q");
    terminal.until_ended();
}

fn narrow_terminal_has_the_main_columns(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    assert_eq!(a.call("LOCK.ACQUIRE orders web-5:1203:9fa2 WATCHDOG"), "1");
    let _bob = server.waiting("LOCK.ACQUIRE orders web-8:77:e0b1 BLOCK 0");
    let mut narrow = top(&server);
    narrow.env("COLUMNS", "60");
    let seen = snapshot(narrow);
    for text in
        ["waiters 1  contended locks 1  deadlocks 0  errors 0", "LEASE", "WAITERS", "LONGEST▾", "└─ orders"]
    {
        assert!(seen.contains(text), "{text} is not in\n{seen}");
    }
    let row = seen.lines().find(|line| line.contains("▸ orders")).unwrap();
    assert!(row.contains("web-5:1203:9fa2"), "{seen}");
    assert!(seen.contains("held by web-5:1203:9fa2") && seen.contains("1. web-8:77:e0b1"), "{seen}");
    assert!(seen.lines().all(|line| line.chars().count() <= 60), "{seen}");
    assert!(!seen.contains("ADDRESS") && !seen.contains("MODE"), "{seen}");
    assert!(snapshot(top(&server)).contains("ADDRESS"));
}

/// The state that the page shows.
fn state(site: &Site) -> Value {
    let reply = site.get("/state.json");
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.head.contains("content-type: application/json"), "{reply:?}");
    serde_json::from_str(&reply.body).unwrap()
}

fn page_and_its_data_are_served(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    a.call("CONFIG SET lock.log-waits-over 1");
    a.call("CLIENT SETNAME web-1");
    a.call("LOCK.SESSION OPEN NEW 1 TTL 30000 NAME jobs");
    let hostile: &[u8] = b"<img src=x onerror=\"alert(1)\">";
    assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", hostile, b"ann", b"WATCHDOG"]), "1");
    assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", hostile, b"</script>", b"BLOCK", b"20"]), "nil");
    assert_eq!(a.call("LOCK.ACQUIRE orders bob"), "1");
    let mut waiting = Vec::new();
    for (key, owner) in [(hostile, "bob"), (hostile, "cleo"), (b"orders", "dan")] {
        let mut client = server.client();
        client.send_args(&[b"LOCK.ACQUIRE", key, owner.as_bytes(), b"BLOCK", b"0"]);
        server.until_blocked(&client);
        waiting.push(client);
    }
    assert_eq!(a.call("CONFIG SET requirepass s3cret"), "OK");
    let mut command = top(&server);
    command.args(["--most", "1"]).env("REDISCLI_AUTH", "s3cret");
    let site = Site::start(command);
    let page = site.get("/");
    assert!(page.status == 200 && page.head.contains("content-type: text/html; charset=utf-8"), "{page:?}");
    let nonce = page.head.split_once("script-src 'nonce-").unwrap().1.split_once('\'').unwrap().0;
    for tag in ["style", "script"] {
        assert_eq!(page.body.matches(&format!("<{tag} nonce=\"{nonce}\">")).count(), 1, "{tag}");
    }
    for text in
        ["default-src 'none'", "frame-ancestors 'none'", "trusted-types 'none'", "nosniff", "no-store"]
    {
        assert!(page.head.contains(text), "{text}: {}", page.head);
    }
    // The page loads nothing from elsewhere. The namespace of SVG is a name, not an address.
    let links = page.body.replace("http://www.w3.org/2000/svg", "");
    assert!(!links.contains("//www") && !links.contains("http:") && !links.contains("https:"));
    let state = state(&site);
    let lock = &state["locks"][0];
    assert_eq!(lock["key"].as_str().unwrap().as_bytes(), hostile);
    let holder = &lock["holders"][0];
    assert_eq!(
        (&holder["owner"], &holder["name"], &holder["watchdog"]),
        (&json!("ann"), &json!("web-1"), &json!(true))
    );
    assert!(holder["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{holder}");
    assert!(holder["since_ms"].as_i64().unwrap() >= 20, "{holder}");
    assert_eq!((&lock["waiters"][0]["owner"], &lock["waiter_count"]), (&json!("bob"), &json!(2)));
    assert_eq!((&state["locks_not_shown"], &state["figures"]["lock_waiters"]), (&json!(1), &json!(3)));
    assert_eq!(state["blocked"][0]["by"][0]["owner"], "ann");
    assert_eq!((&state["sessions"][0]["name"], &state["sessions_not_shown"]), (&json!("jobs"), &json!(0)));
    let incident = &state["log"][0];
    assert_eq!((&incident["owner"], &incident["reason"]), (&json!("</script>"), &json!("timeout")));
    assert_eq!((&state["top"][0]["waits"], &state["may_break"]), (&json!(1), &json!(false)));
    assert_eq!(state["errors"], json!([]));
    let metrics = site.get("/metrics");
    assert!(metrics.head.contains("content-type: text/plain; version=0.0.4"), "{}", metrics.head);
    let sample =
        format!("# TYPE lock_waiters untyped\nlock_waiters{{server=\"127.0.0.1:{}\"}} 3\n", server.port);
    assert!(metrics.body.contains(&sample), "{}", metrics.body);
    let other = [site.get("/nothing"), site.request("POST /", &[("Host", &site.address)], "")];
    assert_eq!(other.each_ref().map(|reply| reply.status), [404, 405]);
    let all = [page.body, state.to_string(), metrics.body, site.end()].concat();
    assert!(!all.contains("s3cret"), "{all}");
    assert_eq!(a.call_args(&[b"CONFIG", b"SET", b"requirepass", b""]), "OK");
}

fn page_shows_blockers_outside_the_list(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    for call in ["LOCK.ACQUIRE stock ann", "LOCK.ACQUIRE orders bob"] {
        assert_eq!(a.call(call), "1");
    }
    let _waiting = [
        server.waiting("LOCK.ACQUIRE orders cleo BLOCK 0"),
        server.waiting("LOCK.ACQUIRE orders dan BLOCK 0"),
        server.waiting("LOCK.ACQUIRE stock bob BLOCK 0"),
    ];
    let mut command = top(&server);
    command.args(["--match", "ord*"]);
    let state = state(&Site::start(command));
    assert_eq!((state["locks"].as_array().unwrap().len(), &state["locks_not_shown"]), (1, &json!(1)));
    let by = state["blocked"][0]["by"].as_array().unwrap();
    let blockers: Vec<_> =
        by.iter().map(|by| (by["owner"].as_str().unwrap(), by["key"].as_str().unwrap())).collect();
    assert_eq!(blockers, [("bob", "orders"), ("ann", "stock")]);
    let related = &state["related"][0];
    assert_eq!((&related["key"], &related["waiters"][0]["owner"]), (&json!("stock"), &json!("bob")));
    assert_eq!(related["holders"][0]["owner"], "ann");
}

fn page_reads_few_holders_outside_the_list(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    for n in 0..101 {
        assert_eq!(a.call(&format!("LOCK.ACQUIRE permit*[1] h{n} SHARED LIMIT 101")), "1");
    }
    assert_eq!(a.call("LOCK.ACQUIRE orders bob"), "1");
    let _waiting = [
        server.waiting("LOCK.ACQUIRE orders cleo BLOCK 0"),
        server.waiting("LOCK.ACQUIRE permit*[1] bob BLOCK 0"),
        server.waiting("LOCK.ACQUIRE permit*[1] cleo BLOCK 0"),
    ];
    let mut command = top(&server);
    command.args(["--match", "ord*", "--delay", "0.1"]);
    let site = Site::start(command);
    let related = || state(&site)["related"][0].clone();
    let seen = related();
    assert_eq!((&seen["key"], &seen["holder_count"]), (&json!("permit*[1]"), &json!(101)));
    assert_eq!((&seen["holders"], &seen["waiters"][1]["owner"]), (&json!([]), &json!("cleo")));
    a.call("LOCK.RELEASE permit*[1] h0");
    until("the holders are read", || related()["holders"].as_array().is_some_and(|shown| shown.len() == 20));
}

fn foreign_hosts_and_origins_are_refused(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut command = top(&server);
    command.args(["--allow-host", "locks.example"]);
    let site = Site::start(command);
    let port = site.address.rsplit_once(':').unwrap().1;
    let get = |path: &str, headers: &[(&str, &str)]| {
        let reply = site.request(&format!("GET {path}"), headers, "");
        (reply.status, reply.body)
    };
    for host in [&site.address, &format!("localhost:{port}"), "locks.example", "LOCKS.example:443", "[::1]:1"]
    {
        assert_eq!(get("/metrics", &[("Host", host)]).0, 200, "{host}");
    }
    for host in
        ["evil.example", &format!("evil.example:{port}"), "locks.example.evil", "", "127.0.0.1.evil:80"]
    {
        for path in ["/", "/state.json", "/metrics", "/nothing"] {
            let (status, body) = get(path, &[("Host", host)]);
            assert!(status == 403 && body.contains("add --allow-host"), "{host} {path}: {status} {body}");
            assert!(!body.contains("lock_"), "{body}");
        }
    }
    assert_eq!(get("/", &[("Host", &site.address), ("Host", "evil.example")]).0, 403);
    assert_eq!(get("/", &[]).0, 403);
    let own = format!("http://{}", site.address);
    let host = ("Host", site.address.as_str());
    assert_eq!(get("/state.json", &[host, ("Origin", &own)]).0, 200);
    for origin in ["http://evil.example", "null", &format!("http://localhost:{port}"), "http://127.0.0.1"] {
        let (status, body) = get("/state.json", &[host, ("Origin", origin)]);
        assert!(status == 403 && body.contains("is not this page"), "{origin}: {status} {body}");
    }
}

fn page_breaks_locks_only_with_the_flag(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    assert_eq!(a.call("LOCK.ACQUIRE orders ann PX 100000"), "1");
    let mut bob = server.waiting("LOCK.ACQUIRE orders bob BLOCK 0 PX 100000");
    let _cleo = server.waiting("LOCK.ACQUIRE orders cleo BLOCK 0");
    let ask = |site: &Site, origin: Option<&str>, body: &Value| {
        let mut headers = vec![("Host", site.address.as_str()), ("Content-Type", "application/json")];
        headers.extend(origin.map(|origin| ("Origin", origin)));
        site.request("POST /break", &headers, &body.to_string())
    };
    let body = |site: &Site| {
        let lock = &state(site)["locks"][0];
        json!({ "id": lock["id"], "confirm": "orders", "holders_id": lock["holders_id"] })
    };
    let refused = |reply: Reply, status: u16, text: &str| {
        assert!(reply.status == status && reply.body.contains(text), "{reply:?}");
    };
    let read_only = Site::start(top(&server));
    let origin = format!("http://{}", read_only.address);
    refused(ask(&read_only, Some(&origin), &body(&read_only)), 403, "start locktop with --allow-break");
    let mut command = top(&server);
    command.args(["--allow-break", "--delay", "0.1"]);
    let site = Site::start(command);
    assert_eq!(state(&site)["may_break"], true);
    let origin = format!("http://{}", site.address);
    let right = body(&site);
    refused(ask(&site, None, &right), 403, "no origin");
    refused(ask(&site, Some("http://evil.example"), &right), 403, "is not this page");
    let mut unconfirmed = right.clone();
    unconfirmed["confirm"] = json!("order");
    refused(ask(&site, Some(&origin), &unconfirmed), 400, "confirmation differs from the key orders");
    refused(ask(&site, Some(&origin), &json!({ "id": right["id"] })), 422, "confirm");
    let headers = [("Host", site.address.as_str()), ("Origin", &origin), ("Content-Type", "text/plain")];
    refused(site.request("POST /break", &headers, &right.to_string()), 415, "application/json");
    let mut stale = right.clone();
    stale["holders_id"] = json!("0123456789abcdef");
    refused(ask(&site, Some(&origin), &stale), 409, "nothing was broken");
    assert!(a.call("LOCK.INFO orders").contains("ann"));
    let done = ask(&site, Some(&origin), &right);
    assert_eq!((done.status, done.body.as_str()), (200, "orders was broken; holders that lost it: 1\n"));
    assert_eq!(bob.recv(), "1");
    // The old page would break the lock of its new holder.
    refused(ask(&site, Some(&origin), &right), 409, "nothing was broken");
    let printed = site.end();
    assert!(printed.contains("orders was broken; holders that lost it: 1; asked by 127.0.0.1:"), "{printed}");
}

fn break_is_refused_before_its_body(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let read_only = Site::start(top(&server));
    let mut command = top(&server);
    command.arg("--allow-break");
    let site = Site::start(command);
    let own = |site: &Site| format!("Host: {0}\r\nOrigin: http://{0}", site.address);
    for (site, headers, text) in [
        (&read_only, own(&read_only), "start locktop with --allow-break"),
        (&site, format!("Host: {}", site.address), "no origin"),
        (&site, format!("Host: {}\r\nOrigin: http://evil.example", site.address), "is not this page"),
        (&site, "Host: evil.example".to_owned(), "is not served"),
    ] {
        let mut stream = TcpStream::connect(&site.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let kind = "Content-Type: application/json\r\nContent-Length: 1000";
        stream.write_all(format!("POST /break HTTP/1.1\r\n{headers}\r\n{kind}\r\n\r\n").as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(reply.starts_with("HTTP/1.1 403") && reply.contains(text), "{reply}");
    }
}

fn replica_is_named(flavor: Flavor) {
    let (primary, replica) = (Server::with_module(flavor, &[]), Server::with_module(flavor, &[]));
    assert!(!snapshot(top(&primary)).contains("replica"));
    assert_eq!(state(&Site::start(top(&primary)))["is_replica"], false);
    replica.follow(&primary);
    let port = replica.port;
    for (width, head) in
        [("120", format!("127.0.0.1:{port}  replica   waits")), ("60", format!("127.0.0.1:{port}  replica"))]
    {
        let mut command = top(&replica);
        command.env("COLUMNS", width);
        let seen = snapshot(command);
        assert!(seen.contains(&head) && seen.contains("connect to its primary"), "{seen}");
    }
    let terminal = Terminal::start(replica.dir.path(), &top(&replica));
    terminal.until_seen("  replica   waits");
    assert_eq!(state(&Site::start(top(&replica)))["is_replica"], true);
}

fn server_without_the_module_is_reported(flavor: Flavor) {
    let server = Server::start(flavor, &[]);
    let text = "server has no LOCK commands; load the redis-lock module";
    for option in [None, Some("--batch")] {
        let mut command = top(&server);
        command.args(option);
        let output = Run::spawn(command).finish();
        let printed = Printed::new(&output);
        let is_clear = output.status.code() == Some(1) && printed.stderr == format!("locktop: {text}\n");
        assert!(is_clear, "{printed}");
    }
    let site = Site::start(top(&server));
    assert_eq!(site.get("/").status, 200);
    let reply = site.get("/state.json");
    assert_eq!((reply.status, reply.body), (503, format!("{text}\n")));
    let metrics = site.get("/metrics");
    let sample = |name: &str, value| {
        format!("# TYPE {name} untyped\n{name}{{server=\"127.0.0.1:{}\"}} {value}\n", server.port)
    };
    let expected = sample("lock_module_loaded", 0) + &sample("lock_server_up", 1);
    assert_eq!((metrics.status, metrics.body), (200, expected));
}

fn page_needs_few_permissions(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    a.call("ACL SETUSER look on >s3cret ~* +info +lock.list +lock.info +lock.waiters");
    assert_eq!(a.call("LOCK.ACQUIRE orders ann"), "1");
    let _bob = server.waiting("LOCK.ACQUIRE orders bob BLOCK 0");
    let mut command = tool("locktop");
    command.args(["-u", &server.url().replace("//", "//look:s3cret@")]);
    let site = Site::start(command);
    let state = state(&site);
    assert_eq!(state["locks"][0]["holders"][0]["owner"], "ann");
    let errors = state["errors"].as_array().unwrap();
    assert!(
        errors.len() == 4 && errors.iter().all(|error| error.as_str().unwrap().contains("NOPERM")),
        "{errors:?}"
    );
    a.call("ACL SETUSER look -lock.list");
    let mut refused = None;
    until("the state is refused", || {
        let reply = site.get("/state.json");
        refused = Some(reply.body);
        reply.status == 503
    });
    assert!(refused.unwrap().contains("NOPERM"));
    assert_eq!(site.get("/metrics").status, 200);
    let printed = state.to_string() + &site.end();
    assert!(!printed.contains("s3cret"), "{printed}");
}

fn page_recovers_with_the_server(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    let mut command = top(&server);
    command.args(["--delay", "0.1"]);
    let site = Site::start(command);
    assert_eq!(state(&site)["locks"], json!([]));
    until("locktop's connection is closed", || a.call("CLIENT KILL TYPE normal SKIPME yes") != "0");
    until("the state is served", || site.get("/state.json").status == 200);
    // Without a server, the page is still served.
    drop((a, server));
    until("the state is unavailable", || site.get("/state.json").status == 503);
    assert_eq!((site.get("/metrics").status, site.get("/").status), (503, 200));
}

fn viewers_share_one_poll(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    let mut command = top(&server);
    command.args(["--delay", "3600"]);
    let site = Site::start(command);
    let calls = |a: &mut Client| {
        let stats = a.call("INFO commandstats").to_lowercase();
        let line = stats.lines().find(|line| line.starts_with("cmdstat_lock.list:")).map(str::to_owned);
        line.map(|line| {
            line.split_once("calls=").unwrap().1.split_once(',').unwrap().0.parse::<u32>().unwrap()
        })
    };
    assert_eq!(calls(&mut a), None, "a page without viewers asks for nothing");
    std::thread::scope(|scope| {
        let viewers: Vec<_> = (0..20).map(|_| scope.spawn(|| state(&site))).collect();
        let states: Vec<Value> = viewers.into_iter().map(|viewer| viewer.join().unwrap()).collect();
        assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "{states:?}");
    });
    assert_eq!(calls(&mut a), Some(1));
}

fn page_serves_a_limited_number_of_connections(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let site = Site::start(top(&server));
    let connect = || {
        let stream = TcpStream::connect(&site.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    };
    // Even a client that asks for more gets one reply.
    let mut polite = connect();
    polite.write_all(format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", site.address).as_bytes()).unwrap();
    let mut reply = String::new();
    polite.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("lock_waiters{"), "{reply}");
    let mut idle: Vec<_> = (0..256).map(|_| connect()).collect();
    assert_eq!(connect().read(&mut [0]).unwrap(), 0, "there is no place");
    drop(idle.pop());
    until("a place is free", || {
        let mut stream = connect();
        let _ = stream.write_all(format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", site.address).as_bytes());
        let mut reply = String::new();
        stream.read_to_string(&mut reply).is_ok() && reply.starts_with("HTTP/1.1 200")
    });
}

fn page_covers_all_cluster_nodes(flavor: Flavor) {
    let (cluster, waiting, command) = contended_cluster(flavor);
    let site = Site::start(command);
    let state = state(&site);
    assert_eq!(
        (state["locks"].as_array().unwrap().len(), state["blocked"].as_array().unwrap().len()),
        (2, 2)
    );
    assert_eq!((&state["figures"]["lock_waiters"], &state["errors"]), (&json!(2), &json!([])));
    let metrics = site.get("/metrics").body;
    for node in &cluster.nodes {
        let sample = format!("lock_waiters{{server=\"127.0.0.1:{}\"}} 1\n", node.port);
        assert!(metrics.contains(&sample), "{sample} is not in {metrics}");
    }
    assert_eq!(metrics.matches("# TYPE lock_waiters untyped").count(), 1);
    drop(waiting);
    cluster.assert_healthy();
}

/// The first node of the command line is no longer part of the cluster, and believes that it serves slots.
fn a_removed_node_is_outvoted(flavor: Flavor) {
    let (cluster, waiting, _) = contended_cluster(flavor);
    let mut removed = Server::with_module(flavor, &["--cluster-enabled", "yes"]);
    assert_eq!(removed.client().call("CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
    let mut command = tool("locktop");
    command.args(["-u", &format!("{},{}", removed.url(), cluster.nodes[0].url()), "--cluster"]);
    let metrics = Site::start(command).get("/metrics").body;
    let mut servers: Vec<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix("lock_waiters{server=")).collect();
    servers.sort_unstable();
    let mut expected = [0, 1].map(|node: usize| format!("\"127.0.0.1:{}\"}} 1", cluster.nodes[node].port));
    expected.sort();
    assert_eq!(servers, expected, "{metrics}");
    drop(waiting);
    removed.assert_healthy();
    cluster.assert_healthy();
}

fn metrics_survive_an_absent_node(flavor: Flavor) {
    let (cluster, waiting, mut command) = contended_cluster(flavor);
    command.args(["--delay", "0.1"]);
    let site = Site::start(command);
    let sample = |name: &str, port: u16| {
        let (page, begin) = (site.get("/metrics"), format!("{name}{{server=\"127.0.0.1:{port}\"}} "));
        assert_eq!(page.status, 200, "{page:?}");
        page.body.lines().find_map(|line| line.strip_prefix(&begin).map(str::to_owned))
    };
    let ports: Vec<u16> = cluster.nodes.iter().map(|node| node.port).collect();
    for port in &ports {
        assert_eq!(sample("lock_server_up", *port).as_deref(), Some("1"));
    }
    drop(waiting);
    let [of_command_line, mut other] = cluster.nodes;
    drop(of_command_line);
    until("the node is absent", || sample("lock_server_up", ports[0]).as_deref() == Some("0"));
    assert_eq!((sample("lock_waiters", ports[0]), sample("lock_module_loaded", ports[0])), (None, None));
    assert_eq!(sample("lock_server_up", ports[1]).as_deref(), Some("1"));
    assert!(sample("lock_waiters", ports[1]).is_some());
    other.assert_healthy();
}
