// SPDX-License-Identifier: MIT

//! `SHARED LIMIT n`: a semaphore, with leases, tokens and the queue of any lock (1, 3, 4).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::Value;

use crate::support::client::{fields, prefix};
use crate::support::{in_world, until, Client, Flavor, Server, World};

crate::on_every_server!(
    as_many_as_the_limit_says,
    what_makes_no_sense_is_said,
    who_comes_first_is_served_first,
    each_limit_is_its_callers_own,
    a_permit_that_ends_otherwise_is_the_next_ones,
    a_field_that_is_deleted_makes_room,
    options_combine,
    a_retry_counts_once_and_a_cancel_gives_back,
    a_reader_may_become_the_only_one,
    deadlocks_are_those_of_all_who_could_make_room,
    ten_thousand_permits,
    no_call_and_no_broken_connection_makes_it_too_many,
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

fn as_many_as_the_limit_says(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for owner in ["a", "b", "c"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {owner} SHARED LIMIT 3")), "1");
        }
        let before = a.number("PEXPIRETIME k");
        assert_eq!(a.call("LOCK.ACQUIRE k d LIMIT 3 SHARED PX 900000 FENCE WATCHDOG ID x"), "nil");
        assert_eq!(a.number("PEXPIRETIME k"), before, "what is refused sets no lease");
        assert_eq!(a.call("LOCK.ACQUIRE k d shared limit 3 BLOCK 20"), "nil");
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED LIMIT 3"), "2");
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED LIMIT 1"), "3", "who holds it may have more");
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED LIMIT 3 ONCE"), "nil", "unless that counts, too");
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

fn what_makes_no_sense_is_said(flavor: Flavor) {
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

fn who_comes_first_is_served_first(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for owner in ["a", "b"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {owner} SHARED LIMIT 2 PX 100000")), "1");
        }
        let mut waiting = ["c", "d", "e"].map(|owner| waits(world, owner, "LIMIT 2"));
        // A reader without a limit, and a writer, have to wait behind them.
        let mut reader = waits(world, "f", "");
        let mut writer = world.waiting("LOCK.ACQUIRE k g BLOCK 0 PX 100000");
        assert_eq!(a.call("LOCK.ACQUIRE k h SHARED LIMIT 9"), "nil", "nobody can slip in");
        for (at, leaves) in ["b", "a", "c"].into_iter().enumerate() {
            assert_eq!(a.call(&format!("LOCK.RELEASE k {leaves}")), "0");
            assert_eq!(waiting[at].recv(), "1");
            assert!(waiting[at + 1..].iter().all(Client::has_nothing), "one for each that leaves");
        }
        assert_eq!(reader.recv(), "1", "nobody with a limit is before it any more");
        for leaves in ["d", "e", "f"] {
            assert!(writer.has_nothing());
            assert_eq!(a.call(&format!("LOCK.RELEASE k {leaves}")), "0");
        }
        assert_eq!(writer.recv(), "1");
    });
}

fn each_limit_is_its_callers_own(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for (owner, limit, reply) in
            [("a", 1, "1"), ("b", 1, "nil"), ("b", 2, "1"), ("c", 2, "nil"), ("c", 5, "1"), ("d", 3, "nil")]
        {
            let call = format!("LOCK.ACQUIRE k {owner} SHARED LIMIT {limit} PX 100000");
            assert_eq!(a.call(&call), reply, "{owner}, {limit}");
        }
        // Three hold it. Whoever is content with more waits behind who is content with less.
        let strict = waits(world, "d", "LIMIT 2");
        let mut lax = waits(world, "e", "LIMIT 9");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert!(strict.has_nothing() && lax.has_nothing());
        strict.close();
        assert_eq!(lax.recv(), "1");
    });
}

fn a_permit_that_ends_otherwise_is_the_next_ones(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED LIMIT 2 PX 100000"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED LIMIT 2 PX 30"), "1");
        let mut c = waits(world, "c", "LIMIT 2");
        assert_eq!(c.recv(), "1", "a lease is over");
        assert!(a.call("LOCK.RELEASE k b").starts_with("NOTOWNER "), "what it had is another's by now");
        assert_eq!(holders(&mut a, "k"), 2);
        let mut leaves = world.client();
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(leaves.call("LOCK.ACQUIRE k d SHARED LIMIT 2 PX 100000 EPHEMERAL"), "1");
        let mut e = waits(world, "e", "LIMIT 2");
        leaves.close();
        assert_eq!(e.recv(), "1", "a connection has closed");
        let mut rest = ["f", "g", "h"].map(|owner| waits(world, owner, "LIMIT 2"));
        assert_eq!(a.call("LOCK.BREAK k"), "2");
        assert_eq!([rest[0].recv(), rest[1].recv()], ["1", "1"], "it is broken");
        assert!(rest[2].has_nothing());
        assert_eq!(a.call("DEL k"), "1");
        assert_eq!(rest[2].recv(), "1", "the key is gone");
    });
}

/// Of that the server tells nobody.
fn a_field_that_is_deleted_makes_room(flavor: Flavor) {
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
            until("nobody waits", || a.info("lock", "lock_waiters") == "0");
            a.call("LOCK.BREAK k");
        }
        // One of two readers wants to write.
        for owner in ["a", "b"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {owner} SHARED PX 100000")), "1");
        }
        let mut upgrades = world.waiting("LOCK.ACQUIRE k a BLOCK 0 PX 100000");
        assert_eq!(a.call("HDEL k #shared:b"), "1");
        assert_eq!(upgrades.recv(), "2");
    });
}

