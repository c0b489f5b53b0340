// SPDX-License-Identifier: MIT

//! Loading and unloading the module, and its settings.

use crate::support::server::{load_module, module, unload_module};
use crate::support::{until, Client, Flavor, Server};

crate::on_every_server!(
    a_flush_before_the_first_lock_is_harmless,
    settings_have_bounds,
    settings_apply_from_the_next_call,
    settings_work_as_module_arguments,
    wrong_module_arguments_stop_the_server,
    settings_survive_a_rewrite,
    an_evicting_policy_logs_a_warning,
    setting_an_evicting_policy_logs_a_warning,
    info_everything_and_modules_have_all_fields,
    the_load_is_logged,
    break_is_logged,
    a_missing_command_refuses_the_load,
    a_missing_optional_command_logs_a_warning,
    config_behaves_as_before,
    unloading_is_refused,
    unloading_is_allowed_by_setting,
    an_acl_rule_refuses_unloading,
    a_failed_load_is_undone,
    a_shutdown_logs_no_unload_failure,
);

#[test]
fn an_older_server_logs_the_reason() {
    if !Flavor::Redis6.is_installed() {
        return;
    }
    let log = Server::log_of_failing(Flavor::Redis6, &["--loadmodule", module().to_str().unwrap()]);
    assert!(
        log.contains("redis-lock is not loaded: needs Redis 7.0.0 or later, or Valkey; this server is 6."),
        "{log}"
    );
}

fn settings_have_bounds(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    for (name, default, good, bad) in [
        (
            "lock.default-lease",
            "30000",
            &["1", "9007199254740991"][..],
            &["0", "-1", "x", "9007199254740992", "1.5"][..],
        ),
        ("lock.max-lease", "0", &["0", "1", "9007199254740991"], &["-1", "x", "9007199254740992"]),
        ("lock.max-waiters", "0", &["0", "1", "4294967295"], &["-1", "4294967296", ""]),
        ("lock.max-waiters-total", "0", &["0", "1", "4294967295"], &["-1", "4294967296", ""]),
        ("lock.fence-retention", "604800000", &["0", "1", "9007199254740991"], &["-1", "x"]),
        ("lock.request-ttl", "20000", &["1", "9007199254740991"], &["0", "-1", "x"]),
        ("lock.max-watchdog", "0", &["1", "9007199254740991", "0"], &["-1", "9007199254740992", "x"]),
        ("lock.quarantine", "0", &["1", "9007199254740991", "0"], &["-1", "9007199254740992", "x"]),
        ("lock.deadlock-detection", "yes", &["no", "YES"], &["on", "1", ""]),
        ("lock.events", "no", &["yes", "NO"], &["on", "1", ""]),
        ("lock.allow-unload", "no", &["yes", "NO"], &["on", "1", ""]),
        ("lock.publish-replicas", "yes", &["no", "YES"], &["on", "0", ""]),
        ("lock.publish", "auto", &["off", "publish", "SPUBLISH", "both", "auto"], &["on", "yes", "", "0"]),
    ] {
        assert_eq!(a.call(&format!("CONFIG GET {name}")), format!("[{name}, {default}]"));
        for value in good {
            assert_eq!(a.call(&format!("CONFIG SET {name} {value}")), "OK", "{name} {value}");
            let now = format!("[{name}, {}]", value.to_lowercase());
            assert_eq!(a.call(&format!("CONFIG GET {name}")), now);
            for value in bad {
                let reply = a.call_args(&[b"CONFIG", b"SET", name.as_bytes(), value.as_bytes()]);
                assert!(reply.starts_with("ERR ") && reply.contains(name), "{name} {value}: {reply}");
                assert_eq!(a.call(&format!("CONFIG GET {name}")), now, "changed by '{value}'");
            }
        }
    }
}

fn settings_apply_from_the_next_call(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    a.call("CONFIG SET lock.default-lease 70000");
    a.call("LOCK.ACQUIRE k a");
    assert!((69_000..=70_000).contains(&a.number("PTTL k")));
    a.call("CONFIG SET lock.max-lease 60000");
    let error = "ERR PX is out of range in 'lock.acquire' command; lock.max-lease allows 60000 ms";
    assert_eq!(a.call("LOCK.ACQUIRE k a PX 60001"), error);
    assert_eq!(a.call("LOCK.RENEW k a EX 61"), error.replace("PX", "EX").replace("acquire", "renew"));
    assert_eq!(a.call("LOCK.RENEW k a EX 60"), "1");
    // A default lease is capped at lock.max-lease.
    assert_eq!(a.call("LOCK.RENEW k a"), "1");
    assert!((59_000..=60_000).contains(&a.number("PTTL k")));
    a.call("CONFIG SET lock.max-lease 0 lock.default-lease 40000");
    assert_eq!(a.call("LOCK.RENEW k a"), "1");
    assert!((39_000..=40_000).contains(&a.number("PTTL k")));
}

