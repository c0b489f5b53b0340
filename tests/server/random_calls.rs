// SPDX-License-Identifier: MIT

//! Sends random words as commands: each call gets a reply, a refused call changes nothing, and the server survives
//! (invariants 10, 12). Runs for two seconds or for `WORDS_SECONDS`. A failure prints its `WORDS_SEED`.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::Value;

use crate::support::client::prefix;
use crate::support::world::keys;
use crate::support::{in_world_with, show, Client, Flavor, Server};

crate::on_every_server!(random_calls_always_get_a_reply);

const COMMANDS: [&str; 17] = [
    "ACQUIRE", "RELEASE", "RENEW", "BREAK", "INFO", "WAITERS", "LIST", "BLOCKERS", "CHECK", "GUARD",
    "CANCEL", "MACQUIRE", "MRELEASE", "MRENEW", "SCAN", "TOP", "HELP",
];

/// Values of arguments: owners, keys, requests and numbers. No lease or timeout in the list ends within the test.
const VALUES: [&[u8]; 30] = [
    b"a",
    b"b",
    b"k",
    b"l",
    b"{k}",
    b"*",
    b"#",
    b"#k",
    b"x y",
    b"\0\r\n\xff",
    b"redisson_lock_token:{k}",
    b"text",
    b"list",
    b"600000",
    b"700000",
    b"0",
    b"1",
    b"2",
    b"-1",
    b"00",
    b"+1",
    b"1.5",
    b" 1",
    b"1e3",
    b"9007199254740991",
    b"9007199254740992",
    b"18446744073709551616",
    b"",
    b"SET",
    b"INCR",
];

/// Well-formed options.
const OPTIONS: [&str; 20] = [
    "PX 600000",
    "EX 600",
    "BLOCK 600000",
    "SHARED",
    "SHARED LIMIT 2",
    "ONCE",
    "FENCE",
    "WATCHDOG",
    "WATCHDOG MAX 600000",
    "EPHEMERAL",
    "REPLICAS 1",
    "REPLICAS 2 WITHIN 1",
    "ID r1",
    "ID r2",
    "ALL",
    "OWNER a",
    "TOKEN 5",
    "MATCH *",
    "COUNT 2",
    "SET v 1",
];

/// Error prefixes of calls that may have changed something before they failed.
const MAY_HAVE_WRITTEN: [&str; 3] = ["NOREPLICAS", "UNBLOCKED", "EXECABORT"];

/// Number of calls that a failure shows.
const SHOWN_CALLS: usize = 100;

struct Words {
    tokens: Vec<String>,
    rng: StdRng,
}

impl Words {
    /// The words of the help texts: commands, options and errors.
    fn of(help: &Value, seed: u64) -> Words {
        let text = show(help);
        let words = text.split(|c: char| !c.is_ascii_uppercase());
        let words: BTreeSet<&str> = words.filter(|word| word.len() > 1).collect();
        let tokens: Vec<_> = words.into_iter().map(str::to_owned).collect();
        assert!(tokens.contains(&"QUEUE".to_owned()) && tokens.contains(&"GUARD".to_owned()), "{tokens:?}");
        Words { tokens, rng: StdRng::seed_from_u64(seed) }
    }

    fn any<T: Clone>(rng: &mut StdRng, of: &[T]) -> T {
        of[rng.random_range(0..of.len())].clone()
    }

    /// A random call. Its first words are often valid.
    fn call(&mut self) -> Vec<Vec<u8>> {
        let rng = &mut self.rng;
        let mut call = vec![format!("LOCK.{}", Words::any(rng, &COMMANDS)).into_bytes()];
        if call[0].starts_with(b"LOCK.M") && rng.random_bool(0.8) {
            call.push(Words::any(rng, &[b"1", b"2", b"3"]).to_vec());
        }
        if rng.random_bool(0.8) {
            call.push(Words::any(rng, &[&b"k"[..], b"l", b"m"]).to_vec());
            call.push(Words::any(rng, &[&b"a"[..], b"b", b"m"]).to_vec());
        }
        for _ in 0..rng.random_range(0..4) {
            if rng.random_bool(0.8) {
                let option = Words::any(rng, &OPTIONS);
                call.extend(option.split(' ').map(|word| word.as_bytes().to_vec()));
            }
        }
        for _ in 0..rng.random_range(0_u32..6).saturating_sub(3) {
            call.push(match rng.random_range(0..20) {
                0..=10 => Words::any(rng, &self.tokens).into_bytes(),
                11 => vec![b'x'; rng.random_range(100..1100)],
                _ => Words::any(rng, &VALUES).to_vec(),
            });
            if rng.random_bool(0.3) {
                call.push(Words::any(rng, &[&b"600000"[..], b"2", b"r1", b"r2"]).to_vec());
            }
        }
        for pair in 1..call.len() {
            // A lease of 2 ms could expire during a refused call, which would then seem to have changed something.
            let is_time = ["PX", "EX", "GRACE"].iter().any(|word| word.as_bytes() == call[pair - 1]);
            if is_time && [&b"1"[..], b"2"].contains(&call[pair].as_slice()) {
                call[pair] = b"600000".to_vec();
            }
        }
        call
    }
}

