// SPDX-License-Identifier: MIT

//! The commands of sessions, their events and their numbers. Numbers of rules, such as R12, are those of
//! `tests/protocol/README.md`.

use redis::Value;

use crate::support::client::{fields, prefix};
use crate::support::{in_world, show, until, with_sessions, Client, Flavor, Session};

crate::on_every_server!(
    open_replies_id_and_acknowledged_event,
    invalid_arguments_of_sessions_are_refused,
    session_excludes_other_options,
    unknown_ids_get_nosession,
    scripts_cannot_use_sessions,
    late_beats_have_no_effect,
    only_the_latest_caller_is_the_reader,
    events_are_delivered_until_acknowledged,
    count_limits_a_reply,
    a_newer_event_replaces_the_pending_one,
    a_blocked_events_call_ends_early,
    events_never_block_in_multi,
    a_repeated_acquire_gets_its_outcome,
    numbers_below_done_are_late,
    a_number_has_one_lock_and_owner,
    release_concerns_its_number_only,
    cancel_undoes_any_state,
    release_of_an_unseen_number_is_remembered,
    a_declaration_binds_one_unnumbered_hold,
    a_bound_hold_keeps_its_lease,
    leases_of_renewed_holds_are_checked,
    a_plain_lease_ends_by_itself,
    every_loss_is_reported_with_its_reason,
    an_overwritten_key_is_noticed_by_the_renewal,
    calls_without_numbers_lose_excess_numbers,
    contention_is_reported_once,
    holders_and_sessions_are_listed,
    sessions_are_limited,
    ids_belong_to_users,
    no_other_output_shows_an_id,
    resp3_replies_are_the_same,
    nothing_is_stored_or_replicated,
);

/// Sessions of most tests: no deadline passes during a test.
const TTL: u64 = 600_000;
const GRACE: u64 = 10_000;

fn open_replies_id_and_acknowledged_event(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let (mut holder, mut other) = (world.client(), world.client());
        let mut session = Session::open(world, TTL, GRACE);
        let again = other.call("LOCK.SESSION OPEN NEW 1 TTL 10000 NAME same");
        assert_ne!(again, format!("[{}, 0]", session.id), "ids are random");
        assert_eq!(holder.call("LOCK.ACQUIRE k holder"), "1");
        let n = session.queue("k", "s", "");
        assert_eq!(holder.call("LOCK.RELEASE k holder"), "0");
        assert_eq!(session.some_events(), [format!("granted {n} 1")]);
        assert_eq!(session.resume([world.client(), world.client()]), format!("[{}, 0]", session.id));
        assert_eq!(session.events(0), [""; 0], "the event is acknowledged by this call");
        assert_eq!(session.resume([world.client(), world.client()]), format!("[{}, 1]", session.id));
        assert_eq!(session.release(n), "0");
        assert_eq!(session.close(), "0");
        assert_eq!(session.close(), "0", "the session is over");
        let id = again.trim_start_matches('[').split(',').next().unwrap();
        assert_eq!(other.call(&format!("LOCK.SESSION CLOSE {id}")), "0");
        // CLOSE counts holds, and releases those that end with the session.
        let mut session = Session::open(world, TTL, GRACE);
        assert_eq!(session.acquire("e", "s", "EPHEMERAL").1, "1");
        assert_eq!(session.acquire("f", "s", "").1, "1");
        assert_eq!(session.close(), "1");
        assert_eq!(holder.call("EXISTS e f"), "1");
        assert_eq!(holder.call("LOCK.BREAK f"), "1");
    });
}

fn invalid_arguments_of_sessions_are_refused(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let session = Session::open(world, TTL, GRACE);
        let id = session.id.clone();
        let long = format!("NEW 1 TTL 1000 NAME {}", "x".repeat(257));
        for (call, problem) in [
            ("", "subcommand needs a value"),
            ("FOO", "syntax error"),
            ("OPEN NEW", "beat needs a value"),
            ("OPEN NEW 1", "TTL is missing"),
            ("OPEN NEW 0 TTL 1000", "beat is out of range"),
            ("OPEN NEW x TTL 1000", "beat 'x' is not an integer"),
            ("OPEN NEW 1 TTL", "TTL needs a value"),
            ("OPEN NEW 1 TTL 0", "TTL is out of range"),
            ("OPEN NEW 1 TTL 1000 TTL 1000", "TTL is given twice"),
            ("OPEN NEW 1 TTL 1000 GRACE -1", "GRACE is out of range"),
            ("OPEN NEW 1 TTL 1000 GRACE 1 GRACE 1", "GRACE is given twice"),
            ("OPEN NEW 1 TTL 1000 FOO", "syntax error"),
            ("OPEN NEW 1 TTL 3600001", "TTL is out of range"),
            (&format!("OPEN {long}"), "NAME is 257 bytes long"),
            (&format!("OPEN {id}"), "beat needs a value"),
            (&format!("OPEN {id} 2 TTL 1000"), "syntax error"),
            ("CLOSE", "session needs a value"),
            (&format!("CLOSE {id} x"), "syntax error"),
            ("LIST FOO", "syntax error"),
            ("LIST COUNT 0", "COUNT is out of range"),
        ] {
            let reply = a.call(&format!("LOCK.SESSION {call}"));
            let arity = reply.starts_with("ERR wrong number of arguments");
            assert!(arity || reply.starts_with(&format!("ERR {problem}")), "{call}: {reply}");
            assert!(!reply.contains(&id), "{reply}");
        }
        for (call, problem) in [
            ("", "beat needs a value"),
            ("2", "seq needs a value"),
            ("2 0", "done needs a value"),
            ("0 0 0", "beat is out of range"),
            ("2 -1 0", "seq is out of range"),
            ("2 0 x", "done 'x' is not an integer"),
            ("2 0 0 -1", "milliseconds is out of range"),
            ("2 0 0 0 0", "count is out of range"),
            ("2 0 0 0 1 1", "syntax error"),
            ("2 1 0", "seq is greater than the last event"),
        ] {
            let reply = a.call(&format!("LOCK.EVENTS {id} {call}"));
            let arity = reply.starts_with("ERR wrong number of arguments");
            assert!(arity || reply.starts_with(&format!("ERR {problem}")), "{call}: {reply}");
            assert!(!reply.contains(&id), "{reply}");
        }
        // None of these calls has had an effect.
        assert_eq!(a.call(&format!("LOCK.EVENTS {id} 2 0 0")), "[]");
        assert_eq!(a.info("lock", "lock_sessions"), "1");
    });
}

