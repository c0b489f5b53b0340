// SPDX-License-Identifier: MIT

//! The queue: its order, and the end of a wait (invariants 3, 4).

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::Value;

use crate::support::{in_world, in_world_with, show, until, Client, Flavor, Server, Session};

crate::on_every_server!(
    waiters_are_served_in_order,
    waits_time_out,
    leases_start_at_the_grant,
    scripts_and_transactions_never_wait,
    departed_waiters_are_not_served,
    client_unblock_ends_a_wait,
    waiters_are_listed,
    the_queue_is_bounded,
    waiters_leave_connections_free,
    total_waiters_are_bounded,
    a_reentry_does_not_queue,
    a_generated_owner_can_wait,
    a_release_hands_over_in_the_same_step,
    ten_thousand_wait_for_one_lock,
    long_lists_are_complete,
);

fn waiters_are_served_in_order(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let mut waiters: Vec<_> =
            (0..5).map(|n| world.waiting(&format!("LOCK.ACQUIRE k w{n} BLOCK 0"))).collect();
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        for n in 0..5 {
            assert_eq!(waiters[n].recv(), "1");
            assert_eq!(a.call("HGETALL k"), format!("[w{n}, 1]"));
            assert!(
                waiters[n + 1..].iter().all(|other| other.has_nothing()),
                "another waiter was woken, too"
            );
            assert_eq!(waiters[n].call(&format!("LOCK.RELEASE k w{n}")), "0");
        }
        assert_eq!(a.call("EXISTS k"), "0");
    });
}

fn waits_time_out(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        let mut other = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        let mut b = world.client();
        let started = Instant::now();
        assert_eq!(b.call("LOCK.ACQUIRE k b BLOCK 150"), "nil");
        assert!(started.elapsed() >= Duration::from_millis(150), "the wait ended early");
        assert_eq!(a.call("LOCK.WAITERS k").matches("owner").count(), 1);
        assert!(other.has_nothing());
        // The connection can be used as before.
        assert_eq!(b.call("LOCK.ACQUIRE k b BLOCK 1"), "nil");
        assert_eq!(b.call("LOCK.ACQUIRE k b"), "nil");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(other.recv(), "1");
    });
}

fn leases_start_at_the_grant(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let mut b = world.waiting("LOCK.ACQUIRE k b PX 60000 BLOCK 0");
        let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        // The lease does not depend on the length of the wait.
        until("both have waited for a while", || {
            let Value::Array(waiters) = a.call_value("LOCK.WAITERS k") else { panic!("no array") };
            waiters
                .iter()
                .all(|waiter| show(waiter).split(", ").nth(5).unwrap().parse::<i64>().unwrap() > 1200)
        });
        a.call("LOCK.RELEASE k a");
        assert_eq!(b.recv(), "1");
        let ttl = a.number("PTTL k");
        assert!((59_000..=60_000).contains(&ttl), "{ttl}");
        a.call("LOCK.RELEASE k b");
        assert_eq!(c.recv(), "1");
        let ttl = a.number("PTTL k");
        assert!((29_000..=30_000).contains(&ttl), "{ttl}");
    });
}

fn scripts_and_transactions_never_wait(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let mut b = world.client();
        b.send_at_once(&[
            "MULTI",
            "LOCK.ACQUIRE k b BLOCK 0",
            "LOCK.ACQUIRE free b BLOCK 0 PX 60000",
            "EXEC",
        ]);
        assert_eq!([b.recv(), b.recv(), b.recv(), b.recv()], ["OK", "QUEUED", "QUEUED", "[nil, 1]"]);
        let script = b"return redis.call('LOCK.ACQUIRE', KEYS[1], 'b', 'BLOCK', '0')";
        assert_eq!(b.call_args(&[b"EVAL", script, b"1", b"k"]), "nil");
        let function = b"#!lua name=l\nredis.register_function('take', function(keys) \
            return redis.call('LOCK.ACQUIRE', keys[1], 'b', 'BLOCK', '0') end)";
        assert_eq!(b.call_args(&[b"FUNCTION", b"LOAD", function]), "l");
        assert_eq!(b.call("FCALL take 1 k"), "nil");
        assert_eq!(b.call("LOCK.WAITERS k"), "[]");
        // A release in a script or a transaction hands over the lock, too.
        let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        b.send_at_once(&["MULTI", "LOCK.RELEASE k a", "LOCK.ACQUIRE k b BLOCK 0", "EXEC"]);
        assert_eq!([b.recv(), b.recv(), b.recv(), b.recv()], ["OK", "QUEUED", "QUEUED", "[0, nil]"]);
        assert_eq!(c.recv(), "1");
        let mut d = world.waiting("LOCK.ACQUIRE k d BLOCK 0");
        let script = b"return {redis.call('LOCK.RELEASE', KEYS[1], 'c'), redis.call('HGETALL', KEYS[1])}";
        assert_eq!(b.call_args(&[b"EVAL", script, b"1", b"k"]), "[0, [d, 1]]");
        assert_eq!(d.recv(), "1");
    });
}

