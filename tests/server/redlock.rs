// SPDX-License-Identifier: MIT

//! `examples/redlock`: a lock over five servers of which two may be gone, one owner at a time, tokens that grow.
//!
//! `HISTORY_SECONDS` makes the runs with faults so long, and `HISTORY_SEED` repeats the choices of one.

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

use super::histories::verify;
use crate::support::programs::{rust, Printed, Run as Program};
use crate::support::proxy::Proxy;
use crate::support::{until, Client, Flavor, Server};

#[path = "../../examples/redlock/redlock.rs"]
mod algorithm;
#[path = "../../examples/redlock/server.rs"]
mod server;

use algorithm::{NoMajority, Redlock};

crate::on_every_server!(
    two_of_five_may_be_gone,
    with_three_gone_nothing_is_granted_or_kept,
    what_was_granted_without_an_answer_is_undone,
    an_acquire_that_arrives_late_holds_nothing,
    a_server_that_forgets_lets_a_second_owner_in,
    a_quarantine_keeps_the_second_owner_out,
    a_hold_that_is_over_cannot_be_renewed,
    a_grant_that_takes_too_long_is_none,
    a_token_is_told_only_by_the_holder,
    tokens_grow_whichever_servers_answer,
    a_clock_that_is_far_off_does_no_harm,
    one_owner_at_a_time_while_servers_forget,
    one_owner_at_a_time_while_clocks_differ,
    clients_that_name_different_servers_are_found_out,
    the_program_counts_exactly,
);

const KEY: &str = "k";
/// A call to a server that is there is answered within that.
const LIMIT: Duration = Duration::from_secs(2);
/// Nobody listens there.
const GONE: &str = "redis://127.0.0.1:1";
/// Longer than any test.
const LONG: Duration = Duration::from_secs(1_000);

fn five(flavor: Flavor, module_args: &[&str]) -> [Server; 5] {
    [0; 5].map(|_| {
        Server::with_module_args(flavor, &[&["lock.request-ttl", "1000"], module_args].concat(), &[])
    })
}

/// A client whose calls reach only some of five servers.
fn reaching(servers: &[Server], which: &[usize], limit: Duration) -> Redlock {
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let url = |at: usize| if which.contains(&at) { urls[at].as_str() } else { GONE };
    Redlock::new((0..servers.len()).map(url), limit).unwrap()
}

/// Nobody holds the lock there, and nothing is remembered of anybody who did.
fn assert_nothing_is_left<'a>(servers: impl IntoIterator<Item = &'a mut Server>) {
    for server in servers {
        assert_eq!(server.client().call(&format!("LOCK.INFO {KEY}")), "nil");
        verify(server);
    }
}

fn two_of_five_may_be_gone(flavor: Flavor) {
    let mut servers = Vec::from(five(flavor, &[]));
    let mut redlock = reaching(&servers, &[0, 1, 2, 3, 4], LIMIT);
    let mut other = reaching(&servers, &[0, 1, 2, 3, 4], LIMIT);
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

fn with_three_gone_nothing_is_granted_or_kept(flavor: Flavor) {
    let mut servers = Vec::from(five(flavor, &[]));
    let mut redlock = reaching(&servers, &[0, 1, 2, 3, 4], LIMIT);
    let mut hold = redlock.try_acquire("held before", LONG).unwrap();
    servers.drain(2..);
    let refusal = redlock.try_acquire(KEY, LONG).err().unwrap();
    assert_eq!(refusal, NoMajority { granted: 2, silent: 3, of: 5 });
    assert_eq!(refusal.to_string(), "2 of 5 servers granted it, 3 did not answer");
    assert!(!redlock.renew(&mut hold));
    redlock.release(hold);
    assert_nothing_is_left(&mut servers);
}

/// Three servers have granted it, and their answers are lost: the client knows of two.
fn what_was_granted_without_an_answer_is_undone(flavor: Flavor) {
    let mut servers = five(flavor, &[]);
    let proxies = [0, 1, 2].map(|at| Proxy::keeps_back_the_reply_to(servers[at].port, "LOCK.ACQUIRE"));
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

/// The servers stand still, and find the acquire and its cancel when they go on.
fn an_acquire_that_arrives_late_holds_nothing(flavor: Flavor) {
    let mut servers = five(flavor, &[]);
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
            until("it has arrived", || client.call("INFO commandstats").to_lowercase().contains(&arrived));
        }
    }
    assert_nothing_is_left(&mut servers);
}

