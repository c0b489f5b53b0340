// SPDX-License-Identifier: MIT

//! When a session ends, and what its end does. Numbers of rules, such as R8, are those of `tests/protocol/README.md`.

use std::time::{Duration, Instant};

use crate::support::client::prefix;
use crate::support::{
    in_world_with, until, until_tables_are_empty, with_sessions, Client, Flavor, Session, World,
};

crate::on_every_server!(
    a_killed_reader_ends_the_session_after_grace,
    without_grace_the_session_ends_at_once,
    a_silent_session_ends_after_ttl,
    events_extend_the_session,
    other_calls_extend_nothing,
    the_end_releases_ephemeral_numbers_only,
    the_end_stops_renewals,
    waits_leave_with_their_session,
    grants_in_flight_end_with_their_session,
    a_resumed_session_loses_nothing,
    a_repeated_end_counts_once,
    a_stall_ends_no_session,
    a_stopped_server_ends_no_session,
    a_pause_ends_no_session,
    a_long_script_ends_no_session,
    events_wait_for_due_renewals,
    unblocked_events_confirm_no_due_renewal,
    a_stall_above_the_lease_is_reported,
    events_report_that_renewals_fail,
    refused_writes_end_no_session,
    an_old_grant_is_not_delivered,
    many_holds_end_in_portions,
    many_sessions_end_together,
);

const TTL: u64 = 600_000;
const GRACE: u64 = 10_000;

/// Whether the server knows the session. OPEN with a late beat has no effect.
fn is_alive(client: &mut Client, session: &Session) -> bool {
    match prefix(&client.call(&format!("LOCK.SESSION OPEN {} 1", session.id))) {
        "LATE" => true,
        "NOSESSION" => false,
        other => panic!("{other}"),
    }
}

fn kill_reader(world: &World, session: &Session) {
    assert_eq!(world.client().call(&format!("CLIENT KILL ID {}", session.reader.id)), "1");
}

fn a_killed_reader_ends_the_session_after_grace(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, 1_000);
        assert_eq!(session.acquire("k", "s", "EPHEMERAL").1, "1");
        let killed = Instant::now();
        kill_reader(world, &session);
        let mut next = world.waiting("LOCK.ACQUIRE k next BLOCK 0");
        assert_eq!(next.recv(), "1");
        assert!(killed.elapsed() >= Duration::from_millis(1_000), "free after {:?}", killed.elapsed());
        assert!(!is_alive(&mut a, &session));
        assert_eq!(prefix(&session.resume([world.client(), world.client()])), "NOSESSION");
        assert_eq!(next.call("LOCK.RELEASE k next"), "0");
        assert_eq!(a.info("lock", "lock_sessions_expired"), "1");
    });
}

fn without_grace_the_session_ends_at_once(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        for end in ["kill", "close"] {
            let mut session = Session::open(world, TTL, 0);
            assert_eq!(session.acquire("k", "s", "EPHEMERAL").1, "1");
            let mut next = world.waiting("LOCK.ACQUIRE k next BLOCK 0");
            if end == "kill" {
                kill_reader(world, &session);
            } else {
                session.reader.close_half();
            }
            assert_eq!(next.recv(), "1", "{end}");
            assert!(!is_alive(&mut a, &session), "{end}");
            assert_eq!(next.call("LOCK.RELEASE k next"), "0");
        }
        // EVENTS without GRACE blocks for a third of the TTL.
        let mut session = Session::open(world, 300, 0);
        assert_eq!(session.events(TTL), [""; 0]);
    });
}

fn a_silent_session_ends_after_ttl(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let opened = Instant::now();
        let mut session = Session::open(world, 1_500, 1_500);
        assert_eq!(session.acquire("k", "s", "EPHEMERAL").1, "1");
        until("the session is over", || !is_alive(&mut a, &session));
        assert!(opened.elapsed() >= Duration::from_millis(1_500), "{:?}", opened.elapsed());
        until("the lock is free", || a.call("EXISTS k") == "0");
        assert_eq!(prefix(&session.try_events(0).unwrap_err()), "NOSESSION");
    });
}

fn events_extend_the_session(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let opened = Instant::now();
        let mut session = Session::open(world, 6_000, 6_000);
        let n = session.acquire("k", "s", "EPHEMERAL").0;
        // Each call blocks for 2 s.
        while opened.elapsed() < Duration::from_millis(7_000) {
            assert_eq!(session.events(60_000), [""; 0]);
        }
        assert_eq!(session.safe_holds(), 1);
        assert_eq!(session.release(n), "0");
    });
}

