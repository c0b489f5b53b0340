// SPDX-License-Identifier: MIT

//! How many threads and connections there are, and that none is left. One after another, as the threads are counted of the
//! whole process.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::thread;

use support::{ms, until, Server};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What the system notes of a thread that has ended: it may be joined already, and is listed for a moment more.
const EXITING: u32 = 4;

/// The threads of this package that run, by their names.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok());
    let runs = |stat: &String| {
        let (before, after) = stat.rsplit_once(") ").unwrap();
        let flags: u32 = after.split(' ').nth(6).unwrap().parse().unwrap();
        before.contains("(redis-lock-") && flags & EXITING == 0
    };
    stats.filter(runs).count()
}

#[test]
fn a_thousand_waits_need_two_connections_and_three_threads() {
    let _one = ONE_AT_A_TIME.lock();
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let (inside, granted) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let first = locks.lock("a").acquire().unwrap();
    thread::scope(|scope| {
        for _ in 0..1000 {
            let wait = || {
                let hold = locks.lock("a").acquire().unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                granted.fetch_add(1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
                hold.release().unwrap();
            };
            // They have little to remember.
            thread::Builder::new().stack_size(128 * 1024).spawn_scoped(scope, wait).unwrap();
        }
        server.until_waiting("a", 1000);
        assert_eq!((server.connections(), threads()), (2, 3));
        // Nobody else is delayed.
        let began = std::time::Instant::now();
        for _ in 0..100 {
            locks.lock("b").acquire().unwrap().release().unwrap();
        }
        assert!(began.elapsed() < ms(5000), "{:?}", began.elapsed());
        first.release().unwrap();
    });
    assert_eq!(granted.load(Ordering::SeqCst), 1000);
    assert_eq!((server.connections(), threads()), (2, 3));
    server.assert_nothing_left("a");
    drop(locks);
    // The first hold has been given back, but is there: the session ends with the last that needs it.
    drop(first);
    assert_eq!(threads(), 0);
    until("the connections are gone", || server.connections() == 0);
}

#[test]
fn close_leaves_no_thread_and_no_connection() {
    let _one = ONE_AT_A_TIME.lock();
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    assert_eq!((server.connections(), threads()), (0, 0), "they are made when they are needed");
    let key = |number: usize| format!("l{number}");
    let holds: Vec<_> = (0..5).map(|number| locks.lock(key(number)).acquire().unwrap()).collect();
    thread::scope(|scope| {
        let waits: Vec<_> = (0..5)
            .map(|number| {
                let lock = locks.lock(key(number));
                let wait = scope.spawn(move || lock.acquire());
                server.until_waiting(&key(number), 1);
                wait
            })
            .collect();
        locks.close();
        assert_eq!(threads(), 0);
        for wait in waits {
            assert_eq!(wait.join().unwrap().unwrap_err().kind(), "unavailable");
        }
    });
    assert!(holds.iter().all(|hold| hold.is_lost()));
    until("the connections are gone", || server.connections() == 0);
    until("nothing is left", || {
        (0..5).all(|number| !server.held(&key(number)) && server.waiters(&key(number)) == 0)
    });
    assert_eq!(locks.lock("a").try_acquire().unwrap_err().text(), "closed");
    assert!(holds[0].release().is_err());
    locks.close();
    assert_eq!(threads(), 0);
}

#[test]
fn what_is_dropped_at_the_end_is_given_back() {
    let _one = ONE_AT_A_TIME.lock();
    let Some(server) = Server::start(&[]) else { return };
    for _ in 0..50 {
        let locks = server.locks();
        let hold = locks.lock("a").lease(ms(60_000)).acquire().unwrap();
        drop(hold);
        drop(locks);
        assert_eq!(threads(), 0);
        server.assert_nothing_left("a");
    }
}
