// SPDX-License-Identifier: MIT

//! What becomes of waits and holds when connections break, and servers freeze or die.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use redis_lock_client::{Canceller, Error, Locks, Settings};
use support::{ms, until, Proxy, Server};

#[test]
fn a_connection_that_is_killed_comes_back_in_time() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let (hold, other) =
        (locks.lock("a").lease(ms(60_000)).acquire().unwrap(), locks.lock("b").acquire().unwrap());
    thread::scope(|scope| {
        let wait = scope.spawn(|| locks.lock("a").acquire());
        server.until_waiting("a", 1);
        let began = Instant::now();
        let _: i64 = server.call("CLIENT KILL TYPE normal SKIPME yes");
        // What is bound to its connection ends with it. That is told at once, long before the lease is over.
        assert!(other.wait_lost(ms(5000)));
        assert!(matches!(other.release(), Err(Error::Lost(_))));
        server.until_waiting("a", 1);
        assert!(began.elapsed() < ms(2000), "at once: {:?}", began.elapsed());
        assert!(!hold.is_lost());
        hold.release().unwrap();
        wait.join().unwrap().unwrap().release().unwrap();
    });
    server.assert_nothing_left("a");
    server.assert_nothing_left("b");
    assert!(server.connections() <= 2);
}

#[test]
fn a_kept_hold_whose_connection_is_half_open_is_bound_anew() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(500));
    let hold = locks.lock("a").lease(ms(3000)).keep(true).acquire().unwrap();
    let made = proxy.made();
    // The server does not hear of its end.
    proxy.swallow();
    until("another connection is made", || proxy.made() > made);
    until("it is renewed", || hold.valid_for() > ms(2000));
    let connections = server.connections();
    proxy.end_swallowed();
    until("the server hears of it", || server.connections() < connections);
    // It is bound to the other connection.
    assert!(!hold.wait_lost(ms(3500)));
    assert_eq!(server.holder("a"), [hold.owner()]);
    hold.release().unwrap();
    server.assert_nothing_left("a");
}

#[test]
fn a_renewal_that_comes_late_binds_nothing() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(300));
    let hold = locks.lock("a").lease(ms(1500)).keep(true).acquire().unwrap();
    let made = proxy.made();
    proxy.hold_back(true);
    until("another connection is made", || proxy.made() > made);
    until("it is bound to that", || hold.valid_for() > ms(1000));
    let connections = server.connections();
    proxy.hold_back(false);
    until("the first connections end", || server.connections() < connections);
    assert!(!hold.wait_lost(ms(100)) && server.holder("a") == [hold.owner()]);
    assert!(!hold.wait_lost(ms(1600)), "it is renewed");
    hold.release().unwrap();
    server.assert_nothing_left("a");
}

#[test]
fn a_connection_that_is_given_up_is_reset_and_one_that_is_closed_is_not() {
    // What ends a connection that says yes to `PING`, and nothing else, or that the lock is busy.
    let end_of = |blocks: bool, answers: bool, ends: fn(&Locks, &Canceller)| {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let client = redis::Client::open(("127.0.0.1", listener.local_addr().unwrap().port())).unwrap();
        let (locks, canceller) =
            (Locks::with_settings(&client, Settings::new().patience(ms(300))).unwrap(), Canceller::new());
        let lock = locks.lock("a").canceller(&canceller).wait(ms(60_000));
        let lock = if blocks { lock.blocking() } else { lock.wait(ms(0)) };
        thread::scope(|scope| {
            let call = scope.spawn(move || lock.acquire().map(drop));
            let mut stream = listener.accept().unwrap().0;
            let mut bytes = [0; 4096];
            assert!(stream.read(&mut bytes).unwrap() > 0);
            stream.write_all(b"+PONG\r\n").unwrap();
            // The call.
            assert!(stream.read(&mut bytes).unwrap() > 0);
            if answers {
                stream.write_all(b"$-1\r\n").unwrap();
                until("it is answered", || call.is_finished());
            }
            scope.spawn(|| ends(&locks, &canceller));
            let end = loop {
                match stream.read(&mut bytes) {
                    Ok(1..) => {}
                    end => break end.map_err(|error| error.kind()),
                }
            };
            // Nobody is there for those who try again.
            drop((stream, listener));
            canceller.cancel();
            assert!(call.join().unwrap().is_err());
            end
        })
    };
    let reset = Err(std::io::ErrorKind::ConnectionReset);
    assert_eq!(end_of(false, false, |_, _| ()), reset, "no answer");
    assert_eq!(end_of(false, true, |locks, _| locks.close()), Ok(0));
    assert_eq!(end_of(true, false, |locks, _| locks.close()), reset, "what waits is given up");
    assert_eq!(end_of(true, false, |_, canceller| canceller.cancel()), reset, "the wait was given up");
}

#[test]
fn a_connection_that_is_being_made_does_not_delay_the_end() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let client = redis::Client::open(("127.0.0.1", listener.local_addr().unwrap().port())).unwrap();
    let locks = Locks::with_settings(&client, Settings::new().patience(ms(20_000))).unwrap();
    assert!(locks.lock("a").wait(ms(100)).acquire().is_err());
    let began = Instant::now();
    locks.close();
    assert!(began.elapsed() < ms(3000), "{:?}", began.elapsed());
}

