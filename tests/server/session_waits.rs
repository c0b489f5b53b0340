// SPDX-License-Identifier: MIT

//! Waits of sessions (`QUEUE`): their order, their time-outs, and grants that their client does not acknowledge. Numbers of
//! rules, such as R15, are those of `tests/protocol/README.md`.

use crate::support::client::prefix;
use crate::support::session::Progress;
use crate::support::{lua, until, with_sessions, Client, Flavor, Session};

crate::on_every_server!(
    all_kinds_of_waits_share_one_queue,
    the_grant_has_lease_and_binding,
    a_free_lock_is_granted_at_once,
    options_of_the_hold_apply_to_waits,
    waits_time_out,
    a_timed_out_wait_is_never_granted,
    waits_of_one_owner_are_granted_together,
    queued_in_multi,
    waits_are_limited,
    deadlocks_are_found,
    a_grant_in_flight_ends_with_its_confirmation,
    a_suspect_session_keeps_its_places,
    a_suspect_wait_is_served_as_if_freed,
    a_suspect_session_can_cancel_its_waits,
    grants_of_a_polling_client_are_never_overdue,
    one_reply_carries_many_grants,
);

const TTL: u64 = 600_000;
const GRACE: u64 = 10_000;

fn eval(client: &mut Client, script: &str, words: &[&str]) -> String {
    let mut call: Vec<&[u8]> = vec![b"EVAL", script.as_bytes()];
    call.extend(words.iter().map(|word| word.as_bytes()));
    client.call_args(&call)
}

fn all_kinds_of_waits_share_one_queue(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut external = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        // Redisson's scripts acquire and release.
        assert_eq!(eval(&mut external, lua::ACQUIRE, &["1", "k", "600000", "redisson"]), "nil");
        let mut first = world.waiting("LOCK.ACQUIRE k first BLOCK 0");
        let second = session.queue("k", "second", "");
        let third = session.queue("k", "third", "");
        let mut fourth = world.waiting("LOCK.ACQUIRE k fourth BLOCK 0");
        let fifth = session.queue("k", "fifth", "");
        assert_eq!(external.call("LOCK.WAITERS k").matches("owner").count(), 5);
        let released = eval(&mut external, lua::RELEASE, &["2", "k", "channel", "600000", "redisson"]);
        assert_eq!(released, "1");
        assert_eq!(first.recv(), "1");
        assert_eq!(session.events(0), [""; 0]);
        assert_eq!(first.call("LOCK.RELEASE k first"), "0");
        assert_eq!(session.some_events(), [format!("granted {second} 1")]);
        assert_eq!(session.release(second), "0");
        assert_eq!(session.some_events(), [format!("granted {third} 1")]);
        assert_eq!(session.cancel(third), "1");
        assert_eq!(fourth.recv(), "1");
        assert_eq!(external.call("DEL k"), "1");
        assert_eq!(session.some_events(), [format!("granted {fifth} 1")]);
        assert_eq!(session.release(fifth), "0");
    });
}

fn the_grant_has_lease_and_binding(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        a.call("LOCK.ACQUIRE k a");
        session.queue("k", "s", "WATCHDOG PX 300000 EPHEMERAL");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        // The hold is complete before its event is acknowledged.
        assert!(a.number("PTTL k") > 200_000, "an event needs no second call");
        session.some_events();
        assert_eq!(session.safe_holds(), 1);
        assert_eq!(session.events(0), [""; 0]);
        assert!(a.number("PTTL k") > 200_000);
        assert_eq!(a.info("lock", "lock_watchdogs"), "1");
        let Some(until) = session.safe_until(1) else { panic!("the hold is not safe") };
        assert!(until > std::time::Instant::now());
        assert_eq!(session.close(), "1");
        assert_eq!(a.call("EXISTS k"), "0");
    });
}

fn a_free_lock_is_granted_at_once(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut session = Session::open(world, TTL, GRACE);
        let (n, reply) = session.acquire("k", "s", "QUEUE 0");
        assert_eq!((reply.as_str(), session.progress(n)), ("1", Progress::Held));
        let (m, reply) = session.acquire("k", "s", "QUEUE 0");
        assert_eq!(reply, "2", "a re-entry");
        assert_eq!(session.events(0), [""; 0], "the reply is the grant");
        assert_eq!([session.release(m), session.release(n)], ["1", "0"]);
    });
}