fn session_excludes_other_options(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let session = Session::open(world, TTL, GRACE);
        let of = format!("SESSION {} 1", session.id);
        for (call, problem) in [
            (format!("ACQUIRE k o {of} BLOCK 0"), "only one of SESSION and BLOCK is allowed"),
            (format!("ACQUIRE k o {of} ID r"), "only one of SESSION and ID is allowed"),
            (format!("ACQUIRE k o {of} REPLICAS 1"), "REPLICAS with SESSION needs QUEUE"),
            (format!("ACQUIRE k o {of} MAX 5"), "MAX needs WATCHDOG"),
            (format!("MACQUIRE 2 k l o {of} BLOCK 0"), "only one of SESSION and BLOCK is allowed"),
            (format!("MACQUIRE 2 k l o {of} ID r"), "only one of SESSION and ID is allowed"),
            ("MACQUIRE 2 k l o QUEUE 0".to_owned(), "QUEUE needs SESSION"),
            ("RENEW k o FROM other 1".to_owned(), "FROM needs SESSION"),
            (format!("RENEW k o {of} FROM other"), "FROM needs a value"),
            (format!("RENEW k o {of} FROM other 0"), "FROM is out of range"),
            (format!("ACQUIRE k * {of}"), "SESSION needs an owner other than *"),
            (format!("ACQUIRE k o {of} {of}"), "SESSION is given twice"),
            (format!("ACQUIRE k o {of} QUEUE 0 BLOCK 0"), "only one of BLOCK and QUEUE is allowed"),
            (format!("ACQUIRE k o {of} QUEUE 0 QUEUE 0"), "QUEUE is given twice"),
            (format!("ACQUIRE k o {of} QUEUE -1"), "QUEUE is out of range"),
            ("ACQUIRE k o QUEUE 0".to_owned(), "QUEUE needs SESSION"),
            (format!("ACQUIRE k o SESSION {} 0", session.id), "SESSION is out of range"),
            (format!("ACQUIRE k o SESSION {}", session.id), "SESSION needs a value"),
            ("ACQUIRE k o SESSION".to_owned(), "SESSION needs a value"),
            (format!("RELEASE k o {of} ALL"), "only one of SESSION and ALL is allowed"),
            (format!("RELEASE k o {of} SHARED"), "only one of SESSION and SHARED is allowed"),
            (format!("RELEASE k o {of} ID r"), "only one of SESSION and ID is allowed"),
            (format!("CANCEL k o {of} ID r"), "syntax error"),
        ] {
            let reply = a.call(&format!("LOCK.{call}"));
            assert!(reply.starts_with(&format!("ERR {problem}")), "{call}: {reply}");
            assert!(!reply.contains(&session.id), "{reply}");
        }
        assert_eq!(a.call("KEYS *"), "[]");
    });
}

fn unknown_ids_get_nosession(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k o"), "1");
        let unknown = "0123456789abcdef0123456789abcdef";
        for id in [unknown, "x", "NEWS", &unknown.to_uppercase(), &"x".repeat(500)] {
            for call in [
                format!("LOCK.SESSION OPEN {id} 5"),
                format!("LOCK.EVENTS {id} 5 0 0"),
                format!("LOCK.EVENTS {id} 5 0 0 60000"),
                format!("LOCK.ACQUIRE free o SESSION {id} 1"),
                format!("LOCK.ACQUIRE k o SESSION {id} 1"),
                format!("LOCK.ACQUIRE k p SESSION {id} 1 QUEUE 0"),
                format!("LOCK.RENEW k o SESSION {id} 1"),
                format!("LOCK.RELEASE k o SESSION {id} 1"),
                format!("LOCK.CANCEL k o SESSION {id} 1"),
            ] {
                let reply = a.call(&call);
                assert_eq!(prefix(&reply), "NOSESSION", "{call}");
                assert!(!reply.contains(id), "{reply}");
            }
            assert_eq!(a.call(&format!("LOCK.SESSION CLOSE {id}")), "0");
        }
        assert_eq!(a.call("HGETALL k"), "[o, 1]");
        assert_eq!(a.call("EXISTS free"), "0");
        assert_eq!((a.number_of_waiters(), a.info("lock", "lock_sessions")), (0, "0".to_owned()));
    });
}

fn scripts_cannot_use_sessions(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let session = Session::open(world, TTL, GRACE);
        let id = &session.id;
        for call in [
            "'LOCK.SESSION','OPEN','NEW','1','TTL','10000'".to_owned(),
            format!("'LOCK.SESSION','OPEN','{id}','7'"),
            format!("'LOCK.SESSION','CLOSE','{id}'"),
            format!("'LOCK.EVENTS','{id}','7','0','0'"),
            format!("'LOCK.ACQUIRE','k','o','SESSION','{id}','1'"),
            format!("'LOCK.RENEW','k','o','SESSION','{id}','1'"),
            format!("'LOCK.RELEASE','k','o','SESSION','{id}','1'"),
            format!("'LOCK.CANCEL','k','o','SESSION','{id}','1'"),
        ] {
            let script = format!("return redis.pcall({call})");
            let reply = a.call_args(&[b"EVAL", script.as_bytes(), b"0"]);
            assert!(reply.starts_with("ERR ") && reply.contains("outside of scripts"), "{call}: {reply}");
            assert!(!reply.contains(id.as_str()), "{reply}");
        }
        assert_eq!(a.call(&format!("LOCK.EVENTS {id} 2 0 0")), "[]", "the session has changed");
        assert_eq!(a.info("lock", "lock_sessions"), "1");
    });
}

/// R16
fn late_beats_have_no_effect(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut holder = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        assert_eq!(holder.call("LOCK.ACQUIRE k holder"), "1");
        let n = session.queue("k", "s", "");
        assert_eq!(holder.call("LOCK.RELEASE k holder"), "0");
        session.take_beat();
        assert_eq!(session.some_events(), [format!("granted {n} 1")]);
        let mut late = world.client();
        for beat in 1..=3 {
            for call in [
                format!("LOCK.SESSION OPEN {} {beat}", session.id),
                format!("LOCK.EVENTS {} {beat} 1 9", session.id),
                format!("LOCK.EVENTS {} {beat} 1 9 60000", session.id),
            ] {
                let reply = late.call(&call);
                assert_eq!(prefix(&reply), "LATE", "{call}: {reply}");
            }
        }
        // The late calls have acknowledged nothing, and forgotten no number.
        let next = session.take_beat();
        let again = format!("LOCK.EVENTS {} {next} 0 0", session.id);
        assert_eq!(session.reader.call(&again), format!("[[1, granted, {n}, 1]]"));
        assert_eq!(session.acquire_again(n, ""), "1");
        // The end of a connection that only made late calls means nothing.
        late.close();
        assert_eq!(session.events(0), [""; 0]);
        let left = listed(&mut holder)[0]["left"].parse::<u64>().unwrap();
        assert!(left > GRACE, "{left}");
        assert_eq!(session.release(n), "0");
    });
}

/// The entries of `LOCK.SESSION LIST`.
fn listed(client: &mut Client) -> Vec<std::collections::BTreeMap<String, String>> {
    let Value::Array(entries) = client.call_value("LOCK.SESSION LIST") else { panic!("no list") };
    let texts = |entry| fields(entry).into_iter().map(|(name, value)| (name, show(value))).collect();
    entries.iter().map(texts).collect()
}

