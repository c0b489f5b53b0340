// SPDX-License-Identifier: MIT

//! Bad input gets a clear error, changes nothing, and does not crash the server (invariants 10, 12).

use crate::support::world::keys;
use crate::support::{in_world, in_world_with, until, Flavor, Server};

crate::on_every_server!(
    errors_name_the_wrong_argument,
    keys_without_a_lock_stay_unchanged,
    full_memory_refuses_new_holds_only,
    read_permission_suffices_to_inspect,
    a_replica_is_read_only,
    hostile_bytes_do_not_break_the_protocol,
);

fn errors_name_the_wrong_argument(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE held a PX 100000");
        a.call("WATCH held free");
        let before = keys(&mut world.client());
        let acquire = "in 'lock.acquire' command";
        let cases = [
            ("LOCK.ACQUIRE free o FOO", format!("ERR syntax error, unknown option 'FOO' {acquire}")),
            ("LOCK.ACQUIRE free o PX", format!("ERR PX needs a value {acquire}")),
            ("LOCK.ACQUIRE free o PX x", format!("ERR PX 'x' is not an integer {acquire}")),
            ("LOCK.ACQUIRE free o PX 1.5", format!("ERR PX '1.5' is not an integer {acquire}")),
            ("LOCK.ACQUIRE free o PX +1", format!("ERR PX '+1' is not an integer {acquire}")),
            ("LOCK.ACQUIRE free o PX 01", format!("ERR PX '01' is not an integer {acquire}")),
            (
                "LOCK.ACQUIRE free o PX 0",
                format!("ERR PX is out of range {acquire}; use 1 to 9007199254740991"),
            ),
            (
                "LOCK.ACQUIRE free o PX -5",
                format!("ERR PX is out of range {acquire}; use 1 to 9007199254740991"),
            ),
            (
                "LOCK.ACQUIRE free o PX 9007199254740992",
                format!("ERR PX is out of range {acquire}; use 1 to 9007199254740991"),
            ),
            (
                "LOCK.ACQUIRE free o PX 99999999999999999999999",
                format!("ERR PX is out of range {acquire}; use 1 to 9007199254740991"),
            ),
            (
                "LOCK.ACQUIRE free o EX 9007199254741",
                format!("ERR EX is out of range {acquire}; use 1 to 9007199254740"),
            ),
            ("LOCK.ACQUIRE free o PX 1 EX 1", format!("ERR only one PX or EX is allowed {acquire}")),
            ("LOCK.ACQUIRE free o PX 1 px 1", format!("ERR only one PX or EX is allowed {acquire}")),
            ("LOCK.ACQUIRE held o BLOCK", format!("ERR BLOCK needs a value {acquire}")),
            (
                "LOCK.ACQUIRE held o BLOCK -1",
                format!("ERR BLOCK is out of range {acquire}; use 0 to 9007199254740991"),
            ),
            ("LOCK.ACQUIRE held o BLOCK 1 BLOCK 1", format!("ERR BLOCK is given twice {acquire}")),
            ("LOCK.ACQUIRE free #o", format!("ERR owner begins with '#' {acquire}; use another owner")),
            (
                "LOCK.RENEW held #fence",
                "ERR owner begins with '#' in 'lock.renew' command; use another owner".to_owned(),
            ),
            ("LOCK.ACQUIRE free", "ERR wrong number of arguments for 'lock.acquire' command".to_owned()),
            ("LOCK.RELEASE held", "ERR wrong number of arguments for 'lock.release' command".to_owned()),
            ("LOCK.RELEASE held a ALL ALL", "ERR ALL is given twice in 'lock.release' command".to_owned()),
            (
                "LOCK.RELEASE held a PX 0",
                "ERR PX is out of range in 'lock.release' command; use 1 to 9007199254740991".to_owned(),
            ),
            (
                "LOCK.RENEW held a BLOCK 1",
                "ERR syntax error, unknown option 'BLOCK' in 'lock.renew' command".to_owned(),
            ),
            ("LOCK.BREAK held x", "ERR wrong number of arguments for 'lock.break' command".to_owned()),
            (
                "LOCK.WAITERS held COUNT 0",
                "ERR COUNT is out of range in 'lock.waiters' command; use 1 to 9007199254740991".to_owned(),
            ),
            (
                "LOCK.WAITERS held COUNT 1 COUNT 1",
                "ERR COUNT is given twice in 'lock.waiters' command".to_owned(),
            ),
            ("LOCK.HELP x", "ERR wrong number of arguments for 'lock.help' command".to_owned()),
        ];
        let mut b = world.client();
        for (command, error) in cases {
            assert_eq!(b.call(command), error, "{command}");
        }
        for option in ["SHARED", "FENCE", "WATCHDOG", "EPHEMERAL"] {
            let error = format!("ERR {option} is given twice {acquire}");
            assert_eq!(b.call(&format!("LOCK.ACQUIRE free o {option} {}", option.to_lowercase())), error);
        }
        for (command, option) in [
            ("ACQUIRE", "ALL"),
            ("RELEASE", "FENCE"),
            ("RENEW", "SHARED"),
            ("RENEW", "ID"),
            ("RELEASE", "BLOCK"),
        ] {
            let error = format!(
                "ERR syntax error, unknown option '{option}' in 'lock.{}' command",
                command.to_lowercase()
            );
            assert_eq!(b.call(&format!("LOCK.{command} held a {option} 1")), error);
        }
        assert_eq!(b.call("LOCK.ACQUIRE free o ID"), format!("ERR ID needs a value {acquire}"));
        assert_eq!(b.call("LOCK.ACQUIRE free o ID a ID b"), format!("ERR ID is given twice {acquire}"));
        let error = format!("ERR owner is 0 bytes long {acquire}; use 1 to 1024 bytes");
        assert_eq!(b.call_args(&[b"LOCK.ACQUIRE", b"free", b""]), error);
        let error = format!("ERR owner is 1025 bytes long {acquire}; use 1 to 1024 bytes");
        assert_eq!(b.call_args(&[b"LOCK.ACQUIRE", b"free", &[b'o'; 1025]]), error);
        // Failed and refused calls do not abort transactions that watch the keys.
        assert_eq!(b.call("LOCK.ACQUIRE held b"), "nil");
        assert!(b.call("LOCK.RELEASE held b").starts_with("NOTOWNER"));
        assert!(b.call("LOCK.RENEW free b").starts_with("NOTOWNER"));
        assert_eq!(b.call("LOCK.BREAK free"), "0");
        assert_eq!(keys(&mut world.client()), before);
        a.call("MULTI");
        a.call("PING");
        assert_eq!(a.call("EXEC"), "[PONG]", "a failing call touched a watched key");
    });
}