fn options_of_the_hold_apply_to_waits(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        a.call("LOCK.ACQUIRE k a");
        let readers = ["r1", "r2"].map(|owner| session.queue("k", owner, "SHARED FENCE"));
        let writer = session.queue("k", "w", "");
        a.call("LOCK.RELEASE k a");
        let events = session.some_events();
        assert_eq!(events.len(), 2, "{events:?}");
        for (event, n) in events.iter().zip(readers) {
            let token = event.strip_prefix(&format!("granted {n} 1 ")).expect("no token");
            assert!(token.parse::<u64>().is_ok(), "{event}");
        }
        assert_eq!(readers.map(|n| session.release(n)), ["0", "0"]);
        assert_eq!(session.some_events(), [format!("granted {writer} 1")]);
        assert_eq!(session.release(writer), "0");
        // LIMIT and ONCE.
        a.call("LOCK.ACQUIRE l a SHARED LIMIT 1");
        let n = session.queue("l", "s", "SHARED LIMIT 1");
        a.call("LOCK.RELEASE l a");
        assert_eq!(session.some_events(), [format!("granted {n} 1")]);
        assert_eq!(session.acquire("l", "s", "SHARED LIMIT 1 ONCE").1, "nil");
        assert_eq!(session.release(n), "0");
    });
}

fn waits_time_out(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, TTL);
        a.call("LOCK.ACQUIRE k a");
        session.queue("k", "patient", "");
        let (n, reply) = session.acquire("k", "s", "QUEUE 50");
        assert_eq!(reply, "0");
        session.send_events(TTL);
        assert_eq!(session.recv_events(), Ok(vec![format!("lost {n} timeout")]));
        assert_eq!(a.call("LOCK.WAITERS k").matches("owner").count(), 1);
        // The number is below `done` now: the client knows the answer.
        assert_eq!(session.cancel(n), "0");
        assert_eq!(prefix(&session.acquire_again(n, "QUEUE 50")), "LATE");
        session.close();
        assert_eq!(a.number_of_waiters(), 0);
        a.call("LOCK.RELEASE k a");
    });
}

/// A release and the end of a wait in one iteration of the event loop: exactly one of them happens.
fn a_timed_out_wait_is_never_granted(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, TTL);
        for round in 0..20 {
            assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
            let (n, reply) = session.acquire("k", "s", "QUEUE 5");
            assert_eq!(reply, "0");
            // Some rounds release before the end of the time, and some after it.
            a.send_at_once(&[&format!("DEBUG SLEEP 0.00{}", round % 8), "LOCK.RELEASE k a"]);
            assert_eq!([a.recv(), a.recv()], ["OK", "0"]);
            let events = session.some_events();
            if events == [format!("lost {n} timeout")] {
                assert_eq!(a.call("EXISTS k"), "0", "round {round}");
            } else {
                assert_eq!(events, [format!("granted {n} 1")], "round {round}");
                assert_eq!(session.release(n), "0");
            }
        }
    });
}

fn waits_of_one_owner_are_granted_together(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        a.call("LOCK.ACQUIRE k a");
        let first = session.queue("k", "s", "");
        let second = session.queue("k", "s", "");
        let other = session.queue("k", "t", "");
        a.call("LOCK.RELEASE k a");
        let events = session.some_events();
        assert_eq!(events, [format!("granted {first} 1"), format!("granted {second} 2")]);
        assert_eq!(session.release(first), "1");
        assert_eq!(session.events(0), [""; 0]);
        assert_eq!(session.release(second), "0");
        assert_eq!(session.some_events(), [format!("granted {other} 1")]);
        assert_eq!(session.release(other), "0");
    });
}

fn queued_in_multi(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        a.call("LOCK.ACQUIRE k a");
        let n = session.number("k", "s");
        let acquire = session.command("ACQUIRE", n, "QUEUE 0");
        session.pool.send_at_once(&["MULTI", &acquire, "LOCK.RELEASE k a", "EXEC"]);
        let replies = [(); 4].map(|()| session.pool.recv());
        assert_eq!(replies, ["OK", "QUEUED", "QUEUED", "[0, 0]"]);
        assert_eq!(session.some_events(), [format!("granted {n} 1")]);
        let m = session.number("k", "t");
        let [acquire, cancel] = ["ACQUIRE", "CANCEL"].map(|command| session.command(command, m, ""));
        session.pool.send_at_once(&["MULTI", &format!("{acquire} QUEUE 0"), &cancel, "EXEC"]);
        let replies = [(); 4].map(|()| session.pool.recv());
        assert_eq!(replies, ["OK", "QUEUED", "QUEUED", "[0, 1]"]);
        assert_eq!(session.release(n), "0");
        assert_eq!(session.events(0), [""; 0]);
    });
}

