// SPDX-License-Identifier: MIT

//! `examples/redlock`: a lock over five servers, two of which may fail, with one owner at a time and growing tokens.
//!
//! `HISTORY_SECONDS` sets the length of the runs with faults. `HISTORY_SEED` repeats the random choices of a run.

use std::fs::File;
use std::io::BufWriter;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_history::check::{check, Limits, Report, Rule};
use redis_lock_history::record::{
    self, Acquire, Call, Command, Outcome, Record, Recorder, Release, Renew, Run,
};
use serde_json::{json, Value};
use tempfile::TempDir;

use super::histories::assert_no_state_left;
use crate::support::programs::{rust, Printed, Run as Program};
use crate::support::proxy::Proxy;
use crate::support::{until, Client, Flavor, Server};

#[path = "../../examples/redlock/redlock.rs"]
mod algorithm;
#[path = "../../examples/redlock/server.rs"]
mod server;

use algorithm::{NoMajority, Redlock};

crate::on_every_server!(
    two_of_five_servers_may_fail,
    three_failed_servers_end_grants_and_renewals,
    grants_without_a_reply_are_undone,
    a_late_acquire_holds_nothing,
    a_forgetful_server_admits_a_second_owner,
    a_quarantine_keeps_the_second_owner_out,
    an_expired_hold_cannot_be_renewed,
    a_slow_grant_is_refused,
    only_a_holder_raises_the_token,
    tokens_grow_whichever_servers_answer,
    a_wrong_clock_does_no_harm,
    forgetful_servers_with_quarantine_admit_one_owner,
    servers_with_different_clocks_admit_one_owner,
    clients_with_different_servers_are_detected,
    the_program_counts_exactly,
);

const KEY: &str = "k";
/// Time limit of a call; a running server responds sooner.
const LIMIT: Duration = Duration::from_secs(2);
/// An address without a server.
const NO_SERVER: &str = "redis://127.0.0.1:1";
/// A duration longer than any test run.
const LONG: Duration = Duration::from_secs(1_000);

fn start_five(flavor: Flavor, module_args: &[&str]) -> [Server; 5] {
    [0; 5].map(|_| {
        Server::with_module_args(flavor, &[&["lock.request-ttl", "1000"], module_args].concat(), &[])
    })
}

/// A client whose calls reach only some of five servers.
fn client_of(servers: &[Server], reachable: &[usize], limit: Duration) -> Redlock {
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let url = |at: usize| if reachable.contains(&at) { urls[at].as_str() } else { NO_SERVER };
    Redlock::new((0..servers.len()).map(url), limit).unwrap()
}

/// Asserts that the servers have no holder and no state left.
fn assert_nothing_is_left<'a>(servers: impl IntoIterator<Item = &'a mut Server>) {
    for server in servers {
        assert_eq!(server.client().call(&format!("LOCK.INFO {KEY}")), "nil");
        assert_no_state_left(server);
    }
}

fn two_of_five_servers_may_fail(flavor: Flavor) {
    let mut servers = Vec::from(start_five(flavor, &[]));
    let mut redlock = client_of(&servers, &[0, 1, 2, 3, 4], LIMIT);
    let mut other = client_of(&servers, &[0, 1, 2, 3, 4], LIMIT);
    let first = redlock.try_acquire(KEY, LONG).unwrap();
    servers.drain(3..);
    let refusal = other.try_acquire(KEY, LONG).err().unwrap();
    assert_eq!(refusal, NoMajority { granted: 0, silent: 2, of: 5 });
    let token = first.token;
    redlock.release(first);
    let mut second = redlock.acquire(KEY, LONG, LIMIT).unwrap();
    assert!(second.token > token);
    let before = second.valid_until;
    assert!(redlock.renew(&mut second) && second.valid_until > before);
    assert!(other.try_acquire(KEY, LONG).is_err());
    redlock.release(second);
    assert_nothing_is_left(&mut servers);
}

fn three_failed_servers_end_grants_and_renewals(flavor: Flavor) {
    let mut servers = Vec::from(start_five(flavor, &[]));
    let mut redlock = client_of(&servers, &[0, 1, 2, 3, 4], LIMIT);
    let mut hold = redlock.try_acquire("held before", LONG).unwrap();
    servers.drain(2..);
    let refusal = redlock.try_acquire(KEY, LONG).err().unwrap();
    assert_eq!(refusal, NoMajority { granted: 2, silent: 3, of: 5 });
    assert_eq!(refusal.to_string(), "2 of 5 servers granted it, 3 did not answer");
    assert!(!redlock.renew(&mut hold));
    redlock.release(hold);
    assert_nothing_is_left(&mut servers);
}