fn only_the_latest_caller_is_the_reader(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut watcher = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        let reader = |watcher: &mut Client| listed(watcher)[0]["client"].clone();
        assert_eq!(reader(&mut watcher), session.reader.id.to_string());
        session.resume([world.client(), world.client()]);
        assert_eq!(reader(&mut watcher), session.reader.id.to_string());
        // Any connection may call EVENTS, which makes it the reader.
        let mut next = world.client();
        let beat = session.take_beat();
        assert_eq!(next.call(&format!("LOCK.EVENTS {} {beat} 0 0", session.id)), "[]");
        assert_eq!(reader(&mut watcher), next.id.to_string());
        let far = |watcher: &mut Client| listed(watcher)[0]["left"].parse::<u64>().unwrap() > GRACE;
        // Neither the former reader nor the connection of other calls matters.
        assert_eq!(session.acquire("k", "s", "EPHEMERAL").1, "1");
        session.reader.close_half();
        session.pool.close_half();
        for old in [session.reader.id, session.pool.id] {
            until("it is closed", || watcher.call(&format!("CLIENT LIST ID {old}")).is_empty());
        }
        assert!(far(&mut watcher));
        let id = next.id;
        next.close();
        until("the reader is closed", || watcher.call(&format!("CLIENT LIST ID {id}")).is_empty());
        assert!(!far(&mut watcher), "the end of the reader does not limit the session to GRACE");
        assert_eq!(reader(&mut watcher), "nil");
        session.resume([world.client(), world.client()]);
        assert!(far(&mut watcher));
    });
}

fn events_are_delivered_until_acknowledged(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut holder = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        for key in ["a", "b", "c"] {
            assert_eq!(holder.call(&format!("LOCK.ACQUIRE {key} holder")), "1");
            session.queue(key, "s", if key == "b" { "FENCE" } else { "" });
        }
        for key in ["b", "a", "c"] {
            assert_eq!(holder.call(&format!("LOCK.RELEASE {key} holder")), "0");
        }
        let ask = |session: &mut Session, client: &mut Client, seq: u64| {
            let beat = session.take_beat();
            client.call(&format!("LOCK.EVENTS {} {beat} {seq} 0 10000", session.id))
        };
        let token = holder.call("GET redisson_lock_token:{b}");
        let all = format!("[[1, granted, 2, 1, {token}], [2, granted, 1, 1], [3, granted, 3, 1]]");
        // Events are in order, and are delivered on every connection until they are acknowledged.
        assert_eq!(ask(&mut session, &mut holder, 0), all);
        let mut broken = world.client();
        assert_eq!(ask(&mut session, &mut broken, 0), all);
        broken.close();
        let mut next = world.client();
        assert_eq!(ask(&mut session, &mut next, 0), all);
        assert_eq!(ask(&mut session, &mut next, 1), "[[2, granted, 1, 1], [3, granted, 3, 1]]");
        assert_eq!(ask(&mut session, &mut next, 0), "[[2, granted, 1, 1], [3, granted, 3, 1]]");
        // RELEASE and CANCEL of a number drop its event.
        assert_eq!(session.release(3), "0");
        assert_eq!(ask(&mut session, &mut next, 1), "[[2, granted, 1, 1]]");
        assert_eq!(session.cancel(1), "1");
        let beat = session.take_beat();
        assert_eq!(next.call(&format!("LOCK.EVENTS {} {beat} 3 0", session.id)), "[]");
        assert_eq!(session.release(2), "0");
        assert_eq!(holder.call("EXISTS a b c"), "0");
    });
}

fn count_limits_a_reply(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut holder = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        for number in 1..=5 {
            assert_eq!(holder.call(&format!("LOCK.ACQUIRE k{number} holder")), "1");
            session.queue(&format!("k{number}"), "s", "");
        }
        for number in 1..=5 {
            assert_eq!(holder.call(&format!("LOCK.RELEASE k{number} holder")), "0");
        }
        let mut ask = |seq: u64, count: u64| {
            let beat = session.take_beat();
            session.reader.call(&format!("LOCK.EVENTS {} {beat} {seq} 0 10000 {count}", session.id))
        };
        assert_eq!(ask(0, 2), "[[1, granted, 1, 1], [2, granted, 2, 1]]");
        assert_eq!(ask(2, 1), "[[3, granted, 3, 1]]");
        assert_eq!(ask(2, 5), "[[3, granted, 3, 1], [4, granted, 4, 1], [5, granted, 5, 1]]");
        for n in 1..=5 {
            assert_eq!(session.release(n), "0");
        }
    });
}

fn a_newer_event_replaces_the_pending_one(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut holder = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        assert_eq!(holder.call("LOCK.ACQUIRE k holder"), "1");
        session.queue("k", "s", "");
        assert_eq!(holder.call("LOCK.RELEASE k holder"), "0");
        assert_eq!(holder.call("DEL k"), "1");
        let ask = |session: &mut Session, seq: u64| {
            let beat = session.take_beat();
            session.reader.call(&format!("LOCK.EVENTS {} {beat} {seq} 0 10000", session.id))
        };
        assert_eq!(ask(&mut session, 0), "[[2, lost, 1, deleted]]", "the grant is no longer pending");
        assert_eq!(ask(&mut session, 0), "[[2, lost, 1, deleted]]");
        let beat = session.take_beat();
        assert_eq!(session.reader.call(&format!("LOCK.EVENTS {} {beat} 2 0", session.id)), "[]");
    });
}

fn a_blocked_events_call_ends_early(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut holder = world.client();
        // EVENTS blocks for at most a third of GRACE (R19).
        let mut session = Session::open(world, TTL, TTL);
        // A newer call ends an older one, on the same or on another connection.
        session.send_events(TTL);
        world.until_blocked(&session.reader);
        let mut newer = world.client();
        let beat = session.take_beat();
        newer.send(&format!("LOCK.EVENTS {} {beat} 0 0 {TTL}", session.id));
        assert_eq!(session.recv_events(), Ok(Vec::new()));
        world.until_blocked(&newer);
        // An event ends it.
        assert_eq!(holder.call("LOCK.ACQUIRE k holder"), "1");
        let n = session.queue("k", "s", "");
        assert!(newer.has_nothing());
        assert_eq!(holder.call("LOCK.RELEASE k holder"), "0");
        assert_eq!(newer.recv(), format!("[[1, granted, {n}, 1]]"));
        assert_eq!(session.events(0), [format!("granted {n} 1")]);
        // CLIENT UNBLOCK ends it as if the time was over, if the server supports that for modules.
        if flavor.may_unblock() {
            session.send_events(TTL);
            world.until_blocked(&session.reader);
            assert_eq!(holder.call(&format!("CLIENT UNBLOCK {}", session.reader.id)), "1");
            assert_eq!(session.recv_events(), Ok(Vec::new()));
            session.send_events(TTL);
            world.until_blocked(&session.reader);
            assert_eq!(holder.call(&format!("CLIENT UNBLOCK {} ERROR", session.reader.id)), "1");
            assert_eq!(prefix(&session.recv_events().unwrap_err()), "UNBLOCKED");
        }
        // CLOSE ends it.
        session.send_events(TTL);
        world.until_blocked(&session.reader);
        assert_eq!(session.close(), "0", "the hold is not ephemeral");
        assert_eq!(prefix(&session.recv_events().unwrap_err()), "NOSESSION");
        // The times of the call and of GRACE limit it.
        let mut brief = Session::open(world, TTL, 30);
        assert_eq!(brief.events(TTL), [""; 0]);
        let mut session = Session::open(world, TTL, TTL);
        assert_eq!(session.events(1), [""; 0]);
        holder.call("LOCK.BREAK k");
    });
}

