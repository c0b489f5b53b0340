// SPDX-License-Identifier: MIT

//! `LOCK.LOG`: what the server remembers of long waits, lost holds, deadlocks, revoked grants and ended sessions.

use std::time::Duration;

use redis_lock_test_kit::client::fields;

use crate::support::{in_world, show, until, with_sessions, Client, Flavor, Session, World};

crate::on_every_server!(
    a_long_wait_names_the_holder,
    waits_that_end_without_a_grant_are_logged,
    short_waits_are_not_logged,
    broken_locks_name_the_caller,
    expired_leases_are_logged,
    losses_of_sessions_are_logged,
    deadlocks_show_the_cycle,
    undelivered_grants_are_logged,
    ended_sessions_are_logged,
    entries_are_hidden_from_other_users,
    memory_is_bounded,
);

/// The entries of the log, oldest first: event, key, owner, `by` and reason.
fn log(client: &mut Client) -> Vec<String> {
    let redis::Value::Array(entries) = client.call_value("LOCK.LOG COUNT 1000") else { panic!("no array") };
    let line = |entry| {
        let of = fields(entry);
        ["event", "key", "owner", "by", "reason"].map(|name| show(of[name])).join(" ")
    };
    entries.iter().rev().map(line).collect()
}

/// Waits until the log has this entry.
#[track_caller]
fn until_logged(client: &mut Client, wanted: &str) {
    until(&format!("the log has {wanted:?}"), || log(client).iter().any(|line| line == wanted));
}

fn configured(flavor: Flavor, scenario: impl FnOnce(&World, &mut Client)) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("CONFIG SET lock.log-waits-over 1");
        scenario(world, &mut a);
    });
}

fn a_long_wait_names_the_holder(flavor: Flavor) {
    configured(flavor, |world, a| {
        a.call("LOCK.ACQUIRE k alice PX 100000");
        let mut b = world.waiting("LOCK.ACQUIRE k bob PX 100000 BLOCK 0");
        std::thread::sleep(Duration::from_millis(5));
        a.call("LOCK.RELEASE k alice");
        assert_eq!(b.recv(), "1");
        assert_eq!(log(a), ["wait k bob alice granted"]);
        let entry = a.call_value("LOCK.LOG");
        let redis::Value::Array(entries) = &entry else { panic!("no array") };
        let of = fields(&entries[0]);
        let number = |name: &str| show(of[name]).parse::<i64>().unwrap();
        assert!((5..60_000).contains(&number("waited")), "{}", show(&entry));
        assert_eq!(number("id"), 1);
        let now = a.call("TIME");
        let now: i64 = now[1..].split(',').next().unwrap().parse().unwrap();
        assert!((number("time") / 1000 - now).abs() < 60, "{}", show(&entry));
        // The holder of a shared lock is the owner whose release admits the waiter.
        for owner in ["r1", "r2"] {
            a.call(&format!("LOCK.ACQUIRE s {owner} SHARED PX 100000"));
        }
        let mut b = world.waiting("LOCK.ACQUIRE s bob PX 100000 BLOCK 0");
        std::thread::sleep(Duration::from_millis(5));
        a.call("LOCK.RELEASE s r1");
        a.call("LOCK.RELEASE s r2");
        assert_eq!(b.recv(), "1");
        assert_eq!(log(a)[1..], ["wait s bob r2 granted"]);
    });
}

fn waits_that_end_without_a_grant_are_logged(flavor: Flavor) {
    configured(flavor, |world, a| {
        a.call("LOCK.ACQUIRE k alice PX 100000");
        assert_eq!(world.client().call("LOCK.ACQUIRE k bob BLOCK 10"), "nil");
        until_logged(a, "wait k bob alice timeout");
        let gone = world.waiting("LOCK.ACQUIRE k carol BLOCK 0");
        std::thread::sleep(Duration::from_millis(5));
        gone.close();
        until_logged(a, "wait k carol alice left");
        let mut cancelled = world.waiting("LOCK.ACQUIRE k dave BLOCK 0 ID 1");
        std::thread::sleep(Duration::from_millis(5));
        a.call("LOCK.CANCEL k dave ID 1");
        cancelled.recv();
        until_logged(a, "wait k dave alice cancelled");
        let mut refused = world.waiting("LOCK.ACQUIRE k erin BLOCK 0");
        std::thread::sleep(Duration::from_millis(5));
        // Only the deletion is an event.
        a.send_at_once(&["MULTI", "DEL k", "SET k text", "EXEC"]);
        (0..4).for_each(|_| drop(a.recv()));
        assert!(refused.recv().starts_with("WRONGTYPE"));
        until("the wait is logged", || {
            log(a).iter().any(|line| line.starts_with("wait k erin") && line.ends_with("wrongtype"))
        });
    });
}

