// SPDX-License-Identifier: MIT

//! Calls of a session that arrive late or twice, broken and frozen connections, and clients that the server disconnects.
//! Numbers of rules, such as R16, are those of `tests/protocol/README.md`.

use std::time::Instant;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::support::client::prefix;
use crate::support::proxy::Proxy;
use crate::support::{until, with_sessions, Client, Flavor, Session, World};

crate::on_every_server!(
    late_heartbeats_change_nothing,
    late_calls_concern_their_numbers_only,
    late_calls_below_done_change_nothing,
    late_calls_find_no_ended_session,
    lost_replies_are_repeated,
    a_late_open_ends_by_itself,
    a_vanished_client_is_noticed_after_ttl,
    many_breaks_lose_and_double_nothing,
    a_second_user_of_an_id_is_noticed,
    output_limits_cost_no_events,
    evicted_clients_can_resume,
    a_deleted_user_loses_its_sessions,
    killed_connections_of_other_calls_mean_nothing,
);

const TTL: u64 = 600_000;
const GRACE: u64 = 10_000;

/// A connection that delays the calls that it carries.
pub(super) struct Delayed {
    proxy: Proxy,
    client: Client,
}

impl Delayed {
    pub(super) fn new(world: &World) -> Delayed {
        let proxy = Proxy::freezable(world.port);
        let client = Client::connect(proxy.port);
        Delayed { proxy, client }
    }

    /// Sends calls, which arrive in [`deliver`](Self::deliver) only.
    pub(super) fn hold_back(&mut self, calls: &[String]) {
        self.proxy.freeze_old();
        self.client.send_at_once(&calls.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Lets the calls arrive, and returns their replies.
    pub(super) fn deliver(&mut self, number: usize) -> Vec<String> {
        self.proxy.thaw();
        (0..number).map(|_| self.client.recv()).collect()
    }
}

/// R16
fn late_heartbeats_change_nothing(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut other = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        assert_eq!(other.call("LOCK.ACQUIRE k other"), "1");
        let n = session.queue("k", "s", "");
        let mut late = Delayed::new(world);
        let [open, events, blocking] = [(); 3].map(|()| session.take_beat());
        let id = session.id.clone();
        late.hold_back(&[
            format!("LOCK.SESSION OPEN {id} {open}"),
            format!("LOCK.EVENTS {id} {events} 0 {}", n + 1),
            format!("LOCK.EVENTS {id} {blocking} 0 {} 60000", n + 1),
        ]);
        assert_eq!(other.call("LOCK.RELEASE k other"), "0");
        assert_eq!(session.some_events(), [format!("granted {n} 1")]);
        assert!(late.deliver(3).iter().all(|reply| prefix(reply) == "LATE"));
        // The late connection is not the reader.
        let (late_id, Delayed { proxy, client }) = (late.client.id, late);
        client.close();
        proxy.break_all();
        until("it is closed", || other.call(&format!("CLIENT LIST ID {late_id}")).is_empty());
        assert!(other.call("LOCK.SESSION LIST").contains(&format!("client, {}", session.reader.id)));
        assert_eq!(session.release(n), "0");
    });
}

fn late_calls_concern_their_numbers_only(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut other = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        // `done` stays below this number.
        let pin = session.number("pin", "s");
        let cancelled = session.number("k", "s");
        let released = session.acquire("k", "s", "").0;
        let mut late = Delayed::new(world);
        late.hold_back(&[
            session.command("ACQUIRE", cancelled, "QUEUE 0"),
            session.command("ACQUIRE", released, "QUEUE 0 EPHEMERAL"),
            session.command("RENEW", released, "EPHEMERAL"),
            session.command("RENEW", cancelled, ""),
            session.command("RELEASE", released, ""),
            session.command("RELEASE", cancelled, ""),
            session.command("CANCEL", released, ""),
        ]);
        assert_eq!([session.cancel(cancelled), session.release(released)], ["0", "0"]);
        // A numbered hold and a plain hold of the owner.
        let held = session.acquire("k", "s", "").0;
        assert_eq!(other.call("LOCK.ACQUIRE k s PX 600000"), "2");
        assert_eq!(session.events(0), [""; 0]);
        let replies = late.deliver(7);
        assert!(replies[0].contains("cancelled by LOCK.CANCEL"), "{}", replies[0]);
        for reply in [&replies[1], &replies[2], &replies[3], &replies[5]] {
            assert_eq!(prefix(reply), "NOTOWNER", "{replies:?}");
        }
        assert_eq!(replies[4], "0", "the first reply to this release");
        assert_eq!(replies[6], "0");
        assert_eq!(other.call("HGETALL k"), "[s, 2]");
        assert_eq!(session.release(held), "1");
        assert_eq!(other.call("LOCK.RELEASE k s"), "0");
        assert_eq!(session.cancel(pin), "0");
    });
}

