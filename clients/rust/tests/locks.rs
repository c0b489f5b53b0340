// SPDX-License-Identifier: MIT

//! The interface for tokio, on real servers.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis_lock_client::{Error, ErrorKind, Hold, Locks, Settings};
use support::{ms, until, Proxy, Server};
use tokio::task::block_in_place;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(20);

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// Sessions with short times.
fn short() -> Settings {
    Settings::new().ttl(ms(1500)).grace(ms(600)).patience(ms(1000))
}

async fn until_lost(hold: &Hold) -> String {
    timeout(LONG, hold.lost()).await.unwrap();
    hold.end_reason().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_releases_what_it_acquired() {
    #[derive(Debug, PartialEq)]
    enum Failure {
        Lock(ErrorKind),
        Body,
    }
    impl From<Error> for Failure {
        fn from(error: Error) -> Failure {
            Failure::Lock(error.kind())
        }
    }
    let server = Server::start();
    let locks = Locks::new(server.client());
    let lock = locks.lock("a").fence();
    let task = lock.clone();
    // The scope runs in a spawned task, so its future is `Send`.
    let token = tokio::spawn(async move { task.with(async |hold| Ok::<_, Failure>(hold.token())).await });
    let token = token.await.unwrap().unwrap().unwrap();
    assert!(!server.is_held("a"));
    let fails = async |hold: &Hold| {
        assert!(hold.token().unwrap() > token && server.is_held("a"));
        Err::<(), _>(Failure::Body)
    };
    assert_eq!(lock.with(fails).await, Err(Failure::Body));
    assert!(!server.is_held("a"));
    for result in [Err(Failure::Body), Ok(())] {
        let expected = if result.is_ok() { Failure::Lock(ErrorKind::Lost) } else { Failure::Body };
        let loses = async |hold: &Hold| {
            server.call::<i64>("LOCK.BREAK a");
            assert_eq!(until_lost(hold).await, "broken");
            result
        };
        assert_eq!(lock.with(loses).await, Err(expected));
    }
    // A scope whose future is dropped releases its lock, too.
    let entered = tokio::sync::Notify::new();
    tokio::select! {
        _ = lock.with(async |_| { entered.notify_one(); std::future::pending::<Result<(), Error>>().await }) => {}
        () = entered.notified() => {}
    }
    server.until_free("a");
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_futures_leave_nothing() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let first = locks.lock("a").acquire().await.unwrap();
    for round in 0..50 {
        let wait = locks.lock("a").owner(format!("{round}"));
        assert!(timeout(ms(round % 5), wait.acquire()).await.is_err());
    }
    block_in_place(|| server.until_waiting("a", 0));
    // A dropped release continues.
    tokio::select! {
        biased;
        // On a busy machine it may end at once.
        released = first.release() => released.unwrap(),
        () = std::future::ready(()) => {}
    }
    server.until_free("a");
    first.release().await.unwrap();
    // So does the release of a dropped hold, even outside of the runtime.
    for key in ["b", "c"] {
        let hold = locks.lock(key).lease(LONG).acquire().await.unwrap();
        match key {
            "b" => drop(hold),
            _ => std::thread::spawn(move || drop(hold)).join().unwrap(),
        }
        server.until_free(key);
    }
    // A task may acquire a lock again at once after it dropped its hold.
    for _ in 0..50 {
        drop(locks.lock("d").acquire().await.unwrap());
    }
    server.until_free("d");
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_never_ends_early() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let hold = locks.lock("a").owner("first").acquire().await.unwrap();
    for wait in [1, 30, 200].map(ms) {
        for _ in 0..10 {
            let began = Instant::now();
            assert_eq!(kind(locks.lock("a").wait(wait).acquire().await), ErrorKind::TimedOut);
            assert!(began.elapsed() >= wait && server.waiters("a") == 0, "{:?} of {wait:?}", began.elapsed());
        }
    }
    hold.release().await.unwrap();
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_without_a_wait_is_one_call_and_no_place() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let hold = locks.lock("a").owner("first").acquire().await.unwrap();
    let wait = {
        let lock = locks.lock("a");
        tokio::spawn(async move { lock.acquire().await })
    };
    block_in_place(|| server.until_waiting("a", 1));
    // Another place would be refused.
    server.call::<()>("CONFIG SET lock.max-waiters 1");
    let before = server.calls("lock.acquire");
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    assert_eq!(kind(locks.lock("a").wait(ms(0)).acquire().await), ErrorKind::Busy);
    assert_eq!(server.calls("lock.acquire"), before + 2);
    hold.release().await.unwrap();
    wait.await.unwrap().unwrap().release().await.unwrap();
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_bytes() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let key = [0xff, 0, 0x80, b' ', 0xc3, b'('];
    let mut connection = server.client().get_connection().unwrap();
    let hold = locks.lock(key).owner("first").acquire().await.unwrap();
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    assert!(hold.key() == key && keys == [key]);
    let wait = {
        let lock = locks.lock(key);
        tokio::spawn(async move { lock.acquire().await })
    };
    let mut waiters = redis::cmd("LOCK.WAITERS");
    waiters.arg(&key);
    until("the wait is queued", || waiters.query::<Vec<redis::Value>>(&mut connection).unwrap().len() == 1);
    hold.release().await.unwrap();
    let next = wait.await.unwrap().unwrap();
    redis::cmd("DEL").arg(&key).exec(&mut connection).unwrap();
    assert_eq!(until_lost(&next).await, "deleted");
    assert_eq!(kind(next.release().await), ErrorKind::Lost);
    let both = locks.lock_all([key.to_vec(), vec![0xfe]]).acquire().await.unwrap();
    both.release().await.unwrap();
    assert_eq!(server.call::<i64>("DBSIZE"), 0);
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_hold_leaves_a_later_one() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let lock = locks.lock("a").owner("me");
    let lost = lock.acquire().await.unwrap();
    let mut later = None;
    let loses = async |hold: &Hold| {
        server.call::<i64>("DEL a");
        until_lost(hold).await;
        later = Some(lock.acquire().await?);
        Ok::<_, Error>(())
    };
    server.call::<i64>("DEL a");
    until_lost(&lost).await;
    assert_eq!(kind(lock.with(loses).await), ErrorKind::Lost);
    assert_eq!(kind(lost.release().await), ErrorKind::Lost);
    drop(lost);
    let later = later.unwrap();
    later.extend(None).await.unwrap();
    assert!(server.is_held("a") && !later.is_lost());
    later.release().await.unwrap();
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overwritten_key_is_a_loss() {
    let server = Server::start();
    server.call::<()>("CONFIG SET lock.default-lease 600");
    let locks = Locks::with_settings(server.client(), short().grace(ms(200))).unwrap();
    let hold = locks.lock("a").acquire().await.unwrap();
    let leased = locks.lock("b").lease(LONG).acquire().await.unwrap();
    server.call::<()>("MSET a x b x");
    // The server notices it at the renewal, or at the next call.
    assert_eq!(until_lost(&hold).await, "wrongtype");
    assert_eq!(kind(hold.release().await), ErrorKind::Lost);
    assert_eq!(kind(leased.extend(None).await), ErrorKind::Lost);
    assert!(leased.is_lost());
    assert_eq!(kind(leased.release().await), ErrorKind::Lost);
    assert_eq!(server.call::<Vec<String>>("MGET a b"), ["x", "x"]);
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn impatient_waiters_make_no_connections() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let hold = locks.lock("a").owner("first").acquire().await.unwrap();
    let waits: Vec<_> = (0..300)
        .map(|number| {
            let wait = locks.lock("a").wait(ms(number % 50));
            tokio::spawn(async move { wait.acquire().await })
        })
        .collect();
    for wait in waits {
        assert!(matches!(kind(wait.await.unwrap()), ErrorKind::TimedOut | ErrorKind::Busy));
    }
    assert_eq!((server.waiters("a"), server.connections(), server.sessions()), (0, 2, 1));
    hold.release().await.unwrap();
    locks.close().await;
    until("all connections are closed", || server.connections() == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlocks_are_reported() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let hold = locks.lock("a").acquire().await.unwrap();
    assert_eq!(kind(locks.lock("a").acquire().await), ErrorKind::Deadlock);
    assert_eq!(kind(locks.lock("a").wait(ms(0)).acquire().await), ErrorKind::Deadlock);
    let again = locks.lock("a").reentrant().acquire().await.unwrap();
    again.release().await.unwrap();
    assert!(server.is_held("a") && !hold.is_lost());
    // Two tasks wait for each other.
    let other = locks.clone();
    let task = tokio::spawn(async move {
        let hold = other.lock("b").acquire().await.unwrap();
        let result = other.lock("a").acquire().await;
        hold.release().await.unwrap();
        result.map(drop)
    });
    block_in_place(|| server.until_waiting("a", 1));
    assert_eq!(kind(locks.lock("b").acquire().await), ErrorKind::Deadlock);
    hold.release().await.unwrap();
    task.await.unwrap().unwrap();
    server.until_free("a");
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_kinds_and_codes() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let wrong = [
        locks.lock(""),
        locks.lock_all(Vec::<String>::new()),
        locks.lock("a").owner(""),
        locks.lock("a").limit(0),
        locks.lock_all(["a", "b"]).limit(2),
        locks.lock("a").lease(Duration::ZERO),
        locks.lock("a").max_hold(Duration::from_nanos(1)),
        locks.lock("a").lease(LONG).max_hold(LONG),
    ];
    for lock in wrong {
        assert_eq!(kind(lock.acquire().await), ErrorKind::Misuse, "{lock:?}");
    }
    assert_eq!(server.connections(), 0);
    assert_eq!(
        kind(Locks::with_settings(server.client(), Settings::new().grace(LONG * 5))),
        ErrorKind::Misuse
    );
    server.call::<()>("SET text x");
    let error = locks.lock("text").acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Misuse, Some("WRONGTYPE")));
    assert!(std::error::Error::source(&error).is_some());
    let hold = locks.lock("a").acquire().await.unwrap();
    assert_eq!(kind(hold.extend(LONG).await), ErrorKind::Misuse);
    hold.extend(None).await.unwrap();
    assert_eq!(kind(locks.lock("a").attach("no ticket").await), ErrorKind::Misuse);
    assert!(locks.lock("a").query().await.unwrap().unwrap().contains_key("holders"));
    assert!(locks.lock("a").force_release().await.unwrap());
    assert_eq!(kind(hold.release().await), ErrorKind::Lost);
    assert!(locks.lock("a").query().await.unwrap().is_none());
    let other = Locks::new(server.client());
    locks.close().await;
    assert_eq!(kind(locks.lock("a").acquire().await), ErrorKind::Misuse);
    // A server that is not there, and one without the module.
    let without = Server::start_with(&[]);
    let bare = Locks::with_settings(without.client(), short()).unwrap();
    assert_eq!(kind(bare.lock("a").acquire().await), ErrorKind::Misuse);
    let port = {
        let gone = Server::start_with(&[]);
        gone.port
    };
    let gone = redis::Client::open(("127.0.0.1", port)).unwrap();
    let gone = Locks::with_settings(gone, short()).unwrap();
    let error = gone.lock("a").try_acquire().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.is_unsent() && error.code().is_none());
    assert_eq!(kind(gone.lock("a").acquire().await), ErrorKind::Unavailable);
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn jeopardy_begins_and_ends_with_an_outage() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let events = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&events);
    let settings =
        short().ttl(LONG).listener(move |event| log.lock().unwrap().push((event.label.clone(), event.name)));
    let locks = Locks::with_settings(proxy.client(), settings).unwrap();
    let hold = locks.lock("a").label("jobs").acquire().await.unwrap();
    let has = |name: &'static str| {
        let events = Arc::clone(&events);
        move || events.lock().unwrap().contains(&(Some("jobs".to_owned()), name))
    };
    until("the hold is safe", || hold.valid_for() > ms(0) && hold.valid_for() <= ms(600));
    proxy.freeze(true);
    until("the hold is in jeopardy", || hold.valid_for().is_zero());
    until("the listener is notified", has("jeopardy"));
    assert!(!hold.is_lost());
    proxy.freeze(false);
    until("the listener is notified", has("safe"));
    until("the hold is safe again", || !hold.valid_for().is_zero());
    hold.release().await.unwrap();
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_beyond_the_ttl_is_a_loss_for_ever() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = Locks::with_settings(proxy.client(), short()).unwrap();
    let hold = locks.lock("a").acquire().await.unwrap();
    let leased = locks.lock("b").lease(ms(700)).acquire().await.unwrap();
    proxy.freeze(true);
    assert_eq!(until_lost(&leased).await, "expired");
    until_lost(&hold).await;
    proxy.freeze(false);
    server.until_free("a");
    assert!(hold.is_lost());
    assert_eq!(kind(hold.release().await), ErrorKind::Lost);
    assert_eq!(kind(leased.release().await), ErrorKind::Lost);
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn holds_and_waits_survive_broken_connections() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = Locks::new(proxy.client());
    let hold = locks.lock("a").acquire().await.unwrap();
    let wait = {
        let lock = locks.lock("a").lease(LONG);
        tokio::spawn(async move { lock.acquire().await })
    };
    block_in_place(|| server.until_waiting("a", 1));
    proxy.break_all();
    until("the hold is safe", || !hold.valid_for().is_zero());
    // The reply to the release is lost, and the server does not know it any longer when it is repeated.
    proxy.lose_the_reply_to("LOCK.RELEASE");
    hold.release().await.unwrap();
    assert!(proxy.has_lost_a_reply());
    let next = wait.await.unwrap().unwrap();
    until("the grant is confirmed", || next.valid_for() > LONG / 2);
    next.release().await.unwrap();
    // The lease of a grant without a reply counts from the first attempt.
    proxy.lose_the_reply_to("LOCK.ACQUIRE");
    let renewals = server.calls("lock.renew");
    let hold = locks.lock("a").lease(LONG).acquire().await.unwrap();
    assert!(proxy.has_lost_a_reply() && server.calls("lock.renew") == renewals);
    until("the grant is confirmed", || hold.valid_for() > LONG / 2);
    hold.release().await.unwrap();
    server.until_free("a");
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contended_leases_need_no_renewal() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let (grace, lock) = (ms(3000), locks.lock("a").lease(LONG));
    let mut hold = lock.acquire().await.unwrap();
    assert!(hold.valid_for() > LONG / 2);
    // Until the grant is acknowledged, a long silence would revoke it. Under load that may be too soon to be seen.
    let (mut was_limited, mut rounds) = (false, 0);
    while !was_limited || rounds < 10 {
        let (task, last) = (lock.clone(), hold);
        let next = tokio::spawn(async move {
            let hold = task.acquire().await.unwrap();
            let valid_for = hold.valid_for();
            (hold, valid_for)
        });
        block_in_place(|| server.until_waiting("a", 1));
        last.release().await.unwrap();
        let valid_for;
        (hold, valid_for) = next.await.unwrap();
        assert!(valid_for > ms(0));
        (was_limited, rounds) = (was_limited || valid_for <= grace, rounds + 1);
        assert!(rounds < 100, "unacknowledged grants are valid for a whole lease");
    }
    until("the grant is confirmed", || hold.valid_for() > LONG / 2);
    assert_eq!(server.calls("lock.renew"), 0);
    hold.release().await.unwrap();
    // A lease that is over when its grant arrives is renewed, or the wait continues.
    let proxy = Proxy::to(&server);
    let distant = Locks::new(proxy.client());
    let first = lock.acquire().await.unwrap();
    let wait = {
        let lock = distant.lock("a").lease(ms(300));
        tokio::spawn(async move { lock.acquire().await })
    };
    block_in_place(|| server.until_waiting("a", 1));
    // Both readers wait for events, so that the grant is on its way before the server knows the end of its lease.
    until("both readers wait", || server.call::<String>("INFO clients").contains("blocked_clients:2\r"));
    proxy.freeze(true);
    first.release().await.unwrap();
    block_in_place(|| server.until_free("a"));
    proxy.freeze(false);
    let late = wait.await.unwrap().unwrap();
    assert!(server.is_held("a") && server.calls("lock.renew") > 0);
    late.release().await.unwrap();
    distant.close().await;
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_without_data_loses_holds_and_repeats_waits() {
    let mut server = Server::start();
    let locks = Locks::new(server.client());
    let hold = locks.lock("a").acquire().await.unwrap();
    let wait = {
        let lock = locks.lock("a");
        tokio::spawn(async move { lock.acquire().await })
    };
    block_in_place(|| server.until_waiting("a", 1));
    server.stop();
    server.start_again();
    assert_eq!(until_lost(&hold).await, "restarted");
    let next = wait.await.unwrap().unwrap();
    assert_eq!(kind(hold.release().await), ErrorKind::Lost);
    assert!(server.is_held("a"));
    next.release().await.unwrap();
    assert_eq!(server.sessions(), 1);
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_is_handed_over() {
    let server = Server::start();
    let [giver, taker] = [Locks::new(server.client()), Locks::new(server.client())];
    let hold = giver.lock("a").acquire().await.unwrap();
    let ticket = hold.hand_over().await.unwrap();
    let taken = taker.lock("a").attach(&ticket).await.unwrap();
    assert_eq!(taken.owner(), hold.owner());
    hold.release().await.unwrap();
    // The giver has another owner now, so this is no deadlock.
    assert!(giver.lock("a").try_acquire().await.unwrap().is_none());
    giver.close().await;
    assert!(server.is_held("a") && !hold.is_lost());
    let value: i64 = taken.guard(redis::cmd("INCR").arg("number")).await.unwrap();
    assert_eq!(value, 1);
    taken.release().await.unwrap();
    assert_eq!(kind(taker.lock("a").attach(&ticket).await), ErrorKind::Lost);
    taker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_locks_are_granted_together() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let hold = locks.lock_all(["a", "b"]).fence().acquire().await.unwrap();
    assert_eq!(hold.tokens().len(), 2);
    assert!(server.is_held("a") && server.is_held("b"));
    // The loss of one lock ends all.
    server.call::<i64>("LOCK.BREAK a");
    assert_eq!(until_lost(&hold).await, "broken");
    server.until_free("b");
    let readers = [locks.lock("a").shared().owner("1"), locks.lock("a").shared().owner("2")];
    let [one, two] = [readers[0].acquire().await.unwrap(), readers[1].acquire().await.unwrap()];
    assert!(locks.lock("a").limit(2).owner("3").try_acquire().await.unwrap().is_none());
    one.release().await.unwrap();
    two.release().await.unwrap();
    let hold = locks.lock("a").max_hold(ms(300)).acquire().await.unwrap();
    assert_eq!(until_lost(&hold).await, "max");
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn close_ends_waits_and_renewed_holds() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let hold = locks.lock("a").acquire().await.unwrap();
    let leased = locks.lock("b").lease(LONG).acquire().await.unwrap();
    let wait = {
        let lock = locks.lock("a");
        tokio::spawn(async move { lock.acquire().await })
    };
    block_in_place(|| server.until_waiting("a", 1));
    locks.close().await;
    assert_eq!(kind(wait.await.unwrap()), ErrorKind::Cancelled);
    server.until_free("a");
    assert!(server.is_held("b") && hold.is_lost());
    assert_eq!(server.sessions(), 0);
    until("all connections are closed", || server.connections() == 0);
    drop(leased);
    // The last of all values ends the session as well.
    let locks = Locks::new(server.client());
    let hold = locks.lock("a").acquire().await.unwrap();
    drop(locks);
    assert_eq!(server.sessions(), 1);
    hold.release().await.unwrap();
    drop(hold);
    until("all connections are closed", || server.connections() == 0);
    assert_eq!(server.sessions(), 0);
}

#[test]
fn locks_survive_their_runtime() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    for _ in 0..2 {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async { locks.lock("a").acquire().await.unwrap().release().await.unwrap() });
    }
    assert_eq!(server.sessions(), 1);
}

