// SPDX-License-Identifier: MIT

//! `LOCK.GUARD` with `EVAL`, `EVALSHA` and `FCALL` (invariant 12). The module runs scripts slightly later, so that a slow
//! script does no harm when its client disconnects.

use std::fmt::Write as _;

use crate::effects::stream;
use crate::fencing::token_of;
use crate::support::client::prefix;
use crate::support::{in_world, until, Client, Flavor, World};

crate::on_every_server!(
    every_kind_of_script_is_guarded,
    a_guarded_script_runs_within_its_transaction,
    a_slow_script_outlives_its_client,
    a_slow_transaction_script_outlives_its_client,
    a_slow_script_can_be_killed,
    the_lock_is_checked_when_the_script_starts,
    an_expired_hold_runs_no_script,
    scripts_cannot_guard_scripts,
    a_script_has_the_callers_permissions,
    a_deleted_user_runs_nothing,
    revoked_permissions_apply_to_pending_scripts,
    a_user_named_superuser_gains_nothing,
    a_failed_script_still_raises_the_counter,
    grants_in_scripts_have_newer_tokens,
    pending_scripts_wait_for_a_pause,
    a_disconnected_client_runs_no_script,
    a_demotion_ends_pending_scripts,
    guarded_scripts_replicate_as_their_writes,
);

const LIBRARY: &str = "#!lua name=l\n\
    redis.register_function('write', function(keys, args) return redis.call('SET', args[1], args[2]) end)\n\
    redis.register_function{function_name='read', callback=function(keys, args) return redis.call('GET', args[1]) end, \
    flags={'no-writes'}}";

/// A script so slow that the server reads other clients in the meantime, with the setting of [`holder`].
const SLOW: &str = "for i = 1, 50000000 do end redis.call('INCR', 'done') return 'slow'";

const ENDLESS: &str = "while true do end";

fn guarded(client: &mut Client, command: &[&str]) -> String {
    send(client, command);
    client.recv()
}

fn send(client: &mut Client, command: &[&str]) {
    let words = ["LOCK.GUARD", "k", "OWNER", "a"].iter().chain(command);
    client.send_args(&words.map(|word| word.as_bytes()).collect::<Vec<_>>());
}

/// Acquires the lock `k`, and makes the server treat scripts as slow after 20 ms.
fn holder(world: &World) -> Client {
    let mut a = world.client();
    assert_eq!(a.call("CONFIG SET busy-reply-threshold 20"), "OK");
    assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
    a
}

fn assert_no_script_is_pending(client: &mut Client) {
    until("no script is pending", || client.info("lock", "lock_table_scripts") == "0");
    assert_eq!(client.call("CONFIG GET busy-reply-threshold"), "[busy-reply-threshold, 20]");
}

