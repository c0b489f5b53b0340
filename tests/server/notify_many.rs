// SPDX-License-Identifier: MIT

//! Ten thousand waits share one connection or one subscriber (invariants 3, 4, 9).

use crate::notify::inbox;
use crate::support::{until, Client, Flavor, Server};

crate::on_every_server!(
    ten_thousand_waits_share_one_connection,
    ten_thousand_waits_share_one_subscriber,
    ten_thousand_waits_end_with_their_connection,
);

const WAITS: usize = 10_000;

/// Maximum memory in bytes of one wait in a shared queue. A blocked client takes 37,000 bytes.
const BYTES: i64 = 1_200;
/// Maximum memory in bytes of the only wait for a lock, with the state of that lock.
const BYTES_WITH_LOCK: i64 = 2_400;

/// Number of calls sent in one write.
const BATCH: usize = 500;

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

fn memory(client: &mut Client) -> i64 {
    client.info("memory", "used_memory").parse().unwrap()
}

/// Waits on `caller` are notified on `listener`, or on the same connection if `listener` is `None`.
fn granted_in_order(server: &Server, mut caller: Client, mut listener: Option<Client>) {
    let mut a = server.client();
    a.call("LOCK.ACQUIRE k a PX 600000");
    caller.call("PING");
    let before = memory(&mut a);
    let ask = |number: usize| format!("LOCK.ACQUIRE k o{number} PX 600000 NOTIFY w ID r{number}");
    call_all(&mut caller, (0..WAITS).map(ask), "0");
    let per_wait = (memory(&mut a) - before) / i64::try_from(WAITS).unwrap();
    assert!(per_wait <= BYTES, "{per_wait} bytes");
    assert_eq!(a.call("LOCK.ACQUIRE k late PX 600000"), "nil");
    assert_eq!(a.info("lock", "lock_notify_waits"), WAITS.to_string());
    assert_eq!(a.call("LOCK.RELEASE k a"), "0");
    for number in 0..WAITS {
        let message = listener.as_mut().unwrap_or(&mut caller).recv();
        assert!(message.ends_with(&format!("lock:inbox:w, granted r{number} k]")), "{message}, not {number}");
        caller.send_at_once(&[&ask(number), &format!("LOCK.RELEASE k o{number}")]);
        assert_eq!([caller.recv(), caller.recv()], ["1", "0"]);
    }
    assert!(caller.has_nothing() && listener.is_none_or(|listener| listener.has_nothing()));
    assert_eq!(a.info("lock", "lock_notify_confirmed"), WAITS.to_string());
    assert_eq!(a.info("lock", "lock_notify_not_confirmed"), "0");
    assert_eq!(a.call("EXISTS k"), "0");
}

fn ten_thousand_waits_share_one_connection(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    granted_in_order(&server, inbox(&server, "w"), None);
    server.assert_healthy();
}

fn ten_thousand_waits_share_one_subscriber(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let mut listener = server.client();
    assert_eq!(listener.call("SUBSCRIBE lock:inbox:w"), "[subscribe, lock:inbox:w, 1]");
    granted_in_order(&server, server.client(), Some(listener));
    server.assert_healthy();
}

fn ten_thousand_waits_end_with_their_connection(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let (mut a, mut b) = (server.client(), inbox(&server, "w"));
    call_all(&mut a, (0..WAITS).map(|number| format!("LOCK.ACQUIRE k{number} a PX 600000")), "1");
    let before = memory(&mut a);
    call_all(&mut b, (0..WAITS).map(|number| format!("LOCK.ACQUIRE k{number} b NOTIFY w ID r{number}")), "0");
    let per_wait = (memory(&mut a) - before) / i64::try_from(WAITS).unwrap();
    assert!(per_wait <= BYTES_WITH_LOCK, "{per_wait} bytes");
    assert_eq!(
        b.call("LOCK.ACQUIRE k0 c NOTIFY w ID one-more"),
        "ERR too many waits of this connection; try again later, or raise lock.max-notify"
    );
    let full = memory(&mut a);
    assert_eq!(a.call(&format!("CLIENT KILL ID {}", b.id)), "1");
    until("there are no waiters", || a.info("lock", "lock_table_notified_waits") == "0");
    assert_eq!(a.info("lock", "lock_waiters"), "0");
    // The keys still exist, and the server keeps its own buffers.
    until("the memory of the waits is free", || memory(&mut a) < before + (full - before) / 10);
    call_all(&mut a, (0..WAITS).map(|number| format!("LOCK.RELEASE k{number} a")), "0");
    assert_eq!(a.call("DBSIZE"), "0", "nothing was granted");
    until("no lock is tracked", || a.info("lock", "lock_table_locks") == "0");
    server.assert_healthy();
}
