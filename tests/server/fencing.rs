// SPDX-License-Identifier: MIT

//! Fencing tokens: each is greater than all earlier tokens, despite every fault (invariant 6).

use crate::support::server::load_module;
use crate::support::{in_world, until, Client, Flavor, Server, World};

crate::on_every_server!(
    tokens_grow,
    a_reentry_has_the_same_token,
    readers_and_writers_share_one_counter,
    an_upgrade_has_a_new_token,
    a_waiter_gets_a_token_with_its_grant,
    redissons_counter_is_continued,
    the_counter_expires_after_its_retention,
    a_persistent_counter_stays_persistent,
    an_invalid_counter_stays_unchanged,
    an_invalid_counter_fails_fenced_waits,
    permission_for_the_lock_suffices,
    tokens_grow_across_every_end,
    tokens_grow_across_a_restart,
    tokens_grow_across_a_lossy_failover,
    tokens_grow_when_the_clock_goes_back,
);

const COUNTER: &str = "redisson_lock_token:{k}";

/// Acquires and releases the lock with a token, which must be greater than all of `before`.
fn next(client: &mut Client, before: &mut Vec<i64>) {
    let token = acquire(client, "LOCK.ACQUIRE k a FENCE");
    assert!(before.iter().all(|earlier| *earlier < token), "{token} after {before:?}");
    assert!(token < 1 << 53);
    assert_eq!(client.call("LOCK.RELEASE k a ALL"), "0");
    before.push(token);
}

fn acquire(client: &mut Client, command: &str) -> i64 {
    let reply = client.call(command);
    token_of(&reply)
}

pub(crate) fn token_of(reply: &str) -> i64 {
    let token = reply.trim_end_matches(']').split("token, ").nth(1);
    token.and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("no token in {reply}"))
}

fn micros() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_micros()).unwrap()
}

fn tokens_grow(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let before = micros();
        let reply = a.call("LOCK.ACQUIRE k a FENCE");
        assert!(reply.starts_with("[owner, a, holds, 1, token, "), "{reply}");
        // Without a counter, the token is the server's time.
        assert!((before..=micros()).contains(&token_of(&reply)), "{reply} is not the server's time");
        assert_eq!(a.call(&format!("GET {COUNTER}")), token_of(&reply).to_string());
        assert_eq!(a.call("HGET k #fence"), token_of(&reply).to_string());
        assert!(a.call("LOCK.INFO k").contains(&format!("token, {}", token_of(&reply))));
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert_eq!(a.call("EXISTS k"), "0");
        let mut tokens = vec![token_of(&reply)];
        for _ in 0..100 {
            next(&mut a, &mut tokens);
        }
        let mut resp3 = world.client();
        resp3.call("HELLO 3");
        let reply = resp3.call("LOCK.ACQUIRE k a FENCE");
        assert!(reply.starts_with("{owner: a, holds: 1, token: "), "{reply}");
    });
}

fn a_reentry_has_the_same_token(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let token = acquire(&mut a, "LOCK.ACQUIRE k a FENCE");
        assert_eq!(a.call("LOCK.ACQUIRE k a FENCE"), format!("[owner, a, holds, 2, token, {token}]"));
        // A call without FENCE gets no token.
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "3");
        assert_eq!(a.call("LOCK.ACQUIRE k a SHARED FENCE"), format!("[owner, a, holds, 4, token, {token}]"));
        assert_eq!(a.call("LOCK.RELEASE k a"), "3");
        assert_eq!(a.call("HGET k #fence"), token.to_string());
        assert_eq!(a.call("LOCK.RELEASE k a ALL"), "0");
        // An owner without a token gets one from its first call with FENCE.
        assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
        assert_eq!(a.call("HGETALL k"), "[a, 1]");
        let later = acquire(&mut a, "LOCK.ACQUIRE k a FENCE");
        assert!(later > token);
        assert_eq!(acquire(&mut a, "LOCK.ACQUIRE k a FENCE"), later);
        // The next owner calls without FENCE and has no token.
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0");
        a.call("LOCK.RELEASE k a ALL");
        assert_eq!(b.recv(), "1");
        assert_eq!(a.call("HGETALL k"), "[b, 1]");
        assert!(a.call("LOCK.INFO k").contains("token, nil"));
    });
}

