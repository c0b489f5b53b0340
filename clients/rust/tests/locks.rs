// SPDX-License-Identifier: MIT

//! What the documentation promises, on servers that are well.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{mpsc, Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_client::{Canceller, Error, Locks, Settings};
use support::{ms, until, Server};

#[test]
fn a_scope_holds_and_gives_back() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let first = {
        let hold = locks.lock("a").fence().acquire().unwrap();
        assert_eq!(server.holder("a"), [hold.owner()]);
        assert!(!hold.is_lost() && hold.valid_for() > ms(20_000) && hold.valid_for() <= ms(30_000));
        assert!(locks.lock("a").try_acquire().unwrap().is_none());
        let Error::Busy(text) = locks.lock("a").wait(ms(0)).acquire().unwrap_err() else { panic!() };
        assert!(text.starts_with("a:"));
        hold.token().unwrap()
    };
    // It does not wait for the server when it is dropped, but what comes after comes later.
    let again = locks.lock("a").fence().try_acquire().unwrap().unwrap();
    assert!(again.token().unwrap() > first);
    again.release().unwrap();
    again.release().unwrap();
    server.assert_nothing_left("a");
    assert!(locks.lock("a").acquire().unwrap().token().is_none());
}

#[test]
fn an_error_of_the_body_wins() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    #[derive(Debug, PartialEq)]
    enum Mine {
        Lock(Error),
        Body,
    }
    impl From<Error> for Mine {
        fn from(error: Error) -> Mine {
            Mine::Lock(error)
        }
    }
    assert_eq!(locks.lock("a").with(|hold| Ok::<_, Mine>(hold.key().to_vec())), Ok(b"a".to_vec()));
    server.assert_nothing_left("a");
    let lost_in_it = |end: Result<(), Mine>| {
        let lock = locks.lock("a").lease(ms(600)).keep(true);
        lock.with(|hold| {
            let _: i64 = server.call("LOCK.BREAK a");
            assert!(hold.wait_lost(ms(10_000)));
            end
        })
    };
    assert_eq!(lost_in_it(Err(Mine::Body)), Err(Mine::Body));
    assert!(matches!(lost_in_it(Ok(())), Err(Mine::Lock(Error::Lost(_)))));
    assert_eq!(locks.lock("a").with(|_| Err::<(), _>(Mine::Body)), Err(Mine::Body));
    server.assert_nothing_left("a");
    // Also if it panics.
    let panics = std::panic::AssertUnwindSafe(|| {
        locks.lock("a").with(|_| -> Result<(), Error> { panic!("on purpose") })
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    until("it is given back", || !server.held("a"));
}

#[test]
fn waits_are_served_in_order() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = locks.lock("a").acquire().unwrap();
    thread::scope(|scope| {
        for number in 0..5 {
            let (locks, order) = (locks.clone(), Arc::clone(&order));
            scope.spawn(move || {
                let hold = locks.lock("a").acquire().unwrap();
                order.lock().unwrap().push(number);
                hold.release().unwrap();
            });
            server.until_waiting("a", number + 1);
        }
        first.release().unwrap();
    });
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
    server.assert_nothing_left("a");
}

#[test]
fn a_wait_that_is_over_leaves_nothing() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let hold = locks.lock("a").acquire().unwrap();
    let began = Instant::now();
    assert!(matches!(locks.lock("a").wait(ms(150)).acquire(), Err(Error::TimedOut(_))));
    assert!(began.elapsed() >= ms(150) && began.elapsed() < ms(3000));
    assert_eq!((server.waiters("a"), server.holder("a")), (0, vec![hold.owner().to_owned()]));
    hold.release().unwrap();
    server.assert_nothing_left("a");
}

