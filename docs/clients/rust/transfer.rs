// SPDX-License-Identifier: MIT

//! Transfers between accounts by fifty workers at once: `LOCK.MACQUIRE` of both accounts, in whatever order.
//!
//! Each worker reads two balances, thinks, and writes both. Without locks money is made and lost. With two locks, one after the
//! other, two workers would soon wait for each other. With both at once neither happens.
//!
//! ```text
//! redis-server --loadmodule target/release/libredis_lock.so
//! cargo run --example transfer -- --url redis://127.0.0.1:6379
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::thread;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::{Client, Commands, Connection};

const ACCOUNTS: usize = 10;
const WORKERS: usize = 50;
const TRANSFERS: usize = 20;
/// What each account has at first.
const BALANCE: i64 = 1_000;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<ExitCode> {
    let client = Client::open(url()?.as_str())?;
    println!("{} transfers, without locks", WORKERS * TRANSFERS);
    everybody(&client, |connection, _, from, to, amount| transfer(connection, from, to, amount))?;
    println!("{} transfers, with both accounts locked", WORKERS * TRANSFERS);
    let sum = everybody(&client, |connection, worker, from, to, amount| {
        let locks = [lock(from), lock(to)];
        // If this worker dies, both locks are free when its connection closes; if it hangs, after ten seconds.
        let options = ["PX", "10000", "EPHEMERAL", "BLOCK", "0"];
        let mut acquire = redis::cmd("LOCK.MACQUIRE");
        acquire.arg(locks.len()).arg(&locks).arg(worker).arg(&options).query::<[i64; 2]>(connection)?;
        transfer(connection, from, to, amount)?;
        redis::cmd("LOCK.MRELEASE").arg(locks.len()).arg(&locks).arg(worker).query::<[i64; 2]>(connection)?;
        Ok(())
    })?;
    println!("there are {sum} of {}", total());
    Ok(if sum == total() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads both balances, and writes both: in between others may do so, too.
fn transfer(connection: &mut Connection, from: usize, to: usize, amount: i64) -> Outcome<()> {
    let [rich, poor]: [i64; 2] = connection.mget(&[account(from), account(to)])?;
    if rich >= amount {
        let balances = [(account(from), rich - amount), (account(to), poor + amount)];
        connection.mset::<_, _, ()>(&balances)?;
    }
    Ok(())
}

/// Every worker makes its transfers. Returns how much money there is then.
fn everybody(
    client: &Client,
    transfer: impl Fn(&mut Connection, &str, usize, usize, i64) -> Outcome<()> + Sync,
) -> Outcome<i64> {
    let mut connection = client.get_connection()?;
    for number in 0..ACCOUNTS {
        connection.set::<_, _, ()>(account(number), BALANCE)?;
    }
    let work = |worker: usize| -> Outcome<()> {
        let mut random = StdRng::seed_from_u64(u64::try_from(worker)?);
        let mut connection = client.get_connection()?;
        for _ in 0..TRANSFERS {
            let from = random.random_range(0..ACCOUNTS);
            let to = (from + random.random_range(1..ACCOUNTS)) % ACCOUNTS;
            let amount = random.random_range(1..100);
            transfer(&mut connection, &format!("worker-{worker}"), from, to, amount)?;
        }
        Ok(())
    };
    let work = &work;
    thread::scope(|scope| -> Outcome<()> {
        let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        Ok(())
    })?;
    let balances: Vec<i64> = connection.mget((0..ACCOUNTS).map(account).collect::<Vec<_>>())?;
    Ok(balances.into_iter().sum())
}

fn total() -> i64 {
    BALANCE * i64::try_from(ACCOUNTS).unwrap_or_default()
}

/// One hash tag for all accounts: so this works in a cluster as well.
fn account(number: usize) -> String {
    format!("{{example:bank}}:balance:{number}")
}

fn lock(number: usize) -> String {
    format!("{{example:bank}}:lock:{number}")
}

fn url() -> Outcome<String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok("redis://127.0.0.1:6379".to_owned()),
        ["--url", url] => Ok(url.to_owned()),
        _ => Err("usage: transfer [--url <url>]".into()),
    }
}
