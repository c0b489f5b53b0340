// SPDX-License-Identifier: MIT

//! `LOCK.CHECK` and `LOCK.GUARD`: a former owner writes nothing to the server (invariants 10, 12).

use crate::effects::{stream, timeless};
use crate::fencing::token_of;
use crate::support::client::prefix;
use crate::support::cluster::Cluster;
use crate::support::{in_world, until, Client, Flavor, Server};

crate::on_every_server!(
    check_accepts_only_the_holder,
    check_accepts_only_the_newest_token,
    check_works_on_a_replica,
    guard_runs_the_command_or_nothing,
    a_former_owner_writes_nothing,
    a_token_passes_until_a_newer_grant,
    a_token_ahead_raises_the_counter,
    unguardable_commands_change_nothing,
    guard_replicates_as_its_command,
    guarded_values_have_the_usual_encoding,
    replies_use_the_callers_protocol,
    guard_checks_the_callers_permissions,
    full_memory_refuses_guarded_writes,
    a_watched_check_ties_transactions_to_the_lock,
    guard_works_in_scripts_transactions_and_functions,
    renamed_commands_stay_unguardable,
    guarded_commands_may_free_the_lock,
    keys_of_another_slot_are_refused,
    migrated_keys_reply_tryagain,
);

const COUNTER: &str = "redisson_lock_token:{k}";

/// Acquires the lock `k` with a token.
fn fenced(client: &mut Client, owner: &str) -> i64 {
    let reply = client.call(&format!("LOCK.ACQUIRE k {owner} FENCE PX 100000"));
    token_of(&reply)
}

fn check_accepts_only_the_holder(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(prefix(&a.call("LOCK.CHECK k OWNER a")), "NOTOWNER");
        a.call("LOCK.ACQUIRE k a PX 100000");
        a.call("LOCK.ACQUIRE k a PX 100000");
        assert_eq!(a.call("LOCK.CHECK k owner a"), "2");
        assert_eq!(prefix(&a.call("LOCK.CHECK k OWNER b")), "NOTOWNER");
        a.call("LOCK.ACQUIRE k a SHARED PX 100000");
        assert_eq!(a.call("LOCK.CHECK k OWNER a"), "3", "both kinds");
        a.call("LOCK.BREAK k");
        assert_eq!(prefix(&a.call("LOCK.CHECK k OWNER a")), "NOTOWNER");
        for reader in 0..20 {
            a.call(&format!("LOCK.ACQUIRE k r{reader} SHARED PX 100000"));
        }
        assert_eq!(a.call("LOCK.CHECK k OWNER r7"), "1");
        assert_eq!(prefix(&a.call("LOCK.CHECK k OWNER a")), "NOTOWNER");
        a.call("LOCK.ACQUIRE short a PX 50");
        a.call("LOCK.ACQUIRE short-shared a SHARED PX 50");
        a.call("LOCK.ACQUIRE short-shared b SHARED PX 100000");
        for lock in ["short", "short-shared"] {
            until("the lease is over", || {
                prefix(&a.call(&format!("LOCK.CHECK {lock} OWNER a"))) == "NOTOWNER"
            });
        }
        a.call("HSET user a 1");
        a.call("SET text a");
        for key in ["user", "text"] {
            assert_eq!(prefix(&a.call(&format!("LOCK.CHECK {key} OWNER a"))), "WRONGTYPE");
            assert_eq!(prefix(&a.call(&format!("LOCK.GUARD {key} OWNER a SET x 1"))), "WRONGTYPE");
        }
        for (call, problem) in [
            (
                "LOCK.CHECK k MASTER a",
                "ERR syntax error, expected OWNER or TOKEN but got 'MASTER' in 'lock.check' command",
            ),
            ("LOCK.CHECK k TOKEN a", "ERR TOKEN 'a' is not an integer in 'lock.check' command"),
            (
                "LOCK.CHECK k TOKEN 0",
                "ERR TOKEN is out of range in 'lock.check' command; use 1 to 9007199254740991",
            ),
            ("LOCK.CHECK k OWNER #a", "ERR owner begins with '#' in 'lock.check' command; use another owner"),
            ("LOCK.CHECK k OWNER", "ERR wrong number of arguments for 'lock.check' command"),
            ("LOCK.CHECK k OWNER a b", "ERR wrong number of arguments for 'lock.check' command"),
            ("LOCK.GUARD k OWNER a", "ERR wrong number of arguments for 'lock.guard' command"),
            (
                "LOCK.GUARD k BOTH a GET x",
                "ERR syntax error, expected OWNER or TOKEN but got 'BOTH' in 'lock.guard' command",
            ),
        ] {
            assert_eq!(a.call(call), problem);
        }
    });
}

