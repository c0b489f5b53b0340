// SPDX-License-Identifier: MIT

//! Effects outside the lock itself (invariant 8): plain commands to replicas and the AOF, keyspace events, `WATCH`,
//! client-side caches, and the release message.

use std::collections::BTreeSet;

use crate::support::server::module;
use crate::support::{in_world, until, Client, Flavor, Server, World};

crate::on_every_server!(
    replication_uses_plain_commands_and_absolute_times,
    shared_holds_tokens_and_requests_replicate,
    keyspace_events_match_plain_commands,
    enabled_events_arrive_at_once,
    other_modules_get_events,
    a_changed_lock_aborts_watch,
    client_side_caches_are_invalidated,
    a_free_lock_is_published_once,
    publishing_follows_the_setting,
    a_handed_over_lock_is_not_published,
    a_flush_before_first_use_is_published,
    wait_works_after_a_grant,
    locks_expire_without_the_module,
    a_restart_keeps_the_locks,
);

/// The commands that a replica receives, one on each line, without the servers' own traffic.
pub(crate) fn stream(world: &World, act: impl FnOnce()) -> Vec<String> {
    let mut monitor = world.replica.client();
    assert_eq!(monitor.call("MONITOR"), "OK");
    act();
    world.client().call("SET end of-stream");
    let mut commands = Vec::new();
    loop {
        let line = monitor.recv();
        let Some((_, command)) = line.split_once("] ") else { continue };
        let words: Vec<String> = command.split(' ').map(|word| word.trim_matches('"').to_owned()).collect();
        match words[0].to_ascii_uppercase().as_str() {
            "SET" if words[1] == "end" => return commands,
            "PING" | "REPLCONF" | "INFO" | "CLIENT" => {}
            _ => commands.push(words.join(" ")),
        }
    }
}

/// Replaces every number of 13 digits by `<time>` and every number of 16 digits by `<token>`.
pub(crate) fn timeless(lines: Vec<String>) -> Vec<String> {
    let hide = |word: &str| match word.len() {
        13 if word.bytes().all(|byte| byte.is_ascii_digit()) => "<time>".to_owned(),
        16 if word.bytes().all(|byte| byte.is_ascii_digit()) => "<token>".to_owned(),
        _ => word.to_owned(),
    };
    let hide = |word: &str| word.split('@').map(hide).collect::<Vec<_>>().join("@");
    let hide = |word: &str| word.split(':').map(hide).collect::<Vec<_>>().join(":");
    lines.iter().map(|line| line.split(' ').map(hide).collect::<Vec<_>>().join(" ")).collect()
}

fn replication_uses_plain_commands_and_absolute_times(flavor: Flavor) {
    in_world(flavor, |world| {
        let commands = stream(world, || {
            let mut a = world.client();
            a.call("LOCK.ACQUIRE k a");
            a.call("LOCK.ACQUIRE k a");
            a.call("LOCK.ACQUIRE k b");
            a.call("LOCK.RELEASE k a");
            a.call("LOCK.RENEW k a PX 70000");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
            a.call("LOCK.RELEASE k a");
            b.recv();
            a.call("LOCK.BREAK k");
        });
        let expected = [
            "MULTI",
            "HSET k a 1",
            "PEXPIREAT k <time>",
            "EXEC",
            "MULTI",
            "HSET k a 2",
            "PEXPIREAT k <time>",
            "EXEC",
            "HSET k a 1",
            "PEXPIREAT k <time>",
            "MULTI",
            "DEL k",
            "HSET k b 1",
            "PEXPIREAT k <time>",
            "EXEC",
            "DEL k",
            "PUBLISH redisson_lock__channel:{k} 0",
        ];
        let commands: Vec<_> =
            timeless(commands).into_iter().filter(|line| !line.starts_with("SELECT")).collect();
        assert_eq!(commands, expected);
        // The AOF has the same commands, without the message.
        let aof = aof(&world.primary);
        assert!(aof.contains("PEXPIREAT") && !aof.to_uppercase().contains("PUBLISH"), "{aof}");
        assert!(!aof.to_uppercase().contains("LOCK.") && !aof.contains("PX"), "{aof}");
    });
}

