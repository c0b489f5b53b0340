// SPDX-License-Identifier: MIT

//! Waits that have a connection of their own.

#![allow(clippy::unwrap_used)]

mod support;

use std::thread;

use redis_lock_client::Canceller;
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
