//! Why a lock alone is not enough, and what a fencing token is for.
//!
//! Alice locks an account, reads its balance, and is then stopped for longer than her lease: a garbage collection, a
//! swapping host, a debugger. The lock goes on to Bob, as it must. Then Alice wakes up, and does not know that any
//! time has passed: she writes what she has worked out. No lock can keep her from that. The store can, if
//! every write carries the writer's token and the store refuses one that is older than the newest it has seen.
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

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<ExitCode> {
    let mut args = std::env::args().skip(1);
    let (mut url, mut alice) = ("redis://127.0.0.1:6379".to_owned(), None);
    while let Some(name) = args.next() {
        let value = args.next().ok_or("usage: fencing [--url URL]")?;
        match name.as_str() {
            "--url" => url = value,
            "--alice" => alice = Some(value == "fenced"),
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    match alice {
        Some(fenced) => run_alice(&url, fenced).map(|()| ExitCode::SUCCESS),
        None => run(&url),
    }
}

/// The story, twice: it ends well only the second time.
fn run(url: &str) -> Outcome<ExitCode> {
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let mut right = true;
    for fenced in [false, true] {
        println!("{}:", if fenced { "with fencing tokens" } else { "without" });
        connection.del::<_, ()>(&[LOCK, ACCOUNT])?;
        connection.hset_multiple::<_, _, _, ()>(ACCOUNT, &[("balance", 100), ("token", 0)])?;
        let balance = tell(url, &mut connection, fenced)?;
        let lost = if balance == 150 { "alice knows, and can try again" } else { "bob's 50 are lost" };
        println!("  the balance is {balance}: {lost}");
        right = (balance == 150) == fenced && right;
    }
    connection.del::<_, ()>(&[LOCK, ACCOUNT])?;
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell(url: &str, bob: &mut Connection, fenced: bool) -> Outcome<i64> {
    let mode = if fenced { "fenced" } else { "plain" };
    let alice = Command::new(std::env::current_exe()?)
        .args(["--url", url, "--alice", mode])
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
    write(bob, balance + 50, token, fenced)?;
    let _left: i64 = redis::cmd("LOCK.RELEASE").arg(LOCK).arg("bob").query(bob)?;

    alice.signal(libc::SIGCONT);
    alice.0.stdin.take().ok_or("no input")?.write_all(b"go on\n")?;
    println!("  {}", says.next().ok_or("alice is silent")??);
    Ok(bob.hget(ACCOUNT, "balance")?)
}

/// Alice's process.
fn run_alice(url: &str, fenced: bool) -> Outcome<()> {
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let token = acquire(&mut connection, "alice", LEASE_MS)?;
    let balance: i64 = connection.hget(ACCOUNT, "balance")?;
    println!("alice has the lock, token {token}, and reads the balance: {balance}");
    // Her work takes a while, and in the middle of it she is stopped.
    io::stdin().read_line(&mut String::new())?;
    if write(&mut connection, balance + 10, token, fenced)? {
        println!("alice wakes up and deposits 10");
    } else {
        println!("alice wakes up and wants to deposit 10, but the store refuses her token");
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

/// Writes the balance; false if the store refuses.
fn write(connection: &mut Connection, balance: i64, token: i64, fenced: bool) -> RedisResult<bool> {
    if fenced {
        redis::cmd("EVAL").arg(STORE).arg(1).arg(ACCOUNT).arg(balance).arg(token).query(connection)
    } else {
        connection.hset::<_, _, _, ()>(ACCOUNT, "balance", balance).map(|()| true)
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
