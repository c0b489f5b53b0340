// SPDX-License-Identifier: MIT

//! `SHARED LIMIT n`: a semaphore with the leases, tokens and queue of any lock (invariants 1, 3, 4).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::Value;

use crate::support::client::{fields, prefix};
use crate::support::{in_world, until, Client, Flavor, Server, World};

crate::on_every_server!(
    the_limit_bounds_the_holders,
    invalid_limits_are_refused,
    permits_are_granted_in_order,
    each_call_has_its_own_limit,
    every_end_frees_a_permit,
    a_deleted_field_frees_a_permit,
    limit_combines_with_other_options,
    retries_count_once_and_cancels_release,
    a_permit_holder_can_upgrade,
    deadlocks_consider_every_permit_holder,
    ten_thousand_permits_work,
    random_calls_never_exceed_the_limit,
);

fn holders(client: &mut Client, key: &str) -> usize {
    let info = client.call_value(&format!("LOCK.INFO {key}"));
    match info {
        Value::Nil => 0,
        info => match fields(&info)["holders"] {
            Value::Array(holders) => holders.len(),
            other => panic!("{other:?}"),
        },
    }
}

fn the_limit_bounds_the_holders(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for owner in ["a", "b", "c"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {owner} SHARED LIMIT 3")), "1");
        }
        let before = a.number("PEXPIRETIME k");
        assert_eq!(a.call("LOCK.ACQUIRE k d LIMIT 3 SHARED PX 900000 FENCE WATCHDOG ID x"), "nil");
        assert_eq!(a.number("PEXPIRETIME k"), before, "a refused call sets no lease");
        assert_eq!(a.call("LOCK.ACQUIRE k d shared limit 3 BLOCK 20"), "nil");
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED LIMIT 3"), "2");
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED LIMIT 1"), "3", "a holder may re-enter");
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED LIMIT 3 ONCE"), "nil", "ONCE counts the re-entry");
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED LIMIT 4 ONCE"), "4");
        a.call("MULTI");
        a.call("LOCK.RELEASE k a");
        a.call("LOCK.ACQUIRE k d SHARED LIMIT 3");
        a.call("LOCK.ACQUIRE k e SHARED LIMIT 3 BLOCK 0");
        assert_eq!(a.call("EXEC"), "[0, 1, nil]");
        let script = b"return redis.call('LOCK.ACQUIRE', 'k', 'e', 'SHARED', 'LIMIT', '4', 'BLOCK', '0')";
        assert_eq!(a.call_args(&[b"EVAL", script, b"0"]), "1");
        assert_eq!(holders(&mut a, "k"), 4);
    });
}

fn invalid_limits_are_refused(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for (options, error) in [
            ("LIMIT 3", "ERR LIMIT needs SHARED in 'lock.acquire' command"),
            ("SHARED LIMIT", "ERR LIMIT needs a value in 'lock.acquire' command"),
            ("SHARED LIMIT 0", "ERR LIMIT is out of range in 'lock.acquire' command; use 1 to 2147483647"),
            ("SHARED LIMIT -1", "ERR LIMIT is out of range in 'lock.acquire' command; use 1 to 2147483647"),
            (
                "SHARED LIMIT 2147483648",
                "ERR LIMIT is out of range in 'lock.acquire' command; use 1 to 2147483647",
            ),
            ("SHARED LIMIT many", "ERR LIMIT 'many' is not an integer in 'lock.acquire' command"),
            ("SHARED LIMIT 1 LIMIT 2", "ERR LIMIT is given twice in 'lock.acquire' command"),
        ] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k a {options}")), error, "{options}");
        }
        assert_eq!(a.call("EXISTS k"), "0");
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED LIMIT 2147483647"), "1");
        assert_eq!(prefix(&a.call("LOCK.RENEW k a SHARED LIMIT 1")), "ERR");
    });
}

fn waits(world: &World, owner: &str, options: &str) -> Client {
    world.waiting(&format!("LOCK.ACQUIRE k {owner} SHARED PX 100000 BLOCK 0 {options}"))
}