fn keys_without_a_lock_stay_unchanged(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for make in [
            "SET s x PX 100000",
            "RPUSH s x",
            "HSET s mode read uuid:1 1 uuid:1:1 1",
            "HSET s name Ada age 36",
            "HSET s a 1",     // as a lock would be, but for the TTL
            "HSETLOCK s a x", // not a number
            "HSETLOCK s a 0", // not positive
            "HSETLOCK s a -1",
            "HSETLOCK s a 01",
            "HSETLOCK s a 1e3",
            "HSETLOCK s a 99999999999999999999",
        ] {
            a.call("DEL s");
            match make.strip_prefix("HSETLOCK ") {
                Some(rest) => {
                    a.call(&format!("HSET {rest}"));
                    a.call("PEXPIRE s 100000");
                }
                None => {
                    a.call(make);
                }
            }
            let before = keys(&mut world.client());
            for command in [
                "LOCK.ACQUIRE s a",
                "LOCK.ACQUIRE s b BLOCK 0",
                "LOCK.RELEASE s a",
                "LOCK.RELEASE s a ALL",
                "LOCK.RENEW s a",
                "LOCK.BREAK s",
                "LOCK.INFO s",
            ] {
                let reply = a.call(command);
                assert!(reply.starts_with("WRONGTYPE "), "{make}: {command} replied {reply}");
            }
            assert_eq!(keys(&mut world.client()), before, "{make}");
        }
        // The largest possible count cannot grow.
        a.call("DEL s");
        a.call("HSET s a 9223372036854775807");
        a.call("PEXPIRE s 100000");
        assert!(a.call("LOCK.ACQUIRE s a").starts_with("ERR hold count of the owner is at its maximum"));
        assert_eq!(a.call("LOCK.RELEASE s a"), "9223372036854775806");
    });
}