fn every_kind_of_script_is_guarded(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holder(world);
        assert_eq!(a.call_args(&[b"FUNCTION", b"LOAD", LIBRARY.as_bytes()]), "l");
        let (script, reads) = ("return redis.call('INCR', KEYS[1])", "return redis.call('GET', KEYS[1])");
        let sha = a.call_args(&[b"SCRIPT", b"LOAD", script.as_bytes()]);
        let reads_sha = a.call_args(&[b"SCRIPT", b"LOAD", reads.as_bytes()]);
        for (command, reply) in [
            (vec!["EVAL", script, "1", "x"], "1"),
            (vec!["evalsha", &sha, "1", "x"], "2"),
            (vec!["EVAL_RO", reads, "1", "x"], "2"),
            (vec!["EVALSHA_RO", &reads_sha, "1", "x"], "2"),
            (vec!["FCALL", "write", "0", "x", "5"], "OK"),
            (vec!["FCALL_RO", "read", "0", "x"], "5"),
            (vec!["EVAL", "return {1, 'two', {3}}", "0"], "[1, two, [3]]"),
            // More arguments than are passed one by one.
            (vec!["EVAL", "return #ARGV", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"], "9"),
        ] {
            assert_eq!(guarded(&mut a, &command), reply, "{command:?}");
        }
        // The reply is the script's own error.
        assert_eq!(prefix(&guarded(&mut a, &["EVALSHA", &"0".repeat(40), "0"])), "NOSCRIPT");
        assert_eq!(guarded(&mut a, &["EVAL", "return redis.error_reply('MINE failed')", "0"]), "MINE failed");
        assert!(guarded(&mut a, &["EVAL", "nonsense nonsense", "0"]).contains("compil"));
        assert!(guarded(&mut a, &["EVAL"]).contains("wrong number of arguments"));
        assert!(guarded(&mut a, &["FCALL_RO", "write", "0", "x", "6"]).starts_with("ERR Can not execute"));
        assert!(guarded(&mut a, &["EVAL_RO", script, "1", "x"]).contains("Write commands are not allowed"));
        // The script uses the caller's database and protocol.
        a.call("SELECT 3");
        a.call("LOCK.ACQUIRE k a PX 100000");
        assert_eq!(guarded(&mut a, &["EVAL", script, "1", "x"]), "1");
        a.call("SELECT 0");
        assert_eq!(a.call("GET x"), "5");
        let map = ["EVAL", "redis.setresp(3) return {map={a=1}, 1}", "0"];
        assert_eq!(guarded(&mut a, &map), "[a, 1]");
        a.call("HELLO 3");
        assert_eq!(guarded(&mut a, &map), "{a: 1}");
        a.call("HELLO 2");
        // A former owner runs nothing.
        a.call("LOCK.BREAK k");
        assert_eq!(prefix(&guarded(&mut a, &["EVAL", script, "1", "x"])), "NOTOWNER");
        assert_eq!(a.call("GET x"), "5");
        // A token is accepted as the claim, even if it is ahead of the counter.
        let token = token_of(&a.call("LOCK.ACQUIRE k b FENCE PX 100000"));
        let by_token = |token: i64| {
            let mut words = format!("LOCK.GUARD k TOKEN {token} EVAL");
            write!(words, " return(redis.call('INCR','x')) 0").unwrap();
            words
        };
        assert_eq!(a.call(&by_token(token)), "6");
        assert_eq!(prefix(&a.call(&by_token(token - 1))), "NOTOWNER");
        assert_eq!(a.call(&by_token(token + 5)), "7");
        assert_eq!(prefix(&a.call(&by_token(token))), "NOTOWNER", "the counter moved on");
        assert_no_script_is_pending(&mut world.client());
    });
}

fn a_guarded_script_runs_within_its_transaction(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holder(world);
        a.call("MULTI");
        a.call("SET x 1");
        guarded(&mut a, &["EVAL", "return redis.call('INCR', 'x')", "0"]);
        guarded(&mut a, &["EVAL", "return redis.error_reply('MINE failed')", "0"]);
        a.call("LOCK.GUARD k OWNER b EVAL return(1) 0");
        a.call("INCR x");
        let reply = a.call("EXEC");
        assert!(reply.starts_with("[OK, 2, MINE failed, NOTOWNER"), "{reply}");
        assert!(reply.ends_with(", 3]"), "{reply}");
        assert_no_script_is_pending(&mut a);
    });
}

/// Sends a slow script, disconnects, and waits until the script has ended.
fn disconnect_during(world: &World, call: impl FnOnce(&mut Client), is_read_meanwhile: bool) {
    let mut b = holder(world);
    let mut a = world.client();
    call(&mut a);
    if is_read_meanwhile {
        until("others are read while the script is slow", || b.call("PING").starts_with("BUSY"));
    }
    a.close();
    until("the script has ended", || b.call("GET done") == "1");
    assert_no_script_is_pending(&mut b);
}

fn a_slow_script_outlives_its_client(flavor: Flavor) {
    in_world(flavor, |world| disconnect_during(world, |a| send(a, &["EVAL", SLOW, "0"]), true));
    in_world(flavor, |world| {
        let mut a = holder(world);
        assert_eq!(guarded(&mut a, &["EVAL", SLOW, "0"]), "slow");
    });
}

fn a_slow_transaction_script_outlives_its_client(flavor: Flavor) {
    let in_transaction = |a: &mut Client| {
        a.call("MULTI");
        guarded(a, &["EVAL", SLOW, "0"]);
        a.send("EXEC");
    };
    in_world(flavor, |world| disconnect_during(world, in_transaction, false));
}

fn a_slow_script_can_be_killed(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b, mut c) = (holder(world), world.client(), world.client());
        send(&mut a, &["EVAL", ENDLESS, "0"]);
        // A second script does not start within the first.
        until("others are read while the script is slow", || b.call("PING").starts_with("BUSY"));
        assert!(guarded(&mut c, &["EVAL", "return 1", "0"]).starts_with("BUSY"));
        assert_eq!(b.call("SCRIPT KILL"), "OK");
        assert!(a.recv().contains("killed"));
        // Several scripts in one event loop iteration.
        world.signal(libc::SIGSTOP);
        send(&mut a, &["EVAL", ENDLESS, "0"]);
        send(&mut c, &["EVAL", "return 2", "0"]);
        world.signal(libc::SIGCONT);
        until("others are read while the script is slow", || b.call("PING").starts_with("BUSY"));
        assert_eq!(b.call("SCRIPT KILL"), "OK");
        assert!(a.recv().contains("killed"));
        let other = c.recv();
        assert!(other == "2" || other.starts_with("BUSY"), "{other}");
        assert_no_script_is_pending(&mut b);
    });
}

