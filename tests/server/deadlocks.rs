// SPDX-License-Identifier: MIT

//! Deadlock detection, and the commands that show waiters and their blockers.

use redis::Value;

use crate::support::{in_world, show, until, without_addresses, Client, Flavor, Server, World};

crate::on_every_server!(
    a_cycle_of_two_is_refused,
    a_long_cycle_is_abbreviated,
    two_upgrades_are_a_deadlock,
    a_cycle_through_a_reader_is_found,
    a_cycle_through_a_waiter_ahead_is_found,
    a_repeated_waiter_hides_no_cycle,
    waiting_readers_do_not_block_each_other,
    cycles_across_databases_are_found,
    ended_waits_and_holds_are_ignored,
    a_disconnected_waiter_is_ignored,
    a_nonblocking_call_never_deadlocks,
    unreadable_keys_are_masked,
    detection_can_be_turned_off,
    odd_names_are_escaped_and_shortened,
    an_overtaken_call_is_served_later,
    a_later_cycle_is_reported,
    overtaking_newcomers_is_searched_for_cycles,
    searches_stay_fast_in_a_crowd,
    blockers_are_listed_nearest_first,
    contended_locks_are_listed,
    patterns_match_as_in_keys,
    listing_commands_are_dangerous,
);

fn holds(world: &World, pairs: &[(&str, &str)]) -> Client {
    let mut client = world.client();
    for (owner, key) in pairs {
        assert_eq!(client.call(&format!("LOCK.ACQUIRE {key} {owner} PX 100000")), "1");
    }
    client
}

fn deadlock_count(world: &World) -> String {
    world.client().info("lock", "lock_deadlocks")
}

fn a_cycle_of_two_is_refused(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holds(world, &[("a", "k1"), ("b", "k2")]);
        let mut b = world.waiting("LOCK.ACQUIRE k1 b BLOCK 0");
        assert_eq!(
            a.call("LOCK.ACQUIRE k2 a BLOCK 60000"),
            "DEADLOCK waiting could never end: a waits for b (lock k2), b for a (lock k1)"
        );
        // The refused call is not queued and affects no other owner.
        assert_eq!(a.call("LOCK.WAITERS k2"), "[]");
        assert_eq!(a.call("HGETALL k2"), "[b, 1]");
        assert_eq!(deadlock_count(world), "1");
        assert_eq!(a.call("LOCK.RELEASE k1 a"), "0");
        assert_eq!(b.recv(), "1");
        let mut a = world.waiting("LOCK.ACQUIRE k2 a BLOCK 0");
        assert_eq!(b.call("LOCK.RELEASE k2 b"), "0");
        assert_eq!(a.recv(), "1");
    });
}

fn a_long_cycle_is_abbreviated(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for n in 0..10 {
            a.call(&format!("LOCK.ACQUIRE k{n} o{n} PX 100000"));
        }
        let _waiters: Vec<Client> =
            (1..10).map(|n| world.waiting(&format!("LOCK.ACQUIRE k{} o{n} BLOCK 0", (n + 1) % 10))).collect();
        assert_eq!(
            a.call("LOCK.ACQUIRE k1 o0 BLOCK 0"),
            "DEADLOCK waiting could never end: o0 waits for o1 (lock k1), o1 for o2 (lock k2), o2 for o3 (lock k3), \
             o3 for o4 (lock k4), o4 for o5 (lock k5), 4 more, o9 for o0 (lock k0)"
        );
        // A waiter outside the cycle is not in a deadlock.
        assert_eq!(a.call("LOCK.ACQUIRE k5 x BLOCK 1"), "nil");
    });
}

