// SPDX-License-Identifier: MIT

//! External clients such as Redisson's get a message and then race for the lock. These tests simulate them with scripts and
//! a subscription; `redisson` has the real ones. Neither external nor native waiters starve (invariant 3).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Barrier;
use std::thread;

use crate::support::server::{load_module, unload_module};
use crate::support::{in_world, lua, until, Client, Flavor, Server};

crate::on_every_server!(
    neither_side_starves,
    a_single_native_client_starves_nobody,
    a_window_sends_one_message,
    waiters_are_served_after_unused_windows,
    no_windows_without_a_subscriber,
    a_shortened_leases_end_is_announced,
    releasing_a_deleted_lock_loses_no_message,
    idle_state_is_forgotten,
    an_external_client_may_hold_for_long,
    an_external_release_is_announced_once,
    a_flush_announces_unclaimed_locks,
    a_successors_shorter_lease_is_announced,
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

    /// Waits for messages only, so a missing message blocks the test.
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

/// All clients acquire the lock again right after each release, until `rounds` grants. Returns the numbers of native and of
/// external grants.
fn contend(server: &Server, natives: usize, externals: usize, rounds: usize) -> (usize, usize) {
    let (total, inside) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let [native_grants, external_grants] = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let enter = |count: &AtomicUsize| {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
        count.fetch_add(1, Ordering::SeqCst);
        inside.fetch_sub(1, Ordering::SeqCst);
        total.fetch_add(1, Ordering::SeqCst) < rounds
    };
    // Without the barrier, some threads would finish before others start if the machine is busy.
    let start = Barrier::new(natives + externals);
    let (enter, native_grants, external_grants, start) = (&enter, &native_grants, &external_grants, &start);
    thread::scope(|scope| {
        for native in 0..natives {
            scope.spawn(move || {
                let mut client = server.client();
                let mut continues = true;
                start.wait();
                while continues {
                    assert_eq!(client.call(&format!("LOCK.ACQUIRE k n{native} PX 100000 BLOCK 0")), "1");
                    continues = enter(native_grants);
                    assert_eq!(client.call(&format!("LOCK.RELEASE k n{native}")), "0");
                }
            });
        }
        for external in 0..externals {
            scope.spawn(move || {
                let mut external = External::new(server, &format!("s{external}"));
                let mut continues = true;
                start.wait();
                while continues {
                    external.lock();
                    continues = enter(external_grants);
                    external.unlock();
                }
            });
        }
    });
    (native_grants.load(Ordering::SeqCst), external_grants.load(Ordering::SeqCst))
}

fn assert_fair((native_grants, external_grants): (usize, usize)) {
    let minimum = (native_grants + external_grants) / 10;
    assert!(
        native_grants >= minimum && external_grants >= minimum,
        "{native_grants} native and {external_grants} external grants"
    );
}

fn neither_side_starves(flavor: Flavor) {
    in_world(flavor, |world| {
        assert_fair(contend(world, 4, 4, 600));
        assert_fair(contend(world, 2, 1, 300));
    });
}

/// With a single native client, no other waiter is ever in the queue.
fn a_single_native_client_starves_nobody(flavor: Flavor) {
    in_world(flavor, |world| {
        assert_fair(contend(world, 1, 2, 300));
    });
}

fn a_window_sends_one_message(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut external = External::new(world, "s");
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k n0 PX 100000"), "1");
        let mut waiting: Vec<Client> = Vec::new();
        for n in 1..=20 {
            waiting.push(world.waiting(&format!("LOCK.ACQUIRE k n{n} PX 100000 BLOCK 0")));
        }
        // Native waiters get the lock in order until a window begins. On a busy machine the window may be over, and the
        // lock granted, before this test sees the message.
        let mut next = 1;
        loop {
            assert_eq!(a.call(&format!("LOCK.RELEASE k n{}", next - 1)), "0");
            until("the lock is granted or announced", || {
                !external.subscriber.has_nothing() || !waiting[0].has_nothing()
            });
            if !external.subscriber.has_nothing() {
                break;
            }
            assert_eq!(waiting.remove(0).recv(), "1");
            next += 1;
            assert!(next < 20, "no window for the external client");
        }
        assert_eq!(external.subscriber.recv(), format!("[message, {CHANNEL}, 0]"));
        assert_ne!(a.info("lock", "lock_fairness_windows_given"), "0");
        for last in next..=20 {
            if waiting.is_empty() {
                break;
            }
            assert_eq!(waiting.remove(0).recv(), "1", "in order after an unused window");
            assert_eq!(a.call(&format!("LOCK.RELEASE k n{last}")), "0");
        }
    });
}