fn shared_holds_tokens_and_requests_replicate(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut check = |acts: &[&str], expected: &[&str]| {
            let commands = stream(world, || {
                for act in acts {
                    a.call(act);
                }
            });
            let ours: Vec<_> =
                timeless(commands).into_iter().filter(|line| !line.starts_with("SELECT")).collect();
            assert_eq!(ours, expected, "{acts:?}");
        };
        check(
            &["LOCK.ACQUIRE k a SHARED PX 90000"],
            &["MULTI", "HSET k #shared:a 1:<time>", "PEXPIREAT k <time>", "EXEC"],
        );
        // The lease is not the longest, so the key's TTL stays.
        check(&["LOCK.ACQUIRE k b SHARED PX 50000"], &["HSET k #shared:b 1:<time>"]);
        check(&["LOCK.RENEW k b PX 60000"], &["HSET k #shared:b 1:<time>"]);
        check(&["LOCK.RELEASE k a"], &["MULTI", "HDEL k #shared:a", "PEXPIREAT k <time>", "EXEC"]);
        check(
            &["LOCK.ACQUIRE k b FENCE PX 60000"],
            &[
                "MULTI",
                "HSET k b 1 #fence <token> #shared:b 1:<time>",
                "PEXPIREAT k <time>",
                "SET redisson_lock_token:{k} <token> PXAT <time>",
                "EXEC",
            ],
        );
        check(
            &["LOCK.RELEASE k b"],
            &["MULTI", "HDEL k #fence b", "HSET k #shared:b 1:<time>:<token>", "EXEC"],
        );
        check(
            &["LOCK.RELEASE k b ID r"],
            &[
                "MULTI",
                "DEL k",
                "SET lock_request:{k}:b:r 1 r0@<time> PXAT <time>",
                "EXEC",
                "PUBLISH redisson_lock__channel:{k} 0",
            ],
        );
        check(
            &["LOCK.RELEASE k b ID r", "LOCK.ACQUIRE k c SHARED BLOCK 1 ID r", "LOCK.BREAK k"],
            &[
                "MULTI",
                "HSET k #shared:c 1:<time>",
                "PEXPIREAT k <time>",
                "SET lock_request:{k}:c:r 1 s1@<time> PXAT <time>",
                "EXEC",
                "DEL k",
                "PUBLISH redisson_lock__channel:{k} 0",
            ],
        );
        // Retries, listings, refusals and errors change nothing.
        check(
            &[
                "LOCK.ACQUIRE k c SHARED ID r",
                "LOCK.LIST",
                "LOCK.BLOCKERS c",
                "LOCK.RELEASE k x ID y",
                "LOCK.RENEW k c",
            ],
            &[],
        );
    });
}

pub(crate) fn aof(server: &Server) -> String {
    let dir = server.dir.path().join("appendonlydir");
    let files = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let incremental = files.filter(|path| path.to_str().unwrap().ends_with(".incr.aof"));
    incremental.map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()).collect()
}

/// Subscribes to all keyspace events of a server.
fn subscriber(server: &Server) -> Client {
    let mut client = server.client();
    client.call("CONFIG SET notify-keyspace-events AKE");
    assert_eq!(client.call("PSUBSCRIBE __keyevent@*__:* end"), "[psubscribe, __keyevent@*__:*, 1]");
    assert_eq!(client.recv(), "[psubscribe, end, 2]");
    client
}

/// The events that each subscriber has received before this call, as `event key`.
fn events(world: &World, subscribers: &mut [Client]) -> Vec<Vec<String>> {
    world.client().call("PUBLISH end now");
    subscribers.iter_mut().map(events_before_the_end).collect()
}

fn events_before_the_end(subscriber: &mut Client) -> Vec<String> {
    let mut events = Vec::new();
    loop {
        let message = subscriber.recv();
        let parts: Vec<&str> = message.trim_matches(['[', ']']).split(", ").collect();
        match parts[..] {
            [_, _, "end", _] => return events,
            [_, _, channel, key] => events.push(format!("{} {key}", channel.split_once(':').unwrap().1)),
            _ => panic!("{message}"),
        }
    }
}