#[test]
fn a_long_wait_asks_rarely_and_keeps_its_place() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let hold = locks.lock("a").acquire().unwrap();
    let _: () = server.call("CONFIG RESETSTAT");
    thread::scope(|scope| {
        let wait = scope.spawn(|| locks.lock("a").wait(ms(20_000)).acquire());
        // Who loses the connection for messages listens anew, and asks at once whether one was lost.
        server.until_waiting("a", 1);
        let _: i64 = server.call("CLIENT KILL TYPE pubsub");
        let began = Instant::now();
        until("it has asked twice again", || server.calls("lock.acquire") >= 3);
        assert!(began.elapsed() > ms(2500), "{:?}", began.elapsed());
        assert_eq!(server.waiters("a"), 1);
        hold.release().unwrap();
        let began = Instant::now();
        wait.join().unwrap().unwrap();
        assert!(began.elapsed() < ms(4000));
        assert!(server.calls("lock.acquire") <= 5, "{}", server.calls("lock.acquire"));
    });
}

#[test]
fn a_wait_cancelled_at_the_grant_leaves_nothing() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let (mut granted, mut cancelled) = (0, 0);
    for round in 0..200 {
        let first = locks.lock("a").acquire().unwrap();
        let canceller = Canceller::new();
        let lock = locks.lock("a").canceller(&canceller);
        let wait = thread::spawn(move || lock.acquire());
        server.until_waiting("a", 1);
        let release = thread::spawn(move || first.release());
        let pause = std::time::Duration::from_micros(round % 40 * 10);
        let began = Instant::now();
        while began.elapsed() < pause {
            std::hint::spin_loop();
        }
        canceller.cancel();
        release.join().unwrap().unwrap();
        match wait.join().unwrap() {
            Ok(hold) => {
                granted += 1;
                assert_eq!(server.holder("a"), [hold.owner()]);
                hold.release().unwrap();
            }
            Err(Error::Cancelled(_)) => cancelled += 1,
            Err(error) => panic!("{error}"),
        }
        server.assert_nothing_left("a");
    }
    println!("{granted} granted, {cancelled} cancelled");
    assert!(cancelled > 0);
    // What is cancelled stays so, and sends nothing.
    let canceller = Canceller::new();
    canceller.cancel();
    assert!(matches!(locks.lock("a").canceller(&canceller).acquire(), Err(Error::Cancelled(_))));
    server.assert_nothing_left("a");
}

#[test]
fn a_kept_hold_outlives_its_lease() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let hold = locks.lock("a").lease(ms(300)).keep(true).acquire().unwrap();
    assert!(!hold.wait_lost(ms(1200)));
    assert!(hold.valid_for() > ms(0));
    assert_eq!(server.holder("a"), [hold.owner()]);
    hold.release().unwrap();
    // Nothing is renewed any more.
    let renewals = || {
        let stats: String = server.call("INFO commandstats");
        stats.lines().find(|line| line.starts_with("cmdstat_lock.renew:")).unwrap().to_owned()
    };
    let before = renewals();
    thread::sleep(ms(400));
    assert_eq!(renewals(), before);
    let hold = locks.lock("a").lease(ms(300)).keep(true).max_hold(ms(500)).acquire().unwrap();
    assert!(hold.wait_lost(ms(5000)));
    until("the server ends it, too", || !server.held("a"));
}

#[test]
fn what_is_not_kept_ends_with_its_lease() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let hold = locks.lock("a").lease(ms(300)).acquire().unwrap();
    hold.extend(ms(900)).unwrap();
    let (send, told) = mpsc::channel();
    let other = send.clone();
    hold.on_lost(move || send.send("first").unwrap());
    hold.on_lost(move || other.send("second").unwrap());
    assert!(!hold.wait_lost(ms(500)) && server.held("a"));
    assert!(hold.wait_lost(ms(5000)));
    assert_eq!((told.recv().unwrap(), told.recv().unwrap()), ("first", "second"));
    assert!(told.recv().is_err(), "it is told once");
    assert_eq!(hold.valid_for(), ms(0));
    let (send, told) = mpsc::channel();
    hold.on_lost(move || send.send(()).unwrap());
    told.recv().unwrap();
    assert!(matches!(hold.extend(ms(1000)), Err(Error::Lost(_))));
    assert!(matches!(hold.release(), Err(Error::Lost(_))));
    assert!(matches!(hold.release(), Err(Error::Lost(_))));
}