#[test]
fn a_lease_that_may_be_shorter_counts_as_such() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(2000));
    let hold = locks.lock("a").lease(ms(60_000)).acquire().unwrap();
    proxy.cut_replies_of("LOCK.RENEW", true);
    thread::scope(|scope| {
        let extend = scope.spawn(|| hold.extend(ms(700)));
        until("the server has it", || server.calls("lock.renew") > 0);
        assert!(hold.valid_for() <= ms(700), "{:?}", hold.valid_for());
        assert_eq!(extend.join().unwrap().unwrap_err().kind(), "unavailable");
    });
    assert!(hold.valid_for().is_zero() && hold.wait_lost(ms(5000)));
    // A longer one counts when it is confirmed. No late renewal may cut off this call.
    proxy.cut_replies_of("LOCK.RENEW", false);
    let hold = locks.lock("a").lease(ms(60_000)).acquire().unwrap();
    proxy.cut_replies_of("LOCK.RENEW", true);
    let calls = server.calls("lock.renew");
    thread::scope(|scope| {
        let extend = scope.spawn(|| hold.extend(ms(120_000)));
        until("it is sent again", || server.calls("lock.renew") > calls + 1);
        assert!(hold.valid_for() > ms(40_000) && hold.valid_for() <= ms(60_000));
        proxy.cut_replies_of("LOCK.RENEW", false);
        extend.join().unwrap().unwrap();
        assert!(hold.valid_for() > ms(60_000));
    });
    hold.release().unwrap();
    server.assert_nothing_left("a");
}

#[test]
fn an_extend_whose_answer_was_lost_is_sent_again() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(2000));
    for lease in [20_000, 120_000] {
        let hold = locks.lock("a").lease(ms(60_000)).acquire().unwrap();
        proxy.cut_reply_of("LOCK.RENEW");
        hold.extend(ms(lease)).unwrap();
        assert!(proxy.has_cut());
        proxy.cut();
        hold.extend(ms(lease)).unwrap();
        let (left, valid) = (server.call::<u64>("PTTL a"), hold.valid_for());
        // The question came later than the answer.
        assert!(valid <= ms(left + 1) && valid > ms(lease / 2), "{valid:?} of {left} ms");
        hold.release().unwrap();
        server.assert_nothing_left("a");
    }
}

#[test]
fn of_two_extends_the_shorter_counts_before_it_is_answered() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let client = redis::Client::open(("127.0.0.1", listener.local_addr().unwrap().port())).unwrap();
    let locks = Locks::new(&client).unwrap();
    thread::scope(|scope| {
        let acquire = scope.spawn(|| locks.lock("a").lease(ms(5000)).try_acquire());
        let mut stream = listener.accept().unwrap().0;
        let mut reader = stream.try_clone().unwrap();
        let mut said = Vec::new();
        // Whether that word is said in so long a time.
        let mut hears = |word: &str, time: u64| {
            reader.set_read_timeout(Some(ms(time))).unwrap();
            let mut bytes = [0; 4096];
            while !String::from_utf8_lossy(&said).contains(word) {
                let Ok(count @ 1..) = reader.read(&mut bytes) else { return false };
                said.extend_from_slice(&bytes[..count]);
            }
            true
        };
        assert!(hears("PING", 5000));
        stream.write_all(b"+PONG\r\n").unwrap();
        assert!(hears("LOCK.ACQUIRE", 5000));
        stream.write_all(b":1\r\n").unwrap();
        let hold = acquire.join().unwrap().unwrap().unwrap();
        thread::scope(|scope| {
            let long = scope.spawn(|| hold.extend(ms(60_000)));
            assert!(hears("60000", 5000));
            let short = scope.spawn(|| hold.extend(ms(10_000)));
            hears("10000", 300);
            stream.write_all(b":1\r\n").unwrap();
            long.join().unwrap().unwrap();
            assert!(hears("10000", 5000));
            assert!(hold.valid_for() <= ms(10_000), "{:?}", hold.valid_for());
            stream.write_all(b":1\r\n").unwrap();
            short.join().unwrap().unwrap();
        });
        assert!(hold.valid_for() <= ms(10_000) && !hold.is_lost());
    });
}

#[test]
fn a_kept_hold_without_its_connection_is_valid_for_no_time() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(5000));
    let kept = locks.lock("a").acquire().unwrap();
    let timed = locks.lock("b").lease(ms(30_000)).acquire().unwrap();
    assert!(kept.valid_for() > ms(20_000));
    proxy.freeze(true);
    proxy.cut();
    until("its connection has ended", || kept.valid_for().is_zero());
    assert!(!kept.is_lost() && timed.valid_for() > ms(20_000));
    until("the server knows", || !server.held("a"));
    proxy.freeze(false);
    assert!(kept.wait_lost(ms(5000)) && !timed.is_lost());
    timed.release().unwrap();
}

#[test]
fn the_reply_of_an_acquire_is_lost() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(2000));
    for lock in [locks.lock("a"), locks.lock("a").lease(ms(60_000)), locks.lock("a").fence().wait(ms(5000))] {
        proxy.cut_reply_of("LOCK.ACQUIRE");
        let hold = lock.acquire().unwrap();
        assert!(proxy.has_cut());
        assert_eq!(server.holder("a"), [hold.owner()]);
        // It was counted once, and if it is kept, by the connection that there is.
        hold.release().unwrap();
        server.assert_nothing_left("a");
        assert!(!hold.is_lost());
    }
    // A try does not try again, and leaves nothing.
    proxy.cut_reply_of("LOCK.ACQUIRE");
    assert_eq!(locks.lock("a").lease(ms(60_000)).try_acquire().unwrap_err().kind(), "unavailable");
    server.assert_nothing_left("a");
}

#[test]
fn a_hold_is_valid_no_longer_than_its_lease_though_the_reply_was_lost() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(5000));
    proxy.cut_reply_of("LOCK.ACQUIRE");
    thread::scope(|scope| {
        let acquire = scope.spawn(|| locks.lock("a").lease(ms(2000)).acquire());
        until("the server has it", || server.held("a"));
        proxy.freeze(true);
        thread::sleep(ms(500));
        proxy.freeze(false);
        let hold = acquire.join().unwrap().unwrap();
        let (left, valid) = (server.call::<u64>("PTTL a"), hold.valid_for());
        // The question came later than the answer.
        assert!(valid <= ms(left + 1), "{valid:?} of {left} ms");
        hold.release().unwrap();
    });
    server.assert_nothing_left("a");
}