fn full_memory_refuses_new_holds_only(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        a.call("LOCK.ACQUIRE k a");
        let mut waiter = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        a.call("CONFIG SET maxmemory 1");
        assert!(a.call("LOCK.ACQUIRE free x").starts_with("OOM "));
        assert!(a.call("LOCK.ACQUIRE k a").starts_with("OOM "));
        assert_eq!(a.call("LOCK.RENEW k a PX 60000"), "2");
        assert_eq!(a.call("LOCK.RELEASE k a"), "1");
        // A waiter that is already in the queue is still served.
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(waiter.recv(), "1");
        a.call("CONFIG SET maxmemory 0");
    });
}

/// Inspecting a lock needs only read permission for its key.
fn read_permission_suffices_to_inspect(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        a.call("ACL SETUSER reader on nopass %R~* +@all");
        let mut reader = world.client();
        assert_eq!(reader.call("AUTH reader x"), "OK");
        assert!(reader.call("LOCK.INFO k").contains("exclusive"));
        assert_eq!(reader.call("LOCK.WAITERS k"), "[]");
        for command in ["LOCK.ACQUIRE k b", "LOCK.RELEASE k a", "LOCK.RENEW k a", "LOCK.BREAK k"] {
            assert!(reader.call(command).starts_with("NOPERM "), "{command}");
        }
        a.call("ACL SETUSER one on nopass ~mine +@all");
        let mut one = world.client();
        one.call("AUTH one x");
        assert!(one.call("LOCK.ACQUIRE k b BLOCK 0").starts_with("NOPERM "));
        assert_eq!(one.call("LOCK.ACQUIRE mine b"), "1");
    });
}

fn a_replica_is_read_only(flavor: Flavor) {
    let primary = Server::with_module(flavor, &[]);
    let replica = Server::with_module(flavor, &[]);
    let (mut p, mut r) = (primary.client(), replica.client());
    r.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port));
    p.call("LOCK.ACQUIRE k a PX 100000");
    until("the replica has the lock", || r.call("LOCK.INFO k").contains("a"));
    for command in ["LOCK.ACQUIRE k b", "LOCK.RELEASE k a", "LOCK.RENEW k a", "LOCK.BREAK k"] {
        assert!(r.call(command).starts_with("READONLY "), "{command}");
    }
    assert_eq!(r.call("LOCK.WAITERS k"), "[]");
    // A writable replica accepts no waits, as it could not hand over the lock.
    r.call("CONFIG SET replica-read-only no");
    assert!(r.call("LOCK.ACQUIRE k b BLOCK 0").starts_with("READONLY "));
    // An expired lease is not shown, although the replica still has the key.
    p.call("DEBUG SET-ACTIVE-EXPIRE 0");
    p.call("LOCK.RENEW k a PX 1");
    until("the lease has expired on the replica", || r.call("LOCK.INFO k") == "nil");
}

fn hostile_bytes_do_not_break_the_protocol(flavor: Flavor) {
    in_world_with(flavor, &["--proto-max-bulk-len", "2mb"], |world| {
        let mut a = world.client();
        let reply = a.call_args(&[b"LOCK.ACQUIRE", b"k", b"o", b"\r\n+OK\r\n\0\xff"]);
        assert_eq!(
            reply,
            "ERR syntax error, unknown option '\\r\\n+OK\\r\\n\\x00\\xff' in 'lock.acquire' command"
        );
        let long = vec![b'x'; 1 << 20];
        let reply = a.call_args(&[b"LOCK.ACQUIRE", b"k", b"o", &long]);
        assert!(reply.len() < 200, "an error of {} bytes", reply.len());
        assert!(a.call_args(&[b"LOCK.ACQUIRE", b"k", &long]).starts_with("ERR owner is "));
        assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", &long, b"o"]), "1");
        assert_eq!(a.call_args(&[b"LOCK.RELEASE", &long, b"o"]), "0");
        let mut many: Vec<&[u8]> = vec![b"LOCK.ACQUIRE", b"k", b"o"];
        many.extend(std::iter::repeat_n::<&[u8]>(b"PX", 10_000));
        assert!(a.call_args(&many).starts_with("ERR PX 'PX' is not an integer"));
        assert_eq!(a.call("PING"), "PONG");
    });
}