fn check_accepts_only_the_newest_token(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(prefix(&a.call("LOCK.CHECK k TOKEN 9007199254740991")), "NOTOWNER", "no counter exists");
        let old = fenced(&mut a, "a");
        assert_eq!(a.call(&format!("LOCK.CHECK k TOKEN {old}")), "1");
        assert_eq!(a.call(&format!("LOCK.CHECK k TOKEN {}", old + 1)), "1");
        assert_eq!(a.call(&format!("GET {COUNTER}")), old.to_string(), "a check writes nothing");
        assert_eq!(prefix(&a.call(&format!("LOCK.CHECK k TOKEN {}", old - 1))), "NOTOWNER");
        a.call("LOCK.RELEASE k a");
        assert_eq!(a.call(&format!("LOCK.CHECK k TOKEN {old}")), "1", "no newer token exists");
        let new = fenced(&mut a, "b");
        assert_eq!(prefix(&a.call(&format!("LOCK.CHECK k TOKEN {old}"))), "NOTOWNER");
        assert_eq!(a.call(&format!("LOCK.CHECK k TOKEN {new}")), "1");
        a.call(&format!("SET {COUNTER} rubbish"));
        assert_eq!(prefix(&a.call("LOCK.CHECK k TOKEN 5")), "WRONGTYPE");
        a.call(&format!("DEL {COUNTER}"));
        a.call(&format!("LPUSH {COUNTER} rubbish"));
        assert_eq!(prefix(&a.call("LOCK.GUARD k TOKEN 5 SET x 1")), "WRONGTYPE");
    });
}

fn check_works_on_a_replica(flavor: Flavor) {
    let primary = Server::with_module(flavor, &[]);
    let replica = Server::with_module(flavor, &[]);
    let (mut a, mut there) = (primary.client(), replica.client());
    replica.follow(&primary);
    let token = fenced(&mut a, "a");
    assert_eq!(a.call("WAIT 1 10000"), "1");
    assert_eq!(there.call("LOCK.CHECK k OWNER a"), "1");
    assert_eq!(there.call(&format!("LOCK.CHECK k TOKEN {token}")), "1");
    assert_eq!(prefix(&there.call("LOCK.CHECK k OWNER b")), "NOTOWNER");
    assert_eq!(prefix(&there.call("LOCK.GUARD k OWNER a GET x")), "READONLY");
}

fn guard_runs_the_command_or_nothing(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        assert_eq!(a.call("LOCK.GUARD k OWNER a SET x 1"), "OK");
        assert_eq!(a.call("lock.guard k owner a incrby x 41"), "42");
        assert_eq!(a.call("LOCK.GUARD k OWNER a GET x"), "42");
        assert_eq!(a.call("LOCK.GUARD k OWNER a MGET x y"), "[42, nil]");
        assert_eq!(a.call("LOCK.GUARD k OWNER a LPUSH x 1"), a.call("LPUSH x 1"), "its own error");
        assert_eq!(a.call("LOCK.GUARD k OWNER a XREAD BLOCK 0 STREAMS s $"), "nil", "nothing blocks");
        assert_eq!(prefix(&a.call("LOCK.GUARD k OWNER b INCR x")), "NOTOWNER");
        assert_eq!(a.call("GET x"), "42");
        assert_eq!(prefix(&a.call("LOCK.GUARD k OWNER a NOSUCH x")), "ERR");
        assert_eq!(prefix(&a.call("LOCK.GUARD k OWNER a GET")), "ERR");
        a.call("SELECT 3");
        assert_eq!(prefix(&a.call("LOCK.GUARD k OWNER a SET x 1")), "NOTOWNER", "of another database");
        a.call("LOCK.ACQUIRE k a PX 100000");
        assert_eq!(a.call("LOCK.GUARD k OWNER a SET x 3"), "OK");
        assert_eq!(a.call("LOCK.GUARD k OWNER a SELECT 0"), "OK");
        assert_eq!(a.call("GET x"), "3", "the connection keeps its database");
    });
}

