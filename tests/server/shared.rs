// SPDX-License-Identifier: MIT

//! Shared holds: many owners at once, each with its own count and lease, in one queue with exclusive waiters.

use crate::support::{in_world, until, Client, Flavor, World};

crate::on_every_server!(
    each_reader_has_its_own_hold,
    an_exclusive_owner_excludes_all_others,
    readers_do_not_overtake_a_writer,
    readers_before_the_next_writer_are_granted_together,
    a_departed_writer_lets_readers_in,
    a_writer_can_downgrade,
    a_reader_can_upgrade,
    an_upgrade_waits_ahead_of_the_queue,
    an_expired_lease_stops_counting,
    the_next_write_removes_expired_fields,
    break_ends_every_hold,
    each_release_ends_one_hold,
    redisson_respects_shared_holds,
    the_hash_is_as_documented,
    shared_combines_with_other_options,
    a_thousand_readers_come_and_go,
);

/// Redisson's acquire: nil if the lock is granted, otherwise the remaining lease.
const REDISSON: &str = "if redis.call('exists',KEYS[1])==0 or redis.call('hexists',KEYS[1],ARGV[2])==1 then \
    redis.call('hincrby',KEYS[1],ARGV[2],1) redis.call('pexpire',KEYS[1],ARGV[1]) return nil end \
    return redis.call('pttl',KEYS[1])";

fn fields(client: &mut Client, key: &str) -> Vec<String> {
    let text = client.call(&format!("HKEYS {key}"));
    let mut fields: Vec<String> = text.trim_matches(['[', ']']).split(", ").map(str::to_owned).collect();
    fields.sort();
    fields
}

fn assert_ttl(client: &mut Client, key: &str, expected: i64) {
    let ttl = client.number(&format!("PTTL {key}"));
    assert!((expected - 5_000..=expected).contains(&ttl), "{ttl} ms are left of {expected}");
}

/// A waiter in this mode, with a lease that outlives the test.
fn waits(world: &World, key: &str, owner: &str, mode: &str) -> Client {
    world.waiting(&format!("LOCK.ACQUIRE {key} {owner} BLOCK 0 PX 100000 {mode}"))
}

fn each_reader_has_its_own_hold(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED PX 50000"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k b PX 90000 shared"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED PX 60000"), "2");
        assert_ttl(&mut a, "k", 90_000);
        let info = a.call("LOCK.INFO k");
        assert!(info.starts_with("[mode, shared, ttl, "), "{info}");
        let ttl = |start: &str| -> i64 {
            let rest = info.split(start).nth(1).unwrap_or_else(|| panic!("no {start} in {info}"));
            rest.split([',', ']']).next().unwrap().parse().unwrap()
        };
        assert!((55_000..=60_000).contains(&ttl("[owner, a, mode, shared, holds, 2, ttl, ")), "{info}");
        assert!((85_000..=90_000).contains(&ttl("[owner, b, mode, shared, holds, 1, ttl, ")), "{info}");
        // The key has the longest lease, even after that lease was shortened.
        assert_eq!(a.call("LOCK.RENEW k b PX 40000"), "1");
        assert_ttl(&mut a, "k", 60_000);
        assert_eq!(a.call("LOCK.RELEASE k a PX 70000"), "1");
        assert_ttl(&mut a, "k", 70_000);
        assert_eq!(a.call("LOCK.RELEASE k a SHARED"), "0");
        assert_ttl(&mut a, "k", 40_000);
        assert!(a.call("LOCK.RELEASE k a").starts_with("NOTOWNER "));
        assert_eq!(a.call("LOCK.RELEASE k b ALL"), "0");
        assert_eq!(a.call("EXISTS k"), "0");
    });
}

fn an_exclusive_owner_excludes_all_others(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED"), "nil");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "nil");
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "nil");
        assert!(a.call("LOCK.RELEASE k c").starts_with("NOTOWNER "));
        assert!(a.call("LOCK.RENEW k c").starts_with("NOTOWNER "));
    });
}

