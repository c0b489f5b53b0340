// SPDX-License-Identifier: MIT

//! Compares redis-lock-client with rslock: one lock, many who want it, a millisecond of work. Everything shares this machine's
//! cores: read ratios, not numbers.
//!
//! ```text
//! cargo run --release -- MODULE [SECONDS]
//! ```

use std::error::Error;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redis_lock_client::Locks;
use rslock::LockManager;

const WORK: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(30);

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Clone, Copy)]
enum Way {
    /// A thread for each who wants the lock.
    Ours,
    /// Each waits on a connection of its own.
    Blocking,
    /// A task for each. It asks again after a random part of this time, as `set_retry` has it.
    Rslock(Duration),
}

const WAYS: [(&str, Way); 4] = [
    ("redis-lock-client", Way::Ours),
    ("redis-lock-client, blocking", Way::Blocking),
    ("rslock, asks every 200 ms", Way::Rslock(Duration::from_millis(200))),
    ("rslock, asks every 10 ms", Way::Rslock(Duration::from_millis(10))),
];

/// Ended when dropped.
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
        while let Err(error) = server.client().and_then(|client| Ok(client.get_connection()?)) {
            if Instant::now() > deadline {
                return Err(error);
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    fn client(&self) -> Result<redis::Client, Failure> {
        Ok(redis::Client::open(("127.0.0.1", self.port))?)
    }

    /// What it has used, in seconds.
    fn cpu(&self) -> Result<f64, Failure> {
        let info: String = redis::cmd("INFO").arg("cpu").query(&mut self.client()?.get_connection()?)?;
        let of = |line: &str| {
            line.strip_prefix("used_cpu_sys:").or(line.strip_prefix("used_cpu_user:"))?.parse().ok()
        };
        Ok(info.lines().filter_map(|line| of(line) as Option<f64>).sum())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How often the lock was had, the longest that somebody waited, and how many never had it.
#[derive(Clone, Copy, Default)]
struct Seen {
    held: u64,
    longest: Duration,
    never: usize,
}

impl Seen {
    fn waited(&mut self, time: Duration) {
        self.longest = self.longest.max(time);
    }

    fn add(&mut self, one: Seen) {
        self.held += one.held;
        self.waited(one.longest);
        self.never += usize::from(one.held == 0);
    }
}

/// A server of its own for each: its processor time is that of this.
fn measure(module: &Path, (name, way): (&str, Way), many: usize, span: Duration) -> Result<(), Failure> {
    let server = Server::start(module)?;
    let before = server.cpu()?;
    let ends = Instant::now() + span;
    let seen = match way {
        Way::Ours => ours(&server, many, ends, false)?,
        Way::Blocking => ours(&server, many, ends, true)?,
        Way::Rslock(delay) => rslock(&server, many, ends, delay)?,
    };
    let micros = (server.cpu()? - before) * 1e6 / seen.held.max(1) as f64;
    let (rate, longest, never) =
        (seen.held as f64 / span.as_secs_f64(), seen.longest.as_millis(), seen.never);
    println!("{name:28} {many:8} {rate:10.0} {longest:12} ms {never:14} {micros:14.0}");
    Ok(())
}

fn ours(server: &Server, many: usize, ends: Instant, blocking: bool) -> Result<Seen, Failure> {
    let locks = Locks::new(&server.client()?)?;
    let mut all = Seen::default();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..many)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = Seen::default();
                    loop {
                        let began = Instant::now();
                        let left = ends.saturating_duration_since(began);
                        if left.is_zero() {
                            return Ok(seen);
                        }
                        let mut lock = locks.lock("ours").lease(LEASE).wait(left);
                        if blocking {
                            lock = lock.blocking();
                        }
                        match lock.acquire() {
                            Ok(hold) => {
                                seen.waited(began.elapsed());
                                thread::sleep(WORK);
                                hold.release()?;
                                seen.held += 1;
                            }
                            Err(redis_lock_client::Error::TimedOut(_)) => seen.waited(began.elapsed()),
                            Err(error) => return Err(error),
                        }
                    }
                })
            })
            .collect();
        for one in threads {
            all.add(one.join().map_err(|_| "a thread panicked")??);
        }
        Ok(all)
    })
}

fn rslock(server: &Server, many: usize, ends: Instant, delay: Duration) -> Result<Seen, Failure> {
    let mut manager = LockManager::new(vec![format!("redis://127.0.0.1:{}/", server.port)]);
    // It would sleep beyond the end. What it does between two tries is done below.
    manager.set_retry(1, delay);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(8).enable_all().build()?;
    let all = Arc::new(Mutex::new(Seen::default()));
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for _ in 0..many {
            let (manager, all) = (manager.clone(), Arc::clone(&all));
            tasks.push(tokio::spawn(async move {
                let mut seen = Seen::default();
                while Instant::now() < ends {
                    let began = Instant::now();
                    while Instant::now() < ends {
                        if let Ok(lock) = manager.lock("theirs", LEASE).await {
                            seen.waited(began.elapsed());
                            // tokio's own sleep lasts up to a millisecond longer.
                            thread::sleep(WORK);
                            manager.unlock(&lock).await;
                            seen.held += 1;
                            break;
                        }
                        tokio::time::sleep(rand::random_range(Duration::ZERO..delay)).await;
                    }
                    seen.waited(began.elapsed().saturating_sub(WORK));
                }
                all.lock().expect("a task panicked").add(seen);
            }));
        }
        for task in tasks {
            task.await?;
        }
        Ok::<_, Failure>(())
    })?;
    let seen = *all.lock().expect("a task panicked");
    Ok(seen)
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let module =
        args.next().map_or_else(|| PathBuf::from("../../../target/release/libredis_lock.so"), PathBuf::from);
    let seconds = args.next().map_or(Ok(5), |seconds| seconds.parse())?;
    println!(
        "{:28} {:>8} {:>10} {:>15} {:>14} {:>14}",
        "", "who want", "locks/s", "longest wait", "never had it", "CPU µs/lock"
    );
    for many in [2, 50, 200] {
        for way in WAYS {
            measure(&module.canonicalize()?, way, many, Duration::from_secs(seconds))?;
        }
    }
    Ok(())
}