#[test]
fn the_reply_of_a_release_is_lost() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(2000));
    let hold = locks.lock("a").lease(ms(60_000)).acquire().unwrap();
    // The next in line is not robbed of it.
    let next = server.locks();
    thread::scope(|scope| {
        let wait = scope.spawn(|| next.lock("a").acquire());
        server.until_waiting("a", 1);
        proxy.cut_reply_of("LOCK.RELEASE");
        hold.release().unwrap();
        hold.release().unwrap();
        assert!(proxy.has_cut() && !hold.is_lost());
        let theirs = wait.join().unwrap().unwrap();
        assert_eq!(server.holder("a"), [theirs.owner()]);
        theirs.release().unwrap();
    });
    server.assert_nothing_left("a");
}

#[test]
fn the_reply_to_a_drop_is_lost() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(2000));
    let hold = locks.lock("a").lease(ms(60_000)).acquire().unwrap();
    proxy.freeze(true);
    let began = Instant::now();
    drop(hold);
    assert!(began.elapsed() < ms(500), "it does not wait");
    proxy.cut();
    proxy.freeze(false);
    until("it is given back", || !server.held("a"));
}

#[test]
fn a_wait_survives_a_cut() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let (near, far) = (server.locks(), proxy.locks(ms(2000)));
    let hold = near.lock("a").acquire().unwrap();
    thread::scope(|scope| {
        let wait = scope.spawn(|| far.lock("a").acquire());
        server.until_waiting("a", 1);
        let began = Instant::now();
        proxy.cut();
        until("it waits on new connections", || proxy.made() >= 4 && server.waiters("a") == 1);
        assert!(began.elapsed() < ms(2000), "at once: {:?}", began.elapsed());
        hold.release().unwrap();
        let hold = wait.join().unwrap().unwrap();
        assert_eq!(server.holder("a"), [hold.owner()]);
        hold.release().unwrap();
    });
    server.assert_nothing_left("a");
}

#[test]
fn a_frozen_server_is_a_loss_by_the_own_clock() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let kept = locks.lock("a").lease(ms(900)).keep(true).acquire().unwrap();
    let timed = locks.lock("b").lease(ms(900)).acquire().unwrap();
    let began = Instant::now();
    server.signal("STOP");
    for hold in [&kept, &timed] {
        assert!(hold.wait_lost(ms(10_000)));
        // Before a call is given up.
        assert!(began.elapsed() < ms(2500), "{:?}", began.elapsed());
        assert!(matches!(hold.release(), Err(Error::Lost(_))));
    }
    // A wait ends when it is over, and so does one that is cancelled.
    let began = Instant::now();
    let canceller = Canceller::new();
    thread::scope(|scope| {
        let lock = locks.lock("c").canceller(&canceller);
        let wait = scope.spawn(move || lock.acquire());
        thread::sleep(ms(50));
        canceller.cancel();
        assert_eq!(wait.join().unwrap().unwrap_err().kind(), "cancelled");
    });
    assert!(began.elapsed() < ms(3000), "{:?}", began.elapsed());
    server.signal("CONT");
    until("what was sent meanwhile is undone", || {
        ["a", "b", "c"].iter().all(|key| !server.held(key) && server.waiters(key) == 0)
    });
}

#[test]
fn a_wait_ends_a_second_after_its_time_though_the_server_is_silent() {
    let Some(server) = Server::start(&[]) else { return };
    let near = server.locks();
    let first = near.lock("a").lease(ms(60_000)).acquire().unwrap();
    for (wait, blocks) in [(100, false), (100, true), (1500, false), (1500, true)] {
        let locks = server.locks();
        // There is a connection.
        locks.lock("b").acquire().unwrap().release().unwrap();
        let lock = locks.lock("a").wait(ms(wait));
        let lock = if blocks { lock.blocking() } else { lock };
        let stop = || server.signal("STOP");
        thread::scope(|scope| {
            if wait < 1000 {
                stop();
            }
            let began = Instant::now();
            let waits = scope.spawn(move || lock.acquire());
            if wait > 1000 {
                server.until_waiting("a", 1);
                stop();
            }
            assert_eq!(waits.join().unwrap().unwrap_err().kind(), "unavailable");
            let took = began.elapsed();
            assert!(took >= ms(wait) && took < ms(wait + 2500), "{wait} ms, {blocks}: {took:?}");
        });
        server.signal("CONT");
        server.until_waiting("a", 0);
    }
    first.release().unwrap();
}

#[test]
fn a_server_with_too_many_connections_is_tried_again() {
    let Some(server) = Server::start(&[]) else { return };
    let mut admin = server.client().get_connection().unwrap();
    let mut set = |count: u8| -> redis::RedisResult<()> {
        redis::cmd("CONFIG").arg("SET").arg("maxclients").arg(count).query(&mut admin)
    };
    set(1).unwrap();
    let locks = Locks::with_settings(&server.client(), Settings::new().patience(ms(500))).unwrap();
    let error = locks.lock("a").acquire().unwrap_err();
    assert!(error.kind() == "unavailable" && error.text().contains("max number of clients"), "{error}");
    thread::scope(|scope| {
        let wait = scope.spawn(|| locks.lock("a").wait(ms(20_000)).acquire());
        thread::sleep(ms(1000));
        assert!(!wait.is_finished());
        set(100).unwrap();
        wait.join().unwrap().unwrap().release().unwrap();
    });
}