fn events_never_block_in_multi(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut holder = world.client();
        let mut session = Session::open(world, TTL, TTL);
        assert_eq!(holder.call("LOCK.ACQUIRE k holder"), "1");
        let n = session.number("k", "s");
        let acquire = session.command("ACQUIRE", n, "QUEUE 0");
        let events = format!("LOCK.EVENTS {} 2 0 0 {TTL}", session.id);
        session.reader.send_at_once(&["MULTI", &events, &acquire, "EXEC"]);
        let replies = [(); 4].map(|()| session.reader.recv());
        assert_eq!(replies, ["OK", "QUEUED", "QUEUED", "[[], 0]"]);
        assert_eq!(holder.call("LOCK.RELEASE k holder"), "0");
        let events = format!("LOCK.EVENTS {} 3 0 0 {TTL}", session.id);
        session.reader.send_at_once(&["MULTI", &events, "EXEC"]);
        let replies = [(); 3].map(|()| session.reader.recv());
        assert_eq!(replies, ["OK", "QUEUED", &format!("[[[1, granted, {n}, 1]]]")]);
        session.take_beat();
        session.take_beat();
        assert_eq!(session.release(n), "0");
        // OPEN and CLOSE work in transactions, too.
        holder.send_at_once(&["MULTI", "LOCK.SESSION OPEN NEW 1 TTL 60000", "EXEC"]);
        let [_, _, reply] = [(); 3].map(|()| holder.recv());
        let id = reply.trim_start_matches('[').split(',').next().unwrap().to_owned();
        holder.send_at_once(&["MULTI", &format!("LOCK.SESSION CLOSE {id}"), "EXEC"]);
        assert_eq!([(); 3].map(|()| holder.recv()), ["OK", "QUEUED", "[0]"]);
    });
}

/// R12
fn a_repeated_acquire_gets_its_outcome(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut holder = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        assert_eq!(holder.call("LOCK.ACQUIRE k holder"), "1");
        // Busy: nil is remembered, even if the lock is free when the call arrives again.
        let first = session.number("other", "s");
        let (busy, reply) = session.acquire("k", "s", "");
        assert_eq!(reply, "nil");
        let waiting = session.queue("k", "s", "");
        assert_eq!(session.acquire_again(waiting, "QUEUE 0"), "0");
        assert_eq!(holder.number_of_waiters(), 1);
        assert_eq!(holder.call("LOCK.RELEASE k holder"), "0");
        // In flight, acknowledged, and held.
        assert_eq!(session.acquire_again(waiting, "QUEUE 0"), "1");
        assert_eq!(session.some_events(), [format!("granted {waiting} 1")]);
        assert_eq!(session.events(0), [""; 0]);
        assert_eq!(session.acquire_again(waiting, "QUEUE 0"), "1");
        assert_eq!(session.acquire_again(busy, ""), "nil");
        let (second, reply) = session.acquire("k", "s", "FENCE");
        let token = holder.call("GET redisson_lock_token:{k}");
        assert_eq!(reply, format!("[owner, s, holds, 2, token, {token}]"));
        assert_eq!(session.acquire_again(second, "FENCE"), reply);
        assert_eq!(holder.call("HGET k s"), "2");
        // Released and lost.
        assert_eq!(session.release(second), "1");
        assert_eq!(prefix(&session.acquire_again(second, "")), "NOTOWNER");
        assert_eq!(holder.call("DEL k"), "1");
        assert_eq!(prefix(&session.acquire_again(waiting, "")), "NOTOWNER");
        assert_eq!(holder.call("EXISTS k"), "0", "a number is granted twice");
        assert_eq!(session.some_events(), [format!("lost {waiting} deleted")]);
        // A wait whose time is over answers nil from then on.
        assert_eq!(holder.call("LOCK.ACQUIRE k holder"), "1");
        let (timed, reply) = session.acquire("k", "s", "QUEUE 1");
        assert_eq!(reply, "0");
        assert_eq!(session.some_events(), [format!("lost {timed} timeout")]);
        assert_eq!(holder.call("LOCK.RELEASE k holder"), "0");
        assert_eq!(session.acquire_again(timed, "QUEUE 1"), "nil");
        // An error is not remembered.
        let n = session.number("k", "s");
        let wrong = session.command("ACQUIRE", n, "PX 0");
        assert!(session.pool.call(&wrong).starts_with("ERR "));
        assert_eq!(holder.call("SET string value"), "OK");
        let m = session.number("string", "s");
        let acquire = session.command("ACQUIRE", m, "");
        assert_eq!(prefix(&session.pool.call(&acquire)), "WRONGTYPE");
        assert_eq!(holder.call("DEL string"), "1");
        assert_eq!([session.acquire_again(n, ""), session.acquire_again(m, "")], ["1", "1"]);
        assert_eq!([session.release(n), session.release(m), session.cancel(first)], ["0", "0", "0"]);
    });
}

/// R11
fn numbers_below_done_are_late(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut holder = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        assert_eq!(holder.call("LOCK.ACQUIRE busy holder"), "1");
        let held = session.acquire("k", "s", "").0;
        let released = session.acquire("k", "s", "").0;
        let busy = session.acquire("busy", "s", "").0;
        assert_eq!(session.release(released), "1");
        assert_eq!(session.release(released), "1", "a repeated release");
        let unsent = session.number("k", "s");
        assert_eq!(session.done(), unsent);
        assert_eq!(session.events(0), [""; 0]);
        for n in [released, busy] {
            assert_eq!(prefix(&session.acquire_again(n, "")), "LATE");
            assert_eq!(prefix(&session.renew(n, "")), "LATE");
        }
        // Numbers that are held stay known.
        assert_eq!(session.acquire_again(held, ""), "1");
        assert_eq!(session.renew(held, ""), "1");
        assert_eq!(prefix(&session.release(released)), "NOTOWNER");
        assert_eq!(session.cancel(busy), "0");
        assert_eq!(session.acquire_again(unsent, ""), "2");
        // `done` never decreases.
        let beat = session.take_beat();
        assert_eq!(session.reader.call(&format!("LOCK.EVENTS {} {beat} 0 1", session.id)), "[]");
        assert_eq!(prefix(&session.acquire_again(busy, "")), "LATE");
        assert_eq!(session.release(held), "1");
        assert_eq!(session.release(unsent), "0");
    });
}

fn a_number_has_one_lock_and_owner(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut session = Session::open(world, TTL, GRACE);
        let n = session.acquire("k", "s", "").0;
        let id = session.id.clone();
        session.pool.call("LOCK.ACQUIRE k other");
        for call in ["ACQUIRE other s", "ACQUIRE k t", "RENEW k t", "RELEASE other s", "CANCEL k t"] {
            let reply = session.pool.call(&format!("LOCK.{call} SESSION {id} {n}"));
            assert!(reply.starts_with("ERR number was used before"), "{call}: {reply}");
        }
        session.pool.call("SELECT 1");
        let reply = session.pool.call(&format!("LOCK.RELEASE k s SESSION {id} {n}"));
        assert!(reply.starts_with("ERR number was used before"), "another database: {reply}");
        session.pool.call("SELECT 0");
        assert_eq!(session.release(n), "0");
        // Two databases in one session.
        session.pool.call("SELECT 1");
        let m = session.acquire("k", "s", "").0;
        session.pool.call("SELECT 0");
        let o = session.acquire("k", "s", "").0;
        assert_eq!(session.release(o), "0");
        session.pool.call("SELECT 1");
        assert_eq!(session.pool.call("HGETALL k"), "[s, 1]");
        assert_eq!(session.release(m), "0");
        session.pool.call("SELECT 0");
    });
}

