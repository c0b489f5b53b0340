// SPDX-License-Identifier: MIT

//! Acquires of a session for several locks: `LOCK.MACQUIRE`, `LOCK.MRENEW` and `LOCK.MRELEASE` with `SESSION`. Numbers of rules,
//! such as R12, are those of `docs/sessions.md`.

use super::session_faults::Delayed;
use crate::support::client::prefix;
use crate::support::session::Progress;
use crate::support::{until, with_sessions, Flavor, Session};

crate::on_every_server!(
    several_locks_share_one_number,
    one_event_grants_all_locks,
    one_lost_lock_loses_the_number,
    a_lost_lock_revokes_the_grant_of_all,
    a_call_about_the_number_confirms_all,
    cancel_undoes_all_locks,
    a_deadlock_of_several_locks_is_found,
    a_wait_for_several_locks_times_out,
    several_locks_end_with_their_session,
    several_holds_are_declared_together,
    calls_for_several_locks_need_their_session,
    late_calls_for_several_locks_change_nothing,
    a_suspect_session_loses_waits_for_several,
);

const TTL: u64 = 600_000;
const GRACE: u64 = 10_000;

/// R12, R23
fn several_locks_share_one_number(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        // `done` stays below this number.
        let pin = session.number("pin", "s");
        let (n, reply) = session.acquire("k l", "s", "");
        assert_eq!(reply, "[1, 1]");
        assert_eq!([session.acquire_again(n, "QUEUE 0"), session.renew(n, "")], ["[1, 1]", "[1, 1]"]);
        assert_eq!(a.info("lock", "lock_watchdogs"), "2");
        let of = format!("SESSION {} {n}", session.id);
        for call in ["MACQUIRE 2 k m s", "MACQUIRE 2 k l t", "ACQUIRE k s", "MRENEW 1 k s", "RELEASE k s"] {
            let reply = a.call(&format!("LOCK.{call} {of}"));
            assert!(reply.starts_with("ERR number was used before"), "{call}: {reply}");
        }
        let (fenced, reply) = session.acquire("k l", "s", "FENCE");
        assert_eq!(reply.matches("holds, 2").count(), 2, "{reply}");
        assert_eq!(session.acquire_again(fenced, "FENCE"), reply);
        assert_eq!([session.release(n), session.release(n)], ["[1, 1]", "[1, 1]"]);
        assert_eq!(prefix(&session.acquire_again(n, "")), "NOTOWNER");
        // One of the locks is busy. This stays the answer.
        let (busy, reply) = session.acquire("free l", "t", "");
        assert_eq!(reply, "nil");
        assert_eq!(session.release(fenced), "[0, 0]");
        assert_eq!(session.acquire_again(busy, ""), "nil");
        let unseen = session.number("k l", "s");
        assert_eq!(prefix(&session.release(unseen)), "NOTOWNER");
        assert_eq!(prefix(&session.acquire_again(unseen, "")), "NOTOWNER");
        assert_eq!(a.call("EXISTS k l free"), "0");
        assert_eq!(session.events(0), [""; 0]);
        assert_eq!(session.cancel(pin), "0");
    });
}

fn one_event_grants_all_locks(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        for key in ["k", "l"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE {key} a")), "1");
        }
        let n = session.queue("k l", "s", "");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(a.call("EXISTS k"), "0", "all locks are granted or none");
        assert_eq!(session.acquire_again(n, "QUEUE 0"), "0");
        assert_eq!(session.events(0), [""; 0]);
        assert_eq!(a.call("LOCK.RELEASE l a"), "0");
        assert_eq!([a.call("HGETALL k"), a.call("HGETALL l")], ["[s, 1]", "[s, 1]"]);
        assert_eq!(session.acquire_again(n, "QUEUE 0"), "[1, 1]");
        assert_eq!(session.events(0), [format!("granted {n} [1, 1]")]);
        assert_eq!(session.events(0), [""; 0]);
        assert_eq!(session.safe_holds(), 1);
        let fenced = session.queue("k l", "t", "FENCE EPHEMERAL");
        assert_eq!(session.release(n), "[0, 0]");
        let tokens = ["k", "l"].map(|key| a.call(&format!("GET redisson_lock_token:{{{key}}}")));
        let [first, second] = tokens;
        assert_eq!(session.some_events(), [format!("granted {fenced} [1, 1] [{first}, {second}]")]);
        // Free locks are granted at once, without an event.
        let (free, reply) = session.acquire("m n", "s", "QUEUE 0 EPHEMERAL");
        assert_eq!((reply.as_str(), session.progress(free)), ("[1, 1]", Progress::Held));
        assert_eq!(session.events(0), [""; 0]);
        assert_eq!(session.close(), "4");
        until("the locks are free", || a.call("EXISTS k l m n") == "0");
    });
}