fn a_former_owner_writes_nothing(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), world.client());
        let before = a.call("LOCK.ACQUIRE k a FENCE PX 50");
        let before = token_of(&before);
        a.call("LOCK.GUARD k OWNER a SET x a");
        let reply = b.call("LOCK.ACQUIRE k b FENCE PX 100000 BLOCK 0");
        let after = token_of(&reply);
        for claim in ["OWNER a".to_owned(), format!("TOKEN {before}")] {
            assert_eq!(prefix(&a.call(&format!("LOCK.GUARD k {claim} SET x late"))), "NOTOWNER");
        }
        assert_eq!(a.call("GET x"), "a");
        assert_eq!(b.call(&format!("LOCK.GUARD k TOKEN {after} SET x b")), "OK");
        assert_eq!(b.call("LOCK.GUARD k OWNER b APPEND x b"), "2");
    });
}

fn a_token_passes_until_a_newer_grant(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let token = fenced(&mut a, "a");
        for ending in ["LOCK.RELEASE k a", "PING", "LOCK.ACQUIRE k other PX 100000", "DEL k"] {
            a.call(ending);
            let reply = a.call(&format!("LOCK.GUARD k TOKEN {token} INCR x"));
            assert!(reply.parse::<i64>().is_ok(), "{ending}: {reply}");
        }
        let newer = fenced(&mut a, "b");
        assert_eq!(prefix(&a.call(&format!("LOCK.GUARD k TOKEN {token} INCR x"))), "NOTOWNER");
        assert_eq!(a.call(&format!("LOCK.GUARD k TOKEN {newer} INCR x")), "5");
        a.call(&format!("DEL {COUNTER}"));
        assert_eq!(
            prefix(&a.call(&format!("LOCK.GUARD k TOKEN {newer} INCR x"))),
            "NOTOWNER",
            "the counter is lost"
        );
        assert_eq!(a.call(&format!("EXISTS {COUNTER}")), "0");
    });
}

/// A failover can lose the last writes of a counter. Tokens that were granted before the failover stay valid.
fn a_token_ahead_raises_the_counter(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let counter = |a: &mut Client| a.number(&format!("GET {COUNTER}"));
        let token = fenced(&mut a, "a");
        // Failed and refused commands change nothing.
        for command in ["LPUSH x 1", "NOSUCH", "GET", "SUBSCRIBE x", "LOCK.BREAK k"] {
            a.call("SET x text");
            let reply = a.call(&format!("LOCK.GUARD k TOKEN {} {command}", token + 1_000_000_000));
            assert!(["ERR", "WRONGTYPE"].contains(&prefix(&reply)), "{reply}");
            assert_eq!(counter(&mut a), token, "{command}");
        }
        assert_eq!(a.call(&format!("LOCK.GUARD k TOKEN {} SET x 1", token + 1_000_000_000)), "OK");
        assert_eq!(counter(&mut a), token + 1_000_000_000);
        assert_ne!(a.call(&format!("PTTL {COUNTER}")), "-1", "the counter has no TTL");
        assert_eq!(prefix(&a.call(&format!("LOCK.GUARD k TOKEN {token} SET x 2"))), "NOTOWNER");
        a.call("LOCK.RELEASE k a");
        assert_eq!(fenced(&mut a, "b"), token + 1_000_000_001);
        // A token beyond any possible grant is refused: otherwise one wrong call would exhaust the lock's tokens.
        let token = counter(&mut a);
        for wrong in [9_007_199_254_740_991, token + 4_000_000_000] {
            assert_eq!(prefix(&a.call(&format!("LOCK.GUARD k TOKEN {wrong} SET x 2"))), "NOTOWNER");
        }
        assert_eq!(counter(&mut a), token);
        // A user with read permission must not invalidate other owners' tokens.
        a.call("ACL SETUSER reader on nopass resetkeys %R~k ~x -@all +lock.guard +ping");
        a.call("ACL SETUSER writer on nopass resetkeys ~k ~x -@all +lock.guard +ping");
        let mut user = world.client();
        for (name, reply) in [("reader", "NOPERM"), ("writer", "PONG")] {
            assert_eq!(user.call(&format!("AUTH {name} any")), "OK");
            assert_eq!(user.call(&format!("LOCK.GUARD k TOKEN {token} PING")), "PONG");
            assert_eq!(prefix(&user.call(&format!("LOCK.GUARD k TOKEN {} PING", token + 1))), reply);
        }
        assert_eq!(counter(&mut a), token + 1);
        // Raising the counter aborts transactions that watch the lock and have checked its token.
        a.call("WATCH k");
        assert_eq!(a.call(&format!("LOCK.CHECK k TOKEN {}", token + 1)), "1");
        a.call("MULTI");
        a.call("SET x old");
        assert_eq!(world.client().call(&format!("LOCK.GUARD k TOKEN {} SET x new", token + 2)), "OK");
        assert_eq!(a.call("EXEC"), "nil");
        a.call("ACL DELUSER reader writer");
    });
}