/// Users can choose owner names freely. Without masking, a user with access to some keys could learn the names of all others by
/// building cycles.
fn unreadable_keys_are_masked(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut root = holds(world, &[("x", "app:1"), ("y", "secret:2"), ("z", "secret:3"), ("w", "app:4")]);
        root.call("ACL SETUSER app on nopass resetkeys ~app:* %R~read:* %W~write:* +@all");
        root.call("ACL SETUSER all on nopass resetkeys allkeys +@all");
        let mut app = world.client();
        assert_eq!(app.call("AUTH app x"), "OK");
        // Other users make x wait for y, y for z, and z for w.
        let _waits = ["secret:2 x", "secret:3 y", "app:4 z"]
            .map(|wait| world.waiting(&format!("LOCK.ACQUIRE {wait} BLOCK 0")));
        let hidden = "a lock that you may not read";
        assert_eq!(
            app.call("LOCK.ACQUIRE app:1 w BLOCK 0"),
            format!(
                "DEADLOCK waiting could never end: w waits for x (lock app:1), x for somebody ({hidden}), \
                 somebody for z ({hidden}), z for w (lock app:4)"
            )
        );
        let all = "DEADLOCK waiting could never end: w waits for x (lock app:1), x for y (lock secret:2), \
             y for z (lock secret:3), z for w (lock app:4)";
        assert_eq!(root.call("LOCK.ACQUIRE app:1 w BLOCK 0"), all);
        let mut other = world.client();
        assert_eq!(other.call("AUTH all x"), "OK");
        assert_eq!(other.call("LOCK.ACQUIRE app:1 w BLOCK 0"), all);
        // A write-only key is masked, too; a read-only key is shown.
        root.call("LOCK.ACQUIRE write:1 a PX 100000");
        root.call("LOCK.ACQUIRE read:1 b PX 100000");
        root.call("LOCK.ACQUIRE app:5 c PX 100000");
        let _waits =
            ["write:1 c", "read:1 a"].map(|wait| world.waiting(&format!("LOCK.ACQUIRE {wait} BLOCK 0")));
        assert_eq!(
            app.call("LOCK.ACQUIRE app:5 b BLOCK 0"),
            format!(
                "DEADLOCK waiting could never end: b waits for c (lock app:5), c for a ({hidden}), \
                 a for b (lock read:1)"
            )
        );
        assert_eq!(deadlock_count(world), "4");
        // The permission checks leave no entries in the ACL log.
        assert_eq!(root.call("ACL LOG"), "[]");
    });
}

fn two_upgrades_are_a_deadlock(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a SHARED");
        a.call("LOCK.ACQUIRE k b SHARED");
        let mut up = world.waiting("LOCK.ACQUIRE k a BLOCK 0");
        assert_eq!(
            a.call("LOCK.ACQUIRE k b BLOCK 0"),
            "DEADLOCK waiting could never end: b waits for a (lock k), a for b (lock k)"
        );
        a.call("LOCK.RELEASE k b");
        assert_eq!(up.recv(), "2");
    });
}

fn a_cycle_through_a_reader_is_found(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holds(world, &[("a", "k")]);
        for owner in ["r1", "r2", "r3"] {
            a.call(&format!("LOCK.ACQUIRE s {owner} SHARED PX 100000"));
        }
        let mut r = world.waiting("LOCK.ACQUIRE k r2 BLOCK 0");
        assert_eq!(
            a.call("LOCK.ACQUIRE s a BLOCK 0"),
            "DEADLOCK waiting could never end: a waits for r2 (lock s), r2 for a (lock k)"
        );
        // A shared acquire joins the readers without waiting.
        assert_eq!(a.call("LOCK.ACQUIRE s a SHARED BLOCK 0"), "1");
        a.call("LOCK.RELEASE k a");
        assert_eq!(r.recv(), "1");
    });
}