fn readers_and_writers_share_one_counter(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let first = acquire(&mut a, "LOCK.ACQUIRE k a SHARED FENCE");
        let second = acquire(&mut a, "LOCK.ACQUIRE k b SHARED FENCE");
        assert!(second > first);
        assert_eq!(acquire(&mut a, "LOCK.ACQUIRE k a SHARED FENCE"), first);
        assert!(a.call("LOCK.INFO k").contains(&format!("token, {second}")));
        // Tokens grow even if the counter is lost while the holder's token is ahead of the time.
        a.call("LOCK.RELEASE k b");
        a.call(&format!("SET {COUNTER} 9000000000000000"));
        let ahead = acquire(&mut a, "LOCK.ACQUIRE k b SHARED FENCE");
        a.call(&format!("DEL {COUNTER}"));
        assert_eq!(acquire(&mut a, "LOCK.ACQUIRE k c SHARED FENCE"), ahead + 1);
        let second = ahead + 1;
        a.call("LOCK.RELEASE k c");
        assert_eq!(a.call("LOCK.RELEASE k b"), "0");
        assert!(a.call("LOCK.INFO k").contains(&format!("token, {first}")));
        assert_eq!(a.call("LOCK.RELEASE k a ALL"), "0");
        assert!(acquire(&mut a, "LOCK.ACQUIRE k c FENCE") > second);
    });
}

/// A store that has seen another reader's token must accept the token of the upgraded owner.
fn an_upgrade_has_a_new_token(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        acquire(&mut a, "LOCK.ACQUIRE k a SHARED FENCE");
        let other = acquire(&mut a, "LOCK.ACQUIRE k b SHARED FENCE");
        a.call("LOCK.RELEASE k b");
        let upgraded = acquire(&mut a, "LOCK.ACQUIRE k a FENCE");
        assert!(upgraded > other);
        assert_eq!(acquire(&mut a, "LOCK.ACQUIRE k a FENCE"), upgraded);
        // The token is new even if the upgrade asks for none, and a later call does.
        a.call("LOCK.BREAK k");
        let shared = acquire(&mut a, "LOCK.ACQUIRE k a SHARED FENCE");
        a.call("LOCK.ACQUIRE k a");
        assert!(acquire(&mut a, "LOCK.ACQUIRE k a FENCE") > shared);
    });
}

fn a_waiter_gets_a_token_with_its_grant(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let first = acquire(&mut a, "LOCK.ACQUIRE k a FENCE");
        let mut b = world.waiting("LOCK.ACQUIRE k b FENCE BLOCK 0");
        let mut c = world.waiting("LOCK.ACQUIRE k * FENCE BLOCK 0");
        let mut r = world.waiting("LOCK.ACQUIRE k r SHARED FENCE BLOCK 0");
        let mut s = world.waiting("LOCK.ACQUIRE k s SHARED FENCE BLOCK 0");
        a.call("LOCK.RELEASE k a");
        let second = token_of(&b.recv());
        a.call("DEL k");
        let third = token_of(&c.recv());
        a.call("LOCK.BREAK k");
        let (fourth, fifth) = (token_of(&r.recv()), token_of(&s.recv()));
        assert!(first < second && second < third && third < fourth && fourth < fifth);
    });
}

fn redissons_counter_is_continued(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        // Redisson counts from 1, so the time is greater.
        a.call(&format!("INCR {COUNTER}"));
        let token = acquire(&mut a, "LOCK.ACQUIRE k a FENCE");
        assert!(token > 1_000_000_000_000_000);
        a.call("LOCK.RELEASE k a");
        assert_eq!(a.call(&format!("INCR {COUNTER}")), (token + 1).to_string());
        assert!(acquire(&mut a, "LOCK.ACQUIRE k a FENCE") > token + 1);
        a.call("LOCK.RELEASE k a");
        // A counter ahead of the time is incremented.
        a.call(&format!("SET {COUNTER} 9007199254740989"));
        assert_eq!(acquire(&mut a, "LOCK.ACQUIRE k a FENCE"), 9_007_199_254_740_990);
        a.call("LOCK.RELEASE k a");
        assert_eq!(acquire(&mut a, "LOCK.ACQUIRE k a FENCE"), 9_007_199_254_740_991);
        a.call("LOCK.RELEASE k a");
        let full = "ERR fencing counter of the lock is at its maximum; use another lock";
        assert_eq!(a.call("LOCK.ACQUIRE k a FENCE"), full);
        assert_eq!(a.call("EXISTS k"), "0");
        // The counter's name contains the key, including braces in it.
        acquire(&mut a, "LOCK.ACQUIRE a{x} a FENCE");
        assert_eq!(a.call("EXISTS redisson_lock_token:a{x}"), "1");
    });
}

