// SPDX-License-Identifier: MIT

//! `LOCK.LOG`: what the server remembers of long waits, lost holds, deadlocks, revoked grants and ended sessions.

use std::time::Duration;

use redis_lock_test_kit::client::fields;

use crate::support::cluster::Cluster;
use crate::support::{in_world, show, until, with_sessions, Client, Flavor, Server, Session, World};

crate::on_every_server!(
    a_long_wait_names_the_holder,
    waits_that_end_without_a_grant_are_logged,
    waits_for_several_locks_are_logged,
    withdrawn_waits_are_logged,
    impossible_grants_are_logged,
    moved_locks_are_logged,
    waits_at_a_demotion_are_logged,
    short_waits_are_not_logged,
    broken_locks_name_the_caller,
    expired_leases_are_logged,
    losses_of_sessions_are_logged,
    deadlocks_show_the_cycle,
    undelivered_grants_are_logged,
    unacknowledged_grants_are_logged,
    overdue_grants_are_logged,
    ended_sessions_are_logged,
    entries_are_hidden_from_other_users,
    old_incidents_are_forgotten,
    a_full_log_has_bounded_memory,
);

/// The entries of the log, oldest first: event, key, owner, `by` and reason. Only waits and deadlocks have a duration.
fn log(client: &mut Client) -> Vec<String> {
    let redis::Value::Array(entries) = client.call_value("LOCK.LOG COUNT 1000") else { panic!("no array") };
    let line = |entry| {
        let of = fields(entry);
        let waited = show(of["waited"]);
        let is_wait = ["wait", "deadlock"].contains(&show(of["event"]).as_str());
        assert!(if is_wait { waited.parse::<u32>().is_ok() } else { waited == "nil" }, "{}", show(entry));
        ["event", "key", "owner", "by", "reason"].map(|name| show(of[name])).join(" ")
    };
    entries.iter().rev().map(line).collect()
}

/// Lets a wait last for longer than the limit of [`configured`].
fn exceed_the_limit() {
    std::thread::sleep(Duration::from_millis(5));
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
        exceed_the_limit();
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
        exceed_the_limit();
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
        exceed_the_limit();
        gone.close();
        until_logged(a, "wait k carol alice left");
        let mut cancelled = world.waiting("LOCK.ACQUIRE k dave BLOCK 0 ID 1");
        exceed_the_limit();
        a.call("LOCK.CANCEL k dave ID 1");
        cancelled.recv();
        until_logged(a, "wait k dave alice cancelled");
        let mut refused = world.waiting("LOCK.ACQUIRE k erin BLOCK 0");
        exceed_the_limit();
        // Only the deletion is an event.
        a.send_at_once(&["MULTI", "DEL k", "SET k text", "EXEC"]);
        (0..4).for_each(|_| drop(a.recv()));
        assert!(refused.recv().starts_with("WRONGTYPE"));
        until("the wait is logged", || {
            log(a).iter().any(|line| line.starts_with("wait k erin") && line.ends_with("wrongtype"))
        });
    });
}

fn waits_for_several_locks_are_logged(flavor: Flavor) {
    configured(flavor, |world, a| {
        a.call("LOCK.ACQUIRE k alice PX 100000");
        a.call("LOCK.ACQUIRE l carol PX 100000");
        assert_eq!(world.client().call("LOCK.MACQUIRE 2 k l bob BLOCK 10"), "nil");
        let lines = log(a);
        assert!(lines.len() == 1 && lines[0].ends_with("timeout"), "{lines:?}");
        let mut b = world.waiting("LOCK.MACQUIRE 2 k l bob PX 100000 BLOCK 0");
        exceed_the_limit();
        a.call("LOCK.RELEASE k alice");
        a.call("LOCK.RELEASE l carol");
        assert_eq!(b.recv(), "[1, 1]");
        let mut lines = log(a).split_off(1);
        lines.sort();
        assert_eq!(lines, ["wait k bob nil granted", "wait l bob nil granted"]);
    });
}

/// Waits that the client or an operator ends, other than by `LOCK.CANCEL` with an `ID`.
fn withdrawn_waits_are_logged(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        a.call("CONFIG SET lock.log-waits-over 1");
        a.call("LOCK.ACQUIRE k alice PX 100000");
        let mut session = Session::open(world, 10_000, 3_000);
        let n = session.queue("k", "s1", "");
        session.queue("k", "s2", "");
        exceed_the_limit();
        assert_eq!(session.cancel(n), "1");
        until_logged(&mut a, "wait k s1 alice left");
        assert_eq!(session.close(), "0");
        until_logged(&mut a, "wait k s2 alice left");
        if flavor.may_unblock() {
            for how in ["TIMEOUT", "ERROR"] {
                let mut waiter = world.waiting(&format!("LOCK.ACQUIRE k {how} BLOCK 0"));
                exceed_the_limit();
                assert_eq!(a.call(&format!("CLIENT UNBLOCK {} {how}", waiter.id)), "1");
                waiter.recv();
                until_logged(&mut a, &format!("wait k {how} alice left"));
            }
        }
        a.call("LOCK.RELEASE k alice");
    });
}

