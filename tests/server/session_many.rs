// SPDX-License-Identifier: MIT

//! Ten thousand waits share one session (invariants 3, 4, 9).

use crate::support::{until, with_sessions, Client, Flavor, Session};

crate::on_every_server!(ten_thousand_waits_share_one_session, ten_thousand_waits_end_with_their_session);

const WAITS: usize = 10_000;

/// Maximum memory in bytes of one wait in a shared queue. A blocked client takes 37,000 bytes.
const BYTES: i64 = 1_300;
/// Maximum memory in bytes of the only wait for a lock, with the state of that lock.
const BYTES_WITH_LOCK: i64 = 2_900;

/// Number of calls sent in one write.
const BATCH: usize = 500;

const TTL: u64 = 600_000;
const GRACE: u64 = 10_000;

/// Sends all calls, and asserts that every reply equals `reply`.
fn call_all(client: &mut Client, calls: impl Iterator<Item = String>, reply: &str) {
    let calls: Vec<String> = calls.collect();
    for batch in calls.chunks(BATCH) {
        client.send_at_once(&batch.iter().map(String::as_str).collect::<Vec<_>>());
        for call in batch {
            assert_eq!(client.recv(), reply, "{call}");
        }
    }
}

/// Queues an acquire of each lock. Returns the numbers.
fn queue_all(session: &mut Session, locks: impl Iterator<Item = String>) -> Vec<u64> {
    let numbers: Vec<u64> =
        locks.enumerate().map(|(at, lock)| session.number(&lock, &format!("o{at}"))).collect();
    let calls: Vec<String> = numbers.iter().map(|n| session.command("ACQUIRE", *n, "QUEUE 0")).collect();
    call_all(&mut session.pool, calls.into_iter(), "0");
    numbers
}

fn memory(client: &mut Client) -> i64 {
    client.info("memory", "used_memory").parse().unwrap()
}

fn ten_thousand_waits_share_one_session(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        let mut session = Session::open(world, TTL, GRACE);
        a.call("LOCK.ACQUIRE k a PX 600000");
        let before = memory(&mut a);
        let numbers = queue_all(&mut session, std::iter::repeat_n("k".to_owned(), WAITS));
        let per_wait = (memory(&mut a) - before) / i64::try_from(WAITS).unwrap();
        assert!(per_wait <= BYTES, "{per_wait} bytes");
        assert_eq!(a.call("LOCK.ACQUIRE k late PX 600000"), "nil");
        assert_eq!(a.info("lock", "lock_waiters"), WAITS.to_string());
        assert_eq!(a.call("LOCK.RELEASE k a"), "0");
        for n in numbers {
            assert_eq!(session.some_events(), [format!("granted {n} 1")]);
            assert_eq!(session.release(n), "0");
        }
        assert_eq!(session.events(0), [""; 0]);
        assert_eq!(a.info("lock", "lock_session_grants_overdue"), "0");
        assert_eq!(a.call("EXISTS k"), "0");
    });
}

fn ten_thousand_waits_end_with_their_session(flavor: Flavor) {
    with_sessions(flavor, |world| {
        let mut a = world.client();
        call_all(&mut a, (0..WAITS).map(|lock| format!("LOCK.ACQUIRE k{lock} a PX 600000")), "1");
        let mut session = Session::open(world, TTL, GRACE);
        let before = memory(&mut a);
        queue_all(&mut session, (0..WAITS).map(|lock| format!("k{lock}")));
        let full = memory(&mut a);
        let per_wait = (full - before) / i64::try_from(WAITS).unwrap();
        assert!(per_wait <= BYTES_WITH_LOCK, "{per_wait} bytes");
        // Nothing is held.
        assert_eq!(session.close(), "0");
        until("there are no waiters", || a.info("lock", "lock_waiters") == "0");
        // The keys still exist, and the server keeps its own buffers.
        until("the memory of the waits is free", || memory(&mut a) < before + (full - before) / 10);
        call_all(&mut a, (0..WAITS).map(|lock| format!("LOCK.RELEASE k{lock} a")), "0");
        assert_eq!(a.call("DBSIZE"), "0", "nothing was granted");
        until("no lock is tracked", || a.info("lock", "lock_table_locks") == "0");
    });
}