fn unguardable_commands_change_nothing(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        for command in [
            "MULTI",
            "EXEC",
            "DISCARD",
            "WATCH x",
            "SUBSCRIBE x",
            "PSUBSCRIBE x",
            "SSUBSCRIBE x",
            "UNSUBSCRIBE",
            "MONITOR",
            "CLIENT REPLY OFF",
            "CLIENT KILL ID 1",
            "CLIENT PAUSE 1000",
            "CLIENT TRACKING ON",
            "REPLICAOF 127.0.0.1 1",
            "REPLICAOF NO ONE",
            "MODULE UNLOAD lock",
            "MODULE LIST",
            "SHUTDOWN NOSAVE",
            "DEBUG SEGFAULT",
            "DEBUG SLEEP 1",
            "CONFIG SET maxmemory 1",
            "ACL SETUSER default off",
            "AUTH a b",
            "HELLO 3",
            "QUIT",
            "RESET",
            "SAVE",
            "BGSAVE",
            "SCRIPT FLUSH",
            "FUNCTION FLUSH",
            "WAIT 0 0",
            "WAIT 5 0",
            "wait 5 0",
            "WAITAOF 0 0 0",
            "PFDEBUG GETREG x",
            "PFSELFTEST",
            "SYNC",
            "PSYNC ? -1",
            "REPLCONF ACK 1",
            "FAILOVER",
            "BLPOP x",
            "LOCK.ACQUIRE k b",
            "LOCK.RELEASE k a",
            "LOCK.BREAK k",
            "lock.guard k OWNER a GET x",
            "LOCK.CHECK k OWNER a",
            "LOCK.HELP",
            "CLUSTER INFO",
            "CLUSTER SETSLOT 5 STABLE",
        ] {
            let reply = a.call(&format!("LOCK.GUARD k OWNER a {command}"));
            assert_eq!(prefix(&reply), "ERR", "{command}: {reply}");
        }
        assert_eq!(a.call("LOCK.CHECK k OWNER a"), "1");
        assert_eq!(a.call("PING"), "PONG");
        // A name of maximum length: nesting must not exhaust the stack.
        let nested = "LOCK.GUARD k OWNER a ".repeat(10_000) + "GET x";
        let reply = a.call(&nested);
        assert!(reply.starts_with("ERR command cannot be guarded"), "{reply}");
        let null = [&b"LOCK.GUARD"[..], b"k", b"OWNER", b"a", b"GET\0", b"x"];
        assert_eq!(prefix(&a.call_args(&null)), "ERR");
    });
}

fn guard_replicates_as_its_command(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        a.call("SADD s only");
        assert_eq!(a.call("WAIT 1 10000"), "1");
        let sent = stream(world, || {
            a.call("LOCK.GUARD k OWNER a SET x 1 PX 100000");
            a.call("LOCK.GUARD k OWNER a SPOP s 1");
            a.call("LOCK.GUARD k OWNER a GET x");
            a.call("LOCK.GUARD k OWNER b SET x 2");
        });
        let expected = ["SET x 1 PXAT <time>", "SREM s only"].map(str::to_owned);
        // Servers replicate the removal of the last element by different, equivalent commands.
        let mut sent = timeless(sent);
        for line in &mut sent {
            if ["DEL s", "UNLINK s"].contains(&line.as_str()) {
                *line = "SREM s only".to_owned();
            }
        }
        assert_eq!(sent, expected);
        let token = fenced(&mut a, "a") + 1_000_000_000;
        let sent = timeless(stream(world, || drop(a.call(&format!("LOCK.GUARD k TOKEN {token} SET x 1")))));
        let raised = format!("SET {COUNTER} <token> PXAT <time>");
        assert_eq!(sent, ["MULTI", "SET x 1", &raised, "EXEC"].map(str::to_owned));
    });
}