fn short_waits_are_not_logged(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("CONFIG GET lock.log-waits-over"), "[lock.log-waits-over, 10000]");
        a.call("LOCK.ACQUIRE k alice PX 100000");
        assert_eq!(a.call("LOCK.ACQUIRE k bob BLOCK 20"), "nil");
        a.call("CONFIG SET lock.log-waits-over 0");
        assert_eq!(a.call("LOCK.ACQUIRE k bob BLOCK 20"), "nil");
        assert_eq!(log(&mut a), [""; 0]);
        a.call("CONFIG SET lock.log-waits-over 20");
        assert_eq!(a.call("LOCK.ACQUIRE k bob BLOCK 5"), "nil");
        assert_eq!(a.call("LOCK.ACQUIRE k bob BLOCK 30"), "nil");
        assert_eq!(log(&mut a), ["wait k bob alice timeout"]);
    });
}

fn broken_locks_name_the_caller(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let line = a.call(&format!("CLIENT LIST ID {}", a.id));
        let address = line.split_once(" addr=").unwrap().1.split(' ').next().unwrap().to_owned();
        assert_eq!(a.call("LOCK.BREAK k"), "0");
        for owner in ["r1", "r2"] {
            a.call(&format!("LOCK.ACQUIRE k {owner} SHARED PX 100000"));
        }
        assert_eq!(a.call("LOCK.BREAK k"), "2");
        let mut lines = log(&mut a);
        lines.sort();
        assert_eq!(
            lines,
            ["r1", "r2"].map(|owner| format!("lost k {owner} user default at {address} broken"))
        );
        // The events of owners report it once.
        a.call("CONFIG SET lock.events yes");
        a.call("LOCK.ACQUIRE k alice PX 100000");
        assert_eq!(a.call("LOCK.BREAK k"), "1");
        until("owners are notified", || a.info("lock", "lock_owners_told") == "1");
        assert_eq!(log(&mut a).len(), 3);
    });
}

fn expired_leases_are_logged(flavor: Flavor) {
    configured(flavor, |world, a| {
        a.call("LOCK.ACQUIRE k alice PX 30");
        let mut b = world.waiting("LOCK.ACQUIRE k bob PX 100000 BLOCK 0");
        assert_eq!(b.recv(), "1");
        assert_eq!(log(a), ["lost k alice nil expired", "wait k bob alice granted"]);
        // A fenced hold.
        a.call("LOCK.ACQUIRE f dave FENCE PX 30");
        let mut b = world.waiting("LOCK.ACQUIRE f erin PX 100000 BLOCK 0");
        assert_eq!(b.recv(), "1");
        assert_eq!(log(a)[2..], ["lost f dave nil expired", "wait f erin dave granted"]);
        // With events, also without waiters.
        a.call("CONFIG SET lock.events yes");
        a.call("LOCK.ACQUIRE l carol PX 30");
        until_logged(a, "lost l carol nil expired");
        assert_eq!(log(a).len(), 5);
    });
}

fn losses_of_sessions_are_logged(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, 10_000, 3_000);
        for (key, reason) in [("deleted", "deleted"), ("expired", "expired"), ("broken", "broken")] {
            let lease = if reason == "expired" { "PX 50" } else { "EPHEMERAL" };
            assert_eq!(session.acquire(key, "alice", lease).1, "1");
            match reason {
                "deleted" => drop(a.call(&format!("DEL {key}"))),
                "broken" => drop(a.call(&format!("LOCK.BREAK {key}"))),
                _ => {}
            }
            session.some_events();
            let lines = log(&mut a);
            let of_key: Vec<_> =
                lines.iter().filter(|line| line.starts_with(&format!("lost {key} alice"))).collect();
            assert_eq!(of_key.len(), 1, "{lines:?}");
            assert!(of_key[0].ends_with(reason), "{lines:?}");
        }
        // A notice to the owner makes no second entry.
        a.call("CONFIG SET lock.events yes");
        assert_eq!(session.acquire("noted", "alice", "EPHEMERAL").1, "1");
        a.call("DEL noted");
        session.some_events();
        until("owners are notified", || a.info("lock", "lock_owners_told") == "1");
        assert_eq!(log(&mut a)[3..], ["lost noted alice nil deleted"]);
    });
}

