//! While the server may not write, nothing is granted; it is right after. Where a write nobody asked for would
//! meet a paused server, the server would end with an assertion.

use std::time::{Duration, Instant};

use crate::support::{in_world, until, Flavor, Server, World};

crate::on_every_server!(
    a_pause_holds_grants_back,
    a_wait_ends_in_time_in_a_pause,
    a_shutdown_that_waits_for_a_replica_grants_nothing,
    a_failover_ends_all_waits,
    a_demotion_ends_all_waits,
    a_promotion_starts_afresh,
    a_clock_that_is_set_back_keeps_nobody_waiting,
);

fn a_pause_holds_grants_back(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 150");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 100000");
        assert_eq!(a.call("CLIENT PAUSE 100000 WRITE"), "OK");
        until("the lease is over", || a.call("LOCK.INFO k") == "nil");
        assert_eq!(a.call("LOCK.WAITERS k").matches("owner").count(), 1);
        assert!(b.has_nothing(), "granted in a pause");
        assert_eq!(a.call("CLIENT UNPAUSE"), "OK");
        assert_eq!(b.recv(), "1");
        assert_eq!(b.call("LOCK.RELEASE k b"), "0");
        // A pause of everything cannot be ended, but ends.
        a.call("LOCK.ACQUIRE k a PX 100");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 100000");
        let paused = Instant::now();
        assert_eq!(a.call("CLIENT PAUSE 500 ALL"), "OK");
        assert_eq!(b.recv(), "1");
        assert!(paused.elapsed() >= Duration::from_millis(499), "granted after {:?}", paused.elapsed());
    });
}

fn a_wait_ends_in_time_in_a_pause(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 50");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 200");
        let c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        let mut d = world.waiting("LOCK.ACQUIRE k d BLOCK 0");
        a.call("CLIENT PAUSE 100000 WRITE");
        assert_eq!(b.recv(), "nil");
        c.close();
        until("c has left", || a.call("LOCK.WAITERS k").matches("owner").count() == 1);
        a.call("CLIENT UNPAUSE");
        assert_eq!(d.recv(), "1");
    });
}

/// SIGTERM with a replica that lags pauses writes until it has caught up, or a time is over.
fn a_shutdown_that_waits_for_a_replica_grants_nothing(flavor: Flavor) {
    let World { mut primary, replica } = World::start(flavor, &["--shutdown-timeout", "2"]);
    let mut a = primary.client();
    a.call("LOCK.ACQUIRE k a PX 300");
    a.call("LOCK.ACQUIRE other a PX 300000");
    let mut b = primary.waiting("LOCK.ACQUIRE k b BLOCK 0");
    let mut c = primary.waiting("LOCK.ACQUIRE other c BLOCK 0");
    // The replica does not hear the latest write.
    replica.signal(libc::SIGSTOP);
    a.call("SET x y");
    primary.signal(libc::SIGTERM);
    // Its lease ends in the shutdown, as does another's client.
    until("the server is on its way down", || primary.log().contains("shutdown"));
    a.close();
    let ended_well = primary.ended_well();
    replica.signal(libc::SIGCONT);
    let log = primary.log();
    assert!(!log.contains("ASSERTION") && !log.contains("crashed"), "{log}");
    // It says that it leaves a replica behind, and nothing worse.
    assert!(ended_well || log.contains("Lagging replica"), "{log}");
    assert!(b.is_closed() && c.is_closed(), "a waiter was answered");
}

