// SPDX-License-Identifier: MIT

//! External clients, as Redisson's are: they get a message, and then have to be fast. Here they are scripts and a
//! subscription; the real ones are in `redisson`. Neither they nor those who wait natively starve (3).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Barrier;
use std::thread;

use crate::notify::inbox;
use crate::support::server::{load_module, unload_module};
use crate::support::{in_world, lua, until, Client, Flavor, Server};

crate::on_every_server!(
    neither_side_starves,
    nor_where_one_client_comes_back_at_once,
    a_window_leaves_the_lock_free_with_one_message,
    who_waits_is_served_when_nobody_comes,
    without_a_subscriber_there_are_no_windows,
    the_end_of_a_shortened_lease_is_announced_at_once,
    a_release_of_what_was_deleted_loses_no_message,
    nothing_is_remembered_for_long,
    an_external_client_may_keep_the_lock_for_long,
    the_release_of_an_external_client_is_announced_by_it_alone,
    a_flush_is_announced_for_locks_that_nobody_here_takes,
    the_end_of_the_next_ones_shorter_lease_is_announced_at_once,
    the_end_of_a_grant_by_message_is_announced_at_once,
    so_is_the_end_of_what_follows_a_grant_that_was_not_confirmed,
);

const CHANNEL: &str = "redisson_lock__channel:{k}";

/// An external client that waits for the lock `k`.
struct External {
    client: Client,
    subscriber: Client,
    name: String,
}

impl External {
    fn new(server: &Server, name: &str) -> External {
        let mut subscriber = server.client();
        assert_eq!(subscriber.call(&format!("SUBSCRIBE {CHANNEL}")), format!("[subscribe, {CHANNEL}, 1]"));
        External { client: server.client(), subscriber, name: name.to_owned() }
    }

    /// Waits for messages only: a lease that ends would be noticed by nobody in time.
    fn lock(&mut self) {
        while self.eval(lua::ACQUIRE) != "nil" {
            assert_eq!(self.subscriber.recv(), format!("[message, {CHANNEL}, 0]"));
        }
    }

    fn unlock(&mut self) {
        assert_eq!(self.eval(lua::RELEASE), "1");
    }

    fn eval(&mut self, script: &str) -> String {
        let (script, channel, name) = (script.as_bytes(), CHANNEL.as_bytes(), self.name.as_bytes());
        self.client.call_args(&[b"EVAL", script, b"2", b"k", channel, b"100000", name])
    }
}

/// Everybody wants the lock again as soon as they have given it back, until there were `rounds` grants. Returns how many
/// of them were native, and how many external.
fn contend(server: &Server, natives: usize, externals: usize, rounds: usize) -> (usize, usize) {
    let (total, inside) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let [here, elsewhere] = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let enter = |count: &AtomicUsize| {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
        count.fetch_add(1, Ordering::SeqCst);
        inside.fetch_sub(1, Ordering::SeqCst);
        total.fetch_add(1, Ordering::SeqCst) < rounds
    };
    // On a busy machine some would be done before others have begun.
    let all_are_there = Barrier::new(natives + externals);
    let (enter, here, elsewhere, all_are_there) = (&enter, &here, &elsewhere, &all_are_there);
    thread::scope(|scope| {
        for native in 0..natives {
            scope.spawn(move || {
                let mut client = server.client();
                let mut goes_on = true;
                all_are_there.wait();
                while goes_on {
                    assert_eq!(client.call(&format!("LOCK.ACQUIRE k n{native} PX 100000 BLOCK 0")), "1");
                    goes_on = enter(here);
                    assert_eq!(client.call(&format!("LOCK.RELEASE k n{native}")), "0");
                }
            });
        }
        for external in 0..externals {
            scope.spawn(move || {
                let mut external = External::new(server, &format!("s{external}"));
                let mut goes_on = true;
                all_are_there.wait();
                while goes_on {
                    external.lock();
                    goes_on = enter(elsewhere);
                    external.unlock();
                }
            });
        }
    });
    (here.load(Ordering::SeqCst), elsewhere.load(Ordering::SeqCst))
}

fn assert_fair((here, elsewhere): (usize, usize)) {
    let least = (here + elsewhere) / 10;
    assert!(here >= least && elsewhere >= least, "{here} grants here, {elsewhere} elsewhere");
}

fn neither_side_starves(flavor: Flavor) {
    in_world(flavor, |world| {
        assert_fair(contend(world, 4, 4, 600));
        assert_fair(contend(world, 2, 1, 300));
    });
}