/// R5
fn release_concerns_its_number_only(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut holder = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        let first = session.acquire("k", "s", "").0;
        let second = session.acquire("k", "s", "").0;
        let shared = session.acquire("r", "s", "SHARED").0;
        let exclusive = session.acquire("r", "s", "").0;
        assert_eq!(session.release(first), "1");
        assert_eq!(session.release(first), "1", "the first reply again");
        assert_eq!(holder.call("HGETALL k"), "[s, 1]");
        assert_eq!(session.release(shared), "1");
        assert!(holder.call("LOCK.INFO r").contains("exclusive"), "the other hold was released");
        assert_eq!(session.release(exclusive), "0");
        assert_eq!(session.cancel(first), "0", "CANCEL after RELEASE");
        assert_eq!(holder.call("HGETALL k"), "[s, 1]");
        // A new hold of the same owner has its own number.
        assert_eq!(session.release(second), "0");
        let third = session.acquire("k", "s", "").0;
        assert_eq!([session.release(first), session.release(second)], ["1", "0"]);
        assert_eq!(holder.call("HGETALL k"), "[s, 1]");
        assert_eq!(session.release(third), "0");
        // RELEASE of a wait changes nothing.
        assert_eq!(holder.call("LOCK.ACQUIRE k holder"), "1");
        let waiting = session.queue("k", "s", "");
        assert_eq!(prefix(&session.release(waiting)), "NOTOWNER");
        assert_eq!(holder.number_of_waiters(), 1);
        assert_eq!(session.cancel(waiting), "1");
        holder.call("LOCK.RELEASE k holder");
    });
}

fn is_cancelled(reply: &str) -> bool {
    ["UNBLOCKED request was cancelled", "CANCELLED "].iter().any(|text| reply.starts_with(text))
}

fn cancel_undoes_any_state(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut holder = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        assert_eq!(holder.call("LOCK.ACQUIRE k holder"), "1");
        // Not yet seen.
        let unseen = session.number("free", "s");
        assert_eq!(session.cancel(unseen), "0");
        assert!(is_cancelled(&session.acquire_again(unseen, "")));
        assert_eq!(prefix(&session.renew(unseen, "")), "NOTOWNER");
        assert_eq!(session.cancel(unseen), "0");
        // Waiting.
        let waiting = session.queue("k", "s", "");
        assert_eq!([session.cancel(waiting), session.cancel(waiting)], ["1", "1"]);
        assert!(is_cancelled(&session.acquire_again(waiting, "QUEUE 0")));
        assert_eq!(holder.number_of_waiters(), 0);
        // In flight. The next waiter gets the lock.
        let granted = session.queue("k", "s", "");
        let mut next = world.waiting("LOCK.ACQUIRE k next BLOCK 0");
        assert_eq!(holder.call("LOCK.RELEASE k holder"), "0");
        assert_eq!(holder.call("HGETALL k"), "[s, 1]");
        assert_eq!(session.cancel(granted), "1");
        assert_eq!(next.recv(), "1");
        assert_eq!(session.events(0), [""; 0], "CANCEL drops the event");
        assert_eq!(next.call("LOCK.RELEASE k next"), "0");
        // Held.
        let first = session.acquire("k", "s", "").0;
        let second = session.acquire("k", "s", "").0;
        assert_eq!([session.cancel(second), session.cancel(second)], ["1", "1"]);
        assert_eq!(holder.call("HGETALL k"), "[s, 1]");
        assert_eq!(session.release(first), "0");
        assert_eq!(session.cancel(first), "0");
        assert_eq!(holder.call("EXISTS k free"), "0");
    });
}

/// R23
fn release_of_an_unseen_number_is_remembered(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut holder = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        let n = session.number("k", "s");
        assert_eq!(prefix(&session.release(n)), "NOTOWNER");
        assert_eq!(prefix(&session.acquire_again(n, "")), "NOTOWNER");
        assert_eq!(holder.call("EXISTS k"), "0");
        // A declaration that arrives after its release binds nothing.
        assert_eq!(holder.call("LOCK.ACQUIRE k s"), "1");
        let m = session.number("k", "s");
        assert_eq!(prefix(&session.release(m)), "NOTOWNER");
        assert_eq!(prefix(&session.renew(m, "")), "NOTOWNER");
        assert_eq!(holder.info("lock", "lock_watchdogs"), "0");
        assert_eq!(holder.call("LOCK.RELEASE k s"), "0");
    });
}

/// R5, R6
fn a_declaration_binds_one_unnumbered_hold(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut holder = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        assert_eq!(prefix(&session.declare("k", "s", "").1), "NOTOWNER");
        for count in ["1", "2"] {
            assert_eq!(holder.call("LOCK.ACQUIRE k s PX 100000"), count);
        }
        let (first, reply) = session.declare("k", "s", "");
        assert_eq!(reply, "2", "the owner's count");
        assert_eq!(holder.info("lock", "lock_watchdogs"), "1");
        let (second, reply) = session.declare("k", "s", "EPHEMERAL");
        assert_eq!(reply, "2");
        assert_eq!(prefix(&session.declare("k", "s", "").1), "NOTOWNER", "all holds have numbers");
        assert_eq!([session.renew(first, ""), session.acquire_again(first, "")], ["2", "2"]);
        // An acquire of the session has a number from the start.
        let third = session.acquire("k", "s", "").0;
        assert_eq!(prefix(&session.declare("k", "s", "").1), "NOTOWNER");
        assert_eq!(session.release(third), "2");
        assert_eq!(session.release(first), "1");
        assert_eq!(prefix(&session.renew(first, "")), "NOTOWNER", "a released number");
        assert_eq!(session.close(), "1");
        assert_eq!(holder.call("EXISTS k"), "0", "the declared hold is ephemeral");
        // A shared hold, and the hold of another client.
        let mut session = Session::open(world, TTL, GRACE);
        assert_eq!(holder.call("LOCK.ACQUIRE r s SHARED"), "1");
        let (n, reply) = session.declare("r", "s", "");
        assert_eq!(reply, "1");
        let other = session.declare("r", "t", "").1;
        assert_eq!(prefix(&other), "NOTOWNER");
        assert_eq!(session.release(n), "0");
        let _ = second;
    });
}