fn one_lost_lock_loses_the_number(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        for is_done in [false, true] {
            let mut session = Session::open(world, TTL, GRACE);
            if !is_done {
                session.number("pin", "s");
            }
            for (call, reason) in
                [("DEL k", "deleted"), ("LOCK.BREAK l", "broken"), ("LOCK.RELEASE k s", "deleted")]
            {
                let n = session.acquire("k l", "s", "").0;
                assert_eq!(session.events(0), [""; 0]);
                a.call(call);
                assert_eq!(session.some_events(), [format!("lost {n} {reason}")], "{call}");
                assert_eq!(session.events(0), [""; 0], "{call}");
                // The other lock is held until the client releases it.
                assert_eq!(a.call("EXISTS k l"), "1", "{call}");
                assert_eq!(prefix(&session.renew(n, "")), "NOTOWNER");
                assert_eq!(prefix(&session.acquire_again(n, "")), "NOTOWNER");
                assert_eq!(prefix(&session.release(n)), "NOTOWNER");
                assert_eq!(a.call("EXISTS k l"), "0", "{call}");
                assert_eq!(prefix(&session.release(n)), "NOTOWNER");
            }
            // All locks are lost together.
            let n = session.acquire("k l", "s", "").0;
            a.call("FLUSHALL");
            assert_eq!(session.some_events(), [format!("lost {n} deleted")]);
            assert_eq!(session.events(0), [""; 0]);
            assert_eq!(prefix(&session.release(n)), "NOTOWNER");
        }
    });
}

/// The client does not know the grant yet, so the server releases the other lock.
fn a_lost_lock_revokes_the_grant_of_all(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        for (call, reason) in [("DEL k", "deleted"), ("LOCK.BREAK l", "broken")] {
            assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
            let n = session.queue("k l", "s", "");
            assert_eq!(a.call("LOCK.RELEASE k a"), "0");
            assert_eq!(a.call("EXISTS k l"), "2");
            a.call(call);
            assert_eq!(session.some_events(), [format!("lost {n} {reason}")], "{call}");
            until("the other lock is free", || a.call("EXISTS k l") == "0");
        }
    });
}

/// R1
fn a_call_about_the_number_confirms_all(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        for (command, reply) in [("RENEW", "[1, 1]"), ("RELEASE", "[0, 0]")] {
            assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
            let n = session.queue("k l", "s", "");
            assert_eq!(a.call("LOCK.RELEASE k a"), "0");
            assert_eq!(a.info("lock", "lock_table_grants_in_flight"), "2");
            let call = session.command(command, n, "");
            assert_eq!(session.pool.call(&call), reply);
            assert_eq!(a.info("lock", "lock_table_grants_in_flight"), "0");
            assert_eq!(session.events(0), [""; 0], "{command} drops the event");
            session.release(n);
            assert_eq!(a.call("EXISTS k l"), "0");
        }
    });
}

fn cancel_undoes_all_locks(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        let unseen = session.number("k l", "s");
        assert_eq!(session.cancel(unseen), "0");
        assert_eq!(prefix(&session.acquire_again(unseen, "")), "CANCELLED");
        // Waiting.
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        let waiting = session.queue("k l", "s", "");
        // Neither another key nor the same key of another database is a lock of the call.
        let mut elsewhere = world.client();
        assert_eq!(elsewhere.call("SELECT 1"), "OK");
        for (client, key) in [(&mut a, "other"), (&mut elsewhere, "k")] {
            let reply = client.call(&format!("LOCK.CANCEL {key} s SESSION {} {waiting}", session.id));
            assert!(reply.starts_with("ERR number was used before"), "{key}: {reply}");
        }
        let reply = a.call(&format!("LOCK.CANCEL k other SESSION {} {waiting}", session.id));
        assert!(reply.starts_with("ERR number was used before"), "{reply}");
        assert_eq!([session.cancel(waiting), session.cancel(waiting)], ["1", "1"]);
        assert_eq!(prefix(&session.acquire_again(waiting, "QUEUE 0")), "CANCELLED");
        assert_eq!(a.number_of_waiters(), 0);
        // In flight.
        let granted = session.queue("k l", "s", "");
        let mut next = world.waiting("LOCK.ACQUIRE l next BLOCK 0");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(session.cancel(granted), "1");
        assert_eq!(next.recv(), "1");
        assert_eq!(session.events(0), [""; 0], "CANCEL drops the event");
        assert_eq!(next.call("LOCK.RELEASE l next"), "0");
        // Held. The call names the last of the locks.
        let held = session.acquire("k l", "s", "").0;
        let cancel = format!("LOCK.CANCEL l s SESSION {} {held}", session.id);
        assert_eq!([a.call(&cancel), a.call(&cancel)], ["1", "1"]);
        assert_eq!(a.call("EXISTS k l"), "0");
        let released = session.acquire("k l", "s", "").0;
        assert_eq!(session.release(released), "[0, 0]");
        assert_eq!(session.cancel(released), "0");
    });
}