fn waits_are_limited(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        a.call("CONFIG SET lock.max-waiters 1");
        a.call("LOCK.ACQUIRE k a");
        let n = session.queue("k", "s", "");
        let m = session.number("k", "t");
        let acquire = session.command("ACQUIRE", m, "QUEUE 0");
        let reply = session.pool.call(&acquire);
        assert!(reply.contains("too many waiters"), "{reply}");
        assert_eq!(session.acquire_again(n, "QUEUE 0"), "0", "a repeated call is no new wait");
        // An error is not remembered.
        a.call("CONFIG SET lock.max-waiters 0");
        assert_eq!(session.acquire_again(m, "QUEUE 0"), "0");
        session.close();
        a.call("LOCK.RELEASE k a");
    });
}

fn deadlocks_are_found(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        a.call("CONFIG SET lock.deadlock-detection yes");
        let mut one = Session::open(world, TTL, GRACE);
        let mut two = Session::open(world, TTL, GRACE);
        let first = one.acquire("k", "one", "").0;
        let second = two.acquire("l", "two", "").0;
        one.queue("l", "one", "");
        let n = two.number("k", "two");
        let acquire = two.command("ACQUIRE", n, "QUEUE 0");
        let reply = two.pool.call(&acquire);
        assert_eq!(prefix(&reply), "DEADLOCK");
        assert!(!reply.contains(&one.id) && !reply.contains(&two.id), "{reply}");
        assert_eq!(a.number_of_waiters(), 1);
        // The refused acquire is not remembered.
        assert_eq!(one.release(first), "0");
        assert_eq!(two.acquire_again(n, "QUEUE 0"), "1");
        assert_eq!(two.release(second), "0");
        assert_eq!(one.some_events().len(), 1);
    });
}

/// R1: a RENEW, RELEASE or CANCEL of the number acknowledges its grant.
fn a_grant_in_flight_ends_with_its_confirmation(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        for confirm in ["acknowledge", "renew", "release", "cancel"] {
            a.call("LOCK.ACQUIRE k a");
            let n = session.queue("k", "s", "");
            a.call("LOCK.RELEASE k a");
            assert_eq!(a.info("lock", "lock_table_grants_in_flight"), "1", "{confirm}");
            let done = match confirm {
                "acknowledge" => session.some_events().len() == 1 && session.events(0).is_empty(),
                "renew" => session.renew(n, "") == "1",
                "release" => session.release(n) == "0",
                _ => session.cancel(n) == "1",
            };
            assert!(done, "{confirm}");
            assert_eq!(a.info("lock", "lock_table_grants_in_flight"), "0", "{confirm}");
            assert_eq!(session.events(0), [""; 0], "{confirm} drops the event");
            session.release(n);
        }
        assert_eq!(a.info("lock", "lock_session_grants_overdue"), "0");
        assert_eq!(a.info("lock", "lock_grants_revoked"), "0");
    });
}

/// R1, R15. A client that does not poll loses its grant after 5 s, and is passed over until it polls again.
fn a_suspect_session_keeps_its_places(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let (mut a, mut b) = (world.client(), world.client());
        let mut session = Session::open(world, TTL, 1_000);
        for key in ["k", "l"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE {key} a")), "1");
        }
        let lost = session.queue("k", "s", "");
        let kept = session.queue("l", "s", "");
        let mut next = world.waiting("LOCK.ACQUIRE k next BLOCK 0");
        let mut passing = world.waiting("LOCK.ACQUIRE l passing BLOCK 0");
        let mut last = world.waiting("LOCK.ACQUIRE l last BLOCK 0");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(b.call("HGETALL k"), "[s, 1]");
        assert_eq!(next.recv(), "1");
        let fields = ["lock_sessions_suspect", "lock_session_grants_overdue"];
        assert_eq!(fields.map(|field| b.info("lock", field)), ["1", "1"]);
        // The other wait is passed over.
        assert_eq!(a.call("LOCK.RELEASE l a"), "0");
        assert_eq!(passing.recv(), "1");
        // ACQUIRE is not a sign of life, and reports what is known.
        assert_eq!(prefix(&session.acquire_again(lost, "QUEUE 0")), "NOTOWNER");
        assert_eq!(session.acquire_again(kept, "QUEUE 0"), "0");
        assert_eq!(b.info("lock", "lock_sessions_suspect"), "1");
        assert_eq!(session.events(0), [format!("lost {lost} overdue")]);
        assert_eq!(b.info("lock", "lock_sessions_suspect"), "0");
        // Its place is before a later wait.
        assert_eq!(passing.call("LOCK.RELEASE l passing"), "0");
        assert_eq!(session.some_events(), [format!("granted {kept} 1")]);
        assert!(last.has_nothing());
        assert_eq!(session.release(kept), "0");
        assert_eq!(last.recv(), "1");
        assert_eq!(last.call("LOCK.RELEASE l last"), "0");
        assert_eq!(next.call("LOCK.RELEASE k next"), "0");
    });
}

