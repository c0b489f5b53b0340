// SPDX-License-Identifier: MIT

//! Waits that have a connection of their own.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;

use redis::{FromRedisValue, Value};
use redis_lock_client::{Canceller, Error, Locks, Settings};
use support::{ms, until, Proxy, Server};

#[test]
fn many_who_wait_so_are_granted_it_one_by_one() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let first = locks.lock("a").acquire().unwrap();
    thread::scope(|scope| {
        for number in 0..40 {
            let lock = locks.lock("a").wait(ms(20_000));
            let lock = if number % 2 == 0 { lock.keep(false).lease(ms(30_000)) } else { lock };
            let lock = if number % 3 == 0 { lock } else { lock.blocking() };
            scope.spawn(move || {
                let hold = lock.acquire().unwrap();
                assert!(!hold.is_lost());
                hold.release().unwrap_or_else(|error| panic!("{number}: {error}"));
            });
        }
        server.until_waiting("a", 40);
        first.release().unwrap();
    });
    server.assert_nothing_left("a");
    drop(first);
    locks.close();
    until("the connections are gone", || server.connections() == 0);
}

#[test]
fn a_wait_needs_one_connection_which_then_serves_for_all() {
    let Some(server) = Server::start(&[]) else { return };
    let (holder, locks) = (server.locks(), server.locks());
    let first = holder.lock("a").lease(ms(60_000)).acquire().unwrap();
    let before = server.connections();
    thread::scope(|scope| {
        let wait =
            scope.spawn(|| locks.lock("a").owner("me:").lease(ms(900)).keep(true).blocking().acquire());
        server.until_waiting("a", 1);
        assert_eq!(server.connections(), before + 1);
        first.release().unwrap();
        let hold = wait.join().unwrap().unwrap();
        assert!(hold.owner().starts_with("me:"), "{hold:?}");
        let renewals = || -> u64 {
            let info: String = server.call("INFO lock");
            info.lines().find_map(|line| line.strip_prefix("lock_renewals:")).unwrap().parse().unwrap()
        };
        let until_now = renewals();
        until("it is renewed", || renewals() > until_now + 2);
        assert_eq!(server.connections(), before + 1, "on the connection that has waited");
        assert_eq!(server.holder("a"), [hold.owner()]);
        // It ends with that.
        locks.close();
        until("it is free", || !server.held("a"));
        assert!(hold.is_lost());
    });
}

#[test]
fn a_wait_that_is_over_or_cancelled_leaves_nothing() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let hold = locks.lock("a").acquire().unwrap();
    assert_eq!(locks.lock("a").wait(ms(50)).blocking().acquire().unwrap_err().kind(), "timed out");
    assert!(locks.lock("a").blocking().try_acquire().unwrap().is_none(), "a try does not wait");
    let canceller = Canceller::new();
    thread::scope(|scope| {
        let wait = scope.spawn(|| locks.lock("a").canceller(&canceller).blocking().acquire());
        server.until_waiting("a", 1);
        canceller.cancel();
        assert_eq!(wait.join().unwrap().unwrap_err().kind(), "cancelled");
        server.until_waiting("a", 0);
        // And one that the end of the session finds.
        let wait = scope.spawn(|| locks.lock("a").blocking().acquire());
        server.until_waiting("a", 1);
        locks.close();
        assert_eq!(wait.join().unwrap().unwrap_err().kind(), "unavailable");
    });
    assert!(hold.is_lost());
    until("the connections are gone", || server.connections() == 0);
    server.assert_nothing_left("a");
}

#[test]
fn the_reply_of_a_grant_is_lost() {
    let Some(server) = Server::start(&[]) else { return };
    let (proxy, near) = (Proxy::to(&server), server.locks());
    let far = proxy.locks(ms(2000));
    for keep in [false, true] {
        let first = near.lock("a").acquire().unwrap();
        thread::scope(|scope| {
            let lock = far.lock("a").lease(ms(60_000)).keep(keep).wait(ms(20_000)).blocking();
            let wait = scope.spawn(move || lock.acquire());
            server.until_waiting("a", 1);
            proxy.cut();
            server.until_waiting("a", 1);
            proxy.cut_reply_of("LOCK.ACQUIRE");
            proxy.cut();
            until("it waits again", || proxy.has_cut() && server.waiters("a") == 1);
            // The connection ends with the reply.
            first.release().unwrap();
            let hold = wait.join().unwrap().unwrap();
            assert_eq!(server.holder("a"), [hold.owner()], "keep: {keep}");
            assert_eq!(server.call::<Vec<i64>>("HVALS a")[0], 1, "it was counted once");
            hold.release().unwrap();
        });
        server.assert_nothing_left("a");
    }
}