/// The fencing counter has reached its end, or the key gets another type.
fn impossible_grants_are_logged(flavor: Flavor) {
    configured(flavor, |world, a| {
        let mut waiters = ["k", "l"].map(|key| {
            a.call(&format!("LOCK.ACQUIRE {key} alice PX 100000"));
            world.waiting(&format!("LOCK.ACQUIRE {key} bob BLOCK 0 FENCE"))
        });
        exceed_the_limit();
        a.call("SET redisson_lock_token:{k} 9223372036854775807");
        a.call("LOCK.RELEASE k alice");
        let refused = waiters[0].recv();
        assert!(refused.starts_with("ERR "), "{refused}");
        assert_eq!(log(a), ["wait k bob alice refused"]);
        // A session's hold and a wait end when the key gets another type.
        let mut session = Session::open(world, 10_000, 3_000);
        assert_eq!(session.acquire("held", "s", "EPHEMERAL").1, "1");
        for key in ["held", "l"] {
            a.call(&format!("SET {key} text"));
            // The next call for the lock notices it.
            assert!(a.call(&format!("LOCK.ACQUIRE {key} carol")).starts_with("WRONGTYPE"));
        }
        assert!(waiters[1].recv().starts_with("WRONGTYPE"));
        session.some_events();
        let mut lines = log(a).split_off(1);
        lines.sort();
        assert_eq!(lines, ["lost held s nil wrongtype", "wait l bob alice wrongtype"]);
    });
}

/// A session's hold and a wait end at the old node when the slot moves.
fn moved_locks_are_logged(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let mut a = cluster.nodes[0].client();
    a.call("CONFIG SET lock.log-waits-over 1");
    let mut session = Session::open(&cluster.nodes[0], 10_000, 3_000);
    assert_eq!(session.acquire("b", "s", "").1, "1");
    let mut waiter = cluster.nodes[0].waiting("LOCK.ACQUIRE b bob BLOCK 0");
    exceed_the_limit();
    cluster.migrate("b");
    assert!(waiter.recv().starts_with("UNBLOCKED "));
    session.some_events();
    let mut lines = log(&mut a);
    lines.sort();
    assert_eq!(lines, ["lost b s nil moved", "wait b bob s moved"]);
    cluster.assert_healthy();
}

/// The server itself ends waits with `BLOCK`, and the module those of sessions.
fn waits_at_a_demotion_are_logged(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let other = Server::start(flavor, &[]);
    let mut a = server.client();
    a.call("CONFIG SET lock.log-waits-over 1");
    a.call("LOCK.ACQUIRE k alice PX 100000");
    let mut session = Session::open(&server, 10_000, 3_000);
    session.queue("k", "s", "");
    let mut bob = server.waiting("LOCK.ACQUIRE k bob BLOCK 0");
    exceed_the_limit();
    assert_eq!(a.call(&format!("REPLICAOF 127.0.0.1 {}", other.port)), "OK");
    assert!(bob.recv().starts_with("UNBLOCKED "));
    until_logged(&mut a, "wait k s alice failover");
    until_logged(&mut a, "wait k bob alice left");
    assert_eq!(log(&mut a).len(), 2);
    server.assert_healthy();
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
        for reader in 0..17 {
            a.call(&format!("LOCK.ACQUIRE many r{reader} SHARED PX 100000"));
        }
        assert_eq!(a.call("LOCK.BREAK many"), "17");
        assert_eq!(log(&mut a).len(), 18);
        // The events of owners report it once.
        a.call("CONFIG SET lock.events yes");
        a.call("LOCK.ACQUIRE k alice PX 100000");
        assert_eq!(a.call("LOCK.BREAK k"), "1");
        until("owners are notified", || a.info("lock", "lock_owners_told") == "1");
        assert_eq!(log(&mut a).len(), 19);
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
        a.call("LOCK.ACQUIRE e carol PX 100000");
        a.call("DEL k f");
        let evict = ["CONFIG SET maxmemory-policy volatile-ttl", "CONFIG SET maxmemory 1", "SET x y"];
        a.send_at_once(&evict);
        evict.iter().for_each(|_| drop(a.recv()));
        a.call("CONFIG SET maxmemory 0");
        until_logged(a, "lost e carol nil evicted");
        a.call("CONFIG SET maxmemory-policy noeviction");
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

fn unacknowledged_grants_are_logged(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        until("the replica is online", || a.call("INFO replication").contains("state=online"));
        let mut session = Session::open(world, 10_000, 3_000);
        world.replica.signal(libc::SIGSTOP);
        a.call("LOCK.ACQUIRE k alice PX 100000");
        let mut waiter = world.waiting("LOCK.ACQUIRE k bob BLOCK 0 REPLICAS 1 WITHIN 50");
        a.call("LOCK.RELEASE k alice");
        assert!(waiter.recv().starts_with("NOREPLICAS "));
        assert!(a.call("LOCK.ACQUIRE k carol REPLICAS 1 WITHIN 50").starts_with("NOREPLICAS "));
        session.acquire("k", "s", "QUEUE 0 REPLICAS 1 WITHIN 50");
        assert_eq!(session.some_events(), ["lost 1 noreplicas"]);
        world.replica.signal(libc::SIGCONT);
        assert_eq!(
            log(&mut a),
            ["bob", "carol", "s"].map(|owner| format!("revoked k {owner} nil noreplicas"))
        );
    });
}