fn a_deadlock_of_several_locks_is_found(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        a.call("CONFIG SET lock.deadlock-detection yes");
        let [mut one, mut two] = [(); 2].map(|()| Session::open(world, TTL, GRACE));
        let first = one.acquire("k", "one", "").0;
        let second = two.acquire("l", "two", "").0;
        let waiting = one.queue("l m", "one", "");
        let n = two.number("k n", "two");
        let acquire = two.command("ACQUIRE", n, "QUEUE 0");
        assert_eq!(prefix(&two.pool.call(&acquire)), "DEADLOCK");
        // The refused acquire is not remembered, and leaves all queues.
        assert_eq!(one.release(first), "0");
        assert_eq!(two.acquire_again(n, "QUEUE 0"), "[1, 1]");
        assert_eq!(two.release(second), "0");
        assert_eq!(one.some_events(), [format!("granted {waiting} [1, 1]")]);
        assert_eq!([one.release(waiting), two.release(n)], ["[0, 0]", "[0, 0]"]);
    });
}

fn a_wait_for_several_locks_times_out(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        let pin = session.number("pin", "s");
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        let (n, reply) = session.acquire("k l", "s", "QUEUE 50");
        assert_eq!(reply, "0");
        let mut next = world.waiting("LOCK.ACQUIRE l next BLOCK 0");
        assert_eq!(session.some_events(), [format!("lost {n} timeout")]);
        assert_eq!(next.recv(), "1");
        assert_eq!(session.acquire_again(n, "QUEUE 50"), "nil");
        assert_eq!(session.cancel(pin), "0");
        assert_eq!([a.call("LOCK.RELEASE k a"), next.call("LOCK.RELEASE l next")], ["0", "0"]);
    });
}

/// R8
fn several_locks_end_with_their_session(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        for end in ["close", "kill"] {
            let mut session = Session::open(world, TTL, 0);
            session.acquire("ephemeral1 ephemeral2", "s", "EPHEMERAL");
            session.acquire("plain1 plain2", "s", "");
            for key in ["busy", "granted"] {
                assert_eq!(a.call(&format!("LOCK.ACQUIRE {key} a")), "1");
                session.queue(&format!("{key} {key}2"), "s", "");
            }
            let mut nexts =
                ["granted2", "busy2"].map(|key| world.waiting(&format!("LOCK.ACQUIRE {key} next BLOCK 0")));
            assert_eq!(a.call("LOCK.RELEASE granted a"), "0");
            assert!(nexts[0].has_nothing(), "the session has the lock");
            if end == "close" {
                assert_eq!(session.close(), "4", "two ephemeral holds, and a grant of two locks in flight");
            } else {
                assert_eq!(a.call(&format!("CLIENT KILL ID {}", session.reader.id)), "1");
            }
            for (next, key) in nexts.iter_mut().zip(["granted2", "busy2"]) {
                assert_eq!(next.recv(), "1", "{end}");
                assert_eq!(next.call(&format!("LOCK.RELEASE {key} next")), "0");
            }
            until("the session is over", || a.call("EXISTS ephemeral1 ephemeral2 granted") == "0");
            assert_eq!(a.number_of_waiters(), 0);
            assert_eq!(a.call("LOCK.MRELEASE 2 plain1 plain2 s"), "[0, 0]", "{end}");
            assert_eq!(a.call("LOCK.RELEASE busy a"), "0");
        }
    });
}

/// R5
fn several_holds_are_declared_together(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        assert_eq!(a.call("LOCK.MACQUIRE 2 k l s PX 600000"), "[1, 1]");
        let (declared, reply) = session.declare("k l", "s", "EPHEMERAL");
        assert_eq!(reply, "[1, 1]");
        assert_eq!(a.info("lock", "lock_watchdogs"), "2");
        // Only one of the locks has another hold of this owner, so none is bound.
        assert_eq!(a.call("LOCK.ACQUIRE k s"), "2");
        assert_eq!(prefix(&session.declare("k l", "s", "").1), "NOTOWNER");
        assert_eq!(session.declare("k", "s", "").1, "2");
        assert_eq!(session.acquire_again(declared, ""), "[1, 1]");
        assert_eq!(session.close(), "2");
        until("the ephemeral holds are released", || a.call("HGETALL k") == "[s, 1]");
        assert_eq!(a.call("EXISTS l"), "0");
        assert_eq!(a.call("LOCK.BREAK k"), "1");
    });
}

