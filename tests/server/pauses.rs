// SPDX-License-Identifier: MIT

//! While the server must not write, nothing is granted; grants follow right after. A write by the module during a pause
//! would crash the server with an assertion.

use std::time::{Duration, Instant};

use crate::support::server::unload_module;
use crate::support::{in_world, until, Client, Flavor, Server, World};

crate::on_every_server!(
    a_pause_delays_grants,
    waits_time_out_during_a_pause,
    too_few_replicas_delay_grants,
    a_disk_error_delays_grants,
    the_write_check_changes_nothing,
    a_waiting_shutdown_grants_nothing,
    a_failover_ends_all_waits,
    a_demotion_ends_all_waits,
    a_promoted_server_hands_over_replicated_locks,
    a_clock_set_back_delays_no_waiter,
    a_watchdog_survives_stalls_of_half_its_lease,
);

/// Checks the promise of `docs/guarantees.md` about stalls. A hold survives any number of stalls below two thirds of its
/// lease, and no stall above the lease.
fn a_watchdog_survives_stalls_of_half_its_lease(flavor: Flavor) {
    in_world(flavor, |world| {
        let (mut a, mut b) = (world.client(), world.client());
        assert_eq!(a.call("LOCK.ACQUIRE k a WATCHDOG PX 2000"), "1");
        let mut next = world.waiting("LOCK.ACQUIRE k next BLOCK 0");
        for _ in 0..4 {
            assert_eq!(b.call("DEBUG SLEEP 1"), "OK");
            assert_eq!(b.call("LOCK.CHECK k OWNER a"), "1");
        }
        assert!(next.has_nothing());
        assert_eq!(b.call("DEBUG SLEEP 2.1"), "OK");
        assert_eq!(next.recv(), "1");
        assert!(a.call("LOCK.RELEASE k a").starts_with("NOTOWNER "));
        assert_eq!(next.call("LOCK.RELEASE k next"), "0");
    });
}

fn a_pause_delays_grants(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 150");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 100000");
        assert_eq!(a.call("CLIENT PAUSE 100000 WRITE"), "OK");
        until("the lease has expired", || a.call("LOCK.INFO k") == "nil");
        assert_eq!(a.call("LOCK.WAITERS k").matches("owner").count(), 1);
        assert!(b.has_nothing(), "granted in a pause");
        assert_eq!(a.call("CLIENT UNPAUSE"), "OK");
        assert_eq!(b.recv(), "1");
        assert_eq!(b.call("LOCK.RELEASE k b"), "0");
        // A pause of all commands cannot be ended early.
        a.call("LOCK.ACQUIRE k a PX 100");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 100000");
        let paused = Instant::now();
        assert_eq!(a.call("CLIENT PAUSE 500 ALL"), "OK");
        assert_eq!(b.recv(), "1");
        assert!(paused.elapsed() >= Duration::from_millis(499), "granted after {:?}", paused.elapsed());
    });
}

fn waits_time_out_during_a_pause(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 100000");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 500");
        let c = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        let mut d = world.waiting("LOCK.ACQUIRE k d BLOCK 0");
        // The lease ends during the pause.
        a.send_at_once(&["PEXPIRE k 50", "CLIENT PAUSE 100000 WRITE"]);
        assert_eq!((a.recv(), a.recv()), ("1".into(), "OK".into()));
        assert_eq!(b.recv(), "nil");
        c.close();
        until("c has left", || a.call("LOCK.WAITERS k").matches("owner").count() == 1);
        a.call("CLIENT UNPAUSE");
        assert_eq!(d.recv(), "1");
    });
}