fn readers_do_not_overtake_a_writer(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k r1 SHARED");
        let mut w = waits(world, "k", "w", "");
        assert_eq!(a.call("LOCK.ACQUIRE k r2 SHARED"), "nil");
        let mut r2 = waits(world, "k", "r2", "SHARED");
        // A reader can re-enter. Otherwise it would wait for itself.
        assert_eq!(a.call("LOCK.ACQUIRE k r1 SHARED"), "2");
        let line = a.call("LOCK.WAITERS k");
        assert!(line.starts_with("[[owner, w, mode, exclusive, waited, "), "{line}");
        assert!(line.contains("[owner, r2, mode, shared, "), "{line}");
        assert_eq!(a.call("LOCK.RELEASE k r1 ALL"), "0");
        assert_eq!(w.recv(), "1");
        assert!(r2.has_nothing());
        assert_eq!(a.call("LOCK.RELEASE k w"), "0");
        assert_eq!(r2.recv(), "1");
    });
}

fn readers_before_the_next_writer_are_granted_together(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let mut first: Vec<Client> =
            ["r1", "r2", "r3"].map(|owner| waits(world, "k", owner, "SHARED")).into();
        let mut w = waits(world, "k", "w", "");
        let mut last: Vec<Client> = ["r4", "r5"].map(|owner| waits(world, "k", owner, "SHARED")).into();
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(first.iter_mut().map(Client::recv).collect::<Vec<_>>(), ["1", "1", "1"]);
        for owner in ["r2", "r1"] {
            assert_eq!(a.call(&format!("LOCK.RELEASE k {owner}")), "0");
        }
        assert!(w.has_nothing() && last.iter().all(Client::has_nothing));
        assert_eq!(a.call("LOCK.RELEASE k r3"), "0");
        assert_eq!(w.recv(), "1");
        assert_eq!(a.call("HGETALL k"), "[w, 1]");
        assert_eq!(a.call("LOCK.BREAK k"), "1");
        assert_eq!(last.iter_mut().map(Client::recv).collect::<Vec<_>>(), ["1", "1"]);
    });
}

fn a_departed_writer_lets_readers_in(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a SHARED PX 100000");
        // The wait times out.
        let mut w = world.waiting("LOCK.ACQUIRE k w BLOCK 100");
        let mut r = waits(world, "k", "r", "SHARED");
        assert_eq!([w.recv(), r.recv()], ["nil", "1"]);
        // The waiter disconnects.
        let w = waits(world, "k", "w", "");
        let mut r = waits(world, "k", "r2", "SHARED");
        w.close();
        assert_eq!(r.recv(), "1");
        // CLIENT UNBLOCK ends the wait.
        if flavor.may_unblock() {
            let mut w = waits(world, "k", "w", "");
            let mut r = waits(world, "k", "r3", "SHARED");
            assert_eq!(a.call(&format!("CLIENT UNBLOCK {}", w.id)), "1");
            assert_eq!([w.recv(), r.recv()], ["nil", "1"]);
        }
        // One of two writers leaves; the other still blocks.
        let mut first = world.waiting("LOCK.ACQUIRE k w1 BLOCK 50");
        let second = waits(world, "k", "w2", "");
        let mut r = waits(world, "k", "r4", "SHARED");
        assert_eq!(first.recv(), "nil");
        assert_eq!(a.call("LOCK.ACQUIRE k r5 SHARED"), "nil");
        assert!(r.has_nothing());
        second.close();
        assert_eq!(r.recv(), "1");
    });
}

fn a_writer_can_downgrade(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 50000");
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED PX 80000"), "2");
        let info = a.call("LOCK.INFO k");
        assert!(info.starts_with("[mode, exclusive, "), "{info}");
        assert!(info.contains("[owner, a, mode, exclusive, holds, 1, "), "{info}");
        assert!(info.contains("[owner, a, mode, shared, holds, 1, "), "{info}");
        let mut b = waits(world, "k", "b", "SHARED");
        let mut w = waits(world, "k", "w", "");
        // A release ends the exclusive hold before the shared one.
        assert_eq!(a.call("LOCK.RELEASE k a"), "1");
        assert_eq!(b.recv(), "1");
        assert_ttl(&mut a, "k", 100_000);
        assert_eq!(fields(&mut a, "k"), ["#shared:a", "#shared:b"]);
        assert!(w.has_nothing());
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
        assert_eq!(w.recv(), "1");
    });
}