fn guarded_values_have_the_usual_encoding(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        for value in ["text", &"m".repeat(44), &"m".repeat(45), &"m".repeat(100_000)] {
            a.call(&format!("SET plain {value}"));
            assert_eq!(a.call(&format!("LOCK.GUARD k OWNER a SET x {value}")), "OK");
            assert_eq!(
                a.call("OBJECT ENCODING x"),
                a.call("OBJECT ENCODING plain"),
                "of {} bytes",
                value.len()
            );
            let (guarded, plain) = (a.number("MEMORY USAGE x"), a.number("MEMORY USAGE plain"));
            assert!(guarded <= plain, "{guarded} bytes for {plain}");
        }
        assert_eq!(a.call("LOCK.GUARD k OWNER a SET x 7"), "OK");
        assert_eq!(a.call("LOCK.GUARD k OWNER a INCR x"), "8");
        assert_eq!(a.call("OBJECT ENCODING x"), "int");
    });
}

fn replies_use_the_callers_protocol(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        a.call("HSET h f v");
        a.call("ZADD z 1.5 m");
        let calls = ["HGETALL h", "ZSCORE z m", "ZRANGE z 0 -1 WITHSCORES", "GET none", "LRANGE none 0 -1"];
        for protocol in ["2", "3"] {
            a.call(&format!("HELLO {protocol}"));
            for call in calls {
                assert_eq!(
                    a.call_value(&format!("LOCK.GUARD k OWNER a {call}")),
                    a.call_value(call),
                    "{call} in {protocol}"
                );
            }
        }
    });
}

/// Whether a server's script error reports a denied permission.
fn is_denied(reply: &str) -> bool {
    ["permission", "NOPERM", "can't run this command", "can't access"]
        .iter()
        .any(|words| reply.contains(words))
}

fn guard_checks_the_callers_permissions(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut root = world.client();
        root.call("LOCK.ACQUIRE k a PX 100000");
        root.call("SET secret s");
        root.call("ACL SETUSER app on nopass resetkeys %R~k ~app:* -@all +lock.guard +get +eval +eval_ro +multi +exec");
        let mut app = world.client();
        assert_eq!(app.call("AUTH app any"), "OK");
        assert_eq!(app.call("LOCK.GUARD k OWNER a GET app:x"), "nil");
        for denied in ["SET app:x 1", "GET secret", "DEL app:x", "FLUSHALL"] {
            assert_eq!(prefix(&app.call(&format!("LOCK.GUARD k OWNER a {denied}"))), "NOPERM", "{denied}");
        }
        // A guard in a script gives the script no further permissions.
        for script in ["return redis.call('SET', 'app:x', 1)", "return redis.call('GET', 'secret')"] {
            let inner = script.replace("redis.call(", "redis.call('LOCK.GUARD', 'k', 'OWNER', 'a', ");
            let reply = app.call_args(&["EVAL", &inner, "0"].map(str::as_bytes));
            assert!(is_denied(&reply), "{inner}: {reply}");
        }
        assert!(root.call("ACL LOG 100").contains("secret"), "the refusal is missing in the ACL log");
        assert_eq!(root.call("EXISTS app:x"), "0");
        // The guard needs read permission for the lock's key.
        root.call("ACL SETUSER other on nopass resetkeys ~app:* +@all");
        app.call("AUTH other any");
        assert_eq!(prefix(&app.call("LOCK.GUARD k OWNER a GET app:x")), "NOPERM");
        root.call("ACL DELUSER app other");
    });
}

fn full_memory_refuses_guarded_writes(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        a.call("SET x 1");
        a.call("CONFIG SET maxmemory 1");
        for command in ["SET x 2", "LPUSH l 1"] {
            assert_eq!(prefix(&a.call(&format!("LOCK.GUARD k OWNER a {command}"))), "OOM", "{command}");
        }
        assert_eq!(a.call("LOCK.GUARD k OWNER a GET x"), "1");
        assert_eq!(a.call("LOCK.GUARD k OWNER a DEL x"), "1");
        a.call("CONFIG SET maxmemory 0");
    });
}