fn settings_work_as_module_arguments(flavor: Flavor) {
    let args = ["lock.default-lease", "5000", "LOCK.MAX-WAITERS", "7", "lock.publish", "Both"];
    let more = ["lock.deadlock-detection", "No", "lock.request-ttl", "9", "lock.fence-retention", "0"];
    let all = [&args[..], &more, &["lock.allow-unload", "Yes"]].concat();
    let server = Server::with_module_args(flavor, &all, &[]);
    let mut a = server.client();
    assert_eq!(a.call("CONFIG GET lock.default-lease"), "[lock.default-lease, 5000]");
    assert_eq!(a.call("CONFIG GET lock.max-waiters"), "[lock.max-waiters, 7]");
    assert_eq!(a.call("CONFIG GET lock.publish"), "[lock.publish, both]");
    assert_eq!(a.call("CONFIG GET lock.max-lease"), "[lock.max-lease, 0]");
    assert_eq!(a.call("CONFIG GET lock.deadlock-detection"), "[lock.deadlock-detection, no]");
    assert_eq!(a.call("CONFIG GET lock.request-ttl"), "[lock.request-ttl, 9]");
    assert_eq!(a.call("CONFIG GET lock.fence-retention"), "[lock.fence-retention, 0]");
    assert_eq!(a.call("CONFIG GET lock.allow-unload"), "[lock.allow-unload, yes]");
}

fn wrong_module_arguments_stop_the_server(flavor: Flavor) {
    for (args, why) in [
        (
            &["lock.default-lease", "0"][..],
            "lock.default-lease must be an integer from 1 to 9007199254740991, not '0'",
        ),
        (&["lock.max-waiters", "x"], "lock.max-waiters must be an integer from 0 to 4294967295, not 'x'"),
        (
            &["lock.request-ttl", "0"],
            "lock.request-ttl must be an integer from 1 to 9007199254740991, not '0'",
        ),
        (&["lock.deadlock-detection", "on"], "lock.deadlock-detection must be no or yes, not 'on'"),
        (&["lock.publish", "loud"], "lock.publish must be auto, off, publish, spublish or both, not 'loud'"),
        (&["lock.event", "yes"], "unknown module argument 'lock.event'; pass settings as 'name value' pairs"),
        (&["lock.max-lease"], "module argument lock.max-lease has no value"),
        (&["lock.max-lease", "1", "lock.max-lease", "2"], "module argument lock.max-lease is given twice"),
    ] {
        let mut all = vec!["--loadmodule", module().to_str().unwrap()];
        all.extend(args);
        let log = Server::log_of_failing(flavor, &all);
        assert!(log.contains(&format!("redis-lock is not loaded: {why}")), "{args:?}: {log}");
    }
}

fn settings_survive_a_rewrite(flavor: Flavor) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("redis.conf");
    let module = module().to_str().unwrap();
    let lines = format!("loadmodule \"{module}\" lock.default-lease 5000\nlock.max-lease 90000\n");
    std::fs::write(&file, lines).unwrap();
    let file = file.to_str().unwrap();
    let server = Server::start(flavor, &[file]);
    let mut a = server.client();
    assert_eq!(a.call("CONFIG GET lock.default-lease"), "[lock.default-lease, 5000]");
    assert_eq!(a.call("CONFIG GET lock.max-lease"), "[lock.max-lease, 90000]");
    assert_eq!(a.call("CONFIG SET lock.max-waiters 9 lock.default-lease 6000 maxclients 100"), "OK");
    assert_eq!(a.call("CONFIG REWRITE"), "OK");
    let server = Server::start_in(flavor, server.stop(), &[file]);
    let mut a = server.client();
    assert_eq!(a.call("CONFIG GET lock.max-waiters"), "[lock.max-waiters, 9]");
    assert_eq!(a.call("CONFIG GET lock.default-lease"), "[lock.default-lease, 6000]");
}

