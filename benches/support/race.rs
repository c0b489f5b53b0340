// SPDX-License-Identifier: MIT

//! A race for locks: clients acquire and release them in a closed loop, without work in between.

use std::time::{Duration, Instant};

use super::caller::Caller;
use super::clients::{Polling, Queued, Subscriber};
use super::machine::{pin, Cores};
use super::postgres::{self, Postgres};
pub use super::race_result::{Load, Race};
use super::redisson::{Jvm, Scripts};
use super::server::Server;
use super::swarm::{Client, Endpoint, Swarm};
use super::wire::Wire;
use super::{packed, Outcome};

/// The kind of clients on Redis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Native,
    Polling,
    /// Redisson's protocol, see [`Subscriber`].
    Protocol,
}

/// Races clients of one kind on Redis.
pub fn on_redis(server: &mut Server, cores: &Cores, kind: Kind, load: Load, time: Duration) -> Outcome<Race> {
    let scripts = Scripts::load(&mut Caller::connect(server)?)?;
    // The reply shows that the server has accepted the connection.
    let greetings = [packed("PING")];
    let connections = if kind == Kind::Protocol { 2 } else { 1 };
    let endpoint =
        Endpoint { address: server.address(), wire: Wire::Redis, greetings: &greetings, connections };
    let cpu = || server.cpu();
    let clients = (0..load.clients).map(|number| (format!("race:{}", number % load.locks), number));
    let race = match kind {
        Kind::Native => {
            let clients = clients.map(|(key, number)| Queued::native(&key, number)).collect();
            run(cores, &endpoint, clients, cpu, time)
        }
        Kind::Polling => {
            let clients = clients.map(|(key, number)| Polling::new(&key, number, &scripts)).collect();
            run(cores, &endpoint, clients, cpu, time)
        }
        Kind::Protocol => {
            let clients = clients.map(|(key, number)| Subscriber::new(&key, number, &scripts)).collect();
            run(cores, &endpoint, clients, cpu, time)
        }
    }?;
    server.clear()?;
    Ok(race.of(load))
}

pub fn on_postgres(postgres: &Postgres, load: Load, time: Duration) -> Outcome<Race> {
    let swarm = (0..load.clients).map(|number| postgres::client(number % load.locks)).collect();
    Ok(run(&postgres.cores, &postgres.endpoint(), swarm, || postgres.cpu(), time)?.of(load))
}

/// Races threads of one JVM. All threads share one client; with `apart`, each thread has its own client.
pub fn with_redisson(server: &Server, jvm: &Jvm, apart: bool, load: Load, time: Duration) -> Outcome<Race> {
    let before = server.cpu()?;
    let answer = jvm.race(apart, load, Duration::from_secs(1), time)?;
    Ok(answer.into_race(load, server.cpu()? - before, time))
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
            waits: log.waits,
        })
    };
    // Pins a new thread to the cores, as the calling thread must stay free to use all cores.
    std::thread::scope(|scope| scope.spawn(race).join().map_err(|_| "a thread has panicked")?)
}