#[test]
fn a_write_is_guarded() {
    let Some(server) = Server::start(&[]) else { return };
    let hold = server.locks().lock("a").acquire().unwrap();
    assert_eq!(hold.guard(&["SET", "x", "1"]), Ok(Value::Okay));
    // A reply that looks like a message.
    let _: i64 = server.call("RPUSH l message b c");
    assert!(matches!(hold.guard(&["LRANGE", "l", "0", "-1"]), Ok(Value::Array(words)) if words.len() == 3));
    assert!(matches!(hold.guard(&["INCR", "l"]), Err(Error::Misuse(text)) if text.starts_with("WRONGTYPE")));
    // More than a socket takes at once.
    let long = "x".repeat(30_000_000);
    assert_eq!(hold.guard(&["SET", "long", &long]), Ok(Value::Okay));
    assert_eq!(server.call::<usize>("STRLEN long"), long.len());
    assert!(!hold.is_lost());
    // A script may say what a server says that is of no use.
    for text in
        ["READONLY x", "LOADING x", "MASTERDOWN x", "MOVED 1 127.0.0.1:1", "UNBLOCKED send the command"]
    {
        let script = format!("return redis.error_reply('{text}')");
        let error = hold.guard(&["EVAL", &script, "0"]).unwrap_err();
        assert!(error.kind() == "unavailable" && error.text() == text, "{error}");
    }
    // It would have ended with the connection.
    assert!(!hold.wait_lost(ms(100)));
    // A script may look at another lock.
    for hold in [&hold, &server.locks().lock("b").lease(ms(60_000)).acquire().unwrap()] {
        let error = hold.guard(&["EVAL", "return redis.error_reply('NOTOWNER x')", "0"]).unwrap_err();
        assert!(error.kind() == "lost" && hold.check().is_ok() && hold.valid_for() > ms(0), "{error}");
    }
    let _: i64 = server.call("LOCK.BREAK a");
    assert!(matches!(hold.guard(&["SET", "x", "2"]), Err(Error::Lost(_))));
    assert_eq!(server.call::<String>("GET x"), "1");
    assert!(hold.is_lost());
}

#[test]
fn readers_share_and_permits_are_counted() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let readers = [locks.lock("a").shared().acquire().unwrap(), locks.lock("a").shared().acquire().unwrap()];
    assert!(locks.lock("a").try_acquire().unwrap().is_none());
    thread::scope(|scope| {
        let writer = scope.spawn(|| locks.lock("a").acquire());
        server.until_waiting("a", 1);
        assert!(locks.lock("a").shared().try_acquire().unwrap().is_none(), "behind the writer");
        readers.iter().for_each(|hold| hold.release().unwrap());
        writer.join().unwrap().unwrap().release().unwrap();
    });
    let permits: Vec<_> = (0..2).map(|_| locks.lock("s").limit(2).acquire().unwrap()).collect();
    assert!(locks.lock("s").limit(2).try_acquire().unwrap().is_none());
    permits[0].release().unwrap();
    assert!(locks.lock("s").limit(2).try_acquire().unwrap().is_some());
    drop(permits);
    until("all is given back", || !server.held("a") && !server.held("s"));
}

#[test]
fn a_hold_is_handed_over() {
    let Some(server) = Server::start(&[]) else { return };
    let (mine, theirs) = (server.locks(), server.locks());
    let hold = mine.lock("a").acquire().unwrap();
    let owner = hold.hand_over().unwrap();
    hold.release().unwrap();
    assert!(matches!(hold.hand_over(), Err(Error::Lost(_))));
    let hold = theirs.attach("a", &owner, None).unwrap();
    mine.close();
    thread::sleep(ms(50));
    assert_eq!(server.holder("a"), [owner.as_str()], "it is bound to the other now");
    assert!(!hold.is_lost() && hold.valid_for() > ms(20_000));
    hold.release().unwrap();
    server.assert_nothing_left("a");
    assert!(matches!(theirs.attach("a", &owner, ms(1000)), Err(Error::Lost(_))));
}