fn other_calls_extend_nothing(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut session = Session::open(world, 1_500, 1_500);
        let n = session.acquire("k", "s", "EPHEMERAL").0;
        until("the session is over", || prefix(&session.renew(n, "")) == "NOSESSION");
        until("the lock is free", || session.pool.call("EXISTS k") == "0");
    });
}

/// R8
fn the_end_releases_ephemeral_numbers_only(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, 0);
        session.acquire("k", "s", "EPHEMERAL");
        session.acquire("k", "s", "");
        session.acquire("k", "s", "EPHEMERAL PX 100000");
        session.acquire("l", "s", "");
        session.acquire("m", "s", "PX 100000");
        session.acquire("r", "s", "SHARED EPHEMERAL");
        session.acquire("r", "s", "SHARED");
        let released = session.acquire("x", "s", "EPHEMERAL").0;
        session.release(released);
        assert_eq!(a.call("LOCK.ACQUIRE k s PX 100000"), "4");
        assert_eq!(a.call("LOCK.ACQUIRE x other"), "1");
        kill_reader(world, &session);
        until("the session is over", || a.info("lock", "lock_sessions") == "0");
        until("the ephemeral holds end", || a.call("HGET k s") == "2");
        assert_eq!(a.call("LOCK.INFO r").matches("holds, 1").count(), 1);
        assert_eq!(a.call("EXISTS l m x"), "3");
        for key in ["k", "l", "m", "r", "x"] {
            assert_eq!(a.call(&format!("LOCK.BREAK {key}")), "1");
        }
        assert_eq!(a.info("lock", "lock_disconnect_releases"), "3");
    });
}

fn the_end_stops_renewals(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, 0);
        session.acquire("k", "s", "WATCHDOG PX 1500");
        let end = a.number("PEXPIRETIME k");
        until("the lease is renewed", || a.number("PEXPIRETIME k") > end);
        let mut next = world.waiting("LOCK.ACQUIRE k next BLOCK 0");
        session.close();
        assert_eq!(a.info("lock", "lock_watchdogs"), "0");
        assert_eq!(next.recv(), "1");
        assert_eq!(next.call("LOCK.RELEASE k next"), "0");
    });
}

fn waits_leave_with_their_session(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        for end in ["kill", "close", "silence"] {
            assert_eq!(a.call("LOCK.ACQUIRE k a PX 600000"), "1");
            let ttl = if end == "silence" { 1_000 } else { TTL };
            let mut session = Session::open(world, ttl, 0);
            session.queue("k", "s", "");
            session.queue("k", "t", "EPHEMERAL");
            let mut next = world.waiting("LOCK.ACQUIRE k next BLOCK 0");
            match end {
                "kill" => kill_reader(world, &session),
                "close" => assert_eq!(session.close(), "0"),
                _ => {}
            }
            until("the waits have left", || a.number_of_waiters() == 1);
            assert_eq!(a.call("LOCK.RELEASE k a"), "0");
            assert_eq!(next.recv(), "1", "{end}");
            assert_eq!(next.call("LOCK.RELEASE k next"), "0");
        }
    });
}

/// A grant in flight is revoked with any options, because its client does not know of it.
fn grants_in_flight_end_with_their_session(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        for (end, options) in [("kill", ""), ("close", "FENCE"), ("kill", "EPHEMERAL"), ("close", "SHARED")] {
            assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
            let mut session = Session::open(world, TTL, 0);
            session.queue("k", "s", options);
            let mut next = world.waiting("LOCK.ACQUIRE k next BLOCK 0");
            assert_eq!(a.call("LOCK.RELEASE k a"), "0");
            assert!(a.call("LOCK.INFO k").contains("owner, s"), "{end} {options}");
            if end == "kill" {
                kill_reader(world, &session);
            } else {
                session.close();
            }
            assert_eq!(next.recv(), "1", "{end} {options}");
            assert_eq!(next.call("LOCK.RELEASE k next"), "0");
            assert_eq!(a.call("EXISTS k"), "0");
        }
    });
}

fn a_resumed_session_loses_nothing(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        let held = session.acquire("held", "s", "EPHEMERAL").0;
        a.call("LOCK.ACQUIRE k a");
        a.call("LOCK.ACQUIRE l a");
        let granted = session.queue("k", "s", "");
        let waiting = session.queue("l", "s", "");
        let later = world.waiting("LOCK.ACQUIRE l later BLOCK 0");
        a.call("LOCK.RELEASE k a");
        for _ in 0..3 {
            kill_reader(world, &session);
            let reply = session.resume([world.client(), world.client()]);
            assert_eq!(reply, format!("[{}, 0]", session.id));
        }
        assert_eq!(session.some_events(), [format!("granted {granted} 1")]);
        a.call("LOCK.RELEASE l a");
        assert_eq!(session.some_events(), [format!("granted {waiting} 1")]);
        assert!(later.has_nothing());
        assert_eq!(session.safe_holds(), 3);
        for n in [held, granted, waiting] {
            assert_eq!(session.release(n), "0");
        }
        drop(later);
        until("the last waiter has left or holds", || a.number_of_waiters() == 0);
        a.call("LOCK.BREAK l");
    });
}