fn keyspace_events_match_plain_commands(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut subscribers = [subscriber(&world.primary), subscriber(&world.replica)];
        let mut check = |a: &mut Client, acts: &[&str], expected: &[&str]| {
            for act in acts {
                a.call(act);
            }
            let [here, there] = &events(world, &mut subscribers)[..] else { panic!("two subscribers") };
            assert_eq!(here, expected, "{acts:?}");
            assert_eq!(there, expected, "at the replica: {acts:?}");
        };
        check(&mut a, &["LOCK.ACQUIRE k a"], &["hset k", "expire k"]);
        check(&mut a, &["LOCK.ACQUIRE k a"], &["hset k", "expire k"]);
        check(&mut a, &["LOCK.RELEASE k a"], &["hset k"]);
        check(&mut a, &["LOCK.RENEW k a PX 80000"], &["expire k"]);
        check(&mut a, &["LOCK.ACQUIRE k b", "LOCK.RELEASE k b", "LOCK.INFO k", "LOCK.WAITERS k"], &[]);
        check(&mut a, &["LOCK.RELEASE k a"], &["del k"]);
        check(&mut a, &["LOCK.BREAK k", "LOCK.RELEASE k a", "LOCK.RENEW k a"], &[]);
        check(&mut a, &["LOCK.ACQUIRE k a SHARED PX 90000"], &["hset k", "expire k"]);
        check(&mut a, &["LOCK.ACQUIRE k b SHARED PX 50000"], &["hset k"]);
        check(&mut a, &["LOCK.RELEASE k a"], &["hdel k", "expire k"]);
        let (token, record) = ("redisson_lock_token:{k}", "lock_request:{k}:b:r");
        let set = |key: &str| [format!("set {key}"), format!("expire {key}")];
        let both: Vec<String> = [set(token), set(record)].concat();
        let expected: Vec<&str> =
            ["hset k", "expire k"].into_iter().chain(both.iter().map(|e| &**e)).collect();
        check(&mut a, &["LOCK.ACQUIRE k b SHARED FENCE ID r PX 50000"], &expected);
        check(&mut a, &["LOCK.ACQUIRE k b SHARED FENCE ID r PX 50000"], &[]);
        check(&mut a, &["LOCK.BREAK k"], &["del k"]);
        a.call("LOCK.ACQUIRE k a");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        check(&mut a, &["LOCK.RELEASE k a"], &["hset k", "expire k", "del k", "hset k", "expire k"]);
        b.recv();
    });
}

fn enabled_events_arrive_at_once(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    a.call("LOCK.ACQUIRE k a");
    let mut events = subscriber(&server);
    a.call("LOCK.RELEASE k a");
    a.call("PUBLISH end now");
    assert_eq!(events_before_the_end(&mut events), ["del k"]);
    assert_eq!(a.call_args(&[b"CONFIG", b"SET", b"notify-keyspace-events", b""]), "OK");
    a.call("LOCK.ACQUIRE k a");
    a.call("PUBLISH end now");
    assert_eq!(events_before_the_end(&mut events), [""; 0]);
}

fn other_modules_get_events(flavor: Flavor) {
    let listener = crate::support::programs::built("liblistener.so");
    let listener = listener.to_str().unwrap();
    let used = ["LOCK.ACQUIRE k a FENCE", "LOCK.RELEASE k a"];
    let is_invalidated =
        "[set redisson_lock_token:{k}, expire redisson_lock_token:{k}, hset k, expire k, del k]";
    let sorted = |list: &str| {
        let mut words: Vec<_> = list.trim_matches(['[', ']']).split(", ").map(str::to_owned).collect();
        words.sort();
        words
    };
    let check = |a: &mut Client| {
        used.iter().for_each(|command| drop(a.call(command)));
        assert_eq!(sorted(&a.call("LISTENER.HEARD")), sorted(is_invalidated));
    };
    // The other module is loaded at the start, before or after this module.
    for modules in [[listener, module().to_str().unwrap()], [module().to_str().unwrap(), listener]] {
        let server = Server::start(flavor, &["--loadmodule", modules[0], "--loadmodule", modules[1]]);
        check(&mut server.client());
    }
    // The other module is loaded twice while locks are in use.
    let server = Server::with_module(flavor, &["--enable-module-command", "yes"]);
    let mut a = server.client();
    for _ in 0..2 {
        used.iter().for_each(|command| drop(a.call(command)));
        assert_eq!(a.call(&format!("MODULE LOAD {listener}")), "OK");
        check(&mut a);
        assert_eq!(a.call("MODULE UNLOAD listener"), "OK");
    }
}