fn permits_are_granted_in_order(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for owner in ["a", "b"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {owner} SHARED LIMIT 2 PX 100000")), "1");
        }
        let mut waiting = ["c", "d", "e"].map(|owner| waits(world, owner, "LIMIT 2"));
        // A reader without a limit and a writer wait behind the waiters for permits.
        let mut reader = waits(world, "f", "");
        let mut writer = world.waiting("LOCK.ACQUIRE k g BLOCK 0 PX 100000");
        assert_eq!(a.call("LOCK.ACQUIRE k h SHARED LIMIT 9"), "nil", "a newcomer overtakes no waiter");
        for (at, leaves) in ["b", "a", "c"].into_iter().enumerate() {
            assert_eq!(a.call(&format!("LOCK.RELEASE k {leaves}")), "0");
            assert_eq!(waiting[at].recv(), "1");
            assert!(waiting[at + 1..].iter().all(Client::has_nothing), "one grant for each release");
        }
        assert_eq!(reader.recv(), "1", "no waiter with a limit is ahead");
        for leaves in ["d", "e", "f"] {
            assert!(writer.has_nothing());
            assert_eq!(a.call(&format!("LOCK.RELEASE k {leaves}")), "0");
        }
        assert_eq!(writer.recv(), "1");
    });
}

fn each_call_has_its_own_limit(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for (owner, limit, reply) in
            [("a", 1, "1"), ("b", 1, "nil"), ("b", 2, "1"), ("c", 2, "nil"), ("c", 5, "1"), ("d", 3, "nil")]
        {
            let call = format!("LOCK.ACQUIRE k {owner} SHARED LIMIT {limit} PX 100000");
            assert_eq!(a.call(&call), reply, "{owner}, {limit}");
        }
        // Three owners hold the lock. A waiter with a higher limit waits behind one with a lower limit.
        let strict = waits(world, "d", "LIMIT 2");
        let mut lax = waits(world, "e", "LIMIT 9");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert!(strict.has_nothing() && lax.has_nothing());
        strict.close();
        assert_eq!(lax.recv(), "1");
    });
}

fn every_end_frees_a_permit(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED LIMIT 2 PX 100000"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED LIMIT 2 PX 30"), "1");
        let mut c = waits(world, "c", "LIMIT 2");
        assert_eq!(c.recv(), "1", "a lease has expired");
        assert!(a.call("LOCK.RELEASE k b").starts_with("NOTOWNER "), "the permit belongs to another owner");
        assert_eq!(holders(&mut a, "k"), 2);
        let mut leaves = world.client();
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(leaves.call("LOCK.ACQUIRE k d SHARED LIMIT 2 PX 100000 EPHEMERAL"), "1");
        let mut e = waits(world, "e", "LIMIT 2");
        leaves.close();
        assert_eq!(e.recv(), "1", "a connection has closed");
        let mut rest = ["f", "g", "h"].map(|owner| waits(world, owner, "LIMIT 2"));
        assert_eq!(a.call("LOCK.BREAK k"), "2");
        assert_eq!([rest[0].recv(), rest[1].recv()], ["1", "1"], "the lock is broken");
        assert!(rest[2].has_nothing());
        assert_eq!(a.call("DEL k"), "1");
        assert_eq!(rest[2].recv(), "1", "the key is deleted");
    });
}

/// The server sends no event for a single deleted field.
fn a_deleted_field_frees_a_permit(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for permits in [2, 8, 9, 12] {
            for owner in 0..permits {
                assert_eq!(a.call(&format!("LOCK.ACQUIRE k o{owner} SHARED LIMIT {permits} PX 100000")), "1");
            }
            let mut next = waits(world, "next", &format!("LIMIT {permits}"));
            let after = waits(world, "after", &format!("LIMIT {permits}"));
            assert_eq!(a.call("HDEL k #shared:o0"), "1");
            assert_eq!(next.recv(), "1", "of {permits}");
            assert!(after.has_nothing());
            after.close();
            until("there are no waiters", || a.info("lock", "lock_waiters") == "0");
            a.call("LOCK.BREAK k");
        }
        // One of the two readers upgrades.
        for owner in ["a", "b"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {owner} SHARED PX 100000")), "1");
        }
        let mut upgrades = world.waiting("LOCK.ACQUIRE k a BLOCK 0 PX 100000");
        assert_eq!(a.call("HDEL k #shared:b"), "1");
        assert_eq!(upgrades.recv(), "2");
    });
}