fn the_lock_is_checked_when_the_script_starts(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (holder(world), world.client());
        // The lock is held once in each round.
        assert_eq!(b.call("LOCK.BREAK k"), "1");
        // The server is suspended so that both calls arrive in one event loop iteration, in either order.
        for _ in 0..20 {
            b.call("LOCK.ACQUIRE k a PX 100000");
            world.signal(libc::SIGSTOP);
            send(&mut a, &["EVAL", "return redis.call('LOCK.CHECK', 'k', 'OWNER', 'a')", "0"]);
            b.send("LOCK.BREAK k");
            world.signal(libc::SIGCONT);
            let reply = a.recv();
            assert!(reply.starts_with("NOTOWNER lock was released") || reply == "1", "{reply}");
            b.recv();
        }
    });
}

/// The lease expires before the script starts.
fn an_expired_hold_runs_no_script(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (holder(world), world.client());
        in_a_pause_after(world, &mut a, &mut b, "LOCK.ACQUIRE k a PX 1000");
        until("the lease has expired", || b.call("LOCK.INFO k") == "nil");
        assert_eq!(b.call("CLIENT UNPAUSE"), "OK");
        assert_eq!(prefix(&a.recv()), "NOTOWNER");
        assert_eq!(b.call("EXISTS x"), "0");
        assert_no_script_is_pending(&mut b);
    });
}

fn scripts_cannot_guard_scripts(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holder(world);
        assert_eq!(a.call_args(&[b"FUNCTION", b"LOAD", LIBRARY.as_bytes()]), "l");
        for runs_script in [
            "EVAL return(1) 0",
            "EVALSHA 0 0",
            "FCALL write 0 x 1",
            "eval_ro return(1) 0",
            "FCALL_RO read 0 x",
        ] {
            let words = format!("LOCK.GUARD k OWNER a {runs_script}");
            let script = ["EVAL", "return redis.call(unpack(ARGV))", "0"].into_iter().chain(words.split(' '));
            let script: Vec<&str> = script.collect();
            let reply = a.call_args(&script.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
            assert!(reply.contains("only a client can guard a script"), "{reply}");
            a.call("MULTI");
            a.call_args(&script.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
            assert!(a.call("EXEC").contains("only a client can guard a script"));
            assert!(guarded(&mut a, &script).contains("only a client can guard a script"));
        }
        // A guard in a guarded script works, except for another script.
        let inner = "return redis.call('LOCK.GUARD', 'k', 'OWNER', 'a', 'INCR', 'x')";
        assert_eq!(guarded(&mut a, &["EVAL", inner, "0"]), "1");
        assert_no_script_is_pending(&mut a);
    });
}

fn a_script_has_the_callers_permissions(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut root = holder(world);
        root.call("SET secret s");
        root.call(
            "ACL SETUSER app on nopass resetkeys %R~k ~app:* -@all +lock.guard +eval +get +set +multi +exec",
        );
        let mut app = world.client();
        assert_eq!(app.call("AUTH app any"), "OK");
        let script = |body: &'static str| ["EVAL", body, "0"];
        // The wording differs between servers.
        let is_refused = |reply: &str| {
            ["permission", "can't access", "can't run"].iter().any(|words| reply.contains(words))
        };
        assert_eq!(guarded(&mut app, &script("return redis.call('SET', 'app:x', 1)")), "OK");
        for refused in ["return redis.call('GET', 'secret')", "return redis.call('DEL', 'app:x')"] {
            let reply = guarded(&mut app, &script(refused));
            assert!(is_refused(&reply), "{reply}");
            app.call("MULTI");
            guarded(&mut app, &script(refused));
            let reply = app.call("EXEC");
            assert!(is_refused(&reply), "{reply}");
        }
        // Keys that are passed to the script need permission.
        assert_eq!(prefix(&guarded(&mut app, &["EVAL", "return 1", "1", "secret"])), "NOPERM");
        // The script cannot call commands without permission.
        assert_eq!(prefix(&guarded(&mut app, &["EVALSHA", &"0".repeat(40), "0"])), "NOPERM");
        assert_eq!(prefix(&guarded(&mut app, &["FCALL", "write", "0"])), "NOPERM");
        assert_eq!(root.call("GET app:x"), "1");
        assert_no_script_is_pending(&mut root);
    });
}