fn deadlocks_show_the_cycle(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k1 alice PX 100000");
        a.call("LOCK.ACQUIRE k2 bob PX 100000");
        let _bob = world.waiting("LOCK.ACQUIRE k1 bob BLOCK 0");
        assert!(a.call("LOCK.ACQUIRE k2 alice BLOCK 0").starts_with("DEADLOCK"));
        let cycle = "alice waits for bob (lock k2), bob for alice (lock k1)";
        assert_eq!(log(&mut a), [format!("deadlock k2 alice {cycle} deadlock")]);
        // A reader that may not read each lock does not see the cycle.
        a.call("ACL SETUSER half on nopass ~k2 +lock.log");
        let mut half = world.client();
        half.call("AUTH half x");
        assert_eq!(log(&mut half), ["deadlock k2 alice nil deadlock"]);
    });
}

fn undelivered_grants_are_logged(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k alice");
        let b = world.waiting("LOCK.ACQUIRE k bob BLOCK 0");
        a.send_at_once(&["LOCK.RELEASE k alice", &format!("CLIENT KILL ID {}", b.id)]);
        assert_eq!([a.recv(), a.recv()], ["0", "1"]);
        until_logged(&mut a, "revoked k bob nil undelivered");
    });
}

fn ended_sessions_are_logged(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let closed = Session::open_on([world.client(), world.client()], 10_000, 100, "NAME closes");
        drop(closed);
        let mut session = Session::open_on([world.client(), world.client()], 10_000, 100, "NAME web-1");
        session.acquire("k", "alice", "EPHEMERAL");
        session.resume([world.client(), world.client()]);
        let reader = session.reader.id;
        a.call(&format!("CLIENT KILL ID {reader}"));
        until_logged(&mut a, "session nil web-1 nil disconnected");
        assert_eq!(log(&mut a).len(), 1);
        let _silent = Session::open_on([world.client(), world.client()], 200, 100, "NAME web-2");
        until_logged(&mut a, "session nil web-2 nil silent");
    });
}

fn entries_are_hidden_from_other_users(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for key in ["secret", "mine"] {
            a.call(&format!("LOCK.ACQUIRE {key} alice PX 100000"));
            a.call(&format!("LOCK.BREAK {key}"));
        }
        a.call("SELECT 3");
        a.call("LOCK.ACQUIRE mine carol PX 100000");
        a.call("LOCK.BREAK mine");
        assert_eq!(log(&mut a).len(), 1);
        a.call("ACL SETUSER guest on nopass ~mine +lock.log +select");
        let mut guest = world.client();
        guest.call("AUTH guest x");
        let lines = log(&mut guest);
        assert!(lines.len() == 1 && lines[0].starts_with("lost mine alice"), "{lines:?}");
        // The limit counts entries that the user may see.
        a.call("SELECT 0");
        a.call("LOCK.ACQUIRE secret alice PX 100000");
        a.call("LOCK.BREAK secret");
        assert!(guest.call("LOCK.LOG COUNT 1").contains("mine"));
    });
}

fn memory_is_bounded(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("CONFIG SET lock.log-max-len 3");
        for key in 1..=5 {
            a.call(&format!("LOCK.ACQUIRE {key} alice PX 100000"));
            a.call(&format!("LOCK.BREAK {key}"));
        }
        let keys = |lines: Vec<String>| lines.iter().map(|line| line[5..6].to_owned()).collect::<String>();
        assert_eq!(keys(log(&mut a)), "345");
        assert_eq!(a.info("lock", "lock_log_entries"), "3");
        assert!(a.call("LOCK.LOG COUNT 1").contains("key, 5, "));
        a.call("CONFIG SET lock.log-max-len 2");
        assert_eq!(keys(log(&mut a)), "45");
        a.call("CONFIG SET lock.log-max-len 0");
        a.call("LOCK.ACQUIRE k alice PX 100000");
        a.call("LOCK.BREAK k");
        assert_eq!(a.call("LOCK.LOG"), "[]");
        assert!(a.call("LOCK.LOG COUNT 0").starts_with("ERR COUNT is out of range"));
        assert!(a.call("LOCK.LOG k").starts_with("ERR syntax error, unknown option 'k'"));
    });
}