/// Fifty waiters and a subscriber that never acquires: all waiters are served in order.
fn waiters_are_served_after_unused_windows(flavor: Flavor) {
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

fn no_windows_without_a_subscriber(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut other = world.client();
        // A subscriber to all messages does not wait for a lock.
        other.call("PSUBSCRIBE *");
        contend(world, 4, 0, 300);
        let mut a = world.client();
        assert_eq!(a.info("lock", "lock_fairness_windows_given"), "0");
    });
}

fn a_shortened_leases_end_is_announced(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut external = External::new(world, "s");
        let mut a = world.client();
        // Only the module's timer may notice the expiry.
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
            // The message of the external client's own release.
            external.subscriber.recv();
        }
        assert_eq!(a.call("DEBUG SET-ACTIVE-EXPIRE 1"), "OK");
    });
}

/// The module reconciles and announces the deleted lock after the rest of the pipeline.
fn releasing_a_deleted_lock_loses_no_message(flavor: Flavor) {
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
        // The lock is freed by DEL, acquired, and freed again.
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
        assert!(external.subscriber.has_nothing(), "a held lock was announced");
    });
}

/// Waits until timers that were due have fired.
fn until_timers_have_fired(client: &mut Client) {
    client.call("LOCK.ACQUIRE timer a");
    assert_eq!(client.call("LOCK.ACQUIRE timer b BLOCK 5"), "nil");
    assert_eq!(client.call("LOCK.RELEASE timer a"), "0");
}

/// The module announces no release of an external hold, even after it has revoked its own grant of the same lock.
fn an_external_release_is_announced_once(flavor: Flavor) {
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

fn a_flush_announces_unclaimed_locks(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut external = External::new(world, "s");
        let mut other = world.client();
        other.call("SUBSCRIBE redisson_lock__channel:{other}");
        let mut a = world.client();
        for flush in ["FLUSHALL", "FLUSHDB", "SWAPDB 0 1", "FLUSHALL"] {
            // Redisson holds a lock that the module does not track.
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

/// The test lasts for longer than the module remembers a subscriber.
fn an_external_client_may_hold_for_long(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut external = External::new(world, "s");
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000"), "1");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        external.lock();
        assert_eq!(a.call("PEXPIRE k 2500"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k a BLOCK 10"), "nil");
        until("the lease has expired", || a.call("EXISTS k") == "0");
        assert_eq!(a.call("LOCK.ACQUIRE k a PX 100000 BLOCK 10"), "1");
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        unload_module(&mut a);
        assert_eq!(load_module(&mut a), "OK");
    });
}

/// External clients sleep until the end of the lease that they have seen, unless an earlier end is announced.
fn a_successors_shorter_lease_is_announced(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut external = External::new(world, "s");
        let mut a = world.client();
        // Only the module's timer may notice the expiry.
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

fn idle_state_is_forgotten(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    contend(&server, 2, 2, 100);
    let mut a = server.client();
    until("all other clients have disconnected", || a.info("clients", "connected_clients") == "1");
    // The module has no timer left.
    unload_module(&mut a);
    assert_eq!(load_module(&mut a), "OK");
    server.assert_healthy();
}