fn a_watched_check_ties_transactions_to_the_lock(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), world.client());
        a.call("LOCK.ACQUIRE k a PX 100000");
        let mut transaction = |meanwhile: &mut dyn FnMut()| {
            a.call("WATCH k");
            let held = a.call("LOCK.CHECK k OWNER a");
            if held != "1" {
                a.call("UNWATCH");
                return held;
            }
            a.call("MULTI");
            a.call("INCR x");
            meanwhile();
            a.call("EXEC")
        };
        assert_eq!(transaction(&mut || {}), "[1]");
        for takes in ["LOCK.RELEASE k a", "LOCK.BREAK k", "DEL k", "LOCK.RENEW k a"] {
            assert_eq!(transaction(&mut || drop(b.call(takes))), "nil", "{takes}");
            b.call("LOCK.BREAK k");
            b.call("LOCK.ACQUIRE k a PX 100000");
        }
        b.call("LOCK.RENEW k a PX 50");
        let over = transaction(&mut || until("the lease has expired", || b.call("EXISTS k") == "0"));
        assert_eq!(over, "nil");
        assert_eq!(prefix(&transaction(&mut || {})), "NOTOWNER");
        assert_eq!(b.call("GET x"), "1");
    });
}

fn guard_works_in_scripts_transactions_and_functions(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        let library = "#!lua name=l\n\
                       redis.register_function('guarded', function(keys, args) return redis.call(unpack(args)) end)";
        assert_eq!(a.call_args(&[b"FUNCTION", b"LOAD", library.as_bytes()]), "l");
        let script = "return redis.call(unpack(ARGV))";
        let words = |line: &'static str| line.split(' ').map(str::as_bytes).collect::<Vec<_>>();
        for (guarded, reply) in [
            ("LOCK.GUARD k OWNER a SET x 1", "OK"),
            ("LOCK.GUARD k OWNER a INCR x", "2"),
            ("LOCK.CHECK k OWNER a", "1"),
            ("LOCK.GUARD k OWNER a DEL x", "1"),
        ] {
            assert_eq!(
                a.call_args(&[vec![b"EVAL", script.as_bytes(), b"0"], words(guarded)].concat()),
                reply
            );
            a.call("SET x 1");
            assert_eq!(a.call_args(&[words("FCALL guarded 0"), words(guarded)].concat()), reply);
            a.call("SET x 1");
            a.call("MULTI");
            a.call(guarded);
            assert_eq!(a.call("EXEC"), format!("[{reply}]"));
            a.call("SET x 1");
        }
        // A failed check ends the script before its write.
        let checks = "redis.call('LOCK.CHECK', 'k', 'OWNER', ARGV[1]) return redis.call('SET', 'y', 1)";
        assert!(a.call_args(&["EVAL", checks, "0", "b"].map(str::as_bytes)).contains("NOTOWNER"));
        assert_eq!(a.call("EXISTS y"), "0");
        assert_eq!(a.call_args(&["EVAL", checks, "0", "a"].map(str::as_bytes)), "OK");
        // A refused guard does not abort the transaction, like any other error.
        a.call("MULTI");
        a.call("LOCK.GUARD k OWNER b SET z 1");
        a.call("SET z 2");
        assert!(a.call("EXEC").starts_with("[NOTOWNER"));
    });
}

/// `WAIT` and `CLUSTER SETSLOT` crash some servers, also under another name.
fn renamed_commands_stay_unguardable(flavor: Flavor) {
    let args = ["--rename-command", "WAIT", "myWAIT", "--rename-command", "PFSELFTEST", "myPFSELFTEST"];
    assert_unguardable(flavor, &args, &["myWAIT 5 0", "MYwait 5 0", "myPFSELFTEST"]);
    assert_unguardable(
        flavor,
        &["--rename-command", "CLUSTER", "myCLUSTER"],
        &["myCLUSTER INFO", "WAIT 5 0"],
    );
}