#[test]
fn what_was_lost_by_the_own_clock_is_given_back_all_the_same() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(60_000));
    for ends in ["by itself", "by a release", "by a drop"] {
        let hold = locks.lock("a").lease(ms(600)).keep(true).acquire().unwrap();
        proxy.freeze(true);
        assert!(hold.wait_lost(ms(5000)));
        assert!(hold.check().unwrap_err().text().contains("its lease is over"), "{:?}", hold.check());
        // The server has renewed it, and would go on, as the connection is there.
        assert!(server.held("a"));
        let hold = match ends {
            "by a drop" => None,
            _ => Some(hold),
        };
        if ends == "by a release" {
            assert!(matches!(hold.as_ref().unwrap().release(), Err(Error::Lost(_))));
        }
        proxy.freeze(false);
        until(&format!("it is given back {ends}"), || !server.held("a"));
    }
    assert_eq!(proxy.made(), 2, "the connections are the same");
}

#[test]
fn a_release_that_failed_may_be_called_again() {
    // What was answered is written: with `everysec` a slow disk delays it.
    let Some(mut server) = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]) else { return };
    let locks = Locks::with_settings(&server.client(), Settings::new().patience(ms(500))).unwrap();
    let hold = locks.lock("a").lease(ms(1500)).acquire().unwrap();
    server.stop();
    let began = Instant::now();
    assert_eq!(hold.release().unwrap_err().kind(), "unavailable");
    assert!(began.elapsed() >= ms(1400) && began.elapsed() < ms(4000), "as long as the lease");
    server.start_again();
    assert!(matches!(hold.release(), Err(Error::Lost(_))), "its lease is over");
    // A server that is silent does not keep it for longer.
    let patient = server.locks();
    let hold = patient.lock("c").lease(ms(600)).acquire().unwrap();
    server.signal("STOP");
    let began = Instant::now();
    assert_eq!(hold.release().unwrap_err().kind(), "unavailable");
    assert!(began.elapsed() < ms(2000), "{:?}", began.elapsed());
    server.signal("CONT");
    let hold = locks.lock("b").lease(ms(60_000)).acquire().unwrap();
    thread::scope(|scope| {
        server.stop();
        let release = scope.spawn(|| hold.release());
        thread::sleep(ms(200));
        server.start_again();
        // It goes on, as the server has kept the lock.
        release.join().unwrap().unwrap();
    });
    server.assert_nothing_left("b");
}

#[test]
fn a_kept_hold_that_could_not_be_given_back_ends_with_its_lease() {
    let Some(server) = Server::start(&[]) else { return };
    let few = "+lock.acquire +lock.renew +lock.cancel +subscribe";
    let _: () = server.call(&format!("ACL SETUSER few on >few ~* resetchannels &lock:inbox:* {few}"));
    let client = redis::Client::open(format!("redis://few:few@127.0.0.1:{}", server.port)).unwrap();
    let locks = Locks::new(&client).unwrap();
    for drops in [false, true] {
        let hold = locks.lock("a").lease(ms(900)).keep(true).acquire().unwrap();
        if drops {
            drop(hold);
        } else {
            assert_eq!(hold.release().unwrap_err().kind(), "misuse");
            assert!(hold.check().is_ok() && hold.wait_lost(ms(5000)));
        }
        until("nobody renews it any more", || !server.held("a"));
    }
}

#[test]
fn a_permission_that_comes_back_gives_back() {
    let Some(server) = Server::start(&[]) else { return };
    let few = "+lock.acquire +lock.cancel +subscribe";
    let _: () = server.call(&format!("ACL SETUSER few on >few ~* resetchannels &lock:inbox:* {few}"));
    let client = redis::Client::open(format!("redis://few:few@127.0.0.1:{}", server.port)).unwrap();
    let locks = Locks::new(&client).unwrap();
    for (drops, permission) in [(false, "lock.release"), (true, "lock.release"), (true, "lock.renew")] {
        let hold = locks.lock("a").lease(ms(300)).keep(true).acquire().unwrap();
        if drops {
            drop(hold);
        } else {
            assert_eq!(hold.release().unwrap_err().kind(), "misuse");
        }
        thread::sleep(ms(900));
        assert!(server.held("a"), "the server keeps it");
        let _: () = server.call(&format!("ACL SETUSER few +{permission}"));
        until("it is free", || !server.held("a"));
        let _: () = server.call(&format!("ACL SETUSER few -{permission}"));
    }
}

#[test]
fn a_wait_goes_on_while_a_primary_has_no_replicas_yet() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    for blocks in [false, true] {
        let locks = proxy.locks(ms(5000));
        locks.lock("b").acquire().unwrap().release().unwrap();
        let made = proxy.made();
        let _: () = server.call("CONFIG SET min-replicas-to-write 1");
        let error = locks.lock("a").try_acquire().unwrap_err();
        assert!(error.kind() == "unavailable" && error.code() == Some("NOREPLICAS"), "{error}");
        thread::scope(|scope| {
            for key in ["a", "c", "d"] {
                let lock = locks.lock(key);
                let lock = if blocks { lock.blocking() } else { lock };
                scope.spawn(move || lock.acquire().unwrap().release().unwrap());
            }
            thread::sleep(ms(1000));
            let _: () = server.call("CONFIG SET min-replicas-to-write 0");
        });
        // One for each wait, if it is to have one.
        assert_eq!(proxy.made(), made + if blocks { 3 } else { 0 });
        server.assert_nothing_left("a");
    }
}