#[test]
fn a_hold_that_is_bound_is_not_attached_with_a_lease() {
    let Some(server) = Server::start(&[]) else { return };
    let (mine, theirs) = (server.locks(), server.locks());
    let attach = |owner: &str| theirs.attach("a", owner, ms(60_000));
    for bond in ["WATCHDOG", "EPHEMERAL"] {
        let mut first = server.client().get_connection().unwrap();
        // Another holder is no matter.
        let _: i64 = server.call("LOCK.ACQUIRE a other PX 60000 SHARED");
        let words = ["a", "me", "PX", "60000", "SHARED", bond];
        let _: i64 = redis::cmd("LOCK.ACQUIRE").arg(&words).query(&mut first).unwrap();
        let error = attach("me").unwrap_err();
        assert!(error.kind() == "misuse" && error.text().starts_with("a: the hold is bound"), "{error}");
        attach("other").unwrap().release().unwrap();
        let _: i64 = server.call("LOCK.BREAK a");
    }
    let owner = mine.lock("a").lease(ms(5000)).acquire().unwrap().hand_over().unwrap();
    let hold = attach(&owner).unwrap();
    mine.close();
    assert!(hold.valid_for() > ms(50_000) && server.call::<u64>("PTTL a") > 50_000);
    hold.release().unwrap();
}

#[test]
fn each_kind_of_error_is_told_apart() {
    let Some(server) = Server::start(&[]) else { return };
    let locks = server.locks();
    let hold = locks.lock("a").acquire().unwrap();
    assert_eq!(locks.lock("a").wait(ms(0)).acquire().unwrap_err().kind(), "busy");
    assert_eq!(locks.lock("a").wait(ms(50)).acquire().unwrap_err().kind(), "timed out");
    let canceller = Canceller::new();
    thread::scope(|scope| {
        let lock = locks.lock("a").canceller(&canceller);
        let wait = scope.spawn(move || lock.acquire());
        server.until_waiting("a", 1);
        canceller.cancel();
        assert_eq!(wait.join().unwrap().unwrap_err().kind(), "cancelled");
    });
    assert_eq!(server.waiters("a"), 0);
    let _: i64 = server.call("LOCK.BREAK a");
    assert_eq!(hold.release().unwrap_err().kind(), "lost");
    // Of another type, out of range, and said wrongly.
    let _: () = server.call("SET text x");
    for (lock, text) in [
        (locks.lock("text"), "WRONGTYPE "),
        (locks.lock("a").lease(ms(0)), "ERR "),
        (locks.lock("a").limit(0), "ERR "),
        (locks.lock("a").lease(ms(10)).max_hold(ms(10)), "max_hold "),
    ] {
        let error = lock.acquire().unwrap_err();
        assert!(error.kind() == "misuse" && error.text().starts_with(text), "{error}");
        assert!(!server.held("a"));
    }
    // Nobody else may wait.
    let _: () = server.call("CONFIG SET lock.max-waiters 1");
    let hold = locks.lock("a").acquire().unwrap();
    thread::scope(|scope| {
        let wait = scope.spawn(|| locks.lock("a").wait(ms(20_000)).acquire());
        server.until_waiting("a", 1);
        let began = Instant::now();
        let error = locks.lock("a").wait(ms(20_000)).acquire().unwrap_err();
        assert!(error.kind() == "unavailable" && error.text().contains("too many"), "{error}");
        assert!(began.elapsed() < ms(3000), "nothing is polled");
        hold.release().unwrap();
        wait.join().unwrap().unwrap().release().unwrap();
    });
    server.assert_nothing_left("a");
}