fn options_combine(flavor: Flavor) {
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
        until("it is renewed", || a.info("lock", "lock_watchdog_renewals") != "0");
        assert_eq!(holders(&mut a, "k"), 2);
        assert_eq!(a.call("LOCK.ACQUIRE k d SHARED LIMIT 3 REPLICAS 1 WITHIN 10000"), "1");
        assert_eq!(prefix(&a.call("LOCK.ACQUIRE k e SHARED LIMIT 9 REPLICAS 7")), "NOREPLICAS");
        assert_eq!(holders(&mut a, "k"), 3);
    });
}

fn a_retry_counts_once_and_a_cancel_gives_back(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let acquire = "LOCK.ACQUIRE k a SHARED LIMIT 2 PX 100000 ID 1";
        assert_eq!([a.call(acquire), a.call(acquire)], ["1", "1"]);
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED LIMIT 2 PX 100000"), "1");
        assert_eq!(a.call(acquire), "1", "what was granted stays so");
        let mut c = waits(world, "c", "LIMIT 2 ID 2");
        assert_eq!(a.call("LOCK.CANCEL k c ID 2"), "1");
        assert_eq!(prefix(&c.recv()), "UNBLOCKED");
        let mut d = waits(world, "d", "LIMIT 2");
        assert_eq!(a.call("LOCK.CANCEL k a ID 1"), "1");
        assert_eq!(d.recv(), "1");
    });
}

fn a_reader_may_become_the_only_one(flavor: Flavor) {
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
        assert_eq!(a.call("LOCK.RELEASE k a"), "1", "it is shared again");
        assert_eq!(next.recv(), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k d SHARED LIMIT 2"), "nil");
    });
}

/// `next` waits for one of two permits, and holds what those who have them may want.
fn deadlocks_are_those_of_all_who_could_make_room(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for owner in ["a", "b"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE k {owner} SHARED LIMIT 2 PX 100000")), "1");
        }
        assert_eq!(a.call("LOCK.ACQUIRE m next PX 100000"), "1");
        let mut next = waits(world, "next", "LIMIT 2");
        let mut one = world.waiting("LOCK.ACQUIRE m a BLOCK 0 PX 100000");
        assert_eq!(prefix(&a.call("LOCK.ACQUIRE m b BLOCK 1000")), "DEADLOCK", "both of them would wait");
        assert_eq!(a.call("LOCK.BLOCKERS a").matches("owner, ").count(), 3);
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
        assert_eq!(next.recv(), "1");
        assert_eq!(a.call("LOCK.RELEASE m next"), "0");
        assert_eq!(one.recv(), "1");
        // With a limit of one, everybody who holds it is waited for.
        let strict = waits(world, "strict", "LIMIT 1");
        assert_eq!(a.call("LOCK.ACQUIRE n strict PX 100000"), "1");
        assert_eq!(prefix(&a.call("LOCK.ACQUIRE n a BLOCK 1000")), "DEADLOCK");
        strict.close();
    });
}

fn ten_thousand_permits(flavor: Flavor) {
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

/// Many clients with limits of their own call at random, and break off their connections before, within and after a call. Those
/// who were told that they have a permit are never more than the greatest limit, and nor are those whom the server shows.
/// `RANDOM_CALLS` in the environment says how many calls they make.
fn no_call_and_no_broken_connection_makes_it_too_many(flavor: Flavor) {
    const CLIENTS: usize = 12;
    const MOST: usize = 4;
    let calls = std::env::var("RANDOM_CALLS").map_or(6_000, |calls| calls.parse().unwrap());
    let server = Server::with_module(flavor, &[]);
    let (held, granted, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let worker = |number: usize| {
        let mut random = StdRng::seed_from_u64(u64::try_from(number).unwrap());
        let mut client = server.client();
        for call in 0..calls / CLIENTS {
            let mut pick = |of: usize| random.random_range(0..of);
            let (owner, limit) = (format!("o{number}"), 1 + pick(MOST));
            let block = ["", "BLOCK 5", "BLOCK 0"][pick(3)];
            let id = [String::new(), format!("ID {call}")][pick(2)].clone();
            let lease = if pick(4) == 0 { 1 + pick(20) } else { 100_000 };
            let acquire = |block: &str| {
                format!("LOCK.ACQUIRE k {owner} SHARED LIMIT {limit} EPHEMERAL PX {lease} {block} {id}")
            };
            client.send(&acquire(block));
            match pick(10) {
                // What has become of it is not known: nobody counts on it.
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
            // A short lease may be over, and others be granted it.
            if lease == 100_000 {
                let now = 1 + held.fetch_add(1, Ordering::SeqCst);
                assert!(now <= MOST, "{now} hold it");
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
            let mut most = 0;
            while !over.load(Ordering::Relaxed) {
                let now = holders(&mut client, "k");
                assert!(now <= MOST, "{now} hold it");
                most = most.max(now);
            }
            most
        });
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        over.store(true, Ordering::Relaxed);
        let most = observer.join().unwrap();
        ended.into_iter().for_each(|ended| ended.unwrap());
        assert!(most > 1, "there was never more than one");
    });
    assert!(granted.into_inner() > calls / 10);
    let mut a = server.client();
    until("nobody holds it any more", || a.call("LOCK.INFO k") == "nil");
    assert_eq!(a.info("lock", "lock_waiters"), "0");
    let mut server = server;
    server.assert_healthy();
}