fn a_changed_lock_aborts_watch(flavor: Flavor) {
    in_world(flavor, |world| {
        let changes = [
            "LOCK.RENEW k a",
            "LOCK.ACQUIRE k a",
            "LOCK.ACQUIRE k a SHARED FENCE ID r",
            "LOCK.RELEASE k a",
            "LOCK.BREAK k",
        ];
        let neutral = [
            "LOCK.ACQUIRE k b",
            "LOCK.ACQUIRE k b SHARED ID s",
            "LOCK.LIST",
            "LOCK.BLOCKERS a",
            "LOCK.INFO k",
            "LOCK.WAITERS k",
            "LOCK.RELEASE k b",
            "LOCK.BREAK other",
        ];
        let (mut a, mut watcher) = (world.client(), world.client());
        for (commands, aborts) in [(&neutral[..], false), (&changes[..], true)] {
            for command in commands {
                a.call("LOCK.ACQUIRE k a");
                watcher.call("WATCH k other");
                a.call(command);
                watcher.call("MULTI");
                watcher.call("PING");
                assert_eq!(watcher.call("EXEC") == "nil", aborts, "{command}");
            }
        }
        // A handover by call or by timer is a change, too.
        a.call("DEL k");
        a.call("LOCK.ACQUIRE k a PX 100");
        watcher.call("WATCH k");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        assert_eq!(b.recv(), "1");
        watcher.call("MULTI");
        assert_eq!(watcher.call("EXEC"), "nil");
    });
}

fn client_side_caches_are_invalidated(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut cache) = (world.client(), world.client());
        cache.call("HELLO 3");
        cache.call("CLIENT TRACKING ON");
        let mut is_invalidated = |a: &mut Client, command: &str| {
            cache.call("HGETALL k");
            a.call(command);
            cache.send("PING");
            let first = cache.recv();
            let invalidated = first.starts_with("push[");
            if invalidated {
                assert_eq!(cache.recv(), "PONG");
            }
            invalidated
        };
        assert!(is_invalidated(&mut a, "LOCK.ACQUIRE k a"));
        assert!(!is_invalidated(&mut a, "LOCK.ACQUIRE k b"));
        assert!(!is_invalidated(&mut a, "LOCK.RELEASE k b"));
        assert!(is_invalidated(&mut a, "LOCK.RENEW k a"));
        assert!(is_invalidated(&mut a, "LOCK.RELEASE k a"));
    });
}

/// Subscribes to channels at a server.
pub(crate) fn listener(server: &Server, channels: &[&str]) -> Client {
    let mut client = server.client();
    for channel in channels {
        assert!(client.call(&format!("SUBSCRIBE {channel}")).starts_with("[subscribe"));
    }
    client
}

/// The number of messages that each listener has received before this call.
pub(crate) fn messages(world: &World, listeners: &mut [Client]) -> Vec<usize> {
    world.client().call("PUBLISH end now");
    listeners.iter_mut().map(messages_before_the_end).collect()
}

pub(crate) fn messages_before_the_end(listener: &mut Client) -> usize {
    let mut count = 0;
    loop {
        match listener.recv().as_str() {
            "[message, end, now]" => return count,
            text if text.ends_with(", 0]") => count += 1,
            text => panic!("{text}"),
        }
    }
}