/// R7
fn a_bound_hold_keeps_its_lease(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut other = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        let n = session.acquire("k", "s", "PX 300000").0;
        let mut keeps = |call: &str, reply: &str| {
            assert_eq!(other.call(call), reply, "{call}");
            assert!(other.number("PTTL k") > 200_000, "{call} shortens the lease");
        };
        keeps("LOCK.ACQUIRE k s PX 1000", "2");
        keeps("LOCK.RENEW k s PX 1000", "2");
        keeps("LOCK.MRENEW 1 k s PX 1000", "[2]");
        keeps("LOCK.RELEASE k s PX 1000", "1");
        keeps("LOCK.ACQUIRE k s PX 1000 WATCHDOG", "2");
        keeps("LOCK.RELEASE k s", "1");
        assert_eq!(session.renew(n, "PX 30000"), "1");
        assert!(other.number("PTTL k") > 200_000);
        let second = session.acquire("k", "s", "PX 1000").0;
        assert!(other.number("PTTL k") > 200_000);
        assert_eq!(session.release(second), "1");
        assert!(other.number("PTTL k") > 200_000);
        // A longer lease is set.
        assert_eq!(other.call("LOCK.RENEW k s PX 900000"), "1");
        assert!(other.number("PTTL k") > 800_000);
        // Without a bound hold, the owner may shorten it.
        assert_eq!(other.call("LOCK.ACQUIRE k s"), "2");
        assert_eq!(session.release(n), "1");
        assert_eq!(other.call("LOCK.RENEW k s PX 100000"), "1");
        assert!(other.number("PTTL k") <= 100_000);
        other.call("LOCK.BREAK k");
    });
}

/// R10
fn leases_of_renewed_holds_are_checked(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut other = world.client();
        let mut session = Session::open(world, TTL, 20_000);
        let shorter = "ERR lease is shorter than 3 times the GRACE of the session";
        for command in ["ACQUIRE", "RENEW"] {
            let n = session.number("k", "s");
            let call = session.command(command, n, "WATCHDOG PX 59999");
            let reply = session.pool.call(&call);
            assert!(reply.starts_with(shorter) && reply.ends_with("60000 ms"), "{command}: {reply}");
            assert_eq!(session.cancel(n), "0");
        }
        // The default is at least as long, even if `lock.default-lease` is shorter.
        let n = session.acquire("k", "s", "").0;
        assert!((55_000..=60_000).contains(&other.number("PTTL k")));
        assert_eq!(other.info("lock", "lock_watchdogs"), "1");
        assert_eq!(session.release(n), "0");
        let n = session.acquire("k", "s", "WATCHDOG EX 60").0;
        assert_eq!(other.info("lock", "lock_watchdogs"), "1");
        assert_eq!(session.release(n), "0");
        other.call("CONFIG SET lock.default-lease 100000");
        let n = session.acquire("k", "s", "").0;
        assert!(other.number("PTTL k") > 90_000);
        assert_eq!(session.release(n), "0");
        assert_eq!(other.info("lock", "lock_watchdogs"), "0");
        // A renewed hold is renewed.
        let mut brief = Session::open(world, TTL, 100);
        let n = brief.acquire("k", "s", "WATCHDOG PX 3000").0;
        let end = other.number("PEXPIRETIME k");
        until("the lease is renewed", || other.number("PEXPIRETIME k") > end);
        assert_eq!(brief.release(n), "0");
    });
}

fn a_plain_lease_ends_by_itself(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut other = world.client();
        let mut session = Session::open(world, TTL, 100);
        let n = session.acquire("k", "s", "PX 200").0;
        assert_eq!(other.info("lock", "lock_watchdogs"), "0");
        assert_eq!(session.some_events(), [format!("lost {n} expired")]);
        assert_eq!(other.call("EXISTS k"), "0");
        assert_eq!(prefix(&session.renew(n, "")), "LATE", "the number is below done");
        // A renewal with another option binds the hold from then on.
        let n = session.acquire("k", "s", "PX 100000").0;
        assert_eq!(session.renew(n, ""), "1");
        assert_eq!(other.info("lock", "lock_watchdogs"), "1");
        assert_eq!(session.release(n), "0");
        // A waiter gets the lock at the end of the lease.
        let n = session.acquire("k", "s", "PX 200").0;
        let mut next = world.waiting("LOCK.ACQUIRE k next BLOCK 0");
        assert_eq!(next.recv(), "1");
        assert_eq!(session.some_events(), [format!("lost {n} expired")]);
        assert_eq!(next.call("LOCK.RELEASE k next"), "0");
    });
}

fn every_loss_is_reported_with_its_reason(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut other = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        for events in ["no", "yes"] {
            other.call(&format!("CONFIG SET lock.events {events}"));
            for (calls, reason) in [
                (&["DEL k"][..], "deleted"),
                (&["UNLINK k"], "deleted"),
                (&["FLUSHALL"], "deleted"),
                (&["FLUSHDB ASYNC"], "deleted"),
                (&["SWAPDB 0 1"], "deleted"),
                (&["LOCK.BREAK k"], "broken"),
                (&["RENAME k elsewhere"], "deleted"),
                (&["MOVE k 3"], "deleted"),
                (&["HDEL k s"], "deleted"),
                (&["LOCK.RELEASE k s"], "deleted"),
                (&["LOCK.RELEASE k s ALL"], "deleted"),
                (
                    &[
                        "CONFIG SET maxmemory-policy volatile-ttl",
                        "CONFIG SET maxmemory 1",
                        "SET x y",
                        "CONFIG SET maxmemory 0",
                        "CONFIG SET maxmemory-policy noeviction",
                    ],
                    "evicted",
                ),
            ] {
                let n = session.acquire("k", "s", "").0;
                assert_eq!(session.events(0), [""; 0]);
                other.send_at_once(calls);
                calls.iter().for_each(|_| drop(other.recv()));
                assert_eq!(session.some_events(), [format!("lost {n} {reason}")], "{calls:?}");
                assert_eq!(session.events(0), [""; 0], "{calls:?}");
                let released = session.release(n);
                assert!(["NOTOWNER", "WRONGTYPE"].contains(&prefix(&released)), "{calls:?}: {released}");
                other.call("FLUSHALL");
            }
        }
        // A grant in flight is lost too.
        for (call, reason) in [("DEL k", "deleted"), ("LOCK.BREAK k", "broken"), ("FLUSHALL", "deleted")] {
            assert_eq!(other.call("LOCK.ACQUIRE k other"), "1");
            let n = session.queue("k", "s", "");
            assert_eq!(other.call("LOCK.RELEASE k other"), "0");
            assert_eq!(other.call("HGETALL k"), "[s, 1]");
            other.call(call);
            assert_eq!(session.some_events(), [format!("lost {n} {reason}")], "{call}");
            other.call("FLUSHALL");
        }
    });
}

/// The server reports no SET to the module. The next renewal or the next call for the lock notices it.
fn an_overwritten_key_is_noticed_by_the_renewal(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut other = world.client();
        let mut session = Session::open(world, TTL, 100);
        let n = session.acquire("k", "s", "WATCHDOG PX 3000").0;
        assert_eq!(other.call("SET k text"), "OK");
        assert_eq!(session.some_events(), [format!("lost {n} wrongtype")]);
        assert_eq!(prefix(&session.release(n)), "WRONGTYPE");
        other.call("DEL k");
        // A wait and a grant in flight.
        assert_eq!(other.call("LOCK.ACQUIRE k other"), "1");
        let granted = session.queue("k", "s", "");
        let waiting = session.queue("k", "t", "");
        assert_eq!(other.call("LOCK.RELEASE k other"), "0");
        assert_eq!(other.call("SET k text"), "OK");
        assert_eq!(prefix(&other.call("LOCK.ACQUIRE k other")), "WRONGTYPE");
        let mut events = session.some_events();
        until("both are lost", || {
            events.extend(session.events(0));
            events.len() >= 2
        });
        events.sort();
        assert_eq!(events, [granted, waiting].map(|n| format!("lost {n} wrongtype")));
        other.call("DEL k");
    });
}