/// A queue of its own has nobody in it.
fn nor_where_one_client_comes_back_at_once(flavor: Flavor) {
    in_world(flavor, |world| {
        assert_fair(contend(world, 1, 2, 300));
    });
}

fn a_window_leaves_the_lock_free_with_one_message(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut external = External::new(world, "s");
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k n0 PX 100000"), "1");
        let mut waiting: Vec<Client> = Vec::new();
        for n in 1..=20 {
            waiting.push(world.waiting(&format!("LOCK.ACQUIRE k n{n} PX 100000 BLOCK 0")));
        }
        // One after the other is granted the lock here, until a window begins.
        let mut next = 1;
        while external.subscriber.has_nothing() {
            assert_eq!(a.call(&format!("LOCK.RELEASE k n{}", next - 1)), "0");
            until("it is granted or announced", || {
                !external.subscriber.has_nothing() || !waiting[0].has_nothing()
            });
            if !waiting[0].has_nothing() {
                assert_eq!(waiting.remove(0).recv(), "1");
                next += 1;
            }
            assert!(next < 20, "no window for the external client");
        }
        assert_eq!(external.subscriber.recv(), format!("[message, {CHANNEL}, 0]"));
        assert_ne!(a.info("lock", "lock_fairness_windows_given"), "0");
        for last in next..=20 {
            if waiting.is_empty() {
                break;
            }
            assert_eq!(waiting.remove(0).recv(), "1", "in order, when nobody has come");
            assert_eq!(a.call(&format!("LOCK.RELEASE k n{last}")), "0");
        }
    });
}

/// Fifty in line, and a subscriber who is no client at all: everybody is served, first come first.
fn who_waits_is_served_when_nobody_comes(flavor: Flavor) {
    in_world(flavor, |world| {
        let silent = External::new(world, "s");
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k n PX 100000"), "1");
        let mut waiting: Vec<Client> =
            (0..50).map(|n| world.waiting(&format!("LOCK.ACQUIRE k n{n} PX 100000 BLOCK 0"))).collect();
        assert_eq!(a.call("LOCK.RELEASE k n"), "0");
        for n in 0..50 {
            assert_eq!(waiting[n].recv(), "1");
            assert!(waiting[n + 1..].iter().all(Client::has_nothing), "two hold the lock");
            assert_eq!(waiting[n].call(&format!("LOCK.RELEASE k n{n}")), "0");
        }
        assert_eq!(a.info("lock", "lock_fairness_windows_used"), "0");
        drop(silent);
    });
}

fn without_a_subscriber_there_are_no_windows(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut other = world.client();
        // Who listens to all messages, waits for no lock.
        other.call("PSUBSCRIBE *");
        contend(world, 4, 0, 300);
        let mut a = world.client();
        assert_eq!(a.info("lock", "lock_fairness_windows_given"), "0");
    });
}

fn the_end_of_a_shortened_lease_is_announced_at_once(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut external = External::new(world, "s");
        let mut a = world.client();
        // The server would not notice by itself.
        assert_eq!(a.call("DEBUG SET-ACTIVE-EXPIRE 0"), "OK");
        for shorten in [
            "LOCK.RENEW k a PX 50",
            "LOCK.RELEASE k a PX 50",
            "LOCK.ACQUIRE k a PX 50",
            "LOCK.RENEW k a EX 1",
        ] {
            assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
            assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "2");
            a.call(shorten);
            external.lock();
            external.unlock();
            // Its own message.
            external.subscriber.recv();
        }
        assert_eq!(a.call("DEBUG SET-ACTIVE-EXPIRE 1"), "OK");
    });
}

/// The deleted lock is reconciled, and announced free, after what is in the same pipeline.
fn a_release_of_what_was_deleted_loses_no_message(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut external = External::new(world, "s");
        let mut a = world.client();
        for call in ["LOCK.RELEASE k a", "LOCK.RENEW k a", "LOCK.BREAK k"] {
            assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
            a.send_at_once(&["DEL k", call]);
            assert_eq!(a.recv(), "1");
            a.recv();
            assert_eq!(external.subscriber.recv(), format!("[message, {CHANNEL}, 0]"));
        }
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        a.send_at_once(&["DEL k", "LOCK.ACQUIRE k b PX 100000"]);
        assert_eq!((a.recv(), a.recv()), ("1".to_owned(), "1".to_owned()));
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
        assert_eq!(external.subscriber.recv(), format!("[message, {CHANNEL}, 0]"));
        // Freed by the DEL, taken, and freed again.
        a.send_at_once(&[
            "LOCK.ACQUIRE k a PX 100000",
            "DEL k",
            "LOCK.ACQUIRE k b PX 100000",
            "LOCK.RELEASE k b",
        ]);
        for reply in ["1", "1", "1", "0"] {
            assert_eq!(a.recv(), reply);
        }
        assert_eq!(external.subscriber.recv(), format!("[message, {CHANNEL}, 0]"));
        until_timers_have_fired(&mut a);
        assert!(external.subscriber.has_nothing(), "a lock was announced that was not free");
    });
}