/// What the algorithm cannot know: one of the majority has forgotten its part.
fn a_server_that_forgets_lets_a_second_owner_in(flavor: Flavor) {
    let mut servers = five(flavor, &[]);
    let first = reaching(&servers, &[0, 1, 2], LIMIT).try_acquire(KEY, LONG).unwrap();
    servers[2] = Server::with_module(flavor, &[]);
    let second = reaching(&servers, &[2, 3, 4], LIMIT).try_acquire(KEY, LONG).unwrap();
    assert!(Instant::now() < first.valid_until.min(second.valid_until), "both hold it");
    assert!(second.token > first.token, "a store that compares tokens refuses the first one");
}

fn a_quarantine_keeps_the_second_owner_out(flavor: Flavor) {
    let mut servers = five(flavor, &[]);
    let lease = Duration::from_secs(2);
    let first = reaching(&servers, &[0, 1, 2], LIMIT).try_acquire(KEY, lease).unwrap();
    servers[2] = Server::with_module_args(flavor, &["lock.quarantine", "2000"], &[]);
    let mut other = reaching(&servers, &[2, 3, 4], LIMIT);
    let refusal = other.try_acquire(KEY, lease).err().unwrap();
    assert_eq!(refusal, NoMajority { granted: 2, silent: 2, of: 5 });
    let second = other.acquire(KEY, lease, LONG).unwrap();
    assert!(Instant::now() >= first.valid_until);
    assert!(second.token > first.token);
}

fn a_hold_that_is_over_cannot_be_renewed(flavor: Flavor) {
    let mut servers = five(flavor, &[]);
    let mut redlock = reaching(&servers, &[0, 1, 2, 3, 4], LIMIT);
    let mut hold = redlock.acquire(KEY, Duration::from_millis(300), LONG).unwrap();
    let begun = hold.valid_until;
    until("it is over", || Instant::now() >= hold.valid_until);
    assert!(!redlock.renew(&mut hold) && hold.valid_until == begun);
    // Somebody ends it at three of five.
    let mut hold = redlock.acquire(KEY, LONG, LONG).unwrap();
    for server in &servers[..3] {
        assert_eq!(server.client().call(&format!("LOCK.BREAK {KEY}")), "1");
    }
    assert!(!redlock.renew(&mut hold));
    redlock.release(hold);
    assert_nothing_is_left(&mut servers);
}

