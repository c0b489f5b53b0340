// SPDX-License-Identifier: MIT

//! Retries: a repeated call with the same `ID` does nothing and gets the first reply (invariant 7).

use crate::support::server::{load_module, module};
use crate::support::{in_world, until, Client, Flavor, Server, World};

crate::on_every_server!(
    a_repeated_call_counts_once,
    refusals_are_not_recorded,
    requests_are_separate,
    a_generated_owner_is_recorded,
    records_expire,
    a_retry_after_a_disconnect_queues_again,
    a_retry_takes_over_an_unnoticed_wait,
    an_unsent_grant_is_not_recorded,
    a_retry_gets_the_unread_reply,
    a_retry_reacquires_an_ephemeral_hold,
    a_hold_bound_later_is_reacquired,
    an_old_connection_releases_no_retried_hold,
    a_retried_release_counts_once,
    a_failover_keeps_the_records,
    a_restart_keeps_the_records,
    invalid_records_stay_unchanged,
    ambiguous_record_names_are_refused,
    retries_work_in_transactions_and_scripts,
);

fn a_repeated_call_counts_once(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for _ in 0..3 {
            assert_eq!(a.call("LOCK.ACQUIRE k a PX 50000 ID one"), "1");
        }
        assert_eq!(a.call("HGETALL k"), "[a, 1]");
        assert_eq!(a.call("LOCK.ACQUIRE k a id two"), "2");
        assert_eq!(a.call("LOCK.ACQUIRE k a ID one"), "1");
        for _ in 0..3 {
            assert_eq!(a.call("LOCK.RELEASE k a ID three"), "1");
        }
        let fenced = a.call("LOCK.ACQUIRE k a FENCE ID four");
        assert_eq!(a.call("LOCK.ACQUIRE k a FENCE ID four"), fenced);
        // An acquire and a release are different requests.
        assert_eq!(a.call("LOCK.RELEASE k a ALL ID one"), "0");
        assert_eq!(a.call("LOCK.RELEASE k a ALL ID one"), "0");
        assert_eq!(a.call("LOCK.ACQUIRE k a ID one"), "1");
        assert_eq!(a.call("EXISTS k"), "0");
        // Another owner has acquired the lock and keeps it.
        a.call("LOCK.ACQUIRE k b");
        assert_eq!(a.call("LOCK.RELEASE k a ID three"), "1");
        assert_eq!(a.call("HGETALL k"), "[b, 1]");
        let end = a.number("PEXPIRETIME lock_request:{k}:a:two");
        assert_eq!(a.call("GET lock_request:{k}:a:two"), format!("1 a2@{end}"));
    });
}

fn refusals_are_not_recorded(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k b");
        assert_eq!(a.call("LOCK.ACQUIRE k a ID one"), "nil");
        assert!(a.call("LOCK.RELEASE k a ID one").starts_with("NOTOWNER "));
        assert_eq!(a.call("EXISTS lock_request:{k}:a:one"), "0");
        a.call("LOCK.RELEASE k b");
        assert_eq!(a.call("LOCK.ACQUIRE k a ID one"), "1");
        assert_eq!(a.call("LOCK.RELEASE k a ID one"), "0");
    });
}

fn requests_are_separate(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a SHARED ID one");
        // A call for another owner, lock or database is another request.
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED ID one"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE l a ID one"), "1");
        a.call("SELECT 3");
        assert_eq!(a.call("LOCK.ACQUIRE k a ID one"), "1");
        let long = [b'x'; 129];
        let error = "ERR ID is 129 bytes long in 'lock.acquire' command; use 1 to 128 bytes";
        assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", b"k", b"a", b"ID", &long]), error);
        let error = "ERR ID is 0 bytes long in 'lock.release' command; use 1 to 128 bytes";
        assert_eq!(a.call_args(&[b"LOCK.RELEASE", b"k", b"a", b"ID", b""]), error);
        assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", b"k", b"a", b"ID", &long[..128]]), "2");
        assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", b"k", b"\xff o", b"SHARED", b"ID", b"\0\r\n"]), "nil");
    });
}