fn the_counter_expires_after_its_retention(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let ttl = |a: &mut Client| a.number(&format!("PTTL {COUNTER}"));
        let mut tokens = Vec::new();
        next(&mut a, &mut tokens);
        assert!((604_790_000..=604_800_000).contains(&ttl(&mut a)));
        a.call("CONFIG SET lock.fence-retention 5000000");
        next(&mut a, &mut tokens);
        assert!((4_990_000..=5_000_000).contains(&ttl(&mut a)));
        a.call("CONFIG SET lock.fence-retention 0");
        next(&mut a, &mut tokens);
        assert_eq!(ttl(&mut a), -1);
        a.call("CONFIG SET lock.fence-retention 40");
        a.call(&format!("DEL {COUNTER}"));
        next(&mut a, &mut tokens);
        until("the counter has expired", || a.call(&format!("EXISTS {COUNTER}")) == "0");
        next(&mut a, &mut tokens);
    });
}

fn a_persistent_counter_stays_persistent(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call(&format!("SET {COUNTER} 7"));
        next(&mut a, &mut vec![7]);
        assert_eq!(a.call(&format!("PTTL {COUNTER}")), "-1");
    });
}

fn an_invalid_counter_stays_unchanged(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let wrong =
            "WRONGTYPE fencing counter of the lock is not an integer; delete its key, or use another lock";
        for make in [format!("RPUSH {COUNTER} 1"), format!("SET {COUNTER} x"), format!("SET {COUNTER} 1.5")] {
            a.call(&make);
            assert_eq!(a.call("LOCK.ACQUIRE k a FENCE"), wrong);
            assert_eq!(a.call("EXISTS k"), "0");
            // Calls without FENCE ignore the counter.
            assert_eq!(a.call("LOCK.ACQUIRE k a"), "1");
            assert_eq!(a.call("LOCK.ACQUIRE k a FENCE"), wrong);
            assert_eq!(a.call("LOCK.RELEASE k a"), "0");
            assert_eq!(a.call(&format!("DEL {COUNTER}")), "1");
        }
    });
}

fn an_invalid_counter_fails_fenced_waits(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a");
        let mut fenced = world.waiting("LOCK.ACQUIRE k b FENCE BLOCK 0");
        let mut plain = world.waiting("LOCK.ACQUIRE k c BLOCK 0");
        a.call(&format!("RPUSH {COUNTER} 1"));
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        assert!(fenced.recv().starts_with("WRONGTYPE fencing counter of the lock"));
        assert_eq!(plain.recv(), "1");
    });
}

/// The caller needs no permission for the keys that the module derives from the lock.
fn permission_for_the_lock_suffices(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("ACL SETUSER worker on nopass ~k -@all +@connection +lock.acquire +lock.release +lock.renew");
        let mut worker = world.client();
        assert_eq!(worker.call("AUTH worker x"), "OK");
        let token = acquire(&mut worker, "LOCK.ACQUIRE k w FENCE ID one WATCHDOG");
        assert_eq!(acquire(&mut worker, "LOCK.ACQUIRE k w FENCE ID one WATCHDOG"), token);
        assert_eq!(worker.call("LOCK.RELEASE k w ID two"), "0");
        assert!(worker.call(&format!("LOCK.ACQUIRE {COUNTER} w")).starts_with("NOPERM "));
        assert_eq!(a.call("DBSIZE"), "3");
    });
}