fn an_evicting_policy_logs_a_warning(flavor: Flavor) {
    let warning = "maxmemory-policy lets the server evict locks";
    let server = Server::with_module(flavor, &["--maxmemory-policy", "volatile-lru"]);
    assert!(server.log().contains(warning), "{}", server.log());
    let mut a = server.client();
    assert_eq!(a.info("lock", "lock_eviction"), "1");
    a.call("CONFIG SET maxmemory-policy noeviction");
    assert_eq!(a.info("lock", "lock_eviction"), "0");
    let server = Server::with_module(flavor, &[]);
    assert!(!server.log().contains(warning));
}

fn setting_an_evicting_policy_logs_a_warning(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    let warnings = || server.log().matches("maxmemory-policy lets the server evict locks").count();
    for (setting, count) in [
        ("maxmemory 1gb", 0),
        ("maxmemory-policy allkeys-lru", 1),
        ("lock.max-waiters 7", 1),
        ("timeout 100 MAXMEMORY 2gb", 2),
        ("maxmemory-policy noeviction", 2),
        ("maxmemory 0", 2),
        ("maxmemory-policy volatile-ttl maxmemory 1gb", 3),
    ] {
        assert_eq!(a.call(&format!("CONFIG SET {setting}")), "OK");
        assert_eq!(warnings(), count, "after {setting}: {}", server.log());
    }
}

fn the_load_is_logged(flavor: Flavor) {
    let line = |log: &str| {
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(" is loaded: ")).collect();
        assert_eq!(lines.len(), 1, "{log}");
        lines[0].split_once("redis-lock ").unwrap().1.to_owned()
    };
    let server = Server::with_module(flavor, &[]);
    let begin = line(&server.log());
    assert!(begin.ends_with(" is loaded: default settings"), "{begin}");
    let mut a = server.client();
    let (version, build) = (a.info("lock", "lock_version"), a.info("lock", "lock_build"));
    let package = env!("CARGO_PKG_VERSION");
    let number = package.split('.').fold(0, |number, part| number * 100 + part.parse::<u32>().unwrap());
    assert_eq!(version, number.to_string());
    assert!(begin.starts_with(&format!("{package} (build {build})")), "{begin}");
    let args = ["lock.events", "Yes", "lock.max-waiters", "7", "lock.publish", "auto"];
    let server = Server::with_module_args(flavor, &args, &[]);
    let changed = line(&server.log());
    assert!(changed.ends_with(" is loaded: lock.max-waiters 7, lock.events yes"), "{changed}");
}

/// The server decides which sections of INFO include modules.
fn info_everything_and_modules_have_all_fields(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    for (section, has) in
        [("", false), ("all", false), ("everything", true), ("modules", true), ("lock", true)]
    {
        let text = a.call(&format!("INFO {section}"));
        assert_eq!(text.contains("\nlock_waiters:0"), has, "INFO {section}: {text}");
    }
    // Monitoring tools expect numbers.
    let text = a.call("INFO lock");
    for line in text.lines().filter(|line| line.starts_with("lock_")) {
        let (_, value) = line.split_once(':').unwrap();
        assert!(value.trim().parse::<u64>().is_ok(), "{line}");
    }
}

fn break_is_logged(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut root = server.client();
    root.call("ACL SETUSER night-shift on nopass allkeys +@all");
    let mut operator = server.client();
    assert_eq!(operator.call("AUTH night-shift x"), "OK");
    let line = operator.call(&format!("CLIENT LIST ID {}", operator.id));
    let address = line.split_once(" addr=").unwrap().1.split(' ').next().unwrap().to_owned();
    root.call("SELECT 3");
    operator.call("SELECT 3");
    let key = b"order\r\n# fake \x00line%s";
    assert_eq!(operator.call_args(&[b"LOCK.BREAK", key]), "0");
    assert!(!server.log().contains("LOCK.BREAK"), "a free lock has no holder to lose");
    root.call_args(&[b"LOCK.ACQUIRE", key, b"a", b"SHARED"]);
    root.call_args(&[b"LOCK.ACQUIRE", key, b"b", b"SHARED"]);
    assert_eq!(operator.call_args(&[b"LOCK.BREAK", key]), "2");
    let expected = format!(
        " * <lock> redis-lock: LOCK.BREAK of order\\r\\n# fake \\x00line%s in database 3 by user night-shift at {address}; \
         lost by a, b\n"
    );
    assert!(server.log().contains(&expected), "{}", server.log());
    // A script has no address, and older servers cannot report its user safely.
    root.call("LOCK.ACQUIRE k a");
    let script: &[&[u8]] = &[b"EVAL", b"return redis.call('LOCK.BREAK', KEYS[1])", b"1", b"k"];
    assert_eq!(operator.call_args(script), "1");
    let user = match flavor {
        Flavor::Redis8_6 | Flavor::Valkey8 | Flavor::Valkey9 => "user night-shift",
        _ => "an unknown user",
    };
    let expected = format!("LOCK.BREAK of k in database 3 by {user} in a script; lost by a\n");
    assert!(server.log().contains(&expected), "{}", server.log());
}