fn a_generated_owner_is_recorded(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let first = a.call("LOCK.ACQUIRE k * ID one");
        assert!(first.starts_with("[owner, ") && first.ends_with("holds, 1]"), "{first}");
        assert_eq!(a.call("LOCK.ACQUIRE k * ID one"), first);
        assert_eq!(a.call("LOCK.ACQUIRE k * ID two"), "nil");
        assert_eq!(a.call("HLEN k"), "1");
        assert_eq!(a.call("EXISTS lock_request:{k}:*:one"), "1");
    });
}

fn records_expire(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a ID one PX 100000");
        let ttl = a.number("PTTL lock_request:{k}:a:one");
        assert!((19_000..=20_000).contains(&ttl), "{ttl}");
        a.call("CONFIG SET lock.request-ttl 40");
        assert_eq!(a.call("LOCK.ACQUIRE k a ID two"), "2");
        until("the record has expired", || a.call("EXISTS lock_request:{k}:a:two") == "0");
        assert_eq!(a.call("LOCK.ACQUIRE k a ID two"), "3");
        // A release with the same ID does not prolong the acquire's record.
        a.call("CONFIG SET lock.request-ttl 300");
        assert_eq!(a.call("LOCK.ACQUIRE l a ID one PX 100000"), "1");
        let granted = a.number("PEXPIRETIME lock_request:{l}:a:one");
        let time = |a: &mut Client| -> i64 {
            let reply = a.call("TIME");
            let (seconds, micros) = reply.trim_matches(['[', ']']).split_once(", ").unwrap();
            seconds.parse::<i64>().unwrap() * 1000 + micros.parse::<i64>().unwrap() / 1000
        };
        until("the record is about to expire", || time(&mut a) > granted - 100);
        assert_eq!(a.call("LOCK.RELEASE l a ID one"), "0");
        until("the acquire's record has expired", || time(&mut a) > granted + 5);
        assert_eq!(a.call("LOCK.RELEASE l a ID one"), "0", "the release's record is missing");
        assert_eq!(a.call("LOCK.ACQUIRE l a ID one PX 100000"), "1");
        assert_eq!(a.call("HGETALL l"), "[a, 1]");
    });
}

fn a_retry_after_a_disconnect_queues_again(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let first = world.waiting("LOCK.ACQUIRE k b BLOCK 0 ID one FENCE");
        let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        first.close();
        until("the first wait has ended", || a.call("LOCK.WAITERS k").matches("owner").count() == 1);
        let mut again = world.waiting("LOCK.ACQUIRE k b BLOCK 0 ID one FENCE");
        a.call("LOCK.RELEASE k a");
        assert_eq!(c.recv(), "1");
        a.call("LOCK.RELEASE k c");
        assert!(again.recv().starts_with("[owner, b, holds, 1, token, "));
    });
}

/// The old connection still looks open, for example because its host lost power. The retry is the same wait: it keeps its
/// position and is granted once.
fn a_retry_takes_over_an_unnoticed_wait(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for owner in ["b", "*"] {
            a.call("LOCK.ACQUIRE k a");
            let call = format!("LOCK.ACQUIRE k {owner} BLOCK 0 ID one");
            let mut first = world.waiting(&call);
            let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
            let mut again = world.waiting(&call);
            let ended =
                "UNBLOCKED the same request was sent again on another connection; wait for the reply there";
            assert_eq!(first.recv(), ended);
            assert_eq!(a.call("LOCK.WAITERS k").matches("owner").count(), 2);
            a.call("LOCK.RELEASE k a");
            let reply = again.recv();
            assert!(reply == "1" || reply.ends_with("holds, 1]"), "{reply}");
            assert!(c.has_nothing());
            assert_eq!(first.call(&call), reply);
            a.call("LOCK.BREAK k");
            assert_eq!(c.recv(), "1");
            a.call("FLUSHALL");
        }
    });
}

fn an_unsent_grant_is_not_recorded(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let first = world.waiting("LOCK.ACQUIRE k b BLOCK 0 ID one");
        // The grant is revoked, and its record is removed.
        a.send_at_once(&["LOCK.RELEASE k a", &format!("CLIENT KILL ID {}", first.id)]);
        assert_eq!([a.recv(), a.recv()], ["0", "1"]);
        until("the grant is revoked", || a.call("KEYS *") == "[]");
        assert_eq!(a.call("LOCK.ACQUIRE k b BLOCK 0 ID one"), "1");
        assert_eq!(a.call("HGETALL k"), "[b, 1]");
        // The retry arrives before the revocation, in the same event loop iteration.
        a.call("LOCK.RELEASE k b ALL");
        a.call("FLUSHALL");
        a.call("LOCK.ACQUIRE k a");
        let first = world.waiting("LOCK.ACQUIRE k b BLOCK 0 ID one");
        let kill = format!("CLIENT KILL ID {}", first.id);
        a.send_at_once(&["LOCK.RELEASE k a", &kill, "LOCK.ACQUIRE k b BLOCK 0 ID one"]);
        assert_eq!([a.recv(), a.recv(), a.recv()], ["0", "1", "1"]);
        assert_eq!(a.call("LOCK.RELEASE k b"), "0", "the grant was counted twice or revoked");
        assert_eq!(a.call("EXISTS k"), "0");
    });
}