#[test]
fn a_wait_is_disturbed_as_often_as_it_likes() {
    let Some(server) = Server::start(&[]) else { return };
    let first = server.locks().lock("a").lease(ms(60_000)).acquire().unwrap();
    let locks = Locks::with_settings(&server.client(), Settings::new().patience(ms(150))).unwrap();
    thread::scope(|scope| {
        let wait = scope.spawn(|| locks.lock("a").blocking().acquire());
        for round in 0..3 {
            server.until_waiting("a", 1);
            // For longer than it has patience with a server that is not there.
            until("it has waited", || waited(&server, "a") > 400);
            let killed: usize = server.call(&format!("CLIENT KILL ID {}", waiter(&server, "a")));
            assert_eq!(killed, 1, "{round}");
        }
        server.until_waiting("a", 1);
        first.release().unwrap();
        wait.join().unwrap().unwrap().release().unwrap();
    });
    server.assert_nothing_left("a");
}

#[test]
fn a_grant_of_unknown_age_is_renewed_before_it_counts() {
    let Some(server) = Server::start(&[]) else { return };
    let first = server.locks().lock("a").lease(ms(60_000)).acquire().unwrap();
    let locks = server.locks();
    let wait = |lease| locks.lock("a").lease(ms(lease)).blocking().acquire();
    thread::scope(|scope| {
        // More than a twentieth of the lease, and less.
        let long = scope.spawn(|| wait(1000));
        server.until_waiting("a", 1);
        until("it has waited", || waited(&server, "a") > 60);
        first.release().unwrap();
        let hold = long.join().unwrap().unwrap();
        assert_eq!(server.calls("lock.renew"), 1);
        hold.release().unwrap();
    });
    wait(3_600_000).unwrap().release().unwrap();
    assert_eq!(server.calls("lock.renew"), 1);
    server.assert_nothing_left("a");
}

#[test]
fn a_grant_that_could_not_be_confirmed_is_given_back() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let locks = proxy.locks(ms(300));
    // There is a connection for commands already.
    locks.lock("b").acquire().unwrap().release().unwrap();
    proxy.cut_reply_of("LOCK.RENEW");
    let hold = locks.lock("a").keep(true).wait(ms(20_000)).blocking().acquire().unwrap();
    assert!(proxy.has_cut());
    assert_eq!(server.holder("a"), [hold.owner()]);
    hold.release().unwrap();
    server.assert_nothing_left("a");
}

fn field(server: &Server, key: &str, name: &str) -> u64 {
    let waiters: Vec<HashMap<String, Value>> = server.call(&format!("LOCK.WAITERS {key}"));
    let number = waiters.first().and_then(|waiter| waiter.get(name).cloned());
    number.map_or(0, |number| u64::from_redis_value(number).unwrap())
}

/// In milliseconds.
fn waited(server: &Server, key: &str) -> u64 {
    field(server, key, "waited")
}

fn waiter(server: &Server, key: &str) -> u64 {
    field(server, key, "client")
}

#[test]
fn a_wait_on_a_dead_connection_goes_on_over_another() {
    let Some(server) = Server::start(&[]) else { return };
    let near = server.locks();
    for (has_commands, keeps) in [(false, false), (false, true), (true, false)] {
        let proxy = Proxy::to(&server);
        let far = proxy.locks(ms(500));
        if has_commands {
            far.lock("b").acquire().unwrap().release().unwrap();
        }
        let first = near.lock("a").lease(ms(60_000)).acquire().unwrap();
        thread::scope(|scope| {
            let lock = far.lock("a").lease(ms(60_000)).keep(keeps).wait(ms(20_000)).blocking();
            let wait = scope.spawn(move || lock.acquire());
            server.until_waiting("a", 1);
            // Both ends think that it is there.
            proxy.swallow();
            first.release().unwrap();
            let hold = wait.join().unwrap().unwrap();
            assert_eq!(server.holder("a"), [hold.owner()], "commands: {has_commands}, keep: {keeps}");
            hold.release().unwrap();
        });
        server.assert_nothing_left("a");
    }
}

#[test]
fn a_wait_keeps_its_place_though_nothing_is_heard_for_a_while() {
    let Some(server) = Server::start(&[]) else { return };
    let near = server.locks();
    for stalls in [true, false] {
        let proxy = Proxy::to(&server);
        let far = proxy.locks(ms(300));
        // That for commands is the older one.
        far.lock("b").acquire().unwrap().release().unwrap();
        let first = near.lock("a").lease(ms(60_000)).acquire().unwrap();
        thread::scope(|scope| {
            let wait = |locks: &Locks| {
                let lock = locks.lock("a").lease(ms(60_000)).wait(ms(30_000)).blocking();
                scope.spawn(move || lock.acquire())
            };
            let second = wait(&far);
            server.until_waiting("a", 1);
            let third = wait(&near);
            server.until_waiting("a", 2);
            let client = waiter(&server, "a");
            if stalls {
                server.signal("STOP");
                thread::sleep(ms(2500));
                server.signal("CONT");
                thread::sleep(ms(500));
            } else {
                proxy.hold_back(true);
                until("it waits on another connection", || waiter(&server, "a") != client);
                proxy.hold_back(false);
            }
            first.release().unwrap();
            let hold = second.join().unwrap().unwrap();
            assert_eq!(server.holder("a"), [hold.owner()], "stalls: {stalls}");
            hold.release().unwrap();
            third.join().unwrap().unwrap().release().unwrap();
        });
        server.assert_nothing_left("a");
    }
}