/// Guards a script that cannot start, as clients are paused in the same event loop iteration.
fn in_a_pause(world: &World, a: &mut Client, b: &mut Client) {
    in_a_pause_after(world, a, b, "PING");
}

/// Guards a script that cannot start because clients are paused, after another client has called `before`.
fn in_a_pause_after(world: &World, a: &mut Client, b: &mut Client, before: &str) {
    let mut observer = world.client();
    for _ in 0..50 {
        // Among clients that the last iteration did not read, the server follows the order of arrival.
        observer.call(before);
        world.signal(libc::SIGSTOP);
        send(a, &["EVAL", "return redis.call('INCR', 'x')", "0"]);
        b.send("CLIENT PAUSE 100000 WRITE");
        world.signal(libc::SIGCONT);
        assert_eq!(b.recv(), "OK");
        if observer.info("lock", "lock_table_scripts") == "1" {
            assert_eq!(observer.call("EXISTS x"), "0");
            return;
        }
        // Either the pause came first and the guard waits behind it, or the pause came too late.
        observer.call("CLIENT UNPAUSE");
        a.recv();
        observer.call("DEL x");
    }
    panic!("the pause never followed the guard in one cycle");
}

fn pending_scripts_wait_for_a_pause(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (holder(world), world.client());
        in_a_pause(world, &mut a, &mut b);
        assert_eq!(b.call("CLIENT UNPAUSE"), "OK");
        assert_eq!(a.recv(), "1");
        assert_no_script_is_pending(&mut b);
    });
}

fn a_disconnected_client_runs_no_script(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (holder(world), world.client());
        in_a_pause(world, &mut a, &mut b);
        let id = a.id;
        a.close();
        until("the client has disconnected", || b.call(&format!("CLIENT LIST ID {id}")).is_empty());
        assert_eq!(b.info("lock", "lock_table_scripts"), "0");
        assert_eq!(b.call("CLIENT UNPAUSE"), "OK");
        assert_eq!(b.call("EXISTS x"), "0");
        assert_no_script_is_pending(&mut b);
    });
}

fn a_deleted_user_runs_nothing(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut b = holder(world);
        b.call("ACL SETUSER app on nopass ~* +@all");
        let mut a = world.client();
        assert_eq!(a.call("AUTH app any"), "OK");
        in_a_pause(world, &mut a, &mut b);
        b.send_at_once(&["MULTI", "ACL DELUSER app", "CLIENT UNPAUSE", "EXEC"]);
        let replies: Vec<String> = (0..4).map(|_| b.recv()).collect();
        assert_eq!(replies[3], "[1, OK]");
        assert!(a.is_closed());
        assert_eq!(b.call("EXISTS x"), "0");
        assert_no_script_is_pending(&mut b);
    });
}

fn a_demotion_ends_pending_scripts(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (holder(world), world.client());
        in_a_pause(world, &mut a, &mut b);
        b.send_at_once(&["MULTI", "REPLICAOF 127.0.0.1 1", "CLIENT UNPAUSE", "EXEC"]);
        (0..4).for_each(|_| drop(b.recv()));
        assert_eq!(prefix(&a.recv()), "UNBLOCKED");
        assert_no_script_is_pending(&mut b);
        b.call("REPLICAOF NO ONE");
        assert_eq!(b.call("EXISTS x"), "0");
    });
}

fn guarded_scripts_replicate_as_their_writes(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holder(world);
        let writes =
            "redis.call('SADD', 's', 1, 2) redis.call('SREM', 's', 2) return redis.call('SET', 'x', ARGV[1])";
        a.call("WAIT 1 10000");
        let plain = stream(world, || drop(a.call_args(&[b"EVAL", writes.as_bytes(), b"0", b"1"])));
        a.call("DEL s");
        let under_guard = stream(world, || drop(guarded(&mut a, &["EVAL", writes, "0", "1"])));
        assert_eq!(under_guard, plain);
        assert!(plain.iter().any(|command| command.contains("SREM")), "{plain:?}");
    });
}