/// `refuse` makes the server refuse all writes with an error that begins with `error`, and `allow` makes it accept them
/// again. In between, nothing is granted or renewed, and waits still time out.
fn nothing_is_granted_while(server: &Server, error: &str, refuse: impl Fn(), allow: impl Fn()) {
    let mut a = server.client();
    for key in ["ends", "left", "kept"] {
        assert_eq!(a.call(&format!("DEL {key}")).len(), 1);
    }
    // The first two locks become free in between, by lease expiry and by a disconnect. The third is renewed.
    assert_eq!(a.call("LOCK.ACQUIRE ends a PX 1000"), "1");
    let mut gone = server.client();
    assert_eq!(gone.call("LOCK.ACQUIRE left gone EPHEMERAL PX 100000"), "1");
    let mut keeper = server.client();
    assert_eq!(keeper.call("LOCK.ACQUIRE kept keeper WATCHDOG PX 3000"), "1");
    let mut impatient = server.waiting("LOCK.ACQUIRE ends b BLOCK 1500");
    let mut first = server.waiting("LOCK.ACQUIRE ends c BLOCK 0 PX 50000");
    let mut heir = server.waiting("LOCK.ACQUIRE left d BLOCK 0 PX 50000");
    refuse();
    let refused = |client: &mut Client| client.call("SET x y").starts_with(error);
    assert!(refused(&mut a), "{}", a.call("SET x y"));
    gone.close();
    assert_eq!(impatient.recv(), "nil");
    until("the lease has expired", || a.call("LOCK.INFO ends") == "nil");
    until("a renewal was due", || a.number("PTTL kept") < 1900);
    assert!(a.call("LOCK.INFO left").contains("gone"));
    assert!(first.has_nothing() && heir.has_nothing(), "granted while the server refuses writes");
    assert!(refused(&mut a));
    allow();
    let allowed = Instant::now();
    assert_eq!([first.recv(), heir.recv()], ["1", "1"]);
    assert!(allowed.elapsed() < Duration::from_secs(2), "granted {:?} later", allowed.elapsed());
    until("the lease is renewed", || a.number("PTTL kept") > 1900);
    for (client, key) in [(&mut first, "ends c"), (&mut heir, "left d"), (&mut keeper, "kept keeper")] {
        assert_eq!(client.call(&format!("LOCK.RELEASE {key}")), "0");
    }
}

fn too_few_replicas_delay_grants(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut operator = world.client();
        nothing_is_granted_while(
            world,
            "NOREPLICAS ",
            || assert_eq!(world.client().call("CONFIG SET min-replicas-to-write 2"), "OK"),
            || assert_eq!(world.client().call("CONFIG SET min-replicas-to-write 1"), "OK"),
        );
        // With enough replicas, the setting causes no delay.
        assert_eq!(operator.call("LOCK.ACQUIRE k a PX 50"), "1");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        assert_eq!(b.recv(), "1");
        operator.call("CONFIG SET min-replicas-to-write 0");
    });
}

fn a_disk_error_delays_grants(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &["--save", "3600 1", "--dbfilename", "dump"]);
    let obstacle = server.dir.path().join("dump");
    let saved = |outcome: &str| {
        let mut a = server.client();
        a.call("BGSAVE");
        until("the snapshot has ended", || {
            a.info("persistence", "rdb_bgsave_in_progress") == "0"
                && a.info("persistence", "rdb_last_bgsave_status") == outcome
        });
    };
    nothing_is_granted_while(
        &server,
        "MISCONF ",
        || {
            // A folder prevents the server from writing its file.
            std::fs::create_dir(&obstacle).unwrap();
            saved("err");
        },
        || {
            std::fs::remove_dir(&obstacle).unwrap();
            saved("ok");
        },
    );
    server.assert_healthy();
}

