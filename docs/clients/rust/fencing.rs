// SPDX-License-Identifier: MIT

//! Why a lock alone is not enough, and what a fencing token is for.
//!
//! Alice locks an account, reads its balance, and is then stopped for longer than her lease: a garbage collection, a
//! swapping host, a debugger. The lock goes on to Bob, as it must. Then Alice wakes up, and does not know that any
//! time has passed: she writes what she has worked out. No lock can keep her from that. The store can, if
//! every write carries the writer's token and the store refuses one that is older than the newest it has seen.
//!
//! The story is told three times: without tokens; with a store that compares them; and with the money in the server that has the
//! lock, where `LOCK.GUARD` carries out a write only for the newest token, and nobody has to compare anything.
//!
//! Alice is a process of her own, and really stopped.
//!
//! ```text
//! redis-server --loadmodule target/release/libredis_lock.so
//! cargo run --example fencing -- --url redis://127.0.0.1:6379
//! ```

use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};

use redis::{Commands, Connection, RedisResult};

const LOCK: &str = "example:account:lock";
const ACCOUNT: &str = "example:account";

/// Alice's lease; she is stopped for longer than that.
const LEASE_MS: u64 = 300;

/// The store: it takes a write only from the holder of the newest token that it has seen. Here it is a script in
/// Redis; in a database, it is a column and `UPDATE … SET balance = ?, token = ? WHERE token <= ?`.
const STORE: &str = "
    if tonumber(ARGV[2]) < tonumber(redis.call('HGET', KEYS[1], 'token')) then return 0 end
    redis.call('HSET', KEYS[1], 'balance', ARGV[1], 'token', ARGV[2])
    return 1";

/// Who keeps late writes out.
#[derive(Clone, Copy, PartialEq)]
enum Fence {
    Nobody,
    Store,
    Guard,
}

impl Fence {
    const ALL: [Fence; 3] = [Fence::Nobody, Fence::Store, Fence::Guard];

    fn name(self) -> &'static str {
        match self {
            Fence::Nobody => "without",
            Fence::Store => "with fencing tokens",
            Fence::Guard => "with LOCK.GUARD",
        }
    }
}

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<ExitCode> {
    let mut args = std::env::args().skip(1);
    let (mut url, mut alice) = ("redis://127.0.0.1:6379".to_owned(), None);
    while let Some(name) = args.next() {
        let value = args.next().ok_or("usage: fencing [--url URL]")?;
        match name.as_str() {
            "--url" => url = value,
            "--alice" => alice = Fence::ALL.into_iter().find(|fence| fence.name() == value),
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    match alice {
        Some(fence) => run_alice(&url, fence).map(|()| ExitCode::SUCCESS),
        None => run(&url),
    }
}

/// The story, three times: it ends well only with tokens.
fn run(url: &str) -> Outcome<ExitCode> {
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let mut right = true;
    for fence in Fence::ALL {
        println!("{}:", fence.name());
        connection.del::<_, ()>(&[LOCK, ACCOUNT])?;
        connection.hset_multiple::<_, _, _, ()>(ACCOUNT, &[("balance", 100), ("token", 0)])?;
        let balance = tell(url, &mut connection, fence)?;
        let lost = if balance == 150 { "alice knows, and can try again" } else { "bob's 50 are lost" };
        println!("  the balance is {balance}: {lost}");
        right = (balance == 150) == (fence != Fence::Nobody) && right;
    }
    connection.del::<_, ()>(&[LOCK, ACCOUNT])?;
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell(url: &str, bob: &mut Connection, fence: Fence) -> Outcome<i64> {
    let alice = Command::new(std::env::current_exe()?)
        .args(["--url", url, "--alice", fence.name()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut alice = Alice(alice);
    let mut says = BufReader::new(alice.0.stdout.take().ok_or("no output")?).lines();
    println!("  {}", says.next().ok_or("alice is silent")??);

    alice.signal(libc::SIGSTOP);
    // Bob waits in the server, and has the lock as soon as Alice's lease is over.
    let token = acquire(bob, "bob", 10_000)?;
    let balance: i64 = bob.hget(ACCOUNT, "balance")?;
    println!("  alice is stopped; bob has the lock, token {token}, and deposits 50");
    write(bob, balance + 50, token, fence)?;
    let _left: i64 = redis::cmd("LOCK.RELEASE").arg(LOCK).arg("bob").query(bob)?;

    alice.signal(libc::SIGCONT);
    alice.0.stdin.take().ok_or("no input")?.write_all(b"go on\n")?;
    println!("  {}", says.next().ok_or("alice is silent")??);
    Ok(bob.hget(ACCOUNT, "balance")?)
}

/// Alice's process.
fn run_alice(url: &str, fence: Fence) -> Outcome<()> {
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let token = acquire(&mut connection, "alice", LEASE_MS)?;
    let balance: i64 = connection.hget(ACCOUNT, "balance")?;
    println!("alice has the lock, token {token}, and reads the balance: {balance}");
    // Her work takes a while, and in the middle of it she is stopped.
    io::stdin().read_line(&mut String::new())?;
    if write(&mut connection, balance + 10, token, fence)? {
        println!("alice wakes up and deposits 10");
    } else if fence == Fence::Store {
        println!("alice wakes up and wants to deposit 10, but the store refuses her token");
    } else {
        println!("alice wakes up and wants to deposit 10, but the server replies NOTOWNER");
    }
    Ok(())
}

/// Takes the lock, and returns the token that goes with it.
fn acquire(connection: &mut Connection, owner: &str, lease_ms: u64) -> RedisResult<i64> {
    // A map in RESP3, in RESP2 the same as a flat list: owner, alice, holds, 1, token, 1763…
    let reply: std::collections::HashMap<String, String> = redis::cmd("LOCK.ACQUIRE")
        .arg(LOCK)
        .arg(owner)
        .arg("FENCE")
        .arg("PX")
        .arg(lease_ms)
        .arg("BLOCK")
        .arg(0)
        .query(connection)?;
    Ok(reply.get("token").and_then(|token| token.parse().ok()).unwrap_or(0))
}

/// Writes the balance; false if that is refused.
fn write(connection: &mut Connection, balance: i64, token: i64, fence: Fence) -> RedisResult<bool> {
    match fence {
        Fence::Nobody => connection.hset::<_, _, _, ()>(ACCOUNT, "balance", balance).map(|()| true),
        Fence::Store => {
            redis::cmd("EVAL").arg(STORE).arg(1).arg(ACCOUNT).arg(balance).arg(token).query(connection)
        }
        Fence::Guard => {
            let mut guarded = redis::cmd("LOCK.GUARD");
            guarded.arg(LOCK).arg("TOKEN").arg(token).arg("HSET").arg(ACCOUNT).arg("balance").arg(balance);
            match guarded.query::<i64>(connection) {
                Ok(_) => Ok(true),
                Err(error) if error.code() == Some("NOTOWNER") => Ok(false),
                Err(error) => Err(error),
            }
        }
    }
}

/// Alice's process, which does not outlive the story.
struct Alice(Child);

impl Alice {
    fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.0.id()).unwrap_or(0);
        assert!(pid > 0);
        // SAFETY: the process is our child, and not waited for before it is dropped.
        unsafe { libc::kill(pid, signal) };
    }
}

impl Drop for Alice {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
