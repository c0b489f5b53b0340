// SPDX-License-Identifier: MIT

//! Options of calls with `SESSION`: `REPLICAS` with `QUEUE`, the hand-over with `FROM`, and `WATCHDOG MAX`. Numbers of rules,
//! such as R21, are those of `docs/sessions.md`.

use std::time::{Duration, Instant};

use super::replicas::until_online;
use super::session_faults::Delayed;
use crate::support::client::prefix;
use crate::support::session::Progress;
use crate::support::{until, with_sessions, Flavor, Session, World};

crate::on_every_server!(
    a_grant_waits_for_its_replicas,
    an_unacknowledged_grant_is_lost,
    a_grant_awaiting_replicas_can_be_cancelled,
    too_few_replicas_refuse_or_lose_the_wait,
    a_hold_is_handed_over,
    wrong_hand_overs_change_nothing,
    late_hand_overs_steal_nothing,
    the_maximum_age_loses_the_hold,
);

const TTL: u64 = 600_000;
const GRACE: u64 = 10_000;

/// Runs a scenario in which the replica is online. The scenario may suspend it.
fn with_replica(flavor: Flavor, scenario: impl FnOnce(&World)) {
    with_sessions(flavor, |world| {
        until_online(&mut world.client(), 1);
        scenario(world);
        world.replica.signal(libc::SIGCONT);
    });
}

fn a_grant_waits_for_its_replicas(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        for (keys, holds) in [("k", "1"), ("l m", "[1, 1]")] {
            world.replica.signal(libc::SIGSTOP);
            let n = session.queue(keys, "s", "REPLICAS 1 WITHIN 60000");
            // The locks are held, but the client does not know it yet.
            for key in keys.split(' ') {
                assert_eq!(a.call(&format!("LOCK.ACQUIRE {key} other")), "nil");
            }
            assert_eq!(session.acquire_again(n, "QUEUE 0 REPLICAS 1"), "0");
            for command in ["RENEW", "RELEASE"] {
                let call = session.command(command, n, "");
                assert_eq!(prefix(&session.pool.call(&call)), "NOTOWNER", "{command}");
            }
            assert_eq!(session.events(0), [""; 0]);
            world.replica.signal(libc::SIGCONT);
            assert_eq!(session.some_events(), [format!("granted {n} {holds}")]);
            let exist = world.replica.client().call(&format!("EXISTS {keys}"));
            assert_eq!(exist, keys.split(' ').count().to_string(), "the replica has the grant");
            assert_eq!(session.events(0), [""; 0]);
            assert_eq!(session.progress(n), Progress::Held);
            session.release(n);
        }
        // The lock becomes free later.
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        let n = session.queue("k", "s", "REPLICAS 1 WITHIN 60000 FENCE");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        let token = a.call("GET redisson_lock_token:{k}");
        assert_eq!(session.some_events(), [format!("granted {n} 1 {token}")]);
        assert_eq!(session.release(n), "0");
        assert_eq!(a.call("EXISTS k l m"), "0");
    });
}

fn an_unacknowledged_grant_is_lost(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        let pin = session.number("pin", "s");
        world.replica.signal(libc::SIGSTOP);
        for (keys, key) in [("k", "k"), ("l m", "m")] {
            let n = session.queue(keys, "s", "EPHEMERAL REPLICAS 1 WITHIN 300");
            let mut next = world.waiting(&format!("LOCK.ACQUIRE {key} next BLOCK 0"));
            assert_eq!(session.some_events(), [format!("lost {n} noreplicas")]);
            assert_eq!(next.recv(), "1");
            assert_eq!(prefix(&session.acquire_again(n, "QUEUE 0 REPLICAS 1")), "NOTOWNER");
            assert_eq!(next.call(&format!("LOCK.RELEASE {key} next")), "0");
        }
        until("all locks are free", || a.call("EXISTS k l m") == "0");
        assert_eq!(a.info("lock", "lock_replicas_missed"), "2");
        assert_eq!(session.cancel(pin), "0");
    });
}

fn a_grant_awaiting_replicas_can_be_cancelled(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        world.replica.signal(libc::SIGSTOP);
        for keys in ["k", "k l"] {
            let mut session = Session::open(world, TTL, GRACE);
            for end in ["cancel", "close"] {
                let n = session.queue(keys, "s", "REPLICAS 1 WITHIN 60000");
                let mut next = world.waiting("LOCK.ACQUIRE k next BLOCK 0");
                if end == "cancel" {
                    assert_eq!([session.cancel(n), session.cancel(n)], ["1", "1"]);
                    assert_eq!(session.events(0), [""; 0]);
                } else {
                    session.close();
                }
                assert_eq!(next.recv(), "1", "{end} {keys}");
                assert_eq!(next.call("LOCK.RELEASE k next"), "0");
                until("all locks are free", || a.call("EXISTS k l") == "0");
            }
        }
    });
}