fn a_reader_can_upgrade(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a SHARED");
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "2");
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED"), "nil");
        assert_eq!(a.call("LOCK.RELEASE k a SHARED"), "1");
        assert_eq!(a.call("HGETALL k"), "[a, 1]");
        assert!(a.call("LOCK.RELEASE k a SHARED").starts_with("NOTOWNER "));
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        // With another reader, the upgrade has to wait.
        a.call("LOCK.ACQUIRE k a SHARED");
        a.call("LOCK.ACQUIRE k b SHARED");
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "nil");
        let mut up = waits(world, "k", "a", "");
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
        assert_eq!(up.recv(), "2");
        assert_eq!(a.call("LOCK.RELEASE k a ALL"), "0");
        assert_eq!(a.call("EXISTS k"), "0");
    });
}

fn an_upgrade_waits_ahead_of_the_queue(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a SHARED PX 100000");
        a.call("LOCK.ACQUIRE k b SHARED PX 100000");
        let mut w = waits(world, "k", "w", "");
        let mut up = waits(world, "k", "a", "");
        let line = a.call("LOCK.WAITERS k");
        assert!(line.starts_with("[[owner, a, mode, exclusive, "), "{line}");
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
        assert_eq!(up.recv(), "2");
        assert_eq!(a.call("LOCK.RELEASE k a ALL"), "0");
        assert_eq!(w.recv(), "1");
        a.call("LOCK.RELEASE k w");
        // An owner that has lost its hold waits in the queue like any other.
        a.call("LOCK.ACQUIRE k a SHARED PX 300");
        a.call("LOCK.ACQUIRE k b SHARED PX 100000");
        let mut w = waits(world, "k", "w", "");
        let mut up = waits(world, "k", "a", "");
        until("the reader's lease has expired", || a.call("LOCK.WAITERS k").starts_with("[[owner, w, "));
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
        assert_eq!(w.recv(), "1");
        assert!(up.has_nothing());
        a.call("LOCK.RELEASE k w");
        assert_eq!(up.recv(), "1");
    });
}

fn an_expired_lease_stops_counting(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k gone SHARED PX 200");
        a.call("LOCK.ACQUIRE k a SHARED PX 100000");
        // No client touches the key in between.
        let mut up = waits(world, "k", "a", "");
        assert_eq!(up.recv(), "2");
        assert_eq!(fields(&mut a, "k"), ["#shared:a", "a"]);
        assert!(a.call("LOCK.RELEASE k gone").starts_with("NOTOWNER "));
    });
}

fn the_next_write_removes_expired_fields(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k gone SHARED PX 30");
        a.call("LOCK.ACQUIRE k a SHARED PX 100000");
        until("the lease has expired", || !a.call("LOCK.INFO k").contains("gone"));
        assert_eq!(fields(&mut a, "k"), ["#shared:a", "#shared:gone"]);
        assert!(a.call("LOCK.RENEW k gone").starts_with("NOTOWNER "));
        assert_eq!(a.call("LOCK.ACQUIRE k b SHARED"), "1");
        assert_eq!(fields(&mut a, "k"), ["#shared:a", "#shared:b"]);
        // A returning owner starts a new hold.
        assert_eq!(a.call("LOCK.ACQUIRE k gone SHARED"), "1");
    });
}

fn break_ends_every_hold(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for owner in ["a", "b", "c", "a"] {
            a.call(&format!("LOCK.ACQUIRE k {owner} SHARED"));
        }
        let mut w = waits(world, "k", "w", "");
        assert_eq!(a.call("LOCK.BREAK k"), "3");
        assert_eq!(w.recv(), "1");
        assert_eq!(a.call("LOCK.BREAK k"), "1");
        // An owner with both kinds of hold counts once.
        a.call("LOCK.ACQUIRE k a");
        a.call("LOCK.ACQUIRE k a SHARED");
        assert_eq!(a.call("LOCK.BREAK k"), "1");
    });
}