/// Whatever a timer was to do at once, it has done then.
fn until_timers_have_fired(client: &mut Client) {
    client.call("LOCK.ACQUIRE timer a");
    assert_eq!(client.call("LOCK.ACQUIRE timer b BLOCK 5"), "nil");
    assert_eq!(client.call("LOCK.RELEASE timer a"), "0");
}

/// The module has nothing to say about a lock that was not granted here, also if one of this name was, and was
/// revoked.
fn the_release_of_an_external_client_is_announced_by_it_alone(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut external = External::new(world, "s");
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        let b = world.waiting("LOCK.ACQUIRE k b PX 100000 BLOCK 0");
        a.send_at_once(&["LOCK.RELEASE k a", &format!("CLIENT KILL ID {}", b.id)]);
        assert_eq!((a.recv(), a.recv()), ("0".to_owned(), "1".to_owned()));
        assert_eq!(external.subscriber.recv(), format!("[message, {CHANNEL}, 0]"));
        assert_eq!(a.call("EXISTS k"), "0");
        external.lock();
        external.unlock();
        assert_eq!(external.subscriber.recv(), format!("[message, {CHANNEL}, 0]"));
        until_timers_have_fired(&mut a);
        assert!(external.subscriber.has_nothing(), "announced twice");
    });
}

fn a_flush_is_announced_for_locks_that_nobody_here_takes(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut external = External::new(world, "s");
        let mut other = world.client();
        other.call("SUBSCRIBE redisson_lock__channel:{other}");
        let mut a = world.client();
        for flush in ["FLUSHALL", "FLUSHDB", "SWAPDB 0 1", "FLUSHALL"] {
            // Redisson has taken one of them, of which the module knows nothing.
            a.call("HSET other owner 1");
            a.call("PEXPIRE other 100000");
            assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
            let mut b = world.waiting("LOCK.ACQUIRE k b PX 100000 BLOCK 0");
            assert_eq!(a.call(flush), "OK");
            assert_eq!(b.recv(), "1");
            assert_eq!(other.recv(), "[message, redisson_lock__channel:{other}, 0]", "{flush}");
            assert!(external.subscriber.has_nothing(), "{flush}");
            assert_eq!(b.call("LOCK.RELEASE k b"), "0");
            assert_eq!(external.subscriber.recv(), format!("[message, {CHANNEL}, 0]"));
            a.call("DEL other");
        }
    });
}

/// Longer than it is remembered that somebody listened.
fn an_external_client_may_keep_the_lock_for_long(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut external = External::new(world, "s");
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        external.lock();
        assert_eq!(a.call("PEXPIRE k 2500"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k a BLOCK 10"), "nil");
        until("its lease is over", || a.call("EXISTS k") == "0");
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000 BLOCK 10"), "1");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        unload_module(&mut a);
        assert_eq!(load_module(&mut a), "OK");
    });
}

/// External clients sleep until the end of the lease that they saw, unless it is announced.
fn the_end_of_the_next_ones_shorter_lease_is_announced_at_once(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut external = External::new(world, "s");
        let mut a = world.client();
        // The server would not notice by itself.
        assert_eq!(a.call("DEBUG SET-ACTIVE-EXPIRE 0"), "OK");
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        let mut b = world.waiting("LOCK.ACQUIRE k b PX 100 BLOCK 0");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(b.recv(), "1");
        external.lock();
        let mut b = world.waiting("LOCK.ACQUIRE k b PX 100 BLOCK 0");
        let mut other = External::new(world, "t");
        assert_ne!(other.eval(lua::ACQUIRE), "nil");
        assert_eq!(a.call("DEL k"), "1");
        assert_eq!(b.recv(), "1");
        other.lock();
        other.unlock();
        drop(other);
        external.lock();
        external.unlock();
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000 SHARED"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k b PX 100 SHARED"), "1");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        external.lock();
        external.unlock();
        assert_eq!(a.call("DEBUG SET-ACTIVE-EXPIRE 1"), "OK");
    });
}