/// A waiter also waits for the waiters ahead of it.
fn a_cycle_through_a_waiter_ahead_is_found(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holds(world, &[("x", "k"), ("a", "mine")]);
        let mut ahead = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        let mut other = world.waiting("LOCK.ACQUIRE mine b BLOCK 0");
        assert_eq!(
            a.call("LOCK.ACQUIRE k a BLOCK 0"),
            "DEADLOCK waiting could never end: a waits for b (lock k), b for a (lock mine)"
        );
        // A reader waits for the writer ahead of it, although only readers hold the lock.
        a.call("LOCK.RELEASE k x");
        assert_eq!(ahead.recv(), "1");
        a.call("LOCK.RELEASE k b");
        a.call("LOCK.ACQUIRE k r SHARED");
        let _ahead = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        assert_eq!(
            a.call("LOCK.ACQUIRE k a SHARED BLOCK 0"),
            "DEADLOCK waiting could never end: a waits for b (lock k), b for a (lock mine)"
        );
        a.call("LOCK.RELEASE mine a");
        assert_eq!(other.recv(), "1");
    });
}

fn a_repeated_waiter_hides_no_cycle(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holds(world, &[("c", "k2"), ("d", "k1")]);
        let _waiters =
            ["b", "a", "b", "d SHARED"].map(|who| world.waiting(&format!("LOCK.ACQUIRE k2 {who} BLOCK 0")));
        assert_eq!(
            a.call("LOCK.ACQUIRE k1 a BLOCK 0"),
            "DEADLOCK waiting could never end: a waits for d (lock k1), d for a (lock k2)"
        );
    });
}

fn waiting_readers_do_not_block_each_other(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holds(world, &[("x", "k"), ("b", "other")]);
        let mut first = world.waiting("LOCK.ACQUIRE k a SHARED BLOCK 0");
        let mut elsewhere = world.waiting("LOCK.ACQUIRE other a BLOCK 0");
        // The second reader is behind `a`, which waits for `b`, but both readers are granted the lock together.
        let mut second = world.waiting("LOCK.ACQUIRE k b SHARED BLOCK 0");
        a.call("LOCK.RELEASE k x");
        assert_eq!([first.recv(), second.recv()], ["1", "1"]);
        a.call("LOCK.RELEASE other b");
        assert_eq!(elsewhere.recv(), "1");
    });
}

fn cycles_across_databases_are_found(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        a.call("SELECT 7");
        a.call("LOCK.ACQUIRE k b");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        assert!(a.call("LOCK.ACQUIRE k a BLOCK 0").starts_with("DEADLOCK "));
        // The search leaves the caller's database selected.
        assert_eq!(a.call("HGETALL k"), "[b, 1]");
        a.call("SELECT 0");
        a.call("LOCK.BREAK k");
        assert_eq!(b.recv(), "1");
    });
}

fn ended_waits_and_holds_are_ignored(flavor: Flavor) {
    in_world(flavor, |world| {
        // A wait that has timed out is in no cycle.
        let mut a = holds(world, &[("a", "k1"), ("b", "k2")]);
        let mut b = world.waiting("LOCK.ACQUIRE k1 b BLOCK 30");
        assert_eq!(b.recv(), "nil");
        assert_eq!(a.call("LOCK.ACQUIRE k2 a BLOCK 10"), "nil");
        // A waiter that has disconnected is in no cycle.
        let b = world.waiting("LOCK.ACQUIRE k1 b BLOCK 0");
        b.close();
        until("b has left", || a.call("LOCK.WAITERS k1") == "[]");
        assert_eq!(a.call("LOCK.ACQUIRE k2 a BLOCK 10"), "nil");
        // A holder whose lease has expired is in no cycle, even if its key still exists.
        a.call("FLUSHALL");
        a.call("DEBUG SET-ACTIVE-EXPIRE 0");
        a.call("LOCK.ACQUIRE k1 gone SHARED PX 40");
        a.call("LOCK.ACQUIRE k1 r SHARED PX 100000");
        a.call("LOCK.ACQUIRE k2 b PX 100000");
        until("the lease has expired", || !a.call("LOCK.INFO k1").contains("gone"));
        let mut b = world.waiting("LOCK.ACQUIRE k1 b BLOCK 0");
        assert_eq!(a.call("LOCK.ACQUIRE k2 gone BLOCK 10"), "nil");
        // A released hold is in no cycle.
        assert!(a.call("LOCK.ACQUIRE k2 r BLOCK 10").starts_with("DEADLOCK "));
        a.call("LOCK.RELEASE k1 r");
        assert_eq!(b.recv(), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k2 r BLOCK 10"), "nil");
        a.call("DEBUG SET-ACTIVE-EXPIRE 1");
    });
}

/// The search runs in the event loop iteration in which the other client disconnects, before the server has noticed that.
fn a_disconnected_waiter_is_ignored(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holds(world, &[("a", "k1"), ("b", "k2")]);
        let b = world.waiting("LOCK.ACQUIRE k1 b BLOCK 0");
        world.signal(libc::SIGSTOP);
        a.send("LOCK.ACQUIRE k2 a BLOCK 100");
        b.close();
        world.signal(libc::SIGCONT);
        assert_eq!(a.recv(), "nil");
        assert_eq!(deadlock_count(world), "0");
    });
}