fn revoked_permissions_apply_to_pending_scripts(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut b = holder(world);
        for taken in ["-lock.guard", "-eval", "resetkeys", "resetkeys ~x"] {
            b.call("ACL SETUSER app on nopass ~* +@all");
            let mut a = world.client();
            assert_eq!(a.call("AUTH app any"), "OK");
            in_a_pause(world, &mut a, &mut b);
            b.send_at_once(&["MULTI", &format!("ACL SETUSER app {taken}"), "CLIENT UNPAUSE", "EXEC"]);
            let replies: Vec<String> = (0..4).map(|_| b.recv()).collect();
            assert_eq!(replies[3], "[OK, OK]");
            assert_eq!(prefix(&a.recv()), "NOPERM", "{taken}");
            assert_eq!(b.call("EXISTS x"), "0");
            b.call("ACL DELUSER app");
            assert_no_script_is_pending(&mut b);
        }
    });
}

/// `CLIENT LIST` shows this name for connections with every permission.
fn a_user_named_superuser_gains_nothing(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut root = holder(world);
        assert_eq!(
            root.call("ACL SETUSER (superuser) on nopass %R~k ~own -@all +lock.guard +eval +set"),
            "OK"
        );
        let mut app = world.client();
        assert_eq!(app.call("AUTH (superuser) any"), "OK");
        let writes = |key| ["EVAL", "return redis.call('SET', ARGV[1], 1)", "0", key];
        assert_eq!(guarded(&mut app, &writes("own")), "OK");
        let reply = guarded(&mut app, &writes("others"));
        assert!(reply.contains("permission") || reply.contains("can't access"), "{reply}");
        assert_eq!(prefix(&guarded(&mut app, &["EVAL", "return 1", "1", "others"])), "NOPERM");
        assert_eq!(root.call("EXISTS others"), "0");
        root.call("ACL DELUSER (superuser)");
    });
}

/// A guard with a token ahead of the counter raises the counter before its script can acquire the lock.
fn grants_in_scripts_have_newer_tokens(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let script =
            "redis.call('DEL', KEYS[1]) return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'FENCE')[6]";
        let mut token = token_of(&a.call("LOCK.ACQUIRE k a FENCE PX 100000"));
        for (in_transaction, ahead) in [(false, 1_200_000_000), (true, 600_000_000)] {
            let ahead = token + ahead;
            if in_transaction {
                a.call("MULTI");
            }
            let words = ["LOCK.GUARD", "k", "TOKEN", &ahead.to_string(), "EVAL", script, "1", "k", "new"];
            let mut granted = a.call_args(&words.map(str::as_bytes));
            if in_transaction {
                granted = a.call("EXEC").trim_matches(['[', ']']).to_owned();
            }
            token = granted.parse().unwrap_or_else(|_| panic!("{granted}"));
            assert!(token > ahead, "{token} is not greater than {ahead}");
            assert_eq!(a.call(&format!("LOCK.CHECK k TOKEN {token}")), "1");
            assert_eq!(prefix(&a.call(&format!("LOCK.CHECK k TOKEN {ahead}"))), "NOTOWNER");
            assert_eq!(a.call("GET redisson_lock_token:{k}"), token.to_string());
        }
    });
}

fn a_failed_script_still_raises_the_counter(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holder(world);
        a.call("LOCK.RELEASE k a");
        let token = token_of(&a.call("LOCK.ACQUIRE k a FENCE PX 100000"));
        let guarded = |a: &mut Client, token: i64, script: &str| {
            let words =
                ["LOCK.GUARD", "k", "TOKEN", &token.to_string(), "EVAL", script, "0"].map(str::to_owned);
            a.call_args(&words.iter().map(String::as_bytes).collect::<Vec<_>>())
        };
        let older = token - 500;
        for fails in ["error('no')", "return redis.error_reply('MINE no')"] {
            let lost = token - 1000;
            a.call(&format!("SET redisson_lock_token:{{k}} {lost}"));
            // A script that cannot have written does not raise the counter.
            assert_eq!(
                prefix(&a.call(&format!("LOCK.GUARD k TOKEN {token} EVALSHA {} 0", "0".repeat(40)))),
                "NOSCRIPT"
            );
            assert_eq!(a.call("GET redisson_lock_token:{k}"), lost.to_string());
            assert_eq!(a.call("PTTL redisson_lock_token:{k}"), "-1");
            let writes = format!("redis.call('SET', 'x', 'new') {fails}");
            assert!(guarded(&mut a, token, &writes).contains("no"));
            assert_eq!(a.call("GET redisson_lock_token:{k}"), token.to_string());
            assert_eq!(prefix(&guarded(&mut a, older, "return redis.call('SET', 'x', 'old')")), "NOTOWNER");
            assert_eq!(a.call("GET x"), "new");
        }
    });
}