fn tokens_grow_across_every_end(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        let mut tokens = Vec::new();
        next(&mut a, &mut tokens);
        let old = a.call_args(&[b"DUMP", COUNTER.as_bytes()]);
        assert!(!old.is_empty());
        for end in
            ["DEL k", "UNLINK k", "LOCK.BREAK k", "PEXPIRE k 0", "RENAME k elsewhere", "FLUSHDB", "FLUSHALL"]
        {
            let token = acquire(&mut a, "LOCK.ACQUIRE k a FENCE");
            assert!(tokens.iter().all(|earlier| *earlier < token), "{token} after {tokens:?}");
            tokens.push(token);
            a.call(end);
            next(&mut a, &mut tokens);
        }
        // The lease expires.
        tokens.push(acquire(&mut a, "LOCK.ACQUIRE k a FENCE PX 5"));
        until("the lease has expired", || a.call("LOCK.INFO k") == "nil");
        next(&mut a, &mut tokens);
        // The counter is deleted, or restored from an hour-old backup.
        a.call(&format!("DEL {COUNTER}"));
        next(&mut a, &mut tokens);
        a.call(&format!("COPY {COUNTER} backup"));
        next(&mut a, &mut tokens);
        a.call(&format!("COPY backup {COUNTER} REPLACE"));
        next(&mut a, &mut tokens);
        // A restored lock keeps its holder's token.
        let held = acquire(&mut a, "LOCK.ACQUIRE k a FENCE PX 100000");
        a.call("COPY k copy");
        a.call("LOCK.RELEASE k a");
        tokens.push(held);
        next(&mut a, &mut tokens);
        a.call("RENAME copy k");
        assert_eq!(acquire(&mut a, "LOCK.ACQUIRE k a FENCE"), held);
        a.call("LOCK.RELEASE k a ALL");
        next(&mut a, &mut tokens);
    });
}

fn tokens_grow_across_a_restart(flavor: Flavor) {
    let mut tokens = Vec::new();
    let server = Server::with_module(flavor, &["--appendonly", "yes"]);
    let mut a = server.client();
    // The counter is set ahead of the time, so that only the counter can determine the tokens.
    a.call(&format!("SET {COUNTER} 9000000000000000"));
    next(&mut a, &mut tokens);
    a.call("LOCK.ACQUIRE k a FENCE PX 100000");
    server.signal(libc::SIGKILL);
    let module = crate::support::server::module().to_str().unwrap();
    let again = Server::start_in(flavor, server.stop(), &["--appendonly", "yes", "--loadmodule", module]);
    let mut a = again.client();
    assert_eq!(acquire(&mut a, "LOCK.ACQUIRE k a FENCE"), tokens[0] + 1, "the holder's token has changed");
    a.call("LOCK.RELEASE k a ALL");
    tokens.push(tokens[0] + 1);
    next(&mut a, &mut tokens);
    assert_eq!(tokens, [9_000_000_000_000_001, 9_000_000_000_000_002, 9_000_000_000_000_003]);
}

fn tokens_grow_across_a_lossy_failover(flavor: Flavor) {
    let world = World::start(flavor, &[]);
    let (mut a, mut r) = (world.client(), world.replica.client());
    load_module(&mut r);
    let mut tokens = Vec::new();
    next(&mut a, &mut tokens);
    until("the replica has it", || r.call(&format!("GET {COUNTER}")) == tokens[0].to_string());
    // The replica loses all later writes.
    world.replica.signal(libc::SIGSTOP);
    for _ in 0..20 {
        next(&mut a, &mut tokens);
    }
    world.primary.signal(libc::SIGKILL);
    world.replica.signal(libc::SIGCONT);
    assert_eq!(r.call("REPLICAOF NO ONE"), "OK");
    // Tokens grow with the time, however many writes were still in the socket.
    r.call("LOCK.BREAK k");
    next(&mut r, &mut tokens);
}

fn tokens_grow_when_the_clock_goes_back(flavor: Flavor) {
    let server = Server::with_own_clock(flavor);
    let mut a = server.client();
    let mut tokens = Vec::new();
    next(&mut a, &mut tokens);
    server.set_clock(-3600);
    until("the clock has gone back", || time(&mut a) < micros() - 3_000_000_000);
    next(&mut a, &mut tokens);
    assert_eq!(tokens[1], tokens[0] + 1, "the counter is not incremented");
    // Tokens grow even if the counter is also lost.
    a.call(&format!("DEL {COUNTER}"));
    next(&mut a, &mut tokens);
    server.set_clock(0);
    until("the clock is right again", || time(&mut a) > micros() - 1_000_000_000);
    next(&mut a, &mut tokens);
    assert!(tokens[3] > tokens[2] + 1);
}

/// The server's time in microseconds.
fn time(client: &mut Client) -> i64 {
    let reply = client.call("TIME");
    let (seconds, micros) = reply.trim_matches(['[', ']']).split_once(", ").unwrap();
    seconds.parse::<i64>().unwrap() * 1_000_000 + micros.parse::<i64>().unwrap()
}