/// All servers grant it, after a time in which a lease could have ended.
fn a_grant_that_takes_too_long_is_none(flavor: Flavor) {
    let mut servers = five(flavor, &[]);
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

/// Afterwards the next one may have a smaller token already.
fn a_token_is_told_only_by_the_holder(flavor: Flavor) {
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

/// Five servers whose clocks are off by so many seconds.
fn with_clocks(flavor: Flavor, seconds: [i64; 5]) -> [Server; 5] {
    seconds.map(|off| {
        let server = Server::with_own_clock(flavor);
        server.set_clock(off);
        let mut client = server.client();
        client.call("CONFIG SET lock.request-ttl 1000");
        // The server's clock is a copy that it makes once in a turn.
        let here = || i64::try_from(now().as_secs()).unwrap();
        until("the clock is set", || (client_seconds(&mut client) - here() - off).abs() < 100);
        server
    })
}

/// What the server's clock shows.
fn client_seconds(client: &mut Client) -> i64 {
    let reply = client.call("TIME");
    reply.trim_start_matches('[').split(',').next().unwrap().parse().unwrap()
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

fn tokens_grow_whichever_servers_answer(flavor: Flavor) {
    let mut servers = with_clocks(flavor, [1_500, 1_000, 0, -500, -1_000]);
    // The greatest token of each of two majorities, and no more: the second one is smaller.
    let greatest = |which: [usize; 3]| {
        let token = |at: usize| {
            let mut client = servers[at].client();
            let reply = client.call("LOCK.ACQUIRE other a FENCE");
            assert_eq!(client.call("LOCK.RELEASE other a"), "0");
            let (_, token) = reply.strip_suffix(']').unwrap().rsplit_once(' ').unwrap();
            token.parse::<i64>().unwrap()
        };
        which.map(token).into_iter().max().unwrap()
    };
    assert!(greatest([0, 1, 2]) > greatest([2, 3, 4]));
    let mut last = 0;
    let mut grow = |which: &[usize]| {
        let mut redlock = reaching(&servers, which, LIMIT);
        let hold = redlock.try_acquire(KEY, LONG).unwrap();
        assert!(hold.token > last, "{which:?}: {} after {last}", hold.token);
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

/// A server tells nobody a token that is an hour ahead of its own clock: it might be a mistake. As long as a majority is left
/// without the one whose clock is off, nobody has to.
fn a_clock_that_is_far_off_does_no_harm(flavor: Flavor) {
    let mut servers = with_clocks(flavor, [100_000, 0, 0, 0, 0]);
    let mut last = 0;
    for which in [&[0, 1, 2, 3, 4][..], &[1, 2, 3], &[0, 1, 3, 4], &[2, 3, 4]] {
        let mut redlock = reaching(&servers, which, LIMIT);
        let hold = redlock.try_acquire(KEY, LONG).unwrap();
        assert!(hold.token > last, "{which:?}");
        last = hold.token;
        redlock.release(hold);
    }
    // It is one of three that are needed.
    let refusal = reaching(&servers, &[0, 1, 2], LIMIT).try_acquire(KEY, LONG).err().unwrap();
    assert_eq!(refusal, NoMajority { granted: 3, silent: 2, of: 5 });
    assert_nothing_is_left(&mut servers);
}

/// A load of clients on a few locks of five servers, some of which are gone at any time.
struct Load {
    seed: u64,
    duration: Duration,
    recorder: Recorder,
    servers: [Mutex<Option<Server>>; 5],
    urls: Mutex<[String; 5]>,
    grants: AtomicU32,
    /// Which servers a client names.
    names: fn(u32) -> &'static [usize],
}

/// How a server starts again: with its data, or without.
type Restart<'a> = &'a (dyn Fn(usize, TempDir) -> Server + Sync);

const CLIENTS: u32 = 8;
const LOCKS: u32 = 8;
/// So many grants are to be in a run.
const ENOUGH: u32 = 50;
const LEASES_MS: std::ops::Range<u64> = 400..1_200;
/// As long as the longest lease.
const QUARANTINE_MS: &str = "1200";
/// A server that stands still costs each client so long.
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

    /// Lets the clients do their work, and two others be in the way of the servers. Returns what a checker says that shares no
    /// code with them.
    fn run(&self, restart: Option<Restart<'_>>) -> (Vec<Record>, Report) {
        // On a machine that does other things, too, it takes longer until there is something to look at.
        let (end, late) = (Instant::now() + self.duration, Instant::now() + 10 * self.duration);
        let is_over = || {
            let now = Instant::now();
            now > late || now > end && self.grants.load(Ordering::Relaxed) >= ENOUGH
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
        // How long a hold is valid is known to a microsecond. No lock here has a queue.
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
        // One that is not granted is as if it had not been asked for.
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
        // Some do not give it back, and others come too late for that: their leases end.
        if random.random_range(0..5) > 0 && Instant::now() < hold.valid_until {
            redlock.release(hold);
            let release = Release { keys, owner, ..Release::default() };
            self.add(client, number, sent, Command::Release(release), json!(0));
        }
    }

    /// The lock of a history is that of all servers: what one of them says does not matter.
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

    /// Lets a server stand still, or kills up to three at once and starts them anew.
    fn disturb(&self, mut random: StdRng, is_over: impl Fn() -> bool, restart: Restart<'_>) {
        while !is_over() {
            thread::sleep(Duration::from_millis(random.random_range(0..500)));
            let at = random.random_range(0..5);
            if random.random_range(0..5) == 0 {
                let mut which: Vec<usize> =
                    (0..random.random_range(1..4)).map(|next| (at + next) % 5).collect();
                // In this order, so that two who do that do not wait for each other.
                which.sort_unstable();
                let mut servers: Vec<_> =
                    which.iter().map(|at| (*at, self.servers[*at].lock().unwrap())).collect();
                let kill = |(at, server): &mut (usize, MutexGuard<'_, Option<Server>>)| {
                    GONE.clone_into(&mut self.urls.lock().unwrap()[*at]);
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

    /// Fails if the history is wrong, or if there is next to nothing in it.
    fn assert_right(self, flavor: Flavor, records: &[Record], report: &Report) {
        if !report.violations.is_empty() {
            let seed = self.seed;
            let file = std::env::temp_dir().join(format!("redlock-{flavor:?}-{seed}.jsonl"));
            record::write(records, BufWriter::new(File::create(&file).unwrap())).unwrap();
            panic!("HISTORY_SEED={seed} made a history that is wrong, see {}:\n{report}", file.display());
        }
        assert!(report.grants >= usize::try_from(ENOUGH).unwrap() && report.pairs > 0, "{report}");
        for server in self.servers {
            verify(&mut server.into_inner().unwrap().unwrap());
        }
    }
}

/// For how many milliseconds such a lease is valid: what `examples/redlock` is to do, said anew.
fn valid_ms(lease: Duration) -> i64 {
    let lease = i64::try_from(lease.as_millis()).unwrap();
    lease - lease / 100 - 3
}

fn all(_client: u32) -> &'static [usize] {
    &[0, 1, 2, 3, 4]
}

fn one_owner_at_a_time_while_servers_forget(flavor: Flavor) {
    let args = ["lock.request-ttl", "1000", "lock.quarantine", QUARANTINE_MS];
    let load = Load::new(five(flavor, &[]), all);
    let (records, report) = load.run(Some(&|_, _| Server::with_module_args(flavor, &args, &[])));
    load.assert_right(flavor, &records, &report);
}

fn one_owner_at_a_time_while_clocks_differ(flavor: Flavor) {
    let args = ["--appendonly", "yes", "--appendfsync", "always"];
    let start = |off: i64, dir: TempDir| {
        let server = Server::with_own_clock_in(flavor, dir, &args);
        server.set_clock(off);
        server.client().call("CONFIG SET lock.request-ttl 1000");
        server
    };
    let clocks = [1_500, 1_000, 0, -500, -1_000];
    let load = Load::new(clocks.map(|off| start(off, TempDir::new().unwrap())), all);
    let (records, report) = load.run(Some(&|at, dir| start(clocks[at], dir)));
    load.assert_right(flavor, &records, &report);
}

/// Two of five are no majority, and the checker says so. These clients take two of three for one, but each half names others.
fn clients_that_name_different_servers_are_found_out(flavor: Flavor) {
    let load = Load::new(five(flavor, &[]), |client| if client % 2 == 0 { &[0, 1, 2] } else { &[2, 3, 4] });
    let (_, report) = load.run(None);
    let found = |rule: Rule| report.violations.iter().filter(|violation| violation.rule == rule).count();
    assert!(found(Rule::Exclusion) > 5, "{report}");
}

fn the_program_counts_exactly(flavor: Flavor) {
    let mut servers = Vec::from(five(flavor, &[]));
    let mut program = rust("redlock");
    program.args(servers.iter().map(Server::url));
    servers.drain(3..);
    let output = Program::spawn(program).finish();
    let printed = Printed::new(&output);
    assert!(output.status.success() && printed.stdout.starts_with("expected 100, got 100\n"), "{printed}");
    let mut program = rust("redlock");
    servers.drain(1..);
    program.args(["--patience", "0"]).arg(servers[0].url()).args([GONE; 4]);
    let output = Program::spawn(program).finish();
    let printed = Printed::new(&output);
    assert!(!output.status.success(), "{printed}");
    assert!(printed.stderr.ends_with(" of 5 servers granted it, 4 did not answer\n"), "{printed}");
    verify(&mut servers[0]);
}