#[test]
fn a_server_that_is_no_primary_any_more_is_asked_rarely() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(5000));
    let kept = locks.lock("b").acquire().unwrap();
    thread::scope(|scope| {
        let waits: Vec<_> = (0..100)
            .map(|number| {
                let lock = locks.lock(format!("a{number}")).lease(ms(60_000)).wait(ms(30_000));
                let lock = if number % 2 == 0 { lock.blocking() } else { lock };
                let first = server.locks();
                let hold = first.lock(format!("a{number}")).lease(ms(60_000)).acquire().unwrap();
                hold.hand_over().unwrap();
                scope.spawn(move || lock.acquire())
            })
            .collect();
        until("all wait", || (0..100).all(|number| server.waiters(&format!("a{number}")) == 1));
        let made = proxy.made();
        let _: () = server.call("REPLICAOF 127.0.0.1 1");
        thread::sleep(ms(3000));
        let asked = proxy.made() - made;
        println!("{asked} connections");
        assert!((2..60).contains(&asked), "{asked}");
        let _: () = server.call("REPLICAOF NO ONE");
        let _: () = server.call("FLUSHALL");
        let began = Instant::now();
        for wait in waits {
            wait.join().unwrap().unwrap().release().unwrap();
        }
        assert!(began.elapsed() < ms(5000), "{:?}", began.elapsed());
    });
    assert!(kept.is_lost());
}

#[test]
fn a_connection_for_messages_that_is_dead_is_found_out() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let (near, far) = (server.locks(), proxy.locks(ms(500)));
    let first = near.lock("a").acquire().unwrap();
    thread::scope(|scope| {
        let wait = scope.spawn(|| far.lock("a").lease(ms(1000)).wait(ms(20_000)).acquire());
        server.until_waiting("a", 1);
        // It was made first, as it is there before the wait.
        proxy.swallow_first(1);
        first.release().unwrap();
        // It asks before the grant is over that it has not heard of.
        let began = Instant::now();
        wait.join().unwrap().unwrap().release().unwrap();
        assert!(began.elapsed() < ms(2000), "{:?}", began.elapsed());
        let first = near.lock("a").acquire().unwrap();
        let made = proxy.made();
        let wait = scope.spawn(|| far.lock("a").lease(ms(1000)).wait(ms(20_000)).acquire());
        until("there is another", || proxy.made() > made);
        server.until_waiting("a", 1);
        first.release().unwrap();
        wait.join().unwrap().unwrap().release().unwrap();
    });
    server.assert_nothing_left("a");
}

#[test]
fn a_wait_that_cannot_be_taken_back_at_once_is_taken_back_later() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let first = locks.lock("a").lease(ms(60_000)).acquire().unwrap();
    thread::scope(|scope| {
        let wait = scope.spawn(|| locks.lock("a").lease(ms(300)).wait(ms(500)).acquire());
        server.until_waiting("a", 1);
        let _: () = server.call("CONFIG SET min-replicas-to-write 1");
        let error = wait.join().unwrap().unwrap_err();
        assert!(error.kind() == "unavailable" && error.code() == Some("NOREPLICAS"), "{error}");
    });
    // For longer than the lease.
    thread::sleep(ms(1500));
    assert_eq!(server.waiters("a"), 1);
    let _: () = server.call("CONFIG SET min-replicas-to-write 0");
    server.until_waiting("a", 0);
    first.release().unwrap();
}

#[test]
fn a_kept_hold_that_could_not_be_given_back_is_given_back_later() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(200));
    for drops in [false, true] {
        let hold = locks.lock("a").lease(ms(300)).keep(true).acquire().unwrap();
        proxy.swallow();
        proxy.freeze(true);
        let hold = if drops {
            drop(hold);
            // Longer than it is tried at once.
            thread::sleep(ms(1000));
            None
        } else {
            assert_eq!(hold.release().unwrap_err().kind(), "unavailable");
            assert!(hold.valid_for().is_zero() && matches!(hold.extend(ms(900)), Err(Error::Lost(_))));
            Some(hold)
        };
        assert!(server.held("a"), "the server does not keep it");
        // Nothing of what was sent comes to the server, not even the end of a connection.
        proxy.swallow();
        proxy.freeze(false);
        until("it is given back", || !server.held("a"));
        drop(hold);
    }
    server.assert_nothing_left("a");
}

#[test]
fn a_restarted_server_has_lost_it() {
    let Some(mut server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let hold = locks.lock("a").acquire().unwrap();
    server.stop();
    server.start_again();
    assert!(hold.wait_lost(ms(10_000)));
    drop(hold);
    locks.lock("a").acquire().unwrap().release().unwrap();
    server.assert_nothing_left("a");
}

#[test]
fn a_deadlock_is_told_with_its_cycle() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(10_000));
    let _: i64 = server.call("LOCK.ACQUIRE a x PX 60000");
    thread::scope(|scope| {
        let wait = scope.spawn(|| locks.lock("a").acquire());
        server.until_waiting("a", 1);
        // Each acquire has an owner of its own, so it takes somebody else to make a cycle: while it does not wait, and before it
        // asks again.
        let waiters: Vec<std::collections::HashMap<String, redis::Value>> = server.call("LOCK.WAITERS a");
        let redis::Value::BulkString(owner) = &waiters[0]["owner"] else { panic!("{waiters:?}") };
        let owner = String::from_utf8(owner.clone()).unwrap();
        proxy.freeze(true);
        proxy.cut();
        server.until_waiting("a", 0);
        let _: i64 = server.call(&format!("LOCK.ACQUIRE b {owner} PX 60000"));
        let server = &server;
        let other = scope.spawn(move || server.try_call::<redis::Value>("LOCK.ACQUIRE b x BLOCK 20000"));
        server.until_waiting("b", 1);
        proxy.freeze(false);
        let error = wait.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), "deadlock");
        assert!(error.text().starts_with("DEADLOCK ") && error.text().contains(&owner), "{error}");
        let _: i64 = server.call(&format!("LOCK.RELEASE b {owner}"));
        other.join().unwrap().unwrap();
    });
    assert_eq!((server.waiters("a"), server.holder("a")), (0, vec!["x".to_owned()]));
}

/// Another process, which this test program is, too: it holds `a` with that lease until it ends.
fn child(server: &Server, lease: u64) -> std::process::Child {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "another_process", "--nocapture"])
        .env("PORT_OF_CHILD", format!("{} {lease}", server.port));
    let child =
        child.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    until("the child holds it", || server.held("a"));
    child
}