/// R11
fn late_calls_below_done_change_nothing(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut other = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        let cancelled = session.number("k", "s");
        let released = session.acquire("k", "s", "").0;
        let mut late = Delayed::new(world);
        let calls: Vec<String> = [cancelled, released]
            .iter()
            .flat_map(|n| ["ACQUIRE", "RENEW", "RELEASE", "CANCEL"].map(|call| session.command(call, *n, "")))
            .collect();
        late.hold_back(&calls);
        assert_eq!([session.cancel(cancelled), session.release(released)], ["0", "0"]);
        let held = session.acquire("k", "s", "").0;
        assert_eq!(other.call("LOCK.ACQUIRE k s PX 600000"), "2");
        assert_eq!(session.events(0), [""; 0]);
        for replies in late.deliver(8).chunks(4) {
            let prefixes: Vec<&str> = replies.iter().map(|reply| prefix(reply)).collect();
            assert_eq!(prefixes, ["LATE", "LATE", "NOTOWNER", "0"]);
        }
        assert_eq!(other.call("HGETALL k"), "[s, 2]");
        assert_eq!(session.release(held), "1");
        assert_eq!(other.call("LOCK.RELEASE k s"), "0");
    });
}

/// R18
fn late_calls_find_no_ended_session(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut other = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        let n = session.acquire("k", "s", "").0;
        let m = session.number("l", "s");
        let mut late = Delayed::new(world);
        let (beat, id) = (session.take_beat(), session.id.clone());
        late.hold_back(&[
            format!("LOCK.SESSION OPEN {id} {beat}"),
            format!("LOCK.EVENTS {id} {} 0 0 60000", beat + 1),
            session.command("ACQUIRE", m, "QUEUE 0"),
            session.command("RENEW", n, "EPHEMERAL"),
            session.command("RELEASE", n, ""),
            session.command("CANCEL", n, ""),
            format!("LOCK.SESSION CLOSE {id}"),
        ]);
        assert_eq!(session.close(), "0", "the hold stays, with its lease");
        // The client has a new session, with the same owner and the same numbers.
        let mut session = Session::open(world, TTL, GRACE);
        assert_eq!(session.declare("k", "s", ""), (n, "1".to_owned()));
        let replies = late.deliver(7);
        assert!(replies[..6].iter().all(|reply| prefix(reply) == "NOSESSION"), "{replies:?}");
        assert_eq!(replies[6], "0");
        assert_eq!(other.call("HGETALL k"), "[s, 1]");
        assert_eq!(other.call("EXISTS l"), "0");
        assert_eq!(session.events(0), [""; 0]);
        assert_eq!(session.release(n), "0");
    });
}

/// The server has executed each call, and its reply is lost.
fn lost_replies_are_repeated(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut other = world.client();
        let proxy = Proxy::freezable(world.port);
        let connect = || Client::connect(proxy.port);
        let mut session = Session::open_on([connect(), connect()], TTL, GRACE, "");
        let pin = session.number("pin", "s");
        let lose = |session: &mut Session, word: &str, call: &str| {
            proxy.lose_the_reply_to(word);
            session.pool.send(call);
            until("the reply is lost", || proxy.has_lost_a_reply());
            assert!(session.pool.try_recv().is_err());
            session.pool = connect();
            session.pool.call(call)
        };
        let n = session.number("k", "s");
        let acquire = session.command("ACQUIRE", n, "QUEUE 0");
        assert_eq!(lose(&mut session, "LOCK.ACQUIRE", &acquire), "1");
        let m = session.number("k", "s");
        let acquire = session.command("ACQUIRE", m, "");
        assert_eq!(lose(&mut session, "LOCK.ACQUIRE", &acquire), "2");
        assert_eq!(other.call("HGETALL k"), "[s, 2]");
        let renew = session.command("RENEW", m, "");
        assert_eq!(lose(&mut session, "LOCK.RENEW", &renew), "2");
        let release = session.command("RELEASE", m, "");
        assert_eq!(lose(&mut session, "LOCK.RELEASE", &release), "1");
        let cancel = session.command("CANCEL", n, "");
        assert_eq!(lose(&mut session, "LOCK.CANCEL", &cancel), "1");
        assert_eq!(other.call("EXISTS k"), "0");
        assert_eq!(session.cancel(pin), "0");
        // Events arrive again on the next connection.
        assert_eq!(other.call("LOCK.ACQUIRE k other"), "1");
        let n = session.queue("k", "s", "");
        assert_eq!(other.call("LOCK.RELEASE k other"), "0");
        proxy.lose_the_reply_to("LOCK.EVENTS");
        session.send_events(0);
        until("the reply is lost", || proxy.has_lost_a_reply());
        assert!(session.reader.is_closed());
        assert_eq!(session.resume([connect(), connect()]), format!("[{}, 0]", session.id));
        assert_eq!(session.some_events(), [format!("granted {n} 1")]);
        assert_eq!(session.release(n), "0");
        assert_eq!(session.events(0), [""; 0]);
        // OPEN is repeated with the next beat.
        proxy.lose_the_reply_to("LOCK.SESSION");
        let beat = session.take_beat();
        session.reader.send(&format!("LOCK.SESSION OPEN {} {beat}", session.id));
        until("the reply is lost", || proxy.has_lost_a_reply());
        assert!(session.reader.is_closed());
        assert_eq!(session.resume([connect(), connect()]), format!("[{}, 1]", session.id));
        let close = format!("LOCK.SESSION CLOSE {}", session.id);
        assert_eq!(lose(&mut session, "LOCK.SESSION", &close), "0");
    });
}