fn each_release_ends_one_hold(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for mode in ["", "SHARED", "", "SHARED"] {
            a.call(&format!("LOCK.ACQUIRE k a {mode}"));
        }
        assert_eq!(a.call("LOCK.RENEW k a"), "4");
        assert_eq!(a.call("LOCK.RELEASE k a SHARED"), "3");
        assert_eq!(a.call("LOCK.RELEASE k a"), "2");
        assert_eq!(a.call("HGET k a"), "1");
        assert_eq!(a.call("LOCK.RELEASE k a"), "1");
        assert_eq!(fields(&mut a, "k"), ["#shared:a"]);
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        for wrong in ["SHARED ALL", "ALL SHARED"] {
            let error = "ERR only one of SHARED and ALL is allowed in 'lock.release' command";
            assert_eq!(a.call(&format!("LOCK.RELEASE k a {wrong}")), error);
        }
    });
}

fn redisson_respects_shared_holds(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut try_acquire = |owner: &str| {
            a.call_args(&[b"EVAL", REDISSON.as_bytes(), b"1", b"k", b"30000", owner.as_bytes()])
        };
        let mut b = world.client();
        b.call("LOCK.ACQUIRE k uuid:1 SHARED PX 100000");
        // A shared hold of the same owner does not count as an exclusive hold either.
        for owner in ["uuid:1", "uuid:2"] {
            let ttl: i64 = try_acquire(owner).parse().expect("refused with the remaining lease");
            assert!((90_000..=100_000).contains(&ttl), "{ttl}");
        }
        assert_eq!(b.call("LOCK.RELEASE k uuid:1"), "0");
        assert_eq!(try_acquire("uuid:2"), "nil");
        assert_eq!(b.call("LOCK.ACQUIRE k uuid:1 SHARED"), "nil");
    });
}

fn the_hash_is_as_documented(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a:1 SHARED PX 100000");
        let end = a.number("PEXPIRETIME k");
        assert_eq!(a.call("HGETALL k"), format!("[#shared:a:1, 1:{end}]"));
        a.call("LOCK.ACQUIRE k a:1 SHARED FENCE PX 100000");
        let (end, token) = (a.number("PEXPIRETIME k"), a.call("GET redisson_lock_token:{k}"));
        assert_eq!(a.call("HGETALL k"), format!("[#shared:a:1, 2:{end}:{token}]"));
        // With an exclusive hold, the token is in the exclusive lock's field.
        a.call("LOCK.ACQUIRE k a:1 FENCE PX 100000");
        assert_eq!(fields(&mut a, "k"), ["#fence", "#shared:a:1", "a:1"]);
        assert_eq!(a.call("HGET k #fence"), a.call("GET redisson_lock_token:{k}"));
        a.call("LOCK.RELEASE k a:1");
        let (end, token) = (a.number("PEXPIRETIME k"), a.call("GET redisson_lock_token:{k}"));
        assert_eq!(a.call("HGETALL k"), format!("[#shared:a:1, 2:{end}:{token}]"));
    });
}

/// A hold that is shared, fenced, renewed and ephemeral, has a generated owner, and is granted after a wait.
fn shared_combines_with_other_options(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let all = "LOCK.ACQUIRE k * SHARED FENCE WATCHDOG EPHEMERAL BLOCK 0 PX 300 ID one";
        let mut b = world.waiting(all);
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        let reply = b.recv();
        assert!(reply.starts_with("[owner, ") && reply.contains(", holds, 1, token, "), "{reply}");
        assert_eq!(b.call(all), reply);
        let owner = reply.split(", ").nth(1).unwrap().to_owned();
        let end = a.number("PEXPIRETIME k");
        until("its lease is renewed", || a.number("PEXPIRETIME k") > end);
        assert_eq!(a.call(&format!("LOCK.ACQUIRE k {owner} SHARED")), "2");
        b.close();
        until("all its holds are released", || a.call("EXISTS k") == "0");
    });
}

fn a_thousand_readers_come_and_go(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for reader in 0..1000 {
            a.send(&format!("LOCK.ACQUIRE k r{reader} SHARED PX {}", 100_000 + reader));
        }
        for _ in 0..1000 {
            assert_eq!(a.recv(), "1");
        }
        let mut w = waits(world, "k", "w", "");
        assert_eq!(a.call("HLEN k"), "1000");
        for reader in 0..1000 {
            a.send(&format!("LOCK.RELEASE k r{reader}"));
        }
        for _ in 0..1000 {
            assert_eq!(a.recv(), "0");
        }
        assert_eq!(w.recv(), "1");
        assert_eq!(a.call("HGETALL k"), "[w, 1]");
    });
}