fn overdue_grants_are_logged(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        a.call("CONFIG SET lock.log-waits-over 1");
        for key in ["old", "k", "l"] {
            a.call(&format!("LOCK.ACQUIRE {key} alice PX 100000"));
        }
        // A third of the lease is over when the client asks for its events.
        let mut slow = Session::open(world, 10_000, 1_000);
        slow.queue("old", "slow", "WATCHDOG PX 3000");
        a.call("LOCK.RELEASE old alice");
        until("the lease is old", || a.number("PTTL old") < 1_990);
        assert_eq!(slow.events(0), ["lost 1 overdue"]);
        until_logged(&mut a, "revoked old slow nil overdue");
        // A client that asks for no events for seconds.
        let mut silent = Session::open(world, 20_000, 1_000);
        silent.queue("k", "silent", "");
        silent.acquire("l", "silent", "QUEUE 5500");
        a.call("LOCK.RELEASE k alice");
        until_logged(&mut a, "revoked k silent nil overdue");
        // Its other wait is passed over, and then ends.
        a.call("LOCK.RELEASE l alice");
        until_logged(&mut a, "wait l silent nil timeout");
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

fn old_incidents_are_forgotten(flavor: Flavor) {
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

/// All names have the maximum length. The memory of the log is what the server frees when the log is turned off.
fn a_full_log_has_bounded_memory(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    a.call("CONFIG SET lock.log-waits-over 1");
    let [holder, waiter] = ["h", "w"].map(|name| name.repeat(1024));
    let mut wait_for = |lock: usize, holder: &str, waiter: &str| {
        let key = format!("{lock:0>1024}");
        assert_eq!(a.call(&format!("LOCK.ACQUIRE {key} {holder} PX 100000")), "1");
        assert_eq!(a.call(&format!("LOCK.ACQUIRE {key} {waiter} BLOCK 2")), "nil");
        assert_eq!(a.call(&format!("LOCK.RELEASE {key} {holder}")), "0");
    };
    let mut b = server.client();
    let mut full = |incidents: usize| {
        b.call("CONFIG SET lock.log-max-len 128");
        (0..incidents).for_each(|lock| wait_for(lock, &holder, &waiter));
        assert_eq!(b.info("lock", "lock_log_entries"), "128");
        // Only foreign writes make longer owners. As a holder, such an owner is not named, and its loss is not logged.
        let longer = "l".repeat(2_000);
        for call in [format!("HSET k {longer} 1"), "PEXPIRE k 100000".to_owned()] {
            assert_eq!(b.call(&call), "1");
        }
        let before = b.call("LOCK.LOG COUNT 1");
        assert_eq!(b.call("LOCK.BREAK k"), "1");
        assert_eq!(b.call("LOCK.LOG COUNT 1"), before);
        let used = |b: &mut Client| b.info("memory", "used_memory").parse::<i64>().unwrap();
        let before = used(&mut b);
        b.call("CONFIG SET lock.log-max-len 0");
        before - used(&mut b)
    };
    // `LOCK.TOP` also remembers the keys of some locks. These are not freed.
    for incidents in [128, 400] {
        let bytes = full(incidents);
        assert!(
            (2 * 1024 * 128..4 * 1024 * 128).contains(&bytes),
            "{bytes} bytes after {incidents} incidents"
        );
    }
    server.assert_healthy();
}