fn a_free_lock_is_published_once(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let channels = ["redisson_lock__channel:{k}", "redisson_lock__channel:x{k}", "end"];
        let mut listeners = [listener(&world.primary, &channels), listener(&world.replica, &channels)];
        let mut check = |world: &World, what: &str, expected: usize| {
            assert_eq!(messages(world, &mut listeners), [expected; 2], "{what}, here and at the replica");
        };
        for key in ["k", "x{k}"] {
            a.call(&format!("LOCK.ACQUIRE {key} a"));
            a.call(&format!("LOCK.ACQUIRE {key} a"));
            a.call(&format!("LOCK.RELEASE {key} a"));
            a.call(&format!("LOCK.RELEASE {key} b"));
            check(world, "not free yet", 0);
            a.call(&format!("LOCK.RELEASE {key} a"));
            check(world, "released", 1);
            a.call(&format!("LOCK.ACQUIRE {key} a"));
            a.call(&format!("LOCK.BREAK {key}"));
            check(world, "broken", 1);
            a.call(&format!("LOCK.BREAK {key}"));
            check(world, "broken while free", 0);
        }
        a.send_at_once(&["MULTI", "LOCK.ACQUIRE k a", "LOCK.RELEASE k a", "EXEC"]);
        for _ in 0..4 {
            a.recv();
        }
        check(world, "in a transaction", 1);
        // The module notices these changes only by an event, as the lock has no waiters.
        for free in ["DEL k", "UNLINK k", "PEXPIRE k -1", "RENAME k elsewhere", "MOVE k 9"] {
            a.call("LOCK.ACQUIRE k a PX 100000");
            a.call(free);
            until_timers_have_fired(world);
            check(world, free, 1);
            a.call(free);
            check(world, "missing key", 0);
        }
        a.call("LOCK.ACQUIRE k a PX 30");
        until("the lease has expired", || a.call("EXISTS k") == "0");
        until_timers_have_fired(world);
        check(world, "expired", 1);
        a.call("SET k x");
        a.call("DEL k");
        until_timers_have_fired(world);
        check(world, "not a lock", 0);
        // An expired lease followed by a handover frees the lock once.
        for _ in 0..5 {
            a.call("LOCK.ACQUIRE k a PX 60");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
            assert_eq!(b.recv(), "1");
            assert_eq!(b.call("LOCK.RELEASE k b"), "0");
            until_timers_have_fired(world);
            check(world, "after a handover", 1);
        }
        a.call("LOCK.ACQUIRE k a");
        let b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        let kill = format!("CLIENT KILL ID {}", b.id);
        a.send_at_once(&["MULTI", "PEXPIRE k 50000", &kill, "LOCK.RELEASE k a", "EXEC"]);
        for _ in 0..5 {
            a.recv();
        }
        until_timers_have_fired(world);
        check(world, "touched, left and released", 1);
        // A revoked grant frees the lock for other clients.
        a.call("LOCK.ACQUIRE k a");
        let b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        a.send_at_once(&["LOCK.RELEASE k a", &format!("CLIENT KILL ID {}", b.id)]);
        until("the grant is revoked", || a.call("EXISTS k") == "0");
        check(world, "revoked", 1);
    });
}

/// Waits until timers that were due have fired.
fn until_timers_have_fired(world: &World) {
    let mut client = world.client();
    client.call("LOCK.ACQUIRE timer a");
    assert_eq!(client.call("LOCK.ACQUIRE timer b BLOCK 5"), "nil");
    client.call("DEL timer");
    assert_eq!(client.call("LOCK.ACQUIRE timer a"), "1");
    assert_eq!(client.call("LOCK.ACQUIRE timer b BLOCK 5"), "nil");
}