fn a_failover_ends_all_waits(flavor: Flavor) {
    let world = World::start(flavor, &[]);
    let (mut a, mut r) = (world.client(), world.replica.client());
    a.call("LOCK.ACQUIRE k a PX 100000");
    a.call("LOCK.ACQUIRE ends a PX 100");
    let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
    let mut c = world.waiting("LOCK.ACQUIRE ends c BLOCK 0");
    assert_eq!(c.recv(), "1");
    let mut d = world.waiting("LOCK.ACQUIRE ends d BLOCK 0");
    assert_eq!(a.call("FAILOVER"), "OK");
    for waiter in [&mut b, &mut d] {
        assert!(waiter.recv().starts_with("UNBLOCKED "));
    }
    until("the roles are swapped", || r.call("ROLE").starts_with("[master"));
    assert_eq!(r.call("HGETALL k"), "[a, 1]");
    let World { mut primary, mut replica } = world;
    primary.assert_healthy();
    replica.assert_healthy();
}

fn a_demotion_ends_all_waits(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let other = Server::start(flavor, &[]);
    let mut a = server.client();
    a.call("LOCK.ACQUIRE k a PX 100");
    a.call("LOCK.ACQUIRE l a PX 100000");
    let mut waiters =
        [server.waiting("LOCK.ACQUIRE l b BLOCK 0"), server.waiting("LOCK.ACQUIRE l c BLOCK 100000")];
    // A grant is under way when it happens.
    let mut granted = server.waiting("LOCK.ACQUIRE l first BLOCK 0");
    a.send_at_once(&["LOCK.RELEASE l a", &format!("REPLICAOF 127.0.0.1 {}", other.port)]);
    assert_eq!([a.recv(), a.recv()], ["0", "OK"]);
    for waiter in waiters.iter_mut().chain([&mut granted]) {
        assert!(waiter.recv().starts_with("UNBLOCKED "));
        assert!(waiter.is_closed());
    }
    let mut again = server.client();
    until("nothing of it is left", || again.info("clients", "blocked_clients") == "0");
    until("it can be unloaded", || again.call("MODULE UNLOAD lock") == "OK");
    server.assert_healthy();
}

fn a_promotion_starts_afresh(flavor: Flavor) {
    let primary = Server::with_module(flavor, &[]);
    let mut promoted = Server::with_module(flavor, &[]);
    let (mut p, mut r) = (primary.client(), promoted.client());
    r.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port));
    p.call("LOCK.ACQUIRE k a PX 100000");
    p.call("LOCK.ACQUIRE short a PX 1500");
    until("the replica has the locks", || r.call("EXISTS k short") == "2");
    r.call("REPLICAOF NO ONE");
    drop(primary);
    let mut b = promoted.waiting("LOCK.ACQUIRE k b BLOCK 0");
    let mut c = promoted.waiting("LOCK.ACQUIRE short c BLOCK 0");
    assert_eq!(r.call("LOCK.RELEASE k a"), "0");
    assert_eq!(b.recv(), "1");
    assert_eq!(c.recv(), "1");
    promoted.assert_healthy();
}

/// An operator corrects the wall clock by an hour while clients wait.
fn a_clock_that_is_set_back_keeps_nobody_waiting(flavor: Flavor) {
    let mut server = Server::with_own_clock(flavor);
    let mut a = server.client();
    a.call("LOCK.ACQUIRE k a PX 60000");
    let mut b = server.waiting("LOCK.ACQUIRE k b BLOCK 1500");
    let before: i64 = a.call("TIME").trim_matches(['[', ']']).split(", ").next().unwrap().parse().unwrap();
    server.set_clock(-3600);
    until("the server's clock is back", || {
        let now: i64 = a.call("TIME").trim_matches(['[', ']']).split(", ").next().unwrap().parse().unwrap();
        now < before - 3000
    });
    assert_eq!(b.recv(), "nil");
    // A release, a deletion and a new wait are as quick as ever.
    let mut b = server.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 60000");
    let mut c = server.waiting("LOCK.ACQUIRE k c BLOCK 0");
    a.call("LOCK.RELEASE k a");
    assert_eq!(b.recv(), "1");
    a.call("DEL k");
    assert_eq!(c.recv(), "1");
    assert_eq!(a.call("LOCK.ACQUIRE k d BLOCK 50"), "nil");
    server.assert_healthy();
}