/// R15: nothing else would serve a wait whose lock became free while it was passed over.
fn a_suspect_wait_is_served_as_if_freed(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let (mut a, mut b) = (world.client(), world.client());
        let mut session = Session::open(world, TTL, 1_000);
        for key in ["k", "l"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE {key} a")), "1");
        }
        session.queue("k", "s", "");
        let kept = session.queue("l", "s", "");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        until("the session is suspect", || b.info("lock", "lock_sessions_suspect") == "1");
        until("the grant is revoked", || b.call("EXISTS k") == "0");
        assert_eq!(a.call("LOCK.RELEASE l a"), "0");
        assert_eq!(b.call("EXISTS l"), "0", "a suspect session got a grant");
        session.resume([world.client(), world.client()]);
        until("the wait is served", || b.call("HGETALL l") == "[s, 1]");
        let events = session.some_events();
        assert!(events.contains(&format!("granted {kept} 1")), "{events:?}");
        assert_eq!(session.release(kept), "0");
    });
}

fn a_suspect_session_can_cancel_its_waits(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let (mut a, mut b) = (world.client(), world.client());
        let mut session = Session::open(world, TTL, 1_000);
        for key in ["k", "l", "m"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE {key} a")), "1");
        }
        session.queue("k", "s", "");
        let cancelled = session.queue("l", "s", "");
        let (timed, _) = session.acquire("m", "s", "QUEUE 8000");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        until("the session is suspect", || b.info("lock", "lock_sessions_suspect") == "1");
        // The waits are passed over, and leave their queues.
        for key in ["l", "m"] {
            assert_eq!(a.call(&format!("LOCK.RELEASE {key} a")), "0");
        }
        assert_eq!(session.cancel(cancelled), "1");
        // A wait that is passed over still ends in time.
        until("its time is over", || session.acquire_again(timed, "QUEUE 8000") == "nil");
        let events = session.some_events();
        assert!(events.contains(&format!("lost {timed} timeout")), "{events:?}");
        assert_eq!(b.call("EXISTS k l m"), "0");
    });
}

/// A client that polls may take longer than 5 s for an event, for example if it handles a long reply.
fn grants_of_a_polling_client_are_never_overdue(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, TTL);
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        let n = session.queue("k", "s", "");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        // This wait outlasts the time after which a grant is overdue.
        assert_eq!(a.call("LOCK.ACQUIRE k a BLOCK 6000"), "nil");
        assert_eq!(session.some_events(), [format!("granted {n} 1")]);
        assert_eq!(a.info("lock", "lock_session_grants_overdue"), "0");
        assert_eq!(session.release(n), "0");
    });
}

fn one_reply_carries_many_grants(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, TTL);
        let acquires: Vec<String> = (0..1_500).map(|key| format!("LOCK.ACQUIRE k{key} a")).collect();
        a.send_at_once(&acquires.iter().map(String::as_str).collect::<Vec<_>>());
        acquires.iter().for_each(|_| assert_eq!(a.recv(), "1"));
        let mut numbers = Vec::new();
        for key in 0..1_500 {
            numbers.push(session.queue(&format!("k{key}"), "s", ""));
        }
        let releases: Vec<String> = (0..1_500).map(|key| format!("LOCK.RELEASE k{key} a")).collect();
        a.send_at_once(&releases.iter().map(String::as_str).collect::<Vec<_>>());
        releases.iter().for_each(|_| assert_eq!(a.recv(), "0"));
        // A full reply confirms nothing (R2).
        assert_eq!(session.some_events().len(), 1_000);
        assert_eq!(session.safe_holds(), 0);
        assert_eq!(session.some_events().len(), 500);
        assert_eq!(session.safe_holds(), 1_500);
        for n in numbers {
            assert_eq!(session.release(n), "0");
        }
    });
}