fn a_late_open_ends_by_itself(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut other = world.client();
        let mut late = Delayed::new(world);
        late.hold_back(&["LOCK.SESSION OPEN NEW 1 TTL 600000 GRACE 500".to_owned()]);
        // The client has given up, and uses another session.
        let mut session = Session::open(world, TTL, GRACE);
        let n = session.acquire("k", "s", "").0;
        late.deliver(1);
        assert_eq!(other.info("lock", "lock_sessions"), "2");
        late.client.close();
        until("the late session is over", || other.info("lock", "lock_sessions") == "1");
        assert_eq!(session.events(0), [""; 0]);
        assert_eq!(session.release(n), "0");
    });
}

/// The network vanishes: no end of a connection reaches the server.
fn a_vanished_client_is_noticed_after_ttl(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let proxy = Proxy::freezable(world.port);
        let connect = || Client::connect(proxy.port);
        let mut session = Session::open_on([connect(), connect()], 3_000, 500, "");
        session.acquire("k", "s", "EPHEMERAL");
        let mut next = world.waiting("LOCK.ACQUIRE k next BLOCK 0 PX 600000");
        let heard = Instant::now();
        session.events(0);
        proxy.freeze();
        session.send_events(0);
        assert_eq!(next.recv(), "1");
        assert!(heard.elapsed().as_millis() >= 3_000, "{:?}", heard.elapsed());
        assert_eq!(session.safe_holds(), 0, "the client knows before the server");
        proxy.thaw();
        assert_eq!(prefix(&session.recv_events().unwrap_err()), "NOSESSION");
        assert_eq!(next.call("LOCK.RELEASE k next"), "0");
    });
}

/// A client whose connections break again and again repeats each call until it has the reply. Each acquire and release takes
/// effect once.
fn many_breaks_lose_and_double_nothing(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut rng = StdRng::seed_from_u64(7);
        let mut other = world.client();
        let proxy = Proxy::freezable(world.port);
        let connect = || Client::connect(proxy.port);
        let mut session = Session::open_on([connect(), connect()], TTL, GRACE, "");
        let mut held: Vec<u64> = Vec::new();
        for round in 0..300 {
            let acquires = held.is_empty() || rng.random_bool(0.6);
            let n = if acquires {
                session.number("k", "s")
            } else {
                held.swap_remove(rng.random_range(0..held.len()))
            };
            let call = session.command(if acquires { "ACQUIRE" } else { "RELEASE" }, n, "");
            // Breaks the connections at most three times: before, during or after the call.
            let mut breaks = rng.random_range(0..4);
            let reply = loop {
                if session.pool.try_send(&call).is_ok() {
                    if breaks == 0 {
                        break session.pool.recv();
                    }
                    proxy.break_all();
                }
                breaks -= 1;
                session.resume([connect(), connect()]);
            };
            if acquires {
                held.push(n);
            }
            if acquires {
                assert_eq!(reply, held.len().to_string(), "round {round}");
                assert_eq!(session.acquire_again(n, ""), reply);
            } else if reply != held.len().to_string() {
                // The release is executed, and its number is below `done`, so its reply is forgotten.
                assert_eq!(prefix(&reply), "NOTOWNER", "round {round}");
                let count = other.call("HGET k s").replace("nil", "0");
                assert_eq!(count, held.len().to_string(), "round {round}");
            }
            if rng.random_bool(0.3) {
                assert_eq!(session.events(0), [""; 0]);
            }
        }
        assert_eq!(other.call("HGET k s").replace("nil", "0"), held.len().to_string());
        for n in held {
            session.release(n);
        }
        assert_eq!(other.call("EXISTS k"), "0");
    });
}