fn departed_waiters_are_not_served(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        let c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        let mut d = world.waiting("LOCK.ACQUIRE k d BLOCK 0");
        b.close();
        a.call(&format!("CLIENT KILL ID {}", c.id));
        until("both have left", || a.call("LOCK.WAITERS k").matches("owner").count() == 1);
        a.call("LOCK.RELEASE k a");
        assert_eq!(d.recv(), "1");
        assert_eq!(a.call("HGETALL k"), "[d, 1]");
    });
}

fn client_unblock_ends_a_wait(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        let mut d = world.waiting("LOCK.ACQUIRE k d BLOCK 0");
        if flavor.may_unblock() {
            assert_eq!(a.call(&format!("CLIENT UNBLOCK {}", b.id)), "1");
            assert_eq!(b.recv(), "nil");
            assert_eq!(a.call(&format!("CLIENT UNBLOCK {} ERROR", c.id)), "1");
            assert!(c.recv().starts_with("UNBLOCKED "));
            a.call("LOCK.RELEASE k a");
        } else {
            assert_eq!(a.call(&format!("CLIENT UNBLOCK {}", b.id)), "0");
            assert_eq!(a.call(&format!("CLIENT UNBLOCK {} ERROR", c.id)), "0");
            a.call("LOCK.RELEASE k a");
            assert_eq!(b.recv(), "1");
            b.call("LOCK.RELEASE k b");
            assert_eq!(c.recv(), "1");
            c.call("LOCK.RELEASE k c");
        }
        assert_eq!(d.recv(), "1");
        for client in [&mut b, &mut c, &mut d] {
            assert_eq!(client.call("PING"), "PONG");
        }
    });
}

fn waiters_are_listed(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.WAITERS k"), "[]");
        a.call("LOCK.ACQUIRE k a");
        let b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        let c = world.waiting("LOCK.ACQUIRE k c BLOCK 100000");
        let Value::Array(waiters) = a.call_value("LOCK.WAITERS k") else { panic!("no array") };
        let [first, second] = &waiters[..] else { panic!("{waiters:?}") };
        let fields =
            |waiter: &Value| show(waiter).trim_matches(['[', ']']).split(", ").map(str::to_owned).collect();
        let first: Vec<String> = fields(first);
        let second: Vec<String> = fields(second);
        assert_eq!(first[..5], ["owner", "b", "mode", "exclusive", "waited"]);
        assert_eq!(first[6..11], ["remaining", "-1", "client", &b.id.to_string(), "address"]);
        assert_eq!(second[..2], ["owner", "c"]);
        assert_eq!(second[9], c.id.to_string());
        let (waited, remaining): (i64, i64) = (second[5].parse().unwrap(), second[7].parse().unwrap());
        assert!(waited < 20_000 && (80_000..=100_000).contains(&remaining), "{second:?}");
        assert_eq!(a.call("LOCK.WAITERS k COUNT 1").matches("owner").count(), 1);
        a.call("HELLO 3");
        assert!(a.call("LOCK.WAITERS k").starts_with("[{owner: b, mode: exclusive, waited: "));
    });
}

fn the_queue_is_bounded(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("CONFIG SET lock.max-waiters 2");
        a.call("LOCK.ACQUIRE k a");
        a.call("LOCK.ACQUIRE other a");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        let _c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        let mut d = world.client();
        let refused = "ERR too many waiters for this lock; try again later, or raise lock.max-waiters";
        assert_eq!(d.call("LOCK.ACQUIRE k d BLOCK 0"), refused);
        assert_eq!(d.call("LOCK.ACQUIRE k d"), "nil");
        assert_eq!(a.call("LOCK.ACQUIRE k a BLOCK 0"), "2", "the holder does not queue");
        let _other = world.waiting("LOCK.ACQUIRE other d BLOCK 0");
        a.call("LOCK.RELEASE k a ALL");
        assert_eq!(b.recv(), "1");
        world.until_blocked({
            d.send("LOCK.ACQUIRE k d BLOCK 0");
            &d
        });
    });
}

