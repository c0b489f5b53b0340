// SPDX-License-Identifier: MIT

//! The message about a freed lock, as sent to replicas: it follows the release as a separate step.

use crate::effects::{aof, listener, messages, messages_before_the_end, stream, timeless};
use crate::support::{in_world, in_world_with, until, Client, Flavor, World};

crate::on_every_server!(
    a_message_follows_its_release,
    batched_messages_follow_their_releases,
    each_release_is_published_once,
    a_message_waits_for_the_pause_to_end,
    a_demoted_server_drops_its_messages,
    messages_to_replicas_follow_the_setting,
);

const CHANNEL: &str = "redisson_lock__channel:{k}";

/// Sends these calls in one write, and reads the replies.
fn call_in_one_write(client: &mut Client, calls: &[&str]) {
    client.send_at_once(calls);
    for call in calls {
        let reply = client.recv();
        assert!(!reply.starts_with("ERR"), "{call}: {reply}");
    }
}

fn a_message_follows_its_release(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("SELECT 3");
        let commands = stream(world, || {
            a.call("SET x y");
            for _ in 0..2 {
                a.call("LOCK.ACQUIRE k a");
                a.call("LOCK.RELEASE k a");
            }
        });
        let pair = [
            "MULTI",
            "HSET k a 1",
            "PEXPIREAT k <time>",
            "EXEC",
            "DEL k",
            "PUBLISH redisson_lock__channel:{k} 0",
        ];
        let commands: Vec<_> = timeless(commands);
        // The client that ends the stream uses another database.
        let ours = commands.strip_suffix(&["SELECT 0".to_owned()]).unwrap_or(&commands);
        let ours = ours.strip_prefix(&["SELECT 3".to_owned()]).unwrap_or(ours);
        assert_eq!(ours, [&["SET x y"][..], &pair, &pair].concat());
    });
}

fn batched_messages_follow_their_releases(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut there = listener(&world.replica, &[CHANNEL, "redisson_lock__channel:{l}", "end"]);
        let calls = ["LOCK.ACQUIRE k a", "LOCK.RELEASE k a", "LOCK.ACQUIRE l a", "LOCK.RELEASE l a"];
        let commands = stream(world, || call_in_one_write(&mut a, &[calls, calls].concat()));
        world.client().call("PUBLISH end now");
        assert_eq!(messages_before_the_end(&mut there), 4);
        for key in ["k", "l"] {
            let of = |text: String| {
                commands.iter().enumerate().filter(move |(_, line)| **line == text).map(|(at, _)| at)
            };
            let releases: Vec<_> = of(format!("DEL {key}")).collect();
            let messages: Vec<_> = of(format!("PUBLISH redisson_lock__channel:{{{key}}} 0")).collect();
            assert_eq!((releases.len(), messages.len()), (2, 2), "{commands:?}");
            assert!(
                releases.iter().zip(&messages).all(|(release, message)| release < message),
                "{commands:?}"
            );
        }
        assert!(!aof(&world.primary).contains("PUBLISH"));
    });
}

fn each_release_is_published_once(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut listeners =
            [listener(&world.primary, &[CHANNEL, "end"]), listener(&world.replica, &[CHANNEL, "end"])];
        let mut check = |what: &str, expected: usize| {
            assert_eq!(messages(world, &mut listeners), [expected; 2], "{what}, here and at the replica");
        };
        let (acquire, release) = ("LOCK.ACQUIRE k a", "LOCK.RELEASE k a");
        call_in_one_write(&mut a, &["MULTI", acquire, release, acquire, release, "EXEC"]);
        check("in a transaction", 2);
        let script =
            "redis.call('lock.acquire', KEYS[1], 'a') return redis.call('lock.release', KEYS[1], 'a')";
        let eval: [&[u8]; 4] = [b"EVAL", script.as_bytes(), b"1", b"k"];
        assert_eq!(a.call_args(&eval), "0");
        check("in a script", 1);
        call_in_one_write(&mut a, &["MULTI", acquire]);
        assert_eq!(a.call("DISCARD"), "OK");
        check("in a discarded transaction", 0);
        call_in_one_write(&mut a, &[acquire, "MULTI", release]);
        assert_eq!(a.call_args(&eval), "QUEUED");
        assert_eq!(a.call("EXEC"), "[0, 0]");
        check("in a script in a transaction", 2);
        // With pauses in between, so that the module's event loop hook is registered and removed repeatedly.
        for _ in 0..20 {
            a.call(acquire);
            a.call(release);
            for _ in 0..10 {
                a.call("PING");
            }
        }
        check("with pauses in between", 20);
    });
}

fn a_message_waits_for_the_pause_to_end(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut there = listener(&world.replica, &[CHANNEL, "end"]);
        for _ in 0..5 {
            call_in_one_write(&mut a, &["LOCK.ACQUIRE k a", "LOCK.RELEASE k a", "CLIENT PAUSE 600000 WRITE"]);
            // After several event loop iterations, the server still runs and has sent nothing.
            for _ in 0..20 {
                assert_eq!(a.call("PING"), "PONG");
            }
            assert!(there.has_nothing(), "{}", there.recv());
            assert_eq!(a.call("CLIENT UNPAUSE"), "OK");
            assert_eq!(there.recv(), format!("[message, {CHANNEL}, 0]"));
        }
        world.client().call("PUBLISH end now");
        assert_eq!(messages_before_the_end(&mut there), 0);
    });
}

fn a_demoted_server_drops_its_messages(flavor: Flavor) {
    let mut world = World::start(flavor, &[]);
    let mut a = world.client();
    a.call("LOCK.ACQUIRE k a");
    call_in_one_write(&mut a, &["LOCK.RELEASE k a", "REPLICAOF 127.0.0.1 1"]);
    assert_eq!(a.call("PING"), "PONG");
    assert_eq!(a.call("REPLICAOF NO ONE"), "OK");
    let mut r = world.replica.client();
    until("the replica is connected again", || r.info("replication", "master_link_status") == "up");
    let mut there = listener(&world.replica, &[CHANNEL, "end"]);
    call_in_one_write(&mut a, &["LOCK.ACQUIRE k a", "LOCK.RELEASE k a"]);
    a.call("PUBLISH end now");
    assert_eq!(messages_before_the_end(&mut there), 1);
    world.primary.assert_healthy();
}

fn messages_to_replicas_follow_the_setting(flavor: Flavor) {
    in_world_with(flavor, &["--lock.publish-replicas", "no"], |world| {
        let mut a = world.client();
        let mut listeners =
            [listener(&world.primary, &[CHANNEL, "end"]), listener(&world.replica, &[CHANNEL, "end"])];
        let pair = ["LOCK.ACQUIRE k a", "LOCK.RELEASE k a"];
        for (setting, at_the_replica) in [("no", 0), ("yes", 1), ("no", 0)] {
            assert_eq!(a.call(&format!("CONFIG SET lock.publish-replicas {setting}")), "OK");
            let commands = stream(world, || call_in_one_write(&mut a, &pair));
            let published = commands.iter().filter(|command| command.starts_with("PUBLISH")).count();
            assert_eq!(published, at_the_replica, "{commands:?}");
            assert_eq!(messages(world, &mut listeners), [1, at_the_replica], "{setting}");
            // A flush is published in the same way.
            a.call("FLUSHALL");
            assert_eq!(listeners[0].recv(), format!("[message, {CHANNEL}, 0]"));
            a.call("PUBLISH end now");
            assert_eq!(messages_before_the_end(&mut listeners[0]), 0);
            assert_eq!(messages_before_the_end(&mut listeners[1]), at_the_replica, "{setting}");
        }
    });
}