fn a_retry_gets_the_unread_reply(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        // The request is granted at once.
        let mut first = world.client();
        first.send("LOCK.ACQUIRE k b ID one FENCE");
        until("the lock is granted", || a.call("EXISTS k") == "1");
        first.close();
        let reply = a.call("LOCK.ACQUIRE k b ID one FENCE");
        assert!(reply.starts_with("[owner, b, holds, 1, token, "), "{reply}");
        a.call("LOCK.RELEASE k b");
        // The request is granted after a wait.
        a.call("LOCK.ACQUIRE k a");
        let first = world.waiting("LOCK.ACQUIRE k b BLOCK 0 ID two");
        a.call("LOCK.RELEASE k a");
        until("the lock is granted", || a.call("HGETALL k") == "[b, 1]");
        first.close();
        assert_eq!(a.call("LOCK.ACQUIRE k b BLOCK 0 ID two"), "1");
        assert_eq!(a.call("HGETALL k"), "[b, 1]");
    });
}

/// A hold that ended with its connection must not be reported as held.
fn a_retry_reacquires_an_ephemeral_hold(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut first = world.client();
        first.send("LOCK.ACQUIRE k b ID one EPHEMERAL FENCE");
        until("the lock is granted", || a.call("EXISTS k") == "1");
        first.close();
        until("the lock is released", || a.call("EXISTS k") == "0");
        assert!(a
            .call("LOCK.ACQUIRE k b ID one EPHEMERAL FENCE")
            .starts_with("[owner, b, holds, 1, token, "));
        assert!(a.call("HGETALL k").starts_with("[b, 1, #fence, "));
    });
}

/// A later call binds the hold to a connection, and then that connection closes.
fn a_hold_bound_later_is_reacquired(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for (acquire, bind, got) in [
            ("LOCK.ACQUIRE {k} alice ID r1", "LOCK.RENEW {k} alice EPHEMERAL", "1"),
            ("LOCK.ACQUIRE {k} alice ID r1", "LOCK.ACQUIRE {k} alice EPHEMERAL", "1"),
            ("LOCK.ACQUIRE {k} alice ID r1 WATCHDOG", "LOCK.RENEW {k} alice EPHEMERAL", "1"),
            ("LOCK.MACQUIRE 2 {k} {k}l alice ID r1", "LOCK.MRENEW 2 {k} {k}l alice EPHEMERAL", "[1, 1]"),
        ] {
            assert_eq!(a.call(acquire), got, "{acquire}");
            let mut bound = world.client();
            bound.call(bind);
            bound.close();
            until("the locks are released", || a.call("EXISTS {k} {k}l") == "0");
            assert_eq!(a.call("LOCK.ACQUIRE {k} bob"), "1");
            assert_eq!(a.call(acquire), "nil", "{acquire}, {bind}");
            assert_eq!(a.call("LOCK.RELEASE {k} bob"), "0");
            assert_eq!(a.call("LOCK.CANCEL {k} alice ID r1"), "0", "nothing is held");
            a.call("DEL lock_request:{k}:alice:r1 lock_request:{k}l:alice:r1");
            for _ in 0..2 {
                assert_eq!(a.call(acquire), got, "the retry acquires once");
            }
            a.call("DEL {k} {k}l lock_request:{k}:alice:r1 lock_request:{k}l:alice:r1");
        }
    });
}

fn an_old_connection_releases_no_retried_hold(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut first, mut again) = (world.client(), world.client());
        let call = "LOCK.ACQUIRE k b ID one EPHEMERAL WATCHDOG PX 300";
        assert_eq!(first.call(call), "1");
        assert_eq!(again.call(call), "1");
        first.close();
        let end = again.number("PEXPIRETIME k");
        until("its lease is renewed", || again.number("PEXPIRETIME k") > end);
        assert_eq!(again.call("HGETALL k"), "[b, 1]");
        again.close();
        until("the lock is released", || world.client().call("EXISTS k") == "0");
    });
}