const SERVER_IS_FULL: &str =
    "ERR too many waiters on this server; try again later, or raise lock.max-waiters-total or maxclients";

fn waiters_leave_connections_free(flavor: Flavor) {
    let server = Server::with_module(flavor, &["--maxclients", "40"]);
    let mut a = server.client();
    a.call("LOCK.ACQUIRE k a PX 100000");
    assert_eq!(a.info("lock", "lock_max_waiters_total"), "32");
    let _waiters: Vec<_> = (0..32).map(|n| server.waiting(&format!("LOCK.ACQUIRE k w{n} BLOCK 0"))).collect();
    let mut late = server.client();
    assert_eq!(late.call("LOCK.ACQUIRE k late BLOCK 0"), SERVER_IS_FULL);
    assert_eq!(late.call("LOCK.ACQUIRE k late"), "nil");
    drop(a);
    assert_eq!(server.client().call("LOCK.RELEASE k a"), "0", "the holder returns");
    assert_eq!(server.client().call("LOCK.BREAK k"), "1", "an operator connects");
    assert_eq!(late.call("CONFIG SET maxclients 50"), "OK");
    assert_eq!(late.info("lock", "lock_max_waiters_total"), "40");
}

fn total_waiters_are_bounded(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("CONFIG SET lock.max-waiters-total 2");
        for key in ["k", "k2"] {
            a.call(&format!("LOCK.ACQUIRE {key} a PX 100000"));
        }
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 ID 1");
        let c = world.waiting("LOCK.ACQUIRE k2 c BLOCK 0");
        let mut d = world.client();
        assert_eq!(d.call("LOCK.ACQUIRE k d BLOCK 0"), SERVER_IS_FULL);
        assert_eq!(d.call("LOCK.MACQUIRE 2 k k2 d BLOCK 0"), SERVER_IS_FULL);
        assert_eq!(d.info("lock", "lock_waits_refused"), "2");
        assert_eq!(d.info("lock", "lock_waiters"), "2");
        assert_eq!(d.call("LOCK.ACQUIRE free d BLOCK 0"), "1", "a free lock needs no wait");
        // A wait of a session occupies no connection.
        let mut session = Session::open(world, 60_000, 10_000);
        session.queue("k", "s", "");
        let mut again = world.waiting("LOCK.ACQUIRE k b BLOCK 0 ID 1");
        assert!(
            b.recv().starts_with("UNBLOCKED the same request"),
            "a retry takes the place of the first call"
        );
        c.close();
        until("a waiter has left", || a.info("lock", "lock_table_blocked_clients") == "1");
        let mut d = world.waiting("LOCK.ACQUIRE k2 d BLOCK 0");
        a.call("LOCK.RELEASE k a");
        assert_eq!(again.recv(), "1");
        a.call("LOCK.RELEASE k2 a");
        assert_eq!(d.recv(), "1");
        session.close();
    });
}

fn a_reentry_does_not_queue(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        let mut b2 = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        assert_eq!(a.call("LOCK.ACQUIRE k a BLOCK 0"), "2");
        a.call("LOCK.RELEASE k a ALL");
        // Both calls of the owner are granted, the second one as a re-entry.
        assert_eq!(b.recv(), "1");
        assert_eq!(b2.recv(), "2");
        assert!(c.has_nothing());
        assert_eq!(b.call("LOCK.RELEASE k b"), "1");
        assert_eq!(b.call("LOCK.RELEASE k b"), "0");
        assert_eq!(c.recv(), "1");
    });
}

fn a_generated_owner_can_wait(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let mut b = world.client();
        b.call("HELLO 3");
        b.send("LOCK.ACQUIRE k * BLOCK 0");
        world.until_blocked(&b);
        a.call("LOCK.RELEASE k a");
        let Value::Map(reply) = b.recv_value() else { panic!("no map") };
        assert_eq!(a.call("HGETALL k"), format!("[{}, 1]", show(&reply[0].1)));
    });
}