fn a_missing_command_refuses_the_load(flavor: Flavor) {
    let module = module().to_str().unwrap();
    for command in ["COMMAND", "HSET", "HDEL", "SET", "DEL", "PEXPIREAT"] {
        let log = Server::log_of_failing(flavor, &["--rename-command", command, "", "--loadmodule", module]);
        let why = format!("redis-lock is not loaded: the server has no command {command}");
        assert!(log.contains(&why), "{log}");
    }
}

fn a_missing_optional_command_logs_a_warning(flavor: Flavor) {
    // CLIENT is optional, too, but the test kit needs it.
    let server = Server::with_module(flavor, &["--rename-command", "EXISTS", "_EXISTS"]);
    let warning = "redis-lock: the server has no command EXISTS (do not rename it); in a cluster";
    assert!(server.log().contains(warning), "{}", server.log());
    let server = Server::with_module(flavor, &[]);
    assert!(!server.log().contains("has no command"));
}

/// `CONFIG` handles the module's settings and behaves as before for all others.
fn config_behaves_as_before(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let plain = Server::start(flavor, &[]);
    let (mut a, mut p) = (server.client(), plain.client());
    for command in [
        "CONFIG GET maxmemory",
        "CONFIG GET nothing",
        "CONFIG GET",
        "CONFIG",
        "CONFIG SET maxmemory",
        "CONFIG SET nothing 1",
        "CONFIG SET maxmemory lock.max-waiters",
        "CONFIG RESETSTAT",
        "CONFIG lock.max-waiters x",
    ] {
        assert_eq!(a.call(command), p.call(command), "{command}");
    }
    assert_eq!(a.call("CONFIG GET LOCK.MAX-waiters").to_lowercase(), "[lock.max-waiters, 0]");
    let both = a.call("config get maxmemory-samples LOCK.MAX-*");
    for name in ["[maxmemory-samples, 5", "lock.max-lease, 0", "lock.max-waiters, 0"] {
        assert!(both.replace("maxmemory-samples", "[maxmemory-samples").contains(name), "{both}");
    }
    assert_eq!(a.call("CONFIG SET lock.nothing 1").split(' ').next(), Some("ERR"));
    a.call("HELLO 3");
    assert_eq!(a.call("CONFIG GET lock.max-lease"), "{lock.max-lease: 0}");
    // The module's settings need the server's permission for CONFIG.
    a.call("ACL SETUSER reader on nopass ~* +@all -config");
    let mut reader = server.client();
    assert_eq!(reader.call("AUTH reader x"), "OK");
    assert!(reader.call("CONFIG GET lock.max-lease").starts_with("NOPERM "));
    assert!(reader.call("CONFIG GET maxmemory").starts_with("NOPERM "));
    assert!(reader.call("CONFIG SET lock.max-lease 1").starts_with("NOPERM "));
    a.call("ACL SETUSER reader +config|get");
    assert_eq!(reader.call("CONFIG GET lock.max-lease"), "[lock.max-lease, 0]");
    assert!(reader.call("CONFIG SET lock.max-lease 1").starts_with("NOPERM "));
    assert_eq!(a.call("CONFIG GET lock.max-lease"), "{lock.max-lease: 0}");
}