/// Three servers grant the lock and their replies are lost, so the client knows of two grants.
fn grants_without_a_reply_are_undone(flavor: Flavor) {
    let mut servers = start_five(flavor, &[]);
    let proxies = [0, 1, 2].map(|at| Proxy::withholds_the_reply_to(servers[at].port, "LOCK.ACQUIRE"));
    let mut urls: Vec<String> = servers.iter().map(Server::url).collect();
    for (at, proxy) in proxies.iter().enumerate() {
        urls[at] = format!("redis://127.0.0.1:{}", proxy.port);
    }
    let limit = Duration::from_millis(500);
    let mut redlock = Redlock::new(urls.iter().map(String::as_str), limit).unwrap();
    let refusal = redlock.try_acquire(KEY, LONG).err().unwrap();
    assert_eq!(refusal, NoMajority { granted: 2, silent: 3, of: 5 });
    assert!(proxies.iter().all(Proxy::has_lost_a_reply));
    assert_nothing_is_left(&mut servers);
}

/// The servers are frozen, and receive the acquire and its cancel when they resume.
fn a_late_acquire_holds_nothing(flavor: Flavor) {
    let mut servers = start_five(flavor, &[]);
    let proxies = [0, 1, 2].map(|at| Proxy::freezable(servers[at].port));
    let mut urls: Vec<String> = servers.iter().map(Server::url).collect();
    for (at, proxy) in proxies.iter().enumerate() {
        proxy.freeze();
        urls[at] = format!("redis://127.0.0.1:{}", proxy.port);
    }
    let mut redlock = Redlock::new(urls.iter().map(String::as_str), Duration::from_millis(200)).unwrap();
    let refusal = redlock.try_acquire(KEY, LONG).err().unwrap();
    assert_eq!(refusal, NoMajority { granted: 2, silent: 3, of: 5 });
    for (server, proxy) in servers.iter().zip(&proxies) {
        proxy.thaw();
        let mut client = server.client();
        for command in ["lock.acquire", "lock.cancel"] {
            let arrived = format!("cmdstat_{command}:calls=1,");
            until("the command has arrived", || {
                client.call("INFO commandstats").to_lowercase().contains(&arrived)
            });
        }
    }
    assert_nothing_is_left(&mut servers);
}

/// The algorithm cannot detect that one server of the majority has lost its data.
fn a_forgetful_server_admits_a_second_owner(flavor: Flavor) {
    let mut servers = start_five(flavor, &[]);
    let first = client_of(&servers, &[0, 1, 2], LIMIT).try_acquire(KEY, LONG).unwrap();
    servers[2] = Server::with_module(flavor, &[]);
    let second = client_of(&servers, &[2, 3, 4], LIMIT).try_acquire(KEY, LONG).unwrap();
    assert!(Instant::now() < first.valid_until.min(second.valid_until), "both hold it");
    assert!(second.token > first.token, "a store that compares tokens refuses the first one");
}

fn a_quarantine_keeps_the_second_owner_out(flavor: Flavor) {
    let mut servers = start_five(flavor, &[]);
    let lease = Duration::from_secs(2);
    let first = client_of(&servers, &[0, 1, 2], LIMIT).try_acquire(KEY, lease).unwrap();
    servers[2] = Server::with_module_args(flavor, &["lock.quarantine", "2000"], &[]);
    let mut other = client_of(&servers, &[2, 3, 4], LIMIT);
    let refusal = other.try_acquire(KEY, lease).err().unwrap();
    assert_eq!(refusal, NoMajority { granted: 2, silent: 2, of: 5 });
    let second = other.acquire(KEY, lease, LONG).unwrap();
    assert!(Instant::now() >= first.valid_until);
    assert!(second.token > first.token);
}