#[test]
fn another_process() {
    let Ok(words) = std::env::var("PORT_OF_CHILD") else { return };
    let (port, lease) = words.split_once(' ').unwrap();
    let client = redis::Client::open(("127.0.0.1", port.parse().unwrap())).unwrap();
    let locks = Locks::new(&client).unwrap();
    let hold = locks.lock("a").lease(ms(lease.parse().unwrap())).keep(true).acquire().unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    println!("{}", if hold.wait_lost(ms(1000)) { "lost" } else { "kept" });
    std::process::exit(0);
}

#[test]
fn a_process_that_was_frozen_for_two_leases_keeps_it() {
    let Some(server) = Server::start(&[]) else { return };
    let mut child = child(&server, 600);
    signal(&child, "STOP");
    thread::sleep(ms(1300));
    // The server renews meanwhile: nobody else had it.
    assert!(server.held("a"));
    signal(&child, "CONT");
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let said = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    child.wait().unwrap();
    assert!(said.contains("kept"), "{said}");
}

#[test]
fn a_process_that_is_killed_frees_it_at_once() {
    let Some(server) = Server::start(&[]) else { return };
    let mut child = child(&server, 60_000);
    let began = Instant::now();
    child.kill().unwrap();
    child.wait().unwrap();
    until("it is free", || !server.held("a"));
    assert!(began.elapsed() < ms(5000));
}

fn signal(child: &std::process::Child, name: &str) {
    let sent =
        std::process::Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn no_server_is_unavailable() {
    let Some(mut server) = Server::start(&[]) else { return };
    server.stop();
    let locks = Locks::with_settings(&server.client(), Settings::new().patience(ms(400))).unwrap();
    let began = Instant::now();
    assert_eq!(locks.lock("a").try_acquire().unwrap_err().kind(), "unavailable");
    assert!(began.elapsed() < ms(300), "a try does not try again");
    for lock in [locks.lock("a"), locks.lock("a").wait(ms(500))] {
        let error = lock.acquire().unwrap_err();
        assert!(error.kind() == "unavailable" && error.text().starts_with("no connection"), "{error}");
    }
    // Who waits for a server that comes gets it.
    thread::scope(|scope| {
        let wait = scope.spawn(|| locks.lock("a").wait(ms(20_000)).acquire());
        thread::sleep(ms(800));
        server.start_again();
        wait.join().unwrap().unwrap().release().unwrap();
    });
    server.assert_nothing_left("a");
    let began = Instant::now();
    locks.close();
    assert!(began.elapsed() < ms(900));
}

#[test]
fn many_who_find_no_server_do_not_all_try() {
    // It accepts, and ends it at once.
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let client = redis::Client::open(("127.0.0.1", listener.local_addr().unwrap().port())).unwrap();
    let tried = std::sync::Arc::new(AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&tried);
    thread::spawn(move || {
        for _ in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let locks = Locks::with_settings(&client, Settings::new().patience(ms(1000))).unwrap();
    thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| assert_eq!(locks.lock("a").acquire().unwrap_err().kind(), "unavailable"));
        }
    });
    let tried = tried.load(Ordering::SeqCst);
    assert!((5..100).contains(&tried), "{tried}");
}

#[test]
fn a_user_with_little_permission_suffices() {
    let Some(server) = Server::start(&[]) else { return };
    let few = "+lock.acquire +lock.release +lock.renew +lock.cancel +lock.info +subscribe";
    let _: () = server.call(&format!("ACL SETUSER few on >few ~* resetchannels &lock:inbox:* {few}"));
    let client = redis::Client::open(format!("redis://few:few@127.0.0.1:{}", server.port)).unwrap();
    let locks = Locks::new(&client).unwrap();
    let hold = locks.lock("a").lease(ms(600)).keep(true).acquire().unwrap();
    assert!(matches!(locks.lock("a").wait(ms(100)).acquire(), Err(Error::TimedOut(_))));
    assert!(!hold.wait_lost(ms(900)));
    thread::scope(|scope| {
        let wait = scope.spawn(|| locks.lock("a").acquire());
        server.until_waiting("a", 1);
        hold.release().unwrap();
        wait.join().unwrap().unwrap().release().unwrap();
    });
    assert!(matches!(hold.guard(&["GET", "a"]), Err(Error::Lost(_))));
    let hold = locks.lock("a").acquire().unwrap();
    assert!(matches!(hold.guard(&["GET", "a"]), Err(Error::Misuse(text)) if text.starts_with("NOPERM")));
    hold.release().unwrap();
    let _: () = server.call("ACL SETUSER few resetchannels");
    let locks = Locks::new(&client).unwrap();
    let error = locks.lock("a").acquire().unwrap_err();
    assert!(error.kind() == "misuse" && error.text().starts_with("NOPERM"), "{error}");
    server.assert_nothing_left("a");
}

