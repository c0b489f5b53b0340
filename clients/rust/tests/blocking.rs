// SPDX-License-Identifier: MIT

//! The interface for threads, on real servers.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use redis_lock_client::blocking::{Canceller, Locks};
use redis_lock_client::{Error, ErrorKind, Settings};
use support::{ms, until, Proxy, Server};

const LONG: Duration = Duration::from_secs(20);

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// The number of threads of this process that read events.
fn readers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "redis-lock").count()
}

#[test]
fn threads_share_a_session() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let count = Mutex::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let add = |_: &_| {
                        // Fails the test if another thread is inside.
                        *count.try_lock().unwrap() += 1;
                        Ok::<_, Error>(())
                    };
                    locks.lock("a").with(add).unwrap();
                }
            });
        }
    });
    assert_eq!((*count.lock().unwrap(), server.sessions()), (200, 1));
    // Drop releases at once.
    drop(locks.lock("a").acquire().unwrap());
    assert!(!server.is_held("a"));
    locks.close();
    assert_eq!(server.sessions(), 0);
    until("all connections are closed", || server.connections() == 0);
}

#[test]
fn a_canceller_ends_waits() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let hold = locks.lock("a").acquire().unwrap();
    let canceller = Canceller::new();
    thread::scope(|scope| {
        let waits: Vec<_> =
            (0..5).map(|_| scope.spawn(|| locks.lock("a").acquire_with(&canceller))).collect();
        server.until_waiting("a", 5);
        canceller.cancel();
        for wait in waits {
            assert_eq!(kind(wait.join().unwrap()), ErrorKind::Cancelled);
        }
    });
    server.until_waiting("a", 0);
    assert!(canceller.is_cancelled());
    assert_eq!(kind(locks.lock("b").acquire_with(&canceller)), ErrorKind::Cancelled);
    hold.release().unwrap();
    locks.close();
}

#[test]
fn a_listener_may_release_and_try() {
    let server = Server::start();
    static LOCKS: OnceLock<Locks> = OnceLock::new();
    let results = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&results);
    let settings = Settings::new().listener(move |event| {
        if event.label.as_deref() != Some("jobs") || event.name != "held" {
            return;
        }
        let locks = LOCKS.get().unwrap();
        let tried = locks.lock("b").try_acquire().unwrap().unwrap();
        let waited = locks.lock("c").acquire();
        log.lock().unwrap().push((event.outcome, tried.release().is_ok(), kind(waited)));
        panic!("this must disturb nothing");
    });
    let locks = LOCKS.get_or_init(|| Locks::with_settings(server.client(), settings).unwrap());
    let lock = locks.lock("a").label("jobs");
    lock.acquire().unwrap().release().unwrap();
    let hold = lock.acquire().unwrap();
    server.call::<i64>("LOCK.BREAK a");
    // The thread that reads events calls the listener.
    assert!(hold.wait_lost(LONG));
    until("the listener is notified twice", || results.lock().unwrap().len() == 2);
    let expected = ["released", "lost"].map(|outcome| (outcome, true, ErrorKind::Misuse));
    assert_eq!(*results.lock().unwrap(), expected);
    lock.acquire().unwrap().release().unwrap();
    locks.close();
}

#[test]
fn releases_continue_after_an_outage() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let settings = Settings::new().patience(ms(300));
    let locks = Locks::with_settings(proxy.client(), settings).unwrap();
    let hold = locks.lock("a").lease(LONG).acquire().unwrap();
    proxy.freeze(true);
    assert_eq!(kind(hold.release()), ErrorKind::Unavailable);
    hold.release().unwrap();
    assert!(server.is_held("a"));
    proxy.freeze(false);
    server.until_free("a");
    // A new acquire of this thread waits until the old one is gone.
    locks.lock("a").wait(LONG).acquire().unwrap().release().unwrap();
    locks.close();
}

#[test]
fn a_loss_during_the_release_is_reported() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    for _ in 0..5 {
        let holds: Vec<_> =
            (0..600).map(|number| locks.lock(format!("{number}")).acquire().unwrap()).collect();
        server.call::<String>("FLUSHALL");
        // The reader handles many events while these threads release.
        thread::scope(|scope| {
            for holds in holds.chunks(200) {
                scope.spawn(|| {
                    holds.iter().for_each(|hold| assert_eq!(kind(hold.release()), ErrorKind::Lost))
                });
            }
        });
    }
    locks.close();
}

/// The log of the package.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LOG.lock().unwrap().push(format!("{} {}", record.level(), record.args()));
    }

    fn flush(&self) {}
}

#[test]
fn a_dropped_hold_warns() {
    log::set_logger(&Logger).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let server = Server::start();
    let locks = Locks::new(server.client());
    drop(locks.lock("dropped").acquire().unwrap());
    locks.lock("released").acquire().unwrap().release().unwrap();
    locks.lock("scoped").with(|_| Ok::<_, Error>(())).unwrap();
    locks.close();
    let log = LOG.lock().unwrap().clone();
    let count = |key: &str| log.iter().filter(|line| line.contains(&format!("key: \"{key}\""))).count();
    assert_eq!(["dropped", "released", "scoped"].map(count), [1, 0, 0], "{log:?}");
    assert!(log.iter().any(|line| line.starts_with("WARN") && line.contains("dropped without a release")));
}