/// The lease of who is told by a message is short at first, and longer when the grant is confirmed; or not.
fn the_end_of_a_grant_by_message_is_announced_at_once(flavor: Flavor) {
    for (grace, then, holds) in [
        ("GRACE 100", "", ""),
        ("GRACE 10000", "LOCK.ACQUIRE k b NOTIFY w ID r PX 300", "1"),
        ("GRACE 200", "LOCK.RENEW k b PX 300", "1"),
        ("GRACE 200", "LOCK.ACQUIRE k b PX 300", "2"),
    ] {
        // A server of its own: once it is known that somebody has subscribed, the end of every lease is watched.
        in_world(flavor, |world| {
            let mut external = External::new(world, "s");
            let (mut a, mut b) = (world.client(), inbox(world, "w"));
            assert_eq!(a.call("DEBUG SET-ACTIVE-EXPIRE 0"), "OK");
            assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
            assert_eq!(b.call(&format!("LOCK.ACQUIRE k b NOTIFY w ID r PX 200000 {grace}")), "0");
            // It has seen for how long the lock is held, and sleeps.
            assert_ne!(external.eval(lua::ACQUIRE), "nil");
            assert_eq!(a.call("LOCK.RELEASE k a"), "0");
            assert_eq!(b.recv(), "push[lock:inbox:w, granted r k]");
            if !then.is_empty() {
                assert_eq!(a.call(then), holds);
            }
            external.lock();
            external.unlock();
            assert_eq!(a.call("DEBUG SET-ACTIVE-EXPIRE 1"), "OK");
        });
    }
}

/// The end that external clients have seen is a later one than the grace of the grant before.
fn so_is_the_end_of_what_follows_a_grant_that_was_not_confirmed(flavor: Flavor) {
    for (then, next) in [
        ("LOCK.RELEASE k b", "LOCK.ACQUIRE k c PX 400 BLOCK 0"),
        ("LOCK.CANCEL k b ID r", "LOCK.ACQUIRE k c PX 400 BLOCK 0"),
        ("LOCK.BREAK k", "LOCK.ACQUIRE k c PX 400 BLOCK 0"),
        ("DEL k", "LOCK.ACQUIRE k c PX 400 BLOCK 0"),
        ("", "LOCK.ACQUIRE k c PX 400 BLOCK 0"),
        ("LOCK.RELEASE k b", "LOCK.ACQUIRE k c PX 400 NOTIFY w ID s"),
        ("LOCK.RELEASE k b", "LOCK.ACQUIRE k c PX 400 NOTIFY w ID s SHARED"),
        ("LOCK.RELEASE k b", "LOCK.MACQUIRE 2 k l c PX 400 BLOCK 0"),
    ] {
        in_world(flavor, |world| {
            let mut external = External::new(world, "s");
            let (mut a, mut b, mut c) = (world.client(), inbox(world, "w"), world.client());
            assert_eq!(a.call("DEBUG SET-ACTIVE-EXPIRE 0"), "OK");
            assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
            assert_eq!(b.call("LOCK.ACQUIRE k b NOTIFY w ID r PX 200000 GRACE 300"), "0");
            c.send(next);
            until("both wait", || a.info("lock", "lock_waiters") == "2");
            assert_ne!(external.eval(lua::ACQUIRE), "nil");
            assert_eq!(a.call("LOCK.RELEASE k a"), "0");
            assert_eq!(b.recv(), "push[lock:inbox:w, granted r k]");
            if !then.is_empty() {
                a.call(then);
            }
            if next.contains("NOTIFY") {
                assert_eq!(c.recv(), "0");
                assert_eq!(b.recv(), "push[lock:inbox:w, lost r k]");
                assert_eq!(b.recv(), "push[lock:inbox:w, granted s k]");
                assert_eq!(c.call(next), "1");
            } else {
                let reply = c.recv();
                assert!(["1", "[1, 1]"].contains(&reply.as_str()), "{reply}");
            }
            external.lock();
            external.unlock();
            a.call("LOCK.BREAK l");
            assert_eq!(a.call("DEBUG SET-ACTIVE-EXPIRE 1"), "OK");
        });
    }
}

fn nothing_is_remembered_for_long(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    contend(&server, 2, 2, 100);
    let mut a = server.client();
    until("all are gone", || a.info("clients", "connected_clients") == "1");
    // It has no timer any more.
    unload_module(&mut a);
    assert_eq!(load_module(&mut a), "OK");
    server.assert_healthy();
}