fn a_retried_release_counts_once(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        a.call("LOCK.ACQUIRE k a");
        let mut first = world.client();
        first.send("LOCK.RELEASE k a ID one");
        until("the hold is released", || a.call("HGET k a") == "1");
        first.close();
        assert_eq!(a.call("LOCK.RELEASE k a ID one"), "1");
        assert_eq!(a.call("HGET k a"), "1");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        assert_eq!(a.call("LOCK.RELEASE k a ID two"), "0");
        assert_eq!(b.recv(), "1");
        assert_eq!(a.call("LOCK.RELEASE k a ID two"), "0");
    });
}

fn a_failover_keeps_the_records(flavor: Flavor) {
    let world = World::start(flavor, &[]);
    let (mut a, mut r) = (world.client(), world.replica.client());
    load_module(&mut r);
    let granted = a.call("LOCK.ACQUIRE k * ID one FENCE PX 100000");
    a.call("LOCK.ACQUIRE l a PX 100000");
    a.call("LOCK.RELEASE l a ID two");
    assert_eq!(a.call("WAIT 1 0"), "1");
    world.primary.signal(libc::SIGKILL);
    assert_eq!(r.call("REPLICAOF NO ONE"), "OK");
    assert_eq!(r.call("LOCK.ACQUIRE k * ID one FENCE PX 100000"), granted);
    assert_eq!(r.call("HLEN k"), "2");
    assert_eq!(r.call("LOCK.RELEASE l a ID two"), "0");
}

fn a_restart_keeps_the_records(flavor: Flavor) {
    let server = Server::with_module(flavor, &["--appendonly", "yes"]);
    assert_eq!(server.client().call("LOCK.ACQUIRE k a ID one PX 100000"), "1");
    server.signal(libc::SIGKILL);
    let args = ["--appendonly", "yes", "--loadmodule", module().to_str().unwrap()];
    let again = Server::start_in(flavor, server.stop(), &args);
    let mut a = again.client();
    assert_eq!(a.call("LOCK.ACQUIRE k a ID one"), "1");
    assert_eq!(a.call("HGETALL k"), "[a, 1]");
}

fn invalid_records_stay_unchanged(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE held a");
        for make in ["SET lock_request:{X}:a:one hello", "RPUSH lock_request:{X}:a:one x"] {
            for lock in ["k", "held"] {
                a.call(&make.replace('X', lock));
                for command in ["LOCK.ACQUIRE X a ID one", "LOCK.RELEASE X a ID one"] {
                    let reply = a.call(&command.replace('X', lock));
                    assert!(reply.starts_with("WRONGTYPE key for the record"), "{reply}");
                }
                a.call(&format!("DEL lock_request:{{{lock}}}:a:one"));
            }
            assert_eq!(a.call("EXISTS k"), "0");
            assert_eq!(a.call("HGETALL held"), "[a, 1]");
        }
    });
}

/// Owner `a:b` with request `c` and owner `a` with request `b:c` share one record key.
fn ambiguous_record_names_are_refused(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a:b SHARED ID c"), "1");
        let error = "ERR request of another owner has the same record key; use another ID";
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED ID b:c"), error);
        assert_eq!(a.call("LOCK.RELEASE k a ID b:c"), error);
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED ID d"), "1");
    });
}

fn retries_work_in_transactions_and_scripts(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let script = "return {redis.call('LOCK.ACQUIRE',KEYS[1],'a','ID','one','FENCE','BLOCK','0'), \
                      redis.call('LOCK.ACQUIRE',KEYS[1],'a','ID','one','FENCE')}";
        let reply = a.call_args(&[b"EVAL", script.as_bytes(), b"1", b"k"]);
        assert!(reply.starts_with("[[owner, a, holds, 1, token, "), "{reply}");
        for command in
            ["MULTI", "LOCK.ACQUIRE k a ID two", "LOCK.ACQUIRE k a ID two", "LOCK.RELEASE k a ALL ID x"]
        {
            a.call(command);
        }
        assert_eq!(a.call("EXEC"), "[2, 2, 0]");
    });
}