fn a_repeated_end_counts_once(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, 0);
        let reader = session.reader.id;
        // CLOSE and the end of the reader in one iteration of the event loop.
        let close = format!("LOCK.SESSION CLOSE {}", session.id);
        a.send_at_once(&[&close, &format!("CLIENT KILL ID {reader}"), &close]);
        assert_eq!([a.recv(), a.recv(), a.recv()], ["0", "1", "0"]);
        assert_eq!(a.info("lock", "lock_sessions_expired"), "0");
        session.close();
        // A blocked reader that is killed.
        let mut session = Session::open(world, TTL, TTL);
        session.send_events(TTL);
        world.until_blocked(&session.reader);
        kill_reader(world, &session);
        until("no client is blocked", || a.info("clients", "blocked_clients") == "0");
        assert_eq!(session.resume([world.client(), world.client()]), format!("[{}, 0]", session.id));
    });
}

/// Runs a stall of the server that is longer than the TTL of a session. The client must send EVENTS during the stall.
fn survives(world: &World, stall: impl FnOnce(&mut Session, &mut Client)) {
    let mut session = Session::open(world, 3_000, 3_000);
    let n = session.acquire("k", "s", "EPHEMERAL WATCHDOG PX 600000").0;
    let mut probe = world.client();
    let started = Instant::now();
    stall(&mut session, &mut probe);
    assert!(started.elapsed() > Duration::from_millis(3_000), "the stall is too short");
    assert_eq!(session.recv_events(), Ok(Vec::new()));
    assert_eq!(session.release(n), "0");
}

/// Waits until the server executes the call that holds it up: then no call gets a reply.
fn until_stalled(probe: &mut Client) {
    until("the server is stalled", || {
        probe.send("PING");
        std::thread::sleep(Duration::from_millis(100));
        probe.has_nothing() || probe.recv() != "PONG"
    });
}

/// A deadline counts only after the input has been read that arrived during a stall.
fn a_stall_ends_no_session(flavor: Flavor) {
    with_sessions(flavor, |world| {
        survives(world, |session, probe| {
            session.pool.send("DEBUG SLEEP 3.5");
            until_stalled(probe);
            session.send_events(0);
            assert_eq!(session.pool.recv(), "OK");
        });
        let mut a = world.client();
        assert_eq!(a.info("lock", "lock_sessions_expired"), "0");
        // Without input, the session ends after the stall.
        let session = Session::open(world, 500, 500);
        assert_eq!(a.call("DEBUG SLEEP 1"), "OK");
        until("the session is over", || a.info("lock", "lock_sessions") == "0");
        drop(session);
    });
}

fn a_stopped_server_ends_no_session(flavor: Flavor) {
    with_sessions(flavor, |world| {
        survives(world, |session, _| {
            let started = Instant::now();
            world.primary.signal(libc::SIGSTOP);
            session.send_events(0);
            until("the TTL is over", || started.elapsed() > Duration::from_millis(3_500));
            world.primary.signal(libc::SIGCONT);
        });
    });
}

fn a_pause_ends_no_session(flavor: Flavor) {
    with_sessions(flavor, |world| {
        for mode in ["WRITE", "ALL"] {
            survives(world, |session, _| {
                let started = Instant::now();
                assert_eq!(session.pool.call(&format!("CLIENT PAUSE 3500 {mode}")), "OK");
                session.send_events(0);
                until("the pause is over", || started.elapsed() > Duration::from_millis(3_500));
            });
        }
        assert_eq!(world.client().info("lock", "lock_sessions_expired"), "0");
    });
}

fn a_long_script_ends_no_session(flavor: Flavor) {
    with_sessions(flavor, |world| {
        survives(world, |session, probe| {
            session.pool.call("CONFIG SET busy-reply-threshold 60000");
            // Newer servers stop TIME during a script, and older ones have no clock of the processor's time.
            let busy = "local has_clock, clock = pcall(function() return os.clock end) \
                        local function now() \
                            if has_clock then return clock() end \
                            local time = redis.call('TIME'); return time[1] + time[2] / 1000000 \
                        end \
                        local start = now(); while now() < start + 3.5 do end; return 1";
            session.pool.send_args(&[b"EVAL", busy.as_bytes(), b"0"]);
            until_stalled(probe);
            session.send_events(0);
            assert_eq!(session.pool.recv(), "1");
        });
    });
}