#[test]
fn a_wait_that_changes_its_connection_keeps_its_place_and_is_not_disturbed() {
    let Some(server) = Server::start(&[]) else { return };
    let (near, proxy) = (server.locks(), Proxy::to(&server));
    let client = redis::Client::open(("127.0.0.1", proxy.port)).unwrap();
    let troubled = Arc::new(AtomicBool::new(false));
    let hears = Arc::clone(&troubled);
    let on_trouble = move |_: &Error| hears.store(true, Ordering::SeqCst);
    let settings = Settings::new().patience(ms(500)).on_trouble(on_trouble);
    let far = Locks::with_settings(&client, settings).unwrap();
    let first = near.lock("a").lease(ms(60_000)).acquire().unwrap();
    thread::scope(|scope| {
        let second = scope.spawn(|| far.lock("a").lease(ms(60_000)).wait(ms(30_000)).blocking().acquire());
        server.until_waiting("a", 1);
        let third = scope.spawn(|| near.lock("a").lease(ms(60_000)).wait(ms(30_000)).acquire());
        server.until_waiting("a", 2);
        let client = waiter(&server, "a");
        until("it has another", || waiter(&server, "a") != client);
        // That for commands, and this one.
        until("the first has ended", || server.connections() == 4);
        let (made, waits) = (proxy.made(), waited(&server, "a"));
        until("it was looked at again", || waited(&server, "a") > waits + 2000);
        assert_eq!((proxy.made(), made), (3, 3), "it changes once");
        first.release().unwrap();
        let hold = second.join().unwrap().unwrap();
        assert_eq!(server.holder("a"), [hold.owner()]);
        hold.release().unwrap();
        third.join().unwrap().unwrap().release().unwrap();
    });
    assert!(!troubled.load(Ordering::SeqCst));
    server.assert_nothing_left("a");
}

#[test]
fn a_wait_whose_call_comes_again_late_goes_on() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let first = locks.lock("a").lease(ms(60_000)).acquire().unwrap();
    let mut monitor = server.client().get_connection().unwrap();
    monitor.send_packed_command(&redis::cmd("MONITOR").get_packed_command()).unwrap();
    assert_eq!(monitor.recv_response().unwrap(), Value::Okay);
    thread::scope(|scope| {
        let second = scope.spawn(|| locks.lock("a").lease(ms(60_000)).wait(ms(30_000)).blocking().acquire());
        let call = loop {
            let line = String::from_redis_value(monitor.recv_response().unwrap()).unwrap();
            if line.contains("\"BLOCK\"") {
                let words = line.split('"').skip(1).step_by(2);
                break words.map(str::to_owned).collect::<Vec<_>>().join(" ");
            }
        };
        server.until_waiting("a", 1);
        // As if a proxy had it yet.
        let late = server.try_call::<Value>(&call).unwrap_err();
        assert!(late.to_string().contains("was sent again"), "{late}");
        first.release().unwrap();
        second.join().unwrap().unwrap().release().unwrap();
    });
    server.assert_nothing_left("a");
}

#[test]
fn a_look_after_a_wait_keeps_no_other_call_waiting() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::to(&server);
    let (locks, near) = (proxy.locks(ms(500)), server.locks());
    let first = near.lock("a").lease(ms(60_000)).acquire().unwrap();
    // Long enough for a busy machine to renew it over a third connection.
    let kept = locks.lock("kept").keep(true).lease(ms(15_000)).acquire().unwrap();
    thread::scope(|scope| {
        let second = scope.spawn(|| locks.lock("a").lease(ms(60_000)).wait(ms(30_000)).blocking().acquire());
        server.until_waiting("a", 1);
        // It is looked after the wait more often than the hold is renewed: the next that is said is a look.
        for call in ["lock.renew", "ping"] {
            let before = server.calls(call);
            until(call, || server.calls(call) > before);
        }
        // Those for messages and for commands say nothing any more.
        proxy.swallow_first(2);
        // A third of the lease is over before a renewal.
        until("it is renewed on another connection", || kept.valid_for() <= ms(10_000));
        until("it is renewed on another connection", || kept.valid_for() > ms(10_000));
        assert!(!kept.is_lost());
        first.release().unwrap();
        second.join().unwrap().unwrap().release().unwrap();
        kept.release().unwrap();
    });
    server.assert_nothing_left("a");
}