fn too_few_replicas_refuse_or_lose_the_wait(flavor: Flavor) {
    with_replica(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        let n = session.number("k", "s");
        let call = session.command("ACQUIRE", n, "QUEUE 0 REPLICAS 2");
        assert_eq!(prefix(&session.pool.call(&call)), "NOREPLICAS");
        assert_eq!(a.call("EXISTS k"), "0");
        assert_eq!(session.acquire_again(n, "QUEUE 0"), "1", "an error is not remembered");
        // The replica leaves while the call waits for the lock.
        let lost = ["k", "k l"].map(|keys| session.queue(keys, "t", "REPLICAS 1 WITHIN 60000"));
        let last = session.queue("k", "u", "");
        assert_eq!(world.replica.client().call("REPLICAOF NO ONE"), "OK");
        until_online(&mut a, 0);
        assert_eq!(session.release(n), "0");
        let mut events = session.some_events();
        until("the last waiter has the lock", || {
            events.extend(session.events(0));
            events.len() == 3
        });
        let lost = lost.map(|n| format!("lost {n} noreplicas"));
        assert_eq!(events, [lost[0].clone(), lost[1].clone(), format!("granted {last} 1")]);
        assert_eq!(session.release(last), "0");
        world.replica.follow(&world.primary);
    });
}

/// Opens a session with a public name.
fn named(world: &World, name: &str) -> Session {
    Session::open_on([world.client(), world.client()], TTL, GRACE, &format!("NAME {name}"))
}

/// The command by which a session takes over the hold `from`, as number `n`.
fn hand_over(session: &Session, n: u64, from: (&str, u64)) -> String {
    session.command("RENEW", n, &format!("EPHEMERAL FROM {} {}", from.0, from.1))
}

/// R21
fn a_hold_is_handed_over(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let [mut giver, mut taker] = ["giver", "taker"].map(|name| named(world, name));
        let given = giver.acquire("k", "s", "EPHEMERAL").0;
        let kept = giver.acquire("k", "s", "EPHEMERAL").0;
        let waiter = world.waiting("LOCK.ACQUIRE k waiter BLOCK 0");
        taker.number("pin", "s");
        let n = taker.number("k", "s");
        assert_eq!(taker.renew(n, &format!("EPHEMERAL FROM giver {given}")), "2", "the owner's count");
        assert_eq!(giver.some_events(), [format!("lost {given} taken")]);
        assert_eq!(prefix(&giver.release(given)), "NOTOWNER");
        // A repeated call renews, and takes over nothing more.
        assert_eq!(taker.renew(n, &format!("EPHEMERAL FROM giver {given}")), "2");
        assert_eq!(giver.events(0), [""; 0]);
        assert_eq!([giver.renew(kept, ""), taker.acquire_again(n, "")], ["2", "2"]);
        // Each session ends with its own hold only.
        assert_eq!(giver.close(), "1");
        until("the giver's hold is released", || a.call("HGETALL k") == "[s, 1]");
        assert_eq!(taker.events(0), [""; 0]);
        assert_eq!(taker.safe_holds(), 1);
        assert_eq!(taker.close(), "1");
        let mut waiter = waiter;
        assert_eq!(waiter.recv(), "1");
        assert_eq!(waiter.call("LOCK.RELEASE k waiter"), "0");
    });
}

fn wrong_hand_overs_change_nothing(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let [mut giver, mut taker] = ["giver", "taker"].map(|name| named(world, name));
        let held = giver.acquire("k", "s", "").0;
        let released = giver.acquire("k", "s", "").0;
        assert_eq!(giver.release(released), "1");
        assert_eq!(a.call("LOCK.ACQUIRE l a"), "1");
        let waiting = giver.queue("l", "s", "");
        // A hold without a number is not handed over.
        assert_eq!(a.call("LOCK.ACQUIRE k s"), "2");
        for (key, owner, name, m) in [
            ("k", "s", "other", held),
            ("k", "s", "Giver", held),
            ("k", "s", "giver", released),
            ("k", "s", "giver", waiting),
            ("k", "s", "giver", 99),
            ("k", "s", "taker", held),
            ("k", "t", "giver", held),
            ("l", "s", "giver", held),
            ("l", "s", "giver", waiting),
            ("free", "s", "giver", held),
        ] {
            let n = taker.number(key, owner);
            let reply = taker.renew(n, &format!("FROM {name} {m}"));
            assert_eq!(prefix(&reply), "NOTOWNER", "{key} {owner} FROM {name} {m}");
        }
        // A secret id is no name.
        let n = taker.number("k", "s");
        assert_eq!(prefix(&taker.renew(n, &format!("FROM {} {held}", giver.id))), "NOTOWNER");
        assert_eq!([giver.events(0), taker.events(0)], [vec![""; 0], vec![""; 0]]);
        assert_eq!(giver.acquire_again(held, ""), "1");
        // A grant in flight belongs to a client that does not know of it.
        assert_eq!(a.call("LOCK.RELEASE l a"), "0");
        let n = taker.number("l", "s");
        assert_eq!(prefix(&taker.renew(n, &format!("FROM giver {waiting}"))), "NOTOWNER");
        assert_eq!(giver.some_events(), [format!("granted {waiting} 1")]);
        assert_eq!([giver.release(held), giver.release(waiting)], ["1", "0"]);
        assert_eq!(a.call("LOCK.RELEASE k s"), "0");
    });
}