fn calls_for_several_locks_need_their_session(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut bob = world.client();
        assert_eq!(a.call("ACL SETUSER bob on >pw ~* &* +@all"), "OK");
        assert_eq!(bob.call("AUTH bob pw"), "OK");
        let mut session = Session::open(world, TTL, GRACE);
        let n = session.acquire("k l", "s", "").0;
        let unknown = "0123456789abcdef0123456789abcdef";
        for call in ["MACQUIRE 2 k l s", "MACQUIRE 2 m n s", "MRENEW 2 k l s", "MRELEASE 2 k l s"] {
            for (client, id) in [(&mut bob, session.id.as_str()), (&mut a, unknown)] {
                for options in ["", "QUEUE 0"] {
                    if options.is_empty() || call.starts_with("MACQUIRE") {
                        let reply = client.call(&format!("LOCK.{call} SESSION {id} {n} {options}"));
                        assert_eq!(prefix(&reply), "NOSESSION", "{call}");
                        assert!(!reply.contains(id), "{reply}");
                    }
                }
            }
            let words = format!("LOCK.{call} SESSION {} {n}", session.id).replace(' ', "','");
            let reply = a.call_args(&[b"EVAL", format!("return redis.pcall('{words}')").as_bytes(), b"0"]);
            assert!(reply.starts_with("ERR ") && reply.contains("outside of scripts"), "{call}: {reply}");
            assert!(!reply.contains(&session.id), "{reply}");
        }
        assert_eq!(a.call("KEYS *").split(", ").count(), 2);
        assert_eq!(session.release(n), "[0, 0]");
    });
}

/// R11, R12, R18
fn late_calls_for_several_locks_change_nothing(flavor: Flavor) {
    const LATE: [&str; 7] = ["LATE", "NOTOWNER", "LATE", "LATE", "LATE", "NOTOWNER", "0"];
    const ENDED: [&str; 7] = ["CANCELLED", "NOTOWNER", "NOTOWNER", "NOTOWNER", "NOTOWNER", "[0, 0]", "0"];
    with_sessions(flavor, |world| {
        let mut a = world.client();
        for (end, replies) in [("", ENDED), ("done", LATE), ("close", ["NOSESSION"; 7])] {
            let mut session = Session::open(world, TTL, GRACE);
            let pin = (end != "done").then(|| session.number("pin", "s"));
            let cancelled = session.number("k l", "s");
            let released = session.acquire("k l", "s", "").0;
            let mut late = Delayed::new(world);
            late.hold_back(&[
                session.command("ACQUIRE", cancelled, "QUEUE 0"),
                session.command("RELEASE", cancelled, ""),
                session.command("RENEW", cancelled, ""),
                session.command("ACQUIRE", released, "QUEUE 0 EPHEMERAL"),
                session.command("RENEW", released, "EPHEMERAL"),
                session.command("RELEASE", released, ""),
                session.command("CANCEL", released, ""),
            ]);
            assert_eq!([session.cancel(cancelled), session.release(released)], ["0", "[0, 0]"]);
            // The owner acquires again, without a number.
            assert_eq!(a.call("LOCK.MACQUIRE 2 k l s PX 600000"), "[1, 1]");
            assert_eq!(session.events(0), [""; 0]);
            if end == "close" {
                session.close();
            }
            let late = late.deliver(7);
            for (reply, expected) in late.iter().zip(replies) {
                assert!(reply == expected || prefix(reply) == expected, "{end}: {late:?}");
            }
            assert_eq!(a.call("LOCK.MRELEASE 2 k l s"), "[0, 0]", "{end}");
            if let Some(pin) = pin.filter(|_| end != "close") {
                assert_eq!(session.cancel(pin), "0");
            }
        }
    });
}

/// R15. A wait for several locks cannot keep its place in several queues, so it ends.
fn a_suspect_session_loses_waits_for_several(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, 1_000);
        for key in ["k", "l"] {
            assert_eq!(a.call(&format!("LOCK.ACQUIRE {key} a")), "1");
        }
        let granted = session.queue("k", "s", "");
        let several = session.queue("l m", "s", "");
        let mut next = world.waiting("LOCK.ACQUIRE m next BLOCK 0");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(next.recv(), "1");
        assert_eq!(a.info("lock", "lock_session_grants_overdue"), "1");
        let mut events = session.events(0);
        events.sort();
        assert_eq!(events, [granted, several].map(|n| format!("lost {n} overdue")));
        assert_eq!([a.call("LOCK.RELEASE l a"), next.call("LOCK.RELEASE m next")], ["0", "0"]);
        assert_eq!(a.call("EXISTS k l m"), "0");
    });
}