fn an_expired_hold_cannot_be_renewed(flavor: Flavor) {
    let mut servers = start_five(flavor, &[]);
    let mut redlock = client_of(&servers, &[0, 1, 2, 3, 4], LIMIT);
    let mut hold = redlock.acquire(KEY, Duration::from_millis(300), LONG).unwrap();
    let begun = hold.valid_until;
    until("the hold has expired", || Instant::now() >= hold.valid_until);
    assert!(!redlock.renew(&mut hold) && hold.valid_until == begun);
    // The lock is broken at three of five servers.
    let mut hold = redlock.acquire(KEY, LONG, LONG).unwrap();
    for server in &servers[..3] {
        assert_eq!(server.client().call(&format!("LOCK.BREAK {KEY}")), "1");
    }
    assert!(!redlock.renew(&mut hold));
    redlock.release(hold);
    assert_nothing_is_left(&mut servers);
}

/// All servers grant the lock, but only after a lease could have expired.
fn a_slow_grant_is_refused(flavor: Flavor) {
    let mut servers = start_five(flavor, &[]);
    let proxies = servers.each_ref().map(|server| Proxy::freezable(server.port));
    let urls = proxies.each_ref().map(|proxy| format!("redis://127.0.0.1:{}", proxy.port));
    let mut redlock = Redlock::new(urls.iter().map(String::as_str), LIMIT).unwrap();
    let lease = Duration::from_millis(300);
    let asked = Instant::now();
    proxies.iter().for_each(Proxy::freeze);
    let refusal = thread::scope(|scope| {
        let refusal = scope.spawn(|| redlock.try_acquire(KEY, lease).err());
        until("a lease could have ended", || asked.elapsed() > 2 * lease);
        proxies.iter().for_each(Proxy::thaw);
        refusal.join().unwrap().unwrap()
    });
    assert_eq!(refusal, NoMajority { granted: 5, silent: 0, of: 5 });
    assert_nothing_is_left(&mut servers);
}

/// Once the hold has ended, the next owner may already have a smaller token.
fn only_a_holder_raises_the_token(flavor: Flavor) {
    let mut servers = [Server::with_module_args(flavor, &["lock.request-ttl", "1000"], &[])];
    let mut there = server::Server::new(&servers[0].url(), LIMIT).unwrap();
    let [first, second] = ["a", "b"].map(|owner| server::Claim {
        key: KEY.to_owned(),
        owner: owner.to_owned(),
        request: "1".to_owned(),
    });
    let token = there.acquire(&first, 100_000).token().unwrap();
    assert!(there.make_known(&first, token + 1_000_000));
    there.undo(&first);
    let next = there.acquire(&second, 100_000).token().unwrap();
    assert!(next > token + 1_000_000);
    assert!(!there.make_known(&first, next + 1_000_000));
    there.undo(&second);
    assert_nothing_is_left(&mut servers);
}

/// Starts five servers with these clock offsets in seconds.
fn with_clocks(flavor: Flavor, seconds: [i64; 5]) -> [Server; 5] {
    seconds.map(|off| {
        let server = Server::with_own_clock(flavor);
        server.set_clock(off);
        let mut client = server.client();
        client.call("CONFIG SET lock.request-ttl 1000");
        // The server caches its clock and updates the copy once per event loop iteration.
        let here = || i64::try_from(now().as_secs()).unwrap();
        until("the clock is set", || (client_seconds(&mut client) - here() - off).abs() < 100);
        server
    })
}