/// In each of these cases the server would follow a pointer to a removed command, and most would crash.
fn unloading_is_refused(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let refused = "ERR Error unloading module: operation not possible.";
    let mut a = server.client();
    until("unloading is refused", || a.call("MODULE UNLOAD lock") == refused);
    let (mut b, mut queued, mut paused) = (server.client(), server.client(), server.client());
    assert_eq!(b.call("LOCK.ACQUIRE k b"), "1");
    assert_eq!(queued.call("MULTI"), "OK");
    assert_eq!(queued.call("LOCK.ACQUIRE q q"), "QUEUED");
    assert_eq!(a.call("CLIENT PAUSE 100000 WRITE"), "OK");
    paused.send("LOCK.ACQUIRE p p");
    server.until_blocked(&paused);
    a.send_at_once(&["MODULE UNLOAD lock", "CLIENT UNPAUSE", "LOCK.ACQUIRE a a"]);
    assert_eq!([a.recv(), a.recv(), a.recv()], [refused, "OK", "1"]);
    assert_eq!(b.call("LOCK.ACQUIRE k b"), "2");
    assert_eq!(queued.call("EXEC"), "[1]");
    assert_eq!(paused.recv(), "1");
    let why = "redis-lock is not unloaded: clients or ACL rules use its commands";
    assert!(server.log().contains(why), "{}", server.log());
    server.assert_healthy();
}

fn unloading_is_allowed_by_setting(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    let mut b = server.client();
    assert_eq!(b.call("LOCK.ACQUIRE k b"), "1");
    b.close();
    unload_module(&mut a);
    assert_eq!(a.call("MODULE LIST").matches("lock").count(), 0);
    // The permission ended with the unloaded module.
    assert_eq!(load_module(&mut a), "OK");
    assert_eq!(a.call("CONFIG GET lock.allow-unload"), "[lock.allow-unload, no]");
    until("the module is in use", || a.call("MODULE UNLOAD lock").starts_with("ERR "));
    server.assert_healthy();
}

/// A server unloads a module that was loaded with unknown settings, and may crash if that fails.
fn a_failed_load_is_undone(flavor: Flavor) {
    let mut server = Server::start(flavor, &[]);
    let mut a = server.client();
    let path = module().to_str().unwrap();
    let load = |settings: &str| format!("MODULE LOADEX {path} {settings}");
    for _ in 0..2 {
        let reply = a.call(&load("CONFIG lock.nothing 1"));
        assert!(reply.starts_with("ERR Error loading the extension"), "{reply}");
        assert_eq!(a.call("MODULE LIST").matches("lock").count(), 0);
    }
    assert_eq!(a.call(&load("CONFIG lock.max-waiters 9")), "OK");
    assert_eq!(a.call("CONFIG GET lock.max-waiters"), "[lock.max-waiters, 9]");
    assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
    server.assert_healthy();
}

/// Some servers crash when they unload a module that an ACL rule names.
fn an_acl_rule_refuses_unloading(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    a.call("CONFIG SET lock.allow-unload yes");
    let rules = if a.call("ACL CAT lock").starts_with("ERR") {
        vec!["+lock.guard", "+@all -lock.break"]
    } else {
        vec!["+lock.guard", "+@all -lock.break", "+@lock", "+@all -@lock"]
    };
    for rule in rules {
        assert_eq!(a.call(&format!("ACL SETUSER app on nopass ~* {rule}")), "OK");
        assert!(a.call("MODULE UNLOAD lock").starts_with("ERR"), "{rule}");
        assert_eq!(a.call("ACL DELUSER app"), "1");
    }
    let mut other = server.client();
    crate::support::server::unload_module(&mut other);
    server.assert_healthy();
}

/// Some servers unload all modules at shutdown.
fn a_shutdown_logs_no_unload_failure(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
    a.send("SHUTDOWN NOSAVE");
    assert!(server.ended_well());
    let log = server.log();
    assert!(!log.contains("not unloaded") && !log.contains("Failed to unload"), "{log}");
}

/// The flush sets the timer before the module has initialized anything else. Ending that uninitialized state crashed the
/// server.
fn a_flush_before_the_first_lock_is_harmless(flavor: Flavor) {
    for flush in ["FLUSHALL", "FLUSHDB", "FLUSHALL ASYNC", "SWAPDB 0 1", "DEBUG RELOAD"] {
        for first in ["LOCK.ACQUIRE k a", "LOCK.RELEASE k a"] {
            let mut server = Server::with_module(flavor, &["--hz", "500"]);
            let mut client = server.client();
            assert_eq!(client.call(flush), "OK");
            client.call(first);
            let time =
                |client: &mut Client| client.info("server", "server_time_usec").parse::<u64>().unwrap();
            let begun = time(&mut client);
            until("the server's cron has run many times", || time(&mut client) > begun + 100_000);
            server.assert_healthy();
        }
    }
}