fn a_nonblocking_call_never_deadlocks(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holds(world, &[("a", "k1"), ("b", "k2")]);
        let _b = world.waiting("LOCK.ACQUIRE k1 b BLOCK 0");
        assert_eq!(a.call("LOCK.ACQUIRE k2 a"), "nil");
        a.call("MULTI");
        a.call("LOCK.ACQUIRE k2 a BLOCK 0");
        assert_eq!(a.call("EXEC"), "[nil]");
    });
}

fn detection_can_be_turned_off(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holds(world, &[("a", "k1"), ("b", "k2")]);
        let mut b = world.waiting("LOCK.ACQUIRE k1 b BLOCK 0");
        a.call("CONFIG SET lock.deadlock-detection no");
        let mut blocked = world.waiting("LOCK.ACQUIRE k2 a BLOCK 0");
        // LOCK.BLOCKERS still shows the cycle, which leads back to a.
        let known = format!("[[owner, b, key, k2, client, {}], [owner, a, key, k1, client, nil]]", b.id);
        assert_eq!(without_addresses(&a.call("LOCK.BLOCKERS a")), known);
        a.call("CONFIG SET lock.deadlock-detection yes");
        a.call("LOCK.BREAK k1");
        assert_eq!(b.recv(), "1");
        a.call("LOCK.BREAK k2");
        assert_eq!(blocked.recv(), "1");
    });
}

fn odd_names_are_escaped_and_shortened(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let long = [b'x'; 1000];
        let odd = b"\r\n-ERR \0\xff";
        a.call_args(&[b"LOCK.ACQUIRE", b"k1", odd]);
        a.call_args(&[b"LOCK.ACQUIRE", &long, &long]);
        let mut waiter = world.client();
        waiter.send(&format!("LOCK.ACQUIRE k1 {} BLOCK 0", "x".repeat(1000)));
        world.until_blocked(&waiter);
        let reply = a.call_args(&[b"LOCK.ACQUIRE", &long, odd, b"BLOCK", b"0"]);
        let short = format!("{}...", "x".repeat(64));
        let odd = "\\r\\n-ERR \\x00\\xff";
        assert_eq!(
            reply,
            format!(
                "DEADLOCK waiting could never end: {odd} waits for {short} (lock {short}), {short} for {odd} (lock k1)"
            )
        );
        assert_eq!(a.call("PING"), "PONG");
    });
}