fn limit_combines_with_other_options(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let token = |reply: &Value| match fields(reply)["token"] {
            Value::Int(token) => *token,
            other => panic!("{other:?}"),
        };
        let first = token(&a.call_value("LOCK.ACQUIRE k a SHARED LIMIT 2 FENCE WATCHDOG MAX 60000 PX 300"));
        let second = token(&a.call_value("LOCK.ACQUIRE k * SHARED LIMIT 2 FENCE EPHEMERAL"));
        assert!(second > first);
        assert_eq!(a.call("LOCK.ACQUIRE k c SHARED LIMIT 2"), "nil");
        assert_eq!(a.call(&format!("LOCK.CHECK k TOKEN {second}")), "1");
        assert_eq!(a.call(&format!("LOCK.GUARD k OWNER a SET x {first}")), "OK");
        assert_eq!(prefix(&a.call(&format!("LOCK.GUARD k TOKEN {first} SET x y"))), "NOTOWNER");
        until("the lease is renewed", || a.info("lock", "lock_watchdog_renewals") != "0");
        assert_eq!(holders(&mut a, "k"), 2);
        assert_eq!(a.call("LOCK.ACQUIRE k d SHARED LIMIT 3 REPLICAS 1 WITHIN 10000"), "1");
        assert_eq!(prefix(&a.call("LOCK.ACQUIRE k e SHARED LIMIT 9 REPLICAS 7")), "NOREPLICAS");
        assert_eq!(holders(&mut a, "k"), 3);
    });
}

fn retries_count_once_and_cancels_release(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let acquire = "LOCK.ACQUIRE k a SHARED LIMIT 2 PX 100000 ID 1";
        assert_eq!([a.call(acquire), a.call(acquire)], ["1", "1"]);
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED LIMIT 2 PX 100000"), "1");
        assert_eq!(a.call(acquire), "1", "the retry gets the same grant");
        let mut c = waits(world, "c", "LIMIT 2 ID 2");
        assert_eq!(a.call("LOCK.CANCEL k c ID 2"), "1");
        assert_eq!(prefix(&c.recv()), "UNBLOCKED");
        let mut d = waits(world, "d", "LIMIT 2");
        assert_eq!(a.call("LOCK.CANCEL k a ID 1"), "1");
        assert_eq!(d.recv(), "1");
    });
}

fn a_permit_holder_can_upgrade(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for owner in ["a", "b"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {owner} SHARED LIMIT 2 PX 100000")), "1");
        }
        let mut upgrades = world.waiting("LOCK.ACQUIRE k a BLOCK 0 PX 100000");
        let mut next = waits(world, "c", "LIMIT 2");
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
        assert_eq!(upgrades.recv(), "2");
        assert!(next.has_nothing());
        assert_eq!(a.call("LOCK.RELEASE k a"), "1", "the hold is shared again");
        assert_eq!(next.recv(), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k d SHARED LIMIT 2"), "nil");
    });
}

/// `next` waits for one of two permits, and holds a lock that the permit holders may want.
fn deadlocks_consider_every_permit_holder(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for owner in ["a", "b"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {owner} SHARED LIMIT 2 PX 100000")), "1");
        }
        assert_eq!(a.call("LOCK.ACQUIRE m next PX 100000"), "1");
        let mut next = waits(world, "next", "LIMIT 2");
        let mut one = world.waiting("LOCK.ACQUIRE m a BLOCK 0 PX 100000");
        assert_eq!(
            prefix(&a.call("LOCK.ACQUIRE m b BLOCK 1000")),
            "DEADLOCK",
            "both permit holders would wait"
        );
        assert_eq!(a.call("LOCK.BLOCKERS a").matches("owner, ").count(), 3);
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
        assert_eq!(next.recv(), "1");
        assert_eq!(a.call("LOCK.RELEASE m next"), "0");
        assert_eq!(one.recv(), "1");
        // With a limit of one, a waiter waits for every holder.
        let strict = waits(world, "strict", "LIMIT 1");
        assert_eq!(a.call("LOCK.ACQUIRE n strict PX 100000"), "1");
        assert_eq!(prefix(&a.call("LOCK.ACQUIRE n a BLOCK 1000")), "DEADLOCK");
        strict.close();
    });
}