#[test]
fn a_listener_hears_of_all_by_label() {
    let Some(server) = Server::start(&[]) else { return };
    let heard = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&heard);
    let settings = Settings::new().listener(move |event| {
        let said = format!("{} {} {}", event.label, event.name, event.outcome);
        events.lock().unwrap().push((said, event.time));
        // What goes wrong here is nobody else's affair.
        assert_ne!(event.label, "panics");
    });
    let locks = Locks::with_settings(&server.client(), settings).unwrap();
    let hold = locks.lock("a").label("one").acquire().unwrap();
    assert!(locks.lock("a").label("two").try_acquire().unwrap().is_none());
    locks.lock("a").label("three").wait(ms(60)).acquire().unwrap_err();
    hold.release().unwrap();
    let hold = locks.lock("a").label("panics").lease(ms(80)).acquire().unwrap();
    assert!(hold.wait_lost(ms(5000)));
    let hold = locks.lock("a").label("last").acquire().unwrap();
    hold.hand_over().unwrap();
    let heard = heard.lock().unwrap();
    let said: Vec<&str> = heard.iter().map(|(said, _)| said.as_str()).collect();
    let all = ["one waited granted", "two waited busy", "three waited timed out", "one held released"];
    let last = ["panics waited granted", "panics held lost", "last waited granted", "last held released"];
    assert_eq!(said, [all, last].concat());
    assert!(heard[2].1 >= ms(60) && heard[3].1 >= ms(60) && heard[5].1 >= ms(75), "{heard:?}");
}

#[test]
fn a_unix_socket_a_password_and_a_database_are_known() {
    let args = ["--unixsocket", "DIR/socket", "--requirepass", "secret"];
    let Some(server) = start_with_password(&args) else { return };
    let client =
        |settings: &str| redis::Client::open(format!("{settings}127.0.0.1:{}/3", server.port)).unwrap();
    for client in [
        client("redis://:secret@"),
        client("redis://default:secret@"),
        redis::Client::open(format!("redis+unix://{}/socket?db=3&pass=secret", server.dir().display()))
            .unwrap(),
    ] {
        let locks = Locks::new(&client).unwrap();
        let hold = locks.lock("a").acquire().unwrap();
        let mut admin = client.get_connection().unwrap();
        let holder: Vec<String> = redis::cmd("HKEYS").arg("a").query(&mut admin).unwrap();
        assert_eq!(holder, [hold.owner()]);
        hold.release().unwrap();
    }
    for wrong in ["redis://:wrong@", "redis://"] {
        let error = Locks::new(&client(wrong)).unwrap().lock("a").try_acquire().unwrap_err();
        assert!(
            error.kind() == "unavailable" && (error.text().contains("PASS") || error.text().contains("AUTH")),
            "{error}"
        );
    }
}

/// The answer to a question without a password is an answer, too.
fn start_with_password(args: &[&str]) -> Option<Server> {
    let server = Server::start(&args[..2])?;
    let _: () = server.call(&format!("CONFIG SET requirepass {}", args[3]));
    Some(server)
}

#[test]
#[cfg(not(feature = "tls"))]
fn tls_is_refused() {
    // redis-rs may have been built without it, or with.
    let error = redis_lock_client::Server::alone("rediss://127.0.0.1:1/").unwrap_err().to_string();
    assert!(error.contains("TLS") || error.contains("tls"), "{error}");
}

#[test]
fn close_leaves_nothing_of_what_was_being_acquired() {
    let Some(server) = Server::start(&[]) else { return };
    for turn in 0..60 {
        let locks = server.locks();
        locks.lock("other").acquire().unwrap().release().unwrap();
        let key = format!("a{turn}");
        thread::scope(|scope| {
            let lock = locks.lock(key.as_str()).lease(ms(600_000));
            let lock = if turn % 3 == 1 { lock.blocking() } else { lock };
            let work = scope
                .spawn(move || if turn % 3 == 2 { lock.try_acquire() } else { lock.acquire().map(Some) });
            thread::sleep(Duration::from_micros(turn * 10));
            locks.close();
            if work.join().unwrap().is_err() {
                until("it is free", || !server.held(&key));
            }
        });
    }
}