/// Two processes with the same id, such as after a fork (R16, R17): the newest call of one of them is late.
fn a_second_user_of_an_id_is_noticed(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut session = Session::open(world, TTL, GRACE);
        session.events(0);
        let mut child = world.client();
        let mut beat = session.take_beat();
        let id = session.id.clone();
        for _ in 0..3 {
            assert_eq!(child.call(&format!("LOCK.EVENTS {id} {beat} 0 0")), "[]");
            beat += 2;
        }
        // The counter of the other process is behind.
        assert_eq!(prefix(&session.try_events(0).unwrap_err()), "LATE");
    });
}

fn output_limits_cost_no_events(flavor: Flavor) {
    with_sessions(flavor, |world| {
        const WAITS: usize = 900;
        let mut other = world.client();
        let mut session = Session::open(world, TTL, TTL);
        for key in 0..WAITS {
            assert_eq!(other.call(&format!("LOCK.ACQUIRE k{key} other")), "1");
            session.queue(&format!("k{key}"), "s", "");
        }
        for key in 0..WAITS {
            assert_eq!(other.call(&format!("LOCK.RELEASE k{key} other")), "0");
        }
        // The reply with all events is larger than the limit, so the server closes the connection.
        other.call_args(&[b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 2000 0 0"]);
        session.send_events(0);
        assert!(session.reader.is_closed());
        session.resume([world.client(), world.client()]);
        let (mut seq, mut total) = (0, 0);
        while total < WAITS {
            let beat = session.take_beat();
            let call = format!("LOCK.EVENTS {} {beat} {seq} 0 0 10", session.id);
            let redis::Value::Array(events) = session.reader.call_value(&call) else { panic!("no events") };
            assert!(!events.is_empty(), "{total} events");
            total += events.len();
            seq += events.len();
        }
        other.call_args(&[b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 0 0 0"]);
        for n in 1..=WAITS as u64 {
            assert_eq!(session.release(n), "0");
        }
    });
}

fn evicted_clients_can_resume(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut session = Session::open(world, TTL, GRACE);
        let n = session.acquire("k", "s", "EPHEMERAL").0;
        // The server evicts all clients but the protected one.
        assert_eq!(session.reader.call("CLIENT NO-EVICT ON"), "OK");
        session.reader.send("CONFIG SET maxmemory-clients 1");
        assert_eq!(session.reader.recv(), "OK");
        assert!(session.pool.is_closed());
        session.reader.call("CONFIG SET maxmemory-clients 0");
        assert_eq!(session.events(0), [""; 0]);
        session.pool = world.client();
        assert_eq!(session.acquire_again(n, ""), "1");
        // An evicted reader is like any other broken connection.
        session.reader.call("CLIENT NO-EVICT OFF");
        let mut operator = world.client();
        assert_eq!(operator.call("CLIENT NO-EVICT ON"), "OK");
        operator.call("CONFIG SET maxmemory-clients 1");
        assert!(session.reader.is_closed());
        operator.call("CONFIG SET maxmemory-clients 0");
        assert_eq!(session.resume([world.client(), world.client()]), format!("[{}, 0]", session.id));
        assert_eq!(session.release(n), "0");
    });
}

fn a_deleted_user_loses_its_sessions(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut operator = world.client();
        operator.call("ACL SETUSER alice on >pw ~* &* +@all");
        let alice = || {
            let mut client = world.client();
            assert_eq!(client.call("AUTH alice pw"), "OK");
            client
        };
        let mut session = Session::open_on([alice(), alice()], TTL, 0, "");
        session.acquire("k", "s", "EPHEMERAL");
        let mut next = world.waiting("LOCK.ACQUIRE k next BLOCK 0");
        // The server closes the connections of a deleted user.
        assert_eq!(operator.call("ACL DELUSER alice"), "1");
        assert_eq!(next.recv(), "1");
        assert_eq!(operator.info("lock", "lock_sessions"), "0");
        assert_eq!(next.call("LOCK.RELEASE k next"), "0");
    });
}

fn killed_connections_of_other_calls_mean_nothing(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut operator = world.client();
        let mut session = Session::open(world, TTL, 0);
        operator.call("LOCK.ACQUIRE k operator");
        let held = session.acquire("l", "s", "EPHEMERAL").0;
        let wait = session.queue("k", "s", "EPHEMERAL");
        for _ in 0..3 {
            assert_eq!(operator.call(&format!("CLIENT KILL ID {}", session.pool.id)), "1");
            assert!(session.pool.is_closed());
            session.pool = world.client();
            assert_eq!(session.acquire_again(wait, "QUEUE 0"), "0");
        }
        operator.call("LOCK.RELEASE k operator");
        assert_eq!(session.some_events(), [format!("granted {wait} 1")]);
        assert_eq!([session.release(held), session.release(wait)], ["0", "0"]);
    });
}