/// p's call for X and Y came first, but p also waits for e through K. So e overtakes it and gets X first.
fn an_overtaken_call_is_served_later(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holds(world, &[("e", "K"), ("a", "X")]);
        let mut p = world.waiting("LOCK.ACQUIRE K p BLOCK 0");
        let mut both = world.waiting("LOCK.MACQUIRE 2 X Y p BLOCK 0");
        let mut e = world.waiting("LOCK.MACQUIRE 2 X Z e BLOCK 0");
        assert_eq!(a.call("LOCK.RELEASE X a"), "0");
        assert_eq!(e.recv(), "[1, 1]");
        assert_eq!(a.call("LOCK.MRELEASE 2 X Z e"), "[0, 0]");
        assert_eq!(both.recv(), "[1, 1]");
        assert_eq!(a.call("LOCK.RELEASE K e"), "0");
        assert_eq!(p.recv(), "1");
        assert_eq!(deadlock_count(world), "0");
    });
}

/// When o's first wait for X ends, o's second wait falls behind v.
fn a_later_cycle_is_reported(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holds(world, &[("x", "X"), ("o", "K")]);
        let mut first = world.waiting("LOCK.ACQUIRE X o BLOCK 0 ID one");
        let mut v = world.waiting("LOCK.ACQUIRE X v BLOCK 0");
        let mut second = world.waiting("LOCK.ACQUIRE X o BLOCK 0");
        let mut behind = world.waiting("LOCK.ACQUIRE K v BLOCK 0");
        assert_eq!(a.call("LOCK.CANCEL X o ID one"), "1");
        assert!(first.recv().starts_with("UNBLOCKED"));
        assert_eq!(
            second.recv(),
            "DEADLOCK waiting could never end: o waits for v (lock X), v for o (lock K)"
        );
        assert_eq!(deadlock_count(world), "1");
        a.call("LOCK.RELEASE X x");
        assert_eq!(v.recv(), "1");
        a.call("LOCK.RELEASE K o");
        assert_eq!(behind.recv(), "1");
    });
}

/// The grant of p's shared wait moves its exclusive wait ahead of e, which then waits for p.
fn overtaking_newcomers_is_searched_for_cycles(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holds(world, &[("x", "K"), ("e", "L")]);
        let mut elsewhere = world.waiting("LOCK.ACQUIRE L p BLOCK 0");
        let mut reader = world.waiting("LOCK.ACQUIRE K p SHARED BLOCK 0");
        let mut e = world.waiting("LOCK.ACQUIRE K e SHARED BLOCK 0");
        let mut upgrade = world.waiting("LOCK.ACQUIRE K p BLOCK 0");
        assert_eq!(a.call("LOCK.RELEASE K x"), "0");
        assert_eq!(reader.recv(), "1");
        assert_eq!(upgrade.recv(), "2");
        assert_eq!(
            elsewhere.recv(),
            "DEADLOCK waiting could never end: p waits for e (lock L), e for p (lock K)"
        );
        assert_eq!(deadlock_count(world), "1");
        assert_eq!(a.call("LOCK.RELEASE K p ALL"), "0");
        assert_eq!(e.recv(), "1");
    });
}

/// A search follows the chain of owners, not the whole queue. Thousands of waiters ahead that wait for
/// nothing else add only the holder to the search of each new waiter.
fn searches_stay_fast_in_a_crowd(flavor: Flavor) {
    let server = Server::with_module(flavor, &["--maxclients", "4000"]);
    let mut a = server.client();
    a.call("LOCK.ACQUIRE k a PX 100000");
    let mut crowd: Vec<Client> = (0..500)
        .map(|n| {
            let mut client = server.client();
            client.send(&format!("LOCK.ACQUIRE k o{n} BLOCK 0"));
            client
        })
        .collect();
    until("all wait", || a.info("lock", "lock_waiters") == "500");
    a.call("LOCK.ACQUIRE other o499 PX 100000");
    assert!(a.call("LOCK.ACQUIRE other a BLOCK 0").starts_with("DEADLOCK "));
    assert_eq!(a.call("LOCK.BLOCKERS o499").matches("owner").count(), 500);
    // The crowd also waits for a second lock: each search visits each owner once.
    a.call("LOCK.ACQUIRE k2 a PX 100000");
    let second: Vec<Client> = (0..500)
        .map(|n| {
            let mut client = server.client();
            client.send(&format!("LOCK.ACQUIRE k2 o{n} BLOCK 0"));
            client
        })
        .collect();
    until("all wait twice", || a.info("lock", "lock_waiters") == "1000");
    assert_eq!(a.call("LOCK.BLOCKERS o499").matches("owner").count(), 500);
    drop(second);
    a.call("LOCK.RELEASE k a");
    assert_eq!(crowd[0].recv(), "1");
}