#[test]
fn a_storm_of_cuts_and_cancels_leaves_nothing() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(5000));
    let (over, inside) = (AtomicBool::new(false), AtomicUsize::new(0));
    let counts = [const { AtomicUsize::new(0) }; 3];
    thread::scope(|scope| {
        for number in 0..12_u64 {
            let (locks, over, inside, counts) = (&locks, &over, &inside, &counts);
            scope.spawn(move || {
                for round in 0.. {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    let canceller = Canceller::new();
                    // Longer than the test, so that nobody loses it.
                    let lock = locks.lock("a").lease(ms(120_000)).canceller(&canceller);
                    if number < 4 {
                        let pause = ms((number * 7 + round * 3) % 20);
                        scope.spawn(move || {
                            thread::sleep(pause);
                            canceller.cancel();
                        });
                    }
                    let outcome = match lock.acquire() {
                        Ok(hold) => {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                            inside.fetch_sub(1, Ordering::SeqCst);
                            hold.release().unwrap();
                            0
                        }
                        Err(Error::Cancelled(_)) => 1,
                        Err(Error::Unavailable(_)) => 2,
                        Err(error) => panic!("{error}"),
                    };
                    counts[outcome].fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..60 {
            thread::sleep(ms(50));
            proxy.cut();
        }
        over.store(true, Ordering::SeqCst);
    });
    println!("granted, cancelled, unavailable: {counts:?}");
    assert!(counts[0].load(Ordering::SeqCst) > 100 && counts[1].load(Ordering::SeqCst) > 10);
    // What had to be undone while there was no connection is undone by and by.
    until("nothing is left", || !server.held("a") && server.waiters("a") == 0);
}

#[test]
fn what_was_given_up_before_there_was_a_connection_is_never_sent() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    proxy.freeze(true);
    let locks = proxy.locks(ms(20_000));
    for blocks in [false, true] {
        let lock = locks.lock("a").wait(ms(100));
        let lock = if blocks { lock.blocking() } else { lock };
        assert!(lock.acquire().is_err());
    }
    proxy.freeze(false);
    locks.lock("b").acquire().unwrap().release().unwrap();
    assert_eq!(server.calls("lock.acquire"), 1);
    assert!(!server.held("a"));
}

#[test]
fn the_messages_come_from_where_the_commands_go() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let ids = |kind: &str| -> Vec<u64> {
        let list: String = server.call(&format!("CLIENT LIST TYPE {kind}"));
        let ours = list.lines().filter(|line| !line.contains("cmd=client"));
        ours.map(|line| line[3..].split(' ').next().unwrap().parse().unwrap()).collect()
    };
    let first = locks.lock("a").lease(ms(60_000)).acquire().unwrap();
    thread::scope(|scope| {
        let wait = scope.spawn(|| locks.lock("a").acquire());
        server.until_waiting("a", 1);
        let [before] = ids("pubsub")[..] else { panic!("one is subscribed") };
        let [commands] = ids("normal")[..] else { panic!("one is for commands") };
        let _: usize = server.call(&format!("CLIENT KILL ID {commands}"));
        until("another is subscribed", || ids("pubsub").iter().any(|id| *id != before));
        until("that one has gone", || ids("pubsub").len() == 1);
        server.until_waiting("a", 1);
        first.release().unwrap();
        wait.join().unwrap().unwrap().release().unwrap();
    });
    server.assert_nothing_left("a");
}

#[test]
fn a_hand_over_waits_for_a_renewal_on_its_way() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let (mine, theirs) = (proxy.locks(ms(5000)), server.locks());
    let hold = mine.lock("a").lease(ms(6000)).keep(true).acquire().unwrap();
    proxy.freeze(true);
    // A third of the lease, and more.
    thread::sleep(ms(2200));
    let handing_over = thread::spawn(move || hold.hand_over());
    thread::sleep(ms(50));
    assert!(!handing_over.is_finished(), "the renewal would come behind the other's");
    proxy.freeze(false);
    let owner = handing_over.join().unwrap().unwrap();
    theirs.attach("a", &owner, None).unwrap().release().unwrap();
    server.assert_nothing_left("a");
}

#[test]
fn a_hand_over_waits_for_an_extend_on_its_way_as_long_as_it_is_held() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(60_000));
    for comes in [true, false] {
        let hold = locks.lock("a").lease(ms(6000)).acquire().unwrap();
        proxy.freeze(true);
        thread::scope(|scope| {
            let extend = scope.spawn(|| hold.extend(ms(4000)));
            until("it is on its way", || hold.valid_for() <= ms(4000));
            let hand_over = scope.spawn(|| hold.hand_over());
            thread::sleep(ms(200));
            assert!(!hand_over.is_finished());
            if comes {
                proxy.freeze(false);
                extend.join().unwrap().unwrap();
                assert_eq!(hand_over.join().unwrap().unwrap(), hold.owner());
                assert_eq!(server.call::<i64>(&format!("LOCK.RELEASE a {}", hold.owner())), 0);
            } else {
                // Not for as long as the session has patience, but for as long as it is held.
                assert_eq!(extend.join().unwrap().unwrap_err().kind(), "unavailable");
                assert!(hand_over.join().unwrap().is_err() && hold.wait_lost(ms(5000)));
                proxy.freeze(false);
                until("it is free", || !server.held("a"));
            }
        });
    }
    server.assert_nothing_left("a");
}

#[test]
fn what_is_lost_does_not_give_back_the_next_hold_of_that_name() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    for (keeps, drops) in [(false, false), (false, true), (true, false), (true, true)] {
        let acquire = || assert_eq!(server.call::<i64>("LOCK.ACQUIRE a own PX 60000"), 1);
        acquire();
        let lost = locks.attach("a", "own", (!keeps).then_some(ms(300))).unwrap();
        if keeps {
            let _: i64 = server.call("LOCK.BREAK a");
            assert!(lost.extend(ms(60_000)).is_err());
        }
        assert!(lost.wait_lost(ms(10_000)));
        until("it is free", || !server.held("a"));
        acquire();
        let next = locks.attach("a", "own", ms(60_000)).unwrap();
        if drops {
            drop(lost);
        } else {
            assert!(matches!(lost.release(), Err(Error::Lost(_))));
        }
        next.extend(ms(60_000)).unwrap();
        next.release().unwrap();
        server.assert_nothing_left("a");
    }
}

fn locks_of_a_user(server: &Server, port: u16, permissions: &str, patience: u64) -> Locks {
    let channels = "on >few ~* resetchannels &lock:inbox:*";
    let _: () = server.call(&format!("ACL SETUSER few {channels} +subscribe {permissions}"));
    let client = redis::Client::open(format!("redis://few:few@127.0.0.1:{port}")).unwrap();
    Locks::with_settings(&client, Settings::new().patience(ms(patience))).unwrap()
}