/// No other client can acquire in between, even in the same pipeline.
fn a_release_hands_over_in_the_same_step(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        a.send_at_once(&["LOCK.RELEASE k a", "LOCK.ACQUIRE k a", "HGETALL k"]);
        assert_eq!([a.recv(), a.recv(), a.recv()], ["0", "nil", "[b, 1]"]);
        assert_eq!(b.recv(), "1");
        // A foreign DEL, which the module notices by an event, gives no such chance, either.
        let mut c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        a.send_at_once(&["DEL k", "LOCK.ACQUIRE k a", "HGETALL k"]);
        assert_eq!([a.recv(), a.recv(), a.recv()], ["1", "nil", "[c, 1]"]);
        assert_eq!(c.recv(), "1");
    });
}

fn ten_thousand_wait_for_one_lock(flavor: Flavor) {
    const WAITERS: usize = 10_000;
    // Only one such test runs at a time, as it needs a file descriptor for each waiter.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = raise_open_files();
    assert!(limit > 15_000, "10,000 connections need more than {limit} open files, see ulimit -Hn");
    in_world_with(flavor, &["--maxclients", "13000"], |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 600000");
        let mut clients: Vec<_> = (0..WAITERS)
            .map(|n| {
                let mut client = world.client();
                client.send(&format!("LOCK.ACQUIRE k w{n} BLOCK 0 PX 600000"));
                client
            })
            .collect();
        until("all wait", || a.info("lock", "lock_waiters") == WAITERS.to_string());
        assert_eq!(a.call("LOCK.WAITERS k").matches("owner").count(), 100);
        // Some waiters leave from the middle of the queue, and most are served.
        for client in clients.drain(5_000..6_000) {
            client.close();
        }
        until("1,000 have left", || a.info("lock", "lock_waiters") == "9000");
        let Value::Array(order) = a.call_value("LOCK.WAITERS k COUNT 10000") else { panic!("no array") };
        let order: Vec<String> =
            order.iter().map(|waiter| show(waiter).split(", ").nth(1).unwrap().to_owned()).collect();
        a.call("LOCK.RELEASE k a");
        for owner in &order {
            assert_eq!(a.call("HGETALL k"), format!("[{owner}, 1]"));
            assert_eq!(a.call(&format!("LOCK.RELEASE k {owner}")), "0");
        }
        for client in &mut clients {
            assert_eq!(client.recv(), "1");
        }
        assert_eq!(a.info("lock", "lock_waiters"), "0");
        assert_eq!(a.info("lock", "lock_grants_revoked"), "0");
    });
}