fn blockers_are_listed_nearest_first(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holds(world, &[("a", "k1"), ("b", "k2"), ("c", "k3")]);
        assert_eq!(a.call("LOCK.BLOCKERS a"), "[]");
        assert_eq!(a.call("LOCK.BLOCKERS nobody"), "[]");
        let b = world.waiting("LOCK.ACQUIRE k1 b BLOCK 0");
        let c = world.waiting("LOCK.ACQUIRE k2 c BLOCK 0");
        let d = world.waiting("LOCK.ACQUIRE k3 d BLOCK 0");
        let _e = world.waiting("LOCK.ACQUIRE k3 e BLOCK 0");
        assert_eq!(without_addresses(&a.call("LOCK.BLOCKERS b")), "[[owner, a, key, k1, client, nil]]");
        assert_eq!(
            without_addresses(&a.call("LOCK.BLOCKERS e")),
            format!(
                "[[owner, c, key, k3, client, {}], [owner, d, key, k3, client, {}], [owner, b, key, k2, client, {}], \
                 [owner, a, key, k1, client, nil]]",
                c.id, d.id, b.id
            )
        );
        assert_eq!(a.call("LOCK.BLOCKERS a"), "[]");
        let mut resp3 = world.client();
        resp3.call("HELLO 3");
        assert_eq!(without_addresses(&resp3.call("LOCK.BLOCKERS b")), "[{owner: a, key: k1, client: nil}]");
        assert!(a.call("LOCK.BLOCKERS").starts_with("ERR wrong number of arguments"));
        assert_eq!(
            a.call("LOCK.BLOCKERS #x"),
            "ERR owner begins with '#' in 'lock.blockers' command; use another owner"
        );
    });
}

fn contended_locks_are_listed(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = holds(world, &[("a", "one"), ("a", "two"), ("a", "none")]);
        for owner in ["r1", "r2", "r3"] {
            a.call(&format!("LOCK.ACQUIRE read {owner} SHARED"));
        }
        assert_eq!(a.call("LOCK.LIST"), "[]");
        let _waiters: Vec<Client> = ["one", "two", "two", "read", "read", "read"]
            .iter()
            .enumerate()
            .map(|(n, key)| world.waiting(&format!("LOCK.ACQUIRE {key} w{n} BLOCK 0")))
            .collect();
        let Value::Array(list) = a.call_value("LOCK.LIST") else { panic!("no array") };
        let shown: Vec<String> = list.iter().map(show).collect();
        for (line, start) in shown.iter().zip([
            "[key, read, mode, shared, holders, 3, waiters, 3, longest, ",
            "[key, two, mode, exclusive, holders, 1, waiters, 2, longest, ",
            "[key, one, mode, exclusive, holders, 1, waiters, 1, longest, ",
        ]) {
            assert!(line.starts_with(start), "{line}");
        }
        assert_eq!(shown.len(), 3);
        let longest =
            |list: &str| -> i64 { list.rsplit(", ").next().unwrap().trim_end_matches(']').parse().unwrap() };
        let first = longest(&a.call("LOCK.LIST COUNT 1"));
        until("the longest wait grows", || longest(&a.call("LOCK.LIST COUNT 1")) > first);
        assert_eq!(a.call("LOCK.LIST COUNT 2").matches("key").count(), 2);
        for pattern in ["tw*", "two"] {
            let listed = a.call(&format!("LOCK.LIST MATCH {pattern} COUNT 5"));
            assert!(listed.starts_with("[[key, two, mode, exclusive, holders, 1, waiters, 2, "), "{listed}");
            assert_eq!(listed.matches("key").count(), 1, "{listed}");
        }
        for no_waiters in ["none", "unknown"] {
            assert_eq!(a.call(&format!("LOCK.LIST MATCH {no_waiters}")), "[]");
        }
        // `LOCK.BLOCKERS` lists only locks of the selected database.
        a.call("SELECT 1");
        assert_eq!(a.call("LOCK.LIST"), "[]");
        assert_eq!(a.call("LOCK.LIST MATCH two"), "[]");
        for (command, error) in [
            (
                "LOCK.LIST COUNT 0",
                "ERR COUNT is out of range in 'lock.list' command; use 1 to 9007199254740991",
            ),
            ("LOCK.LIST MATCH", "ERR MATCH needs a value in 'lock.list' command"),
            ("LOCK.LIST MATCH a MATCH b", "ERR MATCH is given twice in 'lock.list' command"),
            ("LOCK.LIST x", "ERR syntax error, unknown option 'x' in 'lock.list' command"),
        ] {
            assert_eq!(a.call(command), error);
        }
    });
}