/// R4. EVENTS and the next call arrive during a stall of more than a third of the lease.
fn events_wait_for_due_renewals(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut session = Session::open(world, TTL, 1_000);
        let n = session.acquire("k", "s", "WATCHDOG PX 6000").0;
        for ms in [0, 300] {
            let beat = session.take_beat();
            let events = format!("LOCK.EVENTS {} {beat} 0 0 {ms}", session.id);
            session.reader.send_at_once(&["DEBUG SLEEP 3", &events, "PTTL k"]);
            assert_eq!([session.reader.recv(), session.reader.recv()], ["OK", "[]"]);
            let left: i64 = session.reader.recv().parse().unwrap();
            assert!(left > 4_000, "EVENTS confirms a hold with {left} ms left");
        }
        // A transaction cannot wait for the renewals. It replies an error, or runs after them.
        let beat = session.take_beat();
        let events = format!("LOCK.EVENTS {} {beat} 0 0", session.id);
        session.reader.send_at_once(&["DEBUG SLEEP 3", "MULTI", &events, "PTTL k", "EXEC"]);
        let replies = [(); 5].map(|()| session.reader.recv());
        let reply = replies[4].clone();
        let left = reply.trim_end_matches(']').rsplit(' ').next().unwrap().parse::<i64>().unwrap();
        assert!(reply.starts_with("[ERR leases are due for renewal") || left > 4_000, "{reply}");
        assert_eq!(session.release(n), "0");
    });
}

fn a_stall_above_the_lease_is_reported(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, 300);
        let n = session.acquire("k", "s", "WATCHDOG PX 2000").0;
        session.events(0);
        session.reader.send("DEBUG SLEEP 2.5");
        session.send_events(0);
        assert_eq!(session.reader.recv(), "OK");
        assert_eq!(session.recv_events(), Ok(vec![format!("lost {n} expired")]));
        assert_eq!(session.safe_holds(), 0);
        assert_eq!(a.info("lock", "lock_watchdogs"), "0");
    });
}

/// R4. `CLIENT UNBLOCK` ends a blocked EVENTS while a renewal is due. The reply confirms no hold. It is not LATE, as that would
/// mean that two processes share the session.
fn unblocked_events_confirm_no_due_renewal(flavor: Flavor) {
    if !flavor.may_unblock() {
        return;
    }
    with_sessions(flavor, |world| {
        let (mut operator, mut stalls) = (world.client(), world.client());
        let mut session = Session::open(world, TTL, 1_000);
        let n = session.acquire("k", "s", "WATCHDOG PX 6000").0;
        let unblock = format!("CLIENT UNBLOCK {}", session.reader.id);
        // The calls arrive during the first stall, so no timer runs between them. If CLIENT UNBLOCK runs first, nothing is
        // blocked yet.
        until("EVENTS is unblocked", || {
            let mut probe = world.client();
            stalls.send("DEBUG SLEEP 0.5");
            until_stalled(&mut probe);
            session.reader.send("DEBUG SLEEP 3");
            session.send_events(300);
            operator.send(&unblock);
            assert_eq!([stalls.recv(), session.reader.recv()], ["OK", "OK"]);
            let (is_unblocked, reply) = (operator.recv() == "1", session.recv_events());
            if is_unblocked {
                let error = reply.unwrap_err();
                assert!(error.starts_with("UNBLOCKED client was unblocked while leases are due"), "{error}");
            } else {
                assert_eq!(reply, Ok(Vec::new()));
            }
            is_unblocked
        });
        assert_eq!(session.events(0), [""; 0]);
        assert!(operator.number("PTTL k") > 4_000, "EVENTS confirms a hold before its renewal");
        assert_eq!(session.release(n), "0");
    });
}

/// R20
fn events_report_that_renewals_fail(flavor: Flavor) {
    in_world_with(flavor, &[], |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, 1_000);
        let n = session.acquire("k", "s", "WATCHDOG PX 4000").0;
        session.events(0);
        a.call("CONFIG SET min-replicas-to-write 2");
        let mut failed = None;
        until("EVENTS fails", || {
            failed = session.try_events(100).err();
            failed.is_some()
        });
        let failed = failed.unwrap();
        assert!(["MISCONF", "NOREPLICAS"].contains(&prefix(&failed)), "{failed}");
        // A blocked call gets the error, too.
        let blocked = session.try_events(300);
        assert!(blocked.is_err(), "{blocked:?}");
        a.call("CONFIG SET min-replicas-to-write 0");
        until("EVENTS confirms", || session.try_events(0).is_ok());
        // The hold was renewed in time, or its loss is reported.
        let released = session.release(n);
        assert!(["0", "NOTOWNER"].contains(&prefix(&released)), "{released}");
        drop(session);
        until_tables_are_empty(world);
    });
}