fn ten_thousand_permits_work(flavor: Flavor) {
    const PERMITS: usize = 10_000;
    let server = Server::with_module(flavor, &[]);
    let mut a = server.client();
    let acquire = |owner: usize| format!("LOCK.ACQUIRE k {owner} SHARED LIMIT {PERMITS} PX 100000");
    for owners in (0..PERMITS).collect::<Vec<_>>().chunks(500) {
        let calls: Vec<String> = owners.iter().map(|owner| acquire(*owner)).collect();
        a.send_at_once(&calls.iter().map(String::as_str).collect::<Vec<_>>());
        owners.iter().for_each(|_| assert_eq!(a.recv(), "1"));
    }
    assert_eq!(a.call(&acquire(PERMITS)), "nil");
    let mut next = server.waiting(&format!("{} BLOCK 0", acquire(PERMITS)));
    let mut after = server.waiting(&format!("{} BLOCK 0", acquire(PERMITS + 1)));
    assert_eq!(a.call("LOCK.RELEASE k 77"), "0");
    assert_eq!(next.recv(), "1");
    assert!(after.has_nothing());
    assert_eq!(a.call("LOCK.RELEASE k 5000"), "0");
    assert_eq!(after.recv(), "1");
    assert_eq!(a.number("LOCK.BREAK k"), i64::try_from(PERMITS).unwrap());
}

/// Many clients with their own limits make random calls, and disconnect before, during and after a call. Neither the
/// clients' replies nor the server's holders ever exceed the highest limit. The environment variable `RANDOM_CALLS` sets the
/// number of calls.
fn random_calls_never_exceed_the_limit(flavor: Flavor) {
    const CLIENTS: usize = 12;
    const MAX_LIMIT: usize = 4;
    let calls = std::env::var("RANDOM_CALLS").map_or(6_000, |calls| calls.parse().unwrap());
    let server = Server::with_module(flavor, &[]);
    let (held, granted, is_over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let worker = |number: usize| {
        let mut random = StdRng::seed_from_u64(u64::try_from(number).unwrap());
        let mut client = server.client();
        for call in 0..calls / CLIENTS {
            let mut pick = |of: usize| random.random_range(0..of);
            let (owner, limit) = (format!("o{number}"), 1 + pick(MAX_LIMIT));
            let block = ["", "BLOCK 5", "BLOCK 0"][pick(3)];
            let id = [String::new(), format!("ID {call}")][pick(2)].clone();
            let lease = if pick(4) == 0 { 1 + pick(20) } else { 100_000 };
            let acquire = |block: &str| {
                format!("LOCK.ACQUIRE k {owner} SHARED LIMIT {limit} EPHEMERAL PX {lease} {block} {id}")
            };
            client.send(&acquire(block));
            match pick(10) {
                // The outcome is unknown, so the client does not count it.
                0 => {
                    client.close();
                    client = server.client();
                    continue;
                }
                1 => {
                    client.send(&acquire(""));
                    let _ = client.recv();
                }
                _ => {}
            }
            let reply = client.recv();
            if reply == "nil" {
                continue;
            }
            assert!(["1", "2"].contains(&reply.as_str()), "{reply}");
            granted.fetch_add(1, Ordering::Relaxed);
            // A short lease may expire, and the permit may go to another owner.
            if lease == 100_000 {
                let now = 1 + held.fetch_add(1, Ordering::SeqCst);
                assert!(now <= MAX_LIMIT, "{now} holders");
                client.call("PING");
                held.fetch_sub(1, Ordering::SeqCst);
            }
            match pick(8) {
                0 => {
                    client.close();
                    client = server.client();
                }
                _ => {
                    client.call(&format!("LOCK.RELEASE k {owner} ALL"));
                }
            }
        }
    };
    let worker = &worker;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || worker(number))).collect();
        let observer = scope.spawn(|| {
            let mut client = server.client();
            let mut max_seen = 0;
            while !is_over.load(Ordering::Relaxed) {
                let now = holders(&mut client, "k");
                assert!(now <= MAX_LIMIT, "{now} holders");
                max_seen = max_seen.max(now);
            }
            max_seen
        });
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        let max_seen = observer.join().unwrap();
        ended.into_iter().for_each(|ended| ended.unwrap());
        assert!(max_seen > 1, "there was never more than one holder");
    });
    assert!(granted.into_inner() > calls / 10);
    let mut a = server.client();
    until("the lock is free", || a.call("LOCK.INFO k") == "nil");
    assert_eq!(a.info("lock", "lock_waiters"), "0");
    let mut server = server;
    server.assert_healthy();
}