fn patterns_match_as_in_keys(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let names: [&[u8]; 8] = [b"a", b"ab", b"abc", b"a*c", b"[x]", b"a\\b", b"\xff\xfe", b"a-c"];
        for name in names {
            a.call_args(&[b"LOCK.ACQUIRE", name, b"o"]);
        }
        let _waiters: Vec<Client> = names
            .iter()
            .map(|name| {
                let mut client = world.client();
                client.send_args(&[b"LOCK.ACQUIRE", name, b"w", b"BLOCK", b"0"]);
                world.until_blocked(&client);
                client
            })
            .collect();
        let patterns: [&[u8]; 20] = [
            b"abc", b"ac", b"*", b"a*", b"*c", b"a?c", b"a[b*]c", b"a[^b]c", b"a\\*c", b"\\[x\\]",
            b"[[]x[]]", b"a\\\\b", b"\xff?", b"a[a-z]*", b"a[z-a]*", b"a[b", b"a[", b"a\\", b"[^]",
            b"a[+--]c",
        ];
        for pattern in patterns {
            let mut keys: Vec<String> = match a.call_args_value(&[b"KEYS", pattern]) {
                Value::Array(keys) => keys.iter().map(show).collect(),
                other => panic!("{other:?}"),
            };
            keys.sort();
            let mut listed: Vec<String> = match a.call_args_value(&[b"LOCK.LIST", b"MATCH", pattern]) {
                Value::Array(locks) => locks
                    .iter()
                    .map(|lock| match lock {
                        Value::Array(fields) => show(&fields[1]),
                        other => panic!("{other:?}"),
                    })
                    .collect(),
                other => panic!("{other:?}"),
            };
            listed.sort();
            assert_eq!(listed, keys, "{}", pattern.escape_ascii());
        }
    });
}

fn listing_commands_are_dangerous(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for command in ["lock.list", "lock.blockers"] {
            let info = a.call(&format!("COMMAND INFO {command}"));
            assert!(!flavor.lets_modules_choose_categories() || info.contains("@dangerous"), "{info}");
            assert!(info.contains("readonly"), "{info}");
        }
        a.call("ACL SETUSER careful on nopass ~* +@all -@dangerous -lock.list -lock.blockers");
        let mut careful = world.client();
        careful.call("AUTH careful x");
        assert!(careful.call("LOCK.LIST").starts_with("NOPERM "));
        assert!(careful.call("LOCK.BLOCKERS a").starts_with("NOPERM "));
        assert_eq!(careful.call("LOCK.ACQUIRE k a"), "1");
    });
}