#[test]
fn who_attaches_waits_for_what_is_being_given_back() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = locks_of_a_user(&server, server.port, "+lock.acquire +lock.renew +lock.info", 300);
    for drops in [false, true] {
        let _: i64 = server.call("LOCK.ACQUIRE a own PX 60000");
        let hold = locks.attach("a", "own", ms(60_000)).unwrap();
        if !drops {
            assert_eq!(hold.release().unwrap_err().kind(), "misuse");
        }
        drop(hold);
        assert_eq!(locks.attach("a", "own", ms(60_000)).unwrap_err().kind(), "unavailable");
        let _: () = server.call("ACL SETUSER few +lock.release");
        until("it is given back", || !server.held("a"));
        until("it may be attached to", || matches!(locks.attach("a", "own", None), Err(Error::Lost(_))));
        let _: () = server.call("ACL SETUSER few -lock.release");
    }
}

#[test]
fn two_holds_of_one_owner_are_both_looked_after() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let holds = ["a", "b"].map(|key| {
        let _: i64 = server.call(&format!("LOCK.ACQUIRE {key} own PX 60000"));
        locks.attach(key, "own", None).unwrap()
    });
    let began = Instant::now();
    let _: i64 = server.call("CLIENT KILL TYPE normal SKIPME yes");
    for hold in &holds {
        assert!(hold.wait_lost(ms(20_000)) && began.elapsed() < ms(8000), "{:?}", began.elapsed());
    }
}

#[test]
fn what_may_not_be_cancelled_is_given_back() {
    let Some(server) = Server::start(&[]) else { return };
    for permissions in ["+lock.acquire +lock.renew", "+lock.release"] {
        let proxy = Proxy::to(&server);
        let locks = locks_of_a_user(&server, proxy.port, permissions, 60_000);
        // There are connections.
        locks.lock("b").lease(ms(300)).wait(ms(10_000)).acquire().unwrap();
        proxy.freeze(true);
        assert_eq!(
            locks.lock("a").lease(ms(900)).keep(true).wait(ms(100)).acquire().unwrap_err().kind(),
            "unavailable"
        );
        let acquired = server.calls("lock.acquire");
        proxy.freeze(false);
        until("the grant comes late", || server.calls("lock.acquire") > acquired);
        until("nobody has it", || !server.held("a"));
    }
}

#[test]
fn what_is_refused_and_runs_out_is_not_asked_for_any_longer() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = locks_of_a_user(&server, server.port, "+lock.acquire", 5000);
    let other = server.locks().lock("a").lease(ms(60_000)).acquire().unwrap();
    let wait = locks.lock("a").lease(ms(400)).wait(ms(100)).acquire();
    assert_eq!(wait.unwrap_err().kind(), "timed out");
    thread::sleep(ms(1500));
    let refusals = server.refusals("lock.cancel");
    assert!(refusals > 0 && server.refusals("lock.release") > 0);
    thread::sleep(ms(2500));
    assert_eq!(server.refusals("lock.cancel"), refusals);
    other.release().unwrap();
}

#[test]
fn a_longer_lease_whose_answer_was_lost_is_given_back() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(2000));
    for drops in [false, true] {
        let hold = locks.lock("a").lease(ms(1500)).acquire().unwrap();
        proxy.cut_replies_of("LOCK.RENEW", true);
        assert_eq!(hold.extend(ms(3_600_000)).unwrap_err().kind(), "unavailable");
        proxy.cut_replies_of("LOCK.RENEW", false);
        assert!(hold.wait_lost(ms(10_000)));
        let hold = (!drops).then_some(hold);
        until("it is given back", || !server.held("a"));
        assert!(hold.is_none_or(|hold| matches!(hold.release(), Err(Error::Lost(_)))));
    }
}

#[test]
fn an_extend_waits_no_longer_than_it_lasts() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(60_000));
    let hold = locks.lock("a").lease(ms(600)).acquire().unwrap();
    proxy.freeze(true);
    let began = Instant::now();
    assert_eq!(hold.extend(ms(60_000)).unwrap_err().kind(), "unavailable");
    assert!(began.elapsed() < ms(10_000), "{:?}", began.elapsed());
}

#[test]
fn a_heartbeat_comes_every_ten_seconds_though_the_lease_is_long() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let _hold = locks.lock("a").lease(ms(3_600_000)).keep(true).acquire().unwrap();
    until("it is renewed", || {
        thread::sleep(ms(200));
        server.calls("lock.renew") > 0
    });
}

#[test]
fn an_attach_that_comes_late_keeps_nothing() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let client = redis::Client::open(("127.0.0.1", proxy.port)).unwrap();
    let (sender, end) = std::sync::mpsc::channel::<()>();
    let end = std::sync::Mutex::new(end);
    // It keeps the thread that would give the connection up.
    let listener = move |event: &redis_lock_client::Event<'_>| {
        if event.outcome == "lost" {
            let _ = end.lock().unwrap().recv();
        }
    };
    let settings = Settings::new().patience(ms(500)).listener(listener);
    let locks = Locks::with_settings(&client, settings).unwrap();
    // It ends before the session does.
    let _ends = sender;
    let lost = locks.lock("b").lease(ms(300)).acquire().unwrap();
    until("its end is told", || lost.valid_for().is_zero());
    let _: i64 = server.call("LOCK.ACQUIRE a own PX 60000");
    let made = proxy.made();
    proxy.freeze(true);
    assert_eq!(locks.attach("a", "own", None).unwrap_err().kind(), "unavailable");
    proxy.freeze(false);
    until("it comes to the server", || server.calls("lock.renew") >= 1);
    assert_eq!(server.call::<i64>("LOCK.RENEW a own PX 900"), 1);
    until("the server renews it no more", || !server.held("a"));
    assert_eq!(proxy.made(), made, "the connection is the same");
}