/// Foreign scripts and calls without a number may release holds of a session.
fn calls_without_numbers_lose_excess_numbers(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut other = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        let first = session.acquire("k", "s", "").0;
        let second = session.acquire("k", "s", "").0;
        // The owner has a hold without a number, which is released first.
        assert_eq!(other.call("LOCK.ACQUIRE k s"), "3");
        assert_eq!(other.call("LOCK.RELEASE k s"), "2");
        assert_eq!(session.events(0), [""; 0]);
        assert_eq!(other.call("LOCK.RELEASE k s"), "1");
        let lost = session.some_events();
        let one = |n: u64| vec![format!("lost {n} deleted")];
        assert!(lost == one(first) || lost == one(second), "{lost:?}");
        assert_eq!(other.call("HINCRBY k s -1"), "0");
        other.call("DEL k");
        let lost = session.some_events();
        assert!(lost == one(first) || lost == one(second), "{lost:?}");
        assert_eq!(other.info("lock", "lock_watchdogs"), "0");
    });
}

fn contention_is_reported_once(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut other = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        let n = session.acquire("k", "s", "").0;
        let silent = world.waiting("LOCK.ACQUIRE k silent BLOCK 0");
        assert_eq!(session.events(0), [""; 0], "lock.events is off");
        silent.close();
        until("it has left", || other.number_of_waiters() == 0);
        other.call("CONFIG SET lock.events yes");
        let waiters = [(); 2].map(|()| world.waiting("LOCK.ACQUIRE k other BLOCK 0"));
        assert_eq!(session.some_events(), [format!("contended {n}")]);
        assert_eq!(session.events(0), [""; 0]);
        assert_eq!(session.release(n), "0");
        drop(waiters);
        until("the lock is free", || other.call("LOCK.BREAK k") == "0" && other.number_of_waiters() == 0);
    });
}

fn holders_and_sessions_are_listed(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut watcher = world.client();
        let counters = ["lock_sessions", "lock_sessions_opened", "lock_sessions_expired"];
        let mut count = || counters.map(|field| watcher.info("lock", field));
        assert_eq!(count(), ["0", "0", "0"]);
        let mut session = Session::open_on([world.client(), world.client()], TTL, GRACE, "NAME worker-7");
        let mut plain = Session::open(world, TTL, GRACE);
        assert_eq!(count(), ["2", "2", "0"]);
        assert_eq!(session.acquire("k", "s", "EPHEMERAL").1, "1");
        assert_eq!(session.acquire("l", "s", "").1, "1");
        let waiting = plain.queue("k", "w", "");
        let mut info = |key: &str| {
            let reply = watcher.call_value(&format!("LOCK.INFO {key}"));
            let Value::Array(holders) = fields(&reply)["holders"] else { panic!("no holders") };
            let texts = fields(&holders[0]).into_iter().map(|(name, value)| (name, show(value)));
            texts.collect::<std::collections::BTreeMap<_, _>>()
        };
        let held = info("k");
        assert_eq!((held["session"].as_str(), held["watchdog"].as_str()), ("worker-7", "1"));
        assert_eq!(held["ephemeral"], "1");
        let held = info("l");
        assert_eq!((held["session"].as_str(), held["ephemeral"].as_str()), ("worker-7", "0"));
        watcher.call("LOCK.ACQUIRE m m");
        assert!(watcher.call("LOCK.INFO m").contains("session, nil"));
        let entries = listed(&mut watcher);
        let texts =
            |at: usize, names: &[&str]| names.iter().map(|n| entries[at][*n].clone()).collect::<Vec<_>>();
        let names = ["name", "user", "client", "holds", "waits", "events"];
        let reader = session.reader.id.to_string();
        assert_eq!(texts(0, &names), ["worker-7", "default", &reader, "2", "0", "0"]);
        let reader = plain.reader.id.to_string();
        assert_eq!(texts(1, &names), ["", "default", &reader, "0", "1", "0"]);
        let number = |text: &str| text.parse::<u64>().unwrap();
        assert!(number(&entries[0]["left"]) <= TTL && number(&entries[0]["age"]) < TTL);
        assert_eq!(watcher.call("LOCK.SESSION LIST MATCH worker-*").matches("worker-7").count(), 1);
        assert_eq!(watcher.call("LOCK.SESSION LIST MATCH x*"), "[]");
        assert_eq!(watcher.call("LOCK.SESSION LIST COUNT 1").matches("name").count(), 1);
        for id in [&session.id, &plain.id] {
            assert!(!watcher.call("LOCK.SESSION LIST").contains(id.as_str()));
            assert!(!watcher.call("LOCK.INFO k").contains(id.as_str()));
            assert!(!watcher.call("LOCK.WAITERS k").contains(id.as_str()));
            assert!(!watcher.call("LOCK.LIST").contains(id.as_str()));
        }
        assert_eq!(session.close(), "1");
        assert_eq!(plain.some_events(), [format!("granted {waiting} 1")]);
        assert_eq!(plain.close(), "1", "a grant in flight is revoked");
        watcher.call("LOCK.BREAK k");
        watcher.call("LOCK.BREAK l");
    });
}

fn sessions_are_limited(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        a.call("CONFIG SET lock.max-sessions 2");
        let mut first = Session::open(world, TTL, GRACE);
        let _second = Session::open(world, TTL, GRACE);
        let reply = a.call("LOCK.SESSION OPEN NEW 1 TTL 1000");
        assert!(reply.starts_with("LIMIT "), "{reply}");
        assert_eq!(first.resume([world.client(), world.client()]), format!("[{}, 0]", first.id));
        first.close();
        let _third = Session::open(world, TTL, GRACE);
        a.call("CONFIG SET lock.max-sessions 0");
        let _fourth = Session::open(world, TTL, GRACE);
        a.call("CONFIG SET lock.max-session-ttl 5000");
        let reply = a.call("LOCK.SESSION OPEN NEW 1 TTL 5001");
        assert!(reply.starts_with("ERR TTL is out of range") && reply.contains("5000"), "{reply}");
        assert!(a.call("LOCK.SESSION OPEN NEW 1 TTL 5000").starts_with('['));
        assert_eq!(first.id.len(), 32);
        a.call("CONFIG SET lock.max-lease 9000");
        assert!(a.call("LOCK.SESSION OPEN NEW 1 TTL 5000 GRACE 3000").starts_with('['));
        let reply = a.call("LOCK.SESSION OPEN NEW 1 TTL 5000 GRACE 3001");
        assert!(reply.starts_with("ERR GRACE is out of range") && reply.contains("9000"), "{reply}");
        a.call("CONFIG SET lock.max-lease 0");
        // GRACE above TTL counts as TTL.
        a.call("CONFIG SET lock.max-session-ttl 0");
        let mut long = Session::open(world, 100_000, 100_000_000);
        let n = long.number("k", "s");
        let call = long.command("ACQUIRE", n, "WATCHDOG PX 1");
        assert!(long.pool.call(&call).ends_with("300000 ms"));
        assert_eq!(long.cancel(n), "0");
    });
}

