// SPDX-License-Identifier: MIT

//! Compares redis-lock-client with rslock: acquire and release, alone, on separate keys, and on one contended lock. Impatient
//! clients hold the lock for 1 ms, and wait for it for at most 5 ms. In the last row, this package holds and renews 1,000 other
//! locks meanwhile. All programs share the cores of this machine, so compare ratios. The rounds of the packages alternate.
//!
//! ```text
//! cargo run --release -- MODULE [SECONDS]
//! ```

use std::error::Error;
use std::future::Future;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use redis_lock_client::{blocking, ErrorKind, Locks};
use rslock::LockManager;

const LEASE: Duration = Duration::from_secs(30);
const ROUNDS: u32 = 3;
/// How long an impatient client waits, and how often rslock asks for it then.
const PATIENCE: Duration = Duration::from_millis(5);
const POLL: Duration = Duration::from_millis(1);
/// How long an impatient client holds the lock.
const HOLD: Duration = Duration::from_millis(1);

type Failure = Box<dyn Error + Send + Sync>;

/// A running server. Dropping this value kills it.
struct Server {
    port: u16,
    child: Child,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start(module: &Path) -> Result<Server, Failure> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let dir = tempfile::tempdir()?;
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--loadmodule"]);
        let child = command.arg(module).arg("--dir").arg(dir.path()).stdout(Stdio::null()).spawn()?;
        let server = Server { port, child, _dir: dir };
        let deadline = Instant::now() + Duration::from_secs(10);
        while server.client()?.get_connection().is_err() {
            if Instant::now() > deadline {
                return Err("the server does not start".into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    fn client(&self) -> redis::RedisResult<redis::Client> {
        redis::Client::open(("127.0.0.1", self.port))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs tasks that repeat some work, and returns the successful repetitions per second.
async fn rate<F: Future<Output = Result<bool, Failure>> + Send + 'static>(
    tasks: usize,
    time: Duration,
    work: impl Fn(usize) -> F + Clone + Send + 'static,
) -> Result<f64, Failure> {
    let (count, begin) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let (work, count) = (work.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                while begin.elapsed() < time {
                    count.fetch_add(u64::from(work(task).await?), Ordering::Relaxed);
                }
                Ok::<_, Failure>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(count.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64())
}

fn rate_of_threads(
    locks: &blocking::Locks,
    threads: usize,
    time: Duration,
    keys: &Keys,
    is_impatient: bool,
) -> Result<f64, Failure> {
    let (count, begin) = (AtomicU64::new(0), Instant::now());
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|number| {
                let (count, lock) = (&count, locks.lock(keys("threads", number)));
                let lock = if is_impatient { lock.wait(PATIENCE) } else { lock };
                scope.spawn(move || {
                    while begin.elapsed() < time {
                        match lock.acquire() {
                            Err(error) if is_impatient && error.kind() == ErrorKind::TimedOut => continue,
                            hold => {
                                if is_impatient {
                                    thread::sleep(HOLD);
                                }
                                hold?.release()?;
                            }
                        }
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok::<_, Failure>(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })?;
    Ok(count.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64())
}

type Keys = dyn Fn(&str, usize) -> String;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let module = args.next().map_or_else(|| PathBuf::from("../../../target/release/libredis_lock.so"), PathBuf::from);
    let time = Duration::from_secs(args.next().map_or(Ok(2), |seconds| seconds.parse())?);
    let server = Server::start(&module.canonicalize()?)?;
    let locks = Locks::new(server.client()?);
    let threads = blocking::Locks::new(server.client()?);
    let mut manager = LockManager::new(vec![format!("redis://127.0.0.1:{}/", server.port)]);
    // rslock polls: after at most this time it tries again, without a limit.
    manager.set_retry(u32::MAX, Duration::from_millis(10));
    let mut hurried = manager.clone();
    hurried.set_retry(u32::try_from(PATIENCE.as_millis() / POLL.as_millis())?, POLL);
    let titles = ["acquire + release per second", "tasks", "threads", "rslock", "ratio", "ratio"];
    let [title, tasks, threads_title, other, first, second] = titles;
    println!("{title:34} {tasks:>10} {threads_title:>10} {other:>10} {first:>8} {second:>8}");
    let alone: &Keys = &|kind, task| format!("{kind}:{task}");
    let shared: &Keys = &|kind, _| kind.to_owned();
    for (name, tasks, keys, is_impatient, others) in [
        ("one client", 1, alone, false, 0),
        ("50 clients on 50 keys", 50, alone, false, 0),
        ("10 clients on one lock", 10, shared, false, 0),
        ("50 clients on one lock", 50, shared, false, 0),
        ("50 clients on one lock, impatient", 50, shared, true, 0),
        ("one client, 1,000 others held", 1, alone, false, 1000),
    ] {
        let mut held = Vec::new();
        for other in 0..others {
            held.push((
                locks.lock(format!("other:{other}")).acquire().await?,
                tokio::task::block_in_place(|| threads.lock(format!("another:{other}")).acquire())?,
            ));
        }
        let mut sums = [0.0; 3];
        for _ in 0..ROUNDS {
            let all: Vec<_> = (0..tasks).map(|task| locks.lock(keys("tasks", task))).collect();
            sums[0] += rate(tasks, time, move |task| {
                let lock = all[task].clone();
                let lock = if is_impatient { lock.wait(PATIENCE) } else { lock };
                async move {
                    match lock.acquire().await {
                        Err(error) if is_impatient && error.kind() == ErrorKind::TimedOut => return Ok(false),
                        hold => {
                            if is_impatient {
                                tokio::time::sleep(HOLD).await;
                            }
                            hold?.release().await?;
                        }
                    }
                    Ok(true)
                }
            })
            .await?;
            sums[1] += tokio::task::block_in_place(|| rate_of_threads(&threads, tasks, time, keys, is_impatient))?;
            let of = if is_impatient { &hurried } else { &manager };
            let all: Vec<_> = (0..tasks).map(|task| (of.clone(), keys("rslock", task))).collect();
            sums[2] += rate(tasks, time, move |task| {
                let (manager, key) = all[task].clone();
                async move {
                    match manager.lock(key.as_bytes(), LEASE).await {
                        Err(rslock::LockError::Unavailable) if is_impatient => return Ok(false),
                        lock => {
                            if is_impatient {
                                tokio::time::sleep(HOLD).await;
                            }
                            manager.unlock(&lock.map_err(|error| error.to_string())?).await;
                        }
                    }
                    Ok(true)
                }
            })
            .await?;
        }
        let [tasks, threads, rslock] = sums.map(|sum| sum / f64::from(ROUNDS));
        let (first, second) = (tasks / rslock, threads / rslock);
        println!("{name:34} {tasks:10.0} {threads:10.0} {rslock:10.0} {first:8.2} {second:8.2}");
    }
    locks.close().await;
    threads.close();
    Ok(())
}