/// The server's time in seconds.
fn client_seconds(client: &mut Client) -> i64 {
    let reply = client.call("TIME");
    reply.trim_start_matches('[').split(',').next().unwrap().parse().unwrap()
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

fn tokens_grow_whichever_servers_answer(flavor: Flavor) {
    let mut servers = with_clocks(flavor, [1_500, 1_000, 0, -500, -1_000]);
    // Compares only the greatest tokens of two majorities: the second is smaller.
    let greatest = |reachable: [usize; 3]| {
        let token = |at: usize| {
            let mut client = servers[at].client();
            let reply = client.call("LOCK.ACQUIRE other a FENCE");
            assert_eq!(client.call("LOCK.RELEASE other a"), "0");
            let (_, token) = reply.strip_suffix(']').unwrap().rsplit_once(' ').unwrap();
            token.parse::<i64>().unwrap()
        };
        reachable.map(token).into_iter().max().unwrap()
    };
    assert!(greatest([0, 1, 2]) > greatest([2, 3, 4]));
    let mut last = 0;
    let mut grow = |reachable: &[usize]| {
        let mut redlock = client_of(&servers, reachable, LIMIT);
        let hold = redlock.try_acquire(KEY, LONG).unwrap();
        assert!(hold.token > last, "{reachable:?}: {} after {last}", hold.token);
        last = hold.token;
        redlock.release(hold);
    };
    let triples = (0..5).flat_map(|a| (a + 1..5).flat_map(move |b| (b + 1..5).map(move |c| [a, b, c])));
    for triple in triples {
        grow(&triple);
        grow(&[2, 3, 4]);
        let four: Vec<usize> = (0..5).filter(|at| *at != triple[1]).collect();
        grow(&four);
        grow(&[0, 1, 2, 3, 4]);
        grow(&[2, 3, 4]);
    }
    assert_nothing_is_left(&mut servers);
}

/// A server rejects a token that is an hour ahead of its own clock, as it may be a mistake. A majority remains without that
/// server.
fn a_wrong_clock_does_no_harm(flavor: Flavor) {
    let mut servers = with_clocks(flavor, [100_000, 0, 0, 0, 0]);
    let mut last = 0;
    for reachable in [&[0, 1, 2, 3, 4][..], &[1, 2, 3], &[0, 1, 3, 4], &[2, 3, 4]] {
        let mut redlock = client_of(&servers, reachable, LIMIT);
        let hold = redlock.try_acquire(KEY, LONG).unwrap();
        assert!(hold.token > last, "{reachable:?}");
        last = hold.token;
        redlock.release(hold);
    }
    // The server with the wrong clock is needed for this majority.
    let refusal = client_of(&servers, &[0, 1, 2], LIMIT).try_acquire(KEY, LONG).err().unwrap();
    assert_eq!(refusal, NoMajority { granted: 3, silent: 2, of: 5 });
    assert_nothing_is_left(&mut servers);
}

/// Clients that use a few locks on five servers, some of which are down at any time.
struct Load {
    seed: u64,
    duration: Duration,
    recorder: Recorder,
    servers: [Mutex<Option<Server>>; 5],
    urls: Mutex<[String; 5]>,
    grants: AtomicU32,
    /// The servers that a client names.
    names: fn(u32) -> &'static [usize],
}

/// Restarts a server with its data or without.
type Restart<'a> = &'a (dyn Fn(usize, TempDir) -> Server + Sync);

const CLIENTS: u32 = 8;
const LOCKS: u32 = 8;
/// Minimum number of grants in a run.
const MIN_GRANTS: u32 = 50;
const LEASES_MS: std::ops::Range<u64> = 400..1_200;
/// Equals the longest lease.
const QUARANTINE_MS: &str = "1200";
/// The time that a suspended server costs each client.
const LIMIT_IN_LOAD: Duration = Duration::from_millis(40);

impl Load {
    fn new(servers: [Server; 5], names: fn(u32) -> &'static [usize]) -> Load {
        let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
        let seed = number("HISTORY_SEED").unwrap_or(u64::from(now().subsec_nanos()));
        let urls = Mutex::new(servers.each_ref().map(Server::url));
        let recorder = Recorder::new(Run { seed, default_lease: 30_000, request_ttl: 20_000, replicas: 0 });
        let duration = Duration::from_secs(number("HISTORY_SECONDS").unwrap_or(5));
        Load {
            seed,
            duration,
            recorder,
            servers: servers.map(|server| Mutex::new(Some(server))),
            urls,
            grants: AtomicU32::new(0),
            names,
        }
    }

    /// Runs the clients while two threads disturb the servers. Returns the history, and the report of a checker that shares no
    /// code with them.
    fn run(&self, restart: Option<Restart<'_>>) -> (Vec<Record>, Report) {
        // A busy machine takes longer to produce enough grants.
        let (end, late) = (Instant::now() + self.duration, Instant::now() + 10 * self.duration);
        let is_over = || {
            let now = Instant::now();
            now > late || now > end && self.grants.load(Ordering::Relaxed) >= MIN_GRANTS
        };
        thread::scope(|scope| {
            for number in 0..CLIENTS {
                let random = StdRng::seed_from_u64(self.seed ^ u64::from(number + 1) << 32);
                scope.spawn(move || self.client(number, random, is_over));
            }
            for number in 0..2 {
                let random = StdRng::seed_from_u64(self.seed ^ (number + 1) << 48);
                let Some(restart) = restart else { break };
                scope.spawn(move || self.disturb(random, is_over, restart));
            }
        });
        let records = self.recorder.history();
        // The validity of a hold is known to a microsecond. These locks have no queue.
        let report = check(&records, &Limits { slack: 0, late: 0 });
        eprintln!("seed {}: {report}", self.seed);
        (records, report)
    }

    fn client(&self, number: u32, mut random: StdRng, is_over: impl Fn() -> bool) {
        while !is_over() {
            let urls = self.urls.lock().unwrap().clone();
            let urls = (self.names)(number).iter().map(|at| urls[*at].as_str());
            let mut redlock = Redlock::new(urls, LIMIT_IN_LOAD).unwrap();
            for _ in 0..random.random_range(1..5) {
                self.hold_once(number, &mut redlock, &mut random);
                thread::sleep(Duration::from_millis(random.random_range(0..20)));
            }
        }
    }

    fn hold_once(&self, client: u32, redlock: &mut Redlock, random: &mut StdRng) {
        let key = format!("k{}", random.random_range(0..LOCKS));
        let lease = Duration::from_millis(random.random_range(LEASES_MS));
        let (number, sent) = (self.recorder.next_call(), self.recorder.now());
        // A refused acquire leaves no trace in the history.
        let Ok(mut hold) = redlock.try_acquire(&key, lease) else { return };
        self.grants.fetch_add(1, Ordering::Relaxed);
        let (keys, owner, valid) = (vec![key], format!("hold-{number}"), Some(valid_ms(lease)));
        let token = hold.token;
        let acquire = Acquire {
            keys: keys.clone(),
            owner: owner.clone(),
            lease: valid,
            fence: true,
            ..Acquire::default()
        };
        let reply = json!(["owner", owner, "holds", 1, "token", token]);
        self.add(client, number, sent, Command::Acquire(acquire), reply);
        for _ in 0..random.random_range(0..3) {
            thread::sleep(Duration::from_millis(random.random_range(0..20)));
            let (number, sent) = (self.recorder.next_call(), self.recorder.now());
            if random.random_range(0..2) == 0 && redlock.renew(&mut hold) {
                let renew =
                    Renew { keys: keys.clone(), owner: owner.clone(), lease: valid, ..Renew::default() };
                self.add(client, number, sent, Command::Renew(renew), json!(1));
            }
        }
        let (number, sent) = (self.recorder.next_call(), self.recorder.now());
        // Some clients do not release, and others are too late; their leases expire.
        if random.random_range(0..5) > 0 && Instant::now() < hold.valid_until {
            redlock.release(hold);
            let release = Release { keys, owner, ..Release::default() };
            self.add(client, number, sent, Command::Release(release), json!(0));
        }
    }

    /// Records a call on the lock as a whole; replies of single servers do not matter.
    fn add(&self, client: u32, number: u64, sent: i64, command: Command, reply: Value) {
        let (answered, outcome) = (Some(self.recorder.now()), Outcome::Reply(reply));
        let connection = u64::from(client);
        self.recorder.add(Record::Call(Call {
            number,
            client,
            connection,
            sent,
            answered,
            command,
            outcome,
        }));
    }

    /// Suspends a server, or kills up to three at once and restarts them.
    fn disturb(&self, mut random: StdRng, is_over: impl Fn() -> bool, restart: Restart<'_>) {
        while !is_over() {
            thread::sleep(Duration::from_millis(random.random_range(0..500)));
            let at = random.random_range(0..5);
            if random.random_range(0..5) == 0 {
                let mut killed: Vec<usize> =
                    (0..random.random_range(1..4)).map(|next| (at + next) % 5).collect();
                // Sorted, so that two threads cannot deadlock.
                killed.sort_unstable();
                let mut servers: Vec<_> =
                    killed.iter().map(|at| (*at, self.servers[*at].lock().unwrap())).collect();
                let kill = |(at, server): &mut (usize, MutexGuard<'_, Option<Server>>)| {
                    NO_SERVER.clone_into(&mut self.urls.lock().unwrap()[*at]);
                    server.take().unwrap().stop()
                };
                let folders: Vec<TempDir> = servers.iter_mut().map(kill).collect();
                thread::scope(|scope| {
                    for ((at, server), dir) in servers.iter_mut().zip(folders) {
                        let (at, server) = (*at, &mut **server);
                        scope.spawn(move || {
                            let again = restart(at, dir);
                            self.urls.lock().unwrap()[at] = again.url();
                            *server = Some(again);
                        });
                    }
                });
            } else {
                let server = self.servers[at].lock().unwrap();
                let server = server.as_ref().unwrap();
                server.signal(libc::SIGSTOP);
                thread::sleep(Duration::from_millis(random.random_range(0..1_000)));
                server.signal(libc::SIGCONT);
            }
        }
    }

    /// Fails if the history is wrong or nearly empty.
    fn assert_right(self, flavor: Flavor, records: &[Record], report: &Report) {
        if !report.violations.is_empty() {
            let seed = self.seed;
            let file = std::env::temp_dir().join(format!("redlock-{flavor:?}-{seed}.jsonl"));
            record::write(records, BufWriter::new(File::create(&file).unwrap())).unwrap();
            panic!("HISTORY_SEED={seed} has a wrong history, see {}:\n{report}", file.display());
        }
        assert!(report.grants >= usize::try_from(MIN_GRANTS).unwrap() && report.pairs > 0, "{report}");
        for server in self.servers {
            assert_no_state_left(&mut server.into_inner().unwrap().unwrap());
        }
    }
}

/// Validity of a lease in milliseconds: what `examples/redlock` must compute, written independently.
fn valid_ms(lease: Duration) -> i64 {
    let lease = i64::try_from(lease.as_millis()).unwrap();
    lease - lease / 100 - 3
}

fn every_server(_client: u32) -> &'static [usize] {
    &[0, 1, 2, 3, 4]
}