fn publishing_follows_the_setting(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut classic = [listener(&world.primary, &["redisson_lock__channel:{k}", "end"])];
        let mut sharded = world.client();
        assert!(sharded.call("SSUBSCRIBE redisson_lock__channel:{k}").starts_with("[ssubscribe"));
        for (setting, by_publish, by_spublish) in
            [("auto", 1, 0), ("off", 0, 0), ("publish", 1, 0), ("spublish", 0, 1), ("both", 1, 1)]
        {
            assert_eq!(a.call(&format!("CONFIG SET lock.publish {setting}")), "OK");
            a.call("LOCK.ACQUIRE k a");
            a.call("LOCK.RELEASE k a");
            assert_eq!(messages(world, &mut classic), [by_publish], "{setting}");
            if by_spublish == 1 {
                assert_eq!(sharded.recv(), "[smessage, redisson_lock__channel:{k}, 0]", "{setting}");
            }
            assert!(sharded.has_nothing(), "{setting}");
        }
    });
}

fn a_flush_before_first_use_is_published(flavor: Flavor) {
    for flush in ["FLUSHALL", "FLUSHDB", "SWAPDB 0 1"] {
        let server = Server::with_module(flavor, &[]);
        let (mut a, mut waits) = (server.client(), server.client());
        a.call("HSET k elsewhere:1 1");
        a.call("PEXPIRE k 60000");
        waits.call("SUBSCRIBE redisson_lock__channel:{k}");
        assert_eq!(a.call(flush), "OK");
        assert_eq!(waits.recv(), "[message, redisson_lock__channel:{k}, 0]", "{flush}");
    }
}

fn a_handed_over_lock_is_not_published(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut here = [listener(&world.primary, &["redisson_lock__channel:{k}", "end"])];
        for free in ["LOCK.RELEASE k a", "LOCK.BREAK k", "DEL k", "PEXPIRE k 20"] {
            a.call("LOCK.ACQUIRE k a");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
            a.call(free);
            assert_eq!(b.recv(), "1");
            assert_eq!(messages(world, &mut here), [0], "{free}");
            a.call("LOCK.RELEASE k b");
            assert_eq!(messages(world, &mut here), [1]);
        }
    });
}

fn wait_works_after_a_grant(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        assert_eq!(a.call("WAIT 1 10000"), "1");
        // WAIT also covers a grant to a blocked client.
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        a.call("LOCK.RELEASE k a");
        assert_eq!(b.recv(), "1");
        assert_eq!(b.call("WAIT 1 10000"), "1");
        assert_eq!(world.replica.client().call("HGETALL k"), "[b, 1]");
    });
}

fn locks_expire_without_the_module(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        a.call("LOCK.ACQUIRE short a PX 3000");
        let mut r = world.replica.client();
        until("the replica has them", || r.call("EXISTS k short") == "2");
        let at = a.call("PEXPIRETIME k");
        assert_eq!(r.call("PEXPIRETIME k"), at);
        until("the short lease has expired there too", || r.call("EXISTS short") == "0");
        assert_eq!(r.call("HGETALL k"), "[a, 1]");
    });
}

/// Kills the server and restarts it on its AOF, without and then with the module.
fn a_restart_keeps_the_locks(flavor: Flavor) {
    let server = Server::with_module(flavor, &["--appendonly", "yes"]);
    let mut a = server.client();
    a.call("LOCK.ACQUIRE k a PX 100000");
    a.call("LOCK.ACQUIRE k a PX 100000");
    a.call("LOCK.ACQUIRE free a");
    a.call("LOCK.RELEASE free a");
    let expires_at = a.call("PEXPIRETIME k");
    server.signal(libc::SIGKILL);
    let plain = crate::support::world::replay(flavor, server.dir.path());
    let mut p = plain.client();
    let found: BTreeSet<String> =
        ["HGETALL k", "PEXPIRETIME k", "DBSIZE"].iter().map(|ask| p.call(ask)).collect();
    assert_eq!(found, BTreeSet::from(["[a, 2]".to_owned(), expires_at, "1".to_owned()]));
    assert_eq!(crate::support::server::load_module(&mut p), "OK");
    assert_eq!(p.call("LOCK.RELEASE k a"), "1");
    let mut b = plain.waiting("LOCK.ACQUIRE k b BLOCK 0");
    assert_eq!(p.call("LOCK.RELEASE k a"), "0");
    assert_eq!(b.recv(), "1");
}