fn random_calls_always_get_a_reply(flavor: Flavor) {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let seed = number("WORDS_SEED")
        .unwrap_or_else(|| u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos()));
    let until = Instant::now() + Duration::from_secs(number("WORDS_SECONDS").unwrap_or(2));
    eprintln!("WORDS_SEED={seed}");
    in_world_with(flavor, &[], |world| {
        let (mut admin, mut client) = (world.client(), world.client());
        let mut words = Words::of(&admin.call_value("LOCK.HELP"), seed);
        let (mut answered, mut refused, mut blocked) = (0, BTreeSet::new(), 0);
        let mut next_reset = Instant::now();
        // The latest calls with their times in microseconds, for a failure message.
        let (began, mut last) = (Instant::now(), VecDeque::new());
        // A busy machine needs longer for a fair sample.
        while Instant::now() < until || answered < 100 || refused.len() < 3 {
            if Instant::now() >= next_reset {
                // No lease ends before this time.
                next_reset = Instant::now() + Duration::from_secs(2);
                client = world.client();
                assert_eq!(admin.call("FLUSHALL"), "OK");
                assert_eq!(admin.call("SET text x"), "OK");
                assert_eq!(admin.call("RPUSH list x"), "1");
                stable_digest(&mut admin, 200);
            }
            let call = words.call();
            let before = stable_digest(&mut admin, 2);
            let Some(reply) = answer(world, &mut admin, &mut client, &call) else {
                blocked += 1;
                stable_digest(&mut admin, 200);
                continue;
            };
            answered += 1;
            last.truncate(SHOWN_CALLS);
            last.push_front(format!("{} {}: {}", began.elapsed().as_micros(), readable(&call), show(&reply)));
            if let Value::ServerError(_) = reply {
                let reply = show(&reply);
                let after = admin.call("DEBUG DIGEST");
                assert!(
                    before == after || MAY_HAVE_WRITTEN.contains(&prefix(&reply)),
                    "{} was refused but changed something: {reply}\n{:#?}\nlast calls: {last:#?}",
                    readable(&call),
                    keys(&mut admin)
                );
                refused.insert(prefix(&reply).to_owned());
            }
        }
        println!("{answered} calls got a reply, {blocked} waited; errors: {refused:?}");
    });
}

/// The digest of all keys once it has been the same for `reads` consecutive reads. Holds of closed connections and undelivered
/// grants end slightly later.
fn stable_digest(admin: &mut Client, reads: usize) -> String {
    let (mut digest, mut same) = (String::new(), 0);
    while same < reads {
        let now = admin.call("DEBUG DIGEST");
        same = if now == digest { same + 1 } else { 0 };
        digest = now;
    }
    digest
}

/// The reply to a call. `None` if the call waits, after its connection was closed.
fn answer(server: &Server, admin: &mut Client, client: &mut Client, call: &[Vec<u8>]) -> Option<Value> {
    client.send_args(&call.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let deadline = Instant::now() + Duration::from_secs(20);
    while client.has_nothing() {
        let line = admin.call(&format!("CLIENT LIST ID {}", client.id));
        let is_blocked = line.split_whitespace().any(|word| word.starts_with("flags=") && word.contains('b'));
        if is_blocked {
            assert_eq!(admin.call(&format!("CLIENT KILL ID {}", client.id)), "1");
            *client = server.client();
            return None;
        }
        assert!(Instant::now() < deadline, "no reply to {}", readable(call));
    }
    Some(client.recv_value())
}

fn readable(call: &[Vec<u8>]) -> String {
    call.iter().map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
}
