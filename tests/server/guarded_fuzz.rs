// SPDX-License-Identifier: MIT

//! Sends every command of the server through `LOCK.GUARD`, with junk and with plausible arguments, in every context. No
//! command crashes the server, blocks, or exceeds its caller's permissions (invariant 12). Replica and AOF stay equal to the
//! primary (invariant 8).

use std::collections::BTreeSet;

use redis::Value;

use crate::support::client::show;
use crate::support::{in_world, until, Client, Flavor, World};

crate::on_every_server!(no_guarded_command_does_harm, no_guarded_command_exceeds_permissions);

/// Arguments that fit some command. `k` is the lock.
const ARGUMENTS: [&str; 34] = [
    "",
    "a",
    "a b",
    "a 1",
    "a b c",
    "a 1 b",
    "a b 1",
    "a 1 1",
    "a 0 -1",
    "a 1 2 3",
    "a b c d",
    "a b 1 1 c",
    "a a a a a a",
    "1",
    "1 a",
    "1 a b",
    "2 a b",
    "0 0",
    "-1",
    "5 0",
    "99999999999999999999",
    "9223372036854775807 a",
    "a BEFORE b c",
    "a LEFT b",
    "a b LEFT RIGHT",
    "a - +",
    "a 0 MATCH * COUNT 10",
    "a * f v",
    "STREAMS a 0",
    "BLOCK 0 STREAMS a $",
    "127.0.0.1 1 a 0 10",
    "k",
    "return(redis.call('INCR','a')) 0",
    "GET a",
];

/// Names of all commands, with their subcommands.
fn commands(client: &mut Client) -> Vec<String> {
    let mut names = BTreeSet::new();
    let Value::Array(entries) = client.call_value("COMMAND") else { panic!("no list of commands") };
    let name_of = |entry: &Value| match entry {
        Value::Array(fields) => fields.first().map(show).unwrap_or_default(),
        _ => panic!("no command"),
    };
    for entry in &entries {
        names.insert(name_of(entry));
        let Value::Array(fields) = entry else { continue };
        for subcommand in fields.iter().skip(9) {
            let Value::Array(entries) = subcommand else { continue };
            names.extend(entries.iter().map(|entry| name_of(entry).replace('|', " ")));
        }
    }
    let names: Vec<String> = names.into_iter().filter(|name| !name.is_empty()).collect();
    for known in
        ["set", "wait", "eval", "monitor", "client reply", "lock.guard", "replicaof", "module unload"]
    {
        assert!(names.iter().any(|name| name == known), "{known} is missing in {names:?}");
    }
    names
}

/// Contexts of the guard, as the words before it.
const CONTEXTS: [&[&str]; 4] = [
    &[],
    &["EVAL", "return redis.pcall(unpack(ARGV))", "0"],
    &["FCALL", "guarded", "0"],
    // A script run by another guard.
    &["LOCK.GUARD", "k", "OWNER", "o", "EVAL", "return redis.pcall(unpack(ARGV))", "0"],
];

const LIBRARY: &str =
    "#!lua name=l\nredis.register_function('guarded', function(keys, args) return redis.pcall(unpack(args)) end)";

/// Guards every command in every context with all arguments, and calls `after` for each command with its replies.
fn guard_everything(world: &World, client: &mut Client, mut after: impl FnMut(&str, Vec<String>)) {
    let mut root = world.client();
    for name in commands(&mut root) {
        let mut replies = Vec::new();
        for arguments in ARGUMENTS {
            let command = format!("LOCK.GUARD k OWNER o {name} {arguments}");
            let guarded: Vec<&str> = command.split_whitespace().collect();
            root.call("LOCK.ACQUIRE k o PX 600000");
            for before in CONTEXTS {
                let words = before.iter().chain(&guarded).map(|word| word.as_bytes());
                client.send_args(&words.collect::<Vec<_>>());
            }
            client.send("MULTI");
            client.send_args(&guarded.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
            client.send("EXEC");
            client.send("ECHO end");
            loop {
                let reply = client.try_recv().map(|reply| show(&reply));
                let Ok(reply) = reply else { panic!("{command}: no reply after {replies:?}") };
                if reply == "end" {
                    break;
                }
                replies.push(reply);
            }
            assert_eq!(replies.len() % (CONTEXTS.len() + 3), 0, "{command} replied more than once, or never");
        }
        after(&name, replies);
    }
}

fn no_guarded_command_does_harm(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut root = world.client();
        assert_eq!(root.call_args(&[b"FUNCTION", b"LOAD", LIBRARY.as_bytes()]), "l");
        let (mut primary, mut replica) = (world.client(), world.replica.client());
        let mut client = world.client();
        guard_everything(world, &mut client, |name, replies| {
            if name == "get" {
                assert!(replies.iter().any(|reply| !reply.contains("ERR")), "no guarded command was run");
            }
            until(&format!("the replica has what {name} did"), || {
                primary.call("WAIT 1 10000");
                primary.call("DEBUG DIGEST") == replica.call("DEBUG DIGEST")
            });
        });
        root.call("FLUSHALL");
        assert_eq!(root.info("replication", "role"), "master");
        assert_eq!(root.call("CONFIG GET maxmemory"), "[maxmemory, 0]");
    });
}

fn no_guarded_command_exceeds_permissions(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut root = world.client();
        assert_eq!(root.call_args(&[b"FUNCTION", b"LOAD", LIBRARY.as_bytes()]), "l");
        root.call("SET a secret");
        root.call("HSET h f secret");
        root.call("LOCK.ACQUIRE k o PX 600000");
        root.call(
            "ACL SETUSER app on nopass resetkeys resetchannels %R~k ~own -@all +lock.guard +eval +fcall +multi +exec +echo +get",
        );
        let mut app = world.client();
        assert_eq!(app.call("AUTH app any"), "OK");
        let state = |root: &mut Client| {
            let Value::Array(settings) = root.call_value("CONFIG GET *") else { panic!("no settings") };
            let settings = settings.chunks(2).map(|pair| pair.iter().map(show).collect::<Vec<_>>().join(" "));
            let settings: BTreeSet<String> = settings.collect();
            (["DEBUG DIGEST", "ACL LIST", "DBSIZE", "FUNCTION LIST"].map(|call| root.call(call)), settings)
        };
        let (before, mut observer) = (state(&mut root), world.client());
        guard_everything(world, &mut app, |name, replies| {
            for reply in &replies {
                assert!(!reply.contains("secret"), "{name} reveals the secret: {reply}");
            }
            assert_eq!(observer.call("HGETALL h"), "[f, secret]", "{name}");
            assert_eq!(observer.call("GET a"), "secret", "{name}");
        });
        // Resets the lock, which was acquired repeatedly.
        root.call("LOCK.BREAK k");
        root.call("LOCK.ACQUIRE k o PX 600000");
        assert_eq!(state(&mut root), before);
        root.call("ACL DELUSER app");
    });
}