fn ids_belong_to_users(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        for user in ["alice", "bob"] {
            a.call(&format!("ACL SETUSER {user} on >pw ~* &* +@all"));
        }
        let of = |user: &str| {
            let mut client = world.client();
            assert_eq!(client.call(&format!("AUTH {user} pw")), "OK");
            client
        };
        let mut session = Session::open_on([of("alice"), of("alice")], TTL, GRACE, "NAME shared");
        let n = session.acquire("k", "s", "").0;
        let id = session.id.clone();
        for mut other in [of("bob"), world.client()] {
            for call in [
                format!("LOCK.SESSION OPEN {id} 9"),
                format!("LOCK.EVENTS {id} 9 0 0"),
                format!("LOCK.RELEASE k s SESSION {id} {n}"),
                format!("LOCK.CANCEL k s SESSION {id} {n}"),
                format!("LOCK.RENEW k s SESSION {id} {n}"),
                format!("LOCK.ACQUIRE l s SESSION {id} 7"),
            ] {
                assert_eq!(prefix(&other.call(&call)), "NOSESSION", "{call}");
            }
            assert_eq!(other.call(&format!("LOCK.SESSION CLOSE {id}")), "0");
        }
        assert_eq!(session.events(0), [""; 0]);
        assert_eq!(listed(&mut a)[0]["user"], "alice");
        // A connection that changes its user loses the session within a second.
        let mut changed = of("alice");
        let renew = format!("LOCK.RENEW k s SESSION {id} {n}");
        assert_eq!(changed.call(&renew), "1");
        changed.call("AUTH bob pw");
        until("the permission is checked again", || prefix(&changed.call(&renew)) == "NOSESSION");
        // The commands need their permissions.
        a.call("ACL SETUSER bob reset on >pw ~k &* +lock.acquire");
        for call in ["LOCK.SESSION OPEN NEW 1 TTL 1000", "LOCK.SESSION LIST", "LOCK.EVENTS x 1 0 0"] {
            assert_eq!(prefix(&of("bob").call(call)), "NOPERM", "{call}");
        }
        assert_eq!(session.release(n), "0");
    });
}

fn no_other_output_shows_an_id(flavor: Flavor) {
    let mut texts = Vec::new();
    let mut id = String::new();
    in_world(flavor, |world| {
        let (mut a, mut monitor) = (world.client(), world.client());
        a.call("CONFIG SET slowlog-log-slower-than 0");
        a.call("CONFIG SET latency-monitor-threshold 1");
        a.call("CONFIG SET notify-keyspace-events KEAm");
        a.call("CONFIG SET lock.events yes");
        let mut messages = world.client();
        messages.call("HELLO 3");
        messages.call("PSUBSCRIBE *");
        assert_eq!(monitor.call("MONITOR"), "OK");
        let mut session = Session::open_on([world.client(), world.client()], TTL, 100, "NAME public");
        id.clone_from(&session.id);
        a.call("LOCK.ACQUIRE k a");
        let n = session.queue("k", "s", "WATCHDOG PX 3000 EPHEMERAL FENCE");
        a.call("LOCK.RELEASE k a");
        assert_eq!(session.some_events().len(), 1);
        let m = session.acquire("l", "s", "EPHEMERAL").0;
        session.cancel(m);
        until("the lease is renewed", || a.number("PTTL k") < 2_900 || session.renew(n, "") == "1");
        session.close();
        a.call("PUBLISH last message");
        a.call("PING last");
        // The monitor shows each call of a client once, with the words that the client sent.
        loop {
            let line = monitor.recv();
            if line.contains("\"last\"") && line.contains("PING") {
                break;
            }
            if line.contains(&id) {
                let calls = ["LOCK.SESSION", "LOCK.EVENTS", "LOCK.ACQUIRE", "LOCK.CANCEL", "LOCK.RENEW"];
                assert!(calls.iter().any(|call| line.contains(&format!("\"{call}\""))), "{line}");
            }
        }
        loop {
            let message = messages.recv();
            texts.push(message.clone());
            if message.contains("last") {
                break;
            }
        }
        let Value::Array(entries) = a.call_value("SLOWLOG GET -1") else { panic!("no slowlog") };
        for entry in entries {
            let Value::Array(entry) = entry else { panic!("no entry") };
            let words = show(&entry[3]);
            assert!(!words.contains(&id) || words.starts_with("[LOCK."), "{words}");
        }
        texts.push(a.call("LATENCY LATEST"));
        texts.push(a.call("INFO everything"));
        texts.push(a.call("CLIENT LIST"));
        texts.push(a.call("KEYS *"));
        texts.push(a.call("ACL LOG"));
        texts.push(world.log());
    });
    for text in texts {
        assert!(!text.contains(&id), "the id is in {text}");
    }
}

fn resp3_replies_are_the_same(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let resp3 = || {
            let mut client = world.client();
            client.call("HELLO 3");
            client
        };
        let mut session = Session::open_on([resp3(), resp3()], TTL, GRACE, "NAME three");
        a.call("LOCK.ACQUIRE k a");
        let n = session.queue("k", "s", "FENCE");
        session.send_events(GRACE);
        world.until_blocked(&session.reader);
        a.call("LOCK.RELEASE k a");
        let token = a.call("GET redisson_lock_token:{k}");
        assert_eq!(session.recv_events(), Ok(vec![format!("granted {n} 1 {token}")]));
        let again = session.acquire_again(n, "FENCE QUEUE 0");
        assert_eq!(again, format!("{{owner: s, holds: 1, token: {token}}}"));
        a.call("DEL k");
        assert_eq!(session.some_events(), [format!("lost {n} deleted")]);
        assert_eq!(session.acquire_again(n, "").split(' ').next(), Some("LATE"));
        let list = session.pool.call("LOCK.SESSION LIST");
        assert!(list.starts_with("[{name: three, user: default, client: "), "{list}");
        a.call("LOCK.ACQUIRE k a");
        assert_eq!(session.acquire("k", "s", "").1, "nil");
        a.call("LOCK.RELEASE k a");
    });
}

/// Sessions exist in memory only. The hash of a lock and the AOF are those of calls without sessions.
fn nothing_is_stored_or_replicated(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open_on([world.client(), world.client()], TTL, GRACE, "NAME secret");
        let n = session.acquire("k", "s", "EPHEMERAL WATCHDOG").0;
        session.acquire("k", "s", "");
        session.acquire("fenced", "s", "FENCE");
        assert_eq!(a.call("HGETALL k"), "[s, 2]");
        assert_eq!(session.release(n), "1");
        session.events(0);
        assert_eq!(a.call("KEYS *").split(", ").count(), 3, "two locks and a counter");
        a.call("SET written text");
        until("the AOF is written", || aof(world).windows(7).any(|part| part == b"written"));
        let text = String::from_utf8_lossy(&aof(world)).to_uppercase();
        for word in [session.id.as_str(), "secret", "LOCK.", "SESSION"] {
            assert!(!text.contains(&word.to_uppercase()), "the AOF has {word}");
        }
        session.close();
        a.call("LOCK.BREAK k");
        a.call("LOCK.BREAK fenced");
    });
}

fn aof(world: &crate::support::World) -> Vec<u8> {
    let files = std::fs::read_dir(world.primary.dir.path().join("appendonlydir")).unwrap();
    files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
}