/// The module checks for refused writes with a command that must change nothing, not even the key that it names.
fn the_write_check_changes_nothing(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for (make, look) in [
            ("SET lock text", "GET lock"),
            ("SET lock text PXAT 9000000000000", "PEXPIRETIME lock"),
            ("RPUSH lock x y", "LRANGE lock 0 -1"),
            ("HSET lock f v", "HGETALL lock"),
        ] {
            a.call("DEL lock");
            a.call(make);
            let before = [a.call(look), a.call("PEXPIRETIME lock")];
            let mut watcher = world.client();
            watcher.call("WATCH lock");
            a.call("LOCK.ACQUIRE k a PX 20");
            let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
            assert_eq!(b.recv(), "1");
            assert_eq!([a.call(look), a.call("PEXPIRETIME lock")], before, "{make}");
            watcher.send_at_once(&["MULTI", "PING", "EXEC"]);
            assert_eq!([watcher.recv(), watcher.recv(), watcher.recv()], ["OK", "QUEUED", "[PONG]"]);
            a.call("DEL k");
        }
    });
}

/// With a lagging replica, SIGTERM pauses writes until the replica has caught up or a timeout ends.
fn a_waiting_shutdown_grants_nothing(flavor: Flavor) {
    let World { mut primary, replica } = World::start(flavor, &["--shutdown-timeout", "2"]);
    let mut a = primary.client();
    a.call("LOCK.ACQUIRE k a PX 300");
    a.call("LOCK.ACQUIRE other a PX 300000");
    let mut b = primary.waiting("LOCK.ACQUIRE k b BLOCK 0");
    let mut c = primary.waiting("LOCK.ACQUIRE other c BLOCK 0");
    // The replica does not receive the latest write.
    replica.signal(libc::SIGSTOP);
    a.call("SET x y");
    primary.signal(libc::SIGTERM);
    // One lease expires and one client disconnects during the shutdown.
    until("the shutdown has begun", || primary.log().contains("shutdown"));
    a.close();
    let ended_well = primary.ended_well();
    replica.signal(libc::SIGCONT);
    let log = primary.log();
    assert!(!log.contains("ASSERTION") && !log.contains("crashed"), "{log}");
    // The log may report a lagging replica, but no other problem.
    assert!(ended_well || log.contains("Lagging replica"), "{log}");
    assert!(b.is_closed() && c.is_closed(), "a waiter got a reply");
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
    // A grant is pending at the demotion.
    let mut granted = server.waiting("LOCK.ACQUIRE l first BLOCK 0");
    a.send_at_once(&["LOCK.RELEASE l a", &format!("REPLICAOF 127.0.0.1 {}", other.port)]);
    assert_eq!([a.recv(), a.recv()], ["0", "OK"]);
    for waiter in waiters.iter_mut().chain([&mut granted]) {
        assert!(waiter.recv().starts_with("UNBLOCKED "));
        assert!(waiter.is_closed());
    }
    let mut again = server.client();
    until("no client is blocked", || again.info("clients", "blocked_clients") == "0");
    unload_module(&mut again);
    server.assert_healthy();
}

fn a_promoted_server_hands_over_replicated_locks(flavor: Flavor) {
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
fn a_clock_set_back_delays_no_waiter(flavor: Flavor) {
    let mut server = Server::with_own_clock(flavor);
    let mut a = server.client();
    a.call("LOCK.ACQUIRE k a PX 60000");
    let mut b = server.waiting("LOCK.ACQUIRE k b BLOCK 1500");
    let before: i64 = a.call("TIME").trim_matches(['[', ']']).split(", ").next().unwrap().parse().unwrap();
    server.set_clock(-3600);
    until("the server's clock is set back", || {
        let now: i64 = a.call("TIME").trim_matches(['[', ']']).split(", ").next().unwrap().parse().unwrap();
        now < before - 3000
    });
    assert_eq!(b.recv(), "nil");
    // A release, a deletion and a new wait are as fast as before.
    let mut b = server.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 60000");
    let mut c = server.waiting("LOCK.ACQUIRE k c BLOCK 0");
    a.call("LOCK.RELEASE k a");
    assert_eq!(b.recv(), "1");
    a.call("DEL k");
    assert_eq!(c.recv(), "1");
    assert_eq!(a.call("LOCK.ACQUIRE k d BLOCK 50"), "nil");
    server.assert_healthy();
}