#[test]
fn close_leaves_no_thread() {
    let server = Server::start();
    let mut locks: Vec<_> = (0..3).map(|_| Locks::new(server.client())).collect();
    for (number, locks) in locks.iter().enumerate() {
        locks.lock(format!("{number}")).acquire().unwrap().release().unwrap();
    }
    assert!(readers() >= 3);
    let last = locks.pop().unwrap();
    locks.iter().for_each(Locks::close);
    drop(last);
    assert_eq!(server.sessions(), 0);
    until("all connections are closed", || server.connections() == 0);
}

#[test]
fn sockets_passwords_and_databases_are_used() {
    let server = Server::start();
    server.call::<()>("CONFIG SET requirepass secret");
    let admin = redis::Client::open(format!("redis://:secret@127.0.0.1:{}/3", server.port)).unwrap();
    let locks = Locks::new(admin.clone());
    let hold = locks.lock("a").acquire().unwrap();
    let mut connection = admin.get_connection().unwrap();
    assert!(redis::cmd("EXISTS").arg("a").query::<bool>(&mut connection).unwrap());
    hold.release().unwrap();
    let wrong = redis::Client::open(format!("redis://:wrong@127.0.0.1:{}", server.port)).unwrap();
    assert_eq!(kind(Locks::new(wrong).lock("a").acquire()), ErrorKind::Misuse);
    redis::cmd("CONFIG").arg("SET").arg("requirepass").arg("").exec(&mut connection).unwrap();
    locks.close();
}

#[test]
fn a_forked_child_has_no_hold() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let hold = locks.lock("a").acquire().unwrap();
    // SAFETY: the child makes no call that needs another thread, and ends at once.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            let is_right = hold.is_lost()
                && hold.valid_for().is_zero()
                && hold.release().is_err_and(|error| error.kind() == ErrorKind::Lost)
                && locks.lock("b").acquire().is_err_and(|error| error.kind() == ErrorKind::Misuse);
            drop((hold, locks));
            // SAFETY: ends the process.
            unsafe { nix::libc::_exit(i32::from(!is_right)) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None).unwrap();
            assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
        }
    }
    assert!(!hold.is_lost());
    hold.release().unwrap();
    locks.close();
}

#[test]
fn a_slow_listener_does_not_delay_the_heartbeat() {
    let server = Server::start();
    static LOCKS: OnceLock<Locks> = OnceLock::new();
    let (is_entered, is_over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (enter, end) = (Arc::clone(&is_entered), Arc::clone(&is_over));
    let settings = Settings::new().ttl(LONG).grace(ms(600)).listener(move |event| {
        if event.outcome == "lost" {
            // The server must answer this, although the thread that has noticed the loss is busy.
            LOCKS.get().unwrap().lock("c").try_acquire().unwrap().unwrap().release().unwrap();
            enter.store(true, Ordering::SeqCst);
            until("the listener may end", || end.load(Ordering::SeqCst));
        }
    });
    let locks = LOCKS.get_or_init(|| Locks::with_settings(server.client(), settings).unwrap());
    let (lost, hold) = (locks.lock("a").acquire().unwrap(), locks.lock("b").acquire().unwrap());
    server.call::<i64>("LOCK.BREAK a");
    until("the listener is notified", || is_entered.load(Ordering::SeqCst));
    let polls = server.calls("lock.events");
    until("heartbeats continue", || server.calls("lock.events") > polls + 5);
    assert!(!hold.valid_for().is_zero());
    is_over.store(true, Ordering::SeqCst);
    assert_eq!(kind(lost.release()), ErrorKind::Lost);
    hold.release().unwrap();
    locks.close();
}

#[test]
fn calls_leave_a_former_primary() {
    let [former, present] = [Server::start(), Server::start()];
    // The reader has the first connection. The connection for calls leads to a server without the session.
    let proxy = Proxy::to_each(vec![present.port, former.port, present.port]);
    let locks = Locks::new(proxy.client());
    let hold = locks.lock("a").acquire().unwrap();
    assert!(present.is_held("a") && former.calls("lock.acquire") == 1);
    hold.release().unwrap();
    locks.close();
}

#[test]
fn a_canceller_ends_waits_without_a_server() {
    let gone = Server::start_with(&[]).client();
    let locks = Locks::with_settings(gone, Settings::new().patience(LONG * 5)).unwrap();
    let canceller = Canceller::new();
    thread::scope(|scope| {
        let wait = scope.spawn(|| locks.lock("a").acquire_with(&canceller));
        canceller.cancel();
        until("the wait ends", || wait.is_finished());
        assert_eq!(kind(wait.join().unwrap()), ErrorKind::Cancelled);
    });
    locks.close();
}