/// R20
fn refused_writes_end_no_session(flavor: Flavor) {
    in_world_with(flavor, &[], |world| {
        let mut a = world.client();
        let ttl = Duration::from_secs(2);
        let mut session = Session::open(world, 2_000, 2_000);
        a.call("CONFIG SET min-replicas-to-write 2");
        let started = Instant::now();
        until("the deadline has passed", || started.elapsed() > ttl);
        a.call("CONFIG SET min-replicas-to-write 0");
        // The end of another session shows that the timer has checked deadlines since.
        let mut brief = world.client();
        brief.call("LOCK.SESSION OPEN NEW 1 TTL 300 NAME brief");
        until("the other session ends", || a.call("LOCK.SESSION LIST MATCH brief") == "[]");
        assert_eq!(session.events(0), [""; 0]);
        drop((session, brief));
        until_tables_are_empty(world);
    });
}

/// R1
fn an_old_grant_is_not_delivered(flavor: Flavor) {
    in_world_with(flavor, &[], |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, 1_000);
        a.call("LOCK.ACQUIRE k a");
        let n = session.queue("k", "s", "WATCHDOG PX 3000");
        a.call("LOCK.RELEASE k a");
        // A third of the lease is over, and the grant is not overdue yet.
        until("the lease is old", || a.call("PTTL k").parse::<i64>().unwrap() < 1_990);
        assert_eq!(session.events(0), [format!("lost {n} overdue")]);
        until("the lock is free", || a.call("EXISTS k") == "0");
        drop(session);
        until_tables_are_empty(world);
    });
}

fn many_holds_end_in_portions(flavor: Flavor) {
    const HOLDS: usize = 10_000;
    with_sessions(flavor, |world| {
        let mut a = world.client();
        for end in ["close", "kill", "silence"] {
            let ttl = if end == "silence" { 5_000 } else { TTL };
            let mut session = Session::open(world, ttl, 0);
            for chunk in (0..HOLDS).collect::<Vec<_>>().chunks(1_000) {
                assert_eq!(session.events(0), [""; 0]);
                let calls: Vec<String> = chunk
                    .iter()
                    .map(|key| {
                        let n = session.number(&format!("k{key}"), "s");
                        session.command("ACQUIRE", n, "EPHEMERAL PX 600000")
                    })
                    .collect();
                session.pool.send_at_once(&calls.iter().map(String::as_str).collect::<Vec<_>>());
                calls.iter().for_each(|_| assert_eq!(session.pool.recv(), "1"));
            }
            // The newest number ends first. Its lock is granted, and the next call is answered, before the others end.
            let mut next = world.waiting(&format!("LOCK.ACQUIRE k{} next BLOCK 0 PX 600000", HOLDS - 1));
            next.send("DBSIZE");
            match end {
                "close" => assert_eq!(session.close(), HOLDS.to_string()),
                "kill" => kill_reader(world, &session),
                _ => {}
            }
            assert_eq!(next.recv(), "1");
            let left: usize = next.recv().parse().unwrap();
            assert!(left > HOLDS / 2, "{end}: {} holds ended at once", HOLDS - left);
            until("all locks are free", || a.call("DBSIZE") == "1");
            assert_eq!(next.call(&format!("LOCK.RELEASE k{} next", HOLDS - 1)), "0");
        }
    });
}

fn many_sessions_end_together(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut reader = world.client();
        let ids: Vec<String> = (0..1_000)
            .map(|_| {
                let reply = reader.call("LOCK.SESSION OPEN NEW 1 TTL 600000 GRACE 0");
                reply.trim_start_matches('[').split(',').next().unwrap().to_owned()
            })
            .collect();
        for (number, id) in ids.iter().enumerate() {
            let call = format!("LOCK.ACQUIRE k{number} s SESSION {id} 1 EPHEMERAL");
            assert_eq!(a.call(&call), "1");
        }
        assert_eq!(a.info("lock", "lock_sessions"), "1000");
        reader.close();
        until("all sessions are over", || a.info("lock", "lock_sessions") == "0");
        until("all locks are free", || a.call("DBSIZE") == "0");
    });
}