fn assert_unguardable(flavor: Flavor, args: &[&str], names: &[&str]) {
    let mut server = Server::with_module(flavor, args);
    let mut a = server.client();
    a.call("LOCK.ACQUIRE k a PX 100000");
    for name in names {
        let reply = a.call(&format!("LOCK.GUARD k OWNER a {name}"));
        assert!(reply.starts_with("ERR command cannot be guarded"), "{name}: {reply}");
        let script = "return redis.call('LOCK.GUARD', 'k', 'OWNER', 'a', unpack(ARGV))";
        let words = [vec!["EVAL", script, "0"], name.split(' ').collect::<Vec<_>>()].concat();
        let reply = a.call_args(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
        assert!(reply.contains("cannot be guarded"), "{name}: {reply}");
    }
    assert_eq!(a.call("LOCK.GUARD k OWNER a SET x 1"), "OK");
    assert_eq!(prefix(&a.call("LOCK.GUARD k OWNER a WAIT 5 0")), "ERR");
    server.assert_healthy();
}

fn guarded_commands_may_free_the_lock(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for (frees, reply) in [
            ("DEL k", "1"),
            ("RENAME k l", "OK"),
            ("FLUSHDB", "OK"),
            ("FLUSHALL", "OK"),
            ("SWAPDB 0 5", "OK"),
            ("PEXPIRE k -1", "1"),
            ("MOVE k 7", "1"),
        ] {
            a.call("FLUSHALL");
            a.call("LOCK.ACQUIRE k a PX 100000");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 100000");
            assert_eq!(a.call(&format!("LOCK.GUARD k OWNER a {frees}")), reply);
            assert_eq!(b.recv(), "1", "{frees}");
            a.call("LOCK.RELEASE k b");
        }
        a.call("LOCK.ACQUIRE k a PX 100000");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        assert_eq!(a.call("LOCK.GUARD k OWNER a SET k text"), "OK");
        a.call("LOCK.INFO k");
        a.call("LOCK.ACQUIRE k a");
        assert_eq!(prefix(&b.recv()), "WRONGTYPE");
    });
}

/// Slots: `b` has 3300, which the first node serves; `a` has 15495, which the second serves. `c` belongs to the first node,
/// too.
fn keys_of_another_slot_are_refused(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let [mut first, _] = cluster.clients();
    let token = first.call("LOCK.ACQUIRE b o FENCE PX 100000");
    let token = token_of(&token);
    for claim in ["OWNER o".to_owned(), format!("TOKEN {token}")] {
        let mut guard = |command: &str| first.call(&format!("LOCK.GUARD b {claim} {command}"));
        assert_eq!(guard("SET x{b} 1"), "OK");
        assert_eq!(guard("MSET x{b} 1 {b}y 2"), "OK");
        assert_eq!(guard("PING"), "PONG", "a command without keys");
        for other in ["SET a 1", "SET c 1", "MSET x{b} 2 c 2"] {
            assert_eq!(prefix(&guard(other)), "CROSSSLOT", "{other}");
        }
        assert_eq!(guard("GET x{b}"), "1");
    }
    assert_eq!(prefix(&first.call("LOCK.CHECK {}b TOKEN 5")), "ERR", "its counter is in another slot");
    first.call("LOCK.BREAK b");
    cluster.assert_healthy();
}

fn migrated_keys_reply_tryagain(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let [mut first, mut second] = cluster.clients();
    first.call("LOCK.ACQUIRE b o PX 100000");
    first.call("SET gone{b} 1");
    let ids = [cluster.id(0), cluster.id(1)];
    assert_eq!(first.call(&format!("CLUSTER SETSLOT 3300 MIGRATING {}", ids[1])), "OK");
    assert_eq!(second.call(&format!("CLUSTER SETSLOT 3300 IMPORTING {}", ids[0])), "OK");
    assert_eq!(first.call(&format!("MIGRATE 127.0.0.1 {} gone{{b}} 0 10000", cluster.nodes[1].port)), "OK");
    assert_eq!(prefix(&first.call("LOCK.GUARD b OWNER o SET gone{b} 2")), "TRYAGAIN");
    assert_eq!(prefix(&first.call("LOCK.GUARD b OWNER o GET gone{b}")), "TRYAGAIN");
    assert_eq!(prefix(&first.call("LOCK.GUARD a OWNER o GET a")), "MOVED");
    for client in [&mut first, &mut second] {
        assert_eq!(client.call("CLUSTER SETSLOT 3300 STABLE"), "OK");
    }
    first.call("LOCK.BREAK b");
    second.call("ASKING");
    cluster.assert_healthy();
}