/// R21. The calls arrive after the hold was taken back, or after their numbers have ended.
fn late_hand_overs_steal_nothing(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let [mut giver, mut taker] = ["giver", "taker"].map(|name| named(world, name));
        taker.number("pin", "s");
        let given = giver.acquire("k", "s", "").0;
        let [n, unused] = [(); 2].map(|()| taker.number("k", "s"));
        let mut late = Delayed::new(world);
        late.hold_back(&[
            hand_over(&taker, n, ("giver", given)),
            hand_over(&taker, unused, ("giver", given)),
            giver.command("RENEW", given, ""),
            giver.command("RELEASE", given, ""),
        ]);
        let call = hand_over(&taker, n, ("giver", given));
        assert_eq!(taker.pool.call(&call), "1");
        // The hold goes back with a new number.
        let back = giver.number("k", "s");
        assert_eq!(giver.renew(back, &format!("FROM taker {n}")), "1");
        assert_eq!(giver.events(0), [format!("lost {given} taken")]);
        let replies = late.deliver(4);
        assert!(replies[..2].iter().all(|reply| prefix(reply) == "NOTOWNER"), "{replies:?}");
        assert_eq!([prefix(&replies[2]), prefix(&replies[3])], ["LATE", "NOTOWNER"]);
        assert_eq!([giver.events(0), taker.events(0)], [vec![], vec![format!("lost {n} taken")]]);
        assert_eq!(giver.acquire_again(back, ""), "1");
        // A hand-over that arrives after its number was released or cancelled takes nothing.
        let [released, cancelled] = [(); 2].map(|()| taker.number("k", "s"));
        let mut late = Delayed::new(world);
        late.hold_back(&[released, cancelled].map(|n| hand_over(&taker, n, ("giver", back))));
        assert_eq!(prefix(&taker.release(released)), "NOTOWNER");
        assert_eq!(taker.cancel(cancelled), "0");
        assert!(late.deliver(2).iter().all(|reply| prefix(reply) == "NOTOWNER"));
        assert_eq!(giver.events(0), [""; 0]);
        assert_eq!(giver.release(back), "0");
    });
}

/// R9
fn the_maximum_age_loses_the_hold(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        for (by, keys, options) in [
            ("option", "k", "WATCHDOG MAX 1500 PX 2000"),
            ("option", "k l", "WATCHDOG MAX 1500 PX 2000 EPHEMERAL"),
            ("setting", "k", "WATCHDOG PX 2000"),
        ] {
            if by == "setting" {
                a.call("CONFIG SET lock.max-watchdog 1500");
            }
            let mut session = Session::open(world, TTL, 300);
            let acquired = Instant::now();
            let n = session.acquire(keys, "s", options).0;
            let end = a.number("PEXPIRETIME k");
            let mut next = world.waiting("LOCK.ACQUIRE k next BLOCK 0");
            assert_eq!(session.some_events(), [format!("lost {n} max")], "{by}");
            assert!(acquired.elapsed() >= Duration::from_millis(1_500), "{by}: {:?}", acquired.elapsed());
            assert_eq!(session.events(0), [""; 0]);
            assert_eq!(a.info("lock", "lock_watchdogs"), "0");
            // The lease was renewed before, and runs out now.
            assert!(a.number("PEXPIRETIME k") > end && next.has_nothing(), "{by}");
            assert_eq!(prefix(&session.renew(n, "")), "LATE");
            assert_eq!(prefix(&session.release(n)), "NOTOWNER");
            assert_eq!(next.recv(), "1", "{by}");
            assert_eq!(next.call("LOCK.RELEASE k next"), "0");
            until("all leases have run out", || a.call("EXISTS k l") == "0");
        }
    });
}