fn forgetful_servers_with_quarantine_admit_one_owner(flavor: Flavor) {
    let args = ["lock.request-ttl", "1000", "lock.quarantine", QUARANTINE_MS];
    let load = Load::new(start_five(flavor, &[]), every_server);
    let (records, report) = load.run(Some(&|_, _| Server::with_module_args(flavor, &args, &[])));
    load.assert_right(flavor, &records, &report);
}

fn servers_with_different_clocks_admit_one_owner(flavor: Flavor) {
    let args = ["--appendonly", "yes", "--appendfsync", "always"];
    let start = |off: i64, dir: TempDir| {
        let server = Server::with_own_clock_in(flavor, dir, &args);
        server.set_clock(off);
        server.client().call("CONFIG SET lock.request-ttl 1000");
        server
    };
    let clocks = [1_500, 1_000, 0, -500, -1_000];
    let load = Load::new(clocks.map(|off| start(off, TempDir::new().unwrap())), every_server);
    let (records, report) = load.run(Some(&|at, dir| start(clocks[at], dir)));
    load.assert_right(flavor, &records, &report);
}

/// Half of the clients use servers 0 to 2, the others 2 to 4, and each regards two as a majority. The checker reports it.
fn clients_with_different_servers_are_detected(flavor: Flavor) {
    let load =
        Load::new(start_five(flavor, &[]), |client| if client % 2 == 0 { &[0, 1, 2] } else { &[2, 3, 4] });
    let (_, report) = load.run(None);
    let found = |rule: Rule| report.violations.iter().filter(|violation| violation.rule == rule).count();
    assert!(found(Rule::Exclusion) > 5, "{report}");
}

fn the_program_counts_exactly(flavor: Flavor) {
    let mut servers = Vec::from(start_five(flavor, &[]));
    let mut program = rust("redlock");
    program.args(servers.iter().map(Server::url));
    servers.drain(3..);
    let output = Program::spawn(program).finish();
    let printed = Printed::new(&output);
    assert!(output.status.success() && printed.stdout.starts_with("expected 100, got 100\n"), "{printed}");
    let mut program = rust("redlock");
    servers.drain(1..);
    program.args(["--patience", "0"]).arg(servers[0].url()).args([NO_SERVER; 4]);
    let output = Program::spawn(program).finish();
    let printed = Printed::new(&output);
    assert!(!output.status.success(), "{printed}");
    assert!(printed.stderr.ends_with(" of 5 servers granted it, 4 did not answer\n"), "{printed}");
    assert_no_state_left(&mut servers[0]);
}
