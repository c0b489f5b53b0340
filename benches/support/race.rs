// SPDX-License-Identifier: MIT

//! A race for one lock: clients acquire and release it in a closed loop, without work in between.

use std::time::{Duration, Instant};

use super::caller::Caller;
use super::clients::{Polling, Queued, Subscriber};
use super::machine::{pin, Cores};
use super::postgres::{self, Postgres};
use super::redisson::{Jvm, Scripts};
use super::samples::Samples;
use super::server::Server;
use super::swarm::{Client, Endpoint, Swarm};
use super::wire::Wire;
use super::{packed, Outcome};

/// The result of a race.
#[derive(Clone, Default)]
pub struct Race {
    pub grants_per_second: f64,
    /// The server's processor time per grant, in microseconds, summed over all its threads or processes.
    pub cpu_per_grant: f64,
    /// The times from one client's release to the next client's grant.
    pub hand_overs: Samples,
}

/// The kind of clients on Redis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Native,
    Polling,
    /// Redisson's protocol, see [`Subscriber`].
    Protocol,
}

/// Races clients of one kind on Redis.
pub fn on_redis(
    server: &mut Server,
    cores: &Cores,
    kind: Kind,
    clients: usize,
    time: Duration,
) -> Outcome<Race> {
    let scripts = Scripts::load(&mut Caller::connect(server)?)?;
    // The reply shows that the server has accepted the connection.
    let greetings = [packed("PING")];
    let connections = if kind == Kind::Protocol { 2 } else { 1 };
    let endpoint =
        Endpoint { address: server.address(), wire: Wire::Redis, greetings: &greetings, connections };
    let cpu = || server.cpu();
    let numbers = 0..clients;
    let race = match kind {
        Kind::Native => {
            run(cores, &endpoint, numbers.map(|number| Queued::native("race", number)).collect(), cpu, time)
        }
        Kind::Polling => run(
            cores,
            &endpoint,
            numbers.map(|number| Polling::new("race", number, &scripts)).collect(),
            cpu,
            time,
        ),
        Kind::Protocol => run(
            cores,
            &endpoint,
            numbers.map(|number| Subscriber::new("race", number, &scripts)).collect(),
            cpu,
            time,
        ),
    }?;
    server.clear()?;
    Ok(race)
}

pub fn on_postgres(postgres: &Postgres, clients: usize, time: Duration) -> Outcome<Race> {
    let swarm = (0..clients).map(|_| postgres::client()).collect();
    run(&postgres.cores, &postgres.endpoint(), swarm, || postgres.cpu(), time)
}

/// Races threads of one JVM. All threads share one client; with `apart`, each thread has its own client.
pub fn with_redisson(
    server: &Server,
    jvm: &Jvm,
    apart: bool,
    threads: usize,
    time: Duration,
) -> Outcome<Race> {
    let before = server.cpu()?;
    let finish = jvm.race(apart, threads, Duration::from_secs(1), time)?;
    let spent = server.cpu()? - before;
    Ok(Race {
        grants_per_second: finish.grants / time.as_secs_f64(),
        cpu_per_grant: spent.as_secs_f64() * 1e6 / finish.all_grants,
        hand_overs: Samples(finish.hand_overs),
    })
}

/// Lets the clients race, on the cores reserved for the load.
pub fn run<C: Client + Send>(
    cores: &Cores,
    endpoint: &Endpoint<'_>,
    clients: Vec<C>,
    cpu: impl Fn() -> Outcome<Duration> + Send,
    time: Duration,
) -> Outcome<Race> {
    // Gives all clients time to queue up before the measurement.
    let warm_up = Duration::from_millis(300) + Duration::from_micros(100) * u32::try_from(clients.len())?;
    let race = move || -> Outcome<Race> {
        pin(&cores.loaders);
        let mut swarm = Swarm::start(endpoint, clients)?;
        swarm.run(warm_up)?;
        let (before, since) = (cpu()?, Instant::now());
        let log = swarm.run(time)?;
        let (spent, time) = (cpu()? - before, since.elapsed());
        Ok(Race {
            grants_per_second: log.grants as f64 / time.as_secs_f64(),
            cpu_per_grant: spent.as_secs_f64() * 1e6 / log.grants as f64,
            hand_overs: log.hand_overs,
        })
    };
    // Pins a new thread to the cores, as the calling thread must stay free to use all cores.
    std::thread::scope(|scope| scope.spawn(race).join().map_err(|_| "a thread has panicked")?)
}