/// The module builds long lists in portions, while their client is blocked.
fn long_lists_are_complete(flavor: Flavor) {
    const MANY: usize = 1_100;
    raise_open_files();
    in_world(flavor, |world| {
        let mut a = world.client();
        let holds: Vec<String> = (0..MANY).map(|n| format!("LOCK.ACQUIRE l{n:04} a PX 600000")).collect();
        a.send_at_once(&holds.iter().map(String::as_str).collect::<Vec<_>>());
        holds.iter().for_each(|_| assert_eq!(a.recv(), "1"));
        let waiting = |lock: usize, n: usize| {
            let mut client = world.client();
            client.send(&format!("LOCK.ACQUIRE l{lock:04} w{n} BLOCK 0"));
            client
        };
        let queue: Vec<Client> = (0..MANY).map(|n| waiting(7, n)).collect();
        until("all wait", || a.info("lock", "lock_waiters") == MANY.to_string());
        let each: Vec<Client> = (0..MANY).map(|n| waiting(n, MANY + n)).collect();
        until("all wait", || a.info("lock", "lock_waiters") == (2 * MANY).to_string());

        // Later commands on the connection are answered after the list.
        a.send_at_once(&["LOCK.WAITERS l0007 COUNT 10000", "LOCK.LIST COUNT 10000", "PING"]);
        let mut b = world.client();
        b.send_at_once(&["HELLO 3", "LOCK.LIST MATCH l1* COUNT 10000", "LOCK.LIST COUNT 700", "PING"]);
        let (waiters, locks) = (a.recv(), a.recv());
        assert_eq!(a.recv(), "PONG");
        // Entries are maps or flat arrays.
        let values = |field: &str, reply: &str| -> Vec<String> {
            let entries = reply.split(field).skip(1);
            entries.map(|entry| entry[2..].split(',').next().unwrap().to_owned()).collect()
        };
        let waiting_owners: Vec<String> = (0..MANY).chain([MANY + 7]).map(|n| format!("w{n}")).collect();
        assert_eq!(values("owner", &waiters), waiting_owners);
        // The longest queue comes first; equal queues are sorted by name.
        let mut order: Vec<String> = (0..MANY).map(|n| format!("l{n:04}")).collect();
        let longest = order.remove(7);
        order.insert(0, longest);
        assert_eq!(values("key", &locks), order);
        b.recv();
        assert_eq!(values("key", &b.recv()), order[order.len() - 100..]);
        assert_eq!(values("key", &b.recv()), order[..700]);
        assert_eq!(b.recv(), "PONG");

        let readers: Vec<String> =
            (0..MANY).map(|n| format!("LOCK.ACQUIRE many r{n:04} SHARED PX 600000")).collect();
        a.send_at_once(&readers.iter().map(String::as_str).collect::<Vec<_>>());
        readers.iter().for_each(|_| assert_eq!(a.recv(), "1"));
        let info = a.call("LOCK.INFO many");
        let mut holders = values("owner", &info);
        holders.sort();
        assert_eq!(holders, (0..MANY).map(|n| format!("r{n:04}")).collect::<Vec<_>>());
        assert!(
            info.starts_with("[mode, shared, ttl, ") || info.starts_with("{mode: shared, ttl: "),
            "{info}"
        );
        assert!(info.ends_with(", waiters, 0]") || info.ends_with(", waiters: 0}"), "{info}");

        // In transactions and scripts the list is built at once.
        for list in ["LOCK.LIST COUNT 10000", "LOCK.WAITERS l0007 COUNT 10000", "LOCK.INFO many"] {
            let len = |reply: &str| reply.matches("mode").count();
            let plain = a.call(list);
            a.send_at_once(&["MULTI", list, "EXEC"]);
            let replies: Vec<String> = (0..3).map(|_| a.recv()).collect();
            assert_eq!(len(&replies[2]), len(&plain), "{list}");
            let script = format!("return cjson.encode(redis.call('{}'))", list.replace(' ', "', '"));
            let scripted = a.call_args(&[b"EVAL", script.as_bytes(), b"2", b"l0007", b"many"]);
            assert_eq!(len(&scripted), len(&plain), "{list}");
        }

        // Callers may disconnect before the list is complete, and so may the listed waiters.
        for _ in 0..3 {
            let mut gone = world.client();
            gone.send_at_once(&["LOCK.LIST COUNT 10000", "LOCK.WAITERS l0007 COUNT 10000", "LOCK.INFO many"]);
            gone.close();
        }
        a.send_at_once(&["LOCK.WAITERS l0007 COUNT 10000", "LOCK.LIST COUNT 10000"]);
        queue.into_iter().chain(each).for_each(Client::close);
        let (waiters, locks) = (a.recv_value(), a.recv_value());
        assert!(matches!((waiters, locks), (Value::Array(_), Value::Array(_))));
        until("all have left", || a.call("LOCK.LIST COUNT 10000") == "[]");
        until("no list is under construction", || a.info("lock", "lock_table_long_replies") == "0");
    });
}

/// Each waiter needs a file descriptor here and one in the server.
fn raise_open_files() -> u64 {
    // SAFETY: the structure is filled by the first call and only read by the second.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(65_536);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        limit.rlim_cur
    }
}

/// The server takes some seconds to free the memory of blocked clients.
#[test]
fn memory_of_departed_waiters_is_freed() {
    let server = Server::with_module(Flavor::Redis7, &[]);
    let mut a = server.client();
    let mut crowd = |waiters: usize| {
        a.call("LOCK.ACQUIRE k a");
        let clients: Vec<_> = (0..waiters)
            .map(|n| {
                let mut client = server.client();
                client.send(&format!("LOCK.ACQUIRE k w{n} BLOCK 0"));
                client
            })
            .collect();
        until("all wait", || a.info("lock", "lock_waiters") == waiters.to_string());
        drop(clients);
        until("all have left", || a.info("lock", "lock_waiters") == "0");
        a.call("DEL k");
    };
    // The first call allocates memory that is allocated only once.
    crowd(1);
    let memory = |client: &mut Client| -> i64 { client.info("memory", "used_memory").parse().unwrap() };
    let mut watcher = server.client();
    let before = memory(&mut watcher);
    crowd(2_000);
    until("the memory is freed", || memory(&mut watcher) - before < 500_000);
}