#[test]
fn waits_survive_the_runtime_of_others() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let [first, second] = [0; 2].map(|_| tokio::runtime::Runtime::new().unwrap());
    let hold = first.block_on(locks.lock("a").acquire()).unwrap();
    let wait = {
        let lock = locks.lock("a");
        second.spawn(async move { lock.acquire().await })
    };
    server.until_waiting("a", 1);
    drop(first);
    server.call::<i64>("LOCK.BREAK a");
    until("the lock is granted", || wait.is_finished());
    drop(second.block_on(wait).unwrap().unwrap());
    drop(hold);
}

#[tokio::test(flavor = "multi_thread")]
async fn close_undoes_leased_acquires() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = Locks::with_settings(proxy.client(), Settings::new().patience(ms(300))).unwrap();
    let hold = locks.lock("a").lease(LONG * 5).acquire().await.unwrap();
    let busy = Locks::new(server.client());
    let other = busy.lock("b").acquire().await.unwrap();
    let wait = {
        let lock = locks.lock("b").wait(LONG);
        tokio::spawn(async move { lock.acquire().await })
    };
    block_in_place(|| server.until_waiting("b", 1));
    proxy.freeze(true);
    assert_eq!(kind(hold.release().await), ErrorKind::Unavailable);
    let closed = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.close().await })
    };
    // From then on, nothing but the end of the session can undo the acquire.
    assert_eq!(kind(wait.await.unwrap()), ErrorKind::Cancelled);
    proxy.freeze(false);
    closed.await.unwrap();
    assert!(!server.is_held("a"));
    other.release().await.unwrap();
    busy.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn close_ends_a_session_that_opens() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = Locks::new(proxy.client());
    proxy.freeze_after("LOCK.SESSION");
    let wait = {
        let lock = locks.lock("a");
        tokio::spawn(async move { lock.acquire().await })
    };
    until("the session opens", || proxy.is_frozen() && server.sessions() == 1);
    let closed = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.close().await })
    };
    assert_eq!(kind(wait.await.unwrap()), ErrorKind::Cancelled);
    proxy.freeze(false);
    closed.await.unwrap();
    assert_eq!(server.sessions(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_hold_cannot_be_extended() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let hold = locks.lock("a").lease(ms(100)).acquire().await.unwrap();
    assert_eq!(until_lost(&hold).await, "expired");
    assert_eq!(kind(hold.extend(LONG).await), ErrorKind::Lost);
    assert!(hold.is_lost());
    server.until_free("a");
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_leaves_the_owners_of_tasks() {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let hold = locks.lock("a").acquire().await.unwrap();
    let task = locks.clone();
    let given = tokio::spawn(async move { task.lock("b").acquire().await.unwrap() }).await.unwrap();
    let ticket = given.hand_over().await.unwrap();
    assert_eq!(given.end_reason().as_deref(), Some("taken"));
    // This task has handed over the hold of another one, and has the same owner as before.
    assert_eq!(kind(locks.lock("a").acquire().await), ErrorKind::Deadlock);
    let other = Locks::new(server.client());
    let taken = other.lock("b").attach(&ticket).await.unwrap();
    assert_eq!(taken.owner(), given.owner());
    taken.release().await.unwrap();
    hold.release().await.unwrap();
    other.close().await;
    locks.close().await;
}
